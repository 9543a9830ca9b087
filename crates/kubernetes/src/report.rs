//! What a policy's status says. Pure.

use std::time::Instant;

use eadt_schemas::EventTime;
use eadt_schemas::v1::{Action, Actuation, Decision, Layout, Origin, Precision, UpdateMode, Validation};

use crate::policy::{
    ConditionStatus, ConditionType, Current, Effect, EnergyPolicyStatus, Last, Outcome, Past, Problem, Reason, Recommendation,
    Settings as Knobs, set_condition,
};
use crate::rules::Rule;
use crate::settings::Settings;
use crate::state::Entry;

/// Ids of one recommendation that are remembered: what was looked at may have been decided anew since.
const MAX_IDS: usize = 100;
/// A status is not written more often than this, whatever changed, in seconds.
pub const LEAST_SECONDS: f64 = 2.0;

/// What is known of a policy beside its rule.
#[derive(Debug, Clone, Default)]
pub struct Known {
    /// As it was written or read last.
    pub status: EnergyPolicyStatus,
    /// When this process wrote it.
    pub written: Option<Instant>,
    /// What keeps its workload from being looked after.
    pub trouble: Option<String>,
    recommendation: Option<Decision>,
    /// Ids under which the same was recommended.
    ids: Vec<String>,
    last: Option<Decision>,
    last_outcome: Option<Actuation>,
    effect: Option<Effect>,
    history: Vec<Past>,
}

impl Known {
    /// A recommendation; the same once more has another id.
    pub fn recommend(&mut self, decision: &Decision) {
        let same = self.recommendation.as_ref().is_some_and(|known| known.from == decision.from && known.to == decision.to);
        if !same {
            self.ids.clear();
        }
        if self.ids.len() >= MAX_IDS {
            self.ids.remove(0);
        }
        self.ids.push(decision.id.clone());
        self.recommendation = Some(decision.clone());
    }

    /// The present recommendation, where it is the one that was approved under this id.
    pub fn approved(&self, id: &str) -> Option<&Decision> {
        self.recommendation.as_ref().filter(|_| self.ids.iter().any(|known| known == id))
    }

    pub fn decided(&mut self, decision: &Decision) {
        let other = |known: &Decision| known.from != decision.from || decision.action == Action::Maintain;
        if self.recommendation.as_ref().is_some_and(other) {
            self.recommendation = None;
            self.ids.clear();
        }
        if decision.validation == Validation::Kept {
            let number = |name: &str| decision.evidence.get(name).copied();
            if let Some(gain) = number("gain_ratio") {
                self.keep(gain, number("before_joules_per_sample"), decision);
            }
            if let Some(kept) = self.history.iter_mut().find(|past| Some(&past.decision_id) == decision.concerns.as_ref()) {
                kept.outcome = Outcome::Kept;
                kept.message = Some(decision.reason.clone());
            }
        }
        self.last = Some(decision.clone());
        self.last_outcome = None;
    }

    /// A kept change adds to what those before it saved.
    fn keep(&mut self, gain: f64, before: Option<f64>, decision: &Decision) {
        let known = self.effect.clone().unwrap_or_default();
        let left = known.saving_percent.map_or(1.0, |percent| 1.0 - percent / 100.0) * (1.0 - gain);
        let saving = round((1.0 - left) * 100.0);
        let whose = origin(decision.origin).map_or_else(String::new, |origin| format!(" ({origin})"));
        self.effect = Some(Effect {
            summary: Some(format!("{saving:.1} %{whose}")),
            saving_percent: Some(saving),
            joules_per_sample_before: known.joules_per_sample_before.or(before.map(round)),
            verified_time: Some(decision.time),
        });
    }

    pub fn told(&mut self, actuation: &Actuation) {
        let outcome = outcome(actuation.outcome);
        let touched = !matches!(actuation.outcome, eadt_schemas::v1::Outcome::Refused | eadt_schemas::v1::Outcome::Recommended);
        if touched {
            self.recommendation = None;
            self.ids.clear();
            let known = self.history.iter().find(|past| past.decision_id == actuation.decision_id);
            let summary = known.map_or_else(|| words(&actuation.layout), |past| past.summary.clone());
            let message = Some(actuation.reason.clone()).filter(|reason| !reason.is_empty());
            let past = Past { decision_id: actuation.decision_id.clone(), time: actuation.time, summary, outcome, message };
            let mut status = EnergyPolicyStatus { history: std::mem::take(&mut self.history), ..EnergyPolicyStatus::default() };
            status.remember(past);
            self.history = status.history;
        }
        self.last_outcome = Some(actuation.clone());
    }
}

