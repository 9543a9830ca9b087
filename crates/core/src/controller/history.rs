use std::collections::VecDeque;

use eadt_schemas::EventTime;
use eadt_schemas::v1::{EfficiencyWindow, Meter, Workload};
use serde::{Deserialize, Serialize};

use super::PowerReading;

/// The figures of a usable window.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct MeasuredWindow {
    pub end: EventTime,
    pub samples_per_second: f64,
    /// Power attributed to the whole workload.
    pub watts: f64,
    pub watts_per_gpu: f64,
}

impl MeasuredWindow {
    /// Returns the window's figures, or why the window is not used.
    pub fn from_event(window: &EfficiencyWindow, coverage_min_ratio: f64) -> Result<Self, String> {
        if window.gap {
            return Err("events of this window were deleted from the log before they were read: the window is not used".into());
        }
        if window.restarted {
            return Err("the workload was restarting in this window: the window is not used".into());
        }
        for (what, ratio) in [("energy", window.energy_coverage_ratio), ("progress", window.progress_coverage_ratio)] {
            if ratio.is_nan() || ratio < coverage_min_ratio {
                let (known, needed) = (100.0 * ratio, 100.0 * coverage_min_ratio);
                return Err(format!(
                    "{what} is known for {known:.0} % of this window, below {needed:.0} %: the window is not used"
                ));
            }
        }
        if matches!(window.meter, Meter::Node | Meter::Wall) {
            return Err(
                "power is measured for a whole server, but the thresholds are those of a GPU: the window is not used".into()
            );
        }
        let (Some(samples_per_second), Some(watts)) = (window.samples_per_second, window.mean_power_watts) else {
            return Err("power or throughput of this window is unknown: the window is not used".into());
        };
        let per_gpu = window.mean_power_per_gpu_watts.or_else(|| (window.gpus > 0).then(|| watts / f64::from(window.gpus)));
        match per_gpu {
            Some(watts_per_gpu) if watts > 0.0 && watts_per_gpu > 0.0 && samples_per_second >= 0.0 => {
                Ok(Self { end: window.window_end, samples_per_second, watts, watts_per_gpu })
            }
            _ => Err("power of this window is zero or its GPUs are unknown: the window is not used".into()),
        }
    }

    /// Returns samples per second and watt.
    pub fn efficiency(&self) -> f64 {
        self.samples_per_second / self.watts
    }

    /// Returns the power to compare, and whose it is in words.
    pub fn power(&self, reading: PowerReading) -> (f64, &'static str) {
        select_power(reading, self.watts, self.watts_per_gpu)
    }

    /// Medians of each figure over windows.
    /// The same of a window in the workload's present layout; of any other one, why it cannot be compared.
    pub fn of_layout(window: &EfficiencyWindow, workload: &Workload, coverage_min_ratio: f64) -> Result<Self, String> {
        let measured = Self::from_event(window, coverage_min_ratio)?;
        match window.generation {
            Some(generation) if generation == workload.generation => Ok(measured),
            Some(_) => Err("the layout was changed after this window: the window is not used".into()),
            None => Err("the layout of this window is not known: the window is not used".into()),
        }
    }

    pub fn median<'a>(windows: impl IntoIterator<Item = &'a Self>) -> Option<Medians> {
        let windows: Vec<&Self> = windows.into_iter().collect();
        let end = windows.iter().map(|window| window.end).max()?;
        let of = |figure: fn(&Self) -> f64| median(windows.iter().map(|window| figure(window)).collect());
        Some(Medians {
            end,
            windows: windows.len(),
            samples_per_second: of(|w| w.samples_per_second),
            watts: of(|w| w.watts),
            watts_per_gpu: of(|w| w.watts_per_gpu),
            efficiency: of(Self::efficiency),
        })
    }
}

/// Medians over some windows; each figure has its own.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Medians {
    pub end: EventTime,
    pub windows: usize,
    pub samples_per_second: f64,
    pub watts: f64,
    pub watts_per_gpu: f64,
    pub efficiency: f64,
}

impl Medians {
    /// Returns the power to compare, and whose it is in words.
    pub fn power(&self, reading: PowerReading) -> (f64, &'static str) {
        select_power(reading, self.watts, self.watts_per_gpu)
    }

    /// Returns J/sample; `None` if nothing was processed.
    pub fn joules_per_sample(&self) -> Option<f64> {
        (self.efficiency > 0.0).then(|| 1.0 / self.efficiency)
    }
}

