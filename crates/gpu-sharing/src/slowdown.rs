//! The slowdown model: how much slower a workload is beside others than alone at the same share, and how much less they draw
//! together than added up. What is learned is a ratio to what was measured, so a model knows workloads that it never saw, and
//! three on a GPU from pairs.

use eadt_schemas::v1::Origin;
use serde::{Deserialize, Serialize};

use crate::forest::{Forest, ForestSettings, SamplesError, SettingsError, TrainingSamples, TreePredictions};
use crate::prediction::CandidatePrediction;
use crate::{
    CandidatePredictions, ExpectedFigures, GpuMeasurements, GpuTenants, PredictionError, ProfileMetric, ShareCandidate,
    SharePredictor, SoloPoint, SoloProfile,
};

/// The reason why no model can be trained.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum TrainError {
    #[error("no co-run to learn from: measure some pairs together")]
    NoRuns,
    #[error("the profiles have no metric in common: measure at least {} of every workload", ProfileMetric::SmActiveRatio.name())]
    NoMetrics,
    #[error("the co-runs cannot be learned from")]
    Samples(#[from] SamplesError),
    #[error("no forest can be grown with these settings")]
    Settings(#[from] SettingsError),
    #[error(transparent)]
    Prediction(#[from] PredictionError),
    #[error(transparent)]
    Model(#[from] ModelError),
}

/// Profiles are checked when they are made.
const FINITE: &str = "invariant features_are_finite";
const FORMAT: &str = "eadt-sm-partition";
const VERSION: u32 = 1;

/// Two forests: logarithm of the slowdown of a workload (a row a workload), and of the power against the added power (a row a
/// co-run).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "SlowdownDocument", into = "SlowdownDocument")]
pub struct SlowdownModel {
    gpu_model: String,
    /// Idle power of the training measurements, in watts.
    idle_watts: f64,
    metrics: Vec<ProfileMetric>,
    /// Highest clock of the training measurements, if they were made at several.
    clock_max_mhz: Option<f64>,
    rates: Forest,
    power: Forest,
    /// Origin of the training measurements, if they were not measured here and the model itself declares it.
    origin: Option<Origin>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SlowdownDocument {
    format: String,
    version: u32,
    gpu_model: String,
    idle_watts: f64,
    metrics: Vec<ProfileMetric>,
    clock_max_mhz: Option<f64>,
    rates: Forest,
    power: Forest,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    origin: Option<Origin>,
}

/// The reason why a written model is refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ModelError {
    #[error("the format is {found:?}, but this reads {FORMAT:?}")]
    Format { found: String },
    #[error(
        "the model has version {found}, but this program reads version {VERSION}: train it again or use another program version"
    )]
    Version { found: u32 },
    #[error("the model's forests do not fit its metrics: the document is damaged")]
    Features,
    #[error("the model has {trees} trees a forest, but at most {TREES_MAX} are read")]
    Trees { trees: usize },
    #[error("the model's idle power is {watts} W, but must be above 0 and at most {WATTS_MAX}: the document is damaged")]
    Idle { watts: f64 },
    #[error("the model's highest clock is {mhz} MHz, but must be within 1 and {CLOCK_MAX_MHZ}: the document is damaged")]
    Clock { mhz: f64 },
    #[error(
        "the model predicts a factor of e^{logarithm} between together and alone, but at most e^±{LOGARITHM_MAX} is accepted"
    )]
    Leaf { logarithm: f32 },
}

/// A model with more trees than this is refused: each predicts every candidate.
const TREES_MAX: usize = 1_000;
/// The limit of a profile.
const WATTS_MAX: f64 = 5_000.0;
const CLOCK_MAX_MHZ: f64 = 1e5;
/// Largest logarithm of a ratio: a factor of 22,000.
const LOGARITHM_MAX: f32 = 10.0;

impl From<SlowdownModel> for SlowdownDocument {
    fn from(model: SlowdownModel) -> Self {
        let SlowdownModel { gpu_model, idle_watts, metrics, clock_max_mhz, rates, power, origin } = model;
        Self { format: FORMAT.to_owned(), version: VERSION, gpu_model, idle_watts, metrics, clock_max_mhz, rates, power, origin }
    }
}

impl TryFrom<SlowdownDocument> for SlowdownModel {
    type Error = ModelError;

    fn try_from(written: SlowdownDocument) -> Result<Self, ModelError> {
        if written.format != FORMAT {
            return Err(ModelError::Format { found: written.format.chars().take(64).collect() });
        }
        if written.version != VERSION {
            return Err(ModelError::Version { found: written.version });
        }
        let SlowdownDocument { gpu_model, idle_watts, metrics, clock_max_mhz, rates, power, origin, .. } = written;
        Self { gpu_model, idle_watts, metrics, clock_max_mhz, rates, power, origin }.checked()
    }
}

