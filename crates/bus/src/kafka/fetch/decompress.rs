//! Unpacks the records of a batch.
//!
//! The output is bounded whatever the compressed bytes contain, and grows only as bytes are unpacked.

use std::io::Read;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use zstd::stream::raw::{Decoder as ZstdDecoder, InBuffer, Operation, OutBuffer};

/// Unpacked bytes of one batch at most. Producers pack at most what `max.request.size` and `message.max.bytes` allow, 1 MiB
/// by default, and JSON packs a hundredfold at most.
pub const MAX_UNPACKED_BYTES: usize = 128 << 20;
/// A larger buffer than this is not kept.
const KEPT_BYTES: usize = 2 << 20;
/// The least size of a buffer.
const LEAST_BYTES: usize = 64 << 10;
/// Buffers that are kept for later batches.
const SPARE_BUFFERS: usize = 2;

/// Compression of the records of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Codec {
    None,
    Gzip,
    Snappy,
    Lz4,
    Zstd,
}

impl Codec {
    /// Returns the codec of a batch's attributes.
    pub const fn of_attributes(attributes: i16) -> Option<Self> {
        match attributes & 7 {
            0 => Some(Self::None),
            1 => Some(Self::Gzip),
            2 => Some(Self::Snappy),
            3 => Some(Self::Lz4),
            4 => Some(Self::Zstd),
            _ => None,
        }
    }
}

/// A batch that cannot be unpacked.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnpackError {
    #[error("it unpacks to more than {0} bytes")]
    TooLarge(usize),
    #[error("its {codec:?} data is damaged: {detail}")]
    Damaged { codec: Codec, detail: String },
}

#[allow(clippy::needless_pass_by_value, reason = "errors and texts alike")]
fn damaged(codec: Codec, detail: impl std::fmt::Display) -> UnpackError {
    UnpackError::Damaged { codec, detail: detail.to_string() }
}

/// Unpacks one batch after the other.
pub struct Unpacker {
    spare: SpareBuffers,
    /// Made at the first use.
    zstd: Option<ZstdDecoder<'static>>,
    limit: usize,
}

impl std::fmt::Debug for Unpacker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Unpacker").field("limit_bytes", &self.limit).finish_non_exhaustive()
    }
}

impl Default for Unpacker {
    fn default() -> Self {
        Self::with_limit(MAX_UNPACKED_BYTES)
    }
}

impl Unpacker {
    pub fn with_limit(limit: usize) -> Self {
        Self { spare: SpareBuffers::default(), zstd: None, limit }
    }

    /// Returns the unpacked bytes, and little more memory than they take: records hold it while they wait to be merged.
    ///
    /// Their number is known only afterwards. A buffer that they fill well is theirs, and comes back when they are gone; out of
    /// others they are copied.
    pub fn unpack(&mut self, codec: Codec, packed: &Bytes) -> Result<Bytes, UnpackError> {
        if codec == Codec::None {
            return Ok(packed.clone());
        }
        let mut output = UnpackedBytes { buffer: self.spare.take(), filled: 0, limit: self.limit };
        let outcome = match codec {
            Codec::None => Ok(()),
            Codec::Gzip => unpack_gzip(packed, &mut output),
            Codec::Snappy => unpack_snappy(packed, &mut output),
            Codec::Lz4 => unpack_lz4(packed, &mut output),
            Codec::Zstd => self.unpack_zstd(packed, &mut output),
        };
        let UnpackedBytes { mut buffer, filled, .. } = output;
        if buffer.len() > KEPT_BYTES {
            buffer.truncate(filled);
            buffer.shrink_to_fit();
            return outcome.map(|()| Bytes::from(buffer));
        }
        let lent = LentBuffer { buffer, filled, spare: self.spare.clone() };
        outcome?;
        let is_well_filled = filled >= lent.buffer.len() / 4 * 3;
        Ok(if is_well_filled { Bytes::from_owner(lent) } else { Bytes::copy_from_slice(lent.as_ref()) })
    }

    fn unpack_zstd(&mut self, packed: &[u8], output: &mut UnpackedBytes) -> Result<(), UnpackError> {
        let failed = |error: std::io::Error| damaged(Codec::Zstd, error);
        let decoder = match &mut self.zstd {
            Some(decoder) => {
                decoder.reinit().map_err(failed)?;
                decoder
            }
            none => none.insert(ZstdDecoder::new().map_err(failed)?),
        };
        let mut input = InBuffer::around(packed);
        loop {
            let mut room = OutBuffer::around(output.spare_capacity(1)?);
            let hint = decoder.run(&mut input, &mut room).map_err(failed)?;
            let (written, is_full) = (room.pos(), room.pos() == room.capacity());
            output.filled += written;
            let is_read = input.pos() == packed.len();
            if hint == 0 && is_read {
                return Ok(());
            }
            if is_read && !is_full {
                return Err(damaged(Codec::Zstd, "it is cut off"));
            }
        }
    }
}

