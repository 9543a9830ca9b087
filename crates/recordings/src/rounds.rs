//! Finds columns that name boards by their values and not by their names: each value comes once in each round of sampling.

use std::collections::{BTreeSet, HashMap};

use eadt_schemas::EventTime;

use crate::median::upper_median;
use crate::quantity::is_quantity;
use crate::units::word_places;

/// Rows of such a column that are looked at, of all sources, and its values.
pub(crate) const MOST_ROWS_OF_TEXTS: usize = 50_000;
pub(crate) const MOST_TEXTS: usize = 256;
/// Boards that it names, at most.
const MOST_BOARDS_OF_TEXTS: usize = 64;
/// It names boards if so many rounds have each of its values once, and nearly all rows are of such a round.
const FEWEST_ROUNDS: usize = 5;
const FEWEST_ROUNDS_OF_NUMBERS: usize = 8;
/// Boards are read in turn within one step of sampling. Hours of a day and phases of a job take turns more slowly.
const LONGEST_ROUND_SECONDS: f64 = 900.0;
/// Fewer rounds of numbers, or more numbers, in a column with an unknown name may come from the job's own phases.
const FEWEST_ROUNDS_OF_UNNAMED_NUMBERS: usize = 20;
const MOST_UNNAMED_NUMBERS: usize = 16;
/// The least difference between the mean powers of two boards, as a share of the greater one, that shows two levels.
const LEAST_LEVEL_DIFFERENCE: f64 = 0.05;

/// Fewer rows in turn, and a smaller mean difference from row to row as a part of their mean, may be what a job does.
const FEWEST_ROWS_IN_TURN: usize = 40;
const LEAST_CHANGE_IN_TURN: f64 = 0.05;
/// Squares of changes to the row after the next, as a part of those to the next row: at most, and if times show turns, too.
const MOST_TO_OWN_ROW: f64 = 0.05;
const MOST_TO_OWN_ROW_IN_TIME: f64 = 0.25;
/// Percentage of the rows that must have power, and a time of their own.
const PERCENT_WITH_POWER: usize = 95;
/// Part of the rows from which power goes back in the direction that it came from.
const LEAST_TURNING_BACK: f64 = 0.9;
/// Variance of every second interval, as a part of that of all, and the least difference of both as a part of their mean.
const MOST_VARIANCE_OF_INTERVALS: f64 = 0.05;
const LEAST_INTERVAL_DIFFERENCE: f64 = 0.1;
/// A row that comes after more usual intervals need not be of the other board.
const MOST_USUAL_INTERVALS: f64 = 1.5;
/// Times of a board's rows show whose a row is over no more rounds, and if it is so many times as near to those of one board.
const MOST_ROUNDS_APART: f64 = 5.0;
const TIMES_AS_NEAR: f64 = 3.0;
/// Rounds before and after a hole whose power shows which of two boards draws more.
const ROUNDS_OF_A_LEVEL: usize = 5;

