//! The log deletes records before they are folded.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use eadt_bus::{Bus, Producer, TopicPartition};
use eadt_schemas::Topic;
use eadt_schemas::v1::EfficiencyWindow;

use crate::feeder::send;
use crate::row::{Outcome, Row, Run};
use crate::story::{BASE_SECONDS, Story, WINDOW_SECONDS};
use crate::verify::read_committed;
use crate::world::{Cluster, LIMIT, PARTITIONS, World};

pub const ROW: Row = Row {
    name: "retention",
    fault: "the processor is away until the log has deleted what it had not folded",
    promise: "windows that miss something say so, the others are right",
    without: "the mark on windows that miss something",
    full: 20,
    batch: 1,
    short: 1,
    off: 1,
    run,
};

const PHASE_SECONDS: i64 = 6 * WINDOW_SECONDS;
const INPUTS: [Topic; 2] = [Topic::GpuTelemetry, Topic::TrainingProgress];

fn send_seconds(world: &World, producer: &mut dyn Producer, story: &mut Story, seconds: i64) -> Result<()> {
    for _ in 0..seconds {
        let from = story.tick();
        story.events[from..].iter().try_for_each(|event| send(producer, &event.outgoing(&world.prefix)))?;
    }
    ensure!(producer.flush(LIMIT)?, "the events were not acknowledged");
    Ok(())
}

/// Has the log delete everything that these inputs hold.
fn delete_all(world: &World) -> Result<u64> {
    let keep = |milliseconds: &str| -> Result<()> {
        let setting = BTreeMap::from([("retention.ms".to_owned(), milliseconds.to_owned())]);
        INPUTS.iter().try_for_each(|topic| Ok(world.bus.alter_topic(&world.topic(*topic), &setting)?))
    };
    let ends = || -> Result<Vec<(i64, i64)>> {
        let of = |topic: &Topic| (0..PARTITIONS).map(|number| TopicPartition::new(world.topic(*topic), number)).collect();
        let all = INPUTS.iter().flat_map(|topic| -> Vec<_> { of(topic) });
        all.map(|at| world.bus.watermarks(&at).map(|ends| (ends.low, ends.high)).map_err(Into::into)).collect()
    };
    keep("1")?;
    let begun = Instant::now();
    while ends()?.iter().any(|(low, high)| low < high) {
        ensure!(begun.elapsed() < LIMIT, "the log keeps what it should delete");
        std::thread::sleep(Duration::from_millis(50));
    }
    keep("-1")?;
    Ok(ends()?.iter().map(|(low, _)| *low as u64).sum())
}

fn run(run: Run) -> Result<Outcome> {
    let world = World::start(Cluster::Forgetful, run.bites.then_some("gaps"))?;
    let mut outcome = Outcome::default();
    let mut story = Story::new(run.seed, 3);
    let mut producer = world.bus.producer("chaos-retention")?;
    // Layouts come first.
    story.events.iter().try_for_each(|event| send(&mut *producer, &event.outgoing(&world.prefix)))?;
    send_seconds(&world, &mut *producer, &mut story, PHASE_SECONDS)?;
    let part = world.processor(world.settings(), None)?;
    ensure!(world.await_folded(LIMIT)?, "the first part was not folded: {}", part.tail());
    part.kill()?;
    let before = story.events.len();
    send_seconds(&world, &mut *producer, &mut story, PHASE_SECONDS)?;
    let missed = (story.events.len() - before) as u64;
    let deleted = delete_all(&world)?;
    ensure!(deleted >= missed, "{deleted} records are deleted, {missed} were to be");
    send_seconds(&world, &mut *producer, &mut story, PHASE_SECONDS)?;
    let from = story.end();
    story.events[from..].iter().try_for_each(|event| send(&mut *producer, &event.outgoing(&world.prefix)))?;
    ensure!(producer.flush(LIMIT)?, "the end was not acknowledged");
    let mut part = world.processor(world.settings(), None)?;
    let folded = world.await_folded(LIMIT)?;
    outcome.check(folded, || format!("not everything was folded: {}", part.tail()));
    crate::world::runs(&mut part)?;
    outcome.count("deleted before they were folded", missed);
    judge(&world, &story, &mut outcome)?;
    outcome.rounds = 1;
    Ok(outcome)
}

/// From the last window that had begun before the records that are gone, to the one that holds the first after them.
fn misses(start: i64) -> bool {
    (BASE_SECONDS + PHASE_SECONDS - WINDOW_SECONDS..=BASE_SECONDS + 2 * PHASE_SECONDS).contains(&start)
}

fn judge(world: &World, story: &Story, outcome: &mut Outcome) -> Result<()> {
    let mut windows: BTreeMap<(String, i64), EfficiencyWindow> = BTreeMap::new();
    for record in read_committed(&world.bus, &world.topic(Topic::EfficiencyWindows), PARTITIONS)? {
        let window: EfficiencyWindow = serde_json::from_slice(record.value.as_deref().unwrap_or_default()).context("a window")?;
        let at = (window.workload.clone(), window.window_start.micros() / 1_000_000);
        outcome.duplicated += u64::from(windows.insert(at, window).is_some());
    }
    let near = |found: f64, wanted: f64| (found - wanted).abs() <= 1e-6 * wanted.abs().max(1.0);
    let mut sums: BTreeMap<String, (f64, f64)> = BTreeMap::new();
    for wanted in story.expected() {
        let Some(window) = windows.get(&(wanted.workload.clone(), wanted.start)) else {
            outcome.lost += 1;
            continue;
        };
        let sum = sums.entry(wanted.workload.clone()).or_default();
        sum.0 += window.energy_joules.unwrap_or(0.0) + window.unassigned_energy_joules;
        sum.1 += wanted.energy_joules;
        if misses(wanted.start) {
            outcome.check(window.gap, || {
                format!("window {} of {} does not show that it misses something", wanted.start, wanted.workload)
            });
        } else {
            let (energy, samples) = (window.energy_joules.unwrap_or(0.0), window.samples.unwrap_or(0.0));
            let right = near(energy, wanted.energy_joules) && near(samples, wanted.samples) && !window.gap;
            outcome.check(right, || format!("window {window:?} is not {wanted:?}"));
        }
    }
    for (workload, (found, wanted)) in sums {
        outcome
            .check(near(found, wanted), || format!("all windows of {workload} sum up to {found} J, the counters to {wanted} J"));
    }
    Ok(())
}
