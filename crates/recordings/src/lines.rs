//! Lines of one input, numbered and bounded, decompressed where they are zstd.

use std::io::{self, BufRead, BufReader, Read};

use crate::ImportError;

/// Longest accepted line. `MLPerf`'s longest are 100 kB; a query result may be one line.
pub(crate) const MAX_LINE_BYTES: u64 = 256 << 20;

pub(crate) struct Lines<'a> {
    pub(crate) name: String,
    reader: Box<dyn BufRead + 'a>,
    buffer: Vec<u8>,
    pub(crate) number: u64,
}

/// Decompresses where the first bytes say that it is zstd.
pub(crate) fn decompressed<'a>(reader: impl Read + 'a) -> io::Result<Box<dyn BufRead + 'a>> {
    let mut reader = BufReader::with_capacity(1 << 17, reader);
    // A source may hand out its first bytes one at a time, so the magic is gathered, not peeked.
    let mut magic = Vec::with_capacity(4);
    (&mut reader).take(4).read_to_end(&mut magic)?;
    let is_zstd = magic == [0x28, 0xb5, 0x2f, 0xfd];
    let whole = io::Cursor::new(magic).chain(reader);
    if is_zstd {
        let decoder = zstd::stream::read::Decoder::with_buffer(whole)?;
        Ok(Box::new(BufReader::with_capacity(1 << 17, decoder)))
    } else {
        Ok(Box::new(whole))
    }
}

impl<'a> Lines<'a> {
    pub(crate) fn new(name: &str, reader: impl Read + 'a) -> Result<Self, ImportError> {
        let reader = decompressed(reader).map_err(|error| unreadable(name, None, &error))?;
        Ok(Self { name: name.to_owned(), reader, buffer: Vec::new(), number: 0 })
    }

    /// The next line without its end, a byte-order mark removed; bytes that are no UTF-8 become U+FFFD.
    pub(crate) fn next_line(&mut self) -> Result<Option<(u64, std::borrow::Cow<'_, str>)>, ImportError> {
        self.buffer.clear();
        let read = (&mut self.reader)
            .take(MAX_LINE_BYTES)
            .read_until(b'\n', &mut self.buffer)
            .map_err(|error| unreadable(&self.name, Some(self.number + 1), &error))?;
        if read == 0 {
            return Ok(None);
        }
        self.number += 1;
        if read as u64 == MAX_LINE_BYTES && self.buffer.last() != Some(&b'\n') {
            let problem = format!("line is longer than {} MiB", MAX_LINE_BYTES >> 20);
            return Err(ImportError::at(&self.name, self.number, problem, "check that this is the right file"));
        }
        let mut line = self.buffer.as_slice();
        if self.number == 1 {
            line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
        }
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        Ok(Some((self.number, String::from_utf8_lossy(line))))
    }

    /// The rest of the input as one reader, for formats that are not made of lines.
    pub(crate) fn into_reader(self) -> Box<dyn BufRead + 'a> {
        self.reader
    }
}

fn unreadable(name: &str, line: Option<u64>, error: &io::Error) -> ImportError {
    let problem = format!("cannot be read: {error}");
    let remedy = match error.kind() {
        io::ErrorKind::IsADirectory => "name the files in it",
        _ => "the file may be truncated or damaged; copy it again",
    };
    ImportError { line, ..ImportError::whole(name, problem, remedy) }
}
