//! Times as people write them.

use std::fmt;
use std::str::FromStr;

use eadt_schemas::EventTime;
pub(crate) use eadt_schemas::time_text::is_time_of_day;
use eadt_schemas::time_text::{
    UTC_NAMES, break_down, check_pattern, compact_date, datetime, parse_offset, patterns_of, split_offset, with_plain_half,
    zone_in,
};
use jiff::Timestamp;
use jiff::civil::{Date, DateTime};
use jiff::fmt::strtime::BrokenDownTime;
use jiff::tz::{AmbiguousOffset, Offset, TimeZone};

use crate::InvalidOption;

/// The time format of a column. Texts without an offset are in the [`NamedTimeZone`] that is given, else in UTC.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum TimeFormat {
    /// RFC 3339, or `YYYY-MM-DD HH:MM:SS[.fraction]` with `-` or `/`, with or without an offset. Numbers are refused.
    #[default]
    Auto,
    Rfc3339,
    /// Seconds since 1970, with a fraction where there is one.
    Unix,
    UnixMs,
    UnixUs,
    UnixNs,
    /// A strptime pattern such as `%m-%d-%Y %H:%M:%S%.f`.
    Pattern(String),
}

impl FromStr for TimeFormat {
    type Err = InvalidOption;

    fn from_str(text: &str) -> Result<Self, InvalidOption> {
        Ok(match text {
            "auto" => Self::Auto,
            "rfc3339" => Self::Rfc3339,
            "unix" => Self::Unix,
            "unix_ms" => Self::UnixMs,
            "unix_us" => Self::UnixUs,
            "unix_ns" => Self::UnixNs,
            pattern if pattern.contains('%') => {
                check_pattern(pattern).map_err(|error| InvalidOption::new(error.to_string()))?;
                Self::Pattern(pattern.to_owned())
            }
            other => {
                return Err(InvalidOption::new(format!(
                    "unknown time format {other:?}; known: auto, rfc3339, unix, unix_ms, unix_us, unix_ns, or a strptime \
                     pattern such as \"%m-%d-%Y %H:%M:%S%.f\""
                )));
            }
        })
    }
}

impl fmt::Display for TimeFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Rfc3339 => "rfc3339",
            Self::Unix => "unix",
            Self::UnixMs => "unix_ms",
            Self::UnixUs => "unix_us",
            Self::UnixNs => "unix_ns",
            Self::Pattern(pattern) => pattern,
        })
    }
}

impl TimeFormat {
    /// Reads a time, in UTC if it has no offset; an error continues "TEXT is", and names a remedy.
    pub(crate) fn parse(&self, text: &str) -> Result<EventTime, String> {
        TimeParser::new(Some(self.clone()), None).read(text).map(ParsedTime::earliest)
    }
}

/// Counts since 1970 of recordings lie between: 2000 and 2100.
const FIRST_RECORDS: EventTime = EventTime::from_micros(946_684_800_000_000);
const LAST_RECORDS: EventTime = EventTime::from_micros(4_102_444_800_000_000);

/// The zone of times that name none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedTimeZone {
    name: String,
    zone: TimeZone,
}

impl NamedTimeZone {
    pub fn utc() -> Self {
        Self { name: "UTC".to_owned(), zone: TimeZone::UTC }
    }

    /// Returns the hour that its clocks show; `None` if the time is outside of the calendar.
    pub(crate) fn hour(&self, time: EventTime) -> Option<i8> {
        Some(self.zone.to_datetime(Timestamp::from_microsecond(time.micros()).ok()?).hour())
    }

    /// Reads an offset from UTC such as `+02:00`, `-7` or `+0530`, a POSIX rule such as `CET-1CEST,M3.5.0,M10.5.0/3`, or an IANA
    /// name. `zone_file` returns the bytes of a name's file in the time zone database.
    pub fn new(text: &str, zone_file: impl FnOnce(&str) -> Option<Vec<u8>>) -> Result<Self, InvalidOption> {
        let text = text.trim();
        let named = |zone| Self { name: text.to_owned(), zone };
        if matches!(text, "UTC" | "utc" | "GMT" | "Z" | "z") {
            return Ok(Self::utc());
        }
        if let Some(offset) = parse_offset(text) {
            return Ok(named(TimeZone::fixed(offset)));
        }
        // Without rules, `UTC+2` would be west of Greenwich by POSIX, which is never intended.
        let rules = text.contains(',').then(|| TimeZone::posix(text).ok()).flatten();
        let zone = rules.or_else(|| TimeZone::tzif(text, &zone_file(text)?).ok());
        zone.map(named).ok_or_else(|| {
            let forms = "for example Europe/Berlin, UTC or +02:00";
            InvalidOption::new(format!("time zone {text:?} is not known here; {forms}"))
        })
    }
}

