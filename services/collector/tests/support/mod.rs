//! Shared parts of this crate's tests: a log in memory, and a collector around it.
#![allow(dead_code, reason = "each test binary is built with all of this file and uses its own part")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use eadt_bus::{
    Bus, BusError, GroupMember, IsolationLevel, MemberOptions, PartitionReader, Producer, ProducerCounts, ProducerRecord, Remedy,
    Result, StartOffset, TopicPartition, TopicSpec, WatermarkOffsets,
};
use eadt_collector::kubelet::owners::PodFactsLookup;
use eadt_collector::{CollectorDependencies, CollectorError, CollectorSummary, RawSettings, run};
use eadt_schemas::latest::GpuTelemetry;
use eadt_service::{HealthRegistry, MetricsRegistry, Shutdown};

/// Takes every record and keeps it.
#[derive(Debug, Clone, Default)]
pub struct MemoryBus(Arc<Mutex<Vec<ProducerRecord>>>);

impl MemoryBus {
    pub fn records(&self) -> Vec<ProducerRecord> {
        self.0.lock().unwrap().clone()
    }

    pub fn telemetry(&self) -> Vec<GpuTelemetry> {
        self.records()
            .iter()
            .filter(|record| record.topic.ends_with("gpu.telemetry.v1"))
            .map(|record| eadt_schemas::decode(record.value.as_ref().unwrap()).unwrap())
            .collect()
    }
}

#[derive(Debug)]
struct MemoryProducer(MemoryBus, u64);

impl Producer for MemoryProducer {
    fn send(&mut self, record: ProducerRecord) -> Result<()> {
        self.0.0.lock().unwrap().push(record);
        self.1 += 1;
        Ok(())
    }
    fn counts(&self) -> ProducerCounts {
        ProducerCounts { accepted: self.1, acknowledged: self.1, failed: 0 }
    }
    fn flush(&mut self, _: Duration) -> Result<bool> {
        Ok(true)
    }
}

fn no() -> BusError {
    BusError::new(Remedy::Stop, "call", "the log in memory only takes records")
}

impl Bus for MemoryBus {
    fn topics(&self, _: &str) -> Result<Vec<TopicSpec>> {
        Err(no())
    }
    fn create_topic(&self, _: &TopicSpec) -> Result<()> {
        Err(no())
    }
    fn alter_topic(&self, _: &str, _: &BTreeMap<String, String>) -> Result<()> {
        Err(no())
    }
    fn add_partitions(&self, _: &str, _: i32) -> Result<()> {
        Err(no())
    }
    fn watermarks(&self, _: &TopicPartition) -> Result<WatermarkOffsets> {
        Err(no())
    }
    fn producer(&self, _: &str) -> Result<Box<dyn Producer>> {
        Ok(Box::new(MemoryProducer(self.clone(), 0)))
    }
    fn reader(&self, _: &[(TopicPartition, StartOffset)], _: IsolationLevel) -> Result<Box<dyn PartitionReader>> {
        Err(no())
    }
    fn member(&self, _: MemberOptions) -> Result<Box<dyn GroupMember>> {
        Err(no())
    }
    fn committed(&self, _: &str, _: &[TopicPartition]) -> Result<Vec<Option<i64>>> {
        Err(no())
    }
}

/// A collector that runs.
pub struct Running {
    pub bus: MemoryBus,
    pub metrics: MetricsRegistry,
    shutdown: Shutdown,
    task: tokio::task::JoinHandle<std::result::Result<CollectorSummary, CollectorError>>,
}

/// Starts a collector named `host` with these settings.
pub fn start(settings: &str) -> Running {
    start_with(settings, None)
}

/// Starts the same with a lookup of the pods' owners.
pub fn start_with(settings: &str, owners: Option<Arc<dyn PodFactsLookup>>) -> Running {
    let raw: RawSettings = toml::from_str(settings).expect("settings parse");
    let settings = raw.validate("host").expect("settings are valid");
    let (bus, metrics, shutdown) = (MemoryBus::default(), MetricsRegistry::default(), Shutdown::new());
    let mut environment =
        CollectorDependencies::new(Arc::new(bus.clone()), "eadt.", metrics.clone(), HealthRegistry::default(), shutdown.clone());
    environment.owners = owners;
    let task = tokio::spawn(run(settings, environment));
    Running { bus, metrics, shutdown, task }
}

impl Running {
    /// Stops it gracefully.
    pub async fn stop(self) -> std::result::Result<CollectorSummary, CollectorError> {
        self.shutdown.cancel();
        self.task.await.expect("no panic")
    }

    /// Waits for its own end.
    pub async fn ended(self) -> std::result::Result<CollectorSummary, CollectorError> {
        self.task.await.expect("no panic")
    }

    /// Waits until the telemetry satisfies a condition.
    pub async fn until(&self, what: &str, condition: impl Fn(&[GpuTelemetry]) -> bool) {
        for _ in 0..2400 {
            if condition(&self.bus.telemetry()) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("not within two minutes: {what}\n{}", self.metrics.text());
    }

    /// Returns the value of one line of the metrics.
    pub fn metric(&self, series: &str) -> Option<f64> {
        self.metrics.text().lines().find_map(|line| line.strip_prefix(series)?.trim().parse().ok())
    }
}
