use std::collections::BTreeSet;
use std::path::Path;

use eadt_schemas::v1::{ActuationOutcome, ChangeValidation, ControllerAction, EfficiencyWindow, LayoutBounds, Meter, UpdateMode};
use eadt_testing::cases;
use proptest::prelude::*;

use super::testing::{ControllerBench, knobs, layout};
use super::{ControllerContext, ControllerName, ControllerObjective, ControllerSettings, ControllerState, PowerReading, decide};

/// Lists that no compiler sees: of the web page, and of the chart.
#[test]
fn pages_and_charts_offer_every_controller() {
    let text = |path: &str| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    let names = ControllerName::ALL.map(|name| format!("{:?}", name.as_str())).join(", ");
    assert!(text("services/dashboard/web/src/whatif.tsx").contains(&format!("const CONTROLLERS = [{names}];")), "{names}");
    let schema: serde_json::Value = serde_json::from_str(&text("deploy/helm/eadt/values.schema.json")).unwrap();
    let offered = &schema["properties"]["processor"]["properties"]["controller"]["enum"];
    assert_eq!(*offered, serde_json::json!(ControllerName::ALL));
}

mod literal {
    use super::*;

    /// Power per GPU, efficiency, replicas and threads before; action, replicas and threads after.
    fn check(watts: f64, efficiency: f64, from: (u32, u32), action: ControllerAction, to: (u32, u32)) {
        for reading in [PowerReading::PerGpu, PowerReading::Total] {
            let mut bench = ControllerBench::literal();
            bench.settings.power = Some(reading);
            bench.workload.bounds = LayoutBounds::default();
            bench.workload.layout = layout(from.0, from.1, 3);
            let watts_per_gpu = if reading == PowerReading::Total { watts / 3.0 } else { watts };
            let decision = bench.feed(watts_per_gpu, efficiency);
            assert_eq!((decision.action, knobs(&decision.to)), (action, to), "{watts} W, {efficiency}: {}", decision.reason);
            assert_eq!(decision.to.world_size, Some(to.0));
            assert_eq!(decision.to.local_world_size, Some(to.0 / 3));
            assert_eq!(decision.restarts, action != ControllerAction::Maintain);
        }
    }

    #[test]
    fn the_worked_examples() {
        check(280.0, 0.08, (6, 50), ControllerAction::Decrease, (6, 40));
        check(270.0, 0.22, (6, 50), ControllerAction::ScaleReplicas, (9, 35));
        check(180.0, 0.08, (6, 50), ControllerAction::Increase, (6, 60));
        check(180.0, 0.08, (6, 90), ControllerAction::Increase, (3, 100));
        check(250.0, 45.0 / 250.0, (6, 50), ControllerAction::Maintain, (6, 50));
    }

    #[test]
    fn scaling_sets_the_world() {
        let mut bench = ControllerBench::literal();
        bench.settings.power = Some(PowerReading::PerGpu);
        let decision = bench.feed(270.0, 0.22);
        assert_eq!(decision.to, layout(9, 35, 3));
        assert_eq!((decision.to.world_size, decision.to.local_world_size), (Some(9), Some(3)));
        assert_eq!(decision.from, layout(6, 50, 3));
    }

    #[test]
    fn the_ends_of_every_range() {
        check(280.0, 0.08, (6, 36), ControllerAction::Decrease, (6, 26));
        check(280.0, 0.08, (6, 35), ControllerAction::Decrease, (6, 25));
        check(280.0, 0.08, (6, 30), ControllerAction::Decrease, (6, 25));
        check(280.0, 0.08, (6, 25), ControllerAction::Maintain, (6, 25));
        check(270.0, 0.22, (9, 40), ControllerAction::ScaleReplicas, (12, 25));
        check(270.0, 0.22, (9, 30), ControllerAction::ScaleReplicas, (12, 25));
        check(270.0, 0.22, (12, 50), ControllerAction::ScaleReplicas, (12, 35));
        check(270.0, 0.22, (12, 25), ControllerAction::Maintain, (12, 25));
        check(270.0, 0.22, (3, 100), ControllerAction::ScaleReplicas, (6, 85));
        check(180.0, 0.08, (6, 89), ControllerAction::Increase, (6, 99));
        check(180.0, 0.08, (6, 91), ControllerAction::Increase, (3, 100));
        check(180.0, 0.08, (6, 100), ControllerAction::Increase, (3, 100));
        check(180.0, 0.08, (3, 100), ControllerAction::Maintain, (3, 100));
        check(180.0, 0.08, (12, 25), ControllerAction::Increase, (12, 35));
        check(280.0, 0.1, (6, 50), ControllerAction::Maintain, (6, 50));
    }

    #[test]
    fn total_power_is_the_default_reading() {
        // 3 GPUs of 90 W: 270 W in all.
        assert_eq!(ControllerBench::literal().feed(90.0, 0.22).action, ControllerAction::ScaleReplicas);
        let mut bench = ControllerBench::literal();
        bench.settings.power = Some(PowerReading::PerGpu);
        assert_eq!(bench.feed(90.0, 0.22).action, ControllerAction::Maintain);
    }

