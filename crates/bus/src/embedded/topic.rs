//! Topics and partitions as the store has them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use eadt_schemas::EventTime;
use serde::{Deserialize, Serialize};

use super::store::{Changes, Store, Survives, damaged, end_key, low_key, topic_key};
use super::{ByName, Shared, lock};
use crate::{BusError, Remedy, Result, TopicPartition, TopicSpec, Watermarks};

/// Kafka's default for `max.message.bytes`.
const DEFAULT_MAX_MESSAGE_BYTES: usize = 1_048_588;

#[derive(Debug)]
pub struct Topic {
    pub id: u32,
    pub name: Arc<str>,
    replication: i32,
    settings: RwLock<Settings>,
    partitions: RwLock<Vec<Arc<Partition>>>,
}

#[derive(Debug)]
pub struct Partition {
    pub topic: u32,
    pub at: TopicPartition,
    low: AtomicI64,
    high: AtomicI64,
    /// Of the newest record, in microseconds.
    stamp: AtomicI64,
    /// Bytes appended since compaction last looked.
    pub fresh_bytes: AtomicI64,
}

impl Partition {
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

    /// The stamp for what is appended now: that of the newest record where the clock is behind it.
    pub fn stamp(&self, now: EventTime) -> EventTime {
        now.max(EventTime::from_micros(self.stamp.load(Ordering::Acquire)))
    }

    pub fn appended(&self, high: i64, stamp: EventTime) {
        self.stamp.store(stamp.micros(), Ordering::Release);
        self.high.store(high, Ordering::Release);
    }

    pub fn set_low(&self, low: i64) {
        self.low.store(low, Ordering::Release);
    }

    pub fn watermarks(&self) -> Watermarks {
        Watermarks { low: self.low(), high: self.high() }
    }
}

/// The settings that the log itself acts on, read once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    all: BTreeMap<String, String>,
    pub compact: bool,
    pub delete: bool,
    pub max_message_bytes: usize,
    /// `None`: kept for ever.
    pub retention_micros: Option<i64>,
    pub retention_bytes: Option<u64>,
    pub delete_retention_micros: i64,
    pub min_compaction_lag_micros: i64,
}

impl Settings {
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
            return Err(format!("the embedded log only knows message.timestamp.type=LogAppendTime: value={kind:?}"));
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
struct Row {
    id: u32,
    partitions: i32,
    replication: i32,
    settings: BTreeMap<String, String>,
}

impl Topic {
    pub fn spec(&self) -> TopicSpec {
        TopicSpec {
            name: Arc::clone(&self.name),
            partitions: self.partition_count(),
            replication: self.replication,
            settings: self.settings().all,
        }
    }

