//! The joint stage of the power budget: when it evaluates, what counts, that the budget is never exceeded, and that neither a
//! restart nor the order of what comes at one time changes what it decides.

use crate::support;

use std::collections::BTreeMap;

use eadt_core::controller::ControllerName;
use eadt_core::joint::{JointEvent, JointFold};
use eadt_core::power_budget::PowerBudgetFold;
use eadt_core::power_budget::allocation::BudgetSettings;
use eadt_core::settings::SECOND;
use eadt_core::{FoldSettings, InputEvent, PartitionFold, StateError, StateRecord};
use eadt_schemas::EventTime;
use eadt_schemas::v1::{
    Actuation, ActuationOutcome, ControllerAction, Decision, EfficiencyWindow, Layout, Model, UpdateMode, WindowKind, Workload,
};
use eadt_testing::cases;
use proptest::prelude::*;
use serde_json::json;

const BASE: i64 = 1_700_000_040;
const BOARD_WATTS: f64 = 400.0;

fn at(seconds: i64) -> EventTime {
    EventTime::from_micros((BASE + seconds) * SECOND)
}

fn settings(budget_watts: f64) -> FoldSettings {
    let power_budget = BudgetSettings { budget_watts: Some(budget_watts), ..BudgetSettings::default() };
    FoldSettings { power_budget: Some(power_budget), ..FoldSettings::default() }
}

fn workload(name: &str, seconds: i64, generation: u64, gpus: u32, cap: Option<f64>) -> Workload {
    Workload {
        time: at(seconds),
        workload: format!("team/{name}"),
        controller: Some("power-budget".into()),
        mode: UpdateMode::Enforce,
        gpus: Some(gpus),
        gpu_power_limit_watts: Some(BOARD_WATTS),
        generation,
        layout: Layout { power_limit_watts: cap, ..Layout::default() },
        ready_time: Some(at(seconds)),
        ..Workload::default()
    }
}

/// Returns a whole window of a job that draws what it may and gets on with a power of that.
fn window(workload: &Workload, minute: i64, exponent: f64) -> EfficiencyWindow {
    let watts = workload.layout.power_limit_watts.unwrap_or(BOARD_WATTS);
    let (gpus, end) = (workload.gpus.unwrap(), at(minute * 60));
    EfficiencyWindow {
        id: format!("{}/tumbling/{minute}", workload.workload),
        workload: workload.workload.clone(),
        kind: WindowKind::Tumbling,
        window_start: at((minute - 1) * 60),
        window_end: end,
        energy_coverage_ratio: 1.0,
        progress_coverage_ratio: 1.0,
        samples_per_second: Some(watts.powf(exponent) * f64::from(gpus)),
        mean_power_watts: Some(watts * f64::from(gpus)),
        mean_power_per_gpu_watts: Some(watts),
        layout: Some(workload.layout.clone()),
        gpus,
        ..EfficiencyWindow::default()
    }
}

/// A cluster under test: its decisions, in order.
struct Site {
    cluster: PowerBudgetFold,
    decisions: Vec<Decision>,
}

impl Site {
    fn new(budget_watts: f64) -> Self {
        Self { cluster: PowerBudgetFold::new(settings(budget_watts)), decisions: Vec::new() }
    }

    fn fold(&mut self, event: JointEvent<'_>, key: &str) -> Vec<Decision> {
        let mut out = Vec::new();
        let stamp = event.time().unwrap_or(at(0));
        self.cluster.fold(event, Some(key), stamp, &mut out).unwrap();
        self.decisions.extend(out.iter().cloned());
        out
    }

    fn declare(&mut self, workload: &Workload) -> Vec<Decision> {
        self.fold(JointEvent::Input(InputEvent::Workload(workload)), &workload.workload)
    }

    fn window(&mut self, window: &EfficiencyWindow) -> Vec<Decision> {
        self.fold(JointEvent::Window(window), &window.workload)
    }

    fn answer(&mut self, decision: &Decision, seconds: i64, outcome: ActuationOutcome) {
        let actuation = Actuation {
            id: format!("{}/{outcome:?}", decision.id),
            decision_id: decision.id.clone(),
            workload: decision.workload.clone(),
            time: at(seconds),
            outcome,
            ..Actuation::default()
        };
        self.fold(JointEvent::Input(InputEvent::Actuation(&actuation)), &decision.workload);
    }

