//! A block: the records that one append puts into one partition, as one row of the store.
//!
//! Little-endian. Header: format, record count, latest stamp, header-name table. Then for each record its offset behind the
//! base, stamp, lengths and bytes. Names are written once a block, since events repeat them in every record.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use eadt_schemas::EventTime;

use crate::headers::PackedHeaders;
use crate::{ConsumerRecord, RecordHeader, RecordHeaders, TopicPartition};

const FORMAT: u8 = 1;
const NONE: u32 = u32::MAX;
/// A block is closed at this size. Readers hold as much memory for each partition.
const BLOCK_BYTES: usize = 128 << 10;

/// One record to write.
#[derive(Debug, Clone, Copy)]
pub struct BlockEntry<'a> {
    pub offset: i64,
    pub stamp: EventTime,
    pub key: Option<&'a [u8]>,
    pub value: Option<&'a [u8]>,
    pub headers: &'a [RecordHeader],
}

/// Encodes records of ascending offsets.
#[derive(Debug)]
pub struct BlockBuilder {
    base: i64,
    count: u32,
    latest: EventTime,
    names: Vec<Arc<str>>,
    records: BytesMut,
}

impl BlockBuilder {
    pub fn new(base: i64) -> Self {
        Self { base, count: 0, latest: EventTime::MIN, names: Vec::new(), records: BytesMut::new() }
    }

    pub fn base(&self) -> i64 {
        self.base
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns false, and takes nothing, if the offset lies too far behind the base for one block.
    pub fn push(&mut self, entry: &BlockEntry<'_>) -> bool {
        let Ok(delta) = u32::try_from(entry.offset - self.base) else { return false };
        self.records.put_u32_le(delta);
        self.records.put_i64_le(entry.stamp.millis());
        self.records.put_u32_le(entry.key.map_or(NONE, |key| key.len() as u32));
        self.records.put_u32_le(entry.value.map_or(NONE, |value| value.len() as u32));
        self.records.put_u16_le(entry.headers.len() as u16);
        for (name, value) in entry.headers {
            let index = self.name(name);
            self.records.put_u16_le(index);
            self.records.put_u32_le(value.len() as u32);
        }
        self.records.put_slice(entry.key.unwrap_or_default());
        self.records.put_slice(entry.value.unwrap_or_default());
        for (_, value) in entry.headers {
            self.records.put_slice(value);
        }
        self.count += 1;
        self.latest = self.latest.max(entry.stamp);
        true
    }

    fn name(&mut self, name: &Arc<str>) -> u16 {
        let found = self.names.iter().position(|known| known == name);
        found.unwrap_or_else(|| {
            self.names.push(Arc::clone(name));
            self.names.len() - 1
        }) as u16
    }

    /// Returns whether a record of so many bytes belongs into this block. An empty block takes any record. Another one needs room
    /// for the record, and for as many names as a record may have.
    pub fn has_room_for(&self, bytes: usize) -> bool {
        let room = self.names.len() <= usize::from(u16::MAX) / 2 && self.records.len() + bytes <= BLOCK_BYTES;
        self.is_empty() || room
    }

    pub fn finish(self) -> Bytes {
        let mut head = BytesMut::new();
        head.put_u8(FORMAT);
        head.put_u32_le(self.count);
        head.put_i64_le(self.latest.millis());
        head.put_u16_le(self.names.len() as u16);
        for name in &self.names {
            head.put_u16_le(name.len() as u16);
            head.put_slice(name.as_bytes());
        }
        [&head[..], &self.records].concat().into()
    }
}

/// A block that does not have the form that [`BlockBuilder`] writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a stored block is malformed")]
pub struct MalformedBlock;

/// Header names met so far, so that records share them.
#[derive(Debug, Default)]
pub struct HeaderNames(Vec<Arc<str>>);

impl HeaderNames {
    fn intern(&mut self, name: &str) -> Arc<str> {
        if let Some(known) = self.0.iter().find(|known| &***known == name) {
            return Arc::clone(known);
        }
        let name: Arc<str> = name.into();
        // Foreign producers may invent names without end; events of the pipeline have fewer than twenty.
        if self.0.len() < 64 {
            self.0.push(Arc::clone(&name));
        }
        name
    }
}

/// Walks over the records of a block; keys, values and headers are slices of it.
#[derive(Debug)]
pub struct BlockReader {
    at: TopicPartition,
    base: i64,
    block: Bytes,
    next: usize,
    remaining: u32,
    latest: EventTime,
    names: Arc<[Arc<str>]>,
}

impl BlockReader {
    pub fn new(at: TopicPartition, base: i64, block: Bytes, names: &mut HeaderNames) -> Result<Self, MalformedBlock> {
        let mut cursor = ByteCursor { block: &block, next: 0 };
        if cursor.take(1)? != [FORMAT] {
            return Err(MalformedBlock);
        }
        let remaining = cursor.u32()?;
        let latest = EventTime::from_millis(cursor.i64()?);
        let names = (0..cursor.u16()?)
            .map(|_| {
                let length = cursor.u16()?;
                let name = std::str::from_utf8(cursor.take(usize::from(length))?).map_err(|_| MalformedBlock)?;
                Ok(names.intern(name))
            })
            .collect::<Result<_, _>>()?;
        let next = cursor.next;
        Ok(Self { at, base, block, next, remaining, latest, names })
    }

