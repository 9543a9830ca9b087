//! On a made-up job: blocks settle from the input side on, loss follows a learning curve, and frozen blocks save their part of a
//! step.

use eadt_schemas::v1::{
    ActuationOutcome, ChangeValidation, ControllerAction, Decision, Layout, LayoutBounds, Precision, UpdateMode,
};

use super::super::ControllerName;
use super::super::testing::ControllerBench;
use crate::workload::report::{Plasticity, TrainingReport, ValidationLoss};

const STEPS_A_WINDOW: f64 = 100.0;
const TOTAL: f64 = 10_000.0;

struct Job {
    bench: ControllerBench,
    steps: f64,
    layers: u32,
    frozen: u32,
    precision: &'static str,
    skips: f64,
    skip_ratio: f64,
    learning_rate: f64,
    /// Part of the saving that arrives.
    arrives: f64,
    /// Validation loss after so many steps.
    curve: fn(f64) -> f64,
    /// Loss above the curve.
    excess: f64,
    evaluates: bool,
    /// It evaluates every so many windows, and reports the newest evaluation in all.
    evaluates_every: u32,
    windows: u32,
    newest: Option<ValidationLoss>,
    live_knobs: Option<Vec<String>>,
    loss_scale: Option<f64>,
    /// J/sample in FP16 against BF16.
    fp16_energy: f64,
    noise: f64,
    /// Time of the job's first report, in seconds.
    since: f64,
    /// If it draws up to 390 W a GPU: throughput grows with power to this exponent.
    exponent: Option<f64>,
    /// Frozen blocks and J/sample of each window.
    measured: Vec<(u32, f64)>,
}

fn curve(steps: f64) -> f64 {
    1.8 + 9.0 / (1.0 + steps / 50.0).sqrt()
}

impl Job {
    fn new(name: ControllerName) -> Self {
        let mut bench = ControllerBench::new(name);
        bench.workload.bounds.frozen_prefix_layers_max = Some(8);
        bench.workload.bounds.precisions = Some(vec![Precision::Fp16, Precision::Bf16]);
        bench.workload.gpu_model = Some("NVIDIA A100-SXM4-40GB".into());
        Self {
            bench,
            steps: 0.0,
            layers: 12,
            frozen: 0,
            precision: "bf16",
            skips: 0.0,
            skip_ratio: 0.0,
            learning_rate: 1e-3,
            arrives: 1.0,
            curve,
            excess: 0.0,
            evaluates: true,
            evaluates_every: 1,
            windows: 0,
            newest: None,
            live_knobs: None,
            loss_scale: None,
            fp16_energy: 1.0,
            noise: 0.0,
            since: 1.0,
            exponent: None,
            measured: Vec::new(),
        }
    }

    /// Adds the next window. Returns its decision.
    fn step(&mut self) -> Decision {
        self.steps += STEPS_A_WINDOW;
        self.windows += 1;
        if self.windows.is_multiple_of(self.evaluates_every) {
            self.newest = Some(ValidationLoss { steps: self.steps, loss: (self.curve)(self.steps) * (1.0 + self.excess) });
        }
        self.skips += STEPS_A_WINDOW * if self.precision == "fp16" { self.skip_ratio } else { 0.0 };
        let done = self.steps / TOTAL;
        let end = self.bench.now.plus_seconds(60.0);
        // Block i is down to a tenth of its peak when the part (2 + i)/layers of the job is done.
        let block = |i: u32| 0.1_f64.powf(done * f64::from(self.layers) / f64::from(2 + i));
        self.bench.training = Some(TrainingReport {
            since: Some(eadt_schemas::EventTime::from_seconds(self.since)),
            steps_total: Some(self.steps),
            steps_remaining: Some(TOTAL - self.steps),
            precision: Some(self.precision.into()),
            frozen_prefix_layers: Some(self.frozen),
            overflow_skips_total: Some(self.skips),
            validation: self.newest.filter(|_| self.evaluates),
            learning_rate: Some(self.learning_rate),
            loss_scale: self.loss_scale,
            layers: Some(self.layers),
            plasticity: Some(Plasticity { time: end, blocks: (0..self.layers).map(|i| Some(block(i))).collect() }),
            live_knobs: self.live_knobs.clone(),
        });
        let saved = self.arrives * 2.0 / 3.0 * f64::from(self.frozen) / f64::from(self.layers);
        self.noise = -self.noise;
        let precision = if self.precision == "fp16" { self.fp16_energy } else { 1.0 };
        let (watts, efficiency) = match self.exponent {
            None => (300.0, 0.05),
            Some(exponent) => {
                let watts = self.bench.workload.layout.power_limit_watts.unwrap_or(400.0).min(390.0);
                (watts, 100.0 * (watts / 390.0).powf(exponent) / (3.0 * watts))
            }
        };
        let efficiency = efficiency / ((1.0 - saved) * precision * (1.0 + self.noise));
        self.measured.push((self.frozen, 1.0 / efficiency));
        let mut window = self.bench.window(watts, efficiency);
        window.steps = Some(STEPS_A_WINDOW);
        self.bench.decide(&window)
    }

