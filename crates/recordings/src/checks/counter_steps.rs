//! The steps of an energy counter, each beside the energy of power over the same time. Pure.
//!
//! A table may have power and counter in rows of their own, or blank cells. Power is therefore looked up at the times of the counter's
//! readings, on straight lines between readings of power, and only the steps in which it is known are compared.

use std::ops::RangeInclusive;

use eadt_schemas::EventTime;

use super::{DEFAULT_POWER_GAP_SECONDS, LEAST_WATTS, SECONDS_OF_UNKNOWN_UNIT, power, tenure, value};
use crate::ReadingField;
use crate::interpolate::LinePoint;
use crate::median::upper_median;
use crate::recording::{RecordedReading, Recording};

/// Ratios of energy by counter to energy by power that are not noted.
pub(super) const SOUND_RATIOS: RangeInclusive<f64> = 0.75..=1.0 / 0.75;
/// A counter without power readings that is constant for this long is noted, in seconds.
pub(super) const MIN_STANDSTILL_SECONDS: f64 = 60.0;

/// Times of more usual intervals are holes of the record: power is on no line over them, and the counter rises by no single step.
const MOST_USUAL_INTERVALS: f64 = 3.0;

/// Steps with power from which on they are compared though others have none; or so many seconds.
const JOINT_STEPS: usize = 10;
const JOINT_SECONDS: f64 = 10.0;
/// The same for any number of steps: counters are brought up to date a few times a second.
const LEAST_JOINT_SECONDS: f64 = 1.0;
/// A counter that is wrong is left out if power is known for this share of its time.
const MOST_OF_THE_TIME: f64 = 0.5;
/// The same of a counter whose energy power gives better.
const NEARLY_ALL_THE_TIME: f64 = 0.95;

/// Ratio of counter and power that no averaging and sampling of power makes over many steps.
const FACTOR_OF_ANOTHER_SCALE: f64 = 3.0;
/// Steps from which on it shows, and the share of them that has it.
const STEPS_OF_ANOTHER_SCALE: usize = 8;
const SHARE_OF_ANOTHER_SCALE: f64 = 0.9;
/// Standard deviation of power over its mean, up to which the device did not work and idle in turn: then its readings cannot all be of
/// the one, and the counter of the other.
const STEADY_POWER: f64 = 0.5;

/// Steps in which a counter is constant, and other steps, from which on it is no coarse counter; and the share of these in which it
/// moves.
const STEPS_OF_A_STANDSTILL: usize = 3;
const STEPS_BESIDE_A_STANDSTILL: usize = 20;
const SHARE_OF_MOVING_STEPS: f64 = 0.95;

/// Origin of the readings of a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CounterOrigin {
    /// The device counts.
    Device,
    /// Amounts of rows were summed. Each is of the time of its row only, and so is the power beside it.
    Rows,
}

impl CounterOrigin {
    pub(super) fn of(recording: &Recording) -> Self {
        if recording.mapped_as.contains_key(&ReadingField::EnergyJoulesTotal) { Self::Rows } else { Self::Device }
    }
}

/// A reading of power of a device.
#[derive(Debug, Clone, Copy)]
struct PowerReading {
    time: EventTime,
    watts: f64,
    tenure: Option<u64>,
}

/// Returns the longest of the intervals of a record that is no hole of it, in seconds.
fn longest_interval(seconds: impl Iterator<Item = f64>) -> f64 {
    MOST_USUAL_INTERVALS * upper_median(seconds).unwrap_or(0.0)
}

/// The power of a device over time.
#[derive(Debug)]
struct PowerSeries {
    /// In order of time.
    readings: Vec<PowerReading>,
    /// The longest time between two readings over which power is known.
    most_seconds: f64,
}

impl PowerSeries {
    fn of(readings: &[RecordedReading]) -> Self {
        let reading = |reading: &RecordedReading| {
            Some(PowerReading { time: reading.time, watts: power(reading)?, tenure: tenure(reading) })
        };
        let readings: Vec<PowerReading> = readings.iter().filter_map(reading).collect();
        let most_seconds = longest_interval(readings.windows(2).map(|pair| pair[1].time.seconds_since(pair[0].time)));
        Self { readings, most_seconds: most_seconds.min(DEFAULT_POWER_GAP_SECONDS) }
    }

