//! What the changes saved.
//!
//! The baseline is the J/sample that the user gives, else that of the workload's own windows before its first applied
//! change: those that end by then, with energy and progress covered to at least 90 %, without restart or gap. Compared
//! with it is everything after that change (the whole run where the user gave the baseline): all energy, restarts and
//! redone work included, against all samples. Windows with energy covered to less than 90 %, or with unknown
//! progress and no restart to explain it, would flatter one side; they are left out, and the report says how many.

use eadt_schemas::EventTime;

use crate::figures::per;
use crate::reporter::{Collected, Window, sum};

#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Saving {
    /// J/sample.
    pub(crate) baseline: Option<f64>,
    pub(crate) joules: Option<f64>,
    pub(crate) ratio: Option<f64>,
}

const GOOD_COVERAGE: f64 = 0.9;

pub(crate) fn saving(collected: &Collected, given: Option<f64>, notes: &mut Vec<String>) -> Saving {
    let change = first_change(collected);
    let (baseline, from) = match (given, change) {
        (Some(baseline), _) => (Some(baseline), EventTime::MIN),
        (None, Some(change)) => (own_baseline(collected, change), change),
        (None, None) => return Saving::default(),
    };
    let Some(baseline) = baseline else {
        notes.push("no good window lies before the first change: the saving is not known without a given baseline".to_owned());
        return Saving::default();
    };
    let after = || collected.windows.values().filter(move |window| window.run_seconds > 0.0 && window.end > from);
    let left_out = after().filter(|window| !counts(window)).count();
    if left_out > 0 {
        notes.push(format!("the saving leaves out {left_out} window(s) without enough known energy or progress"));
    }
    let samples = sum(after().filter(|window| counts(window)).map(|window| window.samples));
    let energy = sum(after().filter(|window| counts(window)).map(|window| window.run_energy.map(|e| e + window.unassigned)));
    let expected = samples.map(|samples| samples * baseline);
    let joules = expected.zip(energy).map(|(expected, energy)| expected - energy);
    Saving { baseline: Some(baseline), joules, ratio: per(joules, expected) }
}

/// When the workload first ran otherwise than it started: by the actuator's word, or, where no actuator has spoken, by
/// the generation in the windows.
fn first_change(collected: &Collected) -> Option<EventTime> {
    if collected.actuated {
        return collected.applied.values().min().copied();
    }
    let mut first = None;
    collected.windows.values().find_map(|window| {
        let generation = window.generation?;
        (generation != *first.get_or_insert(generation)).then_some(window.start)
    })
}

fn own_baseline(collected: &Collected, change: EventTime) -> Option<f64> {
    let good = || {
        collected.windows.values().filter(move |window| {
            window.end <= change
                && !window.restarted
                && counts(window)
                && window.progress_coverage >= GOOD_COVERAGE
                && window.run_energy.is_some()
        })
    };
    per(sum(good().map(|window| window.run_energy)), sum(good().map(|window| window.samples)))
}

fn counts(window: &Window) -> bool {
    let known = window.run_energy.is_some() && window.run_coverage >= GOOD_COVERAGE && !window.gap;
    known && (window.samples.is_some() || window.restarted)
}
