//! The loop: poll, push, roll; and what happens when a file cannot be written.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use eadt_bus::{
    Bus, BusError, CommitStep, ConsumerRecord, GroupMember, MemberOptions, Membership, PollEvent, RecordBatch, RecordView,
    Remedy, RetryBackoff, SpareMemberCheck, TopicPartition, chaos, is_any_broker_silent,
};
use eadt_lake::{Archive, ArchiveWriter, LakeError, RowView};
use eadt_schemas::{EventTime, Topic};
use eadt_service::http::ReadinessFlag;
use eadt_service::{MetricsRegistry, MonotonicClock, ServiceClock, Shutdown};

use crate::check::{check_not_ahead, verify_same_log};
use crate::metrics::{ArchiverMetrics, PartLabel};
use crate::settings::ArchiverSettings;

/// Everything that the archiver needs.
#[derive(Debug)]
pub struct ArchiverDependencies {
    pub settings: ArchiverSettings,
    /// Prefix of every topic.
    pub prefix: String,
    pub bus: Arc<dyn Bus>,
    pub clock: ServiceClock,
    pub shutdown: Shutdown,
    pub metrics: MetricsRegistry,
    /// Random id that the archive gets if it has none.
    pub new_archive_id: u128,
    /// Set while partitions are read and files can be written.
    pub ready: ReadinessFlag,
}

/// Error that ended the archiver.
#[derive(Debug, thiserror::Error)]
pub enum ArchiverError {
    #[error("{0}")]
    Settings(String),
    #[error(transparent)]
    Bus(#[from] BusError),
    #[error(transparent)]
    Lake(#[from] LakeError),
    #[error(
        "{place} is ahead of the log: it has {topic} partition {partition} up to offset {archived}, the log ends at {high}: the \
         log was recreated, or lost its end; move {place} away, or give the archiver another location (archiver.location); `eadt \
         report` and `eadt replay` read it where it is"
    )]
    Ahead { place: String, topic: Topic, partition: i32, archived: i64, high: i64 },
    #[error(
        "{place} is of another log: its row of {topic} partition {partition} offset {offset} was appended at {archived}, this \
         log's at {logged}; move {place} away, or give the archiver another location (archiver.location)"
    )]
    Another { place: String, topic: Topic, partition: i32, offset: i64, archived: EventTime, logged: EventTime },
    #[error(
        "some rows are in no file, and the disk, store or log still refuses; they are in the log and are archived at the next start"
    )]
    Unwritten(#[source] Box<ArchiverError>),
}

/// Items of one poll.
const POLL_ITEMS: usize = 2_048;
const POLL_WAIT: Duration = Duration::from_millis(100);
const RETRY_MIN: Duration = Duration::from_millis(100);
/// Longest pause between questions that the log does not answer.
const ASK_MAX: Duration = Duration::from_secs(5);
const ASKING: &str = "the log does not answer";

impl ArchiverError {
    /// Returns whether the same call may succeed later, with nothing done so far.
    fn is_transient(&self) -> bool {
        match self {
            Self::Bus(error) => error.remedy == Remedy::Retry,
            Self::Lake(error) => error.is_transient(),
            _ => false,
        }
    }

    fn part(&self) -> PartLabel {
        PartLabel { part: if matches!(self, Self::Bus(_)) { "log" } else { "store" } }
    }

    /// Returns the message with its cause: the error of a full disk or an absent store itself.
    fn message_with_cause(&self) -> String {
        match self {
            Self::Lake(error) => match std::error::Error::source(error) {
                Some(cause) => format!("{error}: {cause}"),
                None => error.to_string(),
            },
            other => other.to_string(),
        }
    }
}

/// The step that is tried again, in the words of the log lines.
const ARCHIVING: &str = "archiving waits, and nothing is skipped";

/// Archives until `shutdown`; blocks, so give it a thread that runs no async tasks. Then reads what the log still has, for at
/// most `drain_seconds`, and completes every file.
pub fn run(deps: &ArchiverDependencies) -> Result<(), ArchiverError> {
    deps.settings.check().map_err(ArchiverError::Settings)?;
    run_on(deps, &Archive::open(&deps.settings.location)?, &MonotonicClock::machine())
}

