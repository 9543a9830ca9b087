//! Ranks whose running totals several imports have over the same time: the fold takes these for one counter.

use std::collections::{BTreeMap, BTreeSet};

use eadt_recordings::{EventRef, IMPORTS};
use eadt_schemas::Topic;
use serde::Deserialize;

/// One fall may be a job that began anew where one log ends and the other begins.
const CONTRADICTIONS: usize = 2;

/// A workload, a rank, its collector and a counter: one source of the fold. Imports of two formats are two collectors.
type CounterKey = (String, u32, String, &'static str);

/// The running totals of one log, as far as imports made it.
#[derive(Debug, Default)]
pub struct ImportedTotals {
    /// Times in microseconds, and values, in the log's order.
    by_counter: BTreeMap<CounterKey, Vec<(i64, f64)>>,
}

/// Fields that are read of a progress event.
#[derive(Deserialize)]
struct ProgressTotals {
    workload: String,
    #[serde(default)]
    rank: u32,
    #[serde(default)]
    collector: String,
    samples_total: Option<f64>,
    tokens_total: Option<f64>,
    steps_total: Option<f64>,
}

impl ImportedTotals {
    /// Takes the totals of an event, if it is progress of an import.
    pub fn add(&mut self, topic: Topic, event: &EventRef<'_>) {
        if topic != Topic::TrainingProgress || !event.source.starts_with(IMPORTS) {
            return;
        }
        let Some(Ok(totals)) = event.value().map(serde_json::from_slice::<ProgressTotals>) else { return };
        let counters =
            [("samples_total", totals.samples_total), ("tokens_total", totals.tokens_total), ("steps_total", totals.steps_total)];
        for (counter, value) in counters {
            if let Some(value) = value {
                let key = (totals.workload.clone(), totals.rank, totals.collector.clone(), counter);
                self.by_counter.entry(key).or_default().push((event.time.micros(), value));
            }
        }
    }

    /// Takes the totals of the log's next events.
    pub fn append(&mut self, other: &mut Self) {
        for (counter, mut totals) in std::mem::take(&mut other.by_counter) {
            self.by_counter.entry(counter).or_default().append(&mut totals);
        }
    }
}

/// Returns what is wrong with the logs if two of them count for one rank and contradict each other; the first counter of each rank.
pub fn describe_contradictions(logs: &[(String, ImportedTotals)]) -> Vec<String> {
    let mut found = Vec::new();
    for (at, (second, b)) in logs.iter().enumerate() {
        for (first, a) in &logs[..at] {
            let mut ranks: BTreeSet<(&str, u32)> = BTreeSet::new();
            for (counter, totals) in &b.by_counter {
                let (workload, rank, _, name) = counter;
                let Some(others) = a.by_counter.get(counter) else { continue };
                if contradictions(others, totals) >= CONTRADICTIONS && ranks.insert((workload.as_str(), *rank)) {
                    found.push(format!(
                        "{name} of {workload}, rank {rank}, is in {first} and in {second} over the same time, and differs: windows count \
                         the first of two readings of one time, and take others for one counter that goes up and down; import their tables in one command, with --files-are nodes if each \
                         counts its own, or leave one of the logs out"
                    ));
                }
            }
        }
    }
    found
}

/// Returns how often two series of one counter contradict each other: at one time they differ by more than a step, or one falls
/// below the other although it does not fall itself. Two nodes that report a job's total are a step apart at most.
fn contradictions(a: &[(i64, f64)], b: &[(i64, f64)]) -> usize {
    // Series of different times contradict each other once at most: where one ends and the other begins.
    let (Some(span_a), Some(span_b)) = (span(a), span(b)) else { return 0 };
    if span_a.1 < span_b.0 || span_b.1 < span_a.0 {
        return 0;
    }
    let step = largest_rise(a).max(largest_rise(b));
    let of = |series: usize| move |&(time, value): &(i64, f64)| (time, series, value);
    let mut both: Vec<(i64, usize, f64)> = a.iter().map(of(0)).chain(b.iter().map(of(1))).collect();
    both.sort_by_key(|(time, series, _)| (*time, *series));
    let mut last: [Option<f64>; 2] = [None; 2];
    let mut before: Option<(i64, usize, f64)> = None;
    let mut count = 0;
    for (time, series, value) in both {
        if let Some((time_before, series_before, value_before)) = before
            && series_before != series
        {
            let falls = value < value_before && last[series].is_none_or(|own| own <= value);
            let differs = time_before == time && (value - value_before).abs() > step;
            count += usize::from(differs || time_before < time && falls);
            if count == CONTRADICTIONS {
                return count;
            }
        }
        last[series] = Some(value);
        before = Some((time, series, value));
    }
    count
}

/// Returns the first and the last time.
fn span(series: &[(i64, f64)]) -> Option<(i64, i64)> {
    let times = || series.iter().map(|(time, _)| *time);
    times().min().zip(times().max())
}

/// Returns the most by which a counter rises from one reading to the next.
fn largest_rise(series: &[(i64, f64)]) -> f64 {
    series.windows(2).map(|pair| pair[1].1 - pair[0].1).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a counter that is read every ten seconds from `from` on.
    fn series(from: i64, values: &[f64]) -> Vec<(i64, f64)> {
        (0..).zip(values).map(|(row, value)| (from + 10 * row, *value)).collect()
    }

    #[test]
    fn totals_of_one_counter_agree_and_those_of_two_do_not() {
        let own = series(0, &[0.0, 10.0, 20.0, 30.0, 40.0]);
        let restarted = series(0, &[0.0, 10.0, 0.0, 10.0, 0.0]);
        for (what, a, b, are_contradictory) in [
            ("the same log", own.clone(), own.clone(), false),
            ("the same log, grown", own.clone(), series(0, &[0.0, 10.0, 20.0, 30.0, 40.0, 50.0]), false),
            ("the same log of a job that began anew twice", restarted.clone(), restarted, false),
            ("the next part", own.clone(), series(40, &[40.0, 50.0, 60.0]), false),
            ("a job that began anew", own.clone(), series(45, &[0.0, 10.0]), false),
            ("the same counter, read in between", own.clone(), series(5, &[5.0, 15.0, 25.0]), false),
            ("the same counter, a step behind", own.clone(), series(0, &[0.0, 0.0, 10.0, 20.0, 30.0]), false),
            ("another rank's, at the same times", own.clone(), series(0, &[0.0, 20.0, 40.0, 60.0, 80.0]), true),
            ("another rank's, in between", own, series(5, &[1005.0, 1015.0, 1025.0]), true),
        ] {
            assert_eq!(contradictions(&a, &b) >= CONTRADICTIONS, are_contradictory, "{what}");
            assert_eq!(contradictions(&b, &a) >= CONTRADICTIONS, are_contradictory, "{what}, turned");
        }
    }
}
