//! The saving against the starting layout, with its interval: true while the work of the job changes.

use eadt_report::{
    EnergyReport, RenderFormat, ReportBreakdown, ReportSettings, ReportTotals, Reporter, SavingSummary, WindowRow,
    WorkloadReport, report,
};
use eadt_schemas::EventTime;
use eadt_schemas::v1::{Actuation, ActuationOutcome, ChangeValidation, ControllerAction, Decision, EfficiencyWindow, Layout};
use eadt_testing::cases;
use proptest::prelude::*;

const NAME: &str = "eadt/llm-training";
/// Windows of a trial that is kept: restart, warm-up, three that validate.
const TRIAL: i64 = 5;

fn at(seconds: i64) -> EventTime {
    EventTime::from_micros(1_700_000_000_000_000 + seconds * 1_000_000)
}

/// A run in the making, window by window of a minute.
#[derive(Debug, Default, Clone)]
struct Run {
    windows: Vec<EfficiencyWindow>,
    decisions: Vec<Decision>,
    actuations: Vec<Actuation>,
    minute: i64,
}

impl Run {
    fn window(&mut self, joules: f64, samples: f64) -> &mut EfficiencyWindow {
        let minute = self.minute;
        self.minute += 1;
        self.windows.push(EfficiencyWindow {
            id: format!("{NAME}/{minute}"),
            workload: NAME.to_owned(),
            window_start: at(60 * minute),
            window_end: at(60 * self.minute),
            energy_joules: Some(joules),
            energy_coverage_ratio: 1.0,
            run_seconds: 60.0,
            run_energy_joules: Some(joules),
            run_coverage_ratio: 1.0,
            samples: Some(samples),
            progress_coverage_ratio: 1.0,
            ..EfficiencyWindow::default()
        });
        self.windows.last_mut().expect("just added")
    }

    fn steady(&mut self, windows: i64, joules_per_sample: f64) {
        for _ in 0..windows {
            self.window(100.0 * joules_per_sample, 100.0);
        }
    }

    fn decide(&mut self, action: ControllerAction, concerns: Option<(&str, ChangeValidation)>) -> &mut Decision {
        self.decisions.push(Decision {
            id: format!("d{}-{action:?}", self.minute),
            workload: NAME.to_owned(),
            time: at(60 * self.minute),
            action,
            concerns: concerns.map(|(id, _)| id.to_owned()),
            validation: concerns.map_or(ChangeValidation::None, |(_, validation)| validation),
            ..Decision::default()
        });
        self.decisions.last_mut().expect("just added")
    }

    /// The change is applied within the next window.
    fn apply(&mut self, id: &str) {
        for (outcome, seconds) in [(ActuationOutcome::Applied, 3), (ActuationOutcome::Ready, 40)] {
            self.actuations.push(Actuation {
                id: format!("{id}/{outcome:?}"),
                decision_id: id.to_owned(),
                workload: NAME.to_owned(),
                time: at(60 * self.minute + seconds),
                outcome,
                ..Actuation::default()
            });
        }
    }

    /// Energy without progress.
    fn restart(&mut self, joules: f64) {
        let window = self.window(joules, 0.0);
        (window.restarted, window.samples, window.progress_coverage_ratio) = (true, None, 0.1);
    }

    /// Returns a change and its windows; gives the decision's id.
    fn try_change(&mut self, joules_per_sample: f64, restart_joules: f64) -> String {
        let id = self.decide(ControllerAction::Decrease, None).id.clone();
        self.apply(&id);
        self.restart(restart_joules);
        for _ in 1..TRIAL {
            self.decide(ControllerAction::Maintain, Some((&id, ChangeValidation::Pending)));
            self.steady(1, joules_per_sample);
        }
        id
    }

    fn keep(&mut self, joules_per_sample: f64, restart_joules: f64) {
        let id = self.try_change(joules_per_sample, restart_joules);
        self.decide(ControllerAction::Maintain, Some((&id, ChangeValidation::Kept)));
    }

    /// A change that fails and is taken back; the last window is the first good one after that.
    fn fail(&mut self, joules_per_sample: f64, before: f64, restart_joules: f64) {
        let id = self.try_change(joules_per_sample, restart_joules);
        let revert = self.decide(ControllerAction::Revert, Some((&id, ChangeValidation::Failed))).id.clone();
        self.apply(&revert);
        self.restart(restart_joules);
        self.steady(1, before);
    }

