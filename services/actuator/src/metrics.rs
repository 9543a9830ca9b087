//! Metrics of the actuator; names are prefixed with `eadt_actuator_`.

use eadt_schemas::v1::ActuationOutcome;
use eadt_service::MetricsRegistry;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

use crate::report;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct OutcomeLabels {
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct KindLabels {
    kind: &'static str,
}

#[derive(Debug, Clone, Default)]
pub struct ActuatorMetrics {
    /// Decisions read, `maintain` included.
    pub decisions: Counter,
    outcomes: Family<OutcomeLabels, Counter>,
    refusals: Family<KindLabels, Counter>,
    /// Records of `decisions.v1` that were no decisions.
    pub dead_letters: Counter,
    /// Cluster calls that are tried again.
    pub retries: Counter,
    /// Sessions on the bus that ended with an error and began anew.
    pub restarts: Counter,
    /// Managed workloads.
    pub workloads: Gauge,
    /// Rollouts in progress.
    pub rollouts: Gauge,
}

impl ActuatorMetrics {
    pub fn new(metrics: &MetricsRegistry) -> Self {
        metrics.register("actuator", |registry| {
            let this = Self::default();
            registry.register("decisions", "Decisions read, maintain included", this.decisions.clone());
            registry.register("outcomes", "Outcomes of decisions", this.outcomes.clone());
            registry.register("refusals", "Refused decisions by kind of reason", this.refusals.clone());
            registry.register("dead_letters", "Records that were not valid decisions", this.dead_letters.clone());
            registry.register("retries", "Cluster calls that are tried again", this.retries.clone());
            registry.register("restarts", "Bus sessions restarted after an error", this.restarts.clone());
            registry.register("workloads", "Managed workloads", this.workloads.clone());
            registry.register("rollouts", "Rollouts in progress", this.rollouts.clone());
            this
        })
    }

    /// Gives every labelled metric one series: a family without series does not show in the registry's text.
    pub fn init_series(&self) {
        let _series = self.outcomes.get_or_create(&OutcomeLabels { outcome: "" });
        let _series = self.refusals.get_or_create(&KindLabels { kind: "" });
    }

    pub fn count_outcome(&self, outcome: ActuationOutcome) {
        self.outcomes.get_or_create(&OutcomeLabels { outcome: report::name(outcome) }).inc();
    }

    pub fn count_refusal(&self, kind: &'static str) {
        self.refusals.get_or_create(&KindLabels { kind }).inc();
    }
}
