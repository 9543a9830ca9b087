//! The content of a policy's status. Pure.

use std::time::Instant;

use eadt_schemas::EventTime;
use eadt_schemas::figures::format_fixed;
use eadt_schemas::v1::{Actuation, ChangeValidation, ControllerAction, Decision, Layout, Origin, Precision, UpdateMode};

use crate::index::workloads::WorkloadEntry;
use crate::objects::key::is_older_version;
use crate::objects::owners;
use crate::policy::resource::WorkloadPolicy;
use crate::policy::{
    ChangeOutcome, ConditionStatus, ConditionType, CurrentState, EnergyPolicyStatus, LastDecision, LayoutSettings as Knobs,
    PastChange, PolicyProblem, ProblemReason, Recommendation, SavingEffect, set_condition,
};
use crate::settings::KubernetesSettings;

/// Remembered ids of one recommendation: the one that a user saw may have been decided again since.
const MAX_IDS: usize = 100;
/// News of one policy that are not written yet; more than that are beyond every history.
const MAX_NEWS: usize = 100;
/// Reason of `Degraded`: others own fields that were taken over.
const TAKEN_BACK: &str = "FieldTakenBack";
/// Reason of `Degraded`: nodes do not have the MPS default that the policy names.
const MPS_DEFAULT: &str = "MpsDefaultNotSet";
/// A status is not written more often than this, whatever changed, in seconds.
pub const LEAST_SECONDS: f64 = 2.0;

/// Whether the nodes of a policy's workload have the MPS default that it names.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum MpsDefaultState {
    /// This process has not checked yet: the former status holds.
    #[default]
    Unknown,
    /// They have, or it names none.
    AsNamed,
    /// They have not, for this reason.
    NotSet(String),
}

/// The previous status of a policy, which may be stale, and the updates that it lacks.
#[derive(Debug, Clone, Default)]
pub struct PolicyStatusCache {
    /// Uid of the object: a policy that is created again starts without a status.
    uid: String,
    /// Resource version of the object that had this status.
    pub version: String,
    /// The status as it was last written or read, by any writer.
    pub status: EnergyPolicyStatus,
    /// Time at which this process wrote it.
    pub written: Option<Instant>,
    /// The reason why its workload cannot be reconciled.
    pub trouble: Option<String>,
    /// Whether the nodes have the MPS default that it names.
    pub mps_default: MpsDefaultState,
    recommendation: Option<Decision>,
    /// Ids under which the same was recommended.
    ids: Vec<String>,
    last: Option<Decision>,
    last_outcome: Option<Actuation>,
    /// Updates that `status` does not contain yet, oldest first.
    pending_updates: Vec<StatusUpdate>,
}

/// An update of effect and history; applying it twice makes no difference.
#[derive(Debug, Clone)]
enum StatusUpdate {
    /// Outcome of a change.
    OutcomeRecorded(PastChange),
    Confirmed(VerifiedChange),
    /// The same of before: it may be of an earlier policy, or known.
    Verified(VerifiedChange),
}

/// A change was verified, and stays.
#[derive(Debug, Clone)]
struct VerifiedChange {
    /// The decision that made it.
    concerns: Option<String>,
    reason: String,
    time: EventTime,
    origin: Origin,
    gain_ratio: Option<f64>,
    before_joules_per_sample: Option<f64>,
}

impl PolicyStatusCache {
    /// Notes that the policy's object was seen with this status.
    pub fn on_policy_object(&mut self, uid: &str, version: &str, status: EnergyPolicyStatus) {
        if self.uid != uid {
            *self = Self { uid: uid.to_owned(), ..Self::default() };
        }
        self.set_status(version, status);
    }

    /// Takes the status that the object has since this version. An older version is ignored, and so is the known one.
    fn set_status(&mut self, version: &str, status: EnergyPolicyStatus) {
        if version != self.version && !is_older_version(version, &self.version) {
            version.clone_into(&mut self.version);
            self.status = status;
        }
    }

    /// Drops the knowledge of an earlier term: another leader has published it since, or something newer. The reconciliation
    /// trouble stays until the workload and its nodes were reconciled again.
    pub fn begin_term(&mut self) {
        let Self { uid, version, status, trouble, mps_default, .. } = std::mem::take(self);
        *self = Self { uid, version, status, trouble, mps_default, ..Self::default() };
    }

    /// Returns the number of pending updates.
    pub const fn pending_count(&self) -> usize {
        self.pending_updates.len()
    }

    /// Records that a status was written with so many of the first pending updates, and that the object got this version.
    pub fn on_status_written(&mut self, version: &str, status: EnergyPolicyStatus, update_count: usize) {
        self.pending_updates.drain(..update_count.min(self.pending_updates.len()));
        self.written = Some(Instant::now());
        // Under this version the watch may have brought it already.
        if version == self.version {
            self.status = status;
        } else {
            self.set_status(version, status);
        }
    }

    fn push_update(&mut self, news: StatusUpdate) {
        if self.pending_updates.len() >= MAX_NEWS {
            self.pending_updates.remove(0);
        }
        self.pending_updates.push(news);
    }

