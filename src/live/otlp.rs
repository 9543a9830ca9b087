//! The exporter's metrics for OpenTelemetry: sent by OTLP over HTTP or HTTPS, as protobuf.
//!
//! Sums are cumulative, those of workloads since their first window (or, if retention has deleted a part of their record, since
//! the exporter started) and those of GPUs since the exporter started, so that a report that is lost costs no figure. GPUs have the names of the semantic conventions of hardware (`hw.power`,
//! `hw.energy`, …), workloads have names of their own (`eadt.workload.…`).

use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use std::{io, iter};

use anyhow::Context as _;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use eadt_bus::RetryBackoff;
use eadt_schemas::EventTime;
use eadt_schemas::v1::GpuTelemetry;
use eadt_service::redact::hide_credentials;
use eadt_service::{ServiceClock, Shutdown};
use http_body_util::{BodyExt as _, Full};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue, USER_AGENT};
use hyper::{Method, Request, StatusCode, Uri};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use opentelemetry_proto::tonic::collector::metrics::v1::{ExportMetricsServiceRequest, ExportMetricsServiceResponse};
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value};
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Gauge, Metric, NumberDataPoint, ResourceMetrics, ScopeMetrics, Sum, number_data_point,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use percent_encoding::percent_decode_str;
use prost::Message as _;
use rustls::{AlertDescription, CertificateError, ClientConfig, RootCertStore};
use url::{Position, Url};

use super::exporter::{
    Exporter, ExporterCounts, GPU_ENERGY, GPU_GAUGES, GPU_SHARE, GPUS_CAPPED, IDLE_ENERGY, MetricSpec, OUTCOME, SeriesSnapshot,
    UNREADABLE_EVENTS, WORKLOAD_COUNTERS, WORKLOAD_COUNTS, WORKLOAD_GAUGES, WorkloadRow,
};
use super::origin_word;
use crate::settings::{OTLP_CERTIFICATE, OtlpSettings};

/// Longest time until a receiver answers.
const ANSWER: Duration = Duration::from_secs(10);
/// Bytes of an answer that are read.
const ANSWER_BYTES: usize = 64 << 10;
/// Version of the semantic conventions that the names of GPUs are from.
const SCHEMA_URL: &str = "https://opentelemetry.io/schemas/1.37.0";
const SENDING: &str = "the OTLP receiver does not take the metrics";

/// The reason why a report did not arrive.
#[derive(Debug, thiserror::Error)]
enum PushError {
    #[error("{0} cannot be reached: {1}")]
    Unreachable(String, String),
    #[error("{0} is not trusted: {1}")]
    Untrusted(String, String),
    #[error("{0} answered {1}: {2}")]
    Status(String, StatusCode, String),
}

/// Sends the metrics of an exporter to a receiver.
#[derive(Debug, Clone)]
pub struct OtlpPush {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    uri: Uri,
    headers: HeaderMap,
    /// The URL without parts that may be secret.
    shown: String,
    /// The file that [`OTLP_CERTIFICATE`] names.
    certificate: Option<PathBuf>,
    interval: Duration,
    /// Host and port: the process among those that send to one receiver.
    instance: String,
    exporter: Exporter,
    clock: ServiceClock,
    start: EventTime,
}

impl OtlpPush {
    /// An error names the setting or the variable that cannot be used.
    pub fn new(settings: &OtlpSettings, instance: String, exporter: Exporter, clock: ServiceClock) -> anyhow::Result<Self> {
        let receiver = settings.receiver().map_err(anyhow::Error::msg)?;
        let shown = hide_credentials(receiver.url.as_str()).into_owned();
        let authorities = match receiver.authorities {
            Some(authorities) => authorities,
            None if receiver.url.scheme() == "https" => machine_authorities(),
            None => RootCertStore::empty(),
        };
        let client = client(authorities).context("metrics.otlp.endpoint: no HTTP client could be made")?;
        let uri = uri(&receiver.url).context("metrics.otlp.endpoint is no URL of a request")?;
        let mut headers = receiver.headers;
        headers.entry(USER_AGENT).or_insert(HeaderValue::from_static(concat!("eadt/", env!("CARGO_PKG_VERSION"))));
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
        if let Some(authorization) = basic_authorization(&receiver.url) {
            headers.insert(AUTHORIZATION, authorization);
        }
        let (interval, start) = (Duration::from_secs_f64(settings.interval_seconds), clock.now());
        let certificate = settings.certificate.clone();
        Ok(Self { client, uri, headers, shown, certificate, interval, instance, exporter, clock, start })
    }

