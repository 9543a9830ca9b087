//! Plans the writes of a change, a rollback, a take-over and a restoration. Pure.
//!
//! In: the object as it was just read, or as the watch last reported it. Out: values for exactly the fields that were taken over,
//! and the mark that is written with them in the same request; or the reason why nothing is written. Every write is fenced by the
//! resource version of that read.

use std::collections::BTreeMap;

use eadt_cluster::{AppliedDecision, ClusterError, ClusterRemedy, JobRequest, RollbackRecord, RollbackRequest, WorkloadChange};
use eadt_schemas::EventTime;
use eadt_schemas::v1::{Layout, UpdateMode};
use serde_json::{Value, json};

use crate::objects::effective_policy::{AllowedKnobs, EffectivePolicy};
use crate::objects::kinds::{TemplateUpdate, WorldSizeSource, WriteMethod, place_steps, value_at_mut};
use crate::objects::object::{
    GpuContainer, LOCAL_WORLD_SIZE, MPS_PERCENTAGE, VARIABLES, VariableValue, WORLD_SIZE, WorkloadObject,
};
use crate::objects::owners;
use crate::objects::record::{APPLIED, ChangeAnnotation, FormerField, ManagedField, TakeOverRecord};

/// Values of the fields that EADT owns; `None` if the field is not there.
pub type FieldValues = BTreeMap<ManagedField, Option<String>>;

/// One write to an object.
#[derive(Debug, Clone, PartialEq)]
pub struct ObjectWrite {
    pub values: FieldValues,
    pub change_annotation: ChangeAnnotation,
    /// New value of its suspend flag; `None` if the flag is not written.
    pub suspend: Option<bool>,
}

/// The result of planning a call.
#[derive(Debug, Clone, PartialEq)]
pub enum PlannedWrite {
    /// It was done before.
    Nothing,
    Write(Box<ObjectWrite>),
}

fn refuse<T>(detail: impl Into<String>) -> Result<T, ClusterError> {
    Err(ClusterError::new(ClusterRemedy::Refused, detail.into()))
}

fn conflict<T>(detail: impl Into<String>) -> Result<T, ClusterError> {
    Err(ClusterError::new(ClusterRemedy::Conflict, detail.into()))
}

/// Checks that the leadership under which this process writes is not older than the object's last one.
fn check_term(mark: &ChangeAnnotation, term: u64) -> Result<(), ClusterError> {
    if mark.term > term && !eadt_faults::is_off("fence") {
        return conflict(format!("another actuator leads: its term is {}, this one's {term}", mark.term));
    }
    Ok(())
}

/// Plans a change. `approved`: it may be made although the mode is `Recommend`.
pub fn plan_apply(
    observed: &WorkloadObject,
    effective_policy: &EffectivePolicy,
    paused: bool,
    approved: bool,
    change: &WorkloadChange,
    now: EventTime,
    term: u64,
) -> Result<PlannedWrite, ClusterError> {
    let mut mark = observed.change_annotation.clone().unwrap_or_default();
    if mark.applied.as_ref().is_some_and(|applied| applied.decision_id == change.decision_id) {
        return Ok(PlannedWrite::Nothing);
    }
    check_term(&mark, term)?;
    let generation = observed.layout_generation();
    if generation != change.generation && !eadt_faults::is_off("fence") {
        return conflict(format!("generation {generation} is in force, the change is for {}", change.generation));
    }
    if let Some(problem) = observed.problems.first() {
        return refuse(problem.clone());
    }
    if observed.deleting {
        return refuse("the object is being deleted");
    }
    let may = effective_policy.mode == UpdateMode::Enforce || effective_policy.mode == UpdateMode::Recommend && approved;
    if !may || paused {
        return conflict("the workload may not be changed any more");
    }
    if let Some(fields) = owners::describe_taken_back(&observed.taken_back) {
        return refuse(format!("another manager took fields back, so nothing is changed any more: {fields}"));
    }
    if !observed.progress.complete() || observed.suspended {
        return conflict(format!("generation {generation} is still rolling out"));
    }
    if let Some(knob) = effective_policy.knobs.first_forbidden(&observed.layout, &change.layout) {
        return refuse(format!("the policy does not allow its knob {knob} to be turned"));
    }
    check_layout_possible(observed, &change.layout)?;
    let values = layout_values(observed, &taken_over_fields(observed), &change.layout)?;
    let turned = changed_knobs(observed, &values);
    if turned.any() {
        check_knobs_allowed(observed, turned)?;
    }
    observed.number_mark(&mut mark, generation + 1, turned.any());
    mark.policy_uid.clone_from(&effective_policy.policy_uid);
    mark.applied = Some(AppliedDecision {
        decision_id: change.decision_id.clone(),
        decision_time: change.decision_time,
        generation: generation + 1,
        time: now,
        layout: change.layout.clone(),
        before: observed.layout.clone(),
        ready_by: now.plus_seconds(change.ready_within_seconds),
        // The pods, the agents of their nodes or the job must follow; if none of them is involved, the change is in force at
        // once.
        ready_time: (!turned.any()
            && agent_settings(&observed.layout) == agent_settings(&change.layout)
            && JobRequest::between(&observed.layout, &change.layout).is_none())
        .then_some(now),
        rolled_back: None,
        approved_by: change.approved_by.clone(),
    });
    Ok(PlannedWrite::Write(Box::new(complete_write(observed, values, turned, mark, &change.layout, now, term))))
}

