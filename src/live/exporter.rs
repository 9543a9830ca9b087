//! Metrics by workload and GPU, for Prometheus and (by [`super::otlp`]) OpenTelemetry: from the same events, by the same code as
//! the views and the report.
//!
//! Energy and samples are counters over the same windows, so that a query divides their rates and never figures of unlike spans.
//! A saving is an estimate that may fall, and so a gauge beside the energy that it is of. Workloads and GPUs beyond the limits
//! have no series and are counted.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use eadt_report::{ReportSettings, Reporter};
use eadt_schemas::decode::DecodableEvent;
use eadt_schemas::v1::{Actuation, ActuationOutcome, Decision, EfficiencyWindow, GpuTelemetry, Origin, WindowKind};
use eadt_schemas::{EventTime, Topic, decode};
use eadt_service::MetricsRegistry;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use super::event_line::outcome_of;
use super::origin_word;
use crate::settings::MetricsSettings;

/// Windows kept for estimating savings, of all workloads: some hundred bytes each. Beyond, savings are given up, and that is a
/// metric.
const WINDOWS: u64 = 500_000;
/// A GPU without samples for so long has no series.
const GONE_SECONDS: f64 = 300.0;
/// Everything that may come of a decision, so that each is there with 0 before it first happens.
pub const OUTCOMES: [&str; 9] =
    ["maintain", "changed", "reverted", "kept", "ready", "refused", "recommended", "rolled_back", "failed"];

/// Topics that it reads.
pub const TOPICS: [Topic; 4] = [Topic::EfficiencyWindows, Topic::Decisions, Topic::Actuations, Topic::GpuTelemetry];

/// Figures of a workload since the exporter started.
#[derive(Debug, Default)]
pub struct WorkloadSeries {
    pub origin: Origin,
    power_watts: Option<f64>,
    /// `None`: of no window is it known, which is no 0.
    energy_joules: Option<f64>,
    /// Energy of the windows whose samples are known. `None`: of no window is energy known, and `samples` have no series either.
    progress_energy_joules: Option<f64>,
    /// Of windows whose energy is known.
    samples: f64,
    samples_without_energy: f64,
    tokens: f64,
    /// Windows with a restart.
    restarts: u64,
    windows: u64,
    /// When the first window on record begins: the sums are since then.
    pub first_window: Option<EventTime>,
    last_window: Option<EventTime>,
    pub outcomes: BTreeMap<&'static str, u64>,
    saving_joules: Option<f64>,
    compared_joules: Option<f64>,
    expected_joules: Option<f64>,
}

/// Of a GPU.
#[derive(Debug, Default)]
struct GpuSeries {
    /// The newest of each that uses it.
    samples: BTreeMap<Option<String>, GpuTelemetry>,
    energy_joules: f64,
    counter: Option<CounterReading>,
}

/// The newest reading of a GPU's energy counter.
#[derive(Debug)]
struct CounterReading {
    /// Whose it is: counters of two collectors differ by what they were read apart.
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
}

#[derive(Debug, Default)]
struct ExporterState {
    settings: MetricsSettings,
    workloads: BTreeMap<String, WorkloadSeries>,
    gpus: BTreeMap<String, GpuSeries>,
    newest_sample: Option<EventTime>,
    /// Names beyond the limits.
    capped_workloads: BTreeSet<String>,
    capped_gpus: BTreeSet<String>,
    unreadable: u64,
    reporter: Option<Reporter>,
    windows: u64,
    stale: BTreeSet<String>,
}

/// Takes events in and shows them as metrics. Clones share them.
#[derive(Debug, Clone)]
pub struct Exporter(Arc<Mutex<ExporterState>>);

impl Exporter {
    /// Registers its metrics: `eadt_workload_…` and `eadt_gpu_…`.
    pub fn new(metrics: &MetricsRegistry, settings: MetricsSettings) -> Self {
        let state = ExporterState { settings, reporter: Some(Reporter::default()), ..ExporterState::default() };
        let this = Self(Arc::new(Mutex::new(state)));
        metrics.register("workload", |registry| registry.register_collector(Box::new(WorkloadMetrics(this.clone()))));
        metrics.register("gpu", |registry| registry.register_collector(Box::new(GpuMetrics(this.clone()))));
        this
    }

