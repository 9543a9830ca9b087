//! Metrics of the processor; names are prefixed with `eadt_processor_`.

use eadt_core::Tally;
use eadt_schemas::v1::DeadLetterReason;
use eadt_service::Metrics;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Unit;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ReasonLabels {
    reason: &'static str,
}

#[derive(Debug)]
pub struct ProcessorMetrics {
    events: Counter,
    duplicates: Counter,
    late: Counter,
    stale: Counter,
    late_tables: Counter,
    models: Counter,
    models_ignored: Family<ReasonLabels, Counter>,
    pub windows: Counter,
    pub decisions: Counter,
    dead_letters: Family<ReasonLabels, Counter>,
    pub heartbeats: Counter,
    pub gaps: Counter,
    pub restarts: Counter,
    pub commit_seconds: Histogram,
    pub state_bytes: Counter,
    pub input_bytes: Counter,
    pub buffered_bytes: Gauge,
    pub partitions: Gauge,
    pub workloads: Gauge,
    pub sources: Gauge,
}

impl ProcessorMetrics {
    pub fn new(metrics: &Metrics) -> Self {
        metrics.register("processor", |registry| {
            let this = Self {
                events: Counter::default(),
                duplicates: Counter::default(),
                late: Counter::default(),
                stale: Counter::default(),
                late_tables: Counter::default(),
                models: Counter::default(),
                models_ignored: Family::default(),
                windows: Counter::default(),
                decisions: Counter::default(),
                dead_letters: Family::default(),
                heartbeats: Counter::default(),
                gaps: Counter::default(),
                restarts: Counter::default(),
                // 0.5 ms to 8 s.
                commit_seconds: Histogram::new(exponential_buckets(0.0005, 2.0, 15)),
                state_bytes: Counter::default(),
                input_bytes: Counter::default(),
                buffered_bytes: Gauge::default(),
                partitions: Gauge::default(),
                workloads: Gauge::default(),
                sources: Gauge::default(),
            };
            registry.register("events", "Records folded, heartbeats and refused ones included", this.events.clone());
            registry.register("duplicates", "Events as old as their source's last one", this.duplicates.clone());
            registry.register("late", "Events whose window was closed", this.late.clone());
            registry.register("stale", "Events older than their source's last one", this.stale.clone());
            registry.register("late_tables", "Table events merged after a larger key", this.late_tables.clone());
            registry.register("models", "Learned models that came into force, in every partition", this.models.clone());
            let ignored = this.models_ignored.clone();
            registry.register(
                "models_ignored",
                "Learned models that said nothing, by reason: version, damaged, older; gpu counts decisions",
                ignored,
            );
            registry.register("windows", "Windows written, spans included", this.windows.clone());
            registry.register("decisions", "Decisions written, maintain included", this.decisions.clone());
            registry.register("dead_letters", "Refused records by reason", this.dead_letters.clone());
            registry.register("heartbeats", "Heartbeats appended to quiet partitions", this.heartbeats.clone());
            registry.register("gaps", "Positions that retention had deleted", this.gaps.clone());
            registry.register("restarts", "Sessions on the bus that began anew after an error", this.restarts.clone());
            let commit = this.commit_seconds.clone();
            registry.register_with_unit("commit", "Time of an atomic step", Unit::Seconds, commit);
            registry.register_with_unit("state", "State written", Unit::Bytes, this.state_bytes.clone());
            registry.register_with_unit("input", "Keys and values read", Unit::Bytes, this.input_bytes.clone());
            let buffered = this.buffered_bytes.clone();
            registry.register_with_unit("buffered", "Records read ahead of the merge", Unit::Bytes, buffered);
            registry.register("partitions", "Partitions owned", this.partitions.clone());
            registry.register("workloads", "Workloads in the state, GPUs without one included", this.workloads.clone());
            registry.register("sources", "Sources in the state", this.sources.clone());
            this
        })
    }

    /// Gives every labelled metric one series: a family without series does not show in the registry's text.
    pub fn touch(&self) {
        let _series = self.dead_letters.get_or_create(&ReasonLabels { reason: "" });
        let _series = self.models_ignored.get_or_create(&ReasonLabels { reason: "" });
    }

    pub fn dead_letter(&self, reason: DeadLetterReason) {
        self.dead_letters.get_or_create(&ReasonLabels { reason: reason.name() }).inc();
    }

    /// Adds what was folded since `before`.
    pub fn folded(&self, before: Tally, now: Tally) {
        self.events.inc_by(now.events - before.events);
        self.duplicates.inc_by(now.duplicates - before.duplicates);
        self.late.inc_by(now.late - before.late);
        self.stale.inc_by(now.stale - before.stale);
        self.late_tables.inc_by(now.late_tables - before.late_tables);
        self.models.inc_by(now.models - before.models);
        let (was, is) = (before.models_ignored, now.models_ignored);
        let ignored = [
            ("version", was.version, is.version),
            ("damaged", was.damaged, is.damaged),
            ("older", was.older, is.older),
            ("gpu", was.gpu, is.gpu),
        ];
        for (reason, before, now) in ignored.into_iter().filter(|(_, before, now)| now > before) {
            self.models_ignored.get_or_create(&ReasonLabels { reason }).inc_by(now - before);
        }
    }
}