    /// Returns the energy between two times of one stay, in joules; `None` if power is unknown in some of it.
    fn joules_between(&self, from: EventTime, to: EventTime, tenure: Option<u64>) -> Option<f64> {
        let first = self.readings.partition_point(|reading| reading.time <= from).checked_sub(1)?;
        let mut known_to = self.readings[first].time;
        let mut joules = 0.0;
        for pair in self.readings[first..].windows(2) {
            if known_to >= to {
                break;
            }
            let [start, end] = [pair[0], pair[1]];
            let is_known = end.time.seconds_since(start.time) <= self.most_seconds;
            if !is_known || start.tenure != tenure || end.tenure != tenure {
                return None;
            }
            let line = [(start.time, start.watts), (end.time, end.watts)];
            let (begin, finish) = (start.time.max(from), end.time.min(to));
            let (before, after) = (LinePoint::at(&line, begin)?.value, LinePoint::at(&line, finish)?.value);
            joules += f64::midpoint(before, after) * finish.seconds_since(begin);
            known_to = end.time;
        }
        (known_to >= to).then_some(joules)
    }

    /// Returns the newest reading at a time, in watts.
    fn newest_at(&self, time: EventTime) -> Option<f64> {
        let later = self.readings.partition_point(|reading| reading.time <= time);
        self.readings[..later].last().map(|reading| reading.watts)
    }
}

/// The counter between two of its readings.
#[derive(Debug)]
pub(super) struct CounterStep<'r> {
    pub(super) from: &'r RecordedReading,
    pub(super) to: &'r RecordedReading,
    pub(super) seconds: f64,
    pub(super) joules: f64,
    /// `None` if power is not known over all of it.
    pub(super) integral_joules: Option<f64>,
    /// The newest reading of power is another at its end than at its start.
    power_changes: bool,
}

