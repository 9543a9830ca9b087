//! Decoded records on their way from the threads that read to the one that folds.
//!
//! Lanes work side by side and are asked in turn, so that the order is that of the file whatever their speed. Batches go back
//! to the lane they came from: their memory is used again.

use std::cell::RefCell;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use anyhow::bail;
use eadt_processor::offline::{ReplayRecord, ReplaySource};
use eadt_recordings::LogError;

use super::check::ProcessorOutputs;

/// Batches that one lane is ahead of the fold: enough that neither waits for the other's pauses.
const AHEAD: usize = 2;

/// Some hundred records.
#[derive(Debug, Default)]
pub struct ReplayBatch {
    /// Records; those from `filled` on are kept for their memory.
    records: Vec<ReplayRecord>,
    filled: usize,
    /// The record's own outputs, where somebody compares.
    pub own: ProcessorOutputs,
    /// Lines gone through, and events among them.
    pub lines: u64,
    pub events: u64,
    /// Damaged lines among them, and the first.
    pub damaged: u64,
    pub first_damage: Option<LogError>,
    /// Found behind the records; the last of its source.
    pub error: Option<anyhow::Error>,
    /// Nothing follows. Threads set it, so that one that panicked is not taken for the end.
    pub last: bool,
}

impl ReplayBatch {
    /// Returns the place of the next record, which holds an old one. It belongs to the batch once [`Self::keep`] is called.
    pub fn slot(&mut self) -> &mut ReplayRecord {
        if self.filled == self.records.len() {
            self.records.push(ReplayRecord::default());
        }
        &mut self.records[self.filled]
    }

    pub fn keep(&mut self) {
        self.filled += 1;
    }

    pub fn len(&self) -> usize {
        self.filled
    }

    fn clear(&mut self) {
        let feds = std::mem::take(&mut self.records);
        *self = Self { records: feds, ..Self::default() };
    }
}

/// Sends the batches of a reading thread.
#[derive(Debug)]
pub struct BatchSender {
    send: SyncSender<ReplayBatch>,
    back: Receiver<ReplayBatch>,
}

impl BatchSender {
    /// An empty batch.
    pub fn batch(&self) -> ReplayBatch {
        let mut batch = self.back.try_recv().unwrap_or_default();
        batch.clear();
        batch
    }

    /// False once nobody wants more.
    pub fn send(&self, batch: ReplayBatch) -> bool {
        self.send.send(batch).is_ok()
    }
}

/// The folding thread's end.
pub struct BatchReceiver<'a> {
    name: String,
    lanes: Vec<(Receiver<ReplayBatch>, SyncSender<ReplayBatch>)>,
    turn: usize,
    batch: ReplayBatch,
    at: usize,
    own: &'a RefCell<ProcessorOutputs>,
    /// Before the present batch.
    lines: u64,
    events: u64,
}

impl<'a> BatchReceiver<'a> {
    /// Makes as many lanes as asked for. The record's own outputs, and what it lacks, go to `own`.
    pub fn new(name: String, lanes: usize, own: &'a RefCell<ProcessorOutputs>) -> (Vec<BatchSender>, Self) {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..lanes {
            let (send, receive) = sync_channel(AHEAD);
            // No more are under way than wait, are filled and are folded.
            let (give_back, back) = sync_channel(AHEAD + 2);
            theirs.push(BatchSender { send, back });
            ours.push((receive, give_back));
        }
        (theirs, Self { name, lanes: ours, turn: 0, batch: ReplayBatch::default(), at: 0, own, lines: 0, events: 0 })
    }

    /// Goes on to the next batch; the present one is used up.
    fn receive(&mut self) -> anyhow::Result<()> {
        self.lines += self.batch.lines;
        self.events += self.batch.events;
        let (receive, _) = &self.lanes[self.turn];
        let Ok(next) = receive.recv() else { bail!("reading {} ended before its end: a thread failed", self.name) };
        let used = std::mem::replace(&mut self.batch, next);
        let from = if self.turn == 0 { self.lanes.len() - 1 } else { self.turn - 1 };
        // Only memory: dropped where the lane has ended.
        self.lanes[from].1.try_send(used).ok();
        self.turn = (self.turn + 1) % self.lanes.len();
        self.at = 0;
        let mut own = self.own.borrow_mut();
        own.append(&mut self.batch.own);
        if let Some(first) = self.batch.first_damage.take() {
            let first = first.offset_by(self.lines, self.events);
            if self.events == 0 && self.batch.events == 0 {
                // Nothing so far was an event: this is no event log.
                return Err(first.into());
            }
            own.left_out.damaged_lines += self.batch.damaged;
            own.left_out.first_damage.get_or_insert_with(|| first.to_string());
        }
        Ok(())
    }
}

impl ReplaySource<anyhow::Error> for BatchReceiver<'_> {
    fn head(&mut self) -> anyhow::Result<Option<&ReplayRecord>> {
        while self.at >= self.batch.filled {
            if let Some(error) = self.batch.error.take() {
                self.batch.last = true;
                let error = match error.downcast::<LogError>() {
                    Ok(error) => error.offset_by(self.lines, self.events),
                    Err(error) => return Err(error),
                };
                if !error.cut {
                    return Err(error.into());
                }
                // Everything before the cut is whole.
                self.own.borrow_mut().left_out.cut.push(format!("{}:{} (byte {})", error.name, error.line, error.offset));
                return Ok(None);
            }
            if self.batch.last {
                return Ok(None);
            }
            self.receive()?;
        }
        Ok(self.batch.records.get(self.at))
    }

    fn advance(&mut self) {
        self.at += 1;
    }
}
