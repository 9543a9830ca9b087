//! The job of the seeds, its policy, and how to look at it.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// The seed's job: six processes on three GPUs.
pub fn training() -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet",
        "metadata": {"name": "llm-training"},
        "spec": {
            "replicas": 6, "serviceName": "llm", "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": {"app": "llm"}},
            "template": {
                "metadata": {"labels": {"app": "llm"}},
                "spec": {
                    "terminationGracePeriodSeconds": 1,
                    "containers": [
                        {"name": "logs", "image": "example.invalid/logs:1"},
                        {"name": "train", "image": "example.invalid/train:1",
                         "env": [
                            {"name": "DATA", "value": "/data"},
                            {"name": "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "value": "50"},
                            {"name": "WORLD_SIZE", "value": "6"},
                            {"name": "LOCAL_WORLD_SIZE", "value": "2"},
                         ],
                         "resources": {"limits": {"nvidia.com/gpu": "1"}}},
                    ],
                },
            },
        },
    })
}

pub fn energy_policy(mode: &str) -> Value {
    json!({
        "apiVersion": "eadt.dev/v1alpha1", "kind": "EnergyPolicy",
        "metadata": {"name": "llm"},
        "spec": {
            "targetRef": {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "llm-training"},
            "updateMode": mode,
            "bounds": {
                "mpsThreadPercentage": {"min": 25, "max": 100}, "replicas": {"min": 3, "max": 12},
                "maxOversubscriptionPercentage": 200,
            },
            "restartBudget": {"perDay": 100},
            "cooldown": "0s",
            "training": {"globalBatchSize": 576, "backend": "gloo"},
        },
    })
}

/// Fencing is about the object: without pods a change takes no time.
pub fn without_pods() -> Value {
    let mut set = training();
    set["spec"]["replicas"] = json!(0);
    set
}

/// The environment of the container that trains.
pub fn environment(set: &Value) -> BTreeMap<String, String> {
    let env = &set["spec"]["template"]["spec"]["containers"][1]["env"];
    let entries = env.as_array().unwrap().iter();
    entries.map(|e| (e["name"].as_str().unwrap().to_owned(), e["value"].as_str().unwrap().to_owned())).collect()
}

/// Returns the parts of an object that EADT does not own: they stay unchanged after any write.
pub fn foreign(set: &Value) -> Value {
    let mut rest = set.clone();
    rest.as_object_mut().unwrap().remove("status");
    let meta = rest["metadata"].as_object_mut().unwrap();
    meta.retain(|name, _| name != "resourceVersion" && name != "generation");
    if let Some(annotations) = meta.get_mut("annotations").and_then(Value::as_object_mut) {
        annotations.retain(|name, _| !name.starts_with("eadt.dev/"));
    }
    // Fields of other owners stay theirs.
    if let Some(owners) = meta.get_mut("managedFields").and_then(Value::as_array_mut) {
        owners.retain(|owner| !owner["manager"].as_str().unwrap().starts_with("eadt-") && owner["subresource"].is_null());
    }
    rest["spec"]["replicas"].take();
    for variable in rest["spec"]["template"]["spec"]["containers"][1]["env"].as_array_mut().unwrap() {
        if ["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "WORLD_SIZE", "LOCAL_WORLD_SIZE"].iter().any(|ours| variable["name"] == **ours) {
            variable["value"].take();
        }
    }
    rest
}
