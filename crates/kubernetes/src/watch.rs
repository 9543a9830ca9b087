//! Watches: what the API server says goes into the state. Lists come in pages, watches go on where they broke off (also after
//! 410 Gone), and errors are said once and tried again with growing pauses.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, DynamicObject};
use kube::core::ApiResource;
use kube::core::PartialObjectMeta;
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{DefaultBackoff, Event};
use kube::runtime::{WatchStreamExt, watcher};
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

/// The pauses between attempts to watch: a quarter of client-go's (0.8 s, doubled up to 30 s, and up to as much again by chance). One
/// actuator has few watches, and whoever waits for what it does waits for them after an outage.
#[derive(Default)]
struct Pauses(DefaultBackoff);

impl Iterator for Pauses {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        self.0.next().map(|pause| pause / 4)
    }
}

impl Backoff for Pauses {
    fn reset(&mut self) {
        self.0.reset();
    }
}

/// What is watched, as a part of being ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    Policies,
    Namespaces,
    Kind(&'static str),
}

/// Waits until the API server serves a resource; true where it does.
async fn served(shared: &Shared, resource: &ApiResource) -> bool {
    match shared.server.client.list_api_group_resources(&resource.api_version).await {
        Ok(list) => list.resources.iter().any(|known| known.kind == resource.kind),
        Err(Error::Api(status)) if status.code == 404 => false,
        // Perhaps it is; the watch will say.
        Err(_) => true,
    }
}

/// The objects of a resource, as far as they are looked at.
fn everywhere(shared: &Shared, resource: &ApiResource) -> Api<DynamicObject> {
    let client = shared.server.client.clone();
    match &shared.settings.only_namespace {
        Some(namespace) => Api::namespaced_with(client, namespace, resource),
        None => Api::all_with(client, resource),
    }
}

/// Says an error once, until something else is said.
#[derive(Default)]
struct Once(String);

impl Once {
    fn say(&mut self, what: &str, error: &watcher::Error) {
        let text = match error {
            watcher::Error::InitialListFailed(error)
            | watcher::Error::WatchStartFailed(error)
            | watcher::Error::WatchFailed(error) => words(error),
            watcher::Error::WatchError(status) => format!("{} ({})", status.message, status.code),
            watcher::Error::NoResourceVersion => error.to_string(),
        };
        // Watches that have run out are the everyday case: they are listed anew.
        if matches!(error, watcher::Error::WatchError(status) if status.code == 410) {
            tracing::debug!(what, "the watch has run out; listing anew");
        } else if self.0 != text {
            tracing::warn!(what, error = text, "watching is interrupted; it goes on with pauses up to 15 s");
            self.0 = text;
        }
    }

    fn clear(&mut self, what: &str) {
        if !std::mem::take(&mut self.0).is_empty() {
            tracing::info!(what, "watching again");
        }
    }
}

/// Watches policies for ever.
pub async fn policies(shared: Arc<Shared>) {
    let resource = rules::resource();
    let mut said = false;
    while !served(&shared, &resource).await {
        if !std::mem::replace(&mut said, true) {
            tracing::warn!(
                "there is no EnergyPolicy resource: install deploy/crds/energypolicies.yaml; until then workloads are only observed, by their label"
            );
        }
        shared.synced(Source::Policies);
        tokio::time::sleep(ABSENT).await;
    }
    let api = everywhere(&shared, &resource);
    let mut events = watcher(api, watcher::Config::default().page_size(PAGE)).backoff(Pauses::default()).boxed();
    let (mut listing, mut once): (Option<BTreeSet<RuleKey>>, _) = (None, Once::default());
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => {
                once.clear("EnergyPolicy");
                let (policy, gone) = match event {
                    Event::Init => {
                        listing = Some(BTreeSet::new());
                        continue;
                    }
                    Event::InitDone => {
                        if let Some(there) = listing.take() {
                            shared.with_state(|state, now| state.rules_listed(&there, now));
                        }
                        shared.synced(Source::Policies);
                        continue;
                    }
                    Event::Apply(policy) | Event::InitApply(policy) => (policy, false),
                    Event::Delete(policy) => (policy, true),
                };
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
            Err(error) => once.say("EnergyPolicy", &error),
        }
    }
}

/// Watches namespaces for the pause, by their metadata only.
pub async fn namespaces(shared: Arc<Shared>) {
    let api = Api::<PartialObjectMeta<Namespace>>::all(shared.server.client.clone());
    let only = shared.settings.only_namespace.as_ref().map(|name| format!("metadata.name={name}"));
    let config = only.iter().fold(watcher::Config::default(), |config, only| config.fields(only));
    let mut events = watcher(api, config).backoff(Pauses::default()).boxed();
    let mut once = Once::default();
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => {
                once.clear("Namespace");
                let (namespace, gone) = match event {
                    Event::Init => continue,
                    Event::InitDone => {
                        shared.synced(Source::Namespaces);
                        continue;
                    }
                    Event::Apply(namespace) | Event::InitApply(namespace) => (namespace, false),
                    Event::Delete(namespace) => (namespace, true),
                };
                let value = namespace.annotations().get(PAUSED).filter(|_| !gone);
                shared.with_state(|state, now| state.namespace(&namespace.name_any(), value.map(String::as_str), now));
            }
            Err(error) => once.say("Namespace", &error),
        }
    }
}

/// Watches the objects of a kind for ever; keeps those that opted in.
pub async fn objects(shared: Arc<Shared>, kind: &'static Kind) {
    // Who lost its policy is known only once the policies are.
    shared.wait_for(Source::Policies).await;
    let resource = resource(kind);
    while !served(&shared, &resource).await {
        shared.synced(Source::Kind(kind.kind));
        tokio::time::sleep(ABSENT).await;
    }
    let api = everywhere(&shared, &resource);
    let mut events = watcher(api, watcher::Config::default().page_size(PAGE)).backoff(Pauses::default()).boxed();
    let (mut listing, mut once): (Option<BTreeSet<Key>>, _) = (None, Once::default());
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => {
                once.clear(kind.kind);
                let (object, gone) = match event {
                    Event::Init => {
                        listing = Some(BTreeSet::new());
                        continue;
                    }
                    Event::InitDone => {
                        if let Some(there) = listing.take() {
                            shared.with_state(|state, _| state.listed(kind.kind, &there));
                        }
                        shared.synced(Source::Kind(kind.kind));
                        continue;
                    }
                    Event::Apply(object) | Event::InitApply(object) => (object, false),
                    Event::Delete(object) => (object, true),
                };
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
                        read(&shared, kind, &object);
                    }
                }
            }
            Err(error) => once.say(kind.kind, &error),
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
    let mut events = watcher(api, watcher::Config::default().page_size(PAGE).fields(&placed)).backoff(Pauses::default()).boxed();
    let mut once = Once::default();
    while let Some(event) = events.next().await {
        let event = match event {
            Ok(event) => event,
            Err(error) => {
                once.say("Pod", &error);
                shared.agents().watch_failed();
                continue;
            }
        };
        once.clear("Pod");
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
