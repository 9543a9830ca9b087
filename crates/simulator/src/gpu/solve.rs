use std::collections::HashMap;

use super::{BoardParameters, WorkloadProfile};

/// One process on a GPU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GpuProcess {
    pub profile: WorkloadProfile,
    /// Part of the SMs that it may use: its MPS thread percentage over 100. Above 0, at most 1.
    pub share: f64,
}

/// Limits of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct OperatingLimits {
    /// Upper bound of the SM clock in MHz; absent: the board's highest.
    pub clock_mhz: Option<f64>,
    /// Power cap in watts; absent: the board's default limit.
    pub power_watts: Option<f64>,
}

/// State of a GPU while nothing changes.
#[derive(Debug, Clone, PartialEq)]
pub struct SteadyState {
    /// Samples per second of each runner, in the order of the runners.
    pub samples_per_second: Vec<f64>,
    /// SM time of each runner as a part of all SMs' time.
    pub runner_sm_active_ratio: Vec<f64>,
    pub power_watts: f64,
    /// SM clock in MHz. Between two steps if a cap holds it there: the firmware alternates between them.
    pub clock_mhz: f64,
    /// The power cap, not the clock limit, holds the clock.
    pub power_capped: bool,
    /// Part of the time in which any kernel runs.
    pub busy_ratio: f64,
    pub sm_active_ratio: f64,
    pub sm_occupancy_ratio: f64,
    pub tensor_active_ratio: f64,
    pub dram_active_ratio: f64,
    /// Part of the PCIe bandwidth.
    pub io_ratio: f64,
}

/// Exponent of the smooth minimum that joins compute and memory time.
pub(crate) const ROOF: i32 = 3;
/// A memory system delivers this part of its nominal bandwidth.
pub(crate) const BANDWIDTH_EFFICIENCY: f64 = 0.92;
/// Below this part of the highest clock, the SMs can no longer saturate the memory.
pub(crate) const BANDWIDTH_CLOCK: f64 = 0.55;
/// Exponent of the slowdown by the others on the GPU.
pub(crate) const CONTENTION_EXPONENT: f64 = 1.4;
/// Each further process lengthens the host time of all by this part.
pub(crate) const HOST_CROWDING: f64 = 0.03;
/// A stalled SM cycle costs this part of an issuing one.
pub(crate) const STALL_COST: f64 = 0.45;
/// PCIe bandwidth in MB/s.
pub(crate) const IO_MEGABYTES_PER_SECOND: f64 = 12_000.0;
/// Part of the new value in each step of the fixed point.
const DAMPING: f64 = 0.5;
/// Relative change at which the fixed point is found, and at which a clock is only tried.
const TOLERANCE: f64 = 1e-9;
const TRIAL_TOLERANCE: f64 = 1e-7;
/// A capped clock is sought this far under the cap, in watts, so that what the trials leave open cannot exceed it.
const CAP_MARGIN_WATTS: f64 = 0.01;
const STEPS_MAX: usize = 200;

/// Returns samples per second of a job whose processes wait for each other after each step: the slowest GPU sets the pace, and
/// each further process per GPU lengthens the exchange by 3 % (assumed). `per_gpu`: the sum over a GPU's processes.
pub fn synchronised_rate(per_gpu: &[f64], processes_per_gpu: u32) -> f64 {
    let slowest = per_gpu.iter().copied().fold(f64::INFINITY, f64::min);
    if slowest.is_finite() {
        slowest * per_gpu.len() as f64 / (1.0 + HOST_CROWDING * f64::from(processes_per_gpu.saturating_sub(1)))
    } else {
        0.0
    }
}

/// Remembers steady states; the temperature is rounded to 0.5 °C, so that results do not depend on what was asked before.
#[derive(Debug, Clone, Default)]
pub struct SteadyStateCache {
    known: HashMap<Vec<u64>, SteadyState>,
}

