//! Times as people write them.

use std::fmt;
use std::str::FromStr;

use eadt_schemas::EventTime;
use jiff::civil::DateTime;
use jiff::fmt::strtime;
use jiff::tz::{AmbiguousOffset, Offset, TimeZone};

use crate::InvalidOption;

/// How a column tells time. Texts without an offset are in the [`Zone`] that is given, else in UTC.
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
                if has_half_day_clock(pattern) {
                    return Err(InvalidOption::new(format!(
                        "time format {pattern:?} has hours from 1 to 12 and nothing that says which half of the day; say %H if hours go on to 23, \
                         or %p where AM or PM stands"
                    )));
                }
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

/// Whether a pattern has the hours of half a day, and not which half.
fn has_half_day_clock(pattern: &str) -> bool {
    let mut rest = pattern.chars();
    let (mut hours, mut half) = (false, false);
    while let Some(character) = rest.next() {
        if character != '%' {
            continue;
        }
        // Flags and widths stand between.
        let directive = rest.find(|character| !"-_0^#:123456789".contains(*character));
        hours |= matches!(directive, Some('I' | 'l'));
        half |= matches!(directive, Some('p' | 'P' | 'H' | 'k' | 's'));
    }
    hours && !half
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
    /// Reads a time, in UTC if it has no offset; an error goes on after "TEXT is", and says what to do.
    pub(crate) fn parse(&self, text: &str) -> Result<EventTime, String> {
        Clock::new(Some(self.clone()), None).read(text).map(|stamp| match stamp {
            Stamp::At(time) | Stamp::Local(time) | Stamp::Twice { first: time, .. } => time,
        })
    }
}

/// The zone of times that say none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Zone {
    name: String,
    zone: TimeZone,
}

impl Zone {
    pub fn utc() -> Self {
        Self { name: "UTC".to_owned(), zone: TimeZone::UTC }
    }

    /// Reads an offset from UTC such as `+02:00`, `-7` or `+0530`, a POSIX rule such as `CET-1CEST,M3.5.0,M10.5.0/3`, or an IANA name,
    /// whose rules `zone_file` returns: the bytes of its file in the time zone database.
    pub fn new(text: &str, zone_file: impl FnOnce(&str) -> Option<Vec<u8>>) -> Result<Self, InvalidOption> {
        let text = text.trim();
        let named = |zone| Self { name: text.to_owned(), zone };
        if matches!(text, "UTC" | "utc" | "GMT" | "Z" | "z") {
            return Ok(Self::utc());
        }
        if let Some(offset) = offset(text) {
            return Ok(named(TimeZone::fixed(offset)));
        }
        // Without rules, `UTC+2` would be west of Greenwich by POSIX, which nobody means.
        let rules = text.contains(',').then(|| TimeZone::posix(text).ok()).flatten();
        let zone = rules.or_else(|| TimeZone::tzif(text, &zone_file(text)?).ok());
        zone.map(named).ok_or_else(|| {
            let forms = "say for example Europe/Berlin, UTC or +02:00";
            InvalidOption::new(format!("time zone {text:?} is not known here; {forms}"))
        })
    }
}

impl fmt::Display for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// `+02:00`, `+0200`, `+02`, `+2`, `-07:30`.
fn offset(text: &str) -> Option<Offset> {
    let (sign, digits) = match text.split_at_checked(1)? {
        ("+", digits) => (1, digits),
        ("-" | "−", digits) => (-1, digits),
        _ => return None,
    };
    let (hours, minutes) = match (digits.split_once(':'), digits.len()) {
        (Some(parts), _) => parts,
        (None, 1 | 2) => (digits, "0"),
        (None, 4) => digits.split_at(2),
        _ => return None,
    };
    let number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse::<i32>().ok()).flatten();
    let (hours, minutes) = (number(hours)?, number(minutes)?);
    if hours > 18 || minutes > 59 {
        return None;
    }
    Offset::from_seconds(sign * (hours * 3600 + minutes * 60)).ok()
}

/// A time as a file says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stamp {
    /// With an offset of its own, or a count since 1970.
    At(EventTime),
    /// Without an offset.
    Local(EventTime),
    /// Without an offset, in the hour that comes twice when clocks are set back.
    Twice { first: EventTime, second: EventTime },
}

/// Reads the times of a file.
#[derive(Debug, Clone)]
pub(crate) struct Clock {
    format: TimeFormat,
    zone: Zone,
}

impl Clock {
    pub(crate) fn new(format: Option<TimeFormat>, zone: Option<Zone>) -> Self {
        Self { format: format.unwrap_or_default(), zone: zone.unwrap_or_else(Zone::utc) }
    }

    /// Reads a time; an error goes on after "TEXT is", and says what to do.
    pub(crate) fn read(&self, text: &str) -> Result<Stamp, String> {
        let text = text.trim();
        let at = |micros: Result<EventTime, String>| micros.map(Stamp::At);
        match &self.format {
            TimeFormat::Auto => self.auto(text),
            TimeFormat::Rfc3339 => at(text.parse().map_err(|_| {
                "not an RFC 3339 time with an offset; leave --time-format out for local times without one".to_owned()
            })),
            TimeFormat::Unix => at(number(text, 1_000_000)),
            TimeFormat::UnixMs => at(number(text, 1_000)),
            TimeFormat::UnixUs => at(number(text, 1)),
            TimeFormat::UnixNs => at(nanoseconds(text)),
            TimeFormat::Pattern(pattern) => self.with_pattern(pattern, text),
        }
    }

