//! `eadt get`, `describe` and `tail` on a record that has ended.

use crate::support;

use eadt_bus::embedded::{EmbeddedLog, EmbeddedOptions};
use support::{eadt, json, status, text};

/// An hour of the default scenario. Its time is simulated and has nothing to do with the clock's.
#[test]
fn lists_count_back_from_the_newest_event_and_refuse_names_that_do_not_exist() {
    let dir = tempfile::tempdir().unwrap();
    json(eadt(dir.path(), &["up", "--speed", "max", "--duration", "1h", "--json", "--no-view"]));
    let list = |args: &[&str]| json(eadt(dir.path(), &[args, &["-o", "json"]].concat())).as_array().unwrap().clone();

    let energy = |rows: &[serde_json::Value]| rows.iter().filter_map(|row| row["energy_joules"].as_f64()).sum::<f64>();
    let (whole, last) = (list(&["get", "workloads"]), list(&["get", "workloads", "--since", "10m"]));
    assert_eq!((whole.len(), last.len()), (2, 2));
    let part = energy(&last) / energy(&whole);
    assert!((0.1..0.3).contains(&part), "ten minutes of an hour: {part}");
    let (all, last) = (list(&["get", "decisions", "--all"]), list(&["get", "decisions", "--all", "--since", "10m"]));
    assert!(!last.is_empty() && last.len() < all.len(), "{} of {}", last.len(), all.len());
    let (err, code) = status(eadt(dir.path(), &["get", "decisions", "--since", "20ms"]));
    assert_eq!(code, Some(0), "{err}");
    assert!(err.contains("before the newest event, which is of 2026-01-01T01:00"), "{err}");
    let (line, err, good) = text(eadt(dir.path(), &["top", "--once", "--since", "10m"]));
    assert!(good && line.contains(" · 2 workloads · "), "{line}{err}");

    // If power is known the speed is of the wide table; a verdict is not that of its row's own change.
    let (table, _, good) = text(eadt(dir.path(), &["get", "workloads"]));
    assert!(good && !table.contains("SAMPLES/S"), "{table}");
    let (table, _, good) = text(eadt(dir.path(), &["get", "decisions"]));
    assert!(good && table.contains(" VERDICT ON LAST "), "{table}");

    for kind in ["workloads", "decisions"] {
        let (out, err, good) = text(eadt(dir.path(), &["get", kind, "nix", "--all"]));
        assert!(
            !good
                && out.is_empty()
                && err.contains("no workload is named \"nix\" in the whole record; there are eadt/llm-training, "),
            "{out}{err}"
        );
        let (out, err, good) = text(eadt(dir.path(), &["get", kind, "llm-training", "llm-trainig", "--all"]));
        assert!(!good && out.contains("eadt/llm-training"), "what is there is listed: {out}");
        assert!(
            err.contains("no workload is named \"llm-trainig\" in the whole record; did you mean eadt/llm-training?"),
            "{err}"
        );
        let (out, err, good) = text(eadt(dir.path(), &["get", kind, "llm-training", "-n", "lab"]));
        assert!(!good && err.contains("\"llm-training\" in namespace lab in the whole record; there is none"), "{out}{err}");
    }
    let (_, err, good) = text(eadt(dir.path(), &["get", "gpus", "GPU-nix"]));
    assert!(!good && err.contains("no GPU or node is named \"GPU-nix\" in the whole record"), "{err}");
    let (err, code) = status(eadt(dir.path(), &["get", "gpus", "--since", "10m"]));
    assert!(code == Some(2) && err.contains("--since does not go with gpus"), "{err}");
    let (err, code) = status(eadt(dir.path(), &["describe", "workload", "vision"]));
    assert!(code == Some(1) && err.contains("no workload is named \"vision\" here; there are eadt/llm-training"), "{err}");

    // A description has the forms of a list; its figures are those of the list.
    let describe = |form: &[&str]| text(eadt(dir.path(), &[&["describe", "workload", "llm-training"][..], form].concat()));
    let row = whole.iter().find(|row| row["workload"] == "eadt/llm-training").unwrap();
    let (figures, err, good) = describe(&["-o", "csv"]);
    assert!(good && figures.starts_with("figure,value\nstate,ended\n"), "{figures}{err}");
    assert!(figures.contains(&format!("\nenergy_joules,{}\n", row["energy_joules"])), "{figures}");
    let forms: Vec<String> = [&["-o", "json"][..], &["--json"], &["-o", "table"], &[], &["-o", "wide"]]
        .into_iter()
        .map(|form| describe(form).0)
        .collect();
    assert!(forms[0] == forms[1] && forms[0].contains("\"earlier_decisions\""), "{}", forms[0]);
    assert!(forms[2] == forms[3] && forms[4].lines().count() >= forms[3].lines().count(), "{}", forms[4]);
    let (err, code) = status(eadt(dir.path(), &["describe", "workload", "llm-training", "--json", "-o", "csv"]));
    assert_eq!(code, Some(2), "{err}");
    // Sums of a part of the run are not called the run's.
    let (table, err, good) = text(eadt(dir.path(), &["get", "workloads", "--since", "10m", "-o", "wide"]));
    assert!(good && table.contains("J/SAMPLE OF LAST 10 MIN") && table.contains("ENERGY OF LAST 10 MIN"), "{table}{err}");

    let tail = |key: &str| text(eadt(dir.path(), &["tail", "actuations", "--until-end", "--workload", key]));
    let (out, err, good) = tail("llm-training");
    assert!(
        !good && out.is_empty() && err.contains("no record has the key \"llm-training\"; did you mean eadt/llm-training?"),
        "{err}"
    );
    let (out, err, good) = tail("eadt/llm-training");
    assert!(good && (!out.is_empty() || err.contains("no record of actuations.v1 has the key")), "{out}{err}");
    // The states of the processor have keys that no list of names knows.
    let (states, err, good) = text(eadt(dir.path(), &["tail", "processor-state", "--until-end", "-o", "raw"]));
    let key = states.lines().next().and_then(|line| line.split(' ').nth(3)).unwrap_or_default();
    assert!(good && key.contains('#'), "{states}{err}");
    let (out, err, good) = tail(key);
    assert!(good && out.is_empty() && err.contains("processor-state.v1 have it"), "{out}{err}");

    // The log of a running `up` cannot be opened, so that only the archive is searched.
    let _log = EmbeddedLog::open(&dir.path().join("log"), EmbeddedOptions::default()).unwrap();
    for (kind, what) in [("workloads", "workload"), ("decisions", "workload"), ("gpus", "GPU or node")] {
        let (_, err, good) = text(eadt(dir.path(), &["get", kind, "nix"]));
        assert!(!good && err.contains("warning: only what is archived is shown"), "{err}");
        assert!(err.contains(&format!("no {what} is named \"nix\" in what is archived; ")), "{err}");
    }
}

/// As `up --gpus none` leaves it: only the job's own reports.
#[test]
fn a_job_without_known_power_is_listed_with_its_speed() {
    let dir = tempfile::tempdir().unwrap();
    let row = |row: u32| format!("2026-01-01T00:{:02}:{:02}Z,{}\n", row / 60, row % 60, row * 10);
    let rows = (0..200).map(row).collect::<Vec<String>>().concat();
    std::fs::write(dir.path().join("t.csv"), format!("time,done\n{rows}")).unwrap();
    for arguments in [
        &["import", "csv", "t.csv", "--map", "samples_total=done", "--workload", "lab/a", "--out", "t.jsonl"][..],
        &["replay", "t.jsonl", "--out", "t"],
    ] {
        let mut command = eadt(dir.path(), arguments);
        command.current_dir(dir.path());
        let (out, err, good) = text(command);
        assert!(good, "{arguments:?}: {out}{err}");
    }
    let (table, err, good) = text(eadt(dir.path(), &["get", "workloads", "--from", dir.path().join("t").to_str().unwrap()]));
    assert!(good && table.contains("LAST SAMPLES/S") && table.contains(" 10.0 ") && table.contains("  ended  "), "{table}{err}");
}
