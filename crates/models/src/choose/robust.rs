//! The choice by fitted curves: time and power are fitted over all settings, resampled residuals bound the slowdown, and
//! only what stays within the limit at that bound may be chosen. A bound is never better than the measured medians. Of
//! what may be chosen, each setting counts as the worse of its measurement and of the curves at it: neither a lucky
//! run nor a curve that misses a point makes a choice. With two knobs, each setting of the second one has curves of its own.

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};

use super::measured::{self, EPSILON, allowed, best, reason};
use super::{
    ChoiceLimits, ChoiceRefusal, CurveFits, SettingChoice, SettingChoices, SettingMeasurement, SettingPoint, TuningKnob,
    TuningKnobs, medians,
};
use crate::fit::{FitQuality, NormalEquations, nnls};
use crate::stats::quantile;

/// Settings of the robust method.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RobustSettings {
    /// One-sided confidence of the bounds, above 0.5 and below 1. Default 0.9.
    pub confidence: f64,
    /// Resampled fits. Default 300.
    pub resamples: u32,
    /// Seed of the resampling. Default 0.
    pub seed: u64,
}

impl Default for RobustSettings {
    fn default() -> Self {
        Self { confidence: 0.9, resamples: 300, seed: 0 }
    }
}

/// Fewer settings leave the curves (three parameters and a knee) nothing to be checked by.
const SETTINGS_MIN: usize = 5;
/// Scores closer than this are the same: the higher setting is taken.
const TIE_RATIO: f64 = 0.005;
/// Curves that miss the times or the powers by more than this on average cannot prove a limit of a few percent.
const MAPE_MAX: f64 = 0.05;
/// Huber's constant: residuals beyond 1.5 standard deviations count less than their square.
const HUBER: f64 = 1.5;
/// A run is dropped beyond this many standard deviations and this part of the curve.
const OUTLIER_DEVIATIONS: f64 = 6.0;
const OUTLIER_RATIO: f64 = 0.05;
/// A plateau must leave less than this part of the loss without one.
const PLATEAU_RATIO: f64 = 0.8;
/// Other runs of a setting that must be left if one is dropped.
const RUNS_LEFT: usize = 2;

const COLUMNS: usize = 4;
type CurveTerms = [f64; COLUMNS];

/// A curve over φ = setting / reference, linear in its coefficients once its knee is fixed. No coefficient is negative.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CurveShape {
    /// T = a + b/φ' + c/φ'², φ' = min(φ, k): the parts that do not depend on the clock, that do, and that slow down more than
    /// the clock. Above k a power cap holds the clock, and a higher setting changes nothing; mostly k = 1.
    ClockTime,
    /// T = a + b·(k/φ − 1)₊ + c·(k/φ − 1)₊²: a cap above the drawn power (k) changes nothing.
    CapTime,
    /// P = p0 + p1·φ + p2·(φ − k)₊ + p3·(φ − k)₊²: above the knee the voltage rises with the clock.
    /// Settings above the time curve's k are as k.
    ClockPower,
    /// P = p0 + p1·φ + p2·min(φ, k): a cap above the drawn power changes little.
    CapPower,
}

