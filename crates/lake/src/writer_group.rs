//! Which consumer group writes an archive.
//!
//! Archivers of one group share the partitions. Those of two groups both read all of them, and their files would overlap. An empty
//! file `_archived/group+NAME` records the group, with all bytes but letters, digits, `.`, `-` and `_` as `=XX`.

use std::fmt::Write;

use crate::archive::Archive;
use crate::error::{LakeError, Result};
use crate::extent::{EXTENTS_FOLDER, record_name};

/// Begins the name of the record.
const RECORD: &str = "group+";

fn record_path(group: &str) -> String {
    let mut path = format!("{EXTENTS_FOLDER}/{RECORD}");
    for byte in group.bytes() {
        if byte.is_ascii_alphanumeric() || b".-_".contains(&byte) {
            path.push(char::from(byte));
        } else {
            write!(path, "={byte:02X}").expect("a String takes every write");
        }
    }
    path
}

/// Returns whether a path records a group.
pub(crate) fn is_group_record(path: &str) -> bool {
    record_name(path).is_some_and(|name| name.starts_with(RECORD))
}

impl Archive {
    /// Records the consumer group that writes this archive. Returns an error if another one is recorded.
    pub fn claim_for_group(&self, group: &str) -> Result<()> {
        let own = record_path(group);
        self.refuse_other_group(group)?;
        self.create_record(&own)?;
        // Of two that claim it at the same time, one goes.
        let result = self.refuse_other_group(group);
        if result.is_err() {
            self.store.delete(&own).map_err(|source| self.failed("delete", &own, source))?;
        }
        result
    }

    /// Returns an error if another consumer group is recorded. Writes nothing.
    pub fn refuse_other_group(&self, group: &str) -> Result<()> {
        let (own, listed) = (record_path(group), self.list_stored()?);
        let mut records = listed.iter().map(|file| file.path.as_str()).filter(|path| is_group_record(path));
        match records.find(|path| *path != own) {
            Some(other) => Err(LakeError::OtherGroup { path: self.full(other), group: group.to_owned() }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_is_written_by_one_group() {
        let folder = tempfile::tempdir().unwrap();
        let archive = Archive::folder(folder.path()).unwrap();
        archive.claim_for_group("eadt archiver/ä").unwrap();
        archive.claim_for_group("eadt archiver/ä").unwrap();
        let record = folder.path().join("_archived/group+eadt=20archiver=2F=C3=A4");
        assert!(record.exists());
        let error = archive.claim_for_group("renamed").unwrap_err();
        assert!(matches!(&error, LakeError::OtherGroup { group, .. } if group == "renamed"), "{error}");
        assert!(error.to_string().contains("_archived/group+eadt=20archiver=2F=C3=A4"), "{error}");
        // The archivers of the former group were stopped.
        std::fs::remove_file(record).unwrap();
        archive.claim_for_group("renamed").unwrap();
        assert_eq!(archive.files().unwrap().files.len(), 0);
    }
}