    /// Takes one record's value; events of other topics are ignored.
    pub fn take(&self, topic: Topic, value: &[u8]) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match topic {
            Topic::EfficiencyWindows => state.read(value, ExporterState::window),
            Topic::Decisions => state.read(value, ExporterState::decision),
            Topic::Actuations => state.read(value, ExporterState::actuation),
            Topic::GpuTelemetry => state.read(value, ExporterState::sample),
            _ => {}
        }
    }

    /// Brings the savings of one more workload up to date; whether there are others.
    pub fn refresh_one(&self) -> bool {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.refresh_one();
        !state.stale.is_empty()
    }

    /// Shows what has series at present.
    pub fn read_series<T>(&self, read: impl FnOnce(&SeriesSnapshot<'_>) -> T) -> T {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        read(&SeriesSnapshot { workloads: state.workload_rows().collect(), gpus: state.gpu_rows().collect() })
    }

    /// A series of each metric, for the reference of metrics.
    pub fn touch(&self) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(series) = state.series("namespace/name") {
            (series.saving_joules, series.compared_joules, series.expected_joules) = (Some(0.0), Some(0.0), Some(0.0));
            (series.power_watts, series.energy_joules, series.progress_energy_joules) = (Some(0.0), Some(0.0), Some(0.0));
        }
        let sample = GpuTelemetry {
            device: "GPU".into(),
            workload: Some("namespace/name".into()),
            share: Some(1.0),
            power_watts: Some(0.0),
            power_limit_watts: Some(0.0),
            energy_joules_total: Some(0.0),
            ..GpuTelemetry::default()
        };
        state.sample(&sample);
    }
}

impl ExporterState {
    fn read<T: DecodableEvent>(&mut self, value: &[u8], take: fn(&mut Self, &T)) {
        match decode::<T>(value) {
            Ok(event) => take(self, &event),
            Err(_) => self.unreadable += 1,
        }
    }

    /// The series of a workload; `None` if it is beyond the limit.
    fn series(&mut self, name: &str) -> Option<&mut WorkloadSeries> {
        if !self.workloads.contains_key(name) {
            if self.workloads.len() >= self.settings.workloads_max {
                // Names are another program's, and so is their number.
                if self.capped_workloads.len() < 100_000 {
                    self.capped_workloads.insert(name.to_owned());
                }
                return None;
            }
            let outcomes = OUTCOMES.into_iter().map(|outcome| (outcome, 0)).collect();
            self.workloads.insert(name.to_owned(), WorkloadSeries { outcomes, ..WorkloadSeries::default() });
        }
        self.workloads.get_mut(name)
    }

    fn window(&mut self, window: &EfficiencyWindow) {
        if window.kind != WindowKind::Tumbling {
            return;
        }
        let Some(series) = self.series(&window.workload) else { return };
        series.origin = series.origin.max(window.origin);
        series.power_watts = window.mean_power_watts;
        series.first_window = Some(series.first_window.map_or(window.window_start, |first| first.min(window.window_start)));
        series.last_window = series.last_window.max(Some(window.window_end));
        series.windows += 1;
        series.restarts += u64::from(window.has_restart());
        let unassigned = Some(window.unassigned_energy_joules).filter(|joules| *joules > 0.0);
        for joules in window.run_energy_joules.into_iter().chain(unassigned) {
            *series.energy_joules.get_or_insert(0.0) += joules.max(0.0);
        }
        series.tokens += window.tokens.unwrap_or(0.0).max(0.0);
        match (window.energy_of_progress(), window.samples.map(|samples| samples.max(0.0))) {
            (Some(joules), Some(samples)) => {
                *series.progress_energy_joules.get_or_insert(0.0) += joules.max(0.0);
                series.samples += samples;
            }
            // Both begin with 0 here, so that the rates have the first window with samples.
            (Some(_), None) => series.progress_energy_joules = series.progress_energy_joules.or(Some(0.0)),
            (None, samples) => series.samples_without_energy += samples.unwrap_or(0.0),
        }
        self.windows += 1;
        if self.windows > WINDOWS && self.reporter.take().is_some() {
            tracing::warn!(windows = WINDOWS, "savings are not exported any more: there are too many windows to keep");
            for series in self.workloads.values_mut() {
                (series.saving_joules, series.compared_joules, series.expected_joules) = (None, None, None);
            }
        }
        if let Some(reporter) = &mut self.reporter {
            reporter.add_window(window);
            self.stale.insert(window.workload.clone());
        }
    }

    fn count(&mut self, workload: &str, origin: Origin, outcome: Option<&'static str>) {
        let Some(series) = self.series(workload) else { return };
        series.origin = series.origin.max(origin);
        if let Some(outcome) = outcome {
            *series.outcomes.entry(outcome).or_default() += 1;
        }
    }

