//! Non-negative least squares with few columns (Lawson and Hanson, *Solving Least Squares Problems*, chapter 23), on the
//! normal equations: they are built once and solved for many right-hand sides.

/// `AᵀA` and `Aᵀb` of weighted rows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NormalEquations<const P: usize> {
    gram: [[f64; P]; P],
    rhs: [f64; P],
}

impl<const P: usize> NormalEquations<P> {
    pub(crate) const fn new() -> Self {
        Self { gram: [[0.0; P]; P], rhs: [0.0; P] }
    }

    /// Adds the equation row · x = value, with this weight (of the square).
    pub(crate) fn add(&mut self, row: &[f64; P], value: f64, weight: f64) {
        for (i, x) in row.iter().enumerate() {
            let scaled = weight * x;
            for (sum, other) in self.gram[i][..=i].iter_mut().zip(row) {
                *sum += scaled * other;
            }
            self.rhs[i] += scaled * value;
        }
    }

    /// Returns `AᵀA` alone, for other values.
    pub(crate) fn without_values(&self) -> Self {
        Self { gram: self.gram, rhs: [0.0; P] }
    }

    /// Returns Σ weight·(row · x − value)² less Σ weight·value².
    pub(crate) fn loss(&self, x: &[f64; P]) -> f64 {
        let mut loss = 0.0;
        for i in 0..P {
            let twice: f64 = (0..i).map(|j| self.gram[i][j] * x[j]).sum();
            loss += x[i] * (self.gram[i][i] * x[i] + 2.0 * twice - 2.0 * self.rhs[i]);
        }
        loss
    }

    /// Adds a value of a row that `AᵀA` has already.
    pub(crate) fn add_value(&mut self, row: &[f64; P], value: f64, weight: f64) {
        for (sum, x) in self.rhs.iter_mut().zip(row) {
            *sum += weight * x * value;
        }
    }
}

/// Returns x ≥ 0 with the least Σ weight·(row · x − value)².
pub(crate) fn nnls<const P: usize>(normal: &NormalEquations<P>) -> [f64; P] {
    // Columns scaled to length 1: tolerances then mean the same in every unit.
    let mut scale = [0.0; P];
    for (i, scale) in scale.iter_mut().enumerate() {
        let length = normal.gram[i][i].sqrt();
        *scale = if length > 0.0 { 1.0 / length } else { 0.0 };
    }
    let mut gram = [[0.0; P]; P];
    let mut rhs = [0.0; P];
    for i in 0..P {
        for j in 0..=i {
            gram[i][j] = normal.gram[i][j] * scale[i] * scale[j];
            gram[j][i] = gram[i][j];
        }
        rhs[i] = normal.rhs[i] * scale[i];
    }
    let largest = rhs.iter().fold(0.0_f64, |most, value| most.max(value.abs()));
    let tolerance = 1e-12 * largest;

    let mut x = [0.0; P];
    let mut passive = [false; P];
    let mut refused = [false; P];
    for _ in 0..10 * P {
        let gradient = |i: usize, x: &[f64; P]| rhs[i] - (0..P).map(|j| gram[i][j] * x[j]).sum::<f64>();
        let candidates = (0..P).filter(|&i| !passive[i] && !refused[i] && scale[i] > 0.0);
        let best = candidates.map(|i| (i, gradient(i, &x))).max_by(|a, b| a.1.total_cmp(&b.1));
        let Some((entering, slope)) = best else { break };
        if slope <= tolerance {
            break;
        }
        passive[entering] = true;
        let mut moved = false;
        while let Some(trial) = solve(&gram, &rhs, &passive) {
            let blocked = (0..P).filter(|&i| passive[i] && trial[i] <= 0.0);
            let step = blocked.map(|i| x[i] / (x[i] - trial[i])).fold(f64::INFINITY, f64::min);
            if step == f64::INFINITY {
                x = trial;
                moved = true;
                break;
            }
            for i in 0..P {
                if passive[i] {
                    x[i] += step * (trial[i] - x[i]);
                    if x[i] <= 1e-14 && trial[i] <= 0.0 {
                        x[i] = 0.0;
                        passive[i] = false;
                    }
                }
            }
        }
        if moved {
            refused = [false; P];
        } else {
            // A column that the others already make up.
            passive[entering] = false;
            x[entering] = 0.0;
        }
        // Rounding may send a column out as soon as it comes in: it is not tried again before another one moved.
        refused[entering] |= !passive[entering];
    }
    for (x, scale) in x.iter_mut().zip(scale) {
        *x *= scale;
    }
    x
}

