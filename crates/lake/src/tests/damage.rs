//! Archives that were damaged, or of which files are gone.

use std::fs;
use std::path::{Path, PathBuf};

use eadt_schemas::Topic;

use super::{all, telemetry, write_in_tens};
use crate::{Archive, ArchiveFileName, ArchiveWriter, RollLimits, compact};

const TOPIC: Topic = Topic::GpuTelemetry;

/// Returns an archive of one topic with two partitions, of three files each.
fn archive() -> (tempfile::TempDir, Archive, Vec<(ArchiveFileName, PathBuf)>) {
    let folder = tempfile::tempdir().unwrap();
    let archive = Archive::folder(folder.path()).unwrap();
    write_in_tens(&archive, 0..30);
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
    for flip in 0..1000 {
        let bit = flip * good.len() * 8 / 1000;
        let mut bad = good.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        fs::write(path, &bad).unwrap();
        let Err(error) = all(&archive, TOPIC, name.partition) else { panic!("bit {bit}") };
        assert!(error.to_string().contains(&name.path()), "{error}");
    }
    fs::write(path, &good[..good.len() / 2]).unwrap();
    all(&archive, TOPIC, name.partition).unwrap_err();
    fs::write(path, &good).unwrap();
    assert_eq!(all(&archive, TOPIC, name.partition).unwrap(), rows);
}

#[test]
fn a_file_whose_checksum_lost_its_key_is_damaged() {
    let (_folder, archive, files) = archive();
    let (name, path) = &files[0];
    let good = fs::read(path).unwrap();
    let key = good.windows(11).rposition(|window| window == b"eadt.crc32c").unwrap();
    for byte in key..key + 11 {
        let mut bad = good.clone();
        bad[byte] ^= 1;
        fs::write(path, &bad).unwrap();
        let error = all(&archive, TOPIC, name.partition).unwrap_err().to_string();
        assert!(error.contains(&name.path()) && error.contains("lacks the checksum"), "{error}");
    }
}

#[test]
fn what_is_no_file_is_named_and_not_read() {
    let (_folder, archive, files) = archive();
    let (name, path) = &files[0];
    fs::remove_file(path).unwrap();
    std::os::unix::fs::symlink("/dev/zero", path).unwrap();
    let error = archive.files().unwrap_err().to_string();
    assert!(error.contains(&name.path()) && error.contains("it is a device, not a file"), "{error}");
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
    // A writer that resumes at the end of the files writes records lost there again; records lost at the start stay
    // lost.
    let mut writer = ArchiveWriter::new(archive.clone(), RollLimits::default());
    for offset in 15..40 {
        let row = telemetry(1, offset, offset);
        writer.push(&row, row.stamp).unwrap();
    }
    writer.roll_all().unwrap();
    assert_eq!(lost(&archive), [(TOPIC, 1, 0, 14)]);
}

#[test]
fn a_partition_without_a_record_is_named_until_its_range_is_recorded() {
    let (folder, archive, _) = archive();
    let unrecorded = |archive: &Archive| {
        let listing = archive.files().unwrap();
        (listing.unrecorded.clone(), listing.lacks_records())
    };
    assert_eq!(unrecorded(&archive), (vec![], false));
    fs::remove_file(&records(folder.path())[1]).unwrap();
    assert_eq!(unrecorded(&archive), (vec![(TOPIC, 1)], false), "the other partition has one");
    fs::remove_dir_all(folder.path().join("_archived")).unwrap();
    assert_eq!(unrecorded(&archive), (vec![(TOPIC, 0), (TOPIC, 1)], true));
    assert_eq!(Archive::find_listed(folder.path()).unwrap().1.unrecorded.len(), 2);
    let other = Archive::folder(folder.path()).unwrap();
    assert_eq!((other.record_missing_extents().unwrap(), other.record_missing_extents().unwrap()), (2, 0));
    assert_eq!((unrecorded(&other), records(folder.path()).len()), ((vec![], false), 2));
    let files = other.files().unwrap().files;
    let last = files.last().unwrap().name.clone();
    fs::remove_file(folder.path().join(last.path())).unwrap();
    assert_eq!(lost(&other), [(TOPIC, last.partition, last.first, last.last)]);
    // If all files of a topic are gone, a record is left.
    fs::remove_dir_all(folder.path().join(format!("topic={TOPIC}"))).unwrap();
    assert_eq!(unrecorded(&other), (vec![], false));
}

