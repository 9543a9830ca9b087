//! Knobs that a job turns by itself on request: its precision, and the blocks at its input side that it freezes.
//!
//! Both go through the same steps as other changes, without restarts. What they rest on comes from the job's own reports
//! (`TrainingReport` of the workload), and quality is a limit of its own: J/sample always falls when less is computed.
//!
//! ```text
//! window ─▶ settle ─▶ guard: validation loss, learning rate ─▶ judge ─▶ kept | revert
//!                                   │ nothing under way
//!                                   ▼
//!                     precision, then layers: allowed, and worth it ─▶ directive to the job
//! ```

mod layers;
#[cfg(test)]
mod learning_curves;
mod loss_guard;
mod precision;
#[cfg(test)]
mod tests;
mod trend;

use eadt_schemas::EventTime;
use eadt_schemas::figures::format_signed_percent;
use eadt_schemas::v1::{
    Actuation, ActuationOutcome, ChangeValidation, ControllerAction, Decision, EfficiencyWindow, Layout, Precision, UpdateMode,
    Workload,
};
use serde::{Deserialize, Serialize};

use super::draft::DecisionDraft;
use super::history::{MeasuredWindow, Medians, RecentWindows};
use super::state::ControllerState;
use super::trial::ChangeNote;
use super::{ControllerContext, ControllerName, ControllerSettings};
use crate::workload::report::TrainingReport;
use layers::LayerFreezing;
use precision::PrecisionChoice;

/// State of the controllers of a job's own knobs.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct JobKnobState {
    /// Time of the job's first report.
    since: Option<EventTime>,
    recent: RecentWindows,
    proposal: Option<JobChange>,
    trial: Option<JobTrial>,
    barred: Vec<TabuKnob>,
    /// The change to take back, until it is taken back.
    pending_revert: Option<PendingRevert>,
    /// The last change that was applied, and the layout that a roll-back restores.
    last_id: Option<String>,
    restoring: Option<Layout>,
    /// The generation that one of its own changes made.
    own_generation: Option<u64>,
    /// The newest change, once it is kept. The job may take it back later all the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    kept: Option<JobChange>,
    /// The layout in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    in_force: Option<Layout>,
    /// Start of the first of the windows running in which the job reports other settings than those in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    differs_since: Option<EventTime>,
    layers: LayerFreezing,
    precision: PrecisionChoice,
}

/// The knob that a change turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum JobKnob {
    Layers,
    Precision,
}

/// A change that the job is asked for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct JobChange {
    id: String,
    knob: JobKnob,
    from: Layout,
    to: Layout,
    expires: EventTime,
    /// The figures to beat; `None` if the change reverts an earlier one, and needs no justification.
    baseline: Option<TrialBaseline>,
    /// Number of freezes after the change.
    freezes: usize,
}

/// The windows before a change.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct TrialBaseline {
    windows: Vec<MeasuredWindow>,
    /// Part of the energy per sample that is expected to be saved.
    expected_gain_ratio: f64,
}

/// A change that the job has taken up, or is about to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct JobTrial {
    change: JobChange,
    generation: u64,
    windows: Vec<MeasuredWindow>,
    warming_up: u32,
}

/// A setting that is to be left again: asked for until it is done.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct PendingRevert {
    knob: JobKnob,
    to: Layout,
    freezes: usize,
    why: String,
    /// It is on its way to the job: the change, and the generation that it made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(rename = "asked")]
    requested: Option<(JobChange, u64)>,
    /// The job refused it: asked for again then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    not_before: Option<EventTime>,
}

impl JobChange {
    /// Returns the number of freezes without the change.
    fn freezes_without(&self) -> usize {
        self.freezes.saturating_sub(usize::from(self.knob == JobKnob::Layers))
    }
}

impl PendingRevert {
    /// Returns whether a layout has the settings to be restored.
    fn is_done(&self, layout: &Layout) -> bool {
        let precision = layout.precision == self.to.precision;
        match self.knob {
            JobKnob::Precision => precision,
            JobKnob::Layers => precision && layout.frozen_prefix_layers == self.to.frozen_prefix_layers,
        }
    }

    /// Returns whether an unfreeze that leaves so many freezes takes more back than this one.
    fn is_weaker_than(&self, freezes: usize) -> bool {
        self.knob == JobKnob::Precision || freezes < self.freezes
    }

