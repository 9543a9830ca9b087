//! On line: profiles from windows, and shares that are turned in an order that never oversubscribes the GPU.

use eadt_gpu_sharing::gather::{GatherSettings, ProfileGatherer, SkippedWindow};
use eadt_gpu_sharing::rebalance::{
    GpuSharer, ModelChoice, RebalanceOutcome, RebalanceSettings, RebalanceState, WindowFigures, rebalance,
};
use eadt_gpu_sharing::{AdditivePredictor, ChoiceSettings, MetricValues, ProfileMetric, SoloPoint, SoloProfile};
use eadt_schemas::EventTime;
use eadt_schemas::v1::{ChangeValidation, ControllerAction, EfficiencyWindow, Layout, LayoutBounds, Workload};
use eadt_testing::cases;
use proptest::prelude::*;

fn workload(name: &str, share: u32) -> Workload {
    Workload {
        workload: name.into(),
        gpus: Some(1),
        gpu_model: Some("board".into()),
        generation: 1,
        ready_time: Some(EventTime::from_seconds(0.0)),
        layout: Layout { replicas: Some(1), mps_thread_percentage: Some(share), ..Layout::default() },
        ..Workload::default()
    }
}

fn window(workload: &Workload, rate: f64, watts: f64) -> EfficiencyWindow {
    EfficiencyWindow {
        workload: workload.workload.clone(),
        energy_coverage_ratio: 1.0,
        progress_coverage_ratio: 0.95,
        samples_per_second: Some(rate),
        mean_power_per_gpu_watts: Some(watts),
        mean_sm_active_ratio: Some(0.5),
        layout: Some(workload.layout.clone()),
        gpus: 1,
        ..EfficiencyWindow::default()
    }
}

#[test]
fn windows_alone_become_a_profile() {
    let settings = GatherSettings::default();
    let mut gathered = ProfileGatherer::default();
    let (half, whole) = (workload("a/b", 50), workload("a/b", 100));
    for rate in [29.0, 31.0, 30.0] {
        gathered.observe(&window(&half, rate, 120.0), &half, 1, &settings).unwrap();
    }
    assert!(gathered.profile("a/b", &settings).unwrap().unwrap_err().to_string().contains("was not measured at 100 %"));
    for rate in [50.0, 52.0] {
        gathered.observe(&window(&whole, rate, 200.0), &whole, 1, &settings).unwrap();
    }
    assert!(gathered.profile("a/b", &settings).unwrap().is_err(), "two windows are not enough");
    gathered.observe(&window(&whole, 54.0, 200.0), &whole, 1, &settings).unwrap();
    let profile = gathered.profile("a/b", &settings).unwrap().unwrap();
    assert!((profile.at(50, None).unwrap().samples_per_second - 30.0).abs() < 1e-9);
    assert!((profile.whole().samples_per_second - 52.0).abs() < 1e-9);
    assert_eq!(profile.whole().counters.get(ProfileMetric::SmActiveRatio), Some(0.5));
    assert_eq!(profile.whole().counters.get(ProfileMetric::DramActiveRatio), None);
    // State survives being written.
    let read: ProfileGatherer = serde_json::from_str(&serde_json::to_string(&gathered).unwrap()).unwrap();
    assert_eq!(read, gathered);
    // On another board everything begins anew.
    let moved = Workload { gpu_model: Some("other".into()), ..whole.clone() };
    gathered.observe(&window(&moved, 90.0, 300.0), &moved, 1, &settings).unwrap();
    assert!(gathered.profile("a/b", &settings).unwrap().is_err());
    gathered.forget("a/b");
    assert!(gathered.profile("a/b", &settings).is_none());
}

