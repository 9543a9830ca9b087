//! Policies as people handle them: list, look at, pause, approve, set the mode. For the command line and the page.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use eadt_cluster::{ClusterError, ClusterRemedy, PolicyEdit, PolicyWriter};
use eadt_schemas::EventTime;
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, DynamicObject, ListParams, Patch, PatchParams};
use kube::core::ApiResource;
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use tokio::runtime::Handle;

use super::PolicyMode;
use super::names::{APPROVED, PAUSED};
use super::resolve::read_pause;
use super::spec::EnergyPolicy;
use crate::api::client::{call_with_timeout, kind_resource};
use crate::api::kubeconfig;
use crate::context::ClockFn;
use crate::objects::kinds::WorkloadKind;

/// The field manager of writes by the command line.
const MANAGER: &str = "eadt-policy";
/// Prefix of the field managers for writes on behalf of others; the user's name follows.
const ON_BEHALF: &str = "eadt-page:";
/// Longest manager that an API server takes.
const MAX_MANAGER_BYTES: usize = 128;

/// Requests at once.
const CONCURRENT_READS: usize = 16;

/// Time limit of a change through the page, including its reads.
const CHANGE_WITHIN: Duration = Duration::from_secs(30);

/// Number of retries of a write that conflicts with a newer status.
const CONFLICTS: usize = 5;

/// The reason why a call failed, for its user.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    #[error("cannot connect to a cluster: {0}; set KUBECONFIG, or name a context with --context")]
    NoCluster(String),
    #[error("{0}")]
    Failed(String),
    #[error("the cluster does not know EnergyPolicy: install the chart, or run `eadt policy crd | kubectl apply -f -`")]
    NotInstalled,
    #[error("there is no policy {name} in namespace {namespace}; `eadt policy list -A` shows all")]
    NoPolicy { namespace: String, name: String },
    #[error("{0}")]
    Refused(String),
}

/// A cluster, by the kubeconfig or the pod's own service account.
#[derive(Clone)]
pub struct PolicyAccess {
    client: Client,
    namespace: String,
    manager: String,
}

impl fmt::Debug for PolicyAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PolicyAccess").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

/// A policy with further facts about its workload.
#[derive(Debug, Clone)]
pub struct PolicyView {
    pub policy: EnergyPolicy,
    /// Its workload or its namespace is paused; `None` if the caller may not see it.
    pub paused: Option<bool>,
    /// Whether the workload is there; `None` if the caller may not see it.
    pub target_found: Option<bool>,
}

impl PolicyAccess {
    /// Opens the cluster of a context (`None` for the current one, or for the cluster that this process runs in).
    pub async fn open(context: Option<&str>) -> Result<Self, AccessError> {
        let config = match context {
            Some(_) => kubeconfig::from_context(context).await,
            None => kubeconfig::infer().await,
        };
        let config = config.map_err(AccessError::NoCluster)?;
        let namespace = config.default_namespace.clone();
        let client = kubeconfig::client(config).await.map_err(AccessError::NoCluster)?;
        Ok(Self::new(client, namespace))
    }

    /// Returns access through a client that is connected already.
    pub fn new(client: Client, namespace: String) -> Self {
        Self { client, namespace, manager: MANAGER.to_owned() }
    }

    /// Returns the same cluster, with writes in the name of a user: the object's field managers show it.
    #[must_use]
    pub fn on_behalf_of(&self, name: &str) -> Self {
        let mut manager = format!("{ON_BEHALF}{name}");
        manager.truncate(manager.floor_char_boundary(MAX_MANAGER_BYTES));
        Self { manager, ..self.clone() }
    }

