//! A clock for each phase, found by trying.
//!
//! In each phase the governor first sees the speed at the highest clock, then lowers the clock step by step while joules per
//! sample fall and the speed stays within the limit; where they do not, it goes back, tries half the step, and holds
//! the best clock once the board has none between. It remembers each phase's clock, so that a phase that comes back starts there. Speed and power that change by themselves
//! make it look again. It never raises the clock of a GPU that is hot or throttled.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Phase;

/// The clocks that may be set.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Clocks {
    pub min_mhz: f64,
    pub max_mhz: f64,
    /// Distance of two clocks.
    pub step_mhz: f64,
}

/// Settings of the governor.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GovernorSettings {
    /// Time over that at the highest clock, less 1. Default 0.05.
    pub max_slowdown_ratio: f64,
    /// Lowest clock over the highest. Default 0.7.
    pub min_ratio: f64,
    /// First step as a part of the highest clock, rounded to the board's own steps; halved where it was too long. Default 0.05.
    pub step_ratio: f64,
    /// Windows that are averaged at a clock before it is judged. Default 3.
    pub windows: u32,
    /// Joules per sample must fall by this part for a step to count. Default 0.005.
    pub gain_ratio: f64,
    /// Speed at the held clock that changes by this part makes it learn anew. Default 0.08.
    pub relearn_ratio: f64,
    /// From this temperature in °C on, the clock is not raised. Default 80.
    pub hot_celsius: f64,
}

impl Default for GovernorSettings {
    fn default() -> Self {
        Self {
            max_slowdown_ratio: 0.05,
            min_ratio: 0.7,
            step_ratio: 0.05,
            windows: 3,
            gain_ratio: 0.005,
            relearn_ratio: 0.08,
            hot_celsius: 80.0,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum InvalidSettings {
    #[error("{name} is {value}; it must be {expected}")]
    Value { name: &'static str, value: f64, expected: &'static str },
}

/// One window of a workload.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reading {
    pub phase: Phase,
    pub samples_per_second: f64,
    pub watts: f64,
    /// Of the warmest GPU; `None`: not known.
    pub temperature_celsius: Option<f64>,
    /// A thermal slowdown was active.
    pub throttled: bool,
}

/// What to set, and why.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Order {
    pub clock_mhz: f64,
    pub reason: String,
}

/// What is known of one phase.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
struct Known {
    /// Speed and joules per sample at the highest clock.
    base: Option<(f64, f64)>,
    /// Joules per sample at the best clock so far.
    best_joules: f64,
    /// Clock to hold; while it is sought, the best so far.
    best_mhz: f64,
    /// Speed there.
    best_speed: f64,
    /// Lowest clock that was judged good or equal: from here it goes lower.
    from_mhz: f64,
    /// By how much to go lower next; halved where a step was too long.
    step_mhz: f64,
    /// Found; held until speed drifts.
    found: bool,
}

/// State of the governor of one workload; serialisable, so that a restart goes on where it was.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Governor {
    clock_mhz: Option<f64>,
    phase: Option<Phase>,
    known: BTreeMap<Phase, Known>,
    /// Windows at this clock in this phase: count, sums of speed and watts. The one in which the clock changed is not among them.
    count: u32,
    speed_sum: f64,
    watts_sum: f64,
    settling: bool,
}

impl GovernorSettings {
    pub fn check(&self) -> Result<(), InvalidSettings> {
        let checks = [
            ("max_slowdown_ratio", self.max_slowdown_ratio, 0.0..=1.0, "within 0 and 1"),
            ("min_ratio", self.min_ratio, 0.1..=1.0, "within 0.1 and 1"),
            ("step_ratio", self.step_ratio, 0.005..=0.5, "within 0.005 and 0.5"),
            ("gain_ratio", self.gain_ratio, 0.0..=0.2, "within 0 and 0.2"),
            ("relearn_ratio", self.relearn_ratio, 0.01..=1.0, "within 0.01 and 1"),
            ("hot_celsius", self.hot_celsius, 30.0..=120.0, "within 30 and 120"),
            ("windows", f64::from(self.windows), 1.0..=60.0, "within 1 and 60"),
        ];
        match checks.into_iter().find(|(_, value, range, _)| !range.contains(value)) {
            Some((name, value, _, expected)) => Err(InvalidSettings::Value { name, value, expected }),
            None => Ok(()),
        }
    }
}

