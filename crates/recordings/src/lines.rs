//! Lines of one input, numbered and bounded; zstd is decompressed, UTF-16 decoded.

use std::borrow::Cow;
use std::io::{self, BufRead, BufReader, Read};

use crate::ImportError;
use crate::encoding::{Encoding, UTF_32, decode, line_text};
use crate::fingerprint::Fingerprint;

/// Longest accepted line. `MLPerf`'s longest are 100 kB; a query result may be one line.
pub(crate) const MAX_LINE_BYTES: u64 = 256 << 20;

/// Blank lines in a row before a file is taken for none of ours: a few kilobytes of zstd can hold gigabytes of them.
pub(crate) const MAX_BLANK_BYTES: u64 = 4 << 20;
/// See [`MAX_BLANK_BYTES`], of lines that hold no value: comments, and separators alone. Spreadsheets write some megabytes of
/// empty rows below a table.
pub(crate) const MAX_BARE_BYTES: u64 = 16 << 20;

pub(crate) struct LineReader<'a> {
    pub(crate) name: String,
    reader: Box<dyn BufRead + 'a>,
    buffer: Vec<u8>,
    pub(crate) number: u64,
    /// Bytes of the blank lines just read.
    blank_bytes: u64,
    /// Bytes of the lines without a value just read, blank ones included.
    bare_bytes: u64,
    pub(crate) encoding: Encoding,
    /// Fingerprint of the first bytes, decompressed and decoded: a file that has grown since keeps it.
    pub(crate) fingerprint: Fingerprint,
    /// The last line, if it has no line end.
    pub(crate) open_line: Option<u64>,
}

/// Bytes in which line ends are looked for.
const HEAD_BYTES: u64 = 1 << 16;
/// Bytes and lines of the head that name a file: as far as the later of the two. Two idle boards may have some rows in common,
/// and a wide table has a long header. A file that has both keeps its name as it grows.
const NAMING_BYTES: usize = 4 << 10;
const NAMING_LINES: usize = 32;

/// Returns a reader whose lines end with a line feed, where they end with a carriage return alone, and a name of its first bytes.
fn with_line_feeds<'a>(mut reader: Box<dyn BufRead + 'a>) -> io::Result<(Box<dyn BufRead + 'a>, Fingerprint)> {
    let mut head = Vec::new();
    (&mut reader).take(HEAD_BYTES).read_to_end(&mut head)?;
    let fingerprint = Fingerprint::of(&head[..naming_end(&head)]);
    let only_returns = head.contains(&b'\r') && !head.contains(&b'\n');
    let whole = io::Cursor::new(head).chain(reader);
    let reader: Box<dyn BufRead + 'a> =
        if only_returns { Box::new(BufReader::new(CarriageReturnReader(whole))) } else { Box::new(whole) };
    Ok((reader, fingerprint))
}

/// Returns where the part of a head ends that names its file.
fn naming_end(head: &[u8]) -> usize {
    let end = if head.contains(&b'\n') { b'\n' } else { b'\r' };
    let ends = head.iter().enumerate().filter(|(_, byte)| **byte == end).map(|(at, _)| at + 1);
    ends.take(NAMING_LINES).last().unwrap_or_default().max(NAMING_BYTES).min(head.len())
}

struct CarriageReturnReader<R>(R);

impl<R: Read> Read for CarriageReturnReader<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.0.read(into)?;
        for byte in into[..count].iter_mut().filter(|byte| **byte == b'\r') {
            *byte = b'\n';
        }
        Ok(count)
    }
}

/// Number of first bytes that show the kind of a file.
const MAGIC_BYTES: u64 = 16;
/// The first bytes of formats that are not read, with the error text.
const FOREIGN_FORMS: [(&[u8], &str); 13] = [
    (&[0x1f, 0x8b], "it is compressed with gzip"),
    (b"BZh", "it is compressed with bzip2"),
    (&[0xfd, b'7', b'z', b'X'], "it is compressed with xz"),
    (b"PK\x03\x04", "it is a zip archive, as workbooks of spreadsheets are"),
    (&[0x04, 0x22, 0x4d, 0x18], "it is compressed with lz4"),
    (b"ARROW1", "it is an Arrow file"),
    (b"SQLite format 3\0", "it is an SQLite database"),
    (b"\x89HDF", "it is HDF5"),
    (b"%PDF", "it is a PDF document"),
    (b"<?xm", "it is XML"),
    (b"<!DO", "it is a web page"),
    (b"<htm", "it is a web page"),
    (b"<table", "it is a web page, or a part of one"),
];

/// Bytes that a compressed file may unpack to whatever its length is, and the multiple of its length beyond. A few kilobytes of zstd
/// can hold gigabytes of one line; a recording in which nothing but the time changes is a thousandth of its size.
const UNPACKED_BYTES: u64 = 256 << 20;
const UNPACKED_PER_BYTE: u64 = 4_000;
/// See [`UNPACKED_BYTES`] and [`UNPACKED_PER_BYTE`], of lines: each may become a reading, which takes more memory than its text.
const UNPACKED_LINES: u64 = 4_000_000;
const UNPACKED_LINES_PER_BYTE: u64 = 64;

