//! Sources of events: Kafka, or a data folder, an archive or the output of a replay.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use eadt_bus::embedded::{EmbeddedLog, EmbeddedOptions, IN_USE};
use eadt_bus::{Bus, BusError, ConsumerRecord, IsolationLevel, PollEvent, StartOffset, TopicPartition, read_to_end};
use eadt_lake::{Archive, ArchiveListing, EventRow, LakeError, count_type};
use eadt_schemas::envelope::header;
use eadt_schemas::{EventTime, EventType, Topic};
use eadt_service::{ServiceClock, Shutdown};

use crate::commands::{partitions, topic_of};
use crate::progress;
use crate::settings::{ProgramSettings, TopicSettings};

/// Topics of the views.
pub const TOPICS: [Topic; 5] =
    [Topic::Workloads, Topic::EfficiencyWindows, Topic::Decisions, Topic::Actuations, Topic::DeadLetters];
/// Records at the end of a partition that hold the newest sample of every device, unless there are very many.
const NEWEST: i64 = 20_000;
/// Distance below which the beginning of a span is found by reading, in records.
const RECORDS_TO_SCAN: i64 = 64;
/// Records between the end and the first guess of a position; each further guess is four times as far.
const FIRST_STEP: i64 = 1000;

/// Part of each topic that is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadRange {
    Whole,
    /// Records that were appended at this time or after it. Workloads are whole.
    Since(EventTime),
    /// Records that were appended in so much time before the end of the span.
    Last(Duration),
    /// The newest records.
    Newest,
}

impl ReadRange {
    /// Returns the range of `--since`.
    pub fn last(since: Option<Duration>) -> Self {
        since.map_or(Self::Whole, Self::Last)
    }

    /// Returns the range with the time at which it begins. Without a newest record there is nothing to leave out.
    fn before(self, end: Option<EventTime>) -> Self {
        match self {
            Self::Last(since) => end.map_or(Self::Whole, |end| Self::Since(end.plus_seconds(-since.as_secs_f64()))),
            other => other,
        }
    }
}

/// The moment that [`ReadRange::Last`] counts back from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpanEnd {
    /// The present, of a pipeline that may go on.
    Now,
    /// The newest record of a log that has ended. Its time may be simulated, or that of an old recording; `None` if it is
    /// unknown.
    Newest(Option<EventTime>),
}

impl SpanEnd {
    /// Names the span of `--since` in a sentence.
    pub fn describe(self, since: Duration) -> String {
        let within = eadt_report::units::format_duration(since.as_secs_f64());
        match self {
            Self::Now => format!("in the {within} before now"),
            Self::Newest(None) => format!("in the {within} before the newest event"),
            Self::Newest(Some(newest)) => {
                format!("in the {within} before the newest event, which is of {}Z", &newest.to_string()[..19])
            }
        }
    }
}

/// Extent of the records that were read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadExtent {
    pub end: SpanEnd,
    /// Whether the log beside the archive was left out, since another process has it.
    pub is_archive_only: bool,
    /// The log is not written any more: its last event is the end of the record.
    pub has_ended: bool,
}

/// Returns the range of a log as one with a beginning, and the end of the span. An embedded log that this process holds gets no
/// more, so its newest record counts; Kafka goes on.
pub fn resolve_log_range(
    bus: &dyn Bus,
    settings: &ProgramSettings,
    topics: &[Topic],
    span: ReadRange,
) -> anyhow::Result<(ReadRange, SpanEnd)> {
    if !settings.bus.brokers.is_empty() {
        return Ok((span.before(Some(ServiceClock::machine().now())), SpanEnd::Now));
    }
    let newest = match span {
        ReadRange::Last(_) => newest_in_log(bus, &settings.topics, topics)?,
        _ => None,
    };
    Ok((span.before(newest), SpanEnd::Newest(newest)))
}

/// Returns the error of a command that a signal ended while it read: figures of a part of a record are none of the record.
pub fn interrupted() -> anyhow::Error {
    anyhow::anyhow!("interrupted before the record was read to its end: nothing is shown")
}

/// A command may read twice, and warns once that the log was left out.
static WARNED: std::sync::Once = std::sync::Once::new();

