//! Publishing of buffered events to the log, by one thread.
//!
//! An event is *sent* when the log acknowledged it. Every other one is *dropped*, for a counted reason, so that
//! sampled = sent + dropped holds exactly at the end and, with what is waiting and in flight, at any time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use eadt_bus::{Bus, BusError, Producer, ProducerCounts, ProducerRecord, Remedy};
use eadt_service::Shutdown;
use eadt_service::http::ReadinessFlag;

use crate::buffer::{EventBuffer, TakeOutcome};
use crate::metrics::CollectorMetrics;

/// Outcome of the events that the sources handed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CollectorSummary {
    /// Handed over, impossible ones left aside.
    pub sampled: u64,
    /// Acknowledged by the log.
    pub sent: u64,
    pub dropped: DropCounts,
}

/// Events that did not reach the log, by reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DropCounts {
    /// Events discarded because the buffer was full while the log was away.
    pub buffer_full: u64,
    /// Taken by the producer, which then failed to deliver them.
    pub delivery_failed: u64,
    /// Taken by the producer, which had neither delivered nor failed them when it was given up.
    pub unconfirmed: u64,
    /// Still waiting when the time to drain was over or the log took nothing any more, or handed over after that.
    pub shutdown: u64,
}

impl DropCounts {
    pub fn total(&self) -> u64 {
        self.buffer_full + self.delivery_failed + self.unconfirmed + self.shutdown
    }
}

/// The log cannot take events at all.
#[derive(Debug, thiserror::Error)]
#[error("cannot publish to the log; {} events are lost", summary.dropped.total())]
pub struct PublishError {
    pub summary: CollectorSummary,
    #[source]
    pub source: BusError,
}

/// Waits between attempts while the log takes nothing.
const FULL: Duration = Duration::from_millis(20);
const AWAY: Duration = Duration::from_millis(500);
/// Time that one look into the buffer waits.
const IDLE: Duration = Duration::from_millis(200);

pub(crate) struct EventPublisher {
    pub bus: Arc<dyn Bus>,
    pub buffer: Arc<EventBuffer>,
    /// Client id.
    pub name: String,
    /// Time for which a closed buffer is drained.
    pub drain: Duration,
    /// Time that the first event after a pause waits for others, which then share a wake-up and a write of the log: these cost
    /// more than all the rest.
    pub linger: Duration,
    /// Events that may be on their way at once; more wait in the buffer.
    pub in_flight: u64,
    /// The log is taken for away when it acknowledges nothing of the oldest events that it was given for so long: one silent broker
    /// counts, though others go on.
    pub silence: Duration,
    /// Cancelled if the log can take no more events, so that collecting has no use.
    pub shutdown: Shutdown,
    /// Set while the log takes events.
    pub ready: ReadinessFlag,
    pub metrics: CollectorMetrics,
}

struct PublisherState {
    producer: Option<Box<dyn Producer>>,
    /// Counts of producers that are gone, with the unconfirmed ones among the taken.
    past: ProducerCounts,
    unconfirmed: u64,
    reported: ProducerCounts,
    /// Progress of the oldest events in flight, as the producer counts it.
    progress: u64,
    /// Last time at which nothing was in flight, or one of the oldest events had arrived or failed.
    moved: Instant,
    stalled: bool,
    away: bool,
}

impl PublisherState {
    fn counts(&self) -> ProducerCounts {
        let now = self.producer.as_ref().map(|p| p.counts()).unwrap_or_default();
        ProducerCounts {
            accepted: self.past.accepted + now.accepted,
            acknowledged: self.past.acknowledged + now.acknowledged,
            failed: self.past.failed + now.failed,
        }
    }

    fn give_up_producer(&mut self) {
        self.past = self.counts();
        self.producer = None;
        self.unconfirmed = self.past.accepted - self.past.acknowledged - self.past.failed;
    }
}

