//! States of workloads and outcomes of decisions: the same in terminals and on the web page.

use std::collections::BTreeMap;

use eadt_schemas::EventTime;
use eadt_schemas::v1::{
    Actuation, ActuationOutcome, ChangeValidation, ControllerAction, Decision, EfficiencyWindow, UpdateMode, Workload,
    refusal_reason,
};
use serde::Serialize;

use crate::liveness::{PresentMoment, SampleInterval, WindowTimes};

/// Returns whether a decision changes something, or judges a change. The others only maintain.
pub const fn is_change_or_verdict(action: ControllerAction, validation: ChangeValidation) -> bool {
    !matches!(action, ControllerAction::Maintain) || matches!(validation, ChangeValidation::Kept | ChangeValidation::Failed)
}

/// Name of the evidence that only hold-outs have.
pub const HOLD_OUT: &str = "hold_out";

/// Returns the verdict that an action follows from. A hold-out is due by time: it follows from none, whatever it judges.
pub const fn verdict_of_action(validation: ChangeValidation, is_hold_out: bool) -> ChangeValidation {
    if is_hold_out { ChangeValidation::None } else { validation }
}

/// Returns whether an action takes back a change that failed. `verdict` is that of [`verdict_of_action`]. A revert without a
/// failure only removes a limit, or restores a setting that a measurement changed.
pub const fn takes_back(action: ControllerAction, verdict: ChangeValidation) -> bool {
    matches!(action, ControllerAction::Revert) && matches!(verdict, ChangeValidation::Failed)
}

/// Returns whether a decision takes back a change that failed.
pub fn decision_takes_back(decision: &Decision) -> bool {
    takes_back(decision.action, verdict_of_action(decision.validation, decision.evidence.contains_key(HOLD_OUT)))
}

/// The last reported outcome of a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeFate {
    /// Written; its rollout is in progress.
    Applied,
    Ready,
    /// Written as a recommendation; nothing was changed.
    Recommended,
    /// Refused by the mode or the pause that the user set.
    NotAllowed,
    /// Refused for another reason.
    Refused,
    RolledBack,
    Failed,
}

impl ChangeFate {
    /// Returns the fate that an outcome and its reason mean.
    pub fn new(outcome: ActuationOutcome, reason: &str) -> Self {
        match outcome {
            ActuationOutcome::Applied => Self::Applied,
            ActuationOutcome::Ready => Self::Ready,
            ActuationOutcome::Recommended => Self::Recommended,
            ActuationOutcome::Refused if refusal_reason::is_by_policy(reason) => Self::NotAllowed,
            ActuationOutcome::Refused => Self::Refused,
            ActuationOutcome::RolledBack => Self::RolledBack,
            ActuationOutcome::Failed => Self::Failed,
        }
    }

    /// Returns whether the change was not made.
    pub const fn is_not_made(self) -> bool {
        matches!(self, Self::Recommended | Self::NotAllowed | Self::Refused)
    }

    /// Returns whether the change was not made because the user did not want it made.
    pub const fn is_as_asked(self) -> bool {
        matches!(self, Self::Recommended | Self::NotAllowed)
    }

    /// Returns the outcome as events name it.
    pub const fn outcome(self) -> &'static str {
        match self {
            Self::Applied => "applied",
            Self::Ready => "ready",
            Self::Recommended => "recommended",
            Self::NotAllowed | Self::Refused => "refused",
            Self::RolledBack => "rolled_back",
            Self::Failed => "failed",
        }
    }

    /// Returns the note for a change that was not made; `None` if it was made, or is being made.
    pub const fn note(self) -> Option<&'static str> {
        match self {
            Self::Applied | Self::Ready => None,
            Self::Recommended => Some("recommended"),
            Self::NotAllowed => Some("not made"),
            Self::Refused => Some("refused"),
            Self::RolledBack => Some("rolled back"),
            Self::Failed => Some("failed"),
        }
    }
}

impl From<&Actuation> for ChangeFate {
    fn from(actuation: &Actuation) -> Self {
        Self::new(actuation.outcome, &actuation.reason)
    }
}

