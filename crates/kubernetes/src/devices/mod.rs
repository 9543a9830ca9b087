//! Power caps, clocks and MPS defaults: the GPUs that a workload has for itself, and the settings that node agents are requested
//! to hold.

pub mod gpu_pod;
pub mod gpu_pods;
pub mod mps_default;
pub mod planner;
pub mod target;
