//! Heartbeats: a quiet partition's log time goes on.
//!
//! Log time is the partition's, whichever input a stamp comes from, so one heartbeat in the telemetry input is enough, and
//! the compacted inputs stay free of them.

use std::sync::Arc;

use bytes::Bytes;
use eadt_bus::{Bus, Producer, ProducerRecord, Remedy, Result};
use eadt_schemas::{Envelope, EventTime, EventType, Topic};

/// Clock that shows when a partition was quiet for long enough: the one that the log's stamps come from, the wall clock or
/// simulated time.
pub type HeartbeatClock = eadt_service::ServiceClock;

/// Appends heartbeats, outside any transaction.
#[derive(Debug)]
pub struct HeartbeatWriter {
    producer: Box<dyn Producer>,
    clock: HeartbeatClock,
    topic: Arc<str>,
    source: String,
    interval: i64,
}

impl HeartbeatWriter {
    pub fn new(bus: &dyn Bus, settings: &crate::ProcessorSettings, clock: HeartbeatClock) -> Result<Self> {
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

    /// Polls the deliveries of heartbeats, in every turn: a client library that no longer delivers is noticed and made anew even if
    /// nothing else is sent meanwhile.
    pub fn poll_deliveries(&mut self) -> Result<()> {
        match self.producer.poll_deliveries() {
            Err(error) if error.remedy == Remedy::Retry => Ok(()),
            looked => looked,
        }
    }

    /// Appends a heartbeat if the partition's last event is at least the interval ago. Returns the time of its last event, the
    /// heartbeat included, and whether one was appended. A full buffer is no error: there is another turn. `end` is where the
    /// partition ends as far as it was read; `None` if there is more, so that it is not quiet.
    ///
    /// Ids are unique: this process gives none twice at one time, and another one after it begins only if it has read what the
    /// former appended. The position comes from the log, the time from the clock, so ids follow the host's scheduling.
    pub fn write_if_quiet(&mut self, partition: i32, last_event_time: EventTime, end: Option<i64>) -> Result<(EventTime, bool)> {
        let now = self.now();
        let Some(end) = end.filter(|_| now.micros() - last_event_time.micros() >= self.interval) else {
            return Ok((last_event_time, false));
        };
        let envelope = Envelope {
            id: format!("heartbeat/{partition}/{end}/{now}"),
            source: self.source.clone(),
            kind: EventType::Heartbeat,
            time: now,
            subject: String::new(),
        };
        let beat = ProducerRecord::enveloped(&self.topic, "", &envelope, Some(Bytes::from_static(b"{}")));
        let record = ProducerRecord { partition: Some(partition), key: None, ..beat };
        match self.producer.send(record) {
            Ok(()) => Ok((now, true)),
            Err(error) if error.remedy == Remedy::Retry => Ok((last_event_time, false)),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::scripted::{ScriptedBus, seconds};
    use eadt_schemas::envelope::header;

    const LAST_EVENT: EventTime = EventTime::from_micros(1_000_000_000);

    fn heartbeats(bus: &ScriptedBus, micros_later: i64) -> HeartbeatWriter {
        bus.now.store(LAST_EVENT.micros() + micros_later, Ordering::SeqCst);
        let settings = crate::ProcessorSettings {
            heartbeat_seconds: 2.5,
            instance: "processor-7".into(),
            ..crate::ProcessorSettings::default()
        };
        HeartbeatWriter::new(bus, &settings, bus.service(&settings).clock).unwrap()
    }

    #[test]
    fn a_partition_is_quiet_after_the_interval_and_only_where_all_of_it_was_read() {
        for (micros_later, end, beats) in [(2_499_999, Some(7), false), (2_500_000, Some(7), true), (9_000_000, None, false)] {
            let bus = ScriptedBus::default();
            let mut heartbeats = heartbeats(&bus, micros_later);
            let last_event = if beats { heartbeats.now() } else { LAST_EVENT };
            assert_eq!(heartbeats.write_if_quiet(3, LAST_EVENT, end).unwrap(), (last_event, beats), "{micros_later} {end:?}");
            assert_eq!(bus.script().sent.len(), usize::from(beats), "{micros_later} {end:?}");
        }
    }

    #[test]
    fn a_heartbeat_goes_to_the_partitions_telemetry_under_no_key_and_names_its_partition() {
        let bus = ScriptedBus::default();
        heartbeats(&bus, 2_500_000).write_if_quiet(3, LAST_EVENT, Some(7)).unwrap();
        let script = bus.script();
        let sent = &script.sent[0];
        assert_eq!((&*sent.topic, sent.partition, &sent.key), ("eadt.gpu.telemetry.v1", Some(3), &None));
        assert_eq!(sent.value.as_deref(), Some(&b"{}"[..]));
        let named = |name: &str| sent.headers.iter().find(|(known, _)| &**known == name).map(|(_, value)| value.clone());
        let now = seconds(1_000).plus_seconds(2.5);
        for (name, value) in [
            (header::TYPE, EventType::Heartbeat.name().to_owned()),
            (header::TIME, now.to_string()),
            (header::SOURCE, "/processor/processor-7".to_owned()),
            (header::ID, format!("heartbeat/3/7/{now}")),
        ] {
            assert_eq!(named(name), Some(Bytes::from(value)), "{name}");
        }
    }

    #[test]
    fn what_is_on_its_way_is_looked_after_and_only_what_another_turn_does_not_mend_is_an_error() {
        let bus = ScriptedBus::default();
        let mut heartbeats = heartbeats(&bus, 2_500_000);
        for (fault, error) in [(None, false), (Some(Remedy::Retry), false), (Some(Remedy::Stop), true)] {
            bus.script().delivery_faults = fault.into_iter().collect();
            assert_eq!(heartbeats.poll_deliveries().is_err(), error, "{fault:?}");
        }
        assert_eq!(bus.script().delivery_polls, 3);
    }

    #[test]
    fn a_full_buffer_leaves_it_for_another_turn_and_anything_else_is_an_error() {
        for (remedy, error) in [(Remedy::Retry, false), (Remedy::Stop, true), (Remedy::Restart, true)] {
            let bus = ScriptedBus::default();
            bus.script().sends = [remedy].into();
            let mut heartbeats = heartbeats(&bus, 5_000_000);
            let beat = heartbeats.write_if_quiet(3, LAST_EVENT, Some(7));
            assert_eq!(beat.as_ref().err().map(|error| error.remedy), error.then_some(remedy));
            assert!(error || beat.unwrap() == (LAST_EVENT, false), "{remedy:?}");
        }
    }
}
