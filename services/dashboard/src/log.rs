//! `GET /api/v1/log`: the events of the log as lines of an event log, first those that it holds, then new ones as they are
//! appended.
//!
//! The first line is `{"from":"…"}` with the positions at which reading begins. A line `{"end":"…"}` with the positions reached
//! follows when everything is read that was there at the begin, and each time that every partition is read to its end. A blank
//! line keeps the connection alive. Every other line is an event. A client that lost the connection asks with `at=` and the
//! positions that it reached.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use eadt_bus::{Bus, BusError, ConsumerRecord, IsolationLevel, PartitionReader, PollEvent, StartOffset, TopicPartition};
use eadt_schemas::{EventTime, Topic};
use eadt_service::{Shutdown, tasks};
use futures::stream;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::api::{ApiContext, ApiError};
use crate::extract::ApiQuery;

/// Header with the positions at which the log ended when the stream was opened: to show how far a client is.
pub const LOG_END_HEADER: &str = "eadt-log-end";
/// Longest text of it. A log with more partitions has no such header.
const LONGEST_END: usize = 8 << 10;
/// Media type of the stream.
pub const LOG_MEDIA_TYPE: &str = "application/x-ndjson";
/// Streams at once: ten people at terminals, and some to spare. Each has a thread, and on Kafka a consumer of its own with up to
/// 4 MiB of fetched records. Browsers do not count: they share the page's own reader.
const MOST_STREAMS: usize = 12;
/// Records of one poll.
const RECORDS: usize = 512;
const POLL: Duration = Duration::from_millis(200);
/// Bytes of values after which lines are sent.
const CHUNK_BYTES: usize = 256 << 10;
/// Chunks that wait for a slow client. Then the thread waits, too.
const CHUNKS: usize = 2;
/// Interval between two checks of a full channel, and the longest time that a client may take nothing. Its place is for clients
/// that read.
const ROOM_PAUSE: Duration = Duration::from_millis(10);
const STALLED_CLIENT_TIMEOUT: Duration = Duration::from_mins(1);
/// Longest time without a line.
const KEEP_ALIVE: Duration = Duration::from_secs(3);
/// Longest span that can be asked for, in seconds: about 300 years.
const LONGEST_SECONDS: f64 = 1e10;
/// Bound above any topic's partition count: a request of another program takes no memory for more.
const MOST_PARTITIONS: usize = 100_000;

/// The next offset of each partition of some topics, as text: `decisions.v1:0,12;workloads.v1:7,7`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct LogPositions(BTreeMap<Topic, Vec<i64>>);

/// A text that does not contain positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no positions: give the text of the last line with `end`, such as decisions.v1:0,12;workloads.v1:7,7")]
pub struct InvalidPositions;

impl LogPositions {
    /// Returns the next offset of a partition, if the partition is known.
    pub fn offset(&self, topic: Topic, partition: i32) -> Option<i64> {
        self.0.get(&topic)?.get(usize::try_from(partition).ok()?).copied()
    }

    /// Moves a partition's next offset forwards to `offset`, never backwards.
    pub fn advance(&mut self, topic: Topic, partition: i32, offset: i64) {
        let Some(partition) = usize::try_from(partition).ok().filter(|partition| *partition < MOST_PARTITIONS) else { return };
        let offsets = self.0.entry(topic).or_default();
        if offsets.len() <= partition {
            offsets.resize(partition + 1, 0);
        }
        offsets[partition] = offsets[partition].max(offset);
    }

    /// Returns every partition with its next offset.
    pub fn iter(&self) -> impl Iterator<Item = (Topic, i32, i64)> {
        self.0.iter().flat_map(|(topic, offsets)| (0..).zip(offsets).map(move |(partition, offset)| (*topic, partition, *offset)))
    }

    /// Returns the number of partitions.
    pub fn partitions(&self) -> usize {
        self.0.values().map(Vec::len).sum()
    }
}

impl fmt::Display for LogPositions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, (topic, offsets)) in self.0.iter().enumerate() {
            let separator = if number == 0 { "" } else { ";" };
            let offsets: Vec<String> = offsets.iter().map(ToString::to_string).collect();
            write!(f, "{separator}{topic}:{}", offsets.join(","))?;
        }
        Ok(())
    }
}

impl FromStr for LogPositions {
    type Err = InvalidPositions;

