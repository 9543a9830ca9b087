//! Sources fall silent without a word: nothing comes any more, and their windows close all the same.

use std::time::Duration;

use anyhow::{Result, ensure};
use eadt_bus::Bus;

use crate::feeder::send;
use crate::row::{Outcome, Row, Run};
use crate::story::{Story, WINDOW_SECONDS};
use crate::world::{Cluster, LIMIT, World};

pub const ROW: Row = Row {
    name: "quiet",
    fault: "every source falls silent at once and says nothing of it",
    promise: "log time goes on, and the last windows close",
    without: "heartbeats of the partition's owner",
    full: 20,
    batch: 1,
    short: 1,
    off: 1,
    run,
};

fn run(run: Run) -> Result<Outcome> {
    let world = World::start(Cluster::One, run.bites.then_some("heartbeats"))?;
    let mut outcome = Outcome::default();
    let settings = eadt_processor::Settings { heartbeat_seconds: 0.2, idle_grace_seconds: 2.0, ..world.settings() };
    let mut part = world.processor(settings, None)?;
    let mut story = Story::new(run.seed, 3);
    let seconds = 3 * WINDOW_SECONDS;
    for _ in 0..seconds {
        story.tick();
    }
    let mut producer = world.bus.producer("chaos-quiet")?;
    for told in &story.told {
        send(&mut *producer, &told.outgoing(&world.prefix))?;
    }
    ensure!(producer.flush(LIMIT)?, "the events were not acknowledged");
    let watch = world.watch()?;
    // Three windows of three workloads; the last one of each is open until its sources count as idle.
    let (wanted, begun) = (3 * 3, std::time::Instant::now());
    let patience = if run.bites { Duration::from_secs(15) } else { LIMIT };
    while watch.count() < wanted && begun.elapsed() < patience {
        std::thread::sleep(Duration::from_millis(20));
    }
    crate::world::runs(&mut part)?;
    let closed = watch.count();
    outcome.check(closed == wanted, || format!("{closed} windows closed instead of {wanted}"));
    if closed == wanted {
        outcome.took("from silence to the last window, 2 s of grace included", begun.elapsed().as_secs_f64());
    }
    outcome.rounds = 1;
    Ok(outcome)
}
