//! Reading outside any group.

use std::time::Duration;

use super::KafkaBus;
use super::client_watch::ConsumerWatch;
use super::fetcher::Fetcher;
use super::member::CLIENT_UNANSWERED;
use crate::{Bus, BusError, IsolationLevel, Membership, PartitionReader, PollEvent, Remedy, Result, StartOffset, TopicPartition};

#[derive(Debug)]
pub struct KafkaReader {
    fetcher: Fetcher,
    /// `None` if the library fetches nothing: our own path asks the configured brokers again by itself.
    watch: Option<ConsumerWatch>,
}

impl KafkaReader {
    pub fn new(bus: &KafkaBus, from: &[(TopicPartition, StartOffset)], isolation: IsolationLevel) -> Result<Self> {
        // A group id is needed by the client library; nothing is ever committed for it.
        let group = format!("{}-reader", bus.client_id());
        let mut fetcher = bus.fetcher(&group, &Membership::Dynamic, isolation)?;
        let partitions: Vec<_> = from.iter().map(|(at, _)| at.clone()).collect();
        fetcher.set_partitions(&partitions)?;
        for (at, start) in from {
            let offset = match start {
                StartOffset::Earliest => bus.watermarks(at)?.low,
                StartOffset::Latest => bus.watermarks(at)?.high,
                StartOffset::At(offset) => *offset,
            };
            fetcher.start(at, offset)?;
        }
        let watched_topic = from.first().filter(|_| fetcher.is_of_library()).map(|(at, _)| &at.topic);
        let watch = watched_topic.map(|topic| ConsumerWatch::new(bus, topic));
        Ok(Self { fetcher, watch })
    }
}

impl PartitionReader for KafkaReader {
    fn poll(&mut self, max: usize, timeout: Duration, into: &mut Vec<PollEvent>) -> Result<()> {
        let before = into.len();
        // Without a subscription there are no rebalances.
        self.fetcher.poll(max, timeout, into)?;
        let consumer = self.fetcher.consumer();
        if self.watch.as_mut().is_some_and(|watch| watch.is_replacement_due(consumer, into.len() > before)) {
            return Err(BusError::new(Remedy::Restart, "reading from Kafka", CLIENT_UNANSWERED));
        }
        Ok(())
    }

    fn pause(&mut self, at: &[TopicPartition]) -> Result<()> {
        self.fetcher.pause(at)
    }

    fn resume(&mut self, at: &[TopicPartition]) -> Result<()> {
        self.fetcher.resume(at)
    }

    fn accept_batches(&mut self) {
        self.fetcher.accept_batches();
    }

    fn unanswered(&self) -> Option<Duration> {
        self.fetcher.unanswered().or_else(|| self.watch.as_ref()?.unanswered())
    }
}
