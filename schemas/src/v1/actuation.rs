use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Layout, Origin};
use crate::EventTime;

/// What became of a decision. A decision has one `applied` or `refused`, and after `applied` one of the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema, Default)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The change is written; its rollout begins.
    #[default]
    Applied,
    /// The rollout is complete.
    Ready,
    /// Nothing was touched; the reason says why.
    Refused,
    /// Mode `Recommend`: written as a recommendation, nothing was touched.
    Recommended,
    /// Not ready in time; the layout before it is being restored.
    RolledBack,
    /// The change failed and could not be undone; the reason says what is left.
    Failed,
}

/// What the actuator did about one decision. Key: the workload.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema, Default)]
#[serde(default)]
pub struct Actuation {
    /// Deterministic: from decision and outcome.
    pub id: String,
    pub decision_id: String,
    pub workload: String,
    pub time: EventTime,
    pub origin: Origin,
    pub outcome: Outcome,
    /// In words; empty where there is nothing to explain.
    pub reason: String,
    /// The layout that is in force, or being rolled out, after this.
    pub layout: Layout,
    pub generation: u64,
    /// From the patch to readiness.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub downtime_seconds: Option<f64>,
}

/// What a training job is asked to do. Key: the workload.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema, Default)]
#[serde(default)]
pub struct Directive {
    pub time: EventTime,
    pub workload: String,
    pub decision_id: String,
    /// `fp16`, `bf16`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub precision: Option<String>,
    /// Number of layers frozen, counted from the input side.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frozen_prefix_layers: Option<u32>,
    /// Write a checkpoint now.
    pub checkpoint_now: bool,
}

/// What a node agent is asked to set on its node. Key: the node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema, Default)]
#[serde(default)]
pub struct DeviceIntent {
    pub time: EventTime,
    pub node: String,
    pub decision_id: String,
    /// GPU UUID; absent: every GPU of the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power_limit_watts: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sm_clock_mhz: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mps_default_thread_percentage: Option<u32>,
    /// The agent restores the device this long after `time` unless a newer intent arrives.
    pub time_to_live_seconds: f64,
}
