//! Foreign bytes as a reader would take them, for tests: nothing of them makes it panic, hang, or take more memory than it may.

use bytes::Bytes;
use eadt_schemas::envelope::header;

use super::batch::BatchStream;
use super::decompress::{Codec, Unpacker};
use super::messages::{read_api_versions, read_fetch, read_metadata};
use super::records::header_ranges;
use crate::RecordHeaders;

/// Most bytes that one input may unpack to.
const LIMIT_BYTES: usize = 4 << 20;

/// Reads an input. Its first byte selects the form. Returns how many records it found.
pub fn read_foreign_bytes(input: &[u8]) -> usize {
    let Some((kind, rest)) = input.split_first() else { return 0 };
    let mut unpacker = Unpacker::with_limit(LIMIT_BYTES);
    match kind % 6 {
        0 | 1 => {
            let version = 12 + i16::from(kind % 6);
            let Ok(answer) = read_fetch(rest, version) else { return 0 };
            let parts = answer.partitions.into_iter();
            parts
                .map(|part| {
                    count_records(&mut unpacker, part.records.to_vec(), BatchStream::new(Bytes::new(), part.aborted, true))
                })
                .sum()
        }
        2 => {
            drop(read_metadata(rest, 9 + i16::from(kind / 6 % 4)));
            drop(read_api_versions(rest));
            0
        }
        // A batch whose length, format and checksum are right, so that the code behind these checks is reached.
        3 => count_records(&mut unpacker, mended(rest), BatchStream::default()),
        4 => count_records(&mut unpacker, rest.to_vec(), BatchStream::default()),
        _ => {
            let codec = Codec::of_attributes(i16::from(kind / 6 % 5)).unwrap_or(Codec::None);
            let unpacked = unpacker.unpack(codec, &Bytes::copy_from_slice(rest));
            assert!(unpacked.is_ok_and(|unpacked| unpacked.len() <= LIMIT_BYTES.max(rest.len())) || codec != Codec::None);
            0
        }
    }
}

fn mended(input: &[u8]) -> Vec<u8> {
    let mut batch = input.to_vec();
    if batch.len() >= 61 {
        let length = (batch.len() - 12) as u32;
        batch[8..12].copy_from_slice(&length.to_be_bytes());
        batch[16] = 2;
        let checksum = crc32c::crc32c(&batch[21..]);
        batch[17..21].copy_from_slice(&checksum.to_be_bytes());
    }
    batch
}

fn count_records(unpacker: &mut Unpacker, batches: Vec<u8>, stream: BatchStream) -> usize {
    let (mut stream, mut next, mut count) = (stream.with_bytes(batches.into()), 0, 0);
    while let Ok(Some(mut batch)) = stream.next_batch(unpacker, &mut next) {
        while let Ok(Some(record)) = batch.next_record() {
            let place = record.ranges;
            let headers = header_ranges(&batch.unpacked, place.headers as usize, place.header_count as usize);
            assert_eq!(headers.count(), place.header_count as usize);
            let headers = RecordHeaders::in_batch(&batch.unpacked, place.headers as usize, place.header_count as usize);
            assert_eq!(headers.get(header::TYPE), place.event_type.of(&batch.unpacked));
            count += 1;
        }
    }
    count
}
