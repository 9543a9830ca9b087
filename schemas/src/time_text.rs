//! Times as people write them, without the option that a command has for them: the forms that are read, and the patterns of
//! others.
//!
//! Recordings, tariffs and carbon intensities are read by these. If day or month may come first, a text has two readings, and
//! who reads a whole file decides.

use std::borrow::Cow;

use jiff::civil::{Date, DateTime, Time};
use jiff::fmt::strtime::{self, BrokenDownTime};
use jiff::tz::Offset;

/// A strptime pattern that would read a time of the wrong half of the day.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{problem}; {remedy}")]
pub struct InvalidPattern {
    pub problem: String,
    pub remedy: String,
}

/// Returns an error if a pattern reads hours of half a day without AM and PM, or has one of them in its text.
pub fn check_pattern(pattern: &str) -> Result<(), InvalidPattern> {
    if has_half_day_clock(pattern) {
        return Err(InvalidPattern {
            problem: format!("time format {pattern:?} has hours from 1 to 12 and nothing that sets the half of the day"),
            remedy: "use %H if hours go on to 23, or %p in place of AM or PM".to_owned(),
        });
    }
    if let Cow::Owned(plain) = with_plain_half(pattern) {
        let half = if plain.contains("AM") { "the one before noon" } else { "the one after noon" };
        return Err(InvalidPattern {
            problem: format!("time format {pattern:?} has a half of the day in its text, which is another in other rows"),
            remedy: format!("use %I for the hours, and %p in place of {half}"),
        });
    }
    Ok(())
}

/// A date and its time of day, midnight if there is none, by each order of day and month that its text can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LocalReadings {
    pub day_first: Option<DateTime>,
    pub month_first: Option<DateTime>,
}

impl LocalReadings {
    /// Returns the readings of a text that has one, whatever the order.
    pub const fn same(time: DateTime) -> Self {
        Self { day_first: Some(time), month_first: Some(time) }
    }

    /// Returns those that there are.
    pub fn times(self) -> impl Iterator<Item = DateTime> {
        self.day_first.into_iter().chain(self.month_first)
    }
}

/// Reads a date with or without a time of day, and without an offset or the name of a zone; `None`: it is of no known form.
pub fn local_readings(text: &str) -> Option<LocalReadings> {
    let plain = with_plain_half(text.trim());
    if let Some(time) = datetime(&plain) {
        return Some(LocalReadings::same(time));
    }
    // A pattern has the name of a zone as it is, and does not read it.
    if zone_in(&plain).is_some() {
        return None;
    }
    let mut readings = LocalReadings::default();
    for pattern in patterns_of(&plain) {
        let Some(time) = strtime::parse(&pattern, &*plain).ok().and_then(|parts| parts.to_datetime().ok()) else { continue };
        match is_day_first(&pattern) {
            Some(true) => readings.day_first = Some(time),
            Some(false) => readings.month_first = Some(time),
            None => readings = LocalReadings::same(time),
        }
    }
    (readings != LocalReadings::default()).then_some(readings)
}

/// Returns whether a pattern has the day before the month; `None` if the year comes first, or the month has a name.
fn is_day_first(pattern: &str) -> Option<bool> {
    let (day, month) = (pattern.find("%d")?, pattern.find("%m")?);
    let is_year_first = pattern.find("%Y").is_some_and(|year| year < day.min(month));
    (!is_year_first).then_some(day < month)
}

/// Returns the time of a text that is a time of day, with or without AM or PM.
pub fn clock_of(text: &str) -> Option<Time> {
    time_of_day(&with_plain_half(text))?.trim_start_matches('T').parse().ok()
}

