//! Random histories of the embedded log against a model of some dozen lines: after every call the log holds what the model
//! holds, also if it was closed or its process died in between.
//!
//! Here a process dies between two calls: the log goes on with a copy of its folder as it lies there, unclosed. Deaths and power
//! cuts within a call are those of `embedded_crash.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use eadt_bus::conformance::read_all;
use eadt_bus::embedded::{EmbeddedLog, EmbeddedOptions, FreeSpaceSource, StampSource};
use eadt_bus::{
    Bus, BusError, CommitStep, ConsumerRecord, GroupMember, IsolationLevel, MemberOptions, Membership, PartitionReader,
    PollEvent, Producer, ProducerRecord, Remedy, StartOffset, TopicPartition, TopicSpec, WatermarkOffsets, partition_for_key,
};
use eadt_schemas::EventTime;
use eadt_testing::cases;
use proptest::prelude::*;

const GROUP: &str = "g";
const WAIT: Duration = Duration::from_mins(1);
/// Bytes after which compaction is due for certain (and before which it may be: what a block adds is not the model's to know).
const DUE_BYTES: usize = 64 << 10;
/// Limit of the topic whose records become too large.
const SMALL: usize = 1_000;
const LAG_SECONDS: i64 = 20;
const TOMBSTONE_SECONDS: i64 = 100;

/// A topic of each kind: deleted by age, kept, kept and of small records, compacted; and one that is not there.
const TOPICS: [(&str, &[(&str, &str)]); 4] = [
    ("aged", &[("retention.ms", "60000")]),
    ("kept", &[("retention.ms", "-1")]),
    ("small", &[("retention.ms", "-1"), ("max.message.bytes", "1000")]),
    ("compact", &[("cleanup.policy", "compact"), ("min.compaction.lag.ms", "20000"), ("delete.retention.ms", "100000")]),
];
const MISSING: &str = "missing";

/// A record to append.
#[derive(Debug, Clone)]
struct Wanted {
    topic: usize,
    partition: Option<i32>,
    key: Option<u8>,
    /// Bytes; `None` for a tombstone.
    value: Option<usize>,
    headers: usize,
}

#[derive(Debug, Clone)]
enum Call {
    /// By the newest member, or by one that it has taken over from.
    Step {
        outputs: Vec<Wanted>,
        positions: Vec<(usize, i32, i64)>,
        fenced: bool,
    },
    /// By a plain producer, and acknowledged.
    Send {
        records: Vec<Wanted>,
        flushed: bool,
    },
    /// By a plain producer, after which the log is closed at once.
    SendAndClose(Vec<Wanted>),
    /// A newer member of the same name.
    TakeOver,
    /// The clock of the stamps goes on, or back.
    Clock(i64),
    Maintain,
    /// The age at which one topic's records go.
    Age(i64),
    /// Another partition for a topic.
    Grow(usize),
    /// Some records by the readers that stay open all the time.
    Read(usize),
    /// Closed and opened.
    Restart,
    /// The process dies, and another one opens what it left.
    Die,
    /// While the disk is full a step is tried and records are sent.
    Full {
        outputs: Vec<Wanted>,
        records: Vec<Wanted>,
    },
}

/// Model of the log.
#[derive(Default)]
struct Model {
    now: i64,
    age: i64,
    held: BTreeMap<TopicPartition, Held>,
    positions: BTreeMap<TopicPartition, i64>,
}

/// Content of a partition.
#[derive(Debug, Clone, Default)]
struct Held {
    records: Vec<ConsumerRecord>,
    low: i64,
    high: i64,
    stamp: i64,
    /// Appended since compaction looked; more than due since the log was opened.
    fresh: usize,
}

impl Model {
    fn partitions(&self, topic: &str) -> i32 {
        self.held.keys().filter(|at| *at.topic == *topic).count() as i32
    }

    fn place(&self, record: &ProducerRecord) -> Option<TopicPartition> {
        let count = self.partitions(&record.topic);
        let partition =
            record.partition.or_else(|| (count > 0).then(|| partition_for_key(record.key.as_ref()?, count).into()).flatten());
        Some(TopicPartition::new(Arc::clone(&record.topic), partition?)).filter(|at| self.held.contains_key(at))
    }

    fn admits(&self, record: &ProducerRecord) -> bool {
        let bytes = record.key.as_ref().map_or(0, Bytes::len) + record.value.as_ref().map_or(0, Bytes::len);
        let fits = *record.topic != *"small" || bytes < SMALL;
        self.place(record).is_some() && fits && (record.key.is_some() || *record.topic != *"compact")
    }

