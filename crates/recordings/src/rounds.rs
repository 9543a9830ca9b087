//! Columns that name boards by what is in them, whatever they are called: each value comes once in each round of sampling.

use std::collections::{BTreeSet, HashMap};

use eadt_schemas::EventTime;

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
/// The least difference between the mean powers of two boards, as a share of the greater one, that shows two levels.
const LEAST_LEVEL_DIFFERENCE: f64 = 0.05;

/// Words in the names of columns that hold a state, another reading or a time, whatever their values are.
const STATE_COLUMN_WORDS: [&str; 82] = [
    "action",
    "batch",
    "benchmark",
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
/// Words of states. A text of nothing but these names no board.
const STATE_WORDS: [&str; 66] = [
    "active",
    "alert",
    "bad",
    "begin",
    "boost",
    "busy",
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
    "fail",
    "failed",
    "false",
    "fault",
    "forward",
    "backward",
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
];

/// Returns whether the name of a column is one of a state, another reading or a time, so that its values are none of boards.
pub(crate) fn names_a_state(name: &str) -> bool {
    word_places(name).into_iter().any(|place| STATE_COLUMN_WORDS.contains(&name[place].to_ascii_lowercase().as_str()))
}

/// Returns whether a text may name a board in a column whose name does not tell: a small whole number, or a text that is neither
/// a quantity nor a state, such as `P0`, `idle` or the bits of a reason.
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

/// Returns the line of the first row of a second value, and the number of values, if nearly all rows are of rounds in which each
/// value comes once, one round a step of sampling, and the power of two values has different levels.
///
/// A state may change as often, but by turns only by chance. Numbers must come in the same order in each round.
pub(crate) fn find_rounds(rows: &[(EventTime, u64, u16)], watts: &HashMap<u64, f64>, is_numbers: bool) -> Option<(u64, usize)> {
    let mut rows: Vec<(EventTime, u64, u16)> = rows.iter().copied().filter(|(_, line, _)| watts.contains_key(line)).collect();
    rows.sort_unstable();
    let values: BTreeSet<u16> = rows.iter().map(|(_, _, value)| *value).collect();
    let boards = values.len();
    let fewest = if is_numbers { FEWEST_ROUNDS_OF_NUMBERS } else { FEWEST_ROUNDS };
    if !(2..=MOST_BOARDS_OF_TEXTS).contains(&boards) || rows.len() < fewest * boards {
        return None;
    }
    let mut rounds: Vec<&[(EventTime, u64, u16)]> = Vec::new();
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
    if is_numbers && !has_one_order || periods[periods.len() / 2] > LONGEST_ROUND_SECONDS {
        return None;
    }
    let watts_of = |round: &[(EventTime, u64, u16)], value: u16| -> f64 {
        round.iter().find(|row| row.2 == value).and_then(|row| watts.get(&row.1)).copied().unwrap_or(0.0)
    };
    let mean = |value: u16| rounds.iter().map(|round| watts_of(round, value)).sum::<f64>() / rounds.len() as f64;
    let means: Vec<(u16, f64)> = values.iter().map(|value| (*value, mean(*value))).collect();
    let (low, least) = *means.iter().min_by(|a, b| a.1.total_cmp(&b.1))?;
    let (high, greatest) = *means.iter().max_by(|a, b| a.1.total_cmp(&b.1))?;
    let higher = rounds.iter().filter(|round| watts_of(round, high) > watts_of(round, low)).count();
    if greatest - least < LEAST_LEVEL_DIFFERENCE * greatest || higher * 5 < rounds.len() * 4 {
        return None;
    }
    let first = rows.iter().min_by_key(|(_, line, _)| *line)?.2;
    let (_, line, _) = rows.iter().filter(|(_, _, value)| *value != first).min_by_key(|(_, line, _)| *line)?;
    Some((*line, boards))
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

    /// What it is, the value of a row, its time in seconds and its watts, whether values are numbers, and the boards found.
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
}
