//! Rights that each part needs on a Kafka with access lists, and nothing beyond.

use clap::ValueEnum;
use eadt_bus::rights::{AclEntry, AclOperation, AclResource};
use eadt_schemas::Topic;

use crate::settings::ProgramSettings;

/// Role that gets rights in access lists: a service, the node agent, a reader, or the maker of topics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum AclRole {
    Collector,
    Processor,
    Actuator,
    /// The simulated cluster, in `eadt actuator` without --kubernetes: beside the actuator's rights.
    Simulator,
    Archiver,
    Optimizer,
    /// eadt-agent, on every node.
    Agent,
    /// `eadt tail`, `record`, `report`: looks on.
    Reader,
    /// `eadt topics apply`.
    Topics,
}

impl AclRole {
    pub const ALL: [Self; 9] = [
        Self::Collector,
        Self::Processor,
        Self::Actuator,
        Self::Simulator,
        Self::Archiver,
        Self::Optimizer,
        Self::Agent,
        Self::Reader,
        Self::Topics,
    ];

    /// Returns its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Collector => "collector",
            Self::Processor => "processor",
            Self::Actuator => "actuator",
            Self::Simulator => "simulator",
            Self::Archiver => "archiver",
            Self::Optimizer => "optimizer",
            Self::Agent => "agent",
            Self::Reader => "reader",
            Self::Topics => "topics",
        }
    }

    /// Topics that it reads and topics that it writes.
    fn topics(self) -> (Vec<Topic>, Vec<Topic>) {
        use Topic::{
            Actuations, DeadLetters, Decisions, DeviceHolders, DeviceIntents, DeviceStates, Directives, EfficiencyWindows,
            GpuTelemetry, Models, ProcessorState, SimulatorState, TrainingProgress, Workloads,
        };
        match self {
            // Directives are handed on to the jobs that report; a start reads when those jobs began.
            Self::Collector => (vec![Directives, TrainingProgress], vec![GpuTelemetry, TrainingProgress, DeviceHolders]),
            Self::Processor => (
                // A start reads the outputs beyond the state; windows are also the input of the power budget.
                Topic::PROCESSOR_INPUTS.into_iter().chain([ProcessorState, EfficiencyWindows, Decisions, DeadLetters]).collect(),
                // Telemetry for heartbeats only.
                vec![EfficiencyWindows, Decisions, DeadLetters, ProcessorState, GpuTelemetry],
            ),
            Self::Actuator => (
                // Outcomes only if a broker forgot a part of a step.
                vec![Decisions, Workloads, Actuations, DeviceStates, DeviceHolders, DeviceIntents, TrainingProgress, Directives],
                vec![Actuations, Workloads, DeadLetters, DeviceIntents, Directives],
            ),
            Self::Simulator => (
                vec![Decisions, Actuations, Workloads, SimulatorState],
                vec![GpuTelemetry, TrainingProgress, Workloads, SimulatorState],
            ),
            Self::Archiver => (Topic::ALL.to_vec(), vec![]),
            Self::Optimizer => (vec![Models], vec![Models]),
            Self::Agent => (vec![DeviceIntents], vec![DeviceStates, DeadLetters]),
            Self::Reader => {
                let look = [
                    GpuTelemetry,
                    TrainingProgress,
                    Workloads,
                    EfficiencyWindows,
                    Decisions,
                    Actuations,
                    Directives,
                    DeviceIntents,
                    DeviceStates,
                    DeviceHolders,
                    Models,
                    DeadLetters,
                ];
                (look.to_vec(), vec![])
            }
            Self::Topics => (vec![], vec![]),
        }
    }

    /// Returns its rights, with these settings' names.
    pub fn rights(self, settings: &ProgramSettings) -> Vec<AclEntry> {
        let prefix = &settings.topics.prefix;
        let every_topic = || AclResource::Topic(prefix.clone());
        let topic = |topic: Topic| AclResource::Topic(format!("{prefix}{topic}"));
        let group = |name: &str| AclResource::Group(name.to_owned());
        if self == Self::Topics {
            // Altering implies describing.
            return [AclOperation::Create, AclOperation::Alter, AclOperation::AlterConfigs]
                .map(|operation| AclEntry::on_prefix(every_topic(), operation))
                .to_vec();
        }
        let (reads, writes) = self.topics();
        // All of them are looked at before anything starts.
        let mut rights = vec![AclEntry::on_prefix(every_topic(), AclOperation::DescribeConfigs)];
        if Topic::ALL.iter().any(|topic| !reads.contains(topic) && !writes.contains(topic)) {
            rights.push(AclEntry::on_prefix(every_topic(), AclOperation::Describe));
        }
        rights.extend(reads.iter().map(|read| AclEntry::on(topic(*read), AclOperation::Read)));
        rights.extend(writes.iter().map(|write| AclEntry::on(topic(*write), AclOperation::Write)));
        let id_of_processor = settings.processor.transactional_id();
        let member = match self {
            Self::Processor => Some((&settings.processor.group, Some(&id_of_processor))),
            Self::Actuator => Some((&settings.actuator.group, Some(&settings.actuator.instance))),
            Self::Simulator => Some((&settings.simulator.group, Some(&settings.simulator.instance))),
            Self::Archiver => Some((&settings.archiver.group, None)),
            Self::Collector | Self::Optimizer | Self::Agent | Self::Reader | Self::Topics => None,
        };
        if let Some((name, instance)) = member {
            rights.push(AclEntry::on(group(name), AclOperation::Read));
            rights.extend(instance.map(|instance| transactional_id(name, instance)));
            if self == Self::Processor {
                // Rights of the joint stages, whose groups end in these names. Their transactional ids begin with that of the group.
                for stage in eadt_processor::JOINT_STAGES.map(|stage| stage.name) {
                    rights.push(AclEntry::on(group(&format!("{name}-{stage}")), AclOperation::Read));
                }
            }
        }
        if !reads.is_empty() && self != Self::Archiver {
            // The client library looks for the group of every reader, though nothing is ever committed for it.
            let client = if self == Self::Agent { "eadt-agent" } else { crate::bus::CLIENT };
            rights.push(AclEntry::on(group(&format!("{client}-reader")), AclOperation::Describe));
        }
        rights
    }
}

