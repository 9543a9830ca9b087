//! Devices whose readings are, row by row, the sum or the mean of those of other devices: beside these, they would count everything
//! twice.

mod changes;
mod evidence;
mod figures;
mod followed;
mod register_totals;
mod total_names;

use std::collections::BTreeMap;

use eadt_schemas::EventTime;
use eadt_schemas::counts::list_first;

use crate::checks::remove;
use crate::names::NAMES_SHOWN;
use crate::options::AcceptedFinding;
use crate::recording::{Recording, RecordingSource, SourceKind};
use crate::{ImportError, ImportOptions, ReadingField};

use changes::{ChangeFit, may_be_fitted};
use evidence::{SumForm, count_sums};
use figures::DeviceFigure;
use followed::find_followed_sum;
use register_totals::settle_register_totals;
pub(crate) use total_names::{SHORT_TOTAL_WORD, WORD_BEFORE_TOTALS, find_plain_total};

/// Most readings of a sum outside the time of its parts: all begin and end in turn.
const READINGS_OUTSIDE: usize = 2;
/// Means of a sum and of its parts differ by no larger part, as rows may be absent.
const DIFFERENCE_OF_MEANS: f64 = 0.01;
/// By how many readings those of the parts may be later than those of their sum.
const LAGS: [isize; 3] = [0, -1, 1];
/// Fewest parts of a mean: that of two boards of one job is next to what either draws.
const PARTS_OF_A_MEAN: usize = 3;
/// Most devices of which one may be the mean of all others: each board of one job is next to that mean, and would be tried.
const MOST_DEVICES_OF_A_MEAN: usize = 64;
/// Coefficients of the parts of a sum, and of the parts of a mean times their number.
const COEFFICIENTS_OF_A_SUM: std::ops::RangeInclusive<f64> = 0.9..=1.15;

const FIELDS: [ReadingField; 3] = [ReadingField::PowerWatts, ReadingField::PowerAverageWatts, ReadingField::EnergyJoulesTotal];

/// A device that is made of others: its place among the figures, theirs, how, and in how many readings it is.
#[derive(Debug)]
struct DeviceSum {
    sum: usize,
    parts: Vec<usize>,
    form: SumForm,
    readings: usize,
}

/// The means and the largest roundings of figures, added up.
#[derive(Debug, Clone, Copy)]
struct MeanAndRounding {
    mean: f64,
    rounding: f64,
}

impl MeanAndRounding {
    fn of<'f>(figures: impl Iterator<Item = &'f DeviceFigure>) -> Self {
        figures.fold(Self { mean: 0.0, rounding: 0.0 }, Self::with)
    }

    fn with(self, figure: &DeviceFigure) -> Self {
        Self { mean: self.mean + figure.mean, rounding: self.rounding + figure.rounding }
    }
}

/// The search for the sums among figures.
struct SumSearch<'f> {
    figures: &'f [DeviceFigure],
}

