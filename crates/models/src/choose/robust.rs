//! The choice by fitted curves: time and power are fitted over all settings, resampled residuals bound the slowdown, and
//! only what stays within the limit at that bound may be chosen. A bound is never better than the measured medians.

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};

use super::measured::{EPSILON, allowed, best, reason};
use super::{Choice, Choices, Fits, Knob, Limits, Measurement, Objective, Point, Refusal, pareto};
use crate::fit::{Normal, Quality, nnls};
use crate::stats::quantile;

/// Settings of the robust method.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Robust {
    /// One-sided confidence of the bounds, above 0.5 and below 1. Default 0.9.
    pub confidence: f64,
    /// Resampled fits. Default 300.
    pub resamples: u32,
    /// Of the resampling. Default 0.
    pub seed: u64,
}

impl Default for Robust {
    fn default() -> Self {
        Self { confidence: 0.9, resamples: 300, seed: 0 }
    }
}

/// Fewer settings leave the curves (three parameters and a knee) nothing to be checked by.
const SETTINGS_MIN: usize = 5;
/// Scores closer than this are the same: the higher setting is taken.
const TIE_RATIO: f64 = 0.005;
/// Curves that miss the times by more than this on average say nothing of a limit of a few percent.
const MAPE_MAX: f64 = 0.05;
/// Huber's constant: residuals beyond 1.5 standard deviations count less than their square.
const HUBER: f64 = 1.5;
/// A run is dropped beyond this many standard deviations and this part of the curve.
const OUTLIER_DEVIATIONS: f64 = 6.0;
const OUTLIER_RATIO: f64 = 0.05;
/// A plateau must leave less than this part of the loss without one.
const PLATEAU_RATIO: f64 = 0.8;
/// Other runs of a setting that must be left where one is dropped.
const RUNS_LEFT: usize = 2;

const COLUMNS: usize = 4;
type Row = [f64; COLUMNS];

/// A curve over φ = setting / reference, linear in its coefficients once its knee is fixed. No coefficient is negative.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    /// T = a + b/φ' + c/φ'², φ' = min(φ, k): what the clock does not touch, what it does, and what slows down more than the
    /// clock. Above k a power cap holds the clock, and a higher setting changes nothing; mostly k = 1.
    ClockTime,
    /// T = a + b·(k/φ − 1)₊ + c·(k/φ − 1)₊²: a cap above what is drawn (k) changes nothing.
    CapTime,
    /// P = p0 + p1·φ + p2·(φ − k)₊ + p3·(φ − k)₊²: above the knee the voltage rises with the clock.
    /// Settings above the time curve's k are as k.
    ClockPower,
    /// P = p0 + p1·φ + p2·min(φ, k): a cap above what is drawn changes little.
    CapPower,
}

impl Shape {
    fn row(self, phi: f64, knee: f64) -> Row {
        match self {
            Self::ClockTime => {
                let phi = phi.min(knee);
                [1.0, 1.0 / phi, 1.0 / (phi * phi), 0.0]
            }
            Self::CapTime => {
                let beyond = (knee / phi - 1.0).max(0.0);
                [1.0, beyond, beyond * beyond, 0.0]
            }
            Self::ClockPower => {
                let beyond = (phi - knee).max(0.0);
                [1.0, phi, beyond, beyond * beyond]
            }
            Self::CapPower => [1.0, phi, phi.min(knee), 0.0],
        }
    }

    /// Whether settings above the knee are as the knee.
    fn has_plateau(self) -> bool {
        matches!(self, Self::ClockTime | Self::CapTime)
    }

    /// Where the knee may be; the first one is taken unless another one fits clearly better.
    fn knees(self) -> Vec<f64> {
        let scan = |from: f64, step: f64, count: u32| (0..count).map(|i| from + step * f64::from(i)).collect();
        match self {
            Self::ClockTime => scan(1.0, -0.025, 17),
            Self::CapTime | Self::CapPower => scan(1.0, -0.05, 13),
            Self::ClockPower => scan(0.55, 0.025, 14),
        }
    }
}

