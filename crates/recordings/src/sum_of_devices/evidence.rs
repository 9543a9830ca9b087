//! Whether a device that is, row by row, the sum or the mean of others is so by chance.
//!
//! Boards of one job change together, and one of them may draw what two others do. So two parts at least must be needed: without
//! either of them, the rest no longer agrees with the sum, however it is scaled. Readings that hardly change are no evidence.

use std::collections::BTreeSet;

use eadt_schemas::EventTime;

use super::figures::{AlignedRows, DeviceFigure, READINGS_OF_A_SUM, ROUNDING};

/// Percentage of readings that must be sums for a series to count as a sum.
const PERCENT_OF_SUMS: usize = 95;
/// Rows that are looked at first, and percentage of them that must be sums for all to be looked at.
const ROWS_AT_FIRST: usize = 256;
const PERCENT_AT_FIRST: usize = 75;
/// The sum is none by chance below this probability, as a logarithm: 1 in 10,000.
const LN_CHANCE: f64 = -9.21;
/// Parts that must be needed.
const NEEDED_PARTS: usize = 2;
/// A part is needed if no more of the rows agree without it.
const SHARE_WITHOUT_NEEDED: f64 = 0.7;
/// Rows that evidence is taken from.
const MOST_ROWS: usize = 4000;
/// A sum that is read in steps so much wider than those of its parts is of another meter than they are. Then it needs no other
/// evidence than so many levels, if all other devices are its parts, of which there are three or more.
const WIDER_STEPS: f64 = 4.0;
const LEVELS_OF_A_COARSE_SUM: usize = 8;
const PARTS_OF_A_COARSE_SUM: usize = 3;

/// A way in which a device may be made of others.
#[derive(Debug, Clone, Copy)]
pub(super) struct SumForm {
    /// By how many readings those of the parts are later.
    pub(super) lag: isize,
    /// 1 for a sum, the number of parts for a mean.
    pub(super) divisor: f64,
    /// All other devices are its parts.
    pub(super) has_all: bool,
    /// Logarithm of how many combinations of parts were tried.
    pub(super) ln_choices: f64,
}

/// Returns in how many readings a device is the sum, or the mean, of others; `None` if it is none, or that may be by chance.
pub(super) fn count_sums(sum: &DeviceFigure, parts: &[&DeviceFigure], form: SumForm) -> Option<usize> {
    let of_parts = parts.iter().map(|part| part.rounding).sum::<f64>() / form.divisor;
    let of_all = sum.rounding + of_parts;
    let relative = ROUNDING * sum.mean.abs();
    if parts.len() < 2 || parts.iter().any(|part| part.mean <= of_all + relative) {
        return None;
    }
    // To the last digit, to its own rounding, or to that of all. A mean is made of the digits that are there.
    let widest = if form.divisor > 1.0 { sum.rounding } else { of_all };
    if !agrees_at_first(sum, parts, form, widest * (1.0 + ROUNDING) + relative) {
        return None;
    }
    let rows = AlignedRows::of(&sum.values, parts, form.lag);
    let sums: Vec<f64> = rows.sums().iter().map(|sum| sum / form.divisor).collect();
    [0.0, sum.rounding, widest].into_iter().find_map(|rounding| {
        let tolerance = rounding * (1.0 + ROUNDING) + relative;
        let is_hit = |place: &usize| (rows.values[*place] - sums[*place]).abs() <= tolerance;
        let hits: Vec<usize> = (0..sums.len()).filter(is_hit).collect();
        let is_mostly = hits.len() >= READINGS_OF_A_SUM && hits.len() * 100 >= sum.values.len() * PERCENT_OF_SUMS;
        if !is_mostly {
            return None;
        }
        let some = &hits[..hits.len().min(MOST_ROWS)];
        let evidence =
            SumEvidence { rows: rows.pick(some), sums: some.iter().map(|place| sums[*place]).collect(), tolerance, of_parts };
        let is_none_by_chance = evidence.ln_chance(sum.mean, form.ln_choices) <= LN_CHANCE
            && evidence.count_needed(form.divisor) >= NEEDED_PARTS
            || is_of_another_meter(sum, parts, form) && evidence.has_coarse_levels(sum.rounding);
        is_none_by_chance.then_some(hits.len())
    })
}

/// Returns whether some rows of a long record, from all of its time, agree with the sum of the parts.
fn agrees_at_first(sum: &DeviceFigure, parts: &[&DeviceFigure], form: SumForm, tolerance: f64) -> bool {
    let stride = sum.values.len().div_ceil(ROWS_AT_FIRST).max(1);
    let some: Vec<(EventTime, f64)> = sum.values.iter().step_by(stride).copied().collect();
    let rows = AlignedRows::of(&some, parts, form.lag);
    let agrees = |(sum, value): &(f64, f64)| (sum / form.divisor - value).abs() <= tolerance;
    let agreeing = rows.sums().into_iter().zip(rows.values.iter().copied()).filter(agrees).count();
    agreeing * 100 >= some.len() * PERCENT_AT_FIRST
}

