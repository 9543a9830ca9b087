//! Reading: one cursor a partition, waiting on news from the appender.
//!
//! What a call delivers ends at one moment in all partitions: an append shows in all its partitions or in none. If a partition
//! that was reported to end has gone on since, its first record is delivered before more of any other. So a caller that takes a
//! partition at its end as empty (the processor's merge) never runs ahead in one partition of what was appended before to another.
//! A partition that was paused may have gone on meanwhile: its end is reported again after it is resumed.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::block::{BlockReader, HeaderNames};
use super::store::base_of;
use super::topic::EmbeddedPartition;
use super::{EmbeddedLog, EmbeddedLogState};
use crate::{BusError, PartitionReader, PollEvent, Remedy, Result, StartOffset, TopicPartition};

/// Bytes of a partition that are fetched at once; at least one block.
const FETCH_BYTES: usize = 256 << 10;
/// Records of one partition that are delivered before the next partition's turn.
const TURN: usize = 512;

#[derive(Debug)]
struct PartitionCursor {
    partition: Arc<EmbeddedPartition>,
    /// `None` if assigned but not started.
    next: Option<i64>,
    /// Blocks are fetched from this base on.
    scan: i64,
    /// End of the partition when the call began.
    end: i64,
    paused: bool,
    /// Whether the end was reported since the last record.
    reported_end: bool,
    /// Fetched blocks with their base offsets.
    fetched: VecDeque<(i64, Bytes)>,
    walk: Option<BlockReader>,
}

/// Cursors of some partitions, served in turn.
#[derive(Debug, Default)]
pub struct PartitionCursors {
    all: Vec<PartitionCursor>,
    turn: usize,
    names: HeaderNames,
}

impl PartitionCursors {
    /// Adds a partition. Nothing of it is delivered before [`Self::seek`].
    pub fn add(&mut self, partition: Arc<EmbeddedPartition>) {
        self.all.push(PartitionCursor {
            partition,
            next: None,
            scan: 0,
            end: 0,
            paused: false,
            reported_end: false,
            fetched: VecDeque::new(),
            walk: None,
        });
    }

    pub fn has(&self, at: &TopicPartition) -> bool {
        self.all.iter().any(|cursor| cursor.partition.at == *at)
    }

    pub fn seek(&mut self, shared: &EmbeddedLogState, at: &TopicPartition, offset: i64) -> Result<()> {
        let cursor = self.cursor(at, "starting")?;
        let marks = cursor.partition.watermarks();
        check_kept(at, offset, marks.low)?;
        if offset > marks.high {
            return Err(BusError::new(
                Remedy::Stop,
                format!("starting {at} at {offset}"),
                format!("the partition ends at {}: the position belongs to another log; was the folder replaced?", marks.high),
            ));
        }
        let (topic, number) = (cursor.partition.topic, at.partition);
        cursor.scan = shared.store.base_at(topic, number, offset)?.unwrap_or(offset);
        cursor.next = Some(offset);
        cursor.reported_end = false;
        cursor.fetched.clear();
        cursor.walk = None;
        Ok(())
    }

    pub fn set_paused(&mut self, at: &[TopicPartition], paused: bool) -> Result<()> {
        for at in at {
            let cursor = self.cursor(at, if paused { "pausing" } else { "resuming" })?;
            // Records that were appended during the pause were not read.
            cursor.reported_end &= cursor.paused == paused;
            cursor.paused = paused;
        }
        Ok(())
    }

    fn cursor(&mut self, at: &TopicPartition, what: &str) -> Result<&mut PartitionCursor> {
        self.all.iter_mut().find(|cursor| cursor.partition.at == *at).ok_or_else(|| BusError::unassigned(what, at))
    }

