//! Step 6: the reports about a workload. Pure: the difference between the published state in `workloads.v1` and the present one.
//!
//! Every `applied`, `ready`, `rolled_back` and `failed` is published in one atomic step with the workload event that shows it. So
//! the last published workload event shows which of them were published, and none is repeated or lost.

use eadt_cluster::ManagedWorkload;
use eadt_schemas::EventTime;
use eadt_schemas::v1::{Actuation, ActuationOutcome, Decision, Layout, Workload};

use crate::check::DecisionRefusal;

/// Something to publish.
#[derive(Debug, Clone, PartialEq)]
pub enum ActuatorEvent {
    Actuation(Box<Actuation>),
    Workload(Box<Workload>),
}

/// Returns the changes since `published`, oldest first.
pub fn unreported_changes(published: Option<&Workload>, present: &ManagedWorkload) -> Vec<ActuatorEvent> {
    let state = &present.state;
    let mut reports = Vec::new();
    // Generations only grow, so this was another object of the same name.
    let published = published.filter(|published| published.generation <= state.generation);
    // An event of this generation or a later one was published.
    let is_published = |generation: u64| published.is_some_and(|w| w.generation >= generation);
    let is_published_ready = |generation: u64| {
        published.is_some_and(|w| w.generation > generation || w.generation == generation && w.ready_time.is_some())
    };
    if let Some(applied) = &present.applied {
        let actuation = |outcome, time, reason: &str, layout: &Layout, generation, downtime_seconds| {
            ActuatorEvent::Actuation(Box::new(Actuation {
                id: actuation_id(&applied.decision_id, outcome),
                decision_id: applied.decision_id.clone(),
                workload: state.workload.clone(),
                time,
                origin: state.origin,
                outcome,
                reason: reason.to_owned(),
                layout: layout.clone(),
                generation,
                downtime_seconds,
            }))
        };
        if !is_published(applied.generation) {
            let approved = applied.approved_by.as_ref().map_or_else(String::new, |by| format!("approved by {by}"));
            reports.push(actuation(
                ActuationOutcome::Applied,
                applied.time,
                &approved,
                &applied.layout,
                applied.generation,
                None,
            ));
            if state.time > applied.time {
                // Seen late: the layout was in force before the present state of the object was.
                reports.push(ActuatorEvent::Workload(Box::new(Workload {
                    time: applied.time,
                    generation: applied.generation,
                    layout: applied.layout.clone(),
                    decision_id: Some(applied.decision_id.clone()),
                    ready_time: None,
                    ..state.clone()
                })));
            }
        }
        if let Some(ready) = applied.ready_time
            && !is_published_ready(applied.generation)
        {
            let downtime = Some(ready.seconds_since(applied.time));
            reports.push(actuation(ActuationOutcome::Ready, ready, "", &applied.layout, applied.generation, downtime));
        }
        if let Some(back) = &applied.rolled_back {
            if !is_published(back.generation) {
                reports.push(actuation(
                    ActuationOutcome::RolledBack,
                    back.time,
                    &back.reason,
                    &applied.layout_to_restore(),
                    back.generation,
                    None,
                ));
            }
        } else if applied.ready_time.is_none() && state.generation > applied.generation && !is_published(applied.generation + 1) {
            let reason = format!("the workload was changed from outside to generation {} before it was ready", state.generation);
            reports.push(actuation(ActuationOutcome::Failed, state.time, &reason, &state.layout, state.generation, None));
        }
    }
    if !published.is_some_and(|published| equal_but_time(published, state)) {
        reports.push(ActuatorEvent::Workload(Box::new(state.clone())));
    }
    reports
}

/// Returns true if only the times of observation differ: an actuator that starts observes everything for the first time.
fn equal_but_time(published: &Workload, state: &Workload) -> bool {
    published.ready_time.is_some() == state.ready_time.is_some()
        && *published == Workload { time: published.time, ready_time: published.ready_time, ..state.clone() }
}

/// Returns a decision that was not applied. `managed`: the workload, if there is one.
pub fn refused_report(
    decision: &Decision,
    refusal: &DecisionRefusal,
    managed: Option<&ManagedWorkload>,
    now: EventTime,
) -> ActuatorEvent {
    unchanged_report(decision, ActuationOutcome::Refused, refusal.reason.clone(), managed, now)
}

/// Returns a decision that was written as a recommendation.
pub fn recommended_report(decision: &Decision, managed: &ManagedWorkload, now: EventTime) -> ActuatorEvent {
    let reason = "the workload is in mode recommend: written as a recommendation, nothing was changed";
    unchanged_report(decision, ActuationOutcome::Recommended, reason.into(), Some(managed), now)
}