/// Counts the bytes that are read through it.
struct CountingReader<R> {
    inner: R,
    bytes: u64,
}

impl<R: Read> Read for CountingReader<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(into)?;
        self.bytes += count as u64;
        Ok(count)
    }
}

impl<R: BufRead> BufRead for CountingReader<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.inner.fill_buf()
    }

    fn consume(&mut self, count: usize) {
        self.bytes += count as u64;
        self.inner.consume(count);
    }
}

/// Decompresses zstd, no more than a file of its length may hold.
struct BoundedDecoder<R: BufRead> {
    decoder: zstd::stream::read::Decoder<'static, CountingReader<R>>,
    unpacked: u64,
    /// Line feeds and carriage returns; a line may end with either or both.
    line_ends: [u64; 2],
}

impl<R: BufRead> Read for BoundedDecoder<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.decoder.read(into)?;
        self.unpacked += count as u64;
        for (ends, end) in self.line_ends.iter_mut().zip([b'\n', b'\r']) {
            *ends += memchr::memchr_iter(end, &into[..count]).count() as u64;
        }
        let packed = self.decoder.get_ref().bytes;
        let lines = self.line_ends.into_iter().max().unwrap_or_default();
        let what = if self.unpacked > packed.saturating_mul(UNPACKED_PER_BYTE).max(UNPACKED_BYTES) {
            format!("{} MiB", UNPACKED_BYTES >> 20)
        } else if lines > packed.saturating_mul(UNPACKED_LINES_PER_BYTE).max(UNPACKED_LINES) {
            format!("{UNPACKED_LINES} lines")
        } else {
            return Ok(count);
        };
        let problem = format!("it holds more than {what} in {packed} compressed bytes, as no recording does");
        Err(io::Error::new(io::ErrorKind::FileTooLarge, problem))
    }
}

/// Decompresses if the first bytes are those of zstd. Returns an error if they are those of another form.
pub(crate) fn decompressed<'a>(reader: impl Read + 'a) -> io::Result<Box<dyn BufRead + 'a>> {
    let mut reader = BufReader::with_capacity(1 << 17, reader);
    // A source may hand out its first bytes one at a time, so the magic is gathered, not peeked.
    let mut magic = Vec::with_capacity(MAGIC_BYTES as usize);
    (&mut reader).take(MAGIC_BYTES).read_to_end(&mut magic)?;
    let is_zstd = magic.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]);
    // A table may have a column that is called `PAR1_power`.
    let is_no_text = |byte: &u8| byte.is_ascii_control() && !byte.is_ascii_whitespace();
    let is_parquet = magic.strip_prefix(b"PAR1").is_some_and(|rest| rest.first().is_some_and(is_no_text));
    let known = FOREIGN_FORMS.iter().find(|(begins, _)| magic.starts_with(begins)).map(|(_, what)| *what);
    if let Some(what) = known.or(is_parquet.then_some("it is Parquet")) {
        return Err(io::Error::new(io::ErrorKind::Unsupported, what));
    }
    let whole = io::Cursor::new(magic).chain(reader);
    if is_zstd {
        let decoder = zstd::stream::read::Decoder::with_buffer(CountingReader { inner: whole, bytes: 0 })?;
        Ok(Box::new(BufReader::with_capacity(1 << 17, BoundedDecoder { decoder, unpacked: 0, line_ends: [0; 2] })))
    } else {
        Ok(Box::new(whole))
    }
}

impl<'a> LineReader<'a> {
    pub(crate) fn new(name: &str, reader: impl Read + 'a) -> Result<Self, ImportError> {
        let decoded = decompressed(reader).and_then(decode);
        let ((reader, fingerprint), encoding) = decoded
            .and_then(|(reader, encoding)| Ok((with_line_feeds(reader)?, encoding)))
            .map_err(|error| unreadable(name, None, &error))?;
        Ok(Self {
            name: name.to_owned(),
            reader,
            buffer: Vec::new(),
            number: 0,
            blank_bytes: 0,
            bare_bytes: 0,
            encoding,
            fingerprint,
            open_line: None,
        })
    }

    /// Returns the next line without its end. A line that is no UTF-8 is read as Windows-1252.
    pub(crate) fn next_line(&mut self) -> Result<Option<(u64, Cow<'_, str>)>, ImportError> {
        self.next_line_within(MAX_LINE_BYTES)
    }

