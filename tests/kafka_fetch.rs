//! The fetch path of our own against a real Apache Kafka: the checks that every backend owes, and the same bytes as by the client library.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use eadt_bus::conformance::{BackendHarness, CHECKS, fresh_name, fresh_topic, join, outgoing, read_to_end, send_all};
use eadt_bus::kafka::{FetchPath, KafkaBus, KafkaOptions};
use eadt_bus::{
    Bus, CommitStep, ConsumerRecord, IsolationLevel, PollEvent, ProducerRecord, Remedy, StartOffset, TopicPartition, TopicSpec,
};
use eadt_tests::Kafka;

const WAIT: Duration = Duration::from_mins(1);

fn brokers() -> String {
    static KAFKA: OnceLock<Mutex<Kafka>> = OnceLock::new();
    KAFKA.get_or_init(|| Mutex::new(Kafka::start().unwrap())).lock().unwrap().brokers()
}

fn connect(brokers: String, properties: &[(&str, &str)], fetch: FetchPath) -> KafkaBus {
    let properties = properties.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    KafkaBus::connect(KafkaOptions { brokers, properties, client_id: "tests".into(), fetch }).unwrap()
}

struct NativeCluster {
    bus: Arc<KafkaBus>,
    tight: Arc<KafkaBus>,
}

impl BackendHarness for NativeCluster {
    fn bus(&self) -> Arc<dyn Bus> {
        self.bus.clone()
    }

    fn tight_bus(&self) -> Arc<dyn Bus> {
        self.tight.clone()
    }

    fn has_time_index(&self) -> bool {
        true
    }

    fn settle(&self) {
        std::thread::sleep(Duration::from_millis(300));
    }
}

#[test]
fn the_native_path_keeps_every_promise() {
    let native = |properties: &[(&str, &str)]| Arc::new(connect(brokers(), properties, FetchPath::Native));
    let cluster = NativeCluster {
        bus: native(&[("session.timeout.ms", "240000")]),
        tight: native(&[("queue.buffering.max.messages", "100")]),
    };
    for (name, check) in CHECKS {
        let begun = Instant::now();
        check(&cluster);
        eprintln!("{:5} ms  {name}", begun.elapsed().as_millis());
    }
}

/// Everything of a topic's partitions with all that a reader sees, in the order of each partition, and their ends.
fn read_whole(
    bus: &KafkaBus,
    topic: &Arc<str>,
    partitions: i32,
    isolation: IsolationLevel,
) -> (Vec<ConsumerRecord>, BTreeMap<TopicPartition, i64>) {
    let at = |partition| TopicPartition::new(Arc::clone(topic), partition);
    let highs = || (0..partitions).map(|p| (at(p), bus.watermarks(&at(p)).unwrap().high)).collect::<BTreeMap<_, _>>();
    let from: Vec<_> = (0..partitions).map(|p| (at(p), StartOffset::Earliest)).collect();
    let mut reader = bus.reader(&from, isolation).unwrap();
    let (mut records, ends) = read_to_end(&mut *reader, partitions as usize);
    let mut ends: BTreeMap<_, _> = ends.into_iter().collect();
    let (mut polled, begun) = (Vec::new(), Instant::now());
    // The markers of the last transaction may be on their way: they move the end while it is looked at.
    while ends != highs() {
        assert!(begun.elapsed() < WAIT, "{ends:?} instead of {:?}", highs());
        reader.poll(100, Duration::from_millis(100), &mut polled).unwrap();
        for item in polled.drain(..) {
            match item {
                PollEvent::Record(record) => records.push(record),
                PollEvent::End { at, position } => drop(ends.insert(at, position)),
                other => panic!("a reader outside any group got {other:?}"),
            }
        }
    }
    records.sort_by(|a, b| (&a.at, a.offset).cmp(&(&b.at, b.offset)));
    (records, ends)
}

/// As many records, of a reader that takes batches; with the number of batches.
fn read_batches(
    bus: &KafkaBus,
    topic: &Arc<str>,
    partitions: i32,
    isolation: IsolationLevel,
    count: usize,
) -> (Vec<ConsumerRecord>, usize) {
    let from: Vec<_> = (0..partitions).map(|p| (TopicPartition::new(Arc::clone(topic), p), StartOffset::Earliest)).collect();
    let mut reader = bus.reader(&from, isolation).unwrap();
    reader.accept_batches();
    let (mut polled, mut records, mut batches, begun) = (Vec::new(), Vec::new(), 0, Instant::now());
    while records.len() < count {
        assert!(begun.elapsed() < WAIT, "{} of {count} records", records.len());
        let before = records.len();
        reader.poll(100, Duration::from_millis(100), &mut polled).unwrap();
        for item in polled.drain(..) {
            match item {
                PollEvent::Record(record) => records.push(record),
                PollEvent::Batch(batch) => {
                    batches += 1;
                    for index in 0..batch.len() {
                        let record = batch.record(index).unwrap();
                        assert_eq!(batch.view(index), Some(record.view()));
                        records.push(record);
                    }
                }
                PollEvent::End { .. } => {}
                other => panic!("a reader outside any group got {other:?}"),
            }
        }
        assert!(records.len() - before <= 100, "a batch counts as its records");
    }
    records.sort_by(|a, b| (&a.at, a.offset).cmp(&(&b.at, b.offset)));
    (records, batches)
}

