//! The log between the services: one small interface, two backends.
//!
//! In: keyed records and positions. Out: records in partition order, and atomic steps. Backends: [`kafka`]
//! (Apache Kafka through rdkafka, the only crate that knows it) and [`embedded`] (an in-process log on an ACID store).
//! Everything here blocks and is called from plain threads; it never decides anything and never decodes a value.

mod batch;
pub use eadt_faults as chaos;
mod backoff;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
pub mod embedded;
mod events;
mod hanging;
mod headers;
pub mod kafka;
mod partitioner;
mod read_to_end;
pub mod rights;
#[cfg(feature = "simulation")]
pub mod simulation;
mod standby;
pub mod topics;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use eadt_schemas::EventTime;
use eadt_schemas::envelope::header;

pub use backoff::RetryBackoff;
pub use batch::{RecordBatch, RecordView};
pub use events::headers;
pub use hanging::{HangingEnds, warn_of_waiting};
pub use headers::RecordHeaders;
pub use partitioner::{murmur2, partition_for_key};
pub use read_to_end::{UnreadEnd, read_to_end, read_within};
pub use standby::SpareMemberCheck;

/// A partition of a topic. The topic is the full name, prefix included.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicPartition {
    pub topic: Arc<str>,
    pub partition: i32,
}

impl TopicPartition {
    pub fn new(topic: impl Into<Arc<str>>, partition: i32) -> Self {
        Self { topic: topic.into(), partition }
    }
}

impl fmt::Display for TopicPartition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.topic, self.partition)
    }
}

/// A header: UTF-8 name, bytes as value.
pub type RecordHeader = (Arc<str>, Bytes);

/// A record as the log has it. Its bytes may be slices of a larger block, which lives as long as any of them: copy what is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsumerRecord {
    pub at: TopicPartition,
    pub offset: i64,
    /// The log's own stamp (`LogAppendTime`), millisecond resolution.
    pub stamp: EventTime,
    pub key: Option<Bytes>,
    /// `None` is a tombstone.
    pub value: Option<Bytes>,
    pub headers: RecordHeaders,
}

impl ConsumerRecord {
    /// Returns its log position as text, which is the id of its dead letter.
    pub fn location(&self) -> String {
        format!("{}/{}", self.at, self.offset)
    }

    /// Returns the default scope of readers.
    pub fn view(&self) -> RecordView<'_> {
        RecordView {
            partition: self.at.partition,
            offset: self.offset,
            key: self.key.as_deref(),
            value: self.value.as_deref(),
            raw_event_type: self.headers.get(header::TYPE),
            is_sent_again: self.headers.get(header::SENT_AGAIN).is_some(),
        }
    }

    /// Returns the last header of this name, if it is UTF-8.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| std::str::from_utf8(value).ok())
    }
}

/// A record to be appended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProducerRecord {
    /// Full topic name.
    pub topic: Arc<str>,
    /// `None` to choose it by the key like the JVM clients (`murmur2_random`).
    pub partition: Option<i32>,
    pub key: Option<Bytes>,
    pub value: Option<Bytes>,
    pub headers: Vec<RecordHeader>,
}

/// Next item of a [`PartitionReader`] or a [`GroupMember`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PollEvent {
    Record(ConsumerRecord),
    /// Records that came together, only to a reader that has asked for them by [`PartitionReader::accept_batches`].
    Batch(RecordBatch),
    /// Every record before `position` was delivered, and the partition holds none at or after it for now.
    /// Emitted once each time the end is reached.
    End {
        at: TopicPartition,
        position: i64,
    },
    /// Partitions now belong to this member: it must [`GroupMember::start`] each. Never emitted by a [`PartitionReader`].
    Assigned(Vec<TopicPartition>),
    /// Partitions are about to go: the member may still commit for them; the next `poll` gives them away.
    Revoked(Vec<TopicPartition>),
    /// Partitions are gone already: nothing may be committed for them.
    Lost(Vec<TopicPartition>),
}

/// The caller's way out of an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remedy {
    /// The same call may succeed later; nothing was done.
    Retry,
    /// It is unknown whether the step took place: drop the member, make a new one, start from the committed positions.
    Restart,
    /// It cannot succeed: stop and report it to the user.
    Stop,
}

