//! Compaction and retention.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use eadt_schemas::EventTime;

use super::block::{BlockBuilder, BlockEntry, BlockReader, HeaderNames};
use super::store::{DurabilityLevel, RECLAIMS, WriteBatch, base_of, block_key, low_key};
use super::topic::{EmbeddedPartition, TopicConfig};
use super::{EmbeddedLogState, lock};
use crate::{ConsumerRecord, Result};

/// Compaction runs once so much was appended to a partition since the last time, as Kafka waits for a dirty share.
const COMPACT_AFTER_BYTES: i64 = 64 << 10;
/// Removed bytes after which the store is asked to give their space back.
const RECLAIM_AFTER_BYTES: u64 = 32 << 20;

/// Counts of one round of maintenance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MaintenanceCounts {
    /// Records removed because a newer one has their key, or as old tombstones.
    pub compacted_records: u64,
    /// Bytes removed because of age or size.
    pub deleted_bytes: u64,
}

/// Space that is still to be given back to the disk.
#[derive(Debug)]
pub struct PendingReclaims {
    reclaims: u8,
}

impl Default for PendingReclaims {
    /// Returns the state at a start: it is unknown how much the process before had removed.
    fn default() -> Self {
        Self { reclaims: RECLAIMS }
    }
}

impl PendingReclaims {
    /// Returns whether the store is asked for space now, after so many bytes were removed.
    fn is_due(&mut self, removed_bytes: u64, is_short_of_room: impl FnOnce() -> bool) -> bool {
        if removed_bytes > 0 {
            self.reclaims = RECLAIMS;
        }
        // The store by itself rewrites only blocks that are appended to, and on a full disk nothing is appended.
        let due = removed_bytes >= RECLAIM_AFTER_BYTES || self.reclaims > 0 && is_short_of_room();
        self.reclaims = self.reclaims.saturating_sub(u8::from(due));
        due
    }
}

pub fn run(shared: &EmbeddedLogState, now: EventTime) -> Result<MaintenanceCounts> {
    let mut pending = lock(&shared.pending);
    let mut swept = SweepProgress::default();
    let refused = sweep(shared, now, &mut swept).err();
    // Also after a refusal: it may want just this space.
    if pending.is_due(swept.removed_bytes, || shared.store.is_short_of_room()) {
        shared.store.reclaim()?;
    }
    refused.map_or(Ok(swept.done), Err)
}

/// Progress of one look at all partitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct SweepProgress {
    done: MaintenanceCounts,
    /// Bytes of all blocks that were removed or replaced.
    removed_bytes: u64,
}

fn sweep(shared: &EmbeddedLogState, now: EventTime, swept: &mut SweepProgress) -> Result<()> {
    let topics: Vec<_> = {
        let topics = shared.topics.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        topics.all().cloned().collect()
    };
    let topics: Vec<_> = topics.iter().map(|topic| (topic.settings(), topic.partitions())).collect();
    // First, since it takes no room.
    for (settings, partitions) in topics.iter().filter(|(settings, _)| settings.delete) {
        for partition in partitions {
            delete(shared, partition, settings, now, swept)?;
        }
    }
    for (settings, partitions) in topics.iter().filter(|(settings, _)| settings.compact) {
        for partition in partitions {
            if partition.fresh_bytes.load(Ordering::Relaxed) >= COMPACT_AFTER_BYTES {
                partition.fresh_bytes.store(0, Ordering::Relaxed);
                // A compaction that was not finished is due again, as at a start.
                compact(shared, partition, settings, now, swept)
                    .inspect_err(|_| partition.fresh_bytes.store(i64::MAX, Ordering::Relaxed))?;
            }
        }
    }
    Ok(())
}

/// Returns the offset below which a partition's blocks are more than the limit, of their bases and sizes, newest first.
fn too_large_below(sizes: impl Iterator<Item = Result<(i64, u32)>>, limit: u64) -> Result<i64> {
    let mut total = 0;
    for row in sizes {
        let (base, bytes) = row?;
        total += u64::from(bytes);
        if total > limit {
            return Ok(base + 1);
        }
    }
    Ok(0)
}