impl SumSearch<'_> {
    /// Returns whether the mean of a device is that of its parts, to within what `rounding` makes of them together.
    fn is_level(&self, sum: usize, mean: f64, rounding: f64) -> bool {
        (self.figures[sum].mean - mean).abs() <= DIFFERENCE_OF_MEANS * mean + rounding
    }

    fn try_parts(&self, sum: usize, parts: &[usize], form: SumForm) -> Option<DeviceSum> {
        let of_parts: Vec<&DeviceFigure> = parts.iter().map(|part| &self.figures[*part]).collect();
        let readings = count_sums(&self.figures[sum], &of_parts, form)?;
        Some(DeviceSum { sum, parts: parts.to_vec(), form, readings })
    }

    fn try_lags(&self, sum: usize, parts: &[usize], form: SumForm) -> Option<DeviceSum> {
        let ln_lags = |lag: isize| if lag == 0 { 0.0 } else { (LAGS.len() as f64).ln() };
        let with_lag = |lag: isize| SumForm { lag, ln_choices: form.ln_choices + ln_lags(lag), ..form };
        LAGS.into_iter().find_map(|lag| self.try_parts(sum, parts, with_lag(lag)))
    }

    /// Returns whether a device may be the sum of all others, and whether it may be their mean.
    fn match_others(&self, sum: usize, whole: MeanAndRounding) -> (bool, bool) {
        let count = self.figures.len() - 1;
        let of_others = whole.mean - self.figures[sum].mean;
        let may_be_mean = count >= PARTS_OF_A_MEAN && self.figures.len() <= MOST_DEVICES_OF_A_MEAN;
        (
            self.is_level(sum, of_others, whole.rounding),
            may_be_mean && self.is_level(sum, of_others / count as f64, whole.rounding),
        )
    }

    /// Tries all other devices, as parts of a sum and of a mean.
    fn try_all(&self, sum: usize, whole: MeanAndRounding) -> Option<DeviceSum> {
        let (is_sum, is_mean) = self.match_others(sum, whole);
        if !is_sum && !is_mean {
            return None;
        }
        let others: Vec<usize> = (0..self.figures.len()).filter(|other| *other != sum).collect();
        let ln_choices = (self.figures.len() as f64).ln();
        let form = |divisor: f64| SumForm { lag: 0, divisor, has_all: true, ln_choices };
        let as_sum = if is_sum { self.try_lags(sum, &others, form(1.0)) } else { None };
        as_sum.or_else(|| if is_mean { self.try_lags(sum, &others, form(others.len() as f64)) } else { None })
    }

    /// Returns how many of the devices beside, the nearest first, have means that add up to that of a device.
    fn find_runs(&self, sum: usize, beside: impl Iterator<Item = usize>) -> Vec<usize> {
        let whole = &self.figures[sum];
        let (mut runs, mut least) = (Vec::new(), f64::INFINITY);
        let mut of_parts = MeanAndRounding { mean: 0.0, rounding: whole.rounding };
        for (before, part) in beside.map(|part| &self.figures[part]).enumerate() {
            of_parts = of_parts.with(part);
            least = least.min(part.mean);
            // A part that draws no more than what rounding makes of all is none; and more of them are more still.
            let is_more = of_parts.mean * (1.0 - DIFFERENCE_OF_MEANS) > whole.mean + of_parts.rounding;
            if least <= of_parts.rounding || is_more {
                break;
            }
            if before > 0 && self.is_level(sum, of_parts.mean, of_parts.rounding) {
                runs.push(before + 1);
            }
        }
        runs
    }

    /// Tries the devices beside, the nearest first, as far as their means add up.
    fn try_beside(&self, sum: usize, beside: &(impl Iterator<Item = usize> + Clone)) -> Option<DeviceSum> {
        let count = self.figures.len() as f64;
        let form = SumForm { lag: 0, divisor: 1.0, has_all: false, ln_choices: (2.0 * count * count).ln() };
        self.find_runs(sum, beside.clone()).into_iter().find_map(|run| {
            let parts: Vec<usize> = beside.clone().take(run).collect();
            self.try_lags(sum, &parts, form)
        })
    }

    /// Tries the devices whose changes a device follows.
    fn try_followed(&self, sum: usize) -> Option<DeviceSum> {
        let count = self.figures.len();
        if !may_be_fitted(self.figures, sum) {
            return None;
        }
        let others: Vec<usize> = (0..count).filter(|other| *other != sum).collect();
        let figures: Vec<&DeviceFigure> = others.iter().map(|other| &self.figures[*other]).collect();
        let ln_choices = (count as f64).ln() + count as f64 * std::f64::consts::LN_2;
        LAGS.into_iter().find_map(|lag| {
            let found = ChangeFit::of(&self.figures[sum], &figures, lag)?.followed()?;
            let parts: Vec<usize> = found.parts.iter().map(|part| others[*part]).collect();
            let number = parts.len() as f64;
            let whole = MeanAndRounding::of(parts.iter().chain([&sum]).map(|place| &self.figures[*place]));
            let (mean, rounding) = (whole.mean - self.figures[sum].mean, whole.rounding);
            let is_sum = COEFFICIENTS_OF_A_SUM.contains(&found.coefficient) && self.is_level(sum, mean, rounding);
            let is_mean = parts.len() >= PARTS_OF_A_MEAN
                && COEFFICIENTS_OF_A_SUM.contains(&(found.coefficient * number))
                && self.is_level(sum, mean / number, rounding);
            let form = |divisor: f64| SumForm { lag, divisor, has_all: false, ln_choices };
            let as_sum = if is_sum { self.try_parts(sum, &parts, form(1.0)) } else { None };
            as_sum.or_else(|| if is_mean { self.try_parts(sum, &parts, form(number)) } else { None })
        })
    }
}

