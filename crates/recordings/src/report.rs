//! What was found in a recording.

use std::fmt;

use eadt_schemas::EventTime;
use serde::Serialize;

use crate::Format;

/// What an import read, what became of it, and what a careful reader wants to know about it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    pub format: Format,
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
    /// Rows older than one before them; sorted.
    pub out_of_order: u64,
    /// Cells that say that there is no value.
    pub absent_values: u64,
    /// Silences of a source: longer than three times its median interval (progress: ten times, at least a minute).
    pub gaps: Vec<Gap>,
    /// Lines that became no event, by reason.
    pub skipped: Vec<Skipped>,
    /// For each device with an energy counter and power: what the two say.
    pub counters: Vec<CounterCheck>,
    /// Anything else that a user should know.
    pub notes: Vec<String>,
}

/// A source said nothing for longer than it usually does.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Gap {
    /// Device, or `progress of rank N`.
    pub source: String,
    pub from: EventTime,
    pub to: EventTime,
    pub seconds: f64,
}

/// Lines that became no event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Skipped {
    pub file: String,
    pub reason: String,
    pub lines: u64,
    /// Counted from 1.
    pub first_line: u64,
}

/// A device's energy by its counter and by the trapezoidal integral of its power, over the same time.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CounterCheck {
    pub device: String,
    pub counter_joules: f64,
    pub integral_joules: f64,
    /// Counter minus integral, over the integral; `None` where the integral is 0.
    pub difference_ratio: Option<f64>,
}

impl CounterCheck {
    pub(crate) fn new(device: &str, counter_joules: f64, integral_joules: f64) -> Self {
        let difference_ratio = (integral_joules != 0.0).then(|| (counter_joules - integral_joules) / integral_joules);
        Self { device: device.to_owned(), counter_joules, integral_joules, difference_ratio }
    }
}

const SHOWN: usize = 10;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} recording, {} file(s): {} rows", self.format, self.files.len(), self.rows)?;
        writeln!(f, "events: {} ({} telemetry, {} progress)", self.events, self.telemetry_events, self.progress_events)?;
        writeln!(f, "workload: {}", self.workloads.join(", "))?;
        let seconds = self.last_time.seconds_since(self.first_time);
        writeln!(f, "time: {} to {} ({seconds:.3} s)", self.first_time, self.last_time)?;
        writeln!(f, "repeated rows dropped: {}", self.duplicates)?;
        writeln!(f, "rows with a time stamp of another row, put together: {}", self.same_stamp)?;
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
            let Skipped { file, reason, lines, first_line } = skipped;
            writeln!(f, "skipped: {lines} line(s) of {file}, the first at {first_line}: {reason}")?;
        }
        for check in &self.counters {
            write!(f, "{}: counter {:.3} J, integral {:.3} J", check.device, check.counter_joules, check.integral_joules)?;
            match check.difference_ratio {
                Some(ratio) => writeln!(f, ", difference {:+.3} %", ratio * 100.0)?,
                None => writeln!(f)?,
            }
        }
        for note in &self.notes {
            writeln!(f, "note: {note}")?;
        }
        Ok(())
    }
}
