//! Rows whose time contains that of other rows, as the window of an epoch contains those of its steps. The amounts of the inner
//! rows are subtracted from the outer one, or they would count twice.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use eadt_schemas::EventTime;

use crate::sums::Certainty;
use crate::units::{Dimension, bracketed_unit, lowercase_words, worded_unit};

/// The time of a row, from its start to its end.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct RowSpan {
    pub(super) start: EventTime,
    pub(super) end: EventTime,
}

/// Number of a run, by the texts of its rows.
pub(super) type RunId = usize;

/// Between the texts of several columns that name the run of a row.
pub(super) const RUN_SEPARATOR: &str = "\u{1f}";

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
    /// The name of the column of durations has their unit.
    pub(super) has_unit: bool,
}

const START_WORDS: [&str; 3] = ["begin", "start", "started"];
const END_WORDS: [&str; 7] = ["complete", "completed", "end", "ended", "finish", "finished", "stop"];
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

/// Words of the column that has the run, the trial or the request of each row, and words beside them.
const RUN_WORDS: [&str; 7] = ["experiment", "job", "project", "request", "run", "session", "trial"];
const WORDS_BESIDE_RUNS: [&str; 8] = ["id", "idx", "index", "name", "no", "num", "number", "uuid"];

/// Returns whether a column has the run of each row, such as `run_id`, `trial` or `request_number`.
fn names_a_run(name: &str) -> bool {
    let words = lowercase_words(name);
    let is_known = |word: &String| [&RUN_WORDS[..], &WORDS_BESIDE_RUNS].iter().any(|list| list.contains(&word.as_str()));
    has_one(&words, &RUN_WORDS) && words.iter().all(is_known)
}

/// Columns of a table of trials as Optuna writes it, the first of which has the number of each trial.
const COLUMNS_OF_TRIALS: [&str; 3] = ["number", "datetime_start", "datetime_complete"];

/// Returns the columns that have the run of each row, by their names.
pub(super) fn find_run_columns(names: &[String]) -> Vec<usize> {
    let are_trials = COLUMNS_OF_TRIALS.iter().all(|wanted| names.iter().any(|name| name == wanted));
    let is_run = |name: &String| names_a_run(name) || are_trials && name == COLUMNS_OF_TRIALS[0];
    names.iter().enumerate().filter(|(_, name)| is_run(name)).map(|(index, _)| index).collect()
}

