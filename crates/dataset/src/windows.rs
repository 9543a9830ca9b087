//! The table of windows.

use eadt_schemas::v1::{Decision, EfficiencyWindow, Layout};

use crate::TRAILING_WINDOWS;
use crate::column::{CellGetter, ColumnRole, ColumnSpec, DatasetTable, DescriptionSource, table};
use crate::common::{OutcomeRow, layout_columns, outcome_columns};
use crate::history::{OutcomeSummary, WorkloadHistory, usable};
use crate::words::word;

/// One (workload, tumbling window) with its earlier windows, its decision and the outcome.
pub(crate) struct DatasetWindowRow<'a> {
    window: &'a EfficiencyWindow,
    /// The usable ones among this and those before it.
    trailing: Vec<&'a EfficiencyWindow>,
    decision: Option<&'a Decision>,
    outcome: OutcomeSummary,
    next: Option<&'a EfficiencyWindow>,
}

pub(crate) fn rows(history: &WorkloadHistory) -> impl Iterator<Item = DatasetWindowRow<'_>> {
    history.windows().map(|window| {
        let decision = history.decided_at(window.window_end);
        let recent = history.ended_at(window.window_end).take(TRAILING_WINDOWS);
        DatasetWindowRow {
            window,
            trailing: recent.filter(|window| usable(window)).collect(),
            decision,
            outcome: decision.map(|decision| history.outcome_of(&decision.id)).unwrap_or_default(),
            next: history.next(window).filter(|next| usable(next)),
        }
    })
}

pub(crate) fn build(rows: &[DatasetWindowRow<'_>]) -> DatasetTable {
    table("windows", "one tumbling window of one workload", &specs(), rows)
}

fn layout<'a>(row: &'a DatasetWindowRow<'_>) -> Option<&'a Layout> {
    row.window.layout.as_ref()
}

fn to<'a>(row: &'a DatasetWindowRow<'_>) -> Option<&'a Layout> {
    row.decision.map(|decision| &decision.to)
}

impl OutcomeRow for DatasetWindowRow<'_> {
    fn outcome(&self) -> &OutcomeSummary {
        &self.outcome
    }
}

fn median(row: &DatasetWindowRow<'_>, value: fn(&EfficiencyWindow) -> Option<f64>) -> Option<f64> {
    let mut values: Vec<f64> = row.trailing.iter().filter_map(|window| value(window)).collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        n if n % 2 == 1 => Some(values[middle]),
        _ => Some(f64::midpoint(values[middle - 1], values[middle])),
    }
}

/// A column of this table before it has rows.
type WindowColumn<'a> = ColumnSpec<DatasetWindowRow<'a>>;

/// Returns a column that the window's event has under the same name.
fn of_window<'a>(role: ColumnRole, name: &'static str, get: CellGetter<DatasetWindowRow<'a>>) -> WindowColumn<'a> {
    ColumnSpec { name, role, about: DescriptionSource::Window, get }
}

/// Returns a column that the decision's event has under the same name.
fn of_decision<'a>(name: &'static str, get: CellGetter<DatasetWindowRow<'a>>) -> WindowColumn<'a> {
    ColumnSpec { name, role: ColumnRole::Decision, about: DescriptionSource::Decision, get }
}

fn specs<'a>() -> Vec<WindowColumn<'a>> {
    let mut specs = [key_columns(), energy_columns(), progress_columns(), mean_columns(), record_columns()]
        .into_iter()
        .flatten()
        .collect::<Vec<_>>();
    specs.extend(layout_columns!("layout", "Layout in force at the window's end", ColumnRole::Feature, layout));
    specs.extend(trailing_columns());
    specs.extend(decision_columns());
    specs.extend(layout_columns!("to", "Layout wanted by the decision", ColumnRole::Decision, to));
    specs.extend(verdict_columns());
    specs.extend(outcome_columns());
    specs.extend(label_columns());
    specs
}

/// Returns the columns that identify the window: workload, times, and the origin of its figures.
fn key_columns<'a>() -> Vec<WindowColumn<'a>> {
    vec![
        of_window(ColumnRole::Key, "workload", CellGetter::Text(|row| Some(row.window.workload.clone()))),
        of_window(ColumnRole::Key, "window_start", CellGetter::Time(|row| Some(row.window.window_start))),
        of_window(ColumnRole::Key, "window_end", CellGetter::Time(|row| Some(row.window.window_end))),
        of_window(ColumnRole::Key, "origin", CellGetter::Text(|row| Some(word(row.window.origin)))),
        of_window(ColumnRole::Key, "meter", CellGetter::Text(|row| Some(word(row.window.meter)))),
    ]
}

