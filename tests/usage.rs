//! Values that options do not take: refused with status 2, the option, the value and what is right, before anything is done.

use crate::support;

use std::path::Path;

use support::{eadt, status};

/// Runs, and returns the error of a command line that must not be possible.
fn refused(dir: &Path, arguments: &[&str]) -> String {
    let mut command = eadt(dir, arguments);
    command.current_dir(dir);
    let (err, code) = status(command);
    assert_eq!(code, Some(2), "{arguments:?}: {err}");
    err
}

#[test]
fn a_value_that_an_option_does_not_take_is_a_usage_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let csv = path("t.csv", "time,w\n2025-02-03T10:00:00Z,100\n2025-02-03T10:00:10Z,100\n");
    let points = path("points.csv", "sm_clock_mhz,duration_seconds,energy_joules\n1410,10,3000\n1200,11,2500\n1000,12,2400\n");
    let log = path("log.jsonl", "");
    let result = path("result.json", "{}");
    let import = ["import", "csv", &csv, "--map", "power_watts=w", "--out", "out.jsonl"];
    let tune = ["tune", &points, "--max-slowdown", "0.05"];
    let aggregate = ["tune", "aggregate", &csv, "--format", "dcgmi", "--out", "p.csv"];
    let profile = ["profile", "--knob", "mps_thread_percentage", "--simulate", "A100:compute", "--out", "p.csv"];
    let replay = ["replay", &log];
    let report = ["report", "nowhere"];
    let token = ["token", "create", "--file", "tokens.json"];
    let choose = ["partition", "choose", "--solo", &csv, "--workloads", "a,b"];
    for (command, option, value, expected) in [
        (&["up"][..], "--duration", "-1h", "such as 20ms, 90s, 15m, 6h or 2d"),
        (&["up"], "--duration", "soon", "such as 20ms"),
        (&["up", "--gpus", "none"], "--duration", "0s", "such as 20ms"),
        (&["up"], "--speed", "-1", "0.001"),
        (&["up", "--kafka", "127.0.0.1:1"], "--group-prefix", "a b", "letters, digits"),
        (&["up", "--kafka", "127.0.0.1:1"], "--topic-prefix", "a b", "letters, digits"),
        (&["up"], "--kafka", "", "host:port"),
        (&["up"], "--log", "eadt=loud", "give a level such as info"),
        (&["top", "--once"], "--since", "-2d", "such as 20ms"),
        (&["get", "gpus"], "--since", "yesterday", "such as 20ms"),
        (&import, "--interval", "-1s", "20ms"),
        (&import, "--interval", "20", "20ms"),
        (&import, "--time-zone", "Mars", "Europe/Berlin"),
        (&import, "--time-zone", "-99", "Europe/Berlin"),
        (&import, "--time-format", "weekly", "rfc3339"),
        (&import, "--date", "yesterday", "2025-02-03"),
        (&import, "--workload", "A B/c", "namespace/name"),
        (&import, "--workload", "lab", "namespace/name"),
        (&import, "--map", "power=w", "power_watts"),
        (&import, "--map", "w", "FIELD=COLUMN"),
        (&import, "--decimal", "dot", "point"),
        (&replay, "--window", "-5", "within 1 and 86400"),
        (&replay, "--window", "nan", "within 1 and 86400"),
        (&replay, "--window", "1e12", "within 1 and 86400"),
        (&report, "--time-zone", "Mars", "Europe/Berlin"),
        (&report, "--currency", "bananas", "EUR"),
        (&report, "--baseline", "lab/bert=-1", "="),
        (&report, "--price-per-kwh", "nan", "number"),
        (&report, "--carbon-grams-per-kwh", "-5", "at least 0"),
        (&["archive", "compact"], "--before", "tomorrow", "2026-01-31"),
        (&["dashboard", "nowhere"], "--address", "here", "127.0.0.1:9464"),
        (&token, "--namespace", "A B", "letters, digits"),
        (&token, "--namespace", "", "namespace"),
        (&["token", "create", "--namespace", "a", "--file", "t.json"], "--expires", "-1d", "such as 20ms"),
        (&["record", "--out", "r.jsonl"], "--topics", "weather", "no topic is named"),
        (&["tail", "--until-end"], "", "weather", "no topic is named"),
        (&["topics", "acls", "processor", "--kafka", "127.0.0.1:1"], "--grant", "me", "User:NAME"),
        (&tune, "--confidence", "0.4", "above 0.5"),
        (&tune, "--confidence", "nan", "ratio"),
        (&tune, "--max-power-watts", "-1", "above 0"),
        (&tune, "--knob", "memory_clock_mhz", "not turned alone"),
        (&tune, "--knob", "sm_clock_mhz,sm_clock_mhz", "named twice"),
        (&tune, "--reference", "batch_size", "batch_size=64"),
        (&tune, "--reference", "batch_size=64", "second knob"),
        (&tune, "--map", "energy_joules", "FIELD=COLUMN"),
        (&[&tune[..], &["--epochs", &csv]].concat(), "--target", "high", "0.6"),
        (&["tune", "export", &result, "--as", "json"], "--only", "bert", "workload=bert"),
        (&aggregate, "--pattern", "{a", "brace"),
        (&aggregate, "--pattern", "{a}", "sm_clock_mhz"),
        (&aggregate, "--interval", "20", "20ms"),
        (&aggregate, "--time-format", "weekly", "rfc3339"),
        (&profile, "--settings", "200,110", "no percentage"),
        (&profile, "--settings", "50", "several settings"),
        (&["profile", "--knob", "sm_clock_mhz", "--out", "p.csv"], "--simulate", "B300", "V100, A100"),
        (&["profile", "--knob", "sm_clock_mhz", "--out", "p.csv"], "--simulate", "A100:chess", "compute, memory"),
        (&["profile", "--knob", "sm_clock_mhz", "--out", "p.csv"], "--settle", "-5s", "20ms"),
        (&["backtest"], "--controller", "matrx", "matrix"),
        (&["backtest", "--archive", "nowhere"], "--controller", "matrx", "matrix"),
        (&["backtest"], "--scenario", "random-weeks", "random-days"),
        (&["partition", "evaluate"], "--training", "1.5", "below 1"),
        (&["partition", "simulate", "--out", "m"], "--clocks", "9000", "runs from"),
        (&choose, "--risk", "high", "`mean`"),
    ] {
        let given = [command, &if option.is_empty() { vec![value] } else { vec![option, value] }].concat();
        let err = refused(dir.path(), &given);
        assert!(err.contains(option) && err.contains(value), "{given:?}: {err}");
        assert!(err.contains(expected), "{given:?}: it does not have {expected:?}: {err}");
    }
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 4, "nothing was done: {left:?}");
}

