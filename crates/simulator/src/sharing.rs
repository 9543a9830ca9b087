//! Measurements as in a laboratory, of workloads that share a simulated GPU: each alone at several shares of the SMs, and
//! together at several partitions. Simulated, like everything here.
//!
//! [`paper_suite`] are the sixteen workloads of the paper on SM allocation: SM and memory activity are those of its Table 1
//! (measured by its authors on a V100); rates, sensitivities and bandwidth saturation of the four memory-bound CUDA samples
//! are fitted to its gains over equal shares; everything else is assumed. [`stress_suite`] are workloads drawn at random over far
//! wider ranges, whose sensitivities no counter shows.

use eadt_gpu_sharing::{
    CoRun, CoRunTenant, GpuMeasurements, MeasurementsError, MetricValues, ProfileError, ProfileMetric, SoloPoint, SoloProfile,
};
use eadt_schemas::fnv::Fnv1a;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, StandardNormal};
use rand_pcg::Pcg64Mcg;

use crate::gpu::{BoardModel, GpuProcess, OperatingLimits, SteadyState, WorkloadProfile, solve};

/// A workload with further figures that instruments see and the GPU model does not need.
#[derive(Debug, Clone, PartialEq)]
pub struct SharedWorkload {
    pub name: String,
    pub profile: WorkloadProfile,
    /// Part of the active SM time in which the FP32 pipe is busy. Assumed.
    pub fp32_ratio: f64,
}

/// Standard deviations of the laboratory's instruments, as parts of the readings. A reading is a mean over about a minute.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LabNoise {
    pub throughput_ratio: f64,
    pub power_ratio: f64,
    pub counter_ratio: f64,
    pub seed: u64,
}

impl LabNoise {
    /// Perfect instruments.
    pub const NONE: Self = Self { throughput_ratio: 0.0, power_ratio: 0.0, counter_ratio: 0.0, seed: 0 };

    /// Returns the noise of the simulator's other instruments: 2 % of throughput, 1.5 % of power and of counters.
    pub const fn usual(seed: u64) -> Self {
        Self { throughput_ratio: 0.02, power_ratio: 0.015, counter_ratio: 0.015, seed }
    }
}