    /// Appends the available items, at most `max`.
    pub fn deliver(&mut self, shared: &EmbeddedLogState, max: usize, into: &mut Vec<PollEvent>) -> Result<()> {
        let (full, count) = (into.len().saturating_add(max), self.all.len());
        {
            let _all_of_an_append = shared.visible.read().unwrap_or_else(PoisonError::into_inner);
            for cursor in &mut self.all {
                cursor.end = cursor.partition.high();
            }
        }
        for cursor in self.all.iter_mut().filter(|cursor| cursor.reported_end) {
            if into.len() < full {
                cursor.deliver(shared, &mut self.names, 1, into)?;
            }
        }
        let mut idle = 0;
        while idle < count && into.len() < full {
            self.turn = (self.turn + 1) % count;
            let before = into.len();
            let room = (full - before).min(TURN);
            self.all[self.turn].deliver(shared, &mut self.names, room, into)?;
            idle = if into.len() == before { idle + 1 } else { 0 };
        }
        Ok(())
    }
}

fn check_kept(at: &TopicPartition, offset: i64, low: i64) -> Result<()> {
    if offset >= low {
        return Ok(());
    }
    Err(BusError::new(
        Remedy::Stop,
        format!("reading {at} from {offset}"),
        format!("retention deleted these records: continue at {low}, and treat the offsets between as a gap"),
    ))
}

impl PartitionCursor {
    fn deliver(
        &mut self,
        shared: &EmbeddedLogState,
        names: &mut HeaderNames,
        room: usize,
        into: &mut Vec<PollEvent>,
    ) -> Result<()> {
        if self.paused {
            return Ok(());
        }
        let Some(mut next) = self.next else { return Ok(()) };
        let mut left = room;
        while left > 0 {
            if let Some(walk) = &mut self.walk {
                match walk.next_record().map_err(|_| shared.store.malformed_block_error(&self.partition.at))? {
                    // The first block may begin before the position.
                    Some(record) if record.offset < next => {}
                    Some(record) => {
                        next = record.offset + 1;
                        self.reported_end = false;
                        left -= 1;
                        into.push(PollEvent::Record(record));
                    }
                    None => self.walk = None,
                }
            } else if let Some((base, block)) = self.fetched.pop_front() {
                let walk = BlockReader::new(self.partition.at.clone(), base, block, names);
                self.walk = Some(walk.map_err(|_| shared.store.malformed_block_error(&self.partition.at))?);
            } else {
                let high = self.end;
                if next < high {
                    self.fetch(shared, next, high)?;
                    if self.fetched.is_empty() {
                        // Burnt or compacted away up to the end.
                        (next, self.scan) = (high, high);
                    }
                } else {
                    if !self.reported_end {
                        self.reported_end = true;
                        into.push(PollEvent::End { at: self.partition.at.clone(), position: next });
                    }
                    break;
                }
            }
        }
        self.next = Some(next);
        Ok(())
    }

    fn fetch(&mut self, shared: &EmbeddedLogState, next: i64, high: i64) -> Result<()> {
        let partition = &self.partition;
        check_kept(&partition.at, next, partition.low())?;
        let mut bytes = 0;
        for row in shared.store.blocks(partition.topic, partition.at.partition, self.scan, high) {
            let (key, block) = row?;
            bytes += block.len();
            self.scan = base_of(&key) + 1;
            self.fetched.push_back((base_of(&key), block));
            if bytes >= FETCH_BYTES {
                break;
            }
        }
        Ok(())
    }
}

/// Takes records, or waits for news if there are none. News of other partitions do not prolong the wait.
pub fn poll(
    shared: &EmbeddedLogState,
    cursors: &mut PartitionCursors,
    max: usize,
    timeout: Duration,
    into: &mut Vec<PollEvent>,
) -> Result<()> {
    let begun = Instant::now();
    let before = into.len();
    loop {
        let append_count = shared.append_notifier.now();
        cursors.deliver(shared, max, into)?;
        let left = timeout.saturating_sub(begun.elapsed());
        if into.len() > before || max == 0 || left.is_zero() || !shared.append_notifier.wait_past(append_count, left) {
            return Ok(());
        }
    }
}

/// A reader outside any group.
#[derive(Debug)]
pub struct EmbeddedReader {
    log: EmbeddedLog,
    cursors: PartitionCursors,
}

