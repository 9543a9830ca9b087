//! Converts events to records: an envelope and a value become an appended record.

use std::sync::Arc;

use bytes::Bytes;
use eadt_schemas::envelope::header;
use eadt_schemas::v1::dead_letter_header;
use eadt_schemas::{DecodeError, Envelope, EventType, Topic};
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::{ConsumerRecord, ProducerRecord, RecordHeader, chaos};

/// Bytes that are kept of each part of a refused record that is too large for the dead letters. The limit of an input counts
/// compressed bytes, so a part may be far larger. Such records must fill neither the topic nor a reader's memory.
const KEPT_BYTES: usize = 64 << 10;
/// Most bytes of a refused record that is kept whole. The other headers, and those that Kafka adds, are far less than one kept
/// part.
const WHOLE_BYTES: usize = Topic::DeadLetters.max_message_bytes() as usize - KEPT_BYTES;

impl ProducerRecord {
    /// Returns the number of bytes of key, value and headers.
    pub fn size(&self) -> usize {
        let headers: usize = self.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
        self.key.as_ref().map_or(0, Bytes::len) + self.value.as_ref().map_or(0, Bytes::len) + headers
    }

    /// Returns an event of these types' own: its value as JSON, its envelope as headers. The partition is the key's.
    pub fn event(topic: &Arc<str>, key: &str, envelope: &Envelope, value: &impl Serialize) -> Self {
        let value = serde_json::to_string(value).expect("events have string keys and no failing serialiser");
        Self::enveloped(topic, key, envelope, Some(chaos::written(value).into()))
    }

    /// Returns a tombstone without an envelope: this key has no value any more.
    pub fn tombstone(topic: &Arc<str>, key: &str) -> Self {
        let key = Some(Bytes::copy_from_slice(key.as_bytes()));
        Self { topic: Arc::clone(topic), partition: None, key, value: None, headers: Vec::new() }
    }

    /// Returns a value as it is, under the headers of this envelope; `None` is a tombstone.
    pub fn enveloped(topic: &Arc<str>, key: &str, envelope: &Envelope, value: Option<Bytes>) -> Self {
        Self {
            topic: Arc::clone(topic),
            partition: None,
            key: Some(Bytes::copy_from_slice(key.as_bytes())),
            value,
            headers: headers(envelope),
        }
    }

    /// Returns a refused record for the topic of dead letters: its value byte for byte, and in the headers why, where from and by
    /// which `service` (`processor`; its source is `/processor`). Of what would be too large for the topic beginnings are kept,
    /// with the length and the SHA-256 of the whole.
    pub fn dead_letter(topic: &Arc<str>, record: &ConsumerRecord, refusal: &DecodeError, service: &'static str) -> Self {
        let parts = [record.key.as_deref(), record.value.as_deref(), Some(refusal.detail.as_bytes())];
        let bytes: usize = parts.into_iter().flatten().map(<[u8]>::len).sum();
        let limit = if bytes <= WHOLE_BYTES { usize::MAX } else { KEPT_BYTES };
        let envelope = Envelope {
            id: record.location(),
            source: format!("/{service}"),
            kind: EventType::DeadLetter,
            time: record.stamp,
            subject: record.at.topic.to_string(),
        };
        // Copies: slices would hold the block that the record came in for as long as the letter waits.
        let truncated = |bytes: &[u8]| Bytes::copy_from_slice(&bytes[..bytes.len().min(limit)]);
        let mut letter = Self::enveloped(topic, &record.at.topic, &envelope, record.value.as_deref().map(truncated));
        // The value is whatever the sender wrote.
        letter.headers.retain(|(name, _)| &**name != header::CONTENT_TYPE);
        let mut add = |name: &str, value: Bytes| letter.headers.push((Arc::from(name), value));
        add(dead_letter_header::REASON, Bytes::from_static(refusal.reason.name().as_bytes()));
        let detail = &refusal.detail[..refusal.detail.floor_char_boundary(limit)];
        add(dead_letter_header::DETAIL, detail.to_owned().into());
        if let Some(field) = refusal.field {
            add(dead_letter_header::FIELD, Bytes::from_static(field.as_bytes()));
        }
        add(dead_letter_header::ORIGIN_TOPIC, record.at.topic.to_string().into());
        add(dead_letter_header::ORIGIN_PARTITION, record.at.partition.to_string().into());
        add(dead_letter_header::ORIGIN_OFFSET, record.offset.to_string().into());
        add(dead_letter_header::ORIGIN_TIMESTAMP, record.stamp.to_string().into());
        if let Some(key) = &record.key {
            add(dead_letter_header::ORIGIN_KEY, truncated(key));
        }
        for (part, bytes, sha256) in [
            (&record.key, dead_letter_header::ORIGIN_KEY_BYTES, dead_letter_header::ORIGIN_KEY_SHA256),
            (&record.value, dead_letter_header::ORIGIN_VALUE_BYTES, dead_letter_header::ORIGIN_VALUE_SHA256),
        ] {
            if let Some(part) = part.as_ref().filter(|part| part.len() > limit) {
                add(bytes, part.len().to_string().into());
                add(sha256, format!("{:x}", Sha256::digest(part)).into());
            }
        }
        add(dead_letter_header::REFUSED_BY, Bytes::from_static(service.as_bytes()));
        letter
    }
}

/// Returns the envelope's attributes as headers of a record.
pub fn headers(envelope: &Envelope) -> Vec<RecordHeader> {
    envelope.headers().into_iter().map(|(name, value)| (Arc::from(name), Bytes::from(value))).collect()
}

