//! What is known about one workload, ordered, and what can be asked about it.

use std::collections::{BTreeMap, BTreeSet};

use eadt_schemas::EventTime;
use eadt_schemas::v1::{Actuation, Decision, EfficiencyWindow, Outcome, Validation};

use crate::words::word;
use crate::{MIN_COVERAGE_RATIO, TRIAL_WINDOWS};

/// So far back is looked for usable windows: what was true earlier says little about now.
const LOOKBACK_WINDOWS: usize = 60;

/// Events of one workload; each once, by its id.
#[derive(Debug, Default)]
pub(crate) struct History {
    /// Tumbling windows by their start.
    windows: BTreeMap<EventTime, EfficiencyWindow>,
    decisions: BTreeMap<(EventTime, String), Decision>,
    /// By decision.
    actuations: BTreeMap<String, Vec<Actuation>>,
}

/// What became of a decision.
#[derive(Debug, Clone, Default)]
pub(crate) struct Became {
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
pub(crate) struct Mean {
    pub windows: usize,
    pub joules_per_sample: Option<f64>,
    pub samples_per_second: Option<f64>,
    pub power_watts: Option<f64>,
}

/// Whether a window says how efficient a settled layout is.
pub fn usable(window: &EfficiencyWindow) -> bool {
    window.energy_coverage_ratio >= MIN_COVERAGE_RATIO
        && window.progress_coverage_ratio >= MIN_COVERAGE_RATIO
        && !window.restarted
        && !window.gap
        && window.energy_per_sample().is_some()
}

pub(crate) fn mean<'a>(windows: impl IntoIterator<Item = &'a EfficiencyWindow>) -> Mean {
    let (mut count, mut joules, mut samples, mut rates, mut watts) = (0, 0.0, 0.0, Vec::new(), Vec::new());
    for window in windows {
        count += 1;
        joules += window.energy_of_progress().unwrap_or(f64::NAN);
        samples += window.samples.unwrap_or(f64::NAN);
        rates.extend(window.samples_per_second);
        watts.extend(window.mean_power_watts);
    }
    let average = |values: &[f64]| (values.len() == count && count > 0).then(|| values.iter().sum::<f64>() / values.len() as f64);
    Mean {
        windows: count,
        joules_per_sample: Some(joules / samples).filter(|value| value.is_finite()),
        samples_per_second: average(&rates),
        power_watts: average(&watts),
    }
}

impl History {
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

    /// Windows that had ended at `time`, the latest first.
    pub(crate) fn ended_at(&self, time: EventTime) -> impl Iterator<Item = &EfficiencyWindow> {
        self.windows.range(..time).rev().map(|(_, window)| window).filter(move |window| window.window_end <= time)
    }

    /// The window that follows without a hole.
    pub(crate) fn next(&self, window: &EfficiencyWindow) -> Option<&EfficiencyWindow> {
        self.windows.get(&window.window_end)
    }

    /// The decision made at a window's end; of several the one that wants a change.
    pub(crate) fn decided_at(&self, time: EventTime) -> Option<&Decision> {
        let at_time = self.decisions.range((time, String::new())..).take_while(|((at, _), _)| *at == time);
        at_time.map(|(_, decision)| decision).max_by_key(|decision| decision.from != decision.to)
    }

    pub(crate) fn became(&self, decision: &str) -> Became {
        let mut became = Became::default();
        for actuation in self.actuations.get(decision).into_iter().flatten() {
            became.outcome = Some(word(actuation.outcome));
            became.reason = Some(actuation.reason.clone()).filter(|reason| !reason.is_empty());
            match actuation.outcome {
                Outcome::Applied => {
                    became.applied = Some(actuation.time);
                    became.generation = Some(actuation.generation);
                }
                Outcome::Ready => {
                    became.ready = Some(actuation.time);
                    became.downtime_seconds = actuation.downtime_seconds;
                }
                Outcome::RolledBack => became.rolled_back = Some(actuation.time),
                Outcome::Refused | Outcome::Recommended | Outcome::Failed => {}
            }
        }
        became
    }

    /// Changes that were written before `time`.
    pub(crate) fn applied_before(&self, time: EventTime) -> impl Iterator<Item = EventTime> {
        let all = self.actuations.values().flatten();
        all.filter(move |a| a.outcome == Outcome::Applied && a.time < time).map(|actuation| actuation.time)
    }

    /// The settled layout that a decision started from.
    pub(crate) fn before(&self, decision: &Decision) -> Mean {
        let same = |window: &&EfficiencyWindow| decision.generation.is_none() || window.generation == decision.generation;
        let recent = self.ended_at(decision.time).take(LOOKBACK_WINDOWS).filter(same);
        mean(recent.filter(|window| usable(window)).take(TRIAL_WINDOWS))
    }

    /// The settled layout that a decision led to: the first usable windows that begin after readiness, one window of warm-up left out.
    pub(crate) fn after(&self, became: &Became) -> Mean {
        let (Some(ready), Some(generation), None) = (became.ready, became.generation, became.rolled_back) else {
            return Mean::default();
        };
        let later = self.windows.range(ready..).map(|(_, window)| window);
        let settled = later.skip(1).take_while(|window| window.generation == Some(generation));
        mean(settled.take(LOOKBACK_WINDOWS).filter(|window| usable(window)).take(TRIAL_WINDOWS))
    }

    /// Answers to decisions that are not there.
    pub(crate) fn unasked(&self) -> u64 {
        let known: BTreeSet<&str> = self.decisions.values().map(|decision| decision.id.as_str()).collect();
        let unasked = self.actuations.iter().filter(|(id, _)| !known.contains(id.as_str()));
        unasked.map(|(_, answers)| answers.len() as u64).sum()
    }

    /// What the controller itself found out about a change of its own.
    pub(crate) fn judged(&self, decision: &str) -> Option<bool> {
        let concerning = self.decisions.values().filter(|later| later.concerns.as_deref() == Some(decision));
        concerning.into_iter().find_map(|later| match later.validation {
            Validation::Kept => Some(true),
            Validation::Failed => Some(false),
            Validation::None | Validation::Pending => None,
        })
    }
}
