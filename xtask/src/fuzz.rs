//! `cargo xtask fuzz`: searches for inputs that make a reader panic, guided by code coverage (libFuzzer).
//!
//! It begins with the kept inputs (seeds, and earlier failures), and with earlier finds in target/fuzz/corpus.
//!
//! The instrumentation is LLVM's, which the stable compiler takes as flags (tests/fuzz/instrumented.sh); code without `unsafe`
//! needs no sanitizer.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use clap::Args;

use crate::process;
use crate::test::times::{self, Times};

#[derive(Debug, Args)]
pub struct Options {
    /// Only this target; without it: all (see tests/fuzz/src/lib.rs).
    target: Option<String>,
    /// Seconds for each target.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
}

/// Seconds for each target in a test run.
const SECONDS_IN_TESTS: u64 = 15;
const KEPT: &str = "tests/fuzz/corpus";
const OWN: &str = "target/fuzz";
/// The compiler, with coverage of what it builds. A path, since cargo passes it no other information.
const INSTRUMENTED: &str = "tests/fuzz/instrumented.sh";
/// Larger inputs find the same, slower.
const LIMITS: [&str; 5] = ["-max_len=8192", "-timeout=25", "-rss_limit_mb=4096", "-verbosity=0", "-close_fd_mask=0"];

pub fn run(options: &Options) -> anyhow::Result<()> {
    let mut times = Times::default();
    let targets = build_targets(targets(&process::root(), options.target.as_deref())?, options.seconds, &mut times)?;
    let broken: Vec<_> = targets.iter().filter_map(|target| target.run(&mut times).err()).collect();
    let broken: Vec<String> = broken.iter().map(|error| format!("{error:#}")).collect();
    if broken.is_empty() { Ok(()) } else { bail!("{}", broken.join("; ")) }
}

/// Builds the targets of a test run: all, or one part of several.
pub fn build(part: Option<(u64, u64)>, times: &mut Times) -> anyhow::Result<Vec<Target>> {
    let all = targets(&process::root(), None)?;
    let (part, parts) = part.unwrap_or((0, 1));
    let drawn = all.into_iter().zip(0..).filter(|(_, place)| place % parts == part).map(|(target, _)| target);
    build_targets(drawn.collect(), SECONDS_IN_TESTS, times)
}

fn build_targets(names: Vec<String>, seconds: u64, times: &mut Times) -> anyhow::Result<Vec<Target>> {
    // Chosen from the whole workspace, so that dependencies are built like those of the tests, and not built again.
    let mut build = process::cargo();
    build.args(["build", "--workspace", "--features", "eadt-fuzz/libfuzzer,eadt-fuzz-program/libfuzzer"]);
    build.args(names.iter().flat_map(|target| ["--bin".to_owned(), program(target)]));
    build.env("RUSTC_WORKSPACE_WRAPPER", process::root().join(INSTRUMENTED));
    process::use_system_openssl(&mut build);
    times::run("build of the fuzz targets", &mut build, times)?;
    let built = crate::test::target_folder()?.join("debug");
    Ok(names.into_iter().map(|name| Target { executable: built.join(program(&name)), name, seconds }).collect())
}

/// A built target.
#[derive(Debug)]
pub struct Target {
    name: String,
    executable: PathBuf,
    seconds: u64,
}

impl Target {
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Searches for inputs that make it panic. The error has the path of the input.
    pub fn run(&self, times: &mut Times) -> anyhow::Result<()> {
        let (root, target) = (process::root(), &self.name);
        let (found, kept) = (format!("{OWN}/corpus/{target}"), format!("{KEPT}/{target}"));
        fs::create_dir_all(root.join(&found)).with_context(|| format!("cannot make {found}"))?;
        let artifact = format!("{OWN}/{target}-");
        let mut fuzz = Command::new(&self.executable);
        fuzz.current_dir(&root).args(LIMITS).arg(format!("-max_total_time={}", self.seconds));
        fuzz.arg(format!("-artifact_prefix={artifact}")).args([&found, &kept]);
        // libFuzzer's log is long, and needed only after a failure.
        let log = format!("{OWN}/{target}.log");
        fuzz.stderr(fs::File::create(root.join(&log)).with_context(|| format!("cannot write {log}"))?);
        let Err(error) = times::run(&format!("fuzz {target}"), &mut fuzz, times) else { return Ok(()) };
        eprintln!("error: {error:#}");
        let text = fs::read(root.join(&log)).with_context(|| format!("cannot read {log}"))?;
        let report = Report::read(&String::from_utf8_lossy(&text));
        eprintln!("{}", report.panic);
        // If nothing but this output is kept, as of a test elsewhere, the input must be in it.
        if let Some(input) = report.input {
            let bytes = fs::read(root.join(&input)).with_context(|| format!("cannot read {input}"))?;
            eprintln!("{input} in Base64: {}", BASE64_STANDARD.encode(bytes));
        }
        bail!("an input is not survived: {log} has the panic, the input is {artifact}…; mend it, and keep it in {kept}")
    }
}

/// The part of libFuzzer's log about the input that ended it.
struct Report {
    /// First line of the panic.
    panic: String,
    /// Path of the written input.
    input: Option<String>,
}

impl Report {
    fn read(log: &str) -> Self {
        const LINES: usize = 12;
        let why = |line: &&str| line.contains("panicked at") || line.contains("ERROR: libFuzzer");
        let panic: Vec<&str> = log.lines().skip_while(|line| !why(line)).take(LINES).collect();
        let input = log.lines().find_map(|line| line.split_once("Test unit written to ")).map(|(_, path)| path.trim().to_owned());
        Self { panic: panic.join("\n"), input }
    }
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

fn program(target: &str) -> String {
    format!("fuzz-{target}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_of_a_broken_target_shows_why_and_where_the_input_is() {
        let log = "INFO: Seed: 7\n#2 INITED\nthread 'main' panicked at src/lib.rs:7:5:\nno such thing\n==1== ERROR: libFuzzer: deadly signal\n\
                   artifact_prefix='target/fuzz/state-'; Test unit written to target/fuzz/state-crash-1\n";
        let report = Report::read(log);
        assert!(report.panic.starts_with("thread 'main' panicked at src/lib.rs:7:5:\nno such thing\n"), "{}", report.panic);
        assert_eq!(report.input.as_deref(), Some("target/fuzz/state-crash-1"));
        let nothing = Report::read("INFO: Seed: 7\n");
        assert_eq!((nothing.panic.as_str(), nothing.input), ("", None));
    }

    #[test]
    fn each_target_has_a_program_and_kept_inputs() {
        let root = process::root();
        let manifests = ["tests/fuzz/Cargo.toml", "tests/fuzz/program/Cargo.toml"];
        let manifest: String = manifests.iter().map(|manifest| fs::read_to_string(root.join(manifest)).unwrap()).collect();
        let all = targets(&root, None).unwrap();
        let programs = manifest.lines().filter(|line| line.starts_with("name = \"fuzz-")).count();
        assert_eq!(programs, all.len());
        for target in &all {
            assert!(manifest.contains(&format!("name = {:?}", program(target))), "{target}");
        }
        assert!(targets(&root, Some("evnets")).unwrap_err().to_string().contains("events"));
    }
}
