//! Driver, actuator and a scripted processor on one embedded log.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use eadt_bus::embedded::{EmbeddedLog, EmbeddedOptions, StampSource};
use eadt_bus::{Bus, IsolationLevel, PollEvent, ProducerRecord, StartOffset, TopicPartition, TopicSpec};
use eadt_cluster::Cluster;
use eadt_schemas::v1::{Actuation, ControllerAction, Decision, GpuTelemetry, Layout, TrainingProgress, Workload};
use eadt_schemas::{EventTime, Topic, decode};
use eadt_service::{HealthRegistry, MetricsRegistry, Shutdown};
use eadt_simulator_service::{SimClock, SimulationDriver, SimulationEnd, SimulatorSettings};

pub const LLM: &str = "eadt/llm-training";
pub const VISION: &str = "eadt/vision-pretraining";
const PARTITIONS: i32 = 2;

pub fn at(seconds: f64) -> EventTime {
    SimulatorSettings::default().start.plus_seconds(seconds)
}

pub fn full(topic: Topic) -> String {
    format!("eadt.{topic}")
}

pub fn open(dir: &Path, clock: &SimClock) -> EmbeddedLog {
    let options =
        EmbeddedOptions { stamps: StampSource::Injected(clock.source()), reserve_bytes: 0, ..EmbeddedOptions::default() };
    let log = EmbeddedLog::open(dir, options).unwrap();
    let there = log.topics("eadt.").unwrap();
    for topic in Topic::ALL {
        let name: Arc<str> = full(topic).into();
        if !there.iter().any(|spec| spec.name == name) {
            log.create_topic(&TopicSpec { name, partitions: PARTITIONS, replication: 1, settings: BTreeMap::new() }).unwrap();
        }
    }
    log
}

/// Returns every value of a topic, partition after partition.
pub fn values(bus: &dyn Bus, topic: Topic) -> Vec<Bytes> {
    let from: Vec<_> = (0..PARTITIONS).map(|p| (TopicPartition::new(full(topic), p), StartOffset::Earliest)).collect();
    let mut reader = bus.reader(&from, IsolationLevel::ReadCommitted).unwrap();
    let mut by_partition: BTreeMap<i32, Vec<Bytes>> = BTreeMap::new();
    let (mut ends, mut polled) = (0, Vec::new());
    while ends < PARTITIONS {
        reader.poll(1000, Duration::from_millis(100), &mut polled).unwrap();
        for item in polled.drain(..) {
            match item {
                PollEvent::Record(record) => by_partition.entry(record.at.partition).or_default().extend(record.value),
                PollEvent::End { .. } => ends += 1,
                other => panic!("a reader returned {other:?}"),
            }
        }
    }
    by_partition.into_values().flatten().collect()
}

pub fn events<T: eadt_schemas::decode::DecodableEvent>(bus: &dyn Bus, topic: Topic) -> Vec<T> {
    values(bus, topic).iter().map(|value| decode(value).unwrap()).collect()
}

/// Makes a controller's decision for a workload in its present state at a window's end.
pub type Script = fn(&Workload, f64, &mut Decision);

pub fn layout(replicas: u32, percentage: u32) -> Layout {
    Layout {
        replicas: Some(replicas),
        mps_thread_percentage: Some(percentage),
        world_size: Some(replicas),
        local_world_size: Some(replicas / 3),
        ..Layout::default()
    }
}

/// One decision a window, once every source has passed the window's end or has been silent for two minutes.
struct Processor {
    log: EmbeddedLog,
    script: Script,
    layouts: HashMap<String, Workload>,
    sources: BTreeMap<String, BTreeMap<String, EventTime>>,
    decided: HashMap<String, EventTime>,
}

