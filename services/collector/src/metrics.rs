//! The collector's metrics, prefix `eadt_collector_`.

use eadt_service::MetricsRegistry;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use std::sync::atomic::AtomicU64;

/// Reasons why an event is not delivered.
const DROP_REASONS: [&str; 5] = ["buffer_full", "delivery_failed", "unconfirmed", "shutdown", "refused"];

/// Reason why an event was not delivered: `buffer_full`, `delivery_failed`, `unconfirmed`, `shutdown`, `refused`. Reason why a
/// connection was ended: `tls`, `slow`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ReasonLabel {
    pub reason: &'static str,
}

/// Kind of source: `nvml`, `dcgm`, `progress`, `job`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct SourceLabel {
    pub source: &'static str,
}

/// UUID of a GPU, or `index-N` while it could not be opened.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct DeviceLabel {
    pub device: String,
}

/// A device and the reading that failed.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct DeviceCallLabel {
    pub device: String,
    pub call: &'static str,
}

/// A scraped URL and how the scrape ended: `ok`, `unreachable`, `timeout`, `status`, `too_large`, `not_text`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ScrapeLabel {
    pub target: String,
    pub outcome: &'static str,
}

/// A scraped URL and what was skipped: `malformed`, `sentinel`, `duplicate`, `implausible`, `no_device`,
/// `mig_instance`, `no_workload`, `unchanged`, `out_of_order`, `device_limit`; `no_usable_series`: a whole answer.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct SkippedLabel {
    pub target: String,
    pub kind: &'static str,
}

/// Endpoint (`v1`, `kubeflow`, `none` for a path without one) and HTTP status code of the answer.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RequestLabel {
    pub endpoint: &'static str,
    pub code: u16,
}

/// HTTP status code that one event of a request would have alone.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct CodeLabel {
    pub code: u16,
}

/// Outcome of an unknown token of a service account: `accepted`, `refused`, `unanswered` by the API server, or `put_off` because
/// too many were unknown.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct OutcomeLabel {
    pub outcome: &'static str,
}

fn touch<L: Clone + std::hash::Hash + Eq, M: Default>(family: &Family<L, M>, label: &L) {
    drop(family.get_or_create(label));
}

/// All metrics of the collector. Clones share them.
#[derive(Debug, Clone)]
pub struct CollectorMetrics {
    pub sampled: Family<SourceLabel, Counter>,
    pub sent: Counter,
    pub dropped: Family<ReasonLabel, Counter>,
    pub buffer_events: Gauge,
    pub buffer_bytes: Gauge,
    pub in_flight_events: Gauge,
    pub log_reachable: Gauge,
    pub assignments_failed: Gauge,
    pub kubelet_up: Gauge,
    pub kubelet_failures: Counter,
    pub kubelet_unmatched: Gauge,
    pub kubelet_unknown_pods: Gauge,
    pub device_up: Family<DeviceLabel, Gauge>,
    pub device_stuck: Family<DeviceLabel, Gauge>,
    pub samples_missed: Family<DeviceLabel, Counter>,
    pub readings_failed: Family<DeviceCallLabel, Counter>,
    pub readings_implausible: Family<DeviceCallLabel, Counter>,
    pub read_duration: Histogram,
    pub counter_trusted: Family<DeviceLabel, Gauge>,
    pub counter_error: Family<DeviceLabel, Gauge<f64, AtomicU64>>,
    pub counter_resets: Family<DeviceLabel, Counter>,
    pub scrapes: Family<ScrapeLabel, Counter>,
    pub scrape_skipped: Family<SkippedLabel, Counter>,
    pub requests: Family<RequestLabel, Counter>,
    pub progress_refused: Family<CodeLabel, Counter>,
    pub absent_values: Counter,
    pub directives_readable: Gauge,
    pub progress_sources: Gauge,
    pub connections_refused: Family<ReasonLabel, Counter>,
    pub secrets_failed: Gauge,
    pub token_reviews: Family<OutcomeLabel, Counter>,
}

impl CollectorMetrics {
    /// Registers all of them.
    pub fn new(metrics: &MetricsRegistry) -> Self {
        metrics.register("collector", Self::register)
    }

