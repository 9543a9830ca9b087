//! Common parts of simulated buses, for use in tests: a log in memory that reveals its records bit by bit, and places
//! in it. It has no threads and no clock. What may fail, and when, is up to each simulation.

mod forgetful;

use std::collections::BTreeMap;

use eadt_schemas::{EventTime, Topic};

use crate::{ConsumerRecord, PollEvent, ProducerRecord, RecordBatch, RecordHeaders, TopicPartition, TopicSpec};

pub use forgetful::ForgetfulBus;

/// Partitions of every topic.
pub const PARTITIONS: i32 = 2;
/// Prefix of every topic's name.
pub const PREFIX: &str = "eadt.";

/// A record that will be in the log, in the order of stamps.
#[derive(Debug, Clone)]
pub struct ScheduledRecord {
    pub topic: Topic,
    pub partition: i32,
    pub stamp: EventTime,
    pub record: ProducerRecord,
    /// Offsets behind it that hold no record, as the end of a step takes one.
    pub holes: usize,
}

/// Returns the log's name of a partition.
pub fn place(topic: Topic, partition: i32) -> TopicPartition {
    TopicPartition::new(format!("{PREFIX}{topic}"), partition)
}

/// Returns the specifications of all topics.
pub fn topics(prefix: &str) -> Vec<TopicSpec> {
    let spec = |topic| TopicSpec {
        name: format!("{prefix}{topic}").into(),
        partitions: PARTITIONS,
        replication: 1,
        settings: BTreeMap::new(),
    };
    Topic::ALL.into_iter().map(spec).collect()
}

/// The revealed part of the scheduled records, and records appended besides.
#[derive(Debug)]
pub struct SimLog {
    coming: Vec<ScheduledRecord>,
    revealed: usize,
    /// `None` if the offset holds no record.
    log: BTreeMap<TopicPartition, Vec<Option<ConsumerRecord>>>,
}

impl SimLog {
    pub fn new(coming: Vec<ScheduledRecord>) -> Self {
        Self { coming, revealed: 0, log: BTreeMap::new() }
    }

    pub fn reveal(&mut self, count: usize) {
        let until = (self.revealed + count).min(self.coming.len());
        for i in self.revealed..until {
            let ScheduledRecord { topic, partition, stamp, record, holes } = self.coming[i].clone();
            let at = place(topic, partition);
            self.append(at.clone(), stamp, record);
            (0..holes).for_each(|_| self.burn(at.clone()));
        }
        self.revealed = until;
    }

    /// Returns whether nothing more comes.
    pub fn is_revealed(&self) -> bool {
        self.revealed == self.coming.len()
    }

    /// Returns the stamp of the newest revealed record.
    pub fn now(&self) -> EventTime {
        self.coming.get(self.revealed.saturating_sub(1)).map_or_else(EventTime::default, |last| last.stamp)
    }

    pub fn append(&mut self, at: TopicPartition, stamp: EventTime, record: ProducerRecord) {
        let log = self.log.entry(at.clone()).or_default();
        let offset = log.len() as i64;
        let headers = RecordHeaders::from(record.headers);
        log.push(Some(ConsumerRecord { at, offset, stamp, key: record.key, value: record.value, headers }));
    }

    /// Skips the next offset: it holds no record.
    pub fn burn(&mut self, at: TopicPartition) {
        self.log.entry(at).or_default().push(None);
    }

    /// Returns the offset that the next record gets.
    pub fn high(&self, at: &TopicPartition) -> i64 {
        self.log.get(at).map_or(0, |log| log.len() as i64)
    }

    /// Returns everything at these offsets and after them; `None` if an offset holds no record.
    pub fn from(&self, at: &TopicPartition, offset: i64) -> &[Option<ConsumerRecord>] {
        self.log.get(at).and_then(|log| log.get(offset as usize..)).unwrap_or_default()
    }
}

/// Puts each run of two or more records of one partition into a batch, from an item on.
pub fn batch_runs(items: &mut Vec<PollEvent>, from: usize) {
    let mut run: Vec<ConsumerRecord> = Vec::new();
    let close = |run: &mut Vec<ConsumerRecord>, items: &mut Vec<PollEvent>| {
        match RecordBatch::pack(run) {
            Some(batch) if run.len() > 1 => items.push(PollEvent::Batch(batch)),
            _ => items.extend(run.pop().map(PollEvent::Record)),
        }
        run.clear();
    };
    for item in items.split_off(from) {
        match item {
            PollEvent::Record(record) => {
                if run.last().is_some_and(|last| last.at != record.at) {
                    close(&mut run, items);
                }
                run.push(record);
            }
            other => {
                close(&mut run, items);
                items.push(other);
            }
        }
    }
    close(&mut run, items);
}

/// The position of a reader in a partition.
#[derive(Debug, Default)]
pub struct SimCursor {
    /// `None` if not started.
    pub next: Option<i64>,
    pub reported_end: bool,
    pub paused: bool,
}

impl SimCursor {
    pub fn at(offset: i64) -> Self {
        Self { next: Some(offset), ..Self::default() }
    }

    /// Appends at most `max` available records, and the end if it is reached; true if any event was added.
    pub fn take(&mut self, log: &SimLog, at: &TopicPartition, max: usize, into: &mut Vec<PollEvent>) -> bool {
        let (Some(mut next), false) = (self.next, self.paused) else { return false };
        let before = into.len();
        for record in log.from(at, next) {
            if into.len() - before == max {
                break;
            }
            into.extend(record.clone().map(PollEvent::Record));
            next += 1;
            self.reported_end = false;
        }
        if next == log.high(at) && !self.reported_end {
            self.reported_end = true;
            into.push(PollEvent::End { at: at.clone(), position: next });
        }
        self.next = Some(next);
        into.len() > before
    }

    /// Returns whether all records and the end have been reported.
    pub fn is_at_end(&self, log: &SimLog, at: &TopicPartition) -> bool {
        self.reported_end && self.next == Some(log.high(at))
    }
}

/// The positions of a reader in several partitions.
pub type SimCursors = BTreeMap<TopicPartition, SimCursor>;

pub fn set_paused(cursors: &mut SimCursors, at: &[TopicPartition], paused: bool) {
    for at in at {
        if let Some(cursor) = cursors.get_mut(at) {
            cursor.reported_end &= cursor.paused == paused;
            cursor.paused = paused;
        }
    }
}
