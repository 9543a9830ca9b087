//! Structured logs.

use std::fs::File;
use std::sync::Mutex;

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

/// Starts logs for the process, on standard error or into `file`. `filter` is a level or a `tracing` filter such as
/// `info,eadt_bus=debug`.
pub fn start(format: LogFormat, filter: &str, file: Option<File>) -> Result<(), LogError> {
    let failed = |detail: String| LogError { filter: filter.to_owned(), detail };
    let parsed = EnvFilter::try_new(filter).map_err(|error| failed(error.to_string()))?;
    let coloured = std::env::var_os("NO_COLOR").is_none() && std::io::IsTerminal::is_terminal(&std::io::stderr());
    let builder = tracing_subscriber::fmt().with_env_filter(parsed).with_ansi(coloured);
    match (format, file) {
        (LogFormat::Text, None) => builder.with_writer(std::io::stderr).try_init(),
        (LogFormat::Json, None) => builder.json().with_writer(std::io::stderr).try_init(),
        (LogFormat::Text, Some(file)) => builder.with_ansi(false).with_writer(Mutex::new(file)).try_init(),
        (LogFormat::Json, Some(file)) => builder.json().with_writer(Mutex::new(file)).try_init(),
    }
    .map_err(|error| failed(error.to_string()))
}
