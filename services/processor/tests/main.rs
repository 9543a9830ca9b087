//! The integration tests of this package, one binary: linking is most of what another one would cost.

mod cluster;
mod cluster_simulation;
mod embedded;
mod gpu_simulation;
mod models;
mod simulation;
mod support;
