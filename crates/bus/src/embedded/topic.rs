//! Topics and partitions as the store has them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use eadt_schemas::EventTime;
use serde::{Deserialize, Serialize};

use super::store::{DurabilityLevel, LogStore, WriteBatch, damaged_store_message, end_key, low_key, topic_key};
use super::{ByName, EmbeddedLogState, lock};
use crate::{BusError, Remedy, Result, TopicPartition, TopicSpec, WatermarkOffsets};

/// Kafka's default for `max.message.bytes`.
const DEFAULT_MAX_MESSAGE_BYTES: usize = 1_048_588;

#[derive(Debug)]
pub struct EmbeddedTopic {
    pub id: u32,
    pub name: Arc<str>,
    replication: i32,
    settings: RwLock<TopicConfig>,
    partitions: RwLock<Vec<Arc<EmbeddedPartition>>>,
}

#[derive(Debug)]
pub struct EmbeddedPartition {
    pub topic: u32,
    pub at: TopicPartition,
    low: AtomicI64,
    high: AtomicI64,
    /// Stamp of the newest record, in microseconds.
    stamp: AtomicI64,
    /// Bytes appended since compaction last looked.
    pub fresh_bytes: AtomicI64,
}

impl EmbeddedPartition {
    fn empty(topic: u32, at: TopicPartition) -> Self {
        Self::new(topic, at, 0, (0, EventTime::MIN))
    }

    fn new(topic: u32, at: TopicPartition, low: i64, (high, stamp): (i64, EventTime)) -> Self {
        let (low, high, stamp) = (AtomicI64::new(low), AtomicI64::new(high), AtomicI64::new(stamp.micros()));
        Self { topic, at, low, high, stamp, fresh_bytes: AtomicI64::new(i64::MAX) }
    }

    pub fn low(&self) -> i64 {
        self.low.load(Ordering::Acquire)
    }

    pub fn high(&self) -> i64 {
        self.high.load(Ordering::Acquire)
    }

    /// Returns the stamp for a record appended now: that of the newest record if the clock is behind it.
    pub fn append_stamp(&self, now: EventTime) -> EventTime {
        now.max(EventTime::from_micros(self.stamp.load(Ordering::Acquire)))
    }

    pub fn on_append(&self, high: i64, stamp: EventTime) {
        self.stamp.store(stamp.micros(), Ordering::Release);
        self.high.store(high, Ordering::Release);
    }

    pub fn set_low(&self, low: i64) {
        self.low.store(low, Ordering::Release);
    }

    pub fn watermarks(&self) -> WatermarkOffsets {
        WatermarkOffsets { low: self.low(), high: self.high() }
    }
}

/// The settings that the log itself acts on, read once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicConfig {
    all: BTreeMap<String, String>,
    pub compact: bool,
    pub delete: bool,
    pub max_message_bytes: usize,
    /// `None` if records are kept for ever.
    pub retention_micros: Option<i64>,
    pub retention_bytes: Option<u64>,
    pub delete_retention_micros: i64,
    pub min_compaction_lag_micros: i64,
}

impl TopicConfig {
    fn parse(all: BTreeMap<String, String>) -> Result<Self, String> {
        let number = |name: &str, default: i64| {
            all.get(name).map_or(Ok(default), |text| {
                text.parse::<i64>().map_err(|_| format!("{name} must be a whole number: value={text:?}"))
            })
        };
        let policy = all.get("cleanup.policy").map_or("delete", String::as_str);
        let (mut compact, mut delete) = (false, false);
        for part in policy.split(',').map(str::trim) {
            match part {
                "compact" => compact = true,
                "delete" => delete = true,
                _ => return Err(format!("cleanup.policy must be delete, compact or both: value={policy:?}")),
            }
        }
        if let Some(kind) = all.get("message.timestamp.type").filter(|kind| *kind != "LogAppendTime") {
            return Err(format!("the embedded log supports only message.timestamp.type=LogAppendTime: value={kind:?}"));
        }
        let unlimited = |value: i64| (value >= 0).then_some(value);
        Ok(Self {
            compact,
            delete,
            max_message_bytes: usize::try_from(number("max.message.bytes", DEFAULT_MAX_MESSAGE_BYTES as i64)?)
                .map_err(|_| "max.message.bytes must not be negative".to_owned())?,
            retention_micros: unlimited(number("retention.ms", 604_800_000)?).map(|ms| ms.saturating_mul(1000)),
            retention_bytes: unlimited(number("retention.bytes", -1)?).map(|bytes| bytes as u64),
            delete_retention_micros: number("delete.retention.ms", 86_400_000)?.saturating_mul(1000),
            min_compaction_lag_micros: number("min.compaction.lag.ms", 0)?.saturating_mul(1000),
            all,
        })
    }
}

