//! Co-runs without a laboratory: what workloads did while they shared a GPU, out of windows.

use std::collections::{BTreeMap, BTreeSet};

use eadt_schemas::EventTime;
use eadt_schemas::v1::{EfficiencyWindow, WindowKind};

use crate::gather::GatherSettings;
use crate::tables::median;
use crate::{CoRun, CoRunTenant, SoloProfile};

/// A co-run, put together from the windows of its workloads.
#[derive(Debug, Clone, PartialEq)]
pub struct GatheredRun {
    /// Medians over its windows; workloads by name.
    pub run: CoRun,
    /// Start of the first windows and end of the last ones.
    pub first: EventTime,
    pub last: EventTime,
    /// Windows of each workload that its figures are of.
    pub windows: usize,
}

/// Co-runs, and the number of windows of shared GPUs that are not usable.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct GatheredRuns {
    /// Co-runs by workloads and their shares.
    pub runs: Vec<GatheredRun>,
    /// Windows beside others that went into no co-run, one that is too short included.
    pub passed: usize,
}

/// A workload's part of a co-run: its window on one shared GPU.
struct WindowPart<'a> {
    tenant: (&'a str, u32),
    tenants: u32,
    samples_per_second: f64,
    power_watts: f64,
}

impl<'a> WindowPart<'a> {
    /// Returns the part of a window; `None` if the window lacks a value, or its workload was limited by a cap or clock.
    fn of(window: &'a EfficiencyWindow, settings: &GatherSettings) -> Option<Self> {
        let layout = window.layout.as_ref()?;
        let covered = window.energy_coverage_ratio.min(window.progress_coverage_ratio) >= settings.coverage_min_ratio;
        let steady = covered && !window.restarted && !window.gap && window.gpus == 1;
        let free = layout.power_limit_watts.is_none() && layout.sm_clock_mhz.is_none() && layout.replicas.is_none_or(|n| n == 1);
        let positive = |value: Option<f64>| value.filter(|value| value.is_finite() && *value > 0.0);
        (steady && free).then_some(())?;
        Some(Self {
            tenant: (&window.workload, layout.mps_thread_percentage.filter(|share| (1..=100).contains(share))?),
            tenants: window.tenants?,
            samples_per_second: positive(window.samples_per_second)?,
            power_watts: positive(window.mean_power_watts)?,
        })
    }
}

/// Start, throughput of each workload, and power of the GPU.
type CoRunFigures = (EventTime, Vec<f64>, f64);
/// Windows of the same workloads at the same shares, by end.
type WindowsByEnd = BTreeMap<EventTime, CoRunFigures>;

