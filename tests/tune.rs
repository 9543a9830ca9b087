//! `eadt tune` and `eadt profile` as a newcomer runs them: the real program on tables and files.

use crate::support;

use std::path::Path;

use serde_json::Value;
use support::{eadt, json, near, shared_data, text};

fn run(dir: &Path, args: &[&str]) -> (String, String, bool) {
    text(eadt(dir, args))
}

fn example() -> String {
    format!("{}/docs/examples/points.csv", env!("CARGO_MANIFEST_DIR"))
}

fn group<'a>(result: &'a Value, by: &[(&str, &str)]) -> &'a Value {
    let is = |group: &&Value| by.iter().all(|(column, value)| group["by"][*column] == **value);
    result["groups"].as_array().unwrap().iter().find(is).unwrap_or_else(|| panic!("no group {by:?} in {result}"))
}

#[test]
fn the_example_is_tuned_exported_and_validated() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let example = example();
    let tune = ["tune", &example, "--by", "workload,gpu_model", "--knob", "sm_clock_mhz", "--max-slowdown", "0.05"];
    let html = path("report.html");
    let result = json(eadt(dir.path(), &[&tune[..], &["--html", &html, "--json"]].concat()));
    let groups = result["groups"].as_array().unwrap();
    assert_eq!(groups.len(), 2);
    for group in groups {
        assert_eq!(group["reference"]["setting"], 1410.0);
        assert_eq!(group["feasible"], true);
        let chosen = &group["constrained"];
        assert!(chosen["slowdown_upper_ratio"].as_f64().unwrap() <= 0.05, "{chosen}");
        assert!(chosen["saving_lower_ratio"].as_f64().unwrap() > 0.05, "{chosen}");
    }
    let page = std::fs::read_to_string(&html).unwrap();
    assert!(page.contains("<svg ") && page.contains("points.csv"));
    let (plain, _, good) = run(dir.path(), &tune);
    assert!(good && plain.contains("within the limits") && plain.contains("unverified"), "{plain}");
    assert_eq!(run(dir.path(), &tune).0, plain, "the same table gives the same bytes");

    let saved = path("result.json");
    std::fs::write(&saved, result.to_string()).unwrap();
    let (policies, error, good) = run(dir.path(), &["tune", "export", &saved, "--as", "energy-policy", "--namespace", "lab"]);
    assert!(good, "{error}");
    assert_eq!(policies.matches("kind: EnergyPolicy").count(), 2, "{policies}");

    // The table itself keeps its promise; a table in which the chosen clock is slow breaks it.
    let validate = |fresh: &str| run(dir.path(), &["tune", "validate", &saved, fresh]);
    let (out, error, good) = validate(&example);
    assert!(good, "{out}{error}");
    let chosen = group(&result, &[("workload", "memory")])["constrained"]["setting"].to_string();
    let slow: Vec<String> = std::fs::read_to_string(&example)
        .unwrap()
        .lines()
        .map(|line| {
            let cells: Vec<&str> = line.split(',').collect();
            let slower = cells[0] == "memory" && format!("{}.0", cells[2]) == chosen;
            let seconds = if slower { (cells[4].parse::<f64>().unwrap() * 1.2).to_string() } else { cells[4].to_owned() };
            format!("{},{seconds},{}", cells[..4].join(","), cells[5..].join(","))
        })
        .collect();
    std::fs::write(path("slow.csv"), slow.join("\n") + "\n").unwrap();
    let (out, error, good) = validate(&path("slow.csv"));
    assert!(!good && out.contains("BROKEN") && out.contains("slower by") && error.contains("1 of 2 groups"), "{out}{error}");
}

