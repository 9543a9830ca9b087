//! A report for readers.

mod chart;
mod html;
mod markdown;
mod text;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;

use eadt_schemas::EventTime;
use eadt_schemas::v1::{Meter, Origin};

use crate::{EnergyReport, SpanRow, WindowRow, WorkloadReport};

/// In which form a report is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RenderFormat {
    /// A table for terminals.
    Text,
    Json,
    Markdown,
    /// One page that needs nothing else and runs no script.
    Html,
}

impl EnergyReport {
    /// The report in this form, ended by a line break.
    pub fn render(&self, form: RenderFormat) -> String {
        let mut out = String::new();
        let written = match form {
            RenderFormat::Text => text::render(self, None, &mut out),
            RenderFormat::Json => {
                out = serde_json::to_string_pretty(self).expect("numbers and texts are always JSON");
                out.push('\n');
                Ok(())
            }
            RenderFormat::Markdown => markdown::render(self, &mut out),
            RenderFormat::Html => html::render(self, &mut out),
        };
        written.expect("a String takes every write");
        out
    }

    /// As [`RenderFormat::Text`], for a terminal of so many columns: a table that is wider is broken between its columns, its
    /// first one repeated, so that no figure is cut or broken.
    pub fn render_text(&self, width: Option<usize>) -> String {
        let mut out = String::new();
        text::render(self, width, &mut out).expect("a String takes every write");
        out
    }
}

/// A table whose first columns are texts and whose others are figures.
struct ReportTable {
    head: Vec<Cow<'static, str>>,
    /// Number of text columns at the left.
    texts: usize,
    rows: Vec<Vec<String>>,
}

pub(crate) const fn origin_word(origin: Origin) -> &'static str {
    match origin {
        Origin::Measured => "measured",
        Origin::Imported => "imported",
        Origin::Simulated => "simulated",
    }
}

/// Returns what a meter is called in texts.
pub const fn meter_word(meter: Meter) -> &'static str {
    match meter {
        Meter::Gpu => "gpu",
        Meter::Module => "module",
        Meter::Node => "node",
        Meter::Wall => "wall",
    }
}

/// Returns ` (simulated)` for a heading below which everything is; nothing if all is measured, or if rows differ, each of
/// which names its origin.
fn origin_mark(origins: impl Iterator<Item = Origin>) -> String {
    let origins: BTreeSet<Origin> = origins.collect();
    match origins.first() {
        Some(origin) if origins.len() == 1 && *origin != Origin::Measured => format!(" ({})", origin_word(*origin)),
        _ => String::new(),
    }
}

