//! Reconciles workloads while this process leads: takes over the fields of the enabled knobs, follows rollouts to their end, and
//! restores everything once a policy is gone. Driven by the watches; nothing is polled while nothing is due.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use eadt_cluster::{ClusterError, ClusterRemedy, RollbackRequest};
use futures::stream::{self, StreamExt};

use crate::api::client;
use crate::api::lease;
use crate::context::WatchSource;
use crate::context::{KubernetesContext, is_stale, read_object};
use crate::devices::target::SettingsProgress;
use crate::index::watch::index_object;
use crate::index::workloads::{WorkloadEntry, WorkloadIndex};
use crate::objects::change::{self, PlannedWrite};
use crate::objects::effective_policy::EffectivePolicy;
use crate::objects::key::ObjectKey;
use crate::objects::kinds::WorkloadKind;
use crate::objects::object::WorkloadObject;
use crate::objects::record::ManagedField;
use crate::objects::rollout::{RolloutStep, due_steps};
use crate::reconcile::devices;

/// Workloads that are reconciled concurrently.
const CONCURRENT_WORKLOADS: usize = 16;
/// Shortest pause between two rounds, so that a burst of news of one workload is one round.
const MIN_ROUND_PAUSE: Duration = Duration::from_millis(20);
/// Pause before a failed round is repeated; it doubles with every failure in a row.
const RETRY: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_secs(30);
/// Workloads in a rollout are checked this often even without news, since the end of a pod is no news of its workload.
const ROLLOUT_POLL: Duration = Duration::from_secs(1);

/// The result of one reconciliation of a workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReconcileResult {
    Done,
    /// Something is on its way: it is looked at again.
    InProgress,
    Failed,
}

/// Workloads whose reconciliation failed: their news does not bring the next attempt forward, since the attempt may have caused
/// it.
#[derive(Debug, Default)]
struct RetrySchedule(BTreeMap<ObjectKey, (u32, Instant)>);

impl RetrySchedule {
    fn is_due(&self, key: &ObjectKey, now: Instant) -> bool {
        self.0.get(key).is_none_or(|(_, at)| *at <= now)
    }

    fn failed(&mut self, key: ObjectKey, now: Instant) {
        let (failures, at) = self.0.entry(key).or_insert((0, now));
        *at = now + RETRY.saturating_mul(1 << (*failures).min(8)).min(LONGEST_RETRY);
        *failures += 1;
    }

    fn next(&self, now: Instant) -> Option<Duration> {
        self.0.values().map(|(_, at)| at.saturating_duration_since(now)).min()
    }
}

/// Runs for ever.
pub async fn run(shared: Arc<KubernetesContext>) {
    let mut leading = shared.leadership.subscribe();
    let mut failing = RetrySchedule::default();
    let mut led = None;
    loop {
        let term = shared.leadership.term();
        if term.is_none() {
            // The next leader begins with everything that is due.
            lease::term_changed(&mut leading).await;
            continue;
        }
        if term != led {
            // An earlier leader may have solved a problem, or met one, without any news of it.
            led = term;
            shared.read_index(WorkloadIndex::mark_all_dirty);
        }
        // A kind's first list brings most targets by the hundred.
        let unread = shared.read_index(|state| state.take_unread(|kind| shared.is_synced(WatchSource::Kind(kind))));
        let failed = stream::iter(unread)
            .map(|key| read_target(&shared, key))
            .buffer_unordered(CONCURRENT_WORKLOADS)
            .fold(false, |failed, read| async move { failed || !read })
            .await;
        let dirty = shared.read_index(WorkloadIndex::take_dirty);
        let (dirty, mut later): (BTreeSet<ObjectKey>, BTreeSet<ObjectKey>) =
            dirty.into_iter().partition(|key| failing.is_due(key, Instant::now()));
        let idle = dirty.is_empty();
        let rounds = stream::iter(dirty)
            .map(|key| reconcile_workload(&shared, key))
            .buffer_unordered(CONCURRENT_WORKLOADS)
            .collect::<Vec<_>>()
            .await;
        let now = Instant::now();
        let mut moving = false;
        for (key, round) in rounds {
            match round {
                ReconcileResult::Failed => failing.failed(key.clone(), now),
                ReconcileResult::Done | ReconcileResult::InProgress => drop(failing.0.remove(&key)),
            }
            if round != ReconcileResult::Done {
                moving |= round == ReconcileResult::InProgress;
                later.insert(key);
            }
        }
        // Workloads that are gone or no longer managed are not retried.
        failing.0.retain(|key, _| later.contains(key));
        for key in later {
            shared.read_index(|state| state.mark_dirty(key));
        }
        let pause = failed.then_some(RETRY).into_iter().chain(moving.then_some(ROLLOUT_POLL)).chain(failing.next(now)).min();
        tokio::time::sleep(MIN_ROUND_PAUSE).await;
        match pause {
            Some(pause) => {
                tokio::select! {
                    () = shared.reconcile_due.notified() => {}
                    () = tokio::time::sleep(pause) => {}
                }
            }
            None if idle => {
                tokio::select! {
                    () = shared.reconcile_due.notified() => {}
                    _ = leading.changed() => {}
                }
            }
            None => {}
        }
    }
}

