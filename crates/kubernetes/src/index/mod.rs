//! The informer index: policies, workloads and GPUs as the watches read them, with the indexes for look-ups.

pub mod gpu_models;
pub mod managed;
pub mod watch;
pub mod workloads;
