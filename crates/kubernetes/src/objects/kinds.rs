//! The supported kinds of workloads, with the places of their processes and of the fields that can be changed. Pure.

use serde_json::Value;

/// A path into an object; `*` matches every element of a list.
pub type FieldPath = &'static [&'static str];

/// Way of writing a field of the pod template.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TemplateUpdate {
    /// It is written; the kind's own controller replaces the pods.
    Rolling,
    /// Only while the workload is suspended: suspend, wait for the pods to end, write, resume.
    Suspended,
    /// It cannot be changed; why, for people.
    Immutable(&'static str),
}

/// Source of the world size for the processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorldSizeSource {
    /// `WORLD_SIZE` and `LOCAL_WORLD_SIZE` in the pod template.
    Variables,
    /// The kind's operator: the variables are not written.
    Operator,
}

/// Way of writing that keeps the fields of others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteMethod {
    /// Server-side apply: containers and variables are lists that merge by name.
    ServerSideApply,
    /// Custom resources, whose lists are often atomic, so that applying one variable would replace the rest: the whole list is
    /// written back, fenced by the resource version.
    ReplaceList,
}

/// A kind of workload.
#[derive(Debug, PartialEq, Eq)]
pub struct WorkloadKind {
    pub kind: &'static str,
    pub group: &'static str,
    pub version: &'static str,
    pub plural: &'static str,
    /// Pod templates whose containers may hold GPUs.
    pub templates: &'static [FieldPath],
    /// Path to the environment of the processes in a kind without templates: `env` beside `resourcesPerNode`.
    pub trainer: Option<FieldPath>,
    /// Numbers of processes, which are added up; one that is absent counts as 1.
    pub replicas: &'static [FieldPath],
    /// The number by which `replicas` is multiplied, if the kind has one; absent counts as 1.
    pub copies: Option<FieldPath>,
    /// Processes of one of them, if a replica is a group; absent counts as 1.
    pub group_size: Option<FieldPath>,
    /// The number that is written to change how many there are; it is one of `replicas`.
    pub scaled: Option<FieldPath>,
    /// The flag that suspends it.
    pub suspend: Option<FieldPath>,
    pub environment: TemplateUpdate,
    pub scale: TemplateUpdate,
    pub world_size_source: WorldSizeSource,
    pub write_method: WriteMethod,
    /// Whether a change of annotations alone raises the object's generation, as the API server does for a `Deployment`.
    pub annotations_count: bool,
}

const TEMPLATE: FieldPath = &["spec", "template"];
const REPLICAS: FieldPath = &["spec", "replicas"];

