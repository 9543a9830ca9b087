//! Windows and decisions as an archive.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use bytes::Bytes;
use eadt_lake::{Archive, ArchiveRow, ArchiveWriter, RollLimits, is_archive_folder};
use eadt_processor::offline::ReplayOutput;
use eadt_schemas::fnv::Fnv1a;
use eadt_schemas::{Envelope, EventTime, EventType, Topic};

use crate::atomic_file::{check_folder, create_folder};

/// Memory of a file before it is written. What one partition's file holds must not depend on how much the others' do.
const FILE_BYTES: usize = 16 << 20;

/// Windows and decisions in the archive's layout; offsets count from 0 in each partition.
///
/// The order in which partitions take turns is not known from their events: a log has another order than an archive of
/// the same events. So nothing that is written for one partition depends on another, but for the id of the output, which all of its
/// rows determine: equal outputs have the same, and files of two others cannot be mixed.
pub struct ReplayWriter {
    path: PathBuf,
    inputs: Vec<PathBuf>,
    forced: bool,
    /// Opened with the first window or decision, so that a record without any leaves things as they are.
    writer: Option<ArchiveWriter>,
    /// Next offset and greatest event time so far, by partition: the stamps of this output never fall.
    next: BTreeMap<(Topic, i32), (i64, EventTime)>,
    /// Sums of the rows so far, by partition.
    sums: BTreeMap<(Topic, i32), Fnv1a>,
}

impl ReplayWriter {
    /// Creates the output. `inputs` are the logs and archives that are read.
    pub fn create(path: &Path, inputs: &[PathBuf], forced: bool) -> anyhow::Result<Self> {
        check_folder(path, inputs, forced, is_archive_folder)?;
        Ok(Self {
            path: path.to_owned(),
            inputs: inputs.to_vec(),
            forced,
            writer: None,
            next: BTreeMap::new(),
            sums: BTreeMap::new(),
        })
    }

    fn open(&mut self) -> anyhow::Result<&mut ArchiveWriter> {
        if self.writer.is_none() {
            create_folder(&self.path, &self.inputs, self.forced, is_archive_folder)?;
            let limits = RollLimits { bytes: FILE_BYTES, total_bytes: usize::MAX, age_micros: i64::MAX, ..RollLimits::default() };
            // The id of an output that is not finished.
            let archive = Archive::folder(&self.path)?.with_new_id(self.id());
            self.writer = Some(ArchiveWriter::new(archive, limits));
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
            ReplayOutput::Refused { .. } | ReplayOutput::UnclosedWindows(_) => return Ok(()),
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
        let sum = self.sums.entry((topic, partition)).or_default();
        for bytes in [&row.key, &row.value].into_iter().flatten() {
            sum.write(&bytes.len().to_le_bytes());
            sum.write(bytes);
        }
        let writer = self.open()?;
        writer.push(&row, row.stamp)?;
        while let Some((topic, partition)) = writer.due(row.stamp) {
            writer.roll(topic, partition)?;
        }
        Ok(())
    }

    /// Returns the id of the rows so far.
    fn id(&self) -> u128 {
        let mut id = Fnv1a::default();
        for ((topic, partition), sum) in &self.sums {
            id.write(topic.base_name().as_bytes());
            id.write(&partition.to_le_bytes());
            id.write(&sum.finish().to_le_bytes());
        }
        id.finish().into()
    }

    pub fn finish(self) -> anyhow::Result<()> {
        let id = self.id();
        if let Some(mut writer) = self.writer {
            writer.archive().set_id(id)?;
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

    /// Writes an output of two partitions with so many joules in each window, and returns its folder.
    fn output_of(dir: &Path, name: &str, joules: f64) -> PathBuf {
        let root = dir.join(name);
        let mut output = ReplayWriter::create(&root, &[], false).unwrap();
        for (partition, hour) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let (partition, mut replayed) = window(partition, hour);
            if let ReplayOutput::Window(window) = &mut replayed {
                window.energy_joules = Some(joules);
            }
            output.write(partition, &replayed).unwrap();
        }
        output.finish().unwrap();
        root
    }

    #[test]
    fn files_of_two_outputs_are_not_mixed() {
        let dir = tempfile::tempdir().unwrap();
        let read = |root: &Path| {
            let archive = Archive::folder(root).unwrap();
            eadt_lake::read_events::<EfficiencyWindow>(&archive, Topic::EfficiencyWindows)
                .map(|read| read.events.len() + read.refused.len())
        };
        let roots = [("a", 1.0), ("b", 2.0), ("c", 1.0)].map(|(name, joules)| output_of(dir.path(), name, joules));
        let [a, b, c] = roots.each_ref().map(|root| files(root));
        assert!(a == c && a != b);
        let path = a.keys().find(|path| path.extension().is_some_and(|ending| ending == "parquet")).unwrap();
        std::fs::copy(roots[2].join(path), roots[0].join(path)).unwrap();
        assert_eq!(read(&roots[0]).unwrap(), 4, "of an equal output");
        std::fs::copy(roots[1].join(path), roots[0].join(path)).unwrap();
        let refused = read(&roots[0]).unwrap_err().to_string();
        assert!(refused.contains(path.to_str().unwrap()) && refused.contains("another archive"), "{refused}");
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
