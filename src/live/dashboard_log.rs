//! The log behind a page, followed over HTTP: `/api/v1/log` of `eadt up` and `eadt dashboard`.
//!
//! A lost connection is opened again at the positions that were reached, so that each event is given once.

use std::collections::VecDeque;
use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail};
use bytes::Bytes;
use eadt_bus::{BusError, ConsumerRecord, PartitionReader, PollEvent, RecordHeaders, Remedy, TopicPartition};
use eadt_dashboard::{LOG_END_HEADER, LOG_MEDIA_TYPE, LogPositions, StreamMarker};
use eadt_schemas::{LoggedEvent, Topic};
use eadt_service::{Shutdown, files};
use reqwest::header::CONTENT_TYPE;
use reqwest::redirect::Policy;
use reqwest::{Client, Response, Url};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::progress::ProgressMeter;

/// Path of the log below the page's address.
const PATH: &str = "/api/v1/log";
/// Longest time until a page finds the beginning of a span, and until it answers when a lost stream is opened again.
const FIRST_ANSWER: Duration = Duration::from_mins(1);
const NEXT_ANSWER: Duration = Duration::from_secs(5);
/// The page sends a line every few seconds: after so long without any the connection is lost.
const SILENCE: Duration = Duration::from_secs(20);
/// Waits before a lost stream is asked for again.
const RETRY: Duration = Duration::from_millis(500);
/// A page that is away for so long has ended.
const GIVE_UP: Duration = Duration::from_mins(1);
/// Longest line. An event log has none that is longer.
const LINE_BYTES: usize = eadt_recordings::MAX_EVENT_BYTES;
/// Bytes of an error's body that are read.
const ERROR_BYTES: usize = 4096;
/// One wait for bytes while a place is read to its end.
const POLL: Duration = Duration::from_millis(100);

/// Reads the address of a page.
pub fn page_url(text: &str) -> Result<Url, String> {
    let full = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
    let example = "give the address that `eadt up` prints, such as http://127.0.0.1:9580";
    let mut url = Url::parse(&full).map_err(|error| format!("{error}; {example}"))?;
    if url.scheme() != "http" {
        return Err(format!(
            "{}:// is not spoken here, only http://; `ssh -L` or `kubectl port-forward` bring the page's port to this machine",
            url.scheme()
        ));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("it has a user or a password; a page takes a token, from --token-file".to_owned());
    }
    url.set_path(PATH);
    url.set_query(None);
    url.set_fragment(None);
    Ok(url)
}

/// A page and its client.
#[derive(Clone)]
pub struct DashboardClient {
    client: Client,
    url: Url,
    shown: String,
    token: Option<String>,
}

impl fmt::Debug for DashboardClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DashboardClient({})", self.shown)
    }
}

impl fmt::Display for DashboardClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

/// The reason why there is no stream.
#[derive(Debug, Clone, PartialEq, Eq)]
enum StreamUnavailable {
    /// There may be one later.
    Away(String),
    Refused(String),
}

impl StreamUnavailable {
    fn into_error(self) -> anyhow::Error {
        let (Self::Away(text) | Self::Refused(text)) = self;
        anyhow!(text)
    }
}

impl DashboardClient {
    /// Opens the stream. `url` is one of [`page_url`]. The token is the first one in the file.
    pub fn new(url: &Url, token_file: Option<&Path>) -> anyhow::Result<Self> {
        let client = Client::builder()
            .connect_timeout(NEXT_ANSWER)
            .redirect(Policy::none())
            .no_proxy()
            .user_agent(concat!("eadt/", env!("CARGO_PKG_VERSION")))
            .build()
            .context("no HTTP client could be made")?;
        let mut page = url.clone();
        page.set_path("/");
        Ok(Self { client, url: url.clone(), shown: page.to_string(), token: token_file.map(read_token).transpose()? })
    }

