//! The cluster as the actuator sees it, and what runs behind it.

use std::sync::Arc;
use std::time::Duration;

use eadt_cluster::{
    ApprovedDecision, Cluster, ClusterChanges, ClusterError, ClusterRemedy, DeviceAgents, ManagedWorkload, RollbackRequest,
    WorkloadChange,
};
use eadt_schemas::EventTime;
use eadt_schemas::v1::{Actuation, Decision, DeviceHolders, DeviceIntent, DeviceState, Origin};
use eadt_tasks::KUBERNETES;
use kube::Client;
use tokio::runtime::Handle;

use crate::api::kubeconfig;
use crate::api::lease::LeaseCandidate;
use crate::context::{ClockFn, KubernetesContext};
use crate::devices::target::{self, DesiredGpuSettings, GpuPlacement, SettingsProgress};
use crate::index::watch;
use crate::index::workloads::WorkloadEntry;
use crate::objects::change::{self, PlannedWrite, agent_settings};
use crate::objects::effective_policy::EffectivePolicy;
use crate::objects::key::ObjectKey;
use crate::objects::kinds::{WORKLOAD_KINDS, values_at};
use crate::objects::object::WorkloadObject;
use crate::objects::preflight::RolloutDemand;
use crate::objects::rollout::describe_obstacles;
use crate::reconcile::{devices, workloads};
use crate::settings::KubernetesSettings;
use crate::status::{events, notify, write};

/// A new leader reverts no earlier change at first. An API server that was away stopped the controllers' rollouts as well, and
/// they come back with pauses of up to half a minute.
const NEW_LEADER_GRACE: Duration = Duration::from_mins(1);

/// Kubernetes as the actuator sees it. Its calls block, so they are made from plain threads.
#[derive(Debug, Clone)]
pub struct KubernetesCluster {
    shared: Arc<KubernetesContext>,
    runtime: Handle,
}

/// The reason why the cluster cannot be reached at all.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("no context {context} can be used: {detail}; see kubectl config get-contexts")]
    Context { context: String, detail: String },
    #[error("no cluster is configured: {detail}; name a context, or run inside a cluster with a service account")]
    Nowhere { detail: String },
    #[error("{detail}")]
    Client { detail: String },
}

/// Returns the client of a context of the user's kubeconfig; `None` for the current one, or for the cluster that this process
/// runs in.
pub async fn connect(context: Option<&str>) -> Result<Client, ConnectError> {
    let config = match context {
        Some(context) => kubeconfig::from_context(Some(context))
            .await
            .map_err(|detail| ConnectError::Context { context: context.to_owned(), detail })?,
        None => kubeconfig::infer().await.map_err(|detail| ConnectError::Nowhere { detail })?,
    };
    kubeconfig::client(config).await.map_err(|detail| ConnectError::Client { detail })
}

impl KubernetesCluster {
    /// Returns a cluster behind a client. Nothing happens until [`KubernetesCluster::run`] does.
    pub fn new(client: Client, settings: KubernetesSettings, origin: Origin, clock: ClockFn) -> Self {
        let shared = Arc::new(KubernetesContext::new(client, settings, origin, clock));
        Self { shared, runtime: Handle::current() }
    }

    /// Runs the watches and the leader election, and while it leads also the rollouts and statuses; returns after `stop`.
    pub async fn run(&self, stop: impl Future<Output = ()>) {
        let shared = &self.shared;
        let settings = &shared.settings;
        let client = shared.server.client.clone();
        let namespace = settings.namespace.clone().unwrap_or_else(|| client.default_namespace().to_owned());
        let candidate = LeaseCandidate::new(client, &namespace, &settings.lease, &settings.identity());
        KUBERNETES.begin();
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(watch::watch_policies(shared.clone()));
        tasks.spawn(watch::watch_namespaces(shared.clone()));
        for kind in &WORKLOAD_KINDS {
            tasks.spawn(watch::watch_objects(shared.clone(), kind));
        }
        tasks.spawn(watch::watch_gpu_pods(shared.clone()));
        tasks.spawn(workloads::run(shared.clone()));
        tasks.spawn(devices::run(shared.clone()));
        tasks.spawn(events::write_events(shared.clone()));
        tasks.spawn(write::write_statuses(shared.clone()));
        let ended = async {
            // None of them ends by itself.
            match tasks.join_next().await {
                Some(Err(error)) => KUBERNETES.failed(&error.to_string()),
                _ => KUBERNETES.failed("a part of the Kubernetes backend ended by itself"),
            }
        };
        let stop = async {
            tokio::select! {
                () = stop => {}
                () = ended => {}
            }
        };
        candidate.run(&shared.leadership, stop).await;
    }

