//! `eadt archive compact`: fewer, larger files of past days.

use eadt_service::Clock;

use crate::cli::Archive;
use crate::output::say;
use crate::settings::Settings;

/// Files are merged up to about this size.
const TARGET_BYTES: u64 = 128 << 20;

pub fn run(command: &Archive, settings: &Settings) -> anyhow::Result<()> {
    let Archive::Compact { path, before, json } = command;
    let path = path.clone().unwrap_or_else(|| settings.bus.data_dir.clone());
    let before = before.clone().unwrap_or_else(|| Clock::wall().now().date());
    let archive = eadt_lake::Archive::find(&path)?;
    let done = eadt_lake::compact(&archive, &before, TARGET_BYTES)?;
    if *json {
        say!(
            "{}",
            serde_json::json!({"files_before": done.files_before, "files_after": done.files_after, "rows": done.rows, "bytes_before": done.bytes_before, "bytes_after": done.bytes_after})
        );
    } else {
        say!(
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