#[test]
fn profiles_of_simulated_gpus_go_straight_into_tune() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let points = path("caps.csv");
    let profile = |out: &str, knob: &str| {
        let args = ["profile", "--simulate", "V100:compute", "--knob", knob, "--workload", "lab/bert", "--out", out];
        let (out, error, good) = run(dir.path(), &args);
        assert!(good, "{error}");
        out
    };
    let out = profile(&points, "power_limit_watts");
    assert!(out.contains("simulated") && out.contains("eadt tune"), "{out}");
    let table = std::fs::read_to_string(&points).unwrap();
    assert!(table.lines().skip(1).all(|line| line.ends_with(",simulated")), "{table}");
    assert_eq!(table.lines().count(), 1 + 3 * 7, "three runs of 250 to 100 W, without the cold one");
    let again = path("again.csv");
    profile(&again, "power_limit_watts");
    assert_eq!(std::fs::read_to_string(&again).unwrap(), table, "the same seed gives the same bytes");
    let result = json(eadt(dir.path(), &["tune", &points, "--by", "workload,gpu_model", "--max-slowdown", "10%", "--json"]));
    assert_eq!(result["knob"], "power_limit_watts");
    let chosen = &result["groups"][0]["constrained"];
    assert!(chosen["setting"].as_f64().unwrap() < 250.0 && chosen["saving_ratio"].as_f64().unwrap() > 0.05, "{result}");

    let shares = path("shares.csv");
    profile(&shares, "mps_thread_percentage");
    let table = std::fs::read_to_string(&shares).unwrap();
    let seconds = |share: &str| -> f64 {
        let line = table.lines().find(|line| line.contains(&format!(",{share},1,"))).unwrap();
        line.split(',').nth(4).unwrap().parse().unwrap()
    };
    assert!(seconds("20") > 2.0 * seconds("100"), "a fifth of the SMs is much slower for compute-bound work: {table}");

    let new = path("new.csv");
    for (args, part) in [
        (vec!["profile", "--simulate", "B200:mid", "--knob", "sm_clock_mhz", "--out", &new], "unknown board"),
        (vec!["profile", "--simulate", "A100:x", "--knob", "sm_clock_mhz", "--out", &new], "unknown job"),
        (vec!["profile", "--knob", "sm_clock_mhz", "--out", &new], "--settings"),
        (vec!["profile", "--knob", "sm_clock_mhz", "--settings", "5:1:1", "--out", &new], "no settings"),
    ] {
        let (_, error, good) = run(dir.path(), &args);
        assert!(!good && error.contains(part), "{args:?}: {error}");
    }
}

#[test]
fn wrong_input_is_named_and_nothing_is_chosen() {
    let dir = tempfile::tempdir().unwrap();
    let table = dir.path().join("points.csv");
    let refused = |text: &str, more: &[&str]| {
        std::fs::write(&table, text).unwrap();
        let path = table.display().to_string();
        let (_, error, good) = run(dir.path(), &[&["tune", &path, "--max-slowdown", "0.05"], more].concat());
        assert!(!good, "{text}");
        error
    };
    let milliwatts = refused("sm_clock_mhz,duration_seconds,mean_power_watts\n1410,10,350000\n", &[]);
    assert!(milliwatts.contains("points.csv:2") && milliwatts.contains("350000 W") && milliwatts.contains("mW"), "{milliwatts}");
    let one = refused("sm_clock_mhz,duration_seconds,mean_power_watts\n1410,10,350\n", &[]);
    assert!(one.contains("not known: 1 setting only"), "{one}");
    assert!(refused("a,b\n1,2\n", &[]).contains("neither sm_clock_mhz nor power_limit_watts"));
    for empty in ["", "\n\n", "\u{feff}"] {
        assert!(refused(empty, &[]).contains("the file is empty; give a table"), "{empty:?}");
    }
    assert!(refused("a,b\n1,2\n", &["--objective", "speed"]).contains("weighted:W"));
    let percent = ["--max-slowdown", "5"];
    let (_, error, _) = run(dir.path(), &[&["tune", "x.csv"], &percent[..]].concat());
    assert!(error.contains("give 5%"), "{error}");
    let (_, error, good) = run(dir.path(), &["tune", "missing.csv", "--max-slowdown", "0.05"]);
    assert!(!good && error.contains("cannot read missing.csv"), "{error}");
    let (_, error, good) = run(dir.path(), &["tune"]);
    assert!(!good && error.contains("POINTS.csv"), "{error}");
}

#[test]
fn a_table_is_a_plant_for_the_controllers() {
    let dir = tempfile::tempdir().unwrap();
    let table = example();
    let args =
        ["backtest", "--plant", "measured", "--table", &table, "--by", "workload", "--days", "0.3", "--seeds", "1", "--json"];
    let report = json(eadt(dir.path(), &args));
    assert_eq!((report["origin"].as_str(), report["means"].as_array().unwrap().len()), (Some("simulated-table"), 7), "{report}");
    let mean = |name: &str| {
        let own = report["means"].as_array().unwrap().iter().find(|mean| mean["controller"] == name).unwrap();
        own["saving_ratio"]["mean"].as_f64().unwrap()
    };
    assert!(mean("fixed").abs() < 1e-9 && mean("oracle") > 0.05 && mean("frequency") > 0.02, "{report}");
    let (_, error, good) = run(dir.path(), &["backtest", "--plant", "measured"]);
    assert!(!good && error.contains("--table"), "{error}");
}

