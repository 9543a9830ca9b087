//! `eadt doctor` on this machine alone: every finding that needs no Kafka, with its remedy.

use crate::support;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use support::{eadt, files, text};

/// The report, and whether the program ended well.
fn report(mut command: Command) -> (Vec<Value>, bool) {
    command.arg("--json");
    let (out, err, good) = text(command);
    let report: Value = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}{err}"));
    assert_eq!(report["healthy"], good, "{out}");
    let findings = report["findings"].as_array().unwrap().clone();
    for finding in &findings {
        let has_remedy = matches!(finding["state"].as_str().unwrap(), "wrong" | "notice");
        assert_eq!(finding["remedy"].is_string(), has_remedy, "what is wrong has a remedy, what is right has none: {finding}");
    }
    (findings, good)
}

/// The findings of one check in one state.
fn findings_of(findings: &[Value], check: &str, state: &str) -> Vec<String> {
    let matching = findings.iter().filter(|finding| finding["check"] == check && finding["state"] == state);
    matching.map(|finding| finding["about"].as_str().unwrap().to_owned()).collect()
}

/// A data folder with a log and an archive, made by a short simulation.
fn made(dir: &Path) {
    let mut up = eadt(dir, &["up", "--speed", "max", "--duration", "20m", "--no-view", "--json"]);
    up.env("EADT_ARCHIVER__ROLL_SECONDS", "0.1");
    let (_, err, good) = text(up);
    assert!(good, "{err}");
}

#[test]
fn a_new_machine_and_a_used_one_are_well() {
    let dir = tempfile::tempdir().unwrap();
    let fresh = dir.path().join("not/there/yet");
    let (findings, good) = report(eadt(&fresh, &["doctor"]));
    assert!(good, "{findings:#?}");
    assert!(findings_of(&findings, "folders", "ok")[0].contains("can be created"), "{findings:#?}");
    assert_eq!(findings_of(&findings, "log", "notice").len(), 1, "{findings:#?}");
    assert!(!fresh.exists(), "the doctor makes nothing");

    made(dir.path());
    let before = files(&dir.path().join("archive"));
    let (findings, good) = report(eadt(dir.path(), &["doctor"]));
    assert!(good, "{findings:#?}");
    for check in ["settings", "folders", "disk", "log", "topics", "archive"] {
        assert!(!findings_of(&findings, check, "ok").is_empty() || check == "disk", "{check}: {findings:#?}");
    }
    assert_eq!(files(&dir.path().join("archive")), before, "the doctor changes nothing");
    let (out, _, good) = text(eadt(dir.path(), &["doctor"]));
    assert!(good && out.contains("archive") && out.contains("ok"), "{out}");
}

#[test]
fn settings_that_cannot_be_used_are_found() {
    let dir = tempfile::tempdir().unwrap();
    let with = |text: &str| {
        let file = dir.path().join("eadt.toml");
        std::fs::write(&file, text).unwrap();
        report(eadt(dir.path(), &["doctor", "--config", file.to_str().unwrap()]))
    };
    for (file, part) in [
        ("[procesor]\nwindow_seconds = 30\n", "processor"),
        ("[processor]\nwindow_seconds = 0\n", "processor.window_seconds"),
        ("[archiver]\nroll_seconds = -1\n", "archiver.roll_seconds"),
        ("[bus.security]\nusername = \"alice\"\n", "bus.security.username is set"),
        ("[bus.security]\npassword = \"x\"\n", "bus.security.password is a secret"),
    ] {
        let (findings, good) = with(file);
        let wrong = findings_of(&findings, "settings", "wrong");
        assert!(!good && wrong.iter().any(|about| about.contains(part)), "{file}: {findings:#?}");
    }
    let (findings, good) = with("[http]\naddress = \"127.0.0.1:9464\"\n");
    assert!(good && findings_of(&findings, "settings", "notice").is_empty(), "{findings:#?}");
    let mut open = eadt(dir.path(), &["doctor"]);
    open.env("EADT_HTTP__ADDRESS", "0.0.0.0:9464");
    let (findings, good) = report(open);
    assert!(good && findings_of(&findings, "settings", "notice")[0].contains("other machines"), "{findings:#?}");
}

#[test]
fn folders_that_cannot_be_written_or_anybody_may_change_are_found() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a file");
    std::fs::write(&file, "").unwrap();
    let (findings, good) = report(eadt(&file.join("data"), &["doctor"]));
    assert!(!good && findings_of(&findings, "folders", "wrong")[0].contains("is not a folder"), "{findings:#?}");
    // No user can write there, not even root.
    let (findings, good) = report(eadt(Path::new("/proc/eadt"), &["doctor"]));
    assert!(!good && findings_of(&findings, "folders", "wrong")[0].contains("cannot write to /proc"), "{findings:#?}");
    // The same file system has no space.
    assert!(!findings_of(&findings, "disk", "wrong").is_empty(), "{findings:#?}");
    let open = dir.path().join("open");
    std::fs::create_dir(&open).unwrap();
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o777)).unwrap();
    let (findings, good) = report(eadt(&open, &["doctor"]));
    assert!(!good && findings_of(&findings, "folders", "wrong")[0].contains("every user"), "{findings:#?}");
}

