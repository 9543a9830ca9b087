//! Measurements that their neighbours contradict: neither a single one nor two beside each other may decide what is chosen.
//!
//! Each setting is compared, by the median of its runs, with the settings next to it, without itself (leave one out), and two
//! neighbours, which may agree with each other, with the settings next to both. Along a
//! clock or a cap, time does not fall and power does not rise as the setting falls: between two neighbours a value lies
//! between theirs, at an end it lies within what a physical exponent allows. Where a setting lies further outside than
//! [`TIME_MARGIN`] or [`POWER_MARGIN`], the one without which the others agree best is a glitch: its runs outside of the
//! range are. Of 2,400 published operating points none lies more than 21 % (time) or 6 % (power) outside, and no two neighbours more
//! than 15 % or 10 %.

use serde::{Deserialize, Serialize};

use super::{SettingMeasurement, TuningKnob};
use crate::stats::median;

/// Times outside of the range by more than this part are glitches.
const TIME_MARGIN: f64 = 0.25;
/// Powers outside of the range by more than this part are glitches.
const POWER_MARGIN: f64 = 0.20;
/// Where more than this part of the settings is outside, no setting is: something else than the knob changed.
const SETTINGS_RATIO: f64 = 0.25;

/// The quantity of a glitch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GlitchQuantity {
    /// In seconds.
    Duration,
    /// Mean power in watts.
    Power,
}

/// A row that is left out, because the settings next to it contradict it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Glitch {
    /// Row of the table.
    pub row: u64,
    /// In the first knob's unit.
    pub setting: f64,
    /// In the second knob's unit; `None`: there is one knob.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub second_setting: Option<f64>,
    pub quantity: GlitchQuantity,
    /// In seconds or watts.
    pub value: f64,
    /// The range that the neighbours leave, in seconds or watts.
    pub expected: [f64; 2],
}

impl Glitch {
    fn is_of(&self, m: &SettingMeasurement) -> bool {
        (self.row, self.setting, self.second_setting) == (m.row, m.setting, m.second_setting)
    }

    /// Value and range for people.
    pub fn words(&self) -> String {
        let (what, unit, digits) = match self.quantity {
            GlitchQuantity::Duration => ("took", "s", 3),
            GlitchQuantity::Power => ("drew", "W", 0),
        };
        let [low, high] = self.expected;
        if high.is_finite() {
            format!(
                "it {what} {:.digits$} {unit}; the settings beside it leave {low:.digits$} to {high:.digits$} {unit}",
                self.value
            )
        } else {
            format!("it {what} {:.digits$} {unit}; the settings beside it leave {low:.digits$} {unit} or more", self.value)
        }
    }
}

/// Rows that agree with their neighbours, and those that do not.
#[derive(Debug, Clone, PartialEq)]
pub struct CheckedMeasurements {
    pub accepted: Vec<SettingMeasurement>,
    pub glitches: Vec<Glitch>,
    /// So many settings are outside that none was left out.
    pub irregular: bool,
}

/// The runs of a setting, and their median time and power.
#[derive(Debug, Clone)]
struct SettingRuns {
    setting: f64,
    second_setting: Option<f64>,
    duration: f64,
    power: f64,
    /// Indices of the measurements.
    runs: Vec<usize>,
}

impl SettingRuns {
    fn value(&self, quantity: GlitchQuantity) -> f64 {
        match quantity {
            GlitchQuantity::Duration => self.duration,
            GlitchQuantity::Power => self.power,
        }
    }
}

/// The range that the neighbours of a level leave for it.
#[derive(Debug, Clone, Copy)]
struct NeighbourRange {
    quantity: GlitchQuantity,
    expected: [f64; 2],
}

impl NeighbourRange {
    /// Returns the distance of a value from the range, as a ratio; below 1 inside.
    fn distance(&self, value: f64) -> f64 {
        (self.expected[0] / value).max(value / self.expected[1])
    }

    fn is_outside(&self, value: f64) -> bool {
        let margin = match self.quantity {
            GlitchQuantity::Duration => TIME_MARGIN,
            GlitchQuantity::Power => POWER_MARGIN,
        };
        self.distance(value) > 1.0 + margin
    }
}

/// Indices of the first and the last of the levels that are left out together: one level, or two neighbours.
type LevelSpan = (usize, usize);

/// A level that lies outside of a range by more than its margin.
type OutsideLevel = (usize, NeighbourRange);