impl SteadyStateCache {
    /// Number of states above which the cache starts anew.
    const CAPACITY: usize = 16_384;

    /// Like [`solve`], with the temperature rounded to 0.5 °C.
    pub fn solve(
        &mut self,
        board: &'static BoardParameters,
        runners: &[GpuProcess],
        limits: OperatingLimits,
        celsius: f64,
    ) -> &SteadyState {
        let celsius = (celsius * 2.0).round() / 2.0;
        let key = key(board, runners, limits, celsius);
        if self.known.len() >= Self::CAPACITY && !self.known.contains_key(&key) {
            self.known.clear();
        }
        self.known.entry(key).or_insert_with(|| solve(board, runners, limits, celsius))
    }
}

fn key(board: &'static BoardParameters, runners: &[GpuProcess], limits: OperatingLimits, celsius: f64) -> Vec<u64> {
    // NaN means an absent limit: no limit is NaN.
    let bits = |limit: Option<f64>| limit.unwrap_or(f64::NAN).to_bits();
    let mut key =
        vec![std::ptr::from_ref(board).addr() as u64, bits(limits.clock_mhz), bits(limits.power_watts), celsius.to_bits()];
    for GpuProcess { profile: p, share } in runners {
        key.extend(
            [
                *share,
                p.samples_per_second,
                p.host_ratio,
                p.sm_coverage_ratio,
                p.dram_ratio,
                p.energy_intensity,
                p.sensitivity,
                p.bandwidth_saturation_ratio,
                p.pcie_megabytes_per_sample,
                p.burst_ratio,
                p.occupancy_ratio,
                p.tensor_ratio,
            ]
            .map(f64::to_bits),
        );
    }
    key
}

/// Returns the steady state of a board at `celsius`, at the highest clock that the limits allow.
///
/// A cap below what the board draws at its lowest clock holds the clock there and is exceeded, as on hardware.
pub fn solve(board: &BoardParameters, runners: &[GpuProcess], limits: OperatingLimits, celsius: f64) -> SteadyState {
    let highest = limits.clock_mhz.map_or(board.clock_max_mhz, |mhz| board.clock_at_most(mhz));
    let cap = limits.power_watts.unwrap_or(board.power_limit_watts);
    if runners.is_empty() {
        return idle(board, celsius);
    }
    let mut gpu = SteadyStateSolver::new(board, runners, celsius);
    gpu.solve_fixed_point(highest, TOLERANCE);
    if gpu.capped_watts() <= cap {
        return gpu.steady(runners, false);
    }
    let target = cap - CAP_MARGIN_WATTS;
    let at_highest = gpu.capped_watts() - target;
    gpu.solve_fixed_point(board.clock_min_mhz, TOLERANCE);
    let at_lowest = gpu.capped_watts() - target;
    if at_lowest < 0.0 {
        gpu.find_capped_clock(target, (board.clock_min_mhz, at_lowest), (highest, at_highest));
    }
    gpu.steady(runners, true)
}

fn idle(board: &BoardParameters, celsius: f64) -> SteadyState {
    SteadyState {
        samples_per_second: Vec::new(),
        runner_sm_active_ratio: Vec::new(),
        power_watts: board.static_watts_at(celsius),
        clock_mhz: board.clock_min_mhz,
        power_capped: false,
        busy_ratio: 0.0,
        sm_active_ratio: 0.0,
        sm_occupancy_ratio: 0.0,
        tensor_active_ratio: 0.0,
        dram_active_ratio: 0.0,
        io_ratio: 0.0,
    }
}

/// Runners that are alike go the same way, so one represents all of them.
#[derive(Debug, Clone)]
struct GpuProcessGroup {
    runner: GpuProcess,
    count: f64,
    /// Share in whole SMs.
    share: f64,
    /// Seconds per sample: host, compute and memory.
    host: f64,
    compute: f64,
    memory: f64,
    memory_part: f64,
    coverage_alone: f64,
    bandwidth_alone: f64,
    // The fixed point.
    rate: f64,
    sm_active: f64,
    dram: f64,
    /// Seconds of GPU time per sample, and of them those that issue without a stall.
    gpu_seconds: f64,
    compute_seconds: f64,
}