#[test]
fn windows_that_show_nothing_about_a_workload_alone_are_passed_over() {
    let settings = GatherSettings::default();
    let own = workload("a/b", 50);
    let mut gathered = ProfileGatherer::default();
    let mut passed = |change: &dyn Fn(&mut EfficiencyWindow), tenants| {
        let mut window = window(&own, 30.0, 120.0);
        change(&mut window);
        gathered.observe(&window, &own, tenants, &settings)
    };
    assert_eq!(passed(&|_| (), 2), Err(SkippedWindow::Shared));
    assert_eq!(passed(&|w| w.restarted = true, 1), Err(SkippedWindow::Unsteady));
    assert_eq!(passed(&|w| w.gap = true, 1), Err(SkippedWindow::Unsteady));
    assert_eq!(passed(&|w| w.progress_coverage_ratio = 0.8, 1), Err(SkippedWindow::Uncovered));
    assert_eq!(passed(&|w| w.progress_coverage_ratio = f64::NAN, 1), Err(SkippedWindow::Uncovered));
    assert_eq!(passed(&|w| w.layout.as_mut().unwrap().power_limit_watts = Some(150.0), 1), Err(SkippedWindow::Capped));
    assert_eq!(passed(&|w| w.layout.as_mut().unwrap().replicas = Some(2), 1), Err(SkippedWindow::SeveralProcesses));
    assert_eq!(passed(&|w| w.layout = None, 1), Err(SkippedWindow::Incomplete));
    assert_eq!(passed(&|w| w.samples_per_second = None, 1), Err(SkippedWindow::Incomplete));
    assert_eq!(passed(&|w| w.mean_power_per_gpu_watts = Some(0.0), 1), Err(SkippedWindow::Incomplete));
    assert_eq!(passed(&|w| w.gpus = 0, 1), Err(SkippedWindow::Incomplete));
    assert_eq!(passed(&|_| (), 1), Ok(()));
}

fn profile(name: &str, exponent: f64) -> SoloProfile {
    let points = (1..=10_u32).map(|tenth| SoloPoint {
        mps_thread_percentage: tenth * 10,
        sm_clock_mhz: None,
        samples_per_second: 10.0 * (f64::from(tenth) / 10.0).powf(exponent),
        power_watts: 60.0 + 10.0 * f64::from(tenth),
        counters: MetricValues::default(),
    });
    SoloProfile::new(name.into(), "board".into(), points.collect()).unwrap()
}

const BRAIN: ModelChoice<'static> = ModelChoice { predictor: &AdditivePredictor, model_version: None, idle_watts: Some(30.0) };

struct Gpu {
    workloads: Vec<Workload>,
    profiles: Vec<SoloProfile>,
    figures: Vec<Vec<WindowFigures>>,
    state: RebalanceState,
    settings: RebalanceSettings,
}

impl Gpu {
    fn new(shares: &[u32], exponents: &[f64]) -> Self {
        let name = |i: usize| format!("n/w{i}");
        Self {
            workloads: shares.iter().enumerate().map(|(i, share)| workload(&name(i), *share)).collect(),
            profiles: exponents.iter().enumerate().map(|(i, exponent)| profile(&name(i), *exponent)).collect(),
            figures: vec![Vec::new(); shares.len()],
            state: RebalanceState::default(),
            settings: RebalanceSettings::default(),
        }
    }

    /// As [`Self::new`], with three windows of each at its share.
    fn measured(shares: &[u32], exponents: &[f64]) -> Self {
        let mut gpu = Self::new(shares, exponents);
        (0..3).for_each(|minute| gpu.measure(minute, 0.9, 60.0));
        gpu
    }

    fn look(&mut self, minute: u32) -> RebalanceOutcome {
        let sharers: Vec<GpuSharer<'_>> = self
            .workloads
            .iter()
            .zip(self.profiles.iter().zip(&self.figures))
            .map(|(workload, (profile, figures))| GpuSharer { workload, profile: Some(profile), figures })
            .collect();
        let time = EventTime::from_seconds(f64::from(minute) * 60.0);
        rebalance(&mut self.state, time, &sharers, &BRAIN, &self.settings)
    }

    fn shares(&self) -> Vec<u32> {
        self.workloads.iter().map(|workload| workload.layout.mps_thread_percentage.unwrap()).collect()
    }

