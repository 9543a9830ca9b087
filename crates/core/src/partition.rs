//! The fold of one partition: each input record, in merged order, into state and outputs.

use std::collections::BTreeSet;
use std::sync::Arc;

use eadt_models::published::UnusableModel;
use eadt_schemas::decode::{DecodableEvent, DecodeError};
use eadt_schemas::v1::{
    Actuation, DeadLetterReason, Decision, EfficiencyWindow, GpuTelemetry, Model, TrainingProgress, Workload,
};
use eadt_schemas::{EventTime, Topic};
use serde::{Deserialize, Serialize};

use crate::clock::LogClock;
use crate::controller::ControllerSettings;
use crate::models::{self, ModelRegistry};
use crate::quota::{QuotaOwner, UsageByOwner};
use crate::settings::FoldSettings;
use crate::window::TumblingWindows;
use crate::workload::source::NameIndex;
use crate::workload::{FoldOutcome, LogPosition, OpenWindows, PartitionUsage, WorkloadState};

/// A decoded record.
#[derive(Debug, Clone, Copy)]
pub enum InputEvent<'a> {
    Telemetry(&'a GpuTelemetry),
    Progress(&'a TrainingProgress),
    Workload(&'a Workload),
    /// A tombstone in the workloads topic.
    WorkloadGone,
    Actuation(&'a Actuation),
    Model(&'a Model),
    /// A tombstone in the models topic.
    ModelGone,
    Heartbeat,
    /// It could not be decoded.
    Refused(&'a DecodeError),
}

impl InputEvent<'_> {
    /// Returns the event time; heartbeats, tombstones and undecodable records have none.
    pub fn time(&self) -> Option<EventTime> {
        match self {
            Self::Telemetry(event) => Some(event.time),
            Self::Progress(event) => Some(event.time),
            Self::Workload(event) => Some(event.time),
            Self::Actuation(event) => Some(event.time),
            Self::Model(event) => Some(event.time),
            Self::WorkloadGone | Self::ModelGone | Self::Heartbeat | Self::Refused(_) => None,
        }
    }
}

/// One record of an input.
#[derive(Debug, Clone, Copy)]
pub struct InputRecord<'a> {
    pub topic: Topic,
    pub stamp: EventTime,
    /// The record's key, if it is UTF-8; `None` is not checked against the event.
    pub key: Option<&'a str>,
    /// Its producer sent it again, and the log may have it twice (`envelope::header::SENT_AGAIN`).
    pub is_sent_again: bool,
    pub event: InputEvent<'a>,
}

/// An output of the fold.
#[derive(Debug, Clone, PartialEq)]
pub enum FoldOutput {
    Window(Box<EfficiencyWindow>),
    Decision(Box<Decision>),
    /// The record just folded goes to the dead letters.
    Refused(DecodeError),
}

/// Counts over the life of this value, for metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PartitionTally {
    pub events: u64,
    pub duplicates: u64,
    pub late: u64,
    pub stale: u64,
    pub late_tables: u64,
    pub heartbeats: u64,
    /// Models that came into force.
    pub models: u64,
    pub models_ignored: ModelsIgnored,
}

/// Counts of models without effect here, by reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ModelsIgnored {
    /// Number of models in a format that this release does not know.
    pub version: u64,
    /// Number of models with missing or impossible figures.
    pub damaged: u64,
    /// Older than the one in force.
    pub older: u64,
    /// Decisions whose workload has another board than its model was learned on.
    pub gpu: u64,
}

/// The part of a partition's state that belongs to no workload.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PartitionHead {
    pub clock: LogClock,
    /// The largest key merged so far.
    pub merged: Option<EventTime>,
}

const DEVICE_PREFIX: &str = "gpus//";

/// Returns the name under which a device without a workload is kept. A workload's name has one slash, so the two never meet.
pub fn device_name(device: &str) -> String {
    format!("{DEVICE_PREFIX}{device}")
}

/// Returns the device of such a name.
pub fn device_of(name: &str) -> Option<&str> {
    name.strip_prefix(DEVICE_PREFIX)
}