/// Every kind that is known.
pub static WORKLOAD_KINDS: [WorkloadKind; 8] = [
    WorkloadKind {
        kind: "StatefulSet",
        group: "apps",
        version: "v1",
        plural: "statefulsets",
        templates: &[TEMPLATE],
        trainer: None,
        replicas: &[REPLICAS],
        copies: None,
        group_size: None,
        scaled: Some(REPLICAS),
        suspend: None,
        environment: TemplateUpdate::Rolling,
        scale: TemplateUpdate::Rolling,
        world_size_source: WorldSizeSource::Variables,
        write_method: WriteMethod::ServerSideApply,
        annotations_count: false,
    },
    WorkloadKind {
        kind: "Deployment",
        group: "apps",
        version: "v1",
        plural: "deployments",
        templates: &[TEMPLATE],
        trainer: None,
        replicas: &[REPLICAS],
        copies: None,
        group_size: None,
        scaled: Some(REPLICAS),
        suspend: None,
        environment: TemplateUpdate::Rolling,
        scale: TemplateUpdate::Rolling,
        world_size_source: WorldSizeSource::Variables,
        write_method: WriteMethod::ServerSideApply,
        annotations_count: true,
    },
    WorkloadKind {
        kind: "LeaderWorkerSet",
        group: "leaderworkerset.x-k8s.io",
        version: "v1",
        plural: "leaderworkersets",
        templates: &[&["spec", "leaderWorkerTemplate", "leaderTemplate"], &["spec", "leaderWorkerTemplate", "workerTemplate"]],
        trainer: None,
        replicas: &[REPLICAS],
        copies: None,
        group_size: Some(&["spec", "leaderWorkerTemplate", "size"]),
        scaled: None,
        suspend: None,
        environment: TemplateUpdate::Rolling,
        scale: TemplateUpdate::Immutable(
            "a LeaderWorkerSet is scaled by whole groups, each a world of its own, and the size of a group is fixed",
        ),
        world_size_source: WorldSizeSource::Operator,
        write_method: WriteMethod::ReplaceList,
        annotations_count: false,
    },
    WorkloadKind {
        kind: "PyTorchJob",
        group: "kubeflow.org",
        version: "v1",
        plural: "pytorchjobs",
        templates: &[
            &["spec", "pytorchReplicaSpecs", "Master", "template"],
            &["spec", "pytorchReplicaSpecs", "Worker", "template"],
        ],
        trainer: None,
        replicas: &[
            &["spec", "pytorchReplicaSpecs", "Master", "replicas"],
            &["spec", "pytorchReplicaSpecs", "Worker", "replicas"],
        ],
        copies: None,
        group_size: None,
        scaled: Some(&["spec", "pytorchReplicaSpecs", "Worker", "replicas"]),
        suspend: Some(&["spec", "runPolicy", "suspend"]),
        environment: TemplateUpdate::Suspended,
        scale: TemplateUpdate::Suspended,
        world_size_source: WorldSizeSource::Operator,
        write_method: WriteMethod::ReplaceList,
        annotations_count: false,
    },
    WorkloadKind {
        kind: "MPIJob",
        group: "kubeflow.org",
        version: "v2beta1",
        plural: "mpijobs",
        templates: &[&["spec", "mpiReplicaSpecs", "Worker", "template"]],
        trainer: None,
        replicas: &[&["spec", "mpiReplicaSpecs", "Worker", "replicas"]],
        copies: None,
        group_size: None,
        scaled: None,
        suspend: Some(&["spec", "runPolicy", "suspend"]),
        environment: TemplateUpdate::Suspended,
        scale: TemplateUpdate::Immutable(
            "the number of ranks of an MPIJob is set in its launcher's command, which is not changed",
        ),
        world_size_source: WorldSizeSource::Operator,
        write_method: WriteMethod::ReplaceList,
        annotations_count: false,
    },
    WorkloadKind {
        kind: "JobSet",
        group: "jobset.x-k8s.io",
        version: "v1alpha2",
        plural: "jobsets",
        templates: &[&["spec", "replicatedJobs", "*", "template", "spec", "template"]],
        trainer: None,
        replicas: &[&["spec", "replicatedJobs", "*", "template", "spec", "parallelism"]],
        copies: Some(&["spec", "replicatedJobs", "*", "replicas"]),
        group_size: None,
        scaled: None,
        suspend: Some(&["spec", "suspend"]),
        environment: TemplateUpdate::Immutable("the environment of a JobSet's jobs is immutable, even while it is suspended"),
        scale: TemplateUpdate::Immutable("the replicas of a JobSet's jobs are immutable"),
        world_size_source: WorldSizeSource::Operator,
        write_method: WriteMethod::ReplaceList,
        annotations_count: false,
    },
    WorkloadKind {
        kind: "Job",
        group: "batch",
        version: "v1",
        plural: "jobs",
        templates: &[TEMPLATE],
        trainer: None,
        replicas: &[&["spec", "parallelism"]],
        copies: None,
        group_size: None,
        scaled: None,
        suspend: Some(&["spec", "suspend"]),
        environment: TemplateUpdate::Immutable("the environment of a Job's pods is immutable, even while it is suspended"),
        scale: TemplateUpdate::Immutable("the world of a Job's processes is in their environment, which is immutable"),
        world_size_source: WorldSizeSource::Variables,
        write_method: WriteMethod::ReplaceList,
        annotations_count: false,
    },
    WorkloadKind {
        kind: "TrainJob",
        group: "trainer.kubeflow.org",
        version: "v1alpha1",
        plural: "trainjobs",
        templates: &[],
        trainer: Some(&["spec", "trainer"]),
        replicas: &[&["spec", "trainer", "numNodes"]],
        copies: None,
        group_size: None,
        scaled: None,
        suspend: Some(&["spec", "suspend"]),
        environment: TemplateUpdate::Immutable("the trainer of a TrainJob is immutable"),
        scale: TemplateUpdate::Immutable("the trainer of a TrainJob is immutable"),
        world_size_source: WorldSizeSource::Operator,
        write_method: WriteMethod::ReplaceList,
        annotations_count: false,
    },
];

impl WorkloadKind {
    /// Returns the kind that a reference with `apiVersion` and `kind` means; the version may be another one of the same group.
    pub fn find(api_version: &str, kind: &str) -> Option<&'static Self> {
        let group = api_version.rsplit_once('/').map_or("", |(group, _)| group);
        WORKLOAD_KINDS.iter().find(|known| known.kind == kind && known.group == group)
    }

    pub fn api_version(&self) -> String {
        format!("{}/{}", self.group, self.version)
    }

    /// Returns the names of all kinds, for messages.
    pub fn names() -> String {
        WORKLOAD_KINDS.iter().map(|kind| kind.kind).collect::<Vec<_>>().join(", ")
    }
}

