//! Sources of the model's events: a log that is followed, or an archive that is read once.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use eadt_bus::{
    Bus, BusError, ConsumerRecord, IsolationLevel, PartitionReader, PollEvent, Remedy, StartOffset, TopicPartition, TopicSpec,
};
use eadt_lake::{Archive, ArchiveFile, ArchiveListing, LakeError};
use eadt_schemas::counts::counted;
use eadt_schemas::decode::DecodableEvent;
use eadt_schemas::envelope::header;
use eadt_schemas::v1::{GpuTelemetry, dead_letter_header};
use eadt_schemas::{EventTime, EventType, Topic};
use eadt_service::Shutdown;

use crate::model::DashboardModel;
use crate::model::overview::time_text;
use crate::shared_model::SharedModel;

/// Topics that the page is made of.
const TOPICS: [Topic; 5] = [Topic::Workloads, Topic::EfficiencyWindows, Topic::Decisions, Topic::Actuations, Topic::DeadLetters];
/// Topics about GPUs. A log without them has a page without GPUs.
const DEVICE_TOPICS: [Topic; 4] = [Topic::DeviceIntents, Topic::DeviceStates, Topic::DeviceHolders, Topic::GpuTelemetry];
/// Samples at the end of a partition that are read at the start: the newest of each GPU counts.
const NEWEST_SAMPLES: i64 = 2_000;
/// The same of an archive, in bytes of the newest files of a partition.
const NEWEST_BYTES: u64 = 2 << 20;
/// Samples that are decoded in a second, and in a burst: of a large fleet's each second only some.
const SAMPLES_PER_SECOND: f64 = 2_000.0;
const MOST_SAMPLES: f64 = 30_000.0;
/// Records of one poll.
const BATCH: usize = 4096;
const POLL: Duration = Duration::from_millis(200);
/// Time without an answer of any broker after which the page shows it: a broker is replaced in less.
const OUTAGE: Duration = Duration::from_secs(5);
/// Waits after an error that passes.
const RETRY: Duration = Duration::from_secs(1);
/// Shown as the reason of a dead letter that has none.
const NO_REASON: &str = "no reason given";
/// Part of the time that savings may take, and how many workloads are looked at between two looks at the clock.
const REFRESH_PART: f64 = 0.25;
const REFRESH_AT_ONCE: usize = 8;

/// The events cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum FeedError {
    #[error("topic {0} does not exist: run `eadt topics apply`")]
    NoTopic(String),
    #[error(transparent)]
    Bus(#[from] BusError),
    #[error(transparent)]
    Lake(#[from] LakeError),
}

/// Follows the log from its oldest record until the shutdown, outside of any group. Errors that pass are waited out.
pub fn follow(bus: &dyn Bus, prefix: &str, model: &SharedModel, shutdown: &Shutdown) -> Result<(), FeedError> {
    let positions = positions(bus, prefix)?;
    let samples = format!("{prefix}{}", Topic::GpuTelemetry);
    let ahead: BTreeSet<TopicPartition> = positions.keys().filter(|at| *at.topic != *samples).cloned().collect();
    let mut progress = FeedProgress { positions, ahead, budget: SampleBudget::new() };
    while !shutdown.is_cancelled() {
        match read_on(bus, prefix, model, shutdown, &mut progress) {
            Ok(()) => {}
            Err(error) => {
                model.change(|model| model.set_problem(Some(error.to_string())));
                if error.remedy == Remedy::Stop {
                    return Err(error.into());
                }
                tracing::warn!(%error, "the log cannot be read; tried again in a second");
                std::thread::sleep(RETRY);
            }
        }
    }
    Ok(())
}

fn positions(bus: &dyn Bus, prefix: &str) -> Result<BTreeMap<TopicPartition, StartOffset>, FeedError> {
    let existing = bus.topics(prefix)?;
    let mut positions = BTreeMap::new();
    for topic in TOPICS {
        let name = format!("{prefix}{topic}");
        let spec = topic_spec(&existing, &name).ok_or(FeedError::NoTopic(name))?;
        positions
            .extend((0..spec.partitions).map(|number| (TopicPartition::new(spec.name.clone(), number), StartOffset::Earliest)));
    }
    for topic in DEVICE_TOPICS {
        let name = format!("{prefix}{topic}");
        let Some(spec) = topic_spec(&existing, &name) else { continue };
        for number in 0..spec.partitions {
            let at = TopicPartition::new(spec.name.clone(), number);
            let start = if topic == Topic::GpuTelemetry {
                let marks = bus.watermarks(&at)?;
                StartOffset::At((marks.high - NEWEST_SAMPLES).max(marks.low))
            } else {
                StartOffset::Earliest
            };
            positions.insert(at, start);
        }
    }
    Ok(positions)
}

pub(crate) fn topic_spec<'a>(existing: &'a [TopicSpec], name: &str) -> Option<&'a TopicSpec> {
    existing.iter().find(|spec| *spec.name == *name)
}

