//! Scores of predictions and choices.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{EvaluateError, EvaluationSet};
use crate::choose::{ChoiceSettings, ObjectiveScale, choose};
use crate::paper::PaperModel;
use crate::slowdown::TrainError;
use crate::{CoRun, GpuTenants, ShareCandidate, SharePredictor};

/// The score of a method over the tested groups.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct MethodScore {
    /// Choices: groups over all splits.
    pub choices: usize,
    /// Mean absolute error of the sum of throughputs, as a part of it; absent without a prediction.
    pub throughput_error_ratio: Option<f64>,
    /// The same of the power.
    pub power_error_ratio: Option<f64>,
    /// Mean value of the choices, as a part of the oracle's. The oracle keeps the limits; a choice that violates them may have a
    /// higher value.
    pub of_oracle_ratio: f64,
    /// Gain over equal shares, on average.
    pub gain_mean_ratio: f64,
    /// The largest gain.
    pub gain_max_ratio: f64,
    /// Part of the choices that are worth less than equal shares.
    pub worse_than_equal_ratio: f64,
    /// Part of the choices at which some workload has less than half of the throughput that it has at equal shares.
    pub starved_ratio: f64,
}

/// The method that chooses.
#[derive(Debug, Clone, Copy)]
pub(super) enum ShareChooser<'a> {
    Equal,
    Oracle,
    Predictor(&'a dyn SharePredictor),
    Paper(&'a PaperModel),
}

/// All co-runs of the same workloads, as candidates; the first is at equal shares.
#[derive(Debug)]
pub(super) struct CoRunGroup<'a> {
    pub together: GpuTenants<'a>,
    truth: GpuTenants<'a>,
    candidates: Vec<ShareCandidate>,
    /// Number of the co-run of each candidate.
    pub runs: Vec<usize>,
}

/// Returns the groups of a trial in the order of their names.
pub(super) fn groups(trial: &EvaluationSet) -> Result<Vec<CoRunGroup<'_>>, EvaluateError> {
    let (measured, truth) = (&trial.measured, &trial.truth);
    let same = |run: usize| {
        let (Some(a), Some(b)) = (measured.runs().get(run), truth.runs().get(run)) else { return false };
        let shape = |run: &CoRun| {
            let tenants = run.tenants.iter().map(|tenant| (tenant.workload.clone(), tenant.mps_thread_percentage));
            (tenants.collect::<Vec<_>>(), run.sm_clock_mhz.map(f64::to_bits))
        };
        shape(a) == shape(b)
    };
    if let Some(run) = (0..measured.runs().len().max(truth.runs().len())).find(|run| !same(*run)) {
        return Err(EvaluateError::Differ { run });
    }
    let mut by_names: BTreeMap<Vec<&str>, Vec<usize>> = BTreeMap::new();
    for (number, run) in measured.runs().iter().enumerate() {
        // Candidates of a group must give their shares in the same order of workloads.
        by_names.entry(run.tenants.iter().map(|tenant| tenant.workload.as_str()).collect()).or_default().push(number);
    }
    let mut groups = Vec::with_capacity(by_names.len());
    for (names, mut runs) in by_names {
        let candidate = |run: &usize| ShareCandidate {
            mps_thread_percentages: measured.runs()[*run].tenants.iter().map(|tenant| tenant.mps_thread_percentage).collect(),
            sm_clock_mhz: measured.runs()[*run].sm_clock_mhz,
        };
        let share = 100 / names.len() as u32;
        let highest = runs.iter().filter_map(|run| measured.runs()[*run].sm_clock_mhz).fold(f64::NEG_INFINITY, f64::max);
        let is_equal = |run: &usize| {
            let run = &measured.runs()[*run];
            run.tenants.iter().all(|tenant| tenant.mps_thread_percentage == share)
                && run.sm_clock_mhz.is_none_or(|clock| clock >= highest)
        };
        let Some(equal) = runs.iter().position(is_equal) else {
            return Err(EvaluateError::NoEqual { group: names.join(" + "), share });
        };
        runs.swap(0, equal);
        let candidates = runs.iter().map(candidate).collect();
        let measured_profiles = names.iter().map(|name| &measured.profiles()[*name]).collect();
        let really = names.iter().map(|name| &truth.profiles()[*name]).collect();
        let together = GpuTenants::new(measured_profiles, measured.idle_watts()).map_err(TrainError::from)?;
        let truth = GpuTenants::new(really, truth.idle_watts()).map_err(TrainError::from)?;
        groups.push(CoRunGroup { together, truth, candidates, runs });
    }
    Ok(groups)
}

