//! Any table with a header; [`crate::FieldMap`]s say what its columns are.
//!
//! Rows that add to a counter (`samples=*`, `tokens=GeneratedTokens`) are moments, not intervals: the counter keeps its
//! value up to the row's time and has the new one a microsecond later, so that each row counts in the window
//! that it lies in and a silence counts nothing. A table that has nothing but progress is taken for
//! a whole run, from its first row to its last.

use std::collections::{BTreeMap, HashMap};

use eadt_schemas::EventTime;
use eadt_schemas::v1::Phase;

use crate::error::quote;
use crate::lines::{Lines, MAX_LINE_BYTES};
use crate::recording::{Device, FileId, Mark, Recording, SourceId, SourceKind};
use crate::units::{Cell, Unit, cell};
use crate::{Field, FieldMap, ImportError, Options};

/// What one row adds to a counter.
const STEPS: [(&str, Field); 4] = [
    ("samples", Field::SamplesTotal),
    ("tokens", Field::TokensTotal),
    ("steps", Field::StepsTotal),
    ("energy_joules", Field::EnergyJoulesTotal),
];
const TEXTS: [&str; 4] = ["time", "device", "node", "gpu_model"];
/// Looked for, in this order, where no `time=` is given.
const TIME_NAMES: [&str; 6] = ["time", "timestamp", "datetime", "date_time", "ts", "date"];

/// Every FIELD that a map may name.
pub(crate) fn known_targets() -> Vec<&'static str> {
    let texts = TEXTS.into_iter().chain(STEPS.iter().map(|(name, _)| *name));
    texts.chain(Field::ALL.iter().map(|field| field.name())).collect()
}

#[derive(Debug, Clone, Copy)]
enum Take {
    /// The cell of a column, in a unit.
    Cell(usize, Option<Unit>),
    /// One per row.
    One,
}

#[derive(Debug, Default)]
struct Plan {
    header: Vec<String>,
    time: Option<usize>,
    device: Option<usize>,
    node: Option<usize>,
    model: Option<usize>,
    values: Vec<(Field, Take)>,
    steps: Vec<(Field, Take)>,
}

