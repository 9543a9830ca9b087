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
