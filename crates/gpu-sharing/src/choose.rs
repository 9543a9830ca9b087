//! Chooses one candidate by the predictions for all of them.

use serde::{Deserialize, Serialize};

use crate::{CandidatePredictions, ExpectedFigures, GpuTenants, ShareCandidate};

/// The objective: a sum of throughputs, which is divided by the GPU's power and maximised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ShareObjective {
    /// Sum over the workloads of their throughput as a part of the throughput alone on the whole GPU.
    #[default]
    Progress,
    /// Sum of the throughputs in their own units: the paper's objective. It favours workloads whose throughput has large numbers.
    Sum,
}

/// Settings for the choice of a candidate.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ChoiceSettings {
    /// The objective per watt: `progress` or `sum`. Default: `progress`.
    pub objective: ShareObjective,
    /// A candidate counts for what at least the rest of the trees expect: with 0.25, three of four. Absent: for their mean.
    /// Above 0, at most 0.5. Default 0.25.
    pub risk_quantile: Option<f64>,
    /// Every workload keeps at least this part of the progress that it has at the equal partition. Absent: no floor. 0 to 1.
    /// Default 0.5.
    pub floor_ratio: Option<f64>,
    /// No workload becomes slower by more than this part of its throughput alone on the whole GPU. Absent: no limit. 0 to 1.
    /// Default: absent.
    pub slowdown_max_ratio: Option<f64>,
    /// Equal shares are kept unless another partition gains at least this part. 0 to 1. Default 0.01, the least gain that
    /// validation can detect.
    pub gain_min_ratio: f64,
}

impl Default for ChoiceSettings {
    fn default() -> Self {
        Self {
            objective: ShareObjective::Progress,
            risk_quantile: Some(0.25),
            floor_ratio: Some(0.5),
            slowdown_max_ratio: None,
            gain_min_ratio: 0.01,
        }
    }
}

impl ChoiceSettings {
    /// Returns the paper's rule: the largest expected sum of throughputs per watt, even if a workload starves.
    pub const fn paper() -> Self {
        Self {
            objective: ShareObjective::Sum,
            risk_quantile: None,
            floor_ratio: None,
            slowdown_max_ratio: None,
            gain_min_ratio: 0.0,
        }
    }

    /// Checks all fields; the error names the first that is out of its range, with the expected range.
    pub fn check(&self) -> Result<(), String> {
        for (name, value, low, high) in [
            ("risk_quantile", self.risk_quantile, 1e-6, 0.5),
            ("floor_ratio", self.floor_ratio, 0.0, 1.0),
            ("slowdown_max_ratio", self.slowdown_max_ratio, 0.0, 1.0),
            ("gain_min_ratio", Some(self.gain_min_ratio), 0.0, 1.0),
        ] {
            if let Some(value) = value.filter(|value| !(low..=high).contains(value)) {
                return Err(format!("{name} is {value}, but must be within {low} and {high}"));
            }
        }
        Ok(())
    }
}

/// The reason why a candidate was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChoiceVerdict {
    /// It is better than the equal partition.
    Better,
    /// Nothing is better than the equal partition.
    EqualIsBest,
    /// No candidate keeps the limits: the equal partition stays.
    Infeasible,
}

/// The chosen candidate, and its prediction.
#[derive(Debug, Clone, PartialEq)]
pub struct ShareChoice {
    /// Its place among the candidates.
    pub place: usize,
    pub candidate: ShareCandidate,
    pub verdict: ChoiceVerdict,
    /// Mean expectation.
    pub expected: ExpectedFigures,
    /// Mean expectation of the equal partition.
    pub equal: ExpectedFigures,
    /// Gain of the objective over the equal partition, by the mean expectations.
    pub gain_ratio: f64,
    /// The same for what [`ChoiceSettings::risk_quantile`] counts.
    pub sure_gain_ratio: f64,
    /// Candidates that may be taken and keep the limits, the equal partition included if it does.
    pub feasible: usize,
}

/// The value of a candidate under an objective.
#[derive(Debug)]
pub(crate) struct ObjectiveScale {
    weights: Vec<f64>,
}

impl ObjectiveScale {
    pub fn new(objective: ShareObjective, together: &GpuTenants<'_>) -> Self {
        let weight = |whole: f64| match objective {
            ShareObjective::Progress => 1.0 / whole,
            ShareObjective::Sum => 1.0,
        };
        Self { weights: together.tenants().iter().map(|tenant| weight(tenant.whole().samples_per_second)).collect() }
    }

