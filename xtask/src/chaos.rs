//! `cargo xtask chaos`: faults on the real parts, in a build in which mitigations can be switched off; `--help` has the details.

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

pub fn run(options: &Options) -> anyhow::Result<()> {
    // Never a release build, which has no switches.
    process::run(crate::test::plan::linting_cargo().args(crate::test::plan::BUILD_OF_CHAOS))?;
    let harness = crate::test::target_folder()?.join("debug").join(format!("chaos{}", std::env::consts::EXE_SUFFIX));
    process::run(std::process::Command::new(harness).current_dir(process::root()).args(&options.words))
}
