//! Findings of an import.

use std::fmt;

use eadt_schemas::EventTime;
use eadt_schemas::counts::counted;
use eadt_schemas::figures::format_signed_percent;
use serde::Serialize;

use crate::encoding::Encoding;
use crate::{DecimalMark, RecordingFormat};

/// Kinds of refused rows of which all but the energy counter counts.
pub(crate) const COUNTER_LEFT_OUT: &str = "counter left out";
pub(crate) const COUNTER_JUMPS: &str = "counter";

/// Result of an import: the files read, their result, and notes for the user.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ImportReport {
    pub format: RecordingFormat,
    pub files: Vec<String>,
    /// The workloads that events were made for.
    pub workloads: Vec<String>,
    /// Rows, lines or samples that held data.
    pub rows: u64,
    pub events: u64,
    pub telemetry_events: u64,
    pub progress_events: u64,
    /// Time of the first and of the last event.
    pub first_time: EventTime,
    pub last_time: EventTime,
    /// Rows that repeat another row of their source exactly; dropped.
    pub duplicates: u64,
    /// Further rows with the time stamp of another row of their source and other values; put together into one event:
    /// gauges by their mean, counters by the last one in the file.
    pub same_stamp: u64,
    /// Places where rows were dropped or combined.
    pub merges: Vec<RowMerge>,
    /// Rows older than one before them; sorted.
    pub out_of_order: u64,
    /// Cells that mark an absent value.
    pub absent_values: u64,
    /// Silences of a source: longer than three times its median interval (progress: ten times, at least a minute).
    pub gaps: Vec<SourceGap>,
    /// Lines that became no event because they hold nothing that events are made of, by reason.
    pub skipped: Vec<DroppedLines>,
    /// Damaged rows and impossible readings that became no event, though they should have, by kind; the reason is that of the
    /// first.
    pub refused: Vec<DroppedLines>,
    /// Use of each table.
    pub tables: Vec<TableUse>,
    /// Each device: GPU, node or meter.
    pub boards: Vec<BoardSummary>,
    /// Energy by counter and by power, for each device with both.
    pub counters: Vec<CounterComparison>,
    /// Anything else that a user should know.
    pub notes: Vec<String>,
}

/// A time without rows of a source that is longer than usual.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SourceGap {
    /// Device, or `progress of rank N`.
    pub source: String,
    pub from: EventTime,
    pub to: EventTime,
    pub seconds: f64,
}

/// Lines that became no event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DroppedLines {
    pub file: String,
    /// Refused lines of one kind and file are counted together.
    #[serde(skip)]
    pub(crate) kind: &'static str,
    pub reason: String,
    pub lines: u64,
    /// Counted from 1.
    pub first_line: u64,
}

impl DroppedLines {
    /// Returns whether nothing but the energy counter of the rows was refused: their other readings are in the events.
    pub fn is_counter_only(&self) -> bool {
        [COUNTER_LEFT_OUT, COUNTER_JUMPS].contains(&self.kind)
    }

    /// Returns the first of the lines, and how many there are.
    fn describe(&self) -> String {
        let Self { file, reason, lines, first_line, .. } = self;
        let more = if *lines > 1 { format!(" (the first of {lines} lines)") } else { String::new() };
        format!("{file}:{first_line}: {reason}{more}")
    }
}

/// The recording was imported, but for lines that were refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the events lack what was refused, {}: {examples}", counted(*lines, "line"))]
pub struct RefusedLines {
    lines: u64,
    examples: String,
}

/// Rows of one file that repeat, or add to, another row of their source and time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RowMerge {
    pub file: String,
    /// Counted from 1.
    pub first_line: u64,
    pub duplicates: u64,
    pub same_stamp: u64,
}

/// Way in which a table was read.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TableUse {
    pub file: String,
    pub encoding: Encoding,
    /// `None` if each row is one cell.
    pub separator: Option<char>,
    /// `None` if no number shows it.
    pub decimal: Option<DecimalMark>,
    /// Counted from 1; `None` if the table has no header.
    pub header_line: Option<u64>,
    pub columns: Vec<ColumnUse>,
    pub left_out: Vec<String>,
    /// Zone of times without an offset; `None` if the table has none.
    pub time_zone: Option<String>,
}

/// Way in which a column was read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ColumnUse {
    pub column: String,
    /// The field, with its board in brackets if the column is about one.
    pub field: String,
    /// `None` if the cells or the field give it.
    pub unit: Option<String>,
}

/// A device that the recording is about.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BoardSummary {
    pub device: String,
    pub node: Option<String>,
    pub readings: u64,
    pub first_time: EventTime,
    pub last_time: EventTime,
    /// Mean of the readings, in watts; `None` if no power is known.
    pub mean_power_watts: Option<f64>,
}

/// A device's energy by its counter and by the trapezoidal integral of its power, over the same time.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CounterComparison {
    pub device: String,
    pub counter_joules: f64,
    pub integral_joules: f64,
    /// Counter minus integral, over the integral; `None` if the integral is 0.
    pub difference_ratio: Option<f64>,
}

impl CounterComparison {
    pub(crate) fn new(device: &str, counter_joules: f64, integral_joules: f64) -> Self {
        let difference_ratio = (integral_joules != 0.0).then(|| (counter_joules - integral_joules) / integral_joules);
        Self { device: device.to_owned(), counter_joules, integral_joules, difference_ratio }
    }
}

