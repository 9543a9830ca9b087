//! Devices that follow the sum of others with a factor and an offset: a supply has losses, and another meter may meter more.

use super::changes::{ChangeFit, may_be_fitted};
use super::figures::{AlignedRows, DeviceFigure, ROUNDING};
use super::{COEFFICIENTS_OF_A_SUM, LAGS};
use crate::median::upper_median;

/// Changes that the sum leaves, as a part of all.
const CHANGES_LEFT: f64 = 0.1;
/// The squares of the changes that the sum leaves, as a part of those that its parts have for themselves, at most. Boards of one job
/// change together, but one does not have the noise of another: if it is no sum, it leaves the noise of all parts, and its own.
const LEFT_OF_OWN: f64 = 0.5;
/// The changes of a part that are its own alone are so many times as large as those that rounding makes.
const OWN_OF_ROUNDING: f64 = 4.0;
/// Fewest changes for each device.
const CHANGES_PER_DEVICE: usize = 6;
/// Distances from the sum, but for the 5 in 100 that are the furthest, are no larger than this part of the mean.
const DISTANCE: f64 = 0.02;
const PERCENT_WITHIN: usize = 95;
/// A total is not less than its parts by more than this part of it, nor of them in the rows in which they draw least.
const LEAST_OFFSET: f64 = -0.05;
const PERCENT_OF_LOW_ROWS: usize = 10;
/// Changes of the parts of which the largest are left out, as steps of a load.
const PERCENT_OF_SMALL_CHANGES: usize = 90;
/// Fewest of these that show whether a device has the noise of its parts.
const FEWEST_SMALL_CHANGES: usize = 20;
/// Squares of the changes of the parts, relative to those that the rounding of the device makes, that are visible in it.
const SQUARES_OF_ROUNDING: f64 = 2.0;
/// Least part of the changes that rounding of the parts does not explain, and of these the least part that a total has.
const LEAST_EXPECTED: f64 = 0.25;
const LEAST_OF_EXPECTED: f64 = 0.5;
/// Percentage of readings that its parts have, too.
const PERCENT_OF_ROWS: usize = 90;

/// A device that follows the sum of others.
#[derive(Debug, PartialEq)]
pub(super) struct FollowedSum {
    pub(super) sum: usize,
    pub(super) parts: Vec<usize>,
    pub(super) factor: f64,
    pub(super) offset: f64,
}

/// Returns the first device that follows the sum of others.
pub(super) fn find_followed_sum(figures: &[DeviceFigure]) -> Option<FollowedSum> {
    let may_follow = |sum: &usize| may_be_fitted(figures, *sum);
    (0..figures.len()).filter(may_follow).find_map(|sum| LAGS.into_iter().find_map(|lag| follow(figures, sum, lag)))
}

fn follow(figures: &[DeviceFigure], sum: usize, lag: isize) -> Option<FollowedSum> {
    let places: Vec<usize> = (0..figures.len()).filter(|other| *other != sum).collect();
    let others: Vec<&DeviceFigure> = places.iter().map(|place| &figures[*place]).collect();
    let fit = ChangeFit::of(&figures[sum], &others, lag)?;
    let found = fit.followed()?;
    let (factor, left) = fit.fit_sum(&found.parts);
    // A step in which a reading is rounded makes a change of its square over six in the mean.
    let of_rounding = |part: &usize| fit.changes as f64 * (2.0 * others[*part].rounding).powi(2) / 6.0;
    let own = |part: &usize| fit.own_squares(*part);
    let has_own = |part: &usize| own(part) > 0.0 && own(part) >= OWN_OF_ROUNDING * of_rounding(part);
    let of_all = found.parts.iter().map(own).sum::<f64>();
    let is_fit = COEFFICIENTS_OF_A_SUM.contains(&factor)
        && left <= LEFT_OF_OWN * factor * factor * of_all
        && left <= CHANGES_LEFT * fit.squares
        && fit.changes >= CHANGES_PER_DEVICE * figures.len()
        && found.parts.iter().all(has_own);
    let parts: Vec<&DeviceFigure> = found.parts.iter().map(|part| others[*part]).collect();
    let offset = if is_fit { find_offset(&figures[sum], &parts, lag, factor)? } else { return None };
    Some(FollowedSum { sum, parts: found.parts.iter().map(|part| places[*part]).collect(), factor, offset })
}

