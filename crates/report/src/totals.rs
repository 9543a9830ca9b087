//! What all workloads together took and saved.

use serde::{Deserialize, Serialize};

use crate::WorkloadReport;
use crate::figures::per;
use crate::reporter::sum;

/// Sums over workloads. Only what is in one unit for all of them: a sample of one job is not a sample of another.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Totals {
    pub energy_joules: Option<f64>,
    /// Over the workloads whose saving is known.
    pub saving_joules: Option<f64>,
    /// `saving_joules` over what their starting layouts would have taken.
    pub saving_ratio: Option<f64>,
    /// Lower end of `saving_ratio` if the errors of all workloads went the same way: at least as wide as a 90 % interval of the sum.
    pub saving_ratio_low: Option<f64>,
    /// Upper end of `saving_ratio`, as the lower one.
    pub saving_ratio_high: Option<f64>,
    /// Energy in windows that are compared, over the energy of all workloads.
    pub compared_energy_ratio: Option<f64>,
}

impl Totals {
    /// Adds up reports of different workloads.
    pub fn of<'a>(workloads: impl IntoIterator<Item = &'a WorkloadReport>) -> Self {
        let mut sums = Sums::default();
        workloads.into_iter().for_each(|workload| sums.add(workload));
        let ratio = |joules: Option<f64>| per(joules, Some(sums.baseline_joules));
        Self {
            energy_joules: sums.energy_joules,
            saving_joules: sums.saving_joules,
            saving_ratio: ratio(sums.saving_joules),
            saving_ratio_low: ratio(sums.ends.map(|(low, _)| low)),
            saving_ratio_high: ratio(sums.ends.map(|(_, high)| high)),
            compared_energy_ratio: per(sums.compared_joules, sums.energy_joules),
        }
    }
}

#[derive(Debug, Default)]
struct Sums {
    energy_joules: Option<f64>,
    saving_joules: Option<f64>,
    /// What the starting layouts would have taken.
    baseline_joules: f64,
    compared_joules: Option<f64>,
    /// Ends of the saving in joules; without one of a workload there is none of the sum.
    ends: Option<(f64, f64)>,
    open_ended: bool,
}

impl Sums {
    fn add(&mut self, workload: &WorkloadReport) {
        self.energy_joules = sum([self.energy_joules, workload.energy_joules].into_iter());
        let in_windows = workload.energy_joules.map(|joules| joules - workload.unassigned_energy_joules.unwrap_or(0.0));
        let compared = in_windows.zip(workload.compared_energy_ratio).map(|(joules, part)| joules * part);
        self.compared_joules = sum([self.compared_joules, compared].into_iter());
        let (Some(saved), Some(ratio)) = (workload.saving_joules, workload.saving_ratio) else { return };
        // Of a ratio of zero nothing else is known; what was compared took as much as it would have.
        let baseline = if ratio == 0.0 { compared.unwrap_or(0.0) } else { saved / ratio };
        self.saving_joules = sum([self.saving_joules, Some(saved)].into_iter());
        self.baseline_joules += baseline;
        match workload.saving_ratio_low.zip(workload.saving_ratio_high) {
            Some((low, high)) if !self.open_ended => {
                let (least, most) = self.ends.unwrap_or_default();
                self.ends = Some((least + low * baseline, most + high * baseline));
            }
            _ => (self.open_ended, self.ends) = (true, None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn saved(energy: f64, saving: f64, ratio: f64, ends: Option<(f64, f64)>) -> WorkloadReport {
        WorkloadReport {
            energy_joules: Some(energy),
            saving_joules: Some(saving),
            saving_ratio: Some(ratio),
            saving_ratio_low: ends.map(|(low, _)| low),
            saving_ratio_high: ends.map(|(_, high)| high),
            compared_energy_ratio: Some(0.5),
            ..WorkloadReport::default()
        }
    }

    #[test]
    fn savings_weigh_by_what_the_starting_layouts_would_have_taken() {
        // 100 of 1000 J and 30 of 100 J.
        let rows = [saved(1800.0, 100.0, 0.1, Some((0.05, 0.15))), saved(140.0, 30.0, 0.3, Some((0.2, 0.4)))];
        let totals = Totals::of(&rows);
        let near = |value: Option<f64>, wanted: f64| assert!((value.unwrap() - wanted).abs() < 1e-12, "{totals:?}");
        near(totals.saving_ratio, 130.0 / 1100.0);
        near(totals.saving_ratio_low, 70.0 / 1100.0);
        near(totals.saving_ratio_high, 190.0 / 1100.0);
        near(totals.compared_energy_ratio, 0.5);
        assert_eq!((totals.energy_joules, totals.saving_joules), (Some(1940.0), Some(130.0)));
    }

    #[test]
    fn what_is_not_known_is_no_zero() {
        assert_eq!(Totals::of([]), Totals::default());
        let known = saved(100.0, 10.0, 0.1, None);
        let unknown = WorkloadReport { energy_joules: Some(50.0), ..WorkloadReport::default() };
        let totals = Totals::of([&known, &unknown]);
        assert_eq!((totals.energy_joules, totals.saving_joules), (Some(150.0), Some(10.0)));
        assert_eq!((totals.saving_ratio_low, totals.saving_ratio_high), (None, None), "one without an interval leaves none");
        assert_eq!(Totals::of([&unknown]).saving_ratio, None);
    }
}
