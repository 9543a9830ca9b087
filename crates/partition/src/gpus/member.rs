//! One workload whose controller is `sm-partition`.

use std::collections::VecDeque;

use eadt_core::FoldSettings;
use eadt_core::sharing::SmPartitionSettings;
use eadt_schemas::EventTime;
use eadt_schemas::v1::{Action, Decision, EfficiencyWindow, Layout, Origin, UpdateMode, Validation, WindowKind, Workload};
use serde::{Deserialize, Serialize};

use crate::gather::{GatherSettings, Gatherer, Passed};
use crate::rebalance::{CONTROLLER, Figure, VERSION};
use crate::{ProfileError, SoloProfile};

/// Layouts and refusals remembered between two looks; of more the oldest are dropped.
const MAX_COMING: usize = 64;
/// Newest windows beside others that are remembered: those before and after a change.
const MAX_FIGURES: usize = 32;
const DAY_SECONDS: f64 = 86_400.0;

/// Where the newest window says that the workload was.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Seat {
    pub end: EventTime,
    /// Workloads on its GPU, at most.
    pub tenants: u32,
    /// Shared GPUs.
    pub devices: Vec<String>,
}

/// Its shares are being changed to measure it alone.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Probe {
    /// The share before that, to which it returns.
    before: u32,
    asked: u32,
    since: EventTime,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Member {
    /// What is in force as of the last look.
    now: Option<Workload>,
    /// What came into force after it, in the order of its times.
    coming: VecDeque<Workload>,
    /// Decisions that were refused or taken back after the last look, and when.
    refused: VecDeque<(EventTime, String)>,
    /// Time of the first layout.
    joined: Option<EventTime>,
    /// Ends of the newest window, and of the newest one that says something.
    through: Option<EventTime>,
    heard: Option<EventTime>,
    /// The newest window's.
    origin: Origin,
    seat: Option<Seat>,
    gathered: Gatherer,
    /// Why the newest window alone says nothing about the workload alone.
    passed: Option<Passed>,
    figures: Vec<Figure>,
    /// When changes of this controller came into force, within a day.
    restarts: VecDeque<EventTime>,
    probe: Option<Probe>,
    no_probe_before: Option<EventTime>,
    /// The last look's decision, which waits for this member's window.
    pub waiting: Option<Decision>,
    /// Time of the newest decision that was said.
    pub decided: Option<EventTime>,
}

fn gather_settings(own: &SmPartitionSettings) -> GatherSettings {
    GatherSettings {
        coverage_min_ratio: own.coverage_min_ratio,
        windows_min: own.windows_min,
        windows_max: GatherSettings::default().windows_max.max(own.windows_min),
    }
}

impl Member {
    /// A layout, whatever its time.
    pub fn put(&mut self, layout: &Workload) {
        self.joined.get_or_insert(layout.time);
        let place = self.coming.partition_point(|other| other.time < layout.time);
        match self.coming.get_mut(place) {
            Some(same) if same.time == layout.time => *same = layout.clone(),
            _ => self.coming.insert(place, layout.clone()),
        }
        if self.coming.len() > MAX_COMING
            && let Some(oldest) = self.coming.pop_front()
        {
            self.adopt(oldest);
        }
    }

    /// The workload is gone; what was measured of it is kept for when it comes back.
    pub fn leave(&mut self) {
        let gathered = std::mem::take(&mut self.gathered);
        let restarts = std::mem::take(&mut self.restarts);
        *self = Self { gathered, restarts, through: self.through, decided: self.decided, ..Self::default() };
    }

    pub fn refused(&mut self, time: EventTime, decision: &str) {
        if !decision.ends_with(CONTROLLER) {
            return;
        }
        let place = self.refused.partition_point(|(other, _)| *other < time);
        self.refused.insert(place, (time, decision.to_owned()));
        if self.refused.len() > MAX_COMING {
            self.refused.pop_front();
        }
    }

    /// The newest layout, in force at the last look or not.
    fn newest(&self) -> Option<&Workload> {
        self.coming.back().or(self.now.as_ref())
    }

    /// Whether the first stage leaves its windows to this one.
    pub fn is_shared(&self, settings: &FoldSettings) -> bool {
        self.newest().is_some_and(|newest| settings.shares_gpus(newest))
    }

