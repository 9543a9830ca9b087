//! Tests the candidates, the choice, and unknown values.

use crate::support;

use eadt_gpu_sharing::forest::ForestSettings;
use eadt_gpu_sharing::{
    AdditivePredictor, CandidatePredictions, ChoiceSettings, ChoiceVerdict, ExpectedFigures, GpuTenants, MetricValues,
    PredictionError, ShareCandidate, ShareObjective, SharePredictor, SlowdownModel, SoloPoint, SoloProfile, choose,
};
use eadt_testing::cases;
use proptest::prelude::*;

fn profile(name: &str, rates: &[(u32, f64)]) -> SoloProfile {
    let points = rates.iter().map(|(percentage, rate)| SoloPoint {
        mps_thread_percentage: *percentage,
        sm_clock_mhz: None,
        samples_per_second: *rate,
        power_watts: 40.0 + f64::from(*percentage),
        counters: MetricValues::default(),
    });
    SoloProfile::new(name.into(), "board".into(), points.collect()).unwrap()
}

fn tenths(name: &str, rate: impl Fn(f64) -> f64) -> SoloProfile {
    let rates: Vec<(u32, f64)> = (1..=10).map(|tenth| (tenth * 10, rate(f64::from(tenth) / 10.0))).collect();
    profile(name, &rates)
}

fn shares(candidates: &[ShareCandidate]) -> Vec<&[u32]> {
    candidates.iter().map(|candidate| candidate.mps_thread_percentages.as_slice()).collect()
}

#[test]
fn candidates_are_equal_shares_and_every_partition() {
    let (a, b, c) = (tenths("a", |s| s), tenths("b", |s| s), tenths("c", |s| s));
    let two = GpuTenants::new(vec![&a, &b], 30.0).unwrap();
    let candidates = two.candidates(10, &[None]).unwrap();
    assert_eq!(shares(&candidates)[..3], [[50, 50], [10, 90], [20, 80]]);
    assert_eq!(candidates.len(), 9);
    // 5 % was not measured alone, so it is given to no workload; 15 % lies between two that were.
    assert_eq!(two.candidates(5, &[None]).unwrap().len(), 17);
    let three = GpuTenants::new(vec![&a, &b, &c], 30.0).unwrap();
    let candidates = three.candidates(10, &[None]).unwrap();
    assert_eq!((candidates.len(), shares(&candidates)[0]), (37, &[33, 33, 33][..]));
    assert!(candidates[1..].iter().all(|candidate| candidate.mps_thread_percentages.iter().sum::<u32>() == 100));

    let coarse = profile("coarse", &[(50, 5.0), (100, 8.0)]);
    let two = GpuTenants::new(vec![&a, &coarse], 30.0).unwrap();
    assert_eq!(shares(&two.candidates(10, &[None]).unwrap()), [[50, 50], [10, 90], [20, 80], [30, 70], [40, 60]]);
    let both = GpuTenants::new(vec![&coarse, &coarse], 30.0).unwrap();
    assert_eq!(both.candidates(10, &[None]).unwrap_err(), PredictionError::NoPartition { step: 10, tenants: 2 });
    assert_eq!(two.candidates(0, &[None]).unwrap_err(), PredictionError::NoPartition { step: 0, tenants: 2 });
}

#[test]
fn what_is_unknown_is_not_guessed() {
    let a = tenths("a", |s| s);
    let other = SoloProfile::new("o".into(), "other board".into(), a.points().copied().collect()).unwrap();
    let alone = GpuTenants::new(vec![&a], 30.0).unwrap_err();
    assert!(
        matches!(alone, PredictionError::Tenants { count: 1 }) && alone.to_string().starts_with("1 workload shares"),
        "{alone}"
    );
    assert!(matches!(GpuTenants::new(vec![&a, &other], 30.0), Err(PredictionError::Gpu { .. })));

    let pairs = support::paper_pairs(1).measured;
    let few = ForestSettings { trees: 3, ..ForestSettings::default() };
    let model = SlowdownModel::train(&pairs, &few).unwrap();
    let strangers = GpuTenants::new(vec![&a, &a], 30.0).unwrap();
    let candidates = strangers.candidates(10, &[None]).unwrap();
    let error = model.predict(&strangers, &candidates).unwrap_err().to_string();
    assert_eq!(
        error,
        "the model was trained on Tesla V100-PCIE-32GB, but the workloads share board: train one on measurements of board"
    );
    // The right board, but without the counters that the model looks at.
    let bare = |name: &str| SoloProfile::new(name.into(), pairs.gpu_model().into(), a.points().copied().collect()).unwrap();
    let (x, y) = (bare("x"), bare("y"));
    let error = model.predict(&GpuTenants::new(vec![&x, &y], 30.0).unwrap(), &candidates).unwrap_err().to_string();
    assert!(error.starts_with("workload x was measured without sm_active_ratio, which the model needs"), "{error}");
    let below = [ShareCandidate { mps_thread_percentages: vec![5, 95], sm_clock_mhz: None }];
    assert!(matches!(AdditivePredictor.predict(&strangers, &below), Err(PredictionError::NotCovered { percentage: 5, .. })));
}

