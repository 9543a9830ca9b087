//! Which files belong to an archive.
//!
//! An archive has a random id. Its files have it in their footers (`eadt.archive`), and an empty file `_archived/id+ID` records
//! it, so that a listing shows it. Several records are several ids of one archive: archivers began it at the same time, or
//! somebody merged archives with their records. Without a record, the files must agree with each other. Files of earlier versions,
//! and outputs of replays, have no id and are read as they are.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::archive::Archive;
use crate::error::{LakeError, Result};
use crate::extent::{EXTENTS_FOLDER, record_name};

/// Key of the id in the footer of a file.
pub(crate) const KEY: &str = "eadt.archive";
/// Begins the name of a record of an id.
const RECORD: &str = "id+";

/// The ids of an archive, as far as this process has read them.
#[derive(Debug, Default)]
pub(crate) struct ArchiveIds {
    /// Ids of the records, as of the last listing.
    recorded: BTreeSet<String>,
    /// Id and path of the first file with an id that was read while there was no record.
    first: Option<(String, String)>,
    /// The id of the files that this process writes.
    own: Option<String>,
    /// This process writes files without an id.
    is_anonymous: bool,
}

pub(crate) type SharedArchiveIds = Arc<Mutex<ArchiveIds>>;

/// Returns the id that a path records; `None` if it is another file.
pub(crate) fn recorded_id(path: &str) -> Option<&str> {
    let id = record_name(path)?.strip_prefix(RECORD)?;
    (!id.is_empty() && id.bytes().all(|byte| byte.is_ascii_alphanumeric())).then_some(id)
}

fn record_path(id: &str) -> String {
    format!("{EXTENTS_FOLDER}/{RECORD}{id}")
}

impl Archive {
    /// Sets the id that the archive gets with the next file, if it has none. It must be random.
    #[must_use]
    pub fn with_new_id(mut self, id: u128) -> Self {
        self.new_id = Some(format!("{id:032x}").into());
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

    /// Returns an error if the id in a file's footer is that of another archive.
    pub(crate) fn check_id(&self, path: &str, id: Option<&str>) -> Result<()> {
        let Some(id) = id else { return Ok(()) };
        let mut ids = self.ids();
        let is_first = ids.first.as_ref().is_some_and(|(first, _)| first == id);
        if ids.recorded.contains(id) || ids.recorded.is_empty() && is_first {
            return Ok(());
        }
        // Another archiver may have recorded its own since the files were listed.
        ids.recorded = self.list_recorded_ids()?;
        if ids.recorded.contains(id) || ids.recorded.is_empty() && is_first {
            return Ok(());
        }
        let others = if ids.recorded.is_empty() {
            let Some((first, of)) = &ids.first else {
                ids.first = Some((id.to_owned(), path.to_owned()));
                return Ok(());
            };
            format!("{} has the id {first}", self.full(of))
        } else {
            let recorded: Vec<&str> = ids.recorded.iter().map(String::as_str).collect();
            format!("this archive has the id {}", recorded.join(" or "))
        };
        let detail = format!("it has the id {id}, and {others}");
        Err(LakeError::OtherArchive { path: self.full(path), detail })
    }

    /// Returns the id of a new file, and records it. Returns `None` if the archive has no id and gets none.
    pub(crate) fn id_of_new_file(&self) -> Result<Option<String>> {
        let mut ids = self.ids();
        if ids.is_anonymous && ids.first.is_none() {
            return Ok(None);
        }
        // Whoever deletes old files on purpose deletes the records, too.
        if let Some(own) = ids.own.as_ref().filter(|own| self.store.read(&record_path(own)).is_ok()) {
            return Ok(Some(own.clone()));
        }
        ids.recorded = self.list_recorded_ids()?;
        if ids.recorded.is_empty() {
            let first = ids.first.as_ref().map(|(id, _)| id.as_str());
            let Some(id) = ids.own.as_deref().or(first).or(self.new_id.as_deref()).map(str::to_owned) else {
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

    /// Records the id of the files if there is no record of one. The files must have been read.
    pub(crate) fn record_missing_id(&self) -> Result<()> {
        let ids = self.ids();
        match &ids.first {
            Some((id, _)) if ids.recorded.is_empty() => self.create_record(&record_path(id)),
            _ => Ok(()),
        }
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
