//! Raw profiling series into operating points.
//!
//! One file is one run at one setting. Its busy part goes from the first to the last row in which the GPU worked (`GRACT`, else
//! utilisation, above 0; without either the whole file); time and energy (trapezoid) are those of the busy part, so that
//! waiting before and after does not count. Runs of a setting are put together by
//! [`eadt_models::choose::combine`]: cold run and outliers dropped, the rest by the median.

use std::collections::BTreeMap;
use std::io::{BufRead, Read};

use eadt_models::choose::{DroppedRun, FixedWorkRun, combine};
use eadt_models::energy::{IntegrationRule, PowerSample, PowerSeries};
use eadt_recordings::{DEFAULT_POWER_GAP_SECONDS, DroppedLines, ImportOptions, RecordingFile, RecordingFormat, import};
use eadt_schemas::counts::{counted, counted_as};
use eadt_schemas::v1::GpuTelemetry;
use eadt_schemas::{EventTime, Topic};
use serde::Serialize;

use crate::TableError;
use crate::points::GroupKey;

/// The pattern by which file names describe a run: literal text with `{column}` between, for example
/// `{gpu_model}-{workload}-{sm_clock_mhz}-{run}`, without the ending. `{run}`, the knob and `{batch_size}` are numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileNamePattern {
    text: String,
    parts: Vec<FileNamePart>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum FileNamePart {
    Literal(String),
    Field(String),
}

/// Columns of a pattern that hold numbers, so that text before them may hold the separator, too.
const NUMBERS: [&str; 5] = ["run", "sm_clock_mhz", "power_limit_watts", "memory_clock_mhz", "batch_size"];

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPattern {
    #[error("pattern {text:?} has an unclosed brace; for example {{workload}}-{{sm_clock_mhz}}-{{run}}")]
    Brace { text: String },
    #[error("pattern {text:?} names {field} twice, or names nothing between braces")]
    Field { text: String, field: String },
    #[error("pattern {text:?} has neither {{sm_clock_mhz}} nor {{power_limit_watts}}: the setting must be in the name")]
    NoKnob { text: String },
}

impl FileNamePattern {
    /// Returns the pattern as it was given.
    pub fn text(&self) -> &str {
        &self.text
    }

    pub fn new(text: &str) -> Result<Self, InvalidPattern> {
        let brace = || InvalidPattern::Brace { text: text.to_owned() };
        let mut parts: Vec<FileNamePart> = Vec::new();
        let mut rest = text;
        while let Some((literal, after)) = rest.split_once('{') {
            if !literal.is_empty() {
                parts.push(FileNamePart::Literal(literal.to_owned()));
            }
            let (field, after) = after.split_once('}').ok_or_else(brace)?;
            let twice = parts.iter().any(|part| matches!(part, FileNamePart::Field(other) if other == field));
            if field.is_empty() || twice {
                return Err(InvalidPattern::Field { text: text.to_owned(), field: field.to_owned() });
            }
            parts.push(FileNamePart::Field(field.to_owned()));
            rest = after;
        }
        if rest.contains('}') {
            return Err(brace());
        }
        if !rest.is_empty() {
            parts.push(FileNamePart::Literal(rest.to_owned()));
        }
        let pattern = Self { text: text.to_owned(), parts };
        if pattern.knob().is_none() {
            return Err(InvalidPattern::NoKnob { text: text.to_owned() });
        }
        Ok(pattern)
    }

    /// Returns `sm_clock_mhz` or `power_limit_watts`.
    pub fn knob(&self) -> Option<&str> {
        let fields =
            self.parts.iter().filter_map(|part| if let FileNamePart::Field(field) = part { Some(field.as_str()) } else { None });
        fields.into_iter().find(|field| ["sm_clock_mhz", "power_limit_watts"].contains(field))
    }

    /// Returns the columns of a name; `None` if it does not fit.
    pub fn read(&self, name: &str) -> Option<GroupKey> {
        let mut found = GroupKey::new();
        fits(&self.parts, name, &mut found).then_some(found)
    }
}

fn fits(parts: &[FileNamePart], text: &str, found: &mut GroupKey) -> bool {
    match parts.split_first() {
        None => text.is_empty(),
        Some((FileNamePart::Literal(literal), rest)) => {
            text.strip_prefix(literal.as_str()).is_some_and(|text| fits(rest, text, found))
        }
        Some((FileNamePart::Field(field), rest)) => {
            let ends = text.char_indices().map(|(at, c)| at + c.len_utf8());
            for end in ends {
                let value = &text[..end];
                if NUMBERS.contains(&field.as_str()) && value.parse::<f64>().is_err() {
                    continue;
                }
                if fits(rest, &text[end..], found) {
                    found.insert(field.clone(), value.to_owned());
                    return true;
                }
            }
            false
        }
    }
}

