//! Two runs side by side, for readers.

use std::collections::BTreeSet;

use eadt_schemas::counts::{counted, list_first};
use eadt_schemas::figures::format_signed_percent;
use eadt_schemas::v1::Origin;

use super::columns::{ColumnTotal, ReportTable, TableColumns};
use super::{NAMES_SHOWN, ReportSection, SharedNote, html, markdown, origin_mark, shared_notes, signed_percent, text};
use crate::comparison::FigurePair;
use crate::run_comparison::WorkloadPair;
use crate::units::{self, ColumnUnit};
use crate::words::origin_word;
use crate::{ReportComparison, RunComparison, RunTotals};

const TITLE: &str = "Two runs";
/// Note for a careful reader of a comparison.
const WHOLE_RUNS: &str =
    "whole runs are compared, restarts and trials included; that they did the same kind of work is not checked";

impl RunComparison<'_> {
    /// Returns tables for a terminal of so many columns.
    pub fn render_text(&self, width: Option<usize>) -> String {
        let mut out = String::new();
        text::write_document(&[self.headline()], self.sections(), width, &mut out).expect("a String takes every write");
        out
    }

    /// Returns the same as Markdown.
    pub fn render_markdown(&self) -> String {
        let mut out = String::new();
        markdown::write_document(TITLE, &[self.headline()], self.sections(), &mut out).expect("a String takes every write");
        out
    }

    /// Returns one page that needs nothing else and runs no script.
    pub fn render_html(&self) -> String {
        let mut out = String::new();
        html::write_document(TITLE, &[self.headline()], self.sections(), &mut out).expect("a String takes every write");
        out
    }

    /// Returns notes on what could not be read, and on workloads that the comparison leaves out or refuses, with the reason.
    pub fn notes(&self) -> Vec<String> {
        self.shared_notes().iter().map(ToString::to_string).collect()
    }

    /// Returns the sums in a sentence.
    fn headline(&self) -> String {
        if self.pairs.is_empty() {
            return "no workload is in both runs: nothing can be compared".to_owned();
        }
        let RunTotals { energy_joules, energy_workloads, same_work_joules, same_work_workloads, cost, co2_grams } = self.totals();
        let is_shown = self.has_different_samples() && same_work_joules.change_ratio.is_some();
        let same_work = is_shown.then(|| match same_work_workloads {
            all if all == self.pairs.len() => "at the J/sample of each run, the samples of this one take".to_owned(),
            part => format!("at the J/sample of each run, the samples of {part} of them take"),
        });
        let same_work = same_work.and_then(|name| pair_text(same_work_joules, &name, units::format_joules));
        let currency = self.pairs.iter().find_map(|pair| pair.this.currency.as_deref()).unwrap_or_default();
        let energy = match energy_workloads {
            all if all == self.pairs.len() => "energy".to_owned(),
            part => format!("energy of {part} of them"),
        };
        let parts = [
            same_work,
            pair_text(energy_joules, &energy, units::format_joules),
            pair_text(cost, "cost", |cost| format!("{} {currency}", units::format_money(cost)).trim_end().to_owned()),
            pair_text(co2_grams, "CO₂", units::format_grams),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        let parts = if parts.is_empty() { "the energy is not known".to_owned() } else { parts.join("; ") };
        let mark = match self.origins().as_slice() {
            [Origin::Measured] => String::new(),
            [origin] => format!("{}: ", origin_word(*origin)),
            _ => "origins differ: ".to_owned(),
        };
        format!("{mark}{} in both runs: {parts}", counted(self.pairs.len(), "workload"))
    }

    /// Returns the distinct origins of the compared runs.
    fn origins(&self) -> Vec<Origin> {
        let all: BTreeSet<Origin> = self.pairs.iter().flat_map(|pair| [pair.this.origin, pair.other.origin]).collect();
        all.into_iter().collect()
    }

    fn shared_notes(&self) -> Vec<SharedNote> {
        let refusals = self
            .pairs
            .iter()
            .flat_map(|pair| pair.figures.refusals.iter().map(move |refusal| (pair.this.workload.as_str(), refusal.as_str())));
        let general = |text: String| SharedNote { about: String::new(), text };
        let mut notes: Vec<SharedNote> = self.source_notes.iter().cloned().map(general).collect();
        notes.extend(shared_notes(refusals));
        notes.extend(self.energy_note().map(general));
        for (names, run) in [(&self.only_this, "this run"), (&self.only_other, "the other run")] {
            match names.as_slice() {
                [] => {}
                [one] => notes.push(general(format!("{one} is only in {run}"))),
                _ => notes.push(general(format!(
                    "{} workloads are only in {run}: {}",
                    names.len(),
                    list_first(names, NAMES_SHOWN)
                ))),
            }
        }
        notes.push(general(WHOLE_RUNS.to_owned()));
        notes
    }

    fn sections(&self) -> Vec<ReportSection> {
        let mark = origin_mark(self.origins().into_iter());
        let mut sections = vec![ReportSection {
            heading: format!("Workloads in both runs{mark}"),
            table: figures_table(&self.pairs, &self.totals()),
            notes: Vec::new(),
        }];
        let is_priced = |pair: &WorkloadPair<'_>| {
            let figures = [pair.this, pair.other].map(|run| run.saving_ratio.or(run.cost).or(run.co2_grams));
            figures.iter().any(Option::is_some)
        };
        if self.pairs.iter().any(is_priced) {
            sections.push(ReportSection {
                heading: format!("Saving, cost and carbon{mark}"),
                table: savings_table(&self.pairs, &self.totals()),
                notes: Vec::new(),
            });
        }
        if let Some(last) = sections.last_mut() {
            last.notes = self.shared_notes();
        }
        sections
    }
}

