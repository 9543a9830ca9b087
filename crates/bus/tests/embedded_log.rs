//! Tests the special parts of the embedded log: its own clock, its own maintenance, one member a group.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

use eadt_bus::conformance::{fresh_topic, join, outgoing, read_all, send_all};
use eadt_bus::embedded::{EmbeddedLog, EmbeddedOptions, StampSource};
use eadt_bus::{
    Bus, CommitStep, IsolationLevel, MemberOptions, Membership, PollEvent, ProducerRecord, Remedy, StartOffset, TopicPartition,
};
use eadt_schemas::EventTime;

/// A log in simulated time.
struct Simulated {
    dir: tempfile::TempDir,
    seconds: Arc<AtomicI64>,
}

impl Simulated {
    fn new(seconds: i64) -> Self {
        Self { dir: tempfile::tempdir().unwrap(), seconds: Arc::new(AtomicI64::new(seconds)) }
    }

    fn open(&self) -> EmbeddedLog {
        let seconds = Arc::clone(&self.seconds);
        let clock = move || EventTime::from_micros(seconds.load(Ordering::Relaxed) * 1_000_000);
        let options =
            EmbeddedOptions { stamps: StampSource::Injected(Arc::new(clock)), reserve_bytes: 0, ..EmbeddedOptions::default() };
        EmbeddedLog::open(self.dir.path(), options).unwrap()
    }

    fn set(&self, seconds: i64) {
        self.seconds.store(seconds, Ordering::Relaxed);
    }
}

fn at(seconds: i64) -> EventTime {
    EventTime::from_micros(seconds * 1_000_000)
}

#[test]
fn stamps_are_simulated_time_and_never_fall_in_a_partition_even_after_a_restart() {
    let time = Simulated::new(100);
    let topic = {
        let log = time.open();
        let topic = fresh_topic(&log, 2, &[]);
        send_all(&log, &[ProducerRecord { partition: Some(0), ..outgoing(&topic, "k", "a") }]);
        time.set(50);
        send_all(&log, &[ProducerRecord { partition: Some(0), ..outgoing(&topic, "k", "b") }]);
        // A stamp of another partition, perhaps of another simulation, does not delay this one.
        send_all(&log, &[ProducerRecord { partition: Some(1), ..outgoing(&topic, "k", "c") }]);
        topic
    };
    time.set(10);
    let log = time.open();
    for partition in [0, 1] {
        send_all(&log, &[ProducerRecord { partition: Some(partition), ..outgoing(&topic, "k", "d") }]);
    }
    time.set(200);
    send_all(&log, &[ProducerRecord { partition: Some(1), ..outgoing(&topic, "k", "e") }]);
    let all = read_all(&log, &topic, 2, IsolationLevel::ReadCommitted);
    let stamps = |partition: i32| all.iter().filter(|r| r.at.partition == partition).map(|r| r.stamp).collect::<Vec<_>>();
    assert_eq!(stamps(0), [at(100), at(100), at(100)]);
    assert_eq!(stamps(1), [at(50), at(50), at(200)]);
}

#[test]
fn retention_is_by_age_and_by_size_and_survives_a_restart() {
    let time = Simulated::new(0);
    let (by_age, by_size) = {
        let log = time.open();
        let by_age = fresh_topic(&log, 1, &[("retention.ms", "60000")]);
        let by_size = fresh_topic(&log, 1, &[("retention.ms", "-1"), ("retention.bytes", "5000")]);
        for second in [0, 30, 90, 100] {
            time.set(second);
            send_all(&log, &[outgoing(&by_age, "k", &second.to_string()), outgoing(&by_size, "k", &"x".repeat(2000))]);
        }
        let reading = TopicPartition::new(Arc::clone(&by_age), 0);
        let mut behind = log.reader(&[(reading, StartOffset::Earliest)], IsolationLevel::ReadCommitted).unwrap();
        log.maintain(at(110)).unwrap();
        // A reader that retention has overtaken gets an error.
        let error = behind.poll(10, Duration::ZERO, &mut Vec::new()).unwrap_err();
        assert!(error.to_string().contains("deleted these records: continue at 2"), "{error}");
        (by_age, by_size)
    };
    let log = time.open();
    let low = |topic: &Arc<str>| log.watermarks(&TopicPartition::new(Arc::clone(topic), 0)).unwrap();
    assert_eq!((low(&by_age).low, low(&by_age).high), (2, 4));
    assert_eq!((low(&by_size).low, low(&by_size).high), (2, 4));
    assert_eq!(read_all(&log, &by_age, 1, IsolationLevel::ReadCommitted).len(), 2);
    // Everything may go; the next offset stays.
    log.maintain(at(10_000)).unwrap();
    assert_eq!((low(&by_age).low, low(&by_age).high), (4, 4));
    send_all(&log, &[outgoing(&by_age, "k", "new")]);
    assert_eq!(read_all(&log, &by_age, 1, IsolationLevel::ReadCommitted)[0].offset, 4);
}

