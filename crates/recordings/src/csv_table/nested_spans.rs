//! Rows whose time contains that of other rows, as the window of an epoch contains those of its steps: what the inner rows have is
//! taken off the outer one, or it would count twice.

use eadt_schemas::EventTime;

use crate::units::{Dimension, bracketed_unit, lowercase_words, worded_unit};

/// The time of a row, from its start to its end.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct RowSpan {
    pub(super) start: EventTime,
    pub(super) end: EventTime,
}

/// Columns that have the start or the end of a row, and how long it took.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct SpanColumns {
    /// The column of times has the start, not the end.
    is_start: bool,
    pub(super) duration: usize,
    seconds_per_unit: f64,
}

const START_WORDS: [&str; 3] = ["begin", "start", "started"];
const END_WORDS: [&str; 5] = ["end", "ended", "finish", "finished", "stop"];
const DURATION_WORDS: [&str; 2] = ["duration", "elapsed"];
/// Words that may stand beside those of a duration.
const WORDS_BESIDE_DURATIONS: [&str; 11] =
    ["time", "window", "s", "sec", "secs", "seconds", "ms", "msec", "milliseconds", "us", "total"];

/// Words of the column that has the names of windows, and words beside them.
const WINDOW_WORDS: [&str; 7] = ["epoch", "iteration", "phase", "span", "stage", "step", "window"];
const WORDS_BESIDE_WINDOWS: [&str; 4] = ["id", "name", "number", "no"];
const TIME_WORDS: [&str; 4] = ["date", "datetime", "time", "timestamp"];

/// Returns whether a column has the names of windows, such as `window_name`.
pub(super) fn names_a_window(name: &str) -> bool {
    let words = lowercase_words(name);
    let is_known = |word: &String| [&WINDOW_WORDS[..], &WORDS_BESIDE_WINDOWS].iter().any(|list| list.contains(&word.as_str()));
    has_one(&words, &WINDOW_WORDS) && words.iter().all(is_known)
}

/// Returns whether a column has times, such as the end of a row.
pub(super) fn names_a_time(name: &str) -> bool {
    let words = lowercase_words(name);
    [&START_WORDS[..], &END_WORDS, &TIME_WORDS].iter().any(|list| has_one(&words, list))
}

fn has_one(words: &[String], wanted: &[&str]) -> bool {
    words.iter().any(|word| wanted.contains(&word.as_str()))
}

impl SpanColumns {
    /// Returns the columns of a table whose column of times is `time`; `None` if its name does not say whether it has starts or ends,
    /// or no column has durations.
    pub(super) fn find(names: &[String], time: usize) -> Option<Self> {
        let of_time = lowercase_words(names.get(time)?);
        let is_start = has_one(&of_time, &START_WORDS);
        if is_start == has_one(&of_time, &END_WORDS) {
            return None;
        }
        let is_duration = |name: &String| {
            let words = lowercase_words(name);
            let is_known =
                |word: &String| [&DURATION_WORDS[..], &WORDS_BESIDE_DURATIONS].iter().any(|list| list.contains(&word.as_str()));
            has_one(&words, &DURATION_WORDS) && words.iter().all(is_known)
        };
        let duration = names.iter().position(is_duration)?;
        let unit = bracketed_unit(&names[duration]).or_else(|| worded_unit(&names[duration], Dimension::Duration));
        let seconds_per_unit =
            unit.filter(|unit| unit.dimension == Dimension::Duration).map_or(1.0, |unit| unit.to_base_unit(1.0));
        Some(Self { is_start, duration, seconds_per_unit })
    }

    /// Returns the span of a row with this time and duration.
    pub(super) fn span(self, time: EventTime, duration: f64) -> Option<RowSpan> {
        let seconds = Some(duration * self.seconds_per_unit).filter(|seconds| *seconds > 0.0 && seconds.is_finite())?;
        let (start, end) = if self.is_start { (time, time.plus_seconds(seconds)) } else { (time.plus_seconds(-seconds), time) };
        Some(RowSpan { start, end })
    }
}

/// By how much the span of an inner row may stand out, in microseconds: starts and durations are rounded.
const TOLERANCE_MICROS: i64 = 10_000;
/// An outer row has at least this part of what its inner rows have together.
const LEAST_OF_INNER: f64 = 0.98;
/// So many rows within another are no chance.
const INNER_ROWS: usize = 2;

