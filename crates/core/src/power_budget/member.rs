//! One workload that shares the power budget.

use std::collections::VecDeque;

use eadt_schemas::EventTime;
use eadt_schemas::v1::{Decision, EfficiencyWindow, Origin, UpdateMode, Workload};
use serde::{Deserialize, Serialize};

use crate::controller::MeasuredWindow;
use crate::joint::{MAX_PENDING_LAYOUTS, PendingDecision, PendingLayouts};
use crate::models::ModelRegistry;
use crate::power_budget::allocation::{self, BudgetSettings, BudgetState, CapChangeState, CapMeasurements, PowerPoint};
use crate::settings::FoldSettings;

/// Caps that must have been measured before measurements take precedence over a learned curve.
const MEASURED_ENOUGH: usize = 3;
/// Points that are taken of a learned curve.
const CURVE_POINTS: u32 = 16;

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct BudgetMember {
    /// The workload in force as of the last evaluation.
    now: Option<Workload>,
    /// Layouts that came into force after it, in the order of their times.
    coming: PendingLayouts,
    /// Power of all GPUs together under the layouts before `now` that may still be in force, in watts; `None` if it is unknown.
    lingering_watts: Option<f64>,
    /// Decisions that were refused after the last evaluation, and when.
    refused: VecDeque<(EventTime, String)>,
    /// Time of the first layout.
    joined: Option<EventTime>,
    measured: CapMeasurements,
    /// Ends of the newest window, and of the newest usable one.
    through: Option<EventTime>,
    #[serde(rename = "heard")]
    last_usable_end: Option<EventTime>,
    /// The newest window's.
    origin: Origin,
    #[serde(flatten)]
    pub pending_decision: PendingDecision,
}

fn cap(workload: &Workload) -> Option<f64> {
    workload.layout.power_limit_watts.or(workload.gpu_power_limit_watts)
}

/// Returns the power of all GPUs of a workload.
fn total_watts(watts: Option<f64>, workload: &Workload) -> Option<f64> {
    Some(watts? * f64::from(workload.gpus?))
}

impl BudgetMember {
    /// Adds a layout, whatever its time.
    pub fn set_layout(&mut self, layout: &Workload) {
        self.joined.get_or_insert(layout.time);
        if let Some(oldest) = self.coming.put(layout) {
            self.apply_layout(oldest);
        }
    }

    pub fn on_refused(&mut self, time: EventTime, decision: &str) {
        let place = self.refused.partition_point(|(other, _)| *other < time);
        self.refused.insert(place, (time, decision.to_owned()));
        if self.refused.len() > MAX_PENDING_LAYOUTS {
            // It counts until it has expired.
            self.refused.pop_front();
        }
    }

    /// Returns the newest layout, in force at the last evaluation or not.
    fn newest_layout(&self) -> Option<&Workload> {
        self.coming.newest().or(self.now.as_ref())
    }

    /// Returns whether the first stage leaves its windows to this one.
    pub fn shares_budget(&self, settings: &FoldSettings) -> bool {
        self.newest_layout().is_some_and(|newest| settings.shares_budget(newest))
    }

    /// Returns the layout in force as of the last evaluation, if it shares the budget.
    pub fn present_layout(&self, settings: &FoldSettings) -> Option<&Workload> {
        self.now.as_ref().filter(|now| settings.shares_budget(now))
    }

    /// Returns true if it has nothing to do with the budget any more.
    pub fn is_gone(&self, settings: &FoldSettings) -> bool {
        self.coming.is_empty() && self.present_layout(settings).is_none()
    }

    /// Advances the time to an allocation.
    pub fn advance_to(&mut self, time: EventTime, name: &str, grants: &mut BudgetState) {
        for layout in self.coming.take_due(time) {
            if let Some(decided) = layout.decision_id.as_deref().and_then(|id| allocation::decided_at(name, id)) {
                grants.on_applied(name, decided);
            }
            self.apply_layout(layout);
        }
        let due = self.refused.partition_point(|(refused, _)| *refused <= time);
        for (_, decision) in self.refused.drain(..due) {
            grants.on_refused(name, &decision);
        }
    }

