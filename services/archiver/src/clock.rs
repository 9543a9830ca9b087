use std::fmt;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use eadt_schemas::EventTime;

/// What time it is, for the age of files only.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> EventTime + Send + Sync>);

impl Clock {
    pub fn new(now: impl Fn() -> EventTime + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    /// The machine's clock.
    pub fn wall() -> Self {
        Self::new(|| {
            let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            EventTime::from_micros(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
        })
    }

    pub fn now(&self) -> EventTime {
        (self.0)()
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
