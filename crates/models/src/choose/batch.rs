//! Batch size as a knob: what counts is the energy until a target is reached, not that of an epoch.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// An epoch at a batch size and a setting.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BatchPoint {
    pub batch_size: u64,
    /// Cap in watts or clock in MHz.
    pub setting: f64,
    pub seconds_per_epoch: f64,
    pub joules_per_epoch: f64,
}

/// Epochs that one training run took to its target.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EpochsToTarget {
    pub batch_size: u64,
    /// `None` if the run never reached it.
    pub epochs: Option<f64>,
}

/// Energy and time until the target, at a batch size and a setting.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct BatchChoice {
    pub batch_size: u64,
    pub setting: f64,
    /// Mean over the runs.
    pub epochs: f64,
    pub runs: usize,
    pub energy_joules: f64,
    pub duration_seconds: f64,
}

/// A batch size that cannot be chosen, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExcludedBatch {
    pub batch_size: u64,
    pub reason: String,
}

/// Cost of training to a target.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EnergyToAccuracy {
    /// Least energy; `None` if no batch size is eligible.
    pub min_energy: Option<BatchChoice>,
    /// Least time; the price of the one above.
    pub min_duration: Option<BatchChoice>,
    /// Best setting by energy of every eligible batch size, in order of size.
    pub by_batch_size: Vec<BatchChoice>,
    pub excluded: Vec<ExcludedBatch>,
}

/// Energy to accuracy = mean epochs to the target × seconds an epoch × watts. A batch size is eligible only if every run of it
/// reached the target: one that sometimes fails costs its retries, which were not measured.
pub fn energy_to_accuracy(points: &[BatchPoint], runs: &[EpochsToTarget]) -> EnergyToAccuracy {
    let mut by_size: BTreeMap<u64, (Vec<&BatchPoint>, Vec<Option<f64>>)> = BTreeMap::new();
    for point in points {
        by_size.entry(point.batch_size).or_default().0.push(point);
    }
    for run in runs {
        by_size.entry(run.batch_size).or_default().1.push(run.epochs);
    }
    let mut all = Vec::new();
    let mut by_batch_size = Vec::new();
    let mut excluded = Vec::new();
    for (batch_size, (points, runs)) in by_size {
        let mut exclude = |reason: String| excluded.push(ExcludedBatch { batch_size, reason });
        let failed = runs.iter().filter(|epochs| epochs.is_none()).count();
        if runs.is_empty() {
            exclude("no training run with it is known".to_owned());
        } else if failed > 0 {
            exclude(format!("{failed} of {} training runs never reached the target", runs.len()));
        } else if points.is_empty() {
            exclude("time and power of an epoch were not measured".to_owned());
        } else {
            let epochs = runs.iter().flatten().sum::<f64>() / runs.len() as f64;
            let choice = |point: &&BatchPoint| BatchChoice {
                batch_size,
                setting: point.setting,
                epochs,
                runs: runs.len(),
                energy_joules: epochs * point.joules_per_epoch,
                duration_seconds: epochs * point.seconds_per_epoch,
            };
            let choices: Vec<BatchChoice> = points.iter().map(choice).collect();
            by_batch_size.extend(least(&choices, |choice| choice.energy_joules));
            all.extend(choices);
        }
    }
    EnergyToAccuracy {
        min_energy: least(&all, |choice| choice.energy_joules),
        min_duration: least(&all, |choice| choice.duration_seconds),
        by_batch_size,
        excluded,
    }
}

/// Ties to the higher setting.
fn least(choices: &[BatchChoice], of: impl Fn(&BatchChoice) -> f64) -> Option<BatchChoice> {
    choices.iter().copied().min_by(|a, b| of(a).total_cmp(&of(b)).then(b.setting.total_cmp(&a.setting)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_size_whose_runs_sometimes_fail_is_no_bargain() {
        let point = |batch_size, setting, seconds_per_epoch, joules_per_epoch| BatchPoint {
            batch_size,
            setting,
            seconds_per_epoch,
            joules_per_epoch,
        };
        let points = [
            point(32, 250.0, 10.0, 2000.0),
            point(32, 150.0, 12.0, 1600.0),
            point(64, 150.0, 8.0, 1000.0),
            point(128, 150.0, 5.0, 700.0),
            point(256, 150.0, 5.0, 10.0),
        ];
        let run = |batch_size, epochs| EpochsToTarget { batch_size, epochs };
        let runs = [
            run(32, Some(10.0)),
            run(32, Some(12.0)),
            run(64, Some(20.0)),
            run(128, Some(20.0)),
            run(128, None),
            run(512, Some(1.0)),
        ];
        let found = energy_to_accuracy(&points, &runs);
        let best = found.min_energy.unwrap();
        assert_eq!((best.batch_size, best.setting, best.epochs, best.energy_joules), (32, 150.0, 11.0, 17_600.0));
        assert_eq!(found.min_duration.unwrap().setting, 250.0);
        assert_eq!(found.by_batch_size.len(), 2);
        let reasons: Vec<_> = found.excluded.iter().map(|e| (e.batch_size, e.reason.as_str())).collect();
        assert_eq!(
            reasons,
            [
                (128, "1 of 2 training runs never reached the target"),
                (256, "no training run with it is known"),
                (512, "time and power of an epoch were not measured"),
            ]
        );
        assert_eq!(energy_to_accuracy(&[], &[]).min_energy, None);
    }
}
