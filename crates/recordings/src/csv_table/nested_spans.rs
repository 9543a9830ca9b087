//! Rows whose time contains that of other rows, as the window of an epoch contains those of its steps. The amounts of the inner
//! rows are subtracted from the outer one, or they would count twice.

use eadt_schemas::EventTime;

use crate::units::{Dimension, bracketed_unit, lowercase_words, worded_unit};

/// The time of a row, from its start to its end.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct RowSpan {
    pub(super) start: EventTime,
    pub(super) end: EventTime,
}

/// The moment of a row that its column of times has, by the name of that column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RowMoment {
    Start,
    End,
    /// The name states neither.
    Unnamed,
}

/// Columns that have the start or the end of a row, and its other end or how long it took.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct SpanColumns {
    pub(super) moment: RowMoment,
    /// The column of the ends of rows whose time is their start, or of the starts.
    pub(super) other_end: Option<usize>,
    pub(super) duration: Option<usize>,
    pub(super) seconds_per_unit: f64,
}

const START_WORDS: [&str; 3] = ["begin", "start", "started"];
const END_WORDS: [&str; 5] = ["end", "ended", "finish", "finished", "stop"];
const DURATION_WORDS: [&str; 2] = ["duration", "elapsed"];
/// Words that may be beside those of a duration.
const WORDS_BESIDE_DURATIONS: [&str; 12] =
    ["time", "window", "s", "sec", "secs", "seconds", "ms", "msec", "milliseconds", "us", "total", "raw"];

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
    /// Returns the columns of a table whose column of times is `time`; `None` if no column has the other end of rows or their
    /// durations. If the name of `time` states neither start nor end, what has elapsed may be since the start of the job.
    pub(super) fn find(names: &[String], time: usize) -> Option<Self> {
        let of_time = lowercase_words(names.get(time)?);
        let moment = match (has_one(&of_time, &START_WORDS), has_one(&of_time, &END_WORDS)) {
            (true, false) => RowMoment::Start,
            (false, true) => RowMoment::End,
            (false, false) => RowMoment::Unnamed,
            (true, true) => return None,
        };
        let wanted = if moment == RowMoment::Unnamed { &DURATION_WORDS[..1] } else { &DURATION_WORDS[..] };
        let is_duration = |name: &String| {
            let words = lowercase_words(name);
            let is_known = |word: &String| [wanted, &WORDS_BESIDE_DURATIONS[..]].iter().any(|list| list.contains(&word.as_str()));
            has_one(&words, wanted) && words.iter().all(is_known)
        };
        let duration = names.iter().position(is_duration);
        let other_end = other_end(names, &of_time, moment);
        duration.or(other_end)?;
        let unit = duration.map(|index| &names[index]);
        let unit = unit.and_then(|name| bracketed_unit(name).or_else(|| worded_unit(name, Dimension::Duration)));
        let seconds_per_unit =
            unit.filter(|unit| unit.dimension == Dimension::Duration).map_or(1.0, |unit| unit.to_base_unit(1.0));
        Some(Self { moment, other_end, duration, seconds_per_unit })
    }

    /// Returns the span of a row with this time that took so many seconds. A time whose name states nothing is taken for the end.
    pub(super) fn span(self, time: EventTime, seconds: f64) -> Option<RowSpan> {
        let seconds = Some(seconds).filter(|seconds| *seconds > 0.0 && seconds.is_finite())?;
        let (start, end) = match self.moment {
            RowMoment::Start => (time, time.plus_seconds(seconds)),
            RowMoment::End | RowMoment::Unnamed => (time.plus_seconds(-seconds), time),
        };
        Some(RowSpan { start, end })
    }
}

/// Returns the column that has the ends of rows if a column has their starts, or the starts: `end_time` beside `start_time`.
fn other_end(names: &[String], of_time: &[String], moment: RowMoment) -> Option<usize> {
    let (own, wanted) = match moment {
        RowMoment::Start => (&START_WORDS[..], &END_WORDS[..]),
        RowMoment::End => (&END_WORDS[..], &START_WORDS[..]),
        RowMoment::Unnamed => return None,
    };
    let rest = |words: &[String], left_out: &[&str]| {
        let rest = words.iter().filter(|word| !left_out.contains(&word.as_str()));
        rest.cloned().collect::<Vec<String>>()
    };
    let beside = rest(of_time, own);
    names.iter().position(|name| {
        let words = lowercase_words(name);
        has_one(&words, wanted) && rest(&words, wanted) == beside
    })
}

