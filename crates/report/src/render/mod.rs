//! A report for readers.

mod html;
mod markdown;
mod text;

use eadt_schemas::EventTime;
use eadt_schemas::v1::{Action, Meter, Origin};

use crate::{Report, WorkloadReport};

/// In which form a report is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// A table for terminals.
    Text,
    Json,
    Markdown,
    /// One page that needs nothing else and runs no script.
    Html,
}

impl Report {
    /// The report in this form, ended by a line break.
    pub fn render(&self, form: Form) -> String {
        let mut out = String::new();
        let written = match form {
            Form::Text => text::render(self, &mut out),
            Form::Json => {
                out = serde_json::to_string_pretty(self).expect("numbers and texts are always JSON");
                out.push('\n');
                Ok(())
            }
            Form::Markdown => markdown::render(self, &mut out),
            Form::Html => html::render(self, &mut out),
        };
        written.expect("a String takes every write");
        out
    }
}

/// A table whose first columns are texts and whose others are figures.
struct Table {
    head: Vec<&'static str>,
    /// Number of text columns at the left.
    texts: usize,
    rows: Vec<Vec<String>>,
}

const fn origin_word(origin: Origin) -> &'static str {
    match origin {
        Origin::Measured => "measured",
        Origin::Imported => "imported",
        Origin::Simulated => "simulated",
    }
}

const fn meter_word(meter: Meter) -> &'static str {
    match meter {
        Meter::Gpu => "gpu",
        Meter::Module => "module",
        Meter::Node => "node",
        Meter::Wall => "wall",
    }
}

const fn action_word(action: Action) -> &'static str {
    match action {
        Action::Maintain => "maintain",
        Action::Decrease => "decrease",
        Action::ScaleReplicas => "scale replicas",
        Action::Increase => "increase",
        Action::Revert => "revert",
        Action::SetPowerLimit => "set power limit",
        Action::SetClocks => "set clocks",
    }
}

/// ` (simulated)` for a heading; nothing where all is measured.
fn origin_mark(origins: impl Iterator<Item = Origin>) -> String {
    let mut words: Vec<&str> = origins.filter(|origin| *origin != Origin::Measured).map(origin_word).collect();
    words.sort_unstable();
    words.dedup();
    words.reverse();
    if words.is_empty() { String::new() } else { format!(" ({})", words.join(", ")) }
}

fn mark_of(workload: &WorkloadReport) -> String {
    origin_mark(std::iter::once(workload.origin))
}

const UNKNOWN: &str = "-";

/// About six significant digits, never an exponent below 10¹⁵.
fn figure(value: Option<f64>) -> String {
    let Some(value) = value else { return UNKNOWN.to_owned() };
    let size = value.abs();
    if size >= 1e15 || size > 0.0 && size < 1e-6 {
        return format!("{value:.5e}");
    }
    let digits = match size {
        x if x >= 1e5 => 1,
        x if x >= 1e4 => 2,
        x if x >= 1e3 => 3,
        x if x >= 10.0 => 4,
        x if x >= 0.01 || x == 0.0 => 6,
        _ => 9,
    };
    let text = format!("{value:.digits$}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0".to_owned() } else { text.to_owned() }
}

fn percent(ratio: Option<f64>) -> String {
    ratio.map_or_else(|| UNKNOWN.to_owned(), |ratio| format!("{:.2} %", ratio * 100.0))
}

fn signed_percent(ratio: Option<f64>) -> String {
    ratio.map_or_else(|| UNKNOWN.to_owned(), |ratio| format!("{:+.2} %", ratio * 100.0))
}

fn second(time: EventTime) -> String {
    time.to_string()
}

/// Text without anything that moves a cursor or ends a row.
fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

fn totals(report: &Report) -> Table {
    let head = vec!["workload", "origin", "meter", "s", "energy J", "kWh", "samples", "J/sample", "mean W", "coverage"];
    let row = |w: &WorkloadReport| {
        vec![
            w.workload.clone(),
            origin_word(w.origin).to_owned(),
            w.energy_joules.map_or(UNKNOWN, |_| meter_word(w.meter)).to_owned(),
            figure(w.duration_seconds),
            figure(w.energy_joules),
            figure(w.energy_kwh),
            figure(w.samples),
            figure(w.joules_per_sample),
            figure(w.mean_power_watts),
            percent(w.coverage_ratio),
        ]
    };
    Table { head, texts: 3, rows: report.workloads.iter().map(row).collect() }
}

fn counts(report: &Report) -> Table {
    let head = vec!["workload", "origin", "windows", "decisions", "changes", "reverts"];
    let row = |w: &WorkloadReport| {
        let counts = [w.windows, w.decisions, w.changes, w.reverts].map(|count| count.to_string());
        [w.workload.clone(), origin_word(w.origin).to_owned()].into_iter().chain(counts).collect()
    };
    Table { head, texts: 2, rows: report.workloads.iter().map(row).collect() }
}

