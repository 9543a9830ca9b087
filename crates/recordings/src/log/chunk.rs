//! A log cut into pieces of whole events, so that they can be taken apart on several threads.

use std::io::{self, BufRead, Read};

use super::canonical;
use super::reader::{EventRef, LogError, MAX_EVENT_BYTES};
use crate::encoding::decode;
use crate::error::quote;
use crate::lines::decompressed;

/// Bytes of a chunk: some hundred events, so that handing one over costs nothing beside reading it.
const CHUNK_BYTES: usize = 256 << 10;
/// Blank lines and separators between two events, at most.
const MAX_BLANK_BYTES: usize = MAX_EVENT_BYTES;
/// Read at once where a chunk may end with the next line.
const READ_BYTES: usize = 64 << 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum LogFraming {
    #[default]
    Lines,
    /// A JSON array of events, or events that are spread over several lines.
    Values,
}

/// End of a value of [`LogFraming::Values`] in its chunk, and its start in the log.
#[derive(Debug, Clone, Copy)]
struct ValueSpan {
    end: usize,
    offset: u64,
}

/// Whole events of a log, in order. It goes on to the next with [`Self::advance`].
#[derive(Debug, Default)]
pub struct LogChunk {
    name: String,
    framing: LogFraming,
    bytes: Vec<u8>,
    /// Number of bytes that belong to the chunk; the rest is kept for the next use.
    filled: usize,
    values: Vec<ValueSpan>,
    /// Position of the chunk in the uncompressed log.
    offset: u64,
    /// The present event.
    start: usize,
    end: usize,
    lines: u64,
    good: u64,
}

impl LogChunk {
    /// Goes to the next event; false at the chunk's end. Blank lines are none.
    pub fn advance(&mut self) -> bool {
        loop {
            if self.end >= self.filled {
                self.start = self.end;
                return false;
            }
            self.start = self.end;
            self.end = match self.framing {
                LogFraming::Lines => {
                    let rest = &self.bytes[self.start..self.filled];
                    memchr::memchr(b'\n', rest).map_or(self.filled, |at| self.start + at + 1)
                }
                LogFraming::Values => self.values.get(self.lines as usize).map_or(self.filled, |value| value.end),
            };
            self.lines += 1;
            if self.current_event().iter().any(|byte| !byte.is_ascii_whitespace()) {
                return true;
            }
        }
    }

    fn current_event(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// Lines gone through, the present one included.
    pub fn lines(&self) -> u64 {
        self.lines
    }

    /// Counts the present event as good, as [`Self::event`] does: for those who did without it.
    pub fn count_good(&mut self) {
        self.good += 1;
    }

    /// Events that were good so far.
    pub fn good_count(&self) -> u64 {
        self.good
    }

    /// Returns the present event if it looks as [`crate::LogWriter`] writes it, much faster than [`Self::event`]. It assumes
    /// that the value goes on to the end of the line. If the caller finds exactly one JSON object there, the event is right;
    /// otherwise the caller must use [`Self::event`].
    pub fn likely_event(&self) -> Option<EventRef<'_>> {
        let line = self.current_event();
        if line.len() > MAX_EVENT_BYTES { None } else { canonical::parse_unchecked_value(line) }
    }

    /// Returns the present event.
    pub fn event(&mut self) -> Result<EventRef<'_>, LogError> {
        let line = &self.bytes[self.start..self.end];
        if line.len() > MAX_EVENT_BYTES {
            self.end = self.filled;
            return Err(self.too_long());
        }
        if let Some(event) = canonical::parse(line) {
            self.good += 1;
            return Ok(event);
        }
        match EventRef::read(line) {
            Ok(event) => {
                self.good += 1;
                Ok(event)
            }
            Err(error) => {
                let complete = self.framing == LogFraming::Values || line.last() == Some(&b'\n');
                let text = excerpt(line);
                let cut = !complete && error.is_eof();
                let problem = match dump_of_kafka(line) {
                    _ if cut => format!("the log ends in the middle of an event: {text}"),
                    Some(what) => {
                        format!(
                            "is not a CloudEvents JSON object, but {what}: write the log with `eadt record --out LOG`: {text}"
                        )
                    }
                    None => format!("is not a CloudEvents JSON object ({error}): {text}"),
                };
                Err(LogError { can_go_on: !cut, cut, ..self.error(problem) })
            }
        }
    }

    fn too_long(&self) -> LogError {
        self.error(format!("a line is longer than {} MiB: not an event log", MAX_EVENT_BYTES >> 20))
    }

    fn error(&self, problem: String) -> LogError {
        let offset = match self.framing {
            LogFraming::Lines => self.offset + self.start as u64,
            LogFraming::Values => {
                self.values.get(self.lines.saturating_sub(1) as usize).map_or(self.offset, |value| value.offset)
            }
        };
        LogError { name: self.name.clone(), line: self.lines, offset, good: self.good, problem, can_go_on: false, cut: false }
    }
}

