//! A simulated job that is asked to freeze its first blocks, by the real program on the embedded log: asked, taken up, judged, kept or taken back.

use crate::support;

use std::path::Path;

use serde_json::{Value, json};
use support::{eadt, json, text};

/// Runs the scenario; `change` edits its text.
fn run(dir: &Path, duration: &str, change: impl Fn(String) -> String) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios/frozen_layers.toml");
    let scenario = change(std::fs::read_to_string(file).unwrap());
    let own = dir.join("scenario.toml");
    std::fs::write(&own, scenario).unwrap();
    let up = ["up", "--no-view", "--scenario", own.to_str().unwrap(), "--speed", "max", "--duration", duration, "--json"];
    json(eadt(dir, &up));
}

fn events(dir: &Path, topic: &str) -> Vec<Value> {
    let (out, err, good) = text(eadt(dir, &["tail", topic, "--until-end", "--json"]));
    assert!(good, "{err}");
    out.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["data"].clone()).collect()
}

fn changes(decisions: &[Value]) -> Vec<(&str, &Value)> {
    let changes = decisions.iter().filter(|decision| decision["action"] != "maintain");
    changes.map(|decision| (decision["action"].as_str().unwrap(), &decision["to"]["frozen_prefix_layers"])).collect()
}

#[test]
fn blocks_are_frozen_by_directive_acknowledged_judged_and_kept() {
    let dir = tempfile::tempdir().unwrap();
    // The longest name: the job answers with an id that is longer.
    let name = format!("lab/{}", "g".repeat(249));
    run(dir.path(), "2h", |scenario| scenario.replace("lab/gpt", &name));
    let decisions = events(dir.path(), "decisions.v1");
    assert!(decisions.iter().all(|decision| decision["workload"] == name.as_str()));
    let changes = changes(&decisions);
    assert!(!changes.is_empty() && changes.iter().all(|(action, _)| *action == "freeze_layers"), "{changes:?}");
    let first = decisions.iter().find(|decision| decision["action"] == "freeze_layers").unwrap();
    let id = first["id"].as_str().unwrap();
    assert!(first["evidence"]["steps_done_ratio"].as_f64().unwrap() >= 0.25, "{first}");
    assert!(first["reason"].as_str().unwrap().contains("steps fewer saves as much"), "{first}");

    // Asked, in the topic that the collector answers from.
    let directives = events(dir.path(), "directives.v1");
    assert!(directives.iter().any(|asked| asked["decision_id"] == id && asked["frozen_prefix_layers"] == *changes[0].1));
    // Acknowledged by the job, after it was applied.
    let progress = events(dir.path(), "training.progress.v1");
    let report = progress.iter().find(|report| report["decision_id"] == id).expect("the job reports what it followed");
    assert_eq!(&report["frozen_prefix_layers"], changes[0].1);
    assert_eq!(report["plasticity"][0], Value::Null, "a frozen block has none");
    let outcomes: Vec<_> = events(dir.path(), "actuations.v1")
        .into_iter()
        .filter(|actuation| actuation["decision_id"] == id)
        .map(|actuation| actuation["outcome"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(outcomes, ["applied", "ready"]);

    let judged = decisions.iter().find(|decision| decision["concerns"] == id && decision["validation"] != "pending").unwrap();
    let (gain, expected) =
        (judged["evidence"]["gain_ratio"].as_f64().unwrap(), judged["evidence"]["expected_saving_ratio"].as_f64().unwrap());
    println!("{} [simulated]", judged["reason"]);
    assert_eq!(judged["validation"], "kept", "{judged}");
    assert!(gain > 0.5 * expected && gain < 2.0 * expected, "{gain} of {expected}");
    assert!(judged["evidence"]["control_validation_loss_ratio"].as_f64().unwrap() > 0.0, "beside the control");

    let (archive, out) = (dir.path().join("archive"), dir.path().join("again"));
    let replay = ["replay", archive.to_str().unwrap(), "--check", "--json", "--out", out.to_str().unwrap()];
    let replayed = json(eadt(dir.path(), &replay));
    assert_eq!(replayed["check"]["differences"], json!([]), "{replayed}");
    assert_eq!(replayed["check"]["decisions_same"].as_u64(), Some(decisions.len() as u64), "{replayed}");
}

#[test]
fn a_freeze_that_costs_quality_is_taken_back_and_a_refused_one_is_not_asked_again() {
    let dir = tempfile::tempdir().unwrap();
    run(dir.path(), "90m", |scenario| scenario.replace("freezing_loss_ratio = 0.05", "freezing_loss_ratio = 5"));
    let decisions = events(dir.path(), "decisions.v1");
    let back = decisions.iter().find(|decision| decision["action"] == "revert").expect("the guard takes it back");
    assert!(back["reason"].as_str().unwrap().contains("above its trend at step"), "{back}");
    assert_eq!((&back["validation"], &back["to"]["frozen_prefix_layers"]), (&json!("failed"), &Value::Null));
    let progress = events(dir.path(), "training.progress.v1");
    let last = progress.last().unwrap();
    assert_eq!(last["frozen_prefix_layers"], 0, "all blocks train again");

    let dir = tempfile::tempdir().unwrap();
    run(dir.path(), "90m", |scenario| scenario.replace("freezing_loss_ratio = 0.05", "refuses = \"reentrant checkpointing\""));
    let decisions = events(dir.path(), "decisions.v1");
    assert_eq!(changes(&decisions).len(), 1, "it is asked once");
    let decision = decisions.iter().find(|decision| decision["reason"].as_str().unwrap().contains("reentrant checkpointing"));
    assert!(decision.is_some_and(|decision| !decision["hold_until"].is_null()));
    assert!(events(dir.path(), "directives.v1").is_empty());
}
