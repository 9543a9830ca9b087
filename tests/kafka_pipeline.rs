//! The services as separate processes on a real Apache Kafka.

use crate::support;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use eadt_tests::Kafka;
use serde_json::Value;
use support::{Running, eadt, ends, json, near, shared_data, signal, text};

fn on(kafka: &Kafka, dir: &Path, args: &[&str]) -> Command {
    let mut command = eadt(dir, args);
    command.env("KAFKA_BROKERS", kafka.brokers());
    command
}

fn start(kafka: &Kafka, dir: &Path, args: &[&str]) -> Running {
    Running(on(kafka, dir, args).stdout(Stdio::null()).spawn().unwrap())
}

fn stop(process: Running) {
    signal(&process.0, "-TERM");
    ends(process, Duration::from_mins(1));
}

fn apply_topics(kafka: &Kafka, dir: &Path) {
    let (would, err, good) = text(on(kafka, dir, &["topics", "apply", "--dry-run"]));
    assert!(good && would.lines().count() == eadt_schemas::Topic::ALL.len() && would.starts_with("would create"), "{would}{err}");
    let (_, err, good) = text(on(kafka, dir, &["topics", "apply"]));
    assert!(good, "{err}");
    let (again, err, good) = text(on(kafka, dir, &["topics", "apply"]));
    assert!(good && again.contains("match the settings"), "idempotent: {again}{err}");
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

/// Returns the status of an endpoint; 0 while nothing listens.
fn status(address: &str, path: &str) -> u16 {
    use std::io::{Read, Write};
    let Ok(mut stream) = std::net::TcpStream::connect(address) else { return 0 };
    let request = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    let mut answer = String::new();
    if stream.write_all(request.as_bytes()).and_then(|()| stream.read_to_string(&mut answer)).is_err() {
        return 0;
    }
    answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0)
}

#[test]
fn a_new_kafka_needs_its_topics_and_every_service_is_ready_while_it_answers() {
    let mut kafka = Kafka::start().unwrap();
    let dir = tempfile::tempdir().unwrap();
    // A partition, so that the second of two members of a group has none.
    let on = |arguments: &[&str]| {
        let mut command = on(&kafka, dir.path(), arguments);
        command.env("EADT_TOPICS__PARTITIONS", "1");
        command
    };
    let (_, err, good) = text(on(&["processor"]));
    assert!(!good && err.contains("eadt topics apply"), "{err}");
    // A look at the program leaves nothing among the names of the services.
    let brokers = kafka.brokers();
    let look = tempfile::tempdir().unwrap();
    let run = ["up", "--kafka", &brokers, "--speed", "max", "--duration", "1m", "--no-view"];
    let (_, err, good) = text(eadt(look.path(), &run));
    assert!(good && err.contains("up writes simulated events to Kafka at"), "{err}");
    // The doctor reports the same, and that alone is wrong.
    let doctor = || {
        let (out, _, _) = text(on(&["doctor", "--json"]));
        let report: Value = serde_json::from_str(&out).unwrap();
        let findings = report["findings"].as_array().unwrap().clone();
        findings.into_iter().filter(|finding| finding["state"] == "wrong").collect::<Vec<_>>()
    };
    let wrong = doctor();
    assert_eq!(wrong.len(), 1, "{wrong:#?}");
    assert!(wrong[0]["remedy"].as_str().unwrap().starts_with("`eadt topics apply --kafka "), "{wrong:#?}");
    let (_, err, good) = text(on(&["topics", "apply"]));
    assert!(good, "{err}");
    assert_eq!(doctor(), [Value::Null; 0]);

    let free = || std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    // Of the two processors one is standby, and is ready.
    let services: Vec<(&str, String, Running)> = ["collector", "processor", "processor", "archiver", "actuator", "optimizer"]
        .into_iter()
        .enumerate()
        .map(|(number, service)| {
            let (http, listen) = (free(), free());
            let mut command = on(&[service]);
            command.env("EADT_HTTP__ADDRESS", &http).env("EADT_COLLECTOR__PROGRESS__LISTEN", listen);
            command.env("EADT_PROCESSOR__INSTANCE", format!("processor-{number}"));
            (service, http, Running(command.stdout(Stdio::null()).spawn().unwrap()))
        })
        .collect();
    let until = |ready: bool, limit: Duration| {
        let began = Instant::now();
        let of = |address: &str| status(address, "/readyz") == 200;
        while let Some((service, ..)) = services.iter().find(|(_, address, _)| of(address) != ready) {
            assert!(began.elapsed() < limit, "{service} is {}ready after {limit:?}", if ready { "not " } else { "" });
            std::thread::sleep(Duration::from_millis(100));
        }
    };
    until(true, Duration::from_mins(3));
    kafka.kill().unwrap();
    until(false, Duration::from_mins(1));
    for (service, address, _) in &services {
        assert_eq!(status(address, "/healthz"), 200, "{service} lives on");
    }
    kafka.start_again().unwrap();
    until(true, Duration::from_mins(3));
}

