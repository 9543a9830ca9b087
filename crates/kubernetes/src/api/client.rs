//! Requests to the API server, each bounded in time, and what their failures mean.

use std::time::Duration;

use eadt_cluster::{ClusterError, ClusterRemedy};
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, Preconditions, ValidationDirective};
use kube::client::{AuthError, RustlsTlsError};
use kube::core::ApiResource;
use kube::{Client, Error};
use serde_json::{Value, json};

use crate::devices::gpu_pod::{GpuPod, read_gpu_pod};
use crate::objects::change::{self, ObjectWrite};
use crate::objects::kinds::{WorkloadKind, WriteMethod};
use crate::objects::object::WorkloadObject;
use crate::objects::owners::{self, MANAGER, RECORDER};
use crate::objects::record::{APPLIED, FormerField, TAKEN_OVER, TakeOverRecord};
use crate::objects::rollout::WorkloadPod;

/// One call, the pauses that the API server asks for (Retry-After) included.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Pods that are looked at of one workload; more than that are counted by its status only.
const MAX_PODS: u32 = 5000;
/// Pods that have not ended, as a field selector.
pub const RUNNING_PODS_SELECTOR: &str = "status.phase!=Succeeded,status.phase!=Failed";
/// Quotas or budgets of a namespace that are looked at.
const LIST_PAGE: u32 = 500;

/// The API server, as far as it is written to or read outside of watches.
#[derive(Clone)]
pub struct ApiServer {
    pub client: Client,
}

impl std::fmt::Debug for ApiServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ApiServer").finish_non_exhaustive()
    }
}

/// Returns the resource of a kind.
pub fn kind_resource(kind: &WorkloadKind) -> ApiResource {
    ApiResource {
        group: kind.group.into(),
        version: kind.version.into(),
        api_version: kind.api_version(),
        kind: kind.kind.into(),
        plural: kind.plural.into(),
    }
}

/// Returns an error in words, without the repetitions of the client's own, and without a secret.
pub fn error_text(error: &Error) -> String {
    match error {
        Error::Api(status) if !status.message.is_empty() => format!("{} ({})", status.message, status.code),
        Error::Api(status) => format!("{} ({})", status.reason, status.code),
        // The error quotes the lines of a key that is not cut as PEM is.
        Error::RustlsTls(RustlsTlsError::InvalidIdentityPem(_)) => "the client certificate or its key is no PEM".to_owned(),
        other => credentials_error(other).map_or_else(|| other.to_string(), credentials_error_text),
    }
}

/// Returns the error of a credential plugin or a token, which may be behind others.
fn credentials_error(error: &Error) -> Option<&AuthError> {
    let mut next: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref::<AuthError>() {
            return Some(found);
        }
        next = error.source();
    }
    None
}

/// Returns the text of an error of a user's credentials, without a plugin's arguments and output: they may be secret.
fn credentials_error_text(error: &AuthError) -> String {
    match error {
        AuthError::AuthExecStart(error) => format!("the credential plugin cannot be started: {error}"),
        AuthError::AuthExecRun { out, .. } => format!("the credential plugin failed with {}", out.status),
        AuthError::AuthExecParse(_) => "the output of the credential plugin is no ExecCredential".to_owned(),
        AuthError::ParseTokenKey(_) => "the output of the credential plugin is not JSON".to_owned(),
        AuthError::MalformedTokenExpirationDate(_) => "the expiration date of the token cannot be read".to_owned(),
        other => other.to_string(),
    }
}

/// Returns the same, with the missing right if the request was refused.
pub fn error_text_with_right(error: &Error, verb: &str, resource: &str) -> String {
    match error {
        Error::Api(status) if matches!(status.code, 401 | 403) => {
            format!("{}; the service account needs the verb {verb} for {resource}", error_text(error))
        }
        _ => error_text(error),
    }
}

/// Returns the cluster error of a failed request. `what`: the attempted operation and its object.
pub fn cluster_error(what: &str, error: &Error) -> ClusterError {
    let remedy = match error {
        Error::Api(status) => match status.code {
            409 if field_conflict(error).is_some() => ClusterRemedy::Refused,
            404 | 409 => ClusterRemedy::Conflict,
            // A token may just be rotating.
            401 | 408 | 429 | 500.. => ClusterRemedy::Retry,
            403 if is_permission_missing(status) => ClusterRemedy::Retry,
            _ => ClusterRemedy::Refused,
        },
        _ => ClusterRemedy::Retry,
    };
    let detail = match field_conflict(error) {
        Some(owners) => format!("{what}: another manager took fields back, so nothing is changed any more: {owners}"),
        None => format!("{what}: {}", error_text(error)),
    };
    ClusterError::new(remedy, detail)
}

