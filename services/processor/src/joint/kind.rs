//! Differences between the joint stages: the fold, the names of its group and state, the metrics.

use std::fmt::Debug;

use eadt_core::power_budget::allocation;
use eadt_core::state::{GPU_SHARING_PREFIX, POWER_BUDGET_PREFIX};
use eadt_core::{JointFold, PowerBudgetFold, gpu_sharing};
use eadt_gpu_sharing::GpuSharingFold;
use eadt_service::MetricsRegistry;
use eadt_service::tasks::{self, TaskEntry};

use crate::ProcessorSettings;
use crate::metrics::{GpuSharingMetrics, JointMetrics, PowerBudgetMetrics};

/// One of the stages that decide about several workloads together.
pub trait JointStageDefinition: Debug {
    type Fold: JointFold + Debug;
    /// Ends the names of its consumer group and member. It never changes: by it a new process goes on where an old one stopped.
    const GROUP_SUFFIX: &'static str;
    /// Name in errors.
    const DESCRIPTION: &'static str;
    /// Name of the service in its dead letters.
    const SERVICE: &'static str;
    /// Suffix of its decisions' ids, after a slash.
    const CONTROLLER: &'static str;
    /// Prefix of its keys in the state topic, which other stages share.
    const STATE_PREFIX: &'static str;

    fn new(metrics: &MetricsRegistry) -> Self;

    /// Makes every series, so that the reference shows its labels.
    fn init_series(&self) {}

    /// Returns the task that it runs as. Its readiness has the same name.
    fn task() -> &'static TaskEntry;

    /// Returns whether it has anything to do.
    fn is_on(settings: &ProcessorSettings) -> bool;

    /// Returns the time after which a decision that was not applied is void, in seconds.
    fn decision_expiry_seconds(settings: &ProcessorSettings) -> f64;

    fn metrics(&self) -> &JointMetrics;

    /// Notes that the stage runs here from now on; `None` if not any more.
    fn set_running(&self, settings: Option<&ProcessorSettings>);

    /// Adds the counts since `before`.
    fn add_tally(&self, before: <Self::Fold as JointFold>::Tally, now: <Self::Fold as JointFold>::Tally);
}

/// Workloads that share a power budget.
#[derive(Debug)]
pub struct PowerBudgetStage(PowerBudgetMetrics);

impl JointStageDefinition for PowerBudgetStage {
    type Fold = PowerBudgetFold;
    const GROUP_SUFFIX: &'static str = "cluster";
    const DESCRIPTION: &'static str = "the joint stage of the power budget";
    const SERVICE: &'static str = "processor/cluster";
    const CONTROLLER: &'static str = allocation::CONTROLLER;
    const STATE_PREFIX: &'static str = POWER_BUDGET_PREFIX;

    fn new(metrics: &MetricsRegistry) -> Self {
        Self(PowerBudgetMetrics::new(metrics))
    }

    fn task() -> &'static TaskEntry {
        &tasks::POWER_BUDGET
    }

    fn is_on(settings: &ProcessorSettings) -> bool {
        settings.shares_power()
    }

    fn decision_expiry_seconds(settings: &ProcessorSettings) -> f64 {
        settings.power_budget.decision_expiry_seconds
    }

    fn metrics(&self) -> &JointMetrics {
        &self.0.joint
    }

    fn set_running(&self, settings: Option<&ProcessorSettings>) {
        self.0.set_running(settings.and_then(|settings| settings.power_budget.budget_watts));
    }

    fn add_tally(&self, before: eadt_core::power_budget::PowerBudgetTally, now: eadt_core::power_budget::PowerBudgetTally) {
        self.0.add_tally(before, now);
    }
}

/// Workloads that share GPUs by SM partitions.
#[derive(Debug)]
pub struct GpuSharingStage(GpuSharingMetrics);

impl JointStageDefinition for GpuSharingStage {
    type Fold = GpuSharingFold;
    const GROUP_SUFFIX: &'static str = "gpu";
    const DESCRIPTION: &'static str = "the joint stage of GPU sharing";
    const SERVICE: &'static str = "processor/gpu";
    const CONTROLLER: &'static str = gpu_sharing::CONTROLLER;
    const STATE_PREFIX: &'static str = GPU_SHARING_PREFIX;

    fn new(metrics: &MetricsRegistry) -> Self {
        Self(GpuSharingMetrics::new(metrics))
    }

    fn init_series(&self) {
        self.0.init_series();
    }

    fn task() -> &'static TaskEntry {
        &tasks::GPU_SHARING
    }

    fn is_on(settings: &ProcessorSettings) -> bool {
        settings.gpu_sharing.enabled
    }

    fn decision_expiry_seconds(settings: &ProcessorSettings) -> f64 {
        settings.gpu_sharing.decision_expiry_seconds
    }

    fn metrics(&self) -> &JointMetrics {
        &self.0.joint
    }

    fn set_running(&self, settings: Option<&ProcessorSettings>) {
        self.0.set_running(settings.is_some());
    }

    fn add_tally(&self, before: eadt_gpu_sharing::fold::GpuSharingTally, now: eadt_gpu_sharing::fold::GpuSharingTally) {
        self.0.add_tally(before, now);
    }
}

