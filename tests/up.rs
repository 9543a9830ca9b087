//! The main job as a newcomer runs it: the real program, the embedded log, the simulated cluster.

use crate::support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use eadt_bus::embedded::{EmbeddedLog, EmbeddedOptions};
use eadt_bus::{Bus, ProducerRecord};
use eadt_nvml::fake::FakeLibrary;
use eadt_schemas::envelope::Envelope;
use eadt_schemas::v1::{ControllerAction, Decision, Layout, Workload};
use eadt_schemas::{EventTime, EventType};
use serde_json::Value;
use support::{LOG_WINDOWS, Running, StderrLines, eadt, files, json, signal, status, text};

fn replayed(dir: &Path, out: &str) -> Value {
    let (archive, out) = (dir.join("archive"), dir.join(out));
    json(eadt(dir, &["replay", archive.to_str().unwrap(), "--check", "--json", "--out", out.to_str().unwrap()]))
}

/// The first `count` windows and decisions of every workload, as they are in the log.
fn outputs(dir: &Path, count: usize) -> Vec<(String, Vec<Value>)> {
    let mut all = Vec::new();
    for topic in ["efficiency.windows.v1", "decisions.v1"] {
        let (out, err, good) = text(eadt(dir, &["tail", topic, "--until-end", "--json"]));
        assert!(good, "{err}");
        let events: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        for workload in ["eadt/llm-training", "eadt/vision-pretraining"] {
            let own: Vec<Value> =
                events.iter().filter(|e| e["partitionkey"] == workload).map(|e| e["data"].clone()).take(count).collect();
            all.push((format!("{topic} {workload}"), own));
        }
    }
    all
}

/// Each workload's decisions, as they are in the log.
fn decisions(dir: &Path) -> Vec<(String, Vec<Value>)> {
    outputs(dir, usize::MAX).into_iter().skip(2).collect()
}

#[test]
fn within_hours_the_matrix_changes_shares_and_replicas_keeps_one_change_and_takes_another_back() {
    let dir = tempfile::tempdir().unwrap();
    json(eadt(dir.path(), &[RUN, &["--controller", "matrix"]].concat()));
    let all: Vec<Value> = decisions(dir.path()).into_iter().flat_map(|(_, decided)| decided).collect();
    for (field, value) in [
        ("action", "decrease"),
        ("action", "increase"),
        ("action", "scale_replicas"),
        ("action", "revert"),
        ("validation", "kept"),
        ("validation", "failed"),
    ] {
        assert!(all.iter().any(|decision| decision[field] == value), "{field} {value}");
    }
    assert!(all.iter().all(|decision| decision["controller"] == "matrix"));
}

#[test]
fn a_replay_goes_by_the_controller_and_the_settings_of_the_record() {
    let dir = tempfile::tempdir().unwrap();
    let mut run =
        eadt(dir.path(), &["up", "--speed", "max", "--duration", "1h", "--json", "--no-view", "--controller", "matrix"]);
    run.env("EADT_PROCESSOR__WINDOW_SECONDS", "30");
    json(run);
    let log = dir.path().join("record.jsonl");
    json(eadt(dir.path(), &["record", "--out", log.to_str().unwrap(), "--json"]));
    for record in [dir.path().join("archive"), log] {
        let check = |more: &[&str]| text(eadt(dir.path(), &[&["replay", record.to_str().unwrap(), "--check"], more].concat()));
        let (out, err, good) = check(&[]);
        assert!(good && out.contains("are the same"), "{out}{err}");
        // Options of the command go before recorded settings.
        for more in [["--window", "60"], ["--controller", "hybrid"]] {
            let (out, err, good) = check(&more);
            assert!(!good, "{more:?}: {out}{err}");
        }
    }
}

/// A day on which every phase of both jobs is measured at its starting setting, so that all of it is compared.
const RUN: &[&str] = &["up", "--speed", "max", "--duration", "6h", "--seed", "7", "--json", "--no-view"];

