//! A workload as the actuator's steps know it, put together from its object and its effective policy. Pure.

use std::collections::BTreeMap;

use eadt_cluster::ManagedWorkload;
use eadt_schemas::EventTime;
use eadt_schemas::v1::{Origin, UpdateMode, Workload};

use crate::index::gpu_models::GpuModel;
use crate::objects::effective_policy::EffectivePolicy;
use crate::objects::object::WorkloadObject;
use crate::policy::read_pause;

/// The last published state of a workload, which gives the times since which its values hold.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct StateHistory {
    /// The last state, and its times.
    state: Option<Workload>,
}

/// Returns the state of a workload at `now`. The object counts as ready from the moment at which it was first seen ready, unless
/// its mark has the time.
pub fn build_managed(
    observed: &WorkloadObject,
    effective_policy: &EffectivePolicy,
    board: &GpuModel,
    paused: bool,
    origin: Origin,
    since: &mut StateHistory,
    now: EventTime,
) -> ManagedWorkload {
    let mark = observed.change_annotation.clone().unwrap_or_default();
    let generation = observed.layout_generation();
    let current = mark.applied.as_ref().filter(|applied| applied.generation == generation);
    let complete = observed.progress.complete() && !observed.suspended && !mark.resume;
    let before = since.state.as_ref().filter(|state| state.generation == generation);
    let ready_time = match current {
        Some(applied) => applied.ready_time,
        None if complete => Some(before.and_then(|state| state.ready_time).unwrap_or(now)),
        None => None,
    };
    let readable = observed.problems.is_empty();
    let mut state = Workload {
        time: now,
        workload: observed.workload(),
        origin,
        kind: observed.kind.kind.into(),
        generation,
        layout: observed.layout.clone(),
        // An object that cannot be read is only observed.
        mode: if readable { effective_policy.mode } else { UpdateMode::Observe },
        paused,
        mode_set_by: effective_policy.mode_set_by.clone().filter(|_| readable),
        pause_set_by: pause_set_by(observed, paused, since),
        controller: effective_policy.controller.clone(),
        controller_settings: effective_policy.controller_settings.clone(),
        bounds: effective_policy.bounds_for(&observed.layout),
        gpus: observed.gpus,
        gpu_model: board.model.clone(),
        gpu_power_limit_watts: board.power_limit_watts,
        backend: effective_policy.backend.clone(),
        global_batch_size: effective_policy.global_batch_size,
        price_per_kwh: effective_policy.price_per_kwh,
        carbon_grams_per_kwh: effective_policy.carbon_grams_per_kwh,
        decision_id: current.map(|applied| applied.decision_id.clone()),
        ready_time,
    };
    // The time since which this state holds: the former one if nothing changed, else that of the mark, else now.
    let marked = current.map(|applied| applied.ready_time.unwrap_or(applied.time)).or_else(|| {
        let back = mark.applied.as_ref()?.rolled_back.as_ref()?;
        (back.generation == generation && ready_time.is_none()).then_some(back.time)
    });
    state.time = match &since.state {
        Some(last) if equal_but_time(last, &state) => last.time,
        Some(last) => marked.filter(|time| *time > last.time).unwrap_or(now).max(last.time),
        None => marked.unwrap_or(now),
    };
    since.state = Some(state.clone());
    ManagedWorkload {
        state,
        applied: mark.applied,
        // Not known here: a node's default is its agent's.
        mps_default_thread_percentage: None,
        restarts: mark.restarts,
    }
}

/// Returns the user that paused or resumed the workload. A pause of the namespace, or its end, has none.
fn pause_set_by(observed: &WorkloadObject, paused: bool, since: &StateHistory) -> Option<String> {
    let own = observed.pause_set_by.clone().filter(|_| read_pause(&observed.annotations, &BTreeMap::new()).0 == paused)?;
    let resumed_by_namespace = |last: &Workload| !paused && last.pause_set_by.is_none();
    if since.state.as_ref().is_some_and(resumed_by_namespace) { None } else { Some(own) }
}

/// Returns true if both are equal in everything but the times of observation.
fn equal_but_time(a: &Workload, b: &Workload) -> bool {
    let timeless = |w: &Workload| Workload { time: EventTime::default(), ..w.clone() };
    timeless(a) == timeless(b)
}

