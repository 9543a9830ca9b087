//! The archiver is killed, at any time and between a file and what the group hears of it.

use std::time::{Duration, Instant};

use anyhow::Result;
use eadt_lake::Archive;

use super::{OF_A_STORY, await_archived, judge, settings};
use crate::chance::Chance;
use crate::feeder::Feeder;
use crate::part::Service;
use crate::row::{Outcome, Row, Run};
use crate::story::Story;
use crate::world::{Cluster, LIMIT, World};

pub const ROW: Row = Row {
    name: "archiver",
    fault: "SIGKILL of the archiver at any time, and after a file before its position",
    promise: "each offset in exactly one file, readable by pyarrow, too",
    without: "going on from the files (from the group's positions instead)",
    full: 1000,
    batch: 100,
    short: 8,
    off: 3,
    run,
};

fn run(run: Run) -> Result<Outcome> {
    let mut chance = Chance::new(run.seed);
    let world = World::start(Cluster::One, run.bites.then_some("files"))?;
    let mut outcome = Outcome::default();
    let place = world.dir().join("archive");
    let start = |wait| world.part(Service::Archiver(Box::new(settings(&place))), wait);
    let feeder = Feeder::start(&world.bus, &world.prefix, Story::new(run.seed, 4), Duration::from_millis(10))?;
    for round in 0..run.rounds {
        let waits = run.bites || round % 2 == 0;
        let (file, begun) = (1 + chance.below(3), Instant::now());
        let mut part = start(waits.then_some(("archive.rolled", file)))?;
        if waits {
            let reached = part.await_phase(LIMIT);
            if file == 1 && round > 0 {
                outcome.took("from the start after a kill to the first file", begun.elapsed().as_secs_f64());
            }
            if run.bites && part.ended()?.is_some() {
                // The archive itself shows what is wrong: the archiver will not write beside it.
                outcome.check(false, || format!("it ended: {}", part.tail()));
                outcome.rounds += 1;
                feeder.finish()?;
                return Ok(outcome);
            }
            reached?;
        } else {
            std::thread::sleep(Duration::from_millis(chance.below(1500)));
        }
        part.kill()?;
        outcome.rounds += 1;
    }
    let story = feeder.finish()?;
    let mut part = start(None)?;
    let archive = Archive::folder(&place)?;
    let reached =
        await_archived(&world, &archive, &OF_A_STORY, &mut part, if run.bites { Duration::from_secs(20) } else { LIMIT })?;
    outcome.check(reached, || format!("not everything was archived: {}", part.tail()));
    part.kill()?;
    judge(&world, &place, &archive, &OF_A_STORY, &mut outcome)?;
    outcome.count("events", story.events.len() as u64);
    Ok(outcome)
}
