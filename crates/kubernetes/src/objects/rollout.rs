//! Progress of a rollout, its obstacles, and the necessary steps on its pods. Pure.

use serde_json::Value;

use crate::objects::kinds::{WorkloadKind, values_at};
use crate::objects::object::WorkloadObject;

/// Way in which the kind's controller replaces pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RolloutStrategy {
    /// One after another, or a few at once; pods below `partition` stay.
    Rolling { partition: u32 },
    /// All old pods end before the first new one starts.
    Recreate,
    /// Only pods that a user deletes.
    OnDelete,
    /// Rollouts are held.
    Held,
    /// Pods live as long as the workload is not suspended.
    Suspend,
}

impl RolloutStrategy {
    pub fn read(kind: &WorkloadKind, object: &Value) -> Self {
        let spec = &object["spec"];
        let partition = |value: &Value| Self::Rolling { partition: value.as_u64().unwrap_or(0).try_into().unwrap_or(u32::MAX) };
        match kind.kind {
            "StatefulSet" if spec["updateStrategy"]["type"] == "OnDelete" => Self::OnDelete,
            "StatefulSet" => partition(&spec["updateStrategy"]["rollingUpdate"]["partition"]),
            "Deployment" if spec["paused"] == true => Self::Held,
            "Deployment" if spec["strategy"]["type"] == "Recreate" => Self::Recreate,
            "LeaderWorkerSet" => partition(&spec["rolloutStrategy"]["rollingUpdateConfiguration"]["partition"]),
            "Deployment" => Self::Rolling { partition: 0 },
            _ => Self::Suspend,
        }
    }

    /// Returns the reason why a change of the pods cannot be rolled out. `together`: the change must replace all pods at once.
    pub fn forbids(&self, kind: &WorkloadKind, together: bool) -> Option<String> {
        match self {
            Self::Rolling { partition: 1.. } => {
                Some("its rolling update skips pods (partition): set the partition to 0 to let changes reach all pods".into())
            }
            Self::OnDelete => {
                Some("its update strategy is OnDelete: pods are replaced when they are deleted, not by EADT".into())
            }
            Self::Held => Some("its rollouts are paused (spec.paused)".into()),
            Self::Rolling { .. } if together && kind.kind != "StatefulSet" => Some(format!(
                "a new world size replaces all pods together, and a {} that rolls would mix old and new ones: use the strategy Recreate, or a StatefulSet",
                kind.kind
            )),
            Self::Rolling { .. } | Self::Recreate | Self::Suspend => None,
        }
    }
}

/// The status of an object about its pods.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RolloutProgress {
    /// The controller has seen the present generation.
    pub observed: bool,
    pub wanted: u32,
    pub updated: u32,
    pub ready: u32,
    /// Existing pods, old ones included; `None` if the kind does not report them.
    pub present: Option<u32>,
    /// Label value of the pods of the newest template, if the kind has one.
    pub revision: Option<String>,
    /// Messages of failed conditions.
    pub complaints: Vec<String>,
    /// It has ended.
    pub finished: bool,
}

