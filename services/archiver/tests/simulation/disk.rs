//! The disk as a process sees it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use eadt_lake::simulation::{CrashDisk, Disk, FolderEntry, ParquetInput};

use super::world::{Flaw, Process};

#[derive(Debug)]
pub struct SimDisk {
    pub process: Arc<Process>,
    pub disk: CrashDisk,
}

/// How often something happens at a step that looks, and at one that changes something: there are many more of the first.
const LOOKS: usize = 80;
const CHANGES: usize = 10;

impl SimDisk {
    fn look<T>(&self, what: &str, path: &Path, effect: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        self.call(what, path, LOOKS, || {}, effect)
    }

    fn change<T>(&self, what: &str, path: &Path, effect: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        self.call(what, path, CHANGES, || {}, effect)
    }

    /// A change of which a part may be left.
    fn tear<T>(&self, what: &str, path: &Path, partly: impl FnOnce(), effect: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        self.call(what, path, CHANGES, partly, effect)
    }

    fn call<T>(
        &self,
        what: &str,
        path: &Path,
        one_in: usize,
        partly: impl FnOnce(),
        effect: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        self.process.call(&format!("{what} {}", path.display()), one_in, |why| io::Error::other(why.to_owned()), partly, effect)
    }

    /// A temporary file bears its process's id, and these all have one: here each has its own, which recurs.
    fn own(&self, path: &Path) -> PathBuf {
        let of_all = format!(".{}.tmp", std::process::id());
        match path.to_str().and_then(|path| path.strip_suffix(&of_all)) {
            Some(path) => PathBuf::from(format!("{path}.{}.tmp", self.process.number % 3)),
            None => path.to_owned(),
        }
    }

    fn has(&self, flaw: Flaw) -> bool {
        self.process.story.world().flaw == Some(flaw)
    }

    /// A file as it is after half of a write.
    fn write_half(&self, path: &Path, bytes: &Bytes) {
        // If it cannot be written nothing is there.
        drop(self.disk.write(path, &bytes.slice(..bytes.len() / 2)));
    }
}

fn content(disk: &CrashDisk, path: &Path) -> io::Result<Bytes> {
    match disk.open(path)? {
        ParquetInput::Bytes(bytes) => Ok(bytes),
        ParquetInput::File(_) => unreachable!("nothing is on a real disk"),
    }
}

impl Disk for SimDisk {
    fn make_folder(&self, path: &Path) -> io::Result<bool> {
        self.change("make folder", path, || {
            if self.process.story.world().is_full() {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.disk.make_folder(path)
        })
    }

    fn write(&self, path: &Path, bytes: &Bytes) -> io::Result<()> {
        let path = &self.own(path);
        let half = || self.write_half(path, bytes);
        self.tear("write", path, half, || {
            if self.process.story.world().is_full() {
                half();
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.disk.write(path, bytes)
        })
    }

    fn sync_file(&self, path: &Path) -> io::Result<()> {
        let path = &self.own(path);
        self.change("sync file", path, || if self.has(Flaw::FileSyncs) { Ok(()) } else { self.disk.sync_file(path) })
    }

    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        self.change("sync folder", path, || if self.has(Flaw::FolderSyncs) { Ok(()) } else { self.disk.sync_folder(path) })
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let from = &self.own(from);
        let copies = self.has(Flaw::Renames);
        let torn = || {
            if copies && let Ok(bytes) = content(&self.disk, from) {
                self.write_half(to, &bytes);
            }
        };
        self.tear("rename to", to, torn, || {
            if copies {
                self.disk.write(to, &content(&self.disk, from)?)?;
                self.disk.sync_file(to)?;
                self.disk.remove(from)?;
            } else {
                self.disk.rename(from, to)?;
            }
            // Finishes an allowed operation.
            self.process.allow(false);
            Ok(())
        })
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let path = &self.own(path);
        self.change("remove", path, || self.disk.remove(path))
    }

    fn entries(&self, path: &Path) -> io::Result<Vec<FolderEntry>> {
        self.look("list", path, || {
            let mut entries = self.disk.entries(path)?;
            if self.has(Flaw::Leftovers) {
                entries.retain(|entry| !entry.name.starts_with('.'));
            }
            Ok(entries)
        })
    }

    fn open(&self, path: &Path) -> io::Result<ParquetInput> {
        self.look("open", path, || self.disk.open(path))
    }
}
