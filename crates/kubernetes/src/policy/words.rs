//! Policies in words, for people at a terminal.

use std::fmt::Write;

use kube::ResourceExt;
use serde_json::{Value, json};

use super::access::PolicyView;
use super::spec::{EnergyPolicySpec, PolicyKnob, PolicyMode};
use super::status::{ConditionStatus, ConditionType, CurrentState, LayoutSettings};

/// Columns of [`policy_table`].
const HEAD: [&str; 8] = ["NAMESPACE", "NAME", "TARGET", "MODE", "STATE", "J/SAMPLE", "RECOMMENDATION", "SAVING"];
const NOTHING: &str = "-";

/// Policies as a table, one a line.
pub fn policy_table(views: &[PolicyView]) -> String {
    let rows: Vec<[String; HEAD.len()]> = views.iter().map(policy_row).collect();
    let mut widths = HEAD.map(str::len);
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    let head = HEAD.map(str::to_owned);
    for row in std::iter::once(&head).chain(&rows) {
        let cells: Vec<String> = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
    text
}

fn policy_row(view: &PolicyView) -> [String; HEAD.len()] {
    let (policy, spec) = (&view.policy, &view.policy.spec);
    let status = policy.status.clone().unwrap_or_default();
    let nothing = || NOTHING.to_owned();
    [
        policy.namespace().unwrap_or_default(),
        policy.name_any(),
        format!("{} {}", spec.target_ref.kind, spec.target_ref.name),
        spec.update_mode.as_str().to_owned(),
        policy_state(view).0,
        status.current.and_then(|current| current.joules_per_sample).map_or_else(nothing, |joules| joules.to_string()),
        status.recommendation.map_or_else(nothing, |recommendation| recommendation.summary),
        status.effect.and_then(|effect| effect.summary).unwrap_or_else(nothing),
    ]
}

/// Returns the state of a policy in a word, and its reason.
fn policy_state(view: &PolicyView) -> (String, Option<String>) {
    let status = view.policy.status.clone().unwrap_or_default();
    let ready = status.condition(ConditionType::Ready);
    let holds = |kind| status.condition(kind).filter(|condition| condition.status == ConditionStatus::True);
    if view.paused == Some(true) {
        return ("paused".into(), Some("nothing is changed until it is resumed".into()));
    }
    match ready {
        None if view.target_found == Some(false) => {
            let target = &view.policy.spec.target_ref;
            ("waiting".into(), Some(format!("there is no {} {} in this namespace", target.kind, target.name)))
        }
        None => ("waiting".into(), Some("no actuator has read it yet".into())),
        Some(ready) if ready.status != ConditionStatus::True => (ready.reason.clone(), Some(ready.message.clone())),
        Some(_) => match (holds(ConditionType::Degraded), holds(ConditionType::Progressing)) {
            (Some(degraded), _) => (format!("degraded: {}", degraded.reason), Some(degraded.message.clone())),
            (None, Some(progressing)) => ("changing".into(), Some(progressing.message.clone())),
            (None, None) => ("in force".into(), None),
        },
    }
}

/// Describes one policy: its limits, its last decision with the reason, and the outcome.
pub fn explain_policy(view: &PolicyView) -> String {
    let policy = &view.policy;
    let (namespace, name) = (policy.namespace().unwrap_or_default(), policy.name_any());
    let status = policy.status.clone().unwrap_or_default();
    let mut text = format!("policy {namespace}/{name}\n");
    let mut line = |label: &str, words: &str| writeln!(text, "  {label:<14}{words}").expect("writing to a String");
    let target = &policy.spec.target_ref;
    let missing = if view.target_found == Some(false) { " (not there)" } else { "" };
    line("workload", &format!("{} {}{missing}", target.kind, target.name));
    line("mode", mode_text(policy.spec.update_mode));
    let (word, why) = policy_state(view);
    line("state", &why.map_or_else(|| word.clone(), |why| format!("{word}: {why}")));
    if view.paused == Some(true) {
        line("", &format!("resume with: eadt policy resume {name} -n {namespace} (--all, if the namespace is paused)"));
    }
    write_rules(&policy.spec, &mut line);

    match &status.current {
        Some(current) => line("now", &current_text(current)),
        None => line("now", "no window yet"),
    }
    match &status.recommendation {
        Some(recommendation) => {
            let restarts = if recommendation.restarts { ", restarts its processes" } else { "" };
            line("recommended", &format!("{}{restarts}", recommendation.summary));
            line("", &format!("because {}", recommendation.reason));
            if policy.spec.update_mode == PolicyMode::Recommend {
                let expires = recommendation.expires;
                line("", &format!("apply it once, before {expires}: eadt policy approve {name} -n {namespace}"));
            }
        }
        None => line("recommended", "nothing"),
    }
    if let Some(last) = &status.last_decision {
        let outcome = last.outcome.map(|outcome| format!(", {outcome:?}")).unwrap_or_default();
        line("last decision", &format!("{} at {}{outcome} ({})", last.action, last.time, last.decision_id));
        line("", &format!("because {}", last.reason));
        if let Some(message) = &last.message {
            line("", message);
        }
    }
    match status.effect.as_ref().and_then(|effect| effect.summary.as_ref()) {
        Some(summary) => line("saved", summary),
        None => line("saved", "nothing verified yet"),
    }
    for (index, past) in status.history.iter().enumerate() {
        let message = past.message.as_ref().map(|message| format!(": {message}")).unwrap_or_default();
        let label = if index == 0 { "changes" } else { "" };
        line(label, &format!("{} {:?} {}{message}", past.time, past.outcome, past.summary));
    }
    for (index, kind) in ConditionType::ALL.into_iter().enumerate() {
        let Some(condition) = status.condition(kind) else { continue };
        let label = if index == 0 { "conditions" } else { "" };
        let message = if condition.message.is_empty() { String::new() } else { format!(": {}", condition.message) };
        line(label, &format!("{} {:?}, {}{message}", condition.kind, condition.status, condition.reason));
    }
    text
}

fn mode_text(mode: PolicyMode) -> &'static str {
    match mode {
        PolicyMode::Observe => "Observe: reported only",
        PolicyMode::Recommend => "Recommend: it shows what it would change, and changes nothing",
        PolicyMode::Enforce => "Enforce: it is changed within its bounds",
    }
}

