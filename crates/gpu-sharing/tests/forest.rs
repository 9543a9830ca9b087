//! Tests the forest: its memory, its refusals, its format, and how it compares with another implementation.

use eadt_gpu_sharing::forest::{Forest, ForestSettings, RowError, SamplesError, TrainingSamples};
use eadt_testing::cases;
use proptest::prelude::*;
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};
use smartcore::ensemble::extra_trees_regressor::{ExtraTreesRegressor, ExtraTreesRegressorParameters};
use smartcore::linalg::basic::matrix::DenseMatrix;

fn samples(rows: &[Vec<f64>], targets: &[f64]) -> TrainingSamples {
    let names = (0..rows[0].len()).map(|i| format!("x{i}")).collect();
    TrainingSamples::new(names, rows.iter().map(Vec::as_slice).zip(targets.iter().copied())).unwrap()
}

fn uniform(random: &mut Pcg64Mcg) -> f64 {
    (random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
}

/// Friedman's first benchmark: five features that matter, in different ways, and five that do not.
fn friedman(count: usize, random: &mut Pcg64Mcg) -> (Vec<Vec<f64>>, Vec<f64>) {
    let rows: Vec<Vec<f64>> = (0..count).map(|_| (0..10).map(|_| uniform(random)).collect()).collect();
    let target =
        |x: &Vec<f64>| 10.0 * (std::f64::consts::PI * x[0] * x[1]).sin() + 20.0 * (x[2] - 0.5).powi(2) + 10.0 * x[3] + 5.0 * x[4];
    let targets = rows.iter().map(target).collect();
    (rows, targets)
}

/// The same algorithm by others, at the same settings: errors on unseen rows agree over several data sets. A cut at the best
/// place instead of a random one, a forgotten feature or a bootstrap would show as a difference of 10 to 40 %.
#[test]
fn errors_agree_with_smartcore() {
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for seed in 0..6 {
        let mut random = Pcg64Mcg::seed_from_u64(seed);
        let (rows, targets) = friedman(200, &mut random);
        let (unseen, truth) = friedman(300, &mut random);
        let error = |predicted: &[f64]| {
            (predicted.iter().zip(&truth).map(|(p, t)| (p - t).powi(2)).sum::<f64>() / truth.len() as f64).sqrt()
        };
        let forest = Forest::grow(&samples(&rows, &targets), &ForestSettings { seed, ..ForestSettings::default() }).unwrap();
        ours.push(error(&unseen.iter().map(|row| forest.predict(row).unwrap()).collect::<Vec<_>>()));
        let settings = ExtraTreesRegressorParameters::default().with_n_trees(100).with_m(10).with_seed(seed);
        let other = ExtraTreesRegressor::fit(&DenseMatrix::from_2d_vec(&rows).unwrap(), &targets, settings).unwrap();
        theirs.push(error(&other.predict(&DenseMatrix::from_2d_vec(&unseen).unwrap()).unwrap()));
    }
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let ratio = mean(&ours) / mean(&theirs);
    assert!((0.95..1.05).contains(&ratio), "ours {ours:?}, theirs {theirs:?}");
    // And it learns: the targets' own deviation is 4.9.
    assert!(mean(&ours) < 2.6, "{ours:?}");
}

/// One feature, two samples: a tree gives 1 above its cut, so the forest's mean is the chance of a cut below: the value itself.
#[test]
fn cuts_are_uniform() {
    let forest = Forest::grow(
        &samples(&[vec![0.0], vec![1.0]], &[0.0, 1.0]),
        &ForestSettings { trees: 10_000, ..ForestSettings::default() },
    )
    .unwrap();
    for x in [0.1, 0.25, 0.5, 0.8] {
        // Four standard deviations of a mean of 10,000 coin flips.
        assert!((forest.predict(&[x]).unwrap() - x).abs() < 0.02, "{x}");
    }
    assert_eq!((forest.predict(&[-1.0]).unwrap(), forest.predict(&[2.0]).unwrap()), (0.0, 1.0));
}

#[test]
fn the_number_of_threads_does_not_matter() {
    let (rows, targets) = friedman(150, &mut Pcg64Mcg::seed_from_u64(3));
    let samples = samples(&rows, &targets);
    let settings = ForestSettings { trees: 30, seed: 9, ..ForestSettings::default() };
    let grown = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| Forest::grow(&samples, &settings).unwrap())
    };
    let one = grown(1);
    assert_eq!(one, grown(4));
    assert_ne!(one, Forest::grow(&samples, &ForestSettings { seed: 10, ..settings }).unwrap());
}

