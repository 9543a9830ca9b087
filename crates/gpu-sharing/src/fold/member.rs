//! One workload whose controller is `sm-partition`.

use std::collections::{BTreeSet, VecDeque};

use eadt_core::FoldSettings;
use eadt_core::gpu_sharing::GpuSharingSettings;
use eadt_core::joint::{MAX_PENDING_LAYOUTS, PendingDecision, PendingLayouts};
use eadt_schemas::EventTime;
use eadt_schemas::counts::counted_as;
use eadt_schemas::v1::{
    Actuation, ActuationOutcome, ChangeValidation, ControllerAction, Decision, EfficiencyWindow, Layout, Origin, UpdateMode,
    WindowKind, Workload,
};
use serde::{Deserialize, Serialize};

use crate::gather::{self, GatherSettings, ProfileGatherer, SkippedWindow};
use crate::rebalance::{CONTROLLER, VERSION, WindowFigures};
use crate::{ProfileError, SoloProfile};

/// Newest windows beside others that are remembered: those before and after a change.
const MAX_FIGURES: usize = 32;
/// A decision may appear in `workloads.v1` this long after its expiry, since clocks differ.
const SETTLE_SECONDS: f64 = 60.0;
const DAY_SECONDS: f64 = 86_400.0;

/// The GPUs of the workload in its newest window.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkloadGpus {
    pub end: EventTime,
    /// Workloads on its GPU, at most.
    pub tenants: u32,
    /// Shared GPUs.
    pub devices: Vec<String>,
}

/// Its shares are being changed to measure it alone.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct ShareMeasurement {
    /// The share before that, to which it returns.
    before: u32,
    #[serde(rename = "asked")]
    requested: u32,
    since: EventTime,
    /// All shares that were asked for.
    #[serde(default)]
    tried: BTreeSet<u32>,
}

impl ShareMeasurement {
    /// Returns whether it is because of this that the workload has a share.
    fn explains(&self, share: Option<u32>) -> bool {
        share.is_some_and(|share| share == self.before || share == self.requested || self.tried.contains(&share))
    }
}

/// The change of its share that was decided last: by one decision, or, until it is in force, by one of every evaluation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct RequestedShare {
    to: u32,
    /// Generation of the layout that is to be changed. The change is impossible once another one is in force.
    generation: u64,
    /// Times of the first decision and of the newest one.
    first: EventTime,
    newest: EventTime,
    /// One of them was applied, so refusals of the others do not count.
    applied: bool,
}

/// The outcome of a decision.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct ActuationAnswer {
    time: EventTime,
    /// Time of the decision.
    decided: EventTime,
    outcome: ActuationOutcome,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SharingMemberState {
    /// The state in force at the last evaluation.
    now: Option<Workload>,
    /// Later states, in the order of their times.
    coming: PendingLayouts,
    /// Outcomes of decisions after the last evaluation, in the order of their times.
    answers: VecDeque<ActuationAnswer>,
    #[serde(rename = "asked")]
    requested_share: Option<RequestedShare>,
    /// Time of the first layout.
    joined: Option<EventTime>,
    /// Ends of the newest window, and of the newest usable one.
    through: Option<EventTime>,
    #[serde(rename = "heard")]
    last_usable_end: Option<EventTime>,
    /// End of the newest window that counts as one of the workload alone.
    gathered_through: Option<EventTime>,
    /// The newest window's.
    origin: Origin,
    seat: Option<WorkloadGpus>,
    gathered: ProfileGatherer,
    /// The reason why the newest window does not count for the profile.
    passed: Option<SkippedWindow>,
    /// The reason why the newest window is not usable at all.
    #[serde(rename = "mute")]
    unusable: Option<SkippedWindow>,
    figures: Vec<WindowFigures>,
    /// Times at which changes of this controller came into force, within a day.
    restarts: VecDeque<EventTime>,
    probe: Option<ShareMeasurement>,
    no_probe_before: Option<EventTime>,
    #[serde(flatten)]
    pub pending_decision: PendingDecision,
}

fn gather_settings(own: &GpuSharingSettings) -> GatherSettings {
    GatherSettings {
        coverage_min_ratio: own.coverage_min_ratio,
        windows_min: own.windows_min,
        windows_max: GatherSettings::default().windows_max.max(own.windows_min),
    }
}

