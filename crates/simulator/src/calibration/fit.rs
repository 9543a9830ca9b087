use super::{Sweep, SweepAxis, SweepDeviation, deviation, simulate};
use crate::gpu::{BoardParameters, WorkloadProfile};

/// A workload whose simulated sweep comes nearest to a measured one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SweepFit {
    pub profile: WorkloadProfile,
    pub deviation: SweepDeviation,
}

/// Free parameters: speed against the fastest measured, host, memory, energy, coverage, burst.
const FREE: usize = 6;
type FreeParameters = [f64; FREE];

const LOW: FreeParameters = [0.85, 0.0, 0.0, 0.05, 0.3, 0.0];
const HIGH: FreeParameters = [1.5, 0.95, 0.9, 4.0, 1.0, 1.0];
/// A job bound by the SMs, by the host, by the memory.
const STARTS: [FreeParameters; 3] =
    [[1.0, 0.1, 0.3, 1.0, 0.9, 0.1], [1.02, 0.45, 0.15, 1.3, 0.9, 0.4], [1.0, 0.05, 0.6, 1.0, 0.9, 0.05]];
/// Throughput is measured more exactly than power, and is asked more exactly.
const RATE_WEIGHT: f64 = 2.0;
const STEPS: usize = 25;

/// Fits by least squares over relative deviations of rate and power (Levenberg–Marquardt within bounds, from three starts). The
/// board stays as it is.
///
/// `None` for a sweep without three points, or with one that is not above 0.
pub fn fit(board: &BoardParameters, sweep: &Sweep) -> Option<SweepFit> {
    let sound = |value: f64| value > 0.0 && value.is_finite();
    let sound = sweep.points.iter().all(|p| sound(p.setting) && sound(p.rate) && sound(p.power_watts));
    if !sound || sweep.points.len() < 3 {
        return None;
    }
    let fastest = sweep.points.iter().map(|point| point.rate).fold(0.0, f64::max);
    let settings: Vec<f64> = sweep.points.iter().map(|point| point.setting).collect();
    let residuals = |point: &FreeParameters| -> Vec<f64> {
        let ours = simulate(board, profile(point, fastest), sweep.knob, &settings);
        let pairs = sweep.points.iter().zip(ours);
        let parts = pairs.flat_map(|(measured, ours)| {
            [RATE_WEIGHT * (ours.rate / measured.rate - 1.0), ours.power_watts / measured.power_watts - 1.0]
        });
        parts.collect()
    };
    // Without a cap a burst does nothing.
    let free = if sweep.knob == SweepAxis::SmClockMhz { FREE - 1 } else { FREE };
    let found = STARTS.iter().map(|start| descend(*start, free, &residuals));
    let (best, _) = found.min_by(|a, b| a.1.total_cmp(&b.1))?;
    let profile = profile(&best, fastest);
    Some(SweepFit { profile, deviation: deviation(board, profile, sweep) })
}

fn profile(point: &FreeParameters, fastest: f64) -> WorkloadProfile {
    let [speed, host, dram, energy, coverage, burst] = *point;
    WorkloadProfile {
        samples_per_second: speed * fastest,
        host_ratio: host,
        sm_coverage_ratio: coverage,
        // Memory cannot be used while the host holds the step up.
        dram_ratio: dram.min(0.9 * (1.0 - host)),
        energy_intensity: energy,
        burst_ratio: burst,
        // The unit of work is not that of the profile's traffic.
        pcie_megabytes_per_sample: 0.0,
        ..WorkloadProfile::MID
    }
}

fn squares(residuals: &[f64]) -> f64 {
    residuals.iter().map(|r| r * r).sum()
}

