//! Deciders that contradict each other, and decisions that are too late, for something else, or expired.

use std::time::{Duration, Instant};

use anyhow::Result;
use eadt_schemas::v1::ActuationOutcome;

use crate::chance::Chance;
use crate::row::{Outcome, Row, Run};
use crate::site::{FIRST, Site};
use crate::world::LIMIT;

pub const ROW: Row = Row {
    name: "contradictory",
    fault: "ten decisions a second about one workload, each for the contrary of what is in force; every third expired, of a former generation or for another layout",
    promise: "one change in `actuator.change_interval_seconds`; none that is stale; each decision is answered once",
    without: "the interval between changes",
    full: 20,
    batch: 2,
    short: 1,
    off: 1,
    run,
};

/// A round.
const LASTS: Duration = Duration::from_secs(30);
const INTERVAL_SECONDS: f64 = 5.0;
const PACE: Duration = Duration::from_millis(100);

fn run(run: Run) -> Result<Outcome> {
    let mut site = Site::start(run.bites.then_some("change-interval"))?;
    let (mut outcome, mut chance) = (Outcome::default(), Chance::new(run.seed));
    let before = site.generation()?;
    let mut part = site.actuator_with(FIRST, None, INTERVAL_SECONDS)?;
    site.wait(&mut part, "it leads", |_| Ok(site.leader()? == FIRST))?;
    let (mut ids, mut stale) = (Vec::new(), Vec::new());
    let mut decided = Duration::ZERO;
    for _ in 0..run.rounds {
        let begun = Instant::now();
        while begun.elapsed() < LASTS {
            let id = format!("d-{}", ids.len());
            let is = site.published().and_then(|workload| workload.layout.mps_thread_percentage);
            let mut decision = site.decision(&id, if is == Some(40) { 45 } else { 40 })?;
            if ids.len() % 3 == 2 {
                match chance.below(3) {
                    0 => decision.expires = decision.time.plus_seconds(-1.0),
                    1 => decision.generation = decision.generation.map(|generation| generation - 1),
                    _ => decision.from.replicas = Some(99),
                }
                stale.push(id.clone());
            }
            site.decide(&decision)?;
            ids.push(id);
            std::thread::sleep(PACE);
        }
        decided += begun.elapsed();
        outcome.rounds += 1;
    }
    let Some(last) = ids.last().cloned() else { return Ok(outcome) };
    site.wait(&mut part, "the last decision is answered", |_| Ok(!site.became(&last).is_empty()))?;
    // A change that was made is noted ready after that, unless another one comes first, as it does without the interval.
    std::thread::sleep(Duration::from_secs(2));
    let begun = Instant::now();
    while !run.bites && begun.elapsed() < LIMIT && ids.iter().any(|id| site.became(id) == [ActuationOutcome::Applied]) {
        std::thread::sleep(Duration::from_millis(50));
    }
    let answers = site.actuations();
    let mut changed = Vec::new();
    for id in &ids {
        let became = site.became(id);
        outcome.compared += 1;
        match *became {
            [] => outcome.lost += 1,
            [ActuationOutcome::Refused] => outcome.count("decisions refused", 1),
            [ActuationOutcome::Applied, ActuationOutcome::Ready] => changed.push(answers[id][0].time),
            _ => outcome.check(false, || format!("{id} became {became:?}")),
        }
    }
    for id in &stale {
        outcome.check(!site.became(id).contains(&ActuationOutcome::Applied), || format!("{id} was stale and was applied"));
    }
    changed.sort();
    outcome.count("changes", changed.len() as u64);
    outcome.count("stale decisions", stale.len() as u64);
    for pair in changed.windows(2) {
        let apart = pair[1].seconds_since(pair[0]);
        outcome.check(apart >= INTERVAL_SECONDS, || format!("two changes are {apart:.2} s apart"));
    }
    let an_hour = (changed.len() as f64) * 3600.0 / decided.as_secs_f64();
    outcome.peak(&format!("changes of the workload an hour, of {} allowed", 3600.0 / INTERVAL_SECONDS), an_hour);
    let least = decided.as_secs_f64() / INTERVAL_SECONDS / 2.0;
    outcome.check(changed.len() as f64 >= least, || format!("only {} changes in {decided:?}", changed.len()));
    let grown = site.generation()? - before;
    outcome.check(grown == changed.len() as i64, || format!("{grown} generations for {} changes", changed.len()));
    part.stop(LIMIT)?;
    Ok(outcome)
}
