use eadt_schemas::v1::{EfficiencyWindow, Layout, LayoutBounds, Origin};
use eadt_testing::cases;
use proptest::prelude::*;

use super::*;
use crate::transcript::{DecisionTranscript, assert_kept};

fn workload(name: &str, gpus: u32, cap: Option<f64>) -> Workload {
    Workload {
        workload: format!("n/{name}"),
        gpus: Some(gpus),
        gpu_power_limit_watts: Some(400.0),
        mode: UpdateMode::Enforce,
        generation: 1,
        layout: Layout { power_limit_watts: cap, ..Layout::default() },
        ..Workload::default()
    }
}

fn law(exponent: f64) -> Vec<PowerPoint> {
    (3..=10).map(|n| f64::from(n) * 40.0).map(|watts| PowerPoint { watts, samples_per_second: watts.powf(exponent) }).collect()
}

struct Site {
    workloads: Vec<Workload>,
    points: Vec<Vec<PowerPoint>>,
    state: BudgetState,
    settings: BudgetSettings,
}

impl Site {
    fn new(budget_watts: f64, workloads: Vec<Workload>, points: Vec<Vec<PowerPoint>>) -> Self {
        Self {
            workloads,
            points,
            state: BudgetState::default(),
            settings: BudgetSettings { budget_watts: Some(budget_watts), ..BudgetSettings::default() },
        }
    }

    fn look(&mut self, minute: u32) -> BudgetOutcome {
        let consumers: Vec<BudgetedWorkload<'_>> =
            self.workloads.iter().zip(&self.points).map(|(workload, points)| BudgetedWorkload::new(workload, points)).collect();
        allocate(&mut self.state, EventTime::from_seconds(f64::from(minute) * 60.0), &consumers, &self.settings, None)
    }

    fn apply(&mut self, decision: &Decision, minute: u32) -> bool {
        let late = EventTime::from_seconds(f64::from(minute) * 60.0) >= decision.expires;
        let workload = self.workloads.iter_mut().find(|w| w.workload == decision.workload).unwrap();
        if late || Some(workload.generation) != decision.generation {
            return false;
        }
        workload.layout = decision.to.clone();
        workload.generation += 1;
        true
    }

    /// Caps in force over all GPUs.
    fn watts(&self) -> f64 {
        let of = |w: &Workload| f64::from(w.gpus.unwrap()) * w.layout.power_limit_watts.unwrap_or(400.0);
        self.workloads.iter().map(of).sum()
    }

    fn caps(&self) -> Vec<f64> {
        self.workloads.iter().map(|w| w.layout.power_limit_watts.unwrap_or(400.0)).collect()
    }
}

#[test]
fn watts_go_where_a_joule_does_most_work() {
    let jobs = || vec![workload("flat", 2, None), workload("steep", 2, None)];
    let mut site = Site::new(1_000.0, jobs(), vec![law(0.1), law(0.8)]);
    for minute in 0..6 {
        let outcome = site.look(minute);
        assert!(outcome.decisions.iter().all(|d| d.action == ControllerAction::SetPowerLimit && !d.restarts));
        for decision in outcome.decisions {
            assert!(site.apply(&decision, minute));
        }
    }
    let [flat, steep] = site.caps()[..] else { unreachable!() };
    assert!(steep > flat + 150.0, "{flat} W and {steep} W");
    assert!(site.watts() <= 1_000.0 && site.watts() > 980.0, "{}", site.watts());
    // With enough power each gets its wanted watts, which are less than the budget.
    let mut rich = Site::new(10_000.0, jobs(), vec![law(0.1), law(0.8)]);
    for decision in rich.look(0).decisions {
        assert!(rich.apply(&decision, 0));
    }
    let expected = [0.1, 0.8].map(|exponent: f64| 400.0 * 0.93_f64.powf(1.0 / exponent));
    for (cap, expected) in rich.caps().iter().zip(expected) {
        assert!((cap - expected.max(120.0)).abs() < 8.0, "{cap} W, {expected} W");
    }
}

