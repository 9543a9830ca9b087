//! Records that are no events among those that are.

use std::time::Duration;

use anyhow::Result;
use eadt_bus::Bus;
use eadt_schemas::envelope::header;
use eadt_schemas::v1::dead_letter_header;
use eadt_schemas::{EventType, Topic};

use super::ids::await_letters;
use crate::chance::Chance;
use crate::feeder::{Feeder, send};
use crate::row::{Outcome, Row, Run};
use crate::story::{Story, Told, at};
use crate::verify::read_committed;
use crate::world::{Cluster, LIMIT, PARTITIONS, World};

pub const ROW: Row = Row {
    name: "poison",
    fault: "invalid and hostile records in every partition, 1 % and more of all: not JSON, impossible numbers, a megabyte of text or of brackets",
    promise: "no partition stalls; each is a dead letter with its reason, once; memory stays",
    without: "dead letters",
    full: 20_000,
    batch: 2_000,
    short: 200,
    off: 200,
    run,
};

/// Nearly as much as a record may have.
const LARGE_BYTES: usize = 1_000_000;
/// What memory may grow by once buffers and pools are filled: a process moves by as much from one run to the next.
const GROWTH_BYTES: u64 = 10_000_000;
/// Of so many records the large ones come to more than that; of fewer, memory says nothing.
const TELLING_ROUNDS: u32 = 1_000;

/// What is sent, and the reason that it must be refused with.
fn poison(chance: &mut Chance, number: u32) -> (Topic, Vec<u8>, &'static str) {
    let workload = Story::name(chance.below(3) as usize);
    let time = at(f64::from(number));
    let telemetry = |fields: &str| {
        format!(r#"{{"time":"{time}","workload":"{workload}","device":"GPU-p","collector":"c"{fields}}}"#).into_bytes()
    };
    // Rarely: these are large.
    if chance.below(40) == 0 {
        let large = "x".repeat(LARGE_BYTES);
        return match chance.below(3) {
            0 => (Topic::GpuTelemetry, large.into_bytes(), "malformed"),
            1 => (Topic::GpuTelemetry, "[".repeat(LARGE_BYTES).into_bytes(), "malformed"),
            _ => (
                Topic::TrainingProgress,
                format!(r#"{{"time":"{time}","workload":"lab/{large}"}}"#).into_bytes(),
                "invalid_value",
            ),
        };
    }
    match chance.below(10) {
        0 => (Topic::GpuTelemetry, b"{not json".to_vec(), "malformed"),
        1 => (Topic::TrainingProgress, b"[]".to_vec(), "malformed"),
        2 => (Topic::GpuTelemetry, vec![0xff, 0xfe, 0x00], "malformed"),
        3 => (Topic::GpuTelemetry, telemetry(r#","power_watts":-5.0"#), "invalid_value"),
        4 => (Topic::GpuTelemetry, telemetry(r#","power_watts":1e999"#), "*"),
        5 => (Topic::GpuTelemetry, telemetry(r#","power_watts":NaN"#), "malformed"),
        6 => (Topic::TrainingProgress, b"".to_vec(), "malformed"),
        7 => (Topic::GpuTelemetry, b"[".repeat(5_000), "malformed"),
        8 => (Topic::GpuTelemetry, telemetry(r#","power_watts":5.0,"power_watts":6.0"#), "malformed"),
        _ => (
            Topic::TrainingProgress,
            format!(r#"{{"time":"yesterday","workload":"{workload}","collector":"c"}}"#).into_bytes(),
            "*",
        ),
    }
}

fn run(run: Run) -> Result<Outcome> {
    let mut chance = Chance::new(run.seed);
    let world = World::start(Cluster::One, run.bites.then_some("dead-letters"))?;
    let mut outcome = Outcome::default();
    let mut part = world.processor(world.settings(), None)?;
    let feeder = Feeder::start(&world.bus, &world.prefix, Story::new(run.seed, 3), Duration::from_millis(5))?;
    let mut producer = world.bus.producer("chaos-poison")?;
    let mut reasons = std::collections::BTreeMap::new();
    let mut before = None;
    for number in 0..run.rounds {
        if number == run.rounds / 2 {
            producer.flush(LIMIT)?;
            await_letters(&world)?;
            before = Some(part.memory()?.0);
        }
        let (topic, value, reason) = poison(&mut chance, number);
        let key = Story::name(chance.below(3) as usize);
        // The marker is how it is found again; headers that nobody knows are left alone.
        let told = Told { topic, key, value, kind: EventType::of_topic(topic), time: at(0.0) };
        send(&mut *producer, &told.outgoing(&world.prefix))?;
        *reasons.entry(reason).or_insert(0_u64) += 1;
        // About one in a hundred of what the story tells meanwhile.
        if number % 10 == 9 {
            std::thread::sleep(Duration::from_millis(5));
        }
        outcome.rounds += 1;
    }
    producer.flush(LIMIT)?;
    let story = feeder.finish()?;
    let folded = world.await_folded(LIMIT)?;
    outcome.check(folded, || format!("not everything was folded: {}", part.tail()));
    crate::world::runs(&mut part)?;
    if let Some(before) = before.filter(|_| run.rounds >= TELLING_ROUNDS) {
        let grown = part.memory()?.0.saturating_sub(before);
        outcome.peak("memory grew in the second half by (MB)", grown as f64 / 1e6);
        outcome.check(grown <= GROWTH_BYTES, || format!("memory grew by {grown} bytes in the second half"));
    }
    let letters = read_committed(&world.bus, &world.topic(Topic::DeadLetters), PARTITIONS)?;
    let mut origins = std::collections::BTreeSet::new();
    for letter in &letters {
        let of = |name: &str| letter.header(name).unwrap_or_default().to_owned();
        let origin = [dead_letter_header::ORIGIN_TOPIC, dead_letter_header::ORIGIN_PARTITION, dead_letter_header::ORIGIN_OFFSET];
        let origin = origin.map(of);
        outcome.check(!of(dead_letter_header::REASON).is_empty(), || format!("{origin:?} has no reason"));
        outcome.check(!of(header::ID).is_empty(), || format!("{origin:?} has no id"));
        if !origins.insert(origin) {
            outcome.duplicated += 1;
        }
    }
    let sent = u64::from(run.rounds);
    outcome.count("dead letters", origins.len() as u64);
    if (origins.len() as u64) < sent {
        outcome.lost += sent - origins.len() as u64;
        outcome.examples.push(format!("{} of {sent} are dead letters", origins.len()));
    }
    outcome.count("honest events", story.told.len() as u64);
    for reason in ["malformed", "invalid_value"] {
        let found = letters.iter().filter(|letter| letter.header(dead_letter_header::REASON) == Some(reason)).count() as u64;
        let certain = reasons.get(reason).copied().unwrap_or(0);
        let either = certain + reasons.get("*").copied().unwrap_or(0);
        outcome.check((certain..=either).contains(&found), || format!("{found} are {reason}; {certain} to {either} were sent"));
    }
    outcome.take(world.judge(&story)?);
    Ok(outcome)
}
