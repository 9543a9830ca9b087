//! Metrics by workload and GPU, for Prometheus: from the same events, by the same code as the views and the report.
//!
//! Energy and samples are counters over the same windows, so that a query divides their rates and never figures of unlike spans. A saving is
//! an estimate that may fall, and so a gauge beside the energy that it is of. Workloads and GPUs beyond the limits have no series and are counted.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use eadt_report::{Reporter, Settings as ReportSettings};
use eadt_schemas::decode::Check;
use eadt_schemas::v1::{Actuation, Decision, EfficiencyWindow, GpuTelemetry, Origin, Outcome, WindowKind};
use eadt_schemas::{EventTime, Topic, decode};
use eadt_service::Metrics;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use super::event_line::outcome_of;
use super::origin_word;
use crate::settings::MetricsSettings;

/// Windows kept for estimating savings, of all workloads: some hundred bytes each. Beyond, savings are given up, and that is a metric.
const WINDOWS: u64 = 500_000;
/// A GPU without samples for so long has no series.
const GONE_SECONDS: f64 = 300.0;
/// Everything that may come of a decision, so that each is there with 0 before it first happens.
pub const OUTCOMES: [&str; 9] =
    ["maintain", "changed", "reverted", "kept", "ready", "refused", "recommended", "rolled_back", "failed"];

/// Topics that it reads.
pub const TOPICS: [Topic; 4] = [Topic::EfficiencyWindows, Topic::Decisions, Topic::Actuations, Topic::GpuTelemetry];

#[derive(Debug, Default)]
struct WorkloadSeries {
    origin: Origin,
    power_watts: Option<f64>,
    energy_joules: f64,
    /// Energy of the windows whose samples are known.
    progress_energy_joules: f64,
    samples: f64,
    tokens: f64,
    /// Windows with a restart.
    restarts: u64,
    windows: u64,
    last_window: Option<EventTime>,
    outcomes: BTreeMap<&'static str, u64>,
    saving_joules: Option<f64>,
    compared_joules: Option<f64>,
    expected_joules: Option<f64>,
}

#[derive(Debug, Default)]
struct State {
    settings: MetricsSettings,
    workloads: BTreeMap<String, WorkloadSeries>,
    gpus: BTreeMap<String, BTreeMap<Option<String>, GpuTelemetry>>,
    newest_sample: Option<EventTime>,
    /// Names beyond the limits.
    capped_workloads: BTreeSet<String>,
    capped_gpus: BTreeSet<String>,
    unreadable: u64,
    reporter: Option<Reporter>,
    windows: u64,
    stale: BTreeSet<String>,
}

/// Reads one figure of a sample.
type GpuFigure = fn(&GpuTelemetry) -> Option<f64>;

/// Takes events in and shows them as metrics. Clones share them.
#[derive(Debug, Clone)]
pub struct Exporter(Arc<Mutex<State>>);

impl Exporter {
    /// Registers its metrics: `eadt_workload_…` and `eadt_gpu_…`.
    pub fn new(metrics: &Metrics, settings: MetricsSettings) -> Self {
        let state = State { settings, reporter: Some(Reporter::default()), ..State::default() };
        let this = Self(Arc::new(Mutex::new(state)));
        metrics.register("workload", |registry| registry.register_collector(Box::new(Workloads(this.clone()))));
        metrics.register("gpu", |registry| registry.register_collector(Box::new(GpuFigures(this.clone()))));
        this
    }

    /// Takes one record's value; events of other topics are ignored.
    pub fn take(&self, topic: Topic, value: &[u8]) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match topic {
            Topic::EfficiencyWindows => state.read(value, State::window),
            Topic::Decisions => state.read(value, State::decision),
            Topic::Actuations => state.read(value, State::actuation),
            Topic::GpuTelemetry => state.read(value, State::sample),
            _ => {}
        }
    }

    /// Brings the savings of one more workload up to date; whether there are others.
    pub fn refresh_one(&self) -> bool {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.refresh_one();
        !state.stale.is_empty()
    }

    /// A series of each metric, for the reference of metrics.
    pub fn touch(&self) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(series) = state.series("namespace/name") {
            (series.saving_joules, series.compared_joules, series.expected_joules) = (Some(0.0), Some(0.0), Some(0.0));
            series.power_watts = Some(0.0);
        }
        let sample = GpuTelemetry {
            device: "GPU".into(),
            workload: Some("namespace/name".into()),
            share: Some(1.0),
            power_watts: Some(0.0),
            power_limit_watts: Some(0.0),
            ..GpuTelemetry::default()
        };
        state.sample(&sample);
    }
}

