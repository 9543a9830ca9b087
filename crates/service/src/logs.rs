//! Structured logs on standard error.

use serde::{Deserialize, Serialize};
use tracing_subscriber::EnvFilter;

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    #[default]
    Text,
    Json,
}

/// The filter text is not one that `tracing` understands, or logs were started before.
#[derive(Debug, thiserror::Error)]
#[error("cannot start logs with filter={filter:?}: {detail}; try info or eadt=debug")]
pub struct LogError {
    filter: String,
    detail: String,
}

/// Starts logs for the process. `filter` is a level or a `tracing` filter such as `info,eadt_bus=debug`.
pub fn start(format: LogFormat, filter: &str) -> Result<(), LogError> {
    let failed = |detail: String| LogError { filter: filter.to_owned(), detail };
    let parsed = EnvFilter::try_new(filter).map_err(|error| failed(error.to_string()))?;
    let builder = tracing_subscriber::fmt().with_env_filter(parsed).with_writer(std::io::stderr);
    match format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().try_init(),
    }
    .map_err(|error| failed(error.to_string()))
}