    /// Sends a report at every interval; the last figures are [`Self::send_last`]'s. A receiver that is away is no failure.
    pub async fn run(self, shutdown: Shutdown) -> Result<(), std::convert::Infallible> {
        let mut backoff = RetryBackoff::new(self.interval, self.interval);
        while tokio::time::timeout(self.interval, shutdown.cancelled()).await.is_err() {
            match self.send().await {
                Ok(()) => backoff.on_success(SENDING),
                Err(error) => drop(backoff.on_failure(SENDING, &error)),
            }
        }
        Ok(())
    }

    /// Sends a report now; a failure is logged.
    pub async fn send_last(&self) {
        if let Err(error) = self.send().await {
            tracing::warn!(%error, "{SENDING}: the last figures are missing there");
        }
    }

    async fn send(&self) -> Result<(), PushError> {
        let report = self.exporter.read_series(|series| report(series, &self.instance, self.start, self.clock.now()));
        let Ok(answered) = tokio::time::timeout(ANSWER, self.post(report.encode_to_vec())).await else {
            let late = format!("no answer within {} s", ANSWER.as_secs());
            return Err(PushError::Unreachable(self.shown.clone(), late));
        };
        let (status, body) = answered?;
        if !status.is_success() {
            let message: String = String::from_utf8_lossy(&body).chars().filter(|c| !c.is_control()).take(200).collect();
            return Err(PushError::Status(self.shown.clone(), status, message));
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

    /// Posts a report; returns the status and the beginning of the body of the answer.
    async fn post(&self, report: Vec<u8>) -> Result<(StatusCode, Vec<u8>), PushError> {
        let mut request = Request::new(Full::from(report));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.uri.clone();
        *request.headers_mut() = self.headers.clone();
        let response = self.client.request(request).await.map_err(|error| self.explain(&error))?;
        let (head, mut chunks) = response.into_parts();
        let mut body = Vec::new();
        while let Some(frame) = chunks.frame().await {
            if let Ok(chunk) = frame.map_err(|error| self.explain(&error))?.into_data() {
                body.extend_from_slice(&chunk[..chunk.len().min(ANSWER_BYTES - body.len())]);
            }
        }
        Ok((head.status, body))
    }

    /// Describes what happened, and what to do if that is known.
    fn explain(&self, error: &(dyn Error + 'static)) -> PushError {
        let unreachable = |what: String| PushError::Unreachable(self.shown.clone(), what);
        let what = causes(error).last().unwrap_or(error).to_string();
        let is_https = self.uri.scheme_str() == Some("https");
        match causes(error).find_map(|cause| cause.downcast_ref::<rustls::Error>()) {
            Some(rustls::Error::InvalidCertificate(error)) => {
                return PushError::Untrusted(self.shown.clone(), self.explain_certificate(error));
            }
            Some(rustls::Error::InvalidMessage(_)) => {
                return unreachable(format!("it does not use TLS ({what}): write http://, or the port that takes https"));
            }
            Some(rustls::Error::AlertReceived(AlertDescription::CertificateRequired)) => {
                let forwarder = "send to an OpenTelemetry Collector nearby, which has one and forwards";
                return unreachable(format!("it asks for a certificate of the client, and there is none to give: {forwarder}"));
            }
            _ => {}
        }
        let is_closed = |cause: &io::Error| cause.kind() == io::ErrorKind::UnexpectedEof;
        if is_https && causes(error).any(|cause| cause.downcast_ref::<io::Error>().is_some_and(is_closed)) {
            return unreachable(format!("it closed the connection ({what}): is this a port that takes https?"));
        }
        let http = causes(error).find_map(|cause| cause.downcast_ref::<hyper::Error>());
        if http.is_some_and(|error| error.is_parse() || error.is_incomplete_message()) {
            let remedy = if is_https { "is this the port for OTLP over HTTP?" } else { "if it takes https only, write https://" };
            return unreachable(format!("it does not answer by HTTP ({what}): {remedy}"));
        }
        unreachable(what)
    }

    /// Describes why a certificate is not trusted, and what to do.
    fn explain_certificate(&self, error: &CertificateError) -> String {
        match (error, &self.certificate) {
            // A signature is also wrong if another authority has the name of a known one.
            (CertificateError::UnknownIssuer | CertificateError::BadSignature, None) => format!(
                "no authority that this machine trusts has signed its certificate ({error}): name a PEM file with the authority's certificate in {OTLP_CERTIFICATE}"
            ),
            (CertificateError::UnknownIssuer | CertificateError::BadSignature, Some(file)) => format!(
                "no authority in {} has signed its certificate ({error}): {OTLP_CERTIFICATE} names that file, and it needs the authority's certificate",
                file.display()
            ),
            (CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. }, _) => {
                format!("{error}: write a name that is in its certificate into metrics.otlp.endpoint")
            }
            (
                CertificateError::Expired
                | CertificateError::ExpiredContext { .. }
                | CertificateError::NotValidYet
                | CertificateError::NotValidYetContext { .. },
                _,
            ) => format!("{error}: renew the receiver's certificate, or set this machine's clock"),
            _ => format!(
                "its certificate is not accepted ({error}): give the receiver one for servers, which an authority has signed"
            ),
        }
    }
}

/// Returns an error and its causes, the nearest to the root last.
fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    fn next<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a (dyn Error + 'static)> {
        match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            // `source` of an I/O error would skip the error that it carries.
            Some(carried) => Some(carried),
            None => error.source(),
        }
    }
    iter::successors(Some(error), |error| next(*error))
}

