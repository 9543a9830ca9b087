//! Measurements of workloads, alone and together.

use std::collections::{BTreeMap, BTreeSet};

use crate::{ProfileError, ProfileMetric, SoloProfile};

/// One workload of a co-run.
#[derive(Debug, Clone, PartialEq)]
pub struct CoRunTenant {
    pub workload: String,
    /// Its share of the SMs. 1 to 100.
    pub mps_thread_percentage: u32,
    /// Work that it did a second beside the others.
    pub samples_per_second: f64,
}

/// One measurement of several workloads on one GPU at the same time.
#[derive(Debug, Clone, PartialEq)]
pub struct CoRun {
    pub tenants: Vec<CoRunTenant>,
    /// Highest SM clock that was allowed; absent: the board's own.
    pub sm_clock_mhz: Option<f64>,
    /// Mean power of the whole GPU.
    pub power_watts: f64,
}

impl CoRun {
    /// Returns the workloads, sorted: runs of the same group are partitions of the same decision, and never apart in a split.
    pub fn group(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.tenants.iter().map(|tenant| tenant.workload.as_str()).collect();
        names.sort_unstable();
        names
    }
}

/// The reason why measurements are refused. Co-runs are counted from 0, in their order.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum MeasurementsError {
    #[error(transparent)]
    Profile(#[from] ProfileError),
    #[error("there is no profile of any workload")]
    NoProfiles,
    #[error("workload {workload} has two profiles: name each workload once")]
    Twice { workload: String },
    #[error(
        "workload {workload} was measured on {found}, but others on {expected}: keep the measurements of each GPU model apart"
    )]
    Gpu { workload: String, expected: String, found: String },
    #[error("the idle power is {watts} W, but must be above 0 and below {least} W, the least that a workload drew")]
    Idle { watts: f64, least: f64 },
    #[error("co-run {run}: workload {workload} has no profile: measure it alone first")]
    NoProfile { run: usize, workload: String },
    #[error(
        "co-run {run}: workload {workload} was not measured alone at {percentage} %{clock}: measure it there, or at a smaller share"
    )]
    NotCovered { run: usize, workload: String, percentage: u32, clock: String },
    #[error("co-run {run}: {field} is {value}, but must be within {low} and {high}")]
    Value { run: usize, field: &'static str, value: f64, low: f64, high: f64 },
}

/// Everything that was measured on one GPU model; checked.
#[derive(Debug, Clone, PartialEq)]
pub struct GpuMeasurements {
    gpu_model: String,
    idle_watts: f64,
    profiles: BTreeMap<String, SoloProfile>,
    runs: Vec<CoRun>,
}

impl GpuMeasurements {
    /// Builds the measurements. `idle_watts`: power of the GPU while its processes wait.
    pub fn new(idle_watts: f64, profiles: Vec<SoloProfile>, runs: Vec<CoRun>) -> Result<Self, MeasurementsError> {
        let gpu_model = profiles.first().ok_or(MeasurementsError::NoProfiles)?.gpu_model().to_owned();
        let least = profiles.iter().flat_map(SoloProfile::points).map(|point| point.power_watts).fold(f64::INFINITY, f64::min);
        if !(idle_watts > 0.0 && idle_watts < least) {
            return Err(MeasurementsError::Idle { watts: idle_watts, least });
        }
        let mut by_name = BTreeMap::new();
        for profile in profiles {
            if profile.gpu_model() != gpu_model {
                let (workload, found) = (profile.workload().to_owned(), profile.gpu_model().to_owned());
                return Err(MeasurementsError::Gpu { workload, expected: gpu_model, found });
            }
            if let Some(twice) = by_name.insert(profile.workload().to_owned(), profile) {
                return Err(MeasurementsError::Twice { workload: twice.workload().to_owned() });
            }
        }
        for (number, run) in runs.iter().enumerate() {
            check(number, run, &by_name)?;
        }
        Ok(Self { gpu_model, idle_watts, profiles: by_name, runs })
    }

    pub fn gpu_model(&self) -> &str {
        &self.gpu_model
    }

    pub fn idle_watts(&self) -> f64 {
        self.idle_watts
    }

    /// Profiles by workload.
    pub fn profiles(&self) -> &BTreeMap<String, SoloProfile> {
        &self.profiles
    }

    pub fn runs(&self) -> &[CoRun] {
        &self.runs
    }

    /// Returns the metrics that every profile has at every point, for learning.
    pub fn metrics(&self) -> Vec<ProfileMetric> {
        ProfileMetric::ALL.into_iter().filter(|metric| self.profiles.values().all(|profile| profile.has(*metric))).collect()
    }

    /// Returns the groups of workloads that ran together.
    pub fn groups(&self) -> BTreeSet<Vec<&str>> {
        self.runs.iter().map(CoRun::group).collect()
    }
}

fn check(number: usize, run: &CoRun, profiles: &BTreeMap<String, SoloProfile>) -> Result<(), MeasurementsError> {
    let value = |field, value: f64, low: f64, high: f64| {
        if (low..=high).contains(&value) {
            Ok(())
        } else {
            Err(MeasurementsError::Value { run: number, field, value, low, high })
        }
    };
    value("number of workloads", run.tenants.len() as f64, 2.0, 48.0)?;
    value("power_watts", run.power_watts, 0.1, 5_000.0)?;
    for tenant in &run.tenants {
        value("samples_per_second", tenant.samples_per_second, 1e-12, 1e12)?;
        value("mps_thread_percentage", f64::from(tenant.mps_thread_percentage), 1.0, 100.0)?;
        let (workload, percentage) = (tenant.workload.clone(), tenant.mps_thread_percentage);
        let Some(profile) = profiles.get(&workload) else {
            return Err(MeasurementsError::NoProfile { run: number, workload });
        };
        if profile.at(percentage, run.sm_clock_mhz).is_none() {
            let clock = run.sm_clock_mhz.map_or(String::new(), |mhz| format!(" and {mhz} MHz"));
            return Err(MeasurementsError::NotCovered { run: number, workload, percentage, clock });
        }
    }
    Ok(())
}