/// The fates of decisions by their ids, from actuations in the order of their log.
#[derive(Debug, Clone, Default)]
pub struct ChangeFates(BTreeMap<String, (EventTime, ChangeFate)>);

impl ChangeFates {
    /// Takes an actuation: the last one of a decision counts.
    pub fn add(&mut self, actuation: &Actuation) {
        self.0.insert(actuation.decision_id.clone(), (actuation.time, ChangeFate::from(actuation)));
    }

    /// Returns the outcome of a decision; `None` if no actuator has reported one.
    pub fn get(&self, decision_id: &str) -> Option<ChangeFate> {
        self.0.get(decision_id).map(|(_, fate)| *fate)
    }

    /// Drops the oldest if there are more than twice as many as `keep`.
    pub fn keep_newest(&mut self, keep: usize) {
        if self.0.len() > 2 * keep {
            let mut times: Vec<EventTime> = self.0.values().map(|(time, _)| *time).collect();
            times.sort_unstable();
            let oldest = times[times.len() - keep];
            self.0.retain(|_, (time, _)| *time >= oldest);
        }
    }
}

/// Shortest rest of a window that lies outside of a run, in seconds: sums of seconds are not exact.
const SHORTEST_REST_SECONDS: f64 = 1e-3;

/// Returns the seconds of a window that lie outside of its run; 0 if the job has reported neither begin nor end, or if the rest is
/// a rounding error.
pub fn outside_run_seconds(window: &EfficiencyWindow) -> f64 {
    let rest = window.seconds() - window.run_seconds;
    if window.run_declared && rest > SHORTEST_REST_SECONDS { rest } else { 0.0 }
}

/// Returns whether a window that lies partly in a run shows that the run has ended in it: nothing of the workload was observed
/// up to the window's end, and the run is no longer than the observed time.
///
/// A run that goes on reaches to the end of the window, and its begin is observed. It looks the same only if everything of the
/// workload was silent at the window's end for no longer than its devices were observed before the run. Its next window corrects that.
fn ended_when_observed(window: &EfficiencyWindow) -> bool {
    let Some((from, to)) = window.observed_start.zip(window.observed_end) else { return false };
    to < window.window_end && window.run_seconds <= to.seconds_since(from) + SHORTEST_REST_SECONDS
}

/// Whether a job's run has ended, by its windows in order of time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RunProgress {
    has_begun: bool,
    ends_in_newest: bool,
    has_ended: bool,
    interval: SampleInterval,
}

impl RunProgress {
    /// Takes the newest window. A window before the run lies outside of it, too: one within it comes first. After its end, a window
    /// that lies partly in a run is one in which the job was started again. A window in which a run begins may be that of its end,
    /// too: what was observed shows it.
    pub fn add(&mut self, window: &EfficiencyWindow) {
        let is_within = window.run_declared && window.run_seconds > 0.0;
        let began_before = self.has_begun && !self.is_over() && !window.has_restart();
        let ends = began_before || ended_when_observed(window);
        self.ends_in_newest = is_within && outside_run_seconds(window) > 0.0 && ends;
        self.has_begun |= is_within;
        self.has_ended = self.has_begun && window.run_declared && !is_within;
        self.interval.add(window);
    }

    /// Returns whether the job has reported its begin, and a window lies in its run.
    pub const fn has_begun(self) -> bool {
        self.has_begun
    }

    /// Returns whether the figures of the newest window are of the present: the job has not reported its end, the next window is
    /// not overdue, and something was observed at the window's end. Power, speed and J/sample now follow from it everywhere. A job
    /// that ends without a report of it leaves by it, too.
    pub fn runs_now(self, newest: &WindowTimes, moment: PresentMoment) -> bool {
        !self.is_over() && self.is_present(newest, moment)
    }

    /// Returns whether the next window is not overdue, and something was observed at the end of the newest one, of its run or after it.
    pub fn is_present(self, newest: &WindowTimes, moment: PresentMoment) -> bool {
        moment.has(&newest.sampled_each(self.interval))
    }

    /// Returns whether the job has reported its end, and the newest window lies after it.
    pub const fn has_ended(self) -> bool {
        self.has_ended
    }

