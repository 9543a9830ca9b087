//! How fast days go by: the simulated cluster alone, and contests on one core and on all.

#![allow(clippy::disallowed_methods, reason = "a benchmark measures with the wall clock")]

use std::time::Instant;

use eadt_backtest::{BacktestPlan, Contender, Oversubscription, ScenarioSource};
use eadt_core::controller::{ControllerName, ControllerSettings};
use eadt_schemas::EventTime;
use eadt_simulator::{ClusterSimulation, FastForwardTotals, Scenario};

const DAY_SECONDS: f64 = 86_400.0;
const DAYS: f64 = 14.0;
const ROUNDS: usize = 5;

fn median(mut values: Vec<f64>) -> (f64, f64, f64) {
    values.sort_by(f64::total_cmp);
    (values[values.len() / 2], values[0], values[values.len() - 1])
}

/// The default scenario in steps of 60 s, without samples and without decisions.
fn alone() -> f64 {
    let scenario = Scenario::default();
    let jobs = scenario.workloads.len();
    let start = EventTime::from_seconds(1_767_225_600.0);
    let mut cluster = ClusterSimulation::new(scenario, start).expect("the built-in scenario is sound");
    let end = start.plus_seconds(DAYS * DAY_SECONDS);
    let began = Instant::now();
    let mut parts = vec![FastForwardTotals::default(); jobs];
    let mut to = start;
    while to < end {
        to = to.plus_seconds(60.0);
        while cluster.now() < to {
            let stop = cluster.next_transition().map_or(to, |next| next.min(to));
            cluster.fast_forward(stop, &mut parts);
        }
    }
    assert!(parts.iter().all(|part| part.energy_joules > 0.0));
    DAYS * DAY_SECONDS / began.elapsed().as_secs_f64()
}

fn contest(threads: usize) -> f64 {
    let contest = BacktestPlan {
        subjects: vec![ScenarioSource::RandomDays],
        contenders: vec![Contender::Controller(ControllerName::Hybrid)],
        oversubscription: vec![Oversubscription::Allowed],
        days: DAYS,
        seeds: 8,
        settings: ControllerSettings::default(),
        delay_seconds: 10.0,
        power_budget_watts: None,
    };
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads");
    let began = Instant::now();
    let runs = pool.install(|| contest.run(&|| ())).expect("a sound contest");
    runs.iter().map(|run| run.seconds).sum::<f64>() / began.elapsed().as_secs_f64()
}

fn main() {
    let (speed, low, high) = median((0..ROUNDS).map(|_| alone()).collect());
    println!(
        "simulated cluster alone, default scenario, steps of 60 s, one core: {speed:.0} × real time ({low:.0} to {high:.0}), asked 100,000"
    );
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    // In turns, so that a busy moment of the machine meets both.
    let (mut one, mut all) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        one.push(contest(1));
        all.push(contest(cores));
    }
    let ratios: Vec<f64> = one.iter().zip(&all).map(|(one, all)| all / one).collect();
    let ((one, ..), (all, ..), (ratio, least, most)) = (median(one), median(all), median(ratios));
    println!(
        "contests of hybrid on random days: {one:.0} × real time on one core, {all:.0} × on {cores}: {ratio:.2} times ({least:.2} to {most:.2})"
    );
}