    #[test]
    fn looks_once_in_five_minutes() {
        let mut bench = ControllerBench::literal();
        let actions: Vec<_> = (0..11).map(|_| bench.feed(280.0, 0.08).action).collect();
        let looks: Vec<_> =
            actions.iter().enumerate().filter(|(_, action)| **action != ControllerAction::Maintain).map(|(at, _)| at).collect();
        assert_eq!(looks, [0, 5, 10]);
    }

    #[test]
    fn explicit_bounds_hold() {
        let mut bench = ControllerBench::literal();
        bench.workload.bounds =
            LayoutBounds { replicas_max: Some(6), oversubscription_percentage_max: Some(60), ..LayoutBounds::default() };
        assert_eq!(knobs(&bench.feed(280.0, 0.22).to), (6, 30));
    }

    proptest! {
        #![proptest_config(cases(256))]

        #[test]
        fn is_a_function_of_the_table(watts in 0.5..600.0, efficiency in 0.0..0.5, per_gpu in 1_u32..=4, threads in 25_u32..=100, before in 0_usize..4) {
            let decide = |before: usize| {
                let mut bench = ControllerBench::literal();
                bench.settings.power = Some(PowerReading::PerGpu);
                bench.settings.literal_interval_seconds = 0.0;
                bench.workload.layout = layout(3 * per_gpu, threads, 3);
                for _ in 0..before {
                    bench.feed(300.0, 0.05);
                }
                let decision = bench.feed(watts, efficiency);
                (decision.action, decision.to)
            };
            let (action, to) = decide(before);
            prop_assert_eq!(&(action, to.clone()), &decide(0));
            let from = (3 * per_gpu, threads);
            let expected = match action {
                ControllerAction::Decrease => (from.0, (threads.max(35) - 10)),
                ControllerAction::ScaleReplicas => ((from.0 + 3).min(12), threads.max(40) - 15),
                ControllerAction::Increase if threads >= 90 => (3, 100),
                ControllerAction::Increase => (from.0, threads + 10),
                _ => from,
            };
            // The bench's own bound on the sum of a GPU's percentages.
            let bounded = if expected == from { expected } else { (expected.0, expected.1.min(200 / expected.0.div_ceil(3)).max(if expected.1 == threads { threads } else { 0 })) };
            prop_assert_eq!(knobs(&to), bounded);
        }
    }
}

mod usable {
    use super::*;

    fn refused(change: impl Fn(&mut EfficiencyWindow), word: &str) {
        for name in ControllerName::ALL {
            let mut bench = ControllerBench::new(name);
            for _ in 0..6 {
                let mut window = bench.window(280.0, 0.08);
                change(&mut window);
                let decision = bench.decide(&window);
                assert_eq!(decision.action, ControllerAction::Maintain);
                assert_eq!(decision.from, decision.to);
                assert!(decision.reason.contains(word), "{name}: {}", decision.reason);
            }
        }
    }

    #[test]
    fn incomplete_windows_decide_nothing() {
        refused(|window| window.energy_coverage_ratio = 0.89, "energy is known for 89 %");
        refused(|window| window.energy_coverage_ratio = f64::NAN, "energy");
        refused(|window| window.progress_coverage_ratio = 0.5, "progress");
        refused(|window| window.gap = true, "deleted from the log");
        refused(|window| window.restarted = true, "restarting");
        refused(|window| window.samples_per_second = None, "unknown");
        refused(|window| window.mean_power_watts = None, "unknown");
        refused(|window| window.mean_power_watts = Some(0.0), "zero");
        refused(|window| window.meter = Meter::Wall, "server");
        refused(|window| window.generation = Some(7), "layout was changed");
    }

    #[test]
    fn nobodys_and_paused_workloads_are_left_alone() {
        for name in ControllerName::ALL.into_iter().chain([ControllerName::Layers, ControllerName::Precision]) {
            let mut bench = ControllerBench::new(name);
            bench.workload.paused = true;
            assert!(bench.feed_times(8, 280.0, 0.08).reason.contains("paused"));
            let window = bench.window(280.0, 0.08);
            let (mut state, settings) = (ControllerState::default(), ControllerSettings::default());
            let context = ControllerContext {
                workload: None,
                last_actuation: None,
                remaining_seconds: None,
                checkpoint_time: None,
                training: None,
                settings: &settings,
                models: None,
            };
            let decision = decide(name, &mut state, &window, &context);
            assert_eq!((decision.action, decision.generation), (ControllerAction::Maintain, None));
            assert_eq!(decision.from, layout(6, 50, 3));
        }
    }

    #[test]
    fn a_decision_shows_who_when_and_why() {
        let mut bench = ControllerBench::precise();
        let decision = bench.feed_times(5, 280.0, 0.08);
        assert_eq!(decision.id, "eadt/llm-training@2026-01-01T00:05:00.000000Z/matrix");
        assert_eq!((decision.controller.as_str(), decision.generation), ("matrix", Some(1)));
        assert_eq!(decision.expires, decision.time.plus_seconds(300.0));
        assert_eq!(
            decision.reason,
            "280 W per GPU is above 250 W at only 0.0800 samples/s/W (poor is under 0.1): MPS 50 % → 40 %"
        );
        for key in ["compared_power_per_gpu_watts", "compared_efficiency_samples_per_second_per_watt", "before_joules_per_sample"]
        {
            assert!(decision.evidence.contains_key(key), "{key}");
        }
        assert!((decision.evidence["before_joules_per_sample"] - 12.5).abs() < 1e-9);
    }
}

