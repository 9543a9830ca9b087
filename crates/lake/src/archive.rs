//! The content of an archive, and its rows in order.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use eadt_schemas::{DecodeError, Topic};
use parquet::errors::ParquetError;
use parquet::file::metadata::ParquetMetaDataReader;

use crate::bounds::{self, LongTexts};
use crate::error::{LakeError, Result};
use crate::extent::{PartitionExtent, PartitionExtents};
use crate::file::{ArchiveFileReader, FileBatches, FileFooter, NewestRow, ReadColumns, damaged, refused};
use crate::held::HeldBatches;
use crate::identity::{SharedArchiveIds, recorded_id};
use crate::layout::ArchiveFileName;
use crate::row::ArchiveRow;
use crate::store::{ArchiveStore, BucketStore, FolderStore, OsDisk, StoredFile};
use crate::stored::{StoredBatch, StoredRow, StoredRun};
use crate::writer_group::is_group_record;

/// A folder or object store with one Parquet file for each range of offsets.
///
/// Calls block; they must come from a thread that runs no async tasks.
#[derive(Debug, Clone)]
pub struct Archive {
    pub(crate) store: Arc<dyn ArchiveStore>,
    place: Arc<str>,
    pub(crate) extents: PartitionExtents,
    pub(crate) ids: SharedArchiveIds,
    /// The id that the archive gets if it has none.
    pub(crate) new_id: Option<Arc<str>>,
    long_texts: LongTexts,
    observer: Option<ReadObserver>,
}

/// Gets the bytes of files as their rows are read.
#[derive(Clone)]
struct ReadObserver(Arc<dyn Fn(u64) + Send + Sync>);

impl fmt::Debug for ReadObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ReadObserver").finish_non_exhaustive()
    }
}

/// A visible file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArchiveFile {
    pub name: ArchiveFileName,
    pub bytes: u64,
}

/// The files of an archive, checked against each other.
#[derive(Debug, Clone, Default)]
pub struct ArchiveListing {
    /// Files by topic, partition and first offset; ranges do not overlap.
    pub files: Vec<ArchiveFile>,
    /// Files whose whole range another file covers: leftovers of an interrupted compaction, or of an archiver that lost its
    /// partition. Their rows are in the covering file; [`Archive::sweep`] deletes them.
    pub superseded: Vec<ArchiveFile>,
    /// Missing ranges (topic, partition, first, last offset) between files.
    pub gaps: Vec<(Topic, i32, i64, i64)>,
    /// Ranges as in `gaps` for which files were written once, before the first file of a partition or behind its last one.
    pub lost: Vec<(Topic, i32, i64, i64)>,
    /// Partitions that have files but no record of the archived range: it is unknown whether their first or last file is
    /// missing.
    pub unrecorded: Vec<(Topic, i32)>,
}

impl ArchiveListing {
    /// Returns every range that was archived and is not there, of all or of one topic.
    pub fn missing(&self) -> impl Iterator<Item = &(Topic, i32, i64, i64)> {
        self.gaps.iter().chain(&self.lost)
    }

    /// Returns the partitions, with first and last offset.
    pub fn partitions(&self) -> BTreeMap<(Topic, i32), (i64, i64)> {
        let mut partitions = BTreeMap::new();
        for ArchiveFile { name, .. } in &self.files {
            let range = partitions.entry((name.topic, name.partition)).or_insert((name.first, name.last));
            range.1 = name.last;
        }
        partitions
    }
}

impl ArchiveListing {
    /// Returns true if there are files, and no record of any partition: the folder of the records was removed or left out of a
    /// copy, or an earlier version wrote the archive.
    pub fn lacks_records(&self) -> bool {
        !self.files.is_empty() && self.lost.is_empty() && self.unrecorded.len() == self.partitions().len()
    }

    /// Returns the newest file of each partition.
    fn last(&self) -> BTreeMap<(Topic, i32), &ArchiveFile> {
        self.files.iter().map(|file| ((file.name.topic, file.name.partition), file)).collect()
    }

    /// Returns each superseded file with the one that covers it.
    fn covered(&self) -> impl Iterator<Item = (&ArchiveFile, &ArchiveFile)> {
        self.superseded.iter().filter_map(|old| Some((old, self.files.iter().find(|file| file.name.covers(&old.name))?)))
    }
}

