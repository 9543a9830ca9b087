//! The times of a file's rows, each settled by those above it.

use std::collections::{BTreeSet, HashMap};

use eadt_schemas::EventTime;
use eadt_schemas::counts::counted;

use crate::ImportOptions;
use crate::clock::ParsedTime;
use crate::options::FileSetKind;
use crate::recording::{RecordedReading, Recording, SourceId, SourceKind};

/// A time that cannot be determined: the reason, and the remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RowTimeError {
    pub(crate) line: u64,
    pub(crate) problem: String,
    pub(crate) remedy: String,
}

/// Settles local times, which may come twice, by the rows of the same source above.
#[derive(Debug, Default)]
pub(crate) struct RowTimes {
    has_zone: bool,
    sources: HashMap<SourceId, LastRow>,
    latest: Option<EventTime>,
    /// The end of the file before, of which this one may be the next part.
    before: Option<FileEnd>,
    /// The first line with a UTC offset, and the first without one.
    with_offset: Option<u64>,
    without_offset: Option<u64>,
    /// The first row, if its time comes twice and nothing above shows which is meant; with both times.
    open: Option<(u64, EventTime, EventTime)>,
}

/// The end of a file that another may go on with.
#[derive(Debug)]
pub(crate) struct FileEnd {
    latest: EventTime,
    /// Its rows' names of their boards; `None` for no name.
    boards: BTreeSet<Option<String>>,
}

/// Returns the name of the board in the rows of a source.
fn board(recording: &Recording, source: SourceId) -> Option<String> {
    match &recording.sources[source].kind {
        SourceKind::Device(device) if !device.is_anonymous => device.local_id.clone().or_else(|| Some(device.name.clone())),
        SourceKind::Device(_) | SourceKind::Job { .. } => None,
    }
}

#[derive(Debug, Clone, Copy)]
struct LastRow {
    time: EventTime,
    /// Microseconds from the row before.
    step: i64,
    /// Its time came twice, and it is the second one.
    is_second: bool,
}

/// Rows of one source may be this many steps out of order.
const JITTER_STEPS: i64 = 5;
const HALF_AN_HOUR: i64 = 1_800_000_000;
/// A rotated log goes on so soon where the part before ended, in microseconds.
const MOST_PAUSE: i64 = 120_000_000;

impl RowTimes {
    /// Builds the times. `has_zone`: the zone of local times is the user's.
    pub(crate) fn new(has_zone: bool) -> Self {
        Self { has_zone, ..Self::default() }
    }

    /// Like [`Self::new`], for a file that may go on where another ended.
    pub(crate) fn following(before: Option<FileEnd>, options: &ImportOptions) -> Self {
        let before = before.filter(|_| options.files_are != Some(FileSetKind::Nodes));
        Self { before, ..Self::new(options.time_zone.is_some()) }
    }

    /// Forgets the file before if the first row is of a board that it does not have.
    pub(crate) fn begin_with(&mut self, recording: &Recording, source: SourceId) {
        if self.latest.is_none() && self.before.as_ref().is_some_and(|before| !before.boards.contains(&board(recording, source)))
        {
            self.before = None;
        }
    }

    /// Returns the end of the file.
    pub(crate) fn file_end(&self, recording: &Recording) -> Option<FileEnd> {
        let boards = self.sources.keys().map(|source| board(recording, *source)).collect();
        self.latest.map(|latest| FileEnd { latest, boards })
    }

    /// Returns whether a time had no offset of its own.
    pub(crate) fn has_local_times(&self) -> bool {
        self.without_offset.is_some()
    }

    /// Returns the time of a row. Returns an error if times with an offset and without are mixed, and no zone is given.
    pub(crate) fn resolve_time(&mut self, source: SourceId, line: u64, stamp: ParsedTime) -> Result<EventTime, RowTimeError> {
        self.check_offset(line, stamp)?;
        let last = self.sources.get(&source).copied();
        let time = match stamp {
            ParsedTime::Absolute(time) | ParsedTime::Local(time) => time,
            ParsedTime::Ambiguous { first, second } => self.choose_time(line, last, first, second),
        };
        let step = last.map_or(0, |last| match time.micros() - last.time.micros() {
            step if step > 0 => step,
            _ => last.step,
        });
        let is_second = matches!(stamp, ParsedTime::Ambiguous { second, .. } if second == time);
        self.sources.insert(source, LastRow { time, step, is_second });
        self.latest = self.latest.max(Some(time));
        Ok(time)
    }

