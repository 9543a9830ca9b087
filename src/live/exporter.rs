//! Metrics by workload and GPU, for Prometheus and (by [`super::otlp`]) OpenTelemetry: from the same events, by the same code as
//! the views and the report.
//!
//! Energy and samples are counters over the same windows, so that a query divides their rates and never figures of unlike spans.
//! A saving is an estimate that may fall, and so a gauge beside the energy that it is of. Workloads and GPUs beyond the limits
//! have no series of their own and are counted. The energy and savings on record of these workloads have one series together, so
//! that sums over all series lack none.
//!
//! A workload has no series before its partitions were read to their end once and its saving was estimated: a scrape in between
//! would show years of events as if they happened now. Its counters then continue those of the process before. If retention has
//! deleted a part they cannot, since they would be lower than before, and what is left would count as new: they start at 0.

mod changes;
mod history;
mod others;
mod specs;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use eadt_bus::{ConsumerRecord, StartOffset, TopicPartition};
use eadt_report::liveness::{ABSENT_SECONDS, PresentMoment, WindowTimes, silence_limit_seconds};
use eadt_report::states::RunProgress;
use eadt_report::{GPUS_WITHOUT_WORKLOAD, ReportSettings, Reporter, SavingSummary, SavingVerdict};
use eadt_schemas::decode::DecodableEvent;
use eadt_schemas::envelope::header;
use eadt_schemas::v1::{Actuation, ActuationOutcome, Decision, EfficiencyWindow, GpuTelemetry, Origin, WindowKind};
use eadt_schemas::{EventTime, EventType, Topic, decode};
use eadt_service::MetricsRegistry;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use self::changes::UnmatchedChanges;
use self::history::PartitionHistories;
use self::others::OtherWorkloads;
pub use self::specs::{
    ExporterCounts, GPU_ENERGY, GPU_GAUGES, GPU_SHARE, GPUS_CAPPED, IDLE_ENERGY, MetricSpec, OUTCOME, UNREADABLE_EVENTS,
    WORKLOAD_COUNTERS, WORKLOAD_COUNTS, WORKLOAD_GAUGES,
};
use super::event_line::outcome_of;
use super::gpus::{TenantSamples, present_tenants};
use super::origin_word;
use crate::settings::MetricsSettings;

/// Windows kept for estimating savings, of all workloads: some hundred bytes each. Beyond, savings are given up, and that is a
/// metric.
const WINDOWS: u64 = 500_000;
/// A GPU without samples for so long has no series.
const GONE_SECONDS: f64 = 300.0;
/// Workloads whose sums are kept, with series or without, unless more have series: about 1 kB each. A workload that returns
/// continues its counters.
const HELD: usize = 10_000;
/// Changes kept of a workload until decision and report are both read: while its history is read, and after it.
const CHANGES: (usize, usize) = (20_000, 256);
/// Longest time for estimating savings at a stretch; the rest follows later.
const REFRESH: Duration = Duration::from_millis(100);
/// All outcomes of a decision, so that each series exists with 0 before its first event.
pub const OUTCOMES: [&str; 10] =
    ["maintain", "decided", "changed", "reverted", "kept", "ready", "refused", "recommended", "rolled_back", "failed"];

/// Topics that are read from their oldest record.
pub const HISTORY: [Topic; 3] = [Topic::EfficiencyWindows, Topic::Decisions, Topic::Actuations];

/// Figures of a workload.
#[derive(Debug, Default)]
pub struct WorkloadSeries {
    pub origin: Origin,
    /// Partitions with its events: one, unless a producer has another partitioner.
    partitions: BTreeSet<i32>,
    /// Its history was read, so it has series.
    is_shown: bool,
    /// Its newest event is much older than those of others: it takes no power now.
    is_silent: bool,
    /// Events before its first one here are missing, so no saving can be estimated.
    is_partial: bool,
    counters: WorkloadCounters,
    changes: UnmatchedChanges,
    power_watts: Option<f64>,
    run: RunProgress,
    /// Energy on record, whatever its counter began with: as of its newest report, and the windows since then.
    record_energy_joules: Option<f64>,
    /// Windows that the reporter keeps of it.
    kept_windows: u64,
    /// Start of the first window on record.
    first_window: Option<EventTime>,
    last_window: Option<EventTime>,
    newest_window: Option<WindowTimes>,
    /// Its first event, or the first after it was silent.
    live_since: Option<EventTime>,
    last_event: Option<EventTime>,
    saving_joules: Option<f64>,
    compared_joules: Option<f64>,
    expected_joules: Option<f64>,
}

