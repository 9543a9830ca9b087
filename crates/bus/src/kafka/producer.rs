//! Plain idempotent producers.
//!
//! The client library (2.12) sometimes never delivers anything again after its broker was away for some seconds, and reports
//! nothing. So a producer is made anew, with the records that it had taken, if its records are not acknowledged although the
//! cluster answers. Some of these may then be in the log twice, and none is missing. They carry a mark ([`SENT_AGAIN`]), so
//! that readers count them once.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use eadt_schemas::envelope::header::SENT_AGAIN;
use rdkafka::config::ClientConfig;
use rdkafka::error::KafkaError;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _, PurgeConfig};
use rdkafka::types::RDKafkaErrorCode as Code;

use super::context::KafkaContext;
use super::errors::from_error;
use super::silence_watchdog::SilenceWatchdog;
use super::{KafkaBus, make_producer};
use crate::{Bus, BusError, Producer, ProducerCounts, ProducerRecord, Remedy, Result};

/// Time for records that are in flight at the end.
const LAST_FLUSH: Duration = Duration::from_secs(10);
/// Shortest pause between two polls for delivery reports: a broker needs a millisecond or two, and may be away for minutes.
const SHORTEST_PAUSE: Duration = Duration::from_micros(100);
const LONGEST_PAUSE: Duration = Duration::from_millis(5);
/// Delivery reports are looked at after so many records.
pub const LOOK_EVERY: usize = 64;

/// Hands a record to the client library. `Ok(false)`: its buffer is full.
pub fn hand_over(producer: &BaseProducer<KafkaContext>, record: &ProducerRecord) -> Result<bool, KafkaError> {
    let deliveries = &producer.client().context().deliveries;
    let epoch = deliveries.epochs().send();
    let mut out: BaseRecord<'_, [u8], [u8], usize> = BaseRecord::with_opaque_to(&record.topic, epoch);
    out.key = record.key.as_deref();
    out.payload = record.value.as_deref();
    out.partition = record.partition;
    if !record.headers.is_empty() {
        let headers = OwnedHeaders::new_with_capacity(record.headers.len());
        out.headers = Some(
            record
                .headers
                .iter()
                .fold(headers, |headers, (name, value)| headers.insert(Header { key: name, value: Some(&value[..]) })),
        );
    }
    let Err((error, _)) = producer.send(out) else { return Ok(true) };
    deliveries.epochs().give_back(epoch);
    if matches!(error, KafkaError::MessageProduction(Code::QueueFull)) { Ok(false) } else { Err(error) }
}

/// Serves delivery reports until nothing is in flight, or until the deadline. Returns true if nothing is in flight. The library's
/// own `flush` waits in steps of a hundred milliseconds.
pub fn wait_until_delivered(producer: &BaseProducer<KafkaContext>, deadline: Instant) -> bool {
    let begun = Instant::now();
    while producer.in_flight_count() > 0 {
        if Instant::now() >= deadline {
            return false;
        }
        serve_deliveries(producer, begun);
    }
    true
}

/// Serves a delivery report. If there is none, waits: the longer, the longer it has waited already. Not by the library's
/// `poll`: that rounds its remaining time down to milliseconds, and so asks without a pause all through the last one.
pub fn serve_deliveries(producer: &BaseProducer<KafkaContext>, begun: Instant) {
    let before = producer.in_flight_count();
    producer.poll(Duration::ZERO);
    if producer.in_flight_count() >= before {
        std::thread::sleep((begun.elapsed() / 16).clamp(SHORTEST_PAUSE, LONGEST_PAUSE));
    }
}

/// Interval between two checks for silence while a caller waits.
const WAIT_STEP: Duration = Duration::from_secs(1);
/// Time to wait for the records of a producer that is given up.
const GIVE_BACK: Duration = Duration::from_secs(2);

pub struct KafkaProducer {
    bus: KafkaBus,
    config: ClientConfig,
    /// `None` only while it is made anew.
    producer: Option<BaseProducer<KafkaContext>>,
    context: KafkaContext,
    name: String,
    accepted_count: u64,
    silence: SilenceWatchdog,
    /// Topic of the last record, for requests to the cluster.
    topic: Box<str>,
    /// Records that an earlier producer gave back, and that were not handed over again yet.
    again: VecDeque<ProducerRecord>,
    /// The last flush ended before everything was delivered, and nothing was sent since: the caller has counted the rest.
    is_flush_given_up: bool,
}

impl std::fmt::Debug for KafkaProducer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KafkaProducer").field("name", &self.name).finish_non_exhaustive()
    }
}