#[cfg(test)]
mod tests {
    use eadt_core::gpu_sharing::GpuSharingSettings;
    use eadt_core::power_budget::PowerBudgetTally;
    use eadt_core::power_budget::allocation::BudgetSettings;
    use eadt_gpu_sharing::fold::GpuSharingTally;

    use super::*;
    use crate::scripted::ScriptedBus;

    fn settings(budget_watts: Option<f64>, enabled: bool) -> ProcessorSettings {
        ProcessorSettings {
            power_budget: BudgetSettings { budget_watts, decision_expiry_seconds: 300.0, ..BudgetSettings::default() },
            gpu_sharing: GpuSharingSettings { enabled, decision_expiry_seconds: 900.0, ..GpuSharingSettings::default() },
            ..ProcessorSettings::default()
        }
    }

    #[test]
    fn each_stage_has_its_own_settings() {
        for (budget, enabled) in [(Some(1_000.0), false), (None, true)] {
            let settings = settings(budget, enabled);
            assert_eq!((PowerBudgetStage::is_on(&settings), GpuSharingStage::is_on(&settings)), (!enabled, enabled));
            let expiry =
                (PowerBudgetStage::decision_expiry_seconds(&settings), GpuSharingStage::decision_expiry_seconds(&settings));
            assert_eq!(expiry, (300.0, 900.0));
        }
    }

    #[test]
    fn the_task_of_a_stage_has_the_name_of_its_feature() {
        let tasks = [PowerBudgetStage::task(), GpuSharingStage::task()];
        assert_eq!(tasks.map(|task| task.name), ["power-budget", "gpu-sharing"]);
    }

    #[test]
    fn the_power_budget_counts_what_was_folded_and_reports_only_where_it_runs() {
        let bus = ScriptedBus::default();
        let kind = <PowerBudgetStage as JointStageDefinition>::new(&bus.metrics);
        let metric = |name: &str| bus.metric(&format!("eadt_power_budget_{name}")).unwrap();
        let figures = || {
            let old = ["runs_here", "looks_total", "short_total"].map(metric);
            assert_eq!(
                ["active", "evaluations_total", "infeasible_total"].map(metric),
                old,
                "the old names have the same values"
            );
            ["active", "budget_watts", "evaluations_total", "late_total", "infeasible_total", "exposed_watts"].map(metric)
        };
        JointStageDefinition::set_running(&kind, Some(&settings(Some(1_500.0), false)));
        let tally =
            |evaluations, late, infeasible| PowerBudgetTally { evaluations, late, infeasible, exposed_watts: Some(700.0) };
        JointStageDefinition::add_tally(&kind, tally(2, 1, 0), tally(5, 3, 1));
        assert_eq!(figures(), [1.0, 1_500.0, 3.0, 2.0, 1.0, 700.0]);
        JointStageDefinition::set_running(&kind, None);
        assert_eq!(figures(), [0.0, 0.0, 3.0, 2.0, 1.0, 0.0]);
    }

    #[test]
    fn the_stage_of_shared_gpus_counts_what_was_folded_and_shows_where_it_runs() {
        let bus = ScriptedBus::default();
        let kind = <GpuSharingStage as JointStageDefinition>::new(&bus.metrics);
        let values_under = |prefix: &str, [active, evaluations]: [&str; 2]| {
            [active, evaluations, "late_total", "models_total", "shared_gpus", "measured"]
                .map(|name| bus.metric(&format!("{prefix}_{name}")).unwrap())
        };
        let figures = || {
            let values = values_under("eadt_gpu_sharing", ["active", "evaluations_total"]);
            for prefix in ["eadt_gpu_sharing", "eadt_sm_partition"] {
                let old = values_under(prefix, ["runs_here", "looks_total"]);
                assert_eq!(old, values, "{prefix}: the old names have the same values");
            }
            values
        };
        JointStageDefinition::set_running(&kind, Some(&settings(None, true)));
        let before = GpuSharingTally { evaluations: 2, late: 1, models: 1, ..GpuSharingTally::default() };
        let now =
            GpuSharingTally { evaluations: 5, late: 3, models: 2, shared_gpus: 4, measured: 6, ..GpuSharingTally::default() };
        JointStageDefinition::add_tally(&kind, before, now);
        assert_eq!(figures(), [1.0, 3.0, 2.0, 1.0, 4.0, 6.0]);
        JointStageDefinition::set_running(&kind, None);
        assert_eq!(figures(), [0.0, 3.0, 2.0, 1.0, 0.0, 0.0]);
    }
}
