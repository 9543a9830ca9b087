use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use eadt_schemas::Topic;
use eadt_schemas::decode::decode;
use eadt_schemas::v1::{EfficiencyWindow, GpuTelemetry};
use serde_json::json;

use super::{all, row, telemetry, time};
use crate::bounds::LongTexts;
use crate::compact::encode_unsorted;
use crate::file::{ArchiveFileReader, ReadColumns};
use crate::store::ParquetInput;
use crate::{
    Archive, ArchiveFileName, ArchiveRow, ArchiveWriter, LakeError, RollLimits, WrittenFile, compact, compactable_bytes,
    read_events,
};

const TOPIC: Topic = Topic::GpuTelemetry;

fn small(rows: usize) -> RollLimits {
    RollLimits { rows, ..RollLimits::default() }
}

/// Writes rows with a roll whenever one is due; returns the files.
fn write(archive: &Archive, limits: RollLimits, rows: &[ArchiveRow]) -> Vec<WrittenFile> {
    let mut writer = ArchiveWriter::new(archive.clone(), limits);
    let mut written = Vec::new();
    for row in rows {
        writer.push(row, row.stamp).unwrap();
        while let Some((topic, partition)) = writer.due(row.stamp) {
            written.extend(writer.roll(topic, partition).unwrap());
        }
    }
    written.extend(writer.roll_all().unwrap());
    written
}

/// Returns the offsets that the log had deleted before this file was written.
fn deleted(archive: &Archive, name: &ArchiveFileName) -> Vec<(i64, i64)> {
    let listing = archive.files().unwrap();
    archive.about(listing.files.iter().find(|file| file.name == *name).unwrap()).unwrap().deleted
}

fn files(root: &Path) -> Vec<(String, Vec<u8>)> {
    let archive = Archive::folder(root).unwrap();
    let files = archive.files().unwrap().files;
    files.into_iter().map(|file| (file.name.path(), fs::read(root.join(file.name.path())).unwrap())).collect()
}

#[test]
fn ranges_adjoin_over_burnt_offsets_dates_and_deleted_ones() {
    let folder = tempfile::tempdir().unwrap();
    let archive = Archive::folder(folder.path()).unwrap();
    let mut writer = ArchiveWriter::new(archive.clone(), small(2));
    writer.start(TOPIC, 1, 5);
    let push = |writer: &mut ArchiveWriter, offset, at| writer.push(&telemetry(1, offset, at), time(at)).unwrap();
    push(&mut writer, 7, 1);
    assert_eq!(writer.due(time(1)), None);
    push(&mut writer, 8, 2);
    writer.advance_to(TOPIC, 1, 12);
    assert_eq!(writer.due(time(2)), Some((TOPIC, 1)));
    let first = writer.roll(TOPIC, 1).unwrap().unwrap();
    assert_eq!((first.name.first, first.name.last, first.rows), (5, 11, 2));
    // The log deleted 12 to 19; then the date changes, and does so again.
    writer.deleted(TOPIC, 1, 19);
    push(&mut writer, 20, 3);
    assert_eq!(writer.due(time(3)), None);
    push(&mut writer, 21, 86_400);
    push(&mut writer, 22, 2 * 86_400);
    assert_eq!((writer.rows(), writer.durable(TOPIC, 1), archive.files().unwrap().files.len()), (3, Some(12), 1));
    assert!(matches!(writer.push(&telemetry(1, 22, 2 * 86_400), time(0)), Err(LakeError::Order { expected: 23, .. })));
    assert_eq!(writer.due(time(3)), Some((TOPIC, 1)), "a file of an earlier date is due");
    let second = writer.roll(TOPIC, 1).unwrap().unwrap();
    assert_eq!((second.name.first, second.name.last, second.name.date.as_str()), (12, 20, "2026-01-02"));
    let [third, fourth] = &writer.roll_all().unwrap()[..] else { panic!("a file a date") };
    assert_eq!((third.name.first, third.name.last, third.name.date.as_str()), (21, 21, "2026-01-03"));
    assert_eq!((fourth.name.first, fourth.name.last, fourth.name.date.as_str()), (22, 22, "2026-01-04"));
    assert!(!writer.holds(TOPIC, 1));
    let listing = archive.files().unwrap();
    assert_eq!((listing.files.len(), listing.gaps.len(), listing.superseded.len()), (4, 0, 0));
    assert_eq!(archive.next_offsets().unwrap(), [((TOPIC, 1), 23)].into());
    assert_eq!(deleted(&archive, &second.name), [(12, 19)]);
    let expected = [(7, 1), (8, 2), (20, 3), (21, 86_400), (22, 2 * 86_400)].map(|(offset, at)| telemetry(1, offset, at));
    assert_eq!(all(&archive, TOPIC, 1).unwrap(), expected);
}

