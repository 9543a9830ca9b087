//! The simulated experiment: the paper's, and extensions.

use eadt_gpu_sharing::evaluate::{
    EvaluateSettings, EvaluationFindings, EvaluationSet, by_group, by_unseen_workload, elsewhere, workload_bars,
};
use eadt_gpu_sharing::{ChoiceSettings, SlowdownModel};
use eadt_simulator::gpu::BoardModel;
use eadt_simulator::sharing::{
    LabNoise, LabPlan, PAPER_MEMORY_GIB, SharedWorkload, SharingLab, paper_suite, stress_suite, tenths,
};

/// Measurements with noise, and the same without.
fn trial(suite: &[SharedWorkload], seed: u64, plan: impl Fn(&SharingLab) -> LabPlan) -> anyhow::Result<EvaluationSet> {
    let lab = |noise| SharingLab::new(BoardModel::V100, suite.to_vec(), noise);
    let (noisy, really) = (lab(LabNoise::usual(seed)), lab(LabNoise::NONE));
    Ok(EvaluationSet { measured: noisy.measure(&plan(&noisy))?, truth: really.measure(&plan(&really))? })
}

fn pairs(suite: &[SharedWorkload], seed: u64, partitions: &[Vec<u32>], clocks: &[Option<f64>]) -> anyhow::Result<EvaluationSet> {
    trial(suite, seed, |lab| LabPlan {
        groups: lab.pairs(PAPER_MEMORY_GIB),
        partitions: partitions.to_vec(),
        clocks: clocks.to_vec(),
    })
}

/// Returns the number of parts of the evaluation.
pub const fn parts(paper_only: bool) -> u64 {
    if paper_only { 2 } else { 7 }
}

/// Runs the evaluation. The callback receives the description of each of the [`parts`] before it starts.
pub fn run(settings: &EvaluateSettings, paper_only: bool, report_step: &dyn Fn(&str)) -> anyhow::Result<EvaluationFindings> {
    let mut findings = EvaluationFindings::default();
    let suite = paper_suite();
    let trial_of_pairs = pairs(&suite, settings.seed, &tenths(), &[None])?;
    report_step("pairs at nine partitions");
    by_group("pairs", &trial_of_pairs, settings, &mut findings)?;
    report_step("each workload unseen");
    by_unseen_workload("pairs with an unseen workload", &trial_of_pairs, settings, &mut findings)?;
    workload_bars(&trial_of_pairs, settings, &mut findings)?;
    if paper_only {
        return Ok(findings);
    }
    report_step("random workloads, each unseen");
    let stress = pairs(&stress_suite(16, settings.seed), settings.seed, &tenths(), &[None])?;
    by_unseen_workload("stress: random workloads, unseen", &stress, settings, &mut findings)?;

    let half = EvaluateSettings { training_ratios: vec![0.5], repeats: settings.repeats.min(2), ..settings.clone() };
    report_step("other objectives");
    let progress = EvaluateSettings { choice: ChoiceSettings { floor_ratio: None, ..ChoiceSettings::default() }, ..half.clone() };
    by_group("progress instead of the sum", &trial_of_pairs, &progress, &mut findings)?;
    let floor = EvaluateSettings { choice: ChoiceSettings::default(), ..half.clone() };
    by_group("progress, nobody below half", &trial_of_pairs, &floor, &mut findings)?;
    report_step("steps of 5 %");
    let fives: Vec<Vec<u32>> = (1..20).map(|part| vec![part * 5, 100 - part * 5]).collect();
    by_group("steps of 5 %", &pairs(&suite, settings.seed, &fives, &[None])?, &half, &mut findings)?;
    report_step("partition and clock");
    let clocks = [1380.0, 1155.0, 1005.0, 855.0, 705.0].map(Some);
    let clocked = pairs(&suite, settings.seed, &tenths(), &clocks)?;
    by_group("partition and clock", &clocked, &half, &mut findings)?;
    let held = EvaluateSettings { choice: ChoiceSettings::default(), ..half };
    by_group("partition and clock, progress, nobody below half", &clocked, &held, &mut findings)?;

    report_step("triples");
    let model = SlowdownModel::train(&trial_of_pairs.measured, &settings.forest)?;
    let triples = trial(&suite, settings.seed, |lab| LabPlan {
        groups: lab.triples(PAPER_MEMORY_GIB).into_iter().step_by(4).collect(),
        partitions: thirds(),
        clocks: vec![None],
    })?;
    elsewhere("triples by a model of pairs", &model, &triples, &ChoiceSettings::paper(), &mut findings)?;
    Ok(findings)
}

/// Returns equal shares and every partition in tenths.
fn thirds() -> Vec<Vec<u32>> {
    let mut all = vec![vec![33, 33, 33]];
    for a in (10..90).step_by(10) {
        all.extend((10..100 - a).step_by(10).map(|b| vec![a, b, 100 - a - b]));
    }
    all
}
