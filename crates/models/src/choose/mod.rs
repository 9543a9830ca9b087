//! Which setting of a knob: the highest one is the reference, a limit on the slowdown against it is kept, and of what
//! keeps it the best by an objective is taken.

mod batch;
mod measured;
mod pareto;
mod preset;
mod robust;
mod runs;
mod validate;

use serde::{Deserialize, Serialize};

use crate::fit::Quality;
use crate::stats::median;

pub use batch::{BatchChoice, BatchPoint, EnergyToAccuracy, Epochs, Excluded, energy_to_accuracy};
pub use preset::{InvalidPreset, Preset, WorkloadLimits};
pub use robust::Robust;
pub use runs::{Combined, DroppedRun, Run, combine};
pub use validate::{Promise, Tolerances, Verdict, validate};

/// What is turned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Knob {
    SmClockMhz,
    PowerLimitWatts,
}

impl Knob {
    pub const ALL: [Self; 2] = [Self::SmClockMhz, Self::PowerLimitWatts];

    /// As in events and tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::SmClockMhz => "sm_clock_mhz",
            Self::PowerLimitWatts => "power_limit_watts",
        }
    }

    pub const fn unit(self) -> &'static str {
        match self {
            Self::SmClockMhz => "MHz",
            Self::PowerLimitWatts => "W",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|knob| knob.name() == name)
    }
}

/// A fixed amount of work at a setting. Several of the same setting are runs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measurement {
    /// In the knob's unit.
    pub setting: f64,
    pub duration_seconds: f64,
    pub energy_joules: f64,
    /// Where it stands in the table, for messages.
    pub row: u64,
}

/// What "best" means, of energy E and time T against those of the reference.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Objective {
    Energy,
    /// E·T.
    Edp,
    /// E·T².
    Ed2p,
    /// w·E + (1 − w)·T.
    Weighted(f64),
}

impl Objective {
    pub fn score(self, energy_ratio: f64, time_ratio: f64) -> f64 {
        match self {
            Self::Energy => energy_ratio,
            Self::Edp => energy_ratio * time_ratio,
            Self::Ed2p => energy_ratio * time_ratio * time_ratio,
            Self::Weighted(weight) => weight * energy_ratio + (1.0 - weight) * time_ratio,
        }
    }
}

/// What a choice must keep.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// Time over the reference's, less 1: 0.05 is 5 % slower.
    pub max_slowdown_ratio: f64,
    /// Setting over the reference's; `None`: any.
    pub min_setting_ratio: Option<f64>,
    pub objective: Objective,
}

/// How measurements become a choice.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Method {
    /// Among the measured points, by their medians; ties to the higher setting.
    Measured,
    /// Fitted curves and an upper bound on the slowdown.
    Robust(Robust),
}

/// A setting against the reference.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Choice {
    pub setting: f64,
    /// 1 − `E/E_reference`: above 0 is less energy.
    pub saving_ratio: f64,
    /// `T/T_reference` − 1: above 0 is slower.
    pub slowdown_ratio: f64,
    pub duration_seconds: f64,
    pub energy_joules: f64,
    /// The saving is at least this, at the method's confidence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub saving_lower_ratio: Option<f64>,
    /// The slowdown is at most this, at the method's confidence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slowdown_upper_ratio: Option<f64>,
    /// As measured (medians), where the figures above are fitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured_saving_ratio: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured_slowdown_ratio: Option<f64>,
}

/// How the fitted curves agree with what was measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Fits {
    pub duration: Quality,
    pub power: Quality,
    /// Of the bounds, one-sided.
    pub confidence: f64,
    pub resamples: u32,
    pub seed: u64,
    /// Rows that were left out: too far from the curve, with enough other runs of their setting.
    pub dropped_rows: Vec<u64>,
}