/// Returns whether a column has the run that contains the run of each row, such as `tags.mlflow.parentRunId`.
pub(super) fn names_a_parent(name: &str) -> bool {
    let words = lowercase_words(name);
    has_one(&words, &["parent"]) && has_one(&words, &RUN_WORDS)
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
        let unit = unit.filter(|unit| unit.dimension == Dimension::Duration);
        let seconds_per_unit = unit.map_or(1.0, |unit| unit.to_base_unit(1.0));
        Some(Self { moment, other_end, duration, seconds_per_unit, has_unit: unit.is_some() })
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
pub(super) fn follow_each_other(spans: &[RowSpan]) -> bool {
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

/// Shortest time between two rows, in microseconds, that counts as a pause; shorter ones are due to rounding.
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
pub(super) fn counter_times(rows: &[(RowSpan, f64)]) -> Vec<EventTime> {
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
    let times = counter_times(rows);
    let totals = counter_totals(rows, &times);
    times.into_iter().zip(totals).collect()
}

/// Returns what a counter of some rows has at these times, in order, the starts and ends of all rows among them. It never falls.
pub(super) fn counter_totals(rows: &[(RowSpan, f64)], times: &[EventTime]) -> Vec<f64> {
    let mut ordered = rows.to_vec();
    ordered.sort_by_key(|(span, _)| span.start);
    let mut waiting = ordered.into_iter().enumerate().peekable();
    let (mut open, mut counted, mut total) = (OpenRows::default(), 0.0, 0.0_f64);
    let mut totals = Vec::with_capacity(times.len());
    for time in times {
        while let Some((place, row)) = waiting.next_if(|(_, (span, _))| span.start < *time) {
            open.add(place, row);
        }
        open.close(*time, &mut counted);
        // Parts of rows that overlap are rounded.
        total = total.max(counted + open.part(*time));
        totals.push(total);
    }
    totals
}

/// So many open rows have their parts added up at each point, which rounds least. Those of more rows are kept from point to point, so that
/// many rows of one time take no longer.
const MOST_ROWS_ADDED_UP: usize = 32;

/// A sum of numbers whose rounding is kept, so that those that are subtracted again leave next to nothing.
#[derive(Debug, Default, Clone, Copy)]
struct CompensatedSum {
    sum: f64,
    rounding: f64,
}

impl CompensatedSum {
    fn add(&mut self, value: f64) {
        let sum = self.sum + value;
        let (large, small) = if self.sum.abs() >= value.abs() { (self.sum, value) } else { (value, self.sum) };
        self.rounding += (large - sum) + small;
        self.sum = sum;
    }

    fn value(self) -> f64 {
        self.sum + self.rounding
    }
}

/// The rows of a counter that have begun and have not ended.
#[derive(Debug, Default)]
struct OpenRows {
    /// The ends of rows and their places in the order of their starts, the first end first.
    ends: BinaryHeap<Reverse<(EventTime, usize)>>,
    /// Rows that have begun, by place, with those that have ended.
    rows: Vec<(RowSpan, f64)>,
    /// What open rows add in a second, all together, and what they have added up to `time`.
    rate: CompensatedSum,
    added: CompensatedSum,
    time: Option<EventTime>,
}

impl OpenRows {
    /// Adds a row; each has the next place.
    fn add(&mut self, place: usize, (span, value): (RowSpan, f64)) {
        self.advance(span.start);
        self.rows.push((span, value));
        self.ends.push(Reverse((span.end, place)));
        match rate_of((span, value)) {
            Some(rate) => self.rate.add(rate),
            None => self.added.add(value),
        }
    }

    /// Takes out the rows that have ended by a time, and counts what they added.
    fn close(&mut self, time: EventTime, counted: &mut f64) {
        while let Some(Reverse((end, place))) = self.ends.peek().copied().filter(|Reverse((end, _))| *end <= time) {
            self.ends.pop();
            self.advance(end);
            let Some(row) = self.rows.get(place).copied() else { continue };
            *counted += row.1;
            self.rate.add(-rate_of(row).unwrap_or(0.0));
            self.added.add(-row.1);
        }
        if self.ends.is_empty() {
            (self.rate, self.added, self.time) = (CompensatedSum::default(), CompensatedSum::default(), None);
        }
    }

    /// Returns what open rows have added up to a time, which is no earlier than those before.
    fn part(&mut self, time: EventTime) -> f64 {
        if self.ends.len() > MOST_ROWS_ADDED_UP {
            self.advance(time);
            return self.added.value().max(0.0);
        }
        let mut places: Vec<usize> = self.ends.iter().map(|Reverse((_, place))| *place).collect();
        places.sort_unstable();
        let part = |(span, value): &(RowSpan, f64)| value * (time.seconds_since(span.start) / span.end.seconds_since(span.start));
        places.iter().filter_map(|place| self.rows.get(*place)).map(part).sum()
    }

    /// Adds what open rows add up to a time.
    fn advance(&mut self, time: EventTime) {
        if let Some(before) = self.time.replace(time) {
            self.added.add(self.rate.value() * time.seconds_since(before));
        }
    }
}

/// Returns what a row adds in a second; `None` if it ends where it begins, and adds all at once.
fn rate_of((span, value): (RowSpan, f64)) -> Option<f64> {
    let seconds = span.end.seconds_since(span.start);
    (seconds > 0.0).then(|| value / seconds)
}

/// Time by which the span of an inner row may exceed the outer one, in microseconds: starts and durations are rounded.
const TOLERANCE_MICROS: i64 = 10_000;
/// An outer row has at least this part of what its inner rows have together.
const LEAST_OF_INNER: f64 = 0.98;
/// Number of rows within another one, or of rows with others within, that cannot be chance.
const NESTED_ROWS: usize = 2;
/// Number of rows within another one that has no less than they together, of which readings of a running total have more.
const INNER_OF_AMOUNTS: usize = 3;

/// Returns the row that each row is directly within, if there is one; `None` if some overlap in part only.
pub(super) fn find_outer_rows(rows: &[(RowSpan, f64)]) -> Option<Vec<Option<usize>>> {
    let mut order: Vec<usize> = (0..rows.len()).collect();
    order.sort_by_key(|row| (rows[*row].0.start, Reverse(rows[*row].0.end)));
    let end = |row: usize| rows[row].0.end.micros();
    let length = |row: usize| end(row) - rows[row].0.start.micros();
    let mut outer_rows: Vec<Option<usize>> = vec![None; rows.len()];
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
            outer_rows[row] = Some(outer);
        }
        open.push(row);
    }
    Some(outer_rows)
}

