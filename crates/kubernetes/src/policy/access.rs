//! Policies as people handle them: list, look at, pause, approve. For the command line.

use std::collections::BTreeMap;
use std::fmt;

use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, DynamicObject, ListParams, Patch, PatchParams};
use kube::config::KubeConfigOptions;
use kube::core::ApiResource;
use kube::{Client, Config, ResourceExt};
use serde_json::{Value, json};

use super::names::{APPROVED, PAUSED};
use super::resolve::read_pause;
use super::spec::EnergyPolicy;
use crate::api::client::{call_with_timeout, kind_resource};
use crate::objects::kinds::WorkloadKind;

/// The manager of what the command line writes.
const MANAGER: &str = "eadt-policy";

/// Requests at once.
const CONCURRENT_READS: usize = 16;

/// Why a call failed, in words for the person who made it.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    #[error("no cluster to talk to: {0}; set KUBECONFIG, or name a context with --context")]
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

/// A cluster, as the kubeconfig or the pod's own service account has it.
#[derive(Clone)]
pub struct PolicyAccess {
    client: Client,
    namespace: String,
}

impl fmt::Debug for PolicyAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Access").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

/// A policy with what is known beside it.
#[derive(Debug, Clone)]
pub struct PolicyView {
    pub policy: EnergyPolicy,
    /// Its workload or its namespace is paused; `None`: the caller may not see it.
    pub paused: Option<bool>,
    /// Whether the workload is there; `None`: the caller may not see it.
    pub target_found: Option<bool>,
}

impl PolicyAccess {
    /// Opens the cluster of a context (`None`: the current one, or the one that this process runs in).
    pub async fn open(context: Option<&str>) -> Result<Self, AccessError> {
        let no = |error: &dyn fmt::Display| AccessError::NoCluster(error.to_string());
        let config = match context {
            Some(_) => {
                let options = KubeConfigOptions { context: context.map(str::to_owned), ..KubeConfigOptions::default() };
                Config::from_kubeconfig(&options).await.map_err(|error| no(&error))?
            }
            None => Config::infer().await.map_err(|error| no(&error))?,
        };
        let namespace = config.default_namespace.clone();
        let client = Client::try_from(config).map_err(|error| no(&error))?;
        Ok(Self { client, namespace })
    }

    /// The namespace of the context.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The policies of a namespace (`None`: of all), by namespace and name.
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

