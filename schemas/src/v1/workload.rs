use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Layout, Origin};
use crate::EventTime;

/// What may be done to a workload.
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
pub struct Bounds {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mps_thread_percentage_min: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mps_thread_percentage_max: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas_min: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas_max: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power_limit_watts_min: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power_limit_watts_max: Option<f64>,
    /// Largest sum of thread percentages on one GPU: 100 clamps, up to 200 allows oversubscription.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oversubscription_percentage_max: Option<u32>,
    /// Restarts allowed in 24 h.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restarts_per_day_max: Option<u32>,
}

/// The present layout of a managed workload and everything in force for deciding about it. Key: the workload.
///
/// A replay uses the settings that this event carried at the time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema, Default)]
#[serde(default)]
pub struct Workload {
    pub time: EventTime,
    /// `namespace/name`.
    pub workload: String,
    pub origin: Origin,
    /// The Kubernetes kind, `StatefulSet` for example.
    pub kind: String,
    /// Grows with every change of the layout, whoever made it.
    pub generation: u64,
    pub layout: Layout,
    pub mode: UpdateMode,
    /// Nothing is changed while this is set.
    pub paused: bool,
    /// Name of the controller in force; absent: the processor's default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub controller: Option<String>,
    pub bounds: Bounds,
    /// GPUs that the workload holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpus: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_model: Option<String>,
    /// The board's default power limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_power_limit_watts: Option<f64>,
    /// Undeclared counts as NCCL, which allows one rank a GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub global_batch_size: Option<u32>,
    /// Price of electricity, in currency units per kWh.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub price_per_kwh: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub carbon_grams_per_kwh: Option<f64>,
    /// The decision that made this layout, where one did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decision_id: Option<String>,
    /// Since when all processes of this generation are ready; absent while it rolls out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready_time: Option<EventTime>,
}
