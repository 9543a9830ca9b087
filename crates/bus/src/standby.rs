//! Reason why a member has no partition: others have them all, or something is wrong.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::Bus;

/// Interval between two requests about the group.
const EVERY: Duration = Duration::from_secs(5);

/// Distinguishes a standby member, whose group has more members than partitions, from one that should have some. Only
/// the former is ready.
#[derive(Debug)]
pub struct SpareMemberCheck {
    group: String,
    /// The topic with the most partitions of those that the group reads.
    topic: Arc<str>,
    checked_at: Option<Instant>,
    surplus: bool,
}

impl SpareMemberCheck {
    pub fn new(group: impl Into<String>, topic: impl Into<Arc<str>>) -> Self {
        Self { group: group.into(), topic: topic.into(), checked_at: None, surplus: false }
    }

    /// Returns whether a member that has so many partitions is ready as far as these go. Asks the log every five
    /// seconds while it has none; a log that does not answer makes it unready.
    pub fn is_ready(&mut self, partitions: usize, bus: &dyn Bus) -> bool {
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::embedded::{EmbeddedLog, EmbeddedOptions};

    #[test]
    fn a_member_without_partitions_is_ready_only_if_the_group_has_members_to_spare() {
        let dir = tempfile::tempdir().unwrap();
        let log = EmbeddedLog::open(dir.path(), EmbeddedOptions::default()).unwrap();
        let mut standby = SpareMemberCheck::new("group", "topic");
        assert!(standby.is_ready(1, &log));
        // The embedded log gives one member everything: there is nobody to stand by for.
        assert!(!standby.is_ready(0, &log));
        // Not asked again so soon.
        standby.surplus = true;
        assert!(standby.is_ready(0, &log));
        // Asked anew after it had some.
        assert!(standby.is_ready(1, &log) && !standby.is_ready(0, &log));
    }
}