    /// The layout in force as of the last look, where this stage decides about it.
    pub fn present(&self, settings: &FoldSettings) -> Option<&Workload> {
        self.now.as_ref().filter(|now| settings.shares_gpus(now))
    }

    /// Nobody names this controller for it any more.
    pub fn is_idle(&self, settings: &FoldSettings) -> bool {
        self.coming.is_empty() && self.present(settings).is_none()
    }

    pub fn through(&self) -> Option<EventTime> {
        self.through
    }

    /// Time goes on to a look; whether a change was refused or taken back meanwhile.
    pub fn advance(&mut self, time: EventTime, own: &SmPartitionSettings) -> bool {
        let due = self.coming.partition_point(|layout| layout.time <= time);
        for layout in self.coming.drain(..due).collect::<Vec<_>>() {
            self.adopt(layout);
        }
        while self.restarts.front().is_some_and(|restart| time.seconds_since(*restart) >= DAY_SECONDS) {
            self.restarts.pop_front();
        }
        let due = self.refused.partition_point(|(refused, _)| *refused <= time);
        let refused = self.refused.drain(..due).count() > 0;
        if refused && self.probe.is_some() {
            self.rest(time, own);
        }
        refused
    }

    fn adopt(&mut self, layout: Workload) {
        if self.now.as_ref().is_some_and(|now| now.time > layout.time) {
            return;
        }
        let ours = layout.decision_id.as_deref().is_some_and(|id| id.ends_with(CONTROLLER));
        if ours && self.now.as_ref().is_some_and(|now| now.generation != layout.generation) {
            self.restarts.push_back(layout.time);
        }
        self.now = Some(layout);
    }

    fn rest(&mut self, time: EventTime, own: &SmPartitionSettings) {
        self.no_probe_before = Some(time.plus_seconds(own.hold_seconds));
        if let Some(probe) = &mut self.probe {
            probe.asked = probe.before;
        }
    }

    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// Where it was in the window that ended right before a look.
    pub fn seat(&self, time: EventTime, settings: &FoldSettings) -> Option<&Seat> {
        let longest = 1.5 * settings.window as f64 / 1e6;
        self.seat.as_ref().filter(|seat| time.seconds_since(seat.end) <= longest)
    }

    pub fn figures(&self) -> &[Figure] {
        &self.figures
    }

    pub fn profile(&self, name: &str, own: &SmPartitionSettings) -> Option<Result<SoloProfile, ProfileError>> {
        self.gathered.profile(name, &gather_settings(own))
    }

    /// Restarts that are left for today.
    pub fn restarts_left(&self, workload: &Workload, own: &SmPartitionSettings) -> u32 {
        let most = workload.bounds.restarts_per_day_max.unwrap_or(own.restarts_per_day_max);
        most.saturating_sub(self.restarts.len() as u32)
    }

    pub fn is_silent(&self, time: EventTime, own: &SmPartitionSettings) -> bool {
        self.heard.is_none_or(|heard| time.seconds_since(heard) > own.silence_seconds)
    }

    /// Whether its window that ends with a look is to be expected.
    pub fn is_awaited(&self, time: EventTime, own: &SmPartitionSettings) -> bool {
        self.through.max(self.joined).is_some_and(|last| time.seconds_since(last) <= own.silence_seconds)
    }

