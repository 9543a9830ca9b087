//! One workload that shares the cluster's power budget.

use std::collections::VecDeque;

use eadt_schemas::EventTime;
use eadt_schemas::v1::{Decision, EfficiencyWindow, Origin, UpdateMode, Workload};
use serde::{Deserialize, Serialize};

use crate::budget::{self, BudgetSettings, BudgetState, Measurements, PowerPoint, Standing};
use crate::controller::Measured;
use crate::models::Models;
use crate::settings::FoldSettings;

/// Layouts and refusals remembered between two looks; of more the oldest are dropped.
const MAX_COMING: usize = 64;
/// Caps that must have been measured before what was measured goes before a learned curve.
const MEASURED_ENOUGH: usize = 3;
/// Points that are taken of a learned curve.
const CURVE_POINTS: u32 = 16;

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Member {
    /// What is in force as of the last look.
    now: Option<Workload>,
    /// What came into force after it, in the order of its times.
    coming: VecDeque<Workload>,
    /// Power of all GPUs together under the layouts before `now` that may still be in force, in watts; `None`: it is not known.
    lingering_watts: Option<f64>,
    /// Decisions that were refused after the last look, and when.
    refused: VecDeque<(EventTime, String)>,
    /// Time of the first layout.
    joined: Option<EventTime>,
    measured: Measurements,
    /// Ends of the newest window, and of the newest one that says something.
    through: Option<EventTime>,
    heard: Option<EventTime>,
    /// The newest window's.
    origin: Origin,
    /// The last look's decision, which waits for this member's window.
    pub waiting: Option<Decision>,
    /// Time of the newest decision that was said.
    pub decided: Option<EventTime>,
}

fn cap(workload: &Workload) -> Option<f64> {
    workload.layout.power_limit_watts.or(workload.gpu_power_limit_watts)
}

