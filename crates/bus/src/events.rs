//! Events as records: where an envelope and a value become what is appended.

use std::sync::Arc;

use bytes::Bytes;
use eadt_schemas::envelope::header;
use eadt_schemas::v1::dead_letter_header;
use eadt_schemas::{Envelope, EventType, Refusal};
use serde::Serialize;

use crate::{Header, Outgoing, Record, chaos};

impl Outgoing {
    /// An event of these types' own: its value as JSON, its envelope as headers. The partition is the key's.
    pub fn event(topic: &Arc<str>, key: &str, envelope: &Envelope, value: &impl Serialize) -> Self {
        let value = serde_json::to_string(value).expect("events have string keys and no failing serialiser");
        Self::enveloped(topic, key, envelope, Some(chaos::written(value).into()))
    }

    /// A tombstone without an envelope: nothing stands under this key any more.
    pub fn tombstone(topic: &Arc<str>, key: &str) -> Self {
        let key = Some(Bytes::copy_from_slice(key.as_bytes()));
        Self { topic: Arc::clone(topic), partition: None, key, value: None, headers: Vec::new() }
    }

    /// A value as it is, under the headers of this envelope; `None` is a tombstone.
    pub fn enveloped(topic: &Arc<str>, key: &str, envelope: &Envelope, value: Option<Bytes>) -> Self {
        Self {
            topic: Arc::clone(topic),
            partition: None,
            key: Some(Bytes::copy_from_slice(key.as_bytes())),
            value,
            headers: headers(envelope),
        }
    }

    /// A refused record for the topic of dead letters: its value byte for byte, and in the headers why, where from and by
    /// which `service` (`processor`; its source is `/processor`).
    pub fn dead_letter(topic: &Arc<str>, record: &Record, refusal: &Refusal, service: &'static str) -> Self {
        let envelope = Envelope {
            id: record.place(),
            source: format!("/{service}"),
            kind: EventType::DeadLetter,
            time: record.stamp,
            subject: record.at.topic.to_string(),
        };
        // Copies: slices would hold the block that the record came in for as long as the letter waits.
        let value = record.value.as_deref().map(Bytes::copy_from_slice);
        let mut letter = Self::enveloped(topic, &record.at.topic, &envelope, value);
        // The value is whatever the sender wrote.
        letter.headers.retain(|(name, _)| &**name != header::CONTENT_TYPE);
        let mut add = |name: &str, value: Bytes| letter.headers.push((Arc::from(name), value));
        add(dead_letter_header::REASON, Bytes::from_static(refusal.reason.name().as_bytes()));
        add(dead_letter_header::DETAIL, refusal.detail.clone().into());
        if let Some(field) = refusal.field {
            add(dead_letter_header::FIELD, Bytes::from_static(field.as_bytes()));
        }
        add(dead_letter_header::ORIGIN_TOPIC, record.at.topic.to_string().into());
        add(dead_letter_header::ORIGIN_PARTITION, record.at.partition.to_string().into());
        add(dead_letter_header::ORIGIN_OFFSET, record.offset.to_string().into());
        add(dead_letter_header::ORIGIN_TIMESTAMP, record.stamp.to_string().into());
        if let Some(key) = &record.key {
            add(dead_letter_header::ORIGIN_KEY, Bytes::copy_from_slice(key));
        }
        add(dead_letter_header::REFUSED_BY, Bytes::from_static(service.as_bytes()));
        letter
    }
}

/// The envelope's attributes as headers of a record.
pub fn headers(envelope: &Envelope) -> Vec<Header> {
    envelope.headers().into_iter().map(|(name, value)| (Arc::from(name), Bytes::from(value))).collect()
}

#[cfg(test)]
mod tests {
    use eadt_schemas::EventTime;
    use eadt_schemas::v1::DeadLetterReason;

    use super::*;
    use crate::{Headers, TopicPartition};

    fn named<'a>(outgoing: &'a Outgoing, name: &str) -> Option<&'a str> {
        let (_, value) = outgoing.headers.iter().find(|(known, _)| &**known == name)?;
        std::str::from_utf8(value).ok()
    }

    #[test]
    fn an_event_has_its_envelope_and_its_key_decides_the_partition() {
        let envelope = Envelope {
            id: "i".into(),
            source: "/s".into(),
            kind: EventType::Decision,
            time: EventTime::from_micros(1),
            subject: "ns/job".into(),
        };
        let event = Outgoing::event(&"eadt.decisions.v1".into(), "ns/job", &envelope, &serde_json::json!({"a": 1}));
        assert_eq!(
            (event.partition, event.key.as_deref(), event.value.as_deref()),
            (None, Some(&b"ns/job"[..]), Some(&b"{\"a\":1}"[..]))
        );
        assert_eq!((named(&event, "ce_id"), named(&event, "ce_type")), (Some("i"), Some("io.eadt.decision.v1")));
        assert_eq!(named(&event, "content-type"), Some("application/json"));
    }

    #[test]
    fn a_dead_letter_keeps_the_bytes_and_says_why_and_where_from() {
        let record = Record {
            at: TopicPartition::new("eadt.gpu.telemetry.v1", 3),
            offset: 17,
            stamp: EventTime::from_millis(5),
            key: Some(Bytes::from_static(b"\xffkey")),
            value: Some(Bytes::from_static(b"not json")),
            headers: Headers::default(),
        };
        let refusal = Refusal { reason: DeadLetterReason::Malformed, field: Some("time"), detail: "no".into() };
        let letter = Outgoing::dead_letter(&"eadt.dead-letters.v1".into(), &record, &refusal, "processor");
        assert_eq!(
            (letter.value.as_deref(), letter.key.as_deref()),
            (Some(&b"not json"[..]), Some(&b"eadt.gpu.telemetry.v1"[..]))
        );
        for (name, value) in [
            ("ce_source", "/processor"),
            ("ce_id", "eadt.gpu.telemetry.v1-3/17"),
            ("eadt_reason", "malformed"),
            ("eadt_field", "time"),
            ("eadt_origin_partition", "3"),
            ("eadt_origin_offset", "17"),
            ("eadt_refused_by", "processor"),
        ] {
            assert_eq!(named(&letter, name), Some(value), "{name}");
        }
        assert_eq!(named(&letter, "content-type"), None, "nobody knows what it is");
        assert!(letter.headers.iter().any(|(name, value)| &**name == "eadt_origin_key" && &value[..] == b"\xffkey"));
    }
}