/// Instances are named after their group: all of them are let in, so that one more needs no other right.
fn transactional_id(group: &str, instance: &str) -> AclEntry {
    let prefix = format!("{group}-");
    if instance.starts_with(&prefix) {
        return AclEntry::on_prefix(AclResource::TransactionalId(prefix), AclOperation::Write);
    }
    AclEntry::on(AclResource::TransactionalId(instance.to_owned()), AclOperation::Write)
}

/// Returns a user of Strimzi's, by certificate or password as the cluster has it, with these rights.
pub fn strimzi_user(part: AclRole, cluster: &str, rights: &[AclEntry]) -> String {
    use std::fmt::Write;
    let mut text = format!(
        "apiVersion: kafka.strimzi.io/v1\nkind: KafkaUser\nmetadata:\n  name: eadt-{}\n  labels: {{strimzi.io/cluster: {cluster}}}\n\
         spec:\n  authentication: {{type: scram-sha-512}}\n  authorization:\n    type: simple\n    acls:\n",
        part.name()
    );
    let mut by_resource: Vec<(&AclEntry, Vec<String>)> = Vec::new();
    for right in rights {
        let operation = right.operation.to_string();
        match by_resource.iter_mut().find(|(known, _)| known.resource == right.resource && known.pattern == right.pattern) {
            Some((_, operations)) => operations.push(operation),
            None => by_resource.push((right, vec![operation])),
        }
    }
    for (right, operations) in by_resource {
        let (kind, pattern) = (strimzi_kind(&right.resource), serde_json::json!(right.pattern));
        let (name, pattern) = (right.resource.name(), pattern.as_str().unwrap_or_default().to_owned());
        let operations = operations.join(", ");
        writeln!(
            text,
            "      - {{resource: {{type: {kind}, name: {name}, patternType: {pattern}}}, operations: [{operations}], host: \"*\"}}"
        )
        .expect("String");
    }
    text
}

fn strimzi_kind(resource: &AclResource) -> &'static str {
    match resource {
        AclResource::Topic(_) => "topic",
        AclResource::Group(_) => "group",
        AclResource::TransactionalId(_) => "transactionalId",
        AclResource::Cluster => "cluster",
    }
}

#[cfg(test)]
mod tests {
    use eadt_bus::rights::PatternType;

    use super::*;

    #[test]
    fn nobody_writes_what_is_not_his() {
        let settings = ProgramSettings::default();
        let writers = |topic: Topic| -> Vec<AclRole> {
            let name = format!("eadt.{topic}");
            let writes = |part: &AclRole| {
                part.rights(&settings).iter().any(|right| right.operation == AclOperation::Write && right.resource.name() == name)
            };
            AclRole::ALL.into_iter().filter(writes).collect()
        };
        assert_eq!(writers(Topic::Decisions), [AclRole::Processor]);
        assert_eq!(writers(Topic::ProcessorState), [AclRole::Processor]);
        assert_eq!(writers(Topic::Actuations), [AclRole::Actuator]);
        assert_eq!(writers(Topic::DeviceIntents), [AclRole::Actuator]);
        assert_eq!(writers(Topic::DeviceStates), [AclRole::Agent]);
        assert_eq!(writers(Topic::DeviceHolders), [AclRole::Collector]);
        assert_eq!(writers(Topic::Models), [AclRole::Optimizer]);
        assert_eq!(writers(Topic::TrainingProgress), [AclRole::Collector, AclRole::Simulator]);
    }

    #[test]
    fn only_whoever_makes_topics_may_change_them() {
        for part in AclRole::ALL {
            let rights = part.rights(&ProgramSettings::default());
            let changes = |right: &AclEntry| {
                matches!(right.operation, AclOperation::Create | AclOperation::Alter | AclOperation::AlterConfigs)
            };
            assert_eq!(rights.iter().any(changes), part == AclRole::Topics, "{part:?}");
            let mut once = rights.clone();
            once.sort();
            once.dedup();
            assert_eq!(once.len(), rights.len(), "{part:?}");
        }
    }

    #[test]
    fn names_come_from_the_settings() {
        let mut settings = ProgramSettings::default();
        settings.topics.prefix = "lab.".into();
        settings.processor.group = "lab-processor".into();
        let rights = AclRole::Processor.rights(&settings);
        let ids: Vec<_> = rights.iter().filter(|right| matches!(right.resource, AclResource::TransactionalId(_))).collect();
        assert_eq!(
            (ids[0].resource.name(), ids[0].pattern),
            ("lab-processor-", PatternType::Prefixed),
            "it is named after its group"
        );
        assert!(rights.iter().all(|right| !right.resource.name().starts_with("eadt.")), "{rights:?}");
        settings.processor.instance = "lab-processor-7".into();
        let rights = AclRole::Processor.rights(&settings);
        let id = rights.iter().find(|right| matches!(right.resource, AclResource::TransactionalId(_))).unwrap();
        assert_eq!((id.resource.name(), id.pattern), ("lab-processor-", PatternType::Prefixed));
    }
}