fn write_rules(spec: &EnergyPolicySpec, line: &mut impl FnMut(&str, &str)) {
    let controller = spec.controller.as_ref().and_then(|controller| controller.name);
    line("controller", controller.map_or("the processor's default", |name| name.as_str()));
    let bounds = spec.bounds.clone().unwrap_or_default();
    let mut limits = Vec::new();
    let mut add = |what: &str, min: Option<String>, max: Option<String>, unit: &str| match (min, max) {
        (Some(min), Some(max)) => limits.push(format!("{what} {min} to {max}{unit}")),
        (Some(min), None) => limits.push(format!("{what} at least {min}{unit}")),
        (None, Some(max)) => limits.push(format!("{what} at most {max}{unit}")),
        (None, None) => {}
    };
    let words = |value: Option<u32>| value.map(|value| value.to_string());
    let number = |value: Option<f64>| value.map(|value| value.to_string());
    let range = bounds.mps_thread_percentage.unwrap_or_default();
    add("threads", words(range.min), words(range.max), " %");
    let range = bounds.replicas.unwrap_or_default();
    add("replicas", words(range.min), words(range.max), "");
    let range = bounds.power_limit_watts.unwrap_or_default();
    add("power cap", number(range.min), number(range.max), " W");
    let range = bounds.sm_clock_megahertz.unwrap_or_default();
    add("SM clock", number(range.min), number(range.max), " MHz");
    add("frozen layers", None, words(bounds.max_frozen_prefix_layers), "");
    add("threads of a GPU", None, words(bounds.max_oversubscription_percentage), " %");
    if let Some(precisions) = &bounds.precisions {
        let names: Vec<_> = precisions.iter().map(|precision| precision.as_str()).collect();
        limits.push(format!("precision {}", names.join(" or ")));
    }
    line("bounds", &if limits.is_empty() { "none".to_owned() } else { limits.join(", ") });
    if let Some(knobs) = &spec.knobs {
        let names: Vec<_> = knobs.iter().map(|knob| knob_name(*knob)).collect();
        line("may turn", &if names.is_empty() { "nothing".to_owned() } else { names.join(", ") });
    }
    if let Some(percentage) = spec.mps_default_thread_percentage {
        line("MPS default", &format!("{percentage} % on its nodes, where all workloads with GPUs there name it"));
    }
    let mut restarts = format!("at most {} in 24 h, {} apart", spec.restart_budget.per_day, spec.cooldown);
    if let Some(schedule) = &spec.schedule {
        for window in &schedule.restart_windows {
            let days = window.days.as_ref().map_or_else(
                || "daily".to_owned(),
                |days| days.iter().map(|day| format!("{day:?}")).collect::<Vec<_>>().join(", "),
            );
            write!(restarts, ", {days} {} to {} {}", window.start, window.end, schedule.time_zone).expect("writing to a String");
        }
    }
    line("restarts", &restarts);
}

