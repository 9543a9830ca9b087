//! Decisions that are not finished with, by partition, and the positions to commit.
//!
//! The decisions of a workload are finished in order. One that waits for its turn or for a checkpoint holds back only its workload;
//! one that the cluster did not take holds back its partition. A partition is committed up to its first decision that is not
//! finished. What was finished behind it is read again after a restart, and recognised by its outcome in the log.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use eadt_bus::{BusError, ConsumerRecord, GroupMember, TopicPartition};
use eadt_schemas::envelope::header;
use eadt_schemas::v1::{DeadLetterReason, Decision};
use eadt_schemas::{DecodeError, EventType, decode};

/// Decisions of one partition that wait; beyond it the partition is paused, so memory is bounded.
pub const MAX_QUEUED: usize = 1000;

/// A record of `decisions.v1` that is not finished with.
#[derive(Debug)]
pub struct QueuedDecision {
    pub record: ConsumerRecord,
    /// `Err`: unreadable.
    pub decision: Result<Decision, DecodeError>,
    /// Failed attempts so far.
    pub attempts: u32,
    /// Error of the last attempt.
    pub trouble: Option<String>,
    pub not_before: Option<Instant>,
}

impl QueuedDecision {
    fn read(record: ConsumerRecord) -> Self {
        let decision = match (record.header(header::TYPE), &record.value) {
            (Some(kind), _) if kind != EventType::Decision.name() => Err(DecodeError {
                reason: DeadLetterReason::UnexpectedType,
                field: None,
                detail: format!("{kind} is not {}", EventType::Decision.name()),
            }),
            (_, None) => {
                let detail = "a decision without a value".into();
                Err(DecodeError { reason: DeadLetterReason::Malformed, field: None, detail })
            }
            (_, Some(value)) => decode(value),
        };
        Self { record, decision, attempts: 0, trouble: None, not_before: None }
    }
}

#[derive(Debug, Default)]
struct AssignedPartition {
    queued: VecDeque<QueuedDecision>,
    /// First offset that is not finished with.
    position: i64,
    /// Offset after the last decision that is finished with, whatever waits before it.
    finished_end: i64,
    committed: i64,
    paused: bool,
}

pub struct DecisionQueue {
    topic: Arc<str>,
    partitions: BTreeMap<i32, AssignedPartition>,
}

impl DecisionQueue {
    pub fn new(topic: Arc<str>) -> Self {
        Self { topic, partitions: BTreeMap::new() }
    }

    pub fn is_empty(&self) -> bool {
        self.partitions.is_empty()
    }

    /// Returns the number of assigned partitions.
    pub fn len(&self) -> usize {
        self.partitions.len()
    }

    pub fn has_partition(&self, partition: i32) -> bool {
        self.partitions.contains_key(&partition)
    }

    pub fn partitions(&self) -> Vec<i32> {
        self.partitions.keys().copied().collect()
    }

    pub fn add_partition(&mut self, partition: i32, start: i64) {
        self.partitions.insert(
            partition,
            AssignedPartition { position: start, finished_end: start, committed: start, ..Default::default() },
        );
    }

    pub fn remove_partition(&mut self, partition: i32) {
        self.partitions.remove(&partition);
    }

    /// Adds a record, if its partition is assigned.
    pub fn push(&mut self, record: ConsumerRecord) {
        if let Some(assigned) = self.partitions.get_mut(&record.at.partition) {
            assigned.queued.push_back(QueuedDecision::read(record));
        }
    }

    /// Takes the first decision of a partition, from a place on, that may be tried: none of a workload that is held back, and an
    /// unreadable one only if nothing waits before it. It is to be [finished](Self::finish) or [put back](Self::put_back).
    pub fn take(&mut self, partition: i32, from: usize, held: &BTreeSet<String>) -> Option<(usize, QueuedDecision)> {
        let queued = &mut self.partitions.get_mut(&partition)?.queued;
        let is_open = |(place, queued): &(usize, &QueuedDecision)| match &queued.decision {
            Ok(decision) => !held.contains(&decision.workload),
            Err(_) => *place == 0,
        };
        let (place, _) = queued.iter().enumerate().skip(from).find(is_open)?;
        Some((place, queued.remove(place)?))
    }

    pub fn put_back(&mut self, partition: i32, place: usize, waiting: QueuedDecision) {
        if let Some(assigned) = self.partitions.get_mut(&partition) {
            assigned.queued.insert(place, waiting);
        }
    }

    pub fn finish(&mut self, partition: i32, finished: &QueuedDecision) {
        if let Some(assigned) = self.partitions.get_mut(&partition) {
            let AssignedPartition { queued, position, finished_end, .. } = assigned;
            *finished_end = (*finished_end).max(finished.record.offset + 1);
            let waiting = queued.front().map(|first| first.record.offset);
            *position = waiting.map_or(*finished_end, |first| first.min(*finished_end)).max(*position);
        }
    }

    /// Returns the positions that advanced since the last commit.
    pub fn positions_to_commit(&self) -> Vec<(TopicPartition, i64)> {
        let advanced = self.partitions.iter().filter(|(_, assigned)| assigned.position != assigned.committed);
        advanced.map(|(partition, a)| (TopicPartition::new(self.topic.clone(), *partition), a.position)).collect()
    }

    pub fn on_committed(&mut self) {
        for assigned in self.partitions.values_mut() {
            assigned.committed = assigned.position;
        }
    }

    /// Pauses partitions whose queue is full, and resumes them when half of it is worked off.
    pub fn apply_backpressure(&mut self, member: &mut dyn GroupMember) -> Result<(), BusError> {
        for (partition, assigned) in &mut self.partitions {
            let full = assigned.queued.len() >= if assigned.paused { MAX_QUEUED / 2 } else { MAX_QUEUED };
            if full != assigned.paused {
                let at = [TopicPartition::new(self.topic.clone(), *partition)];
                if full {
                    member.pause(&at)?;
                } else {
                    member.resume(&at)?;
                }
                assigned.paused = full;
            }
        }
        Ok(())
    }
}
