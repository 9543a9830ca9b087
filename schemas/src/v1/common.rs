use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a power or energy figure covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema, Default)]
#[serde(rename_all = "snake_case")]
pub enum Meter {
    /// One GPU board.
    #[default]
    Gpu,
    /// A module that holds more than the GPU, such as GH200.
    Module,
    /// A whole server, measured inside it.
    Node,
    /// A whole system, measured at the wall.
    Wall,
}

/// Where a figure comes from. Worse wins where figures are combined: simulated over imported over measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema, Default)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// Read from a device by this pipeline.
    #[default]
    Measured,
    /// Taken from somebody else's recording.
    Imported,
    /// Computed by the simulator.
    Simulated,
}

/// How a workload is laid out: what the controllers change. Absent knobs are not known or not turned.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema, Default)]
pub struct Layout {
    /// Number of training processes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<u32>,
    /// `CUDA_MPS_ACTIVE_THREAD_PERCENTAGE` of each process, 1 to 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mps_thread_percentage: Option<u32>,
    /// `WORLD_SIZE`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub world_size: Option<u32>,
    /// `LOCAL_WORLD_SIZE`: processes that share a GPU, as the seed has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local_world_size: Option<u32>,
    /// Power cap of each GPU in watts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power_limit_watts: Option<f64>,
    /// Upper bound of the SM clock of each GPU in MHz.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sm_clock_mhz: Option<f64>,
}