impl KafkaProducer {
    pub fn new(bus: &KafkaBus, config: ClientConfig, name: &str) -> Result<Self> {
        let (producer, context) = make_producer(&config, name, bus.context())?;
        Ok(Self {
            bus: bus.clone(),
            config,
            producer: Some(producer),
            context,
            name: name.to_owned(),
            accepted_count: 0,
            silence: SilenceWatchdog::new(Instant::now()),
            topic: "".into(),
            again: VecDeque::new(),
            is_flush_given_up: false,
        })
    }

    fn producer(&self) -> &BaseProducer<KafkaContext> {
        self.producer.as_ref().expect("there is one but while it is made anew")
    }

    fn report_failure(&self) -> Result<()> {
        let what = || format!("delivering records of producer {}", self.name);
        self.context.take_failure(what, || self.producer().client().fatal_error(), Remedy::Stop).map_or(Ok(()), Err)
    }

    /// Returns how long the end waits for records in flight. Zero after an abandoned flush: its caller has waited already, and
    /// counted them as not delivered.
    const fn last_flush_timeout(&self) -> Duration {
        if self.is_flush_given_up { Duration::ZERO } else { LAST_FLUSH }
    }

    fn completed(&self) -> u64 {
        let deliveries = &self.context.deliveries;
        deliveries.acknowledged.load(Ordering::Relaxed) + deliveries.failed.load(Ordering::Relaxed)
    }

    /// Asks the cluster if nothing of the oldest records was acknowledged for long, and makes the producer anew if only that one is
    /// silent.
    fn watch_silence(&mut self) -> Result<()> {
        self.hand_over_again()?;
        let (progress, is_empty) = {
            let epochs = self.context.deliveries.epochs();
            (epochs.progress(), epochs.is_empty())
        };
        let waits_for = if is_empty && self.again.is_empty() { progress } else { u64::MAX };
        if !self.silence.is_probe_due(Instant::now(), progress, waits_for) {
            return Ok(());
        }
        let answered = self.bus.probe(&self.topic).is_ok();
        if self.silence.is_renewal_due(Instant::now(), answered) && !crate::chaos::is_off("fresh-silent-producer") {
            self.make_anew()?;
        }
        Ok(())
    }

    fn make_anew(&mut self) -> Result<()> {
        let (fresh, _) = make_producer(&self.config, &self.name, self.context.clone())?;
        let deliveries = self.context.deliveries.clone();
        deliveries.keep_purged();
        if let Some(old) = self.producer.replace(fresh) {
            old.purge(PurgeConfig::default().queue().inflight());
            wait_until_delivered(&old, Instant::now() + GIVE_BACK);
            drop(old);
        }
        deliveries.epochs().clear();
        let back = deliveries.take_back();
        let (given_back, unanswered) = (back.in_flight.len() + back.unsent.len(), back.unanswered);
        // Records that the old producer did not give back are lost.
        let lost = self.accepted_count.saturating_sub(self.completed() + (given_back + self.again.len()) as u64);
        deliveries.failed.fetch_add(lost, Ordering::Relaxed);
        for mut record in back.unsent.into_iter().rev().chain(back.in_flight.into_iter().rev()) {
            mark_sent_again(&mut record);
            self.again.push_front(record);
        }
        self.silence.renew(Instant::now());
        tracing::warn!(
            producer = self.name,
            unanswered,
            unsent = given_back - unanswered,
            lost,
            "the log answers, but acknowledged nothing of the oldest records to this producer: it was made anew; what was not acknowledged is sent again and marked, since the log may have it already"
        );
        self.hand_over_again()
    }

    fn hand_over_again(&mut self) -> Result<()> {
        while let Some(record) = self.again.front() {
            let what = || format!("appending to topic {} again", record.topic);
            if !hand_over(self.producer(), record).map_err(|error| from_error(what(), &error, Remedy::Retry))? {
                break;
            }
            self.again.pop_front();
        }
        Ok(())
    }
}

/// Marks a record that is sent again. All of them, not only those that were sent before as far as the library knows: it takes
/// requests for unsent that were on their way to a broker that it gave up.
fn mark_sent_again(record: &mut ProducerRecord) {
    if record.headers.iter().all(|(name, _)| **name != *SENT_AGAIN) {
        record.headers.push((SENT_AGAIN.into(), Bytes::from_static(b"1")));
    }
}