/// Like [`run`], into an archive that is open already. Pauses and deadlines are `timer`'s.
pub fn run_on(deps: &ArchiverDependencies, archive: &Archive, timer: &MonotonicClock) -> Result<(), ArchiverError> {
    deps.settings.check().map_err(ArchiverError::Settings)?;
    let archive = &archive.clone().with_new_id(deps.new_archive_id);
    let metrics = ArchiverMetrics::new(&deps.metrics);
    let most = Duration::from_secs_f64(deps.settings.retry_max_seconds);
    let mut backoff = RetryBackoff::new(RETRY_MIN, most);
    loop {
        let began = timer.now();
        let ended = archive
            .sweep()
            .map_err(ArchiverError::from)
            .and_then(|swept| {
                if swept > 0 {
                    tracing::info!(files = swept, "removed temporary files of an interrupted archiver");
                }
                archive.claim_for_group(&deps.settings.group)?;
                verify_same_log(archive, &deps.prefix, &*deps.bus, timer)?;
                ArchiverSession::join(deps, &metrics, archive, timer, &mut backoff)
            })
            .and_then(|mut archiver| archiver.run());
        deps.ready.set(false);
        metrics.partitions.set(0);
        let error = match ended {
            Err(ArchiverError::Bus(error)) if error.remedy != Remedy::Stop => ArchiverError::Bus(error),
            Err(ArchiverError::Lake(error)) if error.is_transient() => ArchiverError::Lake(error),
            other => return other,
        };
        metrics.failures.get_or_create(&error.part()).inc();
        if deps.shutdown.is_cancelled() {
            return end_early(error, metrics.waiting_rows.get());
        }
        if timer.now() - began > most {
            backoff.on_success(ARCHIVING);
        }
        sleep(backoff.on_failure(ARCHIVING, &error.message_with_cause()), timer, &deps.shutdown);
        // A log that was away a moment ago is not asked again: a question may take half a minute.
        if deps.shutdown.is_cancelled() && matches!(error, ArchiverError::Bus(_)) {
            return end_early(error, metrics.waiting_rows.get());
        }
    }
}

/// Returns how a stop ends that an error cut short. Nothing is lost: what is in no file is in the log. `waiting_rows`: rows that were
/// read and are in no file.
fn end_early(error: ArchiverError, waiting_rows: i64) -> Result<(), ArchiverError> {
    if waiting_rows > 0 {
        return Err(ArchiverError::Unwritten(Box::new(error)));
    }
    let error = error.message_with_cause();
    tracing::warn!(error, "stopped while the log or the store was away; nothing that was read is missing in files");
    Ok(())
}

fn sleep(wait: Duration, timer: &MonotonicClock, shutdown: &Shutdown) {
    let until = timer.now() + wait;
    while timer.now() < until && !shutdown.is_cancelled() {
        timer.wait(until.saturating_duration_since(timer.now()).min(POLL_WAIT));
    }
}

struct ArchiverSession<'a> {
    deps: &'a ArchiverDependencies,
    metrics: &'a ArchiverMetrics,
    archive: &'a Archive,
    timer: &'a MonotonicClock,
    writer: ArchiveWriter,
    member: Box<dyn GroupMember>,
    owned_partitions: BTreeSet<TopicPartition>,
    standby: SpareMemberCheck,
    /// Partitions whose end was reached and not left since.
    ended: BTreeSet<TopicPartition>,
    /// Partition and topic of the last record, since most records come in runs. Cleared when a partition reaches its end.
    current: Option<(TopicPartition, Topic)>,
    /// Polled, not yet taken.
    waiting: VecDeque<PollEvent>,
    /// Time to try again after a file could not be written; reading is paused until then.
    stalled: Option<Instant>,
    /// Time by the clock when files were last looked at for their age.
    clock_seen: EventTime,
    /// Backoff for writes.
    backoff: &'a mut RetryBackoff,
    /// Backoff for requests to the log.
    asking: RetryBackoff,
}

