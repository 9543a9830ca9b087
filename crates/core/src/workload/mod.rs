//! One workload: its sources, its time, its open windows.

mod close;
pub mod report;
pub mod source;
pub mod table;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use eadt_schemas::EventTime;
use eadt_schemas::decode::DecodeError;
use eadt_schemas::v1::{DeadLetterReason, GpuTelemetry, JobLifecycle, Origin, TrainingProgress, Workload};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::controller::{ControllerSettings, ControllerState};
use crate::models::ModelRegistry;
use crate::partition::device_of;
use crate::quota::{OwnerUsage, QuotaOwner, UsageByOwner};
use crate::settings::FoldSettings;
use crate::window::counter::MeteredBoard;
use crate::window::energy::{EnergySample, GpuSums, PendingStep, gauges};
use crate::window::progress::{COUNTERS, ProgressCounters, RankSums};
use crate::window::{SliceEdges, TumblingWindows, is_gap, slice_at, slice_mut};
pub use close::UNASSIGNED;
use report::TrainingReports;
use source::{GpuSource, Liveness, LivenessState, LivenessSummary, NameIndex, RankSource};
use table::{JobRuns, LayoutHistory, LayoutSize, OpenSpan};

/// Spans that one workload may have open, and slice edges that one may have beside its window edges: a job that names a new span
/// with every event must not grow the state without bound.
const MAX_SPANS: usize = 256;
const MAX_SLICE_EDGES: usize = 4_096;
/// Longest log time that telemetry waits for a job without any event, in microseconds.
const START_GRACE: i64 = 60 * crate::settings::SECOND;

/// Position of an event in the log, and its times.
#[derive(Debug, Clone, Copy)]
pub struct LogPosition {
    pub stamp: EventTime,
    /// Event time, not ahead of the stamp if that counts.
    pub merge_time: EventTime,
    /// Log clock, microseconds.
    pub clock: i64,
    /// Its producer sent it again, and the log may have it twice.
    pub is_sent_again: bool,
}

/// Number of sources in a partition, in total and by owner.
#[derive(Debug, Clone, Copy)]
pub struct PartitionUsage<'a> {
    pub sources: usize,
    pub by_owner: &'a UsageByOwner,
}

/// The open windows of one workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenWindows<'a> {
    /// Or [`crate::partition::device_name`] of a device without a workload.
    pub workload: &'a str,
    pub windows: u64,
    /// Start of the first and end of the last.
    pub from: EventTime,
    pub to: EventTime,
    /// Live sources that have not reached the end of the first window.
    pub sources_behind: usize,
}

/// Result of folding one event.
#[derive(Debug, Clone, PartialEq)]
pub enum FoldOutcome {
    Folded,
    Duplicate,
    Refused(DecodeError),
}

/// Counts since the workload's last window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct WindowCounts {
    pub late: u64,
    pub stale: u64,
    pub duplicates: u64,
    pub late_tables: u64,
}

/// A workload's state without its sources.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkloadHead {
    /// `namespace/name`, or [`crate::partition::device_name`] for a device without a workload.
    pub name: Box<str>,
    pub windows: TumblingWindows,
    /// Devices that were shared with other workloads, with the largest number of them, by the end of an open window.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub shared: BTreeMap<EventTime, BTreeMap<Box<str>, u32>>,
    /// End of the last closed window.
    pub closed_through: Option<EventTime>,
    #[serde(rename = "cuts")]
    pub slice_edges: SliceEdges,
    /// Log clock at the first event after a time without live sources.
    pub joined: i64,
    pub runs: JobRuns,
    pub spans: Vec<OpenSpan>,
    pub tables: LayoutHistory,
    /// `None` for the initial state, which is stored as such.
    #[serde(serialize_with = "write_controller", deserialize_with = "read_controller")]
    pub controller: Option<Box<ControllerState>>,
    pub counts: WindowCounts,
    /// Inputs are missing for windows that end up to this time.
    pub gap_until: Option<EventTime>,
    /// Inputs are missing before the next event.
    pub gap_next: bool,
    /// The worst origin so far.
    pub origin: Origin,
    /// Log clock at the last event of any kind.
    #[serde(rename = "heard")]
    pub last_event_clock: i64,
    /// The collector that named the device first, if this is a device without a workload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub found_by: Option<Box<str>>,
    /// The job's training reports; `None` if it sent none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub training: Option<Box<TrainingReports>>,
}

#[expect(clippy::ref_option, reason = "as serde calls it")]
fn write_controller<S: Serializer>(state: &Option<Box<ControllerState>>, to: S) -> Result<S::Ok, S::Error> {
    match state {
        Some(state) => state.serialize(to),
        None => ControllerState::default().serialize(to),
    }
}

fn read_controller<'a, D: Deserializer<'a>>(from: D) -> Result<Option<Box<ControllerState>>, D::Error> {
    let state = ControllerState::deserialize(from)?;
    Ok((state != ControllerState::default()).then(|| Box::new(state)))
}

/// State of a workload. There may be thousands of them for invented GPUs, so fields that most of them lack are boxed.
#[derive(Debug, Clone)]
pub struct WorkloadState {
    pub head: WorkloadHead,
    pub gpus: Vec<GpuSource>,
    pub ranks: Vec<RankSource>,
    gpu_index: NameIndex,
    rank_index: NameIndex,
    /// Sources by name: sums must not depend on the order of arrival.
    gpu_order: Vec<u32>,
    rank_order: Vec<u32>,
    live: usize,
    /// Sources that are silent and expected to speak.
    missing: usize,
    /// The least time that a live rank has reached.
    reached: Option<EventTime>,
    /// Live sources that have not reached the end of the oldest open window.
    behind: usize,
    /// Log clock at which something may change by itself.
    pub due: i64,
    /// Changed since the last commit.
    pub changed: bool,
    /// State blocks that the last commit wrote.
    pub blocks: u32,
    /// Models in force in the partition.
    pub models: Arc<ModelRegistry>,
    /// Decisions for which the workload's model was of no use because it was learned on another board, not counted yet.
    pub of_another_gpu: u64,
}

