//! Key, value and headers of records that were read, copied into blocks of several records.

use std::ops::Range;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use crate::headers::{PackedHeaders, RecordHeaders};

/// Bytes of one block. A record that is kept holds its whole block, so blocks are small. A dozen records of the pipeline fit, and
/// share the cost of an allocation.
const BLOCK: usize = 16 << 10;
/// Room asked for besides key and value; headers of the pipeline take two thirds of it.
const HEADERS: usize = 512;
/// Names that are remembered: foreign producers may invent them without end, events of the pipeline have fewer than twenty.
const KNOWN: usize = 64;

/// A record's own bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordContent {
    pub key: Option<Bytes>,
    pub value: Option<Bytes>,
    pub headers: RecordHeaders,
}

#[derive(Debug)]
pub struct RecordPacker {
    block: BytesMut,
    names: Vec<Arc<str>>,
    /// The same names, for the records; `None` if they are made anew for the next record.
    shared: Option<Arc<[Arc<str>]>>,
    /// Index of the name and length of the value, for each header of the present record.
    entries: Vec<(usize, usize)>,
}

impl RecordPacker {
    pub fn new() -> Self {
        Self { block: BytesMut::with_capacity(BLOCK), names: Vec::new(), shared: None, entries: Vec::new() }
    }

    /// Headers: names, UTF-8 or replaced if they are not, and values, in order.
    pub fn pack<'a>(
        &mut self,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: impl Iterator<Item = (&'a [u8], &'a [u8])>,
    ) -> RecordContent {
        self.entries.clear();
        if self.names.len() > KNOWN {
            self.names.clear();
            self.shared = None;
        }
        self.block.reserve(key.map_or(0, <[u8]>::len) + value.map_or(0, <[u8]>::len) + HEADERS);
        let (key, value) = (self.append(key), self.append(value));
        let values = self.block.len();
        // Records repeat the names of the last one in the same order, mostly.
        let mut expected = 0;
        for (name, value) in headers {
            let name = self.name(name, expected);
            expected = name + 1;
            self.block.extend_from_slice(value);
            self.entries.push((name, value.len()));
        }
        let table = self.block.len();
        let packs = u16::try_from(self.names.len()).is_ok();
        if packs {
            for &(name, length) in &self.entries {
                self.block.extend_from_slice(&PackedHeaders::entry(name as u16, length as u32));
            }
        }
        let block = self.block.split().freeze();
        let slice = |range: Option<Range<usize>>| range.map(|range| block.slice(range));
        let (key, value) = (slice(key), slice(value));
        let headers = if self.entries.is_empty() {
            RecordHeaders::default()
        } else if packs {
            let names = self.shared.get_or_insert_with(|| self.names.as_slice().into());
            RecordHeaders::packed(PackedHeaders { block, names: Arc::clone(names), table, count: self.entries.len(), values })
        } else {
            let mut at = values;
            let header = |&(name, length): &(usize, usize)| {
                let from = at;
                at += length;
                (Arc::clone(&self.names[name]), block.slice(from..at))
            };
            self.entries.iter().map(header).collect::<Vec<_>>().into()
        };
        RecordContent { key, value, headers }
    }

    fn append(&mut self, bytes: Option<&[u8]>) -> Option<Range<usize>> {
        let from = self.block.len();
        self.block.extend_from_slice(bytes?);
        Some(from..self.block.len())
    }

    fn name(&mut self, name: &[u8], expected: usize) -> usize {
        if self.names.get(expected).is_some_and(|known| known.as_bytes() == name) {
            return expected;
        }
        let name = String::from_utf8_lossy(name);
        // A record of countless names must not be searched countless times.
        self.names.iter().take(KNOWN).position(|known| **known == *name).unwrap_or_else(|| {
            self.names.push(name.into());
            self.shared = None;
            self.names.len() - 1
        })
    }
}