/// Counters of a workload.
#[derive(Debug, Default)]
struct WorkloadCounters {
    /// They began at 0 when its history was read, and not with its first window.
    has_restarted: bool,
    /// `None` if no window has it, which differs from 0.
    energy_joules: Option<f64>,
    /// Energy of the windows, with that of downtime, without what fitted in none. `None` if no window has energy; then
    /// `samples` have no series either.
    progress_energy_joules: Option<f64>,
    /// Samples of windows whose energy is known.
    samples: f64,
    samples_without_energy: f64,
    tokens: f64,
    /// Windows with a restart.
    restarts: u64,
    windows: u64,
    outcomes: BTreeMap<&'static str, u64>,
}

impl WorkloadCounters {
    fn new() -> Self {
        Self { outcomes: OUTCOMES.into_iter().map(|outcome| (outcome, 0)).collect(), ..Self::default() }
    }

    /// Begins again at 0; unknown sums stay unknown.
    fn restart(&mut self) {
        let zero = |known: Option<f64>| known.map(|_| 0.0);
        *self = Self {
            has_restarted: true,
            energy_joules: zero(self.energy_joules),
            progress_energy_joules: zero(self.progress_energy_joules),
            ..Self::new()
        };
    }

    fn add_window(&mut self, window: &EfficiencyWindow) {
        self.windows += 1;
        self.restarts += u64::from(window.has_restart());
        for joules in energies_of(window) {
            *self.energy_joules.get_or_insert(0.0) += joules;
        }
        self.tokens += window.tokens.unwrap_or(0.0).max(0.0);
        // As in a report: a window without samples, such as one of a restart, counts with its energy.
        let samples = window.samples.unwrap_or(0.0).max(0.0);
        match window.energy_of_progress() {
            Some(joules) => {
                *self.progress_energy_joules.get_or_insert(0.0) += joules.max(0.0);
                self.samples += samples;
            }
            None => self.samples_without_energy += samples,
        }
    }
}

/// Returns the energy of the run in a window, and the energy that fitted in no window.
fn energies_of(window: &EfficiencyWindow) -> impl Iterator<Item = f64> + use<> {
    let unassigned = Some(window.unassigned_energy_joules).filter(|joules| *joules > 0.0);
    window.run_energy_joules.into_iter().chain(unassigned).map(|joules| joules.max(0.0))
}

impl WorkloadSeries {
    /// Returns the start of the sums in event time; `None` if they began with this process.
    pub fn counted_since(&self) -> Option<EventTime> {
        self.first_window.filter(|_| !self.counters.has_restarted)
    }

    /// Returns the energy of its windows and that outside of windows; `None` while none is known.
    pub fn energy_joules(&self) -> Option<f64> {
        self.counters.energy_joules
    }

    /// Returns the number of times that each outcome came.
    pub fn outcomes(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.counters.outcomes.iter().map(|(outcome, count)| (*outcome, *count))
    }

    fn on_event(&mut self, origin: Origin, time: EventTime) {
        self.origin = self.origin.max(origin);
        let since = self.live_since.filter(|_| !self.is_silent);
        self.live_since = Some(since.map_or(time, |since| since.min(time)));
        self.is_silent = false;
        self.last_event = self.last_event.max(Some(time));
    }

    fn count(&mut self, outcome: Option<&'static str>) {
        if let Some(outcome) = outcome {
            *self.counters.outcomes.entry(outcome).or_default() += 1;
        }
        self.changes.keep_newest(if self.is_shown { CHANGES.1 } else { CHANGES.0 });
    }

    /// Sets the saving of a report. If nothing was changed, it is zero for all energy.
    fn set_saving(&mut self, summary: &SavingSummary) {
        self.record_energy_joules = summary.energy_joules;
        let is_unchanged = summary.expected_joules.is_none() && summary.verdict() == SavingVerdict::Unchanged;
        (self.compared_joules, self.expected_joules) = if is_unchanged {
            (summary.energy_joules, summary.energy_joules)
        } else {
            (summary.expected_joules.map(|_| summary.compared_joules), summary.expected_joules)
        };
        self.saving_joules = self.expected_joules.zip(self.compared_joules).map(|(expected, compared)| expected - compared);
    }

    fn forget_saving(&mut self) {
        (self.saving_joules, self.compared_joules, self.expected_joules) = (None, None, None);
    }

    fn newest_event(&self) -> Option<EventTime> {
        self.last_window.or(self.last_event)
    }

    /// Returns the order in which workloads get series: live ones first, the longest running before others; then those that
    /// ended, the last before others. So a running workload does not lose its series to a new one.
    fn rank(&self) -> (bool, i64) {
        let micros = |time: Option<EventTime>| time.map_or(i64::MAX, EventTime::micros);
        let order = if self.is_silent { micros(self.newest_event()).saturating_neg() } else { micros(self.live_since) };
        (self.is_silent, order)
    }