    /// Adds at most `windows` windows until a decision changes something. Returns that decision.
    fn change(&mut self, windows: usize) -> Option<Decision> {
        (0..windows).map(|_| self.step()).find(|decision| decision.action != ControllerAction::Maintain)
    }

    fn last_of(&mut self, windows: usize) -> Decision {
        let mut last = self.step();
        for _ in 1..windows {
            assert_eq!(last.action, ControllerAction::Maintain, "{}", last.reason);
            last = self.step();
        }
        last
    }

    /// The job takes the change up.
    fn take_up(&mut self, decision: &Decision) {
        self.bench.apply(decision);
        self.bench.workload.ready_time = Some(self.bench.now);
        self.frozen = decision.to.frozen_prefix_layers.unwrap_or(0);
        self.precision = match decision.to.precision {
            Some(Precision::Fp16) => "fp16",
            Some(Precision::Bf16) => "bf16",
            _ => self.precision,
        };
    }

    fn freeze(&mut self) -> Decision {
        let change = self.change(60).expect("blocks are frozen");
        assert_eq!(change.action, ControllerAction::FreezeLayers, "{}", change.reason);
        self.take_up(&change);
        change
    }

    /// Adds windows until a change is assessed. Returns the decision.
    fn verdict(&mut self) -> Decision {
        for _ in 0..10 {
            let decision = self.step();
            if decision.validation != ChangeValidation::Pending {
                return decision;
            }
            assert_eq!(decision.action, ControllerAction::Maintain, "{}", decision.reason);
        }
        panic!("it was never judged");
    }
}

fn layers() -> Job {
    Job::new(ControllerName::Layers)
}

#[test]
fn blocks_that_hardly_change_are_frozen_after_a_quarter_of_the_steps_and_kept_with_the_control_beside_it() {
    let mut job = layers();
    job.bench.settings.checkpoint_seconds = 5.0;
    let change = job.change(60).unwrap();
    assert!(job.steps >= 2_500.0 && change.to.frozen_prefix_layers == Some(1), "{} at {}", change.reason, job.steps);
    assert!(!change.restarts && change.from.frozen_prefix_layers.is_none());
    let evidence = |name: &str| change.evidence[name];
    assert!((evidence("expected_saving_ratio") - 2.0 / 3.0 / 12.0).abs() < 1e-9);
    assert!(evidence("control_fewer_steps") > 300.0 && evidence("control_validation_loss_ratio") > 0.001);
    assert!(evidence("expected_saving_joules") > 5.0 * evidence("checkpoint_joules"));
    job.take_up(&change);
    let verdict = job.verdict();
    assert_eq!(
        (verdict.validation, verdict.concerns.as_deref()),
        (ChangeValidation::Kept, Some(change.id.as_str())),
        "{}",
        verdict.reason
    );
    assert!(verdict.reason.contains("from its trend; training") && verdict.reason.contains("steps fewer"), "{}", verdict.reason);
    assert!((verdict.evidence["gain_ratio"] - 0.0556).abs() < 0.001);
    // The others follow, up to half of the layers.
    while job.frozen < 6 {
        let before = job.frozen;
        job.freeze();
        assert!(job.frozen > before);
        assert_eq!(job.verdict().validation, ChangeValidation::Kept);
    }
    let end = job.step();
    assert!(end.reason.contains("6 of 12 layers are frozen, and at most 6 may be"), "{}", end.reason);
}