#[test]
fn options_that_are_not_possible_together_are_a_usage_error_and_what_fails_is_none() {
    let dir = tempfile::tempdir().unwrap();
    for (arguments, expected) in [
        (&["up", "--gpus", "none", "--speed", "2"][..], "--speed is of the simulation"),
        (&["up", "--gpus", "none", "--kubernetes"], "--kubernetes runs simulated GPUs"),
        (&["up", "--topic-prefix", "a."], "--topic-prefix is of a Kafka"),
        (&["optimizer", "--json"], "--json needs --once or --dry-run"),
        (&["backtest", "--kafka", "127.0.0.1:1"], "--kafka means nothing to `eadt backtest`"),
        (&["--data-dir", "d", "policy", "crd"], "--data-dir means nothing to `eadt policy crd`"),
        (&["import", "csv", "--out", "a.jsonl"], "no file to import"),
        (&["import", "excel", "a.xls", "--out", "a.jsonl"], "neither a format"),
        (&["import", "mlperf", "a.log", "--map", "power_watts=w", "--out", "a.jsonl"], "--map is for csv"),
        (&["import", "dcgmi", "a.log", "--out", "a.jsonl"], "--interval 20ms"),
        (&["profile", "--knob", "sm_clock_mhz", "--out", "p.csv"], "--settings is needed"),
        (&["backtest", "--table", "a.csv"], "--table is for tables of boards: use --plant measured"),
        (&["backtest", "--archive", "nowhere", "--by", "workload"], "--by is for tables of boards"),
        (&["backtest", "--archive", "nowhere", "--power-budget", "500"], "--power-budget is of simulated jobs"),
        (
            &["backtest", "--plant", "measured", "--table", "a.csv", "--html", "b.html"],
            "--html has no effect with --plant measured",
        ),
        (&["backtest", "--plant", "measured", "--table", "a.csv", "--scenario", "default"], "--scenario has no effect"),
    ] {
        std::fs::write(dir.path().join("a.log"), "").unwrap();
        let err = refused(dir.path(), arguments);
        assert!(err.contains(expected), "{arguments:?}: {err}");
    }
    let (err, code) = status(eadt(dir.path(), &["report", "nowhere"]));
    assert_eq!(code, Some(1), "{err}");
}

#[test]
fn files_without_an_end_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let here = dir.path().to_str().unwrap();
    for arguments in [
        &["training-config", "/dev/zero"][..],
        &["--config", "/dev/zero", "config", "show"],
        &["report", here, "--tariff", "/dev/zero"],
        &["report", here, "--carbon", "/dev/zero"],
        &["partition", "choose", "--solo", "/dev/zero", "--workloads", "a,b"],
        &["up", "--scenario", "/dev/zero"],
        &["tune", "export", "/dev/zero", "--as", "json"],
        &["tune", "/dev/null", "--max-slowdown", "0.05", "--preset", "/dev/zero"],
        &["top", "--url", "http://127.0.0.1:1", "--token-file", "/dev/zero"],
    ] {
        let (err, code) = status(eadt(dir.path(), arguments));
        assert!(code == Some(1) && err.contains("iB: check that this is the right file"), "{arguments:?}: {err}");
    }
}

#[test]
fn a_password_in_a_value_that_is_refused_is_not_shown() {
    let dir = tempfile::tempdir().unwrap();
    for url in ["http://user:hunter2@127.0.0.1:9580", "https://user:hunter2@page.example", "http://user:p@ss/hunter2@127.0.0.1:1"]
    {
        let err = refused(dir.path(), &["top", "--url", url]);
        assert!(err.contains("--url <URL>") && !err.contains("hunter2"), "{err}");
    }
}

#[test]
fn settings_that_are_refused_show_the_warnings_about_all_old_names() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("old.toml");
    let old = "[processor]\nforeign_partitions = \"process\"\n[processor.sm_partition]\nwindows_min = 0\n";
    std::fs::write(&path, old).unwrap();
    for command in [&["config", "show"][..], &["doctor"]] {
        let arguments = [command, &["--config", path.to_str().unwrap()]].concat();
        let (err, code) = status(eadt(dir.path(), &arguments));
        assert_eq!(code, Some(1), "{err}");
        for name in ["processor.foreign_partitions", "processor.sm_partition"] {
            assert!(err.contains(&format!("warning: setting {name} from ")), "{err}");
        }
    }
}