    /// Adds a window of each, with this part of its throughput alone at its share, at so many watts.
    fn measure(&mut self, minute: u32, part: f64, watts: f64) {
        let tenants = self.workloads.len() as u32;
        for ((workload, profile), figures) in self.workloads.iter().zip(&self.profiles).zip(&mut self.figures) {
            let share = workload.layout.mps_thread_percentage.unwrap();
            figures.push(WindowFigures {
                end: EventTime::from_seconds(f64::from(minute) * 60.0),
                tenants,
                mps_thread_percentage: share,
                samples_per_second: part * profile.at(share, None).unwrap().samples_per_second,
                power_watts: watts,
            });
        }
    }

    /// Goes on by a minute: everything is applied at once.
    fn minute(&mut self, minute: u32, part: f64, watts: f64) -> RebalanceOutcome {
        let outcome = self.look(minute);
        self.measure(minute, part, watts);
        for decision in outcome.decisions.clone() {
            self.apply(&decision);
        }
        outcome
    }

    /// Its first partition does not help; the minute in which it begins to be taken back.
    fn until_it_is_taken_back(&mut self) -> u32 {
        (0..3).for_each(|minute| self.measure(minute, 0.9, 60.0));
        for minute in 3..30 {
            if self.look(minute).decisions.iter().any(|decision| decision.action == ControllerAction::Revert) {
                return minute;
            }
            let helps = self.shares() == [50, 50];
            self.minute(minute, if helps { 0.9 } else { 0.3 }, 60.0);
        }
        panic!("it was not taken back: {:?}", self.shares());
    }

    /// Refuses the wanted partition.
    fn give_up(&mut self, minute: u32) {
        self.state.give_up(EventTime::from_seconds(f64::from(minute) * 60.0), &self.settings);
    }

    fn apply(&mut self, decision: &eadt_schemas::v1::Decision) {
        let workload = self.workloads.iter_mut().find(|workload| workload.workload == decision.workload).unwrap();
        assert_eq!((&decision.from, decision.generation), (&workload.layout, Some(workload.generation)));
        workload.layout = decision.to.clone();
        workload.generation += 1;
    }
}

#[test]
fn reductions_come_before_raises() {
    let mut gpu = Gpu::measured(&[50, 50], &[0.95, 0.05]);
    let first = gpu.look(1);
    assert_eq!(first.decisions.len(), 1, "{first:?}");
    let down = &first.decisions[0];
    assert_eq!(
        (down.workload.as_str(), down.action, down.controller.as_str()),
        ("n/w1", ControllerAction::Decrease, "sm-partition")
    );
    assert!(down.restarts && down.expires > down.time && down.evidence["expected_gain_ratio"] > 0.01);
    // Not applied yet: asked again, and still no raise.
    assert_eq!(gpu.look(2).decisions[0].to, down.to);
    let down = down.clone();
    gpu.apply(&down);
    gpu.workloads[1].ready_time = None;
    assert_eq!(gpu.look(3).reason, "the last change of n/w1 is not ready yet");
    gpu.workloads[1].ready_time = Some(EventTime::from_seconds(200.0));
    let second = gpu.look(4);
    assert_eq!((second.decisions.len(), second.decisions[0].action), (1, ControllerAction::Increase));
    gpu.apply(&second.decisions[0]);
    assert_eq!(gpu.shares(), [90, 10]);
    assert_eq!(gpu.look(5).reason, "the partition is in force and is being validated");
    (6..9).for_each(|minute| gpu.measure(minute, 0.9, 60.0));
    assert_eq!(gpu.look(9).validation, ChangeValidation::Kept);
    assert!(gpu.look(10).reason.starts_with("no change before"));
    assert_eq!(gpu.look(70).reason, "the partition in force is the best");
}

