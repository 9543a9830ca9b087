//! The outcome of a change, and whether it helped.

use eadt_schemas::EventTime;
use eadt_schemas::figures::format_signed_percent;
use eadt_schemas::v1::{Actuation, ActuationOutcome, ChangeValidation, ControllerAction, Decision, Layout, UpdateMode, Workload};
use serde::{Deserialize, Serialize};

use super::history::{MeasuredWindow, Medians};
use super::state::ControllerState;
use super::{ControllerObjective, ControllerSettings};

/// A decided change whose outcome is unknown so far.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct ProposedChange {
    pub id: String,
    pub action: ControllerAction,
    pub from: Layout,
    pub to: Layout,
    pub expires: EventTime,
    /// The figures to beat; `None` for a revert, which needs no justification.
    pub baseline: Option<Medians>,
}

impl ProposedChange {
    pub fn from_decision(decision: &Decision, baseline: Option<Medians>) -> Self {
        Self {
            id: decision.id.clone(),
            action: decision.action,
            from: decision.from.clone(),
            to: decision.to.clone(),
            expires: decision.expires,
            baseline,
        }
    }
}

/// A change that was applied and is being judged.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct ChangeTrial {
    pub id: String,
    pub action: ControllerAction,
    pub from: Layout,
    pub to: Layout,
    /// The generation that it made.
    pub generation: u64,
    pub baseline: Medians,
    /// Usable windows since it was ready and warm.
    pub windows: Vec<MeasuredWindow>,
    /// Usable windows that are still to be left out.
    pub warming_up: u32,
}

/// A change that did not help and is to be taken back.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct FailedChange {
    pub concerns: String,
    pub to: Layout,
    /// The generation of the failed layout; after another one, there is nothing left to revert.
    pub generation: u64,
    pub why: String,
}

/// A note about the last change that the next decision reports.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ChangeNote {
    pub reason: String,
    pub concerns: String,
    pub validation: ChangeValidation,
    pub hold_until: Option<EventTime>,
}

/// The judgement over a trial.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct TrialVerdict {
    pub after: Medians,
    pub objective: ControllerObjective,
    /// Saving as a part of the objective's figure; negative if it cost more.
    pub gain_ratio: f64,
    /// The same of the energy per sample.
    pub energy_gain_ratio: f64,
    pub throughput_ratio: f64,
    pub is_confirmed: bool,
}

impl ChangeTrial {
    /// Judges by the last windows.
    pub fn verdict(&self, settings: &ControllerSettings) -> Option<TrialVerdict> {
        let skip = self.windows.len().saturating_sub(settings.validation_windows as usize);
        let after = MeasuredWindow::median(self.windows.iter().skip(skip))?;
        // Joules per sample are the reciprocal of the efficiency: no progress at all gains minus infinity.
        let gain = |objective: ControllerObjective| {
            let score = |of: &Medians| objective.score(1.0 / of.efficiency, 1.0 / of.samples_per_second);
            1.0 - score(&after) / score(&self.baseline)
        };
        let objective = settings.objective;
        let (gain_ratio, energy_gain_ratio) = (gain(objective), gain(ControllerObjective::Energy));
        let throughput_ratio = after.samples_per_second / self.baseline.samples_per_second;
        let confirmed = gain_ratio >= settings.validation_gain_ratio && throughput_ratio >= settings.validation_throughput_ratio;
        Some(TrialVerdict { after, objective, gain_ratio, energy_gain_ratio, throughput_ratio, is_confirmed: confirmed })
    }
}

impl TrialVerdict {
    /// Formats the result as `4.10 J/sample instead of 4.60 (-10.9 %) at 98.7 % of the throughput`.
    pub fn explain(&self, before: &Medians) -> String {
        let throughput = 100.0 * self.throughput_ratio;
        match (self.after.joules_per_sample(), before.joules_per_sample()) {
            (Some(after), Some(before)) => {
                let change = format_signed_percent(-self.energy_gain_ratio, 1);
                let product = self.objective.change_in_words(self.gain_ratio);
                format!("{after:.3} J/sample instead of {before:.3} ({change}) at {throughput:.1} % of the throughput{product}")
            }
            _ => "no progress at all".into(),
        }
    }
}

/// Handles an actuator's report about the last change.
pub(super) fn on_actuation(
    state: &mut ControllerState,
    workload: &Workload,
    actuation: &Actuation,
    now: EventTime,
    settings: &ControllerSettings,
) -> Option<ChangeNote> {
    if let Some(seconds) = actuation.downtime_seconds.filter(|seconds| *seconds >= 0.0 && seconds.is_finite()) {
        state.rollout_seconds = Some(seconds);
    }
    let id = &actuation.decision_id;
    if let Some(index) = state.proposals.iter().position(|proposal| proposal.id == *id) {
        let proposal = state.proposals.remove(index);
        return settle_proposal(state, proposal, workload, actuation, now, settings);
    }
    // Its beginning is known: only a bad end is news.
    let undone = matches!(actuation.outcome, ActuationOutcome::RolledBack | ActuationOutcome::Failed);
    if undone && state.trial.as_ref().is_some_and(|trial| trial.id == *id) {
        let trial = state.trial.take()?;
        return Some(on_undone(state, id, &trial.from, trial.action, actuation, now, settings));
    }
    None
}

