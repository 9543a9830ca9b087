use proptest::collection::vec;
use proptest::prelude::*;

use super::super::records::tests::{SentRecord, sent, write};
use super::*;

const TRANSACTIONAL: i16 = 0x10;
const CONTROL: i16 = 0x20;
const LOG_APPEND: i16 = 8;

/// A batch as a broker has it.
#[derive(Debug, Clone)]
struct SentBatch {
    base_offset: i64,
    last_offset_delta: i32,
    attributes: i16,
    producer: i64,
    records: Vec<SentRecord>,
}

impl SentBatch {
    fn new(base_offset: i64, records: Vec<SentRecord>) -> Self {
        let last_offset_delta = records.len().saturating_sub(1) as i32;
        let numbered = (0..).zip(records).map(|(offset_delta, record)| SentRecord { offset_delta, ..record });
        Self { base_offset, last_offset_delta, attributes: 0, producer: -1, records: numbered.collect() }
    }

    /// With this many records of one transaction.
    fn of_transaction(base_offset: i64, producer: i64, count: usize) -> Self {
        Self { attributes: TRANSACTIONAL, producer, ..Self::new(base_offset, vec![SentRecord::default(); count]) }
    }

    /// The end of a transaction.
    fn marker(offset: i64, producer: i64, commits: bool) -> Self {
        let key = Some(vec![0, 0, 0, u8::from(commits)]);
        let record = SentRecord { key, value: Some(vec![0; 6]), ..SentRecord::default() };
        Self { attributes: TRANSACTIONAL | CONTROL, producer, ..Self::new(offset, vec![record]) }
    }

    fn bytes(&self) -> Vec<u8> {
        let packed = match Codec::of_attributes(self.attributes) {
            Some(Codec::Zstd) => zstd::bulk::compress(&write(&self.records), 3).unwrap(),
            _ => write(&self.records),
        };
        let mut summed = Vec::new();
        summed.extend_from_slice(&self.attributes.to_be_bytes());
        summed.extend_from_slice(&self.last_offset_delta.to_be_bytes());
        summed.extend_from_slice(&1000_i64.to_be_bytes());
        summed.extend_from_slice(&2000_i64.to_be_bytes());
        summed.extend_from_slice(&self.producer.to_be_bytes());
        summed.extend_from_slice(&[0; 6]);
        summed.extend_from_slice(&(self.records.len() as i32).to_be_bytes());
        summed.extend_from_slice(&packed);
        let mut bytes = self.base_offset.to_be_bytes().to_vec();
        bytes.extend_from_slice(&(summed.len() as i32 + 9).to_be_bytes());
        bytes.extend_from_slice(&7_i32.to_be_bytes());
        bytes.push(MAGIC);
        bytes.extend_from_slice(&crc32c::crc32c(&summed).to_be_bytes());
        bytes.extend_from_slice(&summed);
        bytes
    }
}

/// Offsets and stamps of the records for a reader, and its next offset; or the offset of what failed.
type ReadOutcome = Result<(Vec<(i64, i64)>, i64), (i64, BatchError)>;

fn read(bytes: Vec<u8>, aborted: Vec<AbortedTransaction>, from: i64) -> ReadOutcome {
    read_with(bytes, aborted, from, true)
}

fn read_with(bytes: Vec<u8>, aborted: Vec<AbortedTransaction>, from: i64, is_committed_only: bool) -> ReadOutcome {
    let (mut unpacker, mut next, mut records) = (Unpacker::with_limit(1 << 20), from, Vec::new());
    let mut stream = BatchStream::new(bytes.into(), aborted, is_committed_only);
    while let Some(mut batch) = stream.next_batch(&mut unpacker, &mut next)? {
        while let Some(record) = batch.next_record()? {
            if record.offset >= next {
                records.push((record.offset, record.stamp_millis));
            }
        }
        next = batch.next_offset();
    }
    Ok((records, next))
}

fn offsets(records: &[(i64, i64)]) -> Vec<i64> {
    records.iter().map(|(offset, _)| *offset).collect()
}

#[test]
fn records_have_their_offsets_and_the_stamps_of_sender_or_log() {
    let stamped = |timestamp_delta| SentRecord { timestamp_delta, ..SentRecord::default() };
    let first = SentBatch::new(5, vec![stamped(1), stamped(-2)]);
    let second = SentBatch { attributes: LOG_APPEND | 4, ..SentBatch::new(7, vec![stamped(1), stamped(3)]) };
    let bytes = [first.bytes(), second.bytes()].concat();
    assert_eq!(end_of_batches(&bytes), Some((9, 7)));
    assert_eq!(read(bytes.clone(), Vec::new(), 5), Ok((vec![(5, 1001), (6, 998), (7, 2000), (8, 2000)], 9)));
    // A start in the middle of a batch, and a last batch that is cut off.
    assert_eq!(read(bytes.clone(), Vec::new(), 8), Ok((vec![(8, 2000)], 9)));
    let cut_off = bytes[..bytes.len() - 1].to_vec();
    assert_eq!(end_of_batches(&cut_off), Some((7, 7)));
    assert_eq!(read(cut_off, Vec::new(), 6), Ok((vec![(6, 998)], 7)));
    assert_eq!(end_of_batches(&bytes[..30]), None);
}

