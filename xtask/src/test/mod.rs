//! `cargo xtask test`: formatting, lints and build in one pass, all tests, generated files. The totals and the times come last.
//!
//! - Lints run during the build: `clippy-driver` is the compiler of the workspace's crates. A separate pass would compile every
//!   dependency again.
//! - All building comes first. Then two lanes run in parallel: one with tests that compute, followed by Kubernetes, Python and the
//!   browser, and one with tests that wait for Kafka.
//! - The longest tests are drawn in each run, by a seed that is printed: a third of the fault rows, a third of the fuzz targets, and
//!   other simulated stories. CONTRIBUTING has the commands that run all.

mod lanes;
mod libtest;
pub mod plan;
pub mod times;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use clap::Args;
use serde_json::Value;

use self::lanes::{Job, run_lanes};
use self::libtest::Totals;
use self::plan::{Binary, Selection};
use self::times::Times;
use crate::{fuzz, generate, prerequisites, process, web};

#[derive(Debug, Args)]
pub struct Options {
    /// Install missing system packages with apt-get (also with `CI=true`).
    #[arg(long)]
    install: bool,
    /// Only what needs nothing but Rust, a C and a C++ compiler and make: no Apache Kafka, no Kubernetes, no Python.
    #[arg(long)]
    fast: bool,
    /// Every fault row and fuzz target instead of a third of them.
    #[arg(long)]
    all_rows: bool,
    /// Draw what the run with this seed drew [default: one more than the last run's].
    #[arg(long)]
    seed: Option<u64>,
    /// `-p PACKAGE` and parts of tests' names: only these.
    #[arg(last = true)]
    extra: Vec<String>,
}

/// The variable with the path of the built program, for tests.
const PROGRAM: &str = "EADT_TEST_PROGRAM";
/// The variables with the seconds of wall time of each simulation, and with its first seed (`crates/testing`).
const STORY_SECONDS: &str = "EADT_TEST_STORY_SECONDS";
const FIRST_SEED: &str = "EADT_TEST_FIRST_SEED";
/// Variable for the part of the fault rows that is run: `1/3` (`tests/chaos`).
const ROWS: &str = "EADT_TEST_ROWS";
/// Parts in which rows and targets are drawn: three consecutive seeds see all.
const PARTS: u64 = 3;

pub fn run(options: &Options) -> anyhow::Result<()> {
    let begun = Instant::now();
    let ci = std::env::var("CI").is_ok_and(|ci| ci == "true");
    let selection = Selection::parse(&options.extra)?;
    if !options.fast {
        prerequisites::ensure(options.install || ci)?;
    }
    let seed = match options.seed {
        Some(seed) => seed,
        None => next_seed()?,
    };
    println!("seed {seed} (repeat with --seed {seed})");
    let locked: &[&str] = if ci { &["--locked"] } else { &[] };
    let mut times = Times::default();
    let mut failed: Vec<(String, String)> = Vec::new();
    let mut step = |name: &str, result: anyhow::Result<()>| {
        if let Err(error) = result {
            eprintln!("error: {error:#}");
            failed.push((name.to_owned(), format!("{error:#}")));
        }
    };

    step("formatting", times::run("formatting", process::cargo().args(["fmt", "--all", "--check"]), &mut times));
    let built = plan::build(options.fast, &selection, locked, &mut times);
    let binaries = built.unwrap_or_else(|error| {
        step("lints and build", Err(error));
        Vec::new()
    });
    let whole = !options.fast && selection.is_all() && !binaries.is_empty();
    let mut targets = Vec::new();
    if whole {
        let part = (!options.all_rows).then_some((seed % PARTS, PARTS));
        match fuzz::build(part, &mut times) {
            Ok(built) => targets = built,
            Err(error) => step("build of the fuzz targets", Err(error)),
        }
    }

    let program = program()?;
    let environment = Environment { program: &program, seed, all_rows: options.all_rows, fast: options.fast };
    let (real, computing): (Vec<_>, Vec<_>) = binaries.into_iter().partition(Binary::needs_real_parts);
    let (rows, real): (Vec<_>, Vec<_>) = real.into_iter().partition(Binary::is_of_fault_rows);
    let computing = plan::longest_first(computing);
    let mut first: Vec<Job> =
        computing.iter().map(|binary| Job::Test(environment.test(binary, &selection, binary.threads()))).collect();
    first.extend(targets.into_iter().map(Job::Fuzz));
    let mut second = Vec::new();
    if !real.is_empty() || !rows.is_empty() {
        // No test has to wait for what takes minutes. Not by `cargo run`, which would choose features for this package alone.
        second.push(Job::Prepare(Command::new(program.with_file_name("prepare"))));
        for binary in &real {
            match environment.by_module(binary, &selection) {
                Ok(jobs) => {
                    let (kafka, others): (Vec<_>, Vec<_>) = jobs.into_iter().partition(Job::is_of_kafka);
                    second.extend(kafka);
                    first.extend(others);
                }
                Err(error) => step("real parts", Err(error)),
            }
        }
        if whole {
            first.extend(web::BrowserTest::find(&program, options.install || ci)?.map(Job::Web));
        }
        second.extend(rows.iter().map(|binary| Job::Test(environment.test(binary, &selection, 1))));
    }
    let mut totals = Totals::default();
    for done in run_lanes(vec![(first, COMPUTING_AT_ONCE), (second, 1)], &mut std::io::stdout()) {
        totals.add(done.totals);
        times.extend(done.times);
        step(&done.name, done.result);
    }
    if program.exists() {
        let checked = Instant::now();
        step("generated files", generate::check(&program));
        times.add("generated files", checked.elapsed(), None);
    }
    times.tests.append(&mut totals.seconds);
    times.add("everything", begun.elapsed(), None);

    println!("\n{}", times.table());
    println!("kept in {}; `cargo xtask times` compares it with the run before", times.write()?.display());
    for reason in &totals.reasons {
        println!("{reason}");
    }
    for failure in &totals.failures {
        println!("failed: {}", failure.name);
        failure.message.iter().for_each(|line| println!("    {line}"));
    }
    // Printed again at the end, so that other jobs' output does not hide it.
    for (_, error) in &failed {
        println!("failed: {error}");
    }
    let mut failed: Vec<String> = failed.into_iter().map(|(name, _)| name).collect();
    if failed.is_empty() && totals.passed == 0 {
        failed.push("tests: none ran".to_owned());
    }
    println!("{}", totals.line());
    if failed.is_empty() && totals.failed == 0 { Ok(()) } else { bail!("failed: {}", failed.join(", ")) }
}

