//! Learned models through the processor: they come into force where they stand in the log, also over a restart, and a replay of
//! what the processor read decides by the versions of its time, byte for byte.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use eadt_bus::embedded::{EmbeddedLog, EmbeddedOptions, Stamps};
use eadt_bus::{Bus, Isolation, Outgoing, Polled, Record, Start, TopicPartition, topics};
use eadt_core::settings::SECOND;
use eadt_processor::offline::{Fed, Raw, Records, Replayed, Source, replay};
use eadt_processor::{HeartbeatClock, Service, Settings, run};
use eadt_schemas::envelope::header;
use eadt_schemas::v1::{Decision, GpuTelemetry, Model, TrainingProgress, Workload};
use eadt_schemas::{EventTime, Topic};
use eadt_service::{Health, Metrics, Shutdown};
use serde::Serialize;
use serde_json::json;

const BASE: i64 = 1_700_000_040;
const BOARD: &str = "A100-SXM4-40GB";
const JOBS: [&str; 3] = ["team/one", "team/two", "team/three"];
const PARTITIONS: i32 = 2;

fn at(seconds: f64) -> EventTime {
    EventTime::from_micros(BASE * SECOND).plus_seconds(seconds)
}

fn settings() -> Settings {
    Settings { prefix: "eadt.".into(), commit_seconds: 0.05, retry_seconds: 0.01, ..Settings::default() }
}

struct Rig {
    log: EmbeddedLog,
    now: Arc<AtomicI64>,
}

impl Rig {
    fn open(dir: &std::path::Path) -> Self {
        let now = Arc::new(AtomicI64::new(at(0.0).micros()));
        let clock = now.clone();
        let stamps = Stamps::Injected(Arc::new(move || EventTime::from_micros(clock.load(Ordering::SeqCst))));
        let log = EmbeddedLog::open(dir, EmbeddedOptions { stamps, ..EmbeddedOptions::default() }).unwrap();
        for topic in topics::desired("eadt.", PARTITIONS, 1) {
            log.create_topic(&topic).unwrap();
        }
        Self { log, now }
    }

    fn send(&self, seconds: f64, topic: Topic, key: &str, partition: Option<i32>, event: &impl Serialize) {
        self.now.store(at(seconds).micros(), Ordering::SeqCst);
        let mut producer = self.log.producer("test").unwrap();
        let value = Some(serde_json::to_vec(event).unwrap().into());
        let (topic, key) = (format!("eadt.{topic}").into(), Some(key.to_owned().into_bytes().into()));
        producer.send(Outgoing { topic, partition, key, value, headers: vec![] }).unwrap();
        assert!(producer.flush(Duration::from_secs(10)).unwrap());
    }

    fn feed(&self, from: u32, to: u32) {
        for second in (from..to).step_by(10) {
            let second = f64::from(second);
            for job in JOBS {
                let sample = GpuTelemetry {
                    time: at(second),
                    workload: Some(job.to_owned()),
                    device: "GPU-1".to_owned(),
                    collector: "nvml/n".to_owned(),
                    energy_joules_total: Some(second * 300.0),
                    sm_active_ratio: Some(0.8),
                    dram_active_ratio: Some(0.4),
                    sm_clock_mhz: Some(1200.0),
                    ..GpuTelemetry::default()
                };
                self.send(second, Topic::GpuTelemetry, job, None, &sample);
                let progress = TrainingProgress {
                    time: at(second),
                    workload: job.to_owned(),
                    collector: "http/n".to_owned(),
                    samples_total: Some(second * 30.0),
                    ..TrainingProgress::default()
                };
                self.send(second, Topic::TrainingProgress, job, None, &progress);
            }
        }
    }

    /// Every partition gets it, as from the optimizer.
    fn publish(&self, second: f64, version: &str, format: &str) {
        let range = [[0.0, 1.0], [0.0, 1.0], [0.0, 1.0], [0.0, 0.0]];
        let model = json!({
            "base_watts": 50.0, "compute_linear_watts": 100.0, "compute_cubic_watts": 150.0, "memory_watts": 60.0,
            "io_watts_per_gigabyte_per_second": 0.0, "quality": {"r_squared": 0.99, "mape_ratio": 0.01, "count": 9}, "range": range,
        });
        let event = Model {
            time: at(second),
            name: format!("power/{BOARD}"),
            version: version.to_owned(),
            parameters: json!({"format": format, "clock_max_mhz": 1410.0, "model": model}),
            ..Model::default()
        };
        for partition in 0..PARTITIONS {
            self.send(second, Topic::Models, &event.name, Some(partition), &event);
        }
    }

