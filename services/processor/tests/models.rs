//! Learned models through the processor: they come into force at their place in the log, also over a restart, and a replay of
//! what the processor read decides by the versions of its time, byte for byte.

use crate::support;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use eadt_processor::{HeartbeatClock, ProcessorDependencies, ProcessorSettings, run_processor};
use eadt_schemas::v1::{Decision, GpuTelemetry, Model, TrainingProgress, Workload};
use eadt_schemas::{EventTime, Topic};
use eadt_service::{HealthRegistry, MetricsRegistry, Shutdown};
use serde::Serialize;
use serde_json::json;
use support::{Log, PARTITIONS, at, text};

const BOARD: &str = "A100-SXM4-40GB";
const JOBS: [&str; 3] = ["team/one", "team/two", "team/three"];

fn settings() -> ProcessorSettings {
    ProcessorSettings { prefix: "eadt.".into(), commit_seconds: 0.05, retry_seconds: 0.01, ..ProcessorSettings::default() }
}

struct Rig(Log);

impl Rig {
    fn send(&mut self, seconds: f64, topic: Topic, key: &str, partition: Option<i32>, event: &impl Serialize) {
        self.0.send(seconds, topic, key, partition, serde_json::to_vec(event).unwrap());
    }

    fn feed(&mut self, from: u32, to: u32) {
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
    fn publish(&mut self, second: f64, version: &str, format: &str) {
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
    fn process(&self, decisions: usize) -> MetricsRegistry {
        let (shutdown, metrics, health) = (Shutdown::new(), MetricsRegistry::default(), HealthRegistry::default());
        let now = self.0.now.clone();
        let service = ProcessorDependencies {
            settings: settings(),
            bus: Arc::new(self.0.bus.clone()),
            clock: HeartbeatClock::new(move || EventTime::from_micros(now.load(Ordering::SeqCst))),
            shutdown: shutdown.clone(),
            metrics: metrics.clone(),
            ready: health.part("processor"),
        };
        let thread = std::thread::spawn(move || run_processor(&service));
        let until = Instant::now() + Duration::from_mins(2);
        while self.decisions().len() < decisions {
            assert!(!thread.is_finished() && Instant::now() < until, "{} decisions; {}", self.decisions().len(), metrics.text());
            std::thread::sleep(Duration::from_millis(10));
        }
        shutdown.cancel();
        thread.join().unwrap().unwrap();
        metrics
    }

    fn decisions(&self) -> Vec<Decision> {
        self.0.events(Topic::Decisions)
    }

    /// Returns the decisions of a replay of the inputs.
    fn replayed(&self) -> Vec<Decision> {
        let (_, decisions, counts) = self.0.replayed(&settings());
        assert_eq!(counts.late_tables, 0);
        decisions
    }
}

#[test]
fn a_replay_decides_by_the_models_of_its_time() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Rig(Log::open(dir.path()));
    for job in JOBS {
        let state = Workload { time: at(0.0), workload: job.into(), gpu_model: Some(BOARD.into()), ..Workload::default() };
        rig.send(0.0, Topic::Workloads, job, None, &state);
    }
    rig.feed(10, 130);
    rig.publish(130.5, "1", "eadt.power-model.v1");
    rig.feed(140, 250);
    let metrics = rig.process(3 * JOBS.len());
    assert!(metrics.text().contains(&format!("eadt_processor_models_total {PARTITIONS}")), "{}", metrics.text());
    // Another processor continues: the model is in the first one's state.
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