const SHOWN: usize = 10;
/// Kinds of refused lines of which an error names the first.
const REFUSALS_SHOWN: usize = 3;

impl ImportReport {
    /// Returns an error if lines were refused whose figures should be in the events. It is none if lines were skipped, repeated
    /// others, or had no value.
    pub fn check_refused(&self) -> Result<(), RefusedLines> {
        let lines = self.refused.iter().map(|refused| refused.lines).sum();
        if lines == 0 {
            return Ok(());
        }
        let mut examples: Vec<String> = self.refused.iter().take(REFUSALS_SHOWN).map(DroppedLines::describe).collect();
        if self.refused.len() > REFUSALS_SHOWN {
            examples.push(format!("and {}", counted(self.refused.len() - REFUSALS_SHOWN, "more kind")));
        }
        Err(RefusedLines { lines, examples: examples.join("; ") })
    }
}

impl fmt::Display for ImportReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} recording, {}: {}", self.format, counted(self.files.len(), "file"), counted(self.rows, "row"))?;
        writeln!(f, "events: {} ({} telemetry, {} progress)", self.events, self.telemetry_events, self.progress_events)?;
        writeln!(f, "workload: {}", self.workloads.join(", "))?;
        let seconds = self.last_time.seconds_since(self.first_time);
        writeln!(f, "time: {} to {} ({seconds:.3} s)", self.first_time, self.last_time)?;
        writeln!(f, "repeated rows dropped: {}", self.duplicates)?;
        writeln!(f, "rows with a time stamp of another row, put together: {}", self.same_stamp)?;
        for merge in self.merges.iter().take(SHOWN) {
            let RowMerge { file, first_line, duplicates, same_stamp } = merge;
            writeln!(f, "  {file}: {duplicates} dropped, {same_stamp} put together, the first at line {first_line}")?;
        }
        writeln!(f, "rows out of order, sorted: {}", self.out_of_order)?;
        writeln!(f, "cells without a value: {}", self.absent_values)?;
        writeln!(f, "gaps: {}", self.gaps.len())?;
        for gap in self.gaps.iter().take(SHOWN) {
            writeln!(f, "  {}: {:.3} s from {}", gap.source, gap.seconds, gap.from)?;
        }
        if self.gaps.len() > SHOWN {
            writeln!(f, "  … and {} more", self.gaps.len() - SHOWN)?;
        }
        for skipped in &self.skipped {
            let DroppedLines { file, reason, lines, first_line, .. } = skipped;
            writeln!(f, "skipped: {} of {file}, the first at {first_line}: {reason}", counted(*lines, "line"))?;
        }
        for DroppedLines { file, reason, lines, first_line, .. } in &self.refused {
            writeln!(f, "refused: {} of {file}, the first at {first_line}: {reason}", counted(*lines, "line"))?;
        }
        for check in &self.counters {
            write!(f, "{}: counter {:.3} J, integral {:.3} J", check.device, check.counter_joules, check.integral_joules)?;
            match check.difference_ratio {
                Some(ratio) => writeln!(f, ", difference {}", format_signed_percent(ratio, 3))?,
                None => writeln!(f)?,
            }
        }
        for note in &self.notes {
            writeln!(f, "note: {note}")?;
        }
        Ok(())
    }
}

/// A report as `eadt import --explain` prints it: how each table is read, and which boards are in it, before what was found.
#[derive(Debug)]
pub struct DetailedImportReport<'a>(pub &'a ImportReport);

impl fmt::Display for DetailedImportReport<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let report = self.0;
        for table in &report.tables {
            writeln!(f, "{}: {} text", table.file, table.encoding.name())?;
            let separator = match table.separator {
                Some('\t') => "tab".to_owned(),
                Some(separator) => format!("{separator:?}"),
                None => "none: one cell a row".to_owned(),
            };
            let decimal = table.decimal.map_or("point, as far as numbers show", DecimalMark::name);
            writeln!(f, "  separator: {separator}; decimal mark: {decimal}")?;
            match table.header_line {
                Some(line) => writeln!(f, "  header: line {line}")?,
                None => writeln!(f, "  header: none, the first line has readings")?,
            }
            for ColumnUse { column, field, unit } in &table.columns {
                let unit = unit.as_ref().map_or(String::new(), |unit| format!(", in {unit}"));
                writeln!(f, "  column {column:?}: {field}{unit}")?;
            }
            if !table.left_out.is_empty() {
                writeln!(f, "  left out: {}", table.left_out.join(", "))?;
            }
            match &table.time_zone {
                Some(zone) => writeln!(f, "  times: without an offset, read as {zone}")?,
                None => writeln!(f, "  times: no local times")?,
            }
        }
        writeln!(f, "boards: {}", report.boards.len())?;
        for board in &report.boards {
            let power = board.mean_power_watts.map_or("no power".to_owned(), |watts| format!("{watts:.1} W on average"));
            let node = board.node.as_ref().map_or(String::new(), |node| format!(" of node {node}"));
            let BoardSummary { device, readings, first_time, last_time, .. } = board;
            writeln!(f, "  {device}{node}: {}, {first_time} to {last_time}, {power}", counted(*readings, "reading"))?;
        }
        write!(f, "{report}")
    }
}