/// A fitted curve with all that resampling needs.
#[derive(Debug)]
struct Curve {
    shape: Shape,
    knee: f64,
    /// Settings above this part of the reference are as this one.
    ceiling: f64,
    coefficients: Row,
    settings: Vec<f64>,
    /// Of each measurement: index into `settings`, weight.
    runs: Vec<(usize, f64)>,
    /// Knees that resampled runs may choose between, the fitted one and that of [`Shape::knees`]' first among them.
    candidates: Vec<Candidate>,
    /// Relative residuals, wide by the degrees of freedom that the fit took.
    residuals: Vec<f64>,
    deviation: f64,
}

#[derive(Debug)]
struct Candidate {
    knee: f64,
    /// Of each setting, over the fitted value.
    rows: Vec<Row>,
    gram: Normal<COLUMNS>,
}

/// Of losses in the order of [`Shape::knees`]: the least; but a knee above which nothing changes hides a slowdown, and is
/// claimed only where it explains much.
fn pick(shape: Shape, losses: &[f64]) -> usize {
    let least = losses.iter().enumerate().min_by(|a, b| a.1.total_cmp(b.1)).map_or(0, |(index, _)| index);
    if shape.has_plateau() && losses[least] > PLATEAU_RATIO * losses[0] { 0 } else { least }
}

fn dot(row: &Row, coefficients: &Row) -> f64 {
    row.iter().zip(coefficients).map(|(a, b)| a * b).sum()
}

fn deviation_of(residuals: &[f64]) -> f64 {
    let mut sizes: Vec<f64> = residuals.iter().map(|r| r.abs()).collect();
    let middle = sizes.len() / 2;
    // The floor keeps a perfect fit from calling rounding an outlier.
    1e-4 + sizes.select_nth_unstable_by(middle, f64::total_cmp).1.to_owned() * 1.4826
}

/// Weighted least squares on relative residuals, weights by Huber; returns coefficients, weights and their loss.
fn regress(rows: &[Row], values: &[f64], rounds: u32) -> (Row, Vec<f64>, f64) {
    let mut weights = vec![1.0; rows.len()];
    let mut coefficients = [0.0; COLUMNS];
    let mut loss = 0.0;
    for _ in 0..rounds {
        let mut normal = Normal::<COLUMNS>::new();
        for ((row, value), weight) in rows.iter().zip(values).zip(&weights) {
            normal.add(&row.map(|x| x / value), 1.0, *weight);
        }
        coefficients = nnls(&normal);
        let residuals: Vec<f64> = rows.iter().zip(values).map(|(row, value)| dot(row, &coefficients) / value - 1.0).collect();
        let deviation = deviation_of(&residuals);
        loss = 0.0;
        for (weight, residual) in weights.iter_mut().zip(&residuals) {
            let size = residual.abs();
            let limit = HUBER * deviation;
            *weight = if size > limit { limit / size } else { 1.0 };
            // Sizes beyond the limit count evenly; the deviation belongs to the loss, else the noisiest knee would win.
            loss += if size > limit { limit * (2.0 * size - limit) } else { size * size };
        }
    }
    (coefficients, weights, loss)
}