/// One workload that gains in proportion to its share, one that needs a tenth only.
#[test]
fn shares_go_to_whom_they_help() {
    let (hungry, modest) = (tenths("hungry", |s| 100.0 * s), tenths("modest", |_| 7.0));
    let together = GpuTenants::new(vec![&hungry, &modest], 30.0).unwrap();
    let candidates = together.candidates(10, &[None]).unwrap();
    let outlook = AdditivePredictor.predict(&together, &candidates).unwrap();
    let choice = choose(&together, &candidates, &outlook, &ChoiceSettings::default());
    assert_eq!((choice.verdict, choice.candidate.mps_thread_percentages.as_slice()), (ChoiceVerdict::Better, &[90, 10][..]));
    let near = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-5;
    let [first, second] = choice.expected.samples_per_second[..] else { panic!("{choice:?}") };
    assert!(near(first, 90.0) && near(second, 7.0) && near(choice.expected.power_watts, 150.0), "{choice:?}");
    // (0.9 + 1) / 150 against (0.5 + 1) / 150.
    assert!((choice.gain_ratio - (1.9 / 1.5 - 1.0)).abs() < 1e-5);
    // No workload more than 60 % slower than alone: 40 % for the hungry one would do, but 90 % is better.
    let limited = ChoiceSettings { slowdown_max_ratio: Some(0.6), ..ChoiceSettings::default() };
    assert_eq!(choose(&together, &candidates, &outlook, &limited).feasible, 6);
    let strict = ChoiceSettings { slowdown_max_ratio: Some(0.05), ..ChoiceSettings::default() };
    let choice = choose(&together, &candidates, &outlook, &strict);
    assert_eq!((choice.verdict, choice.place, choice.feasible), (ChoiceVerdict::Infeasible, 0, 0));
    let greedy = ChoiceSettings { gain_min_ratio: 0.3, ..ChoiceSettings::default() };
    assert_eq!(choose(&together, &candidates, &outlook, &greedy).verdict, ChoiceVerdict::EqualIsBest);
}

/// The paper's objective counts samples of both in one sum: a workload that counts in thousands gets everything.
#[test]
fn the_sum_starves_and_the_floor_does_not() {
    let (many, few) = (tenths("many", |s| 10_000.0 * s.sqrt()), tenths("few", |s| 5.0 * s));
    let together = GpuTenants::new(vec![&many, &few], 30.0).unwrap();
    let candidates = together.candidates(10, &[None]).unwrap();
    let outlook = AdditivePredictor.predict(&together, &candidates).unwrap();
    let by = |settings: &ChoiceSettings| choose(&together, &candidates, &outlook, settings).candidate.mps_thread_percentages;
    assert_eq!(by(&ChoiceSettings::paper()), [90, 10]);
    // At least half of what equal shares give: 25 % of the SMs for the one in proportion.
    let floor = ChoiceSettings { objective: ShareObjective::Sum, ..ChoiceSettings::default() };
    assert_eq!(by(&floor), [70, 30]);
}

#[test]
fn settings_out_of_range_are_named() {
    let named = |settings: ChoiceSettings| settings.check().unwrap_err();
    let default = ChoiceSettings::default;
    assert_eq!(default().check(), Ok(()));
    assert_eq!(ChoiceSettings::paper().check(), Ok(()));
    assert!(named(ChoiceSettings { risk_quantile: Some(0.9), ..default() }).starts_with("risk_quantile is 0.9"));
    assert!(named(ChoiceSettings { floor_ratio: Some(-0.1), ..default() }).starts_with("floor_ratio"));
    assert!(named(ChoiceSettings { slowdown_max_ratio: Some(f64::NAN), ..default() }).starts_with("slowdown_max_ratio"));
    assert!(named(ChoiceSettings { gain_min_ratio: 2.0, ..default() }).starts_with("gain_min_ratio"));
}

/// Two partitions beside the equal one: one is better on average because a quarter of the trees dreams, one is a little better
/// for sure.
#[test]
fn a_careful_choice_counts_what_most_trees_expect() {
    let (a, b) = (tenths("a", |s| s), tenths("b", |s| s));
    let together = GpuTenants::new(vec![&a, &b], 30.0).unwrap();
    let candidates: Vec<ShareCandidate> = [[50, 50], [20, 80], [40, 60]]
        .map(|s| ShareCandidate { mps_thread_percentages: s.to_vec(), sm_clock_mhz: None })
        .to_vec();
    let expected = |rate: f64| ExpectedFigures { samples_per_second: vec![rate, 1.0], power_watts: 100.0 };
    let trees = |rates: [f64; 4]| rates.map(expected).to_vec();
    let outlook = CandidatePredictions::of(vec![
        (expected(1.0), trees([1.0; 4])),
        (expected(1.5), trees([0.9, 0.9, 0.9, 3.3])),
        (expected(1.1), trees([1.1; 4])),
    ]);
    let mean = choose(&together, &candidates, &outlook, &ChoiceSettings { risk_quantile: None, ..ChoiceSettings::default() });
    let careful = choose(&together, &candidates, &outlook, &ChoiceSettings::default());
    assert_eq!((mean.place, careful.place), (1, 2));
    assert!((careful.sure_gain_ratio - 0.05).abs() < 1e-12 && (mean.gain_ratio - 0.25).abs() < 1e-12);
}