impl CurveShape {
    fn row(self, phi: f64, knee: f64) -> CurveTerms {
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

    /// Returns whether settings above the knee are as the knee.
    fn has_plateau(self) -> bool {
        matches!(self, Self::ClockTime | Self::CapTime)
    }

    /// Returns the positions where the knee may be. The first one is taken unless another one fits clearly better.
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
struct FittedCurve {
    shape: CurveShape,
    knee: f64,
    /// Settings above this part of the reference are as this one.
    ceiling: f64,
    coefficients: CurveTerms,
    settings: Vec<f64>,
    /// Each measurement's index into `settings`, and its weight.
    runs: Vec<(usize, f64)>,
    /// Knees that resampled runs may choose between, the fitted one and that of [`CurveShape::knees`]' first among them.
    candidates: Vec<KneeCandidate>,
    /// Relative residuals, wide by the degrees of freedom that the fit took.
    residuals: Vec<f64>,
    deviation: f64,
}

#[derive(Debug)]
struct KneeCandidate {
    knee: f64,
    /// Terms of each setting, over the fitted value.
    rows: Vec<CurveTerms>,
    gram: NormalEquations<COLUMNS>,
}

/// Returns the index of the least loss, in the order of [`CurveShape::knees`]. A knee above which nothing changes hides a
/// slowdown, so it is taken only if it explains much.
fn pick(shape: CurveShape, losses: &[f64]) -> usize {
    let least = losses.iter().enumerate().min_by(|a, b| a.1.total_cmp(b.1)).map_or(0, |(index, _)| index);
    if shape.has_plateau() && losses[least] > PLATEAU_RATIO * losses[0] { 0 } else { least }
}

fn dot(row: &CurveTerms, coefficients: &CurveTerms) -> f64 {
    row.iter().zip(coefficients).map(|(a, b)| a * b).sum()
}

fn deviation_of(residuals: &[f64]) -> f64 {
    let mut sizes: Vec<f64> = residuals.iter().map(|r| r.abs()).collect();
    let middle = sizes.len() / 2;
    // The floor keeps a perfect fit from calling rounding an outlier.
    1e-4 + sizes.select_nth_unstable_by(middle, f64::total_cmp).1.to_owned() * 1.4826
}

/// Returns the weighted least squares on relative residuals, weights by Huber; returns coefficients, weights and their loss.
fn regress(rows: &[CurveTerms], values: &[f64], rounds: u32) -> (CurveTerms, Vec<f64>, f64) {
    let mut weights = vec![1.0; rows.len()];
    let mut coefficients = [0.0; COLUMNS];
    let mut loss = 0.0;
    for _ in 0..rounds {
        let mut normal = NormalEquations::<COLUMNS>::new();
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

impl FittedCurve {
    fn fit(shape: CurveShape, ceiling: f64, phis: &[f64], values: &[f64]) -> Self {
        let mut fits: Vec<_> = shape
            .knees()
            .into_iter()
            .map(|knee| {
                let rows: Vec<CurveTerms> = phis.iter().map(|&phi| shape.row(phi.min(ceiling), knee)).collect();
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
                let rows: Vec<CurveTerms> = settings.iter().map(relative).collect();
                let mut gram = NormalEquations::new();
                for (setting, weight) in &runs {
                    gram.add(&rows[*setting], 0.0, *weight);
                }
                KneeCandidate { knee: other, rows, gram }
            })
            .collect();
        let residuals = residuals.into_iter().map(|r| r * widen).collect();
        Self { shape, knee, ceiling, coefficients, settings, runs, candidates, residuals, deviation }
    }

    fn predict(&self, phi: f64) -> f64 {
        self.at_knee(phi, self.knee, &self.coefficients)
    }

    /// Returns the curve that another set of runs might have given. Knees near the fitted one compete anew, by the same rule.
    fn resampled(&self, random: &mut Pcg64Mcg) -> (f64, CurveTerms) {
        let mut sums = vec![0.0; self.settings.len()];
        let mut squares = 0.0;
        for &(setting, weight) in &self.runs {
            let drawn = 1.0 + self.residuals[index(random, self.residuals.len())];
            sums[setting] += weight * drawn;
            squares += weight * drawn * drawn;
        }
        let solved: Vec<(f64, CurveTerms, f64)> = self
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

    fn at_knee(&self, phi: f64, knee: f64, coefficients: &CurveTerms) -> f64 {
        dot(&self.shape.row(phi.min(self.ceiling), knee), coefficients)
    }

    fn quality(&self, phis: &[f64], values: &[f64]) -> Option<FitQuality> {
        let fitted: Vec<f64> = phis.iter().map(|&phi| self.predict(phi)).collect();
        FitQuality::of(values, &fitted)
    }
}

/// Returns a random index, evenly from 0 to below `count`.
fn index(random: &mut Pcg64Mcg, count: usize) -> usize {
    ((u128::from(random.next_u64()) * count as u128) >> 64) as usize
}

/// The curves of one setting of the second knob; the only ones if there is one knob.
struct CurveSlice {
    second: Option<f64>,
    time: FittedCurve,
    power: FittedCurve,
    measurements: Vec<SettingMeasurement>,
    dropped_rows: Vec<u64>,
}

/// The values of the curves at a setting.
#[derive(Debug, Clone, Copy)]
struct FittedRatios {
    /// Over the reference's.
    time_ratio: f64,
    energy_ratio: f64,
    slowdown_upper: f64,
    saving_lower: f64,
}

pub(super) fn choose(
    knobs: TuningKnobs,
    measured: &[SettingPoint],
    measurements: &[SettingMeasurement],
    limits: &ChoiceLimits,
    options: RobustSettings,
) -> Result<SettingChoices, ChoiceRefusal> {
    let reference = measured[0];
    // The reference's slice first: all others are compared with it.
    let mut seconds: Vec<Option<f64>> = measured.iter().map(|point| point.second).collect();
    seconds.sort_by(|a, b| {
        (*a != reference.second).cmp(&(*b != reference.second)).then(b.partial_cmp(a).unwrap_or(std::cmp::Ordering::Equal))
    });
    seconds.dedup();
    let mut slices = Vec::new();
    let mut left_out = Vec::new();
    for second in seconds {
        let own: Vec<SettingMeasurement> = measurements.iter().filter(|m| m.second_setting == second).copied().collect();
        match CurveSlice::fit(knobs.first, second, own, reference.setting) {
            Ok(slice) => slices.push(slice),
            Err(refusal) if second == reference.second => return Err(refusal),
            Err(refusal) => {
                let words = knobs.second.zip(second).map_or(String::new(), |(knob, value)| knob.words(value));
                left_out.push(format!("{words}: {refusal}"));
            }
        }
    }
    let (duration, power) = (quality(&slices, reference.setting, |slice| &slice.time, |m| m.duration_seconds), {
        quality(&slices, reference.setting, |slice| &slice.power, |m| m.energy_joules / m.duration_seconds)
    });
    let (Some(duration), Some(power)) = (duration, power) else { return Err(ChoiceRefusal::Empty) };
    // Dropped rows must not count in the measured medians either.
    let dropped_rows: Vec<u64> = slices.iter().flat_map(|slice| slice.dropped_rows.iter().copied()).collect();
    let points = if dropped_rows.is_empty() {
        measured.to_vec()
    } else {
        let accepted: Vec<SettingMeasurement> = measurements.iter().filter(|m| !dropped_rows.contains(&m.row)).copied().collect();
        let mut points = medians(&accepted);
        let place = points.iter().position(|point| (point.setting, point.second) == (reference.setting, reference.second));
        points[..=place.ok_or(ChoiceRefusal::Empty)?].rotate_right(1);
        points
    };
    let (confidence, resamples, seed) = (options.confidence, options.resamples, options.seed);
    let fits = CurveFits { duration, power, confidence, resamples, seed, dropped_rows, left_out };
    let fitted = bound(&points, &slices, options);
    Ok(choices(&points, &fitted, limits, knobs, fits))
}

impl CurveSlice {
    fn fit(
        knob: TuningKnob,
        second: Option<f64>,
        mut measurements: Vec<SettingMeasurement>,
        top: f64,
    ) -> Result<Self, ChoiceRefusal> {
        let found = medians(&measurements).len();
        if found < SETTINGS_MIN {
            return Err(ChoiceRefusal::TooFew { found, needed: SETTINGS_MIN });
        }
        let (time_shape, power_shape) = match knob {
            TuningKnob::PowerLimitWatts => (CurveShape::CapTime, CurveShape::CapPower),
            TuningKnob::SmClockMhz | TuningKnob::MemoryClockMhz | TuningKnob::BatchSize => {
                (CurveShape::ClockTime, CurveShape::ClockPower)
            }
        };
        let fit = |measurements: &[SettingMeasurement]| {
            let phis: Vec<f64> = measurements.iter().map(|m| m.setting / top).collect();
            let times: Vec<f64> = measurements.iter().map(|m| m.duration_seconds).collect();
            let powers: Vec<f64> = measurements.iter().map(|m| m.energy_joules / m.duration_seconds).collect();
            let time = FittedCurve::fit(time_shape, 1.0, &phis, &times);
            let ceiling = if time_shape == CurveShape::ClockTime { time.knee } else { 1.0 };
            let power = FittedCurve::fit(power_shape, ceiling, &phis, &powers);
            let quality = (time.quality(&phis, &times), power.quality(&phis, &powers));
            (time, power, quality)
        };
        let (mut time, mut power, mut quality) = fit(&measurements);
        let dropped_rows = drop_outliers(&mut measurements, &time, &power, top);
        if !dropped_rows.is_empty() {
            (time, power, quality) = fit(&measurements);
        }
        match quality {
            (Some(duration), _) if duration.mape_ratio > MAPE_MAX => {
                Err(ChoiceRefusal::NoCurve { mape_ratio: duration.mape_ratio })
            }
            (_, Some(watts)) if watts.mape_ratio > MAPE_MAX => Err(ChoiceRefusal::NoPowerCurve { mape_ratio: watts.mape_ratio }),
            (Some(_), Some(_)) => Ok(Self { second, time, power, measurements, dropped_rows }),
            _ => Err(ChoiceRefusal::Empty),
        }
    }
}

/// Returns how well the curves of all slices together describe the measurements that they were fitted to.
fn quality(
    slices: &[CurveSlice],
    top: f64,
    curve: fn(&CurveSlice) -> &FittedCurve,
    value: fn(&SettingMeasurement) -> f64,
) -> Option<FitQuality> {
    let all = || slices.iter().flat_map(|slice| slice.measurements.iter().map(move |m| (slice, m)));
    let observed: Vec<f64> = all().map(|(_, m)| value(m)).collect();
    let fitted: Vec<f64> = all().map(|(slice, m)| curve(slice).predict(m.setting / top)).collect();
    FitQuality::of(&observed, &fitted)
}

/// Takes out runs that are far off either curve, if enough other runs of their setting are left; returns their rows.
fn drop_outliers(
    measurements: &mut Vec<SettingMeasurement>,
    time: &FittedCurve,
    power: &FittedCurve,
    reference: f64,
) -> Vec<u64> {
    let off = |curve: &FittedCurve, phi: f64, value: f64| {
        let residual = (value / curve.predict(phi) - 1.0).abs();
        residual > OUTLIER_RATIO.max(OUTLIER_DEVIATIONS * curve.deviation)
    };
    let is_off = |m: &SettingMeasurement| {
        let phi = m.setting / reference;
        off(time, phi, m.duration_seconds) || off(power, phi, m.energy_joules / m.duration_seconds)
    };
    let good: Vec<f64> = measurements.iter().filter(|m| !is_off(m)).map(|m| m.setting).collect();
    let mut dropped = Vec::new();
    measurements.retain(|m| {
        let drop = is_off(m) && good.iter().filter(|setting| **setting == m.setting).count() >= RUNS_LEFT;
        if drop {
            dropped.push(m.row);
        }
        !drop
    });
    dropped
}

/// Returns the values of the curves at each point; `None` if its slice has no curves.
fn bound(measured: &[SettingPoint], slices: &[CurveSlice], options: RobustSettings) -> Vec<Option<FittedRatios>> {
    let top = measured[0].setting;
    let slice_of = |point: &SettingPoint| slices.iter().position(|slice| slice.second == point.second);
    let places: Vec<(usize, usize, f64)> =
        measured.iter().enumerate().filter_map(|(index, point)| Some((index, slice_of(point)?, point.setting / top))).collect();
    let mut random = Pcg64Mcg::seed_from_u64(options.seed);
    let count = options.resamples.max(1) as usize;
    let mut slowdowns = vec![Vec::with_capacity(count); places.len()];
    let mut savings = vec![Vec::with_capacity(count); places.len()];
    for _ in 0..count {
        let drawn: Vec<_> =
            slices.iter().map(|slice| (slice, slice.time.resampled(&mut random), slice.power.resampled(&mut random))).collect();
        let at = |index: usize, phi: f64| {
            let (slice, (time_knee, t), (power_knee, p)) = &drawn[index];
            (slice.time.at_knee(phi, *time_knee, t), slice.power.at_knee(phi, *power_knee, p))
        };
        let (t0, p0) = at(0, 1.0);
        for (place, (_, slice, phi)) in places.iter().enumerate() {
            let (t, p) = at(*slice, *phi);
            slowdowns[place].push(t / t0 - 1.0);
            savings[place].push(1.0 - t / t0 * p / p0);
        }
    }
    let (t0, p0) = (slices[0].time.predict(1.0), slices[0].power.predict(1.0));
    let mut fitted = vec![None; measured.len()];
    let at = |mut values: Vec<f64>, ratio: f64| quantile(&mut values, ratio).unwrap_or(f64::NAN);
    for ((slowdown, saving), (index, slice, phi)) in slowdowns.into_iter().zip(savings).zip(places) {
        let (t, p) = (slices[slice].time.predict(phi), slices[slice].power.predict(phi));
        // Few runs may all lie on one side of a curve; a bound that its own measurements break would be none.
        fitted[index] = Some(FittedRatios {
            time_ratio: t / t0,
            energy_ratio: t / t0 * p / p0,
            slowdown_upper: at(slowdown, options.confidence).max(measured[index].seconds / measured[0].seconds - 1.0),
            saving_lower: at(saving, 1.0 - options.confidence).min(1.0 - measured[index].joules / measured[0].joules),
        });
    }
    fitted
}

fn choices(
    points: &[SettingPoint],
    fitted: &[Option<FittedRatios>],
    limits: &ChoiceLimits,
    knobs: TuningKnobs,
    fits: CurveFits,
) -> SettingChoices {
    let choice = |index: usize| SettingChoice {
        saving_lower_ratio: fitted[index].map(|fitted| fitted.saving_lower),
        slowdown_upper_ratio: fitted[index].map(|fitted| fitted.slowdown_upper),
        fitted_saving_ratio: fitted[index].map(|fitted| 1.0 - fitted.energy_ratio),
        fitted_slowdown_ratio: fitted[index].map(|fitted| fitted.time_ratio - 1.0),
        ..measured::choice(points, index)
    };
    // The worse of the two.
    let score = |index: usize| {
        let measured = measured::score(points, limits.objective, index);
        fitted[index].map_or(f64::INFINITY, |fitted| limits.objective.score(fitted.energy_ratio, fitted.time_ratio).max(measured))
    };
    let keeps = |index: usize| {
        let limit = limits.max_slowdown_ratio + EPSILON;
        // NaN keeps nothing.
        allowed(limits, knobs, &points[index], &points[0]) && fitted[index].is_some_and(|fitted| fitted.slowdown_upper <= limit)
    };
    let feasible_points: Vec<usize> = (0..points.len()).filter(|&index| index == 0 || keeps(index)).collect();
    // A setting that may cost energy is no choice, however likely the curves find it.
    let saves = |index: usize| fitted[index].is_some_and(|fitted| fitted.saving_lower > 0.0);
    let saving: Vec<usize> = feasible_points.iter().copied().filter(|&index| index == 0 || saves(index)).collect();
    let constrained = best(&saving, TIE_RATIO, score);
    let feasible = feasible_points.len() > 1;
    let reason = reason(&choice(constrained), Some(&fits), feasible, limits, knobs);
    SettingChoices { reason, fits: Some(fits), ..measured::choices(points, constrained, feasible, choice) }
}