impl Curve {
    fn fit(shape: Shape, ceiling: f64, phis: &[f64], values: &[f64]) -> Self {
        let mut fits: Vec<_> = shape
            .knees()
            .into_iter()
            .map(|knee| {
                let rows: Vec<Row> = phis.iter().map(|&phi| shape.row(phi.min(ceiling), knee)).collect();
                let (coefficients, weights, loss) = regress(&rows, values, 8);
                (knee, rows, coefficients, weights, loss)
            })
            .collect();
        let chosen = pick(shape, &fits.iter().map(|fit| fit.4).collect::<Vec<_>>());
        let near: Vec<f64> =
            fits.iter().enumerate().filter(|(i, _)| *i == 0 || i.abs_diff(chosen) <= 2).map(|(_, fit)| fit.0).collect();
        let near = if shape.has_plateau() && chosen > 0 { near } else { vec![fits[chosen].0] };
        let (knee, rows, coefficients, weights, _) = fits.swap_remove(chosen);
        let fitted: Vec<f64> = rows.iter().map(|row| dot(row, &coefficients)).collect();
        let residuals: Vec<f64> = values.iter().zip(&fitted).map(|(value, fitted)| value / fitted - 1.0).collect();
        let knees = usize::from(shape.knees().len() > 1);
        let parameters = coefficients.iter().filter(|c| **c > 0.0).count() + knees;
        let free = residuals.len().saturating_sub(parameters).max(1);
        let widen = (residuals.len() as f64 / free as f64).sqrt();
        let deviation = deviation_of(&residuals);
        let mut settings = phis.to_vec();
        settings.sort_by(f64::total_cmp);
        settings.dedup();
        let place = |phi: f64| settings.partition_point(|other| *other < phi);
        let runs: Vec<(usize, f64)> = phis.iter().zip(&weights).map(|(&phi, &weight)| (place(phi), weight)).collect();
        let candidates = near
            .into_iter()
            .map(|other| {
                let relative = |&phi: &f64| {
                    let phi = phi.min(ceiling);
                    let fitted = dot(&shape.row(phi, knee), &coefficients);
                    shape.row(phi, other).map(|x| x / fitted)
                };
                let rows: Vec<Row> = settings.iter().map(relative).collect();
                let mut gram = Normal::new();
                for (setting, weight) in &runs {
                    gram.add(&rows[*setting], 0.0, *weight);
                }
                Candidate { knee: other, rows, gram }
            })
            .collect();
        let residuals = residuals.into_iter().map(|r| r * widen).collect();
        Self { shape, knee, ceiling, coefficients, settings, runs, candidates, residuals, deviation }
    }

    fn at(&self, phi: f64) -> f64 {
        self.at_knee(phi, self.knee, &self.coefficients)
    }

    /// What another set of runs might have given. Knees near the fitted one compete anew, by the same rule.
    fn resampled(&self, random: &mut Pcg64Mcg) -> (f64, Row) {
        let mut sums = vec![0.0; self.settings.len()];
        let mut squares = 0.0;
        for &(setting, weight) in &self.runs {
            let drawn = 1.0 + self.residuals[index(random, self.residuals.len())];
            sums[setting] += weight * drawn;
            squares += weight * drawn * drawn;
        }
        let solved: Vec<(f64, Row, f64)> = self
            .candidates
            .iter()
            .map(|candidate| {
                let mut normal = candidate.gram.without_values();
                for (row, sum) in candidate.rows.iter().zip(&sums) {
                    normal.add_value(row, *sum, 1.0);
                }
                let coefficients = nnls(&normal);
                (candidate.knee, coefficients, squares + normal.loss(&coefficients))
            })
            .collect();
        let chosen = pick(self.shape, &solved.iter().map(|(_, _, loss)| *loss).collect::<Vec<_>>());
        (solved[chosen].0, solved[chosen].1)
    }

    fn at_knee(&self, phi: f64, knee: f64, coefficients: &Row) -> f64 {
        dot(&self.shape.row(phi.min(self.ceiling), knee), coefficients)
    }

    fn quality(&self, phis: &[f64], values: &[f64]) -> Option<Quality> {
        let fitted: Vec<f64> = phis.iter().map(|&phi| self.at(phi)).collect();
        Quality::of(values, &fitted)
    }
}

/// Evenly from 0 to below `count`.
fn index(random: &mut Pcg64Mcg, count: usize) -> usize {
    ((u128::from(random.next_u64()) * count as u128) >> 64) as usize
}

/// Fits and bounds of every setting.
struct Bounded {
    points: Vec<Point>,
    slowdown_upper: Vec<f64>,
    saving_lower: Vec<f64>,
}