/// State of one partition.
#[derive(Debug)]
pub struct PartitionFold {
    settings: FoldSettings,
    pub(crate) head: PartitionHead,
    /// Places are reused; `None` is free.
    pub(crate) workloads: Vec<Option<WorkloadState>>,
    free: Vec<usize>,
    index: NameIndex,
    sources: usize,
    /// Number of sources that a commit has written.
    pub(crate) written_sources: usize,
    usage_by_owner: UsageByOwner,
    /// No workload is due before this log clock.
    due: i64,
    tally: PartitionTally,
    pub(crate) changed: Vec<usize>,
    pub(crate) models: Arc<ModelRegistry>,
    /// Names of models that came or went since the last commit.
    pub(crate) changed_models: BTreeSet<String>,
    /// Names of workloads that are forgotten, with the number of their state blocks: to be deleted.
    pub(crate) forgotten: Vec<(Box<str>, u32)>,
    device_key: String,
}

impl PartitionFold {
    pub fn new(settings: FoldSettings) -> Self {
        Self {
            settings,
            head: PartitionHead::default(),
            workloads: Vec::new(),
            free: Vec::new(),
            index: NameIndex::default(),
            sources: 0,
            written_sources: 0,
            usage_by_owner: UsageByOwner::default(),
            due: i64::MAX,
            tally: PartitionTally::default(),
            changed: Vec::new(),
            models: Arc::default(),
            changed_models: BTreeSet::new(),
            forgotten: Vec::new(),
            device_key: String::new(),
        }
    }

    pub fn settings(&self) -> &FoldSettings {
        &self.settings
    }

    pub fn tally(&self) -> PartitionTally {
        self.tally
    }

    /// Returns the number of workloads, devices without one included, and of sources.
    pub fn workload_and_source_counts(&self) -> (usize, usize) {
        (self.workloads.len() - self.free.len(), self.sources)
    }

    /// Returns the number of sources that no commit has written yet. Those that were forgotten since make it smaller.
    pub fn new_sources(&self) -> usize {
        self.sources.saturating_sub(self.written_sources)
    }

    pub fn clock(&self) -> LogClock {
        self.head.clock
    }

    /// Returns the merge key of an event with this time and stamp.
    pub fn merge_key(&self, time: EventTime, stamp: EventTime) -> EventTime {
        merge_key(time, stamp, self.settings.max_future)
    }

    pub(crate) fn insert_restored(&mut self, mut state: WorkloadState) {
        state.set_windows(TumblingWindows { size: self.settings.window, ..state.head.windows });
        if device_of(&state.head.name).is_some() && state.head.found_by.is_none() {
            // Written by a release that did not note it.
            state.head.found_by = state.gpus.first().map(|gpu| gpu.collector.clone());
        }
        self.sources += state.source_count();
        self.due = self.due.min(state.due);
        self.insert(state);
    }

    fn insert(&mut self, mut state: WorkloadState) -> usize {
        state.models = self.models.clone();
        self.usage_by_owner.add_workload(state.quota_owner(), state.owner_usage());
        let i = if let Some(i) = self.free.pop() {
            self.workloads[i] = Some(state);
            i
        } else {
            self.workloads.push(Some(state));
            self.workloads.len() - 1
        };
        let workloads = &self.workloads;
        self.index.insert(i, |i| name_at(workloads, i));
        i
    }

    fn find(&self, name: &str) -> Option<usize> {
        let workloads = &self.workloads;
        self.index.find(&name, |i| name_at(workloads, i) == name)
    }

    fn find_or_add(&mut self, workload: &str) -> Result<usize, DecodeError> {
        match self.find(workload) {
            Some(i) => Ok(i),
            None => self.add(workload, QuotaOwner::of_workload(workload)),
        }
    }

    fn add(&mut self, name: &str, tenant: QuotaOwner<'_>) -> Result<usize, DecodeError> {
        let refused = |whose: &dyn std::fmt::Display, cap: usize, setting: &str| {
            let detail = format!(
                "workload {name:?} is refused: the cap of {cap} workloads of the {whose} is reached (processor.{setting})"
            );
            Err(DecodeError { reason: DeadLetterReason::StateLimit, field: None, detail })
        };
        let cap = self.settings.max_workloads_per_namespace;
        if self.usage_by_owner.usage_of(tenant).workloads >= cap {
            return refused(&tenant, cap, "max_workloads_per_namespace");
        }
        let cap = self.settings.max_workloads;
        if self.workload_and_source_counts().0 >= cap {
            return refused(&"partition", cap, "max_workloads");
        }
        let windows = TumblingWindows { size: self.settings.window, origin: EventTime::from_micros(0) };
        let mut state = WorkloadState::new(name, windows, self.head.clock.elapsed());
        if let QuotaOwner::Collector(collector) = tenant {
            state.head.found_by = Some(collector.into());
        }
        Ok(self.insert(state))
    }

