//! The topics: names, what is kept, who writes.

use serde::{Deserialize, Serialize};

/// A topic of the pipeline, without the configurable prefix (default `eadt.`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Topic {
    #[serde(rename = "gpu.telemetry.v1")]
    GpuTelemetry,
    #[serde(rename = "training.progress.v1")]
    TrainingProgress,
    #[serde(rename = "workloads.v1")]
    Workloads,
    #[serde(rename = "efficiency.windows.v1")]
    EfficiencyWindows,
    #[serde(rename = "decisions.v1")]
    Decisions,
    #[serde(rename = "actuations.v1")]
    Actuations,
    #[serde(rename = "directives.v1")]
    Directives,
    #[serde(rename = "device-intents.v1")]
    DeviceIntents,
    #[serde(rename = "device-states.v1")]
    DeviceStates,
    #[serde(rename = "device-holders.v1")]
    DeviceHolders,
    #[serde(rename = "models.v1")]
    Models,
    #[serde(rename = "dead-letters.v1")]
    DeadLetters,
    #[serde(rename = "processor-state.v1")]
    ProcessorState,
    /// State of the simulated cluster; empty where nothing is simulated.
    #[serde(rename = "simulator-state.v1")]
    SimulatorState,
}

/// What a topic keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cleanup {
    /// Records older than this are deleted.
    Delete { retention_days: u32 },
    /// The last record of every key is kept.
    Compact,
}

impl Topic {
    pub const ALL: [Self; 14] = [
        Self::GpuTelemetry,
        Self::TrainingProgress,
        Self::Workloads,
        Self::EfficiencyWindows,
        Self::Decisions,
        Self::Actuations,
        Self::Directives,
        Self::DeviceIntents,
        Self::DeviceStates,
        Self::DeviceHolders,
        Self::Models,
        Self::DeadLetters,
        Self::ProcessorState,
        Self::SimulatorState,
    ];

    /// The inputs of the processor, merged per partition. Ties in time are folded in this order.
    pub const PROCESSOR_INPUTS: [Self; 5] =
        [Self::Workloads, Self::Models, Self::Actuations, Self::GpuTelemetry, Self::TrainingProgress];

    /// The name without prefix, for example `gpu.telemetry.v1`.
    pub const fn base_name(self) -> &'static str {
        match self {
            Self::GpuTelemetry => "gpu.telemetry.v1",
            Self::TrainingProgress => "training.progress.v1",
            Self::Workloads => "workloads.v1",
            Self::EfficiencyWindows => "efficiency.windows.v1",
            Self::Decisions => "decisions.v1",
            Self::Actuations => "actuations.v1",
            Self::Directives => "directives.v1",
            Self::DeviceIntents => "device-intents.v1",
            Self::DeviceStates => "device-states.v1",
            Self::DeviceHolders => "device-holders.v1",
            Self::Models => "models.v1",
            Self::DeadLetters => "dead-letters.v1",
            Self::ProcessorState => "processor-state.v1",
            Self::SimulatorState => "simulator-state.v1",
        }
    }

    /// The topic with this name without prefix.
    pub fn from_base_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|topic| topic.base_name() == name)
    }

    pub const fn cleanup(self) -> Cleanup {
        match self {
            Self::GpuTelemetry | Self::TrainingProgress => Cleanup::Delete { retention_days: 7 },
            Self::EfficiencyWindows | Self::DeadLetters => Cleanup::Delete { retention_days: 30 },
            Self::Decisions | Self::Actuations => Cleanup::Delete { retention_days: 90 },
            Self::Workloads
            | Self::Directives
            | Self::DeviceIntents
            | Self::DeviceStates
            | Self::DeviceHolders
            | Self::Models
            | Self::ProcessorState
            | Self::SimulatorState => Cleanup::Compact,
        }
    }

    /// The largest record in bytes. Dead letters hold the original bytes of an input, so they may be twice as large.
    pub const fn max_message_bytes(self) -> u32 {
        match self {
            Self::DeadLetters => 2 * 1_048_588,
            _ => 1_048_588,
        }
    }

    /// Table topics: the last event of a key is the present state of that key.
    pub const fn is_table(self) -> bool {
        matches!(self.cleanup(), Cleanup::Compact)
    }
}

impl std::fmt::Display for Topic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.base_name())
    }
}
