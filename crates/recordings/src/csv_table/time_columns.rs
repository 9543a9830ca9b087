//! Times in several columns, and times of day without a date.

use std::collections::{BTreeSet, HashMap};

use eadt_schemas::EventTime;
use jiff::civil::Date;

use crate::clock::{ParsedTime, TimeParser, is_time_of_day};
use crate::recording::SourceId;
use crate::table::{RowCells, TableReader};

/// Rows by which a column of dates, of times of day, or of hours is known.
const ROWS_TO_SEE_DATES: u32 = 50;

/// Columns of a time beside the one that has its date or its year.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct TimeParts {
    /// Month and day, where the first column has the year only.
    month_and_day: Option<[usize; 2]>,
    /// A time of day.
    clock: Option<usize>,
    hour: Option<usize>,
    minute: Option<usize>,
    second: Option<usize>,
    /// Hours go from 1 to 24.
    is_to_24: bool,
}

/// Returns the column of a name.
fn column_called(names: &[String], name: &str) -> Option<usize> {
    let plain = |have: &str| have.split(['[', '(']).next().unwrap_or(have).trim().eq_ignore_ascii_case(name);
    names.iter().position(|have| plain(have))
}

impl TimeParts {
    /// Returns a date and a time of day.
    pub(super) fn of_clock(clock: usize) -> Self {
        Self { clock: Some(clock), ..Self::default() }
    }

    /// Returns the columns `hour`, `minute` and `second` beside one of dates; `None` if there is no column of hours.
    fn of_hours(names: &[String]) -> Option<Self> {
        let hour = Some(column_called(names, "hour")?);
        Some(Self { hour, minute: column_called(names, "minute"), second: column_called(names, "second"), ..Self::default() })
    }

    /// Returns the column of the year, and the columns `month` and `day` with those of the hour; `None` if one of the three is
    /// missing.
    pub(super) fn of_year(names: &[String]) -> Option<(usize, Self)> {
        let month_and_day = Some([column_called(names, "month")?, column_called(names, "day")?]);
        let year = column_called(names, "year")?;
        Some((year, Self { month_and_day, ..Self::of_hours(names).unwrap_or_default() }))
    }

    /// Returns the columns of a map `time=year+month+day+hour`, or of one with a time of day in place of the hour; `None` if the
    /// names do not state what they have.
    pub(super) fn of_map(names: &[String], columns: &[usize]) -> Option<(usize, Self)> {
        let (year, parts) = Self::of_year(names)?;
        let is_mapped = |index: &usize| columns.contains(index);
        let hour = parts.hour.filter(is_mapped);
        let (minute, second) = (parts.minute.filter(is_mapped), parts.second.filter(is_mapped));
        let clock = if hour.is_none() { columns.get(3).copied() } else { None };
        let parts = Self { clock, hour, minute, second, ..parts };
        let all: Vec<usize> = std::iter::once(year).chain(parts.columns()).collect();
        (columns.len() == all.len() && columns.iter().all(|index| all.contains(index))).then_some((year, parts))
    }

    /// Returns the pattern of the parts behind a date.
    pub(super) const fn pattern(&self) -> &'static str {
        match (self.clock, self.minute, self.second) {
            (Some(_), ..) => "%H:%M:%S",
            (None, Some(_), Some(_)) => "%H %M %S",
            (None, Some(_), None) => "%H %M",
            (None, None, _) => "%H",
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.columns().next().is_none()
    }

    pub(super) fn columns(&self) -> impl Iterator<Item = usize> {
        let further = [self.clock, self.hour, self.minute, self.second];
        self.month_and_day.into_iter().flatten().chain(further.into_iter().flatten())
    }

