//! The cluster as the actuator sees it, and what runs behind it.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use eadt_cluster::{Change, Changes, Cluster, ClusterError, ClusterRemedy, Devices, Managed, RollBack};
use eadt_schemas::EventTime;
use eadt_schemas::v1::{Actuation, Decision, DeviceHolders, DeviceIntent, DeviceState, Origin};
use eadt_tasks::KUBERNETES;
use kube::Client;
use kube::config::{Config, KubeConfigOptions};
use serde_json::Value;
use tokio::runtime::Handle;
use tokio::sync::Notify;

use crate::agents::{self, Agents};
use crate::beforehand::Demand;
use crate::change::{self, Planned};
use crate::client::{self, Server};
use crate::devices::{self, Place, Standing, Wish};
use crate::kinds::{KINDS, Kind, Ownership, at};
use crate::lease::{Candidate, Leadership};
use crate::object::Seen;
use crate::rollout::obstacles;
use crate::settings::Settings;
use crate::state::{Entry, Key, RuleKey, State};
use crate::status::Statuses;
use crate::terms::Terms;
use crate::watch::{self, Source};
use crate::{rules, status, tend};

/// How long a first look waits for the watches' first lists.
const FIRST: Duration = Duration::from_secs(2);
/// Reads of an object for one write: its status may change all the time while pods come and go.
const ATTEMPTS: usize = 8;

/// A leader that has just begun takes back nothing that was changed before: what kept it from leading (an API server that was away)
/// kept the controllers from rolling out as well, and they come back with pauses of up to half a minute.
const SETTLING: Duration = Duration::from_mins(1);

/// Tells the time: the wall's, or a simulated one.
pub type Clock = Arc<dyn Fn() -> EventTime + Send + Sync>;

/// What everything behind the cluster shares.
pub struct Shared {
    pub server: Server,
    pub leadership: Leadership,
    pub statuses: Mutex<Statuses>,
    pub settings: Settings,
    /// Something may be due.
    pub due: Notify,
    /// What agents are to hold may be something else.
    pub wishes: Notify,
    agents: Mutex<Agents>,
    state: Mutex<State>,
    changed: Condvar,
    revision: AtomicU64,
    sources: Mutex<BTreeSet<Source>>,
    sources_changed: Notify,
    clock: Clock,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("server", &self.server).finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is behind it is changed as a whole, so a panic elsewhere does not spoil it.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub fn now(&self) -> EventTime {
        (self.clock)()
    }

    /// Looks at the state or changes it; whoever waits for changes is told.
    pub fn with_state<T>(&self, with: impl FnOnce(&mut State, EventTime) -> T) -> T {
        let now = self.now();
        let mut state = lock(&self.state);
        let result = with(&mut state, now);
        if self.revision.swap(state.revision, Ordering::AcqRel) != state.revision {
            self.changed.notify_all();
        }
        drop(state);
        self.due.notify_one();
        self.wishes.notify_one();
        result
    }

    /// Looks at the state where nobody else needs to be told.
    pub fn with_state_quietly<T>(&self, with: impl FnOnce(&mut State) -> T) -> T {
        with(&mut lock(&self.state))
    }

    fn on_other_boards(&self, workloads: &BTreeSet<String>) {
        // Everybody speaks once a minute; whoever waits for news is woken for news only.
        if !workloads.is_empty() {
            self.with_state(|state, now| state.on_other_boards(workloads, now));
        }
    }

