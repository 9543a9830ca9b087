//! Other members of a group: the reason why a member has no partition, and members that take partitions of others' topics.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::Bus;

/// Interval between two requests about the group.
const EVERY: Duration = Duration::from_secs(5);

/// Distinguishes a standby member, whose group has more members than partitions, from one that should have some. Only
/// the former is ready. Warns of members of the group that subscribe to other topics.
#[derive(Debug)]
pub struct SpareMemberCheck {
    group: String,
    /// The topic with the most partitions of those that the group reads.
    topic: Arc<str>,
    /// Topics that this member subscribes to.
    topics: Vec<Arc<str>>,
    /// Number of partitions at the last call.
    partitions: usize,
    checked_at: Option<Instant>,
    surplus: bool,
}

impl SpareMemberCheck {
    pub fn new(group: impl Into<String>, topic: impl Into<Arc<str>>, topics: Vec<Arc<str>>) -> Self {
        Self { group: group.into(), topic: topic.into(), topics, partitions: 0, checked_at: None, surplus: false }
    }

    /// Returns whether a member that has so many partitions is ready as far as these go. Asks the log every five
    /// seconds while it has none; a log that does not answer makes it unready.
    pub fn is_ready(&mut self, partitions: usize, bus: &dyn Bus) -> bool {
        if std::mem::replace(&mut self.partitions, partitions) != partitions && partitions > 0 {
            self.warn_of_other_subscriptions(bus);
        }
        if partitions > 0 {
            self.checked_at = None;
            return true;
        }
        if self.checked_at.is_none_or(|last| last.elapsed() >= EVERY) {
            self.surplus = bus.has_spare_members(&self.group, &self.topic).unwrap_or_else(|error| {
                tracing::debug!(%error, "checking whether this member is on standby");
                false
            });
            self.checked_at = Some(Instant::now());
        }
        self.surplus
    }

    /// Partitions of a topic are shared among the members that subscribe to it, whatever else they do. No error: so does a member of
    /// another version that reads a topic more or less, during an upgrade.
    fn warn_of_other_subscriptions(&self, bus: &dyn Bus) {
        let members = bus.group_members(&self.group).unwrap_or_else(|error| {
            tracing::debug!(%error, "checking what other members of the group subscribe to");
            Vec::new()
        });
        let is_own = |topics: &[String]| {
            topics.len() == self.topics.len() && topics.iter().all(|topic| self.topics.iter().any(|own| **own == **topic))
        };
        for other in members.iter().filter(|other| !other.topics.is_empty() && !is_own(&other.topics)) {
            tracing::warn!(
                group = self.group,
                member = other.name,
                topics = other.topics.join(","),
                "another member of the consumer group subscribes to other topics, and gets partitions that are then missing here; \
                 if it is not an instance of another version, give each service a group of its own"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::embedded::{EmbeddedLog, EmbeddedOptions};
    use crate::{MemberOptions, Membership, TopicSpec};

    fn log() -> (tempfile::TempDir, EmbeddedLog) {
        let dir = tempfile::tempdir().unwrap();
        let log = EmbeddedLog::open(dir.path(), EmbeddedOptions::default()).unwrap();
        (dir, log)
    }

    #[test]
    fn a_member_without_partitions_is_ready_only_if_the_group_has_members_to_spare() {
        let (_dir, log) = log();
        let mut standby = SpareMemberCheck::new("group", "topic", Vec::new());
        assert!(standby.is_ready(1, &log));
        // The embedded log gives one member everything: a standby is not needed.
        assert!(!standby.is_ready(0, &log));
        // Not asked again so soon.
        standby.surplus = true;
        assert!(standby.is_ready(0, &log));
        // Asked anew after it had some.
        assert!(standby.is_ready(1, &log) && !standby.is_ready(0, &log));
    }

    #[test]
    fn a_member_that_subscribes_to_other_topics_is_named_at_each_assignment() {
        let (_dir, log) = log();
        for name in ["a", "b"] {
            log.create_topic(&TopicSpec { name: name.into(), partitions: 1, replication: 1, settings: BTreeMap::new() }).unwrap();
        }
        let topics = vec!["a".into(), "b".into()];
        let membership = Membership::Static("archiver-0".into());
        let _member = log.member(MemberOptions { group: "team".into(), membership, topics: topics.clone() }).unwrap();
        let warnings = |check: &mut SpareMemberCheck, partitions| {
            let (lines, _) = eadt_testing::lines(|| check.is_ready(partitions, &log));
            lines.into_iter().filter(|line| line.contains("subscribes to other topics")).collect::<Vec<_>>()
        };
        let mut same = SpareMemberCheck::new("team", "a", topics);
        assert_eq!(warnings(&mut same, 2), [""; 0]);
        let mut other = SpareMemberCheck::new("team", "a", vec!["a".into()]);
        let found = warnings(&mut other, 1);
        assert!(found.len() == 1 && found[0].contains("archiver-0") && found[0].contains("a,b"), "{found:?}");
        assert_eq!([1, 0, 1].map(|partitions| warnings(&mut other, partitions).len()), [0, 0, 1], "at each assignment");
    }
}
