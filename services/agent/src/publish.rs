//! Publishes the agent's reports: the newest state of its node, and dead letters, bounded. Runs on one thread; the log may be
//! unavailable.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use eadt_bus::{ConsumerRecord, Producer, ProducerRecord};
use eadt_schemas::v1::DeviceState;
use eadt_schemas::{DecodeError, Envelope, EventType, Topic};

use crate::log::LazyBus;
use crate::metrics::AgentMetrics;

/// Dead letters that wait; intents are few.
const MAX_LETTERS: usize = 64;
const AWAY: Duration = Duration::from_millis(500);
const FLUSH: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
struct QueuedReports {
    state: Option<DeviceState>,
    letters: VecDeque<ProducerRecord>,
    closed: Option<Instant>,
}

/// Reports that are being published. If they are dropped before the outcome is known, also by a panic, they are queued again.
struct ReportsInFlight<'a> {
    outbox: &'a ReportOutbox,
    state: Option<DeviceState>,
    letters: VecDeque<ProducerRecord>,
    closed: Option<Instant>,
}

impl ReportsInFlight<'_> {
    fn settle(&mut self) {
        self.state = None;
        self.letters.clear();
    }
}

impl Drop for ReportsInFlight<'_> {
    fn drop(&mut self) {
        let mut waiting = self.outbox.lock();
        // A newer state has the older one's place.
        if waiting.state.is_none() {
            waiting.state = self.state.take();
        }
        for letter in std::mem::take(&mut self.letters).into_iter().rev() {
            waiting.letters.push_front(letter);
        }
    }
}

/// Queued reports.
#[derive(Debug)]
pub(crate) struct ReportOutbox {
    prefix: String,
    metrics: AgentMetrics,
    waiting: Mutex<QueuedReports>,
    changed: Condvar,
}

impl ReportOutbox {
    pub fn new(prefix: &str, metrics: AgentMetrics) -> Self {
        Self { prefix: prefix.to_owned(), metrics, waiting: Mutex::default(), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, QueuedReports> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces a state that is still waiting.
    pub fn state(&self, state: DeviceState) {
        self.lock().state = Some(state);
        self.changed.notify_all();
    }

    /// Closes the queue; queued reports have this long to be published.
    pub fn close(&self, drain: Duration) {
        self.lock().closed = Some(Instant::now() + drain);
        self.changed.notify_all();
    }

    pub fn dead_letter(&self, record: &ConsumerRecord, refusal: &DecodeError) {
        let topic = format!("{}{}", self.prefix, Topic::DeadLetters).into();
        let outgoing = ProducerRecord::dead_letter(&topic, record, refusal, "agent");
        let mut waiting = self.lock();
        if waiting.letters.len() >= MAX_LETTERS {
            waiting.letters.pop_front();
            self.metrics.count_unpublished("dead_letter");
        }
        waiting.letters.push_back(outgoing);
        drop(waiting);
        self.changed.notify_all();
    }

    /// Waits for a report, or for the end.
    fn take(&self) -> ReportsInFlight<'_> {
        let waiting = self.lock();
        let idle = |w: &mut QueuedReports| w.state.is_none() && w.letters.is_empty() && w.closed.is_none();
        let mut waiting = self.changed.wait_while(waiting, idle).unwrap_or_else(PoisonError::into_inner);
        let (state, letters) = (waiting.state.take(), std::mem::take(&mut waiting.letters));
        ReportsInFlight { outbox: self, state, letters, closed: waiting.closed }
    }

    /// Publishes until closed and empty, or until the time to drain is over.
    pub fn run(&self, log: &LazyBus, client: &str) {
        let mut producer: Option<Box<dyn Producer>> = None;
        loop {
            let mut reports = self.take();
            if reports.state.is_none() && reports.letters.is_empty() {
                return;
            }
            let mut unsent = reports.letters.clone();
            unsent.extend(reports.state.as_ref().map(|state| self.event(state)));
            if self.send(log, client, &mut producer, &mut unsent) {
                reports.settle();
                continue;
            }
            if reports.closed.is_some_and(|until| Instant::now() >= until) {
                reports.settle();
                self.metrics.count_unpublished("state");
                tracing::warn!("the agent's last report was not published: the log did not accept it in time");
                return;
            }
            producer = None;
            drop(reports);
            drop(self.changed.wait_timeout(self.lock(), AWAY).unwrap_or_else(PoisonError::into_inner));
        }
    }

    fn event(&self, state: &DeviceState) -> ProducerRecord {
        let envelope = Envelope {
            id: format!("{}/{}", state.node, state.time.micros()),
            source: "/agent".into(),
            kind: EventType::DeviceState,
            time: state.time,
            subject: state.node.clone(),
        };
        let topic = format!("{}{}", self.prefix, Topic::DeviceStates).into();
        ProducerRecord::event(&topic, &state.node, &envelope, state)
    }

    /// Sends the reports; returns true once the log has them all.
    fn send(
        &self,
        log: &LazyBus,
        client: &str,
        producer: &mut Option<Box<dyn Producer>>,
        unsent: &mut VecDeque<ProducerRecord>,
    ) -> bool {
        let mut try_it = || {
            if producer.is_none() {
                *producer = Some(log.bus()?.producer(client)?);
            }
            let producer = producer.as_mut().expect("just made");
            let before = producer.counts();
            let count = unsent.len() as u64;
            for outgoing in unsent.drain(..) {
                producer.send(outgoing)?;
            }
            let flushed = producer.flush(FLUSH)?;
            Ok::<_, eadt_bus::BusError>(flushed && producer.counts().acknowledged - before.acknowledged == count)
        };
        match try_it() {
            Ok(true) => {
                self.metrics.states_sent.inc();
                true
            }
            Ok(false) => {
                tracing::warn!("the log did not acknowledge a report; it is sent again");
                false
            }
            Err(error) => {
                tracing::warn!(%error, "the log does not accept a report; it is sent again");
                false
            }
        }
    }
}
