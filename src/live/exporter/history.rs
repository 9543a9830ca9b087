//! Partitions that are read from their oldest record: their records at the start are history, and not news.

use std::collections::{BTreeMap, BTreeSet};

use eadt_schemas::Topic;

/// Reading of the partitions of one number. Those of all topics have the same workloads.
#[derive(Debug, Default)]
struct PartitionHistory {
    /// Topics that were not at their end yet.
    unread: BTreeSet<Topic>,
    /// Topics of which a record was read.
    begun: BTreeSet<Topic>,
    /// The oldest record of a topic is not its first: retention has deleted earlier ones.
    is_cut: bool,
}

/// Reading of all partitions, by number. A partition that was not announced has no history.
#[derive(Debug, Default)]
pub struct PartitionHistories(BTreeMap<i32, PartitionHistory>);

impl PartitionHistories {
    /// Announces a partition that is read from its oldest record.
    pub fn announce(&mut self, topic: Topic, partition: i32) {
        self.0.entry(partition).or_default().unread.insert(topic);
    }

    /// Notes the offset of a record. The first one of a topic shows whether older ones were deleted.
    pub fn on_record(&mut self, topic: Topic, partition: i32, offset: i64) {
        let Some(history) = self.0.get_mut(&partition).filter(|history| history.unread.contains(&topic)) else { return };
        let is_first = history.begun.insert(topic);
        history.is_cut |= is_first && offset > 0;
    }

    /// Notes the end of a topic's partition. Returns whether it was the last one that the partitions of this number lacked.
    pub fn on_end(&mut self, topic: Topic, partition: i32) -> bool {
        let Some(history) = self.0.get_mut(&partition) else { return false };
        history.unread.remove(&topic) && history.unread.is_empty()
    }

    /// Returns whether every topic was at its end once in all of these partitions.
    pub fn are_read(&self, partitions: &BTreeSet<i32>) -> bool {
        partitions.iter().all(|partition| self.is_read(*partition))
    }

    pub fn is_read(&self, partition: i32) -> bool {
        self.0.get(&partition).is_none_or(|history| history.unread.is_empty())
    }

    /// Returns whether retention has deleted a part of one of these partitions.
    pub fn is_cut(&self, partitions: &BTreeSet<i32>) -> bool {
        partitions.iter().any(|partition| self.0.get(partition).is_some_and(|history| history.is_cut))
    }

    /// Returns the number of partitions, of all topics together, that were not at their end yet.
    pub fn unread(&self) -> usize {
        self.0.values().map(|history| history.unread.len()).sum()
    }
}
