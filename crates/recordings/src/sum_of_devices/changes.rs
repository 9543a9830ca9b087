//! Which devices another one follows, from reading to reading: a fit of its changes to those of all others by least squares.
//!
//! Levels of boards of one job rise and fall together, and say little. Changes from one reading to the next have the noise of
//! each board, and a total has that of all its parts.

use super::figures::DeviceFigure;

/// Most devices, as each is fitted to all others, and most changes of each.
const MOST_DEVICES: usize = 32;
const MOST_CHANGES: usize = 500;
/// A total is at least this part of the two parts that draw least.
const LEAST_PART_OF_TWO: f64 = 0.85;
/// Of no more devices, one may be the mean of some.
const MOST_DEVICES_OF_A_MEAN: usize = 12;
/// Fewest changes, and fewest for each device.
const FEWEST_CHANGES: usize = 20;
const CHANGES_PER_DEVICE: usize = 3;
/// Changes of a device are no others' but for so small a part.
const LEAST_OWN_PART: f64 = 1e-8;
/// A coefficient that is no larger is none.
const NO_COEFFICIENT: f64 = 0.08;
/// Coefficients of parts differ by so much of their median at most, which counts as so much at least.
const DIFFERENCE_OF_COEFFICIENTS: f64 = 0.12;
const LEAST_MEDIAN: f64 = 0.3;

/// Sums of the products of the changes of devices.
#[derive(Debug)]
pub(super) struct ChangeFit {
    /// The products of each of the other devices with itself and those before it, and with the device that is fitted.
    products: Vec<Vec<f64>>,
    with_fitted: Vec<f64>,
    /// The sum of the squares of the changes of the device that is fitted.
    pub(super) squares: f64,
    pub(super) changes: usize,
    factor: CholeskyFactor,
}

/// Devices that another follows, all with one coefficient.
#[derive(Debug)]
pub(super) struct FollowedDevices {
    /// Their places among the others.
    pub(super) parts: Vec<usize>,
    pub(super) coefficient: f64,
}

fn product(left: &[f64], right: &[f64]) -> f64 {
    left.iter().zip(right).map(|(left, right)| left * right).sum()
}

/// Returns an entry of a symmetric matrix, of which the lower triangle is there.
fn entry(matrix: &[Vec<f64>], row: usize, column: usize) -> f64 {
    matrix[row.max(column)][row.min(column)]
}

/// Returns whether a device may be the sum of others: so few that each can be fitted, and two of them draw no more than it.
pub(super) fn may_be_fitted(figures: &[DeviceFigure], fitted: usize) -> bool {
    if !(3..=MOST_DEVICES).contains(&figures.len()) {
        return false;
    }
    let others = figures.iter().enumerate().filter(|(place, figure)| *place != fitted && figure.mean > 0.0);
    let mut means: Vec<f64> = others.map(|(_, figure)| figure.mean).collect();
    means.sort_by(f64::total_cmp);
    let least: f64 = means.iter().take(2).sum();
    least * LEAST_PART_OF_TWO <= figures[fitted].mean || figures.len() <= MOST_DEVICES_OF_A_MEAN
}

/// Returns the changes of the fitted device, and of the others over the same times. Long records are thinned out.
fn find_changes(fitted: &DeviceFigure, others: &[&DeviceFigure], lag: isize) -> (Vec<f64>, Vec<Vec<f64>>) {
    let stride = fitted.values.len().div_ceil(MOST_CHANGES).max(1);
    let (mut own, mut of_others) = (Vec::new(), vec![Vec::new(); others.len()]);
    for pair in fitted.values.windows(2).step_by(stride) {
        let change = |other: &&DeviceFigure| Some(other.near(pair[1].0, lag)? - other.near(pair[0].0, lag)?);
        let Some(changes) = others.iter().map(change).collect::<Option<Vec<f64>>>() else { continue };
        own.push(pair[1].1 - pair[0].1);
        for (all, change) in of_others.iter_mut().zip(changes) {
            all.push(change);
        }
    }
    (own, of_others)
}

impl ChangeFit {
    /// Returns the fit of a device to others whose readings are by `lag` readings later; `None` if there are too few.
    pub(super) fn of(fitted: &DeviceFigure, others: &[&DeviceFigure], lag: isize) -> Option<Self> {
        let (own, of_others) = find_changes(fitted, others, lag);
        if own.len() < FEWEST_CHANGES.max(CHANGES_PER_DEVICE * others.len()) {
            return None;
        }
        let below = |place: usize| of_others[..=place].iter().map(|other| product(other, &of_others[place])).collect();
        let products: Vec<Vec<f64>> = (0..of_others.len()).map(below).collect();
        let with_fitted = of_others.iter().map(|other| product(other, &own)).collect();
        // Parts come before totals of them, which then add nothing.
        let mut order: Vec<usize> = (0..others.len()).collect();
        order.sort_by(|a, b| others[*a].mean.total_cmp(&others[*b].mean));
        let factor = CholeskyFactor::of(&products, &order);
        Some(Self { products, with_fitted, squares: product(&own, &own), changes: own.len(), factor })
    }