    /// Restarts as a new process that continues from the committed state.
    fn restart(&mut self, kept: &mut BTreeMap<String, Option<Vec<u8>>>, settings: &FoldSettings) {
        kept.extend(self.cluster.take_changes().into_iter().map(|StateRecord { key, value }| (key, value)));
        self.cluster =
            PowerBudgetFold::restore(settings.clone(), kept.iter().map(|(key, value)| (key.clone(), value.clone()))).unwrap();
    }
}

/// Returns the changed caps of decisions.
fn turned(decisions: &[Decision]) -> Vec<(&str, f64)> {
    let changes = decisions.iter().filter(|decision| decision.action == ControllerAction::SetPowerLimit);
    changes.map(|decision| (decision.workload.as_str(), decision.to.power_limit_watts.unwrap())).collect()
}

#[test]
fn every_window_of_a_member_has_one_decision_and_others_have_none() {
    let mut site = Site::new(10_000.0);
    let (a, b) = (workload("a", 0, 1, 2, None), workload("b", 0, 1, 2, None));
    let other = Workload { controller: Some("hybrid".into()), ..workload("c", 0, 1, 2, None) };
    for workload in [&a, &b, &other] {
        assert!(site.declare(workload).is_empty());
    }
    for minute in 1..4 {
        for workload in [&b, &a, &other] {
            let decisions = site.window(&window(workload, minute, 0.5));
            let expected = usize::from(workload.workload != other.workload);
            assert_eq!(decisions.len(), expected, "{decisions:?}");
            for decision in decisions {
                assert_eq!((&decision.workload, decision.time), (&workload.workload, at(minute * 60)));
                assert_eq!(decision.id, format!("{}@{}/power-budget", workload.workload, at(minute * 60)));
                assert_eq!(decision.evidence["members"], 2.0);
            }
        }
    }
    assert_eq!((site.cluster.tally().evaluations, site.cluster.tally().late, site.cluster.member_count()), (3, 0, 2));
    let span = EfficiencyWindow { kind: WindowKind::Span, ..window(&a, 9, 0.5) };
    assert!(site.window(&span).is_empty());
}

#[test]
fn the_first_stage_leaves_members_to_this_one_and_reports_it_where_there_is_no_budget() {
    let (name, budget) = (ControllerName::PowerBudget, BudgetSettings { budget_watts: Some(1.0), ..BudgetSettings::default() });
    let decisions_with = |power_budget| {
        let settings = FoldSettings { power_budget, ..FoldSettings::default() };
        assert_eq!(settings.shares_budget(&workload("a", 0, 1, 1, None)), power_budget.is_some());
        let mut partition = PartitionFold::new(settings);
        let mut out = Vec::new();
        let member = workload("a", 0, 1, 1, None);
        let mut fold = |seconds, event: InputEvent<'_>| {
            let topic = eadt_schemas::Topic::Workloads;
            let stamp = at(seconds);
            partition.fold(&eadt_core::InputRecord { topic, stamp, key: None, is_sent_again: false, event }, &mut out);
        };
        fold(0, InputEvent::Workload(&member));
        for seconds in (0..=130).step_by(5) {
            let sample = eadt_schemas::v1::GpuTelemetry {
                time: at(seconds),
                workload: Some(member.workload.clone()),
                device: "GPU-0".into(),
                collector: "nvml/n".into(),
                power_watts: Some(300.0),
                ..Default::default()
            };
            fold(seconds, InputEvent::Telemetry(&sample));
        }
        out.into_iter()
            .filter_map(|output| if let eadt_core::FoldOutput::Decision(decision) = output { Some(*decision) } else { None })
    };
    assert_eq!(decisions_with(Some(budget)).count(), 0);
    let alone: Vec<Decision> = decisions_with(None).collect();
    assert!(!alone.is_empty());
    for decision in alone {
        assert_eq!((decision.controller.as_str(), decision.action), (name.as_str(), ControllerAction::Maintain));
        assert!(decision.reason.contains("processor.power_budget.budget_watts"), "{}", decision.reason);
    }
}