/// Words in the names of columns that hold a state, another reading or a time, whatever their values are.
const STATE_COLUMN_WORDS: [&str; 86] = [
    "action",
    "batch",
    "benchmark",
    "bottleneck",
    "cap",
    "capped",
    "case",
    "clk",
    "clock",
    "clocks",
    "comment",
    "config",
    "current",
    "day",
    "dtype",
    "enabled",
    "epoch",
    "event",
    "experiment",
    "fan",
    "flag",
    "flags",
    "freq",
    "frequency",
    "governor",
    "health",
    "hour",
    "iteration",
    "job",
    "kernel",
    "kind",
    "label",
    "level",
    "limit",
    "limiter",
    "load",
    "loss",
    "memory",
    "message",
    "minute",
    "mode",
    "month",
    "note",
    "op",
    "operation",
    "pct",
    "percent",
    "perf",
    "perfcap",
    "performance",
    "phase",
    "power",
    "precision",
    "process",
    "profile",
    "pstate",
    "quality",
    "reason",
    "reasons",
    "run",
    "scenario",
    "second",
    "speed",
    "split",
    "stage",
    "state",
    "states",
    "status",
    "step",
    "task",
    "temp",
    "temperature",
    "test",
    "throttle",
    "throttled",
    "unit",
    "units",
    "usage",
    "util",
    "utilization",
    "voltage",
    "week",
    "weekday",
    "workload",
    "year",
    "zone",
];
/// Words in the names of columns of what a job does, step by step, and names that are these as a whole.
const STEP_WORDS: [&str; 19] = [
    "accum",
    "bs",
    "concurrency",
    "idx",
    "iter",
    "layer",
    "mb",
    "micro",
    "microbatch",
    "min",
    "minibatch",
    "parity",
    "pos",
    "qps",
    "sec",
    "seconds",
    "seq",
    "size",
    "threads",
];
const STEP_NAMES: [&str; 8] = ["hh", "i", "it", "mm", "n", "nr", "s", "ss"];
/// Words of states. A text of nothing but these names no board.
const STATE_WORDS: [&str; 71] = [
    "active",
    "alert",
    "bad",
    "begin",
    "boost",
    "busy",
    "bwd",
    "cap",
    "compute",
    "cooldown",
    "critical",
    "decode",
    "default",
    "degraded",
    "disabled",
    "down",
    "enabled",
    "end",
    "error",
    "eval",
    "evaluation",
    "even",
    "fail",
    "failed",
    "false",
    "fault",
    "forward",
    "backward",
    "fwd",
    "good",
    "high",
    "hw",
    "idle",
    "inference",
    "low",
    "max",
    "measure",
    "min",
    "n",
    "no",
    "none",
    "normal",
    "not",
    "odd",
    "off",
    "offline",
    "ok",
    "on",
    "online",
    "pass",
    "pause",
    "phase",
    "power",
    "prefill",
    "running",
    "slowdown",
    "start",
    "state",
    "step",
    "stop",
    "sw",
    "thermal",
    "throttle",
    "throttled",
    "train",
    "training",
    "true",
    "validation",
    "warn",
    "warning",
    "yes",
];

/// Returns whether the name of a column is one of a state, another reading or a time, so that its values are none of boards.
pub(crate) fn names_a_state(name: &str) -> bool {
    word_places(name).into_iter().any(|place| STATE_COLUMN_WORDS.contains(&name[place].to_ascii_lowercase().as_str()))
}

/// Returns whether the name of a column is one of what a job does, step by step, or of a part of the time.
pub(crate) fn names_a_step(name: &str) -> bool {
    let has = |list: &[&str], text: &str| list.iter().any(|word| text.eq_ignore_ascii_case(word));
    has(&STEP_NAMES, name.trim()) || word_places(name).into_iter().any(|place| has(&STEP_WORDS, &name[place]))
}

/// Returns whether a text may name a board in a column whose name does not show it. It is a small whole number, or a text that is
/// neither a quantity nor a state (`P0`, `idle`, the bits of a reason).
pub(crate) fn may_name_board(text: &str) -> bool {
    let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if text.parse::<f64>().is_ok() {
        let whole = text.strip_suffix(".0").unwrap_or(text);
        return is_digits(whole) && whole.len() <= 2;
    }
    let is_performance_state = text.strip_prefix(['P', 'p']).is_some_and(|number| is_digits(number) && number.len() <= 2);
    let is_of_bits = text.starts_with("0x") || text.starts_with("0X");
    let places = word_places(text);
    let mut words = places.into_iter().map(|place| text[place].to_ascii_lowercase()).filter(|word| !is_digits(word));
    let is_state = words.all(|word| STATE_WORDS.contains(&word.as_str()));
    let is_text = text.contains(char::is_alphabetic);
    let is_other = is_performance_state || is_of_bits || is_state && is_text || is_quantity(text);
    !is_other
}

/// The time, the line and the value of a row.
type ValueRow = (EventTime, u64, u16);

/// Returns the line of the first row of a second value, and the number of values. Nearly all rows must be of rounds in which each
/// value comes once, one round a step of sampling. The power of two values must have different levels.
///
/// A state may change as often, but by turns only by chance. Numbers must come in the same order in each round.
pub(crate) fn find_rounds(rows: &[ValueRow], watts: &HashMap<u64, f64>, is_numbers: bool) -> Option<(u64, usize)> {
    let rows = rows_with_power(rows, watts);
    let fewest = if is_numbers { FEWEST_ROUNDS_OF_NUMBERS } else { FEWEST_ROUNDS };
    let rounds = whole_rounds(&rows, fewest, is_numbers)?;
    let (low, high) = find_levels(&rounds, watts)?;
    let higher = rounds.iter().filter(|round| watts_in(round, high, watts) > watts_in(round, low, watts)).count();
    let line = first_line_of_another(&rows).filter(|_| higher * 5 >= rounds.len() * 4)?;
    Some((line, rounds[0].len()))
}