mod precise {
    use super::*;

    #[test]
    fn waits_for_five_windows_and_takes_their_median() {
        let mut bench = ControllerBench::precise();
        assert!(bench.feed(280.0, 0.08).reason.contains("1 of the 5 windows"));
        bench.feed(280.0, 0.08);
        // Two wild readings do not move the median.
        bench.feed(900.0, 0.5);
        bench.feed(20.0, 0.0);
        let decision = bench.feed(280.0, 0.08);
        assert_eq!((decision.action, knobs(&decision.to)), (ControllerAction::Decrease, (6, 40)));
    }

    #[test]
    fn a_small_board_can_fire() {
        let mut bench = ControllerBench::precise();
        assert_eq!(bench.feed_times(5, 240.0, 0.05).action, ControllerAction::Maintain);
        let mut bench = ControllerBench::precise();
        bench.workload.gpu_power_limit_watts = Some(250.0);
        let decision = bench.feed_times(5, 240.0, 0.05);
        assert_eq!(decision.action, ControllerAction::Decrease);
        assert!(decision.reason.contains("above 156 W"), "{}", decision.reason);
    }

    #[test]
    fn windows_of_another_generation_are_not_counted() {
        let mut bench = ControllerBench::precise();
        bench.feed_times(4, 280.0, 0.08);
        bench.set_layout(layout(6, 50, 3));
        assert!(bench.feed(280.0, 0.08).reason.contains("warms up"));
        for seen in 1..5 {
            assert!(bench.feed(280.0, 0.08).reason.contains(&format!("{seen} of the 5 windows")));
        }
        assert_eq!(bench.feed(280.0, 0.08).action, ControllerAction::Decrease);
    }

    /// A cap is turned without any, so that to the seeking controllers none is no news.
    #[test]
    fn a_restart_takes_as_long_as_the_last_one_that_was_measured() {
        for (name, none) in [(ControllerName::Matrix, 0.0), (ControllerName::PowerCap, 90.0)] {
            let mut bench = ControllerBench::new(name);
            let decision = bench.feed(280.0, 0.08);
            for (downtime, expected) in
                [(90.0, 90.0), (-5.0, 90.0), (f64::INFINITY, 90.0), (f64::NAN, 90.0), (0.0, none), (30.0, 30.0)]
            {
                bench.report(&decision, ActuationOutcome::Ready, "");
                bench.actuation.as_mut().unwrap().downtime_seconds = Some(downtime);
                bench.feed(280.0, 0.08);
                assert_eq!(bench.state.rollout_seconds, Some(expected), "{name}: {downtime}");
            }
        }
    }

    fn refusal(change: impl Fn(&mut ControllerBench), watts: f64, efficiency: f64) -> String {
        let mut bench = ControllerBench::precise();
        change(&mut bench);
        let decision = bench.feed_times(5, watts, efficiency);
        assert_eq!((decision.action, &decision.to), (ControllerAction::Maintain, &decision.from), "{}", decision.reason);
        decision.reason
    }

    fn accepted(change: impl Fn(&mut ControllerBench), watts: f64, efficiency: f64) -> (u32, u32) {
        let mut bench = ControllerBench::precise();
        change(&mut bench);
        let decision = bench.feed_times(5, watts, efficiency);
        assert_ne!(decision.action, ControllerAction::Maintain, "{}", decision.reason);
        knobs(&decision.to)
    }

    #[test]
    fn a_new_world_fits_batch_backend_and_gpus() {
        let refused = |change: fn(&mut ControllerBench)| refusal(change, 270.0, 0.22);
        assert!(
            refused(|b| b.workload.global_batch_size = Some(512)).contains("9 replicas do not divide the global batch of 512")
        );
        assert!(refused(|b| b.workload.global_batch_size = None).contains("not declared"));
        assert!(refused(|b| b.workload.backend = None).contains("nccl (none is declared)"));
        assert!(refused(|b| b.workload.backend = Some("nccl".into())).contains("need the backend gloo"));
        assert!(refused(|b| b.workload.layout = layout(7, 50, 3)).contains("do not spread evenly"));
        for backend in ["gloo", "MPI", "ucc"] {
            let with = |b: &mut ControllerBench| b.workload.backend = Some(backend.into());
            assert_eq!(accepted(with, 270.0, 0.22), (9, 35));
        }
        // Turning the threads alone changes no world, so nothing of it is asked.
        let undeclared = |b: &mut ControllerBench| {
            b.workload.backend = None;
            b.workload.global_batch_size = None;
        };
        assert_eq!(accepted(undeclared, 280.0, 0.08), (6, 40));
        // One process a GPU needs no special backend.
        let leaving = |b: &mut ControllerBench| {
            b.workload.backend = None;
            b.workload.layout = layout(6, 95, 3);
        };
        assert_eq!(accepted(leaving, 150.0, 0.08), (3, 100));
    }