/// Returns every value at a place, with the names and positions that lead to it.
pub fn values_at<'a>(object: &'a Value, place: &[&str]) -> Vec<(Vec<PathStep>, &'a Value)> {
    let Some((first, rest)) = place.split_first() else { return vec![(vec![], object)] };
    let below = |step: PathStep, value: &'a Value| {
        values_at(value, rest).into_iter().map(move |(mut path, found)| {
            path.insert(0, step.clone());
            (path, found)
        })
    };
    match (*first, object) {
        ("*", Value::Array(list)) => list.iter().enumerate().flat_map(|(i, value)| below(PathStep::Index(i), value)).collect(),
        (name, Value::Object(map)) => map.get(name).into_iter().flat_map(|v| below(PathStep::Name(name.to_owned()), v)).collect(),
        _ => vec![],
    }
}

/// One step of a path into an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PathStep {
    Name(String),
    Index(usize),
}

/// Returns the value at a path, to be changed. Missing objects on the way are made; a list is never extended.
pub fn value_at_mut<'a>(object: &'a mut Value, path: &[PathStep]) -> Option<&'a mut Value> {
    let Some((first, rest)) = path.split_first() else { return Some(object) };
    match first {
        PathStep::Name(name) => {
            if object.is_null() {
                *object = Value::Object(serde_json::Map::new());
            }
            value_at_mut(object.as_object_mut()?.entry(name.clone()).or_insert(Value::Null), rest)
        }
        PathStep::Index(index) => value_at_mut(object.as_array_mut()?.get_mut(*index)?, rest),
    }
}

/// Returns a place without `*`, as a path.
pub fn place_steps(place: FieldPath) -> Vec<PathStep> {
    place.iter().map(|name| PathStep::Name((*name).to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_reference_means_a_kind_whatever_version_it_names() {
        assert_eq!(WorkloadKind::find("apps/v1", "StatefulSet").map(|kind| kind.plural), Some("statefulsets"));
        assert_eq!(WorkloadKind::find("jobset.x-k8s.io/v1beta1", "JobSet").map(|kind| kind.version), Some("v1alpha2"));
        assert_eq!(WorkloadKind::find("example.com/v1", "StatefulSet"), None, "a kind of the same name in another group");
        assert_eq!(WorkloadKind::find("v1", "Pod"), None);
    }

    #[test]
    fn what_is_scaled_is_among_what_is_counted() {
        for kind in &WORKLOAD_KINDS {
            assert!(kind.scaled.is_none_or(|scaled| kind.replicas.contains(&scaled)), "{}", kind.kind);
            let suspends = kind.environment == TemplateUpdate::Suspended || kind.scale == TemplateUpdate::Suspended;
            assert!(!suspends || kind.suspend.is_some(), "{} has no flag to suspend it by", kind.kind);
            assert_eq!(kind.scaled.is_none(), matches!(kind.scale, TemplateUpdate::Immutable(_)), "{}", kind.kind);
            let (_, whole) = kind.copies.unwrap_or(&[""]).split_last().unwrap();
            assert!(kind.replicas.iter().all(|place| place.starts_with(whole)), "{}: copies of something else", kind.kind);
        }
    }

    #[test]
    fn every_element_of_a_list_is_found_and_reached() {
        let mut object = json!({"spec": {"jobs": [{"size": 1}, {"other": 2}, {"size": 3}]}});
        let found: Vec<_> = values_at(&object, &["spec", "jobs", "*", "size"]).into_iter().map(|(_, v)| v.clone()).collect();
        assert_eq!(found, [json!(1), json!(3)]);
        let (last, _) = values_at(&object, &["spec", "jobs", "*", "size"]).pop().unwrap();
        *value_at_mut(&mut object, &last).unwrap() = json!(4);
        assert_eq!(object["spec"]["jobs"][2]["size"], 4);
        *value_at_mut(&mut object, &place_steps(&["spec", "runPolicy", "suspend"])).unwrap() = json!(true);
        assert_eq!(object["spec"]["runPolicy"]["suspend"], true);
        assert_eq!(
            value_at_mut(&mut object, &[PathStep::Name("spec".into()), PathStep::Name("jobs".into()), PathStep::Index(9)]),
            None
        );
    }
}
