//! Compares fresh measurements with the promise of a choice.

use serde::{Deserialize, Serialize};

use super::{SettingMeasurement, SettingPoint};
use crate::stats::median;

/// Promise of a choice, to be checked.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PromisedChoice {
    pub reference_setting: f64,
    /// Setting of the second knob; absent if only one is turned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference_second_setting: Option<f64>,
    pub setting: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub second_setting: Option<f64>,
    pub max_slowdown_ratio: f64,
    /// Promised saving: the lower bound if there is one, otherwise the measured saving.
    pub saving_ratio: f64,
}

/// Allowed differences.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ValidationTolerances {
    /// The saving may be this much less than promised, in absolute terms. Default 0.02.
    pub saving_ratio: f64,
    /// Runs of a setting may differ in time or energy by this part of their median. Default 0.05.
    pub spread_ratio: f64,
    /// Fewer runs of a setting prove nothing. Default 2.
    pub runs: usize,
}

impl Default for ValidationTolerances {
    fn default() -> Self {
        Self { saving_ratio: 0.02, spread_ratio: 0.05, runs: 2 }
    }
}

/// Whether a promise was kept; `None` if the measurements do not decide it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PromiseVerdict {
    pub penalty_kept: Option<bool>,
    pub saving_reached: Option<bool>,
    pub stable: Option<bool>,
    pub slowdown_ratio: Option<f64>,
    pub saving_ratio: Option<f64>,
    /// Largest relative difference between runs of a setting, in time or energy.
    pub spread_ratio: Option<f64>,
    /// Text of each failed or undecided condition; empty if everything holds.
    pub problems: Vec<String>,
}

impl PromiseVerdict {
    /// Returns true if all three are proved.
    pub fn holds(&self) -> bool {
        self.penalty_kept == Some(true) && self.saving_reached == Some(true) && self.stable == Some(true)
    }
}

/// Compares medians of the fresh runs at the chosen and at the reference setting.
pub fn validate(promise: &PromisedChoice, fresh: &[SettingMeasurement], tolerances: &ValidationTolerances) -> PromiseVerdict {
    let mut verdict = PromiseVerdict {
        penalty_kept: None,
        saving_reached: None,
        stable: None,
        slowdown_ratio: None,
        saving_ratio: None,
        spread_ratio: None,
        problems: Vec::new(),
    };
    let close = |a: f64, b: f64| (a - b).abs() <= 1e-6 * b;
    let at = |setting: f64, second: Option<f64>| -> Vec<&SettingMeasurement> {
        let same_second = |m: &SettingMeasurement| match (m.second_setting, second) {
            (Some(own), Some(second)) => close(own, second),
            (own, second) => own == second,
        };
        fresh.iter().filter(|m| close(m.setting, setting) && same_second(m)).collect()
    };
    let chosen = at(promise.setting, promise.second_setting);
    let reference = at(promise.reference_setting, promise.reference_second_setting);
    let same = (promise.setting, promise.second_setting) == (promise.reference_setting, promise.reference_second_setting);
    for (what, setting, runs) in [("chosen", promise.setting, &chosen), ("reference", promise.reference_setting, &reference)] {
        if runs.len() < tolerances.runs {
            let (found, needed) = (runs.len(), tolerances.runs);
            verdict.problems.push(format!(
                "too few runs at the {what} setting {setting}: {found}, and {needed} are needed: measure it again"
            ));
        }
    }
    let (Some(new), Some(old)) = (middle(&chosen), middle(&reference)) else { return verdict };
    let slowdown = new.seconds / old.seconds - 1.0;
    let saving = 1.0 - new.joules / old.joules;
    verdict.slowdown_ratio = Some(slowdown);
    verdict.saving_ratio = Some(saving);
    let spread = spread(&chosen).max(spread(&reference));
    verdict.spread_ratio = Some(spread);
    if !verdict.problems.is_empty() {
        return verdict;
    }
    verdict.penalty_kept = Some(slowdown <= promise.max_slowdown_ratio + 1e-9);
    verdict.saving_reached = Some(same || saving >= promise.saving_ratio - tolerances.saving_ratio);
    verdict.stable = Some(spread <= tolerances.spread_ratio);
    let percent = super::percent;
    if verdict.penalty_kept == Some(false) {
        verdict.problems.push(format!("slower by {}, allowed are {}", percent(slowdown), percent(promise.max_slowdown_ratio)));
    }
    if verdict.saving_reached == Some(false) {
        verdict.problems.push(format!("saves {}, promised were {}", percent(saving), percent(promise.saving_ratio)));
    }
    if verdict.stable == Some(false) {
        verdict.problems.push(format!("runs differ by {}, allowed are {}", percent(spread), percent(tolerances.spread_ratio)));
    }
    verdict
}

