//! Kinds beside `StatefulSet`: a `Deployment` with its real controller, and custom resources whose operators these tests play.

use crate::actuator;

use actuator::kinds::{define, every_right_was_used, report};
use actuator::{Rig, crashes, energy_policy, layout, training};
use eadt_schemas::v1::{Actuation, ActuationOutcome, ControllerAction, Layout, UpdateMode};
use serde_json::{Value, json};

const MPS: &str = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE";

fn policy(api_version: &str, kind: &str) -> Value {
    let mut policy = energy_policy("Enforce");
    policy["spec"]["targetRef"] = json!({"apiVersion": api_version, "kind": kind, "name": "llm-training"});
    policy
}

/// A pod template whose container holds a GPU.
fn pod(command: &str) -> Value {
    json!({"spec": {"containers": [{
        "name": "train", "image": "example.invalid/train:1", "command": [command],
        "env": [{"name": "DATA", "value": "/data"}, {"name": MPS, "value": "50"}],
        "resources": {"limits": {"nvidia.com/gpu": 1}},
    }]}})
}

/// The same with another percentage.
fn pod_with(command: &str, percentage: u32) -> Value {
    let mut pod = pod(command);
    pod["spec"]["containers"][0]["env"][1]["value"] = json!(percentage.to_string());
    pod
}

fn workers(replicas: u32, percentage: u32) -> Layout {
    Layout { replicas: Some(replicas), mps_thread_percentage: Some(percentage), ..Layout::default() }
}

fn get(rig: &Rig, kind: &str) -> Value {
    serde_json::from_str(&rig.kubectl(&["get", kind, "llm-training", "-o", "json"])).unwrap()
}

/// Returns the fields that only the object's owner may have changed.
fn own(object: &Value) -> [String; 2] {
    [object["metadata"]["annotations"].to_string(), object["spec"].to_string()]
}

/// Decides for more processes, which this kind does not let be changed.
fn scaled_in_vain(rig: &Rig, id: &str, to: Layout, why: &str) {
    in_vain(rig.change(id, ControllerAction::ScaleReplicas, to, ActuationOutcome::Refused), why);
}

fn in_vain(refused: Actuation, why: &str) {
    let reason = refused.reason;
    assert!(reason.contains(why) && reason.contains("it can only be recommended"), "{reason}");
}

