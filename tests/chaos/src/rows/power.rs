//! The machine of one of three brokers loses its power: what its broker had not synced is gone.

use std::fs::{self, OpenOptions};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use eadt_bus::{Bus, TopicPartition};

use crate::chance::Chance;
use crate::feeder::Feeder;
use crate::row::{Outcome, Row, Run};
use crate::story::Story;
use crate::world::{Cluster, LIMIT, World, explain};

pub const ROW: Row = Row {
    name: "broker-power",
    fault: "power cut under one of three brokers: SIGKILL, and of each of its partitions anything up to all that it had not synced is gone; it comes back at once, or once windows go on",
    promise: "windows go on without it; nothing that was acknowledged is lost",
    without: "copies on other brokers",
    full: 50,
    batch: 10,
    short: 1,
    off: 5,
    run,
};

/// Appends of the cluster's own log are synced before they are acknowledged (Raft); nothing of it is lost.
const SYNCED: &str = "__cluster_metadata-";

fn run(run: Run) -> Result<Outcome> {
    let mut chance = Chance::new(run.seed);
    let mut world = World::start_with(Cluster::Three, None, if run.bites { 1 } else { 3 })?;
    let watch = world.watch()?;
    let mut outcome = Outcome::default();
    let feeder = Feeder::start(&world.bus, &world.prefix, Story::new(run.seed, 3), Duration::from_millis(20))?;
    let mut part = world.processor(world.settings(), None)?;
    for round in 0..run.rounds as usize {
        explain(watch.await_next(Instant::now()), &part)?;
        let victim = round % world.brokers.len();
        let acknowledged = highs(&world)?;
        let cut = Instant::now();
        world.brokers[victim].kill()?;
        let (gone, partitions) = lose_unsynced(&world.brokers[victim].data(), &mut chance)?;
        ensure!(gone > 0, "nothing was lost with the broker's power");
        outcome.count("bytes that were not synced and are gone (kB)", gone / 1000);
        outcome.count("partitions that lost some", partitions);
        // A cluster without copies does not go on before it is back.
        if !run.bites && chance.below(2) == 0 {
            explain(watch.await_next(cut + Duration::from_millis(500)), &part)?;
        }
        world.brokers[victim].start_again()?;
        if !run.bites {
            let next = explain(watch.await_next(Instant::now()), &part)?;
            outcome.took("from its return to the next window", next.as_secs_f64());
            // Another one's power must not go before the copies are whole again: that would be two at a time.
            world.brokers[0].await_copies()?;
        }
        for ((at, before), (_, now)) in acknowledged.into_iter().zip(highs(&world)?) {
            outcome.check(now >= before, || format!("of {at} there were {before} records, and are {now}"));
        }
        outcome.rounds += 1;
        if run.bites {
            // Producers of a log that lost what it had acknowledged cannot go on either. If nothing of that was on this broker
            // yet, another run is tried.
            return Ok(outcome);
        }
    }
    let story = feeder.finish()?;
    let folded = world.await_folded(LIMIT)?;
    outcome.check(folded, || format!("not everything was folded: {}", part.tail()));
    crate::world::runs(&mut part)?;
    ensure!(watch.count() > 0, "no windows at all");
    outcome.take(world.judge(&story)?);
    Ok(outcome)
}

/// How far the inputs are acknowledged.
fn highs(world: &World) -> Result<Vec<(TopicPartition, i64)>> {
    let high = |at: TopicPartition| Ok((at.clone(), world.bus.watermarks(&at)?.high));
    world.inputs().into_iter().map(high).collect()
}

/// Takes back what the operating system may not have written: Kafka syncs a segment once it is full, and until then leaves it to that.
/// Files of indexes and snapshots stay as they are, ahead of what they are of. Returns bytes and partitions.
fn lose_unsynced(data: &Path, chance: &mut Chance) -> Result<(u64, u64)> {
    let (mut gone, mut partitions) = (0, 0);
    let mut folders: Vec<_> = fs::read_dir(data)?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    folders.sort();
    for folder in folders.iter().filter(|folder| folder.is_dir()) {
        if folder.file_name().is_some_and(|name| name.to_string_lossy().starts_with(SYNCED)) {
            continue;
        }
        let segments = fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
        // Their names are offsets of as many digits.
        let newest = segments.into_iter().filter(|path| path.extension().is_some_and(|extension| extension == "log")).max();
        let Some(newest) = newest else { continue };
        let file = OpenOptions::new().write(true).open(&newest).with_context(|| format!("opening {}", newest.display()))?;
        let length = file.metadata()?.len();
        let kept = if chance.below(3) == 0 { 0 } else { chance.below(length + 1) };
        if kept < length {
            file.set_len(kept)?;
            (gone, partitions) = (gone + length - kept, partitions + 1);
        }
    }
    Ok((gone, partitions))
}
