//! Event time: microseconds since the Unix epoch, RFC 3339 UTC with microseconds on the wire.

use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A point in time, in microseconds since 1970-01-01T00:00:00Z.
///
/// On the wire an RFC 3339 string in UTC with exactly six decimals (`2026-01-02T03:04:05.678901Z`);
/// other offsets and precisions are read, too, and normalised.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct EventTime(i64);

/// A text that is not an RFC 3339 time between the years 0 and 9999.
#[derive(Debug, Clone, thiserror::Error)]
#[error("not an RFC 3339 time with an offset: {text:?}")]
pub struct InvalidTime {
    text: String,
}

impl EventTime {
    /// The earliest representable time on the wire, 0000-01-01T00:00:00Z.
    pub const MIN: Self = Self(-62_167_219_200_000_000);
    /// The latest representable time on the wire, 9999-12-31T23:59:59.999999Z.
    pub const MAX: Self = Self(253_402_300_799_999_999);

    /// Returns the value of a required time field that is absent; no event has this time.
    pub(crate) const fn missing() -> Self {
        Self::MIN
    }

    /// Converts microseconds since the Unix epoch, clamped to [`Self::MIN`]..=[`Self::MAX`].
    pub const fn from_micros(micros: i64) -> Self {
        if micros < Self::MIN.0 {
            Self::MIN
        } else if micros > Self::MAX.0 {
            Self::MAX
        } else {
            Self(micros)
        }
    }

    /// Converts milliseconds since the Unix epoch (Kafka's log time stamps).
    pub const fn from_millis(millis: i64) -> Self {
        Self::from_micros(millis.saturating_mul(1000))
    }

    /// Converts seconds since the Unix epoch, rounded to microseconds.
    pub fn from_seconds(seconds: f64) -> Self {
        Self::from_micros((seconds * 1e6).round() as i64)
    }

    /// Microseconds since the Unix epoch.
    pub const fn micros(self) -> i64 {
        self.0
    }

    /// Milliseconds since the Unix epoch, rounded down.
    pub const fn millis(self) -> i64 {
        self.0.div_euclid(1000)
    }

    /// Returns the seconds from `earlier` to `self`; negative if `earlier` is later.
    pub fn seconds_since(self, earlier: Self) -> f64 {
        (self.0 - earlier.0) as f64 / 1e6
    }

    /// Returns this time moved by `micros`, clamped to the representable range.
    #[must_use]
    pub const fn plus_micros(self, micros: i64) -> Self {
        Self::from_micros(self.0.saturating_add(micros))
    }

    /// Returns this time moved by `seconds`, rounded to microseconds.
    #[must_use]
    pub fn plus_seconds(self, seconds: f64) -> Self {
        self.plus_micros((seconds * 1e6).round() as i64)
    }

    /// Returns the UTC date as `YYYY-MM-DD`.
    pub fn date(self) -> String {
        let (y, m, d) = civil_from_days(self.0.div_euclid(DAY));
        format!("{y:04}-{m:02}-{d:02}")
    }

    fn write_rfc3339(self, out: &mut [u8; 27]) {
        let (y, mo, d) = civil_from_days(self.0.div_euclid(DAY));
        let rest = self.0.rem_euclid(DAY);
        let (seconds, micros) = (rest / 1_000_000, rest % 1_000_000);
        *out = *b"0000-00-00T00:00:00.000000Z";
        digits(&mut out[0..4], y);
        digits(&mut out[5..7], mo);
        digits(&mut out[8..10], d);
        digits(&mut out[11..13], seconds / 3600);
        digits(&mut out[14..16], seconds / 60 % 60);
        digits(&mut out[17..19], seconds % 60);
        digits(&mut out[20..26], micros);
    }