    fn waiting_message(&self) -> String {
        match self.not_before {
            Some(time) => format!("the change to revert is still in force, and its revert is requested again after {time}"),
            None => "another change is to be reverted first".to_owned(),
        }
    }
}

/// A knob that is not changed before `until`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct TabuKnob {
    knob: JobKnob,
    until: EventTime,
    why: String,
}

/// A change to propose, or why there is none.
enum JobKnobPlan {
    Change { action: ControllerAction, to: Layout, expected_gain_ratio: f64, why: String },
    None(String),
}

/// Result of a window for the job's own knobs.
pub(super) enum JobKnobOutcome {
    /// A decision about a change of the job's own knobs.
    Decided(Box<Decision>),
    /// No change is under way. `hindrance`: the reason why none can be begun with this window.
    Idle { draft: Box<DecisionDraft>, hindrance: Option<String> },
}

/// Returns the knobs that a controller turns.
const fn knobs(name: ControllerName) -> &'static [JobKnob] {
    match name {
        ControllerName::Layers => &[JobKnob::Layers],
        ControllerName::Precision => &[JobKnob::Precision],
        _ => &[JobKnob::Precision, JobKnob::Layers],
    }
}

/// Returns whether a policy lets any of the job's own knobs be turned.
pub(super) fn is_bounded(workload: &Workload) -> bool {
    let bounds = &workload.bounds;
    bounds.frozen_prefix_layers_max.is_some_and(|most| most > 0) || bounds.precisions.as_ref().is_some_and(|all| !all.is_empty())
}

/// A setting of which the job reports another value than the one that was requested.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum ReportedDifference {
    Layers { reported: u32, requested: u32 },
    Precision { reported: String, requested: Precision },
}

impl ReportedDifference {
    pub fn message(&self) -> String {
        format!("{}: the window is not used", self.what())
    }

    fn what(&self) -> String {
        match self {
            Self::Layers { reported, requested } => {
                format!("the job reports {reported} frozen layers, and {requested} were requested")
            }
            Self::Precision { reported, requested } => format!("the job reports {reported}, and {requested} was requested"),
        }
    }
}

/// Returns the setting of which the job reports another value than the layout in force has. The figures of such a window are not
/// those of the layout.
fn reported_difference(workload: &Workload, report: Option<&TrainingReport>) -> Option<ReportedDifference> {
    let report = report.filter(|_| is_bounded(workload))?;
    let (precision, layers) = workload.layout.asked_of_job();
    if let (Some(requested), Some(reported)) = (layers, report.frozen_prefix_layers)
        && reported != requested
    {
        return Some(ReportedDifference::Layers { reported, requested });
    }
    let (requested, reported) = precision.zip(report.precision.as_ref())?;
    let differs = !reported.eq_ignore_ascii_case(requested.as_str());
    differs.then(|| ReportedDifference::Precision { reported: reported.clone(), requested })
}

/// Returns a layout with the job's own settings of another one.
fn with_job_settings_of(layout: &Layout, other: &Layout) -> Layout {
    let (precision, frozen_prefix_layers) = other.asked_of_job();
    Layout { precision, frozen_prefix_layers, ..layout.clone() }
}

/// Decides for `layers` or `precision` alone.
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
    let mut training = state.training.take().unwrap_or_default();
    let decision = match training.update_from_window(window, workload, draft, context) {
        JobKnobOutcome::Decided(decision) => *decision,
        JobKnobOutcome::Idle { draft, hindrance: Some(reason) } => draft.maintain(reason),
        JobKnobOutcome::Idle { draft, hindrance: None } => training.propose(name, window, workload, *draft, context),
    };
    state.training = Some(training);
    decision
}

impl JobKnobState {
    /// Returns whether one of its own changes made the layout in force.
    pub fn is_own_generation(&self, generation: u64) -> bool {
        self.own_generation == Some(generation)
    }

