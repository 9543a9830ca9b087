//! Running totals that begin anew.

/// Least number of rows of a running total; with fewer it cannot be distinguished from amounts that rows add.
pub(crate) const ROWS_OF_A_TOTAL: usize = 5;
/// Largest part of a total that remains when it begins anew.
pub(crate) const MOST_OF_A_RESTART: f64 = 0.1;

/// Returns whether a total grows from one value to the next, or begins anew.
pub(crate) fn grows_or_restarts(pair: &[f64]) -> bool {
    pair[1] >= pair[0] || pair[1] <= MOST_OF_A_RESTART * pair[0]
}