#[test]
fn a_model_is_written_exactly_and_damage_is_refused() {
    let trial = support::paper_pairs(1);
    let model = SlowdownModel::train(&trial.measured, &ForestSettings { trees: 4, ..ForestSettings::default() }).unwrap();
    let text = serde_json::to_string(&model).unwrap();
    let read: SlowdownModel = serde_json::from_str(&text).unwrap();
    assert_eq!(read, model);
    let refused = |from: &str, to: &str| {
        assert!(text.contains(from), "{from}");
        serde_json::from_str::<SlowdownModel>(&text.replacen(from, to, 1)).unwrap_err().to_string()
    };
    assert!(refused("eadt-sm-partition", "other").contains("the format is \"other\""));
    assert!(refused("\"version\":1", "\"version\":9").contains("version 9, but this program reads version 1"));
    assert!(refused("\"dram_active_ratio\",", "").contains("do not fit"));
    assert!(refused("\"gpu_model\"", "\"board\"").contains("board"));
    assert!(refused("\"idle_watts\":", "\"idle_watts\":-").contains("the document is damaged"));

    // The order in which the workloads are named does not matter.
    let profiles = trial.measured.profiles();
    let (x, y) = (&profiles["Gemm"], &profiles["ViT-inf"]);
    let choice = |tenants| {
        let together = GpuTenants::new(tenants, trial.measured.idle_watts()).unwrap();
        let candidates = together.candidates(10, &[None]).unwrap();
        let outlook = read.predict(&together, &candidates).unwrap();
        choose(&together, &candidates, &outlook, &ChoiceSettings::default()).candidate.mps_thread_percentages
    };
    let (one, mut other) = (choice(vec![x, y]), choice(vec![y, x]));
    other.reverse();
    assert_eq!(one, other);
}

proptest! {
    #![proptest_config(cases(100))]

    /// By its own expectations a choice keeps its limits, and nothing that does is worth more.
    #[test]
    fn a_choice_keeps_its_limits_and_is_the_best(
        exponents in prop::collection::vec(0.0..1.0_f64, 2..4),
        rates in prop::collection::vec(0.1..1000.0_f64, 3),
        floor in prop::option::of(0.0..1.0_f64),
        slowdown in prop::option::of(0.0..1.0_f64),
        sum in any::<bool>(),
    ) {
        let profiles: Vec<SoloProfile> =
            exponents.iter().enumerate().map(|(i, e)| tenths(&format!("w{i}"), |s| rates[i] * s.powf(*e))).collect();
        let together = GpuTenants::new(profiles.iter().collect(), 30.0).unwrap();
        let candidates = together.candidates(10, &[None]).unwrap();
        let outlook = AdditivePredictor.predict(&together, &candidates).unwrap();
        let objective = if sum { ShareObjective::Sum } else { ShareObjective::Progress };
        let settings = ChoiceSettings { objective, floor_ratio: floor, slowdown_max_ratio: slowdown, gain_min_ratio: 0.0, ..ChoiceSettings::default() };
        let choice = choose(&together, &candidates, &outlook, &settings);
        let means: Vec<&ExpectedFigures> = outlook.means().collect();
        let keeps = |expected: &ExpectedFigures| (0..profiles.len()).all(|i| {
            let rate = expected.samples_per_second[i];
            floor.is_none_or(|floor| rate / means[0].samples_per_second[i] >= floor)
                && slowdown.is_none_or(|limit| rate / profiles[i].whole().samples_per_second >= 1.0 - limit)
        });
        let worth = |expected: &ExpectedFigures| {
            let parts = expected.samples_per_second.iter().zip(&profiles);
            parts.map(|(rate, p)| if sum { *rate } else { rate / p.whole().samples_per_second }).sum::<f64>() / expected.power_watts
        };
        prop_assert_eq!(choice.feasible, means.iter().filter(|expected| keeps(expected)).count());
        if choice.feasible == 0 {
            prop_assert_eq!((choice.verdict, choice.place), (ChoiceVerdict::Infeasible, 0));
        } else {
            prop_assert!(keeps(&choice.expected));
            let best = means.iter().filter(|expected| keeps(expected)).map(|expected| worth(expected)).fold(0.0, f64::max);
            prop_assert!(worth(&choice.expected) >= best * (1.0 - 1e-12));
        }
    }
}
