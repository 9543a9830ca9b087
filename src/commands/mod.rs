//! One file a command. Each returns an error that says what to do; `main` prints it.

pub mod archive;
pub mod backtest;
pub mod dataset;
pub mod import;
pub mod metrics;
pub mod optimizer;
pub mod partition;
pub mod policy;
pub mod profile;
pub mod publish;
pub mod record;
pub mod replay;
pub mod report;
pub mod sql;
pub mod tail;
pub mod topics;
pub mod tune;

use std::sync::Arc;

use eadt_bus::{Bus, Record, Start, TopicPartition};
use eadt_schemas::envelope::header;
use eadt_schemas::{EventTime, EventType, LoggedEvent, Topic};
use serde_json::value::RawValue;

use crate::settings::TopicSettings;

/// Every partition of these topics, from `start`.
pub fn partitions(
    bus: &dyn Bus,
    names: &TopicSettings,
    topics: &[Topic],
    start: Start,
) -> anyhow::Result<Vec<(TopicPartition, Start)>> {
    let existing = bus.topics(&names.prefix)?;
    let mut all = Vec::new();
    for topic in topics {
        let name: Arc<str> = format!("{}{topic}", names.prefix).into();
        let spec = existing
            .iter()
            .find(|spec| spec.name == name)
            .ok_or_else(|| anyhow::anyhow!("topic {name} does not exist: run `eadt topics apply`"))?;
        all.extend((0..spec.partitions).map(|p| (TopicPartition { topic: name.clone(), partition: p }, start)));
    }
    Ok(all)
}

/// The topic behind a full name.
pub fn topic_of(record: &Record, prefix: &str) -> Option<Topic> {
    Topic::from_base_name(record.at.topic.strip_prefix(prefix)?)
}

/// Topics by their names without prefix; the error names the nearest.
pub fn parse_topics(names: &[String], default: &[Topic]) -> anyhow::Result<Vec<Topic>> {
    if names.is_empty() {
        return Ok(default.to_vec());
    }
    names
        .iter()
        .map(|name| {
            Topic::from_base_name(name).or_else(|| Topic::from_base_name(&format!("{name}.v1"))).ok_or_else(|| {
                let nearest = Topic::ALL.into_iter().min_by_key(|t| strsim::levenshtein(t.base_name(), name));
                anyhow::anyhow!("unknown topic={name}; did you mean {}?", nearest.map_or("", Topic::base_name))
            })
        })
        .collect()
}

/// A record as an event log has it; `None` where its value is not JSON (a dead letter of a malformed event, state).
pub fn logged(record: &Record, topic: Topic) -> Option<LoggedEvent> {
    let kind = record.header(header::TYPE).unwrap_or_else(|| EventType::of_topic(topic).name()).to_owned();
    let data = match &record.value {
        Some(value) => Some(RawValue::from_string(std::str::from_utf8(value).ok()?.to_owned()).ok()?),
        None => None,
    };
    let time = record.header(header::TIME).and_then(|text| text.parse::<EventTime>().ok()).unwrap_or(record.stamp);
    Some(LoggedEvent {
        specversion: "1.0".to_owned(),
        kind,
        source: record.header(header::SOURCE).unwrap_or("/unknown").to_owned(),
        id: record.header(header::ID).map_or_else(|| format!("{}@{}", record.at, record.offset), str::to_owned),
        time,
        subject: record.header(header::SUBJECT).unwrap_or_default().to_owned(),
        datacontenttype: "application/json".to_owned(),
        key: record.key.as_ref().and_then(|key| std::str::from_utf8(key).ok()).map(str::to_owned),
        topic: Some(topic),
        partition: Some(record.at.partition),
        offset: Some(record.offset),
        stamp: Some(record.stamp),
        data,
    })
}
