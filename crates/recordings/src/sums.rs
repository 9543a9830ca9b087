//! Rows that have the sum of the rows above, as spreadsheets and epoch logs write below what they sum: counted as one more row,
//! they would count everything twice.

/// Kind of the rows that are refused.
pub(crate) const SUM_OF_ROWS: &str = "sum";

/// Least number of rows above a sum; with fewer, a last row may be their sum by chance.
const ROWS_OF_A_SUM: usize = 5;
/// The same of one of several sums, each of the rows since the one before.
const ROWS_OF_A_SUBTOTAL: usize = 3;
/// Least number of groups of rows that end with their sum; fewer may be by chance.
const SUBTOTALS: usize = 2;
/// A sum is more than so many times the largest row, or it may be the next of values that double.
const TIMES_THE_LARGEST: f64 = 2.0;
/// Whole numbers below this are often sums by chance.
const SMALL_WHOLE_NUMBER: f64 = 32.0;
/// Largest rounding of a sum, as a part of it.
const ROUNDING: f64 = 1e-6;

/// Rows that are summed.
#[derive(Debug, Clone, Copy, Default)]
struct SummedRows {
    rows: usize,
    sum: f64,
    smallest: f64,
    largest: f64,
    has_fractions: bool,
}

impl SummedRows {
    fn add(&mut self, value: f64) {
        self.smallest = if self.rows == 0 { value } else { self.smallest.min(value) };
        self.rows += 1;
        self.sum += value;
        self.largest = self.largest.max(value);
        self.has_fractions |= value.fract() != 0.0;
    }

    fn is_sum(self, value: f64, least_rows: usize) -> bool {
        let is_equal = (value - self.sum).abs() <= ROUNDING * self.sum;
        self.rows >= least_rows && self.largest > 0.0 && is_equal && value > TIMES_THE_LARGEST * self.largest
    }

    /// Returns whether the sum of such rows is none by chance: a larger batch is the sum of equal ones, too.
    fn is_significant(self) -> bool {
        self.smallest < self.largest && (self.largest >= SMALL_WHOLE_NUMBER || self.has_fractions)
    }
}

/// Certainty with which a value must be a sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Certainty {
    /// It may be by chance, as beside another column whose sums are none.
    Possible,
    Sure,
}

/// Returns the places of the values that are sums of values above them, in the order of their rows. A sum is the last value if it
/// is that of all others, or the end of a group of rows. The last group may be unfinished.
pub(crate) fn find_sums(values: &[f64], certainty: Certainty) -> Vec<usize> {
    let is_sure = |rows: SummedRows| certainty == Certainty::Possible || rows.is_significant();
    let (mut group, mut longest, mut telling, mut places) = (SummedRows::default(), 0, 0, Vec::new());
    for (place, value) in values.iter().enumerate() {
        if group.is_sum(*value, ROWS_OF_A_SUBTOTAL) {
            places.push(place);
            longest = longest.max(group.rows);
            telling += usize::from(is_sure(group));
            group = SummedRows::default();
        } else {
            group.add(*value);
        }
    }
    // Behind the last sum, the sum of all may follow an unfinished group.
    if telling < SUBTOTALS || group.rows > longest + 1 {
        places.clear();
    }
    let Some(last) = values.len().checked_sub(1).filter(|last| !places.contains(last)) else { return places };
    let mut all = SummedRows::default();
    for (place, value) in values[..last].iter().enumerate() {
        if places.binary_search(&place).is_err() {
            all.add(*value);
        }
    }
    if all.is_sum(values[last], ROWS_OF_A_SUM) && is_sure(all) {
        places.push(last);
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_of_the_rows_above_is_one_and_what_grows_is_none() {
        for (what, values, places) in [
            ("a total", &[32.0, 32.0, 32.0, 32.0, 20.0, 148.0][..], &[5][..]),
            ("a rounded total", &[3000.004, 3000.004, 3000.003, 3000.003, 3000.003, 15000.02], &[5]),
            ("two epochs", &[60.0, 60.0, 80.0, 200.0, 60.0, 60.0, 70.0, 190.0], &[3, 7]),
            ("two epochs and all", &[60.0, 60.0, 80.0, 200.0, 60.0, 60.0, 70.0, 190.0, 390.0], &[3, 7, 8]),
            ("an unfinished epoch", &[100.0, 110.0, 120.0, 330.0, 105.0, 99.0, 100.0, 304.0, 101.0, 102.0], &[3, 7]),
            (
                "equal steps of one epoch",
                &[60.0, 60.0, 80.0, 200.0, 60.0, 60.0, 60.0, 180.0, 60.0, 60.0, 70.0, 190.0],
                &[3, 7, 11],
            ),
            ("epochs, and many rows", &[60.0, 60.0, 80.0, 200.0, 60.0, 60.0, 70.0, 190.0, 50.0, 51.0, 52.0, 53.0, 54.0], &[]),
            ("rows alone", &[32.0, 32.0, 32.0, 20.0], &[]),
            ("a doubling batch", &[1.0, 1.0, 2.0, 4.0, 8.0, 16.0], &[]),
            ("too few rows", &[40.0, 30.0, 40.0, 35.0, 145.0], &[]),
            ("by chance, and more rows", &[40.0, 30.0, 40.0, 110.0, 30.0, 40.0], &[]),
            ("zeros", &[0.0, 0.0, 0.0, 0.0, 0.0, 0.0], &[]),
            ("one large row", &[1.0, 1.0, 1.0, 1.0, 5.0], &[]),
            ("one large row and its sum", &[1.0, 1.0, 1.0, 1.0, 10.0, 14.0], &[]),
            ("a larger batch", &[512.0, 512.0, 512.0, 512.0, 2048.0], &[]),
            ("a larger batch again and again", &[64.0, 64.0, 64.0, 64.0, 256.0].repeat(5), &[]),
            ("small numbers", &[1.0, 2.0, 1.0, 2.0, 6.0], &[]),
            ("single steps", &[1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 9.0], &[]),
            ("none", &[], &[]),
        ] {
            assert_eq!(find_sums(values, Certainty::Sure), places, "{what}");
        }
        assert_eq!(find_sums(&[1.0, 1.0, 1.0, 1.0, 1.0, 5.0], Certainty::Possible), [5], "beside another column");
    }
}
