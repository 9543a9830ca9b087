//! State of one workload.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use eadt_report::WorkloadReport;
use eadt_report::liveness::{PresentMoment, WindowTimes};
use eadt_report::states::{
    ChangeFate, ChangeProgress, RunProgress, WindowPresence, WorkloadStatus, may_be_changed, outside_run_seconds,
};
use eadt_schemas::EventTime;
use eadt_schemas::v1::{
    Actuation, ActuationOutcome, ChangeValidation, ControllerAction, Decision, EfficiencyWindow, Layout, Origin, UpdateMode,
    Workload,
};

use super::changes::ChangeCounts;
use super::policies::PolicyChange;
use super::records::{SharedTexts, StoredActuation, StoredDecision};
use super::trace::{PowerSpan, WorkloadTimeline};

/// Actuations that are kept of one decision.
const ACTUATIONS: usize = 16;
/// The same, before the decision is read.
const EARLY_ACTUATIONS: usize = 4;

/// A decision with its actuations.
#[derive(Debug, Clone, PartialEq)]
pub struct DecisionRecord {
    pub decision: StoredDecision,
    pub actuations: Vec<StoredActuation>,
}

/// Adds an actuation to those of a decision if they lack it and are fewer than `most`. `known` are the decision's layouts.
fn add_actuation(
    actuations: &mut Vec<StoredActuation>,
    actuation: &Actuation,
    most: usize,
    known: &[Arc<Layout>],
    texts: &mut SharedTexts,
) {
    if actuations.len() < most && actuations.iter().all(|known| !known.is(actuation)) {
        let layouts = known.iter().chain(actuations.iter().map(|known| &known.layout));
        let added = StoredActuation::new(actuation, layouts, texts);
        // Most decisions have two.
        actuations.reserve_exact(1);
        actuations.push(added);
    }
}

impl DecisionRecord {
    fn has_any(&self, wanted: &[ActuationOutcome]) -> bool {
        self.actuations.iter().any(|actuation| wanted.contains(&actuation.outcome))
    }

    pub fn was_applied(&self) -> bool {
        self.has_any(&[ActuationOutcome::Applied, ActuationOutcome::Ready, ActuationOutcome::RolledBack])
    }

    /// Returns whether it was written as a recommendation and not made.
    pub fn is_only_recommended(&self) -> bool {
        self.has_any(&[ActuationOutcome::Recommended]) && !self.was_applied()
    }

    /// Returns its last reported outcome.
    pub fn fate(&self) -> Option<ChangeFate> {
        self.actuations.last().map(StoredActuation::fate)
    }

    fn add(&mut self, actuation: &Actuation, texts: &mut SharedTexts) {
        let known = [self.decision.to.clone(), self.decision.from.clone()];
        add_actuation(&mut self.actuations, actuation, ACTUATIONS, &known, texts);
    }
}

/// Figures of the newest window.
#[derive(Debug, Clone, PartialEq)]
pub struct LatestWindow {
    pub times: WindowTimes,
    pub power_watts: Option<f64>,
    pub samples_per_second: Option<f64>,
    /// Downtime included.
    pub joules_per_sample: Option<f64>,
    pub coverage_ratio: f64,
    pub temperature_celsius: Option<f64>,
    /// `None` if other things than GPUs were metered.
    pub gpus: Option<u32>,
    /// Most workloads that were on one of these at once.
    tenants: Option<u32>,
    /// Names of those that it shared; of very many none is named.
    pub shared_devices: Box<[String]>,
    pub restarted: bool,
}

impl LatestWindow {
    /// Returns the number of its GPUs that are not among [`Self::shared_devices`]. If it shared some and none is named, each
    /// workload on them counts its part.
    pub fn unnamed_devices(&self) -> usize {
        let gpus = self.gpus.unwrap_or(0);
        let tenants = self.tenants.filter(|_| self.shared_devices.is_empty()).unwrap_or(1).max(1);
        (gpus.div_ceil(tenants) as usize).saturating_sub(self.shared_devices.len())
    }
}

/// The result of taking in a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DecisionIntake {
    Kept,
    /// It only maintains, and replaces the one before.
    Counted,
    /// It was there.
    Repeated,
}