#[test]
fn what_exceeds_the_budget_is_reduced_at_once_and_raises_wait_until_that_is_in_force() {
    let mut site = Site::new(1_000.0);
    let (mut a, b) = (workload("a", 0, 1, 2, None), workload("b", 0, 1, 2, Some(200.0)));
    site.declare(&a);
    site.declare(&b);
    // 1,200 W: a must give, though nothing is known of it yet.
    let first = site.window(&window(&a, 1, 0.02));
    let [("team/a", watts)] = turned(&first)[..] else { panic!("{first:?}") };
    assert!(watts < 400.0);
    site.window(&window(&b, 1, 0.9));
    let raises = |decisions: &[Decision]| {
        let more = |d: &&Decision| d.to.power_limit_watts > d.from.power_limit_watts && d.from.power_limit_watts.is_some();
        decisions.iter().filter(more).map(|d| d.workload.clone()).collect::<Vec<_>>()
    };
    // Applied, but not ready: b gets nothing of it.
    a = Workload { ready_time: None, ..workload("a", 70, 2, 2, Some(120.0)) };
    site.declare(&a);
    for minute in 2..4 {
        let decisions = [site.window(&window(&b, minute, 0.9)), site.window(&window(&a, minute, 0.02))].concat();
        assert!(raises(&decisions).is_empty(), "minute {minute}: {decisions:?}");
        assert!(decisions.iter().any(|d| d.workload == a.workload && d.reason.contains("not ready")), "{decisions:?}");
    }
    a = workload("a", 190, 2, 2, Some(120.0));
    site.declare(&a);
    let decisions = [site.window(&window(&b, 4, 0.9)), site.window(&window(&a, 4, 0.02))].concat();
    assert_eq!(raises(&decisions), ["team/b"], "{decisions:?}");
}

#[test]
fn a_member_that_does_not_report_counts_in_full_and_holds_nobody_up() {
    let mut site = Site::new(1_000.0);
    let (a, b) = (workload("a", 0, 1, 2, Some(200.0)), workload("b", 0, 1, 2, Some(300.0)));
    site.declare(&a);
    site.declare(&b);
    for minute in 1..3 {
        site.window(&window(&a, minute, 0.9));
        site.window(&window(&b, minute, 0.02));
    }
    let before = site.decisions.len();
    for minute in 3..20 {
        let decisions = site.window(&window(&a, minute, 0.9));
        assert!(decisions.iter().any(|d| d.workload == a.workload && d.time == at(minute * 60)), "{decisions:?}");
        if minute > 8 {
            assert_eq!(turned(&decisions), [], "b is silent: its 600 W are not touched, and a has no room: {decisions:?}");
        }
        let exposed = decisions[0].evidence["cluster_exposed_watts"];
        assert!((1_000.0 - 1e-6..=1_000.0 + 1e-6).contains(&exposed), "{exposed} W");
    }
    // While it was not silent for long, what it could give was still asked of it.
    assert!(turned(&site.decisions[before..]).iter().all(|(name, _)| *name == "team/b"));
    // It is back, late windows included: each has its decision.
    for minute in [18, 19, 20] {
        assert_eq!(site.window(&window(&b, minute, 0.02)).iter().filter(|d| d.workload == b.workload).count(), 1);
    }
    assert_eq!(site.cluster.tally().late, 1, "the window before the last look");
}

#[test]
fn a_silent_member_gives_up_watts_where_the_budget_is_exceeded() {
    let mut site = Site::new(1_000.0);
    let (a, b) = (workload("a", 0, 1, 2, Some(200.0)), workload("b", -1_000, 1, 2, Some(400.0)));
    site.declare(&b);
    site.declare(&a);
    let decisions = site.window(&window(&a, 1, 0.5));
    assert!(turned(&decisions).iter().any(|(name, watts)| *name == "team/b" && *watts < 400.0), "{decisions:?}");
}

#[test]
fn an_unknown_cap_lets_nobody_have_more() {
    let mut site = Site::new(1_000.0);
    let unknown = Workload { gpu_power_limit_watts: None, ..workload("b", 0, 1, 2, None) };
    let a = workload("a", 0, 1, 2, Some(150.0));
    site.declare(&a);
    site.declare(&unknown);
    for minute in 1..4 {
        let decisions = site.window(&window(&a, minute, 0.9));
        assert_eq!(turned(&decisions), []);
        assert!(
            decisions[0].reason.contains("team/b") && !decisions[0].evidence.contains_key("cluster_exposed_watts"),
            "{decisions:?}"
        );
    }
    // Watts above the budget are given up all the same.
    site.declare(&workload("a", 200, 2, 4, None));
    let decisions = site.window(&window(&workload("a", 200, 2, 4, None), 4, 0.9));
    assert!(turned(&decisions).iter().any(|(name, watts)| *name == "team/a" && *watts <= 250.0), "{decisions:?}");
}

