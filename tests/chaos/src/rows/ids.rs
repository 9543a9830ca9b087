//! A client invents GPUs.

use std::time::Duration;

use anyhow::Result;
use eadt_bus::{Bus, Producer};
use eadt_processor::ProcessorSettings;
use eadt_schemas::v1::{DeadLetterReason, GpuTelemetry, dead_letter_header};
use eadt_schemas::{EventTime, EventType, Topic};

use crate::feeder::{Feeder, send};
use crate::row::{Outcome, Row, Run};
use crate::story::{Story, StoryEvent, at};
use crate::verify::{each_committed, read_committed};
use crate::world::{Cluster, LIMIT, PARTITIONS, World};

pub const ROW: Row = Row {
    name: "invented-ids",
    fault: "a collector names GPUs that do not exist, each once, where the caps are as nobody has set them; a round is one GPU",
    promise: "new ones refused at its share of the caps, none evicted; newcomers of others taken; 10 MB at most for those beyond its share; honest windows right",
    without: "caps on sources and workloads, and shares of them",
    full: 10_000_000,
    batch: 10_000_000,
    short: 20_000,
    off: 20_000,
    run,
};

/// More than one collector can have of what is kept if it is shut out at nothing.
const NO_CAP: usize = 10_000_000;
/// GPUs that another collector names after all that.
const NEWCOMERS: u32 = 30;
const NEWCOMER: &str = "GPU-new-";
/// Memory that GPUs beyond a collector's share may take beyond that of a full share, in bytes.
const MORE_BYTES: u64 = 10_000_000;
/// Memory that one GPU of that share may take beyond that of as many honest and refused events, in bytes, temporary memory
/// included.
const GPU_BYTES: u64 = 5_000;
/// Queues are full if as many events again take no more than this.
const FULL_BYTES: u64 = 1_000_000;
/// How often that is tried, with how many events of each kind. A peak is the higher the longer one looks: if bursts had a fifth
/// of these events, it still rose by up to 21 MB among the ten million that came after them.
const BURSTS_MAX: u32 = 5;
const BURST: u32 = 1_000_000;
/// Refused events that are folded in a second, at the very least.
const SLOWEST: u32 = 500;

fn run(run: Run) -> Result<Outcome> {
    let world = World::start(Cluster::One, None)?;
    let mut outcome = Outcome::default();
    // The defaults.
    let standard = world.settings();
    let share = standard.max_workloads / 2;
    let settings = if run.bites {
        ProcessorSettings {
            max_sources: NO_CAP,
            max_sources_per_namespace: Some(NO_CAP),
            max_workloads: NO_CAP,
            max_workloads_per_namespace: Some(NO_CAP),
            ..standard
        }
    } else {
        standard
    };
    let mut part = world.processor(settings, None)?;
    // If many GPUs are invented it takes a while, and the honest story is kept in memory.
    let pace = Duration::from_millis(if run.rounds >= BURST { 50 } else { 10 });
    let feeder = Feeder::start(&world.bus, &world.prefix, Story::new(run.seed, 3), pace)?;
    // Honest sources come first, as in a cluster that is attacked later.
    let watch = world.watch()?;
    watch.await_next(std::time::Instant::now())?;
    let mut producer = world.bus.producer("chaos-inventor")?;
    // The same number of honest and of refused events from any client fills the same queues and pools, to a degree that depends
    // on the machine. More memory than that is due to the invented GPUs.
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
    let most = share * PARTITIONS as usize;
    // Names do not fall evenly into partitions: a tenth more.
    let filling = run.rounds.min((most + most / 10) as u32);
    let invented = |number| telemetry(format!("GPU-{:016x}-{number}", run.seed), at(1.0), 300.0);
    burst(&world, &mut *producer, filling, invented)?;
    await_letters(&world)?;
    let (_, full) = part.memory()?;
    burst(&world, &mut *producer, run.rounds - filling, |number| invented(filling + number))?;
    burst(&world, &mut *producer, NEWCOMERS, |number| GpuTelemetry {
        collector: "nvml/new".into(),
        ..telemetry(format!("{NEWCOMER}{number}"), at(1.0), 300.0)
    })?;
    let story = feeder.finish()?;
    let folded = world.await_folded(LIMIT + Duration::from_secs(u64::from(run.rounds / SLOWEST)))?;
    outcome.check(folded, || format!("not everything was folded: {}", part.tail()));
    crate::world::runs(&mut part)?;
    let (_, peak) = part.memory()?;
    let (more, share_bytes) = (peak.saturating_sub(full), full.saturating_sub(honest));
    outcome.peak("memory (MB) at most: honest and refused events", honest as f64 / 1e6);
    outcome.peak(&format!("memory (MB) at most: its share of {most} GPUs, too"), full as f64 / 1e6);
    outcome.peak("memory (MB) at most: then all that it invented", peak as f64 / 1e6);
    outcome.check(share_bytes <= GPU_BYTES * most as u64, || format!("{most} GPUs of a collector took {share_bytes} bytes"));
    outcome.check(more <= MORE_BYTES, || format!("GPUs beyond a collector's share took {more} bytes"));
    let (mut refused, mut newcomers, sent) = (0, 0, u64::from(run.rounds));
    each_committed(&world.bus, &world.topic(Topic::DeadLetters), PARTITIONS, |letter| {
        if letter.header(dead_letter_header::REASON) == Some(DeadLetterReason::StateLimit.name()) {
            let new = letter.key.as_deref().is_some_and(|key| key.starts_with(NEWCOMER.as_bytes()));
            *(if new { &mut newcomers } else { &mut refused }) += 1;
        }
    })?;
    outcome.count("refused with the reason", refused);
    outcome.check(newcomers == 0, || format!("{newcomers} of {NEWCOMERS} newcomers of another collector were refused"));
    let most = most as u64;
    outcome.check(refused + most >= sent && refused < sent, || format!("{refused} of {sent} were refused; {most} have room"));
    // Honest workloads alone are the story's; windows of `gpus` are the inventor's.
    let (mut findings, honest) = (crate::verify::Findings::default(), "chaos/");
    let (windows, _) = crate::verify::straight(&story.events, &world.settings().fold_settings(), PARTITIONS);
    let found = read_committed(&world.bus, &world.topic(Topic::EfficiencyWindows), PARTITIONS)?;
    let found: Vec<_> = found
        .iter()
        .filter(|record| record.key.as_deref().is_some_and(|key| key.starts_with(honest.as_bytes())))
        .filter_map(|record| {
            let value = String::from_utf8_lossy(record.value.as_deref()?).into_owned();
            let window: eadt_schemas::v1::EfficiencyWindow = serde_json::from_str(&value).ok()?;
            Some(crate::verify::OutputText::window(&window, value))
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
        let event = StoryEvent { topic: Topic::GpuTelemetry, key, value, kind: EventType::GpuTelemetry, time };
        send(producer, &event.outgoing(&world.prefix))?;
    }
    producer.flush(LIMIT)?;
    Ok(())
}

/// Waits until all sent records are folded.
fn await_letters(world: &World) -> Result<()> {
    let begun = std::time::Instant::now();
    while world.behind()? > 1_000 && begun.elapsed() < LIMIT {
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}
