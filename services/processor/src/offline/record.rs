//! Records of a replay, and where they come from.

use std::error::Error;

use eadt_core::InputRecord;
use eadt_schemas::v1::{GpuTelemetry, TrainingProgress};
use eadt_schemas::{EventTime, Topic};

use crate::codec::DecodedRecord;

/// Error of a source, or of the consumer of the outputs.
pub type ReplayError = Box<dyn Error + Send + Sync>;

/// A record of an input topic as a file has it.
#[derive(Debug, Clone, Copy)]
pub struct RawRecord<'a> {
    pub topic: Topic,
    /// `ce_type`, if the file has it.
    pub kind: Option<&'a str>,
    pub key: &'a [u8],
    /// `None` for a tombstone.
    pub value: Option<&'a [u8]>,
    /// The log's stamp, or the event's own time if there is none.
    pub stamp: EventTime,
    /// The record has the header `envelope::header::SENT_AGAIN`.
    pub is_sent_again: bool,
}

/// A decoded record.
#[derive(Debug, Clone)]
pub struct ReplayRecord {
    pub(super) topic: Topic,
    pub(super) partition: i32,
    pub(super) offset: Option<i64>,
    pub(super) stamp: EventTime,
    /// Empty: none. A log written by hand may leave keys out; heartbeats have none.
    pub(super) key: String,
    is_sent_again: bool,
    pub(super) event: DecodedRecord,
}

impl Default for ReplayRecord {
    /// Returns a heartbeat of no time, to be renewed.
    fn default() -> Self {
        Self {
            topic: Topic::GpuTelemetry,
            partition: 0,
            offset: None,
            stamp: EventTime::default(),
            key: String::new(),
            is_sent_again: false,
            event: DecodedRecord::Heartbeat,
        }
    }
}

impl ReplayRecord {
    /// Decodes a record; without a partition it belongs to partition 0.
    pub fn new(raw: RawRecord<'_>, partition: Option<i32>, offset: Option<i64>) -> Self {
        let mut fed = Self::default();
        fed.refill(raw, partition, offset);
        fed
    }

    /// Like [`Self::new`], in place of a record that is folded: its memory is used again.
    pub fn refill(&mut self, raw: RawRecord<'_>, partition: Option<i32>, offset: Option<i64>) {
        self.event.decode_into(raw.topic, raw.kind, raw.value);
        self.set_position(raw, partition, offset);
    }

    /// Like [`Self::refill`], but only for a value that is an object in the form that EADT itself writes. Returns false for all
    /// others, after which this record is not valid.
    pub fn refill_canonical(&mut self, raw: RawRecord<'_>, partition: Option<i32>, offset: Option<i64>) -> bool {
        let canonical = raw.value.is_some_and(|value| self.event.decode_canonical_into(raw.topic, raw.kind, value));
        if canonical {
            self.set_position(raw, partition, offset);
        }
        canonical
    }

    /// Makes it a sample, and returns its event, whose fields hold old values.
    fn telemetry(&mut self) -> Option<&mut GpuTelemetry> {
        if !matches!(self.event, DecodedRecord::Telemetry(_)) {
            self.event = DecodedRecord::Telemetry(GpuTelemetry::default());
        }
        if let DecodedRecord::Telemetry(event) = &mut self.event { Some(event) } else { None }
    }

    /// Like [`Self::telemetry`].
    fn progress(&mut self) -> Option<&mut TrainingProgress> {
        if !matches!(self.event, DecodedRecord::Progress(_)) {
            self.event = DecodedRecord::Progress(TrainingProgress::default());
        }
        if let DecodedRecord::Progress(event) = &mut self.event { Some(event) } else { None }
    }

    /// Sets everything but the event.
    pub fn set_position(&mut self, raw: RawRecord<'_>, partition: Option<i32>, offset: Option<i64>) {
        (self.topic, self.partition, self.offset, self.stamp) = (raw.topic, partition.unwrap_or(0), offset, raw.stamp);
        self.is_sent_again = raw.is_sent_again;
        self.key.clear();
        self.key.push_str(std::str::from_utf8(raw.key).unwrap_or_default());
    }

