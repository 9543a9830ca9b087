//! Measurements that their neighbours contradict: neither a single one nor two beside each other may decide what is chosen.
//!
//! Each setting is compared, by the median of its runs, with the settings next to it (leave one out). Two neighbours, which may
//! agree with each other, are compared with the settings next to both. Along a clock or a cap, time does not fall and power does
//! not rise as the setting falls. Neither follows the setting by more than a physical exponent, and a cap far above what the
//! board draws changes next to nothing. A contradiction is between two settings. The one without which the rest is smooth is the
//! glitch; if nothing decides between them, both are left out.
//!
//! What makes a setting look better than it is decides a choice, and has the tighter margin: less time or power below the
//! reference, more of them at it. That margin grows with the scatter of the other settings. Of 2,400 published operating points
//! none lies more than 21 % (time) or 6 % (power) outside, and no two neighbours more than 15 % or 10 %.
//!
//! A sweep of nine or more clocks is smooth besides. Each clock is compared with the curve of the others, at the ends, too, unless it
//! has three runs. It may be four times as far from it as the furthest of the others is from theirs, and further if it flatters
//! nothing. The highest one may be as the next one: the board's own limit may hold it. The lowest one may draw as much as the next
//! one: voltage has a floor. Of 1,400 published clocks none is more than twice as far. Under a cap there is no such curve: time and
//! power bend where the cap begins to hold. What a choice would rest on is compared more closely, see [`super::single_run`].

use serde::{Deserialize, Deserializer, Serialize};

use super::leave_one_out::SweepCurve;
use super::{SettingMeasurement, TuningKnob};
use crate::stats::median;

/// Parts by which a value may lie outside of its range.
#[derive(Debug, Clone, Copy)]
struct QuantityMargins {
    /// For what flatters a setting; it grows with the scatter, up to `wide`.
    tight: f64,
    wide: f64,
}

const TIME_MARGINS: QuantityMargins = QuantityMargins { tight: 0.13, wide: 0.25 };
const POWER_MARGINS: QuantityMargins = QuantityMargins { tight: 0.08, wide: 0.20 };
/// The tight margin is at least so many times the largest distance, as a logarithm, among the other settings.
const TIMES_SCATTER: f64 = 2.0;
/// A clock may be so many times as far from the curve of the others as the furthest of these from theirs, as a logarithm.
const TIMES_CURVE_SCATTER: f64 = 4.0;
/// A clock that flatters may be at least this far from the curve of the others, as a logarithm.
const CURVE_DISTANCE: f64 = 0.03;
/// The median of so many runs is compared with no curve: one run that is off does not move it far.
const MEDIAN_RUNS: usize = 3;
/// If the board draws more than this part of a cap at the next one, the cap may hold it.
const BINDING_RATIO: f64 = 0.75;
/// If the board draws less than this part of a cap at the next one, the cap changes next to nothing.
const IDLE_RATIO: f64 = 0.5;
/// If more than this part of the settings is outside, none is a glitch: something else than the knob changed.
const SETTINGS_RATIO: f64 = 0.25;

/// The quantity of a glitch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GlitchQuantity {
    /// Duration in seconds.
    Duration,
    /// Mean power in watts.
    Power,
}

impl GlitchQuantity {
    const fn margins(self) -> QuantityMargins {
        match self {
            Self::Duration => TIME_MARGINS,
            Self::Power => POWER_MARGINS,
        }
    }
}

/// A row that is left out, because the settings next to it contradict it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Glitch {
    /// Row of the table.
    pub row: u64,
    /// Setting in the first knob's unit.
    pub setting: f64,
    /// Setting in the second knob's unit; `None` if there is only one knob.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub second_setting: Option<f64>,
    pub quantity: GlitchQuantity,
    /// Value in seconds or watts.
    pub value: f64,
    /// The range that the neighbours leave, in seconds or watts. An open end is infinite, and null in JSON.
    #[serde(deserialize_with = "open_range")]
    pub expected: [f64; 2],
    /// A choice rested on this run alone, by tighter limits than those of other glitches.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_single_run: bool,
}

