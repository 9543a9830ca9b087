//! Archivers on Apache Kafka: control records, a rebalance between two of them, and still each offset in exactly one file.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use eadt_archiver::{ArchiverDependencies, ArchiverError, ArchiverSettings, ServiceClock, run};
use eadt_bus::kafka::{KafkaBus, KafkaOptions};
use eadt_bus::{
    Bus, CommitStep, IsolationLevel, MemberOptions, Membership, PollEvent, ProducerRecord, Remedy, StartOffset, TopicPartition,
    topics,
};
use eadt_lake::{Archive, ArchiveRow};
use eadt_schemas::Topic;
use eadt_service::{HealthRegistry, MetricsRegistry, Shutdown};
use eadt_tests::kafka::{Kafka, fetch_path};

const PARTITIONS: i32 = 4;
const PREFIX: &str = "eadt.";

fn name(topic: Topic) -> Arc<str> {
    format!("{PREFIX}{topic}").into()
}

/// Transactions on two topics: each leaves a control record in every partition that it touched.
fn produce(bus: &KafkaBus, from: i64, to: i64) {
    let topics = vec![name(Topic::Directives)];
    let options = MemberOptions { group: "tests".to_owned(), membership: Membership::Transactional("tests".to_owned()), topics };
    let mut member = bus.member(options.clone()).expect("a member");
    // Asked once a new member has settled what the one before it left open.
    let is_written = |n: i64| {
        let at = |partition| TopicPartition::new(name(Topic::GpuTelemetry), partition);
        (0..PARTITIONS).map(|partition| committed(bus, &at(partition)).0.len()).sum::<usize>() as i64 == 6 * (n + 1)
    };
    for n in from..to {
        let record = |topic: Topic, key: i64, value: &str| ProducerRecord {
            topic: name(topic),
            partition: None,
            key: Some(Bytes::from(format!("ns/job-{key}"))),
            value: Some(Bytes::copy_from_slice(value.as_bytes())),
            headers: vec![(Arc::from("ce_specversion"), Bytes::from_static(b"1.0"))],
        };
        let outputs = (0..6).map(|key| record(Topic::GpuTelemetry, key, &format!("{{\"device\":\"GPU-{n}\"}}")));
        let outputs = outputs.chain([record(Topic::ProcessorState, n % 3, "state")]).collect();
        let (step, began) = (CommitStep { outputs, positions: Vec::new() }, Instant::now());
        while let Err(error) = member.commit(&step) {
            // A busy machine may take longer than a transaction may last.
            assert!(error.remedy == Remedy::Restart && began.elapsed() < Duration::from_mins(2), "{error}");
            member = bus.member(options.clone()).expect("a member");
            if is_written(n) {
                break;
            }
        }
    }
}

struct Running {
    thread: JoinHandle<Result<(), ArchiverError>>,
    shutdown: Shutdown,
    metrics: MetricsRegistry,
    health: HealthRegistry,
}

fn start(bus: &KafkaBus, instance: &str, place: &Path) -> Running {
    let (shutdown, metrics, health) = (Shutdown::new(), MetricsRegistry::default(), HealthRegistry::default());
    let service = ArchiverDependencies {
        settings: ArchiverSettings {
            location: place.display().to_string(),
            roll_rows: 40,
            instance: instance.to_owned(),
            ..ArchiverSettings::default()
        },
        prefix: PREFIX.to_owned(),
        bus: Arc::new(bus.clone()),
        clock: ServiceClock::machine(),
        shutdown: shutdown.clone(),
        metrics: metrics.clone(),
        new_archive_id: 1,
        ready: health.part("archiver"),
    };
    Running { thread: std::thread::spawn(move || run(&service)), shutdown, metrics, health }
}

impl Running {
    fn stop(self) {
        self.shutdown.cancel();
        self.thread.join().expect("no panic").expect("no error");
    }

    fn owns(&self) -> i64 {
        let text = self.metrics.text();
        let line = text.lines().find_map(|line| line.strip_prefix("eadt_archiver_partitions "));
        line.and_then(|count| count.parse().ok()).unwrap_or(0)
    }
}

