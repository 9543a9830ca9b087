//! Watches that feed the index. Lists are paged, and watches resume where they broke off (also after 410 Gone). An error is
//! logged once and retried with growing pauses. A kind that the API server does not serve is probed now and then, and counts as
//! synced; a kind without an answer does not.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, DynamicObject};
use kube::core::ApiResource;
use kube::core::PartialObjectMeta;
use kube::runtime::utils::Backoff;
use kube::runtime::watcher;
use kube::runtime::watcher::{DefaultBackoff, Event};
use kube::{Error, ResourceExt};
use serde_json::Value;

use crate::api::client::{RUNNING_PODS_SELECTOR, error_text, kind_resource, object_value, pod_resource};
use crate::context::KubernetesContext;
use crate::context::WatchSource;
use crate::objects::key::{ObjectKey, PolicyKey};
use crate::objects::kinds::WorkloadKind;
use crate::objects::object::{PREFIX, WorkloadObject};
use crate::policy::names::{OBSERVE, PAUSED};
use crate::policy::resource;

/// Objects of one page of a list; a page is held in memory as a whole.
const PAGE: u32 = 100;
/// Interval between probes of a kind that was not served.
const UNSERVED_POLL: Duration = Duration::from_mins(2);

async fn is_served(shared: &KubernetesContext, resource: &ApiResource) -> Result<bool, Error> {
    match shared.server.client.list_api_group_resources(&resource.api_version).await {
        Ok(list) => Ok(list.resources.iter().any(|known| known.kind == resource.kind)),
        Err(Error::Api(status)) if status.code == 404 => Ok(false),
        Err(error) => Err(error),
    }
}

/// Waits until the API server serves a resource. While it does not, the resource has no objects and counts as synced.
async fn until_served(
    shared: &KubernetesContext,
    resource: &ApiResource,
    source: WatchSource,
    attempts: &mut WatchBackoff<'_>,
    mut absent: impl FnMut(),
) {
    loop {
        match is_served(shared, resource).await {
            Ok(true) => return,
            Ok(false) => {
                attempts.succeeded();
                absent();
                shared.mark_synced(source);
                tokio::time::sleep(UNSERVED_POLL).await;
            }
            Err(error) => attempts.failed_with(error_text(&error)).await,
        }
    }
}

/// Returns whether a list failed because nothing of its kind is served any more.
fn is_absent(error: &watcher::Error) -> bool {
    matches!(error, watcher::Error::InitialListFailed(Error::Api(status)) if status.code == 404)
}

/// Returns the objects of a resource, as far as they are looked at.
fn watched_api(shared: &KubernetesContext, resource: &ApiResource) -> Api<DynamicObject> {
    let client = shared.server.client.clone();
    match &shared.settings.only_namespace {
        Some(namespace) => Api::namespaced_with(client, namespace, resource),
        None => Api::all_with(client, resource),
    }
}

/// Retries of a read: an error is logged once, until another one comes, and followed by a pause.
///
/// Pauses are a quarter of client-go's (0.8 s, doubled up to 30 s, and up to as much again at random). One actuator has few
/// watches, and after an outage all its results wait for them. `WatchStreamExt::backoff` is not used: it resets at every
/// [`Event::Init`], which comes before each list, even before one that fails.
struct WatchBackoff<'a> {
    what: &'a str,
    last_error: String,
    pauses: DefaultBackoff,
}

impl<'a> WatchBackoff<'a> {
    fn new(what: &'a str) -> Self {
        Self { what, last_error: String::new(), pauses: DefaultBackoff::default() }
    }

    /// Notes that something was read.
    fn succeeded(&mut self) {
        self.pauses.reset();
        if !std::mem::take(&mut self.last_error).is_empty() {
            tracing::info!(what = self.what, "the watch works again");
        }
    }

    async fn failed(&mut self, error: &watcher::Error) {
        let text = match error {
            watcher::Error::InitialListFailed(error)
            | watcher::Error::WatchStartFailed(error)
            | watcher::Error::WatchFailed(error) => error_text(error),
            watcher::Error::WatchError(status) => format!("{} ({})", status.message, status.code),
            watcher::Error::NoResourceVersion => error.to_string(),
        };
        // Expired watches are normal: they are listed again.
        if matches!(error, watcher::Error::WatchError(status) if status.code == 410) {
            tracing::debug!(what = self.what, "the watch has expired; listing again");
            self.pause().await;
        } else {
            self.failed_with(text).await;
        }
    }