#[test]
fn what_must_not_be_turned_stays() {
    let reason = |change: &dyn Fn(&mut Gpu)| {
        let mut gpu = Gpu::measured(&[50, 50], &[0.95, 0.05]);
        change(&mut gpu);
        let outcome = gpu.look(1);
        assert!(outcome.decisions.is_empty(), "{outcome:?}");
        outcome.reason
    };
    assert_eq!(reason(&|gpu| gpu.workloads[0].paused = true), "n/w0 is paused");
    assert!(reason(&|gpu| gpu.workloads[0].gpus = Some(2)).contains("not exactly one GPU"));
    assert!(reason(&|gpu| gpu.workloads[1].layout.mps_thread_percentage = None).contains("no MPS thread percentage"));
    assert_eq!(reason(&|gpu| gpu.workloads.truncate(1)), "the GPU is not shared");
    let other = |gpu: &mut Gpu| {
        let points = gpu.profiles[1].points().copied().collect();
        gpu.profiles[1] = SoloProfile::new("n/w1".into(), "other".into(), points).unwrap();
    };
    assert!(reason(&other).contains("both must be measured on the GPU that they share"));
    // Bounds that allow only the present shares.
    let bounds =
        LayoutBounds { mps_thread_percentage_min: Some(50), mps_thread_percentage_max: Some(50), ..LayoutBounds::default() };
    assert_eq!(reason(&|gpu| gpu.workloads[1].bounds = bounds.clone()), "the partition in force is the best");
}

#[test]
fn a_partition_has_to_show_that_it_helps() {
    let mut gpu = Gpu::measured(&[50, 50], &[0.95, 0.05]);
    let mut outcomes = Vec::new();
    for minute in 3..12 {
        outcomes.push(gpu.minute(minute, 0.9, 60.0));
    }
    assert_eq!(gpu.shares(), [90, 10]);
    let kept: Vec<_> = outcomes.iter().filter(|outcome| outcome.validation == ChangeValidation::Kept).collect();
    assert_eq!(kept.len(), 1, "{outcomes:?}");
    assert!(kept[0].reason.contains("work per watt against the one before it"), "{}", kept[0].reason);
    assert!(outcomes.iter().any(|outcome| outcome.validation == ChangeValidation::Pending));
    assert!(outcomes.last().unwrap().reason.starts_with("no change before"));
}

/// Checks that, with any predictor, a partition is compared with the one before it, which must be measured.
#[test]
fn nothing_is_changed_before_it_is_known_what_there_is() {
    let mut gpu = Gpu::new(&[50, 50], &[0.95, 0.05]);
    assert!(BRAIN.idle_watts.is_some());
    assert_eq!(gpu.look(1).reason, "3 windows of each workload are needed at the shares in force");
}

/// A partition whose gain the additive model promised and the GPU did not show is rolled back, reductions first, and not tried
/// again.
#[test]
fn a_partition_that_does_not_help_is_taken_back_and_not_tried_again() {
    let mut gpu = Gpu::measured(&[50, 50], &[0.95, 0.05]);
    let mut reverts = Vec::new();
    let mut tried = Vec::new();
    for minute in 3..400 {
        let helps = gpu.shares() == [50, 50];
        let outcome = gpu.minute(minute, if helps { 0.9 } else { 0.3 }, 60.0);
        reverts.extend(
            outcome.decisions.iter().filter(|decision| decision.action == ControllerAction::Revert).map(|d| (minute, d.clone())),
        );
        tried.push(gpu.shares());
    }
    assert_eq!(gpu.shares(), [50, 50], "{tried:?}");
    assert!(reverts[0].1.reason.contains("is reverted"), "{}", reverts[0].1.reason);
    assert_eq!((reverts[0].1.workload.as_str(), reverts[0].1.validation), ("n/w0", ChangeValidation::Failed), "reductions first");
    let of = |shares: [u32; 2]| tried.windows(2).filter(|pair| pair[0] != shares && pair[1] == shares).count();
    assert_eq!(of([90, 10]), 1, "it was tried again");
    // The next one is another one, after twice the rest.
    assert!(of([80, 20]) <= 1 && reverts.len() <= 6, "{reverts:?}");
}

