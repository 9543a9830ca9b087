//! Time series in CSV: a column of times and a column of values, as providers of grid data publish them.

use std::collections::BTreeSet;

use eadt_models::energy::{CarbonIntensity, KwhRateSteps, PRICE_MAX};
use eadt_schemas::counts::{self, counted};
use jiff::Timestamp;
use jiff::civil::{Date, DateTime};
use jiff::tz::TimeZone;

use super::cell_time::{CellTime, DateOrderDetector, is_mere_date, read_clock, read_date, read_time, read_with, without_end};
use super::unit::{ColumnUnit, UnitKind, has_energy_unit, read_unit};
use super::zone::{names_zone, zone_of};
use super::{GridCarbon, GridDataError};
use crate::units;

/// More than any grid emits, in g/kWh.
const GRAMS_MAX: f64 = 3000.0;
/// A value holds until the next; if one is missing, no longer than this many usual steps.
const STEPS_HELD: f64 = 1.5;
/// Least Unix time in seconds that counts as a time (in 1973): a lesser number may be a date without its separators, or anything.
const LEAST_SECONDS: f64 = 1e8;

/// The columns of a date.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DateColumns {
    Whole(usize),
    /// Year, month and day.
    Parts([usize; 3]),
}

impl DateColumns {
    const fn first(self) -> usize {
        match self {
            Self::Whole(index) | Self::Parts([index, ..]) => index,
        }
    }

    /// Returns the date of a row as one text.
    fn text(self, cells: &[String]) -> String {
        match self {
            Self::Whole(index) => cells[index].clone(),
            Self::Parts([year, month, day]) => format!("{}-{:0>2}-{:0>2}", cells[year], cells[month], cells[day]),
        }
    }
}

/// The columns that make the time of a row together, if no column holds whole times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct DateAndHour {
    date: DateColumns,
    /// Hours such as `13`, or times of day such as `13:00`.
    hour: usize,
    minute: Option<usize>,
}

/// The time of each row.
struct RowTimes {
    times: Vec<Timestamp>,
    /// They name no zone, and none was given: they are read as UTC.
    is_zone_assumed: bool,
}

/// The rows below the header, cells without spaces around them.
pub(super) struct GridDataTable {
    pub(super) header: Vec<String>,
    /// Line, and a cell for each column.
    pub(super) rows: Vec<(u64, Vec<String>)>,
    /// Cells are separated by `;`, so that a comma may be a decimal one.
    semicolons: bool,
    /// The strptime pattern that is given for times or dates; a column that it does not read is read as without it.
    time_format: Option<String>,
}

impl GridDataTable {
    pub(super) fn read(text: &str, time_format: Option<&str>) -> Result<Self, GridDataError> {
        let text = text.trim_start_matches('\u{feff}');
        let first = text.lines().find(|line| !line.trim().is_empty());
        let first = first.ok_or_else(|| GridDataError::new("the file is empty", "name another file"))?;
        let count = |separator: char| first.matches(separator).count();
        let separator =
            [',', ';', '\t'].into_iter().max_by_key(|separator| (count(*separator), *separator == ',')).unwrap_or(',');
        let mut reader = csv::ReaderBuilder::new()
            .delimiter(separator as u8)
            .has_headers(false)
            .flexible(true)
            .comment(Some(b'#'))
            .trim(csv::Trim::All)
            .from_reader(text.as_bytes());
        let mut header = Vec::new();
        let mut rows = Vec::new();
        for record in reader.records() {
            let record =
                record.map_err(|error| GridDataError::new(format!("cannot be read: {error}"), "give a CSV file in UTF-8"))?;
            let line = record.position().map_or(0, csv::Position::line);
            let cells: Vec<String> = record.iter().map(str::to_owned).collect();
            if header.is_empty() {
                header = cells;
            } else if cells.len() == header.len() {
                rows.push((line, cells));
            } else {
                let problem = format!("the row has {}, its header {}", counted(cells.len(), "cell"), header.len());
                return Err(GridDataError::new(problem, "restore the row or take it out").at_line(line));
            }
        }
        if rows.is_empty() {
            return Err(GridDataError::new("there is no row below the header", "name another file"));
        }
        Ok(Self { header, rows, semicolons: separator == ';', time_format: time_format.map(str::to_owned) })
    }

    /// Returns the first column whose name, in lower case, is like this.
    pub(super) fn column(&self, is: impl Fn(&str) -> bool) -> Option<usize> {
        self.header.iter().position(|name| is(&name.to_lowercase()))
    }

    /// Returns a number, of a size that sums of it stay numbers; `None` if there is no value.
    pub(super) fn parse_number(&self, line: u64, cell: &str) -> Result<Option<f64>, GridDataError> {
        if ["", "-", "n/e", "n/a", "na", "nan", "null", "none"].iter().any(|absent| cell.eq_ignore_ascii_case(absent)) {
            return Ok(None);
        }
        let text = if self.semicolons { cell.replace(',', ".") } else { cell.to_owned() };
        let refused = |why: &str| GridDataError::new(format!("{cell:?} is {why}"), "correct the cell").at_line(line);
        let number = text.parse::<f64>().ok().filter(|value| value.is_finite()).ok_or_else(|| refused("not a number"))?;
        if number.abs() > PRICE_MAX {
            return Err(refused(&format!("beyond ±{PRICE_MAX:e}")));
        }
        Ok(Some(number))
    }

    /// Returns the name of a column of values; if it does not name its whole unit, with the unit that a column `unit` gives. Such a
    /// column may hold anything: it counts if a cell names a unit per kWh or `MWh`.
    pub(super) fn name_with_unit(&self, value: usize, kind: UnitKind) -> Result<String, GridDataError> {
        let name = self.header[value].clone();
        let has_energy = has_energy_unit(&name);
        let is_whole = has_energy && !read_unit(&name, kind).is_ok_and(|unit| unit.amount.is_none());
        let completes =
            |cell: &str| has_energy_unit(cell) && (!has_energy || read_unit(cell, kind).is_ok_and(|unit| unit.amount.is_some()));
        let units = self.column(|name| ["unit", "units"].contains(&name)).filter(|_| !is_whole);
        let has_unit = |units: &usize| self.rows.iter().any(|(_, cells)| completes(&cells[*units]));
        let Some(units) = units.filter(has_unit) else { return Ok(name) };
        let mut row_units =
            self.rows.iter().map(|(line, cells)| (*line, cells[units].as_str())).filter(|(_, unit)| !unit.is_empty());
        let Some((_, unit)) = row_units.next() else { return Ok(name) };
        if let Some((line, other)) = row_units.find(|(_, other)| other.to_lowercase() != unit.to_lowercase()) {
            let problem = format!("column {:?}: {other:?} after {unit:?}", self.header[units]);
            return Err(GridDataError::new(problem, "give the rows of one unit").at_line(line));
        }
        Ok(format!("{name}, {unit}"))
    }

    /// Returns the column that an option names.
    pub(super) fn named_column(&self, name: &str, option: &str) -> Result<usize, GridDataError> {
        let like =
            |is: &dyn Fn(&str) -> bool| (0..self.header.len()).filter(|index| is(&self.header[*index])).collect::<Vec<_>>();
        let exact = like(&|head| head == name);
        let found = if exact.is_empty() { like(&|head| head.eq_ignore_ascii_case(name)) } else { exact };
        match found.as_slice() {
            [index] => Ok(*index),
            [] => {
                let problem = format!("there is no column {name:?} (there are: {})", self.names());
                Err(GridDataError::new(problem, format!("name one of them with {option}")))
            }
            several => {
                let problem = format!("{} columns are called {name:?}", several.len());
                Err(GridDataError::new(problem, "give each a name of its own in the header"))
            }
        }
    }