impl fmt::Display for NamedTimeZone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// A time as written in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ParsedTime {
    /// A time with an offset of its own, or a count since 1970.
    Absolute(EventTime),
    /// A time without an offset.
    Local(EventTime),
    /// A time without an offset, in the hour that comes twice when clocks are set back.
    Ambiguous { first: EventTime, second: EventTime },
}

impl ParsedTime {
    /// Returns the time; of one that comes twice, the first.
    pub(crate) const fn earliest(self) -> EventTime {
        match self {
            Self::Absolute(time) | Self::Local(time) | Self::Ambiguous { first: time, .. } => time,
        }
    }
}

/// Reads the times of a file.
#[derive(Debug, Clone)]
pub(crate) struct TimeParser {
    format: TimeFormat,
    zone: NamedTimeZone,
}

/// Returns the time that a number is if it counts days as spreadsheets do, with a time of day in it; `None` if it is of no record.
fn spreadsheet_time(days: f64) -> Option<EventTime> {
    /// 1970-01-01, 2000-01-01 and 2100-01-01.
    const EPOCH: f64 = 25_569.0;
    const RECORDS: std::ops::Range<f64> = 36_526.0..73_051.0;
    let seconds = ((days - EPOCH) * 86_400.0).round();
    (RECORDS.contains(&days) && days.fract() != 0.0).then(|| EventTime::from_seconds(seconds))
}

/// Returns the midnight after a day of a text that names it by the hour 24: `2025-02-03 24:00:00` is 2025-02-04T00:00:00.
fn end_of_day(text: &str) -> Option<DateTime> {
    let (date, clock) = text.split_at(text.find([' ', 'T'])?);
    let rest = clock.trim_start_matches([' ', 'T']).strip_prefix("24:00")?;
    let is_sharp = rest.is_empty() || rest.starts_with(':') && rest.chars().all(|c| matches!(c, ':' | '0' | '.' | ','));
    let begin = datetime(&format!("{date} 00:00:00")).filter(|_| is_sharp)?;
    Some(begin.date().tomorrow().ok()?.to_datetime(begin.time()))
}

impl TimeParser {
    pub(crate) fn new(format: Option<TimeFormat>, zone: Option<NamedTimeZone>) -> Self {
        Self { format: format.unwrap_or_default(), zone: zone.unwrap_or_else(NamedTimeZone::utc) }
    }

    /// Reads a time; an error continues "TEXT is", and names a remedy.
    pub(crate) fn read(&self, text: &str) -> Result<ParsedTime, String> {
        let text = text.trim();
        let at = |micros: Result<EventTime, String>| micros.map(ParsedTime::Absolute);
        match &self.format {
            TimeFormat::Auto => self.parse_auto(text),
            TimeFormat::Rfc3339 => at(text.parse().map_err(|_| {
                "not an RFC 3339 time with an offset; leave --time-format out for local times without one".to_owned()
            })),
            TimeFormat::Unix => at(parse_count(text, 1_000_000)),
            TimeFormat::UnixMs => at(parse_count(text, 1_000)),
            TimeFormat::UnixUs => at(parse_count(text, 1)),
            TimeFormat::UnixNs => at(parse_nanoseconds(text)),
            TimeFormat::Pattern(pattern) => self.with_pattern(pattern, text),
        }
    }

