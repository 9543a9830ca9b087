//! Terms for the actuator from a policy, a label and a pause.

use std::collections::BTreeMap;
use std::time::Duration;

use eadt_core::controller::{self, ControllerSettings};
use eadt_schemas::EventTime;
use eadt_schemas::v1::{self, UpdateMode, Workload};
use kube::ResourceExt;
use serde_json::{Map, Value};

use super::names::{APPROVED, OBSERVE, PAUSED};
use super::problem::{PolicyProblem, ProblemReason};
use super::schedule::RestartSchedule;
use super::spec::{EnergyPolicy, EnergyPolicySpec, PolicyKnob};
use crate::objects::effective_policy::{AllowedKnobs, EffectivePolicy};
use crate::objects::owners::last_manager;

/// The meaning of a policy.
#[derive(Debug, Clone, PartialEq)]
pub struct ResolvedPolicy {
    effective_policy: EffectivePolicy,
    /// Times at which processes may be restarted; `None` for any time.
    pub schedule: Option<RestartSchedule>,
    /// Least time between two restarts.
    pub cooldown: Duration,
    /// The decision that may be applied once although the mode is `Recommend`.
    pub approved: Option<String>,
    /// The field manager that approved it; `None` if none is recorded.
    pub approved_by: Option<String>,
}

impl ResolvedPolicy {
    /// Returns the effective policy in force at `now`; `last_restart` is when a change restarted the workload's processes last.
    pub fn effective_policy(&self, now: EventTime, last_restart: Option<EventTime>) -> EffectivePolicy {
        let cooling = last_restart.and_then(|last| {
            let (cooldown, since) = (self.cooldown.as_secs_f64(), now.seconds_since(last));
            (since < cooldown).then(|| format!("the last restart was {since:.0} s ago, the cooldown is {cooldown:.0} s"))
        });
        let closed = || self.schedule.as_ref().and_then(|schedule| schedule.closed(now));
        EffectivePolicy { no_restarts_now: cooling.or_else(closed), ..self.effective_policy.clone() }
    }
}

/// Reads a policy by itself; [`super::find_target_problems`] checks it against other objects.
pub fn resolve_policy(policy: &EnergyPolicy) -> Result<ResolvedPolicy, Vec<PolicyProblem>> {
    let spec = &policy.spec;
    let mut problems = Vec::new();
    let mut note = |problem: PolicyProblem| problems.push(problem);
    let schedule = spec.schedule.as_ref().map(RestartSchedule::read).transpose().map_err(&mut note).ok().flatten();
    let settings = controller_settings(spec).map_err(&mut note).ok().flatten();
    let cooldown = spec.cooldown.parse::<kube::core::Duration>();
    let cooldown = cooldown.map(Duration::from).map_err(|error| {
        note(PolicyProblem::new(
            ProblemReason::Unreadable,
            format!("spec.cooldown {:?} is not a duration such as 5m: {error}", spec.cooldown),
        ));
    });
    let approved = policy.annotations().get(APPROVED).cloned();
    if approved.as_deref().is_some_and(|id| id.trim().is_empty()) {
        note(PolicyProblem::new(
            ProblemReason::MalformedAnnotation,
            format!("annotation {APPROVED} names no decision; `eadt policy approve` writes it, or delete it"),
        ));
    }
    let Ok(cooldown) = cooldown else { return Err(problems) };
    if !problems.is_empty() {
        return Err(problems);
    }
    let training = spec.training.clone().unwrap_or_default();
    let price = spec.price_and_carbon.clone().unwrap_or_default();
    let managed_fields = serde_json::to_value(policy.managed_fields()).unwrap_or_default();
    let effective_policy = EffectivePolicy {
        policy: Some(policy.name_any()),
        policy_uid: policy.uid().unwrap_or_default(),
        mode: spec.update_mode.into(),
        mode_set_by: last_manager(&managed_fields, &["spec", "updateMode"]),
        controller: spec.controller.as_ref().and_then(|controller| controller.name).map(|name| name.as_str().to_owned()),
        controller_settings: settings,
        bounds: event_bounds(spec),
        knobs: allowed_knobs(spec),
        mps_default_thread_percentage: spec.mps_default_thread_percentage,
        no_restarts_now: None,
        backend: training.backend,
        global_batch_size: training.global_batch_size,
        price_per_kwh: price.price_per_kilowatt_hour,
        carbon_grams_per_kwh: price.carbon_grams_per_kilowatt_hour,
    };
    let approved_by = last_manager(&managed_fields, &["metadata", "annotations", APPROVED]);
    Ok(ResolvedPolicy { effective_policy, schedule, cooldown, approved, approved_by })
}

