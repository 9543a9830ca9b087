use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Origin;
use crate::EventTime;

/// Where in its life a job is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema, Default)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// The job starts at this time; its energy counts from here.
    Started,
    #[default]
    Progress,
    /// The job ended at this time; its energy counts up to here.
    Finished,
}

/// Whom the counters speak for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema, Default)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// The whole job: counted once, however many ranks report.
    #[default]
    Global,
    /// This rank alone: ranks are summed.
    Rank,
}

/// What a training job got done. Key: the workload. Counters are totals since the job's first start.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema, Default)]
#[serde(default)]
pub struct TrainingProgress {
    pub time: EventTime,
    /// `namespace/name`.
    pub workload: String,
    /// The reporting rank; with workload and collector it names the source.
    pub rank: u32,
    pub collector: String,
    pub scope: Scope,
    pub origin: Origin,
    pub phase: Phase,
    /// The source ends here.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub last: bool,
    /// What the job does from this event on until another event of this source names another span or "" (none):
    /// `epoch 2`, `block 1`. Absent: the span goes on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub span: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub samples_total: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_total: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps_total: Option<f64>,
    /// A rate gauge, integrated over time where the job gives no counter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub samples_per_second: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_per_second: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epoch: Option<f64>,
    /// When the last checkpoint was complete.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint_time: Option<EventTime>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps_remaining: Option<f64>,
    /// The job's own estimate of the time that it still needs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remaining_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub global_batch_size: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub world_size: Option<u32>,
    /// Communication backend: `nccl`, `gloo`, `mpi`, `ucc`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend: Option<String>,
    /// `fp32`, `tf32`, `fp16`, `bf16`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub precision: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overflow_skips_total: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gradient_norm: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mps_thread_percentage: Option<u32>,
}
