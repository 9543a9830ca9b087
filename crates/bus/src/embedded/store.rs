//! The rows of the store: their keys, and the meaning of the store's errors for the user.

use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use fjall::{Database, Keyspace, KeyspaceCreateOptions, KvSeparationOptions, PersistMode};

use super::durable_commit::DurableCommitFile;
use super::{EmbeddedOptions, FreeSpaceSource, IN_USE, lock};
use crate::{BusError, Remedy, Result};

/// Interval between two checks of the disk's free space.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Longest time that a stopped store is searched for damage.
const LONGEST_LOOK: Duration = Duration::from_secs(10);
/// Many changes are committed in portions of this size.
const PORTION_BYTES: u64 = 4 << 20;
/// Number of reclaims that return removed bytes to the file system.
pub const RECLAIMS: u8 = 3;
/// Version of the rows and blocks that this program writes. It is stored, so that an older program refuses a newer store. Since
/// 2, both keyspaces have the number of the newest commit.
const FORMAT: u32 = 2;
const FORMAT_KEY: &[u8] = b"f";
/// The number of the newest commit.
const COMMIT_KEY: &[u8] = b"n";
/// The store library's file that names its format: file name, first bytes, and the newest format that this program reads.
const FILES: (&str, &[u8], u8) = ("version", b"FJL", 3);

/// Fault that a write must survive once it has returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DurabilityLevel {
    /// The death of the process, at any point.
    Process,
    /// Also a power cut.
    PowerCut,
}

/// One atomic set of changes.
#[derive(Debug, Default)]
pub struct WriteBatch {
    blocks: Vec<(Vec<u8>, Option<Bytes>)>,
    meta: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    bytes: u64,
    is_tidying: bool,
}

impl WriteBatch {
    /// Builds a batch that leaves less data than before. It may use half of the reserve: otherwise a log that has filled its disk
    /// could never delete expired records.
    pub fn for_cleanup() -> Self {
        Self { is_tidying: true, ..Self::default() }
    }

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

    /// Returns whether this much is committed before more is added.
    pub fn is_a_portion(&self) -> bool {
        self.bytes >= PORTION_BYTES
    }

    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.meta.is_empty()
    }
}

/// The store in its folder.
pub struct LogStore {
    dir: PathBuf,
    db: Database,
    blocks: Keyspace,
    meta: Keyspace,
    reserve: u64,
    free: FreeSpaceSource,
    space: Mutex<CachedFreeSpace>,
    /// Held while a commit takes its number and is written, so that the store's number never falls.
    witness: Mutex<DurableCommitFile>,
    /// Result of [`LogStore::damage`].
    damage: OnceLock<Option<String>>,
}

/// The free space of the disk, as of the last check.
struct CachedFreeSpace {
    free: u64,
    looked: Option<Instant>,
}

impl CachedFreeSpace {
    /// Claims the space that so many bytes need, if that leaves the reserve free; else returns why not. `look` returns the free
    /// space, if it is known.
    fn claim(&mut self, bytes: u64, reserve: u64, now: Instant, look: impl FnOnce() -> Option<u64>) -> Result<(), String> {
        // Journal and, later, the block itself: each byte is written twice before the first copy goes.
        let needed = bytes.saturating_mul(2);
        let wanted = reserve.saturating_add(needed);
        let stale = self.looked.is_none_or(|looked| now.duration_since(looked) >= LOOK_EVERY);
        if stale || self.free < wanted {
            self.free = look().unwrap_or(self.free);
            self.looked = Some(now);
        }
        if self.free < wanted {
            return Err(format!(
                "the disk is full: {} MiB are free and {} MiB are kept in reserve; free some space, or use a folder on a disk with more",
                self.free >> 20,
                reserve >> 20
            ));
        }
        self.free = self.free.saturating_sub(needed);
        Ok(())
    }
}

impl std::fmt::Debug for LogStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LogStore").field("dir", &self.dir).finish_non_exhaustive()
    }
}

/// Returns the key of a block: topic, partition, base offset, so that rows sort as the log does.
pub fn block_key(topic: u32, partition: i32, base: i64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..4].copy_from_slice(&topic.to_be_bytes());
    key[4..8].copy_from_slice(&partition.to_be_bytes());
    key[8..].copy_from_slice(&base.to_be_bytes());
    key
}