    fn append(&mut self, records: &[ProducerRecord], of_a_step: bool) {
        let mut touched = BTreeSet::new();
        for record in records {
            let at = self.place(record).expect("it was admitted");
            let held = self.held.get_mut(&at).expect("it was admitted");
            held.stamp = held.stamp.max(self.now);
            held.fresh += record.value.as_ref().map_or(0, Bytes::len);
            held.records.push(ConsumerRecord {
                at: at.clone(),
                offset: held.high,
                stamp: seconds(held.stamp),
                key: record.key.clone(),
                value: record.value.clone(),
                headers: record.headers.clone().into(),
            });
            held.high += 1;
            touched.insert(at);
        }
        for at in touched.iter().filter(|_| of_a_step) {
            self.held.get_mut(at).expect("it was touched").high += 1;
        }
    }

    /// Returns the content after maintenance; if compaction may or may not be due, both possible contents.
    fn maintained(&self, at: &TopicPartition) -> (Held, Option<Held>) {
        let before = &self.held[at];
        let mut after = before.clone();
        match &*at.topic {
            "aged" => {
                after.records.retain(|record| record.stamp >= seconds(self.now - self.age));
                if after.records.len() < before.records.len() {
                    after.low = after.records.first().map_or(before.high, |record| record.offset);
                }
            }
            "compact" => {
                let settled = |record: &ConsumerRecord| record.stamp <= seconds(self.now - LAG_SECONDS);
                let last: BTreeMap<_, _> =
                    before.records.iter().filter(|record| settled(record)).map(|r| (r.key.clone(), r.offset)).collect();
                let forgotten = |r: &ConsumerRecord| r.value.is_none() && r.stamp < seconds(self.now - TOMBSTONE_SECONDS);
                after.records.retain(|r| !settled(r) || (r.offset == last[&r.key] && !forgotten(r)));
                after.fresh = 0;
                return (after, (before.fresh < DUE_BYTES).then(|| before.clone()));
            }
            _ => {}
        }
        (after, None)
    }

    fn opened(&mut self) {
        self.held.values_mut().for_each(|held| held.fresh = DUE_BYTES);
    }
}

/// Objects that stay open from call to call.
struct Open {
    log: EmbeddedLog,
    member: Box<dyn GroupMember>,
    /// That the newest member has taken over from.
    fenced: Option<Box<dyn GroupMember>>,
    producer: Box<dyn Producer>,
    /// Of the topics that age does not empty.
    readers: BTreeMap<TopicPartition, Box<dyn PartitionReader>>,
}

struct History {
    folder: tempfile::TempDir,
    /// Copies of the log's folder so far.
    copies: u32,
    clock: Arc<AtomicI64>,
    free: Arc<AtomicU64>,
    /// Taken out only while it is closed.
    open: Option<Open>,
    model: Model,
    /// Positions of the readers, behind the last record, and whether the end was reported since.
    read: BTreeMap<TopicPartition, (i64, bool)>,
    /// All that was ever appended, by place.
    ever: BTreeMap<(TopicPartition, i64), ConsumerRecord>,
    records: u64,
}

fn seconds(seconds: i64) -> EventTime {
    EventTime::from_micros(seconds * 1_000_000)
}

fn as_member(log: &EmbeddedLog) -> Box<dyn GroupMember> {
    let membership = Membership::Transactional("i".into());
    log.member(MemberOptions { group: GROUP.into(), membership, topics: vec!["aged".into(), "kept".into()] }).unwrap()
}

impl History {
    fn new() -> Self {
        let mut history = Self {
            folder: tempfile::tempdir().unwrap(),
            copies: 0,
            clock: Arc::new(AtomicI64::new(1_000)),
            free: Arc::new(AtomicU64::new(1 << 40)),
            open: None,
            model: Model { now: 1_000, age: 60, ..Model::default() },
            read: BTreeMap::new(),
            ever: BTreeMap::new(),
            records: 0,
        };
        let log = history.log();
        for (name, settings) in TOPICS {
            let settings = settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            log.create_topic(&TopicSpec { name: name.into(), partitions: 2, replication: 1, settings }).unwrap();
            let both = [0, 1].map(|partition| TopicPartition::new(name, partition));
            history.model.held.extend(both.clone().map(|at| (at, Held { stamp: i64::MIN, ..Held::default() })));
            history.read.extend(both.map(|at| (at, (0, false))));
        }
        history.read.retain(|at, _| *at.topic != *"aged");
        history.model.opened();
        history.begin(log);
        history
    }

