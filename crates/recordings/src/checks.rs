//! Checks figures for plausibility: power against the power of the board, an energy counter against power.

mod counter_steps;

use std::borrow::Cow;
use std::ops::{Range, RangeInclusive};

use eadt_schemas::v1::Meter;

use self::counter_steps::{
    CounterOrigin, CounterStep, JointEnergy, MIN_STANDSTILL_SECONDS, SOUND_RATIOS, counter_steps, describe_another_scale,
    describe_coarse_steps, describe_contradiction, describe_standstill, describe_unseen_standstill, has_large_steps,
    is_power_finer, steepest_step, sum_steps,
};
use crate::counter_wraps::settle_falls;
use crate::csv_table::may_count_ticks;
use crate::names::shell_quote;
use crate::recording::{RecordedReading, Recording, RecordingSource, SourceKind};
use crate::report::{COUNTER_JUMPS, COUNTER_LEFT_OUT};
use crate::series::device_metric;
use crate::sums::{Certainty, SUM_OF_ROWS, find_sums};
use crate::totals::MOST_OF_A_RESTART;
use crate::units::Unit;
use crate::{CounterComparison, ImportError, ImportOptions, ReadingField, RecordingFormat};

/// Returns the most power that such a device draws: a reading above it is in another unit, or damaged.
fn most_watts(meter: Meter) -> (f64, &'static str) {
    let what = match meter {
        Meter::Gpu => "one GPU board",
        Meter::Module => "one module",
        Meter::Node => "one node",
        Meter::Wall => "one metered system",
    };
    (meter.most_watts(), what)
}

/// A figure that is not possible, in watts as it is read now.
#[derive(Debug, Clone, Copy)]
struct ImpossibleWatts {
    field: ReadingField,
    watts: f64,
    /// Mean power of the same time by other readings.
    known_watts: Option<f64>,
}

/// Less than this no such thing draws at its highest: all of it is in another unit.
pub(crate) const LEAST_WATTS: f64 = 1.0;

/// Less than this a node seldom draws at its highest, in watts.
const LITTLE_FOR_A_NODE_WATTS: f64 = 25.0;

/// Returns the usual power of such a device at work, in watts, to choose among units.
fn usual_watts(meter: Meter) -> f64 {
    match meter {
        Meter::Gpu => 250.0,
        Meter::Module => 400.0,
        Meter::Node | Meter::Wall => 2_000.0,
    }
}

impl ImpossibleWatts {
    /// Returns the unit, other than the present one, in which the column would be possible.
    fn fitting_unit(self, recording: &Recording) -> Option<&'static str> {
        if self.may_count_ticks(recording) {
            return None;
        }
        let units: &[&str] = match self.field {
            ReadingField::EnergyJoulesTotal => &["J", "mJ", "kWh", "Wh", "kJ", "MJ", "mWh", "uJ"],
            _ => &["W", "mW", "kW", "uW", "MW"],
        };
        let units = units.iter().filter_map(|name| Unit::by_name(name));
        let present = present_unit(recording, self.field).or_else(|| units.clone().next())?;
        let (most, _) = most_watts(recording.meter);
        let wanted = self.known_watts.filter(|watts| *watts > 0.0).unwrap_or(usual_watts(recording.meter));
        let in_unit = |unit: &Unit| self.watts * (unit.to_base_unit(1.0) / present.to_base_unit(1.0));
        let is_rare = |unit: &Unit| matches!(unit.name, "kJ" | "MJ" | "mWh" | "uJ" | "uW" | "MW");
        let distance = |unit: &Unit| (in_unit(unit) / wanted).ln().abs() + if is_rare(unit) { 3_f64.ln() } else { 0.0 };
        let possible = units.filter(|unit| {
            *unit != present && (LEAST_WATTS..=most).contains(&in_unit(unit)) && distance(unit) <= UNIT_DISTANCE.ln()
        });
        possible.min_by(|a, b| distance(a).total_cmp(&distance(b))).map(|unit| unit.name)
    }

    /// Returns whether it is of a counter that may count ticks, by the name of its column: no unit fits these.
    fn may_count_ticks(self, recording: &Recording) -> bool {
        let is_counter = self.field == ReadingField::EnergyJoulesTotal && recording.format == RecordingFormat::Csv;
        let is_too_much = self.watts > most_watts(recording.meter).0;
        is_counter && is_too_much && recording.columns.get(&self.field).is_some_and(|column| may_count_ticks(column))
    }

    /// Returns true unless the column, in the unit that fits best, is further from other figures than counter and power of one
    /// device can be. A counter of the whole system may count several times the power of a board.
    fn may_be_in_another_unit(self, recording: &Recording) -> bool {
        let Some(known) = self.known_watts.filter(|watts| *watts > 0.0) else { return true };
        let present = present_unit(recording, self.field);
        let unit = self.fitting_unit(recording).and_then(Unit::by_name);
        unit.is_some_and(|unit| {
            let watts = self.watts * unit.to_base_unit(1.0) / present.map_or(1.0, |present| present.to_base_unit(1.0));
            RATIOS_OF_ONE_UNIT.contains(&(watts / known))
        })
    }

    fn remedy(self, recording: &Recording) -> String {
        let field = self.field;
        let column = recording.columns.get(&field).map_or(field.name(), String::as_str);
        let name = recording.mapped_as.get(&field).copied().unwrap_or(field.name());
        let meter = match field {
            ReadingField::EnergyJoulesTotal => "",
            _ if self.watts < LEAST_WATTS => "",
            _ => ", or what the meter covers if it is more than one GPU, --meter module, node or wall",
        };
        if self.may_count_ticks(recording) {
            return format!(
                "if {column} counts ticks, as that of rocm-smi and amdsmi does, map the column of the accumulated energy, or put a column \
                 counter_resolution beside it, with the microjoules of a tick; else give the unit, --map {}",
                shell_quote(&format!("{name}={column}:UNIT"))
            );
        }
        let unit = self.fitting_unit(recording);
        let map = shell_quote(&format!("{name}={column}:{}", unit.unwrap_or("UNIT")));
        match (unit, way_to_map(recording.format)) {
            (Some(_), None) => format!("give the unit, for example --map {map}{meter}"),
            (None, None) => format!("check that {column} is {name}, and its unit, --map {map}{meter}"),
            (Some(unit), Some(way)) => format!("if it is in {unit}, {way} --map {map}{meter}"),
            (None, Some(way)) => format!("check that {column} is {name}; if it is in another unit, {way} --map {map}{meter}"),
        }
    }

    fn to_error(self, recording: &Recording, reading: &RecordedReading, problem: String) -> ImportError {
        let error = recording.error(reading.file as usize, u64::from(reading.line), problem, self.remedy(recording));
        error.with_column(recording.columns.get(&self.field).map_or(self.field.name(), String::as_str))
    }
}