    /// Returns whether a cell of a column is a number.
    pub(super) fn holds_numbers(&self, index: usize) -> bool {
        self.rows.iter().any(|(line, cells)| matches!(self.parse_number(*line, &cells[index]), Ok(Some(_))))
    }

    /// Returns whether columns hold the same values, each in its own unit.
    pub(super) fn is_one_series(&self, columns: &[usize], kind: UnitKind) -> bool {
        let units: Option<Vec<ColumnUnit>> = columns.iter().map(|index| read_unit(&self.header[*index], kind).ok()).collect();
        let Some(units) = units else { return false };
        let values = |at: usize| -> Vec<Option<f64>> {
            let value = |(line, cells): &(u64, Vec<String>)| self.parse_number(*line, &cells[columns[at]]).ok().flatten();
            self.rows.iter().map(|row| value(row).map(|value| value * units[at].per_kwh())).collect()
        };
        let first = values(0);
        let highest = first.iter().flatten().fold(0.0_f64, |highest, value| highest.max(value.abs()));
        let is_same = |one: Option<f64>, other: Option<f64>| match (one, other) {
            (Some(one), Some(other)) => (one - other).abs() <= ROUNDED_RATIO * highest,
            (one, other) => one.is_none() && other.is_none(),
        };
        (1..columns.len()).all(|at| first.iter().zip(values(at)).all(|(one, other)| is_same(*one, other)))
    }

    /// Returns the column of the times: by its name, else the first that holds nothing but times.
    fn time_column(&self) -> Option<usize> {
        let holds_times = |index: &usize| {
            let is_time = |cell: &str| cell.parse::<f64>().is_err() && self.time_of(cell).is_some();
            self.rows.iter().all(|(_, cells)| is_time(&cells[*index]))
        };
        let counts = |name: &str| ["unix", "epoch"].iter().any(|word| name.contains(word));
        self.column(is_time).or_else(|| (0..self.header.len()).find(holds_times)).or_else(|| self.column(counts))
    }

    /// Returns the column with one of these names, ignoring text in brackets.
    fn column_called(&self, names: &[&str]) -> Option<usize> {
        self.column(|name| name.split(['[', '(']).next().is_some_and(|name| names.contains(&name.trim())))
    }

    /// Returns the column of hours.
    pub(super) fn hour_column(&self) -> Option<usize> {
        self.column_called(&["hour"])
    }

    /// Returns the columns of year, month and day, if these hold nothing else.
    fn year_month_day(&self) -> Option<DateColumns> {
        let parts = [self.column_called(&["year"])?, self.column_called(&["month"])?, self.column_called(&["day"])?];
        let date = DateColumns::Parts(parts);
        self.rows.iter().all(|(_, cells)| is_mere_date(&date.text(cells))).then_some(date)
    }

    /// Returns the column of times of day beside one of dates: by its name, or if a date has several rows.
    fn clock_column(&self, date: DateColumns) -> Option<usize> {
        let is_clock = |cell: &str| cell.contains(':') && read_clock(without_end(cell)).is_some();
        let holds_clocks = |index: &usize| !self.is_aside(*index) && self.cells(*index).all(is_clock);
        let clocks: Vec<usize> = (0..self.header.len()).filter(holds_clocks).collect();
        let dates: BTreeSet<String> = self.rows.iter().map(|(_, cells)| date.text(cells)).collect();
        let has_several = dates.len() < self.rows.len();
        let mut begins = clocks.into_iter().filter(|index| !names_end(&self.header[*index]));
        begins.find(|index| has_several || names_clock(&self.header[*index]))
    }

    /// Returns whether a column is left out as one of the rows' dates beside one of hours.
    fn is_aside(&self, index: usize) -> bool {
        let name = self.header[index].to_lowercase();
        let is_note = name.split(|c: char| !c.is_alphanumeric()).any(|word| ["note", "notes"].contains(&word));
        is_note || ["updat", "valid", "created", "modified"].iter().any(|part| name.contains(part))
    }

    fn cells(&self, index: usize) -> impl Iterator<Item = &str> {
        self.rows.iter().map(move |(_, cells)| cells[index].as_str())
    }

    /// Returns whether the rows are of dates or times of their own, so that their hours are not those of every day.
    pub(super) fn has_dates(&self) -> bool {
        let is_broken = |index: usize| {
            let is_dated = |cell: &str| self.is_date(cell) || self.is_whole_time(cell, true);
            names_date(&self.header[index]) && !self.is_aside(index) && self.varies(index) && self.cells(index).any(is_dated)
        };
        let is_dated = self.date_column().is_some() || self.whole_time_column().is_some() || self.year_month_day().is_some();
        is_dated || (0..self.header.len()).any(is_broken)
    }

    /// Returns whether a column has two values; the one row of a table counts as well.
    fn varies(&self, index: usize) -> bool {
        let first = self.cells(index).next();
        self.rows.len() == 1 || self.cells(index).any(|cell| Some(cell) != first)
    }

    /// Returns the column of dates beside one of hours: one that holds nothing else, by its name, else the first; else one of the
    /// name that holds some.
    fn date_column(&self) -> Option<usize> {
        let columns: Vec<usize> = (0..self.header.len()).filter(|index| !self.is_aside(*index)).collect();
        let is_named = |index: &usize| names_date(&self.header[*index]);
        let holds_dates = |index: &usize| {
            let is_date = |cell: &str| self.is_date(cell) && (is_named(index) || cell.parse::<f64>().is_err());
            self.cells(*index).all(is_date)
        };
        let holds_some = |index: &usize| is_named(index) && self.cells(*index).any(|cell| self.is_date(cell));
        let whole: Vec<usize> = columns.iter().copied().filter(holds_dates).collect();
        let named = whole.iter().copied().find(is_named);
        named.or_else(|| whole.first().copied()).or_else(|| columns.iter().copied().find(holds_some))
    }

    /// Returns the column of whole times: one with a zone in its cells or its name, else the first.
    fn whole_time_column(&self) -> Option<usize> {
        let holds_times = |index: &usize| {
            let counts = is_time(&self.header[*index].to_lowercase());
            let are_dates = || self.cells(*index).all(|cell| self.is_date(cell));
            let are_times = || self.cells(*index).all(|cell| self.is_whole_time(cell, counts));
            !self.is_aside(*index) && self.varies(*index) && are_times() && !are_dates()
        };
        let whole: Vec<usize> = (0..self.header.len()).filter(holds_times).collect();
        let first = whole.first().copied();
        whole.into_iter().find(|index| !names_end(&self.header[*index]) && self.has_zone(*index)).or(first)
    }

    /// Returns whether a column's cells have their zones, or its name has one.
    fn has_zone(&self, index: usize) -> bool {
        self.cells(index).all(|cell| self.time_of(cell).is_some_and(CellTime::has_zone)) || names_zone(&self.header[index])
    }

    /// Returns the columns of dates and of hours, or of times of day, that make the times together, if no column holds whole
    /// times.
    fn date_and_hour_columns(&self) -> Option<DateAndHour> {
        if self.whole_time_column().is_some() {
            return None;
        }
        let hour = self.hour_column();
        let date = self.date_column().map(DateColumns::Whole).or_else(|| self.year_month_day())?;
        let minute = self.column_called(&["minute"]).filter(|_| hour.is_some());
        let hour = hour.or_else(|| self.clock_column(date)).filter(|hour| date.first() != *hour)?;
        Some(DateAndHour { date, hour, minute })
    }

