use std::sync::Arc;

use bytes::Bytes;
use eadt_schemas::envelope::header;
use eadt_schemas::{EventTime, EventType, Topic};

/// A header: UTF-8 name, bytes as value.
pub type RowHeader = (Arc<str>, Bytes);

/// One record of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArchiveRow {
    pub topic: Topic,
    pub partition: i32,
    pub offset: i64,
    /// The log's append time.
    pub stamp: EventTime,
    pub key: Option<Bytes>,
    /// `None` is a tombstone.
    pub value: Option<Bytes>,
    pub headers: Vec<RowHeader>,
}

/// A borrowed view of a record of the log, without its headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowView<'a> {
    pub topic: Topic,
    pub partition: i32,
    pub offset: i64,
    /// The log's append time.
    pub stamp: EventTime,
    pub key: Option<&'a [u8]>,
    /// `None` is a tombstone.
    pub value: Option<&'a [u8]>,
}

impl ArchiveRow {
    /// Returns everything but the headers.
    pub(crate) fn view(&self) -> RowView<'_> {
        let Self { topic, partition, offset, stamp, key, value, .. } = self;
        let (topic, partition, offset, stamp) = (*topic, *partition, *offset, *stamp);
        RowView { topic, partition, offset, stamp, key: key.as_deref(), value: value.as_deref() }
    }

    /// Returns the headers in their order.
    pub(crate) fn header_views(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.headers.iter().map(|(name, value)| (name.as_bytes(), &**value))
    }

    /// Returns the last header of this name, if it is UTF-8.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().rev().find(|(n, _)| &**n == name).and_then(|(_, v)| std::str::from_utf8(v).ok())
    }

    /// Returns the event's type: `ce_type`, or the topic's type if the record has no such header. `None` if this version does
    /// not support the type.
    pub fn kind(&self) -> Option<EventType> {
        self.header(header::TYPE).map_or(Some(self.topic.event_type()), EventType::from_name)
    }

    /// Returns the type of a record that its topic does not take. `None` for one that it takes, for tombstones and heartbeats, and
    /// for dead letters, which are of any type.
    pub fn foreign_type(&self) -> Option<&str> {
        self.header(header::TYPE).filter(|kind| self.value.is_some() && !self.topic.takes_type(kind))
    }
}