/// Plans the rollback of a change that did not become ready, or that the job took back.
pub fn plan_roll_back(
    observed: &WorkloadObject,
    back: &RollbackRequest,
    reason: &str,
    now: EventTime,
    term: u64,
) -> Result<PlannedWrite, ClusterError> {
    let mut mark = observed.change_annotation.clone().unwrap_or_default();
    let generation = observed.layout_generation();
    let Some(applied) = mark.applied.as_ref().filter(|applied| applied.decision_id == back.decision_id) else {
        return conflict(format!("decision {} is not the last one applied", back.decision_id));
    };
    if applied.rolled_back.is_some() {
        return Ok(PlannedWrite::Nothing);
    }
    check_term(&mark, term)?;
    if generation != back.generation {
        return conflict(format!("generation {generation} is in force, the one to roll back is {}", back.generation));
    }
    if applied.ready_time.is_some() && !back.by_job {
        return conflict(format!("decision {} became ready meanwhile", back.decision_id));
    }
    let before = applied.layout_to_restore();
    let values = match (&observed.take_over, layout_values(observed, &taken_over_fields(observed), &before)) {
        (None, Err(_)) => return refuse("the record of taken-over fields is gone, so the former values are not known"),
        (_, values) => values?,
    };
    let turned = changed_knobs(observed, &values);
    observed.number_mark(&mut mark, generation + 1, turned.any());
    if let Some(applied) = &mut mark.applied {
        applied.rolled_back = Some(RollbackRecord { generation: generation + 1, time: now, reason: reason.to_owned() });
    }
    let together = mark.together;
    let mut write = complete_write(observed, values, turned, mark, &before, now, term);
    write.change_annotation.together |= together;
    Ok(PlannedWrite::Write(Box::new(write)))
}

/// Notes that every process of the last change is ready.
pub fn plan_ready(observed: &WorkloadObject, now: EventTime, term: u64) -> Result<PlannedWrite, ClusterError> {
    let Some(mut mark) = observed.change_annotation.clone() else { return Ok(PlannedWrite::Nothing) };
    check_term(&mark, term)?;
    let generation = observed.layout_generation();
    match &mut mark.applied {
        Some(applied) if applied.generation == generation && applied.ready_time.is_none() && applied.rolled_back.is_none() => {
            applied.ready_time = Some(now);
        }
        _ => return Ok(PlannedWrite::Nothing),
    }
    observed.number_mark(&mut mark, generation, false);
    Ok(PlannedWrite::Write(Box::new(rewrite_mark(observed, mark, None))))
}

/// Resumes a workload that was suspended for a change.
pub fn plan_resume(observed: &WorkloadObject, term: u64) -> Result<PlannedWrite, ClusterError> {
    let Some(mut mark) = observed.change_annotation.clone().filter(|mark| mark.resume && observed.suspended) else {
        return Ok(PlannedWrite::Nothing);
    };
    check_term(&mark, term)?;
    mark.resume = false;
    // It belongs to the change before: one change, one generation.
    observed.number_mark(&mut mark, observed.layout_generation(), true);
    Ok(PlannedWrite::Write(Box::new(rewrite_mark(observed, mark, Some(false)))))
}

/// Returns a write that leaves the values as they are.
fn rewrite_mark(observed: &WorkloadObject, mark: ChangeAnnotation, suspend: Option<bool>) -> ObjectWrite {
    let fields = observed.take_over.iter().flat_map(|take_over| take_over.fields.iter().map(|former| &former.field));
    let values = fields.map(|field| (field.clone(), current_value(observed, field))).collect();
    ObjectWrite { values, change_annotation: mark, suspend }
}

fn complete_write(
    observed: &WorkloadObject,
    values: FieldValues,
    turned: ChangedKnobs,
    mut mark: ChangeAnnotation,
    layout: &Layout,
    now: EventTime,
    term: u64,
) -> ObjectWrite {
    mark.term = term;
    mark.together = turned.world_size && observed.kind.world_size_source == WorldSizeSource::Variables;
    mark.power_limit_watts = layout.power_limit_watts;
    mark.sm_clock_mhz = layout.sm_clock_mhz;
    (mark.precision, mark.frozen_prefix_layers) = layout.asked_of_job();
    let suspends = turned.any() && observed.kind.environment == TemplateUpdate::Suspended;
    mark.resume = suspends;
    if turned.any() {
        mark.note_restart(now);
    }
    ObjectWrite { values, change_annotation: mark, suspend: suspends.then_some(true) }
}

/// The difference between an object and the values to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ChangedKnobs {
    variables: bool,
    /// Number of processes.
    world_size: bool,
}

impl ChangedKnobs {
    const fn any(self) -> bool {
        self.variables || self.world_size
    }
}

fn changed_knobs(observed: &WorkloadObject, values: &FieldValues) -> ChangedKnobs {
    let differs = |of_world: bool| {
        let is_of_world = |field: &ManagedField| !matches!(field, ManagedField::Variable { name, .. } if name == MPS_PERCENTAGE);
        values.iter().any(|(field, value)| is_of_world(field) == of_world && current_value(observed, field) != *value)
    };
    ChangedKnobs { variables: differs(false), world_size: differs(true) }
}

/// Refuses changes that the kind never allows. Its fields cannot be taken over, so a write would wait for them in vain.
fn check_layout_possible(observed: &WorkloadObject, to: &Layout) -> Result<(), ClusterError> {
    let world = |layout: &Layout| (layout.replicas, layout.world_size, layout.local_world_size);
    let (from, kind) = (&observed.layout, observed.kind);
    let environment = from.mps_thread_percentage != to.mps_thread_percentage;
    for (turns, how) in [(environment, kind.environment), (world(from) != world(to), kind.scale)] {
        if let (true, TemplateUpdate::Immutable(why)) = (turns, how) {
            return refuse(format!("{why}: it can only be recommended"));
        }
    }
    Ok(())
}