    /// Runs for as long as this work takes, which needs it, and gives the Lease back then; `None` if leadership ended before.
    pub async fn run_for<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let (end, ended) = tokio::sync::oneshot::channel::<()>();
        let running = self.run(async { drop(ended.await) });
        tokio::pin!(running, work);
        tokio::select! {
            done = &mut work => {
                drop(end);
                running.await;
                Some(done)
            }
            () = &mut running => None,
        }
    }

    /// Returns a channel that reports the begin and end of leadership.
    pub fn subscribe_leadership(&self) -> tokio::sync::watch::Receiver<bool> {
        self.shared.leadership.subscribe()
    }

    /// Returns an object as the watch last reported it.
    fn watched_object(&self, key: &ObjectKey) -> Option<WorkloadObject> {
        self.shared.read_index(|state| state.entry(key).map(|entry| entry.object.clone()))
    }

    /// Returns the agents that a change needs, and the GPUs; `None` if it changes no setting of agents, or was already made.
    async fn check_device_target(&self, key: &ObjectKey, change: &WorkloadChange) -> Result<Option<GpuPlacement>, ClusterError> {
        let Some(observed) = self.watched_object(key) else { return Ok(None) };
        let applied = observed.change_annotation.as_ref().and_then(|mark| mark.applied.as_ref());
        if applied.is_some_and(|applied| applied.decision_id == change.decision_id)
            || agent_settings(&observed.layout) == agent_settings(&change.layout)
        {
            return Ok(None);
        }
        match DesiredGpuSettings::new(&change.workload, &change.decision_id, &change.layout) {
            Some(desired) => devices::check_target(&self.shared, &observed, &desired).await.map(Some),
            None => Ok(Some(GpuPlacement::new())),
        }
    }

    /// Checks that no process gets more of a GPU's threads than its node's MPS default, whatever it requests.
    async fn check_mps_defaults(&self, key: &ObjectKey, change: &WorkloadChange) -> Result<(), ClusterError> {
        let Some(observed) = self.watched_object(key) else { return Ok(()) };
        let raised = change
            .layout
            .mps_thread_percentage
            .filter(|requested| observed.layout.mps_thread_percentage.is_none_or(|now| *requested > now));
        let Some(requested) = raised else { return Ok(()) };
        let nodes = target::nodes_of_pods(&self.shared.server.pods(&observed).await?);
        let agents = self.shared.device_planner();
        let lower =
            nodes.iter().find_map(|node| Some((node, agents.reported_mps_default(node).filter(|default| *default < requested)?)));
        match lower {
            Some((node, default)) => {
                let reason = format!("the MPS default of node {node} is {default} %, lower than the requested {requested} %");
                Err(ClusterError::new(ClusterRemedy::Refused, reason))
            }
            None => Ok(()),
        }
    }

    /// Checks quotas and disruption budgets for a change that replaces pods.
    async fn check_preflight(&self, key: &ObjectKey, change: &WorkloadChange) -> Result<(), ClusterError> {
        let (Some(observed), Some(kind)) = (self.watched_object(key), key.kind()) else { return Ok(()) };
        let applied = observed.change_annotation.as_ref().and_then(|mark| mark.applied.as_ref());
        let made = applied.is_some_and(|applied| applied.decision_id == change.decision_id);
        let pods_of = |layout: &eadt_schemas::v1::Layout| {
            (layout.mps_thread_percentage, layout.replicas, layout.world_size, layout.local_world_size)
        };
        if made || pods_of(&change.layout) == pods_of(&observed.layout) {
            return Ok(());
        }
        // The plan's own read reports that the object is gone, and the reason.
        let Some(object) = self.shared.server.get(kind, &key.namespace, &key.name).await? else { return Ok(()) };
        let Some((_, template)) = kind.templates.last().and_then(|place| values_at(&object, place).into_iter().next()) else {
            return Ok(());
        };
        let demand = if change.layout.replicas == observed.layout.replicas {
            RolloutDemand::of_rollout(kind, &object, observed.pods)
        } else {
            let ranks = change.layout.replicas.unwrap_or(0).saturating_sub(observed.layout.replicas.unwrap_or(0));
            // Processes of different worlds do not meet: all are replaced together.
            RolloutDemand { pods_away: observed.pods, pods_added: ranks.div_ceil(observed.ranks_per_pod.max(1)) }
        };
        let quotas = if demand.pods_added > 0 { self.shared.server.quotas(&key.namespace).await? } else { Vec::new() };
        let budgets = self.shared.server.budgets(&key.namespace).await?;
        match demand.find_obstacle(&quotas, &budgets, template, observed.pods, change.reverts) {
            Some(reason) => Err(ClusterError::new(ClusterRemedy::Refused, reason)),
            None => Ok(()),
        }
    }

    async fn roll_back_now(&self, back: &RollbackRequest) -> Result<(), ClusterError> {
        let key = self.shared.workload_key(&back.workload)?;
        if back.by_job {
            return self.roll_back_by_job(&key, back).await;
        }
        let entry: Option<WorkloadEntry> = self.shared.update_index(|state, _| state.entry(&key).cloned());
        let changed = entry
            .as_ref()
            .and_then(|entry| entry.object.change_annotation.as_ref()?.applied.as_ref())
            .map(|applied| applied.time);
        if let (Some(changed), Some(led)) = (changed, self.shared.leadership.led_for())
            && let Some(left) = remaining_grace(self.shared.now().seconds_since(changed), led)
        {
            let (led, left) = (led.as_secs(), left.as_secs() + 1);
            let detail = format!("taking back {key}: leading for {led} s only, so that its rollout has {left} s more");
            return Err(ClusterError::new(ClusterRemedy::Retry, detail));
        }
        let mut held = true;
        let what = match entry {
            // The reason is better with the present status; without it, the rollback must not wait.
            Some(entry) => {
                let pods = self.shared.server.pods(&entry.object).await.unwrap_or_default();
                let applied = entry.object.change_annotation.as_ref().and_then(|mark| mark.applied.as_ref());
                let standing = match applied {
                    Some(applied) => {
                        devices::target_status(&self.shared, &key, &entry.object, applied).await.unwrap_or(SettingsProgress::Held)
                    }
                    None => SettingsProgress::Held,
                };
                let followed = applied.is_none_or(|applied| self.shared.read_index(|s| s.job_follows(&key, applied)));
                held = standing == SettingsProgress::Held && followed;
                match standing {
                    SettingsProgress::Pending(what) | SettingsProgress::Refused(what) => what,
                    SettingsProgress::Held => describe_obstacles(&entry.object, &pods),
                }
            }
            None => String::new(),
        };
        let reason = if what.is_empty() { back.reason.clone() } else { format!("{}: {what}", back.reason) };
        let tried = format!("rolling back {key}");
        let now = self.shared.now();
        let plan = |observed: &WorkloadObject, _: &EffectivePolicy, _: bool, term: u64| {
            // It was only not noted yet.
            let ready =
                held && observed.progress.complete() && observed.change_annotation.as_ref().is_some_and(|mark| !mark.resume);
            match if ready { change::plan_ready(observed, now, term)? } else { PlannedWrite::Nothing } {
                PlannedWrite::Nothing => change::plan_roll_back(observed, back, &reason, now, term),
                noted @ PlannedWrite::Write(_) => Ok(noted),
            }
        };
        self.shared.write(&key, &tried, plan).await.map(drop)
    }

    /// Rolls back a change that the job took back: its pods and the agents of their nodes have no part in it.
    async fn roll_back_by_job(&self, key: &ObjectKey, back: &RollbackRequest) -> Result<(), ClusterError> {
        let now = self.shared.now();
        let plan = |observed: &WorkloadObject, _: &EffectivePolicy, _: bool, term: u64| {
            change::plan_roll_back(observed, back, &back.reason, now, term)
        };
        self.shared.write(key, &format!("rolling back {key}"), plan).await.map(drop)
    }
}