/// In mode `Recommend` the same is recommended.
fn recommended(rig: &Rig, id: &str, action: ControllerAction, to: Layout, summary: &str) {
    rig.kubectl(&["patch", "energypolicy", "llm", "--type=merge", "-p", r#"{"spec":{"updateMode":"Recommend"}}"#]);
    rig.eventually("the mode is seen", || rig.published().filter(|workload| workload.mode == UpdateMode::Recommend));
    rig.change(id, action, to, ActuationOutcome::Recommended);
    rig.eventually("the recommendation is shown", || {
        let policy = rig.policy("llm");
        (policy["status"]["recommendation"]["summary"] == summary).then_some(())
    });
}

/// Deletes the policy, and waits until everything is as it was. `operate`: what the kind's operator does meanwhile.
fn given_back(rig: &Rig, kind: &str, before: &Value, mut operate: impl FnMut()) {
    rig.kubectl(&["delete", "energypolicy", "llm"]);
    rig.eventually("everything is as before", || {
        operate();
        let now = get(rig, kind);
        let ours = now["metadata"]["annotations"].as_object()?.keys().any(|name| name.starts_with("eadt.dev/"));
        (now["spec"] == before["spec"] && !ours).then_some(())
    });
}

#[test]
fn a_deployment_that_recreates_its_pods_is_changed_scaled_and_given_back() {
    let mut rig = Rig::new("deployment");
    let mut deployment = training();
    deployment["kind"] = json!("Deployment");
    let spec = deployment["spec"].as_object_mut().unwrap();
    spec.remove("serviceName");
    spec.remove("podManagementPolicy");
    spec.insert("strategy".into(), json!({"type": "Recreate"}));
    rig.apply(&deployment);
    let before = get(&rig, "deployment");
    rig.apply(&policy("apps/v1", "Deployment"));
    rig.start(120.0);
    rig.ready_with(&layout(6, 50, 2));
    // Also for the threads alone it takes all pods away at once.
    rig.apply(&json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "calm"},
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"app": "llm"}}},
    }));
    let refused = rig.change("d-0", ControllerAction::Decrease, layout(6, 45, 2), ActuationOutcome::Refused);
    assert!(refused.reason.contains("PodDisruptionBudget calm lets 1 of 6 pods"), "{}", refused.reason);
    rig.kubectl(&["delete", "poddisruptionbudget", "calm"]);
    for (id, action, to) in
        [("d-1", ControllerAction::Decrease, layout(6, 40, 2)), ("d-2", ControllerAction::ScaleReplicas, layout(9, 35, 3))]
    {
        let decision = rig.decision(id, action, to.clone());
        // The API server counts annotations of a Deployment as generations; the layout is the same.
        rig.kubectl(&["annotate", "deployment", "llm-training", &format!("example.com/{id}=before")]);
        rig.decide(&decision);
        rig.outcome(id, ActuationOutcome::Ready);
        rig.kubectl(&["annotate", "deployment", "llm-training", &format!("example.com/{id}-after=1")]);
        rig.ready_with(&to);
        let now = get(&rig, "deployment");
        let env = now["spec"]["template"]["spec"]["containers"][1]["env"].as_array().unwrap();
        let value = |name: &str| env.iter().find(|entry| entry["name"] == name).unwrap()["value"].as_str().unwrap().to_owned();
        assert_eq!(value(MPS), to.mps_thread_percentage.unwrap().to_string());
        assert_eq!(value("WORLD_SIZE"), to.replicas.unwrap().to_string());
        assert_eq!(now["spec"]["replicas"], to.replicas.unwrap());
        assert_eq!(rig.outcomes(id), [ActuationOutcome::Applied, ActuationOutcome::Ready]);
    }
    given_back(&rig, "deployment", &before, || ());
    every_right_was_used(&rig, "Deployment");
}

#[test]
fn a_deployment_that_rolls_is_changed_and_never_scaled() {
    let mut rig = Rig::new("rolling");
    let mut deployment = training();
    deployment["kind"] = json!("Deployment");
    let spec = deployment["spec"].as_object_mut().unwrap();
    spec.remove("serviceName");
    spec.remove("podManagementPolicy");
    rig.apply(&deployment);
    let before = get(&rig, "deployment");
    rig.apply(&policy("apps/v1", "Deployment"));
    rig.start(120.0);
    rig.ready_with(&layout(6, 50, 2));
    let refused = rig.change("d-1", ControllerAction::ScaleReplicas, layout(9, 35, 3), ActuationOutcome::Refused);
    assert!(refused.reason.contains("would mix old and new ones"), "{}", refused.reason);
    rig.change("d-2", ControllerAction::Decrease, layout(6, 40, 2), ActuationOutcome::Ready);
    rig.ready_with(&layout(6, 40, 2));
    assert!(rig.pods().iter().all(|pod| pod["spec"]["containers"][1]["env"][1]["value"] == "40"));
    given_back(&rig, "deployment", &before, || ());
}