/// Reads a place to its present end. `path` is a data folder or an archive; without it the log of the settings. If `shutdown` is
/// cancelled first, that is an error.
pub fn read(
    path: Option<&Path>,
    settings: &ProgramSettings,
    topics: &[Topic],
    span: ReadRange,
    shutdown: &Shutdown,
    take: &mut dyn FnMut(Topic, &[u8]),
) -> anyhow::Result<ReadExtent> {
    let path = match path {
        None if !settings.bus.brokers.is_empty() => {
            let bus = crate::bus::connect(settings)?;
            let (span, end) = resolve_log_range(&*bus, settings, topics, span)?;
            read_bus(&*bus, &settings.topics, topics, span, &BTreeMap::new(), shutdown, take)?;
            return Ok(ReadExtent { end, is_archive_only: false, has_ended: false });
        }
        None => settings.bus.data_dir.as_path(),
        Some(path) => path,
    };
    if !path.is_dir() {
        anyhow::bail!(
            "{} is not a folder: give --kafka BROKERS, or name a data folder, an archive or the output of `eadt replay` with --from",
            path.display()
        );
    }
    let log = path.join("log");
    let log = log.is_dir().then(|| EmbeddedLog::open(&log, EmbeddedOptions::default()));
    // Records that the archive does not hold yet are in the log; one that cannot be read is an error.
    let archive = match crate::commands::find_archive(path, topics) {
        Ok(archive) => Some(archive),
        Err(LakeError::Absent { .. }) if log.is_some() => None,
        Err(error) => return Err(error.into()),
    };
    let newest = match span {
        ReadRange::Last(_) => {
            let of_archive = archive.as_ref().map(|archive| newest_in_archive(archive, topics)).transpose()?;
            let of_log = log.iter().flatten().map(|bus| newest_in_log(bus, &settings.topics, topics)).next().transpose()?;
            of_archive.max(of_log).flatten()
        }
        _ => None,
    };
    let (span, end) = (span.before(newest), SpanEnd::Newest(newest));
    let archived = archive.map(|archive| read_archive(archive, topics, span, shutdown, take)).transpose()?;
    let Some(log) = log else { return Ok(ReadExtent { end, is_archive_only: false, has_ended: true }) };
    let is_archive_only = log.is_err();
    match log {
        Ok(bus) => {
            read_bus(&bus, &settings.topics, topics, span, &archived.unwrap_or_default(), shutdown, take)?;
        }
        Err(error) => {
            let error = name_page(error.into(), settings);
            if archived.is_none() {
                return Err(error.context("nothing is archived yet"));
            }
            WARNED.call_once(|| crate::output::note!("warning: only what is archived is shown: {error:#}"));
        }
    }
    Ok(ReadExtent { end, is_archive_only, has_ended: !is_archive_only })
}

/// Topics whose newest record is the end of a span. Workloads are always read whole, and may be declared at any time.
fn dated(topics: &[Topic]) -> impl Iterator<Item = Topic> {
    topics.iter().copied().filter(|topic| *topic != Topic::Workloads)
}

/// Returns the append time of the newest record in an archive.
fn newest_in_archive(archive: &Archive, topics: &[Topic]) -> anyhow::Result<Option<EventTime>> {
    let listing = archive.files()?;
    let recorded = archive.newest(&listing)?;
    let last = newest_files(listing);
    let mut newest = None;
    for ((topic, partition), known) in &recorded {
        if !dated(topics).any(|of| of == *topic) {
            continue;
        }
        match known {
            Some((_, stamp)) => newest = newest.max(Some(*stamp)),
            None => {
                for row in archive.rows(&last, *topic, *partition) {
                    newest = newest.max(Some(row?.stamp));
                }
            }
        }
    }
    Ok(newest)
}

