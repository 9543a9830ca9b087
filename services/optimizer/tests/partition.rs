//! The slowdown model of a board, learned from windows of jobs that were alone on a GPU and of jobs that shared one.

use std::collections::BTreeMap;

use eadt_gpu_sharing::published::SharingModelDocument;
use eadt_gpu_sharing::{
    AdditivePredictor, ChoiceSettings, CoRun, GpuMeasurements, GpuTenants, ProfileMetric, ShareCandidate, SharePredictor,
    SoloPoint, SoloProfile, choose,
};
use eadt_models::published::partition_name;
use eadt_optimizer::{ModelProposal, ModelVerdict, OptimizerSettings, TrainingData, learn};
use eadt_schemas::EventTime;
use eadt_schemas::v1::{EfficiencyWindow, Layout, Model, Origin, Workload};
use eadt_simulator::gpu::BoardModel;
use eadt_simulator::sharing::{LabNoise, LabPlan, PAPER_MEMORY_GIB, SharingLab, paper_suite, tenths};

/// Windows of each setting, and the shares at which each job was alone.
const WINDOWS: i64 = 3;
const ALONE: [u32; 4] = [10, 20, 50, 100];

fn minute(n: i64) -> EventTime {
    EventTime::from_micros(1_767_225_600_000_000 + n * 60_000_000)
}

/// Simulated measurements of pairs of the paper's suite, at five partitions each.
fn measured(seed: u64) -> GpuMeasurements {
    let lab = SharingLab::new(BoardModel::V100, paper_suite(), LabNoise::usual(seed));
    let pairs = lab.pairs(PAPER_MEMORY_GIB).into_iter().filter(|pair| pair[0] != pair[1]);
    // Not in the order of the suite: neighbours there are alike.
    let mut groups: Vec<Vec<usize>> = pairs.collect();
    groups.sort_by_key(|pair| (pair[0] * 7 + pair[1] * 11) % 16);
    let partitions = [10, 30, 50, 70, 90].map(|share| vec![share, 100 - share]).to_vec();
    lab.measure(&LabPlan { groups, partitions, clocks: vec![None] }).unwrap()
}

fn window(workload: &str, at: i64, share: u32, samples_per_second: f64, watts: f64) -> EfficiencyWindow {
    EfficiencyWindow {
        id: format!("{workload}/{at}"),
        workload: workload.to_owned(),
        window_start: minute(at),
        window_end: minute(at + 1),
        origin: Origin::Simulated,
        energy_coverage_ratio: 1.0,
        progress_coverage_ratio: 1.0,
        joules_per_sample: Some(watts / samples_per_second),
        samples_per_second: Some(samples_per_second),
        mean_power_watts: Some(watts),
        mean_power_per_gpu_watts: Some(watts),
        layout: Some(Layout { replicas: Some(1), mps_thread_percentage: Some(share), ..Layout::default() }),
        gpus: 1,
        ..EfficiencyWindow::default()
    }
}

/// Returns the windows that such measurements would have left: each job alone at some shares, then so many of the pairs, one
/// after the other.
fn windows(measured: &GpuMeasurements, pairs: usize) -> Vec<EfficiencyWindow> {
    windows_of(measured, 5 * pairs)
}