#[test]
fn compaction_leaves_gaps_that_are_walked_over() {
    let mut holed = SentBatch::new(10, vec![SentRecord::default(); 5]);
    holed.records.remove(4);
    holed.records.remove(1);
    let empty = SentBatch { last_offset_delta: 9, ..SentBatch::new(20, Vec::new()) };
    let (records, next) = read([holed.bytes(), empty.bytes()].concat(), Vec::new(), 0).unwrap();
    assert_eq!((offsets(&records), next), (vec![10, 12, 13], 30));
}

#[test]
fn transactions_that_were_taken_back_are_left_out_and_no_others() {
    let bytes = [
        SentBatch::of_transaction(0, 1, 2).bytes(),
        SentBatch::of_transaction(2, 2, 1).bytes(),
        SentBatch::new(3, vec![SentRecord::default()]).bytes(),
        SentBatch::of_transaction(4, 1, 1).bytes(),
        SentBatch::marker(5, 1, false).bytes(),
        SentBatch::marker(6, 2, true).bytes(),
        // The same producer again.
        SentBatch::of_transaction(7, 1, 1).bytes(),
        SentBatch::marker(8, 1, true).bytes(),
        SentBatch::of_transaction(9, 1, 1).bytes(),
        SentBatch::marker(10, 1, false).bytes(),
    ]
    .concat();
    let aborted = |first_offset| AbortedTransaction { producer: 1, first_offset };
    let (records, next) = read(bytes.clone(), vec![aborted(9), aborted(0)], 0).unwrap();
    assert_eq!((offsets(&records), next), (vec![2, 3, 7], 11));
    let (records, next) = read_with(bytes, Vec::new(), 0, false).unwrap();
    assert_eq!((offsets(&records), next), (vec![0, 1, 2, 3, 4, 7, 9], 11));
}

#[test]
fn what_is_damaged_is_an_error_with_the_offset_of_its_batch() {
    let first = SentBatch::new(0, vec![SentRecord::default()]).bytes();
    let second = SentBatch::new(1, vec![SentRecord { value: Some(vec![1, 2, 3]), ..SentRecord::default() }]);
    let error = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut damaged = second.bytes();
        change(&mut damaged);
        read([first.clone(), damaged].concat(), Vec::new(), 0).unwrap_err()
    };
    let (at, found) = error(&|bytes| bytes[70] ^= 1);
    assert!(at == 1 && matches!(found, BatchError::Checksum { .. }), "{found}");
    assert_eq!(error(&|bytes| bytes[16] = 1), (1, BatchError::Format(1)));
    assert_eq!(error(&|bytes| bytes[8] = 0xff), (1, BatchError::Length));
    assert_eq!(error(&|bytes| bytes[8..12].copy_from_slice(&3_i32.to_be_bytes())), (1, BatchError::Length));
    let bomb = SentBatch {
        attributes: 4,
        ..SentBatch::new(1, vec![SentRecord { value: Some(vec![0; 2 << 20]), ..SentRecord::default() }])
    };
    let found = read([first.clone(), bomb.bytes()].concat(), Vec::new(), 0).unwrap_err();
    assert_eq!(found, (1, BatchError::Unpack(UnpackError::TooLarge(1 << 20))));
    let unknown = SentBatch { attributes: 6, ..second.clone() };
    assert_eq!(read(unknown.bytes(), Vec::new(), 0), Err((1, BatchError::Codec(6))));
    let mut outside = second.clone();
    outside.records[0].offset_delta = 5;
    assert!(matches!(read(outside.bytes(), Vec::new(), 0), Err((1, BatchError::Record(_)))));
}

#[test]
fn records_before_one_that_is_damaged_are_there_and_the_damage_is_found_again() {
    let mut sent = SentBatch::new(4, vec![SentRecord::default(); 3]);
    sent.records[1].offset_delta = 5;
    let (mut unpacker, mut next) = (Unpacker::default(), 0);
    let mut batch =
        BatchStream::new(sent.bytes().into(), Vec::new(), true).next_batch(&mut unpacker, &mut next).unwrap().unwrap();
    assert_eq!(batch.next_record().map(|record| record.map(|record| record.offset)), Ok(Some(4)));
    for _ in 0..2 {
        assert!(matches!(batch.next_record(), Err((4, BatchError::Record(_)))));
        assert_eq!(batch.unread_count(), 2);
    }
}

proptest! {
    #![proptest_config(eadt_testing::cases(64))]

    #[test]
    fn any_change_of_a_batch_is_found(records in vec(sent(), 1..10), flip: prop::sample::Index, bit in 0_u8..8) {
        let whole = SentBatch::new(3, records).bytes();
        let mut changed = whole.clone();
        // The checksum is of all behind it.
        let at = SUMMED_FROM + flip.index(whole.len() - SUMMED_FROM);
        changed[at] ^= 1 << bit;
        let is_error = read(changed, Vec::new(), 0).is_err();
        prop_assert!(is_error);
    }

    #[test]
    fn any_bytes_end(bytes in vec(any::<u8>(), 0..400)) {
        let _: Option<(i64, i32)> = end_of_batches(&bytes);
        drop(read(bytes, Vec::new(), 0));
    }
}