impl RolloutProgress {
    pub fn read(kind: &WorkloadKind, object: &Value, wanted: u32) -> Self {
        let status = &object["status"];
        let count = |value: &Value| value.as_u64().unwrap_or(0).try_into().unwrap_or(u32::MAX);
        let generation = object["metadata"]["generation"].as_i64().unwrap_or(0);
        let observed = status["observedGeneration"].as_i64();
        let conditions: Vec<&Value> = status["conditions"].as_array().into_iter().flatten().collect();
        let is_true = |name: &str| conditions.iter().any(|c| c["type"] == name && c["status"] == "True");
        let mut this = Self {
            // Kinds whose operators do not report it are taken at their word.
            observed: observed.is_none_or(|observed| observed >= generation),
            wanted,
            complaints: conditions.iter().filter_map(|condition| condition_complaint(condition)).collect(),
            finished: ["Complete", "Failed", "Succeeded", "Completed"].into_iter().any(is_true),
            ..Self::default()
        };
        match kind.kind {
            "StatefulSet" | "Deployment" | "LeaderWorkerSet" => {
                this.observed = observed.is_some_and(|observed| observed >= generation);
                let group =
                    kind.group_size.map_or(1, |place| values_at(object, place).first().map_or(1, |(_, size)| count(size)));
                let all = |name: &str| count(&status[name]).saturating_mul(group);
                (this.updated, this.ready, this.present) = (all("updatedReplicas"), all("readyReplicas"), Some(all("replicas")));
                this.revision = status["updateRevision"].as_str().map(str::to_owned);
            }
            "PyTorchJob" | "MPIJob" => {
                let parts = status["replicaStatuses"].as_object().into_iter().flatten();
                let parts = parts.filter(|(part, _)| *part != "Launcher");
                this.ready = parts.map(|(_, part)| count(&part["active"])).fold(0, u32::saturating_add);
                if !is_true("Running") {
                    this.ready = 0;
                }
                this.updated = this.ready;
            }
            "JobSet" => {
                let jobs = status["replicatedJobsStatus"].as_array().into_iter().flatten();
                let ready = jobs.map(|job| count(&job["ready"])).fold(0, u32::saturating_add);
                // It counts jobs; a job is ready when all its pods are.
                let jobs = object["spec"]["replicatedJobs"].as_array().into_iter().flatten();
                let all = jobs.map(|job| job["replicas"].as_u64().unwrap_or(1)).sum::<u64>();
                this.ready = if u64::from(ready) >= all { wanted } else { 0 };
                this.updated = this.ready;
            }
            "Job" => {
                this.ready = count(&status["ready"]);
                this.updated = this.ready;
            }
            _ => {
                this.ready = if this.finished { 0 } else { wanted };
                this.updated = this.ready;
            }
        }
        this
    }

    /// Returns true if every pod is a new one and ready.
    pub fn complete(&self) -> bool {
        let none_else = self.present.is_none_or(|present| present == self.wanted);
        self.observed && self.updated >= self.wanted && self.ready >= self.wanted && none_else
    }
}

/// Returns the message of a condition that reports a failure.
fn condition_complaint(condition: &Value) -> Option<String> {
    let (kind, status) = (condition["type"].as_str()?, condition["status"].as_str()?);
    let bad = match kind {
        "ReplicaFailure" | "Failed" | "Suspended" => "True",
        "Progressing" | "Available" => "False",
        _ => return None,
    };
    let message: String = condition["message"].as_str().unwrap_or_default().chars().take(300).collect();
    (status == bad).then(|| format!("{kind} is {status}: {message}"))
}

/// A pod of a workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkloadPod {
    pub name: String,
    pub uid: String,
    /// Version of the object: it is deleted only as it was seen.
    pub version: String,
    pub node: Option<String>,
    /// Revision of the template that it was made from.
    pub revision: Option<String>,
    pub ready: bool,
    pub terminating: bool,
    /// The reason why the pod does not get ready.
    pub trouble: Option<String>,
}

impl WorkloadPod {
    pub fn read(pod: &Value) -> Option<Self> {
        let meta = &pod["metadata"];
        let status = &pod["status"];
        let condition = |name: &str| {
            let list = status["conditions"].as_array().into_iter().flatten();
            list.into_iter().find(|condition| condition["type"] == name)
        };
        let ready = condition("Ready").is_some_and(|condition| condition["status"] == "True");
        let revision = ["controller-revision-hash", "pod-template-hash", "leaderworkerset.sigs.k8s.io/template-revision-hash"];
        Some(Self {
            name: meta["name"].as_str()?.to_owned(),
            uid: meta["uid"].as_str()?.to_owned(),
            version: meta["resourceVersion"].as_str().unwrap_or_default().to_owned(),
            node: pod["spec"]["nodeName"].as_str().map(str::to_owned),
            revision: revision.iter().find_map(|label| meta["labels"][*label].as_str()).map(str::to_owned),
            ready,
            terminating: !meta["deletionTimestamp"].is_null(),
            trouble: if ready { None } else { pod_trouble(status, condition("PodScheduled"), condition("Ready")) },
        })
    }
}

