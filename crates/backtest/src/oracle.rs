//! The best that could be done without restart costs: in every phase the layout and cap of least energy per sample among all
//! that are allowed and fast enough.

use eadt_schemas::v1::Layout;
use eadt_simulator::WorkloadScenario;
use eadt_simulator::gpu::{GpuProcess, OperatingLimits, WorkloadProfile, solve, synchronised_rate};

/// Threads that the oracle tries are multiples of this.
const THREAD_STEP: usize = 5;
/// Caps that it tries, from the least to the board's limit.
const CAPS: u32 = 48;

/// Returns the throughput and power of one layout, the temperature settled.
fn steady(job: &WorkloadScenario, profile: WorkloadProfile, per_gpu: u32, threads: u32, cap: f64, ambient: f64) -> (f64, f64) {
    let board = job.board.board();
    let runners = vec![GpuProcess { profile, share: f64::from(threads) / 100.0 }; per_gpu as usize];
    let limits = OperatingLimits { power_watts: Some(cap), clock_mhz: None };
    let mut celsius = 55.0;
    let mut found = solve(board, &runners, limits, celsius);
    for _ in 0..2 {
        celsius = ambient + board.thermal_resistance * found.power_watts;
        found = solve(board, &runners, limits, celsius);
    }
    let rates = vec![found.samples_per_second.iter().sum(); job.gpus as usize];
    (synchronised_rate(&rates, per_gpu), found.power_watts * f64::from(job.gpus))
}

/// Returns the best layout of a profile; the starting one if nothing is better.
pub fn best(job: &WorkloadScenario, start: &Layout, profile: WorkloadProfile, max_slowdown: f64, ambient: f64) -> Layout {
    let board = job.board.board();
    let top = job.power_limit_watts.unwrap_or(board.power_limit_watts);
    let gpus = job.gpus;
    let per_gpu = job.replicas.div_ceil(gpus);
    let (rate, watts) = steady(job, profile, per_gpu, job.mps_thread_percentage, top, ambient);
    let floor = rate * (1.0 - max_slowdown);
    let bounds = &job.bounds;
    let least_cap = bounds.power_limit_watts_min.unwrap_or(0.0).max(board.power_limit_min_watts);
    let top = bounds.power_limit_watts_max.map_or(top, |most| most.min(top));
    let share = bounds.oversubscription_percentage_max.unwrap_or(100);
    let mut best = (watts / rate, start.clone());
    for per_gpu in 1..=4 {
        let replicas = per_gpu * gpus;
        if replicas > bounds.replicas_max.unwrap_or(u32::MAX)
            || replicas < bounds.replicas_min.unwrap_or(1)
            || !job.global_batch_size.is_multiple_of(replicas)
        {
            continue;
        }
        let low = bounds.mps_thread_percentage_min.unwrap_or(25);
        let high = bounds.mps_thread_percentage_max.unwrap_or(100).min(job.mps_default_thread_percentage).min(share / per_gpu);
        let as_found = replicas == job.replicas;
        let all = (low..=high).step_by(THREAD_STEP).chain(as_found.then_some(job.mps_thread_percentage));
        for threads in all {
            for step in 0..=CAPS {
                let cap = least_cap + (top - least_cap) * f64::from(step) / f64::from(CAPS);
                let (rate, watts) = steady(job, profile, per_gpu, threads, cap, ambient);
                if rate >= floor && watts / rate < best.0 {
                    let layout = Layout {
                        replicas: Some(replicas),
                        mps_thread_percentage: Some(threads),
                        world_size: Some(replicas),
                        local_world_size: Some(per_gpu),
                        power_limit_watts: Some(cap),
                        ..Layout::default()
                    };
                    best = (watts / rate, layout);
                }
            }
        }
    }
    best.1
}