    /// Handles a window: its history, guards and verdicts.
    pub fn update_from_window(
        &mut self,
        window: &EfficiencyWindow,
        workload: &Workload,
        draft: DecisionDraft,
        context: &ControllerContext<'_>,
    ) -> JobKnobOutcome {
        let (settings, now) = (context.settings, window.window_end);
        let fate = context.last_actuation.and_then(|actuation| self.on_actuation(workload, actuation, now, settings));
        let outside = self.follow_layout(workload, now, settings);
        self.finish_revert(workload, now, settings);
        self.barred.retain(|barred| barred.until > now);
        self.proposal.take_if(|proposal| proposal.expires <= now);
        self.observe(context, settings);
        if let Some(note) = fate.or(outside) {
            return JobKnobOutcome::Decided(Box::new(draft.maintain_with_note(note)));
        }
        if workload.mode == UpdateMode::Enforce
            && !workload.paused
            && self.proposal.is_none()
            && self.pending_revert.as_ref().is_none_or(|pending| pending.requested.is_none())
            && let Some(back) = context.training.and_then(|report| self.layers.check_quality(report, workload, settings))
            && self.pending_revert.as_ref().is_none_or(|pending| pending.is_weaker_than(back.freezes))
        {
            let reason = format!("frozen blocks train again: {}", back.why);
            if back.bars {
                self.set_tabu(JobKnob::Layers, now.plus_seconds(settings.tabu_seconds), &back.why);
            }
            let trial = self.trial.take();
            let (mut to, mut reason) = (back.to, reason);
            if let Some(tried) = trial.as_ref().filter(|trial| trial.change.knob == JobKnob::Precision) {
                to.precision = tried.change.from.precision;
                reason.push_str("; the precision under trial is reverted with them");
            } else if let Some(pending) = self.pending_revert.as_ref().filter(|pending| pending.knob == JobKnob::Precision) {
                to.precision = pending.to.precision;
                reason.push_str("; the precision that was to be reverted is reverted with them");
            }
            let concerns = trial.map(|trial| trial.change.id).or_else(|| self.last_id.clone());
            let draft = draft.with_validation(ChangeValidation::Failed, &concerns.unwrap_or_default());
            return JobKnobOutcome::Decided(Box::new(self.revert(JobKnob::Layers, &to, back.freezes, reason, workload, draft)));
        }
        let measured = self.usable_window(window, workload, context);
        if let Some((knob, to, freezes, why)) = self.lasting_difference(window, workload, context) {
            self.set_tabu(knob, now.plus_seconds(settings.tabu_seconds), &why);
            let (trial, mut to, mut why) = (self.trial.take(), to, why);
            self.kept.take_if(|kept| kept.knob == knob);
            if let Some(tried) = trial.as_ref().filter(|trial| knob == JobKnob::Layers && trial.change.knob == JobKnob::Precision)
            {
                to.precision = tried.change.from.precision;
                why.push_str("; the precision under trial is reverted with them");
            }
            let concerns = trial.map(|trial| trial.change.id).or_else(|| self.last_id.clone());
            let draft = draft.with_validation(ChangeValidation::Failed, &concerns.unwrap_or_default());
            return JobKnobOutcome::Decided(Box::new(self.revert(knob, &to, freezes, why, workload, draft)));
        }
        if self.pending_revert.as_ref().is_some_and(|pending| pending.requested.is_some()) {
            let draft = draft.with_validation(ChangeValidation::Failed, self.last_id.as_deref().unwrap_or_default());
            return JobKnobOutcome::Decided(Box::new(
                draft.maintain("the revert was requested from the job, and is not made yet"),
            ));
        }
        if workload.mode == UpdateMode::Enforce
            && !workload.paused
            && self.proposal.is_none()
            && let Some(PendingRevert { knob, to, freezes, why, not_before, .. }) = self.pending_revert.clone()
            && not_before.is_none_or(|time| time <= now)
            && self.trial.is_none()
        {
            let draft = draft.with_validation(ChangeValidation::Failed, self.last_id.as_deref().unwrap_or_default());
            return JobKnobOutcome::Decided(Box::new(self.revert(knob, &to, freezes, why, workload, draft)));
        }
        if self.trial.is_some() {
            return JobKnobOutcome::Decided(Box::new(self.evaluate_trial(measured, workload, draft, context)));
        }
        if self.proposal.is_some() {
            let reason = match workload.mode {
                UpdateMode::Enforce => "waits for the last decision to be applied",
                UpdateMode::Recommend => "the last recommendation has not been applied",
                UpdateMode::Observe => "the workload is only observed",
            };
            let id = self.proposal.as_ref().map(|proposal| proposal.id.clone()).unwrap_or_default();
            return JobKnobOutcome::Decided(Box::new(draft.with_validation(ChangeValidation::Pending, &id).maintain(reason)));
        }
        let keep = settings.validation_windows.max(settings.precision_trial_windows);
        let hindrance = match measured {
            Err(reason) => Some(reason),
            Ok(measured) => {
                let added = self.recent.add(measured, keep, now.seconds_since(window.window_start));
                (!added).then(|| "the job warms up after a change".into())
            }
        };
        let hindrance = match workload.mode {
            _ if workload.paused => Some("the workload is paused".into()),
            UpdateMode::Observe => Some("the workload is only observed".into()),
            _ => match &self.pending_revert {
                Some(pending) => Some(pending.waiting_message()),
                None => hindrance,
            },
        };
        JobKnobOutcome::Idle { draft: Box::new(draft), hindrance }
    }