/// Returns the record of taken-over fields; empty if the object has none.
fn taken_over_fields(observed: &WorkloadObject) -> TakeOverRecord {
    observed.take_over.clone().unwrap_or_default()
}

fn check_knobs_allowed(observed: &WorkloadObject, turned: ChangedKnobs) -> Result<(), ClusterError> {
    match observed
        .strategy
        .forbids(observed.kind, turned.world_size && observed.kind.world_size_source == WorldSizeSource::Variables)
    {
        Some(why) => refuse(why),
        None => Ok(()),
    }
}

/// Returns the fields of the knobs that may be turned, with their present values.
pub fn knob_fields(observed: &WorkloadObject, knobs: AllowedKnobs) -> Vec<ManagedField> {
    let mut fields = Vec::new();
    let can = |turn: TemplateUpdate| !matches!(turn, TemplateUpdate::Immutable(_));
    let mut variables = |names: &[&str]| {
        for (container, name) in observed.containers.iter().flat_map(|c| names.iter().map(move |name| (c, *name))) {
            fields.push(ManagedField::Variable {
                template: container.place.clone(),
                container: container.name.clone(),
                name: name.to_owned(),
            });
        }
    };
    if knobs.mps_thread_percentage && can(observed.kind.environment) {
        variables(&[MPS_PERCENTAGE]);
    }
    if knobs.replicas && can(observed.kind.scale) {
        if observed.kind.world_size_source == WorldSizeSource::Variables {
            variables(&[WORLD_SIZE, LOCAL_WORLD_SIZE]);
        }
        fields.push(ManagedField::Replicas);
    }
    fields
}

/// Returns the present value of a field of the object.
pub fn current_value(observed: &WorkloadObject, field: &ManagedField) -> Option<String> {
    match field {
        ManagedField::Replicas => observed.scaled_pods.map(|count| count.to_string()),
        ManagedField::Variable { template, container, name } => {
            match observed
                .containers
                .iter()
                .find(|c| c.place == *template && c.name == *container)?
                .variables
                .get(name.as_str())?
            {
                VariableValue::Number(number) => Some(number.to_string()),
                VariableValue::Foreign(_) => None,
            }
        }
    }
}

/// Values of the taken fields for a layout.
fn layout_values(observed: &WorkloadObject, take_over: &TakeOverRecord, layout: &Layout) -> Result<FieldValues, ClusterError> {
    let has = |field: &ManagedField| take_over.fields.iter().any(|former| former.field == *field);
    let text = |number: Option<u32>| number.map(|number| number.to_string());
    let mut values = FieldValues::new();
    let mut missing = None;
    for container in &observed.containers {
        let wanted = [
            (MPS_PERCENTAGE, layout.mps_thread_percentage, observed.layout.mps_thread_percentage, true),
            (
                WORLD_SIZE,
                layout.world_size,
                observed.layout.world_size,
                observed.kind.world_size_source == WorldSizeSource::Variables,
            ),
            (
                LOCAL_WORLD_SIZE,
                layout.local_world_size,
                observed.layout.local_world_size,
                observed.kind.world_size_source == WorldSizeSource::Variables,
            ),
        ];
        for (name, wanted, now, written) in wanted {
            let field = ManagedField::Variable {
                template: container.place.clone(),
                container: container.name.clone(),
                name: name.to_owned(),
            };
            if !has(&field) {
                // A container that is new since the take-over, or a knob that was enabled since.
                if written && wanted != now {
                    missing.get_or_insert(field);
                }
                continue;
            }
            // Variables that the layout does not cover stay: LOCAL_WORLD_SIZE without MPS has another meaning.
            let value = if wanted == now { current_value(observed, &field) } else { text(wanted) };
            values.insert(field, value);
        }
    }
    if has(&ManagedField::Replicas) {
        values.insert(ManagedField::Replicas, Some(scaled_replicas(observed, layout)?.to_string()));
    } else if layout.replicas != observed.layout.replicas {
        missing.get_or_insert(ManagedField::Replicas);
    }
    match missing {
        Some(field) => Err(ClusterError::new(ClusterRemedy::Retry, format!("{field} has not been taken over yet"))),
        None => Ok(values),
    }
}

/// Returns the number to write for the part that is scaled.
fn scaled_replicas(observed: &WorkloadObject, layout: &Layout) -> Result<u32, ClusterError> {
    let Some(now) = observed.scaled_pods else { return refuse("its number of processes cannot be changed") };
    let processes = layout.replicas.or(observed.layout.replicas).unwrap_or(observed.pods);
    if Some(processes) == observed.layout.replicas {
        return Ok(now);
    }
    let ranks = observed.ranks_per_pod.max(1);
    if !processes.is_multiple_of(ranks) {
        return refuse(format!("{processes} processes do not make whole pods of {ranks} processes each"));
    }
    let fixed = observed.pods - now.min(observed.pods);
    match (processes / ranks).checked_sub(fixed).filter(|count| *count > 0) {
        Some(count) => Ok(count),
        None => refuse(format!("{processes} processes are fewer than the part that cannot be scaled and one more")),
    }
}