    /// Returns its event, if it is a sample of a GPU.
    pub fn as_telemetry(&self) -> Option<&GpuTelemetry> {
        if let DecodedRecord::Telemetry(event) = &self.event { Some(event) } else { None }
    }

    /// Returns the record as the fold takes it.
    pub(super) fn input(&self) -> InputRecord<'_> {
        let (topic, stamp, is_sent_again) = (self.topic, self.stamp, self.is_sent_again);
        InputRecord { topic, stamp, key: self.key(), is_sent_again, event: self.event.event() }
    }

    pub(super) fn key(&self) -> Option<&str> {
        Some(self.key.as_str()).filter(|key| !key.is_empty())
    }

    pub fn is_heartbeat(&self) -> bool {
        matches!(self.event, DecodedRecord::Heartbeat)
    }
}

/// Records in order. Those that are replaced leave their memory to those that come.
#[derive(Debug, Default)]
pub struct RecordBatch {
    /// Records; those from `filled` on are kept for their memory.
    records: Vec<ReplayRecord>,
    filled: usize,
}

impl RecordBatch {
    pub fn clear(&mut self) {
        self.filled = 0;
    }

    pub fn len(&self) -> usize {
        self.filled
    }

    pub fn is_empty(&self) -> bool {
        self.filled == 0
    }

    /// Returns the place of the next record, which holds an old one. It belongs to the batch once [`Self::keep`] is called.
    pub fn slot(&mut self) -> &mut ReplayRecord {
        self.reserve(1);
        &mut self.records[self.filled]
    }

    pub fn keep(&mut self) {
        self.filled += 1;
    }

    /// Returns the events of the next `count` places as samples, whose fields hold old values. They belong to the batch, one after
    /// another, as those of [`Self::slot`] do.
    pub fn telemetry(&mut self, count: usize) -> Vec<&mut GpuTelemetry> {
        self.reserve(count);
        self.records[self.filled..].iter_mut().take(count).filter_map(ReplayRecord::telemetry).collect()
    }

    /// Like [`Self::telemetry`].
    pub fn progress(&mut self, count: usize) -> Vec<&mut TrainingProgress> {
        self.reserve(count);
        self.records[self.filled..].iter_mut().take(count).filter_map(ReplayRecord::progress).collect()
    }

    fn reserve(&mut self, count: usize) {
        let length = self.filled + count;
        if self.records.len() < length {
            self.records.resize_with(length, ReplayRecord::default);
        }
    }

    pub(super) fn get(&self, at: usize) -> Option<&ReplayRecord> {
        self.records[..self.filled].get(at)
    }
}

/// Records in order, some at a time.
pub trait ReplaySource: Send {
    /// Returns the partition of all its records, if they are of one and have the order of its log.
    fn partition(&self) -> Option<i32>;

    /// Puts the next records into the batch, in place of those in it. Returns false at the end.
    fn read(&mut self, batch: &mut RecordBatch) -> Result<bool, ReplayError>;
}

/// A source of decoded records.
#[derive(Debug)]
pub struct RecordSource<I> {
    records: I,
    partition: Option<i32>,
}

impl<I> RecordSource<I> {
    /// Builds the source of one partition, or of several mixed ones (`None`).
    pub fn new(records: I, partition: Option<i32>) -> Self {
        Self { records, partition }
    }
}

impl<I: Iterator<Item = ReplayRecord> + Send> ReplaySource for RecordSource<I> {
    fn partition(&self) -> Option<i32> {
        self.partition
    }

    fn read(&mut self, batch: &mut RecordBatch) -> Result<bool, ReplayError> {
        batch.clear();
        if let Some(record) = self.records.next() {
            *batch.slot() = record;
            batch.keep();
        }
        Ok(!batch.is_empty())
    }
}
