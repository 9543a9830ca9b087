//! The batches of an answer, one after the other: whole, checked, and not taken back.

use std::collections::VecDeque;

use bytes::Bytes;

use super::decompress::{Codec, UnpackError, Unpacker};
use super::messages::AbortedTransaction;
use super::records::{RecordError, next_record};
use crate::batch::BatchRecord;

/// Bytes of a batch before its records.
const HEAD_BYTES: usize = 61;
/// Bytes before those that the length counts.
const LENGTH_END: usize = 12;
/// Position of the first byte that the checksum covers.
const SUMMED_FROM: usize = 21;
/// The format since Kafka 0.11.
const MAGIC: u8 = 2;

/// A batch that cannot be read.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    #[error("its length is impossible")]
    Length,
    #[error("it has the old message format {0}: set bus.fetch=librdkafka to read it")]
    Format(u8),
    #[error("its checksum is {found:08x} instead of {expected:08x}: it was damaged on the broker's disk or on its way")]
    Checksum { expected: u32, found: u32 },
    #[error("it is packed by a codec of number {0}, which is not known")]
    Codec(i16),
    #[error(transparent)]
    Unpack(#[from] UnpackError),
    #[error(transparent)]
    Record(#[from] RecordError),
}

/// The header of a record batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchHeader {
    pub base_offset: i64,
    /// Size in bytes, with the head.
    pub bytes: usize,
    pub leader_epoch: i32,
    magic: u8,
    checksum: u32,
    attributes: i16,
    last_offset_delta: i32,
    base_timestamp: i64,
    max_timestamp: i64,
    producer: i64,
    records: i32,
}

impl BatchHeader {
    /// Returns the head of the batch that begins here; `None` if the batch is cut off, as the last one of an answer may be.
    pub fn read(bytes: &[u8]) -> Result<Option<Self>, BatchError> {
        let Some((head, _)) = bytes.split_first_chunk::<HEAD_BYTES>() else { return Ok(None) };
        let number = |at: usize| i32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let long = |at: usize| i64::from(number(at)) << 32 | i64::from(number(at + 4) as u32);
        let length = usize::try_from(number(8)).map_err(|_| BatchError::Length)? + LENGTH_END;
        // The place of this byte is the same in all formats.
        if head[16] != MAGIC {
            return Err(BatchError::Format(head[16]));
        }
        if length < HEAD_BYTES {
            return Err(BatchError::Length);
        }
        let head = Self {
            base_offset: long(0),
            bytes: length,
            leader_epoch: number(12),
            magic: head[16],
            checksum: number(17) as u32,
            attributes: i16::from_be_bytes([head[21], head[22]]),
            last_offset_delta: number(23),
            base_timestamp: long(27),
            max_timestamp: long(35),
            producer: long(43),
            records: number(57),
        };
        let has_end = head.base_offset.checked_add(i64::from(head.last_offset_delta)).is_some_and(|last| last < i64::MAX);
        if head.base_offset < 0 || head.last_offset_delta < 0 || head.records < 0 || !has_end {
            return Err(BatchError::Length);
        }
        Ok((bytes.len() >= length).then_some(head))
    }

    /// Returns the offset after the batch. Compaction takes records out, but leaves this.
    pub fn next_offset(&self) -> i64 {
        self.base_offset + i64::from(self.last_offset_delta) + 1
    }

    const fn is_transactional(&self) -> bool {
        self.attributes & 0x10 != 0
    }

    const fn is_control(&self) -> bool {
        self.attributes & 0x20 != 0
    }

    const fn is_stamped_by_log(&self) -> bool {
        self.attributes & 8 != 0
    }
}

/// Returns the offset after the last whole batch, and the epoch of that batch's leader; `None` if there is no whole one.
pub fn end_of_batches(mut bytes: &[u8]) -> Option<(i64, i32)> {
    let mut end = None;
    while let Ok(Some(head)) = BatchHeader::read(bytes) {
        end = Some((head.next_offset(), head.leader_epoch));
        bytes = &bytes[head.bytes..];
    }
    end
}

/// The batches of one partition from one answer.
#[derive(Debug, Default)]
pub struct BatchStream {
    bytes: Bytes,
    /// Aborted transactions that have not begun yet, by their first offsets.
    aborted: VecDeque<AbortedTransaction>,
    /// Producers with an aborted transaction.
    aborting: Vec<i64>,
    is_committed_only: bool,
}

