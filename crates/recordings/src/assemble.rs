//! Readings into events: each source sorted, equal time stamps put together, figures checked against what is
//! possible, then all sources merged by event time.

use std::collections::{BTreeMap, BTreeSet};

use eadt_schemas::counts::counted;
use eadt_schemas::decode::DecodableEvent;
use eadt_schemas::v1::{GpuTelemetry, JobLifecycle, Origin, TrainingProgress};
use eadt_schemas::{EventTime, EventType, LoggedEvent};
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};

use crate::boards::{self, same_time_error};
use crate::checks::{DEFAULT_POWER_GAP_SECONDS, check_counter, check_power, note_wide_power_gaps, power, tenure, value};
use crate::fields::MetricType;
use crate::fingerprint::Fingerprint;
use crate::median::upper_median;
use crate::names::shell_quote;
use crate::options::AcceptedFinding;
use crate::recording::{ProgressMark, RecordedDevice, RecordedReading, Recording, RecordingSource, SourceKind};
use crate::report::{BoardSummary, RowMerge};
use crate::row_times::describe_leap;
use crate::sum_of_devices::settle_sums;
use crate::totals::{ROWS_OF_A_TOTAL, grows_or_restarts};
use crate::{ImportError, ImportOptions, ImportReport, ReadingField, RecordingFormat, SourceGap, overlap};

/// Prefix of the source of each event that an import made.
pub const IMPORTS: &str = "/import/";

/// A recording that was read: its report, and its events in event-time order over all sources.
#[derive(Debug)]
pub struct ImportedRecording {
    pub report: ImportReport,
    recording: Recording,
    /// Source and reading of every event, in order.
    order: Vec<(u32, u32)>,
    names: EventNames,
}

#[derive(Debug)]
struct EventNames {
    /// Workload of each source; `None` if it belongs to no workload.
    workloads: Vec<Option<String>>,
    collector: String,
    /// `ce_source`.
    ce_source: String,
}

impl ImportedRecording {
    /// Returns the events; where times are equal, telemetry before progress. The same every time.
    pub fn events(&self) -> ImportedEvents<'_> {
        ImportedEvents { imported: self, next: 0 }
    }
}

/// Makes the events of an [`ImportedRecording`] one by one.
#[derive(Debug)]
pub struct ImportedEvents<'a> {
    imported: &'a ImportedRecording,
    next: usize,
}

impl Iterator for ImportedEvents<'_> {
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

impl ExactSizeIterator for ImportedEvents<'_> {}

pub(crate) fn assemble(mut recording: Recording, options: &ImportOptions) -> Result<ImportedRecording, ImportError> {
    recording.sources.retain(|source| !source.readings.is_empty());
    boards::resolve_boards(&mut recording, options)?;
    let mut counts = MergeCounts {
        out_of_order: recording.out_of_order,
        duplicates: recording.duplicates,
        same_stamp: recording.same_stamp,
        ..MergeCounts::default()
    };
    let mut gaps = Vec::new();
    let mut counters = Vec::new();
    let mut sources = std::mem::take(&mut recording.sources);
    sources.retain(|source| !source.readings.is_empty());
    for source in &mut sources {
        counts.out_of_order += sort(&mut source.readings);
        merge_readings(source, &mut counts, &mut recording, options)?;
    }
    if recording.format == RecordingFormat::Csv {
        settle_sums(&mut recording, &mut sources, options)?;
    }
    for source in &mut sources {
        find_gaps(source, &mut gaps);
        if let SourceKind::Device(device) = source.kind.clone() {
            check_power(&mut recording, source)?;
            let check = check_counter(&mut recording, source, &device.name, options)?;
            // All workloads that share a device have its whole counter.
            let shared = source.readings.iter().any(|reading| reading.portion.is_some());
            match counters.iter_mut().find(|known: &&mut crate::CounterComparison| shared && known.device == device.name) {
                Some(known) => {
                    if let Some(check) = check.filter(|check| check.counter_joules > known.counter_joules) {
                        *known = check;
                    }
                }
                None => counters.extend(check),
            }
            source.readings.retain(|reading| !reading.values.is_empty() || reading.mark.is_some());
            note_wide_power_gaps(&mut recording, source, &device.name);
        }
        check_totals(&mut recording, source, options)?;
        if recording.format == RecordingFormat::Csv {
            note_contradicting_rates(&mut recording, source);
        }
        note_wide_rates(&mut recording, source);
    }
    sources.retain(|source| !source.readings.is_empty());
    recording.sources = sources;
    note_apart(&mut recording);
    if let Some(note) = describe_leap(&recording) {
        recording.add_note(note);
    }
    note_partial_devices(&mut recording);
    note_no_energy(&mut recording);

    let fallback = format!("imported/{}", recording.clean_stem(0));
    let workload = |source: &RecordingSource| {
        let name = options.workload.clone().or_else(|| source.workload.clone());
        let name = name.or_else(|| (!source.is_nobodys).then(|| fallback.clone()));
        name.map(|name| name + source.suffix)
    };
    let names = EventNames {
        workloads: recording.sources.iter().map(workload).collect(),
        collector: options.collector.clone().unwrap_or_else(|| format!("import-{}", recording.format)),
        ce_source: format!("{IMPORTS}{}", recording.format),
    };
    refuse_invalid(&mut recording, &names)?;
    let order = sort_readings(&recording)?;
    let (Some(first), Some(last)) = (order.first(), order.last()) else {
        let files = recording.files.join(", ");
        let problem = format!("no reading found in {}", counted(recording.rows, "row"));
        let remedy = if recording.absent > 0 {
            format!("every value is absent ({} in all): record what the tool can read, or name other columns", recording.absent)
        } else {
            format!("check that this is a recording of the format {}", recording.format)
        };
        return Err(ImportError::in_file(files, problem, remedy));
    };
    let time = |at: &(u32, u32)| recording.sources[at.0 as usize].readings[at.1 as usize].time;
    let progress = |source: &&RecordingSource| matches!(source.kind, SourceKind::Job { .. });
    let progress_events = recording.sources.iter().filter(progress).map(|source| source.readings.len() as u64).sum();
    let report = ImportReport {
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
        merges: counts.merges.into_values().collect(),
        out_of_order: counts.out_of_order,
        absent_values: recording.absent,
        gaps,
        skipped: std::mem::take(&mut recording.skipped),
        refused: std::mem::take(&mut recording.refusals.by_kind),
        tables: std::mem::take(&mut recording.tables),
        boards: board_summaries(&recording.sources),
        counters,
        notes: std::mem::take(&mut recording.notes),
    };
    Ok(ImportedRecording { report, recording, order, names })
}

