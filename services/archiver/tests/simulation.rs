//! The archiver under chance: at every call that it makes of the bus and at every step on its disk it may fail, be killed, lose
//! its power or its partitions, find the disk full, or be frozen while another one takes over, which is carried out within that
//! call. However the story goes, what is visible is at any time the beginning of the log: each offset in one file, whole.
//!
//! One seed is one story, on one thread, without waiting. A failing one prints how to repeat it. 250 are played; `cargo xtask test`
//! begins at a fresh seed and goes on for a while, `EADT_TEST_SEEDS=10000` plays so many.
//!
//! No process is frozen between the check that a partition is its own and the rename of the file that follows. Only there can a
//! file be published after another archiver took over (docs/use/archive.md), so no story may rely on that.

mod bus;

mod disk;

mod look;

mod world;

use std::sync::Arc;

use bytes::Bytes;
use eadt_archiver::ArchiverSettings;
use eadt_bus::ProducerRecord;
use eadt_bus::simulation::{PARTITIONS, PREFIX, ScheduledRecord};
use eadt_schemas::envelope::{Envelope, header};
use eadt_schemas::v1::Directive;
use eadt_schemas::{EventTime, EventType, Topic};
use eadt_testing::stories::{Chance, is_found_out, run_stories};
use world::{Flaw, ROOT, Story};

/// Few columns each: the steps on the disk are what counts here.
pub const TOPICS: [Topic; 3] = [Topic::ProcessorState, Topic::Directives, Topic::DeadLetters];
/// 2026-01-01T20:00:00Z.
const BASE: i64 = 1_767_297_600_000_000;

/// Returns records of every kind, over two days or three.
fn history(chance: &mut Chance) -> Vec<ScheduledRecord> {
    let (mut now, mut coming) = (BASE, Vec::new());
    for number in 0..6 + chance.below(10) {
        now += 1_000 * (1 + chance.below(1_200_000) as i64) + if chance.one_in(8) { 6 * 3_600_000_000 } else { 0 };
        let stamp = EventTime::from_micros(now);
        let topic = TOPICS[chance.below(TOPICS.len())];
        let time = stamp.plus_seconds(-(chance.below(90) as f64));
        let record = ProducerRecord {
            topic: format!("{PREFIX}{topic}").into(),
            partition: None,
            key: match chance.below(8) {
                0 => None,
                1 => Some(Bytes::from_static(b"\xff\x00")),
                _ => Some(format!("team/job-{}", chance.below(3)).into()),
            },
            value: match chance.below(6) {
                0 => None,
                1 => Some(Bytes::new()),
                2 => Some(Bytes::from_static(b"{not json")),
                3 => Some(Bytes::from(vec![0, 159, number as u8])),
                _ => Some(
                    serde_json::to_vec(&Directive { workload: format!("team/job-{number}"), ..Directive::default() })
                        .unwrap()
                        .into(),
                ),
            },
            headers: headers(chance, topic, time),
        };
        let holes = if chance.one_in(3) { 1 + chance.below(2) } else { 0 };
        coming.push(ScheduledRecord { topic, partition: chance.below(PARTITIONS as usize) as i32, stamp, record, holes });
    }
    coming
}

fn headers(chance: &mut Chance, topic: Topic, time: EventTime) -> Vec<(Arc<str>, Bytes)> {
    let heartbeat = chance.one_in(6);
    let kind = if heartbeat { EventType::Heartbeat } else { topic.event_type() };
    let envelope = Envelope { id: format!("e-{time}"), source: "/tests".to_owned(), kind, time, subject: "team/job".to_owned() };
    let unknown = chance.one_in(6);
    let mut headers: Vec<(Arc<str>, Bytes)> =
        envelope.headers().into_iter().map(|(name, value)| (Arc::from(name), Bytes::from(value))).collect();
    if chance.one_in(6) {
        headers.clear();
    }
    for (_, value) in headers.iter_mut().filter(|(name, _)| unknown && &**name == header::TYPE) {
        *value = Bytes::from_static(b"org.example.unknown");
    }
    if chance.one_in(4) {
        headers.push((Arc::from("trace"), Bytes::from_static(b"\xfe")));
    }
    headers
}

/// Runs one story. Returns the number of its crashes, or the error.
fn one(seed: u64, flaw: Option<Flaw>) -> Result<usize, String> {
    let mut chance = Chance::new(seed);
    let coming = history(&mut chance);
    let settings = ArchiverSettings {
        location: ROOT.to_owned(),
        roll_rows: 1 + chance.below(5),
        roll_seconds: 1_800.0,
        // Simulated, as the pauses are.
        drain_seconds: 2.0,
        retry_max_seconds: 0.2,
        ..ArchiverSettings::default()
    };
    let faults = chance.below(12);
    Story::new(chance, coming, faults, settings, flaw).play()
}

#[test]
fn however_the_story_goes_each_offset_is_in_exactly_one_file() {
    run_stories(env!("CARGO_PKG_NAME"), "simulation", |seed| one(seed, None));
}

#[test]
fn what_is_broken_on_purpose_is_found_out() {
    for flaw in [Flaw::FileSyncs, Flaw::FolderSyncs, Flaw::Ownership, Flaw::Leftovers, Flaw::Renames] {
        is_found_out(&format!("{flaw:?}"), 400, 2, |seed| one(seed, Some(flaw)));
    }
}