fn pod_trouble(status: &Value, scheduled: Option<&Value>, ready: Option<&Value>) -> Option<String> {
    let short = |value: &Value| value.as_str().unwrap_or_default().chars().take(300).collect::<String>();
    if let Some(condition) = scheduled.filter(|condition| condition["status"] == "False") {
        return Some(format!("cannot be scheduled: {}", short(&condition["message"])));
    }
    for container in status["containerStatuses"].as_array().into_iter().flatten() {
        let waiting = &container["state"]["waiting"];
        let reason = short(&waiting["reason"]);
        if !reason.is_empty() && reason != "ContainerCreating" && reason != "PodInitializing" {
            return Some(format!("container {} waits: {reason} {}", short(&container["name"]), short(&waiting["message"])));
        }
    }
    if status["phase"] == "Failed" {
        return Some(format!("failed: {} {}", short(&status["reason"]), short(&status["message"])));
    }
    let message = ready.map(|condition| short(&condition["message"])).filter(|message| !message.is_empty());
    message.map(|message| format!("is not ready: {message}"))
}

/// Returns the obstacles of a rollout as text; empty if none is known.
pub fn describe_obstacles(observed: &WorkloadObject, pods: &[WorkloadPod]) -> String {
    let mut obstacles = Vec::new();
    let progress = &observed.progress;
    let here = pods.iter().filter(|pod| !pod.terminating).count();
    if (here as u64) < u64::from(progress.wanted) && !observed.suspended {
        obstacles.push(format!("{here} of {} pods exist", progress.wanted));
    }
    let troubled: Vec<_> =
        pods.iter().filter(|pod| !pod.terminating).filter_map(|pod| Some((pod, pod.trouble.as_ref()?))).collect();
    if let Some((pod, trouble)) = troubled.first() {
        let others = if troubled.len() > 1 { format!(" (and {} other pods)", troubled.len() - 1) } else { String::new() };
        obstacles.push(format!("pod {} {trouble}{others}", pod.name));
    }
    let leaving = pods.iter().filter(|pod| pod.terminating).count();
    if leaving > 0 {
        obstacles.push(format!("{leaving} pods are still ending"));
    }
    obstacles.extend(progress.complaints.iter().cloned());
    if obstacles.is_empty() && progress.ready < progress.wanted {
        obstacles.push(format!("{} of {} pods are ready", progress.ready, progress.wanted));
    }
    obstacles.join("; ")
}

/// A step that the actuator itself must do so that a rollout continues.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RolloutStep {
    /// Deletes a pod that the kind's controller would keep.
    Delete { pod: String, uid: String, version: String, why: &'static str },
    /// Its pods are gone: resume it.
    Resume,
    /// Every process is ready: write that down.
    Ready,
    /// All taken-over fields have their former values: release them.
    Release,
}

/// Returns the steps that are due for an object during its rollout. `pods`: those of the workload.
pub fn due_steps(observed: &WorkloadObject, pods: &[WorkloadPod], restoring: bool) -> Vec<RolloutStep> {
    let Some(mark) = &observed.change_annotation else { return vec![] };
    if mark.resume && observed.suspended {
        return if pods.is_empty() { vec![RolloutStep::Resume] } else { vec![] };
    }
    let generation = observed.layout_generation();
    let applied = mark.applied.as_ref().filter(|applied| applied.ready_time.is_none());
    let rolling = applied.is_some_and(|a| a.rolled_back.is_none() && a.generation == generation);
    let back = applied.and_then(|a| a.rolled_back.as_ref()).is_some_and(|back| back.generation == generation);
    let mut steps = Vec::new();
    // Before the controller has seen the change, its newest revision is still the old one.
    if let (true, Some(revision)) = (observed.progress.observed, &observed.progress.revision) {
        let old = pods.iter().filter(|pod| !pod.terminating && pod.revision.as_ref() != Some(revision));
        for pod in old {
            let why = if mark.together && (rolling || back || restoring) {
                "processes of different worlds must not meet"
            } else if (back || restoring) && !pod.ready {
                "a StatefulSet keeps a pod that never became ready, although its template was restored"
            } else {
                continue;
            };
            steps.push(RolloutStep::Delete { pod: pod.name.clone(), uid: pod.uid.clone(), version: pod.version.clone(), why });
        }
    }
    if restoring && steps.is_empty() && observed.progress.observed {
        steps.push(RolloutStep::Release);
    } else if rolling && observed.progress.complete() && !mark.resume {
        steps.push(RolloutStep::Ready);
    }
    steps
}