/// Returns a report's summary of each device. A device that several workloads have in turn has a source for each of them.
fn board_summaries(sources: &[RecordingSource]) -> Vec<BoardSummary> {
    let mut boards: Vec<(&RecordedDevice, Vec<&RecordingSource>)> = Vec::new();
    let mut places: BTreeMap<(&str, Option<&str>), usize> = BTreeMap::new();
    for source in sources {
        let SourceKind::Device(device) = &source.kind else { continue };
        let place = *places.entry((device.name.as_str(), device.node.as_deref())).or_insert(boards.len());
        if place == boards.len() {
            boards.push((device, Vec::new()));
        }
        boards[place].1.push(source);
    }
    boards.iter().filter_map(|(device, sources)| board_summary(device, sources)).collect()
}

/// Returns a report's summary of a device. A reading that hands it over from one workload to the next is in the sources of both, and
/// counts once.
fn board_summary(device: &RecordedDevice, sources: &[&RecordingSource]) -> Option<BoardSummary> {
    let readings = sources.iter().flat_map(|source| &source.readings);
    let mut readings: Vec<(EventTime, Option<f64>)> = readings.map(|reading| (reading.time, power(reading))).collect();
    if sources.len() > 1 {
        readings.sort_by_key(|(time, _)| *time);
        readings.dedup_by_key(|(time, _)| *time);
    }
    let (first, last) = (readings.first()?.0, readings.last()?.0);
    let watts: Vec<f64> = readings.iter().filter_map(|(_, watts)| *watts).collect();
    Some(BoardSummary {
        device: device.name.clone(),
        node: device.node.clone(),
        readings: readings.len() as u64,
        first_time: first,
        last_time: last,
        mean_power_watts: (!watts.is_empty()).then(|| watts.iter().sum::<f64>() / watts.len() as f64),
    })
}

/// Notes devices and progress that have no moment in common.
fn note_apart(recording: &mut Recording) {
    let range = |device: bool| {
        let of_kind = |source: &&RecordingSource| matches!(source.kind, SourceKind::Device(_)) == device;
        let times =
            recording.sources.iter().filter(of_kind).flat_map(|source| source.readings.iter().map(|reading| reading.time));
        times.clone().min().zip(times.max())
    };
    if let (Some(readings), Some(run)) = (range(true), range(false))
        && matches!(recording.format, RecordingFormat::Csv | RecordingFormat::Prometheus)
        && overlap::are_apart(readings, run)
    {
        recording.add_note(format!("power and progress have no time in common: {}", overlap::describe(readings, run)));
    }
}

fn knows_energy(reading: &RecordedReading) -> bool {
    power(reading).is_some() || value(reading, ReadingField::EnergyJoulesTotal).is_some()
}

/// Words of columns that may hold power or energy.
const ENERGY_WORDS: [&str; 5] = ["power", "watt", "energy", "joule", "kwh"];

