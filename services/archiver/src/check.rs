//! Whether an archive and a log belong together. An archive says where its archiver goes on, so behind another log it would take
//! unknown records for known ones.

use std::collections::BTreeMap;
use std::time::Duration;

use eadt_bus::{Bus, BusError, Isolation, Polled, Start, TopicPartition, Watermarks};
use eadt_lake::Archive;
use eadt_schemas::{EventTime, Topic};
use eadt_service::Timer;

use crate::service::Error;
use crate::settings::Settings;

/// How long rows are looked up in the log; a broker that is slower than this is not waited for.
const PATIENCE: Duration = Duration::from_secs(10);

/// Says before anything starts why the archiver could not go on: the settings, an archive that is ahead of the log or belongs to
/// another one, a file that is not what its name says. A store or a log that is away is no reason: the archiver waits for them.
pub fn check(settings: &Settings, prefix: &str, bus: &dyn Bus) -> Result<(), Error> {
    settings.check().map_err(Error::Settings)?;
    match confront(&Archive::open(&settings.location)?, prefix, bus, &Timer::machine()) {
        Err(Error::Lake(error)) if error.is_transient() => {
            tracing::debug!(%error, "the archive cannot be looked at yet");
            Ok(())
        }
        other => other,
    }
}

/// Compares where the archive ends with where the log does, and its newest rows with the log's records.
pub(crate) fn confront(archive: &Archive, prefix: &str, bus: &dyn Bus, timer: &Timer) -> Result<(), Error> {
    let listing = archive.files()?;
    let newest = archive.newest(&listing)?;
    let specs = bus.topics(prefix)?;
    let mut sought = BTreeMap::new();
    for ((topic, partition), (_, last)) in listing.partitions() {
        let name = format!("{prefix}{topic}");
        let known = specs.iter().any(|spec| *spec.name == name && partition < spec.partitions);
        let at = TopicPartition::new(name, partition);
        // A log without the topic or the partition ends before its first record.
        let marks = if known { bus.watermarks(&at)? } else { Watermarks { low: 0, high: 0 } };
        behind(archive, topic, partition, last, marks)?;
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
            return Err(Error::Another { place, topic, partition: at.partition, offset, archived, logged });
        }
    }
    Ok(())
}

/// An error where the archive's last offset of a partition is none that the log has given away.
pub(crate) fn behind(archive: &Archive, topic: Topic, partition: i32, archived: i64, marks: Watermarks) -> Result<(), Error> {
    if archived < marks.high {
        return Ok(());
    }
    Err(Error::Ahead { place: archive.place().to_owned(), topic, partition, archived, high: marks.high })
}

/// When the log appended the records at these offsets; those that it has no more are left out.
fn look_up(
    bus: &dyn Bus,
    sought: &BTreeMap<TopicPartition, (Topic, i64, EventTime)>,
    timer: &Timer,
) -> Result<BTreeMap<TopicPartition, EventTime>, BusError> {
    let from: Vec<_> = sought.iter().map(|(at, (_, offset, _))| (at.clone(), Start::At(*offset))).collect();
    let mut found = BTreeMap::new();
    if from.is_empty() {
        return Ok(found);
    }
    let mut reader = bus.reader(&from, Isolation::ReadCommitted)?;
    let (mut open, mut polled, until) = (sought.clone(), Vec::new(), timer.now() + PATIENCE);
    while !open.is_empty() && timer.now() < until {
        reader.poll(256, Duration::from_millis(100), &mut polled)?;
        for item in polled.drain(..) {
            let at = match &item {
                Polled::Record(record) => &record.at,
                Polled::End { at, .. } => at,
                Polled::Batch(_) | Polled::Assigned(_) | Polled::Revoked(_) | Polled::Lost(_) => continue,
            };
            // The first that comes of a partition decides; the rest of it is of no interest.
            let Some((_, offset, _)) = open.remove(at) else { continue };
            reader.pause(std::slice::from_ref(at))?;
            if let Polled::Record(record) = &item
                && record.offset == offset
            {
                found.insert(record.at.clone(), record.stamp);
            }
        }
    }
    Ok(found)
}