    fn auto(&self, text: &str) -> Result<Stamp, String> {
        if let Ok(time) = text.parse::<EventTime>() {
            return Ok(Stamp::At(time));
        }
        let (clock, offset) = split_offset(text);
        if let Some(time) = datetime(clock) {
            return match offset {
                Some(offset) => {
                    let timestamp = offset.to_timestamp(time).map_err(|_| "outside the years 0 to 9999".to_owned())?;
                    checked(timestamp.as_microsecond() as f64)?;
                    Ok(Stamp::At(EventTime::from_micros(timestamp.as_microsecond())))
                }
                None => self.local(time),
            };
        }
        if let Ok(value) = text.replace(',', ".").parse::<f64>() {
            let guess = match value.abs() {
                x if x < 1e11 => "unix",
                x if x < 1e14 => "unix_ms",
                x if x < 1e17 => "unix_us",
                _ => "unix_ns",
            };
            return Err(format!("a number, and its unit is not known; say --time-format {guess} if that is what it is"));
        }
        if let Some((first, rest)) = text.split_once('/')
            && matches!(first.len(), 1 | 2)
        {
            let (year, clock) = (if rest.len() > 8 { "%Y" } else { "%y" }, if text.contains(':') { " %H:%M:%S" } else { "" });
            return Err(format!(
                "a date of which the day or the month may come first; say --time-format \"%d/%m/{year}{clock}\" or \
                 \"%m/%d/{year}{clock}\""
            ));
        }
        if is_time_of_day(text) {
            return Err("a time of day without a date; name the column of the date, too: --map 'time=DATE+CLOCK'".to_owned());
        }
        let forms = "say --time-format rfc3339, unix, unix_ms, unix_us, unix_ns or a strptime pattern";
        Err(format!("not a time of a known form; {forms}"))
    }

    /// The pattern that the user gave.
    pub(crate) fn pattern(&self) -> Option<&str> {
        if let TimeFormat::Pattern(pattern) = &self.format { Some(pattern) } else { None }
    }

    /// Whether a text is a date without a time of day.
    pub(crate) fn is_date(&self, text: &str) -> bool {
        !text.contains(':') && matches!(self.format, TimeFormat::Auto | TimeFormat::Pattern(_)) && self.read(text).is_ok()
    }

    fn local(&self, time: DateTime) -> Result<Stamp, String> {
        let zone = &self.zone;
        let outside = || "outside the years 0 to 9999; check --time-format".to_owned();
        let micros = |offset: Offset| -> Result<EventTime, String> {
            let micros = offset.to_timestamp(time).map_err(|_| outside())?.as_microsecond();
            checked(micros as f64).map(|_| EventTime::from_micros(micros))
        };
        match zone.zone.to_ambiguous_timestamp(time).offset() {
            AmbiguousOffset::Unambiguous { offset } => Ok(Stamp::Local(micros(offset)?)),
            AmbiguousOffset::Fold { before, after } => Ok(Stamp::Twice { first: micros(before)?, second: micros(after)? }),
            AmbiguousOffset::Gap { .. } => {
                Err(format!("no time in {zone}, where clocks were set forward over it; check --time-zone"))
            }
        }
    }

    fn with_pattern(&self, pattern: &str, text: &str) -> Result<Stamp, String> {
        let parts =
            strtime::parse(pattern, text).map_err(|error| format!("not of the form --time-format {pattern:?} ({error})"))?;
        if let Ok(timestamp) = parts.to_timestamp() {
            let micros = timestamp.as_microsecond();
            return checked(micros as f64).map(|_| Stamp::At(EventTime::from_micros(micros)));
        }
        let time = parts.to_datetime().map_err(|_| {
            format!("no full date and time in the form --time-format {pattern:?}; name year, month, day and hour")
        })?;
        self.local(time)
    }
}

/// `10:00`, `9:05:01.250`, `10:00:00,5 PM`.
pub(crate) fn is_time_of_day(text: &str) -> bool {
    let text = text.trim();
    let clock = text.trim_end_matches(|c: char| c.is_ascii_alphabetic()).trim_end();
    let rest = text[clock.len()..].trim();
    let parts: Vec<&str> = clock.split(':').collect();
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let last = |part: &str| digits(&part.replace(['.', ','], ""));
    matches!(rest.to_ascii_uppercase().as_str(), "" | "AM" | "PM")
        && match parts.as_slice() {
            [hour, minute] => hour.len() <= 2 && digits(hour) && minute.len() == 2 && digits(minute),
            [hour, minute, second] => hour.len() <= 2 && digits(hour) && minute.len() == 2 && digits(minute) && last(second),
            _ => false,
        }
}