    fn decision(&mut self, decision: &Decision) {
        self.count(&decision.workload, decision.origin, Some(outcome_of(decision)));
        if let Some(reporter) = self.reporter.as_mut().filter(|_| self.workloads.contains_key(&decision.workload)) {
            reporter.add_decision(decision);
        }
    }

    fn actuation(&mut self, actuation: &Actuation) {
        let outcome = match actuation.outcome {
            // Counted as what was decided.
            ActuationOutcome::Applied => None,
            ActuationOutcome::Ready => Some("ready"),
            ActuationOutcome::Refused => Some("refused"),
            ActuationOutcome::Recommended => Some("recommended"),
            ActuationOutcome::RolledBack => Some("rolled_back"),
            ActuationOutcome::Failed => Some("failed"),
        };
        self.count(&actuation.workload, actuation.origin, outcome);
        if let Some(reporter) = self.reporter.as_mut().filter(|_| self.workloads.contains_key(&actuation.workload)) {
            reporter.add_actuation(actuation);
        }
    }

    fn sample(&mut self, sample: &GpuTelemetry) {
        self.newest_sample = self.newest_sample.max(Some(sample.time));
        if !self.gpus.contains_key(&sample.device) && self.gpus.len() >= self.settings.gpus_max {
            if self.capped_gpus.len() < 100_000 {
                self.capped_gpus.insert(sample.device.clone());
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
        // Who left without a last event.
        gpu.samples.retain(|_, known| sample.time.seconds_since(known.time) < GONE_SECONDS);
    }

    fn workload_rows(&self) -> impl Iterator<Item = WorkloadRow<'_>> {
        self.workloads.iter().map(|(name, series)| {
            let (namespace, name) = name.split_once('/').unwrap_or(("", name));
            WorkloadRow { namespace, name, series }
        })
    }

    /// Those that were sampled lately.
    fn gpu_rows(&self) -> impl Iterator<Item = GpuRow<'_>> {
        let is_fresh =
            |sample: &GpuTelemetry| self.newest_sample.is_some_and(|now| now.seconds_since(sample.time) < GONE_SECONDS);
        self.gpus.values().filter_map(move |gpu| {
            let newest = gpu.samples.values().max_by_key(|sample| sample.time).filter(|newest| is_fresh(newest))?;
            Some(GpuRow { newest, gpu })
        })
    }

    fn refresh_one(&mut self) {
        let Some(name) = self.stale.pop_first() else { return };
        let Some(report) = self.reporter.as_ref().and_then(|reporter| reporter.report_of(&name, &ReportSettings::default()))
        else {
            return;
        };
        let Some(series) = self.workloads.get_mut(&name) else { return };
        let summary = eadt_report::SavingSummary::of([&report]);
        series.saving_joules = summary.saving_joules();
        series.expected_joules = summary.expected_joules;
        series.compared_joules = summary.expected_joules.map(|_| summary.compared_joules);
    }
}

/// A figure of each workload or GPU, under its names.
#[derive(Debug, Clone, Copy)]
pub struct MetricSpec<T> {
    /// Behind `eadt_workload_` or `eadt_gpu_` in the text for Prometheus.
    pub name: &'static str,
    /// The instrument in OTLP, and its unit in UCUM.
    pub instrument: (&'static str, &'static str),
    pub help: &'static str,
    pub value: fn(&T) -> Option<f64>,
}

/// Counters of a workload.
pub const WORKLOAD_COUNTERS: [MetricSpec<WorkloadSeries>; 7] = [
    MetricSpec {
        name: "energy_joules",
        instrument: ("eadt.workload.energy", "J"),
        help: "Energy of the run in closed windows, and energy that fitted in none; absent while none is known",
        value: |it| it.energy_joules,
    },
    MetricSpec {
        name: "progress_energy_joules",
        instrument: ("eadt.workload.progress_energy", "J"),
        help: "Energy of the windows whose samples are known: over the samples it is J/sample; absent while none is known",
        value: |it| it.progress_energy_joules,
    },
    MetricSpec {
        name: "samples",
        instrument: ("eadt.workload.samples", "{sample}"),
        help: "Samples of closed windows whose energy is known, redone work left out; absent while none is known",
        // Beside its energy from the first value on: a rate of one that lacks the other's first window is no J/sample.
        value: |it| it.progress_energy_joules.map(|_| it.samples),
    },
    MetricSpec {
        name: "samples_without_energy",
        instrument: ("eadt.workload.samples_without_energy", "{sample}"),
        help: "Samples of closed windows whose energy is not known: they are in no J/sample",
        value: |it| Some(it.samples_without_energy),
    },
    MetricSpec {
        name: "tokens",
        instrument: ("eadt.workload.tokens", "{token}"),
        help: "Tokens of closed windows",
        value: |it| Some(it.tokens),
    },
    MetricSpec {
        name: "restart_windows",
        instrument: ("eadt.workload.restart_windows", "{window}"),
        help: "Closed windows with a restart or rollout",
        value: |it| Some(it.restarts as f64),
    },
    MetricSpec {
        name: "windows",
        instrument: ("eadt.workload.windows", "{window}"),
        help: "Closed windows",
        value: |it| Some(it.windows as f64),
    },
];

