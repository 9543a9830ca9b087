//! Records in a small file beside the store how far the log is durable.
//!
//! The store ends its journal at the first place that it cannot read, as if writing had been interrupted there. That is right
//! after a power cut. If a file was damaged or truncated, committed records are lost without an error. So each commit has a
//! number, kept in the store, and this file has the number of one that is known to be durable. It is written after that is true
//! and needs no sync itself: an older number only notices less.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

const NAME: &str = "durable";

#[derive(Debug)]
pub struct DurableCommitFile {
    file: File,
    /// The newest commit in the store.
    newest: u64,
    /// The number in the file.
    durable_commit: u64,
}

/// Returns the number in the file; 0 if it has none, or anything but a number and its complement.
fn read(file: &File) -> io::Result<u64> {
    let mut bytes = [0; 16];
    match file.read_exact_at(&mut bytes, 0) {
        Ok(()) => {
            let number = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
            let complement = u64::from_le_bytes(bytes[8..].try_into().expect("eight bytes"));
            Ok(if number == !complement { number } else { 0 })
        }
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(0),
        Err(error) => Err(error),
    }
}

impl DurableCommitFile {
    /// Returns the commit that is known to be durable in a folder before anything is opened in it.
    pub fn read_durable_commit(dir: &Path) -> u64 {
        File::open(dir.join(NAME)).and_then(|file| read(&file)).unwrap_or(0)
    }

    /// Opens the file. `newest`: the commit that the store ends with.
    pub fn open(dir: &Path, newest: u64) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(dir.join(NAME))?;
        let durable_commit = read(&file)?;
        Ok(Self { file, newest, durable_commit })
    }

    pub fn durable_commit(&self) -> u64 {
        self.durable_commit
    }

    pub fn newest(&self) -> u64 {
        self.newest
    }

    /// Returns the number of the next commit.
    pub fn next(&self) -> u64 {
        self.newest + 1
    }

    pub fn mark_committed(&mut self, number: u64) {
        self.newest = number;
    }

    /// Records that this commit and those before it are on the disk.
    pub fn mark_durable(&mut self, number: u64) {
        if number <= self.durable_commit {
            return;
        }
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        bytes[8..].copy_from_slice(&(!number).to_le_bytes());
        match self.file.write_all_at(&bytes, 0) {
            Ok(()) => self.durable_commit = number,
            // The commit itself is safe.
            Err(error) => tracing::debug!(%error, "the number of the newest durable commit was not noted"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_remembers_the_newest_durable_commit_and_ignores_what_it_did_not_write() {
        let dir = tempfile::tempdir().unwrap();
        let mut witness = DurableCommitFile::open(dir.path(), 0).unwrap();
        assert_eq!((witness.durable_commit(), witness.next()), (0, 1));
        witness.mark_committed(7);
        witness.mark_durable(5);
        witness.mark_durable(3);
        assert_eq!((witness.durable_commit(), witness.newest()), (5, 7));
        assert_eq!(DurableCommitFile::open(dir.path(), 9).unwrap().durable_commit(), 5);
        let mut torn = std::fs::read(dir.path().join(NAME)).unwrap();
        torn[0] ^= 1;
        std::fs::write(dir.path().join(NAME), &torn).unwrap();
        assert_eq!(DurableCommitFile::open(dir.path(), 9).unwrap().durable_commit(), 0);
        std::fs::write(dir.path().join(NAME), &torn[..9]).unwrap();
        assert_eq!(DurableCommitFile::open(dir.path(), 9).unwrap().durable_commit(), 0);
    }

    #[test]
    fn a_folder_without_testimony_returns_nothing_and_what_cannot_be_read_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(DurableCommitFile::read_durable_commit(dir.path()), 0);
        DurableCommitFile::open(dir.path(), 7).unwrap().mark_durable(5);
        assert_eq!(DurableCommitFile::read_durable_commit(dir.path()), 5);
        // A folder of that name.
        std::fs::remove_file(dir.path().join(NAME)).unwrap();
        std::fs::create_dir(dir.path().join(NAME)).unwrap();
        assert!(read(&File::open(dir.path().join(NAME)).unwrap()).is_err());
        assert_eq!(DurableCommitFile::read_durable_commit(dir.path()), 0);
    }
}