fn until(what: &str, mut true_yet: impl FnMut() -> bool) {
    let began = Instant::now();
    while !true_yet() {
        assert!(began.elapsed() < Duration::from_mins(2), "not within two minutes: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Offsets and keys of what a partition holds for a reader of committed records, and its end.
fn committed(bus: &KafkaBus, at: &TopicPartition) -> (Vec<(i64, Option<Bytes>)>, i64) {
    let mut reader = bus.reader(&[(at.clone(), StartOffset::Earliest)], IsolationLevel::ReadCommitted).expect("a reader");
    let (mut records, mut polled) = (Vec::new(), Vec::new());
    loop {
        reader.poll(1_000, Duration::from_secs(10), &mut polled).expect("a poll");
        for item in polled.drain(..) {
            match item {
                PollEvent::Record(record) => records.push((record.offset, record.key)),
                PollEvent::End { position, .. } => return (records, position),
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn two_archivers_share_the_partitions_and_write_each_offset_once() {
    let kafka = Kafka::start().expect("a Kafka");
    let options = KafkaOptions {
        brokers: kafka.brokers(),
        properties: BTreeMap::new(),
        client_id: "kafka-archiver-test".to_owned(),
        fetch: fetch_path(),
    };
    let bus = KafkaBus::connect(options).expect("a connection");
    for topic in topics::desired(PREFIX, PARTITIONS, 1) {
        bus.create_topic(&topic).expect("a topic");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let place = folder.path().join("archive");

    produce(&bus, 0, 60);
    let first = start(&bus, "archiver-0", &place);
    until("the first has every partition", || first.owns() == i64::from(PARTITIONS) * Topic::ALL.len() as i64);
    let second = start(&bus, "archiver-1", &place);
    produce(&bus, 60, 120);
    until("the second took over some", || second.owns() > 0 && second.health.waiting().is_empty());
    produce(&bus, 120, 180);
    // Records that the first one held become files or are read again by the second.
    first.stop();
    until("the second has every partition", || second.owns() == i64::from(PARTITIONS) * Topic::ALL.len() as i64);
    produce(&bus, 180, 200);
    // Another one of its name, as after a crash that was none: it goes on at once, and the older one ends and stays away.
    let heir = start(&bus, "archiver-1", &place);
    let Running { thread, shutdown: _open, .. } = second;
    let error = thread.join().expect("no panic").expect_err("a newer one has its name").to_string();
    assert!(error.contains("fenced") && error.contains("instance name of its own"), "{error}");
    until("the heir has every partition", || heir.owns() == i64::from(PARTITIONS) * Topic::ALL.len() as i64);
    produce(&bus, 200, 220);
    heir.stop();

    let archive = Archive::folder(&place).expect("an archive");
    let listing = archive.files().expect("no overlaps");
    assert_eq!((listing.gaps.len(), listing.superseded.len()), (0, 0));
    let mut total = 0;
    for topic in Topic::ALL {
        for partition in 0..PARTITIONS {
            let (records, end) = committed(&bus, &TopicPartition::new(name(topic), partition));
            let rows: Vec<ArchiveRow> = archive.rows(&listing, topic, partition).collect::<Result<_, _>>().expect("rows");
            let rows: Vec<_> = rows.into_iter().map(|row| (row.offset, row.key)).collect();
            // A compacted topic may have lost records since they were archived, never gained any.
            if matches!(topic, Topic::ProcessorState) {
                assert!(records.iter().all(|record| rows.contains(record)), "{topic} {partition}");
            } else {
                assert_eq!(rows, records, "{topic} {partition}");
            }
            if let Some((last, _)) = rows.last() {
                // Control records before the last record are inside the ranges; those after it may still come.
                let (low, high) = listing.partitions()[&(topic, partition)];
                assert!(low == 0 && (*last..end).contains(&high), "{topic} {partition}: {low} to {high} of {end}");
            }
            total += rows.len();
        }
    }
    assert_eq!(total, 220 * 7);
}
