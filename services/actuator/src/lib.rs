//! The actuator: changes workloads as decided, and publishes the outcome of every decision.
//!
//! In: `decisions.v1`, and a [`Cluster`]. Out: `workloads.v1` (each workload's present layout, at start and at every change),
//! `actuations.v1`, `directives.v1` (precision, frozen layers, a checkpoint before a restart, answered in
//! `training.progress.v1`), and on clusters with node agents `device-intents.v1`, answered in `device-states.v1`. A decision goes
//! through dereference → plan → check → apply → watch → report, a file each; all except apply are pure, and only a checked change
//! can be applied.
//!
//! Delivery is at-least-once with an idempotent, fenced effect: decision id and generation are written with the change, so a
//! repeated decision is recognised by the object, and `workloads.v1` has what was already reported. The actuator has no state of
//! its own. It never touches a workload that did not opt in, is paused, or is not in mode `enforce`; it never exceeds a
//! workload's bounds; it never decides.

pub mod apply;
pub mod check;
pub mod checkpoint;
pub mod declared_jobs;
pub mod directives;
pub mod find_workload;
pub mod job;
mod lead;
pub mod metrics;
pub mod overdue_rollouts;
pub mod plan;
pub mod published_intents;
pub mod report;
mod service;
mod settings;

pub use eadt_cluster::Cluster;
pub use lead::run_while_leading;
pub use service::{ActuatorDependencies, ActuatorError, run_actuator};
pub use settings::{ActuatorSettings, DeclaredJob, JobController};