#[derive(Debug, Default)]
pub struct WorkloadState {
    pub declaration: Option<Box<Workload>>,
    /// The last change by a declaration of the actions that are allowed on it.
    pub policy_change: Option<Box<PolicyChange>>,
    pub latest: Option<LatestWindow>,
    run: RunProgress,
    /// Its windows, up to the end of its run.
    pub trace: WorkloadTimeline,
    /// Power of its GPUs after its run ended: these are without work.
    pub idle_trace: WorkloadTimeline<f64>,
    /// The report's, without rows and notes; without a saving if too many windows are kept. `None` before the first refresh.
    pub figures: Option<Box<WorkloadReport>>,
    /// Its figures are older than its windows.
    pub stale: bool,
    /// Tumbling windows that were taken in.
    pub windows: usize,
    too_long: bool,
    window_origin: Option<Origin>,
    /// Decisions that were taken in.
    decisions: u64,
    /// Changes and verdicts, oldest first.
    changes: VecDeque<DecisionRecord>,
    /// Counts of the changes that were taken in, of those that are no longer kept, too.
    counted_changes: ChangeCounts,
    /// The greatest id among them. Ids of one workload's decisions sort by their times.
    dropped_until: Option<Box<str>>,
    /// The newest decision that only maintains.
    maintain: Option<Box<DecisionRecord>>,
    /// Actuations by the decision that they answer, if it was not read yet: nothing orders the reading of two topics.
    early_actuations: BTreeMap<Box<str>, Vec<StoredActuation>>,
    last_fate: Option<ChangeFate>,
    pending_validation: bool,
}

impl WorkloadState {
    /// Takes a tumbling window; false for one that was there.
    pub fn window(&mut self, window: &EfficiencyWindow) -> bool {
        if self.latest.as_ref().is_some_and(|latest| window.window_start <= latest.times.start) {
            return false;
        }
        self.windows += 1;
        self.trace_power(window);
        self.window_origin = self.window_origin.max(Some(window.origin));
        self.latest = Some(LatestWindow {
            times: WindowTimes::from(window),
            power_watts: window.mean_power_watts,
            samples_per_second: window.samples_per_second,
            joules_per_sample: window.energy_per_sample(),
            coverage_ratio: window.energy_coverage_ratio,
            temperature_celsius: window.max_temperature_celsius,
            gpus: window.meter.is_of_gpu().then_some(window.gpus),
            tenants: window.tenants,
            shared_devices: window.shared_devices.clone().into(),
            restarted: window.has_restart(),
        });
        true
    }

    /// Takes the newest window's power: that of its run is the workload's, and what follows the run is of GPUs without work.
    fn trace_power(&mut self, window: &EfficiencyWindow) {
        let (had_begun, was_over) = (self.run.has_begun(), self.run.is_over());
        self.run.add(window);
        let power = PowerSpan::observed(window);
        if self.run.has_ended() {
            self.idle_trace.add_device(window, power);
        } else if had_begun && outside_run_seconds(window) > 0.0 {
            let (run, rest) = power.split(window, was_over);
            self.trace.add(window, run, was_over);
            self.idle_trace.add_device(window, rest);
        } else {
            self.trace.add(window, power, was_over);
        }
    }

    /// `name` is the workload's own.
    pub fn decision(&mut self, decision: &Decision, name: &Arc<str>, texts: &mut SharedTexts) -> DecisionIntake {
        let is_known = |known: &DecisionRecord| *known.decision.id == *decision.id;
        if self.maintain.as_deref().is_some_and(is_known) || self.changes.iter().rev().any(is_known) {
            return DecisionIntake::Repeated;
        }
        self.decisions += 1;
        self.pending_validation = decision.validation == ChangeValidation::Pending;
        let actuations = self.early_actuations.remove(decision.id.as_str()).unwrap_or_default();
        let before = self.changes.back().map(|record| &record.decision);
        let record = DecisionRecord { decision: StoredDecision::new(decision, name, before, texts), actuations };
        let is_verdict = decision.concerns.is_some() && decision.validation != ChangeValidation::Pending;
        if decision.action == ControllerAction::Maintain && !is_verdict {
            self.maintain = Some(Box::new(record));
            return DecisionIntake::Counted;
        }
        self.counted_changes += ChangeCounts::from(&record);
        if self.changes.len() == self.changes.capacity() {
            self.changes.reserve_exact(2.max(self.changes.len() / 4));
        }
        self.changes.push_back(record);
        DecisionIntake::Kept
    }