#[test]
fn a_member_beyond_the_cap_is_refused_and_nobody_gets_more() {
    let mut site = Site::new(1_000.0);
    site.cluster = PowerBudgetFold::new(FoldSettings { max_workloads: 1, ..settings(1_000.0) });
    let a = workload("a", 0, 1, 2, Some(150.0));
    site.declare(&a);
    let b = workload("b", 0, 1, 2, Some(150.0));
    let refused =
        site.cluster.fold(JointEvent::Input(InputEvent::Workload(&b)), Some(&b.workload), at(0), &mut Vec::new()).unwrap_err();
    assert!(refused.detail.contains("processor.max_workloads"), "{refused}");
    for minute in 1..4 {
        let decisions = site.window(&window(&a, minute, 0.9));
        assert_eq!(turned(&decisions), [], "{decisions:?}");
        assert!(decisions[0].reason.contains("team/b"), "{decisions:?}");
    }
    site.fold(JointEvent::Input(InputEvent::WorkloadGone), &b.workload);
    assert_eq!(turned(&site.window(&window(&a, 4, 0.9))).len(), 1);
}

#[test]
fn who_was_crowded_out_counts_until_it_has_a_place() {
    let mut site = Site::new(1_000.0);
    site.cluster = PowerBudgetFold::new(FoldSettings { max_workloads: 2, ..settings(1_000.0) });
    let [a, b, c] = ["a", "b", "c"].map(|name| workload(name, 0, 1, 1, Some(150.0)));
    site.declare(&a);
    site.declare(&b);
    let crowded = |site: &mut Site, minute| site.window(&window(&a, minute, 0.9))[0].reason.contains("team/c shares the budget");
    site.cluster.fold(JointEvent::Input(InputEvent::Workload(&c)), Some(&c.workload), at(0), &mut Vec::new()).unwrap_err();
    assert!(crowded(&mut site, 1));
    // Reports of others do not change it.
    site.declare(&b);
    assert!(crowded(&mut site, 2));
    site.fold(JointEvent::Input(InputEvent::WorkloadGone), &b.workload);
    assert!(crowded(&mut site, 3), "there is a place, and it does not know");
    site.declare(&workload("c", 181, 1, 1, Some(150.0)));
    assert!(!crowded(&mut site, 4));
    assert_eq!(site.cluster.member_count(), 2);
}

#[test]
fn a_silent_member_is_left_alone_while_the_budget_is_not_exceeded() {
    let mut site = Site::new(2_000.0);
    let (a, b) = (workload("a", 0, 1, 2, Some(300.0)), workload("b", -1_000, 1, 2, Some(300.0)));
    site.declare(&b);
    site.declare(&a);
    let decisions: Vec<Decision> = (1..4).flat_map(|minute| site.window(&window(&a, minute, 0.9))).collect();
    let turned = turned(&decisions);
    assert!(!turned.is_empty() && turned.iter().all(|(name, watts)| *name == "team/a" && *watts > 300.0), "{decisions:?}");
}

#[test]
fn looks_at_which_the_lowest_caps_do_not_fit_are_counted() {
    let mut site = Site::new(200.0);
    let a = workload("a", 0, 1, 2, None);
    site.declare(&a);
    for minute in 1..4 {
        site.window(&window(&a, minute, 0.5));
    }
    assert_eq!((site.cluster.tally().evaluations, site.cluster.tally().infeasible), (3, 3));
}

#[test]
fn a_refused_raise_is_free_again_and_an_unanswered_or_applied_one_is_not() {
    for answer in [Some(ActuationOutcome::Refused), Some(ActuationOutcome::Applied), None] {
        let refused = answer == Some(ActuationOutcome::Refused);
        let mut site = Site::new(1_000.0);
        let (a, b) = (workload("a", 0, 1, 2, Some(200.0)), workload("b", 0, 1, 2, Some(200.0)));
        site.declare(&a);
        site.declare(&b);
        let mut decisions = Vec::new();
        for minute in 1..3 {
            decisions = [site.window(&window(&a, minute, 0.9)), site.window(&window(&b, minute, 0.02))].concat();
        }
        let raise = decisions.iter().find(|d| d.action == ControllerAction::SetPowerLimit).unwrap().clone();
        if let Some(answer) = answer {
            site.answer(&raise, 125, answer);
        }
        // It leaves enforcement, so that nothing is asked of it any more; what is left over goes to the other one.
        let (left, stays) = if raise.workload == a.workload { (&a, &b) } else { (&b, &a) };
        site.declare(&Workload { mode: UpdateMode::Recommend, time: at(126), ready_time: Some(at(126)), ..left.clone() });
        let decisions = [site.window(&window(&a, 3, 0.9)), site.window(&window(&b, 3, 0.9))].concat();
        let granted = raise.to.power_limit_watts.unwrap();
        assert!(decisions[0].evidence["cluster_exposed_watts"] <= 1_000.0 && granted > 200.0, "{decisions:?}");
        let other = turned(&decisions).iter().find(|(name, _)| *name == stays.workload).map_or(200.0, |(_, watts)| *watts);
        assert_eq!(other + granted > 500.0, refused, "{other} W and {granted} W of each GPU");
    }
}

