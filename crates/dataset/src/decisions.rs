//! The table of decisions.

use eadt_schemas::v1::{Decision, Layout};

use crate::column::{CellGetter, ColumnRole, ColumnSpec, DatasetTable, DescriptionSource, table};
use crate::common::{OutcomeRow, layout_columns, outcome_columns};
use crate::history::{OutcomeSummary, WindowMeans, WorkloadHistory};
use crate::words::word;

/// One decision, with the known figures before it and its outcome.
pub(crate) struct DatasetDecisionRow<'a> {
    decision: &'a Decision,
    before: WindowMeans,
    since_last_change_seconds: Option<f64>,
    changes_in_24h: usize,
    outcome: OutcomeSummary,
    after: WindowMeans,
    judged: Option<bool>,
}

const DAY_SECONDS: f64 = 86_400.0;

pub(crate) fn rows(history: &WorkloadHistory) -> impl Iterator<Item = DatasetDecisionRow<'_>> {
    history.decisions().map(|decision| {
        let became = history.outcome_of(&decision.id);
        let ages = || history.applied_before(decision.time).map(|at| decision.time.seconds_since(at));
        DatasetDecisionRow {
            decision,
            before: history.before(decision),
            since_last_change_seconds: ages().min_by(f64::total_cmp),
            changes_in_24h: ages().filter(|age| *age <= DAY_SECONDS).count(),
            after: history.after(&became),
            outcome: became,
            judged: history.validation_verdict(&decision.id),
        }
    })
}

pub(crate) fn build(rows: &[DatasetDecisionRow<'_>]) -> DatasetTable {
    table("decisions", "one decision, `maintain` included", &specs(), rows)
}

#[allow(clippy::unnecessary_wraps, reason = "the columns of a layout take one that may be missing")]
fn layout_before<'a>(row: &'a DatasetDecisionRow<'_>) -> Option<&'a Layout> {
    Some(&row.decision.from)
}

#[allow(clippy::unnecessary_wraps, reason = "as `layout_before`")]
fn layout_after<'a>(row: &'a DatasetDecisionRow<'_>) -> Option<&'a Layout> {
    Some(&row.decision.to)
}

impl OutcomeRow for DatasetDecisionRow<'_> {
    fn outcome(&self) -> &OutcomeSummary {
        &self.outcome
    }
}

fn evidence(decision: &Decision) -> String {
    serde_json::to_string(&decision.evidence).expect("a map of numbers is JSON")
}

/// A column of this table before it has rows.
type DecisionColumn<'a> = ColumnSpec<DatasetDecisionRow<'a>>;

/// Returns a column that the decision's event has under the same name.
fn of_event<'a>(role: ColumnRole, name: &'static str, get: CellGetter<DatasetDecisionRow<'a>>) -> DecisionColumn<'a> {
    ColumnSpec { name, role, about: DescriptionSource::Decision, get }
}

fn specs<'a>() -> Vec<DecisionColumn<'a>> {
    let mut specs = key_columns();
    specs.extend(layout_columns!("from", "Layout that the decision starts from", ColumnRole::Decision, layout_before));
    specs.extend(layout_columns!("to", "Layout that is wanted", ColumnRole::Decision, layout_after));
    specs.extend(request_columns());
    specs.extend(before_columns());
    specs.extend(outcome_columns());
    specs.extend(label_columns());
    specs
}

/// Returns the columns that identify the decision: its id, its workload, and its time.
fn key_columns<'a>() -> Vec<DecisionColumn<'a>> {
    vec![
        ColumnSpec {
            name: "decision_id",
            role: ColumnRole::Key,
            about: DescriptionSource::Text("The decision's deterministic id."),
            get: CellGetter::Text(|row| Some(row.decision.id.clone())),
        },
        of_event(ColumnRole::Key, "workload", CellGetter::Text(|row| Some(row.decision.workload.clone()))),
        ColumnSpec {
            name: "decision_time",
            role: ColumnRole::Key,
            about: DescriptionSource::Text("End of the window that led to it: nothing later is among the features."),
            get: CellGetter::Time(|row| Some(row.decision.time)),
        },
        of_event(ColumnRole::Key, "origin", CellGetter::Text(|row| Some(word(row.decision.origin)))),
        of_event(ColumnRole::Decision, "controller", CellGetter::Text(|row| Some(row.decision.controller.clone()))),
        of_event(
            ColumnRole::Decision,
            "controller_version",
            CellGetter::Text(|row| Some(row.decision.controller_version.clone())),
        ),
        of_event(ColumnRole::Decision, "action", CellGetter::Text(|row| Some(word(row.decision.action)))),
        of_event(ColumnRole::Decision, "reason", CellGetter::Text(|row| Some(row.decision.reason.clone()))),
    ]
}