impl SharingMemberState {
    /// Adds a layout, whatever its time.
    pub fn set_layout(&mut self, layout: &Workload) {
        self.joined.get_or_insert(layout.time);
        if let Some(oldest) = self.coming.put(layout) {
            self.adopt(oldest);
        }
    }

    /// Removes the workload. Its measurements are kept for its return, and the share that it had before them.
    pub fn leave(&mut self) {
        let gathered = std::mem::take(&mut self.gathered);
        let restarts = std::mem::take(&mut self.restarts);
        let probe = self.probe.take();
        let pending_decision = self.pending_decision.without_waiting();
        *self = Self { gathered, restarts, probe, through: self.through, pending_decision, ..Self::default() };
    }

    /// Takes the outcome of a decision; that of another controller is ignored.
    pub fn on_answer(&mut self, answer: &Actuation) {
        let Some(decided) = decided_at(&answer.workload, &answer.decision_id) else { return };
        let place = self.answers.partition_point(|other| other.time <= answer.time);
        self.answers.insert(place, ActuationAnswer { time: answer.time, decided, outcome: answer.outcome });
        if self.answers.len() > MAX_PENDING_LAYOUTS {
            self.answers.pop_front();
        }
    }

    /// Returns the newest layout, in force at the last evaluation or not.
    fn newest_layout(&self) -> Option<&Workload> {
        self.coming.newest().or(self.now.as_ref())
    }

    /// Returns whether the first stage leaves its windows to this one.
    pub fn is_shared(&self, settings: &FoldSettings) -> bool {
        self.newest_layout().is_some_and(|newest| settings.shares_gpus(newest))
    }

    /// Returns the layout in force as of the last evaluation, if this stage decides about it.
    pub fn present(&self, settings: &FoldSettings) -> Option<&Workload> {
        self.now.as_ref().filter(|now| settings.shares_gpus(now))
    }

    /// Returns whether its share is one for a measurement, or may be soon: its own share must be restored, whichever controller
    /// decides about it by now.
    pub fn must_restore(&self) -> bool {
        self.probe.is_some() && self.now.is_some()
    }

    /// Returns whether it names another controller now, and has its own share.
    pub fn is_idle(&self, settings: &FoldSettings) -> bool {
        self.coming.is_empty() && self.present(settings).is_none() && !self.must_restore()
    }

    pub fn through(&self) -> Option<EventTime> {
        self.through
    }

    /// Advances to the time of an evaluation; returns whether a part of its GPU's partition was refused or rolled back meanwhile.
    pub fn advance(&mut self, time: EventTime, own: &GpuSharingSettings) -> bool {
        for layout in self.coming.take_due(time) {
            self.adopt(layout);
        }
        while self.restarts.front().is_some_and(|restart| time.seconds_since(*restart) >= DAY_SECONDS) {
            self.restarts.pop_front();
        }
        let due = self.answers.partition_point(|answer| answer.time <= time);
        let refused =
            self.answers.drain(..due).collect::<Vec<_>>().into_iter().filter(|answer| self.ends_change(answer)).count() > 0;
        if self.requested_share.as_ref().is_some_and(|request| self.is_open(request) && time >= request_expiry(request, own)) {
            self.requested_share = None;
        }
        if refused && self.probe.is_some() {
            self.rest(time, own);
            return false;
        }
        refused
    }

    /// Returns whether nothing was applied of a change so far.
    fn is_open(&self, request: &RequestedShare) -> bool {
        !request.applied && self.now.as_ref().is_some_and(|now| now.generation == request.generation)
    }

    /// Returns whether an answer is the end of the change that was decided last. Only the newest of its decisions is in flight:
    /// an older one may be refused for having been overtaken.
    fn ends_change(&mut self, answer: &ActuationAnswer) -> bool {
        let Some(mut request) =
            self.requested_share.take_if(|request| (request.first..=request.newest).contains(&answer.decided))
        else {
            return false;
        };
        let ends = match answer.outcome {
            ActuationOutcome::Refused => answer.decided == request.newest && self.is_open(&request),
            ActuationOutcome::RolledBack | ActuationOutcome::Failed => true,
            ActuationOutcome::Applied | ActuationOutcome::Ready | ActuationOutcome::Recommended => false,
        };
        request.applied |= answer.outcome == ActuationOutcome::Applied;
        self.requested_share = Some(request).filter(|_| !ends);
        ends
    }