    fn parse_auto(&self, text: &str) -> Result<ParsedTime, String> {
        if let Ok(time) = text.parse::<EventTime>() {
            return Ok(ParsedTime::Absolute(time));
        }
        let plain = with_plain_half(text);
        let text = &*plain;
        let (clock, offset) = split_offset(text);
        if let Some(time) = datetime(clock).or_else(|| end_of_day(clock)) {
            return match offset {
                Some(offset) => {
                    let timestamp = offset.to_timestamp(time).map_err(|_| "outside the years 0 to 9999".to_owned())?;
                    checked_time(timestamp.as_microsecond() as f64)?;
                    Ok(ParsedTime::Absolute(EventTime::from_micros(timestamp.as_microsecond())))
                }
                None => self.resolve_local(time),
            };
        }
        let is_date_and_clock = text.len() == 14 && compact_date(text.get(..8).unwrap_or_default()).is_some();
        if let Ok(value) = text.replace(',', ".").parse::<f64>()
            && (!is_date_and_clock || patterns_of(text).is_empty())
        {
            if let Some(time) = spreadsheet_time(value) {
                return Err(format!(
                    "a number, and its unit is not known; as a day of a spreadsheet it is {time}: save the column as text, as in \
                     2025-02-03 10:00:00, or use --time-format unix if it is seconds"
                ));
            }
            let guess = match value.abs() {
                x if x < 1e11 => "unix",
                x if x < 1e14 => "unix_ms",
                x if x < 1e17 => "unix_us",
                _ => "unix_ns",
            };
            return Err(format!("a number, and its unit is not known; use --time-format {guess} if that is what it is"));
        }
        if is_time_of_day(text) {
            return Err(
                "a time of day without a date; name the column of the date, too: --map 'time=DATE+CLOCK', or give the day of the \
                        first row, for example --date 2025-02-03"
                    .to_owned(),
            );
        }
        // A pattern has the name of a zone as it is, and does not read it.
        let zone = match zone_in(text) {
            Some(name) if UTC_NAMES.contains(&name) => ", and --time-zone UTC,".to_owned(),
            Some(name) => format!(", and --time-zone with the offset that {name} means,"),
            None => String::new(),
        };
        Err(match patterns_of(text).as_slice() {
            [one] => {
                format!("not a time of a form that is read by itself; use --time-format \"{one}\"{zone} if that is what it is")
            }
            [one, other, ..] => {
                let either = format!("\"{one}\" or \"{other}\"{}", zone.trim_end_matches(','));
                format!("a date of which the day or the month may come first; use --time-format {either}")
            }
            [] => "not a time of a known form; use --time-format rfc3339, unix, unix_ms, unix_us, unix_ns or a strptime pattern"
                .to_owned(),
        })
    }

    /// Returns whether a text is a time since the year 2000, and no count since a start.
    pub(crate) fn reads_this_century(&self, text: &str) -> bool {
        self.read(text).is_ok_and(|stamp| (FIRST_RECORDS..LAST_RECORDS).contains(&stamp.earliest()))
    }

    /// Returns the pattern that the user gave.
    pub(crate) fn pattern(&self) -> Option<&str> {
        if let TimeFormat::Pattern(pattern) = &self.format { Some(pattern) } else { None }
    }

    /// Returns whether a text is a time of day without a date.
    pub(crate) fn lacks_date(&self, text: &str) -> bool {
        let is_clock = |parts: BrokenDownTime| parts.hour().is_some() && parts.to_date().is_err();
        match &self.format {
            TimeFormat::Auto => is_time_of_day(text),
            TimeFormat::Pattern(pattern) => break_down(pattern, text.trim()).is_ok_and(is_clock),
            _ => false,
        }
    }

    /// Reads a time of day on a date; an error continues "TEXT is".
    pub(crate) fn read_on(&self, date: Date, text: &str) -> Result<ParsedTime, String> {
        let TimeFormat::Pattern(pattern) = &self.format else { return self.read(&format!("{date} {}", text.trim())) };
        let time = break_down(pattern, text.trim())?.to_time();
        let time = time.map_err(|_| format!("no time of day in the form --time-format {pattern:?}; name hour and minute"))?;
        self.resolve_local(date.to_datetime(time))
    }

    /// Returns whether a text is a time over which clocks were set forward.
    pub(crate) fn is_skipped(&self, text: &str) -> bool {
        let offset = |time: DateTime| self.zone.zone.to_ambiguous_timestamp(time).offset();
        self.format == TimeFormat::Auto && datetime(text).is_some_and(|time| matches!(offset(time), AmbiguousOffset::Gap { .. }))
    }

