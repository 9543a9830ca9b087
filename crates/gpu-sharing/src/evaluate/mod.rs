//! The paper's experiment on measurements: how well each method predicts, and what its choices are worth.
//!
//! Splits are by group of workloads (all partitions of a pair stay on one side) and by workload (every pair of a workload is
//! tested by models that never saw it). Splitting by row would let a model see the neighbouring partitions of the one it is
//! asked about.

mod render;
mod score;
mod split;

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::SeedableRng;
use rayon::prelude::*;
use serde::Serialize;

use crate::forest::ForestSettings;
use crate::paper::PaperModel;
use crate::slowdown::TrainError;
use crate::{AdditivePredictor, ChoiceSettings, GpuMeasurements, SlowdownModel};

pub use score::MethodScore;

use score::{CoRunGroup, ScoreTally, ShareChooser, groups};

/// Measurements to learn from, and what to hold the choices against.
#[derive(Debug, Clone)]
pub struct EvaluationSet {
    /// The measurements that a model may use.
    pub measured: GpuMeasurements,
    /// The same co-runs in the same order as they really are. The same as `measured` for real measurements; for simulated ones
    /// without their noise.
    pub truth: GpuMeasurements,
}

impl EvaluationSet {
    /// Builds the truth from real measurements: nothing is truer than they are.
    pub fn of(measured: GpuMeasurements) -> Self {
        Self { truth: measured.clone(), measured }
    }
}

/// The settings of the experiment.
#[derive(Debug, Clone, PartialEq)]
pub struct EvaluateSettings {
    /// Settings of the slowdown model. The paper's model has single rows as leaves, as its authors had.
    pub forest: ForestSettings,
    /// Parts of the groups that are learned from; the others are tested.
    pub training_ratios: Vec<f64>,
    /// Splits for each of them.
    pub repeats: u32,
    /// Seed of the splits.
    pub seed: u64,
    /// The objective and the limits; the methods add how they treat uncertainty. Default: the paper's rule.
    pub choice: ChoiceSettings,
}

impl Default for EvaluateSettings {
    fn default() -> Self {
        Self {
            forest: SlowdownModel::FOREST,
            training_ratios: vec![0.1, 0.2, 0.3, 0.4, 0.5],
            repeats: 10,
            seed: 0,
            choice: ChoiceSettings::paper(),
        }
    }
}

/// A way to choose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EvaluatedMethod {
    /// The same share for each.
    Equal,
    /// [`AdditivePredictor`], best mean.
    Additive,
    /// [`PaperModel`], best mean.
    Paper,
    /// [`SlowdownModel`], best mean.
    SlowdownMean,
    /// [`SlowdownModel`], best lower quartile of its trees.
    SlowdownQuantile,
    /// The best partition after the fact.
    Oracle,
}

impl EvaluatedMethod {
    pub const ALL: [Self; 6] =
        [Self::Equal, Self::Additive, Self::Paper, Self::SlowdownMean, Self::SlowdownQuantile, Self::Oracle];

    /// Returns the title for tables.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Equal => "equal shares",
            Self::Additive => "additive, no learning",
            Self::Paper => "Extra Trees of the paper",
            Self::SlowdownMean => "slowdown trees, mean",
            Self::SlowdownQuantile => "slowdown trees, quartile",
            Self::Oracle => "oracle",
        }
    }
}

/// A method under a split.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FindingLine {
    /// The training set and the test set.
    pub split: String,
    pub method: EvaluatedMethod,
    pub score: MethodScore,
}

/// One workload's bar: all groups that it is in, tested by models that never saw it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WorkloadLine {
    pub workload: String,
    pub groups: usize,
    /// Throughput per watt of the choices ([`EvaluatedMethod::SlowdownMean`]) as a part of the oracle's.
    pub of_oracle_ratio: f64,
    /// The same of equal shares.
    pub equal_of_oracle_ratio: f64,
    /// Gain of the choices over equal shares.
    pub gain_ratio: f64,
}

/// The results of an experiment.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct EvaluationFindings {
    pub lines: Vec<FindingLine>,
    pub workloads: Vec<WorkloadLine>,
}

impl EvaluationFindings {
    /// Returns the score of a method under a split.
    pub fn score(&self, split: &str, method: EvaluatedMethod) -> Option<&MethodScore> {
        self.lines.iter().find(|line| line.split == split && line.method == method).map(|line| &line.score)
    }

