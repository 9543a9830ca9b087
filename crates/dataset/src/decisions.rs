//! The table of decisions.

use eadt_schemas::v1::{Decision, Layout};

use crate::column::{About, Get, Role, Spec, Table, table};
use crate::common::{Outcomes, layout_columns, outcome_columns};
use crate::history::{Became, History, Mean};
use crate::words::word;

/// One decision with what was known before it and what came out.
pub(crate) struct Row<'a> {
    decision: &'a Decision,
    before: Mean,
    since_last_change_seconds: Option<f64>,
    changes_in_24h: usize,
    became: Became,
    after: Mean,
    judged: Option<bool>,
}

const DAY_SECONDS: f64 = 86_400.0;

pub(crate) fn rows(history: &History) -> impl Iterator<Item = Row<'_>> {
    history.decisions().map(|decision| {
        let became = history.became(&decision.id);
        let ages = || history.applied_before(decision.time).map(|at| decision.time.seconds_since(at));
        Row {
            decision,
            before: history.before(decision),
            since_last_change_seconds: ages().min_by(f64::total_cmp),
            changes_in_24h: ages().filter(|age| *age <= DAY_SECONDS).count(),
            after: history.after(&became),
            became,
            judged: history.judged(&decision.id),
        }
    })
}

pub(crate) fn build(rows: &[Row<'_>]) -> Table {
    table("decisions", "one decision, `maintain` included", &specs(), rows)
}

#[allow(clippy::unnecessary_wraps, reason = "the columns of a layout take one that may be missing")]
fn from<'a>(row: &'a Row<'_>) -> Option<&'a Layout> {
    Some(&row.decision.from)
}

#[allow(clippy::unnecessary_wraps, reason = "as `from`")]
fn to<'a>(row: &'a Row<'_>) -> Option<&'a Layout> {
    Some(&row.decision.to)
}

impl Outcomes for Row<'_> {
    fn became(&self) -> &Became {
        &self.became
    }
}

fn evidence(decision: &Decision) -> String {
    serde_json::to_string(&decision.evidence).expect("a map of numbers is JSON")
}

