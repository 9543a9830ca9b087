//! The loop: poll, push, roll; and what happens when a file cannot be written.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use eadt_bus::{Bus, BusError, Member, MemberOptions, Polled, Record, Remedy, Step, TopicPartition};
use eadt_lake::{Archive, LakeError, Row, Writer};
use eadt_schemas::Topic;
use eadt_service::http::Ready;
use eadt_service::{Metrics, Shutdown};

use crate::clock::Clock;
use crate::metrics::{ArchiverMetrics, PartLabel};
use crate::settings::Settings;

/// Everything that the archiver needs.
#[derive(Debug)]
pub struct Service {
    pub settings: Settings,
    /// Prefix of every topic.
    pub prefix: String,
    pub bus: Arc<dyn Bus>,
    pub clock: Clock,
    pub shutdown: Shutdown,
    pub metrics: Metrics,
    /// Set while partitions are read and files can be written.
    pub ready: Ready,
}

/// Why the archiver ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{0}")]
    Settings(String),
    #[error(transparent)]
    Bus(#[from] BusError),
    #[error(transparent)]
    Lake(#[from] LakeError),
    #[error(
        "{place} is ahead of the log: it has {topic} partition {partition} up to offset {archived}, the log ends at {high}; \
         the log was made anew, so give the archiver another location"
    )]
    Ahead { place: String, topic: Topic, partition: i32, archived: i64, high: i64 },
    #[error(
        "some rows are in no file, and the disk or store still refuses; they are in the log and are archived at the next start"
    )]
    Unwritten(#[source] LakeError),
}

/// Items of one poll.
const POLL_ITEMS: usize = 2_048;
const POLL_WAIT: Duration = Duration::from_millis(100);
const RETRY_MIN: Duration = Duration::from_millis(100);

/// Archives until `shutdown`; blocks, so give it a thread that runs no async tasks. Then reads what the log still has, for at
/// most `drain_seconds`, and completes every file.
pub fn run(service: &Service) -> Result<(), Error> {
    service.settings.check().map_err(Error::Settings)?;
    let metrics = ArchiverMetrics::new(&service.metrics);
    let archive = Archive::open(&service.settings.location)?;
    let mut pause = Pause::new(&service.settings);
    loop {
        let ended = archive
            .sweep()
            .map_err(Error::from)
            .and_then(|swept| {
                if swept > 0 {
                    tracing::info!(files = swept, "removed what an interrupted archiver left behind");
                }
                Archiver::join(service, &metrics, &archive)
            })
            .and_then(|mut archiver| archiver.run(&mut pause));
        service.ready.set(false);
        metrics.partitions.set(0);
        let error = match ended {
            Err(Error::Bus(error)) if error.remedy != Remedy::Stop => Error::Bus(error),
            Err(Error::Lake(error)) if error.is_transient() => Error::Lake(error),
            other => return other,
        };
        let part = if matches!(error, Error::Bus(_)) { "log" } else { "store" };
        metrics.failures.get_or_create(&PartLabel { part }).inc();
        if service.shutdown.is_cancelled() {
            tracing::warn!(%error, "stopped before everything was in files; the rest is archived at the next start");
            return Ok(());
        }
        let wait = pause.next();
        tracing::warn!(%error, wait_seconds = wait.as_secs_f64(), "going on from what the files hold");
        sleep(wait, &service.shutdown);
    }
}

/// Growing pauses between attempts.
#[derive(Debug)]
struct Pause {
    now: Duration,
    most: Duration,
}

impl Pause {
    fn new(settings: &Settings) -> Self {
        Self { now: RETRY_MIN, most: Duration::from_secs_f64(settings.retry_max_seconds) }
    }

    fn next(&mut self) -> Duration {
        let pause = self.now.min(self.most);
        self.now = (self.now * 2).min(self.most);
        pause
    }

    fn reset(&mut self) {
        self.now = RETRY_MIN;
    }
}

