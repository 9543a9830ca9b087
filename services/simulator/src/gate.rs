//! Moments at which simulated time waits. Pure.
//!
//! Simulated time stops at a moment at which others owe an answer, until the answer is on the bus:
//!
//! - at the start, until every managed workload's layout is published;
//! - at each window's end plus the effect delay, until that window's decision of every workload is there and, unless it is
//!   `maintain`, its outcome: what is decided takes effect at exactly this moment;
//! - when a rollout is complete, until that was reported; when its time is up, until it was taken back.
//!
//! There is no timeout: it would make the history depend on the host's speed. Nothing is waited for that cannot come. A window
//! that no source reported in has no decision. A window that a silent source (a lost device, a job that restarts) still holds
//! open has none yet. It is checked again every effect delay of simulated time, until the source reports again or was silent for
//! longer than the processor's `idle_grace`. When all sources of a workload are silent, only the processor's heartbeats close its
//! windows, at a time that no event fixes; such windows are not waited for.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use eadt_cluster::ManagedWorkload;
use eadt_schemas::EventTime;
use eadt_schemas::v1::{Actuation, ActuationOutcome, ControllerAction, Decision};
use eadt_simulator::SimulatedEvent;
use serde::{Deserialize, Serialize};

use crate::SimulatorSettings;

/// Timing of the gate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GateTiming {
    window_micros: i64,
    delay_micros: i64,
    /// Silence after which a source surely holds no window open any more.
    idle_seconds: f64,
}

/// Log time is stamped once a step, so idleness may be noticed two steps late.
const IDLE_MARGIN_SECONDS: f64 = 2.0 * MAX_STEP_SECONDS;
/// Longest step of simulated time; the processor counts at most 20 s between two stamps.
pub const MAX_STEP_SECONDS: f64 = 10.0;

impl GateTiming {
    pub fn new(settings: &SimulatorSettings) -> Self {
        Self {
            window_micros: i64::from(settings.window_seconds) * 1_000_000,
            delay_micros: i64::from(settings.effect_delay_seconds) * 1_000_000,
            idle_seconds: settings.idle_grace_seconds + IDLE_MARGIN_SECONDS,
        }
    }

    /// Returns the end of the window that holds `time`.
    fn end_of(&self, time: EventTime) -> EventTime {
        EventTime::from_micros((time.micros().div_euclid(self.window_micros) + 1) * self.window_micros)
    }

    /// Returns the first moment of effect that is not before `time`, if `time` lies between a window's end and it. Nothing
    /// closes at `start`, where the simulation begins.
    pub fn align_to_effect(&self, time: EventTime, start: EventTime) -> EventTime {
        let edge = time.micros().div_euclid(self.window_micros) * self.window_micros;
        if edge <= start.micros() {
            return time;
        }
        time.max(EventTime::from_micros(edge + self.delay_micros))
    }
}

/// The reports and answers so far; part of the driver's state.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct TimeGate {
    workloads: BTreeMap<String, WorkloadGate>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct WorkloadGate {
    /// Its layout is on `workloads.v1`; always true for one that did not opt in.
    announced: bool,
    /// Windows up to this end are done with.
    settled: EventTime,
    /// Last report of each source that has not ended.
    sources: BTreeMap<String, EventTime>,
    /// Ends of windows after `settled` in which something was reported.
    reported: BTreeSet<EventTime>,
    /// Decisions of windows after `settled`, by window end: id, and whether an outcome is owed.
    decisions: BTreeMap<EventTime, (String, bool)>,
    outcomes: BTreeMap<String, Vec<ActuationOutcome>>,
}

/// An answer that is owed now.
#[derive(Debug, Clone, PartialEq)]
pub enum PendingAnswer {
    Layout { workload: String },
    Decision { workload: String, window_end: EventTime },
    Outcome { workload: String, window_end: EventTime, decision: String },
    Ready { workload: String, decision: String },
    RollBack { workload: String, decision: String },
}

