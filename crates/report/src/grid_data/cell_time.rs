//! Times in the cells of a file of prices or intensities.

use eadt_schemas::time_text::{
    LocalReadings, break_down, check_pattern, clock_of, compact_date, local_readings, patterns_of, split_offset, with_plain_half,
};
use jiff::Timestamp;
use jiff::civil::{DateTime, Time};
use jiff::tz::Offset;

use super::GridDataError;

/// Integers above are milliseconds since 1970, others seconds.
const MOST_SECONDS: i64 = 100_000_000_000;

/// The time that a cell shows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum CellTime {
    /// A time with a zone of its own, or a count since 1970.
    Instant(Timestamp),
    /// A time of some clock, by each order of day and month.
    Local { readings: LocalReadings, offset: Option<Offset> },
}

impl CellTime {
    /// Returns whether the zone is known from the cell alone.
    pub(super) const fn has_zone(self) -> bool {
        matches!(self, Self::Instant(_) | Self::Local { offset: Some(_), .. })
    }

    pub(super) const fn readings(self) -> Option<LocalReadings> {
        match self {
            Self::Instant(_) => None,
            Self::Local { readings, .. } => Some(readings),
        }
    }

    /// Returns the dates that it may be; `None` if it has a time of day, or a zone.
    pub(super) fn dates(self) -> Option<LocalReadings> {
        let readings = self.readings().filter(|_| !self.has_zone())?;
        readings.times().all(|time| time.time() == Time::midnight()).then_some(readings)
    }
}

/// Returns the pattern of `--time-format`, or an error if it is none.
pub fn grid_time_format(text: &str) -> Result<String, GridDataError> {
    if !text.contains('%') {
        let problem = format!("time format {text:?} has no directive");
        return Err(GridDataError::new(problem, "give a strptime pattern such as \"%m/%d/%Y %H:%M\""));
    }
    check_pattern(text).map_err(|error| GridDataError::new(error.problem, error.remedy))?;
    Ok(text.to_owned())
}

/// Returns the beginning of a time as ENTSO-E writes it: `01.01.2024 00:00 - 01.01.2024 01:00`.
pub(super) fn without_end(text: &str) -> &str {
    text.split_once(" - ").map_or(text, |(from, _)| from).trim()
}

/// Reads a time of a form that is known, or a number of seconds or milliseconds since 1970.
pub(super) fn read_time(text: &str) -> Option<CellTime> {
    let is_compact = text.len() == 14 && text.get(..8).is_some_and(|date| compact_date(date).is_some());
    if let Ok(number) = text.trim_end_matches(" UTC").parse::<i64>()
        && !is_compact
    {
        let seconds = if number.abs() > MOST_SECONDS { number / 1000 } else { number };
        return Timestamp::from_second(seconds).ok().map(CellTime::Instant);
    }
    if let Ok(time) = text.replacen(' ', "T", 1).parse::<Timestamp>() {
        return Some(CellTime::Instant(time));
    }
    let plain = with_plain_half(text);
    let (clock, offset) = split_offset(&plain);
    Some(CellTime::Local { readings: local_readings(clock)?, offset })
}

/// Reads a time or a date by a strptime pattern.
pub(super) fn read_with(pattern: &str, text: &str) -> Option<CellTime> {
    let parts = break_down(pattern, text.trim()).ok()?;
    if let Ok(time) = parts.to_timestamp() {
        return Some(CellTime::Instant(time));
    }
    Some(CellTime::Local { readings: LocalReadings::same(parts.to_datetime().ok()?), offset: None })
}

/// Reads a date, without a time or at midnight.
pub(super) fn read_date(text: &str) -> Option<LocalReadings> {
    // Eight digits are a date here, and no count.
    let is_date = !text.contains(':');
    let time = if is_date { CellTime::Local { readings: local_readings(text)?, offset: None } } else { read_time(text)? };
    time.dates()
}

/// Returns whether a text is a date without a time of day.
pub(super) fn is_mere_date(text: &str) -> bool {
    !text.contains(':') && read_date(text).is_some()
}

/// Reads an hour, 0 to 24, and its minutes: `13`, `13:00` or `1:00 PM`.
pub(super) fn read_clock(text: &str) -> Option<(i8, i8)> {
    let whole = || {
        let mut parts = text.split(':');
        let hours = parts.next()?.trim().parse::<i8>().ok().filter(|hours| (0..=24).contains(hours))?;
        let minutes = parts.next().map_or(Ok(0), |minutes| minutes.trim().parse::<i8>());
        let has_half = parts.any(|part| part.contains(char::is_alphabetic));
        Some((hours, minutes.ok().filter(|minutes| (0..60).contains(minutes) && !has_half)?))
    };
    whole().or_else(|| clock_of(text).map(|time| (time.hour(), time.minute())))
}

