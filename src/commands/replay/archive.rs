//! An archive: each partition of a topic is read by a thread of its own.

use std::cell::RefCell;

use anyhow::Context;
use eadt_lake::{Archive, ArchiveListing, StoredRow, StoredRows};
use eadt_processor::offline::{RawRecord, ReplayRecord};
use eadt_schemas::Topic;
use eadt_schemas::envelope::header;
use eadt_schemas::v1::dead_letter_header;
use eadt_service::tasks::REPLAY_READER;

use super::batches::{BatchReceiver, BatchSender};
use super::check::{OutputHeaders, ProcessorOutputs};
use super::log;

/// Records handed over at once.
const BATCH: usize = 256;

/// The rows of one partition, in the order of their offsets.
pub fn read<'a>(
    archive: &Archive,
    listing: &ArchiveListing,
    topic: Topic,
    partition: i32,
    check: bool,
    own: &'a RefCell<ProcessorOutputs>,
) -> anyhow::Result<BatchReceiver<'a>> {
    let (lanes, batches) = BatchReceiver::new(format!("{topic}-{partition} of {}", archive.place()), 1, own);
    for lane in lanes {
        let rows = archive.stored(listing, topic, partition);
        REPLAY_READER.thread(move || decode(rows, &lane, check))?;
    }
    Ok(batches)
}

/// Returns the settings that the record was made by, from the first of its windows that records them. A record whose windows do
/// not was made by a release that did not write them.
pub fn settings(archive: &Archive, listing: &ArchiveListing) -> anyhow::Result<Option<String>> {
    let mut any = false;
    for (topic, partition) in listing.partitions().into_keys().filter(|(topic, _)| *topic == Topic::EfficiencyWindows) {
        for row in archive.rows(listing, topic, partition) {
            any = true;
            if let Some(settings) = row?.header(header::SETTINGS) {
                return Ok(Some(settings.to_owned()));
            }
        }
    }
    Ok(any.then(|| log::UNNAMED.to_owned()))
}

/// The record's own outputs, by partition and offset.
pub fn read_own(archive: &Archive, listing: &ArchiveListing, own: &mut ProcessorOutputs) -> anyhow::Result<()> {
    for (topic, partition) in listing.partitions().into_keys().filter(|(topic, _)| ProcessorOutputs::TOPICS.contains(topic)) {
        for row in archive.rows(listing, topic, partition) {
            let row = row?;
            if row.kind() == Some(topic.event_type()) {
                let headers = OutputHeaders {
                    positions: row.header(header::INPUT_POSITIONS),
                    reason: row.header(dead_letter_header::REASON),
                    settings: row.header(header::SETTINGS),
                };
                own.read(Some(topic), row.value.as_deref(), headers)
                    .with_context(|| format!("{topic} partition {partition} offset {} of {}", row.offset, archive.place()))?;
            }
        }
    }
    Ok(())
}

fn decode(mut rows: StoredRows, lane: &BatchSender, check: bool) {
    let mut batch = lane.batch();
    while let Some(stored) = rows.next() {
        let good = stored.and_then(|stored| {
            if check {
                let key = stored.key().unwrap_or_default();
                batch.own.pass(stored.topic(), key, Some(stored.partition()), Some(stored.offset()));
            }
            if read_columns(batch.slot(), &stored) { Ok(()) } else { build(batch.slot(), &rows, &stored) }
        });
        match good {
            Ok(()) => batch.keep(),
            Err(error) => {
                batch.error = Some(error.into());
                break;
            }
        }
        if batch.len() == BATCH && !lane.send(std::mem::replace(&mut batch, lane.batch())) {
            return;
        }
    }
    batch.last = true;
    // Nobody waits for it where the replay has failed.
    lane.send(batch);
}

/// The events that there are many of, straight from their columns. False: the row has to be built.
fn read_columns(fed: &mut ReplayRecord, stored: &StoredRow) -> bool {
    let raw = RawRecord {
        topic: stored.topic(),
        kind: None,
        key: stored.key().unwrap_or_default(),
        value: None,
        stamp: stored.stamp(),
    };
    let (partition, offset) = (stored.partition(), stored.offset());
    match raw.topic {
        Topic::GpuTelemetry => fed.refill_telemetry(raw, partition, offset, |event| stored.telemetry(event)),
        Topic::TrainingProgress => fed.refill_progress(raw, partition, offset, |event| stored.progress(event)),
        _ => false,
    }
}

fn build(fed: &mut ReplayRecord, rows: &StoredRows, stored: &StoredRow) -> eadt_lake::Result<()> {
    let row = rows.row(stored)?;
    let raw = RawRecord {
        topic: row.topic,
        kind: row.header(header::TYPE),
        key: row.key.as_deref().unwrap_or_default(),
        value: row.value.as_deref(),
        stamp: row.stamp,
    };
    fed.refill(raw, Some(row.partition), Some(row.offset));
    Ok(())
}