/// Prefix of the text of [`BusError::is_fenced`].
pub(crate) const FENCED: &str = "fenced: ";

/// A failed bus call.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {detail}")]
pub struct BusError {
    pub remedy: Remedy,
    /// The action that failed, with names and values.
    pub what: String,
    /// The answer, and what to do.
    pub detail: String,
}

impl BusError {
    pub fn new(remedy: Remedy, what: impl Into<String>, detail: impl fmt::Display) -> Self {
        Self { remedy, what: what.into(), detail: detail.to_string() }
    }

    /// Returns true if a newer member or producer of the same name has taken over.
    pub fn is_fenced(&self) -> bool {
        self.remedy == Remedy::Stop && self.detail.starts_with(FENCED)
    }

    /// Returns the error of a call about a partition that the consumer does not have.
    pub(crate) fn unassigned(what: &str, at: &TopicPartition) -> Self {
        Self::new(Remedy::Stop, format!("{what} {at}"), "it is not assigned here")
    }
}

pub type Result<T, E = BusError> = std::result::Result<T, E>;

/// A topic as it is or as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicSpec {
    /// Full name.
    pub name: Arc<str>,
    pub partitions: i32,
    /// Kafka only; the embedded log has one copy.
    pub replication: i32,
    /// Topic settings by their Kafka names: `cleanup.policy`, `retention.ms`, `max.message.bytes`, …
    pub settings: std::collections::BTreeMap<String, String>,
}

/// Offset at which a reader begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartOffset {
    Earliest,
    Latest,
    At(i64),
}

/// Records that a reader sees: all, or those of committed transactions only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IsolationLevel {
    #[default]
    ReadCommitted,
    ReadUncommitted,
}

/// First and next offset of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WatermarkOffsets {
    /// The oldest kept offset. A position below it was deleted by retention: compare before [`GroupMember::start`].
    pub low: i64,
    /// The offset that the next append gets, whether committed or not. Offsets below it may be holes: an end is reached when
    /// [`PollEvent::End`] reports it, never because of a record's offset.
    pub high: i64,
}

/// Name of a member of a group, and what it may commit. A name is stable: a new member of the same name fences the old one and
/// starts at once. A member without a name waits until the session of a killed member has run out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Membership {
    /// Has no name, and commits positions only.
    Dynamic,
    /// Has a name (`group.instance.id`), and commits positions only.
    Static(String),
    /// Has a name (`group.instance.id` and `transactional.id`), and commits outputs and positions in one step.
    Transactional(String),
}

impl Membership {
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::Dynamic => None,
            Self::Static(name) | Self::Transactional(name) => Some(name),
        }
    }

    pub fn is_transactional(&self) -> bool {
        matches!(self, Self::Transactional(_))
    }
}

/// Options of a member of a group.
#[derive(Debug, Clone)]
pub struct MemberOptions {
    pub group: String,
    pub membership: Membership,
    /// Full topic names, all with the same partition count.
    pub topics: Vec<Arc<str>>,
}

/// An atomic step: all of it becomes visible, or nothing.
#[derive(Debug, Clone, Default)]
pub struct CommitStep {
    /// Outputs and state, in order.
    pub outputs: Vec<ProducerRecord>,
    /// Offset of the first record not yet folded, for each input.
    pub positions: Vec<(TopicPartition, i64)>,
}

/// A member of a group, as the log describes it to others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupMemberDescription {
    /// Its name, as far as it has one, and the address of its host.
    pub name: String,
    /// Topics that it subscribes to; empty if the log does not know them, such as during a rebalance.
    pub topics: Vec<String>,
}

/// End of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransactionEnd {
    Commit,
    Abort,
}

/// A backend.
pub trait Bus: Send + Sync + fmt::Debug {
    /// Returns all topics whose names start with `prefix`.
    fn topics(&self, prefix: &str) -> Result<Vec<TopicSpec>>;
    /// Returns the partition count of each topic whose name starts with `prefix`. Less is asked for than by [`Self::topics`], and
    /// no right to read settings is needed.
    fn partition_counts(&self, prefix: &str) -> Result<std::collections::BTreeMap<Arc<str>, i32>> {
        Ok(self.topics(prefix)?.into_iter().map(|topic| (topic.name, topic.partitions)).collect())
    }