impl BatchStream {
    pub fn new(bytes: Bytes, mut aborted: Vec<AbortedTransaction>, is_committed_only: bool) -> Self {
        aborted.sort_by_key(|aborted| aborted.first_offset);
        Self { bytes, aborted: aborted.into(), aborting: Vec::new(), is_committed_only }
    }

    /// Reads these bytes instead.
    #[cfg(feature = "conformance")]
    pub fn with_bytes(self, bytes: Bytes) -> Self {
        Self { bytes, ..self }
    }

    /// Returns the next batch with records for the reader, and sets `next` to the offset after all that was walked over. An error
    /// comes with the offset of the batch.
    pub fn next_batch(&mut self, unpacker: &mut Unpacker, next: &mut i64) -> Result<Option<OpenBatch>, (i64, BatchError)> {
        loop {
            let at = *next;
            let Some(head) = BatchHeader::read(&self.bytes).map_err(|error| (at, error))? else {
                self.bytes.clear();
                return Ok(None);
            };
            let whole = self.bytes.split_to(head.bytes);
            let failed = |error: BatchError| (head.base_offset, error);
            let found = crc32c::crc32c(&whole[SUMMED_FROM..]);
            if found != head.checksum {
                return Err(failed(BatchError::Checksum { expected: head.checksum, found }));
            }
            let records = whole.slice(HEAD_BYTES..);
            if self.is_left_out(&head, &records).map_err(failed)? || head.next_offset() <= at {
                *next = at.max(head.next_offset());
                continue;
            }
            let codec = Codec::of_attributes(head.attributes).ok_or(failed(BatchError::Codec(head.attributes & 7)))?;
            let unpacked = unpacker.unpack(codec, &records).map_err(|error| failed(error.into()))?;
            let append_stamp = head.is_stamped_by_log().then_some(head.max_timestamp);
            return Ok(Some(OpenBatch { unpacked, at: 0, left: head.records, header: head, append_stamp }));
        }
    }

    /// Returns whether no record of the batch is for the reader, and follows the ends of transactions.
    fn is_left_out(&mut self, head: &BatchHeader, records: &[u8]) -> Result<bool, BatchError> {
        if self.is_committed_only {
            while let Some(begun) = self.aborted.front().filter(|aborted| aborted.first_offset < head.next_offset()) {
                self.aborting.push(begun.producer);
                self.aborted.pop_front();
            }
        }
        if head.is_control() {
            if head.records > 0 && is_abort(records)? {
                self.aborting.retain(|producer| *producer != head.producer);
            }
            return Ok(true);
        }
        Ok(self.is_committed_only && head.is_transactional() && self.aborting.contains(&head.producer))
    }
}

/// Returns whether a control record ends a transaction by taking it back: its key is a version and a type, 0 of an abort.
fn is_abort(records: &[u8]) -> Result<bool, RecordError> {
    let found = next_record(records, &mut 0)?;
    let key = found.ranges.key.of(records).unwrap_or_default();
    Ok(key.get(2..4) == Some(&[0, 0]))
}

/// An unpacked batch and how far it was read.
#[derive(Debug)]
pub struct OpenBatch {
    pub unpacked: Bytes,
    at: usize,
    left: i32,
    header: BatchHeader,
    /// The stamp of all records if it is the log's.
    append_stamp: Option<i64>,
}

impl OpenBatch {
    /// Returns the next record, `None` at the end. An error comes with the offset of the batch, and comes again.
    pub fn next_record(&mut self) -> Result<Option<BatchRecord>, (i64, BatchError)> {
        if self.left == 0 {
            return Ok(None);
        }
        let before = self.at;
        let found = next_record(&self.unpacked, &mut self.at).map_err(|error| (self.header.base_offset, error.into()))?;
        if !(0..=i64::from(self.header.last_offset_delta)).contains(&found.offset_delta) {
            self.at = before;
            return Err((self.header.base_offset, BatchError::Record(RecordError("a record lies outside its batch"))));
        }
        self.left -= 1;
        let offset = self.header.base_offset + found.offset_delta;
        let stamp_millis = self.append_stamp.unwrap_or_else(|| self.header.base_timestamp.saturating_add(found.timestamp_delta));
        Ok(Some(BatchRecord { offset, stamp_millis, ranges: found.ranges }))
    }

    /// Returns the offset after the batch.
    pub fn next_offset(&self) -> i64 {
        self.header.next_offset()
    }

    /// Returns how many records were not read, by the count in the batch's header, which may be wrong.
    pub fn unread_count(&self) -> usize {
        usize::try_from(self.left).unwrap_or(0)
    }
}

#[cfg(test)]
#[path = "batch_tests.rs"]
mod tests;
