//! The node agent: sets power caps, clocks and MPS defaults on its own node, and always restores them.
//!
//! In: `device-intents.v1` for its node (or a file), this machine's GPUs, its MPS control daemons. Out: their settings,
//! and `device-states.v1`: held settings, refusals with reasons, changes by others, and the limits of the devices. It
//! is the only privileged part of the pipeline, and the only one that can change a GPU.
//!
//! It never changes a setting before the original value is on disk; never goes outside what the device allows; never
//! keeps a setting without a live intent (everything is put back when its time to live is over, at SIGTERM, and at the
//! start after a crash); never touches a setting again that another program changed; never lets one stuck device delay
//! another; never decides which values are requested.
//!
//! Each device has a thread, which runs one step over and over: look ([`eadt_nvml::set`]), [`decide`] (pure), write the
//! [`ledger`], act, report.

pub mod agent;
mod apply_setting;
pub mod decide;
pub mod desired;
pub mod gpu;
pub mod intents;
pub mod ledger;
mod log;
pub mod metrics;
pub mod mps;
mod publish;
pub mod settings;
mod worker;

pub use agent::{AgentDependencies, AgentError, AgentSummary, restore, run};
pub use log::LazyBus;
pub use settings::{AgentSettings, RawSettings, SettingsError};
