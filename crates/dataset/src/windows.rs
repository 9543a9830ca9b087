//! The table of windows.

use eadt_schemas::v1::{Decision, EfficiencyWindow, Layout};

use crate::TRAILING_WINDOWS;
use crate::column::{CellGetter, ColumnRole, ColumnSpec, DatasetTable, DescriptionSource, table};
use crate::common::{OutcomeRow, layout_columns, outcome_columns};
use crate::history::{OutcomeSummary, WorkloadHistory, usable};
use crate::words::word;

/// One (workload, tumbling window) with what belongs to it.
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

fn specs<'a>() -> Vec<ColumnSpec<DatasetWindowRow<'a>>> {
    let mut specs: Vec<ColumnSpec<DatasetWindowRow<'a>>> = vec![
        ColumnSpec {
            name: "workload",
            role: ColumnRole::Key,
            about: DescriptionSource::Window,
            get: CellGetter::Text(|row| Some(row.window.workload.clone())),
        },
        ColumnSpec {
            name: "window_start",
            role: ColumnRole::Key,
            about: DescriptionSource::Window,
            get: CellGetter::Time(|row| Some(row.window.window_start)),
        },
        ColumnSpec {
            name: "window_end",
            role: ColumnRole::Key,
            about: DescriptionSource::Window,
            get: CellGetter::Time(|row| Some(row.window.window_end)),
        },
        ColumnSpec {
            name: "origin",
            role: ColumnRole::Key,
            about: DescriptionSource::Window,
            get: CellGetter::Text(|row| Some(word(row.window.origin))),
        },
        ColumnSpec {
            name: "meter",
            role: ColumnRole::Key,
            about: DescriptionSource::Window,
            get: CellGetter::Text(|row| Some(word(row.window.meter))),
        },
        ColumnSpec {
            name: "energy_method",
            role: ColumnRole::Feature,
            about: DescriptionSource::Window,
            get: CellGetter::Text(|row| Some(word(row.window.energy_method))),
        },
        ColumnSpec {
            name: "energy_joules",
            role: ColumnRole::Feature,
            about: DescriptionSource::Window,
            get: CellGetter::Float(|row| row.window.energy_joules),
        },
        ColumnSpec {
            name: "energy_coverage_ratio",
            role: ColumnRole::Feature,
            about: DescriptionSource::Window,
            get: CellGetter::Float(|row| Some(row.window.energy_coverage_ratio)),
        },
        ColumnSpec {
            name: "energy_largest_gap_seconds",
            role: ColumnRole::Feature,
            about: DescriptionSource::Window,
            get: CellGetter::Float(|row| Some(row.window.energy_largest_gap_seconds)),
        },
        ColumnSpec {
            name: "counter_contradicted_seconds",
            role: ColumnRole::Feature,
            about: DescriptionSource::Window,
            get: CellGetter::Float(|row| Some(row.window.counter_contradicted_seconds)),
        },
        ColumnSpec {
            name: "unassigned_energy_joules",
            role: ColumnRole::Feature,
            about: DescriptionSource::Window,
            get: CellGetter::Float(|row| Some(row.window.unassigned_energy_joules)),
        },
        ColumnSpec {
            name: "run_seconds",
            role: ColumnRole::Feature,
            about: DescriptionSource::Window,
            get: CellGetter::Float(|row| Some(row.window.run_seconds)),
        },
        ColumnSpec {
            name: "run_energy_joules",
            role: ColumnRole::Feature,
            about: DescriptionSource::Window,
            get: CellGetter::Float(|row| row.window.run_energy_joules),
        },
        ColumnSpec {
            name: "run_coverage_ratio",
            role: ColumnRole::Feature,
            about: DescriptionSource::Window,
            get: CellGetter::Float(|row| Some(row.window.run_coverage_ratio)),
        },
        ColumnSpec {
            name: "samples",
            role: ColumnRole::Feature,
            about: DescriptionSource::Window,
            get: CellGetter::Float(|row| row.window.samples),
        },
        ColumnSpec {
            name: "samples_redone",
            role: ColumnRole::Feature,
            about: DescriptionSource::Window,
            get: CellGetter::Float(|row| Some(row.window.samples_redone)),
        },
        ColumnSpec {
            name: "tokens",
            role: ColumnRole::Feature,
            about: DescriptionSource::Window,
            get: CellGetter::Float(|row| row.window.tokens),
        },
        ColumnSpec {
            name: "steps",
            role: ColumnRole::Feature,
            about: DescriptionSource::Window,
            get: CellGetter::Float(|row| row.window.steps),
        },
        ColumnSpec {
            name: "progress_coverage_ratio",
            role: ColumnRole::Feature,
            about: DescriptionSource::Window,
            get: CellGetter::Float(|row| Some(row.window.progress_coverage_ratio)),
        },
        ColumnSpec {
            name: "progress_largest_gap_seconds",
            role: ColumnRole::Feature,
            about: DescriptionSource::Window,
            get: CellGetter::Float(|row| Some(row.window.progress_largest_gap_seconds)),
        },
        ColumnSpec {
            name: "samples_per_second",
            role: ColumnRole::Feature,
            about: DescriptionSource::Window,
            get: CellGetter::Float(|row| row.window.samples_per_second),
        },
        ColumnSpec {
            name: "joules_per_sample",
            role: ColumnRole::Feature,
            about: DescriptionSource::Window,
            get: CellGetter::Float(|row| row.window.energy_per_sample()),
        },
        ColumnSpec {
            name: "joules_per_sample_running",
            role: ColumnRole::Feature,
            about: DescriptionSource::Window,
            get: CellGetter::Float(|row| row.window.joules_per_sample_running),
        },
        ColumnSpec {
            name: "samples_per_joule",
            role: ColumnRole::Feature,
            about: DescriptionSource::Window,
            get: CellGetter::Float(|row| row.window.samples_per_joule),
        },
        ColumnSpec {
            name: "tokens_per_joule",
            role: ColumnRole::Feature,
            about: DescriptionSource::Window,
            get: CellGetter::Float(|row| row.window.tokens_per_joule),
        },
        ColumnSpec {
            name: "mean_power_watts",
            role: ColumnRole::Feature,
            about: DescriptionSource::Window,
            get: CellGetter::Float(|row| row.window.mean_power_watts),
        },
        ColumnSpec {
            name: "mean_power_per_gpu_watts",
            role: ColumnRole::Feature,
            about: DescriptionSource::Window,
            get: CellGetter::Float(|row| row.window.mean_power_per_gpu_watts),
        },
        ColumnSpec {
            name: "cost",
            role: ColumnRole::Feature,
            about: DescriptionSource::Window,
            get: CellGetter::Float(|row| row.window.cost),
        },
        ColumnSpec {
            name: "co2_grams",
            role: ColumnRole::Feature,
            about: DescriptionSource::Window,
            get: CellGetter::Float(|row| row.window.co2_grams),
        },
        ColumnSpec {
            name: "mean_utilization_ratio",
            role: ColumnRole::Feature,
            about: DescriptionSource::Window,
            get: CellGetter::Float(|row| row.window.mean_utilization_ratio),
        },
        ColumnSpec {
            name: "mean_memory_utilization_ratio",
            role: ColumnRole::Feature,
            about: DescriptionSource::Window,
            get: CellGetter::Float(|row| row.window.mean_memory_utilization_ratio),
        },
        ColumnSpec {
            name: "mean_sm_active_ratio",
            role: ColumnRole::Feature,
            about: DescriptionSource::Window,
            get: CellGetter::Float(|row| row.window.mean_sm_active_ratio),
        },
        ColumnSpec {
            name: "mean_sm_occupancy_ratio",
            role: ColumnRole::Feature,
            about: DescriptionSource::Window,
            get: CellGetter::Float(|row| row.window.mean_sm_occupancy_ratio),
        },
        ColumnSpec {
            name: "mean_tensor_active_ratio",
            role: ColumnRole::Feature,
            about: DescriptionSource::Window,
            get: CellGetter::Float(|row| row.window.mean_tensor_active_ratio),
        },
        ColumnSpec {
            name: "mean_dram_active_ratio",
            role: ColumnRole::Feature,
            about: DescriptionSource::Window,
            get: CellGetter::Float(|row| row.window.mean_dram_active_ratio),
        },
        ColumnSpec {
            name: "mean_sm_clock_mhz",
            role: ColumnRole::Feature,
            about: DescriptionSource::Window,
            get: CellGetter::Float(|row| row.window.mean_sm_clock_mhz),
        },
        ColumnSpec {
            name: "mean_temperature_celsius",
            role: ColumnRole::Feature,
            about: DescriptionSource::Window,
            get: CellGetter::Float(|row| row.window.mean_temperature_celsius),
        },
        ColumnSpec {
            name: "max_temperature_celsius",
            role: ColumnRole::Feature,
            about: DescriptionSource::Window,
            get: CellGetter::Float(|row| row.window.max_temperature_celsius),
        },
        ColumnSpec {
            name: "mean_loss",
            role: ColumnRole::Feature,
            about: DescriptionSource::Window,
            get: CellGetter::Float(|row| row.window.mean_loss),
        },
        ColumnSpec {
            name: "restarted",
            role: ColumnRole::Feature,
            about: DescriptionSource::Window,
            get: CellGetter::Bool(|row| Some(row.window.restarted)),
        },
        ColumnSpec {
            name: "gap",
            role: ColumnRole::Feature,
            about: DescriptionSource::Window,
            get: CellGetter::Bool(|row| Some(row.window.gap)),
        },
        ColumnSpec {
            name: "gpus",
            role: ColumnRole::Feature,
            about: DescriptionSource::Window,
            get: CellGetter::Int(|row| Some(i64::from(row.window.gpus))),
        },
        ColumnSpec {
            name: "ranks",
            role: ColumnRole::Feature,
            about: DescriptionSource::Window,
            get: CellGetter::Int(|row| Some(i64::from(row.window.ranks))),
        },
        ColumnSpec {
            name: "events",
            role: ColumnRole::Feature,
            about: DescriptionSource::Window,
            get: CellGetter::Int(|row| Some(row.window.events as i64)),
        },
        ColumnSpec {
            name: "late",
            role: ColumnRole::Feature,
            about: DescriptionSource::Window,
            get: CellGetter::Int(|row| Some(row.window.late as i64)),
        },
        ColumnSpec {
            name: "stale",
            role: ColumnRole::Feature,
            about: DescriptionSource::Window,
            get: CellGetter::Int(|row| Some(row.window.stale as i64)),
        },
        ColumnSpec {
            name: "duplicates",
            role: ColumnRole::Feature,
            about: DescriptionSource::Window,
            get: CellGetter::Int(|row| Some(row.window.duplicates as i64)),
        },
        ColumnSpec {
            name: "late_tables",
            role: ColumnRole::Feature,
            about: DescriptionSource::Window,
            get: CellGetter::Int(|row| Some(row.window.late_tables as i64)),
        },
        ColumnSpec {
            name: "generation",
            role: ColumnRole::Feature,
            about: DescriptionSource::Window,
            get: CellGetter::Int(|row| row.window.generation.map(|g| g as i64)),
        },
    ];
    specs.extend(layout_columns!("layout", "Layout in force at the window's end", ColumnRole::Feature, layout));
    let more: Vec<ColumnSpec<DatasetWindowRow<'a>>> = vec![
        ColumnSpec {
            name: "usable",
            role: ColumnRole::Feature,
            about: DescriptionSource::Text(
                "Whether the window says how efficient a settled layout is: energy and progress covered to 90 %, nothing restarted, no input lost, J/sample known.",
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
        ColumnSpec {
            name: "decision_id",
            role: ColumnRole::Decision,
            about: DescriptionSource::Text("The decision made at the end of this window."),
            get: CellGetter::Text(|row| Some(row.decision?.id.clone())),
        },
        ColumnSpec {
            name: "controller",
            role: ColumnRole::Decision,
            about: DescriptionSource::Decision,
            get: CellGetter::Text(|row| Some(row.decision?.controller.clone())),
        },
        ColumnSpec {
            name: "controller_version",
            role: ColumnRole::Decision,
            about: DescriptionSource::Decision,
            get: CellGetter::Text(|row| Some(row.decision?.controller_version.clone())),
        },
        ColumnSpec {
            name: "action",
            role: ColumnRole::Decision,
            about: DescriptionSource::Decision,
            get: CellGetter::Text(|row| Some(word(row.decision?.action))),
        },
        ColumnSpec {
            name: "reason",
            role: ColumnRole::Decision,
            about: DescriptionSource::Decision,
            get: CellGetter::Text(|row| Some(row.decision?.reason.clone())),
        },
    ];
    specs.extend(more);
    specs.extend(layout_columns!("to", "Layout wanted by the decision", ColumnRole::Decision, to));
    let more: Vec<ColumnSpec<DatasetWindowRow<'a>>> = vec![
        ColumnSpec {
            name: "validation",
            role: ColumnRole::Decision,
            about: DescriptionSource::Decision,
            get: CellGetter::Text(|row| Some(word(row.decision?.validation))),
        },
        ColumnSpec {
            name: "model_version",
            role: ColumnRole::Decision,
            about: DescriptionSource::Decision,
            get: CellGetter::Text(|row| row.decision?.model_version.clone()),
        },
    ];
    specs.extend(more);
    specs.extend(outcome_columns());
    let more: Vec<ColumnSpec<DatasetWindowRow<'a>>> = vec![
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
    ];
    specs.extend(more);
    specs
}