impl<'a> ArchiverSession<'a> {
    fn join(
        deps: &'a ArchiverDependencies,
        metrics: &'a ArchiverMetrics,
        archive: &'a Archive,
        timer: &'a MonotonicClock,
        backoff: &'a mut RetryBackoff,
    ) -> Result<Self, ArchiverError> {
        let topics = Topic::ALL.map(|topic| Arc::from(format!("{}{topic}", deps.prefix)));
        let options = MemberOptions {
            group: deps.settings.group.clone(),
            membership: Membership::Static(deps.settings.instance.clone()),
            topics: topics.to_vec(),
        };
        let mut member = deps.bus.member(options)?;
        member.accept_batches();
        let writer = ArchiveWriter::new(archive.clone(), deps.settings.limits());
        Ok(Self {
            deps,
            metrics,
            archive,
            timer,
            writer,
            member,
            owned_partitions: BTreeSet::new(),
            standby: SpareMemberCheck::new(
                &*deps.settings.group,
                format!("{}{}", deps.prefix, Topic::GpuTelemetry),
                topics.to_vec(),
            ),
            ended: BTreeSet::new(),
            current: None,
            waiting: VecDeque::new(),
            stalled: None,
            clock_seen: EventTime::MIN,
            backoff,
            asking: RetryBackoff::new(POLL_WAIT, ASK_MAX),
        })
    }

    fn run(&mut self) -> Result<(), ArchiverError> {
        let mut drain: Option<Instant> = None;
        let mut polled = Vec::new();
        loop {
            if self.deps.shutdown.is_cancelled() && drain.is_none() {
                let until = self.timer.now() + Duration::from_secs_f64(self.deps.settings.drain_seconds);
                drain = Some(until);
                self.reopen_ends(until);
            }
            self.poll(&mut polled)?;
            self.waiting.extend(polled.drain(..));
            self.rebalances()?;
            // Checked at once, since a write that was not attempted has not succeeded.
            let early = self.stalled.is_some_and(|until| self.timer.now() < until);
            match if early { Ok(()) } else { self.work() } {
                Ok(()) => {
                    if self.stalled.is_some() && !early {
                        self.resume()?;
                    }
                }
                Err(error) if error.is_transient() => {
                    if let Some(until) = drain
                        && self.timer.now() >= until
                    {
                        return Err(ArchiverError::Unwritten(Box::new(error)));
                    }
                    self.stall(&error)?;
                }
                Err(error) => return Err(error),
            }
            let in_place = self.standby.is_ready(self.owned_partitions.len(), &*self.deps.bus);
            self.deps.ready.set(self.stalled.is_none() && in_place && !is_any_broker_silent(&*self.member));
            self.metrics.waiting_rows.set(self.writer.rows() as i64);
            self.metrics.waiting_bytes.set(self.writer.bytes() as i64);
            if let Some(until) = drain {
                let done = self.ended.len() == self.owned_partitions.len() && self.waiting.is_empty();
                if self.stalled.is_none() && (done || self.timer.now() >= until) {
                    return self.finish();
                }
                if self.stalled.is_some() && self.timer.now() >= until {
                    // The last attempt; its failure is the answer.
                    self.stalled = Some(self.timer.now());
                }
            }
        }
    }

    /// Marks partitions as open again if records arrived since their end was last reached. Once the log leaves a question unanswered,
    /// or at `until`, no further one is asked: the other partitions are open, too.
    fn reopen_ends(&mut self, until: Instant) {
        let mut is_answered = true;
        for at in &self.owned_partitions {
            let position = self.topic(at).and_then(|topic| self.writer.position(topic, at.partition));
            let left = until.saturating_duration_since(self.timer.now());
            is_answered &= !left.is_zero();
            let high = is_answered.then(|| self.deps.bus.watermarks_within(at, left).ok()).flatten().map(|ends| ends.high);
            is_answered &= high.is_some();
            if !matches!((position, high), (Some(position), Some(high)) if position >= high) {
                self.ended.remove(at);
            }
        }
    }

    /// Polls; a call that did nothing is repeated by the caller's loop.
    fn poll(&mut self, polled: &mut Vec<PollEvent>) -> Result<(), ArchiverError> {
        let wait = if self.deps.shutdown.is_cancelled() { Duration::from_millis(5) } else { POLL_WAIT };
        match self.member.poll(POLL_ITEMS, wait, polled) {
            Err(error) if error.remedy == Remedy::Retry => {
                self.metrics.failures.get_or_create(&PartLabel { part: "log" }).inc();
                sleep(self.asking.on_failure(ASKING, &error), self.timer, &self.deps.shutdown);
                Ok(())
            }
            other => {
                self.asking.on_success(ASKING);
                other.map_err(ArchiverError::from)
            }
        }
    }