/// Returns true if the API server's authorizer forbids it. It does so for a moment after every start, before it has read its
/// roles, and while roles are replaced. So this is no final answer.
pub fn is_permission_missing(status: &kube::core::Status) -> bool {
    status.code == 403 && status.message.contains("forbidden: User \"")
}

/// Returns the other owners of fields and their fields, if that is why a write failed.
pub fn field_conflict(error: &Error) -> Option<String> {
    let Error::Api(status) = error else { return None };
    let causes = status.details.as_ref()?.causes.iter().filter(|cause| cause.reason == "FieldManagerConflict");
    let conflicts: Vec<_> = causes.map(|cause| format!("{} ({})", cause.field, cause.message)).collect();
    (status.code == 409 && !conflicts.is_empty()).then(|| conflicts.join(", "))
}

/// Returns the fields that others own, as the API server names them.
pub fn conflicting_fields(error: &Error) -> Vec<String> {
    let Error::Api(status) = error else { return vec![] };
    let causes = status.details.iter().flat_map(|details| &details.causes);
    causes.filter(|cause| cause.reason == "FieldManagerConflict").map(|cause| cause.field.clone()).collect()
}

/// Runs a request within its time.
pub async fn call_with_timeout<T>(what: &str, call: impl Future<Output = Result<T, Error>>) -> Result<T, ClusterError> {
    match tokio::time::timeout(CALL_TIMEOUT, call).await {
        Ok(result) => result.map_err(|error| cluster_error(what, &error)),
        Err(_) => Err(ClusterError::new(ClusterRemedy::Retry, format!("{what}: no answer within {} s", CALL_TIMEOUT.as_secs()))),
    }
}

/// Runs a write with a time limit; the caller handles its failure.
async fn with_timeout<T>(call: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let late = |_| Err(Error::Service(format!("no answer within {} s", CALL_TIMEOUT.as_secs()).into()));
    tokio::time::timeout(CALL_TIMEOUT, call).await.unwrap_or_else(late)
}

