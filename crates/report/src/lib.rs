//! The cost of a workload and the savings by changing it, from windows, decisions and actuations.
//!
//! In: events of [`eadt_schemas`] in any order, repeated ones included ([`Reporter`]). Out: an [`EnergyReport`], as
//! JSON, as a table for terminals, as Markdown, or as one self-contained HTML page. This crate never reads a clock or a
//! file, never turns an unknown figure into a zero, and never hides where a figure comes from: `simulated` and
//! `imported` are in every row of such figures, and in a heading only if they hold for all below it.

mod comparison;
mod figures;
mod frozen_blocks;
mod grid_data;
mod headline;
mod idle_gpus;
pub mod liveness;
mod render;
mod reporter;
mod run_comparison;
mod saving;
mod settings;
pub mod states;
mod stored;
mod totals;
pub mod units;
mod window_sums;
pub mod words;

/// Zone of `--time-zone`.
pub use jiff::tz::TimeZone;

pub use comparison::{DIFFERENT_WORK, FigurePair, ReportComparison};
pub use figures::{EnergyReport, GPUS_WITHOUT_WORKLOAD, SpanRow, WindowRow, WorkloadReport};
pub use grid_data::{GridCarbon, GridDataError, Prices, grid_time_format, read_carbon, read_prices, time_zone};
pub use headline::{SavingSummary, SavingVerdict};
pub use idle_gpus::{IdleGpus, IdlePower};
pub use render::{RenderFormat, meter_word};
pub use reporter::{ChangeRecord, Reporter};
pub use run_comparison::{RunComparison, RunTotals, WorkloadPair};
pub use settings::{
    InvalidBaseline, InvalidBreakdown, InvalidCurrency, ReportBreakdown, ReportSettings, parse_baseline, parse_currency,
};
pub use totals::ReportTotals;

use eadt_schemas::v1::{Actuation, Decision, EfficiencyWindow};

/// Makes a report of everything given.
pub fn report<'a>(
    windows: impl IntoIterator<Item = &'a EfficiencyWindow>,
    decisions: impl IntoIterator<Item = &'a Decision>,
    actuations: impl IntoIterator<Item = &'a Actuation>,
    settings: &ReportSettings,
) -> EnergyReport {
    let mut reporter = Reporter::default();
    windows.into_iter().for_each(|window| reporter.add_window(window));
    decisions.into_iter().for_each(|decision| reporter.add_decision(decision));
    actuations.into_iter().for_each(|actuation| reporter.add_actuation(actuation));
    reporter.build_report(settings)
}
