//! The build, and the test binaries that it produces.

use std::io::BufReader;
use std::io::prelude::*;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, bail};
use serde_json::Value;

use super::times::{self, Times};
use crate::process;

/// The packages and the parts of names that were asked for.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Selection {
    pub packages: Vec<String>,
    pub names: Vec<String>,
}

impl Selection {
    /// Reads `-p PACKAGE`, `--package=PACKAGE` and parts of names.
    pub fn parse(words: &[String]) -> anyhow::Result<Self> {
        let mut selection = Self::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let assigned = ["-p=", "--package="].iter().find_map(|flag| word.strip_prefix(flag));
            if let Some(package) = assigned {
                selection.packages.push(package.to_owned());
            } else if word == "-p" || word == "--package" {
                selection.packages.push(words.next().with_context(|| format!("{word} names no package"))?.clone());
            } else if word.starts_with('-') {
                bail!("{word} is not understood after `--`: give `-p PACKAGE` and parts of tests' names, or use cargo test");
            } else {
                selection.names.push(word.clone());
            }
        }
        Ok(selection)
    }

    pub fn is_all(&self) -> bool {
        self.packages.is_empty() && self.names.is_empty()
    }
}

/// A test binary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binary {
    /// `eadt-core`, `eadt-core integration`, …
    pub name: String,
    pub executable: PathBuf,
    /// Its package's, in which it is run.
    pub folder: PathBuf,
}

/// The tests on Apache Kafka, Kubernetes and Python.
const REAL_PARTS: &str = "eadt-tests real_parts";

/// The fault rows on Apache Kafka and Kubernetes.
const FAULT_ROWS: &str = "eadt-chaos chaos";

/// The tests that start the built program.
const PROGRAM: &str = "eadt program";

/// Binaries that take longest, as `cargo xtask times` shows: if one began last, it would run alone.
const LONGEST: [&str; 6] = [
    PROGRAM,
    "eadt-processor integration",
    "eadt-gpu-sharing integration",
    "eadt-bus",
    "eadt-bus integration",
    "eadt-core integration",
];

impl Binary {
    /// Returns how many tests run at once. Those of the program wait for processes half of the time; all others compute.
    pub fn threads(&self) -> usize {
        if self.name == PROGRAM { 2 } else { 1 }
    }

    pub fn needs_real_parts(&self) -> bool {
        self.name == REAL_PARTS || self.is_of_fault_rows()
    }

    pub fn is_of_fault_rows(&self) -> bool {
        self.name == FAULT_ROWS
    }
}

/// Returns the modules of a test binary. Those on real parts run in a process each: a process shares one control plane, and the
/// jobs of one module would hold the GPUs of another's.
pub fn modules(binary: &Binary) -> anyhow::Result<Vec<String>> {
    let program = binary.executable.to_string_lossy().into_owned();
    let list = process::output(&program, &["--list", "--format=terse"]).with_context(|| format!("{program} lists no tests"))?;
    let mut modules: Vec<String> = modules_of(&list).map(str::to_owned).collect();
    modules.dedup();
    Ok(modules)
}

fn modules_of(list: &str) -> impl Iterator<Item = &str> {
    list.lines().filter_map(|line| line.strip_suffix(": test")?.split_once("::").map(|(module, _)| module))
}

/// Puts those that take longest first.
pub fn longest_first(mut binaries: Vec<Binary>) -> Vec<Binary> {
    binaries.sort_by_key(|binary| LONGEST.iter().position(|name| binary.name == *name).unwrap_or(LONGEST.len()));
    binaries
}

/// Returns a cargo whose compiler of this workspace's crates reports lints, too, and refuses warnings.
pub fn linting_cargo() -> Command {
    let mut cargo = process::cargo();
    cargo.env("RUSTC_WORKSPACE_WRAPPER", "clippy-driver").env("CLIPPY_ARGS", "-Dwarnings__CLIPPY_HACKERY__");
    process::use_system_openssl(&mut cargo);
    cargo
}