/// Returns the base offset in a block's key.
pub fn base_of(key: &[u8]) -> i64 {
    key.get(8..16).and_then(|bytes| bytes.try_into().ok()).map_or(0, i64::from_be_bytes)
}

pub fn topic_key(name: &str) -> Vec<u8> {
    [b"t", name.as_bytes()].concat()
}

/// Returns the key of a partition's next offset and newest stamp.
pub fn end_key(topic: u32, partition: i32) -> Vec<u8> {
    [&b"e"[..], &topic.to_be_bytes(), &partition.to_be_bytes()].concat()
}

/// Returns the key of a partition's oldest kept offset.
pub fn low_key(topic: u32, partition: i32) -> Vec<u8> {
    [&b"l"[..], &topic.to_be_bytes(), &partition.to_be_bytes()].concat()
}

/// Returns the key of a group's committed position.
pub fn position_key(group: &str, topic: u32, partition: i32) -> Vec<u8> {
    [&b"p"[..], &(group.len() as u32).to_be_bytes(), group.as_bytes(), &topic.to_be_bytes(), &partition.to_be_bytes()].concat()
}

impl LogStore {
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
            return Err(stop(newer_format_message(u32::from(*form), u32::from(newest))));
        }
        if let Some(missing) = find_missing_path(dir) {
            return Err(stop(damaged_store_message(dir, &format!("{} is missing", missing.display()))));
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
                return Err(stop(format!(
                    "{IN_USE}; the embedded log serves one process: stop the other, or use Kafka (--kafka) for more than one process"
                )));
            }
            Ok(Err(error)) => {
                return Err(stop(match of_files(&error).filter(|error| is_surroundings(error)) {
                    Some(error) => format!("{error}: check the folder's owner, permissions and free space"),
                    None => damaged_store_message(dir, &error.to_string()),
                }));
            }
            Err(_) => return Err(stop(damaged_store_message(dir, "its files do not belong together"))),
        };
        let commit_of =
            |bytes: Option<Bytes>| bytes.and_then(|bytes| <[u8; 8]>::try_from(&bytes[..]).ok()).map_or(0, u64::from_be_bytes);
        let (commit, committed_blocks) = (commit_of(commit), commit_of(committed_blocks));
        let format = format.and_then(|bytes| <[u8; 4]>::try_from(&bytes[..]).ok()).map_or(0, u32::from_be_bytes);
        if format > FORMAT {
            return Err(stop(newer_format_message(format, FORMAT)));
        }
        let witness = DurableCommitFile::open(dir, commit)
            .map_err(|error| stop(format!("{error}: check the folder's owner, permissions and free space")))?;
        if let Some(why) = contradiction(format, commit, committed_blocks, witness.durable_commit()) {
            return Err(stop(damaged_store_message(dir, &why)));
        }
        let store = Self {
            dir: dir.to_path_buf(),
            db,
            blocks,
            meta,
            reserve: options.reserve_bytes,
            free: options.free_space.clone(),
            space: Mutex::new(CachedFreeSpace { free: u64::MAX, looked: None }),
            witness: Mutex::new(witness),
            damage: OnceLock::new(),
        };
        if format != FORMAT {
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

    /// Commits all changes or none. Returns [`Remedy::Retry`] if the disk is nearly full: nothing was written.
    pub fn commit(&self, changes: WriteBatch, survives: DurabilityLevel) -> Result<()> {
        self.claim(&changes)?;
        self.write(changes, survives)
    }

    /// Claims the space that these changes need. Returns [`Remedy::Retry`] if that would leave less than the reserve, which is
    /// kept free so that the store's own files never meet a full disk in the middle of a write.
    pub fn claim(&self, changes: &WriteBatch) -> Result<()> {
        let reserve = if changes.is_tidying { self.reserve / 2 } else { self.reserve };
        lock(&self.space)
            .claim(changes.bytes, reserve, Instant::now(), || self.free.bytes(&self.dir))
            .map_err(|detail| BusError::new(Remedy::Retry, self.append_action(), detail))
    }

    /// Returns whether less than the reserve is free.
    pub fn is_short_of_room(&self) -> bool {
        self.free.bytes(&self.dir).is_some_and(|free| free < self.reserve)
    }

    fn append_action(&self) -> String {
        format!("appending to the embedded log in {}", self.dir.display())
    }

    /// Writes changes whose room was claimed.
    pub fn write(&self, changes: WriteBatch, survives: DurabilityLevel) -> Result<()> {
        let mut batch = self.db.batch().durability(Some(match survives {
            DurabilityLevel::Process => PersistMode::Buffer,
            DurabilityLevel::PowerCut => PersistMode::SyncData,
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
        if let Err(error) = batch.commit() {
            // An explanation may take seconds, and readers of the number need not wait for it.
            drop(witness);
            return Err(BusError::new(Remedy::Stop, self.append_action(), self.explain(&error)));
        }
        witness.mark_committed(number);
        if survives == DurabilityLevel::PowerCut {
            witness.mark_durable(number);
        }
        Ok(())
    }

    /// Makes everything committed so far survive a power cut.
    pub fn sync(&self) -> Result<()> {
        let number = lock(&self.witness).newest();
        self.db.persist(PersistMode::SyncData).map_err(|error| {
            BusError::new(Remedy::Stop, format!("syncing the embedded log in {}", self.dir.display()), self.explain(&error))
        })?;
        lock(&self.witness).mark_durable(number);
        Ok(())
    }

    /// Rewrites what holds removed rows, so that the disk gets their space back. The store does so in steps: values that an
    /// earlier commit removed go, then their files from its list, then the files; so a space is back after [`RECLAIMS`].
    pub fn reclaim(&self) -> Result<()> {
        // The newest commit counts as being read until another one follows it. The rewrite needs room, too.
        self.commit(WriteBatch::for_cleanup(), DurabilityLevel::Process)?;
        let what = || format!("reclaiming space in {}", self.dir.display());
        self.blocks
            .rotate_memtable_and_wait()
            .and_then(|()| self.blocks.major_compact())
            .map_err(|error| BusError::new(Remedy::Stop, what(), self.explain(&error)))
    }

    pub fn meta(&self, key: &[u8]) -> Result<Option<Bytes>> {
        self.meta.get(key).map(|value| value.map(Bytes::from)).map_err(|error| self.read_error(&error))
    }

    pub fn meta_with_prefix(&self, prefix: &[u8]) -> Result<Vec<(Bytes, Bytes)>> {
        self.meta
            .prefix(prefix)
            .map(|row| row.into_inner().map(|(key, value)| (key.into(), value.into())).map_err(|error| self.read_error(&error)))
            .collect()
    }

    /// Blocks of a partition whose base offsets lie in `from..below`, oldest first.
    pub fn blocks(&self, topic: u32, partition: i32, from: i64, below: i64) -> impl Iterator<Item = Result<(Bytes, Bytes)>> {
        self.blocks
            .range(block_key(topic, partition, from)..block_key(topic, partition, below.max(from)))
            .map(|row| row.into_inner().map(|(key, value)| (key.into(), value.into())).map_err(|error| self.read_error(&error)))
    }

    /// Returns the base of the newest block that begins at or before `offset`.
    pub fn base_at(&self, topic: u32, partition: i32, offset: i64) -> Result<Option<i64>> {
        self.blocks
            .range(block_key(topic, partition, 0)..=block_key(topic, partition, offset))
            .next_back()
            .map(|row| row.key().map(|key| base_of(&key)).map_err(|error| self.read_error(&error)))
            .transpose()
    }

    /// Sizes of a partition's blocks, newest first, without reading them.
    pub fn sizes(&self, topic: u32, partition: i32) -> impl Iterator<Item = Result<(i64, u32)>> {
        self.blocks.range(block_key(topic, partition, 0)..block_key(topic, partition, i64::MAX)).rev().map(|row| {
            let key = row.key().map_err(|error| self.read_error(&error))?;
            let size = self.blocks.size_of(&key).map_err(|error| self.read_error(&error))?;
            Ok((base_of(&key), size.unwrap_or(0)))
        })
    }

    pub fn malformed_block_error(&self, at: &crate::TopicPartition) -> BusError {
        BusError::new(Remedy::Stop, format!("reading {at}"), damaged_store_message(&self.dir, "a stored block is malformed"))
    }

    fn read_error(&self, error: &fjall::Error) -> BusError {
        BusError::new(Remedy::Stop, "reading the embedded log", damaged_store_message(&self.dir, &error.to_string()))
    }

    /// Reads the store once, for at most [`LONGEST_LOOK`], and returns the first damage found; a large store may not be read to
    /// its end. For a store that has stopped: a failed write stops it, and so does a damaged file that its own compaction meets.
    fn damage(&self) -> Option<&str> {
        let first = || {
            let began = Instant::now();
            [&self.meta, &self.blocks]
                .into_iter()
                .flat_map(Keyspace::iter)
                .take_while(|_| began.elapsed() < LONGEST_LOOK)
                .find_map(|row| row.into_inner().err().filter(|error| !of_files(error).is_some_and(is_surroundings)))
        };
        self.damage.get_or_init(|| first().map(|error| error.to_string())).as_deref()
    }

    fn explain(&self, error: &fjall::Error) -> String {
        if of_files(error).is_some_and(is_full) {
            return "the disk is full: free some space and start again; everything acknowledged is kept".to_owned();
        }
        match error {
            fjall::Error::Poisoned => match self.damage() {
                Some(why) => damaged_store_message(&self.dir, why),
                None => "an earlier write failed, so nothing more is taken: check disk space and disk, then start again; everything acknowledged is kept".to_owned(),
            },
            fjall::Error::Storage(_) if of_files(error).is_none() => damaged_store_message(&self.dir, &error.to_string()),
            error => format!("{error}: check the disk that holds {}, then start again; everything acknowledged is kept", self.dir.display()),
        }
    }
}

/// Returns why the content of the store cannot be all that was written. It compares the format (0: none), the newest commit of
/// its two keyspaces, and one that was known to be on the disk.
fn contradiction(format: u32, commit: u64, committed_blocks: u64, durable_commit: u64) -> Option<String> {
    let newest = commit.max(committed_blocks);
    // The store itself treats data behind a damaged place in its journal as an interrupted write.
    if durable_commit > commit {
        return Some(format!("it ends at commit {commit}, and commit {durable_commit} was on the disk: files were cut off"));
    }
    // The format is written before the first commit, and each commit to both keyspaces at once.
    let why = match format {
        0 if newest > 0 => format!("commit {newest} is there, and the format, which is written before the first, is not"),
        2.. if committed_blocks != commit => {
            format!("its records end at commit {committed_blocks}, and commit {commit} is there")
        }
        _ => return None,
    };
    Some(format!("{why}: files are missing or older"))
}

/// Returns the first missing path among those that the store would make anew, empty; so this check comes before anything is
/// opened.
fn find_missing_path(dir: &Path) -> Option<PathBuf> {
    if DurableCommitFile::read_durable_commit(dir) == 0 {
        return None;
    }
    // Keyspaces are numbered in the order in which they were made. A start that was killed while it made one leaves its number
    // out.
    let keyspaces = dir.join("keyspaces");
    let entries = std::fs::read_dir(&keyspaces).into_iter().flatten().flatten();
    let mut ids: Vec<u64> = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(|id| *id > 0).collect();
    ids.sort_unstable();
    let lost = (1..=2).filter(|id| ids.len() < 2 && !ids.contains(id)).map(|id| keyspaces.join(id.to_string())).next();
    if let Some(lost) = lost {
        return Some(lost.join("current"));
    }
    let [blocks, meta] = [ids[0], ids[1]].map(|id| keyspaces.join(id.to_string()));
    let written = std::fs::read_dir(blocks.join("tables")).is_ok_and(|mut tables| tables.next().is_some());
    let values = written.then(|| blocks.join("blobs"));
    [blocks, meta].map(|keyspace| keyspace.join("current")).into_iter().chain(values).find(|path| !path.exists())
}

/// Returns the error of the file system, met by the store itself or by its trees.
fn of_files(error: &fjall::Error) -> Option<&std::io::Error> {
    match error {
        fjall::Error::Io(error) | fjall::Error::Storage(fjall::LsmError::Io(error)) => Some(error),
        _ => None,
    }
}

fn is_full(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}

/// Returns whether a file could not be read or written for a reason outside it: its folder, its disk, or a limit of the process
/// or the machine.
fn is_surroundings(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{NotADirectory, OutOfMemory, PermissionDenied, ReadOnlyFilesystem};
    is_full(error)
        || matches!(error.kind(), PermissionDenied | ReadOnlyFilesystem | NotADirectory | OutOfMemory)
        // ENFILE and EMFILE, which have no kind.
        || matches!(error.raw_os_error(), Some(23 | 24))
}

/// Returns the error text for a store that cannot be read. The archive beside it must be moved with it: a new log begins at
/// offset 0 again, and an archive of the old one would take its records for known.
pub fn damaged_store_message(dir: &Path, why: &str) -> String {
    let whole = dir.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(dir).display();
    format!(
        "the store is damaged ({why}): restore a copy of {whole}, or move {whole} away and start again with a new one; \
         `eadt report` and `eadt replay` read what was archived from where you moved it"
    )
}

fn newer_format_message(found: u32, known: u32) -> String {
    format!(
        "a newer version of eadt wrote it (format {found}, this version reads up to {known}): use that version or a newer one"
    )
}

#[cfg(test)]
mod tests {
    use std::io::{Error, ErrorKind};

    use super::*;

    fn open(dir: &Path) -> LogStore {
        LogStore::open(dir, &EmbeddedOptions { reserve_bytes: 0, ..EmbeddedOptions::default() }).unwrap()
    }

    fn blocks_of(bases: &[i64], bytes: usize) -> WriteBatch {
        let (mut changes, mut noise) = (WriteBatch::default(), 1_u64);
        for base in bases {
            // Nothing that compresses.
            let block = std::iter::repeat_with(|| {
                noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (noise >> 56) as u8
            });
            changes.put_block(block_key(1, 0, *base), block.take(bytes).collect::<Vec<_>>().into());
        }
        changes
    }

    #[test]
    fn changes_count_the_bytes_of_their_blocks_and_any_change_is_one() {
        assert!(WriteBatch::default().is_empty());
        let changes = blocks_of(&[0, 1], 3);
        assert_eq!((changes.bytes(), changes.is_empty()), (6, false));
        let mut removed = WriteBatch::default();
        removed.remove_block(block_key(1, 0, 0).to_vec());
        let mut meta = WriteBatch::default();
        meta.put_meta(topic_key("t"), vec![1, 2]);
        for changes in [removed, meta] {
            assert_eq!((changes.bytes(), changes.is_empty()), (0, false));
        }
        let portion = 4 * 1024 * 1024;
        for (bytes, is) in [(0, false), (portion - 1, false), (portion, true), (portion + 1, true)] {
            assert_eq!(WriteBatch { bytes, ..WriteBatch::default() }.is_a_portion(), is, "{bytes}");
        }
    }

    #[test]
    fn no_two_rows_have_one_key_and_blocks_sort_as_the_log_does() {
        let mut keys = vec![FORMAT_KEY.to_vec(), COMMIT_KEY.to_vec(), topic_key("a"), topic_key("b")];
        for (topic, partition) in [(1, 0), (1, 1), (2, 0), (256, 0), (1, 256)] {
            keys.extend([end_key(topic, partition), low_key(topic, partition)]);
            keys.extend(["", "g", "h", "gg"].map(|group| position_key(group, topic, partition)));
        }
        let count = keys.len();
        keys.sort();
        keys.dedup();
        assert_eq!((keys.len(), count), (34, 34));

        let mut blocks = Vec::new();
        for (topic, partition) in [(1, 0), (1, 1), (1, 256), (2, 0), (256, 0)] {
            blocks.extend([0, 1, 255, 256, i64::MAX].map(|base| block_key(topic, partition, base)));
        }
        assert!(blocks.is_sorted_by(|a, b| a < b));
        assert_eq!(base_of(&block_key(3, 4, 1_234_567_890_123)), 1_234_567_890_123);
    }

    #[test]
    fn blocks_are_found_by_where_they_begin() {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path());
        let mut changes = blocks_of(&[0, 5, 10], 20);
        changes.put_block(block_key(1, 1, 7), Bytes::from_static(b"of another partition"));
        changes.put_block(block_key(2, 0, 8), Bytes::from_static(b"of another topic"));
        store.commit(changes, DurabilityLevel::Process).unwrap();
        for (offset, base) in [(0, 0), (4, 0), (5, 5), (9, 5), (10, 10), (99, 10)] {
            assert_eq!(store.base_at(1, 0, offset).unwrap(), Some(base), "{offset}");
        }
        assert_eq!(store.base_at(1, 2, 5).unwrap(), None);
        let bases = |from, below| store.blocks(1, 0, from, below).map(|row| base_of(&row.unwrap().0)).collect::<Vec<_>>();
        assert_eq!(bases(0, 10), [0, 5]);
        assert_eq!(bases(5, 11), [5, 10]);
        assert_eq!((bases(1, 5), bases(9, 3)), (vec![], vec![]));
        let sizes: Vec<_> = store.sizes(1, 0).map(Result::unwrap).collect();
        assert_eq!(sizes, [(10, 20), (5, 20), (0, 20)]);
    }

    #[test]
    fn only_what_survives_a_power_cut_is_witnessed() {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path());
        let commit = |survives| store.commit(blocks_of(&[0], 1), survives).unwrap();
        let witnessed = || DurableCommitFile::read_durable_commit(dir.path());
        commit(DurabilityLevel::Process);
        assert_eq!(witnessed(), 0);
        commit(DurabilityLevel::PowerCut);
        assert_eq!(witnessed(), 2);
        commit(DurabilityLevel::Process);
        commit(DurabilityLevel::Process);
        assert_eq!(witnessed(), 2);
        store.sync().unwrap();
        assert_eq!(witnessed(), 4);
    }

    #[test]
    fn the_disk_gets_the_space_of_removed_blocks_back() {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path());
        let used = || {
            let files = std::fs::read_dir(dir.path().join("keyspaces/1/blobs")).unwrap();
            files.map(|file| file.unwrap().metadata().unwrap().len()).sum::<u64>()
        };
        let (old, new) = ([0, 1, 2, 3], [4]);
        for bases in [&old[..], &new] {
            store.commit(blocks_of(bases, 10_000), DurabilityLevel::Process).unwrap();
            store.reclaim().unwrap();
        }
        assert!((50_000..60_000).contains(&used()), "what is kept: {}", used());
        let mut changes = WriteBatch::default();
        for base in old {
            changes.remove_block(block_key(1, 0, base).to_vec());
        }
        store.commit(changes, DurabilityLevel::Process).unwrap();
        for _ in 0..RECLAIMS {
            store.reclaim().unwrap();
        }
        assert!((10_000..20_000).contains(&used()), "what is left: {}", used());
        assert_eq!(store.sizes(1, 0).map(Result::unwrap).collect::<Vec<_>>(), [(4, 10_000)]);
    }

    #[test]
    fn a_store_that_lost_or_mixed_its_files_contradicts_itself() {
        let why = |format, commit, blocks, seen| contradiction(format, commit, blocks, seen).unwrap_or_default();
        for whole in [
            (0, 0, 0, 0),
            (2, 0, 0, 0),
            (2, 5, 5, 0),
            (2, 5, 5, 4),
            (2, 5, 5, 5),
            // The version before counted in one keyspace only.
            (1, 5, 0, 5),
        ] {
            let (format, commit, blocks, seen) = whole;
            assert_eq!(contradiction(format, commit, blocks, seen), None, "{whole:?}");
        }
        assert_eq!(why(2, 4, 4, 5), "it ends at commit 4, and commit 5 was on the disk: files were cut off");
        assert_eq!(why(0, 0, 0, 1), "it ends at commit 0, and commit 1 was on the disk: files were cut off");
        let missing = "and the format, which is written before the first, is not: files are missing or older";
        assert_eq!(why(0, 5, 5, 5), format!("commit 5 is there, {missing}"));
        assert_eq!(why(0, 1, 0, 0), format!("commit 1 is there, {missing}"));
        assert_eq!(why(0, 0, 3, 0), format!("commit 3 is there, {missing}"));
        for (blocks, commit) in [(4, 5), (5, 4), (0, 1)] {
            let expected =
                format!("its records end at commit {blocks}, and commit {commit} is there: files are missing or older");
            assert_eq!(why(2, commit, blocks, 0), expected);
        }
    }

    #[test]
    fn a_block_is_claimed_twice_over_and_the_reserve_stays_free() {
        let begun = Instant::now();
        let mut space = CachedFreeSpace { free: u64::MAX, looked: None };
        let mut claim = |bytes, millis, look: Option<u64>| {
            let mut looked = false;
            let now = begun + Duration::from_millis(millis);
            let claimed = space.claim(bytes, 1000, now, || {
                looked = true;
                look
            });
            (claimed.is_ok(), looked, space.free)
        };
        // The first time it is looked, and not again while there is room.
        assert_eq!(claim(100, 0, Some(1500)), (true, true, 1300));
        assert_eq!(claim(100, 100, Some(9000)), (true, false, 1100));
        assert_eq!(claim(50, 199, Some(9000)), (true, false, 1000), "all but the reserve");
        // It is looked again before it is refused, and after a while.
        assert_eq!(claim(1, 199, Some(1001)), (false, true, 1001));
        assert_eq!(claim(1, 199, Some(1002)), (true, true, 1000));
        assert_eq!(claim(0, 398, Some(5000)), (true, false, 1000));
        assert_eq!(claim(0, 399, Some(5000)), (true, true, 5000));
        // If it cannot be read, the former value holds.
        assert_eq!(claim(1000, 700, None), (true, true, 3000));
        assert_eq!(claim(u64::MAX, 700, None), (false, true, 3000));
    }

    #[test]
    fn what_tidies_may_use_half_of_the_reserve() {
        let dir = tempfile::tempdir().unwrap();
        let free = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
        let shown = std::sync::Arc::clone(&free);
        let free_space = FreeSpaceSource::Injected(std::sync::Arc::new(move || shown.load(std::sync::atomic::Ordering::Relaxed)));
        let options = EmbeddedOptions { reserve_bytes: 1000, free_space, ..EmbeddedOptions::default() };
        let store = LogStore::open(dir.path(), &options).unwrap();
        let of = |changes: WriteBatch, bytes| WriteBatch { bytes, ..changes };
        for (bytes, left, appends, tidies) in
            [(0, 1000, true, true), (0, 999, false, true), (0, 500, false, true), (0, 499, false, false), (10, 519, false, false)]
        {
            free.store(left, std::sync::atomic::Ordering::Relaxed);
            let is_claimed = |changes| {
                // As some time later: free space is read again.
                *lock(&store.space) = CachedFreeSpace { free: 0, looked: None };
                store.claim(&of(changes, bytes)).map_err(|error| assert_eq!(error.remedy, Remedy::Retry)).is_ok()
            };
            assert_eq!(
                (is_claimed(WriteBatch::default()), is_claimed(WriteBatch::for_cleanup())),
                (appends, tidies),
                "{bytes} of {left}"
            );
            assert_eq!(store.is_short_of_room(), left < 1000);
        }
    }

    #[test]
    fn a_full_disk_reports_what_is_free_and_what_is_kept() {
        let mut space = CachedFreeSpace { free: 0, looked: None };
        let message = space.claim(1, 256 << 20, Instant::now(), || Some(7 << 20)).unwrap_err();
        assert_eq!(
            message,
            "the disk is full: 7 MiB are free and 256 MiB are kept in reserve; free some space, or use a folder on a disk with more"
        );
    }

    #[test]
    fn what_is_wrong_around_the_store_is_no_damage_of_it() {
        use ErrorKind::{
            AlreadyExists, FileTooLarge, InvalidData, NotADirectory, NotFound, Other, PermissionDenied, QuotaExceeded,
            ReadOnlyFilesystem, StorageFull, UnexpectedEof,
        };
        for kind in [StorageFull, QuotaExceeded, FileTooLarge] {
            assert!(is_full(&Error::from(kind)) && is_surroundings(&Error::from(kind)), "{kind:?}");
        }
        for kind in [PermissionDenied, ReadOnlyFilesystem, NotADirectory] {
            assert!(!is_full(&Error::from(kind)) && is_surroundings(&Error::from(kind)), "{kind:?}");
        }
        for kind in [AlreadyExists, InvalidData, NotFound, Other, UnexpectedEof] {
            assert!(!is_full(&Error::from(kind)) && !is_surroundings(&Error::from(kind)), "{kind:?}");
        }
        for kind in [StorageFull, PermissionDenied, ErrorKind::OutOfMemory] {
            assert!(is_surroundings(&Error::from(kind)), "{kind:?}");
        }
        // Too many open files, of the process or of the machine; and a disk that cannot read.
        for (code, is) in [(24, true), (23, true), (5, false)] {
            assert_eq!(is_surroundings(&Error::from_raw_os_error(code)), is, "{code}");
        }
    }

    #[test]
    fn a_file_where_a_folder_belongs_is_around_the_store_and_a_folder_where_a_file_belongs_is_damage() {
        let dir = tempfile::tempdir().unwrap();
        let detail_of = |what: &str| {
            let error = LogStore::open(&dir.path().join(what), &EmbeddedOptions::default()).unwrap_err();
            assert_eq!(error.remedy, Remedy::Stop);
            error.detail
        };
        for what in ["file", "folder"] {
            drop(open(&dir.path().join(what)));
        }
        let keyspaces = dir.path().join("file/keyspaces");
        std::fs::remove_dir_all(&keyspaces).unwrap();
        std::fs::write(&keyspaces, "").unwrap();
        assert!(detail_of("file").ends_with("check the folder's owner, permissions and free space"), "{}", detail_of("file"));
        let current = dir.path().join("folder/keyspaces/1/current");
        std::fs::remove_file(&current).unwrap();
        std::fs::create_dir(&current).unwrap();
        assert!(detail_of("folder").starts_with("the store is damaged"), "{}", detail_of("folder"));
    }

    #[test]
    fn a_store_whose_first_start_was_killed_misses_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let keyspace = |id: u32| dir.path().join("keyspaces").join(id.to_string());
        // The second of the two was made again, under the next number.
        for id in [0, 1, 3] {
            std::fs::create_dir_all(keyspace(id)).unwrap();
            std::fs::write(keyspace(id).join("current"), "").unwrap();
        }
        assert_eq!(find_missing_path(dir.path()), None, "nothing was committed yet");
        DurableCommitFile::open(dir.path(), 0).unwrap().mark_durable(7);
        assert_eq!(find_missing_path(dir.path()), None);
        std::fs::remove_file(keyspace(3).join("current")).unwrap();
        assert_eq!(find_missing_path(dir.path()), Some(keyspace(3).join("current")));
        std::fs::remove_dir_all(keyspace(3)).unwrap();
        assert_eq!(find_missing_path(dir.path()), Some(keyspace(2).join("current")));
        std::fs::remove_dir_all(dir.path().join("keyspaces")).unwrap();
        assert_eq!(find_missing_path(dir.path()), Some(keyspace(1).join("current")));
    }

    #[test]
    fn a_write_that_failed_reports_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path());
        let full = || Error::from(ErrorKind::StorageFull);
        for error in [fjall::Error::Io(full()), fjall::Error::Storage(fjall::LsmError::Io(full()))] {
            let message = store.explain(&error);
            assert_eq!(message, "the disk is full: free some space and start again; everything acknowledged is kept");
        }
        assert!(store.explain(&fjall::Error::Poisoned).starts_with("an earlier write failed, so nothing more is taken: check"));
        let other = store.explain(&fjall::Error::Io(ErrorKind::InvalidData.into()));
        assert!(other.contains(&format!("check the disk that holds {}, then start again", dir.path().display())), "{other}");
    }

    #[test]
    fn a_store_that_a_flipped_bit_stops_is_damaged_and_its_disk_is_not_full() {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path());
        store.commit(blocks_of(&[0, 1], 10_000), DurabilityLevel::Process).unwrap();
        store.reclaim().unwrap();
        let file = std::fs::read_dir(dir.path().join("keyspaces/1/blobs")).unwrap().next().unwrap().unwrap().path();
        let mut bytes = std::fs::read(&file).unwrap();
        // Within the first of the two values.
        let at = bytes.len() / 4;
        bytes[at] ^= 1;
        std::fs::write(&file, bytes).unwrap();
        for error in [fjall::Error::Poisoned, fjall::Error::Storage(fjall::LsmError::Unrecoverable)] {
            let message = store.explain(&error);
            assert!(message.starts_with("the store is damaged (") && !message.contains("space"), "{message}");
        }
    }

    #[test]
    fn a_damaged_store_goes_with_the_archive_beside_it() {
        for (dir, whole) in [("/data/log", "/data"), ("data/log", "data"), ("log", "log"), ("/", "/")] {
            let message = damaged_store_message(Path::new(dir), "why");
            assert!(message.starts_with("the store is damaged (why): "), "{message}");
            assert!(message.contains(&format!("restore a copy of {whole}, or move {whole} away")), "{message}");
        }
    }
}