/// Returns the steps of a counter; a fall is a reset, and nothing is known about the time between. Readings are in order of time.
pub(super) fn counter_steps(readings: &[RecordedReading], origin: CounterOrigin) -> Vec<CounterStep<'_>> {
    let field = ReadingField::EnergyJoulesTotal;
    let known: Vec<(&RecordedReading, f64)> =
        readings.iter().filter_map(|reading| Some((reading, value(reading, field)?))).collect();
    let series = (origin == CounterOrigin::Device).then(|| PowerSeries::of(readings));
    let step = |pair: &[(&'_ RecordedReading, f64)]| pair[1].1 - pair[0].1;
    // Between two stays the device was another's.
    let stays = |pair: &[(&'_ RecordedReading, f64)]| tenure(pair[0].0) == tenure(pair[1].0);
    let steps = known.windows(2).filter(|pair| step(pair) >= 0.0 && stays(pair)).map(|pair| {
        let (from, to) = (pair[0].0, pair[1].0);
        let seconds = to.time.seconds_since(from.time);
        let of_series = series.as_ref().and_then(|series| series.joules_between(from.time, to.time, tenure(from)));
        let of_ends = || power(from).zip(power(to)).map(|(a, b)| f64::midpoint(a, b) * seconds);
        let newest = |reading: &RecordedReading| power(reading).or_else(|| series.as_ref()?.newest_at(reading.time));
        CounterStep {
            from,
            to,
            seconds,
            joules: step(pair),
            integral_joules: of_series.or_else(of_ends),
            power_changes: newest(from) != newest(to),
        }
    });
    steps.collect()
}

/// Returns the energy of these steps by the counter, in joules, and their time in seconds.
pub(super) fn sum_steps(steps: &[CounterStep<'_>]) -> (f64, f64) {
    let sum = |figure: fn(&CounterStep<'_>) -> f64| steps.iter().map(figure).sum::<f64>();
    (sum(|step| step.joules), sum(|step| step.seconds))
}

/// Energy by counter and by power, over the steps of a counter in which power is known.
#[derive(Debug, Clone, Copy)]
pub(super) struct JointEnergy {
    pub(super) joules: f64,
    pub(super) integral_joules: f64,
    pub(super) seconds: f64,
    /// Time of all steps.
    all_seconds: f64,
    /// Some steps have no power.
    is_partial: bool,
    /// Largest step of all that lie over no hole of the record.
    largest_joules: f64,
}

impl JointEnergy {
    /// Returns what both show over the same time; `None` if power is known in too little of it.
    pub(super) fn of(steps: &[CounterStep<'_>], origin: CounterOrigin) -> Option<Self> {
        let (mut joules, mut integral_joules, mut seconds, mut count) = (0.0, 0.0, 0.0, 0);
        for (step, integral) in steps.iter().filter_map(|step| Some((step, step.integral_joules?))) {
            joules += step.joules;
            integral_joules += integral;
            seconds += step.seconds;
            count += 1;
        }
        let is_partial = count < steps.len();
        let is_long = seconds >= JOINT_SECONDS || count >= JOINT_STEPS && seconds >= LEAST_JOINT_SECONDS;
        let is_enough = !is_partial || is_long && origin == CounterOrigin::Device;
        if count == 0 || !is_enough {
            return None;
        }
        let (_, all_seconds) = sum_steps(steps);
        let most_seconds = longest_interval(steps.iter().map(|step| step.seconds));
        let largest_joules = largest_step(steps.iter().filter(|step| step.seconds <= most_seconds));
        Some(Self { joules, integral_joules, seconds, all_seconds, is_partial, largest_joules })
    }

    /// Returns whether power is known for so long that it may replace the counter.
    pub(super) fn covers_most(&self) -> bool {
        self.seconds >= MOST_OF_THE_TIME * self.all_seconds
    }

    fn covers_nearly_all(&self) -> bool {
        self.seconds >= NEARLY_ALL_THE_TIME * self.all_seconds
    }

    fn agrees_within_a_step(&self) -> bool {
        (self.joules - self.integral_joules).abs() <= self.largest_joules
    }

    /// Returns whether both can be compared: where power is unknown in some of the time, one step of the counter that lies at its edge
    /// is no contradiction.
    pub(super) fn is_comparable(&self) -> bool {
        self.joules > 0.0 && self.integral_joules > 0.0 && (!self.is_partial || !self.agrees_within_a_step())
    }

    /// Describes both, with the part of the time in which power is known.
    pub(super) fn describe(&self) -> String {
        let Self { joules, integral_joules, seconds, all_seconds, .. } = self;
        let part = if self.is_partial { format!(" (of {all_seconds:.3} s)") } else { String::new() };
        format!("the energy counter gives {joules:.3} J, power over the same {seconds:.3} s{part} {integral_joules:.3} J")
    }
}

/// A counter with smaller steps, as shares of all that it counts, is exact enough without power.
const LEAST_NOTED_STEP: f64 = 0.05;

fn largest_step<'s, 'r: 's>(steps: impl IntoIterator<Item = &'s CounterStep<'r>>) -> f64 {
    steps.into_iter().map(|step| step.joules).fold(0.0, f64::max)
}

/// Describes a counter that is constant most of the time and catches up in few large steps; `None` if it is of another kind.
///
/// The times at which its first and its last step began are unknown, so its energy is wrong by up to one of them, and that of a
/// window by more, however many steps the record has.
pub(super) fn describe_coarse_steps(steps: &[CounterStep<'_>]) -> Option<String> {
    let (joules, _) = sum_steps(steps);
    let rises = steps.iter().filter(|step| step.joules > 0.0);
    let makes_good = |step: &&CounterStep<'_>| step.integral_joules.is_none_or(|integral| step.joules > 2.0 * integral);
    let (count, large) = (rises.clone().count(), rises.filter(makes_good).count());
    let largest = largest_step(steps);
    let is_coarse = count > 0 && count * 2 < steps.len() && large * 2 > count;
    is_coarse.then(|| format!("the energy counter moves in steps of up to {largest:.3} J, of {joules:.3} J in all"))
}

/// Returns whether a step of a counter is a large part of all that it counts.
pub(super) fn has_large_steps(steps: &[CounterStep<'_>]) -> bool {
    let (joules, _) = sum_steps(steps);
    largest_step(steps) > LEAST_NOTED_STEP * joules
}

/// Returns whether the power of a coarse counter is known all the time and better, and its energy is that of the counter to within
/// one step of the counter.
pub(super) fn is_power_finer(steps: &[CounterStep<'_>], joint: &JointEnergy) -> bool {
    let has_no_gap = steps.iter().all(|step| step.seconds <= DEFAULT_POWER_GAP_SECONDS);
    changes_between_steps(steps) && joint.covers_nearly_all() && joint.agrees_within_a_step() && has_no_gap
}

/// Returns true if power changes between the steps of a counter, at least twice as often as the counter moves. Where both are
/// held, as by a query with a step shorter than the scrapes, the power of that time is no better known.
fn changes_between_steps(steps: &[CounterStep<'_>]) -> bool {
    let changes = steps.iter().filter(|step| step.joules <= 0.0 && step.power_changes).count();
    changes >= 2 * steps.iter().filter(|step| step.joules > 0.0).count()
}

/// Describes where counter and power contradict each other: ", in 3 of 9 steps, from line 5 on to line 8". Empty if it is in no
/// step of its own.
pub(super) fn describe_contradiction(steps: &[CounterStep<'_>]) -> String {
    let is_wrong =
        |step: &&CounterStep<'_>| step.integral_joules.is_some_and(|integral| !SOUND_RATIOS.contains(&(step.joules / integral)));
    let wrong: Vec<&CounterStep<'_>> = steps.iter().filter(is_wrong).collect();
    let (Some(first), Some(last)) = (wrong.first(), wrong.last()) else { return String::new() };
    let compared = steps.iter().filter(|step| step.integral_joules.is_some()).count();
    format!(", in {} of {compared} steps, from line {} on to line {}", wrong.len(), first.from.line, last.to.line)
}

/// Describes a counter that is off by one factor nearly all the time, beside power that hardly changes; `None` if it is another.
///
/// Windows believe such a counter for some steps, until they add up to a contradiction. The whole record decides at once.
pub(super) fn describe_another_scale(steps: &[CounterStep<'_>], readings: &[RecordedReading]) -> Option<String> {
    let is_short = |step: &&CounterStep<'_>| step.seconds <= DEFAULT_POWER_GAP_SECONDS;
    let evident: Vec<(&CounterStep<'_>, f64)> =
        steps.iter().filter(is_short).filter_map(|step| Some((step, step.integral_joules?))).collect();
    let sum = |figure: fn(&(&CounterStep<'_>, f64)) -> f64| evident.iter().map(figure).sum::<f64>();
    let (joules, integral, seconds) = (sum(|(step, _)| step.joules), sum(|(_, joules)| *joules), sum(|(step, _)| step.seconds));
    let (_, all_seconds) = sum_steps(steps);
    let is_known = seconds >= SECONDS_OF_UNKNOWN_UNIT && seconds >= NEARLY_ALL_THE_TIME * all_seconds;
    if evident.len() < STEPS_OF_ANOTHER_SCALE || !is_known || integral < LEAST_WATTS * seconds {
        return None;
    }
    let is_more = joules > integral;
    let is_off = |joules: f64, integral: f64| {
        let (more, less) = if is_more { (joules, integral) } else { (integral, joules) };
        more > FACTOR_OF_ANOTHER_SCALE * less
    };
    let off = evident.iter().filter(|(step, integral)| is_off(step.joules, *integral)).count();
    let is_everywhere = off as f64 >= SHARE_OF_ANOTHER_SCALE * evident.len() as f64;
    let found = is_off(joules, integral) && is_everywhere && is_steady(readings);
    found.then(|| {
        let what = if is_more { "more than three times as much" } else { "less than a third as much" };
        format!("{what} in {off} of {} steps, while power hardly changes", evident.len())
    })
}

/// Returns whether power is about the same in all readings, of which there are enough.
fn is_steady(readings: &[RecordedReading]) -> bool {
    let watts: Vec<f64> = readings.iter().filter_map(power).collect();
    let count = watts.len() as f64;
    let mean = watts.iter().sum::<f64>() / count;
    let variance = watts.iter().map(|watts| (watts - mean).powi(2)).sum::<f64>() / count;
    watts.len() >= STEPS_OF_ANOTHER_SCALE && variance.sqrt() < STEADY_POWER * mean
}

/// A rise of a counter, and the time in which it rose.
struct CounterRise<'s, 'r> {
    step: &'s CounterStep<'r>,
    seconds: f64,
    /// The rise before came up to so many seconds before it showed: its reading may follow a hole of the record.
    delay_seconds: f64,
    /// A reset lies before.
    is_first: bool,
}

/// Returns the rises of a counter. A rise of a coarse counter includes the energy of the time in which it was constant, and of the
/// time by which the rise before showed too late; how long it was constant before its first rise is not known.
fn counter_rises<'s, 'r>(steps: &'s [CounterStep<'r>]) -> Vec<CounterRise<'s, 'r>> {
    let is_coarse = steps.iter().filter(|step| step.joules <= 0.0).count() * 2 > steps.len();
    let mut rises = Vec::new();
    let (mut seconds, mut delay_seconds, mut is_first) = (0.0, 0.0, true);
    for (at, step) in steps.iter().enumerate() {
        if at > 0 && steps[at - 1].to.time != step.from.time {
            (seconds, delay_seconds, is_first) = (0.0, 0.0, true);
        }
        seconds += step.seconds;
        if step.joules > 0.0 {
            if !(is_coarse && is_first) {
                rises.push(CounterRise { step, seconds, delay_seconds, is_first });
            }
            (seconds, is_first) = (0.0, false);
            delay_seconds = if is_coarse { step.seconds } else { 0.0 };
        }
    }
    rises
}

/// Returns the step over which a counter grows fastest, in watts over a second at least: counters are brought up to date a few
/// times a second.
pub(super) fn steepest_step<'s, 'r>(steps: &'s [CounterStep<'r>]) -> Option<(&'s CounterStep<'r>, f64)> {
    let rises = counter_rises(steps);
    let mut steepest: Option<(&CounterStep<'_>, f64)> = None;
    let (mut first, mut joules, mut seconds) = (0, 0.0, 0.0);
    for (at, rise) in rises.iter().enumerate() {
        if rise.is_first {
            (first, joules, seconds) = (at, 0.0, 0.0);
        }
        joules += rise.step.joules;
        seconds += rise.seconds;
        while seconds - rises[first].seconds >= 1.0 {
            joules -= rises[first].step.joules;
            seconds -= rises[first].seconds;
            first += 1;
        }
        if seconds >= 1.0 {
            let watts = joules / (seconds + rises[first].delay_seconds);
            let culprit = rises[first..=at].iter().max_by(|a, b| a.step.joules.total_cmp(&b.step.joules))?.step;
            if steepest.is_none_or(|(_, most)| watts > most) {
                steepest = Some((culprit, watts));
            }
        }
    }
    steepest
}

/// Returns the reading of the counter at which a step begins, in joules.
fn joules_at(step: &CounterStep<'_>) -> f64 {
    value(step.from, ReadingField::EnergyJoulesTotal).unwrap_or_default()
}

/// Describes a counter that is constant while power is drawn; `None` if it is another.
///
/// A coarse counter is constant between its steps, and each step includes the energy of that time.
pub(super) fn describe_standstill(steps: &[CounterStep<'_>], integral_joules: f64) -> Option<String> {
    let at = steps.first()?;
    let describe = |from: &CounterStep<'_>, seconds: f64, missing: f64| {
        let (line, total) = (from.from.line, joules_at(from));
        format!(
            "the energy counter stays at {total} J from line {line} on for {seconds:.3} s, in which power gives {missing:.3} J"
        )
    };
    if integral_joules <= 0.0 {
        return None;
    }
    let seconds = |steps: &[CounterStep<'_>]| steps.iter().map(|step| step.seconds).sum::<f64>();
    let integral = |steps: &[CounterStep<'_>]| steps.iter().filter_map(|step| step.integral_joules).sum::<f64>();
    if steps.iter().all(|step| step.joules <= 0.0) {
        return (steps.len() >= 2).then(|| describe(at, seconds(steps), integral_joules));
    }
    let largest = largest_step(steps);
    let mut first = 0;
    for end in 0..steps.len() {
        let is_still = steps[end].joules <= 0.0;
        if is_still && end + 1 < steps.len() {
            continue;
        }
        let span = &steps[first..=end];
        let missing = integral(span) - steps[end].joules;
        let still = span.len() - usize::from(!is_still);
        if still >= STEPS_OF_A_STANDSTILL
            && missing > 0.05 * integral_joules
            && missing > 2.0 * largest
            && missing > 0.5 * integral(span)
        {
            return Some(describe(&span[0], seconds(span), missing));
        }
        first = end + 1;
    }
    None
}

/// Describes a counter that moves in nearly every step, but is constant where power is not read; `None` if it is another.
pub(super) fn describe_unseen_standstill(steps: &[CounterStep<'_>], origin: CounterOrigin) -> Option<String> {
    if origin == CounterOrigin::Rows {
        return None;
    }
    let goes_on = |a: &CounterStep<'_>, b: &CounterStep<'_>| (a.joules <= 0.0) == (b.joules <= 0.0) && a.to.time == b.from.time;
    let unseen = |run: &[CounterStep<'_>]| -> f64 {
        run.iter().filter(|step| step.integral_joules.is_none()).map(|step| step.seconds).sum()
    };
    let standstills = steps.chunk_by(goes_on).filter(|run| run[0].joules <= 0.0);
    let longest = standstills.max_by(|a, b| unseen(a).total_cmp(&unseen(b)))?;
    let others = steps.len() - longest.len();
    let moving = steps.iter().filter(|step| step.joules > 0.0).count();
    let is_long = longest.len() >= STEPS_OF_A_STANDSTILL && unseen(longest) >= MIN_STANDSTILL_SECONDS;
    let is_fine = others >= STEPS_BESIDE_A_STANDSTILL && moving as f64 >= SHARE_OF_MOVING_STEPS * others as f64;
    (is_long && is_fine).then(|| {
        let (_, seconds) = sum_steps(longest);
        format!(
            "the energy counter stays at {} J from line {} on for {seconds:.0} s in which power is not read, and moves in {moving} of the \
             {others} other steps. A board that is on draws power; if the counter is stuck there, import without it",
            joules_at(&longest[0]),
            longest[0].from.line
        )
    })
}