#[cfg(test)]
mod tests {
    use eadt_cluster::AppliedDecision;
    use serde_json::{Value, json};

    use super::*;
    use crate::objects::effective_policy::AllowedKnobs;
    use crate::objects::object::tests::{seen, training};
    use crate::objects::record::{APPLIED, ChangeAnnotation};

    fn at(seconds: f64) -> EventTime {
        EventTime::from_seconds(1_767_225_600.0 + seconds)
    }

    fn effective_policy() -> EffectivePolicy {
        let knobs = AllowedKnobs { mps_thread_percentage: true, replicas: true, ..AllowedKnobs::default() };
        EffectivePolicy { mode: UpdateMode::Enforce, policy: Some("p".into()), knobs, ..EffectivePolicy::default() }
    }

    fn look(object: &Value, since: &mut StateHistory, seconds: f64) -> ManagedWorkload {
        build_managed(&seen(object), &effective_policy(), &GpuModel::default(), false, Origin::Measured, since, at(seconds))
    }

    #[test]
    fn a_state_keeps_its_time_until_it_changes() {
        let (object, mut since) = (training(6, "50", "6", "2"), StateHistory::default());
        let first = look(&object, &mut since, 10.0);
        assert_eq!((first.state.time, first.state.ready_time), (at(10.0), Some(at(10.0))));
        assert_eq!(look(&object, &mut since, 20.0), first);
        let mut broken = object.clone();
        broken["status"]["readyReplicas"] = json!(5);
        let worse = look(&broken, &mut since, 30.0);
        assert_eq!((worse.state.time, worse.state.ready_time), (at(30.0), None));
        assert_eq!(look(&object, &mut since, 40.0).state.ready_time, Some(at(40.0)));
    }

    #[test]
    fn the_times_of_a_change_are_those_of_its_mark() {
        let (mut object, mut since) = (training(6, "50", "6", "2"), StateHistory::default());
        look(&object, &mut since, 10.0);
        let mut applied = AppliedDecision {
            decision_id: "d".into(),
            decision_time: at(15.0),
            generation: 5,
            time: at(20.0),
            layout: seen(&object).layout,
            before: seen(&object).layout,
            ready_by: at(620.0),
            ready_time: None,
            rolled_back: None,
            approved_by: None,
        };
        let mut written = |applied: &AppliedDecision| {
            let mark = ChangeAnnotation { applied: Some(applied.clone()), ..ChangeAnnotation::default() };
            object["metadata"]["annotations"][APPLIED] = json!(serde_json::to_string(&mark).unwrap());
            object["metadata"]["generation"] = json!(5);
            object["status"]["observedGeneration"] = json!(5);
            object.clone()
        };
        let rolling = look(&written(&applied), &mut since, 21.0);
        assert_eq!((rolling.state.time, rolling.state.ready_time), (at(20.0), None), "not before its mark shows it");
        assert_eq!(rolling.state.decision_id.as_deref(), Some("d"));
        applied.ready_time = Some(at(50.0));
        let ready = look(&written(&applied), &mut since, 51.0);
        assert_eq!((ready.state.time, ready.state.ready_time), (at(50.0), Some(at(50.0))));
        // After a restart of the actuator the same is seen.
        let again = look(&written(&applied), &mut StateHistory::default(), 500.0);
        assert_eq!(again, ready);
    }

    #[test]
    fn what_cannot_be_read_is_only_observed() {
        let managed = look(&training(6, "50%", "6", "2"), &mut StateHistory::default(), 10.0);
        assert_eq!((managed.state.mode, managed.state.layout.mps_thread_percentage), (UpdateMode::Observe, None));
    }

    #[test]
    fn knobs_that_may_not_be_turned_are_pinned_by_the_bounds() {
        let mut effective_policy = effective_policy();
        effective_policy.knobs.replicas = false;
        let bounds = effective_policy.bounds_for(&seen(&training(6, "50", "6", "2")).layout);
        assert_eq!((bounds.replicas_min, bounds.replicas_max), (Some(6), Some(6)));
        assert_eq!((bounds.mps_thread_percentage_min, bounds.mps_thread_percentage_max), (None, None));
    }
}
