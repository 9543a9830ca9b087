//! How to share a GPU: what each of several workloads would get and what the GPU would draw for every partition of its
//! SMs, and which partition to take.
//!
//! In: what each workload does alone at some shares of the SMs ([`SoloProfile`]), and, to learn from, what pairs did
//! together ([`CoRun`]). Out: a [`Choice`] among the partitions, with the figures that led to it. It never reads a clock
//! or a file, draws nothing that a seed does not fix, gives the same bits on any number of threads, and says what it
//! cannot tell instead of guessing.

pub mod forest;

mod choose;
pub mod co_runs;
pub mod evaluate;
pub mod gather;
pub mod gpus;
mod measurements;
mod outlook;
mod paper;
mod profile;
pub mod published;
pub mod rebalance;
mod slowdown;
pub mod tables;

pub use choose::{Choice, ChoiceSettings, Objective, Verdict, choose};
pub use gpus::Gpus;
pub use measurements::{CoRun, Measurements, MeasurementsError, Tenant};
pub use outlook::{Additive, Candidate, CannotTell, Expected, Outlook, Predictor, Together};
pub use paper::{PairSum, PaperModel};
pub use profile::{Counters, Metric, ProfileError, SoloPoint, SoloProfile};
pub use slowdown::{ModelError, SlowdownModel, TrainError};