#[test]
fn secrets_that_everybody_may_read_are_found() {
    let dir = tempfile::tempdir().unwrap();
    let secret = dir.path().join("password");
    std::fs::write(&secret, "x").unwrap();
    let kafkas = &["EADT_BUS__SECURITY__PASSWORD_FILE"][..];
    // A key is of no use without its certificate.
    let progresss = &["EADT_COLLECTOR__PROGRESS__KEY", "EADT_COLLECTOR__PROGRESS__CERTIFICATE"][..];
    for variables in [kafkas, progresss] {
        for (mode, state) in [(0o644, "wrong"), (0o640, "ok"), (0o600, "ok")] {
            std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(mode)).unwrap();
            let mut command = eadt(dir.path(), &["doctor"]);
            command.envs(variables.iter().map(|variable| (variable, &secret)));
            let (findings, _) = report(command);
            let about = findings_of(&findings, "secrets", state);
            assert!(
                about.len() == 1 && about[0].contains("may read") == (state == "wrong"),
                "{variables:?} {mode:o}: {findings:#?}"
            );
        }
    }
}

#[test]
fn a_file_of_tokens_that_everybody_may_change_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let tokens = dir.path().join("tokens.json");
    std::fs::write(&tokens, r#"{"tokens":[]}"#).unwrap();
    // It holds hashes, which any user may read.
    for (mode, state) in [(0o666, "wrong"), (0o642, "wrong"), (0o664, "ok"), (0o644, "ok"), (0o600, "ok")] {
        std::fs::set_permissions(&tokens, std::fs::Permissions::from_mode(mode)).unwrap();
        let mut command = eadt(dir.path(), &["doctor"]);
        command.env("EADT_COLLECTOR__PROGRESS__TOKENS_FILE", &tokens);
        let (findings, good) = report(command);
        assert!(findings_of(&findings, "secrets", state).len() == 1 && good == (state == "ok"), "{mode:o}: {findings:#?}");
        let shown = format!("every user of this machine may change {}", tokens.display());
        assert_eq!(findings_of(&findings, "secrets", "wrong").iter().any(|about| about.starts_with(&shown)), state == "wrong");
    }
}

/// A list of plain tokens, as the dashboard reads them, is no file of token hashes.
#[test]
fn a_file_of_tokens_that_the_collector_cannot_use_is_found_and_not_quoted() {
    let dir = tempfile::tempdir().unwrap();
    let tokens = dir.path().join("tokens.json");
    for text in
        ["[\"M4RKsecret77\"]", "\"M4RKsecret77\"", "{\"M4RKsecret77\":1}", "{\"tokens\":\"M4RKsecret77\"}", "M4RKsecret77"]
    {
        std::fs::write(&tokens, text).unwrap();
        let with = |arguments: &[&str]| {
            let mut command = eadt(dir.path(), arguments);
            command.env("EADT_COLLECTOR__PROGRESS__TOKENS_FILE", &tokens).env("EADT_COLLECTOR__PROGRESS__LISTEN", "127.0.0.1:0");
            command
        };
        let (findings, good) = report(with(&["doctor"]));
        let about = findings_of(&findings, "files", "wrong");
        assert!(!good && about.len() == 1 && about[0].contains("line 1, column"), "{text}: {findings:#?}");
        for arguments in [
            &["token", "list"][..],
            &["token", "create", "--namespace", "a"],
            &["token", "revoke", "x"],
            &["up", "--gpus", "none", "--no-view", "--duration", "2"],
            &["doctor"],
        ] {
            let out = with(arguments).output().unwrap();
            let shown = [String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr)].concat();
            assert!(!out.status.success() && !shown.contains("M4RKsecret77"), "{arguments:?} {text}: {shown}");
        }
        assert_eq!(std::fs::read_to_string(&tokens).unwrap(), text);
    }
}

#[test]
fn a_broker_that_is_away_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = eadt(dir.path(), &["doctor"]);
    command.env("KAFKA_BROKERS", "127.0.0.1:1");
    let (findings, good) = report(command);
    assert!(!good && findings_of(&findings, "broker", "wrong")[0].contains("127.0.0.1:1"), "{findings:#?}");
}

