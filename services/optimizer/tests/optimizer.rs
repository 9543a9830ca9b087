//! Tests learned and refused models, and that every partition gets each once.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use eadt_bus::embedded::{EmbeddedLog, EmbeddedOptions};
use eadt_bus::{Bus, IsolationLevel, PollEvent, StartOffset, TopicPartition, topics};
use eadt_lake::{Archive, ArchiveRow, ArchiveWriter, RollLimits};
use eadt_optimizer::{ModelVerdict, OptimizerDependencies, OptimizerSettings, TrainingData, learn};
use eadt_schemas::envelope::Envelope;
use eadt_schemas::v1::{EfficiencyWindow, Layout, Model, Origin, Workload};
use eadt_schemas::{EventTime, Topic};
use eadt_service::{HealthRegistry, MetricsRegistry, ServiceClock, Shutdown};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;

const JOB: &str = "team/job";
const BOARD: &str = "A100-SXM4-40GB";

fn minute(n: usize) -> EventTime {
    EventTime::from_micros(1_767_225_600_000_000 + n as i64 * 60_000_000)
}

/// Returns windows of a job whose caps walk between 200 and 390 W; the rate follows 3·(P − 90)^0.6, power follows activity
/// and clock.
fn windows(count: usize, from: usize, scale: f64, seed: u64) -> Vec<EfficiencyWindow> {
    let mut chance = Pcg64::seed_from_u64(seed);
    (from..from + count)
        .map(|n| {
            let cap = 200.0 + 10.0 * ((n * 7) % 20) as f64;
            let noise = |chance: &mut Pcg64| 1.0 + 0.01 * (chance.random::<f64>() - 0.5);
            let (clock, sm, dram) = (700.0 + cap, 0.6 + 0.3 * chance.random::<f64>(), 0.2 + 0.3 * chance.random::<f64>());
            let phi = clock / 1090.0;
            let watts = (60.0 + sm * (150.0 * phi + 140.0 * phi.powi(3)) + 60.0 * dram) * noise(&mut chance);
            let rate = scale * 3.0 * (watts - 90.0_f64).max(1.0).powf(0.6) * noise(&mut chance);
            EfficiencyWindow {
                id: format!("{JOB}/{n}"),
                workload: JOB.to_owned(),
                window_start: minute(n),
                window_end: minute(n + 1),
                origin: Origin::Simulated,
                energy_joules: Some(watts * 60.0),
                samples: Some(rate * 60.0),
                samples_per_second: Some(rate),
                joules_per_sample: Some(watts / rate),
                mean_power_watts: Some(watts),
                mean_power_per_gpu_watts: Some(watts),
                mean_sm_active_ratio: Some(sm),
                mean_dram_active_ratio: Some(dram),
                mean_sm_clock_mhz: Some(clock),
                energy_coverage_ratio: 1.0,
                progress_coverage_ratio: 1.0,
                layout: Some(Layout { replicas: Some(6), power_limit_watts: Some(cap), ..Layout::default() }),
                ..EfficiencyWindow::default()
            }
        })
        .collect()
}

fn workload() -> Workload {
    Workload { time: minute(0), workload: JOB.to_owned(), gpu_model: Some(BOARD.to_owned()), ..Workload::default() }
}

fn training(windows: Vec<EfficiencyWindow>) -> TrainingData {
    TrainingData { windows, workloads: BTreeMap::from([(JOB.to_owned(), workload())]), fingerprint: "f".to_owned() }
}

fn settings() -> OptimizerSettings {
    OptimizerSettings { location: "unused".to_owned(), ..OptimizerSettings::default() }
}

#[test]
fn both_models_are_found_and_marked_as_simulated() {
    let proposals = learn(&training(windows(400, 0, 1.0, 1)), &BTreeMap::new(), &settings(), minute(500));
    let names: Vec<_> = proposals.iter().map(|proposal| proposal.name.as_str()).collect();
    assert_eq!(names, ["power/A100-SXM4-40GB", "cap-curve/team/job"]);
    for proposal in &proposals {
        assert_eq!(proposal.verdict, ModelVerdict::Publish, "{proposal:?}");
        let error = proposal.metrics["held_back_mape_ratio"];
        assert!(error < 0.02, "{proposal:?}");
        assert!(error < proposal.metrics["held_back_constant_mape_ratio"] / 3.0, "{proposal:?}");
        assert_eq!(proposal.metrics["held_back_windows"], 100.0, "{proposal:?}");
        let model = proposal.model.as_ref().unwrap();
        assert_eq!((model.version.as_str(), model.time, model.data_fingerprint.as_str()), ("1", minute(500), "f"));
        assert_eq!(model.parameters["origin"], "simulated");
        assert_eq!(model.parameters["trained_to"], serde_json::to_value(minute(300)).unwrap(), "held back is not trained on");
    }
    let curve = &proposals[1].model.as_ref().unwrap().parameters["curve"]["offset_power_law"];
    assert!((curve["b"].as_f64().unwrap() - 0.6).abs() < 0.1, "{curve}");
}

