//! Compaction and retention.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use eadt_schemas::EventTime;

use super::Shared;
use super::block::{Builder, Entry, Names, Walk};
use super::store::{Changes, Survives, base_of, block_key, low_key};
use super::topic::{Partition, Settings};
use crate::{Record, Result};

/// Compaction runs once so much was appended to a partition since the last time, as Kafka waits for a dirty share.
const COMPACT_AFTER_BYTES: i64 = 64 << 10;
/// Rewritten blocks are committed in portions of this size.
const PORTION_BYTES: u64 = 4 << 20;
/// Removed bytes after which the store is asked to give their space back.
const RECLAIM_AFTER_BYTES: u64 = 32 << 20;

/// What one round of maintenance did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Maintained {
    /// Records removed because a newer one has their key, or as old tombstones.
    pub compacted_records: u64,
    /// Bytes removed because of age or size.
    pub deleted_bytes: u64,
}

pub fn run(shared: &Shared, now: EventTime) -> Result<Maintained> {
    let topics: Vec<_> = {
        let topics = shared.topics.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        topics.all().cloned().collect()
    };
    let mut done = Maintained::default();
    let mut removed_bytes = 0;
    for topic in topics {
        let settings = topic.settings();
        for partition in topic.partitions() {
            if settings.delete {
                let bytes = delete(shared, &partition, &settings, now)?;
                done.deleted_bytes += bytes;
                removed_bytes += bytes;
            }
            if settings.compact {
                let (records, bytes) = compact(shared, &partition, &settings, now)?;
                done.compacted_records += records;
                removed_bytes += bytes;
            }
        }
    }
    if removed_bytes >= RECLAIM_AFTER_BYTES {
        shared.store.reclaim()?;
    }
    Ok(done)
}

/// Removes the oldest blocks that are past the topic's age or size; the bytes removed.
fn delete(shared: &Shared, partition: &Partition, settings: &Settings, now: EventTime) -> Result<u64> {
    let (topic, number) = (partition.topic, partition.at.partition);
    let high = partition.high();
    // Blocks below this base make the partition too large.
    let mut too_large_below = 0;
    if let Some(limit) = settings.retention_bytes {
        let mut kept = 0;
        for row in shared.store.sizes(topic, number) {
            let (base, bytes) = row?;
            kept += u64::from(bytes);
            if kept > limit && base < high {
                too_large_below = base + 1;
                break;
            }
        }
    }
    let mut changes = Changes::default();
    let (mut low, mut removed) = (None, 0);
    for row in shared.store.blocks(topic, number, 0, high) {
        let (key, block) = row?;
        let base = base_of(&key);
        let latest = walk(shared, partition, base, &block)?.latest();
        let too_old = settings.retention_micros.is_some_and(|age| latest < now.plus_micros(-age));
        if !too_old && base >= too_large_below {
            low = Some(base);
            break;
        }
        removed += block.len() as u64;
        changes.remove_block(key.to_vec());
    }
    if removed == 0 {
        return Ok(0);
    }
    let low = low.unwrap_or(high);
    changes.put_meta(low_key(topic, number), low.to_be_bytes().to_vec());
    // Told before the blocks go, so that a reader is refused and never silently skips.
    partition.set_low(low);
    shared.store.commit(changes, Survives::Process)?;
    Ok(removed)
}

/// Keeps the last record of every key; records and bytes removed.
fn compact(shared: &Shared, partition: &Partition, settings: &Settings, now: EventTime) -> Result<(u64, u64)> {
    if partition.fresh_bytes.load(Ordering::Relaxed) < COMPACT_AFTER_BYTES {
        return Ok((0, 0));
    }
    partition.fresh_bytes.store(0, Ordering::Relaxed);
    let high = partition.high();
    let settled = now.plus_micros(-settings.min_compaction_lag_micros);
    let last = last_of_each_key(shared, partition, high, settled)?;
    let drop_tombstones_before = now.plus_micros(-settings.delete_retention_micros);
    let (mut removed_records, mut removed_bytes) = (0, 0);
    let mut changes = Changes::default();
    for row in shared.store.blocks(partition.topic, partition.at.partition, 0, high) {
        let (key, block) = row?;
        let base = base_of(&key);
        let mut records = walk(shared, partition, base, &block)?;
        if records.latest() > settled {
            break;
        }
        let mut builder = Builder::new(base);
        let mut removed = 0;
        while let Some(record) = records.next_record().map_err(|_| shared.store.malformed(&partition.at))? {
            let superseded = record.key.as_ref().is_none_or(|key| last.get(key).is_none_or(|last| record.offset < *last));
            let forgotten = record.value.is_none() && record.stamp < drop_tombstones_before;
            if superseded || forgotten {
                removed += 1;
            } else {
                push(&mut builder, &record);
            }
        }
        if removed == 0 {
            continue;
        }
        removed_records += removed;
        removed_bytes += block.len() as u64;
        if builder.is_empty() {
            changes.remove_block(key.to_vec());
        } else {
            // In place: a reader that is past this base misses nothing.
            changes.put_block(block_key(partition.topic, partition.at.partition, base), builder.finish());
        }
        if changes.bytes() >= PORTION_BYTES {
            shared.store.commit(std::mem::take(&mut changes), Survives::Process)?;
        }
    }
    if !changes.is_empty() {
        shared.store.commit(changes, Survives::Process)?;
    }
    Ok((removed_records, removed_bytes))
}

fn last_of_each_key(shared: &Shared, partition: &Partition, high: i64, settled: EventTime) -> Result<HashMap<Bytes, i64>> {
    let mut last = HashMap::new();
    for row in shared.store.blocks(partition.topic, partition.at.partition, 0, high) {
        let (key, block) = row?;
        let mut records = walk(shared, partition, base_of(&key), &block)?;
        if records.latest() > settled {
            break;
        }
        while let Some(record) = records.next_record().map_err(|_| shared.store.malformed(&partition.at))? {
            if let Some(key) = record.key {
                match last.get_mut(&key) {
                    Some(offset) => *offset = record.offset,
                    // A copy: a slice would hold its whole block.
                    None => drop(last.insert(Bytes::copy_from_slice(&key), record.offset)),
                }
            }
        }
    }
    Ok(last)
}

fn push(builder: &mut Builder, record: &Record) {
    let entry = Entry {
        offset: record.offset,
        stamp: record.stamp,
        key: record.key.as_deref(),
        value: record.value.as_deref(),
        headers: &record.headers.to_vec(),
    };
    assert!(builder.push(&entry), "a record taken from a block fits into it");
}

fn walk(shared: &Shared, partition: &Partition, base: i64, block: &Bytes) -> Result<Walk> {
    Walk::new(partition.at.clone(), base, block.clone(), &mut Names::default()).map_err(|_| shared.store.malformed(&partition.at))
}