    fn log(&self) -> EmbeddedLog {
        let (clock, free) = (Arc::clone(&self.clock), Arc::clone(&self.free));
        let options = EmbeddedOptions {
            stamps: StampSource::Injected(Arc::new(move || seconds(clock.load(Ordering::Relaxed)))),
            free_space: FreeSpaceSource::Injected(Arc::new(move || free.load(Ordering::Relaxed))),
            reserve_bytes: 1 << 20,
            linger: Duration::ZERO,
            ..EmbeddedOptions::default()
        };
        EmbeddedLog::open(&self.place(), options).unwrap()
    }

    /// Returns the present folder of the log.
    fn place(&self) -> std::path::PathBuf {
        self.folder.path().join(self.copies.to_string())
    }

    fn begin(&mut self, log: EmbeddedLog) {
        let (member, producer) = (as_member(&log), log.producer("plain").unwrap());
        let readers = self.read.iter().map(|(at, (next, is_end_reported))| {
            let mut reader = log.reader(&[(at.clone(), StartOffset::At(*next))], IsolationLevel::ReadCommitted).unwrap();
            if *is_end_reported && self.model.held[at].high == *next {
                // Each reader reports the end once.
                let mut polled = Vec::new();
                reader.poll(1, Duration::ZERO, &mut polled).unwrap();
                assert_eq!(polled, [PollEvent::End { at: at.clone(), position: *next }]);
            }
            (at.clone(), reader)
        });
        let readers = readers.collect();
        self.open = Some(Open { log, member, fenced: None, producer, readers });
    }

    fn open(&mut self) -> &mut Open {
        self.open.as_mut().expect("it is open between calls")
    }

    /// Closes the log, in order.
    fn close(&mut self) {
        self.open = None;
    }

    fn reopen(&mut self) {
        self.close();
        let log = self.log();
        self.model.opened();
        self.begin(log);
    }

    fn outgoing(&mut self, wanted: &Wanted) -> ProducerRecord {
        self.records += 1;
        let topic: Arc<str> = TOPICS.get(wanted.topic).map_or(MISSING, |(name, _)| name).into();
        // No two values are the same.
        let value = wanted.value.map(|bytes| Bytes::from(format!("{} {}", self.records, "x".repeat(bytes))));
        let header = |n: usize| (Arc::from(format!("h{n}")), Bytes::from(format!("{} {n}", self.records)));
        ProducerRecord {
            topic,
            partition: wanted.partition,
            key: wanted.key.map(|key| Bytes::from(vec![b'k'; usize::from(key % 7)])),
            value,
            headers: (0..wanted.headers).map(header).collect(),
        }
    }

    fn all(&mut self, wanted: &[Wanted]) -> Vec<ProducerRecord> {
        // Records without a key name a partition: the log's choice is not the model's to know.
        let known = |wanted: &Wanted| Wanted { key: wanted.key.or(wanted.partition.is_none().then_some(1)), ..wanted.clone() };
        wanted.iter().map(|wanted| self.outgoing(&known(wanted))).collect()
    }

    fn append(&mut self, records: &[ProducerRecord], of_a_step: bool) {
        self.model.append(records, of_a_step);
        let newest = self.model.held.values().flat_map(|held| &held.records);
        let newest: Vec<_> = newest.map(|record| ((record.at.clone(), record.offset), record.clone())).collect();
        self.ever.extend(newest);
    }

