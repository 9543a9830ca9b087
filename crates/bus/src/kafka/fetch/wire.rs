//! Primitive types of the Kafka protocol. Every length is checked against the bytes that are there before anything is reserved
//! for it.

/// An answer that does not follow the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the answer does not follow the protocol: {0}")]
pub struct WireError(pub &'static str);

type Result<T> = std::result::Result<T, WireError>;

/// Reads a message from its beginning to its end.
#[derive(Debug, Clone, Copy)]
pub struct WireReader<'a> {
    rest: &'a [u8],
}

impl<'a> WireReader<'a> {
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Returns how many bytes are left.
    pub const fn rest(&self) -> usize {
        self.rest.len()
    }

    pub fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let (slice, rest) = self.rest.split_at_checked(count).ok_or(WireError("it is cut off"))?;
        self.rest = rest;
        Ok(slice)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (bytes, rest) = self.rest.split_first_chunk().ok_or(WireError("it is cut off"))?;
        self.rest = rest;
        Ok(*bytes)
    }

    pub fn i16(&mut self) -> Result<i16> {
        self.array().map(i16::from_be_bytes)
    }

    pub fn i32(&mut self) -> Result<i32> {
        self.array().map(i32::from_be_bytes)
    }

    pub fn i64(&mut self) -> Result<i64> {
        self.array().map(i64::from_be_bytes)
    }

    pub fn uuid(&mut self) -> Result<[u8; 16]> {
        self.array()
    }

    pub fn unsigned_varint(&mut self) -> Result<u32> {
        let mut value = 0_u32;
        for shift in [0, 7, 14, 21, 28] {
            let [byte] = self.array()?;
            value |= u32::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(WireError("a length has more than five bytes"))
    }

    /// Returns the bytes of a compact string, `None` if it is null.
    pub fn compact_bytes(&mut self) -> Result<Option<&'a [u8]>> {
        match self.unsigned_varint()? {
            0 => Ok(None),
            length => self.take(length as usize - 1).map(Some),
        }
    }

    pub fn compact_text(&mut self) -> Result<Option<&'a str>> {
        self.compact_bytes()?.map(|bytes| std::str::from_utf8(bytes).map_err(|_| WireError("a text is not UTF-8"))).transpose()
    }

    /// Returns how many elements an array has. Each takes a byte at least, so that a count is never larger than what is left.
    pub fn compact_count(&mut self) -> Result<usize> {
        let count = (self.unsigned_varint()? as usize).saturating_sub(1);
        if count > self.rest.len() { Err(WireError("an array has more elements than bytes")) } else { Ok(count) }
    }

    /// Reads a string or bytes with a length of two bytes, `None` if it is null.
    #[cfg_attr(not(feature = "kafka-tls"), allow(dead_code, reason = "SASL needs the build with TLS"))]
    pub fn short_bytes(&mut self) -> Result<Option<&'a [u8]>> {
        let length = self.i16()?;
        usize::try_from(length).ok().map(|length| self.take(length)).transpose()
    }

    /// Reads bytes with a length of four bytes, empty if they are null.
    #[cfg_attr(not(feature = "kafka-tls"), allow(dead_code, reason = "SASL needs the build with TLS"))]
    pub fn long_bytes(&mut self) -> Result<&'a [u8]> {
        let length = self.i32()?;
        usize::try_from(length).map_or(Ok(&[]), |length| self.take(length))
    }

    /// Gives `each` the tagged fields of a structure.
    pub fn tags(&mut self, mut each: impl FnMut(u32, WireReader<'a>) -> Result<()>) -> Result<()> {
        for _ in 0..self.unsigned_varint()? {
            let tag = self.unsigned_varint()?;
            let length = self.unsigned_varint()? as usize;
            each(tag, Self::new(self.take(length)?))?;
        }
        Ok(())
    }

    pub fn skip_tags(&mut self) -> Result<()> {
        self.tags(|_, _| Ok(()))
    }
}

/// Appends primitive types to a message.
pub trait WireWriter {
    fn put_i8(&mut self, value: i8);
    fn put_i16(&mut self, value: i16);
    fn put_i32(&mut self, value: i32);
    fn put_i64(&mut self, value: i64);
    fn put_unsigned_varint(&mut self, value: u32);
    /// Writes a text with a length of two bytes.
    fn put_short_text(&mut self, text: &str);
    fn put_compact_text(&mut self, text: &str);
    fn put_compact_count(&mut self, count: usize);
    fn put_no_tags(&mut self);
}

impl WireWriter for Vec<u8> {
    fn put_i8(&mut self, value: i8) {
        self.extend_from_slice(&value.to_be_bytes());
    }

    fn put_i16(&mut self, value: i16) {
        self.extend_from_slice(&value.to_be_bytes());
    }

    fn put_i32(&mut self, value: i32) {
        self.extend_from_slice(&value.to_be_bytes());
    }

    fn put_i64(&mut self, value: i64) {
        self.extend_from_slice(&value.to_be_bytes());
    }

    fn put_unsigned_varint(&mut self, mut value: u32) {
        while value >= 0x80 {
            self.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.push(value as u8);
    }

    fn put_short_text(&mut self, text: &str) {
        self.put_i16(text.len() as i16);
        self.extend_from_slice(text.as_bytes());
    }

    fn put_compact_text(&mut self, text: &str) {
        self.put_compact_count(text.len());
        self.extend_from_slice(text.as_bytes());
    }

    fn put_compact_count(&mut self, count: usize) {
        self.put_unsigned_varint(count as u32 + 1);
    }

    fn put_no_tags(&mut self) {
        self.push(0);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(eadt_testing::cases(64))]

        #[test]
        fn a_varint_is_read_as_it_was_written(value: u32) {
            let mut bytes = Vec::new();
            bytes.put_unsigned_varint(value);
            prop_assert_eq!(WireReader::new(&bytes).unsigned_varint(), Ok(value));
            prop_assert!(WireReader::new(&bytes[..bytes.len() - 1]).unsigned_varint().is_err());
        }
    }

    #[test]
    fn a_length_beyond_the_end_is_an_error_and_reserves_nothing() {
        let mut bytes = Vec::new();
        bytes.put_unsigned_varint(u32::MAX);
        assert!(WireReader::new(&bytes).compact_bytes().is_err());
        assert!(WireReader::new(&bytes).compact_count().is_err());
        assert!(WireReader::new(&[0xff; 6]).unsigned_varint().is_err());
        assert!(WireReader::new(&[0x7f, 0xff, 0]).short_bytes().is_err());
        assert!(WireReader::new(&[0x7f, 0xff, 0xff, 0xff, 0]).long_bytes().is_err());
        assert_eq!(WireReader::new(&[0xff, 0xff]).short_bytes(), Ok(None));
        assert_eq!(WireReader::new(&[0]).compact_text(), Ok(None));
    }
}
