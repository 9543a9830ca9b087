//! The records of an unpacked batch: where their parts lie in it. Nothing is copied.

use std::ops::Range;

use eadt_schemas::envelope::header;

use crate::batch::{ByteRange, RecordRanges};

/// The bytes of a batch that are not records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct RecordError(pub &'static str);

type Result<T> = std::result::Result<T, RecordError>;

/// A record in the unpacked bytes of its batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParsedRecord {
    pub offset_delta: i64,
    pub timestamp_delta: i64,
    pub ranges: RecordRanges,
}

/// Walks over bytes by their varints.
#[derive(Debug, Clone, Copy)]
struct VarintReader<'a> {
    bytes: &'a [u8],
    at: usize,
}

const CUT_OFF: RecordError = RecordError("a record is cut off");

impl VarintReader<'_> {
    #[inline]
    fn byte(&mut self) -> Result<u8> {
        let byte = *self.bytes.get(self.at).ok_or(CUT_OFF)?;
        self.at += 1;
        Ok(byte)
    }

    /// Reads a signed number in zigzag order. Nearly all of them take one byte or two.
    #[inline]
    fn varint(&mut self) -> Result<i64> {
        let value = match self.bytes.get(self.at..) {
            Some([first @ 0..0x80, ..]) => {
                self.at += 1;
                u64::from(*first)
            }
            Some([first, second @ 0..0x80, ..]) => {
                self.at += 2;
                u64::from(*first & 0x7f) | u64::from(*second) << 7
            }
            _ => {
                let first = self.byte()?;
                self.long_varint(first)?
            }
        };
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    #[cold]
    #[inline(never)]
    fn long_varint(&mut self, first: u8) -> Result<u64> {
        let (mut value, mut shift) = (u64::from(first & 0x7f), 7);
        loop {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
            shift += 7;
            if shift > 63 {
                return Err(RecordError("a number in a record has more than ten bytes"));
            }
        }
    }

    /// Reads bytes with their length before them; `None` if it is negative. Nearly all have fewer than 64.
    #[inline]
    fn bytes(&mut self) -> Result<Option<Range<usize>>> {
        match self.bytes.get(self.at) {
            Some(length @ 0..0x80) if length & 1 == 0 => {
                let from = self.at + 1;
                self.at = from + usize::from(length >> 1);
                if self.at <= self.bytes.len() { Ok(Some(from..self.at)) } else { Err(CUT_OFF) }
            }
            _ => self.long_bytes(),
        }
    }

    #[inline(never)]
    fn long_bytes(&mut self) -> Result<Option<Range<usize>>> {
        let length = self.varint()?;
        let Ok(length) = usize::try_from(length) else { return Ok(None) };
        let end = self.at.checked_add(length).filter(|end| *end <= self.bytes.len()).ok_or(CUT_OFF)?;
        let range = self.at..end;
        self.at = end;
        Ok(Some(range))
    }

    #[inline]
    fn byte_range(&mut self) -> Result<ByteRange> {
        self.bytes().map(|range| range.map_or(ByteRange::NONE, byte_range))
    }
}

/// Converts a range; a batch has fewer bytes than 4 GiB.
fn byte_range(range: Range<usize>) -> ByteRange {
    ByteRange { from: range.start as u32, length: range.len() as u32 }
}

/// Returns the record that begins at `at`, and moves behind it.
pub fn next_record(unpacked: &[u8], at: &mut usize) -> Result<ParsedRecord> {
    let mut cursor = VarintReader { bytes: unpacked, at: *at };
    let Some(body) = cursor.bytes()? else { return Err(RecordError("the length of a record is negative")) };
    // No part of a record may lie beyond its end.
    cursor = VarintReader { bytes: &unpacked[..body.end], at: body.start };
    cursor.byte()?;
    let (timestamp_delta, offset_delta) = (cursor.varint()?, cursor.varint()?);
    let (key, value) = (cursor.byte_range()?, cursor.byte_range()?);
    let count = u32::try_from(cursor.varint()?).map_err(|_| RecordError("a record has an impossible number of headers"))?;
    let (headers, mut event_type, mut is_sent_again) = (cursor.at as u32, ByteRange::NONE, false);
    for _ in 0..count {
        let Some(name) = cursor.bytes()? else { return Err(RecordError("a header of a record has no name")) };
        let value = cursor.bytes()?;
        let name = &unpacked[name];
        if *name == *header::TYPE.as_bytes() {
            event_type = byte_range(value.unwrap_or(cursor.at..cursor.at));
        }
        is_sent_again |= *name == *header::SENT_AGAIN.as_bytes();
    }
    if cursor.at != body.end {
        return Err(RecordError("a record is longer than its parts"));
    }
    *at = body.end;
    let place = RecordRanges { key, value, event_type, headers, header_count: count, is_sent_again };
    Ok(ParsedRecord { offset_delta, timestamp_delta, ranges: place })
}

/// Returns the names and values in the headers of a record, which [`next_record`] has found whole.
pub fn header_ranges(block: &[u8], from: usize, count: usize) -> impl Iterator<Item = (Range<usize>, Range<usize>)> {
    let mut cursor = VarintReader { bytes: block, at: from };
    (0..count).map_while(move |_| {
        let name = cursor.bytes().ok()??;
        let end = name.end;
        Some((name, cursor.bytes().ok()?.unwrap_or(end..end)))
    })
}