#[test]
fn jobs_whose_trainer_or_environment_is_immutable_are_never_touched() {
    define("trainer.kubeflow.org", "v1alpha1", "TrainJob");
    let train = json!({"runtimeRef": {"name": "torch-distributed"}, "trainer": {
        "numNodes": 3, "env": [{"name": MPS, "value": "50"}], "resourcesPerNode": {"limits": {"nvidia.com/gpu": "1"}},
    }});
    let mut template = pod("train");
    template["spec"]["restartPolicy"] = json!("Never");
    let job = json!({"parallelism": 3, "completions": 3, "template": template});
    for (api_version, kind, spec, why) in [
        ("trainer.kubeflow.org/v1alpha1", "TrainJob", train, "the trainer of a TrainJob is immutable"),
        ("batch/v1", "Job", job, "the environment of a Job's pods is immutable, even while it is suspended"),
    ] {
        let mut rig = Rig::new(&kind.to_lowercase());
        rig.apply(&json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": "llm-training"}, "spec": spec}));
        rig.apply(&policy(api_version, kind));
        rig.start(120.0);
        rig.ready_with(&workers(3, 50));
        let untouched = get(&rig, kind);
        in_vain(rig.change("d-1", ControllerAction::Decrease, workers(3, 40), ActuationOutcome::Refused), why);
        recommended(&rig, "d-2", ControllerAction::Decrease, workers(3, 40), "threads 50 % → 40 %");
        given_back(&rig, kind, &untouched, || ());
        assert_eq!(own(&get(&rig, kind)), own(&untouched));
    }
}

#[test]
fn a_deployment_whose_new_pods_crash_goes_back() {
    let mut rig = Rig::new("deployment-back");
    let mut deployment = training();
    deployment["kind"] = json!("Deployment");
    let spec = deployment["spec"].as_object_mut().unwrap();
    spec.remove("serviceName");
    spec.remove("podManagementPolicy");
    spec.insert("strategy".into(), json!({"type": "Recreate"}));
    spec["template"]["metadata"]["annotations"] = json!({"test.eadt.dev/crash-when": format!("{MPS}=40")});
    rig.apply(&deployment);
    let before = get(&rig, "deployment");
    rig.apply(&policy("apps/v1", "Deployment"));
    rig.start(1.0);
    rig.ready_with(&layout(6, 50, 2));
    let back = rig.runs_out("d-1", ControllerAction::Decrease, layout(6, 40, 2), |pods| pods.iter().any(crashes));
    assert!(back.reason.contains("CrashLoopBackOff"), "{}", back.reason);
    rig.ready_with(&layout(6, 50, 2));
    assert_eq!(rig.outcomes("d-1"), [ActuationOutcome::Applied, ActuationOutcome::RolledBack]);
    assert_eq!(get(&rig, "deployment")["spec"], before["spec"]);
    rig.give_rollouts(120.0);
    // It can be changed again.
    rig.change("d-2", ControllerAction::Decrease, layout(6, 45, 2), ActuationOutcome::Ready);
}

/// A job that is suspended while it is changed, and its operator.
struct Suspended {
    rig: Rig,
    kind: &'static str,
    /// Path of its parts.
    parts: &'static str,
    /// Beside the workers.
    first: &'static str,
    /// With this percentage its processes never start.
    never_at: Option<u32>,
    before: Value,
}

impl Suspended {
    /// Its actuator has found it running in this layout.
    fn start(version: &str, kind: &'static str, parts: &'static str, first: (&'static str, &Value), found: &Layout) -> Self {
        Self::start_within(120.0, version, kind, parts, first, found)
    }

    /// The same; a rollout has so long.
    fn start_within(
        rollout_seconds: f64,
        version: &str,
        kind: &'static str,
        parts: &'static str,
        first: (&'static str, &Value),
        found: &Layout,
    ) -> Self {
        define("kubeflow.org", version, kind);
        let rig = Rig::new(&kind.to_lowercase());
        let api_version = format!("kubeflow.org/{version}");
        rig.apply(&json!({
            "apiVersion": api_version, "kind": kind, "metadata": {"name": "llm-training"},
            "spec": {"runPolicy": {"suspend": false}, parts: {
                first.0: {"replicas": 1, "template": first.1}, "Worker": {"replicas": 3, "template": pod("follow")},
            }},
        }));
        rig.apply(&policy(&api_version, kind));
        let before = get(&rig, kind);
        let mut this = Self { rig, kind, parts, first: first.0, never_at: None, before };
        this.operate();
        this.rig.start(rollout_seconds);
        this.rig.ready_with(found);
        this
    }

    fn job(&self) -> Value {
        get(&self.rig, self.kind)
    }

    /// The operator: a pod is there unless the job is suspended, which is returned.
    fn operate(&self) -> bool {
        let (rig, job) = (&self.rig, self.job());
        let suspended = job["spec"]["runPolicy"]["suspend"] == true;
        let worker = &job["spec"][self.parts]["Worker"];
        let percentage = &worker["template"]["spec"]["containers"][0]["env"][1]["value"];
        let never = self.never_at.map(|percentage| percentage.to_string());
        let runs = !suspended && (never.is_none() || percentage.as_str() != never.as_deref());
        let workers = if runs { worker["replicas"].clone() } else { json!(0) };
        let status = json!({
            "replicaStatuses": {self.first: {"active": i32::from(runs)}, "Worker": {"active": workers}},
            "conditions": [
                {"type": "Running", "status": if runs { "True" } else { "False" }},
                {"type": "Suspended", "status": if suspended { "True" } else { "False" }},
            ],
        });
        report(rig, self.kind, &status);
        if suspended {
            rig.kubectl(&["delete", "pod", "llm-training-worker-0", "--ignore-not-found"]);
        } else {
            let labels = json!({"training.kubeflow.org/job-name": "llm-training", "training.kubeflow.org/job-role": "worker"});
            rig.apply(&json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": {"name": "llm-training-worker-0", "labels": labels, "ownerReferences": [{
                    "apiVersion": job["apiVersion"], "kind": self.kind, "name": "llm-training", "controller": true,
                    "uid": job["metadata"]["uid"],
                }]},
                "spec": {"terminationGracePeriodSeconds": 1, "containers": [{"name": "train", "image": "example.invalid/train:1"}]},
            }));
        }
        suspended
    }

    /// Changes it, and returns its parts as they are then.
    fn change(&self, id: &str, action: ControllerAction, to: &Layout) -> Value {
        self.rig.decide(&self.rig.decision(id, action, to.clone()));
        let mut was_suspended = false;
        self.rig.eventually("it is changed", || {
            was_suspended |= self.operate();
            self.rig.outcomes(id).contains(&ActuationOutcome::Ready).then_some(())
        });
        assert!(was_suspended, "it is resumed only when its pods are gone");
        self.rig.ready_with(to);
        assert_eq!(self.rig.outcomes(id), [ActuationOutcome::Applied, ActuationOutcome::Ready]);
        let job = self.job();
        assert_eq!(job["spec"]["runPolicy"]["suspend"], false);
        job["spec"][self.parts].clone()
    }

    fn given_back(&self) {
        given_back(&self.rig, self.kind, &self.before, || {
            self.operate();
        });
    }
}

