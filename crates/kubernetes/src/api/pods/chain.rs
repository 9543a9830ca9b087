//! Derives the workload of a pod from the pod's object and its owners. Pure.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::ApiResource;
use serde_json::json;

use crate::objects::kinds::WorkloadKind;
use crate::objects::object::{MPS_PERCENTAGE, requested_gpus};

/// The kinds that are read on the way from a pod to its workload: those that a kind of workload may own. Group, kind, plural.
///
/// Their owners are named in the reference, so they need not be read; nor does the account have the right. A pod is an owner in a
/// `LeaderWorkerSet`, whose leader owns its workers.
pub const FOLLOWED_OWNERS: [(&str, &str, &str); 5] = [
    ("", "Pod", "pods"),
    ("apps", "ReplicaSet", "replicasets"),
    ("apps", "StatefulSet", "statefulsets"),
    ("batch", "Job", "jobs"),
    ("jobset.x-k8s.io", "JobSet", "jobsets"),
];

/// The controller of an object, as its metadata names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControllerRef {
    pub api_version: String,
    pub kind: String,
    pub name: String,
    pub uid: String,
}

impl ControllerRef {
    /// Returns the controller among the owners; there is one at most.
    pub fn of(metadata: &ObjectMeta) -> Option<Self> {
        let owner = metadata.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))?;
        Some(Self {
            api_version: owner.api_version.clone(),
            kind: owner.kind.clone(),
            name: owner.name.clone(),
            uid: owner.uid.clone(),
        })
    }

    /// Returns the resource to read it as, if its own owner may matter.
    pub fn resource(&self) -> Option<ApiResource> {
        let (group, version) = self.api_version.rsplit_once('/').unwrap_or(("", &self.api_version));
        let (.., plural) = FOLLOWED_OWNERS.into_iter().find(|known| (known.0, known.1) == (group, &*self.kind))?;
        Some(ApiResource {
            group: group.into(),
            version: version.into(),
            api_version: self.api_version.clone(),
            kind: self.kind.clone(),
            plural: plural.into(),
        })
    }
}

/// Returns the name of a pod's workload; the owners go from the nearest to the outermost. It is the outermost owner of a kind
/// that policies support, otherwise the outermost known owner, otherwise the pod.
pub fn outermost_workload<'a>(pod: &'a str, owners: &'a [ControllerRef]) -> &'a str {
    let known = owners.iter().rfind(|owner| WorkloadKind::find(&owner.api_version, &owner.kind).is_some());
    // A static pod belongs to its node, which is no workload.
    let outermost = || owners.last().filter(|owner| (&*owner.api_version, &*owner.kind) != ("v1", "Node"));
    known.or_else(outermost).map_or(pod, |owner| &owner.name)
}