/// Bytes of a file's end that hold most footers.
const FOOTER_BYTES: u64 = 64 << 10;

impl Archive {
    /// Opens a folder, or an object-store URL with credentials from the process's environment (`AWS_…`, `AZURE_…`, `GOOGLE_…`).
    /// Creates nothing; an absent folder is an empty archive.
    pub fn open(location: &str) -> Result<Self> {
        let ours = |name: &str| ["AWS_", "AZURE_", "GOOGLE_"].iter().any(|prefix| name.starts_with(prefix));
        let variables =
            std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
        Self::open_with(location, variables.filter(|(name, _)| ours(name)))
    }

    /// Like [`Archive::open`], with the object store's options given: names as in its environment variables.
    pub fn open_with(location: &str, options: impl IntoIterator<Item = (String, String)>) -> Result<Self> {
        let refused = |detail: String| LakeError::Location { location: location.to_owned(), detail };
        let Some((scheme, rest)) = location.split_once("://") else { return Self::folder(Path::new(location)) };
        if scheme == "file" {
            return Self::folder(Path::new(rest));
        }
        let url = url::Url::parse(location).map_err(|error| refused(format!("not a URL: {error}")))?;
        let options = options.into_iter().map(|(name, value)| (name.to_ascii_lowercase(), value));
        let (store, prefix) = object_store::parse_url_opts(&url, options).map_err(|error| {
            let build =
                if cfg!(feature = "object-stores") { "" } else { "; s3, gs and az need a build with the feature object-stores" };
            refused(format!("{error}{build}"))
        })?;
        let objects = BucketStore::new(store.into(), prefix).map_err(|error| refused(error.to_string()))?;
        Ok(Self::of_store(Arc::new(objects), location))
    }

    /// Opens a local folder.
    pub fn folder(root: &Path) -> Result<Self> {
        let place = root.display().to_string();
        if root.as_os_str().is_empty() {
            return Err(LakeError::Location { location: place, detail: "it is empty".to_owned() });
        }
        if root.exists() && !root.is_dir() {
            return Err(LakeError::Location { location: place, detail: "it is a file, not a folder".to_owned() });
        }
        Ok(Self::of_store(Arc::new(FolderStore::new(root.to_owned(), OsDisk)), &place))
    }

    fn of_store(store: Arc<dyn ArchiveStore>, place: &str) -> Self {
        let (extents, ids) = (PartitionExtents::default(), SharedArchiveIds::default());
        Self { store, place: place.into(), extents, ids, new_id: None, long_texts: LongTexts::default(), observer: None }
    }

    /// Opens the archive of a data folder (`DIR/archive`), an archive, or a replay's output. Returns [`LakeError::Absent`] if
    /// nothing was ever archived there.
    pub fn find(path: &Path) -> Result<Self> {
        Ok(Self::find_listed(path)?.0)
    }

    /// Like [`Archive::find`], with the files that it found.
    pub fn find_listed(path: &Path) -> Result<(Self, ArchiveListing)> {
        let within: PathBuf = path.join("archive");
        let root = if within.is_dir() { within } else { path.to_owned() };
        let archive = Self::folder(&root)?;
        let listing = archive.files()?;
        if listing.files.is_empty() {
            let lost: Vec<String> = listing
                .missing()
                .map(|(topic, partition, from, to)| format!("{topic} partition {partition} offsets {from} to {to}"))
                .collect();
            let location = path.display().to_string();
            if lost.is_empty() && location.contains("://") {
                let detail = "only folders are read here; copy the archive from its object store into one".to_owned();
                return Err(LakeError::Location { location, detail });
            }
            if lost.is_empty() && !path.exists() {
                let detail = "it does not exist; name a data folder, an archive or a replay's output".to_owned();
                return Err(LakeError::Location { location, detail });
            }
            if lost.is_empty() {
                return Err(LakeError::Absent { location });
            }
            let detail =
                format!("it holds no Parquet files of EADT any more, and it had {}; put them back from a copy", lost.join(", "));
            return Err(LakeError::Location { location, detail });
        }
        Ok((archive, listing))
    }

    #[cfg(any(test, feature = "simulation"))]
    pub(crate) fn on(store: impl ArchiveStore + 'static) -> Self {
        Self::of_store(Arc::new(store), "test")
    }