    fn check_offset(&mut self, line: u64, stamp: ParsedTime) -> Result<(), RowTimeError> {
        let (own, other, what) = match stamp {
            ParsedTime::Absolute(_) => (&mut self.with_offset, self.without_offset, "an offset"),
            ParsedTime::Local(_) | ParsedTime::Ambiguous { .. } => (&mut self.without_offset, self.with_offset, "no offset"),
        };
        own.get_or_insert(line);
        match other {
            Some(other) if !self.has_zone => Err(RowTimeError {
                line,
                problem: format!("the time has {what}, unlike that of line {other}"),
                remedy: "give the zone of times without an offset: --time-zone UTC, or for example --time-zone Europe/Berlin"
                    .to_owned(),
            }),
            _ => Ok(()),
        }
    }

    /// Chooses between the two times that a local time may mean.
    fn choose_time(&mut self, line: u64, last: Option<LastRow>, first: EventTime, second: EventTime) -> EventTime {
        let Some(last) = last else {
            // Another source of the file may decide.
            let near = |time: EventTime| self.latest.map(|latest| (latest.micros() - time.micros()).abs());
            match (near(first), near(second)) {
                (Some(to_first), Some(to_second)) if to_first.min(to_second) <= HALF_AN_HOUR => {
                    return if to_first <= to_second { first } else { second };
                }
                _ => {}
            }
            let goes_on = |time: EventTime| {
                let pause = self.before.as_ref().map(|before| time.micros() - before.latest.micros());
                pause.is_some_and(|pause| (0..=MOST_PAUSE).contains(&pause))
            };
            if self.latest.is_none() && goes_on(first) != goes_on(second) {
                return if goes_on(first) { first } else { second };
            }
            self.open.get_or_insert((line, first, second));
            return first;
        };
        let back = last.time.micros() - first.micros();
        if back < 0 || back == 0 && last.step == 0 && self.open.is_some() {
            return first;
        }
        let hour = second.micros() - first.micros();
        let is_repeat = !last.is_second
            && last.step > 0
            && back <= (last.step * JITTER_STEPS).max(2_000_000)
            && back + last.step < (hour - back - last.step).abs();
        if is_repeat {
            return first;
        }
        // A clock that was set back within the file decides the rows before, too.
        self.open = None;
        second
    }

    /// Returns an error if the file begins in the hour that comes twice, and nothing shows which is meant.
    pub(crate) fn check(&self) -> Result<(), RowTimeError> {
        let Some((line, first, second)) = self.open else { return Ok(()) };
        Err(RowTimeError {
            line,
            problem: format!(
                "the time comes twice, as {first} and as {second}, since clocks are set back here, and no row above or below shows which \
                 is meant"
            ),
            remedy: "give the offset that holds, such as --time-zone +02:00 for summer time or +01:00 for winter time, in an import of this \
                     file alone; if it goes on where another file ends, give that file before it"
                .to_owned(),
        })
    }
}

/// No record has a silence as long as this, a year in seconds: before or after it the clock was wrong.
const LEAP_SECONDS: f64 = 366.0 * 86_400.0;
const YEAR_SECONDS: f64 = 365.25 * 86_400.0;

