//! Plain idempotent producers.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rdkafka::error::KafkaError;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use rdkafka::types::RDKafkaErrorCode as Code;

use super::context::Context;
use super::errors::from_error;
use crate::{BusError, Outgoing, Producer, ProducerCounts, Remedy, Result};

/// What is still in flight at the end gets so long.
const LAST_FLUSH: Duration = Duration::from_secs(10);
/// Between two looks for delivery reports: a broker needs a millisecond or two, and may be away for minutes.
const SHORTEST_PAUSE: Duration = Duration::from_micros(100);
const LONGEST_PAUSE: Duration = Duration::from_millis(5);
/// Delivery reports are looked at after so many records.
pub const LOOK_EVERY: usize = 64;

/// Hands a record to the client library. `Ok(false)`: its buffer is full.
pub fn hand_over(producer: &BaseProducer<Context>, record: &Outgoing) -> Result<bool, KafkaError> {
    let mut out: BaseRecord<'_, [u8], [u8]> = BaseRecord::to(&record.topic);
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
    match producer.send(out) {
        Ok(()) => Ok(true),
        Err((KafkaError::MessageProduction(Code::QueueFull), _)) => Ok(false),
        Err((error, _)) => Err(error),
    }
}

/// Serves delivery reports until nothing is in flight, at most until then; true when nothing is. The library's own `flush` waits in
/// steps of a hundred milliseconds.
pub fn settle(producer: &BaseProducer<Context>, deadline: Instant) -> bool {
    let begun = Instant::now();
    while producer.in_flight_count() > 0 {
        if Instant::now() >= deadline {
            return false;
        }
        attend(producer, begun);
    }
    true
}

/// Serves a delivery report; where there is none, it is waited for, the longer the longer that has been going on. Not by the library's
/// `poll`: that rounds what is left of its time down to milliseconds, and so asks without a pause all through the last one.
pub fn attend(producer: &BaseProducer<Context>, begun: Instant) {
    let before = producer.in_flight_count();
    producer.poll(Duration::ZERO);
    if producer.in_flight_count() >= before {
        std::thread::sleep((begun.elapsed() / 16).clamp(SHORTEST_PAUSE, LONGEST_PAUSE));
    }
}

pub struct KafkaProducer {
    producer: BaseProducer<Context>,
    context: Context,
    name: String,
    taken: u64,
}

impl std::fmt::Debug for KafkaProducer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KafkaProducer").field("name", &self.name).finish_non_exhaustive()
    }
}

impl KafkaProducer {
    pub fn new(producer: BaseProducer<Context>, context: Context, name: &str) -> Self {
        Self { producer, context, name: name.to_owned(), taken: 0 }
    }

    fn tell_failure(&self) -> Result<()> {
        let what = || format!("delivering records of producer {}", self.name);
        self.context.take_failure(what, || self.producer.client().fatal_error(), Remedy::Stop).map_or(Ok(()), Err)
    }
}

impl Producer for KafkaProducer {
    fn send(&mut self, record: Outgoing) -> Result<()> {
        if self.taken.is_multiple_of(LOOK_EVERY as u64) {
            self.producer.poll(Duration::ZERO);
        }
        self.tell_failure()?;
        let what = || format!("appending to topic {}", record.topic);
        let mut taken = hand_over(&self.producer, &record).map_err(|error| from_error(what(), &error, Remedy::Retry))?;
        if !taken {
            // Reports that wait to be looked at count as in flight.
            self.producer.poll(Duration::ZERO);
            taken = hand_over(&self.producer, &record).map_err(|error| from_error(what(), &error, Remedy::Retry))?;
        }
        if !taken {
            let why = self.context.last_error().map_or_else(String::new, |error| format!(" ({error})"));
            return Err(BusError::new(Remedy::Retry, what(), format!("the buffer of producer {} is full{why}", self.name)));
        }
        self.taken += 1;
        Ok(())
    }

    fn counts(&self) -> ProducerCounts {
        self.producer.poll(Duration::ZERO);
        let deliveries = &self.context.deliveries;
        ProducerCounts {
            taken: self.taken,
            acknowledged: deliveries.acknowledged.load(Ordering::Relaxed),
            failed: deliveries.failed.load(Ordering::Relaxed),
        }
    }

    fn flush(&mut self, timeout: Duration) -> Result<bool> {
        let settled = settle(&self.producer, Instant::now() + timeout);
        self.tell_failure()?;
        Ok(settled)
    }
}

impl Drop for KafkaProducer {
    fn drop(&mut self) {
        if !settle(&self.producer, Instant::now() + LAST_FLUSH) {
            let lost = self.producer.in_flight_count();
            tracing::error!(producer = self.name, records = lost, "records were not delivered before the end");
        }
    }
}

#[cfg(test)]
mod tests {
    use rdkafka::config::{ClientConfig, FromClientConfigAndContext};

    use super::super::mock::{Brokers, outgoing};
    use super::*;
    use crate::{Bus, TopicPartition};

    /// Of this thread so far.
    fn cpu() -> Duration {
        let told = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
        Duration::from_nanos(told.split(' ').next().unwrap().parse().unwrap())
    }

    #[test]
    fn who_waits_for_a_broker_leaves_the_processor_to_others() {
        let mut config = ClientConfig::new();
        // Nobody listens there.
        config.set("bootstrap.servers", "127.0.0.1:1");
        let producer = BaseProducer::from_config_and_context(&config, Context::new("".into())).unwrap();
        let record =
            Outgoing { topic: "topic".into(), partition: Some(0), key: None, value: Some("value".into()), headers: Vec::new() };
        assert!(hand_over(&producer, &record).unwrap());
        let (begun, before) = (Instant::now(), cpu());
        assert!(!settle(&producer, begun + Duration::from_millis(500)), "it cannot be delivered");
        let (waited, used) = (begun.elapsed(), cpu().saturating_sub(before));
        assert!(waited >= Duration::from_millis(500), "{waited:?}");
        assert!(used < waited / 4, "{used:?} of {waited:?}");
    }

    #[test]
    fn what_is_in_flight_when_a_producer_goes_is_delivered_first() {
        let brokers = Brokers::start();
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
}
