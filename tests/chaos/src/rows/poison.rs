//! Records that are no events among those that are.

use std::time::Duration;

use anyhow::{Result, ensure};
use eadt_bus::Bus;
use eadt_faults::OF_THE_NEXT_VERSION;
use eadt_schemas::Topic;
use eadt_schemas::envelope::header;
use eadt_schemas::v1::dead_letter_header;
use serde_json::json;

use crate::chance::Chance;
use crate::feeder::{Feeder, send};
use crate::row::{Outcome, Row, Run};
use crate::story::{Story, StoryEvent, at};
use crate::verify::read_committed;
use crate::world::{Cluster, LIMIT, PARTITIONS, World};

pub const ROW: Row = Row {
    name: "poison",
    fault: "invalid and hostile records in every partition, 1 % and more of all: not JSON, impossible numbers, a megabyte of text or of brackets",
    promise: "no partition stalls; each is a dead letter with its reason, once; as they come they take at most 10 MB of memory beyond the most that a backlog of as many honest events of the same sizes takes, and their second half leaves at most 10 MB more",
    without: "dead letters",
    full: 20_000,
    batch: 2_000,
    short: 200,
    off: 200,
    run,
};

/// Nearly as much as a record may have.
const LARGE_BYTES: usize = 1_000_000;
/// One in so many is large, of the honest ones too: an honest event may have fields of a later version, and be as large as any record.
const LARGE_ONE_IN: u64 = 40;
/// One in so many honest events is a mistake, of any size: what a dead letter passes through on its way is there without any hostility,
/// and is as large as the largest.
const MISTAKE_ONE_IN: u64 = 50;
/// Namespace of honest jobs that are none of the story's.
const HONEST: &str = "honest";
/// Memory that hostile records may take beyond that of the honest ones, and the second half of them beyond the first.
const MORE_BYTES: u64 = 10_000_000;
/// Of so many records the large ones come to more than that; of fewer, memory shows nothing.
const TELLING_ROUNDS: u32 = 1_000;
/// As many honest ones come first, so many times, each time as a backlog: it fills what is read ahead (`processor.buffer_bytes`, the
/// client's queues), as hostile ones do while each large letter is a step of its own. A backlog of hostile ones fills more of it.
const HONEST_BACKLOGS: u32 = 4;
/// About one in a hundred of what the story sends meanwhile.
const AT_A_TIME: u32 = 10;
const PAUSE: Duration = Duration::from_millis(5);