#[test]
fn offsets_that_the_log_deleted_belong_to_the_file_before_which_they_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let archive = Archive::folder(folder.path()).unwrap();
    let mut writer = ArchiveWriter::new(archive.clone(), RollLimits::default());
    writer.start(TOPIC, 1, 0);
    writer.push(&telemetry(1, 0, 1), time(1)).unwrap();
    // Records behind the read ones are not deleted again.
    writer.deleted(TOPIC, 1, 0);
    writer.deleted(TOPIC, 1, 1);
    writer.deleted(TOPIC, 1, 9);
    writer.deleted(TOPIC, 2, 9);
    let file = writer.roll(TOPIC, 1).unwrap().unwrap();
    assert_eq!((file.name.first, file.name.last), (0, 9));
    assert_eq!((writer.durable(TOPIC, 1), writer.position(TOPIC, 1)), (Some(10), Some(10)));
    writer.push(&telemetry(1, 20, 1), time(1)).unwrap();
    assert_eq!((writer.durable(TOPIC, 1), writer.position(TOPIC, 1)), (Some(10), Some(21)));
    assert_eq!(deleted(&archive, &file.name), [(1, 1), (2, 9)]);
    assert!(matches!(writer.push(&telemetry(1, 20, 1), time(1)), Err(LakeError::Order { expected: 21, .. })));
    assert_eq!((writer.durable(TOPIC, 2), writer.position(TOPIC, 2)), (None, None), "it was not started");
}

#[test]
fn a_date_ends_in_the_same_place_for_everybody_who_reads_it() {
    let folder = tempfile::tempdir().unwrap();
    let archive = Archive::folder(folder.path()).unwrap();
    let [with_end, without_end] = [Some(3), None].map(|end| {
        let mut writer = ArchiveWriter::new(archive.clone(), RollLimits::default());
        writer.start(TOPIC, 0, 0);
        writer.push(&telemetry(0, 0, 1), time(1)).unwrap();
        // Offsets 1 and 2 have no record; only one of the two knew for a while where the log ended.
        if let Some(end) = end {
            writer.advance_to(TOPIC, 0, end);
        }
        writer.push(&telemetry(0, 5, 86_400), time(1)).unwrap();
        writer.roll(TOPIC, 0).unwrap().unwrap()
    });
    assert_eq!((with_end.name.first, with_end.name.last), (0, 4));
    assert_eq!(with_end, without_end);
}

#[test]
fn who_is_refused_once_a_file_is_encoded_writes_nothing_and_may_try_again() {
    let folder = tempfile::tempdir().unwrap();
    let archive = Archive::folder(folder.path()).unwrap();
    let mut writer = ArchiveWriter::new(archive.clone(), RollLimits::default());
    writer.push(&telemetry(0, 0, 0), time(0)).unwrap();
    let refused = || Err(LakeError::Location { location: "lost".to_owned(), detail: "it is another's".to_owned() });
    assert!(matches!(writer.roll_if(TOPIC, 0, refused), Err(LakeError::Location { .. })));
    assert_eq!((archive.files().unwrap().files.len(), writer.durable(TOPIC, 0), writer.rows()), (0, Some(0), 1));
    // Records in between belong to the next file.
    writer.push(&telemetry(0, 1, 1), time(1)).unwrap();
    let written = writer.roll_all().unwrap();
    assert_eq!(written.iter().map(|file| (file.name.first, file.name.last)).collect::<Vec<_>>(), [(0, 0), (1, 1)]);
    assert_eq!(all(&archive, TOPIC, 0).unwrap(), [telemetry(0, 0, 0), telemetry(0, 1, 1)]);
}

#[test]
fn files_are_due_by_age_and_by_memory() {
    let folder = tempfile::tempdir().unwrap();
    let archive = Archive::folder(folder.path()).unwrap();
    let mut writer = ArchiveWriter::new(archive.clone(), RollLimits { age_micros: 10_000_000, ..RollLimits::default() });
    writer.push(&telemetry(0, 0, 0), time(100)).unwrap();
    assert_eq!((writer.due(time(109)), writer.due(time(110))), (None, Some((TOPIC, 0))));
    let mut writer = ArchiveWriter::new(archive.clone(), RollLimits { total_bytes: 20_000, ..RollLimits::default() });
    for offset in 0..1_000 {
        let partition = i32::from(offset % 3 == 0);
        writer.push(&telemetry(partition, offset, 0), time(0)).unwrap();
        if let Some(at) = writer.due(time(0)) {
            assert!(writer.bytes() >= 20_000);
            assert_eq!(at, (TOPIC, 0), "the largest goes first");
            return;
        }
    }
    panic!("memory was never due at {} bytes", writer.bytes());
}