#[test]
fn a_log_that_is_in_use_damaged_or_of_another_archive_is_found() {
    let dir = tempfile::tempdir().unwrap();
    made(dir.path());
    // In use: no fault, but not checked.
    let elsewhere = tempfile::tempdir().unwrap();
    let log = elsewhere.path().join("up.log");
    let up = eadt(dir.path(), &["up", "--speed", "1", "--no-view"])
        .stdout(std::process::Stdio::null())
        .stderr(std::fs::File::create(&log).unwrap())
        .spawn()
        .unwrap();
    let up = support::Running(up);
    let began = std::time::Instant::now();
    while !std::fs::read_to_string(&log).unwrap().contains("metrics and health") {
        assert!(began.elapsed() < std::time::Duration::from_mins(1), "{}", std::fs::read_to_string(&log).unwrap());
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let (findings, good) = report(eadt(dir.path(), &["doctor"]));
    assert!(good && findings_of(&findings, "log", "unchecked").len() == 1, "{findings:#?}");
    drop(up);

    // Topics that were changed from outside.
    let mut fewer = eadt(dir.path(), &["doctor"]);
    fewer.env("EADT_TOPICS__PARTITIONS", "7");
    let (findings, good) = report(fewer);
    let wrong = findings_of(&findings, "topics", "wrong");
    assert!(!good && wrong.iter().any(|about| about.contains("4 partitions instead of 7")), "{findings:#?}");

    // A file that was removed from the archive, and one that was spoilt.
    let archive = dir.path().join("archive");
    let parquet: Vec<String> =
        files(&archive).into_iter().map(|(path, _)| path).filter(|path| path.ends_with(".parquet")).collect();
    let telemetry: Vec<&String> = parquet.iter().filter(|path| path.starts_with("topic=gpu.telemetry.v1")).collect();
    assert!(telemetry.len() >= 3, "{parquet:#?}");
    let newest = archive.join(telemetry.last().unwrap());
    let whole = std::fs::read(&newest).unwrap();
    std::fs::write(&newest, &whole[..whole.len() / 2]).unwrap();
    let (findings, good) = report(eadt(dir.path(), &["doctor"]));
    assert!(!good && findings_of(&findings, "archive", "wrong").iter().any(|about| about.contains("damaged")), "{findings:#?}");
    std::fs::write(&newest, &whole).unwrap();
    let record = files(&archive).into_iter().map(|(path, _)| path).find(|path| path.starts_with("_archived/id+")).unwrap();
    std::fs::remove_file(archive.join(record)).unwrap();
    let (findings, _) = report(eadt(dir.path(), &["doctor"]));
    assert!(
        findings_of(&findings, "archive", "notice").iter().any(|about| about.contains("no record of its id")),
        "{findings:#?}"
    );

    // A log of another life beside the archive.
    std::fs::remove_dir_all(dir.path().join("log")).unwrap();
    let (_, err, good) = text(eadt(dir.path(), &["topics", "apply"]));
    assert!(!good, "there is no log to apply to: {err}");
    let other = tempfile::tempdir().unwrap();
    let mut short = eadt(other.path(), &["up", "--speed", "max", "--duration", "1m", "--no-view", "--json"]);
    short.env("EADT_ARCHIVER__LOCATION", other.path().join("elsewhere"));
    assert!(text(short).2);
    std::fs::rename(other.path().join("log"), dir.path().join("log")).unwrap();
    let (findings, good) = report(eadt(dir.path(), &["doctor"]));
    assert!(
        !good && findings_of(&findings, "archive", "wrong").iter().any(|about| about.contains("of another log")),
        "{findings:#?}"
    );

    // A store that is no store.
    for (path, _) in files(&dir.path().join("log")) {
        std::fs::write(dir.path().join("log").join(path), "not a store").unwrap();
    }
    let (findings, good) = report(eadt(dir.path(), &["doctor"]));
    assert!(!good && !findings_of(&findings, "log", "wrong").is_empty(), "{findings:#?}");
}

#[test]
fn a_gap_in_the_archive_is_found() {
    let dir = tempfile::tempdir().unwrap();
    made(dir.path());
    let archive = dir.path().join("archive");
    // A file with others on both sides, of one partition.
    let mut by_partition: std::collections::BTreeMap<String, Vec<String>> = std::collections::BTreeMap::new();
    for (path, _) in files(&archive).into_iter().filter(|(path, _)| path.ends_with(".parquet")) {
        let name = path.rsplit('/').next().unwrap();
        let of = name.rsplit_once('+').map_or(name, |(of, _)| of);
        by_partition.entry(of.to_owned()).or_default().push(path.clone());
    }
    let middle = by_partition.values().find(|paths| paths.len() >= 3).map(|paths| paths[1].clone());
    let middle = middle.unwrap_or_else(|| panic!("no partition has three files: {by_partition:#?}"));
    std::fs::remove_file(archive.join(middle)).unwrap();
    let (findings, good) = report(eadt(dir.path(), &["doctor"]));
    assert!(
        !good && findings_of(&findings, "archive", "wrong").iter().any(|about| about.contains("lacks offsets")),
        "{findings:#?}"
    );

    // All files: only the record of the archived range is left.
    for entry in std::fs::read_dir(&archive).unwrap().map(Result::unwrap) {
        if entry.file_name() != "_archived" {
            std::fs::remove_dir_all(entry.path()).unwrap();
        }
    }
    let (findings, good) = report(eadt(dir.path(), &["doctor"]));
    let wrong = findings_of(&findings, "archive", "wrong");
    assert!(!good && wrong.iter().any(|about| about.contains("gpu.telemetry.v1 partition")), "{findings:#?}");
}
