//! A release build cannot have the switches of the chaos harness.

use std::path::Path;
use std::process::{Command, Output};

/// Checks what holds the switches, with them. A folder of its own: whoever runs this test may hold the lock of the other one.
fn check(profile: &str) -> Output {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let arguments =
        ["check", "--offline", "--locked", "--quiet", "--package=eadt-faults", "--features=chaos", "--profile", profile];
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("switches");
    let mut command = Command::new(cargo);
    command.args(arguments).arg("--target-dir").arg(folder).current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap()
}

#[test]
fn a_release_build_refuses_that_promises_can_be_switched_off() {
    let refused = check("release");
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("the feature `chaos` can switch promises off"), "{said}");
    let taken = check("dev");
    assert!(taken.status.success(), "{}", String::from_utf8_lossy(&taken.stderr));
}