    #[test]
    fn oversubscription_is_clamped_unless_allowed() {
        let clamped = |b: &mut ControllerBench| b.workload.bounds = LayoutBounds::default();
        assert_eq!(accepted(clamped, 270.0, 0.22), (9, 33));
        assert!(refusal(clamped, 150.0, 0.08).contains("cannot go higher"));
        let to_120 = |b: &mut ControllerBench| b.workload.bounds.oversubscription_percentage_max = Some(120);
        assert_eq!(accepted(to_120, 150.0, 0.08), (6, 60));
        let beyond = |b: &mut ControllerBench| {
            b.workload.bounds.oversubscription_percentage_max = Some(400);
            b.workload.layout = layout(12, 50, 3);
        };
        assert!(refusal(beyond, 150.0, 0.08).contains("200 % a GPU"));
    }

    #[test]
    fn bounds_hold() {
        let bounds = |bounds: LayoutBounds, from: (u32, u32)| {
            move |b: &mut ControllerBench| {
                b.workload.bounds = LayoutBounds { oversubscription_percentage_max: Some(200), ..bounds.clone() };
                b.workload.layout = layout(from.0, from.1, 3);
            }
        };
        let min = |percent| LayoutBounds { mps_thread_percentage_min: Some(percent), ..LayoutBounds::default() };
        let max = |percent| LayoutBounds { mps_thread_percentage_max: Some(percent), ..LayoutBounds::default() };
        assert_eq!(accepted(bounds(min(45), (6, 50)), 280.0, 0.08), (6, 45));
        assert!(refusal(bounds(min(50), (6, 50)), 280.0, 0.08).contains("cannot go lower"));
        assert_eq!(accepted(bounds(min(10), (6, 25)), 280.0, 0.08), (6, 15));
        assert_eq!(accepted(bounds(max(55), (6, 50)), 150.0, 0.08), (6, 55));
        // 100 % is never reached, so sharing does not end.
        assert!(refusal(bounds(max(90), (6, 90)), 150.0, 0.08).contains("cannot go higher"));
        let replicas = |low, high| LayoutBounds { replicas_min: low, replicas_max: high, ..LayoutBounds::default() };
        assert_eq!(accepted(bounds(replicas(None, Some(8)), (6, 50)), 270.0, 0.22), (6, 35));
        assert_eq!(accepted(bounds(replicas(Some(6), None), (6, 90)), 150.0, 0.08), (6, 100));
        assert!(refusal(bounds(replicas(Some(9), Some(6)), (6, 50)), 270.0, 0.22).contains("exclude every layout"));
        assert_eq!(accepted(bounds(LayoutBounds::default(), (12, 40)), 270.0, 0.22), (12, 25));
        assert!(refusal(bounds(LayoutBounds::default(), (12, 25)), 270.0, 0.22).contains("no room to scale"));
        assert!(refusal(bounds(LayoutBounds::default(), (6, 25)), 280.0, 0.08).contains("cannot go lower"));
        assert!(refusal(bounds(LayoutBounds::default(), (3, 100)), 150.0, 0.08).contains("cannot go higher"));
        assert_eq!(accepted(bounds(LayoutBounds::default(), (6, 90)), 150.0, 0.08), (3, 100));
    }

    #[test]
    fn unknown_knobs_and_stalled_jobs_change_nothing() {
        assert!(refusal(|b| b.workload.layout.mps_thread_percentage = None, 280.0, 0.08).contains("no MPS thread percentage"));
        assert!(refusal(|b| b.workload.layout.replicas = None, 280.0, 0.08).contains("number of replicas"));
        assert!(refusal(|_| (), 150.0, 0.0).contains("no progress"));
    }

    #[test]
    fn a_change_that_helps_is_kept() {
        let mut bench = ControllerBench::precise();
        let change = bench.feed_times(5, 280.0, 0.08);
        bench.apply(&change);
        let restarting = bench.restart_window();
        assert_eq!(
            (restarting.validation, restarting.concerns.as_deref()),
            (ChangeValidation::Pending, Some(change.id.as_str()))
        );
        assert!(bench.feed(100.0, 0.001).reason.contains("warms up"));
        for seen in 1..3 {
            let pending = bench.feed(240.0, 0.085);
            assert_eq!(pending.validation, ChangeValidation::Pending);
            assert!(pending.reason.contains(&format!("{seen} of 3")), "{}", pending.reason);
        }
        // 10 % less power, 91 % of the throughput, 6 % less energy per sample.
        let kept = bench.feed(240.0, 0.085);
        assert_eq!((kept.validation, kept.action), (ChangeValidation::Kept, ControllerAction::Maintain));
        assert_eq!(kept.concerns.as_deref(), Some(change.id.as_str()));
        assert!(kept.reason.contains("11.765 J/sample instead of 12.500 (-5.9 %) at 91.1 %"), "{}", kept.reason);
        assert!((kept.evidence["gain_ratio"] - (1.0 - 0.08 / 0.085)).abs() < 1e-9);
        // The three windows count for the next decision.
        assert_eq!(bench.feed_times(2, 280.0, 0.08).action, ControllerAction::Maintain);
        assert_eq!(bench.feed(280.0, 0.08).action, ControllerAction::Decrease);
    }

    /// Judges a change to this power and efficiency from 280 W and 0.08.
    fn verdict(watts: f64, efficiency: f64) -> ChangeValidation {
        let mut bench = ControllerBench::precise();
        let change = bench.feed_times(5, 280.0, 0.08);
        bench.apply_and_warm_up(&change, watts, efficiency);
        bench.feed_times(3, watts, efficiency).validation
    }