/// Finds co-runs. The windows of a GPU at one time count if all workloads that shared it have a usable window, with shares that
/// sum to at most 100 %. Only then are the workloads and their total power known.
///
/// Medians are of the newest [`GatherSettings::windows_max`] windows; fewer than [`GatherSettings::windows_min`] are no co-run.
pub fn co_runs<'a>(windows: impl IntoIterator<Item = &'a EfficiencyWindow>, settings: &GatherSettings) -> GatheredRuns {
    let mut by_place: BTreeMap<(&str, EventTime, EventTime), Vec<&EfficiencyWindow>> = BTreeMap::new();
    let mut shared = 0;
    for window in windows {
        if window.kind != WindowKind::Tumbling || window.tenants.is_none_or(|tenants| tenants < 2) {
            continue;
        }
        shared += 1;
        if let [device] = &window.shared_devices[..] {
            by_place.entry((device, window.window_start, window.window_end)).or_default().push(window);
        }
    }
    let mut same: BTreeMap<Vec<(&str, u32)>, WindowsByEnd> = BTreeMap::new();
    for ((_, start, end), windows) in by_place {
        let parts: Option<Vec<WindowPart<'_>>> = windows.iter().map(|window| WindowPart::of(window, settings)).collect();
        let Some(mut parts) = parts else { continue };
        parts.sort_by_key(|part| part.tenant);
        let names: BTreeSet<&str> = parts.iter().map(|part| part.tenant.0).collect();
        let complete = names.len() == parts.len() && parts.iter().all(|part| part.tenants as usize == parts.len());
        if !complete || parts.iter().map(|part| part.tenant.1).sum::<u32>() > 100 {
            continue;
        }
        let rates = parts.iter().map(|part| part.samples_per_second).collect();
        let figures = (start, rates, parts.iter().map(|part| part.power_watts).sum());
        same.entry(parts.iter().map(|part| part.tenant).collect()).or_default().insert(end, figures);
    }
    let mut found = GatheredRuns { runs: Vec::new(), passed: shared };
    for (tenants, windows) in same {
        let (Some((_, (first, ..))), Some((last, _))) = (windows.first_key_value(), windows.last_key_value()) else { continue };
        if windows.len() < settings.windows_min as usize {
            continue;
        }
        let of_newest = |value: &dyn Fn(&CoRunFigures) -> f64| {
            median(&mut windows.values().rev().take(settings.windows_max as usize).map(value).collect::<Vec<_>>())
        };
        let Some(power_watts) = of_newest(&|(.., watts)| *watts) else { continue };
        let of = |(i, (workload, mps_thread_percentage)): (usize, &(&str, u32))| {
            let samples_per_second = of_newest(&|(_, rates, _)| rates[i])?;
            Some(CoRunTenant {
                workload: (*workload).to_owned(),
                mps_thread_percentage: *mps_thread_percentage,
                samples_per_second,
            })
        };
        let Some(tenants) = tenants.iter().enumerate().map(of).collect::<Option<Vec<CoRunTenant>>>() else { continue };
        found.passed -= windows.len() * tenants.len();
        let run = CoRun { tenants, sm_clock_mhz: None, power_watts };
        found.runs.push(GatheredRun {
            run,
            first: *first,
            last: *last,
            windows: windows.len().min(settings.windows_max as usize),
        });
    }
    found
}

/// Returns the idle power with which the additive model is too high in half of the runs; `None` if no run has measurements
/// alone for all of its workloads at their shares. Windows do not contain the power of a board whose processes wait.
pub fn implied_idle_watts(profiles: &BTreeMap<String, SoloProfile>, runs: &[CoRun]) -> Option<f64> {
    let of = |run: &CoRun| {
        let tenants: Vec<&SoloProfile> =
            run.tenants.iter().map(|tenant| profiles.get(&tenant.workload)).collect::<Option<_>>()?;
        let shares: Vec<u32> = run.tenants.iter().map(|tenant| tenant.mps_thread_percentage).collect();
        idle_of(&tenants, &shares, run.power_watts).ok()
    };
    let watts = median(&mut runs.iter().filter_map(of).collect::<Vec<_>>())?;
    // The idle power of a board is below the least power of any workload, so all profiles count.
    let least = profiles.values().flat_map(SoloProfile::points).map(|point| point.power_watts).fold(f64::INFINITY, f64::min);
    Some(watts.min(MOST_OF_LEAST * least))
}

const MOST_OF_LEAST: f64 = 0.95;

/// Returns the idle power with which the additive model equals the measured power of workloads at their shares. `Err`: the index
/// of a workload that was not measured at its share or a smaller one.
pub(crate) fn idle_of(tenants: &[&SoloProfile], shares: &[u32], measured_watts: f64) -> Result<f64, usize> {
    let (mut alone, mut least) = (0.0, f64::INFINITY);
    for (place, (tenant, share)) in tenants.iter().zip(shares).enumerate() {
        alone += tenant.expected_at(*share, None).ok_or(place)?.power_watts;
        least = tenant.points().map(|point| point.power_watts).fold(least, f64::min);
    }
    // Savings by contention or noise must not give an idle power below zero, or above that of the processes.
    let most = MOST_OF_LEAST * least;
    Ok(((alone - measured_watts) / (tenants.len() as f64 - 1.0)).clamp(1.0_f64.min(0.5 * least), most))
}