#[test]
fn the_filling_is_as_good_as_any_other() {
    // A grid over all divisions of the budget: none does more work.
    let (a, b) = (law(0.3), law(0.7));
    let settings = BudgetSettings { budget_watts: Some(450.0), max_slowdown_ratio: 0.0, ..BudgetSettings::default() };
    let room = |points: &[PowerPoint]| CapRange {
        gpus: 1.0,
        least: 120.0,
        most: 400.0,
        in_force: 400.0,
        exposed: 400.0,
        curve: ConcavePowerCurve::from_points(points, 120.0, 400.0),
    };
    let rooms = [room(&a), room(&b)];
    let work = |room: &CapRange, cap: f64| {
        let above = room.curve.knots.partition_point(|knot| knot.0 < cap).clamp(1, room.curve.knots.len() - 1);
        let (x, y) = (room.curve.knots[above - 1], room.curve.knots[above]);
        x.1 + (y.1 - x.1) * (cap - x.0) / (y.0 - x.0)
    };
    let ours = distribute_watts(&rooms, &settings).caps;
    let done = work(&rooms[0], ours[0]) + work(&rooms[1], ours[1]);
    for tenth in 0..=2_800 {
        let first = 120.0 + f64::from(tenth) / 10.0;
        let second = (450.0 - first).clamp(120.0, 400.0);
        if first + second <= 450.0 {
            // A watt that rounding leaves is no loss worth a word.
            assert!(work(&rooms[0], first) + work(&rooms[1], second) <= done + 0.004, "{first} W is better than {ours:?}");
        }
    }
}

#[test]
fn a_budget_that_cannot_be_held_is_reported_and_approached() {
    let mut site = Site::new(200.0, vec![workload("a", 2, None), workload("b", 1, None)], vec![vec![], vec![]]);
    let outcome = site.look(0);
    assert!(outcome.reason.contains("cannot be held") && outcome.reason.contains("360 W"), "{}", outcome.reason);
    for decision in outcome.decisions {
        assert!(site.apply(&decision, 0));
    }
    assert_eq!(site.caps(), [120.0, 120.0]);
}

#[test]
fn what_nobody_can_know_or_turn_is_respected() {
    let unknown = Workload { gpu_power_limit_watts: None, ..workload("a", 1, None) };
    let outcome = Site::new(500.0, vec![unknown], vec![vec![]]).look(0);
    assert!(outcome.decisions.is_empty() && outcome.exposed_watts.is_none() && outcome.reason.contains("n/a"), "{outcome:?}");
    // A workload whose cap must not change counts: by its cap if that is kept, by the board's limit if it is restored.
    let beside = |other: Workload, budget: f64| {
        let outcome = Site::new(budget, vec![other, workload("b", 1, None)], vec![vec![], law(0.5)]).look(0);
        assert!(outcome.decisions.iter().all(|decision| decision.workload == "n/b"), "{outcome:?}");
        outcome.decisions.first().and_then(|decision| decision.to.power_limit_watts)
    };
    let capped = || workload("a", 1, Some(300.0));
    assert_eq!(beside(Workload { mode: UpdateMode::Recommend, ..capped() }, 500.0), Some(200.0));
    assert_eq!(beside(Workload { mode: UpdateMode::Observe, ..capped() }, 600.0), Some(200.0));
    assert_eq!(beside(Workload { paused: true, ..capped() }, 600.0), Some(200.0));
}

#[test]
fn a_cap_of_which_nobody_knows_the_top_does_not_fall_by_itself() {
    let one = Workload { gpu_power_limit_watts: None, ..workload("a", 2, Some(300.0)) };
    let outcome = Site::new(5000.0, vec![one.clone()], vec![vec![]]).look(0);
    assert!(outcome.decisions.is_empty() && outcome.exposed_watts == Some(600.0), "{outcome:?}");
    let mut bounded = one;
    bounded.bounds.power_limit_watts_max = Some(300.0);
    assert_eq!(Site::new(500.0, vec![bounded], vec![vec![]]).look(0).decisions.len(), 1);
}

