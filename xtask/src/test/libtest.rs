//! Reports of a test binary: libtest's JSON events, one object per line.
//!
//! The format is unstable in name only (it has not changed for years); `RUSTC_BOOTSTRAP=1` makes a stable libtest print it. It is
//! the only one that has the time of each test.

use serde_json::Value;

/// Makes libtest print what [`Reader`] reads. Outputs of passed tests are there, so that a skipped one is counted.
pub const ARGUMENTS: [&str; 5] = ["-Zunstable-options", "--format=json", "--report-time", "--show-output", "--color=never"];

/// Counts, failures and times of one or more test binaries.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Totals {
    pub passed: u64,
    pub failed: u64,
    /// Ignored tests, and those that printed "skipped: …" with the reason.
    pub skipped: u64,
    pub failures: Vec<Failure>,
    /// Reasons why tests were skipped.
    pub reasons: Vec<String>,
    /// Each test with its seconds.
    pub seconds: Vec<(String, f64)>,
}

/// A failed test.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Failure {
    pub name: String,
    /// The beginning of its panic message; empty if it printed none.
    pub message: Vec<String>,
}

/// Lines of a panic message in the summary.
const MESSAGE_LINES: usize = 8;
const MESSAGE_CHARACTERS: usize = 300;

impl Totals {
    /// Returns `5 passed, 0 failed, 1 skipped`.
    pub fn line(&self) -> String {
        format!("{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }

    pub fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
        self.failures.extend(other.failures);
        self.reasons.extend(other.reasons);
        self.seconds.extend(other.seconds);
    }
}

/// Reads the output of one test binary, line by line.
#[derive(Debug, Default)]
pub struct Reader {
    binary: String,
    totals: Totals,
    /// Tests that have started and not ended: if the binary dies, these are the suspects.
    running: Vec<String>,
    ended: bool,
}

impl Reader {
    /// Creates an empty report. `binary` is the prefix of its tests' names.
    pub fn new(binary: &str) -> Self {
        Self { binary: binary.to_owned(), ..Self::default() }
    }

    /// Takes one line. Returns the part to be shown.
    pub fn line(&mut self, line: &str) -> Option<String> {
        let Some(event) = serde_json::from_str::<Value>(line).ok().filter(|event| event["type"].is_string()) else {
            return (!line.trim().is_empty()).then(|| line.to_owned());
        };
        match (event["type"].as_str(), event["event"].as_str()) {
            (Some("test"), Some("started")) => {
                self.running.extend(event["name"].as_str().map(str::to_owned));
                None
            }
            (Some("test"), Some(outcome)) => self.outcome(outcome, &event),
            (Some("suite"), Some("ok" | "failed")) => {
                self.ended = true;
                None
            }
            _ => None,
        }
    }

    fn outcome(&mut self, outcome: &str, event: &Value) -> Option<String> {
        let name = event["name"].as_str().unwrap_or_default();
        // "A test has been running for over 60 seconds" is no outcome.
        if outcome == "timeout" {
            return None;
        }
        self.running.retain(|running| running != name);
        let shown = format!("{}::{name}", self.binary);
        self.totals.seconds.extend(event["exec_time"].as_f64().map(|seconds| (shown.clone(), seconds)));
        let output = event["stdout"].as_str().unwrap_or_default();
        // A test with several parts prints the time of each: `took: NAME SECONDS`.
        let parts = output.lines().filter_map(|line| line.strip_prefix("took: ")?.rsplit_once(' '));
        let parts = parts.filter_map(|(part, seconds)| Some((format!("{}::{part}", self.binary), seconds.parse().ok()?)));
        self.totals.seconds.extend(parts);
        match outcome {
            "ok" => {
                if let Some(reason) = output.lines().map(str::trim).find(|line| line.starts_with("skipped: ")) {
                    self.totals.skipped += 1;
                    self.totals.reasons.push(reason.to_owned());
                } else {
                    self.totals.passed += 1;
                }
                None
            }
            "ignored" => {
                self.totals.skipped += 1;
                None
            }
            _ => {
                self.totals.failed += 1;
                self.totals.failures.push(Failure { name: shown.clone(), message: message(output) });
                Some(format!("---- {shown} ----\n{output}"))
            }
        }
    }