#[test]
fn what_nobody_can_guard_or_bounds_or_reports_is_not_frozen() {
    let reason = |change: &dyn Fn(&mut Job)| {
        let mut job = layers();
        change(&mut job);
        let last = job.last_of(40);
        assert_eq!(last.action, ControllerAction::Maintain);
        last.reason
    };
    let contains = |change: &dyn Fn(&mut Job), words: &str| {
        let text = reason(change);
        assert!(text.contains(words), "{text}");
    };
    contains(&|job| job.bench.workload.bounds = LayoutBounds::default(), "the policy sets no bounds.maxFrozenPrefixLayers");
    contains(&|job| job.evaluates = false, "quality cannot be guarded: 0 of the 5 evaluations");
    contains(&|job| job.live_knobs = Some(vec!["checkpoint_now".into()]), "does not freeze layers while it runs");
    contains(&|job| job.bench.settings.freeze_start_ratio = 0.9, "nothing is frozen before 90 %");
    let large = |job: &mut Job| {
        job.layers = 48;
        job.bench.workload.bounds.frozen_prefix_layers_max = Some(1);
    };
    contains(&large, "of the energy that is left, less than 3 %");
    contains(&|job| job.bench.settings.checkpoint_seconds = 1e4, "less than 5 checkpoints");
    contains(&|job| job.bench.workload.mode = UpdateMode::Observe, "only observed");
    contains(&|job| job.bench.workload.paused = true, "the workload is paused");
}

#[test]
fn nothing_is_frozen_while_the_learning_rate_rises() {
    let mut job = layers();
    for _ in 0..40 {
        job.learning_rate += 1e-5;
        let decision = job.step();
        assert_eq!(decision.action, ControllerAction::Maintain, "{}", decision.reason);
    }
    assert_eq!(job.step().action, ControllerAction::FreezeLayers);
}

#[test]
fn a_freeze_of_which_less_than_half_arrives_is_taken_back() {
    let mut job = layers();
    job.arrives = 0.4;
    let change = job.freeze();
    let back = job.verdict();
    assert_eq!((back.action, back.validation), (ControllerAction::Revert, ChangeValidation::Failed), "{}", back.reason);
    assert_eq!((back.to.frozen_prefix_layers, back.concerns.as_deref()), (None, Some(change.id.as_str())));
    assert!(back.reason.contains("less than half of it was measured"), "{}", back.reason);
    // Refused, as it came too soon after another change: it is asked for again.
    job.bench.report(&back, ActuationOutcome::Refused, "too soon");
    assert!(job.step().reason.contains("too soon"));
    let back = job.step();
    assert_eq!((back.action, back.to.frozen_prefix_layers), (ControllerAction::Revert, None), "{}", back.reason);
    job.take_up(&back);
    let after = job.last_of(30);
    assert!(after.action == ControllerAction::Maintain && after.reason.contains("did not help"), "{}", after.reason);
}

#[test]
fn loss_above_its_trend_takes_the_last_freeze_back_and_twice_as_much_ends_freezing() {
    for (excess, stops) in [(0.004, None), (0.007, Some(false)), (0.02, Some(true))] {
        let mut job = layers();
        job.freeze();
        assert_eq!(job.verdict().validation, ChangeValidation::Kept);
        job.freeze();
        assert_eq!(job.verdict().validation, ChangeValidation::Kept);
        let frozen = job.frozen;
        job.excess = excess;
        let next = job.step();
        let Some(stops) = stops else {
            assert_eq!(next.action, ControllerAction::Maintain, "{}", next.reason);
            continue;
        };
        assert_eq!((next.action, next.validation), (ControllerAction::Revert, ChangeValidation::Failed), "{}", next.reason);
        assert!(next.reason.contains("above its trend at step"), "{}", next.reason);
        let to = next.to.frozen_prefix_layers;
        assert_eq!(to, if stops { None } else { Some(frozen - 1) }, "{}", next.reason);
        job.excess = 0.0;
        job.take_up(&next);
        // A day later all but a stop is forgotten.
        job.bench.now = job.bench.now.plus_seconds(90_000.0);
        job.step();
        let later = job.step();
        assert_eq!(later.reason.contains("in this run any more"), stops, "{}", later.reason);
    }
}

#[test]
fn frozen_blocks_train_again_when_the_learning_rate_doubles_or_falls_tenfold() {
    for rate in [2e-3, 1e-4] {
        let mut job = layers();
        job.bench.workload.bounds.frozen_prefix_layers_max = Some(1);
        job.freeze();
        assert_eq!(job.verdict().validation, ChangeValidation::Kept);
        job.learning_rate = rate * 0.99 + if rate < 1e-3 { 1e-5 } else { 0.0 };
        assert_ne!(job.step().action, ControllerAction::Revert);
        job.learning_rate = rate;
        let mut back = job.step();
        if back.action != ControllerAction::Revert {
            back = job.step();
        }
        assert_eq!((back.action, back.to.frozen_prefix_layers), (ControllerAction::Revert, None), "{}", back.reason);
        assert!(back.reason.contains("the learning rate went from"), "{}", back.reason);
    }
}