impl SlowdownModel {
    /// Checks that its figures give finite predictions for every profile.
    fn checked(self) -> Result<Self, ModelError> {
        if !(self.idle_watts > 0.0 && self.idle_watts <= WATTS_MAX) {
            return Err(ModelError::Idle { watts: self.idle_watts });
        }
        if let Some(mhz) = self.clock_max_mhz.filter(|mhz| !(1.0..=CLOCK_MAX_MHZ).contains(mhz)) {
            return Err(ModelError::Clock { mhz });
        }
        let features = FeatureSet { metrics: &self.metrics, clock_max_mhz: self.clock_max_mhz };
        if self.rates.features() != features.rate_names()
            || self.power.features() != features.power_names()
            || self.rates.trees() != self.power.trees()
        {
            return Err(ModelError::Features);
        }
        if self.rates.trees() > TREES_MAX {
            return Err(ModelError::Trees { trees: self.rates.trees() });
        }
        let is_absurd = |logarithm: &f32| logarithm.is_nan() || logarithm.abs() > LOGARITHM_MAX;
        let absurd = self.rates.leaves().chain(self.power.leaves()).find(is_absurd);
        absurd.map_or(Ok(self), |logarithm| Err(ModelError::Leaf { logarithm }))
    }

    /// Default settings of its forests: leaves of three rows average some of the instruments' noise.
    pub const FOREST: ForestSettings = ForestSettings { trees: 100, features_per_split: None, leaf_min: 3, seed: 0 };

    /// Learns from co-runs and the profiles of their workloads.
    pub fn train(measurements: &GpuMeasurements, settings: &ForestSettings) -> Result<Self, TrainError> {
        let all: Vec<usize> = (0..measurements.runs().len()).collect();
        Self::train_on(measurements, &all, settings)
    }

    /// Learns from some of the co-runs, by number.
    pub fn train_on(measurements: &GpuMeasurements, runs: &[usize], settings: &ForestSettings) -> Result<Self, TrainError> {
        let TrainingRows { metrics, clock_max_mhz, rates, power } = TrainingRows::of(measurements, runs)?;
        let features = FeatureSet { metrics: &metrics, clock_max_mhz };
        let grow = |names, rows: &[(Vec<f64>, f64)], seed| -> Result<Forest, TrainError> {
            let samples = TrainingSamples::new(names, rows.iter().map(|(row, target)| (row.as_slice(), *target)))?;
            Ok(Forest::grow(&samples, &ForestSettings { seed, ..*settings })?)
        };
        Ok(Self {
            gpu_model: measurements.gpu_model().to_owned(),
            idle_watts: measurements.idle_watts(),
            rates: grow(features.rate_names(), &rates, settings.seed)?,
            power: grow(features.power_names(), &power, settings.seed.wrapping_add(1))?,
            metrics,
            clock_max_mhz,
            origin: None,
        }
        .checked()?)
    }

    /// Returns the training data of the two forests, with the targets, for a comparison with other learners.
    #[allow(clippy::type_complexity, reason = "two tables of rows with targets")]
    pub fn rows(measurements: &GpuMeasurements) -> Result<(Vec<(Vec<f64>, f64)>, Vec<(Vec<f64>, f64)>), TrainError> {
        let all: Vec<usize> = (0..measurements.runs().len()).collect();
        TrainingRows::of(measurements, &all).map(|rows| (rows.rates, rows.power))
    }

    /// Returns the GPU model that it knows.
    pub fn gpu_model(&self) -> &str {
        &self.gpu_model
    }

    /// Names the origin of its training measurements. One that is `measured` is not written.
    #[must_use]
    pub fn with_origin(self, origin: Origin) -> Self {
        Self { origin: Some(origin).filter(|origin| *origin != Origin::Measured), ..self }
    }

    /// Returns the origin of the training measurements, as far as the model names it.
    pub fn origin(&self) -> Origin {
        self.origin.unwrap_or_default()
    }

    /// Returns the idle power of the training measurements, in watts.
    pub fn idle_watts(&self) -> f64 {
        self.idle_watts
    }

    /// Returns the metrics that a profile must have.
    pub fn metrics(&self) -> &[ProfileMetric] {
        &self.metrics
    }

    /// Returns the number of nodes of both forests.
    pub fn nodes(&self) -> usize {
        self.rates.nodes() + self.power.nodes()
    }
}

