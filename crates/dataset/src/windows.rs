//! The table of windows.

use eadt_schemas::v1::{Decision, EfficiencyWindow, Layout};

use crate::TRAILING_WINDOWS;
use crate::column::{About, Get, Role, Spec, Table, table};
use crate::common::{Outcomes, layout_columns, outcome_columns};
use crate::history::{Became, History, usable};
use crate::words::word;

/// One (workload, tumbling window) with what belongs to it.
pub(crate) struct Row<'a> {
    window: &'a EfficiencyWindow,
    /// The usable ones among this and those before it.
    trailing: Vec<&'a EfficiencyWindow>,
    decision: Option<&'a Decision>,
    became: Became,
    next: Option<&'a EfficiencyWindow>,
}

pub(crate) fn rows(history: &History) -> impl Iterator<Item = Row<'_>> {
    history.windows().map(|window| {
        let decision = history.decided_at(window.window_end);
        let recent = history.ended_at(window.window_end).take(TRAILING_WINDOWS);
        Row {
            window,
            trailing: recent.filter(|window| usable(window)).collect(),
            decision,
            became: decision.map(|decision| history.became(&decision.id)).unwrap_or_default(),
            next: history.next(window).filter(|next| usable(next)),
        }
    })
}

pub(crate) fn build(rows: &[Row<'_>]) -> Table {
    table("windows", "one tumbling window of one workload", &specs(), rows)
}

fn layout<'a>(row: &'a Row<'_>) -> Option<&'a Layout> {
    row.window.layout.as_ref()
}

fn to<'a>(row: &'a Row<'_>) -> Option<&'a Layout> {
    row.decision.map(|decision| &decision.to)
}

impl Outcomes for Row<'_> {
    fn became(&self) -> &Became {
        &self.became
    }
}

fn median(row: &Row<'_>, value: fn(&EfficiencyWindow) -> Option<f64>) -> Option<f64> {
    let mut values: Vec<f64> = row.trailing.iter().filter_map(|window| value(window)).collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        n if n % 2 == 1 => Some(values[middle]),
        _ => Some(f64::midpoint(values[middle - 1], values[middle])),
    }
}

