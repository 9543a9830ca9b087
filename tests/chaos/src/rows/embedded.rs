//! The embedded log is killed, while it commits and while it opens.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use eadt_bus::conformance::numbered::{AcknowledgedSteps, LoggedSteps, READY};
use eadt_bus::kafka::FetchPath;

use crate::chance::Chance;
use crate::part::{Embedded, Faults, Part, Service, Task};
use crate::row::{Outcome, Row, Run};
use crate::world::{LIMIT, runs};

pub const ROW: Row = Row {
    name: "embedded-killed",
    fault: "SIGKILL of the process that has the embedded log open, at any time of its commits, and while it opens the log again",
    promise: "no step that was acknowledged is lost, none is half there (outputs, state, position), none doubled; nor is a plain record",
    without: "a step as one write (each partition's records by themselves, then the positions)",
    full: 1000,
    // A batch has a log of its own, which is read to its end after each kill.
    batch: 50,
    short: 25,
    off: 25,
    run,
};

/// It is killed within this time of its commits; a step takes some milliseconds.
const COMMITS: Duration = Duration::from_millis(60);
/// Bytes of a record; the rare large ones make the store write tables and drop journals within a second.
const FILLER: usize = 300;
const LARGE_FILLER: usize = 40_000;
const LARGE_COMMITS: Duration = Duration::from_millis(600);

fn run(run: Run) -> Result<Outcome> {
    let (mut outcome, mut chance, dir) = (Outcome::default(), Chance::new(run.seed), tempfile::tempdir()?);
    let mut own = Embedded { dir: dir.path().join("log"), filler: FILLER };
    drop(own.open()?);
    // From its start until it commits, as it was the last time.
    let mut opens = Duration::from_millis(100);
    let mut before = AcknowledgedSteps::default();
    while outcome.rounds < run.rounds {
        let is_large = chance.below(10) == 0;
        own.filler = if is_large { LARGE_FILLER } else { FILLER };
        let mut part = start(dir.path(), &own, run.bites.then_some("atomic-steps"))?;
        let begun = Instant::now();
        if chance.below(4) == 0 {
            std::thread::sleep(part_of(opens, &mut chance));
        } else {
            while !part.printed()?.contains(READY) {
                runs(&mut part)?;
                ensure!(begun.elapsed() < LIMIT, "the log does not open within {LIMIT:?}: {}", part.tail());
                std::thread::sleep(Duration::from_millis(1));
            }
            opens = begun.elapsed();
            std::thread::sleep(part_of(if is_large { LARGE_COMMITS } else { COMMITS }, &mut chance));
        }
        let printed = part.kill_printed()?;
        outcome.rounds += 1;
        outcome.count("kills before it had opened", u64::from(!printed.contains(READY)));
        let acknowledged = printed.lines().rev().find_map(AcknowledgedSteps::of).unwrap_or(before);
        let opened = Instant::now();
        let log = match own.open() {
            Ok(log) => log,
            Err(error) => {
                outcome.check(false, || format!("it does not open: {error:#}"));
                break;
            }
        };
        let took = opened.elapsed().as_secs_f64();
        outcome.took("opening", took);
        outcome.peak("slowest opening (s)", took);
        let found = LoggedSteps::read(&log)?;
        judge(&found, acknowledged, &mut outcome);
        if outcome.violations() > 0 {
            // An error now would be found after each further kill.
            break;
        }
        let now = AcknowledgedSteps { step: found.step, plain: found.plain.len() as u64 };
        outcome.count("steps", now.step - before.step);
        outcome.compared += 3 * (now.step - before.step) + now.plain - before.plain;
        before = now;
    }
    Ok(outcome)
}

fn part_of(time: Duration, chance: &mut Chance) -> Duration {
    Duration::from_micros(chance.below(time.as_micros() as u64))
}

fn start(dir: &Path, own: &Embedded, off: Option<&'static str>) -> Result<Part> {
    let task = Task {
        brokers: String::new(),
        properties: BTreeMap::new(),
        fetch: FetchPath::default(),
        prefix: String::new(),
        service: Service::Embedded(own.clone()),
        clock_ahead_seconds: 0,
    };
    Part::start(dir, "embedded", &task, &Faults { off, ..Faults::default() })
}