/// Returns the MPS thread percentage of the pod's container with GPUs, 1 to 100; `None` if it is not set or not readable, or
/// there are several such containers, whose devices cannot be distinguished.
pub fn mps_thread_percentage(pod: &Pod) -> Option<f64> {
    let mut containers = pod.spec.iter().flat_map(|spec| &spec.containers).filter(|container| {
        let resources = container.resources.as_ref();
        resources.is_some_and(|resources| {
            requested_gpus(&json!(resources)) > 0 || resources.claims.as_ref().is_some_and(|c| !c.is_empty())
        })
    });
    let (Some(only), None) = (containers.next(), containers.next()) else { return None };
    // The last one of several variables with one name applies.
    let variable = only.env.iter().flatten().rfind(|variable| variable.name == MPS_PERCENTAGE)?;
    let percentage: f64 = variable.value.as_ref()?.trim().parse().ok()?;
    (1.0..=100.0).contains(&percentage).then_some(percentage)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn owner(api_version: &str, kind: &str, name: &str) -> ControllerRef {
        let uid = format!("{kind}-{name}");
        ControllerRef { api_version: api_version.into(), kind: kind.into(), name: name.into(), uid }
    }

    #[test]
    fn the_outermost_owner_that_policies_are_for() {
        for (owners, expected) in [
            (vec![], "pod"),
            (vec![owner("apps/v1", "ReplicaSet", "serve-5d4f8c7b9"), owner("apps/v1", "Deployment", "serve")], "serve"),
            (vec![owner("apps/v1", "ReplicaSet", "alone")], "alone"),
            (vec![owner("apps/v1", "StatefulSet", "llm")], "llm"),
            (
                vec![
                    owner("apps/v1", "StatefulSet", "group-0"),
                    owner("v1", "Pod", "group-0"),
                    owner("apps/v1", "StatefulSet", "group"),
                    owner("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "group"),
                ],
                "group",
            ),
            (
                vec![
                    owner("batch/v1", "Job", "tune-node-0"),
                    owner("jobset.x-k8s.io/v1alpha2", "JobSet", "tune-set"),
                    owner("trainer.kubeflow.org/v1alpha1", "TrainJob", "tune"),
                ],
                "tune",
            ),
            (vec![owner("batch/v1", "Job", "a-launcher"), owner("kubeflow.org/v2beta1", "MPIJob", "a")], "a"),
            (vec![owner("kubeflow.org/v1", "PyTorchJob", "bert")], "bert"),
            // No policy can name these, but the pods under them are one workload all the same.
            (vec![owner("ray.io/v1", "RayCluster", "ray")], "ray"),
            // These make workloads and are none.
            (vec![owner("batch/v1", "Job", "nightly-1"), owner("batch/v1", "CronJob", "nightly")], "nightly-1"),
            (vec![owner("v1", "Node", "gpu-0")], "pod"),
            (vec![owner("example.com/v1", "StatefulSet", "foreign"), owner("example.com/v1", "Node", "x")], "x"),
        ] {
            assert_eq!(outermost_workload("pod", &owners), expected, "{owners:?}");
        }
    }

    #[test]
    fn only_the_controller_owns_and_only_some_are_read() {
        let metadata: ObjectMeta = serde_json::from_value(json!({"ownerReferences": [
            {"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "1"},
            {"apiVersion": "jobset.x-k8s.io/v1alpha9", "kind": "JobSet", "name": "s", "uid": "2", "controller": true}
        ]}))
        .unwrap();
        let found = ControllerRef::of(&metadata).unwrap();
        assert_eq!((&*found.name, &*found.uid), ("s", "2"));
        let resource = found.resource().unwrap();
        assert_eq!((&*resource.plural, &*resource.version), ("jobsets", "v1alpha9"), "in the version that its operator speaks");
        assert_eq!(ControllerRef::of(&ObjectMeta::default()), None);
        assert_eq!(owner("v1", "Pod", "p").resource().unwrap().plural, "pods");
        for (api_version, kind) in [("apps/v1", "Deployment"), ("v1", "Node"), ("example.com/v1", "Job"), ("batch/v1", "CronJob")]
        {
            assert!(owner(api_version, kind, "x").resource().is_none(), "{kind} is not read");
        }
    }

    #[test]
    fn the_percentage_of_the_only_container_with_gpus() {
        let container = |gpus: u32, env: Value| json!({"name": format!("c{gpus}"), "env": env, "resources": {"limits": {"nvidia.com/gpu.shared": gpus.to_string()}}});
        let of = |containers: Value| {
            mps_thread_percentage(&serde_json::from_value(json!({"metadata": {}, "spec": {"containers": containers}})).unwrap())
        };
        let set = |value: &str| json!([{"name": MPS_PERCENTAGE, "value": value}]);
        assert_eq!(of(json!([container(0, set("70")), container(1, set("40"))])), Some(40.0));
        assert_eq!(of(json!([{"name": "c", "env": set("30"), "resources": {"claims": [{"name": "gpu"}]}}])), Some(30.0));
        for none in [
            json!([]),
            json!([container(0, set("40"))]),
            json!([container(1, json!([]))]),
            json!([container(1, set("0"))]),
            json!([container(1, set("101"))]),
            json!([container(1, set("NaN"))]),
            json!([container(1, set("a lot"))]),
            json!([container(1, json!([{"name": MPS_PERCENTAGE, "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}]))]),
            json!([container(1, set("40")), container(2, set("40"))]),
        ] {
            assert_eq!(of(none.clone()), None, "{none}");
        }
    }
}