impl Clocks {
    /// The nearest clock that can be set and is not above `mhz`.
    fn at_most(&self, mhz: f64) -> f64 {
        let below = ((self.max_mhz - mhz).max(0.0) / self.step_mhz - 1e-9).ceil();
        (self.max_mhz - below * self.step_mhz).max(self.min_mhz)
    }

    fn floor(&self, settings: &GovernorSettings) -> f64 {
        // Rounded up: the ratio is a limit.
        let lowest = settings.min_ratio * self.max_mhz;
        let below = self.at_most(lowest);
        if below >= lowest - 1e-9 { below } else { (below + self.step_mhz).min(self.max_mhz) }
    }
}

impl Governor {
    /// The clock that it last ordered; `None`: none yet.
    pub fn clock_mhz(&self) -> Option<f64> {
        self.clock_mhz
    }

    /// Takes a complete window. `Some` where the clock has to change.
    pub fn observe(&mut self, settings: &GovernorSettings, clocks: &Clocks, reading: &Reading) -> Option<Order> {
        let useful = reading.samples_per_second > 0.0 && reading.watts > 0.0;
        if !useful || !reading.samples_per_second.is_finite() || !reading.watts.is_finite() {
            return None;
        }
        let hot = reading.throttled || reading.temperature_celsius.is_some_and(|celsius| celsius >= settings.hot_celsius);
        if self.phase != Some(reading.phase) {
            self.phase = Some(reading.phase);
            self.forget_windows();
            let target = self.known.get(&reading.phase).filter(|known| known.base.is_some()).map(|known| known.best_mhz);
            let reason = match target {
                Some(_) => format!("{} phase: its clock is known", reading.phase.name()),
                None => format!("{} phase: its speed at the highest clock is not known yet", reading.phase.name()),
            };
            return self.order(target.unwrap_or(clocks.max_mhz), hot, reason);
        }
        if std::mem::take(&mut self.settling) {
            return None;
        }
        self.count += 1;
        self.speed_sum += reading.samples_per_second;
        self.watts_sum += reading.watts;
        // Too slow in one window by far is not waited for.
        let base = self.known.get(&reading.phase).and_then(|known| known.base);
        let far = base.is_some_and(|(speed, _)| {
            reading.samples_per_second * (1.0 + settings.max_slowdown_ratio)
                < speed * (1.0 - settings.max_slowdown_ratio.max(0.05))
        });
        if self.count < settings.windows && !far {
            return None;
        }
        let count = f64::from(self.count);
        let (speed, joules) = (self.speed_sum / count, self.watts_sum / self.speed_sum);
        self.forget_windows();
        self.judge(settings, clocks, reading.phase, (speed, joules), hot)
    }