#[cfg(test)]
mod tests {
    use eadt_schemas::EventTime;
    use eadt_schemas::v1::DeadLetterReason;

    use super::*;
    use crate::{RecordHeaders, TopicPartition};

    fn named<'a>(outgoing: &'a ProducerRecord, name: &str) -> Option<&'a str> {
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
        let event = ProducerRecord::event(&"eadt.decisions.v1".into(), "ns/job", &envelope, &serde_json::json!({"a": 1}));
        assert_eq!(
            (event.partition, event.key.as_deref(), event.value.as_deref()),
            (None, Some(&b"ns/job"[..]), Some(&b"{\"a\":1}"[..]))
        );
        assert_eq!((named(&event, "ce_id"), named(&event, "ce_type")), (Some("i"), Some("io.eadt.decision.v1")));
        assert_eq!(named(&event, "content-type"), Some("application/json"));
    }

    #[test]
    fn a_dead_letter_keeps_the_bytes_and_gives_the_reason_and_where_from() {
        let record = ConsumerRecord {
            at: TopicPartition::new("eadt.gpu.telemetry.v1", 3),
            offset: 17,
            stamp: EventTime::from_millis(5),
            key: Some(Bytes::from_static(b"\xffkey")),
            value: Some(Bytes::from_static(b"not json")),
            headers: RecordHeaders::default(),
        };
        let refusal = DecodeError { reason: DeadLetterReason::Malformed, field: Some("time"), detail: "no".into() };
        let letter = ProducerRecord::dead_letter(&"eadt.dead-letters.v1".into(), &record, &refusal, "processor");
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

    fn refused(key: Option<usize>, value: Option<usize>, detail: String) -> ProducerRecord {
        let of = |length: usize, byte: u8| Bytes::from(vec![byte; length]);
        let record = ConsumerRecord {
            at: TopicPartition::new("eadt.gpu.telemetry.v1", 3),
            offset: 17,
            stamp: EventTime::from_millis(5),
            key: key.map(|length| of(length, b'k')),
            value: value.map(|length| of(length, b'a')),
            headers: RecordHeaders::default(),
        };
        let refusal = DecodeError { reason: DeadLetterReason::Malformed, field: None, detail };
        ProducerRecord::dead_letter(&"eadt.dead-letters.v1".into(), &record, &refusal, "processor")
    }

    #[test]
    fn what_an_input_may_hold_uncompressed_is_kept_whole() {
        let letter = refused(Some(100), Some(1 << 20), "no".into());
        assert_eq!(letter.value.as_deref().map(<[u8]>::len), Some(1 << 20));
        assert!(letter.headers.iter().all(|(name, _)| !name.ends_with("_bytes") && !name.ends_with("_sha256")), "{letter:?}");
        let gone = refused(None, None, "no".into());
        assert_eq!((gone.value.as_ref(), named(&gone, "eadt_origin_key")), (None, None));
    }

    #[test]
    fn of_what_is_too_large_for_the_dead_letters_beginnings_are_kept_and_what_the_whole_was() {
        const LARGE: usize = 20 << 20;
        let letter = refused(Some(100), Some(LARGE), "no".into());
        assert_eq!(letter.value.as_deref(), Some(&*vec![b'a'; 65_536]));
        assert_eq!(named(&letter, "eadt_origin_value_bytes"), Some("20971520"));
        let whole = format!("{:x}", Sha256::digest(vec![b'a'; LARGE]));
        assert_eq!(named(&letter, "eadt_origin_value_sha256"), Some(&*whole));
        assert_eq!(named(&letter, "eadt_origin_key"), Some(&*"k".repeat(100)));
        assert_eq!((named(&letter, "eadt_origin_key_bytes"), named(&letter, "eadt_origin_key_sha256")), (None, None));

        let letter = refused(Some(LARGE), Some(100), "no".into());
        assert_eq!(letter.value.as_deref(), Some(&[b'a'; 100][..]));
        assert_eq!(named(&letter, "eadt_origin_value_bytes"), None);
        assert_eq!(named(&letter, "eadt_origin_key"), Some(&*"k".repeat(65_536)));
        assert_eq!(named(&letter, "eadt_origin_key_bytes"), Some("20971520"));
        let whole = format!("{:x}", Sha256::digest(vec![b'k'; LARGE]));
        assert_eq!(named(&letter, "eadt_origin_key_sha256"), Some(&*whole));

        // A sender's words in it: cut between characters.
        let letter = refused(None, Some(100), "€".repeat(1 << 20));
        assert_eq!(named(&letter, "eadt_detail"), Some(&*"€".repeat(65_535 / 3)));
    }

    #[test]
    fn a_dead_letter_is_never_larger_than_its_topic_allows() {
        let largest = Topic::DeadLetters.max_message_bytes() as usize;
        // Around the limit, wherever the bytes are.
        for bytes in (largest - 80_000..largest + 5000).step_by(4_000).chain([usize::from(u16::MAX), 10 * largest]) {
            for (key, value, detail) in [(0, bytes, 0), (bytes, 0, 0), (0, 0, bytes), (bytes / 3, bytes / 3, bytes / 3)] {
                let letter = refused(Some(key), Some(value), "d".repeat(detail));
                assert!(letter.size() + 4096 <= largest, "{key} {value} {detail}: {}", letter.size());
            }
        }
    }
}
