//! The archiver: writes every topic of the log to Parquet, each offset in exactly one file.
//!
//! In: all topics through a group member. Out: files of an [`eadt_lake::Archive`]. The position at which a partition goes on is
//! read from the files, never from the group: its committed positions only show others how far the archive is. A full disk
//! stops it: it reports that, is not ready, and goes on once there is room; nothing is skipped. It never changes or decodes a
//! record for others, and memory is bounded: rows wait in memory until their file is complete, and then they are gone.

mod check;
pub mod metrics;
mod service;
mod settings;

pub use check::check;
pub use eadt_service::{MonotonicClock, ServiceClock};
pub use service::{ArchiverDependencies, ArchiverError, run, run_on};
pub use settings::ArchiverSettings;
