//! The processor comes back after a long time: all of one input lies there before any of the other.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use eadt_bus::Bus;
use eadt_schemas::Topic;

use crate::feeder::tell;
use crate::row::{Outcome, Row, Run};
use crate::story::Story;
use crate::world::{Cluster, LIMIT, World};

pub const ROW: Row = Row {
    name: "catch-up",
    fault: "an hour of events waits; one input was written before the other",
    promise: "nothing is called late that was not",
    without: "the merge by event time",
    full: 5,
    batch: 1,
    short: 1,
    off: 1,
    run,
};

const HOUR: usize = 3600;

fn run(run: Run) -> Result<Outcome> {
    let world = World::start(Cluster::One, run.bites.then_some("merge"))?;
    let mut outcome = Outcome::default();
    let mut story = Story::new(run.seed, 3);
    for _ in 0..HOUR {
        story.tick();
    }
    story.end();
    let mut producer = world.bus.producer("chaos-hour")?;
    // Progress of the whole hour comes last.
    for progress in [false, true] {
        let told = story.told.iter().filter(|told| (told.topic == Topic::TrainingProgress) == progress);
        tell(&mut *producer, &world.prefix, told)?;
        ensure!(producer.flush(LIMIT)?, "the hour was not acknowledged");
    }
    let begun = Instant::now();
    let mut part = world.processor(world.settings(), None)?;
    let folded = world.await_folded(LIMIT)?;
    outcome.took("an hour caught up", begun.elapsed().as_secs_f64());
    outcome.check(folded, || format!("not everything was folded: {}", part.tail()));
    crate::world::runs(&mut part)?;
    std::thread::sleep(Duration::from_millis(50));
    outcome.count("events", story.told.len() as u64);
    outcome.take(world.judge(&story)?);
    outcome.rounds = 1;
    Ok(outcome)
}
