//! A folder: temporary file, fsync, rename, fsync of the folder.

use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use parquet::file::reader::ChunkReader;

use super::{ArchiveStore, Disk, ParquetInput, StoredFile, same};
use crate::extent;

#[derive(Debug)]
pub(crate) struct FolderStore<D> {
    root: PathBuf,
    disk: D,
    /// Folders whose names, and those of the folders above them, this process made durable.
    durable: Mutex<BTreeSet<PathBuf>>,
}

const TEMPORARY: &str = ".tmp";

impl<D: Disk> FolderStore<D> {
    pub(crate) fn new(root: PathBuf, disk: D) -> Self {
        Self { root, disk, durable: Mutex::default() }
    }

    /// Makes a folder and those above it.
    fn make_folders(&self, path: &Path) -> io::Result<()> {
        let made = match self.disk.make_folder(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let parent = path.parent().ok_or(error)?;
                self.make_folders(parent)?;
                self.disk.make_folder(path)?
            }
            other => other?,
        };
        if made {
            self.durable().remove(path);
        }
        Ok(())
    }

    /// Makes the names of a folder and of those above it durable, even if they existed before: the process that made them may
    /// have been killed in between. Once a process is enough.
    fn keep_folders(&self, path: &Path) -> io::Result<()> {
        let Some(parent) = path.parent().filter(|_| !self.durable().contains(path)) else { return Ok(()) };
        self.keep_folders(parent)?;
        let outside = path == self.root || !path.starts_with(&self.root);
        match self.disk.sync_folder(if parent.as_os_str().is_empty() { Path::new(".") } else { parent }) {
            // The folder is outside of the archive, and another user's.
            Err(error) if outside && cannot_be_synced(error.kind()) => {
                tracing::debug!(folder = %parent.display(), %error, "not synced");
            }
            other => other?,
        }
        self.durable().insert(path.to_owned());
        Ok(())
    }

    fn durable(&self) -> MutexGuard<'_, BTreeSet<PathBuf>> {
        self.durable.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn walk(&self, folder: &str, depth: usize, visit: &mut dyn FnMut(StoredFile)) -> io::Result<()> {
        let entries = match self.disk.entries(&self.root.join(folder)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => other?,
        };
        for entry in entries {
            let path = if folder.is_empty() { entry.name.clone() } else { format!("{folder}/{}", entry.name) };
            if !entry.folder {
                visit(StoredFile { path, special: entry.special, bytes: entry.bytes });
            } else if depth < 3 && (depth > 0 || extent::is_archive_folder(&entry.name)) {
                self.walk(&path, depth + 1, visit)?;
            }
        }
        Ok(())
    }

    fn publish(&self, folder: &Path, name: &str, bytes: &Bytes) -> io::Result<()> {
        let temporary = folder.join(format!(".{name}.{}{TEMPORARY}", std::process::id()));
        let written = self.disk.write(&temporary, bytes).and_then(|()| self.disk.sync_file(&temporary));
        if let Err(error) = written.and_then(|()| self.disk.rename(&temporary, &folder.join(name))) {
            // Best effort: what stays is hidden, and swept at the next start.
            if let Err(left) = self.disk.remove(&temporary) {
                tracing::debug!(file = %temporary.display(), %left, "temporary file stays");
            }
            return Err(error);
        }
        self.disk.sync_folder(folder)
    }
}

/// Returns the folder and the name of a file.
fn parts(path: &Path) -> io::Result<(&Path, &str)> {
    match (path.parent(), path.file_name().and_then(|name| name.to_str())) {
        (Some(folder), Some(name)) => Ok((folder, name)),
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "not a path of a file")),
    }
}

fn cannot_be_synced(kind: io::ErrorKind) -> bool {
    use io::ErrorKind::{InvalidInput, PermissionDenied, ReadOnlyFilesystem, Unsupported};
    matches!(kind, InvalidInput | PermissionDenied | ReadOnlyFilesystem | Unsupported)
}

fn is_parquet(path: &str) -> bool {
    path.ends_with(".parquet") && !path.rsplit('/').next().is_some_and(|name| name.starts_with('.'))
}

