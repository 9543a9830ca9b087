//! Files whose content is in force, followed as they change.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Files that belong together, and their stamps when they were last read.
#[derive(Debug)]
pub struct WatchedFiles<const N: usize> {
    paths: [PathBuf; N],
    stamps: [Option<FileStamp>; N],
    /// Error for which they could not be used when they were last looked at.
    failure: Option<String>,
}

impl<const N: usize> WatchedFiles<N> {
    /// Watches these files, none of which was read yet.
    pub fn new(paths: [PathBuf; N]) -> Self {
        Self { paths, stamps: [None; N], failure: None }
    }

    /// Reads them, changed or not.
    pub fn read<T, E>(&mut self, read: impl FnOnce(&[PathBuf; N]) -> Result<T, E>) -> Result<T, E> {
        // A change while they are read is still to be seen.
        let stamps = self.stamps();
        let content = read(&self.paths)?;
        self.stamps = stamps;
        Ok(content)
    }

    /// Reads them if they changed, or could not be used before: the cause may have passed without a change of them.
    /// Returns false if they cannot be used, which is logged once.
    pub fn reload_if_changed(&mut self, read: impl FnOnce(&[PathBuf; N]) -> Result<(), String>) -> bool {
        let stamps = self.stamps();
        if self.failure.is_none() && stamps == self.stamps && !stamps.contains(&None) {
            return true;
        }
        let failure = self.read(read).err();
        if let Some(error) = failure.as_ref().filter(|_| failure != self.failure) {
            tracing::warn!(path = %self.paths[0].display(), error, "a file cannot be used; the content that was read before stays in force");
        }
        self.failure = failure;
        self.failure.is_none()
    }

    fn stamps(&self) -> [Option<FileStamp>; N] {
        self.paths.each_ref().map(|path| FileStamp::of(path))
    }
}

/// Differs if a file was changed or replaced. A writer can keep the size and set back the time of modification, but not the
/// time of change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileStamp {
    inode: (u64, u64),
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl FileStamp {
    fn of(path: &Path) -> Option<Self> {
        let of = std::fs::metadata(path).ok()?;
        Some(Self {
            inode: (of.dev(), of.ino()),
            size: of.size(),
            modified: (of.mtime(), of.mtime_nsec()),
            changed: (of.ctime(), of.ctime_nsec()),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use super::*;

    /// Returns a file in a folder of its own.
    fn file(content: &str) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, content).unwrap();
        (dir, path)
    }

    fn text([path]: &[PathBuf; 1]) -> Result<String, String> {
        fs::read_to_string(path).map_err(|error| error.to_string())
    }

    /// Returns the content that a check of the file reads.
    fn look(files: &mut WatchedFiles<1>) -> Option<String> {
        let mut found = None;
        assert!(files.reload_if_changed(|paths| text(paths).map(|text| found = Some(text))));
        found
    }

    /// Puts a file in the place of another.
    fn replace(path: &Path, content: &str) {
        let next = path.with_extension("next");
        fs::write(&next, content).unwrap();
        fs::rename(next, path).unwrap();
    }

    #[test]
    fn what_changes_while_it_is_read_is_read_again() {
        let (_dir, path) = file("one");
        let mut files = WatchedFiles::new([path.clone()]);
        let first = files.read(|paths| {
            let text = text(paths);
            replace(&path, "two");
            text
        });
        assert_eq!(first.as_deref(), Ok("one"));
        assert_eq!((look(&mut files).as_deref(), look(&mut files)), (Some("two"), None));
    }

    #[test]
    fn what_could_not_be_used_is_tried_again_though_it_did_not_change() {
        let (_dir, path) = file("one");
        let mut files = WatchedFiles::new([path.clone()]);
        assert_eq!(look(&mut files).as_deref(), Some("one"));
        replace(&path, "two");
        assert!(!files.reload_if_changed(|_| Err("too many open files".to_owned())));
        assert_eq!((look(&mut files).as_deref(), look(&mut files)), (Some("two"), None));

        // Moved back, it is the file that was read last, but its content may have changed meanwhile.
        let away = path.with_extension("away");
        fs::rename(&path, &away).unwrap();
        assert!(!files.reload_if_changed(|paths| text(paths).map(drop)));
        fs::rename(&away, &path).unwrap();
        assert_eq!((look(&mut files).as_deref(), look(&mut files)), (Some("two"), None));
    }

    #[test]
    fn neither_size_nor_time_hides_a_change() {
        let (_dir, path) = file("one");
        let mut files = WatchedFiles::new([path.clone()]);
        assert_eq!(look(&mut files).as_deref(), Some("one"));
        let before = FileStamp::of(&path).unwrap();
        let modified = fs::metadata(&path).unwrap().modified().unwrap();
        let set_back = || File::options().write(true).open(&path).unwrap().set_modified(modified).unwrap();

        replace(&path, "two");
        set_back();
        assert_eq!(look(&mut files).as_deref(), Some("two"), "another file");

        let between = FileStamp::of(&path).unwrap();
        while FileStamp::of(&path).unwrap().changed == between.changed {
            fs::write(&path, "six").unwrap();
            set_back();
        }
        assert_eq!(look(&mut files).as_deref(), Some("six"), "changed where it is");
        let after = FileStamp::of(&path).unwrap();
        assert_eq!((after.size, after.modified), (before.size, before.modified));
        assert_eq!(after.inode, between.inode);
    }
}