#[test]
fn rows_lie_sorted_by_time_and_come_back_by_offset() {
    let folder = tempfile::tempdir().unwrap();
    let archive = Archive::folder(folder.path()).unwrap();
    // Two collectors whose events interleave, one of them 50 s behind.
    let late = |offset: i64| 1_000 + offset / 10 - (offset % 2) * 50;
    let stamped = |offset| ArchiveRow { stamp: time(1_000 + offset / 10), ..telemetry(0, offset, late(offset)) };
    let rows: Vec<ArchiveRow> = (0..40_000).map(stamped).collect();
    let limits = RollLimits { age_micros: i64::MAX, ..RollLimits::default() };
    assert_eq!(write(&archive, limits, &rows).len(), 1);
    let name = archive.files().unwrap().files[0].name.clone();
    let mut times: Vec<i64> = Vec::new();
    for batch in archive.reader(&name).unwrap().batches().unwrap() {
        use arrow::array::AsArray;
        let batch = batch.unwrap();
        let column = batch.column_by_name("time").unwrap();
        times.extend(column.as_primitive::<arrow::datatypes::TimestampMicrosecondType>().values());
    }
    assert!(times.is_sorted() && times.len() == rows.len());
    assert_eq!(all(&archive, TOPIC, 0).unwrap(), rows);
}

#[test]
fn equal_rows_give_equal_files() {
    let rows: Vec<ArchiveRow> =
        (0..5_000).map(|offset| telemetry((offset % 2) as i32, offset, 86_000 + offset / 10 - offset % 7)).collect();
    let once = tempfile::tempdir().unwrap();
    let twice = tempfile::tempdir().unwrap();
    for folder in [&once, &twice] {
        write(&Archive::folder(folder.path()).unwrap(), small(700), &rows);
    }
    let (a, b) = (files(once.path()), files(twice.path()));
    assert!(a.len() > 4);
    assert_eq!(a, b);
}

#[test]
fn merged_rows_are_in_order_of_their_stamps() {
    let folder = tempfile::tempdir().unwrap();
    let archive = Archive::folder(folder.path()).unwrap();
    let mut rows: Vec<ArchiveRow> = (0..200).map(|offset| telemetry((offset % 3) as i32, offset, offset)).collect();
    rows.extend((0..50).map(|offset| row(Topic::Workloads, 0, offset, offset * 4, &json!({"workload": "a/b"}))));
    write(&archive, small(30), &rows);
    let listing = archive.files().unwrap();
    let merged: Vec<ArchiveRow> = archive.merged(&listing, &[Topic::Workloads, TOPIC]).collect::<Result<_, _>>().unwrap();
    assert_eq!(merged.len(), 250);
    assert!(merged.is_sorted_by_key(|row| (row.stamp, row.topic != Topic::Workloads, row.partition, row.offset)));
}

#[test]
fn other_peoples_files_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let archive = Archive::folder(folder.path()).unwrap();
    write(&archive, RollLimits::default(), &[telemetry(0, 0, 0), telemetry(0, 1, 0)]);
    let (good, bytes) = files(folder.path()).remove(0);
    let good = folder.path().join(good);
    let refused = |what: &str| {
        let error = archive.files().map(drop).and_then(|()| all(&archive, TOPIC, 0).map(drop)).unwrap_err();
        assert!(error.to_string().contains(what), "{error}");
        error
    };
    let foreign = good.with_file_name("part-0.parquet");
    fs::write(&foreign, b"PAR1").unwrap();
    assert!(matches!(refused("part-0.parquet"), LakeError::Foreign { .. }));
    fs::remove_file(&foreign).unwrap();
    // Under another name than it was written as.
    let other = good.with_file_name("gpu.telemetry.v1+0+00000000000000000002-00000000000000000003.parquet");
    fs::copy(&good, &other).unwrap();
    assert!(matches!(refused("it was written as"), LakeError::Misnamed { .. }));
    fs::remove_file(&other).unwrap();
    // Cut off, and overwritten in the middle.
    fs::write(&good, &bytes[..bytes.len() / 2]).unwrap();
    assert!(matches!(refused("damaged"), LakeError::Damaged { .. }));
    let mut torn = bytes.clone();
    torn[8..200].fill(0x55);
    fs::write(&good, &torn).unwrap();
    assert!(matches!(refused("damaged"), LakeError::Damaged { .. }));
    fs::write(&good, &bytes).unwrap();
    assert_eq!(all(&archive, TOPIC, 0).unwrap().len(), 2);
    fs::create_dir(folder.path().join("topic=mine")).unwrap();
    fs::create_dir(folder.path().join("topic=mine/date=2026-01-02")).unwrap();
    fs::copy(&good, folder.path().join("topic=mine/date=2026-01-02/a.parquet")).unwrap();
    assert!(matches!(refused("topic=mine"), LakeError::Foreign { .. }));
}