    /// Returns the stamp of the block's newest record.
    pub fn latest(&self) -> EventTime {
        self.latest
    }

    /// Returns the next record.
    pub fn next_record(&mut self) -> Result<Option<ConsumerRecord>, MalformedBlock> {
        if self.remaining == 0 {
            return Ok(None);
        }
        let mut cursor = ByteCursor { block: &self.block, next: self.next };
        let offset = self.base + i64::from(cursor.u32()?);
        let stamp = EventTime::from_millis(cursor.i64()?);
        let (key, value, count) = (cursor.u32()?, cursor.u32()?, usize::from(cursor.u16()?));
        let table_at = cursor.next;
        let table = cursor.take(PackedHeaders::table_bytes(count))?;
        let key = cursor.slice(key)?;
        let value = cursor.slice(value)?;
        let values = cursor.next;
        for (name, length) in PackedHeaders::entries(table) {
            if name >= self.names.len() {
                return Err(MalformedBlock);
            }
            cursor.take(length)?;
        }
        let headers = RecordHeaders::packed(PackedHeaders {
            block: self.block.clone(),
            names: self.names.clone(),
            table: table_at,
            count,
            values,
        });
        self.next = cursor.next;
        self.remaining -= 1;
        Ok(Some(ConsumerRecord { at: self.at.clone(), offset, stamp, key, value, headers }))
    }
}

struct ByteCursor<'a> {
    block: &'a Bytes,
    next: usize,
}

impl<'a> ByteCursor<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], MalformedBlock> {
        let end = self.next.checked_add(length).ok_or(MalformedBlock)?;
        let slice = self.block.get(self.next..end).ok_or(MalformedBlock)?;
        self.next = end;
        Ok(slice)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], MalformedBlock> {
        self.take(N)?.try_into().map_err(|_| MalformedBlock)
    }

    fn u16(&mut self) -> Result<u16, MalformedBlock> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, MalformedBlock> {
        self.array().map(u32::from_le_bytes)
    }

    fn i64(&mut self) -> Result<i64, MalformedBlock> {
        self.array().map(i64::from_le_bytes)
    }

    fn slice(&mut self, length: u32) -> Result<Option<Bytes>, MalformedBlock> {
        if length == NONE {
            return Ok(None);
        }
        let begin = self.next;
        self.take(length as usize)?;
        Ok(Some(self.block.slice(begin..self.next)))
    }
}

#[cfg(test)]
mod tests {
    use eadt_testing::cases;
    use proptest::prelude::*;

    use super::*;

