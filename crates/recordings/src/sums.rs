//! Rows that have the sum of the rows above, as spreadsheets and epoch logs write below what they sum: counted as one more row,
//! they would count everything twice.

/// Kind of the rows that are refused.
pub(crate) const SUM_OF_ROWS: &str = "sum";

/// With fewer rows above, a row may be their sum by chance.
const ROWS_OF_A_SUM: usize = 4;
/// The same of one of several sums, each of the rows since the one before.
const ROWS_OF_A_SUBTOTAL: usize = 3;
/// A sum is more than so many times the largest row, or it may be the next of values that double.
const TIMES_THE_LARGEST: f64 = 2.0;
/// By how much a sum may be rounded.
const ROUNDING: f64 = 1e-6;

/// Rows that are summed.
#[derive(Debug, Clone, Copy, Default)]
struct SummedRows {
    rows: usize,
    sum: f64,
    largest: f64,
}

impl SummedRows {
    fn add(&mut self, value: f64) {
        self.rows += 1;
        self.sum += value;
        self.largest = self.largest.max(value);
    }

    fn is_sum(self, value: f64, least_rows: usize) -> bool {
        let is_equal = (value - self.sum).abs() <= ROUNDING * self.sum;
        self.rows >= least_rows && self.largest > 0.0 && is_equal && value > TIMES_THE_LARGEST * self.largest
    }
}

/// Returns the places of the values that are sums of values above them, in the order of their rows: the last one if it is that of
/// all others, or several that end each a group of rows, and with the last of them the table.
pub(crate) fn find_sums(values: &[f64]) -> Vec<usize> {
    let (mut all, mut group, mut places) = (SummedRows::default(), SummedRows::default(), Vec::new());
    let last = values.len().saturating_sub(1);
    for (place, value) in values.iter().enumerate() {
        let is_total = place == last && all.is_sum(*value, ROWS_OF_A_SUM);
        if is_total && (places.is_empty() || group.rows == 0) {
            places.push(place);
            return places;
        }
        if group.is_sum(*value, ROWS_OF_A_SUBTOTAL) {
            places.push(place);
            group = SummedRows::default();
        } else {
            group.add(*value);
            all.add(*value);
        }
    }
    if group.rows > 0 || places.len() < 2 {
        places.clear();
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_of_the_rows_above_is_one_and_what_grows_is_none() {
        for (what, values, places) in [
            ("a total", &[32.0, 32.0, 32.0, 20.0, 116.0][..], &[4][..]),
            ("a rounded total", &[3000.004, 3000.004, 3000.003, 3000.003, 12000.01], &[4]),
            ("two epochs", &[3.0, 3.0, 4.0, 10.0, 3.0, 3.0, 3.0, 9.0], &[3, 7]),
            ("two epochs and all", &[3.0, 3.0, 4.0, 10.0, 3.0, 3.0, 3.0, 9.0, 19.0], &[3, 7, 8]),
            ("rows alone", &[32.0, 32.0, 32.0, 20.0], &[]),
            ("a doubling batch", &[1.0, 1.0, 2.0, 4.0, 8.0, 16.0], &[]),
            ("too few rows", &[4.0, 3.0, 4.0, 11.0], &[]),
            ("by chance, and more rows", &[4.0, 3.0, 4.0, 11.0, 3.0, 4.0], &[]),
            ("zeros", &[0.0, 0.0, 0.0, 0.0, 0.0, 0.0], &[]),
            ("one large row", &[1.0, 1.0, 1.0, 1.0, 5.0], &[]),
            ("one large row and its sum", &[1.0, 1.0, 1.0, 1.0, 10.0, 14.0], &[]),
            ("none", &[], &[]),
        ] {
            assert_eq!(find_sums(values), places, "{what}");
        }
    }
}
