//! The real program as a child process.

#![allow(dead_code, reason = "each test binary is built with all of this file and uses its own part")]

pub mod budget;
pub mod ingest;
pub mod rollout;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

pub use eadt_tests::agent_program;
use serde_json::Value;

/// The program with a data folder of its own and a free port for its metrics.
pub fn eadt(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(eadt_tests::program());
    // By a variable: only some commands take the option.
    command.args(args).env("EADT_BUS__DATA_DIR", dir).env("EADT_HTTP__ADDRESS", "127.0.0.1:0").stdin(Stdio::null());
    command
}

/// Runs to the end; the JSON that it printed.
pub fn json(mut command: Command) -> Value {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|e| panic!("{command:?}: {e}: {}", String::from_utf8_lossy(&output.stdout)))
}

/// Runs to the end; what it printed on standard error, and its exit status.
pub fn status(mut command: Command) -> (String, Option<i32>) {
    let output = command.output().unwrap();
    (String::from_utf8_lossy(&output.stderr).into_owned(), output.status.code())
}

/// Runs to the end; what it printed on standard output and standard error, and whether it succeeded.
pub fn text(mut command: Command) -> (String, String, bool) {
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr), output.status.success())
}

pub fn signal(child: &Child, name: &str) {
    assert!(Command::new("kill").args([name, &child.id().to_string()]).status().unwrap().success());
}

/// Returns the folder of measurements by others, or `None` with a message.
pub fn shared_data() -> Option<PathBuf> {
    eadt_testing::shared_data("")
}

/// Waits until a process has ended, and well.
pub fn ends(mut process: Running, limit: Duration) {
    let began = Instant::now();
    loop {
        if let Some(status) = process.0.try_wait().unwrap() {
            assert!(status.success(), "{status}");
            return;
        }
        assert!(began.elapsed() < limit, "a service did not end within {limit:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Every file under a folder with its bytes, sorted by path.
pub fn files(root: &Path) -> Vec<(String, Vec<u8>)> {
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

/// The standard error of a process, line by line as it comes.
pub struct StderrLines {
    lines: Receiver<String>,
    pub so_far: Vec<String>,
}

impl StderrLines {
    /// Takes the child's standard error, which must be piped, and reads it to the end, so that the child never waits for room.
    pub fn by(child: &mut Child) -> Self {
        let stderr = child.stderr.take().expect("standard error is piped");
        // More than any of these processes writes; were it ever full, the child would wait for the test.
        let (sender, lines) = sync_channel(100_000);
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Self { lines, so_far: Vec::new() }
    }

    /// Reads to the end of standard error, once the process has ended.
    pub fn drain(&mut self) {
        self.so_far.extend(self.lines.iter());
    }

    /// Waits until a line has this part; returns the line.
    pub fn until(&mut self, part: &str) -> String {
        let deadline = Instant::now() + Duration::from_mins(2);
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok(line) = self.lines.recv_timeout(left) else {
                panic!("no line has {part:?}:\n{}", self.so_far.join("\n"));
            };
            self.so_far.push(line.clone());
            if line.contains(part) {
                return line;
            }
        }
    }
}

/// A line for each window, which `up` without a terminal logs at level debug.
pub const LOG_WINDOWS: (&str, &str) = ("EADT_LOG__FILTER", "info,eadt::live=debug,fjall=warn,lsm_tree=warn");

/// A process that is killed when the test ends.
pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        if let Ok(None) = self.0.try_wait() {
            self.0.kill().ok();
            self.0.wait().ok();
        }
    }
}

/// Asserts a figure within a relative tolerance.
pub fn near(what: &str, value: &Value, expected: f64, tolerance: f64) {
    let value = value.as_f64().unwrap_or_else(|| panic!("{what} is {value}"));
    assert!((value / expected - 1.0).abs() <= tolerance, "{what}: {value}, expected {expected}");
}
