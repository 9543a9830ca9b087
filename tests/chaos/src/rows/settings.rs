//! Processes that are killed and started again at once with other settings: the group still knows the old ones by their names.

use std::time::{Duration, Instant};

use anyhow::Result;
use anyhow::ensure;
use eadt_archiver::ArchiverSettings;
use eadt_bus::{Bus, MemberOptions, Membership, PollEvent, ProducerRecord, TopicPartition, topics};
use eadt_schemas::Topic;

use super::archive;
use crate::feeder::{Feeder, send};
use crate::part::Service;
use crate::row::{Outcome, Row, Run};
use crate::story::Story;
use crate::world::{Cluster, LIMIT, PARTITIONS, World};

pub const ROW: Row = Row {
    name: "settings",
    fault: "SIGKILL of the processor and the archiver, which are started again at once, of the same group and name, with another prefix of topics; or after partitions were added; or of a version that reads one topic more",
    promise: "both work on what they are now to read: windows come, and the archive goes on, within a minute",
    without: "a name in the group that says what its member reads",
    full: 30,
    batch: 3,
    short: 3,
    off: 1,
    run,
};

/// How long the fault must last when it bites: longer than a session.
const AT_WORK: Duration = Duration::from_mins(1);
const PREFIXES: [&str; 2] = ["chaos.", "other."];

/// Waits until it is so; how long that took, `None` if it did not come to it.
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

/// Returns the archiver group's position over all partitions of a topic; `None` if a partition was never archived.
fn archived(world: &World, topic: Topic, partitions: i32) -> Result<Option<i64>> {
    let parts: Vec<_> = (0..partitions).map(|partition| TopicPartition::new(world.topic(topic), partition)).collect();
    Ok(world.bus.committed("archiver", &parts)?.into_iter().sum())
}

/// Writes a record to a partition of the dead letters, which are not merged with others.
fn send_dead_letter(world: &World, partition: i32) -> Result<()> {
    let mut producer = world.bus.producer("chaos-settings")?;
    let record = ProducerRecord {
        topic: world.topic(Topic::DeadLetters).into(),
        partition: Some(partition),
        key: None,
        value: Some("{}".into()),
        headers: Vec::new(),
    };
    send(&mut *producer, &record)?;
    producer.flush(LIMIT)?;
    Ok(())
}

/// Is a member of the archiver's group and name for a moment, as of a version that does not read the dead letters, and goes
/// without leaving the group: no setting adds a topic, a version does.
fn join_without_dead_letters(world: &World, settings: &ArchiverSettings) -> Result<()> {
    let topics = Topic::ALL.into_iter().filter(|topic| *topic != Topic::DeadLetters);
    let membership = Membership::Static(settings.instance.clone());
    let topics = topics.map(|topic| world.topic(topic).into()).collect();
    let mut member = world.bus.member(MemberOptions { group: settings.group.clone(), membership, topics })?;
    let assigned = until(LIMIT, || {
        let mut events = Vec::new();
        member.poll(1, Duration::from_millis(100), &mut events)?;
        Ok(events.iter().any(|event| matches!(event, PollEvent::Assigned(partitions) if !partitions.is_empty())))
    })?;
    ensure!(assigned.is_some(), "the member without dead letters got no partition within {LIMIT:?}");
    Ok(())
}

/// The position of the archiver's group in a partition of the dead letters.
fn dead_letters_archived(world: &World, partition: i32) -> Result<Option<i64>> {
    Ok(world.bus.committed("archiver", &[TopicPartition::new(world.topic(Topic::DeadLetters), partition)])?[0])
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
        let files_settings = archive::settings(&place);
        let partition = match round % 4 {
            2 => {
                partitions += 1;
                world.bus.add_partitions(&world.topic(Topic::DeadLetters), partitions)?;
                Some(partitions - 1)
            }
            3 if !run.bites => {
                join_without_dead_letters(&world, &files_settings)?;
                Some(0)
            }
            _ => None,
        };
        let letters = partition.map(|partition| dead_letters_archived(&world, partition)).transpose()?.flatten();
        if let Some(partition) = partition {
            send_dead_letter(&world, partition)?;
        }
        let before = archived(&world, Topic::GpuTelemetry, PARTITIONS)?.unwrap_or(0);
        let begun = Instant::now();
        let processor = world.processor(world.settings(), None)?;
        let archiver = world.part(Service::Archiver(Box::new(files_settings)), None)?;
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
        if let Some(partition) = partition.filter(|_| !run.bites) {
            let seen = until(limit, || Ok(dead_letters_archived(&world, partition)? > letters))?;
            outcome.check(seen.is_some(), || {
                format!("partition {partition} of the dead letters, which was added, is not archived: {}", archiver.tail())
            });
        }
        processor.kill()?;
        archiver.kill()?;
    }
    for feeder in feeders {
        feeder.hush()?;
    }
    Ok(outcome)
}
