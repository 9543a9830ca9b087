//! Workload objects: reads each kind, and gives the writes of a change and the progress of a rollout. Pure.

pub mod change;
pub mod effective_policy;
pub mod key;
pub mod kinds;
#[allow(clippy::module_inception, reason = "the object itself is the room's main file")]
pub mod object;
pub mod owners;
pub mod preflight;
pub mod record;
pub mod rollout;
