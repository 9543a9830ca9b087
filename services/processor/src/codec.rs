//! Decoding of records for the fold.

use std::borrow::Cow;

use eadt_bus::RecordView;
use eadt_core::InputEvent;
use eadt_schemas::decode::{DecodableEvent, DecodeError, MAX_VALUE_BYTES, decode, decode_into};
use eadt_schemas::event_log::value_of_base64;
use eadt_schemas::v1::{Actuation, DeadLetterReason, GpuTelemetry, Model, TrainingProgress, Workload};
use eadt_schemas::{EventTime, EventType, Topic};
use serde::Deserialize;
use serde_json::value::RawValue;

/// An event in the structured mode of `CloudEvents`: its attributes are in the value, around the data, and not in headers.
#[derive(Debug, Deserialize)]
pub struct StructuredEvent<'a> {
    #[serde(borrow)]
    #[expect(dead_code, reason = "a proof that the event is one of these")]
    specversion: Cow<'a, str>,
    #[serde(rename = "type", borrow)]
    pub kind: Cow<'a, str>,
    #[serde(borrow, default)]
    pub source: Cow<'a, str>,
    #[serde(borrow, default)]
    pub id: Cow<'a, str>,
    #[serde(default)]
    pub time: Option<EventTime>,
    #[serde(borrow, default)]
    pub subject: Cow<'a, str>,
    #[serde(borrow, default)]
    data: Option<&'a RawValue>,
    /// The data instead, if a client library takes it for bytes.
    #[serde(borrow, default)]
    data_base64: Option<Cow<'a, str>>,
}

impl<'a> StructuredEvent<'a> {
    /// Reads such an event (`application/cloudevents+json`); `None` for the values of binary mode, which have no `specversion`.
    pub fn parse(value: &'a [u8]) -> Option<Self> {
        let is_likely = value.first().is_some_and(|byte| *byte == b'{' || byte.is_ascii_whitespace())
            && value.len() <= MAX_VALUE_BYTES
            && std::str::from_utf8(value).is_ok_and(|text| text.contains("\"specversion\""));
        is_likely.then(|| serde_json::from_slice(value).ok()).flatten()
    }

    /// Returns the value that binary mode would have; `None` for a tombstone.
    pub fn data(&self) -> Option<Cow<'a, str>> {
        let of_base64 = || self.data_base64.as_deref().map(|data| Cow::Owned(value_of_base64(data)));
        self.data.map(|data| Cow::Borrowed(data.get())).or_else(of_base64)
    }
}

/// A record's content, owned.
#[derive(Debug, Clone)]
pub enum DecodedRecord {
    Telemetry(GpuTelemetry),
    Progress(TrainingProgress),
    Workload(Box<Workload>),
    /// A tombstone in the workloads topic.
    WorkloadGone,
    Actuation(Box<Actuation>),
    Model(Box<Model>),
    /// A tombstone in the models topic.
    ModelGone,
    /// It moves the log clock and nothing else.
    Heartbeat,
    Refused(Box<DecodeError>),
}

impl DecodedRecord {
    /// Like [`Self::decode`], for a record in its block, and in place of a folded one: frequent events reuse its memory.
    pub fn decode_view_into(&mut self, topic: Topic, record: &RecordView<'_>) {
        // Compared as bytes first: all but a few are of the topic's type, and need no check for UTF-8.
        if record.raw_event_type == Some(topic.event_type().name().as_bytes()) {
            self.decode_expected_into(topic, record.value);
        } else {
            *self = Self::decode(topic, record.event_type(), record.value);
        }
    }

    /// Like [`Self::decode_view_into`], for the parts of a record.
    pub fn decode_into(&mut self, topic: Topic, kind: Option<&str>, value: Option<&[u8]>) {
        if kind == Some(topic.event_type().name()) {
            self.decode_expected_into(topic, value);
        } else {
            *self = Self::decode(topic, kind, value);
        }
    }

    /// Decodes a value whose header names the topic's type.
    fn decode_expected_into(&mut self, topic: Topic, value: Option<&[u8]>) {
        let refused = match (&mut *self, topic, value) {
            (Self::Telemetry(event), Topic::GpuTelemetry, Some(value)) => decode_into(event, value).err(),
            (Self::Progress(event), Topic::TrainingProgress, Some(value)) => decode_into(event, value).err(),
            _ => {
                *self = Self::decode(topic, Some(topic.event_type().name()), value);
                None
            }
        };
        if let Some(refusal) = refused {
            *self = Self::Refused(Box::new(refusal));
        }
    }