    /// Returns the devices that the fitted one follows, if all have nearly the same coefficient.
    pub(super) fn followed(&self) -> Option<FollowedDevices> {
        let used = &self.factor.used;
        let right: Vec<f64> = used.iter().map(|place| self.with_fitted[*place]).collect();
        let coefficients = self.factor.solve(&right);
        let of_parts = used.iter().copied().zip(coefficients).filter(|(_, coefficient)| coefficient.abs() > NO_COEFFICIENT);
        let mut parts: Vec<(usize, f64)> = of_parts.collect();
        parts.sort_by(|a, b| a.1.total_cmp(&b.1));
        let median = parts.get(parts.len() / 2)?.1;
        let most = DIFFERENCE_OF_COEFFICIENTS * median.max(LEAST_MEDIAN);
        let is_one = parts.len() > 1 && parts.iter().all(|(_, coefficient)| (coefficient - median).abs() <= most);
        let mut places: Vec<usize> = parts.into_iter().map(|(place, _)| place).collect();
        places.sort_unstable();
        is_one.then_some(FollowedDevices { parts: places, coefficient: median })
    }

    /// Returns the one coefficient of parts that fits best, and the squares that it leaves.
    pub(super) fn fit_sum(&self, parts: &[usize]) -> (f64, f64) {
        let joint: f64 = parts.iter().map(|place| self.with_fitted[*place]).sum();
        let among: f64 = parts.iter().flat_map(|a| parts.iter().map(|b| entry(&self.products, *a, *b))).sum();
        let coefficient = if among > 0.0 { joint / among } else { 0.0 };
        let left = self.squares - 2.0 * coefficient * joint + coefficient * coefficient * among;
        (coefficient, left.max(0.0))
    }

    /// Returns the squares of the changes of a device that are not those of any other one.
    pub(super) fn own_squares(&self, device: usize) -> f64 {
        let unit: Vec<f64> = self.factor.used.iter().map(|place| if *place == device { 1.0 } else { 0.0 }).collect();
        let at = self.factor.used.iter().position(|place| *place == device);
        let inverse = at.and_then(|at| self.factor.solve(&unit).get(at).copied()).filter(|inverse| *inverse > 0.0);
        inverse.map_or(0.0, |inverse| 1.0 / inverse)
    }
}

/// The lower triangle whose product with its transpose is a matrix, without rows that are combinations of those before them.
#[derive(Debug)]
struct CholeskyFactor {
    /// The rows of the matrix, in order.
    used: Vec<usize>,
    rows: Vec<Vec<f64>>,
}

impl CholeskyFactor {
    fn of(matrix: &[Vec<f64>], order: &[usize]) -> Self {
        let mut factor = Self { used: Vec::new(), rows: Vec::new() };
        for place in order.iter().copied() {
            let right: Vec<f64> = factor.used.iter().map(|used| entry(matrix, place, *used)).collect();
            let mut row = factor.solve_lower(&right);
            let whole = entry(matrix, place, place);
            let own = whole - product(&row, &row);
            if whole > 0.0 && own > LEAST_OWN_PART * whole {
                row.push(own.sqrt());
                factor.used.push(place);
                factor.rows.push(row);
            }
        }
        factor
    }

    fn solve_lower(&self, right: &[f64]) -> Vec<f64> {
        let mut solved: Vec<f64> = Vec::with_capacity(right.len());
        for (row, right) in self.rows.iter().zip(right) {
            let rest = right - product(&solved, row);
            solved.push(rest / row[solved.len()]);
        }
        solved
    }

    /// Solves the equations of the used rows.
    fn solve(&self, right: &[f64]) -> Vec<f64> {
        let mut solved = self.solve_lower(right);
        for place in (0..solved.len()).rev() {
            let below: f64 = (place + 1..solved.len()).map(|below| self.rows[below][place] * solved[below]).sum();
            solved[place] = (solved[place] - below) / self.rows[place][place];
        }
        solved
    }
}

#[cfg(test)]
mod tests {
    use eadt_schemas::EventTime;

    use super::*;

    #[test]
    fn a_device_follows_those_whose_changes_it_has() {
        let figure = |values: Vec<f64>| {
            let known = values.into_iter().enumerate();
            let known = known.map(|(row, value)| (EventTime::from_seconds(1.7e9 + row as f64), value)).collect();
            DeviceFigure::from_readings(0, known, false).unwrap()
        };
        // Four boards of one job, each with a noise of its own.
        let board = |own: usize| -> Vec<f64> {
            (0..60).map(|row| 200.0 + 100.0 * f64::from(row / 10 % 2) + f64::from(row * [37, 53, 71, 29][own] % 23)).collect()
        };
        let combine = |parts: &[usize], factor: f64| -> Vec<f64> {
            let boards: Vec<Vec<f64>> = parts.iter().map(|own| board(*own)).collect();
            (0..60).map(|row| boards.iter().map(|board| board[row]).sum::<f64>() * factor).collect()
        };
        let boards: Vec<DeviceFigure> = (0..4).map(|own| figure(board(own))).collect();
        let others: Vec<&DeviceFigure> = boards.iter().collect();
        for (what, fitted, expected) in [
            ("all", combine(&[0, 1, 2, 3], 1.0), Some((vec![0, 1, 2, 3], 1.0))),
            ("two of them", combine(&[1, 3], 1.0), Some((vec![1, 3], 1.0))),
            ("with losses", combine(&[0, 2, 3], 1.05), Some((vec![0, 2, 3], 1.05))),
            ("a mean", combine(&[0, 1, 2, 3], 0.25), Some((vec![0, 1, 2, 3], 0.25))),
            ("one", combine(&[2], 2.0), None),
        ] {
            let found = ChangeFit::of(&figure(fitted), &others, 0).and_then(|fit| fit.followed());
            let found = found.map(|found| (found.parts, (found.coefficient * 1e6).round() / 1e6));
            assert_eq!(found, expected, "{what}");
        }
        let first = ChangeFit::of(&boards[0], &others[1..], 0).unwrap();
        assert!(first.own_squares(0) > 0.0 && first.own_squares(2) > 0.0);
    }
}