/// Returns how to get to the `--map` of a unit from a format that has none; `None` if it has it.
fn way_to_map(format: RecordingFormat) -> Option<&'static str> {
    match format {
        RecordingFormat::Csv => None,
        RecordingFormat::NvidiaSmi => Some("import as csv with"),
        RecordingFormat::Dcgmi | RecordingFormat::Mlperf | RecordingFormat::MlperfInference | RecordingFormat::Prometheus => {
            Some("write the readings as a table, and import that as csv with")
        }
    }
}

/// The energy of a counter over that of power, if the units of both are right.
const RATIOS_OF_ONE_UNIT: RangeInclusive<f64> = 1.0 / 20.0..=20.0;

/// A unit that makes more or less of a column than so many times the usual is not offered.
const UNIT_DISTANCE: f64 = 300.0;

/// Returns the unit in which a column is read, if `--map`, the table or the format gives one.
pub(crate) fn present_unit(recording: &Recording, field: ReadingField) -> Option<Unit> {
    let name = recording.mapped_as.get(&field).copied().unwrap_or(field.name());
    let requested = recording.explicit_units.get(&field).copied();
    let of_column = || {
        let columns = recording.tables.iter().flat_map(|table| &table.columns);
        let mut of_field = columns.filter(|column| column.field.split('[').next() == Some(name));
        of_field.find_map(|column| column.unit.as_deref())
    };
    let of_format = || match recording.format {
        RecordingFormat::Prometheus => device_metric(recording.columns.get(&field)?)?.unit(),
        RecordingFormat::Dcgmi if field == ReadingField::EnergyJoulesTotal => Unit::by_name("mJ"),
        _ => None,
    };
    requested.or_else(of_column).and_then(Unit::by_name).or_else(of_format)
}

pub(crate) fn value(reading: &RecordedReading, field: ReadingField) -> Option<f64> {
    reading.values.iter().find(|(f, _)| *f == field).map(|(_, value)| *value)
}

pub(crate) fn power(reading: &RecordedReading) -> Option<f64> {
    value(reading, ReadingField::PowerWatts).or_else(|| value(reading, ReadingField::PowerAverageWatts))
}

pub(crate) fn remove(reading: &mut RecordedReading, field: ReadingField) {
    reading.values = reading.values.iter().copied().filter(|(other, _)| *other != field).collect();
}

/// Refuses readings that no such device can draw; returns an error if most are such, as in another unit.
pub(crate) fn check_power(recording: &mut Recording, source: &mut RecordingSource) -> Result<(), ImportError> {
    let (most, what) = most_watts(recording.meter);
    for field in [ReadingField::PowerWatts, ReadingField::PowerAverageWatts, ReadingField::PowerLimitWatts] {
        let too_much = |reading: &RecordedReading| value(reading, field).is_some_and(|watts| watts > most);
        let wrong = source.readings.iter().filter(|reading| too_much(reading)).count();
        if wrong == 0 {
            continue;
        }
        let all = source.readings.iter().filter(|reading| value(reading, field).is_some()).count();
        for reading in source.readings.iter_mut().filter(|reading| too_much(reading)) {
            let watts = value(reading, field).unwrap_or_default();
            let problem = format!("{watts} W is more than {what} can draw ({most} W)");
            let error = ImpossibleWatts { field, watts, known_watts: None }.to_error(recording, reading, problem);
            if wrong * 2 > all {
                return Err(error);
            }
            recording.refuse_row("power", error);
            remove(reading, field);
        }
    }
    refuse_sum_of_power(recording, source);
    refuse_power_above_limit(recording, source);
    refuse_power_glitches(recording, source);
    check_highest_power(recording, source)
}

