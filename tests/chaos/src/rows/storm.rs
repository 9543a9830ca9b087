//! Members of the group come and go every two seconds.

use std::time::{Duration, Instant};

use anyhow::Result;
use eadt_processor::Settings;

use crate::chance::Chance;
use crate::feeder::Feeder;
use crate::part::Part;
use crate::row::{Outcome, Row, Run};
use crate::story::Story;
use crate::world::{Cluster, LIMIT, World};

pub const ROW: Row = Row {
    name: "storm",
    fault: "of three processors one is killed or comes back every two seconds",
    promise: "nothing lost or doubled, and progress",
    without: "atomic steps (outputs before state and positions), and a look at what was said when state is read",
    full: 200,
    batch: 40,
    short: 6,
    off: 6,
    run,
};

const PAUSE: Duration = Duration::from_secs(2);

fn run(run: Run) -> Result<Outcome> {
    let mut chance = Chance::new(run.seed);
    let mut world = World::start(Cluster::One, run.bites.then_some("atomic-steps"))?;
    // A member that does not come back is given up after the shortest time that brokers allow.
    world.properties.insert("session.timeout.ms".into(), "6000".into());
    let start = |number: usize, waits: bool| {
        let settings = Settings { instance: format!("processor-{number}"), ..world.settings() };
        world.processor(settings, waits.then_some(("step.torn", 2)))
    };
    let watch = world.watch()?;
    let mut outcome = Outcome::default();
    let feeder = Feeder::start(&world.bus, &world.prefix, Story::new(run.seed, 4), Duration::from_millis(20))?;
    let mut parts: Vec<Option<Part>> = vec![Some(start(0, run.bites)?), None, None];
    let begun = Instant::now();
    for _ in 0..run.rounds {
        std::thread::sleep(PAUSE);
        let number = chance.below(3) as usize;
        match parts[number].take() {
            Some(part) => part.kill()?,
            None => parts[number] = Some(start(number, run.bites)?),
        }
        outcome.rounds += 1;
    }
    let seen = watch.count();
    // Four workloads close a window every ten seconds of the story.
    let due = feeder.seconds() / 10 * 4;
    outcome.peak("windows out during the storm (% of those due)", 100.0 * seen as f64 / due.max(1) as f64);
    outcome.count("seconds of storm", begun.elapsed().as_secs());
    let story = feeder.finish()?;
    for part in parts.iter_mut().filter_map(Option::take) {
        part.kill()?;
    }
    // All three, so that nobody waits for one that is gone.
    let parts = (0..3).map(|number| start(number, false)).collect::<Result<Vec<_>>>()?;
    let folded = world.await_folded(LIMIT)?;
    outcome.check(folded, || format!("not everything was folded: {}", parts[0].tail()));
    outcome.take(world.judge(&story)?);
    Ok(outcome)
}