    #[test]
    fn the_limits_of_validation() {
        // Joules per sample: at least 1 % less. 0.08 / 0.99 = 0.080808.
        assert_eq!(verdict(280.0, 0.08081), ChangeValidation::Kept);
        assert_eq!(verdict(280.0, 0.08080), ChangeValidation::Failed);
        // Throughput: at least 90 % of 280 * 0.08.
        assert_eq!(verdict(0.901 * 280.0 * 0.08 / 0.12, 0.12), ChangeValidation::Kept);
        assert_eq!(verdict(0.899 * 280.0 * 0.08 / 0.12, 0.12), ChangeValidation::Failed);
        assert_eq!(verdict(200.0, 0.0), ChangeValidation::Failed);
    }

    #[test]
    fn a_change_is_judged_by_what_the_objective_names() {
        let judged = |objective: ControllerObjective| {
            let mut bench = ControllerBench::precise();
            bench.settings.objective = objective;
            let change = bench.feed_times(5, 280.0, 0.08);
            // 5.9 % less energy at 91.1 % of the throughput: the product is 3.3 % more.
            bench.apply_and_warm_up(&change, 240.0, 0.085);
            bench.feed_times(3, 240.0, 0.085)
        };
        assert_eq!(judged(ControllerObjective::Energy).validation, ChangeValidation::Kept);
        let edp = judged(ControllerObjective::Edp);
        assert_eq!((edp.validation, edp.action), (ChangeValidation::Failed, ControllerAction::Revert));
        let product = (280.0 / 240.0) * (0.08_f64 / 0.085).powi(2);
        assert!((edp.evidence["objective_gain_ratio"] - (1.0 - product)).abs() < 1e-9, "{:?}", edp.evidence);
        assert!((edp.evidence["gain_ratio"] - (1.0 - 0.08 / 0.085)).abs() < 1e-9, "a saving is given in energy");
        let words =
            "(-5.9 %) at 91.1 % of the throughput, energy-delay product +3.3 %; required are 1.0 % less energy-delay product";
        assert!(edp.reason.contains(words), "{}", edp.reason);
    }

    fn failed(bench: &mut ControllerBench) -> (eadt_schemas::v1::Decision, eadt_schemas::v1::Decision) {
        let change = bench.feed_times(5, 280.0, 0.08);
        assert_eq!(change.action, ControllerAction::Decrease, "{}", change.reason);
        bench.apply_and_warm_up(&change, 280.0, 0.07);
        let revert = bench.feed_times(3, 280.0, 0.07);
        (change, revert)
    }

    #[test]
    fn a_change_that_does_not_help_is_taken_back_and_not_repeated() {
        let mut bench = ControllerBench::precise();
        let (change, revert) = failed(&mut bench);
        assert_eq!((revert.action, revert.validation), (ControllerAction::Revert, ChangeValidation::Failed));
        assert_eq!((&revert.from, &revert.to), (&change.to, &change.from));
        assert_eq!(revert.concerns.as_deref(), Some(change.id.as_str()));
        assert!(revert.restarts && revert.reason.contains("did not help: 14.286 J/sample instead of 12.500 (+14.3 %)"));
        assert_eq!(revert.hold_until, Some(revert.time.plus_seconds(3600.0)));
        bench.apply_and_warm_up(&revert, 280.0, 0.08);
        // Holding: nothing for the hour, reason and time given.
        while bench.now.plus_seconds(60.0) < revert.hold_until.unwrap() {
            let held = bench.feed(280.0, 0.08);
            assert_eq!((held.action, held.hold_until), (ControllerAction::Maintain, revert.hold_until), "{}", held.reason);
        }
        // After it: the same from the same layout is tabu, the other action is not.
        assert!(bench.feed(280.0, 0.08).reason.contains("not tried again before"));
        let other = (0..5).map(|_| bench.feed(280.0, 0.2)).find(|decision| decision.action != ControllerAction::Maintain);
        assert_eq!(other.unwrap().action, ControllerAction::ScaleReplicas);
    }

    #[test]
    fn holds_double_up_to_a_day_and_start_again_after_success() {
        let mut bench = ControllerBench::precise();
        bench.settings.tabu_seconds = 1.0;
        bench.settings.restarts_per_day_max = 1000;
        let mut holds = Vec::new();
        for _ in 0..7 {
            let (_, revert) = failed(&mut bench);
            holds.push(revert.hold_until.unwrap().seconds_since(revert.time) / 3600.0);
            bench.apply_and_warm_up(&revert, 280.0, 0.08);
            while bench.now < revert.hold_until.unwrap().plus_seconds(-60.0) {
                bench.restart_window();
            }
            bench.feed(280.0, 0.08);
        }
        assert_eq!(holds, [1.0, 2.0, 4.0, 8.0, 16.0, 24.0, 24.0]);
        let change = bench.feed_times(5, 280.0, 0.08);
        bench.apply_and_warm_up(&change, 270.0, 0.09);
        assert_eq!(bench.feed_times(3, 270.0, 0.09).validation, ChangeValidation::Kept);
        let change = bench.feed_times(2, 280.0, 0.08);
        assert_eq!(change.action, ControllerAction::Decrease);
        bench.apply_and_warm_up(&change, 280.0, 0.05);
        let revert = bench.feed_times(3, 280.0, 0.05);
        assert_eq!(revert.hold_until, Some(revert.time.plus_seconds(3600.0)));
    }

