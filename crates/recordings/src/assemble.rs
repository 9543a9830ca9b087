//! Readings into events: each source sorted, equal time stamps put together, figures checked against what is
//! possible, then all sources merged by event time.

use std::collections::BTreeSet;

use eadt_schemas::decode::Check;
use eadt_schemas::v1::{GpuTelemetry, Meter, Origin, Phase, TrainingProgress};
use eadt_schemas::{EventTime, EventType, LoggedEvent};
use serde::Serialize;
use serde_json::value::to_raw_value;

use crate::fields::Nature;
use crate::recording::{Mark, Reading, Recording, Source, SourceKind};
use crate::{CounterCheck, Field, Gap, ImportError, Options, Report};

/// A recording that was read: its report, and its events in event-time order over all sources.
#[derive(Debug)]
pub struct Imported {
    pub report: Report,
    recording: Recording,
    /// Source and reading of every event, in order.
    order: Vec<(u32, u32)>,
    names: Names,
}

#[derive(Debug)]
struct Names {
    /// Of each source; `None`: it is of no workload.
    workloads: Vec<Option<String>>,
    collector: String,
    /// `ce_source`.
    said_by: String,
}

impl Imported {
    /// The events; where times are equal, telemetry before progress. The same every time.
    pub fn events(&self) -> Events<'_> {
        Events { imported: self, next: 0 }
    }
}

/// Makes the events of an [`Imported`] one by one.
#[derive(Debug)]
pub struct Events<'a> {
    imported: &'a Imported,
    next: usize,
}

impl Iterator for Events<'_> {
    type Item = LoggedEvent;

    fn next(&mut self) -> Option<LoggedEvent> {
        let &(source, index) = self.imported.order.get(self.next)?;
        self.next += 1;
        Some(self.imported.event(source as usize, index as usize))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.imported.order.len() - self.next;
        (left, Some(left))
    }
}

impl ExactSizeIterator for Events<'_> {}

pub(crate) fn assemble(mut recording: Recording, options: &Options) -> Result<Imported, ImportError> {
    let mut counts =
        Counts { out_of_order: recording.out_of_order, duplicates: recording.duplicates, same_stamp: recording.same_stamp };
    let mut gaps = Vec::new();
    let mut counters = Vec::new();
    let mut sources = std::mem::take(&mut recording.sources);
    sources.retain(|source| !source.readings.is_empty());
    for source in &mut sources {
        counts.out_of_order += sort(&mut source.readings);
        put_together(source, &mut counts, &recording)?;
        find_gaps(source, &mut gaps);
        if let SourceKind::Device(device) = &source.kind {
            check_power(&recording, source)?;
            let check = check_counter(&recording, source, &device.name)?;
            // Those who share a device all have its whole counter.
            let shared = source.readings.iter().any(|reading| reading.portion.is_some());
            match counters.iter_mut().find(|known: &&mut CounterCheck| shared && known.device == device.name) {
                Some(known) => {
                    if let Some(check) = check.filter(|check| check.counter_joules > known.counter_joules) {
                        *known = check;
                    }
                }
                None => counters.extend(check),
            }
        }
    }
    recording.sources = sources;
    let order = order(&recording)?;

    let fallback = format!("imported/{}", recording.stem(0));
    let workload = |source: &Source| {
        let name = options.workload.clone().or_else(|| source.workload.clone());
        let name = name.or_else(|| (!source.is_nobodys).then(|| fallback.clone()));
        name.map(|name| name + source.suffix)
    };
    let names = Names {
        workloads: recording.sources.iter().map(workload).collect(),
        collector: options.collector.clone().unwrap_or_else(|| format!("import-{}", recording.format)),
        said_by: format!("/import/{}", recording.format),
    };
    let (Some(first), Some(last)) = (order.first(), order.last()) else {
        let files = recording.files.join(", ");
        let problem = format!("no reading found in {} row(s)", recording.rows);
        let remedy = format!("check that this is a recording of the format {}", recording.format);
        return Err(ImportError::whole(files, problem, remedy));
    };
    let time = |at: &(u32, u32)| recording.sources[at.0 as usize].readings[at.1 as usize].time;
    let progress = |source: &&Source| matches!(source.kind, SourceKind::Job { .. });
    let progress_events = recording.sources.iter().filter(progress).map(|source| source.readings.len() as u64).sum();
    let report = Report {
        format: recording.format,
        files: recording.files.clone(),
        workloads: names.workloads.iter().flatten().cloned().collect::<BTreeSet<_>>().into_iter().collect(),
        rows: recording.rows,
        events: order.len() as u64,
        telemetry_events: order.len() as u64 - progress_events,
        progress_events,
        first_time: time(first),
        last_time: time(last),
        duplicates: counts.duplicates,
        same_stamp: counts.same_stamp,
        out_of_order: counts.out_of_order,
        absent_values: recording.absent,
        gaps,
        skipped: std::mem::take(&mut recording.skipped),
        counters,
        notes: std::mem::take(&mut recording.notes),
    };
    let imported = Imported { report, recording, order, names };
    imported.check()?;
    Ok(imported)
}