    /// Returns whether the job has reported its end, before or within the newest window. If it has ended within, no later window
    /// may come.
    pub const fn is_over(self) -> bool {
        self.has_ended || self.ends_in_newest
    }
}

/// Returns whether a workload's policy lets an actuator make or recommend a change.
pub fn may_be_changed(declared: &Workload) -> bool {
    matches!(declared.mode, UpdateMode::Recommend | UpdateMode::Enforce) && !declared.paused
}

/// A workload's newest window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WindowPresence {
    /// None has closed yet.
    None,
    /// It ended long before the newest window of all.
    Silent,
    Live {
        restarted: bool,
    },
    /// Its run, or the record, has ended.
    Ended,
}

/// Progress of the newest changes of a workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ChangeProgress {
    /// Fate of the decision that was answered last.
    pub last_fate: Option<ChangeFate>,
    /// The newest decision waits for the effect of a change.
    pub is_pending: bool,
    /// The newest change, or verdict on one, takes a change back, and was made.
    pub is_reverted: bool,
    /// No actuator has answered the newest change, and the workload's policy lets one.
    pub is_unanswered: bool,
}

/// Status of a workload, in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkloadStatus {
    /// The last thing that was decided is to revert a change.
    Reverted,
    /// The cluster refused the decision.
    Refused,
    /// A change was decided, and is not in force yet.
    RollingOut,
    Restarted,
    Validating,
    Paused,
    Steady,
    /// No window has closed yet.
    Waiting,
    /// Its last window ended long before the newest one.
    Silent,
    /// Its run, or the record, has ended.
    Ended,
}

impl WorkloadStatus {
    /// Each, by its number.
    pub const ALL: [Self; 10] = [
        Self::Reverted,
        Self::Refused,
        Self::RollingOut,
        Self::Restarted,
        Self::Validating,
        Self::Paused,
        Self::Steady,
        Self::Waiting,
        Self::Silent,
        Self::Ended,
    ];

    /// Returns the state of a workload. A change that is prevented by the user's mode or pause is no fault, and does not change
    /// the state.
    pub fn of(window: WindowPresence, is_paused: bool, changes: ChangeProgress) -> Self {
        let restarted = match window {
            WindowPresence::None => return Self::Waiting,
            WindowPresence::Silent => return Self::Silent,
            WindowPresence::Ended => return Self::Ended,
            WindowPresence::Live { restarted } => restarted,
        };
        match changes.last_fate {
            Some(ChangeFate::Applied) => return Self::RollingOut,
            _ if is_paused => return Self::Paused,
            Some(ChangeFate::Refused | ChangeFate::Failed | ChangeFate::RolledBack) => return Self::Refused,
            _ => {}
        }
        // A change that was not made has no effect to wait for.
        let is_made = !changes.last_fate.is_some_and(ChangeFate::is_not_made) && !changes.is_unanswered;
        match (restarted, changes.is_pending && is_made, changes.is_reverted, changes.is_unanswered) {
            (true, ..) => Self::Restarted,
            (_, true, ..) => Self::Validating,
            (_, _, true, _) => Self::Reverted,
            (.., true) => Self::RollingOut,
            _ => Self::Steady,
        }
    }

    /// Returns whether a user should check it.
    pub fn needs_attention(self) -> bool {
        matches!(self, Self::Reverted | Self::Refused)
    }