    fn report(&self) -> WorkloadReport {
        report(&self.windows, &self.decisions, &self.actuations, &ReportSettings::default()).workloads.remove(0)
    }

    /// The windows from this one on ran so.
    fn set(&mut self, from: usize, layout: &Layout) {
        for window in &mut self.windows[from..] {
            window.layout = Some(layout.clone());
        }
    }

    /// Returns what everything after this many windows saved against a fixed figure: the rule that is wrong once the work
    /// changes.
    fn plain(&self, from: usize, baseline: f64) -> (f64, f64) {
        let after = || self.windows[from..].iter();
        let expected = baseline * after().filter_map(|window| window.samples).sum::<f64>();
        let saving = expected - after().filter_map(|window| window.run_energy_joules).sum::<f64>();
        (saving, saving / expected)
    }
}

fn report_by_window(run: &Run) -> Vec<WindowRow> {
    let settings = ReportSettings { by: Some(ReportBreakdown::Window), ..ReportSettings::default() };
    report(&run.windows, &run.decisions, &run.actuations, &settings).workloads.remove(0).by_window.unwrap()
}

fn near(got: Option<f64>, expected: f64) {
    let got = got.expect("known");
    assert!((got - expected).abs() <= 1e-9 * expected.abs().max(1.0), "{got} instead of {expected}");
}

#[test]
fn a_kept_change_is_compared_with_the_starting_layout_and_its_restart_costs() {
    let mut run = Run::default();
    run.steady(6, 10.0);
    run.keep(8.0, 500.0);
    run.steady(40, 8.0);
    let it = run.report();
    // 44 windows of 100 samples at 8 instead of 10 J, and a minute without any.
    near(it.saving_joules, 44.0 * 200.0 - 500.0);
    near(it.saving_ratio, (44.0 * 200.0 - 500.0) / (50.0 * 1000.0));
    near(it.baseline_joules_per_sample, 10.0);
    near(it.throughput_kept_ratio, 50.0 / 51.0);
    near(it.compared_energy_ratio, 1.0);
    let (low, high) = (it.saving_ratio_low.unwrap(), it.saving_ratio_high.unwrap());
    let ratio = it.saving_ratio.unwrap();
    assert!(low < ratio && ratio < high && (high - low) < 0.08, "{low} {ratio} {high}");
}

#[test]
fn a_failed_try_costs_energy_and_nothing_after_it_counts() {
    let mut run = Run::default();
    run.steady(6, 10.0);
    run.fail(12.0, 10.0, 500.0);
    // Two restarts of 500 J and four windows of 100 samples at 12 instead of 10 J/sample.
    near(run.report().saving_joules, -(2.0 * 500.0 + 4.0 * 200.0));
    run.steady(50, 10.0);
    near(run.report().saving_joules, -1800.0);
    near(run.report().throughput_kept_ratio, 61.0 / 63.0);
}

/// Nothing is known of when energy in no window was taken, and for which samples: it is in no figure of the saving, whatever window
/// carries it.
#[test]
fn energy_and_samples_of_no_window_change_no_figure_of_a_saving() {
    let mut run = Run::default();
    run.steady(6, 10.0);
    run.keep(8.0, 500.0);
    run.steady(40, 8.0);
    let saving = |it: &WorkloadReport| {
        let interval = (it.saving_ratio_low, it.saving_ratio_high);
        let energies = (it.compared_energy_joules, it.expected_energy_joules, it.saving_joules, it.saving_ratio);
        (energies, interval, it.baseline_joules_per_sample, it.compared_joules_per_sample, it.throughput_kept_ratio)
    };
    let settings = ReportSettings { baselines: [(NAME.to_owned(), 12.0)].into(), ..ReportSettings::default() };
    let against = |run: &Run| report(&run.windows, &run.decisions, &run.actuations, &settings).workloads.remove(0);
    let wanted = [run.report(), against(&run)].each_ref().map(saving);
    let took = run.report().energy_joules.unwrap();
    near(run.report().compared_energy_joules, took);
    // A window of the baseline, the restart, one that validates, one of the run after it.
    for carries in [3, 6, 8, 30] {
        let mut run = run.clone();
        run.windows[carries].unassigned_energy_joules = 1e9;
        run.windows[carries].unassigned_samples = 1e7;
        assert_eq!([run.report(), against(&run)].each_ref().map(saving), wanted, "{carries}");
        let it = run.report();
        near(it.energy_joules, took + 1e9);
        near(it.compared_energy_ratio, took / (took + 1e9));
        assert_eq!((it.saving_ratio, it.compared_energy_ratio), of_summary(&it), "{carries}");
    }
}

