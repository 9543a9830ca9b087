//! What tests of several crates need. For tests only: nothing is built with it.

mod cases;
mod disk;
mod folders;
mod lines;
pub mod stories;

pub use cases::cases;
pub use disk::Disk;
pub use folders::shared_data;
pub use lines::lines;