fn settle_proposal(
    state: &mut ControllerState,
    proposal: ProposedChange,
    workload: &Workload,
    actuation: &Actuation,
    now: EventTime,
    settings: &ControllerSettings,
) -> Option<ChangeNote> {
    let ProposedChange { id, action, from, to, baseline, .. } = proposal;
    let reason = &actuation.reason;
    match actuation.outcome {
        ActuationOutcome::Applied | ActuationOutcome::Ready => {
            state.count_restart(actuation.time, id.clone());
            // Other proposals were made for the layout before this one.
            state.proposals.clear();
            state.unreverted = None;
            state.trial = baseline.map(|baseline| ChangeTrial {
                id,
                action,
                from,
                to,
                generation: actuation.generation,
                baseline,
                windows: Vec::new(),
                warming_up: settings.warm_up_windows,
            });
            None
        }
        ActuationOutcome::Recommended => None,
        ActuationOutcome::Refused if workload.mode != UpdateMode::Enforce => None,
        ActuationOutcome::Refused if action == ControllerAction::Revert => {
            state.unreverted = None;
            Some(ChangeNote {
                reason: format!("the last change could not be reverted: {reason}"),
                concerns: id,
                validation: ChangeValidation::Failed,
                hold_until: state.hold.as_ref().map(|hold| hold.until),
            })
        }
        ActuationOutcome::Refused => {
            let until = now.plus_seconds(settings.hold_seconds);
            state.set_tabu(&from, action, until, &format!("it was refused: {reason}"));
            Some(ChangeNote {
                reason: format!("the last decision was refused: {reason}"),
                concerns: id,
                validation: ChangeValidation::None,
                hold_until: None,
            })
        }
        ActuationOutcome::RolledBack | ActuationOutcome::Failed => {
            state.count_restart(actuation.time, id.clone());
            Some(on_undone(state, &id, &from, action, actuation, now, settings))
        }
    }
}

/// Notes that the actuator itself undid a change, or failed to.
fn on_undone(
    state: &mut ControllerState,
    id: &str,
    from: &Layout,
    action: ControllerAction,
    actuation: &Actuation,
    now: EventTime,
    settings: &ControllerSettings,
) -> ChangeNote {
    let why = if actuation.outcome == ActuationOutcome::RolledBack {
        state.count_restart(actuation.time, format!("{id}/rolled-back"));
        format!("the last change was rolled back: {}", actuation.reason)
    } else {
        format!("the last change failed: {}", actuation.reason)
    };
    state.unreverted = None;
    record_failure(state, id, from, action, &why, now, settings)
}

/// Remembers that a change did not work.
pub(super) fn record_failure(
    state: &mut ControllerState,
    id: &str,
    from: &Layout,
    action: ControllerAction,
    why: &str,
    now: EventTime,
    settings: &ControllerSettings,
) -> ChangeNote {
    if action != ControllerAction::Revert {
        state.set_tabu(from, action, now.plus_seconds(settings.tabu_seconds), why);
    }
    let until = state.hold_down(now, why, settings.hold_seconds, settings.hold_max_seconds);
    ChangeNote { reason: why.into(), concerns: id.into(), validation: ChangeValidation::Failed, hold_until: Some(until) }
}

/// Follows the layout: windows of different generations are never compared by accident.
pub(super) fn follow_layout(
    state: &mut ControllerState,
    workload: &Workload,
    now: EventTime,
    settings: &ControllerSettings,
) -> Option<ChangeNote> {
    let generation = workload.generation;
    match state.recent.generation.replace(generation) {
        Some(known) if known == generation => {}
        Some(_) => state.recent.reset(settings.warm_up_windows),
        None => state.recent.reset(0),
    }
    if state.unreverted.as_ref().is_some_and(|failure| failure.generation != generation) {
        state.unreverted = None;
    }
    // The table may lag behind the actuation, but a table ahead of it shows a foreign change of the layout.
    if state.trial.as_ref().is_none_or(|trial| generation <= trial.generation) {
        return None;
    }
    let trial = state.trial.take()?;
    if workload.layout == trial.from {
        let why = "the last change was reverted from outside";
        return Some(record_failure(state, &trial.id, &trial.from, trial.action, why, now, settings));
    }
    Some(ChangeNote {
        reason: "the layout was changed from outside before the last change was validated: it is not validated".into(),
        concerns: trial.id,
        validation: ChangeValidation::None,
        hold_until: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_of_nothing_is_reported_without_a_sign() {
        let after = Medians {
            end: EventTime::default(),
            windows: 3,
            samples_per_second: 50.0,
            watts: 200.0,
            watts_per_gpu: 200.0,
            efficiency: 0.25,
        };
        let verdict = TrialVerdict {
            after,
            objective: ControllerObjective::Edp,
            gain_ratio: 0.000_4,
            energy_gain_ratio: 0.0,
            throughput_ratio: 1.0,
            is_confirmed: false,
        };
        assert_eq!(
            verdict.explain(&after),
            "4.000 J/sample instead of 4.000 (0.0 %) at 100.0 % of the throughput, energy-delay product 0.0 %"
        );
    }
}
