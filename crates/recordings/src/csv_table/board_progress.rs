//! Progress in the rows of several boards or nodes: each row may have that of the whole job, or that of its own board, of which one
//! would count for all.

use std::collections::{BTreeMap, HashMap};

use eadt_schemas::EventTime;

use crate::ReadingField;
use crate::fields::MetricType;
use crate::identity::spelling_key;
use crate::median::upper_median;

/// Values of a figure of each board that are compared, and most boards that are. Each board has its own limit: in a table that is sorted by
/// board the first one would leave the others no values.
const MOST_VALUES_OF_A_BOARD: usize = 10_000;
const MOST_BOARDS: usize = 1024;
/// Figures of two boards are the same if so many in 100 of those of one time are.
const PERCENT_ALIKE: usize = 95;
/// Largest rounding of one figure in two rows, as a part of it.
const ROUNDING: f64 = 1e-9;
/// Rates of one job that are read at other times, and rises of one counter, differ by no larger part on average.
const DIFFERENCE_OF_RATES: f64 = 0.01;
const DIFFERENCE_OF_RISES: f64 = 0.005;
/// The rises of one counter that is read row after row differ by no more of its usual rise, if rows have the same time, and if not.
const STEPS_AT_ONE_TIME: f64 = 0.25;
const STEPS_AT_OTHER_TIMES: f64 = 1.0;

/// A value of a row.
#[derive(Debug, Clone, Copy)]
struct BoardValue {
    time: EventTime,
    line: u64,
    value: f64,
}

/// The progress in the rows of each board, by field, and whether rows add it.
#[derive(Debug, Default)]
pub(crate) struct BoardProgress {
    boards: HashMap<String, usize>,
    names: Vec<String>,
    values: BTreeMap<(ReadingField, bool), BTreeMap<usize, Vec<BoardValue>>>,
}

/// How the progress of several boards is related.
#[derive(Debug, PartialEq)]
pub(crate) enum ProgressRelation {
    /// All have the same, or read one counter one after the other.
    OfJob,
    /// All add the same at the same times.
    SameAdded(ReadingField),
    /// Two boards have figures of their own.
    OfBoards(OwnProgress),
}

/// Progress of two boards that differs.
#[derive(Debug, PartialEq)]
pub(crate) struct OwnProgress {
    pub(crate) field: ReadingField,
    pub(crate) boards: [String; 2],
    /// The means of rates, or the rises of totals.
    pub(crate) values: [f64; 2],
    /// The first row of the second board that differs.
    pub(crate) line: u64,
}

impl BoardProgress {
    /// Notes a figure in the row of a board.
    pub(crate) fn note(&mut self, board: &str, (field, adds): (ReadingField, bool), (time, line): (EventTime, u64), value: f64) {
        let key = spelling_key(board);
        let next = self.names.len();
        let number = match self.boards.get(key.as_ref()) {
            Some(number) => *number,
            None if next >= MOST_BOARDS => return,
            None => {
                self.boards.insert(key.into_owned(), next);
                self.names.push(board.to_owned());
                next
            }
        };
        let of_board = self.values.entry((field, adds)).or_default().entry(number).or_default();
        if of_board.len() < MOST_VALUES_OF_A_BOARD {
            of_board.push(BoardValue { time, line, value });
        }
    }

    /// Compares the figures of the boards; `None` if no two of them have one at the same time.
    pub(crate) fn compare(mut self) -> Option<ProgressRelation> {
        let mut found = None;
        for ((field, adds), mut of_boards) in std::mem::take(&mut self.values) {
            for values in of_boards.values_mut() {
                values.sort_by_key(|value| (value.time, value.line));
            }
            let mut of_boards = of_boards.into_iter();
            let Some((first, of_first)) = of_boards.next() else { continue };
            for (board, of_board) in of_boards {
                let pairs = pair_values(&of_first, &of_board);
                if pairs.is_empty() || pairs.len() * 2 < of_first.len().min(of_board.len()) {
                    continue;
                }
                let are_alike = are_alike(&pairs);
                if adds {
                    let is_same = are_alike && pairs.iter().all(|(a, b)| a.time == b.time);
                    found = found.or_else(|| is_same.then_some(ProgressRelation::SameAdded(field)));
                    continue;
                }
                if let Some((values, line)) = (!are_alike).then(|| find_difference(field, &pairs)).flatten() {
                    let boards = [first, board].map(|board| self.names.get(board).cloned().unwrap_or_default());
                    return Some(ProgressRelation::OfBoards(OwnProgress { field, boards, values, line }));
                }
                found = Some(ProgressRelation::OfJob);
            }
        }
        found
    }
}

