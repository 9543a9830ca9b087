//! Wall time and waiting, injected.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use eadt_schemas::EventTime;

/// Gives the time: the machine's clock, simulated time, or a test's. Clones share it.
#[derive(Clone)]
pub struct ServiceClock(Arc<dyn Fn() -> EventTime + Send + Sync>);

impl ServiceClock {
    /// Builds a clock other than the machine's.
    pub fn new(now: impl Fn() -> EventTime + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    /// Returns the machine's clock.
    pub fn machine() -> Self {
        Self::new(|| Self::of(SystemTime::now()))
    }

    /// Returns a clock that always shows `at`.
    pub fn fixed(at: EventTime) -> Self {
        Self::new(move || at)
    }

    pub fn now(&self) -> EventTime {
        (self.0)()
    }

    /// Returns a time of the machine's clock as event time; before 1970 it is 1970.
    pub fn of(time: SystemTime) -> EventTime {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        EventTime::from_micros(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
    }
}

impl Default for ServiceClock {
    fn default() -> Self {
        Self::machine()
    }
}

impl fmt::Debug for ServiceClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ServiceClock")
    }
}

/// Measures durations, and waits. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct MonotonicClock {
    /// `None` for the machine's clock.
    simulated: Option<Arc<Mutex<Instant>>>,
}

impl MonotonicClock {
    /// Returns the machine's monotonic clock.
    pub fn machine() -> Self {
        Self::default()
    }

    /// Returns a clock whose time passes only by waits, which take none of the machine's time.
    pub fn simulated() -> Self {
        Self { simulated: Some(Arc::new(Mutex::new(Instant::now()))) }
    }

    pub fn now(&self) -> Instant {
        self.simulated.as_ref().map_or_else(Instant::now, |now| *now.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Blocks, unless it is simulated.
    pub fn wait(&self, duration: Duration) {
        match &self.simulated {
            None => std::thread::sleep(duration),
            Some(now) => *now.lock().unwrap_or_else(PoisonError::into_inner) += duration,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn simulated_time_passes_because_somebody_waits_and_only_then() {
        let (timer, began) = (MonotonicClock::simulated(), Instant::now());
        let before = timer.now();
        timer.clone().wait(Duration::from_hours(1));
        assert_eq!(timer.now() - before, Duration::from_hours(1));
        assert!(began.elapsed() < Duration::from_mins(1));
        let (timer, before) = (MonotonicClock::machine(), Instant::now());
        timer.wait(Duration::from_millis(2));
        assert!(timer.now() - before >= Duration::from_millis(2));
    }

    #[test]
    fn machine_time_is_event_time_and_never_before_1970() {
        assert_eq!(ServiceClock::of(UNIX_EPOCH + Duration::from_micros(7)).micros(), 7);
        assert_eq!(ServiceClock::of(UNIX_EPOCH - Duration::from_secs(1)).micros(), 0);
        let (before, now) = (ServiceClock::of(SystemTime::now()), ServiceClock::machine().now());
        assert!(now >= before && before.micros() > 1_700_000_000_000_000);
    }
}
