use std::collections::BTreeMap;

use serde::Serialize;

use crate::{BacktestRun, Contender, Oversubscription};

/// A figure over the seeds. Worst is the one that a user would mind most.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct SeedSpread {
    pub mean: f64,
    pub worst: f64,
    /// Sample standard deviation; absent with one seed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deviation: Option<f64>,
}

impl SeedSpread {
    /// Summarises values. `high_is_bad`: the largest value is the worst.
    pub(crate) fn of(values: &[f64], high_is_bad: bool) -> Option<Self> {
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let worst = values.iter().copied().reduce(if high_is_bad { f64::max } else { f64::min })?;
        let deviation = (values.len() > 1).then(|| (values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (n - 1.0)).sqrt());
        Some(Self { mean, worst, deviation })
    }
}

/// One contender on one workload of one scenario.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BacktestRow {
    pub scenario: String,
    pub workload: String,
    pub oversubscription: Oversubscription,
    pub controller: Contender,
    pub seeds: u64,
    pub joules_per_sample: SeedSpread,
    /// Change of J/sample against the fixed layout with the same seed: negative saves.
    pub joules_per_sample_change: SeedSpread,
    /// Throughput against the fixed layout with the same seed, restarts and lost work included.
    pub throughput_ratio: SeedSpread,
    pub restarts_per_day: SeedSpread,
    /// Most restarts of any seed within any 24 h.
    pub restarts_worst_day: u64,
    pub turns_per_day: SeedSpread,
    pub refused: u64,
    /// Highest power of all GPUs of the scenario together in a window of any seed, the first five windows apart.
    pub cluster_power_watts_max: f64,
    /// The change of each seed, in the order of the seeds.
    pub changes: Vec<f64>,
}

/// Result of a backtest.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BacktestReport {
    /// `simulated`: nothing of it was measured.
    pub origin: &'static str,
    pub days: f64,
    pub seeds: u64,
    pub rows: Vec<BacktestRow>,
}

impl BacktestReport {
    /// Sums up the runs of a contest; each is compared with the fixed layout's run of the same seed, which must be among them.
    pub fn of(runs: &[BacktestRun], days: f64, seeds: u64) -> Self {
        type Of<'a> = (&'a str, &'a str, Oversubscription);
        let mut fixed: BTreeMap<(Of<'_>, u64), &BacktestRun> = BTreeMap::new();
        let mut groups: Vec<((Of<'_>, Contender), Vec<&BacktestRun>)> = Vec::new();
        for run in runs {
            let of = (run.scenario.as_str(), run.workload.as_str(), run.oversubscription);
            if run.controller == Contender::Fixed {
                fixed.insert((of, run.seed), run);
            }
            match groups.iter_mut().find(|(key, _)| *key == (of, run.controller)) {
                Some((_, runs)) => runs.push(run),
                None => groups.push(((of, run.controller), vec![run])),
            }
        }
        // Rows of one comparison are adjacent, in any order of runs.
        let mut subjects: Vec<Of<'_>> = Vec::new();
        for ((of, _), _) in &groups {
            if !subjects.contains(of) {
                subjects.push(*of);
            }
        }
        groups.sort_by_key(|((of, _), _)| subjects.iter().position(|subject| subject == of));
        let rows = groups.iter().filter_map(|((of, controller), runs)| row(*of, *controller, runs, &fixed)).collect();
        Self { origin: "simulated", days, seeds, rows }
    }
}

fn row(
    of: (&str, &str, Oversubscription),
    controller: Contender,
    runs: &[&BacktestRun],
    fixed: &BTreeMap<((&str, &str, Oversubscription), u64), &BacktestRun>,
) -> Option<BacktestRow> {
    let mut joules = Vec::new();
    let mut changes = Vec::new();
    let mut throughput = Vec::new();
    let mut restarts = Vec::new();
    let mut turns = Vec::new();
    for run in runs {
        let base = fixed.get(&(of, run.seed))?;
        let days = run.seconds / 86_400.0;
        let per_sample = run.energy_joules / run.samples;
        joules.push(per_sample);
        changes.push(per_sample / (base.energy_joules / base.samples) - 1.0);
        throughput.push(run.samples / base.samples);
        restarts.push(run.restarts as f64 / days);
        turns.push(run.turns as f64 / days);
    }
    Some(BacktestRow {
        scenario: of.0.to_owned(),
        workload: of.1.to_owned(),
        oversubscription: of.2,
        controller,
        seeds: runs.len() as u64,
        joules_per_sample: SeedSpread::of(&joules, true)?,
        joules_per_sample_change: SeedSpread::of(&changes, true)?,
        throughput_ratio: SeedSpread::of(&throughput, false)?,
        restarts_per_day: SeedSpread::of(&restarts, true)?,
        restarts_worst_day: runs.iter().map(|run| run.restarts_worst_day).max().unwrap_or(0),
        turns_per_day: SeedSpread::of(&turns, true)?,
        refused: runs.iter().map(|run| run.refused).sum(),
        cluster_power_watts_max: runs.iter().map(|run| run.cluster_power_watts_max).fold(0.0, f64::max),
        changes,
    })
}