impl State {
    fn read<T: Check>(&mut self, value: &[u8], take: fn(&mut Self, &T)) {
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
        series.last_window = series.last_window.max(Some(window.window_end));
        series.windows += 1;
        series.restarts += u64::from(window.has_restart());
        series.energy_joules += window.run_energy_joules.unwrap_or(0.0).max(0.0) + window.unassigned_energy_joules.max(0.0);
        series.tokens += window.tokens.unwrap_or(0.0).max(0.0);
        if let (Some(joules), Some(samples)) = (window.energy_of_progress(), window.samples) {
            series.progress_energy_joules += joules.max(0.0);
            series.samples += samples.max(0.0);
        }
        self.windows += 1;
        if self.windows > WINDOWS && self.reporter.take().is_some() {
            tracing::warn!(windows = WINDOWS, "savings are not exported any more: there are too many windows to keep");
            for series in self.workloads.values_mut() {
                (series.saving_joules, series.compared_joules, series.expected_joules) = (None, None, None);
            }
        }
        if let Some(reporter) = &mut self.reporter {
            reporter.window(window);
            self.stale.insert(window.workload.clone());
        }
    }

    fn count(&mut self, workload: &str, outcome: Option<&'static str>) {
        if let (Some(series), Some(outcome)) = (self.series(workload), outcome) {
            *series.outcomes.entry(outcome).or_default() += 1;
        }
    }

    fn decision(&mut self, decision: &Decision) {
        self.count(&decision.workload, Some(outcome_of(decision)));
        if let Some(reporter) = self.reporter.as_mut().filter(|_| self.workloads.contains_key(&decision.workload)) {
            reporter.decision(decision);
        }
    }