impl Producer for KafkaProducer {
    fn send(&mut self, record: ProducerRecord) -> Result<()> {
        if self.accepted_count.is_multiple_of(LOOK_EVERY as u64) {
            self.producer().poll(Duration::ZERO);
            self.watch_silence()?;
        }
        self.report_failure()?;
        let what = || format!("appending to topic {}", record.topic);
        let mut queued = self.again.is_empty()
            && hand_over(self.producer(), &record).map_err(|error| from_error(what(), &error, Remedy::Retry))?;
        if !queued {
            // Reports that wait to be looked at count as in flight.
            self.producer().poll(Duration::ZERO);
            self.watch_silence()?;
            queued = self.again.is_empty()
                && hand_over(self.producer(), &record).map_err(|error| from_error(what(), &error, Remedy::Retry))?;
        }
        if !queued {
            let why = self.context.last_error().map_or_else(String::new, |error| format!(" ({error})"));
            return Err(BusError::new(Remedy::Retry, what(), format!("the buffer of producer {} is full{why}", self.name)));
        }
        if *self.topic != *record.topic {
            self.topic = (*record.topic).into();
        }
        self.accepted_count += 1;
        self.is_flush_given_up = false;
        Ok(())
    }

    fn counts(&self) -> ProducerCounts {
        self.producer().poll(Duration::ZERO);
        let deliveries = &self.context.deliveries;
        ProducerCounts {
            accepted: self.accepted_count,
            acknowledged: deliveries.acknowledged.load(Ordering::Relaxed),
            failed: deliveries.failed.load(Ordering::Relaxed),
        }
    }

    fn oldest_progress(&self) -> u64 {
        self.context.deliveries.epochs().progress()
    }

    fn poll_deliveries(&mut self) -> Result<()> {
        self.producer().poll(Duration::ZERO);
        self.watch_silence()
    }

    fn flush(&mut self, timeout: Duration) -> Result<bool> {
        let deadline = Instant::now() + timeout;
        let mut settled = false;
        self.is_flush_given_up = true;
        while !settled {
            settled = wait_until_delivered(self.producer(), deadline.min(Instant::now() + WAIT_STEP)) && self.again.is_empty();
            self.report_failure()?;
            if settled || Instant::now() >= deadline {
                break;
            }
            self.watch_silence()?;
        }
        self.is_flush_given_up = !settled;
        Ok(settled)
    }
}

impl Drop for KafkaProducer {
    fn drop(&mut self) {
        let Some(producer) = &self.producer else { return };
        if !wait_until_delivered(producer, Instant::now() + self.last_flush_timeout()) || !self.again.is_empty() {
            let lost = usize::try_from(producer.in_flight_count()).unwrap_or(0) + self.again.len();
            tracing::error!(producer = self.name, records = lost, "records were not delivered before the end");
        }
    }
}

