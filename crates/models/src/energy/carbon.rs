use jiff::Timestamp;

use super::{EnergyInterval, JOULES_PER_KWH, KwhRateSteps};

/// CO₂-equivalent of a kWh of the grid.
#[derive(Debug, Clone, PartialEq)]
pub enum CarbonIntensity {
    /// Grams per kWh, always.
    Constant(f64),
    /// Grams per kWh by time.
    Series(KwhRateSteps),
}

#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum InvalidIntensity {
    #[error("carbon intensity {grams_per_kwh} g/kWh is negative or not finite")]
    Value { grams_per_kwh: f64 },
    #[error("carbon intensity {index} is not newer than the one before it; sort them by time")]
    Order { index: usize },
}

/// CO₂-equivalent of energy.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct CarbonEmissions {
    pub grams: f64,
    /// Energy at times of which the intensity is not known; it is in no gram.
    pub uncovered_joules: f64,
}

impl CarbonIntensity {
    /// Grams per kWh.
    pub fn constant(grams_per_kwh: f64) -> Result<Self, InvalidIntensity> {
        check(grams_per_kwh).map(Self::Constant)
    }

    /// Steps of grams per kWh, each until the next; the last one holds until `until`.
    pub fn series(steps: &[(Timestamp, f64)], until: Timestamp) -> Result<Self, InvalidIntensity> {
        let ends = steps.iter().skip(1).map(|step| step.0).chain([until]);
        let steps: Vec<_> = steps.iter().zip(ends).map(|(&(from, value), to)| (from, to, value)).collect();
        for (_, _, grams_per_kwh) in &steps {
            check(*grams_per_kwh)?;
        }
        KwhRateSteps::new(steps).map(Self::Series).map_err(|index| InvalidIntensity::Order { index })
    }

    /// Returns the CO₂-equivalent of this energy.
    pub fn carbon(&self, intervals: &[EnergyInterval]) -> CarbonEmissions {
        match self {
            Self::Constant(grams) => {
                let joules: f64 = intervals.iter().map(|interval| interval.joules).sum();
                CarbonEmissions { grams: joules / JOULES_PER_KWH * grams, uncovered_joules: 0.0 }
            }
            Self::Series(steps) => {
                let weighed = steps.weigh(intervals);
                CarbonEmissions { grams: weighed.sum, uncovered_joules: weighed.uncovered_joules }
            }
        }
    }
}

fn check(grams_per_kwh: f64) -> Result<f64, InvalidIntensity> {
    if grams_per_kwh.is_finite() && grams_per_kwh >= 0.0 {
        Ok(grams_per_kwh)
    } else {
        Err(InvalidIntensity::Value { grams_per_kwh })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(hour: i64) -> Timestamp {
        Timestamp::from_second(3600 * hour).unwrap()
    }

    #[test]
    fn constant_and_series_agree_where_nothing_changes() {
        let energy = [EnergyInterval { from: at(1), to: at(5), joules: 2.0 * JOULES_PER_KWH }];
        assert_eq!(CarbonIntensity::constant(400.0).unwrap().carbon(&energy).grams, 800.0);
        let series = CarbonIntensity::series(&[(at(0), 400.0), (at(3), 400.0)], at(9)).unwrap();
        assert_eq!(series.carbon(&energy), CarbonEmissions { grams: 800.0, uncovered_joules: 0.0 });
    }

    #[test]
    fn a_series_weighs_by_time_and_reports_what_it_does_not_cover() {
        let series = CarbonIntensity::series(&[(at(2), 100.0), (at(3), 300.0)], at(4)).unwrap();
        let energy = [EnergyInterval { from: at(1), to: at(5), joules: 4.0 * JOULES_PER_KWH }];
        assert_eq!(series.carbon(&energy), CarbonEmissions { grams: 400.0, uncovered_joules: 2.0 * JOULES_PER_KWH });
        let instant = [EnergyInterval { from: at(3), to: at(3), joules: JOULES_PER_KWH }];
        assert_eq!(series.carbon(&instant), CarbonEmissions { grams: 300.0, uncovered_joules: 0.0 });
    }

    #[test]
    fn nonsense_is_refused() {
        assert!(CarbonIntensity::constant(-1.0).is_err());
        assert!(CarbonIntensity::series(&[(at(1), 1.0), (at(1), 2.0)], at(2)).unwrap_err().to_string().contains("intensity 1"));
    }
}
