//! A release build cannot have the switches of the chaos harness.

use std::path::Path;
use std::process::Command;

/// Builds the crate with the switches, with one of them set. It has a folder of its own, since a running build may hold the
/// lock of the other one.
fn switches(profile: &str) -> String {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let arguments =
        ["run", "--offline", "--locked", "--quiet", "--package=eadt-faults", "--example=switches", "--profile", profile];
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("switches");
    let mut command = Command::new(cargo);
    command.args(arguments).arg("--target-dir").arg(folder).args(["--", "fence"]).env("EADT_CHAOS_OFF", "fence");
    let output = command.current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_release_build_has_no_switches_that_turn_promises_off() {
    assert_eq!(switches("release"), "switches false, fence off false\n");
    assert_eq!(switches("dev"), "switches true, fence off true\n");
}