#[test]
fn gaps_and_overlaps_are_named_and_covered_files_are_ignored() {
    let folder = tempfile::tempdir().unwrap();
    let archive = Archive::folder(folder.path()).unwrap();
    let rows: Vec<ArchiveRow> = (0..9).map(|offset| telemetry(0, offset, 0)).collect();
    let written = write(&archive, small(3), &rows);
    assert_eq!(written.len(), 3);
    let middle = folder.path().join(written[1].name.path());
    let kept = fs::read(&middle).unwrap();
    fs::remove_file(&middle).unwrap();
    assert_eq!(archive.files().unwrap().gaps, [(TOPIC, 0, 3, 5)]);
    assert!(archive.next_offsets().unwrap_err().to_string().contains("lacks offsets 3 to 5"));
    fs::write(&middle, kept).unwrap();
    // Inside another file's range: superseded.
    let mut writer = ArchiveWriter::new(archive.clone(), RollLimits::default());
    rows[3..5].iter().for_each(|row| writer.push(row, row.stamp).unwrap());
    writer.roll_all().unwrap();
    let listing = archive.files().unwrap();
    assert_eq!((listing.files.len(), listing.superseded.len()), (3, 1));
    assert_eq!(all(&archive, TOPIC, 0).unwrap(), rows);
    assert_eq!(archive.sweep().unwrap(), 1);
    assert_eq!(archive.files().unwrap().superseded, []);
    // Across two files: an error that names both.
    let mut writer = ArchiveWriter::new(archive.clone(), RollLimits::default());
    rows[4..8].iter().for_each(|row| writer.push(row, row.stamp).unwrap());
    writer.roll_all().unwrap();
    let error = archive.files().unwrap_err();
    assert!(matches!(&error, LakeError::Overlap { first, second } if first != second), "{error}");
}

/// Renames a file of the archive to another range, partition or topic.
fn rename(root: &Path, from: &ArchiveFileName, to: &ArchiveFileName) {
    let to = root.join(to.path());
    fs::create_dir_all(to.parent().unwrap()).unwrap();
    fs::rename(root.join(from.path()), to).unwrap();
}

#[test]
fn a_renamed_file_is_never_ignored_swept_or_gone_on_from() {
    let folder = tempfile::tempdir().unwrap();
    let archive = Archive::folder(folder.path()).unwrap();
    let rows: Vec<ArchiveRow> = (0..12).map(|offset| telemetry(0, offset, 0)).collect();
    let names: Vec<ArchiveFileName> = write(&archive, small(3), &rows).into_iter().map(|file| file.name).collect();
    let last = names[3].clone();
    let misnamed = [
        ("into a range that another file covers", ArchiveFileName { first: 3, last: 4, ..last.clone() }),
        ("over the range of others", ArchiveFileName { first: 0, last: 11, ..last.clone() }),
        ("further on", ArchiveFileName { first: 9, last: 300, ..last.clone() }),
        ("back", ArchiveFileName { first: 9, last: 10, ..last.clone() }),
        ("to another partition", ArchiveFileName { partition: 1, ..last.clone() }),
        ("to another day", ArchiveFileName { date: "2026-01-03".to_owned(), ..last.clone() }),
    ];
    for (what, wrong) in misnamed {
        rename(folder.path(), &last, &wrong);
        for (act, outcome) in [
            ("goes on", archive.next_offsets().map(drop)),
            ("sweeps", archive.sweep().map(drop).and_then(|()| archive.next_offsets().map(drop))),
            ("compacts", compact(&archive, "2027-01-01", 1 << 30).map(drop).and_then(|()| archive.next_offsets().map(drop))),
        ] {
            let error = outcome.expect_err(&format!("{what}: {act}"));
            let message = error.to_string();
            assert!(matches!(error, LakeError::Misnamed { .. }), "{what}: {act}: {message}");
            assert!(
                message.contains(&wrong.path()) && message.contains(&format!("it was written as {}", last.path())),
                "{what}: {message}"
            );
        }
        // The remedy of the message: its own name back.
        rename(folder.path(), &wrong, &last);
        assert_eq!(all(&archive, TOPIC, 0).unwrap(), rows, "{what}: nothing is lost");
    }
}

#[test]
fn a_file_whose_rows_contradict_its_name_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let archive = Archive::folder(folder.path()).unwrap();
    let rows: Vec<ArchiveRow> = (0..6).map(|offset| telemetry(0, offset, 0)).collect();
    let name = write(&archive, RollLimits::default(), &rows)[0].name.clone();
    let batches: Vec<_> = archive.reader(&name).unwrap().batches().unwrap().map(Result::unwrap).collect();
    // Its metadata agrees with its name; its rows do not.
    for (wrong, what) in [
        (ArchiveFileName { first: 1, ..name.clone() }, "it has offsets 0 to 5"),
        (ArchiveFileName { last: 4, ..name.clone() }, "it has offsets 0 to 5"),
        (ArchiveFileName { partition: 3, ..name.clone() }, "it has partitions 0 to 0"),
    ] {
        fs::remove_file(folder.path().join(name.path())).ok();
        archive.create(&wrong, crate::file::encode(&wrong, &batches, crate::file::FileOrigin::default()).unwrap()).unwrap();
        let error = archive.next_offsets().unwrap_err();
        assert!(matches!(&error, LakeError::Misnamed { detail, .. } if detail == what), "{error}");
        fs::remove_file(folder.path().join(wrong.path())).unwrap();
    }
}

