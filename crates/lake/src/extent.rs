//! What an archive once held of a partition, kept beside its files: without it nobody would miss the first or the last of them.

use std::collections::BTreeMap;

use eadt_schemas::Topic;
use serde::{Deserialize, Serialize};

use crate::archive::{Archive, Listing};
use crate::error::{LakeError, Result};
use crate::layout::FileName;

/// The offsets of a partition for which files were written: from `first` to the one before `next`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Extent {
    first: i64,
    next: i64,
}

const NAME: &str = "_archived+";
const SUFFIX: &str = ".json";

/// The record's path, relative to the archive. Programs that read Parquet pass over names that begin with `_`.
pub(crate) fn path(topic: Topic, partition: i32) -> String {
    format!("topic={topic}/{NAME}{partition}{SUFFIX}")
}

/// Whether a file is a record of some partition.
pub(crate) fn is_record(path: &str) -> bool {
    path.rsplit('/').next().is_some_and(|name| name.starts_with(NAME) && name.ends_with(SUFFIX))
}

fn parse(path: &str) -> Option<(Topic, i32)> {
    let (folder, name) = path.split_once('/')?;
    let topic = Topic::from_base_name(folder.strip_prefix("topic=")?)?;
    let partition = name.strip_prefix(NAME)?.strip_suffix(SUFFIX)?.parse().ok()?;
    Some((topic, partition))
}

impl Archive {
    /// Records that a file of this name was written and is durable.
    pub(crate) fn extend(&self, name: &FileName) -> Result<()> {
        let path = path(name.topic, name.partition);
        let before = match self.extent(&path)? {
            Some(before) => Some(before),
            // An archive of a version before these records, or one whose record was deleted.
            None => self
                .files()?
                .partitions()
                .get(&(name.topic, name.partition))
                .map(|(first, last)| Extent { first: *first, next: last + 1 }),
        };
        let after = Extent {
            first: before.map_or(name.first, |before| before.first.min(name.first)),
            next: before.map_or(0, |before| before.next).max(name.last + 1),
        };
        let text = serde_json::json!(after).to_string() + "\n";
        self.store.replace(&path, text.into()).map_err(|source| self.failed("write", &path, source))
    }

    fn extent(&self, path: &str) -> Result<Option<Extent>> {
        let input = match self.store.read(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            other => other.map_err(|source| self.failed("read", path, source))?,
        };
        let text = input.whole().map_err(|source| self.failed("read", path, source))?;
        let extent = serde_json::from_slice(&text)
            .map_err(|error| LakeError::Record { path: self.full(path), detail: error.to_string() })?;
        Ok(Some(extent))
    }

    /// Adds to a listing what is missing at the ends of partitions, by these records.
    pub(crate) fn compare_with_records(&self, records: &[String], listing: &mut Listing) -> Result<()> {
        let there: BTreeMap<(Topic, i32), (i64, i64)> = listing.partitions();
        for path in records {
            let Some((topic, partition)) = parse(path) else { continue };
            // Deleted in between: nothing is known then.
            let Some(Extent { first, next }) = self.extent(path)? else { continue };
            let Some((oldest, newest)) = there.get(&(topic, partition)).copied() else {
                listing.lost.push((topic, partition, first, next - 1));
                continue;
            };
            if oldest > first {
                listing.lost.push((topic, partition, first, oldest - 1));
            }
            if newest + 1 < next {
                listing.lost.push((topic, partition, newest + 1, next - 1));
            }
        }
        Ok(())
    }
}
