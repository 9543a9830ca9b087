//! Members of the group come and go every two seconds.

use std::time::{Duration, Instant};

use anyhow::Result;
use eadt_processor::ProcessorSettings;

use crate::chance::Chance;
use crate::feeder::Feeder;
use crate::part::Part;
use crate::row::{Outcome, Row, Run};
use crate::story::Story;
use crate::world::{Cluster, LIMIT, World};

pub const ROW: Row = Row {
    name: "storm",
    fault: "of three processors one leaves (SIGTERM), is killed or comes back every two seconds",
    promise: "nothing lost or doubled, and progress in every partition",
    without: "atomic steps (outputs before state and positions), and a look at what was said when state is read",
    full: 200,
    batch: 40,
    short: 4,
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
        let settings = ProcessorSettings { instance: format!("processor-{number}"), ..world.settings() };
        world.processor(settings, waits.then_some(("step.torn", 2)))
    };
    let watch = world.watch()?;
    let mut outcome = Outcome::default();
    let feeder = Feeder::start(&world.bus, &world.prefix, Story::new(run.seed, 4), Duration::from_millis(20))?;
    let mut parts: Vec<Option<Part>> = vec![Some(start(0, run.bites)?), None, None];
    let begun = Instant::now();
    // Progress: every partition has another window, again and again. The storm lasts until it was so once more.
    let (mut round, mut since) = (0, begun);
    while round < run.rounds || !(run.bites || watch.has_all_after(since) || since.elapsed() > LIMIT) {
        round += 1;
        std::thread::sleep((PAUSE * round).saturating_sub(begun.elapsed()));
        if watch.has_all_after(since) {
            outcome.peak("longest time until every partition had another window (s)", since.elapsed().as_secs_f64());
            since = Instant::now();
        }
        let number = chance.below(3) as usize;
        match parts[number].take() {
            // Switched off, it waits to be killed.
            Some(part) if run.bites || chance.below(2) == 0 => part.kill()?,
            Some(part) => {
                part.stop(LIMIT)?;
                outcome.count("members that left in good order", 1);
            }
            None => parts[number] = Some(start(number, run.bites)?),
        }
    }
    outcome.rounds = run.rounds;
    outcome.check(run.bites || watch.has_all_after(since), || format!("some partition had no window for {:?}", since.elapsed()));
    let seen = watch.count();
    // Four workloads close a window every ten seconds of the story.
    let due = feeder.seconds() / 10 * 4;
    outcome
        .low("windows out at the end of a storm (% of those due), in the worst batch", 100.0 * seen as f64 / due.max(1) as f64);
    outcome.count("seconds of storm", begun.elapsed().as_secs());
    let story = feeder.finish()?;
    for part in parts.iter_mut().filter_map(Option::take) {
        part.kill()?;
    }
    // All three, so that none waits for one that is gone.
    let parts = (0..3).map(|number| start(number, false)).collect::<Result<Vec<_>>>()?;
    let folded = world.await_folded(LIMIT)?;
    outcome.check(folded, || format!("not everything was folded: {}", parts[0].tail()));
    outcome.take(world.judge(&story)?);
    Ok(outcome)
}
