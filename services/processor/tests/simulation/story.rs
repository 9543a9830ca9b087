//! What every simulation does with its stories: tells them, reads what came of them, compares.

use std::collections::BTreeMap;
use std::num::NonZero;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use eadt_bus::TopicPartition;
use eadt_core::settings::SECOND;
use eadt_processor::{Error, HeartbeatClock, Service, Settings};
use eadt_schemas::v1::dead_letter_header;
use eadt_schemas::{EventTime, Topic};
use eadt_service::{Health, Metrics};

use crate::bus::{Flaw, PARTITIONS, SimBus};

/// When stories begin, in seconds.
pub const BASE: i64 = 1_700_000_040;

/// Values by topic and key, in order.
pub type Said = BTreeMap<(Topic, String), Vec<String>>;

/// One process after another, until everything of these topics is read for good.
pub fn play(
    bus: &SimBus,
    topics: &[Topic],
    settings: &Settings,
    part: &'static str,
    run: impl Fn(&Service) -> Result<(), Error>,
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
        let service = Service {
            settings: settings.clone(),
            bus: Arc::new(bus.clone()),
            clock: HeartbeatClock::new(|| EventTime::from_micros(BASE * SECOND)),
            shutdown: bus.process(),
            metrics: Metrics::default(),
            ready: Health::default().part(part),
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

/// What these topics hold at the end.
pub fn found(bus: &SimBus, topics: &[Topic]) -> Said {
    let mut said = Said::new();
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
            said.entry((topic, key)).or_default().push(value);
        }
    }
    said
}

/// Exactly this was said, and nothing else.
pub fn compare(said: &Said, found: &Said) -> Result<(), String> {
    for (which, values) in said {
        let there = found.get(which).map_or(&[][..], Vec::as_slice);
        if there != values {
            let first = there.iter().zip(values).find(|(there, value)| there != value);
            return Err(format!("{which:?}: {} instead of {}, first other one: {first:#?}", there.len(), values.len()));
        }
    }
    match found.keys().find(|which| !said.contains_key(which)) {
        Some(more) => Err(format!("{more:?} should not be there")),
        None => Ok(()),
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} must be a number, not {text:?}")))
}

/// One story a seed, as many at a time as there are cores; each gives the number of its crashes, or what is wrong at its end.
pub fn tell(test: &str, story: impl Fn(u64) -> Result<usize, String> + Sync) {
    let seeds = number("EADT_TEST_SEED").map_or(0..number("EADT_TEST_SEEDS").unwrap_or(250), |seed| seed..seed + 1);
    let stories = seeds.end - seeds.start;
    let crashes = tell_all(seeds, story).unwrap_or_else(|(seed, wrong)| {
        panic!("seed {seed}: {wrong}\nrepeat it with: EADT_TEST_SEED={seed} cargo test -p eadt-processor --test {test} however")
    });
    println!("{stories} stories with {crashes} crashes");
    assert!(stories == 1 || crashes as u64 > stories, "only {crashes} crashes: the simulation does not bite");
}

/// The crashes of all stories, or the lowest seed that goes wrong, whatever the threads did, and what is wrong with it.
pub fn tell_all(seeds: Range<u64>, story: impl Fn(u64) -> Result<usize, String> + Sync) -> Result<usize, (u64, String)> {
    let (next, first_wrong) = (AtomicU64::new(seeds.start), AtomicU64::new(seeds.end));
    let thread = || {
        let mut crashes = 0;
        loop {
            // In order: when one goes wrong, all before it have been taken, and are still told to their ends.
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= first_wrong.load(Ordering::Relaxed) {
                return Ok(crashes);
            }
            match catch_unwind(AssertUnwindSafe(|| story(seed))).unwrap_or_else(|_| Err("it panicked, as said above".to_owned()))
            {
                Ok(crashed) => crashes += crashed,
                Err(wrong) => {
                    first_wrong.fetch_min(seed, Ordering::Relaxed);
                    return Err((seed, wrong));
                }
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
    let ends: Vec<_> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(thread)).collect();
        running.into_iter().map(|thread| thread.join().expect("what panics is caught")).collect()
    });
    match ends.iter().filter_map(|end| end.as_ref().err()).min() {
        Some(wrong) => Err(wrong.clone()),
        None => Ok(ends.into_iter().flatten().sum()),
    }
}

/// Steps of which a part was lost that can be told: what is in the log at the end is what there would be without it.
pub fn mend(test: &str, story: impl Fn(u64, Flaw) -> Result<usize, String> + Sync) {
    tell(test, |seed| story(seed, if seed % 3 == 0 { Flaw::WithoutPositions } else { Flaw::WithoutState }));
}

/// Steps that are torn in any other way are found out.
pub fn tear(story: impl Fn(u64, Flaw) -> Result<usize, String>) {
    for flaw in [Flaw::PositionsWithoutOutputs, Flaw::StateWithoutTheRest] {
        let found = (0..60).filter(|seed| story(*seed, flaw).is_err()).count();
        println!("{flaw:?}: found in {found} of 60 stories");
        assert!(found > 10, "{flaw:?} was found in {found} of 60 stories only");
    }
}