    /// Handles a rebalance at once, even while files wait.
    fn rebalances(&mut self) -> Result<(), ArchiverError> {
        let is_news = |item: &PollEvent| matches!(item, PollEvent::Assigned(_) | PollEvent::Revoked(_) | PollEvent::Lost(_));
        if !self.waiting.iter().any(is_news) {
            return Ok(());
        }
        let (news, records): (VecDeque<_>, VecDeque<_>) = std::mem::take(&mut self.waiting).into_iter().partition(is_news);
        self.waiting = records;
        for item in news {
            match item {
                PollEvent::Assigned(partitions) => self.assigned(&partitions)?,
                PollEvent::Revoked(partitions) => self.revoked(&partitions),
                PollEvent::Lost(partitions) => self.forget(&partitions),
                PollEvent::Record(_) | PollEvent::Batch(_) | PollEvent::End { .. } => {}
            }
        }
        Ok(())
    }

    fn assigned(&mut self, partitions: &[TopicPartition]) -> Result<(), ArchiverError> {
        let listing = self.archive.files()?;
        let missing = listing.missing().map(|(_, _, from, to)| to - from + 1).sum();
        self.metrics.gap_offsets.set(missing);
        for (topic, partition, from, to) in listing.missing() {
            tracing::warn!(%topic, partition, from, to, place = self.archive.place(), "the archive lacks offsets: a file was removed");
        }
        self.archive.newest(&listing)?;
        if self.archive.record_missing_id()? {
            tracing::warn!(
                place = self.archive.place(),
                "the archive had no record of its id: that of its newest files is recorded now"
            );
        }
        self.archive.make_newest_durable(&listing)?;
        let archived = listing.partitions();
        for at in partitions {
            let Some(topic) = self.topic(at) else { continue };
            let last = if chaos::is_off("files") {
                self.member.committed(std::slice::from_ref(at))?.pop().flatten().map(|position| position - 1)
            } else {
                archived.get(&(topic, at.partition)).map(|(_, last)| *last)
            };
            let watermarks = self.deps.bus.watermarks(at)?;
            if let Some(last) = last {
                check_not_ahead(self.archive, topic, at.partition, last, watermarks)?;
            }
            let next = last.map_or(watermarks.low, |last| last + 1);
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
            self.owned_partitions.insert(at.clone());
        }
        if self.stalled.is_some() {
            self.member.pause(partitions)?;
        }
        self.metrics.partitions.set(self.owned_partitions.len() as i64);
        Ok(())
    }

    /// The partitions still belong to this member: its records of them are written to a file, if that is possible now.
    fn revoked(&mut self, partitions: &[TopicPartition]) {
        for at in partitions {
            let Some(topic) = self.topic(at).filter(|_| self.owned_partitions.contains(at)) else { continue };
            if let Err(error) = self.publish_all(topic, at.partition) {
                tracing::warn!(partition = %at, %error, "not written before another archiver takes over; it reads these rows again");
            }
        }
        self.forget(partitions);
    }

    fn forget(&mut self, partitions: &[TopicPartition]) {
        self.current = None;
        for at in partitions {
            if let Some(topic) = self.topic(at) {
                self.writer.forget(topic, at.partition);
            }
            self.owned_partitions.remove(at);
            self.ended.remove(at);
        }
        self.waiting.retain(|item| match item {
            PollEvent::Record(record) => !partitions.contains(&record.at),
            PollEvent::Batch(batch) => !partitions.contains(&batch.at),
            PollEvent::End { at, .. } => !partitions.contains(at),
            PollEvent::Assigned(_) | PollEvent::Revoked(_) | PollEvent::Lost(_) => true,
        });
        self.metrics.partitions.set(self.owned_partitions.len() as i64);
    }

    /// Handles waiting items and writes due files. On an error nothing is lost: the item at the front is offered again.
    fn work(&mut self) -> Result<(), ArchiverError> {
        self.write_due()?;
        while let Some(item) = self.waiting.pop_front() {
            let result = self.take(&item);
            if let Err(error) = result {
                self.waiting.push_front(item);
                return Err(error);
            }
        }
        self.write_due()
    }