/// Returns the values of two boards that have the same time, or nearly so: each of the second with the nearest of the first.
fn pair_values(first: &[BoardValue], second: &[BoardValue]) -> Vec<(BoardValue, BoardValue)> {
    let intervals = first.windows(2).map(|pair| pair[1].time.seconds_since(pair[0].time)).filter(|seconds| *seconds > 0.0);
    let most_seconds = upper_median(intervals).unwrap_or(0.0) / 2.0;
    let nearest = |value: &BoardValue| {
        let next = first.partition_point(|other| other.time < value.time);
        let candidates = [next.checked_sub(1), Some(next)].into_iter().flatten().filter_map(|place| first.get(place));
        let distance = |other: &&BoardValue| other.time.seconds_since(value.time).abs();
        let nearest = candidates.min_by(|a, b| distance(a).total_cmp(&distance(b)))?;
        (distance(&nearest) <= most_seconds).then_some((*nearest, *value))
    };
    second.iter().filter_map(nearest).collect()
}

/// Returns whether two logs have the same values at nearly the same times.
pub(crate) fn have_same_values(first: &[(EventTime, f64)], second: &[(EventTime, f64)]) -> bool {
    let values = |of: &[(EventTime, f64)]| -> Vec<BoardValue> {
        of.iter().map(|(time, value)| BoardValue { time: *time, line: 0, value: *value }).collect()
    };
    let pairs = pair_values(&values(first), &values(second));
    !pairs.is_empty() && are_alike(&pairs)
}

/// Returns whether two figures are the same but for rounding.
fn is_same(a: f64, b: f64) -> bool {
    (a - b).abs() <= ROUNDING * a.abs().max(b.abs())
}

fn are_alike(pairs: &[(BoardValue, BoardValue)]) -> bool {
    let alike = pairs.iter().filter(|(a, b)| is_same(a.value, b.value)).count();
    alike * 100 >= pairs.len() * PERCENT_ALIKE
}

/// Returns the means of two rates, or the rises of two totals, that are not of one job, and the first row that differs.
fn find_difference(field: ReadingField, pairs: &[(BoardValue, BoardValue)]) -> Option<([f64; 2], u64)> {
    let line = pairs.iter().find(|(a, b)| !is_same(a.value, b.value)).map(|(_, b)| b.line)?;
    let is_rate = field.nature() == MetricType::Gauge;
    let (values, is_of_job) = if is_rate {
        let mean = |of: fn(&(BoardValue, BoardValue)) -> f64| pairs.iter().map(of).sum::<f64>() / pairs.len() as f64;
        let means = [mean(|(a, _)| a.value), mean(|(_, b)| b.value)];
        let difference = (means[0] - means[1]).abs();
        let whole = means[0].abs().max(means[1].abs());
        (means, !have_one_time(pairs) && difference <= DIFFERENCE_OF_RATES * whole)
    } else {
        let [a, b] = own_values(pairs);
        ([rise_of(&a), rise_of(&b)], are_of_one_counter(pairs, &a, &b))
    };
    (!is_of_job).then_some((values, line))
}

fn have_one_time(pairs: &[(BoardValue, BoardValue)]) -> bool {
    pairs.iter().all(|(a, b)| a.time == b.time)
}

/// Returns the values of each of two boards, in order of time.
fn own_values(pairs: &[(BoardValue, BoardValue)]) -> [Vec<f64>; 2] {
    [pairs.iter().map(|(a, _)| a.value).collect(), pairs.iter().map(|(_, b)| b.value).collect()]
}

/// Returns by how much a total rises in all, without what it loses where it begins anew.
fn rise_of(values: &[f64]) -> f64 {
    if count_falls(values) == 0 {
        return values.last().zip(values.first()).map_or(0.0, |(last, first)| last - first);
    }
    values.windows(2).map(|pair| (pair[1] - pair[0]).max(0.0)).sum()
}

fn count_falls(values: &[f64]) -> usize {
    values.windows(2).filter(|pair| pair[1] < pair[0]).count()
}

/// Returns whether two totals are readings of one counter. They rise by the same, and read in order of time they fall only where the
/// counter begins anew, or they never differ by more than one usual rise, as scrapes a little apart that have one time.
fn are_of_one_counter(pairs: &[(BoardValue, BoardValue)], a: &[f64], b: &[f64]) -> bool {
    let rises = a.windows(2).map(|pair| pair[1] - pair[0]).filter(|rise| *rise > 0.0);
    let step = upper_median(rises).unwrap_or(0.0);
    let restarts = count_falls(a).max(count_falls(b));
    let steps = (restarts + 1) as f64 * if have_one_time(pairs) { STEPS_AT_ONE_TIME } else { STEPS_AT_OTHER_TIMES };
    let rise = [rise_of(a), rise_of(b)];
    let most = (DIFFERENCE_OF_RISES * rise[0].max(rise[1])).max(steps * step);
    // One of the two may be read before the counter begins anew, and the other one after that.
    let far = pairs.iter().filter(|(a, b)| (a.value - b.value).abs() > step).count();
    let are_close = || have_one_time(pairs) && far <= restarts;
    (rise[0] - rise[1]).abs() <= most && (rise_together(pairs, restarts) || are_close())
}

