//! The program as its users run it, with nothing but Rust: one binary, since linking is most of what another one would cost.

mod support;

mod doctor;
mod frozen_layers;
mod ingest;
mod lists;
#[cfg(feature = "otlp")]
mod otlp;
mod partition;
mod power_budget;
mod profile;
mod prometheus;
mod recordings;
mod replay;
mod shared_gpu;
mod training;
mod tune;
mod up;
mod up_faults;
mod usage;
