//! The CloudEvents 1.0 envelope in Kafka binary mode: attributes are headers, the value is the data.

use crate::{EventTime, Topic};

/// Defines [`EventType`] from one row for each event type, its name in reverse-DNS form with a version; and
/// [`for_typed_events`](crate::for_typed_events). `typed`: those whose value is the type of the same name in [`v1`](crate::v1).
macro_rules! event_types {
    ($dollar:tt typed { $($typed:ident = $typed_name:literal,)* } other { $($(#[$documentation:meta])* $other:ident = $other_name:literal,)* }) => {
        /// The event types.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum EventType {
            $($typed,)*
            $($(#[$documentation])* $other,)*
        }

        impl EventType {
            pub const ALL: [Self; [$($typed_name,)* $($other_name,)*].len()] = [$(Self::$typed,)* $(Self::$other,)*];

            /// The event types whose values have a type, and so a schema.
            pub const TYPED: [Self; [$($typed_name,)*].len()] = [$(Self::$typed,)*];

            /// Returns the value of `ce_type`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$typed => $typed_name,)*
                    $(Self::$other => $other_name,)*
                }
            }
        }

        /// Calls a macro with the names of all event types whose values have a type. In `v1` it has the same name.
        #[macro_export]
        macro_rules! for_typed_events {
            ($dollar callback:ident) => { $dollar callback! { $($typed)* } };
        }
    };
}

event_types! { $
    typed {
        GpuTelemetry = "io.eadt.gpu.telemetry.v1",
        TrainingProgress = "io.eadt.training.progress.v1",
        Workload = "io.eadt.workload.v1",
        EfficiencyWindow = "io.eadt.efficiency.window.v1",
        Decision = "io.eadt.decision.v1",
        Actuation = "io.eadt.actuation.v1",
        Directive = "io.eadt.directive.v1",
        DeviceIntent = "io.eadt.device-intent.v1",
        DeviceState = "io.eadt.device-state.v1",
        DeviceHolders = "io.eadt.device-holders.v1",
        Model = "io.eadt.model.v1",
    }
    other {
        /// Bytes of another program.
        DeadLetter = "io.eadt.dead-letter.v1",
        /// Opaque.
        ProcessorState = "io.eadt.processor-state.v1",
        /// Opaque.
        SimulatorState = "io.eadt.simulator-state.v1",
        /// Appended to a quiet input partition by its owner so that log time goes on; value `{}`.
        Heartbeat = "io.eadt.heartbeat.v1",
    }
}

impl EventType {
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Returns the type of which this name is that of another version: `io.eadt.decision.v7` is one of decisions.
    pub fn of_another_version(name: &str) -> Option<Self> {
        let family = |name: &str| {
            let (family, version) = name.rsplit_once(".v")?;
            let numbered = !version.is_empty() && version.bytes().all(|byte| byte.is_ascii_digit());
            numbered.then(|| family.to_owned())
        };
        let wanted = family(name)?;
        Self::ALL.into_iter().find(|kind| kind.name() != name && family(kind.name()).as_ref() == Some(&wanted))
    }

    /// Returns the topic of events of this type, or `None` for heartbeats, which are in every input.
    pub fn topic(self) -> Option<Topic> {
        Topic::ALL.into_iter().find(|topic| topic.event_type() == self)
    }
}

/// CloudEvents attributes of one record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Envelope {
    /// `ce_id`: unique within `source`.
    pub id: String,
    /// `ce_source`: the producer, a URI reference such as `/collector/node-1`.
    pub source: String,
    /// `ce_type`.
    pub kind: EventType,
    /// `ce_time`: event time.
    pub time: EventTime,
    /// `ce_subject`: what it is about, a workload, a device or a node.
    pub subject: String,
}

/// Header names of the Kafka protocol binding.
pub mod header {
    pub const ID: &str = "ce_id";
    pub const SOURCE: &str = "ce_source";
    pub const TYPE: &str = "ce_type";
    pub const SPEC_VERSION: &str = "ce_specversion";
    pub const TIME: &str = "ce_time";
    pub const SUBJECT: &str = "ce_subject";
    pub const CONTENT_TYPE: &str = "content-type";
    /// The positions of the processor's inputs when it made an output, or the last state of a step, a JSON object: of each input
    /// topic the offset of the first record not yet folded, and `partition`. Outside the comparison of a replay with its record.
    pub const INPUT_POSITIONS: &str = "eadt_input_positions";
    /// Ids of the topics that the processor reads, in a step's state: a JSON object, id by name. Positions of a topic that was deleted
    /// and made anew belong to another log. Absent if the log has no such ids.
    pub const INPUT_TOPIC_IDS: &str = "eadt_input_topic_ids";
    /// The consumer group of the processor that wrote a step's state: processors of another one do not begin beside it.
    pub const GROUP: &str = "eadt_group";
    /// Settings of the processor that made an output: a JSON object of those that windows and decisions depend on. Settings of
    /// controllers are included if they differ from the default. A replay goes by it.
    pub const SETTINGS: &str = "eadt_settings";
    /// Marks a record that its producer sent again because the log had not acknowledged it: the log may have the record already.
    /// The name counts, whatever the value. Such an event counts as a duplicate, never as stale, if it is not newer than the last
    /// one of its source.
    pub const SENT_AGAIN: &str = "eadt_sent_again";
}

impl Envelope {
    /// Returns the headers of this envelope, in a fixed order.
    pub fn headers(&self) -> [(&'static str, String); 7] {
        [
            (header::SPEC_VERSION, "1.0".to_owned()),
            (header::TYPE, self.kind.name().to_owned()),
            (header::SOURCE, self.source.clone()),
            (header::ID, self.id.clone()),
            (header::TIME, self.time.to_string()),
            (header::SUBJECT, self.subject.clone()),
            (header::CONTENT_TYPE, "application/json".to_owned()),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_versions_of_a_type_are_known_by_their_family() {
        assert_eq!(EventType::of_another_version("io.eadt.gpu.telemetry.v2"), Some(EventType::GpuTelemetry));
        assert_eq!(EventType::of_another_version("io.eadt.decision.v12"), Some(EventType::Decision));
        for other in
            ["io.eadt.gpu.telemetry.v1", "io.eadt.gpu.v2", "io.eadt.gpu.telemetry.vx", "io.eadt.gpu.telemetry.v", "x", ""]
        {
            assert_eq!(EventType::of_another_version(other), None, "{other}");
        }
    }
}
