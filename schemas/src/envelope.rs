//! The CloudEvents 1.0 envelope in Kafka binary mode: attributes are headers, the value is the data.

use crate::{EventTime, Topic};

/// The event types, in reverse-DNS form with a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventType {
    GpuTelemetry,
    TrainingProgress,
    Workload,
    EfficiencyWindow,
    Decision,
    Actuation,
    Directive,
    DeviceIntent,
    DeviceState,
    DeviceHolders,
    Model,
    DeadLetter,
    ProcessorState,
    SimulatorState,
    /// Appended to a quiet input partition by its owner so that log time goes on; value `{}`.
    Heartbeat,
}

impl EventType {
    pub const ALL: [Self; 15] = [
        Self::GpuTelemetry,
        Self::TrainingProgress,
        Self::Workload,
        Self::EfficiencyWindow,
        Self::Decision,
        Self::Actuation,
        Self::Directive,
        Self::DeviceIntent,
        Self::DeviceState,
        Self::DeviceHolders,
        Self::Model,
        Self::DeadLetter,
        Self::ProcessorState,
        Self::SimulatorState,
        Self::Heartbeat,
    ];

    /// The value of `ce_type`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::GpuTelemetry => "io.eadt.gpu.telemetry.v1",
            Self::TrainingProgress => "io.eadt.training.progress.v1",
            Self::Workload => "io.eadt.workload.v1",
            Self::EfficiencyWindow => "io.eadt.efficiency.window.v1",
            Self::Decision => "io.eadt.decision.v1",
            Self::Actuation => "io.eadt.actuation.v1",
            Self::Directive => "io.eadt.directive.v1",
            Self::DeviceIntent => "io.eadt.device-intent.v1",
            Self::DeviceState => "io.eadt.device-state.v1",
            Self::DeviceHolders => "io.eadt.device-holders.v1",
            Self::Model => "io.eadt.model.v1",
            Self::DeadLetter => "io.eadt.dead-letter.v1",
            Self::ProcessorState => "io.eadt.processor-state.v1",
            Self::SimulatorState => "io.eadt.simulator-state.v1",
            Self::Heartbeat => "io.eadt.heartbeat.v1",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// The type of which this name is that of another version: `io.eadt.decision.v7` is one of decisions.
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
    /// By what the processor made an output: a JSON object of those of its settings that windows and decisions depend on, the
    /// controllers' where they are not the default. A replay goes by it.
    pub const SETTINGS: &str = "eadt_settings";
}

impl Envelope {
    /// The headers of this envelope, in a fixed order.
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
