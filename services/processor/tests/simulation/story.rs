//! Shared parts of the simulations: play stories, read their outputs, compare.

use std::collections::BTreeMap;
use std::sync::Arc;

use eadt_bus::TopicPartition;
use eadt_core::settings::SECOND;
use eadt_processor::{HeartbeatClock, ProcessorDependencies, ProcessorError, ProcessorSettings};
use eadt_schemas::v1::dead_letter_header;
use eadt_schemas::{EventTime, Topic};
use eadt_service::{HealthRegistry, MetricsRegistry};
use eadt_testing::stories;

use super::bus::{Flaw, PARTITIONS, SimBus};

/// When stories begin, in seconds.
pub const BASE: i64 = 1_700_000_040;

/// Values by topic and key, in order.
pub type Outputs = BTreeMap<(Topic, String), Vec<String>>;

/// One process after another, until everything of these topics is read for good.
pub fn play(
    bus: &SimBus,
    topics: &[Topic],
    settings: &ProcessorSettings,
    part: &'static str,
    run: impl Fn(&ProcessorDependencies) -> Result<(), ProcessorError>,
) -> Result<(), String> {
    let inputs: Vec<TopicPartition> = topics
        .iter()
        .flat_map(|topic| (0..PARTITIONS).map(move |partition| TopicPartition::new(format!("eadt.{topic}"), partition)))
        .collect();
    let mut processes = 0;
    while !bus.is_done(&inputs) {
        processes += 1;
        if processes > 50 {
            return Err("it never ends".to_owned());
        }
        let service = ProcessorDependencies {
            settings: settings.clone(),
            bus: Arc::new(bus.clone()),
            clock: HeartbeatClock::new(|| EventTime::from_micros(BASE * SECOND)),
            shutdown: bus.process(),
            metrics: MetricsRegistry::default(),
            ready: HealthRegistry::default().part(part),
        };
        if let Err(error) = run(&service) {
            let cause = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
            if !cause.contains("on purpose") {
                return Err(cause);
            }
        }
    }
    Ok(())
}

/// Returns the content of these topics at the end.
pub fn found(bus: &SimBus, topics: &[Topic]) -> Outputs {
    let mut outputs = Outputs::new();
    for &topic in topics {
        for record in bus.records(topic) {
            let key = String::from_utf8_lossy(record.key.as_deref().unwrap_or_default()).into_owned();
            let value = if topic == Topic::DeadLetters {
                let of = |name| record.header(name).unwrap_or_default().to_owned();
                let [reason, partition, offset] =
                    [dead_letter_header::REASON, dead_letter_header::ORIGIN_PARTITION, dead_letter_header::ORIGIN_OFFSET].map(of);
                format!("{reason} {partition} {offset}")
            } else {
                String::from_utf8_lossy(record.value.as_deref().unwrap_or_default()).into_owned()
            };
            outputs.entry((topic, key)).or_default().push(value);
        }
    }
    outputs
}

/// Checks that exactly these outputs are there.
pub fn compare(expected: &Outputs, found: &Outputs) -> Result<(), String> {
    for (which, values) in expected {
        let there = found.get(which).map_or(&[][..], Vec::as_slice);
        if there != values {
            let first = there.iter().zip(values).find(|(there, value)| there != value);
            return Err(format!("{which:?}: {} instead of {}, first other one: {first:#?}", there.len(), values.len()));
        }
    }
    match found.keys().find(|which| !expected.contains_key(which)) {
        Some(more) => Err(format!("{more:?} should not be there")),
        None => Ok(()),
    }
}

/// One story a seed; each gives the number of its crashes, or what is wrong at its end.
pub fn run_stories(test: &str, story: impl Fn(u64) -> Result<usize, String> + Sync) {
    stories::run_stories(env!("CARGO_PKG_NAME"), test, story);
}

/// Checks that steps with a recoverable loss of a part end with the same log as without it.
pub fn mend(test: &str, story: impl Fn(u64, Flaw) -> Result<usize, String> + Sync) {
    let flawed = |seed| story(seed, if seed % 3 == 0 { Flaw::WithoutPositions } else { Flaw::WithoutState });
    stories::run_stories(env!("CARGO_PKG_NAME"), test, flawed);
}

/// Steps that are torn in any other way are found out.
pub fn tear(story: impl Fn(u64, Flaw) -> Result<usize, String>) {
    for flaw in [Flaw::PositionsWithoutOutputs, Flaw::StateWithoutTheRest] {
        stories::is_found_out(&format!("{flaw:?}"), 60, 10, |seed| story(seed, flaw));
    }
}