    /// Returns the time of each row. `stated`: the zone of times that name none.
    fn times(&self, stated: Option<&TimeZone>) -> Result<RowTimes, GridDataError> {
        if let Some(columns) = self.date_and_hour_columns() {
            return self.times_of_hours(columns, stated);
        }
        let of_hours = self.hour_column().and_then(|_| self.whole_time_column());
        let time = of_hours.or_else(|| self.time_column()).ok_or_else(|| {
            GridDataError::new(
                format!("no column holds times (there are: {})", self.names()),
                "name one datetime, with times such as 2026-01-31T23:00:00Z",
            )
        })?;
        let cells = self.times_in(time)?;
        let has_zones = cells.iter().all(|cell| cell.has_zone());
        let zone = if has_zones { TimeZone::UTC } else { zone_of(&self.header[time], stated)? };
        let is_zone_assumed = stated.is_none() && !has_zones && !names_zone(&self.header[time]);
        let mut order = DateOrderDetector::new(&self.header[time]);
        for ((line, row), cell) in self.rows.iter().zip(&cells) {
            order.add(*line, without_end(&row[time]), cell.readings())?;
        }
        let locals = order.decide()?;
        let mut times: Vec<Timestamp> = Vec::new();
        for (((line, row), cell), local) in self.rows.iter().zip(cells).zip(locals) {
            let at = match (cell, local) {
                (CellTime::Instant(at), _) => Some(at),
                (CellTime::Local { offset: Some(offset), .. }, Some(local)) => offset.to_timestamp(local).ok(),
                (CellTime::Local { .. }, local) => local.and_then(|local| local_time(local, &zone, times.last().copied())),
            };
            times.push(at.ok_or_else(|| self.no_time(*line, time, &row[time]))?);
        }
        Ok(RowTimes { times, is_zone_assumed })
    }

    /// Returns the time that a cell shows, by the given pattern or as without it.
    fn time_of(&self, cell: &str) -> Option<CellTime> {
        let text = without_end(cell);
        self.time_format.as_deref().and_then(|format| read_with(format, text)).or_else(|| read_time(text))
    }

    /// Returns whether a cell is a date, without a time or at midnight.
    fn is_date(&self, cell: &str) -> bool {
        let has_form = |format: &str| read_with(format, cell).is_some_and(|time| time.dates().is_some());
        self.time_format.as_deref().is_some_and(has_form) || read_date(cell).is_some()
    }

    /// Returns whether a cell is a time and no mere date. `counts`: a number of seconds or milliseconds is one.
    fn is_whole_time(&self, cell: &str, counts: bool) -> bool {
        match cell.parse::<f64>() {
            Ok(number) => counts && number > LEAST_SECONDS && self.time_of(cell).is_some_and(CellTime::has_zone),
            Err(_) => !is_mere_date(cell) && self.time_of(cell).is_some(),
        }
    }

    /// Returns the times of a column: by the given pattern if it reads all of them, else as without it.
    fn times_in(&self, time: usize) -> Result<Vec<CellTime>, GridDataError> {
        let with = |format: &str| self.cells(time).map(|cell| read_with(format, without_end(cell))).collect::<Option<Vec<_>>>();
        if let Some(times) = self.time_format.as_deref().and_then(with) {
            return Ok(times);
        }
        let read = |(line, row): &(u64, Vec<String>)| {
            read_time(without_end(&row[time])).ok_or_else(|| self.no_time(*line, time, &row[time]))
        };
        self.rows.iter().map(read).collect()
    }

    fn no_time(&self, line: u64, time: usize, cell: &str) -> GridDataError {
        let problem = format!("column {:?}: {cell:?} is no time", self.header[time]);
        let remedy = "write times such as 2026-01-31T23:00:00Z, or give their form, such as --time-format \"%d %b %Y %H:%M\"";
        GridDataError::new(problem, remedy).at_line(line)
    }

    /// Returns the date of each row: by the given pattern if it reads all of them, else as without it.
    fn days(&self, date: DateColumns) -> Result<Vec<Date>, GridDataError> {
        let texts: Vec<String> = self.rows.iter().map(|(_, cells)| date.text(cells)).collect();
        let with = |format: &str| texts.iter().map(|text| read_with(format, text)?.dates()).collect::<Option<Vec<_>>>();
        let given = self.time_format.as_deref().and_then(with);
        let name = &self.header[date.first()];
        let mut order = DateOrderDetector::new(name);
        for (at, ((line, _), text)) in self.rows.iter().zip(&texts).enumerate() {
            let given = given.as_ref().and_then(|given| given.get(at).copied());
            let readings = given.or_else(|| read_date(text)).ok_or_else(|| {
                let problem = format!("column {name:?}: {text:?} is no date");
                GridDataError::new(
                    problem,
                    "write dates such as 2026-01-31, or give their form, such as --time-format \"%d %b %Y\"",
                )
                .at_line(*line)
            })?;
            order.add(*line, text, Some(readings))?;
        }
        Ok(order.decide()?.into_iter().flatten().map(DateTime::date).collect())
    }

    /// Returns the day, the hour and the minute of each row.
    fn days_and_hours(&self, columns: DateAndHour) -> Result<Vec<(u64, Date, i8, i8)>, GridDataError> {
        let DateAndHour { date, hour, minute } = columns;
        let mut places = Vec::new();
        for ((line, cells), day) in self.rows.iter().zip(self.days(date)?) {
            let clock = minute.map_or_else(|| cells[hour].clone(), |minute| format!("{}:{}", cells[hour], cells[minute]));
            let (hours, minutes) = read_clock(without_end(&clock)).ok_or_else(|| {
                let problem = format!("column {:?}: {clock:?} is no hour", self.header[hour]);
                GridDataError::new(problem, "write hours from 0 to 23, such as 13 or 13:00").at_line(*line)
            })?;
            places.push((*line, day, hours, minutes));
        }
        Ok(places)
    }

    /// Returns the time of each row, of its date and its hour: 0 to 23, or 1 to 24 if there is a 24.
    fn times_of_hours(&self, columns: DateAndHour, stated: Option<&TimeZone>) -> Result<RowTimes, GridDataError> {
        let hour = columns.hour;
        let name = format!("{} {}", self.header[columns.date.first()], self.header[hour]);
        let zone = zone_of(&name, stated)?;
        let places = self.days_and_hours(columns)?;
        let first = i8::from(places.iter().any(|(_, _, hours, _)| *hours == 24));
        let mut times: Vec<Timestamp> = Vec::new();
        for (line, day, hours, minutes) in places {
            let wrong = |problem: String| GridDataError::new(problem, "write hours from 0 to 23").at_line(line);
            if hours < first {
                return Err(wrong(format!("column {:?} has an hour 0, and an hour 24", self.header[hour])));
            }
            let local = day.at(hours - first, minutes, 0, 0);
            let at = local_time(local, &zone, times.last().copied());
            times.push(at.ok_or_else(|| wrong(format!("{local} is no time")))?);
        }
        Ok(RowTimes { times, is_zone_assumed: stated.is_none() && !names_zone(&name) })
    }

    /// Returns the names of the columns, for an error.
    pub(super) fn names(&self) -> String {
        list_first(self.header.iter().map(String::as_str))
    }
}

/// Names of columns that an error lists, and characters of each.
const NAMES_SHOWN: usize = 12;
const NAME_CHARS: usize = 60;