fn savings(report: &Report) -> Table {
    let head = vec!["workload", "origin", "baseline J/sample", "saving J", "saving", "cost", "CO₂ g", "in no window J"];
    let row = |w: &WorkloadReport| {
        vec![
            w.workload.clone(),
            origin_word(w.origin).to_owned(),
            figure(w.baseline_joules_per_sample),
            figure(w.saving_joules),
            signed_percent(w.saving_ratio),
            figure(w.cost),
            figure(w.co2_grams),
            figure(w.unassigned_energy_joules),
        ]
    };
    Table { head, texts: 2, rows: report.workloads.iter().map(row).collect() }
}

fn windows(workload: &WorkloadReport) -> Option<Table> {
    let rows = workload.by_window.as_ref()?;
    let head = vec!["window", "decision", "s", "energy J", "samples", "J/sample", "mean W", "coverage", "progress coverage"];
    let row = |row: &crate::WindowRow| {
        vec![
            second(row.window_start),
            row.action.map_or(UNKNOWN, action_word).to_owned(),
            figure(Some(row.duration_seconds)),
            figure(row.energy_joules),
            figure(row.samples),
            figure(row.joules_per_sample),
            figure(row.mean_power_watts),
            percent(Some(row.coverage_ratio)),
            percent(Some(row.progress_coverage_ratio)),
        ]
    };
    Some(Table { head, texts: 2, rows: rows.iter().map(row).collect() })
}

fn spans(workload: &WorkloadReport) -> Option<Table> {
    let rows = workload.by_span.as_ref()?;
    let head = vec!["span", "start", "s", "energy J", "samples", "J/sample", "mean W", "coverage"];
    let row = |row: &crate::SpanRow| {
        vec![
            row.span.clone(),
            second(row.start),
            figure(Some(row.duration_seconds)),
            figure(row.energy_joules),
            figure(row.samples),
            figure(row.joules_per_sample),
            figure(row.mean_power_watts),
            percent(Some(row.coverage_ratio)),
        ]
    };
    Some(Table { head, texts: 2, rows: rows.iter().map(row).collect() })
}

/// Heading and table of everything in a report, in order, with the notes behind the totals.
struct Section {
    heading: String,
    table: Table,
    notes: Vec<String>,
}

fn sections(report: &Report) -> Vec<Section> {
    let mark = origin_mark(report.workloads.iter().map(|workload| workload.origin));
    let notes = report.workloads.iter().flat_map(|w| w.notes.iter().map(move |note| format!("{}: {note}", w.workload))).collect();
    let priced = |w: &WorkloadReport| {
        let figures = [w.baseline_joules_per_sample, w.saving_joules, w.cost, w.co2_grams, w.unassigned_energy_joules];
        figures.iter().any(Option::is_some)
    };
    let mut sections = vec![
        Section { heading: format!("Energy by workload{mark}"), table: totals(report), notes: Vec::new() },
        Section { heading: format!("Saving, cost and carbon{mark}"), table: savings(report), notes: Vec::new() },
        Section { heading: format!("Windows and decisions{mark}"), table: counts(report), notes },
    ];
    if !report.workloads.iter().any(priced) {
        sections.remove(1);
    }
    for workload in &report.workloads {
        let (name, mark) = (&workload.workload, mark_of(workload));
        if let Some(table) = windows(workload) {
            sections.push(Section { heading: format!("Windows of {name}{mark}"), table, notes: Vec::new() });
        }
        if let Some(table) = spans(workload) {
            sections.push(Section { heading: format!("Spans of {name}{mark}"), table, notes: Vec::new() });
        }
    }
    sections
}

const NOTHING: &str = "No workload has a window yet.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_readable_and_unknown_is_not_zero() {
        for (value, text) in [
            (None, "-"),
            (Some(0.0), "0"),
            (Some(-0.0), "0"),
            (Some(1_878_755.57), "1878755.6"),
            (Some(0.894_308), "0.894308"),
            (Some(6781.34), "6781.34"),
            (Some(277.048), "277.048"),
            (Some(-12.5), "-12.5"),
            (Some(0.000_012_5), "0.0000125"),
            (Some(1e-9), "1.00000e-9"),
            (Some(100.0), "100"),
        ] {
            assert_eq!(figure(value), text);
        }
        assert_eq!(signed_percent(Some(-0.0731)), "-7.31 %");
        assert_eq!(one_line("a\u{1b}[2J\nb"), "a\u{fffd}[2J\u{fffd}b");
    }

    #[test]
    fn headings_name_every_origin_but_measured() {
        use Origin::{Imported, Measured, Simulated};
        assert_eq!(origin_mark([Measured, Measured].into_iter()), "");
        assert_eq!(origin_mark([Measured, Simulated].into_iter()), " (simulated)");
        assert_eq!(origin_mark([Imported, Simulated, Imported].into_iter()), " (simulated, imported)");
    }
}
