//! The dashboard's model, as a fold over events. Pure: its only time is that of the events.

mod budget;
pub mod changes;
pub mod compare;
pub mod decisions;
pub mod detail;
mod devices;
pub mod fleet;
pub mod gpu_map;
pub mod heat_strip;
pub mod overview;
pub mod policies;
mod records;
pub mod runs;
pub mod saving_parts;
pub mod sharing;
pub mod stages;
pub mod trace;
mod workload;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use eadt_report::liveness::{PresentMoment, SILENT_SECONDS, WindowTimes};
use eadt_report::states::{ChangeFate, WorkloadStatus, decision_takes_back};
use eadt_report::{GPUS_WITHOUT_WORKLOAD, IdleGpus, ReportSettings, Reporter, WorkloadReport};
use eadt_schemas::decode::DecodableEvent;
use eadt_schemas::v1::{
    Actuation, ChangeValidation, ControllerAction, Decision, DeviceHolders, DeviceIntent, DeviceState, EfficiencyWindow,
    GpuTelemetry, WindowKind, Workload,
};
use eadt_schemas::{EventTime, Topic, decode};
use serde::Serialize;

use budget::PowerBudgetTimeline;
use changes::ChangeCounts;
use devices::DeviceInventory;
use records::SharedTexts;
use stages::StageTimes;
use trace::{PowerSpan, WorkloadTimeline};
use workload::{DecisionIntake, DecisionRecord, WorkloadState};

/// Rows of a page of a list, if no other number is asked for.
const DEFAULT_ROWS: usize = 50;
/// Rows of a page of a list, at most.
const MOST_ROWS: usize = 200;

/// Returns the rows of a page: as many as are asked for, else `default`, and at most [`MOST_ROWS`].
fn rows_of_page(limit: Option<usize>, default: usize) -> usize {
    limit.unwrap_or(default).clamp(1, MOST_ROWS)
}

/// Limits of the model's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetentionLimits {
    /// Windows of all workloads together of which savings are computed.
    pub windows: usize,
    /// Decisions of all workloads together, those that only maintain apart.
    pub decisions: usize,
    /// Workloads.
    pub workloads: usize,
    /// GPUs.
    pub devices: usize,
}

impl Default for RetentionLimits {
    fn default() -> Self {
        Self { windows: 300_000, decisions: 20_000, workloads: 50_000, devices: 100_000 }
    }
}

/// Kind of source of the events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SourceKind {
    /// A log that goes on.
    Live,
    /// An archive, or the output of a replay.
    Archive,
}

/// Describes the source of the events.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SourceFacts {
    pub kind: SourceKind,
    /// Text of the place: `embedded log in eadt-data`.
    pub place: String,
    /// Length of a window; absent if it is not known.
    pub window_seconds: Option<f64>,
    pub version: String,
}

/// The verdict of a replay of the record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ReplayVerdict {
    /// It is going on.
    Running,
    /// The record's own windows and decisions.
    Identical,
    Different,
    /// Nothing could be compared.
    Unknown,
}

/// Whether a replay of the record gives its own windows and decisions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ReplayCheck {
    pub verdict: ReplayVerdict,
    /// Text of the result.
    pub text: String,
}

/// Events that were counted, and those that were left out, with the reason.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct DashboardCounts {
    pub windows: u64,
    pub decisions: u64,
    /// Changes of all workloads.
    #[serde(flatten)]
    pub changes: ChangeCounts,
    pub dead_letters: u64,
    /// Events of an output topic that could not be read.
    pub unreadable: u64,
    /// Events of workloads beyond the limit.
    pub beyond_limit: u64,
    /// Decisions that were dropped for newer ones.
    pub decisions_dropped: u64,
    /// Workloads whose record is too long for a saving to be computed here.
    pub without_saving: u64,
}