    /// Returns the right that this client lacks on a topic that it cannot see, in words; `None` if the topic does not exist.
    fn missing_right(&self, _topic: &str) -> Option<String> {
        None
    }
    /// Returns by name what distinguishes each of these topics from a former one of its name. Topics are absent of which the log
    /// does not know it, or does not answer in time.
    fn topic_ids(&self, _topics: &[Arc<str>]) -> std::collections::BTreeMap<String, String> {
        std::collections::BTreeMap::new()
    }
    fn create_topic(&self, topic: &TopicSpec) -> Result<()>;
    /// Sets exactly these settings of an existing topic, leaves others alone.
    fn alter_topic(&self, name: &str, settings: &std::collections::BTreeMap<String, String>) -> Result<()>;
    fn add_partitions(&self, name: &str, partitions: i32) -> Result<()>;
    fn watermarks(&self, at: &TopicPartition) -> Result<WatermarkOffsets>;
    /// Like [`Self::watermarks`], but returns an answer or an error within about this time, for callers that must end soon.
    fn watermarks_within(&self, at: &TopicPartition, _timeout: Duration) -> Result<WatermarkOffsets> {
        self.watermarks(at)
    }
    /// Returns the offset of the first record of each partition whose stamp is not before `since`; `None` for a partition
    /// without one. Returns `None` for all if the log cannot be searched by time.
    fn offsets_since(&self, _of: &[TopicPartition], _since: EventTime) -> Result<Option<Vec<Option<i64>>>> {
        Ok(None)
    }
    /// Returns a plain idempotent producer; `name` appears in logs and as the client's id.
    fn producer(&self, name: &str) -> Result<Box<dyn Producer>>;
    /// Reads given partitions outside any group.
    fn reader(&self, from: &[(TopicPartition, StartOffset)], isolation: IsolationLevel) -> Result<Box<dyn PartitionReader>>;
    /// Joins a group. Older members of the same instance are fenced.
    fn member(&self, options: MemberOptions) -> Result<Box<dyn GroupMember>>;
    /// Positions that a group has committed, `None` if it has none.
    fn committed(&self, group: &str, of: &[TopicPartition]) -> Result<Vec<Option<i64>>>;
    /// Asks whether the log serves a topic, for at most four seconds. An error if no broker answers, or if a partition has no
    /// leader.
    fn probe(&self, _topic: &str) -> Result<()> {
        Ok(())
    }
    /// Returns whether a group has more members than this topic, the one with the most partitions of those that it reads, has
    /// partitions, so that members without any are spare.
    fn has_spare_members(&self, _group: &str, _topic: &str) -> Result<bool> {
        Ok(false)
    }
    /// Returns the members of a group, those of dead processes included until their session has run out.
    fn group_members(&self, _group: &str) -> Result<Vec<GroupMemberDescription>> {
        Ok(Vec::new())
    }
}

/// Appends without transactions.
pub trait Producer: Send + fmt::Debug {
    /// Hands a record over. [`Remedy::Retry`] when the bounded buffer is full: nothing was taken. [`Remedy::Stop`] when this
    /// record can never be written (too large, no such topic, no key on a compacted topic), or when records taken earlier have
    /// failed, which is reported once; this record was not taken then.
    fn send(&mut self, record: ProducerRecord) -> Result<()>;
    /// Handles delivery reports of records in flight. A caller that has records in flight and sends none for a while calls it
    /// now and then: `send` and `flush` do so themselves.
    fn poll_deliveries(&mut self) -> Result<()> {
        Ok(())
    }
    /// Counts of records since creation. Each sent record ends as exactly one of acknowledged or failed.
    fn counts(&self) -> ProducerCounts;
    /// Returns a number that changes while the records that have been on their way for longest are acknowledged or fail. If it stays
    /// and something is in flight, a part of the log is silent, though another part may acknowledge.
    fn oldest_progress(&self) -> u64 {
        let counts = self.counts();
        counts.acknowledged + counts.failed
    }
    /// Waits until nothing is in flight, at most so long; true when nothing is, and everything acknowledged is durable. Records in
    /// flight after false may be given up by the producer's end.
    fn flush(&mut self, timeout: Duration) -> Result<bool>;
}