    /// Asks for a change of the job, if any is allowed and worth it.
    pub fn propose(
        &mut self,
        name: ControllerName,
        window: &EfficiencyWindow,
        workload: &Workload,
        mut draft: DecisionDraft,
        context: &ControllerContext<'_>,
    ) -> Decision {
        let settings = context.settings;
        let mut reasons = Vec::new();
        for knob in knobs(name) {
            let plan = match self.barred.iter().find(|barred| barred.knob == *knob) {
                Some(barred) => {
                    JobKnobPlan::None(format!("no change is requested from the job before {}: {}", barred.until, barred.why))
                }
                None => match context.training {
                    None => JobKnobPlan::None("the job reports neither its precision nor its layers".into()),
                    Some(report) => match knob {
                        JobKnob::Layers => self.layers.plan(report, window, workload, &mut draft, context),
                        JobKnob::Precision => self.precision.plan(report, workload, &mut draft, settings),
                    },
                },
            };
            let (action, to, expected_gain_ratio, why) = match plan {
                JobKnobPlan::None(reason) => {
                    reasons.push(reason);
                    continue;
                }
                JobKnobPlan::Change { action, to, expected_gain_ratio, why } => (action, to, expected_gain_ratio, why),
            };
            if to == workload.layout {
                reasons.push(format!("{} was requested already", knob.display_name()));
                continue;
            }
            let need = windows_needed(*knob, &to, settings);
            if self.recent.windows.len() < need {
                let have = self.recent.windows.len();
                reasons.push(format!("{have} of the {need} windows that {} is compared with are there", knob.display_name()));
                continue;
            }
            let windows = self.recent.windows.iter().skip(self.recent.windows.len() - need).copied().collect();
            let freezes = self.layers.freeze_count() + usize::from(*knob == JobKnob::Layers);
            let decision = draft.change_without_restart(action, to, why);
            self.proposal = Some(JobChange {
                id: decision.id.clone(),
                knob: *knob,
                from: decision.from.clone(),
                to: decision.to.clone(),
                expires: decision.expires,
                baseline: Some(TrialBaseline { windows, expected_gain_ratio }),
                freezes,
            });
            return decision;
        }
        draft.maintain(reasons.join("; "))
    }

    fn set_tabu(&mut self, knob: JobKnob, until: EventTime, why: &str) {
        self.barred.retain(|barred| barred.knob != knob);
        self.barred.push(TabuKnob { knob, until, why: why.into() });
    }

    /// Takes in the job's reports.
    fn observe(&mut self, context: &ControllerContext<'_>, settings: &ControllerSettings) {
        let Some(report) = context.training else { return };
        if self.since != report.since {
            // Another job: the learned figures were of the former one, and nothing is frozen at its start.
            self.since = report.since;
            let unfrozen = context.workload.and_then(|workload| self.layers.without_freezes(&workload.layout));
            self.pending_revert = unfrozen.map(|to| PendingRevert {
                knob: JobKnob::Layers,
                to,
                freezes: 0,
                why: "another job began: its blocks are measured anew".into(),
                requested: None,
                not_before: None,
            });
            (self.proposal, self.trial) = (None, None);
            (self.layers, self.precision, self.barred) = Default::default();
        }
        let at_rest = self.trial.is_none() && self.proposal.is_none() && self.pending_revert.is_none();
        self.layers.observe(report, at_rest, settings);
        self.precision.observe(report, self.layers.is_warming_up());
    }

