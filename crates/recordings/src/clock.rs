//! Times as people write them.

use std::fmt;
use std::str::FromStr;

use eadt_schemas::EventTime;
use jiff::civil::DateTime;
use jiff::fmt::strtime;
use jiff::tz::TimeZone;

use crate::InvalidOption;

/// How a column tells time.
///
/// Texts without an offset are read as UTC: a recording does not say where it was made, and differences are what
/// counts.
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
            pattern if pattern.contains('%') => Self::Pattern(pattern.to_owned()),
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
    /// Reads a time; the error goes on after "TEXT is", and says what to do.
    pub(crate) fn parse(&self, text: &str) -> Result<EventTime, String> {
        let text = text.trim();
        match self {
            Self::Auto => auto(text),
            Self::Rfc3339 => text.parse().map_err(|_| {
                "not an RFC 3339 time with an offset; leave --time-format out for local times without one".to_owned()
            }),
            Self::Unix => number(text, 1_000_000),
            Self::UnixMs => number(text, 1_000),
            Self::UnixUs => number(text, 1),
            Self::UnixNs => nanoseconds(text),
            Self::Pattern(pattern) => with_pattern(pattern, text),
        }
    }
}

fn auto(text: &str) -> Result<EventTime, String> {
    if let Ok(time) = text.parse::<EventTime>() {
        return Ok(time);
    }
    if let Some(time) = civil(text) {
        return Ok(time);
    }
    if let Ok(value) = text.parse::<f64>() {
        let guess = match value.abs() {
            x if x < 1e11 => "unix",
            x if x < 1e14 => "unix_ms",
            x if x < 1e17 => "unix_us",
            _ => "unix_ns",
        };
        return Err(format!("a number, and its unit is not known; say --time-format {guess} if that is what it is"));
    }
    Err("not a time of a known form; say --time-format rfc3339, unix, unix_ms, unix_us, unix_ns or a strptime pattern".to_owned())
}

/// `YYYY-MM-DD HH:MM:SS[.fraction]`, `/` for `-` and `T` for the blank allowed; UTC.
pub(crate) fn civil(text: &str) -> Option<EventTime> {
    let text = text.trim();
    // Ten characters are the date; jiff wants hyphens there.
    let date = text.get(..10)?;
    let text = if date.contains('/') { format!("{}{}", date.replace('/', "-"), text.get(10..)?) } else { text.to_owned() };
    utc(text.parse::<DateTime>().ok()?)
}

fn utc(datetime: DateTime) -> Option<EventTime> {
    let micros = TimeZone::UTC.to_timestamp(datetime).ok()?.as_microsecond();
    Some(EventTime::from_micros(micros))
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
    let value: f64 = text.parse().map_err(|_| "not a number, as --time-format says".to_owned())?;
    checked(value * micros as f64)
}

fn nanoseconds(text: &str) -> Result<EventTime, String> {
    if let Ok(whole) = text.parse::<i64>() {
        return Ok(EventTime::from_micros(whole.div_euclid(1000)));
    }
    let value: f64 = text.parse().map_err(|_| "not a number, as --time-format says".to_owned())?;
    checked(value / 1000.0)
}

fn with_pattern(pattern: &str, text: &str) -> Result<EventTime, String> {
    let parts = strtime::parse(pattern, text).map_err(|error| format!("not of the form --time-format {pattern:?} ({error})"))?;
    let micros = match parts.to_timestamp() {
        Ok(timestamp) => timestamp.as_microsecond(),
        // Without an offset: UTC.
        Err(_) => parts
            .to_datetime()
            .ok()
            .and_then(utc)
            .ok_or_else(|| {
                format!("no full date and time in the form --time-format {pattern:?}; name year, month, day and hour")
            })?
            .micros(),
    };
    checked(micros as f64).map(|_| EventTime::from_micros(micros))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(format: &str, text: &str) -> Result<String, String> {
        format.parse::<TimeFormat>().unwrap().parse(text).map(|time| time.to_string())
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
        assert!(read("%H:%M", "12:30").unwrap_err().contains("full date"));
        assert!("weekly".parse::<TimeFormat>().is_err());
    }
}
