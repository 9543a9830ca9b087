//! Form of fitted models in `models.v1`: names and parameters, the same for writers and readers.
//!
//! A form has a version in its `format`. A document of another version, for another board or with impossible figures is
//! refused with the reason: an unknown model is not used.

use serde::{Deserialize, Serialize};

use crate::fit::{CapCurve, CapCurveVerdict, GpuActivity, PowerModel, PowerPrediction};

const CAP_CURVE: &str = "eadt.cap-curve.v1";
const POWER: &str = "eadt.power-model.v1";

/// Returns the name of the model of a workload's throughput against power.
pub fn cap_curve_name(workload: &str) -> String {
    format!("{CAP_CURVE_PREFIX}{workload}")
}

/// Returns the name of the model of a board's power.
pub fn power_name(gpu_model: &str) -> String {
    format!("{POWER_PREFIX}{gpu_model}")
}

/// Returns the name of the model of what workloads that share a board do to each other.
pub fn partition_name(gpu_model: &str) -> String {
    format!("{PARTITION_PREFIX}{gpu_model}")
}

pub const CAP_CURVE_PREFIX: &str = "cap-curve/";
pub const POWER_PREFIX: &str = "power/";
/// Its form is `eadt_gpu_sharing`'s.
pub const PARTITION_PREFIX: &str = "partition/";

/// The reason why a published model cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum UnusableModel {
    /// Its form has another version than the one that is read here.
    Version,
    /// Figures are missing, or are such as no fit gives.
    Damaged,
    /// It was learned on another board than the one in use.
    Gpu,
}

impl UnusableModel {
    pub const ALL: [Self; 3] = [Self::Version, Self::Damaged, Self::Gpu];

    /// Returns the name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Version => "version",
            Self::Damaged => "damaged",
            Self::Gpu => "gpu",
        }
    }
}

/// Replicas, MPS thread percentage, world size and local world size: all of a layout but what limits the power.
pub type LayoutShape = [Option<u32>; 4];

/// Throughput of a workload in one layout against the power of a GPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CapCurveDocument {
    format: String,
    /// Board that it was learned on.
    pub gpu_model: Option<String>,
    pub layout: Option<LayoutShape>,
    pub curve: CapCurve,
}

impl CapCurveDocument {
    pub fn new(gpu_model: Option<String>, layout: Option<LayoutShape>, curve: CapCurve) -> Self {
        Self { format: CAP_CURVE.to_owned(), gpu_model, layout, curve }
    }

    /// Returns the document, once `parse` has made one of the event's parameters, whose format is `format`.
    pub fn checked(format: Option<&str>, parse: impl FnOnce() -> Option<Self>) -> Result<Self, UnusableModel> {
        if format != Some(CAP_CURVE) {
            return Err(UnusableModel::Version);
        }
        let document = parse().ok_or(UnusableModel::Damaged)?;
        let (law, [low, high]) = (&document.curve.offset_power_law, document.curve.watts_range);
        let whole = law.a > 0.0
            && law.b > 0.0
            && (0.0..low).contains(&law.offset_watts)
            && low < high
            && [law.a, law.b, high].iter().all(|value| value.is_finite())
            && document.curve.verdict == CapCurveVerdict::Informative;
        if whole { Ok(document) } else { Err(UnusableModel::Damaged) }
    }
}

/// Returns the activity of a GPU from means over a window, which represent its moments. PCIe traffic is in no window
/// and counts as none.
pub fn activity(sm_active_ratio: f64, dram_active_ratio: f64, clock_mhz: f64, clock_max_mhz: f64) -> GpuActivity {
    GpuActivity {
        sm_active_ratio: sm_active_ratio.min(1.0),
        clock_ratio: (clock_mhz / clock_max_mhz).min(1.0),
        dram_active_ratio: dram_active_ratio.min(1.0),
        io_gigabytes_per_second: 0.0,
    }
}

/// Power of a board against its activity.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PowerDocument {
    format: String,
    /// Clock that ratios are of.
    pub clock_max_mhz: f64,
    pub model: PowerModel,
}

impl PowerDocument {
    pub fn new(clock_max_mhz: f64, model: PowerModel) -> Self {
        Self { format: POWER.to_owned(), clock_max_mhz, model }
    }

    /// Returns the power of a GPU that does this.
    pub fn expect(&self, sm_active_ratio: f64, dram_active_ratio: f64, clock_mhz: f64) -> PowerPrediction {
        self.model.predict(&activity(sm_active_ratio, dram_active_ratio, clock_mhz, self.clock_max_mhz))
    }

    /// Like [`CapCurveDocument::checked`].
    pub fn checked(format: Option<&str>, parse: impl FnOnce() -> Option<Self>) -> Result<Self, UnusableModel> {
        if format != Some(POWER) {
            return Err(UnusableModel::Version);
        }
        let document = parse().ok_or(UnusableModel::Damaged)?;
        let m = &document.model;
        let coefficients =
            [m.base_watts, m.compute_linear_watts, m.compute_cubic_watts, m.memory_watts, m.io_watts_per_gigabyte_per_second];
        let whole = document.clock_max_mhz > 0.0
            && document.clock_max_mhz.is_finite()
            && coefficients.iter().all(|value| value.is_finite() && *value >= 0.0)
            && coefficients.iter().any(|value| *value > 0.0);
        if whole { Ok(document) } else { Err(UnusableModel::Damaged) }
    }
}