fn descend(start: FreeParameters, free: usize, residuals: &impl Fn(&FreeParameters) -> Vec<f64>) -> (FreeParameters, f64) {
    let (mut point, mut now) = (start, residuals(&start));
    let mut cost = squares(&now);
    let mut damping = 1e-2;
    for _ in 0..STEPS {
        let slopes: Vec<Vec<f64>> = (0..free)
            .map(|axis| {
                let width = if point[axis] + 2e-3 > HIGH[axis] { -1e-3 } else { 1e-3 };
                let mut moved = point;
                moved[axis] += width;
                residuals(&moved).iter().zip(&now).map(|(then, now)| (then - now) / width).collect()
            })
            .collect();
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let mut better = None;
        for _ in 0..6 {
            // (JᵀJ + λ diag(JᵀJ)) step = -Jᵀr
            let mut system = [[0.0; FREE + 1]; FREE];
            for row in 0..free {
                for column in 0..free {
                    system[row][column] = dot(&slopes[row], &slopes[column]);
                }
                system[row][row] += damping * system[row][row] + 1e-9;
                system[row][FREE] = -dot(&slopes[row], &now);
            }
            let step = eliminate(system, free);
            let mut moved = point;
            for axis in 0..free {
                moved[axis] = (point[axis] + step[axis]).clamp(LOW[axis], HIGH[axis]);
            }
            let then = residuals(&moved);
            if squares(&then) < cost {
                better = Some((moved, then));
                damping *= 0.3;
                break;
            }
            damping *= 4.0;
        }
        let Some((moved, then)) = better else { break };
        let gained = cost - squares(&then);
        (point, now) = (moved, then);
        cost = squares(&now);
        if gained < 1e-4 * cost {
            break;
        }
    }
    (point, cost)
}

/// Gauss–Jordan without pivoting: the matrix is symmetric and positive definite.
fn eliminate(mut system: [[f64; FREE + 1]; FREE], free: usize) -> [f64; FREE] {
    for pivot in 0..free {
        let scale = 1.0 / system[pivot][pivot];
        for value in &mut system[pivot] {
            *value *= scale;
        }
        let used = system[pivot];
        for (row, line) in system.iter_mut().enumerate().take(free) {
            if row != pivot {
                let factor = line[pivot];
                for (value, used) in line.iter_mut().zip(used) {
                    *value -= factor * used;
                }
            }
        }
    }
    system.map(|line| line[FREE])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::BoardModel;

    fn sweep(profile: WorkloadProfile, caps: &[f64]) -> Sweep {
        let points = simulate(BoardModel::V100.board(), profile, SweepAxis::PowerLimitWatts, caps);
        Sweep { name: "made".into(), knob: SweepAxis::PowerLimitWatts, points }
    }

    const CAPS: [f64; 5] = [100.0, 137.5, 175.0, 212.5, 250.0];

    #[test]
    fn finds_a_curve_that_the_model_made() {
        let hidden = WorkloadProfile {
            host_ratio: 0.2,
            dram_ratio: 0.4,
            energy_intensity: 1.4,
            burst_ratio: 0.2,
            ..WorkloadProfile::COMPUTE
        };
        let fitted = fit(BoardModel::V100.board(), &sweep(hidden, &CAPS)).unwrap();
        assert!(fitted.deviation.rate_ratio < 0.003 && fitted.deviation.power_ratio < 0.003, "{fitted:?}");
        assert_eq!(fitted.profile.check(), Ok(()));
    }

    /// The bounds of the checks are not met by whatever one puts in: halved speed under a cap that does not bite is no GPU.
    #[test]
    fn cannot_fit_what_no_board_does() {
        let mut wrong = sweep(WorkloadProfile::COMPUTE, &CAPS);
        wrong.points[3].rate *= 0.6;
        wrong.points[1].power_watts *= 1.5;
        let fitted = fit(BoardModel::V100.board(), &wrong).unwrap();
        assert!(fitted.deviation.rate_ratio > 0.03 && fitted.deviation.power_ratio > 0.03, "{fitted:?}");
    }

    #[test]
    fn refuses_sweeps_without_information() {
        let board = BoardModel::V100.board();
        let whole = sweep(WorkloadProfile::COMPUTE, &CAPS);
        assert_eq!(fit(board, &Sweep { points: whole.points[..2].to_vec(), ..whole.clone() }), None);
        for wrong in [0.0, -1.0, f64::NAN] {
            let mut sweep = whole.clone();
            sweep.points[2].power_watts = wrong;
            assert_eq!(fit(board, &sweep), None);
        }
    }
}