fn knob_name(knob: PolicyKnob) -> &'static str {
    match knob {
        PolicyKnob::MpsThreadPercentage => "MPS thread percentage",
        PolicyKnob::Replicas => "replicas",
        PolicyKnob::PowerLimit => "power cap",
        PolicyKnob::Clocks => "clocks",
        PolicyKnob::Precision => "precision",
        PolicyKnob::FrozenLayers => "frozen layers",
    }
}

fn current_text(current: &CurrentState) -> String {
    let mut parts = vec![settings_text(&current.settings)];
    let mut add = |value: Option<f64>, unit: &str| parts.extend(value.map(|value| format!("{value} {unit}")));
    add(current.joules_per_sample, "J/sample");
    add(current.samples_per_second, "samples/s");
    add(current.power_watts, "W");
    let origin = current.origin.as_ref().map(|origin| format!(" ({origin})")).unwrap_or_default();
    let time = current.time.map(|time| format!(", at {time}")).unwrap_or_default();
    format!("{}{origin}{time}", parts.join(", "))
}

/// Returns a layout in a few words.
pub fn settings_text(settings: &LayoutSettings) -> String {
    let mut parts = Vec::new();
    let mut add =
        |what: &str, value: Option<String>, unit: &str| parts.extend(value.map(|value| format!("{what} {value}{unit}")));
    add("threads", settings.mps_thread_percentage.map(|value| value.to_string()), " %");
    add("replicas", settings.replicas.map(|value| value.to_string()), "");
    add("cap", settings.power_limit_watts.map(|value| value.to_string()), " W");
    add("clock", settings.sm_clock_megahertz.map(|value| value.to_string()), " MHz");
    add("precision", settings.precision.map(|value| value.to_string()), "");
    add("frozen layers", settings.frozen_prefix_layers.map(|value| value.to_string()), "");
    if parts.is_empty() { "unknown".to_owned() } else { parts.join(", ") }
}

