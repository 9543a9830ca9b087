//! Tests the program's messages when its surroundings fail, and that their advice works when it is followed to the
//! letter.

use crate::support;

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::Value;
use support::{LOG_WINDOWS, Running, StderrLines, eadt, files, json, signal, text};

const RUN: &[&str] = &["up", "--speed", "max", "--duration", "20m", "--json", "--no-view"];

/// The error of a run that cannot start; it prints no report.
fn refused(dir: &Path) -> String {
    let (out, err, good) = text(eadt(dir, RUN));
    assert!(!good && out.is_empty(), "{out}{err}");
    let errors: Vec<&str> = err.lines().filter(|line| line.starts_with("error: ")).collect();
    assert_eq!(errors.len(), 1, "one error and no other: {err}");
    assert!(!err.contains("panicked"), "{err}");
    errors[0].to_owned()
}

/// Follows "move PATH away" to the letter; where it is now.
fn move_away(message: &str) -> PathBuf {
    let path = message.split("move ").nth(1).and_then(|rest| rest.split(" away").next()).map(PathBuf::from);
    let path = path.unwrap_or_else(|| panic!("nothing is to be moved: {message}"));
    let elsewhere = path.with_extension("moved");
    fs::rename(&path, &elsewhere).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    elsewhere
}

fn windows(report: &Value) -> Vec<u64> {
    report["workloads"].as_array().unwrap().iter().map(|workload| workload["windows"].as_u64().unwrap()).collect()
}

/// The newest journal of the embedded log, and how much of it is used.
fn journal(dir: &Path) -> (PathBuf, usize) {
    let names = fs::read_dir(dir.join("log")).unwrap().map(|entry| entry.unwrap().path());
    let newest = names.filter(|path| path.extension().is_some_and(|end| end == "jnl")).max().unwrap();
    let used = fs::read(&newest).unwrap().iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    (newest, used)
}

/// The archive's folder can be made, and no file in it: its path would be too long.
#[test]
fn a_run_of_which_nothing_is_archived_ends_with_a_status_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let mut archive = dir.path().to_str().unwrap().to_owned();
    while archive.len() < 4080 {
        let part = "a".repeat((4080 - archive.len()).saturating_sub(1).clamp(1, 200));
        archive = format!("{archive}/{part}");
    }
    let mut up = eadt(dir.path(), &["up", "--speed", "max", "--duration", "3m", "--json", "--no-view"]);
    up.env("EADT_ARCHIVER__LOCATION", &archive).env("EADT_ARCHIVER__DRAIN_SECONDS", "0");
    let output = up.output().unwrap();
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{err}");
    assert!(err.contains("has no event of this run"), "{err}");
    assert!(!output.stdout.is_empty(), "the report is printed");
}

#[test]
fn the_advice_for_a_damaged_store_works_to_the_letter() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("data");
    let before = json(eadt(&dir, RUN));
    let copy = files(&dir);
    fs::write(dir.join("log/version"), b"what is this").unwrap();
    let message = refused(&dir);
    assert!(message.contains("the store is damaged") && message.contains("restore a copy"), "{message}");
    let moved = move_away(&message);
    let again = json(eadt(&dir, RUN));
    assert_eq!(windows(&again), windows(&before), "a new log begins at the beginning");
    // The archive is still read at its present place, as the message promises.
    let old = json(eadt(parent.path(), &["report", moved.to_str().unwrap(), "--json"]));
    assert_eq!(windows(&old), windows(&before), "{old}");
    let (archive, out) = (moved.join("archive"), parent.path().join("replayed"));
    let (out, archive) = (out.to_str().unwrap(), archive.to_str().unwrap());
    let replayed = json(eadt(parent.path(), &["replay", archive, "--check", "--json", "--out", out]));
    assert_eq!(replayed["check"]["differences"].as_array().unwrap().len(), 0, "{replayed}");
    // The other advice: a copy.
    fs::remove_dir_all(&dir).unwrap();
    for (path, bytes) in &copy {
        let path = dir.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    let on = json(eadt(&dir, RUN));
    assert!(windows(&on).iter().zip(windows(&before)).all(|(now, before)| *now > before), "it goes on from the copy: {on}");
}