    async fn failed_with(&mut self, text: String) {
        if self.last_error != text {
            tracing::warn!(what = self.what, error = text, "the watch is interrupted; it is retried with pauses of up to 15 s");
            self.last_error = text;
        }
        self.pause().await;
    }

    async fn pause(&mut self) {
        tokio::time::sleep(self.pauses.next().unwrap_or(UNSERVED_POLL) / 4).await;
    }
}

/// A watch of one resource, with the handlers of its objects.
struct ResourceWatch<Key, Apply, Delete, Retain> {
    source: WatchSource,
    key: Key,
    /// Takes an object that is there; returns whether it is kept.
    apply: Apply,
    delete: Delete,
    /// Drops objects that were not listed.
    retain: Retain,
}

impl<K, Key, Apply, Delete, Retain> ResourceWatch<Key, Apply, Delete, Retain>
where
    K: Ord,
    Key: Fn(&DynamicObject) -> K,
    Apply: Fn(&K, &DynamicObject) -> bool,
    Delete: Fn(&K),
    Retain: Fn(&BTreeSet<K>),
{
    /// Watches until the resource is not served any more.
    async fn run(&self, shared: &KubernetesContext, resource: &ApiResource, attempts: &mut WatchBackoff<'_>) {
        let api = watched_api(shared, resource);
        let mut events = watcher(api, watcher::Config::default().page_size(PAGE)).boxed();
        let mut listing: Option<BTreeSet<K>> = None;
        while let Some(event) = events.next().await {
            match event {
                Err(error) => {
                    attempts.failed(&error).await;
                    if is_absent(&error) {
                        return;
                    }
                }
                Ok(Event::Init) => listing = Some(BTreeSet::new()),
                Ok(Event::InitDone) => {
                    attempts.succeeded();
                    if let Some(listed) = listing.take() {
                        (self.retain)(&listed);
                    }
                    shared.mark_synced(self.source);
                }
                Ok(Event::Apply(object) | Event::InitApply(object)) => {
                    attempts.succeeded();
                    let key = (self.key)(&object);
                    if (self.apply)(&key, &object)
                        && let Some(listed) = &mut listing
                    {
                        listed.insert(key);
                    }
                }
                Ok(Event::Delete(object)) => {
                    attempts.succeeded();
                    (self.delete)(&(self.key)(&object));
                }
            }
        }
    }
}

/// Watches policies for ever.
pub async fn watch_policies(shared: Arc<KubernetesContext>) {
    let resource = resource::policy_resource();
    let (mut attempts, mut warned) = (WatchBackoff::new(&resource.kind), false);
    loop {
        let absent = || {
            if !std::mem::replace(&mut warned, true) {
                tracing::warn!(
                    "there is no EnergyPolicy resource: install deploy/crds/energypolicies.yaml; until then workloads are only observed, by their label"
                );
            }
        };
        until_served(&shared, &resource, WatchSource::Policies, &mut attempts, absent).await;
        let watch = ResourceWatch {
            source: WatchSource::Policies,
            key: |policy: &DynamicObject| -> PolicyKey { (policy.namespace().unwrap_or_default(), policy.name_any()) },
            apply: |_: &PolicyKey, policy: &DynamicObject| {
                if let Ok(policy) = object_value(policy) {
                    shared.upsert_policy(&policy);
                }
                true
            },
            delete: |name: &PolicyKey| {
                shared.update_index(|index, now| index.remove_policy(name, now));
                shared.remove_policy_status(name);
            },
            retain: |listed: &BTreeSet<PolicyKey>| shared.update_index(|index, now| index.retain_policies(listed, now)),
        };
        watch.run(&shared, &resource, &mut attempts).await;
        warned = false;
    }
}

/// Watches namespaces for the pause, by their metadata only.
pub async fn watch_namespaces(shared: Arc<KubernetesContext>) {
    let api = Api::<PartialObjectMeta<Namespace>>::all(shared.server.client.clone());
    let only = shared.settings.only_namespace.as_ref().map(|name| format!("metadata.name={name}"));
    let config = only.iter().fold(watcher::Config::default(), |config, only| config.fields(only));
    let mut events = watcher(api, config).boxed();
    let mut attempts = WatchBackoff::new("Namespace");
    while let Some(event) = events.next().await {
        let (namespace, is_deleted) = match event {
            Err(error) => {
                attempts.failed(&error).await;
                continue;
            }
            Ok(Event::Init) => continue,
            Ok(Event::InitDone) => {
                attempts.succeeded();
                shared.mark_synced(WatchSource::Namespaces);
                continue;
            }
            Ok(Event::Apply(namespace) | Event::InitApply(namespace)) => (namespace, false),
            Ok(Event::Delete(namespace)) => (namespace, true),
        };
        attempts.succeeded();
        let value = namespace.annotations().get(PAUSED).filter(|_| !is_deleted);
        shared.update_index(|state, now| state.set_namespace_pause(&namespace.name_any(), value.map(String::as_str), now));
    }
}