/// Returns the columns on energy, and on how much of it is known.
fn energy_columns<'a>() -> Vec<WindowColumn<'a>> {
    vec![
        of_window(ColumnRole::Feature, "energy_method", CellGetter::Text(|row| Some(word(row.window.energy_method)))),
        of_window(ColumnRole::Feature, "energy_joules", CellGetter::Float(|row| row.window.energy_joules)),
        of_window(ColumnRole::Feature, "energy_coverage_ratio", CellGetter::Float(|row| Some(row.window.energy_coverage_ratio))),
        of_window(
            ColumnRole::Feature,
            "energy_largest_gap_seconds",
            CellGetter::Float(|row| Some(row.window.energy_largest_gap_seconds)),
        ),
        of_window(
            ColumnRole::Feature,
            "counter_contradicted_seconds",
            CellGetter::Float(|row| Some(row.window.counter_contradicted_seconds)),
        ),
        of_window(
            ColumnRole::Feature,
            "unassigned_energy_joules",
            CellGetter::Float(|row| Some(row.window.unassigned_energy_joules)),
        ),
        of_window(ColumnRole::Feature, "run_seconds", CellGetter::Float(|row| Some(row.window.run_seconds))),
        of_window(ColumnRole::Feature, "run_energy_joules", CellGetter::Float(|row| row.window.run_energy_joules)),
        of_window(ColumnRole::Feature, "run_coverage_ratio", CellGetter::Float(|row| Some(row.window.run_coverage_ratio))),
    ]
}

/// Returns the columns on the work done, and on its efficiency.
fn progress_columns<'a>() -> Vec<WindowColumn<'a>> {
    vec![
        of_window(ColumnRole::Feature, "samples", CellGetter::Float(|row| row.window.samples)),
        of_window(ColumnRole::Feature, "samples_redone", CellGetter::Float(|row| Some(row.window.samples_redone))),
        of_window(ColumnRole::Feature, "tokens", CellGetter::Float(|row| row.window.tokens)),
        of_window(ColumnRole::Feature, "steps", CellGetter::Float(|row| row.window.steps)),
        of_window(
            ColumnRole::Feature,
            "progress_coverage_ratio",
            CellGetter::Float(|row| Some(row.window.progress_coverage_ratio)),
        ),
        of_window(
            ColumnRole::Feature,
            "progress_largest_gap_seconds",
            CellGetter::Float(|row| Some(row.window.progress_largest_gap_seconds)),
        ),
        of_window(ColumnRole::Feature, "samples_per_second", CellGetter::Float(|row| row.window.samples_per_second)),
        of_window(ColumnRole::Feature, "joules_per_sample", CellGetter::Float(|row| row.window.energy_per_sample())),
        of_window(
            ColumnRole::Feature,
            "joules_per_sample_running",
            CellGetter::Float(|row| row.window.joules_per_sample_running),
        ),
        of_window(ColumnRole::Feature, "samples_per_joule", CellGetter::Float(|row| row.window.samples_per_joule)),
        of_window(ColumnRole::Feature, "tokens_per_joule", CellGetter::Float(|row| row.window.tokens_per_joule)),
    ]
}

/// Returns the columns on power, its cost, and means of the GPUs and the job.
fn mean_columns<'a>() -> Vec<WindowColumn<'a>> {
    vec![
        of_window(ColumnRole::Feature, "mean_power_watts", CellGetter::Float(|row| row.window.mean_power_watts)),
        of_window(ColumnRole::Feature, "mean_power_per_gpu_watts", CellGetter::Float(|row| row.window.mean_power_per_gpu_watts)),
        of_window(ColumnRole::Feature, "cost", CellGetter::Float(|row| row.window.cost)),
        of_window(ColumnRole::Feature, "co2_grams", CellGetter::Float(|row| row.window.co2_grams)),
        of_window(ColumnRole::Feature, "mean_utilization_ratio", CellGetter::Float(|row| row.window.mean_utilization_ratio)),
        of_window(
            ColumnRole::Feature,
            "mean_memory_utilization_ratio",
            CellGetter::Float(|row| row.window.mean_memory_utilization_ratio),
        ),
        of_window(ColumnRole::Feature, "mean_sm_active_ratio", CellGetter::Float(|row| row.window.mean_sm_active_ratio)),
        of_window(ColumnRole::Feature, "mean_sm_occupancy_ratio", CellGetter::Float(|row| row.window.mean_sm_occupancy_ratio)),
        of_window(ColumnRole::Feature, "mean_tensor_active_ratio", CellGetter::Float(|row| row.window.mean_tensor_active_ratio)),
        of_window(ColumnRole::Feature, "mean_dram_active_ratio", CellGetter::Float(|row| row.window.mean_dram_active_ratio)),
        of_window(ColumnRole::Feature, "mean_sm_clock_mhz", CellGetter::Float(|row| row.window.mean_sm_clock_mhz)),
        of_window(ColumnRole::Feature, "mean_temperature_celsius", CellGetter::Float(|row| row.window.mean_temperature_celsius)),
        of_window(ColumnRole::Feature, "max_temperature_celsius", CellGetter::Float(|row| row.window.max_temperature_celsius)),
        of_window(ColumnRole::Feature, "mean_loss", CellGetter::Float(|row| row.window.mean_loss)),
    ]
}

