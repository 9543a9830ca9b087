//! A choice that rests on a single run that its neighbours contradict: the run is left out, and the choice made without it.
//!
//! Only the settings that are chosen and the reference are compared, so that the limits can be far tighter than those of
//! [`super::glitch`]: what no choice rests on does no harm. Along a clock or a cap, time and power have a shape. As the setting
//! falls, time rises, and ever faster; power falls, and ever slower, except where a limit begins or ends to hold the clock. So the
//! settings on either side, as logarithms, leave a least value: the lines through the next two, up to the line between both sides.
//! The distance below it has to be more than 4 %, and more than the others have from theirs. A power that is too low counts if the
//! energy is too low with it.
//!
//! With up to eight settings, a bend looks like scatter. A power below that of the next lower setting contradicts it whatever the bends
//! are, if it is 3 % below, and the others show no such thing.
//!
//! A cap that the board exceeds is not in force. Such settings are no evidence about others. Of their own, only a time below that of
//! the next higher cap is a contradiction.
//!
//! Every saving is measured against the reference. It contradicts the settings below it if its time or its power is above what
//! they leave, and its energy is, too: a limit or a knee between two clocks leaves the energy as it is, or lowers it. Between two caps
//! that bind it may raise it, as time flattens and power is the cap: a wide step has room for that. The distance has to be more than
//! 5.5 %, see [`super::reference_run`].
//!
//! The median of three runs is no single run. Of two, the one that is too low goes if the other one is not.
//!
//! Of 155 published sweeps, at six limits each, none has a choice that a neighbour contradicts so.

use super::glitch::{Glitch, GlitchQuantity, NeighbourReach};
use super::reference_run::{ReferenceExcess, reference_excess};
use super::{CAP_NOT_KEPT_RATIO, SettingChoice, SettingChoices, SettingMeasurement, TuningKnob, TuningKnobs};
use crate::stats::median;

/// Fewer settings of a sweep show no shape.
const SETTINGS_MIN: usize = 5;
/// A median of so many runs does not rest on one of them.
const MEDIAN_RUNS: usize = 3;
/// Least distance of a contradiction, as a logarithm.
const DISTANCE_MIN: f64 = 0.04;
/// It is more than so many times the largest distance of the other settings, and the second largest: one of them may be off itself.
const TIMES_LARGEST: f64 = 2.0;
const TIMES_SECOND: f64 = 3.0;
/// A cap may begin to hold a board that draws more than this part of it.
const CAP_LOAD_RATIO: f64 = 0.8;
/// Least distance of a power below that of the next lower setting, as a logarithm, and least multiple of the largest such one of the
/// others. No choice of a published sweep has more than 0.011, but for boards that draw little at every cap.
const INVERSION_MIN: f64 = 0.03;
const TIMES_INVERSION: f64 = 3.0;
/// Of more settings, bends are no scatter.
const INVERSION_SETTINGS_MAX: usize = 8;
/// If the lowest cap leaves more than this part of the power of the next one, that one may be what is off: its time alone is no
/// contradiction.
const SAME_POWER_RATIO: f64 = 0.9;
/// Least distance of a time from the others if the setting beside it may be what is off, as a logarithm.
const NEXT_DISTANCE_MIN: f64 = 0.02;

const QUANTITIES: [GlitchQuantity; 2] = [GlitchQuantity::Duration, GlitchQuantity::Power];

/// A setting of a sweep; its values are medians over its runs, as logarithms.
#[derive(Debug, Clone)]
pub(super) struct SweepSetting {
    pub(super) setting: f64,
    pub(super) duration: f64,
    pub(super) power: f64,
    pub(super) runs: Vec<SettingMeasurement>,
}

impl SweepSetting {
    pub(super) fn value(&self, quantity: GlitchQuantity) -> f64 {
        match quantity {
            GlitchQuantity::Duration => self.duration,
            GlitchQuantity::Power => self.power,
        }
    }
}

/// Settings along one knob, the highest first, and the place of the one that is compared. Of the others, only those in force.
#[derive(Debug)]
struct ChosenSetting {
    knob: TuningKnob,
    sweep: Vec<SweepSetting>,
    at: usize,
    /// The board kept the cap. Always true of a clock, and if no cap was kept: then the power is of several boards.
    is_in_force: bool,
}

/// The values that the settings beside one leave for it, as logarithms.
#[derive(Debug, Clone, Copy)]
struct ShapeRange {
    low: f64,
    high: f64,
}

impl ShapeRange {
    /// Returns the distance of a value from the range; 0 inside.
    fn distance(self, value: f64) -> f64 {
        (self.low - value).max(value - self.high).max(0.0)
    }
}