    /// Calls `on_read` with the bytes of each file as its rows are read: of a file that is read to its end, all of its bytes. A
    /// file that a compaction merges counts as read.
    #[must_use]
    pub fn observed(self, on_read: impl Fn(u64) + Send + Sync + 'static) -> Self {
        Self { observer: Some(ReadObserver(Arc::new(on_read))), ..self }
    }

    /// Reports bytes that were read.
    pub(crate) fn observe(&self, bytes: u64) {
        if let Some(ReadObserver(report)) = &self.observer {
            report(bytes);
        }
    }

    /// Returns the place of the archive: a folder or a URL.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// Returns the files and records of the store.
    pub(crate) fn list_stored(&self) -> Result<Vec<StoredFile>> {
        self.store.list().map_err(|source| self.failed("list", "", source))
    }

    /// Returns all files. Refuses Parquet of others, and files that share offsets without one covering the other.
    pub fn files(&self) -> Result<ArchiveListing> {
        let found = self.list_stored()?;
        let mut files = Vec::with_capacity(found.len());
        let (mut records, mut ids) = (Vec::new(), BTreeSet::new());
        for file in found {
            if let Some(kind) = file.special {
                return Err(LakeError::Foreign { path: self.full(&file.path), detail: format!("it is {kind}, not a file") });
            }
            if let Some(id) = recorded_id(&file.path) {
                ids.insert(id.to_owned());
                continue;
            }
            if is_group_record(&file.path) {
                continue;
            }
            if let Some(extent) = PartitionExtent::parse(&file.path) {
                records.push(extent);
                continue;
            }
            match ArchiveFileName::parse(&file.path) {
                Ok(name) => files.push(ArchiveFile { name, bytes: file.bytes }),
                Err(detail) => return Err(LakeError::Foreign { path: self.full(&file.path), detail }),
            }
        }
        self.set_recorded_ids(ids);
        let mut listing = resolve(files, &self.place)?;
        listing.compare_with(records.into_iter());
        // Names alone do not decide which files are ignored.
        for (old, new) in listing.covered() {
            self.about(old)?;
            self.about(new)?;
        }
        Ok(listing)
    }

    /// Returns the newest row of every partition that has files: offset and append time, if its file records it. Reads the newest
    /// file of each, which alone determines where a writer goes on, so that a misnamed one is an error and not a hole or a jump.
    pub fn newest(&self, listing: &ArchiveListing) -> Result<BTreeMap<(Topic, i32), NewestRow>> {
        listing.last().into_iter().map(|(at, file)| Ok((at, self.about(file)?.newest))).collect()
    }

    /// Checks every file by its footer: it is the one that its name states, and of this archive.
    pub fn check_footers(&self, listing: &ArchiveListing) -> Result<()> {
        listing.files.iter().try_for_each(|file| self.about(file).map(drop))
    }

    /// Makes the newest file of every partition durable, for a writer that goes on from there. The file's writer may have been
    /// killed before, and newer files would outlive it in a power loss.
    pub fn make_newest_durable(&self, listing: &ArchiveListing) -> Result<()> {
        listing.last().into_values().try_for_each(|file| self.make_durable(&file.name))
    }

    fn make_durable(&self, name: &ArchiveFileName) -> Result<()> {
        self.store.make_durable(&name.path()).map_err(|source| self.failed("sync", &name.path(), source))
    }

    /// Returns the first offset that no file covers, by topic and partition. Only the files decide what is archived.
    pub fn next_offsets(&self) -> Result<BTreeMap<(Topic, i32), i64>> {
        let listing = self.files()?;
        if let Some(&(topic, partition, from, to)) = listing.gaps.first() {
            return Err(LakeError::Gap { topic, partition, from, to, root: self.place.to_string() });
        }
        self.newest(&listing)?;
        Ok(listing.partitions().into_iter().map(|(at, (_, last))| (at, last + 1)).collect())
    }

    /// Deletes what interrupted writers left behind: temporary files, and superseded ones after a look at the file that
    /// covers them. Returns how many. For the archive's one writer, at its start.
    pub fn sweep(&self) -> Result<u64> {
        let temporary = self.store.sweep().map_err(|source| self.failed("clean", "", source))?;
        Ok(temporary + self.drop_superseded()?)
    }

