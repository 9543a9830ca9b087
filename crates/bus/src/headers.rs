//! The headers of a record that was read: a list, or still in the block they came in.

use std::borrow::Cow;
use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use crate::RecordHeader;
use crate::kafka::header_ranges;

/// Bytes of one header in a packed table: index of the name, length of the value.
const ENTRY: usize = 6;

/// A record's headers: UTF-8 names, bytes as values, in order; a name may occur several times.
///
/// Most readers look at one header of seven, so headers are decoded only on access.
#[derive(Clone, Default)]
pub struct RecordHeaders(HeaderStorage);

#[derive(Clone)]
enum HeaderStorage {
    List(Vec<RecordHeader>),
    Packed(PackedHeaders),
    InBatch(BatchHeaders),
}

/// Headers as they came in a Kafka batch. The constructor's caller has checked that they are complete.
#[derive(Clone)]
struct BatchHeaders {
    block: Bytes,
    /// Position of the first header.
    from: usize,
    count: usize,
}

impl BatchHeaders {
    fn iter(&self) -> impl Iterator<Item = (&[u8], std::ops::Range<usize>)> {
        header_ranges(&self.block, self.from, self.count).map(|(name, value)| (&self.block[name], value))
    }
}

/// Returns names and values of headers that lie in an unpacked batch.
pub(crate) fn headers_in_batch(block: &[u8], from: usize, count: usize) -> impl Iterator<Item = (&[u8], &[u8])> {
    header_ranges(block, from, count).map(|(name, value)| (&block[name], &block[value]))
}

thread_local! {
    /// Names that were given out, since records repeat them; bounded, since foreign producers may invent names without end.
    static NAMES: RefCell<Vec<Arc<str>>> = const { RefCell::new(Vec::new()) };
}

/// Names that are remembered.
const KNOWN_NAMES: usize = 64;

/// Returns one text for all records of a thread that have this name.
fn shared_name(name: &[u8]) -> Arc<str> {
    NAMES.with_borrow_mut(|names| {
        if let Some(known) = names.iter().find(|known| known.as_bytes() == name) {
            return Arc::clone(known);
        }
        let name: Arc<str> = String::from_utf8_lossy(name).into();
        if names.len() < KNOWN_NAMES {
            names.push(Arc::clone(&name));
        }
        name
    })
}

impl Default for HeaderStorage {
    fn default() -> Self {
        Self::List(Vec::new())
    }
}

/// Headers within a block: a table of [`ENTRY`] bytes each, and the values one after another. The constructor's caller has
/// checked that the names exist and the values lie within the block.
#[derive(Clone)]
pub(crate) struct PackedHeaders {
    pub block: Bytes,
    pub names: Arc<[Arc<str>]>,
    /// Position of the table.
    pub table: usize,
    pub count: usize,
    /// Position of the first value.
    pub values: usize,
}

impl PackedHeaders {
    /// Returns the entries of a table: index of the name, length of the value.
    pub fn entries(table: &[u8]) -> impl Iterator<Item = (usize, usize)> {
        table
            .as_chunks::<ENTRY>()
            .0
            .iter()
            .map(|&[a, b, c, d, e, f]| (usize::from(u16::from_le_bytes([a, b])), u32::from_le_bytes([c, d, e, f]) as usize))
    }

    /// Returns an entry of a table.
    pub fn entry(name: u16, length: u32) -> [u8; ENTRY] {
        let mut entry = [0; ENTRY];
        entry[..2].copy_from_slice(&name.to_le_bytes());
        entry[2..].copy_from_slice(&length.to_le_bytes());
        entry
    }

    /// Returns the number of bytes that a table of so many headers takes.
    pub const fn table_bytes(count: usize) -> usize {
        count * ENTRY
    }

    /// Returns the last value of this name. Asked for of every record, so it is one plain walk over the table.
    fn get(&self, name: &str) -> Option<&[u8]> {
        let table = &self.block[self.table..self.table + Self::table_bytes(self.count)];
        let (mut at, mut found) = (self.values, None);
        for (index, length) in Self::entries(table) {
            if *self.names[index] == *name {
                found = Some(at..at + length);
            }
            at += length;
        }
        found.map(|range| &self.block[range])
    }

    fn ranges(&self) -> impl Iterator<Item = (&Arc<str>, std::ops::Range<usize>)> {
        let table = &self.block[self.table..self.table + Self::table_bytes(self.count)];
        Self::entries(table).scan(self.values, |at, (name, length)| {
            let from = *at;
            *at += length;
            Some((&self.names[name], from..from + length))
        })
    }
}

impl RecordHeaders {
    pub(crate) fn packed(packed: PackedHeaders) -> Self {
        if packed.count == 0 { Self::default() } else { Self(HeaderStorage::Packed(packed)) }
    }

    /// Returns headers that lie in an unpacked batch.
    pub(crate) fn in_batch(block: &Bytes, from: usize, count: usize) -> Self {
        if count == 0 {
            Self::default()
        } else {
            Self(HeaderStorage::InBatch(BatchHeaders { block: block.clone(), from, count }))
        }
    }

    /// Returns the names and values, in order. In names that are not UTF-8, the invalid bytes are replaced.
    pub fn iter(&self) -> impl Iterator<Item = (Cow<'_, str>, &[u8])> {
        self.raw().map(|(name, value)| (String::from_utf8_lossy(name), value))
    }