/// Returns the append time of the newest record in a log.
fn newest_in_log(bus: &dyn Bus, names: &TopicSettings, topics: &[Topic]) -> anyhow::Result<Option<EventTime>> {
    let topics: Vec<Topic> = dated(topics).collect();
    let mut open = Vec::new();
    for (at, _) in partitions(bus, names, &topics, StartOffset::Earliest)? {
        let marks = bus.watermarks(&at)?;
        if marks.high > marks.low {
            open.push((at, marks));
        }
    }
    // The last offsets may have no record: marks of transactions take one each, and compaction removes records.
    let (mut newest, mut step) = (None, 1);
    while !open.is_empty() {
        let from: Vec<_> =
            open.iter().map(|(at, marks)| (at.clone(), StartOffset::At((marks.high - step).max(marks.low)))).collect();
        let stamps = last_stamps(bus, &from)?;
        open.retain(|(at, marks)| marks.high - step > marks.low && !stamps.contains_key(&(at.topic.clone(), at.partition)));
        newest = stamps.into_values().max().max(newest);
        step = step.saturating_mul(4);
    }
    Ok(newest)
}

/// Adds to the error of a log that a running `eadt up` has open how its figures are read.
pub fn name_page(error: anyhow::Error, settings: &ProgramSettings) -> anyhow::Error {
    let is_in_use = error.downcast_ref::<BusError>().is_some_and(|error| error.detail.contains(IN_USE));
    if !is_in_use {
        return error;
    }
    // Another port if that one was taken; `up` prints it.
    let page = settings.dashboard.socket().ok().filter(|address| address.port() != 0);
    let page = page.map_or_else(|| "URL".to_owned(), |address| format!("http://{address}"));
    error.context(format!(
        "the log is in use: if an `eadt up` has it, `eadt top --url {page}`, `get` and `describe` read it through its web page, whose address it printed"
    ))
}

/// The next offset of each partition that was read.
type NextOffsets = BTreeMap<(Topic, i32), i64>;

fn read_archive(
    archive: Archive,
    topics: &[Topic],
    span: ReadRange,
    shutdown: &Shutdown,
    take: &mut dyn FnMut(Topic, &[u8]),
) -> anyhow::Result<NextOffsets> {
    let mut listing = archive.files()?;
    let next: NextOffsets = listing.partitions().into_iter().map(|(partition, (_, last))| (partition, last + 1)).collect();
    crate::commands::warn_missing(listing.missing().filter(|(topic, ..)| topics.contains(topic)));
    if span == ReadRange::Newest {
        listing = newest_files(listing);
    }
    let (archive, meter) = progress::over_files(archive, &listing, topics);
    let mut passed_over: BTreeMap<Topic, BTreeMap<String, u64>> = BTreeMap::new();
    for (topic, partition) in next.keys().filter(|(topic, _)| topics.contains(topic)) {
        let mut rows = archive.rows(&listing, *topic, *partition);
        while let Some(row) = rows.next_event() {
            if shutdown.is_cancelled() {
                return Err(interrupted());
            }
            let row = match row? {
                EventRow::Row(row) => row,
                EventRow::Refused(offset, refusal) => {
                    crate::output::note!(
                        "warning: an event was left out, {topic} partition {partition} offset {offset}: {refusal}"
                    );
                    continue;
                }
            };
            if let ReadRange::Since(since) = span
                && row.stamp < since
                && *topic != Topic::Workloads
            {
                continue;
            }
            if let Some(kind) = row.foreign_type() {
                count_type(passed_over.entry(*topic).or_default(), kind, 1);
            }
            if let Some(value) = row.value.as_deref().filter(|_| row.kind() == Some(topic.event_type())) {
                take(*topic, value);
            }
        }
    }
    meter.finish();
    for (topic, kinds) in &passed_over {
        crate::commands::warn_passed_over(*topic, kinds);
    }
    Ok(next)
}

/// Returns the last file of each partition.
fn newest_files(listing: ArchiveListing) -> ArchiveListing {
    let mut newest = BTreeMap::new();
    for file in listing.files {
        newest.insert((file.name.topic, file.name.partition), file);
    }
    ArchiveListing { files: newest.into_values().collect(), ..ArchiveListing::default() }
}

