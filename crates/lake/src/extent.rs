//! Records the offsets that an archive once held of a partition, apart from its files. Without them a missing first or last
//! file, or a missing folder of a topic, would go unnoticed.
//!
//! The record is the name of an empty file, `_archived/TOPIC+PARTITION+FIRST-LAST`, so that a listing shows it. A wider range
//! is written before the narrower one is deleted; if both are there, both count. Earlier versions wrote
//! `topic=TOPIC/_archived+PARTITION+FIRST-LAST`, which counts too, until a wider one is written.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use eadt_schemas::Topic;

use crate::archive::{Archive, ArchiveListing};
use crate::error::Result;
use crate::identity::recorded_id;
use crate::layout::ArchiveFileName;
use crate::writer_group::is_group_record;

/// The offsets of a partition for which files were written, inclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PartitionExtent {
    topic: Topic,
    partition: i32,
    first: i64,
    last: i64,
}

/// The range that this process recorded last, by partition.
pub(crate) type PartitionExtents = Arc<Mutex<BTreeMap<(Topic, i32), PartitionExtent>>>;

/// The folder of the records. Programs that read Parquet pass over names that begin with `_`.
pub(crate) const EXTENTS_FOLDER: &str = "_archived";

/// Returns whether a folder of this name at the top of an archive is one of the archive's.
pub fn is_archive_folder(name: &str) -> bool {
    name == EXTENTS_FOLDER || name.starts_with("topic=")
}

/// Returns the name of a record in the folder of the records; `None` if the path is of another file.
pub(crate) fn record_name(path: &str) -> Option<&str> {
    path.strip_prefix(EXTENTS_FOLDER)?.strip_prefix('/')
}

/// Returns whether a file is a record of some partition, of the archive's id, or of its writers' group.
pub(crate) fn is_record(path: &str) -> bool {
    PartitionExtent::parse(path).is_some() || recorded_id(path).is_some() || is_group_record(path)
}

impl PartitionExtent {
    fn path(&self) -> String {
        let Self { topic, partition, first, last } = self;
        format!("{EXTENTS_FOLDER}/{topic}+{partition}+{first:020}-{last:020}")
    }

    pub(crate) fn parse(path: &str) -> Option<Self> {
        let (folder, name) = path.split_once('/')?;
        let (start, name) = name.split_once('+')?;
        let topic =
            if folder == EXTENTS_FOLDER { start } else { folder.strip_prefix("topic=").filter(|_| start == EXTENTS_FOLDER)? };
        let (partition, range) = name.split_once('+')?;
        let (first, last) = range.split_once('-')?;
        let topic = Topic::from_base_name(topic)?;
        Some(Self { topic, partition: partition.parse().ok()?, first: first.parse().ok()?, last: last.parse().ok()? })
    }

    fn of(name: &ArchiveFileName) -> Self {
        Self { topic: name.topic, partition: name.partition, first: name.first, last: name.last }
    }

    fn with(self, other: Self) -> Self {
        Self { first: self.first.min(other.first), last: self.last.max(other.last), ..self }
    }
}

impl Archive {
    /// Records that a file of this name was written and is durable.
    pub(crate) fn extend(&self, name: &ArchiveFileName) -> Result<()> {
        let at = (name.topic, name.partition);
        let mut known = self.extents.lock().unwrap_or_else(PoisonError::into_inner);
        // If old files were deleted on purpose, the record was deleted, too.
        let still = known.get(&at).copied().filter(|extent| self.store.read(&extent.path()).is_ok());
        let (before, widest) = match still {
            Some(extent) => (vec![extent.path()], Some(extent)),
            None => self.recorded(at)?,
        };
        let after = widest.map_or_else(|| PartitionExtent::of(name), |extent| extent.with(PartitionExtent::of(name)));
        let path = after.path();
        self.create_record(&path)?;
        for old in before.iter().filter(|old| **old != path) {
            self.store.delete(old).map_err(|source| self.failed("delete", old, source))?;
        }
        known.insert(at, after);
        Ok(())
    }

    /// Records the range of the files of each partition that has no record, and the id of the files if there is no record of
    /// one. Returns the number of these partitions. It assumes that no file is missing.
    pub fn record_missing_extents(&self) -> Result<usize> {
        let listing = self.files()?;
        self.newest(&listing)?;
        self.record_missing_id()?;
        for at in &listing.unrecorded {
            if let Some(file) = listing.files.iter().find(|file| (file.name.topic, file.name.partition) == *at) {
                self.extend(&file.name)?;
            }
        }
        Ok(listing.unrecorded.len())
    }

    /// Writes an empty file, whose name is the record.
    pub(crate) fn create_record(&self, path: &str) -> Result<()> {
        self.store.create(path, Bytes::new()).map_err(|source| self.failed("write", path, source))
    }

    /// Returns the paths of a partition's records, several if a process was killed between two steps, and the range that they
    /// cover together. Without a record, as in an archive of an earlier version, the range comes from its files.
    fn recorded(&self, (topic, partition): (Topic, i32)) -> Result<(Vec<String>, Option<PartitionExtent>)> {
        let found = self.list_stored()?;
        let mine = |extent: &PartitionExtent| (extent.topic, extent.partition) == (topic, partition);
        let records = found.iter().filter_map(|file| Some((&file.path, PartitionExtent::parse(&file.path).filter(mine)?)));
        let (paths, records): (Vec<String>, Vec<PartitionExtent>) = records.map(|(path, extent)| (path.clone(), extent)).unzip();
        let files =
            found.iter().filter_map(|file| ArchiveFileName::parse(&file.path).ok()).map(|name| PartitionExtent::of(&name));
        let widest =
            records.into_iter().reduce(PartitionExtent::with).or_else(|| files.filter(mine).reduce(PartitionExtent::with));
        Ok((paths, widest))
    }
}

impl ArchiveListing {
    /// Adds gaps at the ends of partitions, by the records.
    pub(crate) fn compare_with(&mut self, records: impl Iterator<Item = PartitionExtent>) {
        let mut extents: BTreeMap<(Topic, i32), PartitionExtent> = BTreeMap::new();
        for record in records {
            extents.entry((record.topic, record.partition)).and_modify(|extent| *extent = extent.with(record)).or_insert(record);
        }
        let there = self.partitions();
        self.unrecorded = there.keys().filter(|at| !extents.contains_key(*at)).copied().collect();
        for ((topic, partition), PartitionExtent { first, last, .. }) in extents {
            let Some((oldest, newest)) = there.get(&(topic, partition)).copied() else {
                self.lost.push((topic, partition, first, last));
                continue;
            };
            if oldest > first {
                self.lost.push((topic, partition, first, oldest - 1));
            }
            if newest < last {
                self.lost.push((topic, partition, newest + 1, last));
            }
        }
    }
}
