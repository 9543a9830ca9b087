//! The custom resource as a user writes it. `kubectl explain` shows the doc comments; the API server checks the rules.

// Columns repeat their keys, which clippy takes for repeated attributes.
#![allow(clippy::duplicated_attributes)]

use eadt_core::controller::{self, ControllerName};
use eadt_schemas::v1::{Precision, UpdateMode};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::status::EnergyPolicyStatus;

/// Permitted changes of one workload to save energy.
#[derive(CustomResource, KubeSchema, Debug, Clone, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "eadt.dev",
    version = "v1alpha1",
    kind = "EnergyPolicy",
    plural = "energypolicies",
    shortname = "epol",
    category = "eadt",
    namespaced,
    status = "EnergyPolicyStatus",
    derive = "PartialEq",
    doc = "Permitted changes of one workload of this namespace to save energy, and their results.",
    printcolumn(name = "Target", type_ = "string", json_path = ".spec.targetRef.name", description = "The workload"),
    printcolumn(name = "Mode", type_ = "string", json_path = ".spec.updateMode", description = "Permitted changes"),
    printcolumn(
        name = "J/sample",
        type_ = "number",
        json_path = ".status.current.joulesPerSample",
        description = "Energy per training sample, now"
    ),
    printcolumn(
        name = "Recommendation",
        type_ = "string",
        json_path = ".status.recommendation.summary",
        description = "Recommended change"
    ),
    printcolumn(name = "Saving", type_ = "string", json_path = ".status.effect.summary", description = "Energy saved, verified"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status",
        description = "Whether the policy is in force",
        priority = 1
    ),
    printcolumn(
        name = "Kind",
        type_ = "string",
        json_path = ".spec.targetRef.kind",
        description = "Kind of the workload",
        priority = 1
    ),
    printcolumn(
        name = "Controller",
        type_ = "string",
        json_path = ".spec.controller.name",
        description = "Controller",
        priority = 1
    )
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.updateMode != 'Enforce' || (has(self.bounds) && (has(self.bounds.mpsThreadPercentage) || has(self.bounds.replicas) || has(self.bounds.powerLimitWatts) || has(self.bounds.smClockMegahertz) || has(self.bounds.precisions) || has(self.bounds.maxFrozenPrefixLayers))) || has(self.mpsDefaultThreadPercentage)")
        .message("mode Enforce needs bounds: name the limits of at least one knob, or an mpsDefaultThreadPercentage")
        .field_path(".bounds"),
    validation = Rule::new("self.updateMode != 'Enforce' || !has(self.knobs) || !self.knobs.exists(k, k == 'MpsThreadPercentage') || (has(self.bounds) && has(self.bounds.mpsThreadPercentage))")
        .message("knob MpsThreadPercentage needs bounds.mpsThreadPercentage in mode Enforce")
        .field_path(".knobs"),
    validation = Rule::new("self.updateMode != 'Enforce' || !has(self.knobs) || !self.knobs.exists(k, k == 'Replicas') || (has(self.bounds) && has(self.bounds.replicas))")
        .message("knob Replicas needs bounds.replicas in mode Enforce")
        .field_path(".knobs"),
    validation = Rule::new("self.updateMode != 'Enforce' || !has(self.knobs) || !self.knobs.exists(k, k == 'PowerLimit') || (has(self.bounds) && has(self.bounds.powerLimitWatts))")
        .message("knob PowerLimit needs bounds.powerLimitWatts in mode Enforce")
        .field_path(".knobs"),
    validation = Rule::new("self.updateMode != 'Enforce' || !has(self.knobs) || !self.knobs.exists(k, k == 'Clocks') || (has(self.bounds) && has(self.bounds.smClockMegahertz))")
        .message("knob Clocks needs bounds.smClockMegahertz in mode Enforce")
        .field_path(".knobs"),
    validation = Rule::new("self.updateMode != 'Enforce' || !has(self.knobs) || !self.knobs.exists(k, k == 'Precision') || (has(self.bounds) && has(self.bounds.precisions))")
        .message("knob Precision needs bounds.precisions in mode Enforce")
        .field_path(".knobs"),
    validation = Rule::new("self.updateMode != 'Enforce' || !has(self.knobs) || !self.knobs.exists(k, k == 'FrozenLayers') || (has(self.bounds) && has(self.bounds.maxFrozenPrefixLayers))")
        .message("knob FrozenLayers needs bounds.maxFrozenPrefixLayers in mode Enforce")
        .field_path(".knobs"),
    validation = Rule::new("!has(self.mpsDefaultThreadPercentage) || !has(self.bounds) || !has(self.bounds.mpsThreadPercentage) || (has(self.bounds.mpsThreadPercentage.max) && self.bounds.mpsThreadPercentage.max <= self.mpsDefaultThreadPercentage)")
        .message("no process gets more than the MPS default: bounds.mpsThreadPercentage needs a max that is not greater than mpsDefaultThreadPercentage")
        .field_path(".mpsDefaultThreadPercentage"),
)]
pub struct EnergyPolicySpec {
    /// The workload, in this namespace. It cannot be changed: delete the policy and create another one.
    #[x_kube(
        validation = Rule::new("self == oldSelf").message("targetRef cannot be changed: delete the policy and create another one")
    )]
    pub target_ref: TargetRef,
    /// `Observe`: report only. `Recommend`: also show what would be changed and why. `Enforce`: also change it, within the bounds.
    #[serde(default)]
    pub update_mode: PolicyMode,
    /// The controller and its settings. Absent: the processor's default controller and settings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controller: Option<ControllerSpec>,
    /// Objective within the bounds, and the limits on throughput. Absent: energy per sample, at the controller's own
    /// limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub objective: Option<ObjectiveSpec>,
    /// Limits inside which the workload is changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bounds: Option<BoundsSpec>,
    /// Knobs that may be changed. Absent: all knobs with bounds; if there are none, every knob may be recommended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 6))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub knobs: Option<Vec<PolicyKnob>>,
    /// Default thread percentage of MPS on the nodes where the workload runs, for processes that request no share themselves, in
    /// mode `Enforce`. It is set on a node while the policies of all workloads that hold GPUs there have the same value, and
    /// applies to MPS servers that start after that. Absent: it is not changed, also for others on these nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub mps_default_thread_percentage: Option<u32>,
    /// When the workload's processes may be restarted. Absent: at any time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<RestartScheduleSpec>,
    /// How often they may be restarted.
    #[serde(default)]
    pub restart_budget: RestartBudget,
    /// Least time between two restarts, as `90s`, `5m`, `1h30m`. The revert of a change that did not help does not wait for it.
    #[serde(default = "cooldown")]
    #[schemars(length(min = 2, max = 32), pattern("^([0-9]+(\\.[0-9]+)?(ms|s|m|h))+$"))]
    pub cooldown: String,
    /// Price and carbon intensity of electricity. Absent: neither is reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price_and_carbon: Option<PriceAndCarbon>,
    /// Facts about the job that EADT needs to scale it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub training: Option<TrainingSpec>,
}

