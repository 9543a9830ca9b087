use jiff::Timestamp;

use super::{EnergyInterval, JOULES_PER_KWH, seconds_between};

/// The value of a kWh by time: a price, or grams of CO₂. Has no value for the time between two steps that do not touch.
#[derive(Debug, Clone, PartialEq)]
pub struct KwhRateSteps {
    /// Start, end, and the value of a kWh, in order of time.
    steps: Vec<(Timestamp, Timestamp, f64)>,
}

/// Energy × value.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct WeightedEnergy {
    pub sum: f64,
    /// Energy at times that no step covers; it is not in the sum.
    pub uncovered_joules: f64,
}

impl KwhRateSteps {
    /// Steps in order of time; the error is the index of the first one that begins before the one before it ends, or ends before
    /// it begins.
    pub fn new(steps: Vec<(Timestamp, Timestamp, f64)>) -> Result<Self, usize> {
        if let Some(index) = steps.iter().position(|(from, to, _)| to <= from) {
            return Err((index + 1).min(steps.len() - 1));
        }
        match steps.windows(2).position(|pair| pair[1].0 < pair[0].1) {
            Some(index) => Err(index + 1),
            None => Ok(Self { steps }),
        }
    }

    /// Returns the first and the last moment that it covers; `None` without steps.
    pub fn span(&self) -> Option<(Timestamp, Timestamp)> {
        Some((self.steps.first()?.0, self.steps.last()?.1))
    }

    /// Returns the energy of these intervals by the value of its time.
    pub fn weigh(&self, intervals: &[EnergyInterval]) -> WeightedEnergy {
        let mut weighed = WeightedEnergy::default();
        for interval in intervals {
            let whole = interval.seconds();
            let mut covered = 0.0;
            let first = self.steps.partition_point(|step| step.1 <= interval.from);
            for (from, to, value) in self.steps[first..].iter().take_while(|step| step.0 < interval.to || step.0 == interval.from)
            {
                let part = if whole > 0.0 {
                    seconds_between((*from).max(interval.from), (*to).min(interval.to)).max(0.0) / whole
                } else {
                    f64::from((*from..*to).contains(&interval.from))
                };
                weighed.sum += part * interval.joules / JOULES_PER_KWH * value;
                covered += part;
            }
            if covered < 1.0 - 1e-12 {
                weighed.uncovered_joules += (1.0 - covered) * interval.joules;
            }
        }
        weighed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(hour: i64) -> Timestamp {
        Timestamp::from_second(3600 * hour).unwrap()
    }

    #[test]
    fn a_gap_covers_nothing_and_an_overlap_is_named() {
        let steps = KwhRateSteps::new(vec![(at(0), at(1), 1.0), (at(2), at(3), 3.0)]).unwrap();
        assert_eq!(steps.span(), Some((at(0), at(3))));
        let energy = [EnergyInterval { from: at(0), to: at(3), joules: 3.0 * JOULES_PER_KWH }];
        let weighed = steps.weigh(&energy);
        assert!(
            (weighed.sum - 4.0).abs() < 1e-9 && (weighed.uncovered_joules / JOULES_PER_KWH - 1.0).abs() < 1e-9,
            "{weighed:?}"
        );
        assert_eq!(KwhRateSteps::new(vec![(at(0), at(2), 1.0), (at(1), at(3), 1.0)]), Err(1));
        assert_eq!(KwhRateSteps::new(vec![(at(0), at(1), 1.0), (at(3), at(2), 1.0)]), Err(1));
    }
}