/// Returns the first names as a sentence part, and how many more there are.
pub(super) fn list_first<'a>(names: impl ExactSizeIterator<Item = &'a str>) -> String {
    let names: Vec<String> = names.map(|name| units::shortened(name, NAME_CHARS)).collect();
    counts::list_first(&names, NAMES_SHOWN)
}

/// Keeps the wanted columns only, if there are any.
pub(super) fn prefer(columns: &mut Vec<usize>, is_wanted: impl Fn(usize) -> bool) {
    if columns.len() > 1 && columns.iter().any(|index| is_wanted(*index)) {
        columns.retain(|index| is_wanted(*index));
    }
}

/// Values may be rounded by this part of the highest.
const ROUNDED_RATIO: f64 = 1e-3;

/// Returns whether a column holds times.
fn is_time(name: &str) -> bool {
    ["datetime", "timestamp", "point_time", "date_time", "start", "mtu", "utc"].iter().any(|part| name.contains(part))
        || ["time", "date", "from", "hour_utc"].contains(&name)
}

/// Returns the time of a zone's clock. An hour that comes twice: the second time it is the later one.
fn local_time(local: DateTime, zone: &TimeZone, after: Option<Timestamp>) -> Option<Timestamp> {
    let ambiguous = zone.to_ambiguous_zoned(local);
    let first = ambiguous.clone().compatible().ok()?.timestamp();
    if after.is_some_and(|after| first <= after) {
        return Some(ambiguous.later().ok()?.timestamp());
    }
    Some(first)
}

/// Returns whether a column's name is one of dates.
fn names_date(name: &str) -> bool {
    let name = name.to_lowercase();
    name.split(|c: char| !c.is_alphanumeric()).any(|word| ["date", "datum", "datetime", "timestamp"].contains(&word))
}

/// Returns whether a column's name is one of times of day.
fn names_clock(name: &str) -> bool {
    let name = name.to_lowercase();
    let words = ["time", "clock", "start", "from", "begin", "beginning", "uhrzeit", "zeit", "von", "anfang"];
    name.split(|c: char| !c.is_alphanumeric()).any(|word| words.contains(&word))
}

/// Returns whether a column's name is one of the ends of steps.
fn names_end(name: &str) -> bool {
    let name = name.to_lowercase();
    name.split(|c: char| !c.is_alphanumeric()).any(|word| ["end", "ending", "to", "until", "bis"].contains(&word))
}

/// Returns a source for notes, with a remark if its times are read as UTC because no zone is given.
pub(super) fn describe_source(source: &str, what: &str, is_zone_assumed: bool) -> String {
    if is_zone_assumed { format!("{source}, its {what} read as UTC for want of a --time-zone") } else { source.to_owned() }
}

/// Returns steps from a column of times and one of values × `scale`, and whether the times are read as UTC because nothing names a
/// zone. A value holds until the next one; if rows are missing, or have no value, nothing is known.
pub(super) fn read_steps(
    table: &GridDataTable,
    value: usize,
    scale: f64,
    stated: Option<&TimeZone>,
) -> Result<(KwhRateSteps, bool), GridDataError> {
    let mut points: Vec<(u64, Timestamp, Option<f64>)> = Vec::new();
    let RowTimes { times, is_zone_assumed } = table.times(stated)?;
    for ((line, cells), at) in table.rows.iter().zip(times) {
        let value = table.parse_number(*line, &cells[value])?.map(|value| value * scale);
        points.push((*line, at, value));
    }
    points.sort_by_key(|point| point.1);
    if let Some(pair) = points.windows(2).find(|pair| pair[0].1 == pair[1].1) {
        let problem = format!("{} is there twice (first in line {})", pair[1].1, pair[0].0);
        return Err(GridDataError::new(problem, "give one row a time, of one zone").at_line(pair[1].0));
    }
    let mut gaps: Vec<f64> = points.windows(2).map(|pair| pair[1].1.duration_since(pair[0].1).as_secs_f64()).collect();
    gaps.sort_by(f64::total_cmp);
    // The validity of a single row is unknown. It is assumed to be an hour, as is usual.
    let usual = gaps.get(gaps.len() / 2).copied().unwrap_or(3600.0);
    let mut steps = Vec::new();
    for (index, (_, from, value)) in points.iter().enumerate() {
        let Some(value) = value else { continue };
        let gap = points.get(index + 1).map_or(usual, |next| next.1.duration_since(*from).as_secs_f64());
        let held = if gap <= STEPS_HELD * usual { gap } else { usual };
        let to = from.checked_add(jiff::SignedDuration::from_secs_f64(held)).unwrap_or(Timestamp::MAX);
        steps.push((*from, to, *value));
    }
    if steps.is_empty() {
        let problem = format!("column {:?} has no value", table.header[value]);
        return Err(GridDataError::new(problem, "name another column, or another file"));
    }
    let steps = KwhRateSteps::new(steps).map_err(|index| {
        GridDataError::new(format!("row {index} is not newer than the one before it"), "sort the rows by time")
    })?;
    Ok((steps, is_zone_assumed))
}

/// Less than this no grid emits at its highest, in g/kWh.
const GRAMS_LEAST: f64 = 1.0;

/// Returns an error if no value of a column without a unit is as high as a grid's in g/kWh.
fn check_unit(name: &str, unit: ColumnUnit, highest: f64) -> Result<(), GridDataError> {
    let has_unit = unit.amount.is_some() && (unit.energy_kwh.is_some() || name.to_lowercase().contains("gco"));
    if has_unit || !(f64::MIN_POSITIVE..GRAMS_LEAST).contains(&highest) {
        return Ok(());
    }
    let problem = format!("column {name:?}: no value reaches {GRAMS_LEAST} g/kWh (highest: {highest})");
    Err(GridDataError::new(problem, "name the unit in the header, such as kgCO2/kWh or gCO2/kWh"))
}

/// Returns how well a column's name fits carbon intensities; 0: not at all.
fn carbon_rank(name: &str) -> u32 {
    let name = name.to_lowercase();
    let other = ["%", "percent", "source", "index", "estimat", "forecast_", "quality", "name", "zone"];
    if other.iter().any(|word| name.contains(word)) {
        return 0;
    }
    let carbon = ["carbon", "co2", "co₂", "moer", "emission", "ghg"].iter().any(|word| name.contains(word));
    if !carbon && !["intensity", "actual", "forecast", "g/kwh"].iter().any(|word| name.contains(word)) {
        return 0;
    }
    match &name {
        name if name.contains("life") || name.contains("lca") => 5,
        name if name.contains("actual") => 4,
        name if name.contains("forecast") => 2,
        _ if carbon => 3,
        _ => 1,
    }
}

/// Returns whether a column is by its name of what goes with the intensities, such as the version of a model.
fn names_aside(name: &str) -> bool {
    let name = name.to_lowercase();
    let words = ["version", "frequency", "freq", "id", "type", "method", "model", "region", "status", "flag", "rank", "rating"];
    name.split(|c: char| !c.is_alphanumeric()).any(|word| words.contains(&word))
        || ["version", "type", "method"].iter().any(|end| name.ends_with(end))
}