/// Returns the knobs that may be changed.
fn allowed_knobs(spec: &EnergyPolicySpec) -> AllowedKnobs {
    let bounds = spec.bounds.clone().unwrap_or_default();
    let bounded = |knob: PolicyKnob| match knob {
        PolicyKnob::MpsThreadPercentage => bounds.mps_thread_percentage.is_some(),
        PolicyKnob::Replicas => bounds.replicas.is_some(),
        PolicyKnob::PowerLimit => bounds.power_limit_watts.is_some(),
        PolicyKnob::Clocks => bounds.sm_clock_megahertz.is_some(),
        PolicyKnob::Precision => bounds.precisions.is_some(),
        PolicyKnob::FrozenLayers => bounds.max_frozen_prefix_layers.is_some(),
    };
    let all = [
        PolicyKnob::MpsThreadPercentage,
        PolicyKnob::Replicas,
        PolicyKnob::PowerLimit,
        PolicyKnob::Clocks,
        PolicyKnob::Precision,
        PolicyKnob::FrozenLayers,
    ];
    let none = !all.iter().any(|knob| bounded(*knob));
    let open = |knob: PolicyKnob| match &spec.knobs {
        Some(named) => named.contains(&knob),
        None => none || bounded(knob),
    };
    // The API server refuses this; an object from before its rules must not be enforced without limits either.
    let may = |knob: PolicyKnob| open(knob) && (spec.update_mode != super::PolicyMode::Enforce || bounded(knob));
    AllowedKnobs {
        mps_thread_percentage: may(PolicyKnob::MpsThreadPercentage),
        replicas: may(PolicyKnob::Replicas),
        power_limit: may(PolicyKnob::PowerLimit),
        clocks: may(PolicyKnob::Clocks),
        precision: may(PolicyKnob::Precision),
        frozen_layers: may(PolicyKnob::FrozenLayers),
    }
}

fn event_bounds(spec: &EnergyPolicySpec) -> v1::LayoutBounds {
    let bounds = spec.bounds.clone().unwrap_or_default();
    let mps = bounds.mps_thread_percentage.unwrap_or_default();
    let replicas = bounds.replicas.unwrap_or_default();
    let power = bounds.power_limit_watts.unwrap_or_default();
    let clock = bounds.sm_clock_megahertz.unwrap_or_default();
    v1::LayoutBounds {
        mps_thread_percentage_min: mps.min,
        mps_thread_percentage_max: mps.max,
        replicas_min: replicas.min,
        replicas_max: replicas.max,
        power_limit_watts_min: power.min,
        power_limit_watts_max: power.max,
        sm_clock_mhz_min: clock.min,
        sm_clock_mhz_max: clock.max,
        precisions: bounds.precisions,
        frozen_prefix_layers_max: bounds.max_frozen_prefix_layers,
        oversubscription_percentage_max: bounds.max_oversubscription_percentage,
        restarts_per_day_max: Some(spec.restart_budget.per_day),
    }
}

