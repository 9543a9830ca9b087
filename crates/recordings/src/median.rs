//! The usual one of some numbers.

/// Returns the median; of an even number of values the upper of the two in the middle, which is one of them. `None` if there
/// are none.
pub(crate) fn upper_median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_one_of_the_values() {
        let cases: [(&[f64], Option<f64>); 4] =
            [(&[], None), (&[2.0], Some(2.0)), (&[3.0, 1.0], Some(3.0)), (&[9.0, 1.0, 4.0], Some(4.0))];
        for (values, median) in cases {
            assert_eq!(upper_median(values.iter().copied()), median, "{values:?}");
        }
    }
}