const QUANTITIES: [GlitchQuantity; 2] = [GlitchQuantity::Duration, GlitchQuantity::Power];

/// Sums of distances below this are of rounding.
const NO_DISTANCE: f64 = 1e-9;

/// Takes out the setting without which the others agree best, or its runs outside of the range, until all agree; two neighbours if
/// all others agree without them, and without no single one. Keeps every row if more than a quarter of the settings, and more than
/// one, would go.
pub fn find_glitches(knob: TuningKnob, measurements: &[SettingMeasurement]) -> CheckedMeasurements {
    let mut accepted = measurements.to_vec();
    let mut glitches: Vec<Glitch> = Vec::new();
    let most = ((levels(measurements).len() as f64 * SETTINGS_RATIO) as usize).max(1);
    let mut blamed = 0;
    while let Some((settings, found)) = next_glitches(knob, &accepted) {
        blamed += settings;
        if blamed > most {
            return CheckedMeasurements { accepted: measurements.to_vec(), glitches: Vec::new(), irregular: true };
        }
        accepted.retain(|m| !found.iter().any(|glitch| glitch.is_of(m)));
        glitches.extend(found);
    }
    glitches.sort_by_key(|glitch| glitch.row);
    CheckedMeasurements { accepted, glitches, irregular: false }
}

/// Returns the number of the settings to blame next, and their runs to take out; `None` if all settings agree.
fn next_glitches(knob: TuningKnob, measurements: &[SettingMeasurement]) -> Option<(usize, Vec<Glitch>)> {
    let levels = levels(measurements);
    let (first, last) = blamed_span(knob, &levels)?;
    let glitches: Vec<Glitch> =
        (first..=last).flat_map(|at| runs_outside(knob, measurements, &levels, at, (first, last))).collect();
    (!glitches.is_empty()).then_some((last + 1 - first, glitches))
}

/// Returns the sum of the distances of levels from their ranges.
fn distance_sum(found: &[OutsideLevel], levels: &[SettingRuns]) -> f64 {
    found.iter().map(|(index, range)| range.distance(levels[*index].value(range.quantity)).ln()).sum()
}

/// Returns the level without which the others agree best, or two neighbours: if no level is off by itself, or if all others agree
/// without both, and not without any single one. `None` if all agree.
fn blamed_span(knob: TuningKnob, levels: &[SettingRuns]) -> Option<LevelSpan> {
    let singles = outside(knob, levels, 1);
    let found = [singles.clone(), outside(knob, levels, 2)].concat();
    // Whoever disagrees, and those beside it.
    let near = |index: usize| {
        found
            .iter()
            .any(|(other, _)| index.abs_diff(*other) <= 1 && levels[index].second_setting == levels[*other].second_setting)
    };
    let left_without = |(first, last): LevelSpan| {
        let rest: Vec<SettingRuns> = [&levels[..first], &levels[last + 1..]].concat();
        [1, 2].map(|length| distance_sum(&outside(knob, &rest, length), &rest)).iter().sum::<f64>()
    };
    let own_distance = |(first, last): LevelSpan| {
        let own: Vec<OutsideLevel> = found.iter().filter(|(other, _)| (first..=last).contains(other)).copied().collect();
        distance_sum(&own, levels)
    };
    let best_of = |length: usize| {
        let mut best: Option<(f64, f64, LevelSpan)> = None;
        let spans = (length - 1..levels.len()).map(|last| (last + 1 - length, last));
        for span in spans.filter(|span| near(span.0) && near(span.1) && is_outnumbered(levels, *span)) {
            let (left, own) = (left_without(span), own_distance(span));
            if best.is_none_or(|(least, most, _)| left < least - NO_DISTANCE || left < least + NO_DISTANCE && own > most) {
                best = Some((left, own, span));
            }
        }
        best
    };
    let single = if singles.is_empty() { None } else { best_of(1) };
    let is_enough = single.is_some_and(|(left, ..)| left <= NO_DISTANCE);
    let pair = if is_enough { None } else { best_of(2) };
    let pair = pair.filter(|(left, ..)| single.is_none() || *left <= NO_DISTANCE);
    pair.or(single).map(|(.., span)| span)
}

