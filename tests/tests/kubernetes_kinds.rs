//! Kinds beside `StatefulSet`: a `Deployment` with its real controller, and a `PyTorchJob` whose operator this test plays.

mod actuator;

use actuator::{Rig, energy_policy, kubernetes, layout, training};
use eadt_schemas::v1::{Action, Layout, Outcome};
use serde_json::{Value, json};

/// The training operator's kind, as far as the API server must know it.
const PYTORCH_JOBS: &str = "
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: pytorchjobs.kubeflow.org}
spec:
  group: kubeflow.org
  names: {kind: PyTorchJob, plural: pytorchjobs, singular: pytorchjob}
  scope: Namespaced
  versions:
    - name: v1
      served: true
      storage: true
      subresources: {status: {}}
      schema:
        openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}
";

fn policy(api_version: &str, kind: &str) -> Value {
    let mut policy = energy_policy("Enforce");
    policy["spec"]["targetRef"] = json!({"apiVersion": api_version, "kind": kind, "name": "llm-training"});
    policy
}

fn get(rig: &Rig, kind: &str) -> Value {
    serde_json::from_str(&rig.kubectl(&["get", kind, "llm-training", "-o", "json"])).unwrap()
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
    let before = get(&rig, "deployment")["spec"].clone();
    rig.apply(&policy("apps/v1", "Deployment"));
    rig.start(120.0);
    rig.ready_with(&layout(6, 50, 2));
    for (id, action, to) in [("d-1", Action::Decrease, layout(6, 40, 2)), ("d-2", Action::ScaleReplicas, layout(9, 35, 3))] {
        let decision = rig.decision(id, action, to.clone());
        // The API server counts annotations of a Deployment as generations; the layout is the same.
        rig.kubectl(&["annotate", "deployment", "llm-training", &format!("example.com/{id}=before")]);
        rig.decide(&decision);
        rig.outcome(id, Outcome::Ready);
        rig.kubectl(&["annotate", "deployment", "llm-training", &format!("example.com/{id}-after=1")]);
        rig.ready_with(&to);
        let now = get(&rig, "deployment");
        let env = now["spec"]["template"]["spec"]["containers"][1]["env"].as_array().unwrap();
        let value = |name: &str| env.iter().find(|entry| entry["name"] == name).unwrap()["value"].as_str().unwrap().to_owned();
        assert_eq!(value("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"), to.mps_thread_percentage.unwrap().to_string());
        assert_eq!(value("WORLD_SIZE"), to.replicas.unwrap().to_string());
        assert_eq!(now["spec"]["replicas"], to.replicas.unwrap());
        assert_eq!(rig.outcomes(id), [Outcome::Applied, Outcome::Ready]);
    }
    rig.kubectl(&["delete", "energypolicy", "llm"]);
    rig.eventually("everything is as before", || {
        let now = get(&rig, "deployment");
        let own = now["metadata"]["annotations"].as_object()?.keys().any(|name| name.starts_with("eadt.dev/"));
        (now["spec"] == before && !own).then_some(())
    });
}

#[test]
fn a_pytorch_job_is_suspended_changed_and_resumed() {
    kubernetes().define(PYTORCH_JOBS).unwrap();
    let mut rig = Rig::new("pytorch");
    let pod = |command: &str| {
        json!({"spec": {"containers": [{
            "name": "pytorch", "image": "example.invalid/train:1", "command": [command],
            "env": [{"name": "DATA", "value": "/data"}, {"name": "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "value": "50"}],
            "resources": {"limits": {"nvidia.com/gpu": 1}},
        }]}})
    };
    rig.apply(&json!({
        "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "llm-training"},
        "spec": {"runPolicy": {"suspend": false}, "pytorchReplicaSpecs": {
            "Master": {"replicas": 1, "template": pod("lead")}, "Worker": {"replicas": 3, "template": pod("follow")},
        }},
    }));
    rig.apply(&policy("kubeflow.org/v1", "PyTorchJob"));
    // The operator: a pod is there unless the job is suspended.
    let operate = |rig: &Rig| {
        let job = get(rig, "pytorchjob");
        let suspended = job["spec"]["runPolicy"]["suspend"] == true;
        let workers = if suspended { json!(0) } else { job["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"].clone() };
        let status = json!({"status": {
            "replicaStatuses": {"Master": {"active": i32::from(!suspended)}, "Worker": {"active": workers}},
            "conditions": [
                {"type": "Running", "status": if suspended { "False" } else { "True" }},
                {"type": "Suspended", "status": if suspended { "True" } else { "False" }},
            ],
        }});
        let patch = ["patch", "pytorchjob", "llm-training", "--subresource=status", "--type=merge", "-p", &status.to_string()];
        rig.kubectl(&patch);
        if suspended {
            rig.kubectl(&["delete", "pod", "llm-training-worker-0", "--ignore-not-found"]);
        } else {
            rig.apply(&json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": {
                    "name": "llm-training-worker-0", "labels": {"training.kubeflow.org/job-name": "llm-training"},
                    "ownerReferences": [{
                        "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "llm-training", "controller": true,
                        "uid": job["metadata"]["uid"],
                    }],
                },
                "spec": {"terminationGracePeriodSeconds": 1, "containers": [{"name": "pytorch", "image": "example.invalid/train:1"}]},
            }));
        }
        suspended
    };
    operate(&rig);
    rig.start(120.0);
    let found = Layout { replicas: Some(4), mps_thread_percentage: Some(50), ..Layout::default() };
    rig.ready_with(&found);

    let to = Layout { replicas: Some(6), mps_thread_percentage: Some(40), ..Layout::default() };
    rig.decide(&rig.decision("d-1", Action::ScaleReplicas, to.clone()));
    let mut was_suspended = false;
    rig.eventually("it is changed", || {
        was_suspended |= operate(&rig);
        rig.outcomes("d-1").contains(&Outcome::Ready).then_some(())
    });
    assert!(was_suspended, "it is resumed only when its pods are gone");
    rig.ready_with(&to);
    let job = get(&rig, "pytorchjob");
    let parts = &job["spec"]["pytorchReplicaSpecs"];
    assert_eq!((&parts["Master"]["replicas"], &parts["Worker"]["replicas"]), (&json!(1), &json!(5)));
    for (part, command) in [("Master", "lead"), ("Worker", "follow")] {
        let container = &parts[part]["template"]["spec"]["containers"][0];
        assert_eq!(container["env"][1]["value"], "40");
        assert_eq!(
            (&container["env"][0]["value"], &container["command"][0]),
            (&json!("/data"), &json!(command)),
            "the rest stays"
        );
    }
    assert_eq!(job["spec"]["runPolicy"]["suspend"], false);

    rig.kubectl(&["delete", "energypolicy", "llm"]);
    rig.eventually("everything is as before", || {
        operate(&rig);
        let now = get(&rig, "pytorchjob");
        let parts = &now["spec"]["pytorchReplicaSpecs"];
        let as_before = parts["Worker"]["replicas"] == 3
            && parts["Worker"]["template"]["spec"]["containers"][0]["env"][1]["value"] == "50"
            && now["spec"]["runPolicy"]["suspend"] == false;
        let own = now["metadata"]["annotations"].as_object()?.keys().any(|name| name.starts_with("eadt.dev/"));
        (as_before && !own).then_some(())
    });
}
