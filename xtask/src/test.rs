//! `cargo xtask test`: formatting, lints, all tests, generated files; the totals stand last.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
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

    let folder = target_folder()?.join("debug");
    let built = |name: &str| folder.join(format!("{name}{}", std::env::consts::EXE_SUFFIX));
    // Together with the tests, so that both share what they are built from; tests start the program as a process.
    let build = ["build", "--workspace", "--bins", "--tests"];
    step("build", timed(|| process::run(process::cargo().args(build).args(features).args(locked))));
    if !options.fast {
        // No test has to wait for what takes minutes. Not by `cargo run`, which would choose features for this package alone, and
        // build what Kafka and Kubernetes are spoken to with once more.
        step("real parts", timed(|| process::run(&mut Command::new(built("prepare")))));
    }
    let program = built("eadt");

    let mut totals = Totals::default();
    for mut streams in test_commands(options, locked)? {
        for command in streams.iter_mut().flatten() {
            command.env(PROGRAM, &program);
            if ci && std::env::var_os(SEEDS.0).is_none() {
                command.env(SEEDS.0, SEEDS.1);
            }
        }
        for (counts, result) in timed(|| run_together(streams, &mut std::io::stdout())) {
            totals = totals.plus(counts);
            step("tests", result);
        }
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

/// Calls of `cargo test`, one after the other.
type Stream = Vec<Command>;

/// The `cargo test` calls of this run: phases one after the other, of streams at the same time.
fn test_commands(options: &Options, locked: &[&str]) -> anyhow::Result<Vec<Vec<Stream>>> {
    let packages = selected(&options.extra);
    let base = || {
        let mut command = process::cargo();
        command.args(["test", "--no-fail-fast"]).args(features(options)).args(locked);
        if packages.is_empty() {
            command.arg("--workspace");
        }
        command
    };
    if !options.fast && !options.extra.is_empty() {
        let mut all = base();
        all.args(&options.extra);
        return Ok(vec![vec![vec![all]]]);
    }
    let there = Targets::of(&metadata()?, &packages);
    let (with_more, with_rust): (Vec<_>, Vec<_>) = there.tests.into_iter().partition(|name| needs_more(name));
    let named = |mut command: Command, names: Vec<String>| {
        command.args(names.into_iter().flat_map(|name| ["--test".to_owned(), name])).args(&options.extra);
        command
    };
    let mut units = base();
    units.args(there.has_library.then_some("--lib")).arg("--bins");
    let mut first = vec![named(units, with_rust)];
    if packages.is_empty() {
        let mut docs = base();
        docs.arg("--doc").args(&options.extra);
        first.push(docs);
    }
    if options.fast {
        return Ok(vec![vec![first]]);
    }
    // Its services are built apart, with switches that no product has.
    let mut chaos = base();
    chaos.args(["--features", "eadt-chaos/chaos", "--test", "chaos"]);
    // Tests on real parts wait most of the time, the others compute.
    Ok(vec![vec![first, vec![named(base(), with_more)]], vec![vec![chaos]]])
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

/// The packages that these words for `cargo test` select; none: the workspace.
fn selected(extra: &[String]) -> BTreeSet<&str> {
    let names = |(i, word): (usize, &String)| match word.as_str() {
        "-p" | "--package" => extra.get(i + 1).map(String::as_str),
        _ => extra[i].strip_prefix("-p=").or_else(|| extra[i].strip_prefix("--package=")),
    };
    extra.iter().enumerate().filter_map(names).collect()
}

/// What can be asked of `cargo test` by name.
#[derive(Debug, Default)]
struct Targets {
    has_library: bool,
    /// Integration tests, each name once; those of other features than the usual ones have calls of their own.
    tests: BTreeSet<String>,
}

impl Targets {
    /// Those of these packages, or of all where none is named.
    fn of(metadata: &Value, packages: &BTreeSet<&str>) -> Self {
        let mut found = Self::default();
        for package in metadata["packages"].as_array().into_iter().flatten() {
            if !packages.is_empty() && !package["name"].as_str().is_some_and(|name| packages.contains(name)) {
                continue;
            }
            let usual = words(&package["features"]["default"]);
            for target in package["targets"].as_array().into_iter().flatten() {
                let kinds = words(&target["kind"]);
                found.has_library |= kinds.contains("lib");
                if kinds.contains("test") && words(&target["required-features"]).is_subset(&usual) {
                    found.tests.extend(target["name"].as_str().map(str::to_owned));
                }
            }
        }
        found
    }
}

/// The words of a list, where it is one.
fn words(list: &Value) -> BTreeSet<&str> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

/// Runs streams at the same time. The first one's output is shown as it comes, that of another one when all have ended.
fn run_together(streams: Vec<Stream>, shown: &mut impl Write) -> Vec<(Totals, anyhow::Result<()>)> {
    std::thread::scope(|scope| {
        let mut streams = streams.into_iter();
        let first = streams.next();
        let others: Vec<_> = streams
            .map(|stream| {
                scope.spawn(|| {
                    let mut kept = Vec::new();
                    let results = run_stream(stream, &mut kept);
                    (kept, results)
                })
            })
            .collect();
        let mut results = first.map_or_else(Vec::new, |stream| run_stream(stream, shown));
        for other in others {
            let (kept, more) = other.join().expect("reading the output of cargo test does not panic");
            results.extend(more);
            results.push((Totals::default(), shown.write_all(&kept).context("cannot show the output of cargo test")));
        }
        results
    })
}

fn run_stream(stream: Stream, shown: &mut impl Write) -> Vec<(Totals, anyhow::Result<()>)> {
    stream.into_iter().map(|mut command| run_tests(&mut command, shown)).collect()
}

/// Runs one `cargo test`, shows its output, counts.
fn run_tests(command: &mut Command, shown: &mut impl Write) -> (Totals, anyhow::Result<()>) {
    // Outputs of passed tests are read so that a skipped one is counted and said.
    if !command.get_args().any(|word| word == "--") {
        command.arg("--");
    }
    command.arg("--show-output");
    let text = process::shown(command);
    let mut reader = Reader::default();
    let result = (|| {
        writeln!(shown, "$ {text}")?;
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().with_context(|| format!("cannot start {text}"))?;
        let stdout = child.stdout.take().expect("piped");
        for line in BufReader::new(stdout).split(b'\n') {
            let line = line.context("cannot read the output of cargo test")?;
            let line = String::from_utf8_lossy(&line);
            if reader.line(&line) {
                writeln!(shown, "{line}")?;
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
    fn targets_are_those_of_the_selected_packages_and_of_usual_features() {
        let target =
            |name: &str, kind: &str, features: &[&str]| json!({"name": name, "kind": [kind], "required-features": features});
        let metadata = json!({"packages": [
            {"name": "one", "features": {"default": ["tls"]},
             "targets": [target("one", "lib", &[]), target("kafka_loop", "test", &["tls"]), target("walls", "test", &[])]},
            {"name": "two", "targets": [target("chaos", "test", &["chaos"]), {"name": "lake", "kind": ["test"]}, target("speed", "bench", &[])]},
        ]});
        let of = |extra: &[&str]| {
            let extra: Vec<String> = extra.iter().map(ToString::to_string).collect();
            let targets = Targets::of(&metadata, &selected(&extra));
            (targets.has_library, targets.tests.into_iter().collect::<Vec<_>>().join(" "))
        };
        assert_eq!(of(&["late"]), (true, "kafka_loop lake walls".to_owned()));
        assert_eq!(of(&["-p", "one", "late"]), (true, "kafka_loop walls".to_owned()));
        for two in [&["-p", "two"][..], &["late", "--package", "two"], &["-p=two"], &["--package=two"]] {
            assert_eq!(of(two), (false, "lake".to_owned()), "{two:?}");
        }
        assert_eq!(of(&["-p=one", "-p=two"]), (true, "kafka_loop lake walls".to_owned()));
    }

    #[test]
    fn streams_run_at_the_same_time_and_every_command_is_counted() {
        let dir = tempfile::tempdir().unwrap();
        let shell = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]).current_dir(dir.path());
            command
        };
        let says = |words: &str| format!("echo 'test result: ok. {words}; 0 failed; 0 ignored'");
        // Each waits for the other one.
        let first = vec![shell(&format!("mkfifo a b; echo > a; cat b; {}", says("2 passed"))), shell("exit 1")];
        let second = vec![shell(&format!("until test -p b; do sleep 0.01; done; cat a; echo > b; {}", says("40 passed")))];
        let mut shown = Vec::new();
        let results = run_together(vec![first, second], &mut shown);
        let passed: Vec<_> = results.iter().map(|(totals, result)| (totals.passed, result.is_ok())).collect();
        assert_eq!(passed, [(2, true), (0, false), (40, true), (0, true)]);
        let shown = String::from_utf8(shown).unwrap();
        let calls: Vec<_> = shown.lines().filter(|line| line.starts_with("$ sh")).collect();
        assert!(calls.len() == 3 && calls[2].contains("until") && shown.ends_with("40 passed; 0 failed; 0 ignored\n"), "{shown}");
    }

    #[test]
    fn what_tests_are_told_is_no_setting_of_the_programs_that_they_start() {
        for name in [PROGRAM, SEEDS.0] {
            assert!(name.starts_with("EADT_TEST_"), "{name} would be refused as a setting that is unknown");
        }
    }

    #[test]
    fn this_workspace_is_found() {
        let found = Targets::of(&metadata().unwrap(), &BTreeSet::new()).tests;
        assert!(["walls", "kafka_security"].iter().all(|name| found.contains(*name)), "{found:?}");
        assert!(!found.contains("chaos"), "it has its own call");
    }

    /// The calls of each stream of each phase.
    fn calls(fast: bool, extra: &[&str]) -> Vec<Vec<Vec<String>>> {
        let options = Options { install: false, fast, extra: extra.iter().map(ToString::to_string).collect() };
        let text = |stream: &Stream| stream.iter().map(|call| process::shown(call).replace("cargo ", "")).collect();
        test_commands(&options, &[]).unwrap().iter().map(|streams| streams.iter().map(text).collect()).collect()
    }

    #[test]
    fn a_selection_replaces_the_workspace_and_each_test_has_its_stream() {
        let chaos = "test --no-fail-fast --workspace --features eadt-chaos/chaos --test chaos";
        let all = calls(false, &[]);
        assert_eq!(all.iter().map(Vec::len).collect::<Vec<_>>(), [2, 1]);
        assert_eq!(all[1], [[chaos]]);
        let [rust, docs] = &all[0][0][..] else { panic!("{all:?}") };
        assert!(
            rust.starts_with("test --no-fail-fast --workspace --lib --bins --test ") && rust.contains("--test walls"),
            "{rust}"
        );
        assert_eq!(docs, "test --no-fail-fast --workspace --doc");
        let [more] = &all[0][1][..] else { panic!("{all:?}") };
        assert!(more.contains("--test kafka_security") && !more.contains("--lib"), "{more}");
        // Each in one of them.
        for name in Targets::of(&metadata().unwrap(), &BTreeSet::new()).tests {
            let is_in = |call: &str| format!("{call} ").contains(&format!(" --test {name} "));
            assert!(is_in(rust) != is_in(more) && is_in(more) == needs_more(&name), "{name}");
        }

        assert_eq!(calls(false, &["-p", "eadt-core", "late"]), [[["test --no-fail-fast -p eadt-core late"]]]);
    }

    #[test]
    fn fast_leaves_out_what_needs_kafka_kubernetes_or_python_and_nothing_else() {
        let fast = calls(true, &[]);
        let [rust, docs] = &fast[0][0][..] else { panic!("{fast:?}") };
        assert!(
            rust.contains(" --no-default-features ") && docs.contains(" --no-default-features "),
            "no perl is needed: {fast:?}"
        );
        assert!(rust.contains("--lib --bins") && rust.contains("--test walls"), "{fast:?}");
        assert_eq!((fast.len(), fast[0].len()), (1, 1), "{fast:?}");
        assert_eq!(docs, "test --no-fail-fast --no-default-features --workspace --doc");
        for name in Targets::of(&metadata().unwrap(), &BTreeSet::new()).tests {
            assert!(format!("{rust} ").contains(&format!(" --test {name} ")) != needs_more(&name), "{name}");
        }
        let one = &calls(true, &["-p", "eadt-nvml", "late"])[0][0];
        assert_eq!(one, &["test --no-fail-fast --no-default-features --lib --bins --test settings -p eadt-nvml late"]);
        let one = &calls(true, &["-p=eadt"])[0][0][0];
        assert!(
            one.contains("--lib") && one.contains("--test replay") && !one.contains("walls") && !one.contains("kafka_"),
            "{one}"
        );
    }
}
