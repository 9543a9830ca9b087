use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Layout, Meter, Origin};
use crate::EventTime;

/// What interval a window event stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema, Default)]
#[serde(rename_all = "snake_case")]
pub enum WindowKind {
    /// One of the tumbling windows; controllers see these.
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
/// reports neither, they cover the whole interval.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema, Default)]
#[serde(default)]
pub struct EfficiencyWindow {
    /// `workload`, kind, span and start: deterministic.
    pub id: String,
    pub workload: String,
    pub kind: WindowKind,
    /// Name of the span; only for `kind` `span`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub span: Option<String>,
    pub window_start: EventTime,
    pub window_end: EventTime,
    pub origin: Origin,
    pub meter: Meter,

    /// Energy attributed to the workload in the whole interval; absent where none is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub energy_joules: Option<f64>,
    pub energy_method: EnergyMethod,
    /// Device time with known energy over device time of the interval, over all devices.
    pub energy_coverage_ratio: f64,
    pub energy_largest_gap_seconds: f64,
    /// Energy that belongs to time already closed or to an idle gap, known only now.
    pub unassigned_energy_joules: f64,

    /// Seconds of the interval that lie inside the run.
    pub run_seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_energy_joules: Option<f64>,
    /// As `energy_coverage_ratio`, within the run.
    pub run_coverage_ratio: f64,

    /// Samples processed, redone ones apart.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub samples: Option<f64>,
    /// Samples processed again after a fall of the counter.
    pub samples_redone: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<f64>,
    /// Time with known progress over the interval's.
    pub progress_coverage_ratio: f64,
    pub progress_largest_gap_seconds: f64,

    #[serde(skip_serializing_if = "Option::is_none")]
    pub samples_per_second: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub joules_per_sample: Option<f64>,
    /// Samples per second and watt, which is samples per joule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub samples_per_joule: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_per_joule: Option<f64>,
    /// Mean power attributed to the workload, over the covered time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean_power_watts: Option<f64>,
    /// `mean_power_watts` over the number of devices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean_power_per_gpu_watts: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub co2_grams: Option<f64>,

    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean_utilization_ratio: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean_memory_utilization_ratio: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean_sm_active_ratio: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean_sm_occupancy_ratio: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean_tensor_active_ratio: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean_dram_active_ratio: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean_sm_clock_mhz: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean_temperature_celsius: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_temperature_celsius: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean_loss: Option<f64>,

    /// The layout in force at the window's end; absent where none was published.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layout: Option<Layout>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generation: Option<u64>,
    /// The layout changed, rolled out or restarted in this window.
    pub restarted: bool,
    /// Inputs of this window are missing for good: log retention deleted them.
    pub gap: bool,
    pub gpus: u32,
    pub ranks: u32,
    /// Telemetry and progress events folded into this interval.
    pub events: u64,
    /// Events refused since the workload's last window because their window was closed already.
    pub late: u64,
    pub stale: u64,
    pub duplicates: u64,
    /// Table events merged after a larger key since the workload's last window.
    pub late_tables: u64,
}