    fn entry(offset: i64, value: &[u8]) -> BlockEntry<'_> {
        BlockEntry { offset, stamp: EventTime::from_millis(1), key: None, value: Some(value), headers: &[] }
    }

    #[test]
    fn a_block_takes_any_first_record_and_others_while_there_is_room_for_them() {
        let mut block = BlockBuilder::new(5);
        assert!(block.has_room_for(BLOCK_BYTES * 8), "a record larger than a block has one of its own");
        assert!(block.push(&entry(5, &[0; 1000])));
        // Beside key, value and headers a record has its offset, stamp and lengths: 22 bytes.
        let room = BLOCK_BYTES - 1022;
        assert!(block.has_room_for(room));
        assert!(!block.has_room_for(room + 1));
        assert!(block.push(&entry(6, &[0; 2000])));
        assert!(block.has_room_for(room - 2022) && !block.has_room_for(room - 2021));
    }

    #[test]
    fn a_block_is_closed_before_the_next_record_could_overfill_its_table_of_names() {
        let mut block = BlockBuilder::new(0);
        for (names, takes) in [(32_767, true), (32_768, false), (65_535, false)] {
            block.names = vec!["a".into(); names];
            assert!(block.has_room_for(usize::MAX), "none was taken yet: {names}");
            block.count = 1;
            assert_eq!(block.has_room_for(0), takes, "{names}");
            block.count = 0;
        }
    }

    #[test]
    fn an_offset_too_far_behind_the_base_is_not_taken() {
        let mut block = BlockBuilder::new(10);
        assert!(!block.push(&entry(9, b"before the base")));
        assert!(!block.push(&entry(11 + i64::from(u32::MAX), b"too far")));
        assert!(block.is_empty());
        assert!(block.push(&entry(10 + i64::from(u32::MAX), b"the last")));
        assert_eq!(walk(block.finish(), 10).unwrap()[0].offset, 10 + i64::from(u32::MAX));
    }

    #[test]
    fn a_name_is_once_in_a_block_and_a_block_has_its_size_and_its_latest_stamp() {
        let mut block = BlockBuilder::new(0);
        for (offset, millis) in [(0, 7), (1, 9), (2, 8)] {
            let headers: [RecordHeader; 2] = [("ce_id".into(), Bytes::from_static(b"12")), ("x".into(), Bytes::new())];
            let stamp = EventTime::from_millis(millis);
            assert!(block.push(&BlockEntry { offset, stamp, key: Some(b"key"), value: None, headers: &headers }));
        }
        let block = block.finish();
        // 15 bytes, two names with their lengths, and thrice: 22 bytes, two headers of 6 bytes, key and value of a header.
        assert_eq!(block.len(), 15 + (2 + 5) + (2 + 1) + 3 * (22 + 2 * 6 + 3 + 2));
        let walk = BlockReader::new(TopicPartition::new("t", 0), 0, block, &mut HeaderNames::default()).unwrap();
        assert_eq!(walk.latest(), EventTime::from_millis(9));
    }

    #[test]
    fn a_header_without_its_name_is_malformed() {
        let mut block = BlockBuilder::new(0);
        let headers: [RecordHeader; 1] = [("a".into(), Bytes::new())];
        assert!(block.push(&BlockEntry { headers: &headers, ..entry(0, b"") }));
        block.names.clear();
        assert_eq!(walk(block.finish(), 0), Err(MalformedBlock));
    }

    #[test]
    fn records_share_the_first_names_that_are_met_and_names_without_end_are_not_kept() {
        let mut names = HeaderNames::default();
        let met: Vec<_> = (0..70).map(|n| names.intern(&format!("name {n}"))).collect();
        assert_eq!(names.0.len(), 64);
        for (n, name) in met.iter().enumerate() {
            assert_eq!(**name, format!("name {n}"));
            assert_eq!(Arc::ptr_eq(name, &names.intern(name)), n < 64, "{name}");
        }
    }

    fn walk(block: Bytes, base: i64) -> Result<Vec<ConsumerRecord>, MalformedBlock> {
        let mut walk = BlockReader::new(TopicPartition::new("t", 0), base, block, &mut HeaderNames::default())?;
        let mut records = Vec::new();
        while let Some(record) = walk.next_record()? {
            records.push(record);
        }
        Ok(records)
    }

    proptest! {
        #![proptest_config(cases(64))]

        #[test]
        fn what_is_written_is_read(
            base in 0_i64..1_000_000_000_000,
            rows in prop::collection::vec(
                (1_i64..1000, 0_i64..4_000_000_000_000, prop::option::of(prop::collection::vec(any::<u8>(), 0..20)),
                 prop::option::of(prop::collection::vec(any::<u8>(), 0..50)), prop::collection::vec(("[a-c]{0,3}", any::<u8>()), 0..4)),
                0..20,
            ),
            cut in any::<prop::sample::Index>(),
        ) {
            let mut builder = BlockBuilder::new(base);
            let (mut offset, mut expected) = (base, Vec::new());
            for (step, stamp, key, value, headers) in rows {
                offset += step;
                let headers: Vec<RecordHeader> = headers.into_iter().map(|(name, byte)| (name.into(), Bytes::from(vec![byte; 3]))).collect();
                let stamp = EventTime::from_millis(stamp);
                let taken = builder.push(&BlockEntry { offset, stamp, key: key.as_deref(), value: value.as_deref(), headers: &headers });
                prop_assert!(taken);
                let at = TopicPartition::new("t", 0);
                let headers = headers.into();
                expected.push(ConsumerRecord { at, offset, stamp, key: key.map(Into::into), value: value.map(Into::into), headers });
            }
            let block = builder.finish();
            prop_assert_eq!(walk(block.clone(), base).unwrap(), expected);
            // A block cut short anywhere is refused, never read as fewer records.
            prop_assert_eq!(walk(block.slice(..cut.index(block.len())), base), Err(MalformedBlock));
        }
    }
}
