//! The rows, each with its fault on the real parts.

mod agent;
mod archive;
mod catch_up;
pub mod clocks;
mod collector;
mod delayed_end;
mod disk;
mod edges;
mod embedded;
mod ids;
mod import;
mod killed;
mod kubernetes;
mod mixed;
mod poison;
mod power;
mod quiet;
mod restarts;
mod retention;
mod settings;
mod storm;
mod unanswered;
mod upgrade;
mod zombie;

use crate::row::Row;

/// All of them, in the order of the table.
pub const ROWS: &[Row] = &[
    killed::ROW,
    delayed_end::ROW,
    zombie::ROW,
    restarts::ONE,
    restarts::THREE,
    unanswered::PAUSED,
    unanswered::HALF_OPEN,
    unanswered::ONE_OF_THREE,
    mixed::ROW,
    power::ROW,
    settings::ROW,
    storm::ROW,
    poison::ROW,
    ids::ROW,
    clocks::ROW,
    catch_up::ROW,
    import::ROW,
    quiet::ROW,
    edges::ROW,
    retention::ROW,
    collector::ROW,
    collector::LONG,
    archive::killed::ROW,
    archive::broker::ROW,
    disk::ROW,
    embedded::ROW,
    upgrade::pipeline::ROW,
    upgrade::collector::ROW,
    upgrade::optimizer::ROW,
    agent::killed::ROW,
    agent::unasked::ROW,
    agent::gpu::ROW,
    agent::others::ROW,
    kubernetes::api_server::ROW,
    kubernetes::away::ROW,
    kubernetes::killed::ROW,
    kubernetes::paused::ROW,
    kubernetes::deletion::ROW,
    kubernetes::contradictory::ROW,
    upgrade::cluster::ROW,
];
