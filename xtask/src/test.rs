//! `cargo xtask test`: formatting, lints, all tests, generated files; the totals stand last.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, bail};
use clap::Args;
use serde_json::Value;

use crate::summary::{Reader, Totals};
use crate::{fuzz, generate, prerequisites, process};

#[derive(Debug, Args)]
pub struct Options {
    /// Install missing system packages with apt-get (also with `CI=true`).
    #[arg(long)]
    install: bool,
    /// Only what needs nothing but Rust, a C and a C++ compiler and make: no Apache Kafka, no Kubernetes, no Python.
    #[arg(long)]
    fast: bool,
    /// Passed on to `cargo test`: `-p eadt-core`, part of a test's name, …
    #[arg(last = true)]
    extra: Vec<String>,
}

/// Tells tests where the built program is.
const PROGRAM: &str = "EADT_TEST_PROGRAM";

/// How many stories each simulation tells: minutes of CI's time, seconds of a developer's.
const SEEDS: (&str, &str) = ("EADT_TEST_SEEDS", "10000");

/// Test binaries that need more than Rust.
fn needs_more(binary: &str) -> bool {
    ["kafka_", "kubernetes_", "python_"].iter().any(|prefix| binary.starts_with(prefix))
}

pub fn run(options: &Options) -> anyhow::Result<()> {
    let ci = std::env::var("CI").is_ok_and(|ci| ci == "true");
    if !options.fast {
        prerequisites::ensure(options.install || ci)?;
    }
    let locked: &[&str] = if ci { &["--locked"] } else { &[] };
    let mut failed = Vec::new();
    let mut step = |name: &str, result: anyhow::Result<()>| {
        if let Err(error) = result {
            eprintln!("error: {error:#}");
            failed.push(name.to_owned());
        }
    };

    step("formatting", process::run(process::cargo().args(["fmt", "--all", "--check"])));
    let features = features(options);
    let clippy = ["clippy", "--workspace", "--all-targets"];
    step(
        "lints",
        timed(|| process::run(process::cargo().args(clippy).args(features).args(locked).args(["--", "-D", "warnings"]))),
    );

    // Together with the tests, so that both share what they are built from; tests start the program as a process.
    let build = ["build", "--workspace", "--bins", "--tests"];
    step("build", timed(|| process::run(process::cargo().args(build).args(features).args(locked))));
    if !options.fast {
        // No test has to wait for what takes minutes.
        let prepare = ["run", "--quiet", "--package", "eadt-tests", "--bin", "prepare"];
        step("real parts", timed(|| process::run(process::cargo().args(prepare).args(locked))));
    }
    let program = target_folder()?.join("debug").join(format!("eadt{}", std::env::consts::EXE_SUFFIX));

    let mut totals = Totals::default();
    for mut command in test_commands(options, locked)? {
        if ci && std::env::var_os(SEEDS.0).is_none() {
            command.env(SEEDS.0, SEEDS.1);
        }
        let (counts, result) = run_tests(command.env(PROGRAM, &program));
        totals = totals.plus(counts);
        step("tests", result);
    }
    if !options.fast && options.extra.is_empty() {
        step("fuzzing", timed(|| fuzz::run(&fuzz::Options::SHORT)));
    }
    step("generated files", generate::check(&program));

    println!();
    for reason in &totals.reasons {
        println!("{reason}");
    }
    for failure in &totals.failures {
        println!("failed: {}", failure.name);
        failure.said.iter().for_each(|line| println!("    {line}"));
    }
    if failed.is_empty() && totals.passed == 0 {
        failed.push("tests: none ran".to_owned());
    }
    println!("{}", totals.line());
    if failed.is_empty() { Ok(()) } else { bail!("failed: {}", failed.join(", ")) }
}

/// Without Kafka there is nothing to be reached by TLS, which takes perl to build (docs/adr/0003).
fn features(options: &Options) -> &'static [&'static str] {
    if options.fast { &["--no-default-features"] } else { &[] }
}

/// The `cargo test` calls of this run.
fn test_commands(options: &Options, locked: &[&str]) -> anyhow::Result<Vec<Command>> {
    let own_selection = options.extra.iter().any(|word| word == "-p" || word.starts_with("--package") || word.starts_with("-p="));
    let base = || {
        let mut command = process::cargo();
        command.args(["test", "--no-fail-fast"]).args(features(options)).args(locked);
        if !own_selection {
            command.arg("--workspace");
        }
        command
    };
    if !options.fast {
        let mut all = base();
        all.args(&options.extra);
        // Its services are built apart, with switches that no product has.
        let mut chaos = base();
        chaos.args(["--features", "eadt-chaos/chaos", "--test", "chaos"]);
        return Ok(if options.extra.is_empty() { vec![all, chaos] } else { vec![all] });
    }
    let mut selected = base();
    selected.args(["--lib", "--bins"]);
    for name in integration_tests(&metadata()?).into_iter().filter(|name| !needs_more(name)) {
        selected.args(["--test", &name]);
    }
    selected.args(&options.extra);
    let mut docs = base();
    docs.arg("--doc").args(&options.extra);
    Ok(if own_selection { vec![selected] } else { vec![selected, docs] })
}

