//! Versions and machine with which figures were found.

use std::process::Command;

use eadt_bus::kafka::FetchPath;
use eadt_tests::kafka::fetch_path;
use serde::{Deserialize, Serialize};

/// Parts and machine of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Surroundings {
    /// Version, and the commit if git knows it, marked where the tree has changes beside it; and that the build was optimised,
    /// if it was.
    pub eadt: String,
    pub kafka: String,
    /// Empty in runs of before it was needed.
    #[serde(default)]
    pub kubernetes: String,
    pub librdkafka: String,
    /// By what records were read: empty if librdkafka did that, too.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub fetch: String,
    pub java: String,
    pub linux: String,
    pub cores: usize,
}

impl Surroundings {
    pub fn here() -> Self {
        let first = |text: String| text.lines().next().unwrap_or_default().trim().to_owned();
        let version = env!("CARGO_PKG_VERSION");
        Self {
            eadt: commit().map_or_else(|| version.to_owned(), |commit| format!("{version} ({commit})")) + OPTIMISED,
            kafka: eadt_tests::kafka::version().to_owned(),
            kubernetes: eadt_tests::kubernetes::version().to_owned(),
            librdkafka: librdkafka(),
            fetch: match fetch_path() {
                FetchPath::Librdkafka => String::new(),
                FetchPath::Native => "native".to_owned(),
            },
            java: output_of("java", &["-version"]).map(first).unwrap_or_default().replace('"', ""),
            linux: output_of("uname", &["-r"]).map(first).unwrap_or_default(),
            cores: std::thread::available_parallelism().map_or(0, std::num::NonZero::get),
        }
    }
}

/// The description of a build with `CARGO_PROFILE_DEV_OPT_LEVEL`.
const OPTIMISED: &str = if matches!(env!("EADT_CHAOS_OPT_LEVEL").as_bytes(), b"0") { "" } else { ", optimised" };
/// Mark of a commit with uncommitted changes.
const CHANGED: &str = ", changed";
/// Files that a run of the harness writes itself, from the root of the repository.
const WRITTEN: [&str; 2] = ["docs/evidence/reliability.json", "docs/evidence/reliability.md"];

impl Surroundings {
    /// Returns whether the program was built from uncommitted changes.
    pub fn is_changed(&self) -> bool {
        self.eadt.contains(CHANGED)
    }
}

fn commit() -> Option<String> {
    let git = |arguments: &[&str]| {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
        output_of("git", &[&["-C", root], arguments].concat())
    };
    let commit = git(&["describe", "--always", "--exclude=*"])?;
    let changes = git(&["status", "--porcelain"])?;
    Some(format!("{}{}", commit.trim(), if has_code(&changes) { CHANGED } else { "" }))
}

/// Returns whether git's status names files that the harness does not write.
fn has_code(status: &str) -> bool {
    status.lines().any(|line| line.get(3..).is_none_or(|path| !WRITTEN.contains(&path)))
}

fn output_of(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok().filter(|output| output.status.success())?;
    // Java prints its version on standard error.
    Some(String::from_utf8_lossy(if output.stdout.is_empty() { &output.stderr } else { &output.stdout }).into_owned())
}

/// Returns the version of librdkafka in the binding, which the lock file lists behind the binding's own.
fn librdkafka() -> String {
    let lock = include_str!("../../../Cargo.lock");
    let version = lock.split("name = \"rdkafka-sys\"\nversion = \"").nth(1).and_then(|rest| rest.split('"').next());
    version.and_then(|version| version.split_once('+')).map(|(_, version)| version.to_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_harness_writes_itself_is_no_change() {
        assert!(!has_code("") && !has_code(" M docs/evidence/reliability.json\nM  docs/evidence/reliability.md\n"));
        assert!(
            has_code(" M docs/evidence/reliability.md\n M tests/chaos/src/row.rs\n")
                && has_code("?? docs/evidence/reliability.md.rs\n")
        );
    }

    #[test]
    fn everything_is_known() {
        let here = Surroundings::here();
        for text in [&here.eadt, &here.kafka, &here.kubernetes, &here.librdkafka] {
            assert!(text.starts_with(|first: char| first.is_ascii_digit()), "{here:?}");
        }
        assert!(here.cores > 0);
    }
}