    pub fn actuation(&mut self, actuation: &Actuation, texts: &mut SharedTexts) {
        self.last_fate = Some(ChangeFate::from(actuation));
        let is_answered = |record: &DecisionRecord| *record.decision.id == *actuation.decision_id;
        if let Some(record) = self.changes.iter_mut().rev().find(|record| is_answered(record)) {
            let before = ChangeCounts::from(&*record);
            record.add(actuation, texts);
            self.counted_changes = self.counted_changes.replaced(before, ChangeCounts::from(&*record));
        } else if let Some(record) = self.maintain.as_deref_mut().filter(|record| is_answered(record)) {
            record.add(actuation, texts);
        } else if self.dropped_until.as_deref().is_none_or(|last| actuation.decision_id.as_str() > last) {
            // Else its decision was dropped, and does not come any more.
            let early = self.early_actuations.entry(actuation.decision_id.as_str().into()).or_default();
            add_actuation(early, actuation, EARLY_ACTUATIONS, &[], texts);
        }
    }

    /// Makes a change, and keeps `held`, a sum over workloads, right: how many decisions are answered by actuations and not read
    /// yet.
    pub fn count_early<T>(&mut self, held: &mut usize, change: impl FnOnce(&mut Self) -> T) -> T {
        *held -= self.early_actuations.len();
        let changed = change(self);
        *held += self.early_actuations.len();
        changed
    }

    /// Keeps the actuations of the `count` decisions with the greatest ids, which have the newest times.
    pub fn keep_early_actuations(&mut self, count: usize) {
        while self.early_actuations.len() > count {
            self.early_actuations.pop_first();
        }
    }

    pub fn declared(&mut self, declaration: &Workload) {
        if let Some(change) = self.declaration.as_deref().and_then(|known| PolicyChange::between(known, declaration)) {
            self.policy_change = Some(Box::new(change));
        }
        self.declaration = Some(Box::new(declaration.clone()));
    }

    /// Returns whether its saving is computed.
    pub fn is_exact(&self) -> bool {
        !self.too_long
    }

    /// Gives up its saving; `sums` is the report that needs no windows.
    pub fn give_up_saving(&mut self, sums: Option<Box<WorkloadReport>>) {
        (self.too_long, self.figures) = (true, sums);
    }

    /// Returns a report with the counts of its decisions and changes if it was made without them.
    pub fn counted(&self, mut report: WorkloadReport) -> WorkloadReport {
        if !self.is_exact() {
            let ChangeCounts { decided_changes, recommendations, changes, reverts } = self.counted_changes;
            (report.decisions, report.decided_changes, report.recommendations) =
                (self.decisions, decided_changes, recommendations);
            (report.changes, report.reverts) = (changes, reverts);
        }
        report
    }

    /// Keeps the newest `count` changes; returns how many went.
    pub fn keep_decisions(&mut self, count: usize) -> usize {
        let dropped = self.changes.len().saturating_sub(count);
        for record in self.changes.drain(..dropped) {
            self.dropped_until = self.dropped_until.take().max(Some(record.decision.id));
        }
        dropped
    }

    /// Returns the counts of its changes: the report's, or those of the decisions taken in if no report is computed here. Only
    /// the report knows changes that no actuator reported, by the layouts of windows.
    pub fn change_counts(&self) -> ChangeCounts {
        let report = self.figures.as_deref().filter(|_| self.is_exact());
        report.map_or(self.counted_changes, ChangeCounts::from)
    }

    /// Returns the decisions, newest first. The newest that only maintains comes first if it is later than the last change, else
    /// it is left out.
    pub fn decisions(&self) -> impl Iterator<Item = &DecisionRecord> {
        let maintain = self.maintain.as_deref();
        let newer = maintain.filter(|record| self.changes.back().is_none_or(|last| last.decision.time < record.decision.time));
        newer.into_iter().chain(self.changes.iter().rev())
    }

