//! Requests the settings of changes from the agents of the nodes, and follows their reports; the acting side of
//! [`crate::devices::target`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use eadt_cluster::{AppliedDecision, ClusterError, ClusterRemedy};
use futures::stream::{self, StreamExt, TryStreamExt};

use crate::api::lease;
use crate::context::KubernetesContext;
use crate::devices::gpu_pods::WorkloadPods;
use crate::devices::mps_default::MpsDefaultRequest;
use crate::devices::planner::{FIRST_PLACEMENT_WAIT, TargetAssignment};
use crate::devices::target::{self, DesiredGpuSettings, ExclusiveGpus, GpuPlacement, SettingsProgress};
use crate::index::workloads::WorkloadIndex;
use crate::objects::change::agent_settings;
use crate::objects::key::{ObjectKey, PolicyKey};
use crate::objects::object::WorkloadObject;

/// Nodes or workloads that are queried concurrently.
const CONCURRENT_QUERIES: usize = 8;
/// Queries for the workloads of pods in one pass: new pods may come meanwhile.
const MAX_QUERY_ROUNDS: u32 = 3;
/// If the nodes' pods are unknown for this long, settings are no longer requested, so that agents put them back.
const MAX_PLACEMENT_UNKNOWN: Duration = Duration::from_mins(3);
/// All held settings are checked again this often, since reports of collectors expire.
const REEVALUATION_PERIOD: Duration = Duration::from_secs(15);
/// Shortest pause between two rounds, however much news there is.
const MIN_ROUND_PAUSE: Duration = Duration::from_millis(200);

/// Runs for ever.
pub async fn run(shared: Arc<KubernetesContext>) {
    let mut leading = shared.leadership.subscribe();
    let mut round = tokio::time::Instant::now();
    loop {
        if shared.leadership.term().is_none() {
            // Only the leader may request settings.
            shared.device_planner().step_down();
            lease::term_changed(&mut leading).await;
            continue;
        }
        let all = tokio::time::Instant::now() >= round;
        if all {
            round = tokio::time::Instant::now() + REEVALUATION_PERIOD;
        }
        let (met, first) = {
            let agents = shared.device_planner();
            (agents.took_over, agents.wanted_intents.is_none())
        };
        if met && shared.all_synced() {
            reconcile_devices(&shared, all || first).await;
        }
        tokio::time::sleep(MIN_ROUND_PAUSE).await;
        tokio::select! {
            () = shared.device_targets_changed.notified() => {}
            _ = leading.changed() => {}
            () = tokio::time::sleep_until(round) => {}
        }
    }
}

/// Collects the present targets of workloads, and the MPS defaults that they request for their nodes.
fn collect_targets(
    state: &mut WorkloadIndex,
) -> (BTreeMap<ObjectKey, DesiredGpuSettings>, BTreeMap<ObjectKey, MpsDefaultRequest>) {
    let desired_settings =
        state.entries().filter_map(|(key, entry)| Some((key.clone(), DesiredGpuSettings::from_entry(entry)?))).collect();
    (
        desired_settings,
        state.entries().filter_map(|(key, entry)| Some((key.clone(), MpsDefaultRequest::from_entry(entry)?))).collect(),
    )
}

/// Requests the present targets and withdraws the rest. `all`: also checks targets without news.
async fn reconcile_devices(shared: &KubernetesContext, all: bool) {
    let followed: BTreeMap<ObjectKey, WorkloadPods> = shared.read_index(|state| {
        let wished = state.entries().filter(|(_, entry)| {
            DesiredGpuSettings::from_entry(entry).is_some() || MpsDefaultRequest::from_entry(entry).is_some()
        });
        wished.map(|(key, entry)| (key.clone(), WorkloadPods::unresolved(&entry.object))).collect()
    });
    let complete = {
        let mut agents = shared.device_planner();
        agents.set_pod_watch(!followed.is_empty());
        agents.gpu_pods.track_workloads(followed);
        agents.gpu_pods.is_complete()
    };
    if complete {
        for _ in 0..MAX_QUERY_ROUNDS {
            if !resolve_unknown_pods(shared).await {
                break;
            }
        }
    }
    let now = shared.now();
    let mut agents = shared.device_planner();
    // Read while no other task can change the targets: a withdrawn target must not return, and a new one must not be lost.
    let (desired_settings, requests) = shared.read_index(collect_targets);
    if let Some(lasts) = agents.placement_unknown_for(&desired_settings.keys().chain(requests.keys()).collect(), now) {
        if lasts >= MAX_PLACEMENT_UNKNOWN && agents.wanted_intents.take().is_some() {
            agents.withdraw_all();
            tracing::warn!(
                seconds = lasts.as_secs(),
                "the nodes of pods are not known, and so not the workloads of their GPUs: power caps, clocks and MPS defaults are no longer requested"
            );
        }
        if agents.wanted_intents.is_none() {
            if lasts >= FIRST_PLACEMENT_WAIT {
                let messages = agents.placement_unknown_messages(&requests);
                drop(agents);
                publish_mps_default_messages(shared, messages);
            }
            return;
        }
    }
    let changed = agents.gpu_pods.take_changed_nodes();
    let mut before = std::mem::take(&mut agents.assignments);
    let assign_target = |(key, desired): (ObjectKey, DesiredGpuSettings)| {
        let known = before.remove(&key);
        let undisturbed = |place: &GpuPlacement| !place.is_empty() && place.keys().all(|node| !changed.contains(node));
        let known = match known {
            Some(known) if !all && known.target == desired && undisturbed(&known.placement) => return Some((key, known)),
            known => known.map(|known| known.placement),
        };
        let place = match agents.gpu_pods.placement(&key, &agents.holders, now) {
            Some(Ok(place)) => place,
            Some(Err(reason)) => {
                if all || known.is_some() {
                    tracing::warn!(%key, decision = desired.decision_id, reason, "power caps and clocks are withdrawn");
                }
                return None;
            }
            // A target is kept until more is known.
            None => known?,
        };
        Some((key, TargetAssignment { target: desired, placement: place }))
    };
    let addressed = desired_settings.into_iter().filter_map(assign_target).collect();
    agents.assignments = addressed;
    let messages = agents.agree_mps_defaults(&requests, now);
    agents.plan_intents();
    drop(agents);
    publish_mps_default_messages(shared, messages);
}