/// Plans the take-over of these fields, with a record of their former values and owners; `None` if there is nothing to take
/// over.
pub fn plan_take_over(
    observed: &WorkloadObject,
    effective_policy: &EffectivePolicy,
    managed_fields: &Value,
    now: EventTime,
) -> Option<TakeOverRecord> {
    let wanted = knob_fields(observed, effective_policy.knobs);
    let known = taken_over_fields(observed);
    if wanted.iter().all(|field| known.fields.iter().any(|former| former.field == *field)) {
        return None;
    }
    let (policy, policy_uid) = (effective_policy.policy.clone().unwrap_or_default(), effective_policy.policy_uid.clone());
    let mut take_over = TakeOverRecord { time: now, policy, policy_uid, fields: known.fields };
    for field in wanted {
        if !take_over.fields.iter().any(|former| former.field == field) {
            let owners = match observed.kind.write_method {
                WriteMethod::ServerSideApply => crate::objects::owners::field_owners(managed_fields, observed.kind, &field),
                WriteMethod::ReplaceList => vec![],
            };
            take_over.fields.push(FormerField { value: current_value(observed, &field), owners, field });
        }
    }
    Some(take_over)
}

/// Plans the restoration of the values before the take-over; `lost`: fields that another manager took back. Fields that define
/// the number of processes are restored together or not at all: if another manager owns the number of pods by now, the former
/// world size would not match it. `None` if nothing has changed.
pub fn plan_restore(
    observed: &WorkloadObject,
    lost: &[ManagedField],
    now: EventTime,
    term: u64,
) -> Result<Option<ObjectWrite>, ClusterError> {
    let Some(take_over) = &observed.take_over else { return Ok(None) };
    let of_world = |field: &ManagedField| !matches!(field, ManagedField::Variable { name, .. } if name == MPS_PERCENTAGE);
    let world_is_lost = observed.kind.world_size_source == WorldSizeSource::Variables && lost.iter().any(of_world);
    let stays = |field: &ManagedField| world_is_lost && of_world(field);
    // Unchanged values are written, too: an apply deletes fields that it leaves out, if no other manager owns them.
    let value =
        |former: &FormerField| if stays(&former.field) { current_value(observed, &former.field) } else { former.value.clone() };
    let own = take_over.fields.iter().filter(|former| !lost.contains(&former.field));
    let values: FieldValues = own.map(|former| (former.field.clone(), value(former))).collect();
    let turned = changed_knobs(observed, &values);
    let mut mark = observed.change_annotation.clone().unwrap_or_default();
    check_term(&mark, term)?;
    if !turned.any() {
        return Ok(None);
    }
    mark.applied = None;
    observed.number_mark(&mut mark, observed.layout_generation() + 1, true);
    let layout = Layout::default();
    Ok(Some(complete_write(observed, values, turned, mark, &layout, now, term)))
}

/// Returns a write as a server-side apply: exactly the fields that EADT owns.
pub fn apply_configuration(observed: &WorkloadObject, write: &ObjectWrite) -> Value {
    let mut templates: BTreeMap<&str, BTreeMap<&str, Vec<Value>>> = BTreeMap::new();
    let mut object = json!({
        "apiVersion": observed.kind.api_version(),
        "kind": observed.kind.kind,
        "metadata": {
            "name": observed.name, "namespace": observed.namespace, "uid": observed.uid, "resourceVersion": observed.resource_version,
            "annotations": {APPLIED: json_text(&write.change_annotation)},
        },
    });
    for (field, value) in &write.values {
        let Some(value) = value else { continue };
        match field {
            ManagedField::Replicas => set_replicas(observed, &mut object, value),
            ManagedField::Variable { template, container, name } => {
                let variables = templates.entry(template).or_default().entry(container).or_default();
                variables.push(json!({"name": name, "value": value}));
            }
        }
    }
    for (template, mut containers) in templates {
        for (name, variables) in &mut containers {
            let container = observed.containers.iter().find(|c| c.place == template && c.name == *name);
            let place = |variable: &Value| container.and_then(|c| c.order.iter().position(|known| variable["name"] == **known));
            variables.sort_by_key(|variable| place(variable).unwrap_or(usize::MAX));
        }
        let path: Vec<_> =
            observed.containers.iter().find(|c| c.place == template).map(|c| c.template.clone()).unwrap_or_default();
        let list: Vec<_> = containers.into_iter().map(|(name, env)| json!({"name": name, "env": env})).collect();
        if let Some(place) = value_at_mut(&mut object, &path) {
            *place = json!({"spec": {"containers": list}});
        }
    }
    object
}

/// Returns a write as a merge patch of a custom resource: whole lists, read from `object` at the same resource version.
pub fn merge_write(observed: &WorkloadObject, object: &Value, write: &ObjectWrite) -> Value {
    let mut whole = object.clone();
    for container in &observed.containers {
        set_variables(&mut whole, container, &write.values);
    }
    if let Some(Some(value)) = write.values.get(&ManagedField::Replicas) {
        set_replicas(observed, &mut whole, value);
    }
    if let (Some(suspend), Some(place)) = (write.suspend, observed.kind.suspend)
        && let Some(flag) = value_at_mut(&mut whole, &place_steps(place))
    {
        *flag = suspend.into();
    }
    json!({
        "metadata": {
            "uid": observed.uid, "resourceVersion": observed.resource_version, "annotations": {APPLIED: json_text(&write.change_annotation)},
        },
        "spec": whole["spec"],
    })
}

fn set_replicas(observed: &WorkloadObject, object: &mut Value, value: &str) {
    if let (Some(place), Ok(count)) = (observed.kind.scaled, value.parse::<u32>())
        && let Some(replicas) = value_at_mut(object, &place_steps(place))
    {
        *replicas = count.into();
    }
}