/// What console consumers print before a record, if they are asked to.
const PRINTED_BEFORE_RECORDS: [&str; 5] = ["CreateTime:", "LogAppendTime:", "NoTimestampType:", "Offset:", "Partition:"];

/// Returns what a line is if a program that reads Kafka printed it: a record with its key or time before its value, a record as
/// `kcat -J` prints it, or a value without the headers that make it an event.
fn dump_of_kafka(line: &[u8]) -> Option<&'static str> {
    let text = std::str::from_utf8(line).ok()?.trim();
    let has = |keys: &[&str]| keys.iter().all(|key| text.contains(&format!("\"{key}\":")));
    let is_object = text.starts_with('{');
    let has_one = |keys: [&str; 2]| keys.into_iter().any(|key| has(&[key]));
    let is_value = has_one(["time", "window_start"]) && has_one(["collector", "workload"]);
    let has_value = || text.rsplit_once('\t').is_some_and(|(_, value)| value.trim_start().starts_with('{'));
    match () {
        () if !is_object && (has_value() || PRINTED_BEFORE_RECORDS.iter().any(|name| text.starts_with(name))) => {
            Some("a record of Kafka with its key or time before its value")
        }
        () if is_object && has(&["topic", "partition", "offset", "payload"]) => Some("a record of Kafka as kcat prints it"),
        () if is_object && !has(&["type"]) && is_value => Some("the value of a record of Kafka without its headers"),
        () => None,
    }
}

fn excerpt(text: &[u8]) -> String {
    quote(String::from_utf8_lossy(&text[..text.len().min(200)]).trim())
}

/// Cuts an event log into [`LogChunk`]s: one event a line, a JSON array of events (`CloudEvents`' batch form), or events one after
/// the other, plain or zstd.
///
/// Lines and good events in the errors of chunks, and in its own, count from the chunk's beginning: [`LogError::offset_by`] adds
/// what came before, which only those know who took the chunks in order.
pub struct LogChunks<'a> {
    name: String,
    reader: Box<dyn BufRead + 'a>,
    framing: LogFraming,
    /// A line's beginning that is left from the last chunk.
    carry: Vec<u8>,
    /// Position of the next chunk.
    offset: u64,
    ended: bool,
    /// Blank bytes since the last event.
    blank: usize,
    /// Found behind events that are good.
    failed: Option<LogError>,
}

impl std::fmt::Debug for LogChunks<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LogChunks").field("name", &self.name).field("offset", &self.offset).finish_non_exhaustive()
    }
}

impl<'a> LogChunks<'a> {
    /// Opens the log. `name` is its name in errors.
    pub fn new(name: impl Into<String>, reader: impl Read + 'a) -> Result<Self, LogError> {
        let name = name.into();
        let failed = |name: &str, error: &io::Error| LogError {
            name: name.to_owned(),
            line: 1,
            offset: 0,
            good: 0,
            problem: format!("cannot be read: {error}"),
            can_go_on: false,
            cut: error.kind() == io::ErrorKind::UnexpectedEof,
        };
        let reader = decompressed(reader).map_err(|error| failed(&name, &error))?;
        let (mut reader, mark_bytes) = decode_text(reader).map_err(|error| failed(&name, &error))?;
        let shape = detect_framing(&mut reader).map_err(|error| failed(&name, &error))?;
        Ok(Self { name, reader, framing: shape, carry: Vec::new(), offset: mark_bytes, ended: false, blank: 0, failed: None })
    }