fn specs<'a>() -> Vec<Spec<Row<'a>>> {
    let mut specs: Vec<Spec<Row<'a>>> = vec![
        Spec {
            name: "decision_id",
            role: Role::Key,
            about: About::Text("The decision's deterministic id."),
            get: Get::Text(|row| Some(row.decision.id.clone())),
        },
        Spec {
            name: "workload",
            role: Role::Key,
            about: About::Decision,
            get: Get::Text(|row| Some(row.decision.workload.clone())),
        },
        Spec {
            name: "decision_time",
            role: Role::Key,
            about: About::Text("End of the window that led to it: nothing later is among the features."),
            get: Get::Time(|row| Some(row.decision.time)),
        },
        Spec { name: "origin", role: Role::Key, about: About::Decision, get: Get::Text(|row| Some(word(row.decision.origin))) },
        Spec {
            name: "controller",
            role: Role::Decision,
            about: About::Decision,
            get: Get::Text(|row| Some(row.decision.controller.clone())),
        },
        Spec {
            name: "controller_version",
            role: Role::Decision,
            about: About::Decision,
            get: Get::Text(|row| Some(row.decision.controller_version.clone())),
        },
        Spec {
            name: "action",
            role: Role::Decision,
            about: About::Decision,
            get: Get::Text(|row| Some(word(row.decision.action))),
        },
        Spec {
            name: "reason",
            role: Role::Decision,
            about: About::Decision,
            get: Get::Text(|row| Some(row.decision.reason.clone())),
        },
    ];
    specs.extend(layout_columns!("from", "Layout that the decision starts from", Role::Decision, from));
    specs.extend(layout_columns!("to", "Layout that is wanted", Role::Decision, to));
    let more: Vec<Spec<Row<'a>>> = vec![
        Spec {
            name: "generation",
            role: Role::Decision,
            about: About::Decision,
            get: Get::Int(|row| row.decision.generation.map(|g| g as i64)),
        },
        Spec {
            name: "restarts",
            role: Role::Decision,
            about: About::Decision,
            get: Get::Bool(|row| Some(row.decision.restarts)),
        },
        Spec {
            name: "concerns",
            role: Role::Decision,
            about: About::Decision,
            get: Get::Text(|row| row.decision.concerns.clone()),
        },
        Spec {
            name: "validation",
            role: Role::Decision,
            about: About::Decision,
            get: Get::Text(|row| Some(word(row.decision.validation))),
        },
        Spec { name: "expires", role: Role::Decision, about: About::Decision, get: Get::Time(|row| Some(row.decision.expires)) },
        Spec { name: "hold_until", role: Role::Decision, about: About::Decision, get: Get::Time(|row| row.decision.hold_until) },
        Spec {
            name: "model_version",
            role: Role::Decision,
            about: About::Decision,
            get: Get::Text(|row| row.decision.model_version.clone()),
        },
        Spec {
            name: "evidence",
            role: Role::Decision,
            about: About::Text(
                "The numbers that led to the decision, what was expected of it included, as a JSON object with units in the names.",
            ),
            get: Get::Text(|row| Some(evidence(row.decision))),
        },
        Spec {
            name: "before_windows",
            role: Role::Feature,
            about: About::Text(
                "Usable windows of the same layout just before the decision that the next columns are made of, at most 3 of the last 60.",
            ),
            get: Get::Int(|row| Some(row.before.windows as i64)),
        },
        Spec {
            name: "before_joules_per_sample",
            role: Role::Feature,
            about: About::Text("Over those windows: energy over samples, both summed, in J/sample."),
            get: Get::Float(|row| row.before.joules_per_sample),
        },
        Spec {
            name: "before_samples_per_second",
            role: Role::Feature,
            about: About::Text("Over those windows: mean, in samples/s."),
            get: Get::Float(|row| row.before.samples_per_second),
        },
        Spec {
            name: "before_power_watts",
            role: Role::Feature,
            about: About::Text("Over those windows: mean, in W."),
            get: Get::Float(|row| row.before.power_watts),
        },
        Spec {
            name: "seconds_since_last_change",
            role: Role::Feature,
            about: About::Text("Time since a decision was last written to the workload."),
            get: Get::Float(|row| row.since_last_change_seconds),
        },
        Spec {
            name: "changes_in_24h",
            role: Role::Feature,
            about: About::Text("Changes written to the workload in the 24 h before the decision."),
            get: Get::Int(|row| Some(row.changes_in_24h as i64)),
        },
    ];
    specs.extend(more);
    specs.extend(outcome_columns());
    let more: Vec<Spec<Row<'a>>> = vec![
        Spec {
            name: "label_after_windows",
            role: Role::Label,
            about: About::Text(
                "Usable windows after readiness (one window of warm-up left out, same layout) that the next columns are made of, at most 3.",
            ),
            get: Get::Int(|row| Some(row.after.windows as i64)),
        },
        Spec {
            name: "label_after_joules_per_sample",
            role: Role::Label,
            about: About::Text("Over those windows: energy over samples, both summed, in J/sample."),
            get: Get::Float(|row| row.after.joules_per_sample),
        },
        Spec {
            name: "label_after_samples_per_second",
            role: Role::Label,
            about: About::Text("Over those windows: mean, in samples/s."),
            get: Get::Float(|row| row.after.samples_per_second),
        },
        Spec {
            name: "label_after_power_watts",
            role: Role::Label,
            about: About::Text("Over those windows: mean, in W."),
            get: Get::Float(|row| row.after.power_watts),
        },
        Spec {
            name: "label_saving_ratio",
            role: Role::Label,
            about: About::Text(
                "1 − J/sample after ÷ before; negative where the change cost energy. A change of the work itself is not told apart.",
            ),
            get: Get::Float(|row| Some(1.0 - row.after.joules_per_sample? / row.before.joules_per_sample?)),
        },
        Spec {
            name: "label_throughput_ratio",
            role: Role::Label,
            about: About::Text("Samples/s after ÷ before."),
            get: Get::Float(|row| Some(row.after.samples_per_second? / row.before.samples_per_second?)),
        },
        Spec {
            name: "label_kept",
            role: Role::Label,
            about: About::Text(
                "The controller's own verdict: true where it kept the change, false where it took it back; unknown where it never judged it.",
            ),
            get: Get::Bool(|row| row.judged),
        },
    ];
    specs.extend(more);
    specs
}