/// Returns the saving and the compared part, as the headline, the totals, the views and the metrics have it.
fn of_summary(workload: &WorkloadReport) -> (Option<f64>, Option<f64>) {
    let summary = SavingSummary::of([workload]);
    let totals = ReportTotals::of(std::slice::from_ref(workload));
    assert_eq!((totals.saving_joules, totals.saving_ratio), (workload.saving_joules, workload.saving_ratio));
    assert_eq!(totals.compared_energy_ratio, summary.compared_ratio());
    assert_eq!(Some(summary.compared_joules).filter(|_| workload.saving_joules.is_some()), workload.compared_energy_joules);
    assert_eq!((summary.expected_joules, summary.saving_joules()), (workload.expected_energy_joules, workload.saving_joules));
    (summary.saving_ratio(), summary.compared_ratio())
}

/// The work, as counters of memory traffic show it, whatever the layout.
fn work(run: &mut Run, from: usize, dram_active: f64) {
    for window in &mut run.windows[from..] {
        window.mean_dram_active_ratio = Some(dram_active);
    }
}

#[test]
fn a_phase_that_was_never_measured_at_the_start_is_not_compared_and_no_loss() {
    let mut run = Run::default();
    run.steady(10, 10.0);
    run.keep(9.0, 0.0);
    run.steady(60, 9.0);
    work(&mut run, 0, 0.3);
    let before = run.report();
    let begin = run.windows.len();
    run.steady(60, 27.0);
    work(&mut run, begin, 0.7);
    let after = run.report();
    assert_eq!(before.saving_ratio, after.saving_ratio);
    assert_eq!(before.saving_joules, after.saving_joules);
    assert!(after.compared_energy_ratio.unwrap() < 0.4, "{after:?}");
    assert!(
        after.notes.iter().any(|note| note.contains("60 windows") && note.contains("nothing is comparable there")),
        "{:?}",
        after.notes
    );
    // Back at the start in that phase, it is.
    let (begin, back) = (run.windows.len(), run.decide(ControllerAction::Revert, None).id.clone());
    run.apply(&back);
    run.restart(0.0);
    run.steady(10, 30.0);
    work(&mut run, begin, 0.7);
    let it = run.report();
    assert!(it.compared_energy_ratio.unwrap() > 0.99, "{it:?}");
    assert!((it.saving_ratio.unwrap() - 0.1).abs() < 0.02, "{it:?}");
}

/// A controller turns its knob exactly when the work changes: before and after are different work.
#[test]
fn changes_at_the_changes_of_the_work_are_compared_with_the_same_phase() {
    let mut run = Run::default();
    for (dram, joules) in [(0.1, 10.0), (0.6, 60.0)] {
        let from = run.windows.len();
        run.steady(6, joules);
        work(&mut run, from, dram);
    }
    for round in 0..6 {
        let (dram, reference) = if round % 2 == 0 { (0.1, 10.0) } else { (0.6, 60.0) };
        let from = run.windows.len();
        let id = run.decide(ControllerAction::SetPowerLimit, None).id.clone();
        run.apply(&id);
        run.steady(20, 0.8 * reference);
        work(&mut run, from, dram);
    }
    let it = run.report();
    near(it.saving_joules, 0.2 * 100.0 * 60.0 * 70.0);
    near(it.baseline_joules_per_sample, 35.0);
    near(it.throughput_kept_ratio, 1.0);
    // A restart that nothing explains belongs to the phase around it, and costs its energy and the samples of its minute.
    run.restart(900.0);
    run.steady(3, 48.0);
    let (joules, samples) = (378_000.0 + 900.0 + 14_400.0, 13_500.0);
    near(run.report().saving_ratio, 1.0 - joules / samples / (486_000.0 / 13_600.0));
}