    /// Returns whether a text is a date without a time of day.
    pub(crate) fn is_date(&self, text: &str) -> bool {
        let is_compact = || self.format == TimeFormat::Auto && compact_date(text.trim()).is_some();
        let is_read = || matches!(self.format, TimeFormat::Auto | TimeFormat::Pattern(_)) && self.read(text).is_ok();
        !text.contains(':') && (is_read() || is_compact())
    }

    /// Returns the larger unit in which a time that was read as a count of a small one would be of this century, and that time;
    /// `None` if it is no count, or its unit may be right.
    pub(crate) fn larger_unit(&self, time: EventTime) -> Option<(&'static str, EventTime)> {
        let units = match self.format {
            TimeFormat::UnixMs => &["unix"][..],
            TimeFormat::UnixUs => &["unix_ms", "unix"],
            TimeFormat::UnixNs => &["unix_us", "unix_ms", "unix"],
            _ => return None,
        };
        if time >= FIRST_RECORDS {
            return None;
        }
        let in_unit = |(at, unit): (u32, &&'static str)| {
            let micros = time.micros().checked_mul(1000_i64.pow(at))?;
            (FIRST_RECORDS.micros()..LAST_RECORDS.micros()).contains(&micros).then(|| (*unit, EventTime::from_micros(micros)))
        };
        (1..).zip(units).find_map(in_unit)
    }

    fn resolve_local(&self, time: DateTime) -> Result<ParsedTime, String> {
        let zone = &self.zone;
        let outside = || "outside the years 0 to 9999; check --time-format".to_owned();
        let micros = |offset: Offset| -> Result<EventTime, String> {
            let micros = offset.to_timestamp(time).map_err(|_| outside())?.as_microsecond();
            checked_time(micros as f64).map(|_| EventTime::from_micros(micros))
        };
        match zone.zone.to_ambiguous_timestamp(time).offset() {
            AmbiguousOffset::Unambiguous { offset } => Ok(ParsedTime::Local(micros(offset)?)),
            AmbiguousOffset::Fold { before, after } => {
                Ok(ParsedTime::Ambiguous { first: micros(before)?, second: micros(after)? })
            }
            AmbiguousOffset::Gap { .. } => {
                Err(format!("no time in {zone}, where clocks were set forward over it; check --time-zone"))
            }
        }
    }

    fn with_pattern(&self, pattern: &str, text: &str) -> Result<ParsedTime, String> {
        let parts = break_down(pattern, text)?;
        if let Ok(timestamp) = parts.to_timestamp() {
            let micros = timestamp.as_microsecond();
            return checked_time(micros as f64).map(|_| ParsedTime::Absolute(EventTime::from_micros(micros)));
        }
        let time = parts.to_datetime().map_err(|_| {
            format!("no full date and time in the form --time-format {pattern:?}; name year, month, day and hour")
        })?;
        self.resolve_local(time)
    }
}

fn checked_time(micros: f64) -> Result<EventTime, String> {
    let range = EventTime::MIN.micros() as f64..=EventTime::MAX.micros() as f64;
    if range.contains(&micros) {
        Ok(EventTime::from_micros(micros.round() as i64))
    } else {
        Err("outside the years 0 to 9999; check --time-format".to_owned())
    }
}

/// Parses a count of units of `micros` microseconds each.
fn parse_count(text: &str, micros: i64) -> Result<EventTime, String> {
    if let Ok(whole) = text.parse::<i64>() {
        return checked_time(whole as f64 * micros as f64).map(|_| EventTime::from_micros(whole.saturating_mul(micros)));
    }
    let value: f64 = text.replace(',', ".").parse().map_err(|_| "not a number, as --time-format requires".to_owned())?;
    checked_time(value * micros as f64)
}