/// Without the idle power of the board, the additive model is made to give for the present partition what was measured.
#[test]
fn idle_power_is_what_windows_together_imply() {
    let mut gpu = Gpu::new(&[50, 50], &[0.95, 0.05]);
    let brain = ModelChoice { idle_watts: None, ..BRAIN };
    let look = |gpu: &Gpu| {
        let sharers: Vec<GpuSharer<'_>> = gpu
            .workloads
            .iter()
            .zip(gpu.profiles.iter().zip(&gpu.figures))
            .map(|(workload, (profile, figures))| GpuSharer { workload, profile: Some(profile), figures })
            .collect();
        rebalance(&mut RebalanceState::default(), EventTime::from_seconds(600.0), &sharers, &brain, &RebalanceSettings::default())
    };
    assert_eq!(look(&gpu).reason, "3 windows of each workload are needed at the shares in force");
    // 110 W each alone at 50 %: 190 W together are 30 W idle.
    (0..3).for_each(|minute| gpu.measure(minute, 1.0, 95.0));
    let decision = look(&gpu).decisions.remove(0);
    let known = gpu.look(10).decisions.remove(0);
    assert_eq!(decision.to, known.to);
    assert!((decision.evidence["expected_power_watts"] - known.evidence["expected_power_watts"]).abs() < 1e-2);
}

#[test]
fn a_partition_that_nobody_applies_is_given_up() {
    let mut gpu = Gpu::measured(&[50, 50], &[0.95, 0.05]);
    assert_eq!(gpu.look(0).decisions.len(), 1);
    assert_eq!(gpu.look(30).decisions.len(), 1);
    assert!(gpu.look(31).reason.contains("given up"));
    assert!(gpu.look(32).reason.starts_with("no change before"));
    assert_eq!(gpu.look(92).decisions.len(), 1, "after the hold it is tried again");
}

/// The rollback is not applied: it is requested again after the pause, since a failed change must not stay.
#[test]
fn a_way_back_that_was_refused_is_asked_for_again() {
    let mut gpu = Gpu::new(&[50, 50], &[0.95, 0.05]);
    let minute = gpu.until_it_is_taken_back();
    gpu.give_up(minute);
    assert!(gpu.look(minute + 1).reason.starts_with("no change before"));
    let outcome = gpu.look(minute + 200);
    assert!(outcome.decisions.iter().any(|decision| decision.action == ControllerAction::Revert), "{outcome:?}");
}

/// In states from before pauses belonged to a set of workloads, the wanted partition is kept.
#[test]
fn an_older_state_goes_on() {
    let mut gpu = Gpu::new(&[50, 50], &[0.95, 0.05]);
    gpu.until_it_is_taken_back();
    let mut older = serde_json::to_value(&gpu.state).unwrap();
    let state = older.as_object_mut().unwrap();
    let _: Option<serde_json::Value> = state.remove("rests").and(state.remove("retreat"));
    state.extend([("hold_until".to_owned(), serde_json::json!(null)), ("failures".to_owned(), serde_json::json!(1))]);
    let wanted = state["wanted"].as_object_mut().unwrap();
    let _: Option<serde_json::Value> = wanted.remove("before_rates").and(wanted.remove("half_way"));
    gpu.state = serde_json::from_value(older).unwrap();
    let outcome = gpu.look(30);
    assert_eq!(outcome.decisions[0].action, ControllerAction::Revert, "{outcome:?}");
}

/// It is unknown what shares give that sum to more than the GPU: they are left for equal ones, or for what is better than those.
#[test]
fn shares_of_more_than_the_gpu_are_left_whatever_that_gains() {
    for (exponents, expected) in [([0.5, 0.5], [50, 50]), ([0.95, 0.05], [90, 10])] {
        let mut gpu = Gpu::new(&[100, 100], &exponents);
        (0..3).for_each(|minute| gpu.measure(minute, 0.3, 60.0));
        for minute in 3..13 {
            gpu.minute(minute, 0.5, 60.0);
        }
        assert_eq!(gpu.shares(), expected);
    }
}

