//! An archive on a disk that a test makes up: one in memory that dies, fills up, and forgets what was not synced.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use crate::archive::Archive;
use crate::store::FolderStore;
pub use crate::store::{Disk, FolderEntry, ParquetInput};

/// Returns the archive in this folder of a disk.
pub fn archive(root: &Path, disk: impl Disk + 'static) -> Archive {
    Archive::on(FolderStore::new(root.to_owned(), disk))
}

#[derive(Debug, Clone)]
struct CrashDiskFile {
    bytes: Bytes,
    synced: bool,
}

#[derive(Debug, Default)]
struct CrashDiskState {
    /// Operations until the disk dies; `None` for never.
    left: Option<usize>,
    /// The disk is full: nothing can be written.
    full: bool,
    /// The names in this folder cannot be made durable, and why.
    unsyncable: Option<(PathBuf, io::ErrorKind)>,
    operations: usize,
    contents: Vec<CrashDiskFile>,
    folders: BTreeSet<PathBuf>,
    files: BTreeMap<PathBuf, usize>,
    durable_folders: BTreeSet<PathBuf>,
    durable_files: BTreeMap<PathBuf, usize>,
}

/// A disk in memory that dies at a chosen operation, and at a power loss forgets what was not synced. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct CrashDisk(Arc<Mutex<CrashDiskState>>);

impl CrashDisk {
    fn state(&self) -> MutexGuard<'_, CrashDiskState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One operation that changes something.
    fn step(&self) -> io::Result<MutexGuard<'_, CrashDiskState>> {
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

    pub fn die_after(&self, operations: usize) {
        self.state().left = Some(operations);
    }

    pub fn operations(&self) -> usize {
        self.state().operations
    }

    pub fn fill(&self, full: bool) {
        self.state().full = full;
    }

    /// Makes it impossible, from now on, to make the names in a folder durable.
    pub fn refuse_to_sync(&self, folder: &Path, kind: io::ErrorKind) {
        self.state().unsyncable = Some((folder.to_owned(), kind));
    }

    /// Returns every file, hidden ones too.
    pub fn files(&self) -> Vec<PathBuf> {
        self.state().files.keys().cloned().collect()
    }

    /// Restarts after the process was killed; with `power_loss` only synced data is left.
    pub fn reboot(&self, power_loss: bool) {
        self.state().left = None;
        if power_loss {
            self.lose_power(|| false);
        }
    }

    /// Returns the power comes back. Of what was not synced that is there which survived: each name by itself, and of a file's
    /// content the first half at least.
    pub fn lose_power(&self, mut survives: impl FnMut() -> bool) {
        let mut state = self.state();
        let CrashDiskState { folders, files, durable_folders, durable_files, contents, .. } = &mut *state;
        let doubtful: Vec<PathBuf> = folders.symmetric_difference(durable_folders).cloned().collect();
        for folder in doubtful {
            if !survives() && !folders.remove(&folder) {
                folders.insert(folder);
            }
        }
        let names: BTreeSet<PathBuf> = files.keys().chain(durable_files.keys()).cloned().collect();
        for name in names {
            let was = durable_files.get(&name).copied();
            if files.get(&name).copied() != was && !survives() {
                match was {
                    Some(content) => files.insert(name, content),
                    None => files.remove(&name),
                };
            }
        }
        // The content of a folder that is gone is gone; a folder comes before its content.
        let root = Path::new("/");
        for folder in folders.clone() {
            if folder.parent().is_some_and(|parent| parent != root && !folders.contains(parent)) {
                folders.remove(&folder);
            }
        }
        files.retain(|name, _| name.parent().is_some_and(|parent| parent == root || folders.contains(parent)));
        for content in contents.iter_mut().filter(|content| !content.synced) {
            if !survives() {
                content.bytes.truncate(content.bytes.len() / 2);
            }
            content.synced = true;
        }
        durable_folders.clone_from(folders);
        durable_files.clone_from(files);
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
        state.contents.push(CrashDiskFile { bytes: bytes.clone(), synced: false });
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
        if let Some((folder, kind)) = &state.unsyncable
            && folder == path
        {
            return Err((*kind).into());
        }
        if !state.folders.contains(path) && path != Path::new("/") {
            return Err(io::ErrorKind::NotFound.into());
        }
        let inside = |other: &PathBuf| other.parent() == Some(path);
        let CrashDiskState { files, folders, durable_files, durable_folders, .. } = &mut *state;
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

    fn entries(&self, path: &Path) -> io::Result<Vec<FolderEntry>> {
        let state = self.state();
        if !state.folders.contains(path) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let folders = state.folders.iter().filter(|other| other.parent() == Some(path));
        let files = state.files.iter().filter(|(other, _)| other.parent() == Some(path));
        let folders = folders.map(|other| FolderEntry { name: name(other), folder: true, special: None, bytes: 0 });
        let files = files.map(|(other, content)| {
            let bytes = state.contents[*content].bytes.len() as u64;
            FolderEntry { name: name(other), folder: false, special: None, bytes }
        });
        Ok(folders.chain(files).collect())
    }

    fn open(&self, path: &Path) -> io::Result<ParquetInput> {
        let state = self.state();
        let content = *state.files.get(path).ok_or(io::ErrorKind::NotFound)?;
        Ok(ParquetInput::Bytes(state.contents[content].bytes.clone()))
    }
}