    fn take(&mut self, item: &PollEvent) -> Result<(), ArchiverError> {
        match item {
            PollEvent::Record(record) => {
                let Some(topic) = self.topic_of(&record.at) else { return Ok(()) };
                self.writer.push_view(&view(topic, record), record.headers.raw(), || self.deps.clock.now())?;
            }
            PollEvent::Batch(batch) => self.take_batch(batch)?,
            PollEvent::End { at, position } => {
                self.current = None;
                if let Some(topic) = self.topic(at) {
                    self.writer.advance_to(topic, at.partition, *position);
                    self.ended.insert(at.clone());
                }
            }
            PollEvent::Assigned(_) | PollEvent::Revoked(_) | PollEvent::Lost(_) => {}
        }
        Ok(())
    }

    /// Takes the records of a batch where they lie. An error ends the session: the writer refuses none but out of order.
    fn take_batch(&mut self, batch: &RecordBatch) -> Result<(), ArchiverError> {
        let Some(topic) = self.topic_of(&batch.at) else { return Ok(()) };
        for index in 0..batch.len() {
            let (Some(record), Some(stamp)) = (batch.view(index), batch.stamp(index)) else { break };
            let RecordView { partition, offset, key, value, .. } = record;
            let row = RowView { topic, partition, offset, stamp, key, value };
            self.writer.push_view(&row, batch.headers(index), || self.deps.clock.now())?;
        }
        Ok(())
    }

    fn write_due(&mut self) -> Result<(), ArchiverError> {
        let now = self.deps.clock.now();
        if now < self.clock_seen {
            // The clock was set back: for how long files are open is unknown.
            self.publish_owned()?;
        }
        self.clock_seen = now;
        while let Some((topic, partition)) = self.writer.due(self.deps.clock.now()) {
            self.publish(topic, partition)?;
        }
        Ok(())
    }

    /// Writes whatever is open of a partition.
    fn publish_all(&mut self, topic: Topic, partition: i32) -> Result<(), ArchiverError> {
        loop {
            self.publish(topic, partition)?;
            if !self.writer.holds(topic, partition) {
                return Ok(());
            }
        }
    }

    /// Writes one file. Every file becomes visible here.
    fn publish(&mut self, topic: Topic, partition: i32) -> Result<(), ArchiverError> {
        let began = self.timer.now();
        let Some(reached) = self.reached(topic, partition) else { return Ok(()) };
        // Only a member that still owns the partition can commit: a lost one ends here and not in a second file.
        let member = &mut self.member;
        let written = self.writer.roll_if(topic, partition, || member.commit(&reached).map_err(ArchiverError::from))?;
        if let Some(written) = &written {
            self.metrics.roll_seconds.observe((self.timer.now() - began).as_secs_f64());
            self.metrics.written(written);
            tracing::debug!(file = written.name.path(), rows = written.rows, bytes = written.bytes, "wrote a file");
            chaos::reach("archive.rolled");
        }
        if let Some(reached) = self.reached(topic, partition) {
            self.member.commit(&reached)?;
        }
        if written.is_some() && self.stalled.is_none() {
            self.backoff.on_success(ARCHIVING);
        }
        Ok(())
    }

    /// Returns the step that commits to the group how far the files reach.
    fn reached(&self, topic: Topic, partition: i32) -> Option<CommitStep> {
        let position = self.writer.durable(topic, partition)?;
        let at = TopicPartition::new(format!("{}{topic}", self.deps.prefix), partition);
        Some(CommitStep { outputs: Vec::new(), positions: vec![(at, position)] })
    }

    fn stall(&mut self, error: &ArchiverError) -> Result<(), ArchiverError> {
        if chaos::is_off("stop-when-full") {
            self.discard_open_files();
            return Ok(());
        }
        let wait = self.backoff.on_failure(ARCHIVING, &error.message_with_cause());
        self.deps.ready.set(false);
        self.metrics.failures.get_or_create(&error.part()).inc();
        self.metrics.stalled.set(1);
        if self.stalled.is_none() {
            let all: Vec<_> = self.owned_partitions.iter().cloned().collect();
            self.member.pause(&all)?;
        }
        self.stalled = Some(self.timer.now() + wait);
        Ok(())
    }