    fn from_str(text: &str) -> Result<Self, InvalidPositions> {
        let of_topic = |part: &str| {
            let (name, offsets) = part.split_once(':')?;
            let offset = |text: &str| text.parse::<i64>().ok().filter(|offset| *offset >= 0);
            Some((Topic::from_base_name(name)?, offsets.split(',').map(offset).collect::<Option<Vec<i64>>>()?))
        };
        text.split(';').map(of_topic).collect::<Option<_>>().map(Self).ok_or(InvalidPositions)
    }
}

impl TryFrom<String> for LogPositions {
    type Error = InvalidPositions;

    fn try_from(text: String) -> Result<Self, InvalidPositions> {
        text.parse()
    }
}

impl From<LogPositions> for String {
    fn from(positions: LogPositions) -> Self {
        positions.to_string()
    }
}

/// A line of the stream that is no event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StreamMarker {
    /// Reading begins here.
    From(LogPositions),
    /// Every partition is read to its end, or, of the first such line, to the end that it had when reading began.
    End(LogPositions),
}

impl StreamMarker {
    /// Reads a line; `None` if it is none of these.
    pub fn parse(line: &[u8]) -> Option<Self> {
        let begins = [&b"{\"from\":"[..], b"{\"end\":"].iter().any(|start| line.starts_with(start));
        begins.then(|| serde_json::from_slice(line).ok()).flatten()
    }

    /// Returns the line, with its line break.
    pub fn line(&self) -> Vec<u8> {
        let mut line = serde_json::to_vec(self).expect("every key is a string");
        line.push(b'\n');
        line
    }
}

/// Chooses the topics to read from the log and formats records as text; given by the program.
pub trait LogLines: fmt::Debug + Send + Sync {
    /// Returns every partition of the topics that terminal views read, and where reading begins: with `since` at the first
    /// records that are as new. Blocks. An error is in words for the client.
    fn starts(&self, since: Option<EventTime>) -> Result<Vec<(TopicPartition, StartOffset)>, String>;

    /// Returns the records as lines of an event log.
    fn encode(&self, records: &[(Topic, ConsumerRecord)]) -> Vec<u8>;
}

/// The log behind the page, for clients that read it over HTTP. Clones share the limit of streams.
#[derive(Debug, Clone)]
pub struct LogSource {
    bus: Arc<dyn Bus>,
    prefix: String,
    lines: Arc<dyn LogLines>,
    turns: Arc<Semaphore>,
}

/// The reason why no stream is opened.
#[derive(Debug, thiserror::Error)]
enum OpenError {
    #[error("the log cannot be read: {0}")]
    Unreadable(String),
    /// The log was replaced since the client read it.
    #[error("this log is another one: {topic} partition {partition} ends at offset {end}, and {requested} was requested")]
    OtherLog { topic: Topic, partition: i32, end: i64, requested: i64 },
}

impl From<BusError> for OpenError {
    fn from(error: BusError) -> Self {
        Self::Unreadable(error.to_string())
    }
}

impl From<OpenError> for ApiError {
    fn from(error: OpenError) -> Self {
        let status = match &error {
            OpenError::Unreadable(_) => StatusCode::INTERNAL_SERVER_ERROR,
            OpenError::OtherLog { .. } => StatusCode::GONE,
        };
        Self(status, error.to_string())
    }
}

impl LogSource {
    /// Builds it; `prefix` is the one of the topics' names.
    pub fn new(bus: Arc<dyn Bus>, prefix: String, lines: Arc<dyn LogLines>) -> Self {
        Self { bus, prefix, lines, turns: Arc::new(Semaphore::new(MOST_STREAMS)) }
    }

    fn topic(&self, at: &TopicPartition) -> Option<Topic> {
        Topic::from_name(&at.topic, &self.prefix)
    }

