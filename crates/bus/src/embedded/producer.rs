//! Plain producers: a bounded buffer each, written by one thread in batches.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use eadt_tasks::LOG_WRITER;

use super::append::{admit, append, size};
use super::store::Survives;
use super::topic::Topic;
use super::{EmbeddedLog, Shared, lock};
use crate::{BusError, Outgoing, Patience, Producer, ProducerCounts, Remedy, Result};

/// A batch is written without waiting further once so much is there.
const BATCH_BYTES: usize = 256 << 10;
/// What is written at once of one producer.
const PORTION_BYTES: usize = 1 << 20;
/// The longest that acknowledged records may be lost to a power cut.
const SYNC_EVERY: Duration = Duration::from_secs(1);
/// Pauses before another try on a full disk, the first and the longest.
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));

/// What one producer has waiting.
#[derive(Debug, Default)]
struct Lane {
    name: String,
    state: Mutex<LaneState>,
    settled: Condvar,
}

#[derive(Debug, Default)]
struct LaneState {
    waiting: Vec<Outgoing>,
    /// Of what waits and what is being written.
    bytes: usize,
    counts: ProducerCounts,
    /// Why records failed; the next call says it.
    failed: Option<BusError>,
    /// The writer is gone: nothing is taken any more, and every call says so.
    given_up: bool,
}

impl LaneState {
    /// What a call has to say before it does anything.
    fn check(&mut self, name: &str) -> Result<()> {
        if self.given_up {
            let detail = "the writer of the embedded log panicked; start the process again, it goes on where the log ends";
            return Err(BusError::new(Remedy::Stop, format!("appending records of {name}"), detail));
        }
        self.failed.take().map_or(Ok(()), Err)
    }

    /// What is not written by now never will be.
    fn give_up(&mut self) {
        self.waiting.clear();
        self.bytes = 0;
        self.counts.failed = self.counts.taken - self.counts.acknowledged;
        self.given_up = true;
    }
}

/// All producers' lanes, and what the writer waits for.
#[derive(Debug, Default)]
pub struct Lanes {
    state: Mutex<LanesState>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct LanesState {
    lanes: Vec<Arc<Lane>>,
    /// Bytes waiting in all lanes.
    bytes: usize,
    /// Somebody flushes.
    urgent: bool,
    closing: bool,
    /// The writer panicked.
    given_up: bool,
}

/// The writer thread; dropping it writes what waits and ends it.
#[derive(Debug)]
pub struct Writer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    pub fn start(shared: Arc<Shared>) -> Result<Self> {
        let of_thread = Arc::clone(&shared);
        let thread = LOG_WRITER
            .thread(move || {
                // Whatever it had not written is lost with it. It is not begun again: nobody knows what the store was left with.
                if LOG_WRITER.watch(|| write(&of_thread)).is_err() {
                    give_up(&of_thread.lanes);
                }
            })
            .map_err(|error| BusError::new(Remedy::Stop, "starting the writer of the embedded log", error))?;
        Ok(Self { shared, thread: Some(thread) })
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        lock(&self.shared.lanes.state).closing = true;
        self.shared.lanes.wake.notify_all();
        if let Some(thread) = self.thread.take() {
            // Its panic was said when it came.
            thread.join().ok();
        }
    }
}

/// Tells every producer, those to come, too.
fn give_up(lanes: &Lanes) {
    let mut state = lock(&lanes.state);
    state.given_up = true;
    for lane in &state.lanes {
        lock(&lane.state).give_up();
        lane.settled.notify_all();
    }
}

fn write(shared: &Shared) {
    let lanes = &shared.lanes;
    let mut synced = (Instant::now(), true);
    loop {
        let mut state = lock(&lanes.state);
        while state.bytes == 0 && !state.urgent && !state.closing {
            let due = SYNC_EVERY.saturating_sub(synced.0.elapsed());
            state = if synced.1 {
                lanes.wake.wait(state).unwrap_or_else(PoisonError::into_inner)
            } else if due.is_zero() {
                break;
            } else {
                lanes.wake.wait_timeout(state, due).unwrap_or_else(PoisonError::into_inner).0
            };
        }
        let linger = shared.options.linger;
        let waited = lanes
            .wake
            .wait_timeout_while(state, linger, |state| {
                state.bytes > 0 && state.bytes < BATCH_BYTES && !state.urgent && !state.closing
            })
            .unwrap_or_else(PoisonError::into_inner);
        state = waited.0;
        state.bytes = 0;
        state.urgent = false;
        let closing = state.closing;
        // A lane that only this list still knows belongs to a dropped producer: it goes once it is empty.
        state.lanes.retain(|lane| Arc::strong_count(lane) > 1 || !lock(&lane.state).waiting.is_empty());
        let present = state.lanes.clone();
        drop(state);

        for lane in &present {
            if write_lane(shared, lane, closing) {
                synced.1 = false;
            }
        }
        if !synced.1 && (closing || synced.0.elapsed() >= SYNC_EVERY) {
            if let Err(error) = shared.store.sync() {
                tracing::error!(%error, "syncing the embedded log failed");
            }
            synced = (Instant::now(), true);
        }
        if closing {
            return;
        }
    }
}