/// Number of samples that may be decoded now. Decoding all samples of 10,000 GPUs would take a core for figures that are not
/// read.
#[derive(Debug)]
struct SampleBudget {
    left: f64,
    refilled: Instant,
}

impl SampleBudget {
    fn new() -> Self {
        Self { left: MOST_SAMPLES, refilled: Instant::now() }
    }

    fn refill(&mut self, now: Instant) {
        let seconds = now.saturating_duration_since(self.refilled).as_secs_f64();
        (self.left, self.refilled) = ((self.left + seconds * SAMPLES_PER_SECOND).min(MOST_SAMPLES), now);
    }

    fn take(&mut self) -> bool {
        let enough = self.left >= 1.0;
        self.left -= f64::from(u8::from(enough));
        enough
    }
}

/// How far the log was read.
#[derive(Debug)]
struct FeedProgress {
    positions: BTreeMap<TopicPartition, StartOffset>,
    /// Partitions whose end was not reached yet.
    ahead: BTreeSet<TopicPartition>,
    budget: SampleBudget,
}

fn read_on(
    bus: &dyn Bus,
    prefix: &str,
    model: &SharedModel,
    shutdown: &Shutdown,
    progress: &mut FeedProgress,
) -> Result<(), BusError> {
    let from: Vec<_> = progress.positions.iter().map(|(at, start)| (at.clone(), *start)).collect();
    let mut reader = bus.reader(&from, IsolationLevel::ReadCommitted)?;
    let mut batch = Vec::new();
    while !shutdown.is_cancelled() {
        let polled = poll_once(&mut *reader, prefix, model, progress, &mut batch)?;
        // While old events are read, each saving would be computed for nothing.
        let left = POLL.mul_f64(REFRESH_PART);
        while progress.ahead.is_empty() && model.change(|model| model.refresh(REFRESH_AT_ONCE)) && polled.elapsed() < left {}
    }
    Ok(())
}

/// Reads available events, and whether the brokers answer; returns the time of the read.
fn poll_once(
    reader: &mut dyn PartitionReader,
    prefix: &str,
    model: &SharedModel,
    progress: &mut FeedProgress,
    batch: &mut Vec<PollEvent>,
) -> Result<Instant, BusError> {
    reader.poll(BATCH, POLL, batch)?;
    let polled = Instant::now();
    progress.budget.refill(polled);
    let unanswered = reader.unanswered().filter(|_| batch.is_empty());
    model.change(|model| {
        for event in batch.drain(..) {
            match event {
                PollEvent::Record(record) => {
                    progress.positions.insert(record.at.clone(), StartOffset::At(record.offset + 1));
                    if let Some(topic) = Topic::from_name(&record.at.topic, prefix) {
                        take(model, topic, &record, &mut progress.budget);
                    }
                }
                PollEvent::End { at, .. } => {
                    progress.ahead.remove(&at);
                }
                _ => {}
            }
        }
        model.set_problem(outage_problem(unanswered, model.newest_record()));
        if progress.ahead.is_empty() {
            model.set_caught_up();
        }
    });
    Ok(polled)
}

/// Returns what is wrong if no broker has answered for this time; `None` for a short one. The same text as long as it lasts.
fn outage_problem(unanswered: Option<Duration>, newest: Option<EventTime>) -> Option<String> {
    unanswered.filter(|time| *time >= OUTAGE)?;
    let newest = newest.map(|stamp| format!("; the newest record is of {}", time_text(stamp)));
    Some(format!("no broker answers{}", newest.unwrap_or_default()))
}

