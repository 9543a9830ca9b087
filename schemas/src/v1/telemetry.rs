use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Meter, Origin, ShareMethod};
use crate::EventTime;

/// One sample of one device. Key: the workload, or the device where it runs none.
///
/// Absent means unknown or not supported; it never means zero.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema, Default)]
#[serde(default)]
#[schemars(extend("required" = ["time", "device", "collector"]))]
pub struct GpuTelemetry {
    /// When the device was read.
    #[serde(default = "EventTime::missing")]
    pub time: EventTime,
    /// `namespace/name` of the workload that the device works for; absent: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253), pattern("^[^/]+/[^/]+$"))]
    pub workload: Option<String>,
    /// UUID of the GPU; for other meters the name of the metered thing.
    #[schemars(length(min = 1, max = 253))]
    pub device: String,
    /// The collector that read it; with workload and device it names the source.
    #[schemars(length(min = 1, max = 253))]
    pub collector: String,
    /// Scope of the power and energy figures.
    pub meter: Meter,
    /// Origin of the figures.
    pub origin: Origin,
    /// Name of the node that holds the device.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub node: Option<String>,
    /// Index of the GPU on its node, as NVML counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_index: Option<u32>,
    /// Product name, as the driver reports it: `NVIDIA A100-SXM4-40GB`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub gpu_model: Option<String>,
    /// The source ends here: no sample follows. Without it the rise of an energy counter until the source's next sample counts as its own:
    /// a source of a device without work has to send it, or another `tenure`, before a workload gets the device.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub last: bool,
    /// Number of the device's stay with this workload; differences are taken within one tenure only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenure: Option<u64>,
    /// Part of the device's power attributed to this workload, 0 to 1; absent: all of it. Shares of one device at one instant sum
    /// to 1 at most; what is left goes to an event without workload.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1))]
    pub share: Option<f64>,
    /// How the share was found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share_method: Option<ShareMethod>,
    /// Number of workloads that share the device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenants: Option<u32>,
    /// Power of the whole device at this instant.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 10_000_000))]
    pub power_watts: Option<f64>,
    /// Power of the whole device as an average that the device makes itself (about a second on Ampere and later).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 10_000_000))]
    pub power_average_watts: Option<f64>,
    /// The device's hardware energy counter: joules since it last began at zero. A fall is a reset.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1e18))]
    pub energy_joules_total: Option<f64>,
    /// Share of time in which a kernel ran (NVML, DCGM `GPU_UTIL`).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1.05))]
    pub utilization_ratio: Option<f64>,
    /// Share of time in which memory was read or written (`MEM_COPY_UTIL`).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1.05))]
    pub memory_utilization_ratio: Option<f64>,
    /// Share of time in which the graphics or compute engine was active (`GR_ENGINE_ACTIVE`).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1.05))]
    pub graphics_active_ratio: Option<f64>,
    /// Share of time in which an SM had a warp assigned, averaged over SMs (`SM_ACTIVE`).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1.05))]
    pub sm_active_ratio: Option<f64>,
    /// Resident warps over the most possible, averaged over SMs and time (`SM_OCCUPANCY`).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1.05))]
    pub sm_occupancy_ratio: Option<f64>,
    /// Share of cycles in which the tensor pipe was active (`PIPE_TENSOR_ACTIVE`).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1.05))]
    pub tensor_active_ratio: Option<f64>,
    /// Share of cycles in which the FP32 pipe was active (`PIPE_FP32_ACTIVE`).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1.05))]
    pub fp32_active_ratio: Option<f64>,
    /// Share of cycles in which device memory sent or received data (`DRAM_ACTIVE`).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1.05))]
    pub dram_active_ratio: Option<f64>,
    /// Bytes sent by the device over PCIe, protocol overhead included.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1e15))]
    pub pcie_transmit_bytes_per_second: Option<f64>,
    /// Bytes received by the device over PCIe, protocol overhead included.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1e15))]
    pub pcie_receive_bytes_per_second: Option<f64>,
    /// Device memory in use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_used_bytes: Option<u64>,
    /// Device memory there is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_total_bytes: Option<u64>,
    /// Present SM clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100_000))]
    pub sm_clock_mhz: Option<f64>,
    /// Present memory clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100_000))]
    pub memory_clock_mhz: Option<f64>,
    /// Temperature of the GPU die.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = -100, max = 300))]
    pub temperature_celsius: Option<f64>,
    /// Temperature of the device memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = -100, max = 300))]
    pub memory_temperature_celsius: Option<f64>,
    /// Power limit in force on the device.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 10_000_000))]
    pub power_limit_watts: Option<f64>,
    /// Why the clocks are held down, in NVML's terms (`sw_power_cap`, `hw_thermal_slowdown`, …), joined by commas.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub throttle_reasons: Option<String>,
    /// Number of compute processes on the device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processes: Option<u32>,
    /// The device is in MIG mode.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mig_enabled: Option<bool>,
    /// An MPS server runs on the device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mps_enabled: Option<bool>,
}

impl GpuTelemetry {
    /// Returns the power of the whole device: that of the moment, else the average, if such a device can draw it. Windows leave
    /// out the others, too.
    pub fn usable_power_watts(&self) -> Option<f64> {
        [self.power_watts, self.power_average_watts].into_iter().flatten().find(|watts| self.meter.can_draw(*watts))
    }

    /// Returns whether it reports power, and none that such a device can draw.
    pub fn has_only_impossible_power(&self) -> bool {
        self.usable_power_watts().is_none() && self.power_watts.or(self.power_average_watts).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn power_that_the_device_cannot_draw_is_not_usable() {
        let of = |meter, power_watts, power_average_watts| {
            let sample = GpuTelemetry { meter, power_watts, power_average_watts, ..GpuTelemetry::default() };
            (sample.usable_power_watts(), sample.has_only_impossible_power())
        };
        assert_eq!(of(Meter::Gpu, Some(300.0), Some(310.0)), (Some(300.0), false));
        assert_eq!(of(Meter::Gpu, Some(12_345.6), Some(310.0)), (Some(310.0), false));
        assert_eq!(of(Meter::Gpu, Some(4_294_967.0), None), (None, true));
        assert_eq!(of(Meter::Gpu, Some(0.0), Some(0.0)), (None, true), "a GPU that answers draws some watts");
        assert_eq!(of(Meter::Node, Some(12_345.6), None), (Some(12_345.6), false));
        assert_eq!(of(Meter::Gpu, None, None), (None, false));
    }
}