impl Processor {
    fn run(mut self, shutdown: &Shutdown) {
        let mut from = Vec::new();
        for topic in [Topic::Workloads, Topic::GpuTelemetry, Topic::TrainingProgress] {
            from.extend((0..PARTITIONS).map(|p| (TopicPartition::new(full(topic), p), StartOffset::Earliest)));
        }
        // Decisions of an earlier run.
        for decision in events::<Decision>(&self.log, Topic::Decisions) {
            let latest = self.decided.entry(decision.workload).or_insert(decision.time);
            *latest = decision.time.max(*latest);
        }
        let mut reader = self.log.reader(&from, IsolationLevel::ReadCommitted).unwrap();
        let mut producer = self.log.producer("processor").unwrap();
        let mut polled = Vec::new();
        // Nothing is decided before everything from before a restart was read.
        let mut behind = from.len();
        while !shutdown.is_cancelled() {
            reader.poll(1000, Duration::from_millis(5), &mut polled).unwrap();
            for item in polled.drain(..) {
                let PollEvent::Record(record) = item else {
                    behind = behind.saturating_sub(1);
                    continue;
                };
                let value = record.value.unwrap();
                if *record.at.topic == *full(Topic::Workloads) {
                    let workload: Workload = decode(&value).unwrap();
                    self.layouts.insert(workload.workload.clone(), workload);
                } else if *record.at.topic == *full(Topic::GpuTelemetry) {
                    let event: GpuTelemetry = decode(&value).unwrap();
                    self.sources.entry(event.workload.unwrap()).or_default().insert(event.device, event.time);
                } else {
                    let event: TrainingProgress = decode(&value).unwrap();
                    self.sources.entry(event.workload).or_default().insert(String::new(), event.time);
                }
            }
            if behind > 0 {
                continue;
            }
            for decision in self.decide() {
                let id = decision.id.clone();
                let value = serde_json::to_vec(&decision).unwrap();
                producer
                    .send(ProducerRecord {
                        topic: full(Topic::Decisions).into(),
                        partition: None,
                        key: Some(decision.workload.into()),
                        value: Some(value.into()),
                        headers: vec![],
                    })
                    .unwrap();
                assert!(producer.flush(Duration::from_mins(1)).unwrap(), "{id}");
            }
        }
    }

    fn decide(&mut self) -> Vec<Decision> {
        let mut decisions = Vec::new();
        for (name, sources) in &self.sources {
            let newest = *sources.values().max().unwrap();
            let live = sources.values().filter(|last| newest.seconds_since(**last) <= 120.0);
            let passed = live.min().unwrap().micros().div_euclid(60_000_000) * 60_000_000;
            let decided = self.decided.entry(name.clone()).or_insert(at(0.0));
            while decided.plus_seconds(60.0) <= EventTime::from_micros(passed) {
                *decided = decided.plus_seconds(60.0);
                let unmanaged = Workload { workload: name.clone(), ..Workload::default() };
                let workload = self.layouts.get(name).unwrap_or(&unmanaged);
                let mut decision = Decision {
                    id: format!("{name}@{decided}"),
                    workload: name.clone(),
                    time: *decided,
                    from: workload.layout.clone(),
                    to: workload.layout.clone(),
                    generation: Some(workload.generation),
                    expires: decided.plus_seconds(600.0),
                    ..Decision::default()
                };
                (self.script)(workload, decided.seconds_since(at(0.0)), &mut decision);
                decisions.push(decision);
            }
        }
        decisions
    }
}

/// Everything for one run over a folder; ends when the simulation does, or after `stop_after` seconds of simulated time.
pub struct Run<'a> {
    pub dir: &'a Path,
    pub settings: SimulatorSettings,
    pub script: Script,
    /// Seconds of simulated time at which it begins.
    begun: f64,
    pub stop_after: Option<f64>,
    /// A file that is made then, and it goes on.
    pub mark: Option<PathBuf>,
    /// The bus and the cluster as the actuator sees them.
    pub bus_of_actuator: fn(EmbeddedLog) -> Arc<dyn Bus>,
    pub cluster_of_actuator: fn(Arc<dyn Cluster>) -> Arc<dyn Cluster>,
}

impl<'a> Run<'a> {
    pub fn new(dir: &'a Path, seconds: f64, script: Script) -> Self {
        let settings = SimulatorSettings {
            speed: eadt_simulator_service::SimulationSpeed::Max,
            duration_seconds: Some(seconds),
            ..SimulatorSettings::default()
        };
        let bus_of_actuator = |log| Arc::new(log) as Arc<dyn Bus>;
        Self {
            dir,
            settings,
            script,
            begun: 0.0,
            stop_after: None,
            mark: None,
            bus_of_actuator,
            cluster_of_actuator: |cluster| cluster,
        }
    }