    /// Gives it series. Their counters begin at 0 if a part of its history is missing.
    fn show(&mut self, is_cut: bool) {
        self.is_shown = true;
        if is_cut || self.is_partial {
            self.counters.restart();
        }
    }
}

/// The newest event time of an origin, which advances with this machine's clock: without events all sources become silent.
#[derive(Debug, Clone, Copy)]
struct EventClock {
    newest: EventTime,
    received: Instant,
}

/// Clocks by origin: a simulated or imported record may run beside a measured one, at a time of its own.
#[derive(Debug, Default)]
struct EventClocks(BTreeMap<Origin, EventClock>);

impl EventClocks {
    fn advance(&mut self, origin: Origin, newest: EventTime) {
        let clock = EventClock { newest, received: Instant::now() };
        let known = self.0.entry(origin).or_insert(clock);
        if newest > known.newest {
            *known = clock;
        }
    }

    /// Returns how long ago this was, in seconds by the origin's clock; `None` if it has none.
    fn seconds_since(&self, origin: Origin, time: EventTime, at: Instant) -> Option<f64> {
        let clock = self.0.get(&origin)?;
        Some(clock.newest.seconds_since(time) + at.saturating_duration_since(clock.received).as_secs_f64())
    }
}

/// Series of a GPU.
#[derive(Debug, Default)]
struct GpuSeries {
    samples: TenantSamples,
    energy_joules: f64,
    counter: Option<CounterReading>,
}

/// The newest reading of a GPU's energy counter.
#[derive(Debug)]
struct CounterReading {
    /// Owner of the counter: counters of two collectors differ by the time between their readings.
    collector: String,
    time: EventTime,
    joules: f64,
}

impl GpuSeries {
    /// Counts the rise of the counter since its newest reading. Of several collectors one counts while it is there; samples come
    /// by partition, and an older one adds nothing. A counter that goes back was reset: its value then is not known to be new.
    fn count_energy(&mut self, sample: &GpuTelemetry, joules: f64) {
        if let Some(known) = &self.counter {
            let seconds = sample.time.seconds_since(known.time);
            if seconds <= 0.0 || (known.collector != sample.collector && seconds < GONE_SECONDS) {
                return;
            }
            if known.collector == sample.collector {
                self.energy_joules += (joules - known.joules).max(0.0);
            }
        }
        self.counter = Some(CounterReading { collector: sample.collector.clone(), time: sample.time, joules });
    }

    /// Returns its newest sample if that is of the last minutes.
    fn newest(&self, clocks: &EventClocks, at: Instant) -> Option<&GpuTelemetry> {
        let newest = self.samples.values().max_by_key(|sample| sample.time)?;
        let seconds = clocks.seconds_since(newest.origin, newest.time, at)?;
        (seconds < GONE_SECONDS).then_some(newest)
    }
}

/// Returns whether the newest samples of a GPU name them, of all workloads that lately had GPUs.
fn find_tenants<'a>(gpus: impl Iterator<Item = &'a GpuSeries>) -> BTreeMap<&'a str, bool> {
    let mut tenants = BTreeMap::new();
    for gpu in gpus {
        let Some(newest) = gpu.samples.values().map(|sample| sample.time).max() else { continue };
        for (workload, sample) in &gpu.samples {
            let Some(workload) = workload else { continue };
            *tenants.entry(workload.as_str()).or_default() |= newest.seconds_since(sample.time) < ABSENT_SECONDS;
        }
    }
    tenants
}

#[derive(Debug, Default)]
struct ExporterState {
    settings: MetricsSettings,
    histories: PartitionHistories,
    /// Partition of the record that is taken; `None` if it is of no partition with a history.
    partition: Option<i32>,
    /// Workloads whose sums are kept. Some of them have no series: they are beyond the limit, or their history is being read.
    workloads: BTreeMap<String, WorkloadSeries>,
    gpus: BTreeMap<String, GpuSeries>,
    window_clocks: EventClocks,
    sample_clocks: EventClocks,
    /// Workloads of which nothing is kept, beyond [`HELD`].
    capped_workloads: BTreeSet<String>,
    /// Workloads that ended and were forgotten for others.
    forgotten_workloads: BTreeSet<String>,
    /// Their recorded energy.
    forgotten_records: OtherWorkloads,
    /// Workloads whose sums are kept, unless more have series.
    held_max: usize,
    /// GPUs beyond the limit, and their newest sample.
    capped_gpus: BTreeMap<String, (Origin, EventTime)>,
    unreadable: u64,
    reporter: Option<Reporter>,
    /// Workloads that the reporter keeps; `None` for all.
    reported: Option<BTreeSet<String>>,
    /// Windows that the reporter keeps, and the most that it may.
    windows: u64,
    windows_max: u64,
    /// Workloads with events since their saving was estimated, or without series though their history was read.
    stale: BTreeSet<String>,
}

