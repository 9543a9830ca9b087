//! Two simulated jobs on one GPU by the real program, on the embedded log: measured while each is alone, partitioned when they share.

mod support;

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use support::{Running, Told, eadt, files, json, signal, text};

const JOBS: [&str; 2] = ["lab/products", "lab/vision"];
const MINUTES: usize = 150;

fn up(dir: &Path, scenario: &Path, more: &[&str]) -> Command {
    let mut command = eadt(dir, &["up", "--no-view", "--scenario", scenario.to_str().unwrap()]);
    command.args(more).env("EADT_PROCESSOR__SM_PARTITION__ENABLED", "true");
    command
}

/// The whole run; `mode`: what the jobs allow.
fn run(dir: &Path, mode: &str) {
    let scenario =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios/shared_gpu.toml")).unwrap();
    let file = dir.join("scenario.toml");
    std::fs::write(&file, scenario.replace("[[workloads]]\n", &format!("[[workloads]]\nmode = \"{mode}\"\n"))).unwrap();
    json(up(dir, &file, &["--speed", "max", "--duration", &format!("{MINUTES}m"), "--json"]));
}

/// A topic's events of the jobs, in the order of their times.
fn events(dir: &Path, topic: &str, time: &str) -> Vec<Value> {
    let (out, err, good) = text(eadt(dir, &["tail", topic, "--until-end", "--json"]));
    assert!(good, "{err}");
    let mut all: Vec<Value> = out.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["data"].clone()).collect();
    let key = |event: &Value| (event[time].as_str().unwrap().to_owned(), event["workload"].as_str().unwrap().to_owned());
    all.sort_by_key(key);
    all
}

fn decisions(dir: &Path) -> Vec<Value> {
    events(dir, "decisions.v1", "time")
}

/// Throughput of each job and power of the GPU in the last half hour; throughput while it was alone on the whole GPU.
struct Outcome {
    samples_per_second: BTreeMap<String, f64>,
    alone: BTreeMap<String, f64>,
    joules: f64,
    seconds: f64,
}

fn outcome(dir: &Path) -> Outcome {
    let mut outcome = Outcome { samples_per_second: BTreeMap::new(), alone: BTreeMap::new(), joules: 0.0, seconds: 30.0 * 60.0 };
    let windows = events(dir, "efficiency.windows.v1", "window_end");
    for window in windows.iter().filter(|window| JOBS.contains(&window["workload"].as_str().unwrap())) {
        let name = window["workload"].as_str().unwrap().to_owned();
        let rate = window["samples_per_second"].as_f64();
        if window["window_start"].as_str().unwrap() >= "2026-01-01T02:00:00" {
            assert_eq!(window["tenants"], 2);
            assert_eq!(window["shared_devices"].as_array().unwrap().len(), 1);
            *outcome.samples_per_second.entry(name).or_default() += rate.unwrap() / 30.0;
            outcome.joules += window["energy_joules"].as_f64().unwrap();
        } else if window["tenants"].is_null() && window["layout"]["mps_thread_percentage"] == 100 && window["restarted"] == false
        {
            outcome.alone.insert(name, rate.unwrap_or(0.0));
        }
    }
    outcome
}

