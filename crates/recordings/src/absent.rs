//! What recordings write where there is no value: one table for all readers.

use eadt_schemas::v1::Meter;

use crate::Field;
use crate::units::Dimension;

/// Compared without regard to letter case. Text in brackets, such as `[Not Supported]` or `<n/a>`, needs no entry.
const WORDS: [&str; 30] = [
    "-",
    "--",
    "---",
    "?",
    "n/a",
    "na",
    "ns",
    "#n/a",
    "#na",
    "nan",
    "-nan",
    "+nan",
    "null",
    "nil",
    "none",
    "unknown",
    "unknown error",
    "undefined",
    "unavailable",
    "not available",
    "not applicable",
    "not supported",
    "unsupported",
    "no reading",
    "no data",
    "no value",
    "missing",
    "disabled",
    "err!",
    "error",
];

/// Whether a cell says that there is no value. Blank cells do.
pub(crate) fn is_absent_text(text: &str) -> bool {
    let text = text.trim();
    let bracketed = |open, close| text.starts_with(open) && text.ends_with(close);
    text.is_empty()
        || bracketed('[', ']')
        || bracketed('<', '>')
        || bracketed('(', ')')
        || text.len() <= 16 && WORDS.iter().any(|word| text.eq_ignore_ascii_case(word))
}

/// Slurm's `NO_VAL` and `INFINITE` in 32 bits.
const SLURM: [f64; 2] = [4_294_967_294.0, 4_294_967_295.0];

/// Whether a number, as written, stands for "no value" in a field.
///
/// These are: -1 where no value is negative; the blanks of DCGM in its integer and float widths; Slurm's `NO_VAL` in 32 and 64 bits;
/// and 0 W of a GPU, which draws some watts whenever it answers. Counters and sizes may come by DCGM's 32-bit blanks honestly.
pub(crate) fn is_absent_number(field: Field, value: f64, meter: Meter) -> bool {
    let may_be_negative = field.dimension() == Dimension::Temperature || matches!(field, Field::Loss | Field::GradientNorm);
    let may_be_large =
        matches!(field.dimension(), Dimension::Energy | Dimension::Bytes | Dimension::BytesPerSecond | Dimension::Count);
    let is_draw = matches!(field, Field::PowerWatts | Field::PowerAverageWatts);
    value == -1.0 && !may_be_negative
        || value >= 9.223_372_036_854_775e18
        || SLURM.contains(&value)
        || (140_737_488_355_328.0..=140_737_488_355_343.0).contains(&value)
        || (2_147_483_632.0..=2_147_483_647.0).contains(&value) && !may_be_large
        || value == 0.0 && is_draw && meter == Meter::Gpu
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_absent_texts_from_values() {
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
        ] {
            assert!(is_absent_text(text), "{text:?}");
        }
        for text in ["0", "-5", "12 W", "inf", "idle", "abc"] {
            assert!(!is_absent_text(text), "{text:?}");
        }
    }

    #[test]
    fn knows_the_numbers_that_stand_for_none() {
        let absent = |field, value| is_absent_number(field, value, Meter::Gpu);
        for (field, value) in [
            (Field::PowerWatts, -1.0),
            (Field::UtilizationRatio, -1.0),
            (Field::SamplesTotal, -1.0),
            (Field::EnergyJoulesTotal, 18_446_744_073_709_551_614.0),
            (Field::EnergyJoulesTotal, 4_294_967_294.0),
            (Field::EnergyJoulesTotal, 4_294_967_295.0),
            (Field::EnergyJoulesTotal, 9_223_372_036_854_775_794.0),
            (Field::EnergyJoulesTotal, 9_223_372_036_854_775_807.0),
            (Field::PowerWatts, 140_737_488_355_328.0),
            (Field::PowerWatts, 2_147_483_632.0),
            (Field::SmClockMhz, 2_147_483_647.0),
            (Field::PowerWatts, 0.0),
            (Field::PowerAverageWatts, 0.0),
        ] {
            assert!(absent(field, value), "{} {value}", field.name());
        }
        for (field, value) in [
            (Field::TemperatureCelsius, -1.0),
            (Field::Loss, -1.0),
            (Field::EnergyJoulesTotal, 2_147_483_640.0),
            (Field::EnergyJoulesTotal, 15_152_422_938.0),
            (Field::MemoryUsedBytes, 2_147_483_640.0),
            (Field::SamplesTotal, 0.0),
            (Field::UtilizationRatio, 0.0),
            (Field::PowerWatts, 0.1),
        ] {
            assert!(!absent(field, value), "{} {value}", field.name());
        }
        assert!(!is_absent_number(Field::PowerWatts, 0.0, Meter::Wall), "a metered socket may be off");
    }
}
