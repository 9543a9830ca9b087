//! The embedded log: a partitioned log inside one process, on an ACID store in a folder.
//!
//! Keys, partitions, offsets, headers, compaction and retention mean what they mean in Kafka. One append to one partition is
//! one row of the store (a block); an atomic step is one transaction of the store, and burns an offset in each partition it
//! appends to, as Kafka's control records do, so readers must not rely on contiguous offsets.
//!
//! Durability: a committed step survives a power cut, and so does everything appended before it. Records of plain producers
//! survive the death of the process (kill -9 included) once acknowledged, and a power cut once [`Producer::flush`] has
//! returned or after at most a second. One process only: a second one is refused.
//!
//! [`Producer::flush`]: crate::Producer::flush

mod append;
mod block;
mod durable_commit;
mod maintain;
mod member;
mod producer;
mod reader;
mod stamps;
mod store;
mod topic;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use eadt_schemas::EventTime;

pub use maintain::MaintenanceCounts;
pub use stamps::StampSource;

use crate::{
    Bus, BusError, GroupMember, GroupMemberDescription, IsolationLevel, MemberOptions, PartitionReader, Producer, Remedy, Result,
    StartOffset, TopicPartition, TopicSpec, WatermarkOffsets,
};
use append::AppendState;
use maintain::PendingReclaims;
use member::GroupRegistry;
use producer::{ProducerQueues, WriterThread};
use store::LogStore;
use topic::{EmbeddedTopic, TopicRegistry};

/// Text of the error if another process has the log open.
pub const IN_USE: &str = "another process has it open";

/// Settings of the log.
#[derive(Debug, Clone)]
pub struct EmbeddedOptions {
    /// Source of the stamps. Default: the wall clock.
    pub stamps: StampSource,
    /// Time for which a plain producer collects records before they are written. Default: 2 ms.
    pub linger: Duration,
    /// Bytes that each plain producer may have waiting before `send` returns [`Remedy::Retry`]. Default: 32 MiB.
    pub producer_buffer_bytes: usize,
    /// Disk space that is left free, in bytes: below it appends return [`Remedy::Retry`]. Half of it is for tidying.
    /// Default: 256 MiB.
    pub reserve_bytes: u64,
    /// Source of the free disk space. Default: the file system of the folder.
    pub free_space: FreeSpaceSource,
    /// Bytes of read records that are kept in memory. Default: 16 MiB.
    pub cache_bytes: u64,
}

/// Source of the free disk space, in bytes.
#[derive(Clone, Default)]
pub enum FreeSpaceSource {
    /// The file system of the log's folder.
    #[default]
    Disk,
    /// A given function, so that tests can fill a disk.
    Injected(Arc<dyn Fn() -> u64 + Send + Sync>),
}

impl FreeSpaceSource {
    /// Returns the free bytes, or `None` if the file system does not report them.
    fn bytes(&self, dir: &Path) -> Option<u64> {
        match self {
            Self::Disk => rustix::fs::statvfs(dir).ok().map(|stat| stat.f_bavail.saturating_mul(stat.f_frsize)),
            Self::Injected(free) => Some(free()),
        }
    }
}

impl std::fmt::Debug for FreeSpaceSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Disk => "Disk",
            Self::Injected(_) => "Injected",
        })
    }
}

impl Default for EmbeddedOptions {
    fn default() -> Self {
        Self {
            stamps: StampSource::Wall,
            linger: Duration::from_millis(2),
            producer_buffer_bytes: 32 << 20,
            reserve_bytes: 256 << 20,
            free_space: FreeSpaceSource::Disk,
            cache_bytes: 16 << 20,
        }
    }
}

/// The log in its folder. Clones share it; it is closed when the last clone, producer, reader and member is gone.
#[derive(Debug, Clone)]
pub struct EmbeddedLog {
    shared: Arc<EmbeddedLogState>,
    // Declared after `shared`: the writer thread holds the shared part, too, and ends when this goes.
    _writer: Arc<WriterThread>,
}

#[derive(Debug)]
struct EmbeddedLogState {
    store: LogStore,
    options: EmbeddedOptions,
    topics: RwLock<TopicRegistry>,
    appender: Mutex<AppendState>,
    groups: Mutex<GroupRegistry>,
    producer_queues: ProducerQueues,
    append_notifier: AppendNotifier,
    /// Held for writing while the ends of an append's partitions move, and for reading while ends are compared.
    visible: RwLock<()>,
    generation: AtomicU64,
    /// Held while it is tidied.
    pending: Mutex<PendingReclaims>,
}

