//! The log over HTTP: what a terminal that follows it gets.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use eadt_bus::embedded::{EmbeddedLog, EmbeddedOptions};
use eadt_bus::{Bus, ConsumerRecord, ProducerRecord, StartOffset, TopicPartition, TopicSpec};
use eadt_dashboard::{DashboardSettings, LogLines, LogSource};
use eadt_schemas::{EventTime, Topic};

use crate::support::{Events, Served, at, model, serve, serve_log};

const NAME: &str = "eadt.decisions.v1";

/// Both partitions of one topic from the beginning, a line with its place for each record.
#[derive(Debug, Default)]
struct Places {
    /// The requested begins.
    since: Mutex<Vec<Option<EventTime>>>,
}

impl LogLines for Places {
    fn starts(&self, since: Option<EventTime>) -> Result<Vec<(TopicPartition, StartOffset)>, String> {
        self.since.lock().unwrap().push(since);
        Ok((0..2).map(|partition| (TopicPartition::new(NAME, partition), StartOffset::Earliest)).collect())
    }

    fn encode(&self, records: &[(Topic, ConsumerRecord)]) -> Vec<u8> {
        let line = |(topic, record): &(Topic, ConsumerRecord)| format!("{topic} {} {}\n", record.at.partition, record.offset);
        records.iter().map(line).collect::<Vec<_>>().concat().into_bytes()
    }
}

struct TestLog {
    bus: EmbeddedLog,
    lines: Arc<Places>,
    _folder: tempfile::TempDir,
}

impl TestLog {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let options = EmbeddedOptions { reserve_bytes: 0, ..EmbeddedOptions::default() };
        let bus = EmbeddedLog::open(folder.path(), options).unwrap();
        let topic = TopicSpec { name: NAME.into(), partitions: 2, replication: 1, settings: [].into() };
        bus.create_topic(&topic).unwrap();
        Self { bus, lines: Arc::default(), _folder: folder }
    }

    fn append(&self, partition: i32, count: usize) {
        let mut producer = self.bus.producer("test").unwrap();
        for _ in 0..count {
            let (topic, key, value) = (NAME.into(), Some(b"team/a".as_slice().into()), Some(b"{}".as_slice().into()));
            producer.send(ProducerRecord { topic, partition: Some(partition), key, value, headers: Vec::new() }).unwrap();
        }
        assert!(producer.flush(Duration::from_secs(30)).unwrap());
    }

    fn source(&self) -> LogSource {
        LogSource::new(Arc::new(self.bus.clone()), "eadt.".to_owned(), self.lines.clone())
    }
}

async fn follow(served: &Served, query: &str) -> Events {
    served.stream(&format!("/api/v1/log{query}"), &[]).await
}

#[tokio::test]
async fn a_stream_has_what_is_there_then_what_comes_and_goes_on_where_it_broke() {
    let log = TestLog::new();
    log.append(0, 3);
    let served = serve_log(model(), log.source()).await;
    let mut stream = follow(&served, "").await;
    let text = stream.until("{\"end\":\"decisions.v1:3,0\"}\n").await.to_owned();
    assert!(text.contains("content-type: application/x-ndjson\r\n"), "{text}");
    assert!(text.contains("eadt-log-end: decisions.v1:3,0\r\n"), "{text}");
    let parts =
        ["{\"from\":\"decisions.v1:0,0\"}\n", "decisions.v1 0 0\n", "decisions.v1 0 1\n", "decisions.v1 0 2\n", "{\"end\""];
    let places: Vec<_> = parts.iter().map(|part| text.find(part).unwrap_or_else(|| panic!("{part:?}: {text}"))).collect();
    assert!(places.is_sorted(), "{text}");
    log.append(1, 1);
    let text = stream.until("{\"end\":\"decisions.v1:3,1\"}\n").await;
    assert!(text.contains("decisions.v1 1 0\n") && text.matches("decisions.v1 0 2\n").count() == 1, "{text}");
    // A chunk with a line break alone: both ends know that the other is there.
    stream.until("1\r\n\n\r\n").await;
    let mut resumed = follow(&served, "?at=decisions.v1:2,1").await;
    let text = resumed.until("{\"end\":\"decisions.v1:3,1\"}\n").await;
    assert!(text.contains("{\"from\":\"decisions.v1:2,1\"}\n") && text.contains("decisions.v1 0 2\n"), "{text}");
    assert!(!text.contains("decisions.v1 0 1\n") && !text.contains("decisions.v1 1 0\n"), "{text}");
}

#[tokio::test]
async fn a_span_ends_with_the_newest_record_of_the_log() {
    let log = TestLog::new();
    let mut model = model();
    model.stamp(at(60));
    let served = serve_log(model, log.source()).await;
    for query in ["", "?since=600", "?since=600&at=decisions.v1:0,0"] {
        follow(&served, query).await.until("{\"from\":\"decisions.v1:0,0\"}").await;
    }
    assert_eq!(*log.lines.since.lock().unwrap(), [None, Some(at(50)), None]);
}

#[tokio::test]
async fn what_cannot_be_followed_is_refused_in_words() {
    let log = TestLog::new();
    log.append(0, 3);
    let served = serve_log(model(), log.source()).await;
    for (query, status, words) in [
        ("?since=-1", 400, "since"),
        ("?since=NaN", 400, "since"),
        ("?at=here", 400, "no positions"),
        ("?offset=1", 400, "offset"),
        // The log was replaced by a shorter one.
        ("?at=decisions.v1:4,0", 410, "another one"),
    ] {
        let answer = served.get(&format!("/api/v1/log{query}")).await;
        let body = String::from_utf8_lossy(&answer.body).into_owned();
        assert!(answer.status == status && body.contains(words), "{query}: {} {body}", answer.status);
    }
    let archive = serve(model(), DashboardSettings::default()).await;
    let answer = archive.get("/api/v1/log").await;
    assert!(answer.status == 409 && answer.json()["error"].as_str().unwrap().contains("--from"), "{}", answer.status);
}

#[tokio::test]
async fn a_few_clients_follow_at_once_and_one_that_leaves_makes_room() {
    let log = TestLog::new();
    let served = serve_log(model(), log.source()).await;
    let mut clients = Vec::new();
    for _ in 0..12 {
        let mut client = follow(&served, "").await;
        client.until("{\"end\"").await;
        clients.push(client);
    }
    let refused = served.get("/api/v1/log").await;
    assert!(refused.status == 503 && refused.json()["error"].as_str().unwrap().starts_with("12 clients"), "{}", refused.status);
    // Browsers share the page's own reader: they are served whatever terminals read.
    for _ in 0..10 {
        served.events_until(&[], "event: update").await;
    }
    drop(clients.pop());
    // The server notices at the next line.
    for _ in 0..100 {
        if follow(&served, "").await.until("\r\n").await.starts_with("HTTP/1.1 200") {
            return;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    panic!("the place of a client that left is still taken");
}
