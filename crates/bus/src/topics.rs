//! The topic layout: what should be there, how to get there, and what is wrong.
//!
//! In: the topics as they are. Out: a [`TopicPlan`] that creates, extends and corrects, and refuses what would lose or misplace
//! data. Planning is pure; [`apply`] acts.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use eadt_schemas::Topic;
use eadt_schemas::topics::CleanupPolicy;

use crate::{Bus, BusError, Remedy, Result, TopicPartition, TopicSpec};

/// Enough for some hundred workloads on one machine; a workload is always in one partition.
pub const DEFAULT_PARTITIONS: i32 = 4;

const DAY_MS: u64 = 86_400_000;

/// Returns all topics of the pipeline as they should be. All have the same partition count: keyed topics are co-partitioned, and
/// a model event is written to every partition.
pub fn desired(prefix: &str, partitions: i32, replication: i32) -> Vec<TopicSpec> {
    Topic::ALL
        .into_iter()
        .map(|topic| TopicSpec {
            name: format!("{prefix}{}", topic.base_name()).into(),
            partitions,
            replication,
            settings: settings(topic, replication),
        })
        .collect()
}

fn settings(topic: Topic, replication: i32) -> BTreeMap<String, String> {
    let mut settings = BTreeMap::from([
        ("message.timestamp.type", "LogAppendTime".to_owned()),
        ("max.message.bytes", topic.max_message_bytes().to_string()),
    ]);
    match topic.cleanup() {
        CleanupPolicy::Delete { retention_days } => {
            settings.insert("cleanup.policy", "delete".to_owned());
            settings.insert("retention.ms", (u64::from(retention_days) * DAY_MS).to_string());
        }
        CleanupPolicy::Compact => {
            settings.insert("cleanup.policy", "compact".to_owned());
            settings.insert("delete.retention.ms", DAY_MS.to_string());
            if topic == Topic::ProcessorState {
                // A restart reads all of it, so it is kept short.
                settings.insert("segment.bytes", (32 << 20).to_string());
                settings.insert("segment.ms", (10 * 60_000).to_string());
            } else {
                // Every version reaches an archive that is away for less than a day.
                settings.insert("min.compaction.lag.ms", DAY_MS.to_string());
            }
        }
    }
    if replication >= 3 {
        settings.insert("min.insync.replicas", "2".to_owned());
    }
    settings.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// A topic as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExistingTopic {
    pub spec: TopicSpec,
    /// Whether any partition holds records, or ever did.
    pub holds_data: bool,
}

/// One change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TopicChange {
    Create(TopicSpec),
    AddPartitions {
        name: Arc<str>,
        from: i32,
        to: i32,
    },
    /// Settings by name, with the value as it is (`None` if unset) and as it should be.
    Alter {
        name: Arc<str>,
        settings: BTreeMap<String, (Option<String>, String)>,
    },
}

impl fmt::Display for TopicChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Create(topic) => {
                write!(f, "create {} with {} partitions, replication {}", topic.name, topic.partitions, topic.replication)?;
                topic.settings.iter().try_for_each(|(name, value)| write!(f, ", {name}={value}"))
            }
            Self::AddPartitions { name, from, to } => write!(f, "extend {name} from {from} to {to} partitions"),
            Self::Alter { name, settings } => {
                write!(f, "change {name}")?;
                let mut separator = ": ";
                for (setting, (is, should_be)) in settings {
                    write!(f, "{separator}{setting} from {} to {should_be}", is.as_deref().unwrap_or("unset"))?;
                    separator = ", ";
                }
                Ok(())
            }
        }
    }
}

/// Changes of topics to make, and those that are refused.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TopicPlan {
    pub actions: Vec<TopicChange>,
    /// Reasons, one a topic. While there are any, [`apply`] does nothing.
    pub refusals: Vec<String>,
}

impl TopicPlan {
    /// Returns whether everything is as it should be.
    pub fn is_empty(&self) -> bool {
        self.actions.is_empty() && self.refusals.is_empty()
    }
}

/// Whether the partition count of topics that hold data may grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PartitionGrowthPolicy {
    #[default]
    Refuse,
    /// The user accepts that the history of a key stays behind in its former partition.
    Force,
}

/// Returns the changes from the existing topics to the desired ones. Topics that are not desired are left alone.
pub fn plan(existing: &[ExistingTopic], desired: &[TopicSpec], repartition: PartitionGrowthPolicy) -> TopicPlan {
    let mut plan = TopicPlan::default();
    for topic in desired {
        let Some(present) = existing.iter().find(|present| present.spec.name == topic.name) else {
            plan.actions.push(TopicChange::Create(topic.clone()));
            continue;
        };
        let (from, to) = (present.spec.partitions, topic.partitions);
        if to < from {
            plan.refusals.push(format!(
                "{} has {from} partitions, and {to} were asked for: a topic cannot shrink; ask for {from}, or use another prefix",
                topic.name
            ));
        } else if to > from && present.holds_data && repartition == PartitionGrowthPolicy::Refuse {
            plan.refusals.push(format!(
                "{} has {from} partitions and holds data, and {to} were asked for: keys would move to other partitions and leave their history behind; ask for {from}, use another prefix, or repartition with eadt topics apply --repartition",
                topic.name
            ));
        } else if to > from {
            plan.actions.push(TopicChange::AddPartitions { name: Arc::clone(&topic.name), from, to });
        }
        let settings = differing(&present.spec, topic);
        if !settings.is_empty() {
            plan.actions.push(TopicChange::Alter { name: Arc::clone(&topic.name), settings });
        }
    }
    plan
}

