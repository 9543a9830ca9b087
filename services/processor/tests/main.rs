//! The integration tests of this package, one binary: linking is most of what another one would cost.

mod embedded;
mod gpu_sharing_simulation;
mod joint_stages;
mod models;
mod power_budget_simulation;
mod simulation;
mod support;
