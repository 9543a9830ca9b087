//! A report for readers.

mod chart;
mod columns;
mod comparison;
mod html;
mod markdown;
mod text;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;

use eadt_schemas::EventTime;
use eadt_schemas::counts::list_first;
use eadt_schemas::figures::{format_percent, format_signed, format_signed_percent};
use eadt_schemas::v1::{Meter, Origin};
use serde::Serialize;

use crate::units::{self, ColumnUnit};
use crate::words::origin_word;
use crate::{EnergyReport, ReportTotals, SpanRow, WindowRow, WorkloadReport};
use columns::{ColumnTotal, ReportTable, TableColumns};

/// Output format of a report.
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
    /// Returns the report in this form, ended by a line break.
    pub fn render(&self, form: RenderFormat) -> String {
        let mut out = String::new();
        let written = match form {
            RenderFormat::Text => text::render(self, None, &mut out),
            RenderFormat::Json => {
                out = serde_json::to_string_pretty(&ReportDocument::of(self)).expect("numbers and texts are always JSON");
                out.push('\n');
                Ok(())
            }
            RenderFormat::Markdown => markdown::render(self, &mut out),
            RenderFormat::Html => html::render(self, &mut out),
        };
        written.expect("a String takes every write");
        out
    }

    /// Like [`RenderFormat::Text`], for a terminal of so many columns: a table that is wider is broken between its columns, its
    /// first one repeated, so that no figure is cut or broken.
    pub fn render_text(&self, width: Option<usize>) -> String {
        let mut out = String::new();
        text::render(self, width, &mut out).expect("a String takes every write");
        out
    }
}

/// Returns the name of a meter in texts.
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

const UNKNOWN: &str = "-";
/// Mark beside the decision of a window whose J/sample holds the downtime of a restart.
const RESTARTED: &str = "restart";

fn percent(ratio: Option<f64>) -> String {
    ratio.map_or_else(|| UNKNOWN.to_owned(), |ratio| format_percent(ratio, 2))
}

fn signed_percent(ratio: Option<f64>) -> String {
    ratio.map_or_else(|| UNKNOWN.to_owned(), |ratio| format_signed_percent(ratio, 2))
}

fn format_interval(low: Option<f64>, high: Option<f64>) -> String {
    let text = |low: f64, high: f64| format!("{} to {}", format_signed(100.0 * low, 1), format_signed_percent(high, 1));
    let ends = low.zip(high).map(|(low, high)| text(low, high));
    ends.unwrap_or_else(|| UNKNOWN.to_owned())
}

/// Formats a time to the second, or with its fraction if it has one.
fn format_time(time: EventTime) -> String {
    let text = time.to_string();
    text.strip_suffix(".000000Z").map_or_else(|| text.clone(), |whole| format!("{whole}Z"))
}

/// Returns the text without anything that moves a cursor or ends a row.
fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// Workloads of a report from which on its tables have a total row.
const WITH_TOTAL: usize = 2;
/// Origin or meter of a total over several.
const MIXED: &str = "mixed";

/// Returns the name of the total row. Energy that is not known is in no sum.
fn total_name(totals: &ReportTotals) -> String {
    match totals.without_energy {
        0 => "total".to_owned(),
        without => format!("total of {} of {}", totals.workloads - without, totals.workloads),
    }
}

/// Begins a table of workloads: name and origin, and a total row if there are several.
fn workload_columns<'a>(workloads: &'a [&'a WorkloadReport], totals: &ReportTotals) -> TableColumns<'a, &'a WorkloadReport> {
    let mut columns = TableColumns::new(workloads, workloads.len() >= WITH_TOTAL);
    columns.text("workload", &total_name(totals), |w| w.workload.clone());
    columns.text("origin", totals.origin.map_or(MIXED, origin_word), |w| origin_word(w.origin).to_owned());
    columns
}

fn totals_table(workloads: &[&WorkloadReport], totals: &ReportTotals) -> ReportTable {
    use ColumnTotal::{Blank, Figure};
    let mut columns = workload_columns(workloads, totals);
    let meters: BTreeSet<Meter> = workloads.iter().filter_map(|w| w.meter).collect();
    let meter = match (meters.first(), meters.len()) {
        (Some(meter), 1) => meter_word(*meter),
        (Some(_), _) => MIXED,
        (None, _) => UNKNOWN,
    };
    columns.text("meter", meter, |w| w.meter.map_or(UNKNOWN, meter_word).to_owned());
    columns.cells("duration", "", |w| w.duration_seconds.map_or_else(|| UNKNOWN.to_owned(), units::format_duration));
    columns.figures("energy", ColumnUnit::JOULES, Figure(totals.energy_joules), |w| w.energy_joules);
    columns.figures("kWh", ColumnUnit::KILOWATT_HOURS, Figure(totals.energy_kwh), |w| w.energy_kwh);
    columns.figures("samples", ColumnUnit::COUNT, Blank, |w| w.samples);
    columns.figures("J/sample", ColumnUnit::PER_WORK, Blank, |w| w.joules_per_sample);
    columns.figures("samples/J", ColumnUnit::PER_WORK, Blank, |w| w.samples_per_joule);
    columns.figures("mean power", ColumnUnit::WATTS, Blank, |w| w.mean_power_watts);
    columns.cells("coverage", "", |w| percent(w.coverage_ratio));
    if workloads.iter().any(|w| w.tokens.is_some()) {
        columns.figures("tokens", ColumnUnit::COUNT, Blank, |w| w.tokens);
        columns.figures("tokens/J", ColumnUnit::PER_WORK, Blank, |w| w.tokens_per_joule);
    }
    columns.finish()
}

