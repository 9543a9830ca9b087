//! What one frame shows: taken from the tally, and kept while the view is paused.

use eadt_report::{Summary, WorkloadReport};
use eadt_schemas::EventTime;
use eadt_schemas::v1::{Action, Decision, Origin, Validation};

use super::chart::Mark;
use super::layout_text;
use super::tally::{Saving, Tally};

/// How much of a run with a given duration is over.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Progress {
    /// From 0 to 1.
    pub part: f64,
    /// Real time until the end, as it goes at present.
    pub left_seconds: Option<f64>,
}

/// One workload of a frame.
#[derive(Debug, Clone, Default)]
pub struct WorkloadRow {
    pub name: String,
    pub power_watts: Option<f64>,
    pub samples_per_second: Option<f64>,
    pub joules_per_sample: Option<f64>,
    pub energy_joules: Option<f64>,
    pub saving: Option<Saving>,
    pub gpus: Option<u32>,
    pub layout: String,
    pub state: &'static str,
    pub mode: String,
    pub changes: u64,
    pub reverts: u64,
    pub origin: Option<Origin>,
}

/// The selected workload.
#[derive(Debug, Clone)]
pub struct Details {
    pub name: String,
    pub report: WorkloadReport,
    /// The newest last.
    pub decisions: Vec<Decision>,
    pub marks: Vec<(EventTime, Mark)>,
    pub layout: String,
}

/// A frame's figures.
#[derive(Debug, Clone, Default)]
pub struct Picture {
    /// Where the figures come from: `Kafka kafka:9092 · topics eadt.*`.
    pub headline: String,
    /// The process simulates, whether or not there are figures yet.
    pub simulated: bool,
    pub now: Option<EventTime>,
    pub since: Option<EventTime>,
    pub origin: Option<Origin>,
    pub mixed: bool,
    pub rows: Vec<WorkloadRow>,
    pub power_watts: f64,
    pub summary: Summary,
    pub counts: Counts,
    pub details: Option<Details>,
    pub progress: Option<Progress>,
    /// Only the end of the record was read: a saving cannot be told.
    pub partial: bool,
}

#[derive(Debug, Clone, Copy, Default)]
pub struct Counts {
    pub windows: u64,
    pub decisions: u64,
    pub changes: u64,
    pub reverts: u64,
    pub dead_letters: u64,
}

impl Picture {
    /// The figures so far, with those of the selected workload window by window.
    pub fn of(tally: &Tally, selected: Option<&str>) -> Self {
        let rows: Vec<WorkloadRow> = rows(tally);
        let summary = tally.summary();
        Self {
            now: tally.now,
            since: tally.since,
            origin: tally.origin(),
            mixed: tally.is_mixed(),
            power_watts: rows.iter().filter_map(|row| row.power_watts).sum(),
            rows,
            counts: Counts {
                windows: tally.windows,
                decisions: tally.decisions,
                changes: summary.changes,
                reverts: summary.reverts,
                dead_letters: tally.dead_letters,
            },
            summary,
            details: selected.and_then(|name| Details::of(tally, name)),
            ..Self::default()
        }
    }

    /// Takes out what only the whole record can tell.
    pub fn without_savings(mut self) -> Self {
        self.partial = true;
        for row in &mut self.rows {
            row.saving = None;
        }
        self
    }
}

/// The workloads by name.
pub fn rows(tally: &Tally) -> Vec<WorkloadRow> {
    tally
        .workloads
        .iter()
        .map(|(name, row)| WorkloadRow {
            name: name.clone(),
            power_watts: row.power_watts,
            samples_per_second: row.samples_per_second,
            joules_per_sample: row.joules_per_sample,
            energy_joules: row.report.as_ref().and_then(|report| report.energy_joules),
            saving: row.saving(),
            gpus: row.gpus.or(row.declared.as_ref().and_then(|declared| declared.gpus)),
            layout: row.layout().map_or_else(|| "–".to_owned(), layout_text),
            state: row.state(),
            mode: row.declared.as_ref().map_or_else(|| "–".to_owned(), |declared| super::wire_name(&declared.mode)),
            changes: row.report.as_ref().map_or(0, |report| report.changes),
            reverts: row.report.as_ref().map_or(0, |report| report.reverts),
            origin: row.origin(),
        })
        .collect()
}

impl Details {
    /// `None`: nothing is known of such a workload.
    pub fn of(tally: &Tally, name: &str) -> Option<Self> {
        let row = tally.workloads.get(name)?;
        let report = tally.by_window(name).unwrap_or_default();
        let decisions: Vec<Decision> = row.recent.iter().cloned().collect();
        let marks = decisions.iter().filter_map(|decision| Some((decision.time, mark(decision)?))).collect();
        let layout = row.layout().map_or_else(|| "–".to_owned(), layout_text);
        Some(Self { name: name.to_owned(), report, decisions, marks, layout })
    }
}

const fn mark(decision: &Decision) -> Option<Mark> {
    match (decision.action, decision.validation) {
        (Action::Revert, _) => Some(Mark::Reverted),
        (Action::Maintain, Validation::Kept) => Some(Mark::Kept),
        (Action::Maintain, _) => None,
        _ => Some(Mark::Changed),
    }
}
