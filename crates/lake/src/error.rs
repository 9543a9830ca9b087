use std::io;

use eadt_schemas::Topic;

/// A failed call of the lake. Nothing half-written is ever visible, whatever failed.
#[derive(Debug, thiserror::Error)]
pub enum LakeError {
    /// An operation of the folder or the object store failed; trying again later may help.
    #[error("cannot {action} {path}")]
    Store {
        action: &'static str,
        path: String,
        #[source]
        source: io::Error,
    },
    /// A location that is neither a folder nor a usable object-store URL.
    #[error("cannot use {location:?} as an archive: {detail}")]
    Location { location: String, detail: String },
    /// A place in which nothing was ever archived.
    #[error(
        "cannot use {location:?} as an archive: it holds no Parquet files of EADT; name a data folder, an archive or a replay's output"
    )]
    Absent { location: String },
    /// Parquet, or a folder, that this program did not write.
    #[error("{path} does not belong to an EADT archive: {detail}; move it out of the archive's folder")]
    Foreign { path: String, detail: String },
    /// A file of ours under a name that is not its own.
    #[error("{path} is not what its name states: {detail}; give it its own name back, or move it out of the archive's folder")]
    Misnamed { path: String, detail: String },
    /// A file of another archive.
    #[error(
        "{path} is of another archive: {detail}; put this archive's own file in its place, or move it out of the archive's folder; \
         if archives are merged on purpose, copy the files _archived/id+* of each, too"
    )]
    OtherArchive { path: String, detail: String },
    /// Archivers of another consumer group write the same archive.
    #[error(
        "{path} records that archivers of another consumer group write this archive, not those of {group:?}: give the archiver the \
         same name (archiver.group) or another location (archiver.location); if the group was renamed, stop the archivers of the \
         former one, and delete {path}"
    )]
    OtherGroup { path: String, group: String },
    /// A file whose range another one covers, which has not all its rows.
    #[error(
        "{path} has offset {offset}, which {covering} lacks although its range covers it; keep both files, and restore \
         {covering} from a copy"
    )]
    Uncovered { path: String, covering: String, offset: i64 },
    /// A file of ours that cannot be read.
    #[error("{path} is damaged: {detail}; restore it from a copy, or delete it while the log still has its offsets")]
    Damaged { path: String, detail: String },
    /// A merged file that did not come back as it was written; it was deleted again.
    #[error(
        "{path} was not stored as it was written; it was deleted, and the files that it should replace are unchanged; check the \
         disk or the object store, and compact again"
    )]
    NotStored {
        path: String,
        #[source]
        source: Box<Self>,
    },
    /// A file that would take more memory than a file of ours can.
    #[error(
        "{path} expands to more data than a file of an archive may: {detail}; restore it from a copy, or move it out of the \
         archive's folder"
    )]
    TooLarge { path: String, detail: String },
    /// A file with columns that this version does not know.
    #[error(
        "{path} has a column {column:?} that this version cannot read; use the version of eadt that wrote it, or a newer one"
    )]
    Newer { path: String, column: String },
    /// Two files share offsets, and neither covers the other.
    #[error("{first} and {second} hold the same offsets; keep one of them: another archiver wrote to this folder")]
    Overlap { first: String, second: String },
    /// Offsets between two files are missing.
    #[error("{topic} partition {partition} lacks offsets {from} to {to}: a file was removed from {root}")]
    Gap { topic: Topic, partition: i32, from: i64, to: i64, root: String },
    /// A file of this name is there with other content.
    #[error("{path} exists with other content: another archiver writes to this place; give each its own")]
    Conflict { path: String },
    /// A row that does not follow the rows before it.
    #[error("{topic} partition {partition} got offset {offset} where {expected} or a later one is due")]
    Order { topic: Topic, partition: i32, offset: i64, expected: i64 },
    /// The Parquet writer refused; a bug, not a fault of the data.
    #[error("cannot encode {path}: {detail}")]
    Encode { path: String, detail: String },
}

impl LakeError {
    /// Returns whether the same call may succeed later: a full disk, a store that is away.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Store { .. })
    }
}

pub type Result<T, E = LakeError> = std::result::Result<T, E>;