    /// Handles an actuator's report.
    fn on_actuation(
        &mut self,
        workload: &Workload,
        actuation: &Actuation,
        now: EventTime,
        settings: &ControllerSettings,
    ) -> Option<ChangeNote> {
        let id = &actuation.decision_id;
        let note =
            |reason: String, validation, until| Some(ChangeNote { reason, concerns: id.clone(), validation, hold_until: until });
        if self.proposal.as_ref().is_some_and(|proposal| proposal.id == *id) {
            match actuation.outcome {
                ActuationOutcome::Applied | ActuationOutcome::Ready => {
                    let change = self.proposal.take()?;
                    self.begin_trial(change, actuation, settings);
                    return None;
                }
                ActuationOutcome::Recommended => return None,
                ActuationOutcome::Refused if workload.mode != UpdateMode::Enforce => return None,
                ActuationOutcome::Refused => {
                    let change = self.proposal.take()?;
                    let why = format!("the last decision was refused: {}", actuation.reason);
                    // A change to take back stays pending, and is requested again.
                    let until = change.baseline.is_some().then(|| now.plus_seconds(settings.hold_seconds));
                    if let Some(until) = until {
                        self.set_tabu(change.knob, until, &why);
                    }
                    return note(why, ChangeValidation::None, until);
                }
                ActuationOutcome::RolledBack | ActuationOutcome::Failed => {
                    let change = self.proposal.take()?;
                    if change.baseline.is_none() {
                        return Some(self.refused_revert(&change, actuation, now, settings));
                    }
                    let (why, until) = self.on_undone(&change, actuation, now, settings);
                    return note(why, ChangeValidation::Failed, Some(until));
                }
            }
        }
        let undone = matches!(actuation.outcome, ActuationOutcome::RolledBack | ActuationOutcome::Failed);
        if undone
            && let Some(pending) = &mut self.pending_revert
            && let Some((change, _)) = pending.requested.take_if(|(change, _)| change.id == *id)
        {
            return Some(self.refused_revert(&change, actuation, now, settings));
        }
        if undone && self.trial.as_ref().is_some_and(|trial| trial.change.id == *id) {
            let change = self.trial.take()?.change;
            self.layers.keep_first(change.freezes_without());
            let (why, until) = self.on_undone(&change, actuation, now, settings);
            return note(why, ChangeValidation::Failed, Some(until));
        }
        if undone && let Some(change) = self.kept.take_if(|kept| kept.id == *id) {
            self.layers.keep_first(change.freezes_without());
            let (why, until) = self.on_undone(&change, actuation, now, settings);
            return note(why, ChangeValidation::Failed, Some(until));
        }
        None
    }

    /// Notes that a change is on its way to the job.
    fn begin_trial(&mut self, change: JobChange, actuation: &Actuation, settings: &ControllerSettings) {
        self.last_id = Some(change.id.clone());
        self.kept = None;
        self.own_generation = Some(actuation.generation);
        let generation = actuation.generation;
        if change.baseline.is_none() {
            // Only settings that the job has applied are reverted.
            if let Some(pending) = &mut self.pending_revert {
                pending.requested = Some((change, generation));
            }
            return;
        }
        if change.knob == JobKnob::Layers {
            self.layers.on_freeze_requested(&change.from, &change.to);
        }
        self.trial = Some(JobTrial { change, generation, windows: Vec::new(), warming_up: settings.warm_up_windows });
    }

    /// Notes that the job, or the actuator, did not take a change back: the change stays in force, and its revert is requested
    /// again.
    fn refused_revert(
        &mut self,
        change: &JobChange,
        actuation: &Actuation,
        now: EventTime,
        settings: &ControllerSettings,
    ) -> ChangeNote {
        let (why, _) = self.on_undone(change, actuation, now, settings);
        let until = now.plus_seconds(settings.hold_seconds);
        if let Some(pending) = &mut self.pending_revert {
            (pending.requested, pending.not_before) = (None, Some(until));
        }
        let reason = format!("{why}; the change to revert is still in force, and its revert is requested again after {until}");
        ChangeNote { reason, concerns: change.id.clone(), validation: ChangeValidation::Failed, hold_until: Some(until) }
    }

