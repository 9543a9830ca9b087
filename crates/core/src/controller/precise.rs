//! The EADT table made precise: decides on medians, within bounds, and reverts changes without a gain.

use eadt_schemas::v1::{ChangeValidation, ControllerAction, Decision, EfficiencyWindow, UpdateMode, Workload};

use super::draft::DecisionDraft;
use super::history::{MeasuredWindow, Medians};
use super::knobs::{self, MatrixKnobs};
use super::matrix::Thresholds;
use super::state::ControllerState;
use super::trial::{self, FailedChange, ProposedChange};
use super::{ControllerContext, ControllerName, ControllerSettings, PowerReading};

pub(super) fn decide(state: &mut ControllerState, window: &EfficiencyWindow, context: &ControllerContext<'_>) -> Decision {
    let (settings, now) = (context.settings, window.window_end);
    let draft = DecisionDraft::new(ControllerName::Matrix, window, context);
    let Some(workload) = context.workload else {
        return draft.maintain(super::UNMANAGED);
    };
    // Settle past changes first: an outcome must not be missed because this window decides nothing.
    let fate = context.last_actuation.and_then(|actuation| trial::on_actuation(state, workload, actuation, now, settings));
    let outside = trial::follow_layout(state, workload, now, settings);
    state.forget_before(now);

    let measured = usable_window(state, window, workload, settings);
    if let Some(note) = fate.or(outside) {
        return draft.maintain_with_note(note);
    }
    let measured = match measured {
        Ok(measured) => measured,
        Err(reason) => return under_way(state, workload, draft).maintain(reason),
    };
    if state.trial.is_some() {
        return evaluate_trial(state, measured, workload, draft, context);
    }
    let window_seconds = now.seconds_since(window.window_start);
    if !state.recent.add(measured, settings.median_windows, window_seconds) {
        return under_way(state, workload, draft).maintain("the job warms up after a restart");
    }
    if workload.paused {
        return draft.maintain("the workload is paused");
    }
    if let Some(failure) = state.unreverted.clone() {
        if awaits_rollout(state, workload) {
            return under_way(state, workload, draft).maintain("waits for the revert of the last change");
        }
        if workload.mode == UpdateMode::Enforce {
            return take_back(state, failure, draft);
        }
        state.unreverted = None;
    }
    if awaits_rollout(state, workload) {
        return under_way(state, workload, draft).maintain("waits for the last decision to be applied");
    }
    if let Some(hold) = &state.hold {
        let reason = format!("no change before {}: {}", hold.until, hold.why);
        return draft.with_hold_until(Some(hold.until)).maintain(reason);
    }
    propose(state, window, workload, draft, context)
}

/// Returns the window's figures if it can be compared with others of this layout, or why not.
fn usable_window(
    state: &mut ControllerState,
    window: &EfficiencyWindow,
    workload: &Workload,
    settings: &ControllerSettings,
) -> Result<MeasuredWindow, String> {
    if window.restarted {
        state.recent.reset(settings.warm_up_windows);
        if let Some(trial) = &mut state.trial {
            trial.warming_up = settings.warm_up_windows;
        }
    }
    MeasuredWindow::of_layout(window, workload, settings.coverage_min_ratio)
}

/// Returns true if a change is on its way to the cluster. If nothing is applied without a person, nothing is waited for.
fn awaits_rollout(state: &ControllerState, workload: &Workload) -> bool {
    workload.mode == UpdateMode::Enforce && !state.proposals.is_empty()
}

/// Marks a decision that only waits, with the event that it waits for.
fn under_way(state: &ControllerState, workload: &Workload, draft: DecisionDraft) -> DecisionDraft {
    let waiting = state.proposals.last().filter(|_| awaits_rollout(state, workload)).map(|proposal| &proposal.id);
    match state.trial.as_ref().map(|trial| &trial.id).or(waiting) {
        Some(id) => draft.with_validation(ChangeValidation::Pending, id),
        None => draft.with_hold_until(state.hold.as_ref().map(|hold| hold.until)),
    }
}

/// Adds a window to the trial and, once there are enough, keeps the change or takes it back.
fn evaluate_trial(
    state: &mut ControllerState,
    measured: MeasuredWindow,
    workload: &Workload,
    mut draft: DecisionDraft,
    context: &ControllerContext<'_>,
) -> Decision {
    let settings = context.settings;
    let Some(trial) = &mut state.trial else { unreachable!("judged without a trial") };
    let id = trial.id.clone();
    if workload.generation != trial.generation {
        return draft.with_validation(ChangeValidation::Pending, &id).maintain("the last change is rolling out");
    }
    if trial.warming_up > 0 {
        trial.warming_up -= 1;
        return draft.with_validation(ChangeValidation::Pending, &id).maintain("the job warms up after the last change");
    }
    trial.windows.push(measured);
    let (have, need) = (trial.windows.len(), settings.validation_windows as usize);
    if have > need {
        trial.windows.remove(0);
    }
    if have < need {
        let reason = format!("the last change is being checked: {have} of {need} windows");
        return draft.with_validation(ChangeValidation::Pending, &id).maintain(reason);
    }
    if workload.paused {
        return draft
            .with_validation(ChangeValidation::Pending, &id)
            .maintain("the workload is paused: the last change is validated afterwards");
    }
    let Some(verdict) = trial.verdict(settings) else { unreachable!("a verdict needs a window") };
    let Some(trial) = state.trial.take() else { unreachable!("judged without a trial") };
    let outcome = verdict.explain(&trial.baseline);
    draft.note_medians("before", &trial.baseline);
    draft.note_medians("after", &verdict.after);
    draft.note_gains(settings.objective, verdict.energy_gain_ratio, verdict.gain_ratio);
    draft.add_evidence("throughput_ratio", Some(verdict.throughput_ratio));
    if verdict.is_confirmed {
        state.learn_saving(trial.action, verdict.gain_ratio);
        state.next_hold_seconds = None;
        state.recent.reset(0);
        for window in trial.windows {
            state.recent.add(window, settings.median_windows, f64::INFINITY);
        }
        return draft.with_validation(ChangeValidation::Kept, &id).maintain(format!("the last change is kept: {outcome}"));
    }
    let demanded = format!(
        "required are {:.1} % less {} and {:.0} % of the throughput",
        100.0 * settings.validation_gain_ratio,
        settings.objective.display_name(),
        100.0 * settings.validation_throughput_ratio
    );
    let why = format!("the last change did not help: {outcome}; {demanded}");
    let now = measured.end;
    trial::record_failure(state, &id, &trial.from, trial.action, &why, now, settings);
    let failure = FailedChange { concerns: id, to: trial.from, generation: trial.generation, why };
    state.unreverted = Some(failure.clone());
    take_back(state, failure, draft)
}

