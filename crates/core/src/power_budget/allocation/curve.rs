//! Throughput against power, made concave.

use super::{EPSILON, PowerPoint};

/// Throughput against power as a part of the highest, rising, in straight pieces whose slopes fall.
#[derive(Debug, Clone, PartialEq)]
pub struct ConcavePowerCurve {
    pub knots: Vec<(f64, f64)>,
}

/// Exponent of throughput over power that is assumed if nothing was measured: the square root.
const PRIOR_EXPONENT: f64 = 0.5;
/// Pieces of the prior.
const PRIOR_PIECES: u32 = 16;
impl ConcavePowerCurve {
    /// Builds the curve from `least` to `most` watts. Below the measured points throughput falls as the power does, which is the
    /// most that it can. Above them it rises as it did last.
    pub fn from_points(points: &[PowerPoint], least: f64, most: f64) -> Self {
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
        let knots = std::iter::once(least).chain(inner).chain([most]);
        let top = at(most);
        Self { knots: knots.map(|watts| (watts, at(watts) / top)).collect() }
    }

    fn prior(least: f64, most: f64) -> Self {
        let piece = |n: u32| {
            let watts = least + (most - least) * f64::from(n) / f64::from(PRIOR_PIECES);
            (watts, (watts / most).powf(PRIOR_EXPONENT))
        };
        Self { knots: (0..=PRIOR_PIECES).map(piece).collect() }
    }

    /// Returns the power from which on another watt only costs: where energy per sample is least with enough throughput.
    pub fn most_efficient_watts(&self, progress_min: f64) -> f64 {
        let energy = |(watts, progress): (f64, f64)| watts / progress;
        let mut best: Option<(f64, f64)> = None;
        for pair in self.knots.windows(2) {
            // On a straight piece energy per sample has its least at an end, or where throughput is just enough.
            let ((w0, p0), (w1, p1)) = (pair[0], pair[1]);
            let edge = (p0 < progress_min && p1 > progress_min)
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

/// Returns the least concave function that is nowhere below the points and never falls.
fn majorant(sorted: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let mut hull: Vec<(f64, f64)> = Vec::with_capacity(sorted.len());
    for &point in sorted {
        if hull.last().is_some_and(|last| point.1 <= last.1) {
            continue;
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

#[cfg(test)]
mod tests {
    use super::*;

    fn points(of: &[(f64, f64)]) -> Vec<PowerPoint> {
        of.iter().map(|(watts, rate)| PowerPoint { watts: *watts, samples_per_second: *rate }).collect()
    }

    /// That the curve has these knots, in samples/s.
    fn assert_knots(measured: &[(f64, f64)], least: f64, most: f64, expected: &[(f64, f64)]) {
        let top = expected[expected.len() - 1].1;
        let knots: Vec<(f64, f64)> = ConcavePowerCurve::from_points(&points(measured), least, most)
            .knots
            .into_iter()
            .map(|(watts, progress)| (watts, progress * top))
            .collect();
        let near = |(a, b): (&(f64, f64), &(f64, f64))| (a.0 - b.0).abs() < 1e-9 && (a.1 - b.1).abs() < 1e-9;
        assert!(
            knots.len() == expected.len() && knots.iter().zip(expected).all(near),
            "{measured:?}: {knots:?}, not {expected:?}"
        );
    }

    #[test]
    fn throughput_goes_straight_from_nothing_through_the_points_and_on_as_it_rose_last() {
        let measured = [(100.0, 10.0), (200.0, 18.0), (300.0, 22.0)];
        assert_knots(&measured, 50.0, 350.0, &[(50.0, 5.0), (100.0, 10.0), (200.0, 18.0), (300.0, 22.0), (350.0, 24.0)]);
        // Points outside of the range are cut, and only the line to them is left.
        assert_knots(&measured, 150.0, 250.0, &[(150.0, 14.0), (200.0, 18.0), (250.0, 20.0)]);
        assert_knots(&measured, 220.0, 280.0, &[(220.0, 18.8), (280.0, 21.2)]);
        assert_knots(&measured, 100.0, 300.0, &measured);
        // Above a single point it rises as a root does there: 0.5 · 10 / 200 samples/s a watt.
        assert_knots(&[(200.0, 10.0)], 100.0, 400.0, &[(100.0, 5.0), (200.0, 10.0), (400.0, 15.0)]);
    }

    #[test]
    fn a_point_is_a_knot_only_where_it_lies_above_the_line_of_its_neighbours() {
        // Under it, on it, above it.
        assert_knots(&[(100.0, 10.0), (200.0, 15.0), (300.0, 25.0)], 100.0, 300.0, &[(100.0, 10.0), (300.0, 25.0)]);
        assert_knots(&[(100.0, 10.0), (200.0, 15.0), (300.0, 20.0)], 100.0, 300.0, &[(100.0, 10.0), (300.0, 20.0)]);
        let above = [(100.0, 10.0), (200.0, 16.0), (300.0, 20.0)];
        assert_knots(&above, 100.0, 300.0, &above);
        // The first one's neighbour is the origin.
        assert_knots(&[(100.0, 5.0), (200.0, 15.0), (300.0, 18.0)], 100.0, 300.0, &[(100.0, 7.5), (200.0, 15.0), (300.0, 18.0)]);
        let on = [(100.0, 10.0), (200.0, 20.0), (300.0, 22.0)];
        assert_knots(&on, 50.0, 300.0, &[(50.0, 5.0), on[0], on[1], on[2]]);
        // More power never gives less, and of two figures at one power the higher one counts.
        assert_knots(&[(100.0, 10.0), (200.0, 9.0), (300.0, 12.0)], 100.0, 300.0, &[(100.0, 10.0), (300.0, 12.0)]);
        assert_knots(&[(100.0, 10.0), (100.0, 8.0), (200.0, 15.0)], 100.0, 200.0, &[(100.0, 10.0), (200.0, 15.0)]);
        let twice = [(100.0, 10.0), (200.0, 15.0), (200.0, 16.0), (300.0, 20.0)];
        assert_knots(&twice, 100.0, 300.0, &[(100.0, 10.0), (200.0, 16.0), (300.0, 20.0)]);
    }

    #[test]
    fn figures_that_cannot_be_show_nothing() {
        let good = [(100.0, 10.0), (200.0, 18.0)];
        for bad in [
            (0.0, 5.0),
            (150.0, 0.0),
            (-150.0, 30.0),
            (150.0, -5.0),
            (f64::INFINITY, 30.0),
            (150.0, f64::INFINITY),
            (f64::NAN, 30.0),
            (150.0, f64::NAN),
        ] {
            let curve = |measured: &[(f64, f64)]| ConcavePowerCurve::from_points(&points(measured), 80.0, 400.0);
            assert_eq!(curve(&[bad]), curve(&[]), "{bad:?} alone");
            assert_eq!(curve(&[good[0], bad, good[1]]), curve(&good), "{bad:?} among others");
        }
    }
}
