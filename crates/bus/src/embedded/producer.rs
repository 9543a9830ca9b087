//! Plain producers: a bounded buffer each, written by one thread in batches.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use eadt_tasks::LOG_WRITER;

use super::append::{append, check_record};
use super::store::DurabilityLevel;
use super::topic::EmbeddedTopic;
use super::{EmbeddedLog, EmbeddedLogState, lock};
use crate::{BusError, Producer, ProducerCounts, ProducerRecord, Remedy, Result, RetryBackoff};

/// A batch is written without waiting further once so much is there.
const BATCH_BYTES: usize = 256 << 10;
/// Bytes of one producer that are written at once.
const PORTION_BYTES: usize = 1 << 20;
/// The longest that acknowledged records may be lost to a power cut.
const SYNC_EVERY: Duration = Duration::from_secs(1);
/// Pauses before another try on a full disk, the first and the longest.
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));

/// The waiting records of one producer.
#[derive(Debug, Default)]
struct ProducerQueue {
    name: String,
    state: Mutex<ProducerQueueState>,
    settled: Condvar,
}

#[derive(Debug, Default)]
struct ProducerQueueState {
    waiting: Vec<ProducerRecord>,
    /// Bytes of the records that wait or are being written.
    bytes: usize,
    counts: ProducerCounts,
    /// Error of records that failed; the next call returns it.
    failed: Option<BusError>,
    /// The writer is gone: nothing is taken any more, and every call returns an error.
    given_up: bool,
}

impl ProducerQueueState {
    /// Returns the error that a call has to return before it does anything.
    fn check(&mut self, name: &str) -> Result<()> {
        if self.given_up {
            let detail = "the writer of the embedded log panicked; restart the process, it continues at the end of the log";
            return Err(BusError::new(Remedy::Stop, format!("appending records of {name}"), detail));
        }
        self.failed.take().map_or(Ok(()), Err)
    }

    /// Drops the waiting records, and counts everything that is not written as failed: it never will be written.
    fn give_up(&mut self) {
        self.waiting.clear();
        self.bytes = 0;
        self.counts.failed = self.counts.accepted - self.counts.acknowledged;
        self.given_up = true;
    }
}

/// The lanes of all producers, and the writer's condition.
#[derive(Debug, Default)]
pub struct ProducerQueues {
    state: Mutex<ProducerQueuesState>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct ProducerQueuesState {
    queues: Vec<Arc<ProducerQueue>>,
    /// Bytes waiting in all lanes.
    bytes: usize,
    /// A caller flushes.
    urgent: bool,
    closing: bool,
    /// The writer panicked.
    given_up: bool,
}

impl ProducerQueuesState {
    /// Returns whether there is nothing for the writer to do.
    fn is_idle(&self) -> bool {
        self.bytes == 0 && !self.urgent && !self.closing
    }

    /// Returns whether waiting records may wait for more, so that they are written together.
    fn may_linger(&self) -> bool {
        (1..BATCH_BYTES).contains(&self.bytes) && !self.urgent && !self.closing
    }

    /// Counts bytes that wait, or a flush. Returns whether to wake the writer: only if records begin to wait or are due, since
    /// each notice costs a system call.
    fn count_waiting(&mut self, bytes: usize, urgent: bool) -> bool {
        let before = self.bytes;
        self.bytes += bytes;
        self.urgent |= urgent;
        before == 0 || urgent || (before < BATCH_BYTES && self.bytes >= BATCH_BYTES)
    }

    /// Returns the lanes to write now; from here on their bytes are counted anew. A lane that only this list still knows belongs
    /// to a dropped producer: it goes once it is empty.
    fn take(&mut self) -> Vec<Arc<ProducerQueue>> {
        self.bytes = 0;
        self.urgent = false;
        self.queues.retain(|lane| Arc::strong_count(lane) > 1 || !lock(&lane.state).waiting.is_empty());
        self.queues.clone()
    }
}

/// Schedule by which written records are synced.
#[derive(Debug)]
struct SyncSchedule {
    last: Instant,
    /// Something was written since.
    unsynced: bool,
}

impl SyncSchedule {
    fn new(now: Instant) -> Self {
        Self { last: now, unsynced: false }
    }

    /// Returns the time until a sync is due; `None` if there is nothing to sync.
    fn due_in(&self, now: Instant) -> Option<Duration> {
        self.unsynced.then(|| SYNC_EVERY.saturating_sub(now.duration_since(self.last)))
    }

