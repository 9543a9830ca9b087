use eadt_gpu_sharing::SlowdownModel;
use eadt_gpu_sharing::evaluate::{
    EvaluateSettings, EvaluatedMethod, EvaluationFindings, EvaluationSet, by_group, by_unseen_workload,
};
use eadt_gpu_sharing::forest::ForestSettings;
use eadt_simulator::gpu::BoardModel;
use eadt_simulator::sharing::{LabNoise, LabPlan, PAPER_MEMORY_GIB, SharingLab, paper_suite, tenths};

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let trees: usize = args[1].parse().unwrap();
    let leaf: usize = args[2].parse().unwrap();
    let noisy = args.get(3).is_none_or(|a| a != "quiet");
    let (mut u, mut g) = (Vec::new(), Vec::new());
    for seed in 0..6_u64 {
        let suite = paper_suite();
        let lab = |noise| SharingLab::new(BoardModel::V100, suite.clone(), noise);
        let (seen, really) = (lab(if noisy { LabNoise::usual(seed) } else { LabNoise::NONE }), lab(LabNoise::NONE));
        let plan = |lab: &SharingLab| LabPlan { groups: lab.pairs(PAPER_MEMORY_GIB), partitions: tenths(), clocks: vec![None] };
        let trial =
            EvaluationSet { measured: seen.measure(&plan(&seen)).unwrap(), truth: really.measure(&plan(&really)).unwrap() };
        let forest = ForestSettings { trees: trees as u32, leaf_min: leaf as u32, ..SlowdownModel::FOREST };
        let settings = EvaluateSettings { forest, seed, training_ratios: vec![0.5], repeats: 5, ..EvaluateSettings::default() };
        let mut f = EvaluationFindings::default();
        by_unseen_workload("u", &trial, &settings, &mut f).unwrap();
        by_group("g", &trial, &settings, &mut f).unwrap();
        let s = |split: &str, m| f.score(split, m).unwrap().of_oracle_ratio * 100.0;
        u.push((
            s("u", EvaluatedMethod::SlowdownMean),
            s("u", EvaluatedMethod::SlowdownQuantile),
            s("u", EvaluatedMethod::Additive),
        ));
        g.push((s("g, 50 % training", EvaluatedMethod::SlowdownMean), s("g, 50 % training", EvaluatedMethod::SlowdownQuantile)));
    }
    let mean = |v: &[f64]| v.iter().sum::<f64>() / v.len() as f64;
    println!("trees {trees} leaf {leaf} noisy {noisy}");
    println!(
        " unseen mean {:.3} (min {:.3}) quartile {:.3} additive {:.3}",
        mean(&u.iter().map(|x| x.0).collect::<Vec<_>>()),
        u.iter().map(|x| x.0).fold(f64::MAX, f64::min),
        mean(&u.iter().map(|x| x.1).collect::<Vec<_>>()),
        mean(&u.iter().map(|x| x.2).collect::<Vec<_>>())
    );
    println!(
        " half   mean {:.3} (min {:.3}) quartile {:.3}",
        mean(&g.iter().map(|x| x.0).collect::<Vec<_>>()),
        g.iter().map(|x| x.0).fold(f64::MAX, f64::min),
        mean(&g.iter().map(|x| x.1).collect::<Vec<_>>())
    );
    println!(" unseen by seed {:?}", u.iter().map(|x| (x.0 * 100.0).round() / 100.0).collect::<Vec<_>>());
}