/// Rows of features with targets.
struct TrainingRows {
    metrics: Vec<ProfileMetric>,
    clock_max_mhz: Option<f64>,
    /// A row a workload of a co-run.
    rates: Vec<(Vec<f64>, f64)>,
    /// A row a co-run.
    power: Vec<(Vec<f64>, f64)>,
}

impl TrainingRows {
    fn of(measurements: &GpuMeasurements, runs: &[usize]) -> Result<Self, TrainError> {
        let metrics = measurements.metrics();
        if runs.is_empty() {
            return Err(TrainError::NoRuns);
        }
        if metrics.is_empty() {
            return Err(TrainError::NoMetrics);
        }
        let clocks = || runs.iter().map(|run| measurements.runs()[*run].sm_clock_mhz);
        let first = clocks().next().flatten();
        let several = clocks().any(|clock| clock != first);
        let clock_max_mhz = if several { clocks().flatten().reduce(f64::max) } else { None };
        let features = FeatureSet { metrics: &metrics, clock_max_mhz };
        let (mut rates, mut power) = (Vec::new(), Vec::new());
        for run in runs {
            let run = &measurements.runs()[*run];
            let tenants = run.tenants.iter().map(|tenant| &measurements.profiles()[&tenant.workload]).collect();
            let together = GpuTenants::new(tenants, measurements.idle_watts())?;
            let candidate = ShareCandidate {
                mps_thread_percentages: run.tenants.iter().map(|tenant| tenant.mps_thread_percentage).collect(),
                sm_clock_mhz: run.sm_clock_mhz,
            };
            let alone = together.alone(&candidate)?;
            let mut row = Vec::new();
            features.power(&together, &alone, &candidate, &mut row)?;
            power.push((row, (run.power_watts / together.added_watts(&alone)).ln()));
            for (i, tenant) in run.tenants.iter().enumerate() {
                let mut row = Vec::new();
                features.rate(&together, &alone, &candidate, i, &mut row)?;
                rates.push((row, (tenant.samples_per_second / alone[i].samples_per_second).ln()));
            }
        }
        Ok(Self { metrics, clock_max_mhz, rates, power })
    }
}

impl SharePredictor for SlowdownModel {
    fn predict(&self, together: &GpuTenants<'_>, candidates: &[ShareCandidate]) -> Result<CandidatePredictions, PredictionError> {
        self.predict_candidates(together, candidates, true)
    }

    fn predict_means(
        &self,
        together: &GpuTenants<'_>,
        candidates: &[ShareCandidate],
    ) -> Result<CandidatePredictions, PredictionError> {
        self.predict_candidates(together, candidates, false)
    }
}

impl SlowdownModel {
    fn predict_candidates(
        &self,
        together: &GpuTenants<'_>,
        candidates: &[ShareCandidate],
        opinions: bool,
    ) -> Result<CandidatePredictions, PredictionError> {
        if together.gpu_model() != self.gpu_model {
            let (expected, found) = (self.gpu_model.clone(), together.gpu_model().to_owned());
            return Err(PredictionError::ModelGpu { expected, found });
        }
        let features = FeatureSet { metrics: &self.metrics, clock_max_mhz: self.clock_max_mhz };
        let (mut rate_rows, mut power_rows) = (Vec::new(), Vec::new());
        let mut alone = Vec::with_capacity(candidates.len());
        for candidate in candidates {
            let points = together.alone(candidate)?;
            features.power(together, &points, candidate, &mut power_rows)?;
            for i in 0..points.len() {
                features.rate(together, &points, candidate, i, &mut rate_rows)?;
            }
            alone.push(points);
        }
        let rates = self.rates.predict_trees(&rate_rows).expect(FINITE);
        let power = self.power.predict_trees(&power_rows).expect(FINITE);
        let tenants = together.tenants().len();
        let prospects = alone.iter().enumerate().map(|(candidate, points)| {
            let expected = |rate: &dyn Fn(usize) -> f64, power: f64| ExpectedFigures {
                samples_per_second: points
                    .iter()
                    .enumerate()
                    .map(|(i, point)| point.samples_per_second * rate(candidate * tenants + i).exp())
                    .collect(),
                power_watts: together.added_watts(points) * power.exp(),
            };
            let opinion = |tree| expected(&|row| rates.of(tree, row), power.of(tree, candidate));
            CandidatePrediction {
                mean: expected(&|row| rates.mean(row), power.mean(candidate)),
                opinions: (0..if opinions { TreePredictions::trees(&rates) } else { 0 }).map(opinion).collect(),
            }
        });
        Ok(CandidatePredictions { candidates: prospects.collect() })
    }
}