fn metadata() -> anyhow::Result<Value> {
    let output =
        process::cargo().args(["metadata", "--format-version=1", "--no-deps"]).output().context("cannot start cargo metadata")?;
    if !output.status.success() {
        bail!("cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    serde_json::from_slice(&output.stdout).context("cargo metadata printed no JSON")
}

/// Where cargo puts what it builds.
pub fn target_folder() -> anyhow::Result<PathBuf> {
    Ok(metadata()?["target_directory"].as_str().context("cargo metadata names no target_directory")?.into())
}

/// Names of all integration test targets, each once.
fn integration_tests(metadata: &Value) -> BTreeSet<String> {
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let targets = packages.flat_map(|package| package["targets"].as_array().into_iter().flatten());
    let tests = targets.filter(|target| target["kind"].as_array().is_some_and(|kinds| kinds.iter().any(|kind| kind == "test")));
    tests.filter_map(|target| target["name"].as_str().map(str::to_owned)).collect()
}

/// Runs one `cargo test`, shows its output, counts.
fn run_tests(command: &mut Command) -> (Totals, anyhow::Result<()>) {
    // Outputs of passed tests are read so that a skipped one is counted and said.
    if !command.get_args().any(|word| word == "--") {
        command.arg("--");
    }
    command.arg("--show-output");
    let text = process::shown(command);
    println!("$ {text}");
    let mut reader = Reader::default();
    let result = (|| {
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().with_context(|| format!("cannot start {text}"))?;
        let stdout = child.stdout.take().expect("piped");
        for line in BufReader::new(stdout).split(b'\n') {
            let line = line.context("cannot read the output of cargo test")?;
            let line = String::from_utf8_lossy(&line);
            if reader.line(&line) {
                println!("{line}");
            }
        }
        let status = child.wait()?;
        if status.success() { Ok(()) } else { bail!("{text} failed: {status}") }
    })();
    (reader.totals(), result)
}

fn timed<T>(step: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = step();
    println!("  took {:.0} s", start.elapsed().as_secs_f64());
    result
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fast_leaves_out_what_needs_kafka_kubernetes_or_python_and_nothing_else() {
        let metadata = json!({"packages": [
            {"targets": [{"name": "eadt", "kind": ["lib"]}, {"name": "kafka_loop", "kind": ["test"]}, {"name": "kubernetes_loop", "kind": ["test"]}, {"name": "walls", "kind": ["test"]}]},
            {"targets": [{"name": "python_archive", "kind": ["test"]}, {"name": "lake", "kind": ["test"]}, {"name": "speed", "kind": ["bench"]}]},
        ]});
        let kept: Vec<String> = integration_tests(&metadata).into_iter().filter(|name| !needs_more(name)).collect();
        assert_eq!(kept, ["lake", "walls"]);
    }

    #[test]
    fn what_tests_are_told_is_no_setting_of_the_programs_that_they_start() {
        for name in [PROGRAM, SEEDS.0] {
            assert!(name.starts_with("EADT_TEST_"), "{name} would be refused as a setting that is unknown");
        }
    }

    #[test]
    fn this_workspace_is_found() {
        assert!(integration_tests(&metadata().unwrap()).contains("walls"));
    }

    #[test]
    fn a_selection_replaces_the_workspace() {
        let words = |fast: bool, extra: &[&str]| {
            let options = Options { install: false, fast, extra: extra.iter().map(ToString::to_string).collect() };
            let commands = test_commands(&options, &[]).unwrap();
            commands.iter().map(|command| process::shown(command).replace("cargo ", "")).collect::<Vec<_>>()
        };
        let chaos = "test --no-fail-fast --workspace --features eadt-chaos/chaos --test chaos";
        assert_eq!(words(false, &[]), ["test --no-fail-fast --workspace", chaos]);
        assert_eq!(words(false, &["-p", "eadt-core", "late"]), ["test --no-fail-fast -p eadt-core late"]);
        let fast = words(true, &[]);
        assert!(fast.iter().all(|command| command.contains(" --no-default-features ")), "no perl is needed: {fast:?}");
        assert!(fast[0].contains("--lib --bins") && fast[0].contains("--test walls"), "{fast:?}");
        assert!(!fast[0].contains("kafka_") && !fast[0].contains("kubernetes_"), "{fast:?}");
        assert_eq!(fast[1], "test --no-fail-fast --no-default-features --workspace --doc");
    }
}
