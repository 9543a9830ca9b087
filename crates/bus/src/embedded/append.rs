//! Appending: offsets, stamps and blocks for a set of records, committed as one.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use eadt_schemas::EventTime;

use super::block::{Builder, Entry};
use super::stamps::{StampClock, Stamps};
use super::store::{Changes, Survives, block_key, end_key, position_key};
use super::topic::{Partition, Topic, encode_end};
use super::{Shared, lock};
use crate::{BusError, Outgoing, Remedy, Result, TopicPartition, partition_for_key};

/// A block is closed at this size: what a reader holds in memory of each partition.
const BLOCK_BYTES: usize = 128 << 10;
/// What Kafka adds to a lone record: batch header, lengths, attributes.
const RECORD_OVERHEAD: usize = 70;

/// Held by whoever appends: one at a time, so that offsets and stamps rise.
#[derive(Debug)]
pub struct Appender {
    pub clock: StampClock,
    next_topic_id: u32,
    /// Where keyless records go next.
    spread: u32,
}

impl Appender {
    pub fn new(stamps: Stamps, last: EventTime, next_topic_id: u32) -> Self {
        Self { clock: StampClock::new(stamps, last), next_topic_id, spread: 0 }
    }

    pub fn take_topic_id(&mut self) -> u32 {
        let id = self.next_topic_id;
        self.next_topic_id += 1;
        id
    }
}

/// Positions to be committed together with records.
#[derive(Debug, Clone, Copy)]
pub struct Positions<'a> {
    pub group: &'a str,
    pub of: &'a [(TopicPartition, i64)],
}

/// The topic of a record, checked against its limits; the partition where the record or its key says so.
pub fn admit(shared: &Shared, record: &Outgoing, last: &mut Option<Arc<Topic>>) -> Result<(Arc<Topic>, Option<i32>)> {
    let topic = match last {
        Some(topic) if topic.name == record.topic => Arc::clone(topic),
        _ => shared.topic(&record.topic)?,
    };
    *last = Some(Arc::clone(&topic));
    let refuse = |detail: String| BusError::new(Remedy::Stop, format!("appending to topic {}", record.topic), detail);
    let (max_bytes, needs_key) = topic.limits();
    let bytes = size(record) + RECORD_OVERHEAD;
    if bytes > max_bytes {
        return Err(refuse(format!("a record is larger than the topic allows: bytes={bytes} max.message.bytes={max_bytes}")));
    }
    if needs_key && record.key.is_none() {
        return Err(refuse("a compacted topic takes no record without a key".into()));
    }
    if record.headers.len() > 1000 {
        return Err(refuse(format!("a record has too many headers: headers={}", record.headers.len())));
    }
    let partitions = topic.partition_count();
    let partition = match (record.partition, &record.key) {
        (Some(partition), _) if (0..partitions).contains(&partition) => Some(partition),
        (Some(partition), _) => {
            return Err(refuse(format!("there is no such partition: partition={partition} partitions={partitions}")));
        }
        (None, Some(key)) => Some(partition_for_key(key, partitions)),
        (None, None) => None,
    };
    Ok((topic, partition))
}

/// Bytes of key, value and headers.
pub fn size(record: &Outgoing) -> usize {
    let headers: usize = record.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
    record.key.as_ref().map_or(0, bytes::Bytes::len) + record.value.as_ref().map_or(0, bytes::Bytes::len) + headers
}

struct Target<'a> {
    partition: Arc<Partition>,
    records: Vec<&'a Outgoing>,
}

/// Appends all of these records and positions, or nothing. A step burns one offset in each partition it appends to.
pub fn append(shared: &Shared, records: &[Outgoing], positions: Option<Positions<'_>>, survives: Survives) -> Result<()> {
    let mut appender = lock(&shared.appender);
    let targets = targets(shared, &mut appender, records)?;
    let now = appender.clock.stamp();
    let burnt = i64::from(positions.is_some());
    let mut changes = Changes::default();
    let mut ends = Vec::with_capacity(targets.len());
    for target in &targets {
        let partition = &target.partition;
        let (begin, stamp) = (partition.high(), partition.stamp(now));
        let before = changes.bytes();
        let mut builder = Builder::new(begin);
        for (offset, record) in (begin..).zip(&target.records) {
            if !builder.is_empty() && (builder.len() + size(record) > BLOCK_BYTES || builder.is_full()) {
                let full = std::mem::replace(&mut builder, Builder::new(offset));
                changes.put_block(block_key(partition.topic, partition.at.partition, full.base()), full.finish());
            }
            builder.push(&Entry {
                offset,
                stamp,
                key: record.key.as_deref(),
                value: record.value.as_deref(),
                headers: &record.headers,
            });
        }
        changes.put_block(block_key(partition.topic, partition.at.partition, builder.base()), builder.finish());
        let high = begin + target.records.len() as i64 + burnt;
        changes.put_meta(end_key(partition.topic, partition.at.partition), encode_end(high, stamp));
        ends.push((partition, high, stamp, (changes.bytes() - before) as i64));
    }
    if let Some(positions) = positions {
        for (at, offset) in positions.of {
            let partition = shared.partition(at)?;
            changes.put_meta(position_key(positions.group, partition.topic, at.partition), offset.to_be_bytes().to_vec());
        }
    }
    if changes.is_empty() {
        return Ok(());
    }
    shared.store.commit(changes, survives)?;
    for (partition, high, stamp, bytes) in &ends {
        partition.appended(*high, *stamp);
        let fresh = partition.fresh_bytes.load(Ordering::Relaxed);
        partition.fresh_bytes.store(fresh.saturating_add(*bytes), Ordering::Relaxed);
    }
    drop(appender);
    if !ends.is_empty() {
        shared.news.tell();
    }
    Ok(())
}

/// Records by partition, in order.
fn targets<'a>(shared: &Shared, appender: &mut Appender, records: &'a [Outgoing]) -> Result<Vec<Target<'a>>> {
    let mut targets: Vec<Target<'a>> = Vec::new();
    let mut index: HashMap<(u32, i32), usize> = HashMap::new();
    let mut last = None;
    // As the sticky partitioner does: keyless records of one append stay together.
    appender.spread = appender.spread.wrapping_add(1);
    for record in records {
        let (topic, partition) = admit(shared, record, &mut last)?;
        let partition = partition.unwrap_or_else(|| (appender.spread % topic.partition_count() as u32) as i32);
        let slot = *index.entry((topic.id, partition)).or_insert_with(|| {
            let partition = topic.partition(partition).expect("partitions are only ever added");
            targets.push(Target { partition, records: Vec::new() });
            targets.len() - 1
        });
        targets[slot].records.push(record);
    }
    Ok(targets)
}
