//! The rows: what is kept under which key, and what an error of the store means to the user.

use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use bytes::Bytes;
use fjall::{Database, Keyspace, KeyspaceCreateOptions, KvSeparationOptions, PersistMode};

use super::witness::Witness;
use super::{EmbeddedOptions, FreeSpace, lock};
use crate::{BusError, Remedy, Result};

/// How often the free space of the disk is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Of rows and blocks as this version writes them; stored, so that an older program does not guess at a newer one's.
/// Since 2 both keyspaces have the number of the newest commit.
const FORMAT: u32 = 2;
const FORMAT_KEY: &[u8] = b"f";
/// The number of the newest commit.
const COMMIT_KEY: &[u8] = b"n";
/// What the files of the store itself begin with, and the newest form of them that it reads.
const FILES: (&str, &[u8], u8) = ("version", b"FJL", 3);

/// What must survive once a write has returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Survives {
    /// The death of the process, at any point.
    Process,
    /// Also a power cut.
    PowerCut,
}

/// One atomic set of changes.
#[derive(Debug, Default)]
pub struct Changes {
    blocks: Vec<(Vec<u8>, Option<Bytes>)>,
    meta: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    bytes: u64,
}

impl Changes {
    pub fn put_block(&mut self, key: [u8; 16], block: Bytes) {
        self.bytes += block.len() as u64;
        self.blocks.push((key.to_vec(), Some(block)));
    }

    pub fn remove_block(&mut self, key: Vec<u8>) {
        self.blocks.push((key, None));
    }

    pub fn put_meta(&mut self, key: Vec<u8>, value: Vec<u8>) {
        self.meta.push((key, Some(value)));
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.meta.is_empty()
    }
}

/// The store in its folder.
pub struct Store {
    dir: PathBuf,
    db: Database,
    blocks: Keyspace,
    meta: Keyspace,
    reserve: u64,
    free: FreeSpace,
    space: Mutex<Space>,
    /// Held while a commit takes its number and is written, so that the store's number never falls.
    witness: Mutex<Witness>,
}

struct Space {
    free: u64,
    looked: Option<Instant>,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("dir", &self.dir).finish_non_exhaustive()
    }
}

/// The key of a block: topic, partition, base offset, so that rows sort as the log does.
pub fn block_key(topic: u32, partition: i32, base: i64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..4].copy_from_slice(&topic.to_be_bytes());
    key[4..8].copy_from_slice(&partition.to_be_bytes());
    key[8..].copy_from_slice(&base.to_be_bytes());
    key
}

/// The base offset in a block's key.
pub fn base_of(key: &[u8]) -> i64 {
    key.get(8..16).and_then(|bytes| bytes.try_into().ok()).map_or(0, i64::from_be_bytes)
}

pub fn topic_key(name: &str) -> Vec<u8> {
    [b"t", name.as_bytes()].concat()
}

/// Next offset and newest stamp of a partition.
pub fn end_key(topic: u32, partition: i32) -> Vec<u8> {
    [&b"e"[..], &topic.to_be_bytes(), &partition.to_be_bytes()].concat()
}

/// Oldest kept offset of a partition.
pub fn low_key(topic: u32, partition: i32) -> Vec<u8> {
    [&b"l"[..], &topic.to_be_bytes(), &partition.to_be_bytes()].concat()
}

/// Committed position of a group.
pub fn position_key(group: &str, topic: u32, partition: i32) -> Vec<u8> {
    [&b"p"[..], &(group.len() as u32).to_be_bytes(), group.as_bytes(), &topic.to_be_bytes(), &partition.to_be_bytes()].concat()
}