/// Like [`find_rounds`], for a column whose name shows nothing. The levels of both halves of the rounds must be equal, and
/// numbers must be no times. `numbers` has the number of each value; `None` if the values are texts.
pub(crate) fn find_unnamed_rounds(rows: &[ValueRow], watts: &HashMap<u64, f64>, numbers: Option<&[i64]>) -> Option<(u64, usize)> {
    let rows = rows_with_power(rows, watts);
    let fewest = if numbers.is_some() { FEWEST_ROUNDS_OF_UNNAMED_NUMBERS } else { FEWEST_ROUNDS };
    let rounds = whole_rounds(&rows, fewest, numbers.is_some())?;
    let boards = rounds[0].len();
    let is_of_job = |numbers: &[i64]| boards > MOST_UNNAMED_NUMBERS || is_part_of_time(&rows, numbers, boards);
    if numbers.is_some_and(is_of_job) {
        return None;
    }
    let (first, second) = rounds.split_at(rounds.len() / 2);
    let (low, high) = find_levels(first, watts)?;
    let is_level = |round: &&&[ValueRow]| {
        let (low, high) = (watts_in(round, low, watts), watts_in(round, high, watts));
        high > low && high - low >= LEAST_LEVEL_DIFFERENCE * high
    };
    let holds = second.iter().filter(is_level).count();
    let line = first_line_of_another(&rows).filter(|_| holds * 12 >= second.len() * 10)?;
    Some((line, boards))
}

/// The time of a row, and its power in watts, if it has one.
pub(crate) type PowerRow = (EventTime, Option<f64>);

/// Rows of two boards that are read in turn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct BoardTurns {
    /// Median time in which both are read once.
    round_seconds: f64,
    /// One draws more than the other over the whole record.
    has_levels: bool,
}

/// Returns how rows are readings of two boards in turn, by their power: it is near that of the row before the last one, and far
/// from that of the last, over the whole record. If the intervals are in turn, too, a smaller difference shows it. `None` if they are
/// not. Few rows may lack power, or have the time of another one.
///
/// Phases of a job that last two rows or more are none. More boards in turn look like a load with a period.
pub(crate) fn find_board_turns(all: &[PowerRow]) -> Option<BoardTurns> {
    let mut rows = all.to_vec();
    rows.sort_by_key(|row| row.0);
    rows.dedup_by(|later, first| {
        let is_same = later.0 == first.0;
        if is_same {
            first.1 = first.1.or(later.1);
        }
        is_same
    });
    let with_power = rows.iter().filter(|(_, watts)| watts.is_some()).count();
    if rows.len() < FEWEST_ROWS_IN_TURN || with_power * 100 < all.len() * PERCENT_WITH_POWER {
        return None;
    }
    let intervals: Vec<f64> = rows.windows(2).map(|pair| pair[1].0.seconds_since(pair[0].0)).collect();
    let watts: Vec<Option<f64>> = rows.iter().map(|(_, watts)| *watts).collect();
    let (first, second) = watts.split_at(watts.len() / 2);
    let has_levels = are_levels_in_turn(first) && are_levels_in_turn(second);
    let is_in_turn = has_levels || are_intervals_in_turn(&intervals) && change_to_own_row(&watts) <= MOST_TO_OWN_ROW_IN_TIME;
    let round_seconds = upper_median(intervals.windows(2).map(|pair| pair[0] + pair[1]))?;
    (round_seconds <= LONGEST_ROUND_SECONDS && is_in_turn).then_some(BoardTurns { round_seconds, has_levels })
}

