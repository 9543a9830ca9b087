//! Brokers that are killed and come back: the only one, or one of three.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use eadt_bus::TopicPartition;
use eadt_schemas::Topic;

use crate::chance::Chance;
use crate::feeder::Feeder;
use crate::part::Part;
use crate::row::{Outcome, Row, Run};
use crate::story::Story;
use crate::verify::high;
use crate::world::{Cluster, LIMIT, PARTITIONS, World, explain, supervise};

pub const ONE: Row = Row {
    name: "broker",
    fault: "SIGKILL or SIGTERM of the only broker, which comes back, sometimes after the members' sessions have run out",
    promise: "bounded stall, nothing lost, doubled or wrong, even if the broker forgets to mark a transaction: the processor ends it itself",
    without: "going on from the committed positions (from the newest record instead)",
    full: 100,
    batch: 10,
    short: 1,
    off: 1,
    run: one,
};

pub const THREE: Row = Row {
    name: "leader",
    fault: "SIGKILL of one of three brokers, which comes back once windows go on",
    promise: "windows go on without it, nothing lost",
    without: "copies on other brokers",
    full: 30,
    batch: 6,
    short: 1,
    off: 3,
    run: three,
};

/// Longer than a session.
const LONG: Duration = Duration::from_secs(8);
/// Longer than a step may take: the step that is open fails.
const AWAY: Duration = Duration::from_secs(14);

/// Log lines of a processor that ends a transaction which the broker has forgotten.
const ENDS_HANGING: [&str; 2] = ["what this name left open is ended", "may have left open in the group's positions"];

fn one(run: Run) -> Result<Outcome> {
    let mut chance = Chance::new(run.seed);
    let mut world = World::start(Cluster::One, run.bites.then_some("rewind"))?;
    // The shortest that brokers allow, so that it also runs out while the broker is away.
    world.properties.insert("session.timeout.ms".into(), "6000".into());
    let watch = world.watch()?;
    let mut outcome = Outcome::default();
    let feeder = Feeder::start(&world.bus, &world.prefix, Story::new(run.seed, 3), Duration::from_millis(20))?;
    let mut part = world.processor(world.settings(), run.bites.then_some(("step.begun", 3)))?;
    for _ in 0..run.rounds {
        if run.bites {
            part.await_phase(LIMIT)?;
        } else {
            if watch.await_next(Instant::now()).is_err() {
                supervised(&world, &mut part, &mut outcome)?;
                explain(watch.await_next(Instant::now()), &part)?;
            }
            std::thread::sleep(Duration::from_millis(chance.below(500)));
        }
        let killed = Instant::now();
        // With the mitigation off, EADT is tested; a broker that is killed may itself forget confirmed records.
        if run.bites || chance.below(3) == 0 {
            world.brokers[0].stop()?;
        } else {
            world.brokers[0].kill()?;
        }
        if run.bites {
            part.go_on()?;
            std::thread::sleep(AWAY);
        }
        let away = if chance.below(3) == 0 { LONG } else { Duration::ZERO };
        if !run.bites {
            std::thread::sleep(away);
        }
        world.brokers[0].start_again()?;
        let up = Instant::now();
        if run.bites {
            part.await_phase(LIMIT)?;
            part.go_on()?;
        }
        if let Ok(next) = watch.await_next(up) {
            outcome.took("stall", (up - killed + next).as_secs_f64());
            outcome.took("from the broker's return to the next window", next.as_secs_f64());
        } else {
            supervised(&world, &mut part, &mut outcome)?;
            explain(watch.await_next(Instant::now()), &part)?;
        }
        outcome.rounds += 1;
    }
    if run.bites {
        part.kill()?;
        part = world.processor(world.settings(), None)?;
    }
    let story = feeder.finish()?;
    let folded = world.await_folded(LIMIT)? || supervised(&world, &mut part, &mut outcome)? && world.await_folded(LIMIT)?;
    outcome.check(folded, || format!("not everything was folded: {}", part.tail()));
    crate::world::runs(&mut part)?;
    outcome.take(world.judge(&story)?);
    let log = part.log();
    let ended = log.lines().filter(|line| ENDS_HANGING.iter().any(|text| line.contains(text))).count() as u64;
    outcome.count("partitions and positions that were not readable, in which it ended what it had left open", ended);
    Ok(outcome)
}

/// Starts the processor again, if only its supervisor can.
fn supervised(world: &World, part: &mut Part, outcome: &mut Outcome) -> Result<bool> {
    supervise(part, || world.processor(world.settings(), None), outcome)
}

fn three(run: Run) -> Result<Outcome> {
    let mut world = World::start_with(Cluster::Three, None, if run.bites { 1 } else { 3 })?;
    let watch = world.watch()?;
    let mut outcome = Outcome::default();
    let feeder = Feeder::start(&world.bus, &world.prefix, Story::new(run.seed, 3), Duration::from_millis(20))?;
    let mut part = world.processor(world.settings(), None)?;
    for round in 0..run.rounds as usize {
        explain(watch.await_next(Instant::now()), &part)?;
        if !run.bites {
            // A broker that this machine held up may lack copies, and the next one to go would have the last ones.
            world.brokers[0].await_copies()?;
        }
        let victim = round % world.brokers.len();
        let killed = Instant::now();
        world.brokers[victim].kill()?;
        if run.bites {
            // One of three inputs and outputs has its only copy there.
            let is_stopped = !goes_on(&world, Duration::from_secs(30));
            outcome.check(!is_stopped, || "without copies, windows do not go on while their broker is away".into());
        } else {
            // Windows of every partition, so that all their leaders have moved.
            let next = explain(watch.await_next(killed + Duration::from_millis(500)), &part)?;
            let both = goes_on(&world, LIMIT);
            outcome.check(both, || "not every partition goes on without the broker".into());
            outcome.took("stall", next.as_secs_f64());
        }
        world.brokers[victim].start_again()?;
        outcome.rounds += 1;
        // Two partitions have their only copies on two of the three.
        if run.bites && outcome.violations() > 0 {
            break;
        }
    }
    let story = feeder.finish()?;
    if run.bites && outcome.violations() > 0 {
        // The promise is broken; of a log that lost its only copies no more can be promised.
        return Ok(outcome);
    }
    let folded = world.await_folded(LIMIT)?;
    outcome.check(folded, || format!("not everything was folded: {}", part.tail()));
    crate::world::runs(&mut part)?;
    ensure!(watch.count() > 0, "no windows at all");
    outcome.take(world.judge(&story)?);
    Ok(outcome)
}

/// How many windows every partition has.
fn windows(world: &World, limit: Duration) -> Result<Vec<i64>> {
    let topic = world.topic(Topic::EfficiencyWindows);
    (0..PARTITIONS).map(|partition| high(&world.bus, &TopicPartition::new(topic.as_str(), partition), limit)).collect()
}

/// Whether every partition of the windows grows within this time.
fn goes_on(world: &World, limit: Duration) -> bool {
    let begun = Instant::now();
    let Ok(before) = windows(world, limit) else { return false };
    while begun.elapsed() < limit {
        let Ok(now) = windows(world, limit.saturating_sub(begun.elapsed())) else { return false };
        if now.iter().zip(&before).all(|(now, before)| now > before) {
            return true;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    false
}
