//! The optimizer: trains models on the archive and publishes them for the processor.
//!
//! In: an [`eadt_lake::Archive`] (a folder or an object store) and the models in force. Out: events in `models.v1`, each written
//! to every partition, for a model that predicts held-back data better than the one in force and better than a constant; with
//! version, training range, fingerprint of the data and figures. If a model cannot be fitted, the reason is reported. [`learn()`]
//! is pure; the loop around it reads the archive on a schedule and never deletes or changes anything there.

pub mod learn;
pub mod metrics;
mod publish;
mod service;
mod settings;

pub use learn::{ModelProposal, ModelVerdict, TrainingData, learn};
pub use service::{OptimizerDependencies, OptimizerError, OptimizerRound, read, run};
pub use settings::OptimizerSettings;
