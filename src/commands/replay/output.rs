//! Windows and decisions as an archive.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use bytes::Bytes;
use eadt_lake::{Archive, ArchiveRow, ArchiveWriter, RollLimits, is_archive_folder};
use eadt_processor::offline::ReplayOutput;
use eadt_schemas::{Envelope, EventTime, EventType, Topic};

use crate::atomic_file::{check_folder, create_folder};

/// Memory of a file before it is written. What one partition's file holds must not depend on how much the others' do.
const FILE_BYTES: usize = 16 << 20;

/// Windows and decisions in the archive's layout; offsets count from 0 in each partition.
///
/// The order in which partitions take turns is not known from their events: a log has another order than an archive of
/// the same events. So nothing that is written for one partition depends on another.
pub struct ReplayWriter {
    path: PathBuf,
    inputs: Vec<PathBuf>,
    forced: bool,
    /// Opened with the first window or decision, so that a record without any leaves things as they are.
    writer: Option<ArchiveWriter>,
    /// Next offset and greatest event time so far, by partition: the stamps of this output never fall.
    next: BTreeMap<(Topic, i32), (i64, EventTime)>,
}

impl ReplayWriter {
    /// Creates the output. `inputs` are the logs and archives that are read.
    pub fn create(path: &Path, inputs: &[PathBuf], forced: bool) -> anyhow::Result<Self> {
        check_folder(path, inputs, forced, is_archive_folder)?;
        Ok(Self { path: path.to_owned(), inputs: inputs.to_vec(), forced, writer: None, next: BTreeMap::new() })
    }

    fn open(&mut self) -> anyhow::Result<&mut ArchiveWriter> {
        if self.writer.is_none() {
            create_folder(&self.path, &self.inputs, self.forced, is_archive_folder)?;
            let limits = RollLimits { bytes: FILE_BYTES, total_bytes: usize::MAX, age_micros: i64::MAX, ..RollLimits::default() };
            self.writer = Some(ArchiveWriter::new(Archive::folder(&self.path)?, limits));
        }
        self.writer.as_mut().context("the output is not open")
    }

    pub fn write(&mut self, partition: i32, replayed: &ReplayOutput) -> anyhow::Result<()> {
        let (topic, key, value, envelope) = match replayed {
            ReplayOutput::Window(window) => (
                Topic::EfficiencyWindows,
                &window.workload,
                serde_json::to_vec(window)?,
                envelope(&window.id, EventType::EfficiencyWindow, window.window_end, &window.workload),
            ),
            ReplayOutput::Decision(decision) => (
                Topic::Decisions,
                &decision.workload,
                serde_json::to_vec(decision)?,
                envelope(&decision.id, EventType::Decision, decision.time, &decision.workload),
            ),
            ReplayOutput::Refused { .. } | ReplayOutput::OpenAtEnd(_) => return Ok(()),
        };
        let (offset, stamp) = self.next.entry((topic, partition)).or_insert((0, EventTime::MIN));
        *stamp = envelope.time.max(*stamp);
        let row = ArchiveRow {
            topic,
            partition,
            offset: *offset,
            stamp: *stamp,
            key: Some(Bytes::copy_from_slice(key.as_bytes())),
            value: Some(value.into()),
            headers: envelope.headers().into_iter().map(|(name, value)| (Arc::from(name), Bytes::from(value))).collect(),
        };
        *offset += 1;
        let writer = self.open()?;
        writer.push(&row, row.stamp)?;
        while let Some((topic, partition)) = writer.due(row.stamp) {
            writer.roll(topic, partition)?;
        }
        Ok(())
    }

    pub fn finish(self) -> anyhow::Result<()> {
        if let Some(mut writer) = self.writer {
            writer.roll_all()?;
        }
        Ok(())
    }
}

fn envelope(id: &str, kind: EventType, time: EventTime, subject: &str) -> Envelope {
    Envelope { id: id.to_owned(), source: "/processor".to_owned(), kind, time, subject: subject.to_owned() }
}

#[cfg(test)]
mod tests {
    use eadt_schemas::v1::EfficiencyWindow;

    use super::*;

    const HOUR: i64 = 3_600_000_000;

    fn window(partition: i32, hour: i64) -> (i32, ReplayOutput) {
        let window_end = EventTime::from_micros(1_700_000_000_000_000 + hour * HOUR);
        let window = EfficiencyWindow {
            id: format!("team/job-{partition}/{hour}"),
            workload: format!("team/job-{partition}"),
            window_start: window_end.plus_micros(-HOUR),
            window_end,
            ..EfficiencyWindow::default()
        };
        (partition, ReplayOutput::Window(Box::new(window)))
    }

    /// Paths below the folder and their bytes.
    fn files(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut folders = vec![root.to_owned()];
        let mut files = BTreeMap::new();
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else {
                    files.insert(path.strip_prefix(root).unwrap().to_owned(), std::fs::read(&path).unwrap());
                }
            }
        }
        files
    }

    /// One partition is hours ahead of the other in one order, and beside it in the other.
    #[test]
    fn how_partitions_take_turns_does_not_show() {
        let dir = tempfile::tempdir().unwrap();
        let of = |partition: i32| (0..30).map(move |hour| window(partition, hour));
        let one_after_the_other: Vec<_> = of(1).chain(of(0)).collect();
        let mut by_turns: Vec<_> = of(0).zip(of(1)).flat_map(|(a, b)| [a, b]).collect();
        // A window that closes late is behind a later one in both.
        by_turns.push(window(1, 2));
        let mut one_after_the_other = one_after_the_other;
        one_after_the_other.insert(30, window(1, 2));
        let written = [("a", one_after_the_other), ("b", by_turns)].map(|(name, outputs)| {
            let root = dir.path().join(name);
            let mut output = ReplayWriter::create(&root, &[], false).unwrap();
            for (partition, replayed) in outputs {
                output.write(partition, &replayed).unwrap();
            }
            output.finish().unwrap();
            files(&root)
        });
        assert!(written[0].len() >= 4, "{:?}", written[0].keys());
        assert!(written[0] == written[1], "{:?} and {:?}", written[0].keys(), written[1].keys());
    }

    #[test]
    fn an_output_that_is_replaced_leaves_nothing_behind_that_anybody_could_miss() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("out");
        for partitions in [0..2, 0..1] {
            let mut output = ReplayWriter::create(&root, &[], true).unwrap();
            for partition in partitions {
                let (partition, replayed) = window(partition, 0);
                output.write(partition, &replayed).unwrap();
            }
            output.finish().unwrap();
        }
        let listing = Archive::folder(&root).unwrap().files().unwrap();
        assert_eq!((listing.files.len(), listing.missing().count()), (1, 0));
    }
}
