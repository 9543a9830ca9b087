//! Pods that hold GPUs. Pure.

use eadt_schemas::EventTime;
use serde_json::Value;

/// A pod that holds GPUs of a node, of any workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuPod {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    /// Creation time by the API server; `None` if it is absent.
    pub created: Option<EventTime>,
}

/// Reads a pod if it holds GPUs, or may (a claim of unknown devices).
pub fn read_gpu_pod(pod: &Value) -> Option<GpuPod> {
    let spec = &pod["spec"];
    let lists = [&spec["containers"], &spec["initContainers"]];
    let resources = lists.into_iter().filter_map(Value::as_array).flatten().map(|container| &container["resources"]);
    let named = resources.flat_map(|r| [&r["limits"], &r["requests"]]).filter_map(Value::as_object).flat_map(|r| r.keys());
    let claims = spec["resourceClaims"].as_array().is_some_and(|claims| !claims.is_empty());
    if !claims && !named.into_iter().any(|name| name.starts_with("nvidia.com/")) {
        return None;
    }
    let text = |name: &str| pod["metadata"][name].as_str().map(str::to_owned);
    let created = text("creationTimestamp").and_then(|time| time.parse().ok());
    Some(GpuPod { namespace: text("namespace")?, name: text("name")?, uid: text("uid")?, created })
}
