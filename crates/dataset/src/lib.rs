//! A data set for learning, from windows, decisions and actuations.
//!
//! In: events of [`eadt_schemas`] in any order, repeated ones included ([`DatasetBuilder`]). Out: a [`Dataset`] of two tables
//! and their datasheet: one row a (workload, tumbling window) and one row a decision, joined with what was changed and what
//! came out. A row's features come from nothing later than its time (the window's end, the decision's time): later facts
//! are in columns of the roles `outcome` and `label` only. This crate never reads a clock or a file, never fills a gap,
//! and the same events give the same tables.

mod builder;
mod column;
mod common;
mod datasheet;
mod decisions;
mod history;
mod windows;
mod words;

pub use builder::{Dataset, DatasetBuilder};
pub use column::{ColumnCells, ColumnRole, DatasetColumn, DatasetTable};
pub use datasheet::DatasetCounts;
pub use history::usable;

/// Least covered fraction of energy and of progress in a window that means are made of; below it nothing is decided either.
pub const MIN_COVERAGE_RATIO: f64 = 0.9;
/// Windows that "before" and "after" of a decision are made of: as many as a change is judged by.
pub const TRIAL_WINDOWS: usize = 3;
/// Windows that trailing medians are made of: as many as the matrix looks at.
pub const TRAILING_WINDOWS: usize = 5;
