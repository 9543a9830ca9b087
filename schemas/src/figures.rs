//! Signed figures as people read them: one that rounds to zero has no sign.

/// Formats a number with so many decimals. One that rounds to zero has no sign: `0.0`, never `-0.0`.
pub fn format_fixed(value: f64, decimals: usize) -> String {
    without_sign_of_zero(format!("{value:.decimals$}"))
}

/// Formats a change with its sign and so many decimals: `+3.1`, `-10.9`. One that rounds to zero has no sign.
pub fn format_signed(value: f64, decimals: usize) -> String {
    without_sign_of_zero(format!("{value:+.decimals$}"))
}

/// Formats a ratio in percent with so many decimals: `98.7 %`. One that rounds to zero has no sign.
pub fn format_percent(ratio: f64, decimals: usize) -> String {
    format!("{} %", format_fixed(100.0 * ratio, decimals))
}

/// Formats a change in percent with its sign and so many decimals: `-10.9 %`. One that rounds to zero has no sign.
pub fn format_signed_percent(ratio: f64, decimals: usize) -> String {
    format!("{} %", format_signed(100.0 * ratio, decimals))
}

/// Removes the sign of a number whose digits are all zero.
fn without_sign_of_zero(mut text: String) -> String {
    if text.starts_with(['+', '-']) && text.bytes().all(|byte| b"+-0.".contains(&byte)) {
        text.remove(0);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_that_rounds_to_zero_has_no_sign() {
        for (value, fixed, signed) in [
            (-0.04, "0.0", "0.0"),
            (0.04, "0.0", "0.0"),
            (-0.0, "0.0", "0.0"),
            (-0.06, "-0.1", "-0.1"),
            (3.12, "3.1", "+3.1"),
            (-100.0, "-100.0", "-100.0"),
            (f64::NEG_INFINITY, "-inf", "-inf"),
        ] {
            assert_eq!((format_fixed(value, 1).as_str(), format_signed(value, 1).as_str()), (fixed, signed), "{value}");
        }
        assert_eq!([-0.4, 0.4, -0.6].map(|value| format_fixed(value, 0)), ["0", "0", "-1"]);
        assert_eq!([-0.000_4, -0.109].map(|ratio| format_percent(ratio, 1)), ["0.0 %", "-10.9 %"]);
        assert_eq!([-0.000_04, 0.0, 0.031].map(|ratio| format_signed_percent(ratio, 2)), ["0.00 %", "0.00 %", "+3.10 %"]);
    }
}
