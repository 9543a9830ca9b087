//! Placement of jobs on GPUs in an interval: the speed of a job depends on all jobs on its GPUs.

use eadt_schemas::v1::Layout;

use super::job::processes_on;
use crate::gpu::{GpuProcess, OperatingLimits, SteadyState, WorkloadProfile};

/// A job in an interval.
#[derive(Debug, Clone)]
pub(super) struct JobPlacement {
    /// Place of the job whose GPUs it has.
    pub host: usize,
    /// Its pods hold the GPUs, whether or not processes run.
    pub holds_gpus: bool,
    pub gpus: u32,
    pub profile: WorkloadProfile,
    /// `None` if no processes run.
    pub layout: Option<Layout>,
}

/// All jobs in an interval, in the order of the scenario.
#[derive(Debug)]
pub(super) struct JobPlacements {
    jobs: Vec<JobPlacement>,
}

/// Processes on one GPU.
#[derive(Debug, Default)]
pub(super) struct GpuProcesses {
    pub runners: Vec<GpuProcess>,
    /// Range of the runners that are the job's own.
    pub own: std::ops::Range<usize>,
    pub limits: OperatingLimits,
    /// Jobs that hold the GPU.
    pub tenants: u32,
    /// Memory of one of the processes, on average.
    pub memory_gib: f64,
}

impl JobPlacements {
    pub fn new(jobs: impl Iterator<Item = JobPlacement>) -> Self {
        Self { jobs: jobs.collect() }
    }

    pub fn holds_gpus(&self, index: usize) -> bool {
        self.jobs[index].holds_gpus
    }

    /// Returns the processes on one GPU of a job.
    pub fn gpu_processes(&self, index: usize, gpu: u32) -> GpuProcesses {
        let mut company = GpuProcesses::default();
        let least = |a: Option<f64>, b: Option<f64>| match (a, b) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        for (place, job) in self.jobs.iter().enumerate().filter(|(_, job)| job.host == self.jobs[index].host && job.holds_gpus) {
            company.tenants += 1;
            let begin = company.runners.len();
            if let Some(layout) = &job.layout {
                let share = f64::from(layout.mps_thread_percentage.unwrap_or(100)) / 100.0;
                let processes = processes_on(gpu, job.gpus, layout);
                company.runners.extend((0..processes).map(|_| GpuProcess { profile: job.profile, share }));
                company.memory_gib += job.profile.memory_gib * f64::from(processes);
                company.limits = OperatingLimits {
                    clock_mhz: least(company.limits.clock_mhz, layout.sm_clock_mhz),
                    power_watts: least(company.limits.power_watts, layout.power_limit_watts),
                };
            }
            if place == index {
                company.own = begin..company.runners.len();
            }
        }
        company.memory_gib /= company.runners.len().max(1) as f64;
        company
    }
}

impl GpuProcesses {
    /// Returns a job by itself.
    pub fn alone(layout: Option<&Layout>, profile: WorkloadProfile, processes: u32) -> Self {
        let Some(layout) = layout else { return Self::default() };
        let share = f64::from(layout.mps_thread_percentage.unwrap_or(100)) / 100.0;
        Self {
            runners: vec![GpuProcess { profile, share }; processes as usize],
            own: 0..processes as usize,
            limits: OperatingLimits { clock_mhz: layout.sm_clock_mhz, power_watts: layout.power_limit_watts },
            tenants: 1,
            memory_gib: profile.memory_gib,
        }
    }

    /// Returns the job's part of the GPU's power: of the time of the SMs; of a GPU that waits, all tenants the same.
    pub fn share(&self, steady: Option<&SteadyState>) -> f64 {
        let active = |steady: &SteadyState| {
            let of = &steady.runner_sm_active_ratio;
            let all: f64 = of.iter().sum();
            (all > 0.0).then(|| of[self.own.clone()].iter().sum::<f64>() / all)
        };
        steady.and_then(active).unwrap_or(1.0 / f64::from(self.tenants.max(1)))
    }
}