/// Seconds, or the part of its length, by which a row may begin before the row above ends: times and durations are rounded.
const OVERLAP_SECONDS: f64 = 2.0;
const OVERLAP_RATIO: f64 = 0.02;

/// Returns whether rows come one after the other.
fn follow_each_other(spans: &[RowSpan]) -> bool {
    let mut ordered = spans.to_vec();
    ordered.sort_by_key(|span| span.start);
    ordered.windows(2).all(|pair| {
        let length = pair[0].end.seconds_since(pair[0].start);
        pair[0].end.seconds_since(pair[1].start) <= OVERLAP_SECONDS.max(OVERLAP_RATIO * length).min(length / 2.0)
    })
}

/// Returns the spans of rows whose times may be their starts or their ends, given as if these were ends: those that come one
/// after the other; `None` if neither do, as durations since the start of a job.
pub(super) fn choose_moments(ended: &[RowSpan]) -> Option<Vec<RowSpan>> {
    let begun = |span: &RowSpan| {
        let micros = span.end.micros() - span.start.micros();
        RowSpan { start: span.end, end: span.end.plus_micros(micros) }
    };
    let begun: Vec<RowSpan> = ended.iter().map(begun).collect();
    [ended.to_vec(), begun].into_iter().find(|spans| follow_each_other(spans))
}

/// Time between two rows, in microseconds, in which nothing is known; what is shorter is of rounding.
const PAUSE_MICROS: i64 = 1_000_000;

/// Returns the stretches of time that rows cover, in order.
pub(super) fn covered_stretches(spans: &[RowSpan]) -> Vec<RowSpan> {
    let mut ordered = spans.to_vec();
    ordered.sort_by_key(|span| span.start);
    let mut stretches: Vec<RowSpan> = Vec::new();
    for span in ordered {
        match stretches.last_mut() {
            Some(last) if span.start.micros() - last.end.micros() <= PAUSE_MICROS => last.end = last.end.max(span.end),
            _ => stretches.push(span),
        }
    }
    stretches
}

/// The longest time between two points of a counter, in microseconds: a source that is silent for longer has ended.
const LONGEST_SILENCE_MICROS: i64 = 6 * 3_600_000_000;

/// Returns the times at which the counter of some rows has a point: their starts and ends, and some between if these are far
/// apart and a row covers that time.
fn counter_times(rows: &[(RowSpan, f64)]) -> Vec<EventTime> {
    let mut ends: Vec<EventTime> = rows.iter().flat_map(|(span, _)| [span.start, span.end]).collect();
    ends.sort_unstable();
    ends.dedup();
    let covered = covered_stretches(&rows.iter().map(|(span, _)| *span).collect::<Vec<_>>());
    let is_covered = |time: EventTime| {
        let stretch = covered.partition_point(|stretch| stretch.start <= time).checked_sub(1).map(|place| covered[place]);
        stretch.is_some_and(|stretch| time < stretch.end)
    };
    let mut times: Vec<EventTime> = Vec::with_capacity(ends.len());
    for pair in ends.windows(2) {
        let micros = pair[1].micros() - pair[0].micros();
        let parts = if is_covered(pair[0]) { micros / LONGEST_SILENCE_MICROS + 1 } else { 1 };
        times.extend((0..parts).map(|part| pair[0].plus_micros(micros / parts * part)));
    }
    times.extend(ends.last());
    times
}

/// Returns the points of a counter to which each row adds evenly over its span, in order of time. It never falls.
pub(super) fn counter_points(rows: &[(RowSpan, f64)]) -> Vec<(EventTime, f64)> {
    let mut order: Vec<usize> = (0..rows.len()).collect();
    order.sort_by_key(|row| rows[*row].0.start);
    let (mut waiting, mut open, mut counted) = (order.into_iter().peekable(), Vec::<usize>::new(), 0.0);
    let mut total = 0.0_f64;
    let mut points = Vec::new();
    for time in counter_times(rows) {
        open.extend(std::iter::from_fn(|| waiting.next_if(|row| rows[*row].0.start < time)));
        open.retain(|row| {
            let (span, value) = rows[*row];
            let is_over = span.end <= time;
            counted += if is_over { value } else { 0.0 };
            !is_over
        });
        let part = |row: &usize| {
            let (RowSpan { start, end }, value) = rows[*row];
            value * (time.seconds_since(start) / end.seconds_since(start))
        };
        // Parts of rows that overlap are rounded.
        total = total.max(counted + open.iter().map(part).sum::<f64>());
        points.push((time, total));
    }
    points
}