    /// Runs a processor until there are so many decisions, then ends it.
    fn process(&self, decisions: usize) -> Metrics {
        let (shutdown, metrics, health) = (Shutdown::new(), Metrics::default(), Health::default());
        let now = self.now.clone();
        let service = Service {
            settings: settings(),
            bus: Arc::new(self.log.clone()),
            clock: HeartbeatClock::new(move || EventTime::from_micros(now.load(Ordering::SeqCst))),
            shutdown: shutdown.clone(),
            metrics: metrics.clone(),
            ready: health.part("processor"),
        };
        let thread = std::thread::spawn(move || run(&service));
        let until = Instant::now() + Duration::from_mins(2);
        while self.decisions().len() < decisions {
            assert!(!thread.is_finished() && Instant::now() < until, "{} decisions; {}", self.decisions().len(), metrics.text());
            std::thread::sleep(Duration::from_millis(10));
        }
        shutdown.cancel();
        thread.join().unwrap().unwrap();
        metrics
    }

    fn read(&self, topic: Topic) -> Vec<Record> {
        let from: Vec<_> = (0..PARTITIONS).map(|p| (TopicPartition::new(format!("eadt.{topic}"), p), Start::Earliest)).collect();
        let mut reader = self.log.reader(&from, Isolation::ReadCommitted).unwrap();
        let (mut polled, mut records, mut ends) = (Vec::new(), Vec::new(), 0);
        while ends < from.len() {
            reader.poll(1000, Duration::from_millis(50), &mut polled).unwrap();
            for item in polled.drain(..) {
                match item {
                    Polled::Record(record) => records.push(record),
                    Polled::End { .. } => ends += 1,
                    _ => {}
                }
            }
        }
        records
    }

    fn decisions(&self) -> Vec<Decision> {
        self.read(Topic::Decisions).iter().map(|r| serde_json::from_slice(r.value.as_ref().unwrap()).unwrap()).collect()
    }

    /// What a replay of the inputs decides.
    fn replayed(&self) -> Vec<Decision> {
        let mut sources: Vec<Box<dyn Source<String>>> = Vec::new();
        for topic in Topic::PROCESSOR_INPUTS {
            for partition in 0..PARTITIONS {
                let records = self.read(topic).into_iter().filter(move |record| record.at.partition == partition);
                let fed: Vec<_> = records
                    .map(|r| {
                        let (key, value) = (r.key.as_deref().unwrap_or_default(), r.value.as_deref());
                        let raw = Raw { topic, kind: r.header(header::TYPE), key, value, stamp: r.stamp };
                        Ok(Fed::new(raw, Some(partition), Some(r.offset)))
                    })
                    .collect();
                sources.push(Box::new(Records::new(fed.into_iter())));
            }
        }
        let mut decisions = Vec::new();
        let counts = replay(&settings().fold(), sources, |_, replayed| {
            match replayed {
                Replayed::Window(_) => {}
                Replayed::Decision(decision) => decisions.push(*decision),
                Replayed::Refused { refusal, .. } => return Err(refusal.to_string()),
            }
            Ok(())
        })
        .unwrap();
        assert_eq!(counts.late_tables, 0);
        decisions
    }
}

fn text(mut decisions: Vec<Decision>) -> String {
    decisions.sort_by(|a, b| (&a.workload, a.time).cmp(&(&b.workload, b.time)));
    serde_json::to_string(&decisions).unwrap()
}

#[test]
fn a_replay_decides_by_the_models_of_its_time() {
    let dir = tempfile::tempdir().unwrap();
    let rig = Rig::open(dir.path());
    for job in JOBS {
        let state = Workload { time: at(0.0), workload: job.into(), gpu_model: Some(BOARD.into()), ..Workload::default() };
        rig.send(0.0, Topic::Workloads, job, None, &state);
    }
    rig.feed(10, 130);
    rig.publish(130.5, "1", "eadt.power-model.v1");
    rig.feed(140, 250);
    let metrics = rig.process(3 * JOBS.len());
    assert!(metrics.text().contains(&format!("eadt_processor_models_total {PARTITIONS}")), "{}", metrics.text());
    // Another processor goes on: the model is in what the first one left.
    rig.feed(250, 310);
    rig.publish(310.5, "2", "eadt.power-model.v1");
    rig.publish(370.5, "3", "eadt.power-model.of-tomorrow");
    rig.feed(380, 500);
    let metrics = rig.process(7 * JOBS.len());
    let ignored = format!("eadt_processor_models_ignored_total{{reason=\"version\"}} {PARTITIONS}");
    assert!(metrics.text().contains(&ignored), "{}", metrics.text());

    let live = rig.decisions();
    for job in JOBS {
        let mut own: Vec<&Decision> = live.iter().filter(|decision| decision.workload == job).collect();
        own.sort_by_key(|decision| decision.time);
        let named: Vec<Option<&str>> = own.iter().map(|decision| decision.model_version.as_deref()).collect();
        let version = |n: u32| format!("power/{BOARD}@{n}");
        let (one, two) = (version(1), version(2));
        assert_eq!(named[..2], [None, None], "{job}");
        assert_eq!(named[2..5], [Some(one.as_str()); 3], "{job}");
        assert_eq!(named[5..7], [Some(two.as_str()); 2], "{job}: {named:?}");
        assert!(own[6].evidence["model_power_per_gpu_watts"] > 100.0);
    }
    let replayed = rig.replayed();
    assert_eq!(text(replayed.clone()), text(live));
    assert_eq!(text(rig.replayed()), text(replayed));
}