/// Returns the controller's settings: the named ones, and those with fields of the policy.
fn controller_settings(spec: &EnergyPolicySpec) -> Result<Option<Map<String, Value>>, PolicyProblem> {
    let named = spec.controller.as_ref().and_then(|controller| controller.settings.clone());
    let mut settings = named.unwrap_or_default();
    let objective = spec.objective.clone().unwrap_or_default();
    let minimize = objective.minimize.map(controller::ControllerObjective::from);
    let minimize = minimize.map(|objective| serde_json::to_value(objective).expect("a name is JSON"));
    let slowdown = objective.max_slowdown_percent.map(|percent| percent / 100.0);
    let clock = spec.bounds.clone().unwrap_or_default().sm_clock_megahertz.unwrap_or_default();
    let lowest_clock = clock.min.zip(clock.max).map(|(min, max)| (min / max).max(1e-3));
    let number = |value: Option<f64>| value.map(Value::from);
    for (field, name, value) in [
        ("objective.minimize", "objective", minimize),
        ("objective.maxSlowdownPercent", "max_slowdown_ratio", number(slowdown)),
        // The matrix controllers validate a change by this setting.
        ("objective.maxSlowdownPercent", "validation_throughput_ratio", number(slowdown.map(|ratio| 1.0 - ratio))),
        ("objective.minSamplesPerSecond", "samples_per_second_min", number(objective.min_samples_per_second)),
        ("bounds.smClockMegahertz.max", "sm_clock_mhz_max", number(clock.max)),
        ("bounds.smClockMegahertz", "sm_clock_min_ratio", number(lowest_clock)),
    ] {
        let Some(value) = value else { continue };
        if settings.insert(name.to_owned(), value).is_some() {
            let message = format!("spec.{field} and spec.controller.settings.{name} define the same: remove one of them");
            return Err(PolicyProblem::new(ProblemReason::Contradiction, message));
        }
    }
    if settings.is_empty() {
        return Ok(None);
    }
    let workload = Workload { controller_settings: Some(settings.clone()), ..Workload::default() };
    ControllerSettings::from_workload(&workload).map_err(|refusal| {
        PolicyProblem::new(ProblemReason::InvalidSettings, format!("spec.controller.settings: {}", refusal.detail))
    })?;
    Ok(Some(settings))
}

/// Returns the effective policy of a workload's labels alone: with the short form it is observed; without it, it does not opt in.
pub fn observe_label_terms(labels: &BTreeMap<String, String>) -> Result<Option<EffectivePolicy>, PolicyProblem> {
    let observed = read_flag(OBSERVE, "label", labels.get(OBSERVE))?;
    Ok(observed.then(|| EffectivePolicy { mode: UpdateMode::Observe, ..EffectivePolicy::default() }))
}

/// Returns whether the annotations of the workload or of its namespace request a pause. An unreadable value pauses, and is
/// reported.
pub fn read_pause(workload: &BTreeMap<String, String>, namespace: &BTreeMap<String, String>) -> (bool, Vec<PolicyProblem>) {
    let mut problems = Vec::new();
    let mut any = false;
    for (whose, annotations) in [("workload's", workload), ("namespace's", namespace)] {
        any |= read_flag(PAUSED, &format!("{whose} annotation"), annotations.get(PAUSED)).unwrap_or_else(|problem| {
            problems.push(problem);
            true
        });
    }
    (any, problems)
}

fn read_flag(name: &str, what: &str, value: Option<&String>) -> Result<bool, PolicyProblem> {
    match value.map(String::as_str) {
        None | Some("false") => Ok(false),
        Some("true") => Ok(true),
        Some(other) => {
            let shown: String = other.chars().take(40).collect();
            let message = format!("the {what} {name} is {shown:?}: set it to \"true\" or \"false\", or remove it");
            Err(PolicyProblem::new(ProblemReason::MalformedAnnotation, message))
        }
    }
}

#[cfg(test)]
mod tests {
    use eadt_schemas::v1::Precision;
    use serde_json::json;

    use super::*;

    const EVERY_KNOB: AllowedKnobs = AllowedKnobs {
        mps_thread_percentage: true,
        replicas: true,
        power_limit: true,
        clocks: true,
        precision: true,
        frozen_layers: true,
    };

    #[allow(clippy::needless_pass_by_value, reason = "callers write literals")]
    fn policy(spec: Value) -> EnergyPolicy {
        let mut object = json!({
            "apiVersion": "eadt.dev/v1alpha1", "kind": "EnergyPolicy",
            "metadata": {"name": "p", "namespace": "n"},
            "spec": {"targetRef": {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "w"}},
        });
        for (key, value) in spec.as_object().unwrap() {
            object["spec"][key] = value.clone();
        }
        serde_json::from_value(object).unwrap()
    }

    fn at(seconds: f64) -> EventTime {
        EventTime::from_seconds(1_767_225_600.0 + seconds)
    }

    fn effective_policy(spec: Value) -> EffectivePolicy {
        resolve_policy(&policy(spec)).unwrap().effective_policy(at(0.0), None)
    }

