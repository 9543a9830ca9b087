//! The commit path under chance: at every call that the processor makes of the bus, before, during and after a step, it is
//! killed, or got an unknown outcome of the call; steps that have to be tried again, rebalances, records that come
//! bit by bit. However the story goes, what is in the log at its end is what a fold without a story gives: each window, decision
//! and dead letter once, and the same state.
//!
//! One seed is one story. A failing one prints how to repeat it. 250 are played; `cargo xtask test` begins at a fresh seed and goes
//! on for a while, `EADT_TEST_SEEDS=10000` plays so many.

pub mod bus;
pub mod joint;
pub mod story;

use std::collections::BTreeMap;

use bus::{Chance, Flaw, PARTITIONS, ScheduledRecord, SimBus};
use bytes::Bytes;
use eadt_bus::{ProducerRecord, partition_for_key};
use eadt_core::settings::SECOND;
use eadt_core::{FoldOutput, InputRecord, PartitionFold};
use eadt_processor::codec::DecodedRecord;
use eadt_processor::{ProcessorSettings, run_processor};
use eadt_schemas::envelope::header;
use eadt_schemas::v1::{GpuTelemetry, JobLifecycle, Layout, TrainingProgress, Workload};
use eadt_schemas::{EventTime, EventType, Topic};
use story::{BASE, Outputs, compare, found, mend, play, run_stories, tear};

const OUTPUTS: [Topic; 3] = [Topic::EfficiencyWindows, Topic::Decisions, Topic::DeadLetters];

fn settings() -> ProcessorSettings {
    ProcessorSettings {
        prefix: "eadt.".into(),
        window_seconds: 10.0,
        idle_grace_seconds: 30.0,
        join_grace_seconds: 2.0,
        buffer_bytes: 65_536,
        // Nothing may depend on how fast this machine is: a step is made when there is output, never because of time.
        linger_milliseconds: 0,
        commit_seconds: 3_600.0,
        dead_letter_seconds: 60.0,
        retry_seconds: 0.001,
        ..ProcessorSettings::default()
    }
}

/// One source's counters and habits.
struct Source {
    workload: Option<usize>,
    number: usize,
    progress: bool,
    total: f64,
    ended: bool,
    silent_until: i64,
}