#[test]
fn a_pytorch_job_is_suspended_changed_and_resumed() {
    let job = Suspended::start("v1", "PyTorchJob", "pytorchReplicaSpecs", ("Master", &pod("lead")), &workers(4, 50));
    let parts = job.change("d-1", ControllerAction::ScaleReplicas, &workers(6, 40));
    let expected = json!({
        "Master": {"replicas": 1, "template": pod_with("lead", 40)}, "Worker": {"replicas": 5, "template": pod_with("follow", 40)},
    });
    assert_eq!(parts, expected, "the rest stays");
    job.given_back();
    every_right_was_used(&job.rig, job.kind);
}

#[test]
fn a_pytorch_job_that_does_not_run_again_goes_back() {
    let found = workers(4, 50);
    let mut job = Suspended::start_within(5.0, "v1", "PyTorchJob", "pytorchReplicaSpecs", ("Master", &pod("lead")), &found);
    job.never_at = Some(40);
    let rig = &job.rig;
    rig.decide(&rig.decision("d-1", ControllerAction::Decrease, workers(4, 40)));
    rig.eventually("it is taken back", || {
        job.operate();
        rig.outcomes("d-1").contains(&ActuationOutcome::RolledBack).then_some(())
    });
    rig.eventually("it runs as before", || {
        job.operate();
        rig.published().filter(|workload| workload.layout == found && workload.ready_time.is_some())
    });
    assert_eq!(rig.outcomes("d-1"), [ActuationOutcome::Applied, ActuationOutcome::RolledBack]);
    assert_eq!(job.job()["spec"], job.before["spec"]);
    job.rig.give_rollouts(120.0);
    job.change("d-2", ControllerAction::Decrease, &workers(4, 45));
}

