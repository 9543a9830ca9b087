//! Imports old runs into partitions that live events go into.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use eadt_bus::Bus;
use eadt_processor::ProcessorSettings;

use crate::feeder::{Feeder, send_events};
use crate::row::{Outcome, Row, Run};
use crate::story::{BASE_SECONDS, Story};
use crate::world::{Cluster, LIMIT, World, explain};

pub const ROW: Row = Row {
    name: "import",
    fault: "runs of days ago are imported into partitions that live events go into, while the processor stands still for a moment",
    promise: "nothing is called late that was not, of the import or of what is live",
    without: "the time that is waited for a newcomer's other sources",
    full: 50,
    batch: 10,
    short: 2,
    off: 3,
    run,
};

/// Workloads that are live, and those of one import.
const LIVE: usize = 3;
const IMPORTED: usize = 2;
const RUN_SECONDS: usize = 600;
const DAY_SECONDS: i64 = 86_400;
/// How long windows of a workload that has just come are kept open, in seconds of the log.
const JOIN_SECONDS: u64 = 10;

fn run(run: Run) -> Result<Outcome> {
    let world = World::start(Cluster::One, None)?;
    let mut outcome = Outcome::default();
    let watch = world.watch()?;
    let join_grace_seconds = if run.bites { 0.0 } else { JOIN_SECONDS as f64 };
    let mut part = world.processor(ProcessorSettings { join_grace_seconds, ..world.settings() }, None)?;
    let feeder = Feeder::start(&world.bus, &world.prefix, Story::new(run.seed, LIVE), Duration::from_millis(10))?;
    let mut producer = world.bus.producer("chaos-import")?;
    let mut imported = Vec::new();
    for round in 0..run.rounds {
        explain(watch.await_next(Instant::now()), &part)?;
        let first = LIVE + IMPORTED * round as usize;
        let base = BASE_SECONDS - DAY_SECONDS * i64::from(round + 1);
        let mut story = Story::with_clocks(run.seed + u64::from(round) + 1, first..first + IMPORTED, base, |_| 0, |_, _| 0.0);
        for _ in 0..RUN_SECONDS {
            story.tick();
        }
        story.end();
        // The backlog is read in pieces, and telemetry of a job may come before any of its progress.
        part.freeze(true)?;
        send_events(&mut *producer, &world.prefix, &story.events)?;
        ensure!(producer.flush(LIMIT)?, "the import was not acknowledged");
        part.freeze(false)?;
        imported.push(story);
        outcome.rounds += 1;
    }
    // Then the log is old enough for the last windows, too.
    std::thread::sleep(Duration::from_secs(JOIN_SECONDS + 1));
    let mut story = feeder.finish()?;
    for other in imported {
        story.add(other);
    }
    let folded = world.await_folded(LIMIT)?;
    outcome.check(folded, || format!("not everything was folded: {}", part.tail()));
    crate::world::runs(&mut part)?;
    outcome.count("events", story.events.len() as u64);
    outcome.take(world.judge(&story)?);
    Ok(outcome)
}