#[test]
fn the_loop_closes_and_the_archive_replays_to_the_same_decisions() {
    let dir = tempfile::tempdir().unwrap();
    let closing = json(eadt(dir.path(), RUN));
    let workloads = closing["workloads"].as_array().unwrap();
    assert_eq!(workloads.len(), 2, "{closing}");
    for workload in workloads {
        assert_eq!(workload["origin"], "simulated");
        assert!(workload["energy_joules"].as_f64().unwrap() > 0.0);
        assert!(workload["samples"].as_f64().unwrap() > 0.0);
    }
    for (workload, decided) in decisions(dir.path()) {
        // First without a cap, then the cap that saves energy and keeps the throughput, then layouts: one kept, one taken back.
        let first = decided.iter().find(|decision| decision["action"] != "maintain").unwrap();
        let reason = first["reason"].as_str().unwrap();
        assert!(first["action"] == "set_power_limit" && reason.contains("100 % of the throughput without a limit"), "{first}");
        let has = |part: &str| decided.iter().any(|decision| decision["reason"].as_str().unwrap().contains(part));
        assert!(has("holds ") && has("of the throughput without a limit") && has("is expected to save"), "{workload}");
        assert!(
            decided.iter().any(|decision| decision["action"] == "revert" && decision["validation"] == "failed"),
            "{workload}"
        );
        assert!(decided.iter().any(|decision| decision["restarts"] == true && decision["action"] != "revert"), "{workload}");
        assert!(has("the phase was measured before"), "{workload}");
    }
    for workload in workloads {
        let figure = |name: &str| workload[name].as_f64().unwrap();
        assert!(figure("saving_joules") > 0.0, "{workload}");
        let (low, ratio, high) = (figure("saving_ratio_low"), figure("saving_ratio"), figure("saving_ratio_high"));
        assert!(low < ratio && ratio < high && high - low < 0.08, "{workload}");
        assert!(figure("throughput_kept_ratio") > 0.9, "{workload}");
    }
    let from_archive = json(eadt(dir.path(), &["report", dir.path().to_str().unwrap(), "--json"]));
    assert_eq!(from_archive["workloads"], closing["workloads"], "the archive shows what the live run showed");

    let first = replayed(dir.path(), "replay-1");
    assert!(first["check"]["windows_same"].as_u64().unwrap() >= 2 * 350, "{first}");
    assert_eq!(first["check"]["differences"].as_array().unwrap().len(), 0, "{first}");
    replayed(dir.path(), "replay-2");
    assert_eq!(files(&dir.path().join("replay-1")), files(&dir.path().join("replay-2")), "byte for byte");

    // Nothing can come while the log is read: what there is, or what to do.
    let (out, err, good) = text(eadt(dir.path(), &["tail", "decisions", "--from-start"]));
    assert!(good && out.lines().count() >= 2 * 350, "{err}");
    let (out, err, good) = text(eadt(dir.path(), &["tail", "decisions"]));
    assert!(!good && out.is_empty() && err.contains("--from-start shows what it holds"), "{err}");

    // A log of the same events has another order among its partitions, and still gives the same files.
    let (log, out) = (dir.path().join("record.jsonl.zst"), dir.path().join("replay-3"));
    let (_, err, good) = text(eadt(dir.path(), &["record", "--out", log.to_str().unwrap()]));
    assert!(good, "{err}");
    let third = json(eadt(dir.path(), &["replay", log.to_str().unwrap(), "--check", "--json", "--out", out.to_str().unwrap()]));
    assert_eq!(third["check"]["differences"].as_array().unwrap().len(), 0, "{third}");
    assert_eq!(third["check"]["windows_same"], first["check"]["windows_same"], "{third}");
    assert_eq!(third["events"], first["events"], "{third}");
    assert_eq!(files(&dir.path().join("replay-1")), files(&out), "a log replays to the bytes that its archive replays to");
}

#[test]
fn the_same_seed_gives_the_same_run_also_after_kill_9() {
    let (straight, broken) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    json(eadt(straight.path(), &["up", "--speed", "max", "--duration", "2h", "--json", "--no-view", "--seed", "7"]));
    for round in 0..4 {
        let mut command = eadt(broken.path(), &["up", "--speed", "3600", "--no-view", "--seed", "7"]);
        command.env(LOG_WINDOWS.0, LOG_WINDOWS.1);
        let mut child = Running(command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap());
        let mut stderr = StderrLines::by(&mut child.0);
        stderr.until("simulation runs");
        for _ in 0..=7 * round {
            stderr.until(" window ");
        }
        signal(&child.0, "-KILL");
        child.0.wait().unwrap();
    }
    // Records in no file yet are reported from the log.
    let early = json(eadt(broken.path(), &["report", broken.path().to_str().unwrap(), "--json"]));
    assert!(early["workloads"][0]["windows"].as_u64().unwrap() > 0, "{early}");
    json(eadt(broken.path(), &["up", "--speed", "max", "--duration", "2h", "--json", "--no-view", "--seed", "7"]));
    let (expected, got) = (outputs(straight.path(), 115), outputs(broken.path(), 115));
    for ((what, expected), (_, got)) in expected.iter().zip(&got) {
        assert_eq!(expected.len(), 115, "{what}");
        for (a, b) in expected.iter().zip(got) {
            assert_eq!(a, b, "{what}");
        }
    }
}

#[test]
fn ctrl_c_drains_prints_the_report_and_exits_0() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = eadt(dir.path(), &["up", "--speed", "600", "--no-view", "--json"])
        .env(LOG_WINDOWS.0, LOG_WINDOWS.1)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stderr = StderrLines::by(&mut child);
    stderr.until(" window ");
    signal(&child, "-INT");
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{:?}", stderr.so_far);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["workloads"][0]["windows"].as_u64().unwrap() > 0);
}