#[derive(Default)]
struct Counts {
    duplicates: u64,
    same_stamp: u64,
    out_of_order: u64,
}

/// Returns how many readings were older than one before them.
fn sort(readings: &mut [Reading]) -> u64 {
    let mut newest = EventTime::MIN;
    let mut wrong = 0;
    for reading in readings.iter() {
        wrong += u64::from(reading.time < newest);
        newest = newest.max(reading.time);
    }
    if wrong > 0 {
        readings.sort_by_key(|reading| reading.time);
    }
    wrong
}

fn put_together(source: &mut Source, counts: &mut Counts, recording: &Recording) -> Result<(), ImportError> {
    if source.readings.windows(2).all(|pair| pair[0].time < pair[1].time) {
        return Ok(());
    }
    let file = source.file;
    let readings = std::mem::take(&mut source.readings);
    for group in readings.chunk_by(|a, b| a.time == b.time) {
        let first = &group[0];
        if group.len() == 1 {
            source.readings.push(first.clone());
            continue;
        }
        // Entries of a log may tell several things of one moment; rows of a table should not.
        if !matches!(source.kind, SourceKind::Job { irregular: true, .. }) {
            // Two readings of one line are the same row, told in two parts.
            for further in group[1..].iter().filter(|reading| reading.line != first.line) {
                if further.values == first.values { counts.duplicates += 1 } else { counts.same_stamp += 1 }
            }
        }
        let mark = put_marks_together(group).map_err(|problem| {
            recording.error(file, u64::from(first.line), problem, "one call imports one run that takes time")
        })?;
        let values = put_values_together(group);
        source.readings.push(Reading { values, mark, ..first.clone() });
    }
    Ok(())
}

fn put_values_together(group: &[Reading]) -> Box<[(Field, f64)]> {
    let fields: BTreeSet<Field> = group.iter().flat_map(|reading| reading.values.iter().map(|(field, _)| *field)).collect();
    let together = |field: Field| {
        let mut values: Vec<f64> = Vec::new();
        for (index, reading) in group.iter().enumerate() {
            // A repeated row says nothing new, so it weighs nothing in a mean.
            if group[..index].iter().any(|earlier| earlier.values == reading.values && earlier.mark == reading.mark) {
                continue;
            }
            values.extend(reading.values.iter().filter(|(f, _)| *f == field).map(|(_, value)| *value));
        }
        match field.nature() {
            Nature::Gauge => values.iter().sum::<f64>() / values.len() as f64,
            Nature::Counter => values[values.len() - 1],
        }
    };
    fields.into_iter().map(|field| (field, together(field))).collect()
}

