//! Appending: offsets, stamps and blocks for a set of records, committed as one.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use eadt_schemas::EventTime;

use super::block::{BlockBuilder, BlockEntry};
use super::stamps::{StampClock, StampSource};
use super::store::{DurabilityLevel, WriteBatch, block_key, end_key, position_key};
use super::topic::{EmbeddedPartition, EmbeddedTopic, encode_end};
use super::{EmbeddedLogState, lock};
use crate::{BusError, ProducerRecord, Remedy, Result, TopicPartition, chaos, partition_for_key};

/// Bytes that Kafka adds to a lone record: batch header, lengths, attributes.
const RECORD_OVERHEAD: usize = 70;

/// State of the appender. One thread appends at a time, so that offsets and stamps rise.
#[derive(Debug)]
pub struct AppendState {
    pub clock: StampClock,
    next_topic_id: u32,
    /// Counter that spreads keyless records over the partitions.
    spread: u32,
}

impl AppendState {
    pub fn new(stamps: StampSource, last: EventTime, next_topic_id: u32) -> Self {
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
pub struct GroupPositions<'a> {
    pub group: &'a str,
    pub of: &'a [(TopicPartition, i64)],
}

/// Returns the topic of a record, checked against its limits, and the partition if the record or its key determines it.
pub fn check_record(
    shared: &EmbeddedLogState,
    record: &ProducerRecord,
    last: &mut Option<Arc<EmbeddedTopic>>,
) -> Result<(Arc<EmbeddedTopic>, Option<i32>)> {
    let topic = match last {
        Some(topic) if topic.name == record.topic => Arc::clone(topic),
        _ => shared.topic(&record.topic)?,
    };
    *last = Some(Arc::clone(&topic));
    let refuse = |detail: String| BusError::new(Remedy::Stop, format!("appending to topic {}", record.topic), detail);
    let (max_bytes, needs_key) = topic.limits();
    let bytes = record.size() + RECORD_OVERHEAD;
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
            return Err(refuse(format!("the partition does not exist: partition={partition} partitions={partitions}")));
        }
        (None, Some(key)) => Some(partition_for_key(key, partitions)),
        (None, None) => None,
    };
    Ok((topic, partition))
}

struct AppendTarget<'a> {
    partition: Arc<EmbeddedPartition>,
    records: Vec<&'a ProducerRecord>,
}

