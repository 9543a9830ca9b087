use std::borrow::Cow;
use std::io::{self, BufRead, Read};

use eadt_schemas::{EventTime, EventType, LoggedEvent, Topic};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::canonical;
use crate::error::quote;
use crate::lines::decompressed;

/// Longest accepted event: a dead letter of twice the largest record, escaped, fits.
pub const MAX_EVENT_BYTES: usize = 16 << 20;

/// An event log that cannot be read on.
#[derive(Debug, thiserror::Error)]
#[error("{name}:{line} (byte {offset}): {problem}; the {good} event(s) before it are good")]
pub struct LogError {
    pub name: String,
    /// Counted from 1; in a JSON array, the number of the element.
    pub line: u64,
    /// Where the line begins, in bytes of the uncompressed log.
    pub offset: u64,
    /// Events read before it.
    pub good: u64,
    pub problem: String,
    /// The next call goes on with the line after it; else nothing more can be read.
    pub can_go_on: bool,
}

/// An event as it lies in the reader's buffer.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct EventRef<'a> {
    /// `ce_type`.
    #[serde(rename = "type", borrow)]
    pub kind: Cow<'a, str>,
    #[serde(borrow, default)]
    pub source: Cow<'a, str>,
    #[serde(borrow, default)]
    pub id: Cow<'a, str>,
    pub time: EventTime,
    #[serde(borrow, default)]
    pub subject: Cow<'a, str>,
    #[serde(rename = "partitionkey", borrow, default)]
    pub key: Option<Cow<'a, str>>,
    #[serde(rename = "eadttopic", default)]
    pub(super) topic: Option<Topic>,
    #[serde(rename = "eadtpartition", default)]
    pub partition: Option<i32>,
    #[serde(rename = "eadtoffset", default)]
    pub offset: Option<i64>,
    #[serde(rename = "eadtstamp", default)]
    pub stamp: Option<EventTime>,
    #[serde(borrow, default, deserialize_with = "raw")]
    pub(super) data: Option<&'a str>,
}

fn raw<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<&'de str>, D::Error> {
    Ok(Option::<&'de RawValue>::deserialize(deserializer)?.map(RawValue::get))
}

impl EventRef<'_> {
    /// The topic that this event belongs to, `None` where neither topic nor type is known.
    pub fn topic(&self) -> Option<Topic> {
        self.topic.or_else(|| EventType::from_name(&self.kind).and_then(EventType::topic))
    }

    /// The record's value; `None`: a tombstone. One JSON value in outline; whoever decodes it finds what is wrong inside.
    pub fn value(&self) -> Option<&[u8]> {
        self.data.map(str::as_bytes)
    }

    /// A copy that outlives the buffer; refused where the value is no JSON after all.
    pub fn to_logged(&self) -> Result<LoggedEvent, serde_json::Error> {
        let data = self.data.map(|data| RawValue::from_string(data.to_owned())).transpose()?;
        Ok(LoggedEvent {
            specversion: "1.0".to_owned(),
            kind: self.kind.to_string(),
            source: self.source.to_string(),
            id: self.id.to_string(),
            time: self.time,
            subject: self.subject.to_string(),
            datacontenttype: "application/json".to_owned(),
            key: self.key.as_deref().map(str::to_owned),
            topic: self.topic,
            partition: self.partition,
            offset: self.offset,
            stamp: self.stamp,
            data,
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    Lines,
    /// A JSON array of events, or events that are spread over several lines.
    Values,
}

/// Reads an event log: one event a line, a JSON array of events (CloudEvents' batch form), or events one after the
/// other, plain or zstd.
///
/// Its buffer is reused, so that reading a log that [`crate::LogWriter`] wrote allocates nothing.
pub struct LogReader<'a> {
    name: String,
    reader: Box<dyn BufRead + 'a>,
    shape: Shape,
    buffer: Vec<u8>,
    /// Bytes before the next line.
    offset: u64,
    line: u64,
    good: u64,
    ended: bool,
}

impl std::fmt::Debug for LogReader<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LogReader").field("name", &self.name).field("line", &self.line).finish_non_exhaustive()
    }
}

impl<'a> LogReader<'a> {
    /// `name` is what errors call the log.
    pub fn new(name: impl Into<String>, reader: impl Read + 'a) -> Result<Self, LogError> {
        let name = name.into();
        let failed = |name: &str, error: &io::Error| LogError {
            name: name.to_owned(),
            line: 1,
            offset: 0,
            good: 0,
            problem: format!("cannot be read: {error}"),
            can_go_on: false,
        };
        let mut reader = decompressed(reader).map_err(|error| failed(&name, &error))?;
        let shape = shape(&mut reader).map_err(|error| failed(&name, &error))?;
        Ok(Self { name, reader, shape, buffer: Vec::with_capacity(4096), offset: 0, line: 0, good: 0, ended: false })
    }