fn put_marks_together(group: &[Reading]) -> Result<Option<Box<Mark>>, &'static str> {
    let mut together: Option<Box<Mark>> = None;
    for mark in group.iter().filter_map(|reading| reading.mark.as_deref()) {
        let Some(sum) = &mut together else {
            together = Some(Box::new(mark.clone()));
            continue;
        };
        match (sum.phase, mark.phase) {
            (Phase::Progress, phase) => sum.phase = phase,
            (_, Phase::Progress) => {}
            (a, b) if a == b => {}
            _ => return Err("the run starts and finishes at the same time"),
        }
        if mark.span.is_some() {
            sum.span.clone_from(&mark.span);
        }
    }
    Ok(together)
}

fn find_gaps(source: &Source, gaps: &mut Vec<Gap>) {
    let (factor, floor, name) = match &source.kind {
        SourceKind::Job { irregular: true, .. } => return,
        SourceKind::Job { rank, .. } => (10.0, 60.0, format!("progress of rank {rank}")),
        SourceKind::Device(device) => (3.0, 0.0, device.name.clone()),
    };
    let pairs = source.readings.windows(2).filter(|pair| tenure(&pair[0]) == tenure(&pair[1]));
    let times = || pairs.clone().map(|pair| (pair[0].time, pair[1].time));
    let mut intervals: Vec<f64> = times().map(|(from, to)| to.seconds_since(from)).collect();
    if intervals.len() < 3 {
        return;
    }
    let middle = intervals.len() / 2;
    let median = *intervals.select_nth_unstable_by(middle, f64::total_cmp).1;
    let allowed = (factor * median).max(floor);
    let long = times().filter(|(from, to)| to.seconds_since(*from) > allowed);
    gaps.extend(long.map(|(from, to)| Gap { source: name.clone(), from, to, seconds: to.seconds_since(from) }));
}

/// More than this no such thing draws: a reading above it is in another unit.
fn most_watts(meter: Meter) -> (f64, &'static str) {
    match meter {
        Meter::Gpu => (5_000.0, "one GPU board"),
        Meter::Module => (10_000.0, "one module"),
        Meter::Node => (200_000.0, "one node"),
        Meter::Wall => (1e7, "one metered system"),
    }
}

fn unit_remedy(recording: &Recording, field: Field) -> String {
    let column = recording.columns.get(&field).map_or(field.name(), String::as_str);
    let (unit, meter) = match field {
        Field::EnergyJoulesTotal => ("mJ", ""),
        _ => ("mW", ", or what the meter covers if it is more than one GPU (gpu, module, node, wall)"),
    };
    format!("say the unit, for example --map {}={column}:{unit}{meter}", field.name())
}

fn blame(recording: &Recording, source: &Source, reading: &Reading, field: Field, problem: String) -> ImportError {
    let error = recording.error(source.file, u64::from(reading.line), problem, unit_remedy(recording, field));
    error.column(recording.columns.get(&field).map_or(field.name(), String::as_str))
}

fn value(reading: &Reading, field: Field) -> Option<f64> {
    reading.values.iter().find(|(f, _)| *f == field).map(|(_, value)| *value)
}

/// Returns the stay that a reading belongs to.
fn tenure(reading: &Reading) -> Option<u64> {
    reading.portion.as_ref().map(|portion| portion.tenure)
}

fn power(reading: &Reading) -> Option<f64> {
    value(reading, Field::PowerWatts).or_else(|| value(reading, Field::PowerAverageWatts))
}

fn check_power(recording: &Recording, source: &Source) -> Result<(), ImportError> {
    let (most, what) = most_watts(recording.meter);
    for reading in &source.readings {
        for field in [Field::PowerWatts, Field::PowerAverageWatts, Field::PowerLimitWatts] {
            if let Some(watts) = value(reading, field).filter(|watts| *watts > most) {
                let problem = format!("{watts} W is more than {what} can draw ({most} W)");
                return Err(blame(recording, source, reading, field, problem));
            }
        }
    }
    // A board idles at some watts: a whole recording below one is in kilowatts, say.
    let highest = source.readings.iter().filter_map(power).fold(0.0, f64::max);
    if recording.meter == Meter::Gpu && highest > 0.0 && highest < 1.0 && source.readings.len() >= 10 {
        let first = &source.readings[0];
        let problem = format!("no reading reaches 1 W (highest: {highest} W), which no GPU board can do");
        return Err(blame(recording, source, first, Field::PowerWatts, problem));
    }
    Ok(())
}

