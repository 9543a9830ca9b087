//! Every group of a table, chosen for.

use std::collections::BTreeMap;

use eadt_models::choose::{
    BatchPoint, ChoiceLimits, ChoiceMethod, ChoiceObjective, ChoiceRefusal, EnergyToAccuracy, LimitPreset, SettingChoices,
    TuningKnob, TuningKnobs, choose, energy_to_accuracy,
};
use eadt_models::fit::{CapCurve, CapPoint};
use eadt_recordings::DecimalMark;
use eadt_schemas::counts::counted;
use serde::{Deserialize, Serialize};

use crate::epochs::TrainingRuns;
use crate::map::FieldMap;
use crate::notes::{TableNote, notes, single_runs};
use crate::points::{GroupKey, PointGroup};

/// Options for reading and tuning a table.
#[derive(Debug, Clone)]
pub struct TuningRequest {
    pub maps: Vec<FieldMap>,
    /// Mark between a number's whole part and its fraction; `None` if the numbers decide it.
    pub decimal: Option<DecimalMark>,
    /// Columns whose values make a group.
    pub by: Vec<String>,
    pub knobs: TuningKnobs,
    /// Setting of the second knob that the reference has; `None` for the highest.
    pub reference_second_setting: Option<f64>,
    /// Limit for groups that the preset does not name; `None` if these are skipped.
    pub max_slowdown_ratio: Option<f64>,
    pub min_ratio: Option<f64>,
    pub preset: Option<LimitPreset>,
    pub objective: ChoiceObjective,
    pub method: ChoiceMethod,
    /// Fewer settings are no group to choose for.
    pub min_settings: usize,
    /// Above it a mean power is taken for another unit.
    pub max_power_watts: f64,
}

/// Source of the figures.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TuningSource {
    pub file: String,
    pub rows: usize,
    /// `measured` or `robust`.
    pub method: String,
}

/// A group with its choices.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TuningGroup {
    pub by: GroupKey,
    #[serde(flatten)]
    pub choices: SettingChoices,
    pub max_slowdown_ratio: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_ratio: Option<f64>,
    /// Lines of the table that the group rests on.
    pub rows: Vec<u64>,
    /// Throughput against power; for power limits only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cap_curve: Option<CapCurve>,
    /// Every measured setting with median time and energy, the highest first: for plots.
    pub points: Vec<[f64; 3]>,
    /// Setting of the second knob, for each of `points`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub point_second_settings: Vec<f64>,
    /// `simulated` if a row is marked so in the column `origin`, else absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<String>,
}

impl TuningGroup {
    /// Returns the mark of a group whose figures are simulated, else nothing.
    pub(crate) fn mark(&self) -> &'static str {
        if self.is_simulated() { " (simulated)" } else { "" }
    }

    /// Returns whether its figures are of a simulated board.
    pub fn is_simulated(&self) -> bool {
        self.origin.is_some()
    }
}

/// A group that no choice was made for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkippedGroup {
    pub by: GroupKey,
    pub reason: String,
}

/// Batch size and setting until a target is reached.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AccuracyGroup {
    pub by: GroupKey,
    pub target: f64,
    #[serde(flatten)]
    pub result: EnergyToAccuracy,
}

/// The results from a table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TuningResult {
    pub groups: Vec<TuningGroup>,
    pub skipped: Vec<SkippedGroup>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub energy_to_accuracy: Vec<AccuracyGroup>,
    pub knob: TuningKnob,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub second_knob: Option<TuningKnob>,
    pub objective: ChoiceObjective,
    pub source: TuningSource,
    /// Findings that look wrong in the table.
    #[serde(default)]
    pub notes: Vec<TableNote>,
}

/// Chooses for every group; one that cannot be chosen for is listed with its reason.
pub fn tune(file: &str, groups: &BTreeMap<GroupKey, PointGroup>, request: &TuningRequest) -> TuningResult {
    tune_counted(file, groups, request, &|| ())
}

/// Like [`tune`]; `on_group` is called after each group.
pub fn tune_counted(
    file: &str,
    groups: &BTreeMap<GroupKey, PointGroup>,
    request: &TuningRequest,
    on_group: &dyn Fn(),
) -> TuningResult {
    let method = match request.method {
        ChoiceMethod::Measured => "measured",
        ChoiceMethod::Robust(_) => "robust",
    };
    let rows = groups.values().map(|group| group.measurements.len()).sum();
    let mut tuning = TuningResult {
        groups: Vec::new(),
        skipped: Vec::new(),
        energy_to_accuracy: Vec::new(),
        knob: request.knobs.first,
        second_knob: request.knobs.second,
        notes: notes(groups, request.knobs),
        objective: request.objective,
        source: TuningSource { file: file.to_owned(), rows, method: method.to_owned() },
    };
    for (key, group) in groups {
        match tune_group(key, group, request) {
            Ok(group) => {
                tuning.notes.extend(single_runs(key, &group.choices, request.knobs));
                tuning.groups.push(group);
            }
            Err(reason) => tuning.skipped.push(SkippedGroup { by: key.clone(), reason }),
        }
        on_group();
    }
    tuning
}