    /// Takes a window in.
    pub fn note(&mut self, window: &EfficiencyWindow, own: &SmPartitionSettings) {
        let end = window.window_end;
        if window.kind != WindowKind::Tumbling || self.through.is_some_and(|through| end <= through) {
            return;
        }
        (self.through, self.origin) = (Some(end), window.origin);
        let tenants = window.tenants.unwrap_or(1);
        if window.gpus > 0 {
            self.seat = Some(Seat { end, tenants, devices: window.shared_devices.clone() });
        }
        let coverage = window.energy_coverage_ratio.min(window.progress_coverage_ratio);
        if window.restarted || window.gap || coverage.is_nan() || coverage < own.coverage_min_ratio {
            return;
        }
        self.heard = Some(end);
        let share = window.layout.as_ref().and_then(|layout| layout.mps_thread_percentage);
        let positive = |value: Option<f64>| value.filter(|value| value.is_finite() && *value > 0.0);
        if let (Some(mps_thread_percentage), Some(samples_per_second), Some(power_watts)) =
            (share, positive(window.samples_per_second), positive(window.mean_power_watts))
        {
            if self.figures.len() >= MAX_FIGURES {
                self.figures.remove(0);
            }
            self.figures.push(Figure { end, tenants, mps_thread_percentage, samples_per_second, power_watts });
        }
        if tenants == 1 {
            // Speed and power under a clock limit are the limit's.
            let limited = window.layout.as_ref().is_some_and(|layout| layout.sm_clock_mhz.is_some());
            let taken = match self.newest() {
                _ if limited => Err(Passed::Capped),
                Some(workload) => {
                    let workload = workload.clone();
                    self.gathered.observe(window, &workload, tenants, &gather_settings(own))
                }
                None => Err(Passed::Incomplete),
            };
            self.passed = taken.err();
        }
    }

    /// The decision of a look that a window completes; `reason` where the look did not wait for it.
    pub fn say(&mut self, window: &EfficiencyWindow, own: &SmPartitionSettings, reason: &str) -> Option<Decision> {
        let end = window.window_end;
        let decision = match self.waiting.take_if(|waiting| waiting.time == end) {
            Some(decision) => decision,
            None if self.decided >= Some(end) => return None,
            None => {
                let workload = self.now.as_ref().or(self.newest())?;
                let decision = draft(workload, end, own, reason.to_owned());
                Decision { origin: decision.origin.max(window.origin), ..decision }
            }
        };
        self.decided = self.decided.max(Some(decision.time));
        Some(decision)
    }

    /// A change that still waits for a window at the next look.
    pub fn overdue(&mut self) -> Option<Decision> {
        let decision = self.waiting.take().filter(|decision| decision.from != decision.to)?;
        self.decided = self.decided.max(Some(decision.time));
        Some(decision)
    }

    /// Others are on its GPU: a share at which it was to be measured alone is given back. `None`: it has its own.
    pub fn give_back(&mut self, time: EventTime, workload: &Workload, own: &SmPartitionSettings) -> Option<Decision> {
        let probe = self.probe.as_ref()?;
        if workload.layout.mps_thread_percentage == Some(probe.before) {
            self.probe = None;
            return None;
        }
        let before = probe.before;
        let reason = format!("it is not alone on its GPU any more: back to {before} %, where it was before it was measured");
        Some(self.ask(time, workload, own, before, Action::Revert, reason))
    }