#[test]
fn a_superseded_file_stays_while_its_rows_are_nowhere_else() {
    let folder = tempfile::tempdir().unwrap();
    let archive = Archive::folder(folder.path()).unwrap();
    // A log with a burnt offset 4, and a file of ours of that very offset: of another log.
    let rows: Vec<ArchiveRow> = [0, 1, 2, 3, 5, 6].map(|offset| telemetry(0, offset, 0)).to_vec();
    let whole = write(&archive, RollLimits::default(), &rows)[0].name.clone();
    let other = write(&archive, RollLimits::default(), &[telemetry(0, 4, 0)])[0].name.clone();
    let error = archive.sweep().unwrap_err();
    assert!(matches!(&error, LakeError::Uncovered { offset: 4, .. }), "{error}");
    let message = error.to_string();
    assert!(message.contains(&whole.path()) && message.contains(&other.path()), "{message}");
    assert!(folder.path().join(other.path()).exists());
}

#[test]
fn files_name_their_newest_row() {
    let folder = tempfile::tempdir().unwrap();
    let archive = Archive::folder(folder.path()).unwrap();
    // The newest row is not the last by time.
    let rows = [telemetry(0, 0, 50), telemetry(0, 1, 10), telemetry(1, 0, 5)];
    write(&archive, RollLimits::default(), &rows);
    let newest = archive.newest(&archive.files().unwrap()).unwrap();
    assert_eq!(newest[&(TOPIC, 0)], Some((1, rows[1].stamp)));
    assert_eq!(newest[&(TOPIC, 1)], Some((0, rows[2].stamp)));
}

#[test]
fn compaction_makes_one_file_of_many_and_leaves_today_alone() {
    let folder = tempfile::tempdir().unwrap();
    let archive = Archive::folder(folder.path()).unwrap();
    let rows: Vec<ArchiveRow> = (0..60).map(|offset| telemetry(0, offset, offset * 2_000)).collect();
    let before = write(&archive, small(5), &rows);
    let today = before.iter().filter(|file| file.name.date == "2026-01-03").count();
    let done = compact(&archive, "2026-01-03", 128 << 20).unwrap();
    assert_eq!((done.files_before, done.files_after, done.rows), ((before.len() - today) as u64, 1, 44));
    let listing = archive.files().unwrap();
    let made = listing.files.iter().find(|file| file.name.date == "2026-01-02").unwrap();
    assert!(done.bytes_after == made.bytes && done.bytes_after < done.bytes_before);
    assert_eq!(all(&archive, TOPIC, 0).unwrap(), rows);
    assert_eq!(archive.files().unwrap().files.len(), 1 + today);
    assert_eq!(compact(&archive, "2026-01-03", 128 << 20).unwrap(), crate::CompactionSummary::default());
    // A small target leaves files that would grow past it.
    let done = compact(&archive, "2027-01-01", 1).unwrap();
    assert_eq!(done, crate::CompactionSummary::default());
}

/// Files whose times overlap, are apart and are partly absent, of several batches each: merged row by row, a file has the same rows in
/// the same order as one that is sorted in memory.
#[test]
fn a_merge_row_by_row_has_the_rows_of_one_in_memory() {
    let rows = |at: fn(i64) -> i64| {
        let row = move |offset: i64| {
            let row = telemetry(0, offset, at(offset));
            // Records of others have no event time, and count with the time of their appending.
            if offset % 97 == 5 { ArchiveRow { headers: Vec::new(), ..row } } else { row }
        };
        (0..9_000).map(row).collect::<Vec<ArchiveRow>>()
    };
    for (what, rows) in [
        ("in order", rows(|offset| offset)),
        ("overlapping", rows(|offset| offset + offset * 7919 % 3_500)),
        ("backwards", rows(|offset| 20_000 - offset)),
        ("one time", rows(|_| 5)),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let archive = Archive::folder(folder.path()).unwrap();
        let written = write(&archive, RollLimits { age_micros: 1 << 50, ..small(2_100) }, &rows);
        let group = archive.files().unwrap().files;
        assert_eq!((written.len(), group.len()), (5, 5), "{what}");
        for file in &group {
            let least =
                rows[file.name.first as usize..=file.name.last as usize].iter().map(|row| row.stamp.micros()).min().unwrap();
            let about = archive.about(file).unwrap();
            assert!(
                (least - 3_000..=least).contains(&about.least_time) && !about.timed,
                "{what}: {} of {least}",
                about.least_time
            );
        }
        let name = ArchiveFileName { last: 8_999, ..group[0].name.clone() };
        let expected = encode_unsorted(&archive, &name, &group, crate::file::FileOrigin::default()).unwrap().0;
        let done = compact(&archive, "2027-01-01", 128 << 20).unwrap();
        assert_eq!((done.files_before, done.files_after, done.rows), (5, 1, 9_000), "{what}");
        let batches = |reader: ArchiveFileReader| {
            let batches: Vec<_> = reader.batches().unwrap().map(Result::unwrap).collect();
            arrow::compute::concat_batches(&batches[0].schema(), &batches).unwrap()
        };
        let expected = batches(ArchiveFileReader::open(&name, ParquetInput::Bytes(expected), LongTexts::default()).unwrap());
        assert_eq!(batches(archive.reader(&name).unwrap()), expected, "{what}");
        assert_eq!(all(&archive, TOPIC, 0).unwrap(), rows, "{what}");
        for most in [1, 7, 1_000] {
            let (mut stored, mut read) = (archive.stored_runs(&archive.files().unwrap(), TOPIC, 0), Vec::new());
            while let Some(run) = stored.next_run(most) {
                let run = run.unwrap();
                assert!((1..=most).contains(&run.len()), "{what}");
                read.extend(run.rows().map(|row| stored.row(&row).unwrap()));
            }
            let event = |row: &ArchiveRow| (row.offset, row.stamp, row.key.clone(), row.value.clone(), row.kind());
            assert_eq!(read.len(), rows.len(), "{what}, {most} at a time");
            for (read, row) in read.iter().zip(&rows) {
                assert_eq!(event(read), event(row), "{what}, {most} at a time");
            }
        }
        let newest = archive.newest(&archive.files().unwrap()).unwrap()[&(TOPIC, 0)];
        assert_eq!(newest, Some((8_999, rows[8_999].stamp)), "{what}");
    }
}

