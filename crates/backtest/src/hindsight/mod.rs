//! Evaluates which decisions a controller would have made on a record, and which of their effects the record can show.
//!
//! The controller goes through the record's windows in order, as it would have live. As long as it would have had the layout
//! that the record ran, it sees the record's own windows. If it would have had another one, it sees windows of that layout from
//! another time of the record, of the same phase of the job. The phase is recognised by the memory activity of a sample, which
//! hardly depends on the layout. A change is refused if the record never ran its target in the present phase for three
//! consistent windows: its effect is unknown, and the controller keeps its layout. If a phase begins in which the record never
//! ran that layout, the controller waits: the record's layout is nothing that it set. Nothing is extrapolated.
//!
//! Compared is J/sample of the windows that the controller would have seen with J/sample of the record's windows of the same
//! times. The interval holds 90 % of what chance among the windows makes of it; it knows nothing of what else differed between
//! the times. Windows of restarts, the record's and the imagined ones, are in neither figure; both are counted. The interval also
//! holds the change with these windows, so that it does not exclude a sign that restarts decide.
//!
//! If the record lacks a change that the controller would have made, it does not show what that controller would have used: there
//! is no estimate then. A controller that is kept from its settings stays where it would never have stayed, so that even the sign
//! would be wrong.

mod evidence;
mod page;
#[cfg(test)]
mod tests;
mod walk;

use eadt_core::controller::{ControllerName, ControllerSettings};
use eadt_report::words::origin_word;
use eadt_schemas::EventTime;
use eadt_schemas::counts::counted_as;
use eadt_schemas::figures::format_signed_percent;
use eadt_schemas::v1::{Actuation, ControllerAction, EfficiencyWindow, Layout, Origin, Workload};
use serde::Serialize;

pub use evidence::{ENOUGH_WINDOWS, Estimate, InsufficientEvidence};
pub use page::hindsight_html;

/// Recorded events, in any order, repeated ones included.
#[derive(Debug, Clone, Default)]
pub struct HindsightInput {
    pub windows: Vec<EfficiencyWindow>,
    pub workloads: Vec<Workload>,
    pub actuations: Vec<Actuation>,
}

/// One controller on one workload of the record.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HindsightRow {
    pub workload: String,
    pub controller: ControllerName,
    /// Origin of the record. The controller's part is imagined, whatever the value.
    pub origin: Origin,
    /// Tumbling windows of the record.
    pub windows: u64,
    /// Usable windows in which the record ran the controller's layout.
    pub windows_as_recorded: u64,
    /// Usable windows in which it ran something else, if other windows show the effect of the controller's layout.
    pub windows_estimated: u64,
    /// Usable windows for which no other window shows that effect.
    pub windows_unknown: u64,
    /// Part of the usable windows that are as recorded or estimated: the part of the record that the other figures cover.
    pub known_ratio: Option<f64>,
    /// J/sample of the known windows in the record.
    pub recorded_joules_per_sample: Option<f64>,
    /// Change of it under the controller; absent if nothing is estimated, or if something is refused.
    pub joules_per_sample_change: Option<Estimate>,
    /// Changes of the layout that the record can follow.
    pub changes: Vec<CounterfactualChange>,
    /// Changes that the record cannot follow, the same ones of one phase once.
    pub refused: Vec<RefusedChange>,
    /// Imagined changes that replace processes.
    pub restarts: u64,
    /// Times that the record's layout changed.
    pub recorded_changes: u64,
    pub notes: Vec<String>,
}

/// A change that the controller would have made.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CounterfactualChange {
    pub time: EventTime,
    pub action: ControllerAction,
    pub from: Layout,
    pub to: Layout,
    /// Phase of the job; phases are numbered in the order of the record.
    pub phase: usize,
    /// The controller's reason.
    pub reason: String,
    /// Windows of the record that ran the new layout in this phase.
    pub windows: usize,
    /// Change of J/sample in this phase; absent if too few windows ran the old layout in it.
    pub effect: Option<Estimate>,
}

/// A change without data in the record about its effect.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RefusedChange {
    pub action: ControllerAction,
    pub from: Layout,
    pub to: Layout,
    /// Number of times that the controller would have made the change.
    pub count: u64,
    /// The first time.
    pub time: EventTime,
    pub unknown: InsufficientEvidence,
    /// The same in words.
    pub reason: String,
}

/// Lets controllers loose on every workload of a record. `settings` are those of workloads that declare none.
pub fn evaluate_record(
    record: &HindsightInput,
    controllers: &[ControllerName],
    settings: &ControllerSettings,
) -> Vec<HindsightRow> {
    evaluate_record_counted(record, controllers, settings, &|| ())
}

