//! Progress from one source's counters: what is new, what is done again, what is not known.

use std::collections::VecDeque;

use eadt_schemas::EventTime;
use eadt_schemas::v1::{Origin, TrainingProgress};
use serde::{Deserialize, Serialize};

use super::{Cuts, spread};

/// Samples, tokens, steps.
pub const COUNTERS: usize = 3;
pub const SAMPLES: usize = 0;

/// What of an event the next step needs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Count {
    pub time: EventTime,
    pub totals: [Option<f64>; COUNTERS],
    pub rates: [Option<f64>; COUNTERS],
}

impl Count {
    pub fn of(event: &TrainingProgress) -> Self {
        Self {
            time: event.time,
            totals: [event.samples_total, event.tokens_total, event.steps_total],
            rates: [event.samples_per_second, event.tokens_per_second, None],
        }
    }
}

/// One counter between two events.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Gain {
    Unknown,
    /// From the first value to the second; up to the third it was done before.
    Counter(f64, f64, f64),
    /// A rate from the first value to the second, per second.
    Rate(f64, f64),
}

impl Gain {
    /// New and redone amount between two fractions of the step of `seconds`.
    fn part(self, from: f64, to: f64, seconds: f64) -> (f64, f64) {
        match self {
            Self::Unknown => (0.0, 0.0),
            Self::Counter(a, b, done) => {
                let at = |fraction: f64| if fraction >= 1.0 { b } else { a + (b - a) * fraction };
                let (low, high) = (at(from), at(to));
                let redone = (high.min(done) - low).max(0.0);
                (high - low - redone, redone)
            }
            Self::Rate(a, b) => ((a + (b - a) * (from + to) * 0.5) * (to - from) * seconds, 0.0),
        }
    }
}

/// One source's part of one stretch.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RankSums {
    /// New amounts, by counter.
    #[serde(rename = "a")]
    pub amounts: [f64; COUNTERS],
    /// Amounts done again.
    #[serde(rename = "r")]
    pub redone: [f64; COUNTERS],
    /// Microseconds of known progress, by counter.
    #[serde(rename = "c")]
    pub covered: [i64; COUNTERS],
    #[serde(rename = "f")]
    pub from: EventTime,
    #[serde(rename = "t")]
    pub to: EventTime,
    #[serde(rename = "g")]
    pub largest: i64,
    #[serde(rename = "e")]
    pub events: u64,
    #[serde(rename = "o")]
    pub origin: Origin,
    #[serde(rename = "l")]
    pub loss: f64,
    #[serde(rename = "m")]
    pub losses: u32,
    /// A counter fell in this stretch: the job started again.
    #[serde(rename = "d")]
    pub fell: bool,
}

impl RankSums {
    /// Microseconds with any known progress.
    pub fn known(&self) -> i64 {
        self.covered.iter().copied().max().unwrap_or(0)
    }

    pub fn touched(&self) -> bool {
        self.events > 0 || self.from < self.to
    }

    /// Counts an event of this stretch.
    pub fn event(&mut self, event: &TrainingProgress, fell: bool) {
        self.events += 1;
        self.origin = self.origin.max(event.origin);
        self.fell |= fell;
        if let Some(loss) = event.loss {
            self.loss += loss;
            self.losses += 1;
        }
    }

    /// As [`super::energy::GpuSums::split`].
    pub fn split(&mut self, at: EventTime) -> (Self, bool) {
        if self.from >= self.to || self.to <= at {
            return (Self::default(), false);
        }
        if self.from >= at {
            return (std::mem::take(self), false);
        }
        let right = (self.to.micros() - at.micros()) as f64 / (self.to.micros() - self.from.micros()) as f64;
        let mut after = Self { from: at, to: self.to, largest: self.largest, origin: self.origin, ..Self::default() };
        for i in 0..COUNTERS {
            after.amounts[i] = self.amounts[i] * right;
            self.amounts[i] -= after.amounts[i];
            after.redone[i] = self.redone[i] * right;
            self.redone[i] -= after.redone[i];
            after.covered[i] = (self.covered[i] as f64 * right).round() as i64;
            self.covered[i] -= after.covered[i];
        }
        self.to = at;
        (after, true)
    }
}