    /// Returns the annotation's value for a pause or resume. On behalf of a user it stays after a resume, so that its owner shows
    /// who that was; else it is removed.
    fn pause_value(&self, pause: bool) -> Option<&'static str> {
        if pause { Some("true") } else { (self.manager != MANAGER).then_some("false") }
    }

    fn params(&self) -> PatchParams {
        PatchParams { field_manager: Some(self.manager.clone()), ..PatchParams::default() }
    }

    /// Returns the namespace of the context.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Returns the policies of a namespace (`None` for all namespaces), by namespace and name.
    pub async fn list(&self, namespace: Option<&str>) -> Result<Vec<PolicyView>, AccessError> {
        let api: Api<EnergyPolicy> = match namespace {
            Some(namespace) => Api::namespaced(self.client.clone(), namespace),
            None => Api::all(self.client.clone()),
        };
        let list = with_timeout("listing policies", api.list(&ListParams::default())).await?;
        let views = stream::iter(list.items).map(|policy| self.view(policy)).buffer_unordered(CONCURRENT_READS);
        let mut views: Vec<PolicyView> = views.try_collect().await?;
        views.sort_by_key(|view| (view.policy.namespace(), view.policy.name_any()));
        Ok(views)
    }

    /// Returns one policy.
    pub async fn get(&self, namespace: &str, name: &str) -> Result<PolicyView, AccessError> {
        let policy = self.policy(namespace, name).await?;
        Box::pin(self.view(policy)).await
    }

    async fn policy(&self, namespace: &str, name: &str) -> Result<EnergyPolicy, AccessError> {
        let api: Api<EnergyPolicy> = Api::namespaced(self.client.clone(), namespace);
        let found = match api.get(name).await {
            // Both a missing policy and a missing definition are 404; only the latter has no details.
            Err(kube::Error::Api(status))
                if status.code == 404 && status.details.as_ref().is_some_and(|d| !d.name.is_empty()) =>
            {
                return Err(AccessError::NoPolicy { namespace: namespace.to_owned(), name: name.to_owned() });
            }
            found => found,
        };
        with_timeout(&format!("reading policy {namespace}/{name}"), async { found }).await
    }

    async fn view(&self, policy: EnergyPolicy) -> Result<PolicyView, AccessError> {
        let namespace = policy.namespace().unwrap_or_default();
        let target = &policy.spec.target_ref;
        let object = match WorkloadKind::find(&target.api_version, &target.kind) {
            Some(kind) => {
                let api = self.objects(&namespace, &kind_resource(kind));
                let what = format!("reading {} {namespace}/{}", target.kind, target.name);
                with_timeout(&what, read_pause_target(api.get_metadata_opt(&target.name))).await?
            }
            None => PauseLookup::Missing,
        };
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let what = format!("reading namespace {namespace}");
        let around = with_timeout(&what, read_pause_target(namespaces.get_metadata_opt(&namespace))).await?;
        let (own, around) = (object.annotations(), around.annotations());
        let known = own.is_some() && around.is_some();
        let (is_paused, _) = read_pause(&own.unwrap_or_default(), &around.unwrap_or_default());
        let target_found = match object {
            PauseLookup::Found(_) => Some(true),
            PauseLookup::Missing => Some(false),
            PauseLookup::Hidden => None,
        };
        Ok(PolicyView { policy, paused: (known || is_paused).then_some(is_paused), target_found })
    }

    fn objects(&self, namespace: &str, resource: &ApiResource) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), namespace, resource)
    }

    /// Pauses or resumes the workload of a policy.
    pub async fn pause(&self, namespace: &str, name: &str, pause: bool) -> Result<PauseResult, AccessError> {
        let view = Box::pin(self.get(namespace, name)).await?;
        let target = &view.policy.spec.target_ref;
        let Some(kind) = WorkloadKind::find(&target.api_version, &target.kind) else {
            let known = WorkloadKind::names();
            return Err(AccessError::Refused(format!("{} is not a kind that EADT changes; it supports {known}", target.kind)));
        };
        let api = self.objects(namespace, &kind_resource(kind));
        let what = format!("{} {} {namespace}/{}", pause_verb(pause), target.kind, target.name);
        let Some(object) = with_timeout(&what, api.get_metadata_opt(&target.name)).await? else {
            return Err(AccessError::Refused(format!("{} {namespace}/{} does not exist", target.kind, target.name)));
        };
        let changed = !is_paused_as(object.annotations(), pause);
        if changed {
            let patch = Patch::Merge(annotation_patch(PAUSED, self.pause_value(pause)));
            with_timeout(&what, api.patch_metadata(&target.name, &self.params(), &patch)).await?;
        }
        Ok(PauseResult { changed, by_namespace: self.is_namespace_paused(namespace).await? })
    }

    /// Returns whether a whole namespace is paused, as far as the caller may see it.
    async fn is_namespace_paused(&self, namespace: &str) -> Result<bool, AccessError> {
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let what = format!("reading namespace {namespace}");
        let around = with_timeout(&what, read_pause_target(namespaces.get_metadata_opt(namespace))).await?;
        Ok(read_pause(&BTreeMap::new(), &around.annotations().unwrap_or_default()).0)
    }

    /// Pauses or resumes every workload of a namespace. `false` if it was so already.
    pub async fn pause_namespace(&self, namespace: &str, pause: bool) -> Result<bool, AccessError> {
        let api: Api<Namespace> = Api::all(self.client.clone());
        let what = format!("{} namespace {namespace}", pause_verb(pause));
        let Some(object) = with_timeout(&what, api.get_metadata_opt(namespace)).await? else {
            return Err(AccessError::Refused(format!("there is no namespace {namespace}")));
        };
        if is_paused_as(object.annotations(), pause) {
            return Ok(false);
        }
        with_timeout(
            &what,
            api.patch_metadata(namespace, &self.params(), &Patch::Merge(&annotation_patch(PAUSED, self.pause_value(pause)))),
        )
        .await?;
        Ok(true)
    }

    /// Finds the policy of a workload by the name that events have for it, `namespace/name`, and its kind.
    pub async fn find(&self, namespace: &str, name: &str, kind: &str) -> Result<EnergyPolicy, AccessError> {
        let api: Api<EnergyPolicy> = Api::namespaced(self.client.clone(), namespace);
        let list = with_timeout("listing policies", api.list(&ListParams::default())).await?;
        let of_it = |policy: &EnergyPolicy| policy.spec.target_ref.name == name && policy.spec.target_ref.kind == kind;
        let mut found = list.items.into_iter().filter(of_it);
        match (found.next(), found.next()) {
            (Some(policy), None) => Ok(policy),
            (None, _) => Err(AccessError::Refused(format!("no policy in namespace {namespace} is for {kind} {name}"))),
            (Some(one), Some(other)) => Err(AccessError::Refused(format!(
                "policies {} and {} are both for {kind} {namespace}/{name}: delete one of them",
                one.name_any(),
                other.name_any()
            ))),
        }
    }

    /// Sets the mode of a policy, unless another writer set it since it was read. Returns `false` if it had this mode already.
    pub async fn set_mode(&self, policy: &EnergyPolicy, mode: PolicyMode) -> Result<bool, AccessError> {
        let (namespace, name) = (policy.namespace().unwrap_or_default(), policy.name_any());
        let shown = policy.spec.update_mode;
        if shown == mode {
            return Ok(false);
        }
        let api: Api<EnergyPolicy> = Api::namespaced(self.client.clone(), &namespace);
        let what = format!("setting the mode of policy {namespace}/{name}");
        let mut version = policy.resource_version();
        for _ in 0..CONFLICTS {
            let patch = json!({"metadata": {"resourceVersion": version}, "spec": {"updateMode": mode}});
            match api.patch(&name, &self.params(), &Patch::Merge(&patch)).await {
                // Its status is written all the time: only the mode must be the one that was seen.
                Err(kube::Error::Api(status)) if status.code == 409 => {
                    let present = self.policy(&namespace, &name).await?;
                    if present.spec.update_mode != shown {
                        break;
                    }
                    version = present.resource_version();
                }
                // The definition's own rules: a mode may need bounds.
                Err(kube::Error::Api(status)) if status.code == 422 => {
                    return Err(AccessError::Refused(format!("{what}: {}", status.message)));
                }
                written => return with_timeout(&what, async { written }).await.map(|_| true),
            }
        }
        Err(changed_meanwhile(&namespace, &name))
    }

    /// Has the present recommendation applied once; returns it.
    pub async fn approve(
        &self,
        namespace: &str,
        name: &str,
        decision_id: Option<&str>,
        now: EventTime,
    ) -> Result<super::Recommendation, AccessError> {
        // Its status is written all the time: a decision that is named is the same one in the next.
        let tries = if decision_id.is_some() { CONFLICTS } else { 1 };
        for _ in 0..tries {
            if let Some(approved) = Box::pin(self.try_approve(namespace, name, decision_id, now)).await? {
                return Ok(approved);
            }
        }
        Err(changed_meanwhile(namespace, name))
    }

    /// Tries to approve; returns `None` if the policy was written meanwhile.
    async fn try_approve(
        &self,
        namespace: &str,
        name: &str,
        decision_id: Option<&str>,
        now: EventTime,
    ) -> Result<Option<super::Recommendation>, AccessError> {
        let PolicyView { policy, paused, .. } = Box::pin(self.get(namespace, name)).await?;
        let refused = |message: String| Err(AccessError::Refused(message));
        let Some(recommendation) = policy.status.as_ref().and_then(|status| status.recommendation.clone()) else {
            return refused(format!("policy {namespace}/{name} recommends nothing at present, so there is nothing to approve"));
        };
        if decision_id.is_some_and(|wanted| wanted != recommendation.decision_id) {
            let (id, summary) = (&recommendation.decision_id, &recommendation.summary);
            return refused(format!("the current recommendation is {id} ({summary}): review it, then approve that one"));
        }
        if now >= recommendation.expires {
            let (id, expires) = (&recommendation.decision_id, recommendation.expires);
            return refused(format!("recommendation {id} expired at {expires}: wait for the next one"));
        }
        match policy.spec.update_mode {
            PolicyMode::Recommend => {}
            PolicyMode::Enforce => {
                return refused(format!("policy {namespace}/{name} is in mode Enforce: it is applied anyway"));
            }
            PolicyMode::Observe => {
                return refused(format!(
                    "policy {namespace}/{name} is in mode Observe, in which nothing is changed: set Recommend first"
                ));
            }
        }
        if paused == Some(true) {
            return refused(format!(
                "the workload of policy {namespace}/{name} is paused, so nothing would be applied: eadt policy resume {name}, or --all for \
                 a paused namespace"
            ));
        }
        let conditions = policy.status.iter().flat_map(|status| &status.conditions);
        if let Some(why) = conditions
            .into_iter()
            .find(|condition| condition.kind == "Ready" && condition.status == super::ConditionStatus::False)
        {
            return refused(format!("policy {namespace}/{name} is not ready, so nothing would be applied: {}", why.message));
        }
        let api: Api<EnergyPolicy> = Api::namespaced(self.client.clone(), namespace);
        let mut patch = annotation_patch(APPROVED, Some(&recommendation.decision_id));
        // Only the version that was read is approved.
        patch["metadata"]["resourceVersion"] = json!(policy.resource_version());
        match api.patch(name, &self.params(), &Patch::Merge(&patch)).await {
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(None),
            written => {
                with_timeout(&format!("approving {namespace}/{name}"), async { written }).await.map(|_| Some(recommendation))
            }
        }
    }
}