fn select_power(reading: PowerReading, total: f64, per_gpu: f64) -> (f64, &'static str) {
    match reading {
        PowerReading::PerGpu => (per_gpu, "per GPU"),
        PowerReading::Total => (total, "in all"),
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { f64::midpoint(values[middle - 1], values[middle]) }
}

/// The last usable windows of one generation of the layout.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct RecentWindows {
    pub generation: Option<u64>,
    pub windows: VecDeque<MeasuredWindow>,
    /// Usable windows that are still to be left out.
    pub warming_up: u32,
}

impl RecentWindows {
    /// Forgets all windows; the next ones warm up.
    pub fn reset(&mut self, warm_up_windows: u32) {
        self.windows.clear();
        self.warming_up = warm_up_windows;
    }

    /// Adds a window, unless it warms up; gives whether it was added. Windows that lie too far back go.
    pub fn add(&mut self, measured: MeasuredWindow, keep: u32, window_seconds: f64) -> bool {
        let oldest = 2.0 * f64::from(keep) * window_seconds;
        self.windows.retain(|window| measured.end.seconds_since(window.end) < oldest);
        if self.warming_up > 0 {
            self.warming_up -= 1;
            return false;
        }
        self.windows.push_back(measured);
        while self.windows.len() > keep as usize {
            self.windows.pop_front();
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_of_odd_and_even_counts() {
        assert_eq!(median(vec![5.0, 1.0, 3.0]), 3.0);
        assert_eq!(median(vec![4.0, 1.0, 3.0, 2.0]), 2.5);
        assert_eq!(median(vec![7.0]), 7.0);
    }

    #[test]
    fn windows_far_back_are_forgotten() {
        let at = |seconds: f64| MeasuredWindow {
            end: EventTime::from_seconds(seconds),
            samples_per_second: 1.0,
            watts: 1.0,
            watts_per_gpu: 1.0,
        };
        let mut recent = RecentWindows::default();
        for seconds in [60.0, 120.0, 180.0] {
            assert!(recent.add(at(seconds), 5, 60.0));
        }
        // Twice the time of five windows: entries ten minutes old are dropped.
        recent.add(at(719.0), 5, 60.0);
        assert_eq!(recent.windows.len(), 3);
        recent.add(at(720.0), 5, 60.0);
        assert_eq!(recent.windows.front().map(|oldest| oldest.end), Some(EventTime::from_seconds(180.0)));
        recent.reset(1);
        assert!(!recent.add(at(780.0), 5, 60.0));
        assert!(recent.add(at(840.0), 5, 60.0));
    }

    fn window() -> EfficiencyWindow {
        EfficiencyWindow {
            energy_coverage_ratio: 1.0,
            progress_coverage_ratio: 1.0,
            samples_per_second: Some(45.0),
            mean_power_watts: Some(900.0),
            mean_power_per_gpu_watts: Some(300.0),
            gpus: 3,
            ..EfficiencyWindow::default()
        }
    }

    #[test]
    fn a_window_is_usable_if_enough_of_it_is_known() {
        let of = |ratio| MeasuredWindow::from_event(&EfficiencyWindow { progress_coverage_ratio: ratio, ..window() }, 0.9);
        assert!(of(0.9).is_ok());
        assert_eq!(of(0.89).unwrap_err(), "progress is known for 89 % of this window, below 90 %: the window is not used");
        assert_eq!(of(0.25).unwrap_err(), "progress is known for 25 % of this window, below 90 %: the window is not used");
    }

    #[test]
    fn power_of_a_gpu_is_the_windows_own_or_that_of_all_over_their_number() {
        let of = |mean_power_per_gpu_watts, gpus| {
            MeasuredWindow::from_event(&EfficiencyWindow { mean_power_per_gpu_watts, gpus, ..window() }, 0.9)
                .map(|measured| measured.watts_per_gpu)
        };
        assert_eq!(of(Some(250.0), 3), Ok(250.0));
        assert_eq!(of(None, 3), Ok(300.0));
        for unusable in [of(None, 0), of(Some(0.0), 3)] {
            assert!(unusable.unwrap_err().contains("is zero or its GPUs are unknown"));
        }
    }

    #[test]
    fn where_nothing_was_processed_a_sample_has_no_energy() {
        let medians = |samples_per_second| {
            let measured = MeasuredWindow { end: EventTime::default(), samples_per_second, watts: 900.0, watts_per_gpu: 300.0 };
            MeasuredWindow::median([&measured]).and_then(|medians| medians.joules_per_sample())
        };
        assert_eq!((medians(45.0), medians(0.0)), (Some(20.0), None));
    }
}
