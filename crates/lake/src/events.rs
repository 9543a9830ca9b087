//! Typed events of an archive, for reports.

use eadt_schemas::decode::DecodableEvent;
use eadt_schemas::{DecodeError, Topic};

use crate::archive::Archive;
use crate::error::Result;

/// The events of one topic, by partition and offset.
#[derive(Debug, Clone, PartialEq)]
pub struct TopicEvents<T> {
    pub events: Vec<T>,
    /// Records that are not valid events: partition, offset, reason.
    pub refused: Vec<(i32, i64, DecodeError)>,
    /// Ranges of offsets that were archived and are not there: topic, partition, first and last offset.
    pub missing: Vec<(Topic, i32, i64, i64)>,
}

/// All events of a topic, decoded and checked. Tombstones, heartbeats and other types are passed over.
pub fn read_events<T: DecodableEvent>(archive: &Archive, topic: Topic) -> Result<TopicEvents<T>> {
    let mut events = Vec::new();
    let TopicEvents { refused, missing, .. } = visit_events(archive, topic, |event| events.push(event))?;
    Ok(TopicEvents { events, refused, missing })
}

/// As [`read_events`], for events of which no more than a part is kept: each is handed over when it is read, and none is in the
/// result.
pub fn visit_events<T: DecodableEvent>(archive: &Archive, topic: Topic, mut visit: impl FnMut(T)) -> Result<TopicEvents<T>> {
    let listing = archive.files()?;
    let missing = listing.missing().filter(|(t, ..)| *t == topic).copied().collect();
    let mut read = TopicEvents { events: Vec::new(), refused: Vec::new(), missing };
    for (topic, partition) in listing.partitions().into_keys().filter(|(t, _)| *t == topic) {
        for row in archive.rows(&listing, topic, partition) {
            let row = row?;
            let Some(value) = row.value.as_deref().filter(|_| row.kind() == Some(topic.event_type())) else {
                continue;
            };
            match eadt_schemas::decode::<T>(value) {
                Ok(event) => visit(event),
                Err(refusal) => read.refused.push((partition, row.offset, refusal)),
            }
        }
    }
    Ok(read)
}