    #[test]
    fn a_revert_that_nobody_applied_is_asked_for_again() {
        let mut bench = ControllerBench::precise();
        let (change, revert) = failed(&mut bench);
        for _ in 0..4 {
            let waiting = bench.feed(280.0, 0.07);
            assert_eq!((waiting.action, waiting.validation), (ControllerAction::Maintain, ChangeValidation::Pending));
        }
        let again = bench.feed(280.0, 0.07);
        assert_eq!((again.action, &again.to), (ControllerAction::Revert, &change.from));
        assert_ne!(again.id, revert.id);
        assert_eq!(again.concerns.as_deref(), Some(change.id.as_str()));
        bench.report(&again, ActuationOutcome::Refused, "the workload was deleted");
        assert!(bench.feed(280.0, 0.07).reason.contains("could not be reverted: the workload was deleted"));
        assert_eq!(bench.feed_times(6, 280.0, 0.07).action, ControllerAction::Maintain);
    }

    #[test]
    fn nothing_else_is_decided_while_a_decision_is_on_its_way() {
        let mut bench = ControllerBench::precise();
        let change = bench.feed_times(5, 280.0, 0.08);
        for _ in 0..4 {
            let waiting = bench.feed(280.0, 0.08);
            assert_eq!(waiting.action, ControllerAction::Maintain);
            assert_eq!((waiting.validation, waiting.concerns.as_deref()), (ChangeValidation::Pending, Some(change.id.as_str())));
        }
        // Expired: decided anew, under a new id.
        let again = bench.feed(280.0, 0.08);
        assert_eq!(again.action, ControllerAction::Decrease);
        assert_ne!(again.id, change.id);
    }

    #[test]
    fn without_enforcement_it_decides_but_validates_nothing() {
        for mode in [UpdateMode::Observe, UpdateMode::Recommend] {
            let mut bench = ControllerBench::precise();
            bench.workload.mode = mode;
            bench.feed_times(4, 280.0, 0.08);
            for _ in 0..20 {
                let decision = bench.feed(280.0, 0.08);
                assert_eq!((decision.action, decision.validation), (ControllerAction::Decrease, ChangeValidation::None));
                let outcome = if mode == UpdateMode::Observe { ActuationOutcome::Refused } else { ActuationOutcome::Recommended };
                bench.report(&decision, outcome, "mode");
            }
            assert!(bench.state.proposals.len() <= 5 && bench.state.trial.is_none() && bench.state.restarts.is_empty());
        }
    }

    #[test]
    fn a_recommendation_that_a_person_approves_is_validated() {
        let mut bench = ControllerBench::precise();
        bench.workload.mode = UpdateMode::Recommend;
        let first = bench.feed_times(5, 280.0, 0.08);
        bench.feed(280.0, 0.08);
        bench.workload.generation = first.generation.unwrap();
        bench.apply_and_warm_up(&first, 240.0, 0.09);
        assert_eq!(bench.feed_times(3, 240.0, 0.09).validation, ChangeValidation::Kept);
    }

    #[test]
    fn a_refused_decision_is_not_repeated_for_an_hour() {
        let mut bench = ControllerBench::precise();
        let change = bench.feed_times(5, 280.0, 0.08);
        bench.report(&change, ActuationOutcome::Refused, "the field is immutable");
        let decision = bench.feed(280.0, 0.08);
        assert_eq!((decision.validation, decision.concerns.as_deref()), (ChangeValidation::None, Some(change.id.as_str())));
        assert!(decision.reason.contains("was refused: the field is immutable"));
        let tabu = bench.feed_times(58, 280.0, 0.08);
        assert!(tabu.action == ControllerAction::Maintain && tabu.reason.contains("not tried again"), "{}", tabu.reason);
        bench.feed(280.0, 0.08);
        assert_eq!(bench.feed(280.0, 0.08).action, ControllerAction::Decrease);
    }

    #[test]
    fn a_change_that_the_actuator_rolled_back_holds_and_is_not_validated() {
        for early in [true, false] {
            let mut bench = ControllerBench::precise();
            let change = bench.feed_times(5, 280.0, 0.08);
            bench.apply(&change);
            if !early {
                bench.restart_window();
            }
            bench.set_layout(change.from.clone());
            bench.report(&change, ActuationOutcome::RolledBack, "2 of 6 pods were ready after 600 s");
            let decision = bench.feed(280.0, 0.08);
            assert_eq!((decision.action, decision.validation), (ControllerAction::Maintain, ChangeValidation::Failed));
            assert!(decision.reason.contains("2 of 6 pods"), "{}", decision.reason);
            assert_eq!(decision.hold_until, Some(decision.time.plus_seconds(3600.0)));
            assert!(bench.state.trial.is_none());
            assert_eq!(bench.state.restarts.len(), 2, "there and back");
            assert_eq!(bench.feed_times(10, 280.0, 0.08).hold_until, decision.hold_until);
        }
    }

