//! What the stages differ in: whose decisions they say, where their state lies, what they count.

use std::fmt::Debug;

use eadt_core::state::{CLUSTER_PREFIX, GPU_PREFIX};
use eadt_core::{Cluster, Joint, budget, sharing};
use eadt_partition::Gpus;
use eadt_service::Metrics;

use crate::Settings;
use crate::metrics::{ClusterMetrics, GpuMetrics, JointMetrics};

/// One of the stages that decide about several workloads together.
pub trait Kind: Debug {
    type Fold: Joint + Debug;
    /// At the end of the group's name and of the member's.
    const NAME: &'static str;
    /// In log lines and errors.
    const WORDS: &'static str;
    /// What its dead letters are refused by.
    const SERVICE: &'static str;
    /// What its decisions' ids end in, after a slash.
    const CONTROLLER: &'static str;
    /// What the keys of its state begin with, beside others' of the topic.
    const STATE_PREFIX: &'static str;

    fn new(metrics: &Metrics) -> Self;

    /// Whether it has anything to do.
    fn is_on(settings: &Settings) -> bool;

    /// A decision that was not applied within this time is void, in seconds.
    fn expiry_seconds(settings: &Settings) -> f64;

    fn metrics(&self) -> &JointMetrics;

    /// The stage runs here from now on, or does not any more (`None`).
    fn runs(&self, settings: Option<&Settings>);

    /// Adds what was folded since `before`.
    fn folded(&self, before: <Self::Fold as Joint>::Tally, now: <Self::Fold as Joint>::Tally);
}

/// The cluster's: a power budget.
impl Kind for ClusterMetrics {
    type Fold = Cluster;
    const NAME: &'static str = "cluster";
    const WORDS: &'static str = "the cluster's stage";
    const SERVICE: &'static str = "processor/cluster";
    const CONTROLLER: &'static str = budget::CONTROLLER;
    const STATE_PREFIX: &'static str = CLUSTER_PREFIX;

    fn new(metrics: &Metrics) -> Self {
        Self::new(metrics)
    }

    fn is_on(settings: &Settings) -> bool {
        settings.shares_power()
    }

    fn expiry_seconds(settings: &Settings) -> f64 {
        settings.power_budget.expiry_seconds
    }

    fn metrics(&self) -> &JointMetrics {
        &self.joint
    }

    fn runs(&self, settings: Option<&Settings>) {
        self.runs(settings.and_then(|settings| settings.power_budget.budget_watts));
    }

    fn folded(&self, before: eadt_core::cluster::Tally, now: eadt_core::cluster::Tally) {
        self.folded(before, now);
    }
}

/// The one of shared GPUs: SM partitions.
impl Kind for GpuMetrics {
    type Fold = Gpus;
    const NAME: &'static str = "gpu";
    const WORDS: &'static str = "the stage of shared GPUs";
    const SERVICE: &'static str = "processor/gpu";
    const CONTROLLER: &'static str = sharing::CONTROLLER;
    const STATE_PREFIX: &'static str = GPU_PREFIX;

    fn new(metrics: &Metrics) -> Self {
        Self::new(metrics)
    }

    fn is_on(settings: &Settings) -> bool {
        settings.sm_partition.enabled
    }

    fn expiry_seconds(settings: &Settings) -> f64 {
        settings.sm_partition.expiry_seconds
    }

    fn metrics(&self) -> &JointMetrics {
        &self.joint
    }

    fn runs(&self, settings: Option<&Settings>) {
        self.runs(settings.is_some());
    }

    fn folded(&self, before: eadt_partition::gpus::Tally, now: eadt_partition::gpus::Tally) {
        self.folded(before, now);
    }
}

#[cfg(test)]
mod tests {
    use eadt_core::budget::BudgetSettings;
    use eadt_core::cluster;
    use eadt_core::sharing::SmPartitionSettings;
    use eadt_partition::gpus;

    use super::*;
    use crate::scripted::Scripted;

    fn settings(budget_watts: Option<f64>, enabled: bool) -> Settings {
        Settings {
            power_budget: BudgetSettings { budget_watts, expiry_seconds: 300.0, ..BudgetSettings::default() },
            sm_partition: SmPartitionSettings { enabled, expiry_seconds: 900.0, ..SmPartitionSettings::default() },
            ..Settings::default()
        }
    }

    #[test]
    fn each_stage_has_its_own_settings() {
        for (budget, enabled) in [(Some(1_000.0), false), (None, true)] {
            let settings = settings(budget, enabled);
            assert_eq!((ClusterMetrics::is_on(&settings), GpuMetrics::is_on(&settings)), (!enabled, enabled));
            let expiry = (ClusterMetrics::expiry_seconds(&settings), GpuMetrics::expiry_seconds(&settings));
            assert_eq!(expiry, (300.0, 900.0));
        }
    }

    #[test]
    fn the_cluster_counts_what_was_folded_and_tells_its_budget_only_where_it_runs() {
        let bus = Scripted::default();
        let kind = <ClusterMetrics as Kind>::new(&bus.metrics);
        let told = || {
            ["runs_here", "budget_watts", "looks_total", "late_total", "short_total", "exposed_watts"]
                .map(|name| bus.metric(&format!("eadt_power_budget_{name}")).unwrap())
        };
        Kind::runs(&kind, Some(&settings(Some(1_500.0), false)));
        let tally = |looks, late, short| cluster::Tally { looks, late, short, exposed_watts: Some(700.0) };
        Kind::folded(&kind, tally(2, 1, 0), tally(5, 3, 1));
        assert_eq!(told(), [1.0, 1_500.0, 3.0, 2.0, 1.0, 700.0]);
        Kind::runs(&kind, None);
        assert_eq!(told(), [0.0, 0.0, 3.0, 2.0, 1.0, 0.0]);
    }

    #[test]
    fn the_stage_of_shared_gpus_counts_what_was_folded_and_tells_where_it_runs() {
        let bus = Scripted::default();
        let kind = <GpuMetrics as Kind>::new(&bus.metrics);
        let told = || {
            ["runs_here", "looks_total", "late_total", "models_total", "shared_gpus", "measured"]
                .map(|name| bus.metric(&format!("eadt_sm_partition_{name}")).unwrap())
        };
        Kind::runs(&kind, Some(&settings(None, true)));
        let before = gpus::Tally { looks: 2, late: 1, models: 1, ..gpus::Tally::default() };
        let now = gpus::Tally { looks: 5, late: 3, models: 2, shared_gpus: 4, measured: 6, ..gpus::Tally::default() };
        Kind::folded(&kind, before, now);
        assert_eq!(told(), [1.0, 3.0, 2.0, 1.0, 4.0, 6.0]);
        Kind::runs(&kind, None);
        assert_eq!(told(), [0.0, 3.0, 2.0, 1.0, 0.0, 0.0]);
    }
}
