//! Measurements of a workload alone on a GPU, by SM share and by clock.

use serde::{Deserialize, Serialize};

/// An activity counter that predictions may use. All are means over the time of a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProfileMetric {
    /// Share of time in which an SM had a warp assigned, averaged over all SMs of the GPU.
    SmActiveRatio,
    /// Resident warps over the most possible.
    SmOccupancyRatio,
    /// Share of cycles in which the FP32 pipe was active.
    Fp32ActiveRatio,
    /// Share of cycles in which device memory sent or received.
    DramActiveRatio,
    /// Share of time in which device memory was read or written.
    MemoryBusyRatio,
    /// Bytes sent over PCIe a second.
    PcieTransmitBytesPerSecond,
    /// Bytes received over PCIe a second.
    PcieReceiveBytesPerSecond,
}

impl ProfileMetric {
    pub const ALL: [Self; 7] = [
        Self::SmActiveRatio,
        Self::SmOccupancyRatio,
        Self::Fp32ActiveRatio,
        Self::DramActiveRatio,
        Self::MemoryBusyRatio,
        Self::PcieTransmitBytesPerSecond,
        Self::PcieReceiveBytesPerSecond,
    ];

    /// Returns the name in tables and models.
    pub const fn name(self) -> &'static str {
        match self {
            Self::SmActiveRatio => "sm_active_ratio",
            Self::SmOccupancyRatio => "sm_occupancy_ratio",
            Self::Fp32ActiveRatio => "fp32_active_ratio",
            Self::DramActiveRatio => "dram_active_ratio",
            Self::MemoryBusyRatio => "memory_busy_ratio",
            Self::PcieTransmitBytesPerSecond => "pcie_transmit_bytes_per_second",
            Self::PcieReceiveBytesPerSecond => "pcie_receive_bytes_per_second",
        }
    }

    /// Returns true for a ratio, whose mean over tenants has a meaning; other metrics are added up.
    pub const fn is_ratio(self) -> bool {
        !matches!(self, Self::PcieTransmitBytesPerSecond | Self::PcieReceiveBytesPerSecond)
    }

    /// Returns the greatest value that is believed. Counters of a device may exceed 1 by their own rounding.
    const fn largest(self) -> f64 {
        if self.is_ratio() { 1.05 } else { 1e15 }
    }
}

/// Values of the metrics; metrics that were not measured are absent.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct MetricValues([Option<f64>; ProfileMetric::ALL.len()]);

impl MetricValues {
    pub const fn get(&self, metric: ProfileMetric) -> Option<f64> {
        self.0[metric as usize]
    }

    pub const fn set(&mut self, metric: ProfileMetric, value: Option<f64>) {
        self.0[metric as usize] = value;
    }

    /// Builds the metrics from a function.
    pub fn of(value: impl Fn(ProfileMetric) -> Option<f64>) -> Self {
        Self(ProfileMetric::ALL.map(value))
    }
}

/// One measurement of a workload alone on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct SoloPoint {
    /// `CUDA_MPS_ACTIVE_THREAD_PERCENTAGE`: its share of the SMs. 1 to 100.
    pub mps_thread_percentage: u32,
    /// Highest SM clock that was allowed; absent: the board's own.
    pub sm_clock_mhz: Option<f64>,
    /// Work done a second, in the workload's own unit.
    pub samples_per_second: f64,
    /// Mean power of the whole GPU.
    pub power_watts: f64,
    /// Mean activity of the GPU.
    pub counters: MetricValues,
}

/// The reason why a profile is refused. The error names the workload; the reader of a table adds file and row.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ProfileError {
    #[error("workload {workload} at {percentage} %: {field} is {value}, but must be within {low} and {high}")]
    Value { workload: String, percentage: u32, field: &'static str, value: f64, low: f64, high: f64 },
    #[error("workload {workload} at {percentage} %: power_watts is {value}, which no GPU draws: milliwatts? divide by 1000")]
    Milliwatts { workload: String, percentage: u32, value: f64 },
    #[error(
        "workload {workload} was measured twice at {percentage} % and the same clock: combine the runs, by their median for example"
    )]
    Twice { workload: String, percentage: u32 },
    #[error("workload {workload} was not measured at 100 %{clock}: without it the cost of sharing is not known")]
    NotWhole { workload: String, clock: String },
    #[error(
        "workload {workload} was measured at 100 % only: measure smaller shares, too, for how it reacts to fewer SMs cannot be guessed"
    )]
    OneShare { workload: String },
}