/// Returns the records of an archive.
fn records(folder: &Path) -> Vec<PathBuf> {
    let mut records: Vec<_> = fs::read_dir(folder.join("_archived")).unwrap().map(|entry| entry.unwrap().path()).collect();
    records.sort();
    records
}

#[test]
fn the_folder_of_a_topic_that_is_gone_is_missed() {
    let (folder, archive, _) = archive();
    fs::remove_dir_all(folder.path().join(format!("topic={TOPIC}"))).unwrap();
    assert_eq!(lost(&archive), [(TOPIC, 0, 0, 29), (TOPIC, 1, 0, 29)]);
    let message = Archive::find(folder.path()).unwrap_err().to_string();
    let ranges = format!("it had {TOPIC} partition 0 offsets 0 to 29, {TOPIC} partition 1 offsets 0 to 29;");
    assert!(message.contains(&ranges), "{message}");
}

#[test]
fn a_record_where_earlier_versions_had_it_counts_until_the_next_file() {
    let (folder, archive, files) = archive();
    for record in records(folder.path()) {
        fs::remove_file(record).unwrap();
    }
    let former = folder.path().join(format!("topic={TOPIC}/_archived+0+{:020}-{:020}", 0, 29));
    fs::write(&former, "").unwrap();
    fs::remove_file(&files[2].1).unwrap();
    assert_eq!(lost(&archive), [(TOPIC, 0, 20, 29)]);
    let mut writer = ArchiveWriter::new(Archive::folder(folder.path()).unwrap(), RollLimits::default());
    for offset in 20..40 {
        let row = telemetry(0, offset, offset);
        writer.push(&row, row.stamp).unwrap();
    }
    writer.roll_all().unwrap();
    assert_eq!((records(folder.path()).len(), former.exists(), lost(&archive)), (1, false, vec![]));
}

#[test]
fn there_is_one_record_a_partition_and_one_that_was_deleted_begins_anew() {
    let (folder, archive, files) = archive();
    assert_eq!(records(folder.path()).len(), 2);
    // Old files are deleted on purpose, with the record, while an archiver runs.
    let of_first = |(name, _): &&(ArchiveFileName, PathBuf)| name.partition == 0;
    fs::remove_file(&files.iter().find(of_first).unwrap().1).unwrap();
    fs::remove_file(&records(folder.path())[0]).unwrap();
    assert_eq!(lost(&archive), []);
    let mut writer = ArchiveWriter::new(archive.clone(), RollLimits::default());
    let row = telemetry(0, 30, 30);
    writer.push(&row, row.stamp).unwrap();
    writer.roll_all().unwrap();
    assert_eq!((records(folder.path()).len(), lost(&archive)), (2, vec![]));
    let files = archive.files().unwrap().files;
    fs::remove_file(folder.path().join(files[0].name.path())).unwrap();
    assert_eq!(lost(&archive), [(TOPIC, 0, files[0].name.first, files[0].name.last)]);
}

#[test]
fn a_compaction_keeps_the_records_and_two_of_one_partition_are_the_wider_one() {
    let (folder, archive, files) = archive();
    for record in records(folder.path()) {
        fs::remove_file(record).unwrap();
    }
    let other = Archive::folder(folder.path()).unwrap();
    compact(&other, "2027-01-01", 1 << 30).unwrap();
    let compacted = other.files().unwrap().files;
    assert_eq!((files.len(), compacted.len(), records(folder.path()).len()), (6, 2, 2));
    fs::write(folder.path().join(format!("_archived/{TOPIC}+1+{:020}-{:020}", 5, 40)), "").unwrap();
    assert_eq!(lost(&archive), [(TOPIC, 1, 30, 40)]);
    fs::remove_file(folder.path().join(compacted[1].name.path())).unwrap();
    assert_eq!(lost(&archive), [(TOPIC, 1, 0, 40)]);
}
