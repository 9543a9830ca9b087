//! A processor that is stopped in the middle of a step and wakes up after another one has taken its place.

use std::time::Duration;

use anyhow::Result;

use crate::feeder::Feeder;
use crate::row::{Outcome, Row, Run};
use crate::story::Story;
use crate::world::{Cluster, LIMIT, World, explain};

pub const ROW: Row = Row {
    name: "zombie",
    fault: "SIGSTOP in an open step, another one of its name takes over, SIGCONT; also past the transaction timeout",
    promise: "fenced: nothing of the zombie's open step is visible, and one of the two ends",
    without: "fencing by a stable name, and positions in the same step",
    full: 50,
    batch: 5,
    short: 2,
    off: 2,
    run,
};

/// Longer than the transaction timeout of ten seconds.
const LONG: Duration = Duration::from_secs(12);

fn run(run: Run) -> Result<Outcome> {
    let world = World::start(Cluster::One, run.bites.then_some("fencing,atomic-steps"))?;
    let watch = world.watch()?;
    let mut outcome = Outcome::default();
    let feeder = Feeder::start(&world.bus, &world.prefix, Story::new(run.seed, 3), Duration::from_millis(20))?;
    for round in 0..run.rounds {
        let mut old = world.processor(world.settings(), Some((if run.bites { "step.outputs" } else { "step.filled" }, 3)))?;
        old.await_phase(LIMIT)?;
        old.freeze(true)?;
        if round % 2 == 1 && !run.bites {
            std::thread::sleep(LONG);
        }
        let mut new = world.processor(world.settings(), None)?;
        // Windows of the new one prove that it has taken over what the old one was about to write.
        explain(watch.await_next(std::time::Instant::now()), &new)?;
        old.freeze(false)?;
        old.go_on()?;
        let begun = std::time::Instant::now();
        if run.bites {
            std::thread::sleep(Duration::from_secs(2));
        } else {
            // One of the two gets the error that it was fenced, and ends: the zombie, unless its session had run out, too. Then it joins anew
            // like any process that is started again, and who joined last has the name.
            while old.ended()?.is_none() && new.ended()?.is_none() && begun.elapsed() < LIMIT {
                std::thread::sleep(Duration::from_millis(20));
            }
            let lives = old.ended()?.is_none();
            let fenced = if lives { &new } else { &old };
            if lives {
                outcome.count("zombies that joined anew", 1);
            }
            outcome.check(fenced.log().contains("fenced"), || format!("nobody was fenced: {}\n{}", old.tail(), new.tail()));
            outcome.took("from waking up until one of the two has ended", begun.elapsed().as_secs_f64());
        }
        old.kill()?;
        new.kill()?;
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
