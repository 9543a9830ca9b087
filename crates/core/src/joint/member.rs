//! State that the members of every joint stage share: layouts that are not in force yet, and the decision that waits for a
//! window.

use std::collections::VecDeque;

use eadt_schemas::EventTime;
use eadt_schemas::v1::{Decision, EfficiencyWindow, Workload};
use serde::{Deserialize, Serialize};

/// Layouts, or answers, remembered between two evaluations; of more the oldest are dropped.
pub const MAX_PENDING_LAYOUTS: usize = 64;

/// Layouts of a workload that came after the last evaluation, in the order of their times.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PendingLayouts(VecDeque<Workload>);

impl PendingLayouts {
    /// Takes a layout, whatever its time; of one time the last one counts. Of more than [`MAX_PENDING_LAYOUTS`] the oldest comes
    /// back: it is in force at once.
    pub fn put(&mut self, layout: &Workload) -> Option<Workload> {
        let place = self.0.partition_point(|other| other.time < layout.time);
        match self.0.get_mut(place) {
            Some(same) if same.time == layout.time => *same = layout.clone(),
            _ => self.0.insert(place, layout.clone()),
        }
        if self.0.len() > MAX_PENDING_LAYOUTS { self.0.pop_front() } else { None }
    }

    pub fn newest(&self) -> Option<&Workload> {
        self.0.back()
    }

    /// Takes those of this time and before.
    pub fn take_due(&mut self, time: EventTime) -> Vec<Workload> {
        let due = self.0.partition_point(|layout| layout.time <= time);
        self.0.drain(..due).collect()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }
}

/// One decision for each window of a workload.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PendingDecision {
    /// The last evaluation's decision, which waits for the window that ends with the evaluation.
    waiting: Option<Decision>,
    /// Time of the newest decision that was emitted.
    decided: Option<EventTime>,
}

impl PendingDecision {
    /// Takes an evaluation's decision. It is emitted with its window. If no window is to be expected, a change is emitted at
    /// once, and a decision that changes nothing is dropped.
    pub fn queue_decision(&mut self, decision: Decision, is_awaited: bool) -> Option<Decision> {
        if is_awaited {
            self.waiting = Some(decision);
            return None;
        }
        self.emit_change(decision)
    }

    /// Emits a change; anything else is dropped.
    fn emit_change(&mut self, decision: Decision) -> Option<Decision> {
        if decision.from == decision.to {
            return None;
        }
        self.decided = self.decided.max(Some(decision.time));
        Some(decision)
    }

    /// Returns a change that still waits for its window at the next evaluation.
    pub fn take_overdue(&mut self) -> Option<Decision> {
        let decision = self.waiting.take()?;
        self.emit_change(decision)
    }

    /// Returns the same, but that nothing waits.
    #[must_use]
    pub fn without_waiting(&self) -> Self {
        Self { waiting: None, decided: self.decided }
    }

    /// Returns whether a window that ends then has no decision: its evaluation did not wait for it, and no decision of its time
    /// or later was emitted.
    pub fn has_no_decision_for(&self, end: EventTime) -> bool {
        self.waiting.as_ref().is_none_or(|waiting| waiting.time != end) && self.decided < Some(end)
    }

    /// Returns the decision that a window completes; `missed` if it has none.
    pub fn take_for_window(&mut self, window: &EfficiencyWindow, missed: Option<Decision>) -> Option<Decision> {
        let mut decision = self.waiting.take_if(|waiting| waiting.time == window.window_end).or(missed)?;
        // The evaluation knew the windows before this one; a first one may be the first that is simulated.
        decision.origin = decision.origin.max(window.origin);
        self.decided = self.decided.max(Some(decision.time));
        Some(decision)
    }
}
