//! Small files that unpack to much.

use std::fs;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray};
use arrow::datatypes::Schema;
use bytes::Bytes;
use eadt_schemas::Topic;
use eadt_schemas::envelope::header;
use eadt_schemas::v1::Decision;
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::schema::types::ColumnPath;
use serde_json::json;

use super::{START, all, row};
use crate::bounds::BATCH_BYTES;
use crate::columns::RowBatchBuilder;
use crate::plan::{CommonColumn, plan};
use crate::{Archive, ArchiveFileName, ArchiveListing, ArchiveRow, file};

const TOPIC: Topic = Topic::Decisions;

fn name(rows: i64) -> ArchiveFileName {
    ArchiveFileName { topic: TOPIC, partition: 0, first: 0, last: rows - 1, date: "2026-01-02".to_owned() }
}

fn decision(change: impl FnOnce(&mut ArchiveRow)) -> ArchiveRow {
    let mut decision = row(TOPIC, 0, 0, 0, &json!({"time": "2026-01-02T00:00:00Z", "reason": "short"}));
    change(&mut decision);
    decision
}

fn with_reason(bytes: usize) -> ArchiveRow {
    row(TOPIC, 0, 0, 0, &json!({"time": "2026-01-02T00:00:00Z", "reason": "a".repeat(bytes)}))
}

/// Returns the row at each of these offsets in this order of time, written as the archiver writes; it is in memory
/// once.
fn archive(row: &ArchiveRow, offsets: impl Iterator<Item = i64>) -> (tempfile::TempDir, Archive, ArchiveFileName) {
    let offsets: Vec<i64> = offsets.collect();
    let name = name(offsets.len() as i64);
    let (folder, archive) = stored(&name, &encoded(row, &name, offsets));
    (folder, archive, name)
}

fn encoded(row: &ArchiveRow, name: &ArchiveFileName, offsets: impl IntoIterator<Item = i64>) -> Bytes {
    let plan = plan(TOPIC);
    let mut builder = RowBatchBuilder::new(TOPIC);
    builder.push(&row.view(), row.header_views());
    let one = builder.take();
    let batches: Vec<RecordBatch> = offsets
        .into_iter()
        .zip(START..)
        .map(|(offset, time)| {
            let mut columns = one.columns().to_vec();
            columns[plan.common(CommonColumn::Offset)] = Arc::new(Int64Array::from(vec![offset]));
            let time = TimestampMicrosecondArray::from(vec![time]).with_timezone("UTC");
            columns[plan.common(CommonColumn::CeTime)] = Arc::new(time);
            RecordBatch::try_new(plan.schema.clone(), columns).unwrap()
        })
        .collect();
    file::encode(name, &batches, file::FileOrigin::default()).unwrap()
}

fn stored(name: &ArchiveFileName, bytes: &[u8]) -> (tempfile::TempDir, Archive) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name.path());
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
    let archive = Archive::folder(folder.path()).unwrap();
    (folder, archive)
}

fn refusal(archive: &Archive) -> String {
    // Without the rows, which are long.
    all(archive, TOPIC, 0).map(drop).unwrap_err().to_string()
}

#[test]
fn long_texts_are_read_in_small_batches_however_they_are_stored() {
    const LONG: usize = 128 << 10;
    let id = |row: &mut ArchiveRow| {
        for (_, value) in row.headers.iter_mut().filter(|(name, _)| **name == *header::ID) {
            *value = Bytes::from("a".repeat(LONG));
        }
    };
    let no_json = |row: &mut ArchiveRow| row.value = Some("a".repeat(LONG).into());
    for (stored, row) in [("dictionary", with_reason(LONG)), ("shared prefixes", decision(id)), ("pages", decision(no_json))] {
        let (folder, archive, name) = archive(&row, 0..600);
        let file_bytes = fs::metadata(folder.path().join(name.path())).unwrap().len();
        assert!(file_bytes < 1 << 20, "{stored}: {file_bytes}");
        let batches = archive.reader(&name).unwrap().batches().unwrap();
        let (mut rows, mut largest) = (0, 0);
        for batch in batches.map(Result::unwrap) {
            rows += batch.num_rows();
            largest = largest.max(batch.get_array_memory_size() as u64);
        }
        // Buffers double while they grow.
        assert!(rows == 600 && largest < 2 * BATCH_BYTES + (1 << 20), "{stored}: {rows} rows, {largest} bytes");
    }
}

#[test]
fn usual_rows_are_read_in_large_batches() {
    let (_folder, archive, name) = archive(&with_reason(400), 0..3000);
    let batches = archive.reader(&name).unwrap().batches().unwrap();
    assert_eq!(batches.map(|batch| batch.unwrap().num_rows()).collect::<Vec<_>>(), [1024, 1024, 952]);
}