/// Buffers that are used again. The length of one is its capacity, so that nothing is cleared then.
#[derive(Debug, Clone, Default)]
struct SpareBuffers(Arc<Mutex<Vec<Vec<u8>>>>);

impl SpareBuffers {
    fn take(&self) -> Vec<u8> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default()
    }
}

/// A buffer with a batch in it. It goes back to the spare ones with the last record of the batch.
struct LentBuffer {
    buffer: Vec<u8>,
    filled: usize,
    spare: SpareBuffers,
}

impl AsRef<[u8]> for LentBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.buffer[..self.filled]
    }
}

impl Drop for LentBuffer {
    fn drop(&mut self) {
        let mut spare = self.spare.0.lock().unwrap_or_else(PoisonError::into_inner);
        if spare.len() < SPARE_BUFFERS && !self.buffer.is_empty() {
            spare.push(std::mem::take(&mut self.buffer));
        }
    }
}

/// A buffer that grows up to a limit.
struct UnpackedBytes {
    buffer: Vec<u8>,
    filled: usize,
    limit: usize,
}

impl UnpackedBytes {
    /// Returns all that is free, `least` bytes or more.
    fn spare_capacity(&mut self, least: usize) -> Result<&mut [u8], UnpackError> {
        self.reserve(least)?;
        Ok(&mut self.buffer[self.filled..])
    }

    fn reserve(&mut self, least: usize) -> Result<(), UnpackError> {
        let needed =
            self.filled.checked_add(least).filter(|needed| *needed <= self.limit).ok_or(UnpackError::TooLarge(self.limit))?;
        if needed > self.buffer.len() {
            let grown = needed.next_power_of_two().max(LEAST_BYTES).min(self.limit);
            self.buffer.resize(grown, 0);
        }
        Ok(())
    }
}

fn unpack_gzip(packed: &[u8], output: &mut UnpackedBytes) -> Result<(), UnpackError> {
    let mut decoder = flate2::read::MultiGzDecoder::new(packed);
    loop {
        // The end is found by a read of nothing, for which there must be room.
        match decoder.read(output.spare_capacity(1)?) {
            Ok(0) => return Ok(()),
            Ok(read) => output.filled += read,
            Err(error) => return Err(damaged(Codec::Gzip, error)),
        }
    }
}

/// The header of the framing that Java clients put around blocks of snappy, and the versions behind it.
const XERIAL: &[u8; 8] = b"\x82SNAPPY\0";
const XERIAL_BYTES: usize = 16;

fn unpack_snappy(packed: &[u8], output: &mut UnpackedBytes) -> Result<(), UnpackError> {
    let mut decoder = snap::raw::Decoder::new();
    let mut block = |block: &[u8], output: &mut UnpackedBytes| {
        let length = snap::raw::decompress_len(block).map_err(|error| damaged(Codec::Snappy, error))?;
        // No copy of snappy makes more than 64 bytes of three, so that a false length reserves no more than this.
        if length / 64 > block.len() {
            return Err(damaged(Codec::Snappy, "its length is impossible"));
        }
        let room = &mut output.spare_capacity(length)?[..length];
        let written = decoder.decompress(block, room).map_err(|error| damaged(Codec::Snappy, error))?;
        output.filled += written;
        Ok(())
    };
    if !packed.starts_with(XERIAL) {
        return block(packed, output);
    }
    let mut rest = packed.get(XERIAL_BYTES..).ok_or_else(|| damaged(Codec::Snappy, "it is cut off"))?;
    while let Some((length, behind)) = rest.split_first_chunk() {
        let length = u32::from_be_bytes(*length) as usize;
        let (packed, after) = behind.split_at_checked(length).ok_or_else(|| damaged(Codec::Snappy, "a block is cut off"))?;
        block(packed, output)?;
        rest = after;
    }
    if rest.is_empty() { Ok(()) } else { Err(damaged(Codec::Snappy, "it is cut off")) }
}

const LZ4_MAGIC: [u8; 4] = [0x04, 0x22, 0x4d, 0x18];
/// A block of linked ones may refer to so much before it.
const LZ4_WINDOW: usize = 64 << 10;

/// The flags of an lz4 frame.
struct Lz4Frame {
    is_linked: bool,
    has_block_sums: bool,
    block_bytes: usize,
}

