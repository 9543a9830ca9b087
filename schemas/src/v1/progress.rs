use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Origin;
use crate::EventTime;

/// Lifecycle phase of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema, Default)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "Phase")]
pub enum JobLifecycle {
    /// The job starts at this time; its energy counts from here.
    Started,
    /// The job is at work.
    #[default]
    Progress,
    /// The job ended at this time; its energy counts up to here.
    Finished,
}

/// Whom the counters speak for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema, Default)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "Scope")]
pub enum CounterScope {
    /// The whole job: counted once, however many ranks report.
    #[default]
    Global,
    /// This rank alone: ranks are summed.
    Rank,
}

/// Progress of a training job. Key: the workload. Counters are totals since the job's first start.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema, Default)]
#[serde(default)]
#[schemars(extend("required" = ["time", "workload", "collector"]))]
pub struct TrainingProgress {
    /// When the job had got this far.
    #[serde(default = "EventTime::missing")]
    pub time: EventTime,
    /// `namespace/name`.
    #[schemars(length(max = 253), pattern("^[^/]+/[^/]+$"))]
    pub workload: String,
    /// The reporting rank; with workload and collector it names the source.
    pub rank: u32,
    /// The collector that took it in.
    #[schemars(length(min = 1, max = 253))]
    pub collector: String,
    /// Whom the counters speak for.
    pub scope: CounterScope,
    /// Origin of the figures.
    pub origin: Origin,
    /// Lifecycle phase of the job.
    pub phase: JobLifecycle,
    /// The source ends here.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub last: bool,
    /// What the job does from this event on until another event of this source names another span or "" (none):
    /// `epoch 2`, `block 1`. Absent: the span goes on.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub span: Option<String>,
    /// Samples processed since the first start; a fall means that the job went back to a checkpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1e18))]
    pub samples_total: Option<f64>,
    /// Tokens processed since the first start.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1e18))]
    pub tokens_total: Option<f64>,
    /// Optimiser steps since the first start.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1e18))]
    pub steps_total: Option<f64>,
    /// A rate gauge, integrated over time where the job gives no counter.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1e12))]
    pub samples_per_second: Option<f64>,
    /// A rate gauge like `samples_per_second`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1e15))]
    pub tokens_per_second: Option<f64>,
    /// Training loss of the last step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    /// Epochs done, with a fraction where the job gives one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1e9))]
    pub epoch: Option<f64>,
    /// When the last checkpoint was complete.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint_time: Option<EventTime>,
    /// Optimiser steps that the job still has to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1e18))]
    pub steps_remaining: Option<f64>,
    /// The job's own estimate of the time that it still needs.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1e18))]
    pub remaining_seconds: Option<f64>,
    /// Samples of one optimiser step over all ranks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub global_batch_size: Option<u32>,
    /// Number of ranks, as the job sees it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub world_size: Option<u32>,
    /// Communication backend: `nccl`, `gloo`, `mpi`, `ucc`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub backend: Option<String>,
    /// Precision that the job really computes in: `fp32`, `tf32`, `fp16`, `bf16`, `fp8`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub precision: Option<String>,
    /// Steps skipped because a gradient overflowed, since the first start.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1e18))]
    pub overflow_skips_total: Option<f64>,
    /// Global gradient norm of the last step.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub gradient_norm: Option<f64>,
    /// Layers that are frozen, counted from the input side.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frozen_prefix_layers: Option<u32>,
    /// `CUDA_MPS_ACTIVE_THREAD_PERCENTAGE`, as the job sees it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub mps_thread_percentage: Option<u32>,
    /// Loss on data that the job does not train on, at its last evaluation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub validation_loss: Option<f64>,
    /// Learning rate of the last step; of several, the largest.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub learning_rate: Option<f64>,
    /// Scale that the loss is multiplied with before the backward pass; absent: the job scales none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub loss_scale: Option<f64>,
    /// Layers that can be frozen: blocks of the model, counted from the input side.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layers: Option<u32>,
    /// How much each of these layers still changes, from the input side, as a ratio; null: not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub plasticity: Option<Vec<Option<f64>>>,
    /// What the job changes without a restart, if it is asked: `precision`, `frozen_prefix_layers`, `checkpoint_now`. Absent: not
    /// known.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub live_knobs: Option<Vec<String>>,
    /// The decision of the last directive that the job has taken up, or refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub decision_id: Option<String>,
    /// Why the job does not do what that directive asks; absent: it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub directive_refused: Option<String>,
}