#[test]
fn a_closed_terminal_drains_once_and_nohup_keeps_it_running() {
    let dir = tempfile::tempdir().unwrap();
    let start = |command: &mut std::process::Command| {
        command.env(LOG_WINDOWS.0, LOG_WINDOWS.1).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let words = ["up", "--speed", "600", "--no-view", "--json"];
    let mut child = start(&mut eadt(dir.path(), &words));
    let mut stderr = StderrLines::by(&mut child);
    stderr.until(" window ");
    // The kernel sends it, and then the shell.
    signal(&child, "-HUP");
    stderr.until("draining; a second signal aborts");
    signal(&child, "-HUP");
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{:?}", stderr.so_far);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let windows = |report: &Value| report["workloads"][0]["windows"].as_u64().unwrap();
    assert!(windows(&report) > 0);
    // The archive has the same content as the log.
    assert_eq!(
        windows(&json(eadt(dir.path(), &["report", dir.path().join("archive").to_str().unwrap(), "--json"]))),
        windows(&report)
    );

    let plain = eadt(dir.path(), &words);
    let mut ignoring = std::process::Command::new("sh");
    ignoring.args(["-c", "trap '' HUP; exec \"$@\"", "sh"]).arg(plain.get_program()).args(plain.get_args());
    for (name, value) in plain.get_envs() {
        match value {
            Some(value) => ignoring.env(name, value),
            None => ignoring.env_remove(name),
        };
    }
    let mut child = start(ignoring.current_dir(dir.path()));
    let mut stderr = StderrLines::by(&mut child);
    stderr.until(" window ");
    signal(&child, "-HUP");
    stderr.until(" window ");
    assert_eq!(child.try_wait().unwrap(), None, "{:?}", stderr.so_far);
    signal(&child, "-TERM");
    assert!(child.wait_with_output().unwrap().status.success(), "{:?}", stderr.so_far);
}

#[test]
fn a_closed_terminal_ends_the_view_and_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let program = eadt_tests::program();
    let data = dir.path().display();
    let command = format!("stty rows 24 cols 80; echo pid $$; exec '{}' up --speed 600 --data-dir '{data}'", program.display());
    // A terminal that closes with this process.
    let mut terminal = std::process::Command::new("script");
    terminal.args(["-q", "-c", &command, "/dev/null"]).env("EADT_HTTP__ADDRESS", "127.0.0.1:0").env("TERM", "xterm-256color");
    let mut terminal = terminal.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut shown = String::new();
    let mut out = terminal.stdout.take().unwrap();
    let mut bytes = [0; 4096];
    // The view, with figures of a window.
    while !shown.contains(" W ") {
        let count = out.read(&mut bytes).unwrap();
        assert!(count > 0, "{shown}");
        shown += &String::from_utf8_lossy(&bytes[..count]);
    }
    let pid: u32 = shown.split("pid ").nth(1).unwrap().split_whitespace().next().unwrap().parse().unwrap();
    terminal.kill().unwrap();
    drop((out, terminal.stdin.take()));
    terminal.wait().unwrap();
    let begun = Instant::now();
    while Path::new(&format!("/proc/{pid}")).exists() {
        assert!(begun.elapsed() < Duration::from_mins(3), "it has not ended");
        std::thread::sleep(Duration::from_millis(50));
    }
    let windows =
        |path: &Path| json(eadt(dir.path(), &["report", path.to_str().unwrap(), "--json"]))["workloads"][0]["windows"].clone();
    assert_eq!(windows(&dir.path().join("archive")), windows(dir.path()));
}