#[cfg(test)]
mod tests {
    use eadt_cluster::{AppliedDecision, RollbackRecord};
    use eadt_schemas::EventTime;
    use serde_json::json;

    use super::*;
    use crate::objects::object::tests::{seen, training};
    use crate::objects::record::{APPLIED, ChangeAnnotation};

    fn applied(generation: u64) -> AppliedDecision {
        AppliedDecision {
            decision_id: "d-1".into(),
            decision_time: EventTime::from_seconds(1e9),
            generation,
            time: EventTime::from_seconds(1e9),
            layout: eadt_schemas::v1::Layout::default(),
            before: eadt_schemas::v1::Layout::default(),
            ready_by: EventTime::from_seconds(1e9 + 600.0),
            ready_time: None,
            rolled_back: None,
            approved_by: None,
        }
    }

    fn pod(name: &str, revision: &str, ready: bool) -> WorkloadPod {
        WorkloadPod {
            name: name.into(),
            uid: format!("u-{name}"),
            version: "7".into(),
            node: None,
            revision: Some(revision.into()),
            ready,
            terminating: false,
            trouble: None,
        }
    }

    fn deleted(steps: &[RolloutStep]) -> Vec<&str> {
        steps
            .iter()
            .filter_map(|step| if let RolloutStep::Delete { pod, .. } = step { Some(pod.as_str()) } else { None })
            .collect()
    }

    /// Returns the training job in the middle of a rollout from revision `llm-1` to `llm-2`.
    fn rolling(mark: &ChangeAnnotation) -> Value {
        let mut object = training(6, "40", "6", "2");
        object["status"] = json!({
            "observedGeneration": 4, "replicas": 6, "readyReplicas": 5, "updatedReplicas": 1,
            "currentRevision": "llm-1", "updateRevision": "llm-2",
        });
        object["metadata"]["annotations"][APPLIED] = json!(serde_json::to_string(mark).unwrap());
        object
    }

    #[test]
    fn a_rollout_is_complete_when_all_pods_are_new_and_ready() {
        let mut object = training(6, "50", "6", "2");
        assert!(seen(&object).progress.complete());
        for (name, value) in [("observedGeneration", 3), ("readyReplicas", 5), ("updatedReplicas", 5), ("replicas", 7)] {
            let before = object["status"][name].clone();
            object["status"][name] = json!(value);
            assert!(!seen(&object).progress.complete(), "{name}");
            object["status"][name] = before;
        }
        object["status"] = json!({});
        assert!(!seen(&object).progress.complete(), "a controller that has reported nothing has not finished");
    }

    #[test]
    fn a_new_world_replaces_all_pods_and_other_changes_roll() {
        let pods = [pod("a", "llm-1", true), pod("b", "llm-2", false), pod("c", "llm-1", false)];
        let mut mark = ChangeAnnotation { applied: Some(applied(4)), ..ChangeAnnotation::default() };
        assert_eq!(due_steps(&seen(&rolling(&mark)), &pods, false), vec![], "the controller rolls them itself");
        mark.together = true;
        assert_eq!(deleted(&due_steps(&seen(&rolling(&mark)), &pods, false)), ["a", "c"]);
        let mut unseen = rolling(&mark);
        unseen["status"]["observedGeneration"] = json!(3);
        assert_eq!(due_steps(&seen(&unseen), &pods, false), vec![], "which revision is new is not known yet");
        mark.applied = Some(applied(3));
        assert_eq!(due_steps(&seen(&rolling(&mark)), &pods, false), vec![], "somebody else changed it since");
    }