fn windows_of(measured: &GpuMeasurements, runs: usize) -> Vec<EfficiencyWindow> {
    let mut windows = Vec::new();
    for (profile, at) in measured.profiles().values().zip((0..).step_by(20)) {
        let points: Vec<&SoloPoint> = profile.points().filter(|point| ALONE.contains(&point.mps_thread_percentage)).collect();
        for (point, at) in points.into_iter().zip((at..).step_by(5)) {
            for n in 0..WINDOWS {
                let share = point.mps_thread_percentage;
                windows.push(EfficiencyWindow {
                    mean_sm_active_ratio: point.counters.get(ProfileMetric::SmActiveRatio),
                    mean_sm_occupancy_ratio: point.counters.get(ProfileMetric::SmOccupancyRatio),
                    mean_dram_active_ratio: point.counters.get(ProfileMetric::DramActiveRatio),
                    mean_memory_utilization_ratio: point.counters.get(ProfileMetric::MemoryBusyRatio),
                    ..window(profile.workload(), at + n, share, point.samples_per_second, point.power_watts)
                });
            }
        }
    }
    for (run, at) in measured.runs().iter().take(runs).zip((1_000..).step_by(5)) {
        for n in 0..WINDOWS {
            for tenant in &run.tenants {
                let share = tenant.mps_thread_percentage;
                windows.push(EfficiencyWindow {
                    tenants: Some(2),
                    shared_devices: vec!["GPU-0".to_owned()],
                    ..window(&tenant.workload, at + n, share, tenant.samples_per_second, run.power_watts / 2.0)
                });
            }
        }
    }
    windows
}

fn training(measured: &GpuMeasurements, windows: Vec<EfficiencyWindow>) -> TrainingData {
    let workload = |name: &String| Workload {
        workload: name.clone(),
        gpu_model: Some(measured.gpu_model().to_owned()),
        ..Workload::default()
    };
    TrainingData {
        windows,
        workloads: measured.profiles().keys().map(|name| (name.clone(), workload(name))).collect(),
        fingerprint: "f".to_owned(),
    }
}

fn settings() -> OptimizerSettings {
    OptimizerSettings { location: "unused".to_owned(), ..OptimizerSettings::default() }
}

fn propose(training: &TrainingData, present: &BTreeMap<String, Model>) -> Option<ModelProposal> {
    let proposals = learn(training, present, &settings(), minute(100_000));
    proposals.into_iter().find(|proposal| proposal.name.starts_with("partition/"))
}

fn first(measured: &GpuMeasurements, windows: Vec<EfficiencyWindow>) -> ModelProposal {
    propose(&training(measured, windows), &BTreeMap::new()).unwrap()
}

#[test]
fn what_jobs_do_to_each_other_is_learned_and_beats_adding_up() {
    let measured = measured(1);
    for pairs in [12, 40, 100] {
        let proposal = first(&measured, windows(&measured, pairs));
        let figure = |name: &str| proposal.metrics[name];
        println!(
            "{pairs} pairs: throughput {:.1} %, power {:.1} %; adding up misses by {:.1} % [simulated]",
            figure("held_back_throughput_mape_ratio") * 100.0,
            figure("held_back_power_mape_ratio") * 100.0,
            figure("held_back_additive_mape_ratio") * 100.0
        );
        assert_eq!(proposal.verdict, ModelVerdict::Publish, "{}", proposal.reason);
        assert_eq!(figure("sets"), pairs as f64);
        assert_eq!(figure("held_back_sets"), (pairs as f64 / 4.0).round());
        assert_eq!(figure("training_co_runs") + figure("held_back_co_runs"), 5.0 * pairs as f64);
        assert!(figure("held_back_mape_ratio") < 0.85 * figure("held_back_additive_mape_ratio"), "{:?}", proposal.metrics);
        let model = proposal.model.as_ref().unwrap();
        assert_eq!((&model.name, model.version.as_str()), (&partition_name(measured.gpu_model()), "1"));
        assert_eq!(model.parameters["origin"], "simulated");
        let last = 1_000 + 25 * (pairs as i64 - (pairs as f64 / 4.0).round() as i64) - 5 + WINDOWS;
        assert_eq!(model.parameters["trained_to"], serde_json::to_value(minute(last)).unwrap(), "held back is not trained on");
        let read: Model = serde_json::from_slice(&serde_json::to_vec(model).unwrap()).unwrap();
        let document = SharingModelDocument::of(&read).unwrap().unwrap();
        assert_eq!(document.model.gpu_model(), measured.gpu_model());
        assert!(serde_json::to_vec(model).unwrap().len() < 1_000_000, "Kafka's default takes no more");
    }
}