/// Returns a figure of this run and of the other in words; `None` if it is not known of both.
fn pair_text(pair: FigurePair, name: &str, format: impl Fn(f64) -> String) -> Option<String> {
    let (this, other) = pair.this.zip(pair.other)?;
    let change = pair.change_ratio.map_or_else(String::new, |ratio| format!(" ({})", format_signed_percent(ratio, 1)));
    Some(format!("{name} {} instead of {}{change}", format(this), format(other)))
}

/// Begins a table of the workloads of both runs: name and origins, and a total row if there are several.
fn pair_columns<'a>(pairs: &'a [WorkloadPair<'a>]) -> TableColumns<'a, WorkloadPair<'a>> {
    let origins = |this: Origin, other: Origin| match (origin_word(this), origin_word(other)) {
        (this, other) if this == other => this.to_owned(),
        (this, other) => format!("{other} / {this}"),
    };
    let mut columns = TableColumns::new(pairs, pairs.len() > 1);
    columns.text("workload", "total", |pair| pair.this.workload.clone());
    columns.text("origin, other / this", "", |pair| origins(pair.this.origin, pair.other.origin));
    columns
}

/// Adds a figure of the other run, of this one, and its change.
fn add_pair<'a>(
    columns: &mut TableColumns<'a, WorkloadPair<'a>>,
    [other, this]: [String; 2],
    unit: ColumnUnit,
    total: Option<FigurePair>,
    of: fn(&ReportComparison) -> FigurePair,
) {
    let totals = total.map_or([ColumnTotal::Blank; 2], |total| [total.other, total.this].map(ColumnTotal::Figure));
    columns.figure_pair([other, this], unit, totals, |pair| {
        let pair = of(&pair.figures);
        [pair.other, pair.this]
    });
    let change = total.map_or_else(String::new, |total| signed_percent(total.change_ratio));
    columns.cells("change", &change, |pair| signed_percent(of(&pair.figures).change_ratio));
}

fn heads(figure: &str) -> [String; 2] {
    ["other", "this"].map(|run| format!("{figure}, {run}"))
}

fn figures_table(pairs: &[WorkloadPair<'_>], totals: &RunTotals) -> ReportTable {
    let mut columns = pair_columns(pairs);
    add_pair(&mut columns, heads("J/sample"), ColumnUnit::PER_WORK, None, |it| it.joules_per_sample);
    add_pair(&mut columns, heads("samples/s"), ColumnUnit::PER_WORK, None, |it| it.samples_per_second);
    add_pair(&mut columns, heads("energy"), ColumnUnit::JOULES, Some(totals.energy_joules), |it| it.energy_joules);
    columns.finish()
}

fn savings_table(pairs: &[WorkloadPair<'_>], totals: &RunTotals) -> ReportTable {
    let mut columns = pair_columns(pairs);
    columns.cells("saving, other", "", |pair| signed_percent(pair.other.saving_ratio));
    columns.cells("saving, this", "", |pair| signed_percent(pair.this.saving_ratio));
    let currency = pairs.iter().find_map(|pair| pair.this.currency.as_deref());
    let cost = currency.map_or_else(|| "cost".to_owned(), |currency| format!("cost {currency}"));
    add_pair(&mut columns, heads(&cost), ColumnUnit::MONEY, Some(totals.cost), |it| it.cost);
    add_pair(&mut columns, heads("CO₂"), ColumnUnit::GRAMS, Some(totals.co2_grams), |it| it.co2_grams);
    columns.finish()
}
