//! `P = P_base + P_compute(utilisation, clock) + P_mem(bandwidth) + P_io`, fitted to telemetry.

use serde::{Deserialize, Serialize};

use super::{FitError, FitQuality, NormalEquations, nnls};

/// Activity of a GPU, as its counters report it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GpuActivity {
    /// Part of the SMs' time in which they hold a warp, 0 to 1.
    pub sm_active_ratio: f64,
    /// SM clock over the board's highest, 0 to 1.
    pub clock_ratio: f64,
    /// Part of the time in which the memory interface moves data, 0 to 1.
    pub dram_active_ratio: f64,
    /// PCIe traffic in both directions in GB/s.
    pub io_gigabytes_per_second: f64,
}

/// Power while a GPU did something.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PowerObservation {
    pub activity: GpuActivity,
    pub watts: f64,
}

/// Watts = base + sm·(linear·φ + cubic·φ³) + memory·dram + io·GB/s, with φ the clock ratio; no coefficient is negative.
///
/// φ³ represents φ·V², as the voltage rises about evenly with the clock above its knee.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PowerModel {
    pub base_watts: f64,
    pub compute_linear_watts: f64,
    pub compute_cubic_watts: f64,
    pub memory_watts: f64,
    pub io_watts_per_gigabyte_per_second: f64,
    pub quality: FitQuality,
    /// Lowest and highest value of each feature that it was fitted on: SM activity, clock ratio, DRAM activity, GB/s.
    pub range: [[f64; 2]; 4],
}

/// Power that a model expects.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PowerPrediction {
    pub watts: f64,
    /// All features lie where the model was fitted; outside it is an extrapolation.
    pub inside_range: bool,
}

const COEFFICIENTS: usize = 5;

impl GpuActivity {
    fn row(&self) -> [f64; COEFFICIENTS] {
        let Self { sm_active_ratio: sm, clock_ratio: phi, dram_active_ratio: dram, io_gigabytes_per_second: io } = *self;
        [1.0, sm * phi, sm * phi.powi(3), dram, io]
    }

    fn features(&self) -> [f64; 4] {
        [self.sm_active_ratio, self.clock_ratio, self.dram_active_ratio, self.io_gigabytes_per_second]
    }
}

impl PowerModel {
    /// Fits by non-negative least squares on relative errors, so that a board at 80 W counts as much as one at 400 W.
    pub fn fit(observations: &[PowerObservation]) -> Result<Self, FitError> {
        for (index, PowerObservation { activity, watts }) in observations.iter().enumerate() {
            let ratios = [
                ("SM activity", activity.sm_active_ratio),
                ("clock ratio", activity.clock_ratio),
                ("DRAM activity", activity.dram_active_ratio),
            ];
            for (what, value) in ratios {
                if !(0.0..=1.001).contains(&value) {
                    return Err(FitError::Value { index, what, value, expected: "within 0 and 1: a ratio, no percent" });
                }
            }
            let io = activity.io_gigabytes_per_second;
            if !(0.0..1e4).contains(&io) {
                return Err(FitError::Value { index, what: "PCIe traffic", value: io, expected: "in GB/s" });
            }
            if !watts.is_finite() || *watts <= 0.0 {
                return Err(FitError::Value { index, what: "power in watts", value: *watts, expected: "finite and above 0" });
            }
        }
        let mut distinct: Vec<[u64; 4]> = observations.iter().map(|o| o.activity.features().map(f64::to_bits)).collect();
        distinct.sort_unstable();
        distinct.dedup();
        if distinct.len() <= COEFFICIENTS {
            return Err(FitError::TooFew { what: "activity", found: distinct.len(), needed: COEFFICIENTS + 1 });
        }
        let mut normal = NormalEquations::new();
        for PowerObservation { activity, watts } in observations {
            normal.add(&activity.row(), *watts, watts.powi(-2));
        }
        let [base_watts, compute_linear_watts, compute_cubic_watts, memory_watts, io] = nnls(&normal);
        let mut range = [[f64::INFINITY, f64::NEG_INFINITY]; 4];
        for observation in observations {
            for (bounds, value) in range.iter_mut().zip(observation.activity.features()) {
                *bounds = [bounds[0].min(value), bounds[1].max(value)];
            }
        }
        let mut model = Self {
            base_watts,
            compute_linear_watts,
            compute_cubic_watts,
            memory_watts,
            io_watts_per_gigabyte_per_second: io,
            quality: FitQuality { r_squared: None, mape_ratio: 0.0, count: 0 },
            range,
        };
        let observed: Vec<f64> = observations.iter().map(|observation| observation.watts).collect();
        let predicted: Vec<f64> = observations.iter().map(|observation| model.predict(&observation.activity).watts).collect();
        if let Some(quality) = FitQuality::of(&observed, &predicted) {
            model.quality = quality;
        }
        Ok(model)
    }

