//! Starting other programs in the root of the repository.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

/// Returns the root of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the root").to_owned()
}

/// Returns the cargo that runs us, without its variables on our own package. Build scripts that read those would run again, and
/// half of the dependencies would be rebuilt after each build by hand.
pub fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    let is_of_package = |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
    for name in std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()).filter(|name| is_of_package(name)) {
        command.env_remove(name);
    }
    command
}

/// Returns the command as one would type it.
pub fn shown(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or_default().to_string_lossy().into_owned();
    let words = command.get_args().map(|word| word.to_string_lossy().into_owned());
    std::iter::once(program).chain(words).collect::<Vec<_>>().join(" ")
}

/// Runs a command with our own output streams; an error if it does not end with status 0.
pub fn run(command: &mut Command) -> anyhow::Result<()> {
    let text = shown(command);
    println!("$ {text}");
    let status = command.stdin(Stdio::null()).status().with_context(|| format!("cannot start {text}"))?;
    if !status.success() {
        bail!("{text} failed: {status}");
    }
    Ok(())
}

/// Returns the output of a program (standard output, then standard error) that ends with status 0.
pub fn output(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output().ok()?;
    let text = [output.stdout, output.stderr].concat();
    output.status.success().then(|| String::from_utf8_lossy(&text).into_owned())
}

/// Builds with the OpenSSL of this machine, if it has one for developers: building it from source takes two minutes and perl.
pub fn use_system_openssl(cargo: &mut Command) {
    if output("pkg-config", &["--exists", "openssl >= 1.1.1"]).is_some() {
        cargo.env("OPENSSL_NO_VENDOR", "1");
    }
}

/// `cargo deny check` with the settings in deny.toml.
pub fn deny() -> anyhow::Result<()> {
    if output("cargo", &["deny", "--version"]).is_none() {
        bail!("cargo-deny is not installed; install it with: cargo install --locked cargo-deny");
    }
    run(cargo().args(["deny", "--all-features", "check"]))
}
