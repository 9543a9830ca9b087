//! The processor: event-time windows, efficiency, decisions; exactly once.
//!
//! In: telemetry, progress, workloads, actuations and models, merged partition by partition. Out: windows, decisions, dead
//! letters, and the state that a restart resumes from, all in one atomic step with the positions of the inputs. What is decided
//! is decided by `eadt-core`; this crate only reads, merges, commits and counts. It never reads a clock to determine the time in
//! the data, and nothing of a step is visible before all of it is.
//!
//! What concerns several workloads is decided by joint stages ([`JOINT_STAGES`]), which read windows
//! and write decisions by the same rules; of all processors of a group one runs each.

mod arrived;
pub mod codec;
mod heartbeat;
mod joint;
pub mod metrics;
pub mod misplaced_records;
pub mod offline;
mod outputs;
mod partition_task;
mod pending_commit;
mod positions;
mod restore;
#[cfg(test)]
mod scripted;
mod service;
mod settings;

pub use heartbeat::HeartbeatClock;
pub use joint::{GPU_SHARING_STAGE, JOINT_STAGES, JointStageEntry, POWER_BUDGET_STAGE};
pub use positions::{INPUTS, PartitionOffsets};
pub use service::{ProcessorDependencies, ProcessorError, run_processor};
pub use settings::{OptionalSeconds, ProcessorSettings};