fn set_variables(object: &mut Value, container: &GpuContainer, values: &FieldValues) {
    // For a kind without templates nothing is written there, and missing fields are not created.
    let Some(template) = value_at_mut(object, &container.template) else { return };
    let containers = template.pointer_mut("/spec/containers");
    let Some(found) = containers.and_then(|list| list.get_mut(container.index)) else { return };
    if !found["env"].is_array() {
        found["env"] = json!([]);
    }
    let Some(env) = found["env"].as_array_mut() else { return };
    for name in VARIABLES {
        let field = ManagedField::Variable {
            template: container.place.clone(),
            container: container.name.clone(),
            name: name.to_owned(),
        };
        let Some(value) = values.get(&field) else { continue };
        let place = env.iter().position(|entry| entry["name"] == name);
        match (value, place) {
            (Some(value), Some(place)) => env[place]["value"] = json!(value),
            (Some(value), None) => env.push(json!({"name": name, "value": value})),
            (None, Some(place)) => drop(env.remove(place)),
            (None, None) => {}
        }
    }
}

fn json_text(value: &impl serde::Serialize) -> String {
    eadt_faults::written(serde_json::to_string(value).expect("marks have string keys and no failing serialiser"))
}

/// Returns the settings of a layout that agents hold.
pub fn agent_settings(layout: &Layout) -> (Option<f64>, Option<f64>) {
    (layout.power_limit_watts, layout.sm_clock_mhz)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::objects::object::tests::{seen, training};
    use crate::objects::record::TAKEN_OVER;

    fn at(seconds: f64) -> EventTime {
        EventTime::from_seconds(1_767_225_600.0 + seconds)
    }

    fn effective_policy() -> EffectivePolicy {
        let knobs = AllowedKnobs { mps_thread_percentage: true, replicas: true, ..AllowedKnobs::default() };
        EffectivePolicy { policy: Some("p".into()), mode: UpdateMode::Enforce, knobs, ..EffectivePolicy::default() }
    }

    /// Returns an object whose fields were taken over.
    fn taken(mut object: Value) -> Value {
        let record = plan_take_over(&seen(&object), &effective_policy(), &json!([]), at(0.0)).unwrap();
        object["metadata"]["annotations"][TAKEN_OVER] = json!(json_text(&record));
        object
    }

    fn layout(replicas: u32, percentage: u32, local: u32) -> Layout {
        Layout {
            replicas: Some(replicas),
            mps_thread_percentage: Some(percentage),
            world_size: Some(replicas),
            local_world_size: Some(local),
            ..Layout::default()
        }
    }

    fn change(id: &str, generation: u64, layout: Layout) -> WorkloadChange {
        WorkloadChange {
            workload: "eadt/llm-training".into(),
            decision_id: id.into(),
            decision_time: at(60.0),
            generation,
            layout,
            restarts: true,
            reverts: false,
            ready_within_seconds: 600.0,
            approved_by: None,
        }
    }

    fn planned(object: &Value, change: &WorkloadChange) -> Result<ObjectWrite, ClusterError> {
        match plan_apply(&seen(object), &effective_policy(), false, false, change, at(70.0), 1)? {
            PlannedWrite::Write(write) => Ok(*write),
            PlannedWrite::Nothing => panic!("nothing to write"),
        }
    }

    /// Returns the object as an API server would store a write, with the progress of its controller.
    fn written(object: &Value, before: &WorkloadObject, write: &ObjectWrite) -> Value {
        let mut after = object.clone();
        for container in &before.containers {
            set_variables(&mut after, container, &write.values);
        }
        if let Some(Some(replicas)) = write.values.get(&ManagedField::Replicas) {
            set_replicas(before, &mut after, replicas);
        }
        after["metadata"]["annotations"][APPLIED] = json!(json_text(&write.change_annotation));
        let annotated = before.kind.annotations_count && after["metadata"] != object["metadata"];
        if after["spec"] != object["spec"] || annotated {
            let generation = before.generation + 1;
            after["metadata"]["generation"] = json!(generation);
            after["status"]["observedGeneration"] = json!(generation);
        }
        for name in ["replicas", "readyReplicas", "updatedReplicas"] {
            after["status"][name] = after["spec"]["replicas"].clone();
        }
        after
    }

    #[test]
    fn a_change_writes_exactly_what_was_taken_over_in_one_fenced_piece() {
        let object = taken(training(6, "50", "6", "2"));
        let write = planned(&object, &change("d-1", 4, layout(9, 35, 3))).unwrap();
        assert!(write.change_annotation.together && write.suspend.is_none());
        let applied = write.change_annotation.applied.clone().unwrap();
        assert_eq!((applied.generation, applied.before, applied.ready_time), (5, layout(6, 50, 2), None));
        let configuration = apply_configuration(&seen(&object), &write);
        assert_eq!(configuration["metadata"]["resourceVersion"], "100");
        assert_eq!(
            configuration["spec"],
            json!({"replicas": 9, "template": {"spec": {"containers": [{"name": "train", "env": [
                {"name": MPS_PERCENTAGE, "value": "35"}, {"name": WORLD_SIZE, "value": "9"}, {"name": LOCAL_WORLD_SIZE, "value": "3"},
            ]}]}}})
        );
        let rolled = planned(&object, &change("d-1", 4, layout(6, 40, 2))).unwrap();
        assert!(!rolled.change_annotation.together, "the same world may roll");
    }

    #[test]
    fn a_change_is_written_once_and_only_for_its_generation_by_whoever_leads() {
        let object = taken(training(6, "50", "6", "2"));
        let first = change("d-1", 4, layout(6, 40, 2));
        let after = written(&object, &seen(&object), &planned(&object, &first).unwrap());
        assert_eq!(plan_apply(&seen(&after), &effective_policy(), false, false, &first, at(80.0), 1), Ok(PlannedWrite::Nothing));
        let remedy = |object: &Value, change: &WorkloadChange, effective_policy: &EffectivePolicy, paused, term| {
            plan_apply(&seen(object), effective_policy, paused, false, change, at(70.0), term).unwrap_err().remedy
        };
        let next = change("d-2", 5, layout(6, 30, 2));
        assert_eq!(remedy(&after, &change("d-2", 4, layout(6, 30, 2)), &effective_policy(), false, 1), ClusterRemedy::Conflict);
        assert_eq!(remedy(&after, &next, &effective_policy(), false, 0), ClusterRemedy::Conflict, "a leader of an earlier term");
        assert_eq!(remedy(&after, &next, &effective_policy(), true, 1), ClusterRemedy::Conflict, "paused meanwhile");
        let recommend = EffectivePolicy { mode: UpdateMode::Recommend, ..effective_policy() };
        assert_eq!(remedy(&after, &next, &recommend, false, 1), ClusterRemedy::Conflict);
        assert!(plan_apply(&seen(&after), &recommend, false, true, &next, at(70.0), 1).is_ok(), "approved");
        let mut narrow = effective_policy();
        narrow.knobs.mps_thread_percentage = false;
        assert_eq!(remedy(&after, &next, &narrow, false, 1), ClusterRemedy::Refused);
        let fresh = training(6, "50", "6", "2");
        assert_eq!(remedy(&fresh, &first, &effective_policy(), false, 1), ClusterRemedy::Retry, "not taken over yet");
        let capped = Layout { power_limit_watts: Some(300.0), ..layout(6, 50, 2) };
        let mut caps = effective_policy();
        caps.knobs.power_limit = true;
        let Ok(PlannedWrite::Write(write)) =
            plan_apply(&seen(&object), &caps, false, false, &change("d-3", 4, capped), at(70.0), 1)
        else {
            panic!("a cap can be asked for")
        };
        assert_eq!(
            (write.change_annotation.power_limit_watts, write.suspend, &write.change_annotation.restarts[..]),
            (Some(300.0), None, &[][..])
        );
        let applied = write.change_annotation.applied.clone().unwrap();
        assert_eq!((applied.generation, applied.ready_time), (5, None), "agents have to hold it first");
        let after = written(&object, &seen(&object), &write);
        assert_eq!((after["spec"].clone(), seen(&after).layout_generation()), (object["spec"].clone(), 5));
    }

    #[test]
    fn the_world_goes_back_together_or_not_at_all() {
        let object = taken(training(6, "50", "6", "2"));
        let known = seen(&object);
        let write = planned(&object, &change("d-1", known.layout_generation(), layout(9, 35, 3))).unwrap();
        let after = written(&object, &known, &write);
        let back = |lost: &[ManagedField]| plan_restore(&seen(&after), lost, at(90.0), 1).unwrap().map(|write| write.values);
        let names = |values: FieldValues| values.into_keys().map(|field| field.to_string()).collect::<Vec<_>>().join(", ");
        assert!(names(back(&[]).unwrap()).contains("replicas"));
        // Another manager owns the number of pods by now: they are nine, and so is their world size.
        let write = plan_restore(&seen(&after), &[ManagedField::Replicas], at(90.0), 1).unwrap().unwrap();
        assert!(!names(write.values.clone()).contains("replicas"));
        // An apply deletes fields that it leaves out, if no other manager owns them.
        let applied = apply_configuration(&seen(&after), &write);
        let env = &applied["spec"]["template"]["spec"]["containers"][0]["env"];
        let value =
            |name: &str| env.as_array().unwrap().iter().find(|variable| variable["name"] == name).unwrap()["value"].clone();
        assert_eq!((value(MPS_PERCENTAGE), value(WORLD_SIZE), value(LOCAL_WORLD_SIZE)), (json!("50"), json!("9"), json!("3")));
    }

    #[test]
    fn what_cannot_be_rolled_out_is_refused_with_its_reason() {
        let refused = |object: &Value, to: Layout| planned(&taken(object.clone()), &change("d", 4, to)).unwrap_err().detail;
        let mut object = training(6, "50", "6", "2");
        object["spec"]["updateStrategy"] = json!({"type": "OnDelete"});
        assert!(refused(&object, layout(6, 40, 2)).contains("OnDelete"));
        object["kind"] = json!("Deployment");
        assert!(refused(&object, layout(9, 35, 3)).contains("Recreate"));
        let mut job = training(6, "50", "6", "2");
        job["apiVersion"] = json!("batch/v1");
        job["kind"] = json!("Job");
        job["spec"]["parallelism"] = json!(6);
        job["status"] = json!({"ready": 6});
        assert_eq!(
            knob_fields(&seen(&job), effective_policy().knobs),
            [],
            "nothing of a Job can be turned, so nothing is taken over"
        );
        assert_eq!(
            plan_take_over(&seen(&job), &effective_policy(), &json!([]), at(0.0)),
            None,
            "and nothing is written down of it"
        );
        for (to, why) in [(layout(6, 40, 2), "environment of a Job's pods is immutable"), (layout(9, 50, 3), "world of a Job's")]
        {
            let refusal = planned(&job, &change("d", 4, to)).unwrap_err();
            assert_eq!(refusal.remedy, ClusterRemedy::Refused, "{refusal}");
            assert!(refusal.detail.contains(why) && refusal.detail.contains("can only be recommended"), "{refusal}");
        }
    }

    #[test]
    fn what_has_no_field_of_its_own_is_asked_for_and_taken_back_without_a_record() {
        let mut job = training(6, "50", "6", "2");
        (job["apiVersion"], job["kind"], job["spec"]["parallelism"]) = (json!("batch/v1"), json!("Job"), json!(6));
        job["status"] = json!({"ready": 6});
        let caps = EffectivePolicy { knobs: AllowedKnobs { power_limit: true, ..AllowedKnobs::default() }, ..effective_policy() };
        let capped = Layout { power_limit_watts: Some(300.0), ..layout(6, 50, 2) };
        let asked = plan_apply(&seen(&job), &caps, false, false, &change("d", 4, capped), at(70.0), 1);
        let Ok(PlannedWrite::Write(write)) = asked else { panic!("a cap can be asked for: {asked:?}") };
        let mut after = job.clone();
        after["metadata"]["annotations"][APPLIED] = json!(json_text(&write.change_annotation));
        let back = RollbackRequest {
            workload: "eadt/llm-training".into(),
            decision_id: "d".into(),
            generation: 5,
            by_job: false,
            reason: "not held".into(),
        };
        let undone = plan_roll_back(&seen(&after), &back, "not held", at(80.0), 1);
        let Ok(PlannedWrite::Write(write)) = undone else { panic!("it can be taken back: {undone:?}") };
        assert_eq!((write.change_annotation.power_limit_watts, write.values), (None, FieldValues::new()));
        // Restored fields must be known.
        let set = taken(training(6, "50", "6", "2"));
        let threads = planned(&set, &change("d", 4, layout(6, 40, 2))).unwrap();
        let mut lost = written(&set, &seen(&set), &threads);
        lost["metadata"]["annotations"].as_object_mut().unwrap().remove(TAKEN_OVER);
        let refusal = plan_roll_back(&seen(&lost), &back, "not ready", at(80.0), 1).unwrap_err();
        assert!(refusal.remedy == ClusterRemedy::Refused && refusal.detail.contains("is gone"), "{refusal}");
    }

    #[test]
    fn what_the_job_takes_back_after_it_was_ready_is_restored_once() {
        let mut job = training(6, "50", "6", "2");
        (job["apiVersion"], job["kind"], job["spec"]["parallelism"]) = (json!("batch/v1"), json!("Job"), json!(6));
        job["status"] = json!({"ready": 6});
        let knobs = AllowedKnobs { frozen_layers: true, ..AllowedKnobs::default() };
        let policy = EffectivePolicy { knobs, ..effective_policy() };
        let frozen = Layout { frozen_prefix_layers: Some(2), ..layout(6, 50, 2) };
        let mark = |job: &mut Value, planned: PlannedWrite| {
            let PlannedWrite::Write(write) = planned else { panic!("something is written") };
            job["metadata"]["annotations"][APPLIED] = json!(json_text(&write.change_annotation));
        };
        let planned = plan_apply(&seen(&job), &policy, false, false, &change("d", 4, frozen), at(70.0), 1).unwrap();
        mark(&mut job, planned);
        let planned = plan_ready(&seen(&job), at(80.0), 1).unwrap();
        mark(&mut job, planned);
        assert_eq!(seen(&job).layout.frozen_prefix_layers, Some(2));
        let late = RollbackRequest {
            workload: "eadt/llm-training".into(),
            decision_id: "d".into(),
            generation: 5,
            by_job: false,
            reason: "late".into(),
        };
        let by_job = RollbackRequest { by_job: true, ..late.clone() };
        let older = RollbackRequest { generation: 4, ..by_job.clone() };
        for (back, term) in [(&late, 1), (&older, 1), (&by_job, 0)] {
            let refusal = plan_roll_back(&seen(&job), back, "weights moved", at(90.0), term).unwrap_err();
            assert_eq!(refusal.remedy, ClusterRemedy::Conflict, "{back:?} in term {term}: {refusal}");
        }
        let planned = plan_roll_back(&seen(&job), &by_job, "weights moved", at(90.0), 1).unwrap();
        mark(&mut job, planned);
        let restored = seen(&job);
        assert_eq!((restored.layout.frozen_prefix_layers, restored.layout_generation()), (None, 6));
        assert_eq!(plan_roll_back(&restored, &by_job, "weights moved", at(91.0), 1).unwrap(), PlannedWrite::Nothing);
    }

    #[test]
    fn a_cap_of_a_train_job_writes_nothing_into_its_trainer() {
        let job = json!({
            "apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob",
            "metadata": {"name": "j", "namespace": "n", "uid": "u", "resourceVersion": "1", "generation": 1, "annotations": {}},
            "spec": {"trainer": {
                "numNodes": 3, "env": [{"name": MPS_PERCENTAGE, "value": "50"}], "resourcesPerNode": {"limits": {"nvidia.com/gpu": 1}},
            }},
        });
        let caps = EffectivePolicy {
            knobs: AllowedKnobs { power_limit: true, ..AllowedKnobs::default() },
            policy_uid: "p-1".into(),
            ..effective_policy()
        };
        let before = seen(&job);
        let capped = Layout { power_limit_watts: Some(300.0), ..before.layout.clone() };
        let asked = plan_apply(&before, &caps, false, false, &change("d", 1, capped), at(70.0), 1);
        let Ok(PlannedWrite::Write(write)) = asked else { panic!("a cap can be asked for: {asked:?}") };
        assert_eq!(merge_write(&before, &job, &write)["spec"], job["spec"]);
        assert_eq!((write.change_annotation.power_limit_watts, &*write.change_annotation.policy_uid), (Some(300.0), "p-1"));
    }

    #[test]
    fn a_job_of_an_operator_is_suspended_changed_and_resumed_as_one_generation() {
        let pod = json!({"spec": {"containers": [
            {"name": "pytorch", "image": "i", "resources": {"limits": {"nvidia.com/gpu": 1}},
             "env": [{"name": "A", "value": "b"}, {"name": MPS_PERCENTAGE, "value": "60"}]}
        ]}});
        let object = json!({
            "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob",
            "metadata": {"name": "j", "namespace": "n", "uid": "u", "resourceVersion": "1", "generation": 1, "annotations": {}},
            "spec": {"pytorchReplicaSpecs": {"Master": {"replicas": 1, "template": pod}, "Worker": {"replicas": 3, "template": pod}}},
            "status": {"replicaStatuses": {"Master": {"active": 1}, "Worker": {"active": 3}},
                "conditions": [{"type": "Running", "status": "True"}]},
        });
        let object = taken(object);
        let to = Layout { replicas: Some(8), mps_thread_percentage: Some(40), ..Layout::default() };
        let write = planned(&object, &change("d", 1, to)).unwrap();
        let patch = merge_write(&seen(&object), &object, &write);
        assert_eq!(patch["spec"]["runPolicy"]["suspend"], true);
        assert_eq!(patch["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"], 7);
        let container = &patch["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"][0];
        assert_eq!(container["env"], json!([{"name": "A", "value": "b"}, {"name": MPS_PERCENTAGE, "value": "40"}]));
        assert_eq!(container["image"], "i", "lists are written back whole");

        let mut suspended = object.clone();
        suspended["spec"] = patch["spec"].clone();
        suspended["metadata"]["annotations"][APPLIED] = patch["metadata"]["annotations"][APPLIED].clone();
        suspended["metadata"]["generation"] = json!(2);
        assert_eq!(seen(&suspended).layout_generation(), 2);
        let PlannedWrite::Write(resumed) = plan_resume(&seen(&suspended), 1).unwrap() else { panic!("it is suspended") };
        assert_eq!(resumed.suspend, Some(false));
        suspended["metadata"]["annotations"][APPLIED] = json!(json_text(&resumed.change_annotation));
        suspended["metadata"]["generation"] = json!(3);
        assert_eq!(seen(&suspended).layout_generation(), 2, "resuming is no change of its own");
    }

    proptest! {
        /// Checks that for all sequences of changes, rollbacks and foreign annotations generations grow by one with each
        /// change, and that at the end everything is as before the take-over.
        #[test]
        fn every_history_ends_as_it_began(
            recreate in any::<bool>(),
            steps in prop::collection::vec((1_u32..5, 1_u32..=100, any::<bool>(), any::<bool>()), 1..8),
        ) {
            let mut original = training(6, "50", "6", "2");
            if recreate {
                original["kind"] = json!("Deployment");
                original["spec"]["strategy"] = json!({"type": "Recreate"});
            }
            let mut object = taken(original.clone());
            let mut before = seen(&object);
            let write_to = |object: &mut Value, known: &mut WorkloadObject, planned: PlannedWrite| {
                if let PlannedWrite::Write(write) = planned {
                    *object = written(object, known, &write);
                    *known = seen(object).with_history_of(known);
                }
            };
            for (number, (per_gpu, percentage, fails, annotated)) in steps.into_iter().enumerate() {
                if annotated {
                    object["metadata"]["annotations"]["somebody"] = json!(number.to_string());
                    // Its controller has not looked yet.
                    object["metadata"]["generation"] = json!(before.generation + i64::from(recreate));
                    let generation = before.layout_generation();
                    let noted = before.change_annotation.as_ref().is_some_and(|mark| mark.spec.is_some());
                    before = seen(&object).with_history_of(&before);
                    prop_assert_eq!(before.layout_generation(), generation);
                    if noted {
                        prop_assert_eq!(seen(&object).layout_generation(), generation, "another process knows it, too");
                    }
                }
                let to = layout(3 * per_gpu, percentage, per_gpu);
                let change = change(&format!("d-{number}"), before.layout_generation(), to.clone());
                let mut known = before.clone();
                write_to(&mut object, &mut known, plan_apply(&before, &effective_policy(), false, false, &change, at(70.0), 1).unwrap());
                prop_assert_eq!(&known.layout, &to);
                prop_assert_eq!(known.layout_generation(), before.layout_generation() + 1);
                prop_assert_eq!(seen(&object).layout_generation(), known.layout_generation(), "a new mark counts for itself");
                prop_assert_eq!(known.change_annotation.clone().unwrap().applied.unwrap().generation, before.layout_generation() + 1);
                let expected = if fails && to != before.layout {
                    let back = RollbackRequest {
                        workload: change.workload,
                        decision_id: change.decision_id,
                        generation: before.layout_generation() + 1,
                        by_job: false,
                        reason: "not ready".into(),
                    };
                    let planned = plan_roll_back(&known, &back, "not ready", at(80.0), 1).unwrap();
                    write_to(&mut object, &mut known, planned);
                    prop_assert_eq!(&known.layout, &before.layout);
                    prop_assert_eq!(plan_roll_back(&known, &back, "again", at(81.0), 1).unwrap(), PlannedWrite::Nothing);
                    before.layout_generation() + 2
                } else {
                    let planned = plan_ready(&known, at(80.0), 1).unwrap();
                    write_to(&mut object, &mut known, planned);
                    before.layout_generation() + 1
                };
                prop_assert_eq!(known.layout_generation(), expected);
                prop_assert_eq!(seen(&object).layout_generation(), expected);
                before = known;
            }
            if let Some(write) = plan_restore(&before, &[], at(90.0), 1).unwrap() {
                object = written(&object, &before, &write);
                prop_assert_eq!(seen(&object).layout_generation(), before.layout_generation() + 1);
            }
            prop_assert_eq!(&object["spec"], &original["spec"]);
            prop_assert_eq!(plan_restore(&seen(&object), &[], at(91.0), 1).unwrap(), None);
        }
    }
}
