//! Expected validation loss without a change: the curves through the evaluations before it.
//!
//! A curve is `floor + scale · ((steps + offset) / unit)^−exponent`. Floor and scale follow from the shape by least squares. The
//! shape is searched by its time scale, `(steps + offset) / (exponent + 1)`: the number of steps in which the slope of the loss
//! falls by a factor of e. Its value at the last evaluation and its growth hardly depend on each other, as offset and exponent
//! do. A time scale that does not grow is an exponential curve.

use std::f64::consts::TAU;

use serde::{Deserialize, Serialize};

/// Evaluations that a trend needs: a curve has four parameters.
pub(super) const EVALUATIONS: usize = 5;
/// A trend is continued to so many times its steps, then drawn anew.
pub(super) const TRUSTED: f64 = 1.5;
/// Parameters of a curve.
const PARAMETERS: usize = 4;
/// Growth of the time scale in steps per step: exponential, and an exponent of 0.05.
const GROWTH: [f64; 2] = [1e-6, 0.95];
/// Time scale at the last evaluation, as a part of its steps.
const TIME_SCALE: [f64; 2] = [0.02, 20.0];
/// Shapes that are tried first: values of the growth, and of the time scale between its bounds there.
const GRID: (u32, u32) = (14, 16);
const GRID_GROWTH: f64 = 0.02;
const GRID_TIME_SCALE: [f64; 2] = [0.03, 8.0];
/// Steps of the search for the best shape (Levenberg 1944, Marquardt 1963), and its damping at the start.
const SEARCH_STEPS: u32 = 25;
const DAMPING: f64 = 1e-3;
/// Difference of a logarithmic time scale from which a derivative is taken.
const DIFFERENCE: f64 = 1e-4;
/// Shapes around the best one that are compared with it: parts of the distance at which they fit worse, and directions.
const RINGS: [f64; 5] = [0.3, 0.6, 0.9, 1.3, 2.0];
const DIRECTIONS: u32 = 12;
/// The greatest distance of these shapes from the best one, as a logarithm.
const RING_MAX: f64 = 1.5;

/// Loss after so many steps: the form of learning curves (Hestness et al. 2017, Kaplan et al. 2020, Hoffmann et al. 2022). It has
/// no term for a learning rate that falls at the end, which lets loss fall faster.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct LossCurve {
    floor: f64,
    scale: f64,
    exponent: f64,
    offset: f64,
    /// Absent in states of earlier versions, whose `scale` was for one step.
    #[serde(default = "one_step")]
    unit: f64,
}

const fn one_step() -> f64 {
    1.0
}

impl LossCurve {
    fn at(&self, steps: f64) -> f64 {
        self.floor + self.scale * self.part_left(steps)
    }

    /// Returns the part of `scale` that is left after so many steps.
    fn part_left(&self, steps: f64) -> f64 {
        ((steps + self.offset).max(f64::MIN_POSITIVE) / self.unit).powf(-self.exponent)
    }

    const fn is_finite(&self) -> bool {
        self.floor.is_finite()
            && self.scale.is_finite()
            && self.exponent.is_finite()
            && self.offset.is_finite()
            && self.unit.is_finite()
    }

    /// Returns by which part loss is higher after `fewer` steps fewer.
    fn cost_of_fewer_steps(&self, total: f64, fewer: f64) -> f64 {
        self.at((total - fewer).max(1.0)) / self.at(total) - 1.0
    }
}

/// The curve that fits best, and those of the lowest and the highest loss that fit about as well.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct LossTrend {
    #[serde(flatten)]
    best: LossCurve,
    #[serde(default)]
    lowest: Option<LossCurve>,
    #[serde(default)]
    highest: Option<LossCurve>,
    /// Distance from the curve within which 95 % of single evaluations are, as a part of the loss.
    pub scatter_ratio: f64,
}

/// Cost of training fewer steps, as parts of the validation loss.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct FewerStepsCost {
    pub steps: f64,
    pub ratio: f64,
    pub lowest: f64,
    pub highest: f64,
}