/// Returns the runs of a level that lie outside of what the levels beside a span leave, or all of them if none does by itself.
fn runs_outside(
    knob: TuningKnob,
    measurements: &[SettingMeasurement],
    levels: &[SettingRuns],
    at: usize,
    span: LevelSpan,
) -> Vec<Glitch> {
    let ranges: Vec<NeighbourRange> =
        QUANTITIES.into_iter().filter_map(|quantity| range(knob, levels, at, span, quantity)).collect();
    let glitch = |(run, range): &(usize, NeighbourRange)| {
        let m = &measurements[*run];
        Glitch {
            row: m.row,
            setting: m.setting,
            second_setting: m.second_setting,
            quantity: range.quantity,
            value: value(m, range.quantity),
            expected: range.expected,
        }
    };
    let worst = |run: &usize| {
        let distance = |range: &&NeighbourRange| range.distance(value(&measurements[*run], range.quantity));
        ranges.iter().max_by(|a, b| distance(a).total_cmp(&distance(b))).map(|range| (*run, *range))
    };
    let all: Vec<(usize, NeighbourRange)> = levels[at].runs.iter().filter_map(worst).collect();
    let is_off = |(run, range): &&(usize, NeighbourRange)| range.is_outside(value(&measurements[*run], range.quantity));
    let off: Vec<Glitch> = all.iter().filter(is_off).map(glitch).collect();
    if off.is_empty() { all.iter().map(glitch).collect() } else { off }
}

fn value(m: &SettingMeasurement, quantity: GlitchQuantity) -> f64 {
    match quantity {
        GlitchQuantity::Duration => m.duration_seconds,
        GlitchQuantity::Power => m.energy_joules / m.duration_seconds,
    }
}

/// The levels that lie outside of a range by more than its margin: each that of the levels beside it, or (`length` 2) two neighbours,
/// both of them, that of the levels beside the two.
fn outside(knob: TuningKnob, levels: &[SettingRuns], length: usize) -> Vec<OutsideLevel> {
    let off = |at: usize, span: LevelSpan, quantity: GlitchQuantity| {
        range(knob, levels, at, span, quantity)
            .filter(|range| range.is_outside(levels[at].value(quantity)))
            .map(|range| (at, range))
    };
    let mut found = Vec::new();
    for first in 0..(levels.len() + 1).saturating_sub(length) {
        let span = (first, first + length - 1);
        for quantity in QUANTITIES {
            let all: Option<Vec<OutsideLevel>> = (span.0..=span.1).map(|at| off(at, span, quantity)).collect();
            found.extend(all.into_iter().flatten());
        }
    }
    found
}

/// Returns whether more levels of a slice are left than a span takes out: between two settings alone, it is unknown which is off.
fn is_outnumbered(levels: &[SettingRuns], (first, last): LevelSpan) -> bool {
    let same = |level: &&SettingRuns| level.second_setting == levels[first].second_setting;
    let is_one_slice = levels.get(last).as_ref().is_some_and(same);
    is_one_slice && levels.iter().filter(same).count() > 2 * (last + 1 - first)
}

/// Medians by setting, slice by slice of the second knob, in each the highest setting first.
fn levels(measurements: &[SettingMeasurement]) -> Vec<SettingRuns> {
    let mut order: Vec<usize> = (0..measurements.len()).collect();
    let key = |index: &usize| (measurements[*index].second_setting.unwrap_or(0.0), measurements[*index].setting);
    order.sort_by(|a, b| key(b).0.total_cmp(&key(a).0).then(key(b).1.total_cmp(&key(a).1)));
    let level = |runs: &[usize]| {
        let first = &measurements[*runs.first()?];
        let middle = |quantity| median(&mut runs.iter().map(|run| value(&measurements[*run], quantity)).collect::<Vec<_>>());
        Some(SettingRuns {
            setting: first.setting,
            second_setting: first.second_setting,
            duration: middle(GlitchQuantity::Duration)?,
            power: middle(GlitchQuantity::Power)?,
            runs: runs.to_vec(),
        })
    };
    order.chunk_by(|a, b| key(a) == key(b)).filter_map(level).collect()
}