    /// Returns whether a sync is due. At the end (`closing`), the last records do not wait for one.
    fn is_due(&self, now: Instant, closing: bool) -> bool {
        self.due_in(now).is_some_and(|due| closing || due.is_zero())
    }
}

/// The writer thread; dropping it writes what waits and ends it.
#[derive(Debug)]
pub struct WriterThread {
    shared: Arc<EmbeddedLogState>,
    thread: Option<JoinHandle<()>>,
}

impl WriterThread {
    pub fn start(shared: Arc<EmbeddedLogState>) -> Result<Self> {
        let of_thread = Arc::clone(&shared);
        let thread = LOG_WRITER
            .thread(move || {
                // Unwritten commits are lost with the thread. It is not restarted, since the state of the store is unknown.
                if LOG_WRITER.watch(|| write(&of_thread)).is_err() {
                    give_up(&of_thread.producer_queues);
                }
            })
            .map_err(|error| BusError::new(Remedy::Stop, "starting the writer of the embedded log", error))?;
        Ok(Self { shared, thread: Some(thread) })
    }
}

impl Drop for WriterThread {
    fn drop(&mut self) {
        lock(&self.shared.producer_queues.state).closing = true;
        self.shared.producer_queues.wake.notify_all();
        if let Some(thread) = self.thread.take() {
            // Its panic was reported when it came.
            thread.join().ok();
        }
    }
}

/// Gives up the queue of every producer, and of those to come, and wakes the threads that wait for it.
fn give_up(lanes: &ProducerQueues) {
    let mut state = lock(&lanes.state);
    state.given_up = true;
    for lane in &state.queues {
        lock(&lane.state).give_up();
        lane.settled.notify_all();
    }
}

fn write(shared: &EmbeddedLogState) {
    let lanes = &shared.producer_queues;
    let mut syncs = SyncSchedule::new(Instant::now());
    loop {
        let mut state = lock(&lanes.state);
        while state.is_idle() {
            state = match syncs.due_in(Instant::now()) {
                None => lanes.wake.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(Duration::ZERO) => break,
                Some(due) => lanes.wake.wait_timeout(state, due).unwrap_or_else(PoisonError::into_inner).0,
            };
        }
        let waited = lanes.wake.wait_timeout_while(state, shared.options.linger, |state| state.may_linger());
        state = waited.unwrap_or_else(PoisonError::into_inner).0;
        let (present, closing) = (state.take(), state.closing);
        drop(state);

        for lane in &present {
            if write_lane(shared, lane, closing) {
                syncs.unsynced = true;
            }
        }
        if syncs.is_due(Instant::now(), closing) {
            if let Err(error) = shared.store.sync() {
                tracing::error!(%error, "syncing the embedded log failed");
            }
            syncs = SyncSchedule::new(Instant::now());
        }
        if closing {
            return;
        }
    }
}

/// Writes what waits in a lane; true when anything was written.
fn write_lane(shared: &EmbeddedLogState, lane: &ProducerQueue, closing: bool) -> bool {
    let records = std::mem::take(&mut lock(&lane.state).waiting);
    let mut written = false;
    let mut rest = &records[..];
    while !rest.is_empty() {
        let (portion, later) = rest.split_at(batch_len(rest));
        rest = later;
        if write_portion(shared, lane, portion, closing) {
            written = true;
        }
    }
    written
}

/// Returns the number of these records to write at once. Each record is in memory several times meanwhile.
fn batch_len(records: &[ProducerRecord]) -> usize {
    let mut bytes = 0;
    let last = records.iter().position(|record| {
        bytes += record.size();
        bytes >= PORTION_BYTES
    });
    last.map_or(records.len(), |last| last + 1)
}

fn write_portion(shared: &EmbeddedLogState, lane: &ProducerQueue, records: &[ProducerRecord], closing: bool) -> bool {
    let mut outcome = append(shared, records, None, DurabilityLevel::Process);
    let mut backoff = RetryBackoff::new(RETRY.0, RETRY.1);
    while let Err(error) = &outcome
        && error.remedy == Remedy::Retry
        && !closing
    {
        let wait = backoff.on_failure(&format!("records of {} wait", lane.name), error);
        // Closing the log does not wait for this thread.
        let waited =
            shared.producer_queues.wake.wait_timeout_while(lock(&shared.producer_queues.state), wait, |state| !state.closing);
        if !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out() {
            break;
        }
        outcome = append(shared, records, None, DurabilityLevel::Process);
    }
    if outcome.is_ok() {
        backoff.on_success(&format!("records of {} wait", lane.name));
    }
    let mut state = lock(&lane.state);
    state.bytes -= records.iter().map(ProducerRecord::size).sum::<usize>();
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

/// A plain producer. Dropping it loses nothing: accepted records are still written.
#[derive(Debug)]
pub struct EmbeddedProducer {
    log: EmbeddedLog,
    queue: Arc<ProducerQueue>,
    last: Option<Arc<EmbeddedTopic>>,
}

impl EmbeddedProducer {
    pub fn new(log: EmbeddedLog, name: &str) -> Self {
        let lane = Arc::new(ProducerQueue { name: name.to_owned(), ..ProducerQueue::default() });
        let mut lanes = lock(&log.shared.producer_queues.state);
        lock(&lane.state).given_up = lanes.given_up;
        lanes.queues.push(Arc::clone(&lane));
        drop(lanes);
        Self { log, queue: lane, last: None }
    }

    fn notify_writer(&self, bytes: usize, urgent: bool) {
        let lanes = &self.log.shared.producer_queues;
        let wake = lock(&lanes.state).count_waiting(bytes, urgent);
        if wake {
            lanes.wake.notify_all();
        }
    }
}

impl Producer for EmbeddedProducer {
    fn send(&mut self, record: ProducerRecord) -> Result<()> {
        check_record(&self.log.shared, &record, &mut self.last)?;
        let bytes = record.size();
        {
            let mut state = lock(&self.queue.state);
            state.check(&self.queue.name)?;
            let limit = self.log.shared.options.producer_buffer_bytes;
            if state.bytes + bytes > limit && state.bytes > 0 {
                return Err(BusError::new(
                    Remedy::Retry,
                    format!("appending to topic {}", record.topic),
                    format!("the buffer of producer {} is full: bytes={limit}", self.queue.name),
                ));
            }
            state.waiting.push(record);
            state.bytes += bytes;
            state.counts.accepted += 1;
        }
        // At least one byte, so that the writer notices a waiting record.
        self.notify_writer(bytes.max(1), false);
        Ok(())
    }

    fn counts(&self) -> ProducerCounts {
        lock(&self.queue.state).counts
    }

    fn flush(&mut self, timeout: Duration) -> Result<bool> {
        self.notify_writer(0, true);
        let unsettled = |state: &mut ProducerQueueState| state.counts.acknowledged + state.counts.failed < state.counts.accepted;
        let waited = self
            .queue
            .settled
            .wait_timeout_while(lock(&self.queue.state), timeout, unsettled)
            .unwrap_or_else(PoisonError::into_inner);
        let mut state = waited.0;
        state.check(&self.queue.name)?;
        if unsettled(&mut state) {
            return Ok(false);
        }
        drop(state);
        self.log.shared.store.sync()?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::embedded::tests::{log, record, topic};
    use crate::embedded::{EmbeddedOptions, FreeSpaceSource};
    use crate::{Bus, TopicPartition};

    const WAIT: Duration = Duration::from_secs(10);

    fn waiting(bytes: usize) -> ProducerQueuesState {
        ProducerQueuesState { bytes, ..ProducerQueuesState::default() }
    }

    #[test]
    fn the_writer_has_something_to_do_once_something_waits_or_somebody_flushes_or_closes() {
        assert!(waiting(0).is_idle());
        assert!(!waiting(1).is_idle());
        assert!(!ProducerQueuesState { urgent: true, ..waiting(0) }.is_idle());
        assert!(!ProducerQueuesState { closing: true, ..waiting(0) }.is_idle());
    }

    #[test]
    fn what_waits_lingers_for_company_until_it_is_a_batch_or_somebody_flushes_or_closes() {
        let batch = 256 * 1024;
        for (bytes, may) in [(0, false), (1, true), (batch - 1, true), (batch, false), (batch + 1, false)] {
            assert_eq!(waiting(bytes).may_linger(), may, "{bytes}");
            assert!(!ProducerQueuesState { urgent: true, ..waiting(bytes) }.may_linger());
            assert!(!ProducerQueuesState { closing: true, ..waiting(bytes) }.may_linger());
        }
    }

    #[test]
    fn the_writer_is_woken_when_something_begins_to_wait_and_when_a_batch_is_full_and_at_once_by_who_flushes() {
        let batch = 256 * 1024;
        for (before, bytes, urgent, woken) in [
            (0, 1, false, true),
            (0, batch, false, true),
            (0, 0, true, true),
            (1, 1, false, false),
            (1, 0, true, true),
            (1, batch - 2, false, false),
            (1, batch - 1, false, true),
            (batch - 1, 5, false, true),
            // It knows already.
            (batch, 1, false, false),
            (batch + 1, batch, false, false),
        ] {
            let mut state = waiting(before);
            assert_eq!(state.count_waiting(bytes, urgent), woken, "{before} and {bytes}");
            assert_eq!((state.bytes, state.urgent), (before + bytes, urgent));
            // A flush is not forgotten when more comes.
            state.count_waiting(1, false);
            assert_eq!(state.urgent, urgent);
        }
    }

    #[test]
    fn what_is_taken_is_counted_anew_and_the_lane_of_a_dropped_producer_goes_once_it_is_empty() {
        let lane = |waiting: usize| {
            let state = ProducerQueueState { waiting: vec![record("t", "k", "v"); waiting], ..ProducerQueueState::default() };
            Arc::new(ProducerQueue { state: Mutex::new(state), ..ProducerQueue::default() })
        };
        let (kept, full) = (lane(0), lane(1));
        let mut state = ProducerQueuesState { urgent: true, ..waiting(9) };
        state.queues = vec![Arc::clone(&kept), lane(0), Arc::clone(&full), lane(2)];
        let present = state.take();
        assert_eq!((state.bytes, state.urgent), (0, false));
        let counts: Vec<_> = present.iter().map(|lane| lock(&lane.state).waiting.len()).collect();
        assert_eq!(counts, [0, 1, 2]);
        lock(&present[2].state).waiting.clear();
        drop(present);
        assert_eq!(state.take().len(), 2);
        drop((kept, full));
        assert_eq!(state.take().len(), 1, "what it took is still to be written");
    }

    #[test]
    fn what_was_written_is_synced_after_a_second_and_what_was_written_last_at_once() {
        let begun = Instant::now();
        let at = |millis| begun + Duration::from_millis(millis);
        let mut syncs = SyncSchedule::new(begun);
        assert_eq!(syncs.due_in(at(5000)), None, "nothing was written");
        assert!(!syncs.is_due(at(5000), false) && !syncs.is_due(at(5000), true));
        syncs.unsynced = true;
        for (millis, left) in [(0, 1000), (999, 1), (1000, 0), (1500, 0)] {
            assert_eq!(syncs.due_in(at(millis)), Some(Duration::from_millis(left)));
            assert_eq!(syncs.is_due(at(millis), false), left == 0, "{millis}");
            assert!(syncs.is_due(at(millis), true));
        }
    }

    #[test]
    fn records_are_written_in_portions_of_a_mebibyte_and_each_has_at_least_one() {
        let of = |sizes: &[usize]| sizes.iter().map(|bytes| record("t", "", &"x".repeat(*bytes))).collect::<Vec<_>>();
        let mib = 1024 * 1024;
        for (sizes, count) in [
            (&[][..], 0),
            (&[10, 10, 10], 3),
            (&[mib - 1, 1, 1], 2),
            (&[mib, 1], 1),
            (&[mib + 1, 1], 1),
            (&[mib - 1, mib, 1], 2),
            (&[mib / 2, mib / 4, mib / 4, 1], 3),
        ] {
            assert_eq!(batch_len(&of(sizes)), count, "{sizes:?}");
        }
    }

    fn lane(log: &EmbeddedLog, records: Vec<ProducerRecord>) -> EmbeddedProducer {
        let producer = EmbeddedProducer::new(log.clone(), "p");
        let mut state = lock(&producer.queue.state);
        state.counts.accepted = records.len() as u64;
        state.bytes = records.iter().map(ProducerRecord::size).sum();
        state.waiting = records;
        drop(state);
        producer
    }

    fn counts(producer: &EmbeddedProducer) -> (u64, u64, u64, usize) {
        let ProducerCounts { accepted: taken, acknowledged, failed } = producer.counts();
        (taken, acknowledged, failed, lock(&producer.queue.state).bytes)
    }

    #[test]
    fn a_lane_reports_whether_anything_was_written_and_each_record_is_acknowledged_or_failed() {
        let (_dir, log) = log();
        topic(&log, "t", 1, &[]);
        let large = "x".repeat(600 << 10);
        let (good, bad) = (record("t", "k", &large), record("missing", "k", &large));
        let written = |producer: &EmbeddedProducer| write_lane(&log.shared, &producer.queue, false);
        let none = lane(&log, vec![]);
        assert!(!written(&none));
        assert_eq!(counts(&none), (0, 0, 0, 0));
        // Portions are of two records: what fails takes its portion with it, and no other.
        let mut some = lane(&log, vec![good.clone(), good.clone(), bad.clone(), good.clone(), good.clone()]);
        assert!(written(&some));
        assert_eq!(counts(&some), (5, 3, 2, 0));
        let mut last = lane(&log, vec![bad.clone(), bad.clone(), good.clone(), good, bad]);
        assert!(written(&last));
        assert_eq!(counts(&last), (5, 2, 3, 0));
        let all_bad = lane(&log, vec![record("missing", "k", "v"); 3]);
        assert!(!written(&all_bad));
        assert_eq!(counts(&all_bad), (3, 0, 3, 0));
        assert_eq!(log.watermarks(&TopicPartition::new("t", 0)).unwrap().high, 5);
        // The next call returns it, once.
        let error = some.flush(WAIT).unwrap_err();
        assert_eq!((error.remedy, error.what.as_str()), (Remedy::Stop, "using topic missing"));
        assert!(some.flush(WAIT).unwrap());
        assert!(last.send(record("t", "k", "v")).is_err());
        assert_eq!(counts(&last), (5, 2, 3, 0), "it was not taken");
        last.send(record("t", "k", "v")).unwrap();
        assert!(last.flush(WAIT).unwrap());
        assert_eq!(counts(&last), (6, 3, 3, 0));
    }

    #[test]
    fn who_closes_the_log_does_not_wait_for_a_full_disk() {
        let dir = tempfile::tempdir().unwrap();
        let free_space = FreeSpaceSource::Injected(Arc::new(|| 1000));
        let options = EmbeddedOptions { free_space, reserve_bytes: 1000, ..EmbeddedOptions::default() };
        let log = EmbeddedLog::open(dir.path(), options).unwrap();
        topic(&log, "t", 1, &[]);
        let producer = lane(&log, vec![record("t", "k", "v"); 2]);
        assert!(!write_lane(&log.shared, &producer.queue, true));
        assert_eq!(counts(&producer), (2, 0, 2, 0));
    }

    #[test]
    fn a_producer_holds_no_more_than_its_buffer_but_for_a_single_record() {
        let (dir, log) = log();
        drop(log);
        let options = EmbeddedOptions {
            producer_buffer_bytes: 100,
            linger: Duration::from_hours(1),
            reserve_bytes: 0,
            ..EmbeddedOptions::default()
        };
        let log = EmbeddedLog::open(dir.path(), options).unwrap();
        topic(&log, "t", 1, &[]);
        let mut producer = EmbeddedProducer::new(log.clone(), "p");
        let of = |bytes: usize| record("t", "k", &"x".repeat(bytes - 1));
        // In each round, written records make room for as many new ones.
        for round in 1..4 {
            producer.send(of(60)).unwrap();
            let error = producer.send(of(41)).unwrap_err();
            assert_eq!((error.remedy, error.detail.as_str()), (Remedy::Retry, "the buffer of producer p is full: bytes=100"));
            producer.send(of(40)).unwrap();
            assert!(producer.send(of(1)).is_err());
            assert_eq!(counts(&producer), (round * 3 - 1, (round - 1) * 3, 0, 100));
            assert!(producer.flush(WAIT).unwrap());
            producer.send(of(150)).unwrap();
            assert!(producer.send(of(1)).is_err());
            assert!(producer.flush(WAIT).unwrap());
            assert_eq!(counts(&producer), (round * 3, round * 3, 0, 0));
        }
    }

    #[test]
    fn what_is_not_written_when_the_writer_is_gone_has_failed() {
        let mut state = ProducerQueueState { waiting: vec![record("t", "k", "v")], bytes: 7, ..ProducerQueueState::default() };
        state.counts = ProducerCounts { accepted: 10, acknowledged: 6, failed: 1 };
        assert!(state.check("p").is_ok());
        state.give_up();
        assert_eq!(state.counts, ProducerCounts { accepted: 10, acknowledged: 6, failed: 4 });
        assert!(state.waiting.is_empty() && state.bytes == 0);
        for _ in 0..2 {
            assert!(state.check("p").unwrap_err().detail.starts_with("the writer of the embedded log panicked"));
        }
    }

    #[test]
    fn what_is_acknowledged_by_a_flush_is_durable() {
        let (dir, log) = log();
        topic(&log, "t", 1, &[]);
        let witnessed = || crate::embedded::durable_commit::DurableCommitFile::read_durable_commit(dir.path());
        let mut producer = EmbeddedProducer::new(log.clone(), "p");
        let before = witnessed();
        producer.send(record("t", "k", "v")).unwrap();
        assert!(producer.flush(WAIT).unwrap());
        assert_eq!(witnessed(), before + 1);
    }
}
