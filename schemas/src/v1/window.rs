use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Layout, Meter, Origin};
use crate::EventTime;

/// What interval a window event stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema, Default)]
#[serde(rename_all = "snake_case")]
pub enum WindowKind {
    /// One of the tumbling windows; controllers see these. A silence of more than 1,440 windows has none.
    #[default]
    Tumbling,
    /// A span that the job named (an epoch, a training block), exactly from its start to its end.
    Span,
}

/// How the energy of a window was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema, Default)]
#[serde(rename_all = "snake_case")]
pub enum EnergyMethod {
    /// Difference of the hardware counter, interpolated at the edges.
    Counter,
    /// Trapezoidal integral of power.
    Integral,
    /// Some devices by counter, some by integral.
    Mixed,
    /// No energy is known.
    #[default]
    None,
}

/// Energy, progress and efficiency of one workload in one interval. Key: the workload (`gpus` for devices without one).
///
/// `run_*` fields cover the part of the interval between the job's `started` and `finished`; where the job
/// reports neither, they cover the whole interval, and `observed_*` say how much of it anybody saw.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema, Default)]
#[serde(default)]
#[schemars(extend("required" = ["id", "workload", "window_start", "window_end"]))]
pub struct EfficiencyWindow {
    /// `workload`, kind, span and start: deterministic.
    #[schemars(length(min = 1, max = 253))]
    pub id: String,
    /// `namespace/name`, or `gpus` for devices without a workload.
    #[schemars(length(min = 1, max = 253))]
    pub workload: String,
    /// What interval the event stands for.
    pub kind: WindowKind,
    /// Name of the span; only for `kind` `span`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub span: Option<String>,
    /// Start of the interval, included.
    #[serde(default = "EventTime::missing")]
    pub window_start: EventTime,
    /// End of the interval, excluded.
    #[serde(default = "EventTime::missing")]
    pub window_end: EventTime,
    /// Where the figures come from; the worst of all that went in.
    pub origin: Origin,
    /// What the energy covers.
    pub meter: Meter,

    /// Energy attributed to the workload in the whole interval; absent where none is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub energy_joules: Option<f64>,
    /// How the energy was found.
    pub energy_method: EnergyMethod,
    /// Device time with known energy over device time of the interval, over all devices.
    pub energy_coverage_ratio: f64,
    /// Longest stretch of the interval without known energy, over all devices.
    pub energy_largest_gap_seconds: f64,
    /// Energy that belongs to time already closed, to an idle gap or to a silence without windows, known only now.
    pub unassigned_energy_joules: f64,

    /// The job has said when its run began or ended. Where any interval of a workload has this set, those without it lie
    /// before the run.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub run_declared: bool,
    /// When anything of the workload's devices or ranks was first heard in the interval, or known from a step that reaches into it;
    /// absent: nothing was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_start: Option<EventTime>,
    /// As `observed_start`, the last moment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_end: Option<EventTime>,
    /// Seconds of the interval that lie inside the run.
    pub run_seconds: f64,
    /// Energy attributed to the workload inside the run; absent where none is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_energy_joules: Option<f64>,
    /// As `energy_coverage_ratio`, within the run.
    pub run_coverage_ratio: f64,

    /// Samples processed, redone ones apart.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub samples: Option<f64>,
    /// Samples processed again after a fall of the counter.
    pub samples_redone: f64,
    /// Tokens processed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<f64>,
    /// Optimiser steps done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<f64>,
    /// Progress that belongs to time already closed or to an idle gap, known only now.
    pub unassigned_samples: f64,
    /// As `unassigned_samples`, tokens.
    pub unassigned_tokens: f64,
    /// As `unassigned_samples`, steps.
    pub unassigned_steps: f64,
    /// Time with known progress over the interval's.
    pub progress_coverage_ratio: f64,
    /// Longest stretch of the interval without known progress.
    pub progress_largest_gap_seconds: f64,

    /// Samples over the time with known progress.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub samples_per_second: Option<f64>,
    /// Energy for one sample; absent where energy or progress is unknown or nothing was processed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub joules_per_sample: Option<f64>,
    /// Samples per second and watt, which is samples per joule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub samples_per_joule: Option<f64>,
    /// Tokens processed with one joule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_per_joule: Option<f64>,
    /// Mean power attributed to the workload: each device's energy over its own covered time, summed. A device without any known
    /// energy adds nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean_power_watts: Option<f64>,
    /// `mean_power_watts` over the number of devices with known energy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean_power_per_gpu_watts: Option<f64>,
    /// Price of the energy, in the currency of `price_per_kwh`; absent where no price is in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<f64>,
    /// CO₂ equivalent of the energy; absent where no carbon intensity is in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub co2_grams: Option<f64>,

    /// Mean of `utilization_ratio` over devices and time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean_utilization_ratio: Option<f64>,
    /// Mean of `memory_utilization_ratio`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean_memory_utilization_ratio: Option<f64>,
    /// Mean of `sm_active_ratio`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean_sm_active_ratio: Option<f64>,
    /// Mean of `sm_occupancy_ratio`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean_sm_occupancy_ratio: Option<f64>,
    /// Mean of `tensor_active_ratio`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean_tensor_active_ratio: Option<f64>,
    /// Mean of `dram_active_ratio`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean_dram_active_ratio: Option<f64>,
    /// Mean of `sm_clock_mhz`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean_sm_clock_mhz: Option<f64>,
    /// Mean of `temperature_celsius`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean_temperature_celsius: Option<f64>,
    /// Highest `temperature_celsius` of any device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_temperature_celsius: Option<f64>,
    /// Mean of the reported losses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean_loss: Option<f64>,

    /// The layout in force at the window's end; absent where none was published.
    #[serde(default, deserialize_with = "super::common::optional_object", skip_serializing_if = "Option::is_none")]
    pub layout: Option<Layout>,
    /// Generation of that layout.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generation: Option<u64>,
    /// The layout changed, rolled out or restarted in this window.
    pub restarted: bool,
    /// Inputs of this window are missing for good: log retention deleted them.
    pub gap: bool,
    /// Devices that reported in the interval.
    pub gpus: u32,
    /// Most workloads that were on one of those devices at once; absent: it had them to itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenants: Option<u32>,
    /// UUIDs of the devices that it shared, in their order; of more than 64 none is named.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub shared_devices: Vec<String>,
    /// Progress sources that reported in the interval.
    pub ranks: u32,
    /// Telemetry and progress events folded into this interval.
    pub events: u64,
    /// Events refused since the workload's last window because their window was closed already.
    pub late: u64,
    /// Events refused since the workload's last window because they were older than their source's last.
    pub stale: u64,
    /// Events counted once more since the workload's last window: same time as their source's last.
    pub duplicates: u64,
    /// Table events merged after a larger key since the workload's last window.
    pub late_tables: u64,
}
