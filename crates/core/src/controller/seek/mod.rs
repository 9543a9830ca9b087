//! `power-cap`, `frequency` and `hybrid`: they search the setting of least energy per sample instead of a table.
//!
//! Inner loop, without restarts: a knob (power cap or SM clock) is turned down in strides, each setting is measured over a few
//! windows, and the best one with enough throughput is kept. Outer loop, `hybrid` only: other layouts are tried if what they
//! are expected to save in the time that is left is worth their restarts.
//!
//! A job's work changes while it runs, and with it every optimum. What was measured therefore belongs to a *phase*; a window
//! that does not fit what is known about its setting begins another one, which is recognised if it was seen before. There the
//! best setting is known and taken at once; in a new phase everything is learned anew.
//!
//! ```text
//! window ─▶ fits this phase? ─▶ add to the point of this setting ─▶ curve ─▶ not settled: next setting to measure
//!               │ three that do not                                    settled: turn to the best one, or try a layout
//!               ▼                                                              that is worth its restart, or stay
//!        known phase | new phase: measure without a cap first
//! ```

#[cfg(test)]
mod by_hand;
mod curve;
mod hold_out;
mod hourly_throughput;
mod knob;
mod layouts;
mod phase;
#[cfg(test)]
mod tests;

use eadt_models::published::CapCurveDocument;
use eadt_schemas::EventTime;
use eadt_schemas::figures::format_signed_percent;
use eadt_schemas::v1::{
    Actuation, ActuationOutcome, ChangeValidation, ControllerAction, Decision, EfficiencyWindow, Layout, UpdateMode, Workload,
};
use serde::{Deserialize, Serialize};

use super::draft::DecisionDraft;
use super::history::MeasuredWindow;
use super::knobs::MatrixKnobs;
use super::state::ControllerState;
use super::trial::{ChangeNote, ProposedChange};
use super::{ControllerContext, ControllerName, ControllerSettings};
use crate::models::ModelInForce;
use curve::{LayoutKey, MeasuredSetting};
use hold_out::HoldOuts;
use hourly_throughput::HourlyThroughput;
use knob::SeekKnob;
use phase::{JobPhase, JobPhases, JobSettings, OperatingPoint, PhaseMatch, SeekObservation};