/// Tests of the real parts wait most of the time.
const REAL_PARTS_AT_ONCE: usize = 2;
/// Binaries that compute, each with one thread: the longest begin first, so that both cores are busy to the end.
const COMPUTING_AT_ONCE: usize = 2;
/// Seconds of each simulation in a whole and in a fast run.
const SECONDS_OF_STORIES: [&str; 2] = ["10", "3"];

/// The environment of test binaries.
struct Environment<'a> {
    program: &'a Path,
    seed: u64,
    all_rows: bool,
    fast: bool,
}

impl Environment<'_> {
    fn test(&self, binary: &Binary, selection: &Selection, threads: usize) -> (String, Command) {
        let mut command = Command::new(&binary.executable);
        command.args(&selection.names).args(libtest::ARGUMENTS).arg(format!("--test-threads={threads}"));
        command.current_dir(&binary.folder).env("CARGO_MANIFEST_DIR", &binary.folder).env("RUSTC_BOOTSTRAP", "1");
        command.env("CARGO", process::cargo().get_program()).env(PROGRAM, self.program);
        let defaults = [
            (STORY_SECONDS, SECONDS_OF_STORIES[usize::from(self.fast)].to_owned()),
            (FIRST_SEED, self.seed.saturating_mul(1_000_000).to_string()),
            (ROWS, if self.all_rows { "1/1".to_owned() } else { format!("{}/{PARTS}", self.seed % PARTS + 1) }),
        ];
        for (name, value) in defaults {
            if std::env::var_os(name).is_none() {
                command.env(name, value);
            }
        }
        (binary.name.clone(), command)
    }
}

impl Environment<'_> {
    /// Returns a process for each module, or one for the names that were asked for.
    fn by_module(&self, binary: &Binary, selection: &Selection) -> anyhow::Result<Vec<Job>> {
        if !selection.names.is_empty() {
            return Ok(vec![Job::Test(self.test(binary, selection, REAL_PARTS_AT_ONCE))]);
        }
        let job = |module: String| {
            let (name, mut command) = self.test(binary, selection, REAL_PARTS_AT_ONCE);
            command.arg(format!("{module}::"));
            Job::Test((format!("{name} {module}"), command))
        };
        Ok(plan::modules(binary)?.into_iter().map(job).collect())
    }
}

/// Returns one more than the last run's seed, and keeps it; the first one comes from the clock.
fn next_seed() -> anyhow::Result<u64> {
    let folder = cache_folder().context("neither HOME, XDG_CACHE_HOME nor EADT_TEST_CACHE is set")?;
    let file = folder.join("seed");
    let last = std::fs::read_to_string(&file).ok().and_then(|text| text.trim().parse::<u64>().ok());
    let fresh = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |time| time.as_secs() % 1_000_000);
    let seed = last.map_or_else(fresh, |last| last.wrapping_add(1) % 1_000_000_000);
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    std::fs::write(&file, format!("{seed}\n")).with_context(|| format!("cannot write {}", file.display()))?;
    Ok(seed)
}

/// Returns the folder in which the tests keep downloads and builds.
pub fn cache_folder() -> Option<PathBuf> {
    let path = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let user = || path("XDG_CACHE_HOME").or_else(|| Some(path("HOME")?.join(".cache")));
    path("EADT_TEST_CACHE").or_else(|| Some(user()?.join("eadt")))
}

/// Returns cargo's target folder.
pub fn target_folder() -> anyhow::Result<PathBuf> {
    let output =
        process::cargo().args(["metadata", "--format-version=1", "--no-deps"]).output().context("cannot start cargo metadata")?;
    if !output.status.success() {
        bail!("cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let metadata: Value = serde_json::from_slice(&output.stdout).context("cargo metadata printed no JSON")?;
    Ok(metadata["target_directory"].as_str().context("cargo metadata names no target_directory")?.into())
}

/// Returns the path of the program that a debug build makes.
pub fn program() -> anyhow::Result<PathBuf> {
    Ok(target_folder()?.join("debug").join(format!("eadt{}", std::env::consts::EXE_SUFFIX)))
}

/// Builds the program as `cargo xtask test` does, and returns its path. With fewer targets, dependencies have other features, and
/// everything would be built again.
pub fn build_program() -> anyhow::Result<PathBuf> {
    process::run(plan::linting_cargo().args(["build", "--workspace", "--all-targets"]))?;
    program()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_for_tests_are_no_settings_of_the_programs_that_they_start() {
        for name in [PROGRAM, STORY_SECONDS, FIRST_SEED, ROWS] {
            assert!(name.starts_with("EADT_TEST_"), "{name} would be refused as a setting that is unknown");
        }
    }

    #[test]
    fn three_consecutive_seeds_see_all_parts() {
        let parts: std::collections::BTreeSet<_> = (17..17 + PARTS).map(|seed| seed % PARTS).collect();
        assert_eq!(parts.len() as u64, PARTS);
    }
}