    /// Notes a recommendation; the same one once more has another id.
    pub fn on_recommendation(&mut self, decision: &Decision) {
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

    /// Returns the present recommendation if it was approved under this id.
    pub fn approved_recommendation(&self, id: &str) -> Option<&Decision> {
        self.recommendation.as_ref().filter(|_| self.ids.iter().any(|known| known == id))
    }

    pub fn on_decision(&mut self, decision: &Decision) {
        let other = |known: &Decision| known.from != decision.from || decision.action == ControllerAction::Maintain;
        if self.recommendation.as_ref().is_some_and(other) {
            self.recommendation = None;
            self.ids.clear();
        }
        if decision.validation == ChangeValidation::Kept {
            self.push_update(StatusUpdate::Confirmed(VerifiedChange::from_decision(decision)));
        }
        self.last = Some(decision.clone());
        self.last_outcome = None;
    }

    /// Notes a decision from before this process led.
    pub fn on_verified_decision(&mut self, decision: &Decision) {
        if decision.validation == ChangeValidation::Kept {
            self.push_update(StatusUpdate::Verified(VerifiedChange::from_decision(decision)));
        }
    }

    pub fn on_actuation(&mut self, actuation: &Actuation) {
        let outcome = policy_outcome(actuation.outcome);
        let touched = !matches!(
            actuation.outcome,
            eadt_schemas::v1::ActuationOutcome::Refused | eadt_schemas::v1::ActuationOutcome::Recommended
        );
        if touched {
            self.recommendation = None;
            self.ids.clear();
            let message = Some(actuation.reason.clone()).filter(|reason| !reason.is_empty());
            let summary = layout_text(&actuation.layout);
            let past = PastChange { decision_id: actuation.decision_id.clone(), time: actuation.time, summary, outcome, message };
            self.push_update(StatusUpdate::OutcomeRecorded(past));
        }
        self.last_outcome = Some(actuation.clone());
    }
}

impl StatusUpdate {
    fn apply_to(&self, status: &mut EnergyPolicyStatus) {
        match self {
            Self::OutcomeRecorded(past) => {
                let known = status.history.iter().find(|known| known.decision_id == past.decision_id);
                let summary = known.map_or_else(|| past.summary.clone(), |known| known.summary.clone());
                status.remember(PastChange { summary, ..past.clone() });
            }
            Self::Verified(change) => {
                let is_applied = |past: &PastChange| {
                    Some(&past.decision_id) == change.concerns.as_ref() && past.outcome == ChangeOutcome::Applied
                };
                if status.history.iter().any(is_applied) {
                    Self::Confirmed(change.clone()).apply_to(status);
                }
            }
            Self::Confirmed(change) => {
                if let Some(gain) = change.gain_ratio {
                    status.effect = Some(change.add_effect(gain, status.effect.take().unwrap_or_default()));
                }
                if let Some(past) = status.history.iter_mut().find(|past| Some(&past.decision_id) == change.concerns.as_ref()) {
                    past.outcome = ChangeOutcome::Kept;
                    past.message = Some(change.reason.clone());
                }
            }
        }
    }
}

impl VerifiedChange {
    fn from_decision(decision: &Decision) -> Self {
        let number = |name: &str| decision.evidence.get(name).copied();
        Self {
            concerns: decision.concerns.clone(),
            reason: decision.reason.clone(),
            time: decision.time,
            origin: decision.origin,
            gain_ratio: number("gain_ratio"),
            before_joules_per_sample: number("before_joules_per_sample"),
        }
    }

    /// Adds the saving of a kept change to that of those before it.
    fn add_effect(&self, gain: f64, known: SavingEffect) -> SavingEffect {
        // Decisions are read again if their positions were not committed.
        if known.verified_time.is_some_and(|time| self.time <= time) {
            return known;
        }
        let left = known.saving_percent.map_or(1.0, |percent| 1.0 - percent / 100.0) * (1.0 - gain);
        let saving = round_figure((1.0 - left) * 100.0);
        let whose = origin_name(self.origin).map_or_else(String::new, |origin| format!(" ({origin})"));
        SavingEffect {
            summary: Some(format!("{} %{whose}", format_fixed(saving, 1))),
            saving_percent: Some(saving),
            joules_per_sample_before: known.joules_per_sample_before.or(self.before_joules_per_sample.map(round_figure)),
            verified_time: Some(self.time),
        }
    }
}

fn policy_outcome(outcome: eadt_schemas::v1::ActuationOutcome) -> ChangeOutcome {
    use eadt_schemas::v1::ActuationOutcome;
    match outcome {
        ActuationOutcome::Applied => ChangeOutcome::Progressing,
        ActuationOutcome::Ready => ChangeOutcome::Applied,
        ActuationOutcome::Refused | ActuationOutcome::Failed => ChangeOutcome::Refused,
        ActuationOutcome::Recommended => ChangeOutcome::Recommended,
        ActuationOutcome::RolledBack => ChangeOutcome::RolledBack,
    }
}

const fn origin_name(origin: Origin) -> Option<&'static str> {
    match origin {
        Origin::Measured => None,
        Origin::Imported => Some("imported"),
        Origin::Simulated => Some("simulated"),
    }
}