/// Returns how many rows each row has directly within, and what these have together; `None` if some overlap in part only.
fn sums_within(rows: &[(RowSpan, f64)]) -> Option<Vec<(usize, f64)>> {
    let mut order: Vec<usize> = (0..rows.len()).collect();
    order.sort_by_key(|row| (rows[*row].0.start, std::cmp::Reverse(rows[*row].0.end)));
    let end = |row: usize| rows[row].0.end.micros();
    let length = |row: usize| end(row) - rows[row].0.start.micros();
    let mut inner: Vec<(usize, f64)> = vec![(0, 0.0); rows.len()];
    let mut open: Vec<usize> = Vec::new();
    for row in order {
        while open.last().is_some_and(|outer| end(*outer) <= rows[row].0.start.micros() + TOLERANCE_MICROS) {
            open.pop();
        }
        if let Some(outer) = open.last().copied() {
            // Rows of the same time are of several boards, or jobs.
            let is_within = end(row) <= end(outer) + TOLERANCE_MICROS && length(row) + TOLERANCE_MICROS < length(outer);
            if !is_within {
                return None;
            }
            inner[outer].0 += 1;
            inner[outer].1 += rows[row].1;
        }
        open.push(row);
    }
    Some(inner)
}

/// Returns whether no row has less than the rows within it.
fn have_all(rows: &[(RowSpan, f64)], inner: &[(usize, f64)]) -> bool {
    rows.iter().zip(inner).all(|((_, value), (_, within))| *value >= LEAST_OF_INNER * within)
}

/// Returns whether each row may contain the rows within it, if there are any.
pub(super) fn may_contain_inner(rows: &[(RowSpan, f64)]) -> bool {
    sums_within(rows).is_some_and(|inner| have_all(rows, &inner))
}

/// Returns what each row has apart from the rows within it, and how many rows have others within; `None` if rows are not nested: none
/// has several others within, some overlap in part only, or have less than the rows within.
pub(super) fn take_off_inner(rows: &[(RowSpan, f64)]) -> Option<(Vec<f64>, usize)> {
    let inner = sums_within(rows)?;
    let outer = inner.iter().filter(|(count, _)| *count > 0).count();
    let is_nested = inner.iter().any(|(count, _)| *count >= INNER_ROWS);
    let own = rows.iter().zip(&inner).map(|((_, value), (_, within))| (value - within).max(0.0)).collect();
    (is_nested && have_all(rows, &inner)).then_some((own, outer))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(start: f64, end: f64, value: f64) -> (RowSpan, f64) {
        let at = |seconds: f64| EventTime::from_seconds(1.7e9 + seconds);
        (RowSpan { start: at(start), end: at(end) }, value)
    }

    #[test]
    fn what_inner_rows_have_is_taken_off_the_outer_one() {
        let (a, b) = (row(0.0, 10.0, 3000.0), row(10.1, 20.0, 2900.0));
        for (what, rows, own) in [
            ("below its steps", vec![a, b, row(0.0, 20.1, 5950.0)], Some(vec![3000.0, 2900.0, 50.0])),
            ("above its steps", vec![row(0.0, 20.1, 5900.0), a, b], Some(vec![0.0, 3000.0, 2900.0])),
            (
                "three levels",
                vec![row(-1.0, 40.0, 7000.0), row(0.0, 20.1, 5950.0), a, b],
                Some(vec![1050.0, 50.0, 3000.0, 2900.0]),
            ),
            ("one after the other", vec![a, b], None),
            ("one within", vec![row(0.0, 20.0, 5900.0), a], None),
            ("in part", vec![a, b, row(0.0, 15.0, 5900.0)], None),
            ("of two boards", vec![a, row(0.0, 10.0, 2900.0)], None),
            ("less than its steps", vec![row(0.0, 20.1, 3000.0), a, b], None),
        ] {
            assert_eq!(take_off_inner(&rows).map(|(own, _)| own), own, "{what}");
        }
    }

    #[test]
    fn columns_of_spans_are_known_by_their_names() {
        let find = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            SpanColumns::find(&names, 0).map(|found| (found.is_start, found.duration, found.seconds_per_unit))
        };
        assert_eq!(find(&["start_time", "window_name", "elapsed_time", "gpu0_energy"]), Some((true, 2, 1.0)));
        assert_eq!(find(&["end", "duration_ms"]), Some((false, 1, 1e-3)));
        assert_eq!(find(&["timestamp", "elapsed_time"]), None, "it may be since the start of the job");
        assert_eq!(find(&["start_time", "energy"]), None);
        for (name, is_window) in [("window_name", true), ("phase", true), ("name", false), ("user", false), ("step_user", false)]
        {
            assert_eq!(names_a_window(name), is_window, "{name}");
        }
    }
}