#[test]
fn a_refusal_of_the_job_ends_the_wait_and_it_is_not_asked_again() {
    let mut job = layers();
    let change = job.change(60).unwrap();
    let before = job.bench.workload.layout.clone();
    job.bench.apply(&change);
    job.bench.workload.ready_time = None;
    assert_eq!(job.step().validation, ChangeValidation::Pending);
    // The actuator takes it back as soon as the job refuses.
    job.bench.set_layout(before);
    job.bench.workload.decision_id = None;
    job.bench.workload.ready_time = Some(job.bench.now);
    job.bench.report(&change, ActuationOutcome::RolledBack, "the job refused: reentrant gradient checkpointing");
    let decision = job.step();
    assert_eq!((decision.action, decision.validation), (ControllerAction::Maintain, ChangeValidation::Failed));
    assert!(decision.reason.contains("reentrant gradient checkpointing") && decision.hold_until.is_some(), "{}", decision.reason);
    let later = job.last_of(20);
    assert!(later.action == ControllerAction::Maintain && later.reason.contains("reentrant"), "{}", later.reason);
}

#[test]
fn a_recommendation_waits_for_a_person() {
    let mut job = layers();
    job.bench.workload.mode = UpdateMode::Recommend;
    let change = job.change(60).unwrap();
    job.bench.report(&change, ActuationOutcome::Recommended, "");
    let waits = job.step();
    assert!(waits.action == ControllerAction::Maintain && waits.reason.contains("has not been applied"), "{}", waits.reason);
}

#[test]
fn another_job_under_the_same_name_is_learned_anew() {
    let mut job = layers();
    job.freeze();
    assert_eq!(job.verdict().validation, ChangeValidation::Kept);
    job.steps = 0.0;
    let mut report = job.bench.training.clone().unwrap();
    report.since = Some(job.bench.now);
    let training = job.bench.state.training.as_mut().unwrap();
    assert_eq!(training.layers.freeze_count(), 1);
    training.since = report.since;
    job.step();
    assert_eq!(job.bench.state.training.as_ref().unwrap().layers.freeze_count(), 0);
}

fn precision() -> Job {
    Job::new(ControllerName::Precision)
}

#[test]
fn fp32_is_left_at_the_next_start_only() {
    for (model, words) in
        [("NVIDIA A100-SXM4-40GB", "bf16 is recommended for the next start"), ("Tesla V100-SXM2-16GB", "fp16 is recommended")]
    {
        let mut job = precision();
        job.precision = "fp32";
        job.bench.workload.gpu_model = Some(model.into());
        let last = job.last_of(10);
        assert!(last.action == ControllerAction::Maintain && last.reason.contains(words), "{}", last.reason);
    }
    let mut job = precision();
    job.bench.workload.gpu_model = Some("NVIDIA H100 80GB HBM3".into());
    let last = job.last_of(5);
    assert!(
        last.reason.contains("no measurement shows") && last.reason.contains("fp8 is recommended for a trial"),
        "{}",
        last.reason
    );
}

#[test]
fn fp16_that_overflows_becomes_bf16_for_stability() {
    let mut job = precision();
    (job.precision, job.skip_ratio) = ("fp16", 0.009);
    assert!(job.last_of(20).reason.contains("not above 1 %"));
    job.skip_ratio = 0.05;
    let change = job.change(20).unwrap();
    assert_eq!((change.action, change.to.precision), (ControllerAction::SetPrecision, Some(Precision::Bf16)));
    assert!(change.reason.contains("for stability and not for energy") && !change.restarts, "{}", change.reason);
    job.take_up(&change);
    let verdict = job.verdict();
    assert_eq!(verdict.validation, ChangeValidation::Kept, "{}", verdict.reason);
    assert!(verdict.reason.contains("no saving was expected"), "{}", verdict.reason);

    let stays = |change: &dyn Fn(&mut Job), words: &str| {
        let mut job = precision();
        (job.precision, job.skip_ratio) = ("fp16", 0.05);
        change(&mut job);
        let last = job.last_of(20);
        assert!(last.action == ControllerAction::Maintain && last.reason.contains(words), "{}", last.reason);
    };
    stays(&|job| job.bench.workload.gpu_model = Some("Tesla T4".into()), "compute no bf16");
    stays(&|job| job.bench.workload.bounds.precisions = Some(vec![Precision::Fp16]), "not among bounds.precisions");
    stays(&|job| job.live_knobs = Some(vec![]), "recommended for the next start");
    stays(&|job| job.bench.workload.bounds.precisions = None, "the policy sets no bounds.precisions");
}