/// Makes a client that believes what these authorities have signed. It goes through no proxy and follows no redirect.
fn client(authorities: RootCertStore) -> Result<Client<HttpsConnector<HttpConnector>, Full<Bytes>>, rustls::Error> {
    // Named: the process has no default provider, and a build with several would not find one.
    let tls = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(authorities)
        .with_no_client_auth();
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_nodelay(true);
    let connector = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1().wrap_connector(http);
    Ok(Client::builder(TokioExecutor::new()).pool_timer(TokioTimer::new()).build(connector))
}

/// Reads the authorities that this machine trusts. If there are none, a warning is logged; a run does not end for it.
fn machine_authorities() -> RootCertStore {
    let found = rustls_native_certs::load_native_certs();
    let mut authorities = RootCertStore::empty();
    authorities.add_parsable_certificates(found.certs);
    if authorities.is_empty() {
        let reason = found.errors.first().map(ToString::to_string);
        tracing::warn!(
            reason,
            "metrics.otlp.endpoint is https, and this machine trusts no authority that signs certificates: install ca-certificates, or name a PEM file with the receiver's authority in {OTLP_CERTIFICATE}"
        );
    }
    authorities
}

/// Returns a URL without user, password and fragment.
fn uri(url: &Url) -> Result<Uri, hyper::http::uri::InvalidUri> {
    format!("{}://{}", url.scheme(), &url[Position::BeforeHost..Position::AfterQuery]).parse()
}

/// Makes a header of the user and the password of a URL.
fn basic_authorization(url: &Url) -> Option<HeaderValue> {
    if url.username().is_empty() && url.password().is_none() {
        return None;
    }
    let decode = |text: &str| percent_decode_str(text).collect::<Vec<u8>>();
    let pair = [decode(url.username()), decode(url.password().unwrap_or_default())].join(&b':');
    let mut value = HeaderValue::try_from(format!("Basic {}", BASE64_STANDARD.encode(pair))).expect("base64 is ASCII");
    value.set_sensitive(true);
    Some(value)
}

/// Start and end of the points of a report, in nanoseconds since 1970.
#[derive(Debug, Clone, Copy)]
struct PointTimes {
    start: u64,
    end: u64,
}