/// Returns how many rows each row has directly within, and what these have together; `None` if some overlap in part only.
fn sums_within(rows: &[(RowSpan, f64)]) -> Option<Vec<(usize, f64)>> {
    let mut inner: Vec<(usize, f64)> = vec![(0, 0.0); rows.len()];
    for (row, outer) in find_outer_rows(rows)?.into_iter().enumerate() {
        let Some(outer) = outer else { continue };
        inner[outer].0 += 1;
        inner[outer].1 += rows[row].1;
    }
    Some(inner)
}

/// Largest difference of what a row has from the sum of the rows within, relative to it, if it is that sum.
const SUM_RATIO: f64 = 0.03;

/// Returns whether several rows have several others within, and each of them has the sum of these. Runs of two boards that work at one
/// time seldom begin and end together, so one such row may be chance.
pub(super) fn have_sums_of_inner(rows: &[(RowSpan, f64)]) -> bool {
    let inner = sums_within(rows).unwrap_or_default();
    let outer: Vec<(f64, usize, f64)> = rows
        .iter()
        .zip(inner)
        .filter(|(_, (count, _))| *count > 0)
        .map(|((_, value), (count, within))| (*value, count, within))
        .collect();
    let is_sum =
        |(value, count, within): &(f64, usize, f64)| *count >= NESTED_ROWS && (value - within).abs() <= SUM_RATIO * within;
    outer.len() >= NESTED_ROWS && outer.iter().all(is_sum)
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

/// Returns how sure it is that rows have others within, and no less than these; `None` if they have not. It may be chance if a single
/// row has a single one within, and rows may be of several boards.
pub(super) fn find_nesting(rows: &[(RowSpan, f64)], is_one_board: bool) -> Option<Certainty> {
    let inner = sums_within(rows).filter(|inner| have_all(rows, inner))?;
    let outer = inner.iter().filter(|(count, _)| *count > 0).count();
    let within = inner.iter().map(|(count, _)| *count).max()?;
    let is_sure = is_one_board || outer.max(within) >= NESTED_ROWS;
    (outer > 0).then_some(if is_sure { Certainty::Sure } else { Certainty::Possible })
}

/// Returns whether values can only be amounts, and no running total: a row has several others within, and no less than these
/// together.
pub(super) fn are_amounts(rows: &[(RowSpan, f64)]) -> bool {
    sums_within(rows).is_some_and(|inner| have_all(rows, &inner) && inner.iter().any(|(count, _)| *count >= INNER_OF_AMOUNTS))
}

/// Returns the value of each row without that of the rows within it, and the number of rows with others within; `None` if there are
/// none, some overlap in part only, or have less than the rows within.
pub(super) fn take_off_inner(rows: &[(RowSpan, f64)]) -> Option<(Vec<f64>, usize)> {
    let inner = sums_within(rows)?;
    let outer = inner.iter().filter(|(count, _)| *count > 0).count();
    let own = rows.iter().zip(&inner).map(|((_, value), (_, within))| (value - within).max(0.0)).collect();
    (outer > 0 && have_all(rows, &inner)).then_some((own, outer))
}

/// Overlap of two rows, relative to the shorter one, that no rounding of times explains.
const UNROUNDED_RATIO: f64 = 0.25;
/// Difference of the power of two rows, relative to the larger one, up to which it is the same.
const SAME_POWER_RATIO: f64 = 0.05;

/// Overlap of rows in time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct PartialOverlap {
    /// The first two rows that overlap.
    pub(super) rows: (usize, usize),
    pub(super) overlap_seconds: f64,
    pub(super) covered_seconds: f64,
    /// Rows have the same power where they overlap, and none is within another.
    pub(super) has_same_power: bool,
}

impl PartialOverlap {
    /// Describes by how long rows overlap: "rows overlap in time, by 33 s of 27 s".
    pub(super) fn describe(&self) -> String {
        let Self { overlap_seconds, covered_seconds, .. } = self;
        format!("rows overlap in time, by {overlap_seconds:.0} s of {covered_seconds:.0} s")
    }
}

