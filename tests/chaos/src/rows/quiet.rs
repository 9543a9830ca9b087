//! Sources fall silent without a word: nothing comes any more, and their windows close all the same.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use eadt_bus::Bus;
use eadt_processor::ProcessorSettings;

use crate::feeder::{Feeder, send_events};
use crate::row::{Outcome, Row, Run};
use crate::story::{BASE_SECONDS, Story, WINDOW_SECONDS};
use crate::verify::by_model;
use crate::world::{Cluster, LIMIT, PARTITIONS, Watch, World, runs};

pub const ROW: Row = Row {
    name: "quiet",
    fault: "every source of one partition falls silent at once beside another one that goes on, then those of that one, too; none says anything of it",
    promise: "log time goes on in each partition, and the last windows close, with what was told",
    without: "heartbeats of the partition's owner",
    full: 20,
    batch: 1,
    short: 1,
    off: 1,
    run,
};

/// The workload of each partition: one has the even ones, the other one the odd.
const FIRST_QUIET: usize = 0;
const BUSY: usize = 1;
/// How long a silent source is waited for. Who feeds the busy partition may be starved for nearly as long.
const GRACE: Duration = Duration::from_secs(8);
/// Windows that are begun in the partition that falls silent first.
const WINDOWS: usize = 3;

fn run(run: Run) -> Result<Outcome> {
    let world = World::start(Cluster::One, run.bites.then_some("heartbeats"))?;
    let (watch, mut outcome) = (world.watch()?, Outcome::default());
    let settings = ProcessorSettings { heartbeat_seconds: 0.2, idle_grace_seconds: GRACE.as_secs_f64(), ..world.settings() };
    let mut part = world.processor(settings, None)?;
    let story = |workload| {
        let seed = run.seed.wrapping_add(workload as u64);
        Story::with_clocks(seed, workload..workload + 1, BASE_SECONDS, |_| 0, |_, _| 0.0)
    };
    let feeder = Feeder::start(&world.bus, &world.prefix, story(BUSY), Duration::from_millis(50))?;
    let mut quiet = story(FIRST_QUIET);
    let mut producer = world.bus.producer("chaos-quiet")?;
    // The first second goes ahead, so that the source of progress is known before any window can close: a broker may append the
    // batch of all telemetry before that of all progress.
    quiet.tick();
    send_events(&mut *producer, &world.prefix, &quiet.events)?;
    ensure!(producer.flush(LIMIT)?, "the events were not acknowledged");
    let first_second = quiet.events.len();
    for _ in 1..WINDOWS as i64 * WINDOW_SECONDS {
        quiet.tick();
    }
    send_events(&mut *producer, &world.prefix, &quiet.events[first_second..])?;
    ensure!(producer.flush(LIMIT)?, "the events were not acknowledged");
    // The last window of each is open until its sources count as idle.
    let patience = if run.bites { GRACE + Duration::from_secs(4) } else { LIMIT };
    let silent = await_windows(&watch, FIRST_QUIET as i32, WINDOWS, patience);
    outcome.check(silent.is_some(), || format!("{} windows of the quiet partition closed, not {WINDOWS}", watch.count_of(0)));
    if run.bites && outcome.violations() > 0 {
        outcome.rounds = 1;
        return Ok(outcome);
    }
    let busy = watch.count_of(BUSY as i32);
    outcome.check(busy > 0, || "the busy partition has no windows".to_owned());
    let mut story = feeder.hush()?;
    let windows = story.expected().len();
    let all = await_windows(&watch, BUSY as i32, windows, patience);
    outcome.check(all.is_some(), || format!("{} windows closed instead of {windows}", watch.count_of(BUSY as i32)));
    for took in [silent, all].into_iter().flatten() {
        outcome.took("from silence to the last window, 8 s of grace included", took.as_secs_f64());
    }
    runs(&mut part)?;
    story.add(quiet);
    outcome.take(by_model(&world.bus, &world.prefix, &story, PARTITIONS)?);
    outcome.rounds = 1;
    Ok(outcome)
}

/// How long it takes until a partition has so many windows; `None`: longer than that.
fn await_windows(watch: &Watch, partition: i32, wanted: usize, patience: Duration) -> Option<Duration> {
    let begun = Instant::now();
    while watch.count_of(partition) < wanted {
        if begun.elapsed() > patience {
            return None;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Some(begun.elapsed())
}
