//! Energy counters that fall: at the end of their range, as those of RAPL do at 2^32 of their units, or by a reset.
//!
//! A fall is the end of a range under two conditions. The range is in the table or known; and the counter was close to it, and
//! goes on from there at its pace, or that of the power. Every other fall is a reset: nothing is counted between its two
//! readings.

use eadt_schemas::counts::counted;

use crate::ReadingField;
use crate::checks::{power, present_unit, tenure, value};
use crate::median::upper_median;
use crate::recording::{RecordedReading, Recording, RecordingSource};
use crate::units::lowercase_words;

/// Ranges of RAPL's counters, in joules: 2^32 of the units of 2^-16, 2^-14 and 2^-10 J, of which Linux cuts off decimals.
const RAPL_RANGES: [f64; 5] = [65_532.610_987, 65_536.0, 262_143.328_85, 262_144.0, 4_194_304.0];
/// Words of which the name of a counter of RAPL has one.
const RAPL_WORDS: [&str; 9] = ["rapl", "uj", "package", "pkg", "psys", "dram", "cores", "uncore", "pp0"];
/// Ranges of counters in their own unit.
const POWERS_OF_TWO: [f64; 2] = [2_147_483_648.0, 4_294_967_296.0];

/// A counter goes on over the end of its range by no more than so many times its pace, and no less than that part of it.
const TIMES_OF_THE_PACE: f64 = 1.5;
/// The same where power is known.
const TIMES_OF_THE_POWER: f64 = 1.25;
/// If a counter goes on by more, as a share of its range, its pace may fit it by chance.
const SHARE_BY_PACE: f64 = 0.05;
/// The same where power is known.
const SHARE_BY_POWER: f64 = 0.5;
/// If a counter goes on by more between two readings, it may go through its range unseen.
const SHARE_OF_AN_UNSEEN_WRAP: f64 = 0.25;
/// A gap longer than so many usual intervals may hide a reset of a counter.
const INTERVALS_OF_A_GAP: f64 = 3.0;

/// A reading of a counter.
#[derive(Debug, Clone, Copy)]
struct CounterReading<'r> {
    reading: &'r RecordedReading,
    joules: f64,
}

/// A counter that falls between two of its readings.
#[derive(Debug, Clone, Copy)]
struct CounterFall {
    /// The place of the later reading among those of the counter.
    place: usize,
    line: u32,
    before: f64,
    after: f64,
    seconds: f64,
    /// Energy used in the meantime according to power.
    by_power: Option<f64>,
    /// The same by the counter's readings beside.
    by_pace: Option<f64>,
}

/// Returns the joules and seconds between two readings of one stay over which the counter does not fall.
fn pace(from: CounterReading<'_>, to: CounterReading<'_>) -> Option<(f64, f64)> {
    let is_rise = to.joules >= from.joules && tenure(from.reading) == tenure(to.reading);
    is_rise.then(|| (to.joules - from.joules, to.reading.time.seconds_since(from.reading.time)))
}

