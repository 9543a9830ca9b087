//! The informer index: what the watches have read of policies, workloads and GPUs, with the indexes that lookups need.

pub mod gpu_models;
pub mod managed;
pub mod watch;
pub mod workloads;
