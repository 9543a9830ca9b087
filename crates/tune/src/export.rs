//! Settings for production, made from a result.

use std::fmt::Write;

use eadt_models::choose::{ChoiceObjective, TuningKnob};
use serde::Serialize;

use crate::{TuningGroup, TuningResult, points};

/// Format of an exported result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExportFormat {
    /// `EnergyPolicy` objects, one a group (YAML).
    EnergyPolicy,
    /// A table for the administrator of a node's devices (TOML).
    NodeAgent,
    /// The chosen settings alone.
    Json,
}

/// The workload that policies are for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyTarget {
    pub namespace: String,
    pub api_version: String,
    pub kind: String,
    /// `None` to use each group's `workload`.
    pub name: Option<String>,
}

/// A result that no policy can be made from.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExportError {
    #[error("group {group} has no workload to name the target after: group by workload, or name it with --target-name")]
    NoTarget { group: String },
    #[error("groups {first} and {second} are for the same target {name}: export one of them with --only COLUMN=VALUE")]
    SameTarget { first: String, second: String, name: String },
    #[error(
        "group {group}: no object of Kubernetes can be called {name:?}: name it with --target-name, or leave it out with --only COLUMN=VALUE"
    )]
    NoName { group: String, name: String },
    #[error("nothing to export: the result has no feasible group")]
    Nothing,
}

#[derive(Debug, Serialize)]
struct ExportedSetting<'a> {
    by: &'a points::GroupKey,
    knob: &'a str,
    setting: f64,
    reference: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    second_knob: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    second_setting: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    second_reference: Option<f64>,
    feasible: bool,
    /// Saving of the medians of the table.
    expected_saving_ratio: f64,
    /// Slowdown of the medians of the table.
    expected_slowdown_ratio: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    saving_lower_ratio: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    slowdown_upper_ratio: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fitted_saving_ratio: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fitted_slowdown_ratio: Option<f64>,
    max_slowdown_ratio: f64,
    reason: &'a str,
    source: &'a str,
    /// `simulated` if the figures are of a simulated board.
    #[serde(skip_serializing_if = "Option::is_none")]
    origin: Option<&'a str>,
}

/// Exports a result. Groups without a feasible setting are left out of policies and tables, with a comment that states it.
pub fn export(tuning: &TuningResult, form: ExportFormat, target: &PolicyTarget) -> Result<String, ExportError> {
    if form != ExportFormat::Json && !tuning.groups.iter().any(|group| group.choices.feasible) {
        return Err(ExportError::Nothing);
    }
    match form {
        ExportFormat::EnergyPolicy => policies(tuning, target),
        ExportFormat::NodeAgent => Ok(node_agent(tuning)),
        ExportFormat::Json => {
            let settings: Vec<ExportedSetting<'_>> = tuning.groups.iter().map(|group| setting(tuning, group)).collect();
            Ok(serde_json::to_string_pretty(&settings).unwrap_or_default() + "\n")
        }
    }
}

fn setting<'a>(tuning: &'a TuningResult, group: &'a TuningGroup) -> ExportedSetting<'a> {
    let chosen = &group.choices.constrained;
    ExportedSetting {
        by: &group.by,
        knob: tuning.knob.name(),
        setting: chosen.setting,
        reference: group.choices.reference.setting,
        feasible: group.choices.feasible,
        expected_saving_ratio: chosen.saving_ratio,
        expected_slowdown_ratio: chosen.slowdown_ratio,
        second_knob: tuning.second_knob.map(TuningKnob::name),
        second_setting: chosen.second_setting,
        second_reference: group.choices.reference.second_setting,
        saving_lower_ratio: chosen.saving_lower_ratio,
        slowdown_upper_ratio: chosen.slowdown_upper_ratio,
        fitted_saving_ratio: chosen.fitted_saving_ratio,
        fitted_slowdown_ratio: chosen.fitted_slowdown_ratio,
        max_slowdown_ratio: group.max_slowdown_ratio,
        reason: &group.choices.reason,
        source: &tuning.source.file,
        origin: group.origin.as_deref(),
    }
}

/// Quotes for YAML and TOML: JSON's strings are strings in both.
fn quoted(text: &str) -> String {
    let json = serde_json::to_string(text).unwrap_or_default();
    let mut quoted = String::with_capacity(json.len());
    for c in json.chars() {
        if leaves_line(c) {
            push(&mut quoted, format_args!("\\u{:04x}", u32::from(c)));
        } else {
            quoted.push(c);
        }
    }
    quoted
}

/// Returns whether a reader may take a character for the end of a line, as YAML 1.1 takes U+0085, U+2028 and U+2029.
fn leaves_line(c: char) -> bool {
    c.is_control() || matches!(c, '\u{2028}' | '\u{2029}')
}

/// Removes line breaks: a comment must stay on its line.
fn one_line(text: &str) -> String {
    text.chars().map(|c| if leaves_line(c) { ' ' } else { c }).collect()
}