    fn judge(
        &mut self,
        settings: &GovernorSettings,
        clocks: &Clocks,
        phase: Phase,
        (speed, joules): (f64, f64),
        hot: bool,
    ) -> Option<Order> {
        let clock = self.clock_mhz.unwrap_or(clocks.max_mhz);
        let mut known = self.known.get(&phase).copied().unwrap_or_default();
        let step = (settings.step_ratio * clocks.max_mhz / clocks.step_mhz).round().max(1.0) * clocks.step_mhz;
        let floor = clocks.floor(settings);
        let lower = |mhz: f64, step: f64| clocks.at_most(mhz - step).max(floor);
        let Some((base_speed, _)) = known.base else {
            if clock < clocks.max_mhz - 1e-9 {
                // A hot GPU could not be shown the highest clock: what it does now is no base.
                return self.order(clocks.max_mhz, hot, format!("{} phase: learning its speed", phase.name()));
            }
            if hot {
                return None;
            }
            known = Known {
                base: Some((speed, joules)),
                best_joules: joules,
                best_mhz: clock,
                best_speed: speed,
                from_mhz: clock,
                step_mhz: step,
                found: false,
            };
            let target = lower(clock, step);
            known.found = target >= clock - 1e-9;
            self.known.insert(phase, known);
            return self.order(
                target,
                hot,
                format!("{} phase: {joules:.4} J/sample at the highest clock, trying less", phase.name()),
            );
        };
        let slowdown = base_speed / speed - 1.0;
        let kept = slowdown <= settings.max_slowdown_ratio;
        if known.found {
            let drift = (speed / known.best_speed - 1.0).abs();
            if drift <= settings.relearn_ratio && kept {
                return None;
            }
            self.known.insert(phase, Known::default());
            let why = if kept { "speed changed by itself" } else { "slower than allowed" };
            return self.order(
                clocks.max_mhz,
                hot,
                format!("{} phase: {why} ({:.1} %), learning anew", phase.name(), 100.0 * drift),
            );
        }
        let better = joules < known.best_joules * (1.0 - settings.gain_ratio);
        // A power cap holds the clock lower than this one: neither speed nor energy has changed, and lower may still be better.
        let same = joules < known.best_joules * (1.0 + settings.gain_ratio)
            && (speed / known.best_speed - 1.0).abs() <= settings.gain_ratio;
        if kept && (better || same) {
            known.from_mhz = clock;
            if better {
                known = Known { best_joules: joules, best_mhz: clock, best_speed: speed, ..known };
            }
            let target = lower(clock, known.step_mhz);
            known.found = target >= clock - 1e-9;
            self.known.insert(phase, known);
            if known.found {
                let reason = format!("{} phase: the lowest clock is reached, holding the best", phase.name());
                return self.order(known.best_mhz, hot, reason);
            }
            let reason =
                format!("{} phase: {joules:.4} J/sample at {:.1} % more time, trying less", phase.name(), 100.0 * slowdown);
            return self.order(target, hot, reason);
        }
        let why =
            if kept { "joules per sample no longer fall".to_owned() } else { format!("{:.1} % more time", 100.0 * slowdown) };
        known.step_mhz = (known.step_mhz / 2.0 / clocks.step_mhz).floor() * clocks.step_mhz;
        known.found = known.step_mhz < clocks.step_mhz;
        self.known.insert(phase, known);
        let (target, next) = if known.found {
            (known.best_mhz, "holding the best clock")
        } else {
            (lower(known.from_mhz, known.step_mhz), "trying a smaller step")
        };
        self.order(target, hot, format!("{} phase: {why} at {clock} MHz, {next}", phase.name()))
    }

    fn forget_windows(&mut self) {
        (self.count, self.speed_sum, self.watts_sum) = (0, 0.0, 0.0);
    }

    /// A raise of a hot GPU is not ordered; it comes up again when the phase is judged next.
    fn order(&mut self, target: f64, hot: bool, reason: String) -> Option<Order> {
        if let Some(clock) = self.clock_mhz
            && (target == clock || (hot && target > clock))
        {
            return None;
        }
        if self.clock_mhz.is_none() && hot {
            return None;
        }
        self.clock_mhz = Some(target);
        self.settling = true;
        self.forget_windows();
        Some(Order { clock_mhz: target, reason })
    }
}

#[cfg(test)]
mod tests {
    use eadt_simulator::gpu::{Board, BoardModel, Limits, Runner, WorkloadProfile, solve};
    use proptest::prelude::*;

    use super::*;

    const CLOCKS: Clocks = Clocks { min_mhz: 510.0, max_mhz: 1410.0, step_mhz: 15.0 };

    /// Simulated A100 with one process; the window that the governor would see.
    fn window(profile: WorkloadProfile, phase: Phase, clock_mhz: f64) -> Reading {
        let board: &Board = BoardModel::A100.board();
        let limits = Limits { clock_mhz: Some(clock_mhz), power_watts: None };
        let steady = solve(board, &[Runner { profile, share: 1.0 }], limits, 55.0);
        Reading {
            phase,
            samples_per_second: steady.samples_per_second[0],
            watts: steady.power_watts,
            temperature_celsius: Some(55.0),
            throttled: false,
        }
    }

    fn settle(governor: &mut Governor, profile: WorkloadProfile, phase: Phase, windows: u32) -> Reading {
        let settings = GovernorSettings::default();
        let mut reading = window(profile, phase, governor.clock_mhz().unwrap_or(CLOCKS.max_mhz));
        for _ in 0..windows {
            governor.observe(&settings, &CLOCKS, &reading);
            reading = window(profile, phase, governor.clock_mhz().unwrap_or(CLOCKS.max_mhz));
        }
        reading
    }

