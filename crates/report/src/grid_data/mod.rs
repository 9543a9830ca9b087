//! The cost and the CO₂ of a kWh at the time that it was drawn: tariffs and grid intensities as their providers publish
//! them.
//!
//! In: the text of a file. Out: [`Prices`] or [`GridCarbon`], and with windows a sum; or a [`GridDataError`] that names
//! line, problem and remedy. Energy at times that a file does not cover makes the whole sum unknown, and a note names
//! the time.

mod cell_time;
mod table;
mod tariff;
mod unit;
mod zone;

use eadt_models::energy::{CarbonIntensity, EnergyInterval, KwhRateSteps, Tariff};
use jiff::Timestamp;
use jiff::tz::TimeZone;

pub use cell_time::grid_time_format;
pub use table::read_carbon;
pub use tariff::read_prices;

/// A file of prices or intensities that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{problem}; {remedy}", line.map_or(String::new(), |line| format!("line {line}: ")))]
pub struct GridDataError {
    /// Line of the file, from 1.
    pub line: Option<u64>,
    pub problem: String,
    pub remedy: String,
}

impl GridDataError {
    pub(crate) fn new(problem: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { line: None, problem: problem.into(), remedy: remedy.into() }
    }

    pub(crate) fn at_line(self, line: u64) -> Self {
        Self { line: Some(line), ..self }
    }
}

/// The price of a kWh, by the hour or by time.
#[derive(Debug, Clone, PartialEq)]
pub struct Prices {
    kind: PriceKind,
    /// Currency as the file names it, such as `EUR`.
    pub currency: Option<String>,
    /// Its source, for notes.
    pub source: String,
}

#[derive(Debug, Clone, PartialEq)]
enum PriceKind {
    /// A tariff by month, kind of day and hour of this zone.
    Tariff(Tariff, TimeZone),
    /// A price by time.
    Series(KwhRateSteps),
}

/// CO₂-equivalent of a kWh of the grid, by time.
#[derive(Debug, Clone, PartialEq)]
pub struct GridCarbon {
    pub(crate) intensity: CarbonIntensity,
    /// Its source, for notes.
    pub source: String,
}

/// Returns a zone of the machine's time zone database, such as `Europe/Berlin`.
pub fn time_zone(name: &str) -> Result<TimeZone, GridDataError> {
    if name.eq_ignore_ascii_case("utc") {
        return Ok(TimeZone::UTC);
    }
    TimeZone::get(name).map_err(|_| {
        GridDataError::new(
            format!("{name:?} is no zone of this machine's time zone database"),
            "name one such as Europe/Berlin, or UTC",
        )
    })
}

/// A sum over windows.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct GridTotal {
    /// `None` if a part of the energy has no price.
    pub(crate) sum: Option<f64>,
    pub(crate) note: String,
}

impl Prices {
    pub(crate) fn total_cost(&self, intervals: &[EnergyInterval]) -> GridTotal {
        match &self.kind {
            PriceKind::Tariff(tariff, zone) => {
                let zone_name = if *zone == TimeZone::UTC { "UTC" } else { zone.iana_name().unwrap_or("the given time zone") };
                let note = format!("the cost is by the hours of {zone_name} ({})", self.source);
                GridTotal { sum: Some(tariff.cost(intervals, zone)), note }
            }
            PriceKind::Series(steps) => {
                let weighed = steps.weigh(intervals);
                grid_total("cost", &self.source, weighed.sum, weighed.uncovered_joules, steps.span(), intervals)
            }
        }
    }
}

impl GridCarbon {
    pub(crate) fn total_grams(&self, intervals: &[EnergyInterval]) -> GridTotal {
        let carbon = self.intensity.carbon(intervals);
        let span = match &self.intensity {
            CarbonIntensity::Series(steps) => steps.span(),
            CarbonIntensity::Constant(_) => None,
        };
        grid_total("CO₂", &self.source, carbon.grams, carbon.uncovered_joules, span, intervals)
    }
}

fn grid_total(
    what: &str,
    source: &str,
    sum: f64,
    uncovered: f64,
    span: Option<(Timestamp, Timestamp)>,
    intervals: &[EnergyInterval],
) -> GridTotal {
    let all: f64 = intervals.iter().map(|interval| interval.joules).sum();
    if uncovered <= 1e-9 * all {
        return GridTotal { sum: Some(sum), note: format!("the {what} is by the time of the energy ({source})") };
    }
    let span = span.map_or("no time".to_owned(), |(from, to)| format!("{from} to {to}, gaps apart"));
    let part = 100.0 * uncovered / all;
    GridTotal {
        sum: None,
        note: format!("no {what} is given: {part:.1} % of the energy lies at times that {source} does not cover ({span})"),
    }
}
