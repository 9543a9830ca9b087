//! Compaction of files as other versions wrote them, of files without rows, and on stores that do not keep what they were given.

use std::fs;
use std::io;
use std::ops::Range;
use std::path::Path;

use arrow::array::{RecordBatch, UInt32Array};
use arrow::compute::take_record_batch;
use bytes::Bytes;
use eadt_schemas::Topic;
use parquet::arrow::ArrowWriter;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;

use super::{all, telemetry};
use crate::store::{ArchiveStore, FolderStore, OsDisk, ParquetInput, StoredFile};
use crate::{Archive, ArchiveFile, ArchiveFileName, ArchiveRow, ArchiveWriter, LakeError, RollLimits, compact};

const TOPIC: Topic = Topic::GpuTelemetry;
const LATER: &str = "2027-01-01";
const TARGET: u64 = 128 << 20;
/// Rows of a file: more than a batch.
const FILE_ROWS: usize = 1_500;

/// Returns an archive of files with so many rows each, at the times of `at`.
fn archive(folder: &Path, files: usize, at: impl Fn(i64) -> i64) -> (Archive, Vec<ArchiveRow>, Vec<ArchiveFile>) {
    let archive = Archive::folder(folder).unwrap();
    let limits = RollLimits { rows: FILE_ROWS, age_micros: 1 << 50, ..RollLimits::default() };
    let mut writer = ArchiveWriter::new(archive.clone(), limits);
    let rows: Vec<ArchiveRow> = (0..(files * FILE_ROWS) as i64).map(|offset| telemetry(0, offset, at(offset))).collect();
    for row in &rows {
        writer.push(row, row.stamp).unwrap();
        while let Some((topic, partition)) = writer.due(row.stamp) {
            writer.roll(topic, partition).unwrap();
        }
    }
    writer.roll_all().unwrap();
    let written = archive.files().unwrap().files;
    assert_eq!(written.len(), files);
    (archive, rows, written)
}

/// Replaces a file by one as an older version wrote it: without its newest row and a checksum, its rows in another order.
fn rewrite(archive: &Archive, folder: &Path, name: &ArchiveFileName, order: impl Fn(usize) -> usize) -> Vec<u8> {
    let batches: Vec<RecordBatch> = archive.reader(name).unwrap().batches().unwrap().map(Result::unwrap).collect();
    let batch = arrow::compute::concat_batches(&batches[0].schema(), &batches).unwrap();
    let indices = UInt32Array::from_iter_values((0..batch.num_rows()).map(|row| order(row) as u32));
    let batch = take_record_batch(&batch, &indices).unwrap();
    let entries = [("eadt.format", "1".to_owned()), ("eadt.place", name.path())];
    let entries = entries.map(|(key, value)| KeyValue::new(key.to_owned(), value)).to_vec();
    let properties = WriterProperties::builder().set_key_value_metadata(Some(entries)).build();
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    let bytes = writer.into_inner().unwrap();
    fs::write(folder.join(name.path()), &bytes).unwrap();
    bytes
}

fn backwards(row: usize) -> usize {
    FILE_ROWS - 1 - row
}

/// As it is, but the last two rows change places.
fn end_swapped(row: usize) -> usize {
    match FILE_ROWS - row {
        1 => row - 1,
        2 => row + 1,
        _ => row,
    }
}