/// Takes events in and shows them as metrics. Clones share them.
#[derive(Debug, Clone)]
pub struct Exporter(Arc<Mutex<ExporterState>>);

impl Exporter {
    /// Registers its metrics: `eadt_workload_…` and `eadt_gpu_…`.
    pub fn new(metrics: &MetricsRegistry, settings: MetricsSettings) -> Self {
        let reporter = Some(Reporter::default());
        let state = ExporterState { settings, reporter, windows_max: WINDOWS, held_max: HELD, ..ExporterState::default() };
        let this = Self(Arc::new(Mutex::new(state)));
        metrics.register("workload", |registry| registry.register_collector(Box::new(WorkloadMetrics(this.clone()))));
        metrics.register("gpu", |registry| registry.register_collector(Box::new(GpuMetrics(this.clone()))));
        this
    }

    fn state(&self) -> MutexGuard<'_, ExporterState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Announces the partitions to be read, before any read: workloads have series once their partitions were at their end.
    pub fn announce(&self, from: &[(TopicPartition, StartOffset)], prefix: &str) {
        let mut state = self.state();
        for (at, _) in from {
            if let Some(topic) = Topic::from_name(&at.topic, prefix).filter(|topic| HISTORY.contains(topic)) {
                state.histories.announce(topic, at.partition);
            }
        }
    }

    /// Takes a record. Tombstones, heartbeats and records of other topics are passed over.
    pub fn on_record(&self, topic: Topic, record: &ConsumerRecord) {
        let mut state = self.state();
        state.histories.on_record(topic, record.at.partition, record.offset);
        if record.header(header::TYPE) == Some(EventType::Heartbeat.name()) {
            return;
        }
        if let Some(value) = &record.value {
            state.partition = HISTORY.contains(&topic).then_some(record.at.partition);
            state.take(topic, value);
        }
    }

    /// Notes that a partition was read to its present end.
    pub fn on_end(&self, at: &TopicPartition, prefix: &str) {
        let mut state = self.state();
        if Topic::from_name(&at.topic, prefix).is_some_and(|topic| state.histories.on_end(topic, at.partition)) {
            state.queue_hidden();
        }
    }

    /// Returns whether every partition was read to its end once.
    pub fn has_caught_up(&self) -> bool {
        self.state().histories.unread() == 0
    }

    /// Estimates savings for a moment, and gives series to workloads whose history was read. Returns whether there is more to do.
    pub fn refresh(&self) -> bool {
        let begun = Instant::now();
        loop {
            if !self.state().refresh_one() {
                return false;
            }
            if begun.elapsed() >= REFRESH {
                return true;
            }
        }
    }

    /// Calls `read` with the present series.
    pub fn read_series<T>(&self, read: impl FnOnce(&SeriesSnapshot<'_>) -> T) -> T {
        let mut state = self.state();
        let now = Instant::now();
        state.settle(now);
        let table = state.workload_table();
        let (counts, gpus) = (state.counts(&table), state.gpu_rows(now).collect());
        let WorkloadTable { rows: workloads, others, .. } = table;
        read(&SeriesSnapshot { workloads, others, gpus, idle_gpus: state.idle_gpus(), counts })
    }

    /// Takes the value of a record that no history is read of.
    #[cfg(test)]
    pub fn take(&self, topic: Topic, value: &[u8]) {
        let mut state = self.state();
        state.partition = None;
        state.take(topic, value);
    }

    /// A series of each metric, for the reference of metrics.
    pub fn touch(&self) {
        let mut state = self.state();
        let zero = Some(0.0);
        if let Some(series) = state.series(GPUS_WITHOUT_WORKLOAD) {
            series.counters.energy_joules = zero;
        }
        if let Some(series) = state.series("namespace/name") {
            (series.saving_joules, series.compared_joules, series.expected_joules) = (zero, zero, zero);
            (series.power_watts, series.record_energy_joules) = (zero, zero);
            (series.counters.energy_joules, series.counters.progress_energy_joules) = (zero, zero);
            series.last_window = Some(EventTime::from_micros(0));
        }
        let sample = GpuTelemetry {
            device: "GPU".into(),
            workload: Some("namespace/name".into()),
            share: Some(1.0),
            // A GPU draws more than 0 W.
            power_watts: Some(1.0),
            power_limit_watts: zero,
            energy_joules_total: zero,
            utilization_ratio: zero,
            temperature_celsius: zero,
            ..GpuTelemetry::default()
        };
        state.sample(&sample);
    }
}

impl ExporterState {
    /// Takes one record's value; events of other topics are ignored.
    fn take(&mut self, topic: Topic, value: &[u8]) {
        match topic {
            Topic::EfficiencyWindows => self.read(value, Self::window),
            Topic::Decisions => self.read(value, Self::decision),
            Topic::Actuations => self.read(value, Self::actuation),
            Topic::GpuTelemetry => self.read(value, Self::sample),
            _ => {}
        }
    }