    /// Opens a stream at these positions, or at the records that are as new as `since`. Blocks.
    fn open(self, since: Option<EventTime>, at: Option<&LogPositions>) -> Result<LogStream, OpenError> {
        // No old record is searched for if the client continues.
        let since = if at.is_some() { None } else { since };
        let mut from = self.lines.starts(since).map_err(OpenError::Unreadable)?;
        let (mut positions, mut ends) = (LogPositions::default(), LogPositions::default());
        for (place, start) in &mut from {
            let Some(topic) = self.topic(place) else { continue };
            let marks = self.bus.watermarks(place)?;
            let mut offset = match *start {
                StartOffset::Earliest => marks.low,
                StartOffset::Latest => marks.high,
                StartOffset::At(offset) => offset.max(marks.low),
            };
            if let Some(requested) = at.and_then(|at| at.offset(topic, place.partition)) {
                if requested > marks.high {
                    return Err(OpenError::OtherLog { topic, partition: place.partition, end: marks.high, requested });
                }
                offset = requested.max(marks.low);
            }
            positions.advance(topic, place.partition, offset);
            ends.advance(topic, place.partition, marks.high);
            *start = StartOffset::At(offset);
        }
        let reader = self.bus.reader(&from, IsolationLevel::ReadCommitted)?;
        let (ended, sent) = (BTreeSet::new(), Instant::now());
        Ok(LogStream { source: self, reader, positions, ends: Some(ends), ended, is_end_sent: false, sent })
    }
}

/// A stream that is open.
#[derive(Debug)]
struct LogStream {
    source: LogSource,
    reader: Box<dyn PartitionReader>,
    positions: LogPositions,
    /// End of each partition when the stream began; `None` if the client has everything up to there. A busy log may never be at
    /// all of its ends at once.
    ends: Option<LogPositions>,
    /// Partitions that are read to their ends.
    ended: BTreeSet<TopicPartition>,
    /// The client knows that all of them are.
    is_end_sent: bool,
    /// Time at which lines were sent last.
    sent: Instant,
}

impl LogStream {
    /// Sends lines until the client is gone or the service ends. Blocks.
    fn run(mut self, lines: &mpsc::Sender<Bytes>, shutdown: &Shutdown) -> Result<(), BusError> {
        let mut batch = Vec::new();
        let mut is_there = self.send(lines, StreamMarker::From(self.positions.clone()).line());
        while is_there && !shutdown.is_cancelled() && !lines.is_closed() {
            self.reader.poll(RECORDS, POLL, &mut batch)?;
            is_there = self.pass_on(&mut batch, lines);
            if is_there && self.sent.elapsed() >= KEEP_ALIVE {
                is_there = self.send(lines, b"\n".to_vec());
            }
        }
        Ok(())
    }

    /// Waits until the client has room for these lines. Returns whether it is still there.
    fn send(&mut self, lines: &mpsc::Sender<Bytes>, text: Vec<u8>) -> bool {
        if text.is_empty() {
            return true;
        }
        let is_there = send_within(STALLED_CLIENT_TIMEOUT, lines, text.into());
        self.sent = Instant::now();
        is_there
    }

    /// Returns whether everything is read that was there at the begin, and the client does not know it.
    fn has_passed_ends(&self) -> bool {
        let is_passed =
            |(topic, partition, end): (Topic, i32, i64)| self.positions.offset(topic, partition).is_some_and(|next| next >= end);
        self.ends.as_ref().is_some_and(|ends| ends.iter().all(is_passed))
    }

    /// Sends polled records. Returns whether the client is still connected.
    fn pass_on(&mut self, batch: &mut Vec<PollEvent>, lines: &mpsc::Sender<Bytes>) -> bool {
        let (mut records, mut bytes) = (Vec::new(), 0);
        for polled in batch.drain(..) {
            match polled {
                PollEvent::Record(record) => {
                    let Some(topic) = self.source.topic(&record.at) else { continue };
                    self.ended.remove(&record.at);
                    self.is_end_sent = false;
                    self.positions.advance(topic, record.at.partition, record.offset + 1);
                    bytes += record.value.as_ref().map_or(0, Bytes::len);
                    records.push((topic, record));
                    if bytes >= CHUNK_BYTES {
                        let text = self.source.lines.encode(&records);
                        if !self.send(lines, text) {
                            return false;
                        }
                        (records, bytes) = (Vec::new(), 0);
                    }
                }
                PollEvent::End { at, position } => {
                    if let Some(topic) = self.source.topic(&at) {
                        self.positions.advance(topic, at.partition, position);
                    }
                    self.ended.insert(at);
                }
                _ => {}
            }
        }
        let mut text = self.source.lines.encode(&records);
        let is_at_ends = self.ended.len() == self.positions.partitions();
        if !self.is_end_sent && (is_at_ends || self.has_passed_ends()) {
            text.extend(StreamMarker::End(self.positions.clone()).line());
            (self.is_end_sent, self.ends) = (is_at_ends, None);
        }
        self.send(lines, text)
    }
}

