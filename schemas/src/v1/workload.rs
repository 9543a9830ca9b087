use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Layout, Origin, Precision};
use crate::EventTime;

/// Mode of a workload: which changes are allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema, Default)]
#[serde(rename_all = "snake_case")]
pub enum UpdateMode {
    /// Report only.
    Observe,
    /// Write recommendations, change nothing.
    #[default]
    Recommend,
    /// Change the workload within its bounds.
    Enforce,
}

/// Limits inside which a controller stays. Absent: the controller's own limit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema, Default)]
#[serde(default)]
#[schemars(rename = "Bounds")]
pub struct LayoutBounds {
    /// Least MPS thread percentage of a process.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub mps_thread_percentage_min: Option<u32>,
    /// Greatest MPS thread percentage of a process.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub mps_thread_percentage_max: Option<u32>,
    /// Least number of training processes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas_min: Option<u32>,
    /// Greatest number of training processes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas_max: Option<u32>,
    /// Least power cap of a GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 10_000_000))]
    pub power_limit_watts_min: Option<f64>,
    /// Greatest power cap of a GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 10_000_000))]
    pub power_limit_watts_max: Option<f64>,
    /// Least upper limit of a GPU's SM clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100_000))]
    pub sm_clock_mhz_min: Option<f64>,
    /// Greatest upper limit of a GPU's SM clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100_000))]
    pub sm_clock_mhz_max: Option<f64>,
    /// Largest sum of thread percentages on one GPU: 100 clamps, up to 200 allows oversubscription.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oversubscription_percentage_max: Option<u32>,
    /// Precisions that the job may be asked for. Absent: any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub precisions: Option<Vec<Precision>>,
    /// Greatest number of layers that the job may be asked to freeze.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frozen_prefix_layers_max: Option<u32>,
    /// Restarts allowed in 24 h.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restarts_per_day_max: Option<u32>,
}

/// The present layout of a managed workload and everything in force for deciding about it. Key: the workload.
///
/// A replay uses the settings that this event carried at the time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema, Default)]
#[serde(default)]
#[schemars(extend("required" = ["time", "workload"]))]
pub struct Workload {
    /// When the layout was read or changed.
    #[serde(default = "EventTime::missing")]
    pub time: EventTime,
    /// `namespace/name`.
    #[schemars(length(max = 253), pattern("^[^/]+/[^/]+$"))]
    pub workload: String,
    /// Whether the workload is real.
    pub origin: Origin,
    /// The Kubernetes kind, `StatefulSet` for example.
    #[schemars(length(max = 253))]
    pub kind: String,
    /// Grows with every change of the layout, also by others.
    pub generation: u64,
    /// The layout in force.
    #[serde(deserialize_with = "super::common::object")]
    pub layout: Layout,
    /// Mode of the workload: which changes are allowed.
    pub mode: UpdateMode,
    /// Nothing is changed while this is set.
    pub paused: bool,
    /// Who set the mode in force: the field manager on Kubernetes (`kubectl-edit`, `eadt-page:NAME`), the page's user in a
    /// simulation. Absent: the job was begun with it, or it is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub mode_set_by: Option<String>,
    /// User who paused or resumed the workload; as `mode_set_by`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub pause_set_by: Option<String>,
    /// Name of the controller in force; absent: the processor's default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub controller: Option<String>,
    /// Settings of that controller, by their names in the processor's `controller_settings`; those that are not named have their
    /// defaults. Absent: the processor's own settings, which are in no record.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub controller_settings: Option<serde_json::Map<String, serde_json::Value>>,
    /// Limits inside which a controller stays.
    #[serde(deserialize_with = "super::common::object")]
    pub bounds: LayoutBounds,
    /// GPUs that the workload holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpus: Option<u32>,
    /// Product name of those GPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub gpu_model: Option<String>,
    /// The board's default power limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 10_000_000))]
    pub gpu_power_limit_watts: Option<f64>,
    /// Communication backend: `nccl`, `gloo`, `mpi`, `ucc`. Undeclared counts as NCCL, which allows one rank a GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub backend: Option<String>,
    /// Samples of one optimiser step over all ranks; a replica count must divide it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub global_batch_size: Option<u32>,
    /// Price of electricity, in currency units per kWh.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = -1e6, max = 1e6))]
    pub price_per_kwh: Option<f64>,
    /// Carbon intensity of electricity, in grams of CO₂ equivalent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1e5))]
    pub carbon_grams_per_kwh: Option<f64>,
    /// The decision that made this layout, where one did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decision_id: Option<String>,
    /// Since when all processes of this generation are ready; absent while it rolls out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready_time: Option<EventTime>,
}