/// The halves of the day as other languages write them, with small letters of the Latin ones, and as they are read here.
const HALVES: [(&str, &str); 26] = [
    ("a. m.", "AM"),
    ("a.\u{a0}m.", "AM"),
    ("a.\u{202f}m.", "AM"),
    ("a.m.", "AM"),
    ("p. m.", "PM"),
    ("p.\u{a0}m.", "PM"),
    ("p.\u{202f}m.", "PM"),
    ("p.m.", "PM"),
    ("上午", "AM"),
    ("下午", "PM"),
    ("午前", "AM"),
    ("午後", "PM"),
    ("오전", "AM"),
    ("오후", "PM"),
    ("πμ", "AM"),
    ("ΠΜ", "AM"),
    ("π.μ.", "AM"),
    ("Π.Μ.", "AM"),
    ("μμ", "PM"),
    ("ΜΜ", "PM"),
    ("μ.μ.", "PM"),
    ("Μ.Μ.", "PM"),
    ("ÖÖ", "AM"),
    ("ÖS", "PM"),
    ("öö", "AM"),
    ("ös", "PM"),
];

/// Returns a time with `AM` or `PM` in place of how another language writes the half of the day.
pub fn with_plain_half(text: &str) -> Cow<'_, str> {
    if !text.bytes().any(|byte| !byte.is_ascii() || matches!(byte, b'm' | b'M')) {
        return Cow::Borrowed(text);
    }
    let lower = text.to_ascii_lowercase();
    for (marker, half) in HALVES {
        // Lower case changes ASCII letters only; other markers are searched as they are.
        let Some(at) = lower.find(marker).or_else(|| text.find(marker)) else { continue };
        let end = at + marker.len();
        let is_joined = text[..at].ends_with(|c: char| c == '%' || c.is_ascii_alphabetic());
        if !is_joined && !text[end..].starts_with(char::is_alphabetic) {
            return Cow::Owned(format!("{}{half}{}", &text[..at], &text[end..]));
        }
    }
    Cow::Borrowed(text)
}

/// Returns whether a pattern has a place for AM or PM.
fn names_half_day(pattern: &str) -> bool {
    pattern.contains("%p") || pattern.contains("%P")
}

/// Returns whether a pattern has the hours of half a day, and not which half.
fn has_half_day_clock(pattern: &str) -> bool {
    let mut rest = pattern.chars();
    let (mut hours, mut half) = (false, false);
    while let Some(character) = rest.next() {
        if character != '%' {
            continue;
        }
        // Flags and widths come between.
        let directive = rest.find(|character| !"-_0^#:123456789".contains(*character));
        hours |= matches!(directive, Some('I' | 'l'));
        half |= matches!(directive, Some('p' | 'P' | 'H' | 'k' | 's'));
    }
    hours && !half
}