    /// What is to be done while it has its GPU to itself: measure it at the next share that is not known.
    pub fn alone(&mut self, time: EventTime, name: &str, workload: &Workload, own: &SmPartitionSettings) -> Decision {
        let stay = |reason: String| draft(workload, time, own, format!("alone on its GPU: {reason}"));
        if workload.ready_time.is_none() {
            return stay("its last change is not ready yet".into());
        }
        if workload.gpus != Some(1) || workload.layout.replicas != Some(1) {
            return stay("it has not exactly one GPU and one process, so that its share says nothing".into());
        }
        let Some(share) = workload.layout.mps_thread_percentage else {
            return stay("it has no MPS thread percentage, so that it cannot be measured at others".into());
        };
        if let Some(probe) = self.probe.as_ref().filter(|probe| probe.asked != share && probe.asked != probe.before)
            && time.seconds_since(probe.since) > own.give_up_seconds
        {
            self.rest(time, own);
        }
        if self.is_silent(time, own) {
            return stay("no window said anything for a while".into());
        }
        let gather = gather_settings(own);
        let known = |share: u32| self.gathered.windows_at(name, share) >= gather.windows_min;
        let bounds = &workload.bounds;
        let allowed = |share: u32| {
            bounds.mps_thread_percentage_min.is_none_or(|least| share >= least)
                && bounds.mps_thread_percentage_max.is_none_or(|most| share <= most)
        };
        let resting = self.no_probe_before.filter(|until| time < *until);
        let missing: Vec<u32> = own.probe_percentages.iter().copied().filter(|share| !known(*share) && allowed(*share)).collect();
        let complete = self.gathered.profile(name, &gather).is_some_and(|profile| profile.is_ok());
        let measurable = own.probe_percentages.is_empty() || allowed(100) || known(100);
        if let (Some(passed), false) = (self.passed, known(share)) {
            return stay(format!("its windows say nothing about it alone: {}", in_words(passed)));
        }
        if !known(share) && resting.is_none() {
            let windows = self.gathered.windows_at(name, share);
            return stay(format!("measured at {share} %, {windows} of {} windows", gather.windows_min));
        }
        let back = self.probe.as_ref().map(|probe| probe.before).filter(|before| *before != share);
        let next = missing.first().copied().filter(|next| *next != share && measurable && resting.is_none());
        let (to, action, reason) = match (next, back) {
            (Some(next), _) => {
                let action = if next < share { Action::Decrease } else { Action::Increase };
                (
                    next,
                    action,
                    format!("alone on its GPU: to be measured at {next} %, for the choice of a partition when it shares"),
                )
            }
            (None, Some(before)) => {
                let what = if complete { "it is measured" } else { "it cannot be measured further" };
                (before, Action::Revert, format!("alone on its GPU: {what}, back to {before} %"))
            }
            (None, None) => {
                self.probe = None;
                return stay(match (complete, resting) {
                    (true, _) => "what it does there is known".into(),
                    (false, Some(until)) => format!("a share to measure it at was refused, nothing is tried before {until}"),
                    (false, None) if !measurable => {
                        "its bounds leave out 100 %, without which nobody can tell what sharing costs".into()
                    }
                    (false, None) => match self.gathered.profile(name, &gather) {
                        Some(Err(error)) => error.to_string(),
                        _ => "nothing is known of it yet".into(),
                    },
                });
            }
        };
        if workload.mode != UpdateMode::Enforce || workload.paused {
            return stay("only in mode enforce, and while it is not paused, it is measured at other shares".into());
        }
        // One is kept for the way back, which may use it.
        let needed = if action == Action::Revert { 1 } else { 2 };
        if self.restarts_left(workload, own) < needed {
            return stay(format!("{} restarts in 24 h are enough, so that it is not measured further", self.restarts.len()));
        }
        self.ask(time, workload, own, to, action, reason)
    }

    fn ask(
        &mut self,
        time: EventTime,
        workload: &Workload,
        own: &SmPartitionSettings,
        to: u32,
        action: Action,
        reason: String,
    ) -> Decision {
        let share = workload.layout.mps_thread_percentage.unwrap_or(100);
        let before = self.probe.as_ref().map_or(share, |probe| probe.before);
        let since = self.probe.as_ref().filter(|probe| probe.asked == to).map_or(time, |probe| probe.since);
        self.probe = Some(Probe { before, asked: to, since });
        Decision {
            action,
            to: Layout { mps_thread_percentage: Some(to), ..workload.layout.clone() },
            restarts: true,
            ..draft(workload, time, own, reason)
        }
    }
}

fn in_words(passed: Passed) -> &'static str {
    match passed {
        Passed::Shared => "others were on the GPU",
        Passed::SeveralProcesses => "several processes of it share the GPU",
        Passed::Capped => "power or clock are limited",
        Passed::Unsteady => "it restarted, or inputs are missing",
        Passed::Uncovered => "too little energy or progress is known",
        Passed::Incomplete => "board, throughput or power is unknown",
    }
}

/// A decision that leaves everything as it is.
pub fn draft(workload: &Workload, time: EventTime, own: &SmPartitionSettings, reason: String) -> Decision {
    let share = workload.layout.mps_thread_percentage.map(f64::from);
    Decision {
        id: format!("{}@{time}/{CONTROLLER}", workload.workload),
        workload: workload.workload.clone(),
        time,
        origin: workload.origin,
        controller: CONTROLLER.to_owned(),
        controller_version: VERSION.to_owned(),
        action: Action::Maintain,
        reason,
        from: workload.layout.clone(),
        to: workload.layout.clone(),
        generation: Some(workload.generation),
        evidence: share.map(|share| ("mps_thread_percentage".to_owned(), share)).into_iter().collect(),
        validation: Validation::None,
        expires: time.plus_seconds(own.expiry_seconds),
        ..Decision::default()
    }
}