impl ApiServer {
    pub fn api(&self, kind: &WorkloadKind, namespace: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), namespace, &kind_resource(kind))
    }

    /// Returns the present object in the API server's store; `None` if there is none.
    pub async fn get(&self, kind: &'static WorkloadKind, namespace: &str, name: &str) -> Result<Option<Value>, ClusterError> {
        let what = format!("reading {} {namespace}/{name}", kind.kind);
        let object = call_with_timeout(&what, self.api(kind, namespace).get_opt(name)).await?;
        object.map(|object| object_value(&object)).transpose()
    }

    /// Writes exactly the fields that EADT owns, never by force.
    pub async fn write(&self, observed: &WorkloadObject, object: &Value, write: &ObjectWrite) -> Result<Value, Error> {
        match observed.kind.write_method {
            WriteMethod::ServerSideApply => self.apply(observed, write).await,
            WriteMethod::ReplaceList => {
                self.patch(observed, MANAGER, &Patch::Merge(change::merge_write(observed, object, write))).await
            }
        }
    }

    /// Writes an object of a kind whose fields have owners. It needs only the stored part of the object.
    pub async fn apply(&self, observed: &WorkloadObject, write: &ObjectWrite) -> Result<Value, Error> {
        let mut configuration = change::apply_configuration(observed, write);
        if eadt_faults::is_off("fence") {
            configuration["metadata"]["resourceVersion"].take();
        }
        self.patch(observed, MANAGER, &Patch::Apply(configuration)).await
    }

    /// Records a take-over and makes EADT the owner of the fields; no value changes.
    pub async fn take_over(
        &self,
        observed: &WorkloadObject,
        object: &Value,
        record: &TakeOverRecord,
        time: &str,
    ) -> Result<Value, Error> {
        let mut metadata = json!({
            "uid": observed.uid, "resourceVersion": observed.resource_version,
            "annotations": {TAKEN_OVER: json_text(record)?},
        });
        if observed.kind.write_method == WriteMethod::ServerSideApply {
            let fields = owners::fields_to_take(observed.take_over.as_ref(), record);
            metadata["managedFields"] =
                owners::entries_after_take_over(&object["metadata"]["managedFields"], observed.kind, &fields, time);
        }
        self.patch_metadata(observed, metadata).await
    }

    /// Removes EADT's marks and gives the fields back to their former owners; no value changes.
    pub async fn release_fields(
        &self,
        observed: &WorkloadObject,
        object: &Value,
        former: &[FormerField],
        time: &str,
    ) -> Result<Value, Error> {
        let mut metadata = json!({
            "uid": observed.uid, "resourceVersion": observed.resource_version,
            "annotations": {TAKEN_OVER: null, APPLIED: null},
        });
        if observed.kind.write_method == WriteMethod::ServerSideApply {
            metadata["managedFields"] =
                owners::entries_after_return(&object["metadata"]["managedFields"], observed.kind, former, time);
        }
        self.patch_metadata(observed, metadata).await
    }

    async fn patch_metadata(&self, observed: &WorkloadObject, metadata: Value) -> Result<Value, Error> {
        self.patch(observed, RECORDER, &Patch::Merge(json!({"metadata": metadata}))).await
    }

    async fn patch(&self, observed: &WorkloadObject, manager: &str, patch: &Patch<Value>) -> Result<Value, Error> {
        let params = PatchParams {
            field_manager: Some(manager.into()),
            field_validation: Some(ValidationDirective::Strict),
            ..PatchParams::default()
        };
        let written = with_timeout(self.api(observed.kind, &observed.namespace).patch(&observed.name, &params, patch)).await?;
        serde_json::to_value(&written).map_err(Error::SerdeError)
    }

    fn pods_of(&self, observed: &WorkloadObject) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &observed.namespace, &pod_resource())
    }

    /// Returns the pods that hold GPUs of a node, of all namespaces.
    pub async fn gpu_pods(&self, node: &str) -> Result<Vec<GpuPod>, ClusterError> {
        let what = format!("listing the pods of node {node}, of all namespaces, to know whose its GPUs are");
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &pod_resource());
        let running = format!("spec.nodeName={node},{RUNNING_PODS_SELECTOR}");
        let list = call_with_timeout(&what, api.list(&ListParams::default().fields(&running))).await?;
        Ok(list.items.iter().filter_map(|pod| serde_json::to_value(pod).ok()).filter_map(|pod| read_gpu_pod(&pod)).collect())
    }

    /// Returns the quotas of a namespace.
    pub async fn quotas(&self, namespace: &str) -> Result<Vec<Value>, ClusterError> {
        self.list(namespace, core_resource("ResourceQuota", "resourcequotas")).await
    }

    /// Returns the disruption budgets of a namespace.
    pub async fn budgets(&self, namespace: &str) -> Result<Vec<Value>, ClusterError> {
        let group = ApiResource {
            group: "policy".into(),
            api_version: "policy/v1".into(),
            ..core_resource("PodDisruptionBudget", "poddisruptionbudgets")
        };
        self.list(namespace, group).await
    }

    async fn list(&self, namespace: &str, resource: ApiResource) -> Result<Vec<Value>, ClusterError> {
        let what = format!("listing the {} of {namespace}", resource.plural);
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), namespace, &resource);
        let list = call_with_timeout(&what, api.list(&ListParams::default().limit(LIST_PAGE))).await?;
        list.items.iter().map(object_value).collect()
    }

    /// Returns the pods of a workload, those that are ending included.
    pub async fn pods(&self, observed: &WorkloadObject) -> Result<Vec<WorkloadPod>, ClusterError> {
        let Some(selector) = pod_selector(observed) else { return Ok(vec![]) };
        let what = format!("listing the pods of {}", observed.workload());
        let list = ListParams::default().labels(&selector).limit(MAX_PODS);
        let list = call_with_timeout(&what, self.pods_of(observed).list(&list)).await?;
        let pods = list.items.iter().filter_map(|pod| serde_json::to_value(pod).ok());
        // The selector may match pods of others.
        let own = pods.filter(|pod| is_owned_by(pod, observed));
        Ok(own.filter_map(|pod| WorkloadPod::read(&pod)).collect())
    }

    /// Deletes one pod as it was seen. Gone already is as good; one that changed meanwhile is looked at again, so that a leader
    /// that was paused deletes none that became ready since.
    pub async fn delete_pod(&self, observed: &WorkloadObject, pod: &str, uid: &str, version: &str) -> Result<(), ClusterError> {
        let what = format!("deleting pod {}/{pod}", observed.namespace);
        let only = Preconditions { uid: Some(uid.to_owned()), resource_version: Some(version.to_owned()) };
        let only = (!eadt_faults::is_off("pod-fence")).then_some(only);
        let params = DeleteParams { preconditions: only, ..DeleteParams::default() };
        match call_with_timeout(&what, self.pods_of(observed).delete(pod, &params)).await {
            Err(error) if error.remedy == ClusterRemedy::Conflict => Ok(()),
            result => result.map(drop),
        }
    }
}