/// A board may exceed its limit for a moment, and a mean may be of the time before the limit was lowered. Above so many times its
/// highest limit no reading is true.
const TIMES_THE_LIMIT: f64 = 2.0;

/// Refuses readings of power that are far above the highest limit of the device in this record. If most are, the limit is of something
/// else, or in another unit: this is noted.
fn refuse_power_above_limit(recording: &mut Recording, source: &mut RecordingSource) {
    let limits = source.readings.iter().filter_map(|reading| value(reading, ReadingField::PowerLimitWatts));
    let limit = limits.fold(0.0, f64::max);
    let SourceKind::Device(device) = &source.kind else { return };
    if limit <= 0.0 {
        return;
    }
    for field in [ReadingField::PowerWatts, ReadingField::PowerAverageWatts] {
        let known = source.readings.iter().filter(|reading| value(reading, field).is_some()).count();
        let is_above =
            |reading: &&mut RecordedReading| value(reading, field).is_some_and(|watts| watts > TIMES_THE_LIMIT * limit);
        let above: Vec<&mut RecordedReading> = source.readings.iter_mut().filter(is_above).collect();
        if above.is_empty() {
            continue;
        }
        if above.len() * 2 > known {
            recording.add_note(format!(
                "{}: {} is above {TIMES_THE_LIMIT} times the limit of {limit} W in {} of {known} rows, and is kept: check the unit of \
                 the limit, and what it is of",
                device.name,
                field.name(),
                above.len()
            ));
            continue;
        }
        for reading in above {
            let watts = value(reading, field).unwrap_or_default();
            let problem =
                format!("{watts} W is more than {TIMES_THE_LIMIT} times the limit of the device ({limit} W): no reading");
            let error =
                recording.error(reading.file as usize, u64::from(reading.line), problem, "correct the row or take it out");
            let error = error.with_column(recording.columns.get(&field).map_or(field.name(), String::as_str));
            recording.refuse_row("power above limit", error);
            remove(reading, field);
        }
    }
}

/// Least number of rows above a sum. With fewer, a reading may be their sum by chance: 300 W after five of 60 W.
const ROWS_OF_A_SUM_OF_POWER: usize = 8;

/// Above this, a board draws no such power. Below, a sum is more than so many times any other reading, or it may be by chance.
const WATTS_OF_NO_BOARD: f64 = 2_000.0;
const TIMES_OTHER_POWER: f64 = 4.0;

/// Returns whether the last of these readings of power is the sum of all others.
fn ends_with_sum(watts: &[f64]) -> bool {
    let Some((last, others)) = watts.split_last() else { return false };
    let most = others.iter().copied().fold(0.0, f64::max);
    let is_far = *last > WATTS_OF_NO_BOARD || *last > TIMES_OTHER_POWER * most;
    others.len() >= ROWS_OF_A_SUM_OF_POWER && is_far && find_sums(watts, Certainty::Sure) == [others.len()]
}

/// Refuses the last row of a table if its power is the sum of all rows above, as spreadsheets write below a column.
fn refuse_sum_of_power(recording: &mut Recording, source: &mut RecordingSource) {
    if recording.format != RecordingFormat::Csv {
        return;
    }
    for field in [ReadingField::PowerWatts, ReadingField::PowerAverageWatts] {
        let mut known: Vec<(u32, u32, usize, f64)> = source
            .readings
            .iter()
            .enumerate()
            .filter_map(|(at, reading)| Some((reading.file, reading.line, at, value(reading, field)?)))
            .collect();
        known.sort_unstable_by_key(|(file, line, ..)| (*file, *line));
        let sums: Vec<usize> = known
            .chunk_by(|a, b| a.0 == b.0)
            .filter_map(|of_file| {
                let values: Vec<f64> = of_file.iter().map(|(.., watts)| *watts).collect();
                ends_with_sum(&values).then(|| of_file[of_file.len() - 1].2)
            })
            .collect();
        for at in sums {
            let reading = &source.readings[at];
            let watts = value(reading, field).unwrap_or_default();
            let problem = format!("{watts} W is the sum of the rows above, and no reading: the row is left out");
            let error = recording.error(reading.file as usize, u64::from(reading.line), problem, "take the row out");
            let error = error.with_column(recording.columns.get(&field).map_or(field.name(), String::as_str));
            recording.refuse_row(SUM_OF_ROWS, error);
            source.readings[at].values = Box::default();
        }
    }
}

