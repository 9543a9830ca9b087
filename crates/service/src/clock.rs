//! Wall time, injected.

use std::fmt;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use eadt_schemas::EventTime;

/// Tells what time it is: the machine's clock, simulated time, or a test's. Clones share it.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> EventTime + Send + Sync>);

impl Clock {
    /// Any other clock than the machine's.
    pub fn new(now: impl Fn() -> EventTime + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    /// The machine's clock.
    pub fn wall() -> Self {
        Self::new(|| Self::of(SystemTime::now()))
    }

    /// A clock that stands.
    pub fn fixed(at: EventTime) -> Self {
        Self::new(move || at)
    }

    pub fn now(&self) -> EventTime {
        (self.0)()
    }

    /// A time of the machine's clock as event time; before 1970 it is 1970.
    pub fn of(time: SystemTime) -> EventTime {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        EventTime::from_micros(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::wall()
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Clock")
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn machine_time_is_event_time_and_never_before_1970() {
        assert_eq!(Clock::of(UNIX_EPOCH + Duration::from_micros(7)).micros(), 7);
        assert_eq!(Clock::of(UNIX_EPOCH - Duration::from_secs(1)).micros(), 0);
        let (before, now) = (Clock::of(SystemTime::now()), Clock::wall().now());
        assert!(now >= before && before.micros() > 1_700_000_000_000_000);
    }
}
