//! The same fold without a bus, for replays: events from files in, windows and decisions out, in the same order every time for
//! each partition.
//!
//! Sources are merged as the live inputs are: partition by partition, the least event time first. A source that mixes topics or
//! partitions (an event log) is taken in its own order. If every source is of one partition (an archive), partitions are read
//! and folded on threads of their own: none depends on another. Sources decode their events ([`ReplayRecord::new`]), so that
//! reading can run on other threads than the fold.
//!
//! The stages that decide about several workloads together need all partitions in the order in which a log had them, and an event
//! log may have one after the other. So what concerns them, the windows and tables of their members, is kept until everything is
//! read; and with such a stage one thread folds all partitions, since a member's table may lie in another partition than its
//! windows.

mod joint_stages;
mod record;
mod source_heads;
mod threads;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

use eadt_core::partition::device_of;
use eadt_core::{FoldOutput, FoldSettings, PartitionFold};
use eadt_schemas::counts::counted;
use eadt_schemas::decode::DecodeError;
use eadt_schemas::v1::{Decision, EfficiencyWindow, WindowKind};
use eadt_schemas::{EventTime, Topic};

use self::joint_stages::OfflineJointStage;
pub use self::record::{RawRecord, RecordBatch, RecordSource, ReplayError, ReplayRecord, ReplaySource};
use self::source_heads::SourceHeads;
use self::threads::ReplayStopped;
use crate::positions::PartitionOffsets;

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
    UnclosedWindows(UnclosedWindows),
}

/// A workload of which a live processor would still hold windows open where the record ends.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct UnclosedWindows {
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

impl fmt::Display for UnclosedWindows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { workload, windows, from, to, sources_behind, log_clock } = self;
        write!(f, "{} of {workload}, {from} to {to}: ", counted(*windows, "window"))?;
        match (sources_behind, log_clock) {
            (0, Some(clock)) => {
                write!(f, "processor.join_grace_seconds have not passed on the log's clock, which is at {clock}")
            }
            (0, None) => f.write_str("processor.join_grace_seconds have not passed on the log's clock"),
            (behind, _) => write!(f, "{} may still have events of the first one", counted(*behind, "live source")),
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
    /// Events as old as their source's last one, or older and sent again.
    pub duplicates: u64,
    /// Table events merged after a larger key.
    pub late_tables: u64,
    /// Events that came after the evaluation of a joint stage that they belonged to.
    pub late_for_power_budget: u64,
}

/// Takes the outputs of a replay.
type Emit<'a> = dyn FnMut(&PartitionOffsets, ReplayOutput) -> Result<(), ReplayError> + 'a;

/// Replays the sources to their ends and passes every output, with the positions of the inputs of its partition, to the callback.
/// Outputs of one partition come in the same order every time; partitions take turns as their threads come along, at most
/// `threads` of them.
///
/// With `idle_grace` off nothing falls idle, so every source ends with its file, and all windows close; otherwise the record of a
/// log ends where it ends, and what was open there stays open, as in the live run, and is named, or is closed by `at_the_end`.
pub fn replay(
    settings: &FoldSettings,
    sources: Vec<Box<dyn ReplaySource>>,
    at_the_end: OpenWindowPolicy,
    threads: usize,
    mut emit: impl FnMut(&PartitionOffsets, ReplayOutput) -> Result<(), ReplayError>,
) -> Result<ReplayCounts, ReplayError> {
    let emit: &mut Emit<'_> = &mut emit;
    let groups =
        groups(sources, settings).into_iter().map(|sources| ReplayGroup { settings: settings.clone(), sources, at_the_end });
    let mut all = GroupResult::default();
    for folded in threads::fold_groups(groups.collect(), threads, emit)? {
        all.append(folded);
    }
    all.open.sort_by(|(a, one), (b, other)| (a.partition, &one.workload).cmp(&(b.partition, &other.workload)));
    for (positions, open) in all.open {
        emit(&positions, ReplayOutput::UnclosedWindows(open))?;
    }
    for stage in all.joint_stages {
        all.counts.late_for_power_budget += stage.fold(|partition, decision| {
            all.counts.decisions += 1;
            emit(&PartitionOffsets::start(partition), ReplayOutput::Decision(Box::new(decision)))
        })?;
    }
    Ok(all.counts)
}

/// Returns whether [`replay`] folds these partitions side by side, if none of their sources mixes them.
pub fn folds_side_by_side(settings: &FoldSettings) -> bool {
    OfflineJointStage::enabled_stages(settings).is_empty()
}

/// Returns the sources of each partition, or all of them together if partitions cannot be folded side by side.
fn groups(sources: Vec<Box<dyn ReplaySource>>, settings: &FoldSettings) -> Vec<Vec<Box<dyn ReplaySource>>> {
    if !folds_side_by_side(settings) || sources.iter().any(|source| source.partition().is_none()) {
        return vec![sources];
    }
    let mut groups: BTreeMap<Option<i32>, Vec<Box<dyn ReplaySource>>> = BTreeMap::new();
    for source in sources {
        groups.entry(source.partition()).or_default().push(source);
    }
    groups.into_values().collect()
}