    /// Notes that a change of its share was decided.
    pub fn on_decision(&mut self, decision: &Decision) {
        let (Some(to), Some(generation)) = (decision.to.mps_thread_percentage, decision.generation) else { return };
        match &mut self.requested_share {
            Some(request) if (request.to, request.generation) == (to, generation) => request.newest = decision.time,
            _ => {
                let (first, newest) = (decision.time, decision.time);
                self.requested_share = Some(RequestedShare { to, generation, first, newest, applied: false });
            }
        }
    }

    fn adopt(&mut self, layout: Workload) {
        if self.now.as_ref().is_some_and(|now| now.time > layout.time) {
            return;
        }
        let ours = layout.decision_id.as_deref().is_some_and(|id| id.ends_with(CONTROLLER));
        if ours && self.now.as_ref().is_some_and(|now| now.generation != layout.generation) {
            self.restarts.push_back(layout.time);
        }
        // The share was changed by another manager, so it is the workload's own from now on.
        let share = layout.layout.mps_thread_percentage;
        if !ours && self.probe.as_ref().is_some_and(|probe| self.now.is_none() || !probe.explains(share)) {
            self.probe = None;
        }
        self.now = Some(layout);
    }

    fn rest(&mut self, time: EventTime, own: &GpuSharingSettings) {
        self.no_probe_before = Some(time.plus_seconds(own.hold_seconds));
        if let Some(probe) = &mut self.probe {
            probe.requested = probe.before;
        }
    }

    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// Returns its GPUs in the window that ended right before an evaluation.
    pub fn seat(&self, time: EventTime, settings: &FoldSettings) -> Option<&WorkloadGpus> {
        let longest = 1.5 * settings.window as f64 / 1e6;
        self.seat.as_ref().filter(|seat| time.seconds_since(seat.end) <= longest)
    }

    pub fn figures(&self) -> &[WindowFigures] {
        &self.figures
    }

    pub fn profile(&self, name: &str, own: &GpuSharingSettings) -> Option<Result<SoloProfile, ProfileError>> {
        self.gathered.profile(name, &gather_settings(own))
    }

    /// Restarts that are left for today.
    pub fn restarts_left(&self, workload: &Workload, own: &GpuSharingSettings) -> u32 {
        let most = workload.bounds.restarts_per_day_max.unwrap_or(own.restarts_per_day_max);
        most.saturating_sub(self.restarts.len() as u32)
    }

    pub fn is_silent(&self, time: EventTime, own: &GpuSharingSettings) -> bool {
        self.last_usable_end.is_none_or(|last| time.seconds_since(last) > own.silence_seconds)
    }

    /// Returns whether its window that ends with an evaluation is to be expected.
    pub fn is_awaited(&self, time: EventTime, own: &GpuSharingSettings) -> bool {
        self.through.max(self.joined).is_some_and(|last| time.seconds_since(last) <= own.silence_seconds)
    }

    /// Takes a window in.
    pub fn add_window(&mut self, window: &EfficiencyWindow, own: &GpuSharingSettings) {
        let end = window.window_end;
        if window.kind != WindowKind::Tumbling || self.through.is_some_and(|through| end <= through) {
            return;
        }
        (self.through, self.origin) = (Some(end), window.origin);
        let tenants = window.tenants.unwrap_or(1);
        if window.gpus > 0 {
            self.seat = Some(WorkloadGpus { end, tenants, devices: window.shared_devices.clone() });
        }
        self.unusable = gather::check_usable(window, own.coverage_min_ratio).err();
        if self.unusable.is_some() {
            return;
        }
        self.last_usable_end = Some(end);
        let share = window.layout.as_ref().and_then(|layout| layout.mps_thread_percentage);
        let positive = |value: Option<f64>| value.filter(|value| value.is_finite() && *value > 0.0);
        if let (Some(mps_thread_percentage), Some(samples_per_second), Some(power_watts)) =
            (share, positive(window.samples_per_second), positive(window.mean_power_watts))
        {
            if self.figures.len() >= MAX_FIGURES {
                self.figures.remove(0);
            }
            self.figures.push(WindowFigures { end, tenants, mps_thread_percentage, samples_per_second, power_watts });
        }
        if tenants == 1 {
            // Speed and power under a clock limit are the limit's.
            let limited = window.layout.as_ref().is_some_and(|layout| layout.sm_clock_mhz.is_some());
            let observed = match self.newest_layout() {
                _ if limited => Err(SkippedWindow::Capped),
                Some(workload) => {
                    let workload = workload.clone();
                    self.gathered.observe(window, &workload, tenants, &gather_settings(own)).map(|()| {
                        self.gathered_through = Some(end);
                    })
                }
                None => Err(SkippedWindow::Incomplete),
            };
            self.passed = observed.err();
        }
    }