/// Notes what to do about devices of which no energy is known, and a table of progress whose power is not mapped.
fn note_no_energy(recording: &mut Recording) {
    let mut readings: BTreeMap<&str, usize> = BTreeMap::new();
    for source in &recording.sources {
        if let SourceKind::Device(device) = &source.kind {
            *readings.entry(&device.name).or_default() += source.readings.iter().filter(|reading| knows_energy(reading)).count();
        }
    }
    let unknown: Vec<&str> = readings.iter().filter(|(_, count)| **count < 2).map(|(name, _)| *name).collect();
    let may_hold_energy = |column: &&String| ENERGY_WORDS.iter().any(|word| column.to_lowercase().contains(word));
    let left_out: Vec<&String> = recording.tables.iter().flat_map(|table| &table.left_out).filter(may_hold_energy).collect();
    let is_mapped = [ReadingField::PowerWatts, ReadingField::PowerAverageWatts, ReadingField::EnergyJoulesTotal];
    let column = is_mapped.iter().find_map(|field| recording.columns.get(field));
    let what = match (unknown.as_slice(), readings.len()) {
        ([], 0) if recording.format == RecordingFormat::Csv && column.is_none() && !left_out.is_empty() => String::new(),
        ([], _) => return,
        ([name], count) if count > 1 => format!("{name}: "),
        ([name, others @ ..], count) if others.len() + 1 < count => {
            format!("{name} and {}: ", counted(others.len(), "other device"))
        }
        _ => String::new(),
    };
    let one = unknown.iter().any(|name| readings[name] == 1);
    let why = match (column, recording.format, left_out.first()) {
        _ if one => "there is one reading of power or energy, and energy needs two: record for longer, or more often".to_owned(),
        (_, RecordingFormat::Dcgmi, _) => "the log has no power: record with dcgmi dmon -e 155,156,…".to_owned(),
        (Some(column), _, _) => {
            format!("{column} has no value: record the power by a tool that can read it, or map another column, if there is one")
        }
        (None, RecordingFormat::NvidiaSmi, _) => {
            "the log has no column of power: record with --query-gpu=timestamp,uuid,name,power.draw,…".to_owned()
        }
        (None, RecordingFormat::Csv, Some(column)) => {
            format!("no column of power is mapped: for example --map {}", shell_quote(&format!("power_watts={column}")))
        }
        (None, RecordingFormat::Csv, None) => {
            "no column of power is mapped: --map power_watts=COLUMN, or energy_joules_total=COLUMN".to_owned()
        }
        (None, RecordingFormat::Prometheus, _) => {
            "no series of power or energy is in the answer: ask for DCGM_FI_DEV_POWER_USAGE, or that of your exporter, too"
                .to_owned()
        }
        (None, ..) => "no power reading is in the files: give the power logs, too".to_owned(),
    };
    recording.add_note(format!("{what}no energy is known: {why}"));
}

/// A device whose energy readings begin this much after, or end this much before, those of another device is noted, in seconds.
const PARTIAL_SECONDS: f64 = 60.0;
/// Most devices that are named with their times.
const MOST_NAMED: usize = 8;

/// The first and the last energy reading of a device.
#[derive(Debug, Clone, Copy)]
struct EnergyRange {
    first: EventTime,
    last: EventTime,
    is_somebodys: bool,
}

/// Returns the range of energy readings of each device that is of a workload. A board that changes hands has a source for each
/// workload: it ends with the last of them.
fn energy_ranges(recording: &Recording) -> Vec<(String, EnergyRange)> {
    let mut ranges: BTreeMap<&str, EnergyRange> = BTreeMap::new();
    for source in &recording.sources {
        let mut known = source.readings.iter().filter(|reading| knows_energy(reading)).map(|reading| reading.time);
        if let SourceKind::Device(device) = &source.kind
            && let Some(first) = known.next()
        {
            let last = known.next_back().unwrap_or(first);
            let range = ranges.entry(&device.name).or_insert(EnergyRange { first, last, is_somebodys: false });
            range.first = range.first.min(first);
            range.last = range.last.max(last);
            range.is_somebodys |= !source.is_nobodys;
        }
    }
    let somebodys = ranges.into_iter().filter(|(_, range)| range.is_somebodys);
    somebodys.map(|(name, range)| (name.to_owned(), range)).collect()
}

/// Returns the time of the run, in recordings that have more than it: outside of it nothing counts.
fn run_range(recording: &Recording) -> Option<(EventTime, EventTime)> {
    let is_job = |source: &&RecordingSource| matches!(source.kind, SourceKind::Job { .. }) && recording.format.is_mlperf();
    let times = || recording.sources.iter().filter(is_job).flat_map(|source| source.readings.iter().map(|reading| reading.time));
    times().min().zip(times().max())
}

/// Notes devices whose energy readings begin after those of other devices, or end before them: totals lack them there.
fn note_partial_devices(recording: &mut Recording) {
    let ranges = energy_ranges(recording);
    let (Some(mut earliest), Some(mut latest)) =
        (ranges.iter().map(|(_, range)| range.first).min(), ranges.iter().map(|(_, range)| range.last).max())
    else {
        return;
    };
    if let Some((start, stop)) = run_range(recording) {
        earliest = earliest.max(start);
        latest = latest.min(stop);
    }
    let late = |range: &EnergyRange| range.first.seconds_since(earliest);
    let early = |range: &EnergyRange| latest.seconds_since(range.last);
    let those = |seconds: &dyn Fn(&EnergyRange) -> f64| -> Vec<(String, EnergyRange)> {
        ranges.iter().filter(|(_, range)| seconds(range) >= PARTIAL_SECONDS).cloned().collect()
    };
    let (begin_late, end_early) = (those(&late), those(&early));
    if let Some((_, first)) = begin_late.first() {
        let which = format!("no energy is known before {}, {:.0} s after the record begins", first.first, late(first));
        recording.add_note(describe_partial(&begin_late, &which, "before that"));
    }
    if let Some((_, first)) = end_early.first() {
        let which = format!("no energy is known after {}, {:.0} s before the record ends", first.last, early(first));
        recording.add_note(describe_partial(&end_early, &which, "after that"));
    }
}

