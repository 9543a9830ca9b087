//! Does the energy counter agree with integrated power? Pure.
//!
//! Some boards have a counter that does not move, that counts in another unit, or that covers a whole module. Before a
//! counter is used, its difference over a few seconds is compared with the trapezoidal integral of power. The counter
//! is refreshed about every 100 ms, which bounds how well a short check can agree.

use eadt_schemas::EventTime;

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum CounterVerdict {
    /// The counter is within the tolerance.
    Trusted { counter_joules: f64, integral_joules: f64 },
    /// Outside of it: the counter is left out.
    Untrusted { counter_joules: f64, integral_joules: f64 },
    /// The GPU gives no power to compare with: the counter is used.
    Unchecked,
}

impl CounterVerdict {
    pub fn trusted(self) -> bool {
        !matches!(self, Self::Untrusted { .. })
    }

    /// Returns counter over integral, less 1; `None` if nothing was compared.
    pub fn error_ratio(self) -> Option<f64> {
        match self {
            Self::Trusted { counter_joules, integral_joules } | Self::Untrusted { counter_joules, integral_joules } => {
                Some(counter_joules / integral_joules - 1.0)
            }
            Self::Unchecked => None,
        }
    }
}

/// Longest gap between two samples of a check, in seconds; over a longer one power is unknown.
const MAX_GAP_SECONDS: f64 = 1.5;

#[derive(Debug, Clone, Copy)]
struct CounterCheckState {
    started: EventTime,
    first_joules: f64,
    last: EventTime,
    last_watts: Option<f64>,
    last_joules: f64,
    integral_joules: f64,
}

/// A check in progress.
#[derive(Debug, Clone)]
pub struct CounterCheck {
    seconds: f64,
    tolerance: f64,
    running: Option<CounterCheckState>,
}

impl CounterCheck {
    /// Compares over `seconds`, with a relative `tolerance`.
    pub fn new(seconds: f64, tolerance: f64) -> Self {
        Self { seconds, tolerance, running: None }
    }

    /// Takes one sample: power in watts and the counter in joules. Returns the verdict once it is known; a sample
    /// without a counter is passed over; a fall of the counter or a gap begins anew.
    pub fn observe(&mut self, time: EventTime, watts: Option<f64>, joules: Option<f64>) -> Option<CounterVerdict> {
        let joules = joules?;
        let fresh = CounterCheckState {
            started: time,
            first_joules: joules,
            last: time,
            last_watts: watts,
            last_joules: joules,
            integral_joules: 0.0,
        };
        let Some(running) = self.running.as_mut() else {
            self.running = Some(fresh);
            return None;
        };
        let step = time.seconds_since(running.last);
        // At rates below one sample in 1.5 s every gap would be too long.
        let longest = MAX_GAP_SECONDS.max(self.seconds / 4.0);
        if joules < running.last_joules || step <= 0.0 || step > longest || watts.is_some() != running.last_watts.is_some() {
            *running = fresh;
            return None;
        }
        if let (Some(before), Some(now)) = (running.last_watts, watts) {
            running.integral_joules += f64::midpoint(before, now) * step;
        }
        (running.last, running.last_watts, running.last_joules) = (time, watts, joules);
        if time.seconds_since(running.started) < self.seconds {
            return None;
        }
        let (counter_joules, integral_joules) = (joules - running.first_joules, running.integral_joules);
        let verdict = if watts.is_none() {
            CounterVerdict::Unchecked
        } else if (counter_joules - integral_joules).abs() <= self.tolerance * integral_joules {
            CounterVerdict::Trusted { counter_joules, integral_joules }
        } else {
            CounterVerdict::Untrusted { counter_joules, integral_joules }
        };
        self.running = None;
        Some(verdict)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a check at 10 Hz over 100 W and a counter given by `counter(seconds)`.
    fn check(power: impl Fn(f64) -> Option<f64>, counter: impl Fn(f64) -> Option<f64>) -> Option<CounterVerdict> {
        let mut check = CounterCheck::new(5.0, 0.2);
        (0..=60).find_map(|i| {
            let at = f64::from(i) / 10.0;
            check.observe(EventTime::from_seconds(1000.0 + at), power(at), counter(at))
        })
    }

    #[test]
    fn a_good_counter_is_trusted_with_its_error() {
        let verdict = check(|_| Some(100.0), |t| Some(5.0 + 103.0 * t)).unwrap();
        assert!(verdict.trusted());
        assert!((verdict.error_ratio().unwrap() - 0.03).abs() < 1e-9);
    }

    #[test]
    fn still_counters_other_units_and_whole_modules_are_not_trusted() {
        for per_second in [0.0, 0.1, 100_000.0, 160.0] {
            let verdict = check(|_| Some(100.0), |t| Some(7.0 + per_second * t)).unwrap();
            assert!(!verdict.trusted(), "{per_second}");
        }
    }

    #[test]
    fn without_power_the_counter_is_unchecked_and_without_a_counter_nothing_is_reported() {
        assert_eq!(check(|_| None, Some), Some(CounterVerdict::Unchecked));
        assert_eq!(check(|_| Some(100.0), |_| None), None);
    }

    #[test]
    fn a_fall_begins_anew() {
        let reset = check(|_| Some(100.0), |t| Some(if t < 0.5 { 1e6 + 100.0 * t } else { 100.0 * t }));
        assert!(reset.unwrap().trusted());
        // Falls all the time: never a verdict.
        assert_eq!(check(|_| Some(100.0), |t| Some(1e6 - t)), None);
    }
}
