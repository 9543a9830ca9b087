//! The user's cache folder: what is fetched or built once, and the logs of the last runs.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// `EADT_TEST_CACHE`, or `eadt` in the user's cache folder.
pub fn folder() -> Result<PathBuf> {
    if let Some(dir) = std::env::var_os("EADT_TEST_CACHE") {
        return Ok(dir.into());
    }
    let user = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let user = user.or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache")));
    Ok(user
        .context("neither HOME nor XDG_CACHE_HOME is set: set EADT_TEST_CACHE to a folder for what the tests fetch and build")?
        .join("eadt"))
}

/// Makes `name` in the cache folder with `make`, once for all processes; `make` gets a path beside it, which is renamed at
/// the end, so that nothing half made is ever found.
pub fn once(name: &str, make: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
    let cache = folder()?;
    let path = cache.join(name);
    if path.exists() {
        return Ok(path);
    }
    fs::create_dir_all(&cache).with_context(|| format!("making {}", cache.display()))?;
    let lock = File::create(cache.join(format!("{name}.lock")))?;
    lock.lock().with_context(|| format!("waiting for another process that makes {}", path.display()))?;
    if path.exists() {
        return Ok(path);
    }
    let unfinished = cache.join(format!("{name}.unfinished"));
    remove(&unfinished)?;
    make(&unfinished)?;
    fs::rename(&unfinished, &path).with_context(|| format!("naming {}", path.display()))?;
    Ok(path)
}

/// Removes a file or a folder with what is in it; nothing there is no failure.
pub fn remove(path: &Path) -> Result<()> {
    let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    match removed {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("removing {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// Keeps the newest entries of a folder.
pub fn keep_newest(dir: &Path, count: usize) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    let mut by_age: Vec<_> =
        entries.flatten().filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path()))).collect();
    by_age.sort();
    let old = by_age.len().saturating_sub(count);
    for (_, path) in &by_age[..old] {
        // Another test process may have removed it already.
        drop(remove(path));
    }
}