/// One run, read from its file.
#[derive(Debug, Clone, PartialEq)]
pub struct RunProfile {
    pub file: String,
    pub columns: GroupKey,
    pub rows: usize,
    /// Rows in which the GPU worked.
    pub active_rows: usize,
    pub duration_seconds: f64,
    pub energy_joules: f64,
    /// Mean over the rows in which the GPU worked, as the authors of such data give it; of several boards the sum.
    pub active_power_watts: f64,
    /// Hardware counter over integral, of the whole file; `None` without a counter.
    pub counter_ratio: Option<f64>,
    /// Start, if the file has times of its own.
    pub start: Option<EventTime>,
    /// Parts of the file that are in no figure: rows that were refused, or an energy counter that was left out.
    pub refused: Option<String>,
}

/// One reading: when, watts, and the part of the time that the GPU worked.
type ProfileReading = (EventTime, f64, Option<f64>);

/// The readings of one board.
#[derive(Debug, Default)]
struct BoardReadings {
    readings: Vec<ProfileReading>,
    /// First and last value of the energy counter, in joules.
    counters: Option<(f64, f64)>,
}

/// Returns the remedy for a recording of this format without power, for errors.
fn power_remedy(format: RecordingFormat) -> &'static str {
    match format {
        RecordingFormat::Csv => "name the column of the power with --map power_watts=COLUMN[:UNIT]",
        RecordingFormat::NvidiaSmi => {
            "record it: nvidia-smi --query-gpu=timestamp,uuid,name,power.draw,utilization.gpu --format=csv -l 1"
        }
        RecordingFormat::Dcgmi => "record the power (field 155): dcgmi dmon -e 155,1001",
        _ => "record the power of the GPU",
    }
}

/// Reads one run. `options` name the columns (CSV) or give the time between rows (dcgmi). Energies of several boards
/// in one file are added up.
///
/// The power is `power_watts`; of boards that give a one-second average only (Hopper and later), `power_average_watts`.
pub fn read(
    file: &str,
    reader: impl Read,
    columns: GroupKey,
    format: RecordingFormat,
    options: &ImportOptions,
) -> Result<RunProfile, TableError> {
    let bad = |problem: String, remedy: &str| TableError::new(file, problem, remedy);
    let FileReadings { boards, rows, refused } = read_boards(file, reader, format, options)?;
    let readings = || boards.iter().flat_map(|board| board.readings.iter());
    let Some(first) = readings().map(|reading| reading.0).min() else {
        return Err(bad(format!("fewer than 2 power readings in {}", counted(rows, "row")), power_remedy(format)));
    };
    let known = readings().any(|reading| reading.2.is_some());
    let active = |reading: &ProfileReading| !known || reading.2.is_some_and(|ratio| ratio > 0.0);
    let active_rows = readings().filter(|reading| active(reading)).count();
    let Some((begin, end)) = busy_span(&boards, &active) else {
        return Err(bad("the GPU did no work in it".to_owned(), "take the file out, or name it in no pattern"));
    };
    if active_rows < 2 || begin == end {
        return Err(bad("the GPU worked in a single row of it".to_owned(), "record more often, or more work"));
    }
    if let Some((seconds, most)) = longest_silence(&boards, begin, end) {
        let problem = format!("no power is known for {seconds} s within the run (at most {most} s)");
        return Err(bad(problem, "record the run again, and more often"));
    }
    let (from, to) = (begin.seconds_since(first), end.seconds_since(first));
    let (mut energy_joules, mut active_power_watts) = (0.0, 0.0);
    let (mut counted, mut integrated) = (0.0, 0.0);
    for board in &boards {
        let points =
            board.readings.iter().map(|(time, watts, _)| PowerSample { seconds: time.seconds_since(first), watts: *watts });
        let series = PowerSeries::new(points).map_err(|error| bad(error.to_string(), "correct the file"))?;
        energy_joules += series.energy_between(from, to, IntegrationRule::Trapezoid, None).joules;
        let busy: Vec<f64> = board.readings.iter().filter(|reading| active(reading)).map(|reading| reading.1).collect();
        active_power_watts += if busy.is_empty() { 0.0 } else { busy.iter().sum::<f64>() / busy.len() as f64 };
        let counter = board.counters.map(|(first, last)| last - first).filter(|joules| *joules > 0.0);
        if let Some((counter, whole)) = counter.zip(series.energy(IntegrationRule::Trapezoid)) {
            counted += counter;
            integrated += whole.joules;
        }
    }
    let counter_ratio = (integrated > 0.0).then(|| counted / integrated);
    if let Some(ratio) = counter_ratio.filter(|ratio| !(0.5..=2.0).contains(ratio)) {
        let problem = format!("the energy counter rises by {ratio:.3} times the integral of the power");
        return Err(bad(problem, "check the units of both, and the interval between rows"));
    }
    Ok(RunProfile {
        file: file.to_owned(),
        columns,
        rows,
        active_rows,
        duration_seconds: to - from,
        energy_joules,
        active_power_watts,
        counter_ratio,
        start: (format != RecordingFormat::Dcgmi && options.interval.is_none()).then_some(first),
        refused,
    })
}