#[test]
fn the_workers_of_an_mpi_job_are_changed_while_it_is_suspended_and_their_number_is_only_recommended() {
    let launcher = json!({"spec": {"containers": [
        {"name": "launch", "image": "example.invalid/train:1", "command": ["mpirun", "-n", "3", "train"],
         "env": [{"name": MPS, "value": "70"}]},
    ]}});
    let job = Suspended::start("v2beta1", "MPIJob", "mpiReplicaSpecs", ("Launcher", &launcher), &workers(3, 50));
    let why = "the number of ranks of an MPIJob is set in its launcher's command";
    let spec = job.job()["spec"].clone();
    scaled_in_vain(&job.rig, "d-1", workers(4, 50), why);
    // Not in part either.
    scaled_in_vain(&job.rig, "d-2", workers(4, 40), why);
    assert_eq!(job.job()["spec"], spec, "it was not even suspended");

    let parts = job.change("d-3", ControllerAction::Decrease, &workers(3, 40));
    let expected = json!({
        "Launcher": {"replicas": 1, "template": launcher}, "Worker": {"replicas": 3, "template": pod_with("follow", 40)},
    });
    assert_eq!(parts, expected, "the rest stays");

    let untouched = own(&job.job());
    recommended(&job.rig, "d-4", ControllerAction::ScaleReplicas, workers(4, 40), "replicas 3 → 4");
    assert_eq!(own(&job.job()), untouched);
    job.given_back();
    every_right_was_used(&job.rig, job.kind);
}

#[test]
fn a_job_set_is_never_touched_and_what_would_help_is_reported() {
    define("jobset.x-k8s.io", "v1alpha2", "JobSet");
    let mut rig = Rig::new("jobset");
    let job = |command: &str, copies: u32, pods: u32| {
        json!({"name": command, "replicas": copies, "template": {"spec": {
            "parallelism": pods, "completions": pods, "template": pod(command),
        }}})
    };
    rig.apply(&json!({
        "apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": "llm-training"},
        "spec": {"suspend": false, "replicatedJobs": [job("lead", 1, 1), job("follow", 2, 2)]},
    }));
    let status = |copies: u32| {
        json!({"replicatedJobsStatus": [
            {"name": "lead", "ready": 1, "active": 1, "succeeded": 0, "failed": 0, "suspended": 0},
            {"name": "follow", "ready": copies, "active": 2, "succeeded": 0, "failed": 0, "suspended": 0},
        ]})
    };
    report(&rig, "jobset", &status(1));
    rig.apply(&policy("jobset.x-k8s.io/v1alpha2", "JobSet"));
    rig.start(120.0);
    rig.eventually("its layout is known", || rig.published().filter(|workload| workload.layout == workers(5, 50)));
    assert_eq!(rig.published().unwrap().ready_time, None, "one of its jobs is not ready");
    report(&rig, "jobset", &status(2));
    rig.ready_with(&workers(5, 50));

    let untouched = get(&rig, "jobset");
    let threads = rig.change("d-1", ControllerAction::Decrease, workers(5, 40), ActuationOutcome::Refused);
    in_vain(threads, "the environment of a JobSet's jobs is immutable");
    scaled_in_vain(&rig, "d-2", workers(6, 50), "the replicas of a JobSet's jobs are immutable");
    recommended(&rig, "d-3", ControllerAction::Decrease, workers(5, 40), "threads 50 % → 40 %");
    // An approval of an impossible change gets an error.
    rig.kubectl(&["annotate", "energypolicy", "llm", "eadt.dev/approved=d-3"]);
    in_vain(rig.outcome("d-3", ActuationOutcome::Refused), "the environment of a JobSet's jobs is immutable");
    given_back(&rig, "jobset", &untouched, || ());
    let now = get(&rig, "jobset");
    assert_eq!(own(&now), own(&untouched));
    assert_eq!(now["metadata"]["resourceVersion"], untouched["metadata"]["resourceVersion"], "it was not written at all");
}