    fn read<T: DecodableEvent>(&mut self, value: &[u8], take: fn(&mut Self, &T)) {
        match decode::<T>(value) {
            Ok(event) => take(self, &event),
            // Records that existed at the start were counted by the process before.
            Err(_) => self.unreadable += u64::from(self.is_news()),
        }
    }

    /// Returns whether the record that is taken is of a partition that was read to its end once.
    fn is_news(&self) -> bool {
        self.partition.is_none_or(|partition| self.histories.is_read(partition))
    }

    /// Returns the series of a workload; `None` if there is no room for its sums.
    fn series(&mut self, name: &str) -> Option<&mut WorkloadSeries> {
        if !self.workloads.contains_key(name) {
            if !self.make_room() {
                // Names are another program's, and so is their number.
                if self.capped_workloads.len() < 100_000 {
                    self.capped_workloads.insert(name.to_owned());
                }
                return None;
            }
            let was_capped = self.capped_workloads.remove(name);
            let was_forgotten = self.forgotten_workloads.remove(name);
            let series = WorkloadSeries {
                is_shown: self.is_news(),
                is_partial: was_capped || was_forgotten,
                counters: WorkloadCounters::new(),
                ..WorkloadSeries::default()
            };
            self.workloads.insert(name.to_owned(), series);
        }
        let series = self.workloads.get_mut(name)?;
        series.partitions.extend(self.partition);
        Some(series)
    }

    /// Returns whether there is room for the sums of one more workload; otherwise the one that ended first is forgotten.
    fn make_room(&mut self) -> bool {
        if self.workloads.len() < self.settings.workloads_max.max(self.held_max) {
            return true;
        }
        let ended = self.workloads.iter().filter(|(name, series)| series.is_silent && *name != GPUS_WITHOUT_WORKLOAD);
        let Some(name) = ended.min_by_key(|(_, series)| series.newest_event()).map(|(name, _)| name.clone()) else {
            return false;
        };
        if let Some(series) = self.workloads.get(&name) {
            self.forgotten_records.add(series);
        }
        self.forget_windows(&name);
        self.workloads.remove(&name);
        if self.forgotten_workloads.len() < 100_000 {
            self.forgotten_workloads.insert(name);
        }
        true
    }

    fn window(&mut self, window: &EfficiencyWindow) {
        if window.kind != WindowKind::Tumbling {
            return;
        }
        self.window_clocks.advance(window.origin, window.window_end);
        let Some(series) = self.series(&window.workload) else { return };
        series.on_event(window.origin, window.window_end);
        series.power_watts = window.mean_power_watts;
        series.run.add(window);
        series.first_window = Some(series.first_window.map_or(window.window_start, |first| first.min(window.window_start)));
        series.last_window = series.last_window.max(Some(window.window_end));
        series.newest_window = Some(WindowTimes::from(window));
        for joules in energies_of(window) {
            *series.record_energy_joules.get_or_insert(0.0) += joules;
        }
        series.counters.add_window(window);
        if let Some(reporter) = self.reporter_of(&window.workload) {
            reporter.add_window(window);
            self.stale.insert(window.workload.clone());
            self.count_window(&window.workload);
        }
    }

    /// Returns the reporter, if it keeps the events of a workload.
    fn reporter_of(&mut self, name: &str) -> Option<&mut Reporter> {
        let is_whole = self.workloads.get(name).is_some_and(|series| !series.is_partial);
        let is_kept = self.reported.as_ref().is_none_or(|names| names.contains(name));
        // Nothing is decided, and so nothing saved, on GPUs without a workload.
        self.reporter.as_mut().filter(|_| is_whole && is_kept && name != GPUS_WITHOUT_WORKLOAD)
    }

    /// Counts a window that the reporter has got. If there are too many, the savings of workloads beyond the limit are given up
    /// first, and then all.
    fn count_window(&mut self, name: &str) {
        self.windows += 1;
        if let Some(series) = self.workloads.get_mut(name) {
            series.kept_windows += 1;
        }
        if self.windows > self.windows_max && self.reported.is_none() {
            self.keep_ranked();
        }
        if self.windows > self.windows_max && self.reporter.take().is_some() {
            tracing::warn!(windows = self.windows_max, "savings are not exported any more: there are too many windows to keep");
            self.workloads.values_mut().for_each(WorkloadSeries::forget_saving);
        }
    }

