//! Figures for people: three digits and a prefix. Raw figures are in JSON and CSV.

const PREFIXES: [&str; 6] = ["", "k", "M", "G", "T", "P"];
/// Shown in place of a figure that is not known.
pub const UNKNOWN: &str = "–";
const JOULES_PER_KWH: f64 = 3.6e6;

/// Returns three significant digits.
fn digits(value: f64) -> String {
    let decimals = match value.abs() {
        size if size >= 99.95 => 0,
        size if size >= 9.995 => 1,
        size if size >= 0.995 || size == 0.0 => 2,
        size if size >= 0.0995 => 3,
        _ => 4,
    };
    format!("{value:.decimals$}")
}

/// Returns a figure with a prefix of its unit: `795 kJ`.
fn format_scaled(value: f64, unit: &str) -> String {
    if !value.is_finite() {
        return UNKNOWN.to_owned();
    }
    let (mut value, mut prefix) = (value, 0);
    while value.abs() >= 999.5 && prefix + 1 < PREFIXES.len() {
        value /= 1000.0;
        prefix += 1;
    }
    let value = digits(value);
    // A whole number is shown as one.
    format!("{} {}{unit}", value.strip_suffix(".00").unwrap_or(&value), PREFIXES[prefix]).trim_end().to_owned()
}

/// Energy: `795 kJ`.
pub fn format_joules(value: f64) -> String {
    format_scaled(value, "J")
}

/// Power: `31.2 kW`.
pub fn format_watts(value: f64) -> String {
    format_scaled(value, "W")
}

/// A number of samples or tokens: `1.24 M`.
pub fn format_count(value: f64) -> String {
    format_scaled(value, "")
}

/// Energy as it is bought: `0.221 kWh`.
pub fn kilowatt_hours(joules: f64) -> String {
    format!("{} kWh", digits(joules / JOULES_PER_KWH))
}

/// J/sample with four significant digits, as layouts often differ in the third.
pub fn joules_per_sample(value: f64) -> String {
    match value.abs() {
        size if !size.is_finite() => UNKNOWN.to_owned(),
        size if size >= 9999.5 => format_scaled(value, ""),
        size if size >= 999.5 => format!("{value:.0}"),
        size if size >= 99.95 => format!("{value:.1}"),
        size if size >= 9.995 => format!("{value:.2}"),
        size if size >= 0.9995 || size == 0.0 => format!("{value:.3}"),
        size if size >= 0.0001 => format!("{value:.5}"),
        _ => format!("{value:.2e}"),
    }
}

/// A length of time in its two largest units: `5 h 59 min`.
pub fn format_duration(seconds: f64) -> String {
    if !seconds.is_finite() {
        return UNKNOWN.to_owned();
    }
    if seconds < 59.5 {
        return format!("{} s", digits(seconds.max(0.0)).trim_end_matches('0').trim_end_matches('.'));
    }
    let whole = seconds.round() as u64;
    let (days, hours, minutes, seconds) = (whole / 86_400, whole / 3600 % 24, whole / 60 % 60, whole % 60);
    let parts = [(days, "d"), (hours, "h"), (minutes, "min"), (seconds, "s")];
    let first = parts.iter().position(|(number, _)| *number > 0).unwrap_or(3);
    let two = parts[first..].iter().take(2).filter(|(number, _)| *number > 0);
    two.map(|(number, unit)| format!("{number} {unit}")).collect::<Vec<_>>().join(" ")
}

/// Returns a text of at most `width` characters: one that is longer loses its middle.
pub fn shortened(text: &str, width: usize) -> String {
    let length = text.chars().count();
    if length <= width {
        return text.to_owned();
    }
    let keep = width.saturating_sub(1);
    let (head, tail) = (keep / 2, keep - keep / 2);
    let head: String = text.chars().take(head).collect();
    let tail: String = text.chars().skip(length - tail).collect();
    format!("{head}…{tail}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_three_digits_and_a_prefix() {
        for (value, text) in [
            (0.0, "0 J"),
            (0.512, "0.512 J"),
            (4.8, "4.80 J"),
            (480.0, "480 J"),
            (999.4, "999 J"),
            (999.6, "1 kJ"),
            (795_123.0, "795 kJ"),
            (-33_100.0, "-33.1 kJ"),
            (8.59e6, "8.59 MJ"),
            (1.2e13, "12.0 TJ"),
            (f64::NAN, UNKNOWN),
        ] {
            assert_eq!(format_joules(value), text);
        }
        assert_eq!(
            (format_watts(31_200.0), format_count(1_240_000.0), format_count(12.0)),
            ("31.2 kW".into(), "1.24 M".into(), "12.0".into())
        );
        assert_eq!(kilowatt_hours(795_000.0), "0.221 kWh");
    }

    #[test]
    fn joules_a_sample_keep_four_digits() {
        let shown = [0.894_308, 4.8, 12.345, 5974.4, 123_456.0, 0.000_123, 0.0].map(joules_per_sample);
        assert_eq!(shown, ["0.89431", "4.800", "12.35", "5974", "123 k", "0.00012", "0.000"]);
    }

    #[test]
    fn times_have_two_units() {
        let shown = [0.0, 12.14, 59.4, 60.0, 3599.0, 21_600.0, 90_061.0, 2_592_000.0].map(format_duration);
        assert_eq!(shown, ["0 s", "12.1 s", "59.4 s", "1 min", "59 min 59 s", "6 h", "1 d 1 h", "30 d"]);
    }
}