impl From<AccessError> for ClusterError {
    fn from(error: AccessError) -> Self {
        let remedy = match error {
            AccessError::NoCluster(_) | AccessError::Failed(_) => ClusterRemedy::Retry,
            AccessError::NotInstalled | AccessError::NoPolicy { .. } | AccessError::Refused(_) => ClusterRemedy::Refused,
        };
        Self::new(remedy, error)
    }
}

/// Changes policies for users of the page.
pub struct PolicyEditor {
    access: PolicyAccess,
    clock: ClockFn,
    runtime: Handle,
}

impl fmt::Debug for PolicyEditor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PolicyEditor").field("access", &self.access).finish_non_exhaustive()
    }
}

impl PolicyEditor {
    /// Creates a writer for a cluster. `clock` decides which recommendations have expired, calls run on `runtime`.
    pub fn new(access: PolicyAccess, clock: ClockFn, runtime: Handle) -> Self {
        Self { access, clock, runtime }
    }
}

impl PolicyWriter for PolicyEditor {
    fn edit_policy(&self, workload: &str, kind: &str, change: &PolicyEdit, by: &str) -> Result<bool, ClusterError> {
        let Some((namespace, name)) = workload.split_once('/') else { return Err(ClusterError::not_managed(workload)) };
        let access = self.access.on_behalf_of(by);
        let change_policy = async {
            let policy = access.find(namespace, name, kind).await?;
            let policy_name = policy.name_any();
            Ok(match change {
                PolicyEdit::Pause | PolicyEdit::Resume => {
                    let pause = *change == PolicyEdit::Pause;
                    if !pause && access.is_namespace_paused(namespace).await? {
                        return Err(AccessError::Refused(format!(
                            "namespace {namespace} is paused, and {workload} with it: eadt policy resume --all -n {namespace}"
                        ))
                        .into());
                    }
                    Box::pin(access.pause(namespace, &policy_name, pause)).await?.changed
                }
                PolicyEdit::SetMode { mode, shown } => {
                    let (mode, shown) = (PolicyMode::from(*mode), PolicyMode::from(*shown));
                    if policy.spec.update_mode != mode && policy.spec.update_mode != shown {
                        return Err(changed_meanwhile(namespace, &policy_name).into());
                    }
                    access.set_mode(&policy, mode).await?
                }
                PolicyEdit::Approve(id) => {
                    Box::pin(access.approve(namespace, &policy_name, Some(id), (self.clock)())).await?;
                    true
                }
            })
        };
        let limited = async {
            Box::pin(tokio::time::timeout(CHANGE_WITHIN, change_policy)).await.unwrap_or_else(|_| {
                let seconds = CHANGE_WITHIN.as_secs();
                Err(ClusterError::new(
                    ClusterRemedy::Retry,
                    format!(
                        "the API server did not answer within {seconds} s: check whether {workload} was changed, then try again"
                    ),
                ))
            })
        };
        self.runtime.block_on(limited)
    }
}