impl EventPublisher {
    /// Publishes until the buffer is closed and drained. Producers close it when no more events will come.
    pub fn run(self) -> Result<CollectorSummary, PublishError> {
        let mut sending = PublisherState {
            producer: None,
            past: ProducerCounts::default(),
            unconfirmed: 0,
            reported: ProducerCounts::default(),
            progress: 0,
            moved: Instant::now(),
            stalled: false,
            away: false,
        };
        let mut in_hand: Option<ProducerRecord> = None;
        self.metrics.log_reachable.set(1);
        let stopped = loop {
            let in_flight = self.report(&mut sending);
            if self.buffer.closed().is_some_and(|since| since.elapsed() >= self.drain) {
                break None;
            }
            let stalled = sending.moved.elapsed() >= self.silence;
            if std::mem::replace(&mut sending.stalled, stalled) != stalled {
                let silent = format!("it has acknowledged nothing of the oldest of {in_flight} events for {:?}", self.silence);
                self.reachable(&mut sending, stalled.then_some(&silent as &dyn std::fmt::Display));
            }
            if stalled
                && let Some(producer) = sending.producer.as_mut()
                && let Err(error) = producer.poll_deliveries()
            {
                self.reachable(&mut sending, Some(&error));
            }
            if in_flight >= self.in_flight {
                std::thread::sleep(self.until_deadline(FULL));
                continue;
            }
            let event = match in_hand.take() {
                Some(event) => event,
                None => match self.buffer.take(IDLE, self.linger) {
                    TakeOutcome::Event(event) => event,
                    TakeOutcome::Empty => continue,
                    TakeOutcome::Ended => break None,
                },
            };
            match self.send(&mut sending, &event) {
                Ok(()) if sending.stalled => {}
                Ok(()) => self.reachable(&mut sending, None),
                Err(error) if error.remedy == Remedy::Stop => {
                    in_hand = Some(event);
                    break Some(error);
                }
                Err(error) => {
                    let wait = if sending.producer.is_some() { FULL } else { AWAY };
                    if error.remedy == Remedy::Restart {
                        sending.give_up_producer();
                    }
                    self.reachable(&mut sending, Some(&error));
                    in_hand = Some(event);
                    std::thread::sleep(self.until_deadline(wait));
                }
            }
        };
        let waiting = u64::from(in_hand.is_some()) + stopped.as_ref().map_or(0, |error| self.discard(error));
        self.flush(&mut sending);
        sending.give_up_producer();
        self.report(&mut sending);
        let summary = self.summary(&sending, waiting);
        match stopped {
            None => Ok(summary),
            Some(source) => Err(PublishError { summary, source }),
        }
    }

    fn send(&self, sending: &mut PublisherState, event: &ProducerRecord) -> Result<(), BusError> {
        if sending.producer.is_none() {
            sending.producer = Some(self.bus.producer(&self.name)?);
        }
        let producer = sending.producer.as_mut().expect("made above");
        producer.send(event.clone())
    }

    fn until_deadline(&self, wait: Duration) -> Duration {
        self.buffer.closed().map_or(wait, |since| wait.min(self.drain.saturating_sub(since.elapsed())))
    }

    fn reachable(&self, sending: &mut PublisherState, error: Option<&dyn std::fmt::Display>) {
        match (sending.away, error) {
            (false, Some(error)) => {
                tracing::warn!(%error, "the log does not accept events; they are buffered while the buffer has room");
                self.metrics.log_reachable.set(0);
                self.ready.set(false);
            }
            (true, None) => {
                tracing::info!("the log accepts events again");
                self.metrics.log_reachable.set(1);
                self.ready.set(true);
            }
            _ => {}
        }
        sending.away = error.is_some();
    }

    fn flush(&self, sending: &mut PublisherState) {
        let Some(producer) = sending.producer.as_mut() else { return };
        let started = self.buffer.closed().unwrap_or_else(Instant::now);
        let left = self.drain.saturating_sub(started.elapsed());
        match producer.flush(left) {
            Ok(true) => {}
            Ok(false) => tracing::warn!("the log did not acknowledge everything in time"),
            Err(error) => tracing::warn!(%error, "the log did not acknowledge everything"),
        }
    }

    /// Returns the number of events on their way.
    fn report(&self, sending: &mut PublisherState) -> u64 {
        let counts = sending.counts();
        let in_flight = counts.accepted - counts.acknowledged - counts.failed - sending.unconfirmed;
        let progress = sending.producer.as_ref().map_or(0, |producer| producer.oldest_progress());
        if std::mem::replace(&mut sending.progress, progress) != progress || in_flight == 0 {
            sending.moved = Instant::now();
        }
        self.metrics.sent.inc_by(counts.acknowledged - sending.reported.acknowledged);
        self.metrics.drop_events("delivery_failed", counts.failed - sending.reported.failed);
        sending.reported = counts;
        let waiting = self.buffer.counts();
        self.metrics.buffer_events.set(waiting.events as i64);
        self.metrics.buffer_bytes.set(waiting.bytes as i64);
        self.metrics.in_flight_events.set(in_flight as i64);
        in_flight
    }

