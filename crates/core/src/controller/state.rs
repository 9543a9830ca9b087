use eadt_schemas::EventTime;
use eadt_schemas::v1::{ControllerAction, Layout};
use serde::{Deserialize, Serialize};

use super::history::RecentWindows;
use super::seek::SeekState;
use super::training::JobKnobState;
use super::trial::{ChangeTrial, FailedChange, ProposedChange};

/// State of a workload's controller between windows; part of the processor's state.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ControllerState {
    /// Usable windows of the present layout, oldest first.
    pub(super) recent: RecentWindows,
    /// Decided changes without a known outcome; at most as many as fit into an expiry.
    pub(super) proposals: Vec<ProposedChange>,
    /// The applied change that is being judged.
    pub(super) trial: Option<ChangeTrial>,
    /// The change that failed and is not yet taken back.
    pub(super) unreverted: Option<FailedChange>,
    pub(super) hold: Option<HoldDown>,
    /// Duration of the next hold, in seconds; `None` for that of the settings.
    pub(super) next_hold_seconds: Option<f64>,
    pub(super) tabu: Vec<TabuAction>,
    /// Restarts of the last 24 h that decisions caused, oldest first.
    pub(super) restarts: Vec<Restart>,
    /// Savings of kept changes, by action.
    pub(super) savings: Vec<ActionSaving>,
    /// Duration of the last measured rollout, in seconds.
    pub(super) rollout_seconds: Option<f64>,
    /// Time of the last evaluation by `matrix-literal`.
    #[serde(rename = "looked")]
    pub(super) last_evaluation: Option<EventTime>,
    /// Measurements of `power-cap`, `frequency` and `hybrid`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) seek: Option<Box<SeekState>>,
    /// State of `layers` and `precision` for the job's own knobs, also within `hybrid`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) training: Option<Box<JobKnobState>>,
}

/// A pause: nothing is tried before `until`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct HoldDown {
    pub until: EventTime,
    pub why: String,
}

/// An action that is not tried again from this layout before `until`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct TabuAction {
    pub from: Layout,
    pub action: ControllerAction,
    pub until: EventTime,
    pub why: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Restart {
    pub time: EventTime,
    pub decision: String,
}

/// Mean saving of the kept changes by one action.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct ActionSaving {
    pub action: ControllerAction,
    pub ratio: f64,
    pub count: u32,
}

const DAY_SECONDS: f64 = 86_400.0;

impl ControllerState {
    /// Forgets what time has made irrelevant.
    pub(super) fn forget_before(&mut self, now: EventTime) {
        self.restarts.retain(|restart| now.seconds_since(restart.time) < DAY_SECONDS);
        self.tabu.retain(|tabu| tabu.until > now);
        self.proposals.retain(|proposal| proposal.expires > now);
        if self.hold.as_ref().is_some_and(|hold| hold.until <= now) {
            self.hold = None;
        }
    }

    /// Holds for the present hold-down time and doubles the next one.
    pub(super) fn hold_down(&mut self, now: EventTime, why: &str, first_seconds: f64, max_seconds: f64) -> EventTime {
        let seconds = self.next_hold_seconds.unwrap_or(first_seconds).clamp(first_seconds, max_seconds);
        self.next_hold_seconds = Some((seconds * 2.0).min(max_seconds));
        let until = now.plus_seconds(seconds);
        self.hold = Some(HoldDown { until, why: why.into() });
        until
    }

    pub(super) fn set_tabu(&mut self, from: &Layout, action: ControllerAction, until: EventTime, why: &str) {
        self.tabu.retain(|tabu| !(tabu.action == action && tabu.from == *from));
        self.tabu.push(TabuAction { from: from.clone(), action, until, why: why.into() });
    }

    pub(super) fn find_tabu(&self, from: &Layout, action: ControllerAction) -> Option<&TabuAction> {
        self.tabu.iter().find(|tabu| tabu.action == action && tabu.from == *from)
    }

    /// Counts a restart once per decision and `step` (the change itself, or its roll-back).
    pub(super) fn count_restart(&mut self, time: EventTime, decision: String) {
        if !self.restarts.iter().any(|restart| restart.decision == decision) {
            self.restarts.push(Restart { time, decision });
        }
    }

    pub(super) fn mean_saving(&self, action: ControllerAction) -> Option<f64> {
        self.savings.iter().find(|saving| saving.action == action).map(|saving| saving.ratio)
    }

    pub(super) fn learn_saving(&mut self, action: ControllerAction, ratio: f64) {
        match self.savings.iter_mut().find(|saving| saving.action == action) {
            Some(saving) => {
                saving.count += 1;
                saving.ratio += (ratio - saving.ratio) / f64::from(saving.count);
            }
            None => self.savings.push(ActionSaving { action, ratio, count: 1 }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_action_saved_is_the_mean_of_its_own() {
        let mut state = ControllerState::default();
        for ratio in [0.1, 0.2, 0.0] {
            state.learn_saving(ControllerAction::Decrease, ratio);
        }
        state.learn_saving(ControllerAction::Increase, 0.3);
        let saved = |action| state.mean_saving(action).map(|ratio| (ratio * 1e9).round() / 1e9);
        assert_eq!(
            [ControllerAction::Decrease, ControllerAction::Increase, ControllerAction::ScaleReplicas].map(saved),
            [Some(0.1), Some(0.3), None]
        );
    }

    #[test]
    fn a_restart_counts_for_a_day() {
        let at = EventTime::from_seconds;
        let mut state = ControllerState::default();
        for seconds in [0.0, 1.0] {
            state.count_restart(at(seconds), seconds.to_string());
        }
        state.forget_before(at(86_399.0));
        assert_eq!(state.restarts.len(), 2);
        state.forget_before(at(86_400.0));
        assert_eq!(state.restarts.iter().map(|restart| restart.time).collect::<Vec<_>>(), [at(1.0)]);
    }

    #[test]
    fn an_action_is_forbidden_from_one_layout_by_its_last_reason() {
        let mut state = ControllerState::default();
        let [few, many] = [3, 6].map(|replicas| Layout { replicas: Some(replicas), ..Layout::default() });
        let until = EventTime::from_seconds;
        for (from, action, seconds, why) in [
            (&few, ControllerAction::Decrease, 1.0, "first"),
            (&few, ControllerAction::Increase, 2.0, "another action"),
            (&many, ControllerAction::Decrease, 3.0, "another layout"),
            (&few, ControllerAction::Decrease, 4.0, "last"),
        ] {
            state.set_tabu(from, action, until(seconds), why);
        }
        let why = |from, action| state.find_tabu(from, action).map(|tabu| (tabu.until, tabu.why.as_str()));
        assert_eq!(state.tabu.len(), 3);
        assert_eq!(why(&few, ControllerAction::Decrease), Some((until(4.0), "last")));
        assert_eq!(why(&few, ControllerAction::Increase), Some((until(2.0), "another action")));
        assert_eq!(why(&many, ControllerAction::Decrease), Some((until(3.0), "another layout")));
        assert_eq!(why(&many, ControllerAction::Increase), None);
    }
}