/// Returns the span that an event turns to from the one that its source is in, `""` for none; `None` if it stays in that. The
/// source's end, or its job's, is in none.
fn next_span<'a>(event: &'a TrainingProgress, span: Option<&str>) -> Option<&'a str> {
    let ends = event.last || event.phase == JobLifecycle::Finished;
    let next = if ends { Some("") } else { event.span.as_deref() };
    next.filter(|next| *next != span.unwrap_or_default())
}

impl WorkloadState {
    pub fn new(name: &str, windows: TumblingWindows, clock: i64) -> Self {
        Self::from_parts(
            WorkloadHead {
                name: name.into(),
                windows,
                shared: BTreeMap::new(),
                closed_through: None,
                slice_edges: SliceEdges::new(),
                joined: clock,
                runs: JobRuns::default(),
                spans: Vec::new(),
                tables: LayoutHistory::default(),
                controller: None,
                counts: WindowCounts::default(),
                gap_until: None,
                gap_next: false,
                origin: Origin::default(),
                last_event_clock: clock,
                found_by: None,
                training: None,
            },
            Vec::new(),
            Vec::new(),
        )
    }

    /// Returns the owner whose quota this workload counts against.
    pub fn quota_owner(&self) -> QuotaOwner<'_> {
        match device_of(&self.head.name) {
            Some(_) => QuotaOwner::Collector(self.head.found_by.as_deref().unwrap_or_default()),
            None => QuotaOwner::of_workload(&self.head.name),
        }
    }

    /// Restores the state from the parts that a commit wrote.
    pub fn from_parts(mut head: WorkloadHead, gpus: Vec<GpuSource>, ranks: Vec<RankSource>) -> Self {
        head.tables = head.tables.with_settings_read_again();
        let mut state = Self {
            head,
            gpus,
            ranks,
            gpu_index: NameIndex::default(),
            rank_index: NameIndex::default(),
            gpu_order: Vec::new(),
            rank_order: Vec::new(),
            live: 0,
            missing: 0,
            reached: None,
            behind: 0,
            due: 0,
            changed: false,
            blocks: 0,
            models: Arc::default(),
            of_another_gpu: 0,
        };
        state.reindex();
        state
    }

    fn reindex(&mut self) {
        let (gpus, ranks) = (&self.gpus, &self.ranks);
        self.gpu_index.clear();
        self.rank_index.clear();
        for i in 0..gpus.len() {
            self.gpu_index.insert(i, |i| (&*gpus[i].device, &*gpus[i].collector));
        }
        for i in 0..ranks.len() {
            self.rank_index.insert(i, |i| (ranks[i].rank, &*ranks[i].collector));
        }
        self.gpu_order = (0..gpus.len() as u32).collect();
        self.gpu_order.sort_by_key(|i| (&gpus[*i as usize].device, &gpus[*i as usize].collector));
        self.rank_order = (0..ranks.len() as u32).collect();
        self.rank_order.sort_by_key(|i| (ranks[*i as usize].rank, &ranks[*i as usize].collector));
        self.recount();
    }

    /// Returns the windows that are open; `None` if there are none.
    pub fn open_windows(&self) -> Option<OpenWindows<'_>> {
        let (from, to) = (*self.head.slice_edges.front()?, *self.head.slice_edges.back()?);
        let pairs = self.head.slice_edges.iter().zip(self.head.slice_edges.iter().skip(1));
        let mut edges: Vec<EventTime> =
            pairs.filter(|(from, to)| !self.is_gap(**from, **to)).map(|(from, _)| self.head.windows.end(*from)).collect();
        edges.dedup();
        Some(OpenWindows { workload: &self.head.name, windows: edges.len() as u64, from, to, sources_behind: self.behind })
    }

    pub fn source_count(&self) -> usize {
        self.gpus.len() + self.ranks.len()
    }

    /// Returns how much of its owner's quota this workload uses.
    pub fn owner_usage(&self) -> OwnerUsage {
        OwnerUsage::of(self.source_count(), self.source_count() * self.head.slice_edges.len())
    }

    fn source_liveness(&self) -> impl Iterator<Item = &Liveness> {
        self.gpus.iter().map(|gpu| &gpu.liveness).chain(self.ranks.iter().map(|rank| &rank.liveness))
    }

    fn source_liveness_mut(&mut self) -> impl Iterator<Item = &mut Liveness> {
        self.gpus.iter_mut().map(|gpu| &mut gpu.liveness).chain(self.ranks.iter_mut().map(|rank| &mut rank.liveness))
    }

    /// Returns the end of the oldest open window.
    fn oldest_edge(&self) -> Option<EventTime> {
        let (first, second) = (*self.head.slice_edges.front()?, *self.head.slice_edges.get(1)?);
        Some(if self.is_gap(first, second) { second } else { self.head.windows.end(first) })
    }

    /// Returns the log clock before which the oldest open window does not close.
    ///
    /// A late source has its grace time. In files, if no source is live, a source that begins or goes on before the window is
    /// over belongs to it. The rest of the window after the last event passes on the log clock.
    fn held_until(&self, settings: &FoldSettings) -> i64 {
        let joined = self.head.joined + settings.join_grace;
        if self.live > 0 || !settings.holds_windows_of_ended() {
            return joined;
        }
        let last_event_clock = self.source_liveness().map(|liveness| liveness.clock).max();
        let last_event_time = self.source_liveness().map(|liveness| liveness.last).max();
        let (Some(edge), Some(clock), Some(last)) = (self.oldest_edge(), last_event_clock, last_event_time) else {
            return joined;
        };
        let left = (edge.micros() - last.micros()).max(0);
        joined.max(clock.saturating_add(left).saturating_add(settings.join_grace))
    }

    fn is_gap(&self, from: EventTime, to: EventTime) -> bool {
        is_gap(self.head.windows, from, to)
    }

    /// Returns the edges of windows between two times.
    fn window_edges(&self, from: EventTime, to: EventTime) -> impl Iterator<Item = EventTime> + use<> {
        let (size, first) = (self.head.windows.size, self.head.windows.end(from));
        (0..).map(move |n| first.plus_micros(n * size)).take_while(move |edge| *edge < to)
    }

    /// Counts live sources and those behind the edge anew.
    fn recount(&mut self) {
        let edge = self.oldest_edge();
        let (mut live, mut behind, mut missing) = (0, 0, 0);
        for liveness in self.source_liveness() {
            missing += usize::from(liveness.is_missing());
            live += usize::from(liveness.is_live());
            behind += usize::from(liveness.is_live() && edge.is_some_and(|edge| liveness.merge_time < edge));
        }
        (self.live, self.behind, self.missing) = (live, behind, missing);
        self.note_reached();
    }

    /// Opens the window of `time`, and those between it and its open neighbours; if these are further away than
    /// [`FoldSettings::longest_silence`], one slice covers all between: a time far ahead costs no more than its own window, and
    /// closes no window of live sources.
    fn open(&mut self, time: EventTime, usage: PartitionUsage<'_>, settings: &FoldSettings) -> Result<(), DecodeError> {
        let windows = self.head.windows;
        let place = self.head.slice_edges.partition_point(|edge| *edge <= time);
        // Nearly always it is open.
        if 0 < place
            && place < self.head.slice_edges.len()
            && !self.is_gap(self.head.slice_edges[place - 1], self.head.slice_edges[place])
        {
            return Ok(());
        }
        if !windows.is_representable(time) {
            let detail = format!("the window of {time} begins or ends at a time that cannot be written");
            return Err(DecodeError { reason: DeadLetterReason::InvalidValue, field: Some("time"), detail });
        }
        // Windows of another alignment may have been closed.
        let closed = self.head.closed_through.unwrap_or(EventTime::MIN);
        let (mut start, mut end) = (windows.start(time).max(closed), windows.end(time));
        if self.head.slice_edges.is_empty() {
            self.head.slice_edges.extend([start, end]);
            self.recount();
            return Ok(());
        }
        // Its open neighbours.
        let before = place.checked_sub(1).map(|i| self.head.slice_edges[i]);
        let after = self.head.slice_edges.get(place).copied();
        start = before.map_or(start, |before| start.max(before));
        end = after.map_or(end, |after| end.min(after));
        let near = |from: EventTime, to: EventTime| to.micros() - from.micros() <= settings.longest_silence();
        let mut new_edges: Vec<EventTime> = Vec::new();
        if let Some(before) = before.filter(|before| near(*before, start)) {
            new_edges.extend(self.window_edges(before, start));
        }
        new_edges.extend((before != Some(start)).then_some(start));
        new_edges.extend((after != Some(end)).then_some(end));
        if let Some(after) = after.filter(|after| near(end, *after)) {
            new_edges.extend(self.window_edges(end, after));
        }
        self.check_sum_quota(self.source_count() * new_edges.len(), settings.max_sums_per_namespace(), usage)?;
        let most = settings.max_open_windows as usize;
        if self.head.slice_edges.len() + new_edges.len() > most {
            let edge = |candidate: &&EventTime| windows.start(**candidate) == **candidate;
            let open = self.head.slice_edges.iter().skip(1).filter(edge).count() + new_edges.len();
            if open > most {
                let detail = format!(
                    "{time} opens the {open}th window of the workload, at most {most} may be open: its other live sources have not \
                     reached the end of the oldest one"
                );
                return Err(DecodeError { reason: DeadLetterReason::StateLimit, field: Some("time"), detail });
            }
        }
        if place == self.head.slice_edges.len() {
            self.head.slice_edges.extend(new_edges);
            return Ok(());
        }
        for new_edge in new_edges.into_iter().rev() {
            self.split_slice(place, new_edge);
        }
        self.recount();
        Ok(())
    }

    /// Continues with other windows: open time gets new slice edges, closed time stays as it is.
    pub fn set_windows(&mut self, windows: TumblingWindows) {
        if self.head.windows == windows {
            return;
        }
        let pairs = self.head.slice_edges.iter().zip(self.head.slice_edges.iter().skip(1));
        let gaps: Vec<_> = pairs.filter(|(from, to)| self.is_gap(**from, **to)).map(|(from, to)| (*from, *to)).collect();
        self.head.windows = windows;
        let (Some(&first), Some(&last)) = (self.head.slice_edges.front(), self.head.slice_edges.back()) else { return };
        let end = windows.end(last.plus_micros(-1));
        if end > last {
            self.head.slice_edges.push_back(end);
        }
        let late_tables = self.head.counts.late_tables;
        let mut edge = windows.end(first);
        while edge < end {
            self.insert_edge(edge);
            // A gap splits only the windows at its ends.
            if let Some((_, to)) = gaps.iter().find(|(from, to)| *from < edge && edge < *to) {
                edge = windows.start(to.plus_micros(-1)).max(edge);
                self.insert_edge(edge);
            }
            edge = edge.plus_micros(windows.size);
        }
        self.head.counts.late_tables = late_tables;
        self.recount();
    }

    /// Forgets the open time before a run if it has no data and none will come: from the edge to the start of a job without
    /// telemetry there is no window.
    fn skip_to(&mut self, start: EventTime) {
        let Some(n) = self.head.slice_edges.iter().position(|edge| *edge == start) else { return };
        let gpus = self.gpus.iter().any(|gpu| gpu.pending.iter().any(|step| step.from < start))
            || self.gpus.iter().any(|gpu| gpu.slices.iter().take(n).any(GpuSums::has_data));
        let ranks = self.ranks.iter().any(|rank| rank.slices.iter().take(n).any(RankSums::has_data));
        let was_live_before =
            |liveness: &Liveness| matches!(liveness.life, LivenessState::Live | LivenessState::Lagging) && liveness.last < start;
        if gpus || ranks || self.source_liveness().any(was_live_before) {
            return;
        }
        self.head.slice_edges.drain(..n);
        self.gpus.iter_mut().for_each(|gpu| drop(gpu.slices.drain(..n.min(gpu.slices.len()))));
        self.ranks.iter_mut().for_each(|rank| drop(rank.slices.drain(..n.min(rank.slices.len()))));
        self.recount();
    }

    /// Cuts the open time at `at`. What was summed across it already is divided by time, and counted, because a replay that
    /// merges in another order would divide it exactly.
    fn insert_edge(&mut self, at: EventTime) {
        let slice_edges = &self.head.slice_edges;
        let i = slice_edges.partition_point(|edge| *edge <= at);
        if i == 0 || i == slice_edges.len() || slice_edges[i - 1] == at {
            return;
        }
        let divided = self.split_slice(i, at);
        self.head.counts.late_tables += u64::from(divided);
    }

    /// Inserts a slice edge. Returns true if it divides amounts that were summed already.
    fn split_slice(&mut self, i: usize, at: EventTime) -> bool {
        self.head.slice_edges.insert(i, at);
        let mut divided = false;
        for gpu in &mut self.gpus {
            if i == 0 {
                gpu.slices.push_front(GpuSums::default());
            } else if gpu.slices.len() >= i {
                let (after, through) = gpu.slices[i - 1].split(at);
                divided |= through;
                gpu.slices.insert(i, after);
            }
        }
        for rank in &mut self.ranks {
            if i == 0 {
                rank.slices.push_front(RankSums::default());
            } else if rank.slices.len() >= i {
                let (after, through) = rank.slices[i - 1].split(at);
                divided |= through;
                rank.slices.insert(i, after);
            }
        }
        divided
    }

    /// Returns the time before which no run or span begins or ends any more: every live rank has passed it. Nothing is settled
    /// while the start of a job may still be reported.
    fn settled_through(&self, clock: i64) -> EventTime {
        match self.reached {
            Some(reached) => reached,
            None if clock - self.head.joined < START_GRACE => EventTime::MIN,
            None => EventTime::MAX,
        }
    }

    fn note_reached(&mut self) {
        self.reached = self.ranks.iter().filter(|rank| rank.liveness.is_live()).map(|rank| rank.liveness.last).min();
    }

    /// Notes that a source begins, wakes or goes on: if none was live, the workload has something to wait for again.
    fn on_source_live(&mut self, clock: i64) {
        if self.live == 0 {
            self.head.joined = clock;
        }
    }

    /// Notes that others were on the device in the sample's window.
    fn note_tenants(&mut self, event: &GpuTelemetry) {
        let Some(tenants) = event.tenants.filter(|tenants| *tenants > 1) else { return };
        let devices = self.head.shared.entry(self.head.windows.end(event.time)).or_default();
        match devices.get_mut(event.device.as_str()) {
            Some(most) => *most = tenants.max(*most),
            None => {
                devices.insert(event.device.as_str().into(), tenants);
            }
        }
    }

    fn note_gap(&mut self, time: EventTime) {
        if self.head.gap_next {
            self.head.gap_next = false;
            self.head.gap_until = Some(self.head.windows.end(time));
        }
    }

    /// Keeps `live`, `behind` and `missing` right after one source's liveness changed.
    fn on_liveness_change(&mut self, before: Option<LivenessSummary>, after: LivenessSummary) {
        let edge = self.oldest_edge();
        let is_behind = |summary: LivenessSummary| summary.is_live && edge.is_some_and(|edge| summary.merge_time < edge);
        if let Some(before) = before {
            self.live -= usize::from(before.is_live);
            self.behind -= usize::from(is_behind(before));
            self.missing -= usize::from(before.is_missing);
        }
        self.live += usize::from(after.is_live);
        self.behind += usize::from(is_behind(after));
        self.missing += usize::from(after.is_missing);
        if let Some(due) = after.next_change_clock {
            self.due = self.due.min(due);
        }
    }

    fn is_late(&self, time: EventTime) -> bool {
        self.head.closed_through.is_some_and(|closed| time < closed)
    }

    fn count_late(&mut self, time: EventTime) -> FoldOutcome {
        self.head.counts.late += 1;
        let closed = self.head.closed_through.unwrap_or_default();
        let detail = format!("time={time} lies in a window that is closed; windows up to {closed} are");
        FoldOutcome::Refused(DecodeError { reason: DeadLetterReason::Late, field: Some("time"), detail })
    }

    /// Counts an event that is older than the last one of its source. One that was sent again was most likely folded before.
    fn count_older(&mut self, time: EventTime, last: EventTime, is_sent_again: bool) -> FoldOutcome {
        if is_sent_again {
            self.head.counts.duplicates += 1;
            return FoldOutcome::Duplicate;
        }
        self.head.counts.stale += 1;
        let detail = format!("time={time} is not newer than the source's last event at {last}");
        FoldOutcome::Refused(DecodeError { reason: DeadLetterReason::Stale, field: Some("time"), detail })
    }

    fn check_source_quota(&self, usage: PartitionUsage<'_>, settings: &FoldSettings) -> Result<(), DecodeError> {
        let tenant = self.quota_owner();
        let refused = |whose: &dyn std::fmt::Display, cap: usize, setting: &str| {
            let detail =
                format!("a new source is refused: the cap of {cap} sources of the {whose} is reached (processor.{setting})");
            Err(DecodeError { reason: DeadLetterReason::StateLimit, field: None, detail })
        };
        if self.source_count() >= settings.max_sources_per_workload {
            return refused(&"workload", settings.max_sources_per_workload, "max_sources_per_workload");
        }
        if usage.by_owner.usage_of(tenant).sources >= settings.max_sources_per_namespace {
            return refused(&tenant, settings.max_sources_per_namespace, "max_sources_per_namespace");
        }
        if usage.sources >= settings.max_sources {
            return refused(&"partition", settings.max_sources, "max_sources");
        }
        self.check_sum_quota(self.head.slice_edges.len(), settings.max_sums_per_namespace() / 2, usage)
    }

    /// Returns an error if the owner has no quota for so many more sums. A source has sums for each slice whose two ends it
    /// reports. Otherwise few events of many sources could take memory for all slices that one of them has made. New sources, and
    /// slice edges within windows, get half of the quota: windows go on to open, and with that to close.
    fn check_sum_quota(&self, more: usize, most: usize, usage: PartitionUsage<'_>) -> Result<(), DecodeError> {
        let tenant = self.quota_owner();
        if more == 0 || usage.by_owner.usage_of(tenant).sums.saturating_add(more) <= most {
            return Ok(());
        }
        let detail = format!(
            "sources times slices of open windows of the {tenant} would be more than {most} \
             (by processor.max_sources_per_namespace): its windows wait for sources that lag, or runs and spans cut them"
        );
        Err(DecodeError { reason: DeadLetterReason::StateLimit, field: None, detail })
    }

    /// Returns an error unless the spans and edges that are kept leave room for those that an event of this source adds.
    fn check_edge_quota(
        &self,
        source: Option<usize>,
        event: &TrainingProgress,
        usage: PartitionUsage<'_>,
        settings: &FoldSettings,
    ) -> Result<(), DecodeError> {
        let refused = |field, detail| Err(DecodeError { reason: DeadLetterReason::StateLimit, field: Some(field), detail });
        let turn = next_span(event, source.and_then(|i| self.ranks[i].span.as_deref()));
        if turn.is_none() && event.phase == JobLifecycle::Progress {
            return Ok(());
        }
        if self.head.spans.len() >= MAX_SPANS && turn.is_some_and(|next| !next.is_empty()) {
            return refused(
                "span",
                format!("the workload has {MAX_SPANS} spans in its open windows, more are not kept: name fewer, or longer ones"),
            );
        }
        let most = MAX_SLICE_EDGES + settings.max_open_windows as usize;
        if self.head.slice_edges.len() >= most {
            return refused(
                "time",
                format!("runs and spans begin and end at {most} times in the workload's open windows, more are not kept"),
            );
        }
        // Starts of the same instant, or of closed time, do not add an edge each.
        if event.phase == JobLifecycle::Started && self.head.runs.count() >= MAX_SLICE_EDGES {
            return refused(
                "phase",
                format!("{MAX_SLICE_EDGES} runs end in the workload's open windows or after, more are not kept"),
            );
        }
        self.check_sum_quota(self.source_count() + 1, settings.max_sums_per_namespace() / 2, usage)
    }

    /// Folds one sample.
    pub fn fold_telemetry(
        &mut self,
        event: &GpuTelemetry,
        place: LogPosition,
        usage: PartitionUsage<'_>,
        settings: &FoldSettings,
    ) -> FoldOutcome {
        let gpus = &self.gpus;
        let found = self.gpu_index.find(&(&*event.device, &*event.collector), |i| {
            *gpus[i].device == *event.device && *gpus[i].collector == *event.collector
        });
        if let Some(i) = found {
            let liveness = &mut self.gpus[i].liveness;
            if event.time <= liveness.last {
                if event.time < liveness.last {
                    let last = liveness.last;
                    return self.count_older(event.time, last, place.is_sent_again);
                }
                self.head.counts.duplicates += 1;
                if event.last && liveness.life != LivenessState::Ended {
                    let before = liveness.summary(settings);
                    liveness.mark_ended();
                    let after = liveness.summary(settings);
                    self.on_liveness_change(Some(before), after);
                }
                return FoldOutcome::Duplicate;
            }
        } else if let Err(refusal) = self.check_source_quota(usage, settings) {
            return FoldOutcome::Refused(refusal);
        }
        let late = self.is_late(event.time);
        if !late && let Err(refusal) = self.open(event.time, usage, settings) {
            return FoldOutcome::Refused(refusal);
        }
        self.note_gap(event.time);
        if !late {
            self.note_tenants(event);
        }
        self.head.origin = self.head.origin.max(event.origin);
        let mut sample = EnergySample::from_event(event);
        if settings.checks_power() {
            sample.leave_out_impossible_power(event.meter);
        }
        let settled = self.settled_through(place.clock);
        self.on_source_live(place.clock);
        let noted = (!late).then(|| gauges(event));
        if let Some(i) = found {
            let gpu = &mut self.gpus[i];
            let before = gpu.liveness.summary(settings);
            gpu.meter = event.meter;
            let mut step = PendingStep::without_step(sample.time, event.origin, noted);
            let life = gpu.liveness.life_at(event.time, settings);
            if settings.checks_counters() {
                let board = MeteredBoard { meter: event.meter, limit_watts: event.power_limit_watts };
                step.contradicted = gpu.check_counter(&mut sample, life, &board, &self.head.slice_edges, settings);
            }
            step.power = gpu.segment_since_last(&sample, life, &self.head.slice_edges, settings);
            if matches!(life, LivenessState::Live | LivenessState::Lagging) {
                step.from = gpu.sample.time;
            }
            gpu.sample = sample;
            gpu.add_step(&mut step, &self.head.slice_edges, settled, settings.power_gap);
            let known = gpu.awaited_from(settings.power_gap).filter(|_| !event.last);
            let merge_time = known.map_or(place.merge_time, |known| known.min(place.merge_time));
            gpu.liveness.record_event(event.time, merge_time, place.stamp, place.clock, settings);
            if event.last {
                gpu.liveness.mark_ended();
            }
            let after = gpu.liveness.summary(settings);
            self.on_liveness_change(Some(before), after);
        } else {
            self.add_gpu(event, sample, place, settings);
            let mut step = PendingStep::without_step(sample.time, event.origin, noted);
            if let Some(gpu) = self.gpus.last_mut() {
                gpu.add_step(&mut step, &self.head.slice_edges, settled, settings.power_gap);
            }
        }
        if late { self.count_late(event.time) } else { FoldOutcome::Folded }
    }

    fn has_device(&self, device: &str) -> bool {
        self.gpu_order.binary_search_by(|i| (*self.gpus[*i as usize].device).cmp(device)).is_ok()
    }

    fn add_gpu(&mut self, event: &GpuTelemetry, sample: EnergySample, place: LogPosition, settings: &FoldSettings) {
        if !self.has_device(&event.device) {
            if settings.expects_silent_sources() {
                // It may be in the place of one that fell silent.
                self.forget_missing_devices(1, event.time, |gpu| gpu.meter == event.meter);
            } else {
                self.forget_missing(event.time);
            }
        }
        let mut liveness = Liveness::new(event.time, place.merge_time, place.clock);
        liveness.record_event(event.time, place.merge_time, place.stamp, place.clock, settings);
        if event.last {
            liveness.mark_ended();
        }
        let i = self.gpus.len();
        if i == 0 {
            self.gpus.reserve_exact(1);
        }
        self.gpus.push(GpuSource::new(&event.device, &event.collector, event.meter, liveness, sample));
        let gpus = &self.gpus;
        self.gpu_index.insert(i, |i| (&*gpus[i].device, &*gpus[i].collector));
        let key = |i: u32| (&gpus[i as usize].device, &gpus[i as usize].collector);
        let (Ok(at) | Err(at)) = self.gpu_order.binary_search_by(|other| key(*other).cmp(&key(i as u32)));
        self.gpu_order.insert(at, i as u32);
        self.on_liveness_change(None, liveness.summary(settings));
    }

    /// Folds one progress event.
    pub fn fold_progress(
        &mut self,
        event: &TrainingProgress,
        place: LogPosition,
        usage: PartitionUsage<'_>,
        settings: &FoldSettings,
    ) -> FoldOutcome {
        let ranks = &self.ranks;
        let found = self
            .rank_index
            .find(&(event.rank, &*event.collector), |i| ranks[i].rank == event.rank && *ranks[i].collector == *event.collector);
        if let Some(i) = found {
            let last = self.ranks[i].liveness.last;
            if event.time < last {
                return self.count_older(event.time, last, place.is_sent_again);
            }
        } else if let Err(refusal) = self.check_source_quota(usage, settings) {
            return FoldOutcome::Refused(refusal);
        }
        if let Err(refusal) = self.check_edge_quota(found, event, usage, settings) {
            return FoldOutcome::Refused(refusal);
        }
        if let Some(i) = found.filter(|i| self.ranks[*i].liveness.last == event.time) {
            return self.same_instant(i, event, place, settings);
        }
        let late = self.is_late(event.time);
        if !late && let Err(refusal) = self.open(event.time, usage, settings) {
            return FoldOutcome::Refused(refusal);
        }
        self.note_gap(event.time);
        self.head.origin = self.head.origin.max(event.origin);
        self.on_source_live(place.clock);
        let was_finished = self.head.runs.is_finished();
        let again = self.mark_phase(event, settings);
        if again {
            self.head.training = None;
        }
        let job_start = self.head.runs.other_job_start().filter(|_| settings.recognises_jobs_begun_anew());
        let count = ProgressCounters::from_event(event);
        // A job that is begun anew without having finished was restarted.
        let mut fell = again && !was_finished;
        let i = if let Some(i) = found {
            let rank = &mut self.ranks[i];
            let (before, life) = (rank.liveness.summary(settings), rank.liveness.life_at(event.time, settings));
            if again {
                // A new job's counters begin anew; nothing of it was done before.
                (rank.done, rank.counters) = ([0.0; COUNTERS], Default::default());
                rank.stepped = event.time;
            } else if job_start.is_some_and(|start| rank.is_first_after(start, event.time)) {
                // Another source has reported that another job began.
                rank.done = [0.0; COUNTERS];
            }
            fell |= rank.count_progress(&count, life, &self.head.slice_edges, event.origin, settings);
            let merge_time = rank.known_until(event, place, settings);
            rank.liveness.record_event(event.time, merge_time, place.stamp, place.clock, settings);
            let after = rank.liveness.summary(settings);
            self.on_liveness_change(Some(before), after);
            i
        } else {
            self.add_rank(event, &count, place, settings)
        };
        let rank = &mut self.ranks[i];
        rank.scope = event.scope;
        rank.remaining_seconds = event.remaining_seconds.or(rank.remaining_seconds);
        rank.checkpoint = event.checkpoint_time.or(rank.checkpoint);
        self.mark_span(i, event, settings);
        self.note_reached();
        if late {
            return self.count_late(event.time);
        }
        if let Some(slice_index) = slice_at(&self.head.slice_edges, event.time) {
            slice_mut(&mut self.ranks[i].slices, slice_index).count_event(event, fell);
        }
        self.note_report(event);
        FoldOutcome::Folded
    }

    /// Records the training report in an event of an open window.
    fn note_report(&mut self, event: &TrainingProgress) {
        if report::reports_training(event) && slice_at(&self.head.slice_edges, event.time).is_some() {
            let end = self.head.windows.end(event.time);
            self.head.training.get_or_insert_default().add(end, event);
        }
    }

    /// Folds a second event of one instant: its marks count, its counters only if the first had none.
    fn same_instant(&mut self, i: usize, event: &TrainingProgress, place: LogPosition, settings: &FoldSettings) -> FoldOutcome {
        let before = self.ranks[i].clone();
        let runs = self.head.runs.clone();
        if self.mark_phase(event, settings) && settings.recognises_jobs_begun_anew() {
            self.head.training = None;
            self.ranks[i].done = [0.0; COUNTERS];
        }
        let mut count = ProgressCounters::from_event(event);
        let rank = &mut self.ranks[i];
        let liveness = rank.liveness.summary(settings);
        for (c, memory) in rank.counters.iter().enumerate() {
            let (total, rate) = memory.reported_at(event.time);
            count.totals[c] = count.totals[c].filter(|_| !total);
            count.rates[c] = count.rates[c].filter(|_| !rate);
        }
        // Until this instant, the only silence of the source is the one that its first event reported.
        let fell = rank.count_progress(&count, LivenessState::Live, &self.head.slice_edges, event.origin, settings);
        if fell && let Some(slice_index) = slice_at(&self.head.slice_edges, event.time) {
            slice_mut(&mut rank.slices, slice_index).fell = true;
        }
        rank.liveness.merge_time = rank.liveness.merge_time.max(rank.known_until(event, place, settings));
        let after = rank.liveness.summary(settings);
        self.on_liveness_change(Some(liveness), after);
        self.mark_span(i, event, settings);
        self.note_reached();
        let rank = &self.ranks[i];
        let same = before.counters == rank.counters && before.span == rank.span && before.liveness == rank.liveness;
        let reported = report::reports_training(event).then(|| self.head.training.clone());
        self.note_report(event);
        let silent = reported.is_none_or(|reported| self.head.training == reported);
        if same && silent && runs == self.head.runs {
            self.head.counts.duplicates += 1;
            return FoldOutcome::Duplicate;
        }
        FoldOutcome::Folded
    }

    fn add_rank(
        &mut self,
        event: &TrainingProgress,
        count: &ProgressCounters,
        place: LogPosition,
        settings: &FoldSettings,
    ) -> usize {
        let mut liveness = Liveness::new(event.time, place.merge_time, place.clock);
        liveness.record_event(event.time, place.merge_time, place.stamp, place.clock, settings);
        let i = self.ranks.len();
        let mut rank = RankSource {
            rank: event.rank,
            collector: event.collector.as_str().into(),
            scope: event.scope,
            liveness,
            counters: Default::default(),
            stepped: event.time,
            done: [0.0; COUNTERS],
            slices: VecDeque::new(),
            unassigned: [0.0; COUNTERS],
            span: None,
            names_spans: false,
            remaining_seconds: None,
            checkpoint: None,
        };
        rank.count_progress(count, LivenessState::Live, &self.head.slice_edges, event.origin, settings);
        self.ranks.push(rank);
        let ranks = &self.ranks;
        self.rank_index.insert(i, |i| (ranks[i].rank, &*ranks[i].collector));
        let key = |i: u32| (ranks[i as usize].rank, &ranks[i as usize].collector);
        let (Ok(at) | Err(at)) = self.rank_order.binary_search_by(|other| key(*other).cmp(&key(i as u32)));
        self.rank_order.insert(at, i as u32);
        self.on_liveness_change(None, liveness.summary(settings));
        i
    }

    /// Begins and ends runs at slice edges. Returns true if a new job begins after a finished one.
    fn mark_phase(&mut self, event: &TrainingProgress, settings: &FoldSettings) -> bool {
        match event.phase {
            JobLifecycle::Progress => false,
            JobLifecycle::Started => {
                self.insert_edge(event.time);
                self.forget_missing(event.time);
                let first = !self.head.runs.is_declared();
                let begins_anew = settings.recognises_jobs_begun_anew() && self.begins_anew(event);
                let again = self.head.runs.start(event.time, begins_anew);
                if settings.align_to_run && (first || again) {
                    self.set_windows(TumblingWindows { origin: event.time, ..self.head.windows });
                    self.skip_to(event.time);
                }
                again
            }
            JobLifecycle::Finished => {
                self.insert_edge(event.time);
                self.head.runs.finish(event.time);
                false
            }
        }
    }

    /// Returns whether `started` is that of another job than the one whose steps were counted in the present run: rank 0's, without
    /// a counter above 0. A job that goes on from a checkpoint has one, in this event or in one of the same time.
    fn begins_anew(&self, event: &TrainingProgress) -> bool {
        let counters = [event.samples_total, event.tokens_total, event.steps_total];
        let of_rank = || self.ranks.iter().filter(|rank| rank.rank == 0);
        let goes_on = counters.iter().flatten().any(|count| *count > 0.0)
            || of_rank().any(|rank| rank.counters.iter().any(|memory| memory.counts_from(event.time)));
        let run = self.head.runs.last_start();
        let in_run = |rank: &&RankSource| run.is_none_or(|start| start <= rank.liveness.last);
        event.rank == 0 && !goes_on && of_rank().filter(in_run).any(|rank| rank.done.iter().any(|done| *done > 0.0))
    }

    /// Begins and ends spans at slice edges. The end of a source, or of its job, ends its span.
    fn mark_span(&mut self, i: usize, event: &TrainingProgress, settings: &FoldSettings) {
        if let Some(next) = next_span(event, self.ranks[i].span.as_deref()) {
            self.insert_edge(event.time);
            let rank = &mut self.ranks[i];
            if rank.span.is_some() {
                let open = self.head.spans.iter_mut().rev();
                for span in open.filter(|s| s.end.is_none() && s.rank == rank.rank && s.collector == rank.collector) {
                    span.end = Some(event.time);
                }
            }
            if !next.is_empty() {
                rank.names_spans = true;
                self.head.spans.push(OpenSpan {
                    rank: rank.rank,
                    collector: rank.collector.clone(),
                    name: next.into(),
                    start: event.time,
                    end: None,
                    totals: crate::window::summary::IntervalTotals::default(),
                    gap: false,
                });
            }
            rank.span = (!next.is_empty()).then(|| next.into());
        }
        let liveness = &mut self.ranks[i].liveness;
        if event.last && liveness.life != LivenessState::Ended {
            let before = liveness.summary(settings);
            liveness.mark_ended();
            let after = liveness.summary(settings);
            self.on_liveness_change(Some(before), after);
        }
    }

    /// Folds one event of the layout.
    pub fn fold_layout(&mut self, event: &Workload, declared: Option<ControllerSettings>, settings: &FoldSettings) {
        let before = self.head.tables.newest().map(LayoutSize::of);
        let renewed = self.head.tables.put(event, declared);
        match before.filter(|_| renewed) {
            Some(before) if settings.expects_silent_sources() => self.forget_beyond(LayoutSize::of(event), before, event.time),
            Some(_) => self.forget_missing(event.time),
            None => {}
        }
        self.head.origin = self.head.origin.max(event.origin);
    }

    /// Forgets the silent sources for which a smaller layout has no place. A layout of the same size, as one of another power cap,
    /// clock or precision, leaves all of them expected.
    fn forget_beyond(&mut self, now: LayoutSize, before: LayoutSize, time: EventTime) {
        if self.missing == 0 {
            return;
        }
        if now.has_fewer_gpus(before) {
            let counts = |gpu: &GpuSource| gpu.meter.is_of_gpu();
            let places = now.gpus.map_or(0, |gpus| (gpus as usize).saturating_sub(self.count_live_devices(counts)));
            let silent = self.missing_devices(counts).len();
            self.forget_missing_devices(silent.saturating_sub(places), time, counts);
            self.forget_missing_devices(usize::MAX, time, |gpu| !counts(gpu));
        }
        if let Some(processes) = now.processes.filter(|_| now.has_fewer_processes(before)) {
            self.ranks.iter_mut().filter(|rank| rank.rank >= processes).for_each(|rank| rank.liveness.give_up(time));
        }
        self.recount();
    }

    /// Returns the number of devices that a live source reports, among those that `of` picks.
    fn count_live_devices(&self, of: impl Fn(&GpuSource) -> bool) -> usize {
        let reports = |gpu: &GpuSource| matches!(gpu.liveness.life, LivenessState::Live | LivenessState::Lagging);
        let order = self.gpu_order.iter().map(|i| &self.gpus[*i as usize]).filter(|gpu| of(gpu) && reports(gpu));
        let mut devices: Vec<&str> = order.map(|gpu| &*gpu.device).collect();
        devices.dedup();
        devices.len()
    }

    /// Returns the time of the last event of each device whose sources are all silent, and one of them expected, among those that
    /// `of` picks; and the first and the last of its sources in the order of the devices.
    fn missing_devices(&self, of: impl Fn(&GpuSource) -> bool) -> Vec<(EventTime, usize, usize)> {
        let source = |i: &u32| &self.gpus[*i as usize];
        let is_silent = |gpu: &GpuSource| matches!(gpu.liveness.life, LivenessState::Idle | LivenessState::Ended);
        let mut next = 0;
        let mut silent = Vec::new();
        for sources in self.gpu_order.chunk_by(|a, b| source(a).device == source(b).device) {
            let first = next;
            next += sources.len();
            let is_expected = sources.iter().map(source).any(|gpu| gpu.liveness.is_missing() && of(gpu));
            if is_expected && sources.iter().map(source).all(is_silent) {
                let last = sources.iter().map(|i| source(i).liveness.last).max().unwrap_or_default();
                silent.push((last, first, next - 1));
            }
        }
        silent
    }

    /// Forgets so many silent devices, those with the oldest last events first, among those that `of` picks: they are not expected
    /// back.
    fn forget_missing_devices(&mut self, most: usize, time: EventTime, of: impl Fn(&GpuSource) -> bool) {
        if self.missing == 0 || most == 0 {
            return;
        }
        let mut silent = self.missing_devices(of);
        if most < silent.len() {
            silent.select_nth_unstable(most);
            silent.truncate(most);
        }
        for (_, first, last) in silent {
            for i in &self.gpu_order[first..=last] {
                self.gpus[*i as usize].liveness.give_up(time);
            }
        }
        self.recount();
    }

    /// Forgets silent devices and ranks, which are not expected back after the job began.
    pub fn forget_missing(&mut self, time: EventTime) {
        if self.missing > 0 {
            self.source_liveness_mut().for_each(|liveness| liveness.give_up(time));
            self.missing = 0;
        }
    }

    /// Advances the log clock to `due` or past it: sources fall silent, dead ones are forgotten.
    pub fn advance_clock(&mut self, clock: i64, settings: &FoldSettings) {
        for liveness in self.source_liveness_mut() {
            liveness.advance_clock(clock, settings);
        }
        let dead = |liveness: &Liveness| !liveness.is_live() && clock - liveness.clock >= settings.retention;
        if self.source_liveness().any(dead) {
            self.gpus.retain(|gpu| !dead(&gpu.liveness) || !gpu.pending.is_empty() || gpu.slices.iter().any(GpuSums::has_data));
            self.ranks.retain(|rank| !dead(&rank.liveness) || rank.slices.iter().any(RankSums::has_data));
            self.reindex();
        } else {
            self.recount();
        }
        self.set_due(clock, settings);
    }

    fn set_due(&mut self, clock: i64, settings: &FoldSettings) {
        let mut due = i64::MAX;
        for liveness in self.source_liveness() {
            // After the grace only forgetting is left.
            due = due.min(liveness.next_change_clock(settings).unwrap_or(liveness.clock + settings.retention));
        }
        if !self.head.slice_edges.is_empty() {
            let held = self.held_until(settings);
            if held > clock {
                due = due.min(held);
            }
        }
        if self.source_count() == 0 && self.head.tables.is_empty() {
            due = due.min(self.head.last_event_clock + settings.retention);
        }
        self.due = due.max(clock + 1);
    }

    /// Returns whether nothing is left that a later event could need.
    pub fn is_forgettable(&self, clock: i64, settings: &FoldSettings) -> bool {
        self.source_count() == 0
            && self.head.slice_edges.is_empty()
            && self.head.tables.is_empty()
            && clock - self.head.last_event_clock >= settings.retention
    }
}