#[test]
fn a_value_that_no_record_can_have_is_refused_with_file_column_and_row() {
    let (_folder, archive, name) = archive(&with_reason(BATCH_BYTES as usize), 0..1);
    let refused = refusal(&archive);
    assert!(refused.contains(&name.path()), "{refused}");
    assert!(refused.contains("column reason has values of 33554") && refused.contains(" from row 0 on"), "{refused}");
}

#[test]
fn rows_that_wait_for_others_are_bounded() {
    const LONG: usize = 1 << 20;
    let (_folder, archive, _) = archive(&with_reason(LONG), (0..300).rev());
    let refused = refusal(&archive);
    assert!(refused.contains("its rows are so far out of order"), "{refused}");
}

#[test]
fn texts_that_a_dictionary_repeats_are_bounded_by_the_length_of_the_file() {
    let (folder, archive, name) = archive(&with_reason(1 << 20), 0..600);
    let file_bytes = fs::metadata(folder.path().join(name.path())).unwrap().len();
    assert!(file_bytes < 100_000, "{file_bytes}");
    let rows = archive.rows(&archive.files().unwrap(), TOPIC, 0);
    let (mut read, mut refused) = (0, None);
    for row in rows {
        match row {
            Ok(_) => read += 1,
            Err(error) => refused = Some(error.to_string()),
        }
    }
    let refused = refused.unwrap();
    assert!(refused.contains("its rows have more than 536870912 bytes of texts") && refused.contains(&name.path()), "{refused}");
    assert!((480..512).contains(&read), "{read}");
}

#[test]
fn more_rows_than_a_file_has_bytes_for_are_refused() {
    const ROWS: i64 = 300_000;
    let plan = plan(TOPIC);
    let offset = plan.schema.field(plan.common(CommonColumn::Offset)).clone();
    let (name, schema) = (name(ROWS), Arc::new(Schema::new(vec![offset])));
    let entries = [("eadt.format", "1".to_owned()), ("eadt.place", name.path())];
    let properties = WriterProperties::builder()
        .set_dictionary_enabled(false)
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .set_encoding(Encoding::DELTA_BINARY_PACKED)
        .set_data_page_row_count_limit(usize::MAX)
        .set_key_value_metadata(Some(entries.map(|(key, value)| KeyValue::new(key.to_owned(), value)).to_vec()))
        .build();
    let mut writer = ArrowWriter::try_new(Vec::new(), schema.clone(), Some(properties)).unwrap();
    let offsets: ArrayRef = Arc::new(Int64Array::from_iter_values(0..ROWS));
    writer.write(&RecordBatch::try_new(schema, vec![offsets]).unwrap()).unwrap();
    let bytes = writer.into_inner().unwrap();
    assert!(bytes.len() < 4000, "{}", bytes.len());
    let (_folder, archive) = stored(&name, &bytes);
    let refused = refusal(&archive);
    assert!(refused.contains("rows in") && refused.contains(&name.path()), "{refused}");
}

#[test]
fn more_lengths_of_texts_than_values_are_refused() {
    let plan = plan(TOPIC);
    let offset = plan.schema.field(plan.common(CommonColumn::Offset)).clone();
    let reason = plan.schema.field_with_name("reason").unwrap().clone();
    let (name, schema) = (name(3), Arc::new(Schema::new(vec![offset, reason])));
    let entries = [("eadt.format", "1".to_owned()), ("eadt.place", name.path())];
    let properties = WriterProperties::builder()
        .set_dictionary_enabled(false)
        .set_column_encoding(ColumnPath::from("reason"), Encoding::DELTA_LENGTH_BYTE_ARRAY)
        .set_key_value_metadata(Some(entries.map(|(key, value)| KeyValue::new(key.to_owned(), value)).to_vec()))
        .build();
    let mut writer = ArrowWriter::try_new(Vec::new(), schema.clone(), Some(properties)).unwrap();
    let offsets: ArrayRef = Arc::new(Int64Array::from_iter_values(0..3));
    let reasons: ArrayRef = Arc::new(StringArray::from(vec!["short"; 3]));
    writer.write(&RecordBatch::try_new(schema, vec![offsets, reasons]).unwrap()).unwrap();
    let mut bytes = writer.into_inner().unwrap();
    // Blocks of 128 in four parts, three lengths, the first of them five.
    let header = bytes.windows(5).position(|bytes| bytes == [0x80, 1, 4, 3, 10]).unwrap();
    bytes[header + 3] = 100;
    let (_folder, archive) = stored(&name, &bytes);
    let refused = refusal(&archive);
    assert!(refused.contains("column \"reason\": the lengths of a page"), "{refused}");
}