/// Describes the leap of a clock in a recording whose readings are in order: more than a year between two readings of a source.
/// Returns `None` if there is none.
pub(crate) fn describe_leap(recording: &Recording) -> Option<String> {
    let is_leap = |pair: &[RecordedReading]| pair[1].time.seconds_since(pair[0].time) > LEAP_SECONDS;
    let leaps = recording.sources.iter().filter_map(|source| {
        let at = source.readings.windows(2).position(is_leap)?;
        Some(source.readings.split_at(at + 1))
    });
    let (before, after) = leaps.min_by_key(|(_, after)| after.first().map(|reading| (reading.file, reading.line)))?;
    let (last, next) = (before.last()?, after.first()?);
    let place = |reading: &RecordedReading| format!("{}:{}", recording.files[reading.file as usize], reading.line);
    let years = next.time.seconds_since(last.time) / YEAR_SECONDS;
    let (rows, side) = if before.len() <= after.len() { (before.len(), "before") } else { (after.len(), "after") };
    Some(format!(
        "{}: the times leap by {years:.1} years to {}, from {} in {}: if the clock was not set yet, or is set wrong, or times are in two \
         units, correct the {} {side} the leap or take them out",
        place(next),
        next.time,
        last.time,
        place(last),
        counted(rows, "row")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{NamedTimeZone, TimeParser};

    const BERLIN: &str = "CET-1CEST,M3.5.0,M10.5.0/3";

    /// UTC clock times of the rows of one source, or the line that cannot be settled.
    fn settle(rows: &[&str]) -> Result<Vec<String>, u64> {
        let clock = TimeParser::new(None, Some(NamedTimeZone::new(BERLIN, |_| None).unwrap()));
        let mut times = RowTimes::new(true);
        let settled: Vec<String> = (1..)
            .zip(rows)
            .map(|(line, text)| {
                let stamp = clock.read(&format!("2024-10-27 {text}")).unwrap();
                times.resolve_time(0, line, stamp).unwrap().to_string()[11..19].to_owned()
            })
            .collect();
        times.check().map(|()| settled).map_err(|unsettled| unsettled.line)
    }

    #[test]
    fn the_hour_that_comes_twice_is_settled_by_the_order_of_rows() {
        for (what, rows, expected) in [
            (
                "set back once",
                &["01:50:00", "02:00:00", "02:50:00", "02:00:00", "02:50:00", "03:00:00"][..],
                Ok(&["23:50:00", "00:00:00", "00:50:00", "01:00:00", "01:50:00", "02:00:00"][..]),
            ),
            (
                "repeated and swapped rows",
                &["01:59:58", "01:59:59", "02:00:00", "02:00:00", "02:00:02", "02:00:01", "02:00:03"],
                Ok(&["23:59:58", "23:59:59", "00:00:00", "00:00:00", "00:00:02", "00:00:01", "00:00:03"]),
            ),
            ("hourly", &["01:00:00", "02:00:00", "02:00:00", "03:00:00"], Ok(&["23:00:00", "00:00:00", "01:00:00", "02:00:00"])),
            (
                "a silence over the change",
                &["01:59:59", "02:00:00", "02:50:00", "02:50:01", "02:30:00"],
                Ok(&["23:59:59", "00:00:00", "00:50:00", "00:50:01", "01:30:00"]),
            ),
            ("begins in the first", &["02:40:00", "02:50:00", "02:00:00"], Ok(&["00:40:00", "00:50:00", "01:00:00"])),
            ("nothing shows it", &["02:40:00", "02:50:00", "03:00:00"], Err(1)),
            ("nothing shows it, and rows are doubled", &["02:40:00", "02:40:00", "02:40:01"], Err(1)),
        ] {
            let expected = expected.map(|times| times.iter().map(|time| (*time).to_owned()).collect::<Vec<_>>());
            assert_eq!(settle(rows), expected, "{what}");
        }
    }

    #[test]
    fn a_part_of_a_log_goes_on_where_the_part_before_ended() {
        let clock = TimeParser::new(None, Some(NamedTimeZone::new(BERLIN, |_| None).unwrap()));
        for (what, before, first_row, expected) in [
            ("in the second", "2024-10-27T01:29:50Z", "02:30:00", Some("01:30:00")),
            ("in the first", "2024-10-27T00:29:50Z", "02:30:00", Some("00:30:00")),
            ("another node's, that ended later", "2024-10-27T02:10:00Z", "02:30:00", None),
            ("an hour before", "2024-10-26T23:30:00Z", "02:30:00", None),
        ] {
            let before = FileEnd { latest: before.parse().unwrap(), boards: BTreeSet::from([None]) };
            let mut times = RowTimes { before: Some(before), ..RowTimes::new(true) };
            let time = times.resolve_time(0, 2, clock.read(&format!("2024-10-27 {first_row}")).unwrap()).unwrap();
            let settled = times.check().is_ok().then(|| time.to_string()[11..19].to_owned());
            assert_eq!(settled.as_deref(), expected, "{what}");
        }
    }

    #[test]
    fn times_with_and_without_an_offset_need_a_zone() {
        let clock = TimeParser::new(None, None);
        let mut times = RowTimes::new(false);
        let mut settle =
            |line, text: &str| times.resolve_time(0, line, clock.read(text).unwrap()).map_err(|unsettled| unsettled.problem);
        assert!(settle(2, "2025-02-03T10:00:00Z").is_ok());
        assert!(settle(3, "2025-02-03T10:00:01+01:00").is_ok());
        assert_eq!(settle(4, "2025-02-03 10:00:02"), Err("the time has no offset, unlike that of line 2".to_owned()));
    }
}
