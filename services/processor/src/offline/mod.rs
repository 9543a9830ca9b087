//! The same fold without a bus, for replays: events from files in, windows and decisions out, in the same order every time.
//!
//! Sources are merged as the live inputs are: partition by partition, the least event time first. A source that mixes topics or
//! partitions (an event log) is taken in its own order. Events are decoded by whoever makes them ([`ReplayRecord::new`]), so that
//! reading and decoding can run on other threads than the fold.
//!
//! The stages that decide about several workloads together need all partitions in the order in which a log had them, and an event
//! log may have one after the other. So what concerns them, the windows and tables of their members, is kept until everything is
//! read.

mod joint_stages;

use std::collections::BTreeMap;
use std::fmt;

use eadt_core::merge::HeadSelector;
use eadt_core::partition::{device_of, merge_key};
use eadt_core::{FoldOutput, FoldSettings, InputRecord, PartitionFold};
use eadt_schemas::decode::DecodeError;
use eadt_schemas::v1::{Decision, EfficiencyWindow, GpuTelemetry, TrainingProgress, WindowKind};
use eadt_schemas::{EventTime, Topic};

use self::joint_stages::OfflineJointStage;
use crate::codec::DecodedRecord;
use crate::positions::{INPUTS, PartitionOffsets};

/// A record of an input topic as a file has it.
#[derive(Debug, Clone, Copy)]
pub struct RawRecord<'a> {
    pub topic: Topic,
    /// `ce_type`, where the file has it.
    pub kind: Option<&'a str>,
    pub key: &'a [u8],
    /// `None`: a tombstone.
    pub value: Option<&'a [u8]>,
    /// The log's stamp; the event's own time where there is none.
    pub stamp: EventTime,
}

/// A decoded record.
#[derive(Debug, Clone)]
pub struct ReplayRecord {
    topic: Topic,
    partition: i32,
    offset: Option<i64>,
    stamp: EventTime,
    /// Empty: none. A log written by hand may leave keys out; heartbeats have none.
    key: String,
    event: DecodedRecord,
}

impl Default for ReplayRecord {
    /// A heartbeat of no time, to be renewed.
    fn default() -> Self {
        Self {
            topic: Topic::GpuTelemetry,
            partition: 0,
            offset: None,
            stamp: EventTime::default(),
            key: String::new(),
            event: DecodedRecord::Heartbeat,
        }
    }
}

impl ReplayRecord {
    /// Decodes a record; without a partition it belongs to partition 0.
    pub fn new(raw: RawRecord<'_>, partition: Option<i32>, offset: Option<i64>) -> Self {
        let mut fed = Self::default();
        fed.refill(raw, partition, offset);
        fed
    }

    /// As [`Self::new`], in place of a record that is folded: its memory is used again.
    pub fn refill(&mut self, raw: RawRecord<'_>, partition: Option<i32>, offset: Option<i64>) {
        self.event.decode_into(raw.topic, raw.kind, raw.value);
        self.set_position(raw, partition, offset);
    }

    /// As [`Self::refill`] where the value is an object in the form that EADT itself writes, and nothing else. False: it is not,
    /// and what this holds is of no use.
    pub fn refill_canonical(&mut self, raw: RawRecord<'_>, partition: Option<i32>, offset: Option<i64>) -> bool {
        let canonical = raw.value.is_some_and(|value| self.event.decode_canonical_into(raw.topic, raw.kind, value));
        if canonical {
            self.set_position(raw, partition, offset);
        }
        canonical
    }

    /// As [`Self::refill`], for a sample that somebody reads into the event given, whose fields hold old values; `raw` is without
    /// its value. Only a checked event may be answered with true; after false this is of no use.
    pub fn refill_telemetry(
        &mut self,
        raw: RawRecord<'_>,
        partition: i32,
        offset: i64,
        read: impl FnOnce(&mut GpuTelemetry) -> bool,
    ) -> bool {
        if !matches!(self.event, DecodedRecord::Telemetry(_)) {
            self.event = DecodedRecord::Telemetry(GpuTelemetry::default());
        }
        let DecodedRecord::Telemetry(event) = &mut self.event else { return false };
        let good = read(event);
        self.set_position(raw, Some(partition), Some(offset));
        good
    }

