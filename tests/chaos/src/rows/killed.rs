//! The processor is killed in every phase of a step, of its restart and of a rebalance.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use eadt_processor::ProcessorSettings;

use crate::chance::Chance;
use crate::feeder::Feeder;
use crate::part::Part;
use crate::proxy::{Next, Request};
use crate::row::{Outcome, Row, Run};
use crate::story::Story;
use crate::world::{Cluster, LIMIT, Watch, World, explain, process_output, runs};

pub const ROW: Row = Row {
    name: "killed",
    fault: "SIGKILL of the processor in named phases of a step and of its restart, of one of two members as it gives up its partitions, or takes over the other's, and at any time",
    promise: "every window and decision once, and right",
    without: "atomic steps (outputs before state and positions), and a look at what was said when state is read, for kills in a step; for those in a restart and a rebalance nothing is",
    full: 1000,
    batch: 50,
    short: 13,
    off: 4,
    run,
};

/// Points at which a member waits that gives up partitions, or takes some over.
const GIVES_UP: &str = "rebalance.revoked";
const TAKES_OVER: &str = "restore.positions";

/// Point of the kill.
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
    /// Another member joins, and it waits with what it has folded and is to give up. The other one then has everything.
    GivesUp,
    /// The other member waits with what it is to take over, and is killed. The first one then has everything again.
    TakesOver,
}

const PHASES: [Phase; 13] = [
    Phase::AnyTime,
    Phase::Step("step.begun"),
    Phase::Step("step.filled"),
    Phase::Restart("restore.begun"),
    Phase::Step("step.ready"),
    Phase::GivesUp,
    Phase::EndLost,
    Phase::Restart("restore.positions"),
    Phase::EndArrives,
    Phase::Step("step.committed"),
    Phase::TakesOver,
    Phase::Restart("restore.state"),
    Phase::AnyTime,
];

fn run(run: Run) -> Result<Outcome> {
    let mut chance = Chance::new(run.seed);
    let mut world = World::start(Cluster::Proxied, run.bites.then_some("atomic-steps"))?;
    // A member that does not come back is given up after the shortest time that brokers allow.
    world
        .properties
        .extend([("session.timeout.ms", "6000"), ("heartbeat.interval.ms", "1000")].map(|(k, v)| (k.into(), v.into())));
    let proxy = world.proxy.as_ref().context("a proxy")?;
    let second = |wait| world.processor(ProcessorSettings { instance: "processor-1".into(), ..world.settings() }, wait);
    let watch = world.watch()?;
    let mut outcome = Outcome::default();
    let feeder = Feeder::start(&world.bus, &world.prefix, Story::new(run.seed, 3), Duration::from_millis(10))?;
    let (mut killed, mut second_is_known) = (Instant::now(), false);
    let first = chance.below(PHASES.len() as u64) as usize;
    for round in 0..run.rounds as usize {
        let phase = if run.bites { Phase::Step("step.torn") } else { PHASES[(first + round) % PHASES.len()] };
        let wait = match phase {
            Phase::Step(name) => Some((name, 3)),
            Phase::Restart(name) => Some((name, 1)),
            Phase::GivesUp => Some((GIVES_UP, 1)),
            Phase::TakesOver | Phase::EndLost | Phase::EndArrives | Phase::AnyTime => None,
        };
        let mut part = world.processor(world.settings(), wait)?;
        if !matches!(phase, Phase::Restart(_)) {
            let took = explain(watch.await_next(killed), &part)?;
            let what = if second_is_known { "the same after a rebalance" } else { "from the kill to the next window" };
            outcome.took(what, took.as_secs_f64());
        }
        second_is_known = false;
        match phase {
            Phase::Step(_) | Phase::Restart(_) => part.await_phase(LIMIT)?,
            Phase::EndLost | Phase::EndArrives => {
                proxy.on_next(Request::EndTxn, Next::Hold);
                explain(proxy.await_held(LIMIT), &part)?;
            }
            Phase::AnyTime => std::thread::sleep(Duration::from_millis(chance.below(400))),
            Phase::GivesUp => {
                let other = second(None)?;
                part.await_phase(LIMIT)?;
                part = left_alone(part, other, &watch, &mut outcome)?;
                // The next member waits until this one is given up.
                second_is_known = true;
            }
            Phase::TakesOver => {
                let mut other = second(Some((TAKES_OVER, 1)))?;
                other.await_phase(LIMIT)?;
                part = left_alone(other, part, &watch, &mut outcome)?;
            }
        }
        part.kill()?;
        killed = Instant::now();
        match phase {
            Phase::EndLost => proxy.lose(),
            Phase::EndArrives => {
                proxy.deliver_end()?;
            }
            Phase::Step(_) | Phase::Restart(_) | Phase::AnyTime | Phase::GivesUp | Phase::TakesOver => {}
        }
        outcome.rounds += 1;
    }
    let story = feeder.finish()?;
    let mut part = world.processor(world.settings(), None)?;
    let folded = world.await_folded(LIMIT)?;
    outcome.check(folded, || format!("not everything was folded: {}", part.tail()));
    runs(&mut part)?;
    outcome.take(world.judge(&story)?);
    Ok(outcome)
}

/// Kills one of two members; the other one, once it goes on with every partition.
fn left_alone(victim: Part, mut other: Part, watch: &Watch, outcome: &mut Outcome) -> Result<Part> {
    victim.kill()?;
    let killed = Instant::now();
    // Windows written just before may be read just after.
    while !watch.has_all_after(killed + Duration::from_millis(500)) {
        runs(&mut other)?;
        ensure!(killed.elapsed() < LIMIT, "the other member does not go on with every partition: {}", process_output(&other));
        std::thread::sleep(Duration::from_millis(5));
    }
    outcome.took("from a kill in a rebalance until the other member has every partition", killed.elapsed().as_secs_f64());
    Ok(other)
}
