//! Tests replays, logs and reports as a user runs them: counts, refusals, and files that are never overwritten.

use crate::support;

use std::path::{Path, PathBuf};

use eadt_schemas::Topic;
use eadt_schemas::v1::EfficiencyWindow;
use serde_json::{Value, json as object};
use support::{eadt, json, status, text};

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

/// As [`replay`], of a log from which events are left out.
fn replay_with_losses(dir: &Path, log: &Path, more: &[&str]) -> Value {
    let mut arguments = vec!["replay", log.to_str().unwrap(), "--json"];
    arguments.extend(more);
    let output = eadt(dir, &arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn an_event_of_a_newer_type_is_refused_and_one_of_an_unknown_type_is_counted() {
    let dir = tempfile::tempdir().unwrap();
    let newer = event("io.eadt.gpu.telemetry.v2", 15, None, object!({"device": "a", "watts": 100.0}));
    let foreign = event("com.example.weather.v1", 16, None, object!({}));
    let log = write(dir.path(), "log.jsonl", &[telemetry("a", 10, None), newer, foreign, telemetry("a", 20, None)]);
    let summary = replay_with_losses(dir.path(), &log, &[]);
    assert_eq!(summary["events"], 3, "{summary}");
    assert_eq!(summary["refused"], 1, "{summary}");
    assert_eq!(summary["refused_by_reason"], object!({"unexpected_type": 1}), "{summary}");
    assert_eq!(summary["passed_over"], object!({"com.example.weather.v1": 1}), "{summary}");
    let (out, err, good) = text(eadt(dir.path(), &["replay", log.to_str().unwrap()]));
    assert!(!good && out.contains("1 refused: 1 unexpected_type"), "{out}{err}");
    assert!(err.ends_with("error: windows and decisions lack what was left out: 1 event refused\n"), "{err}");
    assert!(out.contains("1 event of the unknown type \"com.example.weather.v1\" passed over"), "{out}");
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
    let summary = replay(dir.path(), &log, &["--out", out.to_str().unwrap()]);
    assert_eq!((summary["windows"].as_u64(), summary["spans"].as_u64()), (Some(3), Some(1)), "{summary}");
    assert_eq!((summary["late"].as_u64(), summary["refused"].as_u64()), (Some(1), Some(1)), "{summary}");
    assert_eq!(summary["refused_by_reason"], object!({"late": 1}), "{summary}");
    let (printed, err, good) = text(eadt(dir.path(), &["replay", log.to_str().unwrap()]));
    assert!(
        good && printed.contains("1 late\nlate events are of windows that were closed") && printed.contains("`eadt replay A B`"),
        "{printed}{err}"
    );
    let archive = eadt_lake::Archive::find(&out).unwrap();
    let windows = eadt_lake::read_events::<EfficiencyWindow>(&archive, Topic::EfficiencyWindows).unwrap();
    let in_windows: u64 = windows.events.iter().map(|window| window.late).sum();
    assert_eq!(in_windows, 0, "no window could show it");

    let report =
        |by: &str| json(eadt(dir.path(), &["report", out.to_str().unwrap(), "--json", "--by", by]))["workloads"][0].clone();
    assert_eq!(report("window")["windows"], 3);
    let spans = report("span");
    assert_eq!(spans["by_span"][0]["span"], "epoch 1", "{spans}");
    assert_eq!(spans["by_span"].as_array().unwrap().len(), 1, "{spans}");
}

/// An event of another workload, months back and appended last, is merged first: the log's clock then stops.
#[test]
fn what_is_held_open_is_named_and_closed_if_asked() {
    let dir = tempfile::tempdir().unwrap();
    let mut lines: Vec<String> = (0..30).map(|second| telemetry("a", second * 5, Some(second * 5))).collect();
    let whole = write(dir.path(), "whole.jsonl", &lines);
    let summary = replay(dir.path(), &whole, &[]);
    assert_eq!((summary["windows"].as_u64(), summary["open_windows"].as_u64()), (Some(2), Some(1)), "{summary}");
    let mut late: Value = serde_json::from_str(&telemetry("b", 0, Some(600))).unwrap();
    (late["data"]["workload"], late["partitionkey"]) = ("lab/old".into(), "lab/old".into());
    (late["data"]["time"], late["time"]) = ("2025-08-01T00:00:00Z".into(), "2025-08-01T00:00:00Z".into());
    lines.insert(0, late.to_string());
    let log = write(dir.path(), "log.jsonl", &lines);
    let (out, err, good) = text(eadt(dir.path(), &["replay", log.to_str().unwrap()]));
    assert!(!good && err.contains("31 events made no window: 4 are held open where the record ends"), "{out}{err}");
    for part in ["3 windows of lab/job", "1 window of lab/old", "is at 2026-01-01T00:10:00", "`--close` closes them"] {
        assert!(out.contains(part), "{part}: {out}");
    }
    let summary = replay(dir.path(), &log, &["--close"]);
    assert_eq!((summary["windows"].as_u64(), summary["open_windows"].as_u64()), (Some(4), Some(0)), "{summary}");
}

#[test]
fn a_log_that_was_cut_or_damaged_is_read_as_far_as_it_is_whole() {
    let dir = tempfile::tempdir().unwrap();
    let mut lines: Vec<String> = (0..30).map(|second| telemetry("a", second * 5, None)).collect();
    let log = write(dir.path(), "log.jsonl", &lines);
    let text_of = std::fs::read_to_string(&log).unwrap();
    let cut = dir.path().join("cut.jsonl");
    std::fs::write(&cut, &text_of[..text_of.len() - 40]).unwrap();
    let summary = replay_with_losses(dir.path(), &cut, &[]);
    assert_eq!((summary["events"].as_u64(), summary["windows"].as_u64()), (Some(29), Some(3)), "{summary}");
    assert!(summary["left_out"]["cut"][0].as_str().unwrap().contains("cut.jsonl:30 (byte "), "{summary}");
    let (out, ..) = text(eadt(dir.path(), &["replay", cut.to_str().unwrap()]));
    assert!(out.contains("the log was cut: read up to the last whole event, before "), "{out}");

    lines[7].truncate(50);
    let damaged = write(dir.path(), "damaged.jsonl", &lines);
    let summary = replay_with_losses(dir.path(), &damaged, &[]);
    assert_eq!((summary["events"].as_u64(), summary["left_out"]["damaged_lines"].as_u64()), (Some(29), Some(1)), "{summary}");
    assert!(summary["left_out"]["first_damage"].as_str().unwrap().contains("damaged.jsonl:8 "), "{summary}");
    let table = write(dir.path(), "table.jsonl", &["time,power".to_owned(), "1,2".to_owned()]);
    let (_, err, good) = text(eadt(dir.path(), &["replay", table.to_str().unwrap()]));
    assert!(!good && err.contains("is not a CloudEvents JSON object"), "{err}");
}

#[test]
fn a_check_that_compares_nothing_fails_and_reports_it() {
    let dir = tempfile::tempdir().unwrap();
    let lines: Vec<String> = (0..20).map(|second| telemetry("a", second * 10, None)).collect();
    let log = write(dir.path(), "log.jsonl", &lines);
    let output = eadt(dir.path(), &["replay", log.to_str().unwrap(), "--check", "--json"]).output().unwrap();
    assert!(!output.status.success());
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(summary["check"]["windows_same"], 0, "{summary}");
    assert_eq!(summary["check"]["not_compared"], "the record holds no windows", "{summary}");
    let (out, err, good) = text(eadt(dir.path(), &["replay", log.to_str().unwrap(), "--check"]));
    assert!(!good && err.contains("nothing could be compared: the record holds no windows"), "{err}");
    assert!(out.contains("check: nothing could be compared"), "{out}");
}

#[test]
fn what_cannot_be_used_is_named_as_it_was_given() {
    let dir = tempfile::tempdir().unwrap();
    let log = write(dir.path(), "log.jsonl", &[telemetry("a", 10, None)]);
    let path = log.to_str().unwrap();
    let error_of = |arguments: &[&str]| {
        let (out, err, good) = text(eadt(dir.path(), arguments));
        assert!(!good && out.is_empty(), "{out}{err}");
        err
    };
    for window in ["0", "nan", "1e9"] {
        let err = error_of(&["replay", path, "--window", window]);
        let option = format!("error: invalid value '{window}' for '--window <SECONDS>': ");
        assert!(err.starts_with(&option) && err.contains("must be within 1 and 86400"), "{err}");
    }
    let err = error_of(&["report", path]);
    assert!(err.contains(&format!("run `eadt replay {path} --out DIR` first")), "{err}");
    let err = error_of(&["import", "dcgmi", path, "--interval", "20", "--out", "x.jsonl"]);
    let option = "error: invalid value '20' for '--interval <TIME>': \"20\" is not an interval; for example 20ms";
    assert!(err.starts_with(option), "{err}");
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
    assert!(!good && err.contains("run.jsonl exists: name another output, or use --force to replace it"), "{err}");
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
    let recorded = std::fs::read_to_string(&log).unwrap();
    assert!(recorded.contains("io.eadt.gpu.telemetry.v1"));
    // Followed, it is there while it is written.
    let live = dir.path().join("live.jsonl");
    let mut follow = eadt(&data, &["record", "--follow", "--out", live.to_str().unwrap()]);
    let mut follow = follow.stdout(std::process::Stdio::null()).spawn().unwrap();
    let begun = std::time::Instant::now();
    while std::fs::read_to_string(&live).unwrap_or_default() != recorded {
        assert!(begun.elapsed().as_secs() < 60, "the followed log does not appear");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let interrupted = std::process::Command::new("kill").args(["-INT", &follow.id().to_string()]).status().unwrap();
    assert!(interrupted.success() && follow.wait().unwrap().success());
    assert_eq!(std::fs::read_to_string(&live).unwrap(), recorded);
    // No folder is made on the way.
    let (_, err, good) = record(&dir.path().join("no/such/log.jsonl"), &[]);
    assert!(!good && err.contains("there is no folder"), "{err}");
    assert!(!dir.path().join("no").exists());
    // Outputs of a replay, the same.
    let out = dir.path().join("out");
    let again = |more: &[&str]| {
        text(eadt(dir.path(), &[&["replay", log.to_str().unwrap(), "--out", out.to_str().unwrap()], more].concat()))
    };
    assert!(again(&[]).2);
    let (_, err, good) = again(&[]);
    assert!(!good && err.contains("exists and is not empty"), "{err}");
    assert!(again(&["--force"]).2);
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
    assert!(unnamed.contains("`eadt report --currency CODE` sets it"), "{unnamed}");
    let (_, err, good) = report(&["--currency", "bananas"]);
    assert!(!good && err.contains("is no code of three letters"), "{err}");
    // 120 s were recorded; the windows that they lie in are longer.
    let summary = json(eadt(dir.path(), &["report", out.to_str().unwrap(), "--json"]));
    assert_eq!(summary["workloads"][0]["duration_seconds"], 120.0, "{summary}");
    assert_eq!(summary["workloads"][0]["energy_joules"], 12_000.0, "{summary}");
    assert!(summary["workloads"][0]["currency"].is_null());
}

#[test]
fn a_record_without_a_window_leaves_the_output_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let (empty, out) = (write(dir.path(), "empty.jsonl", &[]), dir.path().join("out"));
    let run = |log: &Path, more: &[&str]| {
        let mut arguments = vec!["replay", log.to_str().unwrap(), "--out", out.to_str().unwrap()];
        arguments.extend(more);
        status(eadt(dir.path(), &arguments))
    };
    let (err, code) = run(&empty, &[]);
    assert!(code == Some(1) && err.contains("no telemetry, progress or workload events") && !out.exists(), "{err}");
    let held = write(dir.path(), "held.jsonl", &[telemetry("a", 10, Some(10))]);
    assert!(run(&held, &[]).1 == Some(1) && !out.exists());
    let events: Vec<String> = (0..=200).step_by(10).map(|second| telemetry("a", second, Some(second))).collect();
    let log = write(dir.path(), "log.jsonl", &events);
    assert_eq!(run(&log, &[]).1, Some(0));
    let entries = || std::fs::read_dir(&out).unwrap().count();
    assert!(entries() > 0);
    assert_eq!(run(&empty, &["--force"]).1, Some(1));
    assert!(entries() > 0, "what was there is not replaced by nothing");
    let (err, code) = run(&log, &[]);
    assert!(code == Some(1) && err.contains("use --force"), "{err}");
}

#[test]
fn a_byte_order_mark_before_a_log_is_no_damage() {
    let dir = tempfile::tempdir().unwrap();
    let events: Vec<String> = (0..=200).step_by(10).map(|second| telemetry("a", second, Some(second))).collect();
    let whole = write(dir.path(), "whole.jsonl", &events);
    let expected = replay(dir.path(), &whole, &[]);
    for (name, text) in [
        ("lines.jsonl", format!("\u{feff}{}\n", events.join("\n"))),
        ("returns.jsonl", format!("\u{feff}{}\r\n", events.join("\r\n"))),
        ("array.jsonl", format!("\u{feff}[{}]\n", events.join(","))),
        ("blank.jsonl", format!("\u{feff}\n\n{}\n", events.join("\n"))),
    ] {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        let summary = replay(dir.path(), &path, &[]);
        assert_eq!((&summary["events"], &summary["windows"]), (&expected["events"], &expected["windows"]), "{name}");
        assert_eq!(summary["left_out"]["damaged_lines"], 0, "{name}");
    }
}

#[test]
fn totals_of_one_rank_in_two_imports_that_contradict_each_other_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let import = |name: &str, step: u32| {
        let rows = (0..20).fold(String::new(), |rows, row| rows + &format!("2025-02-03T10:00:{row:02}Z,{}\n", step * row));
        let path = |ending: &str| dir.path().join(format!("{name}.{ending}")).display().to_string();
        let (table, log) = (path("csv"), path("jsonl"));
        std::fs::write(&table, format!("time,n\n{rows}")).unwrap();
        let args = ["import", "csv", &table, "--map", "samples_total=n", "--workload", "lab/a", "--out", &log];
        let (_, err, good) = text(eadt(dir.path(), &args));
        assert!(good, "{err}");
        log
    };
    let (one, again, other) = (import("one", 1), import("again", 1), import("other", 2));
    let (_, err, good) = text(eadt(dir.path(), &["replay", &one, &again]));
    assert!(good, "the same log twice counts once: {err}");
    let (_, err, good) = text(eadt(dir.path(), &["replay", &one, &other]));
    assert!(!good && err.contains("error: samples_total of lab/a, rank 0, is in") && err.contains("--files-are nodes"), "{err}");
}

#[test]
fn two_workloads_on_one_gpu_at_the_same_time_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let of = |workload: &str, seconds: std::ops::RangeInclusive<u32>, share: Option<f64>| -> Vec<String> {
        let line = |second: u32| {
            let mut event: Value = serde_json::from_str(&telemetry("GPU-1", second, None)).unwrap();
            (event["data"]["workload"], event["partitionkey"]) = (workload.into(), workload.into());
            if let Some(share) = share {
                event["data"]["share"] = share.into();
            }
            event.to_string()
        };
        seconds.step_by(10).map(line).collect()
    };
    let log = |name: &str, parts: [Vec<String>; 2]| {
        let mut lines = parts.concat();
        lines.sort_by_key(|line| serde_json::from_str::<Value>(line).unwrap()["time"].as_str().unwrap().to_owned());
        write(dir.path(), name, &lines).display().to_string()
    };
    let contested = log("both.jsonl", [of("lab/a", 0..=200, None), of("lab/b", 0..=200, None)]);
    let (_, err, good) = text(eadt(dir.path(), &["replay", &contested, "--close"]));
    assert!(!good && err.contains("error: GPU-1 works for lab/a and for lab/b from 2026-01-01T00:00:00"), "{err}");
    let alone = log("alone.jsonl", [of("lab/a", 0..=200, None), Vec::new()]);
    let other = log("other.jsonl", [of("lab/b", 100..=300, None), Vec::new()]);
    let (_, err, good) = text(eadt(dir.path(), &["replay", &alone, &other, "--close"]));
    assert!(!good && err.contains("from 2026-01-01T00:01:40") && err.contains("alone.jsonl and"), "{err}");
    for (name, parts) in [
        ("shared.jsonl", [of("lab/a", 0..=200, Some(0.5)), of("lab/b", 0..=200, Some(0.5))]),
        ("in-turn.jsonl", [of("lab/a", 0..=100, None), of("lab/b", 100..=200, None)]),
    ] {
        let (_, err, good) = text(eadt(dir.path(), &["replay", &log(name, parts), "--close"]));
        assert!(good, "{name}: {err}");
    }
}

#[test]
fn a_log_of_which_a_line_cannot_be_read_ends_with_a_status_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let mut events: Vec<String> = (0..=200).step_by(10).map(|second| telemetry("a", second, Some(second))).collect();
    events.insert(5, "{\"specversion\":".to_owned());
    let (err, code) = status(eadt(dir.path(), &["replay", write(dir.path(), "log.jsonl", &events).to_str().unwrap()]));
    assert!(code == Some(3) && err.contains("1 damaged line"), "{err}");
    events.remove(5);
    let late = telemetry("b", 0, Some(200));
    events.push(late);
    let (err, code) = status(eadt(dir.path(), &["replay", write(dir.path(), "late.jsonl", &events).to_str().unwrap()]));
    assert_eq!(code, Some(0), "what comes late is late in a live processor, too: {err}");
    // Older than the last one of their source: what they report is lost.
    events.pop();
    let stale = [101, 102].map(|second| telemetry("a", second, Some(200)));
    events.extend(stale);
    let (err, code) = status(eadt(dir.path(), &["replay", write(dir.path(), "stale.jsonl", &events).to_str().unwrap()]));
    assert!(code == Some(3) && err.contains("left out: 2 stale events refused"), "{err}");
}
