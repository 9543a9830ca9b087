//! The kind of time that a data folder holds: simulated or measured. The two would make each other late.

use std::path::Path;

use anyhow::{Context, bail};

/// The file that names the kind of time.
const ORIGIN: &str = "origin";
const SIMULATED: &str = "simulated\n";
const MEASURED: &str = "measured\n";

/// Returns whether a data folder holds simulated time.
pub fn is_simulated(dir: &Path) -> anyhow::Result<bool> {
    match std::fs::read_to_string(dir.join(ORIGIN)) {
        Ok(text) => Ok(text == SIMULATED),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", dir.join(ORIGIN).display())),
    }
}

/// Makes the folder one of simulated or measured time. One of the other kind in which nothing was recorded, as after a start without
/// a GPU driver, is taken over.
///
/// Errors: it holds the other one, or cannot be written.
pub fn claim(dir: &Path, simulated: bool, holds_records: impl FnOnce() -> anyhow::Result<bool>) -> anyhow::Result<()> {
    let cannot =
        || format!("cannot use data folder {}: check that it can be written, or name another with --data-dir", dir.display());
    std::fs::create_dir_all(dir).with_context(cannot)?;
    let (marker, mine) = (dir.join(ORIGIN), if simulated { SIMULATED } else { MEASURED });
    match std::fs::read_to_string(&marker) {
        Ok(text) if text == mine => Ok(()),
        Ok(_) if !holds_records()? => std::fs::write(&marker, mine).with_context(cannot),
        Ok(text) => bail!(
            "data folder {} holds {} data, and this would be {}: name another with --data-dir",
            dir.display(),
            text.trim(),
            mine.trim()
        ),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => std::fs::write(&marker, mine).with_context(cannot),
        Err(error) => Err(error).with_context(cannot),
    }
}
