use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::EventTime;

/// Everything that a node agent is asked to hold on its node. Key: the node.
///
/// The last event of a node is all there is: what an earlier one asked for and this one does not is put back. The topic keeps
/// one event a node, so one event a device would lose all devices but one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema, Default)]
#[serde(default)]
#[schemars(extend("required" = ["time", "node", "decision_id", "time_to_live_seconds"]))]
pub struct DeviceIntent {
    /// Time of the request.
    #[serde(default = "EventTime::missing")]
    pub time: EventTime,
    /// The node whose agent is asked.
    #[schemars(length(min = 1, max = 253))]
    pub node: String,
    /// The last decision that changed anything here.
    #[schemars(length(min = 1, max = 1024))]
    pub decision_id: String,
    /// Short form of `devices` with one entry: GPU UUID; absent: every GPU of the node. Not looked at beside `devices`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub device: Option<String>,
    /// Short form of `devices` with one entry: power cap to set; absent: left alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 10_000_000))]
    pub power_limit_watts: Option<f64>,
    /// Short form of `devices` with one entry: upper bound of the SM clock to set; absent: left alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100_000))]
    pub sm_clock_mhz: Option<f64>,
    /// Default thread percentage of the node's MPS daemons to set; absent: left alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub mps_default_thread_percentage: Option<u32>,
    /// The agent restores everything this long after `time` unless a newer intent arrives.
    #[schemars(range(max = 31_536_000), extend("exclusiveMinimum" = 0))]
    pub time_to_live_seconds: f64,
    /// Requested settings of each device; empty: restore all. Absent: the short form applies.
    #[serde(deserialize_with = "super::common::optional_objects", skip_serializing_if = "Option::is_none")]
    pub devices: Option<Vec<DeviceSetting>>,
    /// Every workload that has a pod with a GPU on this node, and whether its policy allows another MPS default. The default
    /// is changed only where there is at least one and all allow it.
    #[serde(deserialize_with = "super::common::optional_objects", skip_serializing_if = "Option::is_none")]
    pub mps_tenants: Option<Vec<MpsTenant>>,
}

/// Requested settings of one device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema, Default)]
#[serde(default)]
pub struct DeviceSetting {
    /// GPU UUID; absent: every GPU of the node that no other entry names.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub device: Option<String>,
    /// The workload whose policy asks for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253), pattern("^[^/]+/[^/]+$"))]
    pub workload: Option<String>,
    /// The decision that asks for it; absent: the event's.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub decision_id: Option<String>,
    /// Power cap to set; absent: left alone, or put back where an earlier intent set it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 10_000_000))]
    pub power_limit_watts: Option<f64>,
    /// Upper bound of the SM clock to set; absent: left alone, or put back where an earlier intent set it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100_000))]
    pub sm_clock_mhz: Option<f64>,
}

/// A workload that shares a node's GPUs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema, Default)]
#[serde(default)]
pub struct MpsTenant {
    /// `namespace/name`.
    #[schemars(length(max = 253), pattern("^[^/]+/[^/]+$"))]
    pub workload: String,
    /// Its policy allows that the default thread percentage of MPS changes. Without a policy it does not.
    pub allows_default_change: bool,
}

/// The state of one setting of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema, Default)]
#[serde(rename_all = "snake_case")]
pub enum SettingOutcome {
    /// Nothing is requested and nothing was changed.
    #[default]
    Untouched,
    /// The requested value is in force.
    Held,
    /// The requested value is not set, or no longer; the reason is given beside it.
    Refused,
    /// Another program changed it after the agent did: left as it is until another value is requested.
    ChangedByOthers,
    /// Nothing is requested any more, and the original value is restored.
    Restored,
    /// The device does not do it, or does not answer; it is tried again.
    Failed,
}

