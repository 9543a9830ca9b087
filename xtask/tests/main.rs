//! The integration tests of this package, one binary: linking is most of what another one would cost.

mod deploy;
mod doc_links;
mod history;
mod links;
mod promises;
mod recipes;
mod release;
mod supply_chain;
mod support;
mod tasks;
mod walls;