    pub fn statuses(&self) -> MutexGuard<'_, Statuses> {
        let mut statuses = lock(&self.statuses);
        statuses.leads(self.leadership.term());
        statuses
    }

    pub fn agents(&self) -> MutexGuard<'_, Agents> {
        lock(&self.agents)
    }

    pub fn saw_policy(&self, object: &Value) {
        match rules::rule(object) {
            Ok((rule, status)) => {
                let version = object["metadata"]["resourceVersion"].as_str().unwrap_or_default();
                self.statuses().saw(&rule, version, status);
                self.with_state(|state, now| state.rule(rule, now));
            }
            Err(error) => tracing::warn!(error, "a policy cannot be read"),
        }
    }

    pub fn forget_policy(&self, name: &RuleKey) {
        self.statuses().forget(name);
    }

    /// A source has been listed once.
    pub fn synced(&self, source: Source) {
        if lock(&self.sources).insert(source) {
            self.sources_changed.notify_waiters();
            self.due.notify_one();
            self.changed.notify_all();
        }
    }

    pub fn is_synced(&self, source: Source) -> bool {
        lock(&self.sources).contains(&source)
    }

    pub fn all_synced(&self) -> bool {
        let sources = lock(&self.sources);
        let kinds = KINDS.iter().map(|kind| Source::Kind(kind.kind));
        kinds.chain([Source::Policies, Source::Namespaces]).all(|source| sources.contains(&source))
    }

    pub async fn wait_for(&self, source: Source) {
        loop {
            let told = self.sources_changed.notified();
            if lock(&self.sources).contains(&source) {
                return;
            }
            told.await;
        }
    }

    /// The term in which this process may write.
    pub fn term(&self) -> Result<u64, ClusterError> {
        self.leadership.term().ok_or_else(|| ClusterError::new(ClusterRemedy::Stopped, "another actuator leads"))
    }

    /// Plans a write with an object as it is, writes, and takes the result into the state. `None`: nothing was to be written.
    ///
    /// First as the watch has it, which saves a request where that is the newest; the write is fenced by that version. Where it is
    /// older, or nothing is to be written by it, the object is read; again where it changed meanwhile.
    pub async fn write<P>(&self, key: &Key, what: &str, plan: P) -> Result<Option<Seen>, ClusterError>
    where
        P: Fn(&Seen, &Terms, bool, u64) -> Result<Planned, ClusterError>,
    {
        let Some(kind) = key.kind() else {
            return Err(ClusterError::new(ClusterRemedy::Refused, format!("{what}: the kind {} is not known", key.kind)));
        };
        // A write of versions needs all of the object, which is not kept.
        let watched = self.with_state(|state, now| {
            let seen = state.entry(key).filter(|_| kind.ownership == Ownership::Fields)?.seen.clone();
            let (terms, paused, _) = state.terms(&seen, now).unwrap_or_default();
            Some((seen, terms, paused))
        });
        if let Some((seen, terms, paused)) = watched
            && let Ok(Planned::Write(write)) = plan(&seen, &terms, paused, self.term()?)
        {
            eadt_faults::reach("change.planned");
            match self.server.apply(&seen, &write).await {
                Ok(written) => return self.wrote(kind, &written).map(Some),
                // What was refused for being old, or gone, is looked at; the same refusal comes again where it was neither.
                Err(kube::Error::Api(status)) if (400..500).contains(&status.code) && status.code != 429 => {}
                Err(error) => return Err(client::failure(what, &error)),
            }
        }
        for _ in 0..ATTEMPTS {
            let Some(object) = self.server.get(kind, &key.namespace, &key.name).await? else {
                self.with_state(|state, _| state.gone(key));
                return Err(ClusterError::new(ClusterRemedy::Conflict, format!("{what}: it is gone")));
            };
            let seen = read(kind, &object)?;
            let (seen, (terms, paused, _)) = self.with_state(|state, now| {
                let seen = state.settle(seen, now);
                let terms = state.terms(&seen, now).unwrap_or_default();
                (seen, terms)
            });
            let term = self.term()?;
            let write = match plan(&seen, &terms, paused, term)? {
                Planned::Nothing => return Ok(None),
                Planned::Write(write) => write,
            };
            eadt_faults::reach("change.planned");
            match self.server.write(&seen, &object, &write).await {
                Ok(written) => return self.wrote(kind, &written).map(Some),
                Err(kube::Error::Api(status)) if is_stale(&status) => {}
                Err(error) => return Err(client::failure(what, &error)),
            }
        }
        Err(ClusterError::new(ClusterRemedy::Conflict, format!("{what}: it changes all the time")))
    }

    fn wrote(&self, kind: &'static Kind, written: &Value) -> Result<Seen, ClusterError> {
        eadt_faults::reach("change.written");
        let after = read(kind, written)?;
        Ok(self.with_state(|state, now| state.settle(after, now)))
    }

    fn managed(&self, workload: &str) -> Result<Managed, ClusterError> {
        self.with_state(|state, _| state.find(workload).map(|entry| entry.managed.clone()))
            .ok_or_else(|| ClusterError::new(ClusterRemedy::Refused, format!("there is no workload {workload} that opted in")))
    }

    fn key(&self, workload: &str) -> Result<Key, ClusterError> {
        self.with_state(|state, _| state.find(workload).map(|entry| Key::of(&entry.seen)))
            .ok_or_else(|| ClusterError::new(ClusterRemedy::Refused, format!("there is no workload {workload} that opted in")))
    }
}

