//! Shared parts of the backend's tasks: the API server, the leadership, the index of workloads, the statuses and the plan for
//! devices.
//!
//! Every write to a workload goes through [`KubernetesContext::write`]: it plans with the newest known version, and is fenced by
//! it.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use eadt_cluster::{ClusterError, ClusterRemedy, ManagedWorkload};
use eadt_schemas::EventTime;
use eadt_schemas::v1::Origin;
use kube::Client;
use serde_json::Value;
use tokio::sync::Notify;

use crate::api::client::{self, ApiServer};
use crate::api::lease::Leadership;
use crate::devices::planner::DevicePlanner;
use crate::index::workloads::WorkloadIndex;
use crate::objects::change::PlannedWrite;
use crate::objects::effective_policy::EffectivePolicy;
use crate::objects::key::{ObjectKey, PolicyKey};
use crate::objects::kinds::{WORKLOAD_KINDS, WorkloadKind, WriteMethod};
use crate::objects::object::WorkloadObject;
use crate::policy::resource;
use crate::settings::KubernetesSettings;
use crate::status::outbox::StatusOutbox;

/// Longest wait of a first read for the watches' first lists.
const FIRST_LIST_WAIT: Duration = Duration::from_secs(2);
/// Reads of an object for one write: its status may change all the time while pods come and go.
const WRITE_ATTEMPTS: usize = 8;

/// A watch, as a part of readiness.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WatchSource {
    Policies,
    Namespaces,
    Kind(&'static str),
}

/// Returns the time of the wall clock, or a simulated one.
pub type ClockFn = Arc<dyn Fn() -> EventTime + Send + Sync>;

/// The state that all tasks of the backend share.
pub struct KubernetesContext {
    pub server: ApiServer,
    pub leadership: Leadership,
    pub status_outbox: Mutex<StatusOutbox>,
    pub settings: KubernetesSettings,
    /// Something may be due.
    pub reconcile_due: Notify,
    /// Notified if the settings that agents should hold may have changed.
    pub device_targets_changed: Notify,
    device_planner: Mutex<DevicePlanner>,
    index: Mutex<WorkloadIndex>,
    changed: Condvar,
    revision: AtomicU64,
    sources: Mutex<BTreeSet<WatchSource>>,
    sources_changed: Notify,
    clock: ClockFn,
}

