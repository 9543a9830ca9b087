//! The sampler's interface to a GPU, so that it can be tested and simulated without one.

use std::collections::BTreeMap;
use std::fmt;

use eadt_schemas::latest::GpuTelemetry;

/// Identity of a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuIdentity {
    pub uuid: String,
    /// Index on this node.
    pub index: u32,
    pub model: Option<String>,
    /// The board's default power cap.
    pub default_power_limit_milliwatts: Option<u32>,
}

/// A reading that failed for another reason than not being supported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedReading {
    pub call: &'static str,
    pub detail: String,
}

/// The GPU, or the library, is gone for now: open it again later.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct GpuLost(pub String);

/// The MIG configuration of a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MigInstances {
    /// Slices of the whole GPU.
    pub slices: u32,
    /// Compute slices of each instance, by its UUID.
    pub by_uuid: BTreeMap<String, u32>,
}

/// An open GPU. Calls block and may hang.
pub trait ReadableGpu {
    fn identity(&self) -> &GpuIdentity;
    /// Returns the readings that it supports and those that it does not, in words.
    fn features(&self) -> (Vec<&'static str>, Vec<&'static str>);
    /// Fills in the GPU's present readings: `power_watts` to `memory_temperature_celsius`, and with `slow` also those that change
    /// rarely. Unsupported and failed readings stay `None`; failures are added to `failed`.
    fn read(&mut self, slow: bool, into: &mut GpuTelemetry, failed: &mut Vec<FailedReading>) -> Result<(), GpuLost>;
    /// Returns the SM utilisation of each process that computed since the last call, 0 to 1, by process id; `None` if there is
    /// nothing new.
    fn process_utilization(&mut self, _failed: &mut Vec<FailedReading>) -> Result<Option<BTreeMap<u32, f64>>, GpuLost> {
        Ok(None)
    }
    /// Returns the instances of a GPU in MIG mode; `None` if they cannot be read.
    fn instances(&mut self, _failed: &mut Vec<FailedReading>) -> Result<Option<MigInstances>, GpuLost> {
        Ok(None)
    }
}

/// Opens GPUs.
pub trait GpuDriver: Send + Sync + fmt::Debug {
    /// Returns the number of GPUs on this node.
    fn gpu_count(&self) -> Result<u32, GpuLost>;
    /// Opens a GPU, probes its features, and hands it to `body`; the GPU is closed when that returns.
    fn with_gpu(&self, index: u32, body: &mut dyn FnMut(&mut dyn ReadableGpu)) -> Result<(), GpuLost>;
}
