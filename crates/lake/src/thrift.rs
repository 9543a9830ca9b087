//! The part of Thrift's compact protocol that page headers and the schema of a footer need. Sizes in them are checked before the
//! Parquet reader uses them.

/// Structures and lists within each other, at most. Those of a footer are seven.
const MAX_DEPTH: u8 = 12;

/// One field of a structure: its id, and its type in the compact protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ThriftField {
    pub id: i16,
    pub kind: u8,
}

const TRUE: u8 = 1;
const FALSE: u8 = 2;
const BYTE: u8 = 3;
const I16: u8 = 4;
pub(crate) const I32: u8 = 5;
const I64: u8 = 6;
const DOUBLE: u8 = 7;
const BINARY: u8 = 8;
pub(crate) const LIST: u8 = 9;
const SET: u8 = 10;
pub(crate) const STRUCT: u8 = 12;

/// Reads values from the front of `rest`. Every call returns `None` if the bytes end, or are not of this protocol.
#[derive(Debug)]
pub(crate) struct ThriftReader<'a> {
    rest: &'a [u8],
}

impl<'a> ThriftReader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Returns the number of bytes that are not read yet.
    pub(crate) fn remaining(&self) -> usize {
        self.rest.len()
    }

    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*first)
    }

    /// Returns a number without a sign, seven bits in each byte.
    pub(crate) fn unsigned(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    pub(crate) fn signed(&mut self) -> Option<i64> {
        self.unsigned().map(|value| (value >> 1).cast_signed() ^ -(value & 1).cast_signed())
    }

    /// Returns a count or size, which is not negative.
    pub(crate) fn size(&mut self) -> Option<u64> {
        self.signed()?.try_into().ok()
    }

    /// Returns the type of the items of a list, and how many there are.
    pub(crate) fn list(&mut self) -> Option<(u8, u64)> {
        let head = self.byte()?;
        let count = if head >> 4 == 15 { self.unsigned()? } else { u64::from(head >> 4) };
        Some((head & 15, count))
    }

    /// Calls `field` with each field of a structure; it returns `Some(true)` if it has read the value, and `Some(false)` if it is
    /// to be passed over. Returns `None` if a field comes twice.
    pub(crate) fn each_field(&mut self, mut field: impl FnMut(&mut Self, ThriftField) -> Option<bool>) -> Option<()> {
        self.fields_within(MAX_DEPTH, &mut field)
    }

    fn fields_within(&mut self, depth: u8, field: &mut dyn FnMut(&mut Self, ThriftField) -> Option<bool>) -> Option<()> {
        let mut last = 0_i16;
        loop {
            let head = self.byte()?;
            if head == 0 {
                return Some(());
            }
            let id = if head >> 4 == 0 { self.signed()?.try_into().ok()? } else { last.checked_add(i16::from(head >> 4))? };
            // Writers number fields upwards; one that comes twice could be read as the one or the other.
            if id <= last {
                return None;
            }
            last = id;
            let kind = head & 15;
            if !field(self, ThriftField { id, kind })? {
                self.skip(kind, depth)?;
            }
        }
    }

    fn skip(&mut self, kind: u8, depth: u8) -> Option<()> {
        let depth = depth.checked_sub(1)?;
        match kind {
            TRUE | FALSE => {}
            BYTE => drop(self.byte()?),
            I16 | I32 | I64 => drop(self.unsigned()?),
            DOUBLE => self.pass(8)?,
            BINARY => {
                let length = self.unsigned()?;
                self.pass(length)?;
            }
            STRUCT => self.fields_within(depth, &mut |_, _| Some(false))?,
            LIST | SET => {
                let (kind, count) = self.list()?;
                // Truths of a list have a byte each.
                let kind = if matches!(kind, TRUE | FALSE) { BYTE } else { kind };
                for _ in 0..count {
                    self.skip(kind, depth)?;
                }
            }
            _ => return None,
        }
        Some(())
    }

    /// Returns the next bytes.
    pub(crate) fn take(&mut self, bytes: u64) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(usize::try_from(bytes).ok()?)?;
        self.rest = rest;
        Some(taken)
    }

    fn pass(&mut self, bytes: u64) -> Option<()> {
        self.take(bytes)?;
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_or_passed_over() {
        // 1: i32 = 5, 2: binary "ab", 3: struct {1: true}, 4: i64 = -2, 20: i32 = 300.
        let bytes = [0x15, 10, 0x18, 2, b'a', b'b', 0x1c, 0x11, 0, 0x16, 3, 0x05, 40, 0xd8, 0x04, 0, 99];
        let (mut reader, mut sizes) = (ThriftReader::new(&bytes), Vec::new());
        let read = reader.each_field(|reader, field| {
            if field.kind == I32 {
                sizes.push((field.id, reader.size()?));
            }
            Some(field.kind == I32)
        });
        assert_eq!((read, sizes, reader.remaining()), (Some(()), vec![(1, 5), (20, 300)], 1));
    }

    #[test]
    fn lists_are_passed_over() {
        // 1: list of two binaries, 2: list of two structs {1: list of three i32}, 3: list of two truths.
        let bytes = [0x19, 0x28, 1, b'a', 0, 0x19, 0x2c, 0x19, 0x35, 1, 2, 3, 0, 0x19, 0x05, 0, 0x19, 0x21, 1, 2, 0];
        let mut reader = ThriftReader::new(&bytes);
        assert_eq!((reader.each_field(|_, _| Some(false)), reader.remaining()), (Some(()), 0));
    }

    #[test]
    fn what_is_cut_short_negative_repeated_or_endless_is_refused() {
        for bytes in [
            &[0x15][..],
            &[0x15, 10],
            &[0x18, 9, b'a', 0],
            &[0x15, 3, 0],
            &[0x15, 10, 0x05, 2, 10, 0],
            &[0x1d, 0],
            &[0x19, 0xf8, 0xff, 0xff, 0x03],
            &[0x1c; 100],
            &[0x16, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0],
        ] {
            let read = ThriftReader::new(bytes).each_field(|reader, field| {
                if field.kind == I32 {
                    reader.size()?;
                }
                Some(field.kind == I32)
            });
            assert_eq!(read, None, "{bytes:?}");
        }
    }
}
