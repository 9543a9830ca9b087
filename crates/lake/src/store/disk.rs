//! The few file operations that a folder needs, apart so that a test can lose what was not synced.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use bytes::Bytes;

use super::Input;

/// Something that a folder holds.
#[derive(Debug, Clone)]
pub struct Entry {
    pub name: String,
    pub folder: bool,
    pub bytes: u64,
}

/// A file system, as far as an archive needs one.
pub trait Disk: Send + Sync + fmt::Debug {
    /// True where the folder was not there before.
    fn make_folder(&self, path: &Path) -> io::Result<bool>;
    /// Creates or replaces.
    fn write(&self, path: &Path, bytes: &Bytes) -> io::Result<()>;
    fn sync_file(&self, path: &Path) -> io::Result<()>;
    fn sync_folder(&self, path: &Path) -> io::Result<()>;
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    fn remove(&self, path: &Path) -> io::Result<()>;
    fn entries(&self, path: &Path) -> io::Result<Vec<Entry>>;
    fn open(&self, path: &Path) -> io::Result<Input>;
}

/// The operating system's.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RealDisk;

impl Disk for RealDisk {
    fn make_folder(&self, path: &Path) -> io::Result<bool> {
        match fs::create_dir(path) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn write(&self, path: &Path, bytes: &Bytes) -> io::Result<()> {
        File::create(path)?.write_all(bytes)
    }

    fn sync_file(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn entries(&self, path: &Path) -> io::Result<Vec<Entry>> {
        let mut entries = Vec::new();
        for entry in fs::read_dir(path)? {
            let entry = entry?;
            let metadata = fs::metadata(entry.path())?;
            let name = entry.file_name().to_string_lossy().into_owned();
            entries.push(Entry { name, folder: metadata.is_dir(), bytes: metadata.len() });
        }
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    fn open(&self, path: &Path) -> io::Result<Input> {
        File::open(path).map(Input::File)
    }
}
