//! A cluster's power budget on Apache Kafka, with two processors.

use crate::support;

use std::process::Stdio;
use std::time::Duration;

use eadt_tests::Kafka;
use support::budget::{judge, tail, with_budget};
use support::{Running, eadt, ends, json, signal, text};

#[test]
fn of_two_processors_one_runs_the_clusters_stage_and_the_other_takes_over() {
    let kafka = Kafka::start().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let on = |args: &[&str]| {
        let mut command = eadt(dir.path(), args);
        command.env("KAFKA_BROKERS", kafka.brokers());
        command
    };
    let (_, err, good) = text(on(&["topics", "apply"]));
    assert!(good, "{err}");
    let processor = |number: u32| {
        let mut command = with_budget(on(&["processor"]));
        // Simulated times have nothing to do with the broker's stamps.
        command
            .env("EADT_PROCESSOR__MAX_FUTURE_SECONDS", "off")
            .env("EADT_PROCESSOR__INSTANCE", format!("processor-{number}"))
            .stdout(Stdio::null());
        Running(command.spawn().unwrap())
    };
    let simulate = || {
        let cluster = on(&["actuator", "--speed", "max", "--duration", "40m"]).stdout(Stdio::null()).spawn().unwrap();
        ends(Running(cluster), Duration::from_mins(5));
    };
    let mut processors = [processor(0), processor(1)];
    simulate();
    // Whichever of them runs the stage: it is killed, and simulated time waits until the other one has taken over.
    for (killed, number) in [(0, 0), (1, 1)] {
        signal(&processors[killed].0, "-KILL");
        processors[killed].0.wait().unwrap();
        simulate();
        processors[killed] = processor(number);
    }
    simulate();
    let (decisions, workloads) = (tail(&on, "decisions.v1"), tail(&on, "workloads.v1"));
    assert!(decisions.len() >= 2 * 4 * 38, "{}", decisions.len());
    judge(&decisions, &workloads);
    for process in processors {
        signal(&process.0, "-TERM");
        ends(process, Duration::from_mins(1));
    }
    let log = dir.path().join("recorded.jsonl");
    json(on(&["record", "--out", log.to_str().unwrap(), "--json"]));
    let replayed = json(eadt(dir.path(), &["replay", log.to_str().unwrap(), "--check", "--json"]));
    assert_eq!(replayed["check"]["differences"], serde_json::json!([]), "{replayed}");
    assert!(replayed["check"]["decisions_same"].as_u64().unwrap() > 0, "{replayed}");
}
