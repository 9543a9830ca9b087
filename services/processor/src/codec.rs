//! From a record's bytes to what the fold takes.

use eadt_core::Event;
use eadt_schemas::decode::{Check, MAX_VALUE_BYTES, Refusal, decode, decode_into};
use eadt_schemas::v1::{Actuation, DeadLetterReason, GpuTelemetry, Model, TrainingProgress, Workload};
use eadt_schemas::{EventType, Topic};

/// A record's content, owned.
#[derive(Debug, Clone)]
pub enum Decoded {
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
    Refused(Box<Refusal>),
}

impl Decoded {
    /// As [`Self::of`], in place of a record that is folded: the events that there are many of use its memory again.
    pub fn renew(&mut self, topic: Topic, kind: Option<&str>, value: Option<&[u8]>) {
        let expected = EventType::of_topic(topic);
        let refused = match (&mut *self, value) {
            (Self::Telemetry(event), Some(value)) if expected == EventType::GpuTelemetry && kind == Some(expected.name()) => {
                decode_into(event, value).err()
            }
            (Self::Progress(event), Some(value)) if expected == EventType::TrainingProgress && kind == Some(expected.name()) => {
                decode_into(event, value).err()
            }
            _ => {
                *self = Self::of(topic, kind, value);
                None
            }
        };
        if let Some(refusal) = refused {
            *self = Self::Refused(Box::new(refusal));
        }
    }

    /// As [`Self::renew`], but only for a value in the form that EADT itself writes; false for all others, after which this holds
    /// nothing of use.
    pub fn renew_canonical(&mut self, topic: Topic, kind: Option<&str>, value: &[u8]) -> bool {
        fn read<T: Check>(event: &mut T, value: &[u8]) -> Option<Result<(), Refusal>> {
            (value.len() <= MAX_VALUE_BYTES).then(|| event.fast(value)).flatten().map(|()| event.check())
        }
        if kind != Some(EventType::of_topic(topic).name()) {
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

    /// Decodes a record of an input topic. `kind` is its `ce_type`; without one it is the topic's.
    pub fn of(topic: Topic, kind: Option<&str>, value: Option<&[u8]>) -> Self {
        let expected = EventType::of_topic(topic);
        match kind {
            Some(kind) if kind == expected.name() => {}
            Some(kind) if kind == EventType::Heartbeat.name() => return Self::Heartbeat,
            Some(kind) => {
                let kind: String = kind.chars().take(100).collect();
                let detail = format!("an event of type {kind:?} does not belong into {topic}, which holds {}", expected.name());
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
            Topic::GpuTelemetry => Self::checked(value, Self::Telemetry),
            Topic::TrainingProgress => Self::checked(value, Self::Progress),
            Topic::Workloads => Self::checked(value, |event| Self::Workload(Box::new(event))),
            Topic::Actuations => Self::checked(value, |event| Self::Actuation(Box::new(event))),
            Topic::Models => Self::checked(value, |event| Self::Model(Box::new(event))),
            _ => Self::refused(DeadLetterReason::UnexpectedType, format!("{topic} is no input of the processor")),
        }
    }

    fn checked<T: Check>(value: &[u8], wrap: impl FnOnce(T) -> Self) -> Self {
        decode(value).map_or_else(|refusal| Self::Refused(Box::new(refusal)), wrap)
    }

    fn refused(reason: DeadLetterReason, detail: String) -> Self {
        Self::Refused(Box::new(Refusal { reason, field: None, detail }))
    }

    pub fn event(&self) -> Event<'_> {
        match self {
            Self::Telemetry(event) => Event::Telemetry(event),
            Self::Progress(event) => Event::Progress(event),
            Self::Workload(event) => Event::Workload(event),
            Self::WorkloadGone => Event::WorkloadGone,
            Self::Actuation(event) => Event::Actuation(event),
            Self::Model(event) => Event::Model(event),
            Self::ModelGone => Event::ModelGone,
            Self::Heartbeat => Event::Heartbeat,
            Self::Refused(refusal) => Event::Refused(refusal),
        }
    }
}
