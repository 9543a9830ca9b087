//! Whether a folder still holds the record that a page was built of.

use std::collections::BTreeSet;

use eadt_lake::Archive;

/// Text about a folder that holds another record than the one that was read.
pub(crate) const REWRITTEN: &str = "the folder was rewritten since this page read it: restart `eadt dashboard`";

/// A moment of the record cannot be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    #[error("{REWRITTEN}")]
    Rewritten,
    #[error("the record cannot be read: {0}")]
    Unreadable(String),
}

/// The ids of an archive. It keeps one while it grows and while its files are merged.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecordIdentity(BTreeSet<String>);

impl RecordIdentity {
    /// Returns that of an archive, as of its last listing.
    pub fn of(archive: &Archive) -> Self {
        Self(archive.recorded_ids())
    }

    /// Returns an error if another archive is in the place of this one. Nothing is known of archives of earlier releases, which
    /// have no id.
    pub fn check(&self, now: &Self) -> Result<(), RecordError> {
        let is_other = !self.0.is_empty() && !now.0.is_empty() && self.0.is_disjoint(&now.0);
        if is_other { Err(RecordError::Rewritten) } else { Ok(()) }
    }
}