#[test]
fn what_may_still_be_in_force_counts_whole() {
    let look = |lingering_watts: Option<f64>| {
        let (fewer, other) = (workload("a", 4, Some(200.0)), workload("b", 1, Some(200.0)));
        let (none, curve) = (vec![], law(0.9));
        let consumers = [
            BudgetedWorkload { cap_change: CapChangeState::Rolling, lingering_watts, ..BudgetedWorkload::new(&fewer, &none) },
            BudgetedWorkload::new(&other, &curve),
        ];
        let settings = BudgetSettings { budget_watts: Some(1800.0), ..BudgetSettings::default() };
        allocate(&mut BudgetState::default(), EventTime::from_seconds(1e9), &consumers, &settings, None)
    };
    assert!(!look(Some(0.0)).decisions.is_empty(), "there is room");
    let eight = look(Some(1600.0));
    assert!(eight.decisions.is_empty() && eight.exposed_watts == Some(1800.0), "four of the eight may still run: {eight:?}");
    let unknown = look(None);
    assert!(unknown.decisions.is_empty() && unknown.reason.contains("before it is not known"), "{unknown:?}");
}

#[test]
fn a_raise_waits_until_the_reduction_that_pays_for_it_is_in_force() {
    let mut site =
        Site::new(500.0, vec![workload("a", 1, Some(250.0)), workload("b", 1, Some(250.0))], vec![law(0.05), law(0.9)]);
    let first = site.look(0);
    assert_eq!(first.decisions.len(), 1, "{first:?}");
    assert_eq!(first.decisions[0].workload, "n/a");
    assert_eq!(site.look(1).decisions.len(), 1, "not applied yet: asked again, and no raise");
    site.apply(&first.decisions[0], 1);
    let second = site.look(2);
    assert_eq!((second.decisions.len(), second.decisions[0].workload.as_str()), (1, "n/b"));
    assert!(second.decisions[0].to.power_limit_watts.unwrap() > 300.0);
}

proptest! {
    #![proptest_config(cases(150))]

    /// Checks that caps in force never sum to more than the budget once they are within it, for any order of applied, late or
    /// lost changes, and for any change of the curves, the bounds and the number of workloads.
    #[test]
    fn the_budget_is_never_exceeded(
        gpus in prop::collection::vec(1_u32..9, 1..6),
        budget_per_gpu in 130.0..420.0_f64,
        exponents in prop::collection::vec(prop::collection::vec(0.02..1.5_f64, 6), 30),
        applied in prop::collection::vec(prop::collection::vec(0_u8..4, 8), 30),
        bounded in prop::option::of(100.0..300.0_f64),
    ) {
        let count: u32 = gpus.iter().sum();
        let budget = (budget_per_gpu * f64::from(count)).floor();
        let start = (budget / f64::from(count)).floor().min(400.0);
        let workloads: Vec<Workload> = gpus
            .iter()
            .enumerate()
            .map(|(i, gpus)| {
                let bounds = LayoutBounds { power_limit_watts_max: bounded.filter(|_| i == 0), ..LayoutBounds::default() };
                Workload { bounds, ..workload(&i.to_string(), *gpus, Some(start)) }
            })
            .collect();
        let points = vec![Vec::new(); workloads.len()];
        let mut site = Site::new(budget, workloads, points);
        let mut waiting: Vec<Decision> = Vec::new();
        for (minute, (exponents, applied)) in exponents.iter().zip(&applied).enumerate() {
            for (points, exponent) in site.points.iter_mut().zip(exponents) {
                *points = law(*exponent);
            }
            let outcome = site.look(minute as u32);
            prop_assert!(outcome.exposed_watts.unwrap() <= budget + 1e-3, "{outcome:?}");
            waiting.extend(outcome.decisions);
            for what in applied {
                if waiting.is_empty() {
                    break;
                }
                // The oldest or the newest comes to be applied, one is lost, or nothing happens.
                let chosen = match what {
                    0 | 2 => Some(waiting.remove(0)),
                    1 => waiting.pop(),
                    _ => None,
                };
                if let Some(decision) = chosen.filter(|_| *what != 2) {
                    site.apply(&decision, minute as u32);
                }
                prop_assert!(site.watts() <= budget + 1e-6, "minute {minute}: {} of {budget} W", site.watts());
            }
            // A restart changes nothing.
            let written = serde_json::to_string(&site.state).unwrap();
            site.state = serde_json::from_str(&written).unwrap();
        }
    }
}

