//! Candidates for a decision, and their predictions.

use eadt_schemas::counts::counted_as;

use crate::{SoloPoint, SoloProfile};

/// One way to share the GPU: a percentage of the SMs for each workload, in the order of the workloads, and a clock.
#[derive(Debug, Clone, PartialEq)]
pub struct ShareCandidate {
    pub mps_thread_percentages: Vec<u32>,
    /// Highest SM clock; absent: the highest at which the workloads were measured.
    pub sm_clock_mhz: Option<f64>,
}

/// Workloads that share a GPU.
#[derive(Debug, Clone)]
pub struct GpuTenants<'a> {
    tenants: Vec<&'a SoloProfile>,
    idle_watts: f64,
}

/// The reason why there is no prediction for workloads on a GPU.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PredictionError {
    #[error("{} the GPU: shares are predicted for 2 to 16", counted_as(*count, "workload shares", "workloads share"))]
    Tenants { count: usize },
    #[error(
        "workload {workload} was measured on {found}, workload {other} on {expected}: both must be measured on the GPU that they share"
    )]
    Gpu { workload: String, other: String, expected: String, found: String },
    #[error("the model was trained on {expected}, but the workloads share {found}: train one on measurements of {found}")]
    ModelGpu { expected: String, found: String },
    #[error("workload {workload} was measured without {metric}, which the model needs: measure it, or train a model without it")]
    Metric { workload: String, metric: &'static str },
    #[error(
        "workload {workload} drew {least_watts} W at least while it was alone, but the model was trained on a board that idles at \
         {idle_watts} W"
    )]
    Idle { workload: String, idle_watts: f64, least_watts: f64 },
    #[error("workload {workload} was not measured alone at {percentage} %{clock} or less")]
    NotCovered { workload: String, percentage: u32, clock: String },
    #[error("the model does not know clocks: train one on measurements at several")]
    NoClocks,
    #[error("there is no partition in steps of {step} % that gives each of {tenants} workloads a share at which it was measured")]
    NoPartition { step: u32, tenants: usize },
    #[error(
        "{tenants} workloads can share the GPU in more than {PARTITIONS_MAX} ways in steps of {step} %: take larger steps, of 10 % for example"
    )]
    TooManyPartitions { step: u32, tenants: usize },
}

impl<'a> GpuTenants<'a> {
    /// Builds the tenants. `idle_watts`: power of the GPU while its processes wait.
    pub fn new(tenants: Vec<&'a SoloProfile>, idle_watts: f64) -> Result<Self, PredictionError> {
        if !(2..=16).contains(&tenants.len()) {
            return Err(PredictionError::Tenants { count: tenants.len() });
        }
        let first = tenants[0];
        if let Some(stranger) = tenants.iter().find(|tenant| tenant.gpu_model() != first.gpu_model()) {
            return Err(PredictionError::Gpu {
                workload: stranger.workload().to_owned(),
                other: first.workload().to_owned(),
                expected: first.gpu_model().to_owned(),
                found: stranger.gpu_model().to_owned(),
            });
        }
        Ok(Self { tenants, idle_watts })
    }

    pub fn tenants(&self) -> &[&'a SoloProfile] {
        &self.tenants
    }

    pub fn gpu_model(&self) -> &str {
        self.tenants[0].gpu_model()
    }

    pub fn idle_watts(&self) -> f64 {
        self.idle_watts
    }

    /// Returns the expected figures of each workload alone at its share of a candidate.
    pub fn alone(&self, candidate: &ShareCandidate) -> Result<Vec<SoloPoint>, PredictionError> {
        let shares = self.tenants.iter().zip(&candidate.mps_thread_percentages);
        shares
            .map(|(tenant, percentage)| {
                tenant.expected_at(*percentage, candidate.sm_clock_mhz).ok_or_else(|| PredictionError::NotCovered {
                    workload: tenant.workload().to_owned(),
                    percentage: *percentage,
                    clock: candidate.sm_clock_mhz.map_or(String::new(), |mhz| format!(" and {mhz} MHz")),
                })
            })
            .collect()
    }

    /// Returns the power of the workloads alone, added; the GPU's idle power counts once.
    pub(crate) fn added_watts(&self, alone: &[SoloPoint]) -> f64 {
        alone.iter().map(|point| point.power_watts).sum::<f64>() - (alone.len() as f64 - 1.0) * self.idle_watts
    }

    /// Returns the candidates with shares that are multiples of `step` and sum to 100, at each of `clocks`, if every workload
    /// was measured alone; the equal partition at the highest clock comes first.
    pub fn candidates(&self, step: u32, clocks: &[Option<f64>]) -> Result<Vec<ShareCandidate>, PredictionError> {
        let count = self.tenants.len();
        if ways(count, step).is_none_or(|ways| ways > PARTITIONS_MAX) {
            return Err(PredictionError::TooManyPartitions { step, tenants: count });
        }
        let equal = ShareCandidate {
            mps_thread_percentages: vec![100 / count as u32; count],
            sm_clock_mhz: clocks.first().copied().flatten(),
        };
        self.alone(&equal)?;
        let mut candidates = vec![equal];
        for clock in clocks {
            partitions(count, step, &mut |shares| {
                let candidate = ShareCandidate { mps_thread_percentages: shares.to_vec(), sm_clock_mhz: *clock };
                if candidate != candidates[0] && self.alone(&candidate).is_ok() {
                    candidates.push(candidate);
                }
            });
        }
        if candidates.len() < 2 {
            return Err(PredictionError::NoPartition { step, tenants: count });
        }
        Ok(candidates)
    }
}