fn header_cells(names: &[&'static str]) -> Vec<Cow<'static, str>> {
    names.iter().map(|name| Cow::Borrowed(*name)).collect()
}

const UNKNOWN: &str = "-";
/// Beside the decision of a window whose J/sample holds the downtime of a restart.
const RESTARTED: &str = "restart";

/// About six significant digits, never an exponent below 10¹⁵.
fn format_figure(value: Option<f64>) -> String {
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

fn format_interval(low: Option<f64>, high: Option<f64>) -> String {
    let ends = low.zip(high).map(|(low, high)| format!("{:+.1} to {:+.1} %", low * 100.0, high * 100.0));
    ends.unwrap_or_else(|| UNKNOWN.to_owned())
}

fn format_time(time: EventTime) -> String {
    time.to_string()
}

/// Text without anything that moves a cursor or ends a row.
fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

fn totals_table(report: &EnergyReport) -> ReportTable {
    let tokens = report.workloads.iter().any(|w| w.tokens.is_some());
    let mut head = header_cells(&[
        "workload",
        "origin",
        "meter",
        "s",
        "energy J",
        "kWh",
        "samples",
        "J/sample",
        "samples/J",
        "mean W",
        "coverage",
    ]);
    if tokens {
        head.extend(header_cells(&["tokens", "tokens/J"]));
    }
    let row = |w: &WorkloadReport| {
        let mut row = vec![
            w.workload.clone(),
            origin_word(w.origin).to_owned(),
            w.meter.map_or(UNKNOWN, meter_word).to_owned(),
            format_figure(w.duration_seconds),
            format_figure(w.energy_joules),
            format_figure(w.energy_kwh),
            format_figure(w.samples),
            format_figure(w.joules_per_sample),
            format_figure(w.samples_per_joule),
            format_figure(w.mean_power_watts),
            percent(w.coverage_ratio),
        ];
        if tokens {
            row.extend([format_figure(w.tokens), format_figure(w.tokens_per_joule)]);
        }
        row
    };
    ReportTable { head, texts: 3, rows: report.by_energy().into_iter().map(row).collect() }
}

fn counts_table(report: &EnergyReport) -> ReportTable {
    let unapplied = report.workloads.iter().any(|w| w.decided_changes > w.changes);
    let recommended = report.workloads.iter().any(|w| w.recommendations > 0);
    let mut head = header_cells(&["workload", "origin", "windows", "decisions"]);
    if unapplied {
        head.extend(header_cells(&["changes decided"]));
    }
    if recommended {
        head.extend(header_cells(&["recommended"]));
    }
    head.extend(header_cells(&["changes", "reverts"]));
    let row = |w: &WorkloadReport| {
        let unapplied = unapplied.then_some(w.decided_changes);
        let recommended = recommended.then_some(w.recommendations);
        let counts = [w.windows, w.decisions].into_iter().chain(unapplied).chain(recommended).chain([w.changes, w.reverts]);
        let texts = [w.workload.clone(), origin_word(w.origin).to_owned()];
        texts.into_iter().chain(counts.map(|count| count.to_string())).collect()
    };
    ReportTable { head, texts: 2, rows: report.by_energy().into_iter().map(row).collect() }
}

fn savings_table(report: &EnergyReport) -> ReportTable {
    let mut head = header_cells(&[
        "workload",
        "origin",
        "compared",
        "baseline J/sample",
        "J/sample there",
        "saving J",
        "saving",
        "90 % interval",
        "throughput kept",
        "cost",
        "CO₂ g",
        "in no window J",
    ]);
    if let Some(currency) = report.workloads.iter().find_map(|w| w.currency.as_deref()) {
        head[9] = format!("cost {currency}").into();
    }
    let row = |w: &WorkloadReport| {
        vec![
            w.workload.clone(),
            origin_word(w.origin).to_owned(),
            percent(w.compared_energy_ratio),
            format_figure(w.baseline_joules_per_sample),
            format_figure(w.compared_joules_per_sample),
            format_figure(w.saving_joules),
            signed_percent(w.saving_ratio),
            format_interval(w.saving_ratio_low, w.saving_ratio_high),
            percent(w.throughput_kept_ratio),
            format_figure(w.cost),
            format_figure(w.co2_grams),
            format_figure(w.unassigned_energy_joules),
        ]
    };
    ReportTable { head, texts: 2, rows: report.by_energy().into_iter().map(row).collect() }
}

fn windows_table(rows: &[WindowRow]) -> ReportTable {
    let tokens = rows.iter().any(|row| row.tokens.is_some());
    let mut head = header_cells(&["window", "origin", "decision", "s", "energy J", "samples"]);
    if tokens {
        head.extend(header_cells(&["tokens"]));
    }
    // Mean power of the whole window; the energy beside it is of the run.
    let parts = rows.iter().any(|row| {
        let both = row.mean_power_watts.zip(row.run_mean_power_watts);
        both.is_some_and(|(whole, run)| (whole - run).abs() > 1e-6 * whole.abs())
    });
    head.extend(header_cells(&["J/sample", "mean W"]));
    if parts {
        head.extend(header_cells(&["mean W in run"]));
    }
    head.extend(header_cells(&["coverage", "progress coverage"]));
    let row = |row: &WindowRow| {
        let action = row.action_text.as_deref().unwrap_or(UNKNOWN);
        let action = if row.restarted { format!("{action}, {RESTARTED}") } else { action.to_owned() };
        let mut cells = vec![format_time(row.window_start), origin_word(row.origin).to_owned(), action];
        cells.extend([format_figure(Some(row.duration_seconds)), format_figure(row.energy_joules), format_figure(row.samples)]);
        if tokens {
            cells.push(format_figure(row.tokens));
        }
        cells.extend([format_figure(row.joules_per_sample), format_figure(row.mean_power_watts)]);
        if parts {
            cells.push(format_figure(row.run_mean_power_watts));
        }
        cells.extend([percent(Some(row.coverage_ratio)), percent(Some(row.progress_coverage_ratio))]);
        cells
    };
    ReportTable { head, texts: 3, rows: rows.iter().map(row).collect() }
}

fn spans_table(rows: &[SpanRow]) -> ReportTable {
    let tokens = rows.iter().any(|row| row.tokens.is_some());
    let mut head = header_cells(&["span", "origin", "start", "s", "energy J", "samples"]);
    if tokens {
        head.extend(header_cells(&["tokens"]));
    }
    head.extend(header_cells(&["J/sample", "mean W", "coverage"]));
    let row = |row: &SpanRow| {
        let mut cells = vec![row.span.clone(), origin_word(row.origin).to_owned(), format_time(row.start)];
        cells.extend([format_figure(Some(row.duration_seconds)), format_figure(row.energy_joules), format_figure(row.samples)]);
        if tokens {
            cells.push(format_figure(row.tokens));
        }
        cells.extend([
            format_figure(row.joules_per_sample),
            format_figure(row.mean_power_watts),
            percent(Some(row.coverage_ratio)),
        ]);
        cells
    };
    ReportTable { head, texts: 3, rows: rows.iter().map(row).collect() }
}

/// Heading and table of everything in a report, in order, with the notes behind the totals.
struct ReportSection {
    heading: String,
    table: ReportTable,
    notes: Vec<SharedNote>,
}

/// A note, and the workloads that it is about.
struct SharedNote {
    about: String,
    text: String,
}

impl fmt::Display for SharedNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.about, self.text)
    }
}

