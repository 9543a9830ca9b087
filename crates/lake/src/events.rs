//! Typed events of an archive, for reports.

use std::collections::BTreeMap;

use eadt_schemas::decode::DecodableEvent;
use eadt_schemas::{DecodeError, Topic};

use crate::archive::{Archive, ArchiveListing, EventRow};
use crate::error::Result;

/// The events of one topic, by partition and offset.
#[derive(Debug, Clone, PartialEq)]
pub struct TopicEvents<T> {
    pub events: Vec<T>,
    /// Records that are not valid events: partition, offset, reason.
    pub refused: Vec<(i32, i64, DecodeError)>,
    /// Ranges of offsets that were archived and are not there: topic, partition, first and last offset.
    pub missing: Vec<(Topic, i32, i64, i64)>,
    /// Records of types that the topic does not take, by type.
    pub passed_over: BTreeMap<String, u64>,
}

/// Types that [`count_type`] distinguishes; a topic of nothing but nonsense must not fill the memory.
const MOST_TYPES: usize = 100;
const MORE_TYPES: &str = "(other types)";

/// Characters of a type's name that are kept.
const TYPE_CHARS: usize = 100;

/// Adds events of a type without a reader to counts by type.
pub fn count_type(counts: &mut BTreeMap<String, u64>, kind: &str, events: u64) {
    let kind: String = kind.chars().take(TYPE_CHARS).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    let is_named = counts.contains_key(&kind) || counts.len() < MOST_TYPES;
    *counts.entry(if is_named { kind } else { MORE_TYPES.to_owned() }).or_default() += events;
}

/// Returns all events of a topic, decoded and checked. Tombstones and heartbeats are passed over; so are other types, which are
/// counted.
pub fn read_events<T: DecodableEvent>(archive: &Archive, topic: Topic) -> Result<TopicEvents<T>> {
    let mut events = Vec::new();
    let read = visit_events(archive, topic, |event| events.push(event))?;
    Ok(TopicEvents { events, ..read })
}

/// Like [`read_events`], for events of which no more than a part is kept: each is handed over when it is read, and none is in the
/// result.
pub fn visit_events<T: DecodableEvent>(archive: &Archive, topic: Topic, visit: impl FnMut(T)) -> Result<TopicEvents<T>> {
    visit_listed_events(archive, &archive.files()?, topic, visit)
}

/// Like [`visit_events`], of the files of a listing alone.
pub fn visit_listed_events<T: DecodableEvent>(
    archive: &Archive,
    listing: &ArchiveListing,
    topic: Topic,
    mut visit: impl FnMut(T),
) -> Result<TopicEvents<T>> {
    let missing = listing.missing().filter(|(t, ..)| *t == topic).copied().collect();
    let mut read = TopicEvents { events: Vec::new(), refused: Vec::new(), missing, passed_over: BTreeMap::new() };
    for (topic, partition) in listing.partitions().into_keys().filter(|(t, _)| *t == topic) {
        let mut rows = archive.rows(listing, topic, partition);
        while let Some(row) = rows.next_event() {
            let row = match row? {
                EventRow::Row(row) => row,
                EventRow::Refused(offset, refusal) => {
                    read.refused.push((partition, offset, refusal));
                    continue;
                }
            };
            if let Some(kind) = row.foreign_type() {
                count_type(&mut read.passed_over, kind, 1);
            }
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
