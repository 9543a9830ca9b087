use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Meter, Origin};
use crate::EventTime;

/// One sample of one device. Key: the workload, or the device where it runs none.
///
/// Absent means unknown or not supported; it never means zero.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema, Default)]
#[serde(default)]
pub struct GpuTelemetry {
    /// When the device was read.
    pub time: EventTime,
    /// `namespace/name` of the workload that the device works for; absent: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workload: Option<String>,
    /// UUID of the GPU; for other meters the name of the metered thing.
    pub device: String,
    /// The collector that read it; with workload and device it names the source.
    pub collector: String,
    pub meter: Meter,
    pub origin: Origin,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_index: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_model: Option<String>,
    /// The source ends here: no sample follows.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub last: bool,
    /// Number of the device's stay with this workload; differences are taken within one tenure only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenure: Option<u64>,
    /// Part of the device's power attributed to this workload, 0 to 1; absent: all of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share: Option<f64>,
    /// Number of workloads that share the device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenants: Option<u32>,
    /// Power of the whole device at this instant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power_watts: Option<f64>,
    /// Power of the whole device as an average that the device makes itself (about a second on Ampere and later).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power_average_watts: Option<f64>,
    /// The device's hardware energy counter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub energy_joules_total: Option<f64>,
    /// Share of time in which a kernel ran (NVML, DCGM `GPU_UTIL`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub utilization_ratio: Option<f64>,
    /// Share of time in which memory was read or written (`MEM_COPY_UTIL`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_utilization_ratio: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub graphics_active_ratio: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sm_active_ratio: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sm_occupancy_ratio: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tensor_active_ratio: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fp32_active_ratio: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dram_active_ratio: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pcie_transmit_bytes_per_second: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pcie_receive_bytes_per_second: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_used_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_total_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sm_clock_mhz: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_clock_mhz: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature_celsius: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_temperature_celsius: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power_limit_watts: Option<f64>,
    /// Why the clocks are held down, in NVML's terms (`sw_power_cap`, `hw_thermal_slowdown`, …), joined by commas.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub throttle_reasons: Option<String>,
    /// Number of compute processes on the device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processes: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mig_enabled: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mps_enabled: Option<bool>,
}