/// The measurements at one clock, by share.
#[derive(Debug, Clone, PartialEq)]
struct ShareCurve {
    sm_clock_mhz: Option<f64>,
    points: Vec<SoloPoint>,
    /// The same with throughput and power that never fall if the share grows, nor bend upwards.
    expected: Vec<SoloPoint>,
}

/// Measurements of a workload alone on one GPU model, at several SM shares.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "ProfileDocument", into = "ProfileDocument")]
pub struct SoloProfile {
    workload: String,
    gpu_model: String,
    /// Highest clock first.
    curves: Vec<ShareCurve>,
    share_sensitivity: f64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ProfileDocument {
    workload: String,
    gpu_model: String,
    points: Vec<SoloPoint>,
}

impl TryFrom<ProfileDocument> for SoloProfile {
    type Error = ProfileError;

    fn try_from(written: ProfileDocument) -> Result<Self, ProfileError> {
        Self::new(written.workload, written.gpu_model, written.points)
    }
}

impl From<SoloProfile> for ProfileDocument {
    fn from(profile: SoloProfile) -> Self {
        let points = profile.points().copied().collect();
        Self { workload: profile.workload, gpu_model: profile.gpu_model, points }
    }
}

/// No GPU draws more; a value above is another unit.
const POWER_MAX: f64 = 5_000.0;

impl SoloProfile {
    /// Checks and sorts the measurements. Every clock needs one at 100 % and at least one at a smaller share.
    pub fn new(workload: String, gpu_model: String, mut points: Vec<SoloPoint>) -> Result<Self, ProfileError> {
        for point in &points {
            check(&workload, point)?;
        }
        let clock = |point: &SoloPoint| point.sm_clock_mhz.unwrap_or(f64::INFINITY);
        points.sort_by(|a, b| clock(b).total_cmp(&clock(a)).then(a.mps_thread_percentage.cmp(&b.mps_thread_percentage)));
        let mut curves: Vec<ShareCurve> = Vec::new();
        for point in points {
            match curves.last_mut() {
                Some(curve) if curve.sm_clock_mhz == point.sm_clock_mhz => curve.points.push(point),
                _ => curves.push(ShareCurve { sm_clock_mhz: point.sm_clock_mhz, points: vec![point], expected: Vec::new() }),
            }
        }
        if curves.is_empty() {
            return Err(ProfileError::NotWhole { workload, clock: String::new() });
        }
        for curve in &curves {
            let same = curve.points.windows(2).find(|pair| pair[0].mps_thread_percentage == pair[1].mps_thread_percentage);
            if let Some(same) = same {
                return Err(ProfileError::Twice { workload, percentage: same[0].mps_thread_percentage });
            }
            if curve.points.last().is_none_or(|last| last.mps_thread_percentage != 100) {
                let clock = curve.sm_clock_mhz.map_or(String::new(), |mhz| format!(" and {mhz} MHz"));
                return Err(ProfileError::NotWhole { workload, clock });
            }
            if curve.points.len() < 2 {
                return Err(ProfileError::OneShare { workload });
            }
        }
        for curve in &mut curves {
            let of_share = |value: fn(&SoloPoint) -> f64| -> Vec<(f64, f64)> {
                curve.points.iter().map(|point| (f64::from(point.mps_thread_percentage), value(point))).collect()
            };
            let rates = concave_fit(&of_share(|point| point.samples_per_second), false);
            let watts = concave_fit(&of_share(|point| point.power_watts), true);
            let of = |((point, samples_per_second), power_watts): ((&SoloPoint, f64), f64)| SoloPoint {
                samples_per_second,
                power_watts,
                ..*point
            };
            curve.expected = curve.points.iter().zip(rates).zip(watts).map(of).collect();
        }
        let elasticity = slope(&curves[0].points) / whole(&curves[0]).samples_per_second;
        Ok(Self { workload, gpu_model, curves, share_sensitivity: elasticity })
    }

    pub fn workload(&self) -> &str {
        &self.workload
    }

    pub fn gpu_model(&self) -> &str {
        &self.gpu_model
    }

    /// Returns every measurement, highest clock and smallest share first.
    pub fn points(&self) -> impl Iterator<Item = &SoloPoint> {
        self.curves.iter().flat_map(|curve| &curve.points)
    }

