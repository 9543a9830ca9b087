//! Faults between decisions and the objects that they change.

pub mod api_server;
pub mod away;
pub mod contradictory;
pub mod deletion;
pub mod killed;
pub mod paused;

/// A percentage that a round asks for; no two rounds in turn have the same.
fn percentage(round: u32) -> u32 {
    25 + round % 70
}