impl fmt::Display for PendingAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Layout { workload } => write!(f, "the layout of {workload} from the actuator"),
            Self::Decision { workload, window_end } => {
                write!(f, "the decision for {workload} of the window that ends at {window_end} from the processor")
            }
            Self::Outcome { workload, decision, .. } => write!(f, "the outcome of {decision} for {workload} from the actuator"),
            Self::Ready { workload, decision } => {
                write!(f, "the report that {decision} for {workload} is ready from the actuator")
            }
            Self::RollBack { workload, decision } => write!(f, "the rollback of {decision} for {workload} from the actuator"),
        }
    }
}

/// Horizon of one workload's decisions: see [`TimeGate::decision_horizons`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecisionHorizon {
    /// Decisions up to this time are acted on now.
    pub through: EventTime,
}

impl TimeGate {
    /// Creates a gate for workloads that begin to report at `start`; the flag is whether a workload opted in.
    pub fn new(workloads: impl IntoIterator<Item = (String, bool)>, start: EventTime) -> Self {
        let watched = |opted_in: bool| WorkloadGate {
            announced: !opted_in,
            settled: start,
            sources: BTreeMap::new(),
            reported: BTreeSet::new(),
            decisions: BTreeMap::new(),
            outcomes: BTreeMap::new(),
        };
        Self { workloads: workloads.into_iter().map(|(name, opted_in)| (name, watched(opted_in))).collect() }
    }

    /// Records a simulated event.
    pub fn on_event(&mut self, rules: &GateTiming, event: &SimulatedEvent) {
        let (workload, source, time, last) = match event {
            SimulatedEvent::Telemetry(t) => (t.workload.as_deref(), t.device.as_str(), t.time, t.last),
            SimulatedEvent::Progress(p) => (Some(p.workload.as_str()), "", p.time, p.last),
        };
        let Some(watched) = workload.and_then(|name| self.workloads.get_mut(name)) else { return };
        if last {
            watched.sources.remove(source);
        } else if let Some(latest) = watched.sources.get_mut(source) {
            *latest = time;
        } else {
            watched.sources.insert(source.to_owned(), time);
        }
        watched.reported.insert(rules.end_of(time));
    }

    pub fn on_layout(&mut self, workload: &str) {
        if let Some(watched) = self.workloads.get_mut(workload) {
            watched.announced = true;
        }
    }

    pub fn on_decision(&mut self, decision: &Decision) {
        if let Some(watched) = self.workloads.get_mut(&decision.workload)
            && decision.time > watched.settled
        {
            let owes = decision.action != ControllerAction::Maintain;
            watched.decisions.insert(decision.time, (decision.id.clone(), owes));
        }
    }

    pub fn on_actuation(&mut self, actuation: &Actuation) {
        if let Some(watched) = self.workloads.get_mut(&actuation.workload) {
            let outcomes = watched.outcomes.entry(actuation.decision_id.clone()).or_default();
            if !outcomes.contains(&actuation.outcome) {
                outcomes.push(actuation.outcome);
            }
        }
    }