    /// Requests the stream: from these positions, else from the last `since`, else from the beginning.
    async fn request_stream(
        &self,
        since: Option<Duration>,
        at: Option<&LogPositions>,
        within: Duration,
    ) -> Result<Response, StreamUnavailable> {
        let mut url = self.url.clone();
        if let Some(at) = at {
            url.set_query(Some(&format!("at={at}")));
        } else if let Some(since) = since {
            url.set_query(Some(&format!("since={}", since.as_secs_f64())));
        }
        let mut request = self.client.get(url);
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        let response = match timeout(within, request.send()).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => return Err(self.unreachable(&error)),
            Err(_) => return Err(StreamUnavailable::Away(format!("{self} did not answer within {} s", within.as_secs()))),
        };
        let kind = response.headers().get(CONTENT_TYPE).map(|kind| kind.as_bytes().to_vec());
        match response.status().as_u16() {
            200 if kind.as_deref() == Some(LOG_MEDIA_TYPE.as_bytes()) => Ok(response),
            200 => Err(self.foreign("its answer is not a log")),
            status => Err(self.explain(status, response).await),
        }
    }

    fn unreachable(&self, error: &reqwest::Error) -> StreamUnavailable {
        let mut cause: &dyn std::error::Error = error;
        while let Some(source) = cause.source() {
            cause = source;
        }
        if error.is_connect() {
            StreamUnavailable::Away(format!(
                "nothing listens at {self} ({cause}): start `eadt up`, or give the address that it printed"
            ))
        } else {
            StreamUnavailable::Away(format!("what listens at {self} does not answer as a page of eadt ({cause})"))
        }
    }

    fn foreign(&self, why: &str) -> StreamUnavailable {
        StreamUnavailable::Refused(format!("what answers at {self} is no page of eadt that a terminal can follow: {why}"))
    }

    /// Returns the meaning of an answer with another status, and the remedy.
    async fn explain(&self, status: u16, mut response: Response) -> StreamUnavailable {
        let mut body = Vec::new();
        while body.len() < ERROR_BYTES {
            match timeout(NEXT_ANSWER, response.chunk()).await {
                Ok(Ok(Some(chunk))) => body.extend_from_slice(&chunk[..chunk.len().min(ERROR_BYTES - body.len())]),
                _ => break,
            }
        }
        let document: Option<serde_json::Value> = serde_json::from_slice(&body).ok();
        let reason = document.as_ref().and_then(|document| document["error"].as_str());
        match (status, reason) {
            (401, _) if self.token.is_some() => StreamUnavailable::Refused(format!(
                "{self} does not know the token in the file of --token-file: ask for one of its own"
            )),
            (401, _) => {
                StreamUnavailable::Refused(format!("{self} asks for a token: name a file with one, by --token-file FILE"))
            }
            (421, _) => StreamUnavailable::Refused(format!(
                "{self} is not asked for by this name: give its IP address, or have the name added to its setting dashboard.hosts"
            )),
            (404, Some(_)) => StreamUnavailable::Refused(format!(
                "the page at {self} has no {PATH}: another version of eadt serves it than this one ({})",
                env!("CARGO_PKG_VERSION")
            )),
            (400 | 409 | 410, Some(reason)) => StreamUnavailable::Refused(format!("{self}: {reason}")),
            (500.., Some(reason)) => StreamUnavailable::Away(format!("{self}: {reason}")),
            _ => self.foreign(&format!("it answers with status {status}")),
        }
    }
}

/// Returns the first token of a file as `dashboard.token_file` has it.
fn read_token(path: &Path) -> anyhow::Result<String> {
    let text =
        files::read_text(path, files::SMALL_BYTES).with_context(|| format!("cannot read --token-file {}", path.display()))?;
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let token = lines.next().and_then(|line| line.split_whitespace().next()).unwrap_or_default();
    if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        bail!("--token-file {} holds no token of visible ASCII characters", path.display());
    }
    Ok(token.to_owned())
}

/// Follows the log behind a page. Its topics have no prefix. To be used on a thread where a runtime may be waited for.
#[derive(Debug)]
pub struct DashboardLogReader {
    page: DashboardClient,
    runtime: Handle,
    /// The next offset of each partition.
    positions: LogPositions,
    /// End of each partition when the stream began, if the page shows it.
    ends: LogPositions,
    /// `None` if the connection is lost.
    response: Option<Response>,
    /// The question for a lost stream while it has no answer.
    asking: Option<JoinHandle<Result<Response, StreamUnavailable>>>,
    /// The next line is the first one of a stream.
    is_first: bool,
    /// Received, without the lines that were read.
    buffer: Vec<u8>,
    queue: VecDeque<PollEvent>,
    /// Time at which bytes came last.
    received: Instant,
    /// Time since which there is no stream.
    lost: Option<Instant>,
    next_try: Instant,
    /// The last question since the loss was answered.
    has_answered: bool,
    failures: u32,
}

