//! A block: the records that one append puts into one partition, as one row of the store.
//!
//! Little-endian. Header: format, record count, latest stamp, header-name table. Then for each record its offset behind the
//! base, stamp, lengths and bytes. Names are written once a block, since events repeat them in every record.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use eadt_schemas::EventTime;

use crate::headers::Packed;
use crate::{Header, Headers, Record, TopicPartition};

const FORMAT: u8 = 1;
const NONE: u32 = u32::MAX;
/// Format, count, latest stamp, name count.
const FIXED: usize = 1 + 4 + 8 + 2;

/// What is to be written of one record.
#[derive(Debug, Clone, Copy)]
pub struct Entry<'a> {
    pub offset: i64,
    pub stamp: EventTime,
    pub key: Option<&'a [u8]>,
    pub value: Option<&'a [u8]>,
    pub headers: &'a [Header],
}

/// Encodes records of ascending offsets.
#[derive(Debug)]
pub struct Builder {
    base: i64,
    count: u32,
    latest: EventTime,
    names: Vec<Arc<str>>,
    records: BytesMut,
}

impl Builder {
    pub fn new(base: i64) -> Self {
        Self { base, count: 0, latest: EventTime::MIN, names: Vec::new(), records: BytesMut::new() }
    }

    pub fn base(&self) -> i64 {
        self.base
    }

    pub fn len(&self) -> usize {
        self.records.len()
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// False, and nothing taken, where the offset lies too far behind the base for one block.
    pub fn push(&mut self, entry: &Entry<'_>) -> bool {
        let Ok(delta) = u32::try_from(entry.offset - self.base) else { return false };
        let lengths: usize = entry.headers.iter().map(|(_, value)| 6 + value.len()).sum();
        self.records.reserve(22 + lengths + entry.key.map_or(0, <[u8]>::len) + entry.value.map_or(0, <[u8]>::len));
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
        let found = self.names.iter().position(|known| Arc::ptr_eq(known, name) || **known == **name);
        found.unwrap_or_else(|| {
            self.names.push(Arc::clone(name));
            self.names.len() - 1
        }) as u16
    }

    /// Whether the name table has room for any record's names.
    pub fn is_full(&self) -> bool {
        self.names.len() > usize::from(u16::MAX) / 2
    }

    pub fn finish(self) -> Bytes {
        let names: usize = self.names.iter().map(|name| 2 + name.len()).sum();
        let mut block = BytesMut::with_capacity(FIXED + names + self.records.len());
        block.put_u8(FORMAT);
        block.put_u32_le(self.count);
        block.put_i64_le(self.latest.millis());
        block.put_u16_le(self.names.len() as u16);
        for name in &self.names {
            block.put_u16_le(name.len() as u16);
            block.put_slice(name.as_bytes());
        }
        block.put_slice(&self.records);
        block.freeze()
    }
}

/// A block that does not have the form that [`Builder`] writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a stored block is malformed")]
pub struct Malformed;

/// Header names met so far, so that records share them.
#[derive(Debug, Default)]
pub struct Names(Vec<Arc<str>>);

impl Names {
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
pub struct Walk {
    at: TopicPartition,
    base: i64,
    block: Bytes,
    next: usize,
    remaining: u32,
    latest: EventTime,
    names: Arc<[Arc<str>]>,
}

impl Walk {
    pub fn new(at: TopicPartition, base: i64, block: Bytes, names: &mut Names) -> Result<Self, Malformed> {
        let mut cursor = Cursor { block: &block, next: 0 };
        if cursor.take(1)? != [FORMAT] {
            return Err(Malformed);
        }
        let remaining = cursor.u32()?;
        let latest = EventTime::from_millis(cursor.i64()?);
        let names = (0..cursor.u16()?)
            .map(|_| {
                let length = cursor.u16()?;
                let name = std::str::from_utf8(cursor.take(usize::from(length))?).map_err(|_| Malformed)?;
                Ok(names.intern(name))
            })
            .collect::<Result<_, _>>()?;
        let next = cursor.next;
        Ok(Self { at, base, block, next, remaining, latest, names })
    }

    /// The stamp of the block's newest record.
    pub fn latest(&self) -> EventTime {
        self.latest
    }

    /// The next record.
    pub fn next_record(&mut self) -> Result<Option<Record>, Malformed> {
        if self.remaining == 0 {
            return Ok(None);
        }
        let mut cursor = Cursor { block: &self.block, next: self.next };
        let offset = self.base + i64::from(cursor.u32()?);
        let stamp = EventTime::from_millis(cursor.i64()?);
        let (key, value, count) = (cursor.u32()?, cursor.u32()?, usize::from(cursor.u16()?));
        let table_at = cursor.next;
        let table = cursor.take(Packed::table_bytes(count))?;
        let key = cursor.slice(key)?;
        let value = cursor.slice(value)?;
        let values = cursor.next;
        for (name, length) in Packed::entries(table) {
            if name >= self.names.len() {
                return Err(Malformed);
            }
            cursor.take(length)?;
        }
        let headers =
            Headers::packed(Packed { block: self.block.clone(), names: self.names.clone(), table: table_at, count, values });
        self.next = cursor.next;
        self.remaining -= 1;
        Ok(Some(Record { at: self.at.clone(), offset, stamp, key, value, headers }))
    }
}

struct Cursor<'a> {
    block: &'a Bytes,
    next: usize,
}

impl<'a> Cursor<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let end = self.next.checked_add(length).ok_or(Malformed)?;
        let taken = self.block.get(self.next..end).ok_or(Malformed)?;
        self.next = end;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        self.take(N)?.try_into().map_err(|_| Malformed)
    }

    fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_le_bytes)
    }

    fn i64(&mut self) -> Result<i64, Malformed> {
        self.array().map(i64::from_le_bytes)
    }

    fn slice(&mut self, length: u32) -> Result<Option<Bytes>, Malformed> {
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
    use eadt_cases::cases;
    use proptest::prelude::*;

    use super::*;

    fn walk(block: Bytes, base: i64) -> Result<Vec<Record>, Malformed> {
        let mut walk = Walk::new(TopicPartition::new("t", 0), base, block, &mut Names::default())?;
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
            let mut builder = Builder::new(base);
            let (mut offset, mut expected) = (base, Vec::new());
            for (step, stamp, key, value, headers) in rows {
                offset += step;
                let headers: Vec<Header> = headers.into_iter().map(|(name, byte)| (name.into(), Bytes::from(vec![byte; 3]))).collect();
                let stamp = EventTime::from_millis(stamp);
                let taken = builder.push(&Entry { offset, stamp, key: key.as_deref(), value: value.as_deref(), headers: &headers });
                prop_assert!(taken);
                let at = TopicPartition::new("t", 0);
                let headers = headers.into();
                expected.push(Record { at, offset, stamp, key: key.map(Into::into), value: value.map(Into::into), headers });
            }
            let block = builder.finish();
            prop_assert_eq!(walk(block.clone(), base).unwrap(), expected);
            // A block cut short anywhere is refused, never read as fewer records.
            prop_assert_eq!(walk(block.slice(..cut.index(block.len())), base), Err(Malformed));
        }
    }
}
