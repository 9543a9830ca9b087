//! Texts for a missing value in recordings: one table for all readers.

use std::ops::RangeInclusive;

use eadt_schemas::v1::Meter;

use crate::ReadingField;
use crate::identity::is_zero_uuid;
use crate::units::Dimension;

/// Compared without regard to letter case. Text in brackets, such as `[Not Supported]` or `<n/a>`, needs no entry.
const WORDS: [&str; 67] = [
    "-",
    "--",
    "---",
    "–",
    "—",
    ".",
    "..",
    "?",
    "n/a",
    "n.a.",
    "na",
    "nd",
    "n/d",
    "ns",
    "n/s",
    "n/v",
    "#n/a",
    "#na",
    "#value!",
    "#div/0!",
    "#ref!",
    "#num!",
    "#name?",
    "#null!",
    "nan",
    "-nan",
    "+nan",
    "nan(ind)",
    "-nan(ind)",
    "1.#qnan",
    "-1.#ind",
    "null",
    "\\n",
    "nil",
    "none",
    "unknown",
    "unknown error",
    "undef",
    "undefined",
    "unavailable",
    "not available",
    "not applicable",
    "not found",
    "not supported",
    "unsupported",
    "no reading",
    "no data",
    "no value",
    "missing",
    "disabled",
    "err!",
    "error",
    // Spreadsheets and programs in other languages.
    "#nv",
    "#n/d",
    "#wert!",
    "#bezug!",
    "#zahl!",
    "#valor!",
    "#valeur!",
    "#valore!",
    "k.a.",
    "k. a.",
    "k.\u{a0}a.",
    "k/a",
    "s/d",
    "s.d.",
    "offline",
];

/// Returns true if a cell means that there is no value. Blank cells do.
pub(crate) fn is_absent_text(text: &str) -> bool {
    let text = text.trim();
    let bracketed = |open, close| text.starts_with(open) && text.ends_with(close);
    text.is_empty()
        || bracketed('[', ']')
        || bracketed('<', '>')
        || bracketed('(', ')')
        || text.len() <= 16 && WORDS.iter().any(|word| text.eq_ignore_ascii_case(word))
}

/// Returns whether a cell for the name of a board or a node is a placeholder for none, as is one of punctuation only: turbostat
/// writes `-` in the row of all packages. Brackets alone are not: `[0]` may be a board.
pub(crate) fn is_absent_name(text: &str) -> bool {
    let plain = text.trim().trim_matches(['[', ']', '<', '>', '(', ')']).trim();
    let words = ["n/a", "na", "nan", "none", "null", "not supported", "unknown error"];
    !plain.contains(char::is_alphanumeric) || is_zero_uuid(plain) || words.iter().any(|word| plain.eq_ignore_ascii_case(word))
}

/// The column whose value is none in rows that a flag marks.
pub(crate) const FLAGGED_COLUMN: &str = "value";
const FLAG_NAMES: [&str; 2] = ["is_nan", "isnan"];
const FLAG_TEXTS: [&str; 4] = ["1", "t", "true", "yes"];

/// Returns whether a column marks the rows in which the column `value` is absent, as in exports of `MLflow`, which write 0 there.
pub(crate) fn names_absence_flag(column: &str) -> bool {
    FLAG_NAMES.iter().any(|name| column.eq_ignore_ascii_case(name))
}

/// Returns whether a cell of such a column marks its row.
pub(crate) fn is_absence_flag(text: &str) -> bool {
    FLAG_TEXTS.iter().any(|flag| text.trim().eq_ignore_ascii_case(flag))
}

/// Slurm's `NO_VAL` and `INFINITE` in 32 bits.
const SLURM: [f64; 2] = [4_294_967_294.0, 4_294_967_295.0];

/// DCGM's values for "blank", "not found", "not supported" and "not permitted" in 32 and 48 bits. In 64 bits it is all from
/// [`DCGM_WIDE_BLANK`] on.
const DCGM_BLANKS: [RangeInclusive<f64>; 2] = [2_147_483_632.0..=2_147_483_647.0, 140_737_488_355_328.0..=140_737_488_355_343.0];
const DCGM_WIDE_BLANK: f64 = 9.223_372_036_854_775e18;