    fn call(&mut self, call: &Call) {
        match call {
            Call::Step { outputs, positions, fenced } => {
                let outputs = self.all(outputs);
                let positions: Vec<_> =
                    positions.iter().map(|(topic, n, offset)| (TopicPartition::new(TOPICS[*topic].0, *n), *offset)).collect();
                let possible = outputs.iter().all(|record| self.model.admits(record))
                    && positions.iter().all(|(at, _)| self.model.held.contains_key(at));
                let step = CommitStep { outputs: outputs.clone(), positions: positions.clone() };
                let open = self.open();
                let by = open.fenced.as_mut().filter(|_| *fenced);
                let is_fenced = by.is_some();
                let done = by.unwrap_or(&mut open.member).commit(&step);
                if is_fenced {
                    assert!(done.is_err_and(|error| error.remedy == Remedy::Stop && error.to_string().contains("fenced")));
                } else if possible {
                    done.unwrap();
                    self.append(&outputs, true);
                    self.model.positions.extend(positions);
                } else {
                    assert_eq!(done.unwrap_err().remedy, Remedy::Stop);
                }
            }
            Call::Send { records, flushed } => {
                let taken = self.send(records);
                if *flushed {
                    assert!(self.open().producer.flush(WAIT).unwrap());
                }
                self.settle();
                self.append(&taken, false);
            }
            Call::SendAndClose(records) => {
                let taken = self.send(records);
                self.close();
                self.append(&taken, false);
                self.reopen();
            }
            Call::TakeOver => {
                let open = self.open();
                open.fenced = Some(std::mem::replace(&mut open.member, as_member(&open.log)));
            }
            Call::Clock(by) => {
                self.model.now += by;
                self.clock.store(self.model.now, Ordering::Relaxed);
            }
            Call::Maintain => {
                let now = seconds(self.model.now);
                self.open().log.maintain(now).unwrap();
                let all: Vec<_> = self.model.held.keys().cloned().collect();
                for at in all {
                    let (certain, possible) = self.model.maintained(&at);
                    let found = possible.filter(|possible| self.found(&at) == possible.records);
                    self.model.held.insert(at, found.unwrap_or(certain));
                }
            }
            Call::Age(age) => {
                self.model.age = *age;
                let settings = BTreeMap::from([("retention.ms".to_owned(), (age * 1000).to_string())]);
                self.open().log.alter_topic("aged", &settings).unwrap();
            }
            Call::Grow(topic) => {
                let (name, _) = TOPICS[*topic];
                let count = self.model.partitions(name);
                self.open().log.add_partitions(name, count + 1).unwrap();
                let at = TopicPartition::new(name, count);
                let held = Held { stamp: i64::MIN, fresh: DUE_BYTES, ..Held::default() };
                self.model.held.insert(at.clone(), held);
                if name != "aged" {
                    let reader =
                        self.open().log.reader(&[(at.clone(), StartOffset::Earliest)], IsolationLevel::ReadCommitted).unwrap();
                    self.open().readers.insert(at.clone(), reader);
                    self.read.insert(at, (0, false));
                }
            }
            Call::Read(most) => self.read(*most),
            Call::Restart => self.reopen(),
            Call::Die => {
                let from = self.place();
                self.copies += 1;
                let copied = Command::new("cp").arg("-r").arg(&from).arg(self.place()).status().unwrap();
                assert!(copied.success());
                self.reopen_elsewhere(&from);
            }
            Call::Full { outputs, records } => {
                self.free.store(0, Ordering::Relaxed);
                // So that it looks again how much is free.
                self.reopen();
                let outputs = self.all(outputs);
                if !outputs.is_empty() && outputs.iter().all(|record| self.model.admits(record)) {
                    let done = self.open().member.commit(&CommitStep { outputs, positions: Vec::new() });
                    assert_eq!(done.unwrap_err().remedy, Remedy::Retry);
                }
                let taken = self.send(records);
                self.check();
                self.free.store(1 << 40, Ordering::Relaxed);
                assert!(self.open().producer.flush(WAIT).unwrap());
                self.append(&taken, false);
            }
        }
    }

    /// The process that had the log is gone: nothing that it does counts any more.
    fn reopen_elsewhere(&mut self, before: &Path) {
        self.reopen();
        std::fs::remove_dir_all(before).unwrap();
    }

    /// Hands records to the plain producer; those that it took.
    fn send(&mut self, wanted: &[Wanted]) -> Vec<ProducerRecord> {
        let records = self.all(wanted);
        let mut taken = Vec::new();
        for record in records {
            let possible = self.model.admits(&record);
            match self.open().producer.send(record.clone()) {
                Ok(()) => taken.push(record),
                Err(BusError { remedy, .. }) => assert!(remedy == Remedy::Stop && !possible, "{remedy:?} {possible}"),
            }
        }
        taken
    }