/// A step of one source.
#[derive(Debug, Clone, Copy)]
pub struct Step {
    from: EventTime,
    to: EventTime,
    gains: [Gain; COUNTERS],
    /// A counter fell.
    pub fell: bool,
}

impl Step {
    /// Between two events; `done` holds the largest totals before the second and takes it in.
    pub fn between(a: &Count, b: &Count, done: &mut [f64; COUNTERS], rate_gap: i64) -> Self {
        let mut fell = false;
        let duration = b.time.micros() - a.time.micros();
        let gains = std::array::from_fn(|i| match (a.totals[i], b.totals[i]) {
            (Some(before), Some(after)) if after < before => {
                fell = true;
                Gain::Unknown
            }
            (Some(before), Some(after)) => Gain::Counter(before, after, done[i]),
            _ => match (a.rates[i], b.rates[i]) {
                (Some(before), Some(after)) if duration <= rate_gap => Gain::Rate(before, after),
                _ => Gain::Unknown,
            },
        });
        note_done(done, b);
        Self { from: a.time, to: b.time, gains, fell }
    }

    /// New and redone amount of counter `i` over the whole step.
    pub fn total(&self, i: usize) -> (f64, f64) {
        self.gains[i].part(0.0, 1.0, self.to.seconds_since(self.from))
    }

    /// Spreads the step over the stretches; returns the new amounts that lie before the first of them.
    pub fn add(&self, stretches: &mut VecDeque<RankSums>, cuts: &Cuts, origin: Origin) -> [f64; COUNTERS] {
        let duration = (self.to.micros() - self.from.micros()) as f64;
        let fraction = |time: EventTime| (time.micros() - self.from.micros()) as f64 / duration;
        let before = spread(cuts, self.from, self.to, |i, a, b| {
            if stretches.len() <= i {
                stretches.resize_with(i + 1, RankSums::default);
            }
            let sums = &mut stretches[i];
            if sums.from >= sums.to {
                (sums.from, sums.to) = (a, b);
            } else {
                (sums.from, sums.to) = (sums.from.min(a), sums.to.max(b));
            }
            sums.largest = sums.largest.max(b.micros() - a.micros());
            sums.origin = sums.origin.max(origin);
            for (i, gain) in self.gains.iter().enumerate() {
                if *gain != Gain::Unknown {
                    let (new, redone) = gain.part(fraction(a), fraction(b), duration / 1e6);
                    sums.amounts[i] += new;
                    sums.redone[i] += redone;
                    sums.covered[i] += b.micros() - a.micros();
                }
            }
        });
        if before == 0 {
            return [0.0; COUNTERS];
        }
        let until = before as f64 / duration;
        std::array::from_fn(|i| self.gains[i].part(0.0, until, duration / 1e6).0)
    }
}

/// Takes an event's totals into the largest totals so far.
pub fn note_done(done: &mut [f64; COUNTERS], count: &Count) {
    for (done, total) in done.iter_mut().zip(count.totals) {
        *done = total.map_or(*done, |total| done.max(total));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(seconds: i64, samples: f64) -> Count {
        let time = EventTime::from_micros(seconds * 1_000_000);
        Count { time, totals: [Some(samples), None, None], rates: [None; COUNTERS] }
    }

    #[test]
    fn a_fall_adds_nothing_and_what_is_redone_counts_apart_until_the_former_maximum() {
        let mut done = [1000.0, 0.0, 0.0];
        let fall = Step::between(&count(0, 1000.0), &count(10, 800.0), &mut done, 0);
        assert_eq!((fall.fell, fall.total(SAMPLES)), (true, (0.0, 0.0)));
        let redo = Step::between(&count(10, 800.0), &count(20, 1100.0), &mut done, 0);
        assert_eq!((redo.fell, redo.total(SAMPLES)), (false, (100.0, 200.0)));
        assert_eq!(done[SAMPLES], 1100.0);
    }

    #[test]
    fn a_rate_is_integrated() {
        let at =
            |seconds: i64, rate: f64| Count { totals: [None; COUNTERS], rates: [Some(rate), None, None], ..count(seconds, 0.0) };
        let step = Step::between(&at(0, 10.0), &at(10, 20.0), &mut [0.0; 3], 60_000_000);
        assert_eq!(step.total(SAMPLES), (150.0, 0.0));
    }
}
