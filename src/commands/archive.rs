//! `eadt archive compact`: fewer, larger files of past days.

use eadt_schemas::counts::counted;
use eadt_service::ServiceClock;

use crate::cli::ArchiveCommand;
use crate::output::print_line;
use crate::progress::ProgressMeter;
use crate::settings::ProgramSettings;

/// Files are merged up to about this size.
const TARGET_BYTES: u64 = 128 << 20;

pub fn run(command: &ArchiveCommand, settings: &ProgramSettings) -> anyhow::Result<()> {
    let ArchiveCommand::Compact { path, before, json } = command;
    let path = path.clone().unwrap_or_else(|| settings.bus.data_dir.clone());
    let before = before.clone().unwrap_or_else(|| ServiceClock::machine().now().date());
    let archive = eadt_lake::Archive::find(&path)?;
    let meter = ProgressMeter::bytes(eadt_lake::compactable_bytes(&archive, &before, TARGET_BYTES)?);
    let bytes_meter = meter.clone();
    let archive = archive.observed(move |bytes| bytes_meter.add(bytes));
    let done = eadt_lake::compact(&archive, &before, TARGET_BYTES)?;
    let recorded = archive.record_missing_extents()?;
    meter.finish();
    if recorded > 0 {
        crate::output::note!(
            "note: {} had no record of what was archived: the files that are there are recorded now",
            counted(recorded, "partition")
        );
    }
    if *json {
        print_line!(
            "{}",
            serde_json::json!({"files_before": done.files_before, "files_after": done.files_after, "rows": done.rows, "bytes_before": done.bytes_before, "bytes_after": done.bytes_after, "partitions_recorded": recorded})
        );
    } else {
        print_line!(
            "{} files of days before {before} became {} ({} rows, {} → {} bytes)",
            done.files_before,
            done.files_after,
            done.rows,
            done.bytes_before,
            done.bytes_after
        );
    }
    Ok(())
}