fn differing(present: &TopicSpec, topic: &TopicSpec) -> BTreeMap<String, (Option<String>, String)> {
    topic
        .settings
        .iter()
        .filter(|(name, value)| present.settings.get(*name) != Some(value))
        .map(|(name, value)| (name.clone(), (present.settings.get(name).cloned(), value.clone())))
        .collect()
}

/// Returns the topics under a prefix as they are.
pub fn read_topics(bus: &dyn Bus, prefix: &str) -> Result<Vec<ExistingTopic>> {
    bus.topics(prefix)?
        .into_iter()
        .map(|spec| {
            let mut holds_data = false;
            for partition in 0..spec.partitions {
                holds_data |= bus.watermarks(&TopicPartition::new(Arc::clone(&spec.name), partition))?.high > 0;
                if holds_data {
                    break;
                }
            }
            Ok(ExistingTopic { spec, holds_data })
        })
        .collect()
}

/// Carries a plan out. Doing it twice, or again after a failure half-way, is safe when planned anew.
pub fn apply(bus: &dyn Bus, plan: &TopicPlan) -> Result<()> {
    if !plan.refusals.is_empty() {
        return Err(BusError::new(Remedy::Stop, "applying the topic layout", plan.refusals.join("; ")));
    }
    for action in &plan.actions {
        match action {
            TopicChange::Create(topic) => bus.create_topic(topic)?,
            TopicChange::AddPartitions { name, to, .. } => bus.add_partitions(name, *to)?,
            TopicChange::Alter { name, settings } => {
                let settings = settings.iter().map(|(name, (_, value))| (name.clone(), value.clone())).collect();
                bus.alter_topic(name, &settings)?;
            }
        }
    }
    Ok(())
}

/// Returns everything that is not as it should be; services refuse to start on it.
pub fn check(existing: &[TopicSpec], desired: &[TopicSpec]) -> Vec<String> {
    let mut wrong = Vec::new();
    for topic in desired {
        let Some(present) = existing.iter().find(|present| present.name == topic.name) else {
            wrong.push(format!("{} is missing", topic.name));
            continue;
        };
        if present.partitions != topic.partitions {
            wrong.push(format!("{} has {} partitions instead of {}", topic.name, present.partitions, topic.partitions));
        }
        for (name, (is, should_be)) in differing(present, topic) {
            wrong.push(format!("{} has {name}={} instead of {should_be}", topic.name, is.as_deref().unwrap_or("unset")));
        }
    }
    wrong
}

