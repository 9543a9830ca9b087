//! `cargo xtask fuzz`: looks for inputs that make a reader panic, guided by the code that they reach (libFuzzer).
//!
//! It begins with the kept inputs (seeds, and what was once too much), and goes on from what it found before in target/fuzz/corpus.
//!
//! The instrumentation is LLVM's, which the stable compiler takes as flags; no sanitizer is needed where nothing is `unsafe`.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};
use clap::Args;

use crate::process;

#[derive(Debug, Args)]
pub struct Options {
    /// Only this target; without it: all (see tests/fuzz/src/lib.rs).
    target: Option<String>,
    /// How long each target is looked at.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
}

impl Options {
    /// All targets for a bounded time, as the tests do.
    pub const SHORT: Self = Self { target: None, seconds: 15 };
}

const KEPT: &str = "tests/fuzz/corpus";
const OWN: &str = "target/fuzz";
/// Coverage of edges and comparisons, as libFuzzer reads it.
const FLAGS: [&str; 7] = [
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Coverflow-checks",
    "-Cdebug-assertions",
];
/// Larger inputs find the same, slower.
const LIMITS: [&str; 5] = ["-max_len=8192", "-timeout=25", "-rss_limit_mb=4096", "-verbosity=0", "-close_fd_mask=0"];

pub fn run(options: &Options) -> anyhow::Result<()> {
    let root = process::root();
    let targets = targets(&root, options.target.as_deref())?;
    let host = host()?;
    // With a target named, build scripts and macros are built without the flags.
    let build = ["build", "--package", "eadt-fuzz", "--features", "libfuzzer", "--bins", "--target", &host, "--target-dir", OWN];
    process::run(process::cargo().args(build).env("RUSTFLAGS", FLAGS.join(" ")).env("CARGO_PROFILE_DEV_OPT_LEVEL", "1"))?;
    let mut broken = Vec::new();
    for target in &targets {
        let program = root.join(OWN).join(&host).join("debug").join(format!("fuzz-{target}"));
        let (found, kept) = (format!("{OWN}/corpus/{target}"), format!("{KEPT}/{target}"));
        fs::create_dir_all(root.join(&found)).with_context(|| format!("cannot make {found}"))?;
        let artifact = format!("{OWN}/{target}-");
        let mut fuzz = Command::new(&program);
        fuzz.current_dir(&root).args(LIMITS).arg(format!("-max_total_time={}", options.seconds));
        fuzz.arg(format!("-artifact_prefix={artifact}")).args([&found, &kept]);
        // It says much, of which nothing matters where all went well.
        let log = format!("{OWN}/{target}.log");
        fuzz.stderr(fs::File::create(root.join(&log)).with_context(|| format!("cannot write {log}"))?);
        if let Err(error) = process::run(&mut fuzz) {
            eprintln!("error: {error:#}");
            broken.push(format!("{target}: {log} says what happened, the input is {artifact}…; mend it, and keep it in {kept}"));
        }
    }
    if broken.is_empty() { Ok(()) } else { bail!("inputs that are not survived: {}", broken.join("; ")) }
}

/// The targets are those that have kept inputs; a test of theirs holds both together.
fn targets(root: &Path, only: Option<&str>) -> anyhow::Result<Vec<String>> {
    let folder = root.join(KEPT);
    let entries = fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut all: Vec<String> =
        entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect::<anyhow::Result<_>>()?;
    all.sort();
    match only {
        None => Ok(all),
        Some(only) if all.iter().any(|target| target == only) => Ok(vec![only.to_owned()]),
        Some(only) => bail!("no target is called {only}; there are {}", all.join(", ")),
    }
}

/// The compiler's own target.
fn host() -> anyhow::Result<String> {
    let told = process::output("rustc", &["-vV"]).context("rustc -vV says nothing")?;
    let host = told.lines().find_map(|line| line.strip_prefix("host: ")).context("rustc -vV names no host")?;
    Ok(host.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_target_has_a_program_and_kept_inputs() {
        let root = process::root();
        let manifest = fs::read_to_string(root.join("tests/fuzz/Cargo.toml")).unwrap();
        let all = targets(&root, None).unwrap();
        let programs = manifest.lines().filter(|line| line.starts_with("name = \"fuzz-")).count();
        assert_eq!(programs, all.len());
        for target in &all {
            assert!(manifest.contains(&format!("name = \"fuzz-{target}\"")), "{target}");
        }
        assert!(targets(&root, Some("evnets")).unwrap_err().to_string().contains("events"));
    }
}