#[test]
fn a_log_that_was_cut_off_is_noticed_before_anything_runs_on_it() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("data");
    let before = json(eadt(&dir, RUN));
    let (path, used) = journal(&dir);
    let whole = fs::read(&path).unwrap();
    fs::write(&path, &whole[..used / 2]).unwrap();
    let message = refused(&dir);
    assert!(message.contains("the store is damaged") && message.contains("cut off"), "{message}");
    move_away(&message);
    assert_eq!(windows(&json(eadt(&dir, RUN))), windows(&before));
}

#[test]
fn a_store_of_a_newer_version_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    json(eadt(dir.path(), RUN));
    let before = files(&dir.path().join("archive"));
    fs::write(dir.path().join("log/version"), b"FJL\x09").unwrap();
    let message = refused(dir.path());
    assert!(message.contains("a newer version of eadt wrote it") && !message.contains("damaged"), "{message}");
    fs::write(dir.path().join("log/version"), b"FJL\x03").unwrap();
    assert_eq!(files(&dir.path().join("archive")), before);
    json(eadt(dir.path(), RUN));
}

#[test]
fn an_archive_without_its_log_is_reported_before_anything_starts_and_the_advice_works() {
    let dir = tempfile::tempdir().unwrap();
    let before = json(eadt(dir.path(), RUN));
    fs::remove_dir_all(dir.path().join("log")).unwrap();
    let archive = files(&dir.path().join("archive"));
    let message = refused(dir.path());
    assert!(message.contains("is ahead of the log") && message.contains("archiver.location"), "{message}");
    assert_eq!(files(&dir.path().join("archive")), archive, "nothing was written");
    let moved = move_away(&message);
    assert_eq!(windows(&json(eadt(dir.path(), RUN))), windows(&before));
    let old = json(eadt(dir.path(), &["report", moved.to_str().unwrap(), "--json"]));
    assert_eq!(windows(&old), windows(&before));
    // The other advice: another place.
    fs::remove_dir_all(dir.path().join("log")).unwrap();
    refused(dir.path());
    let mut elsewhere = eadt(dir.path(), RUN);
    elsewhere.env("EADT_ARCHIVER__LOCATION", dir.path().join("elsewhere"));
    assert_eq!(windows(&json(elsewhere)), windows(&before));
}

#[test]
fn a_renamed_or_foreign_file_in_the_archive_is_named_and_nothing_is_written() {
    let dir = tempfile::tempdir().unwrap();
    json(eadt(dir.path(), RUN));
    let archive = dir.path().join("archive");
    let before = files(&archive);
    let (name, bytes) = before.iter().find(|(name, _)| name.starts_with("topic=decisions.v1/date=")).unwrap();
    // Inside the range of another file, where it would only be a leftover.
    let (stem, range) = name.rsplit_once('+').unwrap();
    let last: i64 = range.split_once('-').unwrap().1.trim_end_matches(".parquet").parse().unwrap();
    assert!(last > 2, "{name}");
    let inside = format!("{stem}+{:020}-{:020}.parquet", 1, 1);
    fs::write(archive.join(&inside), bytes).unwrap();
    let message = refused(dir.path());
    assert!(message.contains(&inside) && message.contains(&format!("it was written as {name}")), "{message}");
    assert!(archive.join(&inside).exists(), "it is never swept");
    fs::remove_file(archive.join(&inside)).unwrap();
    fs::write(archive.join(name.replace(range, "part-0.parquet")), b"PAR1").unwrap();
    let message = refused(dir.path());
    assert!(message.contains("part-0.parquet") && message.contains("move it out of the archive's folder"), "{message}");
    fs::remove_file(archive.join(name.replace(range, "part-0.parquet"))).unwrap();
    assert_eq!(files(&archive), before);
    json(eadt(dir.path(), RUN));
}