    /// Returns the mean over the workloads of their gain over equal shares, and the largest of them: the paper's figures.
    pub fn workload_gains(&self) -> Option<(f64, f64)> {
        let gains = || self.workloads.iter().map(|line| line.gain_ratio);
        let largest = gains().reduce(f64::max)?;
        Some((gains().sum::<f64>() / self.workloads.len() as f64, largest))
    }
}

/// The reason why an experiment cannot be run.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum EvaluateError {
    #[error("the experiment needs at least four groups of workloads, but there are {groups}")]
    Few { groups: usize },
    #[error("{group} was not measured at equal shares ({share} % each): there is nothing to compare with")]
    NoEqual { group: String, share: u32 },
    #[error("measured co-runs and truth differ at {run}: both need the same workloads and shares in the same order")]
    Differ { run: usize },
    #[error("training_ratio is {ratio}, but must be above 0 and below 1")]
    Ratio { ratio: f64 },
    #[error(transparent)]
    Train(#[from] TrainError),
}

/// Splits by group at every training ratio.
pub fn by_group(
    name: &str,
    trial: &EvaluationSet,
    settings: &EvaluateSettings,
    findings: &mut EvaluationFindings,
) -> Result<(), EvaluateError> {
    let groups = groups(trial)?;
    if let Some(ratio) = settings.training_ratios.iter().find(|ratio| !(**ratio > 0.0 && **ratio < 1.0)) {
        return Err(EvaluateError::Ratio { ratio: *ratio });
    }
    for ratio in &settings.training_ratios {
        let splits: Vec<split::TrainTestSplit> = (0..settings.repeats)
            .map(|repeat| {
                let stream = settings.seed ^ (u64::from(repeat) << 32) ^ ratio.to_bits();
                split::by_ratio(groups.len(), *ratio, &mut Pcg64Mcg::seed_from_u64(stream))
            })
            .collect();
        let name = format!("{name}, {:.0} % training", ratio * 100.0);
        test(&name, trial, &groups, &splits, settings, findings)?;
    }
    Ok(())
}

/// Trains, for every workload, a model that never saw it, and tests it on all groups with it.
pub fn by_unseen_workload(
    name: &str,
    trial: &EvaluationSet,
    settings: &EvaluateSettings,
    findings: &mut EvaluationFindings,
) -> Result<(), EvaluateError> {
    let groups = groups(trial)?;
    let workloads: Vec<&String> = trial.measured.profiles().keys().collect();
    let splits: Vec<split::TrainTestSplit> = workloads
        .iter()
        .map(|workload| split::by_workload(&groups, workload))
        .filter(|split| !split.training.is_empty() && !split.testing.is_empty())
        .collect();
    test(name, trial, &groups, &splits, settings, findings)
}

/// Writes a bar for every workload, as in the paper's figure of test pairs.
pub fn workload_bars(
    trial: &EvaluationSet,
    settings: &EvaluateSettings,
    findings: &mut EvaluationFindings,
) -> Result<(), EvaluateError> {
    let groups = groups(trial)?;
    let workloads: Vec<&String> = trial.measured.profiles().keys().collect();
    let lines = workloads.par_iter().map(|workload| {
        let split = split::by_workload(&groups, workload);
        if split.training.is_empty() || split.testing.is_empty() {
            return Ok(None);
        }
        let runs: Vec<usize> = split.training.iter().flat_map(|group| groups[*group].runs.iter().copied()).collect();
        let model = SlowdownModel::train_on(&trial.measured, &runs, &settings.forest)?;
        let score = |chooser| {
            let mut tally = ScoreTally::default();
            for group in &split.testing {
                tally.add(trial, &groups[*group], &chooser, &ChoiceSettings::paper());
            }
            tally.score()
        };
        let (chosen, equal) = (score(ShareChooser::Predictor(&model)), score(ShareChooser::Equal));
        Ok(Some(WorkloadLine {
            workload: (*workload).clone(),
            groups: split.testing.len(),
            of_oracle_ratio: chosen.of_oracle_ratio,
            equal_of_oracle_ratio: equal.of_oracle_ratio,
            gain_ratio: chosen.gain_mean_ratio,
        }))
    });
    let lines: Vec<Option<WorkloadLine>> = lines.collect::<Result<_, EvaluateError>>()?;
    findings.workloads = lines.into_iter().flatten().collect();
    findings.workloads.sort_by(|a, b| b.gain_ratio.total_cmp(&a.gain_ratio));
    Ok(())
}