    /// Marks that inputs are missing from here on: windows that hold the next event of a known workload get `gap`.
    pub fn mark_gap(&mut self) {
        for (i, state) in self.workloads.iter_mut().enumerate() {
            if let Some(state) = state {
                state.head.gap_next = true;
                mark_changed(&mut self.changed, state, i);
            }
        }
    }

    /// Folds the next record of the merged order.
    pub fn fold(&mut self, input: &InputRecord<'_>, out: &mut Vec<FoldOutput>) {
        let from = out.len();
        self.fold_unchecked(input, out);
        refuse_invalid(out, from);
    }

    fn fold_unchecked(&mut self, input: &InputRecord<'_>, out: &mut Vec<FoldOutput>) {
        self.tally.events += 1;
        self.head.clock.observe(input.stamp);
        let clock = self.head.clock.elapsed();
        if clock >= self.due {
            self.advance_clock(clock, out);
        }
        let time = input.event.time();
        let merge_time = time.map(|time| self.merge_key(time, input.stamp));
        let overtaken = merge_time.is_some() && merge_time < self.head.merged;
        self.head.merged = self.head.merged.max(merge_time);
        let merge_time = merge_time.unwrap_or(input.stamp);
        let place = LogPosition { stamp: input.stamp, merge_time, clock, is_sent_again: input.is_sent_again };
        let refused = match input.event {
            InputEvent::Heartbeat => {
                self.tally.heartbeats += 1;
                return;
            }
            InputEvent::Refused(refusal) => Err(refusal.clone()),
            event => check_acceptable(event, input.key, input.stamp, self.settings.max_future)
                .and_then(|()| self.apply(event, input.key, place, overtaken, out)),
        };
        if let Err(refusal) = refused {
            match refusal.reason {
                DeadLetterReason::Late => self.tally.late += 1,
                DeadLetterReason::Stale => self.tally.stale += 1,
                _ => {}
            }
            out.push(FoldOutput::Refused(refusal));
        }
    }

    fn apply(
        &mut self,
        event: InputEvent<'_>,
        key: Option<&str>,
        place: LogPosition,
        overtaken: bool,
        out: &mut Vec<FoldOutput>,
    ) -> Result<(), DecodeError> {
        let mut declared = match event {
            InputEvent::Workload(event) => ControllerSettings::from_workload(event)?,
            _ => None,
        };
        let i = match event {
            InputEvent::Telemetry(event) => {
                if let Some(workload) = &event.workload {
                    self.find_or_add(workload)?
                } else {
                    let mut name = std::mem::take(&mut self.device_key);
                    name.clear();
                    name.push_str(DEVICE_PREFIX);
                    name.push_str(&event.device);
                    let found = match self.find(&name) {
                        Some(i) => Ok(i),
                        None => self.add(&name, QuotaOwner::Collector(&event.collector)),
                    };
                    self.device_key = name;
                    found?
                }
            }
            InputEvent::Progress(event) => self.find_or_add(&event.workload)?,
            InputEvent::Workload(event) => self.find_or_add(&event.workload)?,
            InputEvent::Actuation(event) => self.find_or_add(&event.workload)?,
            InputEvent::WorkloadGone => match key.and_then(|key| self.find(key)) {
                Some(i) => i,
                None => return Ok(()),
            },
            InputEvent::Model(event) => {
                self.tally.late_tables += u64::from(overtaken);
                self.put_model(event);
                return Ok(());
            }
            InputEvent::ModelGone => {
                self.withdraw_model(key.unwrap_or_default());
                return Ok(());
            }
            InputEvent::Heartbeat | InputEvent::Refused(_) => return Ok(()),
        };
        let usage = PartitionUsage { sources: self.sources, by_owner: &self.usage_by_owner };
        let state = self.workloads[i].as_mut().expect("the index holds live places");
        state.head.last_event_clock = place.clock;
        mark_changed(&mut self.changed, state, i);
        let before = state.owner_usage();
        let fold_outcome = match event {
            InputEvent::Telemetry(event) => state.fold_telemetry(event, place, usage, &self.settings),
            InputEvent::Progress(event) => state.fold_progress(event, place, usage, &self.settings),
            InputEvent::Workload(event) => {
                state.fold_layout(event, declared.take(), &self.settings);
                FoldOutcome::Folded
            }
            InputEvent::Actuation(event) => {
                state.head.tables.note_actuation(event);
                FoldOutcome::Folded
            }
            InputEvent::WorkloadGone => {
                state.head.tables.clear();
                FoldOutcome::Folded
            }
            InputEvent::Model(_) | InputEvent::ModelGone | InputEvent::Heartbeat | InputEvent::Refused(_) => FoldOutcome::Folded,
        };
        if overtaken && matches!(event, InputEvent::Workload(_) | InputEvent::Actuation(_)) {
            state.head.counts.late_tables += 1;
            self.tally.late_tables += 1;
        }
        if state.source_count() == 0 {
            state.due = state.due.min(place.clock + self.settings.retention);
        }
        state.close(place.clock, &self.settings, out);
        self.tally.models_ignored.gpu += std::mem::take(&mut state.of_another_gpu);
        self.sources += state.source_count() - before.sources;
        self.usage_by_owner.update_workload(|| state.quota_owner(), before, state.owner_usage());
        self.due = self.due.min(state.due);
        match fold_outcome {
            FoldOutcome::Folded => Ok(()),
            FoldOutcome::Duplicate => {
                self.tally.duplicates += 1;
                Ok(())
            }
            FoldOutcome::Refused(refusal) => Err(refusal),
        }
    }