pub(super) fn cooldown() -> String {
    "5m".to_owned()
}

/// A workload.
#[derive(KubeSchema, Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TargetRef {
    /// API version of the workload, `apps/v1` for example.
    #[schemars(length(min = 1, max = 253))]
    pub api_version: String,
    /// Kind of the workload, `StatefulSet` for example.
    #[schemars(length(min = 1, max = 63))]
    pub kind: String,
    /// Name of the workload.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// Changes that EADT may make to a workload.
#[derive(JsonSchema, Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum PolicyMode {
    /// Report only.
    Observe,
    /// Show what would be changed, change nothing.
    #[default]
    Recommend,
    /// Change the workload within its bounds.
    Enforce,
}

impl PolicyMode {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Observe => "Observe",
            Self::Recommend => "Recommend",
            Self::Enforce => "Enforce",
        }
    }
}

impl From<UpdateMode> for PolicyMode {
    fn from(mode: UpdateMode) -> Self {
        match mode {
            UpdateMode::Observe => Self::Observe,
            UpdateMode::Recommend => Self::Recommend,
            UpdateMode::Enforce => Self::Enforce,
        }
    }
}

impl From<PolicyMode> for UpdateMode {
    fn from(mode: PolicyMode) -> Self {
        match mode {
            PolicyMode::Observe => Self::Observe,
            PolicyMode::Recommend => Self::Recommend,
            PolicyMode::Enforce => Self::Enforce,
        }
    }
}