    /// Returns the state for a terminal.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Reverted => "reverted",
            Self::Refused => "refused",
            Self::RollingOut => "rolling out",
            Self::Restarted => "restarted",
            Self::Validating => "validating",
            Self::Paused => "paused",
            Self::Steady => "steady",
            Self::Waiting => "waiting",
            Self::Silent => "silent",
            Self::Ended => "ended",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_that_the_user_does_not_want_made_is_no_fault() {
        use ActuationOutcome::{Applied, Failed, Ready, Recommended, Refused, RolledBack};
        let live = WindowPresence::Live { restarted: false };
        let state = |outcome: Option<(ActuationOutcome, &str)>, is_paused: bool, is_pending: bool| {
            let last_fate = outcome.map(|(outcome, reason)| ChangeFate::new(outcome, reason));
            WorkloadStatus::of(live, is_paused, ChangeProgress { last_fate, is_pending, ..ChangeProgress::default() }).word()
        };
        for (outcome, is_paused, is_pending, word) in [
            (None, false, false, "steady"),
            (None, false, true, "validating"),
            (None, true, true, "paused"),
            (Some((Applied, "")), false, false, "rolling out"),
            (Some((Applied, "")), true, false, "rolling out"),
            (Some((Ready, "")), false, true, "validating"),
            (Some((Recommended, "")), false, true, "steady"),
            (Some((Recommended, "")), true, true, "paused"),
            (Some((Refused, refusal_reason::OBSERVED)), false, true, "steady"),
            (Some((Refused, refusal_reason::PAUSED)), true, false, "paused"),
            // Resumed, and nothing was decided since then.
            (Some((Refused, refusal_reason::PAUSED)), false, false, "steady"),
            (Some((Refused, "a quota")), false, true, "refused"),
            (Some((Refused, "a quota")), true, false, "paused"),
            (Some((RolledBack, "not ready")), false, false, "refused"),
            (Some((Failed, "")), false, false, "refused"),
        ] {
            assert_eq!(state(outcome, is_paused, is_pending), word, "{outcome:?} {is_paused} {is_pending}");
        }
        let reverted = ChangeProgress { is_reverted: true, ..ChangeProgress::default() };
        assert_eq!(WorkloadStatus::of(live, false, reverted), WorkloadStatus::Reverted);
        assert_eq!(WorkloadStatus::of(live, true, reverted), WorkloadStatus::Paused);
        for (window, word) in
            [(WindowPresence::None, "waiting"), (WindowPresence::Silent, "silent"), (WindowPresence::Ended, "ended")]
        {
            assert_eq!(WorkloadStatus::of(window, true, reverted).word(), word);
        }
    }

    #[test]
    fn a_change_that_no_actuator_answered_is_neither_steady_nor_checked() {
        let state = |last_fate, is_pending, is_reverted| {
            let changes = ChangeProgress { last_fate, is_pending, is_reverted, is_unanswered: true };
            WorkloadStatus::of(WindowPresence::Live { restarted: false }, false, changes).word()
        };
        assert_eq!(state(None, false, false), "rolling out");
        // Fates are of decisions before it.
        assert_eq!(state(Some(ChangeFate::Ready), true, false), "rolling out");
        assert_eq!(state(Some(ChangeFate::Recommended), true, false), "rolling out");
        assert_eq!(state(None, false, true), "reverted");
    }

    #[test]
    fn a_run_is_over_with_the_window_that_it_ends_in() {
        let ended = |windows: &[(bool, f64)]| {
            let mut run = RunProgress::default();
            for (minute, (run_declared, run_seconds)) in (0..).zip(windows) {
                run.add(&EfficiencyWindow {
                    window_start: EventTime::from_micros(minute * 60_000_000),
                    window_end: EventTime::from_micros((minute + 1) * 60_000_000),
                    run_declared: *run_declared,
                    run_seconds: *run_seconds,
                    ..EfficiencyWindow::default()
                });
            }
            (run.is_over(), run.has_ended())
        };
        // Closed before the job reported, before its run, its first moments, within it, its last moments, after it.
        let windows = [(false, 60.0), (true, 0.0), (true, 30.0), (true, 60.0), (true, 0.5), (true, 0.0)];
        let (is_over, has_ended): (Vec<bool>, Vec<bool>) = (1..=6).map(|count| ended(&windows[..count])).unzip();
        assert_eq!(is_over, [false, false, false, false, true, true]);
        assert_eq!(has_ended, [false, false, false, false, false, true]);
        assert_eq!(ended(&[(true, 60.0), (true, 0.0), (true, 60.0)]), (false, false), "it runs again");
        // Started again within a window, after one that it ended in, and after one that lies outside.
        assert_eq!(ended(&[(true, 60.0), (true, 30.0), (true, 20.0)]), (false, false));
        assert_eq!(ended(&[(true, 60.0), (true, 30.0), (true, 0.0), (true, 20.0)]), (false, false));
        assert_eq!(ended(&[(true, 60.0), (true, 30.0), (true, 20.0), (true, 10.0)]), (true, false), "and ended again");
    }

