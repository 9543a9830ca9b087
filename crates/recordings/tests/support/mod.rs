//! Measurements by others, where they are.

use std::fs::File;
use std::path::{Path, PathBuf};

use eadt_recordings::{Format, Imported, Input, Options, import};

/// `None`, with a message, where they are absent.
pub fn folder(name: &str) -> Option<PathBuf> {
    let root = std::env::var_os("EADT_TEST_SHARED_DATA")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data"), PathBuf::from);
    let folder = root.join(name);
    if folder.is_dir() {
        return Some(folder);
    }
    eprintln!("skipped: {} is absent", folder.display());
    None
}

pub fn read(format: Format, folder: &Path, files: &[&str], options: &Options) -> Imported {
    let open = |file: &&str| Input::new(*file, File::open(folder.join(file)).unwrap());
    import(format, files.iter().map(open).collect(), options).unwrap_or_else(|error| panic!("{error}"))
}