    fn problem(spec: Value) -> PolicyProblem {
        resolve_policy(&policy(spec)).unwrap_err().remove(0)
    }

    #[test]
    fn a_plain_policy_recommends_everything_and_holds_restarts_back() {
        let resolved = resolve_policy(&policy(json!({}))).unwrap();
        let effective_policy = resolved.effective_policy(at(1000.0), Some(at(700.0)));
        assert_eq!(
            (effective_policy.mode, effective_policy.policy.as_deref(), effective_policy.no_restarts_now),
            (UpdateMode::Recommend, Some("p"), None)
        );
        assert_eq!(effective_policy.knobs, EVERY_KNOB);
        assert_eq!((effective_policy.bounds.restarts_per_day_max, effective_policy.controller_settings), (Some(8), None));
        let cooling = resolved.effective_policy(at(1000.0), Some(at(700.1))).no_restarts_now.unwrap();
        assert_eq!(cooling, "the last restart was 300 s ago, the cooldown is 300 s");
    }

    #[test]
    fn every_field_reaches_the_actuator() {
        let resolved = resolve_policy(&policy(json!({
            "updateMode": "Enforce",
            "controller": {"name": "hybrid", "settings": {"seek_windows": 4}},
            "objective": {"minimize": "EDP", "maxSlowdownPercent": 10, "minSamplesPerSecond": 55.5},
            "bounds": {
                "mpsThreadPercentage": {"min": 25, "max": 100},
                "replicas": {"min": 3, "max": 9},
                "powerLimitWatts": {"min": 200.5},
                "smClockMegahertz": {"min": 900, "max": 1800},
                "maxOversubscriptionPercentage": 200,
                "precisions": ["bf16", "fp16"],
                "maxFrozenPrefixLayers": 12,
            },
            "mpsDefaultThreadPercentage": 100,
            "schedule": {"timeZone": "UTC", "restartWindows": [{"start": "22:00", "end": "06:00"}]},
            "restartBudget": {"perDay": 2},
            "cooldown": "1h30m",
            "priceAndCarbon": {"pricePerKilowattHour": 0.25, "carbonGramsPerKilowattHour": 300},
            "training": {"backend": "gloo", "globalBatchSize": 576},
        })))
        .unwrap();
        assert_eq!(resolved.cooldown, Duration::from_mins(90));
        // 2026-01-01T00:00:00Z and twelve hours later.
        assert_eq!(resolved.effective_policy(at(0.0), None).no_restarts_now, None);
        let effective_policy = resolved.effective_policy(at(43_200.0), None);
        assert!(effective_policy.no_restarts_now.as_ref().unwrap().contains("from 22:00 to 06:00"));
        assert_eq!((effective_policy.mode, effective_policy.controller.as_deref()), (UpdateMode::Enforce, Some("hybrid")));
        assert_eq!(
            Value::from(effective_policy.controller_settings.clone().unwrap()),
            json!({
                "seek_windows": 4, "objective": "edp", "max_slowdown_ratio": 0.1, "validation_throughput_ratio": 0.9, "samples_per_second_min": 55.5,
                "sm_clock_mhz_max": 1800.0, "sm_clock_min_ratio": 0.5,
            })
        );
        let bounds = v1::LayoutBounds {
            mps_thread_percentage_min: Some(25),
            mps_thread_percentage_max: Some(100),
            replicas_min: Some(3),
            replicas_max: Some(9),
            power_limit_watts_min: Some(200.5),
            power_limit_watts_max: None,
            sm_clock_mhz_min: Some(900.0),
            sm_clock_mhz_max: Some(1800.0),
            precisions: Some(vec![Precision::Bf16, Precision::Fp16]),
            frozen_prefix_layers_max: Some(12),
            oversubscription_percentage_max: Some(200),
            restarts_per_day_max: Some(2),
        };
        assert_eq!(effective_policy.bounds, bounds);
        assert_eq!((effective_policy.knobs, effective_policy.mps_default_thread_percentage), (EVERY_KNOB, Some(100)));
        assert_eq!((effective_policy.backend.as_deref(), effective_policy.global_batch_size), (Some("gloo"), Some(576)));
        assert_eq!((effective_policy.price_per_kwh, effective_policy.carbon_grams_per_kwh), (Some(0.25), Some(300.0)));
    }