impl Store {
    pub fn open(dir: &Path, options: &EmbeddedOptions) -> Result<Self> {
        let stop = |detail: String| BusError::new(Remedy::Stop, format!("opening the embedded log in {}", dir.display()), detail);
        std::fs::create_dir_all(dir).map_err(|error| match dir.ancestors().find(|part| part.is_file()) {
            Some(file) => stop(format!("{} is a file, and a folder is needed", file.display())),
            None => stop(format!("the folder cannot be made or used: {error}")),
        })?;
        let (marker, magic, newest) = FILES;
        if let Ok([head @ .., form]) = std::fs::read(dir.join(marker)).as_deref()
            && head == magic
            && *form > newest
        {
            return Err(stop(newer(u32::from(*form), u32::from(newest))));
        }
        if let Some(missing) = missing(dir) {
            return Err(stop(damaged(dir, &format!("{} is missing", missing.display()))));
        }
        // The store may panic on files that it did not write itself.
        let opened = std::panic::catch_unwind(AssertUnwindSafe(|| -> fjall::Result<_> {
            let db = Database::builder(dir)
                .cache_size(options.cache_bytes)
                // It is short-lived; what stays is compressed.
                .journal_compression(fjall::CompressionType::None)
                .max_journaling_size(64 << 20)
                .worker_threads(1)
                .max_cached_files(Some(64))
                .open()?;
            let blocks = db.keyspace("blocks", || {
                KeyspaceCreateOptions::default()
                    .max_memtable_size(8 << 20)
                    .with_kv_separation(Some(KvSeparationOptions::default().file_target_size(32 << 20)))
            })?;
            let meta = db.keyspace("meta", || KeyspaceCreateOptions::default().max_memtable_size(1 << 20))?;
            let number = |of: &Keyspace, key: &[u8]| Ok::<_, fjall::Error>(of.get(key)?.map(Bytes::from));
            let (format, commit, committed_blocks) =
                (number(&meta, FORMAT_KEY)?, number(&meta, COMMIT_KEY)?, number(&blocks, COMMIT_KEY)?);
            Ok((db, blocks, meta, format, commit, committed_blocks))
        }));
        let (db, blocks, meta, format, commit, committed_blocks) = match opened {
            Ok(Ok(opened)) => opened,
            Ok(Err(fjall::Error::Locked)) => {
                return Err(stop(
                    "another process has it open; the embedded log serves one process: stop the other, or use Kafka (--kafka) for more than one process"
                        .to_owned(),
                ));
            }
            Ok(Err(fjall::Error::Io(error))) if is_surroundings(&error) => {
                return Err(stop(format!("{error}: check the folder's owner, permissions and free space")));
            }
            Ok(Err(error)) => return Err(stop(damaged(dir, &error.to_string()))),
            Err(_) => return Err(stop(damaged(dir, "its files do not belong together"))),
        };
        let commit_of =
            |bytes: Option<Bytes>| bytes.and_then(|bytes| <[u8; 8]>::try_from(&bytes[..]).ok()).map_or(0, u64::from_be_bytes);
        let (commit, committed_blocks) = (commit_of(commit), commit_of(committed_blocks));
        let format = format.and_then(|bytes| <[u8; 4]>::try_from(&bytes[..]).ok()).map_or(0, u32::from_be_bytes);
        if format > FORMAT {
            return Err(stop(newer(format, FORMAT)));
        }
        let witness = Witness::open(dir, commit)
            .map_err(|error| stop(format!("{error}: check the folder's owner, permissions and free space")))?;
        // The store itself takes what follows a damaged place in its journal for an interrupted write.
        if witness.seen() > commit {
            let why = format!("it ends at commit {commit}, and commit {} was on the disk: files were cut off", witness.seen());
            return Err(stop(damaged(dir, &why)));
        }
        // The format is written before the first commit, and each commit to both keyspaces at once.
        if format == 0 && commit.max(committed_blocks).max(witness.seen()) > 0 || format >= 2 && committed_blocks != commit {
            let why = if format == 0 {
                format!(
                    "commit {} is there, and the format, which is written before the first, is not",
                    commit.max(witness.seen())
                )
            } else {
                format!("its records end at commit {committed_blocks}, and commit {commit} is there")
            };
            return Err(stop(damaged(dir, &format!("{why}: files are missing or older"))));
        }
        let store = Self {
            dir: dir.to_path_buf(),
            db,
            blocks,
            meta,
            reserve: options.reserve_bytes,
            free: options.free_space.clone(),
            space: Mutex::new(Space { free: u64::MAX, looked: None }),
            witness: Mutex::new(witness),
        };
        if format < FORMAT {
            let mut batch = store.db.batch();
            batch.insert(&store.meta, FORMAT_KEY, FORMAT.to_be_bytes());
            batch.insert(&store.blocks, COMMIT_KEY, commit.to_be_bytes());
            batch.commit().map_err(|error| stop(store.explain(&error)))?;
        }
        Ok(store)
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// All or nothing. [`Remedy::Retry`] when the disk is nearly full: nothing was written.
    pub fn commit(&self, changes: Changes, survives: Survives) -> Result<()> {
        let what = || format!("appending to the embedded log in {}", self.dir.display());
        self.claim(changes.bytes).map_err(|detail| BusError::new(Remedy::Retry, what(), detail))?;
        let mut batch = self.db.batch().durability(Some(match survives {
            Survives::Process => PersistMode::Buffer,
            Survives::PowerCut => PersistMode::SyncData,
        }));
        for (key, block) in changes.blocks {
            match block {
                Some(block) => batch.insert(&self.blocks, key, block),
                None => batch.remove(&self.blocks, key),
            }
        }
        for (key, value) in changes.meta {
            match value {
                Some(value) => batch.insert(&self.meta, key, value),
                None => batch.remove(&self.meta, key),
            }
        }
        let mut witness = lock(&self.witness);
        let number = witness.next();
        batch.insert(&self.meta, COMMIT_KEY, number.to_be_bytes());
        batch.insert(&self.blocks, COMMIT_KEY, number.to_be_bytes());
        batch.commit().map_err(|error| BusError::new(Remedy::Stop, what(), self.explain(&error)))?;
        witness.committed(number);
        if survives == Survives::PowerCut {
            witness.durable(number);
        }
        Ok(())
    }

    /// Makes everything committed so far survive a power cut.
    pub fn sync(&self) -> Result<()> {
        let number = lock(&self.witness).newest();
        self.db.persist(PersistMode::SyncData).map_err(|error| {
            BusError::new(Remedy::Stop, format!("syncing the embedded log in {}", self.dir.display()), self.explain(&error))
        })?;
        lock(&self.witness).durable(number);
        Ok(())
    }

    /// Rewrites what holds removed rows, so that the disk gets their space back.
    pub fn reclaim(&self) -> Result<()> {
        let what = || format!("reclaiming space in {}", self.dir.display());
        self.blocks
            .rotate_memtable_and_wait()
            .and_then(|()| self.blocks.major_compact())
            .map_err(|error| BusError::new(Remedy::Stop, what(), self.explain(&error)))
    }

    pub fn meta(&self, key: &[u8]) -> Result<Option<Bytes>> {
        self.meta.get(key).map(|value| value.map(Bytes::from)).map_err(|error| self.unreadable(&error))
    }

    pub fn meta_with_prefix(&self, prefix: &[u8]) -> Result<Vec<(Bytes, Bytes)>> {
        self.meta
            .prefix(prefix)
            .map(|row| row.into_inner().map(|(key, value)| (key.into(), value.into())).map_err(|error| self.unreadable(&error)))
            .collect()
    }

    /// Blocks of a partition whose base offsets lie in `from..below`, oldest first.
    pub fn blocks(&self, topic: u32, partition: i32, from: i64, below: i64) -> impl Iterator<Item = Result<(Bytes, Bytes)>> {
        self.blocks
            .range(block_key(topic, partition, from)..block_key(topic, partition, below.max(from)))
            .map(|row| row.into_inner().map(|(key, value)| (key.into(), value.into())).map_err(|error| self.unreadable(&error)))
    }

    /// The base of the newest block that begins at or before `offset`.
    pub fn base_at(&self, topic: u32, partition: i32, offset: i64) -> Result<Option<i64>> {
        self.blocks
            .range(block_key(topic, partition, 0)..=block_key(topic, partition, offset))
            .next_back()
            .map(|row| row.key().map(|key| base_of(&key)).map_err(|error| self.unreadable(&error)))
            .transpose()
    }

    /// Sizes of a partition's blocks, newest first, without reading them.
    pub fn sizes(&self, topic: u32, partition: i32) -> impl Iterator<Item = Result<(i64, u32)>> {
        self.blocks.range(block_key(topic, partition, 0)..block_key(topic, partition, i64::MAX)).rev().map(|row| {
            let key = row.key().map_err(|error| self.unreadable(&error))?;
            let size = self.blocks.size_of(&key).map_err(|error| self.unreadable(&error))?;
            Ok((base_of(&key), size.unwrap_or(0)))
        })
    }

    pub fn malformed(&self, at: &crate::TopicPartition) -> BusError {
        BusError::new(Remedy::Stop, format!("reading {at}"), damaged(&self.dir, "a stored block is malformed"))
    }

    fn unreadable(&self, error: &fjall::Error) -> BusError {
        BusError::new(Remedy::Stop, "reading the embedded log", damaged(&self.dir, &error.to_string()))
    }

    /// Keeps the reserve free, so that the store's own files never meet a full disk in the middle of a write.
    fn claim(&self, bytes: u64) -> Result<(), String> {
        let mut space = lock(&self.space);
        // Journal and, later, the block itself: each byte is written twice before the first copy goes.
        let needed = bytes.saturating_mul(2);
        let stale = space.looked.is_none_or(|looked| looked.elapsed() >= LOOK_EVERY);
        if stale || space.free < self.reserve.saturating_add(needed) {
            if let Some(free) = self.free.bytes(&self.dir) {
                space.free = free;
            }
            space.looked = Some(Instant::now());
        }
        if space.free < self.reserve.saturating_add(needed) {
            return Err(format!(
                "the disk is full: {} MiB are free and {} MiB are kept in reserve; free some space and it goes on by itself",
                space.free >> 20,
                self.reserve >> 20
            ));
        }
        space.free -= needed.min(space.free);
        Ok(())
    }

    fn explain(&self, error: &fjall::Error) -> String {
        let full = matches!(error, fjall::Error::Io(io) if is_full(io));
        if full {
            return "the disk is full: free some space and start again; everything acknowledged is kept".to_owned();
        }
        match error {
            fjall::Error::Poisoned => {
                "an earlier write failed, so nothing more is taken: check disk space and disk, then start again; everything acknowledged is kept".to_owned()
            }
            error => format!("{error}: check the disk that holds {}, then start again; everything acknowledged is kept", self.dir.display()),
        }
    }
}

/// What the store would make anew, empty, where it is lost; so it is looked for before anything is opened.
fn missing(dir: &Path) -> Option<PathBuf> {
    if Witness::testimony(dir) == 0 {
        return None;
    }
    // In the order in which they were made.
    let [blocks, meta] = ["1", "2"].map(|id| dir.join("keyspaces").join(id));
    let written = std::fs::read_dir(blocks.join("tables")).is_ok_and(|mut tables| tables.next().is_some());
    let values = written.then(|| blocks.join("blobs"));
    [blocks, meta].map(|keyspace| keyspace.join("current")).into_iter().chain(values).find(|path| !path.exists())
}

fn is_full(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}

fn is_surroundings(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{NotADirectory, PermissionDenied, ReadOnlyFilesystem};
    is_full(error) || matches!(error.kind(), PermissionDenied | ReadOnlyFilesystem | NotADirectory)
}

/// What to do about a store that cannot be read. The archive beside it goes with it: a new log begins at offset 0 again, where an
/// archive of another one would take its records for known.
pub fn damaged(dir: &Path, why: &str) -> String {
    let whole = dir.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(dir).display();
    format!(
        "the store is damaged ({why}): put back a copy of {whole}, or move {whole} away and start again with a new one; \
         `eadt report` and `eadt replay` read what was archived from where you moved it"
    )
}

fn newer(found: u32, known: u32) -> String {
    format!(
        "a newer version of eadt wrote it (format {found}, this version reads up to {known}): use that version or a newer one"
    )
}
