//! Devices whose readings are, row by row, the sum of those of other devices: beside these, they would count everything twice.
//!
//! Readings that hardly change are no evidence: idle boards may add up by chance.

use std::collections::{BTreeMap, BTreeSet};

use eadt_schemas::EventTime;
use eadt_schemas::counts::list_first;

use crate::ReadingField;
use crate::checks::{remove, value};
use crate::recording::{Recording, RecordingSource, SourceKind};
use crate::series::NAMES_SHOWN;

/// Fewer readings, or fewer values of them, may be sums by chance.
const READINGS_OF_A_SUM: usize = 8;
const LEVELS_OF_A_SUM: usize = 8;
/// Most readings of a sum outside the time of its parts: all begin and end in turn.
const READINGS_OUTSIDE: usize = 2;
/// Percentage of readings that must be sums for a series to count as a sum.
const PERCENT_OF_SUMS: usize = 95;
/// Means of a sum and of its parts differ by no larger part, as rows may be absent.
const DIFFERENCE_OF_MEANS: f64 = 0.01;
/// Largest rounding of a sum, as a part of it.
const ROUNDING: f64 = 1e-6;
/// Steps in which readings may be rounded.
const STEPS: [f64; 4] = [1.0, 0.1, 0.01, 0.001];
/// Steps of coarse readings of power, such as those of a meter that shows 0.1 kW.
const COARSE_STEPS: [f64; 8] = [1000.0, 500.0, 200.0, 100.0, 50.0, 20.0, 10.0, 5.0];

const FIELDS: [ReadingField; 3] = [ReadingField::PowerWatts, ReadingField::PowerAverageWatts, ReadingField::EnergyJoulesTotal];

/// A figure of a device: its power, or by how much its energy counter has risen since the reading before.
#[derive(Debug)]
struct DeviceFigure {
    /// The place of the device among the sources.
    source: usize,
    values: Vec<(EventTime, f64)>,
    mean: f64,
    /// Largest rounding of a value.
    rounding: f64,
}

/// Returns the step in which values are rounded; 0 if they are not. Few values of power may be multiples of a coarse step by chance,
/// and those of a counter are if the power hardly changes.
fn rounding_step(values: &[f64], is_counter: bool) -> f64 {
    let tolerance = |step: f64, value: f64| 1e-6 * step + 4.0 * f64::EPSILON * value.abs();
    let is_rounded =
        |step: &f64| values.iter().all(|value| ((value / step).round() * step - value).abs() <= tolerance(*step, *value));
    let levels: BTreeSet<u64> = values.iter().map(|value| value.to_bits()).collect();
    let may_be_coarse = !is_counter && levels.len() >= LEVELS_OF_A_SUM;
    let coarse = COARSE_STEPS.into_iter().filter(|_| may_be_coarse);
    coarse.chain(STEPS).find(is_rounded).unwrap_or(0.0)
}

impl DeviceFigure {
    fn of(place: usize, source: &RecordingSource, field: ReadingField) -> Option<Self> {
        let known: Vec<(EventTime, f64)> =
            source.readings.iter().filter_map(|reading| Some((reading.time, value(reading, field)?))).collect();
        let numbers: Vec<f64> = known.iter().map(|(_, value)| *value).collect();
        let is_counter = field == ReadingField::EnergyJoulesTotal;
        let step = rounding_step(&numbers, is_counter);
        let values = if is_counter { known.windows(2).map(|pair| (pair[1].0, pair[1].1 - pair[0].1)).collect() } else { known };
        if values.len() < READINGS_OF_A_SUM {
            return None;
        }
        let mean = values.iter().map(|(_, value)| value).sum::<f64>() / values.len() as f64;
        // A rise is rounded at both ends.
        let rounding = if is_counter { step } else { step / 2.0 };
        Some(Self { source: place, values, mean, rounding })
    }

    fn at(&self, time: EventTime) -> Option<f64> {
        let place = self.values.binary_search_by_key(&time, |(time, _)| *time).ok()?;
        Some(self.values[place].1)
    }

