//! Rows to files: one open file a partition, rolled by rows, bytes, age and date.

use std::collections::{BTreeMap, VecDeque};

use arrow::array::RecordBatch;
use eadt_schemas::{EventTime, Topic};

use crate::archive::Archive;
use crate::columns::RowBatchBuilder;
use crate::error::{LakeError, Result};
use crate::file::{self, FileOrigin};
use crate::layout::ArchiveFileName;
use crate::row::{ArchiveRow, RowView};

/// Limits at which a file is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RollLimits {
    /// Rows in a file.
    pub rows: usize,
    /// Memory of one open file, in bytes, before encoding.
    pub bytes: usize,
    /// Memory of all open files; past it the largest are written first.
    pub total_bytes: usize,
    /// Microseconds from a file's first row until it is written.
    pub age_micros: i64,
}

impl Default for RollLimits {
    /// Returns 983,040 rows (eight row groups), 128 MiB, 256 MiB, ten minutes.
    fn default() -> Self {
        Self { rows: 8 * file::ROW_GROUP_ROWS, bytes: 128 << 20, total_bytes: 256 << 20, age_micros: 600_000_000 }
    }
}

/// A file that became visible.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrittenFile {
    pub name: ArchiveFileName,
    pub rows: u64,
    /// Size of the file in bytes.
    pub bytes: u64,
}

/// Turns rows into files. Each offset ends up in exactly one file; ranges of files adjoin.
///
/// Only rolling writes. A call that fails has taken nothing and lost nothing: it may be repeated.
#[derive(Debug)]
pub struct ArchiveWriter {
    archive: Archive,
    limits: RollLimits,
    partitions: BTreeMap<(Topic, i32), PartitionBuffer>,
}

#[derive(Debug)]
struct PartitionBuffer {
    /// Take no more rows, and are in no file yet; the oldest first.
    complete: VecDeque<PendingFile>,
    open: PendingFile,
}

/// The content of one file.
#[derive(Debug)]
struct PendingFile {
    /// First offset of the file.
    first: i64,
    /// Every offset before it is accounted for.
    next: i64,
    /// Days since the epoch.
    day: i64,
    since: EventTime,
    columns: RowBatchBuilder,
    batches: Vec<RecordBatch>,
    rows: usize,
    batch_bytes: usize,
    deleted: Vec<(i64, i64)>,
}

/// Rows in one batch of an open file.
const BATCH_ROWS: usize = 16_384;
const DAY_MICROS: i64 = 86_400_000_000;

impl PartitionBuffer {
    fn new(topic: Topic, offset: i64) -> Self {
        Self { complete: VecDeque::new(), open: PendingFile::new(topic, offset) }
    }

    fn contents(&self) -> impl Iterator<Item = &PendingFile> {
        self.complete.iter().chain([&self.open])
    }

    fn bytes(&self) -> usize {
        self.contents().map(PendingFile::bytes).sum()
    }

    fn rows(&self) -> usize {
        self.contents().map(|content| content.rows).sum()
    }

    fn complete(&mut self, topic: Topic) {
        self.open.seal();
        let next = PendingFile::new(topic, self.open.next);
        self.complete.push_back(std::mem::replace(&mut self.open, next));
    }
}

impl PendingFile {
    fn new(topic: Topic, offset: i64) -> Self {
        Self {
            first: offset,
            next: offset,
            day: 0,
            since: EventTime::default(),
            columns: RowBatchBuilder::new(topic),
            batches: Vec::new(),
            rows: 0,
            batch_bytes: 0,
            deleted: Vec::new(),
        }
    }

    fn bytes(&self) -> usize {
        self.batch_bytes + self.columns.bytes()
    }

    fn seal(&mut self) {
        if self.columns.rows() > 0 {
            let batch = self.columns.take();
            self.batch_bytes += batch.get_array_memory_size();
            self.batches.push(batch);
        }
    }
}

impl ArchiveWriter {
    pub fn new(archive: Archive, limits: RollLimits) -> Self {
        Self { archive, limits, partitions: BTreeMap::new() }
    }

    pub fn archive(&self) -> &Archive {
        &self.archive
    }

    /// Begins a partition at this offset: the next file's range starts there. Its open file is forgotten.
    pub fn start(&mut self, topic: Topic, partition: i32, offset: i64) {
        self.partitions.insert((topic, partition), PartitionBuffer::new(topic, offset));
    }

    /// Records that the log deleted these offsets (inclusive) before they could be read: the next file's range covers them, and
    /// the file lists them. Only the next due offset and later ones count.
    pub fn deleted(&mut self, topic: Topic, partition: i32, to: i64) {
        if let Some(PartitionBuffer { open, .. }) = self.partitions.get_mut(&(topic, partition))
            && to >= open.next
        {
            open.deleted.push((open.next, to));
            open.next = to + 1;
        }
    }

    /// Like [`Self::push_view`], for an owned row.
    pub fn push(&mut self, row: &ArchiveRow, now: EventTime) -> Result<()> {
        self.push_view(&row.view(), row.header_views(), || now)
    }

