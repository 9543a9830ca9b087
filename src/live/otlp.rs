//! The exporter's metrics for OpenTelemetry: sent by OTLP over HTTP, as protobuf.
//!
//! Sums are cumulative, those of workloads since their first window on record and those of GPUs since the exporter started, so that a report
//! that is lost costs no figure. GPUs have the names of the semantic conventions of hardware (`hw.power`, `hw.energy`, …), workloads have names
//! of their own (`eadt.workload.…`).

use std::error::Error;
use std::time::Duration;

use anyhow::Context as _;
use eadt_bus::Patience;
use eadt_schemas::EventTime;
use eadt_schemas::v1::GpuTelemetry;
use eadt_service::{Clock, Shutdown};
use opentelemetry_proto::tonic::collector::metrics::v1::{ExportMetricsServiceRequest, ExportMetricsServiceResponse};
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value};
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Gauge, Metric, NumberDataPoint, ResourceMetrics, ScopeMetrics, Sum, number_data_point,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use prost::Message as _;
use reqwest::{Client, StatusCode, Url};

use super::exporter::{
    Exporter, Figure, GPU_ENERGY, GPU_GAUGES, GPU_SHARE, OUTCOME, Series, WORKLOAD_COUNTERS, WORKLOAD_GAUGES, WorkloadRow,
};
use super::origin_word;
use crate::settings::OtlpSettings;

/// How long a receiver may take to answer.
const ANSWER: Duration = Duration::from_secs(10);
/// Bytes of an answer that are read.
const ANSWER_BYTES: usize = 64 << 10;
const SENDING: &str = "the OTLP receiver does not take the metrics";

/// Why a report did not arrive.
#[derive(Debug, thiserror::Error)]
enum PushError {
    #[error("{0} cannot be reached: {1}")]
    Unreachable(String, String),
    #[error("{0} answered {1}: {2}")]
    Status(String, StatusCode, String),
}

/// Sends the metrics of an exporter to a receiver.
#[derive(Debug, Clone)]
pub struct OtlpPush {
    client: Client,
    url: Url,
    /// The URL without what may be a secret.
    shown: String,
    interval: Duration,
    exporter: Exporter,
    clock: Clock,
    start: EventTime,
}

impl OtlpPush {
    /// An error names the setting or the variable that cannot be used.
    pub fn new(settings: &OtlpSettings, exporter: Exporter, clock: Clock) -> anyhow::Result<Self> {
        let (url, headers) = settings.receiver().map_err(anyhow::Error::msg)?;
        let mut shown = url.clone();
        shown.set_query(None);
        let cleared = shown.set_username("").and(shown.set_password(None));
        // Neither can fail for http; were it otherwise, nothing of the URL is shown.
        let shown = if cleared.is_ok() { shown.to_string() } else { "the receiver".to_owned() };
        let client = Client::builder()
            .timeout(ANSWER)
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .user_agent(concat!("eadt/", env!("CARGO_PKG_VERSION")))
            .default_headers(headers)
            .build()
            .context("metrics.otlp.endpoint: no HTTP client could be made")?;
        let (interval, start) = (Duration::from_secs_f64(settings.interval_seconds), clock.now());
        Ok(Self { client, url, shown, interval, exporter, clock, start })
    }

    /// Sends a report at every interval and a last one at the end. A receiver that is away is no failure.
    pub async fn run(self, shutdown: Shutdown) -> Result<(), std::convert::Infallible> {
        let mut patience = Patience::new(self.interval, self.interval);
        loop {
            let ends = tokio::time::timeout(self.interval, shutdown.cancelled()).await.is_ok();
            match self.send().await {
                Ok(()) => patience.worked(SENDING),
                Err(error) => drop(patience.failed(SENDING, &error)),
            }
            if ends {
                return Ok(());
            }
        }
    }

    /// Sends a report now; a failure is said.
    pub async fn send_last(&self) {
        if let Err(error) = self.send().await {
            tracing::warn!(%error, "{SENDING}: the last figures are missing there");
        }
    }