    /// Completes reverts that the job has made by now, or will not make, as the layout in force shows. Outcomes may be
    /// overtaken by newer ones.
    fn finish_revert(&mut self, workload: &Workload, now: EventTime, settings: &ControllerSettings) {
        let Some(pending) = &mut self.pending_revert else { return };
        if workload.ready_time.is_some() && pending.is_done(&workload.layout) {
            if pending.knob == JobKnob::Layers {
                self.layers.keep_first(pending.freezes);
            }
            self.pending_revert = None;
        } else if pending
            .requested
            .take_if(|(change, generation)| workload.generation > *generation && workload.layout == change.from)
            .is_some()
        {
            pending.not_before = Some(now.plus_seconds(settings.hold_seconds));
        }
    }

    /// Notes that the actuator took a change back, because the job refused it or did not take it up, or failed to.
    fn on_undone(
        &mut self,
        change: &JobChange,
        actuation: &Actuation,
        now: EventTime,
        settings: &ControllerSettings,
    ) -> (String, EventTime) {
        let what = if actuation.outcome == ActuationOutcome::RolledBack { "was rolled back" } else { "failed" };
        let why = format!("the last change {what}: {}", actuation.reason);
        let until = now.plus_seconds(settings.tabu_seconds);
        self.restoring = Some(change.from.clone());
        self.set_tabu(change.knob, until, &why);
        (why, until)
    }

    /// Follows the layout: windows of different layouts are never compared.
    fn follow_layout(&mut self, workload: &Workload, now: EventTime, settings: &ControllerSettings) -> Option<ChangeNote> {
        let generation = workload.generation;
        let known = self.recent.generation.replace(generation);
        if known == Some(generation) {
            return None;
        }
        let former = self.in_force.replace(workload.layout.clone());
        // Another change, as of a cap, may have come between.
        let restores = |from: &Layout| {
            *from == workload.layout
                || former.as_ref().is_some_and(|former| with_job_settings_of(former, from) == workload.layout)
        };
        let changes = former.as_ref().is_some_and(|former| former.asked_of_job() != workload.layout.asked_of_job());
        let kept = self.kept.take_if(|kept| workload.decision_id.is_none() && changes && restores(&kept.from));
        let proposed = self.proposal.as_ref();
        let tried = self.trial.as_ref().map(|trial| &trial.change);
        let own = if let Some(id) = &workload.decision_id {
            let ids = [proposed.map(|p| &p.id), tried.map(|t| &t.id), self.last_id.as_ref()];
            ids.into_iter().flatten().any(|known| known == id)
        } else {
            // A rollback carries no decision, and restores the layout before.
            let reverted = self.pending_revert.as_ref().and_then(|pending| pending.requested.as_ref()).map(|(change, _)| change);
            let before = [proposed, tried, reverted, kept.as_ref()].map(|change| change.map(|change| &change.from));
            let before = before.into_iter().chain([self.restoring.as_ref()]);
            known.is_some() && before.flatten().any(restores)
        };
        self.recent.reset(if known.is_none() { 0 } else { settings.warm_up_windows });
        if own {
            self.own_generation = Some(generation);
            let change = kept?;
            self.layers.keep_first(change.freezes_without());
            let (why, until) = ("the last change was taken back after it was kept", now.plus_seconds(settings.tabu_seconds));
            self.set_tabu(change.knob, until, why);
            return Some(ChangeNote {
                reason: why.into(),
                concerns: change.id,
                validation: ChangeValidation::Failed,
                hold_until: Some(until),
            });
        }
        self.pending_revert = None;
        self.layers.on_external_change(workload.layout.frozen_prefix_layers);
        let trial = self.trial.take_if(|trial| generation > trial.generation)?;
        Some(ChangeNote {
            reason: "the layout was changed from outside before the last change was validated: it is not validated".into(),
            concerns: trial.change.id,
            validation: ChangeValidation::None,
            hold_until: None,
        })
    }

    /// Returns the window's figures if it can be compared with others of this layout, or why not.
    fn usable_window(
        &mut self,
        window: &EfficiencyWindow,
        workload: &Workload,
        context: &ControllerContext<'_>,
    ) -> Result<MeasuredWindow, String> {
        let settings = context.settings;
        let difference = self.own_difference(workload, context.training);
        if window.restarted || difference.is_some() {
            self.recent.reset(settings.warm_up_windows);
            if let Some(trial) = &mut self.trial {
                trial.warming_up = settings.warm_up_windows;
            }
        }
        let measured = MeasuredWindow::of_layout(window, workload, settings.coverage_min_ratio);
        difference.map_or(measured, |difference| Err(difference.message()))
    }

