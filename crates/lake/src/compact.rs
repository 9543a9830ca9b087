//! Many small files of past days become few.
//!
//! The new file is written first and covers the ranges of the old ones exactly; then they are deleted. A reader that finds
//! both takes the covering one ([`crate::ArchiveListing::superseded`]), and the next compaction or start of the archiver deletes
//! the rest. No offset is ever without a file. Readers that know only Parquet (a glob in `DuckDB`) should not run on a day
//! while it is compacted: until the deletion they see its rows twice.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use arrow::array::RecordBatch;

use crate::archive::{Archive, ArchiveFile};
use crate::bounds;
use crate::error::{LakeError, Result};
use crate::file::{self, FileBatches, FileFooter, FileOrigin, FileWriter, RowFacts, RowKey};
use crate::layout::ArchiveFileName;
use crate::plan::{TopicColumns, plan};

/// Files that are merged into one: all of them may be open at once, if their times overlap. More become one the next time.
const MAX_MERGED_FILES: usize = 256;

/// Result of a compaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CompactionSummary {
    pub files_before: u64,
    pub files_after: u64,
    pub rows: u64,
    pub bytes_before: u64,
    pub bytes_after: u64,
}

/// Merges files of dates before `before` (`YYYY-MM-DD`) while their sizes sum to at most `target_bytes`. Adjoining ranges of one
/// topic, partition and date only, at most 256 files at a time. Memory: the bytes of one merged file, a row group, and one batch
/// with its decoded pages for each file with rows of the same time. Files in an object store take all their bytes.
pub fn compact(archive: &Archive, before: &str, target_bytes: u64) -> Result<CompactionSummary> {
    archive.drop_superseded()?;
    let listing = archive.files()?;
    let mut done = CompactionSummary::default();
    for group in groups(&listing.files, before, target_bytes) {
        merge(archive, group, &mut done)?;
    }
    Ok(done)
}

/// Returns the bytes of the files that [`compact`] would merge.
pub fn compactable_bytes(archive: &Archive, before: &str, target_bytes: u64) -> Result<u64> {
    let files = archive.files()?.files;
    Ok(groups(&files, before, target_bytes).into_iter().flatten().map(|file| file.bytes).sum())
}

/// Runs of at least two files that may become one.
fn groups<'a>(files: &'a [ArchiveFile], before: &str, target_bytes: u64) -> Vec<&'a [ArchiveFile]> {
    let mut groups = Vec::new();
    let mut start = 0;
    while start < files.len() {
        let mut bytes = files[start].bytes;
        let mut end = start + 1;
        while end < files.len() {
            let (last, next) = (&files[end - 1].name, &files[end].name);
            bytes += files[end].bytes;
            let adjoin = (last.topic, last.partition, &last.date) == (next.topic, next.partition, &next.date)
                && next.first == last.last + 1;
            if !adjoin || bytes > target_bytes || end - start == MAX_MERGED_FILES {
                break;
            }
            end += 1;
        }
        if end - start > 1 && files[start].name.date.as_str() < before {
            groups.push(&files[start..end]);
        }
        start = end;
    }
    groups
}