fn parse_nanoseconds(text: &str) -> Result<EventTime, String> {
    if let Ok(whole) = text.parse::<i64>() {
        return Ok(EventTime::from_micros(whole.div_euclid(1000)));
    }
    let value: f64 = text.replace(',', ".").parse().map_err(|_| "not a number, as --time-format requires".to_owned())?;
    checked_time(value / 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `Europe/Berlin` and `America/New_York`, without the database.
    const BERLIN: &str = "CET-1CEST,M3.5.0,M10.5.0/3";
    const NEW_YORK: &str = "EST5EDT,M3.2.0,M11.1.0";

    fn only(stamp: ParsedTime) -> EventTime {
        match stamp {
            ParsedTime::Absolute(time) | ParsedTime::Local(time) => time,
            ParsedTime::Ambiguous { .. } => panic!("comes twice"),
        }
    }

    fn clock(format: &str, zone: &str) -> TimeParser {
        TimeParser::new(Some(format.parse().unwrap()), Some(NamedTimeZone::new(zone, |_| None).unwrap()))
    }

    fn read(format: &str, text: &str) -> Result<String, String> {
        clock(format, "UTC").read(text).map(|stamp| only(stamp).to_string())
    }

    #[test]
    fn reads_every_known_form() {
        for (format, text, expected) in [
            ("auto", "2022-07-13 02:07:36.708783111", "2022-07-13T02:07:36.708783Z"),
            ("auto", "2023/11/16 18:17:03.979", "2023-11-16T18:17:03.979000Z"),
            ("auto", "2023-11-16T18:17:03+02:00", "2023-11-16T16:17:03.000000Z"),
            ("rfc3339", "2023-11-16T18:17:03Z", "2023-11-16T18:17:03.000000Z"),
            ("unix", "1700000000.25", "2023-11-14T22:13:20.250000Z"),
            ("unix", "1700000000", "2023-11-14T22:13:20.000000Z"),
            ("unix_ms", "1715341130099", "2024-05-10T11:38:50.099000Z"),
            ("unix_us", "1715341130099001", "2024-05-10T11:38:50.099001Z"),
            ("unix_ns", "1715341130099001999", "2024-05-10T11:38:50.099001Z"),
            ("%m-%d-%Y %H:%M:%S%.f", "07-12-2024 23:12:57.304", "2024-07-12T23:12:57.304000Z"),
            ("%Y-%m-%d %H:%M:%S %z", "2024-07-12 23:12:57 +0200", "2024-07-12T21:12:57.000000Z"),
            ("auto", "2025-02-03 10:00:00,250", "2025-02-03T10:00:00.250000Z"),
            ("auto", "03.02.2025 10:00:00", "2025-02-03T10:00:00.000000Z"),
            ("auto", "03.02.2025 10:00", "2025-02-03T10:00:00.000000Z"),
            ("auto", "2025-02-03 10:00:00 UTC", "2025-02-03T10:00:00.000000Z"),
            ("auto", "2025-02-03 10:00:00 +0200", "2025-02-03T08:00:00.000000Z"),
            ("auto", "2025/02/03 10:00:00.5-07:30", "2025-02-03T17:30:00.500000Z"),
            ("auto", "2025-02-03T10:00:00", "2025-02-03T10:00:00.000000Z"),
            ("unix", "1700000000,25", "2023-11-14T22:13:20.250000Z"),
            ("auto", "2025-02-03 10:00:00 AM", "2025-02-03T10:00:00.000000Z"),
            ("auto", "2025-02-03 12:05:00 AM", "2025-02-03T00:05:00.000000Z"),
            ("auto", "2025-02-03 1:05:00.5 pm", "2025-02-03T13:05:00.500000Z"),
            ("auto", "2025/2/3 9:05:00", "2025-02-03T09:05:00.000000Z"),
            ("auto", "2025-02-03 1:05:00 p. m.", "2025-02-03T13:05:00.000000Z"),
            ("auto", "2025-02-03 1:05:00 P.M.", "2025-02-03T13:05:00.000000Z"),
            ("auto", "2025-02-03 12:05:00 a.\u{a0}m.", "2025-02-03T00:05:00.000000Z"),
            ("auto", "2025/2/3 下午 1:05:00", "2025-02-03T13:05:00.000000Z"),
            ("auto", "2025/2/3 上午12:05:00", "2025-02-03T00:05:00.000000Z"),
            ("auto", "2025-02-03 오후 1:05:00", "2025-02-03T13:05:00.000000Z"),
            ("auto", "3.2.2025 1:05:00 μμ", "2025-02-03T13:05:00.000000Z"),
            ("%d/%m/%Y %I:%M:%S %p", "13/02/2025 01:00:00 p. m.", "2025-02-13T13:00:00.000000Z"),
            ("%d/%m/%Y %p %I:%M:%S", "13/02/2025 오전 01:00:00", "2025-02-13T01:00:00.000000Z"),
            ("auto", "3.2.2025 9:05:00,25", "2025-02-03T09:05:00.250000Z"),
            ("auto", "20250203 10:00:00", "2025-02-03T10:00:00.000000Z"),
            ("auto", "20250203T100000Z", "2025-02-03T10:00:00.000000Z"),
            ("auto", "2025-02-03 24:00:00", "2025-02-04T00:00:00.000000Z"),
            ("auto", "2025-12-31T24:00:00.000Z", "2026-01-01T00:00:00.000000Z"),
            ("auto", "31.12.2025 24:00", "2026-01-01T00:00:00.000000Z"),
            ("%Y%m%d%H%M%S", "20250203100007", "2025-02-03T10:00:07.000000Z"),
            ("%Y-%m-%d %H:%M:%S:%f", "2025-02-03 10:00:00:500", "2025-02-03T10:00:00.500000Z"),
        ] {
            assert_eq!(read(format, text).as_deref(), Ok(expected), "{format} {text}");
        }
    }

    #[test]
    fn a_count_in_a_smaller_unit_than_it_is_in_is_seen() {
        for (format, text, expected) in [
            ("unix_ms", "1738576800", Some(("unix", "2025-02-03"))),
            ("unix_us", "1738576800000", Some(("unix_ms", "2025-02-03"))),
            ("unix_us", "1738576800", Some(("unix", "2025-02-03"))),
            ("unix_ns", "1738576800000", Some(("unix_ms", "2025-02-03"))),
            ("unix_ms", "1738576800000", None),
            ("unix_ms", "250", None),
            ("unix", "60", None),
            ("auto", "1970-01-21T02:56:16Z", None),
        ] {
            let clock = clock(format, "UTC");
            let found = clock.larger_unit(only(clock.read(text).unwrap()));
            let found = found.map(|(unit, time)| (unit, time.date()));
            assert_eq!(found, expected.map(|(unit, date)| (unit, date.to_owned())), "{format} {text}");
        }
    }

    #[test]
    fn reports_what_to_do_about_the_rest() {
        assert!(read("auto", "1715341130099").unwrap_err().contains("unix_ms"));
        assert!(read("auto", "1700000000").unwrap_err().contains("--time-format unix "));
        assert!(read("auto", "yesterday").unwrap_err().contains("strptime"));
        assert!(read("rfc3339", "2023-11-16 18:17").is_err());
        assert!(read("unix", "1e300").unwrap_err().contains("years"));
        assert!(read("unix", "NaN").is_err());
        assert!(read("auto", "02/03/2025 10:00:00").unwrap_err().contains("\"%d/%m/%Y %H:%M:%S\" or \"%m/%d/%Y"));
        for (text, expected) in [
            ("2/3/2025 10:00:00 PM", "use --time-format \"%d/%m/%Y %I:%M:%S %p\" or \"%m/%d/%Y %I:%M:%S %p\""),
            ("13/02/2025 01:00:00 p. m.", "use --time-format \"%d/%m/%Y %I:%M:%S %p\" if"),
            ("13/02/2025 下午 01:00:00", "use --time-format \"%d/%m/%Y %p %I:%M:%S\" if"),
            ("13/02/2025 01:00:00 ĝis", "strptime pattern"),
            ("02-03-2025 10:00:00", "use --time-format \"%d-%m-%Y %H:%M:%S\" or \"%m-%d-%Y %H:%M:%S\""),
            ("02/13/2025 10:00", "use --time-format \"%m/%d/%Y %H:%M\""),
            ("Mon Feb 03 10:00:00 2025", "use --time-format \"%a %b %d %H:%M:%S %Y\""),
            ("03-Feb-2025 10:00:00.250", "use --time-format \"%d-%b-%Y %H:%M:%S%.f\""),
            ("03/Feb/2025:10:00:00 +0100", "use --time-format \"%d/%b/%Y:%H:%M:%S %z\""),
            (
                "2025-02-03 10:00:00 CET",
                "use --time-format \"%Y-%m-%d %H:%M:%S CET\", and --time-zone with the offset that CET means, if",
            ),
            ("Mon Feb 03 10:00:00 UTC 2025", "use --time-format \"%a %b %d %H:%M:%S UTC %Y\", and --time-zone UTC, if"),
            ("02/03/2025 10:00:00 EST", "or \"%m/%d/%Y %H:%M:%S EST\", and --time-zone with the offset that EST means"),
            ("20250203100000", "use --time-format \"%Y%m%d%H%M%S\" if"),
            ("20250203-100000", "use --time-format \"%Y%m%d-%H%M%S\" if"),
            ("2025-02-03 10:00:00:500", "use --time-format \"%Y-%m-%d %H:%M:%S:%f\" if"),
            ("17385768000000", "use --time-format unix_ms if"),
            ("2025-02-03T10:00:00004.500Z", "strptime pattern"),
            ("2025-02-03 13:00:00 PM", "strptime pattern"),
            ("2025-W06-1", "strptime pattern"),
            ("2025-W06-1 10:00:00", "strptime pattern"),
            ("99/99/2025 10:00:00", "strptime pattern"),
        ] {
            let error = read("auto", text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
            // The format that the error proposes reads the text.
            let offered = error.split_once("--time-format \"").and_then(|(_, rest)| rest.split_once('"'));
            assert!(offered.is_none_or(|(pattern, _)| read(pattern, text).is_ok()), "{text}: {error}");
        }
        for text in ["2025-02-03 24:00:01", "2025-02-03 24:01", "2025-02-30 24:00:00"] {
            assert!(read("auto", text).is_err(), "{text}");
        }
        assert!(read("%H:%M", "12:30").unwrap_err().contains("full date"));
        assert!("weekly".parse::<TimeFormat>().is_err());
        for (pattern, is_read) in [
            ("%m/%d/%Y %I:%M:%S", false),
            ("%m/%d/%Y %-I:%M", false),
            ("%m/%d/%Y %l:%M", false),
            ("%m/%d/%Y %I:%M:%S %p", true),
            ("%m/%d/%Y %I:%M:%S%P", true),
            ("%m/%d/%Y %H:%M:%S", true),
            ("%%I %Y-%m-%d %H:%M", true),
            ("%d/%m/%Y %H:%M:%S p. m.", false),
            ("%Y/%m/%d 下午 %H:%M:%S", false),
            ("%d.%m.%Y %I:%M:%S %p.m.", true),
        ] {
            assert_eq!(pattern.parse::<TimeFormat>().is_ok(), is_read, "{pattern}");
        }
    }

    #[test]
    fn reads_zones() {
        for (zone, text, expected) in [
            (BERLIN, "2025-07-03 12:00:00", "2025-07-03T10:00:00.000000Z"),
            (BERLIN, "2025-02-03 12:00:00", "2025-02-03T11:00:00.000000Z"),
            (NEW_YORK, "2025-07-03 12:00:00", "2025-07-03T16:00:00.000000Z"),
            ("+05:30", "2025-07-03 12:00:00", "2025-07-03T06:30:00.000000Z"),
            ("+2", "2025-07-03 12:00:00", "2025-07-03T10:00:00.000000Z"),
            ("-0730", "2025-07-03 12:00:00", "2025-07-03T19:30:00.000000Z"),
            (BERLIN, "2025-07-03 12:00:00Z", "2025-07-03T12:00:00.000000Z"),
        ] {
            assert_eq!(only(clock("auto", zone).read(text).unwrap()).to_string(), expected, "{zone} {text}");
        }
        for zone in ["", "Berlin", "+99", "+2:75", "UTC+2", "CEST", "++2"] {
            let error = NamedTimeZone::new(zone, |_| Some(b"no zone".to_vec())).unwrap_err().to_string();
            assert!(error.contains("is not known here; for example"), "{zone}: {error}");
        }
    }

    #[test]
    fn an_hour_comes_twice_and_another_never() {
        let berlin = clock("auto", BERLIN);
        let ParsedTime::Ambiguous { first, second } = berlin.read("2024-10-27 02:00:00").unwrap() else { panic!("comes once") };
        assert_eq!(second.seconds_since(first), 3600.0);
        let pattern = clock("%d.%m.%Y %H:%M", BERLIN).read("27.10.2024 02:00").unwrap();
        assert_eq!(pattern, ParsedTime::Ambiguous { first, second });
        let skipped = berlin.read("2025-03-30 02:30:00").unwrap_err();
        assert!(skipped.contains("no time in CET-1CEST") && skipped.contains("--time-zone"), "{skipped}");
    }
}