    /// As [`Self::refill_telemetry`].
    pub fn refill_progress(
        &mut self,
        raw: RawRecord<'_>,
        partition: i32,
        offset: i64,
        read: impl FnOnce(&mut TrainingProgress) -> bool,
    ) -> bool {
        if !matches!(self.event, DecodedRecord::Progress(_)) {
            self.event = DecodedRecord::Progress(TrainingProgress::default());
        }
        let DecodedRecord::Progress(event) = &mut self.event else { return false };
        let good = read(event);
        self.set_position(raw, Some(partition), Some(offset));
        good
    }

    fn set_position(&mut self, raw: RawRecord<'_>, partition: Option<i32>, offset: Option<i64>) {
        (self.topic, self.partition, self.offset, self.stamp) = (raw.topic, partition.unwrap_or(0), offset, raw.stamp);
        self.key.clear();
        self.key.push_str(std::str::from_utf8(raw.key).unwrap_or_default());
    }

    fn key(&self) -> Option<&str> {
        Some(self.key.as_str()).filter(|key| !key.is_empty())
    }

    pub fn is_heartbeat(&self) -> bool {
        matches!(self.event, DecodedRecord::Heartbeat)
    }
}

/// Records in order, lent one at a time.
pub trait ReplaySource<E> {
    /// The record whose turn it is, the same until [`Self::advance`]; `None` at the end.
    fn head(&mut self) -> Result<Option<&ReplayRecord>, E>;
    /// Done with the head.
    fn advance(&mut self);
}

/// Records that somebody has decoded already.
#[derive(Debug)]
pub struct RecordSource<I> {
    records: I,
    head: Option<ReplayRecord>,
}

impl<I> RecordSource<I> {
    pub fn new(records: I) -> Self {
        Self { records, head: None }
    }
}

impl<E, I: Iterator<Item = Result<ReplayRecord, E>>> ReplaySource<E> for RecordSource<I> {
    fn head(&mut self) -> Result<Option<&ReplayRecord>, E> {
        if self.head.is_none() {
            self.head = self.records.next().transpose()?;
        }
        Ok(self.head.as_ref())
    }

    fn advance(&mut self) {
        self.head = None;
    }
}

/// An output of a replay.
#[derive(Debug, Clone, PartialEq)]
pub enum ReplayOutput {
    Window(Box<EfficiencyWindow>),
    Decision(Box<Decision>),
    Refused {
        topic: Topic,
        offset: Option<i64>,
        refusal: DecodeError,
    },
    /// At the end of the record.
    OpenAtEnd(OpenAtEnd),
}

/// A workload of which a live processor would still hold windows open where the record ends.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct OpenAtEnd {
    pub workload: String,
    /// Number of windows.
    pub windows: u64,
    /// Start of the first and end of the last.
    pub from: EventTime,
    pub to: EventTime,
    /// Live sources that have not reached the end of the first window; 0: the log's clock has not passed the join grace.
    pub sources_behind: u64,
    /// The newest stamp of its partition.
    pub log_clock: Option<EventTime>,
}

impl fmt::Display for OpenAtEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { workload, windows, from, to, sources_behind, log_clock } = self;
        write!(f, "{windows} window(s) of {workload}, {from} to {to}: ")?;
        match (sources_behind, log_clock) {
            (0, Some(clock)) => {
                write!(f, "processor.join_grace_seconds have not passed on the log's clock, which stands at {clock}")
            }
            (0, None) => f.write_str("processor.join_grace_seconds have not passed on the log's clock"),
            (behind, _) => write!(f, "{behind} live source(s) may still have events of the first one"),
        }
    }
}

/// The treatment of windows that are open where the record ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenWindowPolicy {
    /// They stay open, as in the live run, unless sources end with their file.
    AsLive,
    /// They are closed, as if every source had ended.
    Close,
}

