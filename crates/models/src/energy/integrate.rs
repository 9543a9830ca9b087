/// A power reading.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PowerSample {
    /// Time in seconds, from any origin that all samples of a series share.
    pub seconds: f64,
    pub watts: f64,
}

/// Rule by which power is integrated to energy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IntegrationRule {
    /// Power changes evenly from one reading to the next.
    #[default]
    Trapezoid,
    /// Each reading holds for the time since the one before it: the rule of the *energy models* document, kept for
    /// comparison. It counts a rise of power too early, and gives no value between two readings.
    Rectangle,
}

/// Power readings in order of time, one an instant.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PowerSeries {
    samples: Vec<PowerSample>,
}

/// Readings that are no series.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum InvalidSeries {
    #[error("reading {index} is {watts} W; power is finite and not negative")]
    Power { index: usize, watts: f64 },
    #[error("reading {index} has no finite time")]
    Time { index: usize },
    #[error("reading {index} is older than the one before it; sort the readings by time")]
    Order { index: usize },
}

/// An integral of power.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct IntegratedEnergy {
    pub joules: f64,
    /// Time that readings cover, within the requested span.
    pub covered_seconds: f64,
    /// Part of the requested span that readings cover.
    pub covered_ratio: f64,
    /// Longest time between two readings that was bridged.
    pub largest_gap_seconds: f64,
}

impl IntegratedEnergy {
    /// Returns the mean power over the covered time, in watts; `None` if nothing is covered.
    pub fn mean_watts(&self) -> Option<f64> {
        (self.covered_seconds > 0.0).then(|| self.joules / self.covered_seconds)
    }
}

impl PowerSeries {
    /// Takes readings in order of time; those of equal times are averaged.
    pub fn new(samples: impl IntoIterator<Item = PowerSample>) -> Result<Self, InvalidSeries> {
        let mut merged: Vec<PowerSample> = Vec::new();
        let mut same = 1.0;
        for (index, sample) in samples.into_iter().enumerate() {
            if !sample.seconds.is_finite() {
                return Err(InvalidSeries::Time { index });
            }
            if !sample.watts.is_finite() || sample.watts < 0.0 {
                return Err(InvalidSeries::Power { index, watts: sample.watts });
            }
            match merged.last_mut() {
                Some(last) if sample.seconds < last.seconds => return Err(InvalidSeries::Order { index }),
                Some(last) if sample.seconds == last.seconds => {
                    same += 1.0;
                    last.watts += (sample.watts - last.watts) / same;
                }
                _ => {
                    same = 1.0;
                    merged.push(sample);
                }
            }
        }
        Ok(Self { samples: merged })
    }

    pub fn samples(&self) -> &[PowerSample] {
        &self.samples
    }

    /// Returns E = ∫P dt over the whole series; `None` for fewer than two readings.
    pub fn energy(&self, rule: IntegrationRule) -> Option<IntegratedEnergy> {
        let (first, last) = (self.samples.first()?, self.samples.last()?);
        (first.seconds < last.seconds).then(|| self.energy_between(first.seconds, last.seconds, rule, None))
    }

