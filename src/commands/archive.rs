//! `eadt archive`: fewer, larger files of past days, and SQL views.

use std::path::{Path, PathBuf};

use eadt_schemas::counts::counted;
use eadt_service::ServiceClock;

use crate::cli::ArchiveCommand;
use crate::output::print_line;
use crate::progress::ProgressMeter;
use crate::settings::ProgramSettings;

/// Files are merged up to about this size.
const TARGET_BYTES: u64 = 128 << 20;

pub fn run(command: &ArchiveCommand, settings: &ProgramSettings) -> anyhow::Result<()> {
    match command {
        ArchiveCommand::Compact { path, before, json } => {
            let path = path.as_deref().unwrap_or(&settings.bus.data_dir);
            let before = before.clone().unwrap_or_else(|| ServiceClock::machine().now().date());
            compact(path, &before, *json)
        }
        ArchiveCommand::Views { path } => {
            let named = path.as_deref().map(|path| archive_folder(path).display().to_string());
            crate::output::print(&views(named.as_deref().unwrap_or(&settings.archiver.location)))
        }
    }
}

/// Returns the archive in a data folder; the path itself if it is none.
fn archive_folder(path: &Path) -> PathBuf {
    let within = path.join("archive");
    if within.is_dir() { within } else { path.to_owned() }
}

/// Returns the text of `eadt archive views`.
fn views(location: &str) -> String {
    format!(
        "-- One view for each topic of an archive, for DuckDB from 2.0 on: `efficiency.windows.v1` is `efficiency_windows_v1`.\n\
         -- Printed by `eadt archive views PATH`, which takes any archive.\n{}",
        eadt_lake::views(location)
    )
}

fn compact(path: &Path, before: &str, json: bool) -> anyhow::Result<()> {
    // Files of an earlier version have no id; the rewritten ones do.
    let archive = eadt_lake::Archive::find(path)?.with_new_id(crate::services::new_archive_id()?);
    let meter = ProgressMeter::bytes(eadt_lake::compactable_bytes(&archive, before, TARGET_BYTES)?);
    let bytes_meter = meter.clone();
    let archive = archive.observed(move |bytes| bytes_meter.add(bytes));
    let done = eadt_lake::compact(&archive, before, TARGET_BYTES)?;
    let recorded = archive.record_missing_extents()?;
    meter.finish();
    if recorded > 0 {
        crate::output::note!(
            "note: {} had no record of what was archived: the files that are there are recorded now",
            counted(recorded, "partition")
        );
    }
    if json {
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
