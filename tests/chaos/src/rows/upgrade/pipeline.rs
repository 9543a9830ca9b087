//! Processors, the archiver and producers.

use std::time::{Duration, Instant};

use anyhow::Result;
use eadt_archiver::ArchiverSettings;
use eadt_lake::Archive;

use crate::feeder::Feeder;
use crate::part::Service;
use crate::row::{Outcome, Row, Run};
use crate::rows::archive::{OF_A_STORY, await_archived, judge};
use crate::story::Story;
use crate::world::{Cluster, LIMIT, World, explain};

pub const ROW: Row = Row {
    name: "upgrade",
    fault: "rolling restarts (SIGTERM) of processors, archiver and producers between this minor version and one whose events have fields, at every level, that this one does not know",
    promise: "every window and decision once, and right; each offset in exactly one readable file, with what is not known",
    without: "taking events whose fields are not all known, by processors and by the archiver",
    full: 100,
    batch: 10,
    short: 2,
    off: 3,
    run,
};

fn run(run: Run) -> Result<Outcome> {
    let world = World::start(Cluster::One, run.bites.then_some("unknown-fields"))?;
    let (watch, mut outcome) = (world.watch()?, Outcome::default());
    let place = world.dir().join("archive");
    let settings = ArchiverSettings {
        location: place.display().to_string(),
        roll_rows: 500,
        roll_seconds: 0.5,
        ..ArchiverSettings::default()
    };
    let archiver = || world.part(Service::Archiver(Box::new(settings.clone())), None);
    let processor = |name: &str| {
        let mut settings = world.settings();
        name.clone_into(&mut settings.instance);
        world.processor(settings, None)
    };
    let feeder = Feeder::mixed(&world.bus, &world.prefix, Story::new(run.seed, 4), Duration::from_millis(20))?;
    let (mut one, mut two, mut files) = (processor("processor-0")?, processor("processor-1")?, archiver()?);
    for round in 0..run.rounds {
        explain(watch.await_next(Instant::now()), &one)?;
        world.next.set(round % 2 == 0);
        let stopped = Instant::now();
        one.stop(LIMIT)?;
        one = processor("processor-0")?;
        two.stop(LIMIT)?;
        two = processor("processor-1")?;
        let took = explain(watch.await_next(stopped), &two)?;
        outcome.took("from the order to stop to the next window", took.as_secs_f64());
        files.stop(LIMIT)?;
        files = archiver()?;
        outcome.rounds += 1;
    }
    let story = feeder.finish()?;
    let folded = world.await_folded(LIMIT)?;
    outcome.check(folded, || format!("not everything was folded: {}", one.tail()));
    // They would go on with heartbeats, which are not archived yet when they are looked for.
    one.stop(LIMIT)?;
    two.stop(LIMIT)?;
    outcome.take(world.judge(&story)?);
    let archive = Archive::folder(&place)?;
    let reached = await_archived(&world, &archive, &OF_A_STORY, &mut files, LIMIT)?;
    outcome.check(reached, || format!("not everything was archived: {}", files.tail()));
    let mut archived = Outcome::default();
    judge(&world, &place, &archive, &OF_A_STORY, &mut archived)?;
    Ok(outcome.with(archived, "in the archive", run.bites))
}