fn merge(archive: &Archive, group: &[ArchiveFile], done: &mut CompactionSummary) -> Result<()> {
    let (Some(first), Some(last)) = (group.first(), group.last()) else { return Ok(()) };
    let name = ArchiveFileName { last: last.name.last, ..first.name.clone() };
    let footers: Vec<FileFooter> = group.iter().map(|old| archive.about(old)).collect::<Result<_>>()?;
    let rows: u64 = footers.iter().map(|footer| footer.rows).sum();
    let deleted: Vec<(i64, i64)> = footers.iter().flat_map(|footer| footer.deleted.iter().copied()).collect();
    let facts = facts(archive, group, &footers)?;
    let archive_id = archive.id_of_new_file()?;
    let origin = FileOrigin { archive_id: archive_id.as_deref(), deleted: &deleted };
    let writer = FileWriter::new(&name, origin, facts, usize::try_from(rows).unwrap_or(usize::MAX))?;
    let files = group.iter().zip(&footers).map(|(old, footer)| (footer.least_time, old.name.clone())).collect();
    let (bytes, text_bytes) = match FileMerge::new(archive, &name, files, writer).run(rows)? {
        Some(merged) => merged,
        None => encode_unsorted(archive, &name, group, origin)?,
    };
    let size = bytes.len() as u64;
    if bounds::are_texts_long(text_bytes, size) {
        // Readers might refuse it; they read the files that it would replace.
        return Ok(());
    }
    archive.create(&name, bytes)?;
    verify_stored(archive, &name, rows)?;
    for old in group {
        archive.observe(old.bytes);
        archive.delete(&old.name)?;
    }
    done.files_before += group.len() as u64;
    done.files_after += 1;
    done.rows += rows;
    done.bytes_before += group.iter().map(|file| file.bytes).sum::<u64>();
    done.bytes_after += size;
    Ok(())
}

/// Checks that a merged file is in the archive, whole, before the files that it replaces are deleted. One that is not is deleted:
/// readers would take it instead of them.
fn verify_stored(archive: &Archive, name: &ArchiveFileName, rows: u64) -> Result<()> {
    let stored = archive.reader(name).and_then(|file| {
        let detail = || format!("{} rows were stored, and {rows} were written", file.rows());
        if file.rows() == rows { Ok(()) } else { Err(LakeError::Damaged { path: name.path(), detail: detail() }) }
    });
    match stored {
        Err(error) if !error.is_transient() => {
            archive.delete(name)?;
            Err(LakeError::NotStored { path: archive.full(&name.path()), source: Box::new(error) })
        }
        stored => stored,
    }
}

/// Returns what the footer of a merged file states. Files of older versions do not record their newest row: then it is read.
fn facts(archive: &Archive, group: &[ArchiveFile], footers: &[FileFooter]) -> Result<RowFacts> {
    let timed = footers.iter().all(|footer| footer.timed);
    let Some((newest, footer)) = group.iter().zip(footers).rfind(|(_, footer)| footer.rows > 0) else {
        return Ok(RowFacts { timed, newest: None });
    };
    let mut facts = RowFacts { timed, newest: footer.newest.map(|(offset, stamp)| (offset, stamp.micros())) };
    if facts.newest.is_none() {
        for batch in archive.reader(&newest.name)?.batches().map_err(|error| archive.located(error))? {
            let batch = batch.map_err(|error| archive.located(error))?;
            facts.newest = facts.newest.max(file::row_facts(plan(newest.name.topic), &batch).newest);
        }
    }
    Ok(facts)
}

/// Sorts the rows of files whose rows are not sorted, as another version may have left them. Returns the file and the bytes of its
/// texts. Memory: all of their rows.
pub(crate) fn encode_unsorted(
    archive: &Archive,
    name: &ArchiveFileName,
    group: &[ArchiveFile],
    origin: FileOrigin<'_>,
) -> Result<(bytes::Bytes, u64)> {
    let mut batches = Vec::new();
    for old in group {
        for batch in archive.reader(&old.name)?.batches().map_err(|error| archive.located(error))? {
            batches.push(batch.map_err(|error| archive.located(error))?);
        }
    }
    Ok((file::encode(name, &batches, origin)?, batches.iter().map(file::batch_text_bytes).sum()))
}

/// Bytes of batches of which rows wait to be written together.
const WAITING_BYTES: usize = 32 << 20;

/// A file whose rows are being merged.
struct OpenFile {
    batches: FileBatches,
    batch: RecordBatch,
    keys: Vec<RowKey>,
    row: usize,
    /// Index of the batch among those of the waiting rows.
    place: Option<usize>,
}

