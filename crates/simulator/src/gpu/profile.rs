use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How a training process uses a GPU; every figure is that of one process alone on a whole GPU at its highest clock.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct WorkloadProfile {
    /// Samples per second. Above 0. Default 30.
    pub samples_per_second: f64,
    /// Part of a step's time that the host needs and the GPU waits for. 0 to below 1. Default 0.3.
    pub host_ratio: f64,
    /// Part of the SMs that its kernels can fill. Above 0, at most 1. Default 0.75.
    pub sm_coverage_ratio: f64,
    /// Mean use of the memory bandwidth. 0 to 1. Default 0.3.
    pub dram_ratio: f64,
    /// Energy of an SM cycle against a dense FP32 kernel's. Above 0. Default 1.
    pub energy_intensity: f64,
    /// How strongly it suffers from the others on the GPU. At least 0. Default 0.35.
    pub sensitivity: f64,
    /// Part of the SMs that saturates the memory bandwidth. Above 0, at most 1. Default 0.35.
    pub bandwidth_saturation_ratio: f64,
    /// PCIe traffic in MB per sample. At least 0. Default 2.
    pub pcie_megabytes_per_sample: f64,
    /// How uneven its power is: 0 steady, 1 full power while it computes and none while it waits. A power cap bites on
    /// the peaks, not on the mean. 0 to 1. Default 0.
    pub burst_ratio: f64,
    /// SM occupancy while an SM is active. 0 to 1. Default 0.4.
    pub occupancy_ratio: f64,
    /// Part of the active SM time in which the tensor pipe is busy. 0 to 1. Default 0.45.
    pub tensor_ratio: f64,
    /// Memory that it holds in GiB. At least 0. Default 9.
    pub memory_gib: f64,
}

impl Default for WorkloadProfile {
    fn default() -> Self {
        Self::MID
    }
}

impl WorkloadProfile {
    /// Neither the host nor the GPU nor its memory dominates.
    pub const MID: Self = Self {
        samples_per_second: 30.0,
        host_ratio: 0.30,
        sm_coverage_ratio: 0.75,
        dram_ratio: 0.30,
        energy_intensity: 1.0,
        sensitivity: 0.35,
        bandwidth_saturation_ratio: 0.35,
        pcie_megabytes_per_sample: 2.0,
        burst_ratio: 0.0,
        occupancy_ratio: 0.40,
        tensor_ratio: 0.45,
        memory_gib: 9.0,
    };

    /// Bound by the SMs: large dense layers.
    pub const COMPUTE: Self = Self {
        host_ratio: 0.06,
        sm_coverage_ratio: 0.97,
        dram_ratio: 0.30,
        energy_intensity: 1.1,
        sensitivity: 0.3,
        tensor_ratio: 0.60,
        ..Self::MID
    };

    /// Bound by the memory bandwidth: attention over long sequences, optimiser steps, embeddings.
    pub const MEMORY: Self = Self {
        host_ratio: 0.08,
        sm_coverage_ratio: 0.95,
        dram_ratio: 0.72,
        energy_intensity: 0.8,
        sensitivity: 0.3,
        tensor_ratio: 0.15,
        ..Self::MID
    };

    /// Bound by the host: data loading, tokenising, many small kernels.
    pub const HOST: Self = Self {
        host_ratio: 0.55,
        sm_coverage_ratio: 0.50,
        dram_ratio: 0.15,
        energy_intensity: 1.0,
        sensitivity: 0.4,
        tensor_ratio: 0.30,
        ..Self::MID
    };

    /// Returns one of `compute`, `memory`, `host`, `mid`.
    pub fn named(name: &str) -> Option<Self> {
        Some(match name {
            "compute" => Self::COMPUTE,
            "memory" => Self::MEMORY,
            "host" => Self::HOST,
            "mid" => Self::MID,
            _ => return None,
        })
    }

    /// Returns this profile at another speed.
    #[must_use]
    pub const fn at_rate(self, samples_per_second: f64) -> Self {
        Self { samples_per_second, ..self }
    }

    /// Checks all fields; the error names the first that is out of its range, with the expected range.
    pub fn check(&self) -> Result<(), String> {
        let fields = [
            ("samples_per_second", self.samples_per_second, 1e-9, 1e9),
            ("host_ratio", self.host_ratio, 0.0, 0.99),
            ("sm_coverage_ratio", self.sm_coverage_ratio, 0.01, 1.0),
            ("dram_ratio", self.dram_ratio, 0.0, 1.0),
            ("energy_intensity", self.energy_intensity, 0.01, 10.0),
            ("sensitivity", self.sensitivity, 0.0, 10.0),
            ("bandwidth_saturation_ratio", self.bandwidth_saturation_ratio, 0.01, 1.0),
            ("pcie_megabytes_per_sample", self.pcie_megabytes_per_sample, 0.0, 1e6),
            ("burst_ratio", self.burst_ratio, 0.0, 1.0),
            ("occupancy_ratio", self.occupancy_ratio, 0.0, 1.0),
            ("tensor_ratio", self.tensor_ratio, 0.0, 1.0),
            ("memory_gib", self.memory_gib, 0.0, 1024.0),
        ];
        match fields.iter().find(|(_, value, low, high)| !(*low..=*high).contains(value)) {
            Some((name, value, low, high)) => Err(format!("{name} is {value}, but must be within {low} and {high}")),
            None => Ok(()),
        }
    }
}