    fn put_model(&mut self, event: &Model) {
        let ignored = &mut self.tally.models_ignored;
        match Arc::make_mut(&mut self.models).put(event) {
            models::ModelOutcome::InForce => {
                self.tally.models += 1;
                self.changed_models.insert(event.name.clone());
            }
            models::ModelOutcome::Older => ignored.older += 1,
            models::ModelOutcome::Unusable(UnusableModel::Version) => ignored.version += 1,
            models::ModelOutcome::Unusable(UnusableModel::Damaged | UnusableModel::Gpu) => ignored.damaged += 1,
            models::ModelOutcome::Foreign => return,
        }
        self.hand_out_models();
    }

    fn withdraw_model(&mut self, name: &str) {
        if Arc::make_mut(&mut self.models).withdraw(name) {
            self.changed_models.insert(name.to_owned());
            self.hand_out_models();
        }
    }

    pub(crate) fn hand_out_models(&mut self) {
        for state in self.workloads.iter_mut().flatten() {
            state.models = self.models.clone();
        }
    }

    /// Notes that the log clock passed a time at which workloads may change by themselves.
    fn advance_clock(&mut self, clock: i64, out: &mut Vec<FoldOutput>) {
        let mut due: Vec<usize> =
            (0..self.workloads.len()).filter(|i| self.workloads[*i].as_ref().is_some_and(|state| clock >= state.due)).collect();
        due.sort_by(|a, b| name_at(&self.workloads, *a).cmp(name_at(&self.workloads, *b)));
        for i in due {
            let Some(state) = self.workloads[i].as_mut() else { continue };
            let before = state.owner_usage();
            state.advance_clock(clock, &self.settings);
            mark_changed(&mut self.changed, state, i);
            state.close(clock, &self.settings, out);
            self.tally.models_ignored.gpu += std::mem::take(&mut state.of_another_gpu);
            self.sources = self.sources + state.source_count() - before.sources;
            self.usage_by_owner.update_workload(|| state.quota_owner(), before, state.owner_usage());
            if state.is_forgettable(clock, &self.settings) {
                let (name, blocks) = (state.head.name.clone(), state.blocks);
                self.usage_by_owner.remove_workload(state.quota_owner(), state.owner_usage());
                self.index.remove(&&*name, i);
                self.workloads[i] = None;
                self.free.push(i);
                self.changed.retain(|changed| *changed != i);
                self.forgotten.push((name, blocks));
            }
        }
        self.due = self.workloads.iter().flatten().map(|state| state.due).min().unwrap_or(i64::MAX);
    }

    /// Returns the workloads that have open windows, by name.
    pub fn open_windows(&self) -> Vec<OpenWindows<'_>> {
        let mut open: Vec<_> = self.workloads.iter().flatten().filter_map(WorkloadState::open_windows).collect();
        open.sort_by_key(|open| open.workload);
        open
    }

    /// Closes all windows, by workload name, since every input has ended for good.
    pub fn finish(&mut self, out: &mut Vec<FoldOutput>) {
        let mut all: Vec<usize> = (0..self.workloads.len()).filter(|i| self.workloads[*i].is_some()).collect();
        all.sort_by(|a, b| name_at(&self.workloads, *a).cmp(name_at(&self.workloads, *b)));
        for i in all {
            if let Some(state) = self.workloads[i].as_mut() {
                let before = state.owner_usage();
                state.close_all(&self.settings, out);
                self.usage_by_owner.update_workload(|| state.quota_owner(), before, state.owner_usage());
                mark_changed(&mut self.changed, state, i);
            }
        }
    }
}