fn sleep(wait: Duration, shutdown: &Shutdown) {
    let until = Instant::now() + wait;
    while Instant::now() < until && !shutdown.is_cancelled() {
        std::thread::sleep(until.saturating_duration_since(Instant::now()).min(POLL_WAIT));
    }
}

struct Archiver<'a> {
    service: &'a Service,
    metrics: &'a ArchiverMetrics,
    archive: &'a Archive,
    writer: Writer,
    member: Box<dyn Member>,
    mine: BTreeSet<TopicPartition>,
    /// Partitions whose end was reached and not left since.
    ended: BTreeSet<TopicPartition>,
    /// Polled, not yet taken.
    waiting: VecDeque<Polled>,
    /// When to try again after a file could not be written; reading is paused until then.
    stalled: Option<Instant>,
}

impl<'a> Archiver<'a> {
    fn join(service: &'a Service, metrics: &'a ArchiverMetrics, archive: &'a Archive) -> Result<Self, Error> {
        let topics = Topic::ALL.map(|topic| Arc::from(format!("{}{topic}", service.prefix)));
        let options = MemberOptions { group: service.settings.group.clone(), instance: None, topics: topics.to_vec() };
        let member = service.bus.member(options)?;
        let writer = Writer::new(archive.clone(), service.settings.limits());
        Ok(Self {
            service,
            metrics,
            archive,
            writer,
            member,
            mine: BTreeSet::new(),
            ended: BTreeSet::new(),
            waiting: VecDeque::new(),
            stalled: None,
        })
    }

    fn run(&mut self, pause: &mut Pause) -> Result<(), Error> {
        let mut drain: Option<Instant> = None;
        let mut polled = Vec::new();
        loop {
            if self.service.shutdown.is_cancelled() && drain.is_none() {
                drain = Some(Instant::now() + Duration::from_secs_f64(self.service.settings.drain_seconds));
                self.reopen_ends();
            }
            self.poll(&mut polled)?;
            self.waiting.extend(polled.drain(..));
            self.rebalances()?;
            match self.work() {
                Ok(()) => {
                    if self.stalled.is_some() {
                        self.resume(pause)?;
                    }
                }
                Err(Error::Lake(error)) if error.is_transient() => {
                    if let Some(until) = drain
                        && Instant::now() >= until
                    {
                        return Err(Error::Unwritten(error));
                    }
                    self.stall(&error, pause)?;
                }
                Err(error) => return Err(error),
            }
            self.metrics.waiting_rows.set(self.writer.rows() as i64);
            self.metrics.waiting_bytes.set(self.writer.bytes() as i64);
            if let Some(until) = drain {
                let done = self.ended.len() == self.mine.len() && self.waiting.is_empty();
                if self.stalled.is_none() && (done || Instant::now() >= until) {
                    return self.finish();
                }
                if self.stalled.is_some() && Instant::now() >= until {
                    // The last attempt; its failure is the answer.
                    self.stalled = Some(Instant::now());
                }
            }
        }
    }

    /// What arrived since a partition's end was last reached is still to be read.
    fn reopen_ends(&mut self) {
        for at in &self.mine {
            let position = self.topic(at).and_then(|topic| self.writer.position(topic, at.partition));
            let high = self.service.bus.watermarks(at).map(|watermarks| watermarks.high);
            if !matches!((position, high), (Some(position), Ok(high)) if position >= high) {
                self.ended.remove(at);
            }
        }
    }

    /// Polls; a call that did nothing is repeated by the caller's loop.
    fn poll(&mut self, polled: &mut Vec<Polled>) -> Result<(), Error> {
        let wait = if self.service.shutdown.is_cancelled() { Duration::from_millis(5) } else { POLL_WAIT };
        match self.member.poll(POLL_ITEMS, wait, polled) {
            Err(error) if error.remedy == Remedy::Retry => {
                self.metrics.failures.get_or_create(&PartLabel { part: "log" }).inc();
                tracing::warn!(%error, "the log does not answer; asking again");
                sleep(POLL_WAIT, &self.service.shutdown);
                Ok(())
            }
            other => other.map_err(Error::from),
        }
    }