#[test]
fn a_learned_curve_is_used_until_enough_is_measured_and_is_named() {
    let mut site = Site::new(1_000.0);
    let member = |name| Workload { gpu_model: Some("H100".into()), ..workload(name, 0, 1, 2, None) };
    let (a, b) = (member("a"), member("b"));
    site.declare(&a);
    site.declare(&b);
    let law = json!({"a": 1.0, "b": 0.02, "offset_watts": 0.0, "r_squared": 0.9, "mape_ratio": 0.02, "peak_watts": null,
        "peak_measured": false});
    let curve = json!({"power_law": {"a": 1.0, "b": 0.02, "r_squared": 0.9, "mape_ratio": 0.02}, "offset_power_law": law,
        "verdict": "informative", "watts_range": [100.0, 400.0], "count": 9});
    let parameters =
        json!({"format": "eadt.cap-curve.v1", "gpu_model": "H100", "layout": [null, null, null, null], "curve": curve});
    let model = Model { name: "cap-curve/team/a".into(), version: "7".into(), time: at(10), parameters, ..Model::default() };
    site.fold(JointEvent::Input(InputEvent::Model(&model)), "cap-curve/team/a");
    let decisions = [site.window(&window(&a, 1, 0.9)), site.window(&window(&b, 1, 0.9))].concat();
    let of_a = decisions.iter().find(|d| d.workload == "team/a" && d.action == ControllerAction::SetPowerLimit).unwrap();
    assert_eq!(of_a.model_version.as_deref(), Some("cap-curve/team/a@7"), "{of_a:?}");
    let caps: BTreeMap<&str, f64> = turned(&decisions).into_iter().collect();
    assert!(caps["team/a"] < 200.0, "a flat curve needs no watts: {caps:?}");
    // It is state: known after a restart, and withdrawn after one it decides nothing any more.
    let mut kept = BTreeMap::new();
    site.restart(&mut kept, &settings(1_000.0));
    let decisions = [site.window(&window(&a, 2, 0.9)), site.window(&window(&b, 2, 0.9))].concat();
    assert!(decisions.iter().any(|d| d.model_version == of_a.model_version), "{decisions:?}");
    site.fold(JointEvent::Input(InputEvent::ModelGone), "cap-curve/team/a");
    site.restart(&mut kept, &settings(1_000.0));
    let decisions = [site.window(&window(&a, 3, 0.9)), site.window(&window(&b, 3, 0.9))].concat();
    assert!(decisions.iter().all(|d| d.model_version.is_none()));
}

#[test]
fn a_workload_that_changes_its_controller_joins_and_leaves_at_the_time_of_that_change() {
    let mut site = Site::new(700.0);
    let (a, b) = (workload("a", 0, 1, 1, Some(350.0)), workload("b", 90, 1, 1, None));
    site.declare(&a);
    site.declare(&b);
    let decisions = site.window(&window(&a, 1, 0.5));
    assert_eq!(decisions[0].evidence["members"], 1.0, "b joined later than this window ended");
    let decisions = site.window(&window(&a, 2, 0.5));
    assert_eq!(decisions[0].evidence["members"], 2.0);
    site.declare(&Workload { controller: Some("hybrid".into()), ..workload("b", 130, 2, 1, None) });
    assert!(site.window(&window(&b, 2, 0.5)).is_empty(), "the first stage decides about it again");
    let decisions = site.window(&window(&a, 3, 0.5));
    assert_eq!(decisions.last().unwrap().evidence["members"], 1.0);
    assert_eq!(site.cluster.member_count(), 1, "nothing is kept of who left");
}