/// Checks that the topics are as a service needs them at its start: all there, with equal partition counts and the settings of
/// this version. Returns the partition count.
pub fn check_layout(bus: &dyn Bus, prefix: &str) -> Result<i32> {
    let existing = bus.topics(prefix)?;
    let telemetry = format!("{prefix}{}", Topic::GpuTelemetry.base_name());
    let present = existing.iter().find(|topic| *topic.name == *telemetry);
    let (partitions, replication) = present.map_or((DEFAULT_PARTITIONS, 1), |topic| (topic.partitions, topic.replication));
    let mut wanted = desired(prefix, partitions, replication);
    for topic in &mut wanted {
        // The operator chooses the number of replicas that must be in step.
        topic.settings.remove("min.insync.replicas");
    }
    let wrong = check(&existing, &wanted);
    if wrong.is_empty() {
        return Ok(partitions);
    }
    // Kafka hides topics that the principal may not describe.
    let unseen = wanted.iter().filter(|topic| !existing.iter().any(|present| present.name == topic.name));
    let denied: Vec<String> = unseen.filter_map(|topic| bus.missing_right(&topic.name)).collect();
    if !denied.is_empty() {
        return Err(BusError::new(Remedy::Stop, format!("checking the topics with prefix {prefix}"), denied.join("; ")));
    }
    Err(BusError::new(
        Remedy::Stop,
        format!("checking the topics with prefix {prefix}"),
        format!("{}: run `eadt topics apply`", wrong.join("; ")),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn existing(topics: &[TopicSpec], holds_data: bool) -> Vec<ExistingTopic> {
        topics.iter().map(|spec| ExistingTopic { spec: spec.clone(), holds_data }).collect()
    }

    #[test]
    fn every_topic_is_wanted_with_equal_partitions_and_log_time() {
        let topics = desired("eadt.", 6, 3);
        assert_eq!(topics.len(), Topic::ALL.len());
        for topic in &topics {
            assert_eq!((topic.partitions, topic.replication), (6, 3));
            assert_eq!(topic.settings["message.timestamp.type"], "LogAppendTime");
            assert_eq!(topic.settings["min.insync.replicas"], "2");
            assert_eq!(
                topic.settings["cleanup.policy"] == "delete",
                topic.settings.contains_key("retention.ms"),
                "{}",
                topic.name
            );
        }
        let find = |name: &str| &topics.iter().find(|t| *t.name == *name).unwrap().settings;
        assert_eq!(find("eadt.gpu.telemetry.v1")["retention.ms"], "604800000");
        assert_eq!(find("eadt.processor-state.v1")["segment.bytes"], "33554432");
        assert_eq!(find("eadt.dead-letters.v1")["max.message.bytes"], "2097176");
    }

    #[test]
    fn nothing_there_is_created_and_then_nothing_is_left_to_do() {
        let topics = desired("p.", 4, 1);
        let created = plan(&[], &topics, PartitionGrowthPolicy::Refuse);
        assert_eq!(created.actions.len(), topics.len());
        assert!(
            created.actions[0].to_string().starts_with("create p.gpu.telemetry.v1 with 4 partitions"),
            "{}",
            created.actions[0]
        );
        let mut with_more = topics.clone();
        with_more[0].settings.insert("segment.ms".into(), "1".into());
        assert!(plan(&existing(&with_more, true), &topics, PartitionGrowthPolicy::Refuse).is_empty());
    }

    #[test]
    fn shrinking_is_refused_even_when_forced_and_growing_only_with_data() {
        let (four, six) = (desired("p.", 4, 1), desired("p.", 6, 1));
        for repartition in [PartitionGrowthPolicy::Refuse, PartitionGrowthPolicy::Force] {
            let shrunk = plan(&existing(&six, false), &four, repartition);
            assert_eq!((shrunk.actions.len(), shrunk.refusals.len()), (0, six.len()));
            assert!(shrunk.refusals[0].contains("cannot shrink"), "{}", shrunk.refusals[0]);
        }
        let grown = plan(&existing(&four, true), &six, PartitionGrowthPolicy::Refuse);
        assert_eq!((grown.actions.len(), grown.refusals.len()), (0, six.len()));
        for (holds_data, repartition) in [(false, PartitionGrowthPolicy::Refuse), (true, PartitionGrowthPolicy::Force)] {
            let grown = plan(&existing(&four, holds_data), &six, repartition);
            assert_eq!((grown.actions.len(), grown.refusals.len()), (six.len(), 0));
            assert_eq!(grown.actions[0].to_string(), "extend p.gpu.telemetry.v1 from 4 to 6 partitions");
        }
    }

    #[test]
    fn wrong_settings_are_named_and_corrected() {
        let topics = desired("p.", 4, 1);
        let mut present = topics.clone();
        present[0].settings.insert("message.timestamp.type".into(), "CreateTime".into());
        present[1].partitions = 2;
        present.remove(2);
        let wrong = check(&present, &topics);
        assert_eq!(
            wrong,
            [
                "p.gpu.telemetry.v1 has message.timestamp.type=CreateTime instead of LogAppendTime",
                "p.training.progress.v1 has 2 partitions instead of 4",
                "p.workloads.v1 is missing",
            ]
        );
        let plan = plan(&existing(&present, false), &topics, PartitionGrowthPolicy::Refuse);
        let texts: Vec<_> = plan.actions.iter().map(ToString::to_string).collect();
        assert_eq!(texts[0], "change p.gpu.telemetry.v1: message.timestamp.type from CreateTime to LogAppendTime");
        assert_eq!(texts.len(), 3);
    }

    #[test]
    fn a_layout_is_made_checked_and_made_again_on_the_embedded_log() {
        let dir = tempfile::tempdir().unwrap();
        let log = crate::embedded::EmbeddedLog::open(dir.path(), crate::embedded::EmbeddedOptions::default()).unwrap();
        let missing = check_layout(&log, "eadt.").unwrap_err().to_string();
        assert!(missing.contains("eadt.gpu.telemetry.v1 is missing") && missing.contains("eadt topics apply"), "{missing}");
        for _ in 0..2 {
            apply(&log, &plan(&read_topics(&log, "eadt.").unwrap(), &desired("eadt.", 3, 1), PartitionGrowthPolicy::Refuse))
                .unwrap();
            assert_eq!(check_layout(&log, "eadt.").unwrap(), 3);
        }
        assert!(plan(&read_topics(&log, "eadt.").unwrap(), &desired("eadt.", 3, 1), PartitionGrowthPolicy::Refuse).is_empty());
        log.alter_topic("eadt.decisions.v1", &BTreeMap::from([("retention.ms".into(), "1".into())])).unwrap();
        let wrong = check_layout(&log, "eadt.").unwrap_err().to_string();
        assert!(wrong.contains("eadt.decisions.v1 has retention.ms=1 instead of 7776000000"), "{wrong}");
    }
}