/// Effect of all runners of a GPU on one of them.
#[derive(Debug, Clone, Copy)]
struct GpuContention {
    /// SM clock as a part of the highest.
    phi: f64,
    /// Memory bandwidth that can be had, as a part of all.
    bandwidth: f64,
    /// SMs wanted over SMs there; at least 1.
    oversubscription: f64,
    /// Used bandwidth over that of the memory without queueing; at least 1.
    saturation: f64,
    /// Sum of [`GpuProcessGroup::pressure`].
    pressure: f64,
}

#[derive(Debug, Clone)]
struct SteadyStateSolver<'a> {
    board: &'a BoardParameters,
    celsius: f64,
    clock_mhz: f64,
    /// Memory requests take this many times longer than the demand below saturation would have them, so that no more
    /// bandwidth is used than there is.
    queueing: f64,
    groups: Vec<GpuProcessGroup>,
    /// Group of each runner.
    group_of: Vec<usize>,
}

impl<'a> SteadyStateSolver<'a> {
    fn new(board: &'a BoardParameters, runners: &[GpuProcess], celsius: f64) -> Self {
        let mut groups: Vec<GpuProcessGroup> = Vec::with_capacity(1);
        let mut group_of = Vec::with_capacity(runners.len());
        for runner in runners {
            let known = groups.iter().position(|group| group.runner == *runner);
            let index = known.unwrap_or_else(|| {
                groups.push(GpuProcessGroup::new(board, runner));
                groups.len() - 1
            });
            groups[index].count += 1.0;
            group_of.push(index);
        }
        let others = runners.len() as f64 - 1.0;
        for group in &mut groups {
            group.host *= 1.0 + HOST_CROWDING * others;
        }
        Self { board, celsius, clock_mhz: board.clock_max_mhz, queueing: 1.0, groups, group_of }
    }

    /// Finds the steady state at a clock, starting from the last one.
    fn solve_fixed_point(&mut self, clock_mhz: f64, tolerance: f64) {
        self.clock_mhz = clock_mhz;
        let phi = clock_mhz / self.board.clock_max_mhz;
        let clock_bandwidth = (phi / BANDWIDTH_CLOCK).min(1.0);
        for _ in 0..STEPS_MAX {
            let mut demand = 0.0;
            let mut dram = 0.0;
            let mut pressure = 0.0;
            for group in &self.groups {
                demand += group.count * group.sm_demand();
                dram += group.count * group.dram;
                pressure += group.count * group.pressure();
            }
            let queueing = (self.queueing * dram.sqrt()).max(1.0);
            let mut change = (queueing - self.queueing).abs() / queueing;
            self.queueing = queueing;
            let gpu = GpuContention {
                phi,
                bandwidth: clock_bandwidth / queueing,
                oversubscription: demand.max(1.0),
                saturation: (dram / BANDWIDTH_EFFICIENCY).max(1.0),
                pressure,
            };
            for group in &mut self.groups {
                change = change.max(group.step(&gpu));
            }
            if change < tolerance {
                break;
            }
        }
    }

    /// Finds, by bracketed false position (Illinois), the highest clock at which the cap holds; ends on the side that holds it.
    fn find_capped_clock(&mut self, cap: f64, mut low: (f64, f64), mut high: (f64, f64)) {
        let mut side = 0_i8;
        for _ in 0..60 {
            let width = high.0 - low.0;
            if width < 0.01 || -low.1 < 0.001 {
                break;
            }
            let guess = low.0 - low.1 * width / (high.1 - low.1);
            let guess = guess.clamp(low.0 + 0.001 * width, high.0 - 0.001 * width);
            self.solve_fixed_point(guess, TRIAL_TOLERANCE);
            let excess = self.capped_watts() - cap;
            if excess <= 0.0 {
                low = (guess, excess);
                if side == -1 {
                    high.1 *= 0.5;
                }
                side = -1;
            } else {
                high = (guess, excess);
                if side == 1 {
                    low.1 *= 0.5;
                }
                side = 1;
            }
        }
        self.solve_fixed_point(low.0, TOLERANCE);
    }

