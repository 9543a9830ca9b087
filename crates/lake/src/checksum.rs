//! A checksum over a whole file, kept in the file's own footer: Parquet's page checksums leave the footer out, and a flipped bit
//! there moves a column.
//!
//! The footer has the key `eadt.crc32c` with eight hexadecimal digits: CRC-32C of all bytes of the file, these digits taken as
//! zeros. A copy keeps it, other programs pass over it. Files of versions before it have none and are read as they are; their
//! `created_by` distinguishes them from files whose key was damaged.

use parquet::file::reader::{ChunkReader, Length};

use crate::store::ParquetInput;

pub(crate) const KEY: &str = "eadt.crc32c";
/// Placeholder of the digits while they are computed.
pub(crate) const UNKNOWN: &str = "00000000";
/// Header of a text field that follows the field before it, in Thrift's compact protocol. The length of a short text comes next.
const TEXT_FOLLOWS: u8 = 0x18;
/// Length of the footer, and the magic.
const TAIL_BYTES: u64 = 8;
const CHUNK_BYTES: u64 = 1 << 20;

/// Writes the checksum into the footer of a complete file that has [`UNKNOWN`] there. Returns false if it has not.
pub(crate) fn seal(file: &mut [u8]) -> bool {
    let footer = footer_start(file.len() as u64, file.last_chunk().copied());
    let digits = |start: usize| Some((start, find(&file[start..], KEY, UNKNOWN.len())?));
    let Some((start, place)) = footer.and_then(|start| digits(start as usize)) else { return false };
    let sum = crc32c::crc32c(file);
    file[start + place..][..UNKNOWN.len()].copy_from_slice(format!("{sum:08x}").as_bytes());
    true
}

/// Replaces the value of a key in the footer by one of the same length, and writes the checksum anew. Returns false if the footer
/// lacks one of them.
pub(crate) fn replace(file: &mut [u8], key: &str, value: &str) -> bool {
    let Some(start) = footer_start(file.len() as u64, file.last_chunk().copied()) else { return false };
    let footer = &mut file[start as usize..];
    for (key, value) in [(key, value), (KEY, UNKNOWN)] {
        let Some(place) = find(footer, key, value.len()) else { return false };
        footer[place..][..value.len()].copy_from_slice(value.as_bytes());
    }
    seal(file)
}

/// Compares a file with its checksum. Returns whether it has one; `Err` with the reason if it differs.
pub(crate) fn verify(input: &ParquetInput) -> Result<bool, String> {
    let unreadable = |error: parquet::errors::ParquetError| error.to_string();
    // The reader finds out if the file is no Parquet at all.
    let footer = footer(input)?;
    let start = Length::len(input) - footer.len() as u64;
    let Some(place) = find(&footer, KEY, UNKNOWN.len()) else { return Ok(false) };
    let (digits_at, digits) = (start + place as u64, &footer[place..][..UNKNOWN.len()]);
    let mut sum = 0;
    let mut at = 0;
    while at < digits_at {
        let bytes = input.get_bytes(at, CHUNK_BYTES.min(digits_at - at) as usize).map_err(unreadable)?;
        sum = crc32c::crc32c_append(sum, &bytes);
        at += bytes.len() as u64;
    }
    sum = crc32c::crc32c_append(sum, UNKNOWN.as_bytes());
    sum = crc32c::crc32c_append(sum, &footer[place + UNKNOWN.len()..]);
    if format!("{sum:08x}").as_bytes() == digits {
        return Ok(true);
    }
    Err(format!("its bytes are not the ones that were written: CRC-32C {sum:08x}, and its footer has {}", digits.escape_ascii()))
}

/// Returns the footer of a file and the eight bytes after it; nothing if it has none.
pub(crate) fn footer(input: &ParquetInput) -> Result<bytes::Bytes, String> {
    let unreadable = |error: parquet::errors::ParquetError| error.to_string();
    let length = Length::len(input);
    let tail = input.get_bytes(length.saturating_sub(TAIL_BYTES), length.min(TAIL_BYTES) as usize).map_err(unreadable)?;
    let Some(start) = footer_start(length, tail.last_chunk().copied()) else { return Ok(bytes::Bytes::new()) };
    input.get_bytes(start, (length - start) as usize).map_err(unreadable)
}

/// Returns the position of the footer, from the last eight bytes of a file.
fn footer_start(length: u64, tail: Option<[u8; TAIL_BYTES as usize]>) -> Option<u64> {
    let [a, b, c, d, magic @ ..] = tail?;
    if magic != *b"PAR1" {
        return None;
    }
    length.checked_sub(TAIL_BYTES + u64::from(u32::from_le_bytes([a, b, c, d])))
}

/// Returns the position of the value of a key in a footer. The value has so many bytes, less than 128.
fn find(footer: &[u8], key: &str, length: usize) -> Option<usize> {
    let mut pattern = key.as_bytes().to_vec();
    pattern.extend([TEXT_FOLLOWS, length as u8]);
    let at = footer.windows(pattern.len()).rposition(|window| window == pattern)?;
    let value = at + pattern.len();
    (value + length <= footer.len()).then_some(value)
}
