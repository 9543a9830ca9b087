//! Chooses a setting of one knob or of two. The highest setting is the reference. Of the settings that keep a limit on the
//! slowdown against it, the best by an objective is taken.
//!
//! Every figure of a [`SettingChoice`] is measured at its setting. Fitted curves bound it and are given beside it.

mod batch;
mod glitch;
mod leave_one_out;
mod measured;
mod pareto;
mod preset;
mod reference_run;
mod robust;
mod runs;
mod single_run;
mod validate;

use serde::{Deserialize, Serialize};

use crate::fit::FitQuality;
use crate::stats::median;

pub use batch::{BatchChoice, BatchPoint, EnergyToAccuracy, EpochsToTarget, ExcludedBatch, energy_to_accuracy};
pub use glitch::{CheckedMeasurements, Glitch, GlitchQuantity, find_glitches};
pub use preset::{InvalidPreset, LimitPreset, WorkloadLimits};
pub use robust::RobustSettings;
pub use runs::{CombinedRuns, DroppedRun, FixedWorkRun, combine};
pub use validate::{PromiseVerdict, PromisedChoice, ValidationTolerances, validate};

/// A board that draws more than its cap by more than this part on average did not keep it.
pub const CAP_NOT_KEPT_RATIO: f64 = 0.05;

/// The knob that is turned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TuningKnob {
    SmClockMhz,
    PowerLimitWatts,
    /// Only beside another knob.
    MemoryClockMhz,
    /// Only beside another knob.
    BatchSize,
}

impl TuningKnob {
    pub const ALL: [Self; 4] = [Self::SmClockMhz, Self::PowerLimitWatts, Self::MemoryClockMhz, Self::BatchSize];
    /// Knobs that may be turned alone.
    pub const SINGLY_TUNABLE: [Self; 2] = [Self::SmClockMhz, Self::PowerLimitWatts];

    /// Returns the name in events and tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::SmClockMhz => "sm_clock_mhz",
            Self::PowerLimitWatts => "power_limit_watts",
            Self::MemoryClockMhz => "memory_clock_mhz",
            Self::BatchSize => "batch_size",
        }
    }

    /// Returns the unit; empty for a count.
    pub const fn unit(self) -> &'static str {
        match self {
            Self::SmClockMhz | Self::MemoryClockMhz => "MHz",
            Self::PowerLimitWatts => "W",
            Self::BatchSize => "",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|knob| knob.name() == name)
    }

    /// Returns a setting for people, such as `1410 MHz`.
    pub fn words(self, setting: f64) -> String {
        match self {
            Self::SmClockMhz => format!("{setting} MHz"),
            Self::PowerLimitWatts => format!("{setting} W"),
            Self::MemoryClockMhz => format!("memory {setting} MHz"),
            Self::BatchSize => format!("batch size {setting}"),
        }
    }
}

/// One knob, or two that are turned together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TuningKnobs {
    pub first: TuningKnob,
    pub second: Option<TuningKnob>,
}

impl From<TuningKnob> for TuningKnobs {
    fn from(first: TuningKnob) -> Self {
        Self { first, second: None }
    }
}

impl TuningKnobs {
    pub fn all(self) -> impl Iterator<Item = TuningKnob> {
        std::iter::once(self.first).chain(self.second)
    }

    /// Returns a setting for people, such as `1410 MHz, batch size 64`.
    pub fn words(self, setting: f64, second_setting: Option<f64>) -> String {
        let first = self.first.words(setting);
        match self.second.zip(second_setting) {
            Some((knob, value)) => format!("{first}, {}", knob.words(value)),
            None => first,
        }
    }
}

/// A fixed amount of work at a setting. Several of the same setting are runs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SettingMeasurement {
    /// Setting in the first knob's unit.
    pub setting: f64,
    /// Setting in the second knob's unit; `None` if there is only one knob.
    pub second_setting: Option<f64>,
    pub duration_seconds: f64,
    pub energy_joules: f64,
    /// Its row in the table, for messages.
    pub row: u64,
}

/// The meaning of "best", by energy E and time T against those of the reference.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChoiceObjective {
    Energy,
    /// E·T.
    Edp,
    /// E·T².
    Ed2p,
    /// w·E + (1 − w)·T.
    Weighted(f64),
}