    #[test]
    fn a_job_that_ends_without_a_report_of_it_runs_no_more() {
        let at = EventTime::from_seconds;
        let window = |minute: f64, observed: f64| EfficiencyWindow {
            window_start: at(60.0 * minute),
            window_end: at(60.0 * minute + 60.0),
            run_seconds: 60.0,
            observed_start: Some(at(60.0 * minute)),
            observed_end: Some(at(60.0 * minute + observed)),
            ..EfficiencyWindow::default()
        };
        let runs = |newest: EfficiencyWindow, minute: f64| {
            let mut run = RunProgress::default();
            run.add(&newest);
            let moment = PresentMoment { now: at(60.0 * minute), record_end: None };
            (run.is_over(), run.runs_now(&WindowTimes::from(&newest), moment))
        };
        for run_declared in [false, true] {
            let of = |newest| EfficiencyWindow { run_declared, ..newest };
            assert_eq!(runs(of(window(0.0, 60.0)), 1.0), (false, true));
            assert_eq!(runs(of(window(0.0, 60.0)), 4.0), (false, true), "its next window may be open");
            assert_eq!(runs(of(window(0.0, 60.0)), 5.0), (false, false), "its next window is overdue");
            assert_eq!(runs(of(window(0.0, 51.0)), 1.0), (false, false), "nothing of it was there at the end");
        }
    }

    #[test]
    fn a_job_that_is_sampled_seldom_runs_at_the_end_of_a_record() {
        let at = EventTime::from_seconds;
        // Samples of each window, GPUs, and seconds from the last sample to the end of the record.
        for (what, events, gpus, seconds, expected) in [
            ("each 10 s", [6, 6, 6, 6], 1, 25.0, true),
            ("each 10 s, and then no more", [6, 6, 6, 6], 1, 40.0, false),
            ("each minute", [1, 1, 1, 1], 1, 40.0, true),
            ("each minute, of two GPUs", [2, 2, 2, 2], 2, 60.0, true),
            ("each minute, with jitter", [1, 2, 0, 1], 1, 60.0, true),
            ("each minute, and then no more", [1, 1, 1, 1], 1, 100.0, false),
            ("each two minutes", [1, 0, 1, 0], 1, 115.0, true),
            ("each two minutes, and then no more", [1, 0, 1, 0], 1, 125.0, false),
            ("by an earlier release", [0, 0, 0, 0], 1, 40.0, false),
        ] {
            let mut run = RunProgress::default();
            let mut window = EfficiencyWindow { gpus, run_seconds: 60.0, ..EfficiencyWindow::default() };
            for (minute, events) in (0_u8..).zip(events) {
                let start = 60.0 * f64::from(minute);
                (window.window_start, window.window_end, window.events) = (at(start), at(start + 60.0), events);
                (window.observed_start, window.observed_end) = (Some(at(start)), Some(at(start + 60.0)));
                run.add(&window);
            }
            (window.window_start, window.window_end, window.events) = (at(240.0), at(300.0), 1);
            (window.observed_start, window.observed_end) = (Some(at(240.0)), Some(at(250.0)));
            run.add(&window);
            let moment = PresentMoment { now: at(360.0), record_end: Some(at(250.0 + seconds)) };
            assert_eq!(run.runs_now(&WindowTimes::from(&window), moment), expected, "{what}");
        }
    }