/// The same of a table, whose units people give.
const READINGS_OF_UNKNOWN_UNIT: usize = 4;
/// Seconds of a table over which a counter that makes next to nothing is no chance, in however few rows.
const SECONDS_OF_UNKNOWN_UNIT: f64 = 10.0;
/// Readings of a format with known units from which on a board with almost no power is refused.
const READINGS_OF_KNOWN_UNIT: usize = 10;

/// Returns an error if no reading of power is as high as that of what is metered: a whole recording below it is in kilowatts, for
/// example.
fn check_highest_power(recording: &mut Recording, source: &RecordingSource) -> Result<(), ImportError> {
    let known: Vec<&RecordedReading> = source.readings.iter().filter(|reading| power(reading).is_some()).collect();
    let highest = known.iter().filter_map(|reading| power(reading)).fold(0.0, f64::max);
    let field = known.iter().find_map(|reading| reading.values.iter().map(|(field, _)| *field).find(|field| is_power(*field)));
    let field = field.unwrap_or(ReadingField::PowerWatts);
    let enough = match recording.format {
        // A unit that the user gives is trusted in few rows.
        RecordingFormat::Csv if recording.explicit_units.contains_key(&field) => READINGS_OF_UNKNOWN_UNIT,
        RecordingFormat::Csv => 1,
        _ => READINGS_OF_KNOWN_UNIT,
    };
    if highest <= 0.0 || known.len() < enough {
        return Ok(());
    }
    let impossible = ImpossibleWatts { field, watts: highest, known_watts: None };
    let (_, what) = most_watts(recording.meter);
    if highest < LEAST_WATTS {
        let problem = format!("no reading reaches {LEAST_WATTS} W (highest: {highest} W), as {what} does");
        return refuse_or_note(recording, impossible.to_error(recording, known[0], problem), impossible);
    }
    if is_little_for_a_node(recording, impossible) {
        recording.add_note(format!("no power reading is above {highest} W, little for {what}: {}", impossible.remedy(recording)));
    }
    Ok(())
}

/// Returns whether a node seldom draws so little, and another unit of the column would fit.
fn is_little_for_a_node(recording: &Recording, found: ImpossibleWatts) -> bool {
    (LEAST_WATTS..LITTLE_FOR_A_NODE_WATTS).contains(&found.watts)
        && matches!(recording.meter, Meter::Node | Meter::Wall)
        && found.fitting_unit(recording).is_some()
}

/// Refuses figures that are too small, or notes them if the user states that they are in watts or joules.
fn refuse_or_note(recording: &mut Recording, error: ImportError, found: ImpossibleWatts) -> Result<(), ImportError> {
    let field = found.field;
    let unit = if field == ReadingField::EnergyJoulesTotal { "J" } else { "W" };
    if recording.explicit_units.get(&field) == Some(&unit) {
        recording.add_note(format!("{}: it is in {unit}, as --map sets", error.problem));
        return Ok(());
    }
    let column = recording.columns.get(&field).map_or(field.name(), String::as_str);
    let name = recording.mapped_as.get(&field).copied().unwrap_or(field.name());
    let insist = format!("--map {}", shell_quote(&format!("{name}={column}:{unit}")));
    let way = way_to_map(recording.format).unwrap_or("use");
    Err(ImportError { remedy: format!("{}; if it is so little, {way} {insist}", error.remedy), ..error })
}

/// Returns whether a field is of power, now or as a mean.
pub(crate) fn is_power(field: ReadingField) -> bool {
    matches!(field, ReadingField::PowerWatts | ReadingField::PowerAverageWatts)
}

/// Readings of which more are glitches are no meter's that has some.
const MOST_GLITCHES: usize = 20;

/// Refuses single readings of a node or at the wall that are further above both of their neighbours than what is metered can work
/// above idle.
fn refuse_power_glitches(recording: &mut Recording, source: &mut RecordingSource) {
    // A board may work for one reading and idle at some watts before and after.
    if matches!(recording.meter, Meter::Gpu | Meter::Module) {
        return;
    }
    let factor = recording.meter.highest_over_idle();
    for field in [ReadingField::PowerWatts, ReadingField::PowerAverageWatts] {
        let known: Vec<(usize, f64)> =
            source.readings.iter().enumerate().filter_map(|(at, reading)| Some((at, value(reading, field)?))).collect();
        let is_glitch = |three: &&[(usize, f64)]| {
            let highest_beside = three[0].1.max(three[2].1);
            // Beside a reading below one watt anything would be one.
            highest_beside >= 1.0 && three[1].1 > factor * highest_beside
        };
        let glitches: Vec<[(usize, f64); 3]> =
            known.windows(3).filter(is_glitch).map(|three| [three[0], three[1], three[2]]).collect();
        if glitches.len() * MOST_GLITCHES > known.len() {
            continue;
        }
        for [(_, before), (at, watts), (_, after)] in glitches {
            let reading = &source.readings[at];
            let problem = format!("{watts} W between {before} W and {after} W is a glitch of the meter");
            let error =
                recording.error(reading.file as usize, u64::from(reading.line), problem, "correct the row or take it out");
            let error = error.with_column(recording.columns.get(&field).map_or(field.name(), String::as_str));
            recording.refuse_row("power glitch", error);
            remove(&mut source.readings[at], field);
        }
    }
}