#[test]
fn bf16_becomes_fp16_only_by_a_measured_gain_outside_noise_and_with_a_scaler() {
    let trial = |fp16_energy: f64, noise: f64| {
        let mut job = precision();
        (job.fp16_energy, job.noise, job.loss_scale) = (fp16_energy, noise, Some(65_536.0));
        job.bench.settings.precision_trial_windows = 6;
        let change = job.change(20).unwrap();
        assert_eq!(change.to.precision, Some(Precision::Fp16));
        job.take_up(&change);
        let verdict = job.verdict();
        (verdict.action, verdict.validation, verdict.to.precision, verdict.reason)
    };
    let (action, validation, _, reason) = trial(0.97, 0.002);
    assert_eq!((action, validation), (ControllerAction::Maintain, ChangeValidation::Kept), "{reason}");
    for (energy, noise) in [(0.99, 0.002), (0.97, 0.05)] {
        let (action, validation, to, reason) = trial(energy, noise);
        assert_eq!((action, validation, to), (ControllerAction::Revert, ChangeValidation::Failed, None), "{reason}");
        assert!(reason.contains("2.0 % outside noise are required"), "{reason}");
    }
    let stays = |change: &dyn Fn(&mut Job), words: &str| {
        let mut job = precision();
        job.bench.settings.precision_trial_windows = 6;
        job.loss_scale = Some(65_536.0);
        change(&mut job);
        let last = job.last_of(20);
        assert!(last.action == ControllerAction::Maintain && last.reason.contains(words), "{}", last.reason);
    };
    stays(&|job| job.loss_scale = None, "no gradient scaler");
    stays(&|job| job.bench.settings.precision_trial_windows = 0, "no measurement shows");
}

#[test]
fn hybrid_turns_them_only_where_a_policy_bounds_them_and_one_change_at_a_time() {
    let run = |bounds: bool| {
        let mut job = Job::new(ControllerName::Hybrid);
        job.bench.settings.checkpoint_seconds = 5.0;
        if !bounds {
            job.bench.workload.bounds.frozen_prefix_layers_max = None;
            job.bench.workload.bounds.precisions = None;
        }
        let mut decisions = Vec::new();
        while job.steps < TOTAL - STEPS_A_WINDOW {
            let decision = job.step();
            if decision.action != ControllerAction::Maintain {
                let ours = decision.to.frozen_prefix_layers != decision.from.frozen_prefix_layers;
                let others = Layout { frozen_prefix_layers: decision.from.frozen_prefix_layers, ..decision.to.clone() };
                assert!(!ours || others == decision.from, "one knob at a time");
                job.take_up(&decision);
            }
            decisions.push(decision);
        }
        (job, decisions)
    };
    let (job, decisions) = run(true);
    assert!(job.frozen >= 1, "{}", job.frozen);
    assert!(decisions.iter().all(|decision| decision.controller == "hybrid"));
    let of = |action: ControllerAction| decisions.iter().filter(|decision| decision.action == action).count();
    assert!(
        of(ControllerAction::FreezeLayers) >= 2 && of(ControllerAction::SetPowerLimit) >= 2,
        "{} and {}",
        of(ControllerAction::FreezeLayers),
        of(ControllerAction::SetPowerLimit)
    );
    let outside = decisions.iter().filter(|decision| decision.reason.contains("changed from outside")).count();
    assert_eq!(outside, 0, "its own changes are not taken for somebody else's");
    let (job, plain) = run(false);
    assert!(job.frozen == 0 && job.bench.state.training.is_none());
    assert!(plain.iter().all(|decision| !decision.reason.contains("freez")));
}

#[test]
fn nothing_more_is_frozen_before_what_was_frozen_last_is_evaluated() {
    let mut job = layers();
    job.bench.settings.checkpoint_seconds = 5.0;
    job.freeze();
    job.evaluates = false;
    let verdict = job.verdict();
    assert_eq!(verdict.validation, ChangeValidation::Kept);
    assert!(verdict.reason.contains("was not evaluated since"), "{}", verdict.reason);
    let last = job.last_of(30);
    assert!(last.reason.contains("has not evaluated its validation loss since"), "{}", last.reason);
    job.evaluates = true;
    job.freeze();
}