/// Records with everything that may be special about one.
fn special_records(topic: &Arc<str>, count: usize) -> Vec<ProducerRecord> {
    (0..count)
        .map(|n| ProducerRecord {
            topic: Arc::clone(topic),
            partition: Some((n % 2) as i32),
            key: (!n.is_multiple_of(7)).then(|| format!("key-{}", n % 13).into()),
            value: match n % 5 {
                0 => None,
                1 => Some(Bytes::new()),
                _ => Some(format!("{{\"power_watts\":{n},\"text\":\"{}\"}}", "abc".repeat(n % 300)).into()),
            },
            headers: (0..n % 4)
                .map(|header| (["ce_0", "ce_type", "ce_2"][header].into(), Bytes::from(vec![0xff, n as u8, 0][..n % 4].to_vec())))
                .collect(),
        })
        .collect()
}

#[test]
fn both_paths_read_the_same_bytes() {
    let library = connect(brokers(), &[], FetchPath::Librdkafka);
    let native = connect(brokers(), &[("max.partition.fetch.bytes", "20000")], FetchPath::Native);
    let topic = fresh_topic(&library, 2, &[]);
    let small = fresh_topic(&library, 1, &[("max.message.bytes", "2000")]);
    let noise: String = (0..40_000_u32).map(|n| char::from(b'!' + (n.wrapping_mul(2_654_435_761) >> 24) as u8 % 90)).collect();
    for codec in ["none", "gzip", "snappy", "lz4", "zstd"] {
        let writer = connect(brokers(), &[("compression.type", codec)], FetchPath::Librdkafka);
        send_all(&writer, &special_records(&topic, 1500));
        let (mut member, _) = join(&writer, &fresh_name("group"), Some(&fresh_name("instance")), std::slice::from_ref(&small));
        for round in 0..3 {
            member.commit(&CommitStep { outputs: special_records(&topic, 100 + round), positions: Vec::new() }).unwrap();
            // Taken back: one of its records is too large for its topic.
            let mut outputs = special_records(&topic, 90);
            outputs.push(outgoing(&small, "k", &noise));
            let error = member.commit(&CommitStep { outputs, positions: Vec::new() }).unwrap_err();
            assert_ne!(error.remedy, Remedy::Retry, "{error}");
        }
    }
    for isolation in [IsolationLevel::ReadCommitted, IsolationLevel::ReadUncommitted] {
        let expected = read_whole(&library, &topic, 2, isolation);
        let found = read_whole(&native, &topic, 2, isolation);
        assert_eq!(found.0.len(), expected.0.len(), "{isolation:?}");
        for (found, expected) in found.0.iter().zip(&expected.0) {
            assert_eq!(found, expected);
        }
        assert_eq!(found.1, expected.1);
        for (bus, has_batches) in [(&native, true), (&library, false)] {
            let (records, batches) = read_batches(bus, &topic, 2, isolation, expected.0.len());
            assert!(records == expected.0, "{isolation:?}: batches have other records");
            assert_eq!(batches > 0, has_batches);
        }
    }
}

#[test]
fn a_member_takes_batches_from_where_it_starts_and_none_while_it_is_paused() {
    let bus = connect(brokers(), &[], FetchPath::Native);
    let topic = fresh_topic(&bus, 1, &[]);
    send_all(&bus, &(0..500).map(|n| outgoing(&topic, "k", &n.to_string())).collect::<Vec<_>>());
    let (mut member, assigned) = join(&bus, &fresh_name("group"), Some(&fresh_name("instance")), std::slice::from_ref(&topic));
    let at = assigned.first().unwrap();
    member.accept_batches();
    member.start(at, 123).unwrap();
    let (mut polled, mut next, mut batches, begun) = (Vec::new(), 123, 0, Instant::now());
    while next < 500 {
        assert!(begun.elapsed() < WAIT, "{next}");
        member.poll(50, Duration::from_millis(100), &mut polled).unwrap();
        for item in polled.drain(..) {
            let PollEvent::Batch(batch) = item else { continue };
            batches += 1;
            assert!(batch.len() <= 50);
            for (offset, ..) in batch.sizes() {
                assert_eq!(offset, next);
                next += 1;
            }
        }
        if batches == 2 {
            member.pause(std::slice::from_ref(at)).unwrap();
            member.poll(50, Duration::from_millis(300), &mut polled).unwrap();
            assert_eq!(polled, []);
            member.resume(std::slice::from_ref(at)).unwrap();
        }
    }
    assert!(batches >= 8, "{batches}");
}