    /// From now on keeps windows only of as many workloads as have series.
    fn keep_ranked(&mut self) {
        self.settle(Instant::now());
        let mut ranked: Vec<(&String, &WorkloadSeries)> =
            self.workloads.iter().filter(|(name, _)| *name != GPUS_WITHOUT_WORKLOAD).collect();
        ranked.sort_by_key(|(_, series)| series.rank());
        let names: Vec<String> = ranked.into_iter().map(|(name, _)| name.clone()).collect();
        let (kept, rest) = names.split_at(names.len().min(self.settings.workloads_max));
        for name in rest {
            self.forget_windows(name);
        }
        self.reported = Some(kept.iter().cloned().collect());
    }

    /// Forgets the windows from which a workload's saving is estimated.
    fn forget_windows(&mut self, name: &str) {
        if let Some(reporter) = &mut self.reporter {
            reporter.forget(name);
        }
        if let Some(series) = self.workloads.get_mut(name) {
            self.windows -= std::mem::take(&mut series.kept_windows);
            series.forget_saving();
        }
    }

    fn decision(&mut self, decision: &Decision) {
        let Some(series) = self.series(&decision.workload) else { return };
        series.on_event(decision.origin, decision.time);
        let outcome = outcome_of(decision);
        series.count(Some(outcome));
        if outcome == "decided" {
            let applied = series.changes.on_decision(decision);
            series.count(applied);
        }
        if let Some(reporter) = self.reporter_of(&decision.workload) {
            reporter.add_decision(decision);
        }
    }

    fn actuation(&mut self, actuation: &Actuation) {
        let Some(series) = self.series(&actuation.workload) else { return };
        series.on_event(actuation.origin, actuation.time);
        let outcome = match actuation.outcome {
            // Counted with the decision's change.
            ActuationOutcome::Applied => series.changes.on_applied(&actuation.decision_id),
            ActuationOutcome::Ready => Some("ready"),
            ActuationOutcome::Refused => Some("refused"),
            ActuationOutcome::Recommended => Some("recommended"),
            ActuationOutcome::RolledBack => Some("rolled_back"),
            ActuationOutcome::Failed => Some("failed"),
        };
        series.count(outcome);
        if let Some(reporter) = self.reporter_of(&actuation.workload) {
            reporter.add_actuation(actuation);
        }
    }

    fn sample(&mut self, sample: &GpuTelemetry) {
        self.sample_clocks.advance(sample.origin, sample.time);
        if !self.gpus.contains_key(&sample.device) && self.gpus.len() >= self.settings.gpus_max {
            if self.capped_gpus.len() < 100_000 {
                self.capped_gpus.insert(sample.device.clone(), (sample.origin, sample.time));
            }
            return;
        }
        let gpu = self.gpus.entry(sample.device.clone()).or_default();
        if let Some(joules) = sample.energy_joules_total {
            gpu.count_energy(sample, joules);
        }
        if sample.last {
            gpu.samples.remove(&sample.workload);
        } else {
            gpu.samples.insert(sample.workload.clone(), sample.clone());
        }
        // Workloads that left without a last event are removed.
        gpu.samples.retain(|_, known| sample.time.seconds_since(known.time) < GONE_SECONDS);
    }

    /// Removes the figures of the present from workloads that are gone or whose job has ended: the power of workloads, and the
    /// places of GPUs for waiting ones.
    fn settle(&mut self, at: Instant) {
        let on_gpus = find_tenants(self.gpus.values());
        for (name, series) in &mut self.workloads {
            let quiet = series.newest_event().and_then(|time| self.window_clocks.seconds_since(series.origin, time, at));
            let window_seconds = series.newest_window.map_or(0.0, |newest| newest.seconds());
            series.is_silent = quiet.is_some_and(|seconds| seconds > silence_limit_seconds(window_seconds));
            let runs = series.newest_window.zip(quiet).is_none_or(|(newest, seconds)| {
                let moment = PresentMoment { now: newest.end.plus_seconds(seconds), record_end: None };
                series.run.runs_now(&newest, moment)
            });
            if !runs || on_gpus.get(name.as_str()) == Some(&false) {
                series.power_watts = None;
            }
        }
        if self.gpus.len() >= self.settings.gpus_max {
            self.gpus.retain(|_, gpu| gpu.newest(&self.sample_clocks, at).is_some());
        }
        let (gpus, clocks) = (&self.gpus, &self.sample_clocks);
        self.capped_gpus.retain(|device, (origin, time)| {
            let is_recent = clocks.seconds_since(*origin, *time, at).is_some_and(|seconds| seconds < GONE_SECONDS);
            is_recent && !gpus.contains_key(device)
        });
    }