/// Assigns rows in order of time to two boards, 0 or 1, which take turns. Returns the place of a row as an error if rows are absent
/// before it, and neither its time nor its power shows whose it is.
pub(crate) fn assign_turns(rows: &[PowerRow], turns: BoardTurns) -> Result<Vec<usize>, usize> {
    let mut boards: Vec<usize> = Vec::with_capacity(rows.len());
    for (place, row) in rows.iter().enumerate() {
        let next = match (place.checked_sub(1).map(|before| rows[before]), boards.last()) {
            (Some(before), Some(board)) if *row == before => *board,
            (Some(before), Some(board)) if turns.is_next(before, *row) => 1 - board,
            (Some(_), Some(_)) => turns.board_after_hole(rows, &boards).ok_or(place)?,
            _ => 0,
        };
        boards.push(next);
    }
    Ok(boards)
}

impl BoardTurns {
    fn is_next(self, before: PowerRow, row: PowerRow) -> bool {
        row.0.seconds_since(before.0) <= MOST_USUAL_INTERVALS * self.round_seconds / 2.0
    }

    /// Returns the board of the first row that has none, if power or times show it. A logger may be late, so power comes first.
    fn board_after_hole(self, rows: &[PowerRow], boards: &[usize]) -> Option<usize> {
        self.board_by_level(rows, boards).or_else(|| self.board_by_time(rows, boards))
    }

    /// Returns the board that is read at the time of a row, if whole rounds lie between it and the last row of that board.
    fn board_by_time(self, rows: &[PowerRow], boards: &[usize]) -> Option<usize> {
        let away = |board: usize| {
            let last = boards.iter().rposition(|other| *other == board)?;
            let rounds = rows.get(boards.len())?.0.seconds_since(rows[last].0) / self.round_seconds;
            (rounds <= MOST_ROUNDS_APART).then_some((rounds - rounds.round()).abs())
        };
        let away = [away(0)?, away(1)?];
        [0, 1].into_iter().find(|board| away[*board] * TIMES_AS_NEAR <= away[1 - board])
    }

    /// Returns the board of a row, if one of the boards draws more, in the rows before it as in those from it on.
    fn board_by_level(self, rows: &[PowerRow], boards: &[usize]) -> Option<usize> {
        let (before, after) = rows.split_at(boards.len());
        let of_board = |board: usize| {
            let own = boards.iter().zip(before).rev().filter(move |(other, _)| **other == board);
            own.filter_map(|(_, (_, watts))| *watts).take(ROUNDS_OF_A_LEVEL).collect::<Vec<f64>>()
        };
        let next = after.windows(2).take(2 * ROUNDS_OF_A_LEVEL - 1).take_while(|pair| self.is_next(pair[0], pair[1])).count();
        let from =
            |place: usize| after.iter().take(next + 1).skip(place).step_by(2).filter_map(|row| row.1).collect::<Vec<f64>>();
        let is_more = |a: Vec<f64>, b: Vec<f64>| {
            let is_known = self.has_levels && !a.is_empty() && !b.is_empty();
            let (a, b) = (mean_of(a.into_iter()), mean_of(b.into_iter()));
            (is_known && (a - b).abs() >= LEAST_CHANGE_IN_TURN * a.max(b)).then_some(a > b)
        };
        Some(usize::from(is_more(of_board(0), of_board(1))? != is_more(from(0), from(1))?))
    }
}

/// Returns the mean of values, 0 of none.
fn mean_of(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
    if count > 0.0 { sum / count } else { 0.0 }
}

/// Returns the changes to the row that is so many rows later, where both have power.
fn changes_over(watts: &[Option<f64>], rows: usize) -> impl Iterator<Item = f64> {
    watts.iter().zip(watts.iter().skip(rows)).filter_map(|(from, to)| Some((*to)? - (*from)?))
}

/// Returns the squares of changes to the row after the next, as a part of those to the next row; 1 if there are none.
fn change_to_own_row(watts: &[Option<f64>]) -> f64 {
    let squares = |rows: usize| mean_of(changes_over(watts, rows).map(|change| change.powi(2)));
    let to_next = squares(1);
    if to_next > 0.0 { squares(2) / to_next } else { 1.0 }
}

fn are_levels_in_turn(watts: &[Option<f64>]) -> bool {
    let change = mean_of(changes_over(watts, 1).map(f64::abs));
    let turns_back = |window: &[Option<f64>]| Some((window[1]? - window[0]?) * (window[2]? - window[1]?) < 0.0);
    let turns: Vec<bool> = watts.windows(3).filter_map(turns_back).collect();
    let turning_back = turns.iter().filter(|is_back| **is_back).count();
    change_to_own_row(watts) <= MOST_TO_OWN_ROW
        && change >= LEAST_CHANGE_IN_TURN * mean_of(watts.iter().copied().flatten())
        && turning_back as f64 >= LEAST_TURNING_BACK * turns.len() as f64
}