/// Returns a policy with further facts about its workload, as JSON.
pub fn policy_json(view: &PolicyView) -> Value {
    let (state, why) = policy_state(view);
    json!({
        "namespace": view.policy.namespace(),
        "name": view.policy.name_any(),
        "state": state,
        "state_reason": why,
        "paused": view.paused,
        "target_found": view.target_found,
        "spec": view.policy.spec,
        "status": view.policy.status.clone().unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[allow(clippy::needless_pass_by_value, reason = "callers write literals")]
    fn view(spec: Value, status: &Value, paused: bool) -> PolicyView {
        let mut object = json!({
            "apiVersion": "eadt.dev/v1alpha1", "kind": "EnergyPolicy",
            "metadata": {"name": "llm", "namespace": "training"},
            "spec": {"targetRef": {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "llm-training"}},
        });
        for (key, value) in spec.as_object().unwrap() {
            object["spec"][key] = value.clone();
        }
        if !status.is_null() {
            object["status"] = status.clone();
        }
        PolicyView { policy: serde_json::from_value(object).unwrap(), paused: Some(paused), target_found: Some(true) }
    }

    fn status() -> Value {
        let condition = |kind: &str, status: &str, reason: &str, message: &str| {
            json!({
                "type": kind, "status": status, "reason": reason, "message": message,
                "lastTransitionTime": "2026-01-02T03:00:00.000000Z"
            })
        };
        json!({
            "conditions": [condition("Ready", "True", "InForce", "")],
            "current": {
                "time": "2026-01-02T03:04:00.000000Z", "origin": "simulated",
                "settings": {"replicas": 6, "mpsThreadPercentage": 50}, "joulesPerSample": 1.25, "samplesPerSecond": 40.0
            },
            "recommendation": {
                "decisionId": "d-60", "time": "2026-01-02T03:04:00.000000Z", "expires": "2026-01-02T03:09:00.000000Z",
                "summary": "threads 50 % → 40 %", "reason": "it draws much and gets little done", "restarts": true,
                "from": {"mpsThreadPercentage": 50}, "to": {"mpsThreadPercentage": 40}
            },
            "effect": {"summary": "12.3 % (simulated)"},
            "history": [{
                "decisionId": "d-0", "time": "2026-01-01T00:00:00.000000Z", "summary": "threads 60 % → 50 %", "outcome": "Kept"
            }]
        })
    }

    #[test]
    fn a_table_has_a_line_for_each() {
        let views = [view(json!({}), &status(), false), view(json!({"updateMode": "Observe"}), &Value::Null, false)];
        assert_eq!(
            policy_table(&views),
            "\
NAMESPACE  NAME  TARGET                    MODE       STATE     J/SAMPLE  RECOMMENDATION       SAVING
training   llm   StatefulSet llm-training  Recommend  in force  1.25      threads 50 % → 40 %  12.3 % (simulated)
training   llm   StatefulSet llm-training  Observe    waiting   -         -                    -
"
        );
    }

    #[test]
    fn an_explanation_shows_what_is_allowed_what_is_meant_and_what_to_do() {
        let spec = json!({
            "controller": {"name": "hybrid"},
            "bounds": {"replicas": {"min": 3, "max": 9}, "powerLimitWatts": {"min": 200}},
            "schedule": {"timeZone": "Europe/Berlin", "restartWindows": [{"start": "22:00", "end": "06:00"}]},
        });
        let text = explain_policy(&view(spec, &status(), false));
        for line in [
            "workload      StatefulSet llm-training",
            "mode          Recommend",
            "state         in force",
            "controller    hybrid",
            "bounds        replicas 3 to 9, power cap at least 200 W",
            "restarts      at most 8 in 24 h, 5m apart, daily 22:00 to 06:00 Europe/Berlin",
            "now           threads 50 %, replicas 6, 1.25 J/sample, 40 samples/s (simulated), at 2026-01-02T03:04:00.000000Z",
            "recommended   threads 50 % → 40 %, restarts its processes",
            "because it draws much and gets little done",
            "eadt policy approve llm -n training",
            "saved         12.3 % (simulated)",
            "changes       2026-01-01T00:00:00.000000Z Kept threads 60 % → 50 %",
            "conditions    Ready True, InForce",
        ] {
            assert!(text.contains(line), "{line:?} is not in\n{text}");
        }
    }

    #[test]
    fn what_stops_a_policy_is_listed_first() {
        assert!(explain_policy(&view(json!({}), &status(), true)).contains("eadt policy resume llm -n training"));
        let mut broken = status();
        broken["conditions"][0]["status"] = json!("False");
        broken["conditions"][0]["reason"] = json!("TargetConflict");
        broken["conditions"][0]["message"] = json!("two policies");
        let text = explain_policy(&view(json!({}), &broken, false));
        assert!(text.contains("state         TargetConflict: two policies"), "{text}");
        let mut missing = view(json!({}), &Value::Null, false);
        missing.target_found = Some(false);
        assert!(explain_policy(&missing).contains("there is no StatefulSet llm-training"));
    }

    #[test]
    fn settings_that_are_absent_are_unknown() {
        assert_eq!(settings_text(&LayoutSettings::default()), "unknown");
    }
}