/// Returns the run that a choice rests on, and that its neighbours contradict; `None` if there is none.
pub(super) fn find_contradicted_run(
    knobs: TuningKnobs,
    measurements: &[SettingMeasurement],
    choices: &SettingChoices,
) -> Option<Glitch> {
    let place = |choice: &SettingChoice| (choice.setting, choice.second_setting);
    let all = [&choices.constrained, &choices.min_energy, &choices.min_edp, &choices.min_ed2p, &choices.knee];
    let mut chosen = all.into_iter().filter(|choice| place(choice) != place(&choices.reference));
    chosen
        .find_map(|choice| contradicted_run(&sweep_of(knobs, measurements, choice)?))
        .or_else(|| reference_run(&sweep_of(knobs, measurements, &choices.reference)?, NeighbourReach::Possible))
}

/// Returns the single run of the reference if it is above what the settings below usually leave, though no more than is possible. The
/// next one has to agree with those below it: else that one is off.
pub(super) fn find_doubtful_reference(
    knobs: TuningKnobs,
    measurements: &[SettingMeasurement],
    choices: &SettingChoices,
) -> Option<Glitch> {
    let reference = sweep_of(knobs, measurements, &choices.reference)?;
    let run = reference_run(&reference, NeighbourReach::Usual)?;
    is_highest_off(reference.knob, &reference.sweep, 1, run.quantity).then_some(run)
}

/// Returns the sweep of the first knob that a choice is in, or that of the second one if the first has too few settings. `None` if
/// neither has enough, or if the second one is a batch size, which nothing has to follow.
fn sweep_of(knobs: TuningKnobs, measurements: &[SettingMeasurement], choice: &SettingChoice) -> Option<ChosenSetting> {
    let first = || {
        let beside = measurements.iter().filter(|m| m.second_setting == choice.second_setting);
        chosen_setting(knobs.first, choice.setting, beside.map(|m| (m.setting, *m)).collect())
    };
    let second = || {
        let knob = knobs.second.filter(|knob| *knob != TuningKnob::BatchSize)?;
        let beside = measurements.iter().filter(|m| m.setting == choice.setting);
        chosen_setting(knob, choice.second_setting?, beside.filter_map(|m| Some((m.second_setting?, *m))).collect())
    };
    first().or_else(second)
}

/// Returns the medians by setting, the highest first, and the place of one; `None` if there are too few.
fn chosen_setting(knob: TuningKnob, chosen: f64, mut runs: Vec<(f64, SettingMeasurement)>) -> Option<ChosenSetting> {
    runs.sort_by(|a, b| b.0.total_cmp(&a.0));
    let by_setting: Vec<&[(f64, SettingMeasurement)]> = runs.chunk_by(|a, b| a.0 == b.0).collect();
    let at = by_setting.iter().position(|runs| runs.iter().all(|(setting, _)| *setting == chosen))?;
    let sweep: Vec<SweepSetting> = by_setting.into_iter().filter_map(sweep_setting).collect();
    (sweep.len() >= SETTINGS_MIN).then(|| settings_in_force(knob, sweep, at))
}

/// Leaves out the other settings whose cap was not in force.
fn settings_in_force(knob: TuningKnob, sweep: Vec<SweepSetting>, at: usize) -> ChosenSetting {
    let is_kept = |setting: &SweepSetting| {
        knob != TuningKnob::PowerLimitWatts || setting.power <= setting.setting + CAP_NOT_KEPT_RATIO.ln_1p()
    };
    if !sweep.iter().any(is_kept) {
        return ChosenSetting { knob, sweep, at, is_in_force: true };
    }
    let is_in_force = is_kept(&sweep[at]);
    let kept_above = sweep[..at].iter().filter(|setting| is_kept(setting)).count();
    let used = sweep.into_iter().enumerate().filter(|(index, setting)| *index == at || is_kept(setting));
    ChosenSetting { knob, sweep: used.map(|(_, setting)| setting).collect(), at: kept_above, is_in_force }
}

fn sweep_setting(runs: &[(f64, SettingMeasurement)]) -> Option<SweepSetting> {
    let middle = |quantity| median(&mut runs.iter().map(|(_, m)| run_value(m, quantity)).collect::<Vec<_>>());
    Some(SweepSetting {
        setting: runs.first()?.0.ln(),
        duration: middle(GlitchQuantity::Duration)?,
        power: middle(GlitchQuantity::Power)?,
        runs: runs.iter().map(|(_, m)| *m).collect(),
    })
}

/// Returns the time or the power of a run, as a logarithm.
fn run_value(run: &SettingMeasurement, quantity: GlitchQuantity) -> f64 {
    match quantity {
        GlitchQuantity::Duration => run.duration_seconds.ln(),
        GlitchQuantity::Power => (run.energy_joules / run.duration_seconds).ln(),
    }
}

