//! Control loops of the leader: workloads and their rollouts, and the settings of their GPUs.

pub mod devices;
pub mod workloads;
