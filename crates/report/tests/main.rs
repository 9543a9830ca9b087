//! The integration tests of this package, one binary: linking is most of what another one would cost.

mod forms;
mod report;
mod saving;