impl ChoiceObjective {
    pub fn score(self, energy_ratio: f64, time_ratio: f64) -> f64 {
        match self {
            Self::Energy => energy_ratio,
            Self::Edp => energy_ratio * time_ratio,
            Self::Ed2p => energy_ratio * time_ratio * time_ratio,
            Self::Weighted(weight) => weight * energy_ratio + (1.0 - weight) * time_ratio,
        }
    }
}

/// The limits that a choice must keep.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ChoiceLimits {
    /// Time over the reference's, less 1: 0.05 is 5 % slower.
    pub max_slowdown_ratio: f64,
    /// Setting over the reference's, of every clock and cap; `None` if there is no limit.
    pub min_setting_ratio: Option<f64>,
    pub objective: ChoiceObjective,
    /// Setting of the second knob that the reference has; `None` for the highest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference_second_setting: Option<f64>,
}

/// The method by which measurements become a choice.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ChoiceMethod {
    /// Among the measured points, by their medians; ties to the higher setting.
    Measured,
    /// Fitted curves and an upper bound on the slowdown.
    Robust(RobustSettings),
}

/// A setting against the reference. Time, energy, saving and slowdown are measured (medians over the runs); the other figures
/// are fitted.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct SettingChoice {
    pub setting: f64,
    /// Setting of the second knob; absent if only one is turned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub second_setting: Option<f64>,
    /// 1 − `E/E_reference`: above 0 is less energy.
    pub saving_ratio: f64,
    /// `T/T_reference` − 1: above 0 is slower.
    pub slowdown_ratio: f64,
    pub duration_seconds: f64,
    pub energy_joules: f64,
    /// The saving is at least this, at the method's confidence; never more than measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub saving_lower_ratio: Option<f64>,
    /// The slowdown is at most this, at the method's confidence; never less than measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slowdown_upper_ratio: Option<f64>,
    /// The saving by the fitted curves. `fits` has their error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fitted_saving_ratio: Option<f64>,
    /// The slowdown by the fitted curves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fitted_slowdown_ratio: Option<f64>,
}

/// The agreement of the fitted curves with the measurements.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CurveFits {
    pub duration: FitQuality,
    pub power: FitQuality,
    /// One-sided confidence of the bounds.
    pub confidence: f64,
    pub resamples: u32,
    pub seed: u64,
    /// Rows that were left out: too far from the curve, with enough other runs of their setting.
    pub dropped_rows: Vec<u64>,
    /// Settings of the second knob that no curve describes, with the reason; they are not chosen.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<String>,
}

/// Every choice that one group of measurements gives.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SettingChoices {
    /// The highest setting.
    pub reference: SettingChoice,
    /// Least energy, whatever it costs in time.
    pub min_energy: SettingChoice,
    /// Best by the objective among those within the limits; the reference if there are none.
    pub constrained: SettingChoice,
    pub min_edp: SettingChoice,
    pub min_ed2p: SettingChoice,
    /// The setting of the Pareto set that is furthest below the line between its ends.
    pub knee: SettingChoice,
    /// No other setting is both faster and cheaper; fastest first.
    pub pareto: Vec<SettingChoice>,
    /// A setting below the reference keeps the limits.
    pub feasible: bool,
    /// The reason for this choice, in words.
    pub reason: String,
    pub settings: usize,
    pub measurements: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fits: Option<CurveFits>,
    /// Rows that their neighbours contradict, and single runs that a choice would have rested on; they are in no choice.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub glitches: Vec<Glitch>,
    /// The run of the reference, if it is above what the settings below it continue to. A knee may lie between them, so it counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub doubtful_reference: Option<Glitch>,
    /// More than a quarter of the settings contradict their neighbours: time or power does not follow the knob.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub irregular: bool,
}