    /// E = ∫P dt from `from` to `to`, clipped to what readings cover; the trapezoid is interpolated at both ends.
    /// Readings further apart than `max_gap_seconds` cover nothing between them.
    pub fn energy_between(&self, from: f64, to: f64, rule: IntegrationRule, max_gap_seconds: Option<f64>) -> IntegratedEnergy {
        let mut energy = IntegratedEnergy { joules: 0.0, covered_seconds: 0.0, covered_ratio: 0.0, largest_gap_seconds: 0.0 };
        for pair in self.samples.windows(2) {
            let [a, b] = pair else { continue };
            let (low, high) = (a.seconds.max(from), b.seconds.min(to));
            let gap = b.seconds - a.seconds;
            if high <= low || max_gap_seconds.is_some_and(|max| gap > max) {
                continue;
            }
            let watts = match rule {
                IntegrationRule::Trapezoid => {
                    let at = |seconds: f64| a.watts + (b.watts - a.watts) * (seconds - a.seconds) / gap;
                    f64::midpoint(at(low), at(high))
                }
                IntegrationRule::Rectangle => b.watts,
            };
            energy.joules += watts * (high - low);
            energy.covered_seconds += high - low;
            energy.largest_gap_seconds = energy.largest_gap_seconds.max(gap);
        }
        if to > from {
            energy.covered_ratio = energy.covered_seconds / (to - from);
        }
        energy
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn series(samples: &[(f64, f64)]) -> PowerSeries {
        PowerSeries::new(samples.iter().map(|&(seconds, watts)| PowerSample { seconds, watts })).unwrap()
    }

    #[test]
    fn a_ramp_is_exact_by_trapezoids_and_high_by_the_rectangle_rule() {
        let ramp = series(&[(0.0, 0.0), (1.0, 100.0), (2.0, 200.0)]);
        assert_eq!(ramp.energy(IntegrationRule::Trapezoid).unwrap().joules, 200.0);
        assert_eq!(ramp.energy(IntegrationRule::Rectangle).unwrap().joules, 300.0);
        assert_eq!(ramp.energy(IntegrationRule::Trapezoid).unwrap().mean_watts(), Some(100.0));
    }

    #[test]
    fn ends_are_interpolated_and_clipped_and_gaps_cover_nothing() {
        let readings = series(&[(0.0, 100.0), (10.0, 200.0), (100.0, 200.0)]);
        let energy = readings.energy_between(5.0, 20.0, IntegrationRule::Trapezoid, Some(15.0));
        assert_eq!(energy.joules, 5.0 * 175.0);
        assert_eq!((energy.covered_seconds, energy.covered_ratio), (5.0, 1.0 / 3.0));
        let early = readings.energy_between(-5.0, 5.0, IntegrationRule::Trapezoid, None);
        assert_eq!((early.covered_seconds, early.covered_ratio), (5.0, 0.5));
        let outside = readings.energy_between(200.0, 300.0, IntegrationRule::Trapezoid, None);
        assert_eq!((outside.joules, outside.mean_watts()), (0.0, None));
    }

    #[test]
    fn equal_times_are_averaged_and_nonsense_is_named() {
        let readings = series(&[(0.0, 90.0), (1.0, 100.0), (1.0, 130.0), (1.0, 160.0), (2.0, 130.0)]);
        assert_eq!(readings.samples()[1].watts, 130.0);
        let refused = |samples: &[(f64, f64)]| {
            PowerSeries::new(samples.iter().map(|&(seconds, watts)| PowerSample { seconds, watts })).unwrap_err().to_string()
        };
        assert!(refused(&[(0.0, 1.0), (1.0, -1.0)]).contains("reading 1 is -1 W"));
        assert!(refused(&[(0.0, f64::NAN)]).contains("reading 0 is NaN W"));
        assert!(refused(&[(1.0, 1.0), (0.0, 1.0)]).contains("older"));
        assert!(refused(&[(f64::INFINITY, 1.0)]).contains("time"));
        assert_eq!(series(&[(0.0, 1.0)]).energy(IntegrationRule::Trapezoid), None);
    }

    proptest! {
        #[test]
        fn energy_of_the_parts_is_that_of_the_whole(
            steps in prop::collection::vec((0.01..5.0, 0.0..700.0), 2..40),
            cut in 0.0..1.0,
        ) {
            let mut at = 0.0;
            let readings: Vec<(f64, f64)> = steps.iter().map(|&(step, watts): &(f64, f64)| { at += step; (at, watts) }).collect();
            let readings = series(&readings);
            let (from, to) = (readings.samples()[0].seconds, at);
            let middle = from + cut * (to - from);
            let part = |from, to| readings.energy_between(from, to, IntegrationRule::Trapezoid, None);
            let (left, right, whole) = (part(from, middle), part(middle, to), part(from, to));
            prop_assert!((left.joules + right.joules - whole.joules).abs() <= 1e-9 * whole.joules.max(1.0));
            prop_assert!((left.covered_seconds + right.covered_seconds - whole.covered_seconds).abs() < 1e-9);
        }
    }
}