/// Power of all GPUs of a workload.
fn whole(watts: Option<f64>, workload: &Workload) -> Option<f64> {
    Some(watts? * f64::from(workload.gpus?))
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

    pub fn refused(&mut self, time: EventTime, decision: &str) {
        let place = self.refused.partition_point(|(other, _)| *other < time);
        self.refused.insert(place, (time, decision.to_owned()));
        if self.refused.len() > MAX_COMING {
            // It counts until it has expired.
            self.refused.pop_front();
        }
    }

    /// The newest layout, in force at the last look or not.
    fn newest(&self) -> Option<&Workload> {
        self.coming.back().or(self.now.as_ref())
    }

    /// Whether the first stage leaves its windows to this one.
    pub fn shares(&self, settings: &FoldSettings) -> bool {
        self.newest().is_some_and(|newest| settings.shares_budget(newest))
    }

    /// The layout in force as of the last look, where it shares the budget.
    pub fn present(&self, settings: &FoldSettings) -> Option<&Workload> {
        self.now.as_ref().filter(|now| settings.shares_budget(now))
    }

    /// It has nothing to do with the budget any more.
    pub fn is_gone(&self, settings: &FoldSettings) -> bool {
        self.coming.is_empty() && self.present(settings).is_none()
    }

    /// Time goes on to a look.
    pub fn advance(&mut self, time: EventTime, name: &str, grants: &mut BudgetState) {
        let due = self.coming.partition_point(|layout| layout.time <= time);
        for layout in self.coming.drain(..due).collect::<Vec<_>>() {
            if let Some(decided) = layout.decision_id.as_deref().and_then(|id| budget::decided_at(name, id)) {
                grants.overtaken(name, decided);
            }
            self.adopt(layout);
        }
        let due = self.refused.partition_point(|(refused, _)| *refused <= time);
        for (_, decision) in self.refused.drain(..due) {
            grants.refused(name, &decision);
        }
    }

    fn adopt(&mut self, layout: Workload) {
        if self.now.as_ref().is_some_and(|now| now.time > layout.time) {
            return;
        }
        // Until it is ready some GPUs may hold what was in force before.
        self.lingering_watts = match &self.now {
            _ if layout.ready_time.is_some() => Some(0.0),
            Some(now) => whole(cap(now), now).zip(self.lingering_watts).map(|(before, longer)| before.max(longer)),
            None => whole(layout.gpu_power_limit_watts, &layout),
        };
        self.now = Some(layout);
    }

    pub fn lingering_watts(&self) -> Option<f64> {
        self.lingering_watts
    }

    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// What may be done about it at a look.
    pub fn standing(&self, time: EventTime, settings: &BudgetSettings) -> Standing {
        if self.now.as_ref().is_some_and(|now| now.ready_time.is_none()) {
            return Standing::Rolling;
        }
        match self.heard {
            Some(heard) if time.seconds_since(heard) <= settings.silence_seconds => Standing::Open,
            _ => Standing::Silent,
        }
    }

    /// Whether its window that ends with a look is to be expected.
    pub fn is_awaited(&self, time: EventTime, settings: &BudgetSettings) -> bool {
        self.through.max(self.joined).is_some_and(|last| time.seconds_since(last) <= settings.silence_seconds)
    }

    /// Throughput against power, and the learned model that it is from, where it is.
    pub fn points(&self, workload: &Workload, models: &Models) -> (Vec<PowerPoint>, Option<String>) {
        let measured = self.measured.points();
        if measured.len() >= MEASURED_ENOUGH {
            return (measured, None);
        }
        let layout = &workload.layout;
        let shape = [layout.replicas, layout.mps_thread_percentage, layout.world_size, layout.local_world_size];
        let learned = models.cap_curve(&workload.workload, workload.gpu_model.as_deref()).and_then(Result::ok);
        let Some(learned) = learned.filter(|learned| learned.document.layout == Some(shape)) else { return (measured, None) };
        let curve = &learned.document.curve;
        let [low, high] = curve.watts_range;
        let at = |n: u32| {
            let watts = low + (high - low) * f64::from(n) / f64::from(CURVE_POINTS);
            Some(PowerPoint { watts, samples_per_second: curve.throughput(watts)? })
        };
        ((0..=CURVE_POINTS).filter_map(at).collect(), Some(format!("{}@{}", learned.name, learned.version)))
    }

    /// Takes a window in.
    pub fn note(&mut self, window: &EfficiencyWindow, settings: &BudgetSettings) {
        let end = window.window_end;
        if self.through.is_some_and(|through| end <= through) {
            return;
        }
        (self.through, self.origin) = (Some(end), window.origin);
        if Measured::of(window, settings.coverage_min_ratio).is_err() {
            return;
        }
        self.heard = Some(end);
        let board = self.newest().and_then(|newest| newest.gpu_power_limit_watts);
        if let Some(layout) = &window.layout {
            self.measured.note(window, layout, board);
        }
    }

    /// The decision of a look that a window completes; `reason` where the look did not wait for it.
    pub fn say(&mut self, window: &EfficiencyWindow, settings: &BudgetSettings, reason: &str) -> Option<Decision> {
        let end = window.window_end;
        let decision = match self.waiting.take_if(|waiting| waiting.time == end) {
            Some(decision) => decision,
            None if self.decided >= Some(end) => return None,
            None => {
                let workload = self.now.as_ref().or(self.newest())?;
                let decision = self.maintain(workload, end, settings, reason);
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

    /// Leaves everything as it is, and says why.
    pub fn maintain(&self, workload: &Workload, time: EventTime, settings: &BudgetSettings, look: &str) -> Decision {
        let why = match self.standing(time, settings) {
            _ if workload.paused => "the workload is paused: nothing is asked of its GPUs, and their boards' limit counts; ",
            _ if workload.mode == UpdateMode::Observe => {
                "in mode observe nothing is asked of its GPUs, and their boards' limit counts; "
            }
            _ if workload.mode != UpdateMode::Enforce => "only in mode enforce caps are turned: this one stays, and counts; ",
            Standing::Open => "",
            Standing::Silent => "no window said anything for a while: its cap stays, and counts in full; ",
            Standing::Rolling => "its last change is not ready yet: the higher cap counts; ",
        };
        budget::maintain(workload, time, settings, format!("{why}{look}"))
    }
}