#[test]
fn another_job_begins_with_nothing_frozen_by_us() {
    let mut job = layers();
    job.freeze();
    assert_eq!(job.verdict().validation, ChangeValidation::Kept);
    (job.since, job.steps) = (1e6, 0.0);
    let back = job.step();
    assert_eq!((back.action, back.to.frozen_prefix_layers), (ControllerAction::Revert, None), "{}", back.reason);
    assert!(back.reason.contains("another job began"), "{}", back.reason);
    job.take_up(&back);
    let last = job.last_of(10);
    assert!(last.reason.contains("nothing is frozen before 25 %"), "{}", last.reason);
}

#[test]
fn while_loss_recovers_a_small_rise_takes_no_more_back() {
    let mut job = layers();
    job.bench.settings.checkpoint_seconds = 5.0;
    for _ in 0..2 {
        job.freeze();
        assert_eq!(job.verdict().validation, ChangeValidation::Kept);
    }
    job.excess = 0.007;
    let back = job.change(3).expect("the last freeze is taken back");
    assert_eq!(back.action, ControllerAction::Revert, "{}", back.reason);
    job.take_up(&back);
    assert!(job.change(2).is_none(), "loss has not had the time to come down");
    job.excess = 0.02;
    let all = job.change(2).expect("above the second limit it does not wait");
    assert_eq!((all.action, all.to.frozen_prefix_layers), (ControllerAction::Revert, None), "{}", all.reason);
}

#[test]
fn an_unfreeze_that_the_job_refuses_is_asked_for_again_and_the_guard_stays_whole() {
    let mut job = layers();
    job.freeze();
    assert_eq!(job.verdict().validation, ChangeValidation::Kept);
    job.excess = 0.02;
    let back = job.step();
    assert_eq!((back.action, back.to.frozen_prefix_layers), (ControllerAction::Revert, None), "{}", back.reason);
    let frozen = job.bench.workload.layout.clone();
    job.bench.apply(&back);
    job.bench.workload.ready_time = None;
    let waits = job.step();
    assert!(waits.action == ControllerAction::Maintain && waits.reason.contains("the revert was requested"), "{}", waits.reason);
    job.bench.set_layout(frozen);
    job.bench.workload.decision_id = None;
    job.bench.workload.ready_time = Some(job.bench.now);
    job.bench.report(&back, ActuationOutcome::RolledBack, "the job did not take it up");
    let decision = job.step();
    assert!(decision.validation == ChangeValidation::Failed && decision.reason.contains("still in force"), "{}", decision.reason);
    let until = decision.hold_until.unwrap();
    let again = loop {
        let next = job.step();
        if next.action != ControllerAction::Maintain {
            break next;
        }
        assert!(job.bench.now < until, "it was to be asked again by {until}: {}", next.reason);
    };
    assert_eq!((again.action, again.to.frozen_prefix_layers), (ControllerAction::Revert, None), "{}", again.reason);
    assert!(again.reason.contains("above its trend"), "{}", again.reason);
    job.take_up(&again);
    for _ in 0..30 {
        assert_eq!(job.step().action, ControllerAction::Maintain, "taken back, and asked for no more");
    }
}

#[test]
fn the_next_trend_is_of_a_job_in_which_all_blocks_train() {
    let mut job = layers();
    job.evaluates_every = 3;
    job.bench.workload.bounds.frozen_prefix_layers_max = Some(1);
    job.bench.settings.checkpoint_seconds = 5.0;
    job.freeze();
    assert_eq!(job.verdict().validation, ChangeValidation::Kept);
    // A rise that the guard lets pass: a trend of these would be too high.
    job.excess = 0.003;
    job.last_of(10);
    job.learning_rate *= 2.5;
    let mut back = job.step();
    if back.action != ControllerAction::Revert {
        back = job.step();
    }
    assert!(back.reason.contains("the learning rate went from"), "{}", back.reason);
    job.take_up(&back);
    job.excess = 0.0;
    let again = job.freeze();
    assert_eq!(again.to.frozen_prefix_layers, Some(1));
    assert_eq!(job.verdict().validation, ChangeValidation::Kept);
    // More than half a percent above what the job would have without freezing.
    job.excess = 0.006;
    let guarded = job.change(7).expect("the guard takes it back");
    assert_eq!(guarded.action, ControllerAction::Revert, "{}", guarded.reason);
}

