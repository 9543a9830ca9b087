//! Standard output and standard error: a reader that has seen enough (`| head`) is a normal end, anything else an error. What other
//! programs wrote, such as names and keys, is shown without characters that steer a terminal.

use std::io::{ErrorKind, IsTerminal, Write};

use eadt_service::redact;

use crate::progress::beside_bar;

/// Prints a text. It is dropped if standard output is closed.
pub fn print(text: &str) -> anyhow::Result<()> {
    let written = beside_bar(|| {
        let mut out = std::io::stdout().lock();
        out.write_all(redact::escape_lines(text).as_bytes()).and_then(|()| out.flush())
    });
    is_read(written).map(drop)
}

/// Returns whether standard output is still read, by the result of a write to it.
pub fn is_read(written: std::io::Result<()>) -> anyhow::Result<bool> {
    match written {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(anyhow::Error::from(error).context("cannot write to standard output")),
    }
}

/// Prints a line on standard error. What cannot be written is dropped: there is nowhere left to report it.
pub fn print_note(text: &str) {
    let line = format!("{}\n", redact::escape_lines(&redact::hide_credentials(text)));
    if let Err(error) = beside_bar(|| std::io::stderr().lock().write_all(line.as_bytes())) {
        tracing::trace!(%error, "standard error is closed");
    }
}

/// Columns of the terminal that standard output is; `None` if it is none.
pub fn width() -> Option<usize> {
    let (columns, _) = std::io::stdout().is_terminal().then(crossterm::terminal::size)?.ok()?;
    (columns > 0).then_some(usize::from(columns))
}

/// As `println!`, but a closed pipe is no panic. For functions in which `?` may return an error.
macro_rules! print_line {
    ($($argument:tt)*) => {
        $crate::output::print(&format!("{}\n", format_args!($($argument)*)))?
    };
}
pub(crate) use print_line;

/// As `crate::output::note!`, but a closed pipe is no panic.
macro_rules! note {
    ($($argument:tt)*) => {
        $crate::output::print_note(&format!($($argument)*))
    };
}
pub(crate) use note;