/// Removes the oldest blocks that are past the topic's age or size.
fn delete(
    shared: &EmbeddedLogState,
    partition: &EmbeddedPartition,
    settings: &TopicConfig,
    now: EventTime,
    swept: &mut SweepProgress,
) -> Result<()> {
    let (topic, number) = (partition.topic, partition.at.partition);
    let high = partition.high();
    let too_large_below =
        settings.retention_bytes.map_or(Ok(0), |limit| too_large_below(shared.store.sizes(topic, number), limit))?;
    let mut changes = WriteBatch::for_cleanup();
    let (mut low, mut removed) = (None, 0);
    for row in shared.store.blocks(topic, number, 0, high) {
        let (key, block) = row?;
        let base = base_of(&key);
        let latest = open_block(shared, partition, base, &block)?.latest();
        let too_old = settings.retention_micros.is_some_and(|age| latest < now.plus_micros(-age));
        if !too_old && base >= too_large_below {
            low = Some(base);
            break;
        }
        removed += block.len() as u64;
        changes.remove_block(key.to_vec());
    }
    if changes.is_empty() {
        return Ok(());
    }
    let low = low.unwrap_or(high);
    changes.put_meta(low_key(topic, number), low.to_be_bytes().to_vec());
    shared.store.claim(&changes)?;
    // Set before the blocks are deleted, so that a reader is refused and never silently skips; and not before it is sure that
    // they go.
    partition.set_low(low);
    shared.store.write(changes, DurabilityLevel::Process)?;
    swept.done.deleted_bytes += removed;
    swept.removed_bytes += removed;
    Ok(())
}

