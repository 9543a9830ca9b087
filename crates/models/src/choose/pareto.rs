//! Time against energy: the Pareto set and its knee.

use super::SettingPoint;

/// Indices of the points that no other one beats in both time and energy, fastest first.
/// Of points that are equal in both, the one with the higher setting.
pub(crate) fn front(points: &[SettingPoint]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..points.len()).collect();
    order.sort_by(|&a, &b| {
        let (a, b) = (&points[a], &points[b]);
        a.seconds.total_cmp(&b.seconds).then(a.joules.total_cmp(&b.joules)).then(b.setting.total_cmp(&a.setting))
    });
    let mut least = f64::INFINITY;
    order.retain(|&index| {
        let keep = points[index].joules < least;
        least = least.min(points[index].joules);
        keep
    });
    order
}

/// Returns the index of the front's knee: the point furthest below the line from its fastest to its cheapest point. Both axes are
/// scaled to the front's own range. A front without a bend has its knee at the fastest point: no saving is worth its time.
pub(crate) fn knee(points: &[SettingPoint], front: &[usize]) -> usize {
    let (Some(&first), Some(&last)) = (front.first(), front.last()) else { return 0 };
    let seconds = points[last].seconds - points[first].seconds;
    let joules = points[first].joules - points[last].joules;
    if seconds <= 0.0 || joules <= 0.0 {
        return first;
    }
    let below = |index: usize| {
        let x = (points[index].seconds - points[first].seconds) / seconds;
        let y = (points[index].joules - points[last].joules) / joules;
        1.0 - x - y
    };
    let (mut best, mut most) = (first, 1e-9);
    for &index in front {
        if below(index) > most {
            (best, most) = (index, below(index));
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(setting: f64, seconds: f64, joules: f64) -> SettingPoint {
        SettingPoint { setting, second: None, seconds, joules }
    }

    #[test]
    fn a_bend_is_found_and_a_line_has_none() {
        let bent = [at(4.0, 1.0, 10.0), at(3.0, 1.1, 6.0), at(2.0, 1.5, 5.5), at(1.0, 2.0, 5.0)];
        assert_eq!(front(&bent), [0, 1, 2, 3]);
        assert_eq!(knee(&bent, &front(&bent)), 1);
        let line = [at(3.0, 1.0, 3.0), at(2.0, 2.0, 2.0), at(1.0, 3.0, 1.0)];
        assert_eq!(knee(&line, &front(&line)), 0);
        let slow_and_dear = [at(2.0, 1.0, 1.0), at(1.0, 2.0, 2.0)];
        assert_eq!((front(&slow_and_dear), knee(&slow_and_dear, &[0])), (vec![0], 0));
        let same = [at(1.0, 1.0, 1.0), at(2.0, 1.0, 1.0)];
        assert_eq!(front(&same), [1], "the higher setting");
    }

    proptest! {
        #[test]
        fn nothing_beats_the_front_and_the_front_beats_the_rest(
            values in prop::collection::vec((1.0..10.0, 1.0..10.0), 1..40),
        ) {
            let points: Vec<SettingPoint> =
                values.iter().enumerate().map(|(i, &(seconds, joules))| at(i as f64, seconds, joules)).collect();
            let front = front(&points);
            let beats = |a: &SettingPoint, b: &SettingPoint| {
                a.seconds <= b.seconds && a.joules <= b.joules && (a.seconds < b.seconds || a.joules < b.joules)
            };
            for (index, point) in points.iter().enumerate() {
                prop_assert_eq!(front.contains(&index), !points.iter().any(|other| beats(other, point)));
            }
            prop_assert!(front.contains(&knee(&points, &front)));
        }
    }
}
