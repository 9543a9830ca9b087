//! Writes Kubernetes Events on workloads and their policies.

use std::sync::Arc;
use std::time::Duration;

use eadt_schemas::fnv::Fnv1a;
use eadt_schemas::v1::ActuationOutcome;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::{Api, PostParams};

use crate::api::client::error_text;
use crate::context::KubernetesContext;
use crate::objects::key::ObjectKey;
use crate::policy::resource;
use crate::status::outbox::WorkloadEvent;

const CONTROLLER: &str = "eadt.dev/actuator";
/// Pause after a failed write.
const RETRY: Duration = Duration::from_secs(2);
const ATTEMPTS: u32 = 3;
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// Returns the reason of an Event, as `kubectl` shows it.
fn event_reason(outcome: ActuationOutcome) -> &'static str {
    match outcome {
        ActuationOutcome::Applied => "Applied",
        ActuationOutcome::Ready => "Ready",
        ActuationOutcome::Refused => "Refused",
        ActuationOutcome::Recommended => "Recommended",
        ActuationOutcome::RolledBack => "RolledBack",
        ActuationOutcome::Failed => "Failed",
    }
}

/// Writes Events for ever.
pub async fn write_events(shared: Arc<KubernetesContext>) {
    let mut every = tokio::time::interval(Duration::from_millis(200));
    every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        every.tick().await;
        let (workload_event, dropped) = {
            let mut statuses = shared.statuses();
            (statuses.queued_events.pop_front(), std::mem::take(&mut statuses.dropped))
        };
        if dropped > 0 {
            tracing::warn!(dropped, "Events were dropped: the API server is too slow");
        }
        let Some(workload_event) = workload_event else { continue };
        every.reset_immediately();
        for reference in event_references(&shared, &workload_event.workload) {
            publish_event(&shared, &workload_event, reference).await;
        }
    }
}

/// Returns the workload, and its policy.
fn event_references(shared: &KubernetesContext, workload: &str) -> Vec<ObjectReference> {
    shared.read_index(|state| {
        let Some(entry) = state.find(workload) else { return vec![] };
        let observed = &entry.object;
        let mut references = vec![ObjectReference {
            api_version: Some(observed.kind.api_version()),
            kind: Some(observed.kind.kind.into()),
            namespace: Some(observed.namespace.clone()),
            name: Some(observed.name.clone()),
            uid: Some(observed.uid.clone()),
            ..ObjectReference::default()
        }];
        let policy = resource::policy_resource();
        references.extend(state.policies_for(&ObjectKey::of(observed)).into_iter().map(|rule| ObjectReference {
            api_version: Some(policy.api_version.clone()),
            kind: Some(policy.kind.clone()),
            namespace: Some(rule.namespace.clone()),
            name: Some(rule.name.clone()),
            uid: Some(rule.uid.clone()),
            ..ObjectReference::default()
        }));
        references
    })
}

async fn publish_event(shared: &KubernetesContext, workload_event: &WorkloadEvent, regarding: ObjectReference) {
    let namespace = regarding.namespace.clone().unwrap_or_default();
    let event = build_event(workload_event, regarding, &shared.settings.identity());
    let api: Api<Event> = Api::namespaced(shared.server.client.clone(), &namespace);
    for attempt in 1..=ATTEMPTS {
        let error = match tokio::time::timeout(CALL_TIMEOUT, api.create(&PostParams::default(), &event)).await {
            Ok(Ok(_)) => return,
            // The Event was written before a restart, or by an attempt whose answer got lost.
            Ok(Err(kube::Error::Api(status))) if status.code == 409 => return,
            Ok(Err(error)) => error_text(&error),
            Err(_) => format!("no answer within {} s", CALL_TIMEOUT.as_secs()),
        };
        if attempt == ATTEMPTS {
            tracing::warn!(workload = workload_event.workload, error, "an Event could not be written");
        } else {
            tokio::time::sleep(RETRY).await;
        }
    }
}

fn build_event(workload_event: &WorkloadEvent, regarding: ObjectReference, identity: &str) -> Event {
    // The same fact has the same name, so that it is written once, also across restarts.
    let kind = regarding.kind.as_deref().unwrap_or_default();
    let id = Fnv1a::of(format!("{}/{}/{kind}", workload_event.decision, event_reason(workload_event.outcome)).as_bytes());
    let name = regarding.name.clone().unwrap_or_default();
    let now = k8s_openapi::jiff::Timestamp::now();
    let bad = matches!(workload_event.outcome, ActuationOutcome::RolledBack | ActuationOutcome::Failed);
    Event {
        metadata: ObjectMeta {
            name: Some(format!("{}.{id:016x}", &name[..name.len().min(200)])),
            namespace: regarding.namespace.clone(),
            ..ObjectMeta::default()
        },
        event_time: Some(MicroTime(now)),
        type_: Some(if bad { "Warning" } else { "Normal" }.into()),
        action: Some(if workload_event.outcome == ActuationOutcome::RolledBack { "RollBack" } else { "Change" }.into()),
        reason: Some(event_reason(workload_event.outcome).into()),
        note: Some(workload_event.note.clone()),
        reporting_controller: Some(CONTROLLER.into()),
        reporting_instance: Some(identity.chars().take(128).collect()),
        regarding: Some(regarding),
        ..Event::default()
    }
}