    pub(crate) fn drop_superseded(&self) -> Result<u64> {
        let listing = self.files()?;
        let mut covering: Option<(&ArchiveFileName, Vec<i64>)> = None;
        for (old, new) in listing.covered() {
            let offsets = match &covering {
                Some((name, offsets)) if **name == new.name => offsets,
                _ => {
                    let mut offsets = self.offsets(&new.name)?;
                    offsets.sort_unstable();
                    // Its writer may have been killed before the file was durable.
                    self.make_durable(&new.name)?;
                    &covering.insert((&new.name, offsets)).1
                }
            };
            // Every row of a file that is deleted next must be in the file that covers it.
            if let Some(offset) = self.offsets(&old.name)?.into_iter().find(|offset| offsets.binary_search(offset).is_err()) {
                let (path, covering) = (self.full(&old.name.path()), self.full(&new.name.path()));
                return Err(LakeError::Uncovered { path, covering, offset });
            }
            self.delete(&old.name)?;
        }
        Ok(listing.superseded.len() as u64)
    }

    fn offsets(&self, name: &ArchiveFileName) -> Result<Vec<i64>> {
        self.reader(name)?.offsets().map_err(|error| self.located(error))
    }

    /// Returns the content of a file's footer, if the file is found to be the one that its name states.
    pub(crate) fn about(&self, file: &ArchiveFile) -> Result<FileFooter> {
        let path = file.name.path();
        let wrong = |error: &dyn std::fmt::Display| self.located(damaged(&path, error));
        let mut length = FOOTER_BYTES.min(file.bytes);
        loop {
            let range = file.bytes - length..file.bytes;
            let end = self.store.range(&path, range).map_err(|source| self.failed("read", &path, source))?;
            bounds::check_schema(&end).map_err(|refusal| self.located(refused(&path, refusal)))?;
            let mut reader = ParquetMetaDataReader::new();
            match reader.try_parse_sized(&end, file.bytes) {
                Ok(()) => {
                    let metadata = reader.finish().map_err(|error| wrong(&error))?;
                    let footer = FileFooter::of(&file.name, &metadata).map_err(|error| self.located(error))?;
                    self.check_owner(&path, &footer.owner)?;
                    return Ok(footer);
                }
                Err(ParquetError::NeedMoreData(needed)) if (length + 1..=file.bytes).contains(&(needed as u64)) => {
                    length = needed as u64;
                }
                Err(error) => return Err(wrong(&error)),
            }
        }
    }

    /// Returns all rows of a partition in the order of their offsets. Memory: the batches that hold rows out of order within a
    /// file.
    pub fn rows(&self, listing: &ArchiveListing, topic: Topic, partition: i32) -> PartitionRows {
        PartitionRows(StoredRows { runs: self.runs_with(listing, topic, partition, ReadColumns::All), run: None })
    }

    /// Like [`Archive::rows`], with the rows still in their columns; of the headers that every event has, only the type is read.
    pub fn stored(&self, listing: &ArchiveListing, topic: Topic, partition: i32) -> StoredRows {
        StoredRows { runs: self.stored_runs(listing, topic, partition), run: None }
    }

    /// Like [`Archive::stored`], some rows at a time.
    pub fn stored_runs(&self, listing: &ArchiveListing, topic: Topic, partition: i32) -> StoredRuns {
        self.runs_with(listing, topic, partition, ReadColumns::WithoutEnvelope)
    }

    fn runs_with(&self, listing: &ArchiveListing, topic: Topic, partition: i32, columns: ReadColumns) -> StoredRuns {
        let mine = |name: &ArchiveFileName| name.topic == topic && name.partition == partition;
        let mut files: Vec<ArchiveFile> = listing.files.iter().filter(|file| mine(&file.name)).cloned().collect();
        files.reverse();
        StoredRuns { archive: self.clone(), columns, files, current: None }
    }

    /// Returns the rows of several topics, merged by append time (ties: the order of `topics`, partition, offset); rows of one
    /// partition stay in the order of their offsets.
    pub fn merged(&self, listing: &ArchiveListing, topics: &[Topic]) -> MergedRows {
        let mut inputs = Vec::new();
        for topic in topics {
            for (topic, partition) in listing.partitions().into_keys().filter(|(t, _)| t == topic) {
                inputs.push(self.rows(listing, topic, partition));
            }
        }
        MergedRows { heads: BinaryHeap::new(), waiting: (0..inputs.len()).collect(), inputs, rows: BTreeMap::new() }
    }