/// An energy counter is 64 bits wide: below this, in mJ, a blank value of 32 bits is an honest reading.
const ENERGY_BLANKS_FROM: f64 = 1e12;

fn may_be_negative(field: ReadingField) -> bool {
    field.dimension() == Dimension::Temperature || matches!(field, ReadingField::Loss | ReadingField::GradientNorm)
}

fn is_minus_one(field: ReadingField, value: f64) -> bool {
    value == -1.0 && !may_be_negative(field)
}

fn is_no_draw(field: ReadingField, value: f64) -> bool {
    value == 0.0 && !Meter::Gpu.can_draw(value) && matches!(field, ReadingField::PowerWatts | ReadingField::PowerAverageWatts)
}

/// Returns true if a number, as written in a recording, means "no value" in a field.
///
/// These are: -1 where no value is negative; the blanks of DCGM in its integer and float widths; Slurm's `NO_VAL` in 32 and 64
/// bits; and 0 W of a GPU, which draws some watts whenever it answers. Counters and sizes may come by DCGM's 32-bit blanks
/// honestly.
pub(crate) fn is_absent_number(field: ReadingField, value: f64, meter: Meter) -> bool {
    let may_be_large =
        matches!(field.dimension(), Dimension::Energy | Dimension::Bytes | Dimension::BytesPerSecond | Dimension::Count);
    let [narrow, middle] = &DCGM_BLANKS;
    is_minus_one(field, value)
        || value >= DCGM_WIDE_BLANK
        || SLURM.contains(&value)
        || middle.contains(&value)
        || narrow.contains(&value) && !may_be_large
        || meter == Meter::Gpu && is_no_draw(field, value)
}

/// Returns true if a value of a Prometheus series, in the series' own unit, means "no value": NaN (a stale series), infinities,
/// -1 where no value is negative, DCGM's blanks, and zeros that no working sensor gives.
pub(crate) fn is_absent_in_series(field: ReadingField, value: f64) -> bool {
    let is_no_sensor = value == 0.0
        && matches!(
            field,
            ReadingField::PowerLimitWatts | ReadingField::EnergyJoulesTotal | ReadingField::MemoryTemperatureCelsius
        );
    let is_device = !field.is_progress();
    !value.is_finite()
        || is_no_draw(field, value)
        || is_no_sensor
        || is_device && (is_minus_one(field, value) || is_blank_in_series(field, value))
}

/// Returns true if a value of a Prometheus series, in the series' own unit, is one of DCGM's blanks.
pub(crate) fn is_blank_in_series(field: ReadingField, value: f64) -> bool {
    is_dcgm_blank(value) && !(field == ReadingField::EnergyJoulesTotal && value < ENERGY_BLANKS_FROM)
}