/// Measurements that no choice can rest on.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ChoiceRefusal {
    #[error("no measurement")]
    Empty,
    #[error("too few settings: {found}, and {needed} are needed to know what a setting costs: measure more of them")]
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
    #[error("no curve describes these powers (mean error {:.1} %): something else than the knob changed between the runs", 100.0 * mape_ratio)]
    NoPowerCurve { mape_ratio: f64 },
    #[error(
        "row {}: the reference {words} contradicts its neighbours ({}), and every saving is measured against it: measure it again",
        glitch.row, glitch.words()
    )]
    Reference { words: String, glitch: Box<Glitch> },
    #[error(
        "row {}: {words} would be chosen, but this run contradicts its neighbours ({}): measure it again; without it: {refusal}",
        glitch.row, glitch.words()
    )]
    SingleRun { words: String, glitch: Box<Glitch>, refusal: Box<ChoiceRefusal> },
    #[error("the reference {words} was not measured, and everything is compared with it: measure it, or name another one")]
    NoReference { words: String },
    #[error(
        "more than a quarter of the settings contradict their neighbours, {words} among them: time or power does not follow the knob; \
         measure them again, or group by what else differs"
    )]
    Irregular { words: String },
}

/// All runs of a setting, combined by the median.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct SettingPoint {
    pub(crate) setting: f64,
    pub(crate) second: Option<f64>,
    pub(crate) seconds: f64,
    pub(crate) joules: f64,
}

/// Chooses. The knobs determine the curves that the robust method fits. Rows that their neighbours contradict take no part. Nor does
/// a single run that a choice would rest on, and that its neighbours contradict: the choice is made again without it.
pub fn choose(
    knobs: impl Into<TuningKnobs>,
    measurements: &[SettingMeasurement],
    limits: &ChoiceLimits,
    method: ChoiceMethod,
) -> Result<SettingChoices, ChoiceRefusal> {
    let knobs = knobs.into();
    limits.check()?;
    check(measurements)?;
    let mut checked = find_glitches(knobs.first, measurements);
    let mut choices = choose_among(knobs, measurements, &checked, limits, method)?;
    // Of the reference and a run that goes, either may be what is off.
    let doubtful_before = single_run::find_doubtful_reference(knobs, &checked.accepted, &choices);
    while let Some(run) = single_run::find_contradicted_run(knobs, &checked.accepted, &choices) {
        checked.accepted.retain(|m| !run.is_of(m));
        checked.glitches.push(run);
        choices = choose_among(knobs, measurements, &checked, limits, method).map_err(|refusal| match refusal {
            ChoiceRefusal::Reference { .. } => refusal,
            refusal => ChoiceRefusal::SingleRun {
                words: knobs.words(run.setting, run.second_setting),
                glitch: Box::new(run),
                refusal: Box::new(refusal),
            },
        })?;
    }
    checked.glitches.sort_by_key(|glitch| glitch.row);
    choices.doubtful_reference = doubtful_before
        .filter(|run| checked.accepted.iter().any(|m| run.is_of(m)))
        .or_else(|| single_run::find_doubtful_reference(knobs, &checked.accepted, &choices));
    choices.measurements = measurements.len();
    choices.glitches = checked.glitches;
    choices.irregular = checked.irregular;
    Ok(choices)
}

/// Chooses among the accepted ones of all measurements.
fn choose_among(
    knobs: TuningKnobs,
    all: &[SettingMeasurement],
    checked: &CheckedMeasurements,
    limits: &ChoiceLimits,
    method: ChoiceMethod,
) -> Result<SettingChoices, ChoiceRefusal> {
    let points = points(knobs, all, checked, limits)?;
    let mut choices = match method {
        ChoiceMethod::Measured => measured::choose(&points, limits, knobs),
        ChoiceMethod::Robust(options) => robust::choose(knobs, &points, &checked.accepted, limits, options)?,
    };
    if let Some(fits) = &mut choices.fits {
        fits.dropped_rows.extend(checked.glitches.iter().map(|glitch| glitch.row));
        fits.dropped_rows.sort_unstable();
    }
    refuse_contradicted(knobs, &choices, checked)?;
    Ok(choices)
}

/// Returns an error if a saving rests on a setting that its neighbours contradict, and that was not left out.
fn refuse_contradicted(knobs: TuningKnobs, choices: &SettingChoices, checked: &CheckedMeasurements) -> Result<(), ChoiceRefusal> {
    if choices.constrained == choices.reference {
        return Ok(());
    }
    let is_contradicted = |choice: &&SettingChoice| checked.is_contradicted(choice.setting, choice.second_setting);
    match [&choices.constrained, &choices.reference].into_iter().find(is_contradicted) {
        Some(choice) => Err(ChoiceRefusal::Irregular { words: knobs.words(choice.setting, choice.second_setting) }),
        None => Ok(()),
    }
}