/// Outcome counts of the records given to [`Producer::send`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ProducerCounts {
    pub accepted: u64,
    pub acknowledged: u64,
    pub failed: u64,
}

/// Reads partitions.
pub trait PartitionReader: Send + fmt::Debug {
    /// Appends at most `max` items to `into`; waits at most `timeout` for the first. A batch counts as its records.
    fn poll(&mut self, max: usize, timeout: Duration, into: &mut Vec<PollEvent>) -> Result<()>;
    /// Delivers nothing of these partitions until resumed; buffered records are kept.
    fn pause(&mut self, at: &[TopicPartition]) -> Result<()>;
    /// Delivers paused partitions again. An end that was reported is reported again, after the records that came meanwhile.
    fn resume(&mut self, at: &[TopicPartition]) -> Result<()>;
    /// Accepts records as [`PollEvent::Batch`] from now on, if the log keeps them in batches.
    fn accept_batches(&mut self) {}
    /// Returns for how long no broker has answered; `None` if the last request was answered, or if there is no broker.
    fn unanswered(&self) -> Option<Duration> {
        None
    }
    /// Returns for how long one of the brokers that partitions are read from has not answered; `None` if all of them answered their
    /// last request, or if that is not known.
    fn silent_broker(&self) -> Option<Duration> {
        None
    }
}

/// A broker that leaves a request unanswered for so long is silent.
const SILENCE: Duration = Duration::from_secs(5);

/// Returns whether one of the brokers that partitions are read from is silent. Other brokers may answer, but the reader is not
/// ready.
pub fn is_any_broker_silent(reader: &(impl PartitionReader + ?Sized)) -> bool {
    reader.silent_broker().is_some_and(|silent| silent >= SILENCE)
}

/// A group member. Delivers nothing of an assigned partition before it is started.
pub trait GroupMember: PartitionReader {
    /// Begins (or begins anew) to deliver an assigned partition at this offset. An offset that retention has deleted is
    /// [`Remedy::Stop`], here or at the next poll, with the oldest kept offset in words.
    fn start(&mut self, at: &TopicPartition, offset: i64) -> Result<()>;
    /// Returns the group's committed positions; `None` if there is none.
    fn committed(&mut self, of: &[TopicPartition]) -> Result<Vec<Option<i64>>>;
    /// One atomic step. Returns when it is durable (and, on Kafka, decided: readers see it some milliseconds later). Nothing is
    /// taken out of it: it may be made again if nothing was done ([`Remedy::Retry`]). [`Remedy::Stop`] with the word "fenced"
    /// when a newer member of the instance has taken over.
    fn commit(&mut self, step: &CommitStep) -> Result<()>;
    /// Ends hanging transactions of earlier members of this name: a broker forgot to mark them, and nothing after them is
    /// readable. Commits or aborts whatever of them is in `outputs` and, `with_positions`, in the group's positions. Readers
    /// see it some milliseconds later. Other members' transactions stay as they are. Does nothing if transactions cannot hang.
    /// [`Remedy::Retry`] if no broker did it.
    fn end_hanging(&mut self, _outputs: &[TopicPartition], _with_positions: bool, _end: TransactionEnd) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_shows_its_position_and_its_headers_as_text() {
        let header = |name: &str, value: &'static [u8]| (Arc::from(name), Bytes::from_static(value));
        let record = ConsumerRecord {
            at: TopicPartition::new("eadt.decisions.v1", 3),
            offset: 17,
            stamp: EventTime::MIN,
            key: None,
            value: None,
            headers: vec![header("id", b"old"), header("id", b"new"), header("raw", b"\xff"), header("empty", b"")].into(),
        };
        assert_eq!(record.location(), "eadt.decisions.v1-3/17");
        assert_eq!(record.header("id"), Some("new"));
        assert_eq!((record.header("empty"), record.header("raw"), record.header("none")), (Some(""), None, None));
    }

    #[test]
    fn a_member_has_the_name_that_it_was_given_and_only_a_transactional_one_is_so() {
        for (membership, name, transactional) in [
            (Membership::Dynamic, None, false),
            (Membership::Static("a".into()), Some("a"), false),
            (Membership::Transactional("b".into()), Some("b"), true),
        ] {
            assert_eq!((membership.name(), membership.is_transactional()), (name, transactional));
        }
    }
}