/// Returns the overlap of rows in time if some overlap in part only, and by more than the rounding of times explains; `None` beside rows
/// of the same time, which are of several boards, or jobs.
pub(super) fn find_partial_overlap(rows: &[(RowSpan, f64)]) -> Option<PartialOverlap> {
    let mut spans: Vec<RowSpan> = rows.iter().map(|(span, _)| *span).collect();
    spans.sort_by_key(|span| (span.start, span.end));
    let are_close = |a: EventTime, b: EventTime| (a.micros() - b.micros()).abs() <= TOLERANCE_MICROS;
    let is_one_time = |a: RowSpan, b: RowSpan| are_close(a.start, b.start) && are_close(a.end, b.end);
    let has_one_time = spans.windows(2).any(|pair| is_one_time(pair[0], pair[1]));
    if has_one_time || sums_within(rows).is_some() { None } else { find_overlap(rows) }
}

/// Returns the overlap of rows in time, also of rows of the same time, or within others; `None` if the rounding of times explains it.
pub(super) fn find_overlap(rows: &[(RowSpan, f64)]) -> Option<PartialOverlap> {
    let mut order: Vec<usize> = (0..rows.len()).collect();
    order.sort_by_key(|row| (rows[*row].0.start, rows[*row].0.end));
    let seconds = |row: usize| rows[row].0.end.seconds_since(rows[row].0.start);
    let watts = |row: usize| rows[row].1 / seconds(row);
    let (mut first, mut latest): (Option<(usize, usize)>, Option<usize>) = (None, None);
    let mut has_same_power = true;
    for row in order {
        let Some(before) = latest.replace(row) else { continue };
        let (span, above) = (rows[row].0, rows[before].0);
        let overlap = above.end.min(span.end).seconds_since(span.start);
        if overlap >= OVERLAP_SECONDS || overlap > UNROUNDED_RATIO * seconds(before).min(seconds(row)) {
            let (a, b) = (watts(before), watts(row));
            has_same_power &= (a - b).abs() <= SAME_POWER_RATIO * a.max(b);
            first = first.or(Some((before, row)));
        }
        if above.end >= span.end {
            has_same_power = false;
            latest = Some(before);
        }
    }
    let covered = covered_stretches(&rows.iter().map(|(span, _)| *span).collect::<Vec<_>>());
    let covered_seconds: f64 = covered.iter().map(|stretch| stretch.end.seconds_since(stretch.start)).sum();
    // Rows whose times are rounded have pauses between them as often as they overlap.
    let overlap_seconds = (0..rows.len()).map(seconds).sum::<f64>() - covered_seconds;
    let is_rounding = overlap_seconds < OVERLAP_SECONDS || overlap_seconds <= OVERLAP_RATIO * covered_seconds;
    let found = PartialOverlap { rows: first?, overlap_seconds, covered_seconds, has_same_power };
    (!is_rounding).then_some(found)
}

/// Returns the time of each row from the end of the row before on, and the part of its time that this is. Rows must not be within
/// each other, unless they have one start.
pub(super) fn clip_overlaps(rows: &[(RowSpan, f64)]) -> Vec<(RowSpan, f64)> {
    let mut order: Vec<usize> = (0..rows.len()).collect();
    order.sort_by_key(|row| (rows[*row].0.start, rows[*row].0.end));
    let mut clipped: Vec<(RowSpan, f64)> = rows.iter().map(|(span, _)| (*span, 1.0)).collect();
    let mut end_before: Option<EventTime> = None;
    for row in order {
        let RowSpan { start, end } = rows[row].0;
        let from = end_before.map_or(start, |before| before.max(start));
        clipped[row] = (RowSpan { start: from, end }, end.seconds_since(from) / end.seconds_since(start));
        end_before = Some(end);
    }
    clipped
}

/// Least length of the first row of a job, and least distance of the ends of its rows, relative to the difference of their starts, which
/// is of rounding: rows that follow each other differ by that length.
const ENDS_TO_STARTS: i64 = 4;
/// Growth of what is counted since the start of a job, relative to that of the duration, both as logarithms.
const GROWTH_RATIOS: std::ops::RangeInclusive<f64> = 0.5..=2.0;