fn counts_table(workloads: &[&WorkloadReport], totals: &ReportTotals) -> ReportTable {
    let mut columns = workload_columns(workloads, totals);
    let mut count = |head: &'static str, total: u64, of: fn(&WorkloadReport) -> u64| {
        columns.figures(head, ColumnUnit::COUNT, ColumnTotal::Figure(Some(total as f64)), |w| Some(of(w) as f64));
    };
    count("windows", totals.windows, |w| w.windows);
    count("decisions", totals.decisions, |w| w.decisions);
    if workloads.iter().any(|w| w.decided_changes > w.changes) {
        count("changes decided", totals.decided_changes, |w| w.decided_changes);
    }
    if workloads.iter().any(|w| w.recommendations > 0) {
        count("recommended", totals.recommendations, |w| w.recommendations);
    }
    count("changes", totals.changes, |w| w.changes);
    count("reverts", totals.reverts, |w| w.reverts);
    columns.finish()
}

fn savings_table(workloads: &[&WorkloadReport], totals: &ReportTotals) -> ReportTable {
    use ColumnTotal::{Blank, Figure};
    let mut columns = workload_columns(workloads, totals);
    columns.cells("compared", &percent(totals.compared_energy_ratio), |w| percent(w.compared_energy_ratio));
    columns.figures("baseline J/sample", ColumnUnit::PER_WORK, Blank, |w| w.baseline_joules_per_sample);
    columns.figures("J/sample there", ColumnUnit::PER_WORK, Blank, |w| w.compared_joules_per_sample);
    columns.figures("saved", ColumnUnit::JOULES, Figure(totals.saving_joules), |w| w.saving_joules);
    columns.cells("saving", &signed_percent(totals.saving_ratio), |w| signed_percent(w.saving_ratio));
    let interval = format_interval(totals.saving_ratio_low, totals.saving_ratio_high);
    columns.cells("90 % interval", &interval, |w| format_interval(w.saving_ratio_low, w.saving_ratio_high));
    columns.cells("throughput kept", "", |w| percent(w.throughput_kept_ratio));
    let cost = workloads.iter().find_map(|w| w.currency.as_deref());
    let cost = cost.map_or(Cow::Borrowed("cost"), |currency| format!("cost {currency}").into());
    columns.figures(cost, ColumnUnit::MONEY, Figure(totals.cost), |w| w.cost);
    columns.figures("CO₂", ColumnUnit::GRAMS, Figure(totals.co2_grams), |w| w.co2_grams);
    let unassigned = Figure(totals.unassigned_energy_joules);
    columns.figures("in no window", ColumnUnit::JOULES, unassigned, |w| w.unassigned_energy_joules);
    columns.finish()
}

fn windows_table(rows: &[WindowRow]) -> ReportTable {
    use ColumnTotal::Blank;
    let mut columns = TableColumns::new(rows, false);
    columns.text("window", "", |row| format_time(row.window_start));
    columns.text("origin", "", |row| origin_word(row.origin).to_owned());
    columns.text("decision", "", |row| {
        let action = row.action_text.as_deref().unwrap_or(UNKNOWN);
        if row.restarted { format!("{action}, {RESTARTED}") } else { action.to_owned() }
    });
    columns.cells("duration", "", |row| units::format_duration(row.duration_seconds));
    columns.figures("energy", ColumnUnit::JOULES, Blank, |row| row.energy_joules);
    columns.figures("samples", ColumnUnit::COUNT, Blank, |row| row.samples);
    if rows.iter().any(|row| row.tokens.is_some()) {
        columns.figures("tokens", ColumnUnit::COUNT, Blank, |row| row.tokens);
    }
    columns.figures("J/sample", ColumnUnit::PER_WORK, Blank, |row| row.joules_per_sample);
    // Of the whole window; the energy beside it is of the run.
    columns.figures("mean power", ColumnUnit::WATTS, Blank, |row| row.mean_power_watts);
    let has_parts = rows.iter().any(|row| {
        let both = row.mean_power_watts.zip(row.run_mean_power_watts);
        both.is_some_and(|(whole, run)| (whole - run).abs() > 1e-6 * whole.abs())
    });
    if has_parts {
        columns.figures("mean power in run", ColumnUnit::WATTS, Blank, |row| row.run_mean_power_watts);
    }
    columns.cells("coverage", "", |row| percent(Some(row.coverage_ratio)));
    columns.cells("progress coverage", "", |row| percent(Some(row.progress_coverage_ratio)));
    columns.finish()
}