/// Returns the columns on events of the job and on the completeness of its record.
fn record_columns<'a>() -> Vec<WindowColumn<'a>> {
    vec![
        of_window(ColumnRole::Feature, "restarted", CellGetter::Bool(|row| Some(row.window.restarted))),
        of_window(ColumnRole::Feature, "gap", CellGetter::Bool(|row| Some(row.window.gap))),
        of_window(ColumnRole::Feature, "gpus", CellGetter::Int(|row| Some(i64::from(row.window.gpus)))),
        of_window(ColumnRole::Feature, "ranks", CellGetter::Int(|row| Some(i64::from(row.window.ranks)))),
        of_window(ColumnRole::Feature, "events", CellGetter::Int(|row| Some(row.window.events as i64))),
        of_window(ColumnRole::Feature, "late", CellGetter::Int(|row| Some(row.window.late as i64))),
        of_window(ColumnRole::Feature, "stale", CellGetter::Int(|row| Some(row.window.stale as i64))),
        of_window(ColumnRole::Feature, "duplicates", CellGetter::Int(|row| Some(row.window.duplicates as i64))),
        of_window(ColumnRole::Feature, "late_tables", CellGetter::Int(|row| Some(row.window.late_tables as i64))),
        of_window(ColumnRole::Feature, "generation", CellGetter::Int(|row| row.window.generation.map(|g| g as i64))),
    ]
}

/// Returns the columns on the windows before, as a controller uses them.
fn trailing_columns<'a>() -> Vec<WindowColumn<'a>> {
    vec![
        ColumnSpec {
            name: "usable",
            role: ColumnRole::Feature,
            about: DescriptionSource::Text(
                "Whether the window measures how efficient a settled layout is: energy and progress covered to 90 %, nothing restarted, no input lost, J/sample known.",
            ),
            get: CellGetter::Bool(|row| Some(usable(row.window))),
        },
        ColumnSpec {
            name: "trailing_windows",
            role: ColumnRole::Feature,
            about: DescriptionSource::Text("Usable windows among this one and the four before it."),
            get: CellGetter::Int(|row| Some(row.trailing.len() as i64)),
        },
        ColumnSpec {
            name: "trailing_median_joules_per_sample",
            role: ColumnRole::Feature,
            about: DescriptionSource::Text("Median of joules_per_sample over those windows, in J/sample."),
            get: CellGetter::Float(|row| median(row, EfficiencyWindow::energy_per_sample)),
        },
        ColumnSpec {
            name: "trailing_median_samples_per_second",
            role: ColumnRole::Feature,
            about: DescriptionSource::Text("Median of samples_per_second over those windows, in samples/s."),
            get: CellGetter::Float(|row| median(row, |window| window.samples_per_second)),
        },
        ColumnSpec {
            name: "trailing_median_power_watts",
            role: ColumnRole::Feature,
            about: DescriptionSource::Text("Median of mean_power_watts over those windows, in W."),
            get: CellGetter::Float(|row| median(row, |window| window.mean_power_watts)),
        },
    ]
}

/// Returns the columns on the decision made at the end of the window.
fn decision_columns<'a>() -> Vec<WindowColumn<'a>> {
    vec![
        ColumnSpec {
            name: "decision_id",
            role: ColumnRole::Decision,
            about: DescriptionSource::Text("The decision made at the end of this window."),
            get: CellGetter::Text(|row| Some(row.decision?.id.clone())),
        },
        of_decision("controller", CellGetter::Text(|row| Some(row.decision?.controller.clone()))),
        of_decision("controller_version", CellGetter::Text(|row| Some(row.decision?.controller_version.clone()))),
        of_decision("action", CellGetter::Text(|row| Some(word(row.decision?.action)))),
        of_decision("reason", CellGetter::Text(|row| Some(row.decision?.reason.clone()))),
    ]
}

/// Returns the columns on the verdict on the change before the decision, and the models used.
fn verdict_columns<'a>() -> Vec<WindowColumn<'a>> {
    vec![
        of_decision("validation", CellGetter::Text(|row| Some(word(row.decision?.validation)))),
        of_decision("model_version", CellGetter::Text(|row| row.decision?.model_version.clone())),
    ]
}

/// Returns the columns to predict: the next window.
fn label_columns<'a>() -> Vec<WindowColumn<'a>> {
    vec![
        ColumnSpec {
            name: "label_next_joules_per_sample",
            role: ColumnRole::Label,
            about: DescriptionSource::Text(
                "joules_per_sample of the window that follows without a hole, where that is usable, in J/sample.",
            ),
            get: CellGetter::Float(|row| row.next?.energy_per_sample()),
        },
        ColumnSpec {
            name: "label_next_samples_per_second",
            role: ColumnRole::Label,
            about: DescriptionSource::Text(
                "samples_per_second of the window that follows without a hole, where that is usable, in samples/s.",
            ),
            get: CellGetter::Float(|row| row.next?.samples_per_second),
        },
        ColumnSpec {
            name: "label_next_mean_power_watts",
            role: ColumnRole::Label,
            about: DescriptionSource::Text(
                "mean_power_watts of the window that follows without a hole, where that is usable, in W.",
            ),
            get: CellGetter::Float(|row| row.next?.mean_power_watts),
        },
    ]
}