#[test]
fn what_is_no_number_is_refused_with_its_place() {
    let names = || vec!["sm".to_owned(), "dram".to_owned()];
    let refused = |rows: &[(&[f64], f64)]| TrainingSamples::new(names(), rows.iter().copied()).unwrap_err();
    let error = refused(&[(&[0.1, 0.2], 1.0), (&[0.1, f64::NAN], 2.0)]);
    assert_eq!(
        error.to_string(),
        "row 1, feature dram is NaN: leave the row out or fill it in; only finite values up to 1e30 can be learned from"
    );
    assert!(matches!(refused(&[(&[f64::INFINITY, 0.0], 1.0)]), SamplesError::Value { row: 0, .. }));
    assert!(matches!(refused(&[(&[0.0, 1e31], 1.0)]), SamplesError::Value { row: 0, .. }));
    assert!(matches!(refused(&[(&[0.0, 0.0], 1.0), (&[0.0, 0.0], f64::NAN)]), SamplesError::Target { row: 1, .. }));
    assert!(matches!(refused(&[(&[0.0], 1.0)]), SamplesError::Width { row: 0, expected: 2, found: 1 }));
    assert!(matches!(refused(&[(&[0.0, 1.0], 1.0)]), SamplesError::Empty { rows: 1, .. }));
    let twice = TrainingSamples::new(vec!["sm".into(), "sm".into()], [(&[0.0, 1.0][..], 1.0)]);
    assert!(matches!(twice, Err(SamplesError::Names { .. })));

    let forest = Forest::grow(&samples(&[vec![0.0], vec![1.0]], &[0.0, 1.0]), &ForestSettings::default()).unwrap();
    assert!(matches!(forest.predict(&[f64::NAN]), Err(RowError::Value { .. })));
    assert!(matches!(forest.predict(&[0.0, 1.0]), Err(RowError::Width { expected: 1, found: 2 })));
    assert!(matches!(forest.predict_trees(&[]).unwrap().rows(), 0));
}

#[test]
fn settings_out_of_range_are_named() {
    let samples = samples(&[vec![0.0], vec![1.0]], &[0.0, 1.0]);
    let error = |settings| Forest::grow(&samples, &settings).unwrap_err().to_string();
    let default = ForestSettings::default;
    assert_eq!(error(ForestSettings { trees: 0, ..default() }), "trees is 0, but must be within 1 and 10000");
    assert!(error(ForestSettings { leaf_min: 0, ..default() }).starts_with("leaf_min"));
    assert!(error(ForestSettings { features_per_split: Some(2), ..default() }).starts_with("features_per_split"));
}

#[test]
fn damaged_documents_are_refused() {
    let (rows, targets) = friedman(20, &mut Pcg64Mcg::seed_from_u64(1));
    let forest = Forest::grow(&samples(&rows, &targets), &ForestSettings { trees: 2, ..ForestSettings::default() }).unwrap();
    let whole = serde_json::to_value(&forest).unwrap();
    let refused = |change: &dyn Fn(&mut serde_json::Value)| {
        let mut document = whole.clone();
        change(&mut document);
        serde_json::from_value::<Forest>(document).unwrap_err().to_string()
    };
    assert!(refused(&|d| d["format"] = "other".into()).contains("the format is \"other\""));
    assert!(refused(&|d| d["version"] = 2.into()).contains("version 2, but this program reads version 1"));
    assert!(refused(&|d| d["trees"] = serde_json::json!([])).contains("0 trees"));
    assert!(refused(&|d| d["features"] = serde_json::json!(["x0"])).contains("compares feature"));
    assert!(refused(&|d| d["trees"][1] = "AAAA!".into()).contains("tree 1 is damaged: it is not base64"));
    assert!(refused(&|d| d["trees"][0] = "AAAA".into()).contains("no whole number of nodes"));
    assert!(refused(&|d| d["depth"] = 3.into()).contains("depth"));
    // A node more and a node less.
    let text = whole["trees"][0].as_str().unwrap().to_owned();
    let leaf = "//8AAIA/";
    assert!(refused(&|d| d["trees"][0] = format!("{text}{leaf}").into()).contains("belongs to no split"));
    assert!(refused(&|d| d["trees"][0] = text[..text.len() - 8].into()).contains("ends before its last leaf"));
    // Infinity as a leaf.
    assert!(refused(&|d| d["trees"][0] = "//8AAIB/".into()).contains("holds inf"));
    assert_eq!(serde_json::from_value::<Forest>(whole.clone()).unwrap(), forest);
}

