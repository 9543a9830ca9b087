//! Power of devices, or the rises of their energy counters, and their values at the times of another device.

use std::collections::BTreeSet;

use eadt_schemas::EventTime;

use crate::ReadingField;
use crate::checks::value;
use crate::median::upper_median;
use crate::recording::RecordingSource;

/// Fewer readings may be sums by chance.
pub(super) const READINGS_OF_A_SUM: usize = 8;
/// Largest rounding of a sum, as a part of it.
pub(super) const ROUNDING: f64 = 1e-6;
/// Steps in which readings may be rounded.
const STEPS: [f64; 4] = [1.0, 0.1, 0.01, 0.001];
/// Steps of coarse readings of power, such as those of a meter that shows 0.1 kW.
const COARSE_STEPS: [f64; 8] = [1000.0, 500.0, 200.0, 100.0, 50.0, 20.0, 10.0, 5.0];
/// Steps of energy counters in kWh and Wh, in joules.
const COUNTER_STEPS: [f64; 8] = [3_600_000.0, 360_000.0, 36_000.0, 3600.0, 360.0, 36.0, 3.6, 0.36];
/// Values that show a coarse step, if it is a small one, and at least.
const LEVELS_OF_A_STEP: usize = 8;
const FEWEST_LEVELS_OF_A_STEP: usize = 4;
/// Decimal digits that a few values of a coarse step have in common at least.
const DIGITS_OF_A_STEP: f64 = 8.0;

/// A figure of a device: its power, by how much its energy counter has risen since the reading before, or what that counts.
#[derive(Debug)]
pub(super) struct DeviceFigure {
    /// The place of the device among the sources.
    pub(super) source: usize,
    pub(super) values: Vec<(EventTime, f64)>,
    pub(super) mean: f64,
    /// Largest rounding of a value.
    pub(super) rounding: f64,
    /// Median time between two values.
    interval_seconds: f64,
}

/// Returns the step in which values are rounded; 0 if they are not. Few values may be multiples of a coarse step by chance.
fn rounding_step(values: &[f64], is_counter: bool) -> f64 {
    let tolerance = |step: f64, value: f64| 1e-6 * step + 4.0 * f64::EPSILON * value.abs();
    let is_rounded =
        |step: &f64| values.iter().all(|value| ((value / step).round() * step - value).abs() <= tolerance(*step, *value));
    let levels: BTreeSet<u64> = values.iter().map(|value| value.to_bits()).collect();
    let digits = |step: f64| levels.len() as f64 * step.log10();
    let is_shown = |step: &f64| {
        levels.len() >= LEVELS_OF_A_STEP
            || !is_counter && levels.len() >= FEWEST_LEVELS_OF_A_STEP && digits(*step) >= DIGITS_OF_A_STEP
    };
    let coarse = if is_counter { COUNTER_STEPS } else { COARSE_STEPS };
    let mut steps: Vec<f64> = coarse.into_iter().filter(is_shown).chain(STEPS).collect();
    steps.sort_by(|a, b| b.total_cmp(a));
    steps.into_iter().find(is_rounded).unwrap_or(0.0)
}

/// Returns the values of a field, in order of time.
fn known_values(source: &RecordingSource, field: ReadingField) -> Vec<(EventTime, f64)> {
    source.readings.iter().filter_map(|reading| Some((reading.time, value(reading, field)?))).collect()
}

impl DeviceFigure {
    pub(super) fn of(place: usize, source: &RecordingSource, field: ReadingField) -> Option<Self> {
        Self::from_readings(place, known_values(source, field), field == ReadingField::EnergyJoulesTotal)
    }

    pub(super) fn from_readings(place: usize, known: Vec<(EventTime, f64)>, is_counter: bool) -> Option<Self> {
        let numbers: Vec<f64> = known.iter().map(|(_, value)| *value).collect();
        let step = rounding_step(&numbers, is_counter);
        let values = if is_counter { known.windows(2).map(|pair| (pair[1].0, pair[1].1 - pair[0].1)).collect() } else { known };
        // A rise is rounded at both ends.
        let rounding = if is_counter { step } else { step / 2.0 };
        (values.len() >= READINGS_OF_A_SUM).then(|| Self::from_values(place, values, rounding))
    }

    /// Returns the counts of an energy counter, or power, as they were read; `None` if there are fewer than `fewest`.
    pub(super) fn of_levels(place: usize, source: &RecordingSource, field: ReadingField, fewest: usize) -> Option<Self> {
        let known = known_values(source, field);
        let numbers: Vec<f64> = known.iter().map(|(_, value)| *value).collect();
        let step = rounding_step(&numbers, field == ReadingField::EnergyJoulesTotal);
        (known.len() >= fewest).then(|| Self::from_values(place, known, step / 2.0))
    }

    fn from_values(source: usize, values: Vec<(EventTime, f64)>, rounding: f64) -> Self {
        let mean = values.iter().map(|(_, value)| value).sum::<f64>() / values.len() as f64;
        let intervals = values.windows(2).map(|pair| pair[1].0.seconds_since(pair[0].0));
        let interval_seconds = upper_median(intervals).unwrap_or(0.0);
        Self { source, values, mean, rounding, interval_seconds }
    }

    /// Returns the value nearest to a time, by half an interval at most, or the one so many readings after it.
    pub(super) fn near(&self, time: EventTime, lag: isize) -> Option<f64> {
        let next = self.values.partition_point(|(other, _)| *other < time);
        let distance = |place: usize| self.values.get(place).map(|(other, _)| (other.seconds_since(time).abs(), place));
        let before = next.checked_sub(1).and_then(distance);
        let nearest = distance(next).into_iter().chain(before).min_by(|a, b| a.0.total_cmp(&b.0));
        let (_, place) = nearest.filter(|(seconds, _)| *seconds <= self.interval_seconds / 2.0)?;
        self.values.get(place.checked_add_signed(lag)?).map(|(_, value)| *value)
    }
}

/// The values of a device, and those of other devices in the same rows.
#[derive(Debug)]
pub(super) struct AlignedRows {
    pub(super) values: Vec<f64>,
    /// Values of each other device.
    pub(super) columns: Vec<Vec<f64>>,
}

impl AlignedRows {
    /// Returns the rows in which all parts have a value. `lag` is by how many readings those of the parts are later.
    pub(super) fn of(rows: &[(EventTime, f64)], parts: &[&DeviceFigure], lag: isize) -> Self {
        let mut aligned = Self { values: Vec::with_capacity(rows.len()), columns: vec![Vec::new(); parts.len()] };
        for (time, value) in rows {
            let near: Option<Vec<f64>> = parts.iter().map(|part| part.near(*time, lag)).collect();
            if let Some(near) = near {
                aligned.values.push(*value);
                for (column, value) in aligned.columns.iter_mut().zip(near) {
                    column.push(value);
                }
            }
        }
        aligned
    }

    /// Returns the sum of the other devices in each row.
    pub(super) fn sums(&self) -> Vec<f64> {
        let mut sums = vec![0.0; self.values.len()];
        for column in &self.columns {
            for (sum, value) in sums.iter_mut().zip(column) {
                *sum += value;
            }
        }
        sums
    }

    /// Returns some of the rows, by their places.
    pub(super) fn pick(&self, places: &[usize]) -> Self {
        let pick = |values: &Vec<f64>| places.iter().map(|place| values[*place]).collect();
        Self { values: pick(&self.values), columns: self.columns.iter().map(pick).collect() }
    }
}