/// The counts of a replay.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReplayCounts {
    /// Events folded, heartbeats left out.
    pub events: u64,
    /// Tumbling ones.
    pub windows: u64,
    /// Windows of spans that jobs named.
    pub spans: u64,
    pub decisions: u64,
    /// Late and stale ones included.
    pub refused: u64,
    /// Events of closed windows, whether or not a window after them counts them.
    pub late: u64,
    pub stale: u64,
    /// Events as old as their source's last one.
    pub duplicates: u64,
    /// Table events merged after a larger key.
    pub late_tables: u64,
    /// Events that came after a look at several workloads that they belonged to.
    pub late_for_power_budget: u64,
}

/// Replays the sources to their ends and passes every output, with the positions of the inputs of its partition, to the callback.
///
/// With `idle_grace` off nothing falls idle, so every source ends with its file, and all windows close; otherwise the record of a
/// log ends where it ends, and what was open there stays open, as in the live run, and is named, or is closed by `at_the_end`.
pub fn replay<E>(
    settings: &FoldSettings,
    sources: Vec<Box<dyn ReplaySource<E> + '_>>,
    at_the_end: OpenWindowPolicy,
    mut say: impl FnMut(&PartitionOffsets, ReplayOutput) -> Result<(), E>,
) -> Result<ReplayCounts, E> {
    let mut counts = ReplayCounts::default();
    let mut partitions: BTreeMap<i32, (PartitionFold, PartitionOffsets)> = BTreeMap::new();
    let mut fronts = SourceHeads::new(sources, settings)?;
    let mut out = Vec::new();
    let mut joint_stages = OfflineJointStage::enabled_stages(settings);
    while let Some(i) = fronts.next() {
        // A source that is next has a head.
        let Some(fed) = fronts.sources[i].head()? else { break };
        counts.events += u64::from(!fed.is_heartbeat());
        let (partition, positions) = partitions
            .entry(fed.partition)
            .or_insert_with(|| (PartitionFold::new(settings.clone()), PartitionOffsets::start(fed.partition)));
        let input = InputRecord { topic: fed.topic, stamp: fed.stamp, key: fed.key(), event: fed.event.event() };
        partition.fold(&input, &mut out);
        if let Some(offset) = fed.offset {
            positions.advance(fed.topic, offset);
        }
        for stage in &mut joint_stages {
            stage.add_record(fed);
        }
        if !out.is_empty() {
            emit_outputs(&mut out, &mut counts, Some(fed), positions, &mut joint_stages, &mut say)?;
        }
        fronts.advance(i, settings)?;
    }
    if settings.idle_grace.is_none() || at_the_end == OpenWindowPolicy::Close {
        for (partition, positions) in partitions.values_mut() {
            partition.finish(&mut out);
            emit_outputs(&mut out, &mut counts, None, positions, &mut joint_stages, &mut say)?;
        }
    }
    for (partition, positions) in partitions.values() {
        for open in partition.open_windows() {
            let held = OpenAtEnd {
                workload: device_of(open.workload).unwrap_or(open.workload).to_owned(),
                windows: open.windows,
                from: open.from,
                to: open.to,
                sources_behind: open.sources_behind as u64,
                log_clock: partition.clock().stamp(),
            };
            say(positions, ReplayOutput::OpenAtEnd(held))?;
        }
    }
    for stage in joint_stages {
        counts.late_for_power_budget += stage.fold(|partition, decision| {
            counts.decisions += 1;
            say(&PartitionOffsets::start(partition), ReplayOutput::Decision(Box::new(decision)))
        })?;
    }
    for tally in partitions.values().map(|(partition, _)| partition.tally()) {
        counts.late += tally.late;
        counts.stale += tally.stale;
        counts.duplicates += tally.duplicates;
        counts.late_tables += tally.late_tables;
    }
    Ok(counts)
}

fn emit_outputs<E>(
    out: &mut Vec<FoldOutput>,
    counts: &mut ReplayCounts,
    fed: Option<&ReplayRecord>,
    positions: &PartitionOffsets,
    joint_stages: &mut [OfflineJointStage],
    say: &mut impl FnMut(&PartitionOffsets, ReplayOutput) -> Result<(), E>,
) -> Result<(), E> {
    for output in out.drain(..) {
        let replayed = match output {
            FoldOutput::Window(window) => {
                for stage in &mut *joint_stages {
                    stage.take_window(&window, positions.partition);
                }
                match window.kind {
                    WindowKind::Tumbling => counts.windows += 1,
                    WindowKind::Span => counts.spans += 1,
                }
                ReplayOutput::Window(window)
            }
            FoldOutput::Decision(decision) => {
                counts.decisions += 1;
                ReplayOutput::Decision(decision)
            }
            FoldOutput::Refused(refusal) => {
                counts.refused += 1;
                let topic = fed.map_or(Topic::GpuTelemetry, |fed| fed.topic);
                ReplayOutput::Refused { topic, offset: fed.and_then(|fed| fed.offset), refusal }
            }
        };
        say(positions, replayed)?;
    }
    Ok(())
}

