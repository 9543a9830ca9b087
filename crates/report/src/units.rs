//! Figures for people: three digits and a prefix; in the column of a table one prefix for all. Raw figures are in JSON and CSV.

use eadt_schemas::figures::format_fixed;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

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
    format_fixed(value, decimals)
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

/// Formats energy: `795 kJ`.
pub fn format_joules(value: f64) -> String {
    format_scaled(value, "J")
}

/// Formats power: `31.2 kW`.
pub fn format_watts(value: f64) -> String {
    format_scaled(value, "W")
}

/// Formats emissions: `922 g`, `1.80 kg`.
pub fn format_grams(value: f64) -> String {
    ColumnScale::of(ColumnUnit::GRAMS, &[Some(value)]).format(value)
}

/// Formats an amount of money, whose currency is given elsewhere: `0.607`, `1,234.50`.
pub fn format_money(value: f64) -> String {
    ColumnScale::of(ColumnUnit::MONEY, &[Some(value)]).format(value)
}

/// Formats a number of samples or tokens: `1.24 M`.
pub fn format_count(value: f64) -> String {
    format_scaled(value, "")
}

/// Formats energy as it is bought: `0.221 kWh`.
pub fn kilowatt_hours(joules: f64) -> String {
    format!("{} kWh", digits(joules / JOULES_PER_KWH))
}

/// Unit of the figures of a table's column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ColumnUnit {
    /// Follows each figure; empty if the heading names it.
    name: &'static str,
    /// Number of prefixes that it may have: 1 is `k` alone.
    prefixes: usize,
    /// Significant digits of the smallest figure, at least.
    significant: i32,
    /// Decimals, at least.
    decimals: usize,
    /// Whole numbers have no decimals.
    is_count: bool,
}

impl ColumnUnit {
    const fn of(name: &'static str, prefixes: usize, significant: i32) -> Self {
        Self { name, prefixes, significant, decimals: 0, is_count: false }
    }

    pub(crate) const JOULES: Self = Self::of("J", PREFIXES.len() - 1, 3);
    pub(crate) const WATTS: Self = Self::of("W", PREFIXES.len() - 1, 3);
    pub(crate) const GRAMS: Self = Self::of("g", 1, 3);
    pub(crate) const KILOWATT_HOURS: Self = Self::of("", 0, 3);
    /// J/sample and its like: layouts often differ in the third digit.
    pub(crate) const PER_WORK: Self = Self::of("", 0, 4);
    pub(crate) const COUNT: Self = Self { is_count: true, ..Self::of("", 0, 3) };
    pub(crate) const MONEY: Self = Self { decimals: 2, ..Self::of("", 0, 3) };
}

/// Prefix and decimals that all figures of a column have, so that their decimal points are below each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ColumnScale {
    unit: ColumnUnit,
    /// Index of the prefix.
    prefix: usize,
    decimals: usize,
}

/// Decimals from which on a smaller prefix is taken, and decimals at most.
const MANY_DECIMALS: usize = 3;
const MOST_DECIMALS: usize = 6;

impl ColumnScale {
    /// Returns the largest prefix at which the smallest figure keeps its digits without many decimals. Zero and unknown values
    /// do not count.
    pub(crate) fn of(unit: ColumnUnit, values: &[Option<f64>]) -> Self {
        let sizes = || values.iter().flatten().map(|value| value.abs()).filter(|size| size.is_finite() && *size > 0.0);
        let (least, most) = (sizes().fold(f64::INFINITY, f64::min), sizes().fold(0.0, f64::max));
        if most <= 0.0 {
            return Self { unit, prefix: 0, decimals: unit.decimals };
        }
        let decimals = |prefix: usize| decimals_of(least / thousands(prefix), unit.significant);
        let highest = (0..=unit.prefixes).rev().find(|prefix| most / thousands(*prefix) >= 0.9995).unwrap_or(0);
        let prefix = (0..=highest).rev().find(|prefix| decimals(*prefix) <= MANY_DECIMALS).unwrap_or(0);
        let is_whole = unit.is_count && sizes().all(|size| size.fract() == 0.0);
        let decimals = if is_whole { 0 } else { decimals(prefix).clamp(unit.decimals, MOST_DECIMALS) };
        Self { unit, prefix, decimals }
    }

    /// Formats a figure of the column: `1,480.5 kJ`. One that its decimals would make zero has an exponent.
    pub(crate) fn format(self, value: f64) -> String {
        if !value.is_finite() {
            return UNKNOWN.to_owned();
        }
        let size = value.abs() / thousands(self.prefix);
        let text = format!("{size:.0$}", self.decimals);
        let is_lost = size > 0.0 && text.bytes().all(|byte| matches!(byte, b'0' | b'.'));
        let text = if is_lost { format!("{size:.1e}") } else { with_separators(&text) };
        let sign = if value < 0.0 { "-" } else { "" };
        format!("{sign}{text} {}{}", PREFIXES[self.prefix], self.unit.name).trim_end().to_owned()
    }
}

/// Returns the factor of a prefix.
fn thousands(prefix: usize) -> f64 {
    1000_f64.powi(prefix as i32)
}

/// Returns the decimals at which a positive figure has so many significant digits.
fn decimals_of(size: f64, significant: i32) -> usize {
    // 9.996 is 10.0 in three digits.
    let magnitude = (size * (1.0 + 0.5 * 10_f64.powi(-significant))).log10().floor() as i32;
    usize::try_from(significant - 1 - magnitude).unwrap_or(0)
}