impl DashboardLogReader {
    /// Requests the log from the page: the last `since`, or all of it, and new records. Blocks until the first line.
    pub fn open(page: DashboardClient, since: Option<Duration>) -> anyhow::Result<Self> {
        let (runtime, now) = (Handle::current(), Instant::now());
        let response = runtime.block_on(page.request_stream(since, None, FIRST_ANSWER)).map_err(StreamUnavailable::into_error)?;
        let end = response.headers().get(LOG_END_HEADER).and_then(|end| end.to_str().ok());
        let ends = end.and_then(|end| end.parse().ok()).unwrap_or_default();
        let mut log = Self {
            page,
            runtime,
            positions: LogPositions::default(),
            ends,
            response: Some(response),
            asking: None,
            is_first: true,
            buffer: Vec::new(),
            queue: VecDeque::new(),
            received: now,
            lost: None,
            next_try: now,
            has_answered: false,
            failures: 0,
        };
        while log.is_first {
            if log.response.is_none() || now.elapsed() > FIRST_ANSWER {
                return Err(log.page.foreign("it sends no first line").into_error());
            }
            log.receive(POLL)?;
            log.take_lines()?;
        }
        Ok(log)
    }

    /// Returns how many partitions are read.
    pub fn partitions(&self) -> usize {
        self.positions.partitions()
    }

    /// Returns how many offsets there are up to where the log ended at the begin; 0 if the page does not show it.
    pub fn left(&self) -> u64 {
        let left = |(topic, partition, end): (Topic, i32, i64)| end - self.positions.offset(topic, partition).unwrap_or(end);
        self.ends.iter().map(|end| u64::try_from(left(end)).unwrap_or(0)).sum()
    }

    /// Returns an error that ends the reading.
    fn failed(&self, detail: impl fmt::Display) -> BusError {
        BusError::new(Remedy::Stop, format!("the log behind {} cannot be read", self.page), detail)
    }

    /// Reads the lines that are whole.
    fn take_lines(&mut self) -> Result<(), BusError> {
        let Some(last) = self.buffer.iter().rposition(|byte| *byte == b'\n') else {
            if self.buffer.len() > LINE_BYTES {
                return Err(self.failed(format!("a line is longer than {}", files::describe_size(LINE_BYTES as u64))));
            }
            return Ok(());
        };
        let rest = self.buffer.split_off(last + 1);
        let lines = std::mem::replace(&mut self.buffer, rest);
        for line in lines[..last].split(|byte| *byte == b'\n') {
            // A line after the first one, even an empty one, shows that the page can read its log.
            let was_first = self.is_first;
            if !line.is_empty() {
                self.take_line(line)?;
            }
            if !was_first {
                self.lost = None;
            }
        }
        Ok(())
    }

    fn take_line(&mut self, line: &[u8]) -> Result<(), BusError> {
        match (StreamMarker::parse(line), self.is_first) {
            (Some(StreamMarker::From(positions)), true) => self.begin(&positions),
            (_, true) => return Err(self.failed("it does not begin as a page of eadt does")),
            (Some(StreamMarker::End(positions)), false) => {
                for (topic, partition, position) in positions.iter() {
                    self.positions.advance(topic, partition, position);
                    let at = TopicPartition::new(topic.base_name(), partition);
                    self.queue.push_back(PollEvent::End { at, position });
                }
            }
            (Some(StreamMarker::From(_)) | None, false) => self.take_event(line)?,
        }
        Ok(())
    }

    /// Notes where a stream begins.
    fn begin(&mut self, positions: &LogPositions) {
        let is_gap = |(topic, partition, offset): (Topic, i32, i64)| {
            self.positions.offset(topic, partition).is_some_and(|next| offset > next)
        };
        if positions.iter().any(is_gap) {
            tracing::warn!(page = %self.page, "events are missing here: the log deleted them while the page was away");
        }
        if self.failures > 0 {
            tracing::info!(page = %self.page, "the page answers again");
        }
        for (topic, partition, offset) in positions.iter() {
            self.positions.advance(topic, partition, offset);
        }
        (self.is_first, self.failures) = (false, 0);
    }

