//! Power caps, clocks and MPS defaults: which GPUs a workload has for itself, and what node agents are asked to hold.

pub mod gpu_pod;
pub mod gpu_pods;
pub mod mps_default;
pub mod planner;
pub mod target;