pub(super) fn choose(
    knob: Knob,
    measured: &[Point],
    measurements: &[Measurement],
    limits: &Limits,
    options: Robust,
) -> Result<Choices, Refusal> {
    if measured.len() < SETTINGS_MIN {
        return Err(Refusal::TooFew { found: measured.len(), needed: SETTINGS_MIN });
    }
    let reference = measured[0];
    let (time_shape, power_shape) = match knob {
        Knob::SmClockMhz => (Shape::ClockTime, Shape::ClockPower),
        Knob::PowerLimitWatts => (Shape::CapTime, Shape::CapPower),
    };
    let mut kept = measurements.to_vec();
    let fit = |kept: &[Measurement]| {
        let phis: Vec<f64> = kept.iter().map(|m| m.setting / reference.setting).collect();
        let times: Vec<f64> = kept.iter().map(|m| m.duration_seconds).collect();
        let powers: Vec<f64> = kept.iter().map(|m| m.energy_joules / m.duration_seconds).collect();
        let time = Curve::fit(time_shape, 1.0, &phis, &times);
        let ceiling = if time_shape == Shape::ClockTime { time.knee } else { 1.0 };
        let power = Curve::fit(power_shape, ceiling, &phis, &powers);
        (phis, times, powers, (time, power))
    };
    let (mut phis, mut times, mut powers, (mut time, mut power)) = fit(&kept);
    let dropped_rows = drop_outliers(&mut kept, &time, &power, reference.setting);
    if !dropped_rows.is_empty() {
        (phis, times, powers, (time, power)) = fit(&kept);
    }
    let (Some(duration), Some(watts)) = (time.quality(&phis, &times), power.quality(&phis, &powers)) else {
        return Err(Refusal::Empty);
    };
    if duration.mape_ratio > MAPE_MAX {
        return Err(Refusal::NoCurve { mape_ratio: duration.mape_ratio });
    }
    // What was dropped must not count in the measured medians, either.
    let measured = if dropped_rows.is_empty() { measured.to_vec() } else { super::points(&kept)? };
    let bounded = bound(&measured, &time, &power, options);
    let mut choices = choices(&measured, &bounded, limits, knob);
    choices.measurements = measurements.len();
    let (confidence, resamples, seed) = (options.confidence, options.resamples, options.seed);
    choices.fits = Some(Fits { duration, power: watts, confidence, resamples, seed, dropped_rows });
    Ok(choices)
}

/// Takes out runs that are far off either curve, where enough other runs of their setting are left; returns their rows.
fn drop_outliers(kept: &mut Vec<Measurement>, time: &Curve, power: &Curve, reference: f64) -> Vec<u64> {
    let off = |curve: &Curve, phi: f64, value: f64| {
        let residual = (value / curve.at(phi) - 1.0).abs();
        residual > OUTLIER_RATIO.max(OUTLIER_DEVIATIONS * curve.deviation)
    };
    let is_off = |m: &Measurement| {
        let phi = m.setting / reference;
        off(time, phi, m.duration_seconds) || off(power, phi, m.energy_joules / m.duration_seconds)
    };
    let good: Vec<f64> = kept.iter().filter(|m| !is_off(m)).map(|m| m.setting).collect();
    let mut dropped = Vec::new();
    kept.retain(|m| {
        let drop = is_off(m) && good.iter().filter(|setting| **setting == m.setting).count() >= RUNS_LEFT;
        if drop {
            dropped.push(m.row);
        }
        !drop
    });
    dropped
}

