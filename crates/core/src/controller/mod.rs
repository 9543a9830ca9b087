//! Controllers: `decide(state, window, context) -> Decision`, pure.
//!
//! In: one closed tumbling window at a time, in order, and what is known beside it. Out: one decision a window,
//! `maintain` with its reason included. A controller never reads a clock (time is the window's end), never acts, and
//! never forgets what it tried: its memory is [`ControllerState`], which the caller keeps.
//!
//! `matrix-literal` is the EADT table as its authors wrote it. `matrix` is the same table with what a cluster needs
//! around it: medians instead of single readings, dead bands, bounds, a check that a change helped, and the way back.
//!
//! ```text
//! window ─▶ usable? ─▶ settle what became of the last change ─▶ judge it after three windows ─▶ kept | revert + hold
//!                                        │ nothing under way
//!                                        ▼
//!              median of five ─▶ table ─▶ target within bounds ─▶ not tabu, affordable, worth it ─▶ change
//! ```

mod draft;
mod history;
mod knobs;
mod literal;
mod matrix;
mod precise;
mod seek;
mod settings;
mod state;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod training;
mod trial;

use std::fmt;
use std::str::FromStr;

use eadt_schemas::EventTime;
use eadt_schemas::v1::{Actuation, ChangeValidation, ControllerAction, Decision, EfficiencyWindow, Workload};
use serde::{Deserialize, Serialize};

use crate::models::ModelRegistry;
use crate::workload::report::TrainingReport;

use draft::DecisionDraft;
pub(crate) use history::MeasuredWindow;
pub use settings::{ControllerObjective, ControllerSettings, PowerReading};
pub use state::ControllerState;
use training::JobKnobOutcome;

