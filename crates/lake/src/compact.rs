//! Many small files of past days become few.
//!
//! The new file is written first and covers the ranges of the old ones exactly; then they are deleted. A reader that finds
//! both takes the covering one ([`crate::ArchiveListing::superseded`]), and the next compaction or start of the archiver deletes
//! the rest. No offset is ever without a file. Readers that know only Parquet (a glob in `DuckDB`) should not run on a day
//! while it is compacted: until the deletion they see its rows twice.

use crate::archive::{Archive, ArchiveFile};
use crate::error::{LakeError, Result};
use crate::file;
use crate::layout::ArchiveFileName;

/// What a compaction did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CompactionSummary {
    pub files_before: u64,
    pub files_after: u64,
    pub rows: u64,
    pub bytes_before: u64,
    pub bytes_after: u64,
}

/// Merges files of dates before `before` (`YYYY-MM-DD`) while their sizes sum to at most `target_bytes`.
/// Adjoining ranges of one topic, partition and date only. Memory: the rows of one merged file, about ten times its bytes.
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
            if !adjoin || bytes > target_bytes {
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
    let (mut batches, mut deleted, mut rows) = (Vec::new(), Vec::new(), 0);
    for old in group {
        let reader = archive.reader(&old.name)?;
        rows += reader.rows();
        deleted.extend_from_slice(&reader.deleted);
        for batch in reader.batches().map_err(|error| archive.located(error))? {
            batches.push(batch.map_err(|error| archive.located(error))?);
        }
        archive.observe(old.bytes);
    }
    let bytes = file::encode(&name, &batches, &deleted)?;
    let size = bytes.len() as u64;
    archive.create(&name, bytes)?;
    // What is deleted next must be there, whole.
    let there = archive.reader(&name)?.rows();
    if there != rows {
        let detail = format!("{there} rows were written, {rows} were read");
        return Err(LakeError::Damaged { path: name.path(), detail });
    }
    for old in group {
        archive.delete(&old.name)?;
    }
    done.files_before += group.len() as u64;
    done.files_after += 1;
    done.rows += rows;
    done.bytes_before += group.iter().map(|file| file.bytes).sum::<u64>();
    done.bytes_after += size;
    Ok(())
}
