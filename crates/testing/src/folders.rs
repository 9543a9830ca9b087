//! Folders that tests read.

use std::path::{Path, PathBuf};

/// Returns a file or folder of the measurements by others, or `None`, with a message that the runner counts, if it is absent.
///
/// They are in `EADT_TEST_SHARED_DATA`, or in `shared/data` beside the repository.
pub fn shared_data(name: &str) -> Option<PathBuf> {
    let root = std::env::var_os("EADT_TEST_SHARED_DATA")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data"), PathBuf::from);
    let path = root.join(name);
    if path.exists() {
        return Some(path);
    }
    eprintln!("skipped: {} is absent", path.display());
    None
}
