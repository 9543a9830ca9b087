//! Events in Parquet: the archive of a log, replay outputs, and their way back.
//!
//! In: rows of the log, bytes and headers as they are. Out: `topic=…/date=…/` folders of zstd Parquet that pandas, `DuckDB` and
//! Polars read as they are, and the same rows again. Each offset is in exactly one visible file; a value that the columns cannot
//! hold exactly is kept as its bytes; equal rows give equal files, byte for byte. Only this crate knows Arrow and Parquet. It
//! never reads a clock and never decides what is archived.

mod archive;
mod bounds;
mod canonical;
mod checksum;
mod columns;
mod compact;
mod decode;
mod error;
mod events;
mod extent;
mod file;
mod held;
mod identity;
mod layout;
mod plan;
mod rebuild;
mod row;
#[cfg(any(test, feature = "simulation"))]
pub mod simulation;
mod store;
mod stored;
mod table;
#[cfg(test)]
mod tests;
mod thrift;
mod views;
mod writer;
mod writer_group;

pub use archive::{Archive, ArchiveFile, ArchiveListing, EventRow, MergedRows, PartitionRows, StoredRows, StoredRuns};
pub use compact::{CompactionSummary, compact, compactable_bytes};
pub use error::{LakeError, Result};
pub use events::{TopicEvents, count_type, read_events, visit_events, visit_listed_events};
pub use extent::is_archive_folder;
pub use identity::IdentityGaps;
pub use layout::ArchiveFileName;
pub use row::{ArchiveRow, RowHeader, RowView};
pub use stored::{StoredRow, StoredRun};
pub use table::{TableCells, TableColumn, write_table};
pub use views::views;
pub use writer::{ArchiveWriter, RollLimits, WrittenFile};