impl ChoiceLimits {
    pub fn check(&self) -> Result<(), ChoiceRefusal> {
        if !self.max_slowdown_ratio.is_finite() || self.max_slowdown_ratio < 0.0 {
            return Err(ChoiceRefusal::MaxSlowdown { value: self.max_slowdown_ratio });
        }
        if let Some(value) = self.min_setting_ratio
            && !(value > 0.0 && value <= 1.0)
        {
            return Err(ChoiceRefusal::MinRatio { value });
        }
        match self.objective {
            ChoiceObjective::Weighted(value) if !(0.0..=1.0).contains(&value) => Err(ChoiceRefusal::Weight { value }),
            _ => Ok(()),
        }
    }
}

fn check(measurements: &[SettingMeasurement]) -> Result<(), ChoiceRefusal> {
    for measurement in measurements {
        let fields = [
            ("setting", Some(measurement.setting)),
            ("second setting", measurement.second_setting),
            ("duration_seconds", Some(measurement.duration_seconds)),
            ("energy_joules", Some(measurement.energy_joules)),
        ];
        let known = fields.into_iter().filter_map(|(what, value)| Some((what, value?)));
        if let Some((what, value)) = known.into_iter().find(|(_, value)| !value.is_finite() || *value <= 0.0) {
            return Err(ChoiceRefusal::Value { row: measurement.row, what, value });
        }
    }
    Ok(())
}

/// Medians by setting, the reference first, then by falling settings.
fn points(
    knobs: TuningKnobs,
    all: &[SettingMeasurement],
    checked: &CheckedMeasurements,
    limits: &ChoiceLimits,
) -> Result<Vec<SettingPoint>, ChoiceRefusal> {
    let highest = |values: &mut dyn Iterator<Item = f64>| values.reduce(f64::max);
    let first = highest(&mut all.iter().map(|m| m.setting)).ok_or(ChoiceRefusal::Empty)?;
    let second = limits.reference_second_setting.or(highest(&mut all.iter().filter_map(|m| m.second_setting)));
    let mut points = medians(&checked.accepted);
    let reference = points.iter().position(|point| point.setting == first && point.second == second);
    let Some(reference) = reference else {
        let words = knobs.words(first, second);
        let own = |glitch: &&Glitch| glitch.setting == first && glitch.second_setting == second;
        return Err(match checked.glitches.iter().find(own) {
            Some(glitch) => ChoiceRefusal::Reference { words, glitch: Box::new(*glitch) },
            None => ChoiceRefusal::NoReference { words },
        });
    };
    points[..=reference].rotate_right(1);
    match points.len() {
        1 => Err(ChoiceRefusal::TooFew { found: 1, needed: 2 }),
        _ => Ok(points),
    }
}

/// Medians by setting, by falling settings.
fn medians(measurements: &[SettingMeasurement]) -> Vec<SettingPoint> {
    let mut sorted = measurements.to_vec();
    let second = |m: &SettingMeasurement| m.second_setting.unwrap_or(0.0);
    sorted.sort_by(|a, b| b.setting.total_cmp(&a.setting).then(second(b).total_cmp(&second(a))));
    let by_setting = sorted.chunk_by(|a, b| a.setting == b.setting && a.second_setting == b.second_setting);
    by_setting
        .filter_map(|runs| {
            let middle = |of: fn(&SettingMeasurement) -> f64| median(&mut runs.iter().map(of).collect::<Vec<_>>());
            Some(SettingPoint {
                setting: runs[0].setting,
                second: runs[0].second_setting,
                seconds: middle(|run| run.duration_seconds)?,
                joules: middle(|run| run.energy_joules)?,
            })
        })
        .collect()
}

fn percent(ratio: f64) -> String {
    // No "-0.0 %".
    let rounded = (1000.0 * ratio).round() / 10.0;
    format!("{:.1} %", if rounded == 0.0 { 0.0 } else { rounded })
}