#[test]
fn the_loop_closes_between_separate_processes() {
    let kafka = Kafka::start().unwrap();
    let dir = tempfile::tempdir().unwrap();
    apply_topics(&kafka, dir.path());
    // Simulated times have nothing to do with the broker's stamps. Replays know it from the record.
    let mut processor = on(&kafka, dir.path(), &["processor"]);
    processor.env("EADT_PROCESSOR__MAX_FUTURE_SECONDS", "off").env("EADT_PROCESSOR__CONTROLLER", "matrix");
    let processor = Running(processor.stdout(Stdio::null()).spawn().unwrap());
    let archiver = start(&kafka, dir.path(), &["archiver"]);
    let cluster = start(&kafka, dir.path(), &["actuator", "--speed", "max", "--duration", "2h"]);
    ends(cluster, Duration::from_mins(5));
    let decisions = wait_for(&kafka, dir.path(), "decisions.v1", Duration::from_mins(3), |d| d.len() >= 2 * 115);
    let actuations = wait_for(&kafka, dir.path(), "actuations.v1", Duration::from_mins(3), |a| !a.is_empty());
    let ids: std::collections::HashSet<&str> = decisions.iter().map(|d| d["data"]["id"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), decisions.len(), "no decision twice");
    for actuation in &actuations {
        assert!(ids.contains(actuation["data"]["decision_id"].as_str().unwrap()), "{actuation}");
    }
    stop(processor);
    stop(archiver);

    // An event log recorded from the topics agrees with the archive.
    let log = dir.path().join("recorded.jsonl.zst");
    let recorded = json(on(&kafka, dir.path(), &["record", "--out", log.to_str().unwrap(), "--json"]));
    assert_eq!(recorded["not_json"], 0, "{recorded}");
    let replayed = json(eadt(dir.path(), &["replay", log.to_str().unwrap(), "--check", "--json"]));
    assert!(replayed["check"]["decisions_same"].as_u64().unwrap() >= 2 * 115, "{replayed}");
    assert_eq!(replayed["check"]["differences"], serde_json::json!([]), "{replayed}");

    let archive = dir.path().join("archive");
    let replayed = json(eadt(dir.path(), &["replay", archive.to_str().unwrap(), "--check", "--json"]));
    assert!(replayed["check"]["windows_same"].as_u64().unwrap() >= 2 * 115, "{replayed}");
    assert_eq!(replayed["check"]["differences"], serde_json::json!([]), "{replayed}");
}

