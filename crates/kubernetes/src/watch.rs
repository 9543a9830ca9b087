//! Watches: what the API server says goes into the state. Lists come in pages, watches go on where they broke off (also after
//! 410 Gone), and errors are said once and tried again with growing pauses. What the API server does not serve is asked for now and
//! then, and counts as read; what it does not answer about does not.

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

use crate::client::{RUNNING, pod_resource, resource, value, words};
use crate::cluster::Shared;
use crate::kinds::Kind;
use crate::object::{PREFIX, Seen};
use crate::policy::names::{OBSERVE, PAUSED};
use crate::rules;
use crate::state::{Key, RuleKey};

/// Objects of one page of a list; a page is held in memory as a whole.
const PAGE: u32 = 100;
/// How often is asked whether a kind that was not served is served now.
const ABSENT: Duration = Duration::from_mins(2);

/// What is watched, as a part of being ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    Policies,
    Namespaces,
    Kind(&'static str),
}

async fn is_served(shared: &Shared, resource: &ApiResource) -> Result<bool, Error> {
    match shared.server.client.list_api_group_resources(&resource.api_version).await {
        Ok(list) => Ok(list.resources.iter().any(|known| known.kind == resource.kind)),
        Err(Error::Api(status)) if status.code == 404 => Ok(false),
        Err(error) => Err(error),
    }
}

/// Waits until the API server serves a resource. Whenever it says that it does not, there is nothing of it: it counts as read.
async fn until_served(
    shared: &Shared,
    resource: &ApiResource,
    source: Source,
    attempts: &mut Attempts<'_>,
    mut absent: impl FnMut(),
) {
    loop {
        match is_served(shared, resource).await {
            Ok(true) => return,
            Ok(false) => {
                attempts.succeeded();
                absent();
                shared.synced(source);
                tokio::time::sleep(ABSENT).await;
            }
            Err(error) => attempts.failed_with(words(&error)).await,
        }
    }
}

/// Whether a list failed because nothing of its kind is served any more.
fn is_absent(error: &watcher::Error) -> bool {
    matches!(error, watcher::Error::InitialListFailed(Error::Api(status)) if status.code == 404)
}

/// The objects of a resource, as far as they are looked at.
fn everywhere(shared: &Shared, resource: &ApiResource) -> Api<DynamicObject> {
    let client = shared.server.client.clone();
    match &shared.settings.only_namespace {
        Some(namespace) => Api::namespaced_with(client, namespace, resource),
        None => Api::all_with(client, resource),
    }
}

/// Attempts to read something: an error is said once, until something else is said, and followed by a pause.
///
/// Pauses are a quarter of client-go's (0.8 s, doubled up to 30 s, and up to as much again by chance): one actuator has few watches,
/// and whoever waits for what it does waits for them after an outage. Not by `WatchStreamExt::backoff`: that begins anew at every
/// [`Event::Init`], which comes before each list, also before one that fails.
struct Attempts<'a> {
    what: &'a str,
    said: String,
    pauses: DefaultBackoff,
}

impl<'a> Attempts<'a> {
    fn new(what: &'a str) -> Self {
        Self { what, said: String::new(), pauses: DefaultBackoff::default() }
    }

    /// Something was read.
    fn succeeded(&mut self) {
        self.pauses.reset();
        if !std::mem::take(&mut self.said).is_empty() {
            tracing::info!(what = self.what, "reading again");
        }
    }

    async fn failed(&mut self, error: &watcher::Error) {
        let text = match error {
            watcher::Error::InitialListFailed(error)
            | watcher::Error::WatchStartFailed(error)
            | watcher::Error::WatchFailed(error) => words(error),
            watcher::Error::WatchError(status) => format!("{} ({})", status.message, status.code),
            watcher::Error::NoResourceVersion => error.to_string(),
        };
        // Watches that have run out are the everyday case: they are listed anew.
        if matches!(error, watcher::Error::WatchError(status) if status.code == 410) {
            tracing::debug!(what = self.what, "the watch has run out; listing anew");
            self.pause().await;
        } else {
            self.failed_with(text).await;
        }
    }