fn bound(measured: &[Point], time: &Curve, power: &Curve, options: Robust) -> Bounded {
    let reference = measured[0].setting;
    let phis: Vec<f64> = measured.iter().map(|point| point.setting / reference).collect();
    let points = measured.iter().zip(&phis).map(|(point, &phi)| {
        let seconds = time.at(phi);
        Point { setting: point.setting, seconds, joules: seconds * power.at(phi) }
    });
    let points: Vec<Point> = points.collect();
    let mut random = Pcg64Mcg::seed_from_u64(options.seed);
    let count = options.resamples.max(1) as usize;
    let mut slowdowns = vec![Vec::with_capacity(count); phis.len()];
    let mut savings = vec![Vec::with_capacity(count); phis.len()];
    for _ in 0..count {
        let ((time_knee, t), (power_knee, p)) = (time.resampled(&mut random), power.resampled(&mut random));
        let (t0, p0) = (time.at_knee(phis[0], time_knee, &t), power.at_knee(phis[0], power_knee, &p));
        for (index, &phi) in phis.iter().enumerate() {
            let longer = time.at_knee(phi, time_knee, &t) / t0;
            slowdowns[index].push(longer - 1.0);
            savings[index].push(1.0 - longer * power.at_knee(phi, power_knee, &p) / p0);
        }
    }
    let at = |mut values: Vec<f64>, ratio: f64| quantile(&mut values, ratio).unwrap_or(f64::NAN);
    // Few runs may all lie on one side of a curve; a bound that its own measurements break would be none.
    let upper = slowdowns
        .into_iter()
        .zip(measured)
        .map(|(values, seen)| at(values, options.confidence).max(seen.seconds / measured[0].seconds - 1.0));
    let lower = savings
        .into_iter()
        .zip(measured)
        .map(|(values, seen)| at(values, 1.0 - options.confidence).min(1.0 - seen.joules / measured[0].joules));
    Bounded { slowdown_upper: upper.collect(), saving_lower: lower.collect(), points }
}

fn choices(measured: &[Point], bounded: &Bounded, limits: &Limits, knob: Knob) -> Choices {
    let (points, reference) = (&bounded.points, bounded.points[0]);
    let choice = |index: usize| {
        let point = points[index];
        Choice {
            setting: point.setting,
            saving_ratio: 1.0 - point.joules / reference.joules,
            slowdown_ratio: point.seconds / reference.seconds - 1.0,
            duration_seconds: point.seconds,
            energy_joules: point.joules,
            saving_lower_ratio: Some(bounded.saving_lower[index]),
            slowdown_upper_ratio: Some(bounded.slowdown_upper[index]),
            measured_saving_ratio: Some(1.0 - measured[index].joules / measured[0].joules),
            measured_slowdown_ratio: Some(measured[index].seconds / measured[0].seconds - 1.0),
        }
    };
    let score = |objective: Objective, index: usize| {
        objective.score(points[index].joules / reference.joules, points[index].seconds / reference.seconds)
    };
    let keeps = |index: usize| {
        let limit = limits.max_slowdown_ratio + EPSILON;
        // NaN keeps nothing.
        allowed(limits, points[index].setting, reference.setting) && bounded.slowdown_upper[index] <= limit
    };
    let all: Vec<usize> = (0..points.len()).collect();
    let kept: Vec<usize> = all.iter().copied().filter(|&index| index == 0 || keeps(index)).collect();
    let of = |objective, among: &[usize]| best(among, TIE_RATIO, |index| score(objective, index));
    // A setting that may cost energy is no choice, however likely the curves find it.
    let saves: Vec<usize> = kept.iter().copied().filter(|&index| index == 0 || bounded.saving_lower[index] > 0.0).collect();
    let constrained = choice(of(limits.objective, &saves));
    let front = pareto::front(points);
    Choices {
        reference: choice(0),
        min_energy: choice(of(Objective::Energy, &all)),
        constrained,
        min_edp: choice(of(Objective::Edp, &all)),
        min_ed2p: choice(of(Objective::Ed2p, &all)),
        knee: choice(pareto::knee(points, &front)),
        pareto: front.iter().map(|&index| choice(index)).collect(),
        feasible: kept.len() > 1,
        reason: reason(&constrained, kept.len() > 1, limits, knob),
        settings: points.len(),
        measurements: 0,
        fits: None,
    }
}
