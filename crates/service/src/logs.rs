//! Structured logs.

use std::fs::File;
use std::io::Write;
use std::sync::Mutex;

use serde::{Deserialize, Serialize};
use tracing_subscriber::EnvFilter;

use crate::redact::{RedactingWriter, SecretRedactor};

/// Format of log lines.
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

/// Returns an error if a text is no filter.
pub fn check(filter: &str) -> Result<(), String> {
    EnvFilter::try_new(filter).map(drop).map_err(|error| error.to_string())
}

/// Starts logs for the process, on standard error or into `file`. `filter` is a level or a `tracing` filter such as
/// `info,eadt_bus=debug`. `secrets` are hidden in every line, and what would steer a terminal is escaped.
pub fn start(format: LogFormat, filter: &str, file: Option<File>, secrets: SecretRedactor) -> Result<(), LogError> {
    start_on(|| Box::new(std::io::stderr()), format, filter, file, secrets)
}

/// Returns whether the user wants no colours (<https://no-color.org>): `NO_COLOR` is set, and not empty.
pub fn is_colourless() -> bool {
    std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
}

/// Like [`start`], through this writer to standard error, which may clear a progress bar first.
pub fn start_on(
    stderr: fn() -> Box<dyn Write>,
    format: LogFormat,
    filter: &str,
    file: Option<File>,
    secrets: SecretRedactor,
) -> Result<(), LogError> {
    let failed = |detail: String| LogError { filter: filter.to_owned(), detail };
    let parsed = EnvFilter::try_new(filter).map_err(|error| failed(error.to_string()))?;
    let coloured = !is_colourless() && std::io::IsTerminal::is_terminal(&std::io::stderr());
    // If standard error is gone, as with a closed terminal, the subscriber's own report of that would panic.
    let builder = tracing_subscriber::fmt().with_env_filter(parsed).with_ansi(coloured).log_internal_errors(false);
    let on_stderr = {
        let secrets = secrets.clone();
        move || RedactingWriter { inner: stderr(), secrets: secrets.clone(), coloured }
    };
    let into_file = |file| Mutex::new(RedactingWriter { inner: file, secrets, coloured: false });
    match (format, file) {
        (LogFormat::Text, None) => builder.with_writer(on_stderr).try_init(),
        (LogFormat::Json, None) => builder.json().with_writer(on_stderr).try_init(),
        (LogFormat::Text, Some(file)) => builder.with_ansi(false).with_writer(into_file(file)).try_init(),
        (LogFormat::Json, Some(file)) => builder.json().with_writer(into_file(file)).try_init(),
    }
    .map_err(|error| failed(error.to_string()))
}