/// Returns the rows of each job, in order, if their durations and values are both counted since its start: rows of one run and one
/// start, whose values grow as the durations do. Times of rows are given as if they were their ends, and `runs` has the run of each row.
pub(super) fn jobs_since_start(ended: &[(RowSpan, f64)], runs: &[Option<RunId>]) -> Option<Vec<Vec<usize>>> {
    let run = |row: usize| runs.get(row).copied().flatten();
    let mut order: Vec<usize> = (0..ended.len()).collect();
    order.sort_by_key(|row| (run(*row), ended[*row].0.start));
    let is_one_start = |a: usize, b: usize| ended[b].0.start.seconds_since(ended[a].0.start) <= OVERLAP_SECONDS;
    let is_one_job = |a: &usize, b: &usize| run(*a) == run(*b) && is_one_start(*a, *b);
    let mut jobs: Vec<Vec<usize>> = order.chunk_by(is_one_job).map(<[usize]>::to_vec).collect();
    for job in &mut jobs {
        job.sort_by_key(|row| ended[*row].0.end);
    }
    let mut with_several = jobs.iter().filter(|job| job.len() > 1).peekable();
    let grow = |job: &Vec<usize>| grow_since_start(&job.iter().map(|row| ended[*row]).collect::<Vec<_>>());
    (with_several.peek().is_some() && with_several.all(grow)).then_some(jobs)
}