/// Returns the least squares over the passive columns by Cholesky; `None` if these depend on each other.
fn solve<const P: usize>(gram: &[[f64; P]; P], rhs: &[f64; P], passive: &[bool; P]) -> Option<[f64; P]> {
    let mut factor = [[0.0; P]; P];
    for i in (0..P).filter(|&i| passive[i]) {
        for j in (0..=i).filter(|&j| passive[j]) {
            let sum = gram[i][j] - (0..j).map(|k| factor[i][k] * factor[j][k]).sum::<f64>();
            if i == j {
                if sum <= 1e-13 {
                    return None;
                }
                factor[i][i] = sum.sqrt();
            } else {
                factor[i][j] = sum / factor[j][j];
            }
        }
    }
    let mut x = [0.0; P];
    for i in (0..P).filter(|&i| passive[i]) {
        x[i] = (rhs[i] - (0..i).map(|k| factor[i][k] * x[k]).sum::<f64>()) / factor[i][i];
    }
    for i in (0..P).rev().filter(|&i| passive[i]) {
        x[i] = (x[i] - (i + 1..P).map(|k| factor[k][i] * x[k]).sum::<f64>()) / factor[i][i];
    }
    Some(x)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn fit<const P: usize>(rows: &[([f64; P], f64)]) -> [f64; P] {
        let mut normal = NormalEquations::new();
        for (row, value) in rows {
            normal.add(row, *value, 1.0);
        }
        nnls(&normal)
    }

    fn loss<const P: usize>(rows: &[([f64; P], f64)], x: &[f64; P]) -> f64 {
        rows.iter().map(|(row, value)| (row.iter().zip(x).map(|(a, b)| a * b).sum::<f64>() - value).powi(2)).sum()
    }

    #[test]
    fn finds_what_made_the_data() {
        let rows: Vec<([f64; 3], f64)> =
            (1..=20).map(|i| f64::from(i) / 20.0).map(|x| ([1.0, 1.0 / x, 1.0 / (x * x)], 2.0 + 0.5 / x)).collect();
        let x = fit(&rows);
        assert!((x[0] - 2.0).abs() < 1e-8 && (x[1] - 0.5).abs() < 1e-8 && x[2].abs() < 1e-8, "{x:?}");
    }

    #[test]
    fn a_negative_solution_becomes_zero_and_a_repeated_column_does_no_harm() {
        let rows: Vec<([f64; 3], f64)> = (1..=9).map(f64::from).map(|x| ([1.0, x, x], 10.0 - x)).collect();
        let x = fit(&rows);
        assert!(x.iter().all(|value| *value >= 0.0), "{x:?}");
        assert!((x[0] - 5.0).abs() < 1e-9 && x[1] + x[2] < 1e-9, "the mean is the best that is not negative: {x:?}");
        assert_eq!(fit::<2>(&[]), [0.0, 0.0]);
        assert_eq!(fit(&[([0.0, 0.0], 3.0)]), [0.0, 0.0]);
    }

    proptest! {
        /// The conditions of Karush, Kuhn and Tucker: no step from x that keeps it non-negative makes it better.
        #[test]
        fn no_step_makes_it_better(rows in prop::collection::vec((prop::array::uniform4(-2.0..2.0), -5.0..5.0), 4..30)) {
            let x = fit(&rows);
            let least = loss(&rows, &x);
            prop_assert!(x.iter().all(|value| value.is_finite() && *value >= 0.0));
            for i in 0..4 {
                for step in [-1e-3, 1e-3, -0.1, 0.1] {
                    let mut other = x;
                    other[i] = (other[i] + step).max(0.0);
                    prop_assert!(loss(&rows, &other) >= least - 1e-7 * (1.0 + least), "{x:?} column {i} by {step}");
                }
            }
        }
    }
}
