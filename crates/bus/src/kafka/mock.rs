//! Mock brokers with answers that a test sets. A real broker gives such answers rarely, and not on demand.

use std::time::{Duration, Instant};

use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;

use super::member::KafkaMember;
use super::{FetchPath, KafkaBus, KafkaOptions};
use crate::conformance::{await_assignment, send_all};
use crate::{
    Bus, CommitStep, GroupMember, IsolationLevel, MemberOptions, Membership, PartitionReader, PollEvent, ProducerRecord,
    StartOffset, TopicPartition,
};

pub const GROUP: &str = "group";
pub const WAIT: Duration = Duration::from_secs(30);

pub struct MockBrokers {
    pub cluster: MockCluster<'static, DefaultProducerContext>,
    pub bus: KafkaBus,
}

impl MockBrokers {
    /// Starts one broker, with a topic `in` of two partitions, and `out` and `other` of one.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts the same, and a bus with these properties.
    pub fn start_with(properties: &[(&str, &str)]) -> Self {
        let cluster = MockCluster::new(1).unwrap();
        for (topic, partitions) in [("in", 2), ("out", 1), ("other", 1)] {
            cluster.create_topic(topic, partitions, 1).unwrap();
        }
        let brokers = cluster.bootstrap_servers();
        let properties = properties.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let options = KafkaOptions { brokers, properties, client_id: "tests".into(), fetch: FetchPath::Librdkafka };
        Self { cluster, bus: KafkaBus::connect(options).unwrap() }
    }

    /// Returns a member of [`GROUP`] that reads both partitions of `in` from their beginning.
    pub fn member(&self, membership: Membership) -> KafkaMember {
        let mut member = KafkaMember::join(&self.bus, &options(membership)).unwrap();
        for at in await_assignment(&mut member) {
            member.start(&at, 0).unwrap();
        }
        member
    }

    pub fn transactional(&self) -> KafkaMember {
        self.member(Membership::Transactional("instance".into()))
    }

    /// Returns a reader of the first partition of `in`, from its beginning.
    pub fn reader(&self) -> Box<dyn PartitionReader> {
        self.bus.reader(&[(at(0), StartOffset::Earliest)], IsolationLevel::ReadCommitted).unwrap()
    }

    /// Appends records of these values.
    pub fn append(&self, topic: &str, partition: i32, values: std::ops::Range<usize>) {
        let record = |value: usize| outgoing(topic, partition, &value.to_string());
        send_all(&self.bus, &values.map(record).collect::<Vec<_>>());
    }
}

pub fn options(membership: Membership) -> MemberOptions {
    MemberOptions { group: GROUP.into(), membership, topics: vec!["in".into()] }
}

pub fn at(partition: i32) -> TopicPartition {
    TopicPartition { topic: "in".into(), partition }
}

pub fn outgoing(topic: &str, partition: i32, value: &str) -> ProducerRecord {
    let value = Some(bytes::Bytes::copy_from_slice(value.as_bytes()));
    ProducerRecord { topic: topic.into(), partition: Some(partition), key: Some("key".into()), value, headers: Vec::new() }
}

/// Returns an output, and a position of the first partition of `in`.
pub fn step(position: i64) -> CommitStep {
    CommitStep { outputs: vec![outgoing("out", 0, "output")], positions: vec![(at(0), position)] }
}

/// Tries again until it is so.
#[track_caller]
pub fn until(mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < WAIT, "it never is");
    }
}

/// Polls until so many items came.
#[track_caller]
pub fn poll(reader: &mut dyn PartitionReader, count: usize) -> Vec<PollEvent> {
    let mut polled = Vec::new();
    until(|| {
        reader.poll(100, Duration::from_millis(100), &mut polled).unwrap();
        polled.len() >= count
    });
    polled
}

/// Returns the topic, partition and offset of records; `e` and the position of ends.
pub fn describe_items(polled: &[PollEvent]) -> Vec<String> {
    let one = |item: &PollEvent| match item {
        PollEvent::Record(record) => format!("{}/{}", record.at, record.offset),
        PollEvent::End { at, position } => format!("{at}/e{position}"),
        other => format!("{other:?}"),
    };
    polled.iter().map(one).collect()
}