    /// Returns the number of bytes of the uncompressed log that are in chunks.
    pub fn bytes(&self) -> u64 {
        self.offset
    }

    /// Fills a chunk, whose memory is used again; false at the log's end.
    pub fn next(&mut self, chunk: &mut LogChunk) -> Result<bool, LogError> {
        self.fill(chunk, CHUNK_BYTES)
    }

    /// Like [`Self::next`], but ends the chunk as soon as the reader has given a whole event: for logs that are still written.
    pub(super) fn next_soon(&mut self, chunk: &mut LogChunk) -> Result<bool, LogError> {
        self.fill(chunk, 1)
    }

    fn fill(&mut self, chunk: &mut LogChunk, target: usize) -> Result<bool, LogError> {
        chunk.name.clone_from(&self.name);
        (chunk.framing, chunk.offset) = (self.framing, self.offset);
        (chunk.filled, chunk.start, chunk.end, chunk.lines, chunk.good) = (0, 0, 0, 0, 0);
        chunk.values.clear();
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        if !self.ended {
            match self.framing {
                LogFraming::Lines => self.fill_with_lines(chunk, target),
                LogFraming::Values => self.values(chunk, target),
            }
        }
        if chunk.filled > 0 {
            return Ok(true);
        }
        self.failed.take().map_or(Ok(false), Err)
    }

    /// Stops reading here; earlier events of the chunk are valid.
    fn fail(&mut self, offset: u64, problem: String) {
        self.ended = true;
        self.failed = Some(LogError { name: self.name.clone(), line: 1, offset, good: 0, problem, can_go_on: false, cut: false });
    }

    /// Like [`Self::fail`], where the log was cut if the source ended too early.
    fn fail_to_read(&mut self, offset: u64, error: &io::Error) {
        let cut = error.kind() == io::ErrorKind::UnexpectedEof;
        self.fail(offset, format!("is truncated or damaged: {error}"));
        if let Some(failed) = &mut self.failed {
            failed.cut = cut;
        }
    }

    /// Stops at too many blank lines: a small compressed file may hold blank lines without end.
    fn fail_blank(&mut self) {
        let problem = format!("no event in {} MiB of blank lines: not an event log", MAX_BLANK_BYTES >> 20);
        self.fail(self.offset, problem);
    }

    fn fill_with_lines(&mut self, chunk: &mut LogChunk, target: usize) {
        let LogChunk { bytes, filled, .. } = chunk;
        let room = self.carry.len() + target.max(READ_BYTES);
        if bytes.len() < room {
            bytes.resize(room, 0);
        }
        bytes[..self.carry.len()].copy_from_slice(&self.carry);
        let mut read = self.carry.len();
        self.carry.clear();
        // Behind the last line break.
        let mut whole = 0;
        while whole == 0 || read < target {
            if read - whole > MAX_EVENT_BYTES {
                self.fail(
                    self.offset + whole as u64,
                    format!("a line is longer than {} MiB: not an event log", MAX_EVENT_BYTES >> 20),
                );
                break;
            }
            if read == bytes.len() {
                bytes.resize(read + read.max(READ_BYTES), 0);
            }
            match self.reader.read(&mut bytes[read..]) {
                Ok(0) => {
                    self.ended = true;
                    whole = read;
                    break;
                }
                Ok(more) => {
                    if let Some(at) = memchr::memrchr(b'\n', &bytes[read..read + more]) {
                        whole = read + at + 1;
                    }
                    read += more;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.fail_to_read(self.offset + read as u64, &error);
                    break;
                }
            }
        }
        self.carry.extend_from_slice(&bytes[whole..read]);
        *filled = whole;
        let is_blank = bytes[..whole].iter().all(u8::is_ascii_whitespace);
        self.blank = if is_blank { self.blank + whole } else { 0 };
        self.offset += whole as u64;
        if self.blank > MAX_BLANK_BYTES {
            self.fail_blank();
        }
    }

    fn values(&mut self, chunk: &mut LogChunk, target: usize) {
        while chunk.filled < target && !self.ended {
            self.fill_with_value(chunk);
        }
    }

