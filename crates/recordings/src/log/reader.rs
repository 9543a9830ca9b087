use std::borrow::Cow;
use std::io::Read;

use eadt_schemas::counts::counted_as;
use eadt_schemas::event_log::value_of_base64;
use eadt_schemas::{EventTime, EventType, LoggedEvent, Topic};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::chunk::{LogChunk, LogChunks};

/// Longest accepted event: a dead letter of twice the largest record, escaped, fits.
pub const MAX_EVENT_BYTES: usize = 16 << 20;

/// An event log that cannot be read on.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{name}:{line} (byte {offset}): {problem}; {} good: repair it, or end the log before it", counted_as(*good, "event before it is", "events before it are"))]
pub struct LogError {
    pub name: String,
    /// Counted from 1; in a JSON array, the number of the element.
    pub line: u64,
    /// Position of the line, in bytes of the uncompressed log.
    pub offset: u64,
    /// Events read before it.
    pub good: u64,
    pub problem: String,
    /// The next call goes on with the line after it; else nothing more can be read.
    pub can_go_on: bool,
    /// The log ends here, in the middle of an event: it was cut, and what came before is whole.
    pub cut: bool,
}

impl LogError {
    /// Returns the same, counted from further back: behind so many lines and good events.
    #[must_use]
    pub fn offset_by(self, lines: u64, good: u64) -> Self {
        Self { line: self.line + lines, good: self.good + good, ..self }
    }
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
    /// Time of the event, or of the data if the event itself has none.
    #[serde(default = "no_time")]
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
    #[serde(rename = "eadtsentagain", default)]
    pub is_sent_again: bool,
    #[serde(rename = "eadtinputpositions", borrow, default)]
    pub input_positions: Option<Cow<'a, str>>,
    #[serde(rename = "eadtsettings", borrow, default)]
    pub settings: Option<Cow<'a, str>>,
    #[serde(rename = "eadtreason", borrow, default)]
    pub reason: Option<Cow<'a, str>>,
    #[serde(rename = "eadtdetail", borrow, default)]
    pub detail: Option<Cow<'a, str>>,
    #[serde(borrow, default, deserialize_with = "raw")]
    pub(super) data: Option<Cow<'a, str>>,
}

fn raw<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Cow<'de, str>>, D::Error> {
    Ok(Option::<&'de RawValue>::deserialize(deserializer)?.map(|data| Cow::Borrowed(data.get())))
}

fn no_time() -> EventTime {
    EventTime::MIN
}

impl<'a> EventRef<'a> {
    /// Reads an event of any layout. `CloudEvents` may leave the time to the data.
    pub(super) fn read(json: &'a [u8]) -> Result<Self, serde_json::Error> {
        #[derive(Deserialize)]
        struct TimeField {
            time: EventTime,
        }
        #[derive(Deserialize)]
        struct Base64Field<'a> {
            #[serde(borrow, default)]
            data_base64: Option<Cow<'a, str>>,
        }
        let mut event: Self = serde_json::from_slice(json)?;
        if event.data.is_none() {
            event.data =
                serde_json::from_slice::<Base64Field<'_>>(json)?.data_base64.map(|data| Cow::Owned(value_of_base64(&data)));
        }
        if event.time == no_time() {
            let timed = event.data.as_deref().map(serde_json::from_str::<TimeField>).and_then(Result::ok);
            event.time = timed.ok_or_else(|| serde::de::Error::custom("missing field `time`"))?.time;
        }
        Ok(event)
    }
}

impl EventRef<'_> {
    /// Returns the topic that this event belongs to, `None` if neither topic nor type is known.
    pub fn topic(&self) -> Option<Topic> {
        self.topic.or_else(|| EventType::from_name(&self.kind).and_then(EventType::topic))
    }

    /// Returns the record's value; `None` for a tombstone. The value is one JSON value in outline; errors inside it are found
    /// on decoding.
    pub fn value(&self) -> Option<&[u8]> {
        self.data.as_deref().map(str::as_bytes)
    }

    /// Returns a copy that outlives the buffer; refused where the value is no JSON after all.
    pub fn to_logged(&self) -> Result<LoggedEvent, serde_json::Error> {
        let data = self.data.as_deref().map(|data| RawValue::from_string(data.to_owned())).transpose()?;
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
            is_sent_again: self.is_sent_again,
            input_positions: self.input_positions.as_deref().map(str::to_owned),
            settings: self.settings.as_deref().map(str::to_owned),
            reason: self.reason.as_deref().map(str::to_owned),
            detail: self.detail.as_deref().map(str::to_owned),
            data,
        })
    }
}

/// Reads an event log event by event, see [`LogChunks`].
///
/// Its buffer is reused, so that reading a log that [`crate::LogWriter`] wrote allocates nothing.
#[derive(Debug)]
pub struct LogReader<'a> {
    chunks: LogChunks<'a>,
    chunk: LogChunk,
    /// Lines before the present chunk.
    lines: u64,
    good: u64,
    ended: bool,
}

impl<'a> LogReader<'a> {
    /// Opens the log. `name` is its name in errors.
    pub fn new(name: impl Into<String>, reader: impl Read + 'a) -> Result<Self, LogError> {
        Ok(Self { chunks: LogChunks::new(name, reader)?, chunk: LogChunk::default(), lines: 0, good: 0, ended: false })
    }

    /// Events read so far.
    pub fn events(&self) -> u64 {
        self.good + self.chunk.good_count()
    }

    /// Returns the next event; `None` at the end. After an error with [`LogError::can_go_on`] the next call goes on
    /// behind it.
    pub fn next_event(&mut self) -> Result<Option<EventRef<'_>>, LogError> {
        while !self.chunk.advance() {
            self.lines += self.chunk.lines();
            self.good += self.chunk.good_count();
            let (lines, good) = (self.lines, self.good);
            if self.ended || !self.chunks.next_soon(&mut self.chunk).map_err(|error| error.offset_by(lines, good))? {
                self.ended = true;
                return Ok(None);
            }
        }
        let (lines, good) = (self.lines, self.good);
        match self.chunk.event() {
            Ok(event) => Ok(Some(event)),
            Err(error) => {
                self.ended |= !error.can_go_on;
                Err(error.offset_by(lines, good))
            }
        }
    }
}