/// Returns whether a sum of all other devices is read in far wider steps than any of them.
fn is_of_another_meter(sum: &DeviceFigure, parts: &[&DeviceFigure], form: SumForm) -> bool {
    let widest = parts.iter().map(|part| part.rounding).fold(0.0, f64::max);
    let is_plain = form.has_all && form.lag == 0 && form.divisor <= 1.0;
    is_plain && parts.len() >= PARTS_OF_A_COARSE_SUM && sum.rounding > 0.0 && sum.rounding >= WIDER_STEPS * widest
}

/// Rows in which a device is the sum of others to within a tolerance.
struct SumEvidence {
    rows: AlignedRows,
    /// The sums of the parts, or their means.
    sums: Vec<f64>,
    tolerance: f64,
    /// The rounding of the parts together.
    of_parts: f64,
}

impl SumEvidence {
    /// Returns the logarithm of the probability that the rows agree by chance: that of the first is its level, that of each other
    /// value is how many of all pairs of a value and a sum agree.
    fn ln_chance(&self, mean: f64, ln_choices: f64) -> f64 {
        let mut levels = self.rows.values.clone();
        levels.sort_by(f64::total_cmp);
        levels.dedup();
        let least_step = levels.windows(2).map(|pair| pair[1] - pair[0]).fold(f64::INFINITY, f64::min);
        if !least_step.is_finite() {
            return 0.0;
        }
        let mut sorted = self.sums.clone();
        sorted.sort_by(f64::total_cmp);
        let agreeing = |value: &f64| {
            let from = sorted.partition_point(|sum| *sum < value - self.tolerance);
            sorted.partition_point(|sum| *sum <= value + self.tolerance).saturating_sub(from)
        };
        let rows = self.rows.values.len() as f64;
        let pairs = self.rows.values.iter().map(agreeing).sum::<usize>() as f64 / (rows * rows);
        let level = (2.0 * self.tolerance.max(least_step / 2.0) / mean.abs()).min(1.0);
        level.ln() + (self.count_values() - 1.0) * pairs.max(1e-12).ln() + ln_choices
    }

    /// Returns how many rows differ from each other, or how often the sum changes, if that is less.
    fn count_values(&self) -> f64 {
        let width = self.tolerance.max(1e-6);
        let in_steps = |place: usize| -> Vec<i64> {
            let columns = self.rows.columns.iter().map(|column| column[place]);
            columns.chain([self.rows.values[place]]).map(|value| (value / width).round() as i64).collect()
        };
        let distinct = (0..self.rows.values.len()).map(in_steps).collect::<BTreeSet<_>>().len();
        let changes = self.rows.values.windows(2).filter(|pair| pair[0] != pair[1]).count();
        distinct.min(changes + 1) as f64
    }

    /// Returns how many parts are needed: the others do not agree with the sum without them, with any factor and offset.
    fn count_needed(&self, divisor: f64) -> usize {
        // If the tolerance is hardly more than the rounding of the parts, that rounding alone makes a difference.
        let wider = if self.tolerance > self.of_parts / 4.0 { self.of_parts } else { 0.0 };
        let is_needed = |column: &&Vec<f64>| {
            let rest: Vec<f64> = self.sums.iter().zip(*column).map(|(sum, value)| sum - value / divisor).collect();
            let line = StraightLine::through(&rest, &self.rows.values);
            let agrees = |(rest, value): &(&f64, &f64)| (line.at(**rest) - **value).abs() <= self.tolerance + wider;
            let agreeing = rest.iter().zip(&self.rows.values).filter(agrees).count();
            agreeing as f64 <= SHARE_WITHOUT_NEEDED * rest.len() as f64
        };
        self.rows.columns.iter().filter(is_needed).count()
    }

    /// Returns whether a coarse sum has many levels, each wider than all that it is away from its parts.
    fn has_coarse_levels(&self, rounding: f64) -> bool {
        let distances = self.sums.iter().zip(&self.rows.values).map(|(sum, value)| (sum - value).abs());
        let width = 2.0 * distances.fold(rounding, f64::max);
        let levels: BTreeSet<i64> = self.rows.values.iter().map(|value| (value / width).round() as i64).collect();
        levels.len() >= LEVELS_OF_A_COARSE_SUM
    }
}

/// A line by least squares.
struct StraightLine {
    slope: f64,
    at_zero: f64,
}

impl StraightLine {
    fn through(from: &[f64], to: &[f64]) -> Self {
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
        let (mean_from, mean_to) = (mean(from), mean(to));
        let spread = from.iter().map(|value| (value - mean_from).powi(2)).sum::<f64>();
        let joint = from.iter().zip(to).map(|(from, to)| (from - mean_from) * (to - mean_to)).sum::<f64>();
        // Values that do not change have rounding errors only.
        let is_level = spread <= from.len() as f64 * (1e-9 * (mean_from.abs() + 1.0)).powi(2);
        let slope = if is_level { 0.0 } else { joint / spread };
        Self { slope, at_zero: mean_to - slope * mean_from }
    }

    fn at(&self, value: f64) -> f64 {
        self.at_zero + self.slope * value
    }
}