    pub fn newest_change(&self) -> Option<&DecisionRecord> {
        self.changes.back()
    }

    /// Returns the time of its newest change if no actuator has reported anything of it, and its policy lets one.
    pub fn unanswered_since(&self) -> Option<EventTime> {
        let acts = self.declaration.as_deref().is_some_and(may_be_changed);
        let newest = self.newest_change().filter(|record| acts && record.actuations.is_empty())?;
        (newest.decision.action != ControllerAction::Maintain).then_some(newest.decision.time)
    }

    /// Returns the origin of its figures: its windows decide, whatever else is declared of it.
    pub fn origin(&self) -> Option<Origin> {
        self.window_origin.or_else(|| self.declaration.as_ref().map(|declaration| declaration.origin))
    }

    pub fn layout(&self) -> Option<&Layout> {
        self.declaration.as_ref().map(|declaration| &declaration.layout)
    }

    pub fn mode(&self) -> Option<UpdateMode> {
        self.declaration.as_ref().map(|declaration| declaration.mode)
    }

    /// Returns the fate that its policy has for a change; `None` if it may be made.
    pub fn foreseen_fate(&self) -> Option<ChangeFate> {
        match self.mode()? {
            UpdateMode::Observe => Some(ChangeFate::NotAllowed),
            _ if self.is_paused() => Some(ChangeFate::NotAllowed),
            UpdateMode::Recommend => Some(ChangeFate::Recommended),
            UpdateMode::Enforce => None,
        }
    }

    pub fn is_paused(&self) -> bool {
        self.declaration.as_ref().is_some_and(|declaration| declaration.paused)
    }

    /// Returns whether it is not silent.
    fn is_live(&self, now: Option<EventTime>) -> bool {
        self.latest.as_ref().zip(now).is_some_and(|(latest, now)| !latest.times.is_silent(now))
    }

    /// Returns whether it is neither silent nor over.
    pub fn is_reporting(&self, now: Option<EventTime>) -> bool {
        self.is_live(now) && !self.is_over()
    }

    /// Returns whether its job has reported its end: its GPUs are without work, whatever their collector reports.
    pub fn is_over(&self) -> bool {
        self.run.is_over()
    }

    /// Returns its newest window if the figures of that are of the present, as far as windows show it.
    pub fn running_window(&self, moment: PresentMoment) -> Option<&LatestWindow> {
        self.latest.as_ref().filter(|latest| self.run.runs_now(&latest.times, moment))
    }

    /// Returns its newest window if that lies after the end of its run, and its GPUs are likely to be without work still.
    pub fn idle_window(&self, moment: PresentMoment) -> Option<&LatestWindow> {
        self.latest.as_ref().filter(|latest| self.run.has_ended() && self.run.is_present(&latest.times, moment))
    }

    /// Returns the end of its newest window if its next window, of its run or after it, is likely to be open still.
    pub fn open_since(&self, moment: PresentMoment) -> Option<EventTime> {
        let latest = self.running_window(moment).or_else(|| self.idle_window(moment))?;
        Some(latest.times.end)
    }

    /// Returns its state at the moment that is shown, of a record that goes on then.
    pub fn state(&self, now: Option<EventTime>) -> WorkloadStatus {
        let window = match &self.latest {
            None => WindowPresence::None,
            Some(_) if self.run.is_over() => WindowPresence::Ended,
            Some(_) if !self.is_live(now) => WindowPresence::Silent,
            Some(latest) => WindowPresence::Live { restarted: latest.restarted },
        };
        let is_revert =
            |newest: &DecisionRecord| newest.decision.takes_back() && !newest.fate().is_some_and(ChangeFate::is_not_made);
        let changes = ChangeProgress {
            last_fate: self.last_fate,
            is_pending: self.pending_validation,
            is_reverted: self.newest_change().is_some_and(is_revert),
            is_unanswered: self.unanswered_since().is_some(),
        };
        WorkloadStatus::of(window, self.is_paused(), changes)
    }
}