    /// Returns the names and values, in order, as they came.
    pub fn raw(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let (list, packed, in_batch) = match &self.0 {
            HeaderStorage::List(list) => (Some(list), None, None),
            HeaderStorage::Packed(packed) => (None, Some(packed), None),
            HeaderStorage::InBatch(in_batch) => (None, None, Some(in_batch)),
        };
        let list = list.into_iter().flatten().map(|(name, value)| (name.as_bytes(), &value[..]));
        let packed =
            packed.into_iter().flat_map(|packed| packed.ranges().map(|(name, range)| (name.as_bytes(), &packed.block[range])));
        let in_batch = in_batch.into_iter().flat_map(|in_batch| headers_in_batch(&in_batch.block, in_batch.from, in_batch.count));
        list.chain(packed).chain(in_batch)
    }

    /// Returns the last value of this name.
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        match &self.0 {
            HeaderStorage::List(list) => list.iter().rev().find(|(known, _)| **known == *name).map(|(_, value)| &value[..]),
            HeaderStorage::Packed(packed) => packed.get(name),
            HeaderStorage::InBatch(in_batch) => {
                let found = in_batch.iter().filter(|(known, _)| *known == name.as_bytes()).last();
                found.map(|(_, value)| &in_batch.block[value])
            }
        }
    }

    pub fn len(&self) -> usize {
        match &self.0 {
            HeaderStorage::List(list) => list.len(),
            HeaderStorage::Packed(packed) => packed.count,
            HeaderStorage::InBatch(in_batch) => in_batch.count,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the headers as a list of their own; values still share the block.
    pub fn to_vec(&self) -> Vec<RecordHeader> {
        match &self.0 {
            HeaderStorage::List(list) => list.clone(),
            HeaderStorage::Packed(packed) => {
                packed.ranges().map(|(name, range)| (Arc::clone(name), packed.block.slice(range))).collect()
            }
            HeaderStorage::InBatch(in_batch) => {
                in_batch.iter().map(|(name, value)| (shared_name(name), in_batch.block.slice(value))).collect()
            }
        }
    }
}

impl From<Vec<RecordHeader>> for RecordHeaders {
    fn from(list: Vec<RecordHeader>) -> Self {
        Self(HeaderStorage::List(list))
    }
}

impl PartialEq for RecordHeaders {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for RecordHeaders {}

impl fmt::Debug for RecordHeaders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter().map(|(name, value)| (name, Bytes::copy_from_slice(value)))).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(name: &str, value: &'static str) -> RecordHeader {
        (name.into(), value.into())
    }

    /// Headers as they lie in a block, behind other bytes and before others.
    fn packed(names: &[&str], entries: &[(u16, &str)]) -> RecordHeaders {
        let table: Vec<u8> = entries.iter().flat_map(|(name, value)| PackedHeaders::entry(*name, value.len() as u32)).collect();
        let values: String = entries.iter().map(|(_, value)| *value).collect();
        let block = [b"before ", &table[..], b" between ", values.as_bytes(), b" after"].concat().into();
        let names = names.iter().map(|name| Arc::from(*name)).collect();
        RecordHeaders::packed(PackedHeaders { block, names, table: 7, count: entries.len(), values: 7 + table.len() + 9 })
    }

    #[test]
    fn an_entry_is_the_index_of_a_name_and_the_length_of_a_value() {
        let table = [PackedHeaders::entry(0x0201, 0x0605_0403), PackedHeaders::entry(7, 0)].concat();
        assert_eq!(table, [1, 2, 3, 4, 5, 6, 7, 0, 0, 0, 0, 0]);
        assert_eq!(PackedHeaders::table_bytes(2), table.len());
        assert_eq!(PackedHeaders::entries(&table).collect::<Vec<_>>(), [(0x0201, 0x0605_0403), (7, 0)]);
    }

    #[test]
    fn headers_in_a_block_are_those_of_a_list() {
        let list = vec![header("a", "first"), header("b", ""), header("a", "the last"), header("c", "x")];
        let packed = packed(&["c", "a", "b"], &[(1, "first"), (2, ""), (1, "the last"), (0, "x")]);
        let listed = RecordHeaders::from(list.clone());
        for headers in [&packed, &listed] {
            assert_eq!((headers.len(), headers.is_empty()), (4, false));
            let all: Vec<_> = headers.iter().collect();
            let all: Vec<_> = all.iter().map(|(name, value)| (&**name, *value)).collect();
            assert_eq!(all, [("a", &b"first"[..]), ("b", b""), ("a", b"the last"), ("c", b"x")]);
            assert_eq!(headers.to_vec(), list);
            for (name, value) in [("a", Some(&b"the last"[..])), ("b", Some(b"")), ("c", Some(b"x")), ("d", None), ("", None)] {
                assert_eq!(headers.get(name), value, "{name}");
            }
            assert_eq!(format!("{headers:?}"), r#"[("a", b"first"), ("b", b""), ("a", b"the last"), ("c", b"x")]"#);
        }
        assert_eq!(packed, listed);
    }

    #[test]
    fn headers_are_equal_where_names_values_and_order_are() {
        let headers = packed(&["a", "b"], &[(0, "1"), (1, "2")]);
        assert_eq!(headers, packed(&["b", "a"], &[(1, "1"), (0, "2")]));
        for other in [
            packed(&["a", "b"], &[(1, "2"), (0, "1")]),
            packed(&["a", "b"], &[(0, "1")]),
            packed(&["a", "b"], &[(0, "12"), (1, "")]),
            RecordHeaders::default(),
        ] {
            assert_ne!(headers, other);
        }
    }

    #[test]
    fn a_record_without_headers_has_none_and_holds_no_block() {
        for none in [RecordHeaders::default(), packed(&["a"], &[])] {
            assert!(matches!(&none.0, HeaderStorage::List(list) if list.is_empty()));
            assert_eq!((none.len(), none.is_empty(), none.get("a"), none.iter().count()), (0, true, None, 0));
        }
    }
}
