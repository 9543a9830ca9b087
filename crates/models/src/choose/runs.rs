//! Runs of one setting into one operating point.

use serde::Serialize;

use crate::stats::{median, spread};

/// One run of a fixed amount of work.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FixedWorkRun {
    pub duration_seconds: f64,
    pub energy_joules: f64,
    /// The first of all runs of its group: caches, clocks and temperature differ from later runs.
    pub cold: bool,
}

/// The reason why a run was left out.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DroppedRun {
    /// The first run of its group, if its setting has others.
    Cold,
    /// Time or energy is this part away from the median of its setting's runs.
    Outlier { distance_ratio: f64 },
}

/// The combined figures of the runs of a setting.
#[derive(Debug, Clone, PartialEq)]
pub struct CombinedRuns {
    /// Median of the kept runs.
    pub duration_seconds: f64,
    pub energy_joules: f64,
    /// Largest less least over the median of the kept runs; `None` of a single run.
    pub duration_spread_ratio: Option<f64>,
    pub energy_spread_ratio: Option<f64>,
    /// Indices of the kept runs.
    pub accepted: Vec<usize>,
    pub dropped: Vec<(usize, DroppedRun)>,
}

/// A run is an outlier beyond this many standard deviations (by the median distance) and this part of the median.
const DEVIATIONS: f64 = 5.0;
const DISTANCE_MIN: f64 = 0.10;
/// If there are fewer runs, it is not known which one is off.
const RUNS_MIN: usize = 3;

/// The rule: the cold run is dropped if its setting has another run; then, of at least three runs, those are dropped whose time
/// or energy lies more than 10 % and more than five standard deviations from the median; the rest is combined by the
/// median. `None` for no runs.
pub fn combine(runs: &[FixedWorkRun]) -> Option<CombinedRuns> {
    let mut dropped = Vec::new();
    let mut accepted: Vec<usize> = (0..runs.len()).collect();
    if runs.len() > 1 {
        accepted.retain(|&index| {
            if runs[index].cold {
                dropped.push((index, DroppedRun::Cold));
            }
            !runs[index].cold
        });
        // All runs are marked as cold.
        if accepted.is_empty() {
            return None;
        }
    }
    let seconds: Vec<f64> = accepted.iter().map(|&index| runs[index].duration_seconds).collect();
    let joules: Vec<f64> = accepted.iter().map(|&index| runs[index].energy_joules).collect();
    if accepted.len() >= RUNS_MIN {
        let distance = |values: &[f64], value: f64| {
            let (middle, deviation) = (median(&mut values.to_vec())?, spread(values)?);
            let distance = (value - middle).abs();
            (distance > (DEVIATIONS * deviation).max(DISTANCE_MIN * middle)).then(|| distance / middle)
        };
        accepted.retain(|&index| {
            let off = distance(&seconds, runs[index].duration_seconds).or_else(|| distance(&joules, runs[index].energy_joules));
            if let Some(distance_ratio) = off {
                dropped.push((index, DroppedRun::Outlier { distance_ratio }));
            }
            off.is_none()
        });
    }
    let of = |value: fn(&FixedWorkRun) -> f64| {
        let mut values: Vec<f64> = accepted.iter().map(|&index| value(&runs[index])).collect();
        let middle = median(&mut values)?;
        let wide = (values.len() > 1).then(|| (values[values.len() - 1] - values[0]) / middle);
        Some((middle, wide))
    };
    let (duration_seconds, duration_spread_ratio) = of(|run| run.duration_seconds)?;
    let (energy_joules, energy_spread_ratio) = of(|run| run.energy_joules)?;
    Some(CombinedRuns { duration_seconds, energy_joules, duration_spread_ratio, energy_spread_ratio, accepted, dropped })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(duration_seconds: f64, cold: bool) -> FixedWorkRun {
        FixedWorkRun { duration_seconds, energy_joules: 100.0 * duration_seconds, cold }
    }

    #[test]
    fn the_cold_run_goes_and_so_does_one_that_is_far_off() {
        let combined =
            combine(&[run(18.0, true), run(10.0, false), run(10.2, false), run(10.1, false), run(14.0, false)]).unwrap();
        assert_eq!(combined.accepted, [1, 2, 3]);
        assert_eq!(combined.dropped[0], (0, DroppedRun::Cold));
        assert!(matches!(combined.dropped[1], (4, DroppedRun::Outlier { distance_ratio }) if distance_ratio > 0.3));
        assert_eq!(combined.duration_seconds, 10.1);
        assert!((combined.duration_spread_ratio.unwrap() - 0.2 / 10.1).abs() < 1e-12);
    }

    #[test]
    fn what_is_undecided_is_kept() {
        let only = combine(&[run(18.0, true)]).unwrap();
        assert_eq!((only.accepted.len(), only.duration_spread_ratio), (1, None), "the only run is better than none");
        let two = combine(&[run(10.0, false), run(20.0, false)]).unwrap();
        assert_eq!(two.accepted.len(), 2, "which of two is off?");
        assert_eq!(combine(&[]), None);
    }
}
