use std::collections::BTreeMap;
use std::str::FromStr;

use crate::{EnergyReport, GridCarbon, Prices};

/// Rows that are shown below the totals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReportBreakdown {
    Window,
    Span,
}

/// A breakdown that does not exist.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown breakdown {0:?}; known: window, span")]
pub struct InvalidBreakdown(String);

impl FromStr for ReportBreakdown {
    type Err = InvalidBreakdown;

    fn from_str(text: &str) -> Result<Self, InvalidBreakdown> {
        match text {
            "window" => Ok(Self::Window),
            "span" => Ok(Self::Span),
            other => Err(InvalidBreakdown(other.to_owned())),
        }
    }
}

/// Settings of a report, with facts that events do not contain.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ReportSettings {
    /// Currency units per kWh, in place of the prices that the windows carry.
    pub price_per_kwh: Option<f64>,
    /// Prices by hour or by time, in place of the prices that the windows carry; `price_per_kwh` goes before.
    pub prices: Option<Prices>,
    /// Name of the currency that prices are in, such as `EUR`; no event contains it.
    pub currency: Option<String>,
    /// Carbon intensity that replaces those of the windows.
    pub carbon_grams_per_kwh: Option<f64>,
    /// Carbon intensities by time, in place of those that the windows carry; `carbon_grams_per_kwh` goes before.
    pub carbon: Option<GridCarbon>,
    /// J/sample to compare a workload with, by workload, in place of an estimate of what its starting layout would have
    /// taken.
    pub baselines: BTreeMap<String, f64>,
    pub by: Option<ReportBreakdown>,
}

impl ReportSettings {
    /// Compares with the J/sample of an earlier report; baselines that are set already stay.
    pub fn compare_with(&mut self, earlier: &EnergyReport) {
        for workload in &earlier.workloads {
            if let Some(value) = workload.joules_per_sample {
                self.baselines.entry(workload.workload.clone()).or_insert(value);
            }
        }
    }
}

/// A baseline that is not `WORKLOAD=J/sample`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("baseline {text:?} is not WORKLOAD=JOULES_PER_SAMPLE with a positive number, such as lab/bert=0.894")]
pub struct InvalidBaseline {
    text: String,
}

/// Reads `lab/bert=0.894`.
pub fn parse_baseline(text: &str) -> Result<(String, f64), InvalidBaseline> {
    let parts = text.rsplit_once('=').map(|(workload, value)| (workload.trim(), value.trim().parse::<f64>()));
    match parts {
        Some((workload, Ok(value))) if !workload.is_empty() && value.is_finite() && value > 0.0 => {
            Ok((workload.to_owned(), value))
        }
        _ => Err(InvalidBaseline { text: text.to_owned() }),
    }
}

/// A text that names no currency.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("currency {text:?} is no code of three letters such as EUR or USD")]
pub struct InvalidCurrency {
    text: String,
}

/// Reads a code as ISO 4217 has them, in either case; whether there is such a currency is not checked.
pub fn parse_currency(text: &str) -> Result<String, InvalidCurrency> {
    if text.len() == 3 && text.bytes().all(|byte| byte.is_ascii_alphabetic()) {
        Ok(text.to_ascii_uppercase())
    } else {
        Err(InvalidCurrency { text: text.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_currencies() {
        assert_eq!(parse_currency("eur").as_deref(), Ok("EUR"));
        for text in ["", "€", "EU", "EURO", "E R", "12.", "<b>"] {
            assert!(parse_currency(text).is_err(), "{text}");
        }
    }

    #[test]
    fn reads_baselines() {
        assert_eq!(parse_baseline("lab/bert=0.894"), Ok(("lab/bert".to_owned(), 0.894)));
        for text in ["", "lab/bert", "=1", "lab/bert=x", "lab/bert=-1", "lab/bert=0", "lab/bert=inf", "lab/bert=NaN"] {
            assert!(parse_baseline(text).is_err(), "{text}");
        }
    }
}