impl CounterFall {
    /// Returns the falls of a counter, without those between two stays.
    fn all(known: &[CounterReading<'_>]) -> Vec<Self> {
        let falls = (1..known.len()).filter(|place| {
            let (from, to) = (known[place - 1], known[*place]);
            to.joules < from.joules && tenure(from.reading) == tenure(to.reading)
        });
        falls.map(|place| Self::at(known, place)).collect()
    }

    fn at(known: &[CounterReading<'_>], place: usize) -> Self {
        let (from, to) = (known[place - 1], known[place]);
        let seconds = to.reading.time.seconds_since(from.reading.time);
        let watts = power(from.reading).zip(power(to.reading)).map(|(a, b)| f64::midpoint(a, b));
        let before = place.checked_sub(2).and_then(|earlier| pace(known[earlier], from));
        let behind = known.get(place + 1).and_then(|later| pace(to, *later));
        let beside = [before, behind].into_iter().flatten().fold((0.0, 0.0), |sum, step| (sum.0 + step.0, sum.1 + step.1));
        Self {
            place,
            line: to.reading.line,
            before: from.joules,
            after: to.joules,
            seconds,
            by_power: watts.map(|watts| watts * seconds),
            by_pace: (beside.1 > 0.0).then(|| beside.0 / beside.1 * seconds),
        }
    }

    /// Returns the increase of a counter that wraps at this range, in joules.
    fn joules(self, range: f64) -> f64 {
        range - self.before + self.after
    }

    /// Returns the expected increase in joules, by power if it is known, and the factor by which the true increase may exceed it.
    fn expected(self) -> Option<(f64, f64)> {
        let by_power = self.by_power.map(|joules| (joules, TIMES_OF_THE_POWER));
        by_power.or_else(|| self.by_pace.map(|joules| (joules, TIMES_OF_THE_PACE))).filter(|(joules, _)| *joules > 0.0)
    }

    /// Returns how far the counter would have gone on from what is expected, as the logarithm of their ratio; `None` if nothing
    /// was to be expected.
    fn distance(self, range: f64) -> Option<f64> {
        let (expected, _) = self.expected()?;
        Some((self.joules(range) / expected).ln().abs()).filter(|distance| distance.is_finite())
    }

    /// Returns whether the fall is the end of a range: the counter was close to it, and goes on as expected.
    fn fits(self, range: f64) -> bool {
        let Some((_, most_times)) = self.expected() else { return false };
        let most = if self.by_power.is_some() { SHARE_BY_POWER } else { SHARE_BY_PACE };
        self.joules(range) <= most * range && self.distance(range).is_some_and(|distance| distance <= most_times.ln())
    }
}

/// Traits of a counter, except its falls.
#[derive(Debug, Clone, Copy)]
struct CounterTraits {
    highest: f64,
    /// Largest growth between two readings, if no power is known.
    most_between: f64,
    /// The median of the seconds between two readings.
    usual_seconds: f64,
    /// Its name or its unit is one of RAPL.
    is_rapl: bool,
}

impl CounterTraits {
    fn of(recording: &Recording, device: &str, known: &[CounterReading<'_>]) -> Self {
        let has_power = |reading: CounterReading<'_>| power(reading.reading).is_some();
        let without_power = known.windows(2).filter(|pair| !has_power(pair[0]) || !has_power(pair[1]));
        let rises = without_power.filter_map(|pair| pace(pair[0], pair[1])).map(|(joules, _)| joules);
        let between = |pair: &[CounterReading<'_>]| pair[1].reading.time.seconds_since(pair[0].reading.time);
        let column = recording.columns.get(&ReadingField::EnergyJoulesTotal).map_or("", String::as_str);
        let is_in_microjoules = present_unit(recording, ReadingField::EnergyJoulesTotal).is_some_and(|unit| unit.name == "uJ");
        Self {
            highest: known.iter().map(|reading| reading.joules).fold(0.0, f64::max),
            most_between: rises.fold(0.0, f64::max),
            usual_seconds: upper_median(known.windows(2).map(between)).unwrap_or(0.0),
            is_rapl: is_in_microjoules || names_rapl(column) || names_rapl(device),
        }
    }
}

/// Returns whether a name is of a counter of RAPL.
fn names_rapl(name: &str) -> bool {
    lowercase_words(name).iter().any(|word| RAPL_WORDS.contains(&word.as_str()))
}

/// Returns the range of a counter, in joules, and the falls that are its end.
fn find_range(recording: &Recording, falls: &[CounterFall], counter: CounterTraits) -> Option<(f64, Vec<CounterFall>)> {
    let of_range = |range: f64| {
        let is_seen = counter.highest <= range && counter.most_between <= SHARE_OF_AN_UNSEEN_WRAP * range;
        let is_end = |fall: &CounterFall| fall.seconds <= INTERVALS_OF_A_GAP * counter.usual_seconds && fall.fits(range);
        let fitting: Vec<CounterFall> = falls.iter().copied().filter(is_end).collect();
        (is_seen && !fitting.is_empty()).then_some((range, fitting))
    };
    if let Some(found) = recording.counter_ranges.iter().copied().find_map(of_range) {
        return Some(found);
    }
    let unit = present_unit(recording, ReadingField::EnergyJoulesTotal);
    let in_unit = POWERS_OF_TWO.map(|count| unit.map_or(count, |unit| unit.to_base_unit(count)));
    let of_rapl = RAPL_RANGES.into_iter().filter(|_| counter.is_rapl);
    let distance = |(range, falls): &(f64, Vec<CounterFall>)| falls.iter().filter_map(|fall| fall.distance(*range)).sum::<f64>();
    let known = of_rapl.chain(in_unit).filter_map(of_range);
    // The range that is the end of the most falls, and of these the nearest.
    known.min_by(|a, b| b.1.len().cmp(&a.1.len()).then(distance(a).total_cmp(&distance(b))))
}

/// Counts an energy counter on over the end of its range, and notes that; notes falls that are resets.
///
/// A counter that several share is left as it is: each of them has it from another time on.
pub(crate) fn settle_falls(recording: &mut Recording, source: &mut RecordingSource, device: &str) {
    if source.readings.iter().any(|reading| reading.portion.is_some()) {
        return;
    }
    let (falls, range) = {
        let counter = |reading| Some(CounterReading { reading, joules: value(reading, ReadingField::EnergyJoulesTotal)? });
        let known: Vec<CounterReading<'_>> = source.readings.iter().filter_map(counter).collect();
        let falls = CounterFall::all(&known);
        let range = find_range(recording, &falls, CounterTraits::of(recording, device, &known));
        (falls, range)
    };
    if let Some((range, wraps)) = &range {
        count_on(source, wraps, *range);
        note_wraps(recording, device, *range, wraps);
    }
    let is_wrap = |fall: &&CounterFall| range.iter().flat_map(|(_, wraps)| wraps).any(|wrap| wrap.place == fall.place);
    let resets: Vec<CounterFall> = falls.iter().filter(|fall| !is_wrap(fall)).copied().collect();
    note_resets(recording, device, &resets);
}

/// Adds the range to all readings of a counter from each of these falls on.
fn count_on(source: &mut RecordingSource, wraps: &[CounterFall], range: f64) {
    let mut counted_before = 0.0;
    let values = source.readings.iter_mut().flat_map(|reading| &mut reading.values);
    let counts = values.filter(|(field, _)| *field == ReadingField::EnergyJoulesTotal);
    for (place, (_, joules)) in counts.enumerate() {
        if wraps.iter().any(|wrap| wrap.place == place) {
            counted_before += range;
        }
        *joules += counted_before;
    }
}

fn note_wraps(recording: &mut Recording, device: &str, range: f64, wraps: &[CounterFall]) {
    let Some(first) = wraps.first() else { return };
    recording.add_note(format!(
        "{device}: the energy counter begins anew {}, first at line {}, at {range:.3} J, the end of its range: it is counted on",
        counted(wraps.len(), "time"),
        first.line
    ));
}

fn note_resets(recording: &mut Recording, device: &str, resets: &[CounterFall]) {
    let Some(first) = resets.first() else { return };
    let CounterFall { line, before, after, .. } = first;
    let times = if resets.len() == 1 { "once".to_owned() } else { counted(resets.len(), "time") };
    let between =
        if resets.iter().all(|fall| fall.by_power.is_some()) { "energy is that of the power" } else { "no energy is known" };
    recording.add_note(format!(
        "{device}: the energy counter falls {times}, first at line {line} from {before:.3} J to {after:.3} J, which is not surely the \
         end of a range: it is taken for a reset, and between the two readings {between}; if it is the end of a range, add a column \
         max_energy_range_uj with it, and record power, too, or more often"
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fall(before: f64, after: f64, by_pace: Option<f64>) -> CounterFall {
        CounterFall { place: 1, line: 3, before, after, seconds: 1.0, by_power: None, by_pace }
    }

    #[test]
    fn a_fall_is_the_end_of_a_range_if_the_counter_goes_on_at_its_pace() {
        let by_power = CounterFall { by_power: Some(30_000.0), ..fall(240_000.0, 7_000.0, Some(100.0)) };
        for (what, found, fits) in [
            ("at the end", fall(262_100.0, 56.671_15, Some(100.0)), true),
            ("long before", fall(200_000.0, 50.0, Some(100.0)), false),
            ("above", fall(262_200.0, 50.0, Some(100.0)), false),
            ("of an unknown pace", fall(262_100.0, 56.0, None), false),
            ("of an idle counter", fall(262_100.0, 56.0, Some(0.0)), false),
            ("a reset not far before", fall(226_000.0, 500.0, Some(18_000.0)), false),
            ("a large rise", fall(250_000.0, 6_000.0, Some(18_000.0)), false),
            ("a large rise, as power has it", by_power, true),
            ("another power", CounterFall { by_power: Some(12_000.0), ..by_power }, false),
        ] {
            assert_eq!(found.fits(262_143.328_85), fits, "{what}");
        }
        for (name, is_rapl) in [("energy_uj", true), ("package-0", true), ("energy_j", false), ("gpu0", false)] {
            assert_eq!(names_rapl(name), is_rapl, "{name}");
        }
    }
}
