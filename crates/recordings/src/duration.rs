//! Lengths of time as people write them: `20ms`, `90s`, `15m`, `6h`, `2d`.

use std::time::Duration;

use crate::options::InvalidOption;

/// Reads a positive length of time: `250us`, `20ms`, `90s`, `1.5m`, `6h`, `2d`; a bare number is seconds.
pub fn parse_duration(text: &str) -> Result<Duration, InvalidOption> {
    let invalid = || InvalidOption::new(format!("{text:?} is not a length of time such as 20ms, 90s, 15m, 6h or 2d"));
    let (number, unit) = split_number_and_unit(text);
    let number: f64 = number.parse().map_err(|_| invalid())?;
    let seconds = match unit {
        "us" | "µs" => number / 1e6,
        "ms" => number / 1e3,
        "" | "s" => number,
        "m" | "min" => number * 60.0,
        "h" => number * 3600.0,
        "d" => number * 86_400.0,
        _ => return Err(invalid()),
    };
    Duration::try_from_secs_f64(seconds).ok().filter(|length| !length.is_zero()).ok_or_else(invalid)
}

/// Reads the interval of a recording, in whole microseconds up to a day. Its unit is required: other tools count bare
/// numbers in milliseconds.
pub fn parse_interval(text: &str) -> Result<Duration, InvalidOption> {
    let invalid = || InvalidOption::new(format!("{text:?} is not an interval; for example 20ms, 0.5s or 1m"));
    let length = parse_duration(text).map_err(|_| invalid())?;
    let micros = (length.as_secs_f64() * 1e6).round();
    let good = !split_number_and_unit(text).1.is_empty() && (1.0..=86_400e6).contains(&micros);
    if good { Ok(Duration::from_micros(micros as u64)) } else { Err(invalid()) }
}

/// Returns the number and its unit.
fn split_number_and_unit(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    (&text[..end], text[end..].trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_people_write() {
        let lengths = [
            ("20ms", 0.02),
            ("90s", 90.0),
            ("90", 90.0),
            ("1.5m", 90.0),
            ("6h", 21_600.0),
            ("2d", 172_800.0),
            ("250us", 0.000_25),
        ];
        for (text, seconds) in lengths {
            assert_eq!(parse_duration(text).unwrap().as_secs_f64(), seconds, "{text}");
        }
        for text in ["", "s", "-1s", "0s", "1w", "1e9d", "ten", "1.2.3s"] {
            let error = parse_duration(text).unwrap_err().to_string();
            assert!(error.contains("is not a length of time"), "{text}: {error}");
        }
    }

    #[test]
    fn reads_intervals() {
        for (text, micros) in [("20ms", 20_000), ("2s", 2_000_000), ("0.5s", 500_000), ("1m", 60_000_000), ("250us", 250)] {
            assert_eq!(parse_interval(text), Ok(Duration::from_micros(micros)), "{text}");
        }
        for text in ["", "20", "ms", "-1s", "1 fortnight", "0s", "1e3s", "48h", "0.1us"] {
            assert!(parse_interval(text).is_err(), "{text}");
        }
    }
}
