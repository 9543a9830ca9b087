//! A stage that decides about several workloads together, under chance: however the story goes, what is in the log at its end is
//! what a fold without a story gives.

use std::collections::BTreeMap;

use bytes::Bytes;
use eadt_bus::{ProducerRecord, partition_for_key};
use eadt_core::FoldSettings;
use eadt_core::joint::{JointEvent, JointFold};
use eadt_core::settings::SECOND;
use eadt_processor::codec::DecodedRecord;
use eadt_processor::{ProcessorDependencies, ProcessorError, ProcessorSettings};
use eadt_schemas::envelope::header;
use eadt_schemas::v1::{Decision, EfficiencyWindow};
use eadt_schemas::{EventTime, Topic};

use super::bus::{Chance, Flaw, PARTITIONS, ScheduledRecord, SimBus};
use super::story::{BASE, Outputs, compare, found, play};

const INPUTS: [Topic; 3] = [Topic::Workloads, Topic::Actuations, Topic::EfficiencyWindows];

/// A stage, and what happens to it.
pub struct Story<F> {
    /// The end of its group's name.
    pub part: &'static str,
    pub settings: ProcessorSettings,
    pub new: fn(FoldSettings) -> F,
    pub run: fn(&ProcessorDependencies) -> Result<(), ProcessorError>,
    /// Events in the order of their times, which are the stamps, too.
    pub history: fn(&mut Chance) -> Vec<ScheduledRecord>,
    /// Windows after it.
    pub next: fn() -> Vec<EfficiencyWindow>,
}

pub fn at(seconds: i64) -> EventTime {
    EventTime::from_micros((BASE + seconds) * SECOND)
}

pub fn coming(topic: Topic, time: EventTime, key: &str, value: Option<Vec<u8>>) -> ScheduledRecord {
    let record = ProducerRecord {
        topic: format!("eadt.{topic}").into(),
        partition: None,
        key: Some(Bytes::copy_from_slice(key.as_bytes())),
        value: value.map(Bytes::from),
        headers: vec![(header::TYPE.into(), Bytes::from_static(topic.event_type().name().as_bytes()))],
    };
    ScheduledRecord { topic, partition: partition_for_key(key.as_bytes(), PARTITIONS), stamp: time, record, holes: 0 }
}

pub fn json(event: &impl serde::Serialize) -> Vec<u8> {
    serde_json::to_vec(event).unwrap()
}

fn fold(stage: &mut impl JointFold, coming: &ScheduledRecord, out: &mut Vec<Decision>) -> Result<(), String> {
    let ScheduledRecord { topic, stamp, record, .. } = coming;
    let key = record.key.as_deref().and_then(|key| std::str::from_utf8(key).ok());
    if *topic == Topic::EfficiencyWindows {
        let window: EfficiencyWindow =
            eadt_schemas::decode::decode(record.value.as_deref().unwrap()).map_err(|refusal| refusal.reason.name().to_owned())?;
        return stage.fold(JointEvent::Window(&window), key, *stamp, out).map_err(|refusal| refusal.to_string());
    }
    let decoded = DecodedRecord::decode(*topic, Some(topic.event_type().name()), record.value.as_deref());
    stage.fold(JointEvent::Input(decoded.event()), key, *stamp, out).map_err(|refusal| refusal.to_string())
}

/// Returns the outputs of a fold without faults, and its state.
fn straight<F: JointFold>(all: &[ScheduledRecord], mut stage: F) -> (Outputs, F) {
    let (mut expected, mut out) = (Outputs::new(), Vec::new());
    let mut offsets: BTreeMap<i32, i64> = BTreeMap::new();
    for coming in all {
        if let Err(reason) = fold(&mut stage, coming, &mut out) {
            let offset = offsets.get(&coming.partition).copied().unwrap_or(0);
            let letters = expected.entry((Topic::DeadLetters, format!("eadt.{}", coming.topic))).or_default();
            letters.push(format!("{reason} {} {offset}", coming.partition));
        }
        if coming.topic == Topic::EfficiencyWindows {
            *offsets.entry(coming.partition).or_default() += 1;
        }
        for decision in out.drain(..) {
            let key = (Topic::Decisions, decision.workload.clone());
            expected.entry(key).or_default().push(serde_json::to_string(&decision).unwrap());
        }
    }
    sort(&mut expected);
    (expected, stage)
}

/// All partitions are written from one place, in an order that is the merge's.
fn sort(expected: &mut Outputs) {
    for values in expected.values_mut() {
        values.sort();
    }
}

/// Returns a stage's decisions about the next window of every workload.
fn goes_on(stage: &mut impl JointFold, next: &[EfficiencyWindow]) -> Vec<String> {
    let mut out = Vec::new();
    for window in next {
        stage.fold(JointEvent::Window(window), None, window.window_end, &mut out).unwrap();
    }
    out.iter().map(|decision| serde_json::to_string(decision).unwrap()).collect()
}

/// Runs one story. Returns the number of its crashes, or the error at its end.
pub fn one<F: JointFold>(story: &Story<F>, seed: u64, flaw: Option<Flaw>) -> Result<usize, String> {
    let mut chance = Chance::new(seed);
    let settings = &story.settings;
    let all = (story.history)(&mut chance);
    let (expected, mut at_end) = straight(&all, (story.new)(settings.fold_settings()));
    let faults = chance.below(12);
    let bus = SimBus::new(chance, all, faults, flaw);
    play(&bus, &INPUTS, settings, story.part, story.run)?;
    let mut found = found(&bus, &[Topic::Decisions, Topic::DeadLetters]);
    sort(&mut found);
    compare(&expected, &found)?;
    let mut newest = BTreeMap::new();
    for record in bus.records(Topic::ProcessorState) {
        newest.insert(String::from_utf8_lossy(record.key.as_deref().unwrap_or_default()).into_owned(), record.value);
    }
    let mut restored = F::restore(settings.fold_settings(), newest).map_err(|error| error.to_string())?;
    let next = (story.next)();
    if goes_on(&mut restored, &next) != goes_on(&mut at_end, &next) {
        return Err("the state that was committed does not go on as the straight fold does".to_owned());
    }
    Ok(bus.crashes())
}