/// Describes devices of which no energy is known for a part of the time; `which` is that of the first of them.
fn describe_partial(devices: &[(String, EnergyRange)], which: &str, when: &str) -> String {
    let name = devices.first().map_or("", |(name, _)| name.as_str());
    let others = if devices.len() > 1 { format!(" and {}", counted(devices.len() - 1, "other device")) } else { String::new() };
    let range = |(name, range): &(String, EnergyRange)| format!("{name} from {} to {}", range.first, range.last);
    let ranges = devices.iter().take(MOST_NAMED).map(range).collect::<Vec<_>>().join("; ");
    let more = if devices.len() > MOST_NAMED { "; …" } else { "" };
    format!(
        "{name}{others}: {which}. What is used {when} is in no figure, also in none of all devices together, and coverage does not count it. \
         Energy is known of {ranges}{more}"
    )
}

/// A total that grows no more often in many rows may be a batch size that was changed.
const FEW_RISES: usize = 5;
const ROWS_OF_STEPS: usize = 10;

/// Largest ratio between the mean of a rate and the growth of its total: rates leave pauses out.
const MOST_OF_A_RATE: f64 = 1.25;

/// A time between two rows that is so many times the median is a pause, which rates do not include.
const TIMES_OF_A_PAUSE: f64 = 5.0;

/// The growth of a total between two rows, and the growth that the rate gives.
#[derive(Debug, Clone, Copy, Default)]
struct RatedStep {
    seconds: f64,
    counted: f64,
    by_rate: f64,
}

impl RatedStep {
    /// Each row has a time, a total and a rate.
    fn between(a: (EventTime, f64, f64), b: (EventTime, f64, f64)) -> Self {
        let seconds = b.0.seconds_since(a.0);
        Self { seconds, counted: b.1 - a.1, by_rate: f64::midpoint(a.2, b.2) * seconds }
    }
}

/// Returns the sum of the steps, without those that are so long that they are pauses.
fn sum_without_pauses(mut steps: Vec<RatedStep>) -> RatedStep {
    steps.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    let longest = steps.get(steps.len() / 2).map_or(0.0, |median| TIMES_OF_A_PAUSE * median.seconds);
    steps.iter().filter(|step| step.seconds <= longest).fold(RatedStep::default(), |sum, step| RatedStep {
        seconds: sum.seconds + step.seconds,
        counted: sum.counted + step.counted,
        by_rate: sum.by_rate + step.by_rate,
    })
}

/// Notes a rate that contradicts the total of the same table: one of the two counts something else.
fn note_contradicting_rates(recording: &mut Recording, source: &RecordingSource) {
    for (total, rate) in
        [(ReadingField::SamplesTotal, ReadingField::SamplesPerSecond), (ReadingField::TokensTotal, ReadingField::TokensPerSecond)]
    {
        let both = |reading: &RecordedReading| Some((reading.time, value(reading, total)?, value(reading, rate)?));
        let known: Vec<_> = source.readings.iter().filter_map(both).collect();
        let steps: Vec<RatedStep> = known.windows(2).map(|pair| RatedStep::between(pair[0], pair[1])).collect();
        let falls = steps.iter().any(|step| step.counted < 0.0);
        let RatedStep { seconds, counted, by_rate } = sum_without_pauses(steps);
        if known.len() < ROWS_OF_A_TOTAL || falls || counted <= 0.0 || by_rate <= 0.0 {
            continue;
        }
        if !(1.0 / MOST_OF_A_RATE..=MOST_OF_A_RATE).contains(&(by_rate / counted)) {
            let (total, rate) = (total.name(), rate.name());
            recording.add_note(format!(
                "{total} grows by {counted} in {seconds:.0} s, {rate} gives {by_rate:.0}: the two contradict each other, and windows count \
                 the former; check what each column counts, and its unit"
            ));
        }
    }
}

/// Readings of a rate that are further apart, in usual distances, have a pause between them.
const USUAL_DISTANCES_OF_A_RATE: f64 = 3.0;

/// Notes a rate without a total, with readings too far apart to cover the time between.
fn note_wide_rates(recording: &mut Recording, source: &RecordingSource) {
    for (rate, total, amounts) in [
        (ReadingField::SamplesPerSecond, ReadingField::SamplesTotal, "samples"),
        (ReadingField::TokensPerSecond, ReadingField::TokensTotal, "tokens"),
    ] {
        let has = |reading: &&RecordedReading, field: ReadingField| value(reading, field).is_some();
        let times: Vec<EventTime> =
            source.readings.iter().filter(|reading| has(reading, rate)).map(|reading| reading.time).collect();
        let distances = || times.windows(2).map(|pair| pair[1].seconds_since(pair[0])).filter(|seconds| *seconds > 0.0);
        let usual = upper_median(distances()).unwrap_or(0.0);
        if usual <= DEFAULT_POWER_GAP_SECONDS || source.readings.iter().any(|reading| has(&reading, total)) {
            continue;
        }
        let longest = distances().filter(|seconds| *seconds <= USUAL_DISTANCES_OF_A_RATE * usual).fold(usual, f64::max);
        let column = recording.columns.get(&rate).map_or(rate.name(), String::as_str);
        let note = format!(
            "{column}: {} readings of {} are {usual:.0} s apart, and no {amounts} are known between readings that are further apart than \
             processor.power_gap_seconds, {DEFAULT_POWER_GAP_SECONDS} by default; map {} or {amounts}, if the table has them, or replay \
             with EADT_PROCESSOR__POWER_GAP_SECONDS={:.0}, which holds for power, too",
            times.len(),
            rate.name(),
            total.name(),
            longest.ceil()
        );
        recording.add_note(note);
    }
}