/// Returns the single run of a setting that is below what the settings beside it leave; `None` if there is none.
fn contradicted_run(chosen: &ChosenSetting) -> Option<Glitch> {
    let runs = &chosen.sweep[chosen.at].runs;
    if runs.len() >= MEDIAN_RUNS {
        return None;
    }
    let (quantity, range) = QUANTITIES.into_iter().find_map(|quantity| Some((quantity, contradiction(chosen, quantity)?)))?;
    let mut below = runs.iter().filter(|run| range.low - run_value(run, quantity) > DISTANCE_MIN);
    match (below.next(), below.next()) {
        (Some(run), None) => Some(Glitch {
            row: run.row,
            setting: run.setting,
            second_setting: run.second_setting,
            quantity,
            value: run_value(run, quantity).exp(),
            expected: [range.low.exp(), range.high.exp()],
            is_single_run: true,
        }),
        _ => None,
    }
}

/// Returns the range that the settings beside a chosen one leave, if it is below it by more than the others are off theirs.
fn contradiction(chosen: &ChosenSetting, quantity: GlitchQuantity) -> Option<ShapeRange> {
    let ChosenSetting { knob, sweep, at, is_in_force } = chosen;
    let own = sweep.get(*at)?;
    let range = if *is_in_force { shape_range(*knob, sweep, *at, quantity) } else { unkept_cap_range(sweep, *at, quantity) }?;
    let mut below = range.low - own.value(quantity);
    if quantity == GlitchQuantity::Power
        && let Some(duration) = duration_range(sweep, *at)
    {
        below = below.min(duration.low + range.low - own.duration - own.power);
    }
    let is_beside_off = || match quantity {
        GlitchQuantity::Duration => is_next_cap_off(*knob, sweep, *at) || is_highest_off(*knob, sweep, *at, quantity),
        GlitchQuantity::Power => *knob == TuningKnob::PowerLimitWatts && is_highest_off(*knob, sweep, *at, quantity),
    };
    if below <= DISTANCE_MIN || is_beside_off() {
        return None;
    }
    let is_inverted = quantity == GlitchQuantity::Power && sweep.len() <= INVERSION_SETTINGS_MAX && is_power_inverted(sweep, *at);
    (is_inverted || below > scatter_margin(*knob, &without(sweep, *at), quantity)).then_some(range)
}

/// Returns whether the power of a setting, and its energy with it, is below that of the next lower one, and the others have no such rise.
fn is_power_inverted(sweep: &[SweepSetting], at: usize) -> bool {
    let (Some(own), Some(lower), Some(duration)) = (sweep.get(at), sweep.get(at + 1), duration_range(sweep, at)) else {
        return false;
    };
    let below = (lower.power - own.power).min(lower.power + duration.low - own.power - own.duration);
    let rises = without(sweep, at).windows(2).map(|pair| pair[1].power - pair[0].power).fold(0.0, f64::max);
    below > INVERSION_MIN.max(TIMES_INVERSION * rises)
}

/// Returns the least distance of a contradiction to settings that contradict each other, too.
fn scatter_margin(knob: TuningKnob, rest: &[SweepSetting], quantity: GlitchQuantity) -> f64 {
    let distance = |index: usize| Some(shape_range(knob, rest, index, quantity)?.distance(rest[index].value(quantity)));
    let mut distances: Vec<f64> = (1..rest.len()).filter_map(distance).collect();
    distances.sort_by(|a, b| b.total_cmp(a));
    let largest = distances.first().copied().unwrap_or(0.0);
    let second = distances.get(1).copied().unwrap_or(largest);
    (TIMES_LARGEST * largest).max(TIMES_SECOND * second)
}

/// Returns the single run of the reference that is above what the settings below it leave; `None` if there is none.
fn reference_run(reference: &ChosenSetting, reach: NeighbourReach) -> Option<Glitch> {
    let ChosenSetting { knob, sweep, at: 0, .. } = reference else { return None };
    let own = sweep.first()?;
    if own.runs.len() >= MEDIAN_RUNS {
        return None;
    }
    let rest = without(sweep, 0);
    let exceeds = |excess: &ReferenceExcess| excess.above > scatter_margin(*knob, &rest, excess.quantity);
    let excess = QUANTITIES.into_iter().filter_map(|quantity| reference_excess(*knob, sweep, quantity, reach)).find(exceeds)?;
    let mut above = own.runs.iter().filter(|run| run_value(run, excess.quantity) - excess.most > DISTANCE_MIN);
    match (above.next(), above.next()) {
        (Some(run), None) => Some(Glitch {
            row: run.row,
            setting: run.setting,
            second_setting: run.second_setting,
            quantity: excess.quantity,
            value: run_value(run, excess.quantity).exp(),
            expected: [0.0, excess.most.exp()],
            is_single_run: true,
        }),
        _ => None,
    }
}