    pub fn settings(&self) -> Settings {
        self.settings.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// `max.message.bytes`, and whether every record needs a key.
    pub fn limits(&self) -> (usize, bool) {
        let settings = self.settings.read().unwrap_or_else(PoisonError::into_inner);
        (settings.max_message_bytes, settings.compact)
    }

    pub fn partitions(&self) -> Vec<Arc<Partition>> {
        self.partitions.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn partition(&self, partition: i32) -> Option<Arc<Partition>> {
        let index = usize::try_from(partition).ok()?;
        self.partitions.read().unwrap_or_else(PoisonError::into_inner).get(index).cloned()
    }

    pub fn partition_count(&self) -> i32 {
        self.partitions.read().unwrap_or_else(PoisonError::into_inner).len() as i32
    }

    fn row(&self, partitions: i32, settings: &BTreeMap<String, String>) -> Vec<u8> {
        let row = Row { id: self.id, partitions, replication: self.replication, settings: settings.clone() };
        serde_json::to_vec(&row).expect("a map of strings is always JSON")
    }
}

#[derive(Debug, Default)]
pub struct Topics {
    by_name: ByName<Arc<Topic>>,
}

impl Topics {
    /// All topics of the store, and the newest stamp of all partitions.
    pub fn load(store: &Store) -> Result<(Self, EventTime)> {
        let (mut by_name, mut newest) = (ByName::default(), EventTime::MIN);
        for (key, value) in store.meta_with_prefix(b"t")? {
            let damaged = |why: &str| {
                let what = format!("opening the embedded log in {}", store.dir().display());
                BusError::new(Remedy::Stop, what, damaged(store.dir(), why))
            };
            let name = std::str::from_utf8(&key[1..]).map_err(|_| damaged("a topic has no readable name"))?;
            let name: Arc<str> = name.into();
            let row: Row =
                serde_json::from_slice(&value).map_err(|error| damaged(&format!("topic {name} is unreadable: {error}")))?;
            let settings = Settings::parse(row.settings).map_err(|why| damaged(&format!("topic {name}: {why}")))?;
            let mut partitions = Vec::new();
            for partition in 0..row.partitions {
                let end = store.meta(&end_key(row.id, partition))?;
                let end = end.as_deref().and_then(decode_end).unwrap_or((0, EventTime::MIN));
                let low = store.meta(&low_key(row.id, partition))?.as_deref().and_then(decode_i64).unwrap_or(0);
                newest = newest.max(end.1);
                partitions.push(Arc::new(Partition::new(row.id, TopicPartition::new(Arc::clone(&name), partition), low, end)));
            }
            by_name.insert(
                Arc::clone(&name),
                Arc::new(Topic {
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

    pub fn get(&self, name: &str) -> Option<Arc<Topic>> {
        self.by_name.get(name).cloned()
    }

    /// In the order of their names.
    pub fn all(&self) -> impl Iterator<Item = &Arc<Topic>> {
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

pub fn create(shared: &Shared, spec: &TopicSpec) -> Result<()> {
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
    let settings = Settings::parse(spec.settings.clone()).map_err(refuse)?;
    // Taken first everywhere, so that ids are unique.
    let mut appender = lock(&shared.appender);
    let mut topics = shared.topics.write().unwrap_or_else(PoisonError::into_inner);
    if topics.by_name.contains_key(&spec.name) {
        return Err(refuse("it exists already".into()));
    }
    let id = appender.take_topic_id();
    let partitions = (0..spec.partitions)
        .map(|partition| Arc::new(Partition::empty(id, TopicPartition::new(Arc::clone(&spec.name), partition))))
        .collect();
    let topic = Topic {
        id,
        name: Arc::clone(&spec.name),
        replication: spec.replication,
        settings: RwLock::new(settings),
        partitions: RwLock::new(partitions),
    };
    let mut changes = Changes::default();
    changes.put_meta(topic_key(&spec.name), topic.row(spec.partitions, &spec.settings));
    shared.store.commit(changes, Survives::PowerCut)?;
    topics.by_name.insert(Arc::clone(&spec.name), Arc::new(topic));
    drop((topics, appender));
    shared.generation.fetch_add(1, Ordering::Release);
    shared.news.tell();
    Ok(())
}

pub fn alter(shared: &Shared, name: &str, settings: &BTreeMap<String, String>) -> Result<()> {
    let topic = shared.topic(name)?;
    let appender = lock(&shared.appender);
    let mut all = topic.settings().all;
    all.extend(settings.iter().map(|(name, value)| (name.clone(), value.clone())));
    let parsed = Settings::parse(all.clone())
        .map_err(|detail| BusError::new(Remedy::Stop, format!("changing settings of topic {name}"), detail))?;
    let mut changes = Changes::default();
    changes.put_meta(topic_key(name), topic.row(topic.partition_count(), &all));
    shared.store.commit(changes, Survives::PowerCut)?;
    *topic.settings.write().unwrap_or_else(PoisonError::into_inner) = parsed;
    drop(appender);
    Ok(())
}

pub fn add_partitions(shared: &Shared, name: &str, partitions: i32) -> Result<()> {
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
    present.extend((count..partitions).map(|partition| Arc::new(Partition::empty(topic.id, at(partition)))));
    let mut changes = Changes::default();
    changes.put_meta(topic_key(name), topic.row(partitions, &topic.settings().all));
    shared.store.commit(changes, Survives::PowerCut)?;
    *topic.partitions.write().unwrap_or_else(PoisonError::into_inner) = present;
    drop(appender);
    shared.generation.fetch_add(1, Ordering::Release);
    shared.news.tell();
    Ok(())
}