/// Learns from twenty pairs at two partitions, as the controller leaves them, and predicts pairs that were not measured.
#[test]
fn few_pairs_are_enough_to_choose_better_for_others_than_adding_up() {
    let mean = ChoiceSettings { risk_quantile: None, gain_min_ratio: 0.02, ..ChoiceSettings::default() };
    let quartile = ChoiceSettings { risk_quantile: Some(0.25), ..mean };
    let (mut gains, mut losses, mut worse, mut best, mut choices, mut published) = ([0.0; 3], [0.0; 3], [0; 3], 0.0, 0, 0);
    for seed in 0..6 {
        let lab = |noise| SharingLab::new(BoardModel::V100, paper_suite(), noise);
        let (seen, really) = (lab(LabNoise::usual(seed)), lab(LabNoise::NONE));
        let mut groups: Vec<Vec<usize>> = seen.pairs(PAPER_MEMORY_GIB).into_iter().filter(|pair| pair[0] != pair[1]).collect();
        groups.sort_by_key(|pair| (pair[0] * 131 + pair[1] * 31 + 17 * seed as usize) % 101);
        let others = groups.split_off(20);
        let learned_from = LabPlan { groups, partitions: vec![vec![50, 50], vec![30, 70]], clocks: vec![None] };
        let measured = seen.measure(&learned_from).unwrap();
        let Some(event) = first(&measured, windows_of(&measured, 40)).model else { continue };
        published += 1;
        let model = SharingModelDocument::of(&event).unwrap().unwrap().model;
        let truth = really.measure(&LabPlan { groups: others, partitions: tenths(), clocks: vec![None] }).unwrap();
        for group in truth.groups() {
            let runs: Vec<&CoRun> = truth.runs().iter().filter(|run| run.group() == group).collect();
            let profiles = runs[0].tenants.iter().map(|tenant| &measured.profiles()[&tenant.workload]).collect();
            let together = GpuTenants::new(profiles, model.idle_watts()).unwrap();
            let candidates = together.candidates(10, &[None]).unwrap();
            let run_of = |candidate: &ShareCandidate| {
                let is_it = |run: &&&CoRun| {
                    run.tenants
                        .iter()
                        .map(|tenant| tenant.mps_thread_percentage)
                        .eq(candidate.mps_thread_percentages.iter().copied())
                };
                *runs.iter().find(is_it).unwrap()
            };
            let per_watt = |candidate: &ShareCandidate| {
                let run = run_of(candidate);
                let whole = |name: &String| truth.profiles()[name].whole().samples_per_second;
                let work: f64 = run.tenants.iter().map(|tenant| tenant.samples_per_second / whole(&tenant.workload)).sum();
                work / run.power_watts
            };
            let gain = |candidate: &ShareCandidate| per_watt(candidate) / per_watt(&candidates[0]) - 1.0;
            let keeps_floor = |candidate: &&ShareCandidate| {
                let equal = &run_of(&candidates[0]).tenants;
                let kept = run_of(candidate)
                    .tenants
                    .iter()
                    .zip(equal)
                    .map(|(own, equal)| own.samples_per_second / equal.samples_per_second);
                kept.fold(f64::INFINITY, f64::min) >= mean.floor_ratio.unwrap()
            };
            choices += 1;
            best += candidates.iter().filter(keeps_floor).map(gain).fold(0.0, f64::max);
            let ways = [(&model as &dyn SharePredictor, &mean), (&model, &quartile), (&AdditivePredictor, &mean)];
            for (i, (predictor, choice)) in ways.into_iter().enumerate() {
                let outlook = predictor.predict(&together, &candidates).unwrap();
                let taken = gain(&choose(&together, &candidates, &outlook, choice).candidate);
                gains[i] += taken;
                if taken < -0.001 {
                    (worse[i], losses[i]) = (worse[i] + 1, losses[i] - taken);
                }
            }
        }
    }
    let count = f64::from(choices);
    println!(
        "{published} of 6 published, {choices} choices [simulated]; the best partitions: {:+.2} % work per joule",
        best / count * 100.0
    );
    for (i, way) in ["mean of the trees", "their quartile", "adding up"].into_iter().enumerate() {
        println!(
            "{way}: {:+.2} % against equal shares, worse in {:.1} % of the cases by {:.2} % on average",
            gains[i] / count * 100.0,
            f64::from(worse[i]) / count * 100.0,
            losses[i] / f64::from(worse[i]) * 100.0
        );
    }
    assert!(published >= 5 && choices > 300 && gains[0] > gains[2], "{published} {choices} {gains:?}");
}