/// Gauges of a workload.
pub const WORKLOAD_GAUGES: [MetricSpec<WorkloadSeries>; 5] = [
    MetricSpec {
        name: "power_watts",
        instrument: ("eadt.workload.power", "W"),
        help: "Mean power of the newest window",
        value: |it| it.power_watts,
    },
    MetricSpec {
        name: "saving_joules",
        instrument: ("eadt.workload.saving", "J"),
        help: "Estimated saving in the windows that can be compared, negative: a loss; an estimate, so it may fall",
        value: |it| it.saving_joules,
    },
    MetricSpec {
        name: "compared_joules",
        instrument: ("eadt.workload.compared_energy", "J"),
        help: "Energy that the saving is of; the rest cannot be compared",
        value: |it| it.compared_joules,
    },
    MetricSpec {
        name: "expected_joules",
        instrument: ("eadt.workload.expected_energy", "J"),
        help: "Energy that the starting layout would have taken for the samples of the compared windows",
        value: |it| it.expected_joules,
    },
    MetricSpec {
        name: "last_window_timestamp_seconds",
        instrument: ("eadt.workload.last_window_time", "s"),
        help: "End of the newest window, in event time",
        value: |it| it.last_window.map(|time| time.micros() as f64 / 1e6),
    },
];

/// The counter of decisions and what came of them, by outcome.
pub const OUTCOME: (&str, (&str, &str), &str) = (
    "outcomes",
    ("eadt.workload.outcomes", "{outcome}"),
    "Decisions and what came of them: maintain, changed, reverted, kept; ready, refused, recommended, rolled_back, failed",
);

/// Gauges of a GPU, at its newest sample. In OTLP they have the names of the semantic conventions of hardware, where these have
/// one.
pub const GPU_GAUGES: [MetricSpec<GpuTelemetry>; 4] = [
    MetricSpec {
        name: "power_watts",
        instrument: ("hw.power", "W"),
        help: "Power of the whole GPU at its newest sample",
        value: |it| it.power_watts.or(it.power_average_watts),
    },
    MetricSpec {
        name: "power_limit_watts",
        instrument: ("eadt.gpu.power_limit", "W"),
        help: "Power cap in force",
        value: |it| it.power_limit_watts,
    },
    MetricSpec {
        name: "utilization_ratio",
        instrument: ("hw.gpu.utilization", "1"),
        help: "Part of the time in which a kernel ran",
        value: |it| it.utilization_ratio,
    },
    MetricSpec {
        name: "temperature_celsius",
        instrument: ("hw.temperature", "Cel"),
        help: "Temperature of the die",
        value: |it| it.temperature_celsius,
    },
];

/// The counter of a GPU's energy.
pub const GPU_ENERGY: (&str, (&str, &str), &str) = (
    "energy_joules",
    ("hw.energy", "J"),
    "Energy of the whole GPU by its own counter, since the exporter started; a GPU without a counter has none",
);

/// The part of a GPU that is a workload's.
pub const GPU_SHARE: (&str, (&str, &str), &str) = (
    "share_ratio",
    ("eadt.gpu.share", "1"),
    "Part of the GPU's power that is attributed to the workload; what is missing to 1 is nobody's",
);