impl<D: Disk> ArchiveStore for FolderStore<D> {
    fn list(&self) -> io::Result<Vec<StoredFile>> {
        let mut found = Vec::new();
        self.walk("", 0, &mut |file| {
            if is_parquet(&file.path) || extent::is_record(&file.path) {
                found.push(file);
            }
        })?;
        Ok(found)
    }

    fn create(&self, path: &str, bytes: Bytes) -> io::Result<()> {
        let path = self.root.join(path);
        let (folder, name) = parts(&path)?;
        self.make_folders(folder)?;
        self.keep_folders(folder)?;
        match self.disk.open(&path) {
            // An earlier attempt got as far as the rename.
            Ok(there) if same(&there, &bytes)? => {
                self.disk.sync_file(&path)?;
                return self.disk.sync_folder(folder);
            }
            Ok(_) => return Err(io::ErrorKind::AlreadyExists.into()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        self.publish(folder, name, &bytes)
    }

    fn make_durable(&self, path: &str) -> io::Result<()> {
        let path = self.root.join(path);
        self.disk.sync_file(&path)?;
        path.parent().map_or(Ok(()), |folder| self.disk.sync_folder(folder))
    }

    fn read(&self, path: &str) -> io::Result<ParquetInput> {
        self.disk.open(&self.root.join(path))
    }

    fn range(&self, path: &str, range: Range<u64>) -> io::Result<Bytes> {
        let length = usize::try_from(range.end - range.start).map_err(io::Error::other)?;
        self.read(path)?.get_bytes(range.start, length).map_err(io::Error::other)
    }

    fn delete(&self, path: &str) -> io::Result<()> {
        let path = self.root.join(path);
        match self.disk.remove(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => path.parent().map_or(Ok(()), |folder| self.disk.sync_folder(folder)),
        }
    }

    fn sweep(&self) -> io::Result<u64> {
        let mut left = Vec::new();
        self.walk("", 0, &mut |file| {
            let name = file.path.rsplit('/').next().unwrap_or_default();
            if name.starts_with('.') && name.ends_with(TEMPORARY) {
                left.push(file.path);
            }
        })?;
        for path in &left {
            self.delete(path)?;
        }
        Ok(left.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulation::CrashDisk;

    #[test]
    fn only_what_a_killed_writer_left_is_swept() {
        let disk = CrashDisk::default();
        let store = FolderStore::new("/archive".into(), disk.clone());
        store.create("topic=a/file.parquet", Bytes::from_static(b"content")).unwrap();
        for name in [".file.parquet.17.tmp", ".keep", "notes.tmp"] {
            disk.write(&Path::new("/archive/topic=a").join(name), &Bytes::from_static(b"content")).unwrap();
        }
        assert_eq!(store.sweep().unwrap(), 1);
        store.delete("topic=a/.file.parquet.17.tmp").unwrap();
        let left = [".keep", "file.parquet", "notes.tmp"].map(|name| Path::new("/archive/topic=a").join(name));
        assert_eq!(disk.files(), left);
    }

    #[test]
    fn only_of_other_peoples_folders_around_the_archive_need_the_names_not_be_kept() {
        use io::ErrorKind::{InvalidInput, Other, PermissionDenied, ReadOnlyFilesystem, Unsupported};
        let created = |folder: &str, kind| {
            let disk = CrashDisk::default();
            disk.refuse_to_sync(Path::new(folder), kind);
            let store = FolderStore::new("/home/archive".into(), disk);
            store.create("topic=a/file.parquet", Bytes::from_static(b"content")).map_err(|error| error.kind())
        };
        for kind in [InvalidInput, PermissionDenied, ReadOnlyFilesystem, Unsupported] {
            assert_eq!(created("/", kind), Ok(()), "around it");
            assert_eq!(created("/home", kind), Ok(()), "where it lies");
            assert_eq!(created("/home/archive", kind), Err(kind));
            assert_eq!(created("/home/archive/topic=a", kind), Err(kind));
        }
        for folder in ["/", "/home", "/home/archive", "/home/archive/topic=a"] {
            assert_eq!(created(folder, Other), Err(Other), "{folder}");
        }
    }
}
