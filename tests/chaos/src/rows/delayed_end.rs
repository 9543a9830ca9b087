//! A request of a transaction arrives late: its end after the client library has sent it again and the next transaction is open, any
//! other one behind those that were sent after it.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::chance::Chance;
use crate::feeder::Feeder;
use crate::proxy::{Next, Proxy, Request};
use crate::row::{Outcome, Row, Run};
use crate::story::Story;
use crate::world::{Cluster, LIMIT, Watch, World, explain};

pub const ROW: Row = Row {
    name: "delayed-end",
    fault: "EndTxn kept back by a proxy: delivered into the next transaction, or 1 to 60 s late; another request of a step, and the one that begins a producer, lost with its connection and delivered behind a later step, or late",
    promise: "never ends a later transaction; every window and decision once",
    without: "a fresh producer after a step during which a connection was lost",
    full: 100,
    batch: 10,
    short: 4,
    off: 2,
    run,
};

fn run(run: Run) -> Result<Outcome> {
    let mut chance = Chance::new(run.seed);
    let world = World::start(Cluster::Proxied, run.bites.then_some("fresh-producer"))?;
    let proxy = world.proxy.as_ref().context("a proxy")?;
    let watch = world.watch()?;
    let mut outcome = Outcome::default();
    let feeder = Feeder::start(&world.bus, &world.prefix, Story::new(run.seed, 3), Duration::from_millis(20))?;
    for round in 0..run.rounds {
        if !run.bites && round % 4 >= 2 {
            other(&world, proxy, &watch, round % 4 == 2, &mut chance, &mut outcome)?;
        } else if run.bites || round % 2 == 0 {
            // Held in one step, delivered in the middle of the next one, which then dies: what it wrote must not be seen.
            let mut part = world.processor(world.settings(), Some(("step.filled", 3)))?;
            part.await_phase(LIMIT)?;
            proxy.on_next(Request::EndTxn, Next::Hold);
            part.go_on()?;
            explain(proxy.await_held(LIMIT), &part)?;
            part.await_phase(LIMIT)?;
            let answer = proxy.deliver_end()?;
            outcome.count("old ends that the broker took", u64::from(answer == 0));
            outcome.check(answer != 0, || "the broker took an end of the step before as one of the open step".into());
            part.kill()?;
        } else {
            let mut part = world.processor(world.settings(), None)?;
            explain(watch.await_next(Instant::now()), &part)?;
            // Most delays are short, and all of the first: how long they are changes little, and time is dear.
            let long = chance.below(5) == 0 && round > 4;
            let most = if long { 60 } else { 8 };
            let drawn = 1 + chance.below(most);
            // Once for sure longer than a transaction may take.
            let seconds = if round == 1 { 12 } else { drawn };
            proxy.on_next(Request::EndTxn, Next::Delay(Duration::from_secs(seconds)));
            let begun = Instant::now();
            explain(proxy.await_taken(LIMIT), &part)?;
            std::thread::sleep(Duration::from_secs(seconds));
            let next = explain(watch.await_next(Instant::now()), &part)?;
            outcome.peak("longest delay (s)", seconds as f64);
            outcome.took("stall with a delayed end", (begun.elapsed() + next).as_secs_f64());
            crate::world::runs(&mut part)?;
            part.kill()?;
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

/// The others of a step, and the one that begins a producer.
const OTHERS: [Request; 5] =
    [Request::Produce, Request::AddPartitionsToTxn, Request::AddOffsetsToTxn, Request::TxnOffsetCommit, Request::InitProducerId];
/// Less than a step may take, and more than that.
const LATE_SECONDS: u64 = 12;

/// Another request than the end is lost, and delivered after steps that were made meanwhile, or comes late.
fn other(world: &World, proxy: &Proxy, watch: &Watch, lost: bool, chance: &mut Chance, outcome: &mut Outcome) -> Result<()> {
    let request = OTHERS[chance.below(OTHERS.len() as u64) as usize];
    let late = Duration::from_secs(1 + chance.below(LATE_SECONDS));
    let on_next = || proxy.on_next(request, if lost { Next::Hold } else { Next::Delay(late) });
    // A producer begins with its process.
    let begins = request == Request::InitProducerId;
    if begins {
        on_next();
    }
    let mut part = world.processor(world.settings(), None)?;
    if !begins {
        explain(watch.await_next(Instant::now()), &part)?;
        on_next();
    }
    let begun = Instant::now();
    explain(proxy.await_taken(LIMIT), &part)?;
    if !lost {
        std::thread::sleep(late);
    }
    explain(watch.await_next(Instant::now()), &part)?;
    if lost {
        // The broker's answer does not matter, as long as it changes nothing.
        proxy.deliver()?;
        explain(watch.await_next(Instant::now()), &part)?;
        outcome.count("other requests that were lost, and came after a later step", 1);
    } else {
        outcome.count("other requests that came late", 1);
    }
    outcome.took("stall with another request lost or late", begun.elapsed().as_secs_f64());
    crate::world::runs(&mut part)?;
    part.kill()
}