impl LossTrend {
    /// Fits evaluations in the order of their steps, each of steps and loss; `None` if they are too few or no losses of this
    /// form.
    pub fn fit(evaluations: &[(f64, f64)]) -> Option<Self> {
        let points = EvaluationPoints::new(evaluations)?;
        let grid = points.fit_grid();
        let start = grid.iter().min_by(|a, b| a.squares.total_cmp(&b.squares))?;
        let (best, curvature) = points.refine(start.clone());
        let freedom = evaluations.len().saturating_sub(PARAMETERS).max(1) as f64;
        let deviation = (best.squares / freedom).sqrt();
        let scatter_ratio = deviation * two_sided_quantile(freedom);
        // The curves within the interval of 95 %, by their likelihood.
        let squares_max = best.squares + scatter_ratio * scatter_ratio;
        let ring = points.fit_ring(&best, curvature, scatter_ratio);
        let all = || grid.iter().chain(&ring).chain([&best]);
        let extreme = |sign: f64| {
            let curves = all().filter_map(|fit| points.shift(fit, squares_max, sign));
            curves.max_by(|a, b| (sign * a.at(points.horizon())).total_cmp(&(sign * b.at(points.horizon()))))
        };
        let trend = Self { best: best.curve, lowest: extreme(-1.0), highest: extreme(1.0), scatter_ratio };
        let curves = [Some(trend.best), trend.lowest, trend.highest];
        let is_finite = curves.iter().flatten().all(LossCurve::is_finite) && scatter_ratio.is_finite();
        is_finite.then_some(trend)
    }

    pub fn at(&self, steps: f64) -> f64 {
        self.best.at(steps)
    }

    /// Returns by which part the loss without a change may be above this trend after so many steps, if the trend fits.
    pub fn uncertainty_ratio(&self, steps: f64) -> f64 {
        self.highest.map_or(0.0, |highest| (highest.at(steps) / self.at(steps) - 1.0).max(0.0))
    }

    /// Returns the rise of the validation loss if training ends `fewer` steps before `total`.
    pub fn cost_of_fewer_steps(&self, total: f64, fewer: f64) -> FewerStepsCost {
        let ratio = self.best.cost_of_fewer_steps(total, fewer);
        let others = [self.lowest, self.highest].into_iter().flatten().map(|curve| curve.cost_of_fewer_steps(total, fewer));
        let (lowest, highest) = others.fold((ratio, ratio), |(low, high), other| (low.min(other), high.max(other)));
        FewerStepsCost { steps: fewer, ratio, lowest, highest }
    }
}

/// Returns the quantile of 97.5 % of Student's distribution, by its expansion about the normal one (Cornish and Fisher 1937).
fn two_sided_quantile(freedom: f64) -> f64 {
    1.96 + 2.37 / freedom + 2.82 / freedom.powi(2) + 2.56 / freedom.powi(3)
}

/// A shape, by its time scale.
#[derive(Debug, Clone, Copy, PartialEq)]
struct CurveShape {
    /// Steps per step.
    growth: f64,
    /// Logarithm of the time scale at the last evaluation, in steps.
    at_last: f64,
}

/// The least squares with a shape.
#[derive(Debug, Clone)]
struct ShapeFit {
    shape: CurveShape,
    curve: LossCurve,
    /// Weighted mean of the part that is left, and the weighted sum of the squares around it.
    part_mean: f64,
    part_squares: f64,
    /// Distances of the evaluations, as parts of their losses, and the sum of their squares.
    residuals: Vec<f64>,
    squares: f64,
}

/// Second derivatives of the sum of squares by the parts of a shape (half of them, without those of the residuals).
#[derive(Debug, Clone, Copy, Default)]
struct Curvature {
    growth: f64,
    both: f64,
    last: f64,
}

/// The evaluations that curves are fitted to. Each weighs so that equal parts of its loss count alike.
#[derive(Debug)]
struct EvaluationPoints<'a> {
    points: &'a [(f64, f64)],
    first: f64,
    last: f64,
    weight: f64,
    loss_mean: f64,
    /// Sum of the squares around the mean.
    flat_squares: f64,
}

impl<'a> EvaluationPoints<'a> {
    fn new(points: &'a [(f64, f64)]) -> Option<Self> {
        let usable = points.iter().all(|(steps, loss)| steps.is_finite() && *steps >= 1.0 && loss.is_finite() && *loss > 0.0);
        let (Some((first, _)), Some((last, _))) = (points.first(), points.last()) else { return None };
        if !usable || points.len() < EVALUATIONS || last <= first {
            return None;
        }
        let weight: f64 = points.iter().map(|(_, loss)| loss.powi(-2)).sum();
        let loss_mean = points.iter().map(|(_, loss)| loss.recip()).sum::<f64>() / weight;
        let flat_squares = points.iter().map(|(_, loss)| (1.0 - loss_mean / loss).powi(2)).sum();
        Some(Self { points, first: *first, last: *last, weight, loss_mean, flat_squares })
    }