    /// Takes a row, and names and values of its headers in their order. `now` dates the open file; it is asked for only with a
    /// file's first row. A row of a partition that was not started starts it. A row of another date than the open file's completes
    /// that file, which is due then.
    pub fn push_view<'a>(
        &mut self,
        row: &RowView<'_>,
        headers: impl Iterator<Item = (&'a [u8], &'a [u8])>,
        now: impl FnOnce() -> EventTime,
    ) -> Result<()> {
        let RowView { topic, partition, offset, .. } = *row;
        let entry = self.partitions.entry((topic, partition)).or_insert_with(|| PartitionBuffer::new(topic, offset));
        if offset < entry.open.next {
            return Err(LakeError::Order { topic, partition, offset, expected: entry.open.next });
        }
        let day = row.stamp.micros().div_euclid(DAY_MICROS);
        if entry.open.rows > 0 && entry.open.day != day {
            // Any archiver that reads these rows again ends the file here, whether or not the end of the log was reported in
            // between.
            entry.open.next = offset;
            entry.complete(topic);
        }
        let open = &mut entry.open;
        if open.rows == 0 {
            (open.day, open.since) = (day, now());
        }
        open.columns.push(row, headers);
        open.rows += 1;
        open.next = offset + 1;
        if open.columns.rows() >= BATCH_ROWS {
            open.seal();
        }
        Ok(())
    }

    /// Notes that every offset before `position` was delivered: those without a record belong to the open file, too.
    pub fn advance_to(&mut self, topic: Topic, partition: i32, position: i64) {
        if let Some(PartitionBuffer { open, .. }) = self.partitions.get_mut(&(topic, partition)) {
            open.next = open.next.max(position);
        }
    }

    /// Returns the memory of the rows that are in no file yet, in bytes.
    pub fn bytes(&self) -> usize {
        self.partitions.values().map(PartitionBuffer::bytes).sum()
    }

    /// Returns rows that are in no file yet.
    pub fn rows(&self) -> usize {
        self.partitions.values().map(PartitionBuffer::rows).sum()
    }

    /// Returns whether rows of this partition are in no file yet.
    pub fn holds(&self, topic: Topic, partition: i32) -> bool {
        self.partitions.get(&(topic, partition)).is_some_and(|at| at.rows() > 0)
    }

    /// Returns the first offset of a partition that is in no file.
    pub fn durable(&self, topic: Topic, partition: i32) -> Option<i64> {
        self.partitions.get(&(topic, partition))?.contents().next().map(|oldest| oldest.first)
    }

    /// Returns the offset after the last one that a file or the open file covers.
    pub fn position(&self, topic: Topic, partition: i32) -> Option<i64> {
        self.partitions.get(&(topic, partition)).map(|at| at.open.next)
    }

    /// Returns the partition of which a file is due at `now`: by date, rows, bytes, age or the memory of all.
    pub fn due(&self, now: EventTime) -> Option<(Topic, i32)> {
        let limits = &self.limits;
        let full = self.partitions.iter().find(|(_, PartitionBuffer { complete, open })| {
            let full = open.rows >= limits.rows
                || open.bytes() >= limits.bytes
                || now.micros() - open.since.micros() >= limits.age_micros;
            !complete.is_empty() || (open.rows > 0 && full)
        });
        let largest = || {
            let largest = self.partitions.iter().max_by_key(|(_, at)| at.bytes());
            largest.filter(|_| self.bytes() >= limits.total_bytes)
        };
        full.or_else(largest).filter(|(_, at)| at.rows() > 0).map(|(at, _)| *at)
    }

    /// Writes one partition's oldest file, which takes no more rows; `None` if there are none.
    pub fn roll(&mut self, topic: Topic, partition: i32) -> Result<Option<WrittenFile>> {
        self.roll_if(topic, partition, || Ok(()))
    }

    /// Like [`ArchiveWriter::roll`], unless `allowed` refuses: it is asked once nothing is left but to write.
    pub fn roll_if<E: From<LakeError>>(
        &mut self,
        topic: Topic,
        partition: i32,
        allowed: impl FnOnce() -> Result<(), E>,
    ) -> Result<Option<WrittenFile>, E> {
        let Some(at) = self.partitions.get_mut(&(topic, partition)) else { return Ok(None) };
        if at.complete.is_empty() && at.open.rows > 0 {
            at.complete(topic);
        }
        let Some(content) = at.complete.front() else { return Ok(None) };
        let date = EventTime::from_micros(content.day * DAY_MICROS).date();
        let name = ArchiveFileName { topic, partition, first: content.first, last: content.next - 1, date };
        let archive_id = self.archive.id_of_new_file()?;
        let origin = FileOrigin { archive_id: archive_id.as_deref(), deleted: &content.deleted };
        let bytes = file::encode(&name, &content.batches, origin)?;
        let written = WrittenFile { name, rows: content.rows as u64, bytes: bytes.len() as u64 };
        allowed()?;
        self.archive.create(&written.name, bytes)?;
        at.complete.pop_front();
        Ok(Some(written))
    }

    /// Writes every file that has rows. On an error the rest waits; the call may be repeated.
    pub fn roll_all(&mut self) -> Result<Vec<WrittenFile>> {
        let partitions: Vec<_> = self.partitions.keys().copied().collect();
        let mut written = Vec::new();
        for (topic, partition) in partitions {
            while let Some(file) = self.roll(topic, partition)? {
                written.push(file);
            }
        }
        Ok(written)
    }

    /// Forgets a partition and its open file after another member has taken it over.
    pub fn forget(&mut self, topic: Topic, partition: i32) {
        self.partitions.remove(&(topic, partition));
    }
}
