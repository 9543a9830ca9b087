//! Python with the libraries that analysts read Parquet with, in a virtual environment of its own.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::{INSTALL, cache};

/// The interpreter; the environment is made once, in the user's cache folder.
pub fn interpreter() -> Result<PathBuf> {
    let requirements = Path::new(env!("CARGO_MANIFEST_DIR")).join("python/requirements.txt");
    let wanted = std::fs::read_to_string(&requirements).with_context(|| format!("reading {}", requirements.display()))?;
    let packages: Vec<String> =
        wanted.lines().filter(|line| !line.starts_with('#')).map(|line| line.replace("==", "-")).collect();
    let environment = cache::once(&format!("python-{}", packages.join("-")), |place| {
        run(Command::new("python3").args(["-m", "venv"]).arg(place))?;
        let mut pip = Command::new(place.join("bin/python"));
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement"]);
        run(pip.arg(&requirements)).map(drop)
    })?;
    Ok(environment.join("bin/python"))
}

/// Runs a script of this folder or of `docs/`; what it printed.
pub fn script(path: &Path, arguments: &[&Path]) -> Result<String> {
    run(Command::new(interpreter()?).arg(path).args(arguments))
}

fn run(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("{command:?} did not start; {INSTALL}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if !output.status.success() {
        bail!(
            "{command:?} failed: {}{}\nwhere python3, venv or pip is missing: {INSTALL}",
            text(&output.stdout),
            text(&output.stderr)
        );
    }
    Ok(text(&output.stdout))
}
