//! What a workload cost and what changing it saved, from windows, decisions and actuations.
//!
//! In: events of [`eadt_schemas`] in any order, repeated ones included ([`Reporter`]). Out: a [`Report`], as JSON, as a
//! table for terminals, as Markdown, or as one self-contained HTML page. This crate never reads a clock or a file,
//! never turns an unknown figure into a zero, and never hides where a figure comes from: `simulated` and `imported`
//! stand in every row of such figures, and in a heading only where they hold for all below it.

mod comparison;
mod figures;
mod headline;
mod render;
mod reporter;
mod saving;
mod settings;
mod supply;
pub mod units;

/// Of `--time-zone`.
pub use jiff::tz::TimeZone;

pub use comparison::{Comparison, FigurePair};
pub use figures::{Report, SpanRow, WindowRow, WorkloadReport};
pub use headline::{Summary, Verdict};
pub use render::{Form, meter_word};
pub use reporter::Reporter;
pub use settings::{By, InvalidBaseline, InvalidBy, InvalidCurrency, Settings, parse_baseline, parse_currency};
pub use supply::{GridCarbon, Prices, SupplyError, read_carbon, read_prices, time_zone};

use eadt_schemas::v1::{Actuation, Decision, EfficiencyWindow};

/// Makes a report of everything given.
pub fn report<'a>(
    windows: impl IntoIterator<Item = &'a EfficiencyWindow>,
    decisions: impl IntoIterator<Item = &'a Decision>,
    actuations: impl IntoIterator<Item = &'a Actuation>,
    settings: &Settings,
) -> Report {
    let mut reporter = Reporter::default();
    windows.into_iter().for_each(|window| reporter.window(window));
    decisions.into_iter().for_each(|decision| reporter.decision(decision));
    actuations.into_iter().for_each(|actuation| reporter.actuation(actuation));
    reporter.report(settings)
}