    pub fn predict(&self, activity: &GpuActivity) -> PowerPrediction {
        let coefficients = [
            self.base_watts,
            self.compute_linear_watts,
            self.compute_cubic_watts,
            self.memory_watts,
            self.io_watts_per_gigabyte_per_second,
        ];
        let watts = activity.row().iter().zip(coefficients).map(|(feature, watts)| feature * watts).sum();
        let inside = |(bounds, value): (&[f64; 2], f64)| (bounds[0] - 1e-9..=bounds[1] + 1e-9).contains(&value);
        PowerPrediction { watts, inside_range: self.range.iter().zip(activity.features()).all(inside) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn activities() -> Vec<GpuActivity> {
        let mut all = Vec::new();
        for sm in [0.2, 0.6, 0.95] {
            for phi in [0.4, 0.7, 1.0] {
                for dram in [0.05, 0.5] {
                    let io = 4.0 * sm * dram + 1.0;
                    all.push(GpuActivity {
                        sm_active_ratio: sm,
                        clock_ratio: phi,
                        dram_active_ratio: dram,
                        io_gigabytes_per_second: io,
                    });
                }
            }
        }
        all
    }

    fn watts(activity: &GpuActivity) -> f64 {
        let phi = activity.clock_ratio;
        60.0 + activity.sm_active_ratio * (80.0 * phi + 120.0 * phi.powi(3))
            + 50.0 * activity.dram_active_ratio
            + 2.0 * activity.io_gigabytes_per_second
    }

    #[test]
    fn finds_the_parts_that_made_the_power() {
        let observations: Vec<_> =
            activities().into_iter().map(|activity| PowerObservation { watts: watts(&activity), activity }).collect();
        let model = PowerModel::fit(&observations).unwrap();
        assert!((model.base_watts - 60.0).abs() < 1e-6 && (model.compute_cubic_watts - 120.0).abs() < 1e-6, "{model:?}");
        assert!((model.memory_watts - 50.0).abs() < 1e-6, "{model:?}");
        assert!(model.quality.mape_ratio < 1e-9 && model.quality.r_squared.unwrap() > 1.0 - 1e-9);
        let beyond = GpuActivity { sm_active_ratio: 1.0, ..observations[0].activity };
        assert!(!model.predict(&beyond).inside_range && model.predict(&observations[0].activity).inside_range);
    }

    #[test]
    fn percent_for_ratios_and_too_little_variety_are_refused() {
        let mut observations: Vec<_> =
            activities().into_iter().map(|activity| PowerObservation { watts: 100.0, activity }).collect();
        observations[3].activity.sm_active_ratio = 95.0;
        let message = PowerModel::fit(&observations).unwrap_err().to_string();
        assert!(message.starts_with("measurement 3: SM activity is 95") && message.contains("no percent"), "{message}");
        let same = vec![observations[0]; 20];
        assert!(matches!(PowerModel::fit(&same), Err(FitError::TooFew { found: 1, .. })));
    }
}