    fn busy(&self) -> f64 {
        let idle = self.groups.iter().map(|g| (1.0 - (g.rate * g.gpu_seconds).clamp(0.0, 1.0)).powf(g.count)).product::<f64>();
        1.0 - idle
    }

    fn dram(&self) -> f64 {
        self.groups.iter().map(|group| group.count * group.dram).sum::<f64>().min(1.0)
    }

    fn io(&self) -> f64 {
        let traffic: f64 = self.groups.iter().map(|g| g.count * g.rate * g.runner.profile.pcie_megabytes_per_sample).sum();
        (traffic / IO_MEGABYTES_PER_SECOND).min(1.0)
    }

    fn watts(&self) -> f64 {
        let board = self.board;
        let voltage = board.voltage(self.clock_mhz);
        let scale = self.clock_mhz / board.clock_max_mhz * voltage * voltage;
        let active: f64 = self.groups.iter().map(|group| group.count * group.sm_energy()).sum();
        board.static_watts_at(self.celsius)
            + scale * (board.clock_watts * self.busy() + board.sm_watts * active)
            + board.memory_watts * self.dram()
            + board.io_watts * self.io()
    }

    /// Returns the power that the firmware holds under the cap: that of the busy phases, not the mean.
    fn capped_watts(&self) -> f64 {
        let fixed = self.board.static_watts_at(self.celsius);
        let burst = self.groups.iter().map(|group| group.runner.profile.burst_ratio).fold(0.0, f64::max);
        fixed + (self.watts() - fixed) * (1.0 + burst * (1.0 / self.busy().max(0.05) - 1.0))
    }

    fn steady(&self, runners: &[GpuProcess], power_capped: bool) -> SteadyState {
        let of = |value: fn(&GpuProcessGroup) -> f64| {
            self.group_of.iter().map(|&index| value(&self.groups[index])).collect::<Vec<_>>()
        };
        let runner_sm_active_ratio = of(|group| group.sm_active);
        let weighted = |weight: fn(&WorkloadProfile) -> f64| {
            runners
                .iter()
                .zip(&runner_sm_active_ratio)
                .map(|(runner, active)| weight(&runner.profile) * active)
                .sum::<f64>()
                .min(1.0)
        };
        SteadyState {
            samples_per_second: of(|group| group.rate),
            power_watts: self.watts(),
            clock_mhz: self.clock_mhz,
            power_capped,
            busy_ratio: self.busy(),
            sm_active_ratio: weighted(|_| 1.0),
            sm_occupancy_ratio: weighted(|profile| profile.occupancy_ratio),
            tensor_active_ratio: weighted(|profile| profile.tensor_ratio),
            dram_active_ratio: self.dram(),
            io_ratio: self.io(),
            runner_sm_active_ratio,
        }
    }
}

impl GpuProcessGroup {
    fn new(board: &BoardParameters, runner: &GpuProcess) -> Self {
        let p = &runner.profile;
        let sms = f64::from(board.sm_count);
        let seconds = 1.0 / p.samples_per_second;
        let gpu = (1.0 - p.host_ratio) * seconds;
        let memory_part = (p.dram_ratio / ((1.0 - p.host_ratio) * BANDWIDTH_EFFICIENCY)).min(0.985);
        let (compute, memory) = (gpu * (1.0 - memory_part.powi(ROOF)).cbrt(), gpu * memory_part);
        Self {
            runner: *runner,
            count: 0.0,
            share: (runner.share * sms - 1e-6).ceil().clamp(1.0, sms) / sms,
            host: p.host_ratio * seconds,
            compute,
            memory,
            memory_part: memory / (compute + memory),
            coverage_alone: smooth_min_6(1.0, p.sm_coverage_ratio),
            bandwidth_alone: smooth_min_8(1.0, p.bandwidth_saturation_ratio),
            rate: 0.5 * p.samples_per_second,
            sm_active: 0.3,
            dram: 0.0,
            gpu_seconds: gpu,
            compute_seconds: compute,
        }
    }