#[cfg(test)]
mod tests {
    use rdkafka::config::FromClientConfigAndContext;
    use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};

    use super::super::mock::{MockBrokers, outgoing};
    use super::*;
    use crate::{IsolationLevel, PollEvent, StartOffset, TopicPartition};

    /// Returns the CPU time of this thread so far.
    fn cpu() -> Duration {
        let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
        Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())
    }

    #[test]
    fn who_waits_for_a_broker_leaves_the_processor_to_others() {
        let mut config = ClientConfig::new();
        // No broker listens at this address.
        config.set("bootstrap.servers", "127.0.0.1:1");
        let producer = BaseProducer::from_config_and_context(&config, KafkaContext::new("".into())).unwrap();
        let record = ProducerRecord {
            topic: "topic".into(),
            partition: Some(0),
            key: None,
            value: Some("value".into()),
            headers: Vec::new(),
        };
        assert!(hand_over(&producer, &record).unwrap());
        let (begun, before) = (Instant::now(), cpu());
        assert!(!wait_until_delivered(&producer, begun + Duration::from_millis(500)), "it cannot be delivered");
        let (waited, used) = (begun.elapsed(), cpu().saturating_sub(before));
        assert!(waited >= Duration::from_millis(500), "{waited:?}");
        assert!(used < waited / 4, "{used:?} of {waited:?}");
    }

    #[test]
    fn what_is_in_flight_when_a_producer_goes_is_delivered_first() {
        let brokers = MockBrokers::start();
        let mut producer = brokers.bus.producer("last").unwrap();
        for number in 0..100 {
            producer.send(outgoing("out", 0, &number.to_string())).unwrap();
        }
        assert_eq!(format!("{producer:?}"), "KafkaProducer { name: \"last\", .. }");
        let (lines, ()) = eadt_testing::lines(|| drop(producer));
        assert!(!lines.iter().any(|line| line.contains("records were not delivered")), "{lines:?}");
        let at = TopicPartition { topic: "out".into(), partition: 0 };
        assert_eq!(brokers.bus.watermarks(&at).unwrap().high, 100);
    }

    #[test]
    fn the_end_waits_for_what_is_in_flight_unless_a_flush_was_given_up() {
        let brokers = MockBrokers::start();
        let config = brokers.bus.producer_config().set("message.timeout.ms", "0").clone();
        let mut producer = KafkaProducer::new(&brokers.bus, config, "last").unwrap();
        brokers.cluster.broker_down(1).unwrap();
        producer.send(outgoing("out", 0, "0")).unwrap();
        assert_eq!(producer.last_flush_timeout(), LAST_FLUSH);
        assert!(!producer.flush(Duration::from_millis(50)).unwrap());
        assert_eq!(producer.last_flush_timeout(), Duration::ZERO);
        producer.send(outgoing("out", 0, "1")).unwrap();
        assert_eq!(producer.last_flush_timeout(), LAST_FLUSH, "nobody has counted that one");
        brokers.cluster.broker_up(1).unwrap();
        assert!(producer.flush(super::super::mock::WAIT).unwrap());
        assert_eq!((producer.last_flush_timeout(), producer.oldest_progress()), (LAST_FLUSH, 2));
    }

    #[test]
    fn a_producer_that_nobody_answers_though_the_cluster_does_is_made_anew_and_nothing_is_missing() {
        // Retried for ever: nothing was written, or this is unknown.
        use RDKafkaRespErr::{
            RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS as UNWRITTEN, RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS_AFTER_APPEND as WRITTEN,
        };
        for answer in [UNWRITTEN, WRITTEN] {
            let line = renew_while_answered(answer);
            assert!(line.contains("lost=0"), "{line}");
            assert!(answer == UNWRITTEN || !line.contains("unanswered=0"), "{line}");
        }
    }

    /// Sends 100 records while the broker answers so, until the producer is made anew. Returns the line about it.
    fn renew_while_answered(answer: RDKafkaRespErr) -> String {
        let brokers = MockBrokers::start();
        let mut producer =
            KafkaProducer::new(&brokers.bus, brokers.bus.producer_config().set("message.timeout.ms", "0").clone(), "silent")
                .unwrap();
        producer.silence = SilenceWatchdog::with_limit(Instant::now(), Duration::from_secs(1));
        // The mock forgets a prepared answer only once it is asked.
        let away = vec![answer; 100_000];
        brokers.cluster.request_errors(RDKafkaApiKey::Produce, &away);
        for number in 0..100 {
            producer.send(outgoing("out", 0, &number.to_string())).unwrap();
        }
        let (lines, ()) = eadt_testing::lines(|| {
            let begun = Instant::now();
            while producer.silence.renewals == 0 {
                assert!(begun.elapsed() < super::super::mock::WAIT, "it was not made anew");
                producer.poll_deliveries().unwrap();
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let line = lines.iter().find(|line| line.contains("it was made anew")).unwrap_or_else(|| panic!("{lines:?}")).clone();
        assert_eq!(producer.counts(), ProducerCounts { accepted: 100, acknowledged: 0, failed: 0 });
        // From here on a pause of a busy machine is no silence.
        producer.silence = SilenceWatchdog::new(Instant::now());
        brokers.cluster.clear_request_errors(RDKafkaApiKey::Produce);
        assert!(producer.flush(super::super::mock::WAIT).unwrap());
        assert_eq!(producer.counts(), ProducerCounts { accepted: 100, acknowledged: 100, failed: 0 });
        let at = TopicPartition { topic: "out".into(), partition: 0 };
        assert_eq!(brokers.bus.watermarks(&at).unwrap().high, 100);
        let mut reader = brokers.bus.reader(&[(at, StartOffset::Earliest)], IsolationLevel::ReadUncommitted).unwrap();
        let polled = super::super::mock::poll(&mut *reader, 100);
        let is_marked = |item: &PollEvent| matches!(item, PollEvent::Record(record) if record.view().is_sent_again);
        assert_eq!(polled.iter().filter(|item| is_marked(item)).count(), 100, "{polled:?}");
        line
    }

    #[test]
    fn a_record_that_is_sent_again_twice_is_marked_once() {
        let mut record = outgoing("out", 0, "value");
        record.headers.push(("ce_id".into(), "7".into()));
        mark_sent_again(&mut record);
        mark_sent_again(&mut record);
        let names: Vec<_> = record.headers.iter().map(|(name, _)| &**name).collect();
        assert_eq!(names, ["ce_id", SENT_AGAIN]);
    }
}
