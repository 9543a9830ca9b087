//! Which files belong to an archive.
//!
//! An archive has a random id, and the output of a replay one that its rows determine. Its files have it in their footers
//! (`eadt.archive`), and an empty file `_archived/id+ID` records it, so that a listing shows it. Several records are several
//! ids of one archive: archivers began it at the same time, or archives were merged with their records. Without a record, the
//! files must agree with each other. A file without an id is of another archive if there is an id. Files of earlier versions
//! have none, and are read as they are.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::archive::Archive;
use crate::checksum;
use crate::error::{LakeError, Result};
use crate::extent::{EXTENTS_FOLDER, record_name};
use crate::layout::ArchiveFileName;

/// Key of the id in the footer of a file.
pub(crate) const KEY: &str = "eadt.archive";
/// Begins the name of a record of an id.
const RECORD: &str = "id+";

/// The archive that a file was written for, by its footer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FileOwner {
    /// The archive with this id.
    Archive(String),
    /// None with an id. The version that wrote the file writes the id of every archive that has one.
    NoArchive,
    /// Not known: an earlier version wrote the file.
    Unknown,
}

/// Undecided ids of an archive, as far as its files were read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IdentityGaps {
    /// Files have an id, and no record has it.
    pub is_unrecorded: bool,
    /// Paths of files of earlier versions, which wrote no id.
    pub unidentified: BTreeSet<String>,
}

/// The ids of an archive, as far as this process has read them.
#[derive(Debug, Default)]
pub(crate) struct ArchiveIds {
    /// Ids of the records, as of the last listing.
    recorded: BTreeSet<String>,
    /// Id and path of the first file with an id that was read while there was no record.
    first: Option<(String, String)>,
    /// Path of the first file that was read that belongs to no archive with an id.
    first_without: Option<String>,
    /// Paths of the files that were read of which the archive is not known.
    unidentified: BTreeSet<String>,
    /// The id of the files that this process writes.
    own: Option<String>,
    /// This process writes files without an id.
    is_anonymous: bool,
}

impl ArchiveIds {
    /// Returns whether the id of a file, or that it has none, is that of the archive as far as it was read.
    fn is_known(&self, id: Option<&str>) -> bool {
        match id {
            Some(id) if self.recorded.is_empty() => self.first.as_ref().is_some_and(|(first, _)| first == id),
            Some(id) => self.recorded.contains(id),
            None => self.recorded.is_empty() && self.first_without.is_some(),
        }
    }

    /// Notes the id of the first file, or that it has none. Returns false if it is not the first.
    fn begin(&mut self, path: &str, id: Option<&str>) -> bool {
        if !self.recorded.is_empty() || self.first.is_some() || self.first_without.is_some() {
            return false;
        }
        match id {
            Some(id) => self.first = Some((id.to_owned(), path.to_owned())),
            None => self.first_without = Some(path.to_owned()),
        }
        true
    }
}

pub(crate) type SharedArchiveIds = Arc<Mutex<ArchiveIds>>;

/// Returns the id that a path records; `None` if it is another file.
pub(crate) fn recorded_id(path: &str) -> Option<&str> {
    let id = record_name(path)?.strip_prefix(RECORD)?;
    (!id.is_empty() && id.bytes().all(|byte| byte.is_ascii_alphanumeric())).then_some(id)
}

/// Returns an id as footers and records have it; all have the same length.
fn format_id(id: u128) -> String {
    format!("{id:032x}")
}

fn record_path(id: &str) -> String {
    format!("{EXTENTS_FOLDER}/{RECORD}{id}")
}

impl Archive {
    /// Sets the id that the archive gets with the next file, if it has none. No other archive may have it: a random one.
    #[must_use]
    pub fn with_new_id(mut self, id: u128) -> Self {
        self.new_id = Some(format_id(id).into());
        self
    }

    fn ids(&self) -> MutexGuard<'_, ArchiveIds> {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the ids that a listing shows.
    pub(crate) fn set_recorded_ids(&self, recorded: BTreeSet<String>) {
        self.ids().recorded = recorded;
    }

    fn list_recorded_ids(&self) -> Result<BTreeSet<String>> {
        let found = self.list_stored()?;
        Ok(found.iter().filter_map(|file| recorded_id(&file.path).map(str::to_owned)).collect())
    }

    /// Returns an error if a file was written for another archive.
    pub(crate) fn check_owner(&self, path: &str, owner: &FileOwner) -> Result<()> {
        let mut ids = self.ids();
        let id = match owner {
            FileOwner::Archive(id) => Some(id.as_str()),
            FileOwner::NoArchive => None,
            FileOwner::Unknown => {
                if !ids.unidentified.contains(path) {
                    ids.unidentified.insert(path.to_owned());
                }
                return Ok(());
            }
        };
        if ids.is_known(id) {
            return Ok(());
        }
        // Another archiver may have recorded its own since the files were listed.
        ids.recorded = self.list_recorded_ids()?;
        if ids.is_known(id) || ids.begin(path, id) {
            return Ok(());
        }
        let own = id.map_or_else(|| "no id".to_owned(), |id| format!("the id {id}"));
        let detail = format!("it has {own}, and {}", self.describe_others(&ids));
        Err(LakeError::OtherArchive { path: self.full(path), detail })
    }

