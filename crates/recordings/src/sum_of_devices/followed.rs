//! Devices that follow the sum of others with a factor and an offset: a supply has losses, and another meter may meter more.

use super::changes::{ChangeFit, may_be_fitted};
use super::figures::{AlignedRows, DeviceFigure};
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
/// A total is not less than its parts by more than this part of it.
const LEAST_OFFSET: f64 = -0.05;
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

/// Returns by how much a device is above the sum of its parts times a factor, if that hardly changes.
fn find_offset(sum: &DeviceFigure, parts: &[&DeviceFigure], lag: isize, factor: f64) -> Option<f64> {
    let rows = AlignedRows::of(&sum.values, parts, lag);
    if rows.values.len() * 100 < sum.values.len() * PERCENT_OF_ROWS {
        return None;
    }
    let above: Vec<f64> = rows.sums().iter().zip(&rows.values).map(|(parts, value)| value - factor * parts).collect();
    let offset = upper_median(above.iter().copied())?;
    let within = above.iter().filter(|above| (*above - offset).abs() <= sum.rounding + DISTANCE * sum.mean).count();
    (within * 100 >= above.len() * PERCENT_WITHIN && offset >= LEAST_OFFSET * sum.mean).then_some(offset)
}
