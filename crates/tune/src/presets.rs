//! Limits by workload, as files have them.

use eadt_models::choose::LimitPreset;

use crate::TableError;

/// The limits of the frequency plan's five workloads; the file is `configs/tune/frequency-plan.toml`.
pub const FREQUENCY_PLAN: &str = include_str!("../../../configs/tune/frequency-plan.toml");

/// Reads a preset (TOML).
pub fn read(file: &str, text: &str) -> Result<LimitPreset, TableError> {
    let preset: LimitPreset = toml::from_str(text).map_err(|error| {
        TableError::new(file, error.message().to_owned(), "a preset has [[workloads]] with workload, max_slowdown and min_ratio")
    })?;
    preset.check().map_err(|error| TableError::new(file, error.to_string(), "correct it"))?;
    Ok(preset)
}