/// Reads the target of a new policy; false if that must be tried again.
async fn read_target(shared: &KubernetesContext, key: ObjectKey) -> bool {
    let Some(kind) = key.kind() else { return true };
    match shared.server.get(kind, &key.namespace, &key.name).await {
        Ok(Some(object)) => index_object(shared, kind, &object),
        Ok(None) => shared.update_index(|state, _| state.remove(&key)),
        Err(error) => {
            let again = error.remedy == ClusterRemedy::Retry;
            tracing::warn!(%key, %error, again, "the target of a policy cannot be read");
            if again {
                shared.read_index(|state| state.mark_unread(key));
                return false;
            }
        }
    }
    true
}

/// Does one round for one workload.
async fn reconcile_workload(shared: &KubernetesContext, key: ObjectKey) -> (ObjectKey, ReconcileResult) {
    let Some(entry) = shared.read_index(|state| state.entry(&key).cloned()) else { return (key, ReconcileResult::Done) };
    let report_trouble = |trouble: Option<&str>| {
        let rules = shared.read_index(|state| {
            state.policies_for(&key).into_iter().map(|rule| (rule.namespace.clone(), rule.name.clone())).collect::<Vec<_>>()
        });
        for rule in rules {
            let mut statuses = shared.statuses();
            statuses.set_trouble(rule.clone(), trouble.map(str::to_owned));
            statuses.mark_changed(rule);
        }
    };
    let round = match reconcile_step(shared, &key, &entry).await {
        Ok(again) => {
            report_trouble(None);
            if again { ReconcileResult::InProgress } else { ReconcileResult::Done }
        }
        // It is no trouble of the workload's, which is looked at again if this process leads again.
        Err(error) if error.remedy == ClusterRemedy::Stopped => ReconcileResult::Failed,
        Err(error) => {
            report_trouble(Some(&error.detail));
            let again = error.remedy != ClusterRemedy::Refused;
            tracing::warn!(%key, %error, again, "a workload cannot be reconciled");
            if again { ReconcileResult::Failed } else { ReconcileResult::Done }
        }
    };
    (key, round)
}

/// Makes the next step of a reconciliation; returns true if more are due.
async fn reconcile_step(shared: &KubernetesContext, key: &ObjectKey, entry: &WorkloadEntry) -> Result<bool, ClusterError> {
    if entry.must_restore() {
        return restore_fields(shared, key, entry).await;
    }
    if entry.wants_take_over() {
        take_over_fields(shared, key, false).await?;
    }
    if !entry.is_rolling() {
        return Ok(false);
    }
    if entry.waits_for_job() && shared.read_index(|state| !state.job_follows_last(key)) {
        // No pod has to do with it, and its word wakes this task.
        return Ok(false);
    }
    let pods = shared.server.pods(&entry.object).await?;
    let standing = match entry.managed.rolling_out() {
        Some(applied) => devices::target_status(shared, key, &entry.object, applied).await?,
        None => SettingsProgress::Held,
    };
    if let (SettingsProgress::Refused(reason), Some(applied)) = (&standing, entry.managed.rolling_out()) {
        let back = RollbackRequest {
            workload: entry.managed.state.workload.clone(),
            decision_id: applied.decision_id.clone(),
            generation: applied.generation,
            by_job: false,
            reason: reason.clone(),
        };
        tracing::warn!(%key, decision = back.decision_id, reason, "a node agent does not hold the settings of a decision: rolling it back");
        let plan = |observed: &WorkloadObject, _: &EffectivePolicy, _: bool, term: u64| {
            change::plan_roll_back(observed, &back, reason, shared.now(), term)
        };
        shared.write(key, &format!("rolling back {key}"), plan).await?;
        return Ok(true);
    }
    for step in due_steps(&entry.object, &pods, false) {
        // It is ready when the agents hold it and the job does it, too.
        let followed = || shared.read_index(|state| state.job_follows_last(key));
        if step == RolloutStep::Ready && !(standing == SettingsProgress::Held && followed()) {
            continue;
        }
        perform_step(shared, key, &entry.object, step).await?;
    }
    Ok(true)
}