/// Returns true for DCGM's values for "blank", "not found", "not supported" and "not permitted", in all its integer and float
/// widths.
pub fn is_dcgm_blank(value: f64) -> bool {
    DCGM_BLANKS.iter().any(|blanks| blanks.contains(&value)) || value >= DCGM_WIDE_BLANK
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distinguishes_absent_texts_from_values() {
        for text in [
            "",
            "  ",
            "-",
            "--",
            "N/A",
            "[N/A]",
            "[Not Supported]",
            "[Unknown Error]",
            "[GPU requires reset]",
            "<n/a>",
            "(null)",
            "NaN",
            "-nan",
            "null",
            "None",
            "ERR!",
            "Unknown Error",
            "No Reading",
            "#N/A",
            "disabled",
            "ns",
            "n.a.",
            "N/S",
            "Not Found",
            "\\N",
            "#VALUE!",
            "#DIV/0!",
            "-nan(ind)",
            "1.#QNAN",
            "-1.#IND",
            "undef",
            "—",
            ".",
            "#NV",
            "#WERT!",
            "#N/D",
            "k.A.",
            "k. A.",
            "s/d",
            "N/D",
            "offline",
        ] {
            assert!(is_absent_text(text), "{text:?}");
        }
        for text in ["0", "-5", "12 W", "inf", "idle", "abc"] {
            assert!(!is_absent_text(text), "{text:?}");
        }
    }

    #[test]
    fn recognizes_absent_names() {
        let zeros = "GPU-00000000-0000-0000-0000-000000000000";
        for text in ["", " ", "[N/A]", "N/A", "nan", "NULL", "[Not Supported]", "[]", zeros, &zeros[4..]] {
            assert!(is_absent_name(text), "{text:?}");
        }
        for text in ["-", "--", "*", "—", "(*)", "{}", "None", "NA", "<none>"] {
            assert!(is_absent_name(text), "{text:?}");
        }
        for text in ["[0]", "0", "-1", "gpu0", "GPU-0123456789", "none-1", "nano", "error", "0000", "00000000:00:00.0", "总"] {
            assert!(!is_absent_name(text), "{text:?}");
        }
    }

    #[test]
    fn knows_the_numbers_that_mean_none() {
        let absent = |field, value| is_absent_number(field, value, Meter::Gpu);
        for (field, value) in [
            (ReadingField::PowerWatts, -1.0),
            (ReadingField::UtilizationRatio, -1.0),
            (ReadingField::SamplesTotal, -1.0),
            (ReadingField::EnergyJoulesTotal, 18_446_744_073_709_551_614.0),
            (ReadingField::EnergyJoulesTotal, 4_294_967_294.0),
            (ReadingField::EnergyJoulesTotal, 4_294_967_295.0),
            (ReadingField::EnergyJoulesTotal, 9_223_372_036_854_775_794.0),
            (ReadingField::EnergyJoulesTotal, 9_223_372_036_854_775_807.0),
            (ReadingField::PowerWatts, 140_737_488_355_328.0),
            (ReadingField::PowerWatts, 2_147_483_632.0),
            (ReadingField::SmClockMhz, 2_147_483_647.0),
            (ReadingField::PowerWatts, 0.0),
            (ReadingField::PowerAverageWatts, 0.0),
        ] {
            assert!(absent(field, value), "{} {value}", field.name());
        }
        for (field, value) in [
            (ReadingField::TemperatureCelsius, -1.0),
            (ReadingField::Loss, -1.0),
            (ReadingField::EnergyJoulesTotal, 2_147_483_640.0),
            (ReadingField::EnergyJoulesTotal, 15_152_422_938.0),
            (ReadingField::MemoryUsedBytes, 2_147_483_640.0),
            (ReadingField::SamplesTotal, 0.0),
            (ReadingField::UtilizationRatio, 0.0),
            (ReadingField::PowerWatts, 0.1),
        ] {
            assert!(!absent(field, value), "{} {value}", field.name());
        }
        assert!(!is_absent_number(ReadingField::PowerWatts, 0.0, Meter::Wall), "a metered socket may be off");
    }

    #[test]
    fn knows_what_exporters_write_for_none() {
        for (field, value) in [
            (ReadingField::PowerWatts, f64::NAN),
            (ReadingField::PowerWatts, f64::INFINITY),
            (ReadingField::SamplesTotal, f64::NEG_INFINITY),
            (ReadingField::PowerWatts, -1.0),
            (ReadingField::UtilizationRatio, -1.0),
            (ReadingField::PowerWatts, 0.0),
            (ReadingField::PowerLimitWatts, 0.0),
            (ReadingField::EnergyJoulesTotal, 0.0),
            (ReadingField::MemoryTemperatureCelsius, 0.0),
            (ReadingField::MemoryUsedBytes, 2_147_483_632.0),
            (ReadingField::EnergyJoulesTotal, 140_737_488_355_328.0),
            (ReadingField::SmClockMhz, 9_223_372_036_854_775_794.0),
        ] {
            assert!(is_absent_in_series(field, value), "{} {value}", field.name());
        }
        for (field, value) in [
            (ReadingField::EnergyJoulesTotal, 2_147_483_634.0),
            (ReadingField::TemperatureCelsius, -1.0),
            (ReadingField::UtilizationRatio, 0.0),
            (ReadingField::SamplesTotal, 2_147_483_632.0),
            (ReadingField::Loss, -1.0),
            (ReadingField::PowerWatts, 68.244),
        ] {
            assert!(!is_absent_in_series(field, value), "{} {value}", field.name());
        }
        assert!(is_dcgm_blank(9_223_372_036_854_775_794.0) && is_dcgm_blank(2_147_483_632.0));
        assert!(!is_dcgm_blank(15_152_422_938.0), "an energy counter in mJ");
    }
}