/// Writes a signed number in zigzag order.
#[cfg(any(test, feature = "simulation"))]
pub fn put_varint(bytes: &mut Vec<u8>, value: i64) {
    let mut rest = ((value << 1) ^ (value >> 63)) as u64;
    while rest >= 0x80 {
        bytes.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    bytes.push(rest as u8);
}

#[cfg(test)]
pub mod tests {
    use proptest::collection::vec;
    use proptest::option;
    use proptest::prelude::*;

    use super::*;

    /// A record as it is sent.
    #[derive(Debug, Clone, Default)]
    pub struct SentRecord {
        pub timestamp_delta: i64,
        pub offset_delta: i64,
        pub key: Option<Vec<u8>>,
        pub value: Option<Vec<u8>>,
        pub headers: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    }

    fn put_bytes(bytes: &mut Vec<u8>, part: Option<&[u8]>) {
        put_varint(bytes, part.map_or(-1, |part| part.len() as i64));
        bytes.extend_from_slice(part.unwrap_or_default());
    }

    pub fn write(records: &[SentRecord]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for record in records {
            let mut body = vec![0];
            put_varint(&mut body, record.timestamp_delta);
            put_varint(&mut body, record.offset_delta);
            put_bytes(&mut body, record.key.as_deref());
            put_bytes(&mut body, record.value.as_deref());
            put_varint(&mut body, record.headers.len() as i64);
            for (name, value) in &record.headers {
                put_bytes(&mut body, Some(name));
                put_bytes(&mut body, value.as_deref());
            }
            put_varint(&mut bytes, body.len() as i64);
            bytes.extend_from_slice(&body);
        }
        bytes
    }

    pub fn sent() -> impl Strategy<Value = SentRecord> {
        let some = || option::of(vec(any::<u8>(), 0..40));
        let name = prop_oneof![
            vec(any::<u8>(), 0..9),
            Just(header::TYPE.as_bytes().to_vec()),
            Just(header::SENT_AGAIN.as_bytes().to_vec())
        ];
        (any::<i64>(), any::<i32>(), some(), some(), vec((name, some()), 0..6)).prop_map(
            |(timestamp_delta, offset_delta, key, value, headers)| SentRecord {
                timestamp_delta,
                offset_delta: i64::from(offset_delta),
                key,
                value,
                headers,
            },
        )
    }

    fn read(bytes: &[u8], count: usize) -> Result<Vec<SentRecord>> {
        let mut at = 0;
        let part = |byte_range: ByteRange| byte_range.of(bytes).map(<[u8]>::to_vec);
        (0..count)
            .map(|_| {
                let ParsedRecord { offset_delta, timestamp_delta, ranges: place } = next_record(bytes, &mut at)?;
                let headers = || header_ranges(bytes, place.headers as usize, place.header_count as usize);
                let types = headers().filter(|(name, _)| bytes[name.clone()] == *header::TYPE.as_bytes());
                assert_eq!(place.event_type.of(bytes), types.last().map(|(_, value)| &bytes[value]), "the last one");
                let is_mark = |name: std::ops::Range<usize>| bytes[name] == *header::SENT_AGAIN.as_bytes();
                assert_eq!(place.is_sent_again, headers().any(|(name, _)| is_mark(name)));
                Ok(SentRecord {
                    timestamp_delta,
                    offset_delta,
                    key: part(place.key),
                    value: part(place.value),
                    headers: headers().map(|(name, value)| (bytes[name].to_vec(), Some(bytes[value].to_vec()))).collect(),
                })
            })
            .collect()
    }

    proptest! {
        #![proptest_config(eadt_testing::cases(128))]

        #[test]
        fn records_are_read_as_they_were_written(records in vec(sent(), 0..20)) {
            let bytes = write(&records);
            let found = read(&bytes, records.len()).unwrap();
            for (found, sent) in found.iter().zip(&records) {
                let plain = |sent: &SentRecord| (sent.timestamp_delta, sent.offset_delta, sent.key.clone(), sent.value.clone());
                prop_assert_eq!(plain(found), plain(sent));
                let headers: Vec<_> = sent.headers.iter().map(|(name, value)| (name.clone(), Some(value.clone().unwrap_or_default()))).collect();
                prop_assert_eq!(&found.headers, &headers);
            }
            for end in 0..bytes.len().min(200) {
                // A truncated record is an error.
                prop_assert!(read(&bytes[..end], records.len()).is_err());
            }
        }

        #[test]
        fn any_bytes_are_records_or_an_error(bytes in vec(any::<u8>(), 0..300)) {
            drop(read(&bytes, 1000));
        }
    }

    #[test]
    fn lengths_that_lie_are_errors() {
        let mut at = 0;
        for (bytes, error) in [
            (&[1][..], "the length of a record is negative"),
            (&[0xff; 20], "a number in a record has more than ten bytes"),
            (&[0x7e, 0], "a record is cut off"),
            // Longer than its parts: no key, no value, no header, and a byte more.
            (&[14, 0, 0, 0, 1, 1, 0, 9], "a record is longer than its parts"),
            (&[12, 0, 0, 0, 1, 1, 1], "a record has an impossible number of headers"),
            (&[14, 0, 0, 0, 1, 1, 2, 1], "a header of a record has no name"),
            // A value that reaches into the next record.
            (&[12, 0, 0, 0, 1, 40, 0, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9], "a record is cut off"),
        ] {
            assert_eq!(next_record(bytes, &mut at), Err(RecordError(error)), "{bytes:?}");
            assert_eq!(at, 0);
        }
    }
}