/// Returns whether the time of the lowest cap agrees with the others if the next one is left out, and both drew about the same.
fn is_next_cap_off(knob: TuningKnob, sweep: &[SweepSetting], at: usize) -> bool {
    let Some(next) = at.checked_sub(1) else { return false };
    let is_lowest_cap = knob == TuningKnob::PowerLimitWatts && at + 1 == sweep.len();
    if !is_lowest_cap || sweep[at].power <= sweep[next].power + SAME_POWER_RATIO.ln() {
        return false;
    }
    let range = duration_range(&without(sweep, next), next);
    range.is_none_or(|range| range.low - sweep[at].duration < NEXT_DISTANCE_MIN)
}

/// Returns whether the setting below the highest one agrees with the others if the highest one is left out: that one is compared with
/// nothing above it.
fn is_highest_off(knob: TuningKnob, sweep: &[SweepSetting], at: usize, quantity: GlitchQuantity) -> bool {
    let agrees = |range: ShapeRange| range.low - sweep[at].value(quantity) < NEXT_DISTANCE_MIN;
    at == 1 && shape_range(knob, &without(sweep, 0), 0, quantity).is_none_or(agrees)
}

fn without(sweep: &[SweepSetting], at: usize) -> Vec<SweepSetting> {
    [&sweep[..at], &sweep[at + 1..]].concat()
}

fn shape_range(knob: TuningKnob, sweep: &[SweepSetting], at: usize, quantity: GlitchQuantity) -> Option<ShapeRange> {
    match quantity {
        GlitchQuantity::Duration => duration_range(sweep, at),
        GlitchQuantity::Power => power_range(knob, sweep, at),
    }
}

/// Returns the value at a setting by the line through those at two others.
fn line(sweep: &[SweepSetting], quantity: GlitchQuantity, through: [usize; 2], at: usize) -> f64 {
    let [first, second] = through.map(|index| (sweep[index].setting, sweep[index].value(quantity)));
    second.1 + (second.1 - first.1) / (second.0 - first.0) * (sweep[at].setting - second.0)
}

/// Returns what the next higher cap leaves for one that the board exceeded: at least its time.
fn unkept_cap_range(sweep: &[SweepSetting], at: usize, quantity: GlitchQuantity) -> Option<ShapeRange> {
    let higher = sweep.get(at.checked_sub(1)?)?;
    (quantity == GlitchQuantity::Duration).then_some(ShapeRange { low: higher.duration, high: f64::INFINITY })
}

/// Returns what the others leave for the time of a setting: at least that of the next higher one, and no bend away from the lines
/// beside it.
fn duration_range(sweep: &[SweepSetting], at: usize) -> Option<ShapeRange> {
    let through = |first: usize, second: usize| line(sweep, GlitchQuantity::Duration, [first, second], at);
    let is_lowest = at + 1 == sweep.len();
    let higher = at.checked_sub(1).map(|index| sweep[index].duration);
    let from_higher = (at >= 2).then(|| {
        let near = through(at - 2, at - 1);
        // Beyond the end, one steep step is no slope.
        if is_lowest && at >= 3 { near.min(through(at - 3, at - 1)) } else { near }
    });
    let from_lower = (at + 2 < sweep.len()).then(|| through(at + 2, at + 1));
    let low = [higher, from_higher, from_lower].into_iter().flatten().reduce(f64::max)?;
    Some(match higher {
        Some(higher) if !is_lowest => {
            let between = through(at - 1, at + 1);
            let low = low.min(between.max(higher));
            ShapeRange { low, high: between.max(low) }
        }
        _ => ShapeRange { low, high: f64::INFINITY },
    })
}

/// Returns what the others leave for the power of a setting: at least that of the next lower one, and no bend away from the lines
/// beside it. A cap may begin to hold the board at the lowest one: from there power falls as the cap. A cap that is kept leaves no more
/// than itself.
fn power_range(knob: TuningKnob, sweep: &[SweepSetting], at: usize) -> Option<ShapeRange> {
    let ShapeRange { low, high } = power_shape(knob, sweep, at)?;
    let SweepSetting { setting, power, .. } = sweep[at];
    let is_bound = knob == TuningKnob::PowerLimitWatts && power <= setting + CAP_NOT_KEPT_RATIO.ln_1p();
    Some(ShapeRange { low: if is_bound { low.min(setting) } else { low }, high })
}

