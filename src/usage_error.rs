//! Values of options that cannot be: the command line is not possible, and nothing is done.

use std::fmt::Display;

/// A value of an option that cannot be; the program ends with the status that it has for a command line that it does not
/// understand.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(String);

/// The exit status of a command line that is not possible.
pub const STATUS: u8 = 2;

/// Returns the refusal of an option's value, in the words of those that are refused where the command line is read.
pub fn invalid(option: &str, value: impl Display, why: impl Display) -> anyhow::Error {
    UsageError(format!("invalid value '{value}' for '{option}': {why}")).into()
}

/// Returns the refusal of options that are not possible together.
pub fn impossible(why: impl Display) -> anyhow::Error {
    UsageError(why.to_string()).into()
}

/// Returns whether an error is about the command line.
pub fn is_usage_error(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let import = cause.downcast_ref::<eadt_recordings::ImportError>();
        cause.is::<UsageError>() || import.is_some_and(eadt_recordings::ImportError::is_about_options)
    })
}