#[test]
fn windows_back_at_the_starting_setting_are_compared_with_themselves() {
    let cap = |watts: Option<f64>| Layout { replicas: Some(6), power_limit_watts: watts, ..Layout::default() };
    let mut run = Run::default();
    run.steady(8, 10.0);
    run.set(0, &cap(None));
    for (watts, joules, windows) in [(Some(300.0), 8.0, 100), (Some(400.0), 10.0, 3), (Some(300.0), 8.0, 100)] {
        let from = run.windows.len();
        let decision = run.decide(ControllerAction::SetPowerLimit, None);
        // Without a cap the setting of the knob is the board's limit: a cap as high is none.
        decision.evidence = [("power_limit_watts".to_owned(), 400.0)].into();
        let id = decision.id.clone();
        run.apply(&id);
        run.steady(windows, joules);
        run.set(from, &cap(watts));
    }
    let it = run.report();
    near(it.saving_joules, 200.0 * 200.0);
    let rows = report_by_window(&run);
    assert!(rows[109].baseline_energy_joules.is_some() && rows[20].phase == Some(1), "{:?}", rows[109]);
}

#[test]
fn the_interval_widens_with_the_age_of_the_baseline_and_narrows_with_its_windows() {
    let width = |baseline: i64, windows: i64| {
        let mut run = Run::default();
        run.steady(baseline, 10.0);
        run.keep(8.0, 0.0);
        run.steady(windows, 8.0);
        let it = run.report();
        it.saving_ratio_high.unwrap() - it.saving_ratio_low.unwrap()
    };
    assert!(width(6, 2000) > 1.5 * width(6, 100), "{} {}", width(6, 2000), width(6, 100));
    assert!(width(1, 100) > 2.0 * width(20, 100), "{} {}", width(1, 100), width(20, 100));
}

/// Returns factors around 1 with a given standard deviation.
fn noise(seed: u64) -> impl FnMut(f64) -> f64 {
    let mut state = seed;
    move |deviation: f64| {
        let mut uniform = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 11) as f64 / (1_u64 << 53) as f64
        };
        1.0 + deviation * ((0..12).map(|_| uniform()).sum::<f64>() - 6.0)
    }
}

/// A job without counters of memory, second by second, and a cap that is set once.
struct CappedJob {
    minutes: i64,
    capped_from_second: i64,
    /// Noise of a window's power and throughput.
    noise: (f64, f64),
    seed: u64,
}

/// What a job does in a second, with or without the cap: watts and samples per second.
type Work<'a> = &'a dyn Fn(i64, bool) -> (f64, f64);

impl CappedJob {
    const HOURS_3_OF_6: Self = Self { minutes: 360, capped_from_second: 10_800, noise: (0.003, 0.005), seed: 1 };

    /// Returns the run, and the saving and the throughput that it kept in truth.
    fn run(&self, work: Work<'_>) -> (Run, f64, f64) {
        let mut run = Run::default();
        let mut noise = noise(self.seed);
        let cap = |watts: Option<f64>| Layout { replicas: Some(1), power_limit_watts: watts, ..Layout::default() };
        let mut truth = [0.0; 4];
        for minute in 0..self.minutes {
            let (power, rate) = (noise(self.noise.0), noise(self.noise.1));
            let mut sums = (0.0, 0.0);
            for second in 60 * minute..60 * (minute + 1) {
                let (did, untouched) = (work(second, second >= self.capped_from_second), work(second, false));
                sums = (sums.0 + power * did.0, sums.1 + rate * did.1);
                for (sum, value) in truth.iter_mut().zip([power * did.0, rate * did.1, power * untouched.0, rate * untouched.1]) {
                    *sum += value;
                }
            }
            let from = run.windows.len();
            let is_capped = self.capped_from_second < 60 * (minute + 1);
            if is_capped && self.capped_from_second >= 60 * minute {
                let id = run.decide(ControllerAction::SetPowerLimit, None).id.clone();
                run.apply(&id);
            }
            run.window(sums.0, sums.1);
            run.set(from, &cap(is_capped.then_some(300.0)));
        }
        let [joules, samples, untouched_joules, untouched_samples] = truth;
        (run, 1.0 - joules / samples / (untouched_joules / untouched_samples), samples / untouched_samples)
    }
}

/// Training of 400 W and 10 samples/s, under the cap 280 W and 9.5 samples/s.
const TRAINING: [(f64, f64); 2] = [(400.0, 10.0), (280.0, 9.5)];

fn holds(it: &WorkloadReport, truth: f64) -> bool {
    let interval = it.saving_ratio_low.zip(it.saving_ratio_high);
    interval.is_some_and(|(low, high)| (low..=high).contains(&truth))
}

fn headline(it: &WorkloadReport) -> String {
    format!(
        "saving {:?} ({:?} .. {:?}), throughput {:?}, compared {:?}, {:?}",
        it.saving_ratio, it.saving_ratio_low, it.saving_ratio_high, it.throughput_kept_ratio, it.compared_energy_ratio, it.notes
    )
}