    fn horizon(&self) -> f64 {
        TRUSTED * self.last
    }

    /// Returns the nearest shape that is within the bounds: an offset is at least −½ of the first steps.
    fn bounded(&self, shape: CurveShape) -> CurveShape {
        let [shortest, longest] = TIME_SCALE.map(|part| part * self.last);
        let at_last = shape.at_last.exp().max(shortest).min(longest);
        let by_offset = at_last / (self.last - self.first / 2.0);
        let growth = shape.growth.min(by_offset).clamp(GROWTH[0], GROWTH[1]);
        CurveShape { growth, at_last: at_last.ln() }
    }

    /// Returns the least squares with this shape; neither floor nor scale is negative: without a change loss does not rise.
    fn fit_shape(&self, shape: CurveShape) -> ShapeFit {
        let shape = self.bounded(shape);
        let unit = shape.at_last.exp() / shape.growth;
        let shaped = LossCurve { floor: 0.0, scale: 1.0, exponent: shape.growth.recip() - 1.0, offset: unit - self.last, unit };
        let parts: Vec<f64> = self.points.iter().map(|(steps, _)| shaped.part_left(*steps)).collect();
        let points = || parts.iter().zip(self.points).map(|(part, (_, loss))| (*part, *loss, loss.powi(-2)));
        let part_mean = points().map(|(part, _, weight)| weight * part).sum::<f64>() / self.weight;
        let (part_squares, products) = points().fold((0.0, 0.0), |(squares, products), (part, loss, weight)| {
            let apart = part - part_mean;
            (squares + weight * apart * apart, products + weight * apart * (loss - self.loss_mean))
        });
        let scale = if part_squares > 0.0 { (products / part_squares).max(0.0) } else { 0.0 };
        let mut curve = LossCurve { floor: self.loss_mean - scale * part_mean, scale, ..shaped };
        if curve.floor < 0.0 {
            let (squares, products) = points().fold((0.0, 0.0), |(squares, products), (part, loss, weight)| {
                (squares + weight * part * part, products + weight * part * loss)
            });
            curve = LossCurve { floor: 0.0, scale: products / squares, ..curve };
        }
        let residuals: Vec<f64> = points().map(|(part, loss, _)| 1.0 - (curve.floor + curve.scale * part) / loss).collect();
        let squares = residuals.iter().map(|residual| residual * residual).sum();
        ShapeFit { shape, curve, part_mean, part_squares, residuals, squares }
    }

    fn fit_grid(&self) -> Vec<ShapeFit> {
        let value = |[low, high]: [f64; 2], i: u32, count: u32| low + (high - low) * f64::from(i) / f64::from(count - 1);
        let shapes = (0..GRID.0).flat_map(|i| (0..GRID.1).map(move |j| (i, j))).map(|(i, j)| {
            let growth = value([GRID_GROWTH, GROWTH[1]], i, GRID.0);
            CurveShape { growth, at_last: self.last.ln() + value(GRID_TIME_SCALE.map(f64::ln), j, GRID.1) }
        });
        // The others are the same as one at the bounds.
        shapes.filter(|shape| self.bounded(*shape).growth == shape.growth).map(|shape| self.fit_shape(shape)).collect()
    }

    /// Returns the derivatives of the residuals by a part of the shape.
    fn derivatives(&self, fit: &ShapeFit, moved: impl Fn(f64) -> CurveShape, value: impl Fn(CurveShape) -> f64) -> Vec<f64> {
        let near = [DIFFERENCE, -DIFFERENCE].map(|difference| self.bounded(moved(difference)));
        let distance = |shape: &CurveShape| value(*shape) - value(fit.shape);
        let Some(other) = near.into_iter().find(|shape| distance(shape).abs() > DIFFERENCE / 10.0) else {
            return vec![0.0; fit.residuals.len()];
        };
        let (other, distance) = (self.fit_shape(other), distance(&other));
        other.residuals.iter().zip(&fit.residuals).map(|(there, here)| (there - here) / distance).collect()
    }