/// A node agent's report: settings in force, refused settings, and the limits of its devices. Key: the node.
///
/// Written when anything of it changes, and every minute. The actuator learns from it what became of its intents.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema, Default)]
#[serde(default)]
#[schemars(extend("required" = ["time", "node"]))]
pub struct DeviceState {
    /// Time of the event.
    #[serde(default = "EventTime::missing")]
    pub time: EventTime,
    /// The agent's node.
    #[schemars(length(min = 1, max = 253))]
    pub node: String,
    /// Version of the agent.
    #[schemars(length(max = 253))]
    pub agent_version: String,
    /// The agent has stopped after this, its settings put back where devices answered: nothing more comes from it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub stopped: bool,
    /// `time` of the intent that this answers; absent: there has been none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub intent_time: Option<EventTime>,
    /// `decision_id` of that intent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub decision_id: Option<String>,
    /// When everything is put back unless a newer intent arrives; absent: no intent is live.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub live_until: Option<EventTime>,
    /// The node's devices; one that never answered has no UUID yet and is missing.
    #[serde(deserialize_with = "super::common::objects")]
    pub devices: Vec<DeviceReport>,
    /// The state of the default thread percentage of the node's MPS daemons.
    pub mps_default_outcome: SettingOutcome,
    /// Text of the reason; empty if there is nothing to explain.
    pub mps_default_reason: String,
    /// The default in force; absent: no daemon answers, or daemons differ.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub mps_default_thread_percentage: Option<u32>,
    /// The default that will be put back; absent: none was changed, or daemons differ.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub original_mps_default_thread_percentage: Option<u32>,
}

/// One device as its node agent sees it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema, Default)]
#[serde(default)]
pub struct DeviceReport {
    /// GPU UUID.
    #[schemars(length(min = 1, max = 253))]
    pub device: String,
    /// Index of the GPU on its node, as NVML counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_index: Option<u32>,
    /// Product name, as the driver reports it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub gpu_model: Option<String>,
    /// The decision behind what is asked of it now.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub decision_id: Option<String>,
    /// The state of the power cap.
    pub power_limit_outcome: SettingOutcome,
    /// Text of the reason; empty if there is nothing to explain.
    pub power_limit_reason: String,
    /// The power cap in force, set by the agent or by another program.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 10_000_000))]
    pub power_limit_watts: Option<f64>,
    /// The cap that will be put back; absent: none was changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 10_000_000))]
    pub original_power_limit_watts: Option<f64>,
    /// The least cap that the device takes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 10_000_000))]
    pub power_limit_watts_min: Option<f64>,
    /// The greatest cap that the device takes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 10_000_000))]
    pub power_limit_watts_max: Option<f64>,
    /// The board's default cap.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 10_000_000))]
    pub default_power_limit_watts: Option<f64>,
    /// The state of the bound of the SM clock.
    pub sm_clock_outcome: SettingOutcome,
    /// Text of the reason; empty if there is nothing to explain.
    pub sm_clock_reason: String,
    /// The upper bound of the SM clock that the agent holds; absent: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100_000))]
    pub sm_clock_mhz: Option<f64>,
    /// The least bound that the device takes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100_000))]
    pub sm_clock_mhz_min: Option<f64>,
    /// The greatest bound that the device takes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100_000))]
    pub sm_clock_mhz_max: Option<f64>,
}

/// Which pods hold which GPUs of a node, by the word of its kubelet. Key: the node.
///
/// Written by the node's collector when anything of it changes, and every minute. The actuator learns from it which GPUs of a
/// shared node it may ask the node's agent to cap, and what boards workloads run on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema, Default)]
#[serde(default)]
#[schemars(extend("required" = ["time", "node"]))]
pub struct DeviceHolders {
    /// Time of the event.
    #[serde(default = "EventTime::missing")]
    pub time: EventTime,
    /// The collector's node.
    #[schemars(length(min = 1, max = 253))]
    pub node: String,
    /// GPUs that pods hold, whole or in part.
    #[serde(deserialize_with = "super::common::objects")]
    pub devices: Vec<HeldDevice>,
    /// Pods that hold GPUs of which the kubelet does not report the UUID: each may hold any GPU of the node.
    #[serde(deserialize_with = "super::common::objects")]
    pub unplaced: Vec<PodName>,
}

/// A GPU and who holds it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema, Default)]
#[serde(default)]
pub struct HeldDevice {
    /// GPU UUID.
    #[schemars(length(min = 1, max = 253))]
    pub device: String,
    /// Product name, as the driver reports it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub gpu_model: Option<String>,
    /// The board's default cap.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 10_000_000))]
    pub default_power_limit_watts: Option<f64>,
    /// More than one where pods share it, by time, MPS or MIG.
    #[serde(deserialize_with = "super::common::objects")]
    pub pods: Vec<PodName>,
}

/// A pod.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema, Default)]
#[serde(default)]
pub struct PodName {
    /// Its namespace.
    #[schemars(length(min = 1, max = 253))]
    pub namespace: String,
    /// Its name.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Its workload, `namespace/name`; absent if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253), pattern("^[^/]+/[^/]+$"))]
    pub workload: Option<String>,
}