/// Appends all of these records and positions, or nothing. A step burns one offset in each partition it appends to.
pub fn append(
    shared: &EmbeddedLogState,
    records: &[ProducerRecord],
    positions: Option<GroupPositions<'_>>,
    survives: DurabilityLevel,
) -> Result<()> {
    let mut appender = lock(&shared.appender);
    let targets = targets(shared, &mut appender, records)?;
    let now = appender.clock.stamp();
    let burnt = i64::from(positions.is_some());
    let mut changes = WriteBatch::default();
    let mut ends = Vec::with_capacity(targets.len());
    for target in &targets {
        let partition = &target.partition;
        let (begin, stamp) = (partition.high(), partition.append_stamp(now));
        let before = changes.bytes();
        let mut builder = BlockBuilder::new(begin);
        for (offset, record) in (begin..).zip(&target.records) {
            if !builder.has_room_for(record.size()) {
                let full = std::mem::replace(&mut builder, BlockBuilder::new(offset));
                changes.put_block(block_key(partition.topic, partition.at.partition, full.base()), full.finish());
            }
            builder.push(&BlockEntry {
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
        if chaos::is_off("atomic-steps") {
            shared.store.commit(std::mem::take(&mut changes), survives)?;
        }
    }
    if let Some(positions) = positions {
        for (at, offset) in positions.of {
            let partition = shared.partition(at)?;
            changes.put_meta(position_key(positions.group, partition.topic, at.partition), offset.to_be_bytes().to_vec());
        }
    }
    if changes.is_empty() && ends.is_empty() {
        return Ok(());
    }
    shared.store.commit(changes, survives)?;
    let visible = shared.visible.write().unwrap_or_else(PoisonError::into_inner);
    for (partition, high, stamp, bytes) in &ends {
        partition.on_append(*high, *stamp);
        let fresh = partition.fresh_bytes.load(Ordering::Relaxed);
        partition.fresh_bytes.store(fresh.saturating_add(*bytes), Ordering::Relaxed);
    }
    drop((visible, appender));
    if !ends.is_empty() {
        shared.append_notifier.notify();
    }
    Ok(())
}

/// Returns records by partition, in order.
fn targets<'a>(
    shared: &EmbeddedLogState,
    appender: &mut AppendState,
    records: &'a [ProducerRecord],
) -> Result<Vec<AppendTarget<'a>>> {
    let mut targets: Vec<AppendTarget<'a>> = Vec::new();
    let mut index: HashMap<(u32, i32), usize> = HashMap::new();
    let mut last = None;
    // Records without a key of one append stay together, as with the sticky partitioner.
    appender.spread = appender.spread.wrapping_add(1);
    for record in records {
        let (topic, partition) = check_record(shared, record, &mut last)?;
        let partition = partition.unwrap_or_else(|| (appender.spread % topic.partition_count() as u32) as i32);
        let slot = *index.entry((topic.id, partition)).or_insert_with(|| {
            let partition = topic.partition(partition).expect("partitions are only ever added");
            targets.push(AppendTarget { partition, records: Vec::new() });
            targets.len() - 1
        });
        targets[slot].records.push(record);
    }
    Ok(targets)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RecordHeader;
    use crate::embedded::EmbeddedLog;
    use crate::embedded::store::base_of;
    use crate::embedded::tests::{log, record, topic};

    /// Base offsets and sizes of a partition's blocks.
    fn blocks(log: &EmbeddedLog, topic: &str, partition: i32) -> Vec<(i64, usize)> {
        let partition = log.shared.partition(&TopicPartition::new(topic, partition)).unwrap();
        let rows = log.shared.store.blocks(partition.topic, partition.at.partition, 0, i64::MAX);
        rows.map(|row| row.map(|(key, block)| (base_of(&key), block.len())).unwrap()).collect()
    }

    fn steps(log: &EmbeddedLog, records: &[ProducerRecord]) -> Result<()> {
        append(&log.shared, records, Some(GroupPositions { group: "g", of: &[] }), DurabilityLevel::Process)
    }

    #[test]
    fn an_append_is_one_block_of_each_partition_and_several_where_it_is_large() {
        let (_dir, log) = log();
        topic(&log, "t", 2, &[]);
        let of = |partition, bytes: usize| ProducerRecord { partition: Some(partition), ..record("t", "k", &"x".repeat(bytes)) };
        steps(&log, &[of(0, 10), of(1, 100), of(0, 20)]).unwrap();
        // 15 bytes a block, 22 a record, 1 of its key. The step burns an offset.
        assert_eq!(blocks(&log, "t", 0), [(0, 15 + 2 * 23 + 30)]);
        assert_eq!(blocks(&log, "t", 1), [(0, 15 + 23 + 100)]);
        steps(&log, &[of(0, 100_000), of(0, 31_000), of(0, 200_000), of(0, 10)]).unwrap();
        let large: Vec<_> = blocks(&log, "t", 0).into_iter().skip(1).collect();
        assert_eq!(large, [(3, 15 + 2 * 23 + 131_000), (5, 15 + 23 + 200_000), (6, 15 + 23 + 10)]);
    }

    #[test]
    fn each_partition_counts_the_bytes_that_were_appended_to_it() {
        let (_dir, log) = log();
        topic(&log, "t", 2, &[]);
        let partitions = log.shared.topic("t").unwrap().partitions();
        for partition in &partitions {
            partition.fresh_bytes.store(0, Ordering::Relaxed);
        }
        let of = |partition, bytes: usize| ProducerRecord { partition: Some(partition), ..record("t", "k", &"x".repeat(bytes)) };
        for _ in 0..2 {
            steps(&log, &[of(0, 1000), of(1, 50)]).unwrap();
        }
        let fresh: Vec<_> = partitions.iter().map(|partition| partition.fresh_bytes.load(Ordering::Relaxed)).collect();
        assert_eq!(fresh, [2 * 1038, 2 * 88]);
    }

    #[test]
    fn keyless_records_of_one_append_stay_together_and_the_next_ones_go_to_the_next_partition() {
        let (_dir, log) = log();
        topic(&log, "t", 3, &[]);
        let keyless = ProducerRecord { key: None, ..record("t", "", "v") };
        let highs = || [0, 1, 2].map(|p| log.shared.partition(&TopicPartition::new("t", p)).unwrap().high());
        for all in [[0, 2, 0], [0, 2, 2], [2, 2, 2], [2, 4, 2], [2, 4, 4], [4, 4, 4]] {
            append(&log.shared, &[keyless.clone(), keyless.clone()], None, DurabilityLevel::Process).unwrap();
            assert_eq!(highs(), all);
        }
    }

    #[test]
    fn a_record_may_be_as_large_as_its_topic_allows_with_what_kafka_adds_to_it() {
        let (_dir, log) = log();
        topic(&log, "t", 1, &[("max.message.bytes", "1000")]);
        let with = |key: usize, value: usize, name: usize, header: usize| ProducerRecord {
            headers: vec![("n".repeat(name).into(), "h".repeat(header).into()), ("".into(), "".into())],
            ..record("t", &"k".repeat(key), &"v".repeat(value))
        };
        // 70 bytes are added.
        for (key, value, name, header) in [(13, 900, 5, 12), (0, 913, 17, 0), (917, 0, 0, 13)] {
            assert_eq!(with(key, value, name, header).size(), 930);
            assert!(check_record(&log.shared, &with(key, value, name, header), &mut None).is_ok());
            let error = check_record(&log.shared, &with(key, value + 1, name, header), &mut None).unwrap_err();
            assert_eq!(error.remedy, Remedy::Stop);
            assert_eq!(error.detail, "a record is larger than the topic allows: bytes=1001 max.message.bytes=1000");
        }
    }

    #[test]
    fn a_record_has_at_most_a_thousand_headers() {
        let (_dir, log) = log();
        topic(&log, "t", 1, &[]);
        let with = |count| ProducerRecord { headers: vec![RecordHeader::default(); count], ..record("t", "k", "v") };
        assert!(check_record(&log.shared, &with(1000), &mut None).is_ok());
        assert_eq!(
            check_record(&log.shared, &with(1001), &mut None).unwrap_err().detail,
            "a record has too many headers: headers=1001"
        );
        assert!(check_record(&log.shared, &with(2000), &mut None).is_err());
    }

    #[test]
    fn only_a_compacted_topic_asks_for_keys() {
        let (_dir, log) = log();
        topic(&log, "compacted", 1, &[("cleanup.policy", "compact")]);
        topic(&log, "plain", 1, &[]);
        for (topic, keyed, taken) in
            [("compacted", true, true), ("compacted", false, false), ("plain", true, true), ("plain", false, true)]
        {
            let record = ProducerRecord { key: keyed.then(|| "k".into()), ..record(topic, "", "v") };
            assert_eq!(check_record(&log.shared, &record, &mut None).is_ok(), taken, "{topic} {keyed}");
        }
    }

    #[test]
    fn a_record_goes_to_the_partition_that_it_names_or_that_of_its_key() {
        let (_dir, log) = log();
        topic(&log, "t", 3, &[]);
        let admitted = |partition, key: Option<&'static str>| {
            let record = ProducerRecord { partition, key: key.map(Into::into), ..record("t", "", "v") };
            check_record(&log.shared, &record, &mut None).map(|(_, partition)| partition).map_err(|error| error.detail)
        };
        for named in 0..3 {
            assert_eq!(admitted(Some(named), Some("k")), Ok(Some(named)));
        }
        for missing in [-1, 3] {
            let detail = format!("the partition does not exist: partition={missing} partitions=3");
            assert_eq!(admitted(Some(missing), Some("k")), Err(detail));
        }
        assert_eq!(admitted(None, Some("abc")), Ok(Some(partition_for_key(b"abc", 3))));
        assert_eq!(admitted(None, None), Ok(None));
    }

    #[test]
    fn records_of_one_append_may_alternate_between_topics() {
        let (_dir, log) = log();
        topic(&log, "a", 1, &[("max.message.bytes", "100")]);
        topic(&log, "b", 2, &[]);
        let of = |topic: &str, value: &str| ProducerRecord { partition: Some(0), ..record(topic, "k", value) };
        let large = "x".repeat(200);
        steps(&log, &[of("a", "1"), of("b", &large), of("a", "3"), of("b", &large), of("b", "5")]).unwrap();
        let high = |topic: &str| log.shared.partition(&TopicPartition::new(topic, 0)).unwrap().high();
        assert_eq!((high("a"), high("b")), (2 + 1, 3 + 1));
    }
}