    /// Returns the answers that simulated time waits for at `now`; if there are none, it may advance after
    /// [`TimeGate::close_due_windows`].
    pub fn pending_answers(&self, rules: &GateTiming, managed: &[ManagedWorkload], now: EventTime) -> Vec<PendingAnswer> {
        let mut pending = Vec::new();
        for (name, watched) in &self.workloads {
            let workload = || name.clone();
            if !watched.announced {
                pending.push(PendingAnswer::Layout { workload: workload() });
            }
            for window_end in watched.due(rules, now).unanswered {
                match watched.decisions.get(&window_end) {
                    None => pending.push(PendingAnswer::Decision { workload: workload(), window_end }),
                    Some((decision, true)) if !watched.outcomes.contains_key(decision) => {
                        pending.push(PendingAnswer::Outcome { workload: workload(), window_end, decision: decision.clone() });
                    }
                    Some(_) => {}
                }
            }
        }
        for managed in managed {
            let Some(applied) = &managed.applied else { continue };
            let (name, decision) = (&managed.state.workload, &applied.decision_id);
            let is_answered = |outcome| {
                self.workloads
                    .get(name)
                    .and_then(|w| w.outcomes.get(decision))
                    .is_some_and(|outcomes| outcomes.contains(&outcome))
            };
            if applied.ready_time.is_some() {
                if !is_answered(ActuationOutcome::Ready) {
                    pending.push(PendingAnswer::Ready { workload: name.clone(), decision: decision.clone() });
                }
            } else if (applied.rolled_back.is_some() || now >= applied.ready_by)
                && !is_answered(ActuationOutcome::RolledBack)
                && !is_answered(ActuationOutcome::Failed)
            {
                pending.push(PendingAnswer::RollBack { workload: name.clone(), decision: decision.clone() });
            }
        }
        pending
    }

    /// Time goes on from `now`: windows that were due are done with.
    pub fn close_due_windows(&mut self, rules: &GateTiming, managed: &[ManagedWorkload], now: EventTime) {
        for (name, watched) in &mut self.workloads {
            watched.settled = watched.due(rules, now).through;
            watched.reported = watched.reported.split_off(&watched.settled.plus_micros(1));
            watched.decisions = watched.decisions.split_off(&watched.settled.plus_micros(1));
            let applied = managed.iter().find(|m| m.state.workload == *name).and_then(|m| m.applied.as_ref());
            let WorkloadGate { decisions, outcomes, .. } = watched;
            outcomes.retain(|id, _| {
                applied.is_some_and(|applied| applied.decision_id == *id) || decisions.values().any(|(open, _)| open == id)
            });
        }
    }

    /// Returns the next moment after `now` at which something may be owed for a window.
    pub fn next_stop(&self, rules: &GateTiming, now: EventTime) -> EventTime {
        let GateTiming { window_micros, delay_micros, .. } = *rules;
        let edge = (now.micros() - delay_micros).div_euclid(window_micros) + 1;
        let regular = EventTime::from_micros(edge * window_micros + delay_micros);
        if self.workloads.values().any(|watched| watched.due(rules, now).held) {
            let again = EventTime::from_micros((now.micros().div_euclid(delay_micros) + 1) * delay_micros);
            return regular.min(again);
        }
        regular
    }

    /// Returns the decision time up to which the actuator may act on each workload now. A later decision waits.
    pub fn decision_horizons(&self, rules: &GateTiming, now: EventTime) -> BTreeMap<String, DecisionHorizon> {
        let turn = |watched: &WorkloadGate| DecisionHorizon { through: watched.due(rules, now).through };
        self.workloads.iter().map(|(name, watched)| (name.clone(), turn(watched))).collect()
    }
}

/// The windows of a workload whose moment of effect has come.
struct DueWindows {
    /// Windows whose decision is owed.
    unanswered: Vec<EventTime>,
    /// All windows up to this end are due.
    through: EventTime,
    /// The next one is held open by a silent source.
    held: bool,
}

impl WorkloadGate {
    fn due(&self, rules: &GateTiming, now: EventTime) -> DueWindows {
        let mut due = DueWindows { unanswered: Vec::new(), through: self.settled, held: false };
        loop {
            let edge = due.through.plus_micros(rules.window_micros);
            if edge.plus_micros(rules.delay_micros) > now {
                return due;
            }
            if self.reported.contains(&edge) {
                let behind = self.sources.values().filter(|last| **last < edge);
                let (count, idle) = behind
                    .fold((0, true), |(count, idle), last| (count + 1, idle && now.seconds_since(*last) > rules.idle_seconds));
                if !idle {
                    due.held = true;
                    return due;
                }
                if count < self.sources.len() {
                    due.unanswered.push(edge);
                }
            }
            due.through = edge;
        }
    }
}

