//! Replays, logs and reports as a user runs them: what is counted, what is refused, what is never overwritten.

use crate::support;

use std::path::{Path, PathBuf};

use serde_json::{Value, json as object};
use support::{eadt, json, text};

fn time(second: u32) -> String {
    format!("2026-01-01T00:{:02}:{:02}Z", second / 60, second % 60)
}

/// A line of an event log; with a stamp, one that a log gave it.
fn event(kind: &str, second: u32, stamp: Option<u32>, mut data: Value) -> String {
    data["time"] = time(second).into();
    data["workload"] = "lab/job".into();
    data["collector"] = "test".into();
    let mut event = object!({"specversion": "1.0", "type": kind, "source": "/test", "id": format!("{kind}-{second}-{stamp:?}"),
        "time": time(second), "partitionkey": "lab/job", "data": data});
    if let Some(stamp) = stamp {
        event["eadtstamp"] = time(stamp).into();
    }
    event.to_string()
}

fn telemetry(device: &str, second: u32, stamp: Option<u32>) -> String {
    event("io.eadt.gpu.telemetry.v1", second, stamp, object!({"device": device, "power_watts": 100.0}))
}

fn write(dir: &Path, name: &str, lines: &[String]) -> PathBuf {
    let path = dir.join(name);
    std::fs::write(&path, lines.join("\n") + "\n").unwrap();
    path
}

fn replay(dir: &Path, log: &Path, more: &[&str]) -> Value {
    let mut arguments = vec!["replay", log.to_str().unwrap(), "--json"];
    arguments.extend(more);
    json(eadt(dir, &arguments))
}

#[test]
fn an_event_of_a_newer_type_is_refused_and_one_of_an_unknown_type_is_counted() {
    let dir = tempfile::tempdir().unwrap();
    let newer = event("io.eadt.gpu.telemetry.v2", 15, None, object!({"device": "a", "watts": 100.0}));
    let foreign = event("com.example.weather.v1", 16, None, object!({}));
    let log = write(dir.path(), "log.jsonl", &[telemetry("a", 10, None), newer, foreign, telemetry("a", 20, None)]);
    let said = replay(dir.path(), &log, &[]);
    assert_eq!(said["events"], 3, "{said}");
    assert_eq!(said["refused"], 1, "{said}");
    assert_eq!(said["refused_by_reason"], object!({"unexpected_type": 1}), "{said}");
    assert_eq!(said["passed_over"], object!({"com.example.weather.v1": 1}), "{said}");
    let (out, err, good) = text(eadt(dir.path(), &["replay", log.to_str().unwrap()]));
    assert!(good && out.contains("1 refused: 1 unexpected_type"), "{out}{err}");
    assert!(out.contains("1 events of the unknown type \"com.example.weather.v1\" passed over"), "{out}");
    assert!(err.contains("io.eadt.gpu.telemetry.v2"), "{err}");
}

#[test]
fn an_event_after_the_last_closed_window_counts_as_late_and_spans_are_no_windows() {
    let dir = tempfile::tempdir().unwrap();
    let mut lines = Vec::new();
    for second in (0..=200).step_by(10) {
        lines.push(telemetry("a", second, Some(second)));
        let mut data = object!({"rank": 0, "samples_total": second});
        match second {
            0 => data["span"] = "epoch 1".into(),
            100 => data["span"] = "epoch 2".into(),
            _ => {}
        }
        lines.push(event("io.eadt.training.progress.v1", second, Some(second), data));
    }
    // Its window is closed, and no window after that one ever is.
    lines.push(telemetry("b", 30, Some(200)));
    let log = write(dir.path(), "log.jsonl", &lines);
    let out = dir.path().join("out");
    let said = replay(dir.path(), &log, &["--out", out.to_str().unwrap()]);
    assert_eq!((said["windows"].as_u64(), said["spans"].as_u64()), (Some(3), Some(1)), "{said}");
    assert_eq!((said["late"].as_u64(), said["refused"].as_u64()), (Some(1), Some(1)), "{said}");
    assert_eq!(said["refused_by_reason"], object!({"late": 1}), "{said}");
    let in_windows: u64 = eadt_lake::read_windows(&out).unwrap().events.iter().map(|window| window.late).sum();
    assert_eq!(in_windows, 0, "no window could say so");

    let report =
        |by: &str| json(eadt(dir.path(), &["report", out.to_str().unwrap(), "--json", "--by", by]))["workloads"][0].clone();
    assert_eq!(report("window")["windows"], 3);
    let spans = report("span");
    assert_eq!(spans["by_span"][0]["span"], "epoch 1", "{spans}");
    assert_eq!(spans["by_span"].as_array().unwrap().len(), 1, "{spans}");
}

#[test]
fn a_check_that_compares_nothing_fails_and_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let lines: Vec<String> = (0..20).map(|second| telemetry("a", second * 10, None)).collect();
    let log = write(dir.path(), "log.jsonl", &lines);
    let output = eadt(dir.path(), &["replay", log.to_str().unwrap(), "--check", "--json"]).output().unwrap();
    assert!(!output.status.success());
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(said["check"]["windows_same"], 0, "{said}");
    assert_eq!(said["check"]["not_compared"], "the record holds no windows", "{said}");
    let (out, err, good) = text(eadt(dir.path(), &["replay", log.to_str().unwrap(), "--check"]));
    assert!(!good && err.contains("nothing could be compared: the record holds no windows"), "{err}");
    assert!(out.contains("check: nothing could be compared"), "{out}");
}

