//! The archive: its files against each other and by their footers, the newest of them read, and all against the log.

use std::collections::BTreeMap;

use eadt_bus::{Bus, TopicPartition};
use eadt_lake::{Archive, ArchiveListing};
use eadt_schemas::Topic;

use super::Findings;
use crate::commands::{describe_identity, describe_unrecorded};
use crate::progress::ProgressMeter;
use crate::settings::ProgramSettings;

pub fn check_archive(settings: &ProgramSettings, bus: Option<&dyn Bus>, findings: &mut Findings) {
    let location = &settings.archiver.location;
    let listing = Archive::open(location).and_then(|archive| archive.files().map(|listing| (archive, listing)));
    let (archive, listing) = match listing {
        Ok(found) => found,
        Err(error) => {
            findings.wrong("archive", chain(&error), "docs/use/archive.md has what belongs there");
            return;
        }
    };
    if listing.files.is_empty() && listing.missing().next().is_none() {
        findings.notice("archive", format!("{location} holds nothing yet"), "the archiver writes there");
        return;
    }
    let before = findings.wrong_count();
    for (topic, partition, from, to) in &listing.gaps {
        findings.wrong(
            "archive",
            format!("{topic} partition {partition} lacks offsets {from} to {to}: a file was removed"),
            "put it back from a copy; where there is none, move the archive away, and the archiver begins a new one from the log",
        );
    }
    for (topic, partition, from, to) in &listing.lost {
        findings.wrong(
            "archive",
            format!("{topic} partition {partition} had offsets {from} to {to}, and no file has them now"),
            &format!(
                "put the files back from a copy; if they were deleted on purpose, delete _archived/{topic}+{partition}+* \
                 and topic={topic}/_archived+{partition}+*, and the next file begins the record anew"
            ),
        );
    }
    report_unrecorded(&listing, findings);
    if !listing.superseded.is_empty() {
        let about = format!("{} files hold nothing that others do not", listing.superseded.len());
        findings.notice("archive", about, "`eadt archive compact` removes them");
    }
    match archive.check_footers(&listing) {
        Ok(()) => {
            for about in describe_identity(&archive, &listing) {
                let remedy = "put _archived back from a copy, or let the archiver or `eadt archive compact` record the id; \
                              compaction gives files of earlier versions the id, too";
                findings.notice("archive", format!("it {about}"), remedy);
            }
            check_newest_files(&archive, &listing, findings);
        }
        Err(error) => findings.wrong("archive", chain(&error), "docs/use/archive.md has what belongs there"),
    }
    if let Some(bus) = bus {
        compare_with_log(bus, settings, &listing, findings);
    }
    if findings.wrong_count() == before {
        let bytes: u64 = listing.files.iter().map(|file| file.bytes).sum();
        findings.ok(
            "archive",
            format!("{location}: {} files, {} KiB, no gaps, the newest can be read", listing.files.len(), bytes >> 10),
        );
    }
}

/// Reports partitions without a record of the archived range. If no partition has a record, their folder is gone. If some have
/// one, the others may have been deleted together with old files.
fn report_unrecorded(listing: &ArchiveListing, findings: &mut Findings) {
    let Some(about) = describe_unrecorded(listing, &Topic::ALL) else { return };
    let (about, remedy) = (
        format!("it {about}"),
        "put _archived back from a copy; if an earlier version wrote the archive, or the records were deleted with old files on \
         purpose, `eadt archive compact` records the files that are there",
    );
    if listing.lacks_records() {
        findings.wrong("archive", about, remedy);
    } else {
        findings.notice("archive", about, remedy);
    }
}

/// Reads the newest file of each partition to its end: only these can be damaged by a crash.
fn check_newest_files(archive: &Archive, listing: &ArchiveListing, findings: &mut Findings) {
    let mut last = BTreeMap::new();
    for file in &listing.files {
        last.insert((file.name.topic, file.name.partition), file.clone());
    }
    let meter = ProgressMeter::bytes(last.values().map(|file| file.bytes).sum());
    let counted = meter.clone();
    let archive = archive.clone().observed(move |bytes| counted.add(bytes));
    for ((topic, partition), file) in last {
        let one = ArchiveListing { files: vec![file], ..ArchiveListing::default() };
        for row in archive.rows(&one, topic, partition) {
            if let Err(error) = row {
                findings.wrong(
                    "archive",
                    chain(&error),
                    "restore the file from a copy, or delete it while the log still has its offsets",
                );
                break;
            }
        }
    }
    meter.finish();
}

/// Compares the archive with the log, in both directions.
fn compare_with_log(bus: &dyn Bus, settings: &ProgramSettings, listing: &ArchiveListing, findings: &mut Findings) {
    let mut waiting = 0;
    for ((topic, partition), (_, last)) in listing.partitions() {
        let at = TopicPartition::new(format!("{}{topic}", settings.topics.prefix), partition);
        let marks = match bus.watermarks(&at) {
            Ok(marks) => marks,
            Err(error) => {
                findings.unchecked("archive", format!("against the log: {error}"));
                return;
            }
        };
        if last + 1 > marks.high {
            findings.wrong(
                "archive",
                format!(
                    "it has {topic} partition {partition} up to offset {last}, and the log ends at {}: it is of another log",
                    marks.high
                ),
                "name an archive of its own for each log (archiver.location), or put the log back from a copy",
            );
        } else if last + 1 < marks.low && !topic.is_table() {
            findings.wrong(
                "archive",
                format!(
                    "retention has deleted {topic} partition {partition} from offset {} to {}, which it does not have",
                    last + 1,
                    marks.low - 1
                ),
                "run the archiver all the time, or keep the topics longer; what is gone stays a gap",
            );
        } else {
            waiting += marks.high - last - 1;
        }
    }
    if waiting > 0 {
        findings.notice(
            "archive",
            format!("{waiting} offsets of the log are not in it yet"),
            "normal while the archiver fills its next files",
        );
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