/// Lints and builds everything, or the selected packages. Returns the test binaries.
pub fn build(fast: bool, selection: &Selection, locked: &[&str], times: &mut Times) -> anyhow::Result<Vec<Binary>> {
    if process::output("clippy-driver", &["--version"]).is_none() {
        bail!("clippy-driver is missing, which reports the lints: rustup component add clippy");
    }
    let mut command = linting_cargo();
    command.args(["build", "--workspace", "--keep-going"]).args(targets(fast)).args(locked);
    let binaries = build_tests("lints and build", command, times)?;
    let is_selected = |binary: &Binary| {
        let package = binary.name.split(' ').next().unwrap_or_default();
        selection.packages.is_empty() || selection.packages.iter().any(|name| name == package)
    };
    let binaries: Vec<_> = binaries.into_iter().filter(is_selected).filter(|binary| runs(binary, fast)).collect();
    if binaries.is_empty() {
        bail!("there are no tests of {}", selection.packages.join(", "));
    }
    Ok(binaries)
}

/// A fast run needs no benchmarks, and no TLS, since it has no Kafka (docs/adr/0003).
fn targets(fast: bool) -> &'static [&'static str] {
    if fast { &["--bins", "--tests", "--no-default-features"] } else { &["--all-targets"] }
}

fn runs(binary: &Binary, fast: bool) -> bool {
    !(fast && binary.needs_real_parts())
}

/// Builds the harness of the fault rows and its services, with the features that tests have.
pub const BUILD_OF_CHAOS: [&str; 8] = ["build", "--workspace", "--bin", "chaos", "--bin", "chaos-part", "--bin", "eadt"];

/// Runs a cargo that builds, and reads which test binaries it has made.
fn build_tests(name: &str, mut command: Command, times: &mut Times) -> anyhow::Result<Vec<Binary>> {
    command.arg("--message-format=json-render-diagnostics");
    let text = process::shown(&command);
    println!("$ {text}");
    let begun = Instant::now();
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().with_context(|| format!("cannot start {text}"))?;
    let mut binaries = Vec::new();
    for line in BufReader::new(child.stdout.take().expect("piped")).lines() {
        let line = line.context("cannot read the output of cargo build")?;
        binaries.extend(serde_json::from_str::<Value>(&line).ok().as_ref().and_then(binary));
    }
    let (status, cpu_seconds) = times::wait(&mut child)?;
    times.add(name, begun.elapsed(), cpu_seconds);
    if !status.success() {
        bail!("{text} failed: {status}");
    }
    binaries.sort_by(|a: &Binary, b: &Binary| a.name.cmp(&b.name));
    Ok(binaries)
}