/// Returns whether rows in order of their ends have one start, and values that grow as the time since then does.
fn grow_since_start(rows: &[(RowSpan, f64)]) -> bool {
    let [(first_span, first), .., (last_span, last)] = rows else { return false };
    let starts = || rows.iter().map(|(span, _)| span.start.micros());
    let difference = starts().max().unwrap_or(0) - starts().min().unwrap_or(0);
    let distances = rows.windows(2).map(|pair| pair[1].0.end.micros() - pair[0].0.end.micros());
    let first_length = first_span.end.micros() - first_span.start.micros();
    let shortest = distances.fold(first_length, i64::min);
    let has_one_start = shortest > 0 && ENDS_TO_STARTS * difference <= shortest;
    let seconds = |span: &RowSpan| span.end.seconds_since(span.start);
    let growth = (last / first).ln() / (seconds(last_span) / seconds(first_span)).ln();
    has_one_start && rows.windows(2).all(|pair| pair[1].1 >= pair[0].1) && GROWTH_RATIOS.contains(&growth)
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
            ("one within", vec![row(0.0, 20.0, 5900.0), a], Some(vec![2900.0, 3000.0])),
            ("in part", vec![a, b, row(0.0, 15.0, 5900.0)], None),
            ("of two boards", vec![a, row(0.0, 10.0, 2900.0)], None),
            ("less than its steps", vec![row(0.0, 20.1, 3000.0), a, b], None),
        ] {
            assert_eq!(take_off_inner(&rows).map(|(own, _)| own), own, "{what}");
        }
    }

    #[test]
    fn one_row_within_another_may_be_chance_unless_all_are_of_one_board() {
        let (outer, inner) = (row(0.0, 60.0, 18_000.0), row(40.0, 50.0, 3000.0));
        let (next_outer, next_inner) = (row(60.0, 120.0, 18_000.0), row(100.0, 110.0, 3000.0));
        let (sure, possible) = (Some(Certainty::Sure), Some(Certainty::Possible));
        for (what, rows, unnamed, of_one_board) in [
            ("one within", vec![outer, inner], possible, sure),
            ("one within each", vec![outer, inner, next_outer, next_inner], sure, sure),
            ("two within", vec![outer, inner, row(50.0, 60.0, 3000.0)], sure, sure),
            ("more within", vec![row(0.0, 60.0, 2000.0), inner], None, None),
            ("none within", vec![outer, next_outer], None, None),
        ] {
            assert_eq!((find_nesting(&rows, false), find_nesting(&rows, true)), (unnamed, of_one_board), "{what}");
        }
        let steps = |count: u32| (0..count).map(|step| row(f64::from(step), f64::from(step + 1), 300.0 + f64::from(step)));
        let epoch = |count: u32| steps(count).chain([row(0.0, f64::from(count), 1000.0 * f64::from(count))]).collect::<Vec<_>>();
        assert_eq!((are_amounts(&epoch(2)), are_amounts(&epoch(3))), (false, true));
        let counter: Vec<_> = (1..=4).map(|step| row(f64::from(step - 1), f64::from(step), 300.0 * f64::from(step))).collect();
        assert!(!are_amounts(&[&counter[..], &[row(0.0, 4.5, 1200.0)]].concat()), "a running total");
    }

    #[test]
    fn rows_that_have_the_sum_of_those_within_are_several() {
        let parent = |start: f64, ratio: f64, count: u32| {
            let inner =
                (0..count).map(move |at| row(start + 1.0 + 60.0 * f64::from(at), start + 58.0 + 60.0 * f64::from(at), 18e3));
            inner.chain([row(start, start + 60.0 * f64::from(count), ratio * 18e3 * f64::from(count))]).collect::<Vec<_>>()
        };
        for (what, rows, are_sums) in [
            ("two parents", [parent(0.0, 1.0, 2), parent(500.0, 1.01, 3)].concat(), true),
            ("one", parent(0.0, 1.0, 5), false),
            ("a child each", [parent(0.0, 1.0, 1), parent(500.0, 1.0, 1)].concat(), false),
            ("with more of their own", [parent(0.0, 1.0, 2), parent(500.0, 1.3, 3)].concat(), false),
            ("in part", [parent(0.0, 1.0, 2), parent(500.0, 1.0, 2), vec![row(90.0, 200.0, 9e3)]].concat(), false),
        ] {
            assert_eq!(have_sums_of_inner(&rows), are_sums, "{what}");
        }
    }

    #[test]
    fn an_overlap_in_part_is_distinguished_from_rounding() {
        let windows = |count: u32, every: f64, seconds: f64, watts: fn(u32) -> f64| {
            let window = |at: u32| {
                let start = every * f64::from(at);
                row(start, start + seconds, watts(at) * seconds)
            };
            (0..count).map(window).collect::<Vec<_>>()
        };
        let same = |_| 300.0;
        let in_turn = |at: u32| [300.0, 250.0][at as usize % 2];
        let rounded: Vec<_> = (0..40)
            .map(|at| {
                let start = (10.4 * f64::from(at)).floor();
                row(start, start + 10.4, 3000.0)
            })
            .collect();
        for (what, rows, found) in [
            ("same power", windows(12, 10.0, 12.0, same), Some((22.0, 122.0, true))),
            ("another power", windows(12, 10.0, 12.0, in_turn), Some((22.0, 122.0, false))),
            ("short windows", windows(21, 0.5, 1.0, same), Some((10.0, 11.0, true))),
            ("rounded", rounded, None),
            ("a little", windows(12, 10.0, 10.1, same), None),
            ("one after the other", windows(12, 10.0, 10.0, in_turn), None),
            ("of two boards", [windows(4, 10.0, 12.0, same), windows(4, 10.0, 12.0, same)].concat(), None),
            ("within each other", vec![row(0.0, 60.0, 18_000.0), row(40.0, 50.0, 3000.0)], None),
        ] {
            let overlap = find_partial_overlap(&rows);
            let figures = overlap.map(|it| (it.overlap_seconds.round(), it.covered_seconds.round(), it.has_same_power));
            assert_eq!(figures, found, "{what}");
        }
        let rows = windows(12, 10.0, 12.0, same);
        let once: f64 = clip_overlaps(&rows).iter().zip(&rows).map(|((_, part), (_, joules))| part * joules).sum();
        assert!((once - 36_600.0).abs() < 1e-6, "{once}");
        let of_one_start = [row(0.0, 20.0, 6000.0), row(0.0, 10.0, 3000.0), row(15.0, 30.0, 4500.0)];
        let parts: Vec<f64> = clip_overlaps(&of_one_start).iter().map(|(_, part)| *part).collect();
        assert_eq!((find_partial_overlap(&of_one_start).map(|it| it.has_same_power), &parts[..2]), (Some(true), &[0.5, 1.0][..]));
        assert!((parts[2] - 2.0 / 3.0).abs() < 1e-9, "{parts:?}");
    }

    #[test]
    fn rows_of_one_start_that_grow_with_the_time_since_it_are_of_one_job() {
        let job = |start: f64, joules: &[f64]| {
            let flush = |(at, joules): (u32, &f64)| row(start, start + 60.0 * f64::from(at), *joules);
            (1..).zip(joules).map(flush).collect::<Vec<_>>()
        };
        let since_start = [18e3, 36e3, 54e3, 72e3];
        for (what, rows, jobs) in [
            ("a run", job(0.0, &since_start), Some(vec![4])),
            ("two runs", [job(0.0, &since_start[..2]), job(3600.0, &since_start[..2])].concat(), Some(vec![2, 2])),
            ("one of a single row", [job(0.0, &since_start[..1]), job(3600.0, &since_start)].concat(), Some(vec![1, 4])),
            ("runs of a row each", [job(0.0, &since_start[..1]), job(3600.0, &since_start[..1])].concat(), None),
            ("what each row adds", job(0.0, &[18e3, 18.1e3, 18.2e3, 18.3e3]), None),
            ("a counter of the driver", job(0.0, &[5.018e6, 5.036e6, 5.054e6]), None),
            ("a counter since the first row", job(0.0, &[0.0, 18e3, 36e3]), None),
            ("a warm-up, and a total", vec![row(0.0, 1.0, 300.0), row(1.0, 101.0, 30.3e3), row(101.0, 201.0, 60.3e3)], None),
            ("a warm-up, and what rows add", vec![row(0.0, 2.0, 600.0), row(2.0, 102.0, 30e3), row(102.0, 202.0, 30e3)], None),
            ("starts in whole seconds", vec![row(0.0, 15.0, 4.5e3), row(1.0, 30.0, 9e3), row(0.0, 45.0, 13.5e3)], Some(vec![3])),
            ("rows a second apart", (0..9).map(|at| row(f64::from(at), f64::from(at + 1), f64::from(at + 1))).collect(), None),
        ] {
            let found = jobs_since_start(&rows, &[]).map(|jobs| jobs.iter().map(Vec::len).collect::<Vec<_>>());
            assert_eq!(found, jobs, "{what}");
        }
        let lengths = |runs: [RunId; 4]| {
            let found = jobs_since_start(&job(0.0, &since_start), &runs.map(Some));
            found.map(|jobs| jobs.iter().map(Vec::len).collect::<Vec<_>>())
        };
        for (what, runs, jobs) in [
            ("one run", [0, 0, 0, 0], Some(vec![4])),
            ("two runs at one time", [0, 1, 0, 1], Some(vec![2, 2])),
            ("runs of a row each", [0, 1, 2, 3], None),
        ] {
            assert_eq!(lengths(runs), jobs, "{what}");
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
    fn many_rows_of_one_time_add_up_as_few_do() {
        let rows: Vec<_> =
            (1..=100_u32).map(|at| row(0.0, f64::from(at), f64::from(10 + at % 7))).chain([row(50.0, 50.0, 3.0)]).collect();
        let begin = EventTime::from_seconds(1.7e9);
        let points = counter_points(&rows);
        for (time, total) in &points {
            let second = time.seconds_since(begin);
            let part = |at: u32| f64::from(10 + at % 7) * (second / f64::from(at)).min(1.0);
            let expected = (1..=100).map(part).sum::<f64>() + if second > 50.0 { 3.0 } else { 0.0 };
            // What a row without a length adds counts at the next point.
            assert!((total - expected).abs() < 1e-6, "{second}: {total} instead of {expected}");
        }
        assert_eq!((points.len(), points.is_sorted_by(|a, b| a.1 <= b.1)), (101, true));
        let whole = rows.iter().map(|(_, value)| value).sum::<f64>();
        assert!(points.last().is_some_and(|(_, total)| (total - whole).abs() < 1e-9), "{points:?}");
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
        for (name, is_run) in [
            ("run_id", true),
            ("RunID", true),
            ("trial", true),
            ("request_number", true),
            ("project_name", true),
            ("run_time", false),
            ("requests", false),
            ("request_tokens", false),
            ("id", false),
        ] {
            assert_eq!(names_a_run(name), is_run, "{name}");
        }
        let runs = |names: &[&str]| find_run_columns(&names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
        assert_eq!(runs(&["number", "value", "datetime_start", "datetime_complete"]), [0], "trials of Optuna");
        assert_eq!(runs(&["number", "start_time", "run_id"]), [2]);
        assert_eq!(find(&["datetime_complete", "datetime_start"]), Some((RowMoment::End, Some(1), None, 1.0)));
        let parents = ["tags.mlflow.parentRunId", "parent_job", "parent", "run_id"].map(names_a_parent);
        assert_eq!(parents, [true, true, false, false]);
    }
}
