//! Two reports on workloads, side by side.

use serde::Serialize;

use crate::WorkloadReport;
use crate::figures::per;

/// A figure of this one and of the other.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct FigurePair {
    pub this: Option<f64>,
    pub other: Option<f64>,
    /// `this` over `other`, less 1; absent if one is unknown, or the other is not above zero.
    pub change_ratio: Option<f64>,
}

impl FigurePair {
    fn of(this: Option<f64>, other: Option<f64>) -> Self {
        let change_ratio = per(this, other).map(|ratio| ratio - 1.0);
        Self { this, other, change_ratio }
    }
}

/// What `eadt report --compare` and the web page compare of two reports. Whole runs are compared, restarts and trials included;
/// that they did the same work is not checked.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ReportComparison {
    pub joules_per_sample: FigurePair,
    /// Over the whole duration.
    pub samples_per_second: FigurePair,
    pub mean_power_watts: FigurePair,
    pub energy_joules: FigurePair,
    pub samples: FigurePair,
    pub duration_seconds: FigurePair,
    pub cost: FigurePair,
    pub co2_grams: FigurePair,
}

impl ReportComparison {
    /// Compares this one with the other.
    pub fn of(this: &WorkloadReport, other: &WorkloadReport) -> Self {
        let pair = |figure: fn(&WorkloadReport) -> Option<f64>| FigurePair::of(figure(this), figure(other));
        Self {
            joules_per_sample: pair(|report| report.joules_per_sample),
            samples_per_second: pair(|report| per(report.samples, report.duration_seconds)),
            mean_power_watts: pair(|report| report.mean_power_watts),
            energy_joules: pair(|report| report.energy_joules),
            samples: pair(|report| report.samples),
            duration_seconds: pair(|report| report.duration_seconds),
            cost: pair(|report| report.cost),
            co2_grams: pair(|report| report.co2_grams),
        }
    }
}