    /// Returns the totals. Tests that a binary left running when it died have failed.
    pub fn end(mut self) -> Totals {
        if !self.ended {
            for name in std::mem::take(&mut self.running) {
                self.totals.failed += 1;
                let message = vec!["the test binary ended while this test was running".to_owned()];
                self.totals.failures.push(Failure { name: format!("{}::{name}", self.binary), message });
            }
        }
        self.totals
    }
}

/// Returns the first lines of the first panic: a second one is a consequence.
fn message(output: &str) -> Vec<String> {
    let is_panic = |line: &&str| line.starts_with("thread '") && line.contains(" panicked at ");
    let lines = output.lines().skip_while(|line| !is_panic(line)).skip(1);
    let message =
        lines.take_while(|line| !(line.is_empty() || line.starts_with("stack backtrace:") || line.starts_with("note: ")));
    message.take(MESSAGE_LINES).map(|line| line.chars().take(MESSAGE_CHARACTERS).collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(lines: &[&str]) -> (Totals, Vec<String>) {
        let mut reader = Reader::new("core");
        let shown = lines.iter().filter_map(|line| reader.line(line)).collect();
        (reader.end(), shown)
    }

    const SUITE: [&str; 10] = [
        r#"{ "type": "suite", "event": "started", "test_count": 4 }"#,
        r#"{ "type": "test", "event": "started", "name": "one" }"#,
        r#"{ "type": "test", "name": "one", "event": "ok", "exec_time": 0.5, "stdout": "noise\ntook: killed 12.5\n" }"#,
        r#"{ "type": "test", "name": "slow", "event": "timeout" }"#,
        r#"{ "type": "test", "name": "two", "event": "ok", "exec_time": 0.25, "stdout": "skipped: no data\nskipped: none there either\n" }"#,
        "a child process prints this",
        "",
        r#"{ "type": "test", "name": "off", "event": "ignored" }"#,
        r#"{ "type": "test", "name": "bad", "event": "failed", "exec_time": 1.0, "stdout": "noise\nthread 'bad' (7) panicked at a.rs:1:2:\nskipped: no skip\n  left: 1\nnote: run with\n\nthread 'x' panicked at b.rs:1:1:\na consequence\n" }"#,
        r#"{ "type": "suite", "event": "failed", "passed": 2, "failed": 1, "ignored": 1, "exec_time": 1.5 }"#,
    ];

    #[test]
    fn a_suite_is_counted_and_only_failures_are_shown() {
        let (totals, shown) = read(&SUITE);
        assert_eq!(totals.line(), "1 passed, 1 failed, 2 skipped");
        assert_eq!(totals.reasons, ["skipped: no data"]);
        assert_eq!(
            totals.failures,
            [Failure { name: "core::bad".into(), message: vec!["skipped: no skip".into(), "  left: 1".into()] }]
        );
        assert_eq!(
            totals.seconds,
            [("core::one".into(), 0.5), ("core::killed".into(), 12.5), ("core::two".into(), 0.25), ("core::bad".into(), 1.0)]
        );
        assert_eq!(shown.len(), 2, "{shown:?}");
        assert!(shown[0] == "a child process prints this" && shown[1].contains("a consequence"), "{shown:?}");
    }

    #[test]
    fn a_test_that_takes_its_binary_with_it_has_failed() {
        let (totals, _) = read(&SUITE[..2]);
        assert_eq!(totals.line(), "0 passed, 1 failed, 0 skipped");
        assert_eq!(totals.failures[0].name, "core::one");
    }

    #[test]
    fn a_long_message_is_cut() {
        let output = format!("thread 'a' panicked at b:\n{}", format!("{}\n", "é".repeat(999)).repeat(20));
        let message = message(&output);
        assert!(message.len() == MESSAGE_LINES && message[0] == "é".repeat(MESSAGE_CHARACTERS));
    }

    #[test]
    fn totals_add_up() {
        let mut totals = read(&SUITE).0;
        totals.add(totals.clone());
        assert_eq!(
            (totals.line().as_str(), totals.failures.len(), totals.seconds.len()),
            ("2 passed, 2 failed, 4 skipped", 2, 8)
        );
    }
}
