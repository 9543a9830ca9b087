//! Parts of a saving: what each kind of change saved, and what restarts and hold-outs cost.
//!
//! The report compares each window with the starting layout in the same time. Its saving is the sum over these windows of the
//! energy that they took less, minus the energy that the starting layout takes on average for the samples that they did less. So
//! every window has a part, those of the starting layout have none, and the parts add up to the report's saving.

use std::collections::BTreeMap;

use eadt_report::{WindowRow, WorkloadReport};
use eadt_schemas::EventTime;
use eadt_schemas::v1::{ActuationOutcome, ControllerAction, Layout};
use serde::Serialize;

use super::workload::{DecisionRecord, WorkloadState};

/// A part below this ratio of the baseline is a rounding error.
const LEAST_PART: f64 = 1e-6;

/// Kind of the windows of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SavingPartKind {
    /// Another power or clock limit in the starting layout.
    Limits,
    /// Other replicas, SM shares or settings of the job, with their limits.
    Layouts,
    /// From a change that was taken back until it was.
    TakenBack,
    /// The limit is removed for a few windows, to measure the job's baseline again.
    HoldOuts,
    Restarts,
    /// None of these: no change is known to be in force, or the energy lies in no window.
    Other,
}

impl SavingPartKind {
    /// Each, by its number.
    const ALL: [Self; 6] = [Self::Limits, Self::Layouts, Self::TakenBack, Self::HoldOuts, Self::Restarts, Self::Other];
}

/// One part.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct SavingPart {
    pub kind: SavingPartKind,
    /// Saved energy; negative: taken beyond the starting layout.
    pub joules: f64,
    pub windows: usize,
}

/// Divides the difference between the energy of the starting layout and the actual energy: `baseline_joules` less all parts is
/// `actual_joules`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SavingParts {
    /// Energy that the starting layout would have taken for the samples of the compared windows.
    pub baseline_joules: f64,
    pub parts: Vec<SavingPart>,
    /// Energy of the compared windows.
    pub actual_joules: f64,
}

impl SavingParts {
    /// Divides a report's saving, which was computed from these windows; `None` if no saving is known.
    pub(super) fn of(report: &WorkloadReport, rows: &[WindowRow], state: &WorkloadState) -> Option<Self> {
        let (per_sample, saving) = (report.baseline_joules_per_sample?, report.saving_joules?);
        let changes = applied_changes(state);
        let mut parts = SavingPartKind::ALL.map(|kind| SavingPart { kind, joules: 0.0, windows: 0 });
        let (mut samples, mut named) = (0.0, 0.0);
        for row in rows {
            let (Some(baseline), Some(baseline_samples), Some(energy)) =
                (row.baseline_energy_joules, row.baseline_samples, row.energy_joules)
            else {
                continue;
            };
            let done = row.samples.unwrap_or(0.0);
            samples += done;
            let kind = kind_of(row, &changes);
            let joules = baseline - energy - per_sample * (baseline_samples - done);
            let part = &mut parts[kind as usize];
            part.windows += usize::from(joules != 0.0);
            if kind != SavingPartKind::Other {
                part.joules += joules;
                named += joules;
            }
        }
        // The remainder, so that all parts add up to the report's figure.
        parts[SavingPartKind::Other as usize].joules = saving - named;
        let baseline_joules = per_sample * samples;
        let least = LEAST_PART * baseline_joules.abs();
        let parts = parts.into_iter().filter(|part| part.joules.abs() > least).collect();
        Some(Self { baseline_joules, parts, actual_joules: baseline_joules - saving })
    }
}

/// A change that was made.
struct AppliedChange<'a> {
    from: EventTime,
    before: &'a Layout,
    layout: &'a Layout,
    is_hold_out: bool,
    /// Time at which it was taken back, by a revert or by the cluster.
    taken_back: Option<EventTime>,
    /// The latest such time of this change and of all before it.
    tried_until: EventTime,
}

/// Returns the changes that were made, oldest first.
fn applied_changes(state: &WorkloadState) -> Vec<AppliedChange<'_>> {
    let is_made = |record: &&DecisionRecord| record.decision.action != ControllerAction::Maintain && record.was_applied();
    let mut records: Vec<&DecisionRecord> = state.decisions().filter(is_made).collect();
    records.reverse();
    let mut reverts: BTreeMap<&str, EventTime> = BTreeMap::new();
    for record in &records {
        if let Some(reverted) = reverted_change(record) {
            reverts.insert(reverted, applied_at(record));
        }
    }
    let mut tried_until = EventTime::MIN;
    let mut changes = Vec::with_capacity(records.len());
    for record in records {
        let taken_back = reverts.get(&*record.decision.id).copied().into_iter().chain(rolled_back_at(record)).min();
        tried_until = tried_until.max(taken_back.unwrap_or(EventTime::MIN));
        changes.push(AppliedChange {
            from: applied_at(record),
            before: &record.decision.from,
            layout: &record.decision.to,
            is_hold_out: record.decision.is_hold_out(),
            taken_back,
            tried_until,
        });
    }
    changes
}

/// Returns the id of the change that a decision takes back.
fn reverted_change(record: &DecisionRecord) -> Option<&str> {
    record.decision.concerns.as_deref().filter(|_| record.decision.takes_back())
}

/// Returns the time of the first report that a change was made.
fn applied_at(record: &DecisionRecord) -> EventTime {
    let made = record.actuations.iter().filter(|it| matches!(it.outcome, ActuationOutcome::Applied | ActuationOutcome::Ready));
    made.map(|it| it.time).min().unwrap_or(record.decision.time)
}

fn rolled_back_at(record: &DecisionRecord) -> Option<EventTime> {
    record.actuations.iter().find(|it| it.outcome == ActuationOutcome::RolledBack).map(|it| it.time)
}

/// Returns the kind of a window's part, by the change in force at its end.
fn kind_of(row: &WindowRow, changes: &[AppliedChange<'_>]) -> SavingPartKind {
    if row.restarted {
        return SavingPartKind::Restarts;
    }
    let made = &changes[..changes.partition_point(|change| change.from < row.window_end)];
    if made.last().is_some_and(|change| row.window_start < change.tried_until) {
        return SavingPartKind::TakenBack;
    }
    let in_force = made.iter().rev().find(|change| change.taken_back.is_none());
    let (Some(first), Some(change)) = (made.first(), in_force) else { return SavingPartKind::Other };
    if change.is_hold_out {
        SavingPartKind::HoldOuts
    } else if without_limits(change.layout) == without_limits(first.before) {
        SavingPartKind::Limits
    } else {
        SavingPartKind::Layouts
    }
}

/// Returns a layout without the settings of its devices.
fn without_limits(layout: &Layout) -> Layout {
    Layout { power_limit_watts: None, sm_clock_mhz: None, ..layout.clone() }
}