    pub fn worth(&self, samples_per_second: &[f64], power_watts: f64) -> f64 {
        samples_per_second.iter().zip(&self.weights).map(|(rate, weight)| rate * weight).sum::<f64>() / power_watts
    }

    fn of(&self, expected: &ExpectedFigures) -> f64 {
        self.worth(&expected.samples_per_second, expected.power_watts)
    }
}

/// Takes one of the candidates; the first of them is the equal partition, with which the others are compared.
pub fn choose(
    together: &GpuTenants<'_>,
    candidates: &[ShareCandidate],
    outlook: &CandidatePredictions,
    settings: &ChoiceSettings,
) -> ShareChoice {
    choose_among(together, candidates, outlook, settings, &|_| true)
}

/// Returns the same of the candidates at allowed places only; the first one is what they are compared with, allowed or not.
pub(crate) fn choose_among(
    together: &GpuTenants<'_>,
    candidates: &[ShareCandidate],
    outlook: &CandidatePredictions,
    settings: &ChoiceSettings,
    allowed: &dyn Fn(usize) -> bool,
) -> ShareChoice {
    assert_eq!(candidates.len(), outlook.candidates.len(), "invariant outlook_of_the_candidates");
    let scale = ObjectiveScale::new(settings.objective, together);
    let equal = &outlook.candidates[0];
    let whole: Vec<f64> = together.tenants().iter().map(|tenant| tenant.whole().samples_per_second).collect();
    let mut spread = Vec::new();
    // A figure as it counts: that of the mean expectation, or a low quantile of the trees'.
    let mut counted = |candidate: usize, figure: &dyn Fn(&ExpectedFigures, &ExpectedFigures) -> f64| {
        let prospect = &outlook.candidates[candidate];
        match settings.risk_quantile {
            Some(quantile) if !prospect.opinions.is_empty() => {
                spread.clear();
                spread.extend(prospect.opinions.iter().zip(&equal.opinions).map(|(own, equal)| figure(own, equal)));
                low_quantile(&mut spread, quantile)
            }
            _ => figure(&prospect.mean, &equal.mean),
        }
    };
    let (mut best, mut feasible) = (None::<(usize, f64)>, 0);
    for candidate in (0..candidates.len()).filter(|place| allowed(*place)) {
        let mut keeps = true;
        for (i, whole) in whole.iter().enumerate() {
            if let Some(limit) = settings.slowdown_max_ratio {
                keeps &= counted(candidate, &|own, _| own.samples_per_second[i] / whole) >= 1.0 - limit;
            }
            if let Some(floor) = settings.floor_ratio.filter(|_| keeps) {
                keeps &= counted(candidate, &|own, equal| own.samples_per_second[i] / equal.samples_per_second[i]) >= floor;
            }
        }
        if !keeps {
            continue;
        }
        feasible += 1;
        let worth = counted(candidate, &|own, equal| scale.of(own) / scale.of(equal));
        // The equal partition comes first.
        let least = |(place, most): (usize, f64)| if place == 0 { most * (1.0 + settings.gain_min_ratio) } else { most };
        if best.is_none_or(|best| worth > least(best)) {
            best = Some((candidate, worth));
        }
    }
    let (place, worth) = best.unwrap_or((0, 1.0));
    let expected = outlook.candidates[place].mean.clone();
    ShareChoice {
        place,
        candidate: candidates[place].clone(),
        verdict: match (best, place) {
            (None, _) => ChoiceVerdict::Infeasible,
            (Some(_), 0) => ChoiceVerdict::EqualIsBest,
            (Some(_), _) => ChoiceVerdict::Better,
        },
        gain_ratio: scale.of(&expected) / scale.of(&equal.mean) - 1.0,
        sure_gain_ratio: worth - 1.0,
        expected,
        equal: equal.mean.clone(),
        feasible,
    }
}

/// Interpolates linearly between the two nearest values.
fn low_quantile(values: &mut [f64], quantile: f64) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let place = quantile * (values.len() - 1) as f64;
    let (low, part) = (place.floor() as usize, place.fract());
    let high = (low + 1).min(values.len() - 1);
    values[low] + part * (values[high] - values[low])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_lie_between_neighbours() {
        assert_eq!(low_quantile(&mut [4.0, 1.0, 3.0, 2.0, 5.0], 0.25), 2.0);
        assert_eq!(low_quantile(&mut [1.0, 2.0], 0.25), 1.25);
        assert_eq!(low_quantile(&mut [7.0], 0.25), 7.0);
    }
}