/// Returns the content of `tests/state/cluster.vN.jsonl`: members, some with grants in progress and one refused, and a model
/// of one to come.
fn kept() -> (Site, Vec<Workload>) {
    let mut site = Site::new(1_000.0);
    let member = |name| Workload { gpu_model: Some("H100".into()), ..workload(name, 0, 1, 1, None) };
    let members: Vec<Workload> = ["a", "b", "c"].map(member).into();
    for member in &members {
        site.declare(member);
    }
    let law = json!({"a": 1.0, "b": 0.02, "offset_watts": 0.0, "r_squared": 0.9, "mape_ratio": 0.02, "peak_watts": null,
        "peak_measured": false});
    let curve = json!({"power_law": {"a": 1.0, "b": 0.02, "r_squared": 0.9, "mape_ratio": 0.02}, "offset_power_law": law,
        "verdict": "informative", "watts_range": [100.0, 400.0], "count": 9});
    let parameters =
        json!({"format": "eadt.cap-curve.v1", "gpu_model": "H100", "layout": [null, null, null, null], "curve": curve});
    let model = Model { name: "cap-curve/team/d".into(), version: "7".into(), time: at(10), parameters, ..Model::default() };
    site.fold(JointEvent::Input(InputEvent::Model(&model)), "cap-curve/team/d");
    let mut site = (site, members);
    minutes(&mut site, 1..4);
    let (site, members) = &mut site;
    let refused = site.window(&window(&members[2], 4, 0.9)).pop().expect("a decision for each window");
    site.answer(&refused, 241, ActuationOutcome::Refused);
    // Its decisions for the others wait for their windows.
    (
        Site { cluster: std::mem::replace(&mut site.cluster, PowerBudgetFold::new(settings(1_000.0))), decisions: Vec::new() },
        members.clone(),
    )
}

/// Windows of these minutes; what is decided is applied, but for `c`.
fn minutes((site, members): &mut (Site, Vec<Workload>), minutes: std::ops::Range<i64>) {
    for minute in minutes {
        for i in 0..members.len() {
            let decisions = site.window(&window(&members[i], minute, 0.9));
            for (name, watts) in turned(&decisions) {
                let Some(i) = members.iter().position(|member| member.workload == name).filter(|i| *i != 2) else { continue };
                let seconds = minute * 60 + 5;
                members[i].layout.power_limit_watts = Some(watts);
                members[i].generation += 1;
                (members[i].time, members[i].ready_time) = (at(seconds), Some(at(seconds)));
                site.declare(&members[i].clone());
            }
        }
    }
}

#[test]
fn state_that_any_release_kept_goes_on_as_if_nothing_had_happened() {
    let state = support::stored("cluster.v1", || kept().0.cluster.take_changes());
    let mut straight = kept();
    let mut restored = (Site::new(1_000.0), straight.1.clone());
    restored.0.cluster = PowerBudgetFold::restore(settings(1_000.0), state.clone()).unwrap();
    for both in [&mut straight, &mut restored] {
        let d = Workload { gpu_model: Some("H100".into()), ..workload("d", 301, 1, 1, None) };
        both.0.declare(&d);
        both.1.push(d);
        minutes(both, 6..30);
    }
    assert!(turned(&straight.0.decisions).len() > 2, "something is decided: {:?}", turned(&straight.0.decisions));
    assert!(straight.0.decisions.iter().any(|decision| decision.model_version.is_some()));
    assert_eq!(straight.0.decisions, restored.0.decisions);
    // All kinds of keys are in it, and of each a newer form is refused; a newer kind, too.
    let keys: Vec<&str> = state.iter().map(|(key, _)| key.as_str()).collect();
    let member = |name: &str| format!("#cluster//member//team/{name}");
    assert_eq!(keys, ["#cluster//", "#cluster//model//cap-curve/team/d", &member("a"), &member("b"), &member("c")]);
    let restore = |key: &str, value: Vec<u8>| PowerBudgetFold::restore(settings(1_000.0), [(key, Some(value))]).map(drop);
    for (key, value) in &state {
        let newer = [&[2], &value.clone().unwrap()[..]].concat();
        let error = restore(key, newer).unwrap_err();
        assert!(matches!(error, StateError::Newer { form: 2, .. }) && error.to_string().contains(&format!("{key:?}")), "{error}");
    }
    assert!(matches!(restore("#cluster//later//x", b"{}".to_vec()), Err(StateError::NewKind { .. })));
    // Others' records are theirs to judge.
    restore("team/a#0", vec![9]).unwrap();
    restore("#gpu//later//x", vec![9]).unwrap();
}

/// One step of a random history.
#[derive(Debug, Clone)]
enum Turn {
    /// The actuator applies the oldest or newest waiting decision of a workload, ready at once or after a while.
    Apply {
        newest: bool,
        rolls: bool,
    },
    Refuse,
    Lose,
    /// The workload is silent in this minute.
    Silent,
    Nothing,
}

fn turn() -> impl Strategy<Value = Turn> {
    prop_oneof![
        5 => (any::<bool>(), any::<bool>()).prop_map(|(newest, rolls)| Turn::Apply { newest, rolls }),
        1 => Just(Turn::Refuse),
        1 => Just(Turn::Lose),
        1 => Just(Turn::Silent),
        2 => Just(Turn::Nothing),
    ]
}