#[test]
fn a_document_that_would_be_too_large_has_fewer_trees() {
    let measured = measured(1);
    let mut all = windows(&measured, 100);
    // The same pairs once more, at the shares between, later.
    let lab = SharingLab::new(BoardModel::V100, paper_suite(), LabNoise::usual(3));
    let groups: Vec<Vec<usize>> = lab.pairs(PAPER_MEMORY_GIB).into_iter().filter(|pair| pair[0] != pair[1]).collect();
    let partitions = [20, 40, 60, 80].map(|share| vec![share, 100 - share]).to_vec();
    let more = lab.measure(&LabPlan { groups, partitions, clocks: vec![None] }).unwrap();
    all.extend(windows(&more, 125).into_iter().filter(|window| window.tenants.is_some()).map(|window| EfficiencyWindow {
        window_start: window.window_start.plus_seconds(1e6),
        window_end: window.window_end.plus_seconds(1e6),
        ..window
    }));
    let proposal = first(&measured, all);
    let model = proposal.model.as_ref().unwrap();
    let bytes = serde_json::to_vec(model).unwrap().len();
    println!("{} co-runs, {} trees, {bytes} bytes", proposal.metrics["co_runs"], proposal.metrics["trees"]);
    assert!(proposal.metrics["co_runs"] > 900.0 && (40.0..100.0).contains(&proposal.metrics["trees"]), "{:?}", proposal.metrics);
    assert!((800_000..1_000_000).contains(&bytes));
}

#[test]
fn a_version_stays_until_a_better_one_is_there() {
    let measured = measured(1);
    let few = training(&measured, windows(&measured, 8));
    let old = propose(&few, &BTreeMap::new()).unwrap().model.unwrap();
    let present = BTreeMap::from([(old.name.clone(), old)]);
    let same = propose(&few, &present).unwrap();
    assert_eq!((same.verdict, same.model), (ModelVerdict::Keep, None));
    assert!(same.reason.contains("version 1 in force by"), "{}", same.reason);
    let better = propose(&training(&measured, windows(&measured, 100)), &present).unwrap();
    assert_eq!(better.verdict, ModelVerdict::Publish, "{}", better.reason);
    assert!(
        better.metrics["held_back_mape_ratio"] < 0.9 * better.metrics["held_back_present_mape_ratio"],
        "{:?}",
        better.metrics
    );
    assert_eq!(better.model.unwrap().version, "2");
    // A version in another format is ignored.
    let mut foreign = present.clone();
    for model in foreign.values_mut() {
        model.parameters["format"] = "eadt.partition-model.v9".into();
    }
    let anew = propose(&few, &foreign).unwrap();
    assert_eq!((anew.verdict, anew.model.unwrap().version.as_str()), (ModelVerdict::Publish, "2"), "{}", anew.reason);
}