/// The object changed since it was read; nobody took a field back.
pub fn is_stale(status: &kube::core::Status) -> bool {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    status.code == 409 && !causes.into_iter().any(|cause| cause.reason == "FieldManagerConflict")
}

pub fn read(kind: &'static Kind, object: &Value) -> Result<Seen, ClusterError> {
    Seen::read(kind, object).map_err(|error| ClusterError::new(ClusterRemedy::Refused, error))
}

/// Kubernetes as the actuator sees it. Its calls block, so they are made from plain threads.
#[derive(Debug, Clone)]
pub struct KubernetesCluster {
    shared: Arc<Shared>,
    runtime: Handle,
}

/// Why the cluster cannot be reached at all.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("no context {context} can be used: {detail}; see kubectl config get-contexts")]
    Context { context: String, detail: String },
    #[error("no cluster is configured: {detail}; name a context, or run inside a cluster with a service account")]
    Nowhere { detail: String },
    #[error("{detail}")]
    Client { detail: String },
}

/// The client of a context of the user's kubeconfig; `None`: the current one, or the cluster that this process runs in.
pub async fn client(context: Option<&str>) -> Result<Client, ConnectError> {
    let config = match context {
        Some(context) => {
            let options = KubeConfigOptions { context: Some(context.to_owned()), ..KubeConfigOptions::default() };
            Config::from_kubeconfig(&options)
                .await
                .map_err(|error| ConnectError::Context { context: context.to_owned(), detail: error.to_string() })?
        }
        None => Config::infer().await.map_err(|error| ConnectError::Nowhere { detail: error.to_string() })?,
    };
    Client::try_from(config).map_err(|error| ConnectError::Client { detail: client::words(&error) })
}

impl KubernetesCluster {
    /// A cluster behind a client. Nothing happens until [`KubernetesCluster::run`] does.
    pub fn new(client: Client, settings: Settings, origin: Origin, clock: Clock) -> Self {
        let shared = Arc::new(Shared {
            server: Server { client },
            leadership: Leadership::default(),
            statuses: Mutex::default(),
            settings,
            due: Notify::new(),
            wishes: Notify::new(),
            agents: Mutex::default(),
            state: Mutex::new(State::new(origin)),
            changed: Condvar::new(),
            revision: AtomicU64::new(0),
            sources: Mutex::default(),
            sources_changed: Notify::new(),
            clock,
        });
        Self { shared, runtime: Handle::current() }
    }

    /// Watches, stands for election, and looks after rollouts and statuses while it leads; until `stop`.
    pub async fn run(&self, stop: impl Future<Output = ()>) {
        let shared = &self.shared;
        let settings = &shared.settings;
        let client = shared.server.client.clone();
        let namespace = settings.namespace.clone().unwrap_or_else(|| client.default_namespace().to_owned());
        let candidate = Candidate::new(client, &namespace, &settings.lease, &settings.identity());
        KUBERNETES.begin();
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(watch::policies(shared.clone()));
        tasks.spawn(watch::namespaces(shared.clone()));
        for kind in &KINDS {
            tasks.spawn(watch::objects(shared.clone(), kind));
        }
        tasks.spawn(watch::pods(shared.clone()));
        tasks.spawn(tend::run(shared.clone()));
        tasks.spawn(agents::run(shared.clone()));
        tasks.spawn(status::run(shared.clone()));
        tasks.spawn(status::write(shared.clone()));
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

    /// Runs for as long as this work takes, which needs it, and gives the Lease back then; `None`: it ended by itself before.
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

    /// The state once every watch has brought its first list.
    fn complete(&self) -> Result<MutexGuard<'_, State>, ClusterError> {
        let waiting = |_: &mut State| !self.shared.all_synced();
        let waited = self.shared.changed.wait_timeout_while(lock(&self.shared.state), FIRST, waiting);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if self.shared.all_synced() {
            Ok(state)
        } else {
            Err(ClusterError::new(ClusterRemedy::Retry, "the watches have not finished their first lists"))
        }
    }

