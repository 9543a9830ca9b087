//! Standard output and standard error: a reader that has seen enough (`| head`) is a normal end, anything else an error. What other
//! programs wrote, such as names and keys, is shown without characters that steer a terminal.

use std::borrow::Cow;
use std::io::{ErrorKind, IsTerminal, Write};

use eadt_schemas::visible_text::escape;
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

/// Prints a CSV document. Names stay as they are, characters without a picture included, so that they can be joined with others;
/// only control characters, and all that steers a terminal on one, are escaped.
pub fn print_csv(text: &str) -> anyhow::Result<()> {
    let written = beside_bar(|| {
        let mut out = std::io::stdout().lock();
        let text = csv_text(text, out.is_terminal());
        out.write_all(text.as_bytes()).and_then(|()| out.flush())
    });
    is_read(written).map(drop)
}

fn csv_text(text: &str, on_terminal: bool) -> Cow<'_, str> {
    escape(text, |character| matches!(character, '\n' | '\t') || !on_terminal && !character.is_control())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_csv_stay_as_they_are_and_steer_no_terminal() {
        let names = "lsep/a\u{2028}b\nzw/\u{641}\u{200c}\u{647}\nflag/\u{1f3f4}\u{e0067}\nback/a\\u200db\n";
        assert_eq!(csv_text(names, false), names);
        assert_eq!(csv_text("a\u{1b}[2J\u{9b}b", false), "a\\u001b[2J\\u009bb");
        assert_eq!(csv_text("a\u{202e}b", true), "a\\u202eb");
    }
}