/// Returns whether every second interval is the same, and another one than those between.
fn are_intervals_in_turn(seconds: &[f64]) -> bool {
    let every_second = |first: usize| -> Vec<f64> { seconds.iter().skip(first).step_by(2).copied().collect() };
    let variance = |values: &[f64]| {
        let mean = mean_of(values.iter().copied());
        mean_of(values.iter().map(|value| (value - mean).powi(2)))
    };
    let (even, odd) = (every_second(0), every_second(1));
    let within = f64::midpoint(variance(&even), variance(&odd));
    let difference = (mean_of(even.iter().copied()) - mean_of(odd.iter().copied())).abs();
    within <= MOST_VARIANCE_OF_INTERVALS * variance(seconds)
        && difference >= LEAST_INTERVAL_DIFFERENCE * mean_of(seconds.iter().copied())
}

/// Returns the rows that have power, in order of time.
fn rows_with_power(rows: &[ValueRow], watts: &HashMap<u64, f64>) -> Vec<ValueRow> {
    let mut rows: Vec<ValueRow> = rows.iter().copied().filter(|(_, line, _)| watts.contains_key(line)).collect();
    rows.sort_unstable();
    rows
}

/// Returns the rounds in which each value comes once, if nearly all rows are of one of so many at least, none lasts long, and numbers
/// come in one order.
fn whole_rounds(rows: &[ValueRow], fewest: usize, is_numbers: bool) -> Option<Vec<&[ValueRow]>> {
    let values: BTreeSet<u16> = rows.iter().map(|(_, _, value)| *value).collect();
    let boards = values.len();
    if !(2..=MOST_BOARDS_OF_TEXTS).contains(&boards) || rows.len() < fewest * boards {
        return None;
    }
    let mut rounds: Vec<&[ValueRow]> = Vec::new();
    let mut start = 0;
    for end in 1..=rows.len() {
        if rows.get(end).is_none_or(|(_, _, value)| rows[start..end].iter().any(|(_, _, other)| other == value)) {
            rounds.push(&rows[start..end]);
            start = end;
        }
    }
    rounds.retain(|round| round.len() == boards);
    if rounds.len() < fewest || rounds.len() * boards * 10 < rows.len() * 9 {
        return None;
    }
    let has_one_order = rounds.iter().all(|round| round.iter().map(|row| row.2).eq(rounds[0].iter().map(|row| row.2)));
    let mut periods: Vec<f64> = rounds.windows(2).map(|pair| pair[1][0].0.seconds_since(pair[0][0].0)).collect();
    periods.sort_by(f64::total_cmp);
    let is_right = (!is_numbers || has_one_order) && periods[periods.len() / 2] <= LONGEST_ROUND_SECONDS;
    is_right.then_some(rounds)
}

/// Returns the power of a value in a round.
fn watts_in(round: &[ValueRow], value: u16, watts: &HashMap<u64, f64>) -> f64 {
    round.iter().find(|row| row.2 == value).and_then(|row| watts.get(&row.1)).copied().unwrap_or(0.0)
}

/// Returns the values of the lowest and of the highest mean power, if these are different levels.
fn find_levels(rounds: &[&[ValueRow]], watts: &HashMap<u64, f64>) -> Option<(u16, u16)> {
    let mean = |value: u16| rounds.iter().map(|round| watts_in(round, value, watts)).sum::<f64>() / rounds.len() as f64;
    let means: Vec<(u16, f64)> = rounds.first()?.iter().map(|row| (row.2, mean(row.2))).collect();
    let (low, least) = *means.iter().min_by(|a, b| a.1.total_cmp(&b.1))?;
    let (high, greatest) = *means.iter().max_by(|a, b| a.1.total_cmp(&b.1))?;
    (greatest - least >= LEAST_LEVEL_DIFFERENCE * greatest).then_some((low, high))
}