/// The reason why a laboratory cannot measure.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum LabError {
    #[error("the laboratory's figures are refused")]
    Measurements(#[from] MeasurementsError),
    #[error("a profile is refused")]
    Profile(#[from] ProfileError),
}

/// A GPU with workloads that may share it.
#[derive(Debug, Clone)]
pub struct SharingLab {
    board: BoardModel,
    workloads: Vec<SharedWorkload>,
    noise: LabNoise,
}

/// Partitions of a GPU among workloads, by number.
#[derive(Debug, Clone, PartialEq)]
pub struct LabPlan {
    /// Workloads that run together.
    pub groups: Vec<Vec<usize>>,
    /// Shares in percent; of each group those with as many parts as it has workloads.
    pub partitions: Vec<Vec<u32>>,
    /// Highest SM clocks; `None` for the board's maximum.
    pub clocks: Vec<Option<f64>>,
}

const AMBIENT_CELSIUS: f64 = 30.0;
/// Shares at which each workload is measured alone.
const TENTHS: [u32; 10] = [10, 20, 30, 40, 50, 60, 70, 80, 90, 100];

impl SharingLab {
    pub fn new(board: BoardModel, workloads: Vec<SharedWorkload>, noise: LabNoise) -> Self {
        Self { board, workloads, noise }
    }

    pub fn workloads(&self) -> &[SharedWorkload] {
        &self.workloads
    }

    /// Returns every pair, a workload with itself included, whose memory fits together.
    pub fn pairs(&self, memory_gib: f64) -> Vec<Vec<usize>> {
        let count = self.workloads.len();
        let all = (0..count).flat_map(|a| (a..count).map(move |b| vec![a, b]));
        all.filter(|pair| self.memory_gib(pair) <= memory_gib).collect()
    }

    /// Returns every triple of different workloads whose memory fits together.
    pub fn triples(&self, memory_gib: f64) -> Vec<Vec<usize>> {
        let count = self.workloads.len();
        let all = (0..count).flat_map(|a| (a + 1..count).flat_map(move |b| (b + 1..count).map(move |c| vec![a, b, c])));
        all.filter(|triple| self.memory_gib(triple) <= memory_gib).collect()
    }

    fn memory_gib(&self, group: &[usize]) -> f64 {
        group.iter().map(|workload| self.workloads[*workload].profile.memory_gib).sum()
    }

    /// Measures everything of a plan: each workload alone at tenths of the SMs and at the plan's shares, and the groups together.
    pub fn measure(&self, plan: &LabPlan) -> Result<GpuMeasurements, LabError> {
        let mut shares: Vec<u32> = plan.partitions.iter().flatten().copied().chain(TENTHS).collect();
        shares.sort_unstable();
        shares.dedup();
        let profiles = self.workloads.iter().map(|workload| self.alone(workload, &shares, &plan.clocks));
        let profiles = profiles.collect::<Result<Vec<_>, _>>()?;
        let mut runs = Vec::new();
        for group in &plan.groups {
            for clock in &plan.clocks {
                for shares in plan.partitions.iter().filter(|shares| shares.len() == group.len()) {
                    runs.push(self.together(group, shares, *clock));
                }
            }
        }
        // Processes that hold their contexts but wait, at a temperature near the ambient one.
        let idle_watts = self.board.board().static_watts_at(AMBIENT_CELSIUS);
        Ok(GpuMeasurements::new(idle_watts, profiles, runs)?)
    }

    fn alone(&self, workload: &SharedWorkload, shares: &[u32], clocks: &[Option<f64>]) -> Result<SoloProfile, ProfileError> {
        let mut points = Vec::new();
        for clock in clocks {
            for share in shares {
                let steady = self.settled(&[GpuProcess { profile: workload.profile, share: f64::from(*share) / 100.0 }], *clock);
                let mut random = self.noise_of(&[&workload.name], &[*share], *clock);
                let rate = steady.samples_per_second[0] * factor(&mut random, self.noise.throughput_ratio);
                let traffic = rate * workload.profile.pcie_megabytes_per_sample * 1e6;
                let dram = steady.dram_active_ratio;
                let counters = MetricValues::of(|metric| {
                    let exact = match metric {
                        ProfileMetric::SmActiveRatio => steady.sm_active_ratio,
                        ProfileMetric::SmOccupancyRatio => steady.sm_occupancy_ratio,
                        ProfileMetric::Fp32ActiveRatio => steady.sm_active_ratio * workload.fp32_ratio,
                        ProfileMetric::DramActiveRatio => dram,
                        // Assumed: memory is busy whenever any of its channels is.
                        ProfileMetric::MemoryBusyRatio => 1.0 - (1.0 - dram.min(1.0)).powf(1.5),
                        // Assumed: most of the traffic brings input.
                        ProfileMetric::PcieTransmitBytesPerSecond => 0.2 * traffic,
                        ProfileMetric::PcieReceiveBytesPerSecond => 0.8 * traffic,
                    };
                    Some((exact * metric_noise(self.noise, metric, &workload.name, *share, *clock)).min(limit(metric)))
                });
                points.push(SoloPoint {
                    mps_thread_percentage: *share,
                    sm_clock_mhz: *clock,
                    samples_per_second: rate,
                    power_watts: steady.power_watts * factor(&mut random, self.noise.power_ratio),
                    counters,
                });
            }
        }
        SoloProfile::new(workload.name.clone(), self.board.board().name.to_owned(), points)
    }

    fn together(&self, group: &[usize], shares: &[u32], clock: Option<f64>) -> CoRun {
        let workloads: Vec<&SharedWorkload> = group.iter().map(|workload| &self.workloads[*workload]).collect();
        let runners: Vec<GpuProcess> = workloads
            .iter()
            .zip(shares)
            .map(|(workload, share)| GpuProcess { profile: workload.profile, share: f64::from(*share) / 100.0 })
            .collect();
        let steady = self.settled(&runners, clock);
        let names: Vec<&str> = workloads.iter().map(|workload| workload.name.as_str()).collect();
        let mut random = self.noise_of(&names, shares, clock);
        let tenants = names.iter().zip(shares).zip(&steady.samples_per_second).map(|((name, share), rate)| CoRunTenant {
            workload: (*name).to_owned(),
            mps_thread_percentage: *share,
            samples_per_second: rate * factor(&mut random, self.noise.throughput_ratio),
        });
        let tenants = tenants.collect();
        CoRun { tenants, sm_clock_mhz: clock, power_watts: steady.power_watts * factor(&mut random, self.noise.power_ratio) }
    }

    /// Returns the steady state once the temperature has settled.
    fn settled(&self, runners: &[GpuProcess], clock_mhz: Option<f64>) -> SteadyState {
        let board = self.board.board();
        let limits = OperatingLimits { clock_mhz, power_watts: None };
        let mut steady = solve(board, runners, limits, 60.0);
        for _ in 0..3 {
            let celsius = AMBIENT_CELSIUS + board.thermal_resistance * steady.power_watts;
            steady = solve(board, runners, limits, celsius);
        }
        steady
    }

    /// Returns the noise of a reading; the same reading has the same noise, whatever else is measured.
    fn noise_of(&self, names: &[&str], shares: &[u32], clock: Option<f64>) -> Pcg64Mcg {
        generator(self.noise.seed, names, shares, clock, 0)
    }
}

const fn limit(metric: ProfileMetric) -> f64 {
    if metric.is_ratio() { 1.05 } else { f64::MAX }
}

fn metric_noise(noise: LabNoise, metric: ProfileMetric, name: &str, share: u32, clock: Option<f64>) -> f64 {
    factor(&mut generator(noise.seed, &[name], &[share], clock, 1 + metric as u64), noise.counter_ratio)
}

fn factor(random: &mut Pcg64Mcg, ratio: f64) -> f64 {
    let normal: f64 = StandardNormal.sample(random);
    (ratio * normal.clamp(-4.0, 4.0)).exp()
}

/// Returns a generator whose seed is the sum of the arguments.
fn generator(seed: u64, names: &[&str], shares: &[u32], clock: Option<f64>, stream: u64) -> Pcg64Mcg {
    let mut key = Fnv1a::default();
    key.write(&seed.to_le_bytes());
    key.write(&stream.to_le_bytes());
    key.write(&clock.unwrap_or(0.0).to_bits().to_le_bytes());
    for name in names {
        key.write(name.as_bytes());
    }
    for share in shares {
        key.write(&share.to_le_bytes());
    }
    Pcg64Mcg::seed_from_u64(key.finish())
}

/// Name, SM active and DRAM active alone on the whole GPU (measured, the paper's Table 1); samples/s (fitted); SM coverage,
/// energy intensity (assumed); sensitivity, bandwidth saturation (fitted); occupancy, FP32 (assumed); PCIe MB a sample, memory
/// in GiB (assumed).
type PaperWorkload = (&'static str, [f64; 2], f64, [f64; 2], [f64; 2], [f64; 2], [f64; 2]);

#[allow(clippy::approx_constant, reason = "0.318 is a measured activity")]
const PAPER: [PaperWorkload; 16] = [
    ("FWT", [0.956, 0.804], 62.8, [0.98, 0.80], [0.90, 0.23], [0.85, 0.30], [0.1, 6.0]),
    ("Reduction", [0.932, 0.744], 600.0, [0.98, 0.75], [0.90, 0.80], [0.80, 0.22], [0.1, 6.0]),
    ("Transpose", [0.843, 0.680], 295.8, [0.97, 0.75], [0.90, 0.80], [0.75, 0.02], [0.1, 6.0]),
    ("Sorting", [0.834, 0.625], 56.9, [0.97, 0.80], [0.90, 0.16], [0.55, 0.05], [2.0, 6.0]),
    ("Gemm", [0.985, 0.128], 94.4, [0.99, 1.25], [0.085, 0.35], [0.25, 0.85], [0.2, 6.0]),
    ("ALBERT-train", [0.887, 0.318], 16.6, [0.96, 1.05], [0.094, 0.35], [0.40, 0.42], [1.5, 15.2]),
    ("BERT-inf", [0.874, 0.241], 45.4, [0.95, 1.05], [0.094, 0.35], [0.35, 0.55], [0.3, 8.0]),
    ("ViT-train", [0.872, 0.373], 16.7, [0.95, 1.05], [0.094, 0.35], [0.42, 0.40], [2.4, 15.6]),
    ("Whisper-inf", [0.871, 0.238], 8.5, [0.95, 1.00], [0.094, 0.35], [0.33, 0.50], [4.0, 12.0]),
    ("BERT-train", [0.855, 0.344], 44.2, [0.95, 1.05], [0.094, 0.35], [0.40, 0.42], [1.2, 18.0]),
    ("Wav2Vec2-inf", [0.802, 0.252], 14.1, [0.93, 1.00], [0.094, 0.35], [0.30, 0.45], [1.0, 12.0]),
    ("ViT-inf", [0.331, 0.049], 30.9, [0.55, 0.90], [0.80, 0.35], [0.28, 0.50], [1.2, 6.0]),
    ("ResNet50-train", [0.151, 0.071], 27.4, [0.35, 0.80], [0.80, 0.35], [0.35, 0.35], [4.0, 11.0]),
    ("ResNet50-inf", [0.102, 0.027], 19.7, [0.28, 0.80], [0.80, 0.35], [0.25, 0.40], [1.2, 4.0]),
    ("Mobile-train", [0.041, 0.009], 11.8, [0.18, 0.70], [0.80, 0.35], [0.30, 0.20], [3.0, 7.0]),
    ("Mobile-inf", [0.033, 0.012], 20.8, [0.15, 0.70], [0.80, 0.35], [0.20, 0.20], [0.6, 3.0]),
];

/// Memory in GiB at which the paper's sixteen workloads make its 121 pairs.
pub const PAPER_MEMORY_GIB: f64 = 26.0;

/// Returns the paper's sixteen workloads.
pub fn paper_suite() -> Vec<SharedWorkload> {
    let workload = |(
        name,
        [sm_active, dram],
        rate,
        [coverage, energy],
        [sensitivity, saturation],
        [occupancy, fp32],
        [pcie, memory],
    ): &PaperWorkload| {
        SharedWorkload {
            name: (*name).to_owned(),
            profile: WorkloadProfile {
                samples_per_second: *rate,
                // Alone on the whole GPU, SMs are active while the host does not hold the step up, as far as kernels fill them.
                host_ratio: (1.0 - sm_active / coverage).clamp(0.005, 0.97),
                sm_coverage_ratio: *coverage,
                dram_ratio: *dram,
                energy_intensity: *energy,
                sensitivity: *sensitivity,
                bandwidth_saturation_ratio: *saturation,
                pcie_megabytes_per_sample: *pcie,
                occupancy_ratio: *occupancy,
                memory_gib: *memory,
                ..WorkloadProfile::MID
            },
            fp32_ratio: *fp32,
        }
    };
    PAPER.iter().map(workload).collect()
}

/// Workloads drawn at random over the whole range of the model.
pub fn stress_suite(count: usize, seed: u64) -> Vec<SharedWorkload> {
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    (0..count)
        .map(|number| {
            let host = random.random_range(0.01..0.3);
            let profile = WorkloadProfile {
                samples_per_second: random.random_range(2.0_f64.ln()..600.0_f64.ln()).exp(),
                host_ratio: host,
                sm_coverage_ratio: random.random_range(0.3..0.99),
                dram_ratio: random.random_range(0.05..0.9) * (1.0 - host),
                energy_intensity: random.random_range(0.6..1.3),
                sensitivity: random.random_range(0.0..3.0),
                bandwidth_saturation_ratio: random.random_range(0.12..0.9),
                pcie_megabytes_per_sample: random.random_range(0.1..4.0),
                occupancy_ratio: random.random_range(0.2..0.9),
                memory_gib: 4.0,
                ..WorkloadProfile::MID
            };
            SharedWorkload { name: format!("random-{number:02}"), profile, fp32_ratio: random.random_range(0.02..0.85) }
        })
        .collect()
}

/// Returns the nine partitions of a pair: 10 and 90 %, 20 and 80 %, …
pub fn tenths() -> Vec<Vec<u32>> {
    (1..10).map(|tenth| vec![tenth * 10, 100 - tenth * 10]).collect()
}