/// Drops outputs that a reader would refuse: the record that led to them is a dead letter, which names what is missing.
fn refuse_invalid(out: &mut Vec<FoldOutput>, from: usize) {
    let mut first: Option<DecodeError> = None;
    let mut index = from;
    while index < out.len() {
        let checked = match &out[index] {
            FoldOutput::Window(window) => window.check().map_err(|refusal| (refusal, format!("window {}", window.id))),
            FoldOutput::Decision(decision) => decision.check().map_err(|refusal| (refusal, format!("decision {}", decision.id))),
            FoldOutput::Refused(_) => Ok(()),
        };
        if let Err((refusal, what)) = checked {
            let detail = format!("the {what} that this record led to cannot be written: {}", refusal.detail);
            first.get_or_insert_with(|| DecodeError::invalid(refusal.field.unwrap_or("id"), detail));
            out.remove(index);
        } else {
            index += 1;
        }
    }
    // One letter for a record.
    if let Some(refusal) = first
        && !out[from..].iter().any(|output| matches!(output, FoldOutput::Refused(_)))
    {
        out.push(FoldOutput::Refused(refusal));
    }
}

/// Refuses an event that may not be folded: one too far ahead of the log's stamp, or under another key than that of its subject.
pub fn check_acceptable(
    event: InputEvent<'_>,
    key: Option<&str>,
    stamp: EventTime,
    max_future: Option<i64>,
) -> Result<(), DecodeError> {
    if let (Some(time), Some(most)) = (event.time(), max_future)
        && time.micros() - stamp.micros() > most
    {
        let ahead = time.seconds_since(stamp);
        let detail = format!("time={time} is {ahead} s ahead of the log's stamp, at most {} s are allowed", most as f64 / 1e6);
        return Err(DecodeError { reason: DeadLetterReason::FutureTime, field: Some("time"), detail });
    }
    let expected = match event {
        InputEvent::Telemetry(event) => event.workload.as_deref().unwrap_or(&event.device),
        InputEvent::Progress(event) => &event.workload,
        InputEvent::Workload(event) => &event.workload,
        InputEvent::Actuation(event) => &event.workload,
        InputEvent::Model(_)
        | InputEvent::ModelGone
        | InputEvent::WorkloadGone
        | InputEvent::Heartbeat
        | InputEvent::Refused(_) => return Ok(()),
    };
    match key {
        Some(key) if key != expected => {
            let detail = format!("the record's key {key:?} is not {expected:?}, that of the event");
            Err(DecodeError { reason: DeadLetterReason::WrongKey, field: None, detail })
        }
        _ => Ok(()),
    }
}

fn mark_changed(changed: &mut Vec<usize>, state: &mut WorkloadState, i: usize) {
    if !state.changed {
        state.changed = true;
        changed.push(i);
    }
}

fn name_at(workloads: &[Option<WorkloadState>], i: usize) -> &str {
    workloads[i].as_ref().map_or("", |state| &state.head.name)
}

