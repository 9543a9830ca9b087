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

/// Serves delivery reports until nothing is in flight, at most until then; true when nothing is. In steps of a millisecond,
/// since the library's own `flush` waits in steps of a hundred.
pub fn settle(producer: &BaseProducer<Context>, deadline: Instant) -> bool {
    while producer.in_flight_count() > 0 {
        if Instant::now() >= deadline {
            return false;
        }
        producer.poll(Duration::from_millis(1));
    }
    true
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
