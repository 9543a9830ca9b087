//! What decides about several workloads together: a second stage, which reads windows and what the first stage reads.
//!
//! Such a fold looks at the end of every window that any of its members has, as things were at that time, and says each member's
//! decision with its own window ([`crate::cluster`]). Like all of this crate it reads no clock, never awaits, does no I/O.

mod member;

use eadt_schemas::EventTime;
use eadt_schemas::decode::Refusal;
use eadt_schemas::v1::{Decision, EfficiencyWindow};

use crate::partition;
use crate::settings::FoldSettings;
use crate::state::{StateError, StateRecord};

pub use member::{Coming, MAX_COMING, Saying};

/// The number by which a decision says how far back the oldest event lies that came too late for an earlier look.
pub const LATE_SECONDS: &str = "late_seconds";

/// A decoded record.
#[derive(Debug, Clone, Copy)]
pub enum Event<'a> {
    Window(&'a EfficiencyWindow),
    /// What the first stage reads, too; telemetry and progress say nothing here.
    Input(partition::Event<'a>),
}

impl Event<'_> {
    /// Event time, where it has one.
    pub fn time(&self) -> Option<EventTime> {
        match self {
            Self::Window(window) => Some(window.window_end),
            Self::Input(event) => event.time(),
        }
    }
}

/// A fold that decides about several workloads together.
pub trait Joint: Sized {
    /// Counts over the life of a value, for metrics.
    type Tally: Copy + std::fmt::Debug;

    /// The fold that these records of the state topic describe, the newest of each key; others' are passed over.
    fn restore<K: AsRef<str>, V: AsRef<[u8]>>(
        settings: FoldSettings,
        records: impl IntoIterator<Item = (K, Option<V>)>,
    ) -> Result<Self, StateError>;

    /// Folds the next record of the merged order. `Err`: it has no place here, or is not what it should be; of inputs of the first
    /// stage only the former, because that stage says the latter.
    fn fold(&mut self, event: Event<'_>, key: Option<&str>, stamp: EventTime, out: &mut Vec<Decision>) -> Result<(), Refusal>;

    /// The records of everything that changed since the last call.
    fn take_changes(&mut self) -> Vec<StateRecord>;

    /// Number of members.
    fn size(&self) -> usize;

    fn tally(&self) -> Self::Tally;
}
