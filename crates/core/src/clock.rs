//! The log clock: idleness is measured by the log's own stamps, never by a processor's clock.

use eadt_schemas::EventTime;
use serde::{Deserialize, Serialize};

use crate::settings::SECOND;

/// The most that one step between two stamps counts: an outage of the broker must not make all sources idle.
pub const MAX_STEP: i64 = 20 * SECOND;

/// Log time of one partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LogClock {
    stamp: Option<EventTime>,
    elapsed: i64,
}

impl LogClock {
    /// Takes a record's stamp; a stamp that is not newer than the newest moves nothing.
    pub fn observe(&mut self, stamp: EventTime) {
        match self.stamp {
            Some(last) if stamp <= last => {}
            Some(last) => {
                self.elapsed += (stamp.micros() - last.micros()).min(MAX_STEP);
                self.stamp = Some(stamp);
            }
            None => self.stamp = Some(stamp),
        }
    }

    /// Microseconds of log time since the partition's first stamp.
    pub fn elapsed(self) -> i64 {
        self.elapsed
    }

    /// Returns the newest stamp.
    pub fn stamp(self) -> Option<EventTime> {
        self.stamp
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_counts_at_most_twenty_seconds_and_time_never_falls() {
        let mut clock = LogClock::default();
        for (stamp, elapsed) in [(100, 0), (105, 5), (103, 5), (104, 5), (3_705, 25), (3_706, 26)] {
            clock.observe(EventTime::from_micros(stamp * SECOND));
            assert_eq!(clock.elapsed(), elapsed * SECOND, "after stamp {stamp}");
        }
    }

    #[test]
    fn the_newest_stamp_is_kept() {
        let mut clock = LogClock::default();
        assert_eq!(clock.stamp(), None);
        for (stamp, newest) in [(100, 100), (90, 100), (500, 500)] {
            clock.observe(EventTime::from_micros(stamp * SECOND));
            assert_eq!(clock.stamp(), Some(EventTime::from_micros(newest * SECOND)));
        }
    }
}