#[cfg(test)]
mod tests {
    use eadt_cluster::AppliedDecision;
    use eadt_schemas::v1::{GpuTelemetry, Layout, TrainingProgress, Workload};

    use super::*;

    const W: &str = "a/b";

    fn at(seconds: i64) -> EventTime {
        EventTime::from_micros(1_767_225_600_000_000 + seconds * 1_000_000)
    }

    fn rules() -> GateTiming {
        GateTiming::new(&SimulatorSettings::default())
    }

    fn gate() -> TimeGate {
        let mut gate = TimeGate::new([(W.to_owned(), true)], at(0));
        gate.on_layout(W);
        gate
    }

    fn device(gate: &mut TimeGate, name: &str, seconds: impl IntoIterator<Item = i64>) {
        for second in seconds {
            let event =
                GpuTelemetry { time: at(second), workload: Some(W.into()), device: name.into(), ..GpuTelemetry::default() };
            gate.on_event(&rules(), &SimulatedEvent::Telemetry(Box::new(event)));
        }
    }

    fn decide(gate: &mut TimeGate, second: i64, action: ControllerAction) {
        let id = format!("d{second}");
        gate.on_decision(&Decision { id, workload: W.into(), time: at(second), action, ..Decision::default() });
    }

    fn actuate(gate: &mut TimeGate, second: i64, outcome: ActuationOutcome) {
        let decision_id = format!("d{second}");
        gate.on_actuation(&Actuation { decision_id, workload: W.into(), outcome, ..Actuation::default() });
    }

    fn owed(gate: &TimeGate, now: i64) -> Vec<PendingAnswer> {
        gate.pending_answers(&rules(), &[], at(now))
    }

    #[test]
    fn the_layout_comes_first() {
        let gate = TimeGate::new([(W.to_owned(), true), ("a/unmanaged".to_owned(), false)], at(0));
        assert_eq!(owed(&gate, 0), [PendingAnswer::Layout { workload: W.into() }]);
    }

    #[test]
    fn a_window_waits_for_its_decision_and_a_change_for_its_outcome() {
        let mut gate = gate();
        assert_eq!(gate.next_stop(&rules(), at(10)), at(70));
        device(&mut gate, "g", 0..70);
        assert_eq!(owed(&gate, 69), []);
        assert_eq!(owed(&gate, 70), [PendingAnswer::Decision { workload: W.into(), window_end: at(60) }]);
        assert_eq!(gate.decision_horizons(&rules(), at(69))[W].through, at(0));
        assert_eq!(gate.decision_horizons(&rules(), at(70))[W].through, at(60));
        decide(&mut gate, 60, ControllerAction::Decrease);
        assert!(matches!(&owed(&gate, 70)[..], [PendingAnswer::Outcome { decision, .. }] if decision == "d60"));
        actuate(&mut gate, 60, ActuationOutcome::Refused);
        assert_eq!(owed(&gate, 70), []);
        gate.close_due_windows(&rules(), &[], at(70));
        assert_eq!(gate.next_stop(&rules(), at(70)), at(130));
        device(&mut gate, "g", 70..130);
        decide(&mut gate, 120, ControllerAction::Maintain);
        assert_eq!(owed(&gate, 130), []);
        // Completed decisions are forgotten.
        gate.close_due_windows(&rules(), &[], at(130));
        assert!(gate.workloads[W].decisions.is_empty() && gate.workloads[W].outcomes.is_empty());
    }

    #[test]
    fn a_silent_source_holds_its_window_until_it_is_back() {
        let mut gate = gate();
        device(&mut gate, "g", 0..150);
        device(&mut gate, "h", 0..50);
        gate.close_due_windows(&rules(), &[], at(70));
        assert_eq!(owed(&gate, 70), [], "nobody can close this window yet");
        assert_eq!(gate.decision_horizons(&rules(), at(70))[W].through, at(0), "nor act on a decision for it");
        assert_eq!(gate.next_stop(&rules(), at(70)), at(80));
        device(&mut gate, "h", 130..150);
        let ends: Vec<_> = owed(&gate, 150).into_iter().collect();
        let window_end = |second| PendingAnswer::Decision { workload: W.into(), window_end: at(second) };
        assert_eq!(ends, [window_end(60), window_end(120)]);
    }