/// Reads one message of cargo: a test binary, if it reports one.
fn binary(message: &Value) -> Option<Binary> {
    let kind = message["target"]["kind"][0].as_str()?;
    // Benchmarks are built, so that they are linted; `cargo xtask bench` runs them.
    if message["profile"]["test"] != true || !["lib", "bin", "test"].contains(&kind) {
        return None;
    }
    let executable = PathBuf::from(message["executable"].as_str()?);
    let manifest = PathBuf::from(message["manifest_path"].as_str()?);
    // `path+file:///…/crates/core#eadt-core@0.1.0`, or `…/eadt#0.1.0` if the folder has the package's name.
    let id = message["package_id"].as_str()?;
    let (place, version) = id.rsplit_once('#')?;
    let package = version.split_once('@').map_or_else(|| place.rsplit('/').next(), |(name, _)| Some(name))?;
    let target = message["target"]["name"].as_str()?;
    let name = if kind == "lib" { package.to_owned() } else { format!("{package} {target}") };
    Some(Binary { name, executable, folder: manifest.parent()?.to_owned() })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn packages_and_names_are_distinguished_and_other_flags_are_refused() {
        let one = Selection { packages: words(&["eadt-core"]), names: words(&["late"]) };
        for given in [&["-p", "eadt-core", "late"][..], &["late", "--package=eadt-core"], &["-p=eadt-core", "late"]] {
            assert_eq!(Selection::parse(&words(given)).unwrap(), one, "{given:?}");
        }
        assert!(Selection::parse(&[]).unwrap().is_all() && !one.is_all());
        assert!(Selection::parse(&words(&["--release"])).unwrap_err().to_string().contains("--release is not understood"));
        assert!(Selection::parse(&words(&["-p"])).is_err());
    }

    #[test]
    fn test_binaries_are_read_from_the_messages_of_cargo() {
        let message = |id: &str, kind: &str, test: bool| {
            json!({"reason": "compiler-artifact", "package_id": id, "manifest_path": "/r/crates/core/Cargo.toml",
                "target": {"kind": [kind], "name": "integration"}, "profile": {"test": test}, "executable": "/r/target/debug/deps/x-1"})
        };
        let name = |id, kind, test| binary(&message(id, kind, test)).map(|binary| binary.name);
        assert_eq!(name("path+file:///r/crates/core#eadt-core@0.1.0", "test", true).unwrap(), "eadt-core integration");
        assert_eq!(name("path+file:///r/crates/core#eadt-core@0.1.0", "lib", true).unwrap(), "eadt-core");
        assert_eq!(name("path+file:///r/xtask#0.1.0", "lib", true).unwrap(), "xtask");
        assert_eq!(name("path+file:///r/xtask#0.1.0", "lib", false), None);
        assert_eq!(name("path+file:///r/xtask#0.1.0", "bench", true), None);
        assert_eq!(binary(&message("path+file:///r/a#b@1", "lib", true)).unwrap().folder, PathBuf::from("/r/crates/core"));
    }

    #[test]
    fn modules_are_read_from_the_list_of_tests() {
        let list = "kafka_bus::a::b: test\nkubernetes_up::c: test\nalone: test\nkafka_bus::d: benchmark\n\n";
        assert_eq!(modules_of(list).collect::<Vec<_>>(), ["kafka_bus", "kubernetes_up"]);
    }

    fn named(name: &str) -> Binary {
        Binary { name: name.to_owned(), executable: PathBuf::new(), folder: PathBuf::new() }
    }

    #[test]
    fn fast_leaves_out_what_needs_kafka_kubernetes_or_python_and_nothing_else() {
        assert!(targets(true).contains(&"--no-default-features") && targets(true).contains(&"--tests"), "no perl is needed");
        let manifest = std::fs::read_to_string(process::root().join("tests/Cargo.toml")).unwrap();
        assert!(
            manifest.contains("name = \"eadt-tests\"") && manifest.contains("name = \"real_parts\""),
            "{REAL_PARTS} is the binary's name"
        );
        // Every test on real parts is in that binary, and no other one has any.
        for entry in std::fs::read_dir(process::root().join("tests")).unwrap() {
            let file = entry.unwrap().file_name().into_string().unwrap();
            let Some(module) = file.strip_suffix(".rs") else { continue };
            let needs_more = ["kafka_", "kubernetes_", "python_"].iter().any(|prefix| module.starts_with(prefix));
            let declares = |home: &str| {
                let text = std::fs::read_to_string(process::root().join("tests").join(home)).unwrap();
                text.lines().any(|line| line == format!("mod {module};"))
            };
            assert!(!needs_more || declares("real_parts.rs"), "{file}");
            assert!(!(needs_more && declares("program.rs")), "{file}");
        }
        assert!(!runs(&named(REAL_PARTS), true) && runs(&named(REAL_PARTS), false) && runs(&named("eadt program"), true));
    }

    #[test]
    fn the_longest_begin_first() {
        let sorted = longest_first(["a", LONGEST[1], "b", LONGEST[0]].map(named).to_vec());
        assert_eq!(sorted.iter().map(|binary| &*binary.name).collect::<Vec<_>>(), [LONGEST[0], LONGEST[1], "a", "b"]);
    }
}