    /// Returns the decision of an evaluation that a window completes; `reason` if the evaluation did not wait for it.
    pub fn decision_for(&mut self, window: &EfficiencyWindow, own: &GpuSharingSettings, reason: &str) -> Option<Decision> {
        let end = window.window_end;
        let workload = self.now.as_ref().or(self.newest_layout()).filter(|_| self.pending_decision.has_no_decision_for(end));
        let missed = workload.map(|workload| draft(workload, end, own, reason.to_owned()));
        self.pending_decision.take_for_window(window, missed)
    }

    /// Returns the change that gives it back the share that it had before it was measured. `Ok(None)`: it has its own share;
    /// `Err`: why that has to wait.
    pub fn restore_share(
        &mut self,
        time: EventTime,
        workload: &Workload,
        own: &GpuSharingSettings,
        why: &str,
    ) -> Result<Option<Decision>, String> {
        let Some(probe) = &mut self.probe else { return Ok(None) };
        let share = workload.layout.mps_thread_percentage;
        let home = inside_bounds(probe.before, workload);
        if share == Some(home) {
            let coming =
                self.requested_share.as_ref().filter(|request| request.to != home && request.generation == workload.generation);
            return match coming.map(|request| (request.to, request_expiry(request, own))) {
                Some((to, until)) if time < until => {
                    Err(format!("{to} %, at which it was to be measured, may still come into force until {until}"))
                }
                _ => {
                    self.probe = None;
                    Ok(None)
                }
            };
        }
        if workload.ready_time.is_none() {
            return Err("its last change is not ready yet".to_owned());
        }
        if workload.mode == UpdateMode::Observe || workload.paused {
            return Err(format!("it was being measured, and gets its {home} % back once it may be changed"));
        }
        (probe.requested, probe.since) = (probe.before, time);
        let to = Layout { mps_thread_percentage: Some(home), ..workload.layout.clone() };
        let reason = format!("{why}: back to {home} %, where it was before it was measured");
        let action = ControllerAction::Revert;
        Ok(Some(Decision { action, to, restarts: true, ..draft(workload, time, own, reason) }))
    }

    /// Returns the decision that gives its share back, if it names another controller by now.
    pub fn leaves(&mut self, time: EventTime, own: &GpuSharingSettings) -> Option<Decision> {
        let now = self.now.clone().filter(|_| self.probe.is_some())?;
        self.restore_share(time, &now, own, &format!("its controller is no longer {CONTROLLER}")).ok().flatten()
    }

    /// Handles an evaluation without a new window.
    pub fn unseen(&mut self, time: EventTime, workload: &Workload, own: &GpuSharingSettings) -> Decision {
        let unknown = || draft(workload, time, own, "its GPU is not known: it has no new window".to_owned());
        if !self.lacks_usable_windows(time, workload, own) {
            return unknown();
        }
        self.restore_share(time, workload, own, &silence_text(own)).ok().flatten().unwrap_or_else(unknown)
    }

    /// Returns the action while it has its GPU to itself: to measure it at the next unknown share.
    pub fn alone(&mut self, time: EventTime, name: &str, workload: &Workload, own: &GpuSharingSettings) -> Decision {
        let stay = |reason: String| draft(workload, time, own, format!("alone on its GPU: {reason}"));
        if workload.ready_time.is_none() {
            return stay("its last change is not ready yet".into());
        }
        if self.is_measured_in_vain(time, name, workload, own) {
            self.rest(time, own);
        }
        match self.measures_next(time, name, workload, own) {
            NextMeasurement::Change(to) => self.request_measurement(time, workload, own, to),
            NextMeasurement::Wait(reason) => stay(reason),
            NextMeasurement::Nothing(reason) => {
                match self.restore_share(time, workload, own, &format!("alone on its GPU: {reason}")) {
                    Ok(Some(decision)) => decision,
                    Ok(None) => stay(reason),
                    Err(wait) => stay(wait),
                }
            }
        }
    }

