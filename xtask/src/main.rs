//! The commands of this repository: `cargo xtask test`, `times`, `generate`, `release-schemas`, `bench`, `chaos`, `fuzz`, `web`,
//! `pictures`, `wheel`, `words`, `deny`, `sbom`.
//!
//! In: the checked-out tree. Out: the output of each step, and an exit status. It changes nothing outside the tree and cargo's
//! folders, except with `test --install` (or `CI=true`), which installs missing system packages.

mod architecture;
mod bench;
mod chaos;
mod fuzz;
mod generate;
mod monitoring;
mod pictures;
mod prerequisites;
mod process;
mod python;
mod sbom;
mod test;
mod web;
mod wheel;
mod words;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Formatting, lints, all tests, and whether generated files are up to date.
    Test(test::Options),
    /// Compare the times of two test runs.
    Times(test::times::Options),
    /// Write every generated document.
    Generate(generate::Options),
    /// Freeze the present schemas as released: from then on only compatible changes pass.
    ReleaseSchemas,
    /// Build and run benchmarks in release mode, and those of the Python package.
    Bench(bench::Options),
    /// Kill, stop, disconnect and starve the real parts, and check the promises (docs/evidence/reliability.md).
    Chaos(chaos::Options),
    /// Search for external inputs that make a reader panic (tests/fuzz).
    Fuzz(fuzz::Options),
    /// Build the web page that the program embeds (needs Node).
    Web(web::Options),
    /// Take the screenshots of README and docs (needs Node and Chromium).
    Pictures(pictures::Options),
    /// Build the wheel of the Python package, with the program in it.
    Wheel(wheel::Options),
    /// Measure the readability: one-word names, wording of comments, string literals and pages, long functions, circles of imports.
    Words(words::Options),
    /// Licences, bans, sources and advisories of all dependencies, by cargo-deny.
    Deny,
    /// The bill of materials of the program and the node agent, in `CycloneDX`'s JSON.
    Sbom(sbom::Options),
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Test(options) => test::run(&options),
        Command::Times(options) => test::times::compare(&options),
        Command::Generate(options) => generate::run(options),
        Command::ReleaseSchemas => generate::release_schemas(),
        Command::Bench(options) => bench::run(&options),
        Command::Chaos(options) => chaos::run(&options),
        Command::Fuzz(options) => fuzz::run(&options),
        Command::Web(options) => web::run(options),
        Command::Pictures(options) => pictures::run(&options),
        Command::Wheel(options) => wheel::run(&options),
        Command::Words(options) => words::run(&options),
        Command::Deny => process::deny(),
        Command::Sbom(options) => sbom::run(&options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