/// Equal shares are worth most here, but bounds forbid them: the best of the rest is taken.
#[test]
fn equal_shares_that_bounds_forbid_do_not_hide_what_is_next() {
    let mut gpu = Gpu::measured(&[90, 10], &[0.5, 0.5]);
    gpu.workloads[0].bounds = LayoutBounds { mps_thread_percentage_min: Some(60), ..LayoutBounds::default() };
    let outcome = gpu.look(1);
    assert_eq!(outcome.decisions.len(), 1, "{outcome:?}");
    assert_eq!(outcome.decisions[0].to.mps_thread_percentage, Some(60));
}

/// The way back got stuck between its two steps: the second one is asked for again, too.
#[test]
fn a_way_back_that_was_refused_half_way_is_gone_to_its_end() {
    let mut gpu = Gpu::new(&[50, 50], &[0.95, 0.05]);
    let mut minute = gpu.until_it_is_taken_back();
    let down = gpu.look(minute).decisions.remove(0);
    gpu.apply(&down);
    assert_eq!(gpu.look(minute + 1).decisions.len(), 1, "the raise");
    gpu.give_up(minute + 2);
    minute += 200;
    for minute in minute..minute + 3 {
        let decisions = gpu.look(minute).decisions;
        assert!(decisions.iter().all(|decision| decision.action == ControllerAction::Revert), "{decisions:?}");
        for decision in &decisions {
            gpu.apply(decision);
        }
    }
    assert_eq!(gpu.shares(), [50, 50]);
}

/// The reduction was made and the raise refused: who was reduced gets its share back.
#[test]
fn a_partition_that_was_given_up_half_way_is_taken_back() {
    let mut gpu = Gpu::measured(&[50, 50], &[0.95, 0.05]);
    let down = gpu.look(0).decisions.remove(0);
    gpu.apply(&down);
    assert_eq!((gpu.look(1).decisions.len(), gpu.shares()), (1, vec![50, 10]));
    gpu.give_up(2);
    assert!(gpu.look(3).reason.starts_with("no change before"));
    let back = gpu.look(100).decisions.remove(0);
    assert_eq!((back.action, back.to.mps_thread_percentage), (ControllerAction::Revert, Some(50)));
    assert!(back.reason.contains("came into force only in part"), "{}", back.reason);
    gpu.apply(&back);
    assert_eq!(gpu.look(101).reason, "the former partition is in force again");
}

/// Other shares were set from outside meanwhile: they are not rolled back.
#[test]
fn a_way_back_is_forgotten_where_somebody_else_changed_the_shares() {
    let mut gpu = Gpu::new(&[50, 50], &[0.95, 0.05]);
    let minute = gpu.until_it_is_taken_back();
    gpu.give_up(minute);
    for (workload, share) in gpu.workloads.iter_mut().zip([60, 20]) {
        workload.layout.mps_thread_percentage = Some(share);
        workload.generation += 1;
    }
    let outcome = gpu.look(minute + 200);
    assert!(outcome.decisions.iter().all(|decision| decision.action != ControllerAction::Revert), "{outcome:?}");
}

/// Failures and pauses belong to the set of workloads that shared the GPU: other sets are evaluated anew, without them.
#[test]
fn what_failed_with_some_workloads_shows_nothing_of_others() {
    let mut gpu = Gpu::new(&[50, 50], &[0.95, 0.05]);
    let minute = gpu.until_it_is_taken_back();
    for minute in minute..minute + 3 {
        gpu.minute(minute, 0.9, 60.0);
    }
    assert_eq!(gpu.shares(), [50, 50]);
    assert!(gpu.look(minute + 10).reason.starts_with("no change before"));
    // Another job of the same kind comes in place of the second one.
    let mut other = Gpu::measured(&[50, 50], &[0.95, 0.05]);
    other.workloads[1].workload = "n/x".into();
    other.profiles[1] = SoloProfile::new("n/x".into(), "board".into(), other.profiles[1].points().copied().collect()).unwrap();
    other.state = gpu.state.clone();
    let outcome = other.look(minute + 11);
    assert_eq!(outcome.decisions.len(), 1, "{outcome:?}");
    assert_eq!(outcome.decisions[0].to.mps_thread_percentage, Some(10), "the best, though it failed with others");
    // The first two are there again: for them it is as it was.
    gpu.state = other.state;
    assert!(gpu.look(minute + 12).reason.starts_with("no change before"), "{:?}", gpu.look(minute + 12));
    (minute + 290..minute + 293).for_each(|minute| gpu.measure(minute, 0.9, 60.0));
    let next = gpu.look(minute + 300);
    assert_eq!(next.decisions[0].to.mps_thread_percentage, Some(20), "not what failed: {next:?}");
}