/// Returns the line of the first row of another value than that of the first line.
fn first_line_of_another(rows: &[ValueRow]) -> Option<u64> {
    let first = rows.iter().min_by_key(|(_, line, _)| *line)?.2;
    rows.iter().filter(|(_, _, value)| *value != first).map(|(_, line, _)| *line).min()
}

/// Seconds, minutes and hours: how many seconds one has, and how many there are.
const PARTS_OF_TIME: [(i64, i64); 3] = [(1, 60), (60, 60), (3600, 24)];

/// Returns whether nearly all numbers are the second, the minute or the hour of their row, or what is left of it, divided by the
/// number of values.
fn is_part_of_time(rows: &[ValueRow], numbers: &[i64], boards: usize) -> bool {
    PARTS_OF_TIME.into_iter().any(|(seconds, most)| {
        let follows = |row: &&ValueRow| {
            let part = row.0.micros().div_euclid(1_000_000 * seconds).rem_euclid(most);
            let number = numbers[usize::from(row.2)];
            number == part || number == part % boards as i64
        };
        rows.iter().filter(follows).count() * 10 >= rows.len() * 9
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_may_name_boards_and_states_do_not() {
        for (text, may) in [
            ("card0", true),
            ("0000:17:00.0", true),
            ("left", true),
            ("0", true),
            ("7.0", true),
            ("power-node1", true),
            ("P0", false),
            ("P12", false),
            ("0x0000000000000004", false),
            ("idle", false),
            ("Not Active", false),
            ("SW Power Cap", false),
            ("train", false),
            ("phase 2", false),
            ("warn", false),
            ("45 C", false),
            ("0.5", false),
            ("1410", false),
            ("-3", false),
        ] {
            assert_eq!(may_name_board(text), may, "{text}");
        }
    }

    /// Name of the case, the value of a row, its time in seconds and its watts, whether values are numbers, and the boards
    /// found.
    type Rounds<'a> = (&'a str, fn(u32) -> u32, fn(u32) -> f64, fn(u32) -> f64, bool, Option<usize>);

    #[test]
    fn boards_are_known_by_their_rounds_and_levels() {
        let half: fn(u32) -> f64 = |row| f64::from(row) * 0.5;
        let two: fn(u32) -> u32 = |row| row % 2;
        let levels: fn(u32) -> f64 = |row| if row % 2 == 0 { 300.0 } else { 100.0 };
        let cases: [Rounds<'_>; 10] = [
            ("two boards", two, half, levels, false, Some(2)),
            ("two boards by their numbers", two, half, levels, true, Some(2)),
            (
                "four boards in any order",
                |row| (row % 4) ^ (row / 4 % 4),
                half,
                |row| [300.0, 310.0, 290.0, 100.0][((row % 4) ^ (row / 4 % 4)) as usize],
                false,
                Some(4),
            ),
            (
                "numbers in any order",
                |row| (row % 4) ^ (row / 4 % 4),
                half,
                |row| [300.0, 310.0, 290.0, 100.0][((row % 4) ^ (row / 4 % 4)) as usize],
                true,
                None,
            ),
            ("both ramp up", two, half, |row| f64::from(row) * 10.0 + if row % 2 == 0 { 200.0 } else { 100.0 }, false, Some(2)),
            ("one level", two, half, |row| 300.0 + f64::from(row * 7 % 5), false, None),
            ("a state that lasts", |row| row / 5 % 2, half, |row| if row / 5 % 2 == 0 { 300.0 } else { 100.0 }, false, None),
            (
                "a state that comes and goes",
                |row| row * row * 7 % 31 % 2,
                half,
                |row| f64::from(row * row * 7 % 31 % 2) * 200.0 + 100.0,
                false,
                None,
            ),
            (
                "hours of a day",
                |row| row % 24,
                |row| f64::from(row) * 3600.0,
                |row| f64::from(row % 24) * 10.0 + 100.0,
                true,
                None,
            ),
            ("one board", |_| 0, half, levels, false, None),
        ];
        for (what, value, time, watts, is_numbers, expected) in cases {
            let line = |row: u32| u64::from(row) + 2;
            let row = |row: u32| (EventTime::from_seconds(time(row)), line(row), value(row) as u16);
            let rows: Vec<(EventTime, u64, u16)> = (0..240).map(row).collect();
            let watts: HashMap<u64, f64> = (0..240).map(|row| (line(row), watts(row))).collect();
            assert_eq!(find_rounds(&rows, &watts, is_numbers).map(|(_, boards)| boards), expected, "{what}");
        }
    }

    #[test]
    fn a_column_of_unknown_name_keeps_its_levels_and_is_none_of_the_time() {
        let third: fn(u32) -> f64 = |row| f64::from(row) / 3.0;
        let levels: fn(u32) -> f64 = |row| 300.0 - f64::from(row % 3) * 60.0;
        let cases: [Rounds<'_>; 7] = [
            ("three boards", |row| row % 3, third, levels, false, Some(3)),
            ("three boards by their numbers", |row| row % 3, third, levels, true, Some(3)),
            (
                "levels of the first half only",
                |row| row % 3,
                third,
                |row| if row < 120 { 300.0 - f64::from(row % 3) * 60.0 } else { 300.0 },
                false,
                None,
            ),
            ("too many numbers", |row| row % 20, third, |row| 100.0 + f64::from(row % 20) * 10.0, true, None),
            ("too few rounds of numbers", |row| row % 15, third, |row| 100.0 + f64::from(row % 15) * 10.0, true, None),
            ("seconds", |row| row % 12, f64::from, |row| 100.0 + f64::from(row % 12) * 10.0, true, None),
            ("minutes", |row| row % 5, |row| f64::from(row) * 60.0, |row| 100.0 + f64::from(row % 5) * 10.0, true, None),
        ];
        for (what, value, time, watts, is_numbers, expected) in cases {
            let line = |row: u32| u64::from(row) + 2;
            let row = |row: u32| (EventTime::from_seconds(time(row)), line(row), value(row) as u16);
            let rows: Vec<ValueRow> = (0..240).map(row).collect();
            let watts: HashMap<u64, f64> = (0..240).map(|row| (line(row), watts(row))).collect();
            let numbers: Vec<i64> = (0..64).collect();
            let found = find_unnamed_rounds(&rows, &watts, Some(numbers.as_slice()).filter(|_| is_numbers));
            assert_eq!(found.map(|(_, boards)| boards), expected, "{what}");
        }
    }

    /// Name of the case, the time of a row in seconds, its watts, and whether two boards are found.
    type Turns<'a> = (&'a str, fn(u32) -> f64, &'a dyn Fn(u32) -> f64, bool);

    #[test]
    fn two_boards_in_turn_are_known_by_power_and_times() {
        let noise = |row: u32| f64::from(row * 37 % 13);
        let even: fn(u32) -> f64 = |row| f64::from(row) * 0.5;
        let uneven: fn(u32) -> f64 = |row| f64::from(row / 2) + f64::from(row % 2) * 0.4;
        let wave = |row: u32, rows: f64| 80.0 * (f64::from(row / 2) / rows * std::f64::consts::TAU).sin();
        let cases: [Turns<'_>; 11] = [
            ("two levels", even, &|row| [300.0, 100.0][(row % 2) as usize] + noise(row / 2), true),
            ("both ramp up", even, &|row| [300.0, 100.0][(row % 2) as usize] + f64::from(row), true),
            ("one level, uneven times", uneven, &|row| 300.0 + wave(row, [13.0, 14.0][(row % 2) as usize]), true),
            ("one level, even times", even, &|row| 300.0 + wave(row, [13.0, 14.0][(row % 2) as usize]), false),
            ("phases of two rows", even, &|row| [300.0, 100.0][(row / 2 % 2) as usize] + noise(row), false),
            ("phases of five rows", even, &|row| [300.0, 100.0][(row / 5 % 2) as usize], false),
            ("a smooth load, uneven times", uneven, &|row| 300.0 + wave(row, 20.0), false),
            ("noise, uneven times", uneven, &|row| 300.0 + noise(row), false),
            ("an idle board that changes by a watt", even, &|row| [100.0, 101.0][(row % 2) as usize], false),
            ("a constant load", even, &|_| 300.0, false),
            (
                "two levels a quarter of an hour apart",
                |row| f64::from(row) * 900.0,
                &|row| [300.0, 100.0][(row % 2) as usize],
                false,
            ),
        ];
        for (what, time, watts, expected) in cases {
            let rows: Vec<PowerRow> = (0..240).map(|row| (EventTime::from_seconds(time(row)), Some(watts(row)))).collect();
            assert_eq!(find_board_turns(&rows).is_some(), expected, "{what}");
            let mut blank = rows.clone();
            blank[101].1 = None;
            assert_eq!(find_board_turns(&blank).is_some(), expected, "{what}, one blank cell");
            let mut doubled = rows.clone();
            doubled.insert(102, rows[101]);
            assert_eq!(find_board_turns(&doubled).is_some(), expected, "{what}, one row twice");
            let mut mostly_blank = rows;
            mostly_blank.iter_mut().step_by(15).for_each(|row| row.1 = None);
            assert_eq!(find_board_turns(&mostly_blank), None, "{what}, power in 93 of 100 rows");
        }
        let few: Vec<PowerRow> =
            (0..20).map(|row| (EventTime::from_seconds(even(row)), Some([300.0, 100.0][(row % 2) as usize]))).collect();
        assert_eq!(find_board_turns(&few), None);
    }

    /// Lost data, the time of a row in seconds, its watts, the lost rows, and whether the boards of all others are known.
    type LostRows<'a> = (&'a str, &'a dyn Fn(u32) -> f64, (&'a dyn Fn(u32) -> f64, bool), &'a [u32], bool);

    #[test]
    fn rows_after_a_lost_one_are_of_their_own_board() {
        let levels = |row: u32| [300.0, 100.0][(row % 2) as usize] + f64::from(row * 37 % 13);
        let wave =
            |row: u32| 300.0 + 80.0 * (f64::from(row / 2) / [13.0, 14.0][(row % 2) as usize] * std::f64::consts::TAU).sin();
        let even = |row: u32| f64::from(row) * 0.5;
        let uneven = |row: u32| f64::from(row / 2) + f64::from(row % 2) * 0.4;
        let pause = |row: u32| even(row) + if row < 101 { 0.0 } else { 60.25 };
        let late = |row: u32| even(row) + if row < 100 { 0.0 } else { 0.5 };
        let cases: [LostRows<'_>; 12] = [
            ("none", &even, (&levels, true), &[], true),
            ("one of the first board", &even, (&levels, true), &[100], true),
            ("one of the second board", &even, (&levels, true), &[101], true),
            ("both", &even, (&levels, true), &[100, 101], true),
            ("three", &even, (&levels, true), &[100, 101, 102], true),
            ("one of each, apart", &even, (&levels, true), &[100, 103], true),
            ("one of equal boards at uneven times", &uneven, (&wave, false), &[100], true),
            ("another one of equal boards at uneven times", &uneven, (&wave, false), &[101], true),
            ("none, half a round late", &late, (&levels, true), &[], true),
            ("all but one behind a pause", &pause, (&levels, true), &[101, 103, 104, 105, 106], false),
            ("none, with a pause", &pause, (&levels, true), &[], true),
            ("none, of equal boards, with a pause", &pause, (&wave, false), &[], false),
        ];
        for (what, time, (watts, has_levels), lost, is_known) in cases {
            let left = || (0..240).filter(|row| !lost.contains(row));
            let rows: Vec<PowerRow> = left().map(|row| (EventTime::from_seconds(time(row)), Some(watts(row)))).collect();
            let turns = BoardTurns { round_seconds: 1.0, has_levels };
            let expected = if is_known { Ok(left().map(|row| (row % 2) as usize).collect()) } else { Err(101) };
            assert_eq!(assign_turns(&rows, turns), expected, "{what}");
        }
        let twice = [0, 1, 1, 2].map(|row| (EventTime::from_seconds(even(row)), Some(levels(row))));
        let turns = BoardTurns { round_seconds: 1.0, has_levels: true };
        assert_eq!(assign_turns(&twice, turns), Ok(vec![0, 1, 1, 0]));
    }

    #[test]
    fn names_of_steps_are_known() {
        for (name, is_step) in [
            ("sec", true),
            ("S", true),
            ("batch_idx", true),
            ("minibatch", true),
            ("concurrency", true),
            ("it", true),
            ("which", false),
            ("place", false),
            ("items", false),
        ] {
            assert_eq!(names_a_step(name), is_step, "{name}");
        }
    }
}