fn publish_mps_default_messages(shared: &KubernetesContext, messages: BTreeMap<PolicyKey, Option<String>>) {
    let mut statuses = shared.statuses();
    for (policy, why) in messages {
        statuses.set_mps_default(policy, why);
    }
}

/// Requests the owners of unknown pods; returns false if all are known.
async fn resolve_unknown_pods(shared: &KubernetesContext) -> bool {
    let unknown = shared.device_planner().gpu_pods.take_unresolved();
    let any = !unknown.is_empty();
    let queries = stream::iter(unknown).map(|key| async move {
        let observed = shared.read_index(|state| state.entry(&key).map(|entry| entry.object.clone()));
        let pods = match observed {
            Some(observed) => match shared.server.pods(&observed).await {
                Ok(pods) => Some(pods.into_iter().map(|pod| pod.uid).collect()),
                Err(error) => {
                    tracing::warn!(%key, %error, "the nodes of the workload's pods cannot be read");
                    None
                }
            },
            None => None,
        };
        shared.device_planner().gpu_pods.resolve(&key, pods);
    });
    queries.buffer_unordered(CONCURRENT_QUERIES).collect::<()>().await;
    any
}

/// Returns the GPUs that a workload has for itself, or the others on its nodes, by the API server's present answer.
async fn query_placement(
    shared: &KubernetesContext,
    observed: &WorkloadObject,
) -> Result<Result<GpuPlacement, String>, ClusterError> {
    let own = shared.server.pods(observed).await?;
    let nodes = target::nodes_of_pods(&own);
    let tenants: BTreeMap<_, _> = stream::iter(nodes)
        .map(|node| async move { Ok::<_, ClusterError>((node.clone(), shared.server.gpu_pods(&node).await?)) })
        .buffer_unordered(CONCURRENT_QUERIES)
        .try_collect()
        .await?;
    let own = own.into_iter().map(|pod| pod.uid).collect();
    Ok(target::find_placement(&own, &tenants, &shared.device_planner().holders, shared.now()))
}

/// Checks that a target can be held, before anything of it is written; returns its GPUs.
pub async fn check_target(
    shared: &KubernetesContext,
    observed: &WorkloadObject,
    desired: &DesiredGpuSettings,
) -> Result<GpuPlacement, ClusterError> {
    let refuse = |reason: String| ClusterError::new(ClusterRemedy::Refused, reason);
    let place = query_placement(shared, observed).await?.map_err(refuse)?;
    // Waiting would hold up the decisions for other workloads.
    if let Some(why) = place.values().find_map(|gpus| if let ExclusiveGpus::NotYet(why) = gpus { Some(why) } else { None }) {
        return Err(refuse(why.clone()));
    }
    if place.is_empty() {
        return Err(refuse("none of its pods runs on a node, so that no agent can be asked".into()));
    }
    let now = shared.now();
    let agents = shared.device_planner();
    for (node, whose) in &place {
        target::check_supported(desired, node, whose, agents.device_states.get(node), now).map_err(refuse)?;
    }
    Ok(place)
}

/// Has agents keep the settings that were just written for a workload.
pub fn assign_target(shared: &KubernetesContext, key: &ObjectKey, place: GpuPlacement) {
    let mut agents = shared.device_planner();
    match shared.read_index(|state| state.entry(key).and_then(DesiredGpuSettings::from_entry)) {
        Some(desired) => drop(agents.assignments.insert(key.clone(), TargetAssignment { target: desired, placement: place })),
        None => drop(agents.assignments.remove(key)),
    }
    // Before the first look others are not known, and would be withdrawn.
    if agents.wanted_intents.is_some() {
        agents.plan_intents();
    }
}

/// Returns whether agents hold the settings of a change that is rolling out.
pub async fn target_status(
    shared: &KubernetesContext,
    key: &ObjectKey,
    observed: &WorkloadObject,
    applied: &AppliedDecision,
) -> Result<SettingsProgress, ClusterError> {
    if agent_settings(&applied.layout) == agent_settings(&applied.before) {
        return Ok(SettingsProgress::Held);
    }
    let Some(desired) = shared.read_index(|state| state.entry(key).and_then(DesiredGpuSettings::from_entry)) else {
        let has_target = DesiredGpuSettings::new("", "", &applied.layout).is_some();
        let paused = "power caps and clocks are withdrawn: the policy does not allow them now";
        return Ok(if has_target { SettingsProgress::Pending(paused.into()) } else { SettingsProgress::Held });
    };
    let place = match query_placement(shared, observed).await? {
        Ok(place) => place,
        Err(reason) => return Ok(SettingsProgress::Refused(reason)),
    };
    let moved = shared.device_planner().assignments.get(key).is_none_or(|addressed| addressed.placement != place);
    if moved {
        assign_target(shared, key, place.clone());
    }
    Ok(target::target_status(&desired, &place, &shared.device_planner().device_states))
}