/// Returns the merge key: event time, not ahead of the stamp unless `max_future` is off.
pub fn merge_key(time: EventTime, stamp: EventTime, max_future: Option<i64>) -> EventTime {
    if max_future.is_some() { time.min(stamp) } else { time }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use eadt_schemas::v1::Meter;

    use super::*;
    use crate::window::energy::EnergySample;
    use crate::workload::source::{GpuSource, Liveness};

    #[test]
    fn the_name_of_a_device_is_no_workloads_and_shows_which_it_is() {
        assert_eq!(device_name("GPU-1"), "gpus//GPU-1");
        assert_eq!(device_of(&device_name("GPU-1")), Some("GPU-1"));
        assert_eq!(device_of("gpus/GPU-1"), None, "a workload of the namespace gpus");
    }

    #[test]
    fn a_source_is_new_until_it_was_written_also_after_a_restore() {
        let mut partition = PartitionFold::new(FoldSettings::default());
        let speak = |partition: &mut PartitionFold, device: &str, micros| {
            let event =
                GpuTelemetry { time: EventTime::from_micros(micros), device: device.to_owned(), ..GpuTelemetry::default() };
            let (topic, event) = (Topic::GpuTelemetry, InputEvent::Telemetry(&event));
            let stamp = EventTime::from_micros(9);
            partition.fold(&InputRecord { topic, stamp, key: Some(device), is_sent_again: false, event }, &mut Vec::new());
            partition.new_sources()
        };
        assert_eq!([("a", 1), ("b", 1), ("a", 2)].map(|(device, time)| speak(&mut partition, device, time)), [1, 2, 2]);
        let written: Vec<_> = partition.take_changes().into_iter().map(|record| (record.key, record.value)).collect();
        assert_eq!(partition.new_sources(), 0);
        let mut restored = PartitionFold::restore(FoldSettings::default(), written).unwrap();
        for partition in [&mut partition, &mut restored] {
            assert_eq!([("a", 3), ("c", 3)].map(|(device, time)| speak(partition, device, time)), [0, 1]);
        }
    }

    #[test]
    fn a_device_stays_with_the_collector_that_named_it_first_and_a_workload_with_none() {
        let found_by = |name: &str, first: Option<&str>| {
            let settings = FoldSettings::default();
            let time = EventTime::from_micros(1);
            let sample = EnergySample::from_event(&GpuTelemetry { time, ..GpuTelemetry::default() });
            let gpu = GpuSource {
                device: "GPU-1".into(),
                collector: "nvml/second".into(),
                meter: Meter::Gpu,
                liveness: Liveness::new(time, time, 0),
                sample,
                slices: VecDeque::new(),
                pending: VecDeque::new(),
                last_counter_sample: None,
                last_power_sample: None,
                check: crate::window::counter::CounterCheck::default(),
                unassigned: 0.0,
                primary: false,
            };
            let mut head = WorkloadState::new(name, TumblingWindows { size: settings.window, origin: time }, 0).head;
            head.found_by = first.map(Into::into);
            let mut partition = PartitionFold::new(settings);
            partition.insert_restored(WorkloadState::from_parts(head, vec![gpu], Vec::new()));
            assert_eq!(partition.workload_and_source_counts(), (1, 1));
            partition.workloads[0].as_ref().and_then(|state| state.head.found_by.as_deref().map(str::to_owned))
        };
        assert_eq!(found_by(&device_name("GPU-1"), Some("nvml/first")).as_deref(), Some("nvml/first"));
        assert_eq!(found_by(&device_name("GPU-1"), None).as_deref(), Some("nvml/second"), "as far as it is known");
        assert_eq!(found_by("team/job", None), None);
    }
}

#[cfg(test)]
mod refused_outputs {
    use super::*;

    #[test]
    fn an_output_that_would_be_refused_is_a_dead_letter_and_never_a_hole() {
        let minute = EventTime::from_millis(60_000);
        let window = |id: &str| {
            let window = EfficiencyWindow {
                id: id.to_owned(),
                workload: "team/one".to_owned(),
                window_start: EventTime::from_millis(0),
                window_end: minute,
                ..EfficiencyWindow::default()
            };
            FoldOutput::Window(Box::new(window))
        };
        let bad = "x".repeat(eadt_schemas::decode::MAX_ID_BYTES + 1);
        let mut out = vec![window(&bad), window("before"), window(&bad), window("good"), window(&bad)];
        refuse_invalid(&mut out, 1);
        // Earlier outputs are another workload's.
        assert_eq!(out.len(), 4);
        assert!(matches!(&out[1], FoldOutput::Window(window) if window.id == "before"), "{out:?}");
        assert!(matches!(&out[2], FoldOutput::Window(window) if window.id == "good"), "{out:?}");
        let FoldOutput::Refused(refusal) = &out[3] else { panic!("{out:?}") };
        assert_eq!((refusal.reason, refusal.field), (DeadLetterReason::InvalidValue, Some("id")));
        assert!(refusal.detail.contains("the window xxx") && refusal.detail.contains("at most 1024"), "{}", refusal.detail);
        // A record that was refused anyway has one letter.
        let mut out = vec![FoldOutput::Refused(DecodeError::invalid("time", "late")), window(&bad)];
        refuse_invalid(&mut out, 0);
        assert!(matches!(&out[..], [FoldOutput::Refused(refusal)] if refusal.field == Some("time")), "{out:?}");
    }
}