    /// Tells when leading begins and ends.
    pub fn leading(&self) -> tokio::sync::watch::Receiver<bool> {
        self.shared.leadership.changes()
    }

    /// An object as the watch has it.
    fn seen(&self, key: &Key) -> Option<Seen> {
        self.shared.with_state_quietly(|state| state.entry(key).map(|entry| entry.seen.clone()))
    }

    /// Whose agents a change needs, and for which GPUs; `None`: it turns nothing that agents hold, or was made before.
    async fn ask_agents(&self, key: &Key, change: &Change) -> Result<Option<Place>, ClusterError> {
        let Some(seen) = self.seen(key) else { return Ok(None) };
        let applied = seen.mark.as_ref().and_then(|mark| mark.applied.as_ref());
        if applied.is_some_and(|applied| applied.decision_id == change.decision_id)
            || devices::settings(&seen.layout) == devices::settings(&change.layout)
        {
            return Ok(None);
        }
        match Wish::new(&change.workload, &change.decision_id, &change.layout) {
            Some(wish) => agents::ask(&self.shared, &seen, &wish).await.map(Some),
            None => Ok(Some(Place::new())),
        }
    }

    /// A process gets no more of a GPU's threads than its node's MPS default, whatever it asks for.
    async fn within_mps_defaults(&self, key: &Key, change: &Change) -> Result<(), ClusterError> {
        let Some(seen) = self.seen(key) else { return Ok(()) };
        let raised =
            change.layout.mps_thread_percentage.filter(|asked| seen.layout.mps_thread_percentage.is_none_or(|now| *asked > now));
        let Some(asked) = raised else { return Ok(()) };
        let nodes = devices::nodes(&self.shared.server.pods(&seen).await?);
        let agents = self.shared.agents();
        let lower = nodes.iter().find_map(|node| Some((node, agents.mps_default(node).filter(|default| *default < asked)?)));
        match lower {
            Some((node, default)) => {
                let reason = format!("the MPS default of node {node} is {default} %, lower than the {asked} % asked for");
                Err(ClusterError::new(ClusterRemedy::Refused, reason))
            }
            None => Ok(()),
        }
    }

    /// What quotas and disruption budgets have against a change that replaces pods.
    async fn beforehand(&self, key: &Key, change: &Change) -> Result<(), ClusterError> {
        let (Some(seen), Some(kind)) = (self.seen(key), key.kind()) else { return Ok(()) };
        let applied = seen.mark.as_ref().and_then(|mark| mark.applied.as_ref());
        let made = applied.is_some_and(|applied| applied.decision_id == change.decision_id);
        let pods_of = |layout: &eadt_schemas::v1::Layout| {
            (layout.mps_thread_percentage, layout.replicas, layout.world_size, layout.local_world_size)
        };
        if made || pods_of(&change.layout) == pods_of(&seen.layout) {
            return Ok(());
        }
        // Its own read says that it is gone, and why nothing is done.
        let Some(object) = self.shared.server.get(kind, &key.namespace, &key.name).await? else { return Ok(()) };
        let Some((_, template)) = kind.templates.last().and_then(|place| at(&object, place).into_iter().next()) else {
            return Ok(());
        };
        let demand = if change.layout.replicas == seen.layout.replicas {
            Demand::rolling(kind, &object, seen.pods)
        } else {
            let ranks = change.layout.replicas.unwrap_or(0).saturating_sub(seen.layout.replicas.unwrap_or(0));
            // Processes of different worlds do not meet: all are replaced together.
            Demand { away: seen.pods, more: ranks.div_ceil(seen.ranks_per_pod.max(1)) }
        };
        let quotas = if demand.more > 0 { self.shared.server.quotas(&key.namespace).await? } else { Vec::new() };
        let budgets = self.shared.server.budgets(&key.namespace).await?;
        match demand.barred(&quotas, &budgets, template, seen.pods, change.reverts) {
            Some(reason) => Err(ClusterError::new(ClusterRemedy::Refused, reason)),
            None => Ok(()),
        }
    }

