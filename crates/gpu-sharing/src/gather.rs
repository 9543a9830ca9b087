//! Profiles without a laboratory: what workloads did while they had a GPU to themselves.

use std::collections::BTreeMap;

use eadt_schemas::v1::{EfficiencyWindow, Workload};
use serde::{Deserialize, Serialize};

use crate::{MetricValues, ProfileError, ProfileMetric, SoloPoint, SoloProfile};

/// Requirements on a window, and the number of windows that are kept.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GatherSettings {
    /// A window with less known energy or progress than this part of its time is passed over. 0 to 1. Default 0.9.
    pub coverage_min_ratio: f64,
    /// A share is known after this many windows. At least 1. Default 3.
    pub windows_min: u32,
    /// Number of windows from which older ones lose weight. At least 1. Default 60.
    pub windows_max: u32,
}

impl Default for GatherSettings {
    fn default() -> Self {
        Self { coverage_min_ratio: 0.9, windows_min: 3, windows_max: 60 }
    }
}

/// The reason why a window does not count for a workload's profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SkippedWindow {
    /// Another workload used a GPU at the same time.
    Shared,
    /// Several processes of the workload share a GPU.
    SeveralProcesses,
    /// A power cap was set: speed and power are those of the cap.
    Capped,
    /// The layout changed, or inputs are missing.
    Unsteady,
    /// Too little energy or progress is known.
    Uncovered,
    /// The window, or its workload's layout, lacks a value.
    Incomplete,
}

/// Checks whether a window is usable, whether its workload was alone or not.
pub(crate) fn check_usable(window: &EfficiencyWindow, coverage_min_ratio: f64) -> Result<(), SkippedWindow> {
    if window.restarted || window.gap {
        return Err(SkippedWindow::Unsteady);
    }
    // A value that is not a number covers nothing.
    let is_covered =
        [window.energy_coverage_ratio, window.progress_coverage_ratio].iter().all(|ratio| *ratio >= coverage_min_ratio);
    if is_covered { Ok(()) } else { Err(SkippedWindow::Uncovered) }
}

/// Running means of the windows at one share and clock.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct RunningMean {
    windows: u32,
    samples_per_second: f64,
    power_watts: f64,
    counters: MetricValues,
}

/// Share, and the clock in whole kHz if it is held down: keys must be comparable.
type ShareSetting = (u32, Option<u64>);

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
struct GatheredPoints {
    gpu_model: String,
    means: Vec<(ShareSetting, RunningMean)>,
}

/// Everything gathered so far, by workload. Windows come in the order of their ends.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ProfileGatherer {
    workloads: BTreeMap<String, GatheredPoints>,
}

/// A workload changes shares and clocks rarely; more settings than this are not kept.
const MAX_SETTINGS: usize = 256;

impl ProfileGatherer {
    /// Adds a window to the profile, or returns why it is skipped. `tenants`: the largest number of workloads on one of its GPUs
    /// in the window.
    pub fn observe(
        &mut self,
        window: &EfficiencyWindow,
        workload: &Workload,
        tenants: u32,
        settings: &GatherSettings,
    ) -> Result<(), SkippedWindow> {
        if tenants != 1 {
            return Err(SkippedWindow::Shared);
        }
        check_usable(window, settings.coverage_min_ratio)?;
        let layout = window.layout.as_ref().ok_or(SkippedWindow::Incomplete)?;
        if layout.power_limit_watts.is_some() {
            return Err(SkippedWindow::Capped);
        }
        let gpus = window.gpus;
        if gpus == 0 || layout.replicas.is_some_and(|replicas| replicas > gpus) {
            return Err(if gpus == 0 { SkippedWindow::Incomplete } else { SkippedWindow::SeveralProcesses });
        }
        let gpu_model = workload.gpu_model.as_ref().ok_or(SkippedWindow::Incomplete)?;
        let usable =
            |value: Option<f64>| value.filter(|value| value.is_finite() && *value > 0.0).ok_or(SkippedWindow::Incomplete);
        let rate = usable(window.samples_per_second)? / f64::from(gpus);
        let watts = usable(window.mean_power_per_gpu_watts)?;
        let share = layout.mps_thread_percentage.unwrap_or(100);
        let counters = MetricValues::of(|metric| match metric {
            ProfileMetric::SmActiveRatio => window.mean_sm_active_ratio,
            ProfileMetric::SmOccupancyRatio => window.mean_sm_occupancy_ratio,
            ProfileMetric::DramActiveRatio => window.mean_dram_active_ratio,
            ProfileMetric::MemoryBusyRatio => window.mean_memory_utilization_ratio,
            // Windows do not have them.
            ProfileMetric::Fp32ActiveRatio
            | ProfileMetric::PcieTransmitBytesPerSecond
            | ProfileMetric::PcieReceiveBytesPerSecond => None,
        });
        let setting = (share, layout.sm_clock_mhz.map(|mhz| (mhz * 1000.0).round() as u64));

        let own = self.workloads.entry(window.workload.clone()).or_default();
        if own.gpu_model != *gpu_model {
            // Figures of another board are worth nothing on this one.
            *own = GatheredPoints { gpu_model: gpu_model.clone(), means: Vec::new() };
        }
        if let Some((_, mean)) = own.means.iter_mut().find(|(known, _)| *known == setting) {
            mean.windows = (mean.windows + 1).min(settings.windows_max);
            let n = f64::from(mean.windows);
            let moved = |old: f64, new: f64| old + (new - old) / n;
            mean.samples_per_second = moved(mean.samples_per_second, rate);
            mean.power_watts = moved(mean.power_watts, watts);
            let old = mean.counters;
            mean.counters = MetricValues::of(|metric| Some(moved(old.get(metric)?, counters.get(metric)?)));
        } else if own.means.len() < MAX_SETTINGS {
            own.means.push((setting, RunningMean { windows: 1, samples_per_second: rate, power_watts: watts, counters }));
            own.means.sort_by_key(|(setting, _)| *setting);
        }
        Ok(())
    }

    /// Returns the profile of a workload; `None` if there are no windows, an error if they are not sufficient.
    pub fn profile(&self, workload: &str, settings: &GatherSettings) -> Option<Result<SoloProfile, ProfileError>> {
        let own = self.workloads.get(workload)?;
        let known = own.means.iter().filter(|(_, mean)| mean.windows >= settings.windows_min);
        let points = known.map(|((share, clock), mean)| SoloPoint {
            mps_thread_percentage: *share,
            sm_clock_mhz: clock.map(|khz| khz as f64 / 1000.0),
            samples_per_second: mean.samples_per_second,
            power_watts: mean.power_watts,
            counters: mean.counters,
        });
        Some(SoloProfile::new(workload.to_owned(), own.gpu_model.clone(), points.collect()))
    }

    /// Returns windows that were gathered at a share, at the board's own clock.
    pub fn windows_at(&self, workload: &str, mps_thread_percentage: u32) -> u32 {
        let own = self.workloads.get(workload).into_iter().flat_map(|own| &own.means);
        own.filter(|(setting, _)| *setting == (mps_thread_percentage, None)).map(|(_, mean)| mean.windows).sum()
    }

    /// Forgets a workload that is gone.
    pub fn forget(&mut self, workload: &str) {
        self.workloads.remove(workload);
    }
}