/// A longer time without a reading than so many usual intervals of a board is a silence.
const INTERVALS_OF_A_SILENCE: f64 = 3.0;

/// Returns the longest silence of a board within a span, and the longest time that would be none, in seconds; `None` if there is
/// no silence. A board that begins after the span, or ends before it does, is silent there, too.
fn longest_silence(boards: &[BoardReadings], begin: EventTime, end: EventTime) -> Option<(f64, f64)> {
    let of = |board: &BoardReadings| {
        let times: Vec<EventTime> = board.readings.iter().map(|reading| reading.0).collect();
        let (first, last) = (*times.first()?, *times.last()?);
        let mut intervals: Vec<f64> = times.windows(2).map(|pair| pair[1].seconds_since(pair[0])).collect();
        intervals.sort_by(f64::total_cmp);
        let usual = intervals.get(intervals.len().saturating_sub(1) / 2)?;
        let most = DEFAULT_POWER_GAP_SECONDS.max(INTERVALS_OF_A_SILENCE * usual);
        let within = |pair: &[EventTime]| pair[1].min(end).seconds_since(pair[0].max(begin));
        let outside = [first.seconds_since(begin), end.seconds_since(last)];
        let longest = times.windows(2).map(within).chain(outside).fold(0.0, f64::max);
        (longest > most).then_some((longest, most))
    };
    boards.iter().filter_map(of).max_by(|a, b| a.0.total_cmp(&b.0))
}

/// Readings of a file.
struct FileReadings {
    /// Boards that have at least two readings.
    boards: Vec<BoardReadings>,
    rows: usize,
    refused: Option<String>,
}

fn read_boards(
    file: &str,
    reader: impl Read,
    format: RecordingFormat,
    options: &ImportOptions,
) -> Result<FileReadings, TableError> {
    let mut reader = std::io::BufReader::new(reader);
    if reader.fill_buf().is_ok_and(<[u8]>::is_empty) {
        return Err(TableError::new(file, "the file is empty", "record the run again, or take the file out"));
    }
    let imported = import(format, vec![RecordingFile::new(file, reader)], options).map_err(|error| TableError {
        file: error.file,
        line: error.line,
        column: error.column,
        problem: error.problem,
        remedy: error.remedy,
    })?;
    let mut boards: BTreeMap<String, BoardReadings> = BTreeMap::new();
    let mut rows = 0;
    for event in imported.events().filter(|event| event.topic() == Some(Topic::GpuTelemetry)) {
        let Some(data) = &event.data else { continue };
        let sample: GpuTelemetry = eadt_schemas::decode(data.get().as_bytes())
            .map_err(|error| TableError::new(file, format!("row {rows}: {error}"), "correct the row"))?;
        rows += 1;
        let board = boards.entry(sample.device).or_default();
        if let Some(joules) = sample.energy_joules_total {
            board.counters = Some((board.counters.map_or(joules, |(first, _)| first), joules));
        }
        let Some(watts) = sample.power_watts.or(sample.power_average_watts) else { continue };
        board.readings.push((sample.time, watts, sample.graphics_active_ratio.or(sample.utilization_ratio)));
    }
    let (counters, rows_refused): (Vec<&DroppedLines>, Vec<&DroppedLines>) =
        imported.report.refused.iter().partition(|refused| refused.is_counter_only());
    let lines: u64 = rows_refused.iter().map(|refused| refused.lines).sum();
    let of_rows = rows_refused.first().map(|first| {
        let lines = counted_as(lines, "line is", "lines are");
        format!("{lines} in no figure, the first at {}: {}", first.first_line, first.reason)
    });
    let of_counter = counters.first().map(|first| first.reason.clone());
    let reasons: Vec<String> = [of_rows, of_counter].into_iter().flatten().collect();
    let refused = (!reasons.is_empty()).then(|| reasons.join("; "));
    Ok(FileReadings { boards: boards.into_values().filter(|board| board.readings.len() >= 2).collect(), rows, refused })
}

/// Returns the times of the first and the last reading in which any board worked; `None` if none did.
fn busy_span(boards: &[BoardReadings], active: &impl Fn(&ProfileReading) -> bool) -> Option<(EventTime, EventTime)> {
    let of = |board: &BoardReadings| {
        let begin = board.readings.iter().position(active)?;
        let end = board.readings.iter().rposition(active)?;
        // A row holds for the time up to the next one: the last active row's, too.
        Some((board.readings[begin].0, board.readings[(end + 1).min(board.readings.len() - 1)].0))
    };
    boards.iter().filter_map(of).reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))
}