/// A controller.
#[derive(KubeSchema, Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ControllerSpec {
    /// Its name. Absent: the processor's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<ControllerName>,
    /// Its settings, by their names in the configuration reference (`controller_settings`). Others have their defaults.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "controller_settings")]
    pub settings: Option<serde_json::Map<String, serde_json::Value>>,
}

/// Numbers, flags and short texts. The API server does not check the names; the actuator reports unknown ones.
fn controller_settings(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "object", "nullable": true, "maxProperties": 64,
        "additionalProperties": {"x-kubernetes-preserve-unknown-fields": true, "maxLength": 64, "maxItems": 0, "maxProperties": 0},
    })
}

/// Quantity to minimise per sample within the bounds: `Energy`, `EDP` (energy times time per sample) or `ED2P` (energy times
/// its square). The products trade energy for speed even within `maxSlowdownPercent`. Absent, the controller's own, which is
/// `Energy`.
#[derive(JsonSchema, Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum ObjectiveMetric {
    /// Energy per sample.
    #[default]
    Energy,
    /// The energy-delay product: energy per sample times time per sample.
    #[serde(rename = "EDP")]
    Edp,
    /// The energy-delay² product: energy per sample times the square of time per sample.
    #[serde(rename = "ED2P")]
    Ed2p,
}

impl From<ObjectiveMetric> for controller::ControllerObjective {
    fn from(minimize: ObjectiveMetric) -> Self {
        match minimize {
            ObjectiveMetric::Energy => Self::Energy,
            ObjectiveMetric::Edp => Self::Edp,
            ObjectiveMetric::Ed2p => Self::Ed2p,
        }
    }
}

/// Objective within the bounds, and the limits on throughput.
#[derive(KubeSchema, Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectiveSpec {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minimize: Option<ObjectiveMetric>,
    /// Largest slowdown of the job, in percent of its throughput. Absent: the controller's own limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 90))]
    pub max_slowdown_percent: Option<f64>,
    /// Throughput below which no change may reduce it further, in samples per second. Absent: no floor beside `maxSlowdownPercent`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.000_001, max = 1_000_000_000))]
    pub min_samples_per_second: Option<f64>,
}

/// Limits inside which a workload is changed.
#[derive(KubeSchema, Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BoundsSpec {
    /// MPS thread percentage of a process (`CUDA_MPS_ACTIVE_THREAD_PERCENTAGE`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mps_thread_percentage: Option<PercentageRange>,
    /// Number of training processes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<CountRange>,
    /// Power cap of a GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_limit_watts: Option<WattsRange>,
    /// Upper limit of a GPU's SM clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sm_clock_megahertz: Option<MegahertzRange>,
    /// Precisions that may be requested from the job. It must follow such requests and report its precision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub precisions: Option<Vec<Precision>>,
    /// Greatest number of layers that the job may be requested to freeze, counted from the input side; half of them is much. It
    /// must follow such requests and report its frozen layers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000))]
    pub max_frozen_prefix_layers: Option<u32>,
    /// Largest sum of thread percentages on one GPU; above 100, processes get less than they request. Absent: 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 100, max = 200))]
    pub max_oversubscription_percentage: Option<u32>,
}

macro_rules! range {
    ($(#[$doc:meta])* $name:ident, $number:ty, $least:literal, $greatest:literal, $min:literal, $max:literal) => {
        $(#[$doc])*
        #[derive(KubeSchema, Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
        #[serde(rename_all = "camelCase")]
        #[x_kube(
            validation = Rule::new("!has(self.min) || !has(self.max) || self.min <= self.max")
                .message("min must not be greater than max")
                .field_path(".min"),
            validation = Rule::new("has(self.min) || has(self.max)").message("name min, max or both"),
        )]
        pub struct $name {
            #[doc = $min]
            #[serde(default, skip_serializing_if = "Option::is_none")]
            #[schemars(range(min = $least, max = $greatest))]
            pub min: Option<$number>,
            #[doc = $max]
            #[serde(default, skip_serializing_if = "Option::is_none")]
            #[schemars(range(min = $least, max = $greatest))]
            pub max: Option<$number>,
        }
    };
}