/// Decides the order of day and month of a column, which is that of all of its cells.
pub(super) struct DateOrderDetector<'a> {
    column: &'a str,
    /// Line, text and readings; of a cell with an instant there are none.
    cells: Vec<(u64, &'a str, Option<LocalReadings>)>,
    /// Line and text of the first cell that can only have the day first, and of the first that can only have the month first.
    proofs: [Option<(u64, &'a str)>; 2],
}

impl<'a> DateOrderDetector<'a> {
    pub(super) const fn new(column: &'a str) -> Self {
        Self { column, cells: Vec::new(), proofs: [None; 2] }
    }

    /// Adds a cell. Returns an error if it has another order than one before it.
    pub(super) fn add(&mut self, line: u64, text: &'a str, readings: Option<LocalReadings>) -> Result<(), GridDataError> {
        self.cells.push((line, text, readings));
        let Some(readings) = readings else { return Ok(()) };
        let [day_first, month_first] = &mut self.proofs;
        if readings.month_first.is_none() {
            day_first.get_or_insert((line, text));
        }
        if readings.day_first.is_none() {
            month_first.get_or_insert((line, text));
        }
        if let (Some((_, day)), Some((_, month))) = (*day_first, *month_first) {
            let problem = format!("column {:?}: the day comes first in {day:?}, and the month in {month:?}", self.column);
            return Err(GridDataError::new(problem, "write all dates in one order, such as 2026-01-31").at_line(line));
        }
        Ok(())
    }

    /// Returns the time of each cell; of one with an instant `None`. A column of which no cell shows the order is refused, unless it
    /// makes no difference.
    pub(super) fn decide(self) -> Result<Vec<Option<DateTime>>, GridDataError> {
        let is_month_first = self.proofs[1].is_some();
        if self.proofs == [None; 2] {
            let differs = |readings: Option<LocalReadings>| readings.is_some_and(|it| it.day_first != it.month_first);
            if let Some((line, text, _)) = self.cells.iter().find(|(.., readings)| differs(*readings)) {
                let column = self.column;
                let problem = format!("column {column:?}: no row shows whether the day or the month comes first, as in {text:?}");
                let patterns: Vec<String> = patterns_of(&with_plain_half(text)).iter().map(|one| format!("{one:?}")).collect();
                let remedy = format!("give the form with --time-format {}", patterns.join(" or "));
                return Err(GridDataError::new(problem, remedy).at_line(*line));
            }
        }
        let time = |readings: LocalReadings| if is_month_first { readings.month_first } else { readings.day_first };
        Ok(self.cells.into_iter().map(|(.., readings)| readings.and_then(time)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decide(texts: &[&str]) -> Result<Vec<String>, String> {
        let mut order = DateOrderDetector::new("time");
        for (line, text) in (2..).zip(texts) {
            order.add(line, text, read_time(text).unwrap().readings()).map_err(|error| error.to_string())?;
        }
        let times = order.decide().map_err(|error| error.to_string())?;
        Ok(times.into_iter().map(|time| time.map_or_else(|| "instant".to_owned(), |time| time.to_string())).collect())
    }

    #[test]
    fn the_whole_column_shows_whether_the_day_or_the_month_comes_first() {
        for (texts, expected) in [
            (["02/03/2025 00:00", "13/03/2025 00:00"], ["2025-03-02T00:00:00", "2025-03-13T00:00:00"]),
            (["02/03/2025 00:00", "02/13/2025 00:00"], ["2025-02-03T00:00:00", "2025-02-13T00:00:00"]),
            (["2/3/2025 11:00:00 PM", "2/13/2025 12:00:00 AM"], ["2025-02-03T23:00:00", "2025-02-13T00:00:00"]),
            (["02/02/2025 00:00", "02/02/2025 01:00"], ["2025-02-02T00:00:00", "2025-02-02T01:00:00"]),
            (["2025/02/03 00:00", "03.02.2025 01:00"], ["2025-02-03T00:00:00", "2025-02-03T01:00:00"]),
            (["1704067200", "2025-02-03T00:00:00Z"], ["instant", "instant"]),
        ] {
            assert_eq!(decide(&texts).as_deref(), Ok(&expected.map(str::to_owned)[..]), "{texts:?}");
        }
    }

    #[test]
    fn an_order_that_no_row_shows_or_that_changes_is_refused_with_the_way_out() {
        let unknown = decide(&["03/03/2025 00:00", "02/03/2025 11:00"]).unwrap_err();
        assert_eq!(
            unknown,
            "line 3: column \"time\": no row shows whether the day or the month comes first, as in \"02/03/2025 11:00\"; give the form \
             with --time-format \"%d/%m/%Y %H:%M\" or \"%m/%d/%Y %H:%M\""
        );
        let changes = decide(&["13/02/2025 00:00", "02/03/2025 00:00", "02/14/2025 00:00"]).unwrap_err();
        assert_eq!(
            changes,
            "line 4: column \"time\": the day comes first in \"13/02/2025 00:00\", and the month in \"02/14/2025 00:00\"; write all \
             dates in one order, such as 2026-01-31"
        );
    }

    #[test]
    fn a_form_that_is_given_is_a_pattern() {
        for (text, part) in [
            ("rfc3339", "\"rfc3339\" has no directive; give a strptime pattern"),
            ("%m/%d/%Y %I:%M", "nothing that sets the half of the day; use %H"),
        ] {
            let message = grid_time_format(text).unwrap_err().to_string();
            assert!(message.contains(part), "{message}");
        }
        assert_eq!(grid_time_format("%m/%d/%Y %I:%M %p").as_deref(), Ok("%m/%d/%Y %I:%M %p"));
    }
}