fn read_bus(
    bus: &dyn Bus,
    names: &TopicSettings,
    topics: &[Topic],
    span: ReadRange,
    next: &NextOffsets,
    shutdown: &Shutdown,
    take: &mut dyn FnMut(Topic, &[u8]),
) -> anyhow::Result<()> {
    let mut from = starts(bus, names, topics, span)?;
    for (at, start) in &mut from {
        let topic = Topic::from_name(&at.topic, &names.prefix);
        let Some(known) = topic.and_then(|topic| next.get(&(topic, at.partition))) else { continue };
        let low = bus.watermarks(at)?.low.max(*known);
        *start = StartOffset::At(match *start {
            StartOffset::At(offset) => offset.max(low),
            StartOffset::Earliest | StartOffset::Latest => low,
        });
    }
    let meter = crate::commands::meter_of_log(bus, &from)?;
    let read = read_to_end(
        bus,
        &from,
        || shutdown.is_cancelled(),
        |record| {
            meter.add(1);
            if let (Some(topic), Some(value)) = (topic_of(&record, &names.prefix), &record.value) {
                if topic != Topic::DeadLetters && record.header(header::TYPE) == Some(EventType::Heartbeat.name()) {
                    return Ok(());
                }
                let is_older = matches!(span, ReadRange::Since(since) if record.stamp < since && topic != Topic::Workloads);
                if !is_older {
                    take(topic, value);
                }
            }
            anyhow::Ok(())
        },
    )?;
    read.map(drop).ok_or_else(interrupted)
}

/// Returns the offset to begin at, for each partition.
pub fn starts(
    bus: &dyn Bus,
    names: &TopicSettings,
    topics: &[Topic],
    span: ReadRange,
) -> anyhow::Result<Vec<(TopicPartition, StartOffset)>> {
    let mut from = partitions(bus, names, topics, StartOffset::Earliest)?;
    match span {
        // One without an end is whole.
        ReadRange::Whole | ReadRange::Last(_) => {}
        ReadRange::Newest => {
            for (at, start) in &mut from {
                let marks = bus.watermarks(at)?;
                *start = StartOffset::At((marks.high - NEWEST).max(marks.low));
            }
        }
        ReadRange::Since(since) => {
            // Old records name workloads, too: the topic is compacted, so it is read whole.
            let workloads = format!("{}{}", names.prefix, Topic::Workloads);
            let (whole, rest): (Vec<_>, Vec<_>) = from.into_iter().partition(|(at, _)| *at.topic == *workloads);
            from = whole;
            from.extend(starts_since(bus, &rest, since)?);
        }
    }
    Ok(from)
}

/// A partition in which the first record of a span is looked for.
struct SpanSearch {
    at: TopicPartition,
    /// Records before this offset are older than the span.
    older: i64,
    /// Records from this offset on are of the span.
    newer: i64,
    /// Lowest offset of the partition's records.
    low: i64,
}

impl SpanSearch {
    /// Returns the offset to look at next: so many records back while none is older, then halfway; `None` if so few are left that they
    /// are read.
    fn next_offset(&self, step: i64) -> Option<i64> {
        if self.older < self.low && self.newer > self.low {
            return Some((self.newer - step).max(self.low));
        }
        (self.newer - self.older > RECORDS_TO_SCAN).then(|| i64::midpoint(self.older, self.newer))
    }

    /// Takes the stamp of the first record at or after an offset.
    fn observe(&mut self, offset: i64, stamp: Option<EventTime>, since: EventTime) {
        if stamp.is_some_and(|stamp| stamp < since) {
            self.older = self.older.max(offset);
        } else {
            self.newer = self.newer.min(offset);
        }
    }
}

/// Returns the first record of each partition that is not older than `since`: stamps are those of the appending, which rise.
fn starts_since(
    bus: &dyn Bus,
    partitions: &[(TopicPartition, StartOffset)],
    since: EventTime,
) -> anyhow::Result<Vec<(TopicPartition, StartOffset)>> {
    let of: Vec<TopicPartition> = partitions.iter().map(|(at, _)| at.clone()).collect();
    // Before the search: records appended meanwhile belong to the span.
    let ends = of.iter().map(|at| Ok(bus.watermarks(at)?.high)).collect::<anyhow::Result<Vec<i64>>>()?;
    let Some(found) = bus.offsets_since(&of, since)? else { return search_since(bus, &of, since) };
    let starts = of.into_iter().zip(found).zip(ends);
    Ok(starts.map(|((at, found), end)| (at, StartOffset::At(found.unwrap_or(end)))).collect())
}