/// The features of the forests.
#[derive(Debug)]
struct FeatureSet<'a> {
    metrics: &'a [ProfileMetric],
    clock_max_mhz: Option<f64>,
}

impl FeatureSet<'_> {
    fn rate_names(&self) -> Vec<String> {
        let fixed = ["share", "others_share", "alone_progress", "others_progress", "elasticity", "others_elasticity"];
        let fixed = fixed.into_iter().chain(["above_idle_watts", "others_above_idle_watts"]).map(str::to_owned);
        let metrics = self.metrics.iter().flat_map(|metric| {
            let name = metric.name();
            [name.to_owned(), format!("others_{name}"), format!("all_{name}")]
        });
        fixed.chain(metrics).chain(self.clock_name()).collect()
    }

    fn power_names(&self) -> Vec<String> {
        let fixed = ["added_watts", "largest_share", "progress", "elasticity"].into_iter().map(str::to_owned);
        let metrics = self.metrics.iter().flat_map(|metric| {
            let name = metric.name();
            [format!("all_{name}"), format!("largest_{name}")]
        });
        fixed.chain(metrics).chain(self.clock_name()).collect()
    }

    fn clock_name(&self) -> Option<String> {
        self.clock_max_mhz.map(|_| "clock_ratio".to_owned())
    }

    fn clock(&self, together: &GpuTenants<'_>, candidate: &ShareCandidate) -> Result<Option<f64>, PredictionError> {
        let top = together.tenants()[0].clocks().next().flatten();
        match self.clock_max_mhz {
            Some(highest) => Ok(Some(candidate.sm_clock_mhz.or(top).unwrap_or(highest) / highest)),
            None if candidate.sm_clock_mhz.is_some() && candidate.sm_clock_mhz != top => Err(PredictionError::NoClocks),
            None => Ok(None),
        }
    }

    /// Writes a row for one of the workloads.
    fn rate(
        &self,
        together: &GpuTenants<'_>,
        alone: &[SoloPoint],
        candidate: &ShareCandidate,
        own: usize,
        row: &mut Vec<f64>,
    ) -> Result<(), PredictionError> {
        let of_others = |value: &dyn Fn(usize) -> f64| (0..alone.len()).filter(|i| *i != own).map(value).sum::<f64>();
        let mut both = |value: &dyn Fn(usize) -> f64| row.extend([value(own), of_others(value)]);
        both(&|i| f64::from(alone[i].mps_thread_percentage) / 100.0);
        both(&|i| progress(together.tenants()[i], &alone[i]));
        both(&|i| together.tenants()[i].elasticity());
        both(&|i| alone[i].power_watts - together.idle_watts());
        for metric in self.metrics {
            let value = |i: usize| counter(together.tenants()[i], &alone[i], *metric);
            let mine = value(own)?;
            let others: f64 = (0..alone.len()).filter(|i| *i != own).map(value).sum::<Result<_, _>>()?;
            row.extend([mine, others, mine + others]);
        }
        row.extend(self.clock(together, candidate)?);
        Ok(())
    }

    /// Writes a row for all of them.
    fn power(
        &self,
        together: &GpuTenants<'_>,
        alone: &[SoloPoint],
        candidate: &ShareCandidate,
        row: &mut Vec<f64>,
    ) -> Result<(), PredictionError> {
        let tenants = together.tenants();
        let largest = alone.iter().map(|point| point.mps_thread_percentage).max().unwrap_or(0);
        row.extend([
            together.added_watts(alone),
            f64::from(largest) / 100.0,
            tenants.iter().zip(alone).map(|(tenant, point)| progress(tenant, point)).sum(),
            tenants.iter().map(|tenant| tenant.elasticity()).sum(),
        ]);
        for metric in self.metrics {
            let (mut sum, mut most) = (0.0, f64::NEG_INFINITY);
            for (tenant, point) in tenants.iter().zip(alone) {
                let value = counter(tenant, point, *metric)?;
                sum += value;
                most = f64::max(most, value);
            }
            row.extend([sum, most]);
        }
        row.extend(self.clock(together, candidate)?);
        Ok(())
    }
}

fn progress(tenant: &SoloProfile, point: &SoloPoint) -> f64 {
    point.samples_per_second / tenant.whole().samples_per_second
}

fn counter(tenant: &SoloProfile, point: &SoloPoint, metric: ProfileMetric) -> Result<f64, PredictionError> {
    point
        .counters
        .get(metric)
        .ok_or_else(|| PredictionError::Metric { workload: tenant.workload().to_owned(), metric: metric.name() })
}