    /// Returns the same parts in other columns; `None` if one has no column.
    pub(super) fn moved(&self, place: impl Fn(usize) -> Option<usize>) -> Option<Self> {
        let of = |column: Option<usize>| column.map(&place).map_or(Some(None), |found| found.map(Some));
        let month_and_day = match self.month_and_day {
            Some([month, day]) => Some([place(month)?, place(day)?]),
            None => None,
        };
        let (clock, hour) = (of(self.clock)?, of(self.hour)?);
        Some(Self { month_and_day, clock, hour, minute: of(self.minute)?, second: of(self.second)?, is_to_24: self.is_to_24 })
    }

    /// Returns the time of a row as one text: in the order of its columns if a pattern reads it, else as a date and a time of
    /// day. An error continues "TEXT is".
    pub(super) fn text(
        &self,
        first: &str,
        cells: &RowCells,
        clock: &TimeParser,
        day: &mut NumberedDay,
    ) -> Result<String, (String, String)> {
        let cell = |index: usize| cells.get(index).unwrap_or_default();
        if clock.pattern().is_some() {
            if let Some(hour) = self.hour.filter(|_| self.is_to_24) {
                return Err((cell(hour).to_owned(), HOURS_TO_24.to_owned()));
            }
            let all: Vec<&str> = std::iter::once(first).chain(self.columns().map(cell)).collect();
            return Ok(all.join(" "));
        }
        let date = match self.month_and_day {
            Some([month, day]) => format!("{first}-{:0>2}-{:0>2}", cell(month), cell(day)),
            None => first.to_owned(),
        };
        if let Some(clock) = self.clock {
            return Ok(format!("{date} {}", cell(clock)));
        }
        let Some(hour) = self.hour.map(cell) else { return Ok(format!("{date} 00:00")) };
        let number = hour.parse::<u32>().ok();
        let hour = match (number, self.is_to_24) {
            (Some(0), true) => return Err((hour.to_owned(), "an hour 0 where there is an hour 24".to_owned())),
            (Some(number), true) => {
                let placed = day.place(clock, &date, number - 1);
                placed.ok_or_else(|| (format!("{date} hour {hour}"), UNPLACED_HOUR.to_owned()))?.to_string()
            }
            (Some(24), false) => return Err((hour.to_owned(), LATE_24.to_owned())),
            (Some(number), false) if clock.is_skipped(&format!("{date} {number:02}:00:00")) => {
                return Err((format!("{date} hour {hour}"), UNPLACED_HOUR.to_owned()));
            }
            _ => hour.to_owned(),
        };
        let [minute, second] = [self.minute, self.second].map(|column| column.map_or("0", cell));
        Ok(format!("{date} {hour:0>2}:{minute:0>2}:{second:0>2}"))
    }
}

/// Fault of hours to 24 that a pattern would have to read.
const HOURS_TO_24: &str =
    "one of the hours from 1 to 24, which no pattern reads; write dates such as 2025-02-03, or hours from 0 to 23";

/// Fault of an hour 24 below hours that were read as those from 0 to 23.
const LATE_24: &str = "no hour from 0 to 23, as which the hours of the first rows are read; write hours from 0 to 23";

/// Fault of an hour that the day does not have.
const UNPLACED_HOUR: &str = "no hour of that day, on which clocks were set forward, so that it is not known from where hours are \
                             counted; check --time-zone, or write times with their offsets, such as 2025-03-30T03:00:00+02:00";

/// The day of the rows above, of hours from 1 to 24, of which a day when clocks are set forward may have those from 1 to 23.
#[derive(Debug, Default)]
pub(super) struct NumberedDay {
    date: String,
    highest: u32,
    /// The hour over which clocks are set forward, of which there is a row.
    skipped: Option<u32>,
}

impl NumberedDay {
    /// Returns the hour of the clock at which the hour of a row begins, both from 0; `None` if it cannot be known.
    fn place(&mut self, clock: &TimeParser, date: &str, hour: u32) -> Option<u32> {
        if self.date != date {
            *self = Self { date: date.to_owned(), ..Self::default() };
        }
        if self.skipped.is_none() && clock.is_skipped(&format!("{date} {hour:02}:00:00")) {
            // Rows of later hours were taken as hours of the clock.
            if self.highest > hour {
                return None;
            }
            self.skipped = Some(hour);
        }
        self.highest = self.highest.max(hour);
        let placed = hour + u32::from(self.skipped.is_some_and(|skipped| hour >= skipped));
        (placed < 24).then_some(placed)
    }
}

