//! `cargo xtask chaos`: faults on the real parts, by a build in which promises can be switched off; `--help` tells how.

use std::ffi::OsString;

use clap::Args;

use crate::process;

#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub struct Options {
    /// Rows and options of the harness.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<OsString>,
}

/// The services of the harness are processes of their own, so `run` alone would not build them. Never a release build, which
/// refuses the feature.
const BUILD: [&str; 6] = ["build", "--package", "eadt-chaos", "--features", "chaos", "--bins"];

pub fn run(options: &Options) -> anyhow::Result<()> {
    process::run(process::cargo().args(BUILD))?;
    let run = ["run", "--quiet", "--package", "eadt-chaos", "--features", "chaos", "--bin", "chaos", "--"];
    process::run(process::cargo().args(run).args(&options.words))
}