/// Returns whether the totals of two boards, read in order of time, fall no more often than one of them begins anew, as one counter does.
fn rise_together(pairs: &[(BoardValue, BoardValue)], restarts: usize) -> bool {
    let mut all: Vec<BoardValue> = pairs.iter().flat_map(|(a, b)| [*a, *b]).collect();
    all.sort_by_key(|value| (value.time, value.line));
    count_falls(&all.iter().map(|value| value.value).collect::<Vec<f64>>()) <= restarts
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares two boards whose rows are `offset` seconds apart, every 5 s.
    fn relation(field: ReadingField, offset: f64, value: impl Fn(usize, f64) -> f64) -> Option<ProgressRelation> {
        let mut progress = BoardProgress::default();
        for row in 0..61_u32 {
            for (board, name) in ["0", "1"].into_iter().enumerate() {
                let time = EventTime::from_seconds(1.7e9 + f64::from(row) * 5.0 + offset * board as f64);
                let line = u64::from(row) * 2 + board as u64 + 2;
                progress.note(name, (field, false), (time, line), value(board, f64::from(row)));
            }
        }
        progress.compare()
    }

    fn has_own(field: ReadingField, offset: f64, value: impl Fn(usize, f64) -> f64) -> bool {
        matches!(relation(field, offset, value), Some(ProgressRelation::OfBoards(_)))
    }

    #[test]
    fn boards_with_figures_of_their_own_are_known_by_them() {
        use ReadingField::{SamplesPerSecond, SamplesTotal};
        let rate = |of: [f64; 2]| move |board: usize, row: f64| of[board] + row % 3.0;
        let total = |of: [f64; 2]| move |board: usize, row: f64| of[board] * row;
        for offset in [0.0, 0.3] {
            assert!(has_own(SamplesPerSecond, offset, rate([100.0, 200.0])), "{offset}");
            assert!(has_own(SamplesTotal, offset, total([320.0, 400.0])), "{offset}");
            assert_eq!(relation(SamplesPerSecond, offset, rate([100.0, 100.0])), Some(ProgressRelation::OfJob));
            assert_eq!(relation(SamplesTotal, offset, total([320.0, 320.0])), Some(ProgressRelation::OfJob));
        }
        assert!(has_own(SamplesPerSecond, 0.0, rate([100.0, 101.0])));
        assert!(has_own(SamplesTotal, 0.0, total([320.0, 323.2])));
        // One counter and one rate, read row after row.
        let in_turn = |board: usize, row: f64| 320.0 * row + 20.0 * board as f64;
        assert_eq!(relation(SamplesTotal, 0.0, in_turn), Some(ProgressRelation::OfJob));
        let later = |board: usize, row: f64| 100.0 + (row + 0.06 * board as f64) % 7.0;
        assert_eq!(relation(SamplesPerSecond, 0.3, later), Some(ProgressRelation::OfJob));
        // One counter that is read at other moments before the time that both rows have, and one that begins anew.
        for lag in [-0.2, 0.2] {
            let scraped = |board: usize, row: f64| 3000.0 * (row + 1.0 + lag * board as f64);
            assert_eq!(relation(SamplesTotal, 0.0, scraped), Some(ProgressRelation::OfJob), "{lag}");
        }
        for offset in [0.0, 0.3] {
            let anew = |board: usize, row: f64| 320.0 * (row % 30.0) + 20.0 * board as f64;
            assert_eq!(relation(SamplesTotal, offset, anew), Some(ProgressRelation::OfJob), "{offset}");
            assert!(has_own(SamplesTotal, offset, |board, row| (320.0 + 80.0 * board as f64) * (row % 30.0)), "{offset}");
        }
        // A board that begins at another count than the other one.
        assert!(has_own(SamplesTotal, 0.0, |board, row| 320.0 * row + 5000.0 * board as f64));
    }

    #[test]
    fn boards_are_compared_however_many_rows_the_first_one_has() {
        let mut progress = BoardProgress::default();
        for (board, rate) in [("0", 100.0), ("1", 200.0)] {
            for row in 0..110_000_u32 {
                let time = EventTime::from_seconds(1.7e9 + f64::from(row));
                progress.note(board, (ReadingField::SamplesPerSecond, false), (time, u64::from(row)), rate);
            }
        }
        assert!(matches!(progress.compare(), Some(ProgressRelation::OfBoards(_))));
    }

    #[test]
    fn boards_that_work_one_after_the_other_are_not_compared() {
        let mut progress = BoardProgress::default();
        for row in 0..60_u32 {
            let time = EventTime::from_seconds(1.7e9 + f64::from(row));
            let (board, rate) = if row < 30 { ("0", 100.0) } else { ("1", 200.0) };
            progress.note(board, (ReadingField::SamplesPerSecond, false), (time, u64::from(row)), rate);
        }
        assert_eq!(progress.compare(), None);
    }
}