/// Parses `+02:00`, `+0200`, `+02`, `+2`, `-07:30`.
pub fn parse_offset(text: &str) -> Option<Offset> {
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

/// Parses a text by a pattern; returns the parts of its time.
pub fn break_down(pattern: &str, text: &str) -> Result<BrokenDownTime, String> {
    let plain = if names_half_day(pattern) { with_plain_half(text) } else { Cow::Borrowed(text) };
    strtime::parse(pattern, &*plain).map_err(|error| format!("not of the form --time-format {pattern:?} ({error})"))
}

/// Returns a time of day without the AM or PM behind or before it, and these; empty if there is none.
fn split_half(text: &str) -> (&str, &str) {
    let text = text.trim();
    let clock = text.trim_end_matches(|c: char| c.is_ascii_alphabetic()).trim_end();
    let behind = text[clock.len()..].trim();
    let digits = clock.trim_start_matches(|c: char| c.is_ascii_alphabetic());
    let before = &clock[..clock.len() - digits.len()];
    let is_half = before.eq_ignore_ascii_case("AM") || before.eq_ignore_ascii_case("PM");
    if behind.is_empty() && is_half { (digits.trim_start(), before) } else { (clock, behind) }
}

/// Returns true for `10:00`, `9:05:01.250`, `9:5:1.25`, `10:00:00,5 PM`, `下午 1:05`.
pub fn is_time_of_day(text: &str) -> bool {
    let plain = with_plain_half(text);
    let (clock, rest) = split_half(&plain);
    let parts: Vec<&str> = clock.split(':').collect();
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let last = |part: &str| digits(&part.replace(['.', ','], ""));
    matches!(rest.to_ascii_uppercase().as_str(), "" | "AM" | "PM")
        && match parts.as_slice() {
            [hour, minute] => hour.len() <= 2 && digits(hour) && minute.len() == 2 && digits(minute),
            [hour, minute, second] => {
                let has_width = minute.len() == 2 || minute.len() == 1 && is_below_sixty(second);
                hour.len() <= 2 && digits(hour) && has_width && digits(minute) && last(second)
            }
            _ => false,
        }
}

/// Returns whether seconds, with a fraction or without, are those of a minute.
fn is_below_sixty(second: &str) -> bool {
    second.replace(',', ".").parse::<f64>().is_ok_and(|second| second < 60.0)
}

/// Names of the time without an offset.
pub const UTC_NAMES: [&str; 3] = ["UTC", "GMT", "Z"];

/// Returns the last name of a zone in a time, such as `CET`.
pub fn zone_in(text: &str) -> Option<&str> {
    let is_name = |word: &&str| {
        (2..=5).contains(&word.len())
            && word.bytes().all(|byte| byte.is_ascii_uppercase())
            && !matches!(*word, "AM" | "PM")
            && name_directive(word).is_none()
    };
    text.split(|letter: char| !letter.is_ascii_alphanumeric()).rfind(is_name)
}

/// Returns a time and the offset at its end: ` UTC`, ` GMT`, ` +0200`, `+02:00`.
pub fn split_offset(text: &str) -> (&str, Option<Offset>) {
    for name in UTC_NAMES {
        if let Some(clock) = text.strip_suffix(name) {
            return (clock.trim_end(), Some(Offset::UTC));
        }
    }
    // The date's own hyphens come before.
    let sign = text.get(10..).and_then(|rest| rest.rfind(['+', '-'])).map(|at| at + 10);
    match sign.and_then(|at| Some((text.get(..at)?.trim_end(), parse_offset(text.get(at..)?)?))) {
        Some((clock, offset)) => (clock, Some(offset)),
        None => (text, None),
    }
}

/// `YYYY-MM-DD HH:MM[:SS[.fraction]]`, or with `/`, or `DD.MM.YYYY`, or `YYYYMMDD` before a time of day. `T` for the blank, a
/// comma before the fraction, AM and PM, and numbers without their leading zero are allowed.
pub fn datetime(text: &str) -> Option<DateTime> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && !"-/.".contains(c)).unwrap_or(text.len());
    let (date, clock) = text.split_at(end);
    let parts: Vec<&str> = date.split(['-', '/', '.']).collect();
    let (year, month, day) = match (parts.as_slice(), date.contains('.')) {
        ([year, month, day], _) if year.len() == 4 => (*year, *month, *day),
        ([day, month, year], true) if year.len() == 4 => (*year, *month, *day),
        ([date], false) if !clock.is_empty() => compact_date(date)?,
        _ => return None,
    };
    if ![month, day].iter().all(|part| matches!(part.len(), 1 | 2)) {
        return None;
    }
    let clock = time_of_day(clock).unwrap_or_else(|| clock.replace(',', "."));
    format!("{year}-{month:0>2}-{day:0>2}{clock}").parse().ok()
}

/// Returns year, month and day of `YYYYMMDD`, of this century or the last.
pub fn compact_date(text: &str) -> Option<(&str, &str, &str)> {
    let is_plain = text.len() == 8 && text.bytes().all(|byte| byte.is_ascii_digit());
    let (year, month, day) = (text.get(..4)?, text.get(4..6)?, text.get(6..8)?);
    let is_date = is_plain && ("1900".."2100").contains(&year) && format!("{year}-{month}-{day}").parse::<Date>().is_ok();
    is_date.then_some((year, month, day))
}

