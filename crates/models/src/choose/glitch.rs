//! Measurements that their neighbours contradict: a single one must not decide what is chosen.
//!
//! Each setting is compared, by the median of its runs, with the settings next to it, without itself (leave one out). Along a
//! clock or a cap, time does not fall and power does not rise as the setting falls: between two neighbours a value lies
//! between theirs, at an end it lies within what a physical exponent allows. Where a setting lies further outside than
//! [`TIME_MARGIN`] or [`POWER_MARGIN`], the one without which the others agree best is a glitch: its runs outside of the
//! range are. Of 2,400 published operating points none lies more than 21 % (time) or 6 % (power) outside.

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

/// Takes out the setting without which the others agree best, or its runs outside of the range, until all agree; keeps
/// every row if more than a quarter of the settings, and more than one, would go.
pub fn find_glitches(knob: TuningKnob, measurements: &[SettingMeasurement]) -> CheckedMeasurements {
    let mut accepted = measurements.to_vec();
    let mut glitches: Vec<Glitch> = Vec::new();
    let most = ((levels(measurements).len() as f64 * SETTINGS_RATIO) as usize).max(1);
    let mut blamed = 0;
    while let Some(found) = next_glitches(knob, &accepted) {
        blamed += 1;
        if blamed > most {
            return CheckedMeasurements { accepted: measurements.to_vec(), glitches: Vec::new(), irregular: true };
        }
        let rows: Vec<u64> = found.iter().map(|glitch| glitch.row).collect();
        let (setting, second) = (found[0].setting, found[0].second_setting);
        accepted.retain(|m| m.setting != setting || m.second_setting != second || !rows.contains(&m.row));
        glitches.extend(found);
    }
    glitches.sort_by_key(|glitch| glitch.row);
    CheckedMeasurements { accepted, glitches, irregular: false }
}

/// The runs to take out next; `None` if all settings agree.
fn next_glitches(knob: TuningKnob, measurements: &[SettingMeasurement]) -> Option<Vec<Glitch>> {
    let levels = levels(measurements);
    let found = outside(knob, &levels);
    let without = |index: usize| -> Vec<SettingRuns> {
        levels.iter().enumerate().filter(|(other, _)| *other != index).map(|(_, level)| level.clone()).collect()
    };
    let sum = |found: &[(usize, NeighbourRange)], levels: &[SettingRuns]| -> f64 {
        found.iter().map(|(index, range)| range.distance(levels[*index].value(range.quantity)).ln()).sum()
    };
    // Whoever disagrees, and those beside it.
    let near = |index: &usize| {
        found
            .iter()
            .any(|(other, _)| index.abs_diff(*other) <= 1 && levels[*index].second_setting == levels[*other].second_setting)
    };
    let mut best: Option<(f64, f64, usize)> = None;
    for index in (0..levels.len()).filter(near) {
        let rest = without(index);
        let left = sum(&outside(knob, &rest), &rest);
        let own: Vec<(usize, NeighbourRange)> = found.iter().filter(|(other, _)| *other == index).copied().collect();
        let own = sum(&own, &levels);
        if best.is_none_or(|(least, most, _)| left < least - 1e-9 || left < least + 1e-9 && own > most) {
            best = Some((left, own, index));
        }
    }
    let level = &levels[best?.2];
    let index = best?.2;
    let ranges: Vec<NeighbourRange> = [GlitchQuantity::Duration, GlitchQuantity::Power]
        .into_iter()
        .filter_map(|quantity| range(knob, &levels, index, quantity))
        .collect();
    let glitch = |run: &usize, range: &NeighbourRange| {
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
    let all: Vec<(usize, NeighbourRange)> = level.runs.iter().filter_map(worst).collect();
    let off: Vec<Glitch> = all
        .iter()
        .filter(|(run, range)| range.is_outside(value(&measurements[*run], range.quantity)))
        .map(|(run, range)| glitch(run, range))
        .collect();
    let all: Vec<Glitch> = all.iter().map(|(run, range)| glitch(run, range)).collect();
    Some(if off.is_empty() { all } else { off }).filter(|glitches| !glitches.is_empty())
}

fn value(m: &SettingMeasurement, quantity: GlitchQuantity) -> f64 {
    match quantity {
        GlitchQuantity::Duration => m.duration_seconds,
        GlitchQuantity::Power => m.energy_joules / m.duration_seconds,
    }
}

/// The levels that lie outside of a range by more than its margin.
fn outside(knob: TuningKnob, levels: &[SettingRuns]) -> Vec<(usize, NeighbourRange)> {
    let of = |index: usize| [GlitchQuantity::Duration, GlitchQuantity::Power].map(|quantity| (index, quantity));
    (0..levels.len())
        .flat_map(of)
        .filter_map(|(index, quantity)| Some((index, range(knob, levels, index, quantity)?)))
        .filter(|(index, range)| range.is_outside(levels[*index].value(range.quantity)))
        .collect()
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

/// Returns the range that the neighbours of a level leave for its time or power; `None` if there are too few.
fn range(knob: TuningKnob, levels: &[SettingRuns], at: usize, quantity: GlitchQuantity) -> Option<NeighbourRange> {
    // A batch size is no clock: neither time nor power has to follow it.
    let (time_exponent, power_exponent) = match knob {
        TuningKnob::SmClockMhz | TuningKnob::MemoryClockMhz => (3.0, 4.0),
        // A cap may come close to what the board draws when it idles: the time then has no bound.
        TuningKnob::PowerLimitWatts => (f64::INFINITY, 1.5),
        TuningKnob::BatchSize => return None,
    };
    let same = |level: &&SettingRuns| level.second_setting == levels[at].second_setting;
    // Between two settings alone, it is unknown which of them is off.
    if levels.iter().filter(same).count() < 3 {
        return None;
    }
    let higher = at.checked_sub(1).and_then(|index| levels.get(index)).filter(same);
    let lower = levels.get(at + 1).filter(same);
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