/// Returns whether a partition really keeps the limits of a choice.
fn keeps_limits(own: &[f64], equal: &[f64], group: &CoRunGroup<'_>, choice: &ChoiceSettings) -> bool {
    let whole = group.truth.tenants().iter().map(|tenant| tenant.whole().samples_per_second);
    own.iter().zip(equal).zip(whole).all(|((own, equal), whole)| {
        choice.floor_ratio.is_none_or(|floor| *own >= floor * equal)
            && choice.slowdown_max_ratio.is_none_or(|limit| *own >= (1.0 - limit) * whole)
    })
}

/// Sums for a [`MethodScore`].
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ScoreTally {
    choices: usize,
    predictions: usize,
    throughput_error: f64,
    power_error: f64,
    of_oracle: f64,
    gain: f64,
    gain_max: Option<f64>,
    worse: usize,
    starved: usize,
}

impl ScoreTally {
    /// Adds the method's choice in one group.
    pub fn add(&mut self, trial: &EvaluationSet, group: &CoRunGroup<'_>, chooser: &ShareChooser<'_>, choice: &ChoiceSettings) {
        let runs: Vec<&CoRun> = group.runs.iter().map(|run| &trial.truth.runs()[*run]).collect();
        let scale = ObjectiveScale::new(choice.objective, &group.truth);
        let rates = |run: &CoRun| run.tenants.iter().map(|tenant| tenant.samples_per_second).collect::<Vec<_>>();
        let worth: Vec<f64> = runs.iter().map(|run| scale.worth(&rates(run), run.power_watts)).collect();
        let allowed = |place: &usize| keeps_limits(&rates(runs[*place]), &rates(runs[0]), group, choice);
        // If no candidate keeps the limits, equal shares are kept.
        let oracle = (0..worth.len()).filter(allowed).reduce(|best, place| if worth[place] > worth[best] { place } else { best });
        let oracle = oracle.unwrap_or(0);
        let predicted: Option<Vec<(f64, f64)>>;
        let chosen = match chooser {
            ShareChooser::Equal => {
                predicted = None;
                0
            }
            ShareChooser::Oracle => {
                predicted = None;
                oracle
            }
            ShareChooser::Predictor(predictor) => {
                let outlook = predictor.predict(&group.together, &group.candidates).expect("co-runs are covered by profiles");
                predicted = Some(outlook.means().map(|e| (e.samples_per_second.iter().sum(), e.power_watts)).collect());
                choose(&group.together, &group.candidates, &outlook, choice).place
            }
            ShareChooser::Paper(model) => {
                let sums = model.predict(&group.together, &group.candidates).expect("co-runs are covered by profiles");
                let worth = |place: usize| sums[place].samples_per_second / sums[place].power_watts;
                predicted = Some(sums.iter().map(|sum| (sum.samples_per_second, sum.power_watts)).collect());
                (0..sums.len()).fold(0, |best, place| if worth(place) > worth(best) { place } else { best })
            }
        };
        for ((throughput, power), run) in predicted.iter().flatten().zip(&runs) {
            self.predictions += 1;
            self.throughput_error += (throughput / rates(run).iter().sum::<f64>() - 1.0).abs();
            self.power_error += (power / run.power_watts - 1.0).abs();
        }
        let gain = worth[chosen] / worth[0] - 1.0;
        self.choices += 1;
        self.of_oracle += worth[chosen] / worth[oracle];
        self.gain += gain;
        self.gain_max = Some(self.gain_max.map_or(gain, |most| most.max(gain)));
        self.worse += usize::from(gain < -1e-6);
        let starves = |(own, equal): (&f64, &f64)| *own < 0.5 * equal;
        self.starved += usize::from(rates(runs[chosen]).iter().zip(&rates(runs[0])).any(starves));
    }

    pub fn join(self, other: Self) -> Self {
        Self {
            choices: self.choices + other.choices,
            predictions: self.predictions + other.predictions,
            throughput_error: self.throughput_error + other.throughput_error,
            power_error: self.power_error + other.power_error,
            of_oracle: self.of_oracle + other.of_oracle,
            gain: self.gain + other.gain,
            gain_max: [self.gain_max, other.gain_max].into_iter().flatten().reduce(f64::max),
            worse: self.worse + other.worse,
            starved: self.starved + other.starved,
        }
    }

    pub fn score(&self) -> MethodScore {
        let choices = self.choices.max(1) as f64;
        let error = |sum: f64| (self.predictions > 0).then(|| sum / self.predictions as f64);
        MethodScore {
            choices: self.choices,
            throughput_error_ratio: error(self.throughput_error),
            power_error_ratio: error(self.power_error),
            of_oracle_ratio: self.of_oracle / choices,
            gain_mean_ratio: self.gain / choices,
            gain_max_ratio: self.gain_max.unwrap_or(0.0),
            worse_than_equal_ratio: self.worse as f64 / choices,
            starved_ratio: self.starved as f64 / choices,
        }
    }
}