#[test]
fn stamps_of_the_sender_and_compacted_gaps_are_read_alike() {
    let library = connect(brokers(), &[], FetchPath::Librdkafka);
    let native = connect(brokers(), &[], FetchPath::Native);
    let name: Arc<str> = fresh_name("created").into();
    let settings = [
        ("message.timestamp.type", "CreateTime"),
        ("cleanup.policy", "compact"),
        ("segment.ms", "100"),
        ("min.cleanable.dirty.ratio", "0.001"),
    ];
    let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    library.create_topic(&TopicSpec { name: Arc::clone(&name), partitions: 1, replication: 1, settings }).unwrap();
    let records: Vec<_> = (0..300).map(|n| outgoing(&name, &format!("k{}", n % 10), &n.to_string())).collect();
    send_all(&library, &records);
    let begun = Instant::now();
    loop {
        std::thread::sleep(Duration::from_millis(300));
        send_all(&library, &[outgoing(&name, "other", &"x".repeat(70_000))]);
        let before = read_whole(&library, &name, 1, IsolationLevel::ReadCommitted);
        let found = read_whole(&native, &name, 1, IsolationLevel::ReadCommitted);
        let after = read_whole(&library, &name, 1, IsolationLevel::ReadCommitted);
        // Compaction may go on between the reads.
        if before == after {
            assert_eq!(found, before);
            if found.0.iter().filter(|record| record.offset < 300).count() == 10 {
                return;
            }
        }
        assert!(begun.elapsed() < WAIT, "it is not compacted: {} records", found.0.len());
    }
}

#[test]
fn a_broker_that_comes_back_is_read_on_without_a_gap_or_a_repetition() {
    let mut kafka = Kafka::start().unwrap();
    let bus = connect(kafka.brokers(), &[], FetchPath::Native);
    let topic = fresh_topic(&bus, 2, &[]);
    let from: Vec<_> = (0..2).map(|p| (TopicPartition::new(Arc::clone(&topic), p), StartOffset::Earliest)).collect();
    let mut reader = bus.reader(&from, IsolationLevel::ReadCommitted).unwrap();
    let mut next = [0_i64, 0];
    let mut read = |until: i64| {
        let (mut polled, begun) = (Vec::new(), Instant::now());
        while next != [until; 2] {
            assert!(begun.elapsed() < WAIT, "{next:?}");
            reader.poll(100, Duration::from_millis(100), &mut polled).unwrap();
            for item in polled.drain(..) {
                if let PollEvent::Record(record) = item {
                    let of = &mut next[record.at.partition as usize];
                    assert_eq!(record.offset, *of);
                    *of += 1;
                }
            }
        }
    };
    for round in 1..3 {
        send_all(&bus, &special_records(&topic, 400));
        read(200 * round);
        kafka.kill().unwrap();
        std::thread::sleep(Duration::from_millis(300));
        kafka.start_again().unwrap();
    }
}

#[test]
fn a_partition_whose_leader_of_two_goes_is_read_from_the_other() {
    let mut kafka = Kafka::start_cluster(3, &["broker.session.timeout.ms=3000", "broker.heartbeat.interval.ms=500"]).unwrap();
    let addresses: Vec<String> = kafka.iter().map(Kafka::brokers).collect();
    let bus = connect(addresses.join(","), &[], FetchPath::Native);
    let topic: Arc<str> = fresh_name("copied").into();
    let spec = TopicSpec { name: Arc::clone(&topic), partitions: 3, replication: 3, settings: BTreeMap::new() };
    bus.create_topic(&spec).unwrap();
    let from: Vec<_> = (0..3).map(|p| (TopicPartition::new(Arc::clone(&topic), p), StartOffset::Earliest)).collect();
    let mut reader = bus.reader(&from, IsolationLevel::ReadCommitted).unwrap();
    let mut next = [0_i64; 3];
    for round in 1..=3 {
        let records: Vec<_> =
            (0..300).map(|n| ProducerRecord { partition: Some(n % 3), ..outgoing(&topic, "k", &n.to_string()) }).collect();
        send_all(&bus, &records);
        let (mut polled, begun) = (Vec::new(), Instant::now());
        while next != [100 * round; 3] {
            assert!(begun.elapsed() < WAIT, "{next:?}");
            reader.poll(100, Duration::from_millis(100), &mut polled).unwrap();
            for item in polled.drain(..) {
                if let PollEvent::Record(record) = item {
                    let of = &mut next[record.at.partition as usize];
                    assert_eq!(record.offset, *of);
                    *of += 1;
                }
            }
        }
        if round > 1 {
            kafka[round as usize - 2].start_again().unwrap();
        }
        if round < 3 {
            // A stall of this machine is enough for a broker to fall behind.
            kafka[2].await_copies().unwrap();
        }
        kafka[round as usize - 1].kill().unwrap();
    }
}