/// Like [`starts_since`], of a log that cannot be searched by time. Steps back from the end until a record is older, halves the
/// distance, and reads what is left.
fn search_since(
    bus: &dyn Bus,
    partitions: &[TopicPartition],
    since: EventTime,
) -> anyhow::Result<Vec<(TopicPartition, StartOffset)>> {
    let mut searches = Vec::new();
    for at in partitions {
        let marks = bus.watermarks(at)?;
        searches.push(SpanSearch { at: at.clone(), older: marks.low - 1, newer: marks.high, low: marks.low });
    }
    let mut step = FIRST_STEP;
    loop {
        let tried: Vec<(&mut SpanSearch, i64)> = searches
            .iter_mut()
            .filter_map(|search| {
                let offset = search.next_offset(step)?;
                Some((search, offset))
            })
            .collect();
        if tried.is_empty() {
            break;
        }
        observe_all(bus, tried, since)?;
        step = step.saturating_mul(4);
    }
    let rest: Vec<(TopicPartition, StartOffset)> = searches
        .iter()
        .filter(|search| search.newer - search.older > 1)
        .map(|search| (search.at.clone(), StartOffset::At(search.older.max(search.low))))
        .collect();
    let first = first_records(bus, &rest, |record| record.stamp >= since)?;
    let start = |search: SpanSearch| {
        let found = first.get(&(search.at.topic.clone(), search.at.partition)).map(|(offset, _)| *offset);
        let offset = found.unwrap_or(search.newer).min(search.newer);
        (search.at, StartOffset::At(offset))
    };
    Ok(searches.into_iter().map(start).collect())
}

/// Looks at the first record at or after an offset of each partition.
fn observe_all(bus: &dyn Bus, tried: Vec<(&mut SpanSearch, i64)>, since: EventTime) -> anyhow::Result<()> {
    let from: Vec<_> = tried.iter().map(|(search, offset)| (search.at.clone(), StartOffset::At(*offset))).collect();
    let first = first_records(bus, &from, |_| true)?;
    for (search, offset) in tried {
        let stamp = first.get(&(search.at.topic.clone(), search.at.partition)).map(|(_, stamp)| *stamp);
        search.observe(offset, stamp, since);
    }
    Ok(())
}

/// Longest search for the first records of a span.
const SPAN_SEARCH: Duration = Duration::from_secs(30);

/// Stamps of records by topic and partition; none if there is no record.
type StampByPartition = BTreeMap<(std::sync::Arc<str>, i32), EventTime>;

/// Returns the newest stamp of the records from each position to the end.
fn last_stamps(bus: &dyn Bus, from: &[(TopicPartition, StartOffset)]) -> anyhow::Result<StampByPartition> {
    let mut stamps = StampByPartition::new();
    read_to_end(
        bus,
        from,
        || false,
        |record| {
            let stamp = stamps.entry((record.at.topic.clone(), record.at.partition)).or_insert(record.stamp);
            *stamp = (*stamp).max(record.stamp);
            anyhow::Ok(())
        },
    )?;
    Ok(stamps)
}

/// Offset and stamp of a record, by topic and partition; none if there is no such record.
type FoundRecords = BTreeMap<(std::sync::Arc<str>, i32), (i64, EventTime)>;

