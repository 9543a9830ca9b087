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
        // A clock before 1970 reads as 1970: every event is then refused as missing its time, which says what is wrong.
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        EventTime::from_micros(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
    }
}