/// Returns the columns that go with the wanted layout.
fn request_columns<'a>() -> Vec<DecisionColumn<'a>> {
    vec![
        of_event(ColumnRole::Decision, "generation", CellGetter::Int(|row| row.decision.generation.map(|g| g as i64))),
        of_event(ColumnRole::Decision, "restarts", CellGetter::Bool(|row| Some(row.decision.restarts))),
        of_event(ColumnRole::Decision, "concerns", CellGetter::Text(|row| row.decision.concerns.clone())),
        of_event(ColumnRole::Decision, "validation", CellGetter::Text(|row| Some(word(row.decision.validation)))),
        of_event(ColumnRole::Decision, "expires", CellGetter::Time(|row| Some(row.decision.expires))),
        of_event(ColumnRole::Decision, "hold_until", CellGetter::Time(|row| row.decision.hold_until)),
        of_event(ColumnRole::Decision, "model_version", CellGetter::Text(|row| row.decision.model_version.clone())),
        ColumnSpec {
            name: "evidence",
            role: ColumnRole::Decision,
            about: DescriptionSource::Text(
                "The numbers that led to the decision, what was expected of it included, as a JSON object with units in the names.",
            ),
            get: CellGetter::Text(|row| Some(evidence(row.decision))),
        },
    ]
}

/// Returns the columns on the workload just before the decision.
fn before_columns<'a>() -> Vec<DecisionColumn<'a>> {
    vec![
        ColumnSpec {
            name: "before_windows",
            role: ColumnRole::Feature,
            about: DescriptionSource::Text(
                "Usable windows of the same layout just before the decision that the next columns are made of, at most 3 of the last 60.",
            ),
            get: CellGetter::Int(|row| Some(row.before.windows as i64)),
        },
        ColumnSpec {
            name: "before_joules_per_sample",
            role: ColumnRole::Feature,
            about: DescriptionSource::Text("Over those windows: energy over samples, both summed, in J/sample."),
            get: CellGetter::Float(|row| row.before.joules_per_sample),
        },
        ColumnSpec {
            name: "before_samples_per_second",
            role: ColumnRole::Feature,
            about: DescriptionSource::Text("Over those windows: mean, in samples/s."),
            get: CellGetter::Float(|row| row.before.samples_per_second),
        },
        ColumnSpec {
            name: "before_power_watts",
            role: ColumnRole::Feature,
            about: DescriptionSource::Text("Over those windows: mean, in W."),
            get: CellGetter::Float(|row| row.before.power_watts),
        },
        ColumnSpec {
            name: "seconds_since_last_change",
            role: ColumnRole::Feature,
            about: DescriptionSource::Text("Time since a decision was last written to the workload."),
            get: CellGetter::Float(|row| row.since_last_change_seconds),
        },
        ColumnSpec {
            name: "changes_in_24h",
            role: ColumnRole::Feature,
            about: DescriptionSource::Text("Changes written to the workload in the 24 h before the decision."),
            get: CellGetter::Int(|row| Some(row.changes_in_24h as i64)),
        },
    ]
}

/// Returns the columns to predict: the windows after the change, and the verdict.
fn label_columns<'a>() -> Vec<DecisionColumn<'a>> {
    vec![
        ColumnSpec {
            name: "label_after_windows",
            role: ColumnRole::Label,
            about: DescriptionSource::Text(
                "Usable windows after readiness (one window of warm-up left out, same layout) that the next columns are made of, at most 3.",
            ),
            get: CellGetter::Int(|row| Some(row.after.windows as i64)),
        },
        ColumnSpec {
            name: "label_after_joules_per_sample",
            role: ColumnRole::Label,
            about: DescriptionSource::Text("Over those windows: energy over samples, both summed, in J/sample."),
            get: CellGetter::Float(|row| row.after.joules_per_sample),
        },
        ColumnSpec {
            name: "label_after_samples_per_second",
            role: ColumnRole::Label,
            about: DescriptionSource::Text("Over those windows: mean, in samples/s."),
            get: CellGetter::Float(|row| row.after.samples_per_second),
        },
        ColumnSpec {
            name: "label_after_power_watts",
            role: ColumnRole::Label,
            about: DescriptionSource::Text("Over those windows: mean, in W."),
            get: CellGetter::Float(|row| row.after.power_watts),
        },
        ColumnSpec {
            name: "label_saving_ratio",
            role: ColumnRole::Label,
            about: DescriptionSource::Text(
                "1 − J/sample after ÷ before; negative where the change cost energy. A change of the work itself is not distinguished.",
            ),
            get: CellGetter::Float(|row| Some(1.0 - row.after.joules_per_sample? / row.before.joules_per_sample?)),
        },
        ColumnSpec {
            name: "label_throughput_ratio",
            role: ColumnRole::Label,
            about: DescriptionSource::Text("Samples/s after ÷ before."),
            get: CellGetter::Float(|row| Some(row.after.samples_per_second? / row.before.samples_per_second?)),
        },
        ColumnSpec {
            name: "label_kept",
            role: ColumnRole::Label,
            about: DescriptionSource::Text(
                "The controller's own verdict: true where it kept the change, false where it took it back; unknown where it never judged it.",
            ),
            get: CellGetter::Bool(|row| row.judged),
        },
    ]
}