/// Waits for room. Returns whether there was some in this time. Blocks.
fn send_within(within: Duration, lines: &mpsc::Sender<Bytes>, mut text: Bytes) -> bool {
    let begun = Instant::now();
    loop {
        match lines.try_send(text) {
            Ok(()) => return true,
            Err(TrySendError::Full(back)) if begun.elapsed() < within => text = back,
            Err(_) => return false,
        }
        std::thread::sleep(ROOM_PAUSE);
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct LogQuery {
    /// Seconds before the newest record.
    since: Option<f64>,
    at: Option<String>,
}

/// Serves `GET /api/v1/log`.
pub(crate) async fn follow(State(context): State<ApiContext>, ApiQuery(query): ApiQuery<LogQuery>) -> Result<Response, ApiError> {
    let refused = |text: String| ApiError(StatusCode::BAD_REQUEST, text);
    let Some(source) = context.log.clone() else {
        let text = "this page shows an archive: `eadt get` and `eadt describe` read it with --from PATH";
        return Err(ApiError(StatusCode::CONFLICT, text.to_owned()));
    };
    if query.since.is_some_and(|seconds| !(0.0..=LONGEST_SECONDS).contains(&seconds)) {
        return Err(refused(format!("since: give seconds, from 0 to {LONGEST_SECONDS}")));
    }
    let at = query.at.map(|text| text.parse::<LogPositions>()).transpose().map_err(|error| refused(format!("at: {error}")))?;
    let Ok(turn) = source.turns.clone().try_acquire_owned() else {
        let text =
            format!("{MOST_STREAMS} clients read the log, and there is room for no more: end one of them, or try again later");
        return Err(ApiError(StatusCode::SERVICE_UNAVAILABLE, text));
    };
    // Back from the newest record: simulated time is not the clock's.
    let newest = context.model.read(crate::DashboardModel::newest_record);
    let since = query.since.zip(newest).map(|(seconds, newest)| newest.plus_seconds(-seconds));
    let failed =
        |_| ApiError(StatusCode::INTERNAL_SERVER_ERROR, "opening the log failed: see the log of this process".to_owned());
    // The place is taken until the search is over, even if the client has gone meanwhile.
    let open = move || source.open(since, at.as_ref()).map(|opened| (opened, turn));
    let (opened, turn) = tokio::task::spawn_blocking(open).await.map_err(failed)??;
    Ok(respond(opened, turn, context.shutdown))
}

/// Answers with the lines of a stream, which are read on a thread of their own until the client or the service ends.
fn respond(opened: LogStream, turn: OwnedSemaphorePermit, shutdown: Shutdown) -> Response {
    let end = opened.ends.as_ref().map(LogPositions::to_string).filter(|text| text.len() <= LONGEST_END);
    let end = end.and_then(|text| HeaderValue::from_str(&text).ok());
    let (sender, receiver) = mpsc::channel::<Bytes>(CHUNKS);
    let stop = shutdown.clone();
    tokio::task::spawn_blocking(move || {
        // A client that gets no more asks again, with its positions.
        if let Ok(Err(error)) = tasks::CONNECTION.watch(|| opened.run(&sender, &stop)) {
            tracing::warn!(%error, "the log cannot be read for a client; its stream ends");
        }
        drop(turn);
    });
    let lines = stream::unfold((receiver, shutdown), |(mut receiver, shutdown)| async move {
        let chunk = tokio::select! {
            () = shutdown.cancelled() => None,
            chunk = receiver.recv() => chunk,
        };
        Some((Ok::<_, Infallible>(chunk?), (receiver, shutdown)))
    });
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(LOG_MEDIA_TYPE)),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
    ];
    let mut response = (headers, Body::from_stream(lines)).into_response();
    if let Some(end) = end {
        response.headers_mut().insert(LOG_END_HEADER, end);
    }
    response
}

#[cfg(test)]
mod tests {
    use eadt_bus::embedded::{EmbeddedLog, EmbeddedOptions};
    use eadt_bus::{ProducerRecord, TopicSpec};

    use super::*;

    const NAME: &str = "eadt.decisions.v1";

    /// Both partitions of one topic from the beginning, without lines.
    #[derive(Debug)]
    struct NoLines;

    impl LogLines for NoLines {
        fn starts(&self, _: Option<EventTime>) -> Result<Vec<(TopicPartition, StartOffset)>, String> {
            Ok((0..2).map(|partition| (TopicPartition::new(NAME, partition), StartOffset::Earliest)).collect())
        }