/// A time and the offset at its end: ` UTC`, ` GMT`, ` +0200`, `+02:00`.
fn split_offset(text: &str) -> (&str, Option<Offset>) {
    for name in ["UTC", "GMT", "Z"] {
        if let Some(clock) = text.strip_suffix(name) {
            return (clock.trim_end(), Some(Offset::UTC));
        }
    }
    // The date's own hyphens stand before.
    let sign = text.get(10..).and_then(|rest| rest.rfind(['+', '-'])).map(|at| at + 10);
    match sign.and_then(|at| Some((text.get(..at)?.trim_end(), offset(text.get(at..)?)?))) {
        Some((clock, offset)) => (clock, Some(offset)),
        None => (text, None),
    }
}

/// `YYYY-MM-DD HH:MM[:SS[.fraction]]`, or with `/`, or `DD.MM.YYYY`; `T` for the blank and a comma before the fraction are allowed.
fn datetime(text: &str) -> Option<DateTime> {
    let text = text.trim();
    // Ten characters are the date; jiff wants hyphens there.
    let (date, clock) = (text.get(..10)?, text.get(10..)?);
    let parts: Vec<&str> = date.split(['-', '/', '.']).collect();
    let date = match (parts.as_slice(), date.contains('.')) {
        ([year, month, day], false) if year.len() == 4 => format!("{year}-{month}-{day}"),
        ([day, month, year], true) if year.len() == 4 => format!("{year}-{month}-{day}"),
        ([year, month, day], true) if year.len() == 4 => format!("{year}-{month}-{day}"),
        _ => return None,
    };
    format!("{date}{}", clock.replace(',', ".")).parse().ok()
}

fn checked(micros: f64) -> Result<EventTime, String> {
    let range = EventTime::MIN.micros() as f64..=EventTime::MAX.micros() as f64;
    if range.contains(&micros) {
        Ok(EventTime::from_micros(micros.round() as i64))
    } else {
        Err("outside the years 0 to 9999; check --time-format".to_owned())
    }
}

/// A count of units of `micros` microseconds each.
fn number(text: &str, micros: i64) -> Result<EventTime, String> {
    if let Ok(whole) = text.parse::<i64>() {
        return checked(whole as f64 * micros as f64).map(|_| EventTime::from_micros(whole.saturating_mul(micros)));
    }
    let value: f64 = text.replace(',', ".").parse().map_err(|_| "not a number, as --time-format says".to_owned())?;
    checked(value * micros as f64)
}

fn nanoseconds(text: &str) -> Result<EventTime, String> {
    if let Ok(whole) = text.parse::<i64>() {
        return Ok(EventTime::from_micros(whole.div_euclid(1000)));
    }
    let value: f64 = text.replace(',', ".").parse().map_err(|_| "not a number, as --time-format says".to_owned())?;
    checked(value / 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `Europe/Berlin` and `America/New_York`, without the database.
    const BERLIN: &str = "CET-1CEST,M3.5.0,M10.5.0/3";
    const NEW_YORK: &str = "EST5EDT,M3.2.0,M11.1.0";

    fn only(stamp: Stamp) -> EventTime {
        match stamp {
            Stamp::At(time) | Stamp::Local(time) => time,
            Stamp::Twice { .. } => panic!("comes twice"),
        }
    }

    fn clock(format: &str, zone: &str) -> Clock {
        Clock::new(Some(format.parse().unwrap()), Some(Zone::new(zone, |_| None).unwrap()))
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
        ] {
            assert_eq!(read(format, text).as_deref(), Ok(expected), "{format} {text}");
        }
    }

    #[test]
    fn says_what_to_do_about_the_rest() {
        assert!(read("auto", "1715341130099").unwrap_err().contains("unix_ms"));
        assert!(read("auto", "1700000000").unwrap_err().contains("--time-format unix "));
        assert!(read("auto", "yesterday").unwrap_err().contains("strptime"));
        assert!(read("rfc3339", "2023-11-16 18:17").is_err());
        assert!(read("unix", "1e300").unwrap_err().contains("years"));
        assert!(read("unix", "NaN").is_err());
        assert!(read("auto", "02/03/2025 10:00:00").unwrap_err().contains("\"%d/%m/%Y %H:%M:%S\" or \"%m/%d/%Y"));
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
            let error = Zone::new(zone, |_| Some(b"no zone".to_vec())).unwrap_err().to_string();
            assert!(error.contains("is not known here; say for example"), "{zone}: {error}");
        }
    }

    #[test]
    fn an_hour_comes_twice_and_another_never() {
        let berlin = clock("auto", BERLIN);
        let Stamp::Twice { first, second } = berlin.read("2024-10-27 02:00:00").unwrap() else { panic!("comes once") };
        assert_eq!(second.seconds_since(first), 3600.0);
        let pattern = clock("%d.%m.%Y %H:%M", BERLIN).read("27.10.2024 02:00").unwrap();
        assert_eq!(pattern, Stamp::Twice { first, second });
        let skipped = berlin.read("2025-03-30 02:30:00").unwrap_err();
        assert!(skipped.contains("no time in CET-1CEST") && skipped.contains("--time-zone"), "{skipped}");
    }
}