    #[test]
    fn knobs_are_those_named_or_those_with_bounds() {
        let bounds = json!({"replicas": {"max": 9}, "powerLimitWatts": {"min": 200}});
        let open = |spec| effective_policy(spec).knobs;
        let some = AllowedKnobs { replicas: true, power_limit: true, ..AllowedKnobs::default() };
        assert_eq!(open(json!({"bounds": bounds})), some);
        assert_eq!(
            open(json!({"bounds": bounds, "knobs": ["Clocks"]})),
            AllowedKnobs { clocks: true, ..AllowedKnobs::default() }
        );
        assert_eq!(open(json!({"bounds": bounds, "knobs": []})), AllowedKnobs::default());
        // A policy that an API server would refuse.
        assert_eq!(open(json!({"updateMode": "Enforce"})), AllowedKnobs::default());
        let unlimited = json!({"updateMode": "Enforce", "bounds": bounds, "knobs": ["Clocks", "Replicas"]});
        assert_eq!(open(unlimited), AllowedKnobs { replicas: true, ..AllowedKnobs::default() });
    }

    #[test]
    fn what_cannot_be_meant_is_named() {
        let unknown = problem(json!({"controller": {"settings": {"seek_window": 4}}}));
        assert_eq!(unknown.reason, ProblemReason::InvalidSettings);
        assert!(
            unknown.message.starts_with("spec.controller.settings: ") && unknown.message.contains("seek_window"),
            "{unknown}"
        );
        let range = problem(json!({"controller": {"settings": {"seek_windows": 0}}}));
        assert!(range.message.contains("seek_windows"), "{range}");
        let twice = json!({"controller": {"settings": {"max_slowdown_ratio": 0.1}}, "objective": {"maxSlowdownPercent": 5}});
        let twice = problem(twice);
        assert_eq!(twice.reason, ProblemReason::Contradiction);
        assert!(twice.message.contains("maxSlowdownPercent") && twice.message.contains("max_slowdown_ratio"), "{twice}");
        assert_eq!(problem(json!({"cooldown": "soon"})).reason, ProblemReason::Unreadable);
        let zone = json!({"schedule": {"timeZone": "Nowhere", "restartWindows": [{"start": "22:00", "end": "06:00"}]}});
        assert_eq!(problem(zone).reason, ProblemReason::InvalidSchedule);
    }

    #[test]
    fn an_approval_names_a_decision() {
        let mut policy = policy(json!({}));
        policy.annotations_mut().insert(APPROVED.into(), "d-60".into());
        assert_eq!(resolve_policy(&policy).unwrap().approved.as_deref(), Some("d-60"));
        policy.annotations_mut().insert(APPROVED.into(), " ".into());
        assert_eq!(resolve_policy(&policy).unwrap_err()[0].reason, ProblemReason::MalformedAnnotation);
    }

    #[test]
    fn labels_observe_and_annotations_pause_and_what_is_unclear_pauses() {
        let map = |name: &str, value: &str| BTreeMap::from([(name.to_owned(), value.to_owned())]);
        let nothing = BTreeMap::new();
        assert_eq!(observe_label_terms(&map(OBSERVE, "true")).unwrap().unwrap().mode, UpdateMode::Observe);
        assert_eq!(observe_label_terms(&map(OBSERVE, "false")), Ok(None));
        assert_eq!(observe_label_terms(&nothing), Ok(None));
        assert!(observe_label_terms(&map(OBSERVE, "yes")).unwrap_err().message.contains("\"yes\""));

        assert_eq!(read_pause(&nothing, &nothing), (false, vec![]));
        assert_eq!(read_pause(&map(PAUSED, "true"), &nothing), (true, vec![]));
        assert_eq!(read_pause(&nothing, &map(PAUSED, "true")), (true, vec![]));
        assert_eq!(read_pause(&map(PAUSED, "false"), &nothing), (false, vec![]));
        let (paused, problems) = read_pause(&map(PAUSED, "on"), &nothing);
        assert!(paused && problems[0].message.contains("\"on\""), "{problems:?}");
    }
}