/// Returns the remaining time of a rollout that began before this process led; `None` if there is no such time. `ago`: seconds
/// since the change.
fn remaining_grace(ago: f64, led: Duration) -> Option<Duration> {
    (ago > led.as_secs_f64()).then(|| NEW_LEADER_GRACE.checked_sub(led)).flatten().filter(|left| !left.is_zero())
}

impl Cluster for KubernetesCluster {
    fn now(&self) -> EventTime {
        self.shared.now()
    }

    fn revision(&self) -> u64 {
        self.shared.revision()
    }

    fn workloads(&self) -> Result<Vec<ManagedWorkload>, ClusterError> {
        Ok(self.shared.synced_index()?.workloads())
    }

    fn changes(&self, since: Option<u64>) -> Result<ClusterChanges, ClusterError> {
        Ok(self.shared.synced_index()?.changes(since))
    }

    fn apply(&self, change: &WorkloadChange) -> Result<ManagedWorkload, ClusterError> {
        let key = self.shared.workload_key(&change.workload)?;
        let what = format!("changing {key}");
        let shared = &self.shared;
        let approved = notify::is_approved(shared, &change.decision_id, &change.workload);
        if shared.update_index(|state, _| state.entry(&key).is_some_and(WorkloadEntry::may_take_over)) {
            self.runtime.block_on(workloads::take_over_fields(shared, &key, approved))?;
        }
        self.runtime.block_on(self.check_preflight(&key, change))?;
        self.runtime.block_on(self.check_mps_defaults(&key, change))?;
        let place = self.runtime.block_on(self.check_device_target(&key, change))?;
        let plan = |observed: &WorkloadObject, effective_policy: &EffectivePolicy, paused: bool, term: u64| {
            change::plan_apply(observed, effective_policy, paused, approved, change, shared.now(), term)
        };
        let written = self.runtime.block_on(shared.write(&key, &what, plan))?;
        if let Some(place) = place {
            devices::assign_target(shared, &key, place);
        }
        if let Some(after) = written {
            let wanted =
                after.change_annotation.as_ref().and_then(|mark| mark.applied.as_ref()).map(|applied| applied.generation);
            if wanted != Some(after.layout_generation()) {
                return Err(ClusterError::new(
                    ClusterRemedy::Refused,
                    format!("{what}: something between here and the store (an admission webhook) undid the change"),
                ));
            }
        }
        shared.managed_workload(&change.workload)
    }

