//! Step 5: which rollouts are overdue. Pure.

use eadt_cluster::{ManagedWorkload, RollbackRequest};
use eadt_schemas::EventTime;

/// Returns the rollback of a rollout whose deadline has passed.
pub fn overdue_rollout(managed: &ManagedWorkload, now: EventTime) -> Option<RollbackRequest> {
    let applied = managed.rolling_out().filter(|applied| now >= applied.ready_by)?;
    let reason = format!("not ready {} s after the change", applied.ready_by.seconds_since(applied.time).round());
    take_back(managed, reason)
}

/// Returns the rollback of a change that the job refused to follow.
pub fn refused_rollout(managed: &ManagedWorkload) -> Option<RollbackRequest> {
    take_back(managed, "refused by the job".to_owned())
}

/// Returns the rollback of the change that rolls out; `None` if there is none, or the workload was changed from outside since.
fn take_back(managed: &ManagedWorkload, reason: String) -> Option<RollbackRequest> {
    let applied = managed.rolling_out().filter(|applied| applied.generation == managed.state.generation)?;
    Some(RollbackRequest {
        workload: managed.state.workload.clone(),
        decision_id: applied.decision_id.clone(),
        generation: applied.generation,
        reason,
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
        let back = refused_rollout(&managed).unwrap();
        assert_eq!(back.reason, "refused by the job");
        // Changed from outside since: that rollout is not ours.
        managed.state.generation = 5;
        assert_eq!(overdue_rollout(&managed, at(9999.0)), None);
        managed.applied = Some(applied());
        managed.state.generation = 4;
        assert_eq!(overdue_rollout(&managed, at(9999.0)), None);
    }
}