/// Returns whether a record holds a sample or a window. Only these show that a pipeline measures: the processor appends heartbeats
/// to a partition in which nothing comes, and agents report settings without collectors.
fn has_figures(topic: Topic, record: &ConsumerRecord) -> bool {
    matches!(topic, Topic::GpuTelemetry | Topic::EfficiencyWindows)
        && record.value.is_some()
        && record.header(header::TYPE) != Some(EventType::Heartbeat.name())
}

fn take(model: &mut DashboardModel, topic: Topic, record: &ConsumerRecord, budget: &mut SampleBudget) {
    model.stamp(record.stamp);
    if has_figures(topic, record) {
        model.stamp_figures(record.stamp);
    }
    if topic == Topic::GpuTelemetry && !budget.take() {
        return;
    }
    if topic == Topic::DeadLetters {
        model.dead_letter(record.stamp, record.header(dead_letter_header::REASON).unwrap_or(NO_REASON));
    } else if let Some(value) = &record.value {
        model.take(topic, value);
    }
}

/// Offsets of a file, first and last, and the date of its records.
type ArchivedFile = (i64, i64, String);

/// Offsets of an archive, which a log beside it may have, too.
#[derive(Debug, Default)]
pub struct ArchivedRanges {
    /// The files of each partition, by the first offset.
    files: BTreeMap<(Topic, i32), Vec<ArchivedFile>>,
    /// Offset and stamp of each partition's newest row; without those whose files do not record it.
    newest: BTreeMap<(Topic, i32), (i64, EventTime)>,
}

impl ArchivedRanges {
    /// Returns the archived offsets of the topics that the page reads.
    fn of(archive: &Archive, listing: &ArchiveListing) -> Result<Self, LakeError> {
        let mut listing = listing.clone();
        listing.files.retain(|file| TOPICS.contains(&file.name.topic) || DEVICE_TOPICS.contains(&file.name.topic));
        let mut files: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for ArchiveFile { name, .. } in &listing.files {
            files.entry((name.topic, name.partition)).or_default().push((name.first, name.last, name.date.clone()));
        }
        let newest = archive.newest(&listing)?.into_iter().filter_map(|(at, newest)| Some((at, newest?))).collect();
        Ok(Self { files, newest })
    }

    /// Returns the partitions of a log that this archive is not of: they end before the newest archived row, or have another record
    /// at its offset. Offsets say nothing about them.
    fn foreign_partitions(
        &self,
        bus: &dyn Bus,
        prefix: &str,
        partitions: impl Iterator<Item = TopicPartition>,
    ) -> Result<BTreeSet<TopicPartition>, BusError> {
        let (mut foreign, mut sought) = (BTreeSet::new(), BTreeMap::new());
        for at in partitions {
            let topic = Topic::from_name(&at.topic, prefix);
            let Some((offset, stamp)) = topic.and_then(|topic| self.newest.get(&(topic, at.partition))).copied() else {
                continue;
            };
            let marks = bus.watermarks(&at)?;
            if offset >= marks.high {
                foreign.insert(at);
            } else if offset >= marks.low {
                sought.insert(at, (offset, stamp));
            }
        }
        let from: Vec<_> = sought.iter().map(|(at, (offset, _))| (at.clone(), StartOffset::At(*offset))).collect();
        if from.is_empty() {
            return Ok(foreign);
        }
        let unread = Cell::new(sought.len());
        eadt_bus::read_to_end(
            bus,
            &from,
            || unread.get() == 0,
            |record| {
                // The first one of each partition: a later one if that at the offset was compacted away.
                if let Some((offset, stamp)) = sought.remove(&record.at)
                    && record.offset == offset
                    && record.stamp != stamp
                {
                    foreign.insert(record.at);
                }
                unread.set(sought.len());
                Ok::<_, BusError>(())
            },
        )?;
        Ok(foreign)
    }

    /// Returns whether the archive holds a record of its own log. One of another date, or newer than all that is archived of its
    /// partition, is of a log that was made anew.
    fn has(&self, topic: Topic, record: &ConsumerRecord) -> bool {
        let at = (topic, record.at.partition);
        if self.newest.get(&at).is_some_and(|(_, newest)| record.stamp > *newest) {
            return false;
        }
        let Some(files) = self.files.get(&at) else { return false };
        let after = files.partition_point(|(first, ..)| *first <= record.offset);
        let file = after.checked_sub(1).and_then(|place| files.get(place));
        file.is_some_and(|(_, last, date)| record.offset <= *last && *date == record.stamp.date())
    }
}