fn tune_group(key: &GroupKey, group: &PointGroup, request: &TuningRequest) -> Result<TuningGroup, String> {
    let limits = limits(key, request)?;
    let points = medians(group);
    if points.len() < request.min_settings {
        let measured_settings: Vec<String> =
            points.iter().map(|point| request.knobs.words(point.setting, point.second_setting)).collect();
        return Err(format!(
            "not known: {} only ({}), {} are needed; measure more of them",
            counted(points.len(), "setting"),
            measured_settings.join(", "),
            request.min_settings
        ));
    }
    let choices = choose(request.knobs, &group.measurements, &limits, request.method).map_err(|refusal| {
        let is_of_curves =
            matches!(refusal, ChoiceRefusal::TooFew { .. } | ChoiceRefusal::NoCurve { .. } | ChoiceRefusal::NoPowerCurve { .. });
        let remedy = match request.method {
            ChoiceMethod::Robust(_) if is_of_curves => ", or choose among the measured points with --method measured",
            ChoiceMethod::Robust(_) | ChoiceMethod::Measured => "",
        };
        format!("not known: {refusal}{remedy}")
    })?;
    let cap_curve = (request.knobs == TuningKnob::PowerLimitWatts.into()).then(|| {
        let point = |point: &SettingMedian| CapPoint { watts: point.joules / point.seconds, throughput: 1.0 / point.seconds };
        CapCurve::fit(&points.iter().map(point).collect::<Vec<_>>()).ok()
    });
    Ok(TuningGroup {
        by: key.clone(),
        choices,
        max_slowdown_ratio: limits.max_slowdown_ratio,
        min_ratio: limits.min_setting_ratio,
        rows: group.measurements.iter().map(|measurement| measurement.row).collect(),
        cap_curve: cap_curve.flatten(),
        points: points.iter().map(|point| [point.setting, point.seconds, point.joules]).collect(),
        point_second_settings: points.iter().filter_map(|point| point.second_setting).collect(),
        origin: group.is_simulated.then(|| "simulated".to_owned()),
    })
}

fn limits(key: &GroupKey, request: &TuningRequest) -> Result<ChoiceLimits, String> {
    let named = match &request.preset {
        Some(preset) => {
            let workload = key.get("workload").ok_or("a preset goes by workload: add workload to --by")?;
            preset.of(workload)
        }
        None => None,
    };
    let max = named.map(|limits| limits.max_slowdown).or(request.max_slowdown_ratio);
    let ratio = named.map_or(request.min_ratio, |limits| limits.min_ratio);
    let max_slowdown_ratio = max.ok_or("the preset does not name this workload: add it, or use --max-slowdown for the others")?;
    let (objective, reference_second_setting) = (request.objective, request.reference_second_setting);
    Ok(ChoiceLimits { max_slowdown_ratio, min_setting_ratio: ratio, objective, reference_second_setting })
}

/// Medians of a setting.
#[derive(Debug, Clone, Copy)]
struct SettingMedian {
    setting: f64,
    second_setting: Option<f64>,
    seconds: f64,
    joules: f64,
}

/// Returns the medians, the highest setting first.
fn medians(group: &PointGroup) -> Vec<SettingMedian> {
    let mut sorted = group.measurements.clone();
    let second = |setting: Option<f64>| setting.unwrap_or(0.0);
    sorted.sort_by(|a, b| b.setting.total_cmp(&a.setting).then(second(b.second_setting).total_cmp(&second(a.second_setting))));
    let middle = |mut values: Vec<f64>| {
        values.sort_by(f64::total_cmp);
        f64::midpoint(values[(values.len() - 1) / 2], values[values.len() / 2])
    };
    sorted
        .chunk_by(|a, b| a.setting == b.setting && a.second_setting == b.second_setting)
        .map(|runs| SettingMedian {
            setting: runs[0].setting,
            second_setting: runs[0].second_setting,
            seconds: middle(runs.iter().map(|run| run.duration_seconds).collect()),
            joules: middle(runs.iter().map(|run| run.energy_joules).collect()),
        })
        .collect()
}

impl TuningResult {
    pub fn knobs(&self) -> TuningKnobs {
        TuningKnobs { first: self.knob, second: self.second_knob }
    }

    /// Adds, for every group without its batch size, what training to a target costs. `targets`: for all groups, or for those
    /// with this value in any column. Returns the groups for which that is not known, with the reason.
    pub fn add_energy_to_accuracy(
        &mut self,
        groups: &BTreeMap<GroupKey, PointGroup>,
        runs: &TrainingRuns,
        targets: &[(Option<String>, f64)],
    ) -> Vec<SkippedGroup> {
        let mut by_rest: BTreeMap<GroupKey, Vec<BatchPoint>> = BTreeMap::new();
        let mut untold = Vec::new();
        for (key, group) in groups {
            let mut rest = key.clone();
            let batch = rest.remove("batch_size").and_then(|text| text.parse::<f64>().ok());
            let Some(batch_size) = batch.filter(|size| *size >= 1.0 && size.fract() == 0.0) else {
                untold.push(SkippedGroup { by: key.clone(), reason: "its batch size is not a whole number".to_owned() });
                continue;
            };
            by_rest.entry(rest).or_default().extend(medians(group).into_iter().map(|point| BatchPoint {
                batch_size: batch_size as u64,
                setting: point.setting,
                seconds_per_epoch: point.seconds,
                joules_per_epoch: point.joules,
            }));
        }
        for (by, points) in by_rest {
            let own = targets.iter().rfind(|(of, _)| of.as_ref().is_some_and(|of| by.values().any(|value| value == of)));
            let Some(&(_, target)) = own.or_else(|| targets.iter().rfind(|(of, _)| of.is_none())) else {
                untold.push(SkippedGroup { by, reason: "no --target is given for it".to_owned() });
                continue;
            };
            let runs_to_target = runs.of(&by, target);
            if runs_to_target.is_empty() {
                let known: Vec<String> = runs.targets(&by).iter().map(f64::to_string).collect();
                let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                untold.push(SkippedGroup { by, reason: format!("no run was trained to {target}; known targets: {known}") });
                continue;
            }
            let result = energy_to_accuracy(&points, &runs_to_target);
            self.energy_to_accuracy.push(AccuracyGroup { by, target, result });
        }
        untold
    }
}