    /// Waits until everything is acknowledged.
    fn settle(&mut self) {
        let begun = Instant::now();
        loop {
            let counts = self.open().producer.counts();
            assert_eq!(counts.failed, 0);
            if counts.acknowledged == counts.accepted {
                return;
            }
            assert!(begun.elapsed() < WAIT, "{counts:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Returns the records of a partition in the log.
    fn found(&mut self, at: &TopicPartition) -> Vec<ConsumerRecord> {
        let count = self.model.partitions(&at.topic);
        let log = &self.open().log;
        read_all(log, &at.topic, count, IsolationLevel::ReadCommitted).into_iter().filter(|record| record.at == *at).collect()
    }

    /// Reads at most so many records with each open reader. Records that it skips are not kept any more.
    fn read(&mut self, most: usize) {
        let Self { open, model, read, ever, .. } = self;
        for (at, reader) in &mut open.as_mut().expect("it is open between calls").readers {
            let mut polled = Vec::new();
            reader.poll(most, Duration::ZERO, &mut polled).unwrap();
            let (next, is_end_reported) = read.get_mut(at).expect("each reader has its place");
            let held = &model.held[at];
            let skipped = |from: i64, to: i64| held.records.iter().any(|r| (from..to).contains(&r.offset));
            for item in polled {
                match item {
                    PollEvent::Record(record) => {
                        assert!(record.offset >= *next && !skipped(*next, record.offset), "{at}: {} after {next}", record.offset);
                        assert_eq!(Some(&record), ever.get(&(at.clone(), record.offset)));
                        (*next, *is_end_reported) = (record.offset + 1, false);
                    }
                    PollEvent::End { position, .. } => {
                        assert_eq!(position, held.high, "{at}");
                        // A reader that is opened again ends if all that came after the last end was compacted away.
                        assert!(
                            (!*is_end_reported || position > *next) && !skipped(*next, position),
                            "{at}: ended at {position} after {next}"
                        );
                        (*next, *is_end_reported) = (position, true);
                    }
                    other => panic!("a reader outside any group returned {other:?}"),
                }
            }
        }
    }

    /// Checks that the log and the model have the same content.
    fn check(&mut self) {
        let all: Vec<_> = self.model.held.keys().cloned().collect();
        for at in &all {
            let (found, held) = (self.found(at), self.model.held[at].clone());
            assert!(
                found == held.records,
                "{at}: offsets {:?} instead of {:?}",
                found.iter().map(|r| (r.offset, r.stamp)).collect::<Vec<_>>(),
                held.records.iter().map(|r| (r.offset, r.stamp)).collect::<Vec<_>>()
            );
            let marks = self.open().log.watermarks(at).unwrap();
            assert_eq!(marks, WatermarkOffsets { low: held.low, high: held.high }, "{at}");
        }
        let expected: Vec<_> = all.iter().map(|at| self.model.positions.get(at).copied()).collect();
        assert_eq!(self.open().log.committed(GROUP, &all).unwrap(), expected);
        assert_eq!(self.open().member.committed(&all).unwrap(), expected);
    }
}

fn wanted() -> impl Strategy<Value = Wanted> {
    // Rarely what is not there: a topic, a partition.
    let topic = prop_oneof![40 => 0..TOPICS.len(), 1 => Just(TOPICS.len())];
    let partition = prop_oneof![10 => Just(None), 10 => (0..2).prop_map(Some), 1 => (-1..5).prop_map(Some)];
    let key = prop_oneof![20 => any::<u8>().prop_map(Some), 1 => Just(None)];
    // Some are larger than a block. None is near the limit of the topic of small records.
    let value = prop_oneof![2 => Just(None), 20 => (0..400_usize).prop_map(Some), 1 => (2_000..200_000_usize).prop_map(Some)];
    (topic, partition, key, value, 0..3_usize).prop_map(|(topic, partition, key, value, headers)| Wanted {
        topic,
        partition,
        key,
        value,
        headers,
    })
}

fn some(most: usize) -> impl Strategy<Value = Vec<Wanted>> {
    prop::collection::vec(wanted(), 0..most)
}

fn call() -> impl Strategy<Value = Call> {
    let positions = prop::collection::vec((0..TOPICS.len(), prop_oneof![20 => 0..2_i32, 1 => 2..5_i32], 0..1_000_i64), 0..5);
    prop_oneof![
        10 => (some(6), positions, prop::bool::weighted(0.2))
            .prop_map(|(outputs, positions, fenced)| Call::Step { outputs, positions, fenced }),
        8 => (some(12), any::<bool>()).prop_map(|(records, flushed)| Call::Send { records, flushed }),
        1 => some(12).prop_map(Call::SendAndClose),
        1 => Just(Call::TakeOver),
        6 => (-10..60_i64).prop_map(Call::Clock),
        4 => Just(Call::Maintain),
        1 => (0..300_i64).prop_map(Call::Age),
        1 => (0..TOPICS.len()).prop_map(Call::Grow),
        4 => (1..20_usize).prop_map(Call::Read),
        1 => Just(Call::Restart),
        1 => Just(Call::Die),
        1 => (some(4), some(4)).prop_map(|(outputs, records)| Call::Full { outputs, records }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..cases(48) })]

    #[test]
    fn a_log_holds_what_the_model_holds(calls in prop::collection::vec(call(), 1..40)) {
        let mut history = History::new();
        for call in &calls {
            history.call(call);
            history.check();
        }
        history.read(usize::MAX);
        for (at, (next, is_end_reported)) in &history.read {
            let held = &history.model.held[at];
            // An end is not reported again if all that came after it was compacted away.
            let is_gap = *is_end_reported && held.records.iter().all(|record| record.offset < *next);
            prop_assert!(*next == held.high || is_gap, "{} is read to {} and ends at {}", at, next, held.high);
        }
    }
}