/// Reads all events of a log, except those that the archive beside it has. Returns their number, without those of GPUs.
pub fn load_log(bus: &dyn Bus, prefix: &str, archived: &ArchivedRanges, model: &mut DashboardModel) -> Result<u64, FeedError> {
    let mut event_count = 0;
    let from: Vec<_> = positions(bus, prefix)?.into_iter().collect();
    let foreign = archived.foreign_partitions(bus, prefix, from.iter().map(|(at, _)| at.clone()))?;
    let mut budget = SampleBudget { left: f64::INFINITY, refilled: Instant::now() };
    eadt_bus::read_to_end(
        bus,
        &from,
        || false,
        |record| {
            let is_archived = |topic: &Topic| !foreign.contains(&record.at) && archived.has(*topic, &record);
            if let Some(topic) = Topic::from_name(&record.at.topic, prefix).filter(|topic| !is_archived(topic)) {
                event_count += u64::from(record.value.is_some() && TOPICS.contains(&topic));
                take(model, topic, &record, &mut budget);
            }
            Ok::<_, BusError>(())
        },
    )?;
    while model.refresh(usize::MAX) {}
    model.set_caught_up();
    Ok(event_count)
}

/// Takes in everything that an archive, or the output of a replay, holds. Each event is taken when it is read: what is kept is the
/// model's, which is bounded.
pub fn load_archive(archive: &Archive, model: &mut DashboardModel) -> Result<ArchivedRanges, FeedError> {
    // Before any read: records archived meanwhile are read from the log.
    let listing = archive.files()?;
    let ranges = ArchivedRanges::of(archive, &listing)?;
    model.set_incomplete(describe_missing_files(&listing));
    load_dead_letters(archive, &listing, model)?;
    load_topic(archive, &listing, Topic::Workloads, model, DashboardModel::declaration)?;
    load_topic(archive, &listing, Topic::EfficiencyWindows, model, DashboardModel::window)?;
    load_topic(archive, &listing, Topic::Decisions, model, DashboardModel::decision)?;
    load_topic(archive, &listing, Topic::Actuations, model, DashboardModel::actuation)?;
    load_devices(archive, &listing, model)?;
    while model.refresh(usize::MAX) {}
    model.set_caught_up();
    Ok(ranges)
}

/// Takes in the events of one topic, and counts those that could not be read.
fn load_topic<T: DecodableEvent>(
    archive: &Archive,
    listing: &ArchiveListing,
    topic: Topic,
    model: &mut DashboardModel,
    take: fn(&mut DashboardModel, &T),
) -> Result<(), FeedError> {
    let read = eadt_lake::visit_listed_events::<T>(archive, listing, topic, |event| take(model, &event))?;
    for (topic, partition, from, to) in read.missing {
        tracing::warn!(%topic, partition, from, to, "a file of the archive was removed");
    }
    for (kind, count) in read.passed_over {
        tracing::warn!(kind, count, "records of a type that does not belong to their topic were skipped");
    }
    for _ in read.refused {
        model.unreadable();
    }
    Ok(())
}

/// Returns a sentence about files of the shown topics that an archive lacks, or may lack; `None` if it has all.
fn describe_missing_files(listing: &ArchiveListing) -> Option<String> {
    let is_shown = |topic: Topic| TOPICS.contains(&topic);
    let offsets: i64 = listing.missing().filter(|(topic, ..)| is_shown(*topic)).map(|(_, _, from, to)| to - from + 1).sum();
    if offsets > 0 {
        let offsets = counted(offsets.unsigned_abs(), "offset");
        return Some(format!("Files with {offsets} were removed from the archive, and figures may lack what they held"));
    }
    let unrecorded = listing.unrecorded.iter().filter(|(topic, _)| is_shown(*topic)).count();
    (unrecorded > 0).then(|| {
        let partitions = counted(unrecorded, "partition");
        format!("Nothing in _archived records what was archived of {partitions}, so files may be missing")
    })
}