    /// Cuts the next top-level object out of an array or a sequence.
    fn fill_with_value(&mut self, chunk: &mut LogChunk) {
        let (mut depth, mut in_text, mut escaped) = (0_u32, false, false);
        let mut start = self.offset;
        chunk.bytes.truncate(chunk.filled);
        loop {
            let available = match self.reader.fill_buf() {
                Ok(available) => available,
                Err(error) => return self.fail_to_read(self.offset, &error),
            };
            if available.is_empty() {
                self.ended = true;
                if depth > 0 {
                    let text = excerpt(&chunk.bytes[chunk.filled..]);
                    self.fail(start, format!("the log ends in the middle of an event: {text}"));
                    if let Some(failed) = &mut self.failed {
                        failed.cut = true;
                    }
                }
                return;
            }
            let mut used = 0;
            let mut closed = false;
            for &byte in available {
                used += 1;
                if depth == 0 {
                    match byte {
                        b'{' => (depth, start) = (1, self.offset + used as u64 - 1),
                        // Between events of an array or a sequence.
                        b'[' | b']' | b',' | b' ' | b'\t' | b'\r' | b'\n' => {
                            self.blank += 1;
                            continue;
                        }
                        _ => {
                            let (at, odd) = (self.offset + used as u64 - 1, char::from(byte));
                            return self.fail(at, format!("{odd:?} is where an event should begin"));
                        }
                    }
                } else if in_text {
                    match byte {
                        _ if escaped => escaped = false,
                        b'\\' => escaped = true,
                        b'"' => in_text = false,
                        _ => {}
                    }
                } else {
                    match byte {
                        b'"' => in_text = true,
                        b'{' | b'[' => depth += 1,
                        b'}' | b']' => depth -= 1,
                        _ => {}
                    }
                }
                chunk.bytes.push(byte);
                if depth == 0 {
                    closed = true;
                    break;
                }
            }
            self.reader.consume(used);
            self.offset += used as u64;
            if self.blank > MAX_BLANK_BYTES {
                return self.fail_blank();
            }
            if closed {
                self.blank = 0;
                chunk.filled = chunk.bytes.len();
                chunk.values.push(ValueSpan { end: chunk.filled, offset: start });
                return;
            }
            if chunk.bytes.len() - chunk.filled > MAX_EVENT_BYTES {
                let problem = format!("an event is longer than {} MiB: not an event log", MAX_EVENT_BYTES >> 20);
                return self.fail(start, problem);
            }
        }
    }
}

const BYTE_ORDER_MARK: [u8; 3] = [0xef, 0xbb, 0xbf];
/// Bytes that are waited for before the first event: a log that is still written may have few.
const HEAD_BYTES: u64 = 4;

/// Returns a reader of UTF-8 behind the byte-order mark that some editors put before it, and the mark's length. UTF-16, as
/// PowerShell's `>` writes, is decoded.
fn decode_text<'a>(mut reader: Box<dyn BufRead + 'a>) -> io::Result<(Box<dyn BufRead + 'a>, u64)> {
    let mut head = Vec::with_capacity(HEAD_BYTES as usize);
    (&mut reader).take(HEAD_BYTES).read_to_end(&mut head)?;
    let is_wide = [&[0xff, 0xfe][..], &[0xfe, 0xff], b"{\0", b"[\0", b"\0{", b"\0["].iter().any(|begin| head.starts_with(begin));
    let mark_bytes = if head.starts_with(&BYTE_ORDER_MARK) { BYTE_ORDER_MARK.len() } else { 0 };
    let rest = Box::new(io::Cursor::new(head.split_off(mark_bytes)).chain(reader));
    if is_wide { Ok((decode(rest)?.0, 0)) } else { Ok((rest, mark_bytes as u64)) }
}

/// Detects the framing. An array begins with a bracket; an event that is spread over lines has no closing brace on its first.
fn detect_framing(reader: &mut impl BufRead) -> io::Result<LogFraming> {
    let available = reader.fill_buf()?;
    let text = available.trim_ascii_start();
    let first = text.split(|byte| *byte == b'\n').next().unwrap_or_default().trim_ascii_end();
    Ok(if text.first() == Some(&b'[') || first == b"{" { LogFraming::Values } else { LogFraming::Lines })
}
