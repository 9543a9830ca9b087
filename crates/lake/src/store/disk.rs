//! The few file operations that a folder needs, apart so that a test can lose what was not synced.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use bytes::Bytes;

use super::Input;

/// What a folder holds.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub name: String,
    pub folder: bool,
    pub bytes: u64,
}

pub(crate) trait Disk: Send + Sync + fmt::Debug {
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

/// A disk in memory that dies at a chosen operation and then forgets what was not synced.
#[cfg(test)]
pub(crate) mod crash {
    use std::collections::{BTreeMap, BTreeSet};
    use std::path::PathBuf;
    use std::sync::{Arc, Mutex, MutexGuard};

    use super::*;

    #[derive(Debug, Clone)]
    struct Content {
        bytes: Bytes,
        synced: bool,
    }

    #[derive(Debug, Default)]
    struct State {
        /// Operations until the disk dies; `None`: never.
        left: Option<usize>,
        /// Errors that operations report instead of dying, by kind of operation.
        full: bool,
        operations: usize,
        contents: Vec<Content>,
        folders: BTreeSet<PathBuf>,
        files: BTreeMap<PathBuf, usize>,
        durable_folders: BTreeSet<PathBuf>,
        durable_files: BTreeMap<PathBuf, usize>,
    }

    #[derive(Debug, Clone, Default)]
    pub(crate) struct CrashDisk(Arc<Mutex<State>>);

    impl CrashDisk {
        fn state(&self) -> MutexGuard<'_, State> {
            self.0.lock().unwrap()
        }

        /// One operation that changes something.
        fn step(&self) -> io::Result<MutexGuard<'_, State>> {
            let mut state = self.state();
            state.operations += 1;
            match &mut state.left {
                Some(0) => Err(io::Error::other("the disk is dead")),
                Some(left) => {
                    *left -= 1;
                    Ok(state)
                }
                None => Ok(state),
            }
        }

        pub(crate) fn die_after(&self, operations: usize) {
            self.state().left = Some(operations);
        }

        pub(crate) fn operations(&self) -> usize {
            self.state().operations
        }

        pub(crate) fn fill(&self, full: bool) {
            self.state().full = full;
        }

        /// Power comes back. Only what was synced is there; with `tear`, a file whose name survived but whose content
        /// was not synced has lost its second half.
        pub(crate) fn reboot(&self, power_loss: bool) {
            let mut state = self.state();
            state.left = None;
            if power_loss {
                state.files = state.durable_files.clone();
                state.folders = state.durable_folders.clone();
                for content in &mut state.contents {
                    if !content.synced {
                        let half = content.bytes.len() / 2;
                        content.bytes.truncate(half);
                    }
                }
            }
        }
    }

    impl Disk for CrashDisk {
        fn make_folder(&self, path: &Path) -> io::Result<bool> {
            let mut state = self.step()?;
            if path.parent().is_some_and(|parent| parent != Path::new("/") && !state.folders.contains(parent)) {
                return Err(io::ErrorKind::NotFound.into());
            }
            Ok(state.folders.insert(path.to_owned()))
        }

        fn write(&self, path: &Path, bytes: &Bytes) -> io::Result<()> {
            let mut state = self.step()?;
            if state.full {
                return Err(io::ErrorKind::StorageFull.into());
            }
            if !path.parent().is_some_and(|parent| state.folders.contains(parent)) {
                return Err(io::ErrorKind::NotFound.into());
            }
            state.contents.push(Content { bytes: bytes.clone(), synced: false });
            let content = state.contents.len() - 1;
            state.files.insert(path.to_owned(), content);
            Ok(())
        }

        fn sync_file(&self, path: &Path) -> io::Result<()> {
            let mut state = self.step()?;
            let content = *state.files.get(path).ok_or(io::ErrorKind::NotFound)?;
            state.contents[content].synced = true;
            Ok(())
        }

        fn sync_folder(&self, path: &Path) -> io::Result<()> {
            let mut state = self.step()?;
            if !state.folders.contains(path) && path != Path::new("/") {
                return Err(io::ErrorKind::NotFound.into());
            }
            let inside = |other: &PathBuf| other.parent() == Some(path);
            let State { files, folders, durable_files, durable_folders, .. } = &mut *state;
            durable_files.retain(|file, _| !inside(file));
            durable_files.extend(files.iter().filter(|(file, _)| inside(file)).map(|(file, content)| (file.clone(), *content)));
            durable_folders.retain(|folder| !inside(folder));
            durable_folders.extend(folders.iter().filter(|folder| inside(folder)).cloned());
            Ok(())
        }

        fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
            let mut state = self.step()?;
            let content = state.files.remove(from).ok_or(io::ErrorKind::NotFound)?;
            state.files.insert(to.to_owned(), content);
            Ok(())
        }

        fn remove(&self, path: &Path) -> io::Result<()> {
            let mut state = self.step()?;
            state.files.remove(path).map(drop).ok_or_else(|| io::ErrorKind::NotFound.into())
        }

        fn entries(&self, path: &Path) -> io::Result<Vec<Entry>> {
            let state = self.state();
            if !state.folders.contains(path) {
                return Err(io::ErrorKind::NotFound.into());
            }
            let name = |path: &Path| path.file_name().unwrap().to_string_lossy().into_owned();
            let folders = state.folders.iter().filter(|other| other.parent() == Some(path));
            let files = state.files.iter().filter(|(other, _)| other.parent() == Some(path));
            let folders = folders.map(|other| Entry { name: name(other), folder: true, bytes: 0 });
            let files = files.map(|(other, content)| {
                let bytes = state.contents[*content].bytes.len() as u64;
                Entry { name: name(other), folder: false, bytes }
            });
            Ok(folders.chain(files).collect())
        }

        fn open(&self, path: &Path) -> io::Result<Input> {
            let state = self.state();
            let content = *state.files.get(path).ok_or(io::ErrorKind::NotFound)?;
            Ok(Input::Bytes(state.contents[content].bytes.clone()))
        }
    }
}