    /// Returns the SMs that it would keep active, as a part of all. If all of them together want more than there are, each gets
    /// less.
    fn sm_demand(&self) -> f64 {
        self.share.min(self.runner.profile.sm_coverage_ratio) * (self.rate * self.gpu_seconds).clamp(0.0, 1.0)
    }

    /// Returns how much the group slows down the others.
    fn pressure(&self) -> f64 {
        0.5 * (self.sm_active + self.dram)
    }

    /// Returns SM time, weighted with the energy of a cycle.
    fn sm_energy(&self) -> f64 {
        let issue = (self.compute_seconds / self.gpu_seconds.max(1e-12)).clamp(0.0, 1.0);
        self.runner.profile.energy_intensity * (STALL_COST + (1.0 - STALL_COST) * issue) * self.sm_active
    }

    /// Does one damped step; returns the largest relative change.
    fn step(&mut self, gpu: &GpuContention) -> f64 {
        let p = &self.runner.profile;
        let share = self.share / gpu.oversubscription;
        let covered = smooth_min_6(share, p.sm_coverage_ratio) / self.coverage_alone;
        let bandwidth = (smooth_min_8(share, p.bandwidth_saturation_ratio) / self.bandwidth_alone).min(1.0) * gpu.bandwidth;
        let others = (gpu.pressure - self.pressure()).clamp(0.0, 1.5);
        let slowdown = 1.0 + p.sensitivity * if others > 0.0 { others.powf(CONTENTION_EXPONENT) } else { 0.0 };
        let queueing = if gpu.saturation > 1.0 { gpu.saturation.powf(self.memory_part) } else { 1.0 };
        self.compute_seconds = self.compute / (gpu.phi * covered);
        let memory_seconds = self.memory / bandwidth;
        self.gpu_seconds = (self.compute_seconds.powi(ROOF) + memory_seconds.powi(ROOF)).cbrt() * slowdown * queueing;

        let rate = damped(self.rate, 1.0 / (self.host + self.gpu_seconds));
        let dram = damped(self.dram, p.dram_ratio / p.samples_per_second * rate);
        let sm_active = damped(self.sm_active, rate * self.gpu_seconds * covered * p.sm_coverage_ratio);
        let change = ((rate - self.rate) / rate).abs().max((dram - self.dram).abs()).max((sm_active - self.sm_active).abs());
        (self.rate, self.dram, self.sm_active) = (rate, dram, sm_active);
        change
    }
}

fn damped(old: f64, new: f64) -> f64 {
    old + DAMPING * (new - old)
}

/// Returns (a⁻⁶ + b⁻⁶)^(-1/6): at most the smaller one.
fn smooth_min_6(a: f64, b: f64) -> f64 {
    1.0 / (a.powi(-6) + b.powi(-6)).cbrt().sqrt()
}

/// Returns (a⁻⁸ + b⁻⁸)^(-1/8).
fn smooth_min_8(a: f64, b: f64) -> f64 {
    1.0 / (a.powi(-8) + b.powi(-8)).sqrt().sqrt().sqrt()
}

#[cfg(test)]
mod tests {
    use eadt_testing::cases;
    use proptest::prelude::*;

    use super::*;
    use crate::gpu::{BoardModel, ThermalState};

    fn alike(profile: WorkloadProfile, count: usize, percent: f64) -> Vec<GpuProcess> {
        vec![GpuProcess { profile, share: percent / 100.0 }; count]
    }