/// Power readings further apart give nothing about the time between, unless `processor.power_gap_seconds` is set.
pub const DEFAULT_POWER_GAP_SECONDS: f64 = 120.0;
/// The most that it can be set to.
const MOST_POWER_GAP_SECONDS: f64 = 86_400.0;

/// Notes a device of which only power is known, with readings too far apart to cover the time between.
pub(crate) fn note_wide_power_gaps(recording: &mut Recording, source: &RecordingSource, device: &str) {
    let counts = |reading: &RecordedReading| value(reading, ReadingField::EnergyJoulesTotal).is_some();
    let times: Vec<_> = source.readings.iter().filter(|reading| power(reading).is_some()).map(|reading| reading.time).collect();
    if times.len() < 2 || source.readings.iter().filter(|reading| counts(reading)).count() >= 2 {
        return;
    }
    let mut gaps: Vec<f64> = times.windows(2).map(|pair| pair[1].seconds_since(pair[0])).collect();
    gaps.sort_by(f64::total_cmp);
    let median = gaps[gaps.len() / 2];
    if median <= DEFAULT_POWER_GAP_SECONDS {
        return;
    }
    let most = gaps.iter().copied().filter(|gap| *gap <= 2.0 * median).fold(0.0, f64::max).ceil();
    let what_to_do = if most <= MOST_POWER_GAP_SECONDS {
        format!(
            "if the table has rows at changes only, repeat the former value every few seconds; to count a straight line from each reading to \
             the next, replay with EADT_PROCESSOR__POWER_GAP_SECONDS={most}"
        )
    } else {
        format!("{MOST_POWER_GAP_SECONDS} is the most that it can be set to: record more often, or an energy counter")
    };
    recording.add_note(format!(
        "{device}: power readings are {median} s apart, and no energy is known between readings that are further apart than \
         processor.power_gap_seconds, {DEFAULT_POWER_GAP_SECONDS} by default; {what_to_do}"
    ));
}

/// Returns the stay that a reading belongs to.
pub(crate) fn tenure(reading: &RecordedReading) -> Option<u64> {
    reading.portion.as_ref().map(|portion| portion.tenure)
}

/// Why a counter is left out.
#[derive(Debug)]
enum CounterDefect {
    /// It is wrong, so its readings are refused.
    Wrong(String),
    /// It agrees with finer power, so nothing is refused.
    Coarse(String),
}

/// Compares energy by counter and by power over the same time.
///
/// A counter that contradicts the power, or is coarser, is left out, with a note; an error is returned if both may be in another
/// unit, or if there is no power to go by.
pub(crate) fn check_counter(
    recording: &mut Recording,
    source: &mut RecordingSource,
    device: &str,
    options: &ImportOptions,
) -> Result<Option<CounterComparison>, ImportError> {
    let (most, what) = most_watts(recording.meter);
    refuse_glitches(recording, &mut source.readings, most, what);
    settle_falls(recording, source, device);
    let origin = CounterOrigin::of(recording);
    let steps = counter_steps(&source.readings, origin);
    let (_, seconds) = sum_steps(&steps);
    if seconds < 1.0 {
        return Ok(None);
    }
    let joint = JointEnergy::of(&steps, origin);
    let mut defect = check_leap(recording, &steps, joint.as_ref())?.map(CounterDefect::Wrong);
    if defect.is_none() {
        check_little_growth(recording, &steps, joint.as_ref(), device, options)?;
        if let Some(joint) = &joint {
            defect = check_against_power(recording, &source.readings, &steps, joint, device, options)?;
        } else {
            note_coarse_steps(recording, &steps, device);
        }
    }
    match defect {
        Some(CounterDefect::Wrong(why)) => {
            refuse_counter(recording, source, &format!("{device}: {why}"));
            return Ok(None);
        }
        Some(CounterDefect::Coarse(why)) => {
            leave_counter_out(recording, source, &format!("{device}: {why}"));
            return Ok(None);
        }
        None => {}
    }
    if let Some(note) = describe_unseen_standstill(&steps, origin) {
        recording.add_note(format!("{device}: {note}"));
    }
    Ok(joint.map(|joint| CounterComparison::new(device, joint.joules, joint.integral_joules)))
}

