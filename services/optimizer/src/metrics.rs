//! Metrics of the optimizer; names are prefixed with `eadt_optimizer_`.

use eadt_service::MetricsRegistry;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

use crate::learn::ModelVerdict;

/// Verdict on a fit: `publish`, `keep` or `cannot_tell`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct VerdictLabel {
    verdict: &'static str,
}

#[derive(Debug, Clone)]
pub struct OptimizerMetrics {
    pub rounds: Counter,
    pub failures: Counter,
    pub windows: Gauge,
    fits: Family<VerdictLabel, Counter>,
}

impl OptimizerMetrics {
    pub fn new(metrics: &MetricsRegistry) -> Self {
        metrics.register("optimizer", |registry| {
            let this = Self {
                rounds: Counter::default(),
                failures: Counter::default(),
                windows: Gauge::default(),
                fits: Family::default(),
            };
            registry.register("rounds", "Rounds of learning, each after new files in the archive", this.rounds.clone());
            registry.register("failures", "Rounds that failed, each tried again at the next interval", this.failures.clone());
            registry.register("windows", "Usable windows that the last round learned from", this.windows.clone());
            registry.register("fits", "Models fitted, by verdict", this.fits.clone());
            this
        })
    }

    pub fn count(&self, verdict: ModelVerdict) {
        let verdict = match verdict {
            ModelVerdict::Publish => "publish",
            ModelVerdict::Keep => "keep",
            ModelVerdict::CannotTell => "cannot_tell",
        };
        self.fits.get_or_create(&VerdictLabel { verdict }).inc();
    }

    /// Gives every labelled metric one series: a family without series does not show in the registry's text.
    pub fn touch(&self) {
        let _series = self.fits.get_or_create(&VerdictLabel { verdict: "" });
    }
}