    async fn send(&self) -> Result<(), PushError> {
        let report = self.exporter.read_series(|series| report(series, self.start, self.clock.now()));
        let unreachable = |error: reqwest::Error| PushError::Unreachable(self.shown.clone(), root_cause(error));
        let request = self.client.post(self.url.clone()).header("content-type", "application/x-protobuf");
        let mut response = request.body(report.encode_to_vec()).send().await.map_err(unreachable)?;
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(unreachable)? {
            body.extend_from_slice(&chunk[..chunk.len().min(ANSWER_BYTES - body.len())]);
        }
        if !response.status().is_success() {
            let said: String = String::from_utf8_lossy(&body).chars().filter(|c| !c.is_control()).take(200).collect();
            return Err(PushError::Status(self.shown.clone(), response.status(), said));
        }
        let partial = ExportMetricsServiceResponse::decode(&*body).ok().and_then(|answer| answer.partial_success);
        if let Some(partial) = partial.filter(|partial| partial.rejected_data_points > 0) {
            tracing::warn!(
                receiver = self.shown,
                rejected = partial.rejected_data_points,
                reason = partial.error_message,
                "the OTLP receiver refused some of the metrics"
            );
        }
        Ok(())
    }
}

/// What happened, of an error that itself repeats the URL.
fn root_cause(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut cause: &dyn Error = &error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

/// When the points of a report begin and end, in nanoseconds since 1970.
#[derive(Debug, Clone, Copy)]
struct PointTimes {
    start: u64,
    end: u64,
}

/// Makes a report of all series.
fn report(series: &Series<'_>, start: EventTime, now: EventTime) -> ExportMetricsServiceRequest {
    let times = PointTimes { start: nanos(start), end: nanos(now) };
    let mut metrics = Vec::new();
    for (figures, is_sum) in [(&WORKLOAD_COUNTERS[..], true), (&WORKLOAD_GAUGES[..], false)] {
        for figure in figures {
            let points = series.workloads.iter().filter_map(|row| {
                let value = (figure.value)(row.series)?;
                Some(times.since(row.series.first_window).point(of_workload(row), value))
            });
            metrics.extend(metric(figure.instrument, figure.help, is_sum, points.collect()));
        }
    }
    let outcomes = series.workloads.iter().flat_map(|row| {
        row.series.outcomes.iter().map(|(outcome, count)| {
            let mut attributes = of_workload(row);
            attributes.push(attribute("eadt.outcome", outcome));
            times.since(row.series.first_window).point(attributes, *count as f64)
        })
    });
    metrics.extend(metric(OUTCOME.1, OUTCOME.2, true, outcomes.collect()));
    for figure in &GPU_GAUGES {
        metrics.extend(gpu_gauge(figure, series, times));
    }
    let energy = series.gpus.iter().filter_map(|row| Some(times.point(of_gpu(row.newest), row.energy_joules()?)));
    metrics.extend(metric(GPU_ENERGY.1, GPU_ENERGY.2, true, energy.collect()));
    let shares = series.gpus.iter().flat_map(|row| {
        row.shares().map(|(namespace, name, share)| {
            let mut attributes = of_gpu(row.newest);
            attributes.extend([attribute("eadt.workload.namespace", namespace), attribute("eadt.workload.name", name)]);
            times.point(attributes, share)
        })
    });
    metrics.extend(metric(GPU_SHARE.1, GPU_SHARE.2, false, shares.collect()));
    let scope = InstrumentationScope {
        name: "eadt.exporter".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..InstrumentationScope::default()
    };
    let attributes = vec![attribute("service.name", "eadt-exporter"), attribute("service.version", env!("CARGO_PKG_VERSION"))];
    ExportMetricsServiceRequest {
        resource_metrics: vec![ResourceMetrics {
            resource: Some(Resource { attributes, ..Resource::default() }),
            scope_metrics: vec![ScopeMetrics { scope: Some(scope), metrics, ..ScopeMetrics::default() }],
            ..ResourceMetrics::default()
        }],
    }
}

fn gpu_gauge(figure: &Figure<GpuTelemetry>, series: &Series<'_>, times: PointTimes) -> Option<Metric> {
    let points = series.gpus.iter().filter_map(|row| Some(times.point(of_gpu(row.newest), (figure.value)(row.newest)?)));
    metric(figure.instrument, figure.help, false, points.collect())
}

/// A metric with its points; `None` without any.
fn metric((name, unit): (&str, &str), help: &str, is_sum: bool, data_points: Vec<NumberDataPoint>) -> Option<Metric> {
    if data_points.is_empty() {
        return None;
    }
    let data = if is_sum {
        let aggregation_temporality = AggregationTemporality::Cumulative.into();
        Data::Sum(Sum { data_points, aggregation_temporality, is_monotonic: true })
    } else {
        Data::Gauge(Gauge { data_points })
    };
    let (name, unit, description) = (name.to_owned(), unit.to_owned(), help.to_owned());
    Some(Metric { name, unit, description, data: Some(data), ..Metric::default() })
}

/// Nanoseconds since 1970.
fn nanos(time: EventTime) -> u64 {
    u64::try_from(time.micros()).unwrap_or_default().saturating_mul(1000)
}

impl PointTimes {
    /// Begins with a window if that lies before.
    fn since(self, first_window: Option<EventTime>) -> Self {
        Self { start: first_window.map_or(self.start, |first| nanos(first).min(self.start)), ..self }
    }

    fn point(self, attributes: Vec<KeyValue>, value: f64) -> NumberDataPoint {
        NumberDataPoint {
            attributes,
            start_time_unix_nano: self.start,
            time_unix_nano: self.end,
            value: Some(number_data_point::Value::AsDouble(value)),
            ..NumberDataPoint::default()
        }
    }
}

fn attribute(key: &str, value: &str) -> KeyValue {
    let value = AnyValue { value: Some(any_value::Value::StringValue(value.to_owned())) };
    KeyValue { key: key.to_owned(), value: Some(value), ..KeyValue::default() }
}

fn of_workload(row: &WorkloadRow<'_>) -> Vec<KeyValue> {
    vec![
        attribute("eadt.workload.namespace", row.namespace),
        attribute("eadt.workload.name", row.name),
        attribute("eadt.origin", origin_word(row.series.origin)),
    ]
}

fn of_gpu(sample: &GpuTelemetry) -> Vec<KeyValue> {
    let mut attributes = vec![
        attribute("hw.id", &sample.device),
        attribute("hw.type", "gpu"),
        attribute("eadt.origin", origin_word(sample.origin)),
    ];
    for (key, value) in [("host.name", &sample.node), ("hw.model", &sample.gpu_model)] {
        attributes.extend(value.as_deref().map(|value| attribute(key, value)));
    }
    attributes
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use eadt_schemas::Topic;
    use eadt_schemas::v1::{EfficiencyWindow, Origin};
    use eadt_service::Metrics;

    use super::*;
    use crate::settings::MetricsSettings;

    fn at(second: i64) -> EventTime {
        EventTime::from_micros(1_700_000_000_000_000 + second * 1_000_000)
    }

    /// One workload with a window, and the two samples of a GPU that it shares.
    fn exporter() -> Exporter {
        let exporter = Exporter::new(&Metrics::default(), MetricsSettings::default());
        let window = EfficiencyWindow {
            id: "w".into(),
            workload: "team/bert".into(),
            window_start: at(0),
            window_end: at(60),
            energy_joules: Some(600.0),
            energy_coverage_ratio: 1.0,
            run_seconds: 60.0,
            run_energy_joules: Some(600.0),
            run_coverage_ratio: 1.0,
            samples: Some(40.0),
            progress_coverage_ratio: 1.0,
            mean_power_watts: Some(10.0),
            origin: Origin::Simulated,
            ..EfficiencyWindow::default()
        };
        exporter.take(Topic::EfficiencyWindows, &serde_json::to_vec(&window).unwrap());
        for (second, joules) in [(59, 1e6), (60, 1e6 + 500.0)] {
            let sample = GpuTelemetry {
                time: at(second),
                device: "GPU-1".into(),
                workload: Some("team/bert".into()),
                collector: "c".into(),
                node: Some("node-1".into()),
                power_watts: Some(250.0),
                energy_joules_total: Some(joules),
                share: Some(0.5),
                ..GpuTelemetry::default()
            };
            exporter.take(Topic::GpuTelemetry, &serde_json::to_vec(&sample).unwrap());
        }
        exporter
    }

    /// Name, unit and whether it is a monotonic cumulative sum; points by their attributes.
    type Shown = (String, String, bool, BTreeMap<String, f64>);

    fn shown(metric: &Metric) -> Shown {
        let (points, is_sum) = match metric.data.as_ref().unwrap() {
            Data::Sum(sum) => {
                assert!(sum.is_monotonic && sum.aggregation_temporality == AggregationTemporality::Cumulative as i32);
                (&sum.data_points, true)
            }
            Data::Gauge(gauge) => (&gauge.data_points, false),
            other => panic!("{other:?}"),
        };
        let value = |point: &NumberDataPoint| match point.value {
            Some(number_data_point::Value::AsDouble(value)) => value,
            other => panic!("{other:?}"),
        };
        let attributes = |point: &NumberDataPoint| {
            let text = |pair: &KeyValue| match pair.value.as_ref().and_then(|value| value.value.as_ref()) {
                Some(any_value::Value::StringValue(text)) => format!("{}={text}", pair.key),
                other => panic!("{other:?}"),
            };
            point.attributes.iter().map(text).collect::<Vec<_>>().join(" ")
        };
        // Workloads since their first window, GPUs since the exporter started.
        let start = if metric.name.starts_with("eadt.workload") { at(0) } else { at(30) };
        assert!(points.iter().all(|it| (it.start_time_unix_nano, it.time_unix_nano) == (nanos(start), nanos(at(90)))));
        (metric.name.clone(), metric.unit.clone(), is_sum, points.iter().map(|point| (attributes(point), value(point))).collect())
    }

    #[test]
    fn gpus_have_the_conventions_names_and_workloads_their_own() {
        let report = exporter().read_series(|series| report(series, at(30), at(90)));
        let [resource] = &*report.resource_metrics else { panic!("{report:?}") };
        let [scope] = &*resource.scope_metrics else { panic!("{report:?}") };
        let metrics: Vec<Shown> = scope.metrics.iter().map(shown).collect();
        let gpu = "hw.id=GPU-1 hw.type=gpu eadt.origin=measured host.name=node-1";
        let workload = "eadt.workload.namespace=team eadt.workload.name=bert eadt.origin=simulated";
        for (name, unit, is_sum, attributes, value) in [
            ("hw.power", "W", false, gpu.to_owned(), 250.0),
            ("hw.energy", "J", true, gpu.to_owned(), 500.0),
            ("eadt.gpu.share", "1", false, format!("{gpu} eadt.workload.namespace=team eadt.workload.name=bert"), 0.5),
            ("eadt.workload.energy", "J", true, workload.to_owned(), 600.0),
            ("eadt.workload.samples", "{sample}", true, workload.to_owned(), 40.0),
            ("eadt.workload.power", "W", false, workload.to_owned(), 10.0),
            ("eadt.workload.outcomes", "{outcome}", true, format!("{workload} eadt.outcome=reverted"), 0.0),
        ] {
            let found = metrics.iter().find(|metric| metric.0 == name).unwrap_or_else(|| panic!("{name}: {metrics:#?}"));
            assert_eq!((&*found.1, found.2, found.3.get(&attributes)), (unit, is_sum, Some(&value)), "{name}: {found:?}");
        }
        // Of what is not known there is no point, and a metric without points is left out.
        for name in ["eadt.workload.saving", "hw.temperature", "eadt.gpu.power_limit"] {
            assert!(!metrics.iter().any(|metric| metric.0 == name), "{name}");
        }
    }
}