    fn apply_layout(&mut self, layout: Workload) {
        if self.now.as_ref().is_some_and(|now| now.time > layout.time) {
            return;
        }
        // Until the layout is ready, some GPUs may keep the cap that was in force before.
        self.lingering_watts = match &self.now {
            _ if layout.ready_time.is_some() => Some(0.0),
            Some(now) => total_watts(cap(now), now).zip(self.lingering_watts).map(|(before, longer)| before.max(longer)),
            None => total_watts(layout.gpu_power_limit_watts, &layout),
        };
        self.now = Some(layout);
    }

    pub fn lingering_watts(&self) -> Option<f64> {
        self.lingering_watts
    }

    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// Returns the kind of change that is allowed at `time`.
    pub fn cap_change_state(&self, time: EventTime, settings: &BudgetSettings) -> CapChangeState {
        if self.now.as_ref().is_some_and(|now| now.ready_time.is_none()) {
            return CapChangeState::Rolling;
        }
        match self.last_usable_end {
            Some(last_window_end) if time.seconds_since(last_window_end) <= settings.silence_seconds => CapChangeState::Open,
            _ => CapChangeState::Silent,
        }
    }

    /// Returns whether its window that ends with an evaluation is to be expected.
    pub fn is_awaited(&self, time: EventTime, settings: &BudgetSettings) -> bool {
        self.through.max(self.joined).is_some_and(|last| time.seconds_since(last) <= settings.silence_seconds)
    }

    /// Returns the throughput against power, and the learned model that it is from, if it is.
    pub fn points(&self, workload: &Workload, models: &ModelRegistry) -> (Vec<PowerPoint>, Option<String>) {
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
    pub fn add_window(&mut self, window: &EfficiencyWindow, settings: &BudgetSettings) {
        let end = window.window_end;
        if self.through.is_some_and(|through| end <= through) {
            return;
        }
        (self.through, self.origin) = (Some(end), window.origin);
        if MeasuredWindow::from_event(window, settings.coverage_min_ratio).is_err() {
            return;
        }
        self.last_usable_end = Some(end);
        let board = self.newest_layout().and_then(|newest| newest.gpu_power_limit_watts);
        if let Some(layout) = &window.layout {
            self.measured.add_window(window, layout, board);
        }
    }

    /// Returns the decision of an evaluation that a window completes; `reason` if the evaluation did not wait for it.
    pub fn decision_for(&mut self, window: &EfficiencyWindow, settings: &BudgetSettings, reason: &str) -> Option<Decision> {
        let end = window.window_end;
        let workload = self.now.as_ref().or(self.newest_layout()).filter(|_| self.pending_decision.has_no_decision_for(end));
        let missed = workload.map(|workload| self.maintain(workload, end, settings, reason));
        self.pending_decision.take_for_window(window, missed)
    }

    /// Returns a decision that leaves everything as it is, with the reason.
    pub fn maintain(&self, workload: &Workload, time: EventTime, settings: &BudgetSettings, outcome: &str) -> Decision {
        let silent =
            format!("no usable window in the last {:.0} s: its cap stays, and counts in full; ", settings.silence_seconds);
        let why = match self.cap_change_state(time, settings) {
            _ if workload.paused => "the workload is paused: no cap is requested for its GPUs, and their boards' limit counts; ",
            _ if workload.mode == UpdateMode::Observe => {
                "in mode observe no cap is requested for its GPUs, and their boards' limit counts; "
            }
            _ if workload.mode != UpdateMode::Enforce => "caps are changed only in mode enforce: this one stays, and counts; ",
            CapChangeState::Open => "",
            CapChangeState::Silent => silent.as_str(),
            CapChangeState::Rolling => "its last change is not ready yet: the higher cap counts; ",
        };
        allocation::maintain(workload, time, settings, format!("{why}{outcome}"))
    }
}

#[cfg(test)]
mod tests {
    use eadt_schemas::v1::{Layout, Model};
    use serde_json::json;

    use super::*;
    use crate::power_budget::allocation::PowerGrants;

    fn at(seconds: u32) -> EventTime {
        EventTime::from_seconds(f64::from(seconds))
    }

    /// Returns a layout of this time, ready at once.
    fn layout(seconds: u32, gpus: u32, cap: Option<f64>) -> Workload {
        Workload {
            time: at(seconds),
            workload: "n/a".into(),
            mode: UpdateMode::Enforce,
            gpus: Some(gpus),
            gpu_power_limit_watts: Some(400.0),
            layout: Layout { power_limit_watts: cap, ..Layout::default() },
            ready_time: Some(at(seconds)),
            ..Workload::default()
        }
    }