#[test]
fn what_is_measured_at_a_cap_is_the_mean_of_its_windows() {
    let mut measurements = CapMeasurements::default();
    let window = |minute: u32, watts: f64| EfficiencyWindow {
        window_end: EventTime::from_seconds(f64::from(minute) * 60.0),
        mean_power_per_gpu_watts: Some(watts),
        samples_per_second: Some(watts / 10.0),
        ..EfficiencyWindow::default()
    };
    let layout = |cap: f64| Layout { power_limit_watts: Some(cap), ..Layout::default() };
    for (minute, watts) in [(1, 280.0), (2, 300.0), (3, 260.0)] {
        measurements.add_window(&window(minute, watts), &layout(300.0), Some(400.0));
    }
    measurements.add_window(&window(4, 200.0), &layout(250.0), Some(400.0));
    let near = |a: f64, b: f64| (a - b).abs() < 1e-9;
    let [capped, lower] = measurements.points()[..] else { panic!("two caps") };
    assert!(near(capped.watts, 280.0) && near(capped.samples_per_second, 28.0), "{capped:?}");
    assert!(near(lower.watts, 200.0), "{lower:?}");
}

#[test]
fn settings_out_of_their_range_are_refused_by_name() {
    let with = |name: &str, value: f64| serde_json::from_value::<BudgetSettings>(serde_json::json!({ name: value })).unwrap();
    for (name, low, high) in [
        ("budget_watts", 0.001, 1e9),
        ("power_limit_min_ratio", 0.001, 1.0),
        ("max_slowdown_ratio", 0.0, 0.9),
        ("cap_change_min_ratio", 0.0, 0.5),
        ("coverage_min_ratio", 0.0, 1.0),
        ("silence_seconds", 0.001, 86_400.0),
        ("expiry_seconds", 0.001, 86_400.0),
        ("settle_seconds", 0.0, 86_400.0),
    ] {
        for value in [low, high] {
            assert_eq!(with(name, value).check(), Ok(()), "{name} {value}");
        }
        for value in [f64::next_down(low), f64::next_up(high)] {
            let refused = with(name, value).check().unwrap_err();
            assert!(refused.starts_with(&format!("{name} is {value}, ")), "{refused}");
        }
    }
}

#[test]
fn a_grant_counts_until_it_is_refused_overtaken_or_expired() {
    let at = EventTime::from_seconds;
    let granted = || {
        let grant = |n: f64| PowerGrant { decision: format!("d{n}"), time: at(n), watts: 100.0 * n, expires: at(n + 300.0) };
        let mut state = BudgetState::default();
        state.put("n/a", PowerGrants([1.0, 2.0, 3.0].map(grant).to_vec()));
        state
    };
    let watts =
        |state: &BudgetState| state.grants_of("n/a").map(|grants| grants.0.iter().map(|grant| grant.watts).collect::<Vec<_>>());
    let mut state = granted();
    state.on_refused("n/a", "d3");
    state.on_refused("n/b", "d1");
    assert_eq!((watts(&state), state.highest_watts("n/a")), (Some(vec![100.0, 200.0]), 200.0));
    // The actuator accepts no decision that is as old as the one in force, or older.
    let mut state = granted();
    state.on_applied("n/a", at(2.0));
    assert_eq!(watts(&state), Some(vec![300.0]));
    state.on_applied("n/a", at(3.0));
    assert_eq!((watts(&state), state.highest_watts("n/a")), (None, 0.0));
    // A member that applied it at the last moment has shown so after another minute.
    let mut state = granted();
    state.expire(at(361.0), 60.0);
    assert_eq!(watts(&state), Some(vec![200.0, 300.0]));
    state.expire(at(363.0), 60.0);
    assert_eq!(state, BudgetState::default());
    let mut state = granted();
    state.put("n/a", PowerGrants::default());
    assert_eq!(state, BudgetState::default());
}