    async fn roll_back_now(&self, back: &RollBack) -> Result<(), ClusterError> {
        let key = self.shared.key(&back.workload)?;
        let entry: Option<Entry> = self.shared.with_state(|state, _| state.entry(&key).cloned());
        let changed = entry.as_ref().and_then(|entry| entry.seen.mark.as_ref()?.applied.as_ref()).map(|applied| applied.time);
        if let (Some(changed), Some(led)) = (changed, self.shared.leadership.lasted())
            && let Some(left) = settling(self.shared.now().seconds_since(changed), led)
        {
            let (led, left) = (led.as_secs(), left.as_secs() + 1);
            let detail = format!("taking back {key}: leading for {led} s only, so that its rollout has {left} s more");
            return Err(ClusterError::new(ClusterRemedy::Retry, detail));
        }
        let mut held = true;
        let what = match entry {
            // The reason is better with what was seen; without it, the way back must not wait.
            Some(entry) => {
                let pods = self.shared.server.pods(&entry.seen).await.unwrap_or_default();
                let applied = entry.seen.mark.as_ref().and_then(|mark| mark.applied.as_ref());
                let standing = match applied {
                    Some(applied) => agents::standing(&self.shared, &key, &entry.seen, applied).await.unwrap_or(Standing::Held),
                    None => Standing::Held,
                };
                let followed = applied.is_none_or(|applied| self.shared.with_state_quietly(|s| s.is_followed(&key, applied)));
                held = standing == Standing::Held && followed;
                match standing {
                    Standing::Waiting(what) | Standing::Refused(what) => what,
                    Standing::Held => obstacles(&entry.seen, &pods),
                }
            }
            None => String::new(),
        };
        let reason = if what.is_empty() { back.reason.clone() } else { format!("{}: {what}", back.reason) };
        let tried = format!("rolling back {key}");
        let now = self.shared.now();
        let plan = |seen: &Seen, _: &Terms, _: bool, term: u64| {
            // It was only not noted yet.
            let ready = held && seen.progress.complete() && seen.mark.as_ref().is_some_and(|mark| !mark.resume);
            match if ready { change::ready(seen, now, term)? } else { Planned::Nothing } {
                Planned::Nothing => change::roll_back(seen, back, &reason, now, term),
                noted @ Planned::Write(_) => Ok(noted),
            }
        };
        self.shared.write(&key, &tried, plan).await.map(drop)
    }
}

/// How much longer a rollout has that began before this process led; `None`: no longer. `ago`: seconds since the change.
fn settling(ago: f64, led: Duration) -> Option<Duration> {
    (ago > led.as_secs_f64()).then(|| SETTLING.checked_sub(led)).flatten().filter(|left| !left.is_zero())
}

impl Cluster for KubernetesCluster {
    fn now(&self) -> EventTime {
        self.shared.now()
    }

    fn revision(&self) -> u64 {
        self.shared.revision.load(Ordering::Acquire)
    }

    fn workloads(&self) -> Result<Vec<Managed>, ClusterError> {
        Ok(self.complete()?.workloads())
    }

    fn changes(&self, since: Option<u64>) -> Result<Changes, ClusterError> {
        Ok(self.complete()?.changes(since))
    }