#[test]
fn compaction_waits_for_its_lag_and_forgets_tombstones_after_their_time() {
    let time = Simulated::new(0);
    let log = time.open();
    let settings = [("cleanup.policy", "compact"), ("min.compaction.lag.ms", "100000"), ("delete.retention.ms", "500000")];
    let topic = fresh_topic(&log, 1, &settings);
    let filler = "x".repeat(70_000);
    let keys = |log: &EmbeddedLog| {
        let records = read_all(log, &topic, 1, IsolationLevel::ReadCommitted);
        records.iter().map(|r| (r.offset, r.value.is_some())).collect::<Vec<_>>()
    };
    send_all(&log, &[outgoing(&topic, "a", &filler), outgoing(&topic, "b", &filler), outgoing(&topic, "a", "last")]);
    send_all(&log, &[ProducerRecord { value: None, ..outgoing(&topic, "b", "") }]);
    log.maintain(at(50)).unwrap();
    assert_eq!(keys(&log).len(), 4, "too young");
    send_all(&log, &[outgoing(&topic, "c", &filler)]);
    let done = log.maintain(at(200)).unwrap();
    assert_eq!(done.compacted_records, 2);
    assert_eq!(keys(&log), [(2, true), (3, false), (4, true)]);
    send_all(&log, &[outgoing(&topic, "d", &filler)]);
    log.maintain(at(1000)).unwrap();
    assert_eq!(keys(&log), [(2, true), (4, true), (5, true)]);
}

#[test]
fn a_reader_in_the_middle_of_compaction_misses_nothing_that_is_kept() {
    let time = Simulated::new(0);
    let log = time.open();
    let topic = fresh_topic(&log, 1, &[("cleanup.policy", "compact")]);
    let records: Vec<_> = (0..3000).map(|n| outgoing(&topic, &format!("k{}", n * 7919 % 1000), &"x".repeat(300))).collect();
    for part in records.chunks(50) {
        send_all(&log, part);
    }
    let mut reader = log
        .reader(&[(TopicPartition::new(Arc::clone(&topic), 0), StartOffset::Earliest)], IsolationLevel::ReadCommitted)
        .unwrap();
    let mut polled = Vec::new();
    reader.poll(10, Duration::ZERO, &mut polled).unwrap();
    assert!(log.maintain(at(1)).unwrap().compacted_records > 0);
    while !polled.iter().any(|item| matches!(item, PollEvent::End { .. })) {
        reader.poll(10, Duration::from_secs(1), &mut polled).unwrap();
    }
    let mut seen = BTreeMap::new();
    let mut last = -1;
    for item in polled {
        if let PollEvent::Record(record) = item {
            assert!(record.offset > last);
            last = record.offset;
            seen.insert(record.key.unwrap(), record.offset);
        }
    }
    let kept: BTreeMap<_, _> =
        read_all(&log, &topic, 1, IsolationLevel::ReadCommitted).into_iter().map(|r| (r.key.unwrap(), r.offset)).collect();
    assert_eq!((seen, kept.len()), (kept, 1000));
}

#[test]
fn another_member_of_a_group_is_sent_to_kafka_and_new_partitions_come_along() {
    let time = Simulated::new(0);
    let log = time.open();
    let topic = fresh_topic(&log, 2, &[]);
    let (mut member, assigned) = join(&log, "g", Some("one"), &[Arc::clone(&topic)]);
    assert_eq!(assigned.len(), 2);
    let other = MemberOptions {
        group: "g".into(),
        membership: Membership::Transactional("two".into()),
        topics: vec![Arc::clone(&topic)],
    };
    let error = log.member(other.clone()).unwrap_err();
    assert_eq!(error.remedy, Remedy::Stop);
    assert!(error.to_string().contains("use Kafka (--kafka)"), "{error}");
    log.add_partitions(&topic, 3).unwrap();
    let mut polled = Vec::new();
    member.poll(10, Duration::from_secs(1), &mut polled).unwrap();
    assert_eq!(polled, [PollEvent::Assigned(vec![TopicPartition::new(Arc::clone(&topic), 2)])]);
    drop(member);
    assert_eq!(join(&log, "g", Some("two"), &other.topics).1.len(), 3);
}