    /// Breaks a promise, for chaos tests: continues as if all open files had been written.
    fn discard_open_files(&mut self) {
        for at in &self.owned_partitions {
            let Some(topic) = self.topic(at) else { continue };
            if let Some(position) = self.writer.position(topic, at.partition) {
                self.writer.start(topic, at.partition, position);
            }
        }
    }

    /// Goes on once an attempt succeeded.
    fn resume(&mut self) -> Result<(), ArchiverError> {
        let all: Vec<_> = self.owned_partitions.iter().cloned().collect();
        self.member.resume(&all)?;
        self.stalled = None;
        self.backoff.on_success(ARCHIVING);
        self.metrics.stalled.set(0);
        Ok(())
    }

    /// Writes whatever is open of every partition.
    fn publish_owned(&mut self) -> Result<(), ArchiverError> {
        let mine: Vec<_> = self.owned_partitions.iter().cloned().collect();
        for at in mine {
            let Some(topic) = self.topic(&at) else { continue };
            self.publish_all(topic, at.partition)?;
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), ArchiverError> {
        self.publish_owned().map_err(
            |error| {
                if error.is_transient() { ArchiverError::Unwritten(Box::new(error)) } else { error }
            },
        )?;
        self.metrics.waiting_rows.set(0);
        self.metrics.waiting_bytes.set(0);
        Ok(())
    }

    /// Returns the topic of a record's partition, and marks that partition as not at its end.
    fn topic_of(&mut self, at: &TopicPartition) -> Option<Topic> {
        if let Some((current, topic)) = &self.current
            && current == at
        {
            return Some(*topic);
        }
        let topic = self.topic(at)?;
        self.ended.remove(at);
        self.current = Some((at.clone(), topic));
        Some(topic)
    }

    fn topic(&self, at: &TopicPartition) -> Option<Topic> {
        Topic::from_name(&at.topic, &self.deps.prefix)
    }
}

fn view(topic: Topic, record: &ConsumerRecord) -> RowView<'_> {
    RowView {
        topic,
        partition: record.at.partition,
        offset: record.offset,
        stamp: record.stamp,
        key: record.key.as_deref(),
        value: record.value.as_deref(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;
    use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};

    use bytes::Bytes;
    use eadt_bus::embedded::{EmbeddedLog, EmbeddedOptions, StampSource};
    use eadt_bus::{IsolationLevel, PartitionReader, Producer, ProducerRecord, StartOffset, TopicSpec, WatermarkOffsets, topics};
    use eadt_service::HealthRegistry;

    use super::*;

    const TOPIC: Topic = Topic::Workloads;
    /// 2026-01-02T00:00:00Z.
    const START: i64 = 1_767_312_000_000_000;
    const DAY: i64 = 86_400_000_000;

    fn service(log: &EmbeddedLog, place: &Path, roll_rows: usize) -> ArchiverDependencies {
        ArchiverDependencies {
            settings: ArchiverSettings { location: place.to_str().unwrap().to_owned(), roll_rows, ..ArchiverSettings::default() },
            prefix: "eadt.".to_owned(),
            bus: Arc::new(log.clone()),
            clock: ServiceClock::fixed(EventTime::from_micros(START)),
            shutdown: Shutdown::new(),
            metrics: MetricsRegistry::default(),
            new_archive_id: 1,
            ready: HealthRegistry::default().part("archiver"),
        }
    }

    /// A step of some records, behind which an offset has none.
    fn step(log: &EmbeddedLog, records: usize) {
        let membership = Membership::Transactional("tests".to_owned());
        let mut member = log.member(MemberOptions { group: "tests".to_owned(), membership, topics: Vec::new() }).unwrap();
        let output = ProducerRecord {
            topic: format!("eadt.{TOPIC}").into(),
            partition: None,
            key: Some(Bytes::from_static(b"ns/job")),
            value: Some(Bytes::from_static(b"{}")),
            headers: Vec::new(),
        };
        member.commit(&CommitStep { outputs: vec![output; records], positions: Vec::new() }).unwrap();
    }

    /// A log that may stop answering.
    #[derive(Debug, Clone)]
    struct SilentLog {
        inner: EmbeddedLog,
        is_silent: Arc<AtomicBool>,
        /// Number of questions about ends.
        asked: Arc<AtomicUsize>,
    }

    impl Bus for SilentLog {
        fn topics(&self, prefix: &str) -> eadt_bus::Result<Vec<TopicSpec>> {
            self.inner.topics(prefix)
        }
        fn create_topic(&self, topic: &TopicSpec) -> eadt_bus::Result<()> {
            self.inner.create_topic(topic)
        }
        fn alter_topic(&self, name: &str, settings: &BTreeMap<String, String>) -> eadt_bus::Result<()> {
            self.inner.alter_topic(name, settings)
        }
        fn add_partitions(&self, name: &str, partitions: i32) -> eadt_bus::Result<()> {
            self.inner.add_partitions(name, partitions)
        }
        fn watermarks(&self, at: &TopicPartition) -> eadt_bus::Result<WatermarkOffsets> {
            self.asked.fetch_add(1, Ordering::Relaxed);
            if self.is_silent.load(Ordering::Relaxed) {
                return Err(BusError::new(Remedy::Retry, "asking", "no broker answers"));
            }
            self.inner.watermarks(at)
        }
        fn producer(&self, name: &str) -> eadt_bus::Result<Box<dyn Producer>> {
            self.inner.producer(name)
        }
        fn reader(
            &self,
            from: &[(TopicPartition, StartOffset)],
            isolation: IsolationLevel,
        ) -> eadt_bus::Result<Box<dyn PartitionReader>> {
            self.inner.reader(from, isolation)
        }
        fn member(&self, options: MemberOptions) -> eadt_bus::Result<Box<dyn GroupMember>> {
            self.inner.member(options)
        }
        fn committed(&self, group: &str, of: &[TopicPartition]) -> eadt_bus::Result<Vec<Option<i64>>> {
            self.inner.committed(group, of)
        }
    }

    #[test]
    fn a_stop_asks_a_log_that_does_not_answer_no_more_than_once() {
        let dir = tempfile::tempdir().unwrap();
        let options = EmbeddedOptions { reserve_bytes: 0, ..EmbeddedOptions::default() };
        let inner = EmbeddedLog::open(&dir.path().join("log"), options).unwrap();
        for topic in topics::desired("eadt.", 2, 1) {
            inner.create_topic(&topic).unwrap();
        }
        let log = SilentLog { inner: inner.clone(), is_silent: Arc::default(), asked: Arc::default() };
        let deps = ArchiverDependencies { bus: Arc::new(log.clone()), ..service(&inner, &dir.path().join("archive"), 10) };
        let (archive, metrics) = (Archive::open(&deps.settings.location).unwrap(), ArchiverMetrics::new(&deps.metrics));
        let (timer, mut backoff) = (MonotonicClock::machine(), RetryBackoff::new(RETRY_MIN, RETRY_MIN));
        let mut archiver = ArchiverSession::join(&deps, &metrics, &archive, &timer, &mut backoff).unwrap();
        while archiver.owned_partitions.is_empty() || archiver.ended.len() < archiver.owned_partitions.len() {
            archiver.read();
            archiver.work().unwrap();
        }
        let all = archiver.owned_partitions.len();
        for (is_silent, left, asked, ended) in
            [(false, Duration::from_mins(1), all, all), (true, Duration::from_mins(1), 1, 0), (false, Duration::ZERO, 0, 0)]
        {
            log.is_silent.store(is_silent, Ordering::Relaxed);
            log.asked.store(0, Ordering::Relaxed);
            archiver.ended = archiver.owned_partitions.clone();
            archiver.reopen_ends(timer.now() + left);
            assert_eq!((log.asked.load(Ordering::Relaxed), archiver.ended.len()), (asked, ended), "{is_silent} {left:?}");
        }
    }

    #[test]
    fn open_files_are_written_if_the_clock_is_set_back() {
        let dir = tempfile::tempdir().unwrap();
        let options = EmbeddedOptions { reserve_bytes: 0, ..EmbeddedOptions::default() };
        let log = EmbeddedLog::open(&dir.path().join("log"), options).unwrap();
        for topic in topics::desired("eadt.", 1, 1) {
            log.create_topic(&topic).unwrap();
        }
        step(&log, 3);
        let now = Arc::new(AtomicI64::new(START));
        let clock = {
            let now = now.clone();
            ServiceClock::new(move || EventTime::from_micros(now.load(Ordering::Relaxed)))
        };
        let deps = ArchiverDependencies { clock, ..service(&log, &dir.path().join("archive"), 10) };
        let (archive, metrics) = (Archive::open(&deps.settings.location).unwrap(), ArchiverMetrics::new(&deps.metrics));
        let (timer, mut backoff) = (MonotonicClock::machine(), RetryBackoff::new(RETRY_MIN, RETRY_MIN));
        let mut archiver = ArchiverSession::join(&deps, &metrics, &archive, &timer, &mut backoff).unwrap();
        while archiver.writer.rows() < 3 {
            archiver.read();
            archiver.work().unwrap();
        }
        assert_eq!(archive.files().unwrap().files.len(), 0);
        now.fetch_sub(1, Ordering::Relaxed);
        archiver.work().unwrap();
        assert_eq!((archiver.writer.rows(), archive.files().unwrap().files.len()), (0, 1));
    }

    #[test]
    fn a_stop_while_the_log_is_away_is_no_success_if_rows_are_in_no_file() {
        let away = || ArchiverError::Bus(BusError::new(Remedy::Restart, "reading", "no broker answers"));
        let error = end_early(away(), 3).unwrap_err();
        assert!(matches!(error, ArchiverError::Unwritten(_)) && error.to_string().contains("they are in the log"), "{error}");
        end_early(away(), 0).unwrap();
    }

    impl ArchiverSession<'_> {
        fn read(&mut self) {
            let mut polled = Vec::new();
            self.poll(&mut polled).unwrap();
            self.waiting.extend(polled);
            self.rebalances().unwrap();
        }
    }

