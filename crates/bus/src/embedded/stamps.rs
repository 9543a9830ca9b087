//! The log's own clock, which stamps appended records. No partition's stamps go back, even if the clock does.

use std::fmt;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use eadt_schemas::EventTime;

/// Source of the stamps of appended records.
#[derive(Clone, Default)]
pub enum StampSource {
    /// The larger of the wall clock and the last stamp plus the time elapsed since.
    #[default]
    Wall,
    /// Simulated time. Topics of another simulation in the same log do not hold it.
    Injected(Arc<dyn Fn() -> EventTime + Send + Sync>),
    /// The newest stamp in the log, of any topic: for writers to a log of simulated time while the simulation does not run.
    Held,
}

impl fmt::Debug for StampSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Wall => "Wall",
            Self::Injected(_) => "Injected",
            Self::Held => "Held",
        })
    }
}

#[derive(Debug)]
pub struct StampClock {
    source: StampSource,
    /// Newest stamp of all, but for injected ones.
    last: EventTime,
    last_at: Instant,
}

impl StampClock {
    /// Goes on after the newest stamp that the log holds.
    pub fn new(source: StampSource, last: EventTime) -> Self {
        Self { source, last, last_at: Instant::now() }
    }

    /// Returns the stamp for an append that happens now, in whole milliseconds.
    pub fn stamp(&mut self) -> EventTime {
        let stamp = match &self.source {
            StampSource::Wall => {
                let wall = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as i64);
                self.next(EventTime::from_micros(wall), Instant::now())
            }
            StampSource::Injected(clock) => clock(),
            StampSource::Held => self.last,
        };
        EventTime::from_millis(stamp.millis())
    }

    fn next(&mut self, wall: EventTime, now: Instant) -> EventTime {
        let elapsed = now.duration_since(self.last_at).as_micros() as i64;
        let wanted = wall.max(self.last.plus_micros(elapsed));
        // Less than a microsecond is not lost: it is counted from the last stamp on.
        if wanted > self.last {
            (self.last, self.last_at) = (wanted, now);
        }
        self.last
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn stamps_follow_the_wall_clock_and_where_it_is_behind_the_time_elapsed() {
        let at = EventTime::from_micros;
        let mut clock = StampClock::new(StampSource::Wall, at(1000));
        let begun = clock.last_at;
        for (nanos, wall, stamp) in [
            // Behind the log: it goes on by whole microseconds, and no part of one is lost.
            (400, 0, 1000),
            (800, 0, 1000),
            (1200, 0, 1001),
            (7200, 0, 1007),
            // Ahead of it, and set back.
            (8200, 5000, 5000),
            (9200, 5005, 5005),
            (19_200, 10, 5015),
        ] {
            assert_eq!(clock.next(at(wall), begun + Duration::from_nanos(nanos)), at(stamp), "{nanos}");
        }
    }

    #[test]
    fn a_log_of_the_future_stays_ahead_of_the_wall_clock_and_one_of_the_past_follows_it() {
        let ahead = EventTime::from_millis(4_000_000_000_000);
        assert!(StampClock::new(StampSource::Wall, ahead).stamp() >= ahead);
        let wall = StampClock::new(StampSource::Wall, EventTime::MIN).stamp();
        assert!(wall > EventTime::from_millis(1_500_000_000_000) && wall < ahead, "{wall}");
    }

    #[test]
    fn simulated_time_and_the_newest_stamp_are_given_as_they_are_in_whole_milliseconds() {
        let (last, simulated) = (EventTime::from_micros(5_000_999), EventTime::from_micros(1_999));
        assert_eq!(StampClock::new(StampSource::Held, last).stamp(), EventTime::from_millis(5000));
        let injected = StampSource::Injected(Arc::new(move || simulated));
        assert_eq!(StampClock::new(injected, last).stamp(), EventTime::from_millis(1), "the log does not hold it");
    }
}
