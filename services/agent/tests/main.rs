//! The integration tests of this package, one binary: linking is most of what another one would cost.

mod crash;
mod holds;
mod program;
mod support;
