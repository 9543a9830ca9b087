//! The integration tests of this package, one binary: linking is most of what another one would cost.

mod deploy;
mod history;
mod links;
mod promises;
mod release;
mod supply_chain;
mod support;
mod tasks;
mod walls;
