//! Reads a workload's object: its kind, its layout, and EADT's marks on it. Pure.
//!
//! In: the object from the API server. Out: [`WorkloadObject`], small, with a reason in text if the object cannot be changed.

use std::collections::BTreeMap;

use eadt_schemas::v1::Layout;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::objects::kinds::{FieldPath, PathStep, WorkloadKind, WorldSizeSource, values_at};
use crate::objects::owners::{TakenBackField, last_manager, taken_back};
use crate::objects::record::{self, APPLIED, ChangeAnnotation, SpecVersion, TAKEN_OVER, TakeOverRecord};
use crate::objects::rollout::{RolloutProgress, RolloutStrategy};
use crate::policy::names::PAUSED;

/// The thread percentage of a process under MPS.
pub const MPS_PERCENTAGE: &str = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE";
pub const WORLD_SIZE: &str = "WORLD_SIZE";
/// Processes that share a GPU.
pub const LOCAL_WORLD_SIZE: &str = "LOCAL_WORLD_SIZE";
/// The variables that EADT knows.
pub const VARIABLES: [&str; 3] = [MPS_PERCENTAGE, WORLD_SIZE, LOCAL_WORLD_SIZE];

/// Everything that EADT reads on an object is named below this.
pub const PREFIX: &str = "eadt.dev/";
/// Longest name of a workload in events.
const MAX_NAME: usize = 253;

/// A workload's object, as far as it matters.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkloadObject {
    pub kind: &'static WorkloadKind,
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub resource_version: String,
    /// The object's own generation.
    pub generation: i64,
    /// The number of generations that only annotations raised: counted by the watch, stored with the next mark.
    quiet_generations: i64,
    /// Hash of its spec, of kinds whose annotations count.
    spec_hash: Option<u64>,
    pub deleting: bool,
    /// Labels and annotations of EADT's.
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    /// The objects that manage this one, as `Kind/name`, from the nearest to the outermost known one.
    pub controlled_by: Vec<String>,
    /// Label selector of its pods; `None` if the kind has none.
    pub selector: Option<String>,
    /// Containers that hold GPUs.
    pub containers: Vec<GpuContainer>,
    /// Pods that it should have.
    pub pods: u32,
    /// Pods of the part that can be scaled; `None` if no part can be scaled.
    pub scaled_pods: Option<u32>,
    /// Processes of a pod.
    pub ranks_per_pod: u32,
    /// The layout in the object; values that its fields do not show are those of its mark.
    pub layout: Layout,
    /// GPUs that it holds.
    pub gpus: Option<u32>,
    pub suspended: bool,
    pub strategy: RolloutStrategy,
    pub progress: RolloutProgress,
    pub change_annotation: Option<ChangeAnnotation>,
    pub take_over: Option<TakeOverRecord>,
    /// Taken-over fields that others own by now.
    pub taken_back: Vec<TakenBackField>,
    /// The field manager of its annotation that pauses or resumes it.
    pub pause_set_by: Option<String>,
    /// Reasons why it must not be changed.
    pub problems: Vec<String>,
}

/// A container that holds GPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuContainer {
    /// Path of its pod template.
    pub template: Vec<PathStep>,
    /// The same as text: `spec.template`.
    pub place: String,
    pub index: usize,
    pub name: String,
    pub gpus: u32,
    /// The known variables that are set in it.
    pub variables: BTreeMap<&'static str, VariableValue>,
    /// Their order, which a write must keep: another one is another template, and restarts all pods.
    pub order: Vec<&'static str>,
}

/// A known variable in a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VariableValue {
    Number(u32),
    /// A value that EADT cannot read or may not write, with the reason.
    Foreign(String),
}