/// A notice to viewers: a change, a revert, a refusal.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ChangeNotice {
    /// Position in this model's sequence of events.
    pub version: u64,
    pub time_ms: i64,
    pub workload: String,
    pub decision_id: String,
    pub kind: NoticeKind,
    pub text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NoticeKind {
    Change,
    Kept,
    /// A change did not help, and is left as it is.
    NoGain,
    Revert,
    /// A change or revert that was recommended and not made.
    Recommended,
    /// A change or revert that was refused: nothing was changed.
    NotMade,
    /// An actuator refused the decision.
    Refused,
}

impl NoticeKind {
    /// Returns the notice of a decision to viewers; `None` if it leaves everything as it is.
    fn of_decision(action: ControllerAction, validation: ChangeValidation, takes_back: bool) -> Option<Self> {
        match (action, validation) {
            _ if takes_back => Some(Self::Revert),
            (ControllerAction::Maintain, ChangeValidation::Kept) => Some(Self::Kept),
            (ControllerAction::Maintain, ChangeValidation::Failed) => Some(Self::NoGain),
            (ControllerAction::Maintain, _) => None,
            _ => Some(Self::Change),
        }
    }

    /// Returns the same of a decision with this fate.
    fn if_not_made(self, fate: Option<ChangeFate>) -> Self {
        match (self, fate) {
            (Self::Change | Self::Revert, Some(ChangeFate::Recommended)) => Self::Recommended,
            (Self::Change | Self::Revert, Some(ChangeFate::NotAllowed | ChangeFate::Refused)) => Self::NotMade,
            (kind, _) => kind,
        }
    }

    /// Returns the notice of a fate to viewers; `None` if it is as decided, or as the user asked.
    fn of_fate(fate: ChangeFate) -> Option<Self> {
        matches!(fate, ChangeFate::Refused | ChangeFate::Failed | ChangeFate::RolledBack).then_some(Self::Refused)
    }
}

/// Shortest time between two updates of the viewers about new samples, in seconds of the samples' own time.
const SAMPLES_UPDATE_SECONDS: f64 = 10.0;

/// Notices that are kept for clients that reconnect.
const NOTICES: usize = 256;

/// Everything that the page shows.
#[derive(Debug)]
pub struct DashboardModel {
    source: SourceFacts,
    limits: RetentionLimits,
    /// The moment that is shown; `None` for the newest.
    until: Option<EventTime>,
    /// Start of the oldest window.
    first: Option<EventTime>,
    /// The last moment at which anything was observed.
    observed_end: Option<EventTime>,
    /// There are windows after the moment that is shown.
    has_later: bool,
    replay: Option<ReplayCheck>,
    workloads: BTreeMap<Arc<str>, WorkloadState>,
    idle: IdleDevices,
    budget: PowerBudgetTimeline,
    devices: DeviceInventory,
    devices_beyond_limit: u64,
    /// Time of the newest sample at the last update of the viewers about samples.
    last_samples_update: Option<EventTime>,
    reporter: Reporter,
    texts: SharedTexts,
    /// Counts, without changes, which each workload counts.
    counts: DashboardCounts,
    now: Option<EventTime>,
    version: u64,
    held_windows: usize,
    held_decisions: usize,
    /// Decisions that actuations answer and that were not read yet.
    held_early: usize,
    /// Workloads whose figures are older than their windows.
    stale: VecDeque<Arc<str>>,
    notices: VecDeque<ChangeNotice>,
    dead_letters: BTreeMap<String, u64>,
    times: StageTimes,
    /// The reason why the log cannot be read at present.
    problem: Option<String>,
    /// A sentence about files that the archive lacks, or may lack.
    incomplete: Option<String>,
    caught_up: bool,
    /// Another process has the log beside the archive, and may go on writing.
    goes_on: bool,
}

/// Power of GPUs without a workload, in the newest windows, and over the record.
#[derive(Debug, Default)]
struct IdleDevices {
    newest: IdleGpus,
    trace: WorkloadTimeline<f64>,
}