    /// Returns in how many readings this is the sum of the others; `None` if it is none, or that may be by chance.
    fn count_sums(&self, parts: &[&Self]) -> Option<usize> {
        let rounding = self.rounding + parts.iter().map(|part| part.rounding).sum::<f64>();
        let tolerance = |value: f64| rounding * (1.0 + ROUNDING) + ROUNDING * value.abs();
        // The value of a row, and its distance from the sum of its parts.
        let compare = |(time, value): &(EventTime, f64)| {
            let sum: Option<f64> = parts.iter().map(|part| part.at(*time)).sum();
            Some((*value, (sum? - value).abs())).filter(|(_, distance)| *distance <= tolerance(*value))
        };
        let sums: Vec<(f64, f64)> = self.values.iter().filter_map(compare).collect();
        let furthest = sums.iter().map(|(_, distance)| *distance).fold(self.rounding, f64::max);
        // Few levels of a coarse sum are wider than all that its parts may be off together, which they seldom are.
        let is_coarse = self.rounding > STEPS[0] / 2.0;
        let width = 2.0 * if is_coarse { furthest } else { tolerance(self.mean) };
        let levels: BTreeSet<i64> = sums.iter().map(|(value, _)| (value / width).round() as i64).collect();
        let is_significant = sums.len() >= READINGS_OF_A_SUM && levels.len() >= LEVELS_OF_A_SUM;
        // The same twice is no sum, but a figure and its double.
        let is_repeated = |(place, part): (usize, &&Self)| parts[..place].iter().any(|other| other.values == part.values);
        let has_parts = parts.len() > 1
            && !parts.iter().enumerate().any(is_repeated)
            && parts.iter().all(|part| part.mean > tolerance(self.mean));
        let is_mostly = sums.len() * 100 >= self.values.len() * PERCENT_OF_SUMS;
        (is_significant && has_parts && is_mostly).then_some(sums.len())
    }
}

/// A device that is the sum of others: its place among the figures, theirs, and in how many readings it is.
#[derive(Debug)]
struct DeviceSum {
    sum: usize,
    parts: Vec<usize>,
    readings: usize,
}

/// Finds a device that is the sum of all others, or of those that come directly before or behind it.
fn find_sum(figures: &[DeviceFigure]) -> Option<DeviceSum> {
    let try_parts = |sum: usize, parts: &[usize]| {
        let of_parts: Vec<&DeviceFigure> = parts.iter().map(|part| &figures[*part]).collect();
        let readings = figures[sum].count_sums(&of_parts)?;
        Some(DeviceSum { sum, parts: parts.to_vec(), readings })
    };
    let rounding: f64 = figures.iter().map(|figure| figure.rounding).sum();
    let may_be_sum = |sum: usize, mean: f64| (figures[sum].mean - mean).abs() <= DIFFERENCE_OF_MEANS * mean + rounding;
    // The devices beside, the nearest first, as far as their means add up.
    let in_a_row = |sum: usize, beside: &[usize]| {
        let mut mean = 0.0;
        (1..=beside.len()).find_map(|count| {
            mean += figures[beside[count - 1]].mean;
            if count > 1 && may_be_sum(sum, mean) { try_parts(sum, &beside[..count]) } else { None }
        })
    };
    let whole: f64 = figures.iter().map(|figure| figure.mean).sum();
    (0..figures.len()).find_map(|sum| {
        let all = || {
            let others: Vec<usize> = (0..figures.len()).filter(|other| *other != sum).collect();
            if may_be_sum(sum, whole - figures[sum].mean) { try_parts(sum, &others) } else { None }
        };
        let before: Vec<usize> = (0..sum).rev().collect();
        let behind: Vec<usize> = (sum + 1..figures.len()).collect();
        all().or_else(|| in_a_row(sum, &before)).or_else(|| in_a_row(sum, &behind))
    })
}

fn leave_out(source: &mut RecordingSource) {
    for reading in &mut source.readings {
        for field in FIELDS {
            remove(reading, field);
        }
    }
    source.readings.retain(|reading| !reading.values.is_empty() || reading.mark.is_some());
}