fn open_range<'de, D: Deserializer<'de>>(deserializer: D) -> Result<[f64; 2], D::Error> {
    let [low, high] = <[Option<f64>; 2]>::deserialize(deserializer)?;
    Ok([low.unwrap_or(0.0), high.unwrap_or(f64::INFINITY)])
}

impl Glitch {
    pub(super) fn is_of(&self, m: &SettingMeasurement) -> bool {
        (self.row, self.setting, self.second_setting) == (m.row, m.setting, m.second_setting)
    }

    /// Returns value and range for people.
    pub fn words(&self) -> String {
        let (what, unit, digits) = match self.quantity {
            GlitchQuantity::Duration => ("took", "s", 3),
            GlitchQuantity::Power => ("drew", "W", 0),
        };
        let [low, high] = self.expected;
        if low == 0.0 {
            format!("it {what} {:.digits$} {unit}; the settings beside it leave {high:.digits$} {unit} or less", self.value)
        } else if high.is_finite() {
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
    /// Too many settings are outside, so that none was left out.
    pub irregular: bool,
    /// The settings that are outside, in the first and the second knob's unit, if none was left out.
    pub contradicted: Vec<(f64, Option<f64>)>,
}

impl CheckedMeasurements {
    /// Returns whether a setting is outside of what its neighbours leave, and was not left out.
    pub fn is_contradicted(&self, setting: f64, second_setting: Option<f64>) -> bool {
        self.contradicted.contains(&(setting, second_setting))
    }
}

/// The runs of a setting, and their median time and power.
#[derive(Debug, Clone)]
struct SettingRuns {
    setting: f64,
    second_setting: Option<f64>,
    /// The highest setting of the table, against which savings count.
    is_highest: bool,
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
    /// Parts by which a value may lie below and above.
    margins: [f64; 2],
}

impl NeighbourRange {
    fn is_outside(&self, value: f64) -> bool {
        let [below, above] = self.margins;
        self.expected[0] / value > 1.0 + below || value / self.expected[1] > 1.0 + above
    }
}

/// Returns the distance of a value from a range, as a ratio; below 1 inside.
fn distance(expected: [f64; 2], value: f64) -> f64 {
    (expected[0] / value).max(value / expected[1])
}

/// Returns the distance of a value from a range, as a logarithm; 0 inside.
fn log_distance(expected: [f64; 2], value: f64) -> f64 {
    distance(expected, value).max(1.0).ln()
}

/// Indices of the first and the last of the levels that are left out together: one level, or two neighbours.
type LevelSpan = (usize, usize);

/// The range that a curve leaves for each level, by quantity; see [`curve_ranges`].
type CurveRanges = [Vec<Option<NeighbourRange>>; 2];

/// A level that lies outside of a range by more than its margin.
type OutsideLevel = (usize, NeighbourRange);

const QUANTITIES: [GlitchQuantity; 2] = [GlitchQuantity::Duration, GlitchQuantity::Power];

/// Sums of distances below this are of rounding.
const NO_DISTANCE: f64 = 1e-9;
/// If the rest is as smooth to within this, as a logarithm, nothing shows which of two levels is off.
const UNDECIDED_DISTANCE: f64 = 0.03;

/// Largest distance of a value from that of a neighbour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NeighbourReach {
    /// As far as is possible: no row outside of it can be right.
    Possible,
    /// As far as is usual.
    Usual,
}

/// Levels to take out together, and the number of settings that are at fault.
#[derive(Debug)]
struct FaultyLevels {
    spans: Vec<LevelSpan>,
    settings: usize,
}

/// A span that may be at fault.
#[derive(Debug, Clone, Copy)]
struct FaultyLevelCandidate {
    span: LevelSpan,
    /// Sum of the distances of the rest, of those beyond their margins.
    left: f64,
    /// Sum of all distances of the rest.
    roughness: f64,
}

/// Takes out the setting without which the others agree best, or its runs outside of the range, until all agree. Takes out all of
/// several settings if nothing shows which is at fault. Takes out two neighbours if all others agree without them, and without no
/// single one. Keeps every row if more than a quarter of the settings, and more than one, are at fault.
pub fn find_glitches(knob: TuningKnob, measurements: &[SettingMeasurement]) -> CheckedMeasurements {
    let mut accepted = measurements.to_vec();
    let mut glitches: Vec<Glitch> = Vec::new();
    let highest = measurements.iter().map(|m| m.setting).fold(0.0, f64::max);
    let all = levels(measurements, highest);
    let most = ((all.len() as f64 * SETTINGS_RATIO) as usize).max(1);
    let mut blamed = 0;
    while let Some((settings, found)) = next_glitches(knob, &accepted, highest) {
        blamed += settings;
        if blamed > most {
            let found = [outside(knob, &all, 1), outside(knob, &all, 2)].concat();
            let contradicted = found.iter().map(|(at, _)| (all[*at].setting, all[*at].second_setting)).collect();
            let accepted = measurements.to_vec();
            return CheckedMeasurements { accepted, glitches: Vec::new(), irregular: true, contradicted };
        }
        accepted.retain(|m| !found.iter().any(|glitch| glitch.is_of(m)));
        glitches.extend(found);
    }
    glitches.sort_by_key(|glitch| glitch.row);
    CheckedMeasurements { accepted, glitches, irregular: false, contradicted: Vec::new() }
}

/// Returns the number of the settings at fault next, and their runs to take out; `None` if all settings agree.
fn next_glitches(knob: TuningKnob, measurements: &[SettingMeasurement], highest: f64) -> Option<(usize, Vec<Glitch>)> {
    let levels = levels(measurements, highest);
    let FaultyLevels { spans, settings } = faulty_levels(knob, &levels)?;
    let mut glitches: Vec<Glitch> = Vec::new();
    let curves = curve_ranges(knob, &levels);
    for span in spans {
        glitches.extend((span.0..=span.1).flat_map(|at| runs_outside(knob, measurements, (&levels, &curves), at, span)));
    }
    (!glitches.is_empty()).then_some((settings, glitches))
}

/// Returns the sum of the distances of levels from their ranges.
fn distance_sum(found: &[OutsideLevel], levels: &[SettingRuns]) -> f64 {
    found.iter().map(|(index, range)| log_distance(range.expected, levels[*index].value(range.quantity))).sum()
}

/// Returns the levels without which the others agree best, or two neighbours: if no level is off by itself, or if all others
/// agree without both, and not without any single one. `None` if all agree, or if those at fault are within their own margins.
fn faulty_levels(knob: TuningKnob, levels: &[SettingRuns]) -> Option<FaultyLevels> {
    let (singles, pairs) = (outside(knob, levels, 1), outside(knob, levels, 2));
    let found = [singles.clone(), pairs.clone()].concat();
    let single = faulty_single_levels(knob, levels, &singles, found.clone());
    if single.as_ref().is_some_and(|(left, _)| *left <= NO_DISTANCE) {
        return single.map(|(_, blamed)| blamed);
    }
    let disagreeing = if single.is_none() { &pairs } else { &found };
    let pair = if pairs.is_empty() { None } else { candidates(knob, levels, disagreeing, 2).first().copied() };
    let pair = pair.filter(|pair| single.is_none() || pair.left <= NO_DISTANCE);
    let pair = pair.map(|pair| FaultyLevels { spans: vec![pair.span], settings: 2 });
    pair.or(single.map(|(_, blamed)| blamed))
}

/// Returns the single levels at fault, and the sum of the distances that are left without one; several if nothing shows which.
fn faulty_single_levels(
    knob: TuningKnob,
    levels: &[SettingRuns],
    singles: &[OutsideLevel],
    mut found: Vec<OutsideLevel>,
) -> Option<(f64, FaultyLevels)> {
    let is_outside = |at: usize| singles.iter().any(|(other, _)| *other == at);
    while found.iter().any(|(at, _)| is_outside(*at)) {
        let all = candidates(knob, levels, &found, 1);
        let best = all.first()?;
        let ties = all.iter().filter(|other| other.roughness <= best.roughness + UNDECIDED_DISTANCE);
        let mut spans: Vec<LevelSpan> = ties.map(|other| other.span).filter(|span| is_outside(span.0)).collect();
        if !spans.is_empty() {
            spans.sort_unstable();
            return Some((best.left, FaultyLevels { spans, settings: 1 }));
        }
        // It is within its own margin, and flatters nothing: those beside it are right.
        found.retain(|(at, _)| at.abs_diff(best.span.0) > 1);
    }
    None
}

/// Returns the spans without which least is outside, of those that disagree and those beside them; that of the smoothest rest
/// first.
fn candidates(knob: TuningKnob, levels: &[SettingRuns], found: &[OutsideLevel], length: usize) -> Vec<FaultyLevelCandidate> {
    let near = |index: usize| {
        found
            .iter()
            .any(|(other, _)| index.abs_diff(*other) <= 1 && levels[index].second_setting == levels[*other].second_setting)
    };
    let candidate = |span: LevelSpan| {
        let rest: Vec<SettingRuns> = [&levels[..span.0], &levels[span.1 + 1..]].concat();
        let left = [1, 2].map(|length| distance_sum(&outside(knob, &rest, length), &rest)).iter().sum::<f64>();
        FaultyLevelCandidate { span, left, roughness: roughness(knob, &rest) }
    };
    let spans = (length - 1..levels.len()).map(|last| (last + 1 - length, last));
    let spans = spans.filter(|span| near(span.0) && near(span.1) && is_outnumbered(levels, *span));
    let mut all: Vec<FaultyLevelCandidate> = spans.map(candidate).collect();
    let least = all.iter().map(|candidate| candidate.left).fold(f64::INFINITY, f64::min);
    all.retain(|candidate| candidate.left <= least + NO_DISTANCE);
    all.sort_by(|a, b| a.roughness.total_cmp(&b.roughness));
    all
}

/// Returns the sum of the distances of all levels from the usual ones beside their neighbours, as logarithms.
fn roughness(knob: TuningKnob, levels: &[SettingRuns]) -> f64 {
    let of = |quantity| (0..levels.len()).map(|at| usual_distance(knob, levels, at, quantity)).sum::<f64>();
    QUANTITIES.into_iter().map(of).sum()
}

/// Returns the largest distance of the other levels of a slice from the usual ones, as a logarithm.
fn scatter(knob: TuningKnob, levels: &[SettingRuns], at: usize, quantity: GlitchQuantity) -> f64 {
    let is_other = |index: &usize| *index != at && levels[*index].second_setting == levels[at].second_setting;
    let rest: Vec<SettingRuns> = (0..levels.len()).filter(is_other).map(|index| levels[index].clone()).collect();
    (0..rest.len()).map(|at| usual_distance(knob, &rest, at, quantity)).fold(0.0, f64::max)
}

/// Returns the distance of a level from the usual one beside its neighbours, as a logarithm.
fn usual_distance(knob: TuningKnob, levels: &[SettingRuns], at: usize, quantity: GlitchQuantity) -> f64 {
    let expected = expected_range(knob, levels, at, (at, at), quantity, NeighbourReach::Usual);
    expected.map_or(0.0, |expected| log_distance(expected, levels[at].value(quantity)))
}

/// Returns the runs of a level that lie outside of what the levels beside a span leave, or all of them if none does by itself.
fn runs_outside(
    knob: TuningKnob,
    measurements: &[SettingMeasurement],
    (levels, curves): (&[SettingRuns], &CurveRanges),
    at: usize,
    span: LevelSpan,
) -> Vec<Glitch> {
    let of_both = QUANTITIES.into_iter().zip(curves);
    let ranges: Vec<NeighbourRange> =
        of_both.flat_map(|(quantity, curves)| ranges(knob, levels, at, span, (quantity, curves))).collect();
    let glitch = |(run, range): &(usize, NeighbourRange)| {
        let m = &measurements[*run];
        Glitch {
            row: m.row,
            setting: m.setting,
            second_setting: m.second_setting,
            quantity: range.quantity,
            value: value(m, range.quantity),
            expected: range.expected,
            is_single_run: false,
        }
    };
    let worst = |run: &usize| {
        let own = |range: &&NeighbourRange| distance(range.expected, value(&measurements[*run], range.quantity));
        ranges.iter().max_by(|a, b| own(a).total_cmp(&own(b))).map(|range| (*run, *range))
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

/// Returns the levels that lie outside of the range of the levels beside them, or of the curve of all others, by more than its
/// margin. With `length` 2: two neighbours that both lie outside of the range of the levels beside the two.
fn outside(knob: TuningKnob, levels: &[SettingRuns], length: usize) -> Vec<OutsideLevel> {
    let curves = if length == 1 { curve_ranges(knob, levels) } else { CurveRanges::default() };
    let off = |at: usize, span: LevelSpan, of_quantity: (GlitchQuantity, &[Option<NeighbourRange>])| {
        let value = levels[at].value(of_quantity.0);
        ranges(knob, levels, at, span, of_quantity)
            .filter(|range| range.is_outside(value))
            .max_by(|a, b| distance(a.expected, value).total_cmp(&distance(b.expected, value)))
            .map(|range| (at, range))
    };
    let mut found = Vec::new();
    for first in 0..(levels.len() + 1).saturating_sub(length) {
        let span = (first, first + length - 1);
        for (quantity, curves) in QUANTITIES.into_iter().zip(&curves) {
            let all: Option<Vec<OutsideLevel>> =
                (span.0..=span.1).map(|at| off(at, span, (quantity, curves.as_slice()))).collect();
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
fn levels(measurements: &[SettingMeasurement], highest: f64) -> Vec<SettingRuns> {
    let mut order: Vec<usize> = (0..measurements.len()).collect();
    let key = |index: &usize| (measurements[*index].second_setting.unwrap_or(0.0), measurements[*index].setting);
    order.sort_by(|a, b| key(b).0.total_cmp(&key(a).0).then(key(b).1.total_cmp(&key(a).1)));
    let level = |runs: &[usize]| {
        let first = &measurements[*runs.first()?];
        let middle = |quantity| median(&mut runs.iter().map(|run| value(&measurements[*run], quantity)).collect::<Vec<_>>());
        Some(SettingRuns {
            setting: first.setting,
            second_setting: first.second_setting,
            is_highest: first.setting >= highest,
            duration: middle(GlitchQuantity::Duration)?,
            power: middle(GlitchQuantity::Power)?,
            runs: runs.to_vec(),
        })
    };
    order.chunk_by(|a, b| key(a) == key(b)).filter_map(level).collect()
}

/// Returns every range for the time or power of a level: that of the levels beside its span, and that of the curve of all others if
/// the level is alone in it.
fn ranges(
    knob: TuningKnob,
    levels: &[SettingRuns],
    at: usize,
    span: LevelSpan,
    (quantity, curves): (GlitchQuantity, &[Option<NeighbourRange>]),
) -> impl Iterator<Item = NeighbourRange> {
    let curve = if span.0 == span.1 { curves[at] } else { None };
    range(knob, levels, at, span, quantity).into_iter().chain(curve)
}

/// Returns the range that the curve of the other clocks of its slice leaves for each level, by quantity.
fn curve_ranges(knob: TuningKnob, levels: &[SettingRuns]) -> CurveRanges {
    if !matches!(knob, TuningKnob::SmClockMhz | TuningKnob::MemoryClockMhz) {
        return QUANTITIES.map(|_| vec![None; levels.len()]);
    }
    let slices = || levels.chunk_by(|a, b| a.second_setting == b.second_setting);
    let of_slice = |slice: &[SettingRuns], quantity: GlitchQuantity| {
        let points = slice.iter().map(|level| (level.setting.ln(), level.value(quantity).ln())).collect();
        let curve = SweepCurve::new(points);
        let range = |at: usize| curve_range(slice, curve.as_ref()?, at, quantity);
        (0..slice.len()).map(range).collect::<Vec<_>>()
    };
    QUANTITIES.map(|quantity| slices().flat_map(|slice| of_slice(slice, quantity)).collect())
}

/// Returns the range that the curve of the other clocks of a slice leaves for one, with its margins; `None` if there is no curve, if
/// the value is on it, or if it is the median of so many runs that none of them can be off it alone.
fn curve_range(slice: &[SettingRuns], curve: &SweepCurve, at: usize, quantity: GlitchQuantity) -> Option<NeighbourRange> {
    let value = |level: &SettingRuns| level.value(quantity).ln();
    let predicted = curve.predict(at)?;
    if slice[at].runs.len() >= MEDIAN_RUNS || (value(&slice[at]) - predicted).abs() <= CURVE_DISTANCE {
        return None;
    }
    let scatter = curve.scatter(at)?;
    let margin = |least: f64| (least.max(TIMES_CURVE_SCATTER * scatter) - scatter).exp_m1();
    let above = if slice[at].is_highest { CURVE_DISTANCE } else { quantity.margins().tight };
    let mut expected = [predicted - scatter, predicted + scatter];
    if at == 0 {
        // The board's own limit may hold the highest clock of a slice to the next one.
        let next = value(slice.get(1)?);
        expected = [next.min(expected[0]), next.max(expected[1])];
    } else if at + 1 == slice.len() {
        // Below the floor of the voltage, power falls less than the curve.
        expected[1] = expected[1].max(value(&slice[at - 1]));
    }
    let expected = expected.map(f64::exp);
    Some(NeighbourRange { quantity, expected, margins: [margin(CURVE_DISTANCE), margin(above)] })
}

/// Returns the range that the levels beside a span leave for the time or power of one in it, with its margins; `None` if there
/// are too few.
fn range(
    knob: TuningKnob,
    levels: &[SettingRuns],
    at: usize,
    span: LevelSpan,
    quantity: GlitchQuantity,
) -> Option<NeighbourRange> {
    let expected = expected_range(knob, levels, at, span, quantity, NeighbourReach::Possible)?;
    let QuantityMargins { tight, wide } = quantity.margins();
    let is_near = distance(expected, levels[at].value(quantity)) <= 1.0 + tight;
    let flattering = match (span.0 == span.1, is_near) {
        (true, true) => tight,
        (true, false) => tight.max((TIMES_SCATTER * scatter(knob, levels, at, quantity)).min(wide)),
        (false, _) => wide,
    };
    let SettingRuns { is_highest, second_setting, .. } = levels[at];
    // Of several slices, the reference may be in another.
    let below = if is_highest && second_setting.is_none() { wide } else { flattering };
    let above = if is_highest { flattering } else { wide };
    Some(NeighbourRange { quantity, expected, margins: [below, above] })
}

/// Returns the largest exponent of the setting by which a value follows it; `None` if nothing has to follow it. `load`: the power
/// at the neighbour over the lower one of both caps.
fn largest_exponent(knob: TuningKnob, quantity: GlitchQuantity, load: f64) -> Option<f64> {
    match (knob, quantity) {
        (TuningKnob::SmClockMhz | TuningKnob::MemoryClockMhz, GlitchQuantity::Duration) => Some(3.0),
        (TuningKnob::SmClockMhz | TuningKnob::MemoryClockMhz, GlitchQuantity::Power) => Some(4.0),
        (TuningKnob::PowerLimitWatts, GlitchQuantity::Duration) => Some(if load > BINDING_RATIO { 4.0 } else { 0.3 }),
        (TuningKnob::PowerLimitWatts, GlitchQuantity::Power) if load > BINDING_RATIO => Some(1.25),
        (TuningKnob::PowerLimitWatts, GlitchQuantity::Power) => Some(if load > IDLE_RATIO { 0.6 } else { 0.3 }),
        (TuningKnob::BatchSize, _) => None,
    }
}

/// Returns what the levels beside a span leave for the time or power of one in it; `None` if there are too few.
fn expected_range(
    knob: TuningKnob,
    levels: &[SettingRuns],
    at: usize,
    (first, last): LevelSpan,
    quantity: GlitchQuantity,
    reach: NeighbourReach,
) -> Option<[f64; 2]> {
    if !is_outnumbered(levels, (first, last)) {
        return None;
    }
    let own = &levels[at];
    let same = |level: &&SettingRuns| level.second_setting == own.second_setting;
    let higher = first.checked_sub(1).and_then(|index| levels.get(index)).filter(same);
    let lower = levels.get(last + 1).filter(same);
    let mut expected: Option<[f64; 2]> = None;
    for (neighbour, is_higher) in higher.map(|level| (level, true)).into_iter().chain(lower.map(|level| (level, false))) {
        let [low, high] = [neighbour.setting.min(own.setting), neighbour.setting.max(own.setting)];
        let exponent = largest_exponent(knob, quantity, neighbour.power / low)?;
        // A cap may be near the idle power of the board: then the time below it has no bound.
        let is_unbounded = is_higher && (knob, quantity) == (TuningKnob::PowerLimitWatts, GlitchQuantity::Duration);
        let ratio = if is_unbounded && reach == NeighbourReach::Possible { f64::INFINITY } else { (high / low).powf(exponent) };
        let value = neighbour.value(quantity);
        // As the setting falls, time rises and power falls.
        let is_least = is_higher == (quantity == GlitchQuantity::Duration);
        let [from, to] = if is_least { [value, value * ratio] } else { [value / ratio, value] };
        expected = Some(expected.map_or([from, to], |[least, most]| [from.max(least), to.min(most)]));
    }
    // A value between two neighbours that contradict each other is no contradiction.
    expected.map(|[from, to]| [from.min(to), from.max(to)])
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

    /// Returns a sweep of many settings: factors on time and on power.
    fn long_sweep(highest: f64, step: f64, slower: f64, drawn: f64) -> Vec<SettingMeasurement> {
        let setting = |index: u64| highest - step * index as f64;
        let seconds = |index: u64| 10.0 * (highest / setting(index)).powf(slower);
        let watts = |index: u64| 0.97 * highest * (setting(index) / highest).powf(drawn);
        (0..12).map(|index| row(index + 1, setting(index), seconds(index), watts(index))).collect()
    }

    /// Returns a sweep of clocks with noise.
    fn noisy_clocks() -> Vec<SettingMeasurement> {
        let noise = [0.002, -0.003, 0.001, 0.003, -0.002, 0.0, 0.003, -0.001, -0.003, 0.002, 0.001, -0.002];
        let mut rows = long_sweep(1400.0, 50.0, 0.9, 1.8);
        for (m, noise) in rows.iter_mut().zip(noise) {
            let watts = m.energy_joules / m.duration_seconds * (1.0 - noise);
            m.duration_seconds *= 1.0 + noise;
            m.energy_joules = watts * m.duration_seconds;
        }
        rows
    }

    #[test]
    fn a_clock_off_the_curve_of_the_others_goes_also_at_either_end() {
        let found = |rows: &[SettingMeasurement]| {
            let checked = find_glitches(TuningKnob::SmClockMhz, rows);
            checked.glitches.iter().map(|glitch| glitch.row).collect::<Vec<u64>>()
        };
        assert_eq!(found(&noisy_clocks()), [0_u64; 0]);
        for (index, time_factor, power_factor) in [
            (0, 1.12, 1.0),
            (0, 0.85, 1.0),
            (0, 1.0, 1.12),
            (5, 0.9, 1.0),
            (5, 1.2, 1.0),
            (5, 1.0, 0.93),
            // The rows beside it are sound, although they draw less.
            (5, 1.0, 1.2),
            (11, 0.9, 1.0),
            (11, 1.0, 0.9),
            (11, 1.0, 0.7),
        ] {
            let mut rows = noisy_clocks();
            let m = &mut rows[index];
            m.duration_seconds *= time_factor;
            m.energy_joules *= time_factor * power_factor;
            assert_eq!(found(&rows), [index as u64 + 1], "row {index} times {time_factor}, {power_factor}");
            if index == 5 && power_factor < 1.0 {
                assert_eq!(found(&rows[..8]), [0_u64; 0], "of few settings nothing is known to be smooth");
            }
        }
        let mut rows = noisy_clocks();
        (rows[0].duration_seconds, rows[0].energy_joules) = (rows[1].duration_seconds, rows[1].energy_joules);
        assert_eq!(found(&rows), [0_u64; 0], "the board's limit held the highest clock to the next one");
        // Volts fall with the clock down to half of the highest one.
        let volts = |clock: f64| (clock / 2100.0).max(0.5);
        let floor = |index: u64| {
            let clock = 2100.0 - 150.0 * index as f64;
            row(index + 1, clock, 21_000.0 / clock, 60.0 + 300.0 * clock / 2100.0 * volts(clock).powi(2))
        };
        let mut rows: Vec<SettingMeasurement> = (0..9).map(floor).collect();
        assert_eq!(found(&rows), [0_u64; 0], "the lowest clock is below the floor of the voltage");
        rows[8].energy_joules = 1.6 * rows[7].energy_joules;
        assert_eq!(found(&rows), [9], "it draws more than the next one");
    }

    #[test]
    fn the_median_of_three_runs_is_compared_with_no_curve() {
        let mut rows = noisy_clocks();
        rows[11].energy_joules *= 0.9;
        assert_eq!(find_glitches(TuningKnob::SmClockMhz, &rows).glitches.len(), 1);
        let again = |index: u64| SettingMeasurement { row: 12 + index, ..rows[11] };
        rows.extend([again(1), again(2)]);
        assert!(find_glitches(TuningKnob::SmClockMhz, &rows).glitches.is_empty(), "the runs agree");
    }

    #[test]
    fn a_range_without_an_upper_end_is_null_in_json_and_read_again() {
        let mut rows = caps();
        rows[5] = row(6, 100.0, 8.0, 99.0);
        let glitches = find_glitches(TuningKnob::PowerLimitWatts, &rows).glitches;
        assert_eq!(glitches[0].expected[1], f64::INFINITY, "{glitches:?}");
        let json = serde_json::to_string(&glitches).unwrap();
        assert!(json.contains(",null]"), "{json}");
        assert_eq!(serde_json::from_str::<Vec<Glitch>>(&json).unwrap(), glitches);
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

    /// Caps of published sweeps: of a board that is busy, and of two that draw little at every cap.
    fn published_caps() -> [Vec<SettingMeasurement>; 3] {
        let caps = [250.0, 225.0, 200.0, 175.0, 150.0, 125.0, 100.0];
        let busy = [(7.61, 187.7), (7.67, 178.4), (7.84, 159.2), (8.21, 137.9), (8.49, 131.0), (9.22, 109.3), (11.28, 86.9)];
        let idle = [(998.5, 39.0), (941.5, 38.1), (986.0, 37.8), (886.2, 37.7), (894.6, 38.2), (917.1, 38.3), (1025.7, 39.0)];
        let even = [(64.7, 40.1), (61.3, 37.9), (60.5, 38.5), (61.3, 37.2), (61.8, 38.4), (60.5, 38.1), (61.2, 38.4)];
        [busy, idle, even].map(|rows| {
            let rows = caps.iter().zip(rows).zip(1..);
            rows.map(|((cap, (seconds, watts)), index)| row(index, *cap, seconds, watts)).collect()
        })
    }

    #[test]
    fn a_row_that_looks_better_than_it_is_goes_and_a_sound_one_beside_it_stays() {
        // By the place of the cap: times the time, and times the power.
        let cases = [
            (0, 6, 0.7, 1.0),
            (0, 6, 1.0, 0.75),
            (0, 2, 1.0, 0.75),
            (0, 5, 1.0, 0.75),
            (1, 5, 1.0, 0.75),
            (1, 6, 1.0, 0.75),
            (2, 6, 1.0, 0.75),
            (2, 5, 1.0, 0.75),
            (2, 3, 0.7, 1.0),
            (2, 0, 1.0, 1.4),
            (2, 0, 1.6, 1.0),
        ];
        for rows in published_caps() {
            let checked = find_glitches(TuningKnob::PowerLimitWatts, &rows);
            assert!(checked.glitches.is_empty() && !checked.irregular, "{checked:?}");
        }
        for (sweep, place, time_factor, power_factor) in cases {
            let mut rows = published_caps()[sweep].clone();
            let m = &mut rows[place];
            let watts = m.energy_joules / m.duration_seconds * power_factor;
            m.duration_seconds *= time_factor;
            m.energy_joules = watts * m.duration_seconds;
            let checked = find_glitches(TuningKnob::PowerLimitWatts, &rows);
            let found: Vec<u64> = checked.glitches.iter().map(|glitch| glitch.row).collect();
            assert_eq!(found, [rows[place].row], "sweep {sweep}, row {place} times {time_factor}, {power_factor}: {checked:?}");
        }
    }

    #[test]
    fn of_two_settings_that_nothing_decides_between_both_go() {
        let mut rows = published_caps()[0].clone();
        // Much slower at 125 W than at 100 W, which a cap near what the board draws when idle may be: either may be wrong.
        rows[5] = row(6, 125.0, 9.22 * 1.6, 109.3);
        let found = find_glitches(TuningKnob::PowerLimitWatts, &rows).glitches;
        assert_eq!(found.iter().map(|glitch| glitch.row).collect::<Vec<_>>(), [6, 7], "{found:?}");
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