/// Jobs send real times into a log of simulated ones. Live, they delay no other source, but in a merge by event time the
/// records behind them in their input come last.
#[test]
fn what_came_in_another_order_than_its_times_is_left_out_of_a_check_and_nothing_else() {
    let kafka = Kafka::start().unwrap();
    let dir = tempfile::tempdir().unwrap();
    apply_topics(&kafka, dir.path());
    let mut processor = on(&kafka, dir.path(), &["processor"]);
    processor.env("EADT_PROCESSOR__MAX_FUTURE_SECONDS", "off");
    let processor = Running(processor.stdout(Stdio::null()).spawn().unwrap());
    let simulate = |duration: &str| {
        let cluster = start(&kafka, dir.path(), &["actuator", "--speed", "max", "--duration", duration]);
        ends(cluster, Duration::from_mins(5));
    };
    simulate("20m");
    // One for every partition, as their keys fall.
    let posts = dir.path().join("posts.jsonl");
    let lines = (0..24).map(|number| {
        let event = serde_json::json!({
            "specversion": "1.0", "type": "io.eadt.training.progress.v1", "source": "/job", "id": number.to_string(),
            "time": "2030-01-01T00:00:00Z", "partitionkey": format!("lab/job-{number}"),
            "data": {"time": "2030-01-01T00:00:00Z", "workload": format!("lab/job-{number}"), "rank": 0, "collector": "job", "origin": "measured", "samples_total": 1},
        });
        format!("{event}\n")
    });
    std::fs::write(&posts, lines.collect::<String>()).unwrap();
    let (out, err, good) = text(on(&kafka, dir.path(), &["collector", "--recording", posts.to_str().unwrap()]));
    assert!(good, "{out}{err}");
    simulate("2h");
    wait_for(&kafka, dir.path(), "decisions.v1", Duration::from_mins(3), |d| d.len() >= 2 * 130);
    stop(processor);

    let log = dir.path().join("recorded.jsonl");
    json(on(&kafka, dir.path(), &["record", "--out", log.to_str().unwrap(), "--json"]));
    let replayed = json(eadt(dir.path(), &["replay", log.to_str().unwrap(), "--check", "--json"]));
    assert_eq!(replayed["check"]["differences"], serde_json::json!([]), "{replayed}");
    assert!(replayed["check"]["windows_same"].as_u64().unwrap() >= 2 * 18, "{replayed}");
    let excused = replayed["check"]["excused"].as_array().unwrap();
    assert!(!excused.is_empty() && excused.iter().all(|why| why.as_str().unwrap().contains("another order")), "{replayed}");
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
    // Five whole minutes and two parts; all are closed once its sources have sent their last and the join grace is over.
    let offline = dir.path().join("offline");
    json(eadt(dir.path(), &["replay", paths[0], "--json", "--out", offline.to_str().unwrap()]));
    let expected = json(eadt(dir.path(), &["report", offline.to_str().unwrap(), "--json", "--by", "window"]));
    let count = expected["workloads"][0]["windows"].as_u64().unwrap() as usize;
    wait_for(&kafka, dir.path(), "efficiency.windows.v1", Duration::from_mins(3), |events| {
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
    let replayed = json(eadt(dir.path(), &["replay", archive.to_str().unwrap(), "--check", "--json"]));
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

/// Posts JSON; status and body.
fn post(address: &str, body: &str) -> (u16, String) {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    let length = body.len();
    write!(
        stream,
        "POST /v1/progress HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
    (status, answer.split_once("\r\n\r\n").unwrap().1.to_owned())
}

#[test]
fn a_job_posts_progress_and_a_lost_broker_costs_only_counted_events() {
    let mut kafka = Kafka::start().unwrap();
    let dir = tempfile::tempdir().unwrap();
    apply_topics(&kafka, dir.path());
    let address = {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        free.local_addr().unwrap().to_string()
    };
    let mut command = on(&kafka, dir.path(), &["collector"]);
    command.env("EADT_COLLECTOR__PROGRESS__LISTEN", &address).stdout(Stdio::null());
    let collector = Running(command.spawn().unwrap());
    let began = Instant::now();
    while std::net::TcpStream::connect(&address).is_err() {
        assert!(began.elapsed() < Duration::from_mins(3), "the progress endpoint does not listen");
        std::thread::sleep(Duration::from_millis(50));
    }
    let progress =
        |n: u32| format!(r#"{{"time":"2026-01-01T00:00:{n:02}Z","workload":"lab/bert","rank":0,"samples_total":{n}}}"#);
    let (status, body) = post(&address, &progress(1));
    assert!((200..300).contains(&status), "{status} {body}");
    for (hostile, part) in [
        (r#"{"time":"2026-01-01T00:00:02Z","workload":"no-namespace","samples_total":1}"#, "workload"),
        (r#"{"time":"2026-01-01T00:00:02Z","workload":"lab/bert","samples_total":-1}"#, "samples_total"),
        (r#"{"time":"yesterday","workload":"lab/bert"}"#, "time"),
        ("[[[[[[[[", "error"),
    ] {
        let (status, body) = post(&address, hostile);
        assert!((400..500).contains(&status) && body.contains(part), "{hostile}: {status} {body}");
    }
    wait_for(&kafka, dir.path(), "training.progress.v1", Duration::from_mins(3), |events| events.len() == 1);

    kafka.kill().unwrap();
    for n in 2..12 {
        let (status, body) = post(&address, &progress(n));
        assert!((200..300).contains(&status), "the job is not held up: {status} {body}");
    }
    kafka.start_again().unwrap();
    let events = wait_for(&kafka, dir.path(), "training.progress.v1", Duration::from_mins(3), |events| events.len() == 11);
    let totals: Vec<f64> = events.iter().map(|e| e["data"]["samples_total"].as_f64().unwrap()).collect();
    assert_eq!(totals, (1..12).map(f64::from).collect::<Vec<_>>(), "all of them, once, in order");
    stop(collector);
}
