//! Records to be written: windows, decisions, dead letters, state.

use std::sync::Arc;

use bytes::Bytes;
use eadt_bus::{Header, Outgoing, Record};
use eadt_core::StateRecord;
use eadt_schemas::decode::Refusal;
use eadt_schemas::envelope::header;
use eadt_schemas::v1::{Decision, EfficiencyWindow, dead_letter_header};
use eadt_schemas::{Envelope, EventTime, EventType, Topic};

/// Where the inputs stood when an output was made; outside the comparison of a replay with its record.
pub const INPUT_POSITIONS: &str = "eadt_input_positions";
const SOURCE: &str = "/processor";

pub fn headers(envelope: &Envelope) -> Vec<Header> {
    envelope.headers().into_iter().map(|(name, value)| (Arc::from(name), Bytes::from(value))).collect()
}

/// Full names of the topics that are written.
#[derive(Debug)]
pub struct Names {
    windows: Arc<str>,
    decisions: Arc<str>,
    dead_letters: Arc<str>,
    pub state: Arc<str>,
}

impl Names {
    pub fn new(prefix: &str) -> Self {
        let name = |topic: Topic| Arc::from(format!("{prefix}{topic}"));
        Self {
            windows: name(Topic::EfficiencyWindows),
            decisions: name(Topic::Decisions),
            dead_letters: name(Topic::DeadLetters),
            state: name(Topic::ProcessorState),
        }
    }

    pub fn window(&self, window: &EfficiencyWindow, positions: &Bytes) -> Outgoing {
        let envelope = envelope(&window.id, EventType::EfficiencyWindow, window.window_end, &window.workload);
        output(&self.windows, &window.workload, json(window), &envelope, positions)
    }

    pub fn decision(&self, decision: &Decision, positions: &Bytes) -> Outgoing {
        let envelope = envelope(&decision.id, EventType::Decision, decision.time, &decision.workload);
        output(&self.decisions, &decision.workload, json(decision), &envelope, positions)
    }

    /// A refused record: its own bytes, and in the headers why and where from.
    pub fn dead_letter(&self, record: &Record, refusal: &Refusal) -> Outgoing {
        let envelope = Envelope {
            id: format!("{}/{}", record.at, record.offset),
            source: SOURCE.to_owned(),
            kind: EventType::DeadLetter,
            time: record.stamp,
            subject: record.at.topic.to_string(),
        };
        let mut headers = headers(&envelope);
        // The value is whatever the sender wrote.
        headers.retain(|(name, _)| &**name != header::CONTENT_TYPE);
        let mut add = |name: &str, value: Bytes| headers.push((Arc::from(name), value));
        add(dead_letter_header::REASON, Bytes::from_static(refusal.reason.name().as_bytes()));
        add(dead_letter_header::DETAIL, Bytes::from(refusal.detail.clone()));
        if let Some(field) = refusal.field {
            add(dead_letter_header::FIELD, Bytes::from_static(field.as_bytes()));
        }
        add(dead_letter_header::ORIGIN_TOPIC, Bytes::from(record.at.topic.to_string()));
        add(dead_letter_header::ORIGIN_PARTITION, Bytes::from(record.at.partition.to_string()));
        add(dead_letter_header::ORIGIN_OFFSET, Bytes::from(record.offset.to_string()));
        add(dead_letter_header::ORIGIN_TIMESTAMP, Bytes::from(record.stamp.to_string()));
        if let Some(key) = &record.key {
            add(dead_letter_header::ORIGIN_KEY, key.clone());
        }
        add(dead_letter_header::REFUSED_BY, Bytes::from_static(b"processor"));
        Outgoing {
            topic: self.dead_letters.clone(),
            partition: None,
            key: Some(Bytes::from(record.at.topic.to_string())),
            value: record.value.clone(),
            headers,
        }
    }

    /// State goes to the partition that it is the state of, whatever its key.
    pub fn state(&self, partition: i32, record: StateRecord) -> Outgoing {
        let envelope = envelope(&record.key, EventType::ProcessorState, EventTime::from_micros(0), &record.key);
        let mut headers = headers(&envelope);
        headers.retain(|(name, _)| &**name == header::TYPE || &**name == header::SPEC_VERSION);
        Outgoing {
            topic: self.state.clone(),
            partition: Some(partition),
            key: Some(Bytes::from(record.key)),
            value: record.value.map(Bytes::from),
            headers,
        }
    }
}

fn envelope(id: &str, kind: EventType, time: EventTime, subject: &str) -> Envelope {
    Envelope { id: id.to_owned(), source: SOURCE.to_owned(), kind, time, subject: subject.to_owned() }
}

fn output(topic: &Arc<str>, key: &str, value: Bytes, envelope: &Envelope, positions: &Bytes) -> Outgoing {
    let mut headers = headers(envelope);
    headers.push((Arc::from(INPUT_POSITIONS), positions.clone()));
    Outgoing {
        topic: topic.clone(),
        partition: None,
        key: Some(Bytes::copy_from_slice(key.as_bytes())),
        value: Some(value),
        headers,
    }
}

fn json(value: &impl serde::Serialize) -> Bytes {
    serde_json::to_vec(value).expect("events have string keys").into()
}