/// What has series at present.
#[derive(Debug)]
pub struct SeriesSnapshot<'a> {
    pub workloads: Vec<WorkloadRow<'a>>,
    pub gpus: Vec<GpuRow<'a>>,
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

    /// Namespace, name and share of those who use it.
    pub fn shares(&self) -> impl Iterator<Item = (&'a str, &'a str, f64)> + use<'a> {
        self.gpu.samples.iter().filter_map(|(workload, sample)| {
            let (namespace, name) = workload.as_deref()?.split_once('/')?;
            Some((namespace, name, sample.share.unwrap_or(1.0)))
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
        let state = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        let rows: Vec<_> = state.workload_rows().map(|row| (row.labels(), row.series)).collect();
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
        }
        let (name, _, help) = OUTCOME;
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for ([namespace, workload, origin], series) in &rows {
            for (outcome, count) in &series.outcomes {
                let labels = [*namespace, *workload, *origin, ("outcome", *outcome)];
                ConstCounter::new(*count).encode(family.encode_family(&labels)?)?;
            }
        }
        let totals = [
            ("capped", "Workloads without series of their own, beyond metrics.workloads_max", state.capped_workloads.len()),
            ("savings_given_up", "1 since there are too many windows to estimate savings", usize::from(state.reporter.is_none())),
        ];
        for (name, help, value) in totals {
            let family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            ConstGauge::new(value as f64).encode(family)?;
        }
        let help = "Events that could not be read";
        let family = encoder.encode_descriptor("unreadable_events", help, None, MetricType::Counter)?;
        ConstCounter::new(state.unreadable).encode(family)
    }
}

#[derive(Debug)]
struct GpuMetrics(Exporter);

impl Collector for GpuMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let state = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        let gpus: Vec<GpuRow<'_>> = state.gpu_rows().collect();
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
        let (name, _, help) = GPU_SHARE;
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for row in &gpus {
            for (namespace, name, share) in row.shares() {
                let [device, node, _, origin] = of_gpu(row.newest);
                let labels = [device, node, origin, ("namespace", namespace), ("workload", name)];
                ConstGauge::new(share).encode(family.encode_family(&labels)?)?;
            }
        }
        let help = "GPUs without series of their own, beyond metrics.gpus_max";
        let family = encoder.encode_descriptor("capped", help, None, MetricType::Gauge)?;
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

#[cfg(test)]
mod tests {
    use eadt_schemas::v1::ControllerAction;

    use super::*;

    fn at(minute: i64) -> EventTime {
        EventTime::from_micros(1_700_000_040_000_000 + minute * 60_000_000)
    }

    fn window(name: &str, minute: i64) -> EfficiencyWindow {
        EfficiencyWindow {
            id: format!("{name}/{minute}"),
            workload: name.into(),
            window_start: at(minute),
            window_end: at(minute + 1),
            energy_joules: Some(6000.0),
            energy_coverage_ratio: 1.0,
            run_seconds: 60.0,
            run_energy_joules: Some(6000.0),
            run_coverage_ratio: 1.0,
            samples: Some(100.0),
            progress_coverage_ratio: 1.0,
            mean_power_watts: Some(100.0),
            ..EfficiencyWindow::default()
        }
    }

    #[test]
    fn energy_that_is_not_known_is_no_zero_and_its_samples_are_counted_apart() {
        let metrics = MetricsRegistry::default();
        let exporter = Exporter::new(&metrics, MetricsSettings::default());
        let unknown = EfficiencyWindow {
            energy_joules: None,
            run_energy_joules: None,
            energy_coverage_ratio: 0.0,
            run_coverage_ratio: 0.0,
            mean_power_watts: None,
            ..window("a/x", 0)
        };
        let counted = |name: &str| {
            let line = format!("eadt_workload_{name}_total{{namespace=\"a\",workload=\"x\",origin=\"measured\"}} ");
            metrics.text().lines().find_map(|shown| shown.strip_prefix(&*line).map(str::to_owned))
        };
        exporter.take(Topic::EfficiencyWindows, &serde_json::to_vec(&unknown).unwrap());
        let pair = || (counted("progress_energy_joules"), counted("samples"));
        assert_eq!((counted("energy_joules"), pair()), (None, (None, None)));
        assert_eq!(counted("samples_without_energy").as_deref(), Some("100.0"));
        // Energy and samples of J/sample begin together, with 0 if there was energy before the first sample.
        let loading = EfficiencyWindow { samples: None, progress_coverage_ratio: 0.0, ..window("a/x", 1) };
        let shown = |joules: &str, samples: &str| (Some(joules.to_owned()), Some(samples.to_owned()));
        for (window, expected) in
            [(loading, shown("0.0", "0.0")), (unknown, shown("0.0", "0.0")), (window("a/x", 2), shown("6000.0", "100.0"))]
        {
            exporter.take(Topic::EfficiencyWindows, &serde_json::to_vec(&window).unwrap());
            assert_eq!(pair(), expected);
        }
        assert_eq!(counted("samples_without_energy").as_deref(), Some("200.0"));
        exporter.take(Topic::EfficiencyWindows, &serde_json::to_vec(&window("a/x", 3)).unwrap());
        assert_eq!(pair(), shown("12000.0", "200.0"));
    }