/// The position of a head: timed ones by merge key, others by stamp (see [`eadt_core::merge`]).
#[derive(Debug, Clone, Copy)]
struct SourceHead {
    partition: i32,
    order: usize,
    key: Option<EventTime>,
    stamp: EventTime,
}

/// The sources, and the positions of their heads.
struct SourceHeads<'a, E> {
    sources: Vec<Box<dyn ReplaySource<E> + 'a>>,
    heads: Vec<Option<SourceHead>>,
    /// Of each partition the sources whose heads are of it, in their order.
    members: BTreeMap<i32, Vec<usize>>,
    /// Of each partition the source that is next, and its rank among the partitions.
    next: BTreeMap<i32, (EventTime, usize)>,
}

impl<'a, E> SourceHeads<'a, E> {
    fn new(mut sources: Vec<Box<dyn ReplaySource<E> + 'a>>, settings: &FoldSettings) -> Result<Self, E> {
        let mut heads = Vec::with_capacity(sources.len());
        for source in &mut sources {
            heads.push(source.head()?.map(|fed| head(fed, settings)));
        }
        let mut members: BTreeMap<i32, Vec<usize>> = BTreeMap::new();
        for (i, head) in heads.iter().enumerate() {
            if let Some(head) = head {
                members.entry(head.partition).or_default().push(i);
            }
        }
        let partitions: Vec<i32> = members.keys().copied().collect();
        let mut this = Self { sources, heads, members, next: BTreeMap::new() };
        for partition in partitions {
            this.choose(partition);
        }
        Ok(this)
    }

    /// The source whose head is next.
    fn next(&self) -> Option<usize> {
        // One file needs no merge: its own order counts.
        if let [head] = self.heads[..] {
            return head.map(|_| 0);
        }
        let least = self.next.iter().min_by_key(|(partition, (rank, _))| (*rank, **partition));
        least.map(|(_, (_, i))| *i)
    }

    fn advance(&mut self, i: usize, settings: &FoldSettings) -> Result<(), E> {
        let before = self.heads[i].map(|head| head.partition);
        self.sources[i].advance();
        self.heads[i] = self.sources[i].head()?.map(|fed| head(fed, settings));
        if self.sources.len() > 1 {
            let after = self.heads[i].map(|head| head.partition);
            if after != before {
                if let Some(of_partition) = before.and_then(|partition| self.members.get_mut(&partition)) {
                    of_partition.retain(|member| *member != i);
                }
                if let Some(partition) = after {
                    let of_partition = self.members.entry(partition).or_default();
                    of_partition.insert(of_partition.partition_point(|member| *member < i), i);
                }
            }
            for partition in before.into_iter().chain(after.filter(|_| after != before)) {
                self.choose(partition);
            }
        }
        Ok(())
    }

    /// Finds what the live merge would take next in a partition.
    fn choose(&mut self, partition: i32) {
        let mut turn = HeadSelector::default();
        for i in self.members.get(&partition).into_iter().flatten() {
            if let Some(head) = self.heads[*i] {
                turn.offer(head.key, head.stamp, (head.order, *i));
            }
        }
        match turn.next() {
            Some((rank, (_, i))) => self.next.insert(partition, (rank, i)),
            None => self.next.remove(&partition),
        };
    }
}

fn head(fed: &ReplayRecord, settings: &FoldSettings) -> SourceHead {
    let order = INPUTS.iter().position(|topic| *topic == fed.topic).unwrap_or(usize::MAX);
    let key = fed.event.event().time().map(|time| merge_key(time, fed.stamp, settings.max_future));
    SourceHead { partition: fed.partition, order, key, stamp: fed.stamp }
}
