//! The processor is killed in every phase of a step and of its restart.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::chance::Chance;
use crate::feeder::Feeder;
use crate::proxy::NextEnd;
use crate::row::{Outcome, Row, Run};
use crate::story::Story;
use crate::world::{Cluster, LIMIT, World, explain};

pub const ROW: Row = Row {
    name: "killed",
    fault: "SIGKILL of the processor in named phases of a step and of its restart, and at any time",
    promise: "every window and decision once, and right",
    without: "atomic steps (outputs before state and positions), and a look at what was said when state is read",
    full: 1000,
    batch: 50,
    short: 11,
    off: 4,
    run,
};

/// Where it is killed.
#[derive(Debug, Clone, Copy)]
enum Phase {
    /// The process waits there, the third time that it comes there after it wrote windows.
    Step(&'static str),
    /// It waits there the first time.
    Restart(&'static str),
    /// The end of its transaction is on the way, and never arrives.
    EndLost,
    /// It is on the way and arrives after the kill.
    EndArrives,
    AnyTime,
}

const PHASES: [Phase; 11] = [
    Phase::AnyTime,
    Phase::Step("step.begun"),
    Phase::Step("step.filled"),
    Phase::Restart("restore.begun"),
    Phase::Step("step.ready"),
    Phase::EndLost,
    Phase::Restart("restore.positions"),
    Phase::EndArrives,
    Phase::Step("step.committed"),
    Phase::Restart("restore.state"),
    Phase::AnyTime,
];

fn run(run: Run) -> Result<Outcome> {
    let mut chance = Chance::new(run.seed);
    let world = World::start(Cluster::Proxied, run.bites.then_some("atomic-steps"))?;
    let proxy = world.proxy.as_ref().context("a proxy")?;
    let watch = world.watch()?;
    let mut outcome = Outcome::default();
    let feeder = Feeder::start(&world.bus, &world.prefix, Story::new(run.seed, 3), Duration::from_millis(10))?;
    let mut killed = Instant::now();
    let first = chance.below(PHASES.len() as u64) as usize;
    for round in 0..run.rounds as usize {
        let phase = if run.bites { Phase::Step("step.torn") } else { PHASES[(first + round) % PHASES.len()] };
        let wait = match phase {
            Phase::Step(name) => Some((name, 3)),
            Phase::Restart(name) => Some((name, 1)),
            Phase::EndLost | Phase::EndArrives | Phase::AnyTime => None,
        };
        let mut part = world.processor(world.settings(), wait)?;
        if !matches!(phase, Phase::Restart(_)) {
            let took = explain(watch.await_next(killed), &part)?;
            outcome.took("from the kill to the next window", took.as_secs_f64());
        }
        match phase {
            Phase::Step(_) | Phase::Restart(_) => part.await_phase(LIMIT)?,
            Phase::EndLost | Phase::EndArrives => {
                proxy.on_next_end(NextEnd::Hold);
                explain(proxy.await_held(LIMIT), &part)?;
            }
            Phase::AnyTime => std::thread::sleep(Duration::from_millis(chance.below(400))),
        }
        part.kill()?;
        killed = Instant::now();
        match phase {
            Phase::EndLost => proxy.lose(),
            Phase::EndArrives => {
                proxy.deliver()?;
            }
            Phase::Step(_) | Phase::Restart(_) | Phase::AnyTime => {}
        }
        outcome.rounds += 1;
    }
    let story = feeder.finish()?;
    let mut part = world.processor(world.settings(), None)?;
    let folded = world.await_folded(LIMIT)?;
    outcome.check(folded, || format!("not everything was folded: {}", part.tail()));
    crate::world::runs(&mut part)?;
    outcome.take(world.judge(&story)?);
    Ok(outcome)
}
