use std::collections::BTreeSet;

use eadt_schemas::decode;
use eadt_schemas::v1::{Precision, UpdateMode};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Settings of the actuator.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ActuatorSettings {
    /// Prefix of every topic; the program takes it from its topic settings.
    #[serde(skip)]
    #[schemars(skip)]
    pub prefix: String,
    /// Consumer group. Actuators of one group share the workloads. Default `actuator`.
    pub group: String,
    /// Stable name of this instance within the group; a newer process of the same name fences the older one. On Kubernetes all
    /// replicas have the same: only the one that leads is in the group. Installations that share a Kafka need one each. Default
    /// `actuator-0`.
    pub instance: String,
    /// A rollout that is not ready after this long is rolled back, in seconds. 1 to 86,400. Default 600.
    pub rollout_deadline_seconds: f64,
    /// Longest time, in seconds, by which a decision may be ahead of the actuator's clock. A later one is refused: a clock is
    /// wrong, and its expiry cannot be checked. At least `processor.max_future_seconds`, by which jobs may be ahead. 0 to 86,400.
    /// Default 120.
    pub max_ahead_seconds: f64,
    /// Least time between two changes of a workload, in seconds. A decision of any controller in that time is refused. Three
    /// windows should fit in. 0 to 86,400. Default 10.
    pub change_interval_seconds: f64,
    /// Greatest age of the last checkpoint at a restart, in seconds, for jobs that report checkpoints: a restart may lose this
    /// much work. 0 to 86,400. Default 120.
    pub checkpoint_max_age_seconds: f64,
    /// Longest wait for a checkpoint that was requested from a job, in seconds; then the decision is refused. Later decisions
    /// about the same workload wait as well. 0: no checkpoint is requested. 0 to 3,600. Default 60.
    pub checkpoint_wait_seconds: f64,
    /// Interval in which the whole cluster is read even without reported changes, in seconds of wall time. 1 to 3,600. Default
    /// 30.
    pub reconcile_seconds: f64,
    /// Pause before a failed call is tried again, in seconds of wall time; doubles up to `retry_max_seconds`.
    /// Above 0. Default 0.2.
    pub retry_min_seconds: f64,
    /// Longest pause before a failed call is tried again, in seconds of wall time. Default 10.
    pub retry_max_seconds: f64,
    /// Jobs of `eadt up --gpus nvml` and `none`, without Kafka, that may be asked to freeze blocks or to compute in another
    /// precision: outside of Kubernetes no policy permits it. Anywhere else they are refused.
    pub jobs: Vec<DeclaredJob>,
}

/// A job outside of Kubernetes that may be changed.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DeclaredJob {
    /// `namespace/name`, as the job reports it (`EADT_WORKLOAD`). Required.
    pub workload: String,
    /// `enforce` asks the job. `recommend` only decides, and goes on asking for what was applied before. `observe` begins
    /// nothing, and what was asked is withdrawn. Default `recommend`.
    pub mode: UpdateMode,
    /// Controller that decides. Default `layers`.
    pub controller: JobController,
    /// Most blocks that the job may be asked to freeze. Default 0.
    pub frozen_prefix_layers_max: u32,
    /// Precisions that the job may be asked to compute in. Default: none.
    pub precisions: Vec<Precision>,
}

/// A controller of what a job changes by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum JobController {
    /// Freezes blocks that hardly change any more.
    #[default]
    Layers,
    /// Another precision, for stability.
    Precision,
}

impl JobController {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Layers => "layers",
            Self::Precision => "precision",
        }
    }
}

impl Default for ActuatorSettings {
    fn default() -> Self {
        Self {
            prefix: "eadt.".into(),
            group: "actuator".into(),
            instance: "actuator-0".into(),
            rollout_deadline_seconds: 600.0,
            max_ahead_seconds: 120.0,
            change_interval_seconds: 10.0,
            checkpoint_max_age_seconds: 120.0,
            checkpoint_wait_seconds: 60.0,
            reconcile_seconds: 30.0,
            retry_min_seconds: 0.2,
            retry_max_seconds: 10.0,
            jobs: Vec::new(),
        }
    }
}

impl ActuatorSettings {
    /// Returns an error about the first value out of its range.
    pub fn check(&self) -> Result<(), String> {
        for (name, value, low, high) in [
            ("rollout_deadline_seconds", self.rollout_deadline_seconds, 1.0, 86_400.0),
            ("max_ahead_seconds", self.max_ahead_seconds, 0.0, 86_400.0),
            ("change_interval_seconds", self.change_interval_seconds, 0.0, 86_400.0),
            ("checkpoint_max_age_seconds", self.checkpoint_max_age_seconds, 0.0, 86_400.0),
            ("checkpoint_wait_seconds", self.checkpoint_wait_seconds, 0.0, 3600.0),
            ("reconcile_seconds", self.reconcile_seconds, 1.0, 3600.0),
            ("retry_min_seconds", self.retry_min_seconds, 0.001, 3600.0),
            ("retry_max_seconds", self.retry_max_seconds, self.retry_min_seconds, 3600.0),
        ] {
            if !(low..=high).contains(&value) {
                return Err(format!("actuator.{name} is {value}, but must be within {low} and {high}"));
            }
        }
        if self.group.is_empty() || self.instance.is_empty() {
            return Err("actuator.group and actuator.instance must not be empty".into());
        }
        let mut names = BTreeSet::new();
        for (i, job) in self.jobs.iter().enumerate() {
            decode::workload(&job.workload).map_err(|why| format!("actuator.jobs[{i}].workload: {why}"))?;
            if job.mode == UpdateMode::Enforce && job.frozen_prefix_layers_max == 0 && job.precisions.is_empty() {
                return Err(format!(
                    "actuator.jobs[{i}]: {} is to be asked (enforce), and nothing is allowed: set frozen_prefix_layers_max or precisions",
                    job.workload
                ));
            }
            if !names.insert(&job.workload) {
                return Err(format!("actuator.jobs[{i}].workload: {} is declared twice", job.workload));
            }
        }
        Ok(())
    }
}