#[test]
fn files_that_are_not_sorted_become_one_that_is() {
    for (what, order) in [("backwards", backwards as fn(usize) -> usize), ("only its end", end_swapped)] {
        for unsorted in 0..3 {
            let folder = tempfile::tempdir().unwrap();
            let (archive, rows, files) = archive(folder.path(), 3, |offset| offset);
            rewrite(&archive, folder.path(), &files[unsorted].name, order);
            let done = compact(&archive, LATER, TARGET).unwrap();
            assert_eq!((done.files_before, done.files_after, done.rows), (3, 1, rows.len() as u64), "{what} {unsorted}");
            assert_eq!(all(&archive, TOPIC, 0).unwrap(), rows, "{what} {unsorted}");
            let listing = archive.files().unwrap();
            let about = archive.about(&listing.files[0]).unwrap();
            let newest = rows.last().unwrap();
            assert_eq!((about.newest, about.timed), (Some((newest.offset, newest.stamp)), true), "{what} {unsorted}");
            let batches = archive.reader(&listing.files[0].name).unwrap().batches().unwrap();
            let keys: Vec<_> =
                batches.flat_map(|batch| crate::file::row_keys(crate::plan::plan(TOPIC), &batch.unwrap())).collect();
            assert!(keys.is_sorted() && keys.len() == rows.len(), "{what} {unsorted}");
        }
    }
}

#[test]
fn the_newest_row_of_files_that_do_not_state_it_is_read() {
    // The newest row is not the last one by time.
    let at = |offset: i64| if offset % 1_500 == 1_499 { offset - 1_000 } else { offset };
    for without in [&[0][..], &[1], &[2], &[0, 1, 2]] {
        let folder = tempfile::tempdir().unwrap();
        let (archive, rows, files) = archive(folder.path(), 3, at);
        for &file in without {
            rewrite(&archive, folder.path(), &files[file].name, |row| row);
            assert_eq!(archive.about(&archive.files().unwrap().files[file]).unwrap().newest, None);
        }
        assert_eq!(compact(&archive, LATER, TARGET).unwrap().files_after, 1, "{without:?}");
        let newest = archive.newest(&archive.files().unwrap()).unwrap()[&(TOPIC, 0)];
        assert_eq!(newest, rows.last().map(|row| (row.offset, row.stamp)), "{without:?}");
        assert_eq!(all(&archive, TOPIC, 0).unwrap(), rows, "{without:?}");
    }
}

#[test]
fn files_without_rows_are_merged_with_others_and_with_each_other() {
    // All offsets of such a file were deleted before they could be archived, or taken by transactions.
    for (what, empty) in [("first", &[0][..]), ("between", &[1]), ("last", &[2]), ("all", &[0, 1, 2])] {
        let folder = tempfile::tempdir().unwrap();
        let (archive, rows, files) = archive(folder.path(), 3, |offset| offset);
        for &file in empty {
            let name = &files[file].name;
            let origin = crate::file::FileOrigin { deleted: &[(name.first, name.last)], ..Default::default() };
            let bytes = crate::file::encode(name, &[], origin).unwrap();
            fs::write(folder.path().join(name.path()), bytes).unwrap();
        }
        let left: Vec<ArchiveRow> = rows
            .into_iter()
            .filter(|row| !empty.iter().any(|&file| (files[file].name.first..=files[file].name.last).contains(&row.offset)))
            .collect();
        let done = compact(&archive, LATER, TARGET).unwrap();
        assert_eq!((done.files_before, done.files_after, done.rows), (3, 1, left.len() as u64), "{what}");
        assert_eq!(all(&archive, TOPIC, 0).unwrap(), left, "{what}");
        let listing = archive.files().unwrap();
        let about = archive.about(&listing.files[0]).unwrap();
        let deleted: Vec<(i64, i64)> = empty.iter().map(|&file| (files[file].name.first, files[file].name.last)).collect();
        assert_eq!((about.rows, about.deleted), (left.len() as u64, deleted), "{what}");
        assert_eq!(about.newest, left.last().map(|row| (row.offset, row.stamp)), "{what}");
        assert_eq!(compact(&archive, LATER, TARGET).unwrap(), crate::CompactionSummary::default(), "{what}");
    }
}

/// The number of rows in a footer, in Thrift's compact protocol: field 3 of the file, before the list of row groups.
fn state_rows(bytes: &mut [u8], rows: usize, stated: usize) {
    let field = |rows: usize| [0x16, ((2 * rows) & 0x7f | 0x80) as u8, ((2 * rows) >> 7) as u8, 0x19];
    let at = bytes.windows(4).rposition(|window| window == field(rows)).unwrap();
    bytes[at..at + 4].copy_from_slice(&field(stated));
}

