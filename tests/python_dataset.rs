//! A data set made from a simulated run: pandas, Polars and `DuckDB` open it, and the documentation's example runs.

use crate::support;

use support::{eadt, files, json, text};

#[test]
fn the_example_of_the_documentation_reads_a_data_set() {
    let data = tempfile::tempdir().unwrap();
    let report = json(eadt(
        data.path(),
        &["up", "--speed", "max", "--duration", "3h", "--seed", "7", "--controller", "matrix", "--no-view", "--json"],
    ));
    let windows = report["workloads"].as_array().unwrap().iter().map(|w| w["windows"].as_u64().unwrap()).sum::<u64>();
    let decisions = report["workloads"].as_array().unwrap().iter().map(|w| w["decisions"].as_u64().unwrap()).sum::<u64>();
    assert!(windows > 300, "{report}");

    let out = tempfile::tempdir().unwrap();
    let build = |name: &str, more: &[&str]| {
        let to = out.path().join(name);
        let (from, place) = (data.path().display().to_string(), to.display().to_string());
        let summary = json(eadt(data.path(), &[&["dataset", "build", &from, "--out", &place, "--json"], more].concat()));
        (to, summary)
    };
    let (first, summary) = build("first", &[]);
    assert_eq!((summary["windows"].as_u64(), summary["decisions"].as_u64()), (Some(windows), Some(decisions)), "{summary}");
    assert_eq!(summary["counts"]["windows_by_origin"]["simulated"].as_u64(), Some(windows), "{summary}");
    let (second, _) = build("second", &[]);
    assert_eq!(files(&first), files(&second), "the same archive gives the same files");
    build("first", &["--force"]);
    assert_eq!(files(&first), files(&second), "a former build is replaced");

    let script = eadt_tests::root().join("docs/examples/dataset.py");
    let shown = eadt_tests::python::script(&script, &[&first]).unwrap();
    for part in ["Changes with a known result", "eadt/llm-training", "ready", "numeric features"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }

    // Existing files are not overwritten, and a folder without windows is an error.
    let other = out.path().join("other");
    std::fs::create_dir(&other).unwrap();
    std::fs::write(other.join("thesis.tex"), "years of work").unwrap();
    let source = data.path().display().to_string();
    let (_, error, ok) =
        text(eadt(data.path(), &["dataset", "build", &source, "--out", &other.display().to_string(), "--force"]));
    assert!(!ok && error.contains("holds thesis.tex, which is not such an output"), "{error}");
    let nowhere = out.path().join("nowhere").display().to_string();
    let (_, error, ok) = text(eadt(data.path(), &["dataset", "build", &nowhere, "--out", &nowhere]));
    assert!(!ok && error.contains("nowhere"), "{error}");
}
