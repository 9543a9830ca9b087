use std::sync::Arc;

use bytes::Bytes;
use eadt_schemas::envelope::header;
use eadt_schemas::{EventTime, EventType, LoggedEvent, Topic};
use serde_json::value::RawValue;

/// A header: UTF-8 name, bytes as value.
pub type Header = (Arc<str>, Bytes);

/// One record of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    pub topic: Topic,
    pub partition: i32,
    pub offset: i64,
    /// The log's append time.
    pub stamp: EventTime,
    pub key: Option<Bytes>,
    /// `None` is a tombstone.
    pub value: Option<Bytes>,
    pub headers: Vec<Header>,
}

/// A logged event cannot be placed in an archive.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotARow {
    #[error("event {id:?} of type {kind:?} belongs to no known topic")]
    UnknownTopic { id: String, kind: String },
    #[error("event {id:?} has no offset; record it from a log, or number the events")]
    NoOffset { id: String },
}

/// A row's value is not JSON, so that no JSON event log can hold it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the value of {topic} partition {partition} offset {offset} is not JSON")]
pub struct NotJson {
    pub topic: Topic,
    pub partition: i32,
    pub offset: i64,
}

impl Row {
    /// The last header of this name, where it is UTF-8.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().rev().find(|(n, _)| &**n == name).and_then(|(_, v)| std::str::from_utf8(v).ok())
    }

    /// The event's type: `ce_type`, or what the topic holds where the record has no such header.
    /// `None`: a type that this version does not know.
    pub fn kind(&self) -> Option<EventType> {
        self.header(header::TYPE).map_or(Some(EventType::of_topic(self.topic)), EventType::from_name)
    }

    /// The row of an event that knows its place in the log. A missing partition is 0, a missing stamp is the event's time.
    pub fn from_logged(event: &LoggedEvent) -> Result<Self, NotARow> {
        let topic = event.topic().ok_or_else(|| NotARow::UnknownTopic { id: event.id.clone(), kind: event.kind.clone() })?;
        let offset = event.offset.ok_or_else(|| NotARow::NoOffset { id: event.id.clone() })?;
        let time = event.time.to_string();
        let headers = [
            (header::SPEC_VERSION, &event.specversion),
            (header::TYPE, &event.kind),
            (header::SOURCE, &event.source),
            (header::ID, &event.id),
            (header::TIME, &time),
            (header::SUBJECT, &event.subject),
            (header::CONTENT_TYPE, &event.datacontenttype),
        ];
        Ok(Self {
            topic,
            partition: event.partition.unwrap_or(0),
            offset,
            stamp: event.stamp.unwrap_or(event.time),
            key: event.key.as_ref().map(|key| Bytes::copy_from_slice(key.as_bytes())),
            value: event.data.as_ref().map(|data| Bytes::copy_from_slice(data.get().as_bytes())),
            headers: headers.map(|(name, value)| (Arc::from(name), Bytes::copy_from_slice(value.as_bytes()))).to_vec(),
        })
    }

    /// The event with its place in the log. Headers beyond the `CloudEvents` ones have no place there.
    pub fn to_logged(&self) -> Result<LoggedEvent, NotJson> {
        let not_json = || NotJson { topic: self.topic, partition: self.partition, offset: self.offset };
        let data = match &self.value {
            None => None,
            Some(value) => {
                let text = std::str::from_utf8(value).map_err(|_| not_json())?;
                Some(RawValue::from_string(text.to_owned()).map_err(|_| not_json())?)
            }
        };
        let text = |name: &str| self.header(name).unwrap_or_default().to_owned();
        Ok(LoggedEvent {
            specversion: self.header(header::SPEC_VERSION).unwrap_or("1.0").to_owned(),
            kind: self.header(header::TYPE).unwrap_or(EventType::of_topic(self.topic).name()).to_owned(),
            source: text(header::SOURCE),
            id: text(header::ID),
            time: self.header(header::TIME).and_then(|time| time.parse().ok()).unwrap_or(self.stamp),
            subject: text(header::SUBJECT),
            datacontenttype: self.header(header::CONTENT_TYPE).unwrap_or("application/json").to_owned(),
            key: self.key.as_ref().map(|key| String::from_utf8_lossy(key).into_owned()),
            topic: Some(self.topic),
            partition: Some(self.partition),
            offset: Some(self.offset),
            stamp: Some(self.stamp),
            data,
        })
    }
}
