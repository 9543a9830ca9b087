//! Reading outside any group.

use std::time::Duration;

use super::KafkaBus;
use super::fetcher::Fetcher;
use crate::{Bus, IsolationLevel, Membership, PartitionReader, PollEvent, Result, StartOffset, TopicPartition};

#[derive(Debug)]
pub struct KafkaReader {
    fetcher: Fetcher,
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
        Ok(Self { fetcher })
    }
}

impl PartitionReader for KafkaReader {
    fn poll(&mut self, max: usize, timeout: Duration, into: &mut Vec<PollEvent>) -> Result<()> {
        // Without a subscription there are no rebalances.
        self.fetcher.poll(max, timeout, into).map(|_| ())
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
}