impl EmbeddedReader {
    pub fn new(log: EmbeddedLog, from: &[(TopicPartition, StartOffset)]) -> Result<Self> {
        let mut cursors = PartitionCursors::default();
        for (at, start) in from {
            let partition = log.shared.partition(at)?;
            let marks = partition.watermarks();
            cursors.add(partition);
            cursors.seek(
                &log.shared,
                at,
                match start {
                    StartOffset::Earliest => marks.low,
                    StartOffset::Latest => marks.high,
                    StartOffset::At(offset) => *offset,
                },
            )?;
        }
        Ok(Self { log, cursors })
    }
}

impl PartitionReader for EmbeddedReader {
    fn poll(&mut self, max: usize, timeout: Duration, into: &mut Vec<PollEvent>) -> Result<()> {
        poll(&self.log.shared, &mut self.cursors, max, timeout, into)
    }

    fn pause(&mut self, at: &[TopicPartition]) -> Result<()> {
        self.cursors.set_paused(at, true)
    }

    fn resume(&mut self, at: &[TopicPartition]) -> Result<()> {
        self.cursors.set_paused(at, false)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::ProducerRecord;
    use crate::embedded::append::append;
    use crate::embedded::store::DurabilityLevel;
    use crate::embedded::tests::{log, record, topic};

    fn add(log: &EmbeddedLog, records: &[ProducerRecord]) {
        append(&log.shared, records, None, DurabilityLevel::Process).unwrap();
    }

    /// Cursors at the beginning of each partition of a topic.
    fn cursors(log: &EmbeddedLog, topic: &str) -> PartitionCursors {
        let mut cursors = PartitionCursors::default();
        for partition in log.shared.topic(topic).unwrap().partitions() {
            let at = partition.at.clone();
            cursors.add(partition);
            cursors.seek(&log.shared, &at, 0).unwrap();
        }
        cursors
    }

    /// Partition and count of records that follow each other, and ends as partition and position below 0.
    fn runs(items: &[PollEvent]) -> Vec<(i32, i64)> {
        let mut runs: Vec<(i32, i64)> = Vec::new();
        for item in items {
            match item {
                PollEvent::Record(record) => match runs.last_mut() {
                    Some((partition, count)) if *partition == record.at.partition && *count > 0 => *count += 1,
                    _ => runs.push((record.at.partition, 1)),
                },
                PollEvent::End { at, position } => runs.push((at.partition, -position)),
                other => panic!("{other:?}"),
            }
        }
        runs
    }

    #[test]
    fn partitions_are_served_in_turn_and_never_more_than_was_asked_for() {
        let (_dir, log) = log();
        topic(&log, "t", 2, &[]);
        add(&log, &(0..2000).map(|n| ProducerRecord { partition: Some(n % 2), ..record("t", "k", "v") }).collect::<Vec<_>>());
        let mut cursors = cursors(&log, "t");
        let mut items = Vec::new();
        cursors.deliver(&log.shared, 1600, &mut items).unwrap();
        assert_eq!(runs(&items), [(1, 512), (0, 512), (1, 488), (1, -1000), (0, 87)]);
        assert_eq!(items.len(), 1600);
        let before = items.len();
        cursors.deliver(&log.shared, 0, &mut items).unwrap();
        assert_eq!(items.len(), before, "nothing was asked for");
        cursors.deliver(&log.shared, usize::MAX, &mut items).unwrap();
        assert_eq!(runs(&items[before..]), [(0, 401), (0, -1000)]);
        let before = items.len();
        cursors.deliver(&log.shared, usize::MAX, &mut items).unwrap();
        assert_eq!(items.len(), before, "the ends were reported");
    }

    /// Returns two partitions that each append extends by one record.
    fn pair_log() -> (tempfile::TempDir, EmbeddedLog, impl Fn(&EmbeddedLog)) {
        let (dir, log) = log();
        topic(&log, "t", 2, &[]);
        let step = [0, 1].map(|n| ProducerRecord { partition: Some(n), ..record("t", "k", "v") });
        (dir, log, move |log: &EmbeddedLog| add(log, &step))
    }

    #[test]
    fn a_partition_that_goes_on_after_its_end_is_delivered_before_more_of_another() {
        let (_dir, log, append_to_both) = pair_log();
        let mut cursors = cursors(&log, "t");
        append_to_both(&log);
        let mut items = Vec::new();
        cursors.deliver(&log.shared, 10, &mut items).unwrap();
        assert_eq!(runs(&items), [(1, 1), (1, -1), (0, 1), (0, -1)]);
        (0..9).for_each(|_| append_to_both(&log));
        for expected in [&[(0, 1), (1, 2)][..], &[(0, 3)], &[(1, 3)]] {
            items.clear();
            cursors.deliver(&log.shared, 3, &mut items).unwrap();
            assert_eq!(runs(&items), expected);
        }
    }

    #[test]
    fn a_partition_at_its_end_is_never_behind_what_was_delivered_of_another() {
        let (_dir, log, append_to_both) = pair_log();
        let mut cursors = cursors(&log, "t");
        let writer = std::thread::spawn({
            let log = log.clone();
            move || (0..400).for_each(|_| append_to_both(&log))
        });
        let (mut counts, mut at_end) = ([0; 2], [false; 2]);
        while counts != [400; 2] {
            let mut items = Vec::new();
            poll(&log.shared, &mut cursors, 7, Duration::from_secs(30), &mut items).unwrap();
            assert!(!items.is_empty(), "nothing came for half a minute");
            for item in items {
                match item {
                    PollEvent::Record(record) => {
                        counts[record.at.partition as usize] += 1;
                        at_end[record.at.partition as usize] = false;
                    }
                    PollEvent::End { at, .. } => at_end[at.partition as usize] = true,
                    other => panic!("{other:?}"),
                }
            }
            for (one, other) in [(0, 1), (1, 0)] {
                assert!(!at_end[one] || counts[one] >= counts[other], "{one} was reported to end at {counts:?}");
            }
        }
        writer.join().unwrap();
    }

    #[test]
    fn who_reads_no_partition_is_given_nothing() {
        let (_dir, log) = log();
        let mut items = Vec::new();
        PartitionCursors::default().deliver(&log.shared, 10, &mut items).unwrap();
        assert_eq!(items, []);
    }

    #[test]
    fn no_more_blocks_are_held_than_a_fetch_has_bytes_for() {
        let (_dir, log) = log();
        topic(&log, "t", 1, &[]);
        let large = "x".repeat(100 << 10);
        for _ in 0..5 {
            add(&log, &[record("t", "k", &large)]);
        }
        let mut cursors = cursors(&log, "t");
        let mut items = Vec::new();
        let mut held = Vec::new();
        for _ in 0..6 {
            cursors.deliver(&log.shared, 1, &mut items).unwrap();
            held.push((cursors.all[0].fetched.len(), cursors.all[0].scan));
        }
        // Three blocks are the first that are 256 KiB, and of each fetch one is walked over at once.
        assert_eq!(held, [(2, 3), (1, 3), (0, 3), (1, 5), (0, 5), (0, 5)]);
        assert_eq!(runs(&items), [(0, 5), (0, -5)]);
    }

    #[test]
    fn a_cursor_is_anywhere_from_what_is_kept_to_the_end() {
        let (_dir, log) = log();
        topic(&log, "t", 1, &[]);
        add(&log, &[record("t", "k", "0"), record("t", "k", "1"), record("t", "k", "2")]);
        let (at, mut cursors) = (TopicPartition::new("t", 0), cursors(&log, "t"));
        log.shared.partition(&at).unwrap().set_low(1);
        for (offset, refused) in [
            (0, Some("retention deleted these records: continue at 1")),
            (1, None),
            (2, None),
            (3, None),
            (4, Some("the partition ends at 3: the position belongs to another log")),
            (9, Some("the partition ends at 3: the position belongs to another log")),
        ] {
            match (cursors.seek(&log.shared, &at, offset), refused) {
                (Ok(()), None) => {
                    let mut items = Vec::new();
                    cursors.deliver(&log.shared, 10, &mut items).unwrap();
                    let read = items.len() as i64 - 1;
                    assert_eq!(read, 3 - offset, "from {offset}: {items:?}");
                }
                (Err(error), Some(words)) => {
                    assert_eq!(error.remedy, Remedy::Stop);
                    assert!(error.to_string().contains(words), "{error}");
                }
                (outcome, _) => panic!("from {offset}: {outcome:?}"),
            }
        }
        let error = cursors.seek(&log.shared, &TopicPartition::new("t", 1), 0).unwrap_err();
        assert_eq!(error.to_string(), "starting t-1: it is not assigned here");
    }

    #[test]
    fn who_has_read_all_that_retention_deletes_goes_on() {
        let (_dir, log) = log();
        topic(&log, "t", 1, &[]);
        let (mut cursors, mut items) = (cursors(&log, "t"), Vec::new());
        for deleted in 0..3 {
            add(&log, &[record("t", "k", "v")]);
            log.shared.partition(&TopicPartition::new("t", 0)).unwrap().set_low(deleted);
            cursors.deliver(&log.shared, 1, &mut items).unwrap();
        }
        assert_eq!(runs(&items), [(0, 3)]);
    }

    #[test]
    fn who_polls_waits_only_while_nothing_is_there_and_something_was_asked_for() {
        let (_dir, log) = log();
        topic(&log, "t", 1, &[]);
        let (mut cursors, mut items) = (cursors(&log, "t"), Vec::new());
        poll(&log.shared, &mut cursors, 10, Duration::MAX, &mut items).unwrap();
        assert_eq!(runs(&items), [(0, 0)]);
        poll(&log.shared, &mut cursors, 0, Duration::MAX, &mut items).unwrap();
        poll(&log.shared, &mut cursors, 10, Duration::ZERO, &mut items).unwrap();
        assert_eq!(items.len(), 1, "nothing came");
        add(&log, &[record("t", "k", "0"), record("t", "k", "1")]);
        poll(&log.shared, &mut cursors, 1, Duration::MAX, &mut items).unwrap();
        poll(&log.shared, &mut cursors, 10, Duration::MAX, &mut items).unwrap();
        assert_eq!(runs(&items[1..]), [(0, 2), (0, -2)]);
    }

    #[test]
    fn news_of_others_holds_nobody_beyond_the_timeout() {
        let (_dir, log) = log();
        topic(&log, "t", 1, &[]);
        let (mut cursors, mut items) = (cursors(&log, "t"), Vec::new());
        cursors.deliver(&log.shared, 10, &mut items).unwrap();
        let (notified, returned) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let news = scope.spawn(|| {
                let begun = Instant::now();
                while !returned.load(Ordering::SeqCst) && begun.elapsed() < Duration::from_mins(1) {
                    log.shared.append_notifier.notify();
                    notified.store(true, Ordering::SeqCst);
                }
                returned.load(Ordering::SeqCst)
            });
            while !notified.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            poll(&log.shared, &mut cursors, 10, Duration::from_millis(20), &mut items).unwrap();
            returned.store(true, Ordering::SeqCst);
            assert!(news.join().unwrap(), "it stayed until the news ended");
        });
        assert_eq!(items.len(), 1, "its end, once");
    }

    #[test]
    fn what_is_paused_is_kept_for_later() {
        let (_dir, log) = log();
        topic(&log, "t", 2, &[]);
        let of = |partition| ProducerRecord { partition: Some(partition), ..record("t", "k", "v") };
        add(&log, &[of(0), of(1), of(1)]);
        let from = [0, 1].map(|partition| (TopicPartition::new("t", partition), StartOffset::Earliest));
        let (mut reader, mut items) = (EmbeddedReader::new(log.clone(), &from).unwrap(), Vec::new());
        reader.pause(&[from[1].0.clone()]).unwrap();
        reader.poll(10, Duration::ZERO, &mut items).unwrap();
        assert_eq!(runs(&items), [(0, 1), (0, -1)]);
        reader.resume(&[from[1].0.clone()]).unwrap();
        items.clear();
        reader.poll(10, Duration::ZERO, &mut items).unwrap();
        assert_eq!(runs(&items), [(1, 2), (1, -2)]);
    }
}
