//! Somebody invents GPUs.

use std::time::Duration;

use anyhow::Result;
use eadt_bus::{Bus, Producer};
use eadt_processor::Settings;
use eadt_schemas::v1::{DeadLetterReason, GpuTelemetry, dead_letter_header};
use eadt_schemas::{EventTime, EventType, Topic};

use crate::feeder::{Feeder, send};
use crate::row::{Outcome, Row, Run};
use crate::story::{Story, Told, at};
use crate::verify::{each_committed, read_committed};
use crate::world::{Cluster, LIMIT, PARTITIONS, World};

pub const ROW: Row = Row {
    name: "invented-ids",
    fault: "a collector names GPUs that do not exist, each once; a round is one GPU",
    promise: "new ones refused at its share of the caps, none evicted; newcomers of others taken; memory bounded; honest windows right",
    without: "caps on sources and workloads, and shares of them",
    full: 10_000_000,
    batch: 10_000_000,
    short: 20_000,
    off: 20_000,
    run,
};

/// Sources and workloads of a partition; the honest ones are 9 of 3.
const CAP: usize = 200;
/// What of them one collector, or namespace, may have.
const SHARE: usize = 150;
/// GPUs that another collector names after all that.
const NEWCOMERS: u32 = 30;
const NEWCOMER: &str = "GPU-new-";
/// What invented GPUs may take beyond as many honest and refused events.
const MORE_BYTES: u64 = 10_000_000;
/// Queues are full where as many events again take no more than this.
const FULL_BYTES: u64 = 1_000_000;
/// How often that is tried, with how many events.
const BURSTS_MAX: u32 = 6;
const BURST: u32 = 200_000;
/// Refused events that are folded in a second, at the very least.
const SLOWEST: u32 = 500;

fn run(run: Run) -> Result<Outcome> {
    let world = World::start(Cluster::One, None)?;
    let mut outcome = Outcome::default();
    let (cap, share) = if run.bites { (10_000_000, 10_000_000) } else { (CAP, SHARE) };
    let settings = Settings {
        max_sources: cap,
        max_sources_per_namespace: Some(share),
        max_workloads: cap,
        max_workloads_per_namespace: Some(share),
        buffer_bytes: 1 << 20,
        ..world.settings()
    };
    let mut part = world.processor(settings, None)?;
    // Where many GPUs are invented it takes a while, and the honest story is kept in memory.
    let pace = Duration::from_millis(if run.rounds > BURST { 50 } else { 10 });
    let feeder = Feeder::start(&world.bus, &world.prefix, Story::new(run.seed, 3), pace)?;
    // Honest sources come first, as in a cluster that somebody attacks.
    let watch = world.watch()?;
    watch.await_next(std::time::Instant::now())?;
    let mut producer = world.bus.producer("chaos-inventor")?;
    // As many honest events, and as many that are refused whoever sends them, fill the same queues and pools, how far depends on
    // the machine: what invented GPUs take beyond that is theirs.
    let mut honest = 0;
    for done in 0..BURSTS_MAX {
        let since = f64::from(done);
        let count = run.rounds.min(BURST);
        burst(&world, &mut *producer, count, |number| {
            telemetry(format!("GPU-{}", number % 30), at(1.0 + since + f64::from(number) / 1e6), 300.0)
        })?;
        burst(&world, &mut *producer, count, |number| telemetry(format!("GPU-{}", number % 30), at(1.0), -300.0))?;
        await_letters(&world)?;
        let before = std::mem::replace(&mut honest, part.memory()?.1);
        if honest <= before + FULL_BYTES {
            break;
        }
    }
    burst(&world, &mut *producer, run.rounds, |number| telemetry(format!("GPU-{:016x}-{number}", run.seed), at(1.0), 300.0))?;
    burst(&world, &mut *producer, NEWCOMERS, |number| GpuTelemetry {
        collector: "nvml/new".into(),
        ..telemetry(format!("{NEWCOMER}{number}"), at(1.0), 300.0)
    })?;
    let story = feeder.finish()?;
    let folded = world.await_folded(LIMIT + Duration::from_secs(u64::from(run.rounds / SLOWEST)))?;
    outcome.check(folded, || format!("not everything was folded: {}", part.tail()));
    crate::world::runs(&mut part)?;
    let (_, peak) = part.memory()?;
    let more = peak.saturating_sub(honest);
    outcome.peak("memory at most with honest and refused events (MB)", honest as f64 / 1e6);
    outcome.peak("and with invented GPUs (MB)", peak as f64 / 1e6);
    outcome.check(more <= MORE_BYTES, || format!("invented GPUs took {more} bytes more than honest and refused events"));
    let (mut refused, mut newcomers, sent) = (0, 0, u64::from(run.rounds));
    each_committed(&world.bus, &world.topic(Topic::DeadLetters), PARTITIONS, |letter| {
        if letter.header(dead_letter_header::REASON) == Some(DeadLetterReason::StateLimit.name()) {
            let new = letter.key.as_deref().is_some_and(|key| key.starts_with(NEWCOMER.as_bytes()));
            *(if new { &mut newcomers } else { &mut refused }) += 1;
        }
    })?;
    outcome.count("refused with the reason", refused);
    outcome.check(newcomers == 0, || format!("{newcomers} of {NEWCOMERS} newcomers of another collector were refused"));
    let most = (SHARE * PARTITIONS as usize) as u64;
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

fn telemetry(device: String, time: EventTime, watts: f64) -> GpuTelemetry {
    GpuTelemetry { time, device, collector: "nvml/hostile".into(), power_watts: Some(watts), ..GpuTelemetry::default() }
}

fn burst(world: &World, producer: &mut dyn Producer, count: u32, each: impl Fn(u32) -> GpuTelemetry) -> Result<()> {
    for number in 0..count {
        let event = each(number);
        let value = serde_json::to_vec(&event)?;
        let (time, key) = (event.time, event.device);
        let told = Told { topic: Topic::GpuTelemetry, key, value, kind: EventType::GpuTelemetry, time };
        send(producer, &told.outgoing(&world.prefix))?;
    }
    producer.flush(LIMIT)?;
    Ok(())
}

/// Lets what was sent so far be folded.
pub fn await_letters(world: &World) -> Result<()> {
    let begun = std::time::Instant::now();
    while world.behind()? > 1_000 && begun.elapsed() < LIMIT {
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}
