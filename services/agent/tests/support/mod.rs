//! Shared parts of this crate's tests: an agent on the fake library.
#![allow(dead_code, reason = "each test binary is built with all of this file and uses its own part")]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use eadt_agent::{AgentDependencies, AgentError, AgentSummary, LazyBus, RawSettings, run};
use eadt_bus::embedded::{EmbeddedLog, EmbeddedOptions};
use eadt_bus::{Bus, IsolationLevel, PollEvent, ProducerRecord, StartOffset, TopicPartition, partition_for_key, topics};
use eadt_nvml::fake::{FakeLibrary, FakeMps};
use eadt_nvml::set::SettableDriver;
use eadt_schemas::v1::{DeviceIntent, DeviceState};
use eadt_schemas::{EventTime, Topic, decode};
use eadt_service::{HealthRegistry, MetricsRegistry, ServiceClock, Shutdown};

pub const NODE: &str = "node-1";
const PARTITIONS: i32 = 2;

/// Returns a log in a folder, with all topics.
pub fn log(folder: &Path) -> Arc<dyn Bus> {
    let bus = EmbeddedLog::open(folder, EmbeddedOptions::default()).unwrap();
    for spec in topics::desired("eadt.", PARTITIONS, 1) {
        bus.create_topic(&spec).unwrap();
    }
    Arc::new(bus)
}

/// Returns an intent of now.
pub fn intent(time_to_live_seconds: f64) -> DeviceIntent {
    DeviceIntent {
        time: ServiceClock::machine().now(),
        node: NODE.into(),
        decision_id: "d-1".into(),
        time_to_live_seconds,
        devices: Some(Vec::new()),
        ..DeviceIntent::default()
    }
}

/// Appends any value for any node.
pub fn publish_raw(bus: &dyn Bus, node: &str, value: Option<Vec<u8>>) {
    let mut producer = bus.producer("test").unwrap();
    let key = Some(node.as_bytes().to_vec().into());
    let topic = format!("eadt.{}", Topic::DeviceIntents).into();
    producer.send(ProducerRecord { topic, partition: None, key, value: value.map(Into::into), headers: Vec::new() }).unwrap();
    assert!(producer.flush(Duration::from_mins(2)).unwrap());
}

pub fn publish(bus: &dyn Bus, intent: &DeviceIntent) {
    publish_raw(bus, &intent.node, Some(serde_json::to_vec(intent).unwrap()));
}

/// Returns everything in the partition of `key`.
pub fn read(bus: &dyn Bus, topic: Topic, key: &str) -> Vec<eadt_bus::ConsumerRecord> {
    let topic: Arc<str> = format!("eadt.{topic}").into();
    let at = TopicPartition::new(topic, partition_for_key(key.as_bytes(), PARTITIONS));
    let mut reader = bus.reader(&[(at, StartOffset::Earliest)], IsolationLevel::ReadCommitted).unwrap();
    let (mut polled, mut records) = (Vec::new(), Vec::new());
    loop {
        reader.poll(1000, Duration::from_secs(5), &mut polled).unwrap();
        for item in polled.drain(..) {
            match item {
                PollEvent::Record(record) => records.push(record),
                PollEvent::End { .. } => return records,
                _ => {}
            }
        }
    }
}

/// Returns the states that the agent published, oldest first.
pub fn states(bus: &dyn Bus) -> Vec<DeviceState> {
    let records = read(bus, Topic::DeviceStates, NODE).into_iter();
    records.map(|record| decode(record.value.as_deref().unwrap()).unwrap()).collect()
}

/// Settings of an agent that looks often.
pub fn settings(fake: &FakeLibrary, state_dir: &Path) -> RawSettings {
    let mut raw = RawSettings::default();
    raw.agent.node = Some(NODE.into());
    state_dir.clone_into(&mut raw.agent.state_dir);
    raw.agent.library_path = Some(fake.library());
    raw.agent.check_seconds = 0.05;
    raw.agent.call_timeout_seconds = 10.0;
    raw.agent.retry_seconds = 0.1;
    raw.agent.stop_seconds = 30.0;
    raw
}

/// An agent that runs in this process.
pub struct Running {
    pub metrics: MetricsRegistry,
    pub health: HealthRegistry,
    shutdown: Shutdown,
    task: tokio::task::JoinHandle<Result<AgentSummary, AgentError>>,
}

/// Starts an agent on this log, or on none.
pub fn start(raw: &RawSettings, bus: Option<Arc<dyn Bus>>) -> Running {
    start_on(raw, bus.map(|bus| LazyBus::new(move || Ok(bus.clone()))))
}

/// Starts an agent that connects like this.
pub fn start_on(raw: &RawSettings, log: Option<LazyBus>) -> Running {
    launch(raw, log, None)
}

/// Starts an agent on this log that sets GPUs through this driver.
pub fn start_with(raw: &RawSettings, bus: &Arc<dyn Bus>, driver: Arc<dyn SettableDriver>) -> Running {
    let bus = bus.clone();
    launch(raw, Some(LazyBus::new(move || Ok(bus.clone()))), Some(driver))
}

fn launch(raw: &RawSettings, log: Option<LazyBus>, driver: Option<Arc<dyn SettableDriver>>) -> Running {
    let (metrics, health, shutdown) = (MetricsRegistry::default(), HealthRegistry::default(), Shutdown::new());
    let mut environment = AgentDependencies::new(log, metrics.clone(), health.clone(), shutdown.clone());
    environment.driver = driver;
    let settings = raw.validate("host").unwrap();
    Running { metrics, health, shutdown, task: tokio::spawn(run(settings, environment)) }
}

impl Running {
    pub async fn stop(self) -> Result<AgentSummary, AgentError> {
        self.shutdown.cancel();
        self.task.await.expect("no panic")
    }

    /// Waits for its own end.
    pub async fn ended(self) -> Result<AgentSummary, AgentError> {
        self.task.await.expect("no panic")
    }

    /// Returns the value of one line of the metrics.
    pub fn metric(&self, series: &str) -> Option<f64> {
        self.metrics.text().lines().find_map(|line| line.strip_prefix(series)?.trim().parse().ok())
    }

    pub async fn until(&self, what: &str, condition: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_mins(2);
        while !condition() {
            assert!(Instant::now() < deadline, "not within two minutes: {what}\n{}", self.metrics.text());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// Lets the agent change the default of this daemon.
pub fn allow(mps: &FakeMps, raw: &mut RawSettings) {
    raw.agent.mps.enabled = true;
    raw.agent.mps.pipe_directories = vec![mps.pipe_directory()];
    raw.agent.mps.control_program = mps.program();
    raw.agent.mps.timeout_seconds = 30.0;
}

/// Earlier by so many seconds.
pub fn earlier(time: EventTime, seconds: f64) -> EventTime {
    EventTime::from_micros(time.micros() - (seconds * 1e6) as i64)
}