    /// Events read so far.
    pub fn events(&self) -> u64 {
        self.good
    }

    /// Bytes of the uncompressed log read so far.
    pub fn bytes(&self) -> u64 {
        self.offset
    }

    /// The next event; `None` at the end. After an error that says [`LogError::can_go_on`] the next call goes on
    /// behind it.
    pub fn next_event(&mut self) -> Result<Option<EventRef<'_>>, LogError> {
        let start = loop {
            if self.ended {
                return Ok(None);
            }
            let start = self.offset;
            self.buffer.clear();
            match self.shape {
                Shape::Lines => self.read_line(start)?,
                Shape::Values => self.read_value(start)?,
            }
            if self.buffer.iter().any(|byte| !byte.is_ascii_whitespace()) {
                break start;
            }
        };
        // The borrow of the buffer ends with the event, so a failed parse is told from copies.
        let complete = self.shape == Shape::Values || self.buffer.last() == Some(&b'\n');
        if let Some(event) = canonical::parse(&self.buffer) {
            self.good += 1;
            return Ok(Some(event));
        }
        match serde_json::from_slice::<EventRef<'_>>(&self.buffer) {
            Ok(event) => {
                self.good += 1;
                Ok(Some(event))
            }
            Err(error) => {
                let text = String::from_utf8_lossy(&self.buffer[..self.buffer.len().min(200)]);
                let problem = if !complete && error.is_eof() {
                    format!("the log ends in the middle of an event: {}", quote(text.trim()))
                } else {
                    format!("is not a CloudEvents JSON object ({error}): {}", quote(text.trim()))
                };
                let (name, line, good) = (self.name.clone(), self.line, self.good);
                Err(LogError { name, line, offset: start, good, problem, can_go_on: true })
            }
        }
    }

    fn fail(&mut self, offset: u64, problem: String) -> LogError {
        self.ended = true;
        LogError { name: self.name.clone(), line: self.line, offset, good: self.good, problem, can_go_on: false }
    }

    fn read_line(&mut self, start: u64) -> Result<(), LogError> {
        self.line += 1;
        let limit = MAX_EVENT_BYTES as u64 + 1;
        let read = match (&mut self.reader).take(limit).read_until(b'\n', &mut self.buffer) {
            Ok(read) => read,
            Err(error) => {
                let at = start + self.buffer.len() as u64;
                return Err(self.fail(at, format!("is truncated or damaged: {error}")));
            }
        };
        self.offset += read as u64;
        self.ended = read == 0;
        if self.buffer.len() > MAX_EVENT_BYTES {
            return Err(self.fail(start, format!("a line is longer than {} MiB: not an event log", MAX_EVENT_BYTES >> 20)));
        }
        Ok(())
    }

    /// Cuts the next top-level object out of an array or a sequence.
    fn read_value(&mut self, start: u64) -> Result<(), LogError> {
        self.line += 1;
        let (mut depth, mut in_text, mut escaped) = (0_u32, false, false);
        loop {
            let available = match self.reader.fill_buf() {
                Ok(available) => available,
                Err(error) => {
                    let problem = format!("is truncated or damaged: {error}");
                    let at = self.offset;
                    return Err(self.fail(at, problem));
                }
            };
            if available.is_empty() {
                if depth > 0 {
                    let text = String::from_utf8_lossy(&self.buffer[..self.buffer.len().min(200)]).into_owned();
                    return Err(self.fail(start, format!("the log ends in the middle of an event: {}", quote(text.trim()))));
                }
                self.ended = true;
                return Ok(());
            }
            let mut used = 0;
            let mut closed = false;
            for &byte in available {
                used += 1;
                if depth == 0 {
                    match byte {
                        b'{' => depth = 1,
                        // Between events of an array or a sequence.
                        b'[' | b']' | b',' | b' ' | b'\t' | b'\r' | b'\n' => continue,
                        _ => {
                            let (at, odd) = (self.offset + used as u64 - 1, char::from(byte));
                            return Err(self.fail(at, format!("{odd:?} stands where an event should begin")));
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
                self.buffer.push(byte);
                if depth == 0 {
                    closed = true;
                    break;
                }
            }
            self.reader.consume(used);
            self.offset += used as u64;
            if closed {
                return Ok(());
            }
            if self.buffer.len() > MAX_EVENT_BYTES {
                let problem = format!("an event is longer than {} MiB: not an event log", MAX_EVENT_BYTES >> 20);
                return Err(self.fail(start, problem));
            }
        }
    }
}

/// An array begins with a bracket; an event that is spread over lines has no closing brace on its first.
fn shape(reader: &mut impl BufRead) -> io::Result<Shape> {
    let available = reader.fill_buf()?;
    let text = available.trim_ascii_start();
    let first = text.split(|byte| *byte == b'\n').next().unwrap_or_default().trim_ascii_end();
    Ok(if text.first() == Some(&b'[') || first == b"{" { Shape::Values } else { Shape::Lines })
}