    #[test]
    fn memory_bound_work_ends_at_a_lower_clock_than_compute_bound_work_and_both_keep_the_limit() {
        let mut governor = Governor::default();
        let mut held = Vec::new();
        for (profile, phase) in [(WorkloadProfile::COMPUTE, Phase::Compute), (WorkloadProfile::MEMORY, Phase::Memory)] {
            let base = window(profile, phase, CLOCKS.max_mhz);
            let end = settle(&mut governor, profile, phase, 60);
            let slowdown = base.samples_per_second / end.samples_per_second - 1.0;
            assert!(slowdown <= 0.05 + 1e-9, "{phase:?}: {slowdown}");
            let saving = 1.0 - end.watts / end.samples_per_second / (base.watts / base.samples_per_second);
            assert!(saving > 0.04, "{phase:?}: saves {saving} (simulated)");
            held.push(governor.clock_mhz().unwrap());
        }
        assert!(held[1] < held[0], "{held:?}");
        // Back in the first phase its clock is known at once.
        let reading = window(WorkloadProfile::COMPUTE, Phase::Compute, held[1]);
        let order = governor.observe(&GovernorSettings::default(), &CLOCKS, &reading).unwrap();
        assert_eq!(order.clock_mhz, held[0], "{}", order.reason);
    }

    #[test]
    fn speed_that_changes_by_itself_is_learnt_anew() {
        let mut governor = Governor::default();
        settle(&mut governor, WorkloadProfile::COMPUTE, Phase::Compute, 60);
        let held = governor.clock_mhz().unwrap();
        let faster = WorkloadProfile::COMPUTE.at_rate(60.0);
        let mut orders = Vec::new();
        for _ in 0..4 {
            let reading = window(faster, Phase::Compute, governor.clock_mhz().unwrap());
            orders.extend(governor.observe(&GovernorSettings::default(), &CLOCKS, &reading));
        }
        assert_eq!(orders[0].clock_mhz, CLOCKS.max_mhz, "{orders:?}, held {held}");
    }

    #[test]
    fn restarts_where_it_was() {
        let mut governor = Governor::default();
        settle(&mut governor, WorkloadProfile::MEMORY, Phase::Memory, 11);
        let mut again: Governor = serde_json::from_str(&serde_json::to_string(&governor).unwrap()).unwrap();
        let (a, b) = (
            settle(&mut governor, WorkloadProfile::MEMORY, Phase::Memory, 30),
            settle(&mut again, WorkloadProfile::MEMORY, Phase::Memory, 30),
        );
        assert_eq!((a, governor), (b, again));
    }

    #[test]
    fn settings_that_make_no_sense_are_named() {
        let wrong = GovernorSettings { step_ratio: 5.0, ..GovernorSettings::default() };
        assert!(wrong.check().unwrap_err().to_string().starts_with("step_ratio is 5"));
        assert!(GovernorSettings::default().check().is_ok());
    }

    proptest! {
        #[test]
        fn a_hot_or_throttled_gpu_is_never_raised_and_bounds_always_hold(
            windows in prop::collection::vec((0_usize..4, 1.0..100.0, 50.0..400.0, 40.0..100.0, any::<bool>()), 1..200),
        ) {
            let (mut governor, settings) = (Governor::default(), GovernorSettings::default());
            for (phase, speed, watts, celsius, throttled) in windows {
                let before = governor.clock_mhz();
                let reading = Reading {
                    phase: Phase::ALL[phase],
                    samples_per_second: speed,
                    watts,
                    temperature_celsius: Some(celsius),
                    throttled,
                };
                let order = governor.observe(&settings, &CLOCKS, &reading);
                if let Some(order) = &order {
                    prop_assert!(order.clock_mhz >= 0.7 * CLOCKS.max_mhz - 1e-9 && order.clock_mhz <= CLOCKS.max_mhz);
                    let steps = (CLOCKS.max_mhz - order.clock_mhz) / CLOCKS.step_mhz;
                    prop_assert!((steps - steps.round()).abs() < 1e-9, "a clock that the board has");
                    if throttled || celsius >= settings.hot_celsius {
                        prop_assert!(before.is_some_and(|before| order.clock_mhz < before), "raised from {before:?} to {order:?}");
                    }
                }
            }
        }

        #[test]
        fn nonsense_is_no_reading(speed in prop_oneof![Just(f64::NAN), Just(0.0), Just(-1.0), Just(f64::INFINITY)]) {
            let mut governor = Governor::default();
            let reading =
                Reading { phase: Phase::Compute, samples_per_second: speed, watts: 100.0, temperature_celsius: None, throttled: false };
            prop_assert_eq!(governor.observe(&GovernorSettings::default(), &CLOCKS, &reading), None);
            prop_assert_eq!(governor, Governor::default());
        }
    }
}