/// Finds a device that is the sum or the mean of all others, of those directly before or behind it, or of those that it follows.
fn find_sum(figures: &[DeviceFigure]) -> Option<DeviceSum> {
    let search = SumSearch { figures };
    let whole = MeanAndRounding::of(figures.iter());
    (0..figures.len()).find_map(|sum| {
        let beside = || search.try_beside(sum, &(0..sum).rev()).or_else(|| search.try_beside(sum, &(sum + 1..figures.len())));
        search.try_all(sum, whole).or_else(beside).or_else(|| search.try_followed(sum))
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

/// Leaves the power and the energy of devices out that are the sum or the mean of others, or by their names the total, with a
/// note. Returns an error if one follows the sum of others with a loss: it may be their total. Readings must be in order of time.
pub(crate) fn settle_sums(
    recording: &mut Recording,
    sources: &mut [RecordingSource],
    options: &ImportOptions,
) -> Result<(), ImportError> {
    if options.accept.contains(&AcceptedFinding::Sums) {
        return Ok(());
    }
    for field in FIELDS {
        let mut figures: Vec<DeviceFigure> = sources
            .iter()
            .enumerate()
            .filter(|(_, source)| matches!(source.kind, SourceKind::Device(_)))
            .filter_map(|(place, source)| DeviceFigure::of(place, source, field))
            .collect();
        let mut settled = Vec::new();
        while let Some(found) = find_sum(&figures) {
            let is_left_out = is_beside_its_parts(&figures, found.sum, &found.parts);
            recording.add_note(describe_sum(&found, &figures, sources, field, is_left_out));
            if is_left_out {
                leave_out(&mut sources[figures[found.sum].source]);
            }
            settled.push(figures.remove(found.sum).source);
        }
        refuse_followed_sum(recording, sources, &figures, field)?;
        settle_register_totals(recording, sources, field, &settled);
    }
    Ok(())
}

fn describe_sum(
    found: &DeviceSum,
    figures: &[DeviceFigure],
    sources: &[RecordingSource],
    field: ReadingField,
    is_left_out: bool,
) -> String {
    let names = name_devices(sources, figures);
    let of = |place: &usize| names.get(place).map_or("", String::as_str);
    let parts: Vec<&str> = found.parts.iter().map(of).collect();
    let what = if found.form.divisor > 1.0 { "mean" } else { "sum" };
    let when = match found.form.lag {
        ..0 => ", one reading later,",
        0 => "",
        1.. => ", one reading earlier,",
    };
    let result = match (is_left_out, what) {
        (true, "sum") => "it is left out, or these would count twice",
        (true, _) => "it is left out, as it is no device of its own",
        (false, _) => "as its record is longer than theirs, all count, and these twice: leave out what is not to count",
    };
    format!(
        "{}: {} is the {what} of that of {}{when} in {} of {} rows: {result}",
        of(&found.sum),
        field.name(),
        list_first(&parts, NAMES_SHOWN),
        found.readings,
        figures[found.sum].values.len()
    )
}

/// Returns an error if a device follows the sum of others, with the losses and the offset of another meter.
fn refuse_followed_sum(
    recording: &Recording,
    sources: &[RecordingSource],
    figures: &[DeviceFigure],
    field: ReadingField,
) -> Result<(), ImportError> {
    let Some(found) = find_followed_sum(figures) else { return Ok(()) };
    let names = name_devices(sources, figures);
    let of = |place: &usize| names.get(place).map_or("", String::as_str);
    let parts: Vec<&str> = found.parts.iter().map(of).collect();
    let Some(first) = sources[figures[found.sum].source].readings.first() else { return Ok(()) };
    let unit = if field == ReadingField::EnergyJoulesTotal { "J a row" } else { "W" };
    let problem = format!(
        "{}: {} follows the sum of that of {} (× {:.2} {} {:.0} {unit}), as a meter of all of them does",
        of(&found.sum),
        field.name(),
        list_first(&parts, NAMES_SHOWN),
        found.factor,
        if found.offset < 0.0 { "-" } else { "+" },
        found.offset.abs()
    );
    let accept = AcceptedFinding::Sums.name();
    let remedy = format!(
        "if it is their total, leave either it or them out, or these would count twice; if it is a device of its own, use --accept \
         {accept}"
    );
    Err(recording.error(first.file as usize, u64::from(first.line), problem, remedy))
}

/// Returns whether a sum was recorded in the time of its parts only: elsewhere it is all that is known.
fn is_beside_its_parts(figures: &[DeviceFigure], sum: usize, parts: &[usize]) -> bool {
    let ends = |part: &usize| Some((figures[*part].values.first()?.0, figures[*part].values.last()?.0));
    let ends: Vec<(EventTime, EventTime)> = parts.iter().filter_map(ends).collect();
    let is_outside = |(time, _): &&(EventTime, f64)| ends.iter().any(|(first, last)| !(first..=last).contains(&time));
    figures[sum].values.iter().filter(is_outside).count() <= READINGS_OUTSIDE
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

    const ROWS: u32 = 121;

    fn figure(source: usize, values: &[f64]) -> DeviceFigure {
        let known = values.iter().enumerate().map(|(row, value)| (EventTime::from_seconds(1.7e9 + row as f64), *value));
        DeviceFigure::from_readings(source, known.collect(), false).unwrap()
    }

    /// A board of a job, whose level all boards share, with a noise of its own in tenths of a watt.
    fn board(own: u32, level: f64, noise: f64) -> Vec<f64> {
        let own_noise = |row: u32| f64::from((row * (7 * own + 13) + row * row * (own + 3)) % 31);
        let watts = |row: u32| level * (1.0 + f64::from(row / 10 % 2)) + noise * own_noise(row);
        (0..ROWS).map(|row| (watts(row) * 10.0).round() / 10.0).collect()
    }

    fn combine(boards: &[&Vec<f64>], change: impl Fn(f64) -> f64) -> Vec<f64> {
        let sum = |row: usize| boards.iter().map(|board| board[row]).sum::<f64>();
        (0..boards[0].len()).map(|row| change(sum(row))).collect()
    }

    fn figures(columns: &[&Vec<f64>]) -> Vec<DeviceFigure> {
        columns.iter().enumerate().map(|(place, values)| figure(place, values)).collect()
    }

    #[test]
    fn a_device_is_the_sum_of_others_if_its_readings_are_row_by_row() {
        let rows = |value: fn(f64) -> f64| -> Vec<f64> { (0..20).map(|row| value(f64::from(row))).collect() };
        let (a, b) = (rows(|row| 200.0 + 7.0 * row), rows(|row| 300.0 - 11.0 * (row % 5.0)));
        let sum = combine(&[&a, &b], |sum| sum);
        let idle = rows(|_| 50.0);
        let twice = rows(|_| 100.0);
        let scaled = combine(&[&sum], |sum| sum * 1.02);
        let with_idle = combine(&[&sum], |sum| sum + 50.0);
        let mut later = sum.clone();
        later.rotate_right(1);
        let mut seldom = sum.clone();
        for row in 0..4 {
            seldom[row * 5] += 30.0;
        }
        for (what, columns, found) in [
            ("last", vec![&a, &b, &sum], Some((2, vec![0, 1], 0))),
            ("first", vec![&sum, &a, &b], Some((0, vec![1, 2], 0))),
            ("beside another", vec![&idle, &a, &b, &sum], Some((3, vec![2, 1], 0))),
            ("of all", vec![&a, &with_idle, &b, &idle], Some((1, vec![0, 2, 3], 0))),
            ("a reading later", vec![&a, &b, &later], Some((2, vec![0, 1], -1))),
            ("with the losses of a supply", vec![&a, &b, &scaled], None),
            ("idle boards", vec![&idle, &idle, &twice], None),
            ("of one", vec![&a, &a], None),
            ("not in all rows", vec![&a, &b, &seldom], None),
        ] {
            let found_sum = find_sum(&figures(&columns)).map(|found| (found.sum, found.parts, found.form.lag));
            assert_eq!(found_sum, found, "{what}");
        }
    }

    #[test]
    fn sums_of_some_boards_and_means_are_found() {
        let boards: Vec<Vec<f64>> = (0..4).map(|own| board(own, 300.0 + 10.0 * f64::from(own), 1.0)).collect();
        let [a, b, c, d] = boards.as_slice() else { panic!("four boards") };
        let mean = combine(&[a, b, c, d], |sum| (sum * 2.5).round() / 10.0);
        let phase = |modulus: u32, least: u32| -> Vec<f64> { (0..ROWS).map(|row| f64::from(least + row % modulus)).collect() };
        let (l1, l2, l3) = (phase(7, 300), phase(5, 280), phase(3, 270));
        let coarse = combine(&[a, b, c, d], |sum| (sum / 100.0).round() * 100.0);
        for (what, columns, found) in [
            ("every second", vec![a, b, c, d, &combine(&[a, c], |sum| sum)], (4, vec![0, 2], 1.0)),
            ("the mean", vec![a, b, c, d, &mean], (4, vec![0, 1, 2, 3], 4.0)),
            ("phases in whole watts", vec![&l1, &l2, &l3, &combine(&[&l1, &l2, &l3], |sum| sum)], (3, vec![0, 1, 2], 1.0)),
        ] {
            let sum = find_sum(&figures(&columns)).map(|found| (found.sum, found.parts, found.form.divisor));
            assert_eq!(sum, Some(found), "{what}");
        }
        // With a noise of 30 W beside steps of 100 W, one part more or less makes no difference.
        assert!(find_sum(&figures(&[a, b, c, d, &coarse])).is_none());
    }

    #[test]
    fn few_of_many_devices_are_tried() {
        let rows = |own: u32| -> Vec<f64> {
            let watts = |row: u32| 300.0 + 100.0 * f64::from(row / 10 % 2) + f64::from((row * (7 * own + 13) + own) % 31);
            (0..50).map(watts).collect()
        };
        let figures: Vec<DeviceFigure> = (0..2000).map(|own| figure(own as usize, &rows(own))).collect();
        let search = SumSearch { figures: &figures };
        let whole = MeanAndRounding::of(figures.iter());
        for sum in 0..figures.len() {
            assert_eq!(search.match_others(sum, whole), (false, false), "{sum}");
            assert_eq!(search.find_runs(sum, (0..sum).rev()), [0; 0], "{sum}");
            assert_eq!(search.find_runs(sum, sum + 1..figures.len()), [0; 0], "{sum}");
        }
        assert!(find_sum(&figures).is_none());
        // Of few, one may be the mean; devices that draw next to nothing are no parts.
        let few = SumSearch { figures: &figures[..MOST_DEVICES_OF_A_MEAN] };
        assert_eq!(few.match_others(0, MeanAndRounding::of(few.figures.iter())), (false, true));
        let small: Vec<f64> = (0..50).map(|row| f64::from(u32::from(row == 7))).collect();
        let idle: Vec<DeviceFigure> = (0..2000).map(|place| figure(place, &small)).collect();
        assert_eq!(SumSearch { figures: &idle }.find_runs(0, 1..idle.len()), [0; 0]);
    }

    #[test]
    fn boards_of_one_job_are_no_sums_of_each_other() {
        for noise in [0.0, 0.1, 0.5, 2.0] {
            let boards: Vec<Vec<f64>> = (0..8).map(|own| board(own, 200.0, noise)).collect();
            let of_one: Vec<&Vec<f64>> = boards.iter().collect();
            let double = board(9, 400.0, noise);
            let half = board(10, 100.0, noise);
            let whole_watts = |values: &Vec<f64>| -> Vec<f64> { values.iter().map(|value| value.round()).collect() };
            let rounded: Vec<Vec<f64>> = of_one.iter().map(|board| whole_watts(board)).collect();
            let [first, second, ..] = of_one.as_slice() else { panic!("eight boards") };
            for (what, columns) in [
                ("eight boards", of_one.clone()),
                ("one that draws twice as much", vec![*first, &double, *second]),
                ("one that draws half as much", vec![*first, &half, *second, &double]),
                ("in whole watts", rounded.iter().collect()),
            ] {
                let figures = figures(&columns);
                let sum = find_sum(&figures).map(|found| (found.sum, found.parts));
                assert_eq!(sum, None, "{what}, noise {noise}");
                assert_eq!(find_followed_sum(&figures), None, "{what}, noise {noise}");
            }
        }
    }

    #[test]
    fn a_meter_of_all_boards_is_known_by_their_noise() {
        let boards: Vec<Vec<f64>> = (0..4).map(|own| board(own, 200.0, 1.0)).collect();
        let [a, b, c, d] = boards.as_slice() else { panic!("four boards") };
        let with_losses = combine(&[a, b, c, d], |sum| (sum * 10.4).round() / 10.0 + 37.0);
        let found = find_followed_sum(&figures(&[a, b, &with_losses, c, d])).unwrap();
        assert_eq!((found.sum, found.parts.as_slice()), (2, &[0, 1, 3, 4][..]));
        assert!((found.factor - 1.04).abs() < 0.001 && (found.offset - 37.0).abs() < 1.0, "{found:?}");
        // A board of the same job that draws as much as all of them has another noise.
        let other = board(5, 832.0, 1.0);
        assert_eq!(find_followed_sum(&figures(&[a, b, &other, c, d])), None);
    }

    /// From -1 to 1, with no pattern.
    fn noise(own: u32, row: u32) -> f64 {
        let mixed = (own * 1009 + row).wrapping_mul(2_654_435_761);
        let mixed = (mixed ^ (mixed >> 15)).wrapping_mul(2_246_822_519);
        f64::from((mixed ^ (mixed >> 13)) % 2001) / 1000.0 - 1.0
    }

    #[test]
    fn a_board_that_works_with_two_others_in_turn_is_no_meter_of_them() {
        // Which of two boards works, if one does, in watts, each with a noise of its own.
        let works = |row: u32, own: u32| {
            let state = noise(50, row / 10);
            if own == 0 { state < -0.33 } else { (-0.33..0.33).contains(&state) }
        };
        let watts = |row: u32, own: u32, level: f64, idle: f64, amplitude: f64| {
            if works(row, own) { level + (amplitude * noise(own, row)).round() } else { idle }
        };
        let parts = |own: u32, idle: f64, amplitude: f64| -> Vec<f64> {
            (0..400).map(|row| watts(row, own, 250.0, idle, amplitude)).collect()
        };
        for idle in [1.0, 3.0, 6.0] {
            for amplitude in [0.0, 1.3, 4.0] {
                let (a, b) = (parts(0, idle, amplitude), parts(1, idle, amplitude));
                let third = |row: u32| {
                    let is_idle = !works(row, 0) && !works(row, 1);
                    if is_idle { idle } else { 252.0 + (amplitude * noise(7, row)).round() }
                };
                let third: Vec<f64> = (0..400).map(third).collect();
                let sum = combine(&[&a, &b], |sum| sum);
                let with_losses = combine(&[&a, &b], |sum| (sum * 1.04 + 37.0).round());
                let find = |last: &Vec<f64>| find_followed_sum(&figures(&[&a, &b, last])).map(|found| found.sum);
                // Without noise, boards that idle at a watt are rounded like the sum of two.
                if idle > 1.0 || amplitude > 0.0 {
                    assert_eq!(find(&third), None, "{idle} W, noise {amplitude} W");
                }
                assert_eq!(find(&sum), Some(2), "the sum, {idle} W, noise {amplitude} W");
                assert_eq!(find(&with_losses), Some(2), "with losses, {idle} W, noise {amplitude} W");
            }
        }
    }

    #[test]
    fn a_meter_that_meters_a_noisy_host_as_well_is_found() {
        let level = |row: u32| 300.0 + 150.0 * f64::from(row / 10 % 2);
        let watts = |own: u32| -> Vec<f64> { (0..300).map(|row| level(row) + 14.0 * noise(own, row)).collect() };
        let boards: Vec<Vec<f64>> = (0..8).map(watts).collect();
        let total = |row: u32| boards.iter().map(|board| board[row as usize]).sum::<f64>();
        let node: Vec<f64> = (0..300).map(|row| 1.05 * total(row) + 400.0 + 9.0 * noise(8, row)).collect();
        // One with as large a noise of its own as each of them.
        let other: Vec<f64> = (0..300).map(|row| 1.05 * 8.0 * level(row) + 400.0 + 14.0 * noise(9, row)).collect();
        for (what, last, expected) in [("a meter", &node, Some(8)), ("a board", &other, None)] {
            let columns: Vec<&Vec<f64>> = boards.iter().chain([last]).collect();
            assert_eq!(find_followed_sum(&figures(&columns)).map(|found| found.sum), expected, "{what}");
        }
    }
}
