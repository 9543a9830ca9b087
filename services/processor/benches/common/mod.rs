//! Shared parts of the processor's benchmarks: events as collectors write them, and the kernel's figures about this process.

use std::sync::Arc;
use std::time::Duration;

use eadt_bus::{Producer, ProducerRecord, RecordHeader, Remedy};
use eadt_schemas::v1::{CounterScope, GpuTelemetry, JobLifecycle, Origin, TrainingProgress, Workload};
use eadt_schemas::{Envelope, EventTime, EventType, Topic};

pub mod closing;

pub const WORKLOADS: usize = 8;
/// GPUs of one node; a node has a collector.
const NODE: usize = 8;
pub const PARTITIONS: i32 = 4;

/// Returns the value of a counter in the metrics' text.
pub fn metric(text: &str, name: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|value| value.parse().ok()).unwrap_or(0.0)
}

pub fn workload(number: usize) -> String {
    format!("eadt/training-{number}")
}

/// Makes events; header names are shared, as producers of this program share them.
#[derive(Debug)]
pub struct Maker {
    names: Vec<Arc<str>>,
    topics: [Arc<str>; 3],
    gpus: Vec<GpuTelemetry>,
    jobs: Vec<TrainingProgress>,
    count: u64,
    seed: u64,
}

impl Maker {
    /// GPUs spread evenly over the workloads, and a job of each.
    pub fn new(gpus: usize) -> Self {
        Self::with_prefix(gpus, "eadt.")
    }

    /// The same, into topics whose names begin otherwise.
    pub fn with_prefix(gpus: usize, prefix: &str) -> Self {
        Self::with_workloads(gpus, WORKLOADS, prefix)
    }

    /// The same with so many workloads; more of them than GPUs leaves some without one.
    pub fn with_workloads(gpus: usize, workloads: usize, prefix: &str) -> Self {
        let gpus = (0..gpus).map(|i| GpuTelemetry {
            workload: Some(workload(i * workloads / gpus)),
            device: format!("GPU-{i:08x}-1f2e-4d3c-8b7a-0123456789ab"),
            collector: format!("nvml/node-{}", i / NODE),
            origin: Origin::Simulated,
            node: Some(format!("node-{}", i / NODE)),
            gpu_index: Some((i % NODE) as u32),
            gpu_model: Some("NVIDIA A100-SXM4-80GB".to_owned()),
            memory_used_bytes: Some(60_000_000_000),
            memory_total_bytes: Some(85_899_345_920),
            memory_clock_mhz: Some(1_593.0),
            power_limit_watts: Some(400.0),
            ..GpuTelemetry::default()
        });
        let jobs = (0..workloads).map(|i| TrainingProgress {
            workload: workload(i),
            collector: format!("http/node-{i}"),
            scope: CounterScope::Global,
            origin: Origin::Simulated,
            ..TrainingProgress::default()
        });
        let name = |topic: Topic| Arc::from(format!("{prefix}{topic}"));
        let topics = [Topic::GpuTelemetry, Topic::TrainingProgress, Topic::Workloads].map(name);
        Self { names: Vec::new(), topics, gpus: gpus.collect(), jobs: jobs.collect(), count: 0, seed: 0 }
    }

    /// The same with other figures.
    #[must_use]
    pub fn with_seed(self, seed: u64) -> Self {
        Self { seed, ..self }
    }

    /// Returns the last counter of a GPU, in joules.
    pub fn energy(&self, gpu: usize) -> f64 {
        self.gpus[gpu].energy_joules_total.unwrap_or_default()
    }

    /// Returns the samples in a job's last report.
    pub fn samples(&self, job: usize) -> f64 {
        self.jobs[job].samples_total.unwrap_or_default()
    }

    fn record(
        &mut self,
        topic: usize,
        kind: EventType,
        time: EventTime,
        key: &str,
        source: &str,
        value: Vec<u8>,
    ) -> ProducerRecord {
        self.count += 1;
        let envelope = Envelope {
            id: format!("{source}-{}", self.count),
            source: format!("/collector/{source}"),
            kind,
            time,
            subject: key.to_owned(),
        };
        let headers = envelope.headers();
        if self.names.is_empty() {
            self.names = headers.iter().map(|(name, _)| Arc::from(*name)).collect();
        }
        let headers: Vec<RecordHeader> =
            self.names.iter().cloned().zip(headers.into_iter().map(|(_, value)| value.into())).collect();
        ProducerRecord {
            topic: self.topics[topic].clone(),
            partition: None,
            key: Some(key.to_owned().into()),
            value: Some(value.into()),
            headers,
        }
    }

    pub fn tables(&mut self, time: EventTime) -> Vec<ProducerRecord> {
        (0..self.jobs.len())
            .map(|i| {
                let event = Workload { time, workload: workload(i), origin: Origin::Simulated, ..Workload::default() };
                self.record(2, EventType::Workload, time, &event.workload, "cluster", json(&event))
            })
            .collect()
    }

    /// Returns the sample of one GPU; `tick` moves its figures.
    pub fn telemetry(&mut self, gpu: usize, tick: u64, time: EventTime) -> ProducerRecord {
        let event = &mut self.gpus[gpu];
        let n = tick.wrapping_mul(2_654_435_761).wrapping_add(gpu as u64 * 40_503).wrapping_add(self.seed.wrapping_mul(7_919));
        event.time = time;
        event.power_watts = Some(250.0 + (n % 100_000) as f64 / 1000.0);
        event.energy_joules_total = Some(1e6 + tick as f64 * 30.0 + (n % 1000) as f64 / 1000.0);
        event.utilization_ratio = Some((90 + n % 10) as f64 / 100.0);
        event.sm_active_ratio = Some((60 + n % 20) as f64 / 100.0);
        event.dram_active_ratio = Some((30 + n % 20) as f64 / 100.0);
        event.sm_clock_mhz = Some((1200 + n % 210) as f64);
        event.temperature_celsius = Some((55 + n % 12) as f64);
        let (key, source, value) = (event.workload.clone().unwrap_or_default(), event.collector.clone(), json(event));
        self.record(0, EventType::GpuTelemetry, time, &key, &source, value)
    }

    pub fn progress(&mut self, job: usize, seconds: f64, time: EventTime) -> ProducerRecord {
        let event = &mut self.jobs[job];
        event.phase = if event.samples_total.is_none() { JobLifecycle::Started } else { JobLifecycle::Progress };
        event.time = time;
        event.samples_total = Some((seconds * 640.0).round());
        event.steps_total = Some((seconds * 10.0).round());
        event.loss = Some(2.5);
        let (key, source, value) = (event.workload.clone(), event.collector.clone(), json(event));
        self.record(1, EventType::TrainingProgress, time, &key, &source, value)
    }
}

fn json(event: &impl serde::Serialize) -> Vec<u8> {
    serde_json::to_vec(event).expect("events have string keys")
}

pub fn send(producer: &mut dyn Producer, record: &ProducerRecord) {
    while let Err(error) = producer.send(record.clone()) {
        assert_eq!(error.remedy, Remedy::Retry, "{error}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// User and system time of this process in seconds, as `getrusage` has it; the kernel shows hundredths.
pub fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    [11, 12].iter().filter_map(|i| fields.get(*i)?.parse::<f64>().ok()).sum::<f64>() / 100.0
}

/// Returns the most memory that was resident so far, in MiB.
pub fn peak_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.parse::<f64>().ok());
    kib.unwrap_or(f64::NAN) / 1024.0
}
