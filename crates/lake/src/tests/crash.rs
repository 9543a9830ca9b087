use std::path::{Path, PathBuf};

use eadt_schemas::Topic;
use eadt_testing::stories::Chance;

use serde_json::json;

use super::{all, row, time};
use crate::simulation::{CrashDisk, Disk};
use crate::{Archive, ArchiveRow, ArchiveWriter, LakeError, Result, RollLimits, compact, simulation};

/// Few columns: the steps on the disk are what counts here.
const TOPIC: Topic = Topic::ProcessorState;

fn on(disk: &CrashDisk) -> Archive {
    simulation::archive(Path::new("/data/archive"), disk.clone())
}

fn log() -> Vec<ArchiveRow> {
    (0..12).map(|n| row(TOPIC, (n % 2) as i32, n / 2 * 3, n * 9_000, &json!({"state": n}))).collect()
}

/// Archives from the end of the files to the end of the log, like the archiver.
fn archive_all(archive: &Archive, log: &[ArchiveRow]) -> Result<()> {
    archive.sweep()?;
    archive.make_newest_durable(&archive.files()?)?;
    let next = archive.next_offsets()?;
    let mut writer = ArchiveWriter::new(archive.clone(), RollLimits { rows: 3, ..RollLimits::default() });
    for partition in 0..2 {
        writer.start(TOPIC, partition, next.get(&(TOPIC, partition)).copied().unwrap_or(0));
    }
    for row in log {
        if row.offset < next.get(&(TOPIC, row.partition)).copied().unwrap_or(0) {
            continue;
        }
        writer.push(row, row.stamp)?;
        while let Some((topic, partition)) = writer.due(row.stamp) {
            writer.roll(topic, partition)?;
        }
    }
    for partition in 0..2 {
        writer.advance_to(TOPIC, partition, 20);
    }
    writer.roll_all().map(drop)
}

fn check(archive: &Archive, log: &[ArchiveRow], at: &str) {
    let listing = archive.files().unwrap_or_else(|error| panic!("{at}: {error}"));
    assert_eq!(listing.gaps, [], "{at}");
    for partition in 0..2 {
        let expected: Vec<&ArchiveRow> = log.iter().filter(|row| row.partition == partition).collect();
        let rows = all(archive, TOPIC, partition).unwrap_or_else(|error| panic!("{at}: {error}"));
        assert_eq!(rows.iter().collect::<Vec<_>>(), expected, "{at}");
        assert_eq!(listing.partitions()[&(TOPIC, partition)].0, 0, "{at}");
    }
}

#[test]
fn killed_or_powerless_at_any_step_each_offset_is_in_exactly_one_file() {
    let log = log();
    let undisturbed = CrashDisk::default();
    archive_all(&on(&undisturbed), &log).unwrap();
    check(&on(&undisturbed), &log, "undisturbed");
    let steps = undisturbed.operations();
    assert!(steps > 30, "{steps}");
    for power_loss in [false, true] {
        for step in 0..steps {
            let disk = CrashDisk::default();
            disk.die_after(step);
            assert!(archive_all(&on(&disk), &log).unwrap_err().is_transient());
            disk.reboot(power_loss);
            let at = format!("step {step}, power loss {power_loss}");
            // Visible files are whole, even before the restart.
            let archive = on(&disk);
            for partition in 0..2 {
                let rows = all(&archive, TOPIC, partition).unwrap_or_else(|error| panic!("{at}: {error}"));
                let expected = log.iter().filter(|row| row.partition == partition).take(rows.len());
                assert_eq!(rows.iter().collect::<Vec<_>>(), expected.collect::<Vec<_>>(), "{at}");
            }
            archive_all(&archive, &log).unwrap_or_else(|error| panic!("{at}: {error}"));
            check(&archive, &log, &at);
            assert_eq!(archive.sweep().unwrap(), 0, "{at}: something was left behind");
        }
    }
}

/// A kill may come before a visible file is durable, and its successor builds upon it.
#[test]
fn what_a_killed_archiver_made_visible_outlives_a_power_loss_once_another_one_went_on() {
    let log = log();
    let undisturbed = CrashDisk::default();
    archive_all(&on(&undisturbed), &log).unwrap();
    for step in 0..undisturbed.operations() {
        let disk = CrashDisk::default();
        disk.die_after(step);
        assert!(archive_all(&on(&disk), &log).is_err());
        disk.reboot(false);
        archive_all(&on(&disk), &log).unwrap();
        disk.reboot(true);
        check(&on(&disk), &log, &format!("killed at step {step}"));
    }
}