/// Counts the dead letters in these files of an archive by their reasons.
fn load_dead_letters(archive: &Archive, listing: &ArchiveListing, model: &mut DashboardModel) -> Result<(), FeedError> {
    for (topic, partition) in listing.partitions().into_keys().filter(|(topic, _)| *topic == Topic::DeadLetters) {
        for row in archive.rows(listing, topic, partition) {
            let row = row?;
            model.dead_letter(row.stamp, row.header(dead_letter_header::REASON).unwrap_or(NO_REASON));
        }
    }
    Ok(())
}

/// Reads the GPU events of an archive: all intents, states and holders, and the newest samples as of the moment that is shown.
fn load_devices(archive: &Archive, listing: &ArchiveListing, model: &mut DashboardModel) -> Result<(), FeedError> {
    eadt_lake::visit_listed_events(archive, listing, Topic::DeviceIntents, |event| model.device_intent(&event))?;
    eadt_lake::visit_listed_events(archive, listing, Topic::DeviceStates, |event| model.device_state(&event))?;
    eadt_lake::visit_listed_events(archive, listing, Topic::DeviceHolders, |event| model.device_holders(&event))?;
    let samples = newest_samples(archive, listing, model.shown_moment(), NEWEST_BYTES)?;
    let mut sample = GpuTelemetry::default();
    for (topic, partition) in samples.partitions().into_keys() {
        let mut rows = archive.stored(&samples, topic, partition);
        while let Some(row) = rows.next() {
            let row = row?;
            if row.telemetry(&mut sample) {
                model.telemetry(&sample);
            } else if let Some(value) = rows.row(&row)?.value {
                model.take(topic, &value);
            }
        }
    }
    Ok(())
}

/// Returns the newest files with samples of GPUs, of each partition as many as hold so many bytes. As of a moment, they end with the
/// file that the moment lies in, which does not count: perhaps few of its samples are earlier.
fn newest_samples(
    archive: &Archive,
    listing: &ArchiveListing,
    moment: Option<EventTime>,
    least_bytes: u64,
) -> Result<ArchiveListing, LakeError> {
    let mut partitions: BTreeMap<i32, Vec<&ArchiveFile>> = BTreeMap::new();
    for file in listing.files.iter().filter(|file| file.name.topic == Topic::GpuTelemetry) {
        partitions.entry(file.name.partition).or_default().push(file);
    }
    let mut newest = ArchiveListing::default();
    for mut files in partitions.into_values() {
        let mut cut = None;
        if let Some(moment) = moment {
            files.truncate(count_begun(archive, &files, moment)?);
            cut = files.pop();
        }
        let mut bytes = 0;
        let is_newest = |file: &&&ArchiveFile| {
            let is_newest = bytes < least_bytes;
            bytes += file.bytes;
            is_newest
        };
        let count = files.iter().rev().take_while(is_newest).count();
        let whole = files.split_off(files.len() - count);
        newest.files.extend(whole.into_iter().chain(cut).cloned());
    }
    Ok(newest)
}

/// Returns how many of a partition's files begin before a moment, or at it. Reads the begin of some.
fn count_begun(archive: &Archive, files: &[&ArchiveFile], moment: EventTime) -> Result<usize, LakeError> {
    let (mut begun, mut end) = (0, files.len());
    while begun < end {
        let middle = usize::midpoint(begun, end);
        if begin_of(archive, files[middle])?.is_some_and(|begin| begin > moment) {
            end = middle;
        } else {
            begun = middle + 1;
        }
    }
    Ok(begun)
}