fn outcome(outcome: eadt_schemas::v1::Outcome) -> Outcome {
    use eadt_schemas::v1::Outcome as Wire;
    match outcome {
        Wire::Applied => Outcome::Progressing,
        Wire::Ready => Outcome::Applied,
        Wire::Refused | Wire::Failed => Outcome::Refused,
        Wire::Recommended => Outcome::Recommended,
        Wire::RolledBack => Outcome::RolledBack,
    }
}

const fn origin(origin: Origin) -> Option<&'static str> {
    match origin {
        Origin::Measured => None,
        Origin::Imported => Some("imported"),
        Origin::Simulated => Some("simulated"),
    }
}

/// Three digits after the point are enough for people, and for less than that nothing is written.
fn round(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

/// A layout in words.
pub fn words(layout: &Layout) -> String {
    let number = |value: Option<u32>, unit: &str| value.map(|value| format!("{value}{unit}"));
    let parts = [
        number(layout.replicas, " replicas"),
        number(layout.mps_thread_percentage, " % of the threads"),
        layout.power_limit_watts.map(|watts| format!("{watts} W")),
        layout.sm_clock_mhz.map(|clock| format!("{clock} MHz")),
        layout.precision.map(|precision| precision.to_string()),
        number(layout.frozen_prefix_layers, " frozen layers"),
    ];
    let parts: Vec<_> = parts.into_iter().flatten().collect();
    if parts.is_empty() { "nothing known".into() } else { parts.join(", ") }
}

/// What differs between two layouts: `threads 50 % → 40 %`.
fn difference(from: &Layout, to: &Layout) -> String {
    let number = |name: &str, from: Option<f64>, to: Option<f64>, unit: &str| {
        let shown = |value: Option<f64>| value.map_or_else(|| "?".to_owned(), |value| format!("{value}{unit}"));
        (from != to && to.is_some()).then(|| format!("{name} {} → {}", shown(from), shown(to)))
    };
    let count = |value: Option<u32>| value.map(f64::from);
    let precision = |from: Option<Precision>, to: Option<Precision>| {
        let to = to.filter(|to| from != Some(*to))?;
        Some(format!("precision {} → {to}", from.map_or("?", Precision::as_str)))
    };
    let parts = [
        number("replicas", count(from.replicas), count(to.replicas), ""),
        number("threads", count(from.mps_thread_percentage), count(to.mps_thread_percentage), " %"),
        number("cap", from.power_limit_watts, to.power_limit_watts, " W"),
        number("clock", from.sm_clock_mhz, to.sm_clock_mhz, " MHz"),
        number("frozen layers", count(from.frozen_prefix_layers), count(to.frozen_prefix_layers), ""),
        precision(from.precision, to.precision),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

fn action(action: Action) -> String {
    serde_json::to_value(action).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}

/// The status of a policy at `now`. `entry`: its workload, where it is there.
pub fn status(
    rule: &Rule,
    entry: Option<&Entry>,
    known: &Known,
    problems: &[Problem],
    settings: &Settings,
    now: EventTime,
) -> EnergyPolicyStatus {
    // What was known before a restart stays until there is something newer.
    let mut status = EnergyPolicyStatus { observed_generation: Some(rule.generation), ..known.status.clone() };
    conditions(&mut status, rule, entry, known, problems, settings, now);
    status.recommendation = known.recommendation.as_ref().map(recommendation);
    if let Some(decision) = &known.last {
        let told = known.last_outcome.as_ref().filter(|told| told.decision_id == decision.id);
        status.last_decision = Some(Last {
            decision_id: decision.id.clone(),
            time: decision.time,
            action: action(decision.action),
            reason: decision.reason.clone(),
            outcome: told.map(|told| outcome(told.outcome)),
            message: told.map(|told| told.reason.clone()).filter(|reason| !reason.is_empty()),
        });
    }
    status.current = entry.map(|entry| {
        let number = |name: &str| known.last.as_ref().and_then(|decision| decision.evidence.get(name).copied()).map(round);
        Current {
            time: known.last.as_ref().map(|decision| decision.time),
            settings: Knobs::from(&entry.seen.layout),
            origin: known.last.as_ref().and_then(|decision| origin(decision.origin)).map(str::to_owned),
            joules_per_sample: number("joules_per_sample"),
            samples_per_second: number("samples_per_second"),
            power_watts: number("power_watts"),
        }
    });
    if known.effect.is_some() {
        status.effect.clone_from(&known.effect);
    }
    for past in known.history.iter().rev() {
        status.remember(past.clone());
    }
    status.fit();
    status
}

fn recommendation(decision: &Decision) -> Recommendation {
    Recommendation {
        decision_id: decision.id.clone(),
        time: decision.time,
        expires: decision.expires,
        summary: difference(&decision.from, &decision.to),
        reason: decision.reason.clone(),
        from: Knobs::from(&decision.from),
        to: Knobs::from(&decision.to),
        restarts: decision.restarts,
    }
}

fn conditions(
    status: &mut EnergyPolicyStatus,
    rule: &Rule,
    entry: Option<&Entry>,
    known: &Known,
    problems: &[Problem],
    settings: &Settings,
    now: EventTime,
) {
    use ConditionStatus::{False, True, Unknown};
    let mut set = |kind, holds, reason: &str, message: &str| {
        set_condition(&mut status.conditions, kind, holds, reason, message, Some(rule.generation), now);
    };
    let target = problems.iter().find(|problem| matches!(problem.reason, Reason::TargetNotFound | Reason::UnsupportedKind));
    match (target, entry) {
        (Some(problem), _) => set(ConditionType::TargetFound, False, problem.reason.as_str(), &problem.message),
        (None, Some(entry)) => set(ConditionType::TargetFound, True, "Found", &format!("{} is there", entry.seen.workload())),
        (None, None) => set(ConditionType::TargetFound, Unknown, "NotReadYet", "it has not been read yet"),
    }
    let foreign = entry.and_then(|entry| entry.seen.problems.first());
    let paused = entry.is_some_and(|entry| entry.paused);
    match (problems.first(), foreign) {
        (Some(problem), _) => set(ConditionType::Ready, False, problem.reason.as_str(), &problem.message),
        (None, Some(problem)) => set(ConditionType::Ready, False, "WorkloadNotUnderstood", problem),
        (None, None) if paused => set(ConditionType::Ready, False, "Paused", "the workload or its namespace is paused"),
        (None, None) if entry.is_none() => set(ConditionType::Ready, Unknown, "NotReadYet", "its workload has not been read yet"),
        (None, None) => {
            let (reason, message) = match entry.map(|entry| entry.terms.mode) {
                Some(UpdateMode::Enforce) => ("Enforcing", "changes are applied within the bounds"),
                Some(UpdateMode::Recommend) => ("Recommending", "changes are recommended, and nothing is touched"),
                _ => ("Observing", "figures are reported, and nothing is touched"),
            };
            set(ConditionType::Ready, True, reason, message);
        }
    }
    match known.last.as_ref().map(|decision| decision.time) {
        Some(time) if now.seconds_since(time) <= settings.fresh_seconds => {
            set(ConditionType::TelemetryFresh, True, "Fresh", "its windows close");
        }
        Some(time) => {
            let message = format!("the last window that was decided on ended at {time}: is its telemetry collected?");
            set(ConditionType::TelemetryFresh, False, "Stale", &message);
        }
        None => set(ConditionType::TelemetryFresh, Unknown, "NoWindowYet", "no window of it has been decided on yet"),
    }
    match &known.recommendation {
        Some(decision) => {
            set(ConditionType::RecommendationAvailable, True, "Recommended", &difference(&decision.from, &decision.to));
        }
        None => set(ConditionType::RecommendationAvailable, False, "Nothing", "nothing is recommended"),
    }
    let told = known.last_outcome.as_ref();
    if let Some(entry) = entry.filter(|entry| entry.in_motion() || entry.restoring()) {
        let progress = &entry.seen.progress;
        let asked = entry.managed.rolling_out().filter(|_| entry.waits_for_job()).and_then(eadt_cluster::Applied::asked);
        let message = match asked {
            Some(asked) => format!("the job is asked for {asked}, and has not reported it yet"),
            None => format!("{} of {} pods are ready", progress.ready, progress.wanted),
        };
        set(ConditionType::Progressing, True, "RollingOut", &message);
    } else {
        set(ConditionType::Progressing, False, "Idle", "nothing is being rolled out");
    }
    let bad =
        told.filter(|told| matches!(told.outcome, eadt_schemas::v1::Outcome::RolledBack | eadt_schemas::v1::Outcome::Failed));
    match (&known.trouble, bad) {
        (Some(trouble), _) => set(ConditionType::Degraded, True, "CannotChange", trouble),
        (None, Some(told)) => {
            let reason = if told.outcome == eadt_schemas::v1::Outcome::Failed { "Failed" } else { "RolledBack" };
            set(ConditionType::Degraded, True, reason, &told.reason);
        }
        (None, None) => set(ConditionType::Degraded, False, "AsExpected", "everything works as it should"),
    }
}

/// Whether a status is worth a request. `since`: seconds since the last one.
pub fn worth_writing(before: &EnergyPolicyStatus, after: &EnergyPolicyStatus, since: f64, settings: &Settings) -> bool {
    if before == after || since < LEAST_SECONDS {
        return false;
    }
    if said(before) != said(after) {
        return true;
    }
    if since < settings.status_seconds {
        return false;
    }
    // What is shown as approvable must be so.
    let expires = |status: &EnergyPolicyStatus| status.recommendation.as_ref().map(|r| r.expires);
    expires(before) != expires(after) || moved(before, after, settings.status_change_ratio)
}

/// A status without what only tells how the figures are.
fn said(status: &EnergyPolicyStatus) -> EnergyPolicyStatus {
    let mut said = status.clone();
    for condition in &mut said.conditions {
        // Messages hold times and counts; the reason says what is so.
        if condition.kind != ConditionType::Progressing.as_str() {
            condition.message.clear();
        }
        condition.last_transition_time = EventTime::default();
    }
    if let Some(current) = &mut said.current {
        *current = Current { settings: current.settings.clone(), origin: current.origin.clone(), ..Current::default() };
    }
    if let Some(recommendation) = &mut said.recommendation {
        recommendation.decision_id.clear();
        recommendation.reason.clear();
        (recommendation.time, recommendation.expires) = (EventTime::default(), EventTime::default());
    }
    // A decision to leave everything as it is is no news.
    said.last_decision = said.last_decision.filter(|last| last.action != "maintain" && last.outcome.is_some());
    if let Some(last) = said.last_decision.as_mut().filter(|last| last.outcome != Some(Outcome::Progressing)) {
        last.decision_id.clear();
        last.reason.clear();
        last.message = None;
        last.time = EventTime::default();
    }
    said
}

/// A figure changed by more than this part.
fn moved(before: &EnergyPolicyStatus, after: &EnergyPolicyStatus, ratio: f64) -> bool {
    let figures = |status: &EnergyPolicyStatus| {
        let current = status.current.clone().unwrap_or_default();
        [current.joules_per_sample, current.samples_per_second, current.power_watts]
    };
    figures(before).into_iter().zip(figures(after)).any(|(before, after)| match (before, after) {
        (Some(before), Some(after)) => (after - before).abs() > ratio * before.abs(),
        (before, after) => before.is_some() != after.is_some(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: f64) -> EventTime {
        EventTime::from_seconds(1_767_225_600.0 + seconds)
    }

    fn decision(id: &str, percentage: u32) -> Decision {
        let layout = |percentage| Layout { mps_thread_percentage: Some(percentage), ..Layout::default() };
        Decision {
            id: id.into(),
            workload: "n/w".into(),
            time: at(60.0),
            action: Action::Decrease,
            from: layout(50),
            to: layout(percentage),
            expires: at(360.0),
            ..Decision::default()
        }
    }

    #[test]
    fn an_approval_holds_for_what_was_looked_at_under_whatever_id_it_is_decided_now() {
        let mut known = Known::default();
        known.recommend(&decision("d-1", 40));
        known.decided(&decision("d-2", 40));
        known.recommend(&decision("d-2", 40));
        assert_eq!(known.approved("d-1").map(|decision| decision.id.as_str()), Some("d-2"));
        known.recommend(&decision("d-3", 35));
        assert_eq!(known.approved("d-1"), None, "something else is recommended by now");
        known.decided(&Decision { action: Action::Maintain, ..decision("d-4", 50) });
        assert_eq!(known.approved("d-3"), None);
    }

    #[test]
    fn kept_changes_add_up() {
        let mut known = Known::default();
        for (gain, before) in [(0.10, 4.0), (0.20, 3.6)] {
            let evidence = [("gain_ratio".to_owned(), gain), ("before_joules_per_sample".to_owned(), before)];
            let kept = Decision { validation: Validation::Kept, evidence: evidence.into(), ..decision("d", 40) };
            known.decided(&Decision { origin: Origin::Simulated, ..kept });
        }
        let effect = known.effect.unwrap();
        assert_eq!((effect.saving_percent, effect.joules_per_sample_before), (Some(28.0), Some(4.0)));
        assert_eq!(effect.summary.as_deref(), Some("28.0 % (simulated)"));
    }

    #[test]
    fn a_status_is_written_when_something_is_so_and_rarely_for_figures() {
        let settings = Settings::default();
        let figures = |joules| EnergyPolicyStatus {
            current: Some(Current { joules_per_sample: Some(joules), time: Some(at(joules)), ..Current::default() }),
            ..EnergyPolicyStatus::default()
        };
        assert!(!worth_writing(&figures(1.0), &figures(1.04), 1e9, &settings));
        assert!(worth_writing(&figures(1.0), &figures(1.06), 301.0, &settings));
        assert!(!worth_writing(&figures(1.0), &figures(1.06), 299.0, &settings));
        let mut ready = figures(1.0);
        let set = ConditionStatus::True;
        set_condition(&mut ready.conditions, ConditionType::Ready, set, "Enforcing", "", None, at(0.0));
        assert!(worth_writing(&figures(1.0), &ready, 3.0, &settings));
        assert!(!worth_writing(&figures(1.0), &ready, 1.0, &settings), "not in the same moment once more");
    }

    #[test]
    fn differences_name_what_is_turned() {
        assert_eq!(difference(&decision("d", 40).from, &decision("d", 40).to), "threads 50 % → 40 %");
    }
}
