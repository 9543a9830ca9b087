//! The content of one frame: taken from the tally, and kept while the view is paused.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use eadt_report::states::ChangeFate;
use eadt_report::{ChangeRecord, GPUS_WITHOUT_WORKLOAD, SavingSummary, WindowRow, WorkloadReport, units};
use eadt_schemas::EventTime;
use eadt_schemas::counts::counted;
use eadt_schemas::v1::{ChangeValidation, ControllerAction, Decision, Origin};
use eadt_service::redact;

use super::chart::ChartMark;
use super::event_line::is_change;
use super::layout_words;
use super::tally::{LiveTally, NewestFigures, WorkloadSaving, WorkloadTally};

/// The part of a run with a given duration that is over.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RunProgress {
    /// Part that is done, from 0 to 1.
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
    pub saving: Option<WorkloadSaving>,
    pub gpus: Option<u32>,
    pub layout: Option<String>,
    pub state: &'static str,
    pub mode: Option<String>,
    pub changes: u64,
    pub reverts: u64,
    pub origin: Option<Origin>,
}

/// A decision and its outcome.
#[derive(Debug, Clone)]
pub struct DecidedChange {
    pub decision: Decision,
    /// `None` if no actuator has answered it.
    pub fate: Option<ChangeFate>,
}

/// The selected workload.
#[derive(Debug, Clone)]
pub struct WorkloadDetails {
    pub name: String,
    pub report: WorkloadReport,
    /// The newest last.
    pub decisions: Vec<DecidedChange>,
    /// Changes and verdicts before these.
    pub earlier: usize,
    /// Of the whole record.
    pub marks: Vec<(EventTime, ChartMark)>,
    pub layout: Option<String>,
}

/// A frame's figures.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
#[derive(Debug, Clone, Default)]
pub struct ViewFrame {
    /// Source of the figures: `Kafka kafka:9092 · topics eadt.*`.
    pub headline: String,
    /// The process simulates, whether or not there are figures yet.
    pub simulated: bool,
    pub now: Option<EventTime>,
    pub since: Option<EventTime>,
    pub origin: Option<Origin>,
    pub mixed: bool,
    pub rows: Vec<WorkloadRow>,
    /// The power of all workloads together that run; `None` if none is known.
    pub power_watts: Option<f64>,
    pub summary: SavingSummary,
    pub counts: ViewCounts,
    pub details: Option<WorkloadDetails>,
    pub progress: Option<RunProgress>,
    /// The log was not read to its end once: the figures are of a part of it, and `progress` is that of the reading.
    pub is_reading: bool,
    /// Only the end of the record was read: a saving cannot be determined.
    pub partial: bool,
}

#[derive(Debug, Clone, Copy, Default)]
pub struct ViewCounts {
    pub windows: u64,
    pub decisions: u64,
    pub changes: u64,
    pub reverts: u64,
    pub dead_letters: u64,
}

impl ViewFrame {
    /// Returns the figures so far, with those of the selected workload window by window.
    pub fn of(tally: &LiveTally, selected: Option<&str>) -> Self {
        let rows: Vec<WorkloadRow> = rows(tally);
        let summary = tally.summary();
        Self {
            now: tally.now,
            since: tally.since,
            origin: tally.origin(),
            mixed: tally.is_mixed(),
            power_watts: tally.power(),
            rows,
            counts: ViewCounts {
                windows: tally.windows,
                decisions: tally.decisions,
                changes: summary.changes,
                reverts: summary.reverts,
                dead_letters: tally.dead_letters,
            },
            summary,
            details: selected.and_then(|name| WorkloadDetails::of(tally, name)),
            ..Self::default()
        }
    }

    /// Returns how many workloads there are, and their power; an unknown one is called unknown, never 0.
    pub fn load(&self) -> [String; 2] {
        let power = self.power_watts.map_or_else(|| "power unknown".to_owned(), units::format_watts);
        let workloads = self.rows.iter().filter(|row| row.name != GPUS_WITHOUT_WORKLOAD).count();
        [counted(workloads, "workload"), power]
    }

