//! `eadt partition` from tables to a choice, as a newcomer would use it.

use crate::support;

use std::path::Path;

use serde_json::Value;
use support::{eadt, json, text};

fn run(dir: &Path, args: &[&str]) -> Value {
    json(eadt(dir, &[&["partition"], args, &["--json"]].concat()))
}

fn refused(dir: &Path, args: &[&str]) -> String {
    let (_, error, success) = text(eadt(dir, &[&["partition"], args].concat()));
    assert!(!success, "{args:?}");
    error
}

#[test]
fn from_tables_to_a_choice() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (out, solo, runs, model) = (path("m"), path("m/solo.csv"), path("m/co_runs.csv"), path("model.json"));
    assert!(text(eadt(dir.path(), &["partition", "simulate", "--out", &out])).2);
    for table in [&solo, &runs] {
        let table = std::fs::read_to_string(table).unwrap();
        assert!(table.lines().next().unwrap().ends_with(",origin"), "{table}");
        assert!(table.lines().skip(1).all(|line| line.ends_with(",simulated")), "{table}");
    }
    let train = ["train", "--solo", &solo, "--co-runs", &runs, "--out", &model, "--trees", "20", "--force"];
    let trained = run(dir.path(), &train);
    assert_eq!((&trained["groups"], &trained["gpu_model"]), (&121.into(), &"Tesla V100-PCIE-32GB".into()));
    assert!(trained["held_back"]["of_oracle_ratio"].as_f64().unwrap() > 0.97, "{trained}");
    assert_eq!(trained["origin"], "simulated");
    let again = std::fs::read(&model).unwrap();
    run(dir.path(), &train);
    assert_eq!(std::fs::read(&model).unwrap(), again, "the same seed gives the same model, byte for byte");

    let share = |chosen: &Value, place: usize| chosen["workloads"][place]["mps_thread_percentage"].as_u64().unwrap();
    let choose = |workloads: &str, more: &[&str]| {
        run(dir.path(), &[&["choose", "--solo", &solo, "--workloads", workloads], more].concat())
    };
    let added = choose("Gemm,ViT-inf", &[]);
    assert_eq!((&added["predicted_by"], &added["verdict"]), (&"additive".into(), &"better".into()));
    assert_eq!(added["origin"], "simulated");
    let learned = choose("Reduction,ALBERT-train", &["--model", &model]);
    assert_eq!(learned["predicted_by"], "model");
    assert!(learned["sure_gain_ratio"].as_f64().unwrap() >= 0.01);
    // The paper's objective gives everything to the workload that counts in large numbers; a floor does not.
    let paper = choose("Reduction,ALBERT-train", &["--model", &model, "--objective", "sum", "--floor", "0", "--risk", "mean"]);
    assert_eq!((share(&paper, 0), share(&paper, 1)), (90, 10));
    assert!(share(&learned, 1) > 10);
    // A model carries its origin to a choice from tables that are measured.
    let measured = path("measured.csv");
    std::fs::write(&measured, std::fs::read_to_string(&solo).unwrap().replace(",simulated", ",measured")).unwrap();
    let shows_simulated = |more: &[&str]| {
        let arguments = [&["partition", "choose", "--solo", &measured, "--workloads", "Gemm,ViT-inf"], more].concat();
        let (out, error, success) = text(eadt(dir.path(), &arguments));
        assert!(success, "{error}");
        out.contains("predicted from simulated measurements")
    };
    assert!(!shows_simulated(&[]) && shows_simulated(&["--model", &model]));
    let three = choose("Gemm,ViT-inf,Sorting", &["--model", &model]);
    assert_eq!((0..3).map(|place| share(&three, place)).sum::<u64>(), 100);
    assert_eq!(choose("Gemm,Gemm", &["--max-slowdown", "0.1"])["verdict"], "infeasible");

    assert!(refused(dir.path(), &["choose", "--solo", &solo, "--workloads", "Gemm,Vit"]).contains("names Vit, which"));
    assert!(refused(dir.path(), &["choose", "--solo", &runs, "--workloads", "a,b"]).contains("has the column co_run"));
    let none = refused(dir.path(), &["choose", "--solo", &solo, "--model", &solo, "--workloads", "Gemm,Gemm"]);
    assert!(none.contains("is no model that this program can use"), "{none}");
    let other = path("other.csv");
    let table = std::fs::read_to_string(&solo).unwrap();
    std::fs::write(&other, table.replace("Tesla V100-PCIE-32GB", "H100")).unwrap();
    let wrong = refused(dir.path(), &["choose", "--solo", &other, "--model", &model, "--workloads", "Gemm,Gemm"]);
    assert!(wrong.contains("trained on Tesla V100-PCIE-32GB, but the workloads share H100"), "{wrong}");
    std::fs::write(&other, table.lines().filter(|line| !line.starts_with("idle")).collect::<Vec<_>>().join("\n")).unwrap();
    let idle = refused(dir.path(), &["choose", "--solo", &other, "--workloads", "Gemm,Gemm"]);
    assert!(idle.contains("or give --idle-watts"), "{idle}");

    let page = path("page.html");
    let evaluated = run(
        dir.path(),
        &[
            "evaluate",
            "--solo",
            &solo,
            "--co-runs",
            &runs,
            "--training",
            "0.5",
            "--repeats",
            "1",
            "--trees",
            "10",
            "--html",
            &page,
        ],
    );
    assert_eq!((&evaluated["origin"], evaluated["workloads"].as_array().unwrap().len()), (&"simulated".into(), 16));
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains("<p>Simulated, by the tables&#39; column origin"), "{page}");
    assert_eq!(page.matches("class=\"chosen\"").count(), 16);
    assert!(page.contains("groups, 50 % training") && page.ends_with("</html>\n"));
    let first = page.split("</h1>\n").nth(1).unwrap_or_default();
    assert!(first.starts_with("<p class=\"verdict\">chosen partitions do "), "{first}");
}

/// Without tables the paper's workloads are simulated, and it is shown.
#[test]
fn the_experiment_shows_that_it_is_simulated() {
    let dir = tempfile::tempdir().unwrap();
    let arguments = ["evaluate", "--paper-only", "--training", "0.5", "--repeats", "1", "--trees", "10"];
    assert_eq!(run(dir.path(), &arguments)["origin"], "simulated");
    let (out, _, success) = text(eadt(dir.path(), &[&["partition"], &arguments[..]].concat()));
    assert!(success && out.starts_with("Simulated:") && out.contains("mean of the workloads"), "{out}");
    assert!(refused(dir.path(), &["evaluate", "--training", "1.5"]).contains("give a number above 0 and below 1"));
}