/// Columns that a verified file has no values in are not read.
#[test]
fn columns_without_values_in_one_file_are_read_in_the_next() {
    let folder = tempfile::tempdir().unwrap();
    let archive = Archive::folder(folder.path()).unwrap();
    let rows: Vec<ArchiveRow> = (0..12)
        .map(|offset| {
            let mut event = json!({"time": format!("2026-01-02T00:00:{offset:02}Z"), "device": "GPU-1", "collector": "c"});
            // Each file of four rows has other columns, of each type.
            let (name, value) =
                [("power_watts", json!(300.5)), ("node", json!("n")), ("gpu_index", json!(offset))][offset as usize / 4].clone();
            event[name] = value;
            row(TOPIC, 0, offset, offset, &event)
        })
        .collect();
    write(&archive, small(4), &rows);
    let listing = archive.files().unwrap();
    assert_eq!(listing.files.len(), 3);
    let (mut stored, mut read) = (archive.stored_runs(&listing, TOPIC, 0), Vec::new());
    while let Some(run) = stored.next_run(100) {
        let run = run.unwrap();
        let mut events = vec![GpuTelemetry::default(); run.len()];
        assert_eq!(run.telemetry(&mut events.iter_mut().collect::<Vec<_>>()), vec![true; run.len()]);
        read.extend(events);
    }
    let expected: Vec<GpuTelemetry> = rows.iter().map(|row| decode(row.value.as_deref().unwrap()).unwrap()).collect();
    assert_eq!(read, expected);
}

/// A file without a checksum may have a wrong footer; rows that a compaction does not read are lost.
#[test]
fn null_counts_are_trusted_of_verified_files_and_never_where_all_columns_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let archive = Archive::folder(folder.path()).unwrap();
    let written = write(&archive, small(4), &[telemetry(0, 0, 0)]);
    let name = &written[0].name;
    let trusts = |columns| archive.reader(name).unwrap().batches_of(columns).unwrap().trusts_counts;
    assert!(trusts(ReadColumns::WithoutEnvelope) && !trusts(ReadColumns::All));
    // As if written by a version without checksums: the names of the entry and of the writer are others.
    let path = folder.path().join(name.path());
    let mut bytes = fs::read(&path).unwrap();
    let key = bytes.windows(11).rposition(|window| window == b"eadt.crc32c").unwrap();
    bytes[key + 10] = b'x';
    let writer = bytes.windows(14).rposition(|window| window == b"eadt version 2").unwrap();
    bytes[writer + 13] = b'0';
    fs::write(&path, bytes).unwrap();
    assert!(!trusts(ReadColumns::WithoutEnvelope) && !trusts(ReadColumns::All));
    assert_eq!(all(&archive, TOPIC, 0).unwrap(), [telemetry(0, 0, 0)]);
}

#[test]
fn what_several_compactions_left_is_swept_each_by_the_file_that_covers_it() {
    let folder = tempfile::tempdir().unwrap();
    let archive = Archive::folder(folder.path()).unwrap();
    let rows: Vec<ArchiveRow> = (0..2)
        .flat_map(|partition| (0..12).map(move |offset| telemetry(partition, 40 * i64::from(partition) + offset, offset)))
        .collect();
    write(&archive, small(4), &rows);
    let before = files(folder.path());
    compact(&archive, "2027-01-01", 1 << 20).unwrap();
    // As if it had been killed before it deleted anything.
    for (path, bytes) in &before {
        fs::write(folder.path().join(path), bytes).unwrap();
    }
    assert_eq!(archive.files().unwrap().superseded.len(), before.len());
    assert_eq!(archive.sweep().unwrap(), before.len() as u64);
    assert_eq!((archive.files().unwrap().files.len(), archive.files().unwrap().superseded.len()), (2, 0));
    let left: Vec<ArchiveRow> = (0..2).flat_map(|partition| all(&archive, TOPIC, partition).unwrap()).collect();
    assert_eq!(left, rows);
}

