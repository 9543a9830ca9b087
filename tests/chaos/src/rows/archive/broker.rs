//! The only broker is killed under the archiver, and comes back.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use eadt_archiver::ArchiverSettings;
use eadt_lake::Archive;

use super::{OF_A_STORY, await_archived, judge, settings};
use crate::chance::Chance;
use crate::feeder::Feeder;
use crate::part::{Part, Service};
use crate::row::{Outcome, Row, Run};
use crate::story::Story;
use crate::world::{Cluster, LIMIT, World, explain, runs, supervise};

pub const ROW: Row = Row {
    name: "archiver-broker",
    fault: "SIGKILL or SIGTERM of the only broker under the archiver, at any time and after a file before its position, which comes back, sometimes after the member's session has run out; of three times SIGKILL of the archiver, too, while the broker is away, or once it is back; each that is started makes larger or smaller files",
    promise: "each offset in exactly one file, readable by pyarrow, too",
    without: "going on from the files (from the group's positions instead)",
    full: 100,
    batch: 20,
    short: 1,
    off: 2,
    run,
};

/// Fate of the archiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Lives,
    DiesMeanwhile,
    DiesAfterwards,
}

const FATES: [Fate; 3] = [Fate::Lives, Fate::DiesMeanwhile, Fate::DiesAfterwards];

/// How large the files of an archiver are.
#[derive(Debug, Clone, Copy)]
enum Size {
    Large,
    Small,
}

fn sized(place: &Path, size: Size) -> ArchiverSettings {
    let (roll_rows, roll_seconds) = match size {
        Size::Large => (600, 0.5),
        Size::Small => (20, 0.1),
    };
    ArchiverSettings { roll_rows, roll_seconds, ..settings(place) }
}

/// Longer than a session.
const LONG: Duration = Duration::from_secs(8);

fn run(run: Run) -> Result<Outcome> {
    let (mut outcome, mut chance) = (Outcome::default(), Chance::new(run.seed));
    let mut world = World::start(Cluster::One, run.bites.then_some("files"))?;
    // The shortest that brokers allow, so that it also runs out while the broker is away.
    world.properties.insert("session.timeout.ms".into(), "6000".into());
    // The backlog comes in parts.
    world.properties.insert("fetch.message.max.bytes".into(), "8000".into());
    let place = world.dir().join("archive");
    let archive = Archive::folder(&place)?;
    let start = |world: &World, size, wait| world.part(Service::Archiver(Box::new(sized(&place, size))), wait);
    let another = |world: &World, part: &mut Part, outcome: &mut Outcome| {
        let made = another_file(&archive, part, || start(world, Size::Small, None), outcome);
        explain(made, part)
    };
    let mut sizes = Chance::new(run.seed);
    // Without the mitigation a small file ends within a large one, which alone nothing can mend.
    let mut size = |wanted| if run.bites { wanted } else { [Size::Large, Size::Small][sizes.below(2) as usize] };
    let feeder = Feeder::start(&world.bus, &world.prefix, Story::new(run.seed, 4), Duration::from_millis(30))?;
    let mut part = start(&world, size(Size::Large), None)?;
    for round in 0..run.rounds {
        let waits = run.bites || chance.below(2) == 0;
        let fate = if run.bites { Fate::DiesMeanwhile } else { FATES[chance.below(3) as usize] };
        if waits {
            part.kill()?;
            let wanted = if round == 0 { Size::Large } else { Size::Small };
            part = start(&world, size(wanted), Some(("archive.rolled", 1 + chance.below(3))))?;
            if !reached(&mut part, run.bites, &mut outcome)? {
                break;
            }
        } else {
            another(&world, &mut part, &mut outcome)?;
            std::thread::sleep(Duration::from_millis(chance.below(1500)));
        }
        let killed = Instant::now();
        if chance.below(3) == 0 {
            world.brokers[0].stop()?;
        } else {
            world.brokers[0].kill()?;
        }
        if fate == Fate::DiesMeanwhile {
            part.kill()?;
            part = start(&world, size(Size::Small), None)?;
        } else if waits {
            part.go_on()?;
        }
        std::thread::sleep(if chance.below(3) == 0 { LONG } else { Duration::ZERO });
        world.brokers[0].start_again()?;
        if fate == Fate::DiesAfterwards {
            std::thread::sleep(Duration::from_millis(chance.below(1500)));
            part.kill()?;
            part = start(&world, size(Size::Small), None)?;
        }
        outcome.rounds += 1;
        if !run.bites {
            another(&world, &mut part, &mut outcome)?;
            outcome.took("from the broker's end to the next file", killed.elapsed().as_secs_f64());
        }
    }
    // None that still waits somewhere.
    part.kill()?;
    part = start(&world, size(Size::Small), None)?;
    let story = feeder.finish()?;
    let limit = if run.bites { Duration::from_secs(20) } else { LIMIT };
    let reached = await_archived(&world, &archive, &OF_A_STORY, &mut part, limit)?;
    outcome.check(reached, || format!("not everything was archived: {}", part.tail()));
    if !run.bites {
        runs(&mut part)?;
    }
    part.kill()?;
    judge(&world, &place, &archive, &OF_A_STORY, &mut outcome)?;
    outcome.count("events", story.events.len() as u64);
    Ok(outcome)
}

/// Waits for a file whose position is not reported yet; false if the archiver, switched off, will not write beside what it
/// finds.
fn reached(part: &mut Part, bites: bool, outcome: &mut Outcome) -> Result<bool> {
    let reached = part.await_phase(LIMIT);
    if bites && part.ended()?.is_some() {
        outcome.check(false, || format!("it ended: {}", part.tail()));
        outcome.rounds += 1;
        return Ok(false);
    }
    reached.map(|()| true)
}

/// Waits for a newer file; a member that waits in a phase is let go on, and a fenced one is started again.
fn another_file(archive: &Archive, part: &mut Part, again: impl Fn() -> Result<Part>, outcome: &mut Outcome) -> Result<()> {
    let count = || archive.files().map_or(0, |listing| listing.files.len());
    let (before, begun) = (count(), Instant::now());
    while count() <= before {
        supervise(part, &again, outcome)?;
        runs(part)?;
        if part.has_reached() {
            part.go_on()?;
        }
        ensure!(begun.elapsed() < LIMIT, "no file appears within {LIMIT:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