    /// Parses exactly the form that [`fmt::Display`] writes, on a fast path.
    pub(crate) fn from_canonical(text: &[u8]) -> Option<Self> {
        let bytes: &[u8; 27] = text.try_into().ok()?;
        if [bytes[4], bytes[7], bytes[10], bytes[13], bytes[16], bytes[19], bytes[26]] != *b"--T::.Z" {
            return None;
        }
        let (year, month, day) = (number(&bytes[0..4])?, number(&bytes[5..7])?, number(&bytes[8..10])?);
        let (hour, minute, second) = (number(&bytes[11..13])?, number(&bytes[14..16])?, number(&bytes[17..19])?);
        let micros = number(&bytes[20..26])?;
        if !(1..=12).contains(&month) || day < 1 || day > days_in_month(year, month) || hour > 23 || minute > 59 || second > 59 {
            return None;
        }
        let seconds = days_from_civil(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second;
        Some(Self(seconds * 1_000_000 + micros))
    }
}

/// jiff's time stamps end 26 hours before the last civil time, so that every offset stays representable.
fn last_hours(text: &str) -> Option<i64> {
    use jiff::fmt::temporal::{Pieces, PiecesOffset};
    let pieces = Pieces::parse(text).ok()?;
    let offset = match pieces.offset()? {
        PiecesOffset::Zulu => 0,
        PiecesOffset::Numeric(numeric) => numeric.offset().seconds(),
        _ => return None,
    };
    let (date, time) = (pieces.date(), pieces.time()?);
    let days = days_from_civil(date.year().into(), date.month().into(), date.day().into());
    let within = i64::from(time.hour()) * 3600 + i64::from(time.minute()) * 60 + i64::from(time.second());
    let nanoseconds = i64::from(time.subsec_nanosecond());
    Some((days * 86_400 + within - i64::from(offset)) * 1_000_000 + nanoseconds / 1000)
}

const DAY: i64 = 86_400_000_000;

fn digits(out: &mut [u8], mut value: i64) {
    for slot in out.iter_mut().rev() {
        *slot = b'0' + (value % 10) as u8;
        value /= 10;
    }
}

fn number(text: &[u8]) -> Option<i64> {
    text.iter().try_fold(0, |sum, c| c.is_ascii_digit().then(|| sum * 10 + i64::from(c - b'0')))
}

fn days_in_month(year: i64, month: i64) -> i64 {
    match month {
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

// Proleptic Gregorian calendar by 400-year eras that begin in March.
fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let doe = z.rem_euclid(146_097);
    let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let month = if mp < 10 { mp + 3 } else { mp - 9 };
    (yoe + era * 400 + i64::from(month <= 2), month, doy - (153 * mp + 2) / 5 + 1)
}

fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let y = year - i64::from(month <= 2);
    let era = y.div_euclid(400);
    let yoe = y.rem_euclid(400);
    let mp = if month > 2 { month - 3 } else { month + 9 };
    let doy = (153 * mp + 2) / 5 + day - 1;
    era * 146_097 + yoe * 365 + yoe / 4 - yoe / 100 + doy - 719_468
}

impl fmt::Display for EventTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut buffer = [0; 27];
        self.write_rfc3339(&mut buffer);
        f.write_str(std::str::from_utf8(&buffer).expect("ASCII"))
    }
}

impl fmt::Debug for EventTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for EventTime {
    type Err = InvalidTime;

    fn from_str(text: &str) -> Result<Self, InvalidTime> {
        if let Some(time) = Self::from_canonical(text.as_bytes()) {
            return Ok(time);
        }
        let micros = text.parse::<jiff::Timestamp>().ok().map(jiff::Timestamp::as_microsecond);
        micros
            .or_else(|| last_hours(text))
            .filter(|micros| (Self::MIN.0..=Self::MAX.0).contains(micros))
            .map(Self)
            .ok_or_else(|| InvalidTime { text: text.chars().take(64).collect() })
    }
}

impl Serialize for EventTime {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut buffer = [0; 27];
        self.write_rfc3339(&mut buffer);
        serializer.serialize_str(std::str::from_utf8(&buffer).expect("ASCII"))
    }
}

impl<'de> Deserialize<'de> for EventTime {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TimeVisitor;
        impl de::Visitor<'_> for TimeVisitor {
            type Value = EventTime;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an RFC 3339 time")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<EventTime, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_str(TimeVisitor)
    }
}

impl JsonSchema for EventTime {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "EventTime".into()
    }
    fn inline_schema() -> bool {
        true
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "format": "date-time"})
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn reads_other_offsets_and_precisions() {
        let at = |text: &str| text.parse::<EventTime>().map(EventTime::micros);
        assert_eq!(at("1970-01-01T00:00:00Z").ok(), Some(0));
        assert_eq!(at("1970-01-01T01:00:00.5+01:00").ok(), Some(500_000));
        assert_eq!(at("1969-12-31T23:59:59.999999Z").ok(), Some(-1));
        assert_eq!(at("9999-12-31T23:59:59Z").ok(), Some(EventTime::MAX.micros() - 999_999));
        assert_eq!(at("9999-12-31T23:59:59.999999999Z").ok(), Some(EventTime::MAX.micros()));
        assert_eq!(at("9999-12-31T20:59:59-03:00").ok(), Some(EventTime::MAX.micros() - 999_999));
        for bad in [
            "",
            "9999-12-31T23:59:59",
            "9999-12-31T23:59:59-01:00",
            "10000-01-01T00:00:00Z",
            "yesterday",
            "2026-02-30T00:00:00.000000Z",
            "2026-01-01T00:00:00",
            "2026-01-01",
        ] {
            assert!(at(bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn wire_form_round_trips_and_agrees_with_jiff(micros in EventTime::MIN.0..=EventTime::MAX.0) {
            let time = EventTime::from_micros(micros);
            let text = time.to_string();
            prop_assert_eq!(EventTime::from_canonical(text.as_bytes()), Some(time));
            if micros >= 0 {
                prop_assert_eq!(text.parse::<jiff::Timestamp>().unwrap().as_microsecond(), micros);
            }
        }
    }
}
