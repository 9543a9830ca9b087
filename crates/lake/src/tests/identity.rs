//! Files of other archives in the place of an archive's own.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use eadt_schemas::Topic;

use super::{all, write_in_tens};
use crate::identity::FileOwner;
use crate::{Archive, ArchiveFileName, ArchiveRow, IdentityGaps, LakeError, compact};

const TOPIC: Topic = Topic::GpuTelemetry;

fn open(folder: &Path, new_id: Option<u128>) -> Archive {
    let archive = Archive::folder(folder).unwrap();
    match new_id {
        Some(id) => archive.with_new_id(id),
        None => archive,
    }
}

fn begin(new_id: Option<u128>) -> (tempfile::TempDir, Archive) {
    let folder = tempfile::tempdir().unwrap();
    let archive = open(folder.path(), new_id);
    write_in_tens(&archive, 0..20);
    (folder, archive)
}

fn names(archive: &Archive) -> Vec<ArchiveFileName> {
    archive.files().unwrap().files.into_iter().map(|file| file.name).collect()
}

/// Returns the ids in the footers of all files.
fn ids(archive: &Archive) -> BTreeSet<Option<String>> {
    let id = |name: &ArchiveFileName| match archive.reader(name).unwrap().owner() {
        FileOwner::Archive(id) => Some(id.clone()),
        FileOwner::NoArchive | FileOwner::Unknown => None,
    };
    names(archive).iter().map(id).collect()
}

fn hex(id: u128) -> String {
    format!("{id:032x}")
}

fn refused(read: crate::Result<Vec<ArchiveRow>>, name: &ArchiveFileName) -> String {
    let error = read.unwrap_err();
    assert!(matches!(&error, LakeError::OtherArchive { path, .. } if path.ends_with(&name.path())), "{error}");
    error.to_string()
}

#[test]
fn a_file_of_another_archive_is_refused_in_the_place_of_each_file() {
    let ((folder, archive), (other, _)) = (begin(Some(1)), begin(Some(2)));
    let rows = all(&archive, TOPIC, 0).unwrap();
    for name in names(&archive) {
        let path = folder.path().join(name.path());
        let own = fs::read(&path).unwrap();
        fs::copy(other.path().join(name.path()), &path).unwrap();
        let text = refused(all(&open(folder.path(), None), TOPIC, name.partition), &name);
        assert!(text.contains(&hex(1)) && text.contains(&hex(2)), "{text}");
        assert!(all(&archive, TOPIC, 1 - name.partition).is_ok(), "the other partition is whole");
        let is_newest = name.last == 19;
        assert_eq!(archive.next_offsets().is_err(), is_newest, "an archiver does not go on behind it");
        fs::write(&path, own).unwrap();
    }
    assert_eq!(all(&archive, TOPIC, 0).unwrap(), rows);
    // Nothing of it is merged.
    let before = names(&archive);
    fs::copy(other.path().join(before[0].path()), folder.path().join(before[0].path())).unwrap();
    let error = compact(&archive, "2027-01-01", 1 << 30).unwrap_err();
    assert!(matches!(error, LakeError::OtherArchive { .. }), "{error}");
    assert_eq!(names(&archive), before);
}

#[test]
fn without_a_record_of_the_id_the_files_must_agree() {
    let ((folder, archive), (other, _)) = (begin(Some(1)), begin(Some(2)));
    let name = names(&archive)[1].clone();
    fs::remove_dir_all(folder.path().join("_archived")).unwrap();
    assert!(all(&open(folder.path(), None), TOPIC, 0).is_ok());
    fs::copy(other.path().join(name.path()), folder.path().join(name.path())).unwrap();
    let text = refused(all(&open(folder.path(), None), TOPIC, 0), &name);
    assert!(text.contains(&names(&archive)[0].path()), "both files are named: {text}");
}

#[test]
fn an_archive_keeps_its_id() {
    let (folder, archive) = begin(Some(1));
    let one = BTreeSet::from([Some(hex(1))]);
    assert_eq!(ids(&archive), one);
    write_in_tens(&open(folder.path(), Some(2)), 20..40);
    compact(&open(folder.path(), None), "2027-01-01", 1 << 30).unwrap();
    assert_eq!((ids(&archive), names(&archive).len()), (one.clone(), 2));
    // A writer or a compaction without the record uses the ids in the files.
    fs::remove_dir_all(folder.path().join("_archived")).unwrap();
    let next = open(folder.path(), Some(3));
    next.newest(&next.files().unwrap()).unwrap();
    write_in_tens(&next, 40..60);
    assert_eq!(ids(&archive), one);
    fs::remove_dir_all(folder.path().join("_archived")).unwrap();
    open(folder.path(), None).record_missing_extents().unwrap();
    assert!(folder.path().join(format!("_archived/id+{}", hex(1))).exists());
}

/// In any order of reading.
#[test]
fn a_file_without_an_id_is_of_another_archive_than_files_with_one() {
    let ((folder, archive), (other, without)) = (begin(Some(1)), begin(None));
    assert_eq!(ids(&without), BTreeSet::from([None]));
    assert_eq!(all(&without, TOPIC, 0).unwrap().len(), 20);
    let name = names(&archive)[0].clone();
    let path = |folder: &tempfile::TempDir| folder.path().join(name.path());
    let own = fs::read(path(&folder)).unwrap();
    fs::copy(path(&other), path(&folder)).unwrap();
    let text = refused(all(&open(folder.path(), None), TOPIC, 0), &name);
    assert!(text.contains("it has no id, and this archive has the id"), "{text}");
    fs::remove_dir_all(folder.path().join("_archived")).unwrap();
    // Without a record, the next file is the one that differs.
    let text = refused(all(&open(folder.path(), None), TOPIC, 0), &names(&archive)[1]);
    assert!(text.contains(&name.path()) && text.contains("has none"), "{text}");
    // And the reverse.
    fs::write(path(&other), own).unwrap();
    let text = refused(all(&open(other.path(), None), TOPIC, 0), &names(&without)[1]);
    assert!(text.contains("it has no id, and") && text.contains(&hex(1)), "{text}");
}