/// Returns the range that the levels beside a span leave for the time or power of one in it; `None` if there are too few.
fn range(
    knob: TuningKnob,
    levels: &[SettingRuns],
    at: usize,
    (first, last): LevelSpan,
    quantity: GlitchQuantity,
) -> Option<NeighbourRange> {
    // A batch size is no clock: neither time nor power has to follow it.
    let (time_exponent, power_exponent) = match knob {
        TuningKnob::SmClockMhz | TuningKnob::MemoryClockMhz => (3.0, 4.0),
        // A cap may come close to what the board draws when it idles: the time then has no bound.
        TuningKnob::PowerLimitWatts => (f64::INFINITY, 1.5),
        TuningKnob::BatchSize => return None,
    };
    if !is_outnumbered(levels, (first, last)) {
        return None;
    }
    let same = |level: &&SettingRuns| level.second_setting == levels[at].second_setting;
    let higher = first.checked_sub(1).and_then(|index| levels.get(index)).filter(same);
    let lower = levels.get(last + 1).filter(same);
    let reach = |neighbour: &SettingRuns, exponent: f64| {
        let ratio = neighbour.setting.max(levels[at].setting) / neighbour.setting.min(levels[at].setting);
        ratio.powf(exponent)
    };
    let value = |level: &SettingRuns| level.value(quantity);
    let expected = match (higher, lower, quantity) {
        (None, None, _) => return None,
        (Some(a), Some(b), _) => [value(a).min(value(b)), value(a).max(value(b))],
        // The lowest setting: slower and of less power than the one above it.
        (Some(a), None, GlitchQuantity::Duration) => [value(a), value(a) * reach(a, time_exponent)],
        (Some(a), None, GlitchQuantity::Power) => [value(a) / reach(a, power_exponent), value(a)],
        // The highest.
        (None, Some(b), GlitchQuantity::Duration) => [value(b) / reach(b, time_exponent.min(3.0)), value(b)],
        (None, Some(b), GlitchQuantity::Power) => [value(b), value(b) * reach(b, power_exponent)],
    };
    Some(NeighbourRange { quantity, expected })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(row: u64, setting: f64, duration_seconds: f64, watts: f64) -> SettingMeasurement {
        SettingMeasurement { setting, second_setting: None, duration_seconds, energy_joules: watts * duration_seconds, row }
    }

    fn clocks() -> Vec<SettingMeasurement> {
        let rows =
            [(1400.0, 11.1, 275.0), (1300.0, 12.2, 250.0), (1200.0, 13.4, 225.0), (1100.0, 14.5, 200.0), (1000.0, 15.6, 175.0)];
        rows.iter().zip(1..).map(|(&(setting, seconds, watts), index)| row(index, setting, seconds, watts)).collect()
    }

    fn caps() -> Vec<SettingMeasurement> {
        let rows = [
            (250.0, 10.0, 230.0),
            (225.0, 10.1, 215.0),
            (200.0, 10.4, 196.0),
            (175.0, 11.0, 172.0),
            (150.0, 12.2, 148.0),
            (100.0, 26.0, 99.0),
        ];
        rows.iter().zip(1..).map(|(&(setting, seconds, watts), index)| row(index, setting, seconds, watts)).collect()
    }

    #[test]
    fn a_smooth_sweep_has_no_glitch() {
        for (knob, rows) in [(TuningKnob::SmClockMhz, clocks()), (TuningKnob::PowerLimitWatts, caps())] {
            let checked = find_glitches(knob, &rows);
            assert!(checked.glitches.is_empty() && !checked.irregular && checked.accepted == rows, "{checked:?}");
        }
    }

    #[test]
    fn one_glitch_of_any_row_and_kind_is_found_and_only_that_row() {
        for (knob, rows) in [(TuningKnob::SmClockMhz, clocks()), (TuningKnob::PowerLimitWatts, caps())] {
            for index in 0..rows.len() {
                for (time_factor, power_factor) in [(1.0, 0.15), (1.0, 0.55), (1.0, 4.0), (0.3, 1.0), (3.0, 1.0), (0.3, 3.0)] {
                    let mut wrong = rows.clone();
                    let m = &mut wrong[index];
                    let watts = m.energy_joules / m.duration_seconds * power_factor;
                    m.duration_seconds *= time_factor;
                    m.energy_joules = watts * m.duration_seconds;
                    let checked = find_glitches(knob, &wrong);
                    let found: Vec<u64> = checked.glitches.iter().map(|glitch| glitch.row).collect();
                    // At the lowest cap any longer time may be true.
                    let last = index + 1 == rows.len();
                    let untold = time_factor > 1.0 && power_factor == 1.0 && knob == TuningKnob::PowerLimitWatts && last;
                    if !untold {
                        assert_eq!(
                            found,
                            [rows[index].row],
                            "{knob:?} row {index} times {time_factor}, {power_factor}: {checked:?}"
                        );
                    }
                }
            }
        }
    }

    /// A sweep of many settings: what a time goes by and what a power goes by.
    fn long_sweep(highest: f64, step: f64, slower: f64, drawn: f64) -> Vec<SettingMeasurement> {
        let setting = |index: u64| highest - step * index as f64;
        let seconds = |index: u64| 10.0 * (highest / setting(index)).powf(slower);
        let watts = |index: u64| 0.97 * highest * (setting(index) / highest).powf(drawn);
        (0..12).map(|index| row(index + 1, setting(index), seconds(index), watts(index))).collect()
    }

    #[test]
    fn two_neighbours_that_are_off_alike_are_found_and_only_these_rows() {
        let clocks = long_sweep(1400.0, 50.0, 0.9, 1.8);
        let caps = long_sweep(300.0, 15.0, 0.5, 1.0);
        for (knob, rows) in [(TuningKnob::SmClockMhz, clocks), (TuningKnob::PowerLimitWatts, caps)] {
            assert!(find_glitches(knob, &rows).glitches.is_empty());
            for index in 0..rows.len() - 1 {
                for (time_factor, power_factor) in [(0.5, 1.0), (0.3, 1.0), (3.0, 1.0), (1.0, 0.5), (1.0, 3.0), (0.4, 0.5)] {
                    let mut wrong = rows.clone();
                    for m in &mut wrong[index..index + 2] {
                        let watts = m.energy_joules / m.duration_seconds * power_factor;
                        m.duration_seconds *= time_factor;
                        m.energy_joules = watts * m.duration_seconds;
                    }
                    let checked = find_glitches(knob, &wrong);
                    let found: Vec<u64> = checked.glitches.iter().map(|glitch| glitch.row).collect();
                    // Near the lowest cap any longer time may be true.
                    if time_factor < 2.0 || knob == TuningKnob::SmClockMhz || index + 3 < rows.len() {
                        let both = [rows[index].row, rows[index + 1].row];
                        assert_eq!(found, both, "{knob:?} {index} times {time_factor}, {power_factor}: {checked:?}");
                    }
                }
            }
        }
        // Of five settings, two are more than a quarter.
        let mut few = self::clocks();
        for m in &mut few[..2] {
            m.energy_joules *= 0.4;
        }
        assert!(find_glitches(TuningKnob::SmClockMhz, &few).irregular);
    }

    #[test]
    fn of_two_runs_the_good_one_stays_and_a_median_of_three_needs_nothing() {
        let mut two: Vec<SettingMeasurement> = clocks();
        two.push(SettingMeasurement { duration_seconds: 25.0, energy_joules: 25.0 * 200.0, row: 9, ..two[0] });
        let checked = find_glitches(TuningKnob::SmClockMhz, &two);
        assert_eq!(checked.glitches.iter().map(|glitch| glitch.row).collect::<Vec<_>>(), [9], "a cold run");
        two.push(SettingMeasurement { row: 10, ..two[0] });
        assert!(find_glitches(TuningKnob::SmClockMhz, &two).glitches.is_empty());
    }

    #[test]
    fn many_are_none() {
        let mut rows = clocks();
        for index in [1, 3] {
            rows[index].energy_joules *= 5.0;
        }
        let checked = find_glitches(TuningKnob::SmClockMhz, &rows);
        assert!(checked.irregular && checked.glitches.is_empty() && checked.accepted.len() == 5, "{checked:?}");
    }

    #[test]
    fn a_slice_of_a_second_knob_is_compared_with_itself_alone() {
        let mut rows = clocks();
        let slow: Vec<SettingMeasurement> = clocks()
            .iter()
            .map(|m| SettingMeasurement {
                second_setting: Some(810.0),
                duration_seconds: 3.0 * m.duration_seconds,
                row: m.row + 10,
                ..*m
            })
            .collect();
        for m in &mut rows {
            m.second_setting = Some(1215.0);
        }
        rows.extend(slow);
        assert!(find_glitches(TuningKnob::SmClockMhz, &rows).glitches.is_empty());
        rows[7].energy_joules /= 6.0;
        let found = find_glitches(TuningKnob::SmClockMhz, &rows).glitches;
        assert_eq!((found.len(), found[0].row, found[0].second_setting), (1, 13, Some(810.0)));
    }
}