/// Returns by how much a device is above the sum of its parts times a factor, if that hardly changes and it may be their total.
fn find_offset(sum: &DeviceFigure, parts: &[&DeviceFigure], lag: isize, factor: f64) -> Option<f64> {
    let rows = AlignedRows::of(&sum.values, parts, lag);
    if rows.values.len() * 100 < sum.values.len() * PERCENT_OF_ROWS {
        return None;
    }
    let rows = RowsOfTotal { sum, parts, sums: rows.sums(), rows, factor };
    let above = rows.above();
    let offset = upper_median(above.iter().copied())?;
    let within = above.iter().filter(|above| (*above - offset).abs() <= rows.tolerance()).count();
    let is_fixed = within * 100 >= above.len() * PERCENT_WITHIN && offset >= LEAST_OFFSET * sum.mean;
    (is_fixed && rows.may_be_total(&above)).then_some(offset)
}

/// The rows of a device and of the parts that it follows.
struct RowsOfTotal<'f> {
    sum: &'f DeviceFigure,
    parts: &'f [&'f DeviceFigure],
    rows: AlignedRows,
    /// The sum of the parts in each row.
    sums: Vec<f64>,
    factor: f64,
}

impl RowsOfTotal<'_> {
    /// Returns by how much the device is above its parts times the factor, in each row.
    fn above(&self) -> Vec<f64> {
        self.sums.iter().zip(&self.rows.values).map(|(parts, value)| value - self.factor * parts).collect()
    }

    /// Returns the distance up to which rows count as equal.
    fn tolerance(&self) -> f64 {
        self.sum.rounding + DISTANCE * self.sum.mean
    }

    /// Returns whether the device may be the total of its parts: where these draw least, it draws no less. If no two of them work at
    /// once, a board that works with each in turn follows them, too. Then it has to draw more there, or to have their noise.
    fn may_be_total(&self, above: &[f64]) -> bool {
        let mut ordered = self.sums.clone();
        ordered.sort_by(f64::total_cmp);
        let Some(limit) = ordered.get(ordered.len() * PERCENT_OF_LOW_ROWS / 100) else { return false };
        let low = || self.sums.iter().zip(above).filter(|(parts, _)| *parts <= limit);
        let mean = |figure: fn((&f64, &f64)) -> f64| low().map(figure).sum::<f64>() / low().count() as f64;
        let (least, above_least) = (mean(|(parts, _)| *parts), mean(|(_, above)| *above));
        let rounding = self.sum.rounding + self.factor * self.parts.iter().map(|part| part.rounding).sum::<f64>();
        let is_below = above_least < LEAST_OFFSET * least - rounding;
        !is_below && (above_least > rounding || !self.parts_take_turns() || self.has_noise_of_parts())
    }

    /// Returns whether no two of the parts work at once: what all but the largest draw hardly changes.
    fn parts_take_turns(&self) -> bool {
        let largest = |row: usize| self.rows.columns.iter().map(|column| column[row]).fold(f64::NEG_INFINITY, f64::max);
        let others: Vec<f64> = self.sums.iter().enumerate().map(|(row, parts)| parts - largest(row)).collect();
        let Some(usual) = upper_median(others.iter().copied()) else { return false };
        let within = others.iter().filter(|others| (*others - usual).abs() <= self.tolerance()).count();
        within * 100 >= others.len() * PERCENT_WITHIN
    }

    /// Returns whether the small changes of the parts while they work are in the device, too. True if rounding hides that.
    fn has_noise_of_parts(&self) -> bool {
        let half = self.sums.iter().sum::<f64>() / self.sums.len() as f64 / 2.0;
        let pairs = self.sums.windows(2).zip(self.rows.values.windows(2)).filter(|(parts, _)| parts[0].min(parts[1]) >= half);
        let mut changes: Vec<(f64, f64)> =
            pairs.map(|(parts, values)| (self.factor * (parts[1] - parts[0]), values[1] - values[0])).collect();
        changes.sort_by(|a, b| a.0.abs().total_cmp(&b.0.abs()));
        changes.truncate(changes.len() * PERCENT_OF_SMALL_CHANGES / 100);
        let count = changes.len() as f64;
        let own = changes.iter().map(|(parts, _)| parts * parts).sum::<f64>() / count;
        // Rounding in a step makes changes of its square over six in the mean.
        let of_rounding = |figure: &DeviceFigure| (2.0 * figure.rounding).powi(2) / 6.0;
        let of_parts = self.factor * self.factor * self.parts.iter().map(|part| of_rounding(part)).sum::<f64>();
        let is_visible = own > (ROUNDING * self.sum.mean).powi(2) && own > SQUARES_OF_ROUNDING * of_rounding(self.sum);
        let expected = 1.0 - of_parts / own;
        if changes.len() < FEWEST_SMALL_CHANGES || !is_visible || expected < LEAST_EXPECTED {
            return true;
        }
        let shared = changes.iter().map(|(parts, value)| parts * value).sum::<f64>() / count / own;
        shared >= expected * LEAST_OF_EXPECTED
    }
}
