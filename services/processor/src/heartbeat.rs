//! Heartbeats: a quiet partition's log time goes on.
//!
//! Log time is the partition's, whichever input a stamp comes from, so one heartbeat in the telemetry input is enough, and
//! the compacted inputs stay free of them.

use std::fmt;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use eadt_bus::{Bus, Outgoing, Producer, Remedy, Result};
use eadt_schemas::{Envelope, EventTime, EventType, Topic};

use crate::outputs::headers;

/// Says when a partition was quiet for long enough: the wall clock, or simulated time.
#[derive(Clone)]
pub struct HeartbeatClock(Arc<dyn Fn() -> EventTime + Send + Sync>);

impl HeartbeatClock {
    /// The clock that the log's stamps come from, where it is not the wall clock.
    pub fn new(now: impl Fn() -> EventTime + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    pub fn now(&self) -> EventTime {
        (self.0)()
    }
}

impl Default for HeartbeatClock {
    fn default() -> Self {
        Self::new(|| {
            let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            EventTime::from_micros(since.as_micros() as i64)
        })
    }
}

impl fmt::Debug for HeartbeatClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HeartbeatClock")
    }
}

/// Appends heartbeats, outside any transaction.
#[derive(Debug)]
pub struct Heartbeats {
    producer: Box<dyn Producer>,
    clock: HeartbeatClock,
    topic: Arc<str>,
    source: String,
    interval: i64,
}

impl Heartbeats {
    pub fn new(bus: &dyn Bus, settings: &crate::Settings, clock: HeartbeatClock) -> Result<Self> {
        Ok(Self {
            producer: bus.producer(&format!("{}-heartbeat", settings.instance))?,
            clock,
            topic: format!("{}{}", settings.prefix, Topic::GpuTelemetry).into(),
            source: format!("/processor/{}", settings.instance),
            interval: (settings.heartbeat_seconds * 1e6) as i64,
        })
    }

    pub fn now(&self) -> EventTime {
        self.clock.now()
    }

    /// Appends a heartbeat where `heard` is long ago; returns when the partition was heard last. A full buffer is no error:
    /// there is another turn.
    pub fn beat(&mut self, partition: i32, heard: EventTime) -> Result<(EventTime, bool)> {
        let now = self.now();
        if now.micros() - heard.micros() < self.interval {
            return Ok((heard, false));
        }
        let envelope = Envelope {
            id: format!("heartbeat/{partition}/{now}"),
            source: self.source.clone(),
            kind: EventType::Heartbeat,
            time: now,
            subject: String::new(),
        };
        let record = Outgoing {
            topic: self.topic.clone(),
            partition: Some(partition),
            key: None,
            value: Some(Bytes::from_static(b"{}")),
            headers: headers(&envelope),
        };
        match self.producer.send(record) {
            Ok(()) => Ok((now, true)),
            Err(error) if error.remedy == Remedy::Retry => Ok((heard, false)),
            Err(error) => Err(error),
        }
    }
}
