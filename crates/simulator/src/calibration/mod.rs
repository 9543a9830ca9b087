//! Compares the GPU model with published measurements of real boards.
//!
//! In: [`Sweep`]s, speed and power of one job over power caps or SM clocks. [`fit`] finds the workload whose simulated sweep is
//! nearest, with the board's own parameters unchanged; the remainder is the model's [`SweepDeviation`]. [`page`] lists every
//! parameter with its origin and every figure with its target.

mod fit;
mod origin;
mod page;
mod sharing;

pub use fit::{SweepFit, fit};
pub use origin::{ModelParameter, ParameterOrigin, parameters};
pub use page::{CalibrationCheck, page, parameter_tables};
pub use sharing::{PairGains, equal_against_best, mean_sharing_gain};

use crate::gpu::{BoardParameters, GpuProcess, OperatingLimits, SteadyState, WorkloadProfile, solve};

/// The quantity that is varied in a [`Sweep`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SweepAxis {
    /// Power cap in watts.
    PowerLimitWatts,
    /// Highest SM clock in MHz; no power cap.
    SmClockMhz,
}

/// Means of one setting.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SweepPoint {
    /// Watts or MHz, by the [`SweepAxis`].
    pub setting: f64,
    /// Work per second, in any unit that is the same for the whole sweep. Above 0.
    pub rate: f64,
    /// Mean power of the board in watts. Above 0.
    pub power_watts: f64,
}

/// One job alone on one board at several settings.
#[derive(Debug, Clone, PartialEq)]
pub struct Sweep {
    pub name: String,
    pub knob: SweepAxis,
    pub points: Vec<SweepPoint>,
}

impl Sweep {
    /// Returns the least mean absolute deviation of the rate for any model whose rate never falls with the setting: the noise
    /// of a measured sweep for every model without noise. Settings are taken in ascending order.
    pub fn rate_noise_ratio(&self) -> f64 {
        let mut points = self.points.clone();
        points.sort_by(|a, b| a.setting.total_cmp(&b.setting));
        // A best rising sequence has measured values only, so the least cost of ending at each of them is all there is to know.
        let mut levels: Vec<f64> = points.iter().map(|point| point.rate).collect();
        levels.sort_by(f64::total_cmp);
        let mut cost = vec![0.0; levels.len()];
        for point in &points {
            let mut least = f64::INFINITY;
            for (cost, level) in cost.iter_mut().zip(&levels) {
                least = f64::min(least, *cost);
                *cost = least + (level / point.rate - 1.0).abs();
            }
        }
        cost.into_iter().fold(f64::INFINITY, f64::min) / points.len() as f64
    }
}

/// Mean absolute deviations over a sweep, as parts of the measured values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SweepDeviation {
    pub rate_ratio: f64,
    pub power_ratio: f64,
}

impl SweepDeviation {
    /// Returns the mean over several sweeps, each with the same weight; `None` without any.
    pub fn mean(all: &[Self]) -> Option<Self> {
        let count = all.len() as f64;
        let mean = |part: fn(&Self) -> f64| all.iter().map(part).sum::<f64>() / count;
        (!all.is_empty()).then(|| Self { rate_ratio: mean(|d| d.rate_ratio), power_ratio: mean(|d| d.power_ratio) })
    }
}

/// Surroundings of the boards; no source gives their temperature, so it is assumed.
const AMBIENT_CELSIUS: f64 = 30.0;

/// Returns the steady state once the temperature has settled.
fn settled(board: &BoardParameters, runners: &[GpuProcess], limits: OperatingLimits) -> SteadyState {
    let mut steady = solve(board, runners, limits, 60.0);
    for _ in 0..2 {
        let celsius = AMBIENT_CELSIUS + board.thermal_resistance * steady.power_watts;
        steady = solve(board, runners, limits, celsius);
    }
    steady
}

/// Returns the sweep as the model has it, at the settings of a measured one.
pub fn simulate(board: &BoardParameters, profile: WorkloadProfile, knob: SweepAxis, settings: &[f64]) -> Vec<SweepPoint> {
    let runner = [GpuProcess { profile, share: 1.0 }];
    let at = |setting: &f64| {
        let limits = match knob {
            SweepAxis::PowerLimitWatts => OperatingLimits { clock_mhz: None, power_watts: Some(*setting) },
            // The measured boards have limits of their own, which need not be the model's.
            SweepAxis::SmClockMhz => OperatingLimits { clock_mhz: Some(*setting), power_watts: Some(f64::INFINITY) },
        };
        let steady = settled(board, &runner, limits);
        SweepPoint { setting: *setting, rate: steady.samples_per_second[0], power_watts: steady.power_watts }
    };
    settings.iter().map(at).collect()
}

/// Returns the deviation of a workload's simulated sweep from a measured one.
pub fn deviation(board: &BoardParameters, profile: WorkloadProfile, sweep: &Sweep) -> SweepDeviation {
    let settings: Vec<f64> = sweep.points.iter().map(|point| point.setting).collect();
    let ours = simulate(board, profile, sweep.knob, &settings);
    let mean = |part: fn(&SweepPoint) -> f64| {
        let sum: f64 = sweep.points.iter().zip(&ours).map(|(measured, ours)| (part(ours) / part(measured) - 1.0).abs()).sum();
        sum / sweep.points.len() as f64
    };
    SweepDeviation { rate_ratio: mean(|point| point.rate), power_ratio: mean(|point| point.power_watts) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_falls_is_noise() {
        let noise = |rates: &[f64]| {
            let point = |(i, rate): (usize, &f64)| SweepPoint { setting: i as f64, rate: *rate, power_watts: 100.0 };
            let points = rates.iter().enumerate().map(point).collect();
            Sweep { name: String::new(), knob: SweepAxis::PowerLimitWatts, points }.rate_noise_ratio()
        };
        assert_eq!(noise(&[1.0, 1.5, 1.5, 2.0]), 0.0);
        // One of the two must give way, and the larger one does it more cheaply, by a twentieth of itself.
        assert!((noise(&[1.0, 2.0, 1.9, 3.0]) - 0.1 / 2.0 / 4.0).abs() < 1e-12);
    }
}
