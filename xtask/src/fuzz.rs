//! `cargo xtask fuzz`: looks for inputs that make a reader panic, guided by the code that they reach (libFuzzer).
//!
//! It begins with the kept inputs (seeds, and what was once too much), and goes on from what it found before in target/fuzz/corpus.
//!
//! The instrumentation is LLVM's, which the stable compiler takes as flags (tests/fuzz/instrumented.sh); no sanitizer is needed where
//! nothing is `unsafe`.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
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
/// The compiler, with coverage of what it builds. A path, for cargo tells it nothing more.
const INSTRUMENTED: &str = "tests/fuzz/instrumented.sh";
/// Larger inputs find the same, slower.
const LIMITS: [&str; 5] = ["-max_len=8192", "-timeout=25", "-rss_limit_mb=4096", "-verbosity=0", "-close_fd_mask=0"];

pub fn run(options: &Options) -> anyhow::Result<()> {
    let root = process::root();
    let targets = targets(&root, options.target.as_deref())?;
    // Chosen from the whole workspace, what it depends on is what the tests are built from, and is not built again.
    let mut build = process::cargo();
    build.args(["build", "--workspace", "--features", "eadt-fuzz/libfuzzer"]);
    build.args(targets.iter().flat_map(|target| ["--bin".to_owned(), program(target)]));
    process::run(build.env("RUSTC_WORKSPACE_WRAPPER", root.join(INSTRUMENTED)))?;
    let built = crate::test::target_folder()?.join("debug");
    let mut broken = Vec::new();
    for target in &targets {
        let (found, kept) = (format!("{OWN}/corpus/{target}"), format!("{KEPT}/{target}"));
        fs::create_dir_all(root.join(&found)).with_context(|| format!("cannot make {found}"))?;
        let artifact = format!("{OWN}/{target}-");
        let mut fuzz = Command::new(built.join(program(target)));
        fuzz.current_dir(&root).args(LIMITS).arg(format!("-max_total_time={}", options.seconds));
        fuzz.arg(format!("-artifact_prefix={artifact}")).args([&found, &kept]);
        // It says much, of which nothing matters where all went well.
        let log = format!("{OWN}/{target}.log");
        fuzz.stderr(fs::File::create(root.join(&log)).with_context(|| format!("cannot write {log}"))?);
        if let Err(error) = process::run(&mut fuzz) {
            eprintln!("error: {error:#}");
            let said = fs::read(root.join(&log)).with_context(|| format!("cannot read {log}"))?;
            let said = Told::read(&String::from_utf8_lossy(&said));
            eprintln!("{}", said.panic);
            // Where nothing but this output is kept, as of a test elsewhere, the input must be in it.
            if let Some(input) = said.input {
                let bytes = fs::read(root.join(&input)).with_context(|| format!("cannot read {input}"))?;
                eprintln!("{input} in Base64: {}", BASE64_STANDARD.encode(bytes));
            }
            broken.push(format!("{target}: {log} says what happened, the input is {artifact}…; mend it, and keep it in {kept}"));
        }
    }
    if broken.is_empty() { Ok(()) } else { bail!("inputs that are not survived: {}", broken.join("; ")) }
}

/// What libFuzzer's log says of the input that ended it.
struct Told {
    /// How the panic began.
    panic: String,
    /// Where the input was written.
    input: Option<String>,
}

impl Told {
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
    fn the_log_of_a_broken_target_says_why_and_where_the_input_is() {
        let log = "INFO: Seed: 7\n#2 INITED\nthread 'main' panicked at src/lib.rs:7:5:\nno such thing\n==1== ERROR: libFuzzer: deadly signal\n\
                   artifact_prefix='target/fuzz/state-'; Test unit written to target/fuzz/state-crash-1\n";
        let told = Told::read(log);
        assert!(told.panic.starts_with("thread 'main' panicked at src/lib.rs:7:5:\nno such thing\n"), "{}", told.panic);
        assert_eq!(told.input.as_deref(), Some("target/fuzz/state-crash-1"));
        let nothing = Told::read("INFO: Seed: 7\n");
        assert_eq!((nothing.panic.as_str(), nothing.input), ("", None));
    }

    #[test]
    fn each_target_has_a_program_and_kept_inputs() {
        let root = process::root();
        let manifest = fs::read_to_string(root.join("tests/fuzz/Cargo.toml")).unwrap();
        let all = targets(&root, None).unwrap();
        let programs = manifest.lines().filter(|line| line.starts_with("name = \"fuzz-")).count();
        assert_eq!(programs, all.len());
        for target in &all {
            assert!(manifest.contains(&format!("name = {:?}", program(target))), "{target}");
        }
        assert!(targets(&root, Some("evnets")).unwrap_err().to_string().contains("events"));
    }
}
