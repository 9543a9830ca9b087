//! Helpers for the tests of several crates. For tests only: no product code depends on it.

mod cases;
mod disk;
mod folders;
mod lines;
pub mod stories;

pub use cases::cases;
pub use disk::Disk;
pub use folders::shared_data;
pub use lines::lines;