    async fn failed_with(&mut self, text: String) {
        if self.said != text {
            tracing::warn!(what = self.what, error = text, "reading is interrupted; it goes on with pauses up to 15 s");
            self.said = text;
        }
        self.pause().await;
    }

    async fn pause(&mut self) {
        tokio::time::sleep(self.pauses.next().unwrap_or(ABSENT) / 4).await;
    }
}

/// Watches policies for ever.
pub async fn policies(shared: Arc<Shared>) {
    let resource = rules::resource();
    let (mut attempts, mut said) = (Attempts::new(&resource.kind), false);
    loop {
        let absent = || {
            if !std::mem::replace(&mut said, true) {
                tracing::warn!(
                    "there is no EnergyPolicy resource: install deploy/crds/energypolicies.yaml; until then workloads are only observed, by their label"
                );
            }
        };
        until_served(&shared, &resource, Source::Policies, &mut attempts, absent).await;
        served_policies(&shared, &resource, &mut attempts).await;
        said = false;
    }
}

/// Watches them until they are not served any more.
async fn served_policies(shared: &Shared, resource: &ApiResource, attempts: &mut Attempts<'_>) {
    let api = everywhere(shared, resource);
    let mut events = watcher(api, watcher::Config::default().page_size(PAGE)).boxed();
    let mut listing: Option<BTreeSet<RuleKey>> = None;
    while let Some(event) = events.next().await {
        let (policy, gone) = match event {
            Err(error) => {
                attempts.failed(&error).await;
                if is_absent(&error) {
                    return;
                }
                continue;
            }
            Ok(Event::Init) => {
                listing = Some(BTreeSet::new());
                continue;
            }
            Ok(Event::InitDone) => {
                attempts.succeeded();
                if let Some(there) = listing.take() {
                    shared.with_state(|state, now| state.rules_listed(&there, now));
                }
                shared.synced(Source::Policies);
                continue;
            }
            Ok(Event::Apply(policy) | Event::InitApply(policy)) => (policy, false),
            Ok(Event::Delete(policy)) => (policy, true),
        };
        attempts.succeeded();
        let name: RuleKey = (policy.namespace().unwrap_or_default(), policy.name_any());
        if let Some(there) = listing.as_mut().filter(|_| !gone) {
            there.insert(name.clone());
        }
        if gone {
            shared.with_state(|state, now| state.rule_gone(&name, now));
            shared.forget_policy(&name);
        } else if let Ok(policy) = value(&policy) {
            shared.saw_policy(&policy);
        }
    }
}

/// Watches namespaces for the pause, by their metadata only.
pub async fn namespaces(shared: Arc<Shared>) {
    let api = Api::<PartialObjectMeta<Namespace>>::all(shared.server.client.clone());
    let only = shared.settings.only_namespace.as_ref().map(|name| format!("metadata.name={name}"));
    let config = only.iter().fold(watcher::Config::default(), |config, only| config.fields(only));
    let mut events = watcher(api, config).boxed();
    let mut attempts = Attempts::new("Namespace");
    while let Some(event) = events.next().await {
        let (namespace, gone) = match event {
            Err(error) => {
                attempts.failed(&error).await;
                continue;
            }
            Ok(Event::Init) => continue,
            Ok(Event::InitDone) => {
                attempts.succeeded();
                shared.synced(Source::Namespaces);
                continue;
            }
            Ok(Event::Apply(namespace) | Event::InitApply(namespace)) => (namespace, false),
            Ok(Event::Delete(namespace)) => (namespace, true),
        };
        attempts.succeeded();
        let value = namespace.annotations().get(PAUSED).filter(|_| !gone);
        shared.with_state(|state, now| state.namespace(&namespace.name_any(), value.map(String::as_str), now));
    }
}

/// Watches the objects of a kind for ever; keeps those that opted in.
pub async fn objects(shared: Arc<Shared>, kind: &'static Kind) {
    // Who lost its policy is known only once the policies are.
    shared.wait_for(Source::Policies).await;
    let resource = resource(kind);
    let mut attempts = Attempts::new(kind.kind);
    loop {
        until_served(&shared, &resource, Source::Kind(kind.kind), &mut attempts, || {}).await;
        served_objects(&shared, kind, &resource, &mut attempts).await;
    }
}