#[test]
fn a_waiting_reader_wakes_at_once() {
    let time = Simulated::new(0);
    let log = time.open();
    let topic = fresh_topic(&log, 1, &[]);
    let (mut member, _) = join(&log, "g", Some("one"), &[Arc::clone(&topic)]);
    let mut reader =
        log.reader(&[(TopicPartition::new(Arc::clone(&topic), 0), StartOffset::Latest)], IsolationLevel::ReadCommitted).unwrap();
    reader.poll(1, Duration::ZERO, &mut Vec::new()).unwrap();
    let waiting = std::thread::spawn(move || {
        let mut polled = Vec::new();
        let begun = Instant::now();
        reader.poll(1, Duration::from_secs(20), &mut polled).unwrap();
        (polled.len(), begun.elapsed())
    });
    std::thread::sleep(Duration::from_millis(50));
    member.commit(&CommitStep { outputs: vec![outgoing(&topic, "k", "v")], positions: Vec::new() }).unwrap();
    let (count, waited) = waiting.join().unwrap();
    assert_eq!(count, 1);
    assert!(waited < Duration::from_secs(10), "{waited:?}");
}

#[test]
fn a_dropped_producer_still_delivers_what_it_took_and_closing_the_log_waits_for_it() {
    let time = Simulated::new(0);
    let log = time.open();
    let topic = fresh_topic(&log, 1, &[]);
    let mut producer = log.producer("p").unwrap();
    for n in 0..500 {
        producer.send(outgoing(&topic, "k", &n.to_string())).unwrap();
    }
    drop((producer, log));
    assert_eq!(read_all(&time.open(), &topic, 1, IsolationLevel::ReadCommitted).len(), 500);
}

#[test]
fn a_writer_that_panics_loses_nothing_uncounted_and_fails_every_producer() {
    let dir = tempfile::tempdir().unwrap();
    let broken = Arc::new(AtomicBool::new(false));
    let panics = Arc::clone(&broken);
    let clock = move || {
        assert!(!panics.load(Ordering::Relaxed), "on purpose");
        at(1)
    };
    // Both records are taken before the writer begins: only a flush has it begin.
    let linger = Duration::from_hours(1);
    let stamps = StampSource::Injected(Arc::new(clock));
    let options = EmbeddedOptions { stamps, linger, reserve_bytes: 0, ..EmbeddedOptions::default() };
    let log = EmbeddedLog::open(dir.path(), options.clone()).unwrap();
    let topic = fresh_topic(&log, 1, &[]);
    send_all(&log, &[outgoing(&topic, "k", "a")]);
    let (mut one, other) = (log.producer("one").unwrap(), log.producer("other").unwrap());
    let before = eadt_tasks::LOG_WRITER.failures();
    broken.store(true, Ordering::Relaxed);
    for value in ["b", "c"] {
        one.send(outgoing(&topic, "k", value)).unwrap();
    }
    let error = one.flush(Duration::from_mins(1)).unwrap_err();
    assert_eq!(error.remedy, Remedy::Stop, "{error}");
    assert!(error.to_string().contains("the writer of the embedded log panicked"), "{error}");
    let counts = one.counts();
    assert_eq!((counts.accepted, counts.acknowledged, counts.failed), (2, 0, 2));
    assert_eq!(eadt_tasks::LOG_WRITER.failures(), before + 1, "counted");
    // Later and repeated calls get the error, too, and no more records are accepted.
    for mut producer in [one, other, log.producer("new").unwrap()] {
        let taken = producer.counts().accepted;
        assert_eq!(producer.send(outgoing(&topic, "k", "d")).unwrap_err().remedy, Remedy::Stop);
        assert_eq!(producer.flush(Duration::from_secs(1)).unwrap_err().remedy, Remedy::Stop);
        assert_eq!(producer.counts().accepted, taken);
    }
    drop(log);
    // The next start has what was acknowledged, and works.
    broken.store(false, Ordering::Relaxed);
    let log = EmbeddedLog::open(dir.path(), options).unwrap();
    send_all(&log, &[outgoing(&topic, "k", "e")]);
    let values: Vec<_> =
        read_all(&log, &topic, 1, IsolationLevel::ReadCommitted).into_iter().filter_map(|record| record.value).collect();
    assert_eq!(values, ["a", "e"]);
}