/// A cluster, its actuator and its agents. The agents' settings are the ones in force.
struct Plant {
    site: Site,
    workloads: Vec<Workload>,
    held_watts: Vec<f64>,
    waiting: Vec<Vec<Decision>>,
    applied: Vec<Option<EventTime>>,
}

impl Plant {
    fn new(budget_watts: f64, gpus: &[u32], cap: f64) -> Self {
        let mut site = Site::new(budget_watts);
        let workloads: Vec<Workload> =
            gpus.iter().enumerate().map(|(i, gpus)| workload(&format!("w{i}"), 0, 1, *gpus, Some(cap))).collect();
        for workload in &workloads {
            site.declare(workload);
        }
        let count = workloads.len();
        Self { site, workloads, held_watts: vec![cap; count], waiting: vec![Vec::new(); count], applied: vec![None; count] }
    }

    /// Returns the greatest possible power of the GPUs now.
    fn watts(&self) -> f64 {
        self.workloads.iter().zip(&self.held_watts).map(|(w, watts)| f64::from(w.gpus.unwrap()) * watts).sum()
    }

    fn observe(&mut self, decisions: Vec<Decision>) {
        for decision in decisions.into_iter().filter(|decision| decision.action != ControllerAction::Maintain) {
            let i = self.workloads.iter().position(|w| w.workload == decision.workload).unwrap();
            self.waiting[i].push(decision);
        }
    }

    /// Has the agents follow the written settings.
    fn settle(&mut self, i: usize, seconds: i64) {
        let workload = &mut self.workloads[i];
        if workload.ready_time.is_none() {
            (workload.time, workload.ready_time) = (at(seconds), Some(at(seconds)));
            self.held_watts[i] = workload.layout.power_limit_watts.unwrap();
            self.site.declare(&self.workloads[i].clone());
        }
    }

    /// As the actuator does it: an expired, older or differently based decision is refused.
    fn apply(&mut self, i: usize, newest: bool, rolls: bool, seconds: i64) {
        let waiting = &mut self.waiting[i];
        let decision = if newest { waiting.pop() } else { (!waiting.is_empty()).then(|| waiting.remove(0)) };
        let Some(decision) = decision else { return };
        let workload = &mut self.workloads[i];
        let fits = at(seconds) < decision.expires
            && self.applied[i].is_none_or(|applied| decision.time > applied)
            && workload.ready_time.is_some()
            && decision.generation == Some(workload.generation)
            && decision.from == workload.layout;
        if !fits {
            self.site.answer(&decision, seconds, ActuationOutcome::Refused);
            return;
        }
        self.applied[i] = Some(decision.time);
        let watts = decision.to.power_limit_watts.unwrap();
        workload.layout = decision.to.clone();
        workload.generation += 1;
        workload.time = at(seconds);
        workload.decision_id = Some(decision.id.clone());
        workload.ready_time = (!rolls).then(|| at(seconds));
        // During the rollout it is unknown which of the two is in force.
        self.held_watts[i] = if rolls { self.held_watts[i].max(watts) } else { watts };
        self.site.declare(&self.workloads[i].clone());
        self.site.answer(&decision, seconds, ActuationOutcome::Applied);
    }
}