/// Evaluations and checkpoints: seconds of each pause, from one to the next, and watts.
#[test]
fn pauses_of_the_job_are_no_loss_of_the_change() {
    for (pause, every, watts) in
        [(300, 3600, 250.0), (600, 7200, 300.0), (120, 1800, 120.0), (20, 300, 150.0), (40, 600, 150.0), (60, 600, 150.0)]
    {
        for capped_from_second in [1800, 5400, 10_800, 10_920] {
            let job = CappedJob { capped_from_second, ..CappedJob::HOURS_3_OF_6 };
            let paused = |second: i64| second % every >= every - pause;
            for does_nothing in [true, false] {
                let work = |second, capped: bool| {
                    let (training, samples) = TRAINING[usize::from(capped && !does_nothing)];
                    match (paused(second), paused(second + 20)) {
                        (true, _) => (watts, 0.0),
                        // Power goes straight from one reading to the next.
                        (false, true) => (f64::midpoint(watts, training), samples),
                        (false, false) => (training, samples),
                    }
                };
                let (run, saved, kept) = job.run(&work);
                let it = run.report();
                let case = format!("{pause} s of {every} s, capped after {capped_from_second} s: {saved}, {}", headline(&it));
                assert!(holds(&it, saved), "{case}");
                assert!((it.throughput_kept_ratio.unwrap() - kept).abs() < 0.01, "{case}");
            }
        }
    }
}

/// A cap right after the work became another one, or long after.
#[test]
fn a_change_right_after_the_work_changed_is_not_given_what_the_work_did() {
    let work_changes = 7230;
    for delay in [60, 100, 150, 200, 300] {
        let job = CappedJob { minutes: 240, capped_from_second: work_changes + delay, ..CappedJob::HOURS_3_OF_6 };
        for other in [
            [(250.0, 4.0), (250.0, 4.0)],
            [(250.0, 4.0), (240.0, 3.9)],
            [(250.0, 10.0), (250.0, 10.0)],
            [(380.0, 14.0), (300.0, 13.0)],
        ] {
            let work = |second, capped| if second < work_changes { TRAINING[0] } else { other[usize::from(capped)] };
            let (run, saved, _) = job.run(&work);
            let it = run.report();
            let is_left_out = it.saving_ratio.is_none() || it.compared_energy_ratio.unwrap() < 0.9;
            assert!(is_left_out || holds(&it, saved), "{delay} s, {other:?}: {saved}, {}", headline(&it));
        }
    }
}

/// Throughput or power that rises or falls by a part an hour, whatever is set.
#[test]
fn the_interval_holds_a_trend_that_the_baseline_shows() {
    for (throughput, power) in [(0.03, 0.0), (-0.02, 0.0), (0.0, 0.02), (0.01, 0.0), (-0.01, 0.0), (0.005, 0.0)] {
        for last in [TRAINING[0], TRAINING[1]] {
            let work = |second: i64, capped: bool| {
                let (watts, rate) = if capped { last } else { TRAINING[0] };
                let hours = second as f64 / 3600.0;
                (watts * (1.0 + power * hours), rate * (1.0 + throughput * hours))
            };
            let (run, saved, _) = CappedJob::HOURS_3_OF_6.run(&work);
            let it = run.report();
            // More throughput or power under a cap than without one is other work.
            let is_left_out = it.saving_ratio.is_none() && (throughput > 0.0 || power > 0.0);
            assert!(is_left_out || holds(&it, saved), "{throughput}, {power}: {saved}, {}", headline(&it));
        }
    }
    // Without one it is as narrow as before.
    let it = CappedJob::HOURS_3_OF_6.run(&|_, capped| TRAINING[usize::from(capped)]).0.report();
    assert!(it.saving_ratio_high.unwrap() - it.saving_ratio_low.unwrap() < 0.02, "{}", headline(&it));
}