    /// Returns the workloads with series of their own, as many as may have some, by name, and the sums of the others.
    fn workload_table(&self) -> WorkloadTable<'_> {
        let mut rows: Vec<WorkloadRow<'_>> = self
            .workloads
            .iter()
            .filter(|(name, series)| series.is_shown && *name != GPUS_WITHOUT_WORKLOAD)
            .map(|(name, series)| {
                let (namespace, name) = name.split_once('/').unwrap_or(("", name));
                WorkloadRow { namespace, name, series }
            })
            .collect();
        let mut hidden = Vec::new();
        if rows.len() > self.settings.workloads_max {
            rows.sort_by_key(|row| row.series.rank());
            hidden = rows.split_off(self.settings.workloads_max);
            rows.sort_by_key(|row| (row.namespace, row.name));
        }
        let ended = hidden.iter().filter(|row| row.series.is_silent).count();
        let capped = hidden.len() - ended + self.capped_workloads.len();
        let mut others = OtherWorkloads::default();
        for row in &hidden {
            others.add(row.series);
        }
        // Of a forgotten one it is not known in which partitions its history was.
        if self.histories.unread() == 0 {
            for sums in self.forgotten_records.sums() {
                others.add(sums);
            }
        }
        WorkloadTable { rows, others, capped, capped_ended: ended + self.forgotten_workloads.len() }
    }

    /// Returns the counts of workloads and GPUs without series, and of unreadable events.
    fn counts(&self, table: &WorkloadTable<'_>) -> ExporterCounts {
        ExporterCounts {
            workloads_capped: table.capped,
            workloads_capped_ended: table.capped_ended,
            gpus_capped: self.capped_gpus.len(),
            has_given_up_savings: self.reporter.is_none(),
            unread_partitions: self.histories.unread(),
            unreadable_events: self.unreadable,
        }
    }

    /// Returns the sums of GPUs without a workload; `None` before a window of one was read, or its history was.
    fn idle_gpus(&self) -> Option<&WorkloadSeries> {
        self.workloads.get(GPUS_WITHOUT_WORKLOAD).filter(|series| series.is_shown)
    }

    /// Returns the GPUs that were sampled lately.
    fn gpu_rows(&self, at: Instant) -> impl Iterator<Item = GpuRow<'_>> {
        self.gpus.values().filter_map(move |gpu| Some(GpuRow { newest: gpu.newest(&self.sample_clocks, at)?, gpu }))
    }

    /// Lets those have series whose history was read, after their saving is estimated.
    fn queue_hidden(&mut self) {
        let hidden = self.workloads.iter().filter(|(_, series)| !series.is_shown && self.histories.are_read(&series.partitions));
        self.stale.extend(hidden.map(|(name, _)| name.clone()));
    }

    /// Estimates the saving of one workload whose history was read. Returns whether there was one.
    fn refresh_one(&mut self) -> bool {
        let is_read = |name: &&String| self.workloads.get(*name).is_none_or(|series| self.histories.are_read(&series.partitions));
        let Some(name) = self.stale.iter().find(is_read).cloned() else { return false };
        self.stale.remove(&name);
        let report = self.reporter_of(&name).and_then(|reporter| reporter.report_of(&name, &ReportSettings::default()));
        if let Some(series) = self.workloads.get_mut(&name) {
            if let Some(report) = report {
                series.set_saving(&SavingSummary::of([&report]));
            }
            if !series.is_shown {
                series.show(self.histories.is_cut(&series.partitions));
            }
        }
        true
    }
}

/// Workloads with series of their own, and the others.
#[derive(Debug)]
struct WorkloadTable<'a> {
    rows: Vec<WorkloadRow<'a>>,
    others: OtherWorkloads,
    /// Number of others that run.
    capped: usize,
    /// Number of others that have ended.
    capped_ended: usize,
}

/// Workloads and GPUs with series at present.
#[derive(Debug)]
pub struct SeriesSnapshot<'a> {
    pub workloads: Vec<WorkloadRow<'a>>,
    /// Sums of workloads without series of their own.
    pub others: OtherWorkloads,
    pub gpus: Vec<GpuRow<'a>>,
    /// Sums of GPUs without a workload.
    pub idle_gpus: Option<&'a WorkloadSeries>,
    pub counts: ExporterCounts,
}

/// A workload's series.
#[derive(Debug, Clone, Copy)]
pub struct WorkloadRow<'a> {
    pub namespace: &'a str,
    pub name: &'a str,
    pub series: &'a WorkloadSeries,
}

/// A GPU's series.
#[derive(Debug, Clone, Copy)]
pub struct GpuRow<'a> {
    pub newest: &'a GpuTelemetry,
    gpu: &'a GpuSeries,
}

impl<'a> GpuRow<'a> {
    pub fn energy_joules(&self) -> Option<f64> {
        self.gpu.counter.as_ref().map(|_| self.gpu.energy_joules)
    }

