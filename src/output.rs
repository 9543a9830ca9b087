//! Standard output: a reader that has seen enough (`| head`) is a normal end, anything else an error.

use std::io::{ErrorKind, IsTerminal, Write};

/// Prints a text; what nobody reads any more is dropped.
pub fn print(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        Err(error) => Err(anyhow::Error::from(error).context("cannot write to standard output")),
    }
}

/// Columns of the terminal that standard output is; `None` where it is none.
pub fn width() -> Option<usize> {
    let (columns, _) = std::io::stdout().is_terminal().then(crossterm::terminal::size)?.ok()?;
    (columns > 0).then_some(usize::from(columns))
}

/// As `println!`, but a closed pipe is no panic. Only where `?` may return an error.
macro_rules! say {
    ($($argument:tt)*) => {
        $crate::output::print(&format!("{}\n", format_args!($($argument)*)))?
    };
}
pub(crate) use say;