/// Kinds of values in the first rows of each column.
pub(super) struct TimeColumnProbe {
    rows: u32,
    dates: Vec<bool>,
    clocks: Vec<bool>,
    /// A row of the column of times has a whole one.
    has_time: bool,
    /// Whole numbers from 0 to 24.
    hours: Vec<bool>,
    has_24: Vec<bool>,
    /// The hours of each date, in the order of the rows.
    days: Vec<(String, BTreeSet<u32>)>,
}

impl TimeColumnProbe {
    /// Looks at the rows below the header that have the time.
    pub(super) fn new(table: &TableReader<'_>, names: &[String], time: usize, clock: &TimeParser) -> Self {
        let width = names.len();
        let all = || vec![true; width];
        let has_24 = vec![false; width];
        let mut head = Self { rows: 0, dates: all(), clocks: all(), has_time: false, hours: all(), has_24, days: Vec::new() };
        let hours = column_called(names, "hour");
        table.peek(|cells| {
            // The row below the header may be one of units, which is no whole row.
            if cells.len() != width || cells.get(time).is_none_or(str::is_empty) {
                return;
            }
            let is_looked_at = head.rows < ROWS_TO_SEE_DATES;
            head.has_time |= is_looked_at && cells.get(time).is_some_and(|cell| clock.read(cell).is_ok());
            head.rows += 1;
            let hour = hours.and_then(|hours| cells.get(hours)).and_then(|hour| hour.parse::<u32>().ok());
            if let (Some(date), Some(hour)) = (cells.get(time), hour) {
                head.add_hour(date, hour);
            }
            for (index, cell) in cells.iter().enumerate() {
                let hour = cell.parse::<u32>().ok().filter(|hour| *hour <= 24);
                head.has_24[index] |= hour == Some(24);
                head.hours[index] &= hour.is_some();
                if is_looked_at {
                    head.dates[index] = head.dates[index] && clock.is_date(cell);
                    head.clocks[index] = head.clocks[index] && is_time_of_day(cell);
                }
            }
        });
        head
    }

    fn add_hour(&mut self, date: &str, hour: u32) {
        match self.days.iter().rposition(|(have, _)| have == date) {
            Some(at) => {
                self.days[at].1.insert(hour);
            }
            None => self.days.push((date.to_owned(), BTreeSet::from([hour]))),
        }
    }

    /// Returns whether numbers may be the hours of the dates: each date has several, but for the first and the last, and a few
    /// with rows missing. One number a date may be a duration.
    fn are_hours_of_dates(&self) -> bool {
        let several = |days: &[(String, BTreeSet<u32>)]| days.iter().filter(|(_, hours)| hours.len() > 1).count();
        match self.days.as_slice() {
            [] | [_] => true,
            [(_, before), (_, after)] if several(&self.days) == 0 => {
                matches!((before.first(), after.first()), (Some(23), Some(0)) | (Some(24), Some(1)))
            }
            [_, between @ .., _] => several(&self.days) > 0 && several(between) * 10 >= between.len() * 9,
        }
    }

    /// Returns whether the column of times has whole times, or dates.
    pub(super) const fn has_times(&self) -> bool {
        self.has_time
    }

    /// Returns whether a column has dates only (true), or times of day only (false); `None` if it has neither.
    pub(super) fn half(&self, column: usize) -> Option<bool> {
        let is_half = self.rows > 0 && (self.dates[column] || self.clocks[column]);
        is_half.then(|| self.dates[column])
    }

