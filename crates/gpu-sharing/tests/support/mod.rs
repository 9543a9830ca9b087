//! What several tests need.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::path::{Path, PathBuf};

use eadt_gpu_sharing::evaluate::EvaluationSet;
use eadt_simulator::gpu::BoardModel;
use eadt_simulator::sharing::{Lab, LabNoise, PAPER_MEMORY_GIB, Plan, SharedWorkload, paper_suite, tenths};

/// Measurements by others, or `None` with a message.
pub fn shared(name: &str) -> Option<PathBuf> {
    let root = std::env::var_os("EADT_TEST_SHARED_DATA")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data"), PathBuf::from);
    let folder = root.join(name);
    if folder.is_dir() {
        return Some(folder);
    }
    eprintln!("skipped: no measurements by others in {}", folder.display());
    None
}

/// Simulated measurements with noise, and the same without.
pub fn trial(suite: &[SharedWorkload], seed: u64, plan: impl Fn(&Lab) -> Plan) -> EvaluationSet {
    let lab = |noise| Lab::new(BoardModel::V100, suite.to_vec(), noise);
    let (seen, really) = (lab(LabNoise::usual(seed)), lab(LabNoise::NONE));
    EvaluationSet { measured: seen.measure(&plan(&seen)).unwrap(), truth: really.measure(&plan(&really)).unwrap() }
}

/// The paper's 121 pairs at nine partitions each.
pub fn paper_pairs(seed: u64) -> EvaluationSet {
    trial(&paper_suite(), seed, |lab| Plan { groups: lab.pairs(PAPER_MEMORY_GIB), partitions: tenths(), clocks: vec![None] })
}