/// Returns an error if a running total falls again and again, like increments of rows; adds a note if it restarts or never
/// changes.
fn check_totals(recording: &mut Recording, source: &mut RecordingSource, options: &ImportOptions) -> Result<(), ImportError> {
    match recording.format {
        RecordingFormat::Csv => {}
        RecordingFormat::Prometheus => {
            return PROGRESS_TOTALS
                .into_iter()
                .try_for_each(|field| settle_restarts(recording, source, field, options).map(drop));
        }
        _ => return Ok(()),
    }
    for (field, step) in [
        (ReadingField::SamplesTotal, "samples"),
        (ReadingField::TokensTotal, "tokens"),
        (ReadingField::StepsTotal, "steps"),
        (ReadingField::EnergyJoulesTotal, "energy_joules"),
    ] {
        let known: Vec<(&RecordedReading, f64)> =
            source.readings.iter().filter_map(|reading| Some((reading, value(reading, field)?))).collect();
        if recording.mapped_as.contains_key(&field) || known.len() < ROWS_OF_A_TOTAL {
            continue;
        }
        let column = recording.columns.get(&field).map_or(field.name(), String::as_str).to_owned();
        let falls: Vec<&RecordedReading> = known.windows(2).filter(|pair| pair[1].1 < pair[0].1).map(|pair| pair[1].0).collect();
        let (first, last) = (known[0].1, known[known.len() - 1].1);
        let (is_constant, count) = (known.iter().all(|(_, value)| *value == first), known.len());
        let rises = known.windows(2).filter(|pair| pair[1].1 > pair[0].1).count();
        let each = recording.map_again(step, field);
        let is_often = falls.len() >= 2 && falls.len() * 5 >= known.len();
        // A total that begins anew falls to nothing, or grows again and again; a batch size comes back to what it was.
        let to_some = falls.iter().any(|reading| value(reading, field).is_some_and(|value| value > 0.0));
        let comes_back = to_some && rises <= falls.len() + 1;
        if (is_often || comes_back) && !options.accept.contains(&AcceptedFinding::FallingTotals) {
            let (times, rows) = (falls.len(), known.len());
            let how_often = |count: usize| if count == 1 { "once".to_owned() } else { counted(count, "time") };
            let problem =
                format!("falls {} in {rows} rows, and grows {}: it is no running total", how_often(times), how_often(rises));
            let accept = AcceptedFinding::FallingTotals.name();
            let remedy = format!("if each row adds so much, use {each}; if it begins anew each time, --accept {accept}");
            let error = recording.error(falls[0].file as usize, u64::from(falls[0].line), problem, remedy);
            return Err(error.with_column(column));
        }
        if !field.is_progress() {
            continue;
        }
        if settle_restarts(recording, source, field, options)? {
            continue;
        }
        if first > 0.0 && is_constant {
            recording.add_note(format!(
                "{} is {first} in each of {count} rows: nothing got done; if each row adds so much, use {each}",
                field.name(),
            ));
        } else if first > 0.0 && rises <= FEW_RISES && count >= ROWS_OF_STEPS * (rises + 1) {
            recording.add_note(format!(
                "{} grows {} only in {count} rows, from {first} to {last}: between them nothing got done; if each row adds so much, \
                 use {each}",
                field.name(),
                counted(rises, "time"),
            ));
        }
    }
    Ok(())
}

/// Running totals of a job.
const PROGRESS_TOTALS: [ReadingField; 3] = [ReadingField::SamplesTotal, ReadingField::TokensTotal, ReadingField::StepsTotal];

/// Adds up a total that begins anew if this is accepted, or if another total of the job goes on: then it is the count of a process
/// that took the job up again. Notes any other restart, after which the job may repeat its work. Returns whether it was added up, and an
/// error if the total of a table counts within an epoch.
fn settle_restarts(
    recording: &mut Recording,
    source: &mut RecordingSource,
    field: ReadingField,
    options: &ImportOptions,
) -> Result<bool, ImportError> {
    let known: Vec<(&RecordedReading, f64)> =
        source.readings.iter().filter_map(|reading| Some((reading, value(reading, field)?))).collect();
    if recording.mapped_as.contains_key(&field) || known.len() < ROWS_OF_A_TOTAL {
        return Ok(false);
    }
    let values: Vec<f64> = known.iter().map(|(_, value)| *value).collect();
    let Some(restarts) = TotalRestarts::of(&values) else { return Ok(false) };
    let TotalRestarts { most, counted_once, counted_each_time, .. } = restarts;
    let falls: Vec<&[(&RecordedReading, f64)]> = known.windows(2).filter(|pair| is_restart(pair[0].1, pair[1].1)).collect();
    let Some([(_, before), (after_fall, after)]) = falls.first() else { return Ok(false) };
    let what = format!("{} begins anew {}", field.name(), counted(falls.len(), "time"));
    let first_fall = format!("{what}, at {} from {before} to {after}", after_fall.time);
    let accept = AcceptedFinding::FallingTotals.name();
    if options.accept.contains(&AcceptedFinding::FallingTotals) {
        recording.add_note(format!("{what}, and what it had counted before is added, as --accept sets"));
        TotalRestarts::add_up(source, field);
    } else if recording.format == RecordingFormat::Csv && restarts.is_regular {
        let problem = format!("{what}, each time after about {most}, as a count within an epoch does: only one would count");
        let remedy = format!("map a total of the whole run, or use --accept {accept} to have what each counts added");
        let column = recording.columns.get(&field).map_or(field.name(), String::as_str);
        let error = recording.error(after_fall.file as usize, u64::from(after_fall.line), problem, remedy);
        return Err(error.with_column(column));
    } else if let Some(other) = total_that_goes_on(recording, source, field, &falls) {
        recording.add_note(format!(
            "{first_fall}, and {} goes on: what it had counted before is added, {counted_each_time} in all",
            other.name()
        ));
        TotalRestarts::add_up(source, field);
    } else {
        recording.add_note(format!(
            "{first_fall}: what it counts again up to {most} is taken for repeated work, which counts once, {counted_once} in all; if \
             the job went on from where it was, use --accept {accept}, which counts {counted_each_time}"
        ));
        return Ok(false);
    }
    Ok(true)
}