/// Tests the choices of a model trained on one trial on another: triples by pairs, a finer grid, clocks.
pub fn elsewhere(
    name: &str,
    model: &SlowdownModel,
    trial: &EvaluationSet,
    choice: &ChoiceSettings,
    findings: &mut EvaluationFindings,
) -> Result<(), EvaluateError> {
    let groups = groups(trial)?;
    let quantile = careful(choice);
    let mean = ChoiceSettings { risk_quantile: None, gain_min_ratio: 0.0, ..*choice };
    for (method, chooser, choice) in [
        (EvaluatedMethod::Equal, ShareChooser::Equal, &mean),
        (EvaluatedMethod::Additive, ShareChooser::Predictor(&AdditivePredictor), &mean),
        (EvaluatedMethod::SlowdownMean, ShareChooser::Predictor(model), &mean),
        (EvaluatedMethod::SlowdownQuantile, ShareChooser::Predictor(model), &quantile),
        (EvaluatedMethod::Oracle, ShareChooser::Oracle, &mean),
    ] {
        let tallies = groups.par_iter().map(|group| {
            let mut tally = ScoreTally::default();
            tally.add(trial, group, &chooser, choice);
            tally
        });
        let tallies: Vec<ScoreTally> = tallies.collect();
        let score = tallies.into_iter().reduce(ScoreTally::join).unwrap_or_default().score();
        findings.lines.push(FindingLine { split: name.to_owned(), method, score });
    }
    Ok(())
}

/// Returns the default way to deal with doubt, whatever is sought.
fn careful(choice: &ChoiceSettings) -> ChoiceSettings {
    let ChoiceSettings { risk_quantile, gain_min_ratio, .. } = ChoiceSettings::default();
    ChoiceSettings { risk_quantile, gain_min_ratio, ..*choice }
}

fn test(
    name: &str,
    trial: &EvaluationSet,
    groups: &[CoRunGroup<'_>],
    splits: &[split::TrainTestSplit],
    settings: &EvaluateSettings,
    findings: &mut EvaluationFindings,
) -> Result<(), EvaluateError> {
    if groups.len() < 4 || splits.is_empty() {
        return Err(EvaluateError::Few { groups: groups.len() });
    }
    let mean = ChoiceSettings { risk_quantile: None, gain_min_ratio: 0.0, ..settings.choice };
    let quantile = careful(&settings.choice);
    // The paper's model knows pairs and the throughput sum only.
    let pairs_only = settings.choice == ChoiceSettings::paper() && groups.iter().all(|group| group.together.tenants().len() == 2);
    let single_rows = ForestSettings { leaf_min: 1, ..settings.forest };
    let tallies = splits.par_iter().map(|split| -> Result<Vec<(EvaluatedMethod, ScoreTally)>, EvaluateError> {
        let runs: Vec<usize> = split.training.iter().flat_map(|group| groups[*group].runs.iter().copied()).collect();
        let slowdown = SlowdownModel::train_on(&trial.measured, &runs, &settings.forest)?;
        let of_paper = if pairs_only { Some(PaperModel::train_on(&trial.measured, &runs, &single_rows)?) } else { None };
        let mut choosers = vec![
            (EvaluatedMethod::Equal, ShareChooser::Equal, &mean),
            (EvaluatedMethod::Additive, ShareChooser::Predictor(&AdditivePredictor), &mean),
        ];
        choosers.extend(of_paper.as_ref().map(|model| (EvaluatedMethod::Paper, ShareChooser::Paper(model), &mean)));
        choosers.push((EvaluatedMethod::SlowdownMean, ShareChooser::Predictor(&slowdown), &mean));
        choosers.push((EvaluatedMethod::SlowdownQuantile, ShareChooser::Predictor(&slowdown), &quantile));
        choosers.push((EvaluatedMethod::Oracle, ShareChooser::Oracle, &mean));
        let tallies = choosers.into_iter().map(|(method, chooser, choice)| {
            let mut tally = ScoreTally::default();
            split.testing.iter().for_each(|group| tally.add(trial, &groups[*group], &chooser, choice));
            (method, tally)
        });
        Ok(tallies.collect())
    });
    let tallies: Vec<Vec<(EvaluatedMethod, ScoreTally)>> = tallies.collect::<Result<_, _>>()?;
    for method in EvaluatedMethod::ALL {
        let own = tallies.iter().flatten().filter(|(of, _)| *of == method).map(|(_, tally)| *tally);
        if let Some(tally) = own.reduce(ScoreTally::join) {
            findings.lines.push(FindingLine { split: name.to_owned(), method, score: tally.score() });
        }
    }
    Ok(())
}
