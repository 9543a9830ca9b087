//! The saving against the starting layout: true while the work of the job changes.

use eadt_report::{Form, Report, Reporter, Settings, WorkloadReport, report};
use eadt_schemas::EventTime;
use eadt_schemas::v1::{Action, Actuation, Decision, EfficiencyWindow, Layout, Outcome, Validation};
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

    fn decide(&mut self, action: Action, concerns: Option<(&str, Validation)>) -> &mut Decision {
        self.decisions.push(Decision {
            id: format!("d{}-{action:?}", self.minute),
            workload: NAME.to_owned(),
            time: at(60 * self.minute),
            action,
            concerns: concerns.map(|(id, _)| id.to_owned()),
            validation: concerns.map_or(Validation::None, |(_, validation)| validation),
            ..Decision::default()
        });
        self.decisions.last_mut().expect("just added")
    }

    /// The change is applied within the next window.
    fn apply(&mut self, id: &str) {
        for (outcome, seconds) in [(Outcome::Applied, 3), (Outcome::Ready, 40)] {
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

    /// A change and its windows; gives the decision's id.
    fn try_change(&mut self, joules_per_sample: f64, restart_joules: f64) -> String {
        let id = self.decide(Action::Decrease, None).id.clone();
        self.apply(&id);
        self.restart(restart_joules);
        for _ in 1..TRIAL {
            self.decide(Action::Maintain, Some((&id, Validation::Pending)));
            self.steady(1, joules_per_sample);
        }
        id
    }

    fn keep(&mut self, joules_per_sample: f64, restart_joules: f64) {
        let id = self.try_change(joules_per_sample, restart_joules);
        self.decide(Action::Maintain, Some((&id, Validation::Kept)));
    }

    /// A change that fails and is taken back; the last window is the first good one after that.
    fn fail(&mut self, joules_per_sample: f64, before: f64, restart_joules: f64) {
        let id = self.try_change(joules_per_sample, restart_joules);
        let revert = self.decide(Action::Revert, Some((&id, Validation::Failed))).id.clone();
        self.apply(&revert);
        self.restart(restart_joules);
        self.steady(1, before);
    }

    fn report(&self) -> WorkloadReport {
        report(&self.windows, &self.decisions, &self.actuations, &Settings::default()).workloads.remove(0)
    }

    /// What everything after this many windows saved against a fixed figure: the rule that is wrong once the work changes.
    fn plain(&self, from: usize, baseline: f64) -> (f64, f64) {
        let after = || self.windows[from..].iter();
        let expected = baseline * after().filter_map(|window| window.samples).sum::<f64>();
        let saving = expected - after().filter_map(|window| window.run_energy_joules).sum::<f64>();
        (saving, saving / expected)
    }
}

fn near(got: Option<f64>, expected: f64) {
    let got = got.expect("known");
    assert!((got - expected).abs() <= 1e-9 * expected.abs().max(1.0), "{got} instead of {expected}");
}

#[test]
fn another_phase_of_the_job_is_no_saving_and_no_loss() {
    for phase in [3.0, 1.0 / 3.0] {
        let mut run = Run::default();
        run.steady(6, 10.0);
        run.keep(9.0, 0.0);
        run.steady(100, 9.0);
        let before = run.report().saving_ratio.unwrap();
        assert!((before - 0.1).abs() < 1e-3, "{before}");
        run.steady(60, 9.0 * phase);
        let after = run.report().saving_ratio.unwrap();
        assert!((after - before).abs() < 1e-3, "{after} instead of {before}");
        assert!((run.plain(6, 10.0).1 - before).abs() > 0.2, "the fixed figure would be far off");
        // The next change is judged in the new phase: 0.9 * 0.8.
        run.keep(7.2 * phase, 0.0);
        run.steady(200, 7.2 * phase);
        let it = run.report();
        // The starting layout: 104 windows at 10 J/sample, 264 in the new phase.
        let expected = 100.0 * (104.0 * 10.0 + 264.0 * 10.0 * phase);
        let took = 100.0 * (104.0 * 9.0 + 60.0 * 9.0 * phase + 204.0 * 7.2 * phase);
        near(it.saving_joules, expected - took);
        near(it.saving_ratio, 1.0 - took / expected);
        near(it.baseline_joules_per_sample, expected / 36_800.0);
    }
}

#[test]
fn a_failed_try_costs_energy_and_nothing_after_it_counts() {
    let mut run = Run::default();
    run.steady(6, 10.0);
    run.fail(12.0, 10.0, 500.0);
    // Two restarts of 500 J and four windows of 100 samples at 12 instead of 10 J/sample.
    near(run.report().saving_joules, -(2.0 * 500.0 + 4.0 * 200.0));
    run.steady(50, 30.0);
    near(run.report().saving_joules, -1800.0);
    // What was kept before it is in force again.
    let mut run = Run::default();
    run.steady(6, 10.0);
    run.keep(8.0, 500.0);
    run.steady(10, 8.0);
    run.fail(9.0, 8.0, 300.0);
    run.steady(10, 8.0);
    near(run.report().saving_joules, run.plain(6, 10.0).0);
}

#[test]
fn the_controllers_own_figures_go_before_the_windows() {
    let mut run = Run::default();
    run.steady(6, 10.0);
    run.keep(9.0, 0.0);
    let verdict = run.decisions.last_mut().unwrap();
    verdict.evidence = [("before_joules_per_sample".into(), 10.0), ("after_joules_per_sample".into(), 8.0)].into();
    run.steady(100, 8.0);
    let it = run.report();
    near(it.saving_joules, 4.0 * 100.0 + 100.0 * 200.0);
    near(it.baseline_joules_per_sample, 10.0);
}

#[test]
fn a_trial_that_is_not_judged_yet_is_compared_with_what_was_before_it() {
    let mut run = Run::default();
    run.steady(6, 10.0);
    run.try_change(9.0, 500.0);
    run.steady(3, 9.0);
    near(run.report().saving_joules, 700.0 - 500.0);
}

#[test]
fn a_change_that_nothing_judges_counts_as_kept() {
    let mut run = Run::default();
    run.steady(6, 10.0);
    for joules_per_sample in [9.0, 7.0] {
        let id = run.decide(Action::Increase, None).id.clone();
        run.apply(&id);
        run.restart(100.0);
        run.steady(6, joules_per_sample);
    }
    near(run.report().saving_joules, run.plain(6, 10.0).0);
    let before = run.report().saving_ratio.unwrap();
    run.steady(1000, 21.0);
    assert!((run.report().saving_ratio.unwrap() - 0.3).abs() < 0.01 && before < 0.3);
}

#[test]
fn a_change_without_a_good_window_is_judged_with_the_next() {
    let mut run = Run::default();
    run.steady(6, 10.0);
    let id = run.decide(Action::Increase, None).id.clone();
    run.apply(&id);
    run.restart(100.0);
    run.keep(8.0, 100.0);
    run.steady(10, 8.0);
    near(run.report().saving_joules, run.plain(6, 10.0).0);
    run.steady(1000, 4.0);
    assert!((run.report().saving_ratio.unwrap() - 0.2).abs() < 0.01);
}

#[test]
fn back_at_the_starting_layout_nothing_is_saved() {
    let layout = |replicas| Layout { replicas: Some(replicas), ..Layout::default() };
    let mut run = Run::default();
    run.steady(6, 10.0);
    for (from, to, joules_per_sample) in [(1, 2, 8.0), (2, 1, 9.9)] {
        run.keep(joules_per_sample, 0.0);
        let change = run.decisions.iter_mut().rev().find(|decision| decision.action == Action::Decrease).unwrap();
        (change.from, change.to) = (layout(from), layout(to));
        run.steady(10, joules_per_sample);
    }
    let before = run.report().saving_joules;
    run.steady(500, 9.9);
    run.restart(1e6);
    near(run.report().saving_joules, before.unwrap());
}

#[test]
fn what_the_actuator_rolled_back_is_over_with_the_first_good_window() {
    let mut run = Run::default();
    run.steady(6, 10.0);
    let id = run.decide(Action::Decrease, None).id.clone();
    run.apply(&id);
    run.actuations.last_mut().unwrap().outcome = Outcome::RolledBack;
    run.restart(500.0);
    run.restart(500.0);
    run.decide(Action::Maintain, Some((&id, Validation::Failed)));
    run.steady(20, 10.0);
    run.steady(20, 20.0);
    near(run.report().saving_joules, -1000.0);
}

#[test]
fn what_was_taken_back_from_outside_is_over_with_the_first_good_window() {
    let layout = |replicas| Layout { replicas: Some(replicas), ..Layout::default() };
    let mut run = Run::default();
    run.steady(6, 10.0);
    let id = run.decide(Action::Decrease, None).id.clone();
    let change = run.decisions.last_mut().unwrap();
    (change.from, change.to) = (layout(1), layout(2));
    run.apply(&id);
    run.restart(500.0);
    let verdict = run.decide(Action::Maintain, Some((&id, Validation::Failed)));
    (verdict.from, verdict.to) = (layout(1), layout(1));
    run.restart(500.0);
    run.steady(20, 10.0);
    run.steady(20, 20.0);
    near(run.report().saving_joules, -1000.0);
}

#[test]
fn a_layout_that_somebody_else_changed_is_compared_all_the_same() {
    let mut run = Run::default();
    run.steady(6, 10.0);
    let id = run.decide(Action::Decrease, None).id.clone();
    run.apply(&id);
    run.restart(500.0);
    run.decide(Action::Maintain, Some((&id, Validation::None)));
    run.restart(500.0);
    run.steady(10, 8.0);
    near(run.report().saving_joules, run.plain(6, 10.0).0);
    run.steady(1000, 32.0);
    assert!((run.report().saving_ratio.unwrap() - 0.2).abs() < 0.01);
}

#[test]
fn a_restart_under_a_kept_change_costs_and_a_pause_says_nothing() {
    let mut run = Run::default();
    run.steady(6, 10.0);
    run.keep(8.0, 0.0);
    run.steady(10, 8.0);
    let before = run.report().saving_joules.unwrap();
    run.restart(700.0);
    near(run.report().saving_joules, before - 700.0);
    let window = run.window(800.0, 50.0);
    window.samples_redone = 50.0;
    near(run.report().saving_joules, before - 700.0 + 50.0 * 10.0 - 800.0);
    run.window(400.0, 0.0);
    near(run.report().saving_joules, before - 700.0 - 300.0);
    assert!(run.report().notes[0].contains("leaves out 1 window"), "{:?}", run.report().notes);
}

#[test]
fn unknown_stays_null_and_an_estimate_is_called_so() {
    let mut run = Run::default();
    run.keep(8.0, 0.0);
    run.steady(10, 8.0);
    let it = run.report();
    assert_eq!((it.saving_joules, it.saving_ratio, it.baseline_joules_per_sample), (None, None, None));
    assert!(it.notes[0].contains("no good window"), "{:?}", it.notes);
    // The change is applied, but no window has any progress yet.
    let mut run = Run::default();
    run.steady(6, 10.0);
    let id = run.decide(Action::Decrease, None).id.clone();
    run.apply(&id);
    run.restart(500.0);
    assert_eq!(run.report().saving_joules, None);

    run.steady(3, 9.0);
    let it = run.report();
    assert!(it.notes.iter().any(|note| note.contains("an estimate") && note.contains("--baseline")), "{:?}", it.notes);
    let all = Report { workloads: vec![it] };
    for (form, words) in [
        (Form::Text, "note: eadt/llm-training: the saving is an estimate"),
        (Form::Markdown, "- eadt/llm-training: the saving is an estimate"),
        (Form::Html, "<li>eadt/llm-training: the saving is an estimate"),
        (Form::Json, "\"the saving is an estimate"),
    ] {
        assert!(all.render(form).contains(words), "{}", all.render(form));
    }
    let mut settings = Settings::default();
    settings.baselines.insert(NAME.to_owned(), 12.0);
    let it = report(&run.windows, &run.decisions, &run.actuations, &settings).workloads.remove(0);
    assert_eq!(it.notes.iter().filter(|note| note.contains("an estimate")).count(), 0);
}

/// A step of a run: another ratio that is kept or fails, and windows of the layout then in force.
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

    #[test]
    fn with_constant_work_the_estimate_is_the_plain_comparison(steps in steps()) {
        let run = constant_work(&steps);
        let it = run.report();
        let (joules, ratio) = run.plain(6, 10.0);
        prop_assert!((it.saving_joules.unwrap() - joules).abs() <= 1e-6 * joules.abs().max(1.0));
        prop_assert!((it.saving_ratio.unwrap() - ratio).abs() <= 1e-9);
        prop_assert!((it.baseline_joules_per_sample.unwrap() - 10.0).abs() <= 1e-9);
    }

    #[test]
    fn a_phase_far_from_any_trial_leaves_the_part_that_is_saved(ratio in 0.5..1.2_f64, phase in 0.1..10.0_f64) {
        let mut run = constant_work(&[(true, ratio, 0.0, 3000)]);
        let before = run.report().saving_ratio.unwrap();
        run.steady(300, 10.0 * ratio * phase);
        let after = run.report().saving_ratio.unwrap();
        prop_assert!((after - before).abs() < 0.002, "{after} instead of {before}");
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
                reporter.actuation(&run.actuations[index - actuations]);
            } else if index >= decisions {
                reporter.decision(&run.decisions[index - decisions]);
            } else {
                reporter.window(&run.windows[index]);
            }
        }
        prop_assert_eq!(reporter.report(&Settings::default()).workloads.remove(0), run.report());
    }

    /// Nothing that lies crosswise makes it panic or say a number that is none.
    #[test]
    fn whatever_is_applied_and_said_the_saving_is_a_number_or_unknown(
        windows in proptest::collection::vec((0.0..1e4_f64, 0.0..1e3_f64, any::<bool>()), 1..40),
        said in proptest::collection::vec((0..40_i64, 0..6_usize, 0..4_usize, 0..6_usize), 0..30),
        done in proptest::collection::vec((0..40_i64, 0..30_usize, 0..6_usize), 0..30),
    ) {
        let mut run = Run::default();
        for (joules, samples, restarted) in windows {
            run.window(joules, samples).restarted = restarted;
        }
        for (index, (minute, action, validation, concerns)) in said.into_iter().enumerate() {
            run.minute = minute;
            let action = [Action::Maintain, Action::Maintain, Action::Maintain, Action::Decrease, Action::Revert, Action::Increase][action];
            let validation = [Validation::None, Validation::Pending, Validation::Kept, Validation::Failed][validation];
            run.decide(action, Some((&format!("d{concerns}"), validation))).id = format!("d{index}");
        }
        for (minute, of, outcome) in done {
            run.minute = minute;
            run.apply(&format!("d{of}"));
            let outcomes = [Outcome::Applied, Outcome::Ready, Outcome::Refused, Outcome::Recommended, Outcome::RolledBack, Outcome::Failed];
            run.actuations.last_mut().unwrap().outcome = outcomes[outcome];
        }
        let it = run.report();
        for figure in [it.saving_joules, it.saving_ratio, it.baseline_joules_per_sample] {
            prop_assert!(figure.is_none_or(f64::is_finite), "{figure:?}");
        }
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// A controller that knows phases turns its knob exactly when the work changes: before and after are different work.
#[test]
fn changes_at_the_changes_of_the_work_are_compared_with_the_same_phase() {
    let mut run = Run::default();
    let say = |run: &mut Run, phase: f64, reference: Option<f64>| {
        let decision = run.decide(Action::Maintain, None);
        decision.evidence.insert("phase".to_owned(), phase);
        decision.evidence.extend(reference.map(|joules| ("reference_joules_per_sample".to_owned(), joules)));
    };
    for (phase, joules) in [(1.0, 10.0), (2.0, 60.0)] {
        for _ in 0..5 {
            run.steady(1, joules);
            say(&mut run, phase, Some(joules));
        }
    }
    for round in 0..6 {
        let (phase, reference) = if round % 2 == 0 { (1.0, 10.0) } else { (2.0, 60.0) };
        let id = run.decide(Action::SetPowerLimit, None).id.clone();
        run.apply(&id);
        for _ in 0..20 {
            run.steady(1, 0.8 * reference);
            say(&mut run, phase, Some(reference));
        }
    }
    // A restart says nothing of its phase: it belongs to the one before, and costs.
    run.restart(900.0);
    let _nothing_said = run.decide(Action::Maintain, None);
    // Work that was never done in the starting layout.
    for _ in 0..7 {
        run.steady(1, 500.0);
        say(&mut run, 3.0, None);
    }
    let samples = 6.0 * 20.0 * 100.0;
    let expected = samples * 35.0;
    let row = run.report();
    let saving = row.saving_joules.unwrap();
    assert!((saving - (0.2 * expected - 900.0)).abs() < 1e-6 * expected, "{saving}, {expected}");
    assert!((row.baseline_joules_per_sample.unwrap() - 35.0).abs() < 1e-9, "{row:?}");
    assert!(row.notes.iter().any(|note| note.contains("leaves out 7 window(s)")), "{:?}", row.notes);
    assert!(row.notes.iter().any(|note| note.contains("in the same phase")), "{:?}", row.notes);
}
