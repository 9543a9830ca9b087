//! Topics: listing, making and changing them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use futures_executor::block_on;
use rdkafka::admin::{
    AdminOptions, AlterConfig, ConfigEntry, ConfigResourceResult, ConfigSource, NewPartitions, NewTopic, ResourceSpecifier,
    TopicReplication, TopicResult,
};
use rdkafka::error::KafkaResult;
use rdkafka::types::RDKafkaErrorCode as Code;

use super::errors::{explain, from_error, missing_right_message};
use super::{ANSWER, KafkaBusState, ONE_BROKER, may_retry_unanswered};
use crate::rights::{AclOperation, AclResource};
use crate::{BusError, Remedy, Result, TopicSpec};

/// Longest time until a changed setting is shown.
const TAKEN: Duration = Duration::from_secs(5);

fn options() -> AdminOptions {
    AdminOptions::new().request_timeout(Some(ANSWER)).operation_timeout(Some(ANSWER))
}

/// Returns the settings of topics. The broker that the client asks may be gone without notice, so another one is asked soon by
/// a new client.
fn describe(shared: &KafkaBusState, resources: &[ResourceSpecifier<'_>], what: &str) -> Result<Vec<ConfigResourceResult>> {
    let options = AdminOptions::new().request_timeout(Some(ONE_BROKER)).operation_timeout(Some(ONE_BROKER));
    let begun = Instant::now();
    loop {
        match block_on(shared.admin()?.describe_configs(resources, &options)) {
            Err(error) if may_retry_unanswered(&error, begun) => {}
            described => return described.map_err(|error| from_error(what, &error, Remedy::Retry)),
        }
    }
}

/// Returns the names, partition counts and replication.
pub fn layout(shared: &KafkaBusState, prefix: &str) -> Result<Vec<(String, i32, i32)>> {
    let metadata = shared
        .metadata(None)
        .map_err(|error| from_error(format!("listing topics at {}", shared.options.brokers), &error, Remedy::Retry))?;
    let mut topics: Vec<_> = metadata
        .topics()
        .iter()
        .filter(|topic| topic.name().starts_with(prefix) && !topic.name().starts_with("__"))
        .map(|topic| {
            let replication = topic.partitions().first().map_or(0, |partition| partition.replicas().len());
            (topic.name().to_owned(), topic.partitions().len() as i32, replication as i32)
        })
        .collect();
    topics.sort();
    Ok(topics)
}

pub fn topics(shared: &KafkaBusState, prefix: &str) -> Result<Vec<TopicSpec>> {
    let layout = layout(shared, prefix)?;
    if layout.is_empty() {
        return Ok(Vec::new());
    }
    let resources: Vec<_> = layout.iter().map(|(name, ..)| ResourceSpecifier::Topic(name)).collect();
    let what = || format!("reading the settings of topics at {}", shared.options.brokers);
    let described = describe(shared, &resources, &what())?;
    layout
        .iter()
        .zip(described)
        .map(|((name, partitions, replication), described)| {
            let described = described.map_err(|code| BusError::new(Remedy::Retry, what(), explain(code, &code.to_string())))?;
            // The client library does not pass on that they may not be shown.
            if described.entries.is_empty() {
                let topic = AclResource::Topic(name.clone());
                let detail = missing_right_message(&shared.options.principal(), AclOperation::DescribeConfigs, &topic);
                return Err(BusError::new(Remedy::Stop, what(), detail));
            }
            let settings = described.entries.into_iter().filter_map(|entry| Some((entry.name, entry.value?))).collect();
            Ok(TopicSpec { name: name.as_str().into(), partitions: *partitions, replication: *replication, settings })
        })
        .collect()
}

pub fn create(shared: &KafkaBusState, topic: &TopicSpec) -> Result<()> {
    let what = format!("creating topic {}", topic.name);
    let mut new = NewTopic::new(&topic.name, topic.partitions, TopicReplication::Fixed(topic.replication));
    for (name, value) in &topic.settings {
        new = new.set(name, value);
    }
    let outcome = block_on(shared.admin()?.create_topics([&new], &options()));
    check_results(&what, &shared.options.principal(), AclOperation::Create, outcome)?;
    await_partitions(shared, &what, &topic.name, topic.partitions)
}

pub fn add_partitions(shared: &KafkaBusState, name: &str, partitions: i32) -> Result<()> {
    let what = format!("adding partitions to topic {name}");
    let count = usize::try_from(partitions)
        .map_err(|_| BusError::new(Remedy::Stop, &what, format!("a topic cannot have {partitions} partitions")))?;
    let outcome = block_on(shared.admin()?.create_partitions([&NewPartitions::new(name, count)], &options()));
    check_results(&what, &shared.options.principal(), AclOperation::Alter, outcome)?;
    await_partitions(shared, &what, name, partitions)
}

pub fn alter(shared: &KafkaBusState, name: &str, settings: &BTreeMap<String, String>) -> Result<()> {
    let what = format!("changing settings of topic {name}");
    // The request replaces all settings of the topic, so the present ones are sent along.
    let mut all: BTreeMap<_, _> = entries(shared, &what, name)?
        .into_iter()
        .filter(|entry| entry.source == ConfigSource::DynamicTopic)
        .filter_map(|entry| Some((entry.name, entry.value?)))
        .collect();
    all.extend(settings.iter().map(|(name, value)| (name.clone(), value.clone())));
    let mut change = AlterConfig::new(ResourceSpecifier::Topic(name));
    for (name, value) in &all {
        change = change.set(name, value);
    }
    let admin = shared.admin()?;
    block_on(admin.alter_configs([&change], &options())).map_err(|error| from_error(&what, &error, Remedy::Retry))?;
    // The client library does not return the broker's verdict on the values, so the result is read.
    let begun = Instant::now();
    loop {
        let present = entries(shared, &what, name)?;
        let is_in_force = |setting: &String, value: &String| {
            present.iter().any(|entry| entry.name == *setting && entry.value.as_ref() == Some(value))
        };
        let Some((setting, value)) = settings.iter().find(|(setting, value)| !is_in_force(setting, value)) else {
            return Ok(());
        };
        if begun.elapsed() > TAKEN {
            return Err(BusError::new(
                Remedy::Stop,
                &what,
                format!("the broker did not take {setting}={value}: check name and value, and the right to alter the topic"),
            ));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn entries(shared: &KafkaBusState, what: &str, name: &str) -> Result<Vec<ConfigEntry>> {
    let described = describe(shared, &[ResourceSpecifier::Topic(name)], what)?;
    match described.into_iter().next() {
        Some(Ok(described)) if !described.entries.is_empty() => Ok(described.entries),
        Some(Err(code)) => Err(BusError::new(Remedy::Stop, what, explain(code, &code.to_string()))),
        _ => Err(BusError::new(Remedy::Stop, what, "the broker shows no settings: is the topic there, and may it be described?")),
    }
}

fn check_results(what: &str, who: &str, operation: AclOperation, outcome: KafkaResult<Vec<TopicResult>>) -> Result<()> {
    let outcome = outcome.map_err(|error| from_error(what, &error, Remedy::Retry))?;
    outcome.into_iter().try_for_each(|outcome| match outcome {
        Ok(_) => Ok(()),
        Err((_, Code::InvalidReplicationFactor)) => Err(BusError::new(
            Remedy::Stop,
            what,
            "the cluster has too few brokers for this replication: ask for fewer copies or add brokers",
        )),
        Err((_, Code::TopicAlreadyExists)) => Err(BusError::new(Remedy::Stop, what, "it exists already")),
        Err((name, Code::TopicAuthorizationFailed | Code::ClusterAuthorizationFailed)) => {
            Err(BusError::new(Remedy::Stop, what, missing_right_message(who, operation, &AclResource::Topic(name))))
        }
        Err((_, code)) => Err(BusError::new(Remedy::Stop, what, explain(code, &code.to_string()))),
    })
}

/// Waits until the partitions are known. The controller answers before every broker knows them, and the caller's next call should
/// find them.
fn await_partitions(shared: &KafkaBusState, what: &str, name: &str, partitions: i32) -> Result<()> {
    let begun = Instant::now();
    loop {
        if layout(shared, name)?.iter().any(|(found, count, _)| found == name && *count >= partitions) {
            return Ok(());
        }
        if begun.elapsed() > ANSWER {
            return Err(BusError::new(Remedy::Retry, what, "the brokers do not show it yet"));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