    /// Like [`Self::decode_into`], but only for a value in the form that EADT itself writes. Returns false for all others, after
    /// which this record is not valid.
    pub fn decode_canonical_into(&mut self, topic: Topic, kind: Option<&str>, value: &[u8]) -> bool {
        fn read<T: DecodableEvent>(event: &mut T, value: &[u8]) -> Option<Result<(), DecodeError>> {
            (value.len() <= MAX_VALUE_BYTES).then(|| event.decode_fast(value)).flatten().map(|()| event.check_plain())
        }
        if kind != Some(topic.event_type().name()) {
            return false;
        }
        match (topic, &*self) {
            (Topic::GpuTelemetry, Self::Telemetry(_)) | (Topic::TrainingProgress, Self::Progress(_)) => {}
            (Topic::GpuTelemetry, _) => *self = Self::Telemetry(GpuTelemetry::default()),
            (Topic::TrainingProgress, _) => *self = Self::Progress(TrainingProgress::default()),
            _ => return false,
        }
        let checked = match self {
            Self::Telemetry(event) => read(event, value),
            Self::Progress(event) => read(event, value),
            _ => None,
        };
        if let Some(Err(refusal)) = checked {
            *self = Self::Refused(Box::new(refusal));
            return true;
        }
        checked.is_some()
    }

    /// Decodes a record of an input topic. `kind` is its `ce_type`; without one it is that of an event in structured mode, else
    /// the topic's.
    pub fn decode(topic: Topic, kind: Option<&str>, value: Option<&[u8]>) -> Self {
        if let Some(event) = value.filter(|_| kind.is_none()).and_then(StructuredEvent::parse) {
            return Self::decode(topic, Some(&event.kind), event.data().as_deref().map(str::as_bytes));
        }
        let expected = topic.event_type();
        match kind {
            Some(kind) if kind == expected.name() => {}
            Some(kind) if kind == EventType::Heartbeat.name() => return Self::Heartbeat,
            Some(kind) => {
                let kind: String = kind.chars().take(100).collect();
                let detail = format!("an event of type {kind:?} does not belong to {topic}, which takes {}", expected.name());
                return Self::refused(DeadLetterReason::UnexpectedType, detail);
            }
            None => {}
        }
        let Some(value) = value else {
            return match topic {
                Topic::Workloads => Self::WorkloadGone,
                Topic::Models => Self::ModelGone,
                _ => Self::refused(DeadLetterReason::Malformed, "the record has no value".to_owned()),
            };
        };
        match topic {
            Topic::GpuTelemetry => Self::decode_as(value, Self::Telemetry),
            Topic::TrainingProgress => Self::decode_as(value, Self::Progress),
            Topic::Workloads => Self::decode_as(value, |event| Self::Workload(Box::new(event))),
            Topic::Actuations => Self::decode_as(value, |event| Self::Actuation(Box::new(event))),
            Topic::Models => Self::decode_as(value, |event| Self::Model(Box::new(event))),
            _ => Self::refused(DeadLetterReason::UnexpectedType, format!("{topic} is no input of the processor")),
        }
    }

    fn decode_as<T: DecodableEvent>(value: &[u8], wrap: impl FnOnce(T) -> Self) -> Self {
        decode(value).map_or_else(|refusal| Self::Refused(Box::new(refusal)), wrap)
    }

    fn refused(reason: DeadLetterReason, detail: String) -> Self {
        Self::Refused(Box::new(DecodeError { reason, field: None, detail }))
    }

    pub fn event(&self) -> InputEvent<'_> {
        match self {
            Self::Telemetry(event) => InputEvent::Telemetry(event),
            Self::Progress(event) => InputEvent::Progress(event),
            Self::Workload(event) => InputEvent::Workload(event),
            Self::WorkloadGone => InputEvent::WorkloadGone,
            Self::Actuation(event) => InputEvent::Actuation(event),
            Self::Model(event) => InputEvent::Model(event),
            Self::ModelGone => InputEvent::ModelGone,
            Self::Heartbeat => InputEvent::Heartbeat,
            Self::Refused(refusal) => InputEvent::Refused(refusal),
        }
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;

    use super::*;

    const TOPICS: [Topic; 5] = Topic::PROCESSOR_INPUTS;