    /// Takes the hours of a map for numbers from 1 to 24 if there is a 24, and a time of day in a column of hours for such
    /// numbers.
    pub(super) fn settle_hours(&self, names: &[String], parts: TimeParts) -> TimeParts {
        let mut parts = parts;
        if let Some(clock) = parts.clock.filter(|clock| self.rows > 0 && self.hours[*clock])
            && column_called(names, "hour") == Some(clock)
        {
            (parts.clock, parts.hour) = (None, Some(clock));
        }
        parts.is_to_24 = parts.hour.is_some_and(|hour| self.has_24[hour]);
        parts
    }

    /// Returns the columns that have the other half of a time of which one column has dates, or times of day, only: the first
    /// one, and the parts.
    pub(super) fn other_half(&self, names: &[String], time: usize) -> Option<(usize, TimeParts)> {
        let has_dates = self.half(time)?;
        let wanted = if has_dates { &self.clocks } else { &self.dates };
        let free: Vec<usize> = (0..names.len()).filter(|index| wanted[*index] && *index != time).collect();
        match (free.as_slice(), has_dates) {
            ([clock], true) => Some((time, TimeParts::of_clock(*clock))),
            ([date], false) => Some((*date, TimeParts::of_clock(time))),
            (_, true) => {
                let has_hours = |parts: &TimeParts| parts.hour.is_some_and(|hour| self.hours[hour]);
                let parts = TimeParts::of_hours(names).filter(|parts| has_hours(parts) && self.are_hours_of_dates())?;
                Some((time, self.settle_hours(names, parts)))
            }
            (_, false) => {
                let (year, parts) = TimeParts::of_year(names)?;
                Some((year, TimeParts { month_and_day: parts.month_and_day, ..TimeParts::of_clock(time) }))
            }
        }
    }
}

const HALF_A_DAY: f64 = 43_200.0;
/// A row that is so much later than the one above is of the day before, out of order.
const NEARLY_A_DAY: f64 = 82_800.0;
/// A row that is earlier than the one above by no more than this, and later than the one before that, is out of order.
const SMALL_FALL: f64 = 600.0;

/// Fault of a row that may be out of order, or belong to the next day.
const UNKNOWN_DAY: &str = "a time of day before that of the row above, by less than half a day: it may be of the next day, or out of \
                           order; write whole times, such as 2025-02-03T10:00:00, into the rows, or sort them if they are of one \
                           day; if rows are of several boards, use --map device=COLUMN";

/// The reason why the time of a row is not known.
#[derive(Debug)]
pub(super) enum UnknownTime {
    /// The text is no time; it continues "TEXT is".
    Damaged(String),
    /// Its day is not known.
    Day(&'static str),
}

/// The row of a source above.
#[derive(Debug, Clone, Copy)]
struct RowAbove {
    date: Date,
    at: EventTime,
    /// Seconds by which the last row that was later than the one above it was so.
    step: f64,
}

/// The days of rows that have times of day only.
#[derive(Debug, Default)]
pub(super) struct ClockDays {
    first: Option<(Date, EventTime)>,
    latest: Option<(Date, EventTime)>,
    of_sources: HashMap<SourceId, RowAbove>,
}

impl ClockDays {
    /// Reads the time of day of a row. It is of the next day if it falls by more than half a day below that of the row of the
    /// same source above; if it falls by less, and not by a row or so, its day is not known. The first row of a source is of the
    /// day by which it is nearest to the row above, or to the first row of the file.
    pub(super) fn read(
        &mut self,
        clock: &TimeParser,
        source: SourceId,
        begin: Date,
        text: &str,
    ) -> Result<ParsedTime, UnknownTime> {
        let beside = |date: Date| [Some(date), date.yesterday().ok(), date.tomorrow().ok()];
        let above = self.of_sources.get(&source).copied();
        let date = match (above, self.latest.zip(self.first)) {
            (Some(above), _) => {
                let [_, before, after] = beside(above.date);
                let stamp = clock.read_on(above.date, text).map_err(UnknownTime::Damaged)?;
                let step = stamp.earliest().seconds_since(above.at);
                // The hour that comes twice.
                let is_repeated = matches!(stamp, ParsedTime::Ambiguous { .. });
                let is_out_of_order = -step < above.step && -step <= SMALL_FALL;
                if (-HALF_A_DAY..0.0).contains(&step) && !is_repeated && !is_out_of_order {
                    return Err(UnknownTime::Day(UNKNOWN_DAY));
                }
                let moved = if step < -HALF_A_DAY { after } else { before.filter(|_| step > NEARLY_A_DAY) };
                moved.unwrap_or(above.date)
            }
            (None, Some(((date, latest), (first_date, first)))) => {
                let near_latest = beside(date).into_iter().flatten().map(|date| (date, latest));
                let candidates = std::iter::once((first_date, first)).chain(near_latest);
                let distance = |(date, anchor): (Date, EventTime)| {
                    Some((clock.read_on(date, text).ok()?.earliest().seconds_since(anchor).abs(), date))
                };
                candidates.filter_map(distance).min_by(|a, b| a.0.total_cmp(&b.0)).map_or(date, |(_, date)| date)
            }
            (None, None) => begin,
        };
        let stamp = clock.read_on(date, text).map_err(UnknownTime::Damaged)?;
        let at = stamp.earliest();
        self.first.get_or_insert((date, at));
        self.latest = Some((date, at));
        let passed = above.map(|above| at.seconds_since(above.at)).filter(|passed| *passed > 0.0);
        let step = passed.or(above.map(|above| above.step)).unwrap_or(0.0);
        self.of_sources.insert(source, RowAbove { date, at, step });
        Ok(stamp)
    }

