//! Processes that are killed and started again at once with other settings: the group still knows the old ones by their names.

use std::time::{Duration, Instant};

use anyhow::Result;
use eadt_bus::{Bus, ProducerRecord, TopicPartition, topics};
use eadt_schemas::Topic;

use super::archive;
use crate::feeder::{Feeder, send};
use crate::part::Service;
use crate::row::{Outcome, Row, Run};
use crate::story::Story;
use crate::world::{Cluster, LIMIT, PARTITIONS, World};

pub const ROW: Row = Row {
    name: "settings",
    fault: "SIGKILL of the processor and the archiver, which are started again at once, of the same group and name, with another prefix of topics; or after partitions were added",
    promise: "both work on what they are now to read: windows come, and the archive goes on, within a minute",
    without: "a name in the group that says what its member reads",
    full: 30,
    batch: 3,
    short: 2,
    off: 1,
    run,
};

/// How long the fault must last when it bites: longer than a session.
const AT_WORK: Duration = Duration::from_mins(1);
const PREFIXES: [&str; 2] = ["chaos.", "other."];

/// Waits until it is so; how long that took, `None` where it did not come to it.
fn until(limit: Duration, mut is_so: impl FnMut() -> Result<bool>) -> Result<Option<f64>> {
    let begun = Instant::now();
    while begun.elapsed() < limit {
        if is_so()? {
            return Ok(Some(begun.elapsed().as_secs_f64()));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(None)
}

/// What the archiver's group has of all partitions of a topic together; `None`: a partition was never archived.
fn archived(world: &World, topic: Topic, partitions: i32) -> Result<Option<i64>> {
    let parts: Vec<_> = (0..partitions).map(|partition| TopicPartition::new(world.topic(topic), partition)).collect();
    Ok(world.bus.committed("archiver", &parts)?.into_iter().sum())
}

fn run(run: Run) -> Result<Outcome> {
    let mut world = World::start(Cluster::One, run.bites.then_some("member-name"))?;
    for topic in topics::desired(PREFIXES[1], PARTITIONS, 1) {
        world.bus.create_topic(&topic)?;
    }
    let mut outcome = Outcome::default();
    let limit = if run.bites { AT_WORK } else { LIMIT };
    let (mut watches, mut feeders) = (Vec::new(), Vec::new());
    for (number, prefix) in PREFIXES.iter().enumerate() {
        (*prefix).clone_into(&mut world.prefix);
        watches.push(world.watch()?);
        let story = Story::new(run.seed + number as u64, 3);
        feeders.push(Feeder::start(&world.bus, prefix, story, Duration::from_millis(20))?);
    }
    let mut partitions = PARTITIONS;
    for round in 0..=run.rounds as usize {
        PREFIXES[round % 2].clone_into(&mut world.prefix);
        let place = world.dir().join(PREFIXES[round % 2]);
        if round % 3 == 2 {
            // Of a topic whose records nobody merges with others'.
            partitions += 1;
            world.bus.add_partitions(&world.topic(Topic::DeadLetters), partitions)?;
            let mut producer = world.bus.producer("chaos-settings")?;
            let record = ProducerRecord {
                topic: world.topic(Topic::DeadLetters).into(),
                partition: Some(partitions - 1),
                key: None,
                value: Some("{}".into()),
                headers: Vec::new(),
            };
            send(&mut *producer, &record)?;
            producer.flush(LIMIT)?;
        }
        let before = archived(&world, Topic::GpuTelemetry, PARTITIONS)?.unwrap_or(0);
        let begun = Instant::now();
        let processor = world.processor(world.settings(), None)?;
        let archiver = world.part(Service::Archiver(Box::new(archive::settings(&place))), None)?;
        let windows = until(limit, || Ok(watches[round % 2].has_all_after(begun)))?;
        let files = until(limit, || Ok(archived(&world, Topic::GpuTelemetry, PARTITIONS)?.unwrap_or(0) > before))?;
        if round > 0 {
            outcome.check(windows.is_some(), || format!("no window of {} within {limit:?}: {}", world.prefix, processor.tail()));
            outcome
                .check(files.is_some(), || format!("nothing of {} archived within {limit:?}: {}", world.prefix, archiver.tail()));
            outcome
                .took("from the start with other settings to windows in every partition", windows.unwrap_or(limit.as_secs_f64()));
            outcome.rounds += 1;
        }
        if round % 3 == 2 && !run.bites {
            let new = TopicPartition::new(world.topic(Topic::DeadLetters), partitions - 1);
            let seen = until(limit, || Ok(world.bus.committed("archiver", std::slice::from_ref(&new))?[0].is_some()))?;
            outcome.check(seen.is_some(), || format!("{new}, which was added, is not archived: {}", archiver.tail()));
        }
        processor.kill()?;
        archiver.kill()?;
    }
    for feeder in feeders {
        feeder.hush()?;
    }
    Ok(outcome)
}