/// Like [`evaluate_record`]; `on_row` is called after each workload and controller.
pub fn evaluate_record_counted(
    record: &HindsightInput,
    controllers: &[ControllerName],
    settings: &ControllerSettings,
    on_row: &dyn Fn(),
) -> Vec<HindsightRow> {
    let jobs = walk::jobs(record);
    let pairs = jobs.iter().flat_map(|job| controllers.iter().map(move |controller| (job, *controller)));
    let walked = pairs.map(|(job, controller)| {
        let row = walk::walk(job, controller, settings, &mut |_| ());
        on_row();
        row
    });
    walked.collect()
}

const SHOWN: usize = 5;

/// Renders the report for a terminal.
pub fn render_hindsight_report(all: &[HindsightRow]) -> String {
    use std::fmt::Write;
    let mut out = String::new();
    let mut put = |line: std::fmt::Arguments<'_>| out.write_fmt(line).expect("a String takes every write");
    let percent = |ratio: f64| format!("{:.0} %", 100.0 * ratio);
    put(format_args!("What the record shows of other decisions; nothing here was run.\n"));
    for it in all {
        put(format_args!("\n{} · {} · {} record\n", it.workload, it.controller, origin_word(it.origin)));
        put(format_args!(
            "  windows: {}; usable: {} as recorded, {} estimated, {} unknown ({} known)\n",
            it.windows,
            it.windows_as_recorded,
            it.windows_estimated,
            it.windows_unknown,
            it.known_ratio.map_or("-".to_owned(), percent)
        ));
        match (it.recorded_joules_per_sample, it.joules_per_sample_change) {
            (Some(recorded), Some(change)) => put(format_args!(
                "  J/sample: {recorded:.4} in the record's known windows, {} with the controller; saves with {} confidence\n",
                interval(&change),
                percent(change.confidence_saves_ratio)
            )),
            (Some(recorded), None) if !it.refused.is_empty() => put(format_args!(
                "  J/sample: {recorded:.4} in the record's known windows; unknown with the controller: the record lacks changes of it\n"
            )),
            (Some(recorded), None) if it.changes.is_empty() => {
                put(format_args!("  J/sample: {recorded:.4}; the controller changes nothing that the record can follow\n"));
            }
            (Some(recorded), None) => {
                put(format_args!("  J/sample: {recorded:.4}; the controller's would have been the same wherever it is known\n"));
            }
            (None, _) => put(format_args!("  J/sample: unknown\n")),
        }
        put(format_args!(
            "  changes: {} that the record can follow ({} restarts), {} refused; the record's own: {}\n",
            it.changes.len(),
            it.restarts,
            it.refused.iter().map(|refused| refused.count).sum::<u64>(),
            it.recorded_changes
        ));
        for change in it.changes.iter().take(SHOWN) {
            let effect = change.effect.as_ref().map_or("effect unknown".to_owned(), |effect| {
                format!("{}, {} confidence", interval(effect), percent(effect.confidence_saves_ratio))
            });
            put(format_args!(
                "    {} {} → {} in phase {}: {effect} ({} windows)\n      {}\n",
                change.time,
                layout(&change.from),
                layout(&change.to),
                change.phase,
                change.windows,
                plain(&change.reason)
            ));
        }
        if it.changes.len() > SHOWN {
            put(format_args!("    … and {} more\n", it.changes.len() - SHOWN));
        }
        for refused in it.refused.iter().take(SHOWN) {
            put(format_args!(
                "    refused, {} from {} on: {} → {}: {}\n",
                counted_as(refused.count, "time", "times"),
                refused.time,
                layout(&refused.from),
                layout(&refused.to),
                refused.reason
            ));
        }
        if it.refused.len() > SHOWN {
            put(format_args!("    … and {} more refused\n", it.refused.len() - SHOWN));
        }
        for note in &it.notes {
            put(format_args!("  note: {note}\n"));
        }
    }
    out
}

fn interval(estimate: &Estimate) -> String {
    let [value, low, high] = [estimate.value, estimate.low, estimate.high].map(|ratio| format_signed_percent(ratio, 1));
    format!("{value} ({low} to {high})")
}

/// Formats a layout as `6 × 50 %, 300 W`.
fn layout(layout: &Layout) -> String {
    let mut parts = Vec::new();
    match (layout.replicas, layout.mps_thread_percentage) {
        (Some(replicas), Some(percent)) => parts.push(format!("{replicas} × {percent} %")),
        (Some(replicas), None) => parts.push(format!("{replicas} replicas")),
        (None, Some(percent)) => parts.push(format!("{percent} %")),
        (None, None) => {}
    }
    parts.extend(layout.power_limit_watts.map(|watts| format!("{watts:.0} W")));
    parts.extend(layout.sm_clock_mhz.map(|mhz| format!("{mhz:.0} MHz")));
    if parts.is_empty() { "as it was".to_owned() } else { parts.join(", ") }
}

fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}