    /// Returns the last day of a row; `None` if no row has a time of day only.
    pub(super) fn last_day(&self) -> Option<Date> {
        self.of_sources.values().map(|above| above.date).max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_day_go_on_over_midnight() {
        let clock = TimeParser::new(None, None);
        let begin: Date = "2025-02-03".parse().unwrap();
        for (what, rows, expected) in [
            ("one day", &[(0, "10:00"), (0, "22:30"), (0, "23:00")][..], &["03T10:00", "03T22:30", "03T23:00"][..]),
            (
                "midnight",
                &[(0, "23:59"), (0, "00:00"), (0, "23:00"), (0, "01:00")],
                &["03T23:59", "04T00:00", "04T23:00", "05T01:00"],
            ),
            ("out of order", &[(0, "23:59"), (0, "00:01"), (0, "23:58")], &["03T23:59", "04T00:01", "03T23:58"]),
            (
                "one row out of order",
                &[(0, "14:00"), (0, "14:02"), (0, "14:01"), (0, "14:03")],
                &["03T14:00", "03T14:02", "03T14:01", "03T14:03"],
            ),
            (
                "boards in turn",
                &[(0, "23:59"), (1, "23:59"), (0, "00:00"), (2, "00:00")],
                &["03T23:59", "03T23:59", "04T00:00", "04T00:00"],
            ),
            (
                "boards one by one",
                &[(0, "10:00"), (0, "23:00"), (0, "09:00"), (1, "10:00")],
                &["03T10:00", "03T23:00", "04T09:00", "03T10:00"],
            ),
        ] {
            let mut days = ClockDays::default();
            let read = |(source, text): &(SourceId, &str)| {
                days.read(&clock, *source, begin, text).unwrap().earliest().to_string()[8..16].to_owned()
            };
            assert_eq!(rows.iter().map(read).collect::<Vec<_>>(), expected, "{what}");
        }
        for (what, rows) in [
            ("hours back", &["14:00", "14:01", "13:00"][..]),
            ("a working day", &["08:00", "17:59", "08:00"]),
            ("minutes a day", &["08:00", "08:01", "08:02", "08:00"]),
        ] {
            let mut days = ClockDays::default();
            let mut read = rows.iter().map(|text| days.read(&clock, 0, begin, text)).skip(rows.len() - 1);
            let last = read.next();
            assert!(matches!(last, Some(Err(UnknownTime::Day(_)))), "{what}: {last:?}");
        }
    }
}