    #[test]
    fn the_broken_pod_of_a_rollback_is_deleted_and_no_other() {
        let mut mark = ChangeAnnotation { applied: Some(applied(3)), ..ChangeAnnotation::default() };
        mark.applied.as_mut().unwrap().rolled_back =
            Some(RollbackRecord { generation: 4, time: EventTime::from_seconds(1e9), reason: "not ready".into() });
        let pods = [pod("a", "llm-2", true), pod("b", "llm-x", false), pod("c", "llm-x", true)];
        assert_eq!(deleted(&due_steps(&seen(&rolling(&mark)), &pods, false)), ["b"]);
    }

    #[test]
    fn readiness_is_noted_once() {
        let mut mark = ChangeAnnotation { applied: Some(applied(4)), ..ChangeAnnotation::default() };
        let mut object = training(6, "40", "6", "2");
        object["metadata"]["annotations"][APPLIED] = json!(serde_json::to_string(&mark).unwrap());
        assert_eq!(due_steps(&seen(&object), &[], false), [RolloutStep::Ready]);
        mark.applied.as_mut().unwrap().ready_time = Some(EventTime::from_seconds(1e9));
        object["metadata"]["annotations"][APPLIED] = json!(serde_json::to_string(&mark).unwrap());
        assert_eq!(due_steps(&seen(&object), &[], false), vec![]);
    }

    #[test]
    fn obstacles_are_reported_in_words() {
        let mut object = rolling(&ChangeAnnotation::default());
        object["status"]["conditions"] = json!([{"type": "ReplicaFailure", "status": "True", "message": "exceeded quota: gpus"}]);
        let pods: Vec<_> = [
            json!({"metadata": {"name": "llm-0", "uid": "1"}, "status": {"conditions": [
                {"type": "PodScheduled", "status": "False", "message": "0/2 nodes are available: 2 Insufficient nvidia.com/gpu"}]}}),
            json!({"metadata": {"name": "llm-1", "uid": "2", "deletionTimestamp": "2026-01-01T00:00:00Z"}}),
            json!({"metadata": {"name": "llm-2", "uid": "3"}, "status": {"containerStatuses": [
                {"name": "train", "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}}}]}}),
        ]
        .iter()
        .filter_map(WorkloadPod::read)
        .collect();
        let text = describe_obstacles(&seen(&object), &pods);
        for word in ["2 of 6 pods exist", "Insufficient nvidia.com/gpu", "1 other", "1 pods are still ending", "exceeded quota"] {
            assert!(text.contains(word), "{word}: {text}");
        }
        assert!(describe_obstacles(&seen(&object), &pods[2..]).contains("CrashLoopBackOff"));
    }

    #[test]
    fn strategies_that_hold_pods_back_are_explained() {
        let mut object = training(6, "50", "6", "2");
        let forbids = |object: &Value, together| seen(object).strategy.forbids(seen(object).kind, together);
        assert_eq!((forbids(&object, false), forbids(&object, true)), (None, None));
        object["spec"]["updateStrategy"]["rollingUpdate"]["partition"] = json!(2);
        assert!(forbids(&object, false).unwrap().contains("partition"));
        object["spec"]["updateStrategy"] = json!({"type": "OnDelete"});
        assert!(forbids(&object, false).unwrap().contains("OnDelete"));
        object["kind"] = json!("Deployment");
        assert_eq!(forbids(&object, false), None);
        assert!(forbids(&object, true).unwrap().contains("Recreate"));
        object["spec"]["strategy"] = json!({"type": "Recreate"});
        assert_eq!(forbids(&object, true), None);
        object["spec"]["paused"] = json!(true);
        assert!(forbids(&object, false).unwrap().contains("paused"));
    }
}
