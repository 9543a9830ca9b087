//! Records that came together, looked at where they lie.

use std::fmt;

use bytes::Bytes;
use eadt_schemas::EventTime;

use crate::headers::headers_in_batch;
#[cfg(any(test, feature = "simulation"))]
use crate::kafka::put_varint;
use crate::{ConsumerRecord, RecordHeaders, TopicPartition};

/// A range of a block; [`Self::NONE`] for an absent value, which differs from an empty one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ByteRange {
    pub from: u32,
    pub length: u32,
}

impl ByteRange {
    pub const NONE: Self = Self { from: 0, length: u32::MAX };

    pub fn of(self, block: &[u8]) -> Option<&[u8]> {
        (self.length != u32::MAX).then(|| &block[self.from as usize..][..self.length as usize])
    }

    fn slice(self, block: &Bytes) -> Option<Bytes> {
        let from = self.from as usize;
        (self.length != u32::MAX).then(|| block.slice(from..from + self.length as usize))
    }

    fn bytes(self) -> usize {
        if self.length == u32::MAX { 0 } else { self.length as usize }
    }
}

/// Position of each part of a record in the block of its batch. All ranges lie within the block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RecordRanges {
    pub key: ByteRange,
    pub value: ByteRange,
    /// The value of the last header `ce_type`.
    pub event_type: ByteRange,
    /// Position of the first header.
    pub headers: u32,
    pub header_count: u32,
    /// One of the headers is `envelope::header::SENT_AGAIN`.
    pub is_sent_again: bool,
}

/// A record of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BatchRecord {
    pub offset: i64,
    pub stamp_millis: i64,
    pub ranges: RecordRanges,
}

/// All or some records of a batch as the log has it, in offset order. They lie in one block, which lives as long as any view of it.
#[derive(Clone, PartialEq, Eq)]
pub struct RecordBatch {
    pub at: TopicPartition,
    block: Bytes,
    records: Vec<BatchRecord>,
}

/// A record without a copy: what most readers look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordView<'a> {
    pub partition: i32,
    pub offset: i64,
    pub key: Option<&'a [u8]>,
    /// `None` is a tombstone.
    pub value: Option<&'a [u8]>,
    /// The last header `ce_type`, UTF-8 or not.
    pub raw_event_type: Option<&'a [u8]>,
    /// Its producer sent it again, and the log may have it twice (`envelope::header::SENT_AGAIN`).
    pub is_sent_again: bool,
}

impl<'a> RecordView<'a> {
    /// Returns the type of the event, if it is UTF-8.
    pub fn event_type(&self) -> Option<&'a str> {
        self.raw_event_type.and_then(|name| std::str::from_utf8(name).ok())
    }
}

impl RecordBatch {
    pub(crate) const fn new(at: TopicPartition, block: Bytes, records: Vec<BatchRecord>) -> Self {
        Self { at, block, records }
    }

    pub const fn len(&self) -> usize {
        self.records.len()
    }

    pub const fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Returns the newest stamp.
    pub fn newest_stamp(&self) -> Option<EventTime> {
        self.records.iter().map(|found| EventTime::from_millis(found.stamp_millis)).max()
    }

    /// Returns the record of an index; `None` beyond the last one.
    pub fn view(&self, index: usize) -> Option<RecordView<'_>> {
        let found = self.records.get(index)?;
        Some(RecordView {
            partition: self.at.partition,
            offset: found.offset,
            key: found.ranges.key.of(&self.block),
            value: found.ranges.value.of(&self.block),
            raw_event_type: found.ranges.event_type.of(&self.block),
            is_sent_again: found.ranges.is_sent_again,
        })
    }

    /// Returns the append time of a record; `None` beyond the last one.
    pub fn stamp(&self, index: usize) -> Option<EventTime> {
        self.records.get(index).map(|found| EventTime::from_millis(found.stamp_millis))
    }

    /// Returns names and values of a record's headers as they came; none beyond the last record.
    pub fn headers(&self, index: usize) -> impl Iterator<Item = (&[u8], &[u8])> {
        let found = self.records.get(index).map_or((0, 0), |found| (found.ranges.headers, found.ranges.header_count));
        headers_in_batch(&self.block, found.0 as usize, found.1 as usize)
    }

    /// Returns offset, stamp, and the number of bytes of key and value of each record.
    pub fn sizes(&self) -> impl Iterator<Item = (i64, EventTime, usize)> {
        self.records.iter().map(|found| {
            (found.offset, EventTime::from_millis(found.stamp_millis), found.ranges.key.bytes() + found.ranges.value.bytes())
        })
    }

    /// Like [`Self::view`], on its own; its parts share the block.
    pub fn record(&self, index: usize) -> Option<ConsumerRecord> {
        let found = self.records.get(index)?;
        Some(ConsumerRecord {
            at: self.at.clone(),
            offset: found.offset,
            stamp: EventTime::from_millis(found.stamp_millis),
            key: found.ranges.key.slice(&self.block),
            value: found.ranges.value.slice(&self.block),
            headers: RecordHeaders::in_batch(&self.block, found.ranges.headers as usize, found.ranges.header_count as usize),
        })
    }
}