impl OpenFile {
    /// Reads the next batch with rows. Returns whether there was one.
    fn next_batch(&mut self, archive: &Archive, plan: &TopicColumns) -> Result<bool> {
        for batch in self.batches.by_ref() {
            let batch = batch.map_err(|error| archive.located(error))?;
            if batch.num_rows() > 0 {
                self.keys = file::row_keys(plan, &batch);
                (self.batch, self.row, self.place) = (batch, 0, None);
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Merges files, each sorted by time and offset, into one.
struct FileMerge<'a> {
    archive: &'a Archive,
    plan: &'static TopicColumns,
    writer: FileWriter,
    /// Files that are not open yet, with a time before which they have no row; the earliest last.
    files: Vec<(i64, ArchiveFileName)>,
    open: Vec<Option<OpenFile>>,
    /// The next row of each open file.
    heads: BinaryHeap<Reverse<(RowKey, usize)>>,
    /// Rows that wait to be written, and their batches.
    rows: Vec<(usize, usize)>,
    batches: Vec<RecordBatch>,
    waiting_bytes: usize,
}

impl<'a> FileMerge<'a> {
    fn new(archive: &'a Archive, name: &ArchiveFileName, mut files: Vec<(i64, ArchiveFileName)>, writer: FileWriter) -> Self {
        files.sort_by_key(|(least, name)| Reverse((*least, name.first)));
        Self {
            archive,
            plan: plan(name.topic),
            writer,
            files,
            open: Vec::new(),
            heads: BinaryHeap::new(),
            rows: Vec::new(),
            batches: Vec::new(),
            waiting_bytes: 0,
        }
    }

    /// Returns the merged file, which has so many rows, and the bytes of its texts; `None` if a file is not sorted.
    fn run(mut self, expected: u64) -> Result<Option<(bytes::Bytes, u64)>> {
        let mut merged = 0;
        self.open_due()?;
        while let Some(Reverse((key, at))) = self.heads.pop() {
            let Some(file) = &mut self.open[at] else { continue };
            let place = *file.place.get_or_insert_with(|| {
                self.batches.push(file.batch.clone());
                self.waiting_bytes += file.batch.get_array_memory_size();
                self.batches.len() - 1
            });
            self.rows.push((place, file.row));
            merged += 1;
            file.row += 1;
            if file.row == file.keys.len() && !file.next_batch(self.archive, self.plan)? {
                self.open[at] = None;
            }
            if let Some(file) = &self.open[at] {
                let next = file.keys[file.row];
                if next < key {
                    return Ok(None);
                }
                self.heads.push(Reverse((next, at)));
            }
            self.open_due()?;
            if self.rows.len() >= file::WRITE_ROWS || self.waiting_bytes >= WAITING_BYTES {
                self.write_waiting()?;
            }
        }
        self.write_waiting()?;
        if merged != expected {
            let detail = format!("{merged} rows would be in it, and {expected} are in the files that it replaces");
            return Err(LakeError::Encode { path: self.writer.path().to_owned(), detail });
        }
        let text_bytes = self.writer.text_bytes();
        Ok(Some((self.writer.finish()?, text_bytes)))
    }

    /// Opens the files that may have the next row.
    fn open_due(&mut self) -> Result<()> {
        while let Some((_, name)) =
            self.files.pop_if(|(least, _)| self.heads.peek().is_none_or(|Reverse(((time, _), _))| *least <= *time))
        {
            let batches = self.archive.reader(&name)?.batches().map_err(|error| self.archive.located(error))?;
            let batch = RecordBatch::new_empty(self.plan.schema.clone());
            let mut file = OpenFile { batches, batch, keys: Vec::new(), row: 0, place: None };
            if file.next_batch(self.archive, self.plan)? {
                self.heads.push(Reverse((file.keys[0], self.open.len())));
                self.open.push(Some(file));
            }
        }
        Ok(())
    }

    fn write_waiting(&mut self) -> Result<()> {
        if !self.rows.is_empty() {
            self.writer.write_rows(&self.batches, &self.rows)?;
        }
        self.rows.clear();
        self.batches.clear();
        self.waiting_bytes = 0;
        for file in self.open.iter_mut().flatten() {
            file.place = None;
        }
        Ok(())
    }
}
