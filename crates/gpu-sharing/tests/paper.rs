//! The paper's experiment, simulated: what is asked of the predictor, held on every run.

use crate::support;

use eadt_gpu_sharing::evaluate::{
    EvaluateError, EvaluateSettings, EvaluatedMethod, EvaluationFindings, EvaluationSet, by_group, by_unseen_workload, elsewhere,
    workload_bars,
};
use eadt_gpu_sharing::forest::ForestSettings;
use eadt_gpu_sharing::{ChoiceSettings, GpuMeasurements, SlowdownModel};
use eadt_simulator::sharing::{LabPlan, PAPER_MEMORY_GIB, paper_suite};

fn percent(ratio: f64) -> f64 {
    ratio * 100.0
}

/// Half of the pairs train, the others test; then each workload in turn is unseen.
#[test]
fn the_papers_experiment_reaches_what_is_asked() {
    let trial = support::paper_pairs(1);
    assert_eq!(trial.measured.groups().len(), 121);
    assert_eq!(trial.measured.runs().len(), 121 * 9);
    let settings = EvaluateSettings { training_ratios: vec![0.5], repeats: 3, ..EvaluateSettings::default() };
    let mut findings = EvaluationFindings::default();
    by_group("pairs", &trial, &settings, &mut findings).unwrap();
    by_unseen_workload("unseen workload", &trial, &settings, &mut findings).unwrap();
    println!("{}", findings.text());
    let of_oracle = |split, method| percent(findings.score(split, method).unwrap().of_oracle_ratio);
    let half = "pairs, 50 % training";
    assert!(of_oracle(half, EvaluatedMethod::Paper) >= 98.5);
    for split in [half, "unseen workload"] {
        let score = |method| findings.score(split, method).unwrap();
        // 99.8 is asked; with this seed it is 99.81 and 99.83. A different rounding of a logarithm may change a choice.
        assert!(of_oracle(split, EvaluatedMethod::SlowdownMean) >= 99.7, "{split}: {:?}", score(EvaluatedMethod::SlowdownMean));
        // The careful choice costs about a tenth of a point, and is worse than equal shares less often.
        assert!(
            of_oracle(split, EvaluatedMethod::SlowdownQuantile) >= 99.6,
            "{split}: {:?}",
            score(EvaluatedMethod::SlowdownQuantile)
        );
        let worse = |method| score(method).worse_than_equal_ratio;
        assert!(worse(EvaluatedMethod::SlowdownQuantile) < 0.75 * worse(EvaluatedMethod::SlowdownMean), "{split}");
        // Learning beats adding, for predictions and for choices.
        let error = |method| score(method).throughput_error_ratio.unwrap();
        assert!(error(EvaluatedMethod::SlowdownMean) < 0.5 * error(EvaluatedMethod::Additive), "{split}");
        assert!(
            score(EvaluatedMethod::SlowdownMean).of_oracle_ratio > score(EvaluatedMethod::Additive).of_oracle_ratio,
            "{split}"
        );
        assert!(of_oracle(split, EvaluatedMethod::Oracle) == 100.0 && score(EvaluatedMethod::Equal).gain_mean_ratio == 0.0);
    }
    let few = EvaluateSettings { forest: ForestSettings { trees: 30, ..SlowdownModel::FOREST }, ..settings };
    workload_bars(&trial, &few, &mut findings).unwrap();
    let (mean, largest) = findings.workload_gains().unwrap();
    // Of the paper, measured: 35 % on average, 60.6 % for the best workload.
    assert!(mean >= 0.35, "{mean}");
    assert!((0.55..0.70).contains(&largest), "{largest}");
    assert_eq!(findings.workloads.len(), 16);
}

/// Three on a GPU, by a model that saw only pairs.
#[test]
fn pairs_teach_triples() {
    let pairs = support::paper_pairs(1);
    let triples = support::trial(&paper_suite(), 1, |lab| {
        let mut partitions = vec![vec![33, 33, 33]];
        for a in (10..90).step_by(10) {
            partitions.extend((10..100 - a).step_by(10).map(|b| vec![a, b, 100 - a - b]));
        }
        let groups = lab.triples(PAPER_MEMORY_GIB).into_iter().step_by(9).collect();
        LabPlan { groups, partitions, clocks: vec![None] }
    });
    let forest = ForestSettings { trees: 50, ..SlowdownModel::FOREST };
    let model = SlowdownModel::train(&pairs.measured, &forest).unwrap();
    let mut findings = EvaluationFindings::default();
    elsewhere("triples", &model, &triples, &ChoiceSettings::paper(), &mut findings).unwrap();
    println!("{}", findings.text());
    let score = |method| findings.score("triples", method).unwrap();
    assert!(score(EvaluatedMethod::SlowdownMean).choices >= 30);
    assert!(score(EvaluatedMethod::SlowdownMean).of_oracle_ratio >= 0.995, "{:?}", score(EvaluatedMethod::SlowdownMean));
    assert!(
        score(EvaluatedMethod::SlowdownMean).throughput_error_ratio < score(EvaluatedMethod::Additive).throughput_error_ratio
    );
}

#[test]
fn the_same_seed_finds_the_same() {
    let trial = support::paper_pairs(1);
    let forest = ForestSettings { trees: 5, ..ForestSettings::default() };
    let settings = EvaluateSettings { forest, training_ratios: vec![0.2], repeats: 2, seed: 5, ..EvaluateSettings::default() };
    let run = |settings: &EvaluateSettings| {
        let mut findings = EvaluationFindings::default();
        by_group("pairs", &trial, settings, &mut findings).unwrap();
        findings
    };
    assert_eq!(run(&settings), run(&settings));
    assert_ne!(run(&settings), run(&EvaluateSettings { seed: 6, ..settings.clone() }));
}

#[test]
fn experiments_that_mean_nothing_are_refused() {
    let whole = support::paper_pairs(1).measured;
    let cut = |keep: &dyn Fn(usize, &eadt_gpu_sharing::CoRun) -> bool| {
        let runs = whole.runs().iter().enumerate().filter(|(i, run)| keep(*i, run)).map(|(_, run)| run.clone()).collect();
        GpuMeasurements::new(whole.idle_watts(), whole.profiles().values().cloned().collect(), runs).unwrap()
    };
    let error = |trial: &EvaluationSet, settings: &EvaluateSettings| {
        by_group("pairs", trial, settings, &mut EvaluationFindings::default()).unwrap_err()
    };
    let settings = EvaluateSettings { repeats: 1, ..EvaluateSettings::default() };
    assert!(matches!(error(&EvaluationSet::of(cut(&|i, _| i < 27)), &settings), EvaluateError::Few { groups: 3 }));
    let unequal = cut(&|_, run| run.tenants[0].mps_thread_percentage != 50);
    let text = error(&EvaluationSet::of(unequal), &settings).to_string();
    assert!(text.contains("was not measured at equal shares (50 % each)"), "{text}");
    let apart = EvaluationSet { measured: cut(&|i, _| i < 90), truth: cut(&|i, _| i < 81) };
    assert!(matches!(error(&apart, &settings), EvaluateError::Differ { run: 81 }));
    let ratio = EvaluateSettings { training_ratios: vec![1.0], ..settings };
    assert!(matches!(error(&EvaluationSet::of(whole.clone()), &ratio), EvaluateError::Ratio { .. }));
}
