//! How to share a GPU: what each of several workloads would get and what the GPU would draw for every partition of its
//! SMs, and which partition to take.
//!
//! In: what each workload does alone at some shares of the SMs ([`SoloProfile`]), and, to learn from, what pairs did
//! together ([`CoRun`]). Out: a [`ShareChoice`] among the partitions, with the figures that led to it. It never reads a clock
//! or a file, draws nothing that a seed does not fix, gives the same bits on any number of threads, and says what it
//! cannot tell instead of guessing.

pub mod forest;

mod choose;
pub mod co_runs;
pub mod evaluate;
pub mod fold;
pub mod gather;
mod measurements;
mod outlook;
mod paper;
mod profile;
pub mod published;
pub mod rebalance;
mod slowdown;
pub mod tables;

pub use choose::{ChoiceSettings, ChoiceVerdict, ShareChoice, ShareObjective, choose};
pub use fold::GpuSharingFold;
pub use measurements::{CoRun, CoRunTenant, Measurements, MeasurementsError};
pub use outlook::{AdditivePredictor, ExpectedRates, GpuTenants, Outlook, OutlookError, Predictor, ShareCandidate};
pub use paper::{PairSum, PaperModel};
pub use profile::{MetricValues, ProfileError, ProfileMetric, SoloPoint, SoloProfile};
pub use slowdown::{ModelError, SlowdownModel, TrainError};