    #[test]
    fn a_run_that_begins_and_ends_within_a_window_is_over_with_it() {
        let at = EventTime::from_seconds;
        // Returns a minute with its run seconds, and its observed figures.
        let window = |minute: f64, run_seconds, observed: Option<(f64, f64)>| EfficiencyWindow {
            window_start: at(60.0 * minute),
            window_end: at(60.0 * minute + 60.0),
            run_declared: true,
            run_seconds,
            observed_start: observed.map(|(from, _)| at(60.0 * minute + from)),
            observed_end: observed.map(|(_, to)| at(60.0 * minute + to)),
            ..EfficiencyWindow::default()
        };
        let is_over = |windows: &[EfficiencyWindow]| {
            let mut run = RunProgress::default();
            for window in windows {
                run.add(window);
            }
            run.is_over()
        };
        for (run_seconds, observed, expected) in [
            (45.0, Some((5.0, 50.0)), true),
            // Its GPU was observed before and after it.
            (45.0, Some((0.0, 55.0)), true),
            // It goes on, or it ended with the window, which the next one shows.
            (50.0, Some((10.0, 60.0)), false),
            // Its end is not known: its GPU is observed on.
            (30.0, Some((0.0, 60.0)), false),
            // It reported its begin only, then it was silent for longer than the processor waits.
            (50.0, Some((10.0, 10.0)), false),
            (50.0, Some((10.0, 40.0)), false),
            // By an earlier release.
            (45.0, None, false),
        ] {
            let first = window(0.0, run_seconds, observed);
            assert_eq!(is_over(std::slice::from_ref(&first)), expected, "{run_seconds} s within {observed:?}");
        }
        let undeclared = EfficiencyWindow { run_declared: false, ..window(0.0, 45.0, Some((5.0, 50.0))) };
        assert!(!is_over(&[undeclared]), "a job that reports no begin");
        let ended = [window(0.0, 60.0, Some((0.0, 60.0))), window(1.0, 20.0, Some((0.0, 20.0)))];
        let again = |run_seconds, to| [&ended[..], &[window(2.0, run_seconds, Some((10.0, to)))]].concat();
        assert!(is_over(&ended) && is_over(&again(30.0, 40.0)), "started again and ended");
        assert!(!is_over(&again(50.0, 60.0)), "started again");
        // Its settings or its processes changed in the window that it ended in.
        let restart = EfficiencyWindow { restarted: true, ..window(1.0, 20.0, Some((0.0, 20.0))) };
        assert!(is_over(&[ended[0].clone(), restart]));
    }

    #[test]
    fn only_a_revert_of_a_change_that_failed_takes_it_back() {
        use ChangeValidation::{Failed, Kept, None, Pending};
        for (action, validation, is_hold_out, expected) in [
            (ControllerAction::Revert, Failed, false, true),
            // The change before is judged in the same decision.
            (ControllerAction::Revert, Failed, true, false),
            (ControllerAction::Revert, None, true, false),
            // Only a limit is removed, or a share is restored after a measurement.
            (ControllerAction::Revert, None, false, false),
            (ControllerAction::Revert, Kept, false, false),
            (ControllerAction::Revert, Pending, false, false),
            (ControllerAction::Maintain, Failed, false, false),
            (ControllerAction::SetPowerLimit, Failed, false, false),
        ] {
            let evidence = is_hold_out.then(|| (HOLD_OUT.to_owned(), 1.0)).into_iter().collect();
            let decision = Decision { action, validation, evidence, ..Decision::default() };
            assert_eq!(decision_takes_back(&decision), expected, "{decision:?}");
        }
    }

    #[test]
    fn a_fate_is_the_last_outcome_of_its_decision() {
        let actuation = |second: i64, id: &str, outcome| Actuation {
            time: EventTime::from_micros(second * 1_000_000),
            decision_id: id.into(),
            outcome,
            ..Actuation::default()
        };
        let mut fates = ChangeFates::default();
        for (second, id, outcome) in [
            (1, "a", ActuationOutcome::Recommended),
            (2, "b", ActuationOutcome::Refused),
            (3, "a", ActuationOutcome::Applied),
            (4, "a", ActuationOutcome::Ready),
        ] {
            fates.add(&actuation(second, id, outcome));
        }
        assert_eq!((fates.get("a"), fates.get("b"), fates.get("c")), (Some(ChangeFate::Ready), Some(ChangeFate::Refused), None));
        fates.keep_newest(1);
        assert_eq!(fates.get("b"), Some(ChangeFate::Refused), "two are not too many");
        fates.add(&actuation(5, "c", ActuationOutcome::Recommended));
        fates.keep_newest(1);
        assert_eq!((fates.get("a"), fates.get("c")), (None, Some(ChangeFate::Recommended)));
        let words = |fate: ChangeFate| (fate.outcome(), fate.note());
        assert_eq!(words(ChangeFate::NotAllowed), ("refused", Some("not made")));
        assert_eq!(words(ChangeFate::Ready), ("ready", None));
    }
}