#[cfg(test)]
mod tests {
    use eadt_testing::cases;
    use proptest::collection::vec;
    use proptest::option;
    use proptest::prelude::*;

    use super::*;

    type Raw = (Option<Vec<u8>>, Option<Vec<u8>>, Vec<(Vec<u8>, Vec<u8>)>);

    fn pack(packer: &mut RecordPacker, (key, value, headers): &Raw) -> RecordContent {
        packer.pack(key.as_deref(), value.as_deref(), headers.iter().map(|(name, value)| (&name[..], &value[..])))
    }

    /// Returns each part copied by itself.
    fn plainly((key, value, headers): &Raw) -> RecordContent {
        let header = |(name, value): &(Vec<u8>, Vec<u8>)| (String::from_utf8_lossy(name).into(), Bytes::from(value.clone()));
        RecordContent {
            key: key.clone().map(Bytes::from),
            value: value.clone().map(Bytes::from),
            headers: headers.iter().map(header).collect::<Vec<_>>().into(),
        }
    }

    fn raw() -> impl Strategy<Value = Raw> {
        let name = prop_oneof![
            8 => prop::sample::select(vec!["ce_id", "ce_type", "ce_source", ""]).prop_map(|name| name.as_bytes().to_vec()),
            1 => vec(any::<u8>(), 0..4),
            1 => any::<u32>().prop_map(|name| name.to_string().into_bytes()),
        ];
        let headers = vec((name, vec(any::<u8>(), 0..40)), 0..40);
        let value = prop_oneof![4 => vec(any::<u8>(), 0..900), 1 => (0..2 * BLOCK).prop_map(|length| vec![7; length])];
        (option::of(vec(any::<u8>(), 0..20)), option::of(value), headers)
    }

    proptest! {
        #![proptest_config(cases(64))]

        #[test]
        fn records_in_shared_blocks_are_what_was_read(raws in vec(raw(), 0..60)) {
            let mut packer = RecordPacker::new();
            // All are kept until the end: no record may be written over by a later one.
            let packed: Vec<_> = raws.iter().map(|raw| pack(&mut packer, raw)).collect();
            for (packed, raw) in packed.iter().zip(&raws) {
                let plain = plainly(raw);
                prop_assert_eq!(packed, &plain);
                for (name, _) in plain.headers.iter() {
                    prop_assert_eq!(packed.headers.get(&name), plain.headers.get(&name));
                }
            }
            prop_assert!(packer.names.len() <= KNOWN + 40);
        }
    }

    #[test]
    fn more_names_than_a_table_can_number_are_kept_too() {
        let mut packer = RecordPacker::new();
        let many: Raw = (None, None, (0..70_000_u32).map(|n| (n.to_string().into_bytes(), n.to_be_bytes().to_vec())).collect());
        let few: Raw = (None, Some(vec![1]), vec![(b"69999".to_vec(), vec![2])]);
        for raw in [&few, &many, &few] {
            assert_eq!(pack(&mut packer, raw), plainly(raw));
        }
        assert_eq!(packer.names.len(), 1, "the names of a foreign record are remembered");
    }

    #[test]
    fn records_share_blocks_and_names() {
        let mut packer = RecordPacker::new();
        let raw: Raw = (Some(vec![1]), Some(vec![2; 900]), vec![(b"ce_id".to_vec(), vec![3]), (b"ce_type".to_vec(), vec![4])]);
        let records: Vec<_> = (0..100).map(|_| pack(&mut packer, &raw)).collect();
        let neighbours = records.windows(2).filter(|pair| {
            let value = |content: &RecordContent| content.value.as_ref().map(|value| value.as_ptr() as usize).unwrap_or_default();
            value(&pair[0]).abs_diff(value(&pair[1])) < 1000
        });
        assert!(neighbours.count() > 80, "each record has a block of its own");
        let shared = packer.shared.as_ref().map(Arc::strong_count);
        assert_eq!(shared, Some(101), "names are copied for each record");
    }
}