    fn register(registry: &mut Registry) -> Self {
        let all = Self {
            sampled: Family::default(),
            sent: Counter::default(),
            dropped: Family::default(),
            buffer_events: Gauge::default(),
            buffer_bytes: Gauge::default(),
            in_flight_events: Gauge::default(),
            log_reachable: Gauge::default(),
            assignments_failed: Gauge::default(),
            kubelet_up: Gauge::default(),
            kubelet_failures: Counter::default(),
            kubelet_unmatched: Gauge::default(),
            kubelet_unknown_pods: Gauge::default(),
            device_up: Family::default(),
            device_stuck: Family::default(),
            samples_missed: Family::default(),
            readings_failed: Family::default(),
            readings_implausible: Family::default(),
            read_duration: Histogram::new(exponential_buckets(1e-5, 4.0, 10)),
            counter_trusted: Family::default(),
            counter_error: Family::default(),
            counter_resets: Family::default(),
            scrapes: Family::default(),
            scrape_skipped: Family::default(),
            requests: Family::default(),
            progress_refused: Family::default(),
            absent_values: Counter::default(),
            directives_readable: Gauge::default(),
            progress_sources: Gauge::default(),
            connections_refused: Family::default(),
            secrets_failed: Gauge::default(),
            token_reviews: Family::default(),
        };
        registry.register("events_sampled", "Events taken from a source, by kind of source", all.sampled.clone());
        registry.register("events_sent", "Events that the log acknowledged", all.sent.clone());
        registry.register("events_dropped", "Events that did not reach the log, by reason", all.dropped.clone());
        registry.register("buffer_events", "Events waiting for the log", all.buffer_events.clone());
        registry.register_with_unit("buffer", "Size of the events waiting for the log", Unit::Bytes, all.buffer_bytes.clone());
        registry.register(
            "in_flight_events",
            "Events handed to the log that it has not acknowledged yet",
            all.in_flight_events.clone(),
        );
        registry.register(
            "log_reachable",
            "1 while the log accepts events, 0 while it refuses them or has acknowledged nothing of the oldest of them for 5 s",
            all.log_reachable.clone(),
        );
        registry.register("assignments_failed", "1 while the assignments file cannot be used", all.assignments_failed.clone());
        registry.register("kubelet_up", "1 while the kubelet reports which pods use GPUs", all.kubelet_up.clone());
        registry.register("kubelet_failures", "Requests that the kubelet did not answer", all.kubelet_failures.clone());
        registry.register(
            "kubelet_unmatched",
            "Devices of pods that are matched with no GPU: unknown MIG instances, claims, names that are no UUID",
            all.kubelet_unmatched.clone(),
        );
        registry.register(
            "kubelet_unknown_pods",
            "Pods with GPUs whose workload is not known; their part is attributed to no workload",
            all.kubelet_unknown_pods.clone(),
        );
        registry.register("device_up", "1 while the GPU is open and answers", all.device_up.clone());
        registry.register("device_stuck", "1 while a call to the GPU has not returned in time", all.device_stuck.clone());
        registry.register("samples_missed", "Due samples for which the GPU returned no reading", all.samples_missed.clone());
        registry.register("readings_failed", "Failed readings, without unsupported ones", all.readings_failed.clone());
        registry.register(
            "readings_implausible",
            "Readings left out because their value is impossible",
            all.readings_implausible.clone(),
        );
        registry.register_with_unit(
            "read_duration",
            "Time that one sample of one GPU takes",
            Unit::Seconds,
            all.read_duration.clone(),
        );
        registry.register(
            "energy_counter_trusted",
            "1 where the energy counter agreed with integrated power, 0 where it did not and is left out",
            all.counter_trusted.clone(),
        );
        registry.register_with_unit(
            "energy_counter_error",
            "Counter over integrated power at the last check, less 1",
            Unit::Other("ratio".into()),
            all.counter_error.clone(),
        );
        registry.register("energy_counter_resets", "Times the energy counter fell", all.counter_resets.clone());
        registry.register("scrapes", "Scrapes, by target and outcome", all.scrapes.clone());
        registry.register(
            "scrape_skipped",
            "Lines, series and samples of scrapes that were not used, by kind",
            all.scrape_skipped.clone(),
        );
        registry.register(
            "progress_requests",
            "Requests to the progress endpoint, by endpoint and status code",
            all.requests.clone(),
        );
        registry.register(
            "progress_events_refused",
            "Events posted to the progress endpoint that were not accepted, by the status code that each would have alone",
            all.progress_refused.clone(),
        );
        registry.register(
            "progress_absent_values",
            "Values posted to the progress endpoint that are not numbers, treated as absent",
            all.absent_values.clone(),
        );
        registry.register(
            "directives_readable",
            "1 while the directives to jobs are read from the log, 0 while they cannot be",
            all.directives_readable.clone(),
        );
        registry.register("progress_sources", "Progress sources known now", all.progress_sources.clone());
        registry.register(
            "progress_connections_refused",
            "Connections of senders that were ended, by reason: no TLS (tls), too slow (slow), without a valid token while another sender waits (gave_way) or too often (unknown)",
            all.connections_refused.clone(),
        );
        registry.register(
            "progress_secrets_failed",
            "1 while the tokens file or the certificate cannot be read; the last good ones are in force",
            all.secrets_failed.clone(),
        );
        registry.register(
            "progress_token_reviews",
            "Requests to the API server about tokens of service accounts, by outcome; put_off: not sent, because there were too many",
            all.token_reviews.clone(),
        );
        all
    }