/// Returns a history in the order of stamps, which rise by milliseconds; event times lie as much before them for all sources,
/// so that the merge has one order only.
fn history(chance: &mut Chance) -> Vec<ScheduledRecord> {
    let workloads = 2 + chance.below(3);
    let mut sources: Vec<Source> = Vec::new();
    for workload in 0..workloads {
        let (gpus, ranks) = (1 + chance.below(3), 1 + chance.below(2));
        for (number, progress) in (0..gpus).map(|n| (n, false)).chain((0..ranks).map(|n| (n, true))) {
            sources.push(Source { workload: Some(workload), number, progress, total: 0.0, ended: false, silent_until: 0 });
        }
    }
    sources.push(Source { workload: None, number: 0, progress: false, total: 0.0, ended: false, silent_until: 0 });
    let lag = chance.below(5_000) as i64;
    let (mut now, mut coming) = (0_i64, Vec::new());
    for _ in 0..150 + chance.below(200) {
        // Milliseconds.
        now += 1 + chance.below(900) as i64 + if chance.one_in(150) { 60_000 } else { 0 };
        let stamp = EventTime::from_micros(BASE * SECOND + now * 1_000);
        let time = stamp.plus_micros(-lag * 1_000);
        let i = chance.below(sources.len());
        let source = &mut sources[i];
        if source.ended || now < source.silent_until {
            continue;
        }
        source.total = if chance.one_in(60) { 3.0 } else { source.total + 1.0 + chance.below(500) as f64 / 7.0 };
        source.silent_until = if chance.one_in(40) { now + 45_000 } else { 0 };
        source.ended = chance.one_in(80);
        let name = source.workload.map(|workload| format!("team/job-{workload}"));
        let key = name.clone().unwrap_or_else(|| "GPU-alone".to_owned());
        let (topic, value) = match chance.below(40) {
            0 => (Topic::GpuTelemetry, b"{not json".to_vec()),
            1 => (Topic::TrainingProgress, br#"{"time":"2023-11-14T22:14:00Z","workload":"x","collector":"c"}"#.to_vec()),
            2 => (Topic::GpuTelemetry, Vec::new()),
            3 if name.is_some() => {
                let layout = Layout { replicas: Some(1 + chance.below(9) as u32), ..Layout::default() };
                let event = Workload { time, workload: key.clone(), layout, generation: now as u64, ..Workload::default() };
                (Topic::Workloads, serde_json::to_vec(&event).unwrap())
            }
            _ if source.progress => {
                let event = TrainingProgress {
                    time,
                    workload: key.clone(),
                    rank: source.number as u32,
                    collector: "http/n".into(),
                    samples_total: (!chance.one_in(5)).then_some(source.total),
                    phase: if chance.one_in(25) { JobLifecycle::Started } else { JobLifecycle::Progress },
                    last: source.ended,
                    ..TrainingProgress::default()
                };
                (Topic::TrainingProgress, serde_json::to_vec(&event).unwrap())
            }
            _ => {
                let event = GpuTelemetry {
                    time,
                    workload: name,
                    device: if source.workload.is_some() { format!("GPU-{}", source.number) } else { key.clone() },
                    collector: "nvml/n".into(),
                    energy_joules_total: (!chance.one_in(6)).then_some(source.total * 3.0),
                    power_watts: (!chance.one_in(4)).then_some(100.0 + chance.below(200) as f64),
                    last: source.ended,
                    ..GpuTelemetry::default()
                };
                (Topic::GpuTelemetry, serde_json::to_vec(&event).unwrap())
            }
        };
        // An empty value is a heartbeat.
        let kind = if value.is_empty() { EventType::Heartbeat } else { topic.event_type() };
        let record = ProducerRecord {
            topic: format!("eadt.{topic}").into(),
            partition: None,
            key: Some(key.clone().into()),
            value: Some(value.into()),
            headers: vec![(header::TYPE.into(), Bytes::from_static(kind.name().as_bytes()))],
        };
        coming.push(ScheduledRecord { topic, partition: partition_for_key(key.as_bytes(), PARTITIONS), stamp, record, holes: 0 });
    }
    coming
}

/// Returns the outputs of a fold without faults, and those of its partitions at the end.
fn straight(coming: &[ScheduledRecord], settings: &ProcessorSettings) -> (Outputs, Vec<Vec<FoldOutput>>) {
    let mut expected = Outputs::new();
    let mut add_output = |topic, key: String, value| expected.entry((topic, key)).or_default().push(value);
    let mut ends = Vec::new();
    for number in 0..PARTITIONS {
        let mut partition = PartitionFold::new(settings.fold_settings());
        let mut offsets: BTreeMap<Topic, i64> = BTreeMap::new();
        let mut out = Vec::new();
        for ScheduledRecord { topic, stamp, record, .. } in coming.iter().filter(|coming| coming.partition == number) {
            let offset = offsets.entry(*topic).or_default();
            let kind = record.headers.first().and_then(|(_, kind)| std::str::from_utf8(kind).ok());
            let decoded = DecodedRecord::decode(*topic, kind, record.value.as_deref());
            let key = record.key.as_deref().and_then(|key| std::str::from_utf8(key).ok());
            let input = InputRecord { topic: *topic, stamp: *stamp, key, is_sent_again: false, event: decoded.event() };
            partition.fold(&input, &mut out);
            for output in out.drain(..) {
                match output {
                    FoldOutput::Window(window) => {
                        add_output(Topic::EfficiencyWindows, window.workload.clone(), serde_json::to_string(&window).unwrap());
                    }
                    FoldOutput::Decision(decision) => {
                        add_output(Topic::Decisions, decision.workload.clone(), serde_json::to_string(&decision).unwrap());
                    }
                    FoldOutput::Refused(refusal) => {
                        let origin = format!("eadt.{topic}");
                        add_output(Topic::DeadLetters, origin, format!("{} {number} {offset}", refusal.reason.name()));
                    }
                }
            }
            *offset += 1;
        }
        partition.finish(&mut out);
        ends.push(out);
    }
    sort_dead_letters(&mut expected);
    (expected, ends)
}

/// Both partitions write the dead letters of a topic into one.
fn sort_dead_letters(expected: &mut Outputs) {
    expected.iter_mut().filter(|((topic, _), _)| *topic == Topic::DeadLetters).for_each(|(_, values)| values.sort());
}

/// Returns the outputs of the committed state at the end.
fn ends(bus: &SimBus, settings: &ProcessorSettings) -> Result<Vec<Vec<FoldOutput>>, String> {
    let records = bus.records(Topic::ProcessorState);
    let of = |number: i32| {
        let newest = records.iter().filter(|record| record.at.partition == number).map(|record| {
            (String::from_utf8_lossy(record.key.as_deref().unwrap_or_default()).into_owned(), record.value.clone())
        });
        let mut partition = PartitionFold::restore(settings.fold_settings(), newest).map_err(|error| error.to_string())?;
        let mut out = Vec::new();
        partition.finish(&mut out);
        Ok(out)
    };
    (0..PARTITIONS).map(of).collect()
}

/// Runs one story. Returns the number of its crashes, or the error at its end.
fn one(seed: u64, flaw: Option<Flaw>) -> Result<usize, String> {
    let mut chance = Chance::new(seed);
    let settings = settings();
    let coming = history(&mut chance);
    let (expected, at_end) = straight(&coming, &settings);
    let faults = chance.below(12);
    let bus = SimBus::new(chance, coming, faults, flaw);
    play(&bus, &Topic::PROCESSOR_INPUTS, &settings, "processor", run_processor)?;
    let mut found = found(&bus, &OUTPUTS);
    sort_dead_letters(&mut found);
    compare(&expected, &found)?;
    if ends(&bus, &settings)? != at_end {
        return Err("the state that was committed does not go on as the straight fold does".to_owned());
    }
    Ok(bus.crashes())
}

#[test]
fn however_the_story_goes_everything_is_written_once_and_the_state_is_the_same() {
    run_stories("simulation", |seed| one(seed, None));
}

#[test]
fn however_a_step_loses_its_state_or_its_positions_nothing_is_lost_or_written_twice() {
    mend("simulation", |seed, flaw| one(seed, Some(flaw)));
}

#[test]
fn a_log_that_tears_its_steps_is_found_out() {
    tear(|seed, flaw| one(seed, Some(flaw)));
}