    #[test]
    fn a_change_from_outside_ends_the_trial() {
        let mut bench = ControllerBench::precise();
        let change = bench.feed_times(5, 280.0, 0.08);
        bench.apply_and_warm_up(&change, 240.0, 0.09);
        bench.feed(240.0, 0.09);
        bench.set_layout(layout(3, 100, 3));
        let decision = bench.feed(280.0, 0.08);
        assert_eq!(decision.validation, ChangeValidation::None);
        assert!(decision.reason.contains("changed from outside"), "{}", decision.reason);
        // One window warms up, then five are needed.
        assert_eq!(bench.feed_times(6, 280.0, 0.08).action, ControllerAction::Decrease);

        let mut bench = ControllerBench::precise();
        let change = bench.feed_times(5, 280.0, 0.08);
        bench.apply_and_warm_up(&change, 240.0, 0.09);
        bench.set_layout(change.from.clone());
        let decision = bench.feed(280.0, 0.08);
        assert!(decision.validation == ChangeValidation::Failed && decision.reason.contains("reverted from outside"));
    }

    #[test]
    fn one_restart_a_day_is_kept_for_the_way_back() {
        for most in [0, 1] {
            let reason = refusal(|b| b.workload.bounds.restarts_per_day_max = Some(most), 280.0, 0.08);
            assert!(reason.contains(&format!("0 of {most} restarts")), "{reason}");
        }
        let mut bench = ControllerBench::precise();
        bench.workload.bounds.restarts_per_day_max = Some(2);
        bench.settings.tabu_seconds = 1.0;
        let (_, revert) = failed(&mut bench);
        assert_eq!(revert.action, ControllerAction::Revert);
        bench.apply_and_warm_up(&revert, 280.0, 0.08);
        let day = revert.time.plus_seconds(86_400.0);
        while bench.now.plus_seconds(1200.0) < day {
            assert_eq!(bench.feed(280.0, 0.08).action, ControllerAction::Maintain);
        }
        let freed =
            (0..60).map(|_| bench.feed(280.0, 0.08)).find(|decision| decision.action != ControllerAction::Maintain).unwrap();
        assert!(freed.time >= day);
    }

    #[test]
    fn a_restart_must_be_worth_its_cost() {
        // 5 % of what is left against 120 s of downtime and 60 s of work done again: 3,600 s.
        assert!(refusal(|b| b.remaining_seconds = Some(3600.0), 280.0, 0.08).contains("costs about 180 s"));
        assert_eq!(accepted(|b| b.remaining_seconds = Some(3601.0), 280.0, 0.08), (6, 40));
        assert!(refusal(|b| b.remaining_seconds = Some(0.0), 280.0, 0.08).contains("costs about"));
        assert!(refusal(|b| b.remaining_seconds = Some(f64::NAN), 280.0, 0.08).contains("costs about"));
        // A fresh checkpoint leaves less to repeat: the decision falls 10 s after it.
        let fresh = |seconds: f64| {
            move |b: &mut ControllerBench| {
                b.checkpoint_time = Some(b.now.plus_seconds(290.0));
                b.remaining_seconds = Some(seconds);
            }
        };
        assert!(refusal(fresh(2600.0), 280.0, 0.08).contains("costs about 130 s"));
        assert_eq!(accepted(fresh(2601.0), 280.0, 0.08), (6, 40));
        let old = |b: &mut ControllerBench| b.checkpoint_time = Some(b.now.plus_seconds(-36_000.0));
        assert_eq!(accepted(old, 280.0, 0.08), (6, 40));
    }

    #[test]
    fn state_survives_serialisation_at_any_window() {
        let mut straight = ControllerBench::precise();
        let mut resumed = ControllerBench::precise();
        for step in 0..200 {
            let (watts, efficiency) = if step % 50 < 25 { (280.0, 0.08) } else { (150.0, 0.15) };
            for bench in [&mut straight, &mut resumed] {
                let decision = bench.feed(watts, efficiency);
                if decision.action != ControllerAction::Maintain {
                    bench.apply(&decision);
                }
            }
            let text = serde_json::to_string(&resumed.state).unwrap();
            assert!(text.len() < 16_384, "{} bytes", text.len());
            resumed.state = serde_json::from_str(&text).unwrap();
            assert_eq!(straight.state, resumed.state);
        }
        assert!(!straight.restarts.is_empty());
    }

