//! The log's own clock: it stamps what is appended. No partition's stamps go back, whatever the clock does.

use std::fmt;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use eadt_schemas::EventTime;

/// Where the stamps of appended records come from.
#[derive(Clone, Default)]
pub enum Stamps {
    /// The larger of the wall clock and the last stamp plus the time elapsed since.
    #[default]
    Wall,
    /// Simulated time. Topics of another simulation in the same log do not hold it.
    Injected(Arc<dyn Fn() -> EventTime + Send + Sync>),
    /// The newest stamp that the log holds, whatever the topic: for who appends to a log of simulated time while the simulation does not run.
    Held,
}

impl fmt::Debug for Stamps {
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
    source: Stamps,
    /// Newest stamp of all, but for injected ones.
    last: EventTime,
    last_at: Instant,
}

impl StampClock {
    /// Goes on after the newest stamp that the log holds.
    pub fn new(source: Stamps, last: EventTime) -> Self {
        Self { source, last, last_at: Instant::now() }
    }

    /// The stamp for an append that happens now, in whole milliseconds.
    pub fn stamp(&mut self) -> EventTime {
        let stamp = match &self.source {
            Stamps::Wall => {
                let now = Instant::now();
                let wall = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as i64);
                let elapsed = now.duration_since(self.last_at).as_micros() as i64;
                let wanted = EventTime::from_micros(wall).max(self.last.plus_micros(elapsed));
                if wanted > self.last {
                    (self.last, self.last_at) = (wanted, now);
                }
                self.last
            }
            Stamps::Injected(clock) => clock(),
            Stamps::Held => self.last,
        };
        EventTime::from_millis(stamp.millis())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wall_clock_behind_the_log_goes_on_with_elapsed_time() {
        let ahead = EventTime::from_millis(4_000_000_000_000);
        let mut clock = StampClock::new(Stamps::Wall, ahead);
        std::thread::sleep(std::time::Duration::from_millis(20));
        let stamp = clock.stamp();
        assert!(stamp >= ahead.plus_micros(20_000) && stamp < ahead.plus_seconds(60.0), "{stamp}");
    }
}