    fn take_event(&mut self, line: &[u8]) -> Result<(), BusError> {
        let event: LoggedEvent = serde_json::from_slice(line).map_err(|error| {
            let versions = format!("is it of another version than this one ({})?", env!("CARGO_PKG_VERSION"));
            self.failed(format!("it sent a line that is not an event here: {error}; {versions}"))
        })?;
        let (Some(topic), Some(partition), Some(offset)) = (event.topic, event.partition, event.offset) else {
            return Err(self.failed("it sent an event without its place in the log"));
        };
        // Positions take memory up to the greatest partition: only those of the first line are taken.
        let Some(next) = self.positions.offset(topic, partition) else {
            return Err(self.failed("it sent an event of a partition that its first line does not name"));
        };
        if offset < next {
            return Ok(());
        }
        self.positions.advance(topic, partition, offset.saturating_add(1));
        self.queue.push_back(PollEvent::Record(ConsumerRecord {
            at: TopicPartition::new(topic.base_name(), partition),
            offset,
            stamp: event.stamp.unwrap_or(event.time),
            key: event.key.map(Bytes::from),
            value: event.data.map(|data| Bytes::copy_from_slice(data.get().as_bytes())),
            headers: RecordHeaders::default(),
        }));
        Ok(())
    }

    /// Waits at most so long for bytes, or for a connection.
    fn receive(&mut self, wait: Duration) -> Result<(), BusError> {
        let Some(response) = &mut self.response else { return self.reconnect(wait) };
        match self.runtime.block_on(async { timeout(wait, response.chunk()).await }) {
            Ok(Ok(Some(chunk))) => {
                self.buffer.extend_from_slice(&chunk);
                self.received = Instant::now();
            }
            Ok(Ok(None)) => self.drop_connection("it ended the stream"),
            Ok(Err(error)) => self.drop_connection(&error.to_string()),
            Err(_) if self.received.elapsed() > SILENCE => self.drop_connection("nothing came for long"),
            Err(_) => {}
        }
        Ok(())
    }

    fn drop_connection(&mut self, why: &str) {
        tracing::debug!(page = %self.page, why, "the connection to the page is lost; reconnecting");
        let now = Instant::now();
        // The rest of a line that was cut comes again.
        self.buffer.clear();
        self.response = None;
        self.lost = self.lost.or(Some(now));
        self.next_try = now + RETRY;
    }

    fn reconnect(&mut self, wait: Duration) -> Result<(), BusError> {
        let pause = self.next_try.saturating_duration_since(Instant::now());
        if !pause.is_zero() {
            std::thread::sleep(pause.min(wait));
            return Ok(());
        }
        if self.has_answered && self.lost.is_some_and(|lost| lost.elapsed() > GIVE_UP) {
            let ends = "its streams end before their first event";
            return Err(self.failed(format!("{ends}: see the log of that process")));
        }
        // The caller's poll returns in time even if the page is slow.
        let asking = self.asking.get_or_insert_with(|| {
            let (page, at) = (self.page.clone(), self.positions.clone());
            self.runtime.spawn(async move { page.request_stream(None, Some(&at), NEXT_ANSWER).await })
        });
        let Ok(answer) = self.runtime.block_on(async { timeout(wait, asking).await }) else { return Ok(()) };
        self.asking = None;
        match answer.unwrap_or_else(|error| Err(StreamUnavailable::Away(error.to_string()))) {
            Ok(response) => {
                (self.response, self.is_first, self.received) = (Some(response), true, Instant::now());
                self.has_answered = true;
                Ok(())
            }
            Err(StreamUnavailable::Refused(why)) => Err(self.failed(why)),
            Err(StreamUnavailable::Away(why)) if self.lost.is_some_and(|lost| lost.elapsed() > GIVE_UP) => {
                let ended =
                    format!("given up after {} s; if the run has ended, `eadt report` has its figures", GIVE_UP.as_secs());
                Err(self.failed(format!("{why}; {ended}")))
            }
            Err(StreamUnavailable::Away(why)) => {
                if self.failures == 0 {
                    tracing::warn!(page = %self.page, why, "the page does not answer; retrying for {} s", GIVE_UP.as_secs());
                }
                self.failures += 1;
                self.has_answered = false;
                self.next_try = Instant::now() + RETRY;
                Ok(())
            }
        }
    }
}

