//! Storage of files: a folder or an object store. A file is visible whole or not at all.

mod disk;
mod local;
mod object;

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::sync::Arc;

use bytes::{Buf, Bytes};
use parquet::file::reader::{ChunkReader, Length};

pub use disk::Disk;
#[cfg(any(test, feature = "simulation"))]
pub use disk::FolderEntry;
pub(crate) use disk::OsDisk;
pub(crate) use local::FolderStore;
pub(crate) use object::BucketStore;

/// A file by its path relative to the archive.
#[derive(Debug, Clone)]
pub(crate) struct StoredFile {
    pub path: String,
    /// Kind of the entry if it is not a file.
    pub special: Option<&'static str>,
    pub bytes: u64,
}

pub(crate) trait ArchiveStore: Send + Sync + fmt::Debug {
    /// Returns every `.parquet` file at the top and under the top's `topic=…` folders, hidden ones apart, and the records of what
    /// was archived. An absent archive is empty.
    fn list(&self) -> io::Result<Vec<StoredFile>>;
    /// Makes a new file visible, durably and in one step. The same content again is accepted: the call may be repeated.
    /// [`io::ErrorKind::AlreadyExists`] where other content has that name.
    fn create(&self, path: &str, bytes: Bytes) -> io::Result<()>;
    /// Makes a visible file durable, if its writer may have been killed between the two.
    fn make_durable(&self, path: &str) -> io::Result<()>;
    fn read(&self, path: &str) -> io::Result<ParquetInput>;
    /// Returns some bytes of a file, or an error if the file has fewer.
    fn range(&self, path: &str, range: Range<u64>) -> io::Result<Bytes>;
    /// Deletes a file. A file that is gone already is no error.
    fn delete(&self, path: &str) -> io::Result<()>;
    /// Removes the files of interrupted [`ArchiveStore::create`] calls; returns their number.
    fn sweep(&self) -> io::Result<u64>;
}

/// A file to be read.
#[derive(Debug, Clone)]
pub enum ParquetInput {
    File(Arc<File>),
    Bytes(Bytes),
}

impl ParquetInput {
    /// Returns all bytes.
    pub(crate) fn whole(&self) -> io::Result<Bytes> {
        let length = usize::try_from(Length::len(self)).map_err(io::Error::other)?;
        self.get_bytes(0, length).map_err(io::Error::other)
    }
}

impl Length for ParquetInput {
    fn len(&self) -> u64 {
        match self {
            Self::File(file) => Length::len(&**file),
            Self::Bytes(bytes) => bytes.len() as u64,
        }
    }
}

impl ChunkReader for ParquetInput {
    type T = Box<dyn Read + Send>;

    fn get_read(&self, start: u64) -> parquet::errors::Result<Self::T> {
        Ok(match self {
            Self::File(file) => Box::new(file.get_read(start)?),
            Self::Bytes(bytes) => Box::new(bytes.get_bytes(start, bytes.len().saturating_sub(start as usize))?.reader()),
        })
    }

    fn get_bytes(&self, start: u64, length: usize) -> parquet::errors::Result<Bytes> {
        match self {
            Self::File(file) => file.get_bytes(start, length),
            Self::Bytes(bytes) => bytes.get_bytes(start, length),
        }
    }
}

/// Returns whether two files have the same content.
pub(crate) fn same(input: &ParquetInput, bytes: &Bytes) -> io::Result<bool> {
    if Length::len(input) != bytes.len() as u64 {
        return Ok(false);
    }
    Ok(input.whole()? == *bytes)
}
