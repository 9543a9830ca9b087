//! Decoded records on their way from the threads that read to the one that folds.
//!
//! Lanes work side by side and are asked in turn, so that the order is that of the file whatever their speed. Batches go back
//! to the lane they came from: their memory is used again.

use std::error::Error;
use std::fmt;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::bail;
use eadt_processor::offline::{RecordBatch, ReplayError, ReplayRecord, ReplaySource};
use eadt_recordings::LogError;
use eadt_service::tasks::REPLAY_READER;

use super::check::ProcessorOutputs;

/// Batches of each lane that wait for the fold: enough that neither waits for the other's pauses.
const BATCHES_WAITING: usize = 2;

/// An error on its way through the replay, with its type and its context.
#[derive(Debug)]
struct CarriedError(anyhow::Error);

impl fmt::Display for CarriedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Error for CarriedError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}

pub fn carry(error: anyhow::Error) -> ReplayError {
    Box::new(CarriedError(error))
}

/// Returns what [`carry`] got, or an error of the replay itself.
pub fn carried(error: ReplayError) -> anyhow::Error {
    error.downcast::<CarriedError>().map_or_else(anyhow::Error::from_boxed, |carried| carried.0)
}

/// The record's own outputs, and its missing ones, which the reader adds.
#[derive(Debug, Clone, Default)]
pub struct SharedOutputs(Arc<Mutex<ProcessorOutputs>>);

impl SharedOutputs {
    pub fn lock(&self) -> MutexGuard<'_, ProcessorOutputs> {
        // A reader that panicked has ended the replay.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Some hundred records.
#[derive(Debug, Default)]
pub struct ReplayBatch {
    records: RecordBatch,
    /// The record's own outputs, if they are compared.
    pub own: ProcessorOutputs,
    /// Lines gone through, and events among them.
    pub lines: u64,
    pub events: u64,
    /// Damaged lines among them, and the first.
    pub damaged: u64,
    pub first_damage: Option<LogError>,
    /// Found behind the records; the last of its source.
    pub error: Option<anyhow::Error>,
    /// This is the last batch. Threads set it, so that a panic does not count as the end.
    pub last: bool,
}

impl ReplayBatch {
    /// Returns the place of the next record, which holds an old one. It belongs to the batch once [`Self::keep`] is called.
    pub fn slot(&mut self) -> &mut ReplayRecord {
        self.records.slot()
    }

    pub fn keep(&mut self) {
        self.records.keep();
    }

    /// Takes the claim of the record in the slot, if it is a sample of a GPU.
    pub fn claim_board(&mut self) {
        if let Some(event) = self.records.slot().as_telemetry() {
            self.own.board_claims.add(event);
        }
    }

    fn clear(&mut self) {
        let mut records = std::mem::take(&mut self.records);
        records.clear();
        *self = Self { records, ..Self::default() };
    }
}

/// Sends the batches of a reading thread.
#[derive(Debug)]
pub struct BatchSender {
    send: SyncSender<ReplayBatch>,
    back: Receiver<ReplayBatch>,
}

impl BatchSender {
    /// Returns an empty batch.
    pub fn batch(&self) -> ReplayBatch {
        let mut batch = self.back.try_recv().unwrap_or_default();
        batch.clear();
        batch
    }

    /// Sends a batch; returns false once the receiver is gone.
    pub fn send(&self, batch: ReplayBatch) -> bool {
        self.send.send(batch).is_ok()
    }
}

/// Channel of a lane's batches, and the one that returns them.
type ReceivingLane = (Receiver<ReplayBatch>, SyncSender<ReplayBatch>);

fn lane() -> (BatchSender, ReceivingLane) {
    let (send, receive) = sync_channel(BATCHES_WAITING);
    // No more are under way than wait, are filled and are folded.
    let (give_back, back) = sync_channel(BATCHES_WAITING + 2);
    (BatchSender { send, back }, (receive, give_back))
}

/// The folding thread's end.
pub struct BatchReceiver {
    name: String,
    partition: Option<i32>,
    lanes: Vec<ReceivingLane>,
    turn: usize,
    /// The batch that was received last, without its records.
    batch: ReplayBatch,
    own: SharedOutputs,
    /// Lines before the present batch.
    lines: u64,
    events: u64,
}

impl BatchReceiver {
    /// Makes as many lanes as requested. The record's own outputs, and its gaps, go to `own`.
    pub fn new(name: String, lanes: usize, own: SharedOutputs) -> (Vec<BatchSender>, Self) {
        let (theirs, ours) = (0..lanes).map(|_| lane()).unzip();
        (theirs, Self::of(name, ours, own))
    }