/// Separates the thousands of a number that has no sign: `1,234,567.8`.
pub fn with_separators(number: &str) -> String {
    let whole = number.find('.').unwrap_or(number.len());
    let mut out = String::with_capacity(number.len() + whole / 3);
    for (index, digit) in number.chars().enumerate() {
        if index > 0 && index < whole && (whole - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Formats J/sample with four significant digits, as layouts often differ in the third.
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

/// Formats a length of time in its two largest units: `5 h 59 min`.
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

/// Returns the cells of a terminal that a text takes: a wide character takes two, a combining one none.
pub fn display_width(text: &str) -> usize {
    text.width()
}

/// Returns a text with spaces behind it up to so many cells.
pub fn padded(text: &str, cells: usize) -> String {
    format!("{text}{}", " ".repeat(cells.saturating_sub(display_width(text))))
}

/// Returns the begin of a text that takes at most so many cells.
pub fn first_cells(text: &str, cells: usize) -> &str {
    let mut used = 0;
    let end = text.char_indices().find(|(_, character)| {
        used += character.width().unwrap_or(0);
        used > cells
    });
    end.map_or(text, |(end, _)| &text[..end])
}

/// Returns the end of a text that takes at most so many cells.
fn last_cells(text: &str, cells: usize) -> &str {
    let (mut used, mut start) = (0, text.len());
    for (at, character) in text.char_indices().rev() {
        used += character.width().unwrap_or(0);
        if used > cells {
            break;
        }
        start = at;
    }
    &text[start..]
}

/// Returns a text of at most `width` cells: one that is longer loses its middle.
pub fn shortened(text: &str, width: usize) -> String {
    if display_width(text) <= width {
        return text.to_owned();
    }
    let keep = width.saturating_sub(1);
    let head = keep / 2;
    format!("{}…{}", first_cells(text, head), last_cells(text, keep - head))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_and_combining_characters_count_in_cells() {
        let name = "研究チーム/大規模言語モデル";
        assert_eq!((display_width(name), display_width("e\u{301}"), display_width("lab/é")), (27, 1, 5));
        for width in 1..30 {
            let text = shortened(name, width);
            assert!(display_width(&text) <= width && display_width(&text) + 2 >= width.min(27), "{width}: {text}");
        }
        assert_eq!((shortened("abcdefgh", 5), shortened(name, 9)), ("ab…gh".to_owned(), "研究…デル".to_owned()));
        assert_eq!((padded("研", 4), first_cells("研究", 3)), ("研  ".to_owned(), "研"));
    }

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
            (-0.000_01, "0.0000 J"),
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
        assert_eq!([922.3, 1799.5, 2.4e6].map(format_grams), ["922 g", "1.80 kg", "2,400 kg"]);
    }

    #[test]
    fn figures_of_a_column_have_one_prefix_and_one_number_of_decimals() {
        let shown = |unit: ColumnUnit, values: &[f64]| {
            let scale = ColumnScale::of(unit, &values.iter().copied().map(Some).collect::<Vec<_>>());
            values.iter().map(|value| scale.format(*value)).collect::<Vec<_>>().join(" | ")
        };
        let (joules, count, kwh) = (ColumnUnit::JOULES, ColumnUnit::COUNT, ColumnUnit::KILOWATT_HOURS);
        for (unit, values, text) in [
            (joules, &[8_737_536.4][..], "8.74 MJ"),
            (joules, &[8_737_536.4, 8_310_181.9, 17_047_718.3], "8.74 MJ | 8.31 MJ | 17.05 MJ"),
            (joules, &[1_480_515.3, 537_202.0], "1.481 MJ | 0.537 MJ"),
            (joules, &[1_480_515.3, -5372.0, 0.0], "1,480.52 kJ | -5.37 kJ | 0.00 kJ"),
            (joules, &[2e12, 480.0], "2,000,000,000.000 kJ | 0.480 kJ"),
            (joules, &[999.6], "1.00 kJ"),
            (joules, &[480.0], "480 J"),
            (joules, &[0.0], "0 J"),
            (joules, &[0.012, 3.0], "0.0120 J | 3.0000 J"),
            (joules, &[1e-9, 3.0], "1.0e-9 J | 3.000000 J"),
            (joules, &[f64::NAN, 3.0], "– | 3.00 J"),
            (ColumnUnit::WATTS, &[809.03, 769.46], "809 W | 769 W"),
            (ColumnUnit::WATTS, &[1390.1, 1081.7], "1.39 kW | 1.08 kW"),
            (ColumnUnit::GRAMS, &[2_400_000.0, 922.3], "2,400.000 kg | 0.922 kg"),
            (kwh, &[2.427_093, 0.006_39], "2.42709 | 0.00639"),
            (count, &[948_537_995.1, 926_306.6], "948,537,995 | 926,307"),
            (count, &[12_000.0, 8.0], "12,000 | 8"),
            (count, &[12.5, 8.0], "12.50 | 8.00"),
            (ColumnUnit::PER_WORK, &[9.432_661, 10.1659], "9.433 | 10.166"),
            (ColumnUnit::PER_WORK, &[9.9996], "10.00"),
            (ColumnUnit::MONEY, &[0.606_773, 0.577_096, 1.183_869], "0.607 | 0.577 | 1.184"),
            (ColumnUnit::MONEY, &[1234.5], "1,234.50"),
        ] {
            assert_eq!(shown(unit, values), text, "{values:?}");
        }
        let separated = ["1", "123", "1234", "123456.789", "1234567"].map(with_separators);
        assert_eq!(separated.join(" "), "1 123 1,234 123,456.789 1,234,567");
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