    /// Partitions come and go at once, whatever waits.
    fn rebalances(&mut self) -> Result<(), Error> {
        let (news, records): (VecDeque<_>, VecDeque<_>) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition(|item| matches!(item, Polled::Assigned(_) | Polled::Revoked(_) | Polled::Lost(_)));
        self.waiting = records;
        for item in news {
            match item {
                Polled::Assigned(partitions) => self.assigned(&partitions)?,
                Polled::Revoked(partitions) => self.revoked(&partitions),
                Polled::Lost(partitions) => self.forget(&partitions),
                Polled::Record(_) | Polled::End { .. } => {}
            }
        }
        Ok(())
    }

    fn assigned(&mut self, partitions: &[TopicPartition]) -> Result<(), Error> {
        let listing = self.archive.files()?;
        let missing = listing.gaps.iter().map(|(_, _, from, to)| to - from + 1).sum();
        self.metrics.gap_offsets.set(missing);
        for (topic, partition, from, to) in &listing.gaps {
            tracing::warn!(%topic, partition, from, to, place = self.archive.place(), "the archive lacks offsets: a file was removed");
        }
        let archived = listing.partitions();
        for at in partitions {
            let Some(topic) = self.topic(at) else { continue };
            let watermarks = self.service.bus.watermarks(at)?;
            let next = archived.get(&(topic, at.partition)).map_or(watermarks.low, |(_, last)| last + 1);
            if next > watermarks.high {
                let (archived, high) = (next - 1, watermarks.high);
                let place = self.archive.place().to_owned();
                return Err(Error::Ahead { place, topic, partition: at.partition, archived, high });
            }
            self.writer.start(topic, at.partition, next);
            if next < watermarks.low {
                self.writer.deleted(topic, at.partition, watermarks.low - 1);
                self.metrics.deleted_offsets.inc_by((watermarks.low - next).unsigned_abs());
                tracing::error!(
                    partition = %at, from = next, to = watermarks.low - 1,
                    "the log deleted records before they were archived: run the archiver within the topics' retention"
                );
            }
            self.member.start(at, next.max(watermarks.low))?;
            self.mine.insert(at.clone());
        }
        if self.stalled.is_some() {
            self.member.pause(partitions)?;
        } else {
            self.service.ready.set(true);
        }
        self.metrics.partitions.set(self.mine.len() as i64);
        Ok(())
    }

    /// They still belong to this member: what it holds of them becomes a file, if that is possible now.
    fn revoked(&mut self, partitions: &[TopicPartition]) {
        for at in partitions {
            let Some(topic) = self.topic(at).filter(|_| self.mine.contains(at)) else { continue };
            if let Err(error) = self.publish(topic, at.partition) {
                tracing::warn!(partition = %at, %error, "not written before another archiver takes over; it reads these rows again");
            }
        }
        self.forget(partitions);
    }

    fn forget(&mut self, partitions: &[TopicPartition]) {
        for at in partitions {
            if let Some(topic) = self.topic(at) {
                self.writer.forget(topic, at.partition);
            }
            self.mine.remove(at);
            self.ended.remove(at);
        }
        self.waiting.retain(|item| match item {
            Polled::Record(record) => !partitions.contains(&record.at),
            Polled::End { at, .. } => !partitions.contains(at),
            Polled::Assigned(_) | Polled::Revoked(_) | Polled::Lost(_) => true,
        });
        self.metrics.partitions.set(self.mine.len() as i64);
    }

    /// Takes what waits and writes what is due. On an error nothing is lost: the item at the front is offered again.
    fn work(&mut self) -> Result<(), Error> {
        if self.stalled.is_some_and(|until| Instant::now() < until) {
            return Ok(());
        }
        self.write_due()?;
        while let Some(item) = self.waiting.pop_front() {
            let taken = self.take(&item);
            if let Err(error) = taken {
                self.waiting.push_front(item);
                return Err(error);
            }
        }
        self.write_due()
    }

