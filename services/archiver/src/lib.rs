//! The archiver: every topic of the log into Parquet, each offset in exactly one file.
//!
//! In: all topics through a group member. Out: files of an [`eadt_lake::Archive`]. Where a partition goes on is read from the
//! files, never from the group: its committed positions only tell others how far the archive is. A full disk stops it, it
//! says so, is not ready, and goes on when there is room; nothing is skipped. It never changes or decodes a record for
//! anybody else, and memory is bounded: rows wait in memory until their file is complete, and then they are gone.

mod check;
pub mod metrics;
mod service;
mod settings;

pub use check::check;
pub use eadt_service::{Clock, Timer};
pub use service::{Error, Service, run, run_on};
pub use settings::Settings;