    /// Returns the namespace, name and share of the workloads that are on it.
    pub fn shares(&self) -> impl Iterator<Item = (&'a str, &'a str, f64)> + use<'a> {
        present_tenants(&self.gpu.samples).into_iter().filter_map(|(workload, share)| {
            let (namespace, name) = workload.split_once('/')?;
            Some((namespace, name, share.unwrap_or(1.0)))
        })
    }
}

impl<'a> WorkloadRow<'a> {
    fn labels(&self) -> [(&'static str, &'a str); 3] {
        [("namespace", self.namespace), ("workload", self.name), ("origin", origin_word(self.series.origin))]
    }
}

#[derive(Debug)]
struct WorkloadMetrics(Exporter);

impl Collector for WorkloadMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut state = self.0.state();
        state.settle(Instant::now());
        let table = state.workload_table();
        let rows: Vec<_> = table.rows.iter().map(|row| (row.labels(), row.series)).collect();
        for figure in WORKLOAD_COUNTERS {
            let mut family = encoder.encode_descriptor(figure.name, figure.help, None, MetricType::Counter)?;
            for (labels, series) in &rows {
                if let Some(value) = (figure.value)(series) {
                    ConstCounter::new(value).encode(family.encode_family(labels)?)?;
                }
            }
        }
        for figure in WORKLOAD_GAUGES {
            let mut family = encoder.encode_descriptor(figure.name, figure.help, None, MetricType::Gauge)?;
            for (labels, series) in &rows {
                if let Some(value) = (figure.value)(series) {
                    ConstGauge::new(value).encode(family.encode_family(labels)?)?;
                }
            }
            for sums in table.others.sums() {
                if let Some(value) = (figure.value)(sums) {
                    ConstGauge::new(value).encode(family.encode_family(&[("origin", origin_word(sums.origin))])?)?;
                }
            }
        }
        let (name, _, help) = OUTCOME;
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for ([namespace, workload, origin], series) in &rows {
            for (outcome, count) in series.outcomes() {
                let labels = [*namespace, *workload, *origin, ("outcome", outcome)];
                ConstCounter::new(count).encode(family.encode_family(&labels)?)?;
            }
        }
        let counts = state.counts(&table);
        for figure in WORKLOAD_COUNTS {
            if let Some(value) = (figure.value)(&counts) {
                let family = encoder.encode_descriptor(figure.name, figure.help, None, MetricType::Gauge)?;
                ConstGauge::new(value).encode(family)?;
            }
        }
        let (name, _, help) = UNREADABLE_EVENTS;
        let family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        ConstCounter::new(counts.unreadable_events).encode(family)
    }
}

#[derive(Debug)]
struct GpuMetrics(Exporter);

impl Collector for GpuMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut state = self.0.state();
        let now = Instant::now();
        state.settle(now);
        let gpus: Vec<GpuRow<'_>> = state.gpu_rows(now).collect();
        for figure in GPU_GAUGES {
            let mut family = encoder.encode_descriptor(figure.name, figure.help, None, MetricType::Gauge)?;
            for row in &gpus {
                if let Some(value) = (figure.value)(row.newest) {
                    ConstGauge::new(value).encode(family.encode_family(&of_gpu(row.newest))?)?;
                }
            }
        }
        let (name, _, help) = GPU_ENERGY;
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for row in &gpus {
            if let Some(joules) = row.energy_joules() {
                ConstCounter::new(joules).encode(family.encode_family(&of_gpu(row.newest))?)?;
            }
        }
        let (name, _, help) = IDLE_ENERGY;
        if let Some(joules) = state.idle_gpus().and_then(WorkloadSeries::energy_joules) {
            let family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            ConstCounter::new(joules).encode(family)?;
        }
        let (name, _, help) = GPU_SHARE;
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for row in &gpus {
            for (namespace, name, share) in row.shares() {
                let [device, node, _, origin] = of_gpu(row.newest);
                let labels = [device, node, origin, ("namespace", namespace), ("workload", name)];
                ConstGauge::new(share).encode(family.encode_family(&labels)?)?;
            }
        }
        let family = encoder.encode_descriptor(GPUS_CAPPED.name, GPUS_CAPPED.help, None, MetricType::Gauge)?;
        ConstGauge::new(state.capped_gpus.len() as f64).encode(family)
    }
}

/// GPU 0 of every host looks alike: the UUID and the node name it.
fn of_gpu(sample: &GpuTelemetry) -> [(&'static str, &str); 4] {
    [
        ("device", &sample.device),
        ("node", sample.node.as_deref().unwrap_or_default()),
        ("model", sample.gpu_model.as_deref().unwrap_or_default()),
        ("origin", origin_word(sample.origin)),
    ]
}
