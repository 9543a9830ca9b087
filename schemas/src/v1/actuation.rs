use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Layout, Origin};
use crate::EventTime;

/// Outcome of a decision. A decision has one `applied` or `refused`, and after `applied` one of the others; `rolled_back` may follow
/// `ready`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema, Default)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "Outcome")]
pub enum ActuationOutcome {
    /// The change is written; its rollout begins.
    #[default]
    Applied,
    /// The rollout is complete.
    Ready,
    /// Nothing was touched; the reason states why.
    Refused,
    /// Mode `Recommend`: written as a recommendation, nothing was touched.
    Recommended,
    /// Not ready in time, or taken back by the job; the layout before it is being restored.
    RolledBack,
    /// The change failed and could not be rolled back; the reason states what is left.
    Failed,
}

/// Reasons of refusals that the user asked for.
pub mod refusal_reason {
    /// Mode `Observe`.
    pub const OBSERVED: &str = "the workload is in mode observe: nothing is changed";
    pub const PAUSED: &str = "the workload is paused";

    /// Returns whether a refusal for this reason is by the workload's mode or pause.
    pub fn is_by_policy(reason: &str) -> bool {
        [OBSERVED, PAUSED].contains(&reason)
    }
}

/// The actuator's report of one decision. Key: the workload.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema, Default)]
#[serde(default)]
#[schemars(extend("required" = ["id", "decision_id", "workload", "time"]))]
pub struct Actuation {
    /// Deterministic: from decision and outcome.
    #[schemars(length(min = 1, max = 1024))]
    pub id: String,
    /// The decision that this answers.
    #[schemars(length(min = 1, max = 1024))]
    pub decision_id: String,
    /// `namespace/name`.
    #[schemars(length(max = 253), pattern("^[^/]+/[^/]+$"))]
    pub workload: String,
    /// Time of the event.
    #[serde(default = "EventTime::missing")]
    pub time: EventTime,
    /// Whether the workload is real.
    pub origin: Origin,
    /// Outcome of the decision.
    pub outcome: ActuationOutcome,
    /// Text of the reason; empty if there is nothing to explain.
    pub reason: String,
    /// The layout that is in force, or being rolled out, after this.
    #[serde(deserialize_with = "super::common::object")]
    pub layout: Layout,
    /// Generation of that layout.
    pub generation: u64,
    /// From the patch to readiness.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1e18))]
    pub downtime_seconds: Option<f64>,
}

/// A request to a training job. Key: the workload; the last event applies.
///
/// The event is the whole request: what it does not name is as the job was started with, and without an event (a
/// tombstone) all is. A job takes up a precision or a number of frozen layers at its next checkpoint, and reports it in
/// its progress; if it does not in time, the request is withdrawn.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema, Default)]
#[serde(default)]
#[schemars(extend("required" = ["time", "workload", "decision_id"]))]
pub struct Directive {
    /// Time of the request.
    #[serde(default = "EventTime::missing")]
    pub time: EventTime,
    /// `namespace/name`.
    #[schemars(length(max = 253), pattern("^[^/]+/[^/]+$"))]
    pub workload: String,
    /// The decision that asks for it.
    #[schemars(length(min = 1, max = 1024))]
    pub decision_id: String,
    /// Precision to compute in: `fp32`, `tf32`, `fp16`, `bf16`; absent: the one that the job was started with.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub precision: Option<String>,
    /// Number of layers to freeze, counted from the input side; absent: those that the job was started with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frozen_prefix_layers: Option<u32>,
    /// Write a checkpoint now.
    pub checkpoint_now: bool,
}