#[test]
fn a_shared_gpu_gives_more_work_per_joule_than_in_equal_shares_and_replays_to_the_same_decisions() {
    let [dir, equal] = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    run(dir.path(), "enforce");
    run(equal.path(), "observe");
    let said = decisions(dir.path());
    let ids: HashSet<&str> = said.iter().map(|decision| decision["id"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), said.len(), "a decision was said twice");
    assert!(said.iter().all(|decision| decision["controller"] == "sm-partition" && decision["origin"] == "simulated"));
    let changes: Vec<&Value> = said.iter().filter(|decision| decision["action"] != "maintain").collect();
    let alone = changes.iter().filter(|change| change["reason"].as_str().unwrap().starts_with("alone on its GPU")).count();
    assert_eq!((alone, changes.len()), (6, 8), "two shares of each and the way back, then the partition: {changes:#?}");
    let [down, up] = [changes[6], changes[7]];
    assert_eq!((down["action"].as_str(), up["action"].as_str()), (Some("decrease"), Some("increase")), "reductions first");
    for (change, other) in [(down, up), (up, down)] {
        let reason = change["reason"].as_str().unwrap();
        assert!(reason.contains(other["workload"].as_str().unwrap()) && reason.contains("says the additive model"), "{reason}");
        assert!(change["evidence"]["expected_gain_ratio"].as_f64().unwrap() > 0.1 && change["model_version"].is_null());
    }
    assert!(said.iter().any(|decision| decision["validation"] == "kept"));
    assert!(decisions(equal.path()).iter().all(|decision| decision["action"] == "maintain"));

    let (chosen, equal) = (outcome(dir.path()), outcome(equal.path()));
    let work = |of: &Outcome| -> f64 { JOBS.iter().map(|job| of.samples_per_second[*job] / chosen.alone[*job]).sum() };
    let per_joule = |of: &Outcome| work(of) * of.seconds / of.joules;
    println!(
        "work {:.4} and {:.4}, GPU {:.1} W and {:.1} W, work per joule {:+.1} % [simulated]",
        work(&chosen),
        work(&equal),
        chosen.joules / chosen.seconds,
        equal.joules / equal.seconds,
        (per_joule(&chosen) / per_joule(&equal) - 1.0) * 100.0
    );
    for job in JOBS {
        let part = chosen.samples_per_second[job] / equal.samples_per_second[job];
        println!("{job}: {part:.3} of its throughput in equal shares [simulated]");
        assert!(part > 0.5, "{job} keeps half of what equal shares gave it: {part}");
    }
    assert!(per_joule(&chosen) > 1.1 * per_joule(&equal));

    let log = dir.path().join("record.jsonl");
    json(eadt(dir.path(), &["record", "--out", log.to_str().unwrap(), "--json"]));
    let mut written = Vec::new();
    for (record, out) in [(dir.path().join("archive"), "from-archive"), (log, "from-log")] {
        let out = dir.path().join(out);
        let replayed =
            json(eadt(dir.path(), &["replay", record.to_str().unwrap(), "--check", "--json", "--out", out.to_str().unwrap()]));
        assert_eq!(replayed["check"]["differences"], serde_json::json!([]), "{replayed}");
        assert_eq!(replayed["check"]["excused"], serde_json::json!([]), "{replayed}");
        assert_eq!(replayed["check"]["decisions_same"].as_u64(), Some(said.len() as u64), "{replayed}");
        written.push(files(&out));
    }
    assert!(written[0] == written[1], "an archive and a log replay to other bytes");
}

/// However often the program is killed, what it decides is what it would have decided.
#[test]
fn kill_9_changes_no_decision() {
    let [straight, broken] = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    run(straight.path(), "enforce");
    let scenario = straight.path().join("scenario.toml");
    for windows in [3, 10, 20, 25, 40, 10, 2, 3] {
        let mut command = up(broken.path(), &scenario, &["--speed", "3600"]);
        let mut child = Running(command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap());
        let mut told = Told::by(&mut child.0);
        told.until("simulating now");
        (0..windows).for_each(|_| {
            told.until(" window ");
        });
        signal(&child.0, "-KILL");
        child.0.wait().unwrap();
    }
    json(up(broken.path(), &scenario, &["--speed", "max", "--duration", &format!("{MINUTES}m"), "--json"]));
    // The broken run may have gone on for longer before its last end.
    let within = |dir: &Path| -> Vec<Value> {
        decisions(dir).into_iter().filter(|decision| decision["time"].as_str().unwrap() < "2026-01-01T02:29").collect()
    };
    let (expected, got) = (within(straight.path()), within(broken.path()));
    assert!(expected.len() > MINUTES);
    let same = expected.iter().zip(&got).take_while(|(a, b)| a == b).count();
    assert!(expected == got, "the first difference: {:#?} {:#?}", expected.get(same), got.get(same));
}
