//! Step 5: which rollouts are overdue. Pure.

use eadt_cluster::{ManagedWorkload, RollBack};
use eadt_schemas::EventTime;

/// What must be taken back now.
pub fn overdue_rollout(managed: &ManagedWorkload, now: EventTime) -> Option<RollBack> {
    let applied = managed.rolling_out().filter(|applied| applied.generation == managed.state.generation)?;
    (now >= applied.ready_by).then(|| RollBack {
        workload: managed.state.workload.clone(),
        decision_id: applied.decision_id.clone(),
        generation: applied.generation,
        reason: format!("not ready {} s after the change", applied.ready_by.seconds_since(applied.time).round()),
    })
}

#[cfg(test)]
mod tests {
    use eadt_cluster::AppliedDecision;

    use super::*;
    use crate::check::tests::{applied, at, managed};

    #[test]
    fn only_a_rollout_past_its_deadline_is_taken_back() {
        let mut managed = managed();
        assert_eq!(overdue_rollout(&managed, at(9999.0)), None);
        managed.applied = Some(AppliedDecision { ready_time: None, ..applied() });
        assert_eq!(overdue_rollout(&managed, at(609.0)), None);
        let back = overdue_rollout(&managed, at(610.0)).unwrap();
        assert_eq!((back.decision_id.as_str(), back.generation), ("d-0", 4));
        assert_eq!(back.reason, "not ready 600 s after the change");
        // Somebody else changed it since: that rollout is not ours.
        managed.state.generation = 5;
        assert_eq!(overdue_rollout(&managed, at(9999.0)), None);
        managed.applied = Some(applied());
        managed.state.generation = 4;
        assert_eq!(overdue_rollout(&managed, at(9999.0)), None);
    }
}