/// Returns the time of the first sample in a file, or the append time of its first row if it holds no sample; `None` if it has no
/// row.
fn begin_of(archive: &Archive, file: &ArchiveFile) -> Result<Option<EventTime>, LakeError> {
    let listing = ArchiveListing { files: vec![file.clone()], ..ArchiveListing::default() };
    let mut sample = GpuTelemetry::default();
    let mut stamp = None;
    for row in archive.stored(&listing, file.name.topic, file.name.partition) {
        let row = row?;
        if row.telemetry(&mut sample) {
            return Ok(Some(sample.time));
        }
        stamp = stamp.or(Some(row.stamp()));
    }
    Ok(stamp)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use axum::body::Bytes;
    use eadt_bus::RecordHeaders;
    use eadt_lake::{ArchiveRow, ArchiveWriter, RollLimits};
    use eadt_schemas::envelope::Envelope;

    use super::*;
    use crate::model::{RetentionLimits, SourceFacts, SourceKind};

    /// A reader without records, of a log whose last answer is so long ago.
    #[derive(Debug)]
    struct SilentReader(Option<Duration>);

    impl PartitionReader for SilentReader {
        fn poll(&mut self, _: usize, _: Duration, _: &mut Vec<PollEvent>) -> Result<(), BusError> {
            Ok(())
        }

        fn pause(&mut self, _: &[TopicPartition]) -> Result<(), BusError> {
            Ok(())
        }

        fn resume(&mut self, _: &[TopicPartition]) -> Result<(), BusError> {
            Ok(())
        }

        fn unanswered(&self) -> Option<Duration> {
            self.0
        }
    }

    #[test]
    fn brokers_that_do_not_answer_are_a_problem_until_one_does() {
        let source =
            SourceFacts { kind: SourceKind::Live, place: "a test".to_owned(), window_seconds: None, version: "0".to_owned() };
        let model = SharedModel::new(DashboardModel::new(source, RetentionLimits::default()));
        let mut progress = FeedProgress { positions: BTreeMap::new(), ahead: BTreeSet::new(), budget: SampleBudget::new() };
        let mut problem = |unanswered: Option<u64>| {
            let mut reader = SilentReader(unanswered.map(Duration::from_secs));
            poll_once(&mut reader, "eadt.", &model, &mut progress, &mut Vec::new()).unwrap();
            model.read(|model| model.overview().problem)
        };
        assert_eq!(problem(None), None, "nothing new is no outage");
        assert_eq!(problem(Some(1)), None, "a broker that is replaced");
        let away = Some("no broker answers".to_owned());
        assert_eq!((problem(Some(5)), problem(Some(60))), (away.clone(), away), "the same text as long as it lasts");
        assert_eq!(problem(None), None, "one answers again");
        let stamp = EventTime::from_micros(1_767_225_600_000_000);
        let text = outage_problem(Some(OUTAGE), Some(stamp)).unwrap();
        assert_eq!(text, "no broker answers; the newest record is of 2026-01-01 00:00:00 UTC");
    }

    #[test]
    fn a_heartbeat_does_not_make_a_log_look_measured() {
        let source =
            SourceFacts { kind: SourceKind::Live, place: "a test".to_owned(), window_seconds: None, version: "0".to_owned() };
        let mut model = DashboardModel::new(source, RetentionLimits::default());
        let begin = EventTime::from_micros(1_767_225_600_000_000);
        let mut take_at = |topic: Topic, seconds: f64, kind: &str, value: Option<&'static str>| {
            let record = ConsumerRecord {
                at: TopicPartition::new(topic.to_string(), 0),
                offset: 0,
                stamp: begin.plus_seconds(seconds),
                key: None,
                value: value.map(|text| Bytes::from_static(text.as_bytes())),
                headers: RecordHeaders::from(vec![(Arc::from(header::TYPE), Bytes::copy_from_slice(kind.as_bytes()))]),
            };
            take(&mut model, topic, &record, &mut SampleBudget::new());
            model.overview().newest_figures_ms
        };
        let millis = |seconds: f64| Some(begin.plus_seconds(seconds).millis());
        assert_eq!(take_at(Topic::GpuTelemetry, 0.0, EventType::Heartbeat.name(), Some("{}")), None);
        assert_eq!(take_at(Topic::GpuTelemetry, 60.0, EventType::GpuTelemetry.name(), Some("{}")), millis(60.0));
        assert_eq!(take_at(Topic::EfficiencyWindows, 120.0, EventType::EfficiencyWindow.name(), Some("{}")), millis(120.0));
        // The processor, an agent and a job's end, while no collector runs.
        for (topic, kind, value) in [
            (Topic::GpuTelemetry, EventType::Heartbeat, Some("{}")),
            (Topic::EfficiencyWindows, EventType::Heartbeat, Some("{}")),
            (Topic::EfficiencyWindows, EventType::EfficiencyWindow, None),
            (Topic::DeviceStates, EventType::DeviceState, Some("{}")),
        ] {
            assert_eq!(take_at(topic, 1_500.0, kind.name(), value), millis(120.0), "{topic} {kind:?}");
        }
    }

    /// Returns an archive with so many files of samples, each of ten minutes and one GPU. All have the stamp of a replay.
    fn archive_of_samples(folder: &std::path::Path, files: i64, day: EventTime) -> Archive {
        let archive = Archive::folder(folder).unwrap();
        let mut writer = ArchiveWriter::new(archive.clone(), RollLimits::default());
        for minute in 0..10 * files {
            let device = format!("GPU-{}", minute / 10);
            let time = day.plus_seconds(60.0 * minute as f64);
            let sample = GpuTelemetry { time, device, collector: "nvml/a".to_owned(), ..GpuTelemetry::default() };
            let envelope = Envelope {
                id: format!("sample-{minute}"),
                source: "/collector/a".to_owned(),
                kind: EventType::GpuTelemetry,
                time,
                subject: sample.device.clone(),
            };
            let row = ArchiveRow {
                topic: Topic::GpuTelemetry,
                partition: 0,
                offset: minute,
                stamp: day,
                key: None,
                value: Some(serde_json::to_vec(&sample).unwrap().into()),
                headers: envelope.headers().map(|(name, text)| (Arc::from(name), Bytes::from(text))).into(),
            };
            writer.push(&row, day).unwrap();
            if minute % 10 == 9 {
                writer.roll_all().unwrap();
            }
        }
        archive
    }

    #[test]
    fn the_newest_samples_of_an_archive_are_those_before_the_moment_that_is_shown() {
        let (folder, day) = (tempfile::tempdir().unwrap(), EventTime::from_micros(1_767_225_600_000_000));
        let archive = archive_of_samples(folder.path(), 5, day);
        let listing = archive.files().unwrap();
        let at = |minute: i64| day.plus_seconds(60.0 * minute as f64);
        let first_offsets = |moment: Option<i64>, least_bytes: u64| -> Vec<i64> {
            let newest = newest_samples(&archive, &listing, moment.map(at), least_bytes).unwrap();
            newest.files.iter().map(|file| file.name.first).collect()
        };
        assert_eq!((first_offsets(None, 1), first_offsets(None, u64::MAX)), (vec![40], vec![0, 10, 20, 30, 40]));
        // The file that the moment lies in, and as many bytes before it.
        let moments = [-1, 0, 9, 10, 35, 49].map(|minute| first_offsets(Some(minute), 1));
        assert_eq!(moments, [vec![], vec![0], vec![0], vec![0, 10], vec![20, 30], vec![30, 40]]);
        assert_eq!(first_offsets(Some(35), u64::MAX), [0, 10, 20, 30]);
        let source =
            SourceFacts { kind: SourceKind::Archive, place: "a test".to_owned(), window_seconds: None, version: "0".to_owned() };
        let mut model = DashboardModel::new(source, RetentionLimits::default()).as_of(at(15));
        load_archive(&archive, &mut model).unwrap();
        let samples = model.overview().stages.into_iter().find_map(|stage| stage.newest_ms);
        assert_eq!(samples, Some(at(15).millis()));
    }

    #[test]
    fn a_record_is_archived_by_its_offset_date_and_time() {
        let day = EventTime::from_micros(1_767_225_600_000_000);
        let topic = Topic::EfficiencyWindows;
        let files = vec![(0, 9, day.date()), (20, 29, day.date()), (30, 39, day.plus_seconds(86_400.0).date())];
        let newest = day.plus_seconds(87_000.0);
        let ranges = ArchivedRanges { files: [((topic, 0), files)].into(), newest: [((topic, 0), (38, newest))].into() };
        let has = |partition: i32, offset: i64, seconds: f64| {
            let at = TopicPartition::new(topic.to_string(), partition);
            let stamp = day.plus_seconds(seconds);
            let headers = RecordHeaders::default();
            ranges.has(topic, &ConsumerRecord { at, offset, stamp, key: None, value: None, headers })
        };
        assert_eq!([0, 9, 20, 29].map(|offset| has(0, offset, 60.0)), [true; 4]);
        assert_eq!([30, 38].map(|offset| has(0, offset, 86_460.0)), [true; 2]);
        assert_eq!([10, 19, 40].map(|offset| has(0, offset, 60.0)), [false; 3], "in a gap, and behind the last file");
        assert!(!has(0, 0, 86_460.0) && !has(0, 30, 60.0), "of another date");
        assert!(!has(0, 30, 87_060.0), "newer than all that is archived");
        assert!(!has(1, 0, 60.0), "of another partition");
    }
}