#[test]
fn a_busy_port_is_reported_with_the_setting_that_changes_it() {
    let dir = tempfile::tempdir().unwrap();
    let held = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = held.local_addr().unwrap().to_string();
    // `up` takes the next free one (tests/up.rs).
    let services: [&[&str]; 4] = [
        &["processor", "--kafka", "127.0.0.1:1"],
        &["archiver", "--kafka", "127.0.0.1:1"],
        &["collector", "--kafka", "127.0.0.1:1"],
        &["actuator", "--kafka", "127.0.0.1:1"],
    ];
    for args in services {
        let mut command = eadt(dir.path(), args);
        command.env("EADT_HTTP__ADDRESS", &address);
        let (out, err, good) = text(command);
        assert!(!good && out.is_empty(), "{args:?}: {out}{err}");
        let message = err.lines().find(|line| line.starts_with("error: ")).unwrap_or_else(|| panic!("{args:?}: {err}"));
        for part in [&*address, "http.address", "EADT_HTTP__ADDRESS", "in use"] {
            assert!(message.contains(part), "{args:?}: {part} is not in {message}");
        }
    }
    // As it advises.
    drop(held);
    let mut command = eadt(dir.path(), RUN);
    command.env("EADT_HTTP__ADDRESS", "127.0.0.1:0");
    json(command);
}

/// A copy of a data folder.
fn copied(from: &Path, to: &Path) {
    for (path, bytes) in files(from) {
        let path = to.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
}

/// A replay of its archive gives what is in it.
fn replays(data: &Path) {
    let elsewhere = tempfile::tempdir().unwrap();
    let (archive, out) = (data.join("archive"), elsewhere.path().join("replayed"));
    let args = ["replay", archive.to_str().unwrap(), "--check", "--json", "--out", out.to_str().unwrap()];
    assert_eq!(json(eadt(data, &args))["check"]["differences"].as_array().unwrap().len(), 0);
}

#[test]
fn a_data_folder_is_moved_copied_and_restored_as_documented() {
    let parent = tempfile::tempdir().unwrap();
    let [first, moved, backup] = ["first", "moved", "backup"].map(|name| parent.path().join(name));
    let run = |dir: &Path| json(eadt(dir, RUN));
    let straight = parent.path().join("straight");
    run(&straight);
    let expected = run(&straight);

    run(&first);
    fs::rename(&first, &moved).unwrap();
    copied(&moved, &backup);
    assert_eq!(run(&moved)["workloads"], expected["workloads"], "moved: it goes on as if it had stayed");
    // The original is lost; the copy has what was there when it was made, and goes on from there.
    fs::remove_dir_all(&moved).unwrap();
    assert_eq!(run(&backup)["workloads"], expected["workloads"], "restored");
    replays(&backup);
}

#[test]
fn a_snapshot_of_a_running_one_is_a_backup() {
    let parent = tempfile::tempdir().unwrap();
    let [live, snapshot] = ["live", "snapshot"].map(|name| parent.path().join(name));
    let args = ["up", "--speed", "600", "--no-view"];
    let mut command = eadt(&live, &args);
    command.env(LOG_WINDOWS.0, LOG_WINDOWS.1).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut running = Running(command.spawn().unwrap());
    let mut stderr = StderrLines::by(&mut running.0);
    for _ in 0..24 {
        stderr.until(" window ");
    }
    // Nothing changes while it is copied, as in a snapshot of a file system.
    signal(&running.0, "-STOP");
    copied(&live, &snapshot);
    signal(&running.0, "-CONT");
    signal(&running.0, "-TERM");
    running.0.wait().unwrap();
    let report = json(eadt(&snapshot, RUN));
    assert!(windows(&report).iter().all(|windows| *windows >= 15), "{report}");
    replays(&snapshot);
}

#[test]
fn more_partitions_are_had_as_documented() {
    let dir = tempfile::tempdir().unwrap();
    let before = json(eadt(dir.path(), RUN));
    let asked = |args: &[&str]| {
        let mut command = eadt(dir.path(), args);
        command.env("EADT_TOPICS__PARTITIONS", "6");
        command
    };
    for args in [RUN, &["topics", "apply"]] {
        let (out, err, good) = text(asked(args));
        assert!(!good && out.is_empty() && err.contains("holds data") && err.contains("use another prefix"), "{out}{err}");
    }
    let elsewhere = dir.path().join("archive-of-six");
    let mut command = asked(RUN);
    command.env("EADT_TOPICS__PREFIX", "six.").env("EADT_ARCHIVER__LOCATION", &elsewhere);
    assert_eq!(windows(&json(command)), windows(&before));
    for archive in [dir.path().join("archive"), elsewhere] {
        let report = json(eadt(dir.path(), &["report", archive.to_str().unwrap(), "--json"]));
        assert_eq!(windows(&report), windows(&before));
    }
}