    #[test]
    fn who_was_replaced_writes_no_file_of_what_it_had_read_before() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("archive");
        let now = Arc::new(AtomicI64::new(START));
        let stamps = {
            let now = now.clone();
            StampSource::Injected(Arc::new(move || EventTime::from_micros(now.load(Ordering::Relaxed))))
        };
        let options = EmbeddedOptions { stamps, reserve_bytes: 0, ..EmbeddedOptions::default() };
        let log = EmbeddedLog::open(&dir.path().join("log"), options).unwrap();
        for topic in topics::desired("eadt.", 1, 1) {
            log.create_topic(&topic).unwrap();
        }
        // One holds the rows of a day, and has read of the next one when it is frozen.
        let rows = POLL_ITEMS + 1;
        step(&log, rows);
        let frozen = service(&log, &place, 2 * rows);
        let (archive, metrics) = (Archive::open(&frozen.settings.location).unwrap(), ArchiverMetrics::new(&frozen.metrics));
        let (timer, mut backoff) = (MonotonicClock::machine(), RetryBackoff::new(RETRY_MIN, RETRY_MIN));
        let mut frozen = ArchiverSession::join(&frozen, &metrics, &archive, &timer, &mut backoff).unwrap();
        while frozen.writer.position(TOPIC, 0) != Some(rows as i64 + 1) {
            frozen.read();
            frozen.work().unwrap();
        }
        now.fetch_add(DAY, Ordering::Relaxed);
        step(&log, 1);
        while !frozen.waiting.iter().any(|item| matches!(item, PollEvent::Record(_))) {
            frozen.read();
        }
        assert_eq!((frozen.writer.rows(), archive.files().unwrap().files.len()), (rows, 0));

        // Another archiver, whose first file is smaller, takes over and archives everything.
        let other = service(&log, &place, 2);
        other.shutdown.cancel();
        run(&other).unwrap();
        let written = |archive: &Archive| -> Vec<String> {
            let listing = archive.files().unwrap();
            assert_eq!((listing.gaps.len(), listing.superseded.len()), (0, 0));
            listing.files.iter().map(|file| file.name.path()).collect()
        };
        let before = written(&archive);
        assert_eq!((before.len(), archive.next_offsets().unwrap()[&(TOPIC, 0)]), (3, rows as i64 + 3));

        let worked = frozen.work();
        assert_eq!(written(&archive), before);
        let error = worked.unwrap_err();
        assert!(matches!(&error, ArchiverError::Bus(_)) && error.to_string().contains("fenced"), "{error}");
    }
}