/// Time by which the span of an inner row may exceed the outer one, in microseconds: starts and durations are rounded.
const TOLERANCE_MICROS: i64 = 10_000;
/// An outer row has at least this part of what its inner rows have together.
const LEAST_OF_INNER: f64 = 0.98;
/// Number of rows within another one that cannot be chance.
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

/// Returns whether each row has others within; `None` if some overlap in part only.
pub(super) fn have_inner(rows: &[(RowSpan, f64)]) -> Option<Vec<bool>> {
    Some(sums_within(rows)?.iter().map(|(count, _)| *count > 0).collect())
}

/// Returns the value of each row without that of the rows within it, and the number of rows with others within; `None` if rows
/// are not nested: none has several others within, some overlap in part only, or have less than the rows within.
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
    fn a_counter_grows_over_the_span_of_each_row_only() {
        let points = |rows: &[(RowSpan, f64)]| {
            let begin = EventTime::from_seconds(1.7e9);
            counter_points(rows).iter().map(|(time, total)| (time.seconds_since(begin), *total)).collect::<Vec<_>>()
        };
        let apart = [row(0.0, 60.0, 600.0), row(660.0, 720.0, 300.0)];
        assert_eq!(points(&apart), [(0.0, 0.0), (60.0, 600.0), (660.0, 600.0), (720.0, 900.0)]);
        let together = [row(0.0, 40.0, 400.0), row(20.0, 60.0, 800.0)];
        assert_eq!(points(&together), [(0.0, 0.0), (20.0, 200.0), (40.0, 800.0), (60.0, 1200.0)]);
        assert_eq!(points(&[row(0.0, 43_200.0, 30.0)]), [(0.0, 0.0), (14_400.0, 10.0), (28_800.0, 20.0), (43_200.0, 30.0)]);
        let spans = |rows: &[(RowSpan, f64)]| covered_stretches(&rows.iter().map(|(span, _)| *span).collect::<Vec<_>>()).len();
        assert_eq!((spans(&apart), spans(&together)), (2, 1));
        let chosen = |rows: &[(RowSpan, f64)]| choose_moments(&rows.iter().map(|(span, _)| *span).collect::<Vec<_>>());
        assert_eq!(chosen(&apart).map(|spans| spans[1].start), Some(apart[1].0.start), "ends");
        let of_starts = [row(-60.0, 0.0, 1.0), row(-30.0, 70.0, 1.0), row(170.0, 180.0, 1.0)];
        assert_eq!(chosen(&of_starts).map(|spans| spans[1].start), Some(of_starts[1].0.end), "starts");
        let since_the_start = [row(0.0, 10.0, 1.0), row(0.0, 20.0, 1.0), row(0.0, 30.0, 1.0)];
        assert_eq!(chosen(&since_the_start), None);
    }

    #[test]
    fn columns_of_spans_are_known_by_their_names() {
        let find = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            SpanColumns::find(&names, 0).map(|found| (found.moment, found.other_end, found.duration, found.seconds_per_unit))
        };
        let zeus = find(&["start_time", "window_name", "elapsed_time", "gpu0_energy"]);
        assert_eq!(zeus, Some((RowMoment::Start, None, Some(2), 1.0)));
        assert_eq!(find(&["end", "duration_ms"]), Some((RowMoment::End, None, Some(1), 1e-3)));
        assert_eq!(find(&["End", "Start", "ElapsedRaw"]), Some((RowMoment::End, Some(1), Some(2), 1.0)));
        assert_eq!(find(&["start_time", "end_time", "end"]), Some((RowMoment::Start, Some(1), None, 1.0)));
        assert_eq!(find(&["timestamp", "duration"]), Some((RowMoment::Unnamed, None, Some(1), 1.0)));
        assert_eq!(find(&["timestamp", "elapsed_time"]), None, "it may be since the start of the job");
        assert_eq!(find(&["start_time", "energy"]), None);
        for (name, is_window) in [("window_name", true), ("phase", true), ("name", false), ("user", false), ("step_user", false)]
        {
            assert_eq!(names_a_window(name), is_window, "{name}");
        }
    }
}
