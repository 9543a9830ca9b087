//! Events of one workload in order, and queries on them.

use std::collections::{BTreeMap, BTreeSet};

use eadt_schemas::EventTime;
use eadt_schemas::v1::{Actuation, ActuationOutcome, ChangeValidation, Decision, EfficiencyWindow};

use crate::words::word;
use crate::{MIN_COVERAGE_RATIO, TRIAL_WINDOWS};

/// Number of past windows that are searched for usable ones: older ones are little evidence for the present.
const LOOKBACK_WINDOWS: usize = 60;

/// Events of one workload; each once, by its id.
#[derive(Debug, Default)]
pub(crate) struct WorkloadHistory {
    /// Tumbling windows by their start.
    windows: BTreeMap<EventTime, EfficiencyWindow>,
    decisions: BTreeMap<(EventTime, String), Decision>,
    /// Actuations by decision.
    actuations: BTreeMap<String, Vec<Actuation>>,
}

/// Outcome of a decision.
#[derive(Debug, Clone, Default)]
pub(crate) struct OutcomeSummary {
    pub outcome: Option<String>,
    pub reason: Option<String>,
    pub applied: Option<EventTime>,
    pub ready: Option<EventTime>,
    pub rolled_back: Option<EventTime>,
    pub downtime_seconds: Option<f64>,
    /// Generation that it made.
    pub generation: Option<u64>,
}

/// Means over several windows: sums over sums, not means of ratios.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct WindowMeans {
    pub windows: usize,
    pub joules_per_sample: Option<f64>,
    pub samples_per_second: Option<f64>,
    pub power_watts: Option<f64>,
}

/// Returns whether a window shows how efficient a settled layout is.
pub fn usable(window: &EfficiencyWindow) -> bool {
    window.energy_coverage_ratio >= MIN_COVERAGE_RATIO
        && window.progress_coverage_ratio >= MIN_COVERAGE_RATIO
        && !window.restarted
        && !window.gap
        && window.energy_per_sample().is_some()
}

pub(crate) fn mean<'a>(windows: impl IntoIterator<Item = &'a EfficiencyWindow>) -> WindowMeans {
    let (mut count, mut joules, mut samples, mut rates, mut watts) = (0, 0.0, 0.0, Vec::new(), Vec::new());
    for window in windows {
        count += 1;
        joules += window.energy_of_progress().unwrap_or(f64::NAN);
        samples += window.samples.unwrap_or(f64::NAN);
        rates.extend(window.samples_per_second);
        watts.extend(window.mean_power_watts);
    }
    let average = |values: &[f64]| (values.len() == count && count > 0).then(|| values.iter().sum::<f64>() / values.len() as f64);
    WindowMeans {
        windows: count,
        joules_per_sample: Some(joules / samples).filter(|value| value.is_finite()),
        samples_per_second: average(&rates),
        power_watts: average(&watts),
    }
}

impl WorkloadHistory {
    pub(crate) fn window(&mut self, window: EfficiencyWindow) -> bool {
        self.windows.insert(window.window_start, window).is_none()
    }

    pub(crate) fn decision(&mut self, decision: Decision) -> bool {
        self.decisions.insert((decision.time, decision.id.clone()), decision).is_none()
    }

    pub(crate) fn actuation(&mut self, actuation: Actuation) -> bool {
        let of_decision = self.actuations.entry(actuation.decision_id.clone()).or_default();
        let new = of_decision.iter().all(|known| known.id != actuation.id);
        if new {
            of_decision.push(actuation);
            of_decision.sort_by(|a, b| (a.time, &a.id).cmp(&(b.time, &b.id)));
        }
        new
    }

    pub(crate) fn windows(&self) -> impl DoubleEndedIterator<Item = &EfficiencyWindow> {
        self.windows.values()
    }

    pub(crate) fn decisions(&self) -> impl Iterator<Item = &Decision> {
        self.decisions.values()
    }

