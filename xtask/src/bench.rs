//! `cargo xtask bench`: benchmarks, in release mode, one after another.

use std::time::Instant;

use anyhow::{Context, bail};
use clap::Args;

use crate::{process, python};

#[derive(Debug, Args)]
pub struct Options {
    /// Only benchmarks whose name contains this; without it: all.
    name: Option<String>,
    /// List the benchmarks, run none.
    #[arg(long)]
    list: bool,
    /// Passed on to the benchmark.
    #[arg(last = true)]
    extra: Vec<String>,
}

/// A benchmark: a `[[bench]]` target, an example whose name begins with `bench_`, or a script of the Python package.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Bench {
    package: String,
    target: String,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Bench,
    Example,
    /// The script in `python/benches`.
    Script(&'static str),
    /// The same; it takes a quarter of an hour, and is run if it is named.
    LongScript(&'static str),
}

/// Benchmarks of the Python package.
const SCRIPTS: [(&str, Kind); 2] = [("sdk", Kind::Script("overhead.py")), ("quality", Kind::LongScript("quality.py"))];

pub fn run(options: &Options) -> anyhow::Result<()> {
    let output =
        process::cargo().args(["metadata", "--format-version=1", "--no-deps"]).output().context("cannot start cargo metadata")?;
    let metadata = serde_json::from_slice(&output.stdout).context("cargo metadata printed no JSON")?;
    let mut benches = benches(&metadata);
    let scripts = SCRIPTS.map(|(target, kind)| Bench { package: "python".to_owned(), target: target.to_owned(), kind });
    benches.extend(scripts);
    if let Some(name) = &options.name {
        let known: Vec<String> = benches.iter().map(|bench| bench.target.clone()).collect();
        benches.retain(|bench| bench.target.contains(name.as_str()));
        if benches.is_empty() {
            bail!("no benchmark is called {name}; there are {}", known.join(", "));
        }
    }
    if options.list {
        for bench in &benches {
            println!("{} ({})", bench.target, bench.package);
        }
        return Ok(());
    }
    if options.name.is_none() {
        benches.retain(|bench| !matches!(bench.kind, Kind::LongScript(_)));
    }
    let mut failed = Vec::new();
    for bench in &benches {
        let mut command = match bench.kind {
            Kind::Bench => {
                let mut command = process::cargo();
                command.args(["bench", "--quiet", "--package", &bench.package, "--bench", &bench.target, "--"]);
                command
            }
            Kind::Example => {
                let mut command = process::cargo();
                command.args(["run", "--quiet", "--release", "--package", &bench.package, "--example", &bench.target, "--"]);
                command
            }
            Kind::Script(name) | Kind::LongScript(name) => python::script(&format!("benches/{name}")),
        };
        let start = Instant::now();
        if let Err(error) = process::run(command.args(&options.extra)) {
            eprintln!("error: {error:#}");
            failed.push(bench.target.as_str());
        }
        println!("  {} took {:.0} s, building included\n", bench.target, start.elapsed().as_secs_f64());
    }
    if failed.is_empty() { Ok(()) } else { bail!("failed: {}", failed.join(", ")) }
}

fn benches(metadata: &serde_json::Value) -> Vec<Bench> {
    let mut benches = Vec::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        for target in package["targets"].as_array().into_iter().flatten() {
            let (Some(package), Some(name)) = (package["name"].as_str(), target["name"].as_str()) else { continue };
            let is = |kind: &str| target["kind"].as_array().is_some_and(|kinds| kinds.iter().any(|k| k == kind));
            let example = is("example") && name.starts_with("bench_");
            if is("bench") || example {
                let kind = if example { Kind::Example } else { Kind::Bench };
                benches.push(Bench { package: package.to_owned(), target: name.to_owned(), kind });
            }
        }
    }
    benches.sort();
    benches
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn finds_bench_targets_and_bench_examples() {
        let metadata = json!({"packages": [{"name": "eadt-bus", "targets": [
            {"name": "stores", "kind": ["bench"]},
            {"name": "bench_window_path", "kind": ["example"]},
            {"name": "hello", "kind": ["example"]},
            {"name": "eadt-bus", "kind": ["lib"]},
        ]}]});
        let found: Vec<(String, Kind)> = benches(&metadata).into_iter().map(|bench| (bench.target, bench.kind)).collect();
        assert_eq!(found, [("bench_window_path".to_owned(), Kind::Example), ("stores".to_owned(), Kind::Bench)]);
    }

    #[test]
    fn each_benchmark_of_the_python_package_is_there() {
        for (_, kind) in SCRIPTS {
            let (Kind::Script(name) | Kind::LongScript(name)) = kind else { panic!("{kind:?} is no script") };
            assert!(process::root().join("python/benches").join(name).is_file(), "{name}");
        }
    }
}