    fn of(name: String, lanes: Vec<ReceivingLane>, own: SharedOutputs) -> Self {
        Self { name, partition: None, lanes, turn: 0, batch: ReplayBatch::default(), own, lines: 0, events: 0 }
    }

    /// Reads a source on a thread of its own.
    pub fn read_ahead(name: String, mut source: impl ReplaySource + 'static, own: SharedOutputs) -> anyhow::Result<Self> {
        let (sender, lane) = lane();
        let receiver = Self { partition: source.partition(), ..Self::of(name, vec![lane], own) };
        REPLAY_READER.thread(move || {
            let mut goes_on = true;
            while goes_on {
                let mut batch = sender.batch();
                match source.read(&mut batch.records) {
                    Ok(more) => batch.last = !more,
                    Err(error) => batch.error = Some(carried(error)),
                }
                goes_on = !batch.last && batch.error.is_none();
                // If the replay has failed, the receiver is gone.
                goes_on &= sender.send(batch);
            }
        })?;
        Ok(receiver)
    }

    /// Goes on to the next batch and puts its records in place of those given, which are used up.
    fn receive(&mut self, records: &mut RecordBatch) -> anyhow::Result<()> {
        self.lines += self.batch.lines;
        self.events += self.batch.events;
        let (receive, _) = &self.lanes[self.turn];
        let Ok(next) = receive.recv() else { bail!("reading {} ended before its end: a thread failed", self.name) };
        let mut used = std::mem::replace(&mut self.batch, next);
        std::mem::swap(&mut self.batch.records, records);
        std::mem::swap(&mut self.batch.records, &mut used.records);
        let from = if self.turn == 0 { self.lanes.len() - 1 } else { self.turn - 1 };
        // Returns memory only; it is dropped if the lane has ended.
        self.lanes[from].1.try_send(used).ok();
        self.turn = (self.turn + 1) % self.lanes.len();
        let mut own = self.own.lock();
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

    /// Reads on until there are records, or the end.
    fn next_records(&mut self, records: &mut RecordBatch) -> anyhow::Result<bool> {
        records.clear();
        while records.is_empty() {
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
                self.own.lock().left_out.cut.push(format!("{}:{} (byte {})", error.name, error.line, error.offset));
                return Ok(false);
            }
            if self.batch.last {
                return Ok(false);
            }
            self.receive(records)?;
        }
        Ok(true)
    }
}

impl ReplaySource for BatchReceiver {
    fn partition(&self) -> Option<i32> {
        self.partition
    }

    fn read(&mut self, records: &mut RecordBatch) -> Result<bool, ReplayError> {
        self.next_records(records).map_err(carry)
    }
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;
    use crate::usage_error;

    #[test]
    fn an_error_keeps_its_type_and_context_on_its_way() {
        let error = carried(carry(usage_error::invalid("--x", 1, "too small")));
        assert!(usage_error::is_usage_error(&error), "{error:?}");
        let lost = std::io::Error::other("the disk is gone");
        let error = carried(carry(Err::<(), _>(lost).context("cannot write a file").unwrap_err()));
        assert_eq!(format!("{error:#}"), "cannot write a file: the disk is gone");
        assert!(error.downcast_ref::<std::io::Error>().is_some());
        assert_eq!(carried("of the replay".into()).to_string(), "of the replay");
    }
}