    /// Like [`Self::next_line`]; returns an error if the line is longer than `max_bytes`, and holds no more of it.
    pub(crate) fn next_line_within(&mut self, max_bytes: u64) -> Result<Option<(u64, Cow<'_, str>)>, ImportError> {
        self.buffer.clear();
        let read = (&mut self.reader)
            .take(max_bytes)
            .read_until(b'\n', &mut self.buffer)
            .map_err(|error| unreadable(&self.name, Some(self.number + 1), &error))?;
        if read == 0 {
            return Ok(None);
        }
        self.number += 1;
        if read as u64 == max_bytes && self.buffer.last() != Some(&b'\n') {
            let problem = format!("line is longer than {} MiB", max_bytes >> 20);
            return Err(ImportError::in_line(&self.name, self.number, problem, "check that this is the right file"));
        }
        if self.buffer.last() != Some(&b'\n') {
            self.open_line = Some(self.number);
        }
        self.count_bare_line()?;
        let line = self.buffer.strip_suffix(b"\n").unwrap_or(&self.buffer);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let (text, windows_1252) = line_text(line);
        if windows_1252 {
            self.encoding = Encoding::Windows1252;
        }
        Ok(Some((self.number, text)))
    }

    /// Returns an error if too many lines in sequence, the last one among them, hold nothing.
    fn count_bare_line(&mut self) -> Result<(), ImportError> {
        let (line, bytes) = (self.buffer.trim_ascii(), self.buffer.len() as u64);
        self.blank_bytes = if line.is_empty() { self.blank_bytes + bytes } else { 0 };
        self.bare_bytes = if is_bare(line) { self.bare_bytes + bytes } else { 0 };
        let problem = if self.blank_bytes >= MAX_BLANK_BYTES {
            format!("there is nothing in {} MiB of blank lines", MAX_BLANK_BYTES >> 20)
        } else if self.bare_bytes >= MAX_BARE_BYTES {
            format!("there is no value in {} MiB of comments and empty rows", MAX_BARE_BYTES >> 20)
        } else {
            return Ok(());
        };
        Err(ImportError::in_line(&self.name, self.number, problem, "check that this is the right file"))
    }

    /// Returns the rest of the input as one reader, for formats that are not made of lines.
    pub(crate) fn into_reader(self) -> Box<dyn BufRead + 'a> {
        self.reader
    }
}

/// Returns whether a line holds no value: it is a comment, or has neither a letter nor a digit.
fn is_bare(line: &[u8]) -> bool {
    let is_text = |byte: &u8| byte.is_ascii_alphanumeric() || !byte.is_ascii();
    line.starts_with(b"#") || line.starts_with(b"//") || !line.iter().any(is_text)
}

fn unreadable(name: &str, line: Option<u64>, error: &io::Error) -> ImportError {
    let problem = format!("cannot be read: {error}");
    let remedy = match error.kind() {
        io::ErrorKind::IsADirectory => "name the files in it",
        io::ErrorKind::Unsupported if error.to_string() == UTF_32 => "save it as UTF-8: iconv -f UTF-32 -t UTF-8",
        io::ErrorKind::Unsupported => "unpack it, or save what is in it as CSV; plain text and zstd are read",
        io::ErrorKind::FileTooLarge => "check that this is the right file; unpacked by `zstd -d` it is read however long it is",
        _ => "the file may be truncated or damaged; copy it again",
    };
    ImportError { line, ..ImportError::in_file(name, problem, remedy) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packed(rows: impl Iterator<Item = Vec<u8>>) -> Vec<u8> {
        let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 3).unwrap();
        rows.for_each(|row| io::Write::write_all(&mut encoder, &row).unwrap());
        encoder.finish().unwrap()
    }

    #[test]
    fn rows_without_end_in_a_few_kilobytes_are_an_error() {
        let rows = b"2025-02-03T10:00:00Z,100\n".repeat(1 << 16);
        let bytes = rows.len();
        let long = [vec![b' '; 1 << 20], vec![b'\n']].concat();
        for (rows, expected) in [(rows, "it holds more than 4000000 lines in "), (long, "it holds more than 256 MiB in ")] {
            let packed = packed(std::iter::repeat_n(rows, 300));
            assert!(packed.len() < 100_000, "{}", packed.len());
            let mut read = decompressed(&packed[..]).unwrap();
            let error = io::copy(&mut read, &mut io::sink()).unwrap_err();
            assert!(error.to_string().starts_with(expected), "{error}");
        }
        // The same rows in a plain file, of any length.
        let plain = b"2025-02-03T10:00:00Z,100\n".repeat(1 << 16);
        assert_eq!(io::copy(&mut decompressed(&plain[..]).unwrap(), &mut io::sink()).unwrap(), bytes as u64);
    }

    #[test]
    fn a_long_recording_in_which_only_the_time_changes_is_read() {
        let row =
            |second: u64| format!("2025-02-03 {:02}:{:02}:{:02},GPU-a,60.00 W\n", second / 3600, second / 60 % 60, second % 60);
        let day: Vec<u8> = (0..86_400).flat_map(|second| row(second).into_bytes()).collect();
        let bytes = day.len() as u64 * 100;
        let packed = packed(std::iter::repeat_n(day, 100));
        assert!(bytes > UNPACKED_BYTES);
        assert_eq!(io::copy(&mut decompressed(&packed[..]).unwrap(), &mut io::sink()).unwrap(), bytes);
    }
}
