//! Sharing a GPU: predicts throughput and power for every partition of its SMs among several workloads, and chooses a partition.
//!
//! In: measurements of each workload alone at some SM shares ([`SoloProfile`]) and, for training, of pairs together ([`CoRun`]).
//! Out: a [`ShareChoice`] among the partitions, with the figures that led to it. It never reads a clock or a file, uses only
//! random numbers that a seed defines, gives the same bits with any number of threads, and reports what it cannot predict instead
//! of guessing.

pub mod forest;

mod choose;
pub mod co_runs;
pub mod evaluate;
pub mod fold;
pub mod gather;
mod measurements;
mod paper;
mod prediction;
mod profile;
pub mod published;
pub mod rebalance;
mod slowdown;
pub mod tables;

pub use choose::{ChoiceSettings, ChoiceVerdict, ShareChoice, ShareObjective, choose};
pub use fold::GpuSharingFold;
pub use measurements::{CoRun, CoRunTenant, GpuMeasurements, MeasurementsError};
pub use paper::{PairSum, PaperModel};
pub use prediction::{
    AdditivePredictor, CandidatePredictions, ExpectedFigures, GpuTenants, PredictionError, ShareCandidate, SharePredictor,
};
pub use profile::{MetricValues, ProfileError, ProfileMetric, SoloPoint, SoloProfile};
pub use slowdown::{ModelError, SlowdownModel, TrainError};