/// An operating point.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MeasuredOperatingPoint {
    pub columns: GroupKey,
    pub duration_seconds: f64,
    pub energy_joules: f64,
    pub active_power_watts: f64,
    pub runs: usize,
    pub runs_dropped: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_spread_ratio: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub energy_spread_ratio: Option<f64>,
}

/// A run that was left out of its operating point.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ExcludedRun {
    pub file: String,
    pub why: DroppedRun,
}

/// Operating points, and which runs were left out of them.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct OperatingPoints {
    pub points: Vec<MeasuredOperatingPoint>,
    pub dropped: Vec<ExcludedRun>,
}

/// Puts runs of the same columns, `run` apart, together. Of each group (setting apart, too), the run that started first is its
/// cold one, if files have times. If several started first, as on boards that worked in parallel, none is.
pub fn points(mut profiles: Vec<RunProfile>, knob: &str) -> OperatingPoints {
    profiles.sort_by(|a, b| a.columns.cmp(&b.columns).then(a.file.cmp(&b.file)));
    let without = |key: &GroupKey, fields: &[&str]| -> GroupKey {
        key.iter().filter(|(column, _)| !fields.contains(&column.as_str())).map(|(c, v)| (c.clone(), v.clone())).collect()
    };
    let mut starts: BTreeMap<GroupKey, Vec<EventTime>> = BTreeMap::new();
    for profile in &profiles {
        starts.entry(without(&profile.columns, &["run", knob])).or_default().extend(profile.start);
    }
    let single = |starts: &[EventTime]| {
        let earliest = starts.iter().copied().min()?;
        (starts.iter().filter(|start| **start == earliest).count() == 1).then_some(earliest)
    };
    // The earliest start of each group; `None`: several runs have it.
    let first: BTreeMap<GroupKey, Option<EventTime>> = starts.iter().map(|(key, starts)| (key.clone(), single(starts))).collect();
    let mut settings: BTreeMap<GroupKey, Vec<RunProfile>> = BTreeMap::new();
    for profile in profiles {
        settings.entry(without(&profile.columns, &["run"])).or_default().push(profile);
    }
    let mut found = OperatingPoints::default();
    for (columns, runs) in settings {
        let earliest = first.get(&without(&columns, &[knob])).copied().flatten();
        let as_run = |profile: &RunProfile| FixedWorkRun {
            duration_seconds: profile.duration_seconds,
            energy_joules: profile.energy_joules,
            cold: earliest.is_some() && profile.start == earliest,
        };
        // A setting has runs, and at most one of them is cold: it has a point.
        let Some(combined) = combine(&runs.iter().map(as_run).collect::<Vec<_>>()) else { continue };
        found
            .dropped
            .extend(combined.dropped.iter().map(|(index, why)| ExcludedRun { file: runs[*index].file.clone(), why: *why }));
        let run_count = combined.accepted.len();
        found.points.push(MeasuredOperatingPoint {
            columns,
            duration_seconds: combined.duration_seconds,
            energy_joules: combined.energy_joules,
            active_power_watts: combined.accepted.iter().map(|index| runs[*index].active_power_watts).sum::<f64>()
                / run_count as f64,
            runs: run_count,
            runs_dropped: combined.dropped.len(),
            duration_spread_ratio: combined.duration_spread_ratio,
            energy_spread_ratio: combined.energy_spread_ratio,
        });
    }
    found
}

/// Returns operating points as a table that `eadt tune` reads.
pub fn to_csv(points: &[MeasuredOperatingPoint]) -> Result<String, csv::Error> {
    let mut table = csv::Writer::from_writer(Vec::new());
    let Some(first) = points.first() else { return Ok(String::new()) };
    let columns: Vec<&String> = first.columns.keys().collect();
    let figures = [
        "duration_seconds",
        "energy_joules",
        "active_power_watts",
        "runs",
        "runs_dropped",
        "duration_spread_ratio",
        "energy_spread_ratio",
    ];
    table.write_record(columns.iter().map(|column| column.as_str()).chain(figures))?;
    for point in points {
        let optional = |value: Option<f64>| value.map_or(String::new(), |value| value.to_string());
        let figures = [
            point.duration_seconds.to_string(),
            point.energy_joules.to_string(),
            point.active_power_watts.to_string(),
            point.runs.to_string(),
            point.runs_dropped.to_string(),
            optional(point.duration_spread_ratio),
            optional(point.energy_spread_ratio),
        ];
        let own = columns.iter().map(|column| point.columns.get(*column).cloned().unwrap_or_default());
        table.write_record(own.chain(figures))?;
    }
    let bytes = table.into_inner().map_err(csv::IntoInnerError::into_error)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