    /// Searches for the best shape from a good one on.
    fn refine(&self, mut fit: ShapeFit) -> (ShapeFit, Curvature) {
        let mut damping = DAMPING;
        let mut curvature = Curvature::default();
        for _ in 0..SEARCH_STEPS {
            let CurveShape { growth, at_last } = fit.shape;
            let by_growth = self.derivatives(&fit, |d| CurveShape { growth: growth + d, at_last }, |shape| shape.growth);
            let by_last = self.derivatives(&fit, |d| CurveShape { growth, at_last: at_last - d }, |shape| shape.at_last);
            curvature = Curvature {
                growth: product(&by_growth, &by_growth),
                both: product(&by_growth, &by_last),
                last: product(&by_last, &by_last),
            };
            let slopes = [product(&by_growth, &fit.residuals), product(&by_last, &fit.residuals)];
            let downhill = self.bounded(CurveShape { growth: growth - DIFFERENCE * slopes[0].signum(), at_last });
            let is_bound = (downhill.growth - growth).abs() < DIFFERENCE / 10.0;
            let Some([by_growth, by_last]) = curvature.damped(damping, is_bound).solve(slopes) else { break };
            let next = self.fit_shape(CurveShape {
                growth: if is_bound { growth } else { growth - by_growth.clamp(-1.0, 1.0) },
                at_last: at_last - by_last.clamp(-1.0, 1.0),
            });
            if next.squares < fit.squares {
                (fit, damping) = (next, damping / 10.0);
            } else {
                damping *= 10.0;
            }
        }
        (fit, curvature)
    }

    /// Fits shapes around the best one, up to twice the distance at which the sum of squares is larger by `distance` squared.
    fn fit_ring(&self, best: &ShapeFit, curvature: Curvature, distance: f64) -> Vec<ShapeFit> {
        let directions = (0..DIRECTIONS).map(|i| TAU * f64::from(i) / f64::from(DIRECTIONS));
        let steps = directions.filter_map(|angle| curvature.step([distance * angle.cos(), distance * angle.sin()]));
        let shapes = steps.flat_map(|[growth, last]| {
            let limit = (RING_MAX / growth.hypot(last)).min(1.0);
            RINGS.map(|part| CurveShape {
                growth: best.shape.growth + part * limit * growth,
                at_last: best.shape.at_last + part * limit * last,
            })
        });
        shapes.map(|shape| self.fit_shape(shape)).collect()
    }

    /// Returns the curve of this shape whose loss at the horizon is highest (`sign` 1) or lowest (−1), if the sum of squares may
    /// be `squares_max`.
    fn shift(&self, fit: &ShapeFit, squares_max: f64, sign: f64) -> Option<LossCurve> {
        let room = squares_max - fit.squares;
        if room.is_nan() || room < 0.0 {
            return None;
        }
        let apart = fit.curve.part_left(self.horizon()) - fit.part_mean;
        if fit.part_squares <= 0.0 {
            return Some(fit.curve);
        }
        let leverage = self.weight.recip() + apart * apart / fit.part_squares;
        let force = sign * (room / leverage).sqrt();
        let steeper = force * apart / fit.part_squares;
        let scale = fit.curve.scale + steeper;
        let floor = fit.curve.floor + force / self.weight - steeper * fit.part_mean;
        if scale < 0.0 && self.flat_squares <= squares_max {
            let floor = self.loss_mean + sign * ((squares_max - self.flat_squares) / self.weight).sqrt();
            return Some(LossCurve { floor, scale: 0.0, ..fit.curve });
        }
        if scale < 0.0 || floor < 0.0 {
            return Some(fit.curve);
        }
        Some(LossCurve { floor, scale, ..fit.curve })
    }
}

