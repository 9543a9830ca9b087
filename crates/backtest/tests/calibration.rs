//! Reported savings against true ones, and the floor of throughput, in short: `eadt backtest --calibrate` is the long form.

use std::collections::BTreeMap;

use eadt_backtest::{
    BacktestPlan, Calibration, Contender, Oversubscription, ScenarioSource, calibration_html, render_calibration_report, trace,
};
use eadt_core::controller::{ControllerName, ControllerSettings};
use eadt_simulator::Scenario;
use eadt_simulator::gpu::{PhaseSchedule, WorkloadPhase, WorkloadProfile};

fn default_scenario() -> Scenario {
    Scenario::default()
}

fn subject(name: &str, scenario: Scenario) -> ScenarioSource {
    ScenarioSource::Scenario { name: name.into(), scenario: Box::new(scenario) }
}

/// Half a day of three scenarios with two seeds each.
#[test]
fn reported_savings_hold_the_true_ones() {
    let calibration = Calibration {
        subjects: vec![
            subject("default", default_scenario()),
            ScenarioSource::ComeAndGo,
            ScenarioSource::EvenPhases { minutes: 60 },
        ],
        controllers: ["matrix", "matrix-literal", "power-cap", "frequency", "hybrid"].map(|name| name.parse().unwrap()).to_vec(),
        days: 0.5,
        seeds: 2,
        settings: ControllerSettings::default(),
        delay_seconds: 10.0,
    };
    let report = calibration.run(&|| ()).unwrap();
    let text = render_calibration_report(&report);
    println!("{text}");
    assert!(report.targets.iter().all(|asked| asked.is_met), "{text}");
    assert!(report.pairs > 20 && report.rows.len() == 16, "{text}");
    // A controller that changes only one setting returns to the starting setting in every phase.
    for row in report.rows.iter().filter(|row| row.controller == Some(ControllerName::PowerCap)) {
        assert!(row.compared_energy_ratio_mean.unwrap() > 0.95, "{text}");
    }
    let throughput = report.runs.iter().filter(|run| run.compared_energy_ratio.is_some_and(|part| part > 0.99));
    assert!(throughput.clone().count() > 10);
    for run in throughput {
        let apart = run.reported_throughput_ratio.unwrap() - run.true_throughput_ratio.unwrap();
        assert!(apart.abs() < 0.02, "{} {}: {apart}", run.scenario, run.controller);
    }
    let html = calibration_html(&report);
    assert!(html.contains("<svg") && html.contains("simulated") && !html.contains("://"), "{html}");
}

/// A job that writes a checkpoint of 40 s every 10 minutes: what it does not do then is no loss of a change.
#[test]
fn checkpoints_of_the_job_do_not_bias_a_saving() {
    let mut scenario = default_scenario();
    scenario.workloads.truncate(1);
    for job in &mut scenario.workloads {
        let profile = job.schedule.phases[0].profile;
        let phase = |name: &str, seconds, profile| WorkloadPhase { name: name.into(), seconds, profile };
        let checkpoint = WorkloadProfile { samples_per_second: 0.001, ..profile };
        let phases = vec![phase("training", 560.0, profile), phase("checkpoint", 40.0, checkpoint)];
        job.schedule = PhaseSchedule { phases, repeat: true };
    }
    let calibration = Calibration {
        subjects: vec![subject("checkpoints", scenario)],
        controllers: ["power-cap", "frequency"].map(|name| name.parse().unwrap()).to_vec(),
        days: 0.5,
        seeds: 4,
        settings: ControllerSettings::default(),
        delay_seconds: 10.0,
    };
    let report = calibration.run(&|| ()).unwrap();
    let text = render_calibration_report(&report);
    let all = &report.rows[0];
    assert!(all.coverage_ratio.unwrap() >= 0.85 && all.bias_mean.unwrap().abs() <= 0.02, "{text}");
}