    /// Returns the change of precision that is tried, or was kept last.
    fn precision_change(&self) -> Option<&JobChange> {
        let change = self.trial.as_ref().map(|trial| &trial.change).or(self.kept.as_ref());
        change.filter(|change| change.knob == JobKnob::Precision)
    }

    /// Returns the setting that the job was asked for by a change of this controller, and of which it reports another value. The
    /// layout that a job began with may name what it reports otherwise.
    pub(super) fn own_difference(&self, workload: &Workload, report: Option<&TrainingReport>) -> Option<ReportedDifference> {
        reported_difference(workload, report).filter(|difference| match difference {
            ReportedDifference::Layers { reported, .. } => self.layers.freezes_as_reported(&workload.layout, *reported).is_some(),
            ReportedDifference::Precision { .. } => self.precision_change().is_some(),
        })
    }

    /// Returns the knob to turn back, the layout to restore, the freezes that are left and why, if the job has reported other
    /// settings than those in force for `hold_seconds`. While it is not asked for them, or has not had the time to take them up,
    /// that shows nothing.
    fn lasting_difference(
        &mut self,
        window: &EfficiencyWindow,
        workload: &Workload,
        context: &ControllerContext<'_>,
    ) -> Option<(JobKnob, Layout, usize, String)> {
        let idle = self.proposal.is_none() && self.pending_revert.is_none();
        let asked = workload.mode == UpdateMode::Enforce && !workload.paused && workload.ready_time.is_some();
        let Some(difference) = self.own_difference(workload, context.training).filter(|_| idle && asked) else {
            self.differs_since = None;
            return None;
        };
        let seconds = window.window_end.seconds_since(*self.differs_since.get_or_insert(window.window_start));
        if seconds < context.settings.hold_seconds {
            return None;
        }
        let (knob, to, freezes) = match difference {
            ReportedDifference::Layers { reported, .. } => {
                let (to, freezes) = self.layers.freezes_as_reported(&workload.layout, reported)?;
                (JobKnob::Layers, to, freezes)
            }
            ReportedDifference::Precision { .. } => {
                (JobKnob::Precision, self.precision_change()?.from.clone(), self.layers.freeze_count())
            }
        };
        if to.asked_of_job() == workload.layout.asked_of_job() {
            return None;
        }
        self.differs_since = None;
        let why = format!("{}, for {seconds:.0} s: the request is withdrawn", difference.what());
        Some((knob, to, freezes, why))
    }

