//! Models with few parameters, fitted to measurements. Each carries how well it fits and the range that it was fitted on.

mod cap_curve;
mod nnls;
mod power;
mod quality;

pub use cap_curve::{CapCurve, CapCurveVerdict, CapPoint, OffsetPowerLaw, PowerLaw};
pub(crate) use nnls::{NormalEquations, nnls};
pub use power::{GpuActivity, PowerModel, PowerObservation, PowerPrediction};
pub use quality::{FitQuality, mape_ratio, r_squared};

/// Data that a model cannot be fitted to.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum FitError {
    #[error("too few measurements differ in {what}: {found}, and {needed} are needed: measure more")]
    TooFew { what: &'static str, found: usize, needed: usize },
    #[error("measurement {index}: {what} is {value}; it must be {expected}")]
    Value { index: usize, what: &'static str, value: f64, expected: &'static str },
}