/// Returns the first record at or after each position that fits.
fn first_records(
    bus: &dyn Bus,
    from: &[(TopicPartition, StartOffset)],
    fits: impl Fn(&ConsumerRecord) -> bool,
) -> anyhow::Result<FoundRecords> {
    let (mut found, mut ended, mut batch) = (FoundRecords::new(), std::collections::BTreeSet::new(), Vec::new());
    if from.is_empty() {
        return Ok(found);
    }
    let mut reader = bus.reader(from, IsolationLevel::ReadCommitted)?;
    let begun = Instant::now();
    while ended.len() < from.len() {
        anyhow::ensure!(
            begun.elapsed() < SPAN_SEARCH,
            "the beginning of the span cannot be found: a partition gives neither a record nor its end"
        );
        reader.poll(from.len(), Duration::from_millis(200), &mut batch)?;
        for polled in batch.drain(..) {
            let at = match polled {
                PollEvent::Record(record) if fits(&record) => {
                    let found = found.entry((record.at.topic.clone(), record.at.partition));
                    found.or_insert((record.offset, record.stamp));
                    record.at
                }
                PollEvent::End { at, .. } => at,
                _ => continue,
            };
            if ended.insert((at.topic.clone(), at.partition)) {
                reader.pause(&[at])?;
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;
    use eadt_bus::CommitStep;
    use eadt_bus::conformance::{join, outgoing};
    use eadt_lake::{ArchiveRow, ArchiveWriter, RollLimits};
    use eadt_schemas::v1::EfficiencyWindow;

    use super::*;

    /// Returns a log with the product's topics.
    fn open_log(folder: &Path, partitions: i32) -> EmbeddedLog {
        let options = EmbeddedOptions { reserve_bytes: 0, ..EmbeddedOptions::default() };
        let bus = EmbeddedLog::open(&folder.join("log"), options).unwrap();
        for spec in eadt_bus::topics::desired("eadt.", partitions, 1) {
            bus.create_topic(&spec).unwrap();
        }
        bus
    }

    #[test]
    fn the_newest_event_is_found_before_the_mark_of_a_transaction() {
        let folder = tempfile::tempdir().unwrap();
        let bus = open_log(folder.path(), 1);
        let settings = crate::settings::load(None, &crate::settings::EnvVariables::default(), &[]).unwrap();
        let newest = || newest_in_log(&bus, &settings.topics, &TOPICS).unwrap();
        assert_eq!(newest(), None);
        let (mut member, _) = join(&bus, "tests", Some("one"), &["eadt.gpu.telemetry.v1".into()]);
        let decision = outgoing(&"eadt.decisions.v1".into(), "lab/job", "{}");
        member.commit(&CommitStep { outputs: vec![decision], positions: Vec::new() }).unwrap();
        drop(member);
        let marks = bus.watermarks(&TopicPartition::new("eadt.decisions.v1", 0)).unwrap();
        assert!(marks.high > 1, "the mark takes an offset: {marks:?}");
        assert!(newest().is_some());
    }

    /// A log that is searched by time, and refuses reads.
    #[derive(Debug)]
    struct TimeIndexedLog(EmbeddedLog);

    impl Bus for TimeIndexedLog {
        fn topics(&self, prefix: &str) -> eadt_bus::Result<Vec<eadt_bus::TopicSpec>> {
            self.0.topics(prefix)
        }
        fn create_topic(&self, topic: &eadt_bus::TopicSpec) -> eadt_bus::Result<()> {
            self.0.create_topic(topic)
        }
        fn alter_topic(&self, name: &str, settings: &BTreeMap<String, String>) -> eadt_bus::Result<()> {
            self.0.alter_topic(name, settings)
        }
        fn add_partitions(&self, name: &str, partitions: i32) -> eadt_bus::Result<()> {
            self.0.add_partitions(name, partitions)
        }
        fn watermarks(&self, at: &TopicPartition) -> eadt_bus::Result<eadt_bus::WatermarkOffsets> {
            self.0.watermarks(at)
        }
        fn offsets_since(&self, of: &[TopicPartition], _: EventTime) -> eadt_bus::Result<Option<Vec<Option<i64>>>> {
            Ok(Some(of.iter().map(|at| (at.partition == 0).then_some(7)).collect()))
        }
        fn producer(&self, name: &str) -> eadt_bus::Result<Box<dyn eadt_bus::Producer>> {
            self.0.producer(name)
        }
        fn reader(
            &self,
            from: &[(TopicPartition, StartOffset)],
            _: eadt_bus::IsolationLevel,
        ) -> eadt_bus::Result<Box<dyn eadt_bus::PartitionReader>> {
            panic!("{from:?} is read")
        }
        fn member(&self, options: eadt_bus::MemberOptions) -> eadt_bus::Result<Box<dyn eadt_bus::GroupMember>> {
            self.0.member(options)
        }
        fn committed(&self, group: &str, of: &[TopicPartition]) -> eadt_bus::Result<Vec<Option<i64>>> {
            self.0.committed(group, of)
        }
    }

    #[test]
    fn a_log_that_is_searched_by_time_is_asked_and_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let bus = open_log(folder.path(), 2);
        let settings = crate::settings::load(None, &crate::settings::EnvVariables::default(), &[]).unwrap();
        let bus = TimeIndexedLog(bus);
        let span = ReadRange::Since(EventTime::from_millis(5));
        let starts = starts(&bus, &settings.topics, &[Topic::Workloads, Topic::Decisions], span).unwrap();
        let found: Vec<_> = starts.into_iter().map(|(at, start)| (at.to_string(), start)).collect();
        let of = |topic: &str, partition, start| (TopicPartition::new(topic, partition).to_string(), start);
        let (workloads, decisions) = ("eadt.workloads.v1", "eadt.decisions.v1");
        let whole = [0, 1].map(|partition| of(workloads, partition, StartOffset::Earliest));
        // A partition without such a record begins at its end.
        let ends = [of(decisions, 0, StartOffset::At(7)), of(decisions, 1, StartOffset::At(0))];
        assert_eq!(found, [whole, ends].concat());
    }

    #[test]
    fn reading_that_is_stopped_before_the_end_is_an_error() {
        let (of_log, of_archive) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let bus = open_log(of_log.path(), 1);
        let (mut member, _) = join(&bus, "tests", Some("one"), &["eadt.gpu.telemetry.v1".into()]);
        let decision = outgoing(&"eadt.decisions.v1".into(), "lab/job", "{}");
        member.commit(&CommitStep { outputs: vec![decision], positions: Vec::new() }).unwrap();
        drop((member, bus));
        let mut writer = ArchiveWriter::new(Archive::folder(of_archive.path()).unwrap().with_new_id(1), RollLimits::default());
        let (window_start, window_end) = (EventTime::from_millis(60_000), EventTime::from_millis(120_000));
        let (id, workload) = ("lab/job/1".to_owned(), "lab/job".to_owned());
        let window = EfficiencyWindow { id, workload, window_start, window_end, ..EfficiencyWindow::default() };
        let kind = Topic::EfficiencyWindows.event_type().name();
        let row = ArchiveRow {
            topic: Topic::EfficiencyWindows,
            partition: 0,
            offset: 0,
            stamp: EventTime::from_millis(0),
            key: None,
            value: Some(serde_json::to_vec(&window).unwrap().into()),
            headers: vec![(Arc::from(header::TYPE), Bytes::copy_from_slice(kind.as_bytes()))],
        };
        writer.push(&row, row.stamp).unwrap();
        writer.roll_all().unwrap();
        let settings = crate::settings::load(None, &crate::settings::EnvVariables::default(), &[]).unwrap();
        for folder in [of_log.path(), of_archive.path()] {
            for is_stopped in [true, false] {
                let (stop, mut events) = (Shutdown::new(), 0);
                if is_stopped {
                    stop.cancel();
                }
                let mut count = |_: Topic, _: &[u8]| events += 1;
                let read = super::read(Some(folder), &settings, &TOPICS, ReadRange::Whole, &stop, &mut count);
                let error = read.err().map(|error| error.to_string());
                let expected = if is_stopped { (0, Some(interrupted().to_string())) } else { (1, None) };
                assert_eq!((events, error), expected, "{}", folder.display());
            }
        }
    }

    #[test]
    fn an_archive_that_cannot_be_read_is_an_error_and_one_that_is_not_there_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let bus = open_log(folder.path(), 1);
        drop(bus);
        let settings = crate::settings::load(None, &crate::settings::EnvVariables::default(), &[]).unwrap();
        let read = || {
            let mut events = 0;
            let mut count = |_: Topic, _: &[u8]| events += 1;
            super::read(Some(folder.path()), &settings, &TOPICS, ReadRange::Whole, &Shutdown::new(), &mut count).map(|_| events)
        };
        assert_eq!(read().unwrap(), 0, "nothing is archived yet");
        let foreign = folder.path().join("archive/topic=decisions.v1/date=2026-01-01");
        std::fs::create_dir_all(&foreign).unwrap();
        std::fs::write(foreign.join("other.parquet"), "no Parquet of ours").unwrap();
        let refused = format!("{:#}", read().unwrap_err());
        assert!(refused.contains("other.parquet"), "{refused}");
    }
}