fn power_shape(knob: TuningKnob, sweep: &[SweepSetting], at: usize) -> Option<ShapeRange> {
    let through = |first: usize, second: usize| line(sweep, GlitchQuantity::Power, [first, second], at);
    let lower = sweep.get(at + 1).map(|lower| lower.power);
    let Some(higher) = at.checked_sub(1).map(|index| sweep[index].power) else {
        return Some(ShapeRange { low: lower?, high: f64::INFINITY });
    };
    let from_higher = (at >= 2).then(|| through(at - 2, at - 1));
    let Some(lower) = lower else {
        let low = from_higher?.min(higher);
        let setting = sweep[at].setting;
        let held = (higher + setting - sweep[at - 1].setting).max(setting + CAP_LOAD_RATIO.ln());
        let low = if knob == TuningKnob::PowerLimitWatts { low.min(held) } else { low };
        return Some(ShapeRange { low, high: higher });
    };
    let from_lower = (at + 2 < sweep.len()).then(|| through(at + 2, at + 1));
    let between = through(at - 1, at + 1);
    let beside = [from_higher, from_lower].into_iter().flatten().reduce(f64::max);
    let low = lower.max(beside.map_or(between, |beside| beside.min(between)));
    Some(ShapeRange { low, high: low.max(between).max(higher) })
}

#[cfg(test)]
mod tests {
    use super::super::{ChoiceLimits, ChoiceMethod, ChoiceObjective, ChoiceRefusal, RobustSettings, choose};
    use super::*;

    const CAPS: TuningKnob = TuningKnob::PowerLimitWatts;
    const CLOCKS: TuningKnob = TuningKnob::SmClockMhz;

    fn row(index: u32, setting: f64, seconds: f64, watts: f64) -> SettingMeasurement {
        // Noise of 0.2 %.
        let noise = |index: u32| (f64::from(index * 7 % 5) - 2.0) * 0.001;
        let (seconds, watts) = (seconds * (1.0 + noise(index)), watts * (1.0 - noise(index + 3)));
        let energy_joules = seconds * watts;
        SettingMeasurement { setting, second_setting: None, duration_seconds: seconds, energy_joules, row: u64::from(index) + 1 }
    }

    /// Returns a sweep of clocks with a floor of the voltage, or of caps of which the upper ones hold nothing.
    fn sweep(knob: TuningKnob, count: u32) -> Vec<SettingMeasurement> {
        let clock = |index: u32, part: f64| {
            let (phi, volts) = (1.0 - 0.5 * part, (1.0 - 0.3 * part).max(0.6));
            row(index, 1400.0 * phi, 100.0 * (0.7 / phi + 0.3), 70.0 + 260.0 * phi * volts * volts)
        };
        let cap = |index: u32, part: f64| {
            let cap = 300.0 - 150.0 * part;
            let watts = cap.min(230.0);
            row(index, cap, 10.0 * (0.75 / ((watts - 60.0) / 170.0).powf(0.45) + 0.25), watts)
        };
        let of = |index: u32| {
            let part = f64::from(index) / f64::from(count - 1);
            if knob == CLOCKS { clock(index, part) } else { cap(index, part) }
        };
        (0..count).map(of).collect()
    }

    /// Returns a row with its time and its power times these.
    fn scaled(m: SettingMeasurement, seconds: f64, watts: f64) -> SettingMeasurement {
        let (duration_seconds, energy_joules) = (m.duration_seconds * seconds, m.energy_joules * seconds * watts);
        SettingMeasurement { duration_seconds, energy_joules, ..m }
    }

    fn limits(max_slowdown_ratio: f64) -> ChoiceLimits {
        let (min_setting_ratio, reference_second_setting) = (None, None);
        ChoiceLimits { max_slowdown_ratio, min_setting_ratio, objective: ChoiceObjective::Energy, reference_second_setting }
    }

    fn measured(knobs: impl Into<TuningKnobs>, rows: &[SettingMeasurement]) -> SettingChoices {
        choose(knobs, rows, &limits(1.0), ChoiceMethod::Measured).unwrap()
    }

    fn single_runs(choices: &SettingChoices) -> Vec<u64> {
        choices.glitches.iter().filter(|glitch| glitch.is_single_run).map(|glitch| glitch.row).collect()
    }

