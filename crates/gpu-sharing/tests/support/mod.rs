//! Shared parts of several tests.
#![allow(dead_code, reason = "each test binary uses its own part")]

use eadt_gpu_sharing::evaluate::EvaluationSet;
use eadt_simulator::gpu::BoardModel;
use eadt_simulator::sharing::{LabNoise, LabPlan, PAPER_MEMORY_GIB, SharedWorkload, SharingLab, paper_suite, tenths};

/// Simulated measurements with noise, and the same without.
pub fn trial(suite: &[SharedWorkload], seed: u64, plan: impl Fn(&SharingLab) -> LabPlan) -> EvaluationSet {
    let lab = |noise| SharingLab::new(BoardModel::V100, suite.to_vec(), noise);
    let (seen, really) = (lab(LabNoise::usual(seed)), lab(LabNoise::NONE));
    EvaluationSet { measured: seen.measure(&plan(&seen)).unwrap(), truth: really.measure(&plan(&really)).unwrap() }
}

/// Returns the paper's 121 pairs at nine partitions each.
pub fn paper_pairs(seed: u64) -> EvaluationSet {
    trial(&paper_suite(), seed, |lab| LabPlan { groups: lab.pairs(PAPER_MEMORY_GIB), partitions: tenths(), clocks: vec![None] })
}