/// Returns the column of the carbon intensities. Of several whose names fit alike, one with a unit goes before one without;
/// intensities in two units are one.
fn carbon_column(table: &GridDataTable, named: Option<&str>) -> Result<usize, GridDataError> {
    if let Some(name) = named {
        return table.named_column(name, "--carbon-column");
    }
    let rank = |index: usize| {
        let name = &table.header[index];
        if is_time(&name.to_lowercase()) { 0 } else { carbon_rank(name) }
    };
    let mut found: Vec<usize> = (0..table.header.len()).filter(|index| rank(*index) > 0).collect();
    prefer(&mut found, |index| table.holds_numbers(index) && !names_aside(&table.header[index]));
    let best = found.iter().map(|index| rank(*index)).max();
    found.retain(|index| Some(rank(*index)) == best);
    prefer(&mut found, |index| read_unit(&table.header[index], UnitKind::Mass).is_ok_and(ColumnUnit::is_whole));
    if found.len() > 1 && !table.is_one_series(&found, UnitKind::Mass) {
        let names = list_first(found.iter().map(|index| table.header[*index].as_str()));
        let problem = format!("{} columns may be the carbon intensity ({names})", found.len());
        return Err(GridDataError::new(problem, "name one of them with --carbon-column"));
    }
    if let Some(index) = found.first() {
        return Ok(*index);
    }
    // `WattTime` has the values in `value`, and their kind in `units`.
    match table.column(|name| name == "value") {
        Some(index) if carbon_rank(&table.name_with_unit(index, UnitKind::Mass)?) > 0 => Ok(index),
        _ => {
            let problem = format!("no column looks like a carbon intensity (there are: {})", table.names());
            Err(GridDataError::new(problem, "name it with --carbon-column"))
        }
    }
}

/// Reads carbon intensities as providers publish them (Electricity Maps, `WattTime`, National Grid and alike): CSV with a column
/// of times and one of g/kWh, or in the unit that its name has (`lbs/MWh`, `kg/MWh`). Of several columns, life-cycle figures go
/// before direct ones and actual figures before forecasts; `column` names another one. Times without a zone are of `zone`, else of
/// UTC, which the notes then state. `time_format` is the strptime pattern of times that it reads, see [`read_prices`].
///
/// [`read_prices`]: super::read_prices
pub fn read_carbon(
    text: &str,
    column: Option<&str>,
    zone: Option<&TimeZone>,
    time_format: Option<&str>,
    source: &str,
) -> Result<GridCarbon, GridDataError> {
    let table = GridDataTable::read(text, time_format)?;
    let value = carbon_column(&table, column)?;
    let of_zones = table.column(|name| ["zone id", "zone_id", "zone", "region", "ba", "country"].contains(&name));
    if let Some(zones) = of_zones {
        let zones: BTreeSet<&str> = table.rows.iter().map(|(_, cells)| cells[zones].as_str()).collect();
        if zones.len() > 1 {
            let some: Vec<&str> = zones.iter().take(3).copied().collect();
            let problem = format!("it holds {} zones ({} …)", zones.len(), some.join(", "));
            return Err(GridDataError::new(problem, "give the rows of one zone"));
        }
    }
    let name = table.header[value].clone();
    let named = table.name_with_unit(value, UnitKind::Mass)?;
    // WattTime's own column names no unit; it is lbs/MWh.
    let is_moer = named.trim().eq_ignore_ascii_case("moer");
    let unit = read_unit(if is_moer { "MOER (lbs/MWh)" } else { &named }, UnitKind::Mass)?;
    let scale = unit.per_kwh();
    let mut highest = 0.0_f64;
    for (line, cells) in &table.rows {
        let grams = table.parse_number(*line, &cells[value])?.map(|value| value * scale);
        highest = highest.max(grams.unwrap_or(0.0));
        if let Some(grams) = grams.filter(|grams| !(0.0..=GRAMS_MAX).contains(grams)) {
            let problem = format!("column {name:?}: {grams} g/kWh is no carbon intensity");
            return Err(GridDataError::new(
                problem,
                "name the unit in the header, such as lbs/MWh, or another column with --carbon-column",
            )
            .at_line(*line));
        }
    }
    check_unit(&name, unit, highest)?;
    let (steps, is_zone_assumed) = read_steps(&table, value, scale, zone)?;
    let as_unit = if is_moer { " in lbs/MWh, as WattTime publishes it" } else { "" };
    let source = describe_source(&format!("{source}, column {name:?}{as_unit}"), "times", is_zone_assumed);
    Ok(GridCarbon { intensity: CarbonIntensity::Series(steps), source })
}

#[cfg(test)]
mod tests {
    use eadt_models::energy::{EnergyInterval, JOULES_PER_KWH};

    use super::*;

    fn grams(text: &str, column: Option<&str>, from: &str, to: &str) -> Option<f64> {
        let carbon = read_carbon(text, column, None, None, "x.csv").unwrap_or_else(|error| panic!("{error}: {text}"));
        let interval = EnergyInterval { from: from.parse().unwrap(), to: to.parse().unwrap(), joules: JOULES_PER_KWH };
        carbon.total_grams(&[interval]).sum.map(|grams| (grams * 1e6).round() / 1e6)
    }

    #[test]
    fn tables_of_public_providers_are_read() {
        let (from, to) = ("2024-01-01T00:30:00Z", "2024-01-01T01:30:00Z");
        for (what, text) in [
            (
                "Electricity Maps",
                "Datetime (UTC),Country,Zone name,Zone id,Carbon intensity gCO₂eq/kWh (direct),Carbon intensity gCO₂eq/kWh (Life cycle),Carbon-free energy percentage (CFE%),Data source\n\
                 2024-01-01 00:00:00,Germany,Germany,DE,150.1,200,60,x\n2024-01-01 01:00:00,Germany,Germany,DE,250.2,300,50,x\n",
            ),
            ("its API", "datetime,zone,carbonIntensity\n2024-01-01T00:00:00.000Z,DE,200\n2024-01-01T01:00:00.000Z,DE,300\n"),
            ("plain", "datetime,gCO2/kWh\n2024-01-01T00:00:00+00:00,200\n2024-01-01T01:00:00+00:00,300\n"),
            (
                "WattTime",
                "point_time,MOER (lbs/MWh)\n2024-01-01T00:00:00+00:00,440.924524\n2024-01-01T01:00:00+00:00,661.386787\n",
            ),
            (
                "National Grid",
                "DATETIME,FORECAST,ACTUAL,INDEX\n2024-01-01T00:00Z,1,200,low\n2024-01-01T00:30Z,1,200,low\n2024-01-01T01:00Z,1,300,high\n",
            ),
            ("semicolons", "Datum;datetime;CO2 kg/MWh\na;01.01.2024 00:00;200,0\nb;01.01.2024 01:00;300,0\n"),
            (
                "WattTime, the unit in a column",
                "point_time,value,units\n2024-01-01T00:00:00Z,440.924524,lbs_co2_per_mwh\n2024-01-01T01:00:00Z,661.386787,lbs_co2_per_mwh\n",
            ),
            (
                "times by what they are",
                "Datum von;Datum bis;gCO2/kWh\n01.01.2024 00:00;01.01.2024 01:00;200\n01.01.2024 01:00;01.01.2024 02:00;300\n",
            ),
            ("seconds, newest first", "timestamp,carbon_intensity\n1704070800,300\n1704067200,200\n"),
            ("with a zone of its own", "datetime,gCO2/kWh\n2024-01-01 01:00:00+01:00,200\n2024-01-01 02:00:00+01:00,300\n"),
        ] {
            assert_eq!(grams(text, None, from, to), Some(250.0), "{what}");
        }
        let columns = "datetime,direct gCO2/kWh,lifecycle gCO2/kWh\n2024-01-01T00:00:00Z,100,200\n2024-01-01T01:00:00Z,100,200\n";
        assert_eq!(grams(columns, Some("direct gCO2/kWh"), from, to), Some(100.0));
        assert_eq!(grams(columns, None, from, to), Some(200.0));
    }