/// Energy by counter and by power over the same readings; refuses what cannot both be true.
fn check_counter(recording: &Recording, source: &Source, device: &str) -> Result<Option<CounterCheck>, ImportError> {
    let field = Field::EnergyJoulesTotal;
    let (mut counter_joules, mut integral_joules, mut seconds) = (0.0, 0.0, 0.0);
    let mut before: Option<(&Reading, f64)> = None;
    let mut with_power = true;
    for reading in &source.readings {
        let Some(counter) = value(reading, field) else { continue };
        if let Some((earlier, earlier_counter)) = before {
            // A fall is a reset: nothing is known about the time between. Between two stays the device was another's.
            if counter >= earlier_counter && tenure(earlier) == tenure(reading) {
                let step = reading.time.seconds_since(earlier.time);
                counter_joules += counter - earlier_counter;
                seconds += step;
                match (power(earlier), power(reading)) {
                    (Some(a), Some(b)) => integral_joules += f64::midpoint(a, b) * step,
                    _ => with_power = false,
                }
            }
        }
        before = Some((reading, counter));
    }
    let Some((last, _)) = before.filter(|_| seconds >= 1.0) else { return Ok(None) };
    let (most, what) = most_watts(recording.meter);
    let mean = counter_joules / seconds;
    if mean > most {
        let problem = format!("the energy counter grows by {mean:.0} W on average, more than {what} can draw ({most} W)");
        return Err(blame(recording, source, last, field, problem));
    }
    if !with_power {
        return Ok(None);
    }
    let far = counter_joules > 20.0 * integral_joules || integral_joules > 20.0 * counter_joules;
    if far && integral_joules > 0.0 && counter_joules > 0.0 {
        let problem = format!(
            "the energy counter says {counter_joules:.3} J, power over the same {seconds:.3} s {integral_joules:.3} J: one of \
             the two is in another unit"
        );
        return Err(blame(recording, source, last, field, problem));
    }
    Ok(Some(CounterCheck::new(device, counter_joules, integral_joules)))
}

fn order(recording: &Recording) -> Result<Vec<(u32, u32)>, ImportError> {
    let total: usize = recording.sources.iter().map(|source| source.readings.len()).sum();
    if u32::try_from(total).is_err() {
        let problem = format!("{total} readings are more than one import can hold");
        return Err(ImportError::whole(recording.files.join(", "), problem, "import the files in several calls"));
    }
    let mut order = Vec::with_capacity(total);
    for (number, source) in recording.sources.iter().enumerate() {
        order.extend((0..source.readings.len()).map(|index| (number as u32, index as u32)));
    }
    order.sort_by_key(|&(number, index)| {
        let source = &recording.sources[number as usize];
        (source.readings[index as usize].time, matches!(source.kind, SourceKind::Job { .. }), number)
    });
    Ok(order)
}

impl Imported {
    /// Refuses what the pipeline would send to the dead letters, naming the row.
    fn check(&self) -> Result<(), ImportError> {
        for (number, source) in self.recording.sources.iter().enumerate() {
            for index in 0..source.readings.len() {
                let refused = match &source.kind {
                    SourceKind::Device(_) => self.telemetry(number, index).check(),
                    SourceKind::Job { .. } => self.progress(number, index).check(),
                };
                if let Err(refusal) = refused {
                    let field = refusal.field.unwrap_or("row");
                    let column = Field::from_name(field).and_then(|field| self.recording.columns.get(&field));
                    let line = u64::from(source.readings[index].line);
                    let remedy = "correct the unit or take the row out";
                    let error = self.recording.error(source.file, line, refusal.detail, remedy);
                    return Err(error.column(column.map_or(field, String::as_str)));
                }
            }
        }
        Ok(())
    }

