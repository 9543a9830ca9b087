use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use eadt_schemas::EventTime;

/// Simulated time, to be shared: the stamps of the embedded log and the heartbeats of the processor come from it.
///
/// Until the driver has restored its state, it is at the time that it was made with.
#[derive(Clone)]
pub struct SimClock(Arc<AtomicI64>);

impl SimClock {
    pub fn new(start: EventTime) -> Self {
        Self(Arc::new(AtomicI64::new(start.micros())))
    }

    pub fn now(&self) -> EventTime {
        EventTime::from_micros(self.0.load(Ordering::Acquire))
    }

    /// Returns this clock as a function.
    pub fn source(&self) -> Arc<dyn Fn() -> EventTime + Send + Sync> {
        let clock = self.clone();
        Arc::new(move || clock.now())
    }

    pub(crate) fn set(&self, now: EventTime) {
        self.0.store(now.micros(), Ordering::Release);
    }
}

impl fmt::Debug for SimClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SimClock").field(&self.now()).finish()
    }
}