/// Makes a report of all series.
fn report(series: &SeriesSnapshot<'_>, instance: &str, start: EventTime, now: EventTime) -> ExportMetricsServiceRequest {
    let times = PointTimes { start: nanos(start), end: nanos(now) };
    let mut metrics = workload_metrics(series, times);
    for figure in &GPU_GAUGES {
        metrics.extend(gpu_gauge(figure, series, times));
    }
    let energy = series.gpus.iter().filter_map(|row| Some(times.point(of_gpu(row.newest), row.energy_joules()?)));
    metrics.extend(metric(GPU_ENERGY.1, GPU_ENERGY.2, true, energy.collect()));
    let idle = series.idle_gpus.and_then(|gpus| {
        let attributes = vec![attribute("eadt.origin", origin_word(gpus.origin))];
        Some(times.since(gpus.counted_since()).point(attributes, gpus.energy_joules()?))
    });
    metrics.extend(metric(IDLE_ENERGY.1, IDLE_ENERGY.2, true, idle.into_iter().collect()));
    let shares = series.gpus.iter().flat_map(|row| {
        row.shares().map(|(namespace, name, share)| {
            let mut attributes = of_gpu(row.newest);
            attributes.extend([attribute("eadt.workload.namespace", namespace), attribute("eadt.workload.name", name)]);
            times.point(attributes, share)
        })
    });
    metrics.extend(metric(GPU_SHARE.1, GPU_SHARE.2, false, shares.collect()));
    metrics.extend(count_metrics(&series.counts, times));
    let scope = InstrumentationScope {
        name: "eadt.exporter".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..InstrumentationScope::default()
    };
    let attributes = vec![
        attribute("service.name", "eadt-exporter"),
        attribute("service.instance.id", instance),
        attribute("service.version", env!("CARGO_PKG_VERSION")),
    ];
    ExportMetricsServiceRequest {
        resource_metrics: vec![ResourceMetrics {
            resource: Some(Resource { attributes, ..Resource::default() }),
            scope_metrics: vec![ScopeMetrics { scope: Some(scope), metrics, schema_url: SCHEMA_URL.to_owned() }],
            schema_url: SCHEMA_URL.to_owned(),
        }],
    }
}

/// Makes the metrics of workloads.
fn workload_metrics(series: &SeriesSnapshot<'_>, times: PointTimes) -> Vec<Metric> {
    let mut metrics = Vec::new();
    for (figures, is_sum) in [(&WORKLOAD_COUNTERS[..], true), (&WORKLOAD_GAUGES[..], false)] {
        for figure in figures {
            let points = series.workloads.iter().filter_map(|row| {
                let value = (figure.value)(row.series)?;
                Some(times.since(row.series.counted_since()).point(of_workload(row), value))
            });
            // Workloads without series of their own have gauges of the record only.
            let others = series.others.sums().filter(|_| !is_sum).filter_map(|sums| {
                let attributes = vec![attribute("eadt.origin", origin_word(sums.origin))];
                Some(times.point(attributes, (figure.value)(sums)?))
            });
            metrics.extend(metric(figure.instrument, figure.help, is_sum, points.chain(others).collect()));
        }
    }
    let outcomes = series.workloads.iter().flat_map(|row| {
        row.series.outcomes().map(|(outcome, count)| {
            let mut attributes = of_workload(row);
            attributes.push(attribute("eadt.outcome", outcome));
            times.since(row.series.counted_since()).point(attributes, count as f64)
        })
    });
    metrics.extend(metric(OUTCOME.1, OUTCOME.2, true, outcomes.collect()));
    metrics
}

/// Makes the metrics of what has no series, and of what could not be read.
fn count_metrics(counts: &ExporterCounts, times: PointTimes) -> Vec<Metric> {
    let gauges = WORKLOAD_COUNTS.iter().chain([&GPUS_CAPPED]).filter_map(|figure| {
        let point = times.point(Vec::new(), (figure.value)(counts)?);
        metric(figure.instrument, figure.help, false, vec![point])
    });
    let unreadable = times.point(Vec::new(), counts.unreadable_events as f64);
    gauges.chain(metric(UNREADABLE_EVENTS.1, UNREADABLE_EVENTS.2, true, vec![unreadable])).collect()
}