#[test]
fn the_time_of_a_decision_is_read_from_an_id_of_this_controller_only() {
    let time = EventTime::from_seconds(1_700_000_060.25);
    let id = maintain(&workload("a", 1, None), time, &BudgetSettings::default(), String::new()).id;
    assert_eq!(decided_at("n/a", &id), Some(time));
    for foreign in [id.replace("n/a", "n/ab"), id.replace(CONTROLLER, "hybrid"), id.replace('/', ""), "n/a@/power-budget".into()]
    {
        assert_eq!(decided_at("n/a", &foreign), None, "{foreign}");
    }
}

#[test]
fn a_decision_names_whose_it_is_and_changes_nothing_but_the_cap() {
    let layout =
        Layout { replicas: Some(6), mps_thread_percentage: Some(50), power_limit_watts: Some(400.0), ..Layout::default() };
    let job = Workload { layout: layout.clone(), generation: 7, origin: Origin::Imported, ..workload("a", 2, None) };
    let outcome = Site::new(600.0, vec![job.clone()], vec![vec![]]).look(1);
    let [decision] = &outcome.decisions[..] else { panic!("{outcome:?}") };
    let common = |decision: &Decision| {
        assert_eq!((decision.workload.as_str(), decision.time), ("n/a", EventTime::from_seconds(60.0)));
        assert_eq!((decision.controller.as_str(), decision.controller_version.as_str()), (CONTROLLER, VERSION));
        assert_eq!((&decision.from, decision.generation, decision.origin), (&layout, Some(7), Origin::Imported));
        assert_eq!(decision.expires, EventTime::from_seconds(360.0));
    };
    common(decision);
    assert_eq!((decision.action, decision.restarts), (ControllerAction::SetPowerLimit, false));
    assert_eq!(decision.to, Layout { power_limit_watts: Some(300.0), ..layout.clone() });
    let stays = maintain(&job, EventTime::from_seconds(60.0), &BudgetSettings::default(), "why".into());
    common(&stays);
    assert_eq!((stays.action, &stays.to, stays.reason.as_str()), (ControllerAction::Maintain, &layout, "why"));
}

#[test]
fn what_is_needed_at_least_may_take_the_whole_budget() {
    let needs = || vec![workload("a", 1, Some(120.0)), workload("b", 1, Some(120.0))];
    let look = |budget| Site::new(budget, needs(), vec![vec![], vec![]]).look(0);
    assert!(!look(240.0).infeasible && look(239.9).infeasible);
}

#[test]
fn without_gpus_or_a_limit_of_theirs_what_a_workload_draws_is_unknown() {
    let none = Workload { gpus: Some(0), ..workload("a", 1, Some(200.0)) };
    let unlimited = Workload { gpu_power_limit_watts: Some(0.0), ..workload("a", 1, None) };
    for (job, why) in [(none, "the number of GPUs"), (unlimited, "neither a cap nor the board's power limit")] {
        let outcome = Site::new(500.0, vec![job], vec![vec![]]).look(0);
        assert!(outcome.exposed_watts.is_none() && outcome.reason.contains(why), "{outcome:?}");
    }
}

#[test]
fn small_differences_are_left_until_the_budget_is_exceeded_and_less_than_a_watt_is_always_left() {
    let look = |budget: f64, cap: f64| {
        // Nothing but 297 W is possible for the first one.
        let bounds =
            LayoutBounds { power_limit_watts_min: Some(297.0), power_limit_watts_max: Some(297.0), ..LayoutBounds::default() };
        let jobs = vec![Workload { bounds, ..workload("a", 1, Some(cap)) }, workload("b", 1, Some(300.0))];
        let outcome = Site::new(budget, jobs, vec![vec![], vec![]]).look(0);
        let of_a = outcome.decisions.iter().find(|decision| decision.workload == "n/a");
        of_a.and_then(|decision| decision.to.power_limit_watts)
    };
    // 1 % is less than the 2 % at which a cap is turned; a budget that is just reached is not exceeded.
    assert_eq!(look(600.0, 300.0), None);
    assert_eq!(look(599.0, 300.0), Some(297.0));
    assert_eq!(look(500.0, 297.9), None);
    // 2 % of 303.1 W are more than 6 W, of 302.9 W less than those 5.9.
    assert_eq!(look(1_000.0, 303.1), Some(297.0));
    assert_eq!(look(1_000.0, 302.9), None);
}

