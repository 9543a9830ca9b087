//! The topics: one table, [`Topic`], with a row for each.

use serde::{Deserialize, Serialize};

use crate::EventType;

/// Rule by which a topic deletes records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CleanupPolicy {
    /// Records older than this are deleted.
    Delete { retention_days: u32 },
    /// The last record of each key is kept.
    Compact,
}

const fn days(retention_days: u32) -> CleanupPolicy {
    CleanupPolicy::Delete { retention_days }
}

/// The default of Apache Kafka's `message.max.bytes`.
const MESSAGE_MAX_BYTES: u32 = 1_048_588;

/// Defines [`Topic`] from one row for each topic: its name, event type, cleanup, largest record, key and writers.
macro_rules! topics {
    ($(
        $(#[$documentation:meta])*
        $topic:ident = $name:literal {
            event: $event:ident,
            cleanup: $cleanup:expr,
            max_message_bytes: $bytes:expr,
            key: $key:literal,
            writers: $writers:literal,
        }
    )*) => {
        /// A topic of the pipeline, without the configurable prefix (default `eadt.`).
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum Topic {
            $($(#[$documentation])* #[serde(rename = $name)] $topic,)*
        }

        impl Topic {
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$topic),*];

            /// Returns the name without prefix, for example `gpu.telemetry.v1`.
            pub const fn base_name(self) -> &'static str {
                match self { $(Self::$topic => $name,)* }
            }

            pub const fn cleanup(self) -> CleanupPolicy {
                match self { $(Self::$topic => $cleanup,)* }
            }

            /// Returns the size of the largest record in bytes.
            pub const fn max_message_bytes(self) -> u32 {
                match self { $(Self::$topic => $bytes,)* }
            }

            /// Returns the type of the topic's own events. Private topics have one, too.
            pub const fn event_type(self) -> EventType {
                match self { $(Self::$topic => EventType::$event,)* }
            }

            /// Returns whether records of this type belong to the topic: its own events and heartbeats. Dead letters are of any
            /// type.
            pub fn takes_type(self, kind: &str) -> bool {
                matches!(self, Self::DeadLetters)
                    || [self.event_type().name(), EventType::Heartbeat.name()].contains(&kind)
            }

            /// Returns the meaning of the keys of the topic's records, for the reference page.
            pub const fn key(self) -> &'static str {
                match self { $(Self::$topic => $key,)* }
            }

            /// Returns the parts that write the topic, for the reference page.
            pub const fn writers(self) -> &'static str {
                match self { $(Self::$topic => $writers,)* }
            }
        }
    };
}

topics! {
    GpuTelemetry = "gpu.telemetry.v1" {
        event: GpuTelemetry,
        cleanup: days(7),
        max_message_bytes: MESSAGE_MAX_BYTES,
        key: "workload, or the device where it runs none",
        writers: "collector, simulator",
    }
    TrainingProgress = "training.progress.v1" {
        event: TrainingProgress,
        cleanup: days(7),
        max_message_bytes: MESSAGE_MAX_BYTES,
        key: "workload",
        writers: "collector, simulator",
    }
    Workloads = "workloads.v1" {
        event: Workload,
        cleanup: CleanupPolicy::Compact,
        max_message_bytes: MESSAGE_MAX_BYTES,
        key: "workload",
        writers: "actuator",
    }
    EfficiencyWindows = "efficiency.windows.v1" {
        event: EfficiencyWindow,
        cleanup: days(30),
        max_message_bytes: MESSAGE_MAX_BYTES,
        key: "workload, `gpus` for devices without one",
        writers: "processor",
    }
    Decisions = "decisions.v1" {
        event: Decision,
        cleanup: days(90),
        max_message_bytes: MESSAGE_MAX_BYTES,
        key: "workload",
        writers: "processor",
    }
    Actuations = "actuations.v1" {
        event: Actuation,
        cleanup: days(90),
        max_message_bytes: MESSAGE_MAX_BYTES,
        key: "workload",
        writers: "actuator",
    }
    Directives = "directives.v1" {
        event: Directive,
        cleanup: CleanupPolicy::Compact,
        max_message_bytes: MESSAGE_MAX_BYTES,
        key: "workload",
        writers: "actuator",
    }
    DeviceIntents = "device-intents.v1" {
        event: DeviceIntent,
        cleanup: CleanupPolicy::Compact,
        max_message_bytes: MESSAGE_MAX_BYTES,
        key: "node",
        writers: "actuator",
    }
    DeviceStates = "device-states.v1" {
        event: DeviceState,
        cleanup: CleanupPolicy::Compact,
        max_message_bytes: MESSAGE_MAX_BYTES,
        key: "node",
        writers: "node agent",
    }
    DeviceHolders = "device-holders.v1" {
        event: DeviceHolders,
        cleanup: CleanupPolicy::Compact,
        max_message_bytes: MESSAGE_MAX_BYTES,
        key: "node",
        writers: "collector",
    }
    Models = "models.v1" {
        event: Model,
        cleanup: CleanupPolicy::Compact,
        max_message_bytes: MESSAGE_MAX_BYTES,
        key: "model name",
        writers: "optimizer",
    }
    /// Holds the original bytes of a refused record, so its records may be twice as large.
    DeadLetters = "dead-letters.v1" {
        event: DeadLetter,
        cleanup: days(30),
        max_message_bytes: 2 * MESSAGE_MAX_BYTES,
        key: "source topic",
        writers: "every reader",
    }
    ProcessorState = "processor-state.v1" {
        event: ProcessorState,
        cleanup: CleanupPolicy::Compact,
        max_message_bytes: MESSAGE_MAX_BYTES,
        key: "private, begins with the workload",
        writers: "processor",
    }
    /// State of the simulated cluster. Empty if nothing is simulated.
    SimulatorState = "simulator-state.v1" {
        event: SimulatorState,
        cleanup: CleanupPolicy::Compact,
        max_message_bytes: MESSAGE_MAX_BYTES,
        key: "private",
        writers: "simulator",
    }
}

impl Topic {
    /// The inputs of the processor, merged per partition. Ties in time are folded in this order.
    pub const PROCESSOR_INPUTS: [Self; 5] =
        [Self::Workloads, Self::Models, Self::Actuations, Self::GpuTelemetry, Self::TrainingProgress];

    /// Returns the topic with this name without prefix.
    pub fn from_base_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|topic| topic.base_name() == name)
    }

    /// Returns the topic with this full name, if its prefix is this one.
    pub fn from_name(name: &str, prefix: &str) -> Option<Self> {
        Self::from_base_name(name.strip_prefix(prefix)?)
    }

    /// Returns true for table topics: the last event of a key is the present state of that key.
    pub const fn is_table(self) -> bool {
        matches!(self.cleanup(), CleanupPolicy::Compact)
    }
}

impl std::fmt::Display for Topic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.base_name())
    }
}
