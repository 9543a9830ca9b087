//! The choice among the measured points.

use super::{Choice, Choices, Knob, Limits, Objective, Point, Refusal, pareto, percent};

/// Rounding, not slowdown.
pub(crate) const EPSILON: f64 = 1e-9;

pub(super) fn choose(points: &[Point], measurements: usize, limits: &Limits, knob: Knob) -> Result<Choices, Refusal> {
    let reference = *points.first().ok_or(Refusal::Empty)?;
    let choice = |index: usize| {
        let point = points[index];
        Choice {
            setting: point.setting,
            saving_ratio: 1.0 - point.joules / reference.joules,
            slowdown_ratio: point.seconds / reference.seconds - 1.0,
            duration_seconds: point.seconds,
            energy_joules: point.joules,
            saving_lower_ratio: None,
            slowdown_upper_ratio: None,
            measured_saving_ratio: None,
            measured_slowdown_ratio: None,
        }
    };
    let score = |objective: Objective, index: usize| {
        objective.score(points[index].joules / reference.joules, points[index].seconds / reference.seconds)
    };
    let keeps = |index: usize| {
        let slowdown = points[index].seconds / reference.seconds - 1.0;
        allowed(limits, points[index].setting, reference.setting) && slowdown <= limits.max_slowdown_ratio + EPSILON
    };
    let all: Vec<usize> = (0..points.len()).collect();
    let kept: Vec<usize> = all.iter().copied().filter(|&index| index == 0 || keeps(index)).collect();
    let of = |objective, among: &[usize]| best(among, 0.0, |index| score(objective, index));
    let constrained = of(limits.objective, &kept);
    let front = pareto::front(points);
    Ok(Choices {
        reference: choice(0),
        min_energy: choice(of(Objective::Energy, &all)),
        constrained: choice(constrained),
        min_edp: choice(of(Objective::Edp, &all)),
        min_ed2p: choice(of(Objective::Ed2p, &all)),
        knee: choice(pareto::knee(points, &front)),
        pareto: front.iter().map(|&index| choice(index)).collect(),
        feasible: kept.len() > 1,
        reason: reason(&choice(constrained), kept.len() > 1, limits, knob),
        settings: points.len(),
        measurements,
        fits: None,
    })
}

pub(super) fn allowed(limits: &Limits, setting: f64, reference: f64) -> bool {
    limits.min_setting_ratio.is_none_or(|ratio| setting >= ratio * reference - EPSILON * reference)
}

/// Of `among`, which are in order of falling settings: the first one whose score is within `tie_ratio` of the least.
pub(super) fn best(among: &[usize], tie_ratio: f64, score: impl Fn(usize) -> f64) -> usize {
    let least = among.iter().map(|&index| score(index)).fold(f64::INFINITY, f64::min);
    among.iter().copied().find(|&index| score(index) <= least * (1.0 + tie_ratio)).unwrap_or(0)
}

pub(super) fn reason(chosen: &Choice, feasible: bool, limits: &Limits, knob: Knob) -> String {
    let limit = percent(limits.max_slowdown_ratio);
    let floor = limits
        .min_setting_ratio
        .map_or(String::new(), |ratio| format!(" and at least {} of the highest setting", percent(ratio)));
    let (setting, unit) = (chosen.setting, knob.unit());
    if !feasible {
        return format!(
            "infeasible: no setting below {setting} {unit} keeps the slowdown within {limit}{floor}; the reference is kept"
        );
    }
    let saved = if chosen.saving_ratio == 0.0 {
        "no setting that keeps the limits is shown to be better than the reference".to_owned()
    } else {
        format!(
            "{setting} {unit} saves {} of the energy at {} more time",
            percent(chosen.saving_ratio),
            percent(chosen.slowdown_ratio)
        )
    };
    let bound = match (chosen.slowdown_upper_ratio, chosen.saving_ratio != 0.0) {
        (Some(upper), true) => format!(" (at most {})", percent(upper)),
        _ => String::new(),
    };
    format!("{saved}{bound}; limit {limit}{floor}")
}