fn policies(tuning: &TuningResult, target: &PolicyTarget) -> Result<String, ExportError> {
    let mut out = String::new();
    let mut names: Vec<(String, String)> = Vec::new();
    for group in &tuning.groups {
        let name = points::name(&group.by);
        if !group.choices.feasible {
            push(&mut out, format_args!("# left out: {}: {}\n", one_line(&name), one_line(&group.choices.reason)));
            continue;
        }
        let target_name = target.name.as_ref().or_else(|| group.by.get("workload"));
        let target_name = target_name.ok_or_else(|| ExportError::NoTarget { group: name.clone() })?;
        // A workload may carry its namespace.
        let (in_namespace, in_group) = target_name.split_once('/').unwrap_or((&target.namespace, target_name));
        let (namespace, object) = (object_name(in_namespace, 63, ""), object_name(in_group, 253, "."));
        if namespace.is_empty() || object.is_empty() {
            return Err(ExportError::NoName { group: one_line(&name), name: one_line(target_name) });
        }
        if in_namespace != namespace || in_group != object {
            let written = quoted(&one_line(target_name));
            push(
                &mut out,
                format_args!("# {written} is no name of Kubernetes: write the workload's own below if it is another\n"),
            );
        }
        let full = format!("{namespace}/{object}");
        if let Some((_, first)) = names.iter().find(|(other, _)| *other == full) {
            return Err(ExportError::SameTarget { first: first.clone(), second: name, name: full });
        }
        names.push((full, name.clone()));
        let (controller, bound, knob) = match tuning.knob {
            TuningKnob::SmClockMhz | TuningKnob::MemoryClockMhz | TuningKnob::BatchSize => {
                ("frequency", "smClockMegahertz", "Clocks")
            }
            TuningKnob::PowerLimitWatts => ("power-cap", "powerLimitWatts", "PowerLimit"),
        };
        let minimize = match tuning.objective {
            ChoiceObjective::Energy => "minimize: Energy\n    ",
            ChoiceObjective::Edp => "minimize: EDP\n    ",
            ChoiceObjective::Ed2p => "minimize: ED2P\n    ",
            // No controller weighs so: it looks for its own objective, between the bounds below.
            ChoiceObjective::Weighted(_) => "",
        };
        let chosen = &group.choices.constrained;
        if let (Some(knob), Some(value)) = (tuning.second_knob, chosen.second_setting) {
            push(&mut out, format_args!("# beside it, set by hand: {}\n", knob.words(value)));
        }
        push(
            &mut out,
            format_args!(
                "# {}\n# {}\n# from {}{}, method {}\napiVersion: eadt.dev/v1alpha1\nkind: EnergyPolicy\nmetadata:\n  name: {}\n  \
                 namespace: {}\nspec:\n  targetRef:\n    apiVersion: {}\n    kind: {}\n    name: {}\n  updateMode: Recommend\n  \
                 controller:\n    name: {controller}\n  objective:\n    {minimize}maxSlowdownPercent: {}\n  knobs: [{knob}]\n  bounds:\n    \
                 {bound}:\n      min: {}\n      max: {}\n---\n",
                one_line(&name),
                one_line(&group.choices.reason),
                one_line(&tuning.source.file),
                group.mark(),
                tuning.source.method,
                quoted(&object),
                quoted(&namespace),
                quoted(&target.api_version),
                quoted(&target.kind),
                quoted(&object),
                rounded(100.0 * group.max_slowdown_ratio),
                chosen.setting,
                chosen.setting
            ),
        );
    }
    Ok(out.strip_suffix("---\n").unwrap_or(&out).to_owned())
}

fn rounded(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}

/// Lower case, digits, `-` and what else is `allowed`, as names of Kubernetes objects are: parts between dots that begin and end
/// with a letter or a digit.
fn object_name(text: &str, most: usize, allowed: &str) -> String {
    let is_possible = |c: char| c.is_ascii_alphanumeric() || allowed.contains(c);
    let name: String = text.to_lowercase().chars().map(|c| if is_possible(c) { c } else { '-' }).take(most).collect();
    let parts = name.split('.').map(|part| part.trim_matches('-')).filter(|part| !part.is_empty());
    parts.collect::<Vec<_>>().join(".")
}

fn node_agent(tuning: &TuningResult) -> String {
    let mut out = format!("# Settings by group, from {}, method {}.\n", one_line(&tuning.source.file), tuning.source.method);
    for group in &tuning.groups {
        if !group.choices.feasible {
            push(
                &mut out,
                format_args!("# left out: {}: {}\n", one_line(&points::name(&group.by)), one_line(&group.choices.reason)),
            );
            continue;
        }
        push(&mut out, format_args!("\n# {}{}\n[[settings]]\n", one_line(&group.choices.reason), group.mark()));
        push(&mut out, format_args!("{} = {}\n", tuning.knob.name(), group.choices.constrained.setting));
        if let (Some(knob), Some(value)) = (tuning.second_knob, group.choices.constrained.second_setting) {
            push(&mut out, format_args!("{} = {value}\n", knob.name()));
        }
        push(&mut out, format_args!("[settings.match]\n"));
        for (column, value) in &group.by {
            push(&mut out, format_args!("{} = {}\n", quoted(column), quoted(value)));
        }
    }
    out
}

fn push(out: &mut String, text: std::fmt::Arguments<'_>) {
    out.write_fmt(text).expect("a String takes every write");
}
