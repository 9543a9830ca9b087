//! Order statistics that every part needs.

/// Returns the value in the middle; of an even number of values the mean of the two in the middle. `None` for none.
pub(crate) fn median(values: &mut [f64]) -> Option<f64> {
    if values.is_empty() {
        return None;
    }
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    Some(if values.len() % 2 == 1 { values[middle] } else { f64::midpoint(values[middle - 1], values[middle]) })
}

/// Returns the median distance from the median, scaled so that it is the standard deviation of a normal distribution.
pub(crate) fn spread(values: &[f64]) -> Option<f64> {
    let middle = median(&mut values.to_vec())?;
    let mut distances: Vec<f64> = values.iter().map(|value| (value - middle).abs()).collect();
    median(&mut distances).map(|distance| 1.4826 * distance)
}

/// Returns the value that the part `ratio` of the values does not exceed, interpolated between neighbours; sorts them.
pub(crate) fn quantile(values: &mut [f64], ratio: f64) -> Option<f64> {
    if values.is_empty() {
        return None;
    }
    values.sort_by(f64::total_cmp);
    let at = ratio.clamp(0.0, 1.0) * (values.len() - 1) as f64;
    let (low, high) = (values[at.floor() as usize], values[at.ceil() as usize]);
    Some(low + (high - low) * (at - at.floor()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_statistics() {
        assert_eq!(median(&mut []), None);
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&mut [4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(spread(&[1.0, 2.0, 3.0, 4.0, 100.0]), Some(1.4826));
        assert_eq!(quantile(&mut [3.0, 1.0, 2.0], 0.5), Some(2.0));
        assert_eq!(quantile(&mut [0.0, 10.0], 0.9), Some(9.0));
        assert_eq!(quantile(&mut [], 0.9), None);
    }
}