    fn rolling(seconds: u32, gpus: u32, cap: Option<f64>) -> Workload {
        Workload { ready_time: None, ..layout(seconds, gpus, cap) }
    }

    /// Returns a window in which every figure is known.
    fn window(end: u32, origin: Origin) -> EfficiencyWindow {
        EfficiencyWindow {
            workload: "n/a".into(),
            window_end: at(end),
            origin,
            energy_coverage_ratio: 1.0,
            progress_coverage_ratio: 1.0,
            samples_per_second: Some(10.0),
            mean_power_watts: Some(300.0),
            mean_power_per_gpu_watts: Some(300.0),
            ..EfficiencyWindow::default()
        }
    }

    /// Returns a member in which these layouts are in force, one after another.
    fn member(layouts: &[Workload]) -> BudgetMember {
        let mut member = BudgetMember::default();
        for layout in layouts {
            member.set_layout(layout);
            member.advance_to(layout.time, "n/a", &mut BudgetState::default());
        }
        member
    }

    fn granted(of: &[(&str, u32)]) -> BudgetState {
        let grant = |(decision, time): &(&str, u32)| json!({"decision": decision, "time": at(*time), "watts": 300.0, "expires": at(time + 300)});
        let grants: PowerGrants = serde_json::from_value(of.iter().map(grant).collect()).unwrap();
        let mut state = BudgetState::default();
        state.put("n/a", grants);
        state
    }

    #[test]
    fn layouts_come_into_force_in_the_order_of_their_times() {
        let mut member = BudgetMember::default();
        let advance = |member: &mut BudgetMember, seconds| member.advance_to(at(seconds), "n/a", &mut BudgetState::default());
        for (seconds, cap) in [(30, 130.0), (10, 110.0), (20, 120.0)] {
            member.set_layout(&layout(seconds, 1, Some(cap)));
            assert_eq!(member.newest_layout().map(|newest| newest.time), Some(at(30)));
        }
        // The last layout of one time counts.
        member.set_layout(&layout(20, 1, Some(125.0)));
        assert_eq!(member.coming.len(), 3);
        for (seconds, cap) in [(9, None), (10, Some(110.0)), (29, Some(125.0)), (30, Some(130.0))] {
            advance(&mut member, seconds);
            assert_eq!(member.now.as_ref().and_then(cap_of), cap, "after {seconds} s");
        }
        // The same holds if the time was evaluated already, but no older layout counts.
        member.set_layout(&layout(30, 1, Some(135.0)));
        member.set_layout(&layout(25, 1, Some(126.0)));
        advance(&mut member, 60);
        assert_eq!(member.now.as_ref().and_then(cap_of), Some(135.0));
    }

    fn cap_of(workload: &Workload) -> Option<f64> {
        workload.layout.power_limit_watts
    }

    #[test]
    fn of_more_than_64_layouts_or_refusals_between_two_looks_the_oldest_go() {
        let mut member = BudgetMember::default();
        for n in 0..64 {
            member.set_layout(&layout(n, 1, None));
            member.on_refused(at(n), "d");
        }
        assert_eq!((member.now.as_ref(), member.coming.len(), member.refused.len()), (None, 64, 64));
        member.set_layout(&layout(64, 1, None));
        member.on_refused(at(64), "d");
        assert_eq!(member.now.as_ref().map(|now| now.time), Some(at(0)), "it is in force at once");
        assert_eq!((member.coming.len(), member.refused.len(), member.refused[0].0), (64, 64, at(1)));
    }

    #[test]
    fn a_look_takes_what_was_refused_and_overtaken_before_it_from_what_is_granted() {
        let mut member = BudgetMember::default();
        for (seconds, decision) in [(30, "late"), (10, "early"), (20, "at the evaluation")] {
            member.on_refused(at(seconds), decision);
        }
        let mut grants = granted(&[("early", 1), ("at the evaluation", 2), ("late", 3), ("other", 4)]);
        member.advance_to(at(20), "n/a", &mut grants);
        assert_eq!(grants, granted(&[("late", 3), ("other", 4)]));
        // Once a decision is in force, no older one will be.
        let id = allocation::maintain(&layout(3, 1, None), at(3), &BudgetSettings::default(), String::new()).id;
        member.set_layout(&Workload { decision_id: Some(id), ..layout(40, 1, None) });
        member.advance_to(at(39), "n/a", &mut grants);
        assert_eq!(grants, granted(&[("other", 4)]), "late was refused, and nothing is overtaken yet");
        let mut grants = granted(&[("older", 2), ("itself", 3), ("other", 4)]);
        member.advance_to(at(40), "n/a", &mut grants);
        assert_eq!(grants, granted(&[("other", 4)]));
    }

