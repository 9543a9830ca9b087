//! Kubeflow Trainer's status contract as a source of progress. Pure.
//!
//! Kubeflow Trainer 2.2 and later (proposal KEP-2779, `kubeflow/trainer` `pkg/statusserver`) gives the pods of a
//! `TrainJob` a URL in `KUBEFLOW_TRAINER_SERVER_URL`, to which the callback of Hugging Face `transformers`
//! (`KubeflowCallback`) and the Kubeflow SDK (`update_trainjob_status`) send
//!
//! ```text
//! POST /apis/trainer.kubeflow.org/v1alpha1/namespaces/{namespace}/trainjobs/{name}/status
//! {"trainerStatus": {"progressPercentage": 45, "estimatedRemainingSeconds": 795649,
//!                    "metrics": [{"name": "loss", "value": "0.2347"}], "lastUpdatedTime": "2025-01-23T10:30:45Z"}}
//! ```
//!
//! by rank 0 alone and at most every 5 s. Pointing the variable at this collector makes such a job report here
//! without a change of its code; `KUBEFLOW_TRAINER_SERVER_TOKEN` must name a file that is not empty, because the
//! clients send nothing without a token. Metrics are free text; the names that those clients use are understood:
//!
//! | metric | becomes |
//! |---|---|
//! | `loss`, `train_loss` | `loss` |
//! | `epoch`, `current_epoch`, `currentEpoch` | `epoch` |
//! | `current_step`, `currentStep`, `global_step`, `step` | `steps_total` |
//! | `total_steps`, `totalSteps`, `max_steps` | with the former: `steps_remaining` |
//! | `samples_total`, `num_samples`, `total_samples_seen` | `samples_total` |
//! | `tokens_total`, `num_tokens`, `num_input_tokens_seen` | `tokens_total` |
//! | `samples_per_second`, `training_samples_per_second` | `samples_per_second` |
//! | `tokens_per_second`, `training_tokens_per_second` | `tokens_per_second` |
//! | `grad_norm`, `gradient_norm` | `gradient_norm` |
//! | `global_batch_size`, `world_size` | the same |
//!
//! `train_samples_per_second` of `transformers` is the mean over the whole run, reported at its end: not a rate at that
//! time, so it is left aside.

use eadt_schemas::EventTime;
use eadt_schemas::latest::{JobLifecycle, TrainingProgress};
use serde::Deserialize;

/// The body of a status update.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StatusUpdate {
    pub trainer_status: Option<TrainerStatus>,
}

/// The status that the trainer reports.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TrainerStatus {
    /// 0 to 100; 100 is the end.
    pub progress_percentage: Option<i32>,
    pub estimated_remaining_seconds: Option<i64>,
    pub metrics: Option<Vec<TrainerMetric>>,
    pub last_updated_time: Option<EventTime>,
}

/// A metric; the value is text.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct TrainerMetric {
    pub name: String,
    pub value: String,
}