fn spans_table(rows: &[SpanRow]) -> ReportTable {
    use ColumnTotal::Blank;
    let mut columns = TableColumns::new(rows, false);
    columns.text("span", "", |row| row.span.clone());
    columns.text("origin", "", |row| origin_word(row.origin).to_owned());
    columns.text("start", "", |row| format_time(row.start));
    columns.cells("duration", "", |row| units::format_duration(row.duration_seconds));
    columns.figures("energy", ColumnUnit::JOULES, Blank, |row| row.energy_joules);
    columns.figures("samples", ColumnUnit::COUNT, Blank, |row| row.samples);
    if rows.iter().any(|row| row.tokens.is_some()) {
        columns.figures("tokens", ColumnUnit::COUNT, Blank, |row| row.tokens);
    }
    columns.figures("J/sample", ColumnUnit::PER_WORK, Blank, |row| row.joules_per_sample);
    columns.figures("mean power", ColumnUnit::WATTS, Blank, |row| row.mean_power_watts);
    columns.cells("coverage", "", |row| percent(Some(row.coverage_ratio)));
    columns.finish()
}

/// A report as JSON: the verdict and the sums, then each workload.
#[derive(Debug, Serialize)]
struct ReportDocument<'a> {
    /// First line of the report, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    verdict: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    totals: Option<ReportTotals>,
    workloads: &'a [WorkloadReport],
}

impl<'a> ReportDocument<'a> {
    fn of(report: &'a EnergyReport) -> Self {
        let totals = (!report.workloads.is_empty()).then(|| ReportTotals::of(&report.workloads));
        Self { verdict: report.headline().into_iter().next(), totals, workloads: &report.workloads }
    }
}

/// Heading and table of everything in a report, in order, with the notes behind the totals.
struct ReportSection {
    heading: String,
    table: ReportTable,
    notes: Vec<SharedNote>,
}

/// A note, and the workloads that it is about; empty if it is about all.
struct SharedNote {
    about: String,
    text: String,
}

impl fmt::Display for SharedNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.about.is_empty() {
            write!(f, "{}: ", self.about)?;
        }
        f.write_str(&self.text)
    }
}

/// Names listed before the rest is counted.
pub(crate) const NAMES_SHOWN: usize = 3;

/// Returns each note once, with the workloads that it is about. Given are names of workloads with a note.
fn shared_notes<'a>(all: impl Iterator<Item = (&'a str, &'a str)>) -> Vec<SharedNote> {
    let mut notes: Vec<(&str, Vec<&str>)> = Vec::new();
    for (workload, note) in all {
        match notes.iter_mut().find(|(known, _)| *known == note) {
            Some((_, workloads)) => workloads.push(workload),
            None => notes.push((note, vec![workload])),
        }
    }
    let line = |(note, workloads): (&str, Vec<&str>)| {
        let names = list_first(&workloads, NAMES_SHOWN);
        let about = if workloads.len() == 1 { names } else { format!("{} workloads ({names})", workloads.len()) };
        SharedNote { about, text: note.to_owned() }
    };
    notes.into_iter().map(line).collect()
}

fn notes(report: &EnergyReport) -> Vec<SharedNote> {
    shared_notes(report.workloads.iter().flat_map(|it| it.notes.iter().map(move |note| (it.workload.as_str(), note.as_str()))))
}

fn sections(report: &EnergyReport) -> Vec<ReportSection> {
    let mark = origin_mark(report.workloads.iter().map(|workload| workload.origin));
    let priced = |w: &WorkloadReport| {
        let figures = [w.baseline_joules_per_sample, w.saving_joules, w.cost, w.co2_grams, w.unassigned_energy_joules];
        figures.iter().any(Option::is_some)
    };
    let (workloads, totals) = (report.by_energy(), ReportTotals::of(&report.workloads));
    let section = |heading: &str, table: ReportTable, notes: Vec<SharedNote>| ReportSection {
        heading: format!("{heading}{mark}"),
        table,
        notes,
    };
    let mut sections = vec![
        section("Energy by workload", totals_table(&workloads, &totals), Vec::new()),
        section("Saving, cost and carbon", savings_table(&workloads, &totals), Vec::new()),
        section("Windows and decisions", counts_table(&workloads, &totals), notes(report)),
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
    fn times_have_no_empty_fraction_and_texts_are_one_line() {
        assert_eq!(format_time(EventTime::from_micros(1_700_000_000_000_000)), "2023-11-14T22:13:20Z");
        assert_eq!(format_time(EventTime::from_micros(1_700_000_000_250_000)), "2023-11-14T22:13:20.250000Z");
        assert_eq!(signed_percent(Some(-0.0731)), "-7.31 %");
        assert_eq!(format_interval(Some(-0.000_4), Some(0.031)), "0.0 to +3.1 %");
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