    /// Returns the clocks at which it was measured, the highest first; `None` is the board's own clock.
    pub fn clocks(&self) -> impl Iterator<Item = Option<f64>> {
        self.curves.iter().map(|curve| curve.sm_clock_mhz)
    }

    /// Returns the whole GPU at the highest clock measured: what progress is compared with.
    pub fn whole(&self) -> &SoloPoint {
        whole(&self.curves[0])
    }

    /// Returns the slope of throughput over the share of the SMs (least squares, at the highest clock), as a part of the
    /// throughput on the whole GPU. It is 1 if throughput grows with the share, and near 0 if more SMs do not help. The paper's
    /// sensitivity is this times [`Self::whole`]'s throughput.
    pub fn elasticity(&self) -> f64 {
        self.share_sensitivity
    }

    /// Returns the figures alone at a share: measured, or interpolated between the two neighbours. `None` below the smallest
    /// measured share, and at clocks that were not measured. `None` as clock is the highest measured.
    pub fn at(&self, mps_thread_percentage: u32, sm_clock_mhz: Option<f64>) -> Option<SoloPoint> {
        between(&self.curve(sm_clock_mhz)?.points, mps_thread_percentage)
    }

    /// Returns the expected figures as [`Self::at`]: throughput and power never fall when the share grows, and grow by no more
    /// than with the shares before (least squares). This removes most of the instruments' noise.
    pub fn expected_at(&self, mps_thread_percentage: u32, sm_clock_mhz: Option<f64>) -> Option<SoloPoint> {
        between(&self.curve(sm_clock_mhz)?.expected, mps_thread_percentage)
    }

    /// Returns whether every measurement has this metric.
    pub fn has(&self, metric: ProfileMetric) -> bool {
        self.points().all(|point| point.counters.get(metric).is_some())
    }