    #[test]
    fn what_has_not_happened_is_zero_and_what_is_beyond_the_limit_is_counted() {
        let metrics = MetricsRegistry::default();
        let limits = MetricsSettings { workloads_max: 2, gpus_max: 1, ..MetricsSettings::default() };
        let exporter = Exporter::new(&metrics, limits);
        let take = |topic, event: &dyn erased::Event| exporter.take(topic, &event.bytes());
        for name in ["a/x", "a/y", "a/z", "b/z"] {
            for minute in 0..2 {
                take(Topic::EfficiencyWindows, &window(name, minute));
            }
        }
        let revert = Decision {
            id: "d".into(),
            workload: "a/x".into(),
            time: at(2),
            action: ControllerAction::Revert,
            ..Decision::default()
        };
        take(Topic::Decisions, &revert);
        // The counter of GPU-1 goes on by 150 J and is reset, whatever another collector says and in whatever order its tenants'
        // samples come.
        for (device, workload, share, second, collector, joules) in [
            ("GPU-1", "a/x", 0.25, 0.0, "c", 1e6),
            ("GPU-1", "a/x", 0.25, 0.5, "dcgm", 1e6 - 10.0),
            ("GPU-1", "a/x", 0.25, 1.0, "c", 1e6 + 100.0),
            ("GPU-1", "a/y", 0.75, 0.0, "c", 1e6),
            ("GPU-1", "a/y", 0.75, 1.0, "c", 1e6 + 100.0),
            ("GPU-1", "a/y", 0.75, 1.5, "dcgm", 1e6 + 90.0),
            ("GPU-1", "a/y", 0.75, 2.0, "c", 1e6 + 150.0),
            ("GPU-1", "a/y", 0.75, 3.0, "c", 3.0),
            ("GPU-2", "a/y", 1.0, 3.0, "c", 0.0),
        ] {
            let sample = GpuTelemetry {
                energy_joules_total: Some(joules),
                time: at(2).plus_seconds(second),
                device: device.into(),
                workload: Some(workload.into()),
                collector: collector.into(),
                power_watts: Some(300.0),
                share: Some(share),
                ..GpuTelemetry::default()
            };
            take(Topic::GpuTelemetry, &sample);
        }
        exporter.take(Topic::Decisions, b"{}");
        while exporter.refresh_one() {}
        let text = metrics.text();
        for line in [
            "eadt_workload_energy_joules_total{namespace=\"a\",workload=\"x\",origin=\"measured\"} 12000.0",
            "eadt_workload_samples_total{namespace=\"a\",workload=\"y\",origin=\"measured\"} 200.0",
            "eadt_workload_outcomes_total{namespace=\"a\",workload=\"x\",origin=\"measured\",outcome=\"reverted\"} 1",
            "eadt_workload_outcomes_total{namespace=\"a\",workload=\"y\",origin=\"measured\",outcome=\"reverted\"} 0",
            "eadt_workload_capped 2.0",
            "eadt_workload_unreadable_events_total 1",
            "eadt_gpu_power_watts{device=\"GPU-1\",node=\"\",model=\"\",origin=\"measured\"} 300.0",
            "eadt_gpu_energy_joules_total{device=\"GPU-1\",node=\"\",model=\"\",origin=\"measured\"} 150.0",
            "eadt_gpu_share_ratio{device=\"GPU-1\",node=\"\",origin=\"measured\",namespace=\"a\",workload=\"y\"} 0.75",
            "eadt_gpu_capped 1.0",
        ] {
            assert!(text.lines().any(|shown| shown == line), "{line}: {text}");
        }
        // Nothing was applied, so no saving is stated.
        assert!(!text.contains("eadt_workload_saving_joules{") && !text.contains("\"b\""), "{text}");
    }

    mod erased {
        /// An event as its bytes.
        pub trait Event {
            fn bytes(&self) -> Vec<u8>;
        }

        impl<T: serde::Serialize> Event for T {
            fn bytes(&self) -> Vec<u8> {
                serde_json::to_vec(self).unwrap()
            }
        }
    }
}