    #[test]
    fn until_a_change_is_ready_the_power_of_all_gpus_before_it_lingers() {
        // Eight GPUs of 200 W, then four of 150 W, then four of 300 W.
        let changes =
            [layout(0, 8, Some(200.0)), rolling(10, 4, Some(150.0)), rolling(20, 4, Some(300.0)), layout(30, 4, Some(300.0))];
        let lingering: Vec<_> = (1..=4).map(|n| member(&changes[..n]).lingering_watts()).collect();
        assert_eq!(lingering, [Some(0.0), Some(1_600.0), Some(1_600.0), Some(0.0)]);
        // The largest of all before it, and without a cap the board's limit.
        assert_eq!(
            member(&[layout(0, 2, Some(100.0)), rolling(10, 2, Some(300.0)), rolling(20, 2, None)]).lingering_watts(),
            Some(600.0)
        );
        assert_eq!(member(&[layout(0, 2, None), rolling(10, 2, Some(300.0))]).lingering_watts(), Some(800.0));
        // Only the boards of layouts before the first one are known.
        assert_eq!(member(&[rolling(0, 2, Some(100.0))]).lingering_watts(), Some(800.0));
        let unknown = [
            Workload { gpu_power_limit_watts: None, ..layout(0, 2, None) },
            Workload { gpus: None, ..layout(0, 2, Some(100.0)) },
        ];
        for before in unknown {
            assert_eq!(member(&[before, rolling(10, 2, Some(300.0))]).lingering_watts(), None);
        }
    }

    #[test]
    fn a_member_is_silent_five_minutes_after_its_last_usable_window() {
        let settings = BudgetSettings::default();
        let mut member = member(&[layout(0, 1, None)]);
        assert_eq!(member.cap_change_state(at(0), &settings), CapChangeState::Silent, "no window came yet");
        member.add_window(&window(60, Origin::Measured), &settings);
        member.add_window(&EfficiencyWindow { gap: true, ..window(120, Origin::Measured) }, &settings);
        assert_eq!(member.cap_change_state(at(360), &settings), CapChangeState::Open);
        assert_eq!(member.cap_change_state(at(361), &settings), CapChangeState::Silent);
        // Its windows are waited for by the last one that came, whether it is usable or not.
        assert!(member.is_awaited(at(420), &settings) && !member.is_awaited(at(421), &settings));
        member.set_layout(&rolling(350, 1, None));
        member.advance_to(at(350), "n/a", &mut BudgetState::default());
        assert_eq!(member.cap_change_state(at(360), &settings), CapChangeState::Rolling);
    }

    #[test]
    fn every_window_has_one_decision_of_the_origin_of_its_worst_figure() {
        let settings = BudgetSettings::default();
        let mut member = member(&[Workload { origin: Origin::Imported, ..layout(0, 1, None) }]);
        assert_eq!(member.origin(), Origin::Measured);
        let measured = member.decision_for(&window(60, Origin::Measured), &settings, "why").unwrap();
        assert_eq!((measured.origin, measured.time, measured.reason.ends_with("why")), (Origin::Imported, at(60), true));
        member.add_window(&window(120, Origin::Simulated), &settings);
        assert_eq!(member.origin(), Origin::Simulated);
        assert_eq!(
            member.decision_for(&window(120, Origin::Simulated), &settings, "why").map(|decision| decision.origin),
            Some(Origin::Simulated)
        );
        for end in [60, 120] {
            assert_eq!(member.decision_for(&window(end, Origin::Measured), &settings, "why"), None, "{end} s were decided about");
        }
    }