    /// Takes out the figures that need the whole record.
    pub fn without_savings(mut self) -> Self {
        self.partial = true;
        for row in &mut self.rows {
            row.saving = None;
        }
        self
    }
}

/// Returns the workloads by name.
pub fn rows(tally: &LiveTally) -> Vec<WorkloadRow> {
    let row = |(name, row): (&String, &WorkloadTally)| {
        let NewestFigures { power_watts, samples_per_second, joules_per_sample, gpus } = tally.newest_of(row);
        WorkloadRow {
            name: name.clone(),
            power_watts,
            samples_per_second,
            joules_per_sample,
            energy_joules: row.report.as_ref().and_then(|report| report.energy_joules),
            saving: row.saving(),
            gpus: gpus.or(row.declared.as_ref().and_then(|declared| declared.gpus)),
            layout: row.layout().and_then(layout_words),
            state: tally.state(row),
            mode: row.declared.as_ref().map(|declared| super::wire_name(&declared.mode)),
            changes: row.report.as_ref().map_or(0, |report| report.changes),
            reverts: row.report.as_ref().map_or(0, |report| report.reverts),
            origin: row.origin(),
        }
    };
    tally.workloads.iter().map(row).collect()
}

impl WorkloadDetails {
    /// Returns the details; `None` if there is no such workload.
    pub fn of(tally: &LiveTally, name: &str) -> Option<Self> {
        let row = tally.workloads.get(name)?;
        let mut report = tally.by_window(name).unwrap_or_default();
        if name == GPUS_WITHOUT_WORKLOAD {
            report.by_window = report.by_window.map(add_up_devices);
        }
        let decided = |decision: &Decision| DecidedChange { decision: decision.clone(), fate: row.fates.get(&decision.id) };
        let decisions: Vec<DecidedChange> = row.recent.iter().map(decided).collect();
        let changes = tally.changes(name);
        let earlier = changes.len().saturating_sub(count_changes(&decisions));
        let marks = changes.iter().map(|change| (change.time, mark(change))).collect();
        let layout = row.layout().and_then(layout_words);
        Some(Self { name: name.to_owned(), report, decisions, earlier, marks, layout })
    }

    /// Returns the line on the changes and verdicts that are not among the last `shown` decisions; `None` if all are.
    pub fn earlier_line(&self, shown: usize) -> Option<String> {
        let hidden = self.decisions.len().saturating_sub(shown);
        let earlier = self.earlier + count_changes(&self.decisions[..hidden]);
        (earlier > 0).then(|| format!("{earlier} earlier: eadt get decisions {}", redact::escape_line(&self.name)))
    }
}

/// Adds up the windows of GPUs without a workload: each has windows of its own.
fn add_up_devices(rows: Vec<WindowRow>) -> Vec<WindowRow> {
    let add = |sum: &mut Option<f64>, value: Option<f64>| {
        *sum = sum.zip(value).map(|(sum, value)| sum + value).or(*sum).or(value);
    };
    let mut sums: BTreeMap<EventTime, WindowRow> = BTreeMap::new();
    for row in rows {
        match sums.entry(row.window_start) {
            Entry::Vacant(entry) => {
                entry.insert(row);
            }
            Entry::Occupied(mut entry) => {
                let sum = entry.get_mut();
                add(&mut sum.energy_joules, row.energy_joules);
                add(&mut sum.mean_power_watts, row.mean_power_watts);
                add(&mut sum.run_mean_power_watts, row.run_mean_power_watts);
            }
        }
    }
    sums.into_values().collect()
}

/// Returns how many of these change or judge something.
fn count_changes(decisions: &[DecidedChange]) -> usize {
    decisions.iter().filter(|decided| is_change(&decided.decision)).count()
}

fn mark(change: &ChangeRecord) -> ChartMark {
    match (change.action, change.validation) {
        (ControllerAction::Maintain, ChangeValidation::Failed) => ChartMark::NoGain,
        (ControllerAction::Maintain, _) => ChartMark::Kept,
        _ if change.is_not_made => ChartMark::NotMade,
        _ if change.takes_back => ChartMark::Reverted,
        _ => ChartMark::Changed,
    }
}