#[test]
fn files_have_the_range_of_what_people_look_for_and_not_of_other_texts() {
    let folder = tempfile::tempdir().unwrap();
    let archive = Archive::folder(folder.path()).unwrap();
    let written = write(&archive, RollLimits::default(), &[telemetry(0, 0, 0), telemetry(0, 1, 1)]);
    let bytes = bytes::Bytes::from(fs::read(folder.path().join(written[0].name.path())).unwrap());
    let metadata = parquet::file::metadata::ParquetMetaDataReader::new().parse_and_finish(&bytes).unwrap();
    let ranges: Vec<String> = metadata.row_groups()[0]
        .columns()
        .iter()
        .filter(|chunk| chunk.statistics().is_some_and(|statistics| statistics.min_bytes_opt().is_some()))
        .map(|chunk| chunk.column_path().string())
        .collect();
    for (column, expected) in [
        ("kafka_key", true),
        ("workload", true),
        ("device", true),
        ("kafka_offset", true),
        ("ce_time", true),
        ("power_watts", true),
        ("ce_id", false),
        ("ce_source", false),
        ("collector", false),
    ] {
        assert_eq!(ranges.iter().any(|name| name == column), expected, "{column}: {ranges:?}");
    }
}

#[test]
fn an_object_store_takes_each_file_once() {
    let archive = Archive::open("memory:///eadt/archive").unwrap();
    assert_eq!(archive.place(), "memory:///eadt/archive");
    let rows: Vec<ArchiveRow> = (0..20).map(|offset| telemetry(0, offset, offset)).collect();
    let written = write(&archive, small(6), &rows);
    assert_eq!(all(&archive, TOPIC, 0).unwrap(), rows);
    // The same again is accepted, other content under the same name is not.
    let name = &written[0].name;
    let bytes = bytes::Bytes::from_static(b"other");
    assert!(matches!(archive.create(name, bytes), Err(LakeError::Conflict { .. })));
    let mut writer = ArchiveWriter::new(archive.clone(), RollLimits::default());
    rows[..6].iter().for_each(|row| writer.push(row, row.stamp).unwrap());
    assert_eq!(writer.roll_all().unwrap()[0], written[0]);
    compact(&archive, "2027-01-01", 1 << 20).unwrap();
    assert_eq!(archive.files().unwrap().files.len(), 1);
    assert_eq!(all(&archive, TOPIC, 0).unwrap(), rows);
}

#[test]
fn unusable_places_give_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "x").unwrap();
    let text = |location: &str| Archive::open(location).unwrap_err().to_string();
    assert!(text(file.to_str().unwrap()).contains("it is a file"));
    assert!(text("").contains("empty"));
    assert!(text("nonsense://x y").contains("cannot use"));
    if cfg!(not(feature = "object-stores")) {
        assert!(text("s3://bucket/x").contains("object-stores"));
    }
    assert!(Archive::find(folder.path()).unwrap_err().to_string().contains("no Parquet files"));
    // An absent folder is an empty archive until something is written.
    let absent = Archive::folder(&folder.path().join("a/b/c")).unwrap();
    assert!(absent.next_offsets().unwrap().is_empty());
    write(&absent, RollLimits::default(), &[telemetry(0, 0, 0)]);
    assert_eq!(absent.next_offsets().unwrap(), [((TOPIC, 0), 1)].into());
}

#[test]
fn windows_come_back_typed() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("archive");
    let archive = Archive::folder(&root).unwrap();
    let window = |n: i64| EfficiencyWindow {
        id: format!("w{n}"),
        workload: "ns/job".to_owned(),
        window_start: time(n * 60),
        window_end: time(n * 60 + 60),
        energy_joules: Some(n as f64 / 3.0),
        ..EfficiencyWindow::default()
    };
    let mut rows: Vec<ArchiveRow> = (0..5).map(|n| row(Topic::EfficiencyWindows, 0, n, n * 60, &window(n))).collect();
    rows.push(row(Topic::EfficiencyWindows, 0, 5, 300, &json!({"id": "", "workload": "ns/job"})));
    let mut tombstone = row(Topic::EfficiencyWindows, 0, 6, 300, &json!({}));
    tombstone.value = None;
    rows.push(tombstone);
    // Records of other programs are counted by their types, heartbeats and tombstones are not.
    let of_type = |offset: i64, kind: &str| {
        let mut foreign = row(Topic::EfficiencyWindows, 0, offset, 300, &json!({"watts": 1}));
        for (name, value) in &mut foreign.headers {
            if &**name == "ce_type" {
                *value = kind.as_bytes().to_vec().into();
            }
        }
        foreign
    };
    let kinds = ["com.example.row", "com.example.row", "io.eadt.heartbeat.v1", "io.eadt.decision.v1"];
    rows.extend((7..).zip(kinds).map(|(offset, kind)| of_type(offset, kind)));
    rows.push(ArchiveRow { value: None, ..of_type(11, "com.example.row") });
    write(&archive, RollLimits::default(), &rows);
    let read = read_events::<EfficiencyWindow>(&Archive::find(folder.path()).unwrap(), Topic::EfficiencyWindows).unwrap();
    let passed_over = [("com.example.row".to_owned(), 2), ("io.eadt.decision.v1".to_owned(), 1)];
    assert_eq!(read.passed_over, passed_over.into());
    assert_eq!(read.events, (0..5).map(window).collect::<Vec<_>>());
    assert_eq!(read.refused.iter().map(|(partition, offset, _)| (*partition, *offset)).collect::<Vec<_>>(), [(0, 5)]);
    let read = read_events::<EfficiencyWindow>(&Archive::find(&root).unwrap(), Topic::Decisions).unwrap();
    assert_eq!(read.events, []);
}