    /// Returns whether it has had no usable window for a while, although its processes run.
    fn lacks_usable_windows(&self, time: EventTime, workload: &Workload, own: &GpuSharingSettings) -> bool {
        self.last_usable_end.max(workload.ready_time).is_none_or(|since| time.seconds_since(since) > own.silence_seconds)
    }

    /// Returns whether the share for its measurement does not come into force, or is in force without usable windows.
    fn is_measured_in_vain(&self, time: EventTime, name: &str, workload: &Workload, own: &GpuSharingSettings) -> bool {
        let Some(probe) = self.probe.as_ref().filter(|probe| probe.requested != probe.before) else { return false };
        if workload.layout.mps_thread_percentage != Some(probe.requested) {
            return time.seconds_since(probe.since) > own.give_up_seconds;
        }
        let last = Some(probe.since).max(workload.ready_time).max(self.gathered_through);
        !self.knows(name, probe.requested, own) && last.is_some_and(|last| time.seconds_since(last) > own.silence_seconds)
    }

    /// Returns the reason why the newest window does not count; empty if it does.
    fn lacking(&self) -> String {
        self.unusable.map(|why| format!("; the newest does not count: {}", skip_reason_text(why))).unwrap_or_default()
    }

    fn knows(&self, name: &str, share: u32, own: &GpuSharingSettings) -> bool {
        self.gathered.windows_at(name, share) >= gather_settings(own).windows_min
    }

    /// Returns the share to measure it at next.
    fn measures_next(&self, time: EventTime, name: &str, workload: &Workload, own: &GpuSharingSettings) -> NextMeasurement {
        let nothing = |reason: &str| NextMeasurement::Nothing(reason.to_owned());
        if workload.gpus != Some(1) || workload.layout.replicas != Some(1) {
            return nothing("it has not exactly one GPU and one process, so that its share cannot be measured");
        }
        let Some(share) = workload.layout.mps_thread_percentage else {
            return nothing("it has no MPS thread percentage, so that it cannot be measured at others");
        };
        if self.lacks_usable_windows(time, workload, own) {
            return NextMeasurement::Nothing(silence_text(own) + &self.lacking());
        }
        let gather = gather_settings(own);
        let known = |share: u32| self.knows(name, share, own);
        let allowed = |share: u32| inside_bounds(share, workload) == share;
        let resting = self.no_probe_before.filter(|until| time < *until);
        let is_own = self.probe.as_ref().is_none_or(|probe| inside_bounds(probe.before, workload) == share);
        if !known(share) && resting.is_none() && (is_own || own.probe_percentages.contains(&share)) {
            let windows = self.gathered.windows_at(name, share);
            let lacking = self.lacking();
            let measured = || format!("measured at {share} %, {windows} of {} windows{lacking}", gather.windows_min);
            let nothing = |passed| format!("its windows do not show it alone: {}", skip_reason_text(passed));
            return NextMeasurement::Wait(self.passed.map_or_else(measured, nothing));
        }
        let next = own.probe_percentages.iter().copied().find(|share| !known(*share) && allowed(*share));
        let Some(next) = next else {
            return NextMeasurement::Nothing(match self.gathered.profile(name, &gather) {
                Some(Ok(_)) => "all shares that are needed are measured".into(),
                Some(Err(error)) => error.to_string(),
                None => "it was not measured yet".into(),
            });
        };
        if let Some(until) = resting {
            return NextMeasurement::Nothing(format!(
                "the measurement at another share was refused or gave no usable window, so that none is tried before {until}"
            ));
        }
        if !allowed(100) && !known(100) {
            return nothing("its bounds exclude 100 %, without which the cost of sharing is not known");
        }
        if let Some(passed) = self.passed {
            return NextMeasurement::Nothing(format!("its windows do not show it alone: {}", skip_reason_text(passed)));
        }
        if workload.mode != UpdateMode::Enforce || workload.paused {
            return nothing("only in mode enforce, and while it is not paused, it is measured at other shares");
        }
        // One restart is reserved for the restoration of its own share.
        if self.restarts_left(workload, own) < 2 {
            let restarts = counted_as(self.restarts.len(), "restart in 24 h", "restarts in 24 h");
            return NextMeasurement::Nothing(format!("{restarts}: too few are left for another measurement"));
        }
        NextMeasurement::Change(next)
    }

