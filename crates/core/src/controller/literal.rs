//! The EADT table as its authors wrote it: one reading, one action, no memory but the interval between two evaluations.

use eadt_schemas::v1::{ControllerAction, Decision, EfficiencyWindow};

use super::draft::DecisionDraft;
use super::history::MeasuredWindow;
use super::knobs::{self, MatrixKnobs};
use super::matrix::Thresholds;
use super::state::ControllerState;
use super::{ControllerContext, ControllerName, PowerReading};

pub(super) fn decide(state: &mut ControllerState, window: &EfficiencyWindow, context: &ControllerContext<'_>) -> Decision {
    let settings = context.settings;
    let now = window.window_end;
    let mut draft = DecisionDraft::new(ControllerName::MatrixLiteral, window, context);
    let Some(workload) = context.workload else {
        return draft.maintain(super::UNMANAGED);
    };
    if workload.paused {
        return draft.maintain("the workload is paused");
    }
    let measured = match MeasuredWindow::from_event(window, settings.coverage_min_ratio) {
        Ok(measured) => measured,
        Err(reason) => return draft.maintain(reason),
    };
    if window.generation.is_some_and(|generation| generation != workload.generation) {
        return draft.maintain("the layout was changed after this window");
    }
    if let Some(last) = state.last_evaluation {
        let left = settings.literal_interval_seconds - now.seconds_since(last);
        if left > 0.0 {
            return draft.maintain(format!("next evaluation in {left:.0} s"));
        }
    }
    state.last_evaluation = Some(now);
    let reading = settings.power.unwrap_or(PowerReading::Total);
    let (watts, whose) = measured.power(reading);
    let efficiency = measured.efficiency();
    let table = Thresholds::literal(settings);
    draft.note_reading(reading, watts, efficiency, &table);
    let action = table.action(watts, efficiency);
    let reason = table.explain(action, whose, watts, efficiency);
    if action == ControllerAction::Maintain {
        return draft.maintain(reason);
    }
    let gpus = workload.gpus.unwrap_or(window.gpus);
    if gpus == 0 {
        return draft.maintain(format!("{reason}, but the number of its GPUs is not known"));
    }
    let from = match MatrixKnobs::from_layout(&workload.layout) {
        Ok(knobs) => knobs,
        Err(wrong) => return draft.maintain(format!("{reason}, but {wrong}")),
    };
    let to = knobs::literal_target(action, from, gpus, &workload.bounds);
    if to == from {
        return draft.maintain(format!("{reason}, but the layout is already at the end of its range"));
    }
    let reason = format!("{reason}: {}", from.change_to(to));
    draft.change_with_restart(action, to.in_layout(&workload.layout, gpus), reason)
}