#[test]
fn measurements_are_those_of_one_layout_and_of_the_last_three_hours() {
    let window = |seconds: f64, watts: f64| EfficiencyWindow {
        window_end: EventTime::from_seconds(seconds),
        mean_power_per_gpu_watts: Some(watts),
        samples_per_second: Some(watts / 10.0),
        ..EfficiencyWindow::default()
    };
    let layout = |replicas, cap| Layout { replicas: Some(replicas), power_limit_watts: Some(cap), ..Layout::default() };
    let mut measurements = CapMeasurements::default();
    let mut note = |seconds: f64, watts: f64, layout: &Layout| {
        measurements.add_window(&window(seconds, watts), layout, None);
        measurements.points().iter().map(|point| point.watts).collect::<Vec<_>>()
    };
    assert_eq!(note(0.0, 280.0, &layout(1, 300.0)), [280.0]);
    // Half a watt makes another cap, less does not.
    assert_eq!(note(60.0, 270.0, &layout(1, 299.5)), [280.0, 270.0]);
    assert_eq!(note(120.0, 272.0, &layout(1, 299.75)), [276.0, 270.0]);
    assert_eq!(note(10_800.0, 200.0, &layout(1, 250.0)), [276.0, 270.0, 200.0]);
    assert_eq!(note(10_860.0, 210.0, &layout(1, 200.0)), [276.0, 200.0, 210.0], "three hours ago is too long ago");
    assert_eq!(note(10_920.0, 150.0, &layout(2, 200.0)), [150.0], "throughput of two replicas is another one");
    assert_eq!(note(10_980.0, 160.0, &layout(2, 300.0)), [150.0, 160.0]);
}

#[test]
fn a_version_shares_as_it_did() {
    // Measured wide and narrow, once, not at all, with a dent and with a plateau.
    let once = vec![PowerPoint { watts: 310.0, samples_per_second: 20.0 }];
    let dent = [(160.0, 9.0), (200.0, 9.5), (240.0, 14.0), (320.0, 15.0), (380.0, 14.5)];
    let plateau = [(150.0, 5.0), (250.0, 8.0), (251.0, 8.0), (399.0, 8.0)];
    let of = |points: &[(f64, f64)]| {
        points
            .iter()
            .map(|(watts, samples_per_second)| PowerPoint { watts: *watts, samples_per_second: *samples_per_second })
            .collect()
    };
    let points: Vec<Vec<PowerPoint>> = vec![law(0.15), law(0.8), once, vec![], of(&dent), of(&plateau)];
    let bounded = |low: f64, high: f64, job: Workload| {
        let bounds =
            LayoutBounds { power_limit_watts_min: Some(low), power_limit_watts_max: Some(high), ..LayoutBounds::default() };
        Workload { bounds, ..job }
    };
    let jobs = vec![
        workload("flat", 2, None),
        workload("steep", 3, None),
        workload("once", 1, Some(300.0)),
        workload("unknown", 4, None),
        bounded(150.0, 350.0, workload("dent", 2, Some(350.0))),
        workload("plateau", 1, None),
    ];
    let mut text = format!("version {VERSION}\n");
    for (slowdown, name) in [(0.0, "no slowdown"), (0.07, "some slowdown"), (0.5, "much slowdown")] {
        let mut site = Site::new(4_000.0, jobs.clone(), points.clone());
        site.settings.max_slowdown_ratio = slowdown;
        let mut transcript = DecisionTranscript::new(name);
        for (minute, budget) in
            (0..40).zip([4_000.0, 3_100.0, 2_400.0, 5_200.0, 1_500.0].into_iter().flat_map(|watts| [watts; 8]))
        {
            site.settings.budget_watts = Some(budget);
            let outcome = site.look(minute);
            let exposed = outcome.exposed_watts.map(f64::round);
            transcript.note(
                &format!("of {budget} W {exposed:?} W exposed, infeasible {}; {}", outcome.infeasible, outcome.reason),
                false,
            );
            for decision in outcome.decisions {
                transcript.add(&decision);
                site.apply(&decision, minute);
            }
        }
        text += &transcript.text();
    }
    assert_kept("power_budget/allocation/decisions.txt", &text);
}