/// Rounds to three digits after the point: enough for people, and smaller changes are not written.
fn round_figure(value: f64) -> f64 {
    // No minus zero.
    (value * 1000.0).round() / 1000.0 + 0.0
}

/// Returns a layout in words.
pub fn layout_text(layout: &Layout) -> String {
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

/// Returns the difference between two layouts: `threads 50 % → 40 %`.
fn layout_change_text(from: &Layout, to: &Layout) -> String {
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

fn action_text(action: ControllerAction) -> String {
    serde_json::to_value(action).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}

/// Returns the status of a policy at `now`. `entry`: its workload, if it is there.
pub fn build_status(
    rule: &WorkloadPolicy,
    entry: Option<&WorkloadEntry>,
    known: &PolicyStatusCache,
    problems: &[PolicyProblem],
    settings: &KubernetesSettings,
    now: EventTime,
) -> EnergyPolicyStatus {
    // Values from before a restart stay until there are newer ones.
    let mut status = EnergyPolicyStatus { observed_generation: Some(rule.generation), ..known.status.clone() };
    set_conditions(&mut status, rule, entry, known, problems, settings, now);
    status.recommendation = known.recommendation.as_ref().map(build_recommendation);
    if let Some(decision) = &known.last {
        let actuation = known.last_outcome.as_ref().filter(|actuation| actuation.decision_id == decision.id);
        status.last_decision = Some(LastDecision {
            decision_id: decision.id.clone(),
            time: decision.time,
            action: action_text(decision.action),
            reason: decision.reason.clone(),
            outcome: actuation.map(|actuation| policy_outcome(actuation.outcome)),
            message: actuation.map(|actuation| actuation.reason.clone()).filter(|reason| !reason.is_empty()),
        });
    }
    status.current = entry.map(|entry| {
        let number = |name: &str| known.last.as_ref().and_then(|decision| decision.evidence.get(name).copied()).map(round_figure);
        CurrentState {
            time: known.last.as_ref().map(|decision| decision.time),
            settings: Knobs::from(&entry.object.layout),
            origin: known.last.as_ref().and_then(|decision| origin_name(decision.origin)).map(str::to_owned),
            joules_per_sample: number("joules_per_sample"),
            samples_per_second: number("samples_per_second"),
            power_watts: number("power_watts"),
        }
    });
    let (before, news): (Vec<_>, Vec<_>) =
        known.pending_updates.iter().partition(|news| matches!(news, StatusUpdate::Verified(_)));
    for news in news {
        news.apply_to(&mut status);
    }
    if let Some(past) = entry.and_then(|entry| last_change(rule, entry)) {
        add_missing_change(&mut status, past);
    }
    // Verdicts belong to known changes only.
    for news in before {
        news.apply_to(&mut status);
    }
    status.fit();
    status
}

/// Returns the last change of a workload that this policy allowed, and its outcome, from the mark on the object.
fn last_change(rule: &WorkloadPolicy, entry: &WorkloadEntry) -> Option<PastChange> {
    let mark = entry.object.change_annotation.as_ref().filter(|mark| mark.policy_uid == rule.uid)?;
    let applied = mark.applied.as_ref()?;
    let (time, outcome, message) = match (&applied.rolled_back, applied.ready_time) {
        (Some(back), _) => (back.time, ChangeOutcome::RolledBack, Some(back.reason.clone())),
        (None, Some(ready)) => (ready, ChangeOutcome::Applied, None),
        (None, None) if entry.managed.state.generation > applied.generation => {
            let message = "the workload was changed from outside before it was ready".to_owned();
            (entry.managed.state.time, ChangeOutcome::Refused, Some(message))
        }
        (None, None) => (applied.time, ChangeOutcome::Progressing, None),
    };
    let message = message.filter(|message| !message.is_empty());
    Some(PastChange { decision_id: applied.decision_id.clone(), time, summary: layout_text(&applied.layout), outcome, message })
}

/// Adds the last change if the status lacks it: an earlier leader may have published it and ended before it wrote the status.
fn add_missing_change(status: &mut EnergyPolicyStatus, past: PastChange) {
    let unfinished = |outcome| outcome == ChangeOutcome::Progressing && past.outcome != ChangeOutcome::Progressing;
    if let Some(last) = status.last_decision.as_mut().filter(|last| last.decision_id == past.decision_id)
        && last.outcome.is_none_or(unfinished)
    {
        (last.outcome, last.message) = (Some(past.outcome), past.message.clone());
    }
    match status.history.iter_mut().find(|known| known.decision_id == past.decision_id) {
        // An outcome is published once; whether the change was kept is not on the object.
        Some(known) if unfinished(known.outcome) => {
            *known = PastChange { summary: std::mem::take(&mut known.summary), ..past };
        }
        Some(_) => {}
        None => status.remember(past),
    }
}

fn build_recommendation(decision: &Decision) -> Recommendation {
    Recommendation {
        decision_id: decision.id.clone(),
        time: decision.time,
        expires: decision.expires,
        summary: layout_change_text(&decision.from, &decision.to),
        reason: decision.reason.clone(),
        from: Knobs::from(&decision.from),
        to: Knobs::from(&decision.to),
        restarts: decision.restarts,
    }
}

fn set_conditions(
    status: &mut EnergyPolicyStatus,
    rule: &WorkloadPolicy,
    entry: Option<&WorkloadEntry>,
    known: &PolicyStatusCache,
    problems: &[PolicyProblem],
    settings: &KubernetesSettings,
    now: EventTime,
) {
    use ConditionStatus::{False, True, Unknown};
    let target =
        problems.iter().find(|problem| matches!(problem.reason, ProblemReason::TargetNotFound | ProblemReason::UnsupportedKind));
    let was = |reason| status.condition(ConditionType::Degraded).is_some_and(|condition| condition.reason == reason);
    let was_taken_back = was(TAKEN_BACK);
    let names_default = entry.is_none_or(|entry| entry.effective_policy.mps_default_thread_percentage.is_some());
    let was_not_set = was(MPS_DEFAULT) && names_default && target.is_none() && known.mps_default == MpsDefaultState::Unknown;
    let mut set = |kind, holds, reason: &str, message: &str| {
        set_condition(&mut status.conditions, kind, holds, reason, message, Some(rule.generation), now);
    };
    match (target, entry) {
        (Some(problem), _) => set(ConditionType::TargetFound, False, problem.reason.as_str(), &problem.message),
        (None, Some(entry)) => set(ConditionType::TargetFound, True, "Found", &format!("{} is there", entry.object.workload())),
        (None, None) => set(ConditionType::TargetFound, Unknown, "NotReadYet", "it has not been read yet"),
    }
    let foreign = entry.and_then(|entry| entry.object.problems.first());
    let paused = entry.is_some_and(|entry| entry.paused);
    match (problems.first(), foreign) {
        (Some(problem), _) => set(ConditionType::Ready, False, problem.reason.as_str(), &problem.message),
        (None, Some(problem)) => set(ConditionType::Ready, False, "WorkloadNotUnderstood", problem),
        (None, None) if paused => set(ConditionType::Ready, False, "Paused", "the workload or its namespace is paused"),
        (None, None) if entry.is_none() => set(ConditionType::Ready, Unknown, "NotReadYet", "its workload has not been read yet"),
        (None, None) => {
            let (reason, message) = match entry.map(|entry| entry.effective_policy.mode) {
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
            set(ConditionType::RecommendationAvailable, True, "Recommended", &layout_change_text(&decision.from, &decision.to));
        }
        None => set(ConditionType::RecommendationAvailable, False, "Nothing", "nothing is recommended"),
    }
    let actuation = known.last_outcome.as_ref();
    if let Some(entry) = entry.filter(|entry| entry.is_rolling() || entry.must_restore()) {
        let progress = &entry.object.progress;
        let request =
            entry.managed.rolling_out().filter(|_| entry.waits_for_job()).and_then(eadt_cluster::AppliedDecision::job_request);
        let message = match request {
            Some(request) => format!("the job is asked for {request}, and has not reported it yet"),
            None => format!("{} of {} pods are ready", progress.ready, progress.wanted),
        };
        set(ConditionType::Progressing, True, "RollingOut", &message);
    } else {
        set(ConditionType::Progressing, False, "Idle", "nothing is being rolled out");
    }
    let bad = actuation.filter(|actuation| {
        matches!(actuation.outcome, eadt_schemas::v1::ActuationOutcome::RolledBack | eadt_schemas::v1::ActuationOutcome::Failed)
    });
    // An object that is gone has no trouble.
    let trouble = known.trouble.as_ref().filter(|_| entry.is_some() || target.is_none());
    let passing = match (trouble, bad) {
        (Some(trouble), _) => Some(("CannotChange", trouble)),
        (None, Some(actuation)) if actuation.outcome == eadt_schemas::v1::ActuationOutcome::Failed => {
            Some(("Failed", &actuation.reason))
        }
        (None, Some(actuation)) => Some(("RolledBack", &actuation.reason)),
        (None, None) => match &known.mps_default {
            MpsDefaultState::NotSet(why) if entry.is_some() => Some((MPS_DEFAULT, why)),
            _ => None,
        },
    };
    match (entry.and_then(describe_taken_back), passing) {
        // Its object has not been read yet: the former status holds.
        _ if was_taken_back && entry.is_none() && target.is_none() => {}
        (Some(owners), None) => set(ConditionType::Degraded, True, TAKEN_BACK, &owners),
        (Some(owners), Some((_, why))) => set(ConditionType::Degraded, True, TAKEN_BACK, &format!("{owners}; {why}")),
        (None, Some((reason, why))) => set(ConditionType::Degraded, True, reason, why),
        // Its nodes were not checked yet.
        (None, None) if was_not_set => {}
        (None, None) => set(ConditionType::Degraded, False, "AsExpected", "everything works as it should"),
    }
}

/// Returns the fields that others took back, with their owners; `None` if there are none. This is read from the object, so it
/// outlasts decisions and processes.
fn describe_taken_back(entry: &WorkloadEntry) -> Option<String> {
    owners::describe_taken_back(&entry.object.taken_back)
        .map(|fields| format!("taken back: {fields}; no decision is applied until the policy is deleted and created again"))
}

/// Returns whether a status is worth a request. `since`: seconds since the last one.
pub fn must_write_status(
    before: &EnergyPolicyStatus,
    after: &EnergyPolicyStatus,
    since: f64,
    settings: &KubernetesSettings,
) -> bool {
    if before == after || since < LEAST_SECONDS {
        return false;
    }
    if without_figures(before) != without_figures(after) {
        return true;
    }
    if since < settings.status_seconds {
        return false;
    }
    // A recommendation that is shown as approvable must be approvable.
    let expires = |status: &EnergyPolicyStatus| status.recommendation.as_ref().map(|r| r.expires);
    expires(before) != expires(after) || figures_moved(before, after, settings.status_change_ratio)
}

/// Returns the status without figures and times.
fn without_figures(status: &EnergyPolicyStatus) -> EnergyPolicyStatus {
    let mut stripped = status.clone();
    for condition in &mut stripped.conditions {
        // Messages contain times and counts, so only the reason is compared, except for messages that name owners or workloads.
        if condition.kind != ConditionType::Progressing.as_str()
            && ![TAKEN_BACK, MPS_DEFAULT].contains(&condition.reason.as_str())
        {
            condition.message.clear();
        }
        condition.last_transition_time = EventTime::default();
    }
    if let Some(current) = &mut stripped.current {
        *current = CurrentState { settings: current.settings.clone(), origin: current.origin.clone(), ..CurrentState::default() };
    }
    if let Some(recommendation) = &mut stripped.recommendation {
        // Its id is what people approve: a new one is news.
        recommendation.reason.clear();
        (recommendation.time, recommendation.expires) = (EventTime::default(), EventTime::default());
    }
    // A decision to leave everything as it is is no news.
    stripped.last_decision = stripped.last_decision.filter(|last| last.action != "maintain" && last.outcome.is_some());
    if let Some(last) = stripped.last_decision.as_mut().filter(|last| last.outcome != Some(ChangeOutcome::Progressing)) {
        last.decision_id.clear();
        last.reason.clear();
        last.message = None;
        last.time = EventTime::default();
    }
    stripped
}

/// Returns whether a figure changed by more than this ratio.
fn figures_moved(before: &EnergyPolicyStatus, after: &EnergyPolicyStatus, ratio: f64) -> bool {
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
    use eadt_cluster::{AppliedDecision, RollbackRecord};
    use serde_json::json;

    use super::*;
    use crate::index::workloads::WorkloadIndex;
    use crate::objects::object::MPS_PERCENTAGE;
    use crate::objects::object::tests::{seen, training};
    use crate::objects::record::{APPLIED, ChangeAnnotation, FormerField, ManagedField, TAKEN_OVER, TakeOverRecord};

    fn at(seconds: f64) -> EventTime {
        EventTime::from_seconds(1_767_225_600.0 + seconds)
    }

    fn decision(id: &str, percentage: u32) -> Decision {
        let layout = |percentage| Layout { mps_thread_percentage: Some(percentage), ..Layout::default() };
        Decision {
            id: id.into(),
            workload: "n/w".into(),
            time: at(60.0),
            action: ControllerAction::Decrease,
            from: layout(50),
            to: layout(percentage),
            expires: at(360.0),
            ..Decision::default()
        }
    }

    #[test]
    fn a_saving_that_rounds_to_zero_has_no_sign() {
        assert_eq!([-0.000_4, -0.000_6].map(|percent| round_figure(percent).to_string()), ["0", "-0.001"]);
    }

    #[test]
    fn an_approval_holds_for_what_was_looked_at_under_whatever_id_it_is_decided_now() {
        let mut known = PolicyStatusCache::default();
        known.on_recommendation(&decision("d-1", 40));
        known.on_decision(&decision("d-2", 40));
        known.on_recommendation(&decision("d-2", 40));
        assert_eq!(known.approved_recommendation("d-1").map(|decision| decision.id.as_str()), Some("d-2"));
        known.on_recommendation(&decision("d-3", 35));
        assert_eq!(known.approved_recommendation("d-1"), None, "something else is recommended by now");
        known.on_decision(&Decision { action: ControllerAction::Maintain, ..decision("d-4", 50) });
        assert_eq!(known.approved_recommendation("d-3"), None);
    }

    fn rule() -> WorkloadPolicy {
        let policy = json!({
            "apiVersion": "eadt.dev/v1alpha1", "kind": "EnergyPolicy",
            "metadata": {"name": "llm", "namespace": "eadt", "uid": "p", "generation": 1},
            "spec": {
                "targetRef": {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "llm-training"}, "updateMode": "Enforce",
                "bounds": {"mpsThreadPercentage": {"min": 25}},
            },
        });
        crate::policy::resource::read_policy(&policy).unwrap().0
    }

    fn status_of(known: &PolicyStatusCache) -> EnergyPolicyStatus {
        build_status(&rule(), None, known, &[], &KubernetesSettings::default(), at(600.0))
    }

    fn kept(concerns: &str, seconds: f64, gain: f64, before: f64) -> Decision {
        let evidence = [("gain_ratio".to_owned(), gain), ("before_joules_per_sample".to_owned(), before)];
        Decision {
            validation: ChangeValidation::Kept,
            time: at(seconds),
            reason: "it helped".into(),
            concerns: Some(concerns.into()),
            origin: Origin::Simulated,
            evidence: evidence.into(),
            ..decision("d", 40)
        }
    }

    #[test]
    fn kept_changes_add_up() {
        let mut known = PolicyStatusCache::default();
        known.on_decision(&kept("d-1", 60.0, 0.10, 4.0));
        known.on_decision(&kept("d-2", 120.0, 0.20, 3.6));
        let effect = status_of(&known).effect.unwrap();
        assert_eq!((effect.saving_percent, effect.joules_per_sample_before), (Some(28.0), Some(4.0)));
        assert_eq!(effect.summary.as_deref(), Some("28.0 % (simulated)"));
    }

    #[test]
    fn effect_and_history_go_on_from_the_status() {
        let applied = Actuation {
            decision_id: "d-3".into(),
            time: at(130.0),
            outcome: eadt_schemas::v1::ActuationOutcome::Ready,
            layout: decision("d-3", 40).to,
            ..Actuation::default()
        };
        let mut before = PolicyStatusCache::default();
        before.on_decision(&kept("d-1", 60.0, 0.10, 4.0));
        before.on_decision(&kept("d-2", 120.0, 0.20, 3.6));
        before.on_actuation(&applied);
        let persisted = status_of(&before);
        assert_eq!(persisted.history[0].outcome, ChangeOutcome::Applied);
        // Another process.
        let mut known = PolicyStatusCache { status: persisted, ..PolicyStatusCache::default() };
        for _ in 0..2 {
            known.on_decision(&kept("d-3", 180.0, 0.05, 2.88));
            let status = status_of(&known);
            let effect = status.effect.clone().unwrap();
            assert_eq!(
                (effect.saving_percent, effect.joules_per_sample_before),
                (Some(31.6), Some(4.0)),
                "also when it is read again"
            );
            assert_eq!((status.history.len(), status.history[0].outcome), (1, ChangeOutcome::Kept));
            assert_eq!(status.history[0].message.as_deref(), Some("it helped"));
            known = PolicyStatusCache { status, ..PolicyStatusCache::default() };
        }
    }

    #[test]
    fn what_was_written_is_no_news_any_more() {
        let mut known = PolicyStatusCache::default();
        known.on_decision(&kept("d-1", 60.0, 0.10, 4.0));
        let (status, pending_count) = (status_of(&known), known.pending_count());
        known.on_decision(&kept("d-2", 120.0, 0.20, 3.6));
        known.on_status_written("7", status, pending_count);
        assert_eq!((known.pending_count(), status_of(&known).effect.unwrap().saving_percent), (1, Some(28.0)));
        known.on_policy_object("", "6", EnergyPolicyStatus::default());
        assert_eq!(status_of(&known).effect.unwrap().saving_percent, Some(28.0), "an older version is no news");
        known.on_policy_object("made again", "9", EnergyPolicyStatus::default());
        assert_eq!(status_of(&known).effect, None);
    }

    /// Returns a workload of which these fields were taken over, with these owners by now.
    fn entry(managed_fields: &serde_json::Value) -> WorkloadEntry {
        let mut object = training(6, "60", "6", "2");
        let field = |field: ManagedField| FormerField { field, value: Some("6".into()), owners: vec![] };
        let threads =
            ManagedField::Variable { template: "spec.template".into(), container: "train".into(), name: MPS_PERCENTAGE.into() };
        let taken = TakeOverRecord { fields: vec![field(threads), field(ManagedField::Replicas)], ..TakeOverRecord::default() };
        object["metadata"]["annotations"][TAKEN_OVER] = json!(serde_json::to_string(&taken).unwrap());
        object["metadata"]["managedFields"] = managed_fields.clone();
        entry_of(&object)
    }

    fn entry_of(object: &serde_json::Value) -> WorkloadEntry {
        let mut state = WorkloadIndex::new(Origin::Measured);
        state.upsert_policy(rule(), at(0.0));
        let seen = seen(object);
        state.upsert(seen.clone(), at(0.0));
        state.entry(&crate::objects::key::ObjectKey::of(&seen)).unwrap().clone()
    }

    fn owned(manager: &str, fields: &serde_json::Value) -> serde_json::Value {
        json!({"manager": manager, "operation": "Apply", "apiVersion": "apps/v1", "fieldsType": "FieldsV1", "fieldsV1": fields})
    }

    #[test]
    fn who_took_a_field_back_is_named_for_as_long_as_it_is_so() {
        let threads = json!({"f:spec": {"f:template": {"f:spec": {"f:containers": {"k:{\"name\":\"train\"}": {"f:env": {
            "k:{\"name\":\"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE\"}": {"f:value": {}},
        }}}}}}});
        let replicas = json!({"f:spec": {"f:replicas": {}}});
        let status_for = |known: &PolicyStatusCache, entry: &WorkloadEntry| {
            build_status(&rule(), Some(entry), known, &[], &KubernetesSettings::default(), at(600.0))
        };
        let degraded = |status: &EnergyPolicyStatus| {
            let condition = status.condition(ConditionType::Degraded).unwrap();
            (condition.status, condition.reason.clone(), condition.message.clone())
        };
        let mut known = PolicyStatusCache::default();
        let ours = status_for(&known, &entry(&json!([owned("eadt-actuator", &threads), owned("eadt-actuator", &replicas)])));
        assert_eq!(degraded(&ours).0, ConditionStatus::False);
        let one = entry(&json!([owned("flux", &threads)]));
        known.on_decision(&Decision { action: ControllerAction::Maintain, ..decision("d-1", 50) });
        for known in [&known, &PolicyStatusCache::default()] {
            let (holds, reason, message) = degraded(&status_for(known, &one));
            assert_eq!((holds, reason.as_str()), (ConditionStatus::True, "FieldTakenBack"));
            assert!(message.contains("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE of container train (by flux)"), "{message}");
        }
        let restarted = PolicyStatusCache { status: status_for(&known, &one), ..PolicyStatusCache::default() };
        assert_eq!(degraded(&status_of(&restarted)).1, "FieldTakenBack", "also before its object is read again");
        known.trouble = Some("the API server is away".into());
        let two = status_for(&known, &entry(&json!([owned("flux", &threads), owned("autoscaler", &replicas)])));
        let message = degraded(&two).2;
        for words in ["flux", "replicas (by autoscaler)", "the API server is away"] {
            assert!(message.contains(words), "{words}: {message}");
        }
        known.trouble = None;
        assert!(must_write_status(&status_for(&known, &one), &two, 3.0, &KubernetesSettings::default()), "another owner is news");
    }

    #[test]
    fn an_mps_default_that_was_not_set_is_so_until_a_new_leader_has_looked() {
        let (mut rule, mut entry) = (rule(), entry_of(&training(6, "60", "6", "2")));
        entry.effective_policy.mps_default_thread_percentage = Some(40);
        rule.generation = 1;
        let status_for =
            |known: &PolicyStatusCache| build_status(&rule, Some(&entry), known, &[], &KubernetesSettings::default(), at(60.0));
        let why = "somebody else is there".to_owned();
        let ours = PolicyStatusCache { mps_default: MpsDefaultState::NotSet(why), ..PolicyStatusCache::default() };
        let reason = |status: &EnergyPolicyStatus| status.condition(ConditionType::Degraded).unwrap().reason.clone();
        let next = PolicyStatusCache { status: status_for(&ours), ..PolicyStatusCache::default() };
        assert_eq!(status_for(&next).condition(ConditionType::Degraded), status_for(&ours).condition(ConditionType::Degraded));
        assert_eq!(reason(&status_for(&next)), "MpsDefaultNotSet");
        assert_eq!(
            reason(&status_for(&PolicyStatusCache { mps_default: MpsDefaultState::AsNamed, ..next.clone() })),
            "AsExpected"
        );
        entry.effective_policy.mps_default_thread_percentage = None;
        let status = build_status(&rule, Some(&entry), &next, &[], &KubernetesSettings::default(), at(60.0));
        assert_eq!(reason(&status), "AsExpected", "it names none any more");
    }

    #[test]
    fn who_leads_next_makes_up_what_was_found_of_a_change() {
        let applied = |id: &str, seconds: f64| Actuation {
            decision_id: id.into(),
            time: at(seconds),
            outcome: eadt_schemas::v1::ActuationOutcome::Ready,
            layout: decision(id, 40).to,
            ..Actuation::default()
        };
        let mut before = PolicyStatusCache::default();
        before.on_actuation(&applied("d-1", 50.0));
        before.on_decision(&kept("d-1", 60.0, 0.10, 4.0));
        before.on_actuation(&applied("d-2", 110.0));
        let mut known = PolicyStatusCache { status: status_of(&before), ..PolicyStatusCache::default() };
        // Verdicts on a change of an earlier policy, a known one, and an unknown one.
        for verdict in [kept("d-0", 30.0, 0.5, 8.0), kept("d-1", 60.0, 0.10, 4.0), kept("d-2", 120.0, 0.20, 3.6)] {
            known.on_verified_decision(&verdict);
        }
        known.on_verified_decision(&Decision { validation: ChangeValidation::Failed, ..kept("d-1", 130.0, -0.1, 4.0) });
        let status = status_of(&known);
        assert_eq!(status.effect.unwrap().saving_percent, Some(28.0));
        assert!(status.history.iter().all(|past| past.outcome == ChangeOutcome::Kept), "{:?}", status.history);
    }

    #[test]
    fn who_leads_next_makes_up_the_last_change_from_its_mark() {
        let mut applied = AppliedDecision {
            decision_id: "d-3".into(),
            decision_time: at(115.0),
            generation: 4,
            time: at(120.0),
            layout: decision("d-3", 40).to,
            before: decision("d-3", 40).from,
            ready_by: at(720.0),
            ready_time: None,
            rolled_back: None,
            approved_by: None,
        };
        let of_policy = |applied: &AppliedDecision, policy_uid: &str| {
            let mark =
                ChangeAnnotation { applied: Some(applied.clone()), policy_uid: policy_uid.into(), ..ChangeAnnotation::default() };
            let mut object = training(6, "40", "6", "2");
            object["metadata"]["annotations"][APPLIED] = json!(serde_json::to_string(&mark).unwrap());
            entry_of(&object)
        };
        let status_for = |known: &PolicyStatusCache, entry: &WorkloadEntry| {
            build_status(&rule(), Some(entry), known, &[], &KubernetesSettings::default(), at(600.0))
        };
        let history = |status: &EnergyPolicyStatus| {
            let past = |past: &PastChange| (past.decision_id.clone(), past.outcome, past.time, past.message.clone());
            status.history.iter().map(past).collect::<Vec<_>>()
        };
        let mut written = EnergyPolicyStatus::default();
        let (id, message) = ("d-2".into(), None);
        written.remember(PastChange {
            decision_id: id,
            time: at(60.0),
            summary: "45 %".into(),
            outcome: ChangeOutcome::Kept,
            message,
        });
        written.last_decision = Some(LastDecision {
            decision_id: "d-3".into(),
            time: at(115.0),
            action: "decrease".into(),
            reason: "it saves".into(),
            outcome: None,
            message: None,
        });
        let known = PolicyStatusCache { status: written, ..PolicyStatusCache::default() };
        let begun = status_for(&known, &of_policy(&applied, "p"));
        assert_eq!(begun.history.len(), 2, "what was there stays");
        assert_eq!(history(&begun)[0], ("d-3".to_owned(), ChangeOutcome::Progressing, at(120.0), None));
        assert_eq!(begun.last_decision.as_ref().unwrap().outcome, Some(ChangeOutcome::Progressing));
        assert_eq!(begun.history[0].summary, "40 % of the threads");
        assert!(must_write_status(&known.status, &begun, 3.0, &KubernetesSettings::default()));
        let known = PolicyStatusCache { status: begun, ..PolicyStatusCache::default() };
        let mut back = applied.clone();
        back.rolled_back = Some(RollbackRecord { generation: 4, time: at(300.0), reason: "no pod was ready".into() });
        let undone = ("d-3".to_owned(), ChangeOutcome::RolledBack, at(300.0), Some("no pod was ready".to_owned()));
        assert_eq!(history(&status_for(&known, &of_policy(&back, "p")))[0], undone);
        applied.ready_time = Some(at(200.0));
        let ready = status_for(&known, &of_policy(&applied, "p"));
        assert_eq!(history(&ready)[0], ("d-3".to_owned(), ChangeOutcome::Applied, at(200.0), None));
        assert_eq!(ready.last_decision.as_ref().unwrap().outcome, Some(ChangeOutcome::Applied));
        // A verdict stays, and a policy that is created again starts without one.
        let mut kept = ready;
        kept.history[0].outcome = ChangeOutcome::Kept;
        let known = PolicyStatusCache { status: kept, ..PolicyStatusCache::default() };
        assert_eq!(status_for(&known, &of_policy(&applied, "p")).history[0].outcome, ChangeOutcome::Kept);
        assert_eq!(history(&status_for(&PolicyStatusCache::default(), &of_policy(&applied, "another"))), []);
    }

    #[test]
    fn a_status_is_written_when_something_is_so_and_rarely_for_figures() {
        let settings = KubernetesSettings::default();
        let figures = |joules| EnergyPolicyStatus {
            current: Some(CurrentState { joules_per_sample: Some(joules), time: Some(at(joules)), ..CurrentState::default() }),
            ..EnergyPolicyStatus::default()
        };
        assert!(!must_write_status(&figures(1.0), &figures(1.04), 1e9, &settings));
        assert!(must_write_status(&figures(1.0), &figures(1.06), 301.0, &settings));
        assert!(!must_write_status(&figures(1.0), &figures(1.06), 299.0, &settings));
        let mut ready = figures(1.0);
        let set = ConditionStatus::True;
        set_condition(&mut ready.conditions, ConditionType::Ready, set, "Enforcing", "", None, at(0.0));
        assert!(must_write_status(&figures(1.0), &ready, 3.0, &settings));
        assert!(!must_write_status(&figures(1.0), &ready, 1.0, &settings), "not in the same moment once more");
    }

    #[test]
    fn differences_name_what_is_turned() {
        assert_eq!(layout_change_text(&decision("d", 40).from, &decision("d", 40).to), "threads 50 % → 40 %");
    }
}
