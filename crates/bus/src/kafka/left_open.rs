//! State that a killed process leaves at the broker, for tests on a real one.

use rdkafka::producer::{BaseProducer, Producer as _};

use super::KafkaBus;
use super::context::KafkaContext;
use super::errors::from_error;
use super::member::ANSWER;
use super::producer::hand_over;
use crate::{ProducerRecord, Remedy, Result};

/// A transaction that is never ended.
pub struct LeftOpen {
    producer: BaseProducer<KafkaContext>,
}

impl std::fmt::Debug for LeftOpen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LeftOpen").finish_non_exhaustive()
    }
}

const WHAT: &str = "leaving a transaction open";

impl LeftOpen {
    /// Writes a record, and leaves its transaction open.
    pub fn begin(bus: &KafkaBus, instance: &str, output: &ProducerRecord) -> Result<Self> {
        let failed = |error| from_error(WHAT, &error, Remedy::Stop);
        let (producer, _) = bus.transactional_producer(instance)?;
        producer.init_transactions(ANSWER).map_err(failed)?;
        producer.begin_transaction().map_err(failed)?;
        while !hand_over(&producer, output).map_err(failed)? {}
        producer.flush(ANSWER).map_err(failed)?;
        Ok(Self { producer })
    }

    /// Commits it after all.
    pub fn commit(self) -> Result<()> {
        self.producer.commit_transaction(ANSWER).map_err(|error| from_error(WHAT, &error, Remedy::Stop))
    }
}