/// Leaves the power and the energy of devices out that are the sum of others, with a note. Readings must be in order of time.
pub(crate) fn leave_sums_out(recording: &mut Recording, sources: &mut [RecordingSource]) {
    for field in FIELDS {
        let mut figures: Vec<DeviceFigure> = sources
            .iter()
            .enumerate()
            .filter(|(_, source)| matches!(source.kind, SourceKind::Device(_)))
            .filter_map(|(place, source)| DeviceFigure::of(place, source, field))
            .collect();
        while let Some(found) = find_sum(&figures) {
            let names = name_devices(sources, &figures);
            let of = |place: &usize| names.get(place).map_or("", String::as_str);
            let parts: Vec<&str> = found.parts.iter().map(of).collect();
            let figure = &figures[found.sum];
            let is_left_out = is_beside_its_parts(&figures, &found);
            let what = if is_left_out {
                "it is left out, or these would count twice"
            } else {
                "as its record is longer than theirs, all count, and these twice: leave out what is not to count"
            };
            recording.add_note(format!(
                "{}: {} is the sum of that of {} in {} of {} rows: {what}",
                of(&found.sum),
                field.name(),
                list_first(&parts, NAMES_SHOWN),
                found.readings,
                figure.values.len()
            ));
            if is_left_out {
                leave_out(&mut sources[figure.source]);
            }
            figures.remove(found.sum);
        }
    }
}

/// Returns whether a sum was recorded in the time of its parts only: elsewhere it is all that is known.
fn is_beside_its_parts(figures: &[DeviceFigure], found: &DeviceSum) -> bool {
    let ends = |part: &usize| Some((figures[*part].values.first()?.0, figures[*part].values.last()?.0));
    let is_outside =
        |(time, _): &&(EventTime, f64)| found.parts.iter().filter_map(ends).any(|(first, last)| !(first..=last).contains(time));
    figures[found.sum].values.iter().filter(is_outside).count() <= READINGS_OUTSIDE
}

/// Returns the name of the device of each figure, by the place of the figure.
fn name_devices(sources: &[RecordingSource], figures: &[DeviceFigure]) -> BTreeMap<usize, String> {
    let name = |(place, figure): (usize, &DeviceFigure)| match &sources[figure.source].kind {
        SourceKind::Device(device) => Some((place, device.name.clone())),
        SourceKind::Job { .. } => None,
    };
    figures.iter().enumerate().filter_map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(source: usize, values: &[f64]) -> DeviceFigure {
        let values: Vec<(EventTime, f64)> =
            values.iter().enumerate().map(|(row, value)| (EventTime::from_seconds(1.7e9 + row as f64), *value)).collect();
        let mean = values.iter().map(|(_, value)| value).sum::<f64>() / values.len() as f64;
        DeviceFigure { source, values, mean, rounding: 0.05 }
    }

    #[test]
    fn a_device_is_the_sum_of_others_if_its_readings_are_row_by_row() {
        let rows = |value: fn(f64) -> f64| -> Vec<f64> { (0..20).map(|row| value(f64::from(row))).collect() };
        let (a, b) = (rows(|row| 200.0 + 7.0 * row), rows(|row| 300.0 - 11.0 * (row % 5.0)));
        let sum: Vec<f64> = a.iter().zip(&b).map(|(a, b)| a + b).collect();
        let idle = rows(|_| 50.0);
        let twice = rows(|_| 100.0);
        let scaled: Vec<f64> = sum.iter().map(|value| value * 1.02).collect();
        let with_idle: Vec<f64> = sum.iter().map(|value| value + 50.0).collect();
        let mut seldom = sum.clone();
        for row in 0..4 {
            seldom[row * 5] += 30.0;
        }
        for (what, columns, found) in [
            ("last", vec![&a, &b, &sum], Some((2, vec![0, 1]))),
            ("first", vec![&sum, &a, &b], Some((0, vec![1, 2]))),
            ("beside another", vec![&idle, &a, &b, &sum], Some((3, vec![2, 1]))),
            ("of all", vec![&a, &with_idle, &b, &idle], Some((1, vec![0, 2, 3]))),
            ("with the losses of a supply", vec![&a, &b, &scaled], None),
            ("idle boards", vec![&idle, &idle, &twice], None),
            ("of one", vec![&a, &a], None),
            ("not in all rows", vec![&a, &b, &seldom], None),
        ] {
            let figures: Vec<DeviceFigure> =
                columns.iter().enumerate().map(|(place, values)| figure(place, values.as_slice())).collect();
            assert_eq!(find_sum(&figures).map(|found| (found.sum, found.parts)), found, "{what}");
        }
    }
}
