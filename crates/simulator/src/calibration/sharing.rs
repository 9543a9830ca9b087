use std::collections::BTreeMap;

use super::settled;
use crate::gpu::{BoardParameters, GpuProcess, OperatingLimits};
use crate::sharing::{SharedWorkload, SharingLab, tenths};

/// Gain in summed samples per joule of the best of nine partitions over equal shares.
#[derive(Debug, Clone, PartialEq)]
pub struct PairGains {
    pub pairs: usize,
    /// Mean gain of the pairs that each workload is part of.
    pub workloads: BTreeMap<String, f64>,
}

impl PairGains {
    /// Returns the mean over the workloads.
    pub fn mean(&self) -> f64 {
        self.workloads.values().sum::<f64>() / self.workloads.len() as f64
    }

    /// Returns the gain of the workload that gains most.
    pub fn largest(&self) -> f64 {
        self.workloads.values().copied().fold(0.0, f64::max)
    }
}

/// Simulates, without noise, every pair of a suite whose memory fits into `memory_gib`.
pub fn equal_against_best(board: &BoardParameters, suite: &[SharedWorkload], lab: &SharingLab, memory_gib: f64) -> PairGains {
    let pairs = lab.pairs(memory_gib);
    let mut sums: BTreeMap<String, (f64, f64)> = BTreeMap::new();
    for pair in &pairs {
        let efficiency = |shares: &[u32]| {
            let runners = pair.iter().zip(shares);
            let runners: Vec<GpuProcess> =
                runners.map(|(w, share)| GpuProcess { profile: suite[*w].profile, share: f64::from(*share) / 100.0 }).collect();
            let steady = settled(board, &runners, OperatingLimits::default());
            steady.samples_per_second.iter().sum::<f64>() / steady.power_watts
        };
        let best = tenths().iter().map(|shares| efficiency(shares)).fold(0.0, f64::max);
        let gain = best / efficiency(&[50, 50]) - 1.0;
        let mut names: Vec<&str> = pair.iter().map(|w| suite[*w].name.as_str()).collect();
        names.dedup();
        for name in names {
            let (sum, count) = sums.entry(name.to_owned()).or_default();
            *sum += gain;
            *count += 1.0;
        }
    }
    PairGains { pairs: pairs.len(), workloads: sums.into_iter().map(|(name, (sum, count))| (name, sum / count)).collect() }
}

/// Returns the mean over all pairs of a suite of the speeds side by side without shares, each over its speed alone, summed.
pub fn mean_sharing_gain(board: &BoardParameters, suite: &[SharedWorkload]) -> f64 {
    let runner = |workload: &SharedWorkload| GpuProcess { profile: workload.profile, share: 1.0 };
    let alone: Vec<f64> =
        suite.iter().map(|w| settled(board, &[runner(w)], OperatingLimits::default()).samples_per_second[0]).collect();
    let (mut sum, mut count) = (0.0, 0.0);
    for (a, first) in suite.iter().enumerate() {
        for (b, second) in suite.iter().enumerate().skip(a) {
            let rates = settled(board, &[runner(first), runner(second)], OperatingLimits::default()).samples_per_second;
            sum += rates[0] / alone[a] + rates[1] / alone[b];
            count += 1.0;
        }
    }
    sum / count
}