async fn perform_step(
    shared: &KubernetesContext,
    key: &ObjectKey,
    observed: &WorkloadObject,
    step: RolloutStep,
) -> Result<(), ClusterError> {
    match step {
        RolloutStep::Delete { pod, uid, version, why } => {
            shared.term()?;
            tracing::info!(%key, pod, why, "deleting a pod");
            eadt_faults::reach("pod.delete");
            shared.server.delete_pod(observed, &pod, &uid, &version).await
        }
        RolloutStep::Resume => {
            tracing::info!(%key, "resuming a workload that was suspended for a change");
            let plan = |observed: &WorkloadObject, _: &EffectivePolicy, _: bool, term: u64| change::plan_resume(observed, term);
            shared.write(key, &format!("resuming {key}"), plan).await.map(drop)
        }
        RolloutStep::Ready => {
            let plan = |observed: &WorkloadObject, _: &EffectivePolicy, _: bool, term: u64| {
                if observed.progress.complete() {
                    change::plan_ready(observed, shared.now(), term)
                } else {
                    Ok(PlannedWrite::Nothing)
                }
            };
            shared.write(key, &format!("noting that {key} is ready"), plan).await.map(drop)
        }
        RolloutStep::Release => Ok(()),
    }
}

/// Makes EADT the owner of the enabled knobs' fields and records the former values. `approved`: also in mode `Recommend`.
pub async fn take_over_fields(shared: &KubernetesContext, key: &ObjectKey, approved: bool) -> Result<(), ClusterError> {
    let Some(kind) = key.kind() else { return Ok(()) };
    let what = format!("taking over the fields of {key}");
    let Some(object) = shared.server.get(kind, &key.namespace, &key.name).await? else { return Ok(()) };
    let observed = read_object(kind, &object)?;
    let take_over = shared.update_index(|state, now| {
        state.upsert(observed.clone(), now);
        let entry = state.entry(key).filter(|entry| entry.wants_take_over() || approved && entry.may_take_over())?;
        change::plan_take_over(&observed, &entry.effective_policy, &object["metadata"]["managedFields"], now)
    });
    let Some(take_over) = take_over else { return Ok(()) };
    shared.term()?;
    let written = shared.server.take_over(&observed, &object, &take_over, &wall_time()).await;
    take_written(shared, &what, kind, written)?;
    let fields: Vec<_> = take_over.fields.iter().map(|former| former.field.to_string()).collect();
    tracing::info!(%key, fields = fields.join(", "), "fields of the workload are taken over");
    Ok(())
}

