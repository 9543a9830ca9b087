//! Somebody invents GPUs.

use std::time::Duration;

use anyhow::Result;
use eadt_bus::Bus;
use eadt_processor::Settings;
use eadt_schemas::v1::{DeadLetterReason, GpuTelemetry, dead_letter_header};
use eadt_schemas::{EventType, Topic};

use crate::feeder::{Feeder, send};
use crate::row::{Outcome, Row, Run};
use crate::story::{Story, Told, at};
use crate::verify::read_committed;
use crate::world::{Cluster, LIMIT, PARTITIONS, World};

pub const ROW: Row = Row {
    name: "invented-ids",
    fault: "telemetry of GPUs that do not exist, each named once; a round is one GPU",
    promise: "new ones refused at the cap, none evicted; memory bounded; honest windows right",
    without: "caps on sources and workloads",
    full: 200_000,
    batch: 200_000,
    short: 20_000,
    off: 20_000,
    run,
};

/// Sources and workloads of a partition; the honest ones are 9 of 3.
const CAP: usize = 200;
/// What memory may grow by: a process of this size moves by as much from one run to the next.
const GROWTH_BYTES: u64 = 16 << 20;

fn run(run: Run) -> Result<Outcome> {
    let world = World::start(Cluster::One, None)?;
    let mut outcome = Outcome::default();
    let cap = if run.bites { 10_000_000 } else { CAP };
    let settings = Settings { max_sources: cap, max_workloads: cap, buffer_bytes: 1 << 20, ..world.settings() };
    let mut part = world.processor(settings, None)?;
    let feeder = Feeder::start(&world.bus, &world.prefix, Story::new(run.seed, 3), Duration::from_millis(10))?;
    // Honest sources come first, as in a cluster that somebody attacks.
    let watch = world.watch()?;
    watch.await_next(std::time::Instant::now())?;
    let mut producer = world.bus.producer("chaos-inventor")?;
    let invent = |from: u32, to: u32, producer: &mut dyn eadt_bus::Producer| -> Result<()> {
        for number in from..to {
            let device = format!("GPU-{:016x}-{number}", run.seed);
            let event = GpuTelemetry {
                time: at(1.0),
                device: device.clone(),
                collector: "nvml/hostile".into(),
                power_watts: Some(300.0),
                ..GpuTelemetry::default()
            };
            let value = serde_json::to_vec(&event)?;
            let told = Told { topic: Topic::GpuTelemetry, key: device, value, kind: EventType::GpuTelemetry, time: event.time };
            send(producer, &told.outgoing(&world.prefix))?;
        }
        producer.flush(LIMIT)?;
        Ok(())
    };
    // The first ones fill the caps, buffers and pools; what grows after them grows for ever.
    let first = run.rounds / 5;
    invent(0, first, &mut *producer)?;
    await_letters(&world)?;
    let (before, _) = part.memory()?;
    invent(first, run.rounds, &mut *producer)?;
    let story = feeder.finish()?;
    let folded = world.await_folded(LIMIT)?;
    outcome.check(folded, || format!("not everything was folded: {}", part.tail()));
    crate::world::runs(&mut part)?;
    let (after, peak) = part.memory()?;
    let grown = after.saturating_sub(before);
    outcome.peak("memory grew by (MB)", grown as f64 / 1e6);
    outcome.peak("memory at most (MB)", peak as f64 / 1e6);
    let bytes_each = grown / u64::from((run.rounds - first).max(1));
    outcome.check(grown <= GROWTH_BYTES && (!run.bites || bytes_each == 0), || {
        format!("memory grew by {grown} bytes, {bytes_each} an invented GPU")
    });
    let letters = read_committed(&world.bus, &world.topic(Topic::DeadLetters), PARTITIONS)?;
    let refused =
        letters.iter().filter(|letter| letter.header(dead_letter_header::REASON) == Some(DeadLetterReason::StateLimit.name()));
    let (refused, sent) = (refused.count() as u64, u64::from(run.rounds));
    outcome.count("refused with the reason", refused);
    let most = (CAP * PARTITIONS as usize) as u64;
    outcome.check(refused + most >= sent && refused < sent, || format!("{refused} of {sent} were refused; {most} have room"));
    // Honest workloads alone are the story's; windows of `gpus` are the inventor's.
    let (mut findings, honest) = (crate::verify::Findings::default(), "chaos/");
    let (windows, _) = crate::verify::straight(&story.told, &world.settings().fold(), PARTITIONS);
    let found = read_committed(&world.bus, &world.topic(Topic::EfficiencyWindows), PARTITIONS)?;
    let found: Vec<_> = found
        .iter()
        .filter(|record| record.key.as_deref().is_some_and(|key| key.starts_with(honest.as_bytes())))
        .filter_map(|record| {
            let value = String::from_utf8_lossy(record.value.as_deref()?).into_owned();
            let window: eadt_schemas::v1::EfficiencyWindow = serde_json::from_str(&value).ok()?;
            Some((window.id, value))
        })
        .collect();
    crate::verify::once("window", &windows, &found, &mut findings);
    outcome.take(findings);
    outcome.rounds = run.rounds;
    Ok(outcome)
}

/// Lets what was sent so far be folded.
pub fn await_letters(world: &World) -> Result<()> {
    let begun = std::time::Instant::now();
    while world.behind()? > 1_000 && begun.elapsed() < LIMIT {
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}