/// State of the seeking controllers for one workload.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct SeekState {
    /// The layout that was found at the start: what throughput is compared with.
    base: Option<StartingLayout>,
    began: EventTime,
    generation: Option<u64>,
    phases: JobPhases,
    /// The last turn of the knob, not judged yet.
    turn: Option<SeekChange>,
    /// The last change of the layout, not judged yet.
    trial: Option<SeekChange>,
    /// Usable windows that are still to be left out.
    warming_up: u32,
    /// Why this window is not of the layout: the job reports other settings than it was asked for.
    #[serde(skip)]
    pub(super) job_difference: Option<String>,
    /// Layouts that are not tried for some time.
    barred: Vec<TabuLayout>,
    /// The layout that a roll-back restores, until a workload event shows it.
    restoring: Option<Layout>,
    /// The knob is not turned for some time.
    knob_barred: Option<TabuLayout>,
    /// Highest SM clock that was seen without a limit.
    highest_mhz: Option<f64>,
    /// Work of the last hour against that of the starting layout; only `hybrid` keeps it.
    #[serde(skip_serializing_if = "HourlyThroughput::is_empty")]
    hour: HourlyThroughput,
    /// Returns to the starting setting for a fresh baseline.
    #[serde(skip_serializing_if = "HoldOuts::is_unused")]
    hold_outs: HoldOuts,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct StartingLayout {
    #[serde(rename = "spot")]
    layout_key: LayoutKey,
    /// Setting of the knob that the user had chosen.
    own: Option<f64>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct SeekChange {
    id: String,
    from: Layout,
    to: Layout,
    generation: u64,
    /// It returns to the starting setting for a fresh baseline, and is not judged.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    hold_out: bool,
    /// It takes a trial back, and is not judged.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    revert: bool,
}

impl SeekChange {
    const fn is_judged(&self) -> bool {
        !self.hold_out && !self.revert
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct TabuLayout {
    #[serde(rename = "spot")]
    layout_key: LayoutKey,
    until: EventTime,
    why: String,
}

/// The next step of a seeking controller.
#[derive(Debug, Clone, PartialEq)]
enum SeekStep {
    /// Wait for more windows at this setting.
    Measure(String),
    /// Nothing is better.
    Stay(String),
    Turn {
        to: f64,
        why: String,
    },
    /// Return to the starting setting for a fresh baseline.
    HoldOut {
        /// Power beyond that of the held setting.
        extra_watts: f64,
        why: String,
    },
    Move {
        to: LayoutKey,
        setting: f64,
        why: String,
    },
}

pub(super) fn decide(
    name: ControllerName,
    state: &mut ControllerState,
    window: &EfficiencyWindow,
    context: &ControllerContext<'_>,
) -> Decision {
    let draft = DecisionDraft::new(name, window, context);
    let Some(workload) = context.workload else {
        return draft.maintain(super::UNMANAGED);
    };
    let mut seek = state.seek.take().unwrap_or_default();
    let decision = seek.decide(name, state, window, workload, draft, context);
    state.seek = Some(seek);
    decision
}

/// Returns the learned curve of a workload's throughput against power, if one is in force and power is the knob.
fn cap_curve<'a>(
    name: ControllerName,
    workload: &Workload,
    context: &ControllerContext<'a>,
) -> Option<ModelInForce<'a, CapCurveDocument>> {
    let models = context.models.filter(|_| name != ControllerName::Frequency)?;
    models.cap_curve(&workload.workload, workload.gpu_model.as_deref())?.ok()
}

fn layout_key(layout: &Layout) -> LayoutKey {
    LayoutKey { replicas: layout.replicas.unwrap_or(0), threads: layout.mps_thread_percentage.unwrap_or(0) }
}

impl SeekState {
    fn decide(
        &mut self,
        name: ControllerName,
        state: &mut ControllerState,
        window: &EfficiencyWindow,
        workload: &Workload,
        draft: DecisionDraft,
        context: &ControllerContext<'_>,
    ) -> Decision {
        let (settings, now) = (context.settings, window.window_end);
        // Settle past changes first: an outcome must not be missed because this window decides nothing.
        let fate = context.last_actuation.and_then(|actuation| self.on_actuation(state, workload, actuation, now, settings));
        let outside = self.follow_layout(name, state, workload, now);
        self.follow_job_settings(workload);
        state.forget_before(now);
        self.barred.retain(|barred| barred.until > now);
        self.knob_barred.take_if(|barred| barred.until <= now);
        if let Some(note) = fate.or(outside) {
            return draft.maintain_with_note(note);
        }
        let usable = self.usable_window(name, window, workload, context);
        if name == ControllerName::Hybrid && usable.is_err() {
            self.add_to_hour(window, self.hour.due_rate);
        }
        let measured = match usable {
            Ok(measured) => measured,
            Err(reason) => return self.under_way(state, draft).maintain(reason),
        };
        if self.warming_up > 0 {
            self.warming_up -= 1;
            if name == ControllerName::Hybrid {
                self.add_to_hour(window, self.hour.due_rate);
            }
            return self.under_way(state, draft).maintain("the job warms up after a restart");
        }
        if workload.layout.sm_clock_mhz.is_none() {
            self.highest_mhz = [self.highest_mhz, window.mean_sm_clock_mhz].into_iter().flatten().reduce(f64::max);
        }
        let mut draft = draft;
        if let Some(model) = cap_curve(name, workload, context) {
            draft.with_model(&model);
        }
        let own = self.base.and_then(|base| base.own);
        let knob = match name {
            ControllerName::Frequency => SeekKnob::clock(own, self.highest_mhz, settings),
            _ => SeekKnob::power_limit(workload, own, settings),
        };
        let knob = match knob {
            Ok(knob) => knob,
            Err(_) if workload.paused => return draft.maintain("the workload is paused"),
            Err(reason) => return draft.maintain(reason),
        };
        if measured.samples_per_second <= 0.0 {
            return self.under_way(state, draft).maintain("the job makes no progress: no setting can be compared");
        }
        let operating_point =
            OperatingPoint { layout_key: layout_key(&workload.layout), setting: knob.setting_of(&workload.layout) };
        let observation = SeekObservation {
            samples_per_second: measured.samples_per_second,
            watts: measured.watts,
            reading: knob.limited_quantity(window, measured.watts_per_gpu),
            dram_seconds_per_sample: window
                .mean_dram_active_ratio
                .filter(|ratio| *ratio > 0.0)
                .map(|ratio| ratio / measured.samples_per_second),
        };
        let matched =
            self.phases.observe_window(operating_point, observation, &knob, (1.0 + settings.phase_change_ratio).ln(), now);
        if matches!(matched, PhaseMatch::Known | PhaseMatch::New) {
            // The work changed, so the change under trial was measured on other work.
            (self.turn, self.trial) = (None, None);
            self.hold_outs.end();
        }
        let seconds = now.seconds_since(window.window_start);
        self.hold_outs.count(measured.watts * seconds, seconds);
        if let Some(base) = self.base {
            if operating_point.layout_key == base.layout_key
                && operating_point.setting >= knob.top
                && matched != PhaseMatch::Doubtful
            {
                self.phases.see_start(now);
            }
            let of_start = |phase: &JobPhase| phase.free_rate(base.layout_key, &knob, settings.seek_windows);
            if name == ControllerName::Hybrid {
                self.hour.due_rate = self.phases.present().and_then(of_start);
                // If the phase is doubtful, the starting layout's throughput is unknown as well.
                self.add_to_hour(window, self.hour.due_rate.filter(|_| matched != PhaseMatch::Doubtful));
            }
        }
        if workload.paused {
            return draft.maintain("the workload is paused");
        }
        if !state.proposals.is_empty() {
            let reason = match workload.mode {
                UpdateMode::Enforce => "waits for the last decision to be applied",
                UpdateMode::Recommend => "the last recommendation has not been applied",
                UpdateMode::Observe => "the workload is only observed",
            };
            return self.under_way(state, draft).maintain(reason);
        }
        let hot = window.max_temperature_celsius.is_some_and(|celsius| celsius >= settings.temperature_celsius_max);
        let patience = if name == ControllerName::Hybrid { 1 } else { 2 };
        let may_turn =
            workload.mode == UpdateMode::Enforce && self.knob_barred.is_none() && !hot && operating_point.setting < knob.top;
        if matched == PhaseMatch::Doubtful && self.phases.doubts() >= patience && may_turn && !self.phases.are_brief() {
            // The setting that was best for the old work may be far too slow for the new one.
            let (top, unit) = (knob.top, knob.unit());
            let why = format!("the job differs from this phase: the limit is raised to {top:.0} {unit} until its phase is known");
            return self.build_decision(
                SeekStep::Turn { to: top, why },
                &matched,
                state,
                workload,
                &knob,
                operating_point,
                draft,
                settings,
            );
        }
        if matched == PhaseMatch::Doubtful {
            return self
                .under_way(state, draft)
                .maintain("the job differs from this phase: the next windows show whether another phase began");
        }
        let learned = cap_curve(name, workload, context);
        let mut view = SeekPlanner {
            seek: self,
            state,
            operating_point,
            knob: &knob,
            workload,
            context,
            now,
            gpus: window.gpus,
            hot,
            learned,
        };
        let step = view.plan(name == ControllerName::Hybrid);
        let celsius = window.max_temperature_celsius.filter(|celsius| *celsius >= settings.temperature_celsius_max);
        let step = match (step, celsius) {
            (SeekStep::Turn { to, .. }, Some(celsius)) if to > operating_point.setting => {
                SeekStep::Stay(format!("a GPU has {celsius:.0} °C: the {} is not raised to {to:.0} {}", knob.name(), knob.unit()))
            }
            (SeekStep::HoldOut { .. }, Some(celsius)) => SeekStep::Stay(format!("a GPU has {celsius:.0} °C: no hold-out now")),
            (step, _) => step,
        };
        self.build_decision(step, &matched, state, workload, &knob, operating_point, draft, settings)
    }

    /// Makes a decision of a step, with the verdict over the last change.
    #[allow(clippy::too_many_arguments, reason = "all of it is in the decision")]
    fn build_decision(
        &mut self,
        step: SeekStep,
        matched: &PhaseMatch,
        state: &mut ControllerState,
        workload: &Workload,
        knob: &SeekKnob,
        operating_point: OperatingPoint,
        mut draft: DecisionDraft,
        settings: &ControllerSettings,
    ) -> Decision {
        let phase_number = self.phases.present_index();
        draft.add_evidence("phase", Some(phase_number as f64));
        draft.add_evidence("restarts_last_day", Some(state.restarts.len() as f64));
        draft.add_evidence(
            if knob.unit() == "W" { "power_limit_watts" } else { "sm_clock_limit_mhz" },
            Some(operating_point.setting),
        );
        let base = self.base;
        let Some(phase) = self.phases.present() else { return draft.maintain("nothing was measured yet") };
        let here = phase.measured_setting(operating_point).copied();
        let reference = base.and_then(|base| self.reference_throughput(phase, base.layout_key, knob, settings));
        draft.add_evidence("reference_samples_per_second", reference);
        let reference_energy = base.and_then(|base| self.reference_energy(phase, base.layout_key, knob, settings));
        draft.add_evidence("reference_joules_per_sample", reference_energy);
        draft.add_evidence("reference_samples_per_second_min", reference.map(|rate| self.throughput_floor(rate, settings)));
        if let Some(here) = &here {
            draft.add_evidence("measured_windows", Some(f64::from(here.windows)));
            draft.add_evidence("measured_joules_per_sample", Some(here.joules_per_sample()));
        }
        // A trial that is too slow is left before it is measured.
        let leaves = |trial: &SeekChange| {
            trial.is_judged() && matches!(&step, SeekStep::Move { to, .. } if *to == layout_key(&trial.from))
        };
        let early = self.trial.as_ref().is_some_and(leaves);
        let ready = here.filter(|here| here.windows >= if early { 1 } else { settings.seek_windows });
        if early && here.is_some_and(|here| here.windows < settings.seek_windows) {
            self.set_tabu(&workload.layout, true, draft.time().plus_seconds(settings.tabu_seconds), "it was too slow");
        }
        let mut verdict = String::new();
        let goes_on = matches!(step, SeekStep::Stay(_) | SeekStep::Move { .. });
        // A layout is judged once its knob is where it should be; a turn as soon as it is measured.
        let judged = match (&self.turn, &self.trial) {
            (_, Some(_)) if ready.is_some() && goes_on => self.trial.take(),
            (Some(_), None) if ready.is_some() => self.turn.take(),
            _ => None,
        };
        if judged.is_some() {
            self.turn = None;
        }
        let mut way_back = false;
        let pending =
            self.trial.as_ref().or(self.turn.as_ref()).filter(|change| change.is_judged()).map(|change| change.id.clone());
        if let (Some(change), Some(here)) = (judged.filter(SeekChange::is_judged), ready) {
            let phase = self.phases.present().and_then(|phase| {
                phase.curve(layout_key(&change.from), knob).map(|curve| curve.estimate_at(knob.setting_of(&change.from)))
            });
            if let Some(before) = phase {
                let objective = settings.objective;
                let energy_gain = 1.0 - here.joules_per_sample() / before.joules_per_sample();
                let gain = 1.0 - here.score(objective) / before.score(objective);
                let throughput = here.samples_per_second / before.samples_per_second;
                way_back = matches!(&step, SeekStep::Move { to, .. } if *to == layout_key(&change.from));
                let enough = reference.is_none_or(|rate| here.samples_per_second >= self.throughput_floor(rate, settings) * 0.98);
                let confirmed = gain > 0.0 && enough && !way_back;
                draft.add_evidence("before_joules_per_sample", Some(before.joules_per_sample()));
                draft.add_evidence("before_samples_per_second", Some(before.samples_per_second));
                draft.add_evidence("after_joules_per_sample", Some(here.joules_per_sample()));
                draft.add_evidence("after_samples_per_second", Some(here.samples_per_second));
                draft.note_gains(objective, energy_gain, gain);
                draft.add_evidence("throughput_ratio", Some(throughput));
                draft =
                    draft.with_validation(if confirmed { ChangeValidation::Kept } else { ChangeValidation::Failed }, &change.id);
                verdict = format!(
                    "the last change took {:.3} J/sample instead of {:.3} ({}) at {:.1} % of the throughput{}; ",
                    here.joules_per_sample(),
                    before.joules_per_sample(),
                    format_signed_percent(-energy_gain, 1),
                    100.0 * throughput,
                    objective.change_in_words(gain)
                );
            }
        } else if let Some(id) = pending {
            draft = draft.with_validation(ChangeValidation::Pending, &id);
        }
        let news = match matched {
            PhaseMatch::New if phase_number > 1 => "the phase is new; ",
            PhaseMatch::Known => "the phase was measured before; ",
            _ => "",
        };
        let words = |why: &str| format!("phase {phase_number}: {news}{verdict}{why}");
        let mut hold_out = None;
        let (action, to, why) = match step {
            SeekStep::Stay(why) | SeekStep::Measure(why) => return draft.maintain(words(&why)),
            SeekStep::Turn { to, why } => (knob.action(to), knob.with_setting(&workload.layout, to), why),
            SeekStep::HoldOut { extra_watts, why } => {
                hold_out = Some(extra_watts);
                draft.add_evidence("hold_out", Some(1.0));
                draft.add_evidence("hold_out_extra_watts", Some(extra_watts));
                (knob.action(knob.top), knob.with_setting(&workload.layout, knob.top), why)
            }
            SeekStep::Move { to, setting, why } => {
                let from =
                    MatrixKnobs { replicas: operating_point.layout_key.replicas, threads: operating_point.layout_key.threads };
                let into = MatrixKnobs { replicas: to.replicas, threads: to.threads };
                let action =
                    match (way_back, to.replicas > from.replicas, to.threads > from.threads || to.replicas < from.replicas) {
                        (true, ..) => ControllerAction::Revert,
                        (_, true, _) => ControllerAction::ScaleReplicas,
                        (.., true) => ControllerAction::Increase,
                        _ => ControllerAction::Decrease,
                    };
                let gpus = workload.gpus.unwrap_or(1);
                let layout = knob.with_setting(&into.in_layout(&workload.layout, gpus), setting);
                (action, layout, format!("{why}: {}", from.change_to(into)))
            }
        };
        let moves = layout_key(&to) != operating_point.layout_key;
        let decision = if moves {
            draft.change_with_restart(action, to, words(&why))
        } else {
            draft.change_without_restart(action, to, words(&why))
        };
        if let Some(extra_watts) = hold_out {
            self.hold_outs.propose(&decision.id, extra_watts);
        }
        state.proposals = vec![ProposedChange::from_decision(&decision, None)];
        decision
    }

    /// Handles an actuator's report.
    fn on_actuation(
        &mut self,
        state: &mut ControllerState,
        workload: &Workload,
        actuation: &Actuation,
        now: EventTime,
        settings: &ControllerSettings,
    ) -> Option<ChangeNote> {
        if let Some(seconds) = actuation.downtime_seconds.filter(|seconds| *seconds > 0.0 && seconds.is_finite()) {
            state.rollout_seconds = Some(seconds);
        }
        let id = &actuation.decision_id;
        let note =
            |reason: String, validation, until| Some(ChangeNote { reason, concerns: id.clone(), validation, hold_until: until });
        let reason = &actuation.reason;
        let undone = matches!(actuation.outcome, ActuationOutcome::RolledBack | ActuationOutcome::Failed);
        if let Some(proposal) = state.proposals.iter().find(|proposal| proposal.id == *id).cloned() {
            let moves = layout_key(&proposal.from) != layout_key(&proposal.to);
            match actuation.outcome {
                ActuationOutcome::Applied | ActuationOutcome::Ready => {
                    state.proposals.clear();
                    let ProposedChange { from, to, action, .. } = proposal;
                    let revert = moves && action == ControllerAction::Revert;
                    let hold_out = self.hold_outs.begin(id);
                    let change = SeekChange { id: id.clone(), from, to, generation: actuation.generation, hold_out, revert };
                    if moves {
                        state.count_restart(actuation.time, id.clone());
                        self.warming_up = settings.warm_up_windows;
                        (self.trial, self.turn) = (Some(change), None);
                    } else {
                        self.turn = Some(change);
                    }
                    return None;
                }
                ActuationOutcome::Recommended => return None,
                ActuationOutcome::Refused if workload.mode != UpdateMode::Enforce => return None,
                ActuationOutcome::Refused => {
                    state.proposals.clear();
                    let until = now.plus_seconds(settings.hold_seconds);
                    let why = format!("the last decision was refused: {reason}");
                    self.set_tabu(&proposal.to, moves, until, &why);
                    return note(why, ChangeValidation::None, Some(until));
                }
                ActuationOutcome::RolledBack | ActuationOutcome::Failed => {
                    state.proposals.clear();
                    if moves {
                        state.count_restart(actuation.time, id.clone());
                    }
                    self.restoring = Some(proposal.from);
                    let (why, until) = self.on_undone(state, &proposal.to, moves, actuation, now, settings);
                    return note(why, ChangeValidation::Failed, Some(until));
                }
            }
        }
        let change = [&self.trial, &self.turn].into_iter().flatten().find(|change| change.id == *id).cloned();
        if let Some(change) = change.filter(|_| undone) {
            let moves = self.trial.as_ref().is_some_and(|trial| trial.id == change.id);
            let to = change.to;
            (self.trial, self.turn) = (None, None);
            self.restoring = Some(change.from);
            let (why, until) = self.on_undone(state, &to, moves, actuation, now, settings);
            return note(why, ChangeValidation::Failed, Some(until));
        }
        None
    }

    /// Notes that the actuator undid a change, or failed to: the change is not tried again for some time.
    fn on_undone(
        &mut self,
        state: &mut ControllerState,
        to: &Layout,
        moves: bool,
        actuation: &Actuation,
        now: EventTime,
        settings: &ControllerSettings,
    ) -> (String, EventTime) {
        let back = actuation.outcome == ActuationOutcome::RolledBack;
        if back && moves {
            state.count_restart(actuation.time, format!("{}/rolled-back", actuation.decision_id));
        }
        let what = if back { "was rolled back" } else { "failed" };
        let why = format!("the last change {what}: {}", actuation.reason);
        let until = now.plus_seconds(settings.tabu_seconds);
        self.set_tabu(to, moves, until, &why);
        (why, until)
    }

    fn set_tabu(&mut self, to: &Layout, moves: bool, until: EventTime, why: &str) {
        let barred = TabuLayout { layout_key: layout_key(to), until, why: why.to_owned() };
        if moves {
            self.barred.retain(|known| known.layout_key != barred.layout_key);
            self.barred.push(barred);
        } else {
            self.knob_barred = Some(barred);
        }
    }

    /// Returns whether a turn or a layout is being measured.
    pub fn is_trying(&self) -> bool {
        self.turn.is_some() || self.trial.is_some()
    }

    /// Accepts a generation that the job's own knobs made: the layout is the one that was measured, and only the work is another.
    pub fn accept_generation(&mut self, generation: u64) {
        if self.base.is_some() && self.generation.replace(generation) != Some(generation) {
            self.phases.clear_doubts();
        }
    }

    /// Follows the job's own settings: what was measured with other ones is of other work.
    fn follow_job_settings(&mut self, workload: &Workload) {
        if self.phases.follow_job_settings(JobSettings::of_layout(&workload.layout)) {
            (self.turn, self.trial) = (None, None);
            self.hold_outs.end();
            self.hour.due_rate = None;
        }
    }

    /// Follows the layout: one that is set from outside is the baseline from then on.
    fn follow_layout(
        &mut self,
        name: ControllerName,
        state: &mut ControllerState,
        workload: &Workload,
        now: EventTime,
    ) -> Option<ChangeNote> {
        let generation = workload.generation;
        let known = self.generation.replace(generation);
        if known == Some(generation) {
            return None;
        }
        self.phases.clear_doubts();
        let ours = |id: &String| {
            let decided = [&self.trial, &self.turn].into_iter().flatten().map(|change| (&change.id, &change.from));
            let proposed = state.proposals.iter().map(|proposal| (&proposal.id, &proposal.from));
            decided.chain(proposed).any(|(known, _)| known == id)
        };
        // A rollback carries no decision, and restores the layout before.
        let restored = || {
            let before = [&self.trial, &self.turn].into_iter().flatten().map(|change| &change.from);
            let proposed = state.proposals.iter().map(|proposal| &proposal.from);
            before.chain(proposed).chain(&self.restoring).any(|from| *from == workload.layout)
        };
        let expected = match &workload.decision_id {
            Some(id) => ours(id),
            None => known.is_some() && restored(),
        };
        if expected && self.base.is_some() {
            self.restoring = None;
            return None;
        }
        let own = match name {
            ControllerName::Frequency => workload.layout.sm_clock_mhz,
            _ => workload.layout.power_limit_watts,
        };
        // A layout that a decision set is not the user's choice.
        let own = own.filter(|_| workload.decision_id.is_none());
        let concerns = self.trial.take().or(self.turn.take()).map(|change| change.id);
        let first = self.base.is_none();
        *self = Self {
            base: Some(StartingLayout { layout_key: layout_key(&workload.layout), own }),
            began: now,
            generation: Some(generation),
            highest_mhz: self.highest_mhz,
            hold_outs: std::mem::take(&mut self.hold_outs).of_new_start(),
            ..Self::default()
        };
        if first {
            return None;
        }
        state.proposals.clear();
        Some(ChangeNote {
            reason: "the layout was changed from outside: it is the baseline from now on".into(),
            concerns: concerns.unwrap_or_default(),
            validation: ChangeValidation::None,
            hold_until: None,
        })
    }

    /// Adds a window to the sums of the last hour. If the throughput of the starting layout is unknown, no work is due.
    fn add_to_hour(&mut self, window: &EfficiencyWindow, due_rate: Option<f64>) {
        let (start, end) = (window.window_start, window.window_end);
        let by_rate = window.samples_per_second.map(|rate| rate * end.seconds_since(start));
        let done = match window.samples.or(by_rate) {
            Some(samples) => samples,
            None if window.restarted => 0.0,
            None => return,
        };
        let due = due_rate.map_or(done, |rate| rate * end.seconds_since(start));
        self.hour.add(start, end, done, due);
    }

    /// Returns the window's figures if it can be compared with others of this layout, or why not.
    fn usable_window(
        &mut self,
        name: ControllerName,
        window: &EfficiencyWindow,
        workload: &Workload,
        context: &ControllerContext<'_>,
    ) -> Result<MeasuredWindow, String> {
        let settings = context.settings;
        if window.restarted {
            // A knob that was turned also marks its window, but no process was replaced then.
            let turned = self.turn.as_ref().is_some_and(|turn| turn.generation == workload.generation);
            if !turned {
                self.warming_up = settings.warm_up_windows;
                return MeasuredWindow::from_event(window, settings.coverage_min_ratio);
            }
            return Err("the limit was changed in this window: the window is not used".into());
        }
        if name == ControllerName::Hybrid
            && let Some(difference) = self.job_difference.take()
        {
            self.warming_up = settings.warm_up_windows;
            return Err(difference);
        }
        MeasuredWindow::of_layout(window, workload, settings.coverage_min_ratio)
    }

    /// Marks a decision that only waits, with the event that it waits for.
    fn under_way(&self, state: &ControllerState, draft: DecisionDraft) -> DecisionDraft {
        let change = self.trial.as_ref().or(self.turn.as_ref()).map(|change| &change.id);
        match change.or(state.proposals.last().map(|proposal| &proposal.id)) {
            Some(id) => draft.with_validation(ChangeValidation::Pending, id),
            None => draft,
        }
    }

    /// Returns the least throughput that is allowed if the starting layout has this much.
    #[allow(clippy::unused_self, reason = "reads as what it belongs to")]
    fn throughput_floor(&self, reference: f64, settings: &ControllerSettings) -> f64 {
        let relative = reference * (1.0 - settings.max_slowdown_ratio);
        settings.samples_per_second_min.map_or(relative, |least| relative.max(least))
    }

    /// Returns the throughput of the starting layout with nothing held back, in a phase. If only other layouts were measured so,
    /// the best of them replaces it. A lead in one phase shows nothing about another phase, and too much demanded throughput is
    /// safer than too little. One that was behind in another phase is taken to be so here, too.
    fn reference_throughput(
        &self,
        phase: &JobPhase,
        base: LayoutKey,
        knob: &SeekKnob,
        settings: &ControllerSettings,
    ) -> Option<f64> {
        let free = |phase: &JobPhase, layout_key: LayoutKey, need: u32| phase.free_rate(layout_key, knob, need);
        let well = settings.reference_windows;
        if let Some(rate) = free(phase, base, well) {
            return Some(rate);
        }
        let behind = |layout_key: LayoutKey| {
            let ratios = self
                .phases
                .others()
                .filter_map(|other| Some(free(other, layout_key, settings.seek_windows)? / free(other, base, well)?));
            ratios.fold(1.0, f64::min)
        };
        let spots = || phase.points.iter().filter(|p| p.layout_key != base && p.setting >= knob.top).map(|p| p.layout_key);
        spots().find(|layout_key| free(phase, *layout_key, well).is_some())?;
        spots()
            .filter_map(|layout_key| Some(free(phase, layout_key, settings.seek_windows)? / behind(layout_key)))
            .reduce(f64::max)
    }

    /// Returns the J/sample of the starting layout with nothing held back, in a phase: what savings are reckoned against. If it
    /// was not measured in this phase, that of other layouts here, over what these took of it in phases where both were
    /// measured.
    fn reference_energy(&self, phase: &JobPhase, base: LayoutKey, knob: &SeekKnob, settings: &ControllerSettings) -> Option<f64> {
        let free = |phase: &JobPhase, layout_key: LayoutKey| {
            let free =
                |p: &&MeasuredSetting| p.layout_key == layout_key && p.setting >= knob.top && p.windows >= settings.seek_windows;
            phase.points.iter().find(free).map(MeasuredSetting::joules_per_sample)
        };
        let mean = |values: &[f64]| (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64);
        free(phase, base).or_else(|| {
            let of_spot = |layout_key: LayoutKey| {
                let ratios: Vec<f64> = self.phases.others().filter_map(|o| Some(free(o, base)? / free(o, layout_key)?)).collect();
                Some(free(phase, layout_key)? * mean(&ratios)?)
            };
            let inferred: Vec<f64> =
                phase.points.iter().filter(|p| p.setting >= knob.top).filter_map(|p| of_spot(p.layout_key)).collect();
            mean(&inferred)
        })
    }
}

/// Inputs of a plan.
struct SeekPlanner<'a> {
    seek: &'a SeekState,
    state: &'a ControllerState,
    operating_point: OperatingPoint,
    knob: &'a SeekKnob,
    workload: &'a Workload,
    context: &'a ControllerContext<'a>,
    now: EventTime,
    gpus: u32,
    /// A GPU is so hot that nothing is turned up.
    hot: bool,
    learned: Option<ModelInForce<'a, CapCurveDocument>>,
}

