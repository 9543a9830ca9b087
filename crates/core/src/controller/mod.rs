//! Controllers: `decide(state, window, context) -> Decision`, pure.

use eadt_schemas::EventTime;
use eadt_schemas::v1::{Actuation, Decision, EfficiencyWindow, Layout, Workload};
use serde::{Deserialize, Serialize};

/// A controller by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ControllerName {
    /// The EADT matrix made precise.
    #[default]
    Matrix,
    /// The EADT matrix as the seed has it.
    MatrixLiteral,
}

/// Everything beside the window that a controller may look at.
#[derive(Debug, Clone, Copy)]
pub struct Context<'a> {
    /// Layout, mode, bounds and prices in force; `None`: nobody manages this workload, so only `maintain` is possible.
    pub workload: Option<&'a Workload>,
    /// What became of this workload's last decision that was not `maintain`.
    pub last_actuation: Option<&'a Actuation>,
    /// The job's own estimate of the time that it still needs.
    pub remaining_seconds: Option<f64>,
    /// When the job's last checkpoint was complete.
    pub checkpoint_time: Option<EventTime>,
    pub settings: &'a ControllerSettings,
}

/// Limits and thresholds. Defaults are those of the precise matrix.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Default)]
#[serde(default, deny_unknown_fields)]
pub struct ControllerSettings {}

/// What a workload's controller remembers from window to window; part of the processor's state.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ControllerState {
    /// The layout before the change that is being validated.
    pub before: Option<Layout>,
}

/// One decision for one closed tumbling window; `maintain` with a reason where nothing is to be done.
pub fn decide(_: ControllerName, _: &mut ControllerState, window: &EfficiencyWindow, _: &Context<'_>) -> Decision {
    Decision { workload: window.workload.clone(), time: window.window_end, ..Decision::default() }
}