impl IdleDevices {
    /// Takes a window; returns false for one that is not newer than the newest one of its GPU, which changes nothing.
    fn take(&mut self, window: &EfficiencyWindow) -> bool {
        if self.newest.is_repeated(window) {
            return false;
        }
        self.newest.add(window);
        self.trace.add_device(window, PowerSpan::observed(window));
        true
    }
}

/// Returns the figures of a workload that are kept: its report, without notes.
fn figures_of(reporter: &Reporter, name: &str) -> Option<Box<WorkloadReport>> {
    let mut report = reporter.workload_report(name, &ReportSettings::default())?;
    report.notes = Vec::new();
    Some(Box::new(report))
}

impl DashboardModel {
    pub fn new(source: SourceFacts, limits: RetentionLimits) -> Self {
        let mut reporter = Reporter::default();
        reporter.keep_sums(GPUS_WITHOUT_WORKLOAD);
        Self {
            source,
            limits,
            until: None,
            first: None,
            observed_end: None,
            has_later: false,
            replay: None,
            workloads: BTreeMap::new(),
            idle: IdleDevices::default(),
            budget: PowerBudgetTimeline::default(),
            devices: DeviceInventory::default(),
            devices_beyond_limit: 0,
            last_samples_update: None,
            reporter,
            texts: SharedTexts::default(),
            counts: DashboardCounts::default(),
            now: None,
            version: 0,
            held_windows: 0,
            held_decisions: 0,
            held_early: 0,
            stale: VecDeque::new(),
            notices: VecDeque::new(),
            dead_letters: BTreeMap::new(),
            times: StageTimes::default(),
            problem: None,
            incomplete: None,
            caught_up: false,
            goes_on: false,
        }
    }

    /// Shows the state at a time: later events are left out.
    #[must_use]
    pub fn as_of(mut self, time: EventTime) -> Self {
        self.until = Some(time);
        self
    }

    /// Returns whether the record shown has ended, so that nothing in it runs any more.
    fn has_ended(&self) -> bool {
        self.source.kind == SourceKind::Archive && self.until.is_none() && self.caught_up && !self.goes_on
    }

    /// Returns the earlier moment that is shown; `None` if the newest one is.
    pub(crate) fn shown_moment(&self) -> Option<EventTime> {
        self.until
    }

    /// Returns the moment that figures of the present are of.
    fn moment(&self) -> Option<PresentMoment> {
        let ends_here = self.source.kind == SourceKind::Archive && self.caught_up && !self.goes_on && !self.has_later;
        self.now.map(|now| PresentMoment { now, record_end: self.observed_end.filter(|_| ends_here) })
    }

    /// Returns the state of a workload.
    fn state(&self, workload: &WorkloadState) -> WorkloadStatus {
        if self.has_ended() { WorkloadStatus::Ended } else { workload.state(self.now) }
    }

    fn is_later(&self, time: EventTime) -> bool {
        self.until.is_some_and(|until| time > until)
    }

    /// Sets the verdict of a replay of the record.
    pub fn set_replay(&mut self, check: ReplayCheck) {
        self.version += 1;
        self.replay = Some(check);
    }

    /// Takes one record's value; topics that the page does not show are ignored.
    pub fn take(&mut self, topic: Topic, value: &[u8]) {
        match topic {
            Topic::EfficiencyWindows => self.decoded(value, Self::window),
            Topic::Decisions => self.decoded(value, Self::decision),
            Topic::Actuations => self.decoded(value, Self::actuation),
            Topic::Workloads => self.decoded(value, Self::declaration),
            Topic::DeviceIntents => self.decoded(value, Self::device_intent),
            Topic::DeviceStates => self.decoded(value, Self::device_state),
            Topic::DeviceHolders => self.decoded(value, Self::device_holders),
            // Samples are many: viewers get updates about them now and then, and the processor counts those that are none.
            Topic::GpuTelemetry => {
                if let Ok(event) = decode::<GpuTelemetry>(value) {
                    self.telemetry(&event);
                }
            }
            _ => {}
        }
    }