proptest! {
    #![proptest_config(cases(150))]

    /// Checks that the GPUs' possible power never exceeds the budget once it is within it, for any sequence of applied,
    /// refused, lost, late or rolling changes, of silent members and of changed curves.
    #[test]
    fn the_budget_is_never_exceeded(
        gpus in prop::collection::vec(1_u32..9, 1..6),
        budget_per_gpu in 130.0..420.0_f64,
        exponents in prop::collection::vec(prop::collection::vec(0.02..1.5_f64, 6), 30),
        turns in prop::collection::vec(prop::collection::vec(turn(), 6), 30),
        restarts in prop::collection::vec(any::<bool>(), 30),
    ) {
        let count: u32 = gpus.iter().sum();
        let budget = (budget_per_gpu * f64::from(count)).floor();
        let settings = settings(budget);
        let mut plant = Plant::new(budget, &gpus, (budget / f64::from(count)).floor().min(BOARD_WATTS));
        let mut kept = BTreeMap::new();
        for (n, (exponents, turns)) in exponents.iter().zip(&turns).enumerate() {
            let minute = n as i64 + 1;
            for (i, exponent) in exponents.iter().enumerate().take(gpus.len()) {
                if !matches!(turns[i], Turn::Silent) {
                    let decisions = plant.site.window(&window(&plant.workloads[i], minute, *exponent));
                    plant.observe(decisions);
                }
            }
            for (i, turn) in turns.iter().enumerate().take(gpus.len()) {
                let seconds = minute * 60 + 5 + i as i64;
                match turn {
                    Turn::Apply { newest, rolls } => plant.apply(i, *newest, *rolls, seconds),
                    Turn::Refuse => {
                        if let Some(decision) = plant.waiting[i].pop() {
                            plant.site.answer(&decision, seconds, ActuationOutcome::Refused);
                        }
                    }
                    Turn::Lose => plant.waiting[i].clear(),
                    Turn::Silent | Turn::Nothing => plant.settle(i, seconds),
                }
                prop_assert!(plant.watts() <= budget + 1e-6, "minute {minute}: {} of {budget} W", plant.watts());
            }
            if restarts[n] {
                plant.site.restart(&mut kept, &settings);
            }
        }
        prop_assert_eq!(plant.site.cluster.tally().late, 0);
    }

    /// The same history with restarts anywhere decides the same, and so does one in which what belongs to one time comes in
    /// another order.
    #[test]
    fn neither_restarts_nor_the_order_within_one_time_change_the_decisions(
        gpus in prop::collection::vec(1_u32..9, 2..5),
        exponents in prop::collection::vec(prop::collection::vec(0.02..1.5_f64, 5), 12),
        missing in prop::collection::vec(0_usize..12, 12),
        restarts in prop::collection::vec(any::<bool>(), 200),
    ) {
        let budget = 250.0 * f64::from(gpus.iter().sum::<u32>());
        let settings = settings(budget);
        let run = |backwards: bool, restarts: Option<&[bool]>| -> Vec<Decision> {
            let mut site = Site::new(budget);
            let mut workloads: Vec<Workload> =
                gpus.iter().enumerate().map(|(i, gpus)| workload(&format!("w{i}"), 0, 1, *gpus, None)).collect();
            for workload in &workloads {
                site.declare(workload);
            }
            let (mut kept, mut step) = (BTreeMap::new(), 0);
            for (n, exponents) in exponents.iter().enumerate() {
                let minute = n as i64 + 1;
                let mut order: Vec<usize> = (0..workloads.len()).filter(|i| missing[n] != *i).collect();
                if backwards {
                    order.reverse();
                }
                let mut decisions = Vec::new();
                for i in order {
                    decisions.extend(site.window(&window(&workloads[i], minute, exponents[i])));
                    if restarts.is_some_and(|restarts| restarts[step % restarts.len()]) {
                        site.restart(&mut kept, &settings);
                    }
                    step += 1;
                }
                decisions.sort_by(|a, b| a.id.cmp(&b.id));
                for decision in decisions.iter().filter(|decision| decision.action != ControllerAction::Maintain) {
                    let workload = workloads.iter_mut().find(|w| w.workload == decision.workload).unwrap();
                    if decision.generation == Some(workload.generation) {
                        workload.layout = decision.to.clone();
                        workload.generation += 1;
                        (workload.time, workload.ready_time) = (at(minute * 60 + 10), Some(at(minute * 60 + 10)));
                        workload.decision_id = Some(decision.id.clone());
                    }
                }
                for workload in workloads.iter().filter(|workload| workload.time == at(minute * 60 + 10)) {
                    site.declare(workload);
                }
            }
            site.decisions.sort_by(|a, b| a.id.cmp(&b.id));
            site.decisions
        };
        let straight = run(false, None);
        prop_assert!(straight.iter().any(|decision| decision.action == ControllerAction::SetPowerLimit));
        prop_assert_eq!(&run(false, Some(&restarts)), &straight);
        prop_assert_eq!(&run(true, None), &straight);
    }
}

#[test]
fn a_layout_that_is_older_than_the_known_one_changes_nothing() {
    let decisions_with = |late: bool| {
        let mut site = Site::new(500.0);
        let newer = workload("a", 50, 3, 2, Some(300.0));
        site.declare(&workload("a", 0, 1, 2, None));
        site.declare(&newer);
        site.window(&window(&newer, 1, 0.5));
        if late {
            site.declare(&workload("a", 30, 2, 2, Some(200.0)));
        }
        for minute in 2..4 {
            site.window(&window(&newer, minute, 0.5));
        }
        site.decisions.into_iter().map(|decision| (decision.time, decision.from, decision.to)).collect::<Vec<_>>()
    };
    let expected = decisions_with(false);
    assert!(expected.iter().any(|(_, from, _)| from.power_limit_watts == Some(300.0)), "{expected:#?}");
    assert_eq!(decisions_with(true), expected);
}