    #[test]
    fn a_zone_in_the_header_goes_before_the_given_one() {
        let berlin = TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").unwrap();
        let interval = EnergyInterval {
            from: "2024-01-01T00:00:00Z".parse().unwrap(),
            to: "2024-01-01T01:00:00Z".parse().unwrap(),
            joules: JOULES_PER_KWH,
        };
        for (header, zone, expected) in [
            ("Datetime (UTC)", &berlin, 2.0),
            ("datetime", &berlin, 3.0),
            ("datetime", &TimeZone::UTC, 2.0),
            ("MTU (CET/CEST)", &TimeZone::UTC, 3.0),
        ] {
            let text = format!("{header},gCO2/kWh\n2024-01-01 00:00,2\n2024-01-01 01:00,3\n2024-01-01 02:00,4\n");
            let carbon = read_carbon(&text, None, Some(zone), None, "x").unwrap();
            assert_eq!(carbon.total_grams(&[interval]).sum, Some(expected), "{header}");
        }
    }

    #[test]
    fn intensities_are_of_the_unit_of_the_header() {
        for (header, value) in [
            ("Alberta gCO2/kWh", 360.0),
            ("Melbourne CO2 kg/MWh", 360.0),
            ("Direct CO2 g/kWh", 360.0),
            ("gCO2/MJ", 100.0),
            ("gCO2/Wh", 0.36),
            ("CO2 mg/kWh", 360_000.0),
            ("tCO2/GWh", 360.0),
        ] {
            let text = format!("datetime,{header}\n2024-01-01T00:00:00Z,{value}\n");
            assert_eq!(grams(&text, None, "2024-01-01T00:00:00Z", "2024-01-01T01:00:00Z"), Some(360.0), "{header}");
        }
        for (header, part) in [("gCO2/km", "\"km\" is no unit of energy"), ("oz CO2/MWh", "\"oz\" is no unit of mass")] {
            let text = format!("datetime,{header}\n2024-01-01T00:00:00Z,100\n");
            let message = read_carbon(&text, None, None, None, "x").unwrap_err().to_string();
            assert!(message.contains(part), "{header}: {message}");
        }
    }

    #[test]
    fn a_date_beside_an_hour_makes_the_times() {
        let eastern_europe = TimeZone::posix("EET-2EEST,M3.5.0/3,M10.5.0/4").unwrap();
        for (what, header, hours, zone, expected) in [
            ("0 to 23", "Date,Hour", ["0", "1", "2"], &TimeZone::UTC, Some(3.0)),
            ("clock times", "Datum,Hour", ["00:00", "01:00", "02:00"], &TimeZone::UTC, Some(3.0)),
            ("1 to 24", "Delivery date,Hour", ["2", "3", "24"], &TimeZone::UTC, Some(2.0)),
            ("the zone of the header", "Date (EET/EEST),Hour", ["0", "1", "2"], &TimeZone::UTC, None),
            ("the given zone", "Date,Hour", ["2", "3", "4"], &eastern_europe, Some(3.0)),
        ] {
            let row = |(hour, value): (&&str, i32)| format!("2024-01-01,{hour},{value}\n");
            let rows: String = hours.iter().zip(2..).map(row).collect();
            let carbon = read_carbon(&format!("{header},gCO2/kWh\n{rows}"), None, Some(zone), None, "x").unwrap();
            let from = "2024-01-01T01:00:00Z".parse().unwrap();
            let interval = EnergyInterval { from, to: "2024-01-01T02:00:00Z".parse().unwrap(), joules: JOULES_PER_KWH };
            assert_eq!(carbon.total_grams(&[interval]).sum, expected, "{what}");
        }
        for (rows, part) in [
            ("2024-01-01,0,1\n2024-01-01,24,1\n", "line 2: column \"Hour\" has an hour 0, and an hour 24"),
            ("2024-01-01,25,1\n", "line 2: column \"Hour\": \"25\" is no hour"),
            ("2024-01-01,1,1\nyesterday,2,1\n", "line 3: column \"Date\": \"yesterday\" is no date"),
        ] {
            let message = read_carbon(&format!("Date,Hour,gCO2/kWh\n{rows}"), None, None, None, "x").unwrap_err();
            assert!(message.to_string().contains(part), "{message}");
        }
    }

    #[test]
    fn a_date_in_several_columns_or_beside_a_time_of_day_makes_the_times() {
        let (from, to) = ("2024-01-01T01:00:00Z", "2024-01-01T02:00:00Z");
        for (what, text) in [
            ("a time of day", "date,time,gCO2/kWh\n2024-01-01,00:00,2\n2024-01-01,01:00,3\n2024-01-01,02:00,4\n"),
            ("with seconds", "date,time,gCO2/kWh\n2024-01-01,00:00:00,2\n2024-01-01,01:00:00,3\n2024-01-01,02:00:00,4\n"),
            (
                "from and to",
                "Datum;Anfang;Ende;gCO2/kWh\n01.01.2024;00:00;01:00;2\n01.01.2024;01:00;02:00;3\n01.01.2024;02:00;03:00;4\n",
            ),
            ("one row a day", "date,time,gCO2/kWh\n2023-12-31,01:00,2\n2024-01-01,01:00,3\n2024-01-02,01:00,4\n"),
            ("year to hour", "year,month,day,hour,gCO2/kWh\n2024,1,1,0,2\n2024,1,1,1,3\n2024,1,1,2,4\n"),
            ("year to hour, to 24", "Year,Month,Day,Hour,gCO2/kWh\n2024,1,1,2,3\n2024,1,1,3,4\n2024,1,1,24,5\n"),
            ("year to minute", "year,month,day,hour,minute,gCO2/kWh\n2024,1,1,1,0,3\n2024,1,1,1,30,3\n2024,1,1,2,0,4\n"),
            ("a date, hour and minute", "date,hour,minute,gCO2/kWh\n2024-01-01,1,0,3\n2024-01-01,1,30,3\n2024-01-01,2,0,4\n"),
            (
                "a range",
                "date,hour,gCO2/kWh\n2024-01-01,00:00 - 01:00,2\n2024-01-01,01:00 - 02:00,3\n2024-01-01,02:00 - 03:00,4\n",
            ),
        ] {
            assert_eq!(grams(text, None, from, to), Some(3.0), "{what}");
        }
        // A day of the publication is no part of the time.
        let daily = "date,updated,gCO2/kWh\n2024-01-01,10:00,3\n2024-01-02,11:00,4\n";
        assert_eq!(grams(daily, None, "2024-01-01T00:00:00Z", "2024-01-01T01:00:00Z"), Some(3.0));
    }

    #[test]
    fn an_error_lists_the_first_columns_of_very_many() {
        let columns = |name: &str| (0..3000).map(|column| format!("{name}{column}")).collect::<Vec<_>>().join(",");
        let cells = |count: u32| (0..count).map(|cell| cell.to_string()).collect::<Vec<_>>().join(",");
        for (header, count, part) in [
            (columns("c"), 3000, "c10 and 2989 more"),
            (columns("carbon"), 3000, "carbon11 and 2988 more"),
            ("c".repeat(9000), 1, "c…c"),
        ] {
            let text = format!("datetime,{header}\n2024-01-01T00:00:00Z,{}\n2024-01-01T01:00:00Z,{0}\n", cells(count));
            let error = read_carbon(&text, None, None, None, "file").unwrap_err().to_string();
            assert!(error.contains(part) && error.len() < 600, "{error}");
        }
    }