/// Files of an older version lack columns; files of a newer one have some that must not be dropped.
#[test]
fn older_files_are_read_and_newer_ones_refused() {
    use arrow::array::{ArrayRef, RecordBatch};
    use parquet::arrow::ArrowWriter;
    use parquet::file::metadata::KeyValue;
    use parquet::file::properties::WriterProperties;
    use std::sync::Arc;

    let folder = tempfile::tempdir().unwrap();
    let archive = Archive::folder(folder.path()).unwrap();
    let rows = [telemetry(0, 0, 0), telemetry(0, 1, 1)];
    let name = write(&archive, RollLimits::default(), &rows)[0].name.clone();
    let batch = archive.reader(&name).unwrap().batches().unwrap().next().unwrap().unwrap();
    let rewrite = |batch: &RecordBatch| {
        let metadata =
            vec![KeyValue::new("eadt.format".to_owned(), "1".to_owned()), KeyValue::new("eadt.place".to_owned(), name.path())];
        let properties = WriterProperties::builder().set_key_value_metadata(Some(metadata)).build();
        let mut bytes = Vec::new();
        let mut writer = ArrowWriter::try_new(&mut bytes, batch.schema(), Some(properties)).unwrap();
        writer.write(batch).unwrap();
        writer.close().unwrap();
        fs::write(folder.path().join(name.path()), bytes).unwrap();
    };
    let older: Vec<(String, ArrayRef)> = batch
        .schema()
        .fields()
        .iter()
        .zip(batch.columns())
        .filter(|(field, _)| field.name() != "mps_enabled" && field.name() != "headers_json")
        .map(|(field, array)| (field.name().clone(), Arc::clone(array)))
        .collect();
    rewrite(&RecordBatch::try_from_iter_with_nullable(older.into_iter().map(|(name, array)| (name, array, true))).unwrap());
    assert_eq!(all(&archive, TOPIC, 0).unwrap(), rows);
    let schema = batch.schema();
    let newer = schema.fields().iter().zip(batch.columns()).map(|(f, a)| (f.name().clone(), Arc::clone(a), true));
    let newer = newer.chain([("brand_new".to_owned(), Arc::clone(batch.column(0)), true)]);
    rewrite(&RecordBatch::try_from_iter_with_nullable(newer).unwrap());
    let error = all(&archive, TOPIC, 0).unwrap_err();
    assert!(matches!(&error, LakeError::Newer { column, .. } if column == "brand_new"), "{error}");
}

#[test]
fn an_observer_gets_the_bytes_of_all_files_that_are_read_or_merged() {
    let folder = tempfile::tempdir().unwrap();
    let archive = Archive::folder(folder.path()).unwrap();
    let rows: Vec<ArchiveRow> = (0..50).map(|offset| telemetry(0, offset, offset)).collect();
    write(&archive, small(20), &rows);
    let bytes: u64 = archive.files().unwrap().files.iter().map(|file| file.bytes).sum();
    let read = Arc::new(AtomicU64::new(0));
    let counted = read.clone();
    let observed = archive.observed(move |bytes| {
        counted.fetch_add(bytes, Ordering::SeqCst);
    });
    assert_eq!(all(&observed, TOPIC, 0).unwrap().len(), 50);
    assert_eq!(read.swap(0, Ordering::SeqCst), bytes);
    assert_eq!(compactable_bytes(&observed, "2027-01-01", 1 << 30).unwrap(), bytes);
    compact(&observed, "2027-01-01", 1 << 30).unwrap();
    assert_eq!(read.swap(0, Ordering::SeqCst), bytes);
    assert_eq!(compactable_bytes(&observed, "2027-01-01", 1 << 30).unwrap(), 0);
}

#[test]
fn a_place_without_an_archive_is_not_one_that_lost_its_files() {
    let folder = tempfile::tempdir().unwrap();
    let none = Archive::find(folder.path()).unwrap_err();
    assert!(matches!(&none, LakeError::Absent { .. }) && none.to_string().contains("no Parquet files of EADT"), "{none}");
    for (place, words) in [("/nowhere/archive", "does not exist"), ("s3://bucket/archive", "only folders are read here")] {
        let refused = Archive::find(Path::new(place)).unwrap_err();
        assert!(refused.to_string().contains(words), "{refused}");
    }
    let archive = Archive::folder(folder.path()).unwrap();
    for file in write(&archive, small(20), &[telemetry(0, 0, 0)]) {
        fs::remove_file(folder.path().join(file.name.path())).unwrap();
    }
    let lost = Archive::find(folder.path()).unwrap_err();
    assert!(matches!(&lost, LakeError::Location { .. }) && lost.to_string().contains("any more"), "{lost}");
}
