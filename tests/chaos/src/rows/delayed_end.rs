//! The end of a transaction arrives late: after the client library has sent it again and the next transaction is open.

use std::time::Duration;

use anyhow::{Context, Result};

use crate::chance::Chance;
use crate::feeder::Feeder;
use crate::proxy::NextEnd;
use crate::row::{Outcome, Row, Run};
use crate::story::Story;
use crate::world::{Cluster, LIMIT, World, explain};

pub const ROW: Row = Row {
    name: "delayed-end",
    fault: "EndTxn kept back by a proxy: delivered into the next transaction, or 1 to 60 s late",
    promise: "never ends a later transaction; every window and decision once",
    without: "a fresh producer after a step during which a connection was lost",
    full: 100,
    batch: 10,
    short: 2,
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
        if run.bites || round % 2 == 0 {
            // Held in one step, delivered in the middle of the next one, which then dies: what it wrote must not be seen.
            let mut part = world.processor(world.settings(), Some(("step.filled", 3)))?;
            part.await_phase(LIMIT)?;
            proxy.on_next_end(NextEnd::Hold);
            part.go_on()?;
            explain(proxy.await_held(LIMIT), &part)?;
            part.await_phase(LIMIT)?;
            let answer = proxy.deliver()?;
            outcome.count("old ends that the broker took", u64::from(answer == 0));
            outcome.check(answer != 0, || "the broker took an end of the step before as one of the open step".into());
            part.kill()?;
        } else {
            let mut part = world.processor(world.settings(), None)?;
            explain(watch.await_next(std::time::Instant::now()), &part)?;
            // Most delays are short, and all of the first: how long they are changes little, and time is dear.
            let long = chance.below(5) == 0 && round > 4;
            let most = if long { 60 } else { 8 };
            let drawn = 1 + chance.below(most);
            // Once for sure longer than a transaction may take.
            let seconds = if round == 1 { 12 } else { drawn };
            let ends = proxy.ends();
            proxy.on_next_end(NextEnd::Delay(Duration::from_secs(seconds)));
            let begun = std::time::Instant::now();
            while proxy.ends() == ends {
                std::thread::sleep(Duration::from_millis(5));
            }
            std::thread::sleep(Duration::from_secs(seconds));
            let next = explain(watch.await_next(std::time::Instant::now()), &part)?;
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