/// A job whose loss falls slowly at first: `steps` of the power law are a fifth of all steps.
fn late_curve(steps: f64) -> f64 {
    2.0 + 3.0 * (1.0 + steps / 2_000.0).powf(-0.8)
}

/// A learning rate that is halved after 2,000 steps: loss falls at once, and then along another curve.
fn curve_with_step(steps: f64) -> f64 {
    if steps <= 2_000.0 { late_curve(steps) } else { 1.7 + 2.0 * (1.0 + (steps - 1_500.0) / 3_000.0).powf(-0.5) }
}

#[test]
fn a_freeze_that_changes_no_loss_is_never_taken_back_and_its_control_is_right() {
    for (curve, halves_at) in [(late_curve as fn(f64) -> f64, f64::INFINITY), (curve_with_step, 2_000.0)] {
        let mut job = layers();
        job.curve = curve;
        job.bench.workload.bounds.frozen_prefix_layers_max = Some(1);
        let mut frozen = None;
        while job.steps < TOTAL - STEPS_A_WINDOW {
            job.learning_rate = if job.steps >= halves_at { 5e-4 } else { 1e-3 };
            let decision = job.step();
            assert_ne!(decision.action, ControllerAction::Revert, "{}", decision.reason);
            if decision.action == ControllerAction::FreezeLayers {
                job.take_up(&decision);
                frozen = Some(decision);
            }
        }
        let frozen = frozen.expect("a block is frozen");
        let right = curve(TOTAL - frozen.evidence["control_fewer_steps"]) / curve(TOTAL) - 1.0;
        let found =
            ["lowest_ratio", "ratio", "highest_ratio"].map(|part| frozen.evidence[&format!("control_validation_loss_{part}")]);
        assert!((found[1] / right - 1.0).abs() < 0.05, "{found:?} {right}: {}", frozen.reason);
        assert!(found[0] <= found[1] && found[1] <= found[2], "{found:?}");
    }
}

#[test]
fn a_cap_is_compared_with_windows_of_as_many_frozen_blocks_only() {
    let mut job = Job::new(ControllerName::Hybrid);
    job.exponent = Some(0.4);
    job.bench.settings.checkpoint_seconds = 5.0;
    job.bench.settings.hybrid_restarts_per_day_max = 0;
    job.bench.workload.bounds.frozen_prefix_layers_max = Some(1);
    let mut verdicts = 0;
    while job.steps < 7_000.0 {
        let decision = job.step();
        let is_near = |value: f64, other: f64| (value / other - 1.0).abs() < 1e-3;
        if decision.reason.contains("the last change took") {
            for name in ["before_joules_per_sample", "after_joules_per_sample"] {
                let value = decision.evidence[name];
                let found = job.measured.iter().any(|(frozen, joules)| *frozen == job.frozen && is_near(value, *joules));
                assert!(found, "{name} {value} with {} frozen blocks: {}", job.frozen, decision.reason);
            }
            verdicts += u32::from(job.frozen > 0);
        }
        if let Some(reference) = decision.evidence.get("reference_samples_per_second") {
            let saved = 2.0 / 3.0 * f64::from(job.frozen) / f64::from(job.layers);
            assert!(is_near(*reference, 100.0 / (1.0 - saved)), "{reference} with {} frozen blocks", job.frozen);
        }
        if decision.action != ControllerAction::Maintain {
            job.take_up(&decision);
        }
    }
    assert!(job.frozen == 1 && verdicts > 0, "{} {verdicts}", job.frozen);
    // A revert leads back to what was measured before.
    job.excess = 0.02;
    let back = job.change(5).expect("the guard takes it back");
    assert_eq!((back.action, back.to.frozen_prefix_layers), (ControllerAction::Revert, None), "{}", back.reason);
    job.excess = 0.0;
    job.take_up(&back);
    let found = (0..10).map(|_| job.step()).find_map(|decision| decision.evidence.get("phase").copied());
    assert_eq!(found, Some(1.0));
}