/// The tests above bite: without the syncs a power loss leaves torn files or none.
#[test]
fn a_disk_that_never_syncs_loses_what_it_had() {
    let disk = CrashDisk::default();
    archive_all(&on(&disk), &log()).unwrap();
    disk.reboot(true);
    check(&on(&disk), &log(), "everything was synced");
    // A file under its final name, without the syncs that `create` makes.
    let name = crate::ArchiveFileName { topic: TOPIC, partition: 5, first: 0, last: 0, date: "2026-01-02".to_owned() };
    let path = PathBuf::from("/data/archive").join(name.path());
    disk.write(&path, &bytes::Bytes::from_static(b"PAR1....PAR1")).unwrap();
    assert!(on(&disk).files().unwrap().files.iter().any(|file| file.name == name));
    disk.reboot(true);
    assert!(!on(&disk).files().unwrap().files.iter().any(|file| file.name == name));
}

#[test]
fn a_compaction_killed_at_any_step_loses_and_doubles_nothing() {
    let log = log();
    let disk = CrashDisk::default();
    archive_all(&on(&disk), &log).unwrap();
    let before = disk.operations();
    compact(&on(&disk), "2026-02-01", 1 << 30).unwrap();
    let steps = disk.operations() - before;
    assert!(steps > 10, "{steps}");
    for power_loss in [false, true] {
        for step in 0..steps {
            let disk = CrashDisk::default();
            archive_all(&on(&disk), &log).unwrap();
            disk.die_after(step);
            assert!(compact(&on(&disk), "2026-02-01", 1 << 30).is_err());
            disk.reboot(power_loss);
            let at = format!("step {step}, power loss {power_loss}");
            check(&on(&disk), &log, &at);
            compact(&on(&disk), "2026-02-01", 1 << 30).unwrap_or_else(|error| panic!("{at}: {error}"));
            check(&on(&disk), &log, &at);
            let listing = on(&disk).files().unwrap();
            assert_eq!(listing.superseded, [], "{at}");
            assert_eq!(listing.files.len(), 4, "{at}: two partitions on two days");
        }
    }
}

/// A power loss may leave the deletions and take what they were made for.
#[test]
fn a_sweep_after_a_killed_compaction_deletes_nothing_before_what_covers_it_is_durable() {
    let log = log();
    let disk = CrashDisk::default();
    archive_all(&on(&disk), &log).unwrap();
    let before = disk.operations();
    compact(&on(&disk), "2026-02-01", 1 << 30).unwrap();
    let steps = disk.operations() - before;
    let mut swept = 0;
    for step in 0..steps {
        for seed in 0..8 {
            let disk = CrashDisk::default();
            archive_all(&on(&disk), &log).unwrap();
            disk.die_after(step);
            assert!(compact(&on(&disk), "2026-02-01", 1 << 30).is_err());
            disk.reboot(false);
            if on(&disk).files().unwrap().superseded.is_empty() {
                break;
            }
            swept += 1;
            disk.die_after(1 + seed % 4);
            assert!(on(&disk).sweep().is_err() || seed > 0);
            let mut chance = Chance::new(seed as u64);
            disk.reboot(false);
            disk.lose_power(|| chance.one_in(2));
            check(&on(&disk), &log, &format!("step {step}, seed {seed}"));
        }
    }
    assert!(swept > 0);
}

#[test]
fn a_full_disk_stops_and_resumes_without_a_skip() {
    let log = log();
    let disk = CrashDisk::default();
    let archive = on(&disk);
    let mut writer = ArchiveWriter::new(archive.clone(), RollLimits { rows: 4, age_micros: i64::MAX, ..RollLimits::default() });
    for partition in 0..2 {
        writer.start(TOPIC, partition, 0);
    }
    let mut failures = 0;
    for (at, row) in log.iter().enumerate() {
        disk.fill(at % 3 == 2);
        writer.push(row, time(0)).unwrap();
        // A refused file is offered again until there is room.
        while let Some((topic, partition)) = writer.due(row.stamp) {
            if let Err(error) = writer.roll(topic, partition) {
                assert!(matches!(error, LakeError::Store { .. }) && error.is_transient());
                assert!(error.to_string().starts_with("cannot write test/topic=processor-state.v1/"), "{error}");
                failures += 1;
                disk.fill(false);
            }
        }
    }
    disk.fill(true);
    assert!(writer.rows() > 0);
    assert!(writer.roll_all().is_err());
    disk.fill(false);
    writer.roll_all().unwrap();
    assert!(failures > 0);
    check(&archive, &log, "after a full disk");
    assert_eq!(archive.sweep().unwrap(), 0);
}