#[test]
fn a_model_is_kept_until_a_better_one_is_there() {
    let data = training(windows(400, 0, 1.0, 1));
    let first = learn(&data, &BTreeMap::new(), &settings(), minute(500));
    let present: BTreeMap<String, Model> = first.iter().filter_map(|p| p.model.clone()).map(|m| (m.name.clone(), m)).collect();
    for proposal in learn(&data, &present, &settings(), minute(501)) {
        assert_eq!(proposal.verdict, ModelVerdict::Keep, "{proposal:?}");
        assert!(proposal.reason.contains("version 1 in force") && proposal.model.is_none(), "{proposal:?}");
    }
    // The job became 30 % faster: the old curve misses what is new, the new one does not.
    let faster = training(windows(400, 1000, 1.3, 2));
    let proposals = learn(&faster, &present, &settings(), minute(1500));
    let curve = proposals.iter().find(|p| p.name == "cap-curve/team/job").unwrap();
    assert_eq!(curve.verdict, ModelVerdict::Publish, "{curve:?}");
    assert_eq!(curve.model.as_ref().unwrap().version, "2");
    assert!(curve.metrics["held_back_present_mape_ratio"] > 0.2, "{curve:?}");
}

#[test]
fn insufficient_data_give_a_reason() {
    let reason = |windows: Vec<EfficiencyWindow>, name: &str| {
        let proposals = learn(&training(windows), &BTreeMap::new(), &settings(), minute(500));
        let proposal = proposals.into_iter().find(|p| p.name.starts_with(name)).unwrap();
        assert!(proposal.model.is_none(), "{proposal:?}");
        (proposal.verdict, proposal.reason)
    };
    let (verdict, few) = reason(windows(20, 0, 1.0, 1), "power/");
    assert_eq!(verdict, ModelVerdict::CannotTell);
    assert!(few.starts_with("20 usable windows; optimizer.windows_min asks for 60"), "{few}");

    let mut one_cap = windows(200, 0, 1.0, 1);
    for window in &mut one_cap {
        window.layout.as_mut().unwrap().power_limit_watts = None;
    }
    let (verdict, caps) = reason(one_cap, "cap-curve/");
    assert_eq!(verdict, ModelVerdict::CannotTell);
    assert!(caps.starts_with("1 power cap was in force; 3 are needed"), "{caps}");

    let mut blind = windows(200, 0, 1.0, 1);
    for window in &mut blind {
        window.mean_sm_active_ratio = None;
    }
    let (verdict, blind) = reason(blind, "power/");
    assert_eq!(verdict, ModelVerdict::CannotTell);
    assert!(blind.contains("lacks profiling metrics"), "{blind}");

    // The rate has nothing to do with power: a constant is as good, or the fit itself reports it.
    let mut chance = Pcg64::seed_from_u64(9);
    let mut unrelated = windows(400, 0, 1.0, 1);
    for window in &mut unrelated {
        window.samples_per_second = Some(100.0 * (1.0 + 0.3 * chance.random::<f64>()));
    }
    let (verdict, why) = reason(unrelated, "cap-curve/");
    assert_ne!(verdict, ModelVerdict::Publish, "{why}");
}

fn rows(archive: &Path, windows: &[EfficiencyWindow], from: i64) {
    let mut writer = ArchiveWriter::new(Archive::folder(archive).unwrap(), RollLimits::default());
    let row = |topic: Topic, offset: i64, value: Vec<u8>| {
        let envelope = Envelope {
            id: offset.to_string(),
            source: "/tests".to_owned(),
            kind: topic.event_type(),
            time: minute(offset as usize),
            subject: JOB.to_owned(),
        };
        ArchiveRow {
            topic,
            partition: 0,
            offset,
            stamp: minute(offset as usize),
            key: Some(Bytes::from_static(JOB.as_bytes())),
            value: Some(value.into()),
            headers: envelope.headers().into_iter().map(|(name, value)| (Arc::from(name), Bytes::from(value))).collect(),
        }
    };
    for (n, window) in windows.iter().enumerate() {
        let row = row(Topic::EfficiencyWindows, from + n as i64, serde_json::to_vec(window).unwrap());
        writer.push(&row, EventTime::default()).unwrap();
    }
    if from == 0 {
        writer.push(&row(Topic::Workloads, 0, serde_json::to_vec(&workload()).unwrap()), EventTime::default()).unwrap();
    }
    writer.roll_all().unwrap();
}