    /// Describes the ids that a file of another archive differs from.
    fn describe_others(&self, ids: &ArchiveIds) -> String {
        if !ids.recorded.is_empty() {
            let recorded: Vec<&str> = ids.recorded.iter().map(String::as_str).collect();
            return format!("this archive has the id {}", recorded.join(" or "));
        }
        match (&ids.first, &ids.first_without) {
            (Some((first, of)), _) => format!("{} has the id {first}", self.full(of)),
            (None, Some(of)) => format!("{} has none", self.full(of)),
            (None, None) => "this archive has another one".to_owned(),
        }
    }

    /// Returns the ids of the archive's records, as of the last listing.
    pub fn recorded_ids(&self) -> BTreeSet<String> {
        self.ids().recorded.clone()
    }

    /// Returns the undecided ids, as of the last listing and the files that were read.
    pub fn identity_gaps(&self) -> IdentityGaps {
        let ids = self.ids();
        let is_unrecorded = ids.recorded.is_empty() && ids.first.is_some();
        IdentityGaps { is_unrecorded, unidentified: ids.unidentified.clone() }
    }

    /// Returns the id of a new file, and records it. Returns `None` if the archive has no id and gets none: it has files of this
    /// version without one, or no new id is set.
    pub(crate) fn id_of_new_file(&self) -> Result<Option<String>> {
        let mut ids = self.ids();
        if ids.is_anonymous && ids.first.is_none() {
            return Ok(None);
        }
        // If old files were deleted on purpose, the records were deleted, too.
        if let Some(own) = ids.own.as_ref().filter(|own| self.store.read(&record_path(own)).is_ok()) {
            return Ok(Some(own.clone()));
        }
        ids.recorded = self.list_recorded_ids()?;
        if ids.recorded.is_empty() {
            let first = ids.first.as_ref().map(|(id, _)| id.as_str());
            let new = self.new_id.as_deref().filter(|_| ids.first_without.is_none());
            let Some(id) = ids.own.as_deref().or(first).or(new).map(str::to_owned) else {
                ids.is_anonymous = true;
                return Ok(None);
            };
            self.create_record(&record_path(&id))?;
            // Several archivers that begin an archive at the same time agree on one of their ids.
            ids.recorded = self.list_recorded_ids()?;
            ids.recorded.insert(id);
        }
        ids.own = ids.recorded.first().cloned();
        Ok(ids.own.clone())
    }

    /// Records the id of the files if there is no record of one. The files must have been read. Returns whether it was missing.
    pub fn record_missing_id(&self) -> Result<bool> {
        let mut ids = self.ids();
        let Some(id) = ids.first.as_ref().filter(|_| ids.recorded.is_empty()).map(|(id, _)| id.clone()) else {
            return Ok(false);
        };
        self.create_record(&record_path(&id))?;
        ids.recorded.insert(id);
        Ok(true)
    }

    /// Gives the archive and each of its files another id: for a writer that can compute the id only when it has all rows. If it
    /// is interrupted, both ids are recorded.
    pub fn set_id(&self, id: u128) -> Result<()> {
        let id = format_id(id);
        let listing = self.files()?;
        self.create_record(&record_path(&id))?;
        for file in &listing.files {
            self.rewrite_id(&file.name, &id)?;
        }
        let mut ids = self.ids();
        for old in ids.recorded.iter().filter(|old| **old != id) {
            let path = record_path(old);
            self.store.delete(&path).map_err(|source| self.failed("delete", &path, source))?;
        }
        *ids = ArchiveIds { recorded: BTreeSet::from([id.clone()]), own: Some(id), ..ArchiveIds::default() };
        Ok(())
    }

    fn rewrite_id(&self, name: &ArchiveFileName, id: &str) -> Result<()> {
        let path = name.path();
        let read = self.store.read(&path).and_then(|input| input.whole());
        let mut bytes = read.map_err(|source| self.failed("read", &path, source))?.to_vec();
        if !checksum::replace(&mut bytes, KEY, id) {
            let detail = "its footer has no id that could be replaced".to_owned();
            return Err(LakeError::Encode { path: self.full(&path), detail });
        }
        self.delete(name)?;
        self.create(name, bytes.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_record_of_an_id_is_one() {
        assert_eq!(recorded_id("_archived/id+0af3"), Some("0af3"));
        for path in ["_archived/id+", "_archived/id+a/b", "id+0af3", "_archived/decisions.v1+0+0-1", "topic=x/id+0af3"] {
            assert_eq!(recorded_id(path), None, "{path}");
        }
    }
}