/// Returns why a counter is left out that grows by more than the device can draw; an error if it may be in another unit, or if there
/// is too little power to go by.
fn check_leap(
    recording: &Recording,
    steps: &[CounterStep<'_>],
    joint: Option<&JointEnergy>,
) -> Result<Option<String>, ImportError> {
    let (most, what) = most_watts(recording.meter);
    let Some((step, watts)) = steepest_step(steps).filter(|(_, watts)| *watts > most) else { return Ok(None) };
    let (joules, seconds) = sum_steps(steps);
    // A single leap is none of the unit.
    let (other_joules, other_seconds) = (joules - step.joules, seconds - step.seconds);
    let is_leap = steps.len() >= READINGS_OF_UNKNOWN_UNIT && other_joules <= most * other_seconds;
    let mean = if is_leap { 0.0 } else { joules / seconds };
    let problem = if mean > most {
        format!("the energy counter grows by {mean:.0} W on average, more than {what} can draw ({most} W)")
    } else {
        format!("the energy counter grows by {watts:.0} W here, more than {what} can draw ({most} W)")
    };
    if mean > most || joint.is_none_or(|joint| !joint.covers_most()) {
        let watts = if mean > most { mean } else { watts };
        let impossible = ImpossibleWatts { field: ReadingField::EnergyJoulesTotal, watts, known_watts: None };
        return Err(impossible.to_error(recording, step.to, problem));
    }
    Ok(Some(format!("{problem}, at line {}", step.to.line)))
}

/// Checks a counter that grows by next to nothing: returns an error if another unit may fit, else notes it.
fn check_little_growth(
    recording: &mut Recording,
    steps: &[CounterStep<'_>],
    joint: Option<&JointEnergy>,
    device: &str,
    options: &ImportOptions,
) -> Result<(), ImportError> {
    let field = ReadingField::EnergyJoulesTotal;
    let (_, what) = most_watts(recording.meter);
    let ((joules, seconds), steepest) = (sum_steps(steps), steepest_step(steps));
    // If the unit is known, power shows whether the counter is broken, if power is read.
    let is_enough =
        steps.len() >= READINGS_OF_UNKNOWN_UNIT || recording.format == RecordingFormat::Csv && seconds >= SECONDS_OF_UNKNOWN_UNIT;
    let may_be_in_no_unit = recording.format == RecordingFormat::Csv || joint.is_none() && seconds >= MIN_STANDSTILL_SECONDS;
    if let Some((step, watts)) = steepest.filter(|(_, watts)| *watts < LEAST_WATTS && may_be_in_no_unit && is_enough) {
        let problem = format!(
            "the energy counter never grows by {LEAST_WATTS} W, as that of {what} does (most: {watts:.3e} W, at this row)"
        );
        let known_watts = joint.map(|joint| joint.integral_joules / joint.seconds);
        let impossible = ImpossibleWatts { field, watts, known_watts };
        // If no unit makes it agree with power, the counter is broken.
        if impossible.may_be_in_another_unit(recording) {
            let error = impossible.to_error(recording, step.to, problem);
            let error = match options.interval {
                Some(interval) => ImportError { remedy: format!("{}, and check --interval {interval:?}", error.remedy), ..error },
                None => error,
            };
            refuse_or_note(recording, error, impossible)?;
        }
    }
    if joint.is_some() {
        return Ok(());
    }
    if let Some((_, watts)) = steepest.filter(|_| steps.len() >= READINGS_OF_UNKNOWN_UNIT) {
        let found = ImpossibleWatts { field, watts, known_watts: None };
        if is_little_for_a_node(recording, found) {
            let remedy = found.remedy(recording);
            recording.add_note(format!("the energy counter never grows by more than {watts:.3} W, little for {what}: {remedy}"));
        }
    }
    if joules == 0.0 && seconds >= MIN_STANDSTILL_SECONDS {
        recording.add_note(format!(
            "{device}: the energy counter is constant over its {seconds:.0} s: 0 J. A board that is on draws power; if the counter is \
             stuck, do not map it"
        ));
    }
    Ok(())
}

/// Notes a coarse counter without power, if one of its steps is a large part of its energy.
fn note_coarse_steps(recording: &mut Recording, steps: &[CounterStep<'_>], device: &str) {
    if let Some(coarse) = describe_coarse_steps(steps).filter(|_| has_large_steps(steps)) {
        recording.add_note(format!("{device}: {coarse}: energy is known to within one of them"));
    }
}

/// Returns why a counter is left out that contradicts the power, or is coarser; an error if one of the two may be in another unit.
/// Notes other contradictions.
fn check_against_power(
    recording: &mut Recording,
    readings: &[RecordedReading],
    steps: &[CounterStep<'_>],
    joint: &JointEnergy,
    device: &str,
    options: &ImportOptions,
) -> Result<Option<CounterDefect>, ImportError> {
    if let Some(standstill) = describe_standstill(steps, joint.integral_joules) {
        let (joules, _) = sum_steps(steps);
        if joules == 0.0 || joint.covers_most() {
            return Ok(Some(CounterDefect::Wrong(standstill)));
        }
        recording.add_note(format!(
            "{device}: {standstill}: the counter is kept, because power is known in little of its time; if the counter is stuck, import \
             without it"
        ));
    }
    if let Some(coarse) = describe_coarse_steps(steps).filter(|_| is_power_finer(steps, joint)) {
        return Ok(Some(CounterDefect::Coarse(coarse)));
    }
    if !joint.is_comparable() {
        return Ok(None);
    }
    let (both, ratio) = (joint.describe(), joint.joules / joint.integral_joules);
    if let Some(why) = check_units(recording, steps, joint, options)? {
        return Ok(Some(CounterDefect::Wrong(why)));
    }
    if let Some(scale) = describe_another_scale(steps, readings) {
        let why = format!("{both}: {scale} (if the power is wrong, import without it)");
        return Ok(Some(CounterDefect::Wrong(why)));
    }
    if !SOUND_RATIOS.contains(&ratio) {
        let (_, what) = most_watts(recording.meter);
        let note = format!(
            "{device}: {both}: the two contradict each other{}. Windows believe neither blindly: a rise of the counter counts if power and \
             what {what} can draw allow for it, else the integral of power over that time. If it is known which of the two is wrong, \
             import without it",
            describe_contradiction(steps)
        );
        recording.add_note(note);
    }
    Ok(None)
}

/// Returns why a counter is left out that is in no unit; an error if it, the power, or the time between rows may be in another one.
fn check_units(
    recording: &Recording,
    steps: &[CounterStep<'_>],
    joint: &JointEnergy,
    options: &ImportOptions,
) -> Result<Option<String>, ImportError> {
    let JointEnergy { joules, integral_joules, seconds, .. } = *joint;
    let (both, ratio, first) = (joint.describe(), joules / integral_joules, steps[0].from);
    if !RATIOS_OF_ONE_UNIT.contains(&ratio) {
        let field = ReadingField::EnergyJoulesTotal;
        let impossible = ImpossibleWatts { field, watts: joules / seconds, known_watts: Some(integral_joules / seconds) };
        if joules < integral_joules && !impossible.may_be_in_another_unit(recording) {
            return Ok(Some(format!("{both}, and no unit would fit")));
        }
        return Err(impossible.to_error(recording, first, format!("{both}: one of the two is in another unit")));
    }
    if let Some(interval) = options.interval.filter(|_| !(1.0 / 1.5..=1.5).contains(&ratio)) {
        let problem = format!("{both}: the time between rows seems to be {:.3} s", interval.as_secs_f64() * ratio);
        let remedy = format!("check --interval {interval:?}, and the units of both");
        return Err(recording.error(first.file as usize, u64::from(first.line), problem, remedy));
    }
    Ok(None)
}

/// Returns the most watts by which the energy counter of a device grows, and whether its unit is in no doubt: power is read, too, or
/// readings are few.
fn counter_growth(source: &RecordingSource, origin: CounterOrigin) -> Option<(f64, bool)> {
    let mut readings = Cow::Borrowed(&source.readings);
    if !readings.is_sorted_by_key(|reading| reading.time) {
        readings.to_mut().sort_by_key(|reading| reading.time);
    }
    let steps = counter_steps(&readings, origin);
    let (_, watts) = steepest_step(&steps)?;
    let (_, seconds) = sum_steps(&steps);
    let has_power = JointEnergy::of(&steps, origin).is_some();
    Some((watts, has_power || steps.len() < READINGS_OF_UNKNOWN_UNIT || seconds < MIN_STANDSTILL_SECONDS))
}

/// Leaves out energy counters that grow far too slowly beside others, in formats with known units that fit a device's power:
/// then the unit is not the cause.
pub(crate) fn leave_tiny_counters_out(recording: &mut Recording) {
    let mut sources = std::mem::take(&mut recording.sources);
    let origin = CounterOrigin::of(recording);
    let growths: Vec<Option<(f64, bool)>> = sources.iter().map(|source| counter_growth(source, origin)).collect();
    let (most, what) = most_watts(recording.meter);
    let has_others = growths.iter().flatten().any(|(watts, _)| (LEAST_WATTS..=most).contains(watts));
    for (source, growth) in sources.iter_mut().zip(growths).filter(|_| has_others) {
        let SourceKind::Device(device) = &source.kind else { continue };
        let Some((watts, _)) = growth.filter(|(watts, is_unit_known)| *watts < LEAST_WATTS && !is_unit_known) else { continue };
        let why = format!(
            "{}: the energy counter never grows by {LEAST_WATTS} W, as that of {what} does and others here do (most: {watts:.3e} W)",
            device.name
        );
        refuse_counter(recording, source, &why);
        source.readings.retain(|reading| !reading.values.is_empty() || reading.mark.is_some());
    }
    recording.sources = sources;
}

/// Leaves a counter out, with a note. Returns the note, how many lines have the counter, and the first of them with its file.
fn leave_counter_out(recording: &mut Recording, source: &mut RecordingSource, why: &str) -> (String, u64, Option<(usize, u64)>) {
    let has_power = source.readings.iter().any(|reading| power(reading).is_some());
    let rest = if has_power { "energy is that of the power" } else { "and its energy is not known" };
    let note = format!("{why}: the counter is left out, {rest}");
    let field = ReadingField::EnergyJoulesTotal;
    let (mut lines, mut first) = (0, None);
    for reading in source.readings.iter_mut().filter(|reading| value(reading, field).is_some()) {
        lines += 1;
        first = first.or(Some((reading.file as usize, u64::from(reading.line))));
        remove(reading, field);
    }
    recording.add_note(note.clone());
    (note, lines, first)
}

/// Leaves a wrong counter out, with a note, and refuses its lines.
fn refuse_counter(recording: &mut Recording, source: &mut RecordingSource, why: &str) {
    let (note, lines, first) = leave_counter_out(recording, source, why);
    if let Some((file, line)) = first {
        let error = recording.error(file, line, note, "import without it");
        recording.refuse_lines(COUNTER_LEFT_OUT, lines, error);
    }
}

/// Refuses readings of a counter that jump up, faster than a device can draw, and fall back to where it was.
fn refuse_glitches(recording: &mut Recording, readings: &mut [RecordedReading], most: f64, what: &str) {
    let field = ReadingField::EnergyJoulesTotal;
    let known: Vec<(usize, f64)> =
        readings.iter().enumerate().filter_map(|(at, reading)| Some((at, value(reading, field)?))).collect();
    for three in known.windows(3) {
        let [(before_at, before), (at, joules), (_, after)] = [three[0], three[1], three[2]];
        let seconds = readings[at].time.seconds_since(readings[before_at].time).max(1.0);
        if (joules - before) / seconds > most && after >= before && after < joules {
            let problem = format!("the energy counter jumps to {joules} J and back, more than {what} can draw ({most} W)");
            let watts = (joules - before) / seconds;
            let error = ImpossibleWatts { field, watts, known_watts: None }.to_error(recording, &readings[at], problem);
            recording.refuse_row(COUNTER_JUMPS, error);
            remove(&mut readings[at], field);
        }
    }
    refuse_dips(recording, readings, most);
}

/// A counter whose value is so many times its rise over a dip was not just reset.
const COUNT_OVER_A_DIP: f64 = 4.0;
/// A counter that is down for longer has been reset.
const READINGS_OF_A_DIP: usize = 10;
/// Dips with fewer readings between them may be of another counter.
const READINGS_BETWEEN_DIPS: usize = 4;

/// Refuses readings of a counter that fall and come back, such as a 0 in place of no value. Taken for a reset, the counter would
/// count everything again.
fn refuse_dips(recording: &mut Recording, readings: &mut [RecordedReading], most: f64) {
    let field = ReadingField::EnergyJoulesTotal;
    let known: Vec<(usize, f64)> =
        readings.iter().enumerate().filter_map(|(at, reading)| Some((at, value(reading, field)?))).collect();
    let seconds = |from: usize, to: usize| readings[to].time.seconds_since(readings[from].time).max(1.0);
    // Readings of next to nothing, until the counter is back.
    let falls_deep = |before: f64, dip: &[(usize, f64)], rise: f64| {
        before >= COUNT_OVER_A_DIP * rise && dip.iter().all(|(_, joules)| *joules <= MOST_OF_A_RESTART * before)
    };
    let mut dips: Vec<(Range<usize>, bool)> = Vec::new();
    let mut place = 1;
    while place < known.len() {
        let (before_at, before) = known[place - 1];
        let end = (place..known.len()).take(READINGS_OF_A_DIP + 1).find(|end| known[*end].1 >= before).unwrap_or(place);
        let (dip, (after_at, after)) = (&known[place..end], known[end]);
        let rise = after - before;
        let may_rise = !dip.is_empty() && (0.0..=most * seconds(before_at, after_at)).contains(&rise);
        let is_deep = may_rise && falls_deep(before, dip, rise);
        let is_too_fast = may_rise && matches!(dip, [(at, joules)] if (after - joules) / seconds(*at, after_at) > most);
        if is_deep || is_too_fast {
            dips.push((place..end, is_deep));
            place = end;
        }
        place += 1;
    }
    // Two counters in turn fall and rise as often.
    let are_apart = dips.windows(2).all(|pair| pair[1].0.start - pair[0].0.end >= READINGS_BETWEEN_DIPS);
    let are_clear = are_apart && dips.iter().all(|(_, is_deep)| *is_deep);
    let dips: Vec<(usize, f64)> = dips.into_iter().flat_map(|(places, _)| known[places].to_vec()).collect();
    if !are_clear && dips.len() * MOST_GLITCHES > known.len() {
        return;
    }
    for (at, joules) in dips {
        let reading = &readings[at];
        let problem = format!("the energy counter falls to {joules} J and is back at once");
        let error = recording.error(reading.file as usize, u64::from(reading.line), problem, "leave the cell empty");
        let error = error.with_column(recording.columns.get(&field).map_or(field.name(), String::as_str));
        recording.refuse_row(COUNTER_JUMPS, error);
        remove(&mut readings[at], field);
    }
}