/// If jobs do nothing to each other, adding up is right, and a model that is no better is not published.
#[test]
fn adding_up_stays_where_it_is_as_good() {
    let measured = measured(1);
    let mut all = windows(&measured, 40);
    let idle = 20.0;
    let known = |name: &String| {
        let points = measured.profiles()[name].points().filter(|point| ALONE.contains(&point.mps_thread_percentage));
        SoloProfile::new(name.clone(), measured.gpu_model().to_owned(), points.copied().collect()).unwrap()
    };
    for at in (0..all.len()).filter(|at| all[*at].tenants.is_some()).collect::<Vec<_>>().chunks(2) {
        let points = [at[0], at[1]].map(|i| {
            let share = all[i].layout.as_ref().unwrap().mps_thread_percentage.unwrap();
            known(&all[i].workload).expected_at(share, None).unwrap()
        });
        for (i, point) in at.iter().zip(points) {
            all[*i].samples_per_second = Some(point.samples_per_second);
            all[*i].mean_power_watts = Some(point.power_watts - idle / 2.0);
        }
    }
    let proposal = first(&measured, all);
    assert_eq!(proposal.verdict, ModelVerdict::Keep, "{}", proposal.reason);
    assert!(proposal.reason.contains("the additive model by"), "{}", proposal.reason);
}

#[test]
fn insufficient_data_give_a_reason() {
    let measured = measured(1);
    let alone: Vec<_> = windows(&measured, 0);
    assert!(propose(&training(&measured, alone), &BTreeMap::new()).is_none(), "nobody shared a GPU: nothing is to be proposed");

    let few = first(&measured, windows(&measured, 5));
    assert_eq!(few.verdict, ModelVerdict::CannotTell);
    assert!(
        few.reason.starts_with("25 co-runs of 5 sets of workloads in 150 usable windows: 6 sets are needed"),
        "{}",
        few.reason
    );

    // A workload that never ran alone has no measurements alone.
    let together: Vec<_> = windows(&measured, 12).into_iter().filter(|window| window.tenants.is_some()).collect();
    let unknown = first(&measured, together);
    assert!(
        unknown.reason.starts_with("0 co-runs of 0 sets") && unknown.reason.contains("(60 other co-runs"),
        "{}",
        unknown.reason
    );

    // Windows without use are counted: the other job's is missing, the power is capped from outside, shares that are more than
    // the GPU.
    let spoilt = |spoil: &dyn Fn(&mut Vec<EfficiencyWindow>)| {
        let mut all = windows(&measured, 12);
        spoil(&mut all);
        first(&measured, all).metrics
    };
    assert_eq!(spoilt(&|_| ())["windows_passed_over"], 0.0);
    let shared = |all: &[EfficiencyWindow]| all.iter().position(|window| window.tenants.is_some()).unwrap();
    let lone = spoilt(&|all| drop(all.remove(shared(all))));
    // Two windows are no co-run: with the third the other two went.
    assert_eq!((lone["windows_passed_over"], lone["co_runs"]), (5.0, 59.0));
    let capped = spoilt(&|all| {
        let at = shared(all);
        all[at].layout.as_mut().unwrap().power_limit_watts = Some(150.0);
    });
    assert_eq!((capped["windows_passed_over"], capped["co_runs"]), (6.0, 59.0));
    let over = spoilt(&|all| {
        let at = shared(all);
        all[at].layout.as_mut().unwrap().mps_thread_percentage = Some(100);
    });
    assert_eq!((over["windows_passed_over"], over["co_runs"]), (6.0, 59.0));
}

/// A job's part of a shared GPU's power is no power of a board, and its throughput there depends on others.
#[test]
fn models_of_a_board_and_of_a_job_are_not_learned_from_shared_gpus() {
    let measured = measured(1);
    let others = |windows: Vec<EfficiencyWindow>| {
        let proposals = learn(&training(&measured, windows), &BTreeMap::new(), &settings(), minute(100_000));
        let others = proposals.into_iter().filter(|proposal| !proposal.name.starts_with("partition/"));
        others.map(|proposal| (proposal.name, proposal.reason, proposal.metrics)).collect::<Vec<_>>()
    };
    let busy = |pairs| {
        let mut all = windows(&measured, pairs);
        for window in &mut all {
            window.mean_sm_clock_mhz = Some(1_380.0);
            window.mean_sm_active_ratio.get_or_insert(0.5);
            window.mean_dram_active_ratio.get_or_insert(0.5);
        }
        all
    };
    assert_eq!(others(busy(0)), others(busy(40)));
}