fn specs<'a>() -> Vec<Spec<Row<'a>>> {
    let mut specs: Vec<Spec<Row<'a>>> = vec![
        Spec { name: "workload", role: Role::Key, about: About::Window, get: Get::Text(|row| Some(row.window.workload.clone())) },
        Spec { name: "window_start", role: Role::Key, about: About::Window, get: Get::Time(|row| Some(row.window.window_start)) },
        Spec { name: "window_end", role: Role::Key, about: About::Window, get: Get::Time(|row| Some(row.window.window_end)) },
        Spec { name: "origin", role: Role::Key, about: About::Window, get: Get::Text(|row| Some(word(row.window.origin))) },
        Spec { name: "meter", role: Role::Key, about: About::Window, get: Get::Text(|row| Some(word(row.window.meter))) },
        Spec {
            name: "energy_method",
            role: Role::Feature,
            about: About::Window,
            get: Get::Text(|row| Some(word(row.window.energy_method))),
        },
        Spec {
            name: "energy_joules",
            role: Role::Feature,
            about: About::Window,
            get: Get::Float(|row| row.window.energy_joules),
        },
        Spec {
            name: "energy_coverage_ratio",
            role: Role::Feature,
            about: About::Window,
            get: Get::Float(|row| Some(row.window.energy_coverage_ratio)),
        },
        Spec {
            name: "energy_largest_gap_seconds",
            role: Role::Feature,
            about: About::Window,
            get: Get::Float(|row| Some(row.window.energy_largest_gap_seconds)),
        },
        Spec {
            name: "counter_contradicted_seconds",
            role: Role::Feature,
            about: About::Window,
            get: Get::Float(|row| Some(row.window.counter_contradicted_seconds)),
        },
        Spec {
            name: "unassigned_energy_joules",
            role: Role::Feature,
            about: About::Window,
            get: Get::Float(|row| Some(row.window.unassigned_energy_joules)),
        },
        Spec {
            name: "run_seconds",
            role: Role::Feature,
            about: About::Window,
            get: Get::Float(|row| Some(row.window.run_seconds)),
        },
        Spec {
            name: "run_energy_joules",
            role: Role::Feature,
            about: About::Window,
            get: Get::Float(|row| row.window.run_energy_joules),
        },
        Spec {
            name: "run_coverage_ratio",
            role: Role::Feature,
            about: About::Window,
            get: Get::Float(|row| Some(row.window.run_coverage_ratio)),
        },
        Spec { name: "samples", role: Role::Feature, about: About::Window, get: Get::Float(|row| row.window.samples) },
        Spec {
            name: "samples_redone",
            role: Role::Feature,
            about: About::Window,
            get: Get::Float(|row| Some(row.window.samples_redone)),
        },
        Spec { name: "tokens", role: Role::Feature, about: About::Window, get: Get::Float(|row| row.window.tokens) },
        Spec { name: "steps", role: Role::Feature, about: About::Window, get: Get::Float(|row| row.window.steps) },
        Spec {
            name: "progress_coverage_ratio",
            role: Role::Feature,
            about: About::Window,
            get: Get::Float(|row| Some(row.window.progress_coverage_ratio)),
        },
        Spec {
            name: "progress_largest_gap_seconds",
            role: Role::Feature,
            about: About::Window,
            get: Get::Float(|row| Some(row.window.progress_largest_gap_seconds)),
        },
        Spec {
            name: "samples_per_second",
            role: Role::Feature,
            about: About::Window,
            get: Get::Float(|row| row.window.samples_per_second),
        },
        Spec {
            name: "joules_per_sample",
            role: Role::Feature,
            about: About::Window,
            get: Get::Float(|row| row.window.energy_per_sample()),
        },
        Spec {
            name: "joules_per_sample_running",
            role: Role::Feature,
            about: About::Window,
            get: Get::Float(|row| row.window.joules_per_sample_running),
        },
        Spec {
            name: "samples_per_joule",
            role: Role::Feature,
            about: About::Window,
            get: Get::Float(|row| row.window.samples_per_joule),
        },
        Spec {
            name: "tokens_per_joule",
            role: Role::Feature,
            about: About::Window,
            get: Get::Float(|row| row.window.tokens_per_joule),
        },
        Spec {
            name: "mean_power_watts",
            role: Role::Feature,
            about: About::Window,
            get: Get::Float(|row| row.window.mean_power_watts),
        },
        Spec {
            name: "mean_power_per_gpu_watts",
            role: Role::Feature,
            about: About::Window,
            get: Get::Float(|row| row.window.mean_power_per_gpu_watts),
        },
        Spec { name: "cost", role: Role::Feature, about: About::Window, get: Get::Float(|row| row.window.cost) },
        Spec { name: "co2_grams", role: Role::Feature, about: About::Window, get: Get::Float(|row| row.window.co2_grams) },
        Spec {
            name: "mean_utilization_ratio",
            role: Role::Feature,
            about: About::Window,
            get: Get::Float(|row| row.window.mean_utilization_ratio),
        },
        Spec {
            name: "mean_memory_utilization_ratio",
            role: Role::Feature,
            about: About::Window,
            get: Get::Float(|row| row.window.mean_memory_utilization_ratio),
        },
        Spec {
            name: "mean_sm_active_ratio",
            role: Role::Feature,
            about: About::Window,
            get: Get::Float(|row| row.window.mean_sm_active_ratio),
        },
        Spec {
            name: "mean_sm_occupancy_ratio",
            role: Role::Feature,
            about: About::Window,
            get: Get::Float(|row| row.window.mean_sm_occupancy_ratio),
        },
        Spec {
            name: "mean_tensor_active_ratio",
            role: Role::Feature,
            about: About::Window,
            get: Get::Float(|row| row.window.mean_tensor_active_ratio),
        },
        Spec {
            name: "mean_dram_active_ratio",
            role: Role::Feature,
            about: About::Window,
            get: Get::Float(|row| row.window.mean_dram_active_ratio),
        },
        Spec {
            name: "mean_sm_clock_mhz",
            role: Role::Feature,
            about: About::Window,
            get: Get::Float(|row| row.window.mean_sm_clock_mhz),
        },
        Spec {
            name: "mean_temperature_celsius",
            role: Role::Feature,
            about: About::Window,
            get: Get::Float(|row| row.window.mean_temperature_celsius),
        },
        Spec {
            name: "max_temperature_celsius",
            role: Role::Feature,
            about: About::Window,
            get: Get::Float(|row| row.window.max_temperature_celsius),
        },
        Spec { name: "mean_loss", role: Role::Feature, about: About::Window, get: Get::Float(|row| row.window.mean_loss) },
        Spec { name: "restarted", role: Role::Feature, about: About::Window, get: Get::Bool(|row| Some(row.window.restarted)) },
        Spec { name: "gap", role: Role::Feature, about: About::Window, get: Get::Bool(|row| Some(row.window.gap)) },
        Spec { name: "gpus", role: Role::Feature, about: About::Window, get: Get::Int(|row| Some(i64::from(row.window.gpus))) },
        Spec { name: "ranks", role: Role::Feature, about: About::Window, get: Get::Int(|row| Some(i64::from(row.window.ranks))) },
        Spec { name: "events", role: Role::Feature, about: About::Window, get: Get::Int(|row| Some(row.window.events as i64)) },
        Spec { name: "late", role: Role::Feature, about: About::Window, get: Get::Int(|row| Some(row.window.late as i64)) },
        Spec { name: "stale", role: Role::Feature, about: About::Window, get: Get::Int(|row| Some(row.window.stale as i64)) },
        Spec {
            name: "duplicates",
            role: Role::Feature,
            about: About::Window,
            get: Get::Int(|row| Some(row.window.duplicates as i64)),
        },
        Spec {
            name: "late_tables",
            role: Role::Feature,
            about: About::Window,
            get: Get::Int(|row| Some(row.window.late_tables as i64)),
        },
        Spec {
            name: "generation",
            role: Role::Feature,
            about: About::Window,
            get: Get::Int(|row| row.window.generation.map(|g| g as i64)),
        },
    ];
    specs.extend(layout_columns!("layout", "Layout in force at the window's end", Role::Feature, layout));
    let more: Vec<Spec<Row<'a>>> = vec![
        Spec {
            name: "usable",
            role: Role::Feature,
            about: About::Text(
                "Whether the window says how efficient a settled layout is: energy and progress covered to 90 %, nothing restarted, no input lost, J/sample known.",
            ),
            get: Get::Bool(|row| Some(usable(row.window))),
        },
        Spec {
            name: "trailing_windows",
            role: Role::Feature,
            about: About::Text("Usable windows among this one and the four before it."),
            get: Get::Int(|row| Some(row.trailing.len() as i64)),
        },
        Spec {
            name: "trailing_median_joules_per_sample",
            role: Role::Feature,
            about: About::Text("Median of joules_per_sample over those windows, in J/sample."),
            get: Get::Float(|row| median(row, EfficiencyWindow::energy_per_sample)),
        },
        Spec {
            name: "trailing_median_samples_per_second",
            role: Role::Feature,
            about: About::Text("Median of samples_per_second over those windows, in samples/s."),
            get: Get::Float(|row| median(row, |window| window.samples_per_second)),
        },
        Spec {
            name: "trailing_median_power_watts",
            role: Role::Feature,
            about: About::Text("Median of mean_power_watts over those windows, in W."),
            get: Get::Float(|row| median(row, |window| window.mean_power_watts)),
        },
        Spec {
            name: "decision_id",
            role: Role::Decision,
            about: About::Text("The decision made at the end of this window."),
            get: Get::Text(|row| Some(row.decision?.id.clone())),
        },
        Spec {
            name: "controller",
            role: Role::Decision,
            about: About::Decision,
            get: Get::Text(|row| Some(row.decision?.controller.clone())),
        },
        Spec {
            name: "controller_version",
            role: Role::Decision,
            about: About::Decision,
            get: Get::Text(|row| Some(row.decision?.controller_version.clone())),
        },
        Spec {
            name: "action",
            role: Role::Decision,
            about: About::Decision,
            get: Get::Text(|row| Some(word(row.decision?.action))),
        },
        Spec {
            name: "reason",
            role: Role::Decision,
            about: About::Decision,
            get: Get::Text(|row| Some(row.decision?.reason.clone())),
        },
    ];
    specs.extend(more);
    specs.extend(layout_columns!("to", "Layout wanted by the decision", Role::Decision, to));
    let more: Vec<Spec<Row<'a>>> = vec![
        Spec {
            name: "validation",
            role: Role::Decision,
            about: About::Decision,
            get: Get::Text(|row| Some(word(row.decision?.validation))),
        },
        Spec {
            name: "model_version",
            role: Role::Decision,
            about: About::Decision,
            get: Get::Text(|row| row.decision?.model_version.clone()),
        },
    ];
    specs.extend(more);
    specs.extend(outcome_columns());
    let more: Vec<Spec<Row<'a>>> = vec![
        Spec {
            name: "label_next_joules_per_sample",
            role: Role::Label,
            about: About::Text("joules_per_sample of the window that follows without a hole, where that is usable, in J/sample."),
            get: Get::Float(|row| row.next?.energy_per_sample()),
        },
        Spec {
            name: "label_next_samples_per_second",
            role: Role::Label,
            about: About::Text(
                "samples_per_second of the window that follows without a hole, where that is usable, in samples/s.",
            ),
            get: Get::Float(|row| row.next?.samples_per_second),
        },
        Spec {
            name: "label_next_mean_power_watts",
            role: Role::Label,
            about: About::Text("mean_power_watts of the window that follows without a hole, where that is usable, in W."),
            get: Get::Float(|row| row.next?.mean_power_watts),
        },
    ];
    specs.extend(more);
    specs
}