fn product(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

impl Curvature {
    /// Returns the curvature for a shorter step. `is_bound`: without the growth.
    fn damped(self, damping: f64, is_bound: bool) -> Self {
        let longer = |curvature: f64| curvature * (1.0 + damping) + f64::MIN_POSITIVE;
        Self { growth: longer(self.growth), both: if is_bound { 0.0 } else { self.both }, last: longer(self.last) }
    }

    /// Returns the lower triangle of the Cholesky decomposition.
    fn root(self) -> Option<[f64; 3]> {
        let growth = self.growth.sqrt();
        let both = self.both / growth;
        let last = (self.last - both * both).sqrt();
        (growth > 0.0 && last > 0.0).then_some([growth, both, last])
    }

    /// Solves the equations with these coefficients.
    fn solve(self, right: [f64; 2]) -> Option<[f64; 2]> {
        let [growth, both, last] = self.root()?;
        let forward = right[0] / growth;
        self.step([forward, (right[1] - both * forward) / last])
    }

    /// Returns the step that changes the sum of squares by the square of this length.
    fn step(self, length: [f64; 2]) -> Option<[f64; 2]> {
        let [growth, both, last] = self.root()?;
        let by_last = length[1] / last;
        let step = [(length[0] - both * by_last) / growth, by_last];
        step.iter().all(|part| part.is_finite()).then_some(step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::training::learning_curves::{Curve, family};

    fn fitted(curve: &Curve, evaluations: u32) -> LossTrend {
        let points = (1..=evaluations).map(|k| 1_000.0 * f64::from(k) / f64::from(evaluations)).filter(|steps| *steps >= 100.0);
        LossTrend::fit(&points.map(|steps| (steps, curve.at(steps))).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn curves_of_the_literature_are_continued_and_their_control_is_right() {
        let (mut apart, mut uncertain, mut control) = (0.0_f64, 0.0_f64, 0.0_f64);
        for curve in family(1_000.0) {
            for evaluations in [6, 10, 25, 60] {
                let trend = fitted(&curve, evaluations);
                for steps in [1_100.0, 1_250.0, 1_500.0] {
                    apart = apart.max((curve.at(steps) / trend.at(steps) - 1.0).abs());
                    uncertain = uncertain.max(trend.uncertainty_ratio(steps));
                }
                let found = trend.cost_of_fewer_steps(4_000.0, 600.0);
                let right = curve.at(3_400.0) / curve.at(4_000.0) - 1.0;
                // A cost of a hundredth of a percent is no reliable figure.
                control = control.max((found.ratio - right).abs() / right.max(1e-4));
            }
        }
        println!("at 1.5 times the steps: {apart:.1e} apart, {uncertain:.1e} uncertain; control {control:.1e} apart");
        assert!(apart < 1e-4 && uncertain < 2e-4, "{apart} {uncertain}");
        assert!(control < 1e-3, "{control}");
    }

    #[test]
    fn a_loss_that_rises_is_no_trend_to_follow() {
        let rising: Vec<_> = (1..=6).map(|k| (f64::from(k), 2.0 + 0.1 * f64::from(k))).collect();
        let trend = LossTrend::fit(&rising).unwrap();
        assert!((trend.at(100.0) - 2.35).abs() < 0.05, "its mean: {}", trend.at(100.0));
        assert!(trend.scatter_ratio > 0.05);
    }

    #[test]
    fn a_loss_that_stays_is_certain() {
        let flat: Vec<_> = (1..=6).map(|k| (f64::from(k), 2.0)).collect();
        let trend = LossTrend::fit(&flat).unwrap();
        assert!((trend.at(9.0) - 2.0).abs() < 1e-9 && trend.uncertainty_ratio(9.0) < 1e-6 && trend.scatter_ratio < 1e-6);
    }

    #[test]
    fn too_few_evaluations_and_losses_that_are_not_above_zero_have_none() {
        let four: Vec<_> = (1..=4).map(|k| (f64::from(k), 2.0)).collect();
        assert_eq!(LossTrend::fit(&four), None);
        for loss in [-1.0, 0.0, f64::NAN, f64::INFINITY, 1e-200] {
            let wrong: Vec<_> = (1..=6).map(|k| (f64::from(k), loss)).collect();
            assert_eq!(LossTrend::fit(&wrong), None, "{loss}");
        }
        let once: Vec<_> = (1..=6).map(|_| (7.0, 2.0)).collect();
        assert_eq!(LossTrend::fit(&once), None);
    }

    #[test]
    fn a_trend_of_an_earlier_version_is_read() {
        let earlier = r#"{"floor":1.8,"scale":60.0,"exponent":0.5,"offset":50.0,"scatter_ratio":0.001}"#;
        let trend: LossTrend = serde_json::from_str(earlier).unwrap();
        assert!((trend.at(850.0) - 3.8).abs() < 1e-9 && trend.uncertainty_ratio(850.0) == 0.0);
        let trend = fitted(&Curve { floor: 2.0, range: 3.0, steps: 200.0, exponent: Some(0.8) }, 10);
        let again: LossTrend = serde_json::from_str(&serde_json::to_string(&trend).unwrap()).unwrap();
        assert!((again.at(1_500.0) / trend.at(1_500.0) - 1.0).abs() < 1e-9, "{again:?}");
    }
}