fn take_back(state: &mut ControllerState, failure: FailedChange, draft: DecisionDraft) -> Decision {
    let hold_until = state.hold.as_ref().map(|hold| hold.until);
    let draft = draft.with_validation(ChangeValidation::Failed, &failure.concerns).with_hold_until(hold_until);
    let decision = draft.change_with_restart(ControllerAction::Revert, failure.to, failure.why);
    state.proposals = vec![ProposedChange::from_decision(&decision, None)];
    decision
}

/// Looks up the action in the table, and checks whether it can and should be taken.
fn propose(
    state: &mut ControllerState,
    window: &EfficiencyWindow,
    workload: &Workload,
    mut draft: DecisionDraft,
    context: &ControllerContext<'_>,
) -> Decision {
    let settings = context.settings;
    let need = settings.median_windows as usize;
    let medians = match MeasuredWindow::median(&state.recent.windows) {
        Some(medians) if medians.windows >= need => medians,
        found => {
            let have = found.map_or(0, |medians| medians.windows);
            return draft.maintain(format!("{have} of the {need} windows that a decision needs are there"));
        }
    };
    let gpus = workload.gpus.unwrap_or(window.gpus);
    if gpus == 0 {
        return draft.maintain("the number of its GPUs is not known");
    }
    let reading = settings.power.unwrap_or(PowerReading::PerGpu);
    let (watts, whose) = medians.power(reading);
    let efficiency = medians.efficiency;
    let table = Thresholds::precise(settings, reading, workload, gpus);
    draft.note_medians("before", &medians);
    draft.note_reading(reading, watts, efficiency, &table);
    if efficiency <= 0.0 {
        return draft.maintain("the job makes no progress: no layout can be compared");
    }
    let action = table.action(watts, efficiency);
    let mut reason = table.explain(action, whose, watts, efficiency);
    if action == ControllerAction::Maintain {
        return draft.maintain(reason);
    }
    let wanted = MatrixKnobs::from_layout(&workload.layout)
        .and_then(|from| Ok((from, knobs::precise_target(action, from, gpus, workload, settings)?)))
        .and_then(|change| check_restart_allowed(state, action, &medians, workload, context, &mut draft).map(|()| change));
    match wanted {
        Ok((from, to)) => {
            reason = format!("{reason}: {}", from.change_to(to));
            let decision = draft.change_with_restart(action, to.in_layout(&workload.layout, gpus), reason);
            state.proposals.push(ProposedChange::from_decision(&decision, Some(medians)));
            decision
        }
        Err(hindrance) => draft.maintain(format!("{reason}, but {hindrance}")),
    }
}

/// Checks that a restart for this action is not tabu, affordable and worth its cost.
fn check_restart_allowed(
    state: &ControllerState,
    action: ControllerAction,
    medians: &Medians,
    workload: &Workload,
    context: &ControllerContext<'_>,
    draft: &mut DecisionDraft,
) -> Result<(), String> {
    let settings = context.settings;
    if let Some(tabu) = state.find_tabu(&workload.layout, action) {
        return Err(format!("this change was tried from this layout and is not tried again before {}: {}", tabu.until, tabu.why));
    }
    let most = workload.bounds.restarts_per_day_max.unwrap_or(settings.restarts_per_day_max);
    let used = state.restarts.len() as u32;
    draft.add_evidence("restarts_last_day", Some(f64::from(used)));
    if used + 2 > most {
        return Err(format!("{used} of {most} restarts a day are used, and one is reserved for a revert"));
    }
    let saving = state.mean_saving(action).unwrap_or(settings.expected_saving_ratio);
    let remaining = context.remaining_seconds.unwrap_or(settings.horizon_seconds);
    let downtime = state.rollout_seconds.unwrap_or(settings.restart_seconds);
    // Younger than the work that even a checkpoint on request loses, the last checkpoint loses less.
    let age = context.checkpoint_time.map(|time| medians.end.seconds_since(time).max(0.0));
    let redone = age.unwrap_or(f64::INFINITY).min(settings.redone_seconds);
    draft.add_evidence("expected_saving_ratio", Some(saving));
    draft.add_evidence("remaining_seconds", context.remaining_seconds);
    draft.add_evidence("expected_downtime_seconds", Some(downtime));
    draft.add_evidence("expected_redone_seconds", Some(redone));
    let gain = saving * remaining - (downtime + redone);
    // An estimate that is not a number is no reason to restart.
    if gain.is_nan() || gain <= 0.0 {
        return Err(format!(
            "a restart costs about {:.0} s of work, more than a saving of {:.1} % in the remaining {remaining:.0} s is worth",
            downtime + redone,
            100.0 * saving
        ));
    }
    Ok(())
}