    /// Returns windows that had ended at `time`, the latest first.
    pub(crate) fn ended_at(&self, time: EventTime) -> impl Iterator<Item = &EfficiencyWindow> {
        self.windows.range(..time).rev().map(|(_, window)| window).filter(move |window| window.window_end <= time)
    }

    /// Returns the window that follows without a hole.
    pub(crate) fn next(&self, window: &EfficiencyWindow) -> Option<&EfficiencyWindow> {
        self.windows.get(&window.window_end)
    }

    /// Returns the decision made at a window's end; of several the one that wants a change.
    pub(crate) fn decided_at(&self, time: EventTime) -> Option<&Decision> {
        let at_time = self.decisions.range((time, String::new())..).take_while(|((at, _), _)| *at == time);
        at_time.map(|(_, decision)| decision).max_by_key(|decision| decision.from != decision.to)
    }

    pub(crate) fn outcome_of(&self, decision: &str) -> OutcomeSummary {
        let mut became = OutcomeSummary::default();
        for actuation in self.actuations.get(decision).into_iter().flatten() {
            became.outcome = Some(word(actuation.outcome));
            became.reason = Some(actuation.reason.clone()).filter(|reason| !reason.is_empty());
            match actuation.outcome {
                ActuationOutcome::Applied => {
                    became.applied = Some(actuation.time);
                    became.generation = Some(actuation.generation);
                }
                ActuationOutcome::Ready => {
                    became.ready = Some(actuation.time);
                    became.downtime_seconds = actuation.downtime_seconds;
                }
                ActuationOutcome::RolledBack => became.rolled_back = Some(actuation.time),
                ActuationOutcome::Refused | ActuationOutcome::Recommended | ActuationOutcome::Failed => {}
            }
        }
        became
    }

    /// Changes that were written before `time`.
    pub(crate) fn applied_before(&self, time: EventTime) -> impl Iterator<Item = EventTime> {
        let all = self.actuations.values().flatten();
        all.filter(move |a| a.outcome == ActuationOutcome::Applied && a.time < time).map(|actuation| actuation.time)
    }

    /// Returns the settled layout that a decision started from.
    pub(crate) fn before(&self, decision: &Decision) -> WindowMeans {
        let same = |window: &&EfficiencyWindow| decision.generation.is_none() || window.generation == decision.generation;
        let recent = self.ended_at(decision.time).take(LOOKBACK_WINDOWS).filter(same);
        mean(recent.filter(|window| usable(window)).take(TRIAL_WINDOWS))
    }

    /// Returns the settled layout that a decision led to: the first usable windows that begin after readiness, one window of
    /// warm-up left out.
    pub(crate) fn after(&self, became: &OutcomeSummary) -> WindowMeans {
        let (Some(ready), Some(generation), None) = (became.ready, became.generation, became.rolled_back) else {
            return WindowMeans::default();
        };
        let later = self.windows.range(ready..).map(|(_, window)| window);
        let settled = later.skip(1).take_while(|window| window.generation == Some(generation));
        mean(settled.take(LOOKBACK_WINDOWS).filter(|window| usable(window)).take(TRIAL_WINDOWS))
    }

    /// Answers to decisions that are not there.
    pub(crate) fn actuations_without_decision(&self) -> u64 {
        let known: BTreeSet<&str> = self.decisions.values().map(|decision| decision.id.as_str()).collect();
        let unasked = self.actuations.iter().filter(|(id, _)| !known.contains(id.as_str()));
        unasked.map(|(_, answers)| answers.len() as u64).sum()
    }

    /// Returns the controller's own verdict on its change; `None` if there is none.
    pub(crate) fn validation_verdict(&self, decision: &str) -> Option<bool> {
        let concerning = self.decisions.values().filter(|later| later.concerns.as_deref() == Some(decision));
        concerning.into_iter().find_map(|later| match later.validation {
            ChangeValidation::Kept => Some(true),
            ChangeValidation::Failed => Some(false),
            ChangeValidation::None | ChangeValidation::Pending => None,
        })
    }
}
