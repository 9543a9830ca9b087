//! Answers of a backtest's actuator to decisions.

use eadt_schemas::v1::{Actuation, ActuationOutcome, Decision, Layout};

/// Returns the answer at the moment and of the origin of the decision, without a downtime; `layout` and `generation` are in force
/// after it.
pub(crate) fn answer(
    decision: &Decision,
    outcome: ActuationOutcome,
    reason: String,
    layout: Layout,
    generation: u64,
) -> Actuation {
    Actuation {
        id: format!("{}/{outcome:?}", decision.id),
        decision_id: decision.id.clone(),
        workload: decision.workload.clone(),
        time: decision.time,
        origin: decision.origin,
        outcome,
        reason,
        layout,
        generation,
        downtime_seconds: None,
    }
}
