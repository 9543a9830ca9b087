//! A cluster's power budget by the real program, on the embedded log.

use crate::support;

use std::path::Path;

use support::budget::{judge, tail, with_budget};
use support::{eadt, files, json};

#[test]
fn a_budget_is_held_in_one_process_and_replays_to_the_same_decisions() {
    let run = |dir: &Path| {
        json(with_budget(eadt(dir, &["up", "--speed", "max", "--duration", "2h", "--json", "--no-view"])));
        let command = |args: &[&str]| eadt(dir, args);
        let (decisions, workloads) = (tail(&command, "decisions.v1"), tail(&command, "workloads.v1"));
        assert!(decisions.len() >= 2 * 115, "{}", decisions.len());
        judge(&decisions, &workloads);
        let mut sorted: Vec<String> = decisions.iter().map(ToString::to_string).collect();
        sorted.sort();
        sorted
    };
    let [one, other] = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    assert!(run(one.path()) == run(other.path()), "the same seed gave other decisions");

    let log = one.path().join("record.jsonl");
    json(eadt(one.path(), &["record", "--out", log.to_str().unwrap(), "--json"]));
    let mut written = Vec::new();
    for (record, out) in [(one.path().join("archive"), "from-archive"), (log, "from-log")] {
        let out = one.path().join(out);
        let args = ["replay", record.to_str().unwrap(), "--check", "--json", "--out", out.to_str().unwrap()];
        let replayed = json(eadt(one.path(), &args));
        assert_eq!(replayed["check"]["differences"], serde_json::json!([]), "{replayed}");
        assert_eq!(replayed["check"]["excused"], serde_json::json!([]), "{replayed}");
        assert!(replayed["check"]["decisions_same"].as_u64().unwrap() >= 2 * 115, "{replayed}");
        assert_eq!(replayed["late_for_cluster"], 0, "{replayed}");
        written.push(files(&out));
    }
    assert!(written[0] == written[1], "an archive and a log replay to other bytes");
}