/// Watches the objects of a kind for ever; keeps those that opted in.
pub async fn watch_objects(shared: Arc<KubernetesContext>, kind: &'static WorkloadKind) {
    // The objects without a policy are known only after the policies were listed.
    shared.wait_synced(WatchSource::Policies).await;
    let resource = kind_resource(kind);
    let mut attempts = WatchBackoff::new(kind.kind);
    loop {
        until_served(&shared, &resource, WatchSource::Kind(kind.kind), &mut attempts, || {}).await;
        let watch = ResourceWatch {
            source: WatchSource::Kind(kind.kind),
            key: |object: &DynamicObject| ObjectKey {
                kind: kind.kind,
                namespace: object.namespace().unwrap_or_default(),
                name: object.name_any(),
            },
            apply: |key: &ObjectKey, object: &DynamicObject| {
                let labelled = object.labels().contains_key(OBSERVE);
                let marked = object.annotations().keys().any(|name| name.starts_with(PREFIX));
                let is_tracked = shared.update_index(|index, _| index.is_tracked(key, labelled, marked));
                if is_tracked && let Ok(object) = object_value(object) {
                    index_object(&shared, kind, &object);
                }
                is_tracked
            },
            delete: |key: &ObjectKey| shared.update_index(|index, _| index.remove(key)),
            retain: |listed: &BTreeSet<ObjectKey>| shared.update_index(|index, _| index.retain_listed(kind.kind, listed)),
        };
        watch.run(&shared, &resource, &mut attempts).await;
    }
}

/// Watches the pods on nodes, whatever namespace they are in, while power caps, clocks or MPS defaults are wanted, and not
/// otherwise.
pub async fn watch_gpu_pods(shared: Arc<KubernetesContext>) {
    let mut wanted = shared.device_planner().subscribe_pod_watch();
    loop {
        wait_until(&mut wanted, true).await;
        tokio::select! {
            () = watch_placed_pods(&shared) => {}
            () = wait_until(&mut wanted, false) => {}
        }
        shared.device_planner().gpu_pods.clear();
    }
}

/// Waits until it is wanted, or not any more.
async fn wait_until(wanted: &mut tokio::sync::watch::Receiver<bool>, to: bool) {
    if wanted.wait_for(|wanted| *wanted == to).await.is_err() {
        std::future::pending::<()>().await;
    }
}

async fn watch_placed_pods(shared: &KubernetesContext) {
    let api = Api::<DynamicObject>::all_with(shared.server.client.clone(), &pod_resource());
    let placed = format!("spec.nodeName!=,{RUNNING_PODS_SELECTOR}");
    let mut events = watcher(api, watcher::Config::default().page_size(PAGE).fields(&placed)).boxed();
    let mut attempts = WatchBackoff::new("Pod");
    while let Some(event) = events.next().await {
        let event = match event {
            Ok(event) => event,
            Err(error) => {
                shared.device_planner().on_pod_watch_failed();
                attempts.failed(&error).await;
                continue;
            }
        };
        if !matches!(event, Event::Init) {
            attempts.succeeded();
        }
        let news = {
            let nodes = &mut shared.device_planner().gpu_pods;
            match event {
                Event::Init => {
                    nodes.begin_list();
                    false
                }
                Event::InitDone => {
                    nodes.end_list();
                    true
                }
                Event::Apply(pod) | Event::InitApply(pod) => object_value(&pod).is_ok_and(|pod| nodes.upsert(&pod)),
                Event::Delete(pod) => pod.uid().is_some_and(|uid| nodes.remove(&uid)),
            }
        };
        if news {
            shared.device_targets_changed.notify_one();
        }
    }
}

/// Takes an object into the state.
pub fn index_object(shared: &KubernetesContext, kind: &'static WorkloadKind, object: &Value) {
    match WorkloadObject::read(kind, object) {
        Ok(observed) => shared.update_index(|state, now| state.upsert(observed, now)),
        Err(error) => tracing::warn!(kind = kind.kind, error, "an object cannot be read"),
    }
}
