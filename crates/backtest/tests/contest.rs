//! Measures the worth of controllers on simulated days, and checks that it can be repeated.

use std::sync::atomic::{AtomicUsize, Ordering};

use eadt_backtest::{
    BacktestPlan, BacktestReport, BacktestRow, BacktestRun, Contender, Oversubscription, ScenarioSource, html, text, trace,
};
use eadt_core::controller::{ControllerName, ControllerSettings};
use eadt_schemas::v1::{ControllerAction, LayoutBounds};
use eadt_simulator::gpu::WorkloadProfile;
use eadt_simulator::{Fault, Scenario, WorkloadScenario};

fn contest(subjects: Vec<ScenarioSource>, controllers: &[&str], days: f64, seeds: u64) -> BacktestPlan {
    BacktestPlan {
        subjects,
        contenders: controllers.iter().map(|name| name.parse().unwrap()).collect(),
        oversubscription: vec![Oversubscription::Allowed],
        days,
        seeds,
        settings: ControllerSettings::default(),
        delay_seconds: 10.0,
        power_budget_watts: None,
    }
}

fn constant(profile: WorkloadProfile) -> ScenarioSource {
    let scenario = Scenario { workloads: vec![WorkloadScenario::constant("eadt/job", profile)], ..Scenario::default() };
    ScenarioSource::Scenario { name: "constant".into(), scenario: Box::new(scenario) }
}

fn report(contest: &BacktestPlan) -> BacktestReport {
    BacktestReport::of(&contest.run(&|| ()).unwrap(), contest.days, contest.seeds)
}

fn row<'a>(report: &'a BacktestReport, controller: &str) -> &'a BacktestRow {
    report.rows.iter().find(|row| row.controller.to_string() == controller).unwrap()
}

#[test]
fn seeking_a_cap_saves_and_layouts_save_more() {
    let report = report(&contest(vec![ScenarioSource::RandomDays], &["fixed", "oracle", "power-cap", "hybrid"], 4.0, 2));
    println!("{}", text(&report));
    let change = |controller| row(&report, controller).joules_per_sample_change.mean;
    assert_eq!(change("fixed"), 0.0);
    assert!(change("power-cap") < -0.12, "{}", change("power-cap"));
    assert!(change("hybrid") < -0.18, "{}", change("hybrid"));
    assert!(change("oracle") < change("hybrid"), "nothing beats the oracle by much");
    for controller in ["power-cap", "hybrid"] {
        let row = row(&report, controller);
        assert!(row.throughput_ratio.worst > 0.91, "{controller}: {}", row.throughput_ratio.worst);
        assert!(row.restarts_worst_day <= 5, "{controller}: {} restarts", row.restarts_worst_day);
    }
    assert_eq!(row(&report, "power-cap").restarts_per_day.worst, 0.0);
    assert!(row(&report, "power-cap").turns_per_day.mean > 1.0);
}