    fn actuation(&mut self, actuation: &Actuation) {
        let outcome = match actuation.outcome {
            // Counted as what was decided.
            Outcome::Applied => None,
            Outcome::Ready => Some("ready"),
            Outcome::Refused => Some("refused"),
            Outcome::Recommended => Some("recommended"),
            Outcome::RolledBack => Some("rolled_back"),
            Outcome::Failed => Some("failed"),
        };
        self.count(&actuation.workload, outcome);
        if let Some(reporter) = self.reporter.as_mut().filter(|_| self.workloads.contains_key(&actuation.workload)) {
            reporter.actuation(actuation);
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
        let of_device = self.gpus.entry(sample.device.clone()).or_default();
        if sample.last {
            of_device.remove(&sample.workload);
        } else {
            of_device.insert(sample.workload.clone(), sample.clone());
        }
        // Who left without a last event.
        of_device.retain(|_, known| sample.time.seconds_since(known.time) < GONE_SECONDS);
    }

    fn refresh_one(&mut self) {
        let Some(name) = self.stale.pop_first() else { return };
        let Some(report) = self.reporter.as_ref().and_then(|reporter| reporter.report_of(&name, &ReportSettings::default()))
        else {
            return;
        };
        let Some(series) = self.workloads.get_mut(&name) else { return };
        let summary = eadt_report::Summary::of([&report]);
        series.saving_joules = summary.saving_joules();
        series.expected_joules = summary.expected_joules;
        series.compared_joules = summary.expected_joules.map(|_| summary.compared_joules);
    }
}

/// A metric with one figure for each workload.
type Figure = fn(&WorkloadSeries) -> Option<f64>;

const COUNTERS: [(&str, &str, Figure); 6] = [
    ("energy_joules", "Energy of the run in closed windows, and energy that fitted in none", |it| Some(it.energy_joules)),
    (
        "progress_energy_joules",
        "Energy of the windows whose samples are known: over eadt_workload_samples it is J/sample",
        |it| Some(it.progress_energy_joules),
    ),
    ("samples", "Samples of closed windows, redone work left out", |it| Some(it.samples)),
    ("tokens", "Tokens of closed windows", |it| Some(it.tokens)),
    ("restart_windows", "Closed windows with a restart or rollout", |it| Some(it.restarts as f64)),
    ("windows", "Closed windows", |it| Some(it.windows as f64)),
];

const GAUGES: [(&str, &str, Figure); 5] = [
    ("power_watts", "Mean power of the newest window", |it| it.power_watts),
    (
        "saving_joules",
        "Estimated saving in the windows that can be compared, negative: a loss; an estimate, so it may fall",
        |it| it.saving_joules,
    ),
    ("compared_joules", "Energy that the saving is of; the rest cannot be compared", |it| it.compared_joules),
    ("expected_joules", "Energy that the starting layout would have taken for the samples of the compared windows", |it| {
        it.expected_joules
    }),
    ("last_window_timestamp_seconds", "End of the newest window, in event time", |it| {
        it.last_window.map(|time| time.micros() as f64 / 1e6)
    }),
];

#[derive(Debug)]
struct Workloads(Exporter);

impl Collector for Workloads {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let state = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        let rows: Vec<([(&str, &str); 3], &WorkloadSeries)> = state
            .workloads
            .iter()
            .map(|(name, series)| {
                let (namespace, name) = name.split_once('/').unwrap_or(("", name));
                ([("namespace", namespace), ("workload", name), ("origin", origin_word(series.origin))], series)
            })
            .collect();
        for (name, help, figure) in COUNTERS {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (labels, series) in &rows {
                ConstCounter::new(figure(series).unwrap_or(0.0)).encode(family.encode_family(labels)?)?;
            }
        }
        for (name, help, figure) in GAUGES {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (labels, series) in &rows {
                if let Some(value) = figure(series) {
                    ConstGauge::new(value).encode(family.encode_family(labels)?)?;
                }
            }
        }
        let help = "Decisions and what came of them: maintain, changed, reverted, kept; ready, refused, recommended, rolled_back, failed";
        let mut family = encoder.encode_descriptor("outcomes", help, None, MetricType::Counter)?;
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
struct GpuFigures(Exporter);

impl Collector for GpuFigures {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let state = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = |sample: &GpuTelemetry| state.newest_sample.is_some_and(|now| now.seconds_since(sample.time) < GONE_SECONDS);
        let gpus: Vec<(&BTreeMap<Option<String>, GpuTelemetry>, &GpuTelemetry)> = state
            .gpus
            .values()
            .filter_map(|of_device| Some((of_device, of_device.values().max_by_key(|sample| sample.time)?)))
            .filter(|(_, newest)| fresh(newest))
            .collect();
        let figures: [(&str, &str, GpuFigure); 4] = [
            ("power_watts", "Power of the whole GPU at its newest sample", |it| it.power_watts.or(it.power_average_watts)),
            ("power_limit_watts", "Power cap in force", |it| it.power_limit_watts),
            ("utilization_ratio", "Part of the time in which a kernel ran", |it| it.utilization_ratio),
            ("temperature_celsius", "Temperature of the die", |it| it.temperature_celsius),
        ];
        for (name, help, figure) in figures {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (_, newest) in &gpus {
                if let Some(value) = figure(newest) {
                    ConstGauge::new(value).encode(family.encode_family(&of_gpu(newest))?)?;
                }
            }
        }
        let help = "Part of the GPU's power that is attributed to the workload; what is missing to 1 is nobody's";
        let mut family = encoder.encode_descriptor("share_ratio", help, None, MetricType::Gauge)?;
        for (of_device, newest) in &gpus {
            for (workload, sample) in *of_device {
                let Some((namespace, name)) = workload.as_deref().and_then(|name| name.split_once('/')) else { continue };
                let [device, node, _, origin] = of_gpu(newest);
                let labels = [device, node, origin, ("namespace", namespace), ("workload", name)];
                ConstGauge::new(sample.share.unwrap_or(1.0)).encode(family.encode_family(&labels)?)?;
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
    use eadt_schemas::v1::Action;

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
    fn what_has_not_happened_is_zero_and_what_is_beyond_the_limit_is_counted() {
        let metrics = Metrics::default();
        let limits = MetricsSettings { by_workload: true, workloads_max: 2, gpus_max: 1 };
        let exporter = Exporter::new(&metrics, limits);
        let take = |topic, event: &dyn erased::Event| exporter.take(topic, &event.bytes());
        for name in ["a/x", "a/y", "a/z", "b/z"] {
            for minute in 0..2 {
                take(Topic::EfficiencyWindows, &window(name, minute));
            }
        }
        let revert =
            Decision { id: "d".into(), workload: "a/x".into(), time: at(2), action: Action::Revert, ..Decision::default() };
        take(Topic::Decisions, &revert);
        for (device, workload, share) in [("GPU-1", "a/x", 0.25), ("GPU-1", "a/y", 0.75), ("GPU-2", "a/y", 1.0)] {
            let sample = GpuTelemetry {
                time: at(2),
                device: device.into(),
                workload: Some(workload.into()),
                collector: "c".into(),
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