    /// Makes a row better than it is, by time and by power, and compares what is claimed with the claim without it.
    fn claims_no_more_than_the_others(knob: TuningKnob, count: u32, method: ChoiceMethod, max: f64, factors: &[f64]) {
        let rows = sweep(knob, count);
        let saving = |rows: &[SettingMeasurement]| {
            choose(knob, rows, &limits(max), method).ok().map(|choices| choices.constrained.saving_ratio)
        };
        let clean = choose(knob, &rows, &limits(max), method).unwrap();
        assert!(clean.glitches.is_empty(), "{knob:?} {count}: {:?}", clean.glitches);
        for place in [count / 2, count - 1].map(|place| place as usize) {
            let mut others = rows.clone();
            others.remove(place);
            // The robust method needs five settings.
            let most = saving(&others).unwrap_or(clean.constrained.saving_ratio);
            for (seconds, watts) in factors.iter().flat_map(|&factor| [(factor, 1.0), (1.0, factor)]) {
                let mut wrong = rows.clone();
                wrong[place] = scaled(rows[place], seconds, watts);
                let got = saving(&wrong);
                let what = format!("{knob:?} {count} {method:?} {max}: row {place} times {seconds}, {watts}");
                assert!(got.is_none_or(|got| got <= most + 0.03), "{what}: {got:?}, others {most}");
            }
        }
    }

    #[test]
    fn one_row_that_is_off_claims_at_most_what_the_others_claim() {
        for knob in [CLOCKS, CAPS] {
            for count in [5, 7, 9, 12] {
                // Of five settings, a few percent may be their bend.
                let factors = &[0.92, 0.88, 0.8, 0.7][usize::from(count == 5)..];
                for max in [0.1, 1.0] {
                    claims_no_more_than_the_others(knob, count, ChoiceMethod::Measured, max, factors);
                }
                let robust = ChoiceMethod::Robust(RobustSettings::default());
                claims_no_more_than_the_others(knob, count, robust, 1.0, &[0.88, 0.7]);
            }
        }
    }