/// Returns a record to send, and the reason with which it must be refused.
fn poison(chance: &mut Chance, number: u32) -> (Topic, Vec<u8>, &'static str) {
    let workload = Story::name(chance.below(3) as usize);
    let time = at(f64::from(number));
    let telemetry = |fields: &str| {
        format!(r#"{{"time":"{time}","workload":"{workload}","device":"GPU-p","collector":"c"{fields}}}"#).into_bytes()
    };
    // Rarely: these are large.
    if chance.below(LARGE_ONE_IN) == 0 {
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

/// As large and to the same topics, of GPUs without a workload and jobs of another namespace than the story's; whether it is a mistake.
fn honest(chance: &mut Chance, number: u32) -> Result<(StoryEvent, bool)> {
    let (time, part) = (at(1.0 + f64::from(number) / 1e4), chance.below(30));
    let (is_large, is_mistake) = (chance.below(LARGE_ONE_IN) == 0, chance.below(MISTAKE_ONE_IN) == 0);
    let sign = if is_mistake { -1.0 } else { 1.0 };
    let (topic, key, mut event) = if chance.below(3) == 0 {
        let workload = format!("{HONEST}/job-{part}");
        let event = json!({"time": time, "workload": workload, "collector": "http/honest", "samples_total": sign * f64::from(number + 1)});
        (Topic::TrainingProgress, workload, event)
    } else {
        let device = format!("GPU-honest-{part}");
        let event = json!({"time": time, "device": device, "collector": "nvml/honest", "power_watts": sign * 300.0});
        (Topic::GpuTelemetry, device, event)
    };
    if is_large {
        event[OF_THE_NEXT_VERSION] = "x".repeat(LARGE_BYTES).into();
    }
    Ok((StoryEvent { topic, key, value: serde_json::to_vec(&event)?, kind: topic.event_type(), time }, is_mistake))
}

fn send_all(world: &World, count: u32, mut each: impl FnMut(u32) -> Result<StoryEvent>) -> Result<()> {
    let mut producer = world.bus.producer("chaos-poison")?;
    for number in 0..count {
        send(&mut *producer, &each(number)?.outgoing(&world.prefix))?;
        if number % AT_A_TIME == AT_A_TIME - 1 {
            std::thread::sleep(PAUSE);
        }
    }
    ensure!(producer.flush(LIMIT)?, "records were not acknowledged");
    Ok(())
}

fn run(run: Run) -> Result<Outcome> {
    let mut chance = Chance::new(run.seed);
    let world = World::start(Cluster::One, run.bites.then_some("dead-letters"))?;
    let mut outcome = Outcome::default();
    let mut part = world.measured_processor(world.settings())?;
    let feeder = Feeder::start(&world.bus, &world.prefix, Story::new(run.seed, 3), Duration::from_millis(5))?;
    let is_telling = run.rounds >= TELLING_ROUNDS;
    let mut reasons = std::collections::BTreeMap::new();
    for backlog in 0..if is_telling { HONEST_BACKLOGS } else { 1 } {
        part.freeze(true)?;
        send_all(&world, run.rounds, |number| {
            let (event, is_mistake) = honest(&mut chance, backlog * run.rounds + number)?;
            *reasons.entry("invalid_value").or_insert(0_u64) += u64::from(is_mistake);
            Ok(event)
        })?;
        part.freeze(false)?;
        let folded = world.await_folded(LIMIT)?;
        outcome.check(folded, || format!("not every honest event was folded: {}", part.tail()));
    }
    let (_, most_honest) = part.memory()?;
    let mut halves = Vec::new();
    for count in [run.rounds / 2, run.rounds - run.rounds / 2] {
        send_all(&world, count, |number| {
            let (topic, value, reason) = poison(&mut chance, number);
            *reasons.entry(reason).or_insert(0_u64) += 1;
            let key = Story::name(chance.below(3) as usize);
            Ok(StoryEvent { topic, key, value, kind: topic.event_type(), time: at(0.0) })
        })?;
        let folded = world.await_folded(LIMIT)?;
        outcome.check(folded, || format!("not every hostile record was folded: {}", part.tail()));
        halves.push(part.memory()?.0);
    }
    outcome.rounds = run.rounds;
    let story = feeder.finish()?;
    let folded = world.await_folded(LIMIT)?;
    outcome.check(folded, || format!("not everything was folded: {}", part.tail()));
    crate::world::runs(&mut part)?;
    if is_telling {
        let most = part.memory()?.1;
        let more = most.saturating_sub(most_honest);
        outcome.peak("memory (MB) at most: honest events", most_honest as f64 / 1e6);
        outcome.peak("memory (MB) at most: then the hostile ones, too", most as f64 / 1e6);
        outcome.peak("memory (MB) that these took beyond", more as f64 / 1e6);
        let grown = halves[1].saturating_sub(halves[0]);
        outcome.peak("memory grew in their second half by (MB)", grown as f64 / 1e6);
        let beyond = || format!("hostile records took {more} bytes beyond the {most_honest} of honest ones");
        outcome.check(more <= MORE_BYTES, beyond);
        outcome.check(grown <= MORE_BYTES, || format!("memory grew by {grown} bytes in the second half of the hostile records"));
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
    let sent: u64 = reasons.values().sum();
    outcome.check(origins.len() as u64 <= sent, || format!("{} are dead letters, and {sent} had to be", origins.len()));
    outcome.count("dead letters", origins.len() as u64);
    if (origins.len() as u64) < sent {
        outcome.lost += sent - origins.len() as u64;
        outcome.examples.push(format!("{} of {sent} are dead letters", origins.len()));
    }
    outcome.count("honest events", story.events.len() as u64);
    for reason in ["malformed", "invalid_value"] {
        let found = letters.iter().filter(|letter| letter.header(dead_letter_header::REASON) == Some(reason)).count() as u64;
        let certain = reasons.get(reason).copied().unwrap_or(0);
        let either = certain + reasons.get("*").copied().unwrap_or(0);
        outcome.check((certain..=either).contains(&found), || format!("{found} are {reason}; {certain} to {either} were sent"));
    }
    // Windows of honest events beside the story are not compared.
    outcome.take(world.judge_except(&story, |workload| !workload.starts_with("chaos/"))?);
    Ok(outcome)
}
