//! The integration tests of this package, one binary: linking is most of what another one would cost.

mod choice;
mod commits;
mod histories;
mod model;
mod models;
mod names;
mod observed;
mod power_budget;
mod runs;
mod silence;
mod state;
mod support;