        fn encode(&self, _: &[(Topic, ConsumerRecord)]) -> Vec<u8> {
            Vec::new()
        }
    }

    #[test]
    fn the_first_end_comes_when_all_is_read_that_was_there_however_busy_the_log_is() {
        let folder = tempfile::tempdir().unwrap();
        let options = EmbeddedOptions { reserve_bytes: 0, ..EmbeddedOptions::default() };
        let bus = EmbeddedLog::open(folder.path(), options).unwrap();
        bus.create_topic(&TopicSpec { name: NAME.into(), partitions: 2, replication: 1, settings: [].into() }).unwrap();
        let mut producer = bus.producer("test").unwrap();
        let value = Some(b"{}".as_slice().into());
        producer.send(ProducerRecord { topic: NAME.into(), partition: Some(0), key: None, value, headers: Vec::new() }).unwrap();
        assert!(producer.flush(Duration::from_secs(30)).unwrap());
        let mut stream = LogSource::new(Arc::new(bus), "eadt.".to_owned(), Arc::new(NoLines)).open(None, None).unwrap();
        let (lines, mut received) = mpsc::channel(4);
        let at = |partition| TopicPartition::new(NAME, partition);
        let record = |offset| {
            let headers = eadt_bus::RecordHeaders::default();
            PollEvent::Record(ConsumerRecord {
                at: at(0),
                offset,
                stamp: EventTime::from_millis(0),
                key: None,
                value: None,
                headers,
            })
        };
        let mut passed_on = |mut batch: Vec<PollEvent>| {
            assert!(stream.pass_on(&mut batch, &lines));
            received.try_recv().ok().map(|text| String::from_utf8(text.to_vec()).unwrap())
        };
        // Neither partition was ever seen at its end.
        assert_eq!(passed_on(vec![record(0)]).as_deref(), Some("{\"end\":\"decisions.v1:1,0\"}\n"));
        assert_eq!(passed_on(vec![record(1)]), None);
        let ends = vec![PollEvent::End { at: at(0), position: 2 }, PollEvent::End { at: at(1), position: 0 }];
        assert_eq!(passed_on(ends).as_deref(), Some("{\"end\":\"decisions.v1:2,0\"}\n"));
    }

    #[test]
    fn a_client_that_takes_nothing_is_given_up() {
        let (lines, received) = mpsc::channel(1);
        let send = || send_within(Duration::from_millis(30), &lines, Bytes::from_static(b"\n"));
        assert!(send());
        assert!(!send(), "there is no room");
        drop(received);
        assert!(!send(), "it has gone");
    }

    #[test]
    fn positions_are_read_as_they_are_written_and_never_go_back() {
        let mut positions = LogPositions::default();
        positions.advance(Topic::Workloads, 1, 7);
        positions.advance(Topic::Decisions, 0, 12);
        positions.advance(Topic::Decisions, 0, 3);
        let text = positions.to_string();
        assert_eq!(text.parse::<LogPositions>(), Ok(positions.clone()), "{text}");
        assert_eq!((positions.offset(Topic::Decisions, 0), positions.offset(Topic::Workloads, 0)), (Some(12), Some(0)));
        assert_eq!((positions.offset(Topic::Workloads, 2), positions.offset(Topic::Models, 0)), (None, None));
        assert_eq!((positions.partitions(), positions.iter().count()), (3, 3));
        for wrong in
            ["", "decisions.v1", "decisions.v1:", "decisions.v1:1,-2", "decisions.v1:x", "nothing.v1:1", "decisions.v1:1;"]
        {
            assert_eq!(wrong.parse::<LogPositions>(), Err(InvalidPositions), "{wrong:?}");
        }
    }

    #[test]
    fn a_mark_is_distinguished_from_an_event() {
        let positions: LogPositions = "decisions.v1:0,12".parse().unwrap();
        for mark in [StreamMarker::From(positions.clone()), StreamMarker::End(positions)] {
            let line = mark.line();
            assert!(line.ends_with(b"\n"));
            assert_eq!(StreamMarker::parse(line.trim_ascii_end()), Some(mark));
        }
        for other in [&br#"{"specversion":"1.0","type":"io.eadt.decision.v1"}"#[..], br#"{"end":"nothing"}"#, b"", b"<html>"] {
            assert_eq!(StreamMarker::parse(other), None, "{}", String::from_utf8_lossy(other));
        }
    }
}