    pub(crate) fn reader(&self, name: &ArchiveFileName) -> Result<ArchiveFileReader> {
        let reader = ArchiveFileReader::open(name, self.input(name)?, self.long_texts.clone());
        let reader = reader.map_err(|error| self.located(error))?;
        self.check_owner(&name.path(), reader.owner())?;
        Ok(reader)
    }

    fn input(&self, name: &ArchiveFileName) -> Result<crate::store::ParquetInput> {
        self.store.read(&name.path()).map_err(|source| self.failed("read", &name.path(), source))
    }

    pub(crate) fn delete(&self, name: &ArchiveFileName) -> Result<()> {
        self.store.delete(&name.path()).map_err(|source| self.failed("delete", &name.path(), source))
    }

    pub(crate) fn create(&self, name: &ArchiveFileName, bytes: bytes::Bytes) -> Result<()> {
        let path = name.path();
        self.store.create(&path, bytes).map_err(|source| match source.kind() {
            std::io::ErrorKind::AlreadyExists => LakeError::Conflict { path: self.full(&path) },
            _ => self.failed("write", &path, source),
        })?;
        self.extend(name)
    }

    pub(crate) fn full(&self, path: &str) -> String {
        if path.is_empty() { self.place.to_string() } else { format!("{}/{path}", self.place) }
    }

    pub(crate) fn failed(&self, action: &'static str, path: &str, source: std::io::Error) -> LakeError {
        LakeError::Store { action, path: self.full(path), source }
    }

    /// Returns the same error with the archive's place before the file's path.
    pub(crate) fn located(&self, mut error: LakeError) -> LakeError {
        if let LakeError::Foreign { path, .. }
        | LakeError::Misnamed { path, .. }
        | LakeError::Damaged { path, .. }
        | LakeError::TooLarge { path, .. }
        | LakeError::Newer { path, .. } = &mut error
        {
            *path = self.full(path);
        }
        error
    }
}

/// Applies the rule for files that share offsets: one that covers another supersedes it; anything else is an error.
fn resolve(mut files: Vec<ArchiveFile>, place: &str) -> Result<ArchiveListing> {
    // The longest of several files with one first offset comes first.
    files.sort_by(|a, b| {
        let key = |file: &ArchiveFile| (file.name.topic, file.name.partition, file.name.first, Reverse(file.name.last));
        key(a).cmp(&key(b)).then_with(|| a.name.date.cmp(&b.name.date))
    });
    let mut listing = ArchiveListing::default();
    for file in files {
        let Some(last) = listing.files.last() else {
            listing.files.push(file);
            continue;
        };
        let (a, b) = (&last.name, &file.name);
        if (a.topic, a.partition) == (b.topic, b.partition) {
            if a.covers(b) {
                listing.superseded.push(file);
                continue;
            }
            if b.first <= a.last {
                let path = |name: &ArchiveFileName| format!("{place}/{}", name.path());
                return Err(LakeError::Overlap { first: path(a), second: path(b) });
            }
            if b.first > a.last + 1 {
                listing.gaps.push((a.topic, a.partition, a.last + 1, b.first - 1));
            }
        }
        listing.files.push(file);
    }
    Ok(listing)
}

/// Rows of one partition in the order of their offsets.
#[derive(Debug)]
pub struct PartitionRows(StoredRows);

/// A row for a reader of events.
#[derive(Debug)]
pub enum EventRow {
    Row(ArchiveRow),
    /// The row of this offset is not read.
    Refused(i64, DecodeError),
}

impl PartitionRows {
    /// Returns the next row, unless its headers are longer than those of an event may be.
    pub fn next_event(&mut self) -> Option<Result<EventRow>> {
        let stored = self.0.next()?;
        Some(stored.and_then(|stored| match stored.check_headers() {
            Ok(()) => self.0.row(&stored).map(EventRow::Row),
            Err(refusal) => Ok(EventRow::Refused(stored.offset(), refusal)),
        }))
    }
}

impl Iterator for PartitionRows {
    type Item = Result<ArchiveRow>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.0.next()?.and_then(|stored| self.0.row(&stored)))
    }
}

/// Rows that a run of [`StoredRows`] has, at most.
const RUN_ROWS: usize = 256;