    fn decoded<T: DecodableEvent>(&mut self, value: &[u8], take: fn(&mut Self, &T)) {
        self.version += 1;
        match decode::<T>(value) {
            Ok(event) => take(self, &event),
            Err(_) => self.counts.unreadable += 1,
        }
    }

    /// Counts an event that a reader refused at this time of the log.
    pub fn dead_letter(&mut self, stamp: EventTime, reason: &str) {
        if self.is_later(stamp) {
            return;
        }
        self.version += 1;
        self.counts.dead_letters += 1;
        *self.dead_letters.entry(reason.chars().take(40).collect()).or_default() += 1;
    }

    /// Counts an event of an archive that could not be read.
    pub fn unreadable(&mut self) {
        self.counts.unreadable += 1;
    }

    /// Takes the log's stamp of a record.
    pub fn stamp(&mut self, stamp: EventTime) {
        let stamp = self.until.map_or(stamp, |until| stamp.min(until));
        self.times.stamp = self.times.stamp.max(Some(stamp));
    }

    /// Takes the log's stamp of a record with a sample or a window. Heartbeats and settings come also if nothing is measured.
    pub fn stamp_figures(&mut self, stamp: EventTime) {
        self.times.figures = self.times.figures.max(Some(stamp));
    }

    /// Returns the log's stamp of the newest record.
    pub fn newest_record(&self) -> Option<EventTime> {
        self.times.stamp
    }

    /// Sets why the log cannot be read; `None` if it can be read.
    pub fn set_problem(&mut self, problem: Option<String>) {
        if self.problem != problem {
            self.version += 1;
            self.problem = problem;
        }
    }

    /// Sets a sentence about files that the archive lacks, or may lack: the figures may not be those of all that was recorded.
    pub fn set_incomplete(&mut self, about: Option<String>) {
        if self.incomplete != about {
            self.version += 1;
            self.incomplete = about;
        }
    }

    /// Notes that every event that was there at the start is taken in.
    pub fn set_caught_up(&mut self) {
        if !self.caught_up {
            self.version += 1;
        }
        self.caught_up = true;
    }

    /// Records that another process may continue to write the record that was read up to now.
    pub fn set_goes_on(&mut self) {
        self.goes_on = true;
    }

    /// Changes with each event.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Returns the end of the newest window.
    pub fn now(&self) -> Option<EventTime> {
        self.now
    }

    /// Returns the counts so far.
    pub fn counts(&self) -> DashboardCounts {
        let mut changes = ChangeCounts::default();
        self.workloads.values().for_each(|state| changes += state.change_counts());
        DashboardCounts { changes, ..self.counts.clone() }
    }

    pub fn source(&self) -> &SourceFacts {
        &self.source
    }

    /// Returns the length of a window: that of the newest one if there is any, since the processor may have other settings than
    /// the page.
    fn window_seconds(&self) -> Option<f64> {
        self.times.window_seconds.or(self.source.window_seconds)
    }

    /// Returns the kept notices after this version.
    pub fn notices_after(&self, version: u64) -> impl Iterator<Item = &ChangeNotice> {
        self.notices.iter().filter(move |notice| notice.version > version)
    }

    pub fn window(&mut self, event: &EfficiencyWindow) {
        if self.is_later(event.window_end) {
            self.has_later = true;
            return;
        }
        self.observed_end = self.observed_end.max(Some(WindowTimes::from(event).observed_end()));
        if event.workload == GPUS_WITHOUT_WORKLOAD {
            self.take_times(event);
            if self.idle.take(event) {
                self.reporter.add_window(event);
            }
            return;
        }
        let Some(name) = self.admit(&event.workload) else { return };
        let state = self.workloads.get_mut(&name).expect("admitted");
        let is_new = event.kind == WindowKind::Tumbling && state.window(event);
        let is_exact = state.is_exact();
        // Sums take each window once.
        if is_exact || is_new {
            self.reporter.add_window(event);
        }
        if event.kind == WindowKind::Tumbling {
            self.take_times(event);
            if is_new {
                self.counts.windows += 1;
                self.held_windows += usize::from(is_exact);
            }
        }
        self.mark_stale(&name);
        self.keep_to_windows();
    }

