use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Layout, Origin};
use crate::EventTime;

/// Kind of change that a controller asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema, Default)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "Action")]
pub enum ControllerAction {
    /// Leave everything as it is; the reason states why.
    #[default]
    Maintain,
    /// Lower the MPS thread percentage.
    Decrease,
    /// More replicas with a smaller thread percentage each.
    ScaleReplicas,
    /// Raise the MPS thread percentage, or end sharing.
    Increase,
    /// Back to the layout before the last change, because validation failed or it never became ready.
    Revert,
    /// Change the power cap.
    SetPowerLimit,
    /// Change the clocks.
    SetClocks,
    /// Ask the job to compute in another precision.
    SetPrecision,
    /// Ask the job to freeze another number of layers.
    FreezeLayers,
}

/// State of the validation of the last change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema, Default)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "Validation")]
pub enum ChangeValidation {
    /// No change is being validated.
    #[default]
    None,
    /// Waiting for the change to take effect and warm up, or for the windows after it.
    Pending,
    /// The change improved what it promised: kept.
    Kept,
    /// It did not: reverted, replaced by another change, or left as it is; the action and the reason show which.
    Failed,
}

/// A controller's decision for one workload at the end of one window, `maintain` included. Key: the workload.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema, Default)]
#[serde(default)]
#[schemars(extend("required" = ["id", "workload", "time"]))]
pub struct Decision {
    /// Deterministic: from workload, window end, controller.
    #[schemars(length(min = 1, max = 1024))]
    pub id: String,
    /// `namespace/name`.
    #[schemars(length(max = 253), pattern("^[^/]+/[^/]+$"))]
    pub workload: String,
    /// End of the window that led to it: its event time.
    #[serde(default = "EventTime::missing")]
    pub time: EventTime,
    /// The window's origin.
    pub origin: Origin,
    /// Name of the controller that decided: `matrix`, `matrix-literal`.
    #[schemars(length(max = 253))]
    pub controller: String,
    /// Version of its rules.
    pub controller_version: String,
    /// Action to take.
    pub action: ControllerAction,
    /// Text of the reason.
    pub reason: String,
    /// The layout that the decision starts from.
    #[serde(deserialize_with = "super::common::object")]
    pub from: Layout,
    /// The layout that is wanted; the same as `from` where nothing is to be done.
    #[serde(deserialize_with = "super::common::object")]
    pub to: Layout,
    /// The generation that `from` was read at; made for another one, it is refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generation: Option<u64>,
    /// It changes the layout by restarting processes.
    pub restarts: bool,
    /// The numbers that led to it, with units in their names.
    #[serde(deserialize_with = "super::common::unique_numbers")]
    pub evidence: BTreeMap<String, f64>,
    /// State of the validation of the last change.
    pub validation: ChangeValidation,
    /// Not to be applied from this time on.
    pub expires: EventTime,
    /// The decision that this one reverts or keeps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concerns: Option<String>,
    /// Nothing is tried again before this time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hold_until: Option<EventTime>,
    /// Version of the learned model that was used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_version: Option<String>,
}
