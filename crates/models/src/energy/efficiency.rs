/// What was done for an amount of energy: of a job, a GPU, a workload.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Work {
    pub joules: f64,
    pub seconds: f64,
    /// Tokens, samples, images: whatever is counted.
    pub units: f64,
}

impl Work {
    /// Units per joule; equal to units per second and watt. `None` where no energy is known.
    pub fn units_per_joule(&self) -> Option<f64> {
        (self.joules > 0.0).then(|| self.units / self.joules)
    }

    /// `None` where nothing was done.
    pub fn joules_per_unit(&self) -> Option<f64> {
        (self.units > 0.0).then(|| self.joules / self.units)
    }

    pub fn units_per_second(&self) -> Option<f64> {
        (self.seconds > 0.0).then(|| self.units / self.seconds)
    }

    pub fn mean_watts(&self) -> Option<f64> {
        (self.seconds > 0.0).then(|| self.joules / self.seconds)
    }

    /// Of parts that ran at the same time or one after the other: energy and units add up, the time is the longest or the sum,
    /// which only the caller knows.
    #[must_use]
    pub fn and(&self, other: &Self, seconds: f64) -> Self {
        Self { joules: self.joules + other.joules, units: self.units + other.units, seconds }
    }
}

/// How performance per watt changes when throughput and power change by these ratios (0.93 is −7 %).
///
/// Throughput over power, nothing else: a cap that costs 7 % of the throughput and 15 % of the power gives 0.93 / 0.85 = 1.094.
pub fn performance_per_watt_ratio(throughput_ratio: f64, power_ratio: f64) -> Option<f64> {
    (power_ratio > 0.0 && throughput_ratio >= 0.0).then(|| throughput_ratio / power_ratio)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_is_none_and_never_zero() {
        let nothing = Work { joules: 0.0, seconds: 0.0, units: 0.0 };
        assert_eq!(nothing.units_per_joule(), None);
        assert_eq!(nothing.joules_per_unit(), None);
        assert_eq!(nothing.units_per_second(), None);
        let work = Work { joules: 1000.0, seconds: 5.0, units: 250.0 };
        assert_eq!(work.units_per_joule(), Some(0.25));
        assert_eq!(work.joules_per_unit(), Some(4.0));
        assert_eq!(work.mean_watts(), Some(200.0));
        assert_eq!(work.and(&work, 5.0).units_per_second(), Some(100.0));
    }

    #[test]
    fn seven_percent_slower_at_fifteen_percent_less_power_is_nine_percent_better() {
        let ratio = performance_per_watt_ratio(0.93, 0.85).unwrap();
        assert!((ratio - 1.0941).abs() < 1e-4, "{ratio}");
        assert_eq!(performance_per_watt_ratio(1.0, 0.0), None);
    }
}