    /// One policy.
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
            None => PauseTarget::Missing,
        };
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let what = format!("reading namespace {namespace}");
        let around = with_timeout(&what, read_pause_target(namespaces.get_metadata_opt(&namespace))).await?;
        let (own, around) = (object.annotations(), around.annotations());
        let known = own.is_some() && around.is_some();
        let (is_paused, _) = read_pause(&own.unwrap_or_default(), &around.unwrap_or_default());
        let target_found = match object {
            PauseTarget::Found(_) => Some(true),
            PauseTarget::Missing => Some(false),
            PauseTarget::Hidden => None,
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
            return Err(AccessError::Refused(format!("{} is not a kind that EADT changes; it knows {known}", target.kind)));
        };
        let api = self.objects(namespace, &kind_resource(kind));
        let what = format!("{} {} {namespace}/{}", pause_verb(pause), target.kind, target.name);
        let Some(object) = with_timeout(&what, api.get_metadata_opt(&target.name)).await? else {
            return Err(AccessError::Refused(format!("{} {namespace}/{} is not there", target.kind, target.name)));
        };
        let changed = !is_paused_as(object.annotations(), pause);
        if changed {
            let patch = Patch::Merge(annotation_patch(PAUSED, pause.then_some("true")));
            with_timeout(&what, api.patch_metadata(&target.name, &apply_params(), &patch)).await?;
        }
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let around =
            with_timeout(&format!("reading namespace {namespace}"), read_pause_target(namespaces.get_metadata_opt(namespace)))
                .await?;
        let around = around.annotations().unwrap_or_default();
        Ok(PauseResult { changed, by_namespace: read_pause(&BTreeMap::new(), &around).0 })
    }

    /// Pauses or resumes every workload of a namespace. `false`: it was so already.
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
            api.patch_metadata(namespace, &apply_params(), &Patch::Merge(&annotation_patch(PAUSED, pause.then_some("true")))),
        )
        .await?;
        Ok(true)
    }

    /// Has the present recommendation applied once; returns it.
    pub async fn approve(
        &self,
        namespace: &str,
        name: &str,
        decision_id: Option<&str>,
        now: eadt_schemas::EventTime,
    ) -> Result<super::Recommendation, AccessError> {
        let PolicyView { policy, paused, .. } = Box::pin(self.get(namespace, name)).await?;
        let refused = |message: String| Err(AccessError::Refused(message));
        let Some(recommendation) = policy.status.as_ref().and_then(|status| status.recommendation.clone()) else {
            return refused(format!("policy {namespace}/{name} recommends nothing at present, so there is nothing to approve"));
        };
        if decision_id.is_some_and(|wanted| wanted != recommendation.decision_id) {
            let (id, summary) = (&recommendation.decision_id, &recommendation.summary);
            return refused(format!("what is recommended by now is {id} ({summary}): look at it, then approve that"));
        }
        if now >= recommendation.expires {
            let (id, expires) = (&recommendation.decision_id, recommendation.expires);
            return refused(format!("recommendation {id} expired at {expires}: wait for the next one"));
        }
        match policy.spec.update_mode {
            super::Mode::Recommend => {}
            super::Mode::Enforce => {
                return refused(format!("policy {namespace}/{name} is in mode Enforce: it is applied anyway"));
            }
            super::Mode::Observe => {
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
        // What was looked at is what is approved.
        patch["metadata"]["resourceVersion"] = json!(policy.resource_version());
        match api.patch(name, &apply_params(), &Patch::Merge(&patch)).await {
            Err(kube::Error::Api(status)) if status.code == 409 => {
                refused(format!("policy {namespace}/{name} changed just now: look again, then approve"))
            }
            written => with_timeout(&format!("approving {namespace}/{name}"), async { written }).await.map(|_| recommendation),
        }
    }
}

/// What became of a pause or its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PauseResult {
    /// The workload was not so before.
    pub changed: bool,
    /// Its namespace is paused, and so it is whatever is said of it alone.
    pub by_namespace: bool,
}

/// Whether an annotation says so already. What cannot be read pauses, but is not what anybody meant, so it is written over.
fn is_paused_as(annotations: &BTreeMap<String, String>, pause: bool) -> bool {
    match annotations.get(PAUSED).map(String::as_str) {
        Some("true") => pause,
        None | Some("false") => !pause,
        Some(_) => false,
    }
}

/// An object that somebody may or may not be allowed to see.
enum PauseTarget {
    Found(BTreeMap<String, String>),
    Missing,
    Hidden,
}

impl PauseTarget {
    fn annotations(&self) -> Option<BTreeMap<String, String>> {
        match self {
            Self::Found(annotations) => Some(annotations.clone()),
            Self::Missing => Some(BTreeMap::new()),
            Self::Hidden => None,
        }
    }
}

/// What there is to see; a kind that the cluster does not know has no objects.
async fn read_pause_target<T: ResourceExt>(
    request: impl Future<Output = Result<Option<T>, kube::Error>>,
) -> Result<PauseTarget, kube::Error> {
    match request.await {
        Ok(Some(object)) => Ok(PauseTarget::Found(object.annotations().clone())),
        Ok(None) => Ok(PauseTarget::Missing),
        Err(kube::Error::Api(status)) if status.code == 403 => Ok(PauseTarget::Hidden),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(PauseTarget::Missing),
        Err(error) => Err(error),
    }
}

fn pause_verb(pause: bool) -> &'static str {
    if pause { "pausing" } else { "resuming" }
}

fn apply_params() -> PatchParams {
    PatchParams { field_manager: Some(MANAGER.into()), ..PatchParams::default() }
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