    fn curve(&self, sm_clock_mhz: Option<f64>) -> Option<&ShareCurve> {
        match sm_clock_mhz {
            None => self.curves.first(),
            Some(_) => self.curves.iter().find(|curve| curve.sm_clock_mhz == sm_clock_mhz),
        }
    }
}

/// Interpolates on the line between the two neighbours.
fn between(points: &[SoloPoint], mps_thread_percentage: u32) -> Option<SoloPoint> {
    let above = points.iter().position(|point| point.mps_thread_percentage >= mps_thread_percentage)?;
    let high = points[above];
    if high.mps_thread_percentage == mps_thread_percentage {
        return Some(high);
    }
    let low = points[above.checked_sub(1)?];
    let part = f64::from(mps_thread_percentage - low.mps_thread_percentage)
        / f64::from(high.mps_thread_percentage - low.mps_thread_percentage);
    let between = |a: f64, b: f64| a + part * (b - a);
    Some(SoloPoint {
        mps_thread_percentage,
        sm_clock_mhz: high.sm_clock_mhz,
        samples_per_second: between(low.samples_per_second, high.samples_per_second),
        power_watts: between(low.power_watts, high.power_watts),
        counters: MetricValues::of(|metric| Some(between(low.counters.get(metric)?, high.counters.get(metric)?))),
    })
}

/// Returns the nearest values, by relative squares, of a function that never falls and never bends upwards. More SMs never slow a
/// workload down, and each further one is worth no more than the one before. Without `idle` it begins at 0 for no SMs.
///
/// Such a function is a sum of ramps that end at the measured shares (and a constant), with no negative part: non-negative least
/// squares, by coordinate descent.
fn concave_fit(points: &[(f64, f64)], idle: bool) -> Vec<f64> {
    let columns: Vec<Vec<f64>> = points
        .iter()
        .map(|(end, _)| points.iter().map(|(share, value)| share.min(*end) / value).collect())
        .chain(idle.then(|| points.iter().map(|(_, value)| 1.0 / value).collect()))
        .collect();
    let squares: Vec<f64> = columns.iter().map(|column| column.iter().map(|x| x * x).sum()).collect();
    let mut weights = vec![0.0; columns.len()];
    let mut residuals = vec![1.0; points.len()];
    for _ in 0..ROUNDS {
        let mut moved = 0.0_f64;
        for ((column, weight), square) in columns.iter().zip(&mut weights).zip(&squares) {
            let slope: f64 = column.iter().zip(&residuals).map(|(x, r)| x * r).sum();
            let next = f64::max(*weight + slope / square, 0.0);
            let step = next - *weight;
            if step != 0.0 {
                residuals.iter_mut().zip(column).for_each(|(r, x)| *r -= step * x);
                *weight = next;
                moved = moved.max((step * square.sqrt()).abs());
            }
        }
        if moved < PRECISION {
            break;
        }
    }
    points.iter().zip(&residuals).map(|((_, value), residual)| value * (1.0 - residual)).collect()
}

/// Coordinate descent ends when no ramp changes a value by more than this part, or after `ROUNDS` rounds.
const PRECISION: f64 = 1e-7;
const ROUNDS: u32 = 20_000;

fn check(workload: &str, point: &SoloPoint) -> Result<(), ProfileError> {
    let percentage = point.mps_thread_percentage;
    if (POWER_MAX..1e9).contains(&point.power_watts) && point.power_watts > POWER_MAX {
        return Err(ProfileError::Milliwatts { workload: workload.to_owned(), percentage, value: point.power_watts });
    }
    let fixed = [
        ("mps_thread_percentage", f64::from(percentage), 1.0, 100.0),
        ("sm_clock_mhz", point.sm_clock_mhz.unwrap_or(1.0), 1.0, 1e5),
        ("samples_per_second", point.samples_per_second, 1e-12, 1e12),
        ("power_watts", point.power_watts, 0.1, POWER_MAX),
    ];
    let counters = ProfileMetric::ALL
        .into_iter()
        .filter_map(|metric| Some((metric.name(), point.counters.get(metric)?, 0.0, metric.largest())));
    match fixed.into_iter().chain(counters).find(|(_, value, low, high)| !(*low..=*high).contains(value)) {
        Some((field, value, low, high)) => {
            Err(ProfileError::Value { workload: workload.to_owned(), percentage, field, value, low, high })
        }
        None => Ok(()),
    }
}

fn whole(curve: &ShareCurve) -> &SoloPoint {
    curve.points.last().expect("a curve has a point at 100 %, or the profile was refused")
}

/// Returns the least-squares slope of throughput over the share, in samples/s for the whole GPU.
fn slope(points: &[SoloPoint]) -> f64 {
    let n = points.len() as f64;
    let share = |point: &SoloPoint| f64::from(point.mps_thread_percentage) / 100.0;
    let mean_share = points.iter().map(share).sum::<f64>() / n;
    let mean_rate = points.iter().map(|point| point.samples_per_second).sum::<f64>() / n;
    let across: f64 = points.iter().map(|p| (share(p) - mean_share) * (p.samples_per_second - mean_rate)).sum();
    across / points.iter().map(|point| (share(point) - mean_share).powi(2)).sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_is_bent_away_and_what_is_right_stays() {
        let of = |values: &[f64], idle| {
            let points: Vec<(f64, f64)> = (1_u32..).map(|n| f64::from(n) * 20.0).zip(values.iter().copied()).collect();
            concave_fit(&points, idle)
        };
        let near = |a: &[f64], b: &[f64]| a.iter().zip(b).all(|(a, b)| (a / b - 1.0).abs() < 1e-5);
        for right in [[10.0, 20.0, 30.0, 40.0, 50.0], [10.0, 18.0, 24.0, 28.0, 28.0], [7.0; 5]] {
            assert!(near(&of(&right, false), &right), "{right:?}: {:?}", of(&right, false));
        }
        assert!(near(&of(&[60.0, 70.0, 80.0, 85.0, 85.0], true), &[60.0, 70.0, 80.0, 85.0, 85.0]));
        // Falling and convex parts are smoothed.
        for noisy in [[10.0, 19.0, 31.0, 38.0, 51.0], [10.0, 12.0, 11.0, 13.0, 12.0], [5.0, 20.0, 21.0, 40.0, 41.0]] {
            let bent = of(&noisy, false);
            let slopes: Vec<f64> = bent.windows(2).map(|pair| pair[1] - pair[0]).collect();
            assert!(
                bent[0] >= slopes[0] - 1e-6 && slopes.windows(2).all(|pair| pair[0] >= pair[1] - 1e-5),
                "{noisy:?}: {bent:?}"
            );
            assert!(slopes.iter().all(|slope| *slope >= -1e-6), "{noisy:?}: {bent:?}");
            let off = |values: &[f64]| values.iter().zip(&noisy).map(|(a, b)| (a / b - 1.0).powi(2)).sum::<f64>();
            let straight: Vec<f64> = (1..=5).map(|n| f64::from(n) * bent[4] / 5.0).collect();
            assert!(off(&bent) <= off(&straight) + 1e-9, "{noisy:?}: {bent:?}");
        }
    }
}