#[test]
fn a_reader_of_log_lines_that_goes_away_ends_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = eadt(dir.path(), &["up", "--no-view", "--json", "--speed", "max", "--duration", "30m"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stderr.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", output.status);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["workloads"][0]["windows"], 30);
}

/// `up` on GPUs of a library of our own.
fn observing(dir: &Path, fake: &FakeLibrary, more: &[&str]) -> std::process::Command {
    let mut command = eadt(dir, &["up", "--gpus", "nvml", "--no-view", "--json"]);
    command.args(more).env("EADT_COLLECTOR__NVML__LIBRARY_PATH", fake.library());
    command.env("EADT_COLLECTOR__PROGRESS__LISTEN", "127.0.0.1:0").stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

#[test]
fn a_second_ctrl_c_ends_at_once_what_does_not_drain() {
    let (dir, fake) = (tempfile::tempdir().unwrap(), FakeLibrary::new("0 hang 1\n"));
    let mut command = observing(dir.path(), &fake, &[]);
    // So long a stop waits for a GPU that hangs.
    let mut child = Running(command.env("EADT_COLLECTOR__NVML__CALL_TIMEOUT_SECONDS", "30").spawn().unwrap());
    let mut stderr = StderrLines::by(&mut child.0);
    // The next one: the first one hangs from the start.
    stderr.until("GPU opened");
    signal(&child.0, "-INT");
    stderr.until("draining; a second signal aborts");
    // Those of the first second are the first one sent again.
    let status = loop {
        signal(&child.0, "-INT");
        if let Some(status) = child.0.try_wait().unwrap() {
            break status;
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    assert_eq!(status.code(), Some(130), "{:?}", stderr.so_far);
}

#[test]
fn with_real_gpus_the_duration_is_real_time_from_this_start() {
    let (dir, fake) = (tempfile::tempdir().unwrap(), FakeLibrary::new(""));
    for round in 0..2 {
        let began = Instant::now();
        let output = observing(dir.path(), &fake, &["--duration", "2"]).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && stderr.contains("the duration is over"), "{stderr}");
        assert!(began.elapsed() >= Duration::from_secs(2), "{round}: {stderr}");
        serde_json::from_slice::<Value>(&output.stdout).unwrap()["workloads"].as_array().unwrap();
    }
    let (_, err, good) = text(observing(dir.path(), &fake, &["--duration", "2", "--speed", "60"]));
    assert!(!good && err.contains("--speed is of the simulation"), "{err}");
}

#[test]
fn workload_assigns_all_gpus_and_without_it_a_line_names_the_option() {
    let (dir, other, fake) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), FakeLibrary::new(""));
    let missing = "no GPU is assigned to a job, so J/sample will be unknown: name the job with --workload";
    let mut command = observing(dir.path(), &fake, &["--duration", "4", "--workload", "local/train"]);
    command.env("EADT_PROCESSOR__WINDOW_SECONDS", "1").env("EADT_PROCESSOR__JOIN_GRACE_SECONDS", "1");
    let output = command.output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !log.contains(missing), "{log}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let row = &report["workloads"][0];
    assert_eq!((&row["workload"], &row["origin"]), (&"local/train".into(), &"measured".into()), "{report}");
    // Four GPUs of 250 to 400 W.
    assert!(row["energy_joules"].as_f64().unwrap() > 600.0, "{report}");
    let output = observing(other.path(), &fake, &["--duration", "1"]).output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && log.contains(missing), "{log}");

    let file = dir.path().join("eadt.toml");
    std::fs::write(&file, "[[collector.assignments]]\ndevice = \"0\"\nworkload = \"local/other\"\n").unwrap();
    let with_file = ["up", "--gpus", "nvml", "--workload", "local/train", "--config", file.to_str().unwrap()];
    for (args, why) in [
        (&["up", "--workload", "local/train"][..], "it needs --gpus nvml"),
        (&["up", "--gpus", "none", "--workload", "local/train"], "it needs --gpus nvml"),
        (&["up", "--gpus", "nvml", "--workload", "train"], "namespace/name"),
        (&with_file, "the settings assign them too (collector.assignments, collector.assignments_file): leave one out"),
    ] {
        let (err, code) = status(eadt(dir.path(), args));
        assert!(code == Some(2) && err.contains(why), "{args:?}: {code:?} {err}");
    }
}

#[test]
fn simulated_time_ends_where_it_was_set_to_unless_decisions_are_on_their_way() {
    for (duration, end) in [("5", "00:00:05.0"), ("59s", "00:00:59.0"), ("61", "00:01:10.0"), ("1.5m", "00:01:30.0")] {
        let dir = tempfile::tempdir().unwrap();
        let (_, err, good) = text(eadt(dir.path(), &["up", "--speed", "max", "--no-view", "--duration", duration]));
        assert!(good && err.contains(&format!("duration is over now=2026-01-01T{end}")), "{duration}: {err}");
    }
    let dir = tempfile::tempdir().unwrap();
    let (_, err, good) = text(eadt(dir.path(), &["up", "--duration", "5x"]));
    assert!(!good && err.contains("for '--duration <TIME>': \"5x\" is not a length of time"), "{err}");
}

#[test]
fn the_error_of_a_second_process_on_the_same_folder_names_the_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = eadt(dir.path(), &["up", "--speed", "1", "--no-view"]);
    let mut first = Running(command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap());
    let mut stderr = StderrLines::by(&mut first.0);
    stderr.until("simulation runs");
    let second = eadt(dir.path(), &["up", "--speed", "max", "--duration", "1m", "--no-view"]).output().unwrap();
    signal(&first.0, "-TERM");
    first.0.wait().unwrap();
    let message = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(!second.status.success());
    assert!(message.contains("--kafka") || message.to_lowercase().contains("kafka"), "{message}");
}