/// Returns a time of day as `THH:MM[:SS[.fraction]]`; `None` if it is no plain one.
fn time_of_day(text: &str) -> Option<String> {
    let text = text.strip_prefix('T').unwrap_or(text).trim();
    if !is_time_of_day(text) {
        return None;
    }
    let (digits, half) = split_half(text);
    let (hour, rest) = digits.split_once(':')?;
    let hour: u32 = hour.parse().ok()?;
    let hour = match half.to_ascii_uppercase().as_str() {
        "" => hour,
        _ if !(1..=12).contains(&hour) => return None,
        "AM" => hour % 12,
        _ => hour % 12 + 12,
    };
    let parts = rest.split(':').map(|part| format!("{}{}", if is_of_one_digit(part) { "0" } else { "" }, part.replace(',', ".")));
    Some(format!("T{hour:02}:{}", parts.collect::<Vec<_>>().join(":")))
}

/// Returns whether a minute or a second has one digit before its fraction.
fn is_of_one_digit(part: &str) -> bool {
    part.split(['.', ',']).next().is_some_and(|whole| whole.len() == 1)
}

const WEEKDAYS: [&str; 7] = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"];
const MONTHS: [&str; 12] =
    ["january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november", "december"];

/// Returns the directive of a name of a day or a month, in full or with three letters; `None` if it is none.
fn name_directive(word: &str) -> Option<&'static str> {
    let word = word.to_ascii_lowercase();
    let names = |names: &[&str], full, short| {
        let is_short = word.len() == 3 && names.iter().any(|name| name.starts_with(&word));
        if is_short { Some(short) } else { names.contains(&word.as_str()).then_some(full) }
    };
    names(&WEEKDAYS, "%A", "%a").or_else(|| names(&MONTHS, "%B", "%b"))
}

/// Words behind the numbers of a date or a time of day that add nothing.
const DATE_MARKS: [&str; 14] = ["年", "月", "日", "时", "時", "分", "秒", "년", "월", "일", "시", "분", "초", "г"];

