//! Sink of the sources' events: they are checked, encoded as CloudEvents, and put into the buffer.

use std::sync::Arc;

use eadt_bus::ProducerRecord;
use eadt_schemas::decode::DecodableEvent;
use eadt_schemas::latest::{DeviceHolders, GpuTelemetry, JobLifecycle, TrainingProgress};
use eadt_schemas::{DecodeError, Envelope, EventTime, EventType, Topic};
use serde::Serialize;

use crate::buffer::{EventBuffer, OfferOutcome};
use crate::metrics::{CollectorMetrics, SourceLabel};

/// The sources' end of the pipeline. Clones share it; handing over never blocks.
#[derive(Debug, Clone)]
pub struct EventSink {
    buffer: Arc<EventBuffer>,
    metrics: CollectorMetrics,
    telemetry: Arc<str>,
    progress: Arc<str>,
    holders: Arc<str>,
    source: Arc<str>,
}

impl EventSink {
    /// Builds the sink. `name` is the collector's; `prefix` that of the topics.
    pub(crate) fn new(buffer: Arc<EventBuffer>, metrics: CollectorMetrics, name: &str, prefix: &str) -> Self {
        Self {
            buffer,
            metrics,
            telemetry: format!("{prefix}{}", Topic::GpuTelemetry).into(),
            progress: format!("{prefix}{}", Topic::TrainingProgress).into(),
            holders: format!("{prefix}{}", Topic::DeviceHolders).into(),
            source: format!("/collector/{}", uri_path(name)).into(),
        }
    }

    /// Offers a sample. An impossible one is refused and counted, since no reader would accept it.
    pub fn telemetry(&self, kind: &'static str, event: &GpuTelemetry) -> Result<(), DecodeError> {
        self.count(kind);
        if let Err(refusal) = event.check() {
            self.metrics.drop_events("refused", 1);
            return Err(refusal);
        }
        let key = event.workload.as_deref().unwrap_or(&event.device);
        let id = match &event.workload {
            Some(workload) => format!("{workload}/{}", event.device),
            None => event.device.clone(),
        };
        self.offer(&self.telemetry, EventType::GpuTelemetry, key, &id, event.time, event.last, event, &event.collector);
        Ok(())
    }

    /// Hands progress over. Impossible progress is refused and counted.
    pub fn progress(&self, kind: &'static str, event: &TrainingProgress) -> Result<(), DecodeError> {
        self.count(kind);
        if let Err(refusal) = event.check() {
            self.metrics.drop_events("refused", 1);
            return Err(refusal);
        }
        let mark = event.last || event.phase != JobLifecycle::Progress || event.span.is_some();
        let id = format!("{}/{}", event.workload, event.rank);
        let id = if event.phase == JobLifecycle::Progress { id } else { format!("{id}/{:?}", event.phase).to_lowercase() };
        let key = &event.workload;
        self.offer(&self.progress, EventType::TrainingProgress, key, &id, event.time, mark, event, &event.collector);
        Ok(())
    }

    /// Offers the holders of a node's GPUs. An event that no reader would accept is refused and counted.
    pub fn holders(&self, kind: &'static str, event: &DeviceHolders) -> Result<(), DecodeError> {
        self.count(kind);
        if let Err(refusal) = event.check() {
            self.metrics.drop_events("refused", 1);
            return Err(refusal);
        }
        // It may be dropped under pressure, since it is published again within a minute.
        self.offer(&self.holders, EventType::DeviceHolders, &event.node, &event.node, event.time, false, event, kind);
        Ok(())
    }

    fn count(&self, source: &'static str) {
        self.metrics.sampled.get_or_create(&SourceLabel { source }).inc();
    }

    #[allow(clippy::too_many_arguments)] // One call per event type; a struct would be written and read once.
    fn offer(
        &self,
        topic: &Arc<str>,
        kind: EventType,
        key: &str,
        id: &str,
        time: EventTime,
        mark: bool,
        event: &impl Serialize,
        collector: &str,
    ) {
        // A source's last event may be its last sample once more: another event, so another id.
        let suffix = if mark { "/mark" } else { "" };
        let envelope = Envelope {
            id: format!("{collector}/{id}/{}{suffix}", time.micros()),
            source: self.source.to_string(),
            kind,
            time,
            subject: key.to_owned(),
        };
        match self.buffer.offer(ProducerRecord::event(topic, key, &envelope, event), mark) {
            OfferOutcome::Evicting(others) => self.metrics.drop_events("buffer_full", others),
            OfferOutcome::TooLarge => self.metrics.drop_events("buffer_full", 1),
            OfferOutcome::TooLate => self.metrics.drop_events("shutdown", 1),
        }
    }
}