/// A topic's row.
#[derive(Serialize, Deserialize)]
struct TopicRow {
    id: u32,
    partitions: i32,
    replication: i32,
    settings: BTreeMap<String, String>,
}

impl EmbeddedTopic {
    pub fn spec(&self) -> TopicSpec {
        TopicSpec {
            name: Arc::clone(&self.name),
            partitions: self.partition_count(),
            replication: self.replication,
            settings: self.settings().all,
        }
    }

    pub fn settings(&self) -> TopicConfig {
        self.settings.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns `max.message.bytes`, and whether every record needs a key.
    pub fn limits(&self) -> (usize, bool) {
        let settings = self.settings.read().unwrap_or_else(PoisonError::into_inner);
        (settings.max_message_bytes, settings.compact)
    }

    pub fn partitions(&self) -> Vec<Arc<EmbeddedPartition>> {
        self.partitions.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn partition(&self, partition: i32) -> Option<Arc<EmbeddedPartition>> {
        let index = usize::try_from(partition).ok()?;
        self.partitions.read().unwrap_or_else(PoisonError::into_inner).get(index).cloned()
    }

    pub fn partition_count(&self) -> i32 {
        self.partitions.read().unwrap_or_else(PoisonError::into_inner).len() as i32
    }

    fn row(&self, partitions: i32, settings: &BTreeMap<String, String>) -> Vec<u8> {
        let row = TopicRow { id: self.id, partitions, replication: self.replication, settings: settings.clone() };
        serde_json::to_vec(&row).expect("a map of strings is always JSON")
    }
}

#[derive(Debug, Default)]
pub struct TopicRegistry {
    by_name: ByName<Arc<EmbeddedTopic>>,
}

impl TopicRegistry {
    /// Loads all topics of the store, and the newest stamp of all partitions.
    pub fn load(store: &LogStore) -> Result<(Self, EventTime)> {
        let (mut by_name, mut newest) = (ByName::default(), EventTime::MIN);
        for (key, value) in store.meta_with_prefix(b"t")? {
            let damaged = |why: &str| {
                let what = format!("opening the embedded log in {}", store.dir().display());
                BusError::new(Remedy::Stop, what, damaged_store_message(store.dir(), why))
            };
            let name = std::str::from_utf8(&key[1..]).map_err(|_| damaged("a topic has no readable name"))?;
            let name: Arc<str> = name.into();
            let row: TopicRow =
                serde_json::from_slice(&value).map_err(|error| damaged(&format!("topic {name} is unreadable: {error}")))?;
            let settings = TopicConfig::parse(row.settings).map_err(|why| damaged(&format!("topic {name}: {why}")))?;
            let mut partitions = Vec::new();
            for partition in 0..row.partitions {
                let end = store.meta(&end_key(row.id, partition))?;
                let end = end.as_deref().and_then(decode_end).unwrap_or((0, EventTime::MIN));
                let low = store.meta(&low_key(row.id, partition))?.as_deref().and_then(decode_i64).unwrap_or(0);
                newest = newest.max(end.1);
                partitions.push(Arc::new(EmbeddedPartition::new(
                    row.id,
                    TopicPartition::new(Arc::clone(&name), partition),
                    low,
                    end,
                )));
            }
            by_name.insert(
                Arc::clone(&name),
                Arc::new(EmbeddedTopic {
                    id: row.id,
                    name,
                    replication: row.replication,
                    settings: RwLock::new(settings),
                    partitions: RwLock::new(partitions),
                }),
            );
        }
        Ok((Self { by_name }, newest))
    }

    pub fn get(&self, name: &str) -> Option<Arc<EmbeddedTopic>> {
        self.by_name.get(name).cloned()
    }

    /// Returns all topics by name.
    pub fn all(&self) -> impl Iterator<Item = &Arc<EmbeddedTopic>> {
        let mut topics: Vec<_> = self.by_name.values().collect();
        topics.sort_by(|a, b| a.name.cmp(&b.name));
        topics.into_iter()
    }

    pub fn next_id(&self) -> u32 {
        self.by_name.values().map(|topic| topic.id + 1).max().unwrap_or(1)
    }
}

pub fn encode_end(high: i64, stamp: EventTime) -> Vec<u8> {
    [high.to_be_bytes(), stamp.millis().to_be_bytes()].concat()
}

fn decode_end(bytes: &[u8]) -> Option<(i64, EventTime)> {
    Some((decode_i64(bytes.get(..8)?)?, EventTime::from_millis(decode_i64(bytes.get(8..)?)?)))
}

pub fn decode_i64(bytes: &[u8]) -> Option<i64> {
    bytes.try_into().ok().map(i64::from_be_bytes)
}

pub fn create(shared: &EmbeddedLogState, spec: &TopicSpec) -> Result<()> {
    let refuse = |detail: String| BusError::new(Remedy::Stop, format!("creating topic {}", spec.name), detail);
    if spec.name.is_empty()
        || spec.name.len() > 249
        || !spec.name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
    {
        return Err(refuse("a name has 1 to 249 letters, digits, dots, dashes or underscores".into()));
    }
    if !(1..=10_000).contains(&spec.partitions) {
        return Err(refuse(format!("a topic has 1 to 10000 partitions: partitions={}", spec.partitions)));
    }
    let settings = TopicConfig::parse(spec.settings.clone()).map_err(refuse)?;
    // Taken first everywhere, so that ids are unique.
    let mut appender = lock(&shared.appender);
    let mut topics = shared.topics.write().unwrap_or_else(PoisonError::into_inner);
    if topics.by_name.contains_key(&spec.name) {
        return Err(refuse("it exists already".into()));
    }
    let id = appender.take_topic_id();
    let partitions = (0..spec.partitions)
        .map(|partition| Arc::new(EmbeddedPartition::empty(id, TopicPartition::new(Arc::clone(&spec.name), partition))))
        .collect();
    let topic = EmbeddedTopic {
        id,
        name: Arc::clone(&spec.name),
        replication: spec.replication,
        settings: RwLock::new(settings),
        partitions: RwLock::new(partitions),
    };
    let mut changes = WriteBatch::default();
    changes.put_meta(topic_key(&spec.name), topic.row(spec.partitions, &spec.settings));
    shared.store.commit(changes, DurabilityLevel::PowerCut)?;
    topics.by_name.insert(Arc::clone(&spec.name), Arc::new(topic));
    drop((topics, appender));
    shared.generation.fetch_add(1, Ordering::Release);
    shared.append_notifier.notify();
    Ok(())
}

pub fn alter(shared: &EmbeddedLogState, name: &str, settings: &BTreeMap<String, String>) -> Result<()> {
    let topic = shared.topic(name)?;
    let appender = lock(&shared.appender);
    let mut all = topic.settings().all;
    all.extend(settings.iter().map(|(name, value)| (name.clone(), value.clone())));
    let parsed = TopicConfig::parse(all.clone())
        .map_err(|detail| BusError::new(Remedy::Stop, format!("changing settings of topic {name}"), detail))?;
    let mut changes = WriteBatch::default();
    changes.put_meta(topic_key(name), topic.row(topic.partition_count(), &all));
    shared.store.commit(changes, DurabilityLevel::PowerCut)?;
    *topic.settings.write().unwrap_or_else(PoisonError::into_inner) = parsed;
    drop(appender);
    Ok(())
}

pub fn add_partitions(shared: &EmbeddedLogState, name: &str, partitions: i32) -> Result<()> {
    let topic = shared.topic(name)?;
    let appender = lock(&shared.appender);
    let mut present = topic.partitions();
    let count = present.len() as i32;
    if partitions <= count || partitions > 10_000 {
        return Err(BusError::new(
            Remedy::Stop,
            format!("adding partitions to topic {name}"),
            format!("it has {count} and can only grow, to at most 10000: partitions={partitions}"),
        ));
    }
    let at = |partition| TopicPartition::new(Arc::clone(&topic.name), partition);
    present.extend((count..partitions).map(|partition| Arc::new(EmbeddedPartition::empty(topic.id, at(partition)))));
    let mut changes = WriteBatch::default();
    changes.put_meta(topic_key(name), topic.row(partitions, &topic.settings().all));
    shared.store.commit(changes, DurabilityLevel::PowerCut)?;
    *topic.partitions.write().unwrap_or_else(PoisonError::into_inner) = present;
    drop(appender);
    shared.generation.fetch_add(1, Ordering::Release);
    shared.append_notifier.notify();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Bus;
    use crate::embedded::append::append;
    use crate::embedded::tests::{log, record, topic};
    use crate::embedded::{EmbeddedLog, EmbeddedOptions, StampSource};

    fn parse(settings: &[(&str, &str)]) -> Result<TopicConfig, String> {
        TopicConfig::parse(settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
    }

    #[test]
    fn settings_that_are_not_given_are_those_of_kafka() {
        let week = 7 * 24 * 3600 * 1_000_000;
        let expected = TopicConfig {
            all: BTreeMap::new(),
            compact: false,
            delete: true,
            max_message_bytes: 1_048_588,
            retention_micros: Some(week),
            retention_bytes: None,
            delete_retention_micros: week / 7,
            min_compaction_lag_micros: 0,
        };
        assert_eq!(parse(&[]), Ok(expected));
    }

    #[test]
    fn settings_are_read_and_what_they_cannot_mean_is_refused() {
        let all = [
            ("cleanup.policy", "compact, delete"),
            ("max.message.bytes", "1000"),
            ("retention.ms", "0"),
            ("retention.bytes", "0"),
            ("delete.retention.ms", "3"),
            ("min.compaction.lag.ms", "4"),
            ("message.timestamp.type", "LogAppendTime"),
        ];
        let parsed = parse(&all).unwrap();
        assert_eq!((parsed.compact, parsed.delete, parsed.max_message_bytes), (true, true, 1000));
        assert_eq!((parsed.retention_micros, parsed.retention_bytes), (Some(0), Some(0)));
        assert_eq!((parsed.delete_retention_micros, parsed.min_compaction_lag_micros), (3000, 4000));
        assert_eq!(parsed.all.len(), 7);
        let unlimited = parse(&[("retention.ms", "-1"), ("retention.bytes", "-1"), ("cleanup.policy", "compact")]).unwrap();
        assert_eq!((unlimited.retention_micros, unlimited.retention_bytes), (None, None));
        assert_eq!((unlimited.compact, unlimited.delete), (true, false));
        for (name, value, why) in [
            ("cleanup.policy", "delete,sometimes", "cleanup.policy must be delete, compact or both: value=\"delete,sometimes\""),
            ("retention.ms", "long", "retention.ms must be a whole number: value=\"long\""),
            ("max.message.bytes", "-1", "max.message.bytes must not be negative"),
            (
                "message.timestamp.type",
                "CreateTime",
                "the embedded log supports only message.timestamp.type=LogAppendTime: value=\"CreateTime\"",
            ),
        ] {
            assert_eq!(parse(&[(name, value)]), Err(why.to_owned()));
        }
    }

    fn spec(name: &str, partitions: i32) -> TopicSpec {
        TopicSpec { name: name.into(), partitions, replication: 3, settings: BTreeMap::new() }
    }

    #[test]
    fn a_topic_has_a_name_as_kafka_takes_it() {
        let (_dir, log) = log();
        for name in ["a", "A-z_0.9", &"x".repeat(249)] {
            log.create_topic(&spec(name, 1)).unwrap();
            assert_eq!(log.topics(name).unwrap(), [spec(name, 1)]);
        }
        for name in ["", "a b", "a/b", "\u{e4}", &"x".repeat(250), &"x".repeat(300)] {
            let error = log.create_topic(&spec(name, 1)).unwrap_err();
            assert_eq!(error.detail, "a name has 1 to 249 letters, digits, dots, dashes or underscores", "{name}");
        }
    }

    #[test]
    fn a_topic_has_1_to_10000_partitions_and_only_grows() {
        let (_dir, log) = log();
        for partitions in [-1, 0, 10_001] {
            let detail = format!("a topic has 1 to 10000 partitions: partitions={partitions}");
            assert_eq!(log.create_topic(&spec("t", partitions)).unwrap_err().detail, detail);
        }
        log.create_topic(&spec("full", 10_000)).unwrap();
        log.create_topic(&spec("t", 2)).unwrap();
        let count = || log.topics("t").unwrap()[0].partitions;
        let refused = |partitions| log.add_partitions("t", partitions).unwrap_err().detail;
        for partitions in [-1, 0, 1, 2, 10_001, 20_000] {
            let detail = format!("it has 2 and can only grow, to at most 10000: partitions={partitions}");
            assert_eq!((refused(partitions), count()), (detail, 2));
        }
        for partitions in [3, 10_000] {
            log.add_partitions("t", partitions).unwrap();
            assert_eq!(count(), partitions);
        }
        let last = TopicPartition::new("t", 9_999);
        assert_eq!(log.watermarks(&last).unwrap(), WatermarkOffsets { low: 0, high: 0 });
        let beyond = log.watermarks(&TopicPartition::new("t", 10_000)).unwrap_err();
        assert_eq!(beyond.detail, "the topic has 10000 partitions");
        assert!(log.watermarks(&TopicPartition::new("t", -1)).is_err());
    }

    #[test]
    fn a_reopened_log_has_its_topics_and_new_ones_are_not_mixed_up_with_them() {
        let (dir, log) = log();
        for (name, partitions) in [("a", 2), ("b", 1)] {
            topic(&log, name, partitions, &[]);
        }
        let of = |topic: &str, partition| crate::ProducerRecord { partition: Some(partition), ..record(topic, "k", "v") };
        append(&log.shared, &[of("a", 1), of("b", 0), of("b", 0)], None, DurabilityLevel::Process).unwrap();
        log.alter_topic("b", &BTreeMap::from([("retention.ms".to_owned(), "9".to_owned())])).unwrap();
        log.add_partitions("b", 3).unwrap();
        drop(log);
        let options = EmbeddedOptions { stamps: StampSource::Held, reserve_bytes: 0, ..EmbeddedOptions::default() };
        let log = EmbeddedLog::open(dir.path(), options).unwrap();
        assert_eq!(log.shared.topic("b").unwrap().settings().retention_micros, Some(9000));
        topic(&log, "c", 2, &[]);
        topic(&log, "d", 1, &[]);
        append(&log.shared, &[of("c", 1), of("c", 1), of("d", 0)], None, DurabilityLevel::Process).unwrap();
        for (topic, highs) in [("a", vec![0, 1]), ("b", vec![2, 0, 0]), ("c", vec![0, 2]), ("d", vec![1])] {
            let partitions = log.shared.topic(topic).unwrap().partitions();
            assert_eq!(partitions.iter().map(|partition| partition.high()).collect::<Vec<_>>(), highs, "{topic}");
            for partition in partitions {
                let rows = log.shared.store.blocks(partition.topic, partition.at.partition, 0, i64::MAX);
                assert_eq!(rows.count(), usize::from(partition.high() > 0), "{}", partition.at);
            }
        }
        let ids: std::collections::BTreeSet<_> = ["a", "b", "c", "d"].map(|topic| log.shared.topic(topic).unwrap().id).into();
        assert_eq!(ids.len(), 4);
    }

    #[test]
    fn the_end_of_a_partition_is_stored_with_its_newest_stamp() {
        let stamp = EventTime::from_millis(1_234_567);
        assert_eq!(decode_end(&encode_end(5_000_000_000, stamp)), Some((5_000_000_000, stamp)));
        assert_eq!(decode_end(&encode_end(0, EventTime::MIN)), Some((0, EventTime::MIN)));
        for cut in [0, 7, 8, 15] {
            assert_eq!(decode_end(&encode_end(1, stamp)[..cut]), None, "{cut}");
        }
    }
}
