//! Metrics of the archiver; names are prefixed with `eadt_archiver_`.

use eadt_lake::WrittenFile;
use eadt_service::MetricsRegistry;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Unit;

/// Topic without its prefix.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct TopicLabel {
    topic: &'static str,
}

/// Part that failed: `store` (folder or object store) or `log`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct PartLabel {
    pub part: &'static str,
}

#[derive(Debug)]
pub struct ArchiverMetrics {
    rows: Family<TopicLabel, Counter>,
    files: Family<TopicLabel, Counter>,
    file_bytes: Family<TopicLabel, Counter>,
    pub roll_seconds: Histogram,
    pub waiting_rows: Gauge,
    pub waiting_bytes: Gauge,
    pub partitions: Gauge,
    /// 1 while nothing can be written.
    pub stalled: Gauge,
    pub failures: Family<PartLabel, Counter>,
    pub deleted_offsets: Counter,
    pub gap_offsets: Gauge,
}

impl ArchiverMetrics {
    pub fn new(metrics: &MetricsRegistry) -> Self {
        metrics.register("archiver", |registry| {
            let this = Self {
                rows: Family::default(),
                files: Family::default(),
                file_bytes: Family::default(),
                // 1 ms to 65 s.
                roll_seconds: Histogram::new(exponential_buckets(0.001, 4.0, 9)),
                waiting_rows: Gauge::default(),
                waiting_bytes: Gauge::default(),
                partitions: Gauge::default(),
                stalled: Gauge::default(),
                failures: Family::default(),
                deleted_offsets: Counter::default(),
                gap_offsets: Gauge::default(),
            };
            registry.register("rows", "Rows in completed files", this.rows.clone());
            registry.register("files", "Files completed", this.files.clone());
            registry.register_with_unit("file", "Size of completed files", Unit::Bytes, this.file_bytes.clone());
            registry.register_with_unit("roll", "Time to encode and publish a file", Unit::Seconds, this.roll_seconds.clone());
            registry.register("waiting_rows", "Rows in memory that are not written to a file yet", this.waiting_rows.clone());
            registry.register_with_unit(
                "waiting",
                "Memory of rows that are not written to a file yet",
                Unit::Bytes,
                this.waiting_bytes.clone(),
            );
            registry.register("partitions", "Partitions that this archiver reads", this.partitions.clone());
            registry.register(
                "stalled",
                "1 while files cannot be written; reading stops, nothing is skipped",
                this.stalled.clone(),
            );
            registry.register("failures", "Failed attempts, each tried again", this.failures.clone());
            registry.register(
                "deleted_offsets",
                "Offsets that the log deleted before they were archived",
                this.deleted_offsets.clone(),
            );
            registry.register(
                "gap_offsets",
                "Offsets missing between files of the archive, as found at the last start",
                this.gap_offsets.clone(),
            );
            this
        })
    }

    /// Gives every labelled metric one series: a family without series does not show in the registry's text.
    pub fn touch(&self) {
        let label = TopicLabel { topic: "" };
        let _series = self.rows.get_or_create(&label);
        let _series = self.files.get_or_create(&label);
        let _series = self.file_bytes.get_or_create(&label);
        let _series = self.failures.get_or_create(&PartLabel { part: "" });
    }

    pub(crate) fn written(&self, file: &WrittenFile) {
        let label = TopicLabel { topic: file.name.topic.base_name() };
        self.rows.get_or_create(&label).inc_by(file.rows);
        self.files.get_or_create(&label).inc();
        self.file_bytes.get_or_create(&label).inc_by(file.bytes);
    }
}