pub fn pod_resource() -> ApiResource {
    core_resource("Pod", "pods")
}

fn core_resource(kind: &str, plural: &str) -> ApiResource {
    ApiResource { group: String::new(), version: "v1".into(), api_version: "v1".into(), kind: kind.into(), plural: plural.into() }
}

/// Returns the label selector for the pods of a workload.
pub fn pod_selector(observed: &WorkloadObject) -> Option<String> {
    let name = &observed.name;
    match observed.kind.kind {
        "PyTorchJob" => Some(format!("training.kubeflow.org/job-name={name}")),
        "MPIJob" => Some(format!("training.kubeflow.org/job-name={name},training.kubeflow.org/job-role=worker")),
        "LeaderWorkerSet" => Some(format!("leaderworkerset.sigs.k8s.io/name={name}")),
        // A TrainJob is run as a JobSet of its name.
        "JobSet" | "TrainJob" => Some(format!("jobset.sigs.k8s.io/jobset-name={name}")),
        _ => observed.selector.clone(),
    }
}

/// Returns whether a pod belongs to this workload: directly, or through an owner in between, as far as the pod names it. A
/// selector alone is not enough, since pods of another workload may have the same labels.
fn is_owned_by(pod: &Value, observed: &WorkloadObject) -> bool {
    let meta = &pod["metadata"];
    let between = |owner: &Value| match observed.kind.kind {
        // A ReplicaSet of a Deployment is named after both, and only one Deployment has the name.
        "Deployment" => meta["labels"]["pod-template-hash"]
            .as_str()
            .is_some_and(|hash| owner["kind"] == "ReplicaSet" && owner["name"] == format!("{}-{hash}", observed.name)),
        // Their pods were found by a label that their controllers set to the workload's name.
        "LeaderWorkerSet" => owner["kind"] == "StatefulSet",
        "JobSet" | "TrainJob" => owner["kind"] == "Job",
        _ => false,
    };
    let mut owners = meta["ownerReferences"].as_array().into_iter().flatten();
    owners.any(|owner| owner["controller"] == true && (owner["uid"] == observed.uid.as_str() || between(owner)))
}

/// Returns an object as JSON.
pub fn object_value(object: &DynamicObject) -> Result<Value, ClusterError> {
    serde_json::to_value(object)
        .map_err(|error| ClusterError::new(ClusterRemedy::Refused, format!("an object is not JSON: {error}")))
}

fn json_text(value: &impl serde::Serialize) -> Result<String, Error> {
    serde_json::to_string(value).map(eadt_faults::written).map_err(Error::SerdeError)
}

#[cfg(test)]
mod tests {
    use kube::core::Status;
    use kube::core::response::{StatusCause, StatusDetails};

    use super::*;

    fn api(code: u16, message: &str, causes: Vec<StatusCause>) -> Error {
        let details = StatusDetails {
            name: String::new(),
            group: String::new(),
            kind: String::new(),
            uid: String::new(),
            causes,
            retry_after_seconds: 0,
        };
        Error::Api(Status::failure(message, "Reason").with_code(code).with_details(details).boxed())
    }

    #[test]
    fn failures_show_what_the_caller_should_do() {
        for (code, remedy) in [
            (400, ClusterRemedy::Refused),
            (401, ClusterRemedy::Retry),
            (403, ClusterRemedy::Refused),
            (404, ClusterRemedy::Conflict),
            (409, ClusterRemedy::Conflict),
            (422, ClusterRemedy::Refused),
            (429, ClusterRemedy::Retry),
            (500, ClusterRemedy::Retry),
            (503, ClusterRemedy::Retry),
        ] {
            let error = cluster_error("patching StatefulSet eadt/llm", &api(code, "because", vec![]));
            assert_eq!(
                (error.remedy, error.detail.as_str()),
                (remedy, &*format!("patching StatefulSet eadt/llm: because ({code})"))
            );
        }
    }