    /// Asks the sources to end, and takes the events that they still emit until they have. Returns the number of these events.
    fn discard(&self, error: &BusError) -> u64 {
        tracing::error!(%error, "the log cannot accept records any more; the collector stops");
        self.metrics.log_reachable.set(0);
        self.shutdown.cancel();
        let mut count = 0;
        loop {
            match self.buffer.take(IDLE, Duration::ZERO) {
                TakeOutcome::Event(_) => count += 1,
                TakeOutcome::Empty => {}
                TakeOutcome::Ended => return count,
            }
        }
    }

    fn summary(&self, sending: &PublisherState, discarded: u64) -> CollectorSummary {
        // Events that came after the end are in the metrics already.
        let waiting = self.buffer.abandon() + discarded;
        let buffer = self.buffer.counts();
        let unconfirmed = sending.unconfirmed;
        self.metrics.drop_events("shutdown", waiting);
        self.metrics.drop_events("unconfirmed", unconfirmed);
        self.metrics.buffer_events.set(0);
        self.metrics.buffer_bytes.set(0);
        CollectorSummary {
            sampled: buffer.offered,
            sent: sending.past.acknowledged,
            dropped: DropCounts {
                buffer_full: buffer.evicted,
                delivery_failed: sending.past.failed,
                unconfirmed,
                shutdown: waiting + buffer.too_late,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Mutex;

    use eadt_bus::{
        GroupMember, IsolationLevel, MemberOptions, PartitionReader, Result as BusResult, StartOffset, TopicPartition, TopicSpec,
        WatermarkOffsets,
    };
    use eadt_schemas::EventTime;
    use eadt_schemas::latest::GpuTelemetry;
    use eadt_service::HealthRegistry;
    use eadt_testing::cases;
    use proptest::prelude::*;

    use super::*;
    use crate::buffer::BufferLimits;
    use crate::metrics::ReasonLabel;
    use crate::sink::EventSink;

    /// Effect of the log's next call.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Fault {
        Take,
        /// Taken, delivery fails.
        Fail,
        /// Taken, acknowledged only at a later call.
        Late,
        /// Taken, and never acknowledged.
        Silent,
        Refuse,
        Break,
        Stop,
    }

    #[derive(Debug, Default)]
    struct Script {
        faults: Vec<Fault>,
        next: usize,
        stored: Vec<ProducerRecord>,
    }

    #[derive(Debug, Clone, Default)]
    struct FakeBus(Arc<Mutex<Script>>);

    #[derive(Debug)]
    struct FakeProducer {
        script: Arc<Mutex<Script>>,
        counts: ProducerCounts,
        late: Vec<ProducerRecord>,
        /// The oldest records are those of a broker that acknowledges nothing, while others do.
        has_silent_broker: bool,
    }

    fn refuse(remedy: Remedy) -> BusError {
        BusError::new(remedy, "send", "on purpose")
    }

    impl Producer for FakeProducer {
        fn send(&mut self, record: ProducerRecord) -> BusResult<()> {
            let mut script = self.script.lock().unwrap();
            let fault = script.faults.get(script.next).copied().unwrap_or(Fault::Take);
            script.next += 1;
            match fault {
                Fault::Refuse => return Err(refuse(Remedy::Retry)),
                Fault::Break => return Err(refuse(Remedy::Restart)),
                Fault::Stop => return Err(refuse(Remedy::Stop)),
                Fault::Take => {
                    script.stored.push(record);
                    self.counts.acknowledged += 1;
                }
                Fault::Fail => self.counts.failed += 1,
                Fault::Late => self.late.push(record),
                Fault::Silent => {}
            }
            self.counts.accepted += 1;
            if fault == Fault::Take {
                self.counts.acknowledged += self.late.len() as u64;
                script.stored.append(&mut self.late);
            }
            Ok(())
        }
        fn counts(&self) -> ProducerCounts {
            self.counts
        }
        fn oldest_progress(&self) -> u64 {
            if self.has_silent_broker { 0 } else { self.counts.acknowledged + self.counts.failed }
        }
        fn flush(&mut self, _: Duration) -> BusResult<bool> {
            self.counts.acknowledged += self.late.len() as u64;
            self.script.lock().unwrap().stored.append(&mut self.late);
            Ok(self.counts.accepted == self.counts.acknowledged + self.counts.failed)
        }
    }

    impl Bus for FakeBus {
        fn topics(&self, _: &str) -> BusResult<Vec<TopicSpec>> {
            Ok(Vec::new())
        }
        fn create_topic(&self, _: &TopicSpec) -> BusResult<()> {
            Ok(())
        }
        fn alter_topic(&self, _: &str, _: &BTreeMap<String, String>) -> BusResult<()> {
            Ok(())
        }
        fn add_partitions(&self, _: &str, _: i32) -> BusResult<()> {
            Ok(())
        }
        fn watermarks(&self, _: &TopicPartition) -> BusResult<WatermarkOffsets> {
            Err(refuse(Remedy::Stop))
        }
        fn producer(&self, _: &str) -> BusResult<Box<dyn Producer>> {
            let (counts, late) = (ProducerCounts::default(), Vec::new());
            Ok(Box::new(FakeProducer { script: self.0.clone(), counts, late, has_silent_broker: false }))
        }
        fn reader(&self, _: &[(TopicPartition, StartOffset)], _: IsolationLevel) -> BusResult<Box<dyn PartitionReader>> {
            Err(refuse(Remedy::Stop))
        }
        fn member(&self, _: MemberOptions) -> BusResult<Box<dyn GroupMember>> {
            Err(refuse(Remedy::Stop))
        }
        fn committed(&self, _: &str, _: &[TopicPartition]) -> BusResult<Vec<Option<i64>>> {
            Ok(Vec::new())
        }
    }

    struct Run {
        result: Result<CollectorSummary, PublishError>,
        stored: usize,
        metrics: CollectorMetrics,
    }

    /// Offers `events`, half before the publisher starts and half while it runs.
    fn run(faults: Vec<Fault>, events: u32, room: usize, drain: Duration) -> Run {
        run_with(faults, events, room, drain, u64::MAX, |_, _, _| {})
    }

    /// Publishes with at most so many records in flight; `look` gets the log, the metrics and the readiness once all are
    /// offered.
    fn run_with(
        faults: Vec<Fault>,
        events: u32,
        room: usize,
        drain: Duration,
        in_flight: u64,
        look: impl Fn(&FakeBus, &CollectorMetrics, &HealthRegistry),
    ) -> Run {
        let bus = FakeBus::default();
        bus.0.lock().unwrap().faults = faults;
        let buffer = Arc::new(EventBuffer::new(BufferLimits { events: room, bytes: 1 << 24 }));
        let metrics = CollectorMetrics::new(&eadt_service::MetricsRegistry::default());
        let outlet = EventSink::new(buffer.clone(), metrics.clone(), "c", "eadt.");
        let offer = |from: u32, to: u32| {
            for number in from..to {
                let event = GpuTelemetry {
                    time: EventTime::from_micros(i64::from(number) + 1),
                    device: "GPU-a".into(),
                    collector: "c".into(),
                    ..GpuTelemetry::default()
                };
                outlet.telemetry("nvml", &event).unwrap();
            }
        };
        offer(0, events / 2);
        let health = HealthRegistry::default();
        let ready = health.part("collector");
        ready.set(true);
        let publisher = EventPublisher {
            bus: Arc::new(bus.clone()),
            buffer: buffer.clone(),
            name: "c".into(),
            drain,
            linger: Duration::from_millis(1),
            in_flight,
            silence: Duration::from_millis(50),
            shutdown: Shutdown::new(),
            ready,
            metrics: metrics.clone(),
        };
        let thread = std::thread::spawn(move || publisher.run());
        offer(events / 2, events);
        look(&bus, &metrics, &health);
        buffer.close();
        let result = thread.join().unwrap();
        let stored = bus.0.lock().unwrap().stored.len();
        Run { result, stored, metrics }
    }

    fn summary(run: &Run) -> CollectorSummary {
        match &run.result {
            Ok(summary) => *summary,
            Err(error) => error.summary,
        }
    }

    fn assert_balanced(run: &Run, events: u32) {
        let summary = summary(run);
        assert_eq!(summary.sampled, u64::from(events));
        assert_eq!(summary.sampled, summary.sent + summary.dropped.total(), "{summary:?}");
        assert_eq!(summary.sent, run.stored as u64);
        assert_eq!(run.metrics.sent.get(), summary.sent);
        let of = |reason| run.metrics.dropped.get_or_create(&ReasonLabel { reason }).get();
        let dropped = DropCounts {
            buffer_full: of("buffer_full"),
            delivery_failed: of("delivery_failed"),
            unconfirmed: of("unconfirmed"),
            shutdown: of("shutdown"),
        };
        assert_eq!(dropped, summary.dropped, "the metrics agree with the summary");
    }

    #[test]
    fn with_the_log_away_what_fits_is_kept_and_the_rest_is_counted() {
        // Refused until all are offered.
        let back = |bus: &FakeBus, _: &CollectorMetrics, _: &HealthRegistry| bus.0.lock().unwrap().faults.clear();
        let run = run_with(vec![Fault::Refuse; 100_000], 1000, 100, Duration::from_mins(1), u64::MAX, back);
        assert_balanced(&run, 1000);
        let summary = summary(&run);
        // The event in the publisher's hand is not in the buffer.
        assert!((100..=101).contains(&summary.sent), "{summary:?}");
    }

    #[test]
    fn what_cannot_be_drained_in_time_is_counted() {
        let run = run(vec![Fault::Refuse; 1000], 50, 100, Duration::from_millis(100));
        assert_balanced(&run, 50);
        assert_eq!(summary(&run).dropped.shutdown, 50);
    }

    #[test]
    fn a_log_that_takes_and_acknowledges_nothing_ends_readiness_and_is_given_no_more_than_the_bound() {
        let seen = |_: &FakeBus, metrics: &CollectorMetrics, health: &HealthRegistry| {
            let begun = Instant::now();
            let shows_backlog = || metrics.in_flight_events.get() >= 3 && metrics.buffer_events.get() >= 7;
            while health.waiting().is_empty() || metrics.log_reachable.get() == 1 || !shows_backlog() {
                assert!(begun.elapsed() < Duration::from_mins(1), "the metrics do not show it");
                std::thread::sleep(Duration::from_millis(1));
            }
            assert_eq!((metrics.in_flight_events.get(), metrics.buffer_events.get()), (3, 7));
        };
        let run = run_with(vec![Fault::Silent; 100], 10, 100, Duration::from_millis(100), 3, seen);
        assert_balanced(&run, 10);
        let DropCounts { unconfirmed, shutdown, .. } = summary(&run).dropped;
        assert_eq!((unconfirmed, shutdown), (3, 7));
    }

    #[test]
    fn one_broker_that_acknowledges_nothing_ends_readiness_though_others_go_on() {
        let metrics = CollectorMetrics::new(&eadt_service::MetricsRegistry::default());
        let buffer = Arc::new(EventBuffer::new(BufferLimits { events: 100, bytes: 1 << 24 }));
        let health = HealthRegistry::default();
        let publisher = EventPublisher {
            bus: Arc::new(FakeBus::default()),
            buffer,
            name: "c".into(),
            drain: Duration::ZERO,
            linger: Duration::ZERO,
            in_flight: u64::MAX,
            silence: Duration::from_mins(1),
            shutdown: Shutdown::new(),
            ready: health.part("collector"),
            metrics,
        };
        let counts = |acknowledged| ProducerCounts { accepted: acknowledged + 1, acknowledged, failed: 0 };
        for has_silent_broker in [false, true] {
            let producer = |acknowledged| -> Option<Box<dyn Producer>> {
                let (script, late) = (Arc::default(), Vec::new());
                Some(Box::new(FakeProducer { script, counts: counts(acknowledged), late, has_silent_broker }))
            };
            let before = Instant::now().checked_sub(Duration::from_secs(1)).unwrap();
            let mut sending = PublisherState {
                producer: producer(0),
                past: ProducerCounts::default(),
                unconfirmed: 0,
                reported: ProducerCounts::default(),
                progress: 0,
                moved: before,
                stalled: false,
                away: false,
            };
            for acknowledged in 1..10 {
                sending.producer = producer(acknowledged);
                assert_eq!(publisher.report(&mut sending), 1);
                assert_eq!(sending.moved == before, has_silent_broker, "{acknowledged}");
            }
        }
    }

    #[test]
    fn a_stop_ends_publishing_with_the_reason_and_the_count() {
        let run = run(vec![Fault::Take, Fault::Stop], 10, 100, Duration::from_secs(5));
        assert_balanced(&run, 10);
        let error = run.result.unwrap_err();
        assert_eq!(error.summary.sent, 1);
        assert!(error.to_string().contains("9 events are lost"), "{error}");
    }

    proptest! {
        #![proptest_config(cases(24))]
        #[test]
        fn sent_and_dropped_add_up_to_sampled(
            faults in prop::collection::vec(prop::sample::select(vec![Fault::Take, Fault::Take, Fault::Take, Fault::Fail, Fault::Late, Fault::Silent, Fault::Refuse, Fault::Break]), 0..40),
            events in 0u32..60, room in 1usize..40,
        ) {
            let run = run(faults, events, room, Duration::from_millis(1500));
            assert_balanced(&run, events);
            prop_assert!(run.result.is_ok());
        }
    }
}