    #[test]
    fn a_reference_that_is_off_makes_no_claim() {
        for (knob, count) in [CLOCKS, CAPS].into_iter().flat_map(|knob| [5, 7, 9, 12].map(|count| (knob, count))) {
            let rows = sweep(knob, count);
            let clean = measured(knob, &rows);
            assert!(clean.glitches.is_empty() && clean.doubtful_reference.is_none(), "{knob:?} {count}: {clean:?}");
            for (factor, is_time) in [1.08, 1.12, 1.2, 1.3].into_iter().flat_map(|factor| [(factor, true), (factor, false)]) {
                let mut wrong = rows.clone();
                wrong[0] = if is_time { scaled(rows[0], factor, 1.0) } else { scaled(rows[0], 1.0, factor) };
                for method in [ChoiceMethod::Measured, ChoiceMethod::Robust(RobustSettings::default())] {
                    let what = format!("{knob:?} {count} {method:?} times {factor}, time {is_time}");
                    match choose(knob, &wrong, &limits(1.0), method) {
                        Err(refusal) => assert!(matches!(refusal, ChoiceRefusal::Reference { .. }), "{what}: {refusal}"),
                        // The voltage may rise between the two highest clocks.
                        Ok(found) => {
                            let is_doubtful = found.doubtful_reference.is_some_and(|run| run.row == 1);
                            assert!(knob == CLOCKS && !is_time && is_doubtful, "{what}: {found:?}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn of_two_runs_of_the_reference_the_slow_one_goes() {
        let rows = sweep(CAPS, 9);
        let slow = scaled(rows[0], 1.25, 1.0);
        let again = |m: SettingMeasurement, row: u64| SettingMeasurement { row, ..m };
        let with = |runs: &[SettingMeasurement]| [runs, &rows[1..]].concat();
        let found = measured(CAPS, &with(&[slow, again(rows[0], 10)]));
        assert_eq!((single_runs(&found), found.constrained), (vec![1], measured(CAPS, &rows).constrained));
        assert_eq!(found.glitches[0].expected[0], 0.0);
        assert!(found.glitches[0].words().ends_with("s or less"), "{}", found.glitches[0].words());
        // The median of three rests on none of them.
        assert_eq!(single_runs(&measured(CAPS, &with(&[slow, again(slow, 10), again(rows[0], 11)]))), [0_u64; 0]);
    }

    /// Returns caps of which the lowest ones are below what the board can draw.
    fn caps_with_a_floor(count: u32, floor_watts: f64) -> Vec<SettingMeasurement> {
        let of = |index: u32| {
            let cap = 300.0 - 180.0 * f64::from(index) / f64::from(count - 1);
            let watts = cap.clamp(floor_watts, 260.0);
            row(index, cap, 100.0 * (0.6 / ((watts - 45.0) / 215.0).powf(0.6) + 0.4), watts)
        };
        (0..count).map(of).collect()
    }

    #[test]
    fn caps_that_the_board_cannot_keep_are_no_contradiction() {
        for (count, floor) in [6, 8, 10].into_iter().flat_map(|count| [140.0, 150.0, 160.0, 175.0].map(|floor| (count, floor))) {
            let rows = caps_with_a_floor(count, floor);
            for max in [0.05, 0.1, 0.3, 1.0] {
                let found = choose(CAPS, &rows, &limits(max), ChoiceMethod::Measured).unwrap();
                assert!(found.glitches.is_empty(), "{count} {floor} {max}: {:?}", found.glitches);
            }
            // One that is faster than the next higher cap is.
            let lowest = rows.len() - 1;
            let mut wrong = rows.clone();
            wrong[lowest] = scaled(rows[lowest], 0.85, 1.0);
            let clean = measured(CAPS, &rows);
            let found = measured(CAPS, &wrong);
            assert!(found.constrained.saving_ratio <= clean.constrained.saving_ratio + 0.03, "{count} {floor}: {found:?}");
        }
    }

    #[test]
    fn of_two_runs_the_one_that_is_off_goes_and_runs_that_agree_stay() {
        let rows = sweep(CAPS, 9);
        let lowest = rows[8];
        let wrong = scaled(lowest, 0.88, 1.0);
        let again = |m: SettingMeasurement, row: u64| SettingMeasurement { row, ..m };
        for (runs, expected) in [
            (vec![wrong], vec![9]),
            (vec![wrong, again(lowest, 10)], vec![9]),
            (vec![wrong, again(wrong, 10)], vec![]),
            (vec![wrong, again(wrong, 10), again(lowest, 11)], vec![]),
        ] {
            let all = [&rows[..8], &runs[..]].concat();
            assert_eq!(single_runs(&measured(CAPS, &all)), expected, "{runs:?}");
        }
    }

    #[test]
    fn a_slow_first_run_does_not_put_the_blame_on_the_one_beside_it() {
        let clocks = [1400.0, 1260.0, 1130.0, 1000.0, 880.0, 760.0];
        let watts = [300.0, 250.0, 230.0, 215.0, 205.0, 200.0];
        for (what, first, second, expected) in
            [("a slow first run", 110.0, 103.0, None), ("a fast second run", 100.0, 94.0, Some(2))]
        {
            let seconds = [first, second, 107.0, 113.0, 121.0, 133.0];
            let of = |((index, clock), (seconds, watts))| (clock, row(index, clock, seconds, watts));
            let rows = (0..).zip(clocks).zip(seconds.into_iter().zip(watts)).map(of).collect();
            let chosen = chosen_setting(CLOCKS, 1260.0, rows).unwrap();
            assert_eq!(contradicted_run(&chosen).map(|run| run.row), expected, "{what}");
        }
    }

    fn table<const COUNT: usize>(rows: [(f64, f64, f64); COUNT]) -> Vec<SettingMeasurement> {
        let of = |(index, (setting, duration_seconds, watts)): (u64, (f64, f64, f64))| {
            let energy_joules = duration_seconds * watts;
            SettingMeasurement { setting, second_setting: None, duration_seconds, energy_joules, row: index }
        };
        (1..).zip(rows).map(of).collect()
    }

    /// Returns five clocks; the board's own limit holds the upper ones.
    fn held_clocks(watts_at_975_mhz: f64) -> Vec<SettingMeasurement> {
        table([
            (1410.0, 144.96, 246.87),
            (1185.0, 144.72, 247.06),
            (975.0, 145.14, watts_at_975_mhz),
            (750.0, 183.45, 209.16),
            (525.0, 259.21, 166.50),
        ])
    }

    #[test]
    fn a_power_below_that_of_the_next_lower_setting_is_chosen_in_no_sweep() {
        assert_eq!(single_runs(&measured(CLOCKS, &held_clocks(247.37))), [0_u64; 0]);
        for watts in [197.9, 175.0] {
            let found = measured(CLOCKS, &held_clocks(watts));
            assert!(found.glitches.iter().any(|glitch| glitch.row == 3), "{watts}: {:?}", found.glitches);
            assert!(found.constrained.saving_ratio < 0.03, "{watts}: {found:?}");
        }
        // A board that draws little at every cap: the others contradict each other, too.
        let idle = table([
            (250.0, 7.09, 36.2),
            (225.0, 7.05, 36.0),
            (200.0, 7.02, 36.3),
            (175.0, 7.02, 36.2),
            (150.0, 7.06, 34.8),
            (125.0, 7.13, 37.6),
            (100.0, 7.16, 35.5),
        ]);
        assert_eq!(single_runs(&measured(CAPS, &idle)), [0_u64; 0]);
    }

    #[test]
    fn caps_that_the_board_cannot_keep_accuse_no_lower_one() {
        // One GPU of 212 W at most, metered with 60 W of its host; and boards that exceed each cap by 5 %, or by 8 W.
        let host =
            [(300.0, 272.0), (271.0, 272.0), (243.0, 272.0), (214.0, 272.0), (186.0, 246.0), (157.0, 217.0), (129.0, 189.0)];
        let over = [300.0, 275.0, 250.0, 225.0, 200.0, 175.0].map(|cap: f64| (cap, cap * 1.052));
        let more = [200.0, 175.0, 150.0, 125.0, 100.0].map(|cap: f64| (cap, cap + 8.0));
        let row = |(cap, watts): (f64, f64)| (cap, 100.0 + (300.0 - cap) * 0.05, watts);
        for caps in [table(host.map(row)), table(over.map(row)), table(more.map(row))] {
            assert_eq!(single_runs(&measured(CAPS, &caps)), [0_u64; 0], "{caps:?}");
        }
    }

    #[test]
    fn of_the_reference_and_the_next_setting_both_are_named_if_either_may_be_off() {
        let rows = table([
            (1980.0, 128.06, 255.34),
            (1770.0, 127.22, 223.41),
            (1575.0, 128.07, 223.09),
            (1365.0, 132.96, 199.70),
            (1170.0, 149.81, 179.34),
            (960.0, 177.53, 157.91),
            (765.0, 215.17, 138.20),
        ]);
        let found = choose(CLOCKS, &rows, &limits(0.0), ChoiceMethod::Measured).unwrap();
        assert_eq!(single_runs(&found), [2]);
        assert_eq!(found.doubtful_reference.map(|run| run.row), Some(1));
    }

    #[test]
    fn a_sweep_of_either_of_two_knobs_shows_it() {
        let with_second = |rows: &[SettingMeasurement], second: f64, seconds: f64, watts: f64| {
            let place =
                move |m: &SettingMeasurement| SettingMeasurement { second_setting: Some(second), ..scaled(*m, seconds, watts) };
            rows.iter().map(place).collect::<Vec<_>>()
        };
        let clocks = sweep(CLOCKS, 7);
        let knobs = TuningKnobs { first: CLOCKS, second: Some(TuningKnob::MemoryClockMhz) };
        let mut rows = [with_second(&clocks, 1215.0, 1.0, 1.0), with_second(&clocks, 810.0, 1.01, 0.9)].concat();
        for (index, m) in (1..).zip(&mut rows) {
            m.row = index;
        }
        let clean = measured(knobs, &rows);
        assert_eq!(single_runs(&clean), [0_u64; 0]);
        rows[10] = scaled(rows[10], 1.0, 0.88);
        let found = measured(knobs, &rows);
        assert_eq!((single_runs(&found), found.constrained), (vec![11], clean.constrained));
        assert_ne!(found.min_edp.setting, rows[10].setting);
        // Two clocks show no shape, and seven caps at each do.
        let knobs = TuningKnobs { first: CLOCKS, second: Some(CAPS) };
        let caps = |clock: f64, seconds: f64| {
            let cap = move |m: &SettingMeasurement| SettingMeasurement {
                setting: clock,
                second_setting: Some(m.setting),
                ..scaled(*m, seconds, 1.0)
            };
            sweep(CAPS, 7).iter().map(cap).collect::<Vec<_>>()
        };
        let mut rows = [caps(1400.0, 1.0), caps(1300.0, 1.02)].concat();
        for (index, m) in (1..).zip(&mut rows) {
            m.row = index;
        }
        let clean = measured(knobs, &rows);
        assert_eq!(single_runs(&clean), [0_u64; 0]);
        rows[13] = scaled(rows[13], 0.7, 1.0);
        let found = measured(knobs, &rows);
        assert_eq!((single_runs(&found), found.constrained), (vec![14], clean.constrained));
        // Nothing has to follow a batch size.
        let knobs = TuningKnobs { second: Some(TuningKnob::BatchSize), ..knobs };
        assert_eq!(single_runs(&measured(knobs, &rows)), [0_u64; 0]);
    }

    #[test]
    fn a_choice_that_is_left_with_too_few_settings_names_the_run() {
        let mut rows = sweep(CAPS, 5);
        rows[3] = scaled(rows[3], 0.88, 1.0);
        let refusal = choose(CAPS, &rows, &limits(1.0), ChoiceMethod::Robust(RobustSettings::default())).unwrap_err();
        assert!(matches!(refusal, ChoiceRefusal::SingleRun { .. }), "{refusal}");
        let words = refusal.to_string();
        assert!(words.starts_with("row 4: 187.5 W would be chosen") && words.contains("measure it again"), "{words}");
    }
}
