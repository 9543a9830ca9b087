//! Files of other archives in the place of an archive's own.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use eadt_schemas::Topic;

use super::{all, write_in_tens};
use crate::{Archive, ArchiveFileName, ArchiveRow, LakeError, compact};

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

/// The ids in the footers of all files.
fn ids(archive: &Archive) -> BTreeSet<Option<String>> {
    let id = |name: &ArchiveFileName| archive.reader(name).unwrap().archive_id().map(str::to_owned);
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
    // Whoever writes or compacts it without the record goes by the files.
    fs::remove_dir_all(folder.path().join("_archived")).unwrap();
    let next = open(folder.path(), Some(3));
    next.newest(&next.files().unwrap()).unwrap();
    write_in_tens(&next, 40..60);
    assert_eq!(ids(&archive), one);
    fs::remove_dir_all(folder.path().join("_archived")).unwrap();
    open(folder.path(), None).record_missing_extents().unwrap();
    assert!(folder.path().join(format!("_archived/id+{}", hex(1))).exists());
}

#[test]
fn files_without_an_id_are_read_beside_others() {
    let (folder, archive) = begin(None);
    assert_eq!(ids(&archive), BTreeSet::from([None]));
    write_in_tens(&open(folder.path(), Some(1)), 20..40);
    assert_eq!(ids(&archive), BTreeSet::from([None, Some(hex(1))]));
    assert_eq!(all(&archive, TOPIC, 0).unwrap().len(), 40);
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