    #[test]
    fn what_a_credential_plugin_is_given_or_prints_is_in_no_error() {
        let status = std::os::unix::process::ExitStatusExt::from_raw(3 << 8);
        let out = std::process::Output { status, stdout: b"hunter2".to_vec(), stderr: b"hunter2".to_vec() };
        let failed = AuthError::AuthExecRun { cmd: "plugin --token hunter2".to_owned(), out: Box::new(out) };
        // As a request reports a plugin that is run again.
        let text = error_text(&Error::Service(Box::new(failed)));
        assert!(text.contains("exit status: 3") && !text.contains("hunter2"), "{text}");
    }

    #[test]
    fn rights_that_are_missing_may_come_and_what_admission_forbids_stays_forbidden() {
        let rights = r#"statefulsets.apps "llm" is forbidden: User "system:serviceaccount:eadt:actuator" cannot patch resource "statefulsets" in API group "apps" in the namespace "eadt""#;
        let failed = cluster_error("patching", &api(403, rights, vec![]));
        assert!(failed.remedy == ClusterRemedy::Retry && failed.detail.contains("cannot patch resource"), "{failed}");
        for message in [
            r#"statefulsets.apps "llm" is forbidden: exceeded quota: gpus"#,
            r#"admission webhook "guard" denied the request: User "llm" is not known"#,
        ] {
            assert_eq!(cluster_error("patching", &api(403, message, vec![])).remedy, ClusterRemedy::Refused, "{message}");
        }
    }

    #[test]
    fn pods_of_others_with_the_same_labels_are_not_a_workloads_own() {
        let seen = |kind: &str| {
            let kind = crate::objects::kinds::WORKLOAD_KINDS.iter().find(|known| known.kind == kind).unwrap();
            let meta = serde_json::json!({"name": "llm", "namespace": "n", "uid": "u-1", "resourceVersion": "1"});
            WorkloadObject::read(kind, &serde_json::json!({"metadata": meta, "spec": {}})).unwrap()
        };
        let pod = |kind: &str, name: &str, uid: &str| {
            serde_json::json!({"metadata": {
                "labels": {"app": "llm", "pod-template-hash": "6d4cf56db6"},
                "ownerReferences": [{"kind": kind, "name": name, "uid": uid, "controller": true}],
            }})
        };
        let own = |of: &str, (kind, name, uid): (&str, &str, &str)| is_owned_by(&pod(kind, name, uid), &seen(of));
        assert!(own("StatefulSet", ("StatefulSet", "llm", "u-1")));
        assert!(!own("StatefulSet", ("StatefulSet", "other", "u-2")));
        assert!(own("Deployment", ("ReplicaSet", "llm-6d4cf56db6", "u-3")));
        for other in [
            ("ReplicaSet", "other-6d4cf56db6", "u-4"),
            ("ReplicaSet", "llm-two-6d4cf56db6", "u-5"),
            ("StatefulSet", "llm-6d4cf56db6", "u-6"),
            ("Job", "llm", "u-7"),
        ] {
            assert!(!own("Deployment", other), "{other:?}");
        }
        assert!(own("LeaderWorkerSet", ("StatefulSet", "llm-0", "u-8")) && own("JobSet", ("Job", "llm-follow-0", "u-9")));
        assert!(own("TrainJob", ("Job", "llm-node-0", "u-10")) && !own("JobSet", ("ReplicaSet", "llm-1", "u-11")));
        let mut loose = pod("StatefulSet", "llm", "u-1");
        loose["metadata"]["ownerReferences"][0]["controller"] = false.into();
        assert!(!is_owned_by(&loose, &seen("StatefulSet")), "an owner that does not manage it");
    }

    #[test]
    fn a_field_that_was_taken_back_names_its_owner_and_stops() {
        let cause = StatusCause {
            reason: "FieldManagerConflict".into(),
            message: "conflict with \"flux\"".into(),
            field: ".spec.replicas".into(),
        };
        let error = api(409, "Apply failed with 1 conflict", vec![cause]);
        let failed = cluster_error("patching", &error);
        assert_eq!(failed.remedy, ClusterRemedy::Refused);
        assert!(failed.detail.contains(".spec.replicas") && failed.detail.contains("flux"), "{failed}");
        assert_eq!(conflicting_fields(&error), [".spec.replicas"]);
    }
}