    /// Returns the decision that requests a share to measure the workload at.
    fn request_measurement(&mut self, time: EventTime, workload: &Workload, own: &GpuSharingSettings, to: u32) -> Decision {
        let share = workload.layout.mps_thread_percentage.unwrap_or(100);
        let mut probe = self.probe.take().unwrap_or(ShareMeasurement {
            before: share,
            requested: share,
            since: time,
            tried: BTreeSet::new(),
        });
        if probe.requested != to {
            (probe.requested, probe.since) = (to, time);
            probe.tried.insert(to);
        }
        self.probe = Some(probe);
        Decision {
            action: if to < share { ControllerAction::Decrease } else { ControllerAction::Increase },
            to: Layout { mps_thread_percentage: Some(to), ..workload.layout.clone() },
            restarts: true,
            ..draft(
                workload,
                time,
                own,
                format!("alone on its GPU: to be measured at {to} %, for the choice of a partition when it shares"),
            )
        }
    }
}

/// The next action for a workload that has its GPU to itself.
enum NextMeasurement {
    /// It is to be measured at this share.
    Change(u32),
    /// It is being measured at the share that it has.
    Wait(String),
    /// It is not measured any further; why.
    Nothing(String),
}

/// Returns the share nearest to one that a workload's bounds allow.
fn inside_bounds(share: u32, workload: &Workload) -> u32 {
    let most = workload.bounds.mps_thread_percentage_max.unwrap_or(u32::MAX);
    share.min(most).max(workload.bounds.mps_thread_percentage_min.unwrap_or(0))
}

/// Returns the time after which decisions that were not applied never will be.
fn request_expiry(request: &RequestedShare, own: &GpuSharingSettings) -> EventTime {
    request.newest.plus_seconds(own.decision_expiry_seconds + SETTLE_SECONDS)
}

/// Returns the time of a workload's decision of this id, if it is of this controller.
fn decided_at(workload: &str, id: &str) -> Option<EventTime> {
    id.strip_prefix(workload)?.strip_prefix('@')?.strip_suffix(CONTROLLER)?.strip_suffix('/')?.parse().ok()
}

fn silence_text(own: &GpuSharingSettings) -> String {
    format!("no usable window in the last {:.0} s", own.silence_seconds)
}

fn skip_reason_text(passed: SkippedWindow) -> &'static str {
    match passed {
        SkippedWindow::Shared => "others were on the GPU",
        SkippedWindow::SeveralProcesses => "several processes of it share the GPU",
        SkippedWindow::Capped => "power or clock are limited",
        SkippedWindow::Unsteady => "it restarted, or inputs are missing",
        SkippedWindow::Uncovered => "too little energy or progress is known",
        SkippedWindow::Incomplete => "board, throughput or power is unknown",
    }
}

/// Returns a decision that leaves everything as it is.
pub fn draft(workload: &Workload, time: EventTime, own: &GpuSharingSettings, reason: String) -> Decision {
    let share = workload.layout.mps_thread_percentage.map(f64::from);
    Decision {
        id: format!("{}@{time}/{CONTROLLER}", workload.workload),
        workload: workload.workload.clone(),
        time,
        origin: workload.origin,
        controller: CONTROLLER.to_owned(),
        controller_version: VERSION.to_owned(),
        action: ControllerAction::Maintain,
        reason,
        from: workload.layout.clone(),
        to: workload.layout.clone(),
        generation: Some(workload.generation),
        evidence: share.map(|share| ("mps_thread_percentage".to_owned(), share)).into_iter().collect(),
        validation: ChangeValidation::None,
        expires: time.plus_seconds(own.decision_expiry_seconds),
        ..Decision::default()
    }
}