impl PartitionReader for DashboardLogReader {
    fn poll(&mut self, max: usize, timeout: Duration, into: &mut Vec<PollEvent>) -> Result<(), BusError> {
        let until = Instant::now() + timeout;
        loop {
            self.take_lines()?;
            let left = until.saturating_duration_since(Instant::now());
            if !self.queue.is_empty() || left.is_zero() {
                into.extend(self.queue.drain(..max.min(self.queue.len())));
                return Ok(());
            }
            self.receive(left)?;
        }
    }

    fn pause(&mut self, _: &[TopicPartition]) -> Result<(), BusError> {
        Err(self.failed("no part of it can be paused"))
    }

    fn resume(&mut self, _: &[TopicPartition]) -> Result<(), BusError> {
        Err(self.failed("no part of it can be paused"))
    }
}

/// Reads the log behind a page to its present end. If `shutdown` is cancelled first, that is an error.
pub fn read(
    page: &DashboardClient,
    since: Option<Duration>,
    topics: &[Topic],
    shutdown: &Shutdown,
    take: &mut dyn FnMut(Topic, &[u8]),
) -> anyhow::Result<()> {
    let mut log = DashboardLogReader::open(page.clone(), since)?;
    let (mut batch, mut is_over) = (Vec::new(), false);
    let mut left = log.left();
    let meter = ProgressMeter::steps(left, "records");
    while !is_over {
        if shutdown.is_cancelled() {
            return Err(super::source::interrupted());
        }
        log.poll(4096, POLL, &mut batch)?;
        meter.add(left.saturating_sub(log.left()));
        left = log.left();
        for polled in batch.drain(..) {
            match polled {
                PollEvent::Record(record) => {
                    let topic = Topic::from_base_name(&record.at.topic).filter(|topic| topics.contains(topic));
                    if let (Some(topic), Some(value)) = (topic, &record.value) {
                        take(topic, value);
                    }
                }
                // The page reports the end of all partitions at once.
                PollEvent::End { .. } => is_over = true,
                _ => {}
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{SocketAddr, TcpListener};
    use std::thread::JoinHandle;

    use tokio::runtime::{Builder, Runtime};

    use super::*;

    const OK: &str = "HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\nconnection: close\r\n\r\n";

    /// Answers one request after another with these bytes, and closes each connection. Returns the first line of each request.
    fn serve(answers: Vec<String>) -> (SocketAddr, JoinHandle<Vec<String>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let serving = std::thread::spawn(move || {
            let mut asked = Vec::new();
            for answer in answers {
                let (mut stream, _) = listener.accept().unwrap();
                let mut request = Vec::new();
                let mut buffer = [0; 1024];
                while !request.windows(4).any(|four| four == b"\r\n\r\n") {
                    let read = stream.read(&mut buffer).unwrap();
                    assert!(read > 0, "the request is not whole");
                    request.extend_from_slice(&buffer[..read]);
                }
                asked.push(String::from_utf8(request).unwrap());
                stream.write_all(answer.as_bytes()).unwrap();
            }
            asked
        });
        (address, serving)
    }

    fn runtime() -> Runtime {
        Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
    }

    fn page(address: SocketAddr) -> DashboardClient {
        DashboardClient::new(&page_url(&address.to_string()).unwrap(), None).unwrap()
    }

    fn event(offset: i64) -> String {
        let place = format!(r#""eadttopic":"decisions.v1","eadtpartition":0,"eadtoffset":{offset}"#);
        let envelope = r#""specversion":"1.0","type":"io.eadt.decision.v1","source":"/s","id":"i","time":"2026-01-01T00:00:00Z""#;
        format!("{{{envelope},{place},\"data\":{{\"n\":{offset}}}}}\n")
    }

    fn poll(log: &mut DashboardLogReader) -> Result<Vec<PollEvent>, BusError> {
        let mut polled = Vec::new();
        let until = Instant::now() + Duration::from_secs(30);
        while polled.is_empty() && Instant::now() < until {
            log.poll(100, POLL, &mut polled)?;
        }
        Ok(polled)
    }

    #[test]
    fn an_address_is_a_pages_own_whatever_view_it_names() {
        for text in ["127.0.0.1:9580", "http://127.0.0.1:9580", "http://127.0.0.1:9580/", "http://127.0.0.1:9580/w/a?b=c#d"] {
            assert_eq!(page_url(text).unwrap().as_str(), "http://127.0.0.1:9580/api/v1/log", "{text}");
        }
        for (text, words) in [
            ("https://eadt.example.org", "only http://"),
            ("http://alice:secret@127.0.0.1:9580", "--token-file"),
            ("http://", "http://127.0.0.1:9580"),
            ("kafka://broker:9092", "only http://"),
        ] {
            let refused = page_url(text).unwrap_err();
            assert!(refused.contains(words) && !refused.contains("secret"), "{text}: {refused}");
        }
    }

    #[test]
    fn the_first_token_of_a_file_is_sent_and_nothing_shows_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tokens");
        std::fs::write(&file, "# of the page\n\n0123456789abcdef0123 alice\nother\n").unwrap();
        let url = page_url("127.0.0.1:1").unwrap();
        let page = DashboardClient::new(&url, Some(&file)).unwrap();
        assert_eq!(page.token.as_deref(), Some("0123456789abcdef0123"));
        assert_eq!(format!("{page:?} {page}"), "DashboardClient(http://127.0.0.1:1/) http://127.0.0.1:1/");
        std::fs::write(&file, "# none\n").unwrap();
        assert!(DashboardClient::new(&url, Some(&file)).unwrap_err().to_string().contains("holds no token"));
        assert!(DashboardClient::new(&url, Some(&folder.path().join("none"))).unwrap_err().to_string().contains("cannot read"));
    }

    #[test]
    fn how_much_is_left_is_known_if_the_page_shows_it() {
        let lines = format!("{}{}{}", "{\"from\":\"decisions.v1:3,0\"}\n", event(3), event(4));
        let shown = OK.replacen("\r\n\r\n", "\r\neadt-log-end: decisions.v1:8,0\r\n\r\n", 1);
        let (address, _) = serve(vec![format!("{shown}{lines}"), format!("{OK}{lines}")]);
        let runtime = runtime();
        let _guard = runtime.enter();
        let mut log = DashboardLogReader::open(page(address), None).unwrap();
        assert_eq!(log.ends.offset(Topic::Decisions, 0), Some(8));
        while log.positions.offset(Topic::Decisions, 0) < Some(5) {
            poll(&mut log).unwrap();
        }
        assert_eq!(log.left(), 3);
        assert_eq!(DashboardLogReader::open(page(address), None).unwrap().left(), 0);
    }

    #[test]
    fn a_stream_that_broke_goes_on_where_it_was() {
        let first = format!("{OK}{}{}{}{}", "{\"from\":\"decisions.v1:3,0\"}\n", event(3), event(4), &event(5)[..40]);
        let end = "{\"end\":\"decisions.v1:8,0\"}\n";
        let second = format!("{OK}{}\n{}{}{end}", "{\"from\":\"decisions.v1:5,0\"}\n", event(4), event(6));
        let (address, serving) = serve(vec![first, second]);
        let runtime = runtime();
        let _guard = runtime.enter();
        let mut log = DashboardLogReader::open(page(address), Some(Duration::from_secs(90))).unwrap();
        assert_eq!(log.partitions(), 2);
        let mut polled = poll(&mut log).unwrap();
        while !polled.iter().any(|polled| matches!(polled, PollEvent::End { .. })) {
            polled.extend(poll(&mut log).unwrap());
        }
        let offsets: Vec<i64> = polled
            .iter()
            .filter_map(|polled| match polled {
                PollEvent::Record(record) => Some(record.offset),
                _ => None,
            })
            .collect();
        assert_eq!(offsets, [3, 4, 6], "each once, and not what was cut");
        let PollEvent::Record(record) = &polled[0] else { panic!("{polled:?}") };
        assert_eq!((&*record.at.topic, record.value.as_deref()), ("decisions.v1", Some(&b"{\"n\":3}"[..])));
        let ends = polled.iter().filter(|polled| matches!(polled, PollEvent::End { .. })).count();
        assert_eq!((ends, log.positions.to_string().as_str()), (2, "decisions.v1:8,0"));
        let asked = serving.join().unwrap();
        assert!(asked[0].starts_with("GET /api/v1/log?since=90 "), "{asked:?}");
        assert!(asked[1].starts_with("GET /api/v1/log?at=decisions.v1:5,0 "), "{asked:?}");
    }

    #[test]
    fn a_page_whose_streams_end_before_their_first_line_is_given_up() {
        let begun = format!("{OK}{}", "{\"from\":\"decisions.v1:3\"}\n");
        let (address, serving) = serve(vec![begun, OK.to_owned()]);
        let runtime = runtime();
        let _guard = runtime.enter();
        let mut log = DashboardLogReader::open(page(address), None).unwrap();
        let mut polled = Vec::new();
        while !log.is_first {
            log.poll(100, POLL, &mut polled).unwrap();
        }
        serving.join().unwrap();
        log.lost = log.lost.and_then(|lost| lost.checked_sub(GIVE_UP));
        let refused = poll(&mut log).unwrap_err().to_string();
        assert!(refused.contains("before their first event"), "{refused}");
    }

    #[test]
    fn a_partition_that_the_first_line_does_not_name_ends_it() {
        let foreign = event(3).replace("\"eadtpartition\":0", "\"eadtpartition\":2000000000");
        let (address, serving) = serve(vec![format!("{OK}{}{foreign}", "{\"from\":\"decisions.v1:3\"}\n")]);
        let runtime = runtime();
        let _guard = runtime.enter();
        let log = DashboardLogReader::open(page(address), None);
        let refused =
            log.map_err(|error| error.to_string()).and_then(|mut log| poll(&mut log).map_err(|error| error.to_string()));
        assert!(refused.unwrap_err().contains("does not name"));
        serving.join().unwrap();
    }

    #[test]
    fn what_cannot_be_followed_is_refused_in_words() {
        let answer = |head: &str, body: &str| format!("HTTP/1.1 {head}\r\nconnection: close\r\n\r\n{body}");
        let no_address = r#"{"error":"/api/v1 has no such path"}"#;
        let runtime = runtime();
        let _guard = runtime.enter();
        for (answer, words) in [
            (answer("200 OK\r\ncontent-type: text/html", "<html>"), "no page of eadt"),
            (answer("404 Not Found", "<html>"), "status 404"),
            (answer("404 Not Found", no_address), "another version"),
            (answer("401 Unauthorized", "a token is needed"), "--token-file"),
            (answer("421 Misdirected Request", "no"), "dashboard.hosts"),
            (answer("409 Conflict", r#"{"error":"this page shows an archive"}"#), "shows an archive"),
            (answer("503 Service Unavailable", r#"{"error":"8 clients"}"#), "8 clients"),
            (format!("{OK}<html>\n"), "does not begin as a page of eadt does"),
            (format!("{OK}{{\"from\":"), "no first line"),
        ] {
            let (address, serving) = serve(vec![answer]);
            let refused = DashboardLogReader::open(page(address), None).unwrap_err().to_string();
            assert!(refused.contains(words) && refused.contains(&address.to_string()), "{words}: {refused}");
            serving.join().unwrap();
        }
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let refused = DashboardLogReader::open(page(free), None).unwrap_err().to_string();
        assert!(refused.contains("nothing listens") && refused.contains("eadt up"), "{refused}");
    }

    #[test]
    fn an_event_that_this_version_does_not_know_ends_it() {
        let unknown = event(3).replace("\"decisions.v1\"", "\"dreams.v1\"");
        let (address, serving) = serve(vec![format!("{OK}{}{unknown}", "{\"from\":\"decisions.v1:3\"}\n")]);
        let runtime = runtime();
        let _guard = runtime.enter();
        let log = DashboardLogReader::open(page(address), None);
        let refused =
            log.map_err(|error| error.to_string()).and_then(|mut log| poll(&mut log).map_err(|error| error.to_string()));
        let refused = refused.unwrap_err();
        assert!(refused.contains("another version") && refused.contains(env!("CARGO_PKG_VERSION")), "{refused}");
        serving.join().unwrap();
    }
}