/// Watches them until they are not served any more.
async fn served_objects(shared: &Shared, kind: &'static Kind, resource: &ApiResource, attempts: &mut Attempts<'_>) {
    let api = everywhere(shared, resource);
    let mut events = watcher(api, watcher::Config::default().page_size(PAGE)).boxed();
    let mut listing: Option<BTreeSet<Key>> = None;
    while let Some(event) = events.next().await {
        let (object, gone) = match event {
            Err(error) => {
                attempts.failed(&error).await;
                if is_absent(&error) {
                    return;
                }
                continue;
            }
            Ok(Event::Init) => {
                listing = Some(BTreeSet::new());
                continue;
            }
            Ok(Event::InitDone) => {
                attempts.succeeded();
                if let Some(there) = listing.take() {
                    shared.with_state(|state, _| state.listed(kind.kind, &there));
                }
                shared.synced(Source::Kind(kind.kind));
                continue;
            }
            Ok(Event::Apply(object) | Event::InitApply(object)) => (object, false),
            Ok(Event::Delete(object)) => (object, true),
        };
        attempts.succeeded();
        let key = Key { kind: kind.kind, namespace: object.namespace().unwrap_or_default(), name: object.name_any() };
        if gone {
            shared.with_state(|state, _| state.gone(&key));
            continue;
        }
        let labelled = object.labels().contains_key(OBSERVE);
        let marked = object.annotations().keys().any(|name| name.starts_with(PREFIX));
        if shared.with_state(|state, _| state.concerns(&key, labelled, marked)) {
            if let Some(there) = &mut listing {
                there.insert(key.clone());
            }
            if let Ok(object) = value(&object) {
                read(shared, kind, &object);
            }
        }
    }
}

/// Watches the pods on nodes, whatever namespace they are in, while power caps, clocks or MPS defaults are wanted, and not otherwise.
pub async fn pods(shared: Arc<Shared>) {
    let mut wanted = shared.agents().watched();
    loop {
        other(&mut wanted, true).await;
        tokio::select! {
            () = tenants(&shared) => {}
            () = other(&mut wanted, false) => {}
        }
        shared.agents().nodes.clear();
    }
}

/// Waits until it is wanted, or not any more.
async fn other(wanted: &mut tokio::sync::watch::Receiver<bool>, to: bool) {
    if wanted.wait_for(|wanted| *wanted == to).await.is_err() {
        std::future::pending::<()>().await;
    }
}

async fn tenants(shared: &Shared) {
    let api = Api::<DynamicObject>::all_with(shared.server.client.clone(), &pod_resource());
    let placed = format!("spec.nodeName!=,{RUNNING}");
    let mut events = watcher(api, watcher::Config::default().page_size(PAGE).fields(&placed)).boxed();
    let mut attempts = Attempts::new("Pod");
    while let Some(event) = events.next().await {
        let event = match event {
            Ok(event) => event,
            Err(error) => {
                shared.agents().watch_failed();
                attempts.failed(&error).await;
                continue;
            }
        };
        if !matches!(event, Event::Init) {
            attempts.succeeded();
        }
        let news = {
            let nodes = &mut shared.agents().nodes;
            match event {
                Event::Init => {
                    nodes.begin();
                    false
                }
                Event::InitDone => {
                    nodes.end();
                    true
                }
                Event::Apply(pod) | Event::InitApply(pod) => value(&pod).is_ok_and(|pod| nodes.saw(&pod)),
                Event::Delete(pod) => pod.uid().is_some_and(|uid| nodes.gone(&uid)),
            }
        };
        if news {
            shared.wishes.notify_one();
        }
    }
}

/// Takes an object into the state.
pub fn read(shared: &Shared, kind: &'static Kind, object: &Value) {
    match Seen::read(kind, object) {
        Ok(seen) => shared.with_state(|state, now| state.saw(seen, now)),
        Err(error) => tracing::warn!(kind = kind.kind, error, "an object cannot be read"),
    }
}
