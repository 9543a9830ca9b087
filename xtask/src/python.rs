//! The interpreter that runs the Python package's scripts.

use std::path::PathBuf;
use std::process::Command;
use std::time::SystemTime;

use crate::process;
use crate::test::cache_folder;

/// Names the interpreter; without it, the one that the tests made with the training frameworks, or else the machine's.
const VARIABLE: &str = "EADT_PYTHON";

pub fn interpreter() -> PathBuf {
    std::env::var_os(VARIABLE).map(PathBuf::from).or_else(with_frameworks).unwrap_or_else(|| PathBuf::from("python3"))
}

/// Returns the newest environment with the training frameworks in the tests' cache folder.
fn with_frameworks() -> Option<PathBuf> {
    let entries = std::fs::read_dir(cache_folder()?).ok()?.flatten();
    let environments = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("python-training-"));
    let made = |path: &PathBuf| path.metadata().and_then(|metadata| metadata.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
    environments
        .map(|entry| entry.path())
        .filter(|path| path.join("bin/python").is_file())
        .max_by_key(made)
        .map(|path| path.join("bin/python"))
}

/// Runs a script of the folder `python` with the package as it lies there.
pub fn script(path: &str) -> Command {
    let mut command = Command::new(interpreter());
    command.arg(path).current_dir(process::root().join("python")).env("PYTHONPATH", "src:.").env("PYTHONDONTWRITEBYTECODE", "1");
    command
}