    /// Returns a whole event of each input topic, laid out by hand.
    fn sample(topic: Topic) -> &'static [u8] {
        match topic {
            Topic::GpuTelemetry => include_bytes!("../../../schemas/samples/v1/gpu.telemetry.json"),
            Topic::TrainingProgress => include_bytes!("../../../schemas/samples/v1/training.progress.json"),
            Topic::Workloads => include_bytes!("../../../schemas/samples/v1/workload.json"),
            Topic::Actuations => include_bytes!("../../../schemas/samples/v1/actuation.json"),
            Topic::Models => include_bytes!("../../../schemas/samples/v1/model.json"),
            other => panic!("{other} is no input"),
        }
    }

    fn kind(topic: Topic) -> &'static str {
        topic.event_type().name()
    }

    /// Returns the same event as EADT writes it; `None` for topics with few events, which have no fast path.
    fn written(topic: Topic) -> Option<Vec<u8>> {
        match DecodedRecord::decode(topic, None, Some(sample(topic))) {
            DecodedRecord::Telemetry(event) => Some(serde_json::to_vec(&event).unwrap()),
            DecodedRecord::Progress(event) => Some(serde_json::to_vec(&event).unwrap()),
            _ => None,
        }
    }

    #[test]
    fn each_topic_has_its_events() {
        for topic in TOPICS {
            let decoded = DecodedRecord::decode(topic, Some(kind(topic)), Some(sample(topic)));
            let fits = match topic {
                Topic::GpuTelemetry => matches!(decoded, DecodedRecord::Telemetry(_)),
                Topic::TrainingProgress => matches!(decoded, DecodedRecord::Progress(_)),
                Topic::Workloads => matches!(decoded, DecodedRecord::Workload(_)),
                Topic::Actuations => matches!(decoded, DecodedRecord::Actuation(_)),
                _ => matches!(decoded, DecodedRecord::Model(_)),
            };
            assert!(fits, "{topic}: {decoded:?}");
            assert_eq!(
                format!("{decoded:?}"),
                format!("{:?}", DecodedRecord::decode(topic, None, Some(sample(topic)))),
                "a topic's own without a type"
            );
            assert!(
                matches!(DecodedRecord::decode(topic, Some(EventType::Heartbeat.name()), None), DecodedRecord::Heartbeat),
                "{topic}"
            );
            let tombstone = DecodedRecord::decode(topic, Some(kind(topic)), None);
            let fits = match topic {
                Topic::Workloads => matches!(tombstone, DecodedRecord::WorkloadGone),
                Topic::Models => matches!(tombstone, DecodedRecord::ModelGone),
                _ => matches!(&tombstone, DecodedRecord::Refused(refusal) if refusal.reason == DeadLetterReason::Malformed),
            };
            assert!(fits, "{topic}: {tombstone:?}");
        }
        for (topic, kind) in [(Topic::GpuTelemetry, kind(Topic::TrainingProgress)), (Topic::Decisions, kind(Topic::Decisions))] {
            let DecodedRecord::Refused(refusal) = DecodedRecord::decode(topic, Some(kind), Some(b"{}")) else {
                panic!("{topic} takes {kind}")
            };
            assert_eq!(refusal.reason, DeadLetterReason::UnexpectedType);
        }
    }

    #[test]
    fn an_event_in_structured_mode_is_that_of_binary_mode() {
        let wrap = |kind: &str, more: &str, data: &str| {
            format!(
                r#" {{"specversion":"1.0","type":"{kind}","source":"/s","id":"1",{more}"datacontenttype":"application/json","data":{data}}}"#
            )
        };
        for topic in TOPICS {
            let data = std::str::from_utf8(sample(topic)).unwrap();
            for more in ["", "\"time\":\"2026-01-01T00:00:00Z\",", "\"partitionkey\":\"k\",\"subject\":\"x\","] {
                let structured = wrap(kind(topic), more, data);
                let decoded = DecodedRecord::decode(topic, None, Some(structured.as_bytes()));
                assert_eq!(
                    format!("{decoded:?}"),
                    format!("{:?}", DecodedRecord::decode(topic, None, Some(sample(topic)))),
                    "{topic} {more}"
                );
                // Client libraries write bytes so, which is no tombstone.
                let encoded = base64::engine::general_purpose::STANDARD.encode(data);
                let in_base64 = structured.replace(&format!("\"data\":{data}"), &format!("\"data_base64\":\"{encoded}\""));
                let of_bytes = DecodedRecord::decode(topic, None, Some(in_base64.as_bytes()));
                assert_eq!(format!("{of_bytes:?}"), format!("{decoded:?}"), "{topic} {more}");
            }
            let damaged = wrap(kind(topic), "\"data_base64\":\"%\",", "null").replace(",\"data\":null", "");
            let decoded = DecodedRecord::decode(topic, None, Some(damaged.as_bytes()));
            assert!(matches!(decoded, DecodedRecord::Refused(_)), "{topic}: {decoded:?}");
        }
        let gone = wrap(kind(Topic::Workloads), "", "null");
        assert!(matches!(DecodedRecord::decode(Topic::Workloads, None, Some(gone.as_bytes())), DecodedRecord::WorkloadGone));
        for (event, reason) in [
            (wrap("com.example.thing", "", "{}"), DeadLetterReason::UnexpectedType),
            (wrap(kind(Topic::GpuTelemetry), "", "{\"a\":1}"), DeadLetterReason::InvalidValue),
            (wrap(kind(Topic::GpuTelemetry), "", "7"), DeadLetterReason::Malformed),
            ("{\"specversion\":\"1.0\",".to_owned(), DeadLetterReason::Malformed),
        ] {
            let decoded = DecodedRecord::decode(Topic::GpuTelemetry, None, Some(event.as_bytes()));
            let DecodedRecord::Refused(refusal) = decoded else { panic!("{event}: {decoded:?}") };
            assert!(refusal.reason == reason || refusal.reason == DeadLetterReason::Malformed, "{event}: {refusal}");
        }
    }

    #[test]
    fn what_was_there_before_has_no_effect_on_what_comes() {
        let held: Vec<DecodedRecord> =
            TOPICS.iter().map(|topic| DecodedRecord::decode(*topic, None, Some(sample(*topic)))).collect();
        let bad: [&[u8]; 3] = [b"{}", b"null", br#"{"time":"2023-11-14T22:13:20Z","power_watts":-1}"#];
        for topic in TOPICS {
            let own = written(topic);
            let values = bad.into_iter().chain([sample(topic)]).chain(own.as_deref()).map(Some).chain([None]);
            for (value, before) in values.flat_map(|value| held.iter().map(move |before| (value, before))) {
                let kinds = TOPICS.map(kind).map(Some).into_iter().chain([None, Some(EventType::Heartbeat.name()), Some("else")]);
                for kind in kinds {
                    let fresh = format!("{:?}", DecodedRecord::decode(topic, kind, value));
                    let mut again = before.clone();
                    again.decode_into(topic, kind, value);
                    assert_eq!(format!("{again:?}"), fresh, "{topic} {kind:?} over {before:?}");
                    let mut short = before.clone();
                    if value.is_some_and(|value| short.decode_canonical_into(topic, kind, value)) {
                        assert_eq!(format!("{short:?}"), fresh, "{topic} {kind:?} over {before:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn what_eadt_writes_goes_the_short_way_and_is_checked_there_too() {
        let takes = |topic, kind, value: &[u8]| DecodedRecord::Heartbeat.decode_canonical_into(topic, kind, value);
        for topic in TOPICS {
            assert_eq!(
                written(topic).is_some_and(|own| takes(topic, Some(kind(topic)), &own)),
                written(topic).is_some(),
                "{topic}"
            );
            assert!(!takes(topic, Some(kind(topic)), sample(topic)), "{topic}: by hand");
        }
        let own = written(Topic::GpuTelemetry).unwrap();
        assert!(!takes(Topic::GpuTelemetry, None, &own), "without a type");
        assert!(!takes(Topic::TrainingProgress, Some(kind(Topic::TrainingProgress)), &own), "another topic's");

        let DecodedRecord::Telemetry(mut event) = DecodedRecord::decode(Topic::GpuTelemetry, None, Some(&own)) else {
            panic!("no telemetry")
        };
        event.power_watts = Some(-1.0);
        let mut decoded = DecodedRecord::Heartbeat;
        assert!(decoded.decode_canonical_into(
            Topic::GpuTelemetry,
            Some(kind(Topic::GpuTelemetry)),
            &serde_json::to_vec(&event).unwrap()
        ));
        let DecodedRecord::Refused(refusal) = decoded else { panic!("{decoded:?}") };
        assert_eq!(refusal.field, Some("power_watts"));
    }

    /// Returns the memory of a text that every event of the topic has.
    fn memory(decoded: &DecodedRecord) -> *const u8 {
        match decoded {
            DecodedRecord::Telemetry(event) => event.collector.as_ptr(),
            DecodedRecord::Progress(event) => event.collector.as_ptr(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn of_what_there_is_much_the_memory_is_used_again() {
        for topic in [Topic::GpuTelemetry, Topic::TrainingProgress] {
            let (own, kind) = (written(topic).unwrap(), Some(kind(topic)));
            let mut decoded = DecodedRecord::decode(topic, kind, Some(&own));
            let before = memory(&decoded);
            decoded.decode_into(topic, kind, Some(&own));
            assert_eq!(memory(&decoded), before, "{topic}");
            assert!(decoded.decode_canonical_into(topic, kind, &own));
            assert_eq!(memory(&decoded), before, "{topic}: the short way");
        }
    }
}