/// Sources that are folded together, by one thread.
struct ReplayGroup {
    settings: FoldSettings,
    sources: Vec<Box<dyn ReplaySource>>,
    at_the_end: OpenWindowPolicy,
}

/// Result of folding one group of partitions.
#[derive(Default)]
struct GroupResult {
    counts: ReplayCounts,
    open: Vec<(PartitionOffsets, UnclosedWindows)>,
    /// The joint stages, if there is one group only; they fold when everything is read.
    joint_stages: Vec<OfflineJointStage>,
}

impl GroupResult {
    fn append(&mut self, other: Self) {
        let Self { counts, open, joint_stages } = other;
        self.counts.add(&counts);
        self.open.extend(open);
        self.joint_stages.extend(joint_stages);
    }
}

impl ReplayCounts {
    fn add(&mut self, other: &Self) {
        let Self { events, windows, spans, decisions, refused, late, stale, duplicates, late_tables, late_for_power_budget } =
            other;
        self.events += events;
        self.windows += windows;
        self.spans += spans;
        self.decisions += decisions;
        self.refused += refused;
        self.late += late;
        self.stale += stale;
        self.duplicates += duplicates;
        self.late_tables += late_tables;
        self.late_for_power_budget += late_for_power_budget;
    }
}

impl ReplayGroup {
    /// Stops with an error once `stopped` is set.
    fn fold(self, stopped: &AtomicBool, emit: &mut Emit<'_>) -> Result<GroupResult, ReplayError> {
        let Self { settings, sources, at_the_end } = self;
        let mut folded = GroupResult { joint_stages: OfflineJointStage::enabled_stages(&settings), ..GroupResult::default() };
        let mut partitions: BTreeMap<i32, (PartitionFold, PartitionOffsets)> = BTreeMap::new();
        let mut heads = SourceHeads::open(sources, &settings)?;
        let mut out = Vec::new();
        while let Some(i) = heads.next() {
            // A source that is next has a head.
            let Some(record) = heads.head(i) else { break };
            if stopped.load(Ordering::Relaxed) {
                return Err(ReplayStopped.into());
            }
            folded.counts.events += u64::from(!record.is_heartbeat());
            let (partition, positions) = partitions
                .entry(record.partition)
                .or_insert_with(|| (PartitionFold::new(settings.clone()), PartitionOffsets::start(record.partition)));
            partition.fold(&record.input(), &mut out);
            if let Some(offset) = record.offset {
                positions.advance(record.topic, offset);
            }
            for stage in &mut folded.joint_stages {
                stage.add_record(record);
            }
            if !out.is_empty() {
                folded.emit(&mut out, Some(record), positions, emit)?;
            }
            heads.advance(i, &settings)?;
        }
        if settings.idle_grace.is_none() || at_the_end == OpenWindowPolicy::Close {
            for (partition, positions) in partitions.values_mut() {
                partition.finish(&mut out);
                folded.emit(&mut out, None, positions, emit)?;
            }
        }
        for (partition, positions) in partitions.values() {
            folded.open.extend(partition.open_windows().into_iter().map(|open| {
                let held = UnclosedWindows {
                    workload: device_of(open.workload).unwrap_or(open.workload).to_owned(),
                    windows: open.windows,
                    from: open.from,
                    to: open.to,
                    sources_behind: open.sources_behind as u64,
                    log_clock: partition.clock().stamp(),
                };
                (*positions, held)
            }));
            let tally = partition.tally();
            folded.counts.late += tally.late;
            folded.counts.stale += tally.stale;
            folded.counts.duplicates += tally.duplicates;
            folded.counts.late_tables += tally.late_tables;
        }
        Ok(folded)
    }
}

impl GroupResult {
    fn emit(
        &mut self,
        out: &mut Vec<FoldOutput>,
        record: Option<&ReplayRecord>,
        positions: &PartitionOffsets,
        emit: &mut Emit<'_>,
    ) -> Result<(), ReplayError> {
        for output in out.drain(..) {
            let replayed = match output {
                FoldOutput::Window(window) => {
                    for stage in &mut self.joint_stages {
                        stage.take_window(&window, positions.partition);
                    }
                    match window.kind {
                        WindowKind::Tumbling => self.counts.windows += 1,
                        WindowKind::Span => self.counts.spans += 1,
                    }
                    ReplayOutput::Window(window)
                }
                FoldOutput::Decision(decision) => {
                    self.counts.decisions += 1;
                    ReplayOutput::Decision(decision)
                }
                FoldOutput::Refused(refusal) => {
                    self.counts.refused += 1;
                    let topic = record.map_or(Topic::GpuTelemetry, |record| record.topic);
                    ReplayOutput::Refused { topic, offset: record.and_then(|record| record.offset), refusal }
                }
            };
            emit(positions, replayed)?;
        }
        Ok(())
    }
}
