//! An archive: the events of each partition of a topic, from their columns.

use anyhow::Context;
use eadt_lake::{Archive, ArchiveListing, EventRow, StoredRow, StoredRun, StoredRuns};
use eadt_processor::offline::{RawRecord, RecordBatch, ReplayError, ReplayRecord, ReplaySource};
use eadt_schemas::Topic;
use eadt_schemas::envelope::header;
use eadt_schemas::v1::dead_letter_header;

use super::batches::{SharedOutputs, carry};
use super::check::{OutputHeaders, ProcessorOutputs};
use super::log;

/// Records that are read at once: few enough to be in the cache still when they are folded.
const BATCH: usize = 256;

/// The rows of one partition, in the order of their offsets.
pub struct ArchiveSource {
    rows: StoredRuns,
    topic: Topic,
    partition: i32,
    /// Outputs in which the positions of inputs are noted, if they are compared.
    own: Option<SharedOutputs>,
}

impl ArchiveSource {
    pub fn new(archive: &Archive, listing: &ArchiveListing, topic: Topic, partition: i32, own: Option<SharedOutputs>) -> Self {
        Self { rows: archive.stored_runs(listing, topic, partition), topic, partition, own }
    }

    /// Reads the rows of a run: the events that there are many of straight from their columns, all others built first.
    fn read_run(&self, run: &StoredRun, batch: &mut RecordBatch) -> eadt_lake::Result<()> {
        let is_read = match self.topic {
            Topic::GpuTelemetry => run.telemetry(&mut batch.telemetry(run.len())),
            Topic::TrainingProgress => run.progress(&mut batch.progress(run.len())),
            _ => vec![false; run.len()],
        };
        for (stored, is_read) in run.rows().zip(is_read) {
            if is_read {
                let (topic, key, stamp) = (self.topic, stored.key().unwrap_or_default(), stored.stamp());
                // A mark of the record would be in a header beside the columns.
                let raw = RawRecord { topic, kind: None, key, value: None, stamp, is_sent_again: false };
                batch.slot().set_position(raw, Some(self.partition), Some(stored.offset()));
            } else {
                build(batch.slot(), &self.rows, &stored)?;
            }
            batch.keep();
        }
        if let Some(own) = self.own.as_ref().filter(|_| ProcessorOutputs::is_table(self.topic)) {
            let mut own = own.lock();
            for stored in run.rows() {
                own.pass(self.topic, stored.key().unwrap_or_default(), Some(self.partition), Some(stored.offset()));
            }
        }
        Ok(())
    }
}

impl ReplaySource for ArchiveSource {
    fn partition(&self) -> Option<i32> {
        Some(self.partition)
    }

    fn read(&mut self, batch: &mut RecordBatch) -> Result<bool, ReplayError> {
        batch.clear();
        while batch.len() < BATCH {
            let Some(run) = self.rows.next_run(BATCH - batch.len()) else { break };
            run.and_then(|run| self.read_run(&run, batch)).map_err(|error| carry(error.into()))?;
        }
        Ok(!batch.is_empty())
    }
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

/// Reads the record's own outputs, by partition and offset.
pub fn read_own(archive: &Archive, listing: &ArchiveListing, own: &mut ProcessorOutputs) -> anyhow::Result<()> {
    for (topic, partition) in listing.partitions().into_keys().filter(|(topic, _)| ProcessorOutputs::TOPICS.contains(topic)) {
        let mut rows = archive.rows(listing, topic, partition);
        while let Some(row) = rows.next_event() {
            let located = |offset: i64| format!("{topic} partition {partition} offset {offset} of {}", archive.place());
            let row = match row? {
                EventRow::Row(row) => row,
                EventRow::Refused(offset, refusal) => return Err(refusal).with_context(|| located(offset)),
            };
            if let Some(kind) = row.foreign_type() {
                own.pass_over(kind);
            }
            if row.kind() == Some(topic.event_type()) {
                let headers = OutputHeaders {
                    positions: row.header(header::INPUT_POSITIONS),
                    reason: row.header(dead_letter_header::REASON),
                    settings: row.header(header::SETTINGS),
                };
                own.read(Some(topic), row.value.as_deref(), headers).with_context(|| located(row.offset))?;
            }
        }
    }
    Ok(())
}

fn build(fed: &mut ReplayRecord, rows: &StoredRuns, stored: &StoredRow) -> eadt_lake::Result<()> {
    let row = rows.row(stored)?;
    let raw = RawRecord {
        topic: row.topic,
        kind: row.header(header::TYPE),
        key: row.key.as_deref().unwrap_or_default(),
        value: row.value.as_deref(),
        stamp: row.stamp,
        is_sent_again: row.header(header::SENT_AGAIN).is_some(),
    };
    fed.refill(raw, Some(row.partition), Some(row.offset));
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;
    use eadt_lake::{ArchiveRow, ArchiveWriter, RollLimits};
    use eadt_schemas::EventTime;

    use super::*;

    #[test]
    fn records_of_other_types_among_the_outputs_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        let archive = Archive::folder(folder.path()).unwrap();
        let mut writer = ArchiveWriter::new(archive.clone(), RollLimits::default());
        for offset in 0..3 {
            let row = ArchiveRow {
                topic: Topic::EfficiencyWindows,
                partition: 0,
                offset,
                stamp: EventTime::from_millis(offset),
                key: None,
                value: Some(Bytes::from_static(b"{\"watts\":1}")),
                headers: vec![(Arc::from(header::TYPE), Bytes::from_static(b"com.example.row"))],
            };
            writer.push(&row, row.stamp).unwrap();
        }
        writer.roll_all().unwrap();
        let mut own = ProcessorOutputs::default();
        read_own(&archive, &archive.files().unwrap(), &mut own).unwrap();
        assert_eq!((own.passed_over, own.windows.len()), ([("com.example.row".to_owned(), 3)].into(), 0));
    }
}
