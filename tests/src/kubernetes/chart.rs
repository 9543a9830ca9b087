//! The output of the Helm chart.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::tools;

const HEAD: &str =
    "# Made from the chart with its default values by `cargo run -p eadt-tests --bin manifests`; a test fails when it drifts.\n";

/// The chart's objects with these flags of `helm template`, in release and namespace `eadt`.
pub fn template(flags: &[&str]) -> Result<String> {
    let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/helm/eadt");
    let mut command = Command::new(tools()?.helm);
    command.args(["template", "eadt"]).arg(chart).args(["--namespace", "eadt"]).args(flags).stdin(Stdio::null());
    let output = command.output().context("starting helm")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(String::from_utf8(output.stdout)?)
}

/// The plain manifests: the chart with its default values, without its test.
pub fn manifests() -> Result<String> {
    Ok(format!("{HEAD}{}", template(&["--skip-tests"])?))
}
