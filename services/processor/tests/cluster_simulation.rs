//! The commit path of the cluster's stage under chance, as `simulation.rs` has it for the first stage: however the story goes, what
//! is in the log at its end is what a fold without a story says.
//!
//! A failing seed prints how to repeat it; `EADT_SIMULATION_SEEDS=10000` tells more of them.

#[path = "simulation/bus.rs"]
mod bus;
#[path = "simulation/story.rs"]
mod story;

use std::collections::BTreeMap;

use bus::{Chance, Coming, Flaw, PARTITIONS, SimBus};
use bytes::Bytes;
use eadt_bus::{Outgoing, partition_for_key};
use eadt_core::budget::BudgetSettings;
use eadt_core::cluster::Event;
use eadt_core::settings::SECOND;
use eadt_core::{Cluster, FoldSettings};
use eadt_processor::codec::Decoded;
use eadt_processor::{Settings, run_cluster};
use eadt_schemas::envelope::header;
use eadt_schemas::v1::{Actuation, Decision, EfficiencyWindow, Layout, Outcome, UpdateMode, Workload};
use eadt_schemas::{EventTime, EventType, Topic};
use story::{BASE, Said, compare, found, play, tear, tell};

const INPUTS: [Topic; 3] = [Topic::Workloads, Topic::Actuations, Topic::EfficiencyWindows];
const MEMBERS: usize = 4;

fn settings() -> Settings {
    Settings {
        prefix: "eadt.".into(),
        // Nothing may depend on how fast this machine is: a step is made when there is something to say, never because of time.
        commit_seconds: 3_600.0,
        retry_seconds: 0.001,
        // A first start passes over nothing, whenever it is.
        power_budget: BudgetSettings { budget_watts: Some(1_500.0), expiry_seconds: 3_600.0, ..BudgetSettings::default() },
        ..Settings::default()
    }
}

fn at(seconds: i64) -> EventTime {
    EventTime::from_micros((BASE + seconds) * SECOND)
}

fn name(member: usize) -> String {
    format!("team/job-{member}")
}

fn coming(topic: Topic, time: EventTime, key: &str, value: Option<Vec<u8>>) -> Coming {
    let record = Outgoing {
        topic: format!("eadt.{topic}").into(),
        partition: None,
        key: Some(Bytes::copy_from_slice(key.as_bytes())),
        value: value.map(Bytes::from),
        headers: vec![(header::TYPE.into(), Bytes::from_static(EventType::of_topic(topic).name().as_bytes()))],
    };
    Coming { topic, partition: partition_for_key(key.as_bytes(), PARTITIONS), stamp: time, record }
}

fn json(event: &impl serde::Serialize) -> Vec<u8> {
    serde_json::to_vec(event).unwrap()
}

/// Twenty minutes of some jobs whose layouts somebody changes, in the order of the times, which are the stamps, too.
fn history(chance: &mut Chance) -> Vec<Coming> {
    let mut all = Vec::new();
    let mut workloads: Vec<Workload> = (0..MEMBERS)
        .map(|member| Workload {
            workload: name(member),
            controller: Some(if member == 3 { "hybrid" } else { "power-budget" }.into()),
            mode: UpdateMode::Enforce,
            gpus: Some(1 + chance.below(3) as u32),
            gpu_power_limit_watts: Some(400.0),
            ..Workload::default()
        })
        .collect();
    for minute in 0..20_i64 {
        let mut seconds = minute * 60 + 1;
        for (member, workload) in workloads.iter_mut().enumerate() {
            seconds += 1 + chance.below(10) as i64;
            if minute > 0 && !chance.one_in(3) {
                continue;
            }
            workload.time = at(seconds);
            workload.generation += 1;
            workload.ready_time = (!chance.one_in(4)).then_some(at(seconds));
            workload.layout = Layout { power_limit_watts: Some(150.0 + chance.below(250) as f64), ..Layout::default() };
            let value = if minute > 0 && chance.one_in(10) { None } else { Some(json(workload)) };
            all.push(coming(Topic::Workloads, at(seconds), &name(member), value));
            let refused = Actuation {
                id: format!("{seconds}"),
                decision_id: format!("{}@{}/power-budget", name(member), at(minute * 60)),
                workload: name(member),
                time: at(seconds),
                outcome: if chance.one_in(2) { Outcome::Refused } else { Outcome::Applied },
                ..Actuation::default()
            };
            all.push(coming(Topic::Actuations, at(seconds), &name(member), Some(json(&refused))));
        }
        let end = at(minute * 60 + 60);
        for (member, workload) in workloads.iter().enumerate().filter(|_| !chance.one_in(8)).collect::<Vec<_>>() {
            let watts = workload.layout.power_limit_watts.unwrap_or(400.0);
            let window = EfficiencyWindow {
                id: format!("{}/{end}", name(member)),
                workload: name(member),
                window_start: end.plus_seconds(-60.0),
                window_end: end,
                energy_coverage_ratio: if chance.one_in(6) { 0.5 } else { 1.0 },
                progress_coverage_ratio: 1.0,
                samples_per_second: Some(watts.powf(0.1 + chance.below(80) as f64 / 100.0)),
                mean_power_watts: Some(watts),
                mean_power_per_gpu_watts: Some(watts),
                layout: Some(workload.layout.clone()),
                gpus: 1,
                ..EfficiencyWindow::default()
            };
            let value = if chance.one_in(30) { b"{not json".to_vec() } else { json(&window) };
            all.push(coming(Topic::EfficiencyWindows, end, &name(member), Some(value)));
        }
    }
    all
}