range!(
    /// Limits in percent.
    PercentageRange, u32, 1, 100, "Least, in percent.", "Greatest, in percent."
);
range!(
    /// Limits of a number.
    CountRange, u32, 1, 100_000, "Least.", "Greatest."
);
range!(
    /// Limits in watts.
    WattsRange, f64, 1, 100_000, "Least, in watts.", "Greatest, in watts."
);
range!(
    /// Limits in megahertz.
    MegahertzRange, f64, 1, 100_000, "Least, in megahertz.", "Greatest, in megahertz."
);

/// A setting that can be changed.
#[derive(JsonSchema, Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum PolicyKnob {
    /// MPS thread percentage of the processes; restarts them.
    MpsThreadPercentage,
    /// Number of processes, with `WORLD_SIZE` and `LOCAL_WORLD_SIZE`; restarts them.
    Replicas,
    /// Power cap of the GPUs.
    PowerLimit,
    /// Clocks of the GPUs.
    Clocks,
    /// Precision of the job, requested while it runs.
    Precision,
    /// Frozen layers of the job, requested while it runs.
    FrozenLayers,
}

/// When processes may be restarted.
#[derive(KubeSchema, Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RestartScheduleSpec {
    /// Time zone of the windows, as the IANA database names it.
    #[serde(default = "utc")]
    #[schemars(length(min = 1, max = 64))]
    pub time_zone: String,
    /// Windows in which restarts are allowed.
    #[schemars(length(min = 1, max = 64))]
    pub restart_windows: Vec<RestartWindow>,
}

fn utc() -> String {
    "UTC".to_owned()
}

/// A window of the week.
#[derive(KubeSchema, Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RestartWindow {
    /// Days on which it starts. Absent: every day.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 7))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub days: Option<Vec<Weekday>>,
    /// Start time, as `22:00`.
    #[schemars(length(max = 5), pattern("^([01][0-9]|2[0-3]):[0-5][0-9]$"))]
    pub start: String,
    /// End time; if not after `start`, on the next day.
    #[schemars(length(max = 5), pattern("^([01][0-9]|2[0-3]):[0-5][0-9]$"))]
    pub end: String,
}

/// A day of the week.
#[derive(JsonSchema, Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Weekday {
    Monday,
    Tuesday,
    Wednesday,
    Thursday,
    Friday,
    Saturday,
    Sunday,
}

/// How often processes may be restarted.
#[derive(KubeSchema, Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RestartBudget {
    /// Restarts allowed in any 24 hours.
    #[serde(default = "per_day")]
    #[schemars(range(min = 0, max = 1000))]
    pub per_day: u32,
}

fn per_day() -> u32 {
    RestartBudget::default().per_day
}

impl Default for RestartBudget {
    fn default() -> Self {
        Self { per_day: 8 }
    }
}

/// Price and carbon intensity of electricity.
#[derive(KubeSchema, Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PriceAndCarbon {
    /// Price, in units of your currency per kWh; negative if consumers are paid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = -1_000_000, max = 1_000_000))]
    pub price_per_kilowatt_hour: Option<f64>,
    /// Carbon intensity, in grams of CO₂ equivalent per kWh.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100_000))]
    pub carbon_grams_per_kilowatt_hour: Option<f64>,
}

/// Facts about a job that are needed to scale it.
#[derive(KubeSchema, Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TrainingSpec {
    /// Communication backend: `nccl`, `gloo`, `mpi`, `ucc`. Absent counts as NCCL, which allows one process a GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63), pattern("^[a-z][a-z0-9_-]*$"))]
    pub backend: Option<String>,
    /// Samples of one optimiser step over all processes; a number of processes has to divide it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub global_batch_size: Option<u32>,
}