    fn roll_back(&self, back: &RollbackRequest) -> Result<ManagedWorkload, ClusterError> {
        self.runtime.block_on(self.roll_back_now(back))?;
        self.shared.managed_workload(&back.workload)
    }

    fn recommend(&self, decision: &Decision) -> Result<(), ClusterError> {
        let rule = self.shared.update_index(|state, _| {
            let key = state.find(&decision.workload).map(|entry| ObjectKey::of(&entry.object))?;
            state.policies_for(&key).first().map(|rule| (rule.namespace.clone(), rule.name.clone()))
        });
        if let Some(rule) = rule {
            self.shared.statuses().on_recommendation(&rule, decision);
            self.shared.reconcile_due.notify_one();
        }
        Ok(())
    }

    fn restarts_barred(&self, workload: &str) -> Option<String> {
        self.shared.update_index(|state, now| {
            let entry = state.find(workload)?;
            state.effective_policy(&entry.object, now).and_then(|(effective_policy, ..)| effective_policy.no_restarts_now)
        })
    }

    fn approved_decisions(&self) -> Vec<ApprovedDecision> {
        notify::approved_decisions(&self.shared)
    }

    fn on_decision(&self, decision: &Decision) {
        notify::on_decision(&self.shared, decision);
    }

    fn on_verified_decision(&self, decision: &Decision) {
        notify::on_verified_decision(&self.shared, decision);
    }

    fn on_actuation(&self, actuation: &Actuation) {
        notify::on_actuation(&self.shared, actuation);
    }

    fn on_job_follows(&self, workload: &str, decision_id: &str) {
        self.shared.read_index(|state| state.set_job_follows(workload, decision_id));
        self.shared.reconcile_due.notify_one();
    }

    fn devices(&self) -> Option<&dyn DeviceAgents> {
        Some(self)
    }
}

impl DeviceAgents for KubernetesCluster {
    fn on_device_state(&self, state: DeviceState) {
        let concerned = self.shared.read_index(|known| known.on_device_state(&state));
        self.shared.device_planner().on_device_state(state);
        self.shared.reevaluate_workloads(&concerned);
    }

    fn on_device_holders(&self, holders: DeviceHolders) {
        let concerned = self.shared.read_index(|known| known.on_device_holders(&holders));
        self.shared.device_planner().on_device_holders(holders);
        self.shared.reevaluate_workloads(&concerned);
    }

    fn on_takeover(&self, standing: &[DeviceIntent]) {
        self.shared.device_planner().on_takeover(standing);
        self.shared.device_targets_changed.notify_one();
    }

    fn wanted_intents(&self) -> Option<Arc<Vec<DeviceIntent>>> {
        self.shared.device_planner().wanted_intents()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_leader_gives_rollouts_that_it_did_not_begin_a_minute() {
        let seconds = Duration::from_secs;
        assert_eq!(remaining_grace(400.0, seconds(10)), Some(seconds(50)));
        assert_eq!(remaining_grace(400.0, seconds(60)), None);
        assert_eq!(remaining_grace(400.0, seconds(3600)), None);
        assert_eq!(remaining_grace(5.0, seconds(10)), None, "its own");
    }
}
