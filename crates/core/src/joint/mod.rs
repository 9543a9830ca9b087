//! Decisions about several workloads together: a joint stage, which reads windows and the inputs of the first stage.
//!
//! Such a fold evaluates the state at the end of every window that any of its members has. It emits each member's
//! decision with that member's own window ([`crate::power_budget`]). Like all of this crate it reads no clock, never awaits, does
//! no I/O.

mod member;

use eadt_schemas::EventTime;
use eadt_schemas::decode::DecodeError;
use eadt_schemas::v1::{Actuation, Decision, EfficiencyWindow, Model, Workload};

use crate::partition::{self, check_acceptable};
use crate::settings::FoldSettings;
use crate::state::{StateError, StateRecord};

pub use member::{MAX_PENDING_LAYOUTS, PendingDecision, PendingLayouts};

/// The number in which a decision reports how far back the oldest event lies that came too late for an earlier evaluation.
pub const LATE_SECONDS: &str = "late_seconds";

/// A decoded record.
#[derive(Debug, Clone, Copy)]
pub enum JointEvent<'a> {
    Window(&'a EfficiencyWindow),
    /// An input of the first stage; telemetry and progress have no effect here.
    Input(partition::InputEvent<'a>),
}

impl JointEvent<'_> {
    /// Returns the event time, if it has one.
    pub fn time(&self) -> Option<EventTime> {
        match self {
            Self::Window(window) => Some(window.window_end),
            Self::Input(event) => event.time(),
        }
    }
}

/// A fold that decides about several workloads together.
pub trait JointFold: Sized {
    /// Counts over the life of a value, for metrics.
    type Tally: Copy + std::fmt::Debug;

    /// Returns the fold that these records of the state topic describe, the newest of each key; others' are passed over.
    fn restore<K: AsRef<str>, V: AsRef<[u8]>>(
        settings: FoldSettings,
        records: impl IntoIterator<Item = (K, Option<V>)>,
    ) -> Result<Self, StateError>;

    /// Folds the next record of the merged order. `Err`: it has no place here, or is not what it should be; of inputs of the
    /// first stage only the former, because that stage reports the latter.
    fn fold(
        &mut self,
        event: JointEvent<'_>,
        key: Option<&str>,
        stamp: EventTime,
        out: &mut Vec<Decision>,
    ) -> Result<(), DecodeError> {
        let event = match event {
            JointEvent::Window(window) => {
                self.on_window(window, out);
                return Ok(());
            }
            JointEvent::Input(event) => event,
        };
        if check_acceptable(event, key, stamp, self.max_future()).is_err() {
            return Ok(());
        }
        match event {
            partition::InputEvent::Workload(event) => return self.on_workload(event),
            partition::InputEvent::WorkloadGone => self.on_workload_gone(key.unwrap_or_default()),
            partition::InputEvent::Actuation(event) => self.on_actuation(event),
            partition::InputEvent::Model(event) => self.on_model(event),
            partition::InputEvent::ModelGone => self.on_model_gone(key.unwrap_or_default()),
            partition::InputEvent::Telemetry(_)
            | partition::InputEvent::Progress(_)
            | partition::InputEvent::Heartbeat
            | partition::InputEvent::Refused(_) => {}
        }
        Ok(())
    }

    fn on_window(&mut self, window: &EfficiencyWindow, out: &mut Vec<Decision>);

    /// Takes a workload's layout and policy. `Err`: the cap of workloads is reached.
    fn on_workload(&mut self, event: &Workload) -> Result<(), DecodeError>;

    /// Takes a workload's tombstone, which has no time of its own.
    fn on_workload_gone(&mut self, name: &str);

    fn on_actuation(&mut self, event: &Actuation);

    fn on_model(&mut self, event: &Model);

    fn on_model_gone(&mut self, name: &str);

    /// Returns how far event time may be ahead of the log's stamp, in microseconds; `None` if there is no limit.
    fn max_future(&self) -> Option<i64>;

    /// Returns the records of everything that changed since the last call.
    fn take_changes(&mut self) -> Vec<StateRecord>;

    /// Returns the number of members.
    fn member_count(&self) -> usize;

    fn tally(&self) -> Self::Tally;
}
