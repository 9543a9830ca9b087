//! Numbers as people and programs write them, with a unit or without: `250`, `250,5 W`, `1.2 kW`, `1'234.5`, `87%`.

use serde::Serialize;

use crate::absent::is_absent_text;
use crate::units::Unit;

/// Mark between a number's whole part and its fraction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DecimalMark {
    Point,
    Comma,
}

impl DecimalMark {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Point => "point",
            Self::Comma => "comma",
        }
    }
}

/// The content of a cell.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum QuantityCell {
    Number(f64, Option<Unit>),
    /// The writer states that there is no value.
    Absent,
    /// `1,234` if nothing shows whether that is a thousand or one and a bit.
    Ambiguous,
    UnknownUnit,
    NotANumber,
}

/// Reads a cell. `mark` is the table's decimal mark, if that is known; a number that can be read in one way only needs none.
pub(crate) fn parse_quantity(text: &str, mark: Option<DecimalMark>) -> QuantityCell {
    if is_absent_text(text) {
        return QuantityCell::Absent;
    }
    let (number, unit) = split_unit(text.trim());
    let unit = match unit {
        "" => None,
        name => match Unit::by_name(name) {
            Some(unit) => Some(unit),
            // `N/A W`.
            None if text
                .trim()
                .rsplit_once(' ')
                .is_some_and(|(value, unit)| is_absent_text(value) && Unit::by_name(unit).is_some()) =>
            {
                return QuantityCell::Absent;
            }
            None if is_number(number) && !name.contains(|c: char| c.is_ascii_digit()) => return QuantityCell::UnknownUnit,
            None => return QuantityCell::NotANumber,
        },
    };
    match parse(number, mark) {
        Ok(value) if value.is_finite() => QuantityCell::Number(value, unit),
        Ok(_) | Err(NumberError::Invalid) => QuantityCell::NotANumber,
        Err(NumberError::Ambiguous) => QuantityCell::Ambiguous,
    }
}

/// Returns whether a cell is a number in some notation, with a known unit or without.
pub(crate) fn is_quantity(text: &str) -> bool {
    matches!(parse_quantity(text, None), QuantityCell::Number(..) | QuantityCell::Ambiguous)
}

fn is_number(text: &str) -> bool {
    !matches!(parse(text, None), Err(NumberError::Invalid))
}

/// Returns the decimal mark that a cell proves: `200,5` and `1.234,5` a comma, `200.5` and `1,234,567` a point.
pub(crate) fn proven_mark(text: &str) -> Option<DecimalMark> {
    let (number, _) = split_unit(text.trim());
    let (mantissa, _) = split_exponent(number);
    let (dots, commas) = (mantissa.matches('.').count(), mantissa.matches(',').count());
    let comma_first = mantissa.find(',') < mantissa.find('.');
    let mark = match (dots, commas) {
        (0, 0) => return None,
        (_, 0) if dots > 1 => DecimalMark::Comma,
        (0, _) if commas > 1 => DecimalMark::Point,
        (1, 0) if !could_be_thousands(mantissa, '.') => DecimalMark::Point,
        (0, 1) if !could_be_thousands(mantissa, ',') => DecimalMark::Comma,
        (1, 0) | (0, 1) => return None,
        _ if comma_first => DecimalMark::Point,
        _ => DecimalMark::Comma,
    };
    parse(number, Some(mark)).is_ok().then_some(mark)
}

/// Returns the number at the beginning of a text, and the rest.
pub(crate) fn split_unit(text: &str) -> (&str, &str) {
    let mut characters = text.char_indices().peekable();
    let mut after_digit = false;
    while let Some((at, character)) = characters.next() {
        let exponent = matches!(character, 'e' | 'E')
            && after_digit
            && characters.peek().is_some_and(|(_, next)| next.is_ascii_digit() || matches!(next, '+' | '-'));
        if character.is_alphabetic() && !exponent || matches!(character, '%' | '°' | 'µ' | '/') {
            return (text[..at].trim(), text[at..].trim());
        }
        after_digit = character.is_ascii_digit() || after_digit && matches!(character, '.' | ',');
    }
    (text, "")
}

