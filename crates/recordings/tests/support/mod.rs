//! Measurements by others, where they are.

use std::fs::File;
use std::path::Path;

use eadt_recordings::{Format, Imported, Input, Options, import};

pub fn read(format: Format, folder: &Path, files: &[&str], options: &Options) -> Imported {
    let open = |file: &&str| Input::new(*file, File::open(folder.join(file)).unwrap());
    import(format, files.iter().map(open).collect(), options).unwrap_or_else(|error| panic!("{error}"))
}