/// Returns a page's answer.
fn ask(page: &str, path: &str) -> Value {
    let address = page.trim_start_matches("http://").trim_end_matches('/');
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    write!(stream, "GET {path} HTTP/1.0\r\nhost: {address}\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    serde_json::from_str(body).unwrap_or_else(|error| panic!("{path}: {error}: {answer}"))
}

/// The energy of each workload, to the millijoule.
fn energies(rows: &Value) -> Vec<(String, i64)> {
    let row = |row: &Value| {
        let joules = row["energy_joules"].as_f64().unwrap_or(-1.0);
        (row["workload"].as_str().unwrap().to_owned(), (joules * 1000.0).round() as i64)
    };
    let mut rows: Vec<_> = rows.as_array().unwrap().iter().map(row).collect();
    rows.sort();
    rows
}

#[test]
fn a_terminal_follows_a_running_up_through_its_page() {
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    json(eadt(dir.path(), &["up", "--speed", "max", "--duration", "1h", "--json", "--no-view"]));
    // From here on a window a minute.
    let mut command = eadt(dir.path(), &["up", "--speed", "1", "--no-view"]);
    command.env("EADT_DASHBOARD__ADDRESS", "127.0.0.1:0");
    let mut up = Running(command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap());
    let mut stderr = StderrLines::by(&mut up.0);
    let line = stderr.until("the web page url=");
    let page = line.split('"').find(|part| part.starts_with("http://")).unwrap().to_owned();
    // Its folder holds no log: everything comes through the page.
    let through_the_page = |args: &[&str]| eadt(other.path(), &[args, &["--url", page.as_str()]].concat());
    let began = Instant::now();
    loop {
        let listed = json(through_the_page(&["get", "workloads", "-o", "json"]));
        let (line, err, good) = text(through_the_page(&["top", "--once", "--plain"]));
        assert!(good && line.starts_with("[simulated] 2026-01-01T0"), "{line}{err}");
        let (fleet, overview) = (ask(&page, "/api/v1/fleet?sort=name"), ask(&page, "/api/v1/overview"));
        let windows = overview["counts"]["windows"].as_u64().unwrap();
        // A window may have been closed between two questions, and the page reads a little behind.
        let (of_terminal, of_page) = (energies(&listed), energies(&fleet["rows"]));
        let is_same = of_terminal == of_page && line.contains(&format!(" · {windows} windows · "));
        if is_same && line.contains(" · 2 workloads · ") {
            assert!(windows >= 2 * 55 && of_page.len() == 2 && of_page.iter().all(|(_, joules)| *joules > 0), "{of_page:?}");
            break;
        }
        assert!(began.elapsed() < Duration::from_mins(1), "{line}{of_terminal:?}\n{of_page:?}");
        std::thread::sleep(Duration::from_millis(500));
    }
    let (described, err, good) = text(through_the_page(&["describe", "workload", "llm-training"]));
    assert!(good && described.contains("eadt/llm-training") && described.contains("Last decisions:"), "{described}{err}");
    let (line, err, good) = text(through_the_page(&["top", "--once", "--since", "10m"]));
    assert!(good && line.contains("only the end of the record was read"), "{line}{err}");
    let (err, code) = status(through_the_page(&["get", "gpus"]));
    assert!(code == Some(2) && err.contains("samples of GPUs"), "{err}");
    // A user who names the folder is referred to the page.
    let (_, err, good) = text(eadt(dir.path(), &["top", "--once"]));
    assert!(!good && err.contains("eadt top --url http://127.0.0.1:9580"), "{err}");
    signal(&up.0, "-INT");
    assert!(up.0.wait().unwrap().success(), "a terminal that looked on holds nothing back");
    let (_, err, good) = text(through_the_page(&["top", "--once"]));
    assert!(!good && err.contains("nothing listens at"), "{err}");
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

#[test]
fn a_record_that_lost_a_file_does_not_pass_the_check() {
    let dir = tempfile::tempdir().unwrap();
    json(eadt(dir.path(), &["up", "--speed", "max", "--duration", "20m", "--json", "--no-view"]));
    let archive = dir.path().join("archive");
    let check = || eadt(dir.path(), &["replay", archive.to_str().unwrap(), "--check", "--json"]);
    json(check());
    for (topic, part) in [("decisions.v1", "lacks"), ("efficiency.windows.v1", "no windows")] {
        let folder = archive.join(format!("topic={topic}"));
        let (path, bytes) = files(&folder).into_iter().find(|(path, _)| path.ends_with(".parquet")).unwrap();
        std::fs::remove_file(folder.join(&path)).unwrap();
        let (out, err, good) = text(check());
        assert!(!good && out.contains(part), "{topic}: {out}{err}");
        assert!(err.contains("a file of the archive was removed") && err.contains(topic), "{err}");
        std::fs::write(folder.join(&path), bytes).unwrap();
    }
    json(check());
    // Without the record of the archived range, missing files are not noticed.
    std::fs::rename(archive.join("_archived"), dir.path().join("kept")).unwrap();
    let learned = dir.path().join("learned");
    let build = ["dataset", "build", "--out", learned.to_str().unwrap()];
    for command in [&["report"][..], &["replay", "--check"], &build, &["get", "workloads", "--from"]] {
        let (_, err, good) = text(eadt(dir.path(), &[command, &[archive.to_str().unwrap()]].concat()));
        assert!(good && err.contains("no folder _archived"), "{command:?}: {err}");
    }
    let (out, _, good) = text(eadt(dir.path(), &["doctor"]));
    assert!(!good && out.contains("WRONG") && out.contains("no folder _archived"), "{out}");
    std::fs::rename(dir.path().join("kept"), archive.join("_archived")).unwrap();
    // Windows of inputs that are gone are not those of the run.
    let folder = archive.join("topic=gpu.telemetry.v1");
    let (path, _) = files(&folder).into_iter().find(|(path, _)| path.ends_with(".parquet")).unwrap();
    std::fs::remove_file(folder.join(path)).unwrap();
    let (out, err, good) = text(check());
    let summary: Value = serde_json::from_str(&out).unwrap();
    assert!(summary["left_out"]["removed_offsets"].as_u64().is_some_and(|offsets| offsets > 0), "{out}");
    assert!(!good && err.contains("whose file was removed from the archive"), "{err}");
    let (err, code) = status(eadt(dir.path(), &["replay", archive.to_str().unwrap()]));
    assert!(code == Some(3) && err.contains("whose file was removed from the archive"), "{err}");
}

#[test]
fn a_simulation_goes_on_with_its_own_seed_and_refuses_another() {
    let dir = tempfile::tempdir().unwrap();
    let run = |more: &[&str]| {
        let mut args = vec!["up", "--speed", "max", "--duration", "2m", "--json", "--no-view"];
        args.extend(more);
        text(eadt(dir.path(), &args))
    };
    assert!(run(&["--seed", "3"]).2);
    let (_, err, good) = run(&[]);
    assert!(good && err.contains("seed=3"), "{err}");
    let (out, err, good) = run(&["--seed", "4"]);
    assert!(!good && err.contains("its seed is 3") && out.is_empty(), "{out}{err}");
}

#[test]
fn the_controller_of_a_record_does_in_hindsight_what_it_did() {
    let dir = tempfile::tempdir().unwrap();
    json(eadt(dir.path(), &["up", "--speed", "max", "--duration", "3h", "--seed", "3", "--json", "--no-view"]));
    let archive = dir.path().to_str().unwrap();
    let backtest = json(eadt(dir.path(), &["backtest", "--archive", archive, "--controller", "hybrid", "--json"]));
    let jobs = backtest["hindsight"].as_array().unwrap();
    assert_eq!(jobs.len(), 2);
    for job in jobs {
        // Trials that were cut short are no evidence of what they do, and are followed all the same.
        assert_eq!((&job["windows_estimated"], &job["windows_unknown"]), (&0.into(), &0.into()), "{job}");
        assert_eq!(job["changes"].as_array().unwrap().len() as u64, job["recorded_changes"].as_u64().unwrap(), "{job}");
    }
}

#[test]
fn a_folder_in_which_nothing_was_recorded_is_of_either_kind() {
    let dir = tempfile::tempdir().unwrap();
    let mut without_driver = eadt(dir.path(), &["up", "--gpus", "nvml", "--no-view"]);
    without_driver.env("EADT_COLLECTOR__NVML__LIBRARY_PATH", dir.path().join("nowhere.so"));
    let (err, code) = status(without_driver);
    assert_eq!(code, Some(1), "{err}");
    json(eadt(dir.path(), &["up", "--speed", "max", "--duration", "1m", "--json", "--no-view"]));
    let (err, code) = status(eadt(dir.path(), &["up", "--gpus", "none", "--no-view"]));
    assert!(code == Some(1) && err.contains("holds simulated data"), "{err}");
}

#[test]
fn a_reader_that_has_seen_enough_is_no_panic() {
    let dir = tempfile::tempdir().unwrap();
    let program = eadt_tests::program().display();
    let status = std::process::Command::new("sh")
        .args(["-c", &format!("{program} config reference | head -n 1 >/dev/null; {program} config reference >/dev/full")])
        .current_dir(dir.path())
        .output()
        .unwrap();
    let err = String::from_utf8_lossy(&status.stderr).into_owned();
    assert!(err.contains("cannot write to standard output") && !err.contains("panicked"), "{err}");
    // Nor is one of standard error: lines of progress, log lines, warnings, the error itself.
    let points = dir.path().join("points.csv");
    let points = points.to_str().unwrap();
    let profile = ["profile", "--knob", "sm_clock_mhz", "--simulate", "A100:compute", "--runs", "1", "--out", points];
    for (arguments, status) in [(&profile[..], 0), (&["config", "show", "--log", "debug"], 0), (&["report", "not/there"], 1)] {
        let (reader, closed) = std::io::pipe().unwrap();
        drop(reader);
        let ended = eadt(dir.path(), arguments).stdout(Stdio::null()).stderr(closed).status().unwrap();
        assert_eq!(ended.code(), Some(status), "{arguments:?}");
    }
    assert!(std::fs::read_to_string(points).unwrap().lines().count() > 2, "its work is done all the same");
}

#[test]
fn a_look_at_the_program_joins_no_kafka_and_takes_a_free_port() {
    let dir = tempfile::tempdir().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let mut command = eadt(dir.path(), &["up", "--speed", "max", "--duration", "1m", "--no-view"]);
    // No broker listens there: joining it would fail.
    command.env("KAFKA_BROKERS", "127.0.0.1:1").env("EADT_HTTP__ADDRESS", format!("localhost:{}", address.port()));
    let (_, err, good) = text(command);
    assert!(good && dir.path().join("log").exists(), "{err}");
    assert_eq!(err.matches("KAFKA_BROKERS is set, and up joins a Kafka only by --kafka").count(), 1, "{err}");
    assert!(err.contains(&format!("port {} of http.address is taken", address.port())), "{err}");
    // Of each of its ports, if its own is taken.
    let mut command = eadt(&dir.path().join("none"), &["up", "--gpus", "none", "--duration", "1s", "--no-view"]);
    let [http, page, progress] = [(); 3].map(|()| std::net::TcpListener::bind("127.0.0.1:0").unwrap());
    let port = |listener: &std::net::TcpListener| listener.local_addr().unwrap().port();
    command.env("EADT_HTTP__ADDRESS", format!("localhost:{}", port(&http)));
    command.env("EADT_DASHBOARD__ADDRESS", format!("localhost:{}", port(&page)));
    command.env("EADT_COLLECTOR__PROGRESS__LISTEN", format!("localhost:{}", port(&progress)));
    let (_, err, good) = text(command);
    assert!(good, "{err}");
    for (listener, setting) in [(&http, "http.address"), (&page, "dashboard.address"), (&progress, "collector.progress.listen")] {
        assert!(err.contains(&format!("port {} of {setting} is taken: ", port(listener))), "{setting}: {err}");
    }
    assert!(err.contains("jobs report (EADT_URL) at http://127.0.0.1:"), "{err}");
    // If asked to, it does, and prints first where it writes.
    let (_, err, good) = text(eadt(dir.path(), &["up", "--duration", "1m", "--no-view", "--kafka", "127.0.0.1:1"]));
    assert!(!good && err.contains("up writes simulated events to Kafka at 127.0.0.1:1: topics up."), "{err}");
}

#[test]
fn a_declared_job_is_in_the_log_under_its_present_terms() {
    let dir = tempfile::tempdir().unwrap();
    let settings = dir.path().join("eadt.toml");
    let newest = |jobs: &str| {
        let ports = "[http]\naddress = \"127.0.0.1:0\"\n[collector.progress]\nlisten = \"127.0.0.1:0\"\n";
        std::fs::write(&settings, format!("{ports}{jobs}")).unwrap();
        let up = ["--config", settings.to_str().unwrap(), "up", "--gpus", "none", "--duration", "2s", "--no-view"];
        let (_, err, good) = text(eadt(dir.path(), &up));
        assert!(good, "{err}");
        let (out, err, good) = text(eadt(dir.path(), &["tail", "workloads.v1", "--until-end", "--json"]));
        assert!(good, "{err}");
        serde_json::from_str::<Value>(out.lines().last().unwrap()).unwrap()
    };
    let job = "[[actuator.jobs]]\nworkload = \"lab/gpt\"\nmode = \"enforce\"\nfrozen_prefix_layers_max = ";
    for layers in [3, 4] {
        let declared = newest(&format!("{job}{layers}\n"));
        let workload = &declared["data"];
        assert_eq!((&workload["workload"], &workload["controller"]), (&"lab/gpt".into(), &"layers".into()), "{declared}");
        assert_eq!((&workload["mode"], &workload["origin"]), (&"enforce".into(), &"measured".into()), "{declared}");
        assert_eq!((&workload["bounds"]["frozen_prefix_layers_max"], &workload["generation"]), (&layers.into(), &1.into()));
    }
    let undeclared = &newest("")["data"];
    assert_eq!(
        (&undeclared["workload"], &undeclared["mode"]),
        (&"lab/gpt".into(), &"observe".into()),
        "nothing is asked any more"
    );
    // Without an effect it is refused.
    std::fs::write(&settings, format!("{job}3\n")).unwrap();
    for up in [&["up", "--no-view"][..], &["up", "--gpus", "none", "--kafka", "127.0.0.1:1", "--no-view"]] {
        let (err, code) = status(eadt(dir.path(), &[&["--config", settings.to_str().unwrap()], up].concat()));
        assert!(code == Some(2) && err.contains("actuator.jobs is for"), "{code:?}: {err}");
    }
}

/// Appends a decision to freeze as many blocks of a declared job to the log of a folder, as a controller makes it.
fn decide_to_freeze(dir: &Path, workload: &Workload, layers: u32) -> String {
    let time = EventTime::from_seconds(std::time::UNIX_EPOCH.elapsed().unwrap().as_secs_f64());
    let decision = Decision {
        id: format!("{}@{time}/layers", workload.workload),
        workload: workload.workload.clone(),
        time,
        action: ControllerAction::FreezeLayers,
        reason: "the first blocks do not learn any more".into(),
        from: workload.layout.clone(),
        to: Layout { frozen_prefix_layers: Some(layers), ..workload.layout.clone() },
        generation: Some(workload.generation),
        expires: time.plus_seconds(300.0),
        ..Decision::default()
    };
    let bus = EmbeddedLog::open(&dir.join("log"), EmbeddedOptions::default()).unwrap();
    let topic = bus.topics("").unwrap().into_iter().find(|topic| topic.name.ends_with("decisions.v1")).unwrap().name;
    let (id, kind, subject) = (decision.id.clone(), EventType::Decision, workload.workload.clone());
    let envelope = Envelope { id, source: "/test".into(), kind, time, subject };
    let mut producer = bus.producer("test").unwrap();
    let record = ProducerRecord {
        topic,
        partition: None,
        key: Some(workload.workload.clone().into_bytes().into()),
        value: Some(serde_json::to_vec(&decision).unwrap().into()),
        headers: envelope.headers().map(|(name, value)| (name.into(), value.into())).to_vec(),
    };
    producer.send(record).unwrap();
    assert!(producer.flush(Duration::from_secs(10)).unwrap());
    decision.id
}

#[test]
fn what_a_declared_job_was_asked_for_is_withdrawn_once_it_is_declared_no_more() {
    let dir = tempfile::tempdir().unwrap();
    let settings = dir.path().join("eadt.toml");
    let run = |jobs: &str, duration: &str| {
        let ports = "[http]\naddress = \"127.0.0.1:0\"\n[collector.progress]\nlisten = \"127.0.0.1:0\"\n";
        std::fs::write(&settings, format!("{ports}{jobs}")).unwrap();
        let up = ["--config", settings.to_str().unwrap(), "up", "--gpus", "none", "--duration", duration, "--no-view"];
        let (_, err, good) = text(eadt(dir.path(), &up));
        assert!(good, "{err}");
    };
    let newest = |topic: &str| {
        let (out, err, good) = text(eadt(dir.path(), &["tail", topic, "--until-end", "--json"]));
        assert!(good, "{err}");
        out.lines().last().map(|line| serde_json::from_str::<Value>(line).unwrap())
    };
    let job = "[[actuator.jobs]]\nworkload = \"lab/gpt\"\nmode = \"enforce\"\nfrozen_prefix_layers_max = 8\n";
    run(job, "2s");
    let declared: Workload = serde_json::from_value(newest("workloads.v1").unwrap()["data"].clone()).unwrap();
    let decision = decide_to_freeze(dir.path(), &declared, 4);
    run(job, "6s");
    let asked = newest("directives.v1").expect("the job is asked");
    assert_eq!((&asked["partitionkey"], &asked["data"]["decision_id"]), (&"lab/gpt".into(), &decision.into()), "{asked}");
    assert_eq!(asked["data"]["frozen_prefix_layers"], 4, "{asked}");
    // The layout in force is requested, also after another start.
    run(job, "2s");
    assert_eq!(newest("directives.v1").unwrap(), asked);
    run("", "4s");
    let withdrawn = newest("directives.v1").unwrap();
    assert!(withdrawn["data"].is_null() && withdrawn["partitionkey"] == "lab/gpt", "{withdrawn}");
    assert!(withdrawn["eadtoffset"].as_i64() > asked["eadtoffset"].as_i64(), "{withdrawn}");
    // Once.
    run("", "3s");
    assert_eq!(newest("directives.v1").unwrap(), withdrawn);
}

#[test]
fn the_optimizer_reports_where_it_looked_for_an_archive() {
    let dir = tempfile::tempdir().unwrap();
    for flag in ["--dry-run", "--once"] {
        let (out, err, good) = text(eadt(&dir.path().join("none"), &["optimizer", flag]));
        assert!(!good && out.is_empty() && err.contains("there is no archive at") && err.contains("--data-dir"), "{flag}: {err}");
    }
}