/// Returns the report of a change that could not be rolled back; the layout in force stays.
pub fn failed_report(managed: &ManagedWorkload, reason: &str, now: EventTime) -> Option<ActuatorEvent> {
    let applied = managed.applied.as_ref()?;
    let reason = if applied.ready_time.is_some() {
        format!("taken back by the job, and it could not be rolled back: {reason}; the layout shown is not the job's")
    } else {
        format!("not ready in time, and it could not be rolled back: {reason}; the layout shown is still rolling out")
    };
    Some(ActuatorEvent::Actuation(Box::new(Actuation {
        id: actuation_id(&applied.decision_id, ActuationOutcome::Failed),
        decision_id: applied.decision_id.clone(),
        workload: managed.state.workload.clone(),
        time: now,
        origin: managed.state.origin,
        outcome: ActuationOutcome::Failed,
        reason,
        layout: managed.state.layout.clone(),
        generation: managed.state.generation,
        downtime_seconds: None,
    })))
}

fn unchanged_report(
    decision: &Decision,
    outcome: ActuationOutcome,
    reason: String,
    managed: Option<&ManagedWorkload>,
    now: EventTime,
) -> ActuatorEvent {
    ActuatorEvent::Actuation(Box::new(Actuation {
        id: actuation_id(&decision.id, outcome),
        decision_id: decision.id.clone(),
        workload: decision.workload.clone(),
        time: now,
        origin: decision.origin,
        outcome,
        reason,
        layout: managed.map_or_else(|| decision.from.clone(), |m| m.state.layout.clone()),
        generation: managed.map_or(0, |m| m.state.generation),
        downtime_seconds: None,
    }))
}

/// Returns a deterministic id, so that a report that is repeated after a crash is the same event.
pub fn actuation_id(decision_id: &str, outcome: ActuationOutcome) -> String {
    format!("{decision_id}/{}", name(outcome))
}

/// Returns the outcome as on the wire.
pub const fn name(outcome: ActuationOutcome) -> &'static str {
    match outcome {
        ActuationOutcome::Applied => "applied",
        ActuationOutcome::Ready => "ready",
        ActuationOutcome::Refused => "refused",
        ActuationOutcome::Recommended => "recommended",
        ActuationOutcome::RolledBack => "rolled_back",
        ActuationOutcome::Failed => "failed",
    }
}

#[cfg(test)]
mod tests {
    use eadt_cluster::{AppliedDecision, RollbackRecord};

    use super::*;
    use crate::check::tests::{applied, at, layout, managed};

    fn shape(reports: &[ActuatorEvent]) -> Vec<(&'static str, EventTime, u64)> {
        reports
            .iter()
            .map(|report| match report {
                ActuatorEvent::Actuation(a) => (name(a.outcome), a.time, a.generation),
                ActuatorEvent::Workload(w) => (if w.ready_time.is_some() { "workload" } else { "rolling" }, w.time, w.generation),
            })
            .collect()
    }

    /// Returns a change of generation 4 to 5 that rolls out from 70 s on and is ready at 190 s; the object as it is at each
    /// step.
    fn history() -> [ManagedWorkload; 3] {
        let before = managed();
        let mut rolling = before.clone();
        rolling.state = Workload {
            time: at(70.0),
            generation: 5,
            layout: layout(6, 40),
            decision_id: Some("d-60".into()),
            ready_time: None,
            ..rolling.state
        };
        rolling.applied = Some(AppliedDecision {
            decision_id: "d-60".into(),
            decision_time: at(60.0),
            generation: 5,
            time: at(70.0),
            layout: layout(6, 40),
            before: layout(6, 50),
            ready_by: at(670.0),
            ready_time: None,
            rolled_back: None,
            approved_by: None,
        });
        let mut ready = rolling.clone();
        ready.state.time = at(190.0);
        ready.state.ready_time = Some(at(190.0));
        ready.applied.as_mut().unwrap().ready_time = Some(at(190.0));
        [before, rolling, ready]
    }

    #[test]
    fn every_step_is_published_once_whenever_it_is_seen() {
        let [before, rolling, ready] = history();
        assert_eq!(shape(&unreported_changes(None, &before)), [("workload", at(0.0), 4)]);
        assert_eq!(shape(&unreported_changes(Some(&before.state), &before)), []);
        let step = unreported_changes(Some(&before.state), &rolling);
        assert_eq!(shape(&step), [("applied", at(70.0), 5), ("rolling", at(70.0), 5)]);
        assert_eq!(
            shape(&unreported_changes(Some(&rolling.state), &ready)),
            [("ready", at(190.0), 5), ("workload", at(190.0), 5)]
        );
        // Seen only when all was over, because the actuator was down: the same events.
        let late = unreported_changes(Some(&before.state), &ready);
        assert_eq!(
            shape(&late),
            [("applied", at(70.0), 5), ("rolling", at(70.0), 5), ("ready", at(190.0), 5), ("workload", at(190.0), 5)]
        );
        assert_eq!(late[..2], step[..], "what is published late is what would have been published in time");
        let ActuatorEvent::Actuation(ready) = &late[2] else { panic!("ready was expected") };
        assert_eq!(ready.downtime_seconds, Some(120.0));
    }

