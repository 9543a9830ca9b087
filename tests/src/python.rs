//! Python with the libraries that analysts read Parquet with, in a virtual environment of its own.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::{INSTALL, cache, root};

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

/// Size of the training frameworks on disk, printed before they are downloaded.
const FRAMEWORKS_SIZE: &str = "5.3 GB";

/// The interpreter with the training frameworks that the Python package is tested on; made once, in the user's cache folder.
/// `None`, after a printed line, if this machine cannot have them: the lane without a framework tests the package there. In a CI that is an error.
pub fn training_interpreter() -> Result<Option<PathBuf>> {
    let requirements = root().join("python/tests/requirements.txt");
    let wanted = std::fs::read_to_string(&requirements).with_context(|| format!("reading {}", requirements.display()))?;
    let mut hasher = DefaultHasher::new();
    wanted.hash(&mut hasher);
    let name = format!("python-training-{:016x}", hasher.finish());
    if !cache::folder()?.join(&name).exists()
        && let Some(why) = why_no_frameworks(&wanted)
    {
        if std::env::var_os("CI").is_some() {
            bail!("the training frameworks cannot be fetched: {why}");
        }
        println!("skipped: the tests of the Python package on training frameworks, which cannot be fetched here: {why}");
        return Ok(None);
    }
    let environment = cache::once(&name, |place| {
        println!("fetching PyTorch and the training frameworks from PyPI: {FRAMEWORKS_SIZE}, once");
        run(Command::new("python3").args(["-m", "venv"]).arg(place))?;
        let python = place.join("bin/python");
        run(Command::new(&python).args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "uv"]))?;
        let packages = cache::folder()?.join("uv");
        let install = |more: &[&str], file: &Path| {
            let mut uv = Command::new(&python);
            uv.args(["-m", "uv", "pip", "install", "--quiet", "--python"]).arg(&python).env("UV_CACHE_DIR", &packages);
            run(uv.args(more).arg("--requirement").arg(file)).map(drop)
        };
        // DeepSpeed looks for PyTorch while it is installed.
        let before = place.join("before.txt");
        let others: Vec<&str> = wanted.lines().filter(|line| !line.starts_with("deepspeed==")).collect();
        std::fs::write(&before, others.join("\n") + "\nsetuptools\nwheel\n")?;
        install(&[], &before)?;
        install(&["--no-build-isolation"], &requirements)
    })?;
    Ok(Some(environment.join("bin/python")))
}

/// Returns why `PyPI` gives this machine no `PyTorch` of the locked version: it is not reached, or has none for this platform. Nothing large is fetched.
fn why_no_frameworks(wanted: &str) -> Option<String> {
    let torch = wanted.lines().find_map(|line| line.split_whitespace().next().filter(|word| word.starts_with("torch==")))?;
    let options = ["-m", "pip", "install", "--dry-run", "--no-deps", "--ignore-installed", "--quiet", "--retries", "1"];
    let output = Command::new("python3").args(options).arg(torch).output().ok()?;
    if output.status.success() { None } else { no_distribution(&String::from_utf8_lossy(&output.stderr)) }
}

/// Returns pip's line that there is no such package for this machine, whether or not the index was reached; other errors are no reason to test less.
fn no_distribution(stderr: &str) -> Option<String> {
    stderr
        .lines()
        .find_map(|line| line.strip_prefix("ERROR: ").filter(|line| line.starts_with("No matching distribution")))
        .map(str::to_owned)
}

/// Runs test modules of the Python package in one process; returns their output.
pub fn package_tests(interpreter: &Path, modules: &[&str], variables: &[(&str, &Path)]) -> Result<()> {
    let folder = root().join("python");
    let mut command = Command::new(interpreter);
    command.args(["-W", "ignore", "-m", "unittest"]).args(modules).current_dir(&folder).env("PYTHONPATH", "src:.");
    // Compiled once, not by each process, and not into the sources: PyTorch takes longer to compile than to import.
    command.env("PYTHONPYCACHEPREFIX", cache::folder()?.join("python-bytecode")).env_remove("PYTHONDONTWRITEBYTECODE");
    // Two threads of a small model wait for each other most of the time if other tests run beside them.
    command.env("OMP_NUM_THREADS", "1").envs(variables.iter().copied());
    // DeepSpeed compiles a part of itself, once, with the environment's ninja.
    command.env("TORCH_EXTENSIONS_DIR", cache::folder()?.join("torch-extensions"));
    if let Some(programs) = interpreter.parent().filter(|folder| folder.is_absolute()) {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders = std::iter::once(programs.to_owned()).chain(std::env::split_paths(&path));
        command.env("PATH", std::env::join_paths(folders)?);
    }
    run(&mut command).map(drop)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_package_that_cannot_be_had_is_a_reason_to_test_less() {
        let absent = "WARNING: Retrying (Retry(total=0)) after connection broken\nERROR: Could not find a version that satisfies the \
                      requirement torch==2 (from versions: none)\nERROR: No matching distribution found for torch==2\n";
        assert_eq!(no_distribution(absent).as_deref(), Some("No matching distribution found for torch==2"));
        for other in [
            "",
            "/usr/bin/python3: No module named pip\n",
            "ERROR: Could not install packages due to an OSError: No space left\n",
        ] {
            assert_eq!(no_distribution(other), None, "{other}");
        }
    }
}
