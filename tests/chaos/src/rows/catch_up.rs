//! The processor comes back after a long time, to its state: all of one input lies there before any of the other.

use std::time::Instant;

use anyhow::{Result, ensure};
use eadt_bus::Bus;
use eadt_schemas::Topic;

use crate::feeder::send_events;
use crate::row::{Outcome, Row, Run};
use crate::story::Story;
use crate::world::{Cluster, LIMIT, World, explain, runs};

pub const ROW: Row = Row {
    name: "catch-up",
    fault: "SIGKILL of the processor, which comes back after an hour of events; one input was written before the other",
    promise: "nothing is called late that was not",
    without: "the merge by event time",
    full: 5,
    batch: 1,
    short: 1,
    // If the two inputs come in step by chance, nothing is late without the merge either.
    off: 4,
    run,
};

const HOUR: usize = 3600;
/// So many events are sent at once: what one input gives in a fetch is minutes of it, not the hour, and the other gives other minutes.
const BATCH: usize = 400;
const FETCH_BYTES: usize = 20_000;
/// Events that it has folded before.
const BEFORE: usize = 600;

fn run(run: Run) -> Result<Outcome> {
    let mut world = World::start(Cluster::One, run.bites.then_some("merge"))?;
    world.properties.insert("fetch.message.max.bytes".into(), FETCH_BYTES.to_string());
    let (mut outcome, mut story) = (Outcome::default(), Story::new(run.seed, 3));
    let mut producer = world.bus.producer("chaos-hour")?;
    for _ in 0..BEFORE {
        story.tick();
    }
    send_events(&mut *producer, &world.prefix, &story.events)?;
    ensure!(producer.flush(LIMIT)?, "what came before was not acknowledged");
    let part = world.processor(world.settings(), None)?;
    ensure!(explain(world.await_folded(LIMIT), &part)?, "what came before was not folded: {}", part.tail());
    part.kill()?;
    let before = story.events.len();
    for _ in 0..HOUR {
        story.tick();
    }
    story.end();
    // Progress of the whole hour comes last.
    for progress in [false, true] {
        let events = story.events[before..].iter().filter(|event| (event.topic == Topic::TrainingProgress) == progress);
        for part in events.collect::<Vec<_>>().chunks(BATCH) {
            send_events(&mut *producer, &world.prefix, part.iter().copied())?;
            ensure!(producer.flush(LIMIT)?, "the hour was not acknowledged");
        }
    }
    let begun = Instant::now();
    let mut part = world.processor(world.settings(), None)?;
    let folded = world.await_folded(LIMIT)?;
    outcome.took("an hour caught up", begun.elapsed().as_secs_f64());
    outcome.check(folded, || format!("not everything was folded: {}", part.tail()));
    runs(&mut part)?;
    outcome.count("events", story.events.len() as u64);
    outcome.take(world.judge(&story)?);
    outcome.rounds = 1;
    Ok(outcome)
}