#[test]
fn a_freeze_that_the_job_takes_back_is_reverted_and_none_of_its_windows_counts() {
    let mut job = layers();
    job.bench.settings.hold_seconds = 300.0;
    let change = job.freeze();
    assert_eq!(job.verdict().validation, ChangeValidation::Kept);
    let difference = format!("the job reports 0 frozen layers, and {} were requested", job.frozen);
    job.frozen = 0;
    let back = loop {
        let decision = job.step();
        if decision.action != ControllerAction::Maintain {
            break decision;
        }
        assert!(decision.reason.contains(&difference), "{}", decision.reason);
    };
    assert_eq!((back.action, back.validation), (ControllerAction::Revert, ChangeValidation::Failed), "{}", back.reason);
    assert_eq!((back.to.frozen_prefix_layers, back.concerns.as_deref()), (None, Some(change.id.as_str())));
    assert!(back.reason.contains(&difference) && back.reason.contains("for 300 s"), "{}", back.reason);
    job.take_up(&back);
    let last = job.last_of(20);
    assert!(last.action == ControllerAction::Maintain && last.reason.contains("no change is requested"), "{}", last.reason);
}

#[test]
fn while_the_request_is_withdrawn_no_window_counts_and_nothing_is_reverted() {
    for pauses in [false, true] {
        let mut job = layers();
        job.bench.settings.hold_seconds = 300.0;
        job.bench.workload.bounds.frozen_prefix_layers_max = Some(1);
        job.freeze();
        assert_eq!(job.verdict().validation, ChangeValidation::Kept);
        let windows = |job: &Job| job.bench.state.training.as_ref().unwrap().recent.windows.len();
        assert!(windows(&job) > 0);
        job.frozen = 0;
        (job.bench.workload.paused, job.bench.workload.mode) =
            (pauses, if pauses { UpdateMode::Enforce } else { UpdateMode::Observe });
        assert_eq!((job.last_of(20).action, windows(&job)), (ControllerAction::Maintain, 0));
        (job.bench.workload.paused, job.bench.workload.mode) = (false, UpdateMode::Enforce);
        // It takes the request up again at its next checkpoint.
        assert_eq!((job.last_of(3).action, windows(&job)), (ControllerAction::Maintain, 0));
        job.frozen = 1;
        assert_eq!((job.last_of(5).action, windows(&job)), (ControllerAction::Maintain, 3), "the first one warms up");
    }
}

#[test]
fn settings_that_a_job_was_not_asked_for_by_a_change_do_not_keep_its_windows_from_counting() {
    let mut job = layers();
    // The layout is the operator's; the job names another one from the start.
    job.bench.workload.layout.frozen_prefix_layers = Some(2);
    job.bench.workload.layout.precision = Some(Precision::Bf16);
    job.frozen = 0;
    job.last_of(10);
    assert!(!job.bench.state.training.as_ref().unwrap().recent.windows.is_empty());
}

#[test]
fn a_kept_freeze_that_is_rolled_back_later_has_failed() {
    for reported in [true, false] {
        let mut job = layers();
        let change = job.freeze();
        assert_eq!(job.verdict().validation, ChangeValidation::Kept);
        job.frozen = 0;
        job.bench.set_layout(change.from.clone());
        job.bench.workload.decision_id = None;
        if reported {
            job.bench.report(&change, ActuationOutcome::RolledBack, "taken back by the job: frozen weights moved");
        }
        let decision = job.step();
        assert_eq!(
            (decision.validation, decision.concerns.as_deref()),
            (ChangeValidation::Failed, Some(change.id.as_str())),
            "{}",
            decision.reason
        );
        assert!(decision.reason.contains("taken back"), "{}", decision.reason);
        assert_eq!(job.bench.state.training.as_ref().unwrap().layers.freeze_count(), 0);
        let last = job.last_of(20);
        assert!(last.action == ControllerAction::Maintain && last.reason.contains("taken back"), "{}", last.reason);
    }
}

#[test]
fn a_verdict_has_the_loss_also_if_the_trend_is_fitted_anew_in_its_window() {
    let mut first = layers();
    first.freeze();
    let mut job = layers();
    job.bench.settings.validation_windows = (0.5 * first.steps / STEPS_A_WINDOW).ceil() as u32 - 1;
    job.freeze();
    assert_eq!(job.steps, first.steps);
    let mut verdict = job.step();
    while verdict.validation == ChangeValidation::Pending {
        verdict = job.step();
    }
    assert!(verdict.validation == ChangeValidation::Kept && job.steps >= 1.5 * first.steps, "{}", verdict.reason);
    assert!(job.steps - STEPS_A_WINDOW < 1.5 * first.steps, "the trend holds up to the window before");
    assert!(verdict.reason.contains("validation loss is") && verdict.reason.contains("from its trend"), "{}", verdict.reason);
    assert!(verdict.evidence["validation_loss_over_trend_ratio"].abs() < 0.002);
}
