//! The integration tests of this package, one binary: linking is most of what another one would cost.

mod embedded_conformance;
mod embedded_crash;
mod embedded_histories;
mod embedded_log;
