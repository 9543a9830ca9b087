//! Wall time, injected.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use eadt_schemas::EventTime;

/// Tells event time.
pub trait Clock: Send + Sync + fmt::Debug {
    fn now(&self) -> EventTime;
}

/// The machine's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> EventTime {
        of(SystemTime::now())
    }
}

/// A time of the machine's clock as event time; before 1970 it is 1970.
pub fn of(time: SystemTime) -> EventTime {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    EventTime::from_micros(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}