    /// Gives every labelled metric one series, so that what is written about the registry misses none: a family
    /// without series does not show.
    pub fn touch(&self) {
        let device = DeviceLabel { device: String::new() };
        let call = DeviceCallLabel { device: String::new(), call: "" };
        touch(&self.sampled, &SourceLabel { source: "" });
        touch(&self.dropped, &ReasonLabel { reason: "" });
        touch(&self.device_up, &device);
        touch(&self.device_stuck, &device);
        touch(&self.samples_missed, &device);
        touch(&self.counter_trusted, &device);
        touch(&self.counter_error, &device);
        touch(&self.counter_resets, &device);
        touch(&self.readings_failed, &call);
        touch(&self.readings_implausible, &call);
        touch(&self.scrapes, &ScrapeLabel { target: String::new(), outcome: "" });
        touch(&self.scrape_skipped, &SkippedLabel { target: String::new(), kind: "" });
        touch(&self.requests, &RequestLabel { endpoint: "", code: 0 });
        touch(&self.progress_refused, &CodeLabel { code: 0 });
        touch(&self.connections_refused, &ReasonLabel { reason: "" });
        touch(&self.token_reviews, &OutcomeLabel { outcome: "" });
    }

    /// Begins the counters of configured sources and of losses with 0. A source that is silent from the start then shows, and the
    /// first loss is a rise.
    pub(crate) fn begin_counters(&self, sources: &[&'static str]) {
        for &source in sources {
            touch(&self.sampled, &SourceLabel { source });
        }
        for reason in DROP_REASONS {
            touch(&self.dropped, &ReasonLabel { reason });
        }
    }

    pub(crate) fn drop_events(&self, reason: &'static str, count: u64) {
        if count > 0 {
            self.dropped.get_or_create(&ReasonLabel { reason }).inc_by(count);
        }
    }

    pub(crate) fn skip(&self, target: &str, kind: &'static str, count: u64) {
        if count > 0 {
            self.scrape_skipped.get_or_create(&SkippedLabel { target: target.to_owned(), kind }).inc_by(count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn touching_shows_every_metric() {
        let metrics = MetricsRegistry::default();
        let shown = |text: String| text.lines().filter(|line| line.starts_with("# HELP")).count();
        let all = CollectorMetrics::new(&metrics);
        let before = shown(metrics.text());
        all.touch();
        let source = include_str!("metrics.rs");
        let registered =
            source.split("fn register(").nth(1).unwrap().split("\n    }\n").next().unwrap().matches("registry.register").count();
        assert!(before < registered);
        // Beside those that every service has.
        assert_eq!(shown(metrics.text()), registered + shown(MetricsRegistry::default().text()));
    }
}
