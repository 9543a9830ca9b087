//! The embedded log: a partitioned log inside one process, on an ACID store in a folder.
//!
//! Keys, partitions, offsets, headers, compaction and retention mean what they mean in Kafka. One append to one partition is
//! one row of the store (a block); an atomic step is one transaction of the store, and burns an offset in each partition it
//! appends to, as Kafka's control records do, so that nobody relies on contiguity.
//!
//! Durability: a committed step survives a power cut, and so does everything appended before it. Records of plain producers
//! survive the death of the process (kill -9 included) once acknowledged, and a power cut once [`Producer::flush`] has
//! returned or after at most a second. One process only: a second one is refused.
//!
//! [`Producer::flush`]: crate::Producer::flush

mod append;
mod block;
mod maintain;
mod member;
mod producer;
mod reader;
mod stamps;
mod store;
mod topic;
mod witness;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use eadt_schemas::EventTime;

pub use maintain::Maintained;
pub use stamps::Stamps;

use crate::{
    Bus, BusError, Isolation, Member, MemberOptions, Producer, Reader, Remedy, Result, Start, TopicPartition, TopicSpec,
    Watermarks,
};
use append::Appender;
use member::Groups;
use producer::{Lanes, Writer};
use store::Store;
use topic::{Topic, Topics};

/// How the log is kept.
#[derive(Debug, Clone)]
pub struct EmbeddedOptions {
    /// Where stamps come from. Default: the wall clock.
    pub stamps: Stamps,
    /// How long a plain producer's records wait for company. Default: 2 ms.
    pub linger: Duration,
    /// How many bytes each plain producer may have waiting before `send` answers [`Remedy::Retry`]. Default: 32 MiB.
    pub producer_buffer_bytes: usize,
    /// How much disk space is left free: below it appends answer [`Remedy::Retry`]. Default: 256 MiB.
    pub reserve_bytes: u64,
    /// Where it is asked how much disk space is free. Default: the file system of the folder.
    pub free_space: FreeSpace,
    /// How much of what was read is kept in memory. Default: 16 MiB.
    pub cache_bytes: u64,
}

/// Says how many bytes are free.
#[derive(Clone, Default)]
pub enum FreeSpace {
    /// The file system of the log's folder.
    #[default]
    Disk,
    /// Somebody else, so that tests can fill a disk.
    Injected(Arc<dyn Fn() -> u64 + Send + Sync>),
}

impl FreeSpace {
    /// `None` where it cannot be told.
    fn bytes(&self, dir: &Path) -> Option<u64> {
        match self {
            Self::Disk => rustix::fs::statvfs(dir).ok().map(|stat| stat.f_bavail.saturating_mul(stat.f_frsize)),
            Self::Injected(free) => Some(free()),
        }
    }
}

impl std::fmt::Debug for FreeSpace {
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
            stamps: Stamps::Wall,
            linger: Duration::from_millis(2),
            producer_buffer_bytes: 32 << 20,
            reserve_bytes: 256 << 20,
            free_space: FreeSpace::Disk,
            cache_bytes: 16 << 20,
        }
    }
}

/// The log in its folder. Clones share it; it is closed when the last clone, producer, reader and member is gone.
#[derive(Debug, Clone)]
pub struct EmbeddedLog {
    shared: Arc<Shared>,
    // Declared after `shared`: the writer thread holds the shared part, too, and ends when this goes.
    _writer: Arc<Writer>,
}

#[derive(Debug)]
struct Shared {
    store: Store,
    options: EmbeddedOptions,
    topics: RwLock<Topics>,
    appender: Mutex<Appender>,
    groups: Mutex<Groups>,
    lanes: Lanes,
    news: News,
    generation: AtomicU64,
}

/// Wakes waiting readers: the count rises with every append and every new partition.
#[derive(Debug, Default)]
struct News {
    count: Mutex<u64>,
    risen: Condvar,
}

impl News {
    fn now(&self) -> u64 {
        *lock(&self.count)
    }

    fn tell(&self) {
        *lock(&self.count) += 1;
        self.risen.notify_all();
    }

    /// Waits until the count is past `seen`, at most so long.
    fn wait(&self, seen: u64, timeout: Duration) {
        let waited = self.risen.wait_timeout_while(lock(&self.count), timeout, |count| *count == seen);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}

// Everything guarded is consistent at every unlock point, so a panic elsewhere does not spoil it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl EmbeddedLog {
    /// What time it is for this log: the stamp of what would be appended now.
    pub fn time(&self) -> EventTime {
        lock(&self.shared.appender).clock.stamp()
    }

    /// Opens or makes the log in this folder, which lies in a data folder beside what belongs to this log alone: its archive.
    pub fn open(dir: &Path, options: EmbeddedOptions) -> Result<Self> {
        let store = Store::open(dir, &options)?;
        let (topics, last_stamp) = Topics::load(&store)?;
        let shared = Arc::new(Shared {
            appender: Mutex::new(Appender::new(options.stamps.clone(), last_stamp, topics.next_id())),
            topics: RwLock::new(topics),
            store,
            options,
            groups: Mutex::new(Groups::default()),
            lanes: Lanes::default(),
            news: News::default(),
            generation: AtomicU64::new(0),
        });
        let writer = Arc::new(Writer::start(Arc::clone(&shared))?);
        Ok(Self { shared, _writer: writer })
    }

    /// Compacts and deletes what the topics' settings let go at this log time; the owner calls it every minute or so.
    pub fn maintain(&self, now: EventTime) -> Result<Maintained> {
        maintain::run(&self.shared, now)
    }
}

impl Shared {
    /// Changes whenever a topic or partition is added.
    fn topic_generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    fn topic(&self, name: &str) -> Result<Arc<Topic>> {
        let topics = self.topics.read().unwrap_or_else(PoisonError::into_inner);
        topics.get(name).ok_or_else(|| {
            BusError::new(
                Remedy::Stop,
                format!("using topic {name}"),
                format!("there is no such topic in {}: run `eadt topics apply`", self.store.dir().display()),
            )
        })
    }

    fn partition(&self, at: &TopicPartition) -> Result<Arc<topic::Partition>> {
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

    fn watermarks(&self, at: &TopicPartition) -> Result<Watermarks> {
        Ok(self.shared.partition(at)?.watermarks())
    }

    fn producer(&self, name: &str) -> Result<Box<dyn Producer>> {
        Ok(Box::new(producer::EmbeddedProducer::new(self.clone(), name)))
    }

    fn reader(&self, from: &[(TopicPartition, Start)], _: Isolation) -> Result<Box<dyn Reader>> {
        // Nothing uncommitted is ever in the store, so both isolation levels see the same.
        Ok(Box::new(reader::EmbeddedReader::new(self.clone(), from)?))
    }

    fn member(&self, options: MemberOptions) -> Result<Box<dyn Member>> {
        Ok(Box::new(member::EmbeddedMember::join(self.clone(), options)?))
    }

    fn committed(&self, group: &str, of: &[TopicPartition]) -> Result<Vec<Option<i64>>> {
        member::committed(&self.shared, group, of)
    }
}

/// Per topic name.
type ByName<T> = HashMap<Arc<str>, T>;
