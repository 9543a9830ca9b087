//! Simulated GPUs, and a cluster of training jobs on them.
//!
//! In: a [`Scenario`] with a seed, and changes of layouts. Out: what instruments and jobs would report, and objects with
//! generations and rollouts as a Kubernetes API server would have them. Everything is a pure function of scenario, changes
//! and simulated time: no clock, no I/O, no global randomness; the whole state can be saved and goes on bit for bit.
//! Results are marked `simulated`; it never claims to have measured anything.

pub mod calibration;
pub mod cluster;
pub mod gpu;
pub mod sharing;

pub use cluster::{
    ClusterSimulation, FastForwardTotals, Fault, JobSuspension, Scenario, ScenarioError, SimulatedEvent, TrainingScenario,
    WorkloadScenario,
};
