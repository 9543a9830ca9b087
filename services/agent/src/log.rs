//! The log, which may be away when the agent starts: originals are put back without it.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use eadt_bus::{Bus, BusError};

type BusConnector = dyn Fn() -> Result<Arc<dyn Bus>, BusError> + Send + Sync;

/// Connects when first asked, and again if that failed. Clones share the connection.
#[derive(Clone)]
pub struct LazyBus {
    connect: Arc<BusConnector>,
    bus: Arc<Mutex<Option<Arc<dyn Bus>>>>,
}

impl fmt::Debug for LazyBus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LazyBus")
    }
}

impl LazyBus {
    pub fn new(connect: impl Fn() -> Result<Arc<dyn Bus>, BusError> + Send + Sync + 'static) -> Self {
        Self { connect: Arc::new(connect), bus: Arc::default() }
    }

    /// Blocks while it connects.
    pub fn bus(&self) -> Result<Arc<dyn Bus>, BusError> {
        let mut bus = self.bus.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bus) = &*bus {
            return Ok(bus.clone());
        }
        let connected = (self.connect)()?;
        *bus = Some(connected.clone());
        Ok(connected)
    }
}