    /// Takes the times of a window, of a workload or of a GPU without one.
    fn take_times(&mut self, window: &EfficiencyWindow) {
        if self.now.is_none_or(|now| window.window_end >= now) {
            self.times.window_seconds = Some(window.window_end.seconds_since(window.window_start));
        }
        self.now = self.now.max(Some(window.window_end));
        self.first = Some(self.first.map_or(window.window_start, |first| first.min(window.window_start)));
    }

    pub fn decision(&mut self, event: &Decision) {
        if self.is_later(event.time) {
            return;
        }
        self.budget.take(event);
        let Some(name) = self.admit(&event.workload) else { return };
        let state = self.workloads.get_mut(&name).expect("admitted");
        if state.is_exact() {
            self.reporter.add_decision(event);
        }
        let texts = &mut self.texts;
        let outcome = state.count_early(&mut self.held_early, |state| state.decision(event, &name, texts));
        let foreseen = state.foreseen_fate();
        match outcome {
            DecisionIntake::Repeated => return,
            DecisionIntake::Kept => self.held_decisions += 1,
            DecisionIntake::Counted => {}
        }
        self.counts.decisions += 1;
        self.times.decision = self.times.decision.max(Some(event.time));
        if let Some(kind) = NoticeKind::of_decision(event.action, event.validation, decision_takes_back(event)) {
            let kind = kind.if_not_made(foreseen);
            self.notice(event.time, &event.workload, &event.id, kind, &event.reason);
        }
        self.mark_stale(&name);
        self.keep_to_decisions(&name);
    }

    pub fn actuation(&mut self, event: &Actuation) {
        if self.is_later(event.time) {
            return;
        }
        let Some(name) = self.admit(&event.workload) else { return };
        let state = self.workloads.get_mut(&name).expect("admitted");
        if state.is_exact() {
            self.reporter.add_actuation(event);
        }
        self.times.actuation = self.times.actuation.max(Some(event.time));
        let texts = &mut self.texts;
        state.count_early(&mut self.held_early, |state| state.actuation(event, texts));
        if let Some(kind) = NoticeKind::of_fate(ChangeFate::from(event)) {
            self.notice(event.time, &event.workload, &event.decision_id, kind, &event.reason);
        }
        self.mark_stale(&name);
        self.keep_to_early_actuations(&name);
    }

    pub fn declaration(&mut self, event: &Workload) {
        if self.is_later(event.time) {
            return;
        }
        if let Some(name) = self.admit(&event.workload) {
            self.workloads.get_mut(&name).expect("admitted").declared(event);
        }
    }

    /// Takes a sample of a GPU; the newest names the workload on it.
    pub fn telemetry(&mut self, event: &GpuTelemetry) {
        if self.is_later(event.time) {
            return;
        }
        self.times.take_sample(event.time);
        if !self.devices.sample(event, self.limits.devices) {
            self.devices_beyond_limit += 1;
        }
        let newest = self.devices.newest();
        let due = |(newest, last_update): (EventTime, EventTime)| newest.seconds_since(last_update) >= SAMPLES_UPDATE_SECONDS;
        if newest.zip(self.last_samples_update).is_none_or(due) {
            self.last_samples_update = newest;
            self.version += 1;
        }
    }

    pub fn device_intent(&mut self, event: &DeviceIntent) {
        if !self.is_later(event.time) {
            self.devices.intent(event);
        }
    }

    pub fn device_state(&mut self, event: &DeviceState) {
        if !self.is_later(event.time) {
            self.devices.state(event);
        }
    }

    pub fn device_holders(&mut self, event: &DeviceHolders) {
        if !self.is_later(event.time) {
            self.devices.holders(event);
        }
    }

