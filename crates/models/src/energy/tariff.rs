use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};
use serde::Deserialize;

use super::{EnergyInterval, JOULES_PER_KWH};

/// A price of electricity.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Price {
    /// Currency units per kWh, adjustments included.
    pub per_kwh: f64,
}

/// Price of electricity by month, kind of day and hour, in local time.
#[derive(Debug, Clone, PartialEq)]
pub struct Tariff {
    prices: Vec<Price>,
    /// Index into `prices`, by month from January and by hour from midnight.
    weekday: Box<[[usize; 24]; 12]>,
    weekend: Box<[[usize; 24]; 12]>,
}

/// The largest price of a kWh, paid or earned, in any currency: with larger ones sums overflow.
pub const PRICE_MAX: f64 = 1e15;

/// A tariff that cannot be used.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum InvalidTariff {
    #[error("price {price:e} per kWh is none within ±{PRICE_MAX:e}")]
    Price { price: f64 },
    #[error("schedule of {days} names price {index}, but there are {count}")]
    Unknown { days: &'static str, index: usize, count: usize },
    #[error("schedule of {days} has these hours in each month: {hours:?}; 12 months with 24 hours each are needed")]
    Shape { days: &'static str, months: usize, hours: Vec<usize> },
    #[error("price {index} depends on the monthly use ({tiers} tiers); take the tier that applies")]
    Tiers { index: usize, tiers: usize },
    #[error("the document has no tariff")]
    Empty,
}

/// A utility rate document of `OpenEI` (<https://openei.org/services/doc/rest/util_rates>), as far as it prices a kWh.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct OpenEi {
    pub items: Vec<OpenEiRate>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub struct OpenEiRate {
    energyratestructure: Vec<Vec<OpenEiTier>>,
    energyweekdayschedule: Vec<Vec<usize>>,
    energyweekendschedule: Vec<Vec<usize>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
struct OpenEiTier {
    rate: f64,
    #[serde(default)]
    adj: f64,
}

impl Tariff {
    /// Schedules give, for each of 12 months and 24 hours, the index of the price that applies.
    pub fn new(prices: Vec<Price>, weekday: &[Vec<usize>], weekend: &[Vec<usize>]) -> Result<Self, InvalidTariff> {
        if let Some(price) = prices.iter().map(|price| price.per_kwh).find(|price| !(-PRICE_MAX..=PRICE_MAX).contains(price)) {
            return Err(InvalidTariff::Price { price });
        }
        let weekday = schedule("weekdays", weekday, prices.len())?;
        let weekend = schedule("weekends", weekend, prices.len())?;
        Ok(Self { prices, weekday, weekend })
    }

    /// Returns the first rate of an `OpenEI` document; a kWh costs `rate` + `adj`.
    pub fn from_open_ei(document: &OpenEi) -> Result<Self, InvalidTariff> {
        let rate = document.items.first().ok_or(InvalidTariff::Empty)?;
        let prices = rate
            .energyratestructure
            .iter()
            .enumerate()
            .map(|(index, tiers)| match tiers.as_slice() {
                [tier] => Ok(Price { per_kwh: tier.rate + tier.adj }),
                tiers => Err(InvalidTariff::Tiers { index, tiers: tiers.len() }),
            })
            .collect::<Result<_, _>>()?;
        Self::new(prices, &rate.energyweekdayschedule, &rate.energyweekendschedule)
    }

    /// Returns the price at an instant, in currency units per kWh.
    pub fn price_at(&self, time: Timestamp, zone: &TimeZone) -> f64 {
        let local = time.to_zoned(zone.clone());
        let days = if local.weekday().to_monday_zero_offset() >= 5 { &self.weekend } else { &self.weekday };
        self.prices[days[usize::from(local.month().unsigned_abs()) - 1][usize::from(local.hour().unsigned_abs())]].per_kwh
    }

    /// Returns the cost of these intervals' energy. An interval over several hours is split where the local hour changes.
    pub fn cost(&self, intervals: &[EnergyInterval], zone: &TimeZone) -> f64 {
        intervals.iter().map(|interval| self.cost_of(interval, zone)).sum()
    }

    fn cost_of(&self, interval: &EnergyInterval, zone: &TimeZone) -> f64 {
        let whole = interval.seconds();
        if whole <= 0.0 {
            return interval.joules / JOULES_PER_KWH * self.price_at(interval.from, zone);
        }
        let (mut at, mut sum) = (interval.from, 0.0);
        while at < interval.to {
            let next = next_hour(at, zone).min(interval.to);
            sum += super::seconds_between(at, next) / whole * self.price_at(at, zone);
            at = next;
        }
        interval.joules / JOULES_PER_KWH * sum
    }
}

/// Returns the next change of the local hour, also if the zone is half an hour off, or if clocks are put back.
fn next_hour(at: Timestamp, zone: &TimeZone) -> Timestamp {
    let local = at.to_zoned(zone.clone());
    let since = 60 * i64::from(local.minute()) + i64::from(local.second());
    let whole = Timestamp::from_second(at.as_second() - since).unwrap_or(at);
    let next = whole.checked_add(1.hours()).unwrap_or(Timestamp::MAX);
    if next > at { next } else { at.checked_add(1.hours()).unwrap_or(Timestamp::MAX) }
}

fn schedule(days: &'static str, months: &[Vec<usize>], count: usize) -> Result<Box<[[usize; 24]; 12]>, InvalidTariff> {
    let wrong = || InvalidTariff::Shape { days, months: months.len(), hours: months.iter().map(Vec::len).collect() };
    if months.len() != 12 {
        return Err(wrong());
    }
    let mut schedule = Box::new([[0; 24]; 12]);
    for (month, hours) in schedule.iter_mut().zip(months) {
        *month = hours.as_slice().try_into().map_err(|_| wrong())?;
        if let Some(&index) = month.iter().find(|index| **index >= count) {
            return Err(InvalidTariff::Unknown { days, index, count });
        }
    }
    Ok(schedule)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peak() -> Tariff {
        let mut day = vec![0; 24];
        day[17..21].fill(1);
        let prices = vec![Price { per_kwh: 0.1 }, Price { per_kwh: 0.5 }];
        Tariff::new(prices, &vec![day; 12], &vec![vec![0; 24]; 12]).unwrap()
    }

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn the_hour_is_local_and_weekends_are_distinguished() {
        let (tariff, zone) = (peak(), TimeZone::posix("EST5EDT,M3.2.0,M11.1.0").unwrap());
        assert_eq!(tariff.price_at(at("2026-06-10T21:30:00Z"), &zone), 0.5, "Wednesday, 17:30 in Detroit");
        assert_eq!(tariff.price_at(at("2026-06-10T20:59:00Z"), &zone), 0.1);
        assert_eq!(tariff.price_at(at("2026-06-13T21:30:00Z"), &zone), 0.1, "Saturday");
    }

    #[test]
    fn energy_over_a_change_of_price_is_split_there() {
        let (tariff, zone) = (peak(), TimeZone::UTC);
        let interval =
            EnergyInterval { from: at("2026-06-10T16:30:00Z"), to: at("2026-06-10T18:30:00Z"), joules: 4.0 * JOULES_PER_KWH };
        assert!((tariff.cost(&[interval], &zone) - (0.1 + 3.0 * 0.5)).abs() < 1e-12);
        let whole_day =
            EnergyInterval { from: at("2026-06-10T00:00:00Z"), to: at("2026-06-11T00:00:00Z"), joules: 24.0 * JOULES_PER_KWH };
        assert!((tariff.cost(&[whole_day], &zone) - (20.0 * 0.1 + 4.0 * 0.5)).abs() < 1e-12);
        // A zone that is half an hour off changes its hour at half past.
        let india = TimeZone::posix("IST-5:30").unwrap();
        let shifted = EnergyInterval { from: at("2026-06-10T11:00:00Z"), to: at("2026-06-10T12:00:00Z"), joules: JOULES_PER_KWH };
        assert!((tariff.cost(&[shifted], &india) - f64::midpoint(0.1, 0.5)).abs() < 1e-12, "{}", tariff.cost(&[shifted], &india));
    }

    #[test]
    fn what_is_no_tariff_is_named() {
        let flat = vec![vec![0; 24]; 12];
        for per_kwh in [f64::NAN, f64::INFINITY, 1.7e308, -1e16] {
            let unknown = Tariff::new(vec![Price { per_kwh }], &flat, &flat).unwrap_err().to_string();
            assert!(unknown.contains("per kWh is none within ±1e15"), "{unknown}");
        }
        let price = || vec![Price { per_kwh: 0.1 }];
        let short = Tariff::new(price(), &vec![vec![0; 23]; 12], &flat).unwrap_err().to_string();
        assert!(short.contains("weekdays"), "{short}");
        let unknown = Tariff::new(price(), &flat, &vec![vec![1; 24]; 12]).unwrap_err().to_string();
        assert_eq!(unknown, "schedule of weekends names price 1, but there are 1");
        let tier = OpenEiTier { rate: 0.1, adj: 0.02 };
        let rate = |tiers| OpenEiRate {
            energyratestructure: vec![tiers],
            energyweekdayschedule: flat.clone(),
            energyweekendschedule: flat.clone(),
        };
        let tiered = Tariff::from_open_ei(&OpenEi { items: vec![rate(vec![tier, tier])] }).unwrap_err().to_string();
        assert!(tiered.contains("monthly use"), "{tiered}");
        let good = Tariff::from_open_ei(&OpenEi { items: vec![rate(vec![tier])] }).unwrap();
        assert!((good.price_at(at("2026-01-01T00:00:00Z"), &TimeZone::UTC) - 0.12).abs() < 1e-12);
        assert_eq!(Tariff::from_open_ei(&OpenEi { items: vec![] }), Err(InvalidTariff::Empty));
    }
}
