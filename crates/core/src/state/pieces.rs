//! The third form of a state record: a piece of a block that is too large for one record.
//!
//! Others determine how much a source holds: steps that wait for a slow rank, a slice for each window that is open. A record
//! that the log does not take would stop the processor, and with it all windows. If one block of a workload is in pieces, all
//! of its blocks are, of one piece at least, so that their records are counted by one rule.

use serde::{Deserialize, Serialize};

use super::{decode, encode};

/// First byte of this form.
pub const FORM: u8 = 3;
/// Most bytes of a block that are written as one record: with key and headers half of what the log takes by default.
const MOST: usize = 512 * 1024;

/// Content behind the first byte, in postcard's encoding. It is the form: nothing is ever added, removed or moved.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct BlockPiece<'a> {
    pub workload: &'a str,
    /// The number of this record among the workload's records.
    pub number: u32,
    /// Records of the workload.
    pub of: u32,
    /// The block ends with this piece.
    pub last: bool,
    pub bytes: &'a [u8],
}

impl<'a> BlockPiece<'a> {
    fn write(&self) -> Vec<u8> {
        encode(FORM, self, 32 + self.workload.len() + self.bytes.len())
    }

    /// Reads the bytes that follow the first byte.
    pub fn read(bytes: &'a [u8]) -> Result<Self, String> {
        decode(bytes)
    }
}

/// Returns the records of a workload with these blocks: the blocks themselves, nearly always.
pub fn split_blocks(workload: &str, blocks: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    if blocks.iter().all(|block| block.len() <= MOST) {
        return blocks;
    }
    let of = blocks.iter().map(|block| block.len().div_ceil(MOST) as u32).sum();
    let chunks = blocks.iter().flat_map(|block| {
        let pieces = block.len().div_ceil(MOST);
        block.chunks(MOST).enumerate().map(move |(i, bytes)| (i + 1 == pieces, bytes))
    });
    (0..).zip(chunks).map(|(number, (last, bytes))| BlockPiece { workload, number, of, last, bytes }.write()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_small_stays_as_it_is_and_what_is_not_is_in_pieces_that_a_record_can_hold() {
        let block = |length: usize, byte: u8| vec![byte; length];
        assert_eq!(split_blocks("team/job", vec![block(MOST, 1), block(1, 2)]), [block(MOST, 1), block(1, 2)]);
        let written = split_blocks("team/job", vec![block(1, 1), block(2 * MOST + 1, 2), block(2 * MOST, 3)]);
        let read: Vec<BlockPiece<'_>> = written.iter().map(|record| BlockPiece::read(&record[1..]).unwrap()).collect();
        let shape: Vec<_> = read.iter().map(|piece| (piece.number, piece.of, piece.bytes.len(), piece.last)).collect();
        let rest = [(1, 6, MOST, false), (2, 6, MOST, false), (3, 6, 1, true), (4, 6, MOST, false), (5, 6, MOST, true)];
        assert_eq!(shape, [&[(0, 6, 1, true)][..], &rest].concat());
        assert!(written.iter().all(|record| record[0] == FORM && record.len() < MOST + 64));
        let bytes = read.iter().map(|piece| piece.bytes).collect::<Vec<_>>().concat();
        assert_eq!(bytes, [block(1, 1), block(2 * MOST + 1, 2), block(2 * MOST, 3)].concat());
        assert_eq!(BlockPiece::read(&[&written[0][1..], &[0]].concat()).unwrap_err(), "1 bytes are left over");
    }
}
