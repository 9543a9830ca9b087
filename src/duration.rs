//! Lengths of time as people write them: `20ms`, `90s`, `15m`, `6h`, `2d`.

use std::time::Duration;

/// A text that is no length of time.
#[derive(Debug, thiserror::Error)]
#[error("{text:?} is not a length of time such as 20ms, 90s, 15m, 6h or 2d")]
pub struct InvalidDuration {
    text: String,
}

/// Reads a positive length of time; a bare number is seconds.
pub fn parse(text: &str) -> Result<Duration, InvalidDuration> {
    let invalid = || InvalidDuration { text: text.to_owned() };
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let number: f64 = number.parse().map_err(|_| invalid())?;
    let seconds = match unit {
        "ms" => number / 1e3,
        "" | "s" => number,
        "m" | "min" => number * 60.0,
        "h" => number * 3600.0,
        "d" => number * 86_400.0,
        _ => return Err(invalid()),
    };
    Duration::try_from_secs_f64(seconds).ok().filter(|d| !d.is_zero()).ok_or_else(invalid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_people_write() {
        for (text, seconds) in [("20ms", 0.02), ("90s", 90.0), ("90", 90.0), ("1.5m", 90.0), ("6h", 21_600.0), ("2d", 172_800.0)]
        {
            assert_eq!(parse(text).unwrap().as_secs_f64(), seconds, "{text}");
        }
        for text in ["", "s", "-1s", "0s", "1w", "1e9d", "ten"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