/// Writes back the former values, waits for the pods to follow, and releases the fields.
async fn restore_fields(shared: &KubernetesContext, key: &ObjectKey, entry: &WorkloadEntry) -> Result<bool, ClusterError> {
    let Some(kind) = key.kind() else { return Ok(false) };
    let Some(object) = shared.server.get(kind, &key.namespace, &key.name).await? else { return Ok(false) };
    let observed = read_object(kind, &object)?;
    let observed = shared.read_index(|state| state.with_history(observed));
    // The index gets only new versions, since its updates wake this task.
    if observed.resource_version != entry.object.resource_version {
        shared.update_index(|state, now| state.upsert(observed.clone(), now));
    }
    if !shared.read_index(|state| state.entry(key).is_some_and(WorkloadEntry::must_restore)) {
        return Ok(false);
    }
    if observed.change_annotation.as_ref().is_some_and(|mark| mark.resume) {
        let pods = shared.server.pods(&observed).await?;
        for step in due_steps(&observed, &pods, true) {
            perform_step(shared, key, &observed, step).await?;
        }
        return Ok(true);
    }
    let what = format!("giving back the fields of {key}");
    let mut lost: Vec<ManagedField> = Vec::new();
    if let Some(write) = change::plan_restore(&observed, &lost, shared.now(), shared.term()?)? {
        tracing::info!(%key, "the policy was deleted: restoring the former values of its fields");
        match shared.server.write(&observed, &object, &write).await {
            Ok(written) => {
                take_written(shared, &what, kind, Ok(written))?;
                return Ok(true);
            }
            Err(error) if client::field_conflict(&error).is_some() => {
                // Another manager took fields back. Their present values belong to it.
                lost = lost_fields(&observed, &client::conflicting_fields(&error));
                tracing::info!(%key, fields = ?lost, "fields that another manager owns keep their values");
                if let Some(write) = change::plan_restore(&observed, &lost, shared.now(), shared.term()?)? {
                    let written = shared.server.write(&observed, &object, &write).await;
                    take_written(shared, &what, kind, written)?;
                    return Ok(true);
                }
            }
            Err(kube::Error::Api(status)) if is_stale(&status) => return Ok(true),
            Err(error) => return Err(client::cluster_error(&what, &error)),
        }
    }
    let pods = shared.server.pods(&entry.object).await?;
    let steps = due_steps(&observed, &pods, true);
    if steps.iter().all(|step| *step == RolloutStep::Release)
        && (observed.progress.observed || observed.change_annotation.is_none())
    {
        shared.term()?;
        let former: Vec<_> = observed
            .take_over
            .iter()
            .flat_map(|take_over| take_over.fields.clone())
            .filter(|f| !lost.contains(&f.field))
            .collect();
        let written = shared.server.release_fields(&observed, &object, &former, &wall_time()).await;
        take_written(shared, &what, kind, written)?;
        tracing::info!(%key, "all fields of the workload are released");
        return Ok(false);
    }
    for step in steps {
        perform_step(shared, key, &observed, step).await?;
    }
    Ok(true)
}

fn lost_fields(observed: &WorkloadObject, named: &[String]) -> Vec<ManagedField> {
    let is_named = |field: &ManagedField| match field {
        ManagedField::Replicas => named.iter().any(|name| name.ends_with(".replicas")),
        ManagedField::Variable { container, name, .. } => {
            let (container, variable) = (format!("[name=\"{container}\"]"), format!("[name=\"{name}\"]"));
            named.iter().any(|named| named.contains(&container) && named.contains(&variable))
        }
    };
    let fields = observed.take_over.iter().flat_map(|take_over| take_over.fields.iter().map(|former| former.field.clone()));
    fields.filter(is_named).collect()
}

fn take_written(
    shared: &KubernetesContext,
    what: &str,
    kind: &'static WorkloadKind,
    written: Result<serde_json::Value, kube::Error>,
) -> Result<(), ClusterError> {
    let written = written.map_err(|error| client::cluster_error(what, &error))?;
    let observed = read_object(kind, &written)?;
    shared.update_index(|state, now| state.upsert(observed, now));
    Ok(())
}

/// Returns the time of entries in `managedFields`, which is the wall's whatever the events' is.
fn wall_time() -> String {
    let now = k8s_openapi::jiff::Timestamp::now();
    now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_again_and_again_is_tried_less_and_less() {
        let key = ObjectKey { kind: "StatefulSet", namespace: "eadt".into(), name: "llm".into() };
        let (mut failing, now) = (RetrySchedule::default(), Instant::now());
        assert!(failing.is_due(&key, now) && failing.next(now).is_none());
        let mut pauses = Vec::new();
        for _ in 0..40 {
            failing.failed(key.clone(), now);
            pauses.push(failing.next(now).unwrap().as_secs());
        }
        assert_eq!(pauses[..7], [1, 2, 4, 8, 16, 30, 30]);
        assert!(pauses[7..].iter().all(|pause| *pause == 30));
        assert!(!failing.is_due(&key, now) && failing.is_due(&key, now + LONGEST_RETRY));
    }
}