/// Noise from minute to minute, as of sequences of different lengths.
#[test]
fn noise_of_the_job_widens_the_interval() {
    let widths = [0.02, 0.05, 0.08, 0.12].map(|throughput| {
        let (mut held, mut width, runs) = (0, 0.0, 12);
        for seed in 0..runs {
            let job = CappedJob { noise: (0.01, throughput), seed, capped_from_second: 1200, ..CappedJob::HOURS_3_OF_6 };
            let (run, saved, _) = job.run(&|_, capped| TRAINING[usize::from(capped)]);
            let it = run.report();
            held += usize::from(holds(&it, saved));
            width += it.saving_ratio_high.unwrap() - it.saving_ratio_low.unwrap();
            assert!(it.compared_energy_ratio.unwrap() > 0.9, "{throughput}: {}", headline(&it));
        }
        assert!(held >= 10, "noise of {throughput}: {held} of {runs}");
        width
    });
    assert!(widths.is_sorted(), "{widths:?}");
}

/// With noise of 2 % on throughput and power, nine of ten intervals hold the truth.
#[test]
fn ninety_per_cent_intervals_hold_the_truth() {
    let mut noise = noise(7);
    let runs = 60;
    let mut held = 0;
    for _ in 0..runs {
        let mut run = Run::default();
        run.steady(5, 10.0);
        run.keep(8.5, 0.0);
        run.steady(60, 8.5);
        let mut truth = (0.0, 0.0);
        for window in &mut run.windows {
            if let Some(samples) = &mut window.samples {
                let (rate, power) = (noise(0.02), noise(0.01));
                let joules = window.run_energy_joules.unwrap() * power;
                // The untouched run has the same noise.
                truth = (truth.0 + 1000.0 * power, truth.1 + *samples * rate);
                (*samples, window.run_energy_joules) = (*samples * rate, Some(joules));
            } else {
                truth = (truth.0 + 1000.0, truth.1 + 100.0);
            }
        }
        let it = run.report();
        let took = it.energy_joules.unwrap() / it.samples.unwrap();
        let saved = 1.0 - took / (truth.0 / truth.1);
        held += usize::from((it.saving_ratio_low.unwrap()..=it.saving_ratio_high.unwrap()).contains(&saved));
    }
    assert!(held * 100 >= runs * 85, "{held} of {runs}");
}

#[test]
fn what_somebody_else_sets_is_the_starting_layout_from_then_on() {
    let layout = |replicas| Layout { replicas: Some(replicas), ..Layout::default() };
    let mut run = Run::default();
    run.steady(6, 10.0);
    run.set(0, &layout(1));
    let id = {
        let decision = run.decide(ControllerAction::Decrease, None);
        (decision.from, decision.to) = (layout(1), layout(2));
        decision.id.clone()
    };
    let from = run.windows.len();
    run.apply(&id);
    run.restart(0.0);
    run.steady(20, 8.0);
    run.set(from, &layout(2));
    let before = run.report().saving_joules.unwrap();
    let from = run.windows.len();
    run.steady(50, 20.0);
    run.set(from, &layout(3));
    let it = run.report();
    assert!((it.saving_joules.unwrap() - before).abs() < 0.2 * before + 1300.0, "{it:?}");
    assert!(it.baseline_joules_per_sample.unwrap() > 14.0, "{it:?}");
}

#[test]
fn what_the_actuator_rolled_back_is_over_with_the_first_good_window() {
    let mut run = Run::default();
    run.steady(6, 10.0);
    let id = run.decide(ControllerAction::Decrease, None).id.clone();
    run.apply(&id);
    run.actuations.last_mut().unwrap().outcome = ActuationOutcome::RolledBack;
    run.restart(500.0);
    run.restart(500.0);
    run.decide(ControllerAction::Maintain, Some((&id, ChangeValidation::Failed)));
    run.steady(20, 10.0);
    near(run.report().saving_joules, -1000.0);
}

#[test]
fn time_with_others_on_its_gpus_is_no_saving_and_no_loss() {
    let mut run = Run::default();
    run.steady(6, 10.0);
    run.keep(8.0, 0.0);
    run.steady(20, 8.0);
    let before = run.report();
    let from = run.windows.len();
    run.steady(30, 14.0);
    for window in &mut run.windows[from..] {
        window.tenants = Some(2);
    }
    let it = run.report();
    assert_eq!((before.saving_ratio, before.saving_joules), (it.saving_ratio, it.saving_joules));
    near(it.shared_joules_per_sample, 14.0);
    assert!(it.alone_joules_per_sample.unwrap() < 10.0 && before.alone_joules_per_sample.is_none(), "{it:?}");
    assert!(it.shared_energy_ratio.unwrap() > 0.5);
    assert!(it.notes.iter().any(|note| note.contains("shared its GPUs")), "{:?}", it.notes);
}

