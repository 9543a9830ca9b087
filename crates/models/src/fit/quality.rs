use serde::{Deserialize, Serialize};

/// Agreement of a model with the measurements that it was fitted to.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct FitQuality {
    /// Part of the variance that the model explains; `None` if nothing varies.
    pub r_squared: Option<f64>,
    /// Mean absolute error as a part of the measured value.
    pub mape_ratio: f64,
    /// Measurements.
    pub count: usize,
}

impl FitQuality {
    /// Returns the quality; `None` for no measurements.
    pub fn of(observed: &[f64], predicted: &[f64]) -> Option<Self> {
        Some(Self {
            r_squared: r_squared(observed, predicted),
            mape_ratio: mape_ratio(observed, predicted)?,
            count: observed.len(),
        })
    }
}

/// Returns R² = 1 − Σ(y − ŷ)² / Σ(y − ȳ)²; `None` if y does not vary. It is negative if the mean would be the better model.
pub fn r_squared(observed: &[f64], predicted: &[f64]) -> Option<f64> {
    let mean = observed.iter().sum::<f64>() / observed.len() as f64;
    let total: f64 = observed.iter().map(|y| (y - mean).powi(2)).sum();
    let residual: f64 = observed.iter().zip(predicted).map(|(y, fitted)| (y - fitted).powi(2)).sum();
    (total > 1e-12 * mean * mean * observed.len() as f64).then(|| 1.0 - residual / total)
}

/// Returns the mean of |ŷ − y| / |y|, over nonzero values; `None` if there is none.
pub fn mape_ratio(observed: &[f64], predicted: &[f64]) -> Option<f64> {
    let errors: Vec<f64> =
        observed.iter().zip(predicted).filter(|(y, _)| **y != 0.0).map(|(y, fitted)| ((fitted - y) / y).abs()).collect();
    (!errors.is_empty()).then(|| errors.iter().sum::<f64>() / errors.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values() {
        assert_eq!(r_squared(&[1.0, 2.0, 3.0], &[1.0, 2.0, 3.0]), Some(1.0));
        assert_eq!(r_squared(&[1.0, 2.0, 3.0], &[2.0, 2.0, 2.0]), Some(0.0));
        assert_eq!(r_squared(&[2.0, 2.0], &[2.0, 2.0]), None);
        assert_eq!(mape_ratio(&[100.0, 200.0], &[110.0, 180.0]), Some(0.1));
        assert_eq!(mape_ratio(&[0.0], &[1.0]), None);
        assert_eq!(FitQuality::of(&[], &[]), None);
    }
}