impl fmt::Debug for KubernetesContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KubernetesContext").field("server", &self.server).finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The value is replaced as a whole, so a panic elsewhere leaves it consistent.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl KubernetesContext {
    pub fn new(client: Client, settings: KubernetesSettings, origin: Origin, clock: ClockFn) -> Self {
        Self {
            server: ApiServer { client },
            leadership: Leadership::default(),
            status_outbox: Mutex::default(),
            settings,
            reconcile_due: Notify::new(),
            device_targets_changed: Notify::new(),
            device_planner: Mutex::default(),
            index: Mutex::new(WorkloadIndex::new(origin)),
            changed: Condvar::new(),
            revision: AtomicU64::new(0),
            sources: Mutex::default(),
            sources_changed: Notify::new(),
            clock,
        }
    }

    /// Grows with every change that readers of the index see.
    pub fn revision(&self) -> u64 {
        self.revision.load(Ordering::Acquire)
    }

    /// Returns the index once every watch has brought its first list.
    pub fn synced_index(&self) -> Result<MutexGuard<'_, WorkloadIndex>, ClusterError> {
        let waiting = |_: &mut WorkloadIndex| !self.all_synced();
        let waited = self.changed.wait_timeout_while(lock(&self.index), FIRST_LIST_WAIT, waiting);
        let (index, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if self.all_synced() {
            Ok(index)
        } else {
            Err(ClusterError::new(ClusterRemedy::Retry, "the watches have not finished their first lists"))
        }
    }

    pub fn now(&self) -> EventTime {
        (self.clock)()
    }

    /// Reads or changes the index, and notifies waiting tasks of changes.
    pub fn update_index<T>(&self, with: impl FnOnce(&mut WorkloadIndex, EventTime) -> T) -> T {
        let now = self.now();
        let mut state = lock(&self.index);
        let result = with(&mut state, now);
        if self.revision.swap(state.revision, Ordering::AcqRel) != state.revision {
            self.changed.notify_all();
        }
        drop(state);
        self.reconcile_due.notify_one();
        self.device_targets_changed.notify_one();
        result
    }

    /// Accesses the index without a notification.
    pub fn read_index<T>(&self, with: impl FnOnce(&mut WorkloadIndex) -> T) -> T {
        with(&mut lock(&self.index))
    }

    pub fn reevaluate_workloads(&self, workloads: &BTreeSet<String>) {
        // Every collector reports once a minute; only changes wake waiting tasks.
        if !workloads.is_empty() {
            self.update_index(|state, now| state.reevaluate_workloads(workloads, now));
        }
    }

    pub fn statuses(&self) -> MutexGuard<'_, StatusOutbox> {
        let mut statuses = lock(&self.status_outbox);
        statuses.set_term(self.leadership.term());
        statuses
    }

    pub fn device_planner(&self) -> MutexGuard<'_, DevicePlanner> {
        lock(&self.device_planner)
    }

    pub fn upsert_policy(&self, object: &Value) {
        match resource::read_policy(object) {
            Ok((rule, status)) => {
                let version = object["metadata"]["resourceVersion"].as_str().unwrap_or_default();
                self.statuses().on_policy_object(&rule, version, status);
                self.update_index(|state, now| state.upsert_policy(rule, now));
            }
            Err(error) => tracing::warn!(error, "a policy cannot be read"),
        }
    }

    pub fn remove_policy_status(&self, name: &PolicyKey) {
        self.statuses().remove_policy(name);
    }

    /// Notes that a source has been listed once.
    pub fn mark_synced(&self, source: WatchSource) {
        if lock(&self.sources).insert(source) {
            self.sources_changed.notify_waiters();
            self.reconcile_due.notify_one();
            self.changed.notify_all();
        }
    }

    pub fn is_synced(&self, source: WatchSource) -> bool {
        lock(&self.sources).contains(&source)
    }

    pub fn all_synced(&self) -> bool {
        let sources = lock(&self.sources);
        let kinds = WORKLOAD_KINDS.iter().map(|kind| WatchSource::Kind(kind.kind));
        kinds.chain([WatchSource::Policies, WatchSource::Namespaces]).all(|source| sources.contains(&source))
    }

    pub async fn wait_synced(&self, source: WatchSource) {
        loop {
            let notified = self.sources_changed.notified();
            if lock(&self.sources).contains(&source) {
                return;
            }
            notified.await;
        }
    }

    /// Returns the term in which this process may write.
    pub fn term(&self) -> Result<u64, ClusterError> {
        self.leadership.term().ok_or_else(|| ClusterError::new(ClusterRemedy::Stopped, "another actuator leads"))
    }

    /// Plans a write with the present object, writes it, and updates the index with the result. `None` if there was nothing to
    /// write. The first plan uses the watch's object, which saves a request if it is the newest; the write is fenced by its
    /// version. If that is outdated, or the plan has nothing to write, the object is read, and read again if it changed in
    /// between.
    pub async fn write<P>(&self, key: &ObjectKey, what: &str, plan: P) -> Result<Option<WorkloadObject>, ClusterError>
    where
        P: Fn(&WorkloadObject, &EffectivePolicy, bool, u64) -> Result<PlannedWrite, ClusterError>,
    {
        let Some(kind) = key.kind() else {
            return Err(ClusterError::new(ClusterRemedy::Refused, format!("{what}: the kind {} is not known", key.kind)));
        };
        // A write of versions needs all of the object, which is not kept.
        let watched = self.update_index(|state, now| {
            let observed = state.entry(key).filter(|_| kind.write_method == WriteMethod::ServerSideApply)?.object.clone();
            let (effective_policy, paused, _) = state.effective_policy(&observed, now).unwrap_or_default();
            Some((observed, effective_policy, paused))
        });
        if let Some((observed, effective_policy, paused)) = watched
            && let Ok(PlannedWrite::Write(write)) = plan(&observed, &effective_policy, paused, self.term()?)
        {
            eadt_faults::reach("change.planned");
            match self.server.apply(&observed, &write).await {
                Ok(written) => return self.take_written(kind, &written).map(Some),
                // A write that was refused as outdated or gone is planned again with a new read; any other refusal repeats there.
                Err(kube::Error::Api(status)) if (400..500).contains(&status.code) && status.code != 429 => {}
                Err(error) => return Err(client::cluster_error(what, &error)),
            }
        }
        for _ in 0..WRITE_ATTEMPTS {
            let Some(object) = self.server.get(kind, &key.namespace, &key.name).await? else {
                self.update_index(|state, _| state.remove(key));
                return Err(ClusterError::new(ClusterRemedy::Conflict, format!("{what}: it is gone")));
            };
            let observed = read_object(kind, &object)?;
            let (observed, (effective_policy, paused, _)) = self.update_index(|state, now| {
                let observed = state.upsert_with_history(observed, now);
                let effective_policy = state.effective_policy(&observed, now).unwrap_or_default();
                (observed, effective_policy)
            });
            let term = self.term()?;
            let write = match plan(&observed, &effective_policy, paused, term)? {
                PlannedWrite::Nothing => return Ok(None),
                PlannedWrite::Write(write) => write,
            };
            eadt_faults::reach("change.planned");
            match self.server.write(&observed, &object, &write).await {
                Ok(written) => return self.take_written(kind, &written).map(Some),
                Err(kube::Error::Api(status)) if is_stale(&status) => {}
                Err(error) => return Err(client::cluster_error(what, &error)),
            }
        }
        Err(ClusterError::new(ClusterRemedy::Conflict, format!("{what}: it changes all the time")))
    }

    fn take_written(&self, kind: &'static WorkloadKind, written: &Value) -> Result<WorkloadObject, ClusterError> {
        eadt_faults::reach("change.written");
        let after = read_object(kind, written)?;
        Ok(self.update_index(|state, now| state.upsert_with_history(after, now)))
    }

    pub fn managed_workload(&self, workload: &str) -> Result<ManagedWorkload, ClusterError> {
        self.update_index(|state, _| state.find(workload).map(|entry| entry.managed.clone()))
            .ok_or_else(|| ClusterError::not_managed(workload))
    }

    pub fn workload_key(&self, workload: &str) -> Result<ObjectKey, ClusterError> {
        self.update_index(|state, _| state.find(workload).map(|entry| ObjectKey::of(&entry.object)))
            .ok_or_else(|| ClusterError::not_managed(workload))
    }
}

/// Returns whether the object changed since it was read, without a conflict about owners.
pub fn is_stale(status: &kube::core::Status) -> bool {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    status.code == 409 && !causes.into_iter().any(|cause| cause.reason == "FieldManagerConflict")
}

pub fn read_object(kind: &'static WorkloadKind, object: &Value) -> Result<WorkloadObject, ClusterError> {
    WorkloadObject::read(kind, object).map_err(|error| ClusterError::new(ClusterRemedy::Refused, error))
}