/// Returns the event of an update. `known` is the source's last event, if it has not ended. `None` if the update has no
/// content, or repeats an end.
pub fn event(
    update: &StatusUpdate,
    workload: String,
    known: Option<&TrainingProgress>,
    now: EventTime,
) -> Option<TrainingProgress> {
    let status = update.trainer_status.as_ref()?;
    let mut event = TrainingProgress { time: status.last_updated_time.unwrap_or(now), workload, ..TrainingProgress::default() };
    match status.progress_percentage {
        Some(percent) if percent >= 100 => {
            // Nothing is known of it: it ended before, or began before this collector did and is now over.
            known?;
            event.phase = JobLifecycle::Finished;
            event.last = true;
        }
        Some(0) if known.is_none() => event.phase = JobLifecycle::Started,
        _ => {}
    }
    event.remaining_seconds = status.estimated_remaining_seconds.map(|seconds| seconds as f64);
    let mut total_steps = None;
    for TrainerMetric { name, value } in status.metrics.iter().flatten() {
        let Ok(value) = value.trim().parse::<f64>() else { continue };
        if !value.is_finite() {
            continue;
        }
        let slot = match name.as_str() {
            "loss" | "train_loss" => &mut event.loss,
            "epoch" | "current_epoch" | "currentEpoch" => &mut event.epoch,
            "current_step" | "currentStep" | "global_step" | "step" => &mut event.steps_total,
            "total_steps" | "totalSteps" | "max_steps" => &mut total_steps,
            "samples_total" | "num_samples" | "total_samples_seen" => &mut event.samples_total,
            "tokens_total" | "num_tokens" | "num_input_tokens_seen" => &mut event.tokens_total,
            "samples_per_second" | "training_samples_per_second" => &mut event.samples_per_second,
            "tokens_per_second" | "training_tokens_per_second" => &mut event.tokens_per_second,
            "grad_norm" | "gradient_norm" => &mut event.gradient_norm,
            "global_batch_size" => {
                event.global_batch_size = whole(value);
                continue;
            }
            "world_size" => {
                event.world_size = whole(value);
                continue;
            }
            _ => continue,
        };
        *slot = Some(value);
    }
    if let (Some(total), Some(done)) = (total_steps, event.steps_total) {
        event.steps_remaining = Some((total - done).max(0.0));
    }
    Some(event)
}

fn whole(value: f64) -> Option<u32> {
    (value >= 1.0 && value.fract() == 0.0 && value <= f64::from(u32::MAX)).then_some(value as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn update(text: &str) -> StatusUpdate {
        serde_json::from_str(text).unwrap()
    }

    const NOW: EventTime = EventTime::from_micros(9_000_000);

    #[test]
    fn a_transformers_run_from_start_to_end() {
        let start = update(
            r#"{"trainerStatus":{"lastUpdatedTime":"2026-01-02T03:04:05.123456+00:00","progressPercentage":0,"metrics":[{"name":"total_steps","value":"100"}]}}"#,
        );
        let first = event(&start, "n/job".into(), None, NOW).unwrap();
        assert_eq!((first.phase, first.time.to_string().as_str()), (JobLifecycle::Started, "2026-01-02T03:04:05.123456Z"));
        let again = event(&start, "n/job".into(), Some(&first), NOW).unwrap();
        assert_eq!(again.phase, JobLifecycle::Progress, "a job starts once");
        let step = update(
            r#"{"trainerStatus":{"progressPercentage":40,"estimatedRemainingSeconds":60,"metrics":[{"name":"loss","value":"0.5"},{"name":"current_step","value":"40"},{"name":"total_steps","value":"100"},{"name":"current_epoch","value":"1.2"},{"name":"note","value":"hello"},{"name":"grad_norm","value":"nan"}]}}"#,
        );
        let e = event(&step, "n/job".into(), Some(&first), NOW).unwrap();
        assert_eq!((e.time, e.phase, e.loss, e.epoch), (NOW, JobLifecycle::Progress, Some(0.5), Some(1.2)));
        assert_eq!(
            (e.steps_total, e.steps_remaining, e.remaining_seconds, e.gradient_norm),
            (Some(40.0), Some(60.0), Some(60.0), None)
        );
        let end = update(r#"{"trainerStatus":{"progressPercentage":100,"estimatedRemainingSeconds":0,"metrics":[]}}"#);
        let e = event(&end, "n/job".into(), Some(&first), NOW).unwrap();
        assert_eq!((e.phase, e.last), (JobLifecycle::Finished, true));
        assert_eq!(event(&end, "n/job".into(), None, NOW), None, "an end is reported once");
    }

    #[test]
    fn an_empty_update_is_no_event() {
        assert_eq!(event(&update("{}"), "n/job".into(), None, NOW), None);
        assert!(serde_json::from_str::<StatusUpdate>(r#"{"trainerStatus":{"progressPercentage":"x"}}"#).is_err());
    }
}
