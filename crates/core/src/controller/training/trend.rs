//! Expected validation loss without a change: a curve through the evaluations before it.

use serde::{Deserialize, Serialize};

/// Evaluations that a curve needs.
pub(super) const EVALUATIONS: usize = 5;
/// Exponents that are tried, and their distance.
const EXPONENTS: (u32, f64) = (40, 0.05);
/// Offsets that are tried, as parts of the steps of the last evaluation.
const OFFSETS: [f64; 5] = [0.0, 0.01, 0.02, 0.05, 0.1];

/// Loss after so many steps: `floor + scale · (steps + offset)^-exponent`, the form of learning curves (Hestness et al. 2017,
/// Kaplan et al. 2020, Hoffmann et al. 2022). It knows nothing of a learning rate that falls at the end, which lets loss fall
/// faster.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct LossTrend {
    floor: f64,
    scale: f64,
    exponent: f64,
    offset: f64,
    /// Standard deviation of the evaluations around the curve, as a part of the loss.
    pub scatter_ratio: f64,
}

impl LossTrend {
    /// Fits evaluations, each of steps and loss; `None` if they are too few or no losses of this form.
    pub fn fit(evaluations: &[(f64, f64)]) -> Option<Self> {
        if evaluations.len() < EVALUATIONS || evaluations.iter().any(|(steps, loss)| *steps < 1.0 || *loss <= 0.0) {
            return None;
        }
        let last = evaluations.iter().map(|(steps, _)| *steps).fold(0.0, f64::max);
        let shapes =
            OFFSETS.iter().flat_map(|part| (1..=EXPONENTS.0).map(move |step| (part * last, f64::from(step) * EXPONENTS.1)));
        let curves = shapes.map(|(offset, exponent)| Self::with_shape(evaluations, offset, exponent));
        curves.min_by(|a, b| a.scatter_ratio.total_cmp(&b.scatter_ratio)).filter(|best| best.scatter_ratio.is_finite())
    }

    /// Returns the least squares with this shape; neither floor nor scale is negative: without a change loss does not rise.
    fn with_shape(evaluations: &[(f64, f64)], offset: f64, exponent: f64) -> Self {
        let n = evaluations.len() as f64;
        let points = || evaluations.iter().map(|(steps, loss)| ((steps + offset).powf(-exponent), *loss));
        let (x_mean, y_mean) = points().fold((0.0, 0.0), |(x, y), point| (x + point.0 / n, y + point.1 / n));
        let (xx, xy) =
            points().fold((0.0, 0.0), |(xx, xy), (x, y)| (xx + (x - x_mean) * (x - x_mean), xy + (x - x_mean) * (y - y_mean)));
        let slope = if xx > 0.0 { (xy / xx).max(0.0) } else { 0.0 };
        let mut curve = Self { floor: y_mean - slope * x_mean, scale: slope, exponent, offset, scatter_ratio: 0.0 };
        if curve.floor < 0.0 {
            let (xx, xy) = points().fold((0.0, 0.0), |(xx, xy), (x, y)| (xx + x * x, xy + x * y));
            curve = Self { floor: 0.0, scale: xy / xx, ..curve };
        }
        let squares: f64 = evaluations.iter().map(|(steps, loss)| (loss - curve.at(*steps)).powi(2)).sum();
        curve.scatter_ratio = (squares / (n - 3.0)).sqrt() / y_mean;
        curve
    }

    pub fn at(&self, steps: f64) -> f64 {
        self.floor + self.scale * (steps + self.offset).powf(-self.exponent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(steps: f64) -> f64 {
        1.8 + 9.0 / (1.0 + steps / 50.0).sqrt()
    }

    #[test]
    fn a_learning_curve_is_continued_to_four_times_its_steps() {
        let known: Vec<_> = (2..=10).map(|k| (100.0 * f64::from(k), curve(100.0 * f64::from(k)))).collect();
        let trend = LossTrend::fit(&known).unwrap();
        for steps in [1_500.0, 2_000.0, 4_000.0] {
            let apart = trend.at(steps) / curve(steps) - 1.0;
            assert!(apart.abs() < 0.003, "{steps} steps: {apart:+.4}");
        }
        assert!(trend.scatter_ratio < 1e-3);
    }

    #[test]
    fn a_loss_that_rises_is_no_trend_to_follow() {
        let rising: Vec<_> = (1..=6).map(|k| (f64::from(k), 2.0 + 0.1 * f64::from(k))).collect();
        let trend = LossTrend::fit(&rising).unwrap();
        assert!((trend.at(100.0) - 2.35).abs() < 1e-9, "its mean");
        assert!(trend.scatter_ratio > 0.05);
    }

    #[test]
    fn too_few_evaluations_and_losses_below_zero_have_none() {
        let four: Vec<_> = (1..=4).map(|k| (f64::from(k), 2.0)).collect();
        assert_eq!(LossTrend::fit(&four), None);
        let negative: Vec<_> = (1..=6).map(|k| (f64::from(k), -1.0)).collect();
        assert_eq!(LossTrend::fit(&negative), None);
    }
}
