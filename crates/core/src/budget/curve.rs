//! Throughput against power, made concave.

use super::{EPSILON, PowerPoint};

/// Throughput against power as a part of the highest, rising, in straight pieces whose slopes fall.
#[derive(Debug, Clone, PartialEq)]
pub struct Concave {
    pub knots: Vec<(f64, f64)>,
}

/// How throughput rises with power where nothing is known: with its root.
const PRIOR_EXPONENT: f64 = 0.5;
/// Pieces of the prior.
const PRIOR_PIECES: u32 = 16;
impl Concave {
    /// From `least` to `most` watts. Below what was measured throughput falls as the power does, which is the most that it can;
    /// above it rises as it did last.
    pub fn of(points: &[PowerPoint], least: f64, most: f64) -> Self {
        let usable = |p: &&PowerPoint| {
            p.watts > 0.0 && p.samples_per_second > 0.0 && p.watts.is_finite() && p.samples_per_second.is_finite()
        };
        let mut known: Vec<(f64, f64)> = points.iter().filter(usable).map(|p| (p.watts, p.samples_per_second)).collect();
        known.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
        let hull = majorant(&known);
        let (Some(&first), Some(&last)) = (hull.first(), hull.last()) else { return Self::prior(least, most) };
        let last_slope = match hull.as_slice() {
            [.., a, b] => (b.1 - a.1) / (b.0 - a.0),
            _ => PRIOR_EXPONENT * last.1 / last.0,
        };
        let at = |watts: f64| {
            if watts <= first.0 {
                first.1 * watts / first.0
            } else if watts >= last.0 {
                last.1 + last_slope * (watts - last.0)
            } else {
                let above = hull.partition_point(|knot| knot.0 <= watts);
                let (a, b) = (hull[above - 1], hull[above]);
                a.1 + (b.1 - a.1) * (watts - a.0) / (b.0 - a.0)
            }
        };
        let inner = hull.iter().map(|knot| knot.0).filter(|watts| *watts > least && *watts < most);
        let mut knots: Vec<f64> = std::iter::once(least).chain(inner).chain([most]).collect();
        knots.dedup_by(|a, b| (*a - *b).abs() < EPSILON);
        let top = at(most);
        Self { knots: knots.into_iter().map(|watts| (watts, at(watts) / top)).collect() }
    }

    fn prior(least: f64, most: f64) -> Self {
        let piece = |n: u32| {
            let watts = least + (most - least) * f64::from(n) / f64::from(PRIOR_PIECES);
            (watts, (watts / most).powf(PRIOR_EXPONENT))
        };
        let mut knots: Vec<_> = (0..=PRIOR_PIECES).map(piece).collect();
        knots.dedup_by(|a, b| (a.0 - b.0).abs() < EPSILON);
        Self { knots }
    }

    /// The power from which on another watt only costs: where energy per sample is least with enough throughput.
    pub fn wanted(&self, progress_min: f64) -> f64 {
        let energy = |(watts, progress): (f64, f64)| watts / progress;
        let mut best: Option<(f64, f64)> = None;
        for pair in self.knots.windows(2) {
            // On a straight piece energy per sample has its least at an end, or where throughput is just enough.
            let ((w0, p0), (w1, p1)) = (pair[0], pair[1]);
            let edge = (p0 < progress_min && p1 > progress_min && p1 > p0)
                .then(|| (w0 + (w1 - w0) * (progress_min - p0) / (p1 - p0), progress_min));
            for knot in [Some(pair[0]), edge, Some(pair[1])].into_iter().flatten() {
                if knot.1 >= progress_min - EPSILON && best.is_none_or(|best| energy(knot) < energy(best)) {
                    best = Some(knot);
                }
            }
        }
        best.map_or(self.knots[self.knots.len() - 1].0, |best| best.0)
    }
}

/// The least concave function that is nowhere below the points and never falls.
fn majorant(sorted: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let mut hull: Vec<(f64, f64)> = Vec::with_capacity(sorted.len());
    for &point in sorted {
        if hull.last().is_some_and(|last| point.1 <= last.1) {
            continue;
        }
        if hull.last().is_some_and(|last| point.0 - last.0 < EPSILON) {
            hull.pop();
        }
        while let [.., a, b] = hull[..]
            && (b.1 - a.1) * (point.0 - a.0) <= (point.1 - a.1) * (b.0 - a.0)
        {
            hull.pop();
        }
        hull.push(point);
    }
    // Concave from the origin on: a first point that lies under the line to a later one is no knot.
    while let [a, b, ..] = hull[..]
        && a.1 / a.0 < b.1 / b.0
    {
        hull.remove(0);
    }
    hull
}