    #[test]
    fn a_change_is_published_at_the_next_look_if_its_window_does_not_come_and_anything_else_is_not() {
        let settings = BudgetSettings::default();
        let mut member = member(&[layout(0, 1, None)]);
        let stays = member.maintain(&layout(0, 1, None), at(60), &settings, "");
        let mut change = stays.clone();
        change.to.power_limit_watts = Some(300.0);
        assert_eq!(
            (member.pending_decision.queue_decision(stays.clone(), true), member.pending_decision.take_overdue()),
            (None, None)
        );
        assert_eq!(member.pending_decision, PendingDecision::default(), "nothing was published for that time");
        assert_eq!(
            (member.pending_decision.queue_decision(change.clone(), true), member.pending_decision.take_overdue()),
            (None, Some(change.clone()))
        );
        assert_eq!(member.decision_for(&window(60, Origin::Measured), &settings, "late"), None, "it was published");
        // If no window is to be expected, it is returned at once.
        let change = Decision { time: at(120), ..change };
        assert_eq!(member.pending_decision.queue_decision(Decision { time: at(120), ..stays }, false), None);
        assert_eq!(member.pending_decision.queue_decision(change.clone(), false), Some(change.clone()));
        assert_eq!(member.decision_for(&window(120, Origin::Measured), &settings, "late"), None, "it was published");
        assert_eq!(member.pending_decision.queue_decision(Decision { time: at(180), ..change.clone() }, true), None);
        let decision = member.decision_for(&window(180, Origin::Simulated), &settings, "").unwrap();
        assert_eq!(
            (decision.to, decision.origin),
            (change.to, Origin::Simulated),
            "no more real than the window that it comes with"
        );
    }

    #[test]
    fn a_member_that_stays_as_it_is_gives_the_reason() {
        let observed = |workload: Workload| {
            let mut member = member(std::slice::from_ref(&workload));
            member.add_window(&window(60, Origin::Measured), &BudgetSettings::default());
            (member, workload)
        };
        let why = |(member, workload): (BudgetMember, Workload), seconds| {
            member.maintain(&workload, at(seconds), &BudgetSettings::default(), "the outcome").reason
        };
        let job = || layout(0, 1, None);
        assert_eq!(why(observed(job()), 60), "the outcome");
        for (member, seconds, words) in [
            (observed(job()), 600, "no usable window in the last 300 s"),
            (observed(rolling(0, 1, None)), 60, "its last change is not ready yet"),
            (observed(Workload { paused: true, ..job() }), 60, "the workload is paused"),
            (observed(Workload { mode: UpdateMode::Observe, ..job() }), 60, "in mode observe"),
            (observed(Workload { mode: UpdateMode::Recommend, ..job() }), 60, "caps are changed only in mode enforce"),
        ] {
            let reason = why(member, seconds);
            assert!(reason.starts_with(words) && reason.ends_with("; the outcome"), "{reason}");
        }
    }

    #[test]
    fn of_a_learned_curve_seventeen_points_are_taken_over_its_whole_range() {
        // As many samples/s as the root of the watts.
        let law = json!({"a": 1.0, "b": 0.5, "offset_watts": 0.0, "r_squared": 0.9, "mape_ratio": 0.02, "peak_watts": null,
            "peak_measured": false});
        let curve = json!({"power_law": {"a": 1.0, "b": 0.5, "r_squared": 0.9, "mape_ratio": 0.02}, "offset_power_law": law,
            "verdict": "informative", "watts_range": [100.0, 420.0], "count": 9});
        let parameters =
            json!({"format": "eadt.cap-curve.v1", "gpu_model": "H100", "layout": [null, null, null, null], "curve": curve});
        let mut models = ModelRegistry::default();
        models.put(&Model { name: "cap-curve/n/a".into(), version: "7".into(), parameters, ..Model::default() });
        let workload = Workload { gpu_model: Some("H100".into()), ..layout(0, 1, None) };
        let (points, model) = member(std::slice::from_ref(&workload)).points(&workload, &models);
        assert_eq!(model.as_deref(), Some("cap-curve/n/a@7"));
        assert_eq!(points.len(), 17);
        for (point, n) in points.iter().zip(0_u32..) {
            assert!((point.watts - (100.0 + 20.0 * f64::from(n))).abs() < 1e-9, "{point:?}");
            assert!((point.samples_per_second.powi(2) - point.watts).abs() < 1e-9, "{point:?}");
        }
    }
}
