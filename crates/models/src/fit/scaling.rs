//! Speedup(N) = 1 / (S + (1 − S)/N + overhead(N)).

use serde::{Deserialize, Serialize};

use super::{FitError, Normal, Quality, nnls};

/// Throughput with a number of GPUs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScalingPoint {
    pub gpus: u32,
    /// In any unit, the same for all points.
    pub throughput: f64,
}

/// How talking to each other grows with the number of GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Overhead {
    /// o·(N − 1): every GPU adds the same, as in a ring bound by latency.
    Linear,
    /// o·ln N: as in a tree.
    Logarithmic,
}

impl Overhead {
    fn of(self, gpus: f64) -> f64 {
        match self {
            Self::Linear => gpus - 1.0,
            Self::Logarithmic => gpus.ln(),
        }
    }
}

/// A fitted scaling law.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ScalingLaw {
    /// S: part of the work that does not get faster with more GPUs, 0 to 1.
    pub serial_ratio: f64,
    pub overhead: Overhead,
    /// o: part of the time with one GPU.
    pub overhead_ratio: f64,
    /// Of the speedups.
    pub quality: Quality,
    /// Fewest and most GPUs that were measured.
    pub gpus_range: [u32; 2],
}

/// A number of GPUs, and what is expected of it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ReplicaChoice {
    pub gpus: u32,
    pub speedup: f64,
    /// Energy per sample against one GPU, at equal power of each GPU: N / Speedup(N).
    pub energy_ratio: f64,
    /// Beyond what was measured.
    pub extrapolated: bool,
}

impl ScalingLaw {
    /// Fits S and o, neither negative, to 1/Speedup, with the form of overhead that fits better. Needs the throughput of
    /// one GPU and of two other numbers.
    pub fn fit(points: &[ScalingPoint]) -> Result<Self, FitError> {
        for (index, point) in points.iter().enumerate() {
            if !point.throughput.is_finite() || point.throughput <= 0.0 {
                let value = point.throughput;
                return Err(FitError::Value { index, what: "throughput", value, expected: "finite and above 0" });
            }
            if point.gpus == 0 {
                return Err(FitError::Value { index, what: "number of GPUs", value: 0.0, expected: "at least 1" });
            }
        }
        let mut distinct: Vec<u32> = points.iter().map(|point| point.gpus).collect();
        distinct.sort_unstable();
        distinct.dedup();
        let bases: Vec<f64> = points.iter().filter(|point| point.gpus == 1).map(|point| point.throughput).collect();
        if bases.is_empty() {
            return Err(FitError::NoBase);
        }
        if distinct.len() < 3 {
            return Err(FitError::TooFew { what: "the number of GPUs", found: distinct.len(), needed: 3 });
        }
        let base = bases.iter().sum::<f64>() / bases.len() as f64;
        let observed: Vec<f64> = points.iter().map(|point| point.throughput / base).collect();
        let of = |overhead: Overhead| {
            let mut normal = Normal::<2>::new();
            for (point, speedup) in points.iter().zip(&observed) {
                let n = f64::from(point.gpus);
                // 1/Speedup − 1/N = S·(1 − 1/N) + o·overhead(N)
                normal.add(&[1.0 - 1.0 / n, overhead.of(n)], 1.0 / speedup - 1.0 / n, speedup * speedup);
            }
            let [serial, o] = nnls(&normal);
            let law = Self {
                serial_ratio: serial.min(1.0),
                overhead,
                overhead_ratio: o,
                quality: Quality { r_squared: None, mape_ratio: 0.0, count: 0 },
                gpus_range: [distinct[0], distinct[distinct.len() - 1]],
            };
            let predicted: Vec<f64> = points.iter().map(|point| law.speedup(point.gpus)).collect();
            Self { quality: Quality::of(&observed, &predicted).unwrap_or(law.quality), ..law }
        };
        let (linear, logarithmic) = (of(Overhead::Linear), of(Overhead::Logarithmic));
        Ok(if logarithmic.quality.mape_ratio < linear.quality.mape_ratio { logarithmic } else { linear })
    }

    pub fn speedup(&self, gpus: u32) -> f64 {
        let n = f64::from(gpus.max(1));
        1.0 / (self.serial_ratio + (1.0 - self.serial_ratio) / n + self.overhead_ratio * self.overhead.of(n))
    }

    /// Of these numbers, the one with the least energy per sample whose speedup is at least `min_speedup`; ties to the faster.
    /// `None` where none is fast enough.
    pub fn choose(&self, candidates: &[u32], min_speedup: f64) -> Option<ReplicaChoice> {
        let expected = candidates.iter().filter(|gpus| **gpus > 0).map(|&gpus| {
            let speedup = self.speedup(gpus);
            let extrapolated = gpus < self.gpus_range[0] || gpus > self.gpus_range[1];
            ReplicaChoice { gpus, speedup, energy_ratio: f64::from(gpus) / speedup, extrapolated }
        });
        expected
            .filter(|choice| choice.speedup >= min_speedup)
            .min_by(|a, b| a.energy_ratio.total_cmp(&b.energy_ratio).then(b.speedup.total_cmp(&a.speedup)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(speedup: impl Fn(f64) -> f64) -> Vec<ScalingPoint> {
        [1, 2, 4, 8, 16].map(|gpus| ScalingPoint { gpus, throughput: 50.0 * speedup(f64::from(gpus)) }).to_vec()
    }

    #[test]
    fn finds_serial_part_and_form_of_overhead() {
        let amdahl = ScalingLaw::fit(&points(|n| 1.0 / (0.1 + 0.9 / n))).unwrap();
        assert!((amdahl.serial_ratio - 0.1).abs() < 1e-9 && amdahl.overhead_ratio < 1e-9, "{amdahl:?}");
        let linear = ScalingLaw::fit(&points(|n| 1.0 / (0.02 + 0.98 / n + 0.01 * (n - 1.0)))).unwrap();
        assert_eq!(linear.overhead, Overhead::Linear);
        assert!((linear.overhead_ratio - 0.01).abs() < 1e-9, "{linear:?}");
        let tree = ScalingLaw::fit(&points(|n| 1.0 / (0.02 + 0.98 / n + 0.05 * n.ln()))).unwrap();
        assert_eq!(tree.overhead, Overhead::Logarithmic);
        assert!(tree.quality.mape_ratio < 1e-9);
    }

    #[test]
    fn replicas_are_chosen_by_energy_above_a_speed() {
        let law = ScalingLaw::fit(&points(|n| 1.0 / (0.02 + 0.98 / n + 0.01 * (n - 1.0)))).unwrap();
        let choice = law.choose(&[1, 2, 4, 8, 16], 2.0).unwrap();
        assert_eq!(choice.gpus, 4, "2 GPUs are not twice as fast as one; more than 4 only waste: {choice:?}");
        assert!(law.speedup(16) < law.speedup(8), "the overhead takes it back");
        assert_eq!(law.choose(&[1, 2, 4, 8, 16], 50.0), None);
        assert!(law.choose(&[32], 0.0).unwrap().extrapolated);
    }

    #[test]
    fn needs_a_base_and_three_numbers() {
        let all = points(|n| n);
        assert_eq!(ScalingLaw::fit(&all[1..]), Err(FitError::NoBase));
        assert!(matches!(ScalingLaw::fit(&all[..2]), Err(FitError::TooFew { found: 2, .. })));
        assert!(ScalingLaw::fit(&[ScalingPoint { gpus: 0, throughput: 1.0 }]).is_err());
    }
}