    /// Steady state with the temperature settled in surroundings of 30 °C.
    fn settled(model: BoardModel, runners: &[GpuProcess], limits: OperatingLimits) -> (SteadyState, f64) {
        let board = model.board();
        let mut celsius = 60.0;
        for _ in 0..20 {
            let mut thermal = ThermalState { celsius };
            thermal.advance(board, solve(board, runners, limits, celsius).power_watts, 30.0, 1e6);
            celsius = thermal.celsius;
        }
        (solve(board, runners, limits, celsius), celsius)
    }

    fn near(actual: f64, expected: f64, tolerance: f64) -> bool {
        ((actual - expected) / expected).abs() <= tolerance
    }

    /// Golden figures from the study in which the equations were first tried (numpy, 60 damped steps, clock by bisection,
    /// two thermal rounds from 60 °C): samples/s, W, MHz, SM active summed over the processes, DRAM active.
    #[test]
    fn agrees_with_the_study() {
        use BoardModel::{A100, H100, V100};
        use WorkloadProfile as W;
        type Row = (BoardModel, WorkloadProfile, usize, f64, Option<f64>, Option<f64>, [f64; 5]);
        let rows: [Row; 11] = [
            (A100, W::COMPUTE, 2, 50., None, None, [30.1615, 399.9726, 1274.9231, 1.0686, 0.3016]),
            (A100, W::COMPUTE, 2, 50., Some(250.), None, [21.9491, 249.9889, 914.3518, 1.0779, 0.2195]),
            (A100, W::COMPUTE, 2, 40., None, None, [26.6182, 399.9987, 1352.4866, 0.8759, 0.2662]),
            (A100, W::MEMORY, 2, 50., None, None, [39.1401, 399.9700, 1385.7751, 1.0336, 0.9394]),
            (A100, W::HOST, 2, 50., None, None, [55.2625, 243.3619, 1410.0, 0.4272, 0.2763]),
            (A100, W::MID, 1, 100., None, None, [30.0, 282.4572, 1410.0, 0.5250, 0.3000]),
            (A100, W::MID, 4, 25., Some(150.), None, [19.9729, 149.9945, 544.1125, 0.9715, 0.1997]),
            (V100, W::COMPUTE, 2, 50., None, None, [33.1700, 243.0810, 1380.0, 1.0652, 0.3317]),
            (V100, W::MEMORY, 1, 100., Some(150.), None, [29.4741, 149.9921, 1315.5515, 0.8753, 0.7074]),
            (H100, W::MEMORY, 2, 50., Some(400.), None, [32.1510, 399.9794, 1478.5428, 1.0441, 0.7716]),
            (A100, W { burst_ratio: 0.5, ..W::HOST }, 2, 50., Some(160.), None, [44.5435, 149.2259, 932.4792, 0.5176, 0.2227]),
        ];
        for (model, profile, count, percent, power_watts, clock_mhz, golden) in rows {
            let (steady, _) = settled(model, &alike(profile, count, percent), OperatingLimits { clock_mhz, power_watts });
            let ours = [
                steady.samples_per_second.iter().sum::<f64>(),
                steady.power_watts,
                steady.clock_mhz,
                steady.runner_sm_active_ratio.iter().sum::<f64>(),
                steady.dram_active_ratio,
            ];
            for (ours, golden) in ours.into_iter().zip(golden) {
                assert!(near(ours, golden, 2e-3), "{model:?} {count} x {percent} %: {ours} instead of {golden}");
            }
        }
    }