    #[test]
    fn a_dead_source_holds_nothing_and_a_silent_workload_is_not_waited_for() {
        let mut gate = gate();
        device(&mut gate, "g", 0..200);
        device(&mut gate, "h", 0..50);
        assert_eq!(owed(&gate, 189), []);
        let ends = |gate: &TimeGate, now| owed(gate, now).len();
        assert_eq!(ends(&gate, 190), 3, "49 + 120 + 20 s are over: windows 60, 120 and 180");
        let mut silent = self::gate();
        device(&mut silent, "g", 0..50);
        assert_eq!(ends(&silent, 70), 0);
        assert_eq!(ends(&silent, 250), 0);
        silent.close_due_windows(&rules(), &[], at(250));
        assert_eq!(silent.decision_horizons(&rules(), at(250))[W].through, at(240));
    }

    #[test]
    fn an_ended_source_holds_nothing() {
        let mut gate = gate();
        device(&mut gate, "g", 0..70);
        let end = TrainingProgress { time: at(30), workload: W.into(), last: true, ..TrainingProgress::default() };
        gate.on_event(
            &rules(),
            &SimulatedEvent::Progress(Box::new(TrainingProgress { time: at(10), last: false, ..end.clone() })),
        );
        assert_eq!(owed(&gate, 70), []);
        gate.on_event(&rules(), &SimulatedEvent::Progress(Box::new(end)));
        assert_eq!(owed(&gate, 70).len(), 1);
    }

    #[test]
    fn a_rollout_waits_for_its_report() {
        let mut gate = gate();
        let mut managed = ManagedWorkload {
            state: Workload { workload: W.into(), ..Workload::default() },
            applied: Some(AppliedDecision {
                decision_id: "d60".into(),
                decision_time: at(60),
                generation: 2,
                time: at(70),
                layout: Layout::default(),
                before: Layout::default(),
                ready_by: at(670),
                ready_time: None,
                rolled_back: None,
                approved_by: None,
            }),
            mps_default_thread_percentage: None,
            restarts: vec![],
        };
        let owed = |gate: &TimeGate, managed: &ManagedWorkload, now| {
            gate.pending_answers(&rules(), std::slice::from_ref(managed), at(now))
        };
        actuate(&mut gate, 60, ActuationOutcome::Applied);
        assert_eq!(owed(&gate, &managed, 669), []);
        assert_eq!(owed(&gate, &managed, 670), [PendingAnswer::RollBack { workload: W.into(), decision: "d60".into() }]);
        managed.applied.as_mut().unwrap().ready_time = Some(at(190));
        assert_eq!(owed(&gate, &managed, 190), [PendingAnswer::Ready { workload: W.into(), decision: "d60".into() }]);
        actuate(&mut gate, 60, ActuationOutcome::Ready);
        // It stays reported for as long as the mark is on the object.
        gate.close_due_windows(&rules(), std::slice::from_ref(&managed), at(190));
        assert_eq!(owed(&gate, &managed, 700), []);
    }

    #[test]
    fn a_run_does_not_end_between_a_close_and_its_effect() {
        for (time, end) in [(3600, 3610), (3609, 3610), (3610, 3610), (3630, 3630)] {
            assert_eq!(rules().align_to_effect(at(time), at(0)), at(end), "{time}");
        }
        // No window has closed yet, so no decision is on its way.
        for time in [3600, 3605, 3659] {
            assert_eq!(rules().align_to_effect(at(time), at(3600)), at(time), "{time}");
        }
        assert_eq!(rules().align_to_effect(at(3660), at(3600)), at(3670));
    }
}
