//! Two simulated jobs on one GPU by the real program, on the embedded log: measured while each is alone, partitioned when they share.

use crate::support;

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use eadt_bus::embedded::{EmbeddedLog, EmbeddedOptions, StampSource};
use eadt_bus::{Bus, ProducerRecord};
use eadt_schemas::v1::Model;
use eadt_schemas::{Envelope, EventType};
use serde_json::Value;
use support::{LOG_WINDOWS, Running, StderrLines, eadt, files, json, signal, text};

const JOBS: [&str; 2] = ["lab/products", "lab/vision"];
const MINUTES: usize = 150;

fn up(dir: &Path, scenario: &Path, more: &[&str]) -> Command {
    let mut command = eadt(dir, &["up", "--no-view", "--scenario", scenario.to_str().unwrap()]);
    command.args(more).env("EADT_PROCESSOR__GPU_SHARING__ENABLED", "true");
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
    let decided = decisions(dir.path());
    let ids: HashSet<&str> = decided.iter().map(|decision| decision["id"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), decided.len(), "a decision was published twice");
    assert!(decided.iter().all(|decision| decision["controller"] == "sm-partition" && decision["origin"] == "simulated"));
    let changes: Vec<&Value> = decided.iter().filter(|decision| decision["action"] != "maintain").collect();
    let alone = changes.iter().filter(|change| change["reason"].as_str().unwrap().starts_with("alone on its GPU")).count();
    assert_eq!((alone, changes.len()), (6, 8), "two shares of each and the way back, then the partition: {changes:#?}");
    let [down, up] = [changes[6], changes[7]];
    assert_eq!((down["action"].as_str(), up["action"].as_str()), (Some("decrease"), Some("increase")), "reductions first");
    for (change, other) in [(down, up), (up, down)] {
        let reason = change["reason"].as_str().unwrap();
        assert!(
            reason.contains(other["workload"].as_str().unwrap()) && reason.contains("as predicted by the additive model"),
            "{reason}"
        );
        assert!(change["evidence"]["expected_gain_ratio"].as_f64().unwrap() > 0.1 && change["model_version"].is_null());
    }
    assert!(decided.iter().any(|decision| decision["validation"] == "kept"));
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
        assert_eq!(replayed["check"]["decisions_same"].as_u64(), Some(decided.len() as u64), "{replayed}");
        written.push(files(&out));
    }
    assert!(written[0] == written[1], "an archive and a log replay to other bytes");
}

const MODEL: &str = "partition/Tesla V100-PCIE-32GB";

/// A job of the paper's suite on a V100 of its own, or of another one's; `away`: seconds.
fn job(name: &str, number: usize, of: Option<&str>, away: &[(u32, u32)]) -> String {
    let profile = toml::to_string(&eadt_simulator::sharing::paper_suite()[number].profile).unwrap();
    let away: Vec<String> =
        away.iter().map(|(from, until)| format!("{{ from_seconds = {from}, until_seconds = {until} }}")).collect();
    let of = of.map_or(String::new(), |of| format!("shares_gpus_of = \"lab/{of}\"\n"));
    format!(
        "[[workloads]]\nname = \"lab/{name}\"\ncontroller = \"sm-partition\"\nboard = \"V100\"\ngpus = 1\nreplicas = 1\n{of}away = [{}]\n\
         [workloads.schedule]\nrepeat = false\n[[workloads.schedule.phases]]\nname = \"only\"\nseconds = 86400\n\
         [workloads.schedule.phases.profile]\n{profile}\n",
        away.join(", ")
    )
}