fn gpu_gauge(figure: &MetricSpec<GpuTelemetry>, series: &SeriesSnapshot<'_>, times: PointTimes) -> Option<Metric> {
    let points = series.gpus.iter().filter_map(|row| Some(times.point(of_gpu(row.newest), (figure.value)(row.newest)?)));
    metric(figure.instrument, figure.help, false, points.collect())
}

/// Returns a metric with its points; `None` without any.
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
    use eadt_service::MetricsRegistry;

    use super::*;
    use crate::settings::MetricsSettings;

    fn at(second: i64) -> EventTime {
        EventTime::from_micros(1_700_000_000_000_000 + second * 1_000_000)
    }

    #[test]
    fn user_and_password_of_the_url_go_into_a_header_only() {
        for (url, sent, authorization) in [
            ("https://h/v1/metrics?a=b#c", "https://h/v1/metrics?a=b", None),
            ("http://us%40er:pa%3Ass@[::1]:4318/x", "http://[::1]:4318/x", Some("us@er:pa:ss")),
            ("https://token@h:4318/x", "https://h:4318/x", Some("token:")),
        ] {
            let url: Url = url.parse().unwrap();
            assert_eq!(uri(&url).unwrap().to_string(), sent);
            let value = basic_authorization(&url);
            assert!(value.as_ref().is_none_or(HeaderValue::is_sensitive));
            let text = value.map(|value| {
                let pair = value.to_str().unwrap().strip_prefix("Basic ").unwrap().to_owned();
                String::from_utf8(BASE64_STANDARD.decode(pair).unwrap()).unwrap()
            });
            assert_eq!(text.as_deref(), authorization);
        }
    }

    /// Returns one workload with a window, and the two samples of a GPU that it shares.
    fn exporter() -> Exporter {
        let exporter = Exporter::new(&MetricsRegistry::default(), MetricsSettings::default());
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
        // Workloads since their first window, GPUs and counts since the exporter started.
        let is_of_workload = |it: &NumberDataPoint| metric.name.starts_with("eadt.workload") && !it.attributes.is_empty();
        let start = |it: &NumberDataPoint| if is_of_workload(it) { at(0) } else { at(30) };
        assert!(points.iter().all(|it| (it.start_time_unix_nano, it.time_unix_nano) == (nanos(start(it)), nanos(at(90)))));
        (metric.name.clone(), metric.unit.clone(), is_sum, points.iter().map(|point| (attributes(point), value(point))).collect())
    }

    #[test]
    fn gpus_have_the_conventions_names_and_workloads_their_own() {
        let report = exporter().read_series(|series| report(series, "host:9464", at(30), at(90)));
        let [resource] = &*report.resource_metrics else { panic!("{report:?}") };
        let [scope] = &*resource.scope_metrics else { panic!("{report:?}") };
        let of_process = &resource.resource.as_ref().unwrap().attributes;
        assert!(of_process.contains(&attribute("service.instance.id", "host:9464")), "{of_process:?}");
        assert_eq!([&*resource.schema_url, &*scope.schema_url], [SCHEMA_URL; 2]);
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
            ("eadt.gpu.last_sample_time", "s", false, gpu.to_owned(), at(60).micros() as f64 / 1e6),
            // What has no series is counted here, too.
            ("eadt.workload.capped", "{workload}", false, String::new(), 0.0),
            ("eadt.workload.capped_ended", "{workload}", false, String::new(), 0.0),
            ("eadt.workload.savings_given_up", "1", false, String::new(), 0.0),
            ("eadt.workload.unread_partitions", "{partition}", false, String::new(), 0.0),
            ("eadt.workload.unreadable_events", "{event}", true, String::new(), 0.0),
            ("eadt.gpu.capped", "{gpu}", false, String::new(), 0.0),
        ] {
            let found = metrics.iter().find(|metric| metric.0 == name).unwrap_or_else(|| panic!("{name}: {metrics:#?}"));
            assert_eq!((&*found.1, found.2, found.3.get(&attributes)), (unit, is_sum, Some(&value)), "{name}: {found:?}");
        }
        // A figure that is unknown has no point, and a metric without points is left out.
        for name in ["eadt.workload.saving", "hw.temperature", "eadt.gpu.power_limit"] {
            assert!(!metrics.iter().any(|metric| metric.0 == name), "{name}");
        }
    }
}
