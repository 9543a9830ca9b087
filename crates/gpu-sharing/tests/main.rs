//! The integration tests of this package, one binary: linking is most of what another one would cost.

mod choose;
mod fold;
mod forest;
mod online;
mod others;
mod paper;
mod profiles;
mod support;
mod tables;