fn middle(runs: &[&SettingMeasurement]) -> Option<SettingPoint> {
    Some(SettingPoint {
        setting: runs.first()?.setting,
        second: runs.first()?.second_setting,
        seconds: median(&mut runs.iter().map(|run| run.duration_seconds).collect::<Vec<_>>())?,
        joules: median(&mut runs.iter().map(|run| run.energy_joules).collect::<Vec<_>>())?,
    })
}

fn spread(runs: &[&SettingMeasurement]) -> f64 {
    let of = |value: fn(&SettingMeasurement) -> f64| {
        let mut values: Vec<f64> = runs.iter().map(|run| value(run)).collect();
        let Some(middle) = median(&mut values) else { return 0.0 };
        (values[values.len() - 1] - values[0]) / middle
    };
    of(|run| run.duration_seconds).max(of(|run| run.energy_joules))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROMISE: PromisedChoice = PromisedChoice {
        reference_setting: 1410.0,
        reference_second_setting: None,
        setting: 1200.0,
        second_setting: None,
        max_slowdown_ratio: 0.05,
        saving_ratio: 0.15,
    };

    fn runs(new: [(f64, f64); 2]) -> Vec<SettingMeasurement> {
        let run = |setting, (duration_seconds, energy_joules): (f64, f64)| SettingMeasurement {
            setting,
            second_setting: None,
            duration_seconds,
            energy_joules,
            row: 0,
        };
        vec![run(1410.0, (100.0, 1000.0)), run(1410.0, (101.0, 1010.0)), run(1200.0, new[0]), run(1200.0, new[1])]
    }

    fn judged(new: [(f64, f64); 2]) -> PromiseVerdict {
        validate(&PROMISE, &runs(new), &ValidationTolerances::default())
    }

    #[test]
    fn kept_broken_and_unstable_are_distinguished() {
        let kept = judged([(104.0, 850.0), (104.5, 852.0)]);
        assert!(kept.holds() && kept.problems.is_empty(), "{kept:?}");
        let slow = judged([(107.0, 850.0), (107.5, 852.0)]);
        assert_eq!((slow.penalty_kept, slow.saving_reached, slow.stable), (Some(false), Some(true), Some(true)));
        assert!(slow.problems[0].starts_with("slower by 6.7 %, allowed are 5.0 %"), "{slow:?}");
        let dear = judged([(104.0, 900.0), (104.0, 900.0)]);
        assert_eq!((dear.penalty_kept, dear.saving_reached), (Some(true), Some(false)));
        let unstable = judged([(96.0, 850.0), (104.0, 852.0)]);
        assert_eq!(unstable.stable, Some(false), "{unstable:?}");
        assert!(!slow.holds() && !dear.holds() && !unstable.holds());
    }

    #[test]
    fn one_run_or_none_proves_nothing() {
        let verdict = validate(&PROMISE, &runs([(104.0, 850.0), (104.5, 852.0)])[..3], &ValidationTolerances::default());
        assert_eq!((verdict.penalty_kept, verdict.stable), (None, None));
        assert!(
            !verdict.holds() && verdict.problems[0].contains("too few runs at the chosen setting 1200: 1, and"),
            "{verdict:?}"
        );
        assert!(validate(&PROMISE, &[], &ValidationTolerances::default()).slowdown_ratio.is_none());
    }

    #[test]
    fn a_kept_reference_has_nothing_to_save() {
        let promise = PromisedChoice { setting: 1410.0, saving_ratio: 0.0, ..PROMISE };
        assert!(validate(&promise, &runs([(1.0, 1.0); 2]), &ValidationTolerances::default()).holds());
    }
}