#[test]
fn columns_within_columns_are_refused_however_deep() {
    // The version, and a schema of groups with one child each.
    let groups = 1_000_000_u32;
    let mut footer = vec![0x15, 4, 0x19, 0xfc, 0xc0, 0x84, 0x3d];
    for _ in 0..groups {
        footer.extend([0x35, 0, 0x18, 1, b'a', 0x15, 2, 0]);
    }
    footer.push(0);
    let mut deep = b"PAR1".to_vec();
    let length = (footer.len() as u32).to_le_bytes();
    for part in [&footer[..], &length, b"PAR1"] {
        deep.extend_from_slice(part);
    }
    let many = refused_schema(&deep);
    assert!(many.contains("it has 1000000 columns"), "{many}");
    // As many as are allowed, in each other.
    footer.drain(3..7);
    footer.splice(3..3, [0xfc, 0x80, 0x10]);
    footer.truncate(6 + 2048 * 8);
    footer.push(0);
    let length = (footer.len() as u32).to_le_bytes();
    let deep = [b"PAR1", &footer[..], &length, b"PAR1"].concat();
    let nested = refused_schema(&deep);
    assert!(nested.contains("columns within columns"), "{nested}");
}

fn refused_schema(bytes: &[u8]) -> String {
    let (_folder, archive) = stored(&name(1), bytes);
    let listed = archive.files().and_then(|listing| archive.newest(&listing)).unwrap_err().to_string();
    let read = refusal(&archive);
    assert_eq!(listed, read);
    read
}

/// Returns an archive with two files of so many rows, all like this one.
fn two_files(row: &ArchiveRow, rows: i64) -> (tempfile::TempDir, Archive, [ArchiveFileName; 2]) {
    let names = [0, rows].map(|first| ArchiveFileName { first, last: first + rows - 1, ..name(rows) });
    let (folder, archive) = stored(&names[0], &encoded(row, &names[0], 0..rows));
    fs::write(folder.path().join(names[1].path()), encoded(row, &names[1], rows..2 * rows)).unwrap();
    (folder, archive, names)
}

#[test]
fn texts_of_all_files_of_an_archive_are_bounded_together() {
    let (_folder, archive, names) = two_files(&with_reason(1 << 20), 300);
    let listing = archive.files().unwrap();
    let read = |file: usize| {
        let one = ArchiveListing { files: vec![listing.files[file].clone()], ..ArchiveListing::default() };
        archive.rows(&one, TOPIC, 0).try_for_each(|row| row.map(drop)).map_err(|error| error.to_string())
    };
    assert_eq!((read(0), read(0)), (Ok(()), Ok(())), "one that is read twice counts once");
    let refused = read(1).unwrap_err();
    assert!(refused.contains("with those of 1 of the files before it") && refused.contains(&names[1].path()), "{refused}");
}

#[test]
fn headers_longer_than_a_value_are_refused_with_their_event() {
    let long = decision(|row| row.headers.push((Arc::from("trace"), Bytes::from("a".repeat(1 << 20)))));
    let (_folder, archive, _) = archive(&long, 0..2);
    let read = crate::read_events::<Decision>(&archive, TOPIC).unwrap();
    assert_eq!(read.refused.iter().map(|(_, offset, _)| *offset).collect::<Vec<_>>(), [0, 1]);
    let detail = &read.refused[0].2.detail;
    assert!(detail.starts_with("headers of 10485") && detail.ends_with(" bytes are longer than 1048576"), "{detail}");
    let rows = all(&archive, TOPIC, 0).unwrap();
    assert_eq!(rows[0].header("trace").map(str::len), Some(1 << 20), "its record is whole");
}

/// Each file may have so many texts; together they would be more than a file of their length may have.
#[test]
fn files_whose_merged_file_would_be_refused_are_not_merged() {
    const ROWS: i64 = 200;
    let row = with_reason(1 << 20);
    let (_folder, archive, names) = two_files(&row, ROWS);
    let done = crate::compact(&archive, "2099-01-01", 1 << 40).unwrap();
    let left: Vec<ArchiveFileName> = archive.files().unwrap().files.into_iter().map(|file| file.name).collect();
    assert_eq!((done.files_before, done.files_after, &left[..]), (0, 0, &names[..]));
    // Short texts are merged.
    let row = with_reason(1 << 10);
    let (_folder, archive, _) = two_files(&row, ROWS);
    let done = crate::compact(&archive, "2099-01-01", 1 << 40).unwrap();
    assert_eq!((done.files_before, done.files_after), (2, 1));
}