fn fold(cluster: &mut Cluster, coming: &Coming, out: &mut Vec<Decision>) -> Result<(), String> {
    let Coming { topic, stamp, record, .. } = coming;
    let key = record.key.as_deref().and_then(|key| std::str::from_utf8(key).ok());
    if *topic == Topic::EfficiencyWindows {
        let window: EfficiencyWindow =
            eadt_schemas::decode::decode(record.value.as_deref().unwrap()).map_err(|refusal| refusal.reason.name().to_owned())?;
        return cluster.fold(Event::Window(&window), key, *stamp, out).map_err(|refusal| refusal.to_string());
    }
    let decoded = Decoded::of(*topic, Some(EventType::of_topic(*topic).name()), record.value.as_deref());
    cluster.fold(Event::Input(decoded.event()), key, *stamp, out).map_err(|refusal| refusal.to_string())
}

/// What a fold says that nothing ever happens to, and its state.
fn straight(all: &[Coming], settings: &FoldSettings) -> (Said, Cluster) {
    let (mut said, mut cluster, mut out) = (Said::new(), Cluster::new(settings.clone()), Vec::new());
    let mut offsets: BTreeMap<i32, i64> = BTreeMap::new();
    for coming in all {
        if let Err(reason) = fold(&mut cluster, coming, &mut out) {
            let offset = offsets.get(&coming.partition).copied().unwrap_or(0);
            let letters = said.entry((Topic::DeadLetters, format!("eadt.{}", coming.topic))).or_default();
            letters.push(format!("{reason} {} {offset}", coming.partition));
        }
        if coming.topic == Topic::EfficiencyWindows {
            *offsets.entry(coming.partition).or_default() += 1;
        }
        for decision in out.drain(..) {
            let key = (Topic::Decisions, decision.workload.clone());
            said.entry(key).or_default().push(serde_json::to_string(&decision).unwrap());
        }
    }
    sort(&mut said);
    (said, cluster)
}

/// All partitions are written from one place, in an order that is the merge's.
fn sort(said: &mut Said) {
    for values in said.values_mut() {
        values.sort();
    }
}

/// What a cluster says of the next window of everybody.
fn goes_on(cluster: &mut Cluster) -> Vec<String> {
    let (end, mut out) = (at(21 * 60), Vec::new());
    for member in 0..MEMBERS {
        let window = EfficiencyWindow { workload: name(member), window_end: end, ..EfficiencyWindow::default() };
        cluster.fold(Event::Window(&window), None, end, &mut out).unwrap();
    }
    out.iter().map(|decision| serde_json::to_string(decision).unwrap()).collect()
}

/// One story; the number of its crashes, or what is wrong at its end.
fn one(seed: u64, flaw: Option<Flaw>) -> Result<usize, String> {
    let mut chance = Chance::new(seed);
    let settings = settings();
    let all = history(&mut chance);
    let (said, mut at_end) = straight(&all, &settings.fold());
    let faults = chance.below(12);
    let bus = SimBus::new(chance, all, faults, flaw);
    play(&bus, &INPUTS, &settings, "cluster", run_cluster)?;
    let mut found = found(&bus, &[Topic::Decisions, Topic::DeadLetters]);
    sort(&mut found);
    compare(&said, &found)?;
    let mut newest = BTreeMap::new();
    for record in bus.records(Topic::ProcessorState) {
        newest.insert(String::from_utf8_lossy(record.key.as_deref().unwrap_or_default()).into_owned(), record.value);
    }
    let mut restored = Cluster::restore(settings.fold(), newest).map_err(|error| error.to_string())?;
    if goes_on(&mut restored) != goes_on(&mut at_end) {
        return Err("the state that was committed does not go on as the straight fold does".to_owned());
    }
    Ok(bus.crashes())
}

#[test]
fn however_the_story_goes_every_decision_is_said_once_and_the_state_is_the_same() {
    tell("cluster_simulation", |seed| one(seed, None));
}

#[test]
fn a_log_that_tears_its_steps_is_found_out() {
    tear(|seed, flaw| one(seed, Some(flaw)));
}