pub(crate) fn read(files: Vec<(FileId, Lines<'_>)>, recording: &mut Recording, options: &Options) -> Result<(), ImportError> {
    let clock = options.time_format.clone().unwrap_or_default();
    let mut sources = Sources::default();
    for (file, lines) in files {
        let mut table = csv::ReaderBuilder::new().flexible(true).trim(csv::Trim::All).from_reader(lines.into_reader());
        let header = table.headers().map_err(|error| unreadable(recording, file, &error))?.clone();
        if header.is_empty() {
            let file = &recording.files[file];
            return Err(ImportError::whole(file, "is empty: it has no header", "check that this is the right file"));
        }
        let plan = plan(recording, file, &header, options)?;
        let mut record = csv::StringRecord::new();
        let mut rows: i64 = 0;
        loop {
            let more = table.read_record(&mut record).map_err(|error| unreadable(recording, file, &error))?;
            if !more {
                break;
            }
            let line = record.position().map_or(0, csv::Position::line);
            recording.rows += 1;
            if record.len() != plan.header.len() {
                let problem = format!("row has {} cell(s), its header {}", record.len(), plan.header.len());
                let remedy = "the file is truncated or damaged here: restore the row or take it out";
                return Err(recording.error(file, line, problem, remedy));
            }
            if record.as_slice().len() as u64 >= MAX_LINE_BYTES {
                let problem = format!("row is longer than {} MiB", MAX_LINE_BYTES >> 20);
                return Err(recording.error(file, line, problem, "check the quoting of the rows above it"));
            }
            let time = match (plan.time, options.interval) {
                (Some(column), _) => clock.parse(&record[column]).map_err(|problem| {
                    let problem = format!("{} is {problem}", quote(&record[column]));
                    recording.error(file, line, problem, "").column(&plan.header[column])
                })?,
                (None, interval) => {
                    let interval = interval.unwrap_or_default().as_micros() as i64;
                    options.start.unwrap_or(Options::DEFAULT_START).plus_micros(interval.saturating_mul(rows))
                }
            };
            rows += 1;
            sources.take_row(recording, &plan, file, line, time, &record)?;
        }
    }
    sources.finish(recording);
    Ok(())
}

fn unreadable(recording: &Recording, file: FileId, error: &csv::Error) -> ImportError {
    let line = error.position().map(csv::Position::line);
    let problem = format!("is not a readable table: {error}");
    let remedy = "it must be UTF-8 text with a header; the file may be truncated or damaged";
    ImportError { line, ..ImportError::whole(&recording.files[file], problem, remedy) }
}

fn plan(recording: &mut Recording, file: FileId, header: &csv::StringRecord, options: &Options) -> Result<Plan, ImportError> {
    // Spreadsheets begin their files with a byte-order mark.
    let header: Vec<String> = header.iter().map(|name| name.trim_start_matches('\u{feff}').to_owned()).collect();
    let mut plan = Plan { header, ..Plan::default() };
    for map in &options.maps {
        let step = STEPS.iter().find(|(name, _)| *name == map.field).map(|(_, field)| *field);
        if let Some(field) = step
            && map.column == "*"
        {
            plan.steps.push((field, Take::One));
            continue;
        }
        let (column, unit) = find_column(recording, file, &plan.header, map)?;
        match map.field.as_str() {
            "time" => plan.time = Some(column),
            "device" => plan.device = Some(column),
            "node" => plan.node = Some(column),
            "gpu_model" => plan.model = Some(column),
            name => {
                let Some(field) = step.or_else(|| Field::from_name(name)) else {
                    unreachable!("FieldMap accepts known names only")
                };
                let unit = check_unit(recording, file, &plan.header[column], field, unit)?;
                if step.is_some() {
                    plan.steps.push((field, Take::Cell(column, unit)));
                } else {
                    plan.values.push((field, Take::Cell(column, unit)));
                }
                recording.columns.insert(field, plan.header[column].clone());
            }
        }
    }
    for (field, _) in &plan.steps {
        let name = field.name();
        if plan.values.iter().any(|(other, _)| other == field) || plan.steps.iter().filter(|(f, _)| f == field).count() > 1 {
            return Err(recording.error(file, 1, format!("{name} is filled by two --map"), "keep one of them"));
        }
    }
    if plan.time.is_none() && options.interval.is_none() {
        plan.time = TIME_NAMES.iter().find_map(|name| plan.header.iter().position(|have| have.eq_ignore_ascii_case(name)));
        if plan.time.is_none() {
            let problem = format!("no column is called time or timestamp; the columns are: {}", list(&plan.header));
            let remedy = "say --map time=COLUMN, or --interval where rows have no time";
            return Err(recording.error(file, 1, problem, remedy));
        }
    }
    Ok(plan)
}

fn list(header: &[String]) -> String {
    header.iter().take(40).map(|name| quote(name)).collect::<Vec<_>>().join(", ")
}

/// The column that a map means: the whole text as a name, else without a unit at its end.
fn find_column(
    recording: &Recording,
    file: FileId,
    header: &[String],
    map: &FieldMap,
) -> Result<(usize, Option<Unit>), ImportError> {
    let find = |name: &str| -> Option<usize> {
        let plain = |text: &str| text.split(['[', '(']).next().unwrap_or(text).trim().to_owned();
        let by_number = || name.strip_prefix('#')?.parse::<usize>().ok()?.checked_sub(1).filter(|index| *index < header.len());
        let exact = header.iter().position(|have| have == name);
        exact.or_else(by_number).or_else(|| header.iter().position(|have| plain(have) == name))
    };
    if let Some(column) = find(&map.column) {
        return Ok((column, None));
    }
    let known = format!("; the columns are: {}", list(header));
    let Some((name, unit)) = map.column.rsplit_once(':') else {
        let problem = format!("has no column {}{known}", quote(&map.column));
        return Err(recording.error(file, 1, problem, format!("correct --map {}={}", map.field, map.column)));
    };
    let remedy = format!("correct --map {}={}", map.field, map.column);
    let Some(column) = find(name) else {
        return Err(recording.error(file, 1, format!("has no column {}{known}", quote(name)), remedy));
    };
    match Unit::named(unit) {
        Some(unit) => Ok((column, Some(unit))),
        None => Err(recording.error(file, 1, format!("unknown unit {}", quote(unit)), remedy).column(name)),
    }
}

/// The unit to read a column in: the one asked for, else the header's own (`Power [mW]`), else the field's.
fn check_unit(
    recording: &Recording,
    file: FileId,
    column: &str,
    field: Field,
    asked: Option<Unit>,
) -> Result<Option<Unit>, ImportError> {
    let own = column.split_once(['[', '(']).and_then(|(_, unit)| Unit::named(unit.trim_end_matches([']', ')']).trim()));
    let own = own.filter(|unit| unit.dimension == field.dimension());
    let wrong = |problem: String| {
        let remedy = format!("units of {}: {}", field.name(), field.dimension().units());
        Err(recording.error(file, 1, problem, remedy).column(column))
    };
    match (asked, own) {
        (Some(asked), _) if asked.dimension != field.dimension() => {
            wrong(format!("{} is not a unit of {}", asked.name, field.name()))
        }
        (Some(asked), Some(own)) if asked != own => wrong(format!("--map says {}, the header says {}", asked.name, own.name)),
        (asked, own) => Ok(asked.or(own)),
    }
}

#[derive(Default)]
struct Sources {
    devices: HashMap<(FileId, String), SourceId>,
    job: Option<SourceId>,
    /// What rows add to the counters of each source, gathered until the end because rows may be out of order.
    steps: BTreeMap<SourceId, Vec<Step>>,
}

/// Time and line of a row, and what it adds.
type Step = (EventTime, u64, Vec<(Field, f64)>);

impl Sources {
    fn take_row(
        &mut self,
        recording: &mut Recording,
        plan: &Plan,
        file: FileId,
        line: u64,
        time: EventTime,
        record: &csv::StringRecord,
    ) -> Result<(), ImportError> {
        let (mut telemetry, mut progress) = (Vec::new(), Vec::new());
        for (field, take) in &plan.values {
            if let Some(value) = number(recording, plan, file, line, record, *field, *take)? {
                if field.is_progress() { &mut progress } else { &mut telemetry }.push((*field, value));
            }
        }
        let (mut device_steps, mut job_steps) = (Vec::new(), Vec::new());
        for (field, take) in &plan.steps {
            if let Some(value) = number(recording, plan, file, line, record, *field, *take)? {
                if value < 0.0 {
                    let problem = format!("{value} cannot be added to {}", field.name());
                    return Err(recording.error(file, line, problem, "correct the row or take it out"));
                }
                if field.is_progress() { &mut job_steps } else { &mut device_steps }.push((*field, value));
            }
        }
        if !telemetry.is_empty() || !device_steps.is_empty() {
            let source = self.device(recording, plan, file, record);
            recording.push(source, time, line, &telemetry, None);
            self.step(source, time, line, device_steps);
        }
        if !progress.is_empty() || !job_steps.is_empty() {
            let job = SourceKind::Job { rank: 0, irregular: false };
            let source = *self.job.get_or_insert_with(|| recording.add_source(file, None, job));
            recording.push(source, time, line, &progress, None);
            self.step(source, time, line, job_steps);
        }
        Ok(())
    }

    fn device(&mut self, recording: &mut Recording, plan: &Plan, file: FileId, record: &csv::StringRecord) -> SourceId {
        let text = |column: Option<usize>| column.map(|column| record[column].to_owned()).filter(|text| !text.is_empty());
        let named = text(plan.device);
        // A device that is named goes on from file to file; one that is not is its file's own.
        let key = named.clone().map_or_else(|| (file, String::new()), |name| (usize::MAX, name));
        *self.devices.entry(key).or_insert_with(|| {
            let name = named.unwrap_or_else(|| recording.stem(file));
            let device = Device { name, node: text(plan.node), gpu_model: text(plan.model), gpu_index: None };
            recording.add_device(file, device)
        })
    }

    fn step(&mut self, source: SourceId, time: EventTime, line: u64, added: Vec<(Field, f64)>) {
        if !added.is_empty() {
            self.steps.entry(source).or_default().push((time, line, added));
        }
    }

    /// Turns what rows add into counters.
    fn finish(self, recording: &mut Recording) {
        for (source, mut steps) in self.steps {
            let mut newest = EventTime::MIN;
            for (time, ..) in &steps {
                recording.out_of_order += u64::from(*time < newest);
                newest = newest.max(*time);
            }
            steps.sort_by_key(|(time, ..)| *time);
            let mut totals: Vec<(Field, f64)> = Vec::new();
            for (_, _, added) in &steps {
                for (field, _) in added {
                    if !totals.iter().any(|(known, _)| known == field) {
                        totals.push((*field, 0.0));
                    }
                }
            }
            let whole_run = !recording.sources.iter().any(|source| matches!(source.kind, SourceKind::Device(_)));
            let mut told = EventTime::MIN;
            let first = recording.sources[source].readings.len();
            for same_time in steps.chunk_by(|a, b| a.0 == b.0) {
                let (time, line, _) = same_time[0];
                if time > told {
                    recording.push(source, time, line, &totals, None);
                }
                for (field, value) in same_time.iter().flat_map(|(_, _, added)| added) {
                    if let Some((_, total)) = totals.iter_mut().find(|(known, _)| known == field) {
                        *total += value;
                    }
                }
                told = time.plus_micros(1);
                recording.push(source, told, line, &totals, None);
            }
            if let [started, .., finished] = &mut recording.sources[source].readings[first..]
                && whole_run
            {
                let mark = |phase| Some(Box::new(Mark { phase, span: None }));
                started.mark = mark(Phase::Started);
                finished.mark = mark(Phase::Finished);
            }
        }
    }
}

fn number(
    recording: &mut Recording,
    plan: &Plan,
    file: FileId,
    line: u64,
    record: &csv::StringRecord,
    field: Field,
    take: Take,
) -> Result<Option<f64>, ImportError> {
    let Take::Cell(column, unit) = take else { return Ok(Some(1.0)) };
    match cell(&record[column]) {
        Cell::Number(value) => Ok(Some(unit.map_or(value, |unit| unit.to_ours(value)))),
        Cell::Absent => {
            recording.absent += 1;
            Ok(None)
        }
        Cell::Other => {
            let problem = format!("{} is not a number for {}", quote(&record[column]), field.name());
            let error = recording.error(file, line, problem, "correct the row, take it out, or leave the cell empty");
            Err(error.column(&plan.header[column]))
        }
    }
}