    /// From the same study: two different processes.
    #[test]
    fn different_processes_agree_with_the_study() {
        let runners = [
            GpuProcess { profile: WorkloadProfile::COMPUTE, share: 0.6 },
            GpuProcess { profile: WorkloadProfile::MEMORY.at_rate(120.0), share: 0.4 },
        ];
        let (steady, celsius) =
            settled(BoardModel::A100, &runners, OperatingLimits { power_watts: Some(300.0), clock_mhz: None });
        let pairs = [
            (steady.samples_per_second[0], 15.9495),
            (steady.samples_per_second[1], 58.7182),
            (steady.power_watts, 299.9808),
            (steady.clock_mhz, 1143.8562),
            (steady.runner_sm_active_ratio[0], 0.6380),
            (steady.runner_sm_active_ratio[1], 0.4281),
            (celsius, 62.9979),
        ];
        for (ours, golden) in pairs {
            assert!(near(ours, golden, 2e-3), "{ours} instead of {golden}");
        }
    }

    #[test]
    fn a_locked_clock_holds() {
        let (steady, _) = settled(
            BoardModel::H100,
            &alike(WorkloadProfile::MID, 1, 100.0),
            OperatingLimits { clock_mhz: Some(1207.0), power_watts: None },
        );
        assert_eq!(steady.clock_mhz, 1200.0);
        assert!(!steady.power_capped);
    }

    /// The study let four processes of 50 % each keep 216 % of the SMs busy.
    #[test]
    fn processes_that_want_more_sms_than_there_are_share_them() {
        let (two, _) = settled(BoardModel::A100, &alike(WorkloadProfile::COMPUTE, 2, 50.0), OperatingLimits::default());
        let (four, _) = settled(BoardModel::A100, &alike(WorkloadProfile::COMPUTE, 4, 50.0), OperatingLimits::default());
        assert!(four.runner_sm_active_ratio.iter().sum::<f64>() < 1.15);
        let rate = |steady: &SteadyState| steady.samples_per_second.iter().sum::<f64>();
        assert!(rate(&four) < 1.05 * rate(&two), "{} {}", rate(&four), rate(&two));
    }

    /// The study let two processes that each need most of the bandwidth use 119 % of it.
    #[test]
    fn processes_that_want_more_bandwidth_than_there_is_share_it() {
        let hungry = WorkloadProfile { host_ratio: 0.03, dram_ratio: 0.88, ..WorkloadProfile::MEMORY };
        let (alone, _) = settled(BoardModel::A100, &alike(hungry, 1, 100.0), OperatingLimits::default());
        for (count, percent) in [(2, 50.0), (3, 45.0), (4, 50.0)] {
            let (shared, _) = settled(BoardModel::A100, &alike(hungry, count, percent), OperatingLimits::default());
            let rate = |steady: &SteadyState| steady.samples_per_second.iter().sum::<f64>();
            let traffic = rate(&shared) * hungry.dram_ratio / hungry.samples_per_second;
            assert!(traffic <= 1.0 + 1e-6, "{traffic}");
            assert!(rate(&shared) > rate(&alone));
        }
    }

    #[test]
    fn an_empty_gpu_draws_its_static_power() {
        let board = BoardModel::A100.board();
        let steady = solve(board, &[], OperatingLimits::default(), 50.0);
        assert_eq!((steady.power_watts, steady.clock_mhz, steady.busy_ratio), (50.0, 510.0, 0.0));
        assert!(near(board.waiting_watts_at(50.0), 70.0, 1e-12));
    }

    #[test]
    fn the_slowest_gpu_sets_the_pace() {
        assert_eq!(synchronised_rate(&[10.0, 8.0, 12.0], 1), 24.0);
        assert!(near(synchronised_rate(&[10.0, 10.0], 3), 20.0 / 1.06, 1e-12));
        assert_eq!(synchronised_rate(&[], 1), 0.0);
    }

    #[test]
    fn remembered_states_are_those_computed() {
        let board = BoardModel::A100.board();
        let mut solver = SteadyStateCache::default();
        let runners = alike(WorkloadProfile::MID, 2, 50.0);
        let first = solver.solve(board, &runners, OperatingLimits::default(), 57.1).clone();
        assert_eq!(first, solve(board, &runners, OperatingLimits::default(), 57.0));
        assert_eq!(&first, solver.solve(board, &runners, OperatingLimits::default(), 56.9));
        assert_eq!(solver.known.len(), 1);
        let capped = OperatingLimits { power_watts: Some(200.0), clock_mhz: None };
        assert_ne!(&first, solver.solve(board, &runners, capped, 57.0));
    }

