//! An object store: one conditional put a file, so that no file is half-written and nothing is swept.

use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutOptions};
use tokio::runtime::{Builder, Runtime};

use super::{ArchiveStore, ParquetInput, StoredFile, same};
use crate::extent;

pub(crate) struct BucketStore {
    store: Arc<dyn ObjectStore>,
    prefix: Path,
    runtime: Runtime,
}

impl fmt::Debug for BucketStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.store, self.prefix)
    }
}

impl BucketStore {
    pub(crate) fn new(store: Arc<dyn ObjectStore>, prefix: Path) -> io::Result<Self> {
        // One worker of its own: callers are plain threads.
        let runtime = Builder::new_multi_thread().worker_threads(1).thread_name("lake-objects").enable_all().build()?;
        Ok(Self { store, prefix, runtime })
    }

    fn full(&self, path: &str) -> io::Result<Path> {
        let full = if self.prefix.as_ref().is_empty() { path.to_owned() } else { format!("{}/{path}", self.prefix) };
        Path::parse(full).map_err(io::Error::other)
    }

    fn get(&self, path: &Path) -> object_store::Result<Bytes> {
        self.runtime.block_on(async { self.store.get(path).await?.bytes().await })
    }

    fn walk(&self, folder: &Path, depth: usize, found: &mut Vec<StoredFile>) -> io::Result<()> {
        let listing = self.runtime.block_on(self.store.list_with_delimiter(Some(folder))).map_err(plain)?;
        let skip = if self.prefix.as_ref().is_empty() { 0 } else { self.prefix.as_ref().len() + 1 };
        for object in listing.objects {
            let path = &object.location.as_ref()[skip..];
            if path.ends_with(".parquet") || extent::is_record(path) {
                found.push(StoredFile { path: path.to_owned(), special: None, bytes: object.size });
            }
        }
        for inner in listing.common_prefixes {
            let top = inner.as_ref()[skip..].split('/').next();
            if depth < 3 && top.is_some_and(extent::is_archive_folder) {
                self.walk(&inner, depth + 1, found)?;
            }
        }
        Ok(())
    }
}

fn plain(error: object_store::Error) -> io::Error {
    let kind = match &error {
        object_store::Error::NotFound { .. } => io::ErrorKind::NotFound,
        object_store::Error::PermissionDenied { .. } | object_store::Error::Unauthenticated { .. } => {
            io::ErrorKind::PermissionDenied
        }
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, error)
}

impl ArchiveStore for BucketStore {
    fn list(&self) -> io::Result<Vec<StoredFile>> {
        let mut found = Vec::new();
        self.walk(&self.prefix, 0, &mut found)?;
        found.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(found)
    }

    fn create(&self, path: &str, bytes: Bytes) -> io::Result<()> {
        let full = self.full(path)?;
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        match self.runtime.block_on(self.store.put_opts(&full, bytes.clone().into(), options)) {
            Ok(_) => Ok(()),
            // An earlier attempt may have arrived although its answer did not.
            Err(object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. }) => {
                let there = self.get(&full).map_err(plain)?;
                if same(&ParquetInput::Bytes(there), &bytes)? { Ok(()) } else { Err(io::ErrorKind::AlreadyExists.into()) }
            }
            Err(error) => Err(plain(error)),
        }
    }

    fn make_durable(&self, _: &str) -> io::Result<()> {
        // A put that others see is durable.
        Ok(())
    }

    fn read(&self, path: &str) -> io::Result<ParquetInput> {
        self.get(&self.full(path)?).map(ParquetInput::Bytes).map_err(plain)
    }

    fn range(&self, path: &str, range: Range<u64>) -> io::Result<Bytes> {
        let full = self.full(path)?;
        self.runtime.block_on(self.store.get_range(&full, range)).map_err(plain)
    }

    fn delete(&self, path: &str) -> io::Result<()> {
        let full = self.full(path)?;
        match self.runtime.block_on(self.store.delete(&full)) {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(plain(error)),
        }
    }

    fn sweep(&self) -> io::Result<u64> {
        Ok(0)
    }
}