#[test]
fn unknown_stays_null_and_an_estimate_is_called_so() {
    // Nothing was measured before the first change.
    let mut run = Run::default();
    run.keep(8.0, 0.0);
    run.steady(10, 8.0);
    let it = run.report();
    assert_eq!((it.saving_joules, it.saving_ratio, it.saving_ratio_low), (None, None, None));
    assert!(it.notes.iter().any(|note| note.contains("the saving is not known")), "{:?}", it.notes);

    let mut run = Run::default();
    run.steady(6, 10.0);
    run.keep(9.0, 500.0);
    let it = run.report();
    assert!(it.notes.iter().any(|note| note.contains("an estimate") && note.contains("--baseline")), "{:?}", it.notes);
    let all = EnergyReport { workloads: vec![it], ..EnergyReport::default() };
    for (form, words) in [
        (RenderFormat::Text, "note: eadt/llm-training: the saving is an estimate"),
        (RenderFormat::Markdown, "- eadt/llm-training: the saving is an estimate"),
        (RenderFormat::Html, "<li>eadt/llm-training: the saving is an estimate"),
        (RenderFormat::Json, "\"the saving is an estimate"),
    ] {
        assert!(all.render(form).contains(words), "{}", all.render(form));
    }
    let mut settings = ReportSettings::default();
    settings.baselines.insert(NAME.to_owned(), 12.0);
    let it = report(&run.windows, &run.decisions, &run.actuations, &settings).workloads.remove(0);
    assert_eq!(it.notes.iter().filter(|note| note.contains("an estimate")).count(), 0);
    assert_eq!((it.saving_ratio_low, it.throughput_kept_ratio), (None, None));
}

/// Returns a step of a run: another ratio that is kept or fails, and windows of the layout then in force.
fn steps() -> impl Strategy<Value = Vec<(bool, f64, f64, i64)>> {
    proptest::collection::vec((any::<bool>(), 0.5..1.5_f64, 0.0..2000.0_f64, 0..20_i64), 1..6)
}

fn constant_work(steps: &[(bool, f64, f64, i64)]) -> Run {
    let mut run = Run::default();
    let mut now = 10.0;
    run.steady(6, now);
    for (kept, ratio, restart_joules, windows) in steps {
        if *kept {
            now *= ratio;
            run.keep(now, *restart_joules);
        } else {
            run.fail(now * ratio, now, *restart_joules);
        }
        run.steady(*windows, now);
    }
    run
}