#[test]
fn what_cannot_be_used_is_named_as_it_was_given() {
    let dir = tempfile::tempdir().unwrap();
    let log = write(dir.path(), "log.jsonl", &[telemetry("a", 10, None)]);
    let path = log.to_str().unwrap();
    let told = |arguments: &[&str]| {
        let (out, err, good) = text(eadt(dir.path(), arguments));
        assert!(!good && out.is_empty(), "{out}{err}");
        err
    };
    for window in ["0", "nan", "1e9"] {
        let err = told(&["replay", path, "--window", window]);
        assert!(err.starts_with("error: --window ") && err.contains("must be within 1 and 86400"), "{err}");
    }
    let err = told(&["report", path]);
    assert!(err.contains(&format!("run `eadt replay {path} --out DIR` first")), "{err}");
    let err = told(&["import", "dcgmi", path, "--interval", "20", "--out", "x.jsonl"]);
    assert!(err.starts_with("error: --interval: \"20\" is not an interval; say for example 20ms"), "{err}");
}

#[test]
fn a_log_is_never_replaced_unasked() {
    let dir = tempfile::tempdir().unwrap();
    let csv = dir.path().join("power.csv");
    std::fs::write(&csv, "time,W\n2026-01-01T00:00:00Z,100\n2026-01-01T00:00:10Z,110\n").unwrap();
    let import = |out: &Path, more: &[&str]| {
        let mut arguments = vec!["import", "csv", csv.to_str().unwrap(), "--map", "time=time", "--map", "power_watts=W"];
        arguments.extend(["--out", out.to_str().unwrap()]);
        arguments.extend(more);
        text(eadt(dir.path(), &arguments))
    };
    let log = dir.path().join("run.jsonl");
    let (out, err, good) = import(&log, &[]);
    assert!(good, "{out}{err}");
    std::fs::write(&log, "mine\n").unwrap();
    let (_, err, good) = import(&log, &[]);
    assert!(!good && err.contains("run.jsonl exists: name another output, or say --force to replace it"), "{err}");
    assert_eq!(std::fs::read_to_string(&log).unwrap(), "mine\n");
    assert!(import(&log, &["--force"]).2);
    assert_ne!(std::fs::read_to_string(&log).unwrap(), "mine\n");
    for name in ["run.csv", "run.json", "run"] {
        let (_, err, good) = import(&dir.path().join(name), &["--force"]);
        assert!(!good && err.contains("end it in .jsonl, or in .jsonl.zst"), "{name}: {err}");
        assert!(!dir.path().join(name).exists());
    }
    // `record` goes the same way.
    let data = dir.path().join("data");
    let (out, err, good) = text(eadt(&data, &["up", "--speed", "max", "--duration", "2m", "--no-view"]));
    assert!(good, "{out}{err}");
    std::fs::write(&log, "mine\n").unwrap();
    let record = |out: &Path, more: &[&str]| {
        let mut arguments = vec!["record", "--out", out.to_str().unwrap()];
        arguments.extend(more);
        text(eadt(&data, &arguments))
    };
    let (_, err, good) = record(&log, &[]);
    assert!(!good && err.contains("exists: name another output"), "{err}");
    assert_eq!(std::fs::read_to_string(&log).unwrap(), "mine\n");
    let (_, err, good) = record(&dir.path().join("run.json"), &[]);
    assert!(!good && err.contains("end it in .jsonl"), "{err}");
    let (out, err, good) = record(&log, &["--force"]);
    assert!(good, "{out}{err}");
    assert!(std::fs::read_to_string(&log).unwrap().contains("io.eadt.gpu.telemetry.v1"));
}

#[test]
fn a_report_names_the_currency_that_it_was_given() {
    let dir = tempfile::tempdir().unwrap();
    let lines: Vec<String> = (0..=12).map(|second| telemetry("a", second * 10, None)).collect();
    let log = write(dir.path(), "log.jsonl", &lines);
    let out = dir.path().join("out");
    replay(dir.path(), &log, &["--out", out.to_str().unwrap()]);
    let report = |more: &[&str]| {
        let mut arguments = vec!["report", out.to_str().unwrap(), "--price-per-kwh", "0.3"];
        arguments.extend(more);
        text(eadt(dir.path(), &arguments))
    };
    let (named, _, _) = report(&["--currency", "eur"]);
    assert!(named.contains("cost EUR"), "{named}");
    let (unnamed, _, _) = report(&[]);
    assert!(unnamed.contains("`eadt report --currency CODE` does"), "{unnamed}");
    let (_, err, good) = report(&["--currency", "bananas"]);
    assert!(!good && err.contains("is no code of three letters"), "{err}");
    // 120 s were recorded; the windows that they lie in are longer.
    let said = json(eadt(dir.path(), &["report", out.to_str().unwrap(), "--json"]));
    assert_eq!(said["workloads"][0]["duration_seconds"], 120.0, "{said}");
    assert_eq!(said["workloads"][0]["energy_joules"], 12_000.0, "{said}");
    assert!(said["workloads"][0]["currency"].is_null());
}