/// Returns all model records, by partition.
fn published(bus: &EmbeddedLog, partitions: i32) -> Vec<Vec<Model>> {
    let at = |p| TopicPartition::new("eadt.models.v1", p);
    let mut found = vec![Vec::new(); partitions as usize];
    for partition in 0..partitions {
        let mut reader = bus.reader(&[(at(partition), StartOffset::Earliest)], IsolationLevel::ReadCommitted).unwrap();
        let (mut polled, mut open) = (Vec::new(), true);
        while open {
            reader.poll(100, Duration::from_secs(1), &mut polled).unwrap();
            for item in polled.drain(..) {
                match item {
                    PollEvent::Record(record) => {
                        assert_eq!(record.header("ce_type"), Some("io.eadt.model.v1"));
                        found[partition as usize].push(eadt_schemas::decode(record.value.as_ref().unwrap()).unwrap());
                    }
                    PollEvent::End { .. } => open = false,
                    other => panic!("{other:?}"),
                }
            }
        }
    }
    found
}

#[test]
fn every_partition_gets_each_version_once() {
    let dir = tempfile::tempdir().unwrap();
    let archive = dir.path().join("archive");
    rows(&archive, &windows(400, 0, 1.0, 1), 0);
    let bus = Arc::new(EmbeddedLog::open(&dir.path().join("log"), EmbeddedOptions::default()).unwrap());
    for plan in topics::desired("eadt.", 3, 1) {
        bus.create_topic(&plan).unwrap();
    }
    let once = || {
        let settings =
            OptimizerSettings { location: archive.display().to_string(), windows_max: 800, ..OptimizerSettings::default() };
        eadt_optimizer::run(&OptimizerDependencies {
            settings,
            archive: None,
            prefix: "eadt.".to_owned(),
            bus: bus.clone(),
            clock: ServiceClock::new(|| minute(600)),
            shutdown: Shutdown::new(),
            metrics: MetricsRegistry::default(),
            ready: HealthRegistry::default().part("optimizer"),
            once: true,
        })
        .unwrap()
    };
    assert_eq!(once().sent, 6, "two models, three partitions");
    let first = published(&bus, 3);
    assert!(first.iter().all(|models| models.len() == 2 && *models == first[0]), "{first:?}");
    assert_eq!(once().sent, 0, "nothing better, nothing missing");

    // A run that was killed between two partitions: the next one completes it.
    let mut newer = first[0][0].clone();
    newer.version = "7".to_owned();
    let mut producer = bus.producer("killed").unwrap();
    producer
        .send(eadt_bus::ProducerRecord {
            topic: "eadt.models.v1".into(),
            partition: Some(1),
            key: Some(newer.name.clone().into()),
            value: Some(serde_json::to_vec(&newer).unwrap().into()),
            headers: Vec::new(),
        })
        .unwrap();
    assert!(producer.flush(Duration::from_mins(3)).unwrap());
    assert_eq!(once().sent, 2, "the two partitions that did not have it");

    // Another half of the archive, of a job that became faster.
    rows(&archive, &windows(800, 1000, 1.3, 2), 1000);
    let round = once();
    assert!(round.proposals.iter().any(|p| p.name == "cap-curve/team/job" && p.verdict == ModelVerdict::Publish), "{round:?}");
}

#[test]
fn settings_and_topics_that_cannot_be_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let bus = Arc::new(EmbeddedLog::open(&dir.path().join("log"), EmbeddedOptions::default()).unwrap());
    let run = |settings: OptimizerSettings| {
        let service = OptimizerDependencies {
            settings,
            archive: None,
            prefix: "eadt.".to_owned(),
            bus: bus.clone(),
            clock: ServiceClock::new(|| minute(0)),
            shutdown: Shutdown::new(),
            metrics: MetricsRegistry::default(),
            ready: HealthRegistry::default().part("optimizer"),
            once: true,
        };
        eadt_optimizer::run(&service).unwrap_err().to_string()
    };
    assert!(run(OptimizerSettings::default()).contains("optimizer.location is empty"));
    let error =
        run(OptimizerSettings { location: dir.path().join("archive").display().to_string(), ..OptimizerSettings::default() });
    assert_eq!(error, "topic eadt.models.v1 does not exist: run `eadt topics apply`");
}
