//! Step 5: which changes are to be rolled back: those that are overdue, and those that the job does not follow. Pure.

use eadt_cluster::{AppliedDecision, ManagedWorkload, RollbackRequest};
use eadt_schemas::EventTime;

use crate::directives::change_followed_by_job;

/// Returns the rollback of a rollout whose deadline has passed.
pub fn overdue_rollout(managed: &ManagedWorkload, now: EventTime) -> Option<RollbackRequest> {
    let applied = managed.rolling_out().filter(|applied| now >= applied.ready_by)?;
    let reason = format!("not ready {} s after the change", applied.ready_by.seconds_since(applied.time).round());
    rollout_to_undo(managed, reason)
}

/// Returns the rollback of a change that the job refused to follow.
pub fn refused_rollout(managed: &ManagedWorkload) -> Option<RollbackRequest> {
    rollout_to_undo(managed, "refused by the job".to_owned())
}

/// Returns the rollback of a change that the job made, and took back later. `None` if another change is in force, or nothing is
/// requested from the job.
pub fn taken_back_change(managed: &ManagedWorkload, why: &str) -> Option<RollbackRequest> {
    let applied = change_followed_by_job(managed)?;
    let reason = format!("taken back by the job: {why}");
    Some(RollbackRequest { by_job: true, ..undo(managed, applied, reason) })
}

/// Returns the rollback of the change that rolls out; `None` if there is none, or the workload was changed from outside since.
fn rollout_to_undo(managed: &ManagedWorkload, reason: String) -> Option<RollbackRequest> {
    let applied = managed.rolling_out().filter(|applied| applied.generation == managed.state.generation)?;
    Some(undo(managed, applied, reason))
}

fn undo(managed: &ManagedWorkload, applied: &AppliedDecision, reason: String) -> RollbackRequest {
    RollbackRequest {
        workload: managed.state.workload.clone(),
        decision_id: applied.decision_id.clone(),
        generation: applied.generation,
        by_job: false,
        reason,
    }
}

#[cfg(test)]
mod tests {
    use eadt_schemas::v1::{Layout, UpdateMode};

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

    #[test]
    fn only_a_change_that_the_job_made_and_that_is_in_force_is_taken_back_by_it() {
        let mut managed = managed();
        let before = managed.state.layout.clone();
        managed.state.layout.frozen_prefix_layers = Some(2);
        let layout = managed.state.layout.clone();
        managed.applied = Some(AppliedDecision { layout, before: before.clone(), ready_time: Some(at(20.0)), ..applied() });
        let back = taken_back_change(&managed, "weights moved").unwrap();
        assert_eq!((back.decision_id.as_str(), back.generation, back.by_job), ("d-0", 4, true));
        assert_eq!(back.reason, "taken back by the job: weights moved");
        let with = |change: fn(&mut ManagedWorkload, &mut AppliedDecision)| {
            let (mut other, mut mark) = (managed.clone(), managed.applied.clone().unwrap());
            change(&mut other, &mut mark);
            other.applied = Some(mark);
            taken_back_change(&other, "weights moved")
        };
        assert_eq!(with(|_, mark| mark.ready_time = None), None, "it rolls out still");
        assert_eq!(with(|other, _| other.state.generation = 5), None, "a newer change is in force");
        assert_eq!(with(|other, _| other.state.paused = true), None, "nothing is requested");
        assert_eq!(with(|other, _| other.state.mode = UpdateMode::Observe), None, "nothing is requested");
        assert_eq!(with(|_, mark| mark.before.power_limit_watts = Some(300.0)), None, "the job did not make it alone");
        assert_eq!(with(|_, mark| mark.before = mark.layout.clone()), None, "nothing was newly requested");
        let restored = |mark: &AppliedDecision| mark.layout_to_restore().frozen_prefix_layers;
        let refreezing = AppliedDecision { before: Layout { frozen_prefix_layers: Some(1), ..before }, ..applied() };
        assert_eq!(restored(&AppliedDecision { ready_time: None, ..refreezing.clone() }), Some(1), "it was never made");
        assert_eq!(restored(&AppliedDecision { ready_time: Some(at(20.0)), ..refreezing }), None, "the job trains all layers");
    }
}
