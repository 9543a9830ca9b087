//! Numbers on the command line: each refusal names the possible values.

use std::fmt::Display;
use std::str::FromStr;

use eadt_models::energy::PRICE_MAX;

/// Reads a finite number that `allows` takes. Beyond the bound of prices, which is that of every option, sums overflow.
fn finite(text: &str, allowed: &str, allows: impl Fn(f64) -> bool) -> Result<f64, String> {
    let number: Option<f64> = text.trim().parse().ok();
    if number.is_some_and(|number| number.is_finite() && allows(number) && number.abs() > PRICE_MAX) {
        return Err(format!("give a number {allowed}, and up to {PRICE_MAX:e}"));
    }
    number.filter(|number| number.is_finite() && allows(*number)).ok_or_else(|| format!("give a number {allowed}"))
}

/// Reads any number.
pub fn any(text: &str) -> Result<f64, String> {
    finite(text, "such as 0.25", |_| true)
}

/// Reads a number above 0.
pub fn positive(text: &str) -> Result<f64, String> {
    finite(text, "above 0", |number| number > 0.0)
}

/// Reads a number of at least 0.
pub fn at_least_zero(text: &str) -> Result<f64, String> {
    finite(text, "of at least 0", |number| number >= 0.0)
}

/// Reads a number from 0 to 1.
pub fn fraction(text: &str) -> Result<f64, String> {
    finite(text, "from 0 to 1", |number| (0.0..=1.0).contains(&number))
}

/// Reads a number above `least` and below 1.
pub fn open_fraction(text: &str, least: f64) -> Result<f64, String> {
    finite(text, &format!("above {least} and below 1"), |number| number > least && number < 1.0)
}

/// Reads a whole number within a range.
pub fn whole<T: FromStr + PartialOrd + Display + Copy>(text: &str, least: T, most: T) -> Result<T, String> {
    let number: Option<T> = text.trim().parse().ok();
    number
        .filter(|number| *number >= least && *number <= most)
        .ok_or_else(|| format!("give a whole number from {least} to {most}"))
}

/// Reads a seed.
pub fn seed(text: &str) -> Result<u64, String> {
    whole(text, 0, u64::MAX)
}

/// Reads how many of something: at least one.
pub fn count<T: FromStr + PartialOrd + Display + Copy + From<u8>>(text: &str, most: T) -> Result<T, String> {
    whole(text, T::from(1), most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_number_of_its_kind_is_refused_with_what_is_possible() {
        for text in ["", "x", "nan", "NaN", "inf", "-inf", "infinity", "1e400", "-1", "-0.5", "1,5", "0x10", "1 W"] {
            assert!(at_least_zero(text).is_err() && positive(text).is_err() && fraction(text).is_err(), "{text}");
        }
        assert_eq!(positive("0").unwrap_err(), "give a number above 0");
        assert_eq!(at_least_zero("1e308").unwrap_err(), "give a number of at least 0, and up to 1e15");
        assert!(any("-1e300").is_err() && any("-0.5").is_ok());
        assert_eq!(fraction("1.01").unwrap_err(), "give a number from 0 to 1");
        assert_eq!((positive("1e-3"), at_least_zero("0"), fraction("1")), (Ok(1e-3), Ok(0.0), Ok(1.0)));
        assert_eq!(whole("11", 1, 10).unwrap_err(), "give a whole number from 1 to 10");
        for text in ["-1", "1.5", "nan", "", "99999999999999999999999"] {
            assert!(seed(text).is_err() && count::<u64>(text, 5).is_err(), "{text}");
        }
        assert_eq!((seed("0"), count::<u32>("0", 5).is_err(), count::<u32>("5", 5)), (Ok(0), true, Ok(5)));
    }
}