/// Rows of one partition in the order of their offsets, in their columns.
#[derive(Debug)]
pub struct StoredRows {
    runs: StoredRuns,
    /// The present run, and the next row in it.
    run: Option<(StoredRun, usize)>,
}

impl StoredRows {
    /// Like [`StoredRuns::row`], for the row that came last.
    pub fn row(&self, stored: &StoredRow) -> Result<ArchiveRow> {
        self.runs.row(stored)
    }
}

impl Iterator for StoredRows {
    type Item = Result<StoredRow>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some((run, at)) = &mut self.run
                && let Some(row) = run.row(*at)
            {
                *at += 1;
                return Some(Ok(row));
            }
            match self.runs.next_run(RUN_ROWS)? {
                Ok(run) => self.run = Some((run, 0)),
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

/// See [`StoredRows`], some rows at a time.
#[derive(Debug)]
pub struct StoredRuns {
    archive: Archive,
    columns: ReadColumns,
    /// Still to be read; the next one last.
    files: Vec<ArchiveFile>,
    current: Option<FileRows>,
}

impl StoredRuns {
    /// Returns the next rows, at most so many, that are adjacent in their columns.
    pub fn next_run(&mut self, most: usize) -> Option<Result<StoredRun>> {
        loop {
            if let Some(current) = &mut self.current {
                match current.next_run(most) {
                    Some(run) => return Some(run.map_err(|error| self.archive.located(error))),
                    None => self.current = None,
                }
            }
            let file = self.files.pop()?;
            match FileRows::open(&self.archive, file, self.columns) {
                Ok(sorted) => self.current = Some(sorted),
                Err(error) => {
                    // Files after one that cannot be read are not in order.
                    self.files.clear();
                    return Some(Err(error));
                }
            }
        }
    }

    /// Returns the record of a row of the run that came last, with its type and without the other headers that every event has.
    pub fn row(&self, stored: &StoredRow) -> Result<ArchiveRow> {
        let path = || self.current.as_ref().map_or_else(String::new, |sorted| sorted.name.path());
        stored.row().map_err(|detail| self.archive.located(damaged(&path(), &detail)))
    }
}

/// The rows of a file, which are sorted by time, by offset.
#[derive(Debug)]
struct FileRows {
    name: ArchiveFileName,
    batches: FileBatches,
    batch: Option<(Arc<StoredBatch>, usize)>,
    /// Offsets still due; the next one last.
    due: Vec<i64>,
    /// Rows that came before their turn: each alone.
    early: BTreeMap<i64, StoredRun>,
    /// The batches of which rows may be `early`.
    held: HeldBatches<StoredBatch>,
    progress: ReadProgress,
}

/// Progress of reading a file.
#[derive(Debug)]
struct ReadProgress {
    observer: Option<ReadObserver>,
    bytes: u64,
    rows: u64,
    read_rows: u64,
    reported_bytes: u64,
}

impl ReadProgress {
    fn add(&mut self, rows: usize) {
        let Some(ReadObserver(report)) = &self.observer else { return };
        self.read_rows = self.rows.min(self.read_rows + rows as u64);
        let read = u128::from(self.bytes) * u128::from(self.read_rows) / u128::from(self.rows.max(1));
        let read = u64::try_from(read).unwrap_or(self.bytes);
        report(read - self.reported_bytes);
        self.reported_bytes = read;
    }
}

impl FileRows {
    fn open(archive: &Archive, file: ArchiveFile, columns: ReadColumns) -> Result<Self> {
        let ArchiveFile { name, bytes } = file;
        let located = |error| archive.located(error);
        let reader = archive.reader(&name)?;
        let mut due = reader.offsets().map_err(located)?;
        due.sort_unstable_by_key(|offset| Reverse(*offset));
        let twice = due.windows(2).any(|pair| pair[0] == pair[1]);
        let outside = due.iter().any(|offset| !(name.first..=name.last).contains(offset));
        if twice || outside {
            let detail = if twice { "an offset is in it twice" } else { "an offset lies outside the range of its name" };
            return Err(located(damaged(&name.path(), &detail)));
        }
        let batches = reader.batches_of(columns).map_err(located)?;
        let (observer, rows) = (archive.observer.clone(), due.len() as u64);
        let progress = ReadProgress { observer, bytes, rows, read_rows: 0, reported_bytes: 0 };
        Ok(Self { name, batches, batch: None, due, early: BTreeMap::new(), held: HeldBatches::new(), progress })
    }

    /// Returns the next rows in the order of their offsets, at most so many, that are adjacent.
    fn next_run(&mut self, most: usize) -> Option<Result<StoredRun>> {
        let due = *self.due.last()?;
        if let Some(run) = self.early.remove(&due) {
            self.due.pop();
            return Some(Ok(run));
        }
        loop {
            match self.read_due(most) {
                Some(Ok(Some(run))) => return Some(Ok(run)),
                Some(Ok(None)) => {}
                Some(Err(error)) => {
                    self.due.clear();
                    return Some(Err(error));
                }
                None => {
                    self.due.clear();
                    return Some(Err(damaged(&self.name.path(), &format_args!("offset {due} is missing"))));
                }
            }
        }
    }

    /// Reads on up to the rows that are due and returns them, or reads one that is not yet due.
    fn read_due(&mut self, most: usize) -> Option<Result<Option<StoredRun>>> {
        if self.batch.as_ref().is_none_or(|(batch, at)| *at >= batch.rows())
            && let Err(error) = self.next_batch()?
        {
            return Some(Err(error));
        }
        let (batch, at) = self.batch.as_mut()?;
        let (start, partition) = (*at, self.name.partition);
        let place = |at| {
            let place = batch.place(at)?;
            if place.partition == partition {
                Ok(place)
            } else {
                Err(format!("offset {} is of partition {}", place.offset, place.partition))
            }
        };
        let first = match place(start) {
            Ok(first) => first,
            Err(detail) => return Some(Err(damaged(&self.name.path(), &detail))),
        };
        let (mut places, mut due) = (vec![first], self.due.iter().rev());
        let is_due = due.next() == Some(&first.offset);
        if is_due {
            // A fault of a later row is found when that row comes first.
            let later = (start + 1..batch.rows()).take(most.max(1) - 1).map_while(|at| place(at).ok());
            places.extend(later.zip(due).take_while(|(place, due)| place.offset == **due).map(|(place, _)| place));
        }
        let count = places.len();
        *at = start + count;
        let run = StoredRun::new(batch, start, places);
        if is_due {
            self.due.truncate(self.due.len() - count);
            return Some(Ok(Some(run)));
        }
        self.early.insert(first.offset, run);
        Some(Ok(None))
    }

    /// Goes on to the next batch.
    fn next_batch(&mut self) -> Option<Result<()>> {
        let batch = match self.batches.next()? {
            Ok(batch) => Arc::new(StoredBatch::new(self.name.topic, batch)),
            Err(error) => return Some(Err(error)),
        };
        self.progress.add(batch.rows());
        self.batch = Some((batch, 0));
        Some(self.hold())
    }

    /// Returns an error if the batches whose rows wait for others take too much memory.
    fn hold(&mut self) -> Result<()> {
        let limit = bounds::max_waiting_bytes(self.batches.file_bytes());
        let Some((batch, _)) = &self.batch else { return Ok(()) };
        if !self.held.exceed(limit, batch, batch.bytes() as u64) {
            return Ok(());
        }
        let detail = format!("its rows are so far out of order that more than {limit} bytes of them wait for others");
        Err(LakeError::TooLarge { path: self.name.path(), detail })
    }
}

/// Rows of several partitions, see [`Archive::merged`].
#[derive(Debug)]
pub struct MergedRows {
    inputs: Vec<PartitionRows>,
    heads: BinaryHeap<Reverse<(i64, usize)>>,
    rows: BTreeMap<usize, ArchiveRow>,
    /// Inputs whose next row is not read yet.
    waiting: Vec<usize>,
}

impl Iterator for MergedRows {
    type Item = Result<ArchiveRow>;

    fn next(&mut self) -> Option<Self::Item> {
        while let Some(input) = self.waiting.pop() {
            match self.inputs[input].next() {
                Some(Ok(row)) => {
                    self.heads.push(Reverse((row.stamp.micros(), input)));
                    self.rows.insert(input, row);
                }
                Some(Err(error)) => return Some(Err(error)),
                None => {}
            }
        }
        let Reverse((_, input)) = self.heads.pop()?;
        self.waiting.push(input);
        self.rows.remove(&input).map(Ok)
    }
}