fn data() -> impl Strategy<Value = (Vec<Vec<f64>>, Vec<f64>, ForestSettings)> {
    (2_usize..40, 1_usize..12, 1_u32..4, any::<u64>(), any::<bool>(), 1_u32..6).prop_flat_map(
        |(rows, width, trees, seed, all, leaf_min)| {
            // Coarse values, so that ties and constant features happen.
            let value = prop_oneof![(-3_i32..4).prop_map(f64::from), -1e6..1e6];
            let rows = prop::collection::vec(prop::collection::vec(value, width), rows);
            let targets = |count| prop::collection::vec(prop_oneof![(-2_i32..3).prop_map(f64::from), -1e3..1e3], count);
            let features_per_split = (!all).then_some(1 + seed as u32 % width as u32);
            let settings = ForestSettings { trees, features_per_split, leaf_min, seed };
            rows.prop_flat_map(move |rows| {
                let count = rows.len();
                (Just(rows), targets(count), Just(settings))
            })
        },
    )
}

proptest! {
    #![proptest_config(cases(200))]

    /// Rows with the same features get the mean of their targets; a prediction never leaves the range of the targets.
    #[test]
    fn a_fully_grown_tree_remembers_its_rows((rows, targets, settings) in data()) {
        let settings = ForestSettings { leaf_min: 1, ..settings };
        let forest = Forest::grow(&samples(&rows, &targets), &settings).unwrap();
        let judged = forest.predict_trees(&rows.concat()).unwrap();
        let single = |row: &Vec<f64>| row.iter().map(|value| (*value as f32).to_bits()).collect::<Vec<_>>();
        for (i, row) in rows.iter().enumerate() {
            let same: Vec<f64> = (0..rows.len()).filter(|j| single(&rows[*j]) == single(row)).map(|j| targets[j]).collect();
            let expected = same.iter().sum::<f64>() / same.len() as f64;
            for tree in 0..forest.trees() {
                let found = judged.of(tree, i);
                prop_assert!((found - expected).abs() <= 1e-6 * (1.0 + expected.abs()), "row {i}: {found} for {expected}");
            }
        }
    }

    #[test]
    fn predictions_stay_within_the_targets((rows, targets, settings) in data(), at in prop::collection::vec(-1e7..1e7, 12)) {
        let forest = Forest::grow(&samples(&rows, &targets), &settings).unwrap();
        let (low, high) = targets.iter().fold((f64::MAX, f64::MIN), |(low, high), t| (low.min(*t), high.max(*t)));
        let found = forest.predict(&at[..rows[0].len()]).unwrap();
        let slack = 1e-6 * (1.0 + low.abs().max(high.abs()));
        prop_assert!((low - slack..=high + slack).contains(&found), "{found} outside of {low} to {high}");
    }

    /// No leaf holds fewer rows than it must, unless there are too few for a split at all.
    #[test]
    fn leaves_are_as_large_as_asked((rows, targets, settings) in data()) {
        let distinct: Vec<f64> = (0..targets.len()).map(|i| i as f64).collect();
        let forest = Forest::grow(&samples(&rows, &distinct), &settings).unwrap();
        let judged = forest.predict_trees(&rows.concat()).unwrap();
        for tree in 0..forest.trees() {
            for row in 0..rows.len() {
                // Leaves are distinguished by their values: means of distinct whole numbers may meet, which only adds rows.
                let together = (0..rows.len()).filter(|other| judged.of(tree, *other) == judged.of(tree, row)).count();
                prop_assert!(together >= (settings.leaf_min as usize).min(rows.len()));
            }
        }
    }

    /// Written and read again, it is the same forest, and gives the same bits.
    #[test]
    fn writing_is_exact((rows, targets, settings) in data()) {
        let forest = Forest::grow(&samples(&rows, &targets), &settings).unwrap();
        let text = serde_json::to_string(&forest).unwrap();
        let read: Forest = serde_json::from_str(&text).unwrap();
        prop_assert_eq!(&read, &forest);
        prop_assert_eq!(serde_json::to_string(&read).unwrap(), text);
        for row in &rows {
            prop_assert_eq!(read.predict(row).unwrap().to_bits(), forest.predict(row).unwrap().to_bits());
        }
    }
}
