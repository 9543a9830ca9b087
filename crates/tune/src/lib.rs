//! Choices, reports and settings from tables of measurements: all of `eadt tune` but its arguments and files.
//!
//! In: readers over tables ([`points`], [`epochs`]) and profiling series ([`aggregate`]). Out: a [`TuningResult`] with every
//! choice and its source, as JSON, text or HTML, and settings made from it ([`export`]); or a [`TableError`] that names
//! file, row, column and remedy. It decides nothing itself (`eadt-models` does), opens no file, reads no clock, and skips no
//! row silently.

pub mod aggregate;
pub mod epochs;
mod error;
pub mod export;
mod map;
mod notes;
pub mod plan;
pub mod points;
pub mod presets;
mod render;
mod tuning;

pub use error::TableError;
pub use map::{FieldMap, InvalidMap};
pub use notes::{NoteKind, TableNote};
pub use tuning::{AccuracyGroup, SkippedGroup, TuningGroup, TuningRequest, TuningResult, TuningSource, tune, tune_counted};