#[test]
fn a_file_that_has_other_rows_than_its_footer_states_is_named_by_every_reader_and_kept() {
    for stated in [FILE_ROWS - 1, FILE_ROWS + 1] {
        for order in [|row| row, backwards as fn(usize) -> usize] {
            let folder = tempfile::tempdir().unwrap();
            let (archive, _, files) = archive(folder.path(), 3, |offset| offset);
            let name = &files[1].name;
            let mut bytes = rewrite(&archive, folder.path(), name, order);
            state_rows(&mut bytes, FILE_ROWS, stated);
            fs::write(folder.path().join(name.path()), &bytes).unwrap();
            let expected = format!("it has 1500 rows, and its footer states {stated}");
            let errors =
                [compact(&archive, LATER, TARGET).unwrap_err().to_string(), all(&archive, TOPIC, 0).unwrap_err().to_string()];
            for error in errors {
                assert!(error.contains(&expected) && error.contains(&name.path()), "{error}");
            }
            let left: Vec<ArchiveFileName> = archive.files().unwrap().files.into_iter().map(|file| file.name).collect();
            assert!(left.iter().eq(files.iter().map(|file| &file.name)), "nothing was merged or deleted: {left:?}");
        }
    }
}

/// Returns the bytes of a file that a store keeps.
type KeepRule = fn(Bytes) -> Bytes;

/// A folder that keeps something else than it was given.
#[derive(Debug)]
struct ForgetfulStore {
    folder: FolderStore<OsDisk>,
    keep: KeepRule,
}

impl ArchiveStore for ForgetfulStore {
    fn list(&self) -> io::Result<Vec<StoredFile>> {
        self.folder.list()
    }
    fn create(&self, path: &str, bytes: Bytes) -> io::Result<()> {
        self.folder.create(path, if path.ends_with(".parquet") { (self.keep)(bytes) } else { bytes })
    }
    fn make_durable(&self, path: &str) -> io::Result<()> {
        self.folder.make_durable(path)
    }
    fn read(&self, path: &str) -> io::Result<ParquetInput> {
        self.folder.read(path)
    }
    fn range(&self, path: &str, range: Range<u64>) -> io::Result<Bytes> {
        self.folder.range(path, range)
    }
    fn delete(&self, path: &str) -> io::Result<()> {
        self.folder.delete(path)
    }
    fn sweep(&self) -> io::Result<u64> {
        self.folder.sweep()
    }
}

#[test]
fn a_merged_file_that_does_not_come_back_as_written_replaces_nothing() {
    let cases: [(&str, KeepRule, &str); 3] = [
        ("cut short", |bytes| bytes.slice(..bytes.len() - 100), "is damaged"),
        ("nothing", |_| Bytes::new(), "is damaged"),
        (
            "a flipped bit",
            |bytes| {
                let mut bytes = bytes.to_vec();
                bytes[1_000] ^= 1;
                bytes.into()
            },
            "its bytes are not the ones that were written",
        ),
    ];
    for (what, keep, why) in cases {
        let folder = tempfile::tempdir().unwrap();
        let (archive, rows, files) = archive(folder.path(), 3, |offset| offset);
        let forgetful = Archive::on(ForgetfulStore { folder: FolderStore::new(folder.path().to_owned(), OsDisk), keep });
        let error = compact(&forgetful, LATER, TARGET).unwrap_err();
        let LakeError::NotStored { source, .. } = &error else { panic!("{what}: {error}") };
        assert!(error.to_string().contains("the files that it should replace are unchanged"), "{what}: {error}");
        assert!(source.to_string().contains(why), "{what}: {source}");
        assert_eq!(archive.files().unwrap().files, files, "{what}");
        assert_eq!(all(&archive, TOPIC, 0).unwrap(), rows, "{what}");
        assert_eq!(compact(&archive, LATER, TARGET).unwrap().files_after, 1, "{what}: once the store keeps what it gets");
    }
}