/// Points of one layout in one phase after which the best known one is taken.
const POINTS_ENOUGH: usize = 10;
/// `hybrid` aims above the promised floor by this part of the reference.
const FLOOR_MARGIN: f64 = 0.01;
/// A throughput that is this part under the floor is not worth a turn: it is not known better.
const FLOOR_SLACK: f64 = 0.0075;
/// Caps at which a learned curve is asked.
const ADVICE_STEPS: u32 = 200;
/// Settings nearer than this, as a logarithm, are not distinguished.
const NOTCH: f64 = 0.012;

impl SeekPlanner<'_> {
    fn plan(&mut self, layouts: bool) -> SeekStep {
        let (seek, knob, settings, operating_point) = (self.seek, self.knob, self.context.settings, self.operating_point);
        let (need, objective) = (settings.seek_windows, settings.objective);
        let (Some(phase), Some(base)) = (seek.phases.present(), seek.base) else {
            return SeekStep::Measure("nothing was measured yet".into());
        };
        let here = phase.measured_setting(operating_point).map_or(0, |point| point.windows);
        let measures = |need: u32| {
            SeekStep::Measure(format!(
                "measured so far: {here} of {need} windows at {:.0} {}",
                operating_point.setting,
                knob.unit()
            ))
        };
        let measuring = measures(need);
        if let Some(why) = seek.hold_outs.status_message() {
            return SeekStep::Measure(why);
        }
        if layouts && let Some(step) = self.leave_slow_trial(phase, base) {
            return step;
        }
        if seek.turn.is_some() && here < need {
            return measuring;
        }
        let measured = phase.free_rate(base.layout_key, knob, settings.reference_windows).is_some();
        if layouts
            && !measured
            && operating_point.layout_key != base.layout_key
            && let Some(step) = self.visit_starting_layout(phase, base)
        {
            return step;
        }
        let known = seek
            .reference_throughput(phase, base.layout_key, knob, settings)
            .filter(|_| measured || operating_point.layout_key != base.layout_key);
        let Some(reference) = known else {
            if operating_point.setting < knob.top {
                let why = format!("measures the job at {:.0} {}, without a limit", knob.top, knob.unit());
                return self.turn(knob.top, why);
            }
            return measures(settings.reference_windows);
        };
        // If the starting layout's throughput is unknown, the present layout is at least not slowed down by more than is allowed.
        let own = phase.free_rate(operating_point.layout_key, knob, need).filter(|_| !measured);
        let reference_here = own.map_or(reference, |own| own.min(reference));
        // Restarts and changes of the work cost throughput, too, which only `hybrid` reckons with.
        let margin = if layouts { FLOOR_MARGIN.min(settings.max_slowdown_ratio) } else { 0.0 };
        let common_floor = seek.throughput_floor(reference, settings) + margin * reference;
        let floor = seek.throughput_floor(reference_here, settings) + margin * reference_here;
        let Some(curve) = phase.curve(operating_point.layout_key, knob) else { return measuring };
        // If the knob cannot be turned, only measured settings are available.
        let stuck = seek.knob_barred.is_some();
        let best = if stuck { curve.best_measured(floor, objective) } else { curve.best(floor, objective) };
        let points = phase.points.iter().filter(|p| p.layout_key == operating_point.layout_key).count();
        if layouts
            && !stuck
            && let Some(step) = self.make_up(phase)
        {
            return step;
        }
        let settled = best.settled || stuck || points >= POINTS_ENOUGH || (best.setting - operating_point.setting).abs() < 0.5;
        if !settled {
            if here < need {
                return measuring;
            }
            if layouts && let Some(step) = self.other_layout(phase, common_floor, &best, false) {
                return self.when_affordable(step, phase, best.feasible);
            }
            if let Some(step) = self.learned_cap_step(phase, floor) {
                return step;
            }
            let why = format!(
                "{:.3} J/sample at {:.0} {}, {:.0} % of the throughput without a limit; tries {:.0} {}",
                curve.estimate_at(operating_point.setting).joules_per_sample(),
                operating_point.setting,
                knob.unit(),
                100.0 * curve.estimate_at(operating_point.setting).samples_per_second / reference_here,
                best.setting,
                knob.unit()
            );
            return self.turn(best.setting, why);
        }
        if layouts
            && here >= need
            && let Some(step) = self.other_layout(phase, common_floor, &best, true)
        {
            return self.when_affordable(step, phase, best.feasible);
        }

        let at = curve.estimate_at(operating_point.setting);
        let gain = 1.0 - best.expected.score(objective) / at.score(objective);
        let slow = at.samples_per_second < floor * (1.0 - FLOOR_SLACK);
        let apart = (best.setting / operating_point.setting).ln().abs() > NOTCH;
        if apart && (slow || (best.feasible && gain >= settings.seek_gain_ratio)) {
            let why = format!(
                "{:.0} {} is best here{}: about {:.3} J/sample at {:.0} % of the throughput without a limit",
                best.setting,
                knob.unit(),
                objective.purpose_suffix(),
                best.expected.joules_per_sample(),
                100.0 * best.expected.samples_per_second / reference_here
            );
            return self.turn(best.setting, why);
        }
        if operating_point.layout_key == base.layout_key
            && self.workload.mode == UpdateMode::Enforce
            && !stuck
            && let Some((extra_watts, why)) =
                seek.hold_outs.due_hold_out(phase, operating_point, knob, settings.hold_out_energy_ratio, self.now)
        {
            return SeekStep::HoldOut { extra_watts, why };
        }
        let held = format!(
            "holds {:.0} {}{}: {:.3} J/sample at {:.0} % of the throughput without a limit",
            operating_point.setting,
            knob.unit(),
            objective.purpose_suffix(),
            at.joules_per_sample(),
            100.0 * at.samples_per_second / reference_here
        );
        SeekStep::Stay(held)
    }

    /// Returns the cap that a learned curve finds best, if this layout was measured only without a limit. The curve must be of
    /// this layout and agree with that measurement. It only chooses the first cap to try.
    fn learned_cap_step(&self, phase: &JobPhase, floor: f64) -> Option<SeekStep> {
        let (knob, operating_point) = (self.knob, self.operating_point);
        let model = self.learned?;
        let layout = &self.workload.layout;
        let shape = [layout.replicas, layout.mps_thread_percentage, layout.world_size, layout.local_world_size];
        let here = phase.measured_setting(operating_point)?;
        let alone = phase.points.iter().filter(|p| p.layout_key == operating_point.layout_key).count() == 1;
        if model.document.layout != Some(shape) || !alone || operating_point.setting < knob.top {
            return None;
        }
        let curve = &model.document.curve;
        let [low, high] = curve.watts_range;
        let free = here.reading.min(high);
        let scale = here.samples_per_second / curve.throughput(free)?;
        if scale.ln().abs() > (1.0 + self.context.settings.phase_change_ratio).ln() {
            return None;
        }
        // If the measured power is above the curve's range, the two throughputs are of different powers and give no scale.
        let scale = if here.reading <= high { scale } else { 1.0 };
        let (from, to) = (low.max(knob.least), free.min(knob.top));
        let energy = |watts: f64| Some((watts, watts / (scale * curve.throughput(watts)?)));
        let score = |(watts, joules): (f64, f64)| self.context.settings.objective.score(joules, joules / watts);
        let steps = f64::from(ADVICE_STEPS);
        let best = (0..=ADVICE_STEPS)
            .filter_map(|step| energy(from + (to - from) * f64::from(step) / steps))
            .filter(|(watts, joules)| watts / joules >= floor)
            // Equal scores: the higher setting wins.
            .reduce(|best, next| if score(next) <= score(best) { next } else { best })?;
        let setting = knob.round_to_step(best.0);
        if (here.reading / setting).ln() < 2.0 * NOTCH {
            return None;
        }
        let saving = 1.0 - best.1 / energy(free)?.1;
        let why = format!(
            "{:.3} J/sample at {:.0} W, without a limit; tries {setting:.0} W, at which {} version {} expects {:.1} % less",
            here.joules_per_sample(),
            operating_point.setting,
            model.name,
            model.version,
            100.0 * saving
        );
        Some(self.turn(setting, why))
    }

    fn turn(&self, to: f64, why: String) -> SeekStep {
        match &self.seek.knob_barred {
            Some(barred) => {
                SeekStep::Stay(format!("the {} is not changed before {}: {}", self.knob.name(), barred.until, barred.why))
            }
            None => SeekStep::Turn { to, why },
        }
    }
}