    #[derive(Debug, Clone)]
    enum Step {
        Window { watts: f64, efficiency: f64 },
        Broken,
        Restarted,
        Pause(bool),
        Mode(UpdateMode),
        Outsider { per_gpu: u32, threads: u32 },
        Remaining(Option<f64>),
        Outcome(u8),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            12 => (prop::sample::select(vec![120.0, 180.0, 230.0, 280.0, 390.0]), prop::sample::select(vec![0.0, 0.05, 0.08, 0.1, 0.15, 0.3]))
                .prop_map(|(watts, efficiency)| Step::Window { watts, efficiency }),
            1 => Just(Step::Broken),
            1 => Just(Step::Restarted),
            1 => any::<bool>().prop_map(Step::Pause),
            1 => prop::sample::select(vec![UpdateMode::Observe, UpdateMode::Recommend, UpdateMode::Enforce, UpdateMode::Enforce]).prop_map(Step::Mode),
            1 => (1_u32..5, 25_u32..=100).prop_map(|(per_gpu, threads)| Step::Outsider { per_gpu, threads }),
            1 => prop::option::of(0.0..100_000.0).prop_map(Step::Remaining),
            1 => (0_u8..8).prop_map(Step::Outcome),
        ]
    }

    fn bounds() -> impl Strategy<Value = LayoutBounds> {
        (
            prop::option::of(20_u32..60),
            prop::option::of(50_u32..=100),
            prop::option::of(1_u32..7),
            prop::option::of(3_u32..14),
            prop::option::of(prop::sample::select(vec![100_u32, 120, 150, 200])),
            0_u32..6,
        )
            .prop_map(|(threads_min, threads_max, replicas_min, replicas_max, oversubscription, restarts)| {
                LayoutBounds {
                    mps_thread_percentage_min: threads_min,
                    mps_thread_percentage_max: threads_max,
                    replicas_min,
                    replicas_max,
                    oversubscription_percentage_max: oversubscription,
                    restarts_per_day_max: Some(restarts),
                    ..LayoutBounds::default()
                }
            })
    }

    proptest! {
        #![proptest_config(cases(300))]

        #[test]
        fn never_does_what_it_must_not(bounds in bounds(), steps in prop::collection::vec((step(), 1_usize..9), 1..120), per_day in any::<bool>()) {
            let mut bench = ControllerBench::precise();
            bench.workload.bounds = bounds.clone();
            bench.settings.hold_seconds = if per_day { 3600.0 } else { 300.0 };
            bench.settings.tabu_seconds = 600.0;
            bench.settings.horizon_seconds = 40_000.0;
            let mut outcome = 0;
            let mut ids = BTreeSet::new();
            for (step, times) in steps {
                for _ in 0..times {
                    let mut window = bench.window(150.0, 0.1);
                    match step {
                        Step::Window { watts, efficiency } => window = bench.window(watts, efficiency),
                        Step::Broken => window.energy_coverage_ratio = 0.3,
                        Step::Restarted => window.restarted = true,
                        Step::Pause(paused) => bench.workload.paused = paused,
                        Step::Mode(mode) => bench.workload.mode = mode,
                        Step::Outsider { per_gpu, threads } => bench.set_layout(layout(3 * per_gpu, threads, 3)),
                        Step::Remaining(seconds) => bench.remaining_seconds = seconds,
                        Step::Outcome(next) => outcome = next,
                    }
                    let hold = bench.state.hold.as_ref().map(|hold| hold.until);
                    let trial = bench.state.trial.is_some();
                    let decision = bench.decide(&window);
                    prop_assert!(!decision.reason.is_empty());
                    prop_assert!(ids.insert(decision.id.clone()));
                    prop_assert!(decision.evidence.values().all(|value| value.is_finite()));
                    if decision.action == ControllerAction::Maintain {
                        prop_assert_eq!(&decision.from, &decision.to);
                        prop_assert!(!decision.restarts);
                        continue;
                    }
                    prop_assert!(decision.restarts && decision.from != decision.to);
                    prop_assert!(!bench.workload.paused);
                    prop_assert!(!window.restarted && window.energy_coverage_ratio > 0.9);
                    prop_assert_eq!(decision.generation, Some(bench.workload.generation));
                    if decision.action != ControllerAction::Revert {
                        prop_assert!(!trial || bench.state.trial.is_none());
                        prop_assert!(hold.is_none_or(|until| until <= decision.time), "{:?} {}", hold, decision.reason);
                        let (replicas, threads) = knobs(&decision.to);
                        prop_assert!(threads >= bounds.mps_thread_percentage_min.unwrap_or(25));
                        prop_assert!(threads <= bounds.mps_thread_percentage_max.unwrap_or(100));
                        prop_assert!(replicas >= bounds.replicas_min.unwrap_or(1));
                        prop_assert!(replicas <= bounds.replicas_max.unwrap_or(12));
                        prop_assert!(replicas.div_ceil(3) * threads <= bounds.oversubscription_percentage_max.unwrap_or(100));
                        prop_assert!(replicas == knobs(&decision.from).0 || 576 % replicas == 0);
                        prop_assert_eq!(decision.to.local_world_size, Some(replicas / 3));
                    }
                    if bench.workload.mode != UpdateMode::Enforce {
                        bench.report(&decision, ActuationOutcome::Recommended, "");
                        continue;
                    }
                    match outcome {
                        0..=3 => bench.apply(&decision),
                        4 => bench.report(&decision, ActuationOutcome::Refused, "busy"),
                        5 => {
                            let from = bench.workload.layout.clone();
                            bench.apply(&decision);
                            bench.set_layout(from);
                            // A rollback that is itself rolled back has no restart left.
                            if decision.action != ControllerAction::Revert {
                                bench.restarts.push(bench.now.plus_seconds(20.0));
                            }
                            bench.report(&decision, ActuationOutcome::RolledBack, "not ready");
                        }
                        _ => {}
                    }
                    if let Some(now) = bench.restarts.last() {
                        let last_day = bench.restarts.iter().filter(|time| now.seconds_since(**time) < 86_400.0).count();
                        prop_assert!(last_day as u32 <= bounds.restarts_per_day_max.unwrap(), "{} restarts", last_day);
                    }
                }
            }
        }
    }
}