/// Reads the head of a frame; its checksum is left to that of the batch.
fn read_lz4_head<'a>(rest: &mut &'a [u8]) -> Option<Lz4Frame> {
    let mut take = |count: usize| -> Option<&'a [u8]> {
        let (head, behind) = rest.split_at_checked(count)?;
        *rest = behind;
        Some(head)
    };
    if take(4)? != LZ4_MAGIC {
        return None;
    }
    let (flags, size) = (take(1)?[0], take(1)?[0]);
    // Version 1, without a dictionary: a frame with one could not be decoded.
    if flags >> 6 != 1 || flags & 1 != 0 {
        return None;
    }
    if flags & 8 != 0 {
        take(8)?;
    }
    take(1)?;
    let block_bytes = match size >> 4 & 7 {
        4 => 64 << 10,
        5 => 256 << 10,
        6 => 1 << 20,
        7 => 4 << 20,
        _ => return None,
    };
    Some(Lz4Frame { is_linked: flags & 0x20 == 0, has_block_sums: flags & 0x10 != 0, block_bytes })
}

fn unpack_lz4(packed: &[u8], output: &mut UnpackedBytes) -> Result<(), UnpackError> {
    let cut_off = || damaged(Codec::Lz4, "it is cut off");
    let mut rest = packed;
    let frame = read_lz4_head(&mut rest).ok_or_else(|| damaged(Codec::Lz4, "its head is no frame's"))?;
    loop {
        let (size, behind) = rest.split_first_chunk().ok_or_else(cut_off)?;
        let size = u32::from_le_bytes(*size);
        if size == 0 {
            return Ok(());
        }
        let (block, behind) = behind.split_at_checked((size & 0x7fff_ffff) as usize).ok_or_else(cut_off)?;
        unpack_lz4_block(block, size >> 31 == 1, &frame, output)?;
        rest = behind.get(if frame.has_block_sums { 4 } else { 0 }..).ok_or_else(cut_off)?;
    }
}