/// No workload reaches its floor, before or after: rolling the partition back would help none.
#[test]
fn who_was_just_as_slow_before_does_not_take_a_partition_back() {
    let settings = || {
        let choice = ChoiceSettings { slowdown_max_ratio: Some(0.9), ..ChoiceSettings::default() };
        RebalanceSettings { choice, ..RebalanceSettings::default() }
    };
    let run = |before: f64, after: f64| {
        let mut gpu = Gpu::new(&[50, 50], &[0.95, 0.0]);
        gpu.settings = settings();
        (0..3).for_each(|minute| gpu.measure(minute, before, 60.0));
        let mut validations = Vec::new();
        for minute in 3..12 {
            let at_first = gpu.shares() == [50, 50];
            let watts = if at_first { 60.0 } else { 1.0 };
            validations.push(gpu.minute(minute, if at_first { before } else { after }, watts).validation);
        }
        validations
    };
    assert!(run(0.095, 0.095).contains(&ChangeValidation::Kept));
    assert!(run(0.5, 0.05).contains(&ChangeValidation::Failed));
}

/// Equal shares failed, and are still the best by what is predicted: the next best is taken.
#[test]
fn equal_shares_that_failed_do_not_hide_what_is_next() {
    let mut gpu = Gpu::new(&[90, 10], &[0.5, 0.5]);
    (0..3).for_each(|minute| gpu.measure(minute, 0.9, 60.0));
    let mut tried = Vec::new();
    for minute in 3..400 {
        let helps = gpu.shares() != [50, 50];
        gpu.minute(minute, if helps { 0.9 } else { 0.3 }, 60.0);
        tried.push(gpu.shares());
    }
    assert!(tried.contains(&vec![50, 50]), "{tried:?}");
    assert_ne!(gpu.shares(), [90, 10], "{:?}", gpu.look(1000));
}

proptest! {
    #![proptest_config(cases(150))]

    /// Checks that shares in force never sum to more than before or than 100 %, for any order of applied, late or lost changes;
    /// and if everything is applied in the end, the partition is reached.
    #[test]
    fn shares_in_force_never_exceed_the_gpu(
        start in prop::collection::vec(1_u32..5, 2..4),
        exponents in prop::collection::vec(0.0..1.0_f64, 4),
        applied in prop::collection::vec(any::<bool>(), 20),
    ) {
        let shares: Vec<u32> = start.iter().map(|tenth| tenth * 10).collect();
        let mut gpu = Gpu::new(&shares, &exponents[..shares.len()]);
        let most = shares.iter().sum::<u32>().max(100);
        let mut pending = Vec::new();
        for (minute, now) in applied.iter().enumerate() {
            let outcome = gpu.look(minute as u32);
            pending.extend(outcome.decisions);
            if *now && !pending.is_empty() {
                // The newest: an older one was made for another layout, or wants the same.
                let decision = pending.pop().unwrap();
                let fits = gpu.workloads.iter().any(|w| w.workload == decision.workload && Some(w.generation) == decision.generation);
                if fits {
                    gpu.apply(&decision);
                }
            }
            prop_assert!(gpu.shares().iter().sum::<u32>() <= most, "{:?}", gpu.shares());
        }
        // Long enough for a partition to be given up, for the hold after it, and for the next one.
        for minute in 100..300 {
            for decision in gpu.look(minute).decisions {
                gpu.apply(&decision);
                prop_assert!(gpu.shares().iter().sum::<u32>() <= most, "{:?}", gpu.shares());
            }
        }
        let outcome = gpu.look(1000);
        prop_assert!(outcome.decisions.is_empty(), "{outcome:?}");
    }
}
