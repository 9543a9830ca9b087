//! The deciding core: log time, windows, decisions, and their validation.
//!
//! In: decoded events with their log stamps, in any order that the log gives them. Out: windows, decisions,
//! refusals. It never reads a clock, never awaits, does no I/O, and knows neither Kafka nor Kubernetes.

pub mod clock;
pub mod controller;
pub mod gpu_sharing;
pub mod joint;
pub mod merge;
pub mod models;
pub mod partition;
pub mod power_budget;
mod quota;
pub mod settings;
pub mod state;
#[cfg(test)]
mod transcript;
pub mod window;
pub mod workload;

pub use joint::JointFold;
pub use merge::InputMerge;
pub use partition::{FoldOutput, InputEvent, InputRecord, PartitionFold, PartitionTally};
pub use power_budget::PowerBudgetFold;
pub use settings::FoldSettings;
pub use state::{StateError, StateRecord};
