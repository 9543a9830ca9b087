//! Checks that every backend must pass. A check panics if the backend breaks a promise.

pub mod numbered;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use eadt_schemas::EventTime;

use crate::{
    Bus, CommitStep, ConsumerRecord, GroupMember, IsolationLevel, MemberOptions, Membership, PartitionReader, PollEvent,
    Producer, ProducerRecord, Remedy, StartOffset, TopicPartition, TopicSpec, partition_for_key,
};

/// A backend under test.
pub trait BackendHarness {
    /// Sessions of its members, if there are any, last longer than two minutes: no check passes by waiting for the end of one.
    fn bus(&self) -> Arc<dyn Bus>;
    /// Returns the same log through a producer buffer of about 100 small records.
    fn tight_bus(&self) -> Arc<dyn Bus>;
    /// Lets compaction and retention go on, a second of log time at least.
    fn settle(&self);
    /// Returns whether the log can be searched by time.
    fn has_time_index(&self) -> bool;
}

/// A named check.
pub type ConformanceCheck = (&'static str, fn(&dyn BackendHarness));

/// All checks. They are independent of each other and of the log's content.
pub const CHECKS: &[ConformanceCheck] = &[
    ("records come back in order, from the partition of their key, as they were sent", round_trip),
    ("a record goes to the partition that it names", explicit_partition),
    ("the end of a partition is reported once, and again after more records", ends),
    ("a paused partition delivers nothing and loses nothing", pauses),
    ("readers start at the requested position", starts),
    ("a log that can be searched by time finds the first record since", searches_by_time),
    ("a member delivers only what it started", member_starts),
    ("a step makes outputs and positions visible together", atomic_step),
    ("a step that cannot be taken leaves nothing behind", refused_step),
    ("offsets have holes after steps, and ends pass them", holes),
    ("a member that is not transactional commits positions only", plain_member),
    ("a newer member of the same name takes the partitions over at once, and fences the older one", static_member),
    ("an older member of the same instance is fenced", fencing),
    ("a full buffer refuses, and the counts are exact", full_buffer),
    ("an oversized record is refused or counted as failed", oversized),
    ("compaction keeps the last record of each key", compaction),
    ("retention deletes, and a deleted position is an error that names it", retention),
    ("topics are listed, changed and extended, never shrunk", topic_changes),
    ("what partitions hold is read to the end that they have, and no further", whole),
];

const WAIT: Duration = Duration::from_mins(2);

/// Returns a name that no other check uses.
pub fn fresh_name(what: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("check.{}.{what}.{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

/// Makes a topic with these settings and a fresh name.
pub fn fresh_topic(bus: &dyn Bus, partitions: i32, settings: &[(&str, &str)]) -> Arc<str> {
    let name: Arc<str> = fresh_name("topic").into();
    let mut all: BTreeMap<String, String> = settings.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    all.insert("message.timestamp.type".into(), "LogAppendTime".into());
    bus.create_topic(&TopicSpec { name: Arc::clone(&name), partitions, replication: 1, settings: all }).expect("a topic is made");
    name
}

/// Returns a record with key, value and no headers.
pub fn outgoing(topic: &Arc<str>, key: &str, value: &str) -> ProducerRecord {
    ProducerRecord {
        topic: Arc::clone(topic),
        partition: None,
        key: Some(Bytes::copy_from_slice(key.as_bytes())),
        value: Some(Bytes::copy_from_slice(value.as_bytes())),
        headers: Vec::new(),
    }
}

/// Sends, waiting while the buffer is full.
pub fn send(producer: &mut dyn Producer, record: &ProducerRecord) {
    let begun = Instant::now();
    while let Err(error) = producer.send(record.clone()) {
        assert_eq!(error.remedy, Remedy::Retry, "{error}");
        assert!(begun.elapsed() < WAIT, "the buffer stays full: {error}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Sends all and waits until they are durable.
pub fn send_all(bus: &dyn Bus, records: &[ProducerRecord]) {
    let mut producer = bus.producer("conformance").expect("a producer is made");
    for record in records {
        send(&mut *producer, record);
    }
    assert!(producer.flush(WAIT).expect("records are written"));
    let counts = producer.counts();
    assert_eq!((counts.accepted, counts.acknowledged, counts.failed), (records.len() as u64, records.len() as u64, 0));
}

/// Polls until every partition has reported its end once. Returns the records and the end positions.
pub fn read_to_end(reader: &mut dyn PartitionReader, partitions: usize) -> (Vec<ConsumerRecord>, HashMap<TopicPartition, i64>) {
    let (mut records, mut ends, mut polled, begun) = (Vec::new(), HashMap::new(), Vec::new(), Instant::now());
    while ends.len() < partitions {
        assert!(begun.elapsed() < WAIT, "ends not reported: {ends:?}");
        reader.poll(100, Duration::from_millis(100), &mut polled).expect("records are read");
        for item in polled.drain(..) {
            match item {
                PollEvent::Record(record) => {
                    ends.remove(&record.at);
                    records.push(record);
                }
                PollEvent::End { at, position } => drop(ends.insert(at, position)),
                other => panic!("a reader outside any group returned {other:?}"),
            }
        }
    }
    (records, ends)
}

/// Returns everything of a topic.
pub fn read_all(bus: &dyn Bus, topic: &Arc<str>, partitions: i32, isolation: IsolationLevel) -> Vec<ConsumerRecord> {
    let from: Vec<_> = (0..partitions).map(|p| (TopicPartition::new(Arc::clone(topic), p), StartOffset::Earliest)).collect();
    let mut reader = bus.reader(&from, isolation).expect("a reader is made");
    read_to_end(&mut *reader, partitions as usize).0
}

/// Joins a group and waits for the partitions.
pub fn join(
    bus: &dyn Bus,
    group: &str,
    instance: Option<&str>,
    topics: &[Arc<str>],
) -> (Box<dyn GroupMember>, Vec<TopicPartition>) {
    let membership = instance.map_or(Membership::Dynamic, |name| Membership::Transactional(name.into()));
    join_as(bus, group, membership, topics)
}

fn join_as(
    bus: &dyn Bus,
    group: &str,
    membership: Membership,
    topics: &[Arc<str>],
) -> (Box<dyn GroupMember>, Vec<TopicPartition>) {
    let options = MemberOptions { group: group.into(), membership, topics: topics.to_vec() };
    let mut member = bus.member(options).expect("a member joins");
    let assigned = await_assignment(&mut *member);
    (member, assigned)
}

/// Polls until partitions are assigned.
pub fn await_assignment(member: &mut dyn GroupMember) -> Vec<TopicPartition> {
    let (mut polled, begun) = (Vec::new(), Instant::now());
    loop {
        assert!(begun.elapsed() < WAIT, "no partition was assigned");
        member.poll(100, Duration::from_millis(100), &mut polled).expect("the member polls");
        for item in polled.drain(..) {
            if let PollEvent::Assigned(assigned) = item {
                return assigned;
            }
        }
    }
}

/// Reads everything committed of a topic, again and again until there are so many records: on Kafka a commit returns before
/// all readers may see it.
pub fn read_count(bus: &dyn Bus, topic: &Arc<str>, partitions: i32, count: usize) -> Vec<ConsumerRecord> {
    let begun = Instant::now();
    loop {
        let records = read_all(bus, topic, partitions, IsolationLevel::ReadCommitted);
        if records.len() >= count || begun.elapsed() > WAIT {
            assert_eq!(records.len(), count, "{topic}");
            return records;
        }
    }
}

fn values(records: &[ConsumerRecord]) -> Vec<String> {
    records.iter().map(|r| String::from_utf8_lossy(r.value.as_deref().unwrap_or(b"<none>")).into_owned()).collect()
}

fn round_trip(backend: &dyn BackendHarness) {
    let bus = backend.bus();
    let topic = fresh_topic(&*bus, 4, &[]);
    let records: Vec<ProducerRecord> = (0..500)
        .map(|n: i32| ProducerRecord {
            topic: Arc::clone(&topic),
            partition: None,
            key: Some(format!("team/job-{}", n % 13).into()),
            value: match n % 5 {
                0 => None,
                1 => Some(Bytes::new()),
                _ => Some(Bytes::from(vec![n as u8; n as usize * 7 % 900])),
            },
            headers: vec![
                ("ce_id".into(), n.to_string().into()),
                ("raw".into(), Bytes::from_static(&[0xff, 0, 0xfe])),
                ("empty".into(), Bytes::new()),
            ],
        })
        .collect();
    send_all(&*bus, &records);
    let read = read_all(&*bus, &topic, 4, IsolationLevel::ReadCommitted);
    assert_eq!(read.len(), records.len());
    for partition in 0..4 {
        let sent: Vec<_> = records.iter().filter(|r| partition_for_key(r.key.as_ref().unwrap(), 4) == partition).collect();
        let got: Vec<_> = read.iter().filter(|r| r.at.partition == partition).collect();
        assert_eq!(sent.len(), got.len(), "partition {partition}");
        for (sent, got) in sent.iter().zip(&got) {
            assert_eq!((&sent.key, &sent.value), (&got.key, &got.value));
            assert_eq!(got.headers, sent.headers.clone().into());
            assert_eq!(got.headers.to_vec(), sent.headers);
        }
        for pair in got.windows(2) {
            assert_eq!(pair[0].offset + 1, pair[1].offset, "a plain producer leaves no holes");
            assert!(pair[0].stamp <= pair[1].stamp, "stamps fall");
        }
        for record in got {
            assert!(record.stamp.micros() > 1_500_000_000_000_000 && record.stamp.micros() % 1000 == 0, "stamp {}", record.stamp);
        }
    }
    assert_eq!(read[0].header("ce_id").map(str::is_empty), Some(false));
    assert_eq!(read[0].header("raw"), None);
}

fn explicit_partition(backend: &dyn BackendHarness) {
    let bus = backend.bus();
    let topic = fresh_topic(&*bus, 3, &[]);
    let mut records: Vec<_> =
        (0..3).map(|p| ProducerRecord { partition: Some(p), ..outgoing(&topic, "same key", &p.to_string()) }).collect();
    records.push(ProducerRecord { key: None, ..outgoing(&topic, "", "keyless") });
    send_all(&*bus, &records);
    let read = read_all(&*bus, &topic, 3, IsolationLevel::ReadCommitted);
    for partition in 0..3 {
        let of: Vec<_> = read.iter().filter(|r| r.at.partition == partition && r.key.is_some()).cloned().collect();
        assert_eq!(values(&of), [partition.to_string()]);
    }
    assert_eq!(read.iter().filter(|r| r.key.is_none()).count(), 1);
}

fn ends(backend: &dyn BackendHarness) {
    let bus = backend.bus();
    let topic = fresh_topic(&*bus, 1, &[]);
    let at = TopicPartition::new(Arc::clone(&topic), 0);
    let mut reader = bus.reader(&[(at.clone(), StartOffset::Earliest)], IsolationLevel::ReadCommitted).unwrap();
    let (none, ends) = read_to_end(&mut *reader, 1);
    assert_eq!((none.len(), ends[&at]), (0, 0));
    let mut polled = Vec::new();
    reader.poll(100, Duration::from_millis(300), &mut polled).unwrap();
    assert_eq!(polled, [], "the end was reported already");
    send_all(&*bus, &[outgoing(&topic, "k", "1"), outgoing(&topic, "k", "2")]);
    let (mut records, mut ends) = read_to_end(&mut *reader, 1);
    while records.len() < 2 {
        let more = read_to_end(&mut *reader, 1);
        records.extend(more.0);
        ends = more.1;
    }
    assert_eq!((values(&records), ends[&at]), (vec!["1".into(), "2".into()], 2));
    assert_eq!(bus.watermarks(&at).unwrap().high, 2);
}

fn pauses(backend: &dyn BackendHarness) {
    let bus = backend.bus();
    let topic = fresh_topic(&*bus, 2, &[]);
    let records: Vec<_> =
        (0..2000).map(|n| ProducerRecord { partition: Some(n % 2), ..outgoing(&topic, "k", &n.to_string()) }).collect();
    send_all(&*bus, &records);
    let at: Vec<_> = (0..2).map(|p| TopicPartition::new(Arc::clone(&topic), p)).collect();
    let from: Vec<_> = at.iter().map(|at| (at.clone(), StartOffset::Earliest)).collect();
    let mut reader = bus.reader(&from, IsolationLevel::ReadCommitted).unwrap();
    let (mut seen, mut polled) = ([Vec::new(), Vec::new()], Vec::new());
    let begun = Instant::now();
    // Partition 0 is paused in the middle of its records, and again and again while it goes on.
    while seen[0].len() + seen[1].len() < 2000 {
        assert!(begun.elapsed() < WAIT);
        reader.poll(37, Duration::from_millis(100), &mut polled).unwrap();
        for item in polled.drain(..) {
            if let PollEvent::Record(record) = item {
                seen[record.at.partition as usize].push(record);
            }
        }
        if seen[1].len() < 1000 && !seen[0].is_empty() {
            reader.pause(&at[..1]).unwrap();
            let before = seen[0].len();
            for _ in 0..3 {
                reader.poll(50, Duration::from_millis(20), &mut polled).unwrap();
            }
            for item in polled.drain(..) {
                if let PollEvent::Record(record) = item {
                    seen[record.at.partition as usize].push(record);
                }
            }
            assert_eq!(seen[0].len(), before, "a paused partition delivers nothing");
            reader.resume(&at[..1]).unwrap();
        }
    }
    for (partition, seen) in seen.iter().enumerate() {
        let expected: Vec<_> = (0..1000).map(|n| (n * 2 + partition).to_string()).collect();
        assert_eq!(values(seen), expected);
    }
    reports_an_end_again_after_a_pause(&*bus, &mut *reader, &at[0]);
}

/// The partition has 1000 records, all read.
fn reports_an_end_again_after_a_pause(bus: &dyn Bus, reader: &mut dyn PartitionReader, at: &TopicPartition) {
    let read_to = |reader: &mut dyn PartitionReader, end: usize| {
        let (mut polled, mut records, begun) = (Vec::new(), 0, Instant::now());
        while !matches!(polled.last(), Some(PollEvent::End { .. })) {
            assert!(begun.elapsed() < WAIT, "no end at {end}");
            reader.poll(37, Duration::from_millis(100), &mut polled).unwrap();
            polled.retain(|item| match item {
                PollEvent::Record(record) => {
                    records += usize::from(record.at == *at);
                    false
                }
                PollEvent::End { at: of, position } if of == at => {
                    assert!(*position >= end as i64, "an end at {position} before the records up to {end}");
                    true
                }
                PollEvent::End { .. } => false,
                other => panic!("{other:?}"),
            });
        }
        records
    };
    let pause_around = |reader: &mut dyn PartitionReader, meanwhile: &dyn Fn(&mut dyn PartitionReader)| {
        reader.pause(std::slice::from_ref(at)).unwrap();
        meanwhile(reader);
        reader.resume(std::slice::from_ref(at)).unwrap();
    };
    pause_around(reader, &|_| {});
    assert_eq!(read_to(reader, 1000), 0);
    pause_around(reader, &|_| {});
    assert_eq!(read_to(reader, 1000), 0, "and again");
    pause_around(reader, &|reader| {
        let more = |n: i32| ProducerRecord { partition: Some(at.partition), ..outgoing(&at.topic, "k", &n.to_string()) };
        send_all(bus, &(0..100).map(more).collect::<Vec<_>>());
        let mut polled = Vec::new();
        reader.poll(50, Duration::from_millis(20), &mut polled).unwrap();
        assert!(!polled.iter().any(|item| matches!(item, PollEvent::Record(_))), "it is paused: {polled:?}");
    });
    assert_eq!(read_to(reader, 1100), 100);
}

fn starts(backend: &dyn BackendHarness) {
    let bus = backend.bus();
    let topic = fresh_topic(&*bus, 1, &[]);
    let at = TopicPartition::new(Arc::clone(&topic), 0);
    send_all(&*bus, &(0..10).map(|n| outgoing(&topic, "k", &n.to_string())).collect::<Vec<_>>());
    for (start, first) in
        [(StartOffset::Earliest, 0), (StartOffset::At(7), 7), (StartOffset::At(10), 10), (StartOffset::Latest, 10)]
    {
        let mut reader = bus.reader(&[(at.clone(), start)], IsolationLevel::ReadCommitted).unwrap();
        let (records, ends) = read_to_end(&mut *reader, 1);
        assert_eq!(values(&records), (first..10).map(|n| n.to_string()).collect::<Vec<_>>(), "{start:?}");
        assert_eq!(ends[&at], 10);
    }
}

fn searches_by_time(backend: &dyn BackendHarness) {
    let bus = backend.bus();
    let topic = fresh_topic(&*bus, 2, &[]);
    for number in 0..6 {
        send_all(&*bus, &[ProducerRecord { partition: Some(0), ..outgoing(&topic, "key", &number.to_string()) }]);
        std::thread::sleep(Duration::from_millis(5));
    }
    let at = [0, 1].map(|partition| TopicPartition::new(Arc::clone(&topic), partition));
    let records = read_all(&*bus, &topic, 2, IsolationLevel::ReadCommitted);
    let newest = records.last().unwrap().stamp;
    for since in records.iter().map(|record| record.stamp).chain([newest.plus_seconds(1.0), EventTime::from_micros(0)]) {
        let first = records.iter().find(|record| record.stamp >= since).map(|record| record.offset);
        let found = bus.offsets_since(&at, since).unwrap();
        let expected = backend.has_time_index().then(|| vec![first, None]);
        assert_eq!(found, expected, "{since}");
    }
}

fn member_starts(backend: &dyn BackendHarness) {
    let bus = backend.bus();
    let topic = fresh_topic(&*bus, 2, &[]);
    send_all(
        &*bus,
        &(0..6).map(|n| ProducerRecord { partition: Some(n % 2), ..outgoing(&topic, "k", &n.to_string()) }).collect::<Vec<_>>(),
    );
    let (mut member, assigned) = join(&*bus, &fresh_name("group"), Some(&fresh_name("instance")), &[Arc::clone(&topic)]);
    assert_eq!(assigned.len(), 2);
    assert_eq!(member.committed(&assigned).unwrap(), [None, None]);
    let mut polled = Vec::new();
    member.poll(100, Duration::from_millis(300), &mut polled).unwrap();
    assert_eq!(polled, [], "nothing was started");
    let second = TopicPartition::new(Arc::clone(&topic), 1);
    for from in [1, 0] {
        // The second time anew, from an earlier offset.
        member.start(&second, from).unwrap();
        let (records, ends) = read_to_end(&mut *member, 1);
        assert_eq!(records.iter().map(|r| r.offset).collect::<Vec<_>>(), (from..3).collect::<Vec<_>>());
        assert_eq!(ends, HashMap::from([(second.clone(), 3)]));
    }
}

fn atomic_step(backend: &dyn BackendHarness) {
    let bus = backend.bus();
    let (input, output, state) =
        (fresh_topic(&*bus, 2, &[]), fresh_topic(&*bus, 2, &[]), fresh_topic(&*bus, 2, &[("cleanup.policy", "compact")]));
    send_all(
        &*bus,
        &(0..4).map(|n| ProducerRecord { partition: Some(n % 2), ..outgoing(&input, "k", &n.to_string()) }).collect::<Vec<_>>(),
    );
    let (group, instance) = (fresh_name("group"), fresh_name("instance"));
    let (mut member, assigned) = join(&*bus, &group, Some(&instance), &[Arc::clone(&input)]);
    let positions: Vec<_> = assigned.iter().map(|at| (at.clone(), 2)).collect();
    let mut outputs: Vec<_> = (0..20).map(|n| outgoing(&output, &format!("k{n}"), "window")).collect();
    outputs.push(outgoing(&state, "job", "sums"));
    member.commit(&CommitStep { outputs, positions }).unwrap();
    assert_eq!(member.committed(&assigned).unwrap(), [Some(2), Some(2)]);
    assert_eq!(bus.committed(&group, &assigned).unwrap(), [Some(2), Some(2)]);
    read_count(&*bus, &output, 2, 20);
    assert_eq!(values(&read_count(&*bus, &state, 2, 1)), ["sums"]);
    // Positions alone, outputs alone, nothing at all.
    member.commit(&CommitStep { outputs: Vec::new(), positions: vec![(assigned[0].clone(), 1)] }).unwrap();
    member.commit(&CommitStep { outputs: vec![outgoing(&output, "k", "more")], positions: Vec::new() }).unwrap();
    member.commit(&CommitStep::default()).unwrap();
    drop(member);
    let (mut member, again) = join(&*bus, &group, Some(&instance), &[input]);
    let committed = member.committed(&again).unwrap();
    let of = |at: &TopicPartition| committed[again.iter().position(|a| a == at).unwrap()];
    assert_eq!((of(&assigned[0]), of(&assigned[1])), (Some(1), Some(2)));
    read_count(&*bus, &output, 2, 21);
}

fn refused_step(backend: &dyn BackendHarness) {
    let bus = backend.bus();
    let (input, output) = (fresh_topic(&*bus, 1, &[]), fresh_topic(&*bus, 1, &[("max.message.bytes", "2000")]));
    let (group, instance) = (fresh_name("group"), fresh_name("instance"));
    let (mut member, assigned) = join(&*bus, &group, Some(&instance), &[Arc::clone(&input)]);
    let large: String = (0..40_000_u32).map(|n| char::from(b'!' + (n.wrapping_mul(2_654_435_761) >> 24) as u8 % 90)).collect();
    let step = CommitStep {
        outputs: vec![outgoing(&output, "k", "small"), outgoing(&output, "k", &large)],
        positions: vec![(assigned[0].clone(), 0)],
    };
    let error = member.commit(&step).unwrap_err();
    assert_ne!(error.remedy, Remedy::Retry, "{error}");
    drop(member);
    assert_eq!(read_all(&*bus, &output, 1, IsolationLevel::ReadCommitted), []);
    assert_eq!(bus.committed(&group, &assigned).unwrap(), [None]);
    let (mut member, _) = join(&*bus, &group, Some(&instance), &[input]);
    member
        .commit(&CommitStep { outputs: vec![outgoing(&output, "k", "small")], positions: vec![(assigned[0].clone(), 0)] })
        .unwrap();
    assert_eq!(values(&read_count(&*bus, &output, 1, 1)), ["small"]);
}

fn holes(backend: &dyn BackendHarness) {
    let bus = backend.bus();
    let (input, output) = (fresh_topic(&*bus, 1, &[]), fresh_topic(&*bus, 1, &[]));
    let at = TopicPartition::new(Arc::clone(&output), 0);
    let (mut member, _) = join(&*bus, &fresh_name("group"), Some(&fresh_name("instance")), &[input]);
    let mut reader = bus.reader(&[(at.clone(), StartOffset::Earliest)], IsolationLevel::ReadCommitted).unwrap();
    let mut all = Vec::new();
    for n in 0..3 {
        let outputs = vec![outgoing(&output, "k", &format!("{n}a")), outgoing(&output, "k", &format!("{n}b"))];
        member.commit(&CommitStep { outputs, positions: Vec::new() }).unwrap();
        while all.len() < (n + 1) * 2 {
            all.extend(read_to_end(&mut *reader, 1).0);
        }
    }
    assert_eq!(all.iter().map(|r| r.offset).collect::<Vec<_>>(), [0, 1, 3, 4, 6, 7]);
    let mut reader = bus.reader(&[(at.clone(), StartOffset::Earliest)], IsolationLevel::ReadCommitted).unwrap();
    let (mut records, mut ends) = read_to_end(&mut *reader, 1);
    while ends[&at] < 9 {
        // The last marker is not written yet.
        let more = read_to_end(&mut *reader, 1);
        records.extend(more.0);
        ends = more.1;
    }
    assert_eq!((records.len(), ends[&at], bus.watermarks(&at).unwrap().high), (6, 9, 9));
    // A start inside a hole delivers the next record after it.
    let mut reader = bus.reader(&[(at, StartOffset::At(5))], IsolationLevel::ReadCommitted).unwrap();
    assert_eq!(values(&read_to_end(&mut *reader, 1).0), ["2a", "2b"]);
}

fn plain_member(backend: &dyn BackendHarness) {
    let bus = backend.bus();
    let input = fresh_topic(&*bus, 2, &[]);
    let group = fresh_name("group");
    let (mut member, assigned) = join(&*bus, &group, None, &[Arc::clone(&input)]);
    member.commit(&CommitStep { outputs: Vec::new(), positions: assigned.iter().map(|at| (at.clone(), 0)).collect() }).unwrap();
    assert_eq!(bus.committed(&group, &assigned).unwrap(), [Some(0), Some(0)]);
    let error = member.commit(&CommitStep { outputs: vec![outgoing(&input, "k", "v")], positions: Vec::new() }).unwrap_err();
    assert_eq!(error.remedy, Remedy::Stop);
    assert_eq!(read_all(&*bus, &input, 2, IsolationLevel::ReadUncommitted), []);
}

fn static_member(backend: &dyn BackendHarness) {
    let bus = backend.bus();
    let topic = fresh_topic(&*bus, 2, &[]);
    let (group, name) = (fresh_name("group"), fresh_name("instance"));
    let (mut zombie, mut assigned) = join_as(&*bus, &group, Membership::Static(name.clone()), std::slice::from_ref(&topic));
    let step = |position| CommitStep { outputs: vec![], positions: vec![(TopicPartition::new(Arc::clone(&topic), 0), position)] };
    zombie.commit(&step(1)).unwrap();
    let with_outputs = CommitStep { outputs: vec![outgoing(&topic, "k", "v")], positions: vec![] };
    assert!(zombie.commit(&with_outputs).is_err(), "outputs need a transactional member");

    // As after a crash: the older one has not left.
    let begun = Instant::now();
    let (mut heir, mut inherited) = join_as(&*bus, &group, Membership::Static(name), std::slice::from_ref(&topic));
    assert!(begun.elapsed() < WAIT, "no session had to run out, {:?}", begun.elapsed());
    assigned.sort();
    inherited.sort();
    assert_eq!(inherited, assigned);
    heir.commit(&step(2)).unwrap();
    // Also if it commits nothing: it receives the error with a heartbeat.
    let (begun, mut polled) = (Instant::now(), Vec::new());
    let error = loop {
        assert!(begun.elapsed() < WAIT, "an older member of the name gets no error");
        if let Err(error) = zombie.poll(10, Duration::from_millis(100), &mut polled) {
            break error;
        }
    };
    assert_eq!(error.remedy, Remedy::Stop, "{error}");
    assert!(error.to_string().contains("fenced"), "{error}");
    let error = zombie.commit(&step(3)).unwrap_err();
    assert_eq!(error.remedy, Remedy::Stop, "{error}");
    assert!(error.to_string().contains("fenced"), "{error}");
    assert_eq!(heir.committed(&[TopicPartition::new(Arc::clone(&topic), 0)]).unwrap(), [Some(2)]);
}

fn fencing(backend: &dyn BackendHarness) {
    let bus = backend.bus();
    let (input, output) = (fresh_topic(&*bus, 1, &[]), fresh_topic(&*bus, 1, &[]));
    let (group, instance) = (fresh_name("group"), fresh_name("instance"));
    let (mut zombie, assigned) = join(&*bus, &group, Some(&instance), &[Arc::clone(&input)]);
    let step =
        |value: &str| CommitStep { outputs: vec![outgoing(&output, "k", value)], positions: vec![(assigned[0].clone(), 0)] };
    zombie.commit(&step("before")).unwrap();
    let (mut heir, _) = join(&*bus, &group, Some(&instance), &[input]);
    heir.commit(&step("heir")).unwrap();
    let error = zombie.commit(&step("zombie")).unwrap_err();
    assert_eq!(error.remedy, Remedy::Stop, "{error}");
    assert!(error.to_string().contains("fenced"), "{error}");
    heir.commit(&step("after")).unwrap();
    assert_eq!(values(&read_count(&*bus, &output, 1, 3)), ["before", "heir", "after"]);
    // The zombie's end does not take the heir's place away.
    drop(zombie);
    heir.commit(&step("last")).unwrap();
}

fn full_buffer(backend: &dyn BackendHarness) {
    let bus = backend.tight_bus();
    let topic = fresh_topic(&*bus, 1, &[]);
    let mut producer = bus.producer("tight").unwrap();
    let (mut accepted, mut refused) = (0_u64, 0_u64);
    for n in 0..20_000 {
        match producer.send(outgoing(&topic, "k", &format!("{n:050}"))) {
            Ok(()) => accepted += 1,
            Err(error) => {
                assert_eq!(error.remedy, Remedy::Retry, "{error}");
                refused += 1;
            }
        }
    }
    assert!(refused > 0, "the buffer never filled");
    assert!(producer.flush(WAIT).unwrap());
    let counts = producer.counts();
    assert_eq!((counts.accepted, counts.acknowledged, counts.failed), (accepted, accepted, 0));
    assert_eq!(read_all(&*bus, &topic, 1, IsolationLevel::ReadCommitted).len() as u64, accepted);
}

fn oversized(backend: &dyn BackendHarness) {
    let bus = backend.bus();
    let topic = fresh_topic(&*bus, 1, &[("max.message.bytes", "2000")]);
    let mut producer = bus.producer("large").unwrap();
    let large: String = (0..9000_u32).map(|n| char::from(b'!' + (n.wrapping_mul(2_654_435_761) >> 24) as u8 % 90)).collect();
    let refused = producer.send(outgoing(&topic, "k", &large)).is_err();
    let flush_failed = producer.flush(WAIT).is_err();
    let counts = producer.counts();
    assert_eq!(counts.acknowledged, 0);
    assert_eq!((counts.accepted, counts.failed), if refused { (0, 0) } else { (1, 1) });
    assert!(refused || flush_failed, "nobody got an error");
    send(&mut *producer, &outgoing(&topic, "k", "small"));
    assert!(producer.flush(WAIT).unwrap());
    assert_eq!(values(&read_all(&*bus, &topic, 1, IsolationLevel::ReadCommitted)), ["small"]);
}

fn compaction(backend: &dyn BackendHarness) {
    let bus = backend.bus();
    let settings = [
        ("cleanup.policy", "compact"),
        ("segment.ms", "100"),
        ("min.cleanable.dirty.ratio", "0.001"),
        ("delete.retention.ms", "100"),
    ];
    let topic = fresh_topic(&*bus, 1, &settings);
    let filler = "x".repeat(1000);
    let mut records: Vec<_> = (0..300).map(|n| outgoing(&topic, &format!("k{}", n % 10), &format!("{n}{filler}"))).collect();
    records.push(ProducerRecord { value: None, ..outgoing(&topic, "k3", "") });
    send_all(&*bus, &records);
    let begun = Instant::now();
    loop {
        // Kafka compacts closed segments only, and closes one when more is appended.
        std::thread::sleep(Duration::from_millis(150));
        send_all(&*bus, &[outgoing(&topic, "other", &filler.repeat(70))]);
        backend.settle();
        let read = read_all(&*bus, &topic, 1, IsolationLevel::ReadCommitted);
        let kept: BTreeMap<i64, String> = read
            .iter()
            .filter(|r| r.key.as_deref() != Some(b"other"))
            .map(|r| (r.offset, String::from_utf8_lossy(r.key.as_deref().unwrap()).into_owned()))
            .collect();
        let expected: BTreeMap<i64, String> = (290..300).filter(|n| n % 10 != 3).map(|n| (n, format!("k{}", n % 10))).collect();
        // The last record of each key is always kept.
        assert!(expected.iter().all(|(offset, key)| kept.get(offset) == Some(key)), "{kept:?}");
        if kept == expected {
            assert!(read.iter().any(|r| r.offset == 299 && r.value.as_deref().is_some_and(|v| v.starts_with(b"299"))));
            return;
        }
        assert!(begun.elapsed() < 2 * WAIT, "not compacted: {kept:?}");
    }
}

fn retention(backend: &dyn BackendHarness) {
    let bus = backend.bus();
    let topic = fresh_topic(&*bus, 1, &[("retention.ms", "400"), ("segment.ms", "100")]);
    let at = TopicPartition::new(Arc::clone(&topic), 0);
    send_all(&*bus, &(0..50).map(|n| outgoing(&topic, "k", &n.to_string())).collect::<Vec<_>>());
    let begun = Instant::now();
    while bus.watermarks(&at).unwrap().low < 50 {
        assert!(begun.elapsed() < 2 * WAIT, "nothing was deleted: {:?}", bus.watermarks(&at));
        std::thread::sleep(Duration::from_millis(200));
        backend.settle();
    }
    bus.alter_topic(&topic, &BTreeMap::from([("retention.ms".to_owned(), "-1".to_owned())])).unwrap();
    send_all(&*bus, &[outgoing(&topic, "k", "kept")]);
    assert_eq!(values(&read_all(&*bus, &topic, 1, IsolationLevel::ReadCommitted)), ["kept"]);

    let (mut member, _) = join(&*bus, &fresh_name("group"), Some(&fresh_name("instance")), &[topic]);
    let begun = Instant::now();
    let mut outcome = member.start(&at, 3);
    let mut polled = Vec::new();
    while outcome.is_ok() && begun.elapsed() < WAIT {
        outcome = member.poll(10, Duration::from_millis(100), &mut polled);
        assert_eq!(polled, [], "deleted records were skipped in silence");
    }
    let error = outcome.unwrap_err();
    assert_eq!(error.remedy, Remedy::Stop, "{error}");
    assert!(error.to_string().contains("deleted"), "{error}");
}

fn topic_changes(backend: &dyn BackendHarness) {
    let bus = backend.bus();
    let name = fresh_topic(&*bus, 2, &[("retention.ms", "1000")]);
    let find = || {
        let mut topics = bus.topics(&name).unwrap();
        assert_eq!(topics.len(), 1);
        topics.remove(0)
    };
    let begun = Instant::now();
    let until = |what: &str, holds: &dyn Fn(&TopicSpec) -> bool| {
        while !holds(&find()) {
            assert!(begun.elapsed() < WAIT, "{what}: {:?}", find());
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    assert_eq!((find().partitions, find().settings.get("retention.ms").map(String::as_str)), (2, Some("1000")));
    let exists = bus.create_topic(&find()).unwrap_err();
    assert_eq!(exists.remedy, Remedy::Stop);
    bus.alter_topic(&name, &BTreeMap::from([("retention.bytes".to_owned(), "12345".to_owned())])).unwrap();
    until("altered", &|spec| spec.settings.get("retention.bytes").map(String::as_str) == Some("12345"));
    assert_eq!(find().settings.get("retention.ms").map(String::as_str), Some("1000"), "other settings stay");
    bus.add_partitions(&name, 5).unwrap();
    until("extended", &|spec| spec.partitions == 5);
    assert!(bus.add_partitions(&name, 3).is_err());
    assert!(bus.alter_topic(&name, &BTreeMap::from([("cleanup.policy".to_owned(), "sometimes".to_owned())])).is_err());
}

fn whole(backend: &dyn BackendHarness) {
    let bus = backend.bus();
    let (topic, empty) = (fresh_topic(&*bus, 2, &[]), fresh_topic(&*bus, 1, &[]));
    let (mut member, _) = join(&*bus, &fresh_name("group"), Some(&fresh_name("instance")), std::slice::from_ref(&empty));
    let records: Vec<_> =
        (0..300).map(|n| ProducerRecord { partition: Some(n % 2), ..outgoing(&topic, "k", &n.to_string()) }).collect();
    // A step, so that each partition ends with an offset that holds no record.
    member.commit(&CommitStep { outputs: records, positions: Vec::new() }).expect("a step is taken");
    let all = [(&topic, 0), (&topic, 1), (&empty, 0)];
    let from = all.map(|(topic, partition)| (TopicPartition::new(Arc::clone(topic), partition), StartOffset::Earliest));
    let mut values: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    let mut more = bus.producer("whole").expect("a producer is made");
    let reader = crate::read_to_end(
        &*bus,
        &from,
        || false,
        |record| {
            let text = std::str::from_utf8(record.value.as_deref().unwrap_or_default()).unwrap_or_default().to_owned();
            let value = text.parse().expect("a number");
            if value < 1000 {
                // Records that arrive meanwhile may be delivered, too.
                send(&mut *more, &outgoing(&topic, "k", "1000"));
            }
            values.entry(record.at.partition).or_default().push(value);
            Ok::<_, crate::BusError>(())
        },
    );
    let mut reader = reader.expect("it is read").expect("nobody stopped it");
    for partition in 0..2 {
        let old: Vec<i32> = values[&partition].iter().copied().filter(|value| *value < 1000).collect();
        assert_eq!(old, (0..300).filter(|n| n % 2 == partition).collect::<Vec<_>>());
    }
    // The reader goes on from there.
    assert!(more.flush(WAIT).expect("records are written"));
    let polled_before: usize = values.values().map(|of| of.iter().filter(|value| **value == 1000).count()).sum();
    let begun = Instant::now();
    let (mut later, mut polled) = (0, Vec::new());
    while polled_before + later < 300 {
        assert!(begun.elapsed() < WAIT, "{later} came after {polled_before}");
        reader.poll(100, Duration::from_millis(100), &mut polled).expect("records are read");
        later += polled.drain(..).filter(|item| matches!(item, PollEvent::Record(_))).count();
    }
    let stopped = crate::read_to_end(&*bus, &from, || true, |_| Ok::<_, crate::BusError>(()));
    assert!(stopped.expect("it is read").is_none());
}