#[derive(Debug, PartialEq)]
enum NumberError {
    Invalid,
    Ambiguous,
}

fn split_exponent(text: &str) -> (&str, Option<&str>) {
    text.split_once(['e', 'E']).map_or((text, None), |(mantissa, exponent)| (mantissa, Some(exponent)))
}

fn is_blank_separator(character: char) -> bool {
    matches!(character, ' ' | '\u{a0}' | '\u{2009}' | '\u{202f}' | '\'' | '’' | '_')
}

/// Returns whether the only `mark` of a number may separate thousands: `1,234`, but neither `12345,678`, `0,123` nor `12,34`.
fn could_be_thousands(mantissa: &str, mark: char) -> bool {
    let Some((whole, rest)) = mantissa.split_once(mark) else { return false };
    let whole = whole.trim_start_matches(['+', '-', '−']);
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    rest.len() == 3 && digits(rest) && digits(whole) && (1..=3).contains(&whole.len()) && !whole.starts_with('0')
}

fn parse(text: &str, mark: Option<DecimalMark>) -> Result<f64, NumberError> {
    let text = text.trim();
    // Nearly all numbers.
    if !text.contains([',', '\'', ' ']) && (mark != Some(DecimalMark::Comma) || !text.contains('.')) {
        let plain = text.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'.' | b'-' | b'+' | b'e' | b'E'));
        if let (true, Ok(value)) = (plain, text.parse::<f64>()) {
            return Ok(value);
        }
    }
    let (mantissa, exponent) = split_exponent(text);
    let (negative, mantissa) = match mantissa.strip_prefix(['-', '−']) {
        Some(rest) => (true, rest),
        None => (false, mantissa.strip_prefix('+').unwrap_or(mantissa)),
    };
    let (dots, commas) = (mantissa.matches('.').count(), mantissa.matches(',').count());
    let last_is_dot = mantissa.rfind('.') > mantissa.rfind(',');
    let (decimal, thousands) = match (dots, commas) {
        (0, 0) => (None, None),
        (1, 0) if could_be_thousands(mantissa, '.') && mark == Some(DecimalMark::Comma) => (None, Some('.')),
        (1, 0) => (Some('.'), None),
        (0, 1) if could_be_thousands(mantissa, ',') => match mark {
            Some(DecimalMark::Comma) => (Some(','), None),
            Some(DecimalMark::Point) => (None, Some(',')),
            None => return Err(NumberError::Ambiguous),
        },
        (0, 1) => (Some(','), None),
        (_, 0) => (None, Some('.')),
        (0, _) => (None, Some(',')),
        (1, _) if last_is_dot => (Some('.'), Some(',')),
        (_, 1) if !last_is_dot => (Some(','), Some('.')),
        _ => return Err(NumberError::Invalid),
    };
    let (whole, fraction) = match decimal.and_then(|mark| mantissa.rsplit_once(mark)) {
        Some((whole, fraction)) => (whole, Some(fraction)),
        None => (mantissa, None),
    };
    let separates = |character: char| Some(character) == thousands || is_blank_separator(character);
    let mut digits = String::with_capacity(text.len() + 1);
    if negative {
        digits.push('-');
    }
    for (index, group) in whole.split(separates).enumerate() {
        if index > 0 && group.len() != 3 {
            return Err(NumberError::Invalid);
        }
        digits.push_str(group);
    }
    for part in [Some(whole).filter(|_| fraction.is_none()), fraction].into_iter().flatten() {
        if !part.bytes().any(|byte| byte.is_ascii_digit()) && whole.is_empty() {
            return Err(NumberError::Invalid);
        }
    }
    if let Some(fraction) = fraction {
        digits.push('.');
        digits.push_str(fraction);
    }
    if let Some(exponent) = exponent {
        digits.push('e');
        digits.push_str(exponent);
    }
    // No other spelling that Rust reads, such as "inf", comes this far.
    let plain = digits.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'.' | b'-' | b'+' | b'e'));
    if plain { digits.parse().map_err(|_| NumberError::Invalid) } else { Err(NumberError::Invalid) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_numbers_with_units_and_marks() {
        use DecimalMark::{Comma, Point};
        for (text, mark, value, unit) in [
            ("250", None, 250.0, ""),
            ("250 W", None, 250.0, "W"),
            ("250W", None, 250.0, "W"),
            ("250,5 W", None, 250.5, "W"),
            ("1.2 kW", None, 1.2, "kW"),
            ("9800 Watts", None, 9800.0, "W"),
            ("87%", None, 87.0, "%"),
            ("45 °C", None, 45.0, "C"),
            ("1.5e3 mW", None, 1500.0, "mW"),
            ("1e3W", None, 1000.0, "W"),
            ("5e-1", None, 0.5, ""),
            ("-1.5e3", None, -1500.0, ""),
            ("−5", None, -5.0, ""),
            ("+5", None, 5.0, ""),
            (".5", None, 0.5, ""),
            ("5.", None, 5.0, ""),
            ("0,123", None, 0.123, ""),
            ("200,5", None, 200.5, ""),
            ("12345,678", None, 12345.678, ""),
            ("1,234,567", None, 1_234_567.0, ""),
            ("1.234.567", None, 1_234_567.0, ""),
            ("1,234.5", None, 1234.5, ""),
            ("1.234,5", None, 1234.5, ""),
            ("1 234,5", None, 1234.5, ""),
            ("1\u{202f}234,5 W", None, 1234.5, "W"),
            ("1'234.5", None, 1234.5, ""),
            ("62.350", None, 62.35, ""),
            ("62.350", Some(Point), 62.35, ""),
            ("1.234", Some(Comma), 1234.0, ""),
            ("1,234", Some(Comma), 1.234, ""),
            ("1,234", Some(Point), 1234.0, ""),
            ("200.5", Some(Comma), 200.5, ""),
        ] {
            let unit = if unit.is_empty() { None } else { Some(Unit::by_name(unit).unwrap()) };
            assert_eq!(parse_quantity(text, mark), QuantityCell::Number(value, unit), "{text:?} {mark:?}");
        }
        for (text, expected) in [
            ("1,234", QuantityCell::Ambiguous),
            ("12 V", QuantityCell::UnknownUnit),
            ("abc", QuantityCell::NotANumber),
            ("1e999", QuantityCell::NotANumber),
            ("inf", QuantityCell::NotANumber),
            ("1,2,3", QuantityCell::NotANumber),
            ("1.2.3", QuantityCell::NotANumber),
            ("12:30", QuantityCell::NotANumber),
            ("1x0 W", QuantityCell::NotANumber),
            ("1 2", QuantityCell::NotANumber),
            ("W", QuantityCell::NotANumber),
            (",", QuantityCell::NotANumber),
            ("1.5.2,7,3", QuantityCell::NotANumber),
            ("[N/A]", QuantityCell::Absent),
            ("", QuantityCell::Absent),
            (".", QuantityCell::Absent),
            ("N/A W", QuantityCell::Absent),
            ("nan %", QuantityCell::Absent),
            ("[Not Supported] MHz", QuantityCell::Absent),
        ] {
            assert_eq!(parse_quantity(text, None), expected, "{text:?}");
        }
    }

    #[test]
    fn finds_what_a_cell_proves_about_the_decimal_mark() {
        for (text, mark) in [
            ("200,5", Some(DecimalMark::Comma)),
            ("200,5 W", Some(DecimalMark::Comma)),
            ("1.234,5", Some(DecimalMark::Comma)),
            ("1.234.567", Some(DecimalMark::Comma)),
            ("0,123", Some(DecimalMark::Comma)),
            ("200.5", Some(DecimalMark::Point)),
            ("1,234.5", Some(DecimalMark::Point)),
            ("1,234,567", Some(DecimalMark::Point)),
            ("1,234", None),
            ("1.234", None),
            ("250", None),
            ("03.02.2025", None),
        ] {
            assert_eq!(proven_mark(text), mark, "{text}");
        }
    }
}