#[test]
fn zeus_tables_as_they_are() {
    let Some(data) = shared_data() else { return };
    let dir = tempfile::tempdir().unwrap();
    let folder = data.join("zeus-nsdi23");
    let tune = |file: &str, more: &[&str]| {
        let path = folder.join(file).display().to_string();
        let maps = ["power_limit_watts=power_limit", "duration_seconds=time_per_epoch", "mean_power_watts=average_power"];
        let mut args =
            vec!["tune", &path, "--json", "--method", "measured", "--max-slowdown", "0.1", "--knob", "power_limit_watts"];
        for map in &maps {
            args.extend(["--map", map]);
        }
        args.extend(more);
        json(eadt(dir.path(), &args))
    };
    for (file, count, least, within) in
        [("summary_power_v100.csv", 68, 0.21360, 0.14748), ("summary_power_rtx6000.csv", 51, 0.20514, 0.15552)]
    {
        let result = tune(file, &["--by", "dataset,network,optimizer,batch_size"]);
        let groups = result["groups"].as_array().unwrap();
        assert_eq!(groups.len(), count, "{file}");
        let mean = |choice: &str| groups.iter().map(|g| g[choice]["saving_ratio"].as_f64().unwrap()).sum::<f64>() / count as f64;
        near(file, &mean("min_energy").into(), least, 5e-5);
        near(file, &mean("constrained").into(), within, 5e-5);
    }
    let runs = folder.join("summary_train.csv").display().to_string();
    let result = tune(
        "summary_power_v100.csv",
        &[
            "--by",
            "dataset,network,optimizer",
            "--epochs",
            &runs,
            "--target",
            "imagenet=0.65",
            "--target",
            "cifar100=0.6",
            "--target",
            "librispeech=40",
            "--target",
            "squad=84",
            "--target",
            "sentiment140=0.84",
            "--target",
            "movielens-1m=0.41",
        ],
    );
    for (dataset, batch_size, watts, joules) in [
        ("imagenet", 360, 150.0, 12_498_700.0),
        ("cifar100", 128, 100.0, 28_480.0),
        ("librispeech", 32, 100.0, 5_451_200.0),
        ("squad", 8, 125.0, 1_175_000.0),
        ("sentiment140", 32, 125.0, 2_029_500.0),
        ("movielens-1m", 16_384, 150.0, 1_079.0),
    ] {
        let all = result["energy_to_accuracy"].as_array().unwrap();
        let own = all.iter().filter(|found| found["by"]["dataset"] == dataset && found["min_energy"].is_object());
        let energy = |found: &&Value| found["min_energy"]["energy_joules"].as_f64().unwrap();
        let best = &own.min_by(|a, b| energy(a).total_cmp(&energy(b))).unwrap()["min_energy"];
        assert_eq!((best["batch_size"].as_u64(), best["setting"].as_f64()), (Some(batch_size), Some(watts)), "{dataset}: {best}");
        near(dataset, &best["energy_joules"], joules, 5e-4);
    }
}

#[test]
fn a100_series_are_aggregated() {
    let Some(data) = shared_data() else { return };
    let dir = tempfile::tempdir().unwrap();
    let raw = dir.path().join("raw");
    std::fs::create_dir(&raw).unwrap();
    for entry in std::fs::read_dir(data.join("a100-dcgmi-raw")).unwrap() {
        let from = entry.unwrap().path();
        std::fs::copy(&from, raw.join(from.file_name().unwrap())).unwrap();
    }
    std::fs::write(raw.join("GA100-bad-1200-0.txt"), "#Entity POWER TOTEC\n GPU 0 x 1\n").unwrap();
    let (raw, out) = (raw.display().to_string(), dir.path().join("points.csv").display().to_string());
    let args = ["tune", "aggregate", &raw, "--format", "dcgmi", "--interval", "20ms", "--out", &out, "--json"];
    let summary = json(eadt(dir.path(), &args));
    assert_eq!((summary["files"].as_u64(), summary["points"].as_array().unwrap().len()), (Some(6), 6), "{summary}");
    assert!(summary["bad"][0].as_str().unwrap().contains("GA100-bad-1200-0.txt"), "{summary}");
    assert!(summary["not_matching"][0].as_str().unwrap().contains("README"), "{summary}");
    let args = ["tune", &out, "--by", "workload,gpu_model", "--max-slowdown", "50%", "--method", "measured", "--json"];
    let result = json(eadt(dir.path(), &args));
    let lud = group(&result, &[("workload", "lud"), ("gpu_model", "GA100")]);
    assert_eq!(lud["min_energy"]["setting"], 1005.0, "{lud}");
}