    /// Adds a window to the trial and, once there are enough, keeps the change or takes it back.
    fn evaluate_trial(
        &mut self,
        measured: Result<MeasuredWindow, String>,
        workload: &Workload,
        mut draft: DecisionDraft,
        context: &ControllerContext<'_>,
    ) -> Decision {
        let settings = context.settings;
        let need = self.trial.as_ref().map_or(0, |trial| windows_needed(trial.change.knob, &trial.change.to, settings));
        let Some(trial) = &mut self.trial else { return draft.maintain("no change is being validated") };
        let id = trial.change.id.clone();
        let pending =
            |draft: DecisionDraft, reason: String| draft.with_validation(ChangeValidation::Pending, &id).maintain(reason);
        let measured = match measured {
            Ok(measured) if workload.generation == trial.generation => measured,
            Ok(_) => return pending(draft, "the last change is on its way to the job".into()),
            Err(_) if workload.generation == trial.generation && workload.ready_time.is_none() => {
                return pending(draft, "the change was requested from the job, and is not made yet".into());
            }
            Err(reason) => return pending(draft, reason),
        };
        if trial.warming_up > 0 {
            trial.warming_up -= 1;
            return pending(draft, "the job warms up after the last change".into());
        }
        trial.windows.push(measured);
        let have = trial.windows.len();
        if have > need {
            trial.windows.remove(0);
        }
        if have < need {
            return pending(draft, format!("the last change is being checked: {have} of {need} windows"));
        }
        if workload.paused {
            return pending(draft, "the workload is paused: the last change is validated afterwards".into());
        }
        let Some(trial) = self.trial.take() else { return draft.maintain("no change is being validated") };
        let JobTrial { change, windows, .. } = trial;
        let medians = change.baseline.as_ref().and_then(|base| {
            let before = MeasuredWindow::median(&base.windows)?;
            Some((base, before, MeasuredWindow::median(&windows)?))
        });
        let Some((base, before, after)) = medians else { return draft.maintain("no change is being validated") };
        let energy_gain = 1.0 - before.efficiency / after.efficiency;
        let throughput = after.samples_per_second / before.samples_per_second;
        draft.note_medians("before", &before);
        draft.note_medians("after", &after);
        draft.add_evidence("gain_ratio", Some(energy_gain));
        draft.add_evidence("throughput_ratio", Some(throughput));
        let outcome = explain(&before, &after, energy_gain, throughput);
        let verdict = match change.knob {
            JobKnob::Layers => self.layers.verdict(energy_gain, base.expected_gain_ratio, context, &mut draft),
            JobKnob::Precision => {
                self.precision.verdict(&change.to, &base.windows, &windows, energy_gain, throughput, settings, &mut draft)
            }
        };
        match verdict {
            Ok(why) => {
                // These were measured after the change had warmed up.
                (self.recent.windows, self.recent.warming_up) = (windows.into(), 0);
                self.kept = Some(JobChange { baseline: None, ..change });
                draft.with_validation(ChangeValidation::Kept, &id).maintain(format!("the last change is kept: {outcome}; {why}"))
            }
            Err(why) => {
                let why = format!("{outcome}; {why}");
                let until = after.end.plus_seconds(settings.tabu_seconds);
                self.set_tabu(change.knob, until, &format!("the last change did not help: {why}"));
                let draft = draft.with_validation(ChangeValidation::Failed, &id).with_hold_until(Some(until));
                let freezes = change.freezes_without();
                let reason = format!("the last change is reverted: {why}");
                self.revert(change.knob, &change.from, freezes, reason, workload, draft)
            }
        }
    }

    /// Asks for the job's knob as it was in `to`; all others stay as they are.
    fn revert(
        &mut self,
        knob: JobKnob,
        to: &Layout,
        freezes: usize,
        why: String,
        workload: &Workload,
        draft: DecisionDraft,
    ) -> Decision {
        let present = workload.layout.clone();
        self.pending_revert =
            Some(PendingRevert { knob, to: to.clone(), freezes, why: why.clone(), requested: None, not_before: None });
        let to = match knob {
            JobKnob::Layers => Layout { frozen_prefix_layers: to.frozen_prefix_layers, precision: to.precision, ..present },
            JobKnob::Precision => Layout { precision: to.precision, ..present },
        };
        let decision = draft.change_without_restart(ControllerAction::Revert, to, why);
        self.proposal = Some(JobChange {
            id: decision.id.clone(),
            knob,
            from: decision.from.clone(),
            to: decision.to.clone(),
            expires: decision.expires,
            baseline: None,
            freezes,
        });
        decision
    }
}

impl JobKnob {
    const fn display_name(self) -> &'static str {
        match self {
            Self::Layers => "freezing",
            Self::Precision => "another precision",
        }
    }
}

/// Returns windows that a change is judged by, and compared with.
fn windows_needed(knob: JobKnob, to: &Layout, settings: &ControllerSettings) -> usize {
    let is_test = knob == JobKnob::Precision && to.precision == Some(Precision::Fp16);
    (if is_test { settings.precision_trial_windows } else { settings.validation_windows }) as usize
}

/// Formats the result as `4.10 J/sample instead of 4.60 (-10.9 %) at 98.7 % of the throughput`.
fn explain(before: &Medians, after: &Medians, gain_ratio: f64, throughput_ratio: f64) -> String {
    match (after.joules_per_sample(), before.joules_per_sample()) {
        (Some(now), Some(then)) => format!(
            "{now:.3} J/sample instead of {then:.3} ({}) at {:.1} % of the throughput",
            format_signed_percent(-gain_ratio, 1),
            100.0 * throughput_ratio
        ),
        _ => "no progress at all".into(),
    }
}

/// Returns whether a job can change a knob while it runs; one that does not report it may be asked.
fn turns_live(live_knobs: Option<&Vec<String>>, knob: &str) -> bool {
    live_knobs.is_none_or(|knobs| knobs.iter().any(|known| known == knob))
}