    #[test]
    fn columns_that_fit_alike_are_refused_by_name() {
        let (from, to) = ("2024-01-01T00:00:00Z", "2024-01-01T01:00:00Z");
        for (columns, cells, expected) in [
            ("average gCO2/kWh,marginal gCO2/kWh", "300,500", None),
            ("intensity A,intensity B", "300,500", None),
            ("carbon_intensity_avg,carbon_intensity_import_avg", "300,500", None),
            ("gCO2/kWh,CO2 kg/MWh", "300,300", Some(300.0)),
            ("co2_total,gCO2/kWh", "900,300", Some(300.0)),
            ("carbon type,carbon intensity", "direct,300", Some(300.0)),
            ("MOER gCO2/kWh,MOER version,frequency", "300,3.0,300", Some(300.0)),
            ("MOER version,MOER", "3.0,300", Some(136.077_711)),
            ("carbon_intensity,carbon_source_id,emissionFactorType", "300,7,2", Some(300.0)),
        ] {
            let text = format!("datetime,{columns}\n2024-01-01T00:00:00Z,{cells}\n");
            if expected.is_some() {
                assert_eq!(grams(&text, None, from, to), expected, "{columns}");
                continue;
            }
            let message = read_carbon(&text, None, None, None, "x").unwrap_err().to_string();
            let names = columns.replace(',', ", ");
            let all = format!("2 columns may be the carbon intensity ({names}); name one of them with --carbon-column");
            assert_eq!(message, all);
            let second = columns.split(',').nth(1);
            assert_eq!(grams(&text, second, from, to), Some(500.0), "{columns}");
        }
    }

    #[test]
    fn a_zone_that_is_assumed_is_noted_and_one_that_is_given_is_not() {
        let interval = EnergyInterval {
            from: "2024-01-01T00:00:00Z".parse().unwrap(),
            to: "2024-01-01T01:00:00Z".parse().unwrap(),
            joules: JOULES_PER_KWH,
        };
        for (header, time, zone, is_noted) in [
            ("datetime", "2024-01-01 00:00", None, true),
            ("date,hour", "2024-01-01,0", None, true),
            ("datetime", "2024-01-01 00:00", Some(&TimeZone::UTC), false),
            ("date,hour", "2024-01-01,0", Some(&TimeZone::UTC), false),
            ("Datetime (Local)", "2024-01-01 00:00", Some(&TimeZone::UTC), false),
            ("Datetime (UTC)", "2024-01-01 00:00", None, false),
            ("datetime", "2024-01-01T00:00:00Z", None, false),
            ("datetime", "1704067200", None, false),
        ] {
            let text = format!("{header},gCO2/kWh\n{time},200\n");
            let total = read_carbon(&text, None, zone, None, "x").unwrap().total_grams(&[interval]);
            assert_eq!((total.sum, total.note.contains("for want of a --time-zone")), (Some(200.0), is_noted), "{header} {time}");
        }
    }

    #[test]
    fn whole_times_go_before_a_date_and_an_hour() {
        let (from, to) = ("2024-01-01T01:00:00Z", "2024-01-01T02:00:00Z");
        for (what, text) in [
            (
                "whole times beside",
                "Date,Hour,Datetime (UTC),gCO2/kWh\n2024-01-01,2,2024-01-01 00:00,2\n2024-01-01,3,2024-01-01 01:00,3\n2024-01-01,4,2024-01-01 02:00,4\n",
            ),
            (
                "those with a zone",
                "datetime,Hour,Datetime (UTC),gCO2/kWh\n2024-01-01 02:00,2,2024-01-01 00:00,2\n2024-01-01 03:00,3,2024-01-01 01:00,3\n2024-01-01 04:00,4,2024-01-01 02:00,4\n",
            ),
            (
                "seconds",
                "Date,Hour,timestamp,gCO2/kWh\n2024-01-01,2,1704067200,2\n2024-01-01,3,1704070800,3\n2024-01-01,4,1704074400,4\n",
            ),
            (
                "one time in all rows",
                "downloaded at,Date,Hour,gCO2/kWh\n2025-05-01 12:34,2024-01-01,0,2\n2025-05-01 12:34,2024-01-01,1,3\n2025-05-01 12:34,2024-01-01,2,4\n",
            ),
            ("midnights", "Date,Hour,gCO2/kWh\n2024-01-01 00:00:00,0,2\n2024-01-01 00:00:00,1,3\n2024-01-01 00:00:00,2,4\n"),
            (
                "updates",
                "Update date,Date,Hour,gCO2/kWh\n2024-02-01,2024-01-01,0,2\n2024-02-01,2024-01-01,1,3\n2024-02-01,2024-01-01,2,4\n",
            ),
            ("a date by its cells", "Date note,Day,Hour,gCO2/kWh\nx,2024-01-01,0,2\ny,2024-01-01,1,3\nz,2024-01-01,2,4\n"),
        ] {
            assert_eq!(grams(text, None, from, to), Some(3.0), "{what}");
        }
    }

    #[test]
    fn times_with_a_zone_of_their_own_need_none_in_the_header() {
        let (from, to) = ("2024-01-01T00:00:00Z", "2024-01-01T01:00:00Z");
        let berlin = TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").unwrap();
        for time in ["2023-12-31T19:00:00-05:00", "1704067200", "2024-01-01 00:00 UTC"] {
            let text = format!("Datetime (Local),gCO2/kWh\n{time},200\n");
            assert_eq!(grams(&text, None, from, to), Some(200.0), "{time}");
            let interval = EnergyInterval { from: from.parse().unwrap(), to: to.parse().unwrap(), joules: JOULES_PER_KWH };
            let carbon = read_carbon(&text, None, Some(&berlin), None, "x").unwrap();
            assert_eq!(carbon.total_grams(&[interval]).sum, Some(200.0), "{time}");
        }
        let local = "Datetime (Local),gCO2/kWh\n2024-01-01 00:00,200\n";
        let message = read_carbon(local, None, None, None, "x").unwrap_err().to_string();
        assert!(message.contains("--time-zone"), "{message}");
    }

    /// Grams and price of a kWh drawn in an hour, with a table of two rows.
    fn of_rows(header: &str, rows: [&str; 2], form: Option<&str>, from: &str, to: &str) -> Result<[Option<f64>; 2], String> {
        let [first, second] = rows;
        let table = |unit: &str| format!("{header},{unit}\n{first},0.25\n{second},0.5\n");
        let interval = EnergyInterval { from: from.parse().unwrap(), to: to.parse().unwrap(), joules: JOULES_PER_KWH };
        let zone = Some(&TimeZone::UTC);
        let carbon = read_carbon(&table("kgCO2/kWh"), None, zone, form, "x").map_err(|error| error.to_string())?;
        let prices = super::super::read_prices(&table("EUR/kWh"), None, zone, form, "x").map_err(|error| error.to_string())?;
        Ok([carbon.total_grams(&[interval]).sum.map(|grams| grams / 1000.0), prices.total_cost(&[interval]).sum])
    }