/// Partitions that are looked at.
const PARTITIONS_MAX: u64 = 20_000;

/// Returns the number of partitions: the ways to cut a row of steps into `count` parts. `None` if the number overflows.
fn ways(count: usize, step: u32) -> Option<u64> {
    let (cuts, parts) = ((100 / u64::from(step.max(1))).saturating_sub(1), count as u64 - 1);
    (1..=parts).try_fold(1_u64, |ways, n| Some(ways.checked_mul((cuts + 1).saturating_sub(n))? / n))
}

/// Lists every way to give `count` workloads multiples of `step` that sum to 100.
fn partitions(count: usize, step: u32, take: &mut impl FnMut(&[u32])) {
    fn fill(shares: &mut Vec<u32>, left: u32, count: usize, step: u32, take: &mut impl FnMut(&[u32])) {
        if shares.len() + 1 == count {
            shares.push(left);
            take(shares);
            shares.pop();
            return;
        }
        let others = (count - shares.len() - 1) as u32;
        for share in (step..).step_by(step as usize).take_while(|share| share + others * step <= left) {
            shares.push(share);
            fill(shares, left - share, count, step, take);
            shares.pop();
        }
    }
    if (1..=50).contains(&step) {
        fill(&mut Vec::with_capacity(count), 100, count, step, take);
    }
}

/// The prediction for a candidate.
#[derive(Debug, Clone, PartialEq)]
pub struct ExpectedFigures {
    /// Throughput of each workload.
    pub samples_per_second: Vec<f64>,
    /// Power of the GPU.
    pub power_watts: f64,
}

/// The predictions for all candidates, and their spread.
#[derive(Debug, Clone, PartialEq)]
pub struct CandidatePredictions {
    pub(crate) candidates: Vec<CandidatePrediction>,
}

/// The prediction for one candidate.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct CandidatePrediction {
    pub mean: ExpectedFigures,
    /// The prediction of each tree; empty if there is only one prediction. Tree `i` is the same in every candidate.
    pub opinions: Vec<ExpectedFigures>,
}

/// Predicts throughput and power of candidates.
pub trait SharePredictor: std::fmt::Debug + Sync {
    /// Returns a prediction for every candidate, in their order.
    fn predict(&self, together: &GpuTenants<'_>, candidates: &[ShareCandidate]) -> Result<CandidatePredictions, PredictionError>;

    /// Returns the same without opinions, of which there are as many as trees for every candidate.
    fn predict_means(
        &self,
        together: &GpuTenants<'_>,
        candidates: &[ShareCandidate],
    ) -> Result<CandidatePredictions, PredictionError> {
        self.predict(together, candidates)
    }
}

impl CandidatePredictions {
    /// Builds it from the mean prediction of each candidate and, if there are several, each of them; prediction `i` is the same
    /// tree's in every candidate.
    pub fn of(candidates: Vec<(ExpectedFigures, Vec<ExpectedFigures>)>) -> Self {
        let prospects = candidates.into_iter().map(|(mean, opinions)| CandidatePrediction { mean, opinions });
        Self { candidates: prospects.collect() }
    }

    /// Returns the expectations, in the order of the candidates.
    pub fn means(&self) -> impl Iterator<Item = &ExpectedFigures> {
        self.candidates.iter().map(|prospect| &prospect.mean)
    }
}

/// No learning: each workload is as fast as alone at its share, and what they draw above idle adds up. The baseline, and what
/// decides until a model is trained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AdditivePredictor;

impl SharePredictor for AdditivePredictor {
    fn predict(&self, together: &GpuTenants<'_>, candidates: &[ShareCandidate]) -> Result<CandidatePredictions, PredictionError> {
        let candidates = candidates.iter().map(|candidate| {
            let alone = together.alone(candidate)?;
            let mean = ExpectedFigures {
                samples_per_second: alone.iter().map(|point| point.samples_per_second).collect(),
                power_watts: together.added_watts(&alone),
            };
            Ok(CandidatePrediction { mean, opinions: Vec::new() })
        });
        Ok(CandidatePredictions { candidates: candidates.collect::<Result<_, _>>()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_are_counted_as_they_are_listed() {
        for (count, step) in [(2, 10), (3, 10), (3, 5), (4, 7), (10, 10), (11, 10), (2, 50), (3, 50), (5, 4)] {
            let mut listed = 0;
            partitions(count, step, &mut |_| listed += 1);
            let exact = 100 % step == 0;
            let ways = ways(count, step).unwrap();
            // The last share takes the remainder.
            assert!(if exact { ways == listed } else { ways >= listed }, "{count} in steps of {step}: {ways} and {listed}");
        }
        assert!(ways(8, 1).is_none_or(|ways| ways > PARTITIONS_MAX) && ways(6, 5).unwrap() < PARTITIONS_MAX);
    }
}