/// Writes what waits in a lane; true when anything was written.
fn write_lane(shared: &Shared, lane: &Lane, closing: bool) -> bool {
    let records = std::mem::take(&mut lock(&lane.state).waiting);
    let mut written = false;
    let mut rest = &records[..];
    while !rest.is_empty() {
        // In portions, since each is in memory several times over while it is written.
        let mut bytes = 0;
        let count = rest
            .iter()
            .position(|record| {
                bytes += size(record);
                bytes >= PORTION_BYTES
            })
            .map_or(rest.len(), |last| last + 1);
        let (portion, later) = rest.split_at(count);
        rest = later;
        written |= write_portion(shared, lane, portion, closing);
    }
    written
}

fn write_portion(shared: &Shared, lane: &Lane, records: &[Outgoing], closing: bool) -> bool {
    let mut outcome = append(shared, records, None, Survives::Process);
    let mut patience = Patience::new(RETRY.0, RETRY.1);
    while let Err(error) = &outcome
        && error.remedy == Remedy::Retry
        && !closing
    {
        let wait = patience.failed(&format!("records of {} wait", lane.name), error);
        // Whoever closes the log does not wait for this.
        let (state, _) = shared
            .lanes
            .wake
            .wait_timeout_while(lock(&shared.lanes.state), wait, |state| !state.closing)
            .unwrap_or_else(PoisonError::into_inner);
        let closes = state.closing;
        drop(state);
        if closes {
            break;
        }
        outcome = append(shared, records, None, Survives::Process);
    }
    if outcome.is_ok() {
        patience.worked(&format!("records of {} wait", lane.name));
    }
    let mut state = lock(&lane.state);
    state.bytes -= records.iter().map(size).sum::<usize>();
    let written = outcome.is_ok();
    match outcome {
        Ok(()) => state.counts.acknowledged += records.len() as u64,
        Err(error) => {
            tracing::error!(producer = lane.name, records = records.len(), %error, "records were not written");
            state.counts.failed += records.len() as u64;
            state.failed = Some(error);
        }
    }
    drop(state);
    lane.settled.notify_all();
    written
}

/// A plain producer. Dropping it loses nothing: what it took is still written.
#[derive(Debug)]
pub struct EmbeddedProducer {
    log: EmbeddedLog,
    lane: Arc<Lane>,
    last: Option<Arc<Topic>>,
}

impl EmbeddedProducer {
    pub fn new(log: EmbeddedLog, name: &str) -> Self {
        let lane = Arc::new(Lane { name: name.to_owned(), ..Lane::default() });
        let mut lanes = lock(&log.shared.lanes.state);
        lock(&lane.state).given_up = lanes.given_up;
        lanes.lanes.push(Arc::clone(&lane));
        drop(lanes);
        Self { log, lane, last: None }
    }

    fn tell(&self, bytes: usize, urgent: bool) {
        let lanes = &self.log.shared.lanes;
        let mut state = lock(&lanes.state);
        let before = state.bytes;
        state.bytes += bytes;
        state.urgent |= urgent;
        // Only when something begins or is due: each notice costs a system call.
        let wake = before == 0 || urgent || (before < BATCH_BYTES && state.bytes >= BATCH_BYTES);
        drop(state);
        if wake {
            lanes.wake.notify_all();
        }
    }
}

impl Producer for EmbeddedProducer {
    fn send(&mut self, record: Outgoing) -> Result<()> {
        admit(&self.log.shared, &record, &mut self.last)?;
        let bytes = size(&record);
        {
            let mut state = lock(&self.lane.state);
            state.check(&self.lane.name)?;
            let limit = self.log.shared.options.producer_buffer_bytes;
            if state.bytes + bytes > limit && state.bytes > 0 {
                return Err(BusError::new(
                    Remedy::Retry,
                    format!("appending to topic {}", record.topic),
                    format!("the buffer of producer {} is full: bytes={limit}", self.lane.name),
                ));
            }
            state.waiting.push(record);
            state.bytes += bytes;
            state.counts.taken += 1;
        }
        // At least one, so that the writer sees that something waits.
        self.tell(bytes.max(1), false);
        Ok(())
    }

    fn counts(&self) -> ProducerCounts {
        lock(&self.lane.state).counts
    }

    fn flush(&mut self, timeout: Duration) -> Result<bool> {
        self.tell(0, true);
        let unsettled = |state: &mut LaneState| state.counts.acknowledged + state.counts.failed < state.counts.taken;
        let waited = self
            .lane
            .settled
            .wait_timeout_while(lock(&self.lane.state), timeout, unsettled)
            .unwrap_or_else(PoisonError::into_inner);
        let mut state = waited.0;
        state.check(&self.lane.name)?;
        if unsettled(&mut state) {
            return Ok(false);
        }
        drop(state);
        self.log.shared.store.sync()?;
        Ok(true)
    }
}