/// Wakes waiting readers: the count rises with every append and every new partition.
#[derive(Debug, Default)]
struct AppendNotifier {
    count: Mutex<u64>,
    risen: Condvar,
}

impl AppendNotifier {
    fn now(&self) -> u64 {
        *lock(&self.count)
    }

    fn notify(&self) {
        *lock(&self.count) += 1;
        self.risen.notify_all();
    }

    /// Waits until the count is past `seen`, at most so long; whether it is.
    fn wait_past(&self, count_before: u64, timeout: Duration) -> bool {
        let waited = self.risen.wait_timeout_while(lock(&self.count), timeout, |count| *count == count_before);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }
}

// Everything guarded is consistent at every unlock point, so a panic elsewhere does not spoil it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl EmbeddedLog {
    /// Returns the log's time: the stamp of a record that would be appended now.
    pub fn log_time(&self) -> EventTime {
        lock(&self.shared.appender).clock.stamp()
    }

    /// Opens or makes the log in this folder, which lies in a data folder beside what belongs to this log alone: its archive.
    pub fn open(dir: &Path, options: EmbeddedOptions) -> Result<Self> {
        let store = LogStore::open(dir, &options)?;
        let (topics, last_stamp) = TopicRegistry::load(&store)?;
        let shared = Arc::new(EmbeddedLogState {
            appender: Mutex::new(AppendState::new(options.stamps.clone(), last_stamp, topics.next_id())),
            topics: RwLock::new(topics),
            store,
            options,
            groups: Mutex::new(GroupRegistry::default()),
            producer_queues: ProducerQueues::default(),
            append_notifier: AppendNotifier::default(),
            visible: RwLock::default(),
            generation: AtomicU64::new(0),
            pending: Mutex::default(),
        });
        let writer = Arc::new(WriterThread::start(Arc::clone(&shared))?);
        Ok(Self { shared, _writer: writer })
    }

    /// Compacts and deletes records that the topics' settings allow at this log time; the owner calls it every minute or so.
    pub fn maintain(&self, now: EventTime) -> Result<MaintenanceCounts> {
        maintain::run(&self.shared, now)
    }
}

impl EmbeddedLogState {
    /// Changes whenever a topic or partition is added.
    fn topic_generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    fn topic(&self, name: &str) -> Result<Arc<EmbeddedTopic>> {
        let topics = self.topics.read().unwrap_or_else(PoisonError::into_inner);
        topics.get(name).ok_or_else(|| {
            BusError::new(
                Remedy::Stop,
                format!("using topic {name}"),
                format!("the topic does not exist in {}: run `eadt topics apply`", self.store.dir().display()),
            )
        })
    }

    fn partition(&self, at: &TopicPartition) -> Result<Arc<topic::EmbeddedPartition>> {
        let topic = self.topic(&at.topic)?;
        topic.partition(at.partition).ok_or_else(|| {
            BusError::new(Remedy::Stop, format!("using {at}"), format!("the topic has {} partitions", topic.partition_count()))
        })
    }
}

impl Bus for EmbeddedLog {
    fn topics(&self, prefix: &str) -> Result<Vec<TopicSpec>> {
        let topics = self.shared.topics.read().unwrap_or_else(PoisonError::into_inner);
        Ok(topics.all().filter(|topic| topic.name.starts_with(prefix)).map(|topic| topic.spec()).collect())
    }

    fn create_topic(&self, topic: &TopicSpec) -> Result<()> {
        topic::create(&self.shared, topic)
    }

    fn alter_topic(&self, name: &str, settings: &BTreeMap<String, String>) -> Result<()> {
        topic::alter(&self.shared, name, settings)
    }

    fn add_partitions(&self, name: &str, partitions: i32) -> Result<()> {
        topic::add_partitions(&self.shared, name, partitions)
    }

    fn watermarks(&self, at: &TopicPartition) -> Result<WatermarkOffsets> {
        Ok(self.shared.partition(at)?.watermarks())
    }

    fn producer(&self, name: &str) -> Result<Box<dyn Producer>> {
        Ok(Box::new(producer::EmbeddedProducer::new(self.clone(), name)))
    }

    fn reader(&self, from: &[(TopicPartition, StartOffset)], _: IsolationLevel) -> Result<Box<dyn PartitionReader>> {
        // Nothing uncommitted is ever in the store, so both isolation levels see the same.
        Ok(Box::new(reader::EmbeddedReader::new(self.clone(), from)?))
    }

    fn member(&self, options: MemberOptions) -> Result<Box<dyn GroupMember>> {
        Ok(Box::new(member::EmbeddedMember::join(self.clone(), options)?))
    }

