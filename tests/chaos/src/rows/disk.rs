//! The archiver's disk is full for a while.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use eadt_archiver::ArchiverSettings;
use eadt_lake::Archive;

use super::archive::{OF_A_STORY, await_archived, judge};
use crate::chance::Chance;
use crate::disk::Disk;
use crate::feeder::Feeder;
use crate::part::{Part, Service};
use crate::row::{Outcome, Row, Run};
use crate::story::Story;
use crate::world::{Cluster, LIMIT, World, explain};

pub const ROW: Row = Row {
    name: "disk-full",
    fault: "the archiver's disk is full but for some bytes (a file system of its own where the harness may mount one; elsewhere no file may grow), and later it is not",
    promise: "it stops and skips nothing, leaves no torn file, and goes on",
    without: "stopping (what cannot be written is passed over)",
    full: 100,
    batch: 20,
    short: 2,
    off: 3,
    run,
};

/// A file of these rows has some ten kilobytes, two or three pages: it is refused at its begin or in its middle.
const ROWS: usize = 150;
const MOST_BYTES: u64 = 8_000;
/// The log line of each attempt of the archiver that failed.
const FAILED_ATTEMPT: &str = "archiving waits, and nothing is skipped";
const RECOVERED: &str = "it works again";
const PAUSE: Duration = Duration::from_millis(300);

fn run(run: Run) -> Result<Outcome> {
    let mut chance = Chance::new(run.seed);
    let world = World::start(Cluster::One, run.bites.then_some("stop-when-full"))?;
    let mut outcome = Outcome::default();
    let place = world.dir().join("archive");
    let disk = Disk::new(&place)?;
    let settings = ArchiverSettings {
        location: place.display().to_string(),
        roll_rows: ROWS,
        roll_seconds: 0.5,
        retry_max_seconds: 0.5,
        ..ArchiverSettings::default()
    };
    let feeder = Feeder::start(&world.bus, &world.prefix, Story::new(run.seed, 4), Duration::from_millis(10))?;
    let mut part = world.part(Service::Archiver(Box::new(settings)), None)?;
    let archive = Archive::folder(&place)?;
    for _ in 0..run.rounds {
        explain(another_file(&archive, &mut part), &part)?;
        explain(recovery(&mut part), &part)?;
        let before = complaints(&part);
        disk.fill_but(chance.below(MOST_BYTES), &part)?;
        if run.bites {
            std::thread::sleep(PAUSE * 5);
        } else {
            explain(wait(&mut part, "the archiver does not notice a full disk", |part| complaints(part) != before), &part)?;
            std::thread::sleep(PAUSE);
        }
        disk.clear(&part)?;
        let room = Instant::now();
        explain(another_file(&archive, &mut part), &part)?;
        outcome.took("from room to the next file", room.elapsed().as_secs_f64());
        outcome.count("times that a file system was full", u64::from(disk.is_mounted()));
        outcome.rounds += 1;
    }
    let story = feeder.finish()?;
    let reached = await_archived(&world, &archive, &OF_A_STORY, &mut part, LIMIT)?;
    outcome.check(reached, || format!("not everything was archived: {}", part.tail()));
    crate::world::runs(&mut part)?;
    part.kill()?;
    judge(&world, &place, &archive, &OF_A_STORY, &mut outcome)?;
    outcome.count("events", story.events.len() as u64);
    Ok(outcome)
}

/// Waits until something is so while the part runs; `what` is the error.
fn wait(part: &mut Part, what: &str, is_so: impl Fn(&Part) -> bool) -> Result<()> {
    let begun = Instant::now();
    while !is_so(part) {
        crate::world::runs(part)?;
        ensure!(begun.elapsed() < LIMIT, "{what} within {LIMIT:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Waits until the archiver has logged that it works again: a disk that is full again while it still writes what waited belongs to the same
/// failure, which it logs once.
fn recovery(part: &mut Part) -> Result<()> {
    let is_failing =
        |log: &str| log.lines().rfind(|line| line.contains(FAILED_ATTEMPT)).is_some_and(|line| !line.contains(RECOVERED));
    wait(part, "it does not log that it works again", |part| !is_failing(&part.log()))
}

fn complaints(part: &Part) -> usize {
    part.log().matches(FAILED_ATTEMPT).count()
}

fn another_file(archive: &Archive, part: &mut Part) -> Result<()> {
    let count = || archive.files().map_or(0, |listing| listing.files.len());
    let before = count();
    wait(part, "no file appears", |_| count() > before)
}
