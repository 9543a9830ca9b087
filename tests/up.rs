//! The main job as a newcomer runs it: the real program, the embedded log, the simulated cluster.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

fn eadt(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_eadt"));
    command.args(args).arg("--data-dir").arg(dir).env("EADT_HTTP__ADDRESS", "127.0.0.1:0").stdin(Stdio::null());
    command
}

fn report(dir: &Path, args: &[&str]) -> Value {
    let output = eadt(dir, args).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&output.stdout)))
}

fn signal(child: &Child, name: &str) {
    assert!(Command::new("kill").args([name, &child.id().to_string()]).status().unwrap().success());
}

fn replayed(dir: &Path, out: &str) -> Value {
    let archive = dir.join("archive");
    report(dir, &["replay", archive.to_str().unwrap(), "--check", "--json", "--out", dir.join(out).to_str().unwrap()])
}

fn files(root: &Path) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                found.push((path.strip_prefix(root).unwrap().display().to_string(), std::fs::read(&path).unwrap()));
            }
        }
    }
    found.sort();
    found
}

const RUN: &[&str] = &["up", "--speed", "max", "--duration", "6h", "--json", "--no-view"];

#[test]
fn the_loop_closes_and_the_archive_replays_to_the_same_decisions() {
    let dir = tempfile::tempdir().unwrap();
    let closing = report(dir.path(), RUN);
    let workloads = closing["workloads"].as_array().unwrap();
    assert_eq!(workloads.len(), 2, "{closing}");
    for workload in workloads {
        assert_eq!(workload["origin"], "simulated");
        assert!(workload["energy_joules"].as_f64().unwrap() > 0.0);
        assert!(workload["samples"].as_f64().unwrap() > 0.0);
    }
    let from_archive = report(dir.path(), &["report", dir.path().to_str().unwrap(), "--json"]);
    assert_eq!(from_archive["workloads"], closing["workloads"], "the archive tells what the live run told");

    let first = replayed(dir.path(), "replay-1");
    assert!(first["check"]["windows_same"].as_u64().unwrap() >= 2 * 350, "{first}");
    assert_eq!(first["check"]["differences"].as_array().unwrap().len(), 0, "{first}");
    replayed(dir.path(), "replay-2");
    assert_eq!(files(&dir.path().join("replay-1")), files(&dir.path().join("replay-2")), "byte for byte");
}

#[test]
fn the_same_seed_gives_the_same_run_also_after_kill_9() {
    let (straight, broken) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let expected = report(straight.path(), &["up", "--speed", "max", "--duration", "3h", "--json", "--no-view", "--seed", "7"]);
    // Killed a few times on its way to the same simulated end.
    for _ in 0..3 {
        let mut child = eadt(broken.path(), &["up", "--speed", "3600", "--duration", "3h", "--no-view", "--seed", "7"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(900));
        signal(&child, "-KILL");
        child.wait().unwrap();
    }
    let until = ["up", "--speed", "max", "--until", "3h", "--json", "--no-view", "--seed", "7"];
    report(broken.path(), &until);
    let resumed = report(broken.path(), &["report", broken.path().to_str().unwrap(), "--json"]);
    assert_eq!(resumed["workloads"], expected["workloads"]);
}

#[test]
fn ctrl_c_drains_prints_the_report_and_exits_0() {
    let dir = tempfile::tempdir().unwrap();
    let child = eadt(dir.path(), &["up", "--speed", "600", "--no-view", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_secs(5));
    signal(&child, "-INT");
    let began = Instant::now();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(began.elapsed() < Duration::from_secs(30));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["workloads"][0]["windows"].as_u64().unwrap() > 0);
}

#[test]
fn a_second_process_on_the_same_folder_is_told_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let mut first =
        eadt(dir.path(), &["up", "--speed", "1", "--no-view"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    std::thread::sleep(Duration::from_secs(2));
    let second = eadt(dir.path(), &["up", "--speed", "1", "--no-view"]).output().unwrap();
    signal(&first, "-TERM");
    first.wait().unwrap();
    let message = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(!second.status.success());
    assert!(message.contains("--kafka") || message.to_lowercase().contains("kafka"), "{message}");
}

#[test]
fn bad_settings_are_refused_before_anything_starts() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("eadt.toml");
    std::fs::write(&file, "[processor]\nwindow_second = 30\n").unwrap();
    let output = eadt(dir.path(), &["up", "--config", file.to_str().unwrap()]).output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success());
    assert!(message.contains("did you mean processor.window_seconds?"), "{message}");
}