/// Keeps the last record of every key.
fn compact(
    shared: &EmbeddedLogState,
    partition: &EmbeddedPartition,
    settings: &TopicConfig,
    now: EventTime,
    swept: &mut SweepProgress,
) -> Result<()> {
    let high = partition.high();
    let settled = now.plus_micros(-settings.min_compaction_lag_micros);
    let last = last_of_each_key(shared, partition, high, settled)?;
    let drop_tombstones_before = now.plus_micros(-settings.delete_retention_micros);
    let mut compacted = CompactionBatch::default();
    for row in shared.store.blocks(partition.topic, partition.at.partition, 0, high) {
        let (key, block) = row?;
        let base = base_of(&key);
        let mut records = open_block(shared, partition, base, &block)?;
        if records.latest() > settled {
            break;
        }
        let mut builder = BlockBuilder::new(base);
        let mut removed = 0;
        while let Some(record) = records.next_record().map_err(|_| shared.store.malformed_block_error(&partition.at))? {
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
        compacted.records += removed;
        compacted.bytes += block.len() as u64;
        if builder.is_empty() {
            compacted.changes.remove_block(key.to_vec());
        } else {
            // The block keeps its base: a reader that is past this base misses nothing.
            compacted.changes.put_block(block_key(partition.topic, partition.at.partition, base), builder.finish());
        }
        if compacted.changes.is_a_portion() {
            std::mem::take(&mut compacted).commit(shared, swept)?;
        }
    }
    if compacted.changes.is_empty() { Ok(()) } else { compacted.commit(shared, swept) }
}

/// Changes that the compaction commits next.
struct CompactionBatch {
    changes: WriteBatch,
    records: u64,
    bytes: u64,
}

impl Default for CompactionBatch {
    fn default() -> Self {
        Self { changes: WriteBatch::for_cleanup(), records: 0, bytes: 0 }
    }
}

impl CompactionBatch {
    fn commit(self, shared: &EmbeddedLogState, swept: &mut SweepProgress) -> Result<()> {
        shared.store.commit(self.changes, DurabilityLevel::Process)?;
        swept.done.compacted_records += self.records;
        swept.removed_bytes += self.bytes;
        Ok(())
    }
}

fn last_of_each_key(
    shared: &EmbeddedLogState,
    partition: &EmbeddedPartition,
    high: i64,
    settled: EventTime,
) -> Result<HashMap<Bytes, i64>> {
    let mut last = HashMap::new();
    for row in shared.store.blocks(partition.topic, partition.at.partition, 0, high) {
        let (key, block) = row?;
        let mut records = open_block(shared, partition, base_of(&key), &block)?;
        if records.latest() > settled {
            break;
        }
        while let Some(record) = records.next_record().map_err(|_| shared.store.malformed_block_error(&partition.at))? {
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

fn push(builder: &mut BlockBuilder, record: &ConsumerRecord) {
    let entry = BlockEntry {
        offset: record.offset,
        stamp: record.stamp,
        key: record.key.as_deref(),
        value: record.value.as_deref(),
        headers: &record.headers.to_vec(),
    };
    assert!(builder.push(&entry), "a record taken from a block fits into it");
}

fn open_block(shared: &EmbeddedLogState, partition: &EmbeddedPartition, base: i64, block: &Bytes) -> Result<BlockReader> {
    BlockReader::new(partition.at.clone(), base, block.clone(), &mut HeaderNames::default())
        .map_err(|_| shared.store.malformed_block_error(&partition.at))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicI64;

    use super::*;
    use crate::embedded::EmbeddedLog;
    use crate::embedded::append::append;
    use crate::embedded::tests::{clocked, record, topic};
    use crate::{ProducerRecord, TopicPartition};

    /// A block of one record with a key of one byte, beside its value.
    const ALONE: u64 = 15 + 22 + 1;

    fn at(millis: i64) -> EventTime {
        EventTime::from_millis(millis)
    }

    /// A log of one topic.
    struct Setup {
        _dir: tempfile::TempDir,
        log: EmbeddedLog,
        millis: Arc<AtomicI64>,
    }

    impl Setup {
        fn new(partitions: i32, settings: &[(&str, &str)]) -> Self {
            let (dir, log, millis) = clocked();
            topic(&log, "t", partitions, settings);
            Self { _dir: dir, log, millis }
        }

        fn partition(&self, partition: i32) -> Arc<EmbeddedPartition> {
            self.log.shared.partition(&TopicPartition::new("t", partition)).unwrap()
        }

        /// One block, appended at this time.
        fn append(&self, millis: i64, partition: i32, rows: &[(&str, Option<&str>)]) {
            self.millis.store(millis, Ordering::Relaxed);
            let of = |(key, value): &(&str, Option<&str>)| ProducerRecord {
                partition: Some(partition),
                value: value.map(|value| value.to_owned().into()),
                ..record("t", key, "")
            };
            let records: Vec<_> = rows.iter().map(of).collect();
            append(&self.log.shared, &records, None, DurabilityLevel::Process).unwrap();
        }

        fn sweep(&self, millis: i64) -> (MaintenanceCounts, u64) {
            let mut swept = SweepProgress::default();
            sweep(&self.log.shared, at(millis), &mut swept).unwrap();
            (swept.done, swept.removed_bytes)
        }

        /// Continues as after so many appended bytes.
        fn fresh(&self, bytes: i64) {
            for partition in self.log.shared.topic("t").unwrap().partitions() {
                partition.fresh_bytes.store(bytes, Ordering::Relaxed);
            }
        }

        /// Returns offsets and keys of the kept records.
        fn kept(&self, partition: i32) -> Vec<(i64, String)> {
            let (partition, mut kept) = (self.partition(partition), Vec::new());
            for row in self.log.shared.store.blocks(partition.topic, partition.at.partition, 0, i64::MAX) {
                let (key, block) = row.unwrap();
                let mut records = open_block(&self.log.shared, &partition, base_of(&key), &block).unwrap();
                while let Some(record) = records.next_record().unwrap() {
                    kept.push((record.offset, String::from_utf8_lossy(&record.key.unwrap_or_default()).into_owned()));
                }
            }
            kept
        }
    }

    const NOTHING: (MaintenanceCounts, u64) = (MaintenanceCounts { compacted_records: 0, deleted_bytes: 0 }, 0);

    #[test]
    fn a_block_goes_once_its_newest_record_is_older_than_the_topic_keeps() {
        let log = Setup::new(2, &[("retention.ms", "60000")]);
        log.append(0, 0, &[("a", Some("1234567890"))]);
        log.append(0, 1, &[("a", Some("123"))]);
        log.append(1000, 0, &[("a", Some("12345"))]);
        assert_eq!(log.sweep(60_000), NOTHING, "exactly of that age");
        let bytes = ALONE + 10 + ALONE + 3;
        assert_eq!(log.sweep(60_001), (MaintenanceCounts { compacted_records: 0, deleted_bytes: bytes }, bytes));
        assert_eq!((log.partition(0).low(), log.partition(1).low()), (1, 1));
        assert_eq!((log.kept(0), log.kept(1)), (vec![(1, "a".to_owned())], vec![]));
        assert_eq!(log.sweep(60_001), NOTHING);
        assert_eq!(log.sweep(61_001).1, ALONE + 5);
        // Nothing is reported to be there, and offsets go on.
        assert_eq!((log.partition(0).low(), log.partition(0).high()), (2, 2));
    }

    #[test]
    fn the_newest_blocks_are_kept_while_they_are_no_more_than_the_limit() {
        let sizes = [(20, 5), (10, 3), (4, 7), (0, 1)];
        for (limit, below) in [(16, 0), (15, 1), (14, 5), (8, 5), (7, 11), (5, 11), (4, 21), (0, 21)] {
            assert_eq!(too_large_below(sizes.iter().copied().map(Ok), limit).unwrap(), below, "{limit}");
        }
    }

    #[test]
    fn a_partition_keeps_as_many_bytes_as_its_topic_sets() {
        let limit = (2 * (ALONE + 10)).to_string();
        let log = Setup::new(1, &[("retention.ms", "-1"), ("retention.bytes", &limit)]);
        for _ in 0..3 {
            log.append(0, 0, &[("a", Some("1234567890"))]);
        }
        assert_eq!(log.sweep(0).0.deleted_bytes, ALONE + 10);
        assert_eq!(log.partition(0).low(), 1);
        log.append(0, 0, &[("a", Some(""))]);
        assert_eq!(log.sweep(0).0.deleted_bytes, ALONE + 10);
        assert_eq!(log.kept(0).len(), 2);
    }

    #[test]
    fn of_each_key_the_last_record_is_kept_of_all_that_are_as_old_as_the_lag() {
        let log = Setup::new(1, &[("cleanup.policy", "compact"), ("min.compaction.lag.ms", "1000")]);
        log.append(0, 0, &[("a", Some("first"))]);
        log.append(1000, 0, &[("a", Some("last"))]);
        log.append(1500, 0, &[("b", Some("first"))]);
        log.append(1500, 0, &[("b", Some("last"))]);
        assert_eq!(log.sweep(1999), NOTHING, "too young");
        log.fresh(COMPACT_AFTER_BYTES);
        assert_eq!(log.sweep(2000), (MaintenanceCounts { compacted_records: 1, deleted_bytes: 0 }, ALONE + 5));
        assert_eq!(log.kept(0), [(1, "a".to_owned()), (2, "b".to_owned()), (3, "b".to_owned())]);
    }

    #[test]
    fn a_block_is_rewritten_without_what_is_superseded_and_goes_where_nothing_is_left() {
        let log = Setup::new(2, &[("cleanup.policy", "compact")]);
        for partition in [0, 1] {
            log.append(0, partition, &[("a", Some("1")), ("b", Some("2")), ("a", Some("3"))]);
            log.append(0, partition, &[("c", Some("4"))]);
            log.append(0, partition, &[("c", Some("5")), ("a", Some("6"))]);
        }
        let first = 15 + 3 * (22 + 2);
        let done = MaintenanceCounts { compacted_records: 2 * 3, deleted_bytes: 0 };
        assert_eq!(log.sweep(0), (done, 2 * (first + ALONE + 1)), "whole blocks are replaced");
        for partition in [0, 1] {
            assert_eq!(log.kept(partition), [(1, "b".to_owned()), (4, "c".to_owned()), (5, "a".to_owned())]);
        }
        log.fresh(COMPACT_AFTER_BYTES);
        assert_eq!(log.sweep(0), NOTHING, "nothing is superseded");
    }

    #[test]
    fn a_tombstone_goes_once_it_is_older_than_readers_are_given_and_a_value_stays() {
        let log = Setup::new(1, &[("cleanup.policy", "compact"), ("delete.retention.ms", "5000")]);
        log.append(0, 0, &[("a", None), ("b", Some("old"))]);
        assert_eq!(log.sweep(5000), NOTHING, "exactly of that age");
        log.fresh(COMPACT_AFTER_BYTES);
        assert_eq!(log.sweep(5001).0.compacted_records, 1);
        assert_eq!(log.kept(0), [(1, "b".to_owned())]);
    }

    #[test]
    fn a_partition_is_compacted_again_once_enough_was_appended_to_it() {
        let log = Setup::new(1, &[("cleanup.policy", "compact")]);
        log.append(0, 0, &[("a", Some("1")), ("a", Some("2"))]);
        for (bytes, compacted) in [(0, 0), (COMPACT_AFTER_BYTES - 1, 0), (COMPACT_AFTER_BYTES, 1)] {
            log.fresh(bytes);
            assert_eq!(log.sweep(0).0.compacted_records, compacted, "{bytes}");
        }
        assert_eq!(log.partition(0).fresh_bytes.load(Ordering::Relaxed), 0, "counted anew");
        log.append(0, 0, &[("a", Some("3"))]);
        log.fresh(COMPACT_AFTER_BYTES + 1);
        assert_eq!(log.sweep(0).0.compacted_records, 1);
    }

    #[test]
    fn space_is_asked_for_once_32_mib_were_removed_and_as_often_as_it_takes_where_room_is_short() {
        let enough = 32 * 1024 * 1024;
        // Removals of the run before count as well.
        for mut pending in [PendingReclaims::default(), PendingReclaims { reclaims: 0 }] {
            let due = [0, enough - 1, enough, enough + 1, 0].map(|removed| pending.is_due(removed, || false));
            assert_eq!(due, [false, false, true, true, false], "with room");
        }
        let mut pending = PendingReclaims { reclaims: 0 };
        let due = [0, 1, 0, 0, 0, enough, 0, 5, 0, 0, 0].map(|removed| pending.is_due(removed, || true));
        assert_eq!(due, [false, true, true, true, false, true, true, true, true, true, false], "without");
        let mut pending = PendingReclaims::default();
        assert_eq!([0; 4].map(|removed| pending.is_due(removed, || true)), [true, true, true, false], "after a start");
    }
}
