//! Archives that were damaged, or of which files are gone.

use std::fs;
use std::path::PathBuf;

use eadt_schemas::Topic;
use serde_json::json;

use super::{all, row, telemetry};
use crate::{Archive, FileName, Limits, Row, Writer, compact};

const TOPIC: Topic = Topic::GpuTelemetry;

/// An archive of one topic with two partitions, of three files each.
fn archive() -> (tempfile::TempDir, Archive, Vec<(FileName, PathBuf)>) {
    let folder = tempfile::tempdir().unwrap();
    let archive = Archive::folder(folder.path()).unwrap();
    let mut writer = Writer::new(archive.clone(), Limits { rows: 10, ..Limits::default() });
    for offset in 0..30 {
        for partition in 0..2 {
            let row = telemetry(partition, offset, offset);
            writer.push(&row, row.stamp).unwrap();
            while let Some((topic, partition)) = writer.due(row.stamp) {
                writer.roll(topic, partition).unwrap();
            }
        }
    }
    writer.roll_all().unwrap();
    let files = archive.files().unwrap().files;
    let files = files.into_iter().map(|file| (file.name.clone(), folder.path().join(file.name.path()))).collect();
    (folder, archive, files)
}

fn lost(archive: &Archive) -> Vec<(Topic, i32, i64, i64)> {
    archive.files().unwrap().missing().copied().collect()
}

#[test]
fn a_thousand_flipped_bits_change_no_row_unsaid() {
    let (_folder, archive, files) = archive();
    let (name, path) = &files[0];
    let good = fs::read(path).unwrap();
    let rows = all(&archive, TOPIC, name.partition).unwrap();
    let mut unharmed = 0;
    for flip in 0..1000 {
        let bit = flip * good.len() * 8 / 1000;
        let mut bad = good.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        fs::write(path, &bad).unwrap();
        match all(&archive, TOPIC, name.partition) {
            Err(error) => assert!(error.to_string().contains(&name.path()), "{error}"),
            // The name of the checksum itself: then nothing else is harmed.
            Ok(read) => {
                assert_eq!(read, rows, "bit {bit}");
                unharmed += 1;
            }
        }
    }
    assert!(unharmed < 10, "{unharmed}");
    fs::write(path, &good[..good.len() / 2]).unwrap();
    all(&archive, TOPIC, name.partition).unwrap_err();
    fs::write(path, &good).unwrap();
    assert_eq!(all(&archive, TOPIC, name.partition).unwrap(), rows);
}

#[test]
fn a_file_that_is_gone_is_missed_wherever_it_was() {
    let (_folder, archive, files) = archive();
    assert_eq!(lost(&archive), []);
    for (name, path) in &files {
        let bytes = fs::read(path).unwrap();
        fs::remove_file(path).unwrap();
        assert_eq!(lost(&archive), [(TOPIC, name.partition, name.first, name.last)]);
        fs::write(path, bytes).unwrap();
    }
    for (_, path) in files.iter().filter(|(name, _)| name.partition == 1) {
        fs::remove_file(path).unwrap();
    }
    assert_eq!(lost(&archive), [(TOPIC, 1, 0, 29)]);
    // Who goes on at the end of the files makes up for what was lost there; what is lost at the start stays so.
    let mut writer = Writer::new(archive.clone(), Limits::default());
    for offset in 15..40 {
        let row = telemetry(1, offset, offset);
        writer.push(&row, row.stamp).unwrap();
    }
    writer.roll_all().unwrap();
    assert_eq!(lost(&archive), [(TOPIC, 1, 0, 14)]);
}

#[test]
fn what_was_archived_is_recorded_for_an_archive_without_records_and_kept_by_a_compaction() {
    let (folder, archive, files) = archive();
    let records = [0, 1].map(|partition| folder.path().join(crate::extent::path(TOPIC, partition)));
    for record in &records {
        fs::remove_file(record).unwrap();
    }
    assert_eq!(lost(&archive), []);
    compact(&archive, "2027-01-01", 1 << 30).unwrap();
    let compacted = archive.files().unwrap().files;
    assert_eq!((files.len(), compacted.len()), (6, 2));
    fs::remove_file(folder.path().join(compacted[1].name.path())).unwrap();
    assert_eq!(lost(&archive), [(TOPIC, 1, 0, 29)]);
    fs::write(&records[0], "{\"first\":").unwrap();
    let error = archive.files().unwrap_err().to_string();
    assert!(error.contains("_archived+0.json") && error.contains("delete it"), "{error}");
}

#[test]
fn a_small_file_of_long_equal_texts_is_read_in_small_pieces() {
    let folder = tempfile::tempdir().unwrap();
    let archive = Archive::folder(folder.path()).unwrap();
    let mut writer = Writer::new(archive.clone(), Limits::default());
    let long = json!({"time": "2026-01-02T00:00:00Z", "reason": "a".repeat(512 << 10)});
    let rows: Vec<Row> = (0..400).map(|offset| row(Topic::Decisions, 0, offset, 0, &long)).collect();
    for row in &rows {
        writer.push(row, row.stamp).unwrap();
    }
    let written = writer.roll_all().unwrap();
    assert!(written[0].bytes < 1 << 20, "{}", written[0].bytes);
    let batches = archive.reader(&written[0].name).unwrap().batches().unwrap();
    let sizes: Vec<usize> = batches.map(|batch| batch.unwrap().get_array_memory_size()).collect();
    assert!(sizes.len() > 1 && sizes.iter().all(|bytes| *bytes < 160 << 20), "{sizes:?}");
}
