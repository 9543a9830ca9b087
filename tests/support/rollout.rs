//! A workload on a real API server, its policy, and a decision about it.

use std::sync::Arc;

use eadt_bus::ProducerRecord;
use eadt_schemas::v1::{ControllerAction, Decision, Layout, Workload};
use eadt_schemas::{Envelope, EventTime, EventType, Topic};
use serde_json::{Value, json};

pub const MPS: &str = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE";

/// The objects to apply: the `StatefulSet` `llm` at 50 %, and a policy that lets it be changed at once and often.
pub fn objects() -> [Value; 2] {
    [
        json!({
            "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "llm"},
            "spec": {
                "replicas": 2, "serviceName": "llm", "podManagementPolicy": "Parallel", "selector": {"matchLabels": {"app": "llm"}},
                "template": {"metadata": {"labels": {"app": "llm"}}, "spec": {"terminationGracePeriodSeconds": 1, "containers": [{
                    "name": "train", "image": "example.invalid/train:1", "env": [{"name": MPS, "value": "50"}],
                    "resources": {"limits": {"nvidia.com/gpu": "1"}},
                }]}},
            },
        }),
        json!({
            "apiVersion": "eadt.dev/v1alpha1", "kind": "EnergyPolicy", "metadata": {"name": "llm"},
            "spec": {
                "targetRef": {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "llm"}, "updateMode": "Enforce",
                "bounds": {"mpsThreadPercentage": {"min": 25, "max": 100}}, "cooldown": "0s", "restartBudget": {"perDay": 100},
            },
        }),
    ]
}

/// The percentage that the object has.
pub fn percentage(stateful_set: &Value) -> Option<&str> {
    let entry = &stateful_set["spec"]["template"]["spec"]["containers"][0]["env"][0];
    entry["value"].as_str().filter(|_| entry["name"] == MPS)
}

/// A decision for another percentage, as it goes to the log.
pub fn decision(id: &str, present: Workload, percentage: u32) -> ProducerRecord {
    let time = EventTime::from_seconds(std::time::UNIX_EPOCH.elapsed().unwrap().as_secs_f64());
    let decision = Decision {
        id: id.into(),
        workload: present.workload.clone(),
        time,
        action: ControllerAction::Decrease,
        reason: "the test wants it".into(),
        to: Layout { mps_thread_percentage: Some(percentage), ..present.layout.clone() },
        from: present.layout,
        generation: Some(present.generation),
        restarts: true,
        expires: time.plus_seconds(300.0),
        ..Decision::default()
    };
    let (kind, subject) = (EventType::Decision, present.workload.clone());
    let envelope = Envelope { id: id.into(), source: "/test".into(), kind, time, subject };
    ProducerRecord {
        topic: format!("eadt.{}", Topic::Decisions).into(),
        partition: None,
        key: Some(present.workload.into_bytes().into()),
        value: Some(serde_json::to_vec(&decision).unwrap().into()),
        headers: envelope.headers().map(|(name, value)| (Arc::from(name), value.into())).to_vec(),
    }
}
