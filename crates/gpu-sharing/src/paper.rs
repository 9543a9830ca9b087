//! The predictor of the paper that the idea comes from: one row a pair and partition, sums and means of the two workloads'
//! counters, and the pair's throughput sum and power as targets. Kept to compare with; it knows pairs only.

use crate::forest::{Forest, ForestSettings, TrainingSamples};
use crate::slowdown::TrainError;
use crate::{GpuMeasurements, GpuTenants, PredictionError, ProfileMetric, ShareCandidate, SoloPoint};

/// Throughput sum and power of a pair.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PairSum {
    /// Sum of both workloads' throughputs, whatever their units.
    pub samples_per_second: f64,
    pub power_watts: f64,
}

/// Two forests over the features of the paper. Min-max scaling is left out: it changes no split of a tree.
#[derive(Debug, Clone, PartialEq)]
pub struct PaperModel {
    metrics: Vec<ProfileMetric>,
    rates: Forest,
    power: Forest,
}

impl PaperModel {
    /// Learns from some of the co-runs of pairs, by number.
    pub fn train_on(measurements: &GpuMeasurements, runs: &[usize], settings: &ForestSettings) -> Result<Self, TrainError> {
        let metrics = measurements.metrics();
        if metrics.is_empty() {
            return Err(TrainError::NoMetrics);
        }
        let mut rows = Vec::new();
        for run in runs.iter().map(|run| &measurements.runs()[*run]).filter(|run| run.tenants.len() == 2) {
            let tenants = run.tenants.iter().map(|tenant| &measurements.profiles()[&tenant.workload]).collect();
            let together = GpuTenants::new(tenants, measurements.idle_watts())?;
            let shares = run.tenants.iter().map(|tenant| tenant.mps_thread_percentage).collect();
            let alone = together.alone(&ShareCandidate { mps_thread_percentages: shares, sm_clock_mhz: run.sm_clock_mhz })?;
            let sum: f64 = run.tenants.iter().map(|tenant| tenant.samples_per_second).sum();
            rows.push((row(&metrics, &together, &alone)?, sum, run.power_watts));
        }
        if rows.is_empty() {
            return Err(TrainError::NoRuns);
        }
        let names = || names(&metrics);
        let rates = TrainingSamples::new(names(), rows.iter().map(|(row, sum, _)| (row.as_slice(), *sum)))?;
        // Power is learned without throughput and sensitivity, which come last.
        let few = metrics.len();
        let power = TrainingSamples::new(names()[..few].to_vec(), rows.iter().map(|(row, _, power)| (&row[..few], *power)))?;
        Ok(Self {
            rates: Forest::grow(&rates, settings)?,
            power: Forest::grow(&power, &ForestSettings { seed: settings.seed.wrapping_add(1), ..*settings })?,
            metrics,
        })
    }

    /// Returns a prediction for every candidate, in their order.
    pub fn predict(&self, together: &GpuTenants<'_>, candidates: &[ShareCandidate]) -> Result<Vec<PairSum>, PredictionError> {
        let (mut rate_rows, mut power_rows) = (Vec::new(), Vec::new());
        for candidate in candidates {
            let row = row(&self.metrics, together, &together.alone(candidate)?)?;
            power_rows.extend_from_slice(&row[..self.metrics.len()]);
            rate_rows.extend(row);
        }
        let predict_trees =
            |forest: &Forest, rows: &[f64]| forest.predict_trees(rows).expect("profiles are checked, so every feature is finite");
        let (rates, power) = (predict_trees(&self.rates, &rate_rows), predict_trees(&self.power, &power_rows));
        let of = |i| PairSum { samples_per_second: rates.mean(i), power_watts: power.mean(i) };
        Ok((0..candidates.len()).map(of).collect())
    }
}

fn names(metrics: &[ProfileMetric]) -> Vec<String> {
    let metrics = metrics.iter().map(|metric| metric.name().to_owned());
    metrics.chain(["samples_per_second".to_owned(), "sensitivity".to_owned()]).collect()
}

/// Ratios are averaged, everything else is added.
fn row(metrics: &[ProfileMetric], together: &GpuTenants<'_>, alone: &[SoloPoint]) -> Result<Vec<f64>, PredictionError> {
    let tenants = together.tenants();
    let mut row = Vec::with_capacity(metrics.len() + 2);
    for metric in metrics {
        let mut sum = 0.0;
        for (tenant, point) in tenants.iter().zip(alone) {
            let missing = || PredictionError::Metric { workload: tenant.workload().to_owned(), metric: metric.name() };
            sum += point.counters.get(*metric).ok_or_else(missing)?;
        }
        row.push(if metric.is_ratio() { sum / alone.len() as f64 } else { sum });
    }
    row.push(alone.iter().map(|point| point.samples_per_second).sum());
    row.push(tenants.iter().map(|tenant| tenant.elasticity() * tenant.whole().samples_per_second).sum());
    Ok(row)
}
