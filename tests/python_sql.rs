//! The queries of `docs/use/sql` answer in `DuckDB` on a fresh archive, by the views beside them; the notebook reads it with Polars.

use crate::support;

use std::path::Path;

use eadt_schemas::Topic;
use serde_json::{Map, Value};
use support::{eadt, json};

#[test]
fn documented_queries_and_the_notebook_agree_with_the_report_of_an_archive() {
    let place = tempfile::tempdir().unwrap();
    json(eadt(
        &place.path().join("eadt-data"),
        &["up", "--speed", "max", "--duration", "2h", "--seed", "7", "--controller", "matrix", "--no-view", "--json"],
    ));
    let root = eadt_tests::root();
    let folder = root.join("docs/use/sql");
    let views = folder.join("views.sql");
    let ask = |query: &Path| -> Vec<Map<String, Value>> {
        let text = eadt_tests::python::script(&root.join("tests/python/ask_duckdb.py"), &[place.path(), &views, query]).unwrap();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    };
    let mut asked = 0;
    for entry in std::fs::read_dir(&folder).unwrap() {
        let query = entry.unwrap().path();
        if query == views {
            continue;
        }
        let rows = ask(&query);
        assert!(!rows.is_empty(), "{}: no rows", query.display());
        asked += 1;
    }
    assert!(asked >= 5, "only {asked} queries");

    // Every topic has a view, also one that has no file and the private ones.
    let every_view = place.path().join("every_view.sql");
    let counts = Topic::ALL.map(|topic| {
        let view = topic.base_name().replace(['.', '-'], "_");
        format!("SELECT '{topic}' AS topic, count(kafka_offset) AS rows, max(date) AS date FROM {view}")
    });
    std::fs::write(&every_view, counts.join("\nUNION ALL ")).unwrap();
    let counts = ask(&every_view);
    let rows = |topic: Topic| counts.iter().find(|row| row["topic"] == topic.base_name()).unwrap()["rows"].as_u64().unwrap();
    assert_eq!(counts.len(), Topic::ALL.len());
    for topic in [Topic::Decisions, Topic::ProcessorState, Topic::SimulatorState] {
        assert!(rows(topic) > 0, "{topic}: {counts:?}");
    }
    assert_eq!(rows(Topic::Models), 0, "a topic without a file is an empty view: {counts:?}");

    // For each workload, the query and the report give the same.
    let archive = place.path().join("eadt-data").display().to_string();
    let report = json(eadt(place.path(), &["report", &archive, "--json"]));
    let workloads = report["workloads"].as_array().unwrap();
    for row in ask(&folder.join("energy_by_workload.sql")) {
        let Some(reported) = workloads.iter().find(|workload| workload["workload"] == row["workload"]) else { continue };
        let (ours, theirs) = (reported["energy_joules"].as_f64().unwrap(), row["energy_joules"].as_f64().unwrap());
        assert!((ours - theirs).abs() <= 1e-6 * ours, "{}: {ours} J and {theirs} J", row["workload"]);
    }

    // The last sliding window of a workload is the sum of its last ten tumbling ones.
    let tumbling = place.path().join("tumbling.sql");
    std::fs::write(
        &tumbling,
        "SELECT workload, run_energy_joules, samples FROM efficiency_windows_v1 WHERE kind = 'tumbling' ORDER BY window_end DESC",
    )
    .unwrap();
    let (windows, sliding) = (ask(&tumbling), ask(&folder.join("sliding_windows.sql")));
    assert_eq!(sliding.len(), windows.len());
    for workload in workloads.iter().map(|workload| &workload["workload"]) {
        let last = sliding.iter().rfind(|row| row["workload"] == *workload).unwrap();
        for (sum, of) in [("energy_joules", "run_energy_joules"), ("samples", "samples")] {
            let of_workload = windows.iter().filter(|row| row["workload"] == *workload);
            let expected: f64 = of_workload.take(10).filter_map(|row| row[of].as_f64()).sum();
            let found = last[sum].as_f64().unwrap();
            assert!(
                expected > 0.0 && (found - expected).abs() <= 1e-6 * expected,
                "{sum} of {workload}: {found}, not {expected}"
            );
        }
    }

    // The notebook: the same figures, and a picture of each workload, of its layouts, and of what was saved.
    json(eadt(place.path(), &["dataset", "build", &archive, "--out", &place.path().join("ds").display().to_string(), "--json"]));
    let notebook = root.join("docs/use/notebook.ipynb");
    let read_notebook = |report: &Value| -> Value {
        std::fs::write(place.path().join("report.json"), report.to_string()).unwrap();
        let text = eadt_tests::python::script(&root.join("tests/python/run_notebook.py"), &[&notebook, place.path()]).unwrap();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    };
    let found = read_notebook(&report);
    let energy = found["energy"].as_array().unwrap();
    assert_eq!(energy.len(), workloads.len(), "{found}");
    for workload in workloads {
        let row = energy.iter().find(|row| row["workload"] == workload["workload"]).unwrap();
        for figure in ["energy_joules", "samples", "joules_per_sample"] {
            let (ours, theirs) = (workload[figure].as_f64().unwrap(), row[figure].as_f64().unwrap());
            assert!((ours - theirs).abs() <= 1e-6 * ours, "{figure} of {}: {ours} and {theirs}", row["workload"]);
        }
    }
    let figures = found["figures"].as_array().unwrap();
    assert_eq!(figures.len(), workloads.len() + 2, "{found}");
    assert!(figures.iter().flat_map(|figure| figure.as_array().unwrap()).all(|marks| marks.as_u64() > Some(2)), "{found}");
    assert_eq!(found["saved"].as_array().unwrap().len(), workloads.len(), "{found}");
    let by_window = json(eadt(place.path(), &["report", &archive, "--json", "--by", "window"]));
    let rows = by_window["workloads"].as_array().unwrap().iter().flat_map(|workload| workload["by_window"].as_array().unwrap());
    assert_eq!(found["restarted"], rows.filter(|row| row["restarted"] == true).count(), "restarts as the report has them");
    let idle = &found["idle"];
    assert_eq!((&idle["watts"], &idle["goes_back"]), (&serde_json::json!([140.0]), &Value::Bool(false)), "idle GPUs add up");
    // A record without a saving has a picture without a bar.
    let mut unchanged = report.clone();
    for workload in unchanged["workloads"].as_array_mut().unwrap() {
        for figure in ["saving_joules", "saving_ratio", "saving_ratio_low", "saving_ratio_high", "throughput_kept_ratio"] {
            workload[figure] = Value::Null;
        }
    }
    assert!(read_notebook(&unchanged)["saved"][0]["saving_ratio"].is_null());
}
