//! Checks whether an archive and a log belong together. An archive holds the position at which its archiver resumes, so behind
//! another log it would take unknown records for known ones.

use std::collections::BTreeMap;
use std::time::Duration;

use eadt_bus::{Bus, BusError, IsolationLevel, PollEvent, StartOffset, TopicPartition, WatermarkOffsets};
use eadt_lake::Archive;
use eadt_schemas::{EventTime, Topic};
use eadt_service::MonotonicClock;

use crate::service::ArchiverError;
use crate::settings::ArchiverSettings;

/// Timeout for looking up rows in the log; a slower broker is not waited for.
const PATIENCE: Duration = Duration::from_secs(10);

/// Returns an error, before anything starts, if the archiver could not work. Causes are its settings, a location that is no folder,
/// an archive that another consumer group writes, one that is ahead of the log or belongs to another one, and a file whose content
/// does not match its name. A store or a log that is unreachable is no error: the archiver waits for it. Writes nothing.
pub fn check(settings: &ArchiverSettings, prefix: &str, bus: &dyn Bus) -> Result<(), ArchiverError> {
    settings.check().map_err(ArchiverError::Settings)?;
    let archive = Archive::open(&settings.location)?;
    let is_own = archive.refuse_other_group(&settings.group).map_err(ArchiverError::from);
    match is_own.and_then(|()| verify_same_log(&archive, prefix, bus, &MonotonicClock::machine())) {
        Err(ArchiverError::Lake(error)) if error.is_transient() => {
            tracing::debug!(%error, "the archive cannot be read yet");
            Ok(())
        }
        other => other,
    }
}

/// Compares where the archive ends with where the log does, and its newest rows with the log's records.
pub(crate) fn verify_same_log(
    archive: &Archive,
    prefix: &str,
    bus: &dyn Bus,
    timer: &MonotonicClock,
) -> Result<(), ArchiverError> {
    let listing = archive.files()?;
    let newest = archive.newest(&listing)?;
    let specs = bus.topics(prefix)?;
    let mut sought = BTreeMap::new();
    for ((topic, partition), (_, last)) in listing.partitions() {
        let name = format!("{prefix}{topic}");
        let known = specs.iter().any(|spec| *spec.name == name && partition < spec.partitions);
        let at = TopicPartition::new(name, partition);
        // A log without the topic or the partition ends before its first record.
        let marks = if known { bus.watermarks(&at)? } else { WatermarkOffsets { low: 0, high: 0 } };
        check_not_ahead(archive, topic, partition, last, marks)?;
        if let Some(Some((offset, stamp))) = newest.get(&(topic, partition)).copied()
            && (marks.low..marks.high).contains(&offset)
        {
            sought.insert(at, (topic, offset, stamp));
        }
    }
    for (at, logged) in look_up(bus, &sought, timer)? {
        let (topic, offset, archived) = sought[&at];
        if logged != archived {
            let place = archive.place().to_owned();
            return Err(ArchiverError::Another { place, topic, partition: at.partition, offset, archived, logged });
        }
    }
    Ok(())
}

/// Returns an error if the archive's last offset of a partition is one that the log has not reached.
pub(crate) fn check_not_ahead(
    archive: &Archive,
    topic: Topic,
    partition: i32,
    archived: i64,
    marks: WatermarkOffsets,
) -> Result<(), ArchiverError> {
    if archived < marks.high {
        return Ok(());
    }
    Err(ArchiverError::Ahead { place: archive.place().to_owned(), topic, partition, archived, high: marks.high })
}

/// Returns when the log appended the records at these offsets; those that it no longer has are left out.
fn look_up(
    bus: &dyn Bus,
    sought: &BTreeMap<TopicPartition, (Topic, i64, EventTime)>,
    timer: &MonotonicClock,
) -> Result<BTreeMap<TopicPartition, EventTime>, BusError> {
    let from: Vec<_> = sought.iter().map(|(at, (_, offset, _))| (at.clone(), StartOffset::At(*offset))).collect();
    let mut found = BTreeMap::new();
    if from.is_empty() {
        return Ok(found);
    }
    let mut reader = bus.reader(&from, IsolationLevel::ReadCommitted)?;
    let (mut open, mut polled, until) = (sought.clone(), Vec::new(), timer.now() + PATIENCE);
    while !open.is_empty() && timer.now() < until {
        reader.poll(256, Duration::from_millis(100), &mut polled)?;
        for item in polled.drain(..) {
            let at = match &item {
                PollEvent::Record(record) => &record.at,
                PollEvent::End { at, .. } => at,
                PollEvent::Batch(_) | PollEvent::Assigned(_) | PollEvent::Revoked(_) | PollEvent::Lost(_) => continue,
            };
            // The first record of a partition decides; its other records are not needed.
            let Some((_, offset, _)) = open.remove(at) else { continue };
            reader.pause(std::slice::from_ref(at))?;
            if let PollEvent::Record(record) = &item
                && record.offset == offset
            {
                found.insert(record.at.clone(), record.stamp);
            }
        }
    }
    Ok(found)
}