    fn apply(&self, change: &Change) -> Result<Managed, ClusterError> {
        let key = self.shared.key(&change.workload)?;
        let what = format!("changing {key}");
        let shared = &self.shared;
        let approved = status::is_approved(shared, &change.decision_id, &change.workload);
        if shared.with_state(|state, _| state.entry(&key).is_some_and(Entry::may_take_over)) {
            self.runtime.block_on(tend::take_over(shared, &key, approved))?;
        }
        self.runtime.block_on(self.beforehand(&key, change))?;
        self.runtime.block_on(self.within_mps_defaults(&key, change))?;
        let place = self.runtime.block_on(self.ask_agents(&key, change))?;
        let plan = |seen: &Seen, terms: &Terms, paused: bool, term: u64| {
            change::apply(seen, terms, paused, approved, change, shared.now(), term)
        };
        let written = self.runtime.block_on(shared.write(&key, &what, plan))?;
        if let Some(place) = place {
            agents::hold(shared, &key, place);
        }
        if let Some(after) = written {
            let wanted = after.mark.as_ref().and_then(|mark| mark.applied.as_ref()).map(|applied| applied.generation);
            if wanted != Some(after.layout_generation()) {
                return Err(ClusterError::new(
                    ClusterRemedy::Refused,
                    format!("{what}: something between here and the store (an admission webhook) undid the change"),
                ));
            }
        }
        shared.managed(&change.workload)
    }

    fn roll_back(&self, back: &RollBack) -> Result<Managed, ClusterError> {
        self.runtime.block_on(self.roll_back_now(back))?;
        self.shared.managed(&back.workload)
    }

    fn recommend(&self, decision: &Decision) -> Result<(), ClusterError> {
        let rule = self.shared.with_state(|state, _| {
            let key = state.find(&decision.workload).map(|entry| Key::of(&entry.seen))?;
            state.rules_for(&key).first().map(|rule| (rule.namespace.clone(), rule.name.clone()))
        });
        if let Some(rule) = rule {
            self.shared.statuses().recommend(&rule, decision);
            self.shared.due.notify_one();
        }
        Ok(())
    }

    fn restarts_barred(&self, workload: &str) -> Option<String> {
        self.shared.with_state(|state, now| {
            let entry = state.find(workload)?;
            state.terms(&entry.seen, now).and_then(|(terms, ..)| terms.no_restarts_now)
        })
    }

    fn approved(&self) -> Vec<Decision> {
        status::approved(&self.shared)
    }

    fn decided(&self, decision: &Decision) {
        status::decided(&self.shared, decision);
    }

    fn verified(&self, decision: &Decision) {
        status::verified(&self.shared, decision);
    }

    fn told(&self, actuation: &Actuation) {
        status::told(&self.shared, actuation);
    }

    fn followed(&self, workload: &str, decision_id: &str) {
        self.shared.with_state_quietly(|state| state.follows(workload, decision_id));
        self.shared.due.notify_one();
    }

    fn devices(&self) -> Option<&dyn Devices> {
        Some(self)
    }
}

impl Devices for KubernetesCluster {
    fn said(&self, state: DeviceState) {
        let concerned = self.shared.with_state_quietly(|known| known.said(&state));
        self.shared.agents().said(state);
        self.shared.on_other_boards(&concerned);
    }

    fn held(&self, holders: DeviceHolders) {
        let concerned = self.shared.with_state_quietly(|known| known.held(&holders));
        self.shared.agents().held(holders);
        self.shared.on_other_boards(&concerned);
    }

    fn met(&self, standing: &[DeviceIntent]) {
        self.shared.agents().met(standing);
        self.shared.wishes.notify_one();
    }

    fn wanted(&self) -> Option<Arc<Vec<DeviceIntent>>> {
        self.shared.agents().wanted()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_leader_gives_rollouts_that_it_did_not_begin_a_minute() {
        let seconds = Duration::from_secs;
        assert_eq!(settling(400.0, seconds(10)), Some(seconds(50)));
        assert_eq!(settling(400.0, seconds(60)), None);
        assert_eq!(settling(400.0, seconds(3600)), None);
        assert_eq!(settling(5.0, seconds(10)), None, "its own");
    }
}