#[test]
fn the_same_calibration_gives_the_same_bytes() {
    let calibration = Calibration {
        subjects: vec![ScenarioSource::EvenPhases { minutes: 5 }],
        controllers: vec![ControllerName::PowerCap],
        days: 0.1,
        seeds: 2,
        settings: ControllerSettings::default(),
        delay_seconds: 10.0,
    };
    let once = || serde_json::to_string(&calibration.run(&|| ()).unwrap()).unwrap();
    assert_eq!(once(), once());
    assert!(once().contains("\"origin\":\"simulated\""));
    // Runs in which nothing was changed have no figure and no verdict.
    let idle = Calibration { controllers: vec![ControllerName::Layers], ..calibration.clone() }.run(&|| ()).unwrap();
    assert_eq!((idle.rows[0].runs, idle.rows[0].true_ratio_mean), (0, None));
    let text = render_calibration_report(&idle);
    assert!(text.contains("- (not known)") && !text.contains("(missed)") && text.contains("| layers | 0 | 0 | - |"), "{text}");
    let none = Calibration { seeds: 0, ..calibration };
    assert!(none.run(&|| ()).unwrap_err().to_string().contains("seeds"));
}

/// Energy and samples of a window.
type Figures = (f64, f64);

/// Returns energy and samples of every window, by workload.
fn windows(contest: &BacktestPlan, seed: u64) -> BTreeMap<String, Vec<Figures>> {
    let mut all: BTreeMap<String, Vec<Figures>> = BTreeMap::new();
    let hybrid = Contender::Controller(ControllerName::Hybrid);
    trace(contest, &contest.subjects[0], hybrid, seed, &mut |_, window| {
        let figures = (window.run_energy_joules.unwrap(), window.samples.unwrap());
        all.entry(window.workload.clone()).or_default().push(figures);
    })
    .unwrap();
    all
}

/// The first day of the default scenario, no more threads than there are: in no clock hour after the first, and with no seed, less
/// is done than the floor promises, and nothing takes more energy.
#[test]
fn the_throughput_floor_of_hybrid_is_a_floor() {
    let mut scenario = default_scenario();
    for job in &mut scenario.workloads {
        job.bounds.oversubscription_percentage_max = Some(100);
    }
    let hybrid = BacktestPlan {
        subjects: vec![subject("clamped", scenario)],
        contenders: vec![],
        oversubscription: vec![Oversubscription::Allowed],
        days: 1.0,
        seeds: 10,
        settings: ControllerSettings::default(),
        delay_seconds: 10.0,
        power_budget_watts: None,
    };
    // Neither a cap nor a restart: the untouched run, window by window.
    let untouched =
        ControllerSettings { power_limit_min_ratio: 1.0, hybrid_restarts_per_day_max: 0, ..ControllerSettings::default() };
    let fixed = BacktestPlan { settings: untouched, ..hybrid.clone() };
    let sum = |of: &[Figures]| of.iter().fold((0.0, 0.0), |sum, window| (sum.0 + window.0, sum.1 + window.1));
    for seed in 0..hybrid.seeds {
        let (run, fixed) = (windows(&hybrid, seed), windows(&fixed, seed));
        for (workload, fixed) in &fixed {
            let run = &run[workload];
            let energy = sum(run).0 / sum(fixed).0;
            assert!(energy <= 1.03, "seed {seed}, {workload}: {energy} of the energy");
            let worst_of = |hours: Vec<f64>| hours.into_iter().fold(f64::INFINITY, f64::min);
            let ratio = |(run, fixed): (&[Figures], &[Figures])| sum(run).1 / sum(fixed).1;
            let worst = worst_of(run.chunks(60).zip(fixed.chunks(60)).skip(1).map(ratio).collect());
            assert!(worst >= 0.92, "seed {seed}, {workload}: {worst} of the throughput in an hour");
            // One that begins in a slow phase and ends in a fast one has the window in which the fast one is under the slow one's cap.
            let worst = worst_of(run.windows(60).zip(fixed.windows(60)).skip(60).map(ratio).collect());
            assert!(worst >= 0.89, "seed {seed}, {workload}: {worst} of the throughput in sixty minutes");
        }
    }
}