/// Returns another total of a source that goes on over each of these falls, and grows after it.
fn total_that_goes_on(
    recording: &Recording,
    source: &RecordingSource,
    field: ReadingField,
    falls: &[&[(&RecordedReading, f64)]],
) -> Option<ReadingField> {
    let readings = &source.readings;
    let is_read = |other: &ReadingField| *other != field && !recording.mapped_as.contains_key(other);
    PROGRESS_TOTALS.into_iter().filter(is_read).find(|other| {
        let of = |reading: &RecordedReading| value(reading, *other);
        let last = readings.iter().rev().find_map(of);
        falls.iter().all(|pair| {
            let until = readings.partition_point(|reading| reading.time <= pair[0].0.time);
            let from = readings.partition_point(|reading| reading.time < pair[1].0.time);
            let (before, after) = (readings[..until].iter().rev().find_map(of), readings[from..].iter().find_map(of));
            let goes_on = |(before, after): (f64, f64)| before > 0.0 && after >= before && last > Some(before);
            before.zip(after).is_some_and(goes_on)
        })
    })
}

/// Returns whether a total falls to next to nothing.
fn is_restart(before: f64, after: f64) -> bool {
    after < before && grows_or_restarts(&[before, after])
}

/// A running total that begins anew, from next to nothing each time.
#[derive(Debug, Clone, Copy)]
struct TotalRestarts {
    /// The most that it has counted before one.
    most: f64,
    /// It begins anew several times, after the same count, as in each epoch, and never falls otherwise.
    is_regular: bool,
    /// Its growth, if repeated counts are repeated work.
    counted_once: f64,
    /// Its growth, if the count before each restart is added.
    counted_each_time: f64,
}

/// The counts of epochs differ by no larger part, as those of a job that is restarted do.
const DIFFERENCE_OF_EPOCHS: f64 = 0.1;

impl TotalRestarts {
    /// Returns `None` if a total never falls, or only to more than next to nothing, as after a checkpoint.
    fn of(values: &[f64]) -> Option<Self> {
        let restarts = values.windows(2).filter(|pair| is_restart(pair[0], pair[1]));
        let before: Vec<f64> = restarts.map(|pair| pair[0]).collect();
        let most = before.iter().copied().fold(0.0, f64::max);
        let is_even = before.len() >= 2 && before.iter().all(|count| *count >= (1.0 - DIFFERENCE_OF_EPOCHS) * most);
        let is_regular = is_even && values.windows(2).all(grows_or_restarts);
        let first = values.first().copied().unwrap_or(0.0);
        let growth = |values: &[f64]| values.iter().copied().fold(first, f64::max) - first;
        let mut summed = values.to_vec();
        Self::add_to(summed.iter_mut());
        let (counted_once, counted_each_time) = (growth(values), growth(&summed));
        (!before.is_empty()).then_some(Self { most, is_regular, counted_once, counted_each_time })
    }

    /// Adds the count before a reset to a total.
    fn add_up(source: &mut RecordingSource, field: ReadingField) {
        let values = source.readings.iter_mut().flat_map(|reading| &mut reading.values);
        Self::add_to(values.filter(|(other, _)| *other == field).map(|(_, value)| value));
    }

    fn add_to<'v>(values: impl Iterator<Item = &'v mut f64>) {
        let (mut counted_before, mut last) = (0.0, 0.0);
        for value in values {
            if is_restart(last, *value) {
                counted_before += last;
            }
            last = *value;
            *value += counted_before;
        }
    }
}

#[derive(Default)]
struct MergeCounts {
    duplicates: u64,
    same_stamp: u64,
    out_of_order: u64,
    merges: BTreeMap<u32, RowMerge>,
}

