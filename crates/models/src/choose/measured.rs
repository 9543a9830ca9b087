//! The choice among the measured points.

use super::{
    ChoiceLimits, ChoiceObjective, CurveFits, SettingChoice, SettingChoices, SettingPoint, TuningKnob, TuningKnobs, pareto,
    percent,
};

/// Rounding, not slowdown.
pub(crate) const EPSILON: f64 = 1e-9;

pub(super) fn choose(points: &[SettingPoint], limits: &ChoiceLimits, knobs: TuningKnobs) -> SettingChoices {
    let all: Vec<usize> = (0..points.len()).collect();
    let keeps = |index: usize| {
        let slowdown = points[index].seconds / points[0].seconds - 1.0;
        allowed(limits, knobs, &points[index], &points[0]) && slowdown <= limits.max_slowdown_ratio + EPSILON
    };
    let within_limits: Vec<usize> = all.into_iter().filter(|&index| index == 0 || keeps(index)).collect();
    let constrained = best(&within_limits, 0.0, |index| score(points, limits.objective, index));
    let choice = |index: usize| choice(points, index);
    SettingChoices {
        reason: reason(&choice(constrained), None, within_limits.len() > 1, limits, knobs),
        ..choices(points, constrained, within_limits.len() > 1, choice)
    }
}

/// Returns a setting as measured.
pub(super) fn choice(points: &[SettingPoint], index: usize) -> SettingChoice {
    let (point, reference) = (points[index], points[0]);
    SettingChoice {
        setting: point.setting,
        second_setting: point.second,
        saving_ratio: 1.0 - point.joules / reference.joules,
        slowdown_ratio: point.seconds / reference.seconds - 1.0,
        duration_seconds: point.seconds,
        energy_joules: point.joules,
        saving_lower_ratio: None,
        slowdown_upper_ratio: None,
        fitted_saving_ratio: None,
        fitted_slowdown_ratio: None,
    }
}

/// Returns the score of a setting, as measured.
pub(super) fn score(points: &[SettingPoint], objective: ChoiceObjective, index: usize) -> f64 {
    objective.score(points[index].joules / points[0].joules, points[index].seconds / points[0].seconds)
}

/// Returns every choice, all but the constrained one among the measured points.
pub(super) fn choices(
    points: &[SettingPoint],
    constrained: usize,
    feasible: bool,
    choice: impl Fn(usize) -> SettingChoice,
) -> SettingChoices {
    let all: Vec<usize> = (0..points.len()).collect();
    let of = |objective| choice(best(&all, 0.0, |index| score(points, objective, index)));
    let front = pareto::front(points);
    SettingChoices {
        reference: choice(0),
        min_energy: of(ChoiceObjective::Energy),
        constrained: choice(constrained),
        min_edp: of(ChoiceObjective::Edp),
        min_ed2p: of(ChoiceObjective::Ed2p),
        knee: choice(pareto::knee(points, &front)),
        pareto: front.iter().map(|&index| choice(index)).collect(),
        feasible,
        reason: String::new(),
        settings: points.len(),
        measurements: 0,
        fits: None,
        glitches: Vec::new(),
        doubtful_reference: None,
        irregular: false,
    }
}

/// Returns whether clocks and caps are at least the allowed part of the reference's. A batch size has no such limit.
pub(super) fn allowed(limits: &ChoiceLimits, knobs: TuningKnobs, point: &SettingPoint, reference: &SettingPoint) -> bool {
    let Some(ratio) = limits.min_setting_ratio else { return true };
    let high = |value: f64, highest: f64| value >= ratio * highest - EPSILON * highest;
    let second = match (knobs.second, point.second, reference.second) {
        (Some(knob), Some(value), Some(highest)) if knob != TuningKnob::BatchSize => high(value, highest),
        _ => true,
    };
    high(point.setting, reference.setting) && second
}

/// Returns the first one of `among`, which are in order of falling settings, whose score is within `tie_ratio` of the least.
pub(super) fn best(among: &[usize], tie_ratio: f64, score: impl Fn(usize) -> f64) -> usize {
    let least = among.iter().map(|&index| score(index)).fold(f64::INFINITY, f64::min);
    among.iter().copied().find(|&index| score(index) <= least * (1.0 + tie_ratio)).unwrap_or(0)
}

/// Returns the reason for this choice: the measured figures, then those of the curves with their error.
pub(super) fn reason(
    chosen: &SettingChoice,
    fits: Option<&CurveFits>,
    feasible: bool,
    limits: &ChoiceLimits,
    knobs: TuningKnobs,
) -> String {
    let limit = percent(limits.max_slowdown_ratio);
    let floor = limits
        .min_setting_ratio
        .map_or(String::new(), |ratio| format!(" and at least {} of the highest setting", percent(ratio)));
    let setting = knobs.words(chosen.setting, chosen.second_setting);
    if !feasible {
        return format!("infeasible: no setting but {setting} keeps the slowdown within {limit}{floor}; the reference is kept");
    }
    if chosen.saving_ratio == 0.0 && chosen.slowdown_ratio == 0.0 {
        return format!("no setting that keeps the limits is shown to be better than the reference; limit {limit}{floor}");
    }
    let (saving, slowdown) = (percent(chosen.saving_ratio), percent(chosen.slowdown_ratio));
    let measured = format!("{setting} saves {saving} of the energy at {slowdown} more time");
    let fitted = match (chosen.fitted_saving_ratio, chosen.fitted_slowdown_ratio, fits) {
        (Some(saving), Some(slowdown), Some(fits)) => {
            let least = chosen.saving_lower_ratio.map_or(String::new(), |least| format!(" (at least {})", percent(least)));
            let most = chosen.slowdown_upper_ratio.map_or(String::new(), |most| format!(" (at most {})", percent(most)));
            format!(
                " as measured; the fitted curves give {}{least} at {}{most}, with a mean error of {} in time and {} in power",
                percent(saving),
                percent(slowdown),
                percent(fits.duration.mape_ratio),
                percent(fits.power.mape_ratio)
            )
        }
        _ => String::new(),
    };
    format!("{measured}{fitted}; limit {limit}{floor}")
}