impl WorkloadObject {
    /// Returns `namespace/name`.
    pub fn workload(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// Reads an object of a kind. The error names a field that every object has and that is missing here.
    pub fn read(kind: &'static WorkloadKind, object: &Value) -> Result<Self, String> {
        let meta = &object["metadata"];
        let text =
            |name: &str| meta[name].as_str().map(str::to_owned).ok_or_else(|| format!("the object has no metadata.{name}"));
        let (namespace, name) = (text("namespace")?, text("name")?);
        let ours = |name: &str| -> BTreeMap<String, String> {
            let all = meta[name].as_object().into_iter().flatten();
            let ours = all.filter(|(key, _)| key.starts_with(PREFIX));
            ours.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
        };
        let annotations = ours("annotations");
        let mut problems = Vec::new();
        if namespace.len() + 1 + name.len() > MAX_NAME {
            problems.push(format!("namespace and name together are longer than {MAX_NAME} characters"));
        }
        let note = |name: &str| annotations.get(name).map(String::as_str);
        let mark = record::read_annotation::<ChangeAnnotation>(APPLIED, note(APPLIED)).unwrap_or_else(|problem| {
            problems.push(problem);
            None
        });
        let take_over = record::read_annotation::<TakeOverRecord>(TAKEN_OVER, note(TAKEN_OVER)).unwrap_or_else(|problem| {
            problems.push(problem);
            None
        });
        let owners = meta["ownerReferences"].as_array().into_iter().flatten();
        let controller = owners
            .filter(|owner| owner["controller"] == true)
            .find_map(|owner| Some((owner["kind"].as_str()?, owner["name"].as_str()?)));

        let containers = read_containers(kind, object, &mut problems);
        let (parts, size) = count_pods(kind, object, &mut problems);
        let sum = parts.iter().map(|(_, count)| *count).fold(0, u32::saturating_add);
        let pods = sum.saturating_mul(size);
        let scaled_pods = kind.scaled.and_then(|place| parts.iter().find(|(part, _)| *part == place)).map(|(_, count)| *count);
        let gpus = total_gpus(kind, &containers, &parts, pods);
        let mut this = Self {
            kind,
            namespace,
            name,
            uid: text("uid")?,
            resource_version: text("resourceVersion")?,
            generation: meta["generation"].as_i64().unwrap_or(0),
            quiet_generations: 0,
            spec_hash: kind.annotations_count.then(|| spec_hash(&object["spec"])),
            deleting: !meta["deletionTimestamp"].is_null(),
            labels: ours("labels"),
            annotations,
            controlled_by: controlling_objects(meta, controller),
            selector: selector_text(object),
            containers,
            pods,
            scaled_pods,
            ranks_per_pod: 1,
            layout: Layout::default(),
            gpus,
            suspended: kind.suspend.is_some_and(|place| values_at(object, place).iter().any(|(_, flag)| **flag == true)),
            strategy: RolloutStrategy::read(kind, object),
            progress: RolloutProgress::read(kind, object, pods),
            change_annotation: mark,
            pause_set_by: last_manager(&meta["managedFields"], &["metadata", "annotations", PAUSED]),
            taken_back: take_over.as_ref().map_or_else(Vec::new, |take_over| taken_back(&meta["managedFields"], kind, take_over)),
            take_over,
            problems,
        };
        let marked = this
            .change_annotation
            .as_ref()
            .and_then(|mark| mark.spec)
            .filter(|spec| Some(spec.hash) == this.spec_hash && spec.generation <= this.generation);
        this.quiet_generations = marked.map_or(0, |spec| this.generation.saturating_sub(spec.generation));
        this.derive_layout();
        Ok(this)
    }

    fn derive_layout(&mut self) {
        if self.containers.is_empty() {
            self.problems.push("none of its containers requests a GPU".into());
        }
        let mps = self.agreed_variable(MPS_PERCENTAGE).filter(|percentage| {
            let possible = (1..=100).contains(percentage);
            if !possible {
                self.problems.push(format!("{MPS_PERCENTAGE} is {percentage}, but must be from 1 to 100"));
            }
            possible
        });
        let (mut world, mut local) = match self.kind.world_size_source {
            WorldSizeSource::Variables => (self.agreed_variable(WORLD_SIZE), self.agreed_variable(LOCAL_WORLD_SIZE)),
            WorldSizeSource::Operator => (None, None),
        };
        if let Some(size) = world.filter(|_| self.pods > 0) {
            if size >= self.pods && size % self.pods == 0 {
                self.ranks_per_pod = size / self.pods;
            } else if self.change_annotation.as_ref().is_none_or(|mark| !mark.resume) {
                self.problems.push(format!("{WORLD_SIZE} is {size}, which is no multiple of the {} replicas", self.pods));
                world = None;
            }
        }
        let replicas = world.unwrap_or(self.pods);
        // Without MPS the variable means the ranks of a node, as launchers have it.
        local = local.filter(|_| mps.is_some());
        let shared = local.filter(|local| *local > 0 && replicas > 0 && replicas % local == 0);
        if let Some(local) = shared {
            self.gpus = Some(replicas / local);
        }
        self.layout = Layout {
            replicas: Some(replicas),
            mps_thread_percentage: mps,
            world_size: world,
            local_world_size: local,
            power_limit_watts: self.change_annotation.as_ref().and_then(|mark| mark.power_limit_watts),
            sm_clock_mhz: self.change_annotation.as_ref().and_then(|mark| mark.sm_clock_mhz),
            precision: self.change_annotation.as_ref().and_then(|mark| mark.precision),
            frozen_prefix_layers: self.change_annotation.as_ref().and_then(|mark| mark.frozen_prefix_layers),
        };
    }

    /// Returns the value that all containers with GPUs agree on.
    fn agreed_variable(&mut self, name: &'static str) -> Option<u32> {
        let mut value = None;
        for container in &self.containers {
            let here = match container.variables.get(name) {
                Some(VariableValue::Foreign(why)) => {
                    self.problems.push(format!("{name} of container {} {why}", container.name));
                    return None;
                }
                Some(VariableValue::Number(number)) => Some(*number),
                None => None,
            };
            if *value.get_or_insert(here) != here {
                self.problems.push(format!("its containers do not agree on {name}"));
                return None;
            }
        }
        value.flatten()
    }

    /// Returns the generation of the layout: the object's own and the changes that it does not show, without those that only
    /// annotations made.
    pub fn layout_generation(&self) -> u64 {
        let offset = self.change_annotation.as_ref().map_or(0, |mark| mark.generation_offset);
        self.generation.saturating_add(offset).saturating_sub(self.quiet_generations).max(0).unsigned_abs()
    }

    /// Numbers a mark so that the layout has this generation when it is written. `shows`: the write changes the object's spec.
    pub fn number_mark(&self, mark: &mut ChangeAnnotation, layout_generation: u64, shows: bool) {
        let raised = i64::from(shows || self.kind.annotations_count);
        let generation = self.generation.saturating_add(raised);
        mark.generation_offset = i64::try_from(layout_generation).unwrap_or(i64::MAX).saturating_sub(generation);
        mark.spec = self.spec_hash.filter(|_| !shows).map(|hash| SpecVersion { hash, generation });
    }

    /// Keeps the former state that a change of annotations alone does not affect: the layout's generation, and that the
    /// controller has seen the spec. A new mark sets its generation itself.
    #[must_use]
    pub fn with_history_of(mut self, known: &Self) -> Self {
        if self.uid != known.uid {
            return self;
        }
        let alone = self.spec_hash.is_some() && self.spec_hash == known.spec_hash;
        self.progress.observed |= alone && known.progress.observed;
        if self.change_annotation == known.change_annotation {
            let raised = if alone { self.generation.saturating_sub(known.generation) } else { 0 };
            self.quiet_generations = known.quiet_generations.saturating_add(raised);
        }
        self
    }
}

fn read_containers(kind: &'static WorkloadKind, object: &Value, problems: &mut Vec<String>) -> Vec<GpuContainer> {
    let mut found = Vec::new();
    for (template, value) in kind.templates.iter().flat_map(|place| values_at(object, place)) {
        let list = value["spec"]["containers"].as_array().into_iter().flatten();
        for (index, container) in list.enumerate() {
            let gpus = requested_gpus(&container["resources"]);
            let Some(name) = container["name"].as_str().filter(|_| gpus > 0) else { continue };
            found.push(read_container(&template, index, name, gpus, &container["env"]));
        }
    }
    for (place, trainer) in kind.trainer.iter().flat_map(|place| values_at(object, place)) {
        // Without resources of its own it uses those of its runtime, so it may hold GPUs.
        found.push(read_container(&place, 0, "trainer", requested_gpus(&trainer["resourcesPerNode"]), &trainer["env"]));
    }
    if found.iter().enumerate().any(|(i, a)| found[..i].iter().any(|b| (&a.place, &a.name) == (&b.place, &b.name))) {
        problems.push("two containers of a pod have the same name".into());
    }
    found
}

fn read_container(template: &[PathStep], index: usize, name: &str, gpus: u32, env: &Value) -> GpuContainer {
    let (mut variables, mut order) = (BTreeMap::new(), Vec::new());
    for entry in env.as_array().into_iter().flatten() {
        let Some(known) = VARIABLES.into_iter().find(|known| entry["name"] == **known) else { continue };
        order.push(known);
        if variables.insert(known, read_variable(entry)).is_some() {
            variables.insert(known, VariableValue::Foreign("is there twice: keep one of them".into()));
        }
    }
    GpuContainer { place: path_text(template), template: template.to_vec(), index, name: name.to_owned(), gpus, variables, order }
}

fn path_text(path: &[PathStep]) -> String {
    let step = |step: &PathStep| match step {
        PathStep::Name(name) => name.clone(),
        PathStep::Index(index) => index.to_string(),
    };
    path.iter().map(step).collect::<Vec<_>>().join(".")
}

/// Returns a hash of the spec that is the same in every process: marks carry it.
fn spec_hash(value: &Value) -> u64 {
    let digest = Sha256::digest(value.to_string());
    digest.iter().take(8).fold(0, |all, byte| all << 8 | u64::from(*byte))
}

/// Returns the number of GPUs and parts of GPUs that a container requests: `nvidia.com/gpu`, `nvidia.com/gpu.shared`,
/// `nvidia.com/mig-…`.
pub fn requested_gpus(resources: &Value) -> u32 {
    let limits = resources["limits"].as_object().into_iter().flatten();
    let limits = limits.filter(
        |(name, _)| matches!(name.strip_prefix("nvidia.com/"), Some(rest) if rest.starts_with("gpu") || rest.starts_with("mig-")),
    );
    limits.map(|(_, count)| read_number(count).unwrap_or(0)).fold(0, u32::saturating_add)
}

fn read_number(value: &Value) -> Option<u32> {
    match value {
        Value::Number(number) => number.as_u64()?.try_into().ok(),
        Value::String(text) => text.parse().ok(),
        _ => None,
    }
}

fn read_variable(entry: &Value) -> VariableValue {
    if !entry["valueFrom"].is_null() {
        return VariableValue::Foreign("is taken from elsewhere (valueFrom), where EADT does not write: give it a value".into());
    }
    let text = entry["value"].as_str().unwrap_or_default();
    match text.parse::<u32>() {
        // A value that does not read back as it was written.
        Ok(number) if number.to_string() == text => VariableValue::Number(number),
        _ => {
            let shown: String = text.chars().take(40).collect();
            VariableValue::Foreign(format!("is {shown:?}, which is no whole number"))
        }
    }
}

/// Parts of a workload with the number of their replicas, and the pods of a replica.
fn count_pods(kind: &'static WorkloadKind, object: &Value, problems: &mut Vec<String>) -> (Vec<(FieldPath, u32)>, u32) {
    let mut read = |value: Option<&Value>| match value {
        None | Some(Value::Null) => 1,
        Some(value) => value.as_u64().and_then(|count| u32::try_from(count).ok()).unwrap_or_else(|| {
            problems.push("its number of replicas cannot be read".into());
            1
        }),
    };
    let last = |place: FieldPath| place.split_last().expect("places have a last step");
    let mut parts = Vec::new();
    let (copies, whole) = kind.copies.map_or((None, &[][..]), |place| (Some(*last(place).0), last(place).1));
    for (_, whole_value) in values_at(object, whole) {
        let times = copies.map_or(1, |name| read(whole_value.get(name)));
        for place in kind.replicas {
            let (name, parent) = last(place);
            // A part that is absent (no Master, for example) has no replicas; a part without a number has one.
            let found = values_at(whole_value, &parent[whole.len()..]).into_iter();
            parts.extend(found.map(|(_, part)| (*place, read(part.get(*name)).saturating_mul(times))));
        }
    }
    let size = kind.group_size.map_or(1, |place| read(values_at(object, place).first().map(|(_, value)| *value)));
    (parts, size)
}

/// Returns the number of GPUs that the pods request together.
fn total_gpus(kind: &'static WorkloadKind, containers: &[GpuContainer], parts: &[(FieldPath, u32)], pods: u32) -> Option<u32> {
    let of_template = |place: &str| containers.iter().filter(|c| c.place == place).map(|c| c.gpus).fold(0, u32::saturating_add);
    let gpus = if kind.templates.len() > 1 && kind.templates.len() == kind.replicas.len() {
        // A template for each part.
        let parts = parts.iter().filter_map(|(part, count)| {
            let index = kind.replicas.iter().position(|place| place == part)?;
            Some(of_template(&kind.templates[index].join(".")).saturating_mul(*count))
        });
        parts.fold(0, u32::saturating_add)
    } else {
        let most = containers.iter().map(|container| of_template(&container.place)).max().unwrap_or(0);
        most.saturating_mul(pods)
    };
    Some(gpus).filter(|gpus| *gpus > 0)
}

/// Returns the selector of the object's pods as text for a list call.
fn selector_text(object: &Value) -> Option<String> {
    let selector = &object["spec"]["selector"];
    let mut effective_policy = Vec::new();
    for (name, value) in selector["matchLabels"].as_object().into_iter().flatten() {
        effective_policy.push(format!("{name}={}", value.as_str()?));
    }
    for expression in selector["matchExpressions"].as_array().into_iter().flatten() {
        let key = expression["key"].as_str()?;
        let values: Vec<_> = expression["values"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let values = values.join(",");
        effective_policy.push(match expression["operator"].as_str()? {
            "In" => format!("{key} in ({values})"),
            "NotIn" => format!("{key} notin ({values})"),
            "Exists" => key.to_owned(),
            "DoesNotExist" => format!("!{key}"),
            _ => return None,
        });
    }
    (!effective_policy.is_empty()).then(|| effective_policy.join(","))
}

/// Returns the objects that manage an object with this metadata: its controller, and the known owners of that.
fn controlling_objects(meta: &Value, controller: Option<(&str, &str)>) -> Vec<String> {
    let mut managers: Vec<String> = controller.iter().map(|(kind, name)| format!("{kind}/{name}")).collect();
    let beyond = match controller {
        // A TrainJob is run as a JobSet of its name.
        Some(("JobSet", name)) => Some(format!("TrainJob/{name}")),
        Some(_) => meta["labels"]["leaderworkerset.sigs.k8s.io/name"].as_str().map(|name| format!("LeaderWorkerSet/{name}")),
        None => None,
    };
    managers.extend(beyond.filter(|beyond| !managers.contains(beyond)));
    managers
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::json;

    use super::*;
    use crate::objects::kinds::WorkloadKind;

    /// Returns the seed's training job: six processes on three GPUs, beside a container without a GPU.
    pub fn training(replicas: u32, percentage: &str, world: &str, local: &str) -> Value {
        json!({
            "apiVersion": "apps/v1", "kind": "StatefulSet",
            "metadata": {
                "name": "llm-training", "namespace": "eadt", "uid": "u-1", "resourceVersion": "100", "generation": 4,
                "labels": {"app": "llm"}, "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}"},
            },
            "spec": {
                "replicas": replicas, "serviceName": "llm",
                "selector": {"matchLabels": {"app": "llm"}},
                "template": {
                    "metadata": {"labels": {"app": "llm"}},
                    "spec": {"containers": [
                        {"name": "logs", "image": "logs:1", "env": [{"name": WORLD_SIZE, "value": "99"}]},
                        {"name": "train", "image": "train:1",
                         "resources": {"limits": {"nvidia.com/gpu": "1", "cpu": "4"}},
                         "env": [
                            {"name": "DATA", "value": "/data"},
                            {"name": MPS_PERCENTAGE, "value": percentage},
                            {"name": WORLD_SIZE, "value": world},
                            {"name": LOCAL_WORLD_SIZE, "value": local},
                         ]},
                    ]},
                },
                "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}},
            },
            "status": {
                "observedGeneration": 4, "replicas": replicas, "readyReplicas": replicas, "updatedReplicas": replicas,
                "currentRevision": "llm-1", "updateRevision": "llm-1",
            },
        })
    }

    pub fn seen(object: &Value) -> WorkloadObject {
        let kind = WorkloadKind::find(object["apiVersion"].as_str().unwrap(), object["kind"].as_str().unwrap()).unwrap();
        WorkloadObject::read(kind, object).unwrap()
    }

    #[test]
    fn the_layout_is_read_from_containers_with_gpus_only() {
        let seen = seen(&training(6, "50", "6", "2"));
        let layout = Layout {
            replicas: Some(6),
            mps_thread_percentage: Some(50),
            world_size: Some(6),
            local_world_size: Some(2),
            ..Layout::default()
        };
        assert_eq!((seen.layout.clone(), seen.gpus, seen.ranks_per_pod), (layout, Some(3), 1));
        assert_eq!(seen.problems, Vec::<String>::new());
        assert_eq!(seen.selector.as_deref(), Some("app=llm"));
        assert_eq!((seen.workload().as_str(), seen.layout_generation()), ("eadt/llm-training", 4));
        assert_eq!(seen.containers.iter().map(|c| (c.name.as_str(), c.index)).collect::<Vec<_>>(), [("train", 1)]);
        assert!(seen.annotations.is_empty(), "only what is EADT's is kept");
    }

    #[test]
    fn foreign_values_are_named_and_nothing_is_guessed() {
        for (percentage, world, word) in [
            ("50%", "6", "\"50%\""),
            ("", "6", "no whole number"),
            ("050", "6", "050"),
            ("0", "6", "from 1 to 100"),
            ("101", "6", "from 1 to 100"),
            ("50", "7", "no multiple"),
            ("50", "six", "six"),
        ] {
            let seen = seen(&training(6, percentage, world, "2"));
            assert!(seen.problems.iter().any(|problem| problem.contains(word)), "{percentage} {world}: {:?}", seen.problems);
        }
        let mut object = training(6, "50", "6", "2");
        let container = &mut object["spec"]["template"]["spec"]["containers"][1];
        container["env"][1] = json!({"name": MPS_PERCENTAGE, "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}});
        assert!(seen(&object).problems[0].contains("valueFrom"));
        let container = &mut object["spec"]["template"]["spec"]["containers"][1];
        container["env"][1] = json!({"name": WORLD_SIZE, "value": "6"});
        assert!(seen(&object).problems[0].contains("twice"));
        object["metadata"]["annotations"][APPLIED] = json!("{");
        assert!(seen(&object).problems[0].contains(APPLIED));
    }

    #[test]
    fn pods_of_several_ranks_count_as_their_ranks() {
        let mut object = training(2, "50", "16", "8");
        let container = &mut object["spec"]["template"]["spec"]["containers"][1];
        container["resources"]["limits"]["nvidia.com/gpu"] = json!(8);
        container["env"] = json!([{"name": WORLD_SIZE, "value": "16"}, {"name": LOCAL_WORLD_SIZE, "value": "8"}]);
        let seen = seen(&object);
        assert_eq!((seen.layout.replicas, seen.ranks_per_pod, seen.gpus), (Some(16), 8, Some(16)));
        assert_eq!(seen.layout.local_world_size, None, "without MPS it means the ranks of a node");
    }

    #[test]
    fn a_job_of_an_operator_counts_all_its_parts() {
        let pod = json!({"spec": {"containers": [
            {"name": "pytorch", "resources": {"limits": {"nvidia.com/gpu": 1}}, "env": [{"name": MPS_PERCENTAGE, "value": "60"}]}
        ]}});
        let object = json!({
            "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob",
            "metadata": {"name": "j", "namespace": "n", "uid": "u", "resourceVersion": "1", "generation": 1},
            "spec": {"runPolicy": {"suspend": false}, "pytorchReplicaSpecs": {
                "Master": {"template": pod}, "Worker": {"replicas": 3, "template": pod},
            }},
        });
        let seen = seen(&object);
        assert_eq!((seen.pods, seen.scaled_pods, seen.layout.mps_thread_percentage), (4, Some(3), Some(60)));
        assert_eq!((seen.layout.world_size, seen.gpus, seen.suspended), (None, Some(4), false));
        assert_eq!(seen.containers.len(), 2);
        assert_eq!(seen.problems, Vec::<String>::new());
    }

    #[test]
    fn the_trainer_of_a_train_job_is_read_and_may_leave_its_gpus_to_its_runtime() {
        let mut object = json!({
            "apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob",
            "metadata": {"name": "j", "namespace": "n", "uid": "u", "resourceVersion": "1", "generation": 1},
            "spec": {"runtimeRef": {"name": "torch-distributed"}, "trainer": {
                "numNodes": 3, "env": [{"name": MPS_PERCENTAGE, "value": "60"}],
                "resourcesPerNode": {"limits": {"nvidia.com/gpu": 2}},
            }},
        });
        let all = seen(&object);
        assert_eq!((all.pods, all.layout.mps_thread_percentage, all.gpus, all.problems), (3, Some(60), Some(6), vec![]));
        object["spec"]["trainer"].as_object_mut().unwrap().remove("resourcesPerNode");
        let less = seen(&object);
        assert_eq!((less.layout.mps_thread_percentage, less.gpus, less.problems), (Some(60), None, vec![]));
    }

    #[test]
    fn the_jobs_of_a_job_set_count_as_often_as_they_are_copied() {
        let job = |copies: Value, parallelism: u32| {
            json!({"replicas": copies, "template": {"spec": {"parallelism": parallelism, "template": {"spec": {"containers": [
                {"name": "train", "resources": {"limits": {"nvidia.com/gpu": 2}}}
            ]}}}}})
        };
        let object = json!({
            "apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet",
            "metadata": {"name": "j", "namespace": "n", "uid": "u", "resourceVersion": "1", "generation": 1},
            "spec": {"replicatedJobs": [job(json!(2), 4), job(Value::Null, 3)]},
        });
        let seen = seen(&object);
        assert_eq!((seen.pods, seen.layout.replicas, seen.gpus, seen.scaled_pods), (11, Some(11), Some(22), None));
        assert_eq!(seen.problems, Vec::<String>::new());
    }

    #[test]
    fn hostile_objects_are_read_without_harm() {
        let kind = WorkloadKind::find("apps/v1", "StatefulSet").unwrap();
        assert!(WorkloadObject::read(kind, &json!({})).unwrap_err().contains("metadata"));
        assert!(WorkloadObject::read(kind, &json!([1, 2])).is_err());
        let mut object = training(6, "50", "6", "2");
        object["spec"] = json!({"replicas": -3, "selector": 7, "template": {"spec": {"containers": {"a": 1}}}});
        object["status"] = json!("x");
        object["metadata"]["ownerReferences"] = json!([{"controller": true, "kind": "LeaderWorkerSet", "name": "l"}, 5]);
        let seen = seen(&object);
        assert!(seen.problems.iter().any(|p| p.contains("replicas")) && seen.problems.iter().any(|p| p.contains("GPU")));
        assert_eq!(seen.controlled_by, ["LeaderWorkerSet/l"]);
    }

    #[test]
    fn managers_are_known_beyond_the_nearest() {
        let of = |meta: Value| {
            let mut object = training(6, "50", "6", "2");
            object["metadata"]["ownerReferences"] = json!([{"controller": true, "kind": meta["kind"], "name": meta["name"]}]);
            object["metadata"]["labels"] = meta["labels"].clone();
            seen(&object).controlled_by
        };
        assert_eq!(of(json!({"kind": "JobSet", "name": "t"})), ["JobSet/t", "TrainJob/t"]);
        // Workers' sets belong to their leader's pod.
        let labels = json!({"leaderworkerset.sigs.k8s.io/name": "l"});
        assert_eq!(of(json!({"kind": "Pod", "name": "l-0", "labels": labels})), ["Pod/l-0", "LeaderWorkerSet/l"]);
        assert_eq!(of(json!({"kind": "LeaderWorkerSet", "name": "l", "labels": labels})), ["LeaderWorkerSet/l"]);
        assert!(of(json!({})).is_empty());
    }
}