impl MergeCounts {
    /// Counts a row that repeats another, or is put together with it.
    fn count_merge(&mut self, recording: &Recording, reading: &RecordedReading, is_duplicate: bool) {
        let merge = self.merges.entry(reading.file).or_insert_with(|| RowMerge {
            file: recording.files.get(reading.file as usize).cloned().unwrap_or_default(),
            first_line: u64::from(reading.line),
            duplicates: 0,
            same_stamp: 0,
        });
        merge.first_line = merge.first_line.min(u64::from(reading.line));
        let (all, of_file) = if is_duplicate {
            (&mut self.duplicates, &mut merge.duplicates)
        } else {
            (&mut self.same_stamp, &mut merge.same_stamp)
        };
        *all += 1;
        *of_file += 1;
    }
}

/// Returns how many readings were older than one before them.
fn sort(readings: &mut [RecordedReading]) -> u64 {
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

fn merge_readings(
    source: &mut RecordingSource,
    counts: &mut MergeCounts,
    recording: &mut Recording,
    options: &ImportOptions,
) -> Result<(), ImportError> {
    if source.readings.windows(2).all(|pair| pair[0].time < pair[1].time) {
        return Ok(());
    }
    let is_device = matches!(source.kind, SourceKind::Device(_));
    let readings = std::mem::take(&mut source.readings);
    let may_differ =
        !recording.format.has_one_reading_a_time() || recording.format.is_mlperf() && differ_little(recording, source, &readings);
    let refuses = is_device && options.same_time.is_none() && !may_differ;
    for group in readings.chunk_by(|a, b| a.time == b.time) {
        let first = &group[0];
        if group.len() == 1 {
            source.readings.push(first.clone());
            continue;
        }
        let contradicts = |further: &RecordedReading| {
            let other = |(field, known): &(ReadingField, f64)| value(first, *field).is_some_and(|value| value != *known);
            further.values.iter().any(other)
        };
        // Entries of a log may report several values of one moment; rows of a table should not.
        if !matches!(source.kind, SourceKind::Job { irregular: true, .. }) {
            for further in &group[1..] {
                let contradicts = contradicts(further);
                if contradicts && refuses {
                    return Err(same_time_error(recording, source, group));
                }
                // Readings of one line with different fields are the same row, in two parts.
                if further.line != first.line || further.file != first.file || contradicts {
                    counts.count_merge(recording, further, further.values == first.values);
                }
            }
        }
        let mark = merge_marks(group).map_err(|problem| {
            let line = u64::from(first.line);
            recording.error(first.file as usize, line, problem, "one call imports one run that takes time")
        })?;
        source.readings.push(RecordedReading { values: merge_values(group), mark, ..first.clone() });
    }
    Ok(())
}

/// A meter of `MLPerf` may be read twice in at most one of so many moments.
const MOMENTS_READ_TWICE: usize = 20;

/// Returns whether readings of one moment differ so seldom, or by so little, that they are of one meter; notes the latter.
fn differ_little(recording: &mut Recording, source: &RecordingSource, readings: &[RecordedReading]) -> bool {
    if differ_seldom(readings) {
        return true;
    }
    let SourceKind::Device(device) = &source.kind else { return true };
    let is_one_meter = readings.chunk_by(|a, b| a.time == b.time).all(boards::are_of_one_meter);
    if is_one_meter {
        boards::note_one_meter(recording, &device.name);
    }
    is_one_meter
}

/// Returns whether readings of one moment differ seldom.
fn differ_seldom(readings: &[RecordedReading]) -> bool {
    let groups = || readings.chunk_by(|a, b| a.time == b.time);
    let differs = |group: &&[RecordedReading]| group.iter().any(|reading| reading.values != group[0].values);
    groups().filter(differs).count() * MOMENTS_READ_TWICE <= groups().count()
}

fn merge_values(group: &[RecordedReading]) -> Box<[(ReadingField, f64)]> {
    let fields: BTreeSet<ReadingField> =
        group.iter().flat_map(|reading| reading.values.iter().map(|(field, _)| *field)).collect();
    let together = |field: ReadingField| {
        let mut values: Vec<f64> = Vec::new();
        for (index, reading) in group.iter().enumerate() {
            // A repeated row adds no information, so it has no weight in a mean.
            if group[..index].iter().any(|earlier| earlier.values == reading.values && earlier.mark == reading.mark) {
                continue;
            }
            values.extend(reading.values.iter().filter(|(f, _)| *f == field).map(|(_, value)| *value));
        }
        match field.nature() {
            MetricType::Gauge => values.iter().sum::<f64>() / values.len() as f64,
            MetricType::Counter => values[values.len() - 1],
        }
    };
    fields.into_iter().map(|field| (field, together(field))).collect()
}

fn merge_marks(group: &[RecordedReading]) -> Result<Option<Box<ProgressMark>>, &'static str> {
    let mut together: Option<Box<ProgressMark>> = None;
    for mark in group.iter().filter_map(|reading| reading.mark.as_deref()) {
        let Some(sum) = &mut together else {
            together = Some(Box::new(mark.clone()));
            continue;
        };
        match (sum.phase, mark.phase) {
            (JobLifecycle::Progress, phase) => sum.phase = phase,
            (_, JobLifecycle::Progress) => {}
            (a, b) if a == b => {}
            _ => return Err("the run starts and finishes at the same time"),
        }
        if mark.span.is_some() {
            sum.span.clone_from(&mark.span);
        }
    }
    Ok(together)
}

