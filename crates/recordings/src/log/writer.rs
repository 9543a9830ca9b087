use std::io::{self, BufWriter, Write};

use eadt_schemas::LoggedEvent;

/// Compression of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compression {
    #[default]
    None,
    Zstd,
}

impl Compression {
    /// Returns the compression for a file's name: `.zst` is zstd.
    pub fn of_name(name: &str) -> Self {
        if name.rsplit('.').next().is_some_and(|ending| ending.eq_ignore_ascii_case("zst")) { Self::Zstd } else { Self::None }
    }
}

/// Writes an event log line by line. Nothing is complete before [`LogWriter::finish`].
pub struct LogWriter<W: Write> {
    out: LogOutput<W>,
    line: Vec<u8>,
    events: u64,
}

enum LogOutput<W: Write> {
    Plain(BufWriter<W>),
    Zstd(BufWriter<zstd::stream::write::Encoder<'static, W>>),
}

impl<W: Write> std::fmt::Debug for LogWriter<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LogWriter").field("events", &self.events).finish_non_exhaustive()
    }
}

impl<W: Write> LogWriter<W> {
    pub fn new(out: W, compression: Compression) -> io::Result<Self> {
        let out = match compression {
            Compression::None => LogOutput::Plain(BufWriter::with_capacity(1 << 17, out)),
            Compression::Zstd => {
                let mut encoder = zstd::stream::write::Encoder::new(out, 3)?;
                // Damage is then found where it is, not guessed from broken JSON.
                encoder.include_checksum(true)?;
                LogOutput::Zstd(BufWriter::with_capacity(1 << 17, encoder))
            }
        };
        Ok(Self { out, line: Vec::with_capacity(1024), events: 0 })
    }

    /// Appends one event. Line breaks inside its data, which JSON allows between tokens only, become blanks.
    pub fn write(&mut self, event: &LoggedEvent) -> io::Result<()> {
        self.line.clear();
        serde_json::to_writer(&mut self.line, event)?;
        for byte in &mut self.line {
            if matches!(*byte, b'\n' | b'\r') {
                *byte = b' ';
            }
        }
        self.line.push(b'\n');
        match &mut self.out {
            LogOutput::Plain(out) => out.write_all(&self.line)?,
            LogOutput::Zstd(out) => out.write_all(&self.line)?,
        }
        self.events += 1;
        Ok(())
    }

    /// Hands everything written so far to the sink, so that concurrent readers find whole events.
    pub fn flush(&mut self) -> io::Result<()> {
        match &mut self.out {
            LogOutput::Plain(out) => out.flush(),
            LogOutput::Zstd(out) => out.flush(),
        }
    }

    /// Events written so far.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Completes the log and gives the sink back, flushed.
    pub fn finish(self) -> io::Result<W> {
        let mut out = match self.out {
            LogOutput::Plain(out) => out.into_inner().map_err(io::IntoInnerError::into_error)?,
            LogOutput::Zstd(out) => out.into_inner().map_err(io::IntoInnerError::into_error)?.finish()?,
        };
        out.flush()?;
        Ok(out)
    }
}