    #[test]
    fn times_have_the_forms_of_recordings() {
        for (header, rows, form) in [
            ("datetime", ["2025/02/13 23:00", "2025/02/14 00:00"], None),
            ("datetime", ["2025-02-13 11:00:00 PM", "2025-02-14 12:00:00 AM"], None),
            ("datetime", ["2/13/2025 11:00:00 PM", "2/14/2025 12:00:00 AM"], None),
            ("datetime", ["13/02/2025 23:00", "14/02/2025 00:00"], None),
            ("datetime", ["13/02/2025 23:00 UTC", "14/02/2025 00:00 UTC"], None),
            ("datetime", ["13.2.2025 23:00", "14.2.2025 0:00"], None),
            ("datetime", ["20250213 23:00", "20250214 00:00"], None),
            ("datetime", ["20250213230000", "20250214000000"], None),
            ("datetime", ["13-Feb-2025 23:00", "14-Feb-2025 00:00"], None),
            ("datetime", ["2025-02-14 00:00:00 +0100", "2025-02-14 01:00:00 +0100"], None),
            ("datetime", ["23h 13 2 2025", "00h 14 2 2025"], Some("%Hh %d %m %Y")),
            ("datetime", ["2025-02-13 23:00", "2025-02-14 00:00"], Some("%m/%d/%Y %H:%M")),
            ("date,hour", ["02/13/2025,23", "02/14/2025,0"], None),
            ("date,time", ["02/13/2025,11:00 PM", "02/14/2025,12:00 AM"], None),
            ("date,hour", ["13/02/2025,23", "14/02/2025,0"], Some("%m/%d/%Y %H:%M")),
        ] {
            let found = of_rows(header, rows, form, "2025-02-13T23:00:00Z", "2025-02-14T00:00:00Z");
            assert_eq!(found, Ok([Some(0.25); 2]), "{header}: {rows:?}");
        }
    }

    #[test]
    fn a_day_that_may_be_a_month_is_refused_unless_its_form_is_given() {
        for (header, rows, forms) in [
            ("datetime", ["02/03/2025 00:00", "02/03/2025 01:00"], ["%m/%d/%Y %H:%M", "%d/%m/%Y %H:%M"]),
            ("datetime", ["2/3/2025 12:00:00 AM", "2/3/2025 1:00:00 AM"], ["%m/%d/%Y %I:%M:%S %p", "%d/%m/%Y %I:%M:%S %p"]),
            ("date,hour", ["02/03/2025,0", "02/03/2025,1"], ["%m/%d/%Y", "%d/%m/%Y"]),
        ] {
            let on = |day: &str, form| of_rows(header, rows, form, &format!("{day}T00:00:00Z"), &format!("{day}T01:00:00Z"));
            assert_eq!(on("2025-02-03", Some(forms[0])), Ok([Some(0.25); 2]), "{rows:?}");
            assert_eq!(on("2025-03-02", Some(forms[1])), Ok([Some(0.25); 2]), "{rows:?}");
            let refused = on("2025-02-03", None).unwrap_err();
            let remedy = format!("give the form with --time-format {:?} or {:?}", forms[1], forms[0]);
            assert!(
                refused.contains("no row shows whether the day or the month comes first") && refused.ends_with(&remedy),
                "{refused}"
            );
        }
    }

    #[test]
    fn what_a_table_does_not_cover_is_not_invented() {
        let text = "datetime,gCO2/kWh\n2024-01-01T00:00:00Z,100\n2024-01-01T01:00:00Z,\n2024-01-01T02:00:00Z,100\n\
                    2024-01-01T03:00:00Z,100\n2024-01-01T06:00:00Z,100\n";
        let at = |from, to| grams(text, None, from, to);
        assert_eq!(at("2024-01-01T00:00:00Z", "2024-01-01T01:00:00Z"), Some(100.0));
        assert_eq!(at("2024-01-01T00:30:00Z", "2024-01-01T01:30:00Z"), None, "an empty cell");
        assert_eq!(at("2024-01-01T03:00:00Z", "2024-01-01T05:00:00Z"), None, "missing rows");
        assert_eq!(at("2024-01-01T06:00:00Z", "2024-01-01T07:00:00Z"), Some(100.0), "the last one counts for its hour");
        assert_eq!(at("2024-01-01T07:00:00Z", "2024-01-01T08:00:00Z"), None);
        let carbon = read_carbon(text, None, None, None, "x.csv").unwrap();
        let interval = EnergyInterval {
            from: "2024-01-02T00:00:00Z".parse().unwrap(),
            to: "2024-01-02T01:00:00Z".parse().unwrap(),
            joules: 1.0,
        };
        assert!(carbon.total_grams(&[interval]).note.contains("100.0 % of the energy lies at times that x.csv"));
    }

    #[test]
    fn the_hour_that_comes_twice_is_two_hours() {
        let zone = TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").unwrap();
        let text = "datetime,gCO2/kWh\n2024-10-27 01:00,1\n2024-10-27 02:00,2\n2024-10-27 02:00,3\n2024-10-27 03:00,4\n";
        let carbon = read_carbon(text, None, Some(&zone), None, "x").unwrap();
        let interval = EnergyInterval {
            from: "2024-10-27T01:00:00Z".parse().unwrap(),
            to: "2024-10-27T02:00:00Z".parse().unwrap(),
            joules: JOULES_PER_KWH,
        };
        assert_eq!(carbon.total_grams(&[interval]).sum, Some(3.0));
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let refused = |text: &str| read_carbon(text, None, None, None, "x").unwrap_err().to_string();
        for (text, part) in [
            ("", "the file is empty"),
            ("datetime,gCO2/kWh\n", "no row below the header"),
            ("datetime,value\n2024-01-01T00:00:00Z,1\n", "no column looks like a carbon intensity"),
            ("a,gCO2/kWh\n1,2\n", "no column holds times"),
            ("datetime,gCO2/kWh\nyesterday,2\n", "line 2: column \"datetime\": \"yesterday\" is no time"),
            ("datetime,gCO2/kWh\n2024-01-01T00:00:00Z,much\n", "line 2: \"much\" is not a number"),
            ("datetime,gCO2/kWh\n2024-01-01T00:00:00Z,1.7e308\n", "line 2: \"1.7e308\" is beyond ±1e15"),
            ("datetime,gCO2/kWh\n2024-01-01T00:00:00Z,250000\n", "is no carbon intensity"),
            ("datetime,gCO2/kWh\n2024-01-01T00:00:00Z,-1\n", "is no carbon intensity"),
            ("datetime,zone,gCO2/kWh\n2024-01-01T00:00:00Z,DE,1\n2024-01-01T01:00:00Z,FR,1\n", "it holds 2 zones (DE, FR"),
            ("datetime,gCO2/kWh\n2024-01-01T00:00:00Z,1\n2024-01-01T00:00:00Z,2\n", "is there twice"),
            ("datetime,gCO2/kWh\n2024-01-01T00:00:00Z\n", "the row has 1 cell, its header 2"),
            (
                "datetime,carbon_intensity\n2024-01-01T00:00:00Z,0.2\n2024-01-01T01:00:00Z,0.3\n",
                "no value reaches 1 g/kWh (highest: 0.3)",
            ),
            (
                "point_time,value,units\n2024-01-01T00:00:00Z,900,lbs_co2_per_mwh\n2024-01-01T01:00:00Z,400,g_co2_per_kwh\n",
                "line 3: column \"units\": \"g_co2_per_kwh\" after \"lbs_co2_per_mwh\"",
            ),
        ] {
            let message = refused(text);
            assert!(message.contains(part) && message.contains("; "), "{text:?}: {message}");
        }
        let other = read_carbon("datetime,gCO2/kWh\n2024-01-01T00:00:00Z,1\n", Some("x"), None, None, "x").unwrap_err();
        assert!(other.to_string().contains("--carbon-column"), "{other}");
    }
}