    fn committed(&self, group: &str, of: &[TopicPartition]) -> Result<Vec<Option<i64>>> {
        member::committed(&self.shared, group, of)
    }

    fn group_members(&self, group: &str) -> Result<Vec<GroupMemberDescription>> {
        Ok(lock(&self.shared.groups).member(group).into_iter().collect())
    }
}

/// Per topic name.
type ByName<T> = HashMap<Arc<str>, T>;

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicI64;

    use super::*;
    use crate::ProducerRecord;

    /// Returns a log in a folder of its own. Its clock is at second 0 of 1970, and nothing is written before a producer
    /// flushes.
    pub fn log() -> (tempfile::TempDir, EmbeddedLog) {
        let (dir, log, _) = clocked();
        (dir, log)
    }

    /// As [`log`], and the milliseconds that its clock shows.
    pub fn clocked() -> (tempfile::TempDir, EmbeddedLog, Arc<AtomicI64>) {
        let (dir, millis) = (tempfile::tempdir().unwrap(), Arc::new(AtomicI64::new(0)));
        let shown = Arc::clone(&millis);
        let stamps = StampSource::Injected(Arc::new(move || EventTime::from_millis(shown.load(Ordering::Relaxed))));
        let linger = Duration::from_hours(1);
        let options = EmbeddedOptions { stamps, linger, reserve_bytes: 0, ..EmbeddedOptions::default() };
        let log = EmbeddedLog::open(dir.path(), options).unwrap();
        (dir, log, millis)
    }

    pub fn topic(log: &EmbeddedLog, name: &str, partitions: i32, settings: &[(&str, &str)]) {
        let settings = settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        log.create_topic(&TopicSpec { name: name.into(), partitions, replication: 1, settings }).unwrap();
    }

    pub fn record(topic: &str, key: &str, value: &str) -> ProducerRecord {
        let of = |text: &str| Some(text.to_owned().into());
        ProducerRecord { topic: topic.into(), partition: None, key: of(key), value: of(value), headers: Vec::new() }
    }

    #[test]
    fn who_waits_for_news_is_notified_of_what_came_since_it_looked() {
        let news = AppendNotifier::default();
        let seen = news.now();
        assert!(!news.wait_past(seen, Duration::ZERO), "nothing came");
        for _ in 0..3 {
            news.notify();
            assert!(news.wait_past(seen, Duration::from_secs(5)));
        }
        assert!(!news.wait_past(news.now(), Duration::ZERO), "that is known");
    }

    #[test]
    fn the_disk_reports_how_much_is_free_and_a_folder_that_is_not_there_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let free = FreeSpaceSource::Disk.bytes(dir.path()).unwrap();
        assert!(free > 1 << 20, "{free}");
        assert_eq!(FreeSpaceSource::Disk.bytes(&dir.path().join("missing")), None);
        assert_eq!(FreeSpaceSource::Injected(Arc::new(|| 7)).bytes(dir.path()), Some(7));
    }

    #[test]
    fn what_cannot_be_printed_is_named() {
        let options = EmbeddedOptions { stamps: StampSource::Held, ..EmbeddedOptions::default() };
        let text = format!("{options:?}");
        assert!(text.contains("stamps: Held") && text.contains("free_space: Disk"), "{text}");
        let (dir, log) = log();
        let text = format!("{log:?}");
        assert!(text.contains("stamps: Injected") && text.contains(&format!("LogStore {{ dir: {:?}", dir.path())), "{text}");
        assert_eq!(format!("{:?} {:?}", FreeSpaceSource::Injected(Arc::new(|| 7)), StampSource::Wall), "Injected Wall");
    }

    #[test]
    fn the_time_of_a_log_is_the_stamp_of_what_would_be_appended_now() {
        let (_dir, log, millis) = clocked();
        assert_eq!(log.log_time(), EventTime::from_millis(0));
        millis.store(1234, Ordering::Relaxed);
        assert_eq!(log.log_time(), EventTime::from_millis(1234));
    }

    #[test]
    fn topics_are_listed_by_prefix_in_the_order_of_their_names() {
        let (_dir, log) = log();
        for name in ["b.2", "a.1", "b.1"] {
            topic(&log, name, 1, &[]);
        }
        let names = |prefix| log.topics(prefix).unwrap().iter().map(|topic| topic.name.to_string()).collect::<Vec<_>>();
        assert_eq!(names("b."), ["b.1", "b.2"]);
        assert_eq!(names(""), ["a.1", "b.1", "b.2"]);
        assert_eq!(log.missing_right("a.1"), None, "nobody is refused by rights");
    }
}
