//! The value of a setting by the curve of the others: a parabola through the nearest of them, as logarithms, also beyond the ends
//! of a sweep. How far the others are from curves of their own bounds what a distance means.

/// Settings that a parabola goes through.
const NEAREST: usize = 6;
/// A sweep of fewer settings is no curve: noise alone would be a distance.
const SETTINGS_MIN: usize = 9;
/// A setting whose nearest one is further away than this many of their usual steps has no curve there.
const STEPS_MAX: f64 = 2.0;

/// Setting and value, as logarithms.
pub(super) type CurvePoint = (f64, f64);

/// A sweep, and the curve of the other settings for each of its settings.
#[derive(Debug)]
pub(super) struct SweepCurve {
    points: Vec<CurvePoint>,
    predicted: Vec<Option<f64>>,
}

impl SweepCurve {
    /// Returns `None` if there are too few settings. They are in order.
    pub(super) fn new(points: Vec<CurvePoint>) -> Option<Self> {
        let predicted = (0..points.len()).map(|at| parabola(&points, at)).collect();
        (points.len() >= SETTINGS_MIN).then_some(Self { points, predicted })
    }

    /// Returns the value, as a logarithm, that the others leave for a setting; `None` if it is too far from them.
    pub(super) fn predict(&self, at: usize) -> Option<f64> {
        self.predicted[at]
    }

    /// Returns the largest distance, as a logarithm, of the other settings from curves without this one; `None` if too few of them
    /// have a curve.
    pub(super) fn scatter(&self, left_out: usize) -> Option<f64> {
        let points = &self.points;
        // The nearest of others are the same with it.
        let near = left_out.saturating_sub(NEAREST)..=left_out + NEAREST;
        let far = (0..points.len()).filter(|at| !near.contains(at));
        let of_far = far.filter_map(|at| Some((points[at].1 - self.predicted[at]?).abs()));
        // Those near it, and the nearest of each.
        let (first, end) = (left_out.saturating_sub(2 * NEAREST + 1), points.len().min(left_out + 2 * NEAREST + 2));
        let rest = [&points[first..left_out], &points[left_out + 1..end]].concat();
        let is_near = |at: &usize| near.contains(&(first + at + usize::from(first + at >= left_out)));
        let distance = |at: usize| Some((rest[at].1 - parabola(&rest, at)?).abs());
        let distances: Vec<f64> = (0..rest.len()).filter(is_near).filter_map(distance).chain(of_far).collect();
        (distances.len() >= NEAREST).then(|| distances.into_iter().fold(0.0, f64::max))
    }
}

fn parabola(points: &[CurvePoint], at: usize) -> Option<f64> {
    let near = nearest(points, at)?;
    let setting = points[at].0;
    let (first, last) = (near.first()?.0, near.last()?.0);
    let step = (last - first).abs() / (NEAREST - 1) as f64;
    let gap = near.iter().map(|point| (point.0 - setting).abs()).fold(f64::INFINITY, f64::min);
    if gap > STEPS_MAX * step {
        return None;
    }
    // Least squares by polynomials that are orthogonal on these settings.
    let count = near.len() as f64;
    let mean = |of: &dyn Fn(f64, f64) -> f64| near.iter().map(|point| of(point.0, point.1)).sum::<f64>() / count;
    let center = mean(&|x, _| x);
    let square = mean(&|x, _| (x - center).powi(2));
    let skew = mean(&|x, _| (x - center).powi(3)) / square;
    let bend = |x: f64| (x - center).powi(2) - skew * (x - center) - square;
    let slope = mean(&|x, y| (x - center) * y) / square;
    let curvature = mean(&|x, y| bend(x) * y) / mean(&|x, _| bend(x).powi(2));
    Some(mean(&|_, y| y) + slope * (setting - center) + curvature * bend(setting))
}

/// Returns the nearest others, in order; `None` if there are fewer than a parabola goes through.
fn nearest(points: &[CurvePoint], at: usize) -> Option<Vec<CurvePoint>> {
    let distance = |other: Option<&CurvePoint>| other.map_or(f64::INFINITY, |point| (point.0 - points[at].0).abs());
    let (mut before, mut after) = (&points[at.saturating_sub(NEAREST)..at], &points[at + 1..points.len().min(at + 1 + NEAREST)]);
    if before.len() + after.len() < NEAREST {
        return None;
    }
    // Takes the furthest away until so many are left.
    while before.len() + after.len() > NEAREST {
        let first_is_further = match (before.first(), after.last()) {
            (Some(_), None) => true,
            (None, _) => false,
            (first, last) => distance(first) > distance(last),
        };
        if first_is_further {
            before = &before[1..];
        } else {
            after = &after[..after.len() - 1];
        }
    }
    Some([before, after].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Points on a parabola, in uneven steps.
    fn points() -> Vec<CurvePoint> {
        let settings = [7.25, 7.2, 7.13, 7.08, 7.0, 6.91, 6.85, 6.74, 6.66, 6.6];
        settings.map(|x| (x, 2.0 - 0.7 * (x - 7.0) + 0.4 * (x - 7.0) * (x - 7.0))).to_vec()
    }

    #[test]
    fn a_parabola_predicts_its_own_points_also_beyond_its_ends() {
        let points = points();
        let curve = SweepCurve::new(points.clone()).unwrap();
        for (at, (_, value)) in points.iter().enumerate() {
            assert!((curve.predict(at).unwrap() - value).abs() < 1e-9, "{at}");
            assert!(curve.scatter(at).unwrap() < 1e-9, "{at}");
        }
    }

    #[test]
    fn a_distance_is_of_the_setting_that_is_off_alone() {
        let mut points = points();
        points[9].1 -= 0.2;
        let curve = SweepCurve::new(points.clone()).unwrap();
        assert!((curve.predict(9).unwrap() - points[9].1 - 0.2).abs() < 1e-9);
        assert!(curve.scatter(9).unwrap() < 1e-9);
        assert!(curve.scatter(8).unwrap() > 0.1, "it is among the others");
    }

    #[test]
    fn few_settings_and_far_ones_have_no_curve() {
        let points = points();
        assert!(SweepCurve::new(points[..8].to_vec()).is_none());
        let mut far = points;
        far[0].0 = 7.6;
        let curve = SweepCurve::new(far).unwrap();
        assert_eq!(curve.predict(0), None);
        assert!(curve.predict(1).is_some());
    }

    #[test]
    fn the_scatter_is_that_of_the_curves_of_a_sweep_without_the_setting() {
        let wave = |at: f64| 2.0 - 0.7 * at.ln() + 0.02 * (at * at).sin();
        let points: Vec<CurvePoint> =
            (0..60).map(|at| 2100.0 - 15.0 * f64::from(at) - f64::from(at % 3)).map(|clock| (clock.ln(), wave(clock))).collect();
        for count in [9, 10, 14, 27, 60] {
            let curve = SweepCurve::new(points[..count].to_vec()).unwrap();
            for left_out in 0..count {
                let rest = [&points[..left_out], &points[left_out + 1..count]].concat();
                let distances = (0..rest.len()).filter_map(|at| Some((rest[at].1 - parabola(&rest, at)?).abs()));
                assert_eq!(curve.scatter(left_out), distances.reduce(f64::max), "{left_out} of {count}");
            }
        }
    }
}