    fn notice(&mut self, time: EventTime, workload: &str, decision_id: &str, kind: NoticeKind, text: &str) {
        self.notices.push_back(ChangeNotice {
            version: self.version,
            time_ms: time.millis(),
            workload: workload.to_owned(),
            decision_id: decision_id.to_owned(),
            kind,
            text: text.chars().take(400).collect(),
        });
        if self.notices.len() > NOTICES {
            self.notices.pop_front();
        }
    }

    /// Returns the workload's name as it is kept; `None` if there are too many workloads.
    fn admit(&mut self, name: &str) -> Option<Arc<str>> {
        if let Some((name, _)) = self.workloads.get_key_value(name) {
            return Some(name.clone());
        }
        if self.workloads.len() >= self.limits.workloads {
            self.counts.beyond_limit += 1;
            return None;
        }
        let name: Arc<str> = name.into();
        self.workloads.insert(name.clone(), WorkloadState::default());
        Some(name)
    }

    fn mark_stale(&mut self, name: &Arc<str>) {
        let state = self.workloads.get_mut(name).expect("admitted");
        if !std::mem::replace(&mut state.stale, true) {
            self.stale.push_back(name.clone());
        }
    }

    /// Gives up the savings of the longest record while too many windows are kept: of its windows only sums stay.
    fn keep_to_windows(&mut self) {
        while self.held_windows > self.limits.windows {
            let longest = self.workloads.iter().filter(|(_, state)| state.is_exact()).max_by_key(|(_, state)| state.windows);
            let Some(name) = longest.map(|(name, _)| name.clone()) else { return };
            let state = self.workloads.get_mut(&name).expect("present");
            self.held_windows = self.held_windows.saturating_sub(state.windows);
            self.reporter.keep_sums(&name);
            state.give_up_saving(figures_of(&self.reporter, &name));
            self.counts.without_saving += 1;
        }
    }

    /// Drops old decisions of the workload of a new decision while too many are kept: each workload keeps at most its part, or
    /// the newest eight.
    fn keep_to_decisions(&mut self, name: &Arc<str>) {
        if self.held_decisions <= self.limits.decisions {
            return;
        }
        let part = self.decisions_part();
        let state = self.workloads.get_mut(name).expect("admitted");
        let dropped = state.keep_decisions(part);
        self.held_decisions = self.held_decisions.saturating_sub(dropped);
        self.counts.decisions_dropped += dropped as u64;
    }

    /// Drops old actuations without a decision, of the workload of a new actuation, by the same rule as decisions.
    fn keep_to_early_actuations(&mut self, name: &str) {
        if self.held_early <= self.limits.decisions {
            return;
        }
        let part = self.decisions_part();
        let state = self.workloads.get_mut(name).expect("admitted");
        state.count_early(&mut self.held_early, |state| state.keep_early_actuations(part));
    }

    /// Decisions that a workload may keep while there are too many.
    fn decisions_part(&self) -> usize {
        (self.limits.decisions / self.workloads.len().max(1)).max(8)
    }

    /// Returns the report on GPUs without a workload; `None` if none has a window.
    fn idle_report(&self) -> Option<WorkloadReport> {
        let report = self.reporter.workload_report(GPUS_WITHOUT_WORKLOAD, &ReportSettings::default());
        report.filter(|report| report.windows > 0)
    }

    /// Brings the figures of at most `count` workloads up to date; returns whether some are left.
    pub fn refresh(&mut self, count: usize) -> bool {
        for _ in 0..count {
            let Some(name) = self.stale.pop_front() else { return false };
            let Some(state) = self.workloads.get_mut(&name) else { continue };
            if std::mem::take(&mut state.stale) {
                state.figures = figures_of(&self.reporter, &name);
            }
        }
        !self.stale.is_empty()
    }

    /// Decisions of a workload, newest first; those that only maintain are represented by the newest.
    fn decisions_of<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a DecisionRecord> {
        self.workloads.get(name).into_iter().flat_map(WorkloadState::decisions)
    }
}
