//! The services as separate processes on a real Apache Kafka.

mod support;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use eadt_tests::Kafka;
use serde_json::Value;
use support::{Running, eadt, json, near, shared_data, signal, text};

fn on(kafka: &Kafka, dir: &Path, args: &[&str]) -> Command {
    let mut command = eadt(dir, args);
    command.env("KAFKA_BROKERS", kafka.brokers());
    command
}

fn start(kafka: &Kafka, dir: &Path, args: &[&str]) -> Running {
    Running(on(kafka, dir, args).stdout(Stdio::null()).spawn().unwrap())
}

/// Waits for a good end; the process is killed where it takes too long.
fn ends(mut process: Running, limit: Duration) {
    let began = Instant::now();
    loop {
        if let Some(status) = process.0.try_wait().unwrap() {
            assert!(status.success(), "{status}");
            return;
        }
        assert!(began.elapsed() < limit, "a service did not end within {limit:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn stop(process: Running) {
    signal(&process.0, "-TERM");
    ends(process, Duration::from_mins(1));
}

fn apply_topics(kafka: &Kafka, dir: &Path) {
    let (would, err, good) = text(on(kafka, dir, &["topics", "apply", "--dry-run"]));
    assert!(good && would.lines().count() == 12 && would.starts_with("would create"), "{would}{err}");
    let (_, err, good) = text(on(kafka, dir, &["topics", "apply"]));
    assert!(good, "{err}");
    let (again, err, good) = text(on(kafka, dir, &["topics", "apply"]));
    assert!(good && again.contains("as they should be"), "idempotent: {again}{err}");
}

/// Waits until a tail of the topic shows enough for `enough`.
fn wait_for(kafka: &Kafka, dir: &Path, topic: &str, limit: Duration, enough: impl Fn(&[Value]) -> bool) -> Vec<Value> {
    let began = Instant::now();
    loop {
        let (out, err, good) = text(on(kafka, dir, &["tail", topic, "--until-end", "--json"]));
        assert!(good, "{err}");
        let events: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        if enough(&events) {
            return events;
        }
        assert!(began.elapsed() < limit, "{topic}: only {} events after {limit:?}", events.len());
        std::thread::sleep(Duration::from_millis(500));
    }
}

#[test]
fn services_without_topics_say_what_to_do() {
    let kafka = Kafka::start().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let (_, err, good) = text(on(&kafka, dir.path(), &["processor"]));
    assert!(!good && err.contains("eadt topics apply"), "{err}");
}

#[test]
fn the_loop_closes_between_separate_processes() {
    let kafka = Kafka::start().unwrap();
    let dir = tempfile::tempdir().unwrap();
    apply_topics(&kafka, dir.path());
    let simulated = |args: &[&str]| {
        let mut command = on(&kafka, dir.path(), args);
        command.env("EADT_PROCESSOR__MAX_FUTURE_SECONDS", "off");
        command
    };
    let processor = Running(simulated(&["processor"]).stdout(Stdio::null()).spawn().unwrap());
    let archiver = start(&kafka, dir.path(), &["archiver"]);
    let cluster = start(&kafka, dir.path(), &["actuator", "--speed", "max", "--duration", "2h"]);
    ends(cluster, Duration::from_mins(5));
    let decisions = wait_for(&kafka, dir.path(), "decisions.v1", Duration::from_mins(1), |d| d.len() >= 2 * 115);
    let actuations = wait_for(&kafka, dir.path(), "actuations.v1", Duration::from_secs(30), |a| !a.is_empty());
    let ids: std::collections::HashSet<&str> = decisions.iter().map(|d| d["data"]["id"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), decisions.len(), "no decision twice");
    for actuation in &actuations {
        assert!(ids.contains(actuation["data"]["decision_id"].as_str().unwrap()), "{actuation}");
    }
    stop(processor);
    stop(archiver);

    // An event log recorded from the topics tells the same story as the archive.
    let log = dir.path().join("recorded.jsonl.zst");
    let recorded = json(on(&kafka, dir.path(), &["record", "--out", log.to_str().unwrap(), "--json"]));
    assert_eq!(recorded["not_json"], 0, "{recorded}");
    let replayed = json(simulated(&["replay", log.to_str().unwrap(), "--check", "--json"]));
    assert!(replayed["check"]["decisions_same"].as_u64().unwrap() >= 2 * 115, "{replayed}");
    assert_eq!(replayed["check"]["differences"], serde_json::json!([]), "{replayed}");

    let archive = dir.path().join("archive");
    let mut replay = simulated(&["replay", archive.to_str().unwrap(), "--check", "--json"]);
    replay.env_remove("KAFKA_BROKERS");
    let replayed = json(replay);
    assert!(replayed["check"]["windows_same"].as_u64().unwrap() >= 2 * 115, "{replayed}");
    assert_eq!(replayed["check"]["differences"], serde_json::json!([]), "{replayed}");
}

#[test]
fn a_real_recording_gives_the_same_windows_through_kafka() {
    let Some(data) = shared_data() else { return };
    let data = data.join("mlperf-train-v4.0-smc-8xH100/bert");
    let run = "5119-240510190348838227199_06";
    let kafka = Kafka::start().unwrap();
    let dir = tempfile::tempdir().unwrap();
    apply_topics(&kafka, dir.path());
    let log = dir.path().join("bert.jsonl.zst");
    let (result, power) = (data.join(format!("result_{run}.txt")), data.join(format!("power/result_{run}/node_0.txt")));
    let paths = [&log, &result, &power].map(|path| path.to_str().unwrap());
    json(eadt(dir.path(), &["import", "mlperf", paths[1], paths[2], "--workload", "lab/bert", "--json", "--out", paths[0]]));

    let mut processor = on(&kafka, dir.path(), &["processor"]);
    processor
        .env("EADT_PROCESSOR__MAX_FUTURE_SECONDS", "off")
        .env("EADT_PROCESSOR__HEARTBEAT_SECONDS", "1")
        .stdout(Stdio::null());
    let processor = Running(processor.spawn().unwrap());
    let archiver = start(&kafka, dir.path(), &["archiver"]);
    let (out, err, good) = text(on(&kafka, dir.path(), &["collector", "--recording", paths[0]]));
    assert!(good, "{out}{err}");
    // Five whole minutes and two parts; all are closed once its sources have said their last and the join grace is over.
    let offline = dir.path().join("offline");
    json(eadt(dir.path(), &["replay", paths[0], "--json", "--out", offline.to_str().unwrap()]));
    let expected = json(eadt(dir.path(), &["report", offline.to_str().unwrap(), "--json", "--by", "window"]));
    let count = expected["workloads"][0]["windows"].as_u64().unwrap() as usize;
    wait_for(&kafka, dir.path(), "efficiency.windows.v1", Duration::from_mins(1), |events| {
        events.iter().filter(|e| e["data"]["kind"] == "tumbling").count() >= count
    });
    stop(processor);
    stop(archiver);

    let report = json(eadt(dir.path(), &["report", dir.path().to_str().unwrap(), "--json", "--by", "window"]));
    let workload = &report["workloads"][0];
    near("energy", &workload["energy_joules"], 1_878_755.6, 0.001);
    near("J/sequence", &workload["joules_per_sample"], 0.894_308, 0.001);
    assert_eq!(workload["by_window"], expected["workloads"][0]["by_window"], "live and offline");
    let archive = dir.path().join("archive");
    let mut replay = eadt(dir.path(), &["replay", archive.to_str().unwrap(), "--check", "--json"]);
    replay.env("EADT_PROCESSOR__MAX_FUTURE_SECONDS", "off");
    let replayed = json(replay);
    assert_eq!(replayed["check"]["differences"], serde_json::json!([]), "{replayed}");
}

#[test]
fn a_broker_that_is_away_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = eadt(dir.path(), &["processor"]);
    command.env("KAFKA_BROKERS", "127.0.0.1:1");
    let (_, err, good) = text(command);
    assert!(!good && err.contains("127.0.0.1:1"), "{err}");
}