#[test]
fn an_archive_without_an_id_stays_without_one() {
    let (folder, archive) = begin(None);
    let next = open(folder.path(), Some(1));
    next.newest(&next.files().unwrap()).unwrap();
    write_in_tens(&next, 20..40);
    compact(&open(folder.path(), Some(2)), "2027-01-01", 1 << 30).unwrap();
    assert_eq!(ids(&archive), BTreeSet::from([None]));
    assert_eq!(all(&open(folder.path(), None), TOPIC, 0).unwrap().len(), 40);
}

/// Makes a file one of an earlier version, which wrote neither an id nor a checksum.
fn make_earlier(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    for (text, other) in [("eadt version 2", "eadt version 1"), ("eadt.archive", "eadt.unknown"), ("eadt.crc32c", "eadt.others")]
    {
        let at = bytes.windows(text.len()).rposition(|window| window == text.as_bytes()).unwrap();
        bytes[at..at + text.len()].copy_from_slice(other.as_bytes());
    }
    fs::write(path, bytes).unwrap();
}

#[test]
fn files_of_earlier_versions_are_read_beside_others_and_noted() {
    let (folder, archive) = begin(Some(1));
    let name = names(&archive)[0].clone();
    make_earlier(&folder.path().join(name.path()));
    let read = open(folder.path(), None);
    assert_eq!(all(&read, TOPIC, 0).unwrap().len(), 20);
    let gaps = IdentityGaps { is_unrecorded: false, unidentified: BTreeSet::from([name.path()]) };
    assert_eq!(read.identity_gaps(), gaps);
    // The compacted files have the id.
    compact(&open(folder.path(), Some(2)), "2027-01-01", 1 << 30).unwrap();
    assert_eq!(ids(&archive), BTreeSet::from([Some(hex(1))]));
}

#[test]
fn a_missing_record_of_the_id_is_noticed_and_can_be_written_again() {
    let (folder, archive) = begin(Some(1));
    let record = folder.path().join(format!("_archived/id+{}", hex(1)));
    let is_unrecorded = |archive: &Archive| {
        all(archive, TOPIC, 0).unwrap();
        archive.identity_gaps().is_unrecorded
    };
    assert!(!is_unrecorded(&archive));
    fs::remove_file(&record).unwrap();
    let read = open(folder.path(), None);
    assert!(is_unrecorded(&read));
    assert_eq!((read.record_missing_id().unwrap(), read.record_missing_id().unwrap()), (true, false));
    assert!(record.exists() && !is_unrecorded(&open(folder.path(), None)));
    let (_folder, without) = begin(None);
    assert!(!is_unrecorded(&without) && !without.record_missing_id().unwrap());
}

/// Returns all files below a folder, with their bytes.
fn stored(folder: &Path) -> BTreeSet<(String, Vec<u8>)> {
    let records = fs::read_dir(folder.join("_archived")).unwrap().map(|entry| entry.unwrap().file_name());
    let records = records.map(|name| format!("_archived/{}", name.to_str().unwrap()));
    let paths = names(&open(folder, None)).into_iter().map(|name| name.path()).chain(records);
    paths.map(|path| (path.clone(), fs::read(folder.join(path)).unwrap())).collect()
}

#[test]
fn an_archive_whose_id_is_set_later_is_the_one_that_had_it_from_the_beginning() {
    let (early, _) = begin(Some(7));
    let (late, archive) = begin(Some(1));
    assert!(stored(early.path()) != stored(late.path()));
    archive.set_id(7).unwrap();
    assert!(stored(early.path()) == stored(late.path()), "every byte");
    for archive in [open(early.path(), None), archive] {
        write_in_tens(&archive, 20..30);
        assert_eq!((all(&archive, TOPIC, 0).unwrap().len(), ids(&archive)), (30, BTreeSet::from([Some(hex(7))])));
    }
    // Before there is a file.
    let folder = tempfile::tempdir().unwrap();
    let empty = open(folder.path(), Some(1));
    empty.set_id(8).unwrap();
    write_in_tens(&empty, 0..10);
    assert_eq!(ids(&empty), BTreeSet::from([Some(hex(8))]));
}

#[test]
fn archives_that_are_merged_with_their_records_are_one() {
    let ((folder, archive), (other, _)) = (begin(Some(1)), begin(Some(2)));
    let name = names(&archive)[3].clone();
    fs::copy(other.path().join(name.path()), folder.path().join(name.path())).unwrap();
    refused(all(&archive, TOPIC, 1), &name);
    let record = format!("_archived/id+{}", hex(2));
    fs::copy(other.path().join(&record), folder.path().join(&record)).unwrap();
    assert_eq!(all(&archive, TOPIC, 1).unwrap().len(), 20);
    // New files have one of the ids.
    write_in_tens(&open(folder.path(), Some(3)), 20..30);
    assert_eq!(ids(&archive), BTreeSet::from([Some(hex(1)), Some(hex(2))]));
}