/// Eight pairs run alone, then together; their effect on each other is learned; and a ninth pair, never measured together, is
/// partitioned by it.
#[test]
fn what_pairs_did_together_decides_about_a_pair_that_nobody_saw() {
    let dir = tempfile::tempdir().unwrap();
    // Numbers in the suite of those that want the memory's bandwidth: adding up does not know that they hold each other up.
    let pairs = [(0, 3), (2, 3), (0, 1), (1, 2), (1, 3), (0, 2), (3, 0), (2, 1), (2, 0)];
    let scenario: String = pairs
        .iter()
        .enumerate()
        .map(|(n, (a, b))| {
            let (a_name, b_name, last) = (format!("a{n}"), format!("b{n}"), n == pairs.len() - 1);
            // The last one is together after the others' figures are learned from.
            let together = if last { 10_800 } else { 4_800 };
            let away = if last { vec![(0, 2_400), (4_800, together)] } else { vec![(0, 2_400)] };
            job(&a_name, *a, None, &[(2_400, together)]) + &job(&b_name, *b, Some(&a_name), &away)
        })
        .collect();
    let file = dir.path().join("scenario.toml");
    std::fs::write(&file, scenario).unwrap();
    let simulate = |minutes: u32| {
        json(up(dir.path(), &file, &["--speed", "max", "--duration", &format!("{minutes}m"), "--json"]));
    };
    simulate(150);
    let before = decisions(dir.path());
    assert!(before.iter().all(|decision| decision["model_version"].is_null()));
    let learn = || json(eadt(dir.path(), &["optimizer", "--once", "--json"]));
    let round = learn();
    let proposal = round["proposals"].as_array().unwrap().iter().find(|proposal| proposal["name"] == MODEL).unwrap();
    println!("{} [simulated]", proposal["reason"]);
    assert_eq!(
        (&proposal["verdict"], proposal["metrics"]["sets"].as_f64()),
        (&"publish".into(), Some(8.0)),
        "{}",
        proposal["reason"]
    );
    assert_eq!(learn()["records_sent"], 0, "nothing new was archived");

    simulate(90);
    let decided = decisions(dir.path());
    let version = format!("{MODEL}@1");
    let by_model: Vec<&Value> = decided.iter().filter(|decision| decision["model_version"] == *version).collect();
    let changed: Vec<&&Value> = by_model.iter().filter(|decision| decision["action"] != "maintain").collect();
    let of = |decision: &Value, pair: usize| {
        let name = decision["workload"].as_str().unwrap();
        name == format!("lab/a{pair}") || name == format!("lab/b{pair}")
    };
    assert!(by_model.iter().any(|decision| of(decision, 8)), "the ninth pair was not asked about: {:#?}", decided.last());
    for change in &changed {
        assert!(change["reason"].as_str().unwrap().ends_with(&format!("as predicted by {version}")), "{change:#?}");
    }
    let ninth = decided.iter().rfind(|decision| of(decision, 8)).unwrap();
    println!("{} decisions by the model, {} changes; at last: {}", by_model.len(), changed.len(), ninth["reason"]);

    assert!(!changed.is_empty());
    let check = replayed(dir.path());
    assert_eq!((&check["differences"], &check["excused"]), (&serde_json::json!([]), &serde_json::json!([])), "{check}");

    // The same model in another log, from its second minute on: every decision, and what a replay of the log makes of it.
    let two = tempfile::tempdir().unwrap();
    let file = two.path().join("scenario.toml");
    let pair = job("a", 4, None, &[(2_400, 4_800)]) + &job("b", 0, Some("a"), &[(0, 2_400)]);
    std::fs::write(&file, pair).unwrap();
    let simulate = |minutes: usize| {
        json(up(two.path(), &file, &["--speed", "max", "--duration", &format!("{minutes}m"), "--json"]));
    };
    simulate(1);
    publish(two.path(), serde_json::from_value(proposal["model"].clone()).unwrap());
    simulate(MINUTES - 1);
    let decided = decisions(two.path());
    let by_model: Vec<&Value> = decided.iter().filter(|decision| decision["model_version"] == *version).collect();
    println!("{} decisions by the model; the last one: {}", by_model.len(), decided.last().unwrap()["reason"]);
    let changed = by_model.iter().filter(|decision| decision["action"] != "maintain").count();
    assert!(changed == 2 && by_model.len() > 2, "{changed} of {}: {:#?}", by_model.len(), decided.last());
    let check = replayed(two.path());
    assert_eq!((&check["differences"], &check["excused"]), (&serde_json::json!([]), &serde_json::json!([])), "{check}");
    assert_eq!(check["decisions_same"].as_u64(), Some(decided.len() as u64), "{check}");
}

/// Returns the report of a replay about all decisions.
fn replayed(dir: &Path) -> Value {
    let log = dir.join("record.jsonl");
    json(eadt(dir, &["record", "--out", log.to_str().unwrap(), "--json"]));
    let (out, err, _) = text(eadt(dir, &["replay", log.to_str().unwrap(), "--check", "--json"]));
    serde_json::from_str::<Value>(&out).unwrap_or_else(|error| panic!("{error}: {out} {err}"))["check"].take()
}

/// Writes a model to every partition, as of the log's present.
fn publish(dir: &Path, model: Model) {
    let options = EmbeddedOptions { stamps: StampSource::Held, ..EmbeddedOptions::default() };
    let log = EmbeddedLog::open(&dir.join("log"), options).unwrap();
    let model = Model { time: log.log_time(), ..model };
    let envelope = Envelope {
        id: format!("{}@{}", model.name, model.version),
        source: "/tests".to_owned(),
        kind: EventType::Model,
        time: model.time,
        subject: model.name.clone(),
    };
    let topic: Arc<str> = "eadt.models.v1".into();
    let mut producer = log.producer("tests").unwrap();
    let partitions = log.topics("eadt.").unwrap().into_iter().find(|spec| spec.name == topic).unwrap().partitions;
    for partition in 0..partitions {
        let record =
            ProducerRecord { partition: Some(partition), ..ProducerRecord::event(&topic, &model.name, &envelope, &model) };
        producer.send(record).unwrap();
    }
    assert!(producer.flush(Duration::from_mins(2)).unwrap());
}

/// Checks that decisions are the same however often the program is killed.
#[test]
fn kill_9_changes_no_decision() {
    let [straight, broken] = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    run(straight.path(), "enforce");
    let scenario = straight.path().join("scenario.toml");
    for windows in [3, 10, 20, 25, 40, 10, 2, 3] {
        let mut command = up(broken.path(), &scenario, &["--speed", "3600"]);
        command.env(LOG_WINDOWS.0, LOG_WINDOWS.1);
        let mut child = Running(command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap());
        let mut stderr = StderrLines::by(&mut child.0);
        stderr.until("simulation runs");
        (0..windows).for_each(|_| {
            stderr.until(" window ");
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
