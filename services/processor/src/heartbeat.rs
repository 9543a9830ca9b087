//! Heartbeats: a quiet partition's log time goes on.
//!
//! Log time is the partition's, whichever input a stamp comes from, so one heartbeat in the telemetry input is enough, and
//! the compacted inputs stay free of them.

use std::sync::Arc;

use bytes::Bytes;
use eadt_bus::{Bus, Outgoing, Producer, Remedy, Result};
use eadt_schemas::{Envelope, EventTime, EventType, Topic};

/// Says when a partition was quiet for long enough: the clock that the log's stamps come from, the wall clock or simulated time.
pub type HeartbeatClock = eadt_service::Clock;

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
    /// there is another turn. `end` is where the partition ends as far as it was read; `None`: there is more, so it is not quiet.
    ///
    /// Ids are unique: this process gives none twice at one time, and another one after it begins only where it has read what
    /// the former appended. The position comes from the log, the time from the clock, so ids follow the host's scheduling.
    pub fn beat(&mut self, partition: i32, heard: EventTime, end: Option<i64>) -> Result<(EventTime, bool)> {
        let now = self.now();
        let Some(end) = end.filter(|_| now.micros() - heard.micros() >= self.interval) else { return Ok((heard, false)) };
        let envelope = Envelope {
            id: format!("heartbeat/{partition}/{end}/{now}"),
            source: self.source.clone(),
            kind: EventType::Heartbeat,
            time: now,
            subject: String::new(),
        };
        let beat = Outgoing::enveloped(&self.topic, "", &envelope, Some(Bytes::from_static(b"{}")));
        let record = Outgoing { partition: Some(partition), key: None, ..beat };
        match self.producer.send(record) {
            Ok(()) => Ok((now, true)),
            Err(error) if error.remedy == Remedy::Retry => Ok((heard, false)),
            Err(error) => Err(error),
        }
    }
}