    fn telemetry(&self, number: usize, index: usize) -> GpuTelemetry {
        let source = &self.recording.sources[number];
        let SourceKind::Device(device) = &source.kind else { unreachable!("called for devices only") };
        let reading = &source.readings[index];
        let mut event = GpuTelemetry {
            time: reading.time,
            workload: self.names.workloads[number].clone(),
            device: device.name.clone(),
            collector: self.names.collector.clone(),
            meter: self.recording.meter,
            origin: Origin::Imported,
            node: device.node.clone(),
            gpu_index: device.gpu_index,
            gpu_model: device.gpu_model.clone(),
            last: index + 1 == source.readings.len(),
            ..GpuTelemetry::default()
        };
        for (field, value) in &reading.values {
            field.set_telemetry(&mut event, *value);
        }
        if let Some(portion) = &reading.portion {
            let ends = event.last;
            portion.apply(&mut event);
            event.last |= ends;
        }
        event
    }

    fn progress(&self, number: usize, index: usize) -> TrainingProgress {
        let source = &self.recording.sources[number];
        let SourceKind::Job { rank, .. } = source.kind else { unreachable!("called for jobs only") };
        let reading = &source.readings[index];
        let mark = reading.mark.as_deref();
        let mut event = TrainingProgress {
            time: reading.time,
            workload: self.names.workloads[number].clone().unwrap_or_default(),
            rank,
            collector: self.names.collector.clone(),
            origin: Origin::Imported,
            phase: mark.map_or(Phase::Progress, |mark| mark.phase),
            span: mark.and_then(|mark| mark.span.clone()),
            last: index + 1 == source.readings.len(),
            ..TrainingProgress::default()
        };
        for (field, value) in &reading.values {
            field.set_progress(&mut event, *value);
        }
        event
    }

    fn event(&self, number: usize, index: usize) -> LoggedEvent {
        let micros = self.recording.sources[number].readings[index].time.micros();
        match &self.recording.sources[number].kind {
            SourceKind::Device(device) => {
                let prefix = self.names.workloads[number].as_ref().map(|workload| format!("{workload}:")).unwrap_or_default();
                let id = format!("{prefix}{}:{micros}", device.name);
                self.logged(EventType::GpuTelemetry, id, number, index, &self.telemetry(number, index))
            }
            SourceKind::Job { rank, .. } => {
                let id = format!("{}:rank-{rank}:{micros}", self.key(number));
                self.logged(EventType::TrainingProgress, id, number, index, &self.progress(number, index))
            }
        }
    }

    /// Returns the workload of a source, or the device if it is of none.
    fn key(&self, number: usize) -> &str {
        match (&self.names.workloads[number], &self.recording.sources[number].kind) {
            (Some(workload), _) => workload,
            (None, SourceKind::Device(device)) => &device.name,
            (None, SourceKind::Job { .. }) => "",
        }
    }

    fn logged(&self, kind: EventType, id: String, number: usize, index: usize, data: &impl Serialize) -> LoggedEvent {
        LoggedEvent {
            specversion: "1.0".to_owned(),
            kind: kind.name().to_owned(),
            source: self.names.said_by.clone(),
            id,
            time: self.recording.sources[number].readings[index].time,
            subject: self.key(number).to_owned(),
            datacontenttype: "application/json".to_owned(),
            key: Some(self.key(number).to_owned()),
            topic: None,
            partition: None,
            offset: None,
            stamp: None,
            input_positions: None,
            settings: None,
            reason: None,
            detail: None,
            data: Some(to_raw_value(data).expect("an event of numbers and texts is always JSON")),
        }
    }
}
