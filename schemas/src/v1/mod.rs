//! Version 1 of every event.

mod actuation;
mod common;
mod dead_letter;
mod decision;
mod device;
mod model;
mod progress;
mod telemetry;
mod window;
mod workload;

pub use actuation::{Actuation, ActuationOutcome, Directive, refusal_reason};
pub use common::{
    Layout, Meter, Origin, Precision, SOURCE_KINDS_BY_PREFERENCE, ShareMethod, computes_fp8, is_older_than_ampere, source_rank,
};
pub use dead_letter::{DeadLetterReason, dead_letter_header};
pub use decision::{ChangeValidation, ControllerAction, Decision};
pub use device::{
    DeviceHolders, DeviceIntent, DeviceReport, DeviceSetting, DeviceState, HeldDevice, MpsTenant, PodName, SettingOutcome,
};
pub use model::Model;
pub use progress::{CounterScope, JobLifecycle, TrainingProgress};
pub use telemetry::GpuTelemetry;
pub use window::{EfficiencyWindow, EnergyMethod, WindowKind};
pub use workload::{LayoutBounds, UpdateMode, Workload};