/// Defines [`ControllerName`] from one row for each controller, its name as in settings, workloads and decisions. `alone`: it
/// decides about each workload by its power and throughput alone.
macro_rules! controllers {
    (
        alone { $($(#[$alone_attribute:meta])* $alone:ident = $alone_name:literal,)* }
        others { $($(#[$other_attribute:meta])* $other:ident = $other_name:literal,)* }
    ) => {
        /// A controller by name.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, schemars::JsonSchema)]
        pub enum ControllerName {
            $($(#[$alone_attribute])* #[serde(rename = $alone_name)] $alone,)*
            $($(#[$other_attribute])* #[serde(rename = $other_name)] $other,)*
        }

        impl ControllerName {
            /// Controllers that decide about each workload by its power and throughput alone.
            pub const ALL: [Self; [$($alone_name,)*].len()] = [$(Self::$alone,)*];
            /// Controllers that a workload may name.
            pub const NAMED: [Self; [$($alone_name,)* $($other_name,)*].len()] = [$(Self::$alone,)* $(Self::$other,)*];

            /// Returns the name in settings, workloads and decisions.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$alone => $alone_name,)*
                    $(Self::$other => $other_name,)*
                }
            }
        }
    };
}

controllers! {
    alone {
        /// `power-cap`, and other layouts where they are worth a restart.
        #[default]
        Hybrid = "hybrid",
        /// Searches the power cap of least energy per sample; restarts nothing.
        PowerCap = "power-cap",
        /// Searches the SM clock of least energy per sample; restarts nothing.
        Frequency = "frequency",
        /// The EADT matrix made precise.
        Matrix = "matrix",
        /// The EADT matrix as the seed has it.
        MatrixLiteral = "matrix-literal",
    }
    others {
        /// Shares the cluster's power budget (`processor.power_budget`) among all workloads that name it; decided by a joint
        /// stage of the processor, not workload by workload.
        PowerBudget = "power-budget",
        /// Gives workloads that share a GPU their parts of the SMs (`processor.gpu_sharing`); decided by a joint stage for all
        /// of a GPU together.
        SmPartition = "sm-partition",
        /// Asks the job to freeze blocks that hardly change any more, if a policy bounds them; restarts nothing.
        Layers = "layers",
        /// Recommends a precision, and asks for another one if steps overflow, if a policy bounds it; restarts nothing.
        Precision = "precision",
    }
}

impl fmt::Display for ControllerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A name that no controller has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no controller is named {name:?}; there are {}", names(&ControllerName::NAMED))]
pub struct UnknownController {
    name: String,
}

/// Formats names as `hybrid, power-cap and frequency`.
fn names(controllers: &[ControllerName]) -> String {
    let names: Vec<_> = controllers.iter().map(|name| name.as_str()).collect();
    match names.split_last() {
        Some((last, others)) if !others.is_empty() => format!("{} and {last}", others.join(", ")),
        _ => names.concat(),
    }
}

impl FromStr for ControllerName {
    type Err = UnknownController;

    fn from_str(name: &str) -> Result<Self, UnknownController> {
        let known = Self::NAMED.into_iter().find(|known| known.as_str() == name);
        known.ok_or_else(|| UnknownController { name: name.chars().take(64).collect() })
    }
}

/// Inputs of a controller besides the window.
#[derive(Debug, Clone, Copy)]
pub struct ControllerContext<'a> {
    /// Layout, mode, bounds and prices in force; `None`: the workload is not managed, so only `maintain` is possible.
    pub workload: Option<&'a Workload>,
    /// Outcome of this workload's last decision that was not `maintain`.
    pub last_actuation: Option<&'a Actuation>,
    /// The job's own estimate of the time that it still needs.
    pub remaining_seconds: Option<f64>,
    /// Time at which the job's last checkpoint was complete.
    pub checkpoint_time: Option<EventTime>,
    /// The job's latest training report.
    pub training: Option<&'a TrainingReport>,
    pub settings: &'a ControllerSettings,
    /// Learned models in force.
    pub models: Option<&'a ModelRegistry>,
}

/// The reason of a decision about a workload in mode `observe`.
const UNMANAGED: &str = "the workload is not managed: it is only observed";

/// Returns one decision for one closed tumbling window; `maintain` with a reason if nothing is to be done.
///
/// Windows come in the order of their ends. The same state, window and context give the same decision.
pub fn decide(
    name: ControllerName,
    state: &mut ControllerState,
    window: &EfficiencyWindow,
    context: &ControllerContext<'_>,
) -> Decision {
    match name {
        ControllerName::Matrix => precise::decide(state, window, context),
        ControllerName::MatrixLiteral => literal::decide(state, window, context),
        ControllerName::Hybrid if context.workload.is_some_and(training::is_bounded) => decide_hybrid(state, window, context),
        ControllerName::PowerCap | ControllerName::Frequency | ControllerName::Hybrid => {
            seek::decide(name, state, window, context)
        }
        ControllerName::Layers | ControllerName::Precision => training::decide(name, state, window, context),
        ControllerName::PowerBudget => DecisionDraft::new(name, window, context).maintain(if context.workload.is_some() {
            "the controller power-budget needs a budget: set processor.power_budget.budget_watts"
        } else {
            UNMANAGED
        }),
        ControllerName::SmPartition => DecisionDraft::new(name, window, context).maintain(if context.workload.is_some() {
            "the controller sm-partition needs GPU sharing: set processor.gpu_sharing.enabled"
        } else {
            UNMANAGED
        }),
    }
}

/// Decides for `hybrid` if a policy bounds the job's own settings: these wait for the cap and the layout, which wait while a
/// change of them is assessed.
fn decide_hybrid(state: &mut ControllerState, window: &EfficiencyWindow, context: &ControllerContext<'_>) -> Decision {
    let name = ControllerName::Hybrid;
    let Some(workload) = context.workload else { return seek::decide(name, state, window, context) };
    let mut training = state.training.take().unwrap_or_default();
    let standing = training.update_from_window(window, workload, DecisionDraft::new(name, window, context), context);
    if training.is_own_generation(workload.generation)
        && let Some(seek) = &mut state.seek
    {
        seek.accept_generation(workload.generation);
    }
    if let Some(seek) = &mut state.seek {
        seek.job_difference = training.own_difference(workload, context.training).map(|difference| difference.message());
    }
    let decision = match standing {
        JobKnobOutcome::Decided(decision) => *decision,
        JobKnobOutcome::Idle { draft, hindrance } => {
            let decision = seek::decide(name, state, window, context);
            let idle = hindrance.is_none()
                && decision.action == ControllerAction::Maintain
                && decision.validation == ChangeValidation::None;
            let busy = !state.proposals.is_empty() || state.seek.as_ref().is_some_and(|seek| seek.is_trying());
            if idle && !busy {
                let proposed = training.propose(name, window, workload, *draft, context);
                if proposed.action == ControllerAction::Maintain { decision } else { proposed }
            } else {
                decision
            }
        }
    };
    if let Some(seek) = &mut state.seek {
        seek.job_difference = None;
    }
    state.training = Some(training);
    decision
}