/// Compares a log with the acknowledged steps. A step in progress may be there: whole, or not at all.
fn judge(found: &LoggedSteps, acknowledged: AcknowledgedSteps, outcome: &mut Outcome) {
    outcome.lost += acknowledged.step.saturating_sub(found.step) + acknowledged.plain.saturating_sub(found.plain.len() as u64);
    for (place, written) in ["output 0", "output 1", "state"].into_iter().zip(&found.written) {
        once(place, written, &(1..=found.step).collect::<Vec<_>>(), outcome);
    }
    once("plain records", &found.plain, &(0..found.plain.len() as u64).collect::<Vec<_>>(), outcome);
}

/// Each of these numbers once, in this order.
fn once(place: &str, found: &[u64], wanted: &[u64], outcome: &mut Outcome) {
    if found == wanted {
        return;
    }
    let doubled = found.iter().collect::<std::collections::BTreeSet<_>>().len() < found.len();
    outcome.duplicated += u64::from(doubled);
    outcome.check(doubled, || format!("{place} {}", difference(found, wanted)));
    if doubled {
        outcome.examples.push(format!("{place} has a number twice"));
    }
}

/// Describes numbers that differ from the wanted ones.
fn difference(found: &[u64], wanted: &[u64]) -> String {
    let due = wanted.len();
    if let Some(missing) = wanted.iter().find(|number| !found.contains(number)) {
        return format!("lacks number {missing} of the {due} that are due");
    }
    match found.iter().find(|number| !wanted.contains(number)) {
        Some(beyond) => format!("has number {beyond}, which is beyond the {due} that are due"),
        None => format!("has the {due} numbers that are due in another order"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn violations(found: &LoggedSteps, acknowledged: AcknowledgedSteps) -> (u64, u64, u64) {
        let mut outcome = Outcome::default();
        judge(found, acknowledged, &mut outcome);
        (outcome.lost, outcome.duplicated, outcome.wrong)
    }

    #[test]
    fn what_is_lost_half_or_doubled_is_found() {
        let whole = LoggedSteps { step: 2, written: [vec![1, 2], vec![1, 2], vec![1, 2]], plain: vec![0, 1, 2] };
        let acknowledged = AcknowledgedSteps { step: 2, plain: 3 };
        assert_eq!(violations(&whole, acknowledged), (0, 0, 0));
        assert_eq!(violations(&whole, AcknowledgedSteps { step: 1, plain: 2 }), (0, 0, 0), "what was under way may be there");
        assert_eq!(violations(&whole, AcknowledgedSteps { step: 3, plain: 5 }), (3, 0, 0));
        let with = |at: usize, numbers: &[u64]| {
            let mut found = whole.clone();
            found.written[at] = numbers.to_vec();
            violations(&found, acknowledged)
        };
        assert_eq!(with(0, &[1, 2, 3]), (0, 0, 1), "an output of a step whose position is not there");
        assert_eq!(with(2, &[1]), (0, 0, 1), "a step without its state");
        assert_eq!(with(1, &[1, 2, 2]), (0, 1, 0));
        assert_eq!(
            violations(&LoggedSteps { plain: vec![0, 2, 1], ..whole.clone() }, acknowledged),
            (0, 0, 1),
            "in another order"
        );
    }

    #[test]
    fn examples_name_what_is_wrong() {
        let example = |found: &[u64], wanted: &[u64]| {
            let mut outcome = Outcome::default();
            once("output 0", found, wanted, &mut outcome);
            outcome.examples.join("; ")
        };
        assert_eq!(example(&[1, 2, 10], &[1, 2]), "output 0 has number 10, which is beyond the 2 that are due");
        assert_eq!(example(&[1, 3], &[1, 2, 3]), "output 0 lacks number 2 of the 3 that are due");
        assert_eq!(example(&[2, 1], &[1, 2]), "output 0 has the 2 numbers that are due in another order");
        assert_eq!(example(&[1, 1], &[1]), "output 0 has a number twice");
    }
}