/// Every choice that one group of measurements gives.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Choices {
    /// The highest setting.
    pub reference: Choice,
    /// Least energy, whatever it costs in time.
    pub min_energy: Choice,
    /// Best by the objective among those that keep the limits; the reference where none does.
    pub constrained: Choice,
    pub min_edp: Choice,
    pub min_ed2p: Choice,
    /// Of the Pareto set, the one furthest below the line between its ends.
    pub knee: Choice,
    /// No other setting is both faster and cheaper; fastest first.
    pub pareto: Vec<Choice>,
    /// A setting below the reference keeps the limits.
    pub feasible: bool,
    /// Why this choice, in words.
    pub reason: String,
    pub settings: usize,
    pub measurements: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fits: Option<Fits>,
}

/// Measurements that no choice can rest on.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Refusal {
    #[error("no measurement")]
    Empty,
    #[error("{found} setting(s) only; {needed} are needed to tell what a setting costs: measure more of them")]
    TooFew { found: usize, needed: usize },
    #[error("row {row}: {what} is {value}; it must be finite and above 0")]
    Value { row: u64, what: &'static str, value: f64 },
    #[error("max slowdown {value} is not at least 0 and finite")]
    MaxSlowdown { value: f64 },
    #[error("min ratio {value} is not above 0 and at most 1")]
    MinRatio { value: f64 },
    #[error("weight {value} is not within 0 and 1")]
    Weight { value: f64 },
    #[error("no curve describes these times (mean error {:.1} %): something else than the knob changed between the runs", 100.0 * mape_ratio)]
    NoCurve { mape_ratio: f64 },
}

/// All runs of a setting, combined by the median.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Point {
    pub(crate) setting: f64,
    pub(crate) seconds: f64,
    pub(crate) joules: f64,
}

/// Chooses. `knob` says which curves the robust method fits.
pub fn choose(knob: Knob, measurements: &[Measurement], limits: &Limits, method: Method) -> Result<Choices, Refusal> {
    limits.check()?;
    let points = points(measurements)?;
    match method {
        Method::Measured => measured::choose(&points, measurements.len(), limits, knob),
        Method::Robust(options) => robust::choose(knob, &points, measurements, limits, options),
    }
}

impl Limits {
    pub fn check(&self) -> Result<(), Refusal> {
        if !self.max_slowdown_ratio.is_finite() || self.max_slowdown_ratio < 0.0 {
            return Err(Refusal::MaxSlowdown { value: self.max_slowdown_ratio });
        }
        if let Some(value) = self.min_setting_ratio
            && !(value > 0.0 && value <= 1.0)
        {
            return Err(Refusal::MinRatio { value });
        }
        match self.objective {
            Objective::Weighted(value) if !(0.0..=1.0).contains(&value) => Err(Refusal::Weight { value }),
            _ => Ok(()),
        }
    }
}

/// Medians by setting, the highest first.
fn points(measurements: &[Measurement]) -> Result<Vec<Point>, Refusal> {
    for measurement in measurements {
        let fields = [
            ("setting", measurement.setting),
            ("duration_seconds", measurement.duration_seconds),
            ("energy_joules", measurement.energy_joules),
        ];
        if let Some((what, value)) = fields.into_iter().find(|(_, value)| !value.is_finite() || *value <= 0.0) {
            return Err(Refusal::Value { row: measurement.row, what, value });
        }
    }
    let mut sorted = measurements.to_vec();
    sorted.sort_by(|a, b| b.setting.total_cmp(&a.setting));
    let by_setting = sorted.chunk_by(|a, b| a.setting == b.setting);
    let points: Vec<Point> = by_setting
        .filter_map(|runs| {
            let middle = |of: fn(&Measurement) -> f64| median(&mut runs.iter().map(of).collect::<Vec<_>>());
            Some(Point {
                setting: runs[0].setting,
                seconds: middle(|run| run.duration_seconds)?,
                joules: middle(|run| run.energy_joules)?,
            })
        })
        .collect();
    match points.len() {
        0 => Err(Refusal::Empty),
        1 => Err(Refusal::TooFew { found: 1, needed: 2 }),
        _ => Ok(points),
    }
}

fn percent(ratio: f64) -> String {
    format!("{:.1} %", 100.0 * ratio)
}
