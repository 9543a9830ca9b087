//! Computes energy from power readings, and its cost.

mod carbon;
mod integrate;
mod steps;
mod tariff;

pub use carbon::{CarbonEmissions, CarbonIntensity, InvalidIntensity};
pub use integrate::{IntegratedEnergy, IntegrationRule, InvalidSeries, PowerSample, PowerSeries};
pub use steps::{KwhRateSteps, WeightedEnergy};
pub use tariff::{InvalidTariff, OpenEi, PRICE_MAX, Price, Tariff};

use jiff::Timestamp;

/// Joules of a kilowatt-hour.
pub const JOULES_PER_KWH: f64 = 3.6e6;

/// Energy that was drawn between two instants, evenly.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EnergyInterval {
    pub from: Timestamp,
    pub to: Timestamp,
    pub joules: f64,
}

impl EnergyInterval {
    fn seconds(&self) -> f64 {
        seconds_between(self.from, self.to)
    }
}

fn seconds_between(from: Timestamp, to: Timestamp) -> f64 {
    to.duration_since(from).as_secs_f64()
}