    fn model() -> impl Strategy<Value = BoardModel> {
        prop::sample::select(vec![BoardModel::V100, BoardModel::A100, BoardModel::H100, BoardModel::H200])
    }

    fn profile() -> impl Strategy<Value = WorkloadProfile> {
        (1.0..200.0, 0.0..0.8, 0.1..1.0, 0.0..0.9, 0.5..1.3, 0.0..1.0, 0.2..0.8, 0.0..1.0).prop_map(
            |(r, h, s, d, e, g, b, burst)| WorkloadProfile {
                samples_per_second: r,
                host_ratio: h,
                sm_coverage_ratio: s,
                dram_ratio: f64::min(d, 0.9 * (1.0 - h)),
                energy_intensity: e,
                sensitivity: g,
                bandwidth_saturation_ratio: b,
                burst_ratio: burst,
                ..WorkloadProfile::MID
            },
        )
    }

    proptest! {
        #![proptest_config(cases(150))]

        #[test]
        fn caps_hold_and_bite_monotonically(model in model(), profile in profile(), count in 1_usize..5, percent in 25.0..100.0, celsius in 30.0..85.0) {
            let board = model.board();
            let runners = alike(profile, count, percent);
            let at = |watts| solve(board, &runners, OperatingLimits { power_watts: Some(watts), clock_mhz: None }, celsius);
            let mut before: Option<SteadyState> = None;
            for step in 0..=8 {
                let watts = board.power_limit_watts - f64::from(step) / 8.0 * (board.power_limit_watts - board.power_limit_min_watts);
                let now = at(watts);
                let at_lowest = now.clock_mhz <= board.clock_min_mhz;
                prop_assert!(now.power_watts <= watts + 1e-6 || at_lowest, "{} over {watts}", now.power_watts);
                prop_assert!(now.power_watts >= board.static_watts_at(celsius));
                prop_assert!((board.clock_min_mhz..=board.clock_max_mhz).contains(&now.clock_mhz));
                for ratio in [now.busy_ratio, now.sm_active_ratio, now.sm_occupancy_ratio, now.tensor_active_ratio, now.dram_active_ratio, now.io_ratio] {
                    prop_assert!((0.0..=1.0).contains(&ratio));
                }
                if let Some(before) = before {
                    prop_assert!(now.samples_per_second[0] <= before.samples_per_second[0] * (1.0 + 1e-4));
                    prop_assert!(now.clock_mhz <= before.clock_mhz + 0.1);
                }
                before = Some(now);
            }
        }

        #[test]
        fn nobody_is_faster_than_alone(model in model(), profile in profile(), count in 1_usize..5, percent in 25.0..100.0) {
            let steady = solve(model.board(), &alike(profile, count, percent), OperatingLimits::default(), 60.0);
            for rate in steady.samples_per_second {
                prop_assert!(rate > 0.0 && rate <= profile.samples_per_second * (1.0 + 1e-6));
            }
        }

        #[test]
        fn the_order_of_processes_does_not_matter(model in model(), a in profile(), b in profile(), share in 0.2..0.8) {
            let (a, b) = (GpuProcess { profile: a, share }, GpuProcess { profile: b, share: 1.0 - share });
            let one = solve(model.board(), &[a, b, a], OperatingLimits::default(), 60.0);
            let two = solve(model.board(), &[a, a, b], OperatingLimits::default(), 60.0);
            prop_assert_eq!(one.samples_per_second[1], two.samples_per_second[2]);
            prop_assert!(near(one.power_watts, two.power_watts, 1e-9));
        }
    }
}