/// Two groups of three, found running, whose rollouts have so long; and the object as it was before.
fn leader_worker_set(prefix: &str, rollout_seconds: f64) -> (Rig, Value) {
    define("leaderworkerset.x-k8s.io", "v1", "LeaderWorkerSet");
    let mut rig = Rig::new(prefix);
    rig.apply(&json!({
        "apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "metadata": {"name": "llm-training"},
        "spec": {
            "replicas": 2,
            "leaderWorkerTemplate": {"size": 3, "leaderTemplate": pod("lead"), "workerTemplate": pod("follow")},
            "rolloutStrategy": {"type": "RollingUpdate", "rollingUpdateConfiguration": {"partition": 0, "maxUnavailable": 1}},
        },
    }));
    let before = get(&rig, "leaderworkerset");
    rig.apply(&policy("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"));
    rolled(&rig, 2);
    rig.start(rollout_seconds);
    rig.ready_with(&workers(6, 50));
    (rig, before)
}

/// Their controller, when so many of the two groups are of the newest template.
fn rolled(rig: &Rig, updated: u32) {
    let generation = get(rig, "leaderworkerset")["metadata"]["generation"].clone();
    let status = json!({"observedGeneration": generation, "replicas": 2, "readyReplicas": 2, "updatedReplicas": updated});
    report(rig, "leaderworkerset", &status);
}

#[test]
fn groups_that_are_not_rolled_in_time_go_back() {
    let (rig, before) = leader_worker_set("lws-back", 5.0);
    rig.change("d-1", ControllerAction::Decrease, workers(6, 40), ActuationOutcome::Applied);
    rolled(&rig, 1);
    let back = rig.outcome("d-1", ActuationOutcome::RolledBack);
    assert!(back.reason.contains("5 s"), "{}", back.reason);
    rig.eventually("it is as before", || {
        rolled(&rig, 2);
        (get(&rig, "leaderworkerset")["spec"] == before["spec"]).then_some(())
    });
    rig.ready_with(&workers(6, 50));
    assert_eq!(rig.outcomes("d-1"), [ActuationOutcome::Applied, ActuationOutcome::RolledBack]);
}

#[test]
fn the_groups_of_a_leader_worker_set_are_rolled_and_given_back_and_their_number_is_only_recommended() {
    let (rig, before) = leader_worker_set("lws", 120.0);
    let why = "a LeaderWorkerSet is scaled by whole groups";
    scaled_in_vain(&rig, "d-1", workers(9, 50), why);
    assert_eq!(get(&rig, "leaderworkerset")["spec"], before["spec"]);

    rig.change("d-2", ControllerAction::Decrease, workers(6, 40), ActuationOutcome::Applied);
    let mut expected = before["spec"].clone();
    let templates = &mut expected["leaderWorkerTemplate"];
    (templates["leaderTemplate"], templates["workerTemplate"]) = (pod_with("lead", 40), pod_with("follow", 40));
    assert_eq!(get(&rig, "leaderworkerset")["spec"], expected, "the rest stays");
    rolled(&rig, 1);
    std::thread::sleep(std::time::Duration::from_secs(2));
    assert_eq!(rig.outcomes("d-2"), [ActuationOutcome::Applied], "a group is still of the old template");
    rolled(&rig, 2);
    rig.outcome("d-2", ActuationOutcome::Ready);
    rig.ready_with(&workers(6, 40));

    let untouched = own(&get(&rig, "leaderworkerset"));
    recommended(&rig, "d-3", ControllerAction::ScaleReplicas, workers(9, 40), "replicas 6 → 9");
    assert_eq!(own(&get(&rig, "leaderworkerset")), untouched);
    given_back(&rig, "leaderworkerset", &before, || rolled(&rig, 2));
    every_right_was_used(&rig, "LeaderWorkerSet");
}