fn find_gaps(source: &RecordingSource, gaps: &mut Vec<SourceGap>) {
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
    gaps.extend(long.map(|(from, to)| SourceGap { source: name.clone(), from, to, seconds: to.seconds_since(from) }));
}

fn sort_readings(recording: &Recording) -> Result<Vec<(u32, u32)>, ImportError> {
    let total: usize = recording.sources.iter().map(|source| source.readings.len()).sum();
    if u32::try_from(total).is_err() {
        let problem = format!("{total} readings are more than one import can hold");
        return Err(ImportError::in_file(recording.files.join(", "), problem, "import the files in several calls"));
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

/// Refuses readings that the pipeline would send to the dead letters; returns an error if most of a source are such.
fn refuse_invalid(recording: &mut Recording, names: &EventNames) -> Result<(), ImportError> {
    for number in 0..recording.sources.len() {
        let mut invalid = Vec::new();
        for index in 0..recording.sources[number].readings.len() {
            let refused = match &recording.sources[number].kind {
                SourceKind::Device(_) => telemetry_event(recording, names, number, index).check(),
                SourceKind::Job { .. } => progress_event(recording, names, number, index).check(),
            };
            let Err(refusal) = refused else { continue };
            let field = refusal.field.unwrap_or("row");
            let column = ReadingField::from_name(field).and_then(|field| recording.columns.get(&field));
            let reading = &recording.sources[number].readings[index];
            let remedy = "correct the unit or take the row out";
            let error = recording.error(reading.file as usize, u64::from(reading.line), refusal.detail, remedy);
            invalid.push((index, error.with_column(column.map_or(field, String::as_str))));
        }
        let readings = &mut recording.sources[number].readings;
        if invalid.len() * 2 > readings.len() {
            return Err(invalid.swap_remove(0).1);
        }
        for (index, _) in invalid.iter().rev() {
            readings.remove(*index);
        }
        for (_, error) in invalid {
            recording.refuse_row("value", error);
        }
    }
    Ok(())
}

fn telemetry_event(recording: &Recording, names: &EventNames, number: usize, index: usize) -> GpuTelemetry {
    let source = &recording.sources[number];
    let SourceKind::Device(device) = &source.kind else { unreachable!("called for devices only") };
    let reading = &source.readings[index];
    let mut event = GpuTelemetry {
        time: reading.time,
        workload: names.workloads[number].clone(),
        device: device.name.clone(),
        collector: names.collector.clone(),
        meter: recording.meter,
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
        let (ends, workload) = (event.last, event.workload.take());
        portion.apply(&mut event);
        event.last |= ends;
        // A stay without a workload gets that of its source, unless it is the unattributed part.
        event.workload = event.workload.or_else(|| workload.filter(|_| !source.is_nobodys));
    }
    event
}

fn progress_event(recording: &Recording, names: &EventNames, number: usize, index: usize) -> TrainingProgress {
    let source = &recording.sources[number];
    let SourceKind::Job { rank, scope, .. } = source.kind else { unreachable!("called for jobs only") };
    let reading = &source.readings[index];
    let mark = reading.mark.as_deref();
    let mut event = TrainingProgress {
        time: reading.time,
        workload: names.workloads[number].clone().unwrap_or_default(),
        rank,
        scope,
        collector: names.collector.clone(),
        origin: Origin::Imported,
        phase: mark.map_or(JobLifecycle::Progress, |mark| mark.phase),
        span: mark.and_then(|mark| mark.span.clone()),
        last: index + 1 == source.readings.len(),
        ..TrainingProgress::default()
    };
    for (field, value) in &reading.values {
        field.set_progress(&mut event, *value);
    }
    event
}

impl ImportedRecording {
    /// Makes an event with the id `WORKLOAD:DEVICE:MICROSECONDS:FINGERPRINT`; the fingerprint is that of its data.
    ///
    /// A reading has the same id in every import. Different readings of one board and time are two events.
    fn event(&self, number: usize, index: usize) -> LoggedEvent {
        let (recording, names) = (&self.recording, &self.names);
        let source = &recording.sources[number];
        let (kind, name, data) = match &source.kind {
            SourceKind::Device(device) => {
                (EventType::GpuTelemetry, device.name.clone(), to_json(&telemetry_event(recording, names, number, index)))
            }
            SourceKind::Job { rank, .. } => {
                (EventType::TrainingProgress, format!("rank-{rank}"), to_json(&progress_event(recording, names, number, index)))
            }
        };
        let time = source.readings[index].time;
        let workload = names.workloads[number].as_ref().map(|workload| format!("{workload}:")).unwrap_or_default();
        LoggedEvent {
            specversion: "1.0".to_owned(),
            kind: kind.name().to_owned(),
            source: names.ce_source.clone(),
            id: format!("{workload}{name}:{}:{}", time.micros(), Fingerprint::of(data.get().as_bytes())),
            time,
            subject: self.key(number).to_owned(),
            datacontenttype: "application/json".to_owned(),
            key: Some(self.key(number).to_owned()),
            topic: None,
            partition: None,
            offset: None,
            stamp: None,
            is_sent_again: false,
            input_positions: None,
            settings: None,
            reason: None,
            detail: None,
            data: Some(data),
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
}

fn to_json(data: &impl Serialize) -> Box<RawValue> {
    to_raw_value(data).expect("an event of numbers and texts is always JSON")
}