#[test]
fn the_same_seeds_give_the_same_bytes_on_any_number_of_cores() {
    let contest =
        contest(vec![ScenarioSource::RandomDays, constant(WorkloadProfile::MID)], &["fixed", "hybrid", "matrix"], 0.5, 3);
    let on = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let done = AtomicUsize::new(0);
        let runs = pool
            .install(|| {
                contest.run(&|| {
                    done.fetch_add(1, Ordering::Relaxed);
                })
            })
            .unwrap();
        assert_eq!(done.into_inner(), contest.len());
        let report = BacktestReport::of(&runs, contest.days, contest.seeds);
        (serde_json::to_string(&report).unwrap(), text(&report), html(&report))
    };
    let one = on(1);
    assert_eq!(one, on(3));
    assert!(one.0.contains(r#""origin":"simulated""#) && one.1.contains("simulated") && one.2.contains("simulated"));
    let other = BacktestPlan { seeds: 2, ..contest };
    assert_ne!(one.0, serde_json::to_string(&report(&other)).unwrap());
}

/// A restart stops work for two minutes and loses a minute's work, and both are paid for.
#[test]
fn restarts_cost_what_they_cost() {
    let runs = contest(vec![constant(WorkloadProfile::MID)], &["fixed", "hybrid"], 0.25, 1).run(&|| ()).unwrap();
    let of = |controller| runs.iter().find(|run: &&BacktestRun| run.controller == controller).unwrap();
    let (fixed, hybrid) = (of(Contender::Fixed), of(Contender::Controller(ControllerName::Hybrid)));
    assert!(hybrid.restarts > 0 && fixed.restarts == 0);
    assert_eq!(fixed.seconds, hybrid.seconds);
    // The same controller gets more done if restarts are free.
    let mut free = WorkloadScenario::constant("eadt/job", WorkloadProfile::MID);
    (free.restart_seconds, free.lost_work_seconds) = (0.0, 0.0);
    let scenario = Scenario { workloads: vec![free], ..Scenario::default() };
    let subject = ScenarioSource::Scenario { name: "free".into(), scenario: Box::new(scenario) };
    let runs = contest(vec![subject], &["hybrid"], 0.25, 1).run(&|| ()).unwrap();
    assert!(runs[0].samples > hybrid.samples);
}

#[test]
fn clamped_means_no_more_than_all_threads() {
    let mut contest = contest(vec![constant(WorkloadProfile::HOST)], &["fixed", "oracle", "hybrid"], 0.5, 1);
    contest.oversubscription = vec![Oversubscription::Allowed, Oversubscription::Clamped];
    let report = report(&contest);
    let best = |oversubscription| {
        let of = |row: &&BacktestRow| row.oversubscription == oversubscription && row.controller == Contender::Oracle;
        report.rows.iter().find(of).unwrap().joules_per_sample_change.mean
    };
    assert!(best(Oversubscription::Allowed) < best(Oversubscription::Clamped) - 0.01);
    assert!(best(Oversubscription::Clamped) < 0.0);
    // If the bounds allow nothing else, one table shows it all.
    let mut clamped = WorkloadScenario::constant("eadt/job", WorkloadProfile::HOST);
    clamped.bounds = LayoutBounds::default();
    let scenario = Scenario { workloads: vec![clamped], ..Scenario::default() };
    contest.subjects = vec![ScenarioSource::Scenario { name: "clamped".into(), scenario: Box::new(scenario) }];
    assert_eq!(contest.len(), 3);
}

#[test]
fn a_rollout_that_never_gets_ready_is_rolled_back_and_not_tried_again_at_once() {
    let job = WorkloadScenario::constant("eadt/job", WorkloadProfile::MID);
    let fault = Fault::NeverReady { workload: "eadt/job".into(), from_seconds: 0.0, until_seconds: 1e9 };
    let scenario = Scenario { workloads: vec![job], faults: vec![fault], ..Scenario::default() };
    let subject = ScenarioSource::Scenario { name: "never-ready".into(), scenario: Box::new(scenario) };
    let contest = contest(vec![subject.clone()], &["hybrid"], 0.5, 1);
    let mut rolled_back = 0;
    let mut moves = 0;
    trace(&contest, &subject, contest.contenders[0], 0, &mut |decision, _| {
        rolled_back += u32::from(decision.reason.contains("was rolled back"));
        moves += u32::from(decision.restarts && decision.action != ControllerAction::Revert);
    })
    .unwrap();
    assert!(rolled_back >= 1 && moves >= 1);
    assert!(moves <= 3, "{moves} restarts, each of them in vain");
}

#[test]
fn what_cannot_be_held_is_refused_with_the_reason() {
    let refused = |change: fn(&mut BacktestPlan)| {
        let mut contest = contest(vec![ScenarioSource::RandomDays], &["fixed"], 1.0, 1);
        change(&mut contest);
        contest.run(&|| ()).unwrap_err().to_string()
    };
    assert!(refused(|c| c.days = 0.0).contains("days"));
    assert!(refused(|c| c.days = f64::NAN).contains("days"));
    assert!(refused(|c| c.seeds = 0).contains("seeds"));
    assert!(refused(|c| c.settings.max_slowdown_ratio = 2.0).contains("max_slowdown_ratio"));
    assert!(
        refused(|c| {
            let scenario = Scenario { sample_interval_seconds: -1.0, ..Scenario::default() };
            c.subjects = vec![ScenarioSource::Scenario { name: "broken".into(), scenario: Box::new(scenario) }];
        })
        .contains("broken: scenario: sample_interval_seconds")
    );
    let unknown = "better".parse::<Contender>().unwrap_err().to_string();
    assert!(unknown.contains("better") && unknown.contains("hybrid") && unknown.contains("oracle"), "{unknown}");
}

#[test]
fn a_power_budget_is_kept_and_spent_where_it_does_most() {
    // Together these draw about 2,000 W when nothing holds them back.
    let job = |name: &str, profile| WorkloadScenario { gpus: 3, ..WorkloadScenario::constant(name, profile) };
    let workloads = vec![job("eadt/busy", WorkloadProfile::COMPUTE), job("eadt/waits", WorkloadProfile::HOST)];
    let scenario = Scenario { workloads, ..Scenario::default() };
    let subject = ScenarioSource::Scenario { name: "two".into(), scenario: Box::new(scenario) };
    let mut budgeted = contest(vec![subject], &["fixed", "power-budget"], 0.3, 2);
    assert!(budgeted.check().unwrap_err().to_string().contains("--power-budget"));
    budgeted.power_budget_watts = Some(1e6);
    let free = report(&budgeted);
    let fixed_watts = row(&free, "fixed").cluster_power_watts_max;
    let budget = (0.75 * fixed_watts).floor();
    budgeted.power_budget_watts = Some(budget);
    let report = report(&budgeted);
    println!("{}", text(&report));
    let kept = row(&report, "power-budget");
    assert!(kept.cluster_power_watts_max <= budget + 1e-6, "{} of {budget} W", kept.cluster_power_watts_max);
    assert!(kept.cluster_power_watts_max > 0.8 * budget, "what there is is used: {} of {budget} W", kept.cluster_power_watts_max);
    assert_eq!((kept.restarts_worst_day, kept.refused), (0, 0));
    let of = |name: &str| report.rows.iter().find(|row| row.workload == name && row.controller == Contender::Budget).unwrap();
    let (busy, waits) = (of("eadt/busy"), of("eadt/waits"));
    assert!(waits.throughput_ratio.worst > 0.9, "who waits for the host loses little: {}", waits.throughput_ratio.worst);
    assert!(busy.throughput_ratio.worst > 0.6, "{}", busy.throughput_ratio.worst);
}

#[test]
fn those_that_are_compared_are_in_one_table() {
    let jobs = ["eadt/one", "eadt/two"].map(|name| WorkloadScenario::constant(name, WorkloadProfile::MID));
    let scenario = Scenario { workloads: jobs.to_vec(), ..Scenario::default() };
    let subject = ScenarioSource::Scenario { name: "two".into(), scenario: Box::new(scenario) };
    let report = report(&contest(vec![subject], &["fixed", "power-cap"], 0.1, 1));
    let workloads: Vec<&str> = report.rows.iter().map(|row| row.workload.as_str()).collect();
    assert_eq!(workloads, ["eadt/one", "eadt/one", "eadt/two", "eadt/two"]);
    let page = html(&report);
    assert_eq!((page.matches("<h2>").count(), page.matches("<table>").count(), page.matches("<svg").count()), (2, 2, 2));
    // The verdict is the first line; ticks are round, and one is one.
    let verdict = page.split("<h1>").nth(1).and_then(|rest| rest.split_once("</h1>\n")).map_or("", |(_, rest)| rest);
    assert!(verdict.starts_with("<p class=\"verdict\">simulated: two · eadt/one · oversubscription "), "{page}");
    assert!(page.contains(" in the worst seed) at ") && page.contains("text-anchor=\"middle\">0 %</text>"), "{page}");
    assert!(page.contains("0.1 days, 1 seed.") && text(&report).contains("0.1 days, 1 seed;"), "{page}");
}
