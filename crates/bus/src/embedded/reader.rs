//! Reading: one cursor a partition, waiting on news from the appender.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::block::{Names, Walk};
use super::store::base_of;
use super::topic::Partition;
use super::{EmbeddedLog, Shared};
use crate::{BusError, Polled, Reader, Remedy, Result, Start, TopicPartition};

/// How much of a partition is fetched at once; at least one block.
const FETCH_BYTES: usize = 256 << 10;
/// How many records of one partition are handed out before the next partition's turn.
const TURN: usize = 512;

#[derive(Debug)]
struct Cursor {
    partition: Arc<Partition>,
    /// `None`: assigned, not started.
    next: Option<i64>,
    /// Blocks are fetched from this base on.
    scan: i64,
    paused: bool,
    /// Whether the end was told since the last record.
    told_end: bool,
    /// Fetched blocks with their base offsets.
    fetched: VecDeque<(i64, Bytes)>,
    walk: Option<Walk>,
}

/// Cursors of some partitions, served in turn.
#[derive(Debug, Default)]
pub struct Cursors {
    all: Vec<Cursor>,
    turn: usize,
    names: Names,
}

impl Cursors {
    /// Nothing is delivered of it before [`Self::seek`].
    pub fn add(&mut self, partition: Arc<Partition>) {
        self.all.push(Cursor {
            partition,
            next: None,
            scan: 0,
            paused: false,
            told_end: false,
            fetched: VecDeque::new(),
            walk: None,
        });
    }

    pub fn has(&self, at: &TopicPartition) -> bool {
        self.all.iter().any(|cursor| cursor.partition.at == *at)
    }

    pub fn seek(&mut self, shared: &Shared, at: &TopicPartition, offset: i64) -> Result<()> {
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
        cursor.told_end = false;
        cursor.fetched.clear();
        cursor.walk = None;
        Ok(())
    }

    pub fn set_paused(&mut self, at: &[TopicPartition], paused: bool) -> Result<()> {
        for at in at {
            self.cursor(at, if paused { "pausing" } else { "resuming" })?.paused = paused;
        }
        Ok(())
    }

    fn cursor(&mut self, at: &TopicPartition, what: &str) -> Result<&mut Cursor> {
        self.all
            .iter_mut()
            .find(|cursor| cursor.partition.at == *at)
            .ok_or_else(|| BusError::new(Remedy::Stop, format!("{what} {at}"), "it is not assigned here"))
    }

    /// What is there now, at most `max` items.
    pub fn take(&mut self, shared: &Shared, max: usize, into: &mut Vec<Polled>) -> Result<()> {
        let (begun, count) = (into.len(), self.all.len());
        let mut idle = 0;
        while idle < count && into.len() - begun < max {
            self.turn = (self.turn + 1) % count;
            let before = into.len();
            let room = (max - (before - begun)).min(TURN);
            self.all[self.turn].take(shared, &mut self.names, room, into)?;
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
        format!("retention has deleted what was there: go on at {low}, and treat what lies between as a gap"),
    ))
}

impl Cursor {
    fn take(&mut self, shared: &Shared, names: &mut Names, room: usize, into: &mut Vec<Polled>) -> Result<()> {
        if self.paused {
            return Ok(());
        }
        let Some(mut next) = self.next else { return Ok(()) };
        let mut left = room;
        while left > 0 {
            if let Some(walk) = &mut self.walk {
                match walk.next_record().map_err(|_| shared.store.malformed(&self.partition.at))? {
                    // The first block may begin before the position.
                    Some(record) if record.offset < next => {}
                    Some(record) => {
                        next = record.offset + 1;
                        self.told_end = false;
                        left -= 1;
                        into.push(Polled::Record(record));
                    }
                    None => self.walk = None,
                }
            } else if let Some((base, block)) = self.fetched.pop_front() {
                let walk = Walk::new(self.partition.at.clone(), base, block, names);
                self.walk = Some(walk.map_err(|_| shared.store.malformed(&self.partition.at))?);
            } else {
                // Read before the blocks: what lies below it is in the store by now.
                let high = self.partition.high();
                if next < high {
                    self.fetch(shared, next, high)?;
                    if self.fetched.is_empty() {
                        // Burnt or compacted away up to the end.
                        (next, self.scan) = (high, high);
                    }
                } else {
                    if !self.told_end {
                        self.told_end = true;
                        into.push(Polled::End { at: self.partition.at.clone(), position: next });
                    }
                    break;
                }
            }
        }
        self.next = Some(next);
        Ok(())
    }

    fn fetch(&mut self, shared: &Shared, next: i64, high: i64) -> Result<()> {
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

/// Takes, and where there is nothing waits for news.
pub fn poll(shared: &Shared, cursors: &mut Cursors, max: usize, timeout: Duration, into: &mut Vec<Polled>) -> Result<()> {
    let begun = Instant::now();
    let before = into.len();
    loop {
        let seen = shared.news.now();
        cursors.take(shared, max, into)?;
        let left = timeout.saturating_sub(begun.elapsed());
        if into.len() > before || left.is_zero() || max == 0 {
            return Ok(());
        }
        shared.news.wait(seen, left);
    }
}

/// A reader outside any group.
#[derive(Debug)]
pub struct EmbeddedReader {
    log: EmbeddedLog,
    cursors: Cursors,
}

impl EmbeddedReader {
    pub fn new(log: EmbeddedLog, from: &[(TopicPartition, Start)]) -> Result<Self> {
        let mut cursors = Cursors::default();
        for (at, start) in from {
            let partition = log.shared.partition(at)?;
            let marks = partition.watermarks();
            cursors.add(partition);
            cursors.seek(
                &log.shared,
                at,
                match start {
                    Start::Earliest => marks.low,
                    Start::Latest => marks.high,
                    Start::At(offset) => *offset,
                },
            )?;
        }
        Ok(Self { log, cursors })
    }
}

impl Reader for EmbeddedReader {
    fn poll(&mut self, max: usize, timeout: Duration, into: &mut Vec<Polled>) -> Result<()> {
        poll(&self.log.shared, &mut self.cursors, max, timeout, into)
    }

    fn pause(&mut self, at: &[TopicPartition]) -> Result<()> {
        self.cursors.set_paused(at, true)
    }

    fn resume(&mut self, at: &[TopicPartition]) -> Result<()> {
        self.cursors.set_paused(at, false)
    }
}