    /// Runs to the end; gives how it ended and the log, read to be looked at.
    pub fn run(self) -> (SimulationEnd, EmbeddedLog) {
        let clock = SimClock::new(self.settings.start);
        let log = open(self.dir, &clock);
        let (shutdown, metrics, health) = (Shutdown::new(), MetricsRegistry::default(), HealthRegistry::default());
        let (driver, cluster) = SimulationDriver::new(self.settings, clock.clone()).unwrap();
        let actuator = eadt_actuator::ActuatorDependencies {
            settings: eadt_actuator::ActuatorSettings {
                retry_min_seconds: 0.01,
                retry_max_seconds: 0.05,
                ..eadt_actuator::ActuatorSettings::default()
            },
            bus: (self.bus_of_actuator)(log.clone()),
            cluster: (self.cluster_of_actuator)(Arc::new(cluster)),
            shutdown: shutdown.clone(),
            metrics: metrics.clone(),
            ready: health.part("actuator"),
        };
        let processor = Processor {
            log: log.clone(),
            script: self.script,
            layouts: HashMap::new(),
            sources: BTreeMap::new(),
            decided: HashMap::new(),
        };
        let ended = std::thread::scope(|scope| {
            let actuator = scope.spawn(move || eadt_actuator::run_actuator(&actuator));
            let stop = shutdown.clone();
            let processor = scope.spawn(move || processor.run(&stop));
            if let Some(after) = self.stop_after {
                let (stop, moment, mark) = (shutdown.clone(), at(self.begun + after), self.mark);
                scope.spawn(move || {
                    while clock.now() < moment && !stop.is_cancelled() {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    match mark {
                        Some(mark) => std::fs::write(mark, "").unwrap(),
                        None => stop.cancel(),
                    }
                });
            }
            let ended = driver.run(&log, &shutdown, &metrics, &health.part("simulator"));
            shutdown.cancel();
            processor.join().unwrap();
            actuator.join().unwrap().unwrap();
            ended.unwrap()
        });
        assert_eq!(values(&log, Topic::DeadLetters).len(), 0);
        (ended, log)
    }
}

/// Returns a run over a folder that may hold the beginning of it, up to `end` seconds of simulated time, at which
/// nothing must be owed; `None` if it is complete already.
pub fn resumed(dir: &Path, end: f64, script: Script) -> Option<Run<'_>> {
    // The duration counts from each start.
    let log = open(dir, &SimClock::new(at(0.0)));
    let reached = events::<GpuTelemetry>(&log, Topic::GpuTelemetry).iter().map(|t| t.time).max();
    let reached = reached.map_or(0.0, |time| time.seconds_since(at(0.0)) + 1.0);
    (reached < end).then(|| Run { begun: reached, ..Run::new(dir, end - reached, script) })
}

/// Returns the outcomes of a workload's decisions: (seconds of the decision, outcome, seconds of the outcome,
/// generation).
pub fn outcomes(log: &EmbeddedLog, workload: &str) -> Vec<(f64, eadt_schemas::v1::ActuationOutcome, f64, u64)> {
    events::<Actuation>(log, Topic::Actuations)
        .into_iter()
        .filter(|actuation| actuation.workload == workload)
        .map(|actuation| {
            let decided: EventTime = actuation.decision_id.rsplit_once('@').unwrap().1.parse().unwrap();
            let since = |time: EventTime| time.seconds_since(at(0.0));
            (since(decided), actuation.outcome, since(actuation.time), actuation.generation)
        })
        .collect()
}

/// Changes, refusals and a cap; otherwise `maintain`.
pub fn script(workload: &Workload, seconds: f64, decision: &mut Decision) {
    let mut change = |action, to: Layout| {
        decision.action = action;
        decision.to = to;
    };
    if workload.generation == 0 {
        return;
    }
    match (workload.workload.as_str(), seconds) {
        (LLM, 120.0) => change(ControllerAction::Decrease, layout(6, 40)),
        (LLM, 480.0) => change(ControllerAction::ScaleReplicas, layout(9, 35)),
        (LLM, 660.0) => change(ControllerAction::ScaleReplicas, layout(15, 35)),
        (LLM, 720.0) => {
            change(ControllerAction::Increase, layout(3, 100));
            decision.generation = Some(1);
        }
        (VISION, 120.0) => {
            change(ControllerAction::SetPowerLimit, Layout { power_limit_watts: Some(250.0), ..workload.layout.clone() });
        }
        _ => {}
    }
}
