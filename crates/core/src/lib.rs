//! The deciding core: what time it is, what a window holds, what to change, whether it helped.
//!
//! In: decoded events with their log stamps, in any order that the log gives them. Out: windows, decisions,
//! refusals. It never reads a clock, never awaits, does no I/O, and knows neither Kafka nor Kubernetes.

pub mod budget;
pub mod clock;
pub mod cluster;
pub mod controller;
pub mod joint;
#[cfg(test)]
mod kept;
pub mod merge;
pub mod models;
pub mod partition;
pub mod settings;
pub mod sharing;
pub mod state;
mod tenants;
pub mod window;
pub mod workload;

pub use cluster::Cluster;
pub use joint::Joint;
pub use merge::Merge;
pub use partition::{Event, Input, Output, Partition, Tally};
pub use settings::FoldSettings;
pub use state::{StateError, StateRecord};
