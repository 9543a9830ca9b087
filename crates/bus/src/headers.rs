//! The headers of a record that was read: a list, or still in the block they came in.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use crate::Header;

/// Bytes of one header in a packed table: index of the name, length of the value.
const ENTRY: usize = 6;

/// A record's headers: UTF-8 names, bytes as values, in order; a name may stand several times.
///
/// Most readers look at one header of seven, so headers stay where they were read from until somebody asks.
#[derive(Clone, Default)]
pub struct Headers(Form);

#[derive(Clone)]
enum Form {
    List(Vec<Header>),
    Packed(Packed),
}

impl Default for Form {
    fn default() -> Self {
        Self::List(Vec::new())
    }
}

/// Headers within a block: a table of [`ENTRY`] bytes each, and the values one after another. Whoever makes it has checked
/// that the names are there and the values lie within the block.
#[derive(Clone)]
pub(crate) struct Packed {
    pub block: Bytes,
    pub names: Arc<[Arc<str>]>,
    /// Where the table begins.
    pub table: usize,
    pub count: usize,
    /// Where the first value begins.
    pub values: usize,
}

impl Packed {
    /// The entries of a table: index of the name, length of the value.
    pub fn entries(table: &[u8]) -> impl Iterator<Item = (usize, usize)> {
        table
            .as_chunks::<ENTRY>()
            .0
            .iter()
            .map(|&[a, b, c, d, e, f]| (usize::from(u16::from_le_bytes([a, b])), u32::from_le_bytes([c, d, e, f]) as usize))
    }

    /// An entry of a table.
    pub fn entry(name: u16, length: u32) -> [u8; ENTRY] {
        let mut entry = [0; ENTRY];
        entry[..2].copy_from_slice(&name.to_le_bytes());
        entry[2..].copy_from_slice(&length.to_le_bytes());
        entry
    }

    /// Bytes that a table of so many headers takes.
    pub const fn table_bytes(count: usize) -> usize {
        count * ENTRY
    }

    /// The last value of this name. Asked for of every record, so it is one plain walk over the table.
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

impl Headers {
    pub(crate) fn packed(packed: Packed) -> Self {
        if packed.count == 0 { Self::default() } else { Self(Form::Packed(packed)) }
    }

    /// Names and values, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &[u8])> {
        let (list, packed) = match &self.0 {
            Form::List(list) => (Some(list), None),
            Form::Packed(packed) => (None, Some(packed)),
        };
        let list = list.into_iter().flatten().map(|(name, value)| (name, &value[..]));
        list.chain(packed.into_iter().flat_map(|packed| packed.ranges().map(|(name, range)| (name, &packed.block[range]))))
    }

    /// The last value of this name.
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        match &self.0 {
            Form::List(list) => list.iter().rev().find(|(known, _)| **known == *name).map(|(_, value)| &value[..]),
            Form::Packed(packed) => packed.get(name),
        }
    }

    pub fn len(&self) -> usize {
        match &self.0 {
            Form::List(list) => list.len(),
            Form::Packed(packed) => packed.count,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// As a list of their own; values still share the block.
    pub fn to_vec(&self) -> Vec<Header> {
        match &self.0 {
            Form::List(list) => list.clone(),
            Form::Packed(packed) => packed.ranges().map(|(name, range)| (Arc::clone(name), packed.block.slice(range))).collect(),
        }
    }
}

impl From<Vec<Header>> for Headers {
    fn from(list: Vec<Header>) -> Self {
        Self(Form::List(list))
    }
}

impl PartialEq for Headers {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for Headers {}

impl fmt::Debug for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter().map(|(name, value)| (name, Bytes::copy_from_slice(value)))).finish()
    }
}