    #[test]
    fn a_rollback_is_published_once_and_nothing_after_it() {
        let [_, rolling, _] = history();
        let mut back = rolling.clone();
        let reason = "not ready 600 s after the change".to_owned();
        back.applied.as_mut().unwrap().rolled_back = Some(RollbackRecord { generation: 6, time: at(670.0), reason });
        back.state = Workload { time: at(670.0), generation: 6, layout: layout(6, 50), decision_id: None, ..back.state };
        let reports = unreported_changes(Some(&rolling.state), &back);
        assert_eq!(shape(&reports), [("rolled_back", at(670.0), 6), ("rolling", at(670.0), 6)]);
        let ActuatorEvent::Actuation(actuation) = &reports[0] else { panic!("an actuation was expected") };
        assert_eq!(actuation.layout, layout(6, 50));
        let mut restored = back.clone();
        restored.state.time = at(790.0);
        restored.state.ready_time = Some(at(790.0));
        assert_eq!(shape(&unreported_changes(Some(&back.state), &restored)), [("workload", at(790.0), 6)]);
    }

    #[test]
    fn what_the_job_takes_back_after_it_was_ready_is_published_once() {
        let [before, rolling, ready] = history();
        let mut back = ready.clone();
        let reason = "taken back by the job: weights moved".to_owned();
        back.applied.as_mut().unwrap().rolled_back = Some(RollbackRecord { generation: 6, time: at(300.0), reason });
        let time = Some(at(300.0));
        back.state =
            Workload { time: at(300.0), generation: 6, layout: layout(6, 50), decision_id: None, ready_time: time, ..back.state };
        let reports = unreported_changes(Some(&ready.state), &back);
        assert_eq!(shape(&reports), [("rolled_back", at(300.0), 6), ("workload", at(300.0), 6)]);
        let ActuatorEvent::Actuation(actuation) = &reports[0] else { panic!("an actuation was expected") };
        assert_eq!((&actuation.layout, actuation.reason.as_str()), (&layout(6, 50), "taken back by the job: weights moved"));
        assert_eq!(shape(&unreported_changes(Some(&back.state), &back)), []);
        // The actuator was down meanwhile.
        let undone = [("ready", at(190.0), 5), ("rolled_back", at(300.0), 6), ("workload", at(300.0), 6)];
        assert_eq!(shape(&unreported_changes(Some(&rolling.state), &back)), undone);
        let begun = [("applied", at(70.0), 5), ("rolling", at(70.0), 5)];
        assert_eq!(shape(&unreported_changes(Some(&before.state), &back)), [&begun[..], &undone[..]].concat());
    }

    #[test]
    fn a_change_by_somebody_else_ends_a_rollout_as_failed() {
        let [_, rolling, _] = history();
        let mut taken = rolling.clone();
        taken.state = Workload { time: at(100.0), generation: 6, decision_id: None, ..taken.state };
        let reports = unreported_changes(Some(&rolling.state), &taken);
        assert_eq!(shape(&reports), [("failed", at(100.0), 6), ("rolling", at(100.0), 6)]);
        assert_eq!(shape(&unreported_changes(Some(&taken.state), &taken)), []);
    }

    #[test]
    fn a_new_actuator_publishes_nothing_about_what_it_only_sees_anew() {
        let before = managed();
        let mut seen_again = before.clone();
        seen_again.state.time = at(500.0);
        seen_again.state.ready_time = Some(at(500.0));
        assert_eq!(shape(&unreported_changes(Some(&before.state), &seen_again)), []);
        seen_again.state.ready_time = None;
        assert_eq!(shape(&unreported_changes(Some(&before.state), &seen_again)), [("rolling", at(500.0), 4)]);
        seen_again.state.paused = true;
        assert_eq!(unreported_changes(Some(&before.state), &seen_again).len(), 1);
    }

    #[test]
    fn another_object_of_the_same_name_begins_anew() {
        let [before, mut rolling, _] = history();
        let old = Workload { generation: 40, ..before.state };
        rolling.state.generation = 2;
        rolling.applied.as_mut().unwrap().generation = 2;
        assert_eq!(shape(&unreported_changes(Some(&old), &rolling)), [("applied", at(70.0), 2), ("rolling", at(70.0), 2)]);
    }

    #[test]
    fn a_knob_that_turns_at_once_is_ready_at_once() {
        let mut present = managed();
        present.applied = Some(AppliedDecision { time: at(10.0), ready_time: Some(at(10.0)), ..applied() });
        present.state.time = at(10.0);
        present.state.ready_time = Some(at(10.0));
        let before = Workload { generation: 3, ..managed().state };
        assert_eq!(
            shape(&unreported_changes(Some(&before), &present)),
            [("applied", at(10.0), 4), ("ready", at(10.0), 4), ("workload", at(10.0), 4)]
        );
    }
}
