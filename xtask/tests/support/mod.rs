//! Reads cargo's facts about this workspace.

use std::process::Command;

/// Returns the output of cargo from what is built here already. Dependencies of features that were not built here yet are
/// fetched.
pub fn cargo(arguments: &[&str]) -> String {
    let ask = |how: &str| {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        Command::new(cargo).args(arguments).arg(how).current_dir(env!("CARGO_MANIFEST_DIR")).output().expect("cargo runs")
    };
    let mut output = ask("--offline");
    if !output.status.success() {
        output = ask("--locked");
    }
    assert!(output.status.success(), "cargo {arguments:?} failed: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("cargo prints text")
}

/// Returns the platform that this is built on.
pub fn host() -> String {
    let version = Command::new("rustc").arg("-vV").output().expect("rustc runs");
    let version = String::from_utf8(version.stdout).expect("rustc prints text");
    version.lines().find_map(|line| line.strip_prefix("host: ")).expect("rustc prints its host").to_owned()
}