/// Returns a name percent-encoded, as it must be in `ce_source`, a URI reference.
fn uri_path(name: &str) -> String {
    let mut path = String::with_capacity(name.len());
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            path.push(char::from(byte));
        } else {
            const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
            let digit = |value: u8| char::from(DIGITS[usize::from(value)]);
            path.extend(['%', digit(byte >> 4), digit(byte & 15)]);
        }
    }
    path
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Duration;

    use eadt_schemas::envelope::header;

    use super::*;
    use crate::buffer::{BufferLimits, TakeOutcome};

    /// Returns an outlet and the buffer behind it.
    pub(crate) fn outlet() -> (EventSink, Arc<EventBuffer>, CollectorMetrics) {
        let buffer = Arc::new(EventBuffer::new(BufferLimits { events: 100_000, bytes: 1 << 26 }));
        let metrics = CollectorMetrics::new(&eadt_service::MetricsRegistry::default());
        (EventSink::new(buffer.clone(), metrics.clone(), "host 1", "eadt."), buffer, metrics)
    }

    /// Returns everything in the buffer.
    pub(crate) fn drain(buffer: &EventBuffer) -> Vec<ProducerRecord> {
        std::iter::from_fn(|| match buffer.take(Duration::ZERO, Duration::ZERO) {
            TakeOutcome::Event(event) => Some(event),
            TakeOutcome::Empty | TakeOutcome::Ended => None,
        })
        .collect()
    }

    pub(crate) fn telemetry(buffer: &EventBuffer) -> Vec<GpuTelemetry> {
        drain(buffer).iter().map(|event| eadt_schemas::decode(event.value.as_ref().unwrap()).unwrap()).collect()
    }

    pub(crate) fn progress(buffer: &EventBuffer) -> Vec<TrainingProgress> {
        drain(buffer).iter().map(|event| eadt_schemas::decode(event.value.as_ref().unwrap()).unwrap()).collect()
    }

    fn header_of(event: &ProducerRecord, name: &str) -> String {
        let (_, value) = event.headers.iter().find(|(n, _)| &**n == name).unwrap();
        String::from_utf8(value.to_vec()).unwrap()
    }

    #[test]
    fn the_key_is_the_workload_or_the_device_and_ids_differ() {
        let (outlet, buffer, _) = outlet();
        let mut event = GpuTelemetry {
            time: EventTime::from_micros(1_000_000),
            device: "GPU-a".into(),
            collector: "c".into(),
            ..GpuTelemetry::default()
        };
        outlet.telemetry("nvml", &event).unwrap();
        event.workload = Some("n/w".into());
        outlet.telemetry("nvml", &event).unwrap();
        event.last = true;
        outlet.telemetry("nvml", &event).unwrap();
        let events = drain(&buffer);
        let keys: Vec<_> = events.iter().map(|e| e.key.clone().unwrap()).collect();
        assert_eq!(keys, ["GPU-a", "n/w", "n/w"]);
        assert!(events.iter().all(|e| &*e.topic == "eadt.gpu.telemetry.v1"));
        assert_eq!(header_of(&events[1], header::SOURCE), "/collector/host%201");
        assert_eq!(header_of(&events[1], header::TYPE), "io.eadt.gpu.telemetry.v1");
        let ids: std::collections::BTreeSet<_> = events.iter().map(|e| header_of(e, header::ID)).collect();
        assert_eq!(ids.len(), 3);
    }

    #[test]
    fn an_impossible_sample_is_refused_and_counted() {
        let (outlet, buffer, metrics) = outlet();
        let event = GpuTelemetry { power_watts: Some(-1.0), ..GpuTelemetry::default() };
        assert!(outlet.telemetry("nvml", &event).is_err());
        assert!(drain(&buffer).is_empty());
        let refused = metrics.dropped.get_or_create(&crate::metrics::ReasonLabel { reason: "refused" }).get();
        assert_eq!(refused, 1);
    }
}