/// Names listed before the rest is counted.
const NAMES_SHOWN: usize = 3;

/// Each note once, with the workloads that it is about.
fn notes(report: &EnergyReport) -> Vec<SharedNote> {
    let mut notes: Vec<(&str, Vec<&str>)> = Vec::new();
    for workload in &report.workloads {
        for note in &workload.notes {
            match notes.iter_mut().find(|(known, _)| known == note) {
                Some((_, workloads)) => workloads.push(&workload.workload),
                None => notes.push((note, vec![&workload.workload])),
            }
        }
    }
    let line = |(note, workloads): (&str, Vec<&str>)| {
        let more = workloads.len().saturating_sub(NAMES_SHOWN);
        let names = workloads[..workloads.len() - more].join(", ");
        let about = match (workloads.len(), more) {
            (1, _) => names,
            (all, 0) => format!("{all} workloads ({names})"),
            (all, more) => format!("{all} workloads ({names} and {more} more)"),
        };
        SharedNote { about, text: note.to_owned() }
    };
    notes.into_iter().map(line).collect()
}

fn sections(report: &EnergyReport) -> Vec<ReportSection> {
    let mark = origin_mark(report.workloads.iter().map(|workload| workload.origin));
    let priced = |w: &WorkloadReport| {
        let figures = [w.baseline_joules_per_sample, w.saving_joules, w.cost, w.co2_grams, w.unassigned_energy_joules];
        figures.iter().any(Option::is_some)
    };
    let mut sections = vec![
        ReportSection { heading: format!("Energy by workload{mark}"), table: totals_table(report), notes: Vec::new() },
        ReportSection { heading: format!("Saving, cost and carbon{mark}"), table: savings_table(report), notes: Vec::new() },
        ReportSection { heading: format!("Windows and decisions{mark}"), table: counts_table(report), notes: notes(report) },
    ];
    if !report.workloads.iter().any(priced) {
        sections.remove(1);
    }
    for workload in &report.workloads {
        let name = &workload.workload;
        if let Some(rows) = workload.by_window.as_deref() {
            let mark = origin_mark(rows.iter().map(|row| row.origin));
            sections.push(ReportSection {
                heading: format!("Windows of {name}{mark}"),
                table: windows_table(rows),
                notes: Vec::new(),
            });
        }
        // If there are none, a note states it.
        if let Some(rows) = workload.by_span.as_deref().filter(|rows| !rows.is_empty()) {
            let mark = origin_mark(rows.iter().map(|row| row.origin));
            sections.push(ReportSection {
                heading: format!("Spans of {name}{mark}"),
                table: spans_table(rows),
                notes: Vec::new(),
            });
        }
    }
    sections
}

const NOTHING: &str =
    "No workload has a window yet. A window is there once its time is over (processor.window_seconds, 60 s unless set).";

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
            assert_eq!(format_figure(value), text);
        }
        assert_eq!(signed_percent(Some(-0.0731)), "-7.31 %");
        assert_eq!(one_line("a\u{1b}[2J\nb"), "a\u{fffd}[2J\u{fffd}b");
    }

    #[test]
    fn a_heading_names_an_origin_only_where_it_holds_for_all_below() {
        use Origin::{Imported, Measured, Simulated};
        assert_eq!(origin_mark([Measured, Measured].into_iter()), "");
        assert_eq!(origin_mark([Simulated, Simulated].into_iter()), " (simulated)");
        assert_eq!(origin_mark([Imported].into_iter()), " (imported)");
        assert_eq!(origin_mark([Measured, Simulated].into_iter()), "");
        assert_eq!(origin_mark([Imported, Simulated, Imported].into_iter()), "");
        assert_eq!(origin_mark([].into_iter()), "");
    }
}
