//! The integration tests of this package, one binary: linking is most of what another one would cost.

mod event_log;
mod formats;
mod fuzz;
mod shared_data;
mod support;
mod through_the_fold;