#[cfg(any(test, feature = "simulation"))]
impl RecordBatch {
    /// Packs records of one partition as a log would: in the order of their offsets, with stamps of whole milliseconds.
    pub fn pack(records: &[ConsumerRecord]) -> Option<Self> {
        let at = records.first()?.at.clone();
        let (mut block, mut packed) = (Vec::new(), Vec::new());
        let put = |block: &mut Vec<u8>, part: Option<&[u8]>| {
            let Some(part) = part else { return ByteRange::NONE };
            block.extend_from_slice(part);
            ByteRange { from: (block.len() - part.len()) as u32, length: part.len() as u32 }
        };
        for record in records {
            let (key, value) = (put(&mut block, record.key.as_deref()), put(&mut block, record.value.as_deref()));
            let (headers, mut event_type, mut is_sent_again) = (block.len() as u32, ByteRange::NONE, false);
            for (name, value) in record.headers.iter() {
                is_sent_again |= name == eadt_schemas::envelope::header::SENT_AGAIN;
                put_varint(&mut block, name.len() as i64);
                put(&mut block, Some(name.as_bytes()));
                put_varint(&mut block, value.len() as i64);
                let value = put(&mut block, Some(value));
                if name == eadt_schemas::envelope::header::TYPE {
                    event_type = value;
                }
            }
            assert_eq!(record.stamp.micros() % 1000, 0, "a stamp of a log");
            let header_count = record.headers.len() as u32;
            let place = RecordRanges { key, value, event_type, headers, header_count, is_sent_again };
            packed.push(BatchRecord { offset: record.offset, stamp_millis: record.stamp.micros() / 1000, ranges: place });
        }
        Some(Self::new(at, block.into(), packed))
    }
}

impl fmt::Debug for RecordBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordBatch").field("at", &self.at).field("records", &self.records.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_record_in_a_batch_is_what_it_is_alone() {
        let header = |name: &str, value: &'static [u8]| (Arc::from(name), Bytes::from_static(value));
        let record = |offset, key: Option<&'static [u8]>, value: Option<&'static [u8]>, headers: Vec<_>| ConsumerRecord {
            at: TopicPartition::new("topic", 2),
            offset,
            stamp: EventTime::from_millis(1000 * offset),
            key: key.map(Bytes::from_static),
            value: value.map(Bytes::from_static),
            headers: headers.into(),
        };
        let long: &'static [u8] = &[b'x'; 300];
        let records = [
            record(3, Some(b"key"), Some(long), vec![header("ce_type", b"old"), header("a", long), header("ce_type", b"new")]),
            record(4, None, None, Vec::new()),
            record(9, Some(b""), Some(b""), vec![header("ce_type", b"\xff"), header("ce_time", b"")]),
            record(10, None, Some(long), vec![header("eadt_sent_again", b""), header("ce_type", b"x")]),
        ];
        let batch = RecordBatch::pack(&records).unwrap();
        assert_eq!((batch.len(), batch.is_empty(), batch.view(4), batch.record(4)), (4, false, None, None));
        assert_eq!((batch.stamp(4), batch.headers(4).count()), (None, 0));
        for (index, record) in records.iter().enumerate() {
            assert_eq!(batch.record(index).as_ref(), Some(record));
            assert_eq!(batch.view(index), Some(record.view()));
            assert_eq!(batch.stamp(index), Some(record.stamp));
            assert!(batch.headers(index).eq(record.headers.raw()), "{index}");
        }
        assert_eq!([0, 1, 2].map(|index| batch.view(index).unwrap().event_type()), [Some("new"), None, None]);
        assert_eq!([0, 1, 2, 3].map(|index| batch.view(index).unwrap().is_sent_again), [false, false, false, true]);
        let sizes: Vec<_> = batch.sizes().map(|(offset, stamp, bytes)| (offset, stamp.micros(), bytes)).collect();
        assert_eq!(sizes, [(3, 3_000_000, 303), (4, 4_000_000, 0), (9, 9_000_000, 0), (10, 10_000_000, 300)]);
        assert_eq!(RecordBatch::pack(&[]), None);
    }
}