/// The result of a pause or resume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PauseResult {
    /// The workload was not so before.
    pub changed: bool,
    /// Its namespace is paused, so the workload is paused whatever its own annotation is.
    pub by_namespace: bool,
}

/// Returns whether an annotation already has this value. An unreadable value pauses, but was not intended, so it is overwritten.
fn is_paused_as(annotations: &BTreeMap<String, String>, pause: bool) -> bool {
    match annotations.get(PAUSED).map(String::as_str) {
        Some("true") => pause,
        None | Some("false") => !pause,
        Some(_) => false,
    }
}

/// The result of reading an object that the user may not be allowed to see.
enum PauseLookup {
    Found(BTreeMap<String, String>),
    Missing,
    Hidden,
}

impl PauseLookup {
    fn annotations(&self) -> Option<BTreeMap<String, String>> {
        match self {
            Self::Found(annotations) => Some(annotations.clone()),
            Self::Missing => Some(BTreeMap::new()),
            Self::Hidden => None,
        }
    }
}

/// Reads the objects of a kind; a kind that the cluster does not have has no objects.
async fn read_pause_target<T: ResourceExt>(
    request: impl Future<Output = Result<Option<T>, kube::Error>>,
) -> Result<PauseLookup, kube::Error> {
    match request.await {
        Ok(Some(object)) => Ok(PauseLookup::Found(object.annotations().clone())),
        Ok(None) => Ok(PauseLookup::Missing),
        Err(kube::Error::Api(status)) if status.code == 403 => Ok(PauseLookup::Hidden),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(PauseLookup::Missing),
        Err(error) => Err(error),
    }
}

fn changed_meanwhile(namespace: &str, name: &str) -> AccessError {
    AccessError::Refused(format!("policy {namespace}/{name} changed just now: reload it, then try again"))
}

fn pause_verb(pause: bool) -> &'static str {
    if pause { "pausing" } else { "resuming" }
}

fn annotation_patch(name: &str, value: Option<&str>) -> Value {
    json!({"metadata": {"annotations": {name: value}}})
}

async fn with_timeout<T>(what: &str, request: impl Future<Output = Result<T, kube::Error>>) -> Result<T, AccessError> {
    let mut not_installed = false;
    let request = async {
        let answer = request.await;
        if let Err(kube::Error::Api(status)) = &answer {
            not_installed = status.code == 404 && status.message.contains("could not find the requested resource");
        }
        answer
    };
    let answer = call_with_timeout(what, request).await;
    if not_installed {
        return Err(AccessError::NotInstalled);
    }
    answer.map_err(|error| AccessError::Failed(error.detail))
}