proptest! {
    #![proptest_config(cases(48))]

    /// Whatever the job pauses for, how long and how often: a change that does nothing saved nothing.
    #[test]
    fn a_change_that_does_nothing_saves_nothing_whatever_the_job_pauses(
        pause in 20_i64..1200,
        part in 0.02..0.1_f64,
        watts in 80.0..400.0_f64,
        jitter in proptest::option::of(any::<u64>()),
        capped_from_minute in 30_i64..300,
        seed in any::<u64>(),
    ) {
        let every = (pause as f64 / part) as i64;
        let starts: Vec<i64> = (0..=21_600 / every)
            .map(|round| {
                let shift = jitter.map_or(0, |of| (of.rotate_left(7 * round as u32) % (every - pause) as u64) as i64);
                round * every + if jitter.is_some() { shift } else { every / 2 }
            })
            .collect();
        let mut pauses = vec![false; 21_600];
        for start in starts {
            let range = start.min(21_600) as usize..(start + pause).min(21_600) as usize;
            pauses[range].fill(true);
        }
        let paused = |second: i64| pauses[second as usize];
        // The change itself may take a window in which the job pauses: that is the work of another test.
        let calm = |minute: &i64| (60 * minute - 60..60 * minute + 180).all(|second| !paused(second));
        let Some(minute) = (capped_from_minute..330).find(calm) else { return Ok(()) };
        let job = CappedJob { capped_from_second: 60 * minute + 5, seed, ..CappedJob::HOURS_3_OF_6 };
        let (run, ..) = job.run(&|second, _| if paused(second) { (watts, 0.0) } else { TRAINING[0] });
        let it = run.report();
        prop_assert!(holds(&it, 0.0), "{}", headline(&it));
        prop_assert!(it.throughput_kept_ratio.is_some_and(|kept| (kept - 1.0).abs() <= 0.01), "{}", headline(&it));
    }

    #[test]
    fn with_constant_work_the_estimate_is_the_plain_comparison(steps in steps()) {
        let run = constant_work(&steps);
        let it = run.report();
        let (joules, ratio) = run.plain(0, 10.0);
        prop_assert!((it.saving_joules.unwrap() - joules).abs() <= 1e-6 * joules.abs().max(1.0));
        prop_assert!((it.saving_ratio.unwrap() - ratio).abs() <= 1e-9);
        prop_assert!((it.baseline_joules_per_sample.unwrap() - 10.0).abs() <= 1e-9);
    }

    /// The headline is that of the table, to the last digit.
    #[test]
    fn the_summary_of_a_workload_has_the_figures_of_its_report(
        steps in steps(),
        unassigned in proptest::collection::vec((0..200_usize, 0.0..1e6_f64, 0.0..1e3_f64), 0..6),
    ) {
        let mut run = constant_work(&steps);
        let count = run.windows.len();
        for (index, joules, samples) in unassigned {
            let window = &mut run.windows[index % count];
            (window.unassigned_energy_joules, window.unassigned_samples) = (joules, samples);
        }
        let it = run.report();
        prop_assert_eq!((it.saving_ratio, it.compared_energy_ratio), of_summary(&it));
        let rows = report_by_window(&run);
        let compared = rows.iter().filter(|row| row.baseline_energy_joules.is_some()).filter_map(|row| row.energy_joules);
        prop_assert_eq!(it.compared_energy_joules, Some(compared.sum::<f64>()));
    }

    #[test]
    fn order_and_repetition_change_nothing(steps in steps(), order in any::<u64>(), repeat in 1..3_usize) {
        let run = constant_work(&steps);
        let count = run.windows.len() + run.decisions.len() + run.actuations.len();
        let mut reporter = Reporter::default();
        // A step that has no factor in common with the count visits every event.
        let stride = (1 + order as usize % count..=count + 1).find(|stride| gcd(*stride, count) == 1).expect("one more than the count at the latest");
        for index in (0..count * repeat).map(|index| (index * stride + order as usize % count) % count) {
            let decisions = run.windows.len();
            let actuations = decisions + run.decisions.len();
            if index >= actuations {
                reporter.add_actuation(&run.actuations[index - actuations]);
            } else if index >= decisions {
                reporter.add_decision(&run.decisions[index - decisions]);
            } else {
                reporter.add_window(&run.windows[index]);
            }
        }
        prop_assert_eq!(reporter.build_report(&ReportSettings::default()).workloads.remove(0), run.report());
    }

    /// Nothing that lies crosswise makes it panic or give a number that is none.
    #[test]
    fn whatever_is_applied_and_decided_the_saving_is_a_number_or_unknown(
        windows in proptest::collection::vec((0.0..1e4_f64, 0.0..1e3_f64, any::<bool>()), 1..40),
        decisions in proptest::collection::vec((0..40_i64, 0..6_usize, 0..4_usize, 0..6_usize), 0..30),
        done in proptest::collection::vec((0..40_i64, 0..30_usize, 0..6_usize), 0..30),
    ) {
        let mut run = Run::default();
        for (joules, samples, restarted) in windows {
            run.window(joules, samples).restarted = restarted;
        }
        for (index, (minute, action, validation, concerns)) in decisions.into_iter().enumerate() {
            run.minute = minute;
            let action = [ControllerAction::Maintain, ControllerAction::Maintain, ControllerAction::Maintain, ControllerAction::Decrease, ControllerAction::Revert, ControllerAction::Increase][action];
            let validation = [ChangeValidation::None, ChangeValidation::Pending, ChangeValidation::Kept, ChangeValidation::Failed][validation];
            run.decide(action, Some((&format!("d{concerns}"), validation))).id = format!("d{index}");
        }
        for (minute, of, outcome) in done {
            run.minute = minute;
            run.apply(&format!("d{of}"));
            let outcomes = [ActuationOutcome::Applied, ActuationOutcome::Ready, ActuationOutcome::Refused, ActuationOutcome::Recommended, ActuationOutcome::RolledBack, ActuationOutcome::Failed];
            run.actuations.last_mut().unwrap().outcome = outcomes[outcome];
        }
        let it = run.report();
        for figure in [
            it.saving_joules,
            it.saving_ratio,
            it.saving_ratio_low,
            it.saving_ratio_high,
            it.throughput_kept_ratio,
            it.baseline_joules_per_sample,
        ] {
            prop_assert!(figure.is_none_or(f64::is_finite), "{figure:?}");
        }
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}