    fn take(&mut self, item: &Polled) -> Result<(), Error> {
        match item {
            Polled::Record(record) => {
                let Some(topic) = self.topic(&record.at) else { return Ok(()) };
                let written = self.writer.push(&row(topic, record), self.service.clock.now())?;
                if let Some(written) = written {
                    self.metrics.written(&written);
                }
                self.ended.remove(&record.at);
            }
            Polled::End { at, position } => {
                if let Some(topic) = self.topic(at) {
                    self.writer.end(topic, at.partition, *position);
                    self.ended.insert(at.clone());
                }
            }
            Polled::Assigned(_) | Polled::Revoked(_) | Polled::Lost(_) => {}
        }
        Ok(())
    }

    fn write_due(&mut self) -> Result<(), Error> {
        while let Some((topic, partition)) = self.writer.due(self.service.clock.now()) {
            self.publish(topic, partition)?;
        }
        Ok(())
    }

    fn publish(&mut self, topic: Topic, partition: i32) -> Result<(), Error> {
        let began = Instant::now();
        // Only a member that still owns the partition can commit: a lost one ends here and not in a second file.
        self.commit(topic, partition)?;
        if let Some(written) = self.writer.roll(topic, partition)? {
            self.metrics.roll_seconds.observe(began.elapsed().as_secs_f64());
            self.metrics.written(&written);
            tracing::debug!(file = written.name.path(), rows = written.rows, bytes = written.bytes, "wrote a file");
            self.commit(topic, partition)?;
        }
        Ok(())
    }

    /// Tells the group how far the files reach.
    fn commit(&mut self, topic: Topic, partition: i32) -> Result<(), Error> {
        let Some(position) = self.writer.durable(topic, partition) else { return Ok(()) };
        let at = TopicPartition::new(format!("{}{topic}", self.service.prefix), partition);
        self.member.commit(Step { outputs: Vec::new(), positions: vec![(at, position)] })?;
        Ok(())
    }

    fn stall(&mut self, error: &LakeError, pause: &mut Pause) -> Result<(), Error> {
        let wait = pause.next();
        self.metrics.failures.get_or_create(&PartLabel { part: "store" }).inc();
        self.metrics.stalled.set(1);
        self.service.ready.set(false);
        let source = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
        tracing::error!(%error, source, wait_seconds = wait.as_secs_f64(), "nothing is archived until this works again; nothing is skipped");
        if self.stalled.is_none() {
            let all: Vec<_> = self.mine.iter().cloned().collect();
            self.member.pause(&all)?;
        }
        self.stalled = Some(Instant::now() + wait);
        Ok(())
    }

    /// Goes on once an attempt succeeded; before its time there is nothing to say.
    fn resume(&mut self, pause: &mut Pause) -> Result<(), Error> {
        if self.stalled.is_some_and(|until| Instant::now() < until) || !self.waiting.is_empty() {
            return Ok(());
        }
        let all: Vec<_> = self.mine.iter().cloned().collect();
        self.member.resume(&all)?;
        self.stalled = None;
        pause.reset();
        self.metrics.stalled.set(0);
        self.service.ready.set(true);
        tracing::info!("archiving goes on");
        Ok(())
    }

    fn finish(&mut self) -> Result<(), Error> {
        let mine: Vec<_> = self.mine.iter().cloned().collect();
        for at in mine {
            let Some(topic) = self.topic(&at) else { continue };
            match self.publish(topic, at.partition) {
                Err(Error::Lake(error)) if error.is_transient() => return Err(Error::Unwritten(error)),
                other => other?,
            }
        }
        self.metrics.waiting_rows.set(0);
        self.metrics.waiting_bytes.set(0);
        Ok(())
    }

    fn topic(&self, at: &TopicPartition) -> Option<Topic> {
        at.topic.strip_prefix(self.service.prefix.as_str()).and_then(Topic::from_base_name)
    }
}

fn row(topic: Topic, record: &Record) -> Row {
    Row {
        topic,
        partition: record.at.partition,
        offset: record.offset,
        stamp: record.stamp,
        key: record.key.clone(),
        value: record.value.clone(),
        headers: record.headers.to_vec(),
    }
}