fn unpack_lz4_block(block: &[u8], is_stored: bool, frame: &Lz4Frame, output: &mut UnpackedBytes) -> Result<(), UnpackError> {
    if is_stored {
        output.spare_capacity(block.len())?[..block.len()].copy_from_slice(block);
        output.filled += block.len();
        return Ok(());
    }
    // A byte of lz4 makes 255 at most.
    let most = frame.block_bytes.min(block.len().saturating_mul(255));
    output.reserve(most.min(output.limit - output.filled))?;
    let (before, room) = output.buffer.split_at_mut(output.filled);
    let end = room.len().min(most);
    let room = &mut room[..end];
    let written = if frame.is_linked {
        let window = &before[before.len().saturating_sub(LZ4_WINDOW)..];
        lz4_flex::block::decompress_into_with_dict(block, room, window)
    } else {
        lz4_flex::block::decompress_into(block, room)
    };
    let limit = output.limit;
    output.filled += written.map_err(|error| match error {
        lz4_flex::block::DecompressError::OutputTooSmall { .. } if end < most => UnpackError::TooLarge(limit),
        error => damaged(Codec::Lz4, error),
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use proptest::prelude::*;

    use super::*;

    const CODECS: [Codec; 4] = [Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd];

    fn xerial(plain: &[u8]) -> Vec<u8> {
        let mut packed = [&XERIAL[..], &[0, 0, 0, 1, 0, 0, 0, 1]].concat();
        for block in plain.chunks(1000) {
            let block = snap::raw::Encoder::new().compress_vec(block).unwrap();
            packed.extend_from_slice(&(block.len() as u32).to_be_bytes());
            packed.extend_from_slice(&block);
        }
        packed
    }

    fn lz4(plain: &[u8], mode: lz4_flex::frame::BlockMode, sums: bool) -> Vec<u8> {
        let info = lz4_flex::frame::FrameInfo::new()
            .block_mode(mode)
            .block_size(lz4_flex::frame::BlockSize::Max64KB)
            .block_checksums(sums)
            .content_checksum(sums);
        let mut encoder = lz4_flex::frame::FrameEncoder::with_frame_info(info, Vec::new());
        encoder.write_all(plain).unwrap();
        encoder.finish().unwrap()
    }

    /// Returns all ways in which clients write a codec.
    fn packed(codec: Codec, plain: &[u8]) -> Vec<Vec<u8>> {
        use lz4_flex::frame::BlockMode::{Independent, Linked};
        match codec {
            Codec::None => vec![plain.to_vec()],
            Codec::Gzip => {
                let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
                encoder.write_all(plain).unwrap();
                vec![encoder.finish().unwrap()]
            }
            Codec::Snappy => vec![snap::raw::Encoder::new().compress_vec(plain).unwrap(), xerial(plain)],
            Codec::Lz4 => vec![lz4(plain, Independent, false), lz4(plain, Linked, true)],
            Codec::Zstd => {
                let mut streamed = zstd::stream::Encoder::new(Vec::new(), 3).unwrap();
                streamed.write_all(plain).unwrap();
                vec![zstd::bulk::compress(plain, 3).unwrap(), streamed.finish().unwrap()]
            }
        }
    }

    fn text(length: usize) -> Vec<u8> {
        (0..length).map(|n| b"the quick brown fox {\"power_watts\":31"[(n + n / 97) % 37]).collect()
    }

    #[test]
    fn every_codec_gives_back_what_was_packed() {
        let mut unpacker = Unpacker::default();
        for length in [0, 1, 100, 65_536, 65_537, 400_000] {
            let plain = text(length);
            for codec in CODECS {
                for packed in packed(codec, &plain) {
                    assert_eq!(unpacker.unpack(codec, &packed.into()).unwrap(), plain, "{codec:?} {length}");
                }
            }
        }
        assert_eq!(
            [0, 1, 2, 3, 4, 5, 6, 7].map(|bits| Codec::of_attributes(bits | 8).is_some()).iter().filter(|known| **known).count(),
            5
        );
    }

    #[test]
    fn what_unpacks_to_too_much_is_refused_before_it_takes_the_memory() {
        let bomb = vec![0; 8 << 20];
        let mut unpacker = Unpacker::with_limit(1 << 20);
        for codec in CODECS {
            for packed in packed(codec, &bomb) {
                assert_eq!(unpacker.unpack(codec, &packed.into()), Err(UnpackError::TooLarge(1 << 20)), "{codec:?}");
            }
        }
        assert!(unpacker.spare.take().len() <= 1 << 20);
        // A length that no block of this size can have.
        let false_length = Bytes::from_static(&[0xff, 0xff, 0xff, 0x7f, 0]);
        assert!(matches!(Unpacker::default().unpack(Codec::Snappy, &false_length), Err(UnpackError::Damaged { .. })));
    }

    #[test]
    fn a_buffer_is_used_again_when_its_records_are_gone_and_at_once_where_they_fill_little_of_it() {
        let mut unpacker = Unpacker::default();
        let little: Bytes = packed(Codec::Lz4, &text(1000)).remove(0).into();
        let held: Vec<_> = (0..20).map(|_| unpacker.unpack(Codec::Lz4, &little).unwrap()).collect();
        assert!(held.iter().all(|bytes| *bytes == text(1000)));
        let spare = || unpacker.spare.0.lock().unwrap().iter().map(|buffer| (buffer.as_ptr(), buffer.len())).collect::<Vec<_>>();
        let first = spare();
        assert!(matches!(first[..], [(_, LEAST_BYTES)]), "{first:?}");

        let much: Bytes = packed(Codec::Lz4, &text(LEAST_BYTES - 1000)).remove(0).into();
        let held: Vec<_> = (0..5).map(|_| unpacker.unpack(Codec::Lz4, &much).unwrap()).collect();
        assert!(held.iter().all(|bytes| *bytes == text(LEAST_BYTES - 1000)));
        assert_eq!(unpacker.spare.0.lock().unwrap().len(), 0, "all are held");
        assert!(held.iter().any(|bytes| bytes.as_ptr() == first[0].0));
        drop(held);
        assert_eq!(unpacker.spare.0.lock().unwrap().len(), SPARE_BUFFERS);
        drop(unpacker.unpack(Codec::Lz4, &Bytes::from_static(b"no frame")).unwrap_err());
        assert_eq!(unpacker.spare.0.lock().unwrap().len(), SPARE_BUFFERS, "also after an error");
    }

    #[test]
    fn a_large_buffer_goes_with_its_records() {
        let mut unpacker = Unpacker::default();
        let large = text(KEPT_BYTES + 1);
        let packed: Bytes = packed(Codec::Lz4, &large).remove(0).into();
        assert_eq!(unpacker.unpack(Codec::Lz4, &packed).unwrap(), large);
        assert!(unpacker.spare.take().is_empty());
    }

    proptest! {
        #![proptest_config(eadt_testing::cases(64))]

        #[test]
        fn damaged_data_is_an_error_or_bounded(codec in prop::sample::select(&CODECS[..]), length in 0_usize..3000, way in 0_usize..2, cut: prop::sample::Index, flip: prop::sample::Index, bit in 0_u8..8) {
            let plain = text(length);
            let mut ways = packed(codec, &plain);
            let whole = ways.swap_remove(way % ways.len());
            let mut unpacker = Unpacker::with_limit(1 << 20);
            let cut_off = Bytes::copy_from_slice(&whole[..cut.index(whole.len())]);
            if let Ok(unpacked) = unpacker.unpack(codec, &cut_off) {
                prop_assert!(unpacked.len() <= 1 << 20);
            }
            let mut flipped = whole;
            let at = flip.index(flipped.len());
            flipped[at] ^= 1 << bit;
            if let Ok(unpacked) = unpacker.unpack(codec, &flipped.into()) {
                prop_assert!(unpacked.len() <= 1 << 20);
            }
        }
    }
}
