//! Checks the archive that a reader may find at any time.

use std::collections::{BTreeMap, BTreeSet};

use eadt_bus::TopicPartition;
use eadt_bus::simulation::{PARTITIONS, SimLog, place};
use eadt_lake::{Archive, ArchiveFile, ArchiveListing, ArchiveRow};

use super::TOPICS;

/// Findings so far.
#[derive(Debug, Default)]
pub struct Seen {
    /// Files whose rows were compared with the log, with their sizes: no two of a name have the same content but by being the same.
    read: BTreeSet<(String, u64)>,
    /// End of the files of each partition.
    next: BTreeMap<TopicPartition, i64>,
}

impl Seen {
    /// Checks that the visible files are the beginning of the log, with each offset once, and that no more was reported as
    /// archived.
    pub fn look(&mut self, archive: &Archive, log: &SimLog, committed: &BTreeMap<TopicPartition, i64>) -> Result<(), String> {
        let listing = archive.files().map_err(|error| error.to_string())?;
        if !listing.gaps.is_empty() || !listing.superseded.is_empty() {
            return Err(format!("gaps {:?}, superseded {:?}", listing.gaps, listing.superseded));
        }
        self.next =
            listing.partitions().into_iter().map(|((topic, number), (_, last))| (place(topic, number), last + 1)).collect();
        if let Some((at, (first, _))) = listing.partitions().into_iter().find(|(_, (first, _))| *first != 0) {
            return Err(format!("{at:?} begins at {first}"));
        }
        for file in &listing.files {
            if self.read.insert((file.name.path(), file.bytes)) {
                compare(archive, log, file)?;
            }
        }
        for (at, position) in committed {
            let next = self.next.get(at).copied().unwrap_or(0);
            if *position > next {
                return Err(format!("{at}: committed is {position}, the files end before {next}"));
            }
        }
        Ok(())
    }

    /// Returns whether every record of the log is in a file.
    pub fn has_all(&self, log: &SimLog) -> bool {
        let places = TOPICS.iter().flat_map(|topic| (0..PARTITIONS).map(|partition| place(*topic, partition)));
        places.into_iter().all(|at| log.from(&at, self.next.get(&at).copied().unwrap_or(0)).iter().all(Option::is_none))
    }
}

/// A file's rows are the log's records at its offsets, all of its date.
fn compare(archive: &Archive, log: &SimLog, file: &ArchiveFile) -> Result<(), String> {
    let name = &file.name;
    let only = ArchiveListing { files: vec![file.clone()], ..ArchiveListing::default() };
    let rows: Vec<ArchiveRow> =
        archive.rows(&only, name.topic, name.partition).collect::<Result<_, _>>().map_err(|error| error.to_string())?;
    let at = place(name.topic, name.partition);
    let range = log.from(&at, name.first);
    let length = (name.last - name.first + 1) as usize;
    let Some(range) = range.get(..length) else { return Err(format!("{} is ahead of the log", name.path())) };
    let records: Vec<ArchiveRow> = range
        .iter()
        .flatten()
        .map(|record| ArchiveRow {
            topic: name.topic,
            partition: name.partition,
            offset: record.offset,
            stamp: record.stamp,
            key: record.key.clone(),
            value: record.value.clone(),
            headers: record.headers.to_vec(),
        })
        .collect();
    if let Some((row, record)) = rows.iter().zip(&records).find(|(row, record)| row != record) {
        return Err(format!("{} has {row:?} instead of {record:?}", name.path()));
    }
    if rows.len() != records.len() {
        return Err(format!("{} has {} rows instead of {}", name.path(), rows.len(), records.len()));
    }
    match rows.iter().find(|row| row.stamp.date() != name.date) {
        Some(row) => Err(format!("{} has a row of {}", name.path(), row.stamp.date())),
        None => Ok(()),
    }
}