/// Returns the strptime patterns that read a text: two if the day or the month may come first, none if its form is not known.
pub fn patterns_of(text: &str) -> Vec<String> {
    let mut tokens: Vec<&str> = Vec::new();
    let mut rest = text;
    let class = |c: char| (c.is_ascii_digit(), c.is_alphabetic());
    while let Some(first) = rest.chars().next() {
        let is_run = first.is_ascii_digit() || first.is_alphabetic();
        let end = rest.find(|c: char| class(c) != class(first)).filter(|_| is_run);
        let (token, after) = rest.split_at(end.unwrap_or(if is_run { rest.len() } else { first.len_utf8() }));
        tokens.push(token);
        rest = after;
    }
    let names_month = tokens.iter().any(|token| matches!(name_directive(token), Some("%b" | "%B")));
    let is_half = |token: &str| matches!(token.to_ascii_uppercase().as_str(), "AM" | "PM");
    let hour = if tokens.iter().any(|token| is_half(token)) { "%I" } else { "%H" };
    // Day and month, in the order of the pattern; the second is the other order.
    let mut patterns = [String::new(), String::new()];
    let (mut year_first, mut numbers, mut clock) = (false, 0, 0);
    let mut at = 0;
    while at < tokens.len() {
        let token = tokens[at];
        let (before, after) = (at.checked_sub(1).map_or("", |at| tokens[at]), tokens.get(at + 1).copied().unwrap_or(""));
        let is_digits = token.starts_with(|c: char| c.is_ascii_digit());
        let directive = if is_digits && token.len() <= 2 && (after == ":" && clock == 0 || before == ":" && clock < 3) {
            clock += 1;
            [hour, "%M", "%S"][clock - 1]
        } else if is_digits && clock == 3 && before == ":" {
            "%f"
        } else if is_digits && clock == 3 && before == "." {
            for pattern in &mut patterns {
                pattern.pop();
            }
            "%.f"
        } else if is_digits && clock == 0 {
            numbers += 1;
            match (token.len(), numbers) {
                (14, 1) => "%Y%m%d%H%M%S",
                (8, 1) => "%Y%m%d",
                (6, 2) if patterns[0].starts_with("%Y%m%d") => "%H%M%S",
                (4, _) => {
                    year_first |= numbers == 1;
                    "%Y"
                }
                (1 | 2, 1) if names_month => "%d",
                (1 | 2, 1 | 2) if !names_month && !year_first => {
                    for (pattern, order) in patterns.iter_mut().zip([["%d", "%m"], ["%m", "%d"]]) {
                        pattern.push_str(order[numbers - 1]);
                    }
                    ""
                }
                (1 | 2, 2) if !names_month => "%m",
                (1 | 2, 3) if year_first => "%d",
                (1 | 2, 2 | 3) => "%y",
                _ => return Vec::new(),
            }
        } else if is_digits && token.len() == 4 && names_month {
            "%Y"
        } else if matches!(token, "+" | "-") && clock > 1 && after.len() == 4 {
            at += 1;
            "%z"
        } else if is_half(token) {
            "%p"
        } else if clock == 0
            && token != "T"
            && token.bytes().all(|byte| byte.is_ascii_alphabetic())
            && name_directive(token).is_none()
        {
            // Unknown letters change the meaning of the numbers: `2025-W06-1` is no date of June.
            return Vec::new();
        } else if is_digits || !token.is_ascii() && token.chars().all(char::is_alphabetic) && !DATE_MARKS.contains(&token) {
            // Read as they are, they would be the same in each row; a word may be a half of the day.
            return Vec::new();
        } else {
            name_directive(token).unwrap_or(if token == "%" { "%%" } else { token })
        };
        for pattern in &mut patterns {
            pattern.push_str(directive);
        }
        at += 1;
    }
    let [first, second] = patterns;
    let reads = |pattern: &String| strtime::parse(pattern, text).is_ok_and(|parts| parts.to_datetime().is_ok());
    let patterns = if first == second { vec![first] } else { vec![first, second] };
    patterns.into_iter().filter(reads).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_has_a_reading_for_each_order_that_it_can_have() {
        let read = |text: &str| {
            let readings = local_readings(text).unwrap_or_default();
            [readings.day_first, readings.month_first].map(|time| time.map(|time| time.to_string()))
        };
        let some = |time: &str| Some(format!("{time}:00"));
        for (text, day_first, month_first) in [
            ("02/03/2025 10:00", some("2025-03-02T10:00"), some("2025-02-03T10:00")),
            ("2/3/2025 11:00:00 PM", some("2025-03-02T23:00"), some("2025-02-03T23:00")),
            ("13/02/2025 10:00", some("2025-02-13T10:00"), None),
            ("02/13/2025", None, some("2025-02-13T00:00")),
            ("2025/02/03 10:00", some("2025-02-03T10:00"), some("2025-02-03T10:00")),
            ("2025-02-03 1:00:00 p. m.", some("2025-02-03T13:00"), some("2025-02-03T13:00")),
            ("03.02.2025", some("2025-02-03T00:00"), some("2025-02-03T00:00")),
            ("20250203", some("2025-02-03T00:00"), some("2025-02-03T00:00")),
            ("03-Feb-2025 10:00", some("2025-02-03T10:00"), some("2025-02-03T10:00")),
            ("2025-02-03 10:00:00 CET", None, None),
            ("10:00", None, None),
            ("12.5", None, None),
            ("2025", None, None),
            ("yesterday", None, None),
        ] {
            assert_eq!(read(text), [day_first, month_first], "{text}");
        }
    }

    #[test]
    fn a_time_of_day_may_have_its_half() {
        let clock = |text: &str| clock_of(text).map(|time| (time.hour(), time.minute()));
        let cases = [("13:05", Some((13, 5))), ("1:05 PM", Some((13, 5))), ("12:00 a. m.", Some((0, 0))), ("13:05 PM", None)];
        for (text, expected) in cases {
            assert_eq!(clock(text), expected, "{text}");
        }
    }
}
