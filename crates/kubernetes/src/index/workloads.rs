//! Informer index of workloads and policies, bounded by what opted in. No I/O; the caller gives the time.
//!
//! Objects that did not opt in are not stored. An entry is reevaluated if its object, its policy or its namespace changes.

use std::collections::{BTreeMap, BTreeSet};

use eadt_cluster::{AppliedDecision, ClusterChanges, ManagedWorkload};
use eadt_schemas::EventTime;
use eadt_schemas::v1::{DeviceHolders, DeviceState, Layout, Origin, UpdateMode};

use crate::index::gpu_models::{GpuModel, GpuModelIndex};
use crate::index::managed::{StateHistory, build_managed};
use crate::objects::effective_policy::EffectivePolicy;
use crate::objects::key::ObjectKey;
use crate::objects::key::PolicyKey;
use crate::objects::key::is_older_version;
use crate::objects::kinds::WorkloadKind;
use crate::objects::object::WorkloadObject;
use crate::objects::owners::TakenBackField;
use crate::objects::record::ManagedField;
use crate::policy::names::{OBSERVE, PAUSED};
use crate::policy::resource::WorkloadPolicy;
use crate::policy::{PolicyProblem, ProblemReason, TargetLookup, find_target_problems, observe_label_terms, read_pause};
use crate::settings::REPORT_STALE_SECONDS;

/// Removed workloads are kept in the change history up to this many beyond the number of existing ones.
const MAX_GONE: usize = 1000;

/// A managed workload.
#[derive(Debug, Clone)]
pub struct WorkloadEntry {
    pub object: WorkloadObject,
    pub effective_policy: EffectivePolicy,
    pub paused: bool,
    /// Its policy or label is gone, or the policy was created again, and EADT still owns fields of it.
    pub orphaned: bool,
    pub managed: ManagedWorkload,
    /// Model of its GPUs when it last held some.
    gpu_model: GpuModel,
    history: StateHistory,
}

/// The index, with secondary indexes by policy, workload name and owner.
#[derive(Debug, Default)]
pub struct WorkloadIndex {
    /// Incremented with every change of the result of [`WorkloadIndex::workloads`].
    pub revision: u64,
    pub origin: Origin,
    policies: BTreeMap<PolicyKey, WorkloadPolicy>,
    targets: BTreeMap<ObjectKey, BTreeSet<PolicyKey>>,
    entries: BTreeMap<ObjectKey, WorkloadEntry>,
    /// Objects by the workload that they are.
    keys_by_workload: BTreeMap<String, BTreeSet<ObjectKey>>,
    log: ChangeLog,
    /// Policies with an approval.
    approvals: BTreeSet<PolicyKey>,
    /// Values of the annotation that pauses, by namespace.
    namespace_pauses: BTreeMap<String, String>,
    /// Objects by the object that manages them, as `namespace/Kind/name`.
    children: BTreeMap<String, BTreeSet<ObjectKey>>,
    /// Policies were listed; before that no fields are restored.
    policies_listed: bool,
    /// Objects that must be looked at: something may be due.
    dirty: BTreeSet<ObjectKey>,
    /// Policies whose status may have changed.
    changed_policies: BTreeSet<PolicyKey>,
    /// Targets of policies that have not been read yet.
    unread: BTreeSet<ObjectKey>,
    /// Targets that are not there.
    missing: BTreeSet<ObjectKey>,
    gpu_models: GpuModelIndex,
    /// Decisions whose changes the jobs report to follow.
    followed_decisions: BTreeMap<ObjectKey, String>,
}

/// The last change of each workload, by revision.
#[derive(Debug, Default)]
struct ChangeLog {
    /// Workloads by the revision of their last change.
    changes: BTreeMap<u64, String>,
    last: BTreeMap<String, u64>,
    /// Changes up to this revision may have been dropped from the history.
    complete_after: u64,
}

impl ChangeLog {
    fn record(&mut self, workload: &str, revision: u64, there: usize) {
        if let Some(before) = self.last.insert(workload.to_owned(), revision) {
            self.changes.remove(&before);
        }
        self.changes.insert(revision, workload.to_owned());
        while self.changes.len() > there + MAX_GONE {
            let Some((revision, workload)) = self.changes.pop_first() else { return };
            self.last.remove(&workload);
            self.complete_after = revision;
        }
    }

    /// Returns the changes since a revision; `None` if they are not available any more.
    fn changed_since(&self, revision: u64) -> Option<impl Iterator<Item = &String>> {
        (revision >= self.complete_after).then(|| self.changes.range(revision + 1..).map(|(_, workload)| workload))
    }
}

impl WorkloadIndex {
    pub fn new(origin: Origin) -> Self {
        Self { origin, ..Self::default() }
    }

    /// Returns whether an object is stored, from its metadata alone.
    pub fn is_tracked(&self, key: &ObjectKey, labelled: bool, marked: bool) -> bool {
        labelled || marked || self.targets.contains_key(key) || self.entries.contains_key(key)
    }

    /// Returns the object with the history of its stored version.
    pub fn with_history(&self, observed: WorkloadObject) -> WorkloadObject {
        match self.entries.get(&ObjectKey::of(&observed)) {
            Some(entry) => observed.with_history_of(&entry.object),
            None => observed,
        }
    }

    /// Stores an object; returns it with its history.
    pub fn upsert_with_history(&mut self, observed: WorkloadObject, now: EventTime) -> WorkloadObject {
        let observed = self.with_history(observed);
        self.upsert(observed.clone(), now);
        observed
    }

    /// Stores an object, unless a newer version is known.
    pub fn upsert(&mut self, observed: WorkloadObject, now: EventTime) {
        let key = ObjectKey::of(&observed);
        let observed = self.with_history(observed);
        self.missing.remove(&key);
        self.unread.remove(&key);
        if let Some(entry) = self.entries.get(&key)
            && entry.object.uid == observed.uid
            && is_older_version(&observed.resource_version, &entry.object.resource_version)
        {
            return;
        }
        self.reevaluate(&key, Some(observed), now);
    }

    /// Takes a collector's report on which pods hold its node's GPUs; returns the workloads that it concerns.
    pub fn on_device_holders(&mut self, holders: &DeviceHolders) -> BTreeSet<String> {
        self.gpu_models.on_device_holders(holders)
    }

    /// Takes an agent's report on its node's GPUs; returns the workloads that it concerns.
    pub fn on_device_state(&mut self, state: &DeviceState) -> BTreeSet<String> {
        self.gpu_models.on_device_state(state)
    }

    /// Reevaluates workloads whose GPUs changed.
    pub fn reevaluate_workloads(&mut self, workloads: &BTreeSet<String>, now: EventTime) {
        let keys =
            workloads.iter().filter_map(|workload| self.keys_by_workload.get(workload)).flatten().cloned().collect::<Vec<_>>();
        for key in keys {
            self.reevaluate(&key, None, now);
        }
    }

    /// Removes an object that was deleted.
    pub fn remove(&mut self, key: &ObjectKey) {
        if let Some(entry) = self.entries.remove(key) {
            self.remove_name(&entry.managed.state.workload, key);
            self.log_change(&entry.managed.state.workload);
            self.forget_child(&entry.object, key);
        }
        self.followed_decisions.remove(key);
        self.dirty.remove(key);
        self.touch(key);
        if self.targets.contains_key(key) {
            self.missing.insert(key.clone());
        }
    }

    /// Removes objects of a kind that were not in a complete list.
    pub fn retain_listed(&mut self, kind: &'static str, there: &BTreeSet<ObjectKey>) {
        let unlisted: Vec<_> = self.entries.keys().filter(|key| key.kind == kind && !there.contains(key)).cloned().collect();
        for key in unlisted {
            self.remove(&key);
        }
    }

    /// Stores a policy, and reevaluates its target.
    pub fn upsert_policy(&mut self, rule: WorkloadPolicy, now: EventTime) {
        let name = (rule.namespace.clone(), rule.name.clone());
        let after = rule.target_key();
        let approved = rule.approved_decision().map(str::to_owned);
        if approved.is_some() {
            self.approvals.insert(name.clone());
        } else {
            self.approvals.remove(&name);
        }
        let before = self.policies.insert(name.clone(), rule);
        // A new revision makes the actuator check for approvals.
        self.revision += u64::from(before.as_ref().and_then(WorkloadPolicy::approved_decision) != approved.as_deref());
        let before = before.and_then(|before| before.target_key());
        if let Some(target) = before.filter(|before| Some(before) != after.as_ref()) {
            self.remove_target(&target, &name, now);
        }
        if let Some(target) = after {
            self.targets.entry(target.clone()).or_default().insert(name);
            if self.entries.contains_key(&target) {
                self.reevaluate(&target, None, now);
            } else if !self.missing.contains(&target) {
                self.unread.insert(target.clone());
            }
            self.reevaluate_relatives(&target, now);
        }
    }

    pub fn remove_policy(&mut self, name: &PolicyKey, now: EventTime) {
        self.approvals.remove(name);
        if let Some(target) = self.policies.remove(name).and_then(|rule| rule.target_key()) {
            self.remove_target(&target, name, now);
            self.reevaluate_relatives(&target, now);
        }
    }

    /// Removes policies that were not in a complete list.
    pub fn retain_policies(&mut self, there: &BTreeSet<PolicyKey>, now: EventTime) {
        let unlisted: Vec<_> = self.policies.keys().filter(|name| !there.contains(name)).cloned().collect();
        for name in unlisted {
            self.remove_policy(&name, now);
        }
        self.policies_listed = true;
        for key in self.entries.keys().cloned().collect::<Vec<_>>() {
            self.reevaluate(&key, None, now);
        }
    }

    fn remove_target(&mut self, target: &ObjectKey, name: &PolicyKey, now: EventTime) {
        if let Some(names) = self.targets.get_mut(target) {
            names.remove(name);
            if names.is_empty() {
                self.targets.remove(target);
                self.unread.remove(target);
                self.missing.remove(target);
            }
        }
        self.reevaluate(target, None, now);
    }

    /// Sets the value of a namespace's annotation that pauses its workloads.
    pub fn set_namespace_pause(&mut self, name: &str, value: Option<&str>, now: EventTime) {
        let before = match value {
            Some(value) => self.namespace_pauses.insert(name.to_owned(), value.to_owned()),
            None => self.namespace_pauses.remove(name),
        };
        if before.as_deref() != value {
            for key in self.entries.keys().filter(|key| key.namespace == name).cloned().collect::<Vec<_>>() {
                self.reevaluate(&key, None, now);
            }
        }
    }

    /// Policies on a workload and on what manages it contradict each other, and those on two workloads of one name.
    fn reevaluate_relatives(&mut self, target: &ObjectKey, now: EventTime) {
        let children = self.children.get(&child_key(target)).cloned().unwrap_or_default();
        for key in children.into_iter().chain(same_name_keys(target).into_iter().filter(|key| key != target)) {
            self.reevaluate(&key, None, now);
        }
    }

    /// Returns the policies for an object.
    pub fn policies_for(&self, key: &ObjectKey) -> Vec<&WorkloadPolicy> {
        self.targets.get(key).into_iter().flatten().filter_map(|name| self.policies.get(name)).collect()
    }

    pub fn policy(&self, name: &PolicyKey) -> Option<&WorkloadPolicy> {
        self.policies.get(name)
    }

    pub fn policies(&self) -> impl Iterator<Item = &WorkloadPolicy> {
        self.policies.values()
    }

    /// Returns policies whose recommendation a user approved.
    pub fn approved_policies(&self) -> impl Iterator<Item = &WorkloadPolicy> {
        self.approvals.iter().filter_map(|name| self.policies.get(name))
    }

    /// Returns the problems between the policies of an object, beside those of each policy itself.
    pub fn problems(&self, rule: &WorkloadPolicy) -> Vec<PolicyProblem> {
        let parents =
            rule.target_key().and_then(|key| Some(self.entries.get(&key)?.object.controlled_by.clone())).unwrap_or_default();
        self.problems_below(rule, &parents)
    }

    /// Returns the problems of a policy. `parents`: the managers of its target, as `Kind/name`.
    fn problems_below(&self, rule: &WorkloadPolicy, parents: &[String]) -> Vec<PolicyProblem> {
        let mut problems = rule.resolved.as_ref().err().cloned().unwrap_or_default();
        let key = rule.target_key();
        // Only policies that have to do with each other: there may be thousands.
        let mut related: Vec<&WorkloadPolicy> = vec![rule];
        if let Some(key) = &key {
            related.extend(same_name_keys(key).iter().flat_map(|key| self.policies_for(key)));
            related.extend(self.children.get(&child_key(key)).into_iter().flatten().flat_map(|child| self.policies_for(child)));
            let parents = parents.iter().filter_map(|parent| parent_key(&key.namespace, parent));
            related.extend(parents.flat_map(|key| self.policies_for(&key)));
        }
        let related = related.into_iter().map(|rule| (rule.name.clone(), rule.target.clone())).collect();
        let found = |target: &crate::policy::TargetRef| {
            let kind = WorkloadKind::find(&target.api_version, &target.kind);
            let key =
                kind.map(|kind| ObjectKey { kind: kind.kind, namespace: rule.namespace.clone(), name: target.name.clone() });
            let Some(key) = key.filter(|key| !self.missing.contains(key)) else { return TargetLookup::Missing };
            let own = rule.target_key().as_ref() == Some(&key);
            let known = self.entries.get(&key).map(|entry| entry.object.controlled_by.as_slice());
            let parents = if own { parents } else { known.unwrap_or_default() };
            let owners = parents.iter().filter_map(|parent| parent.split_once('/'));
            TargetLookup::Found { owners: owners.map(|(kind, name)| (kind.to_owned(), name.to_owned())).collect() }
        };
        problems.extend(find_target_problems(&related, found).remove(&rule.name).unwrap_or_default());
        problems
    }

    /// Returns the effective policy of an object, whether it is paused, and whether it is an orphan; `None` if it did not opt
    /// in.
    pub fn effective_policy(&self, observed: &WorkloadObject, now: EventTime) -> Option<(EffectivePolicy, bool, bool)> {
        let key = ObjectKey::of(observed);
        let around = self.namespace_pauses.get(&observed.namespace).map(|value| (PAUSED.to_owned(), value.clone()));
        let (paused, _) = read_pause(&observed.annotations, &around.into_iter().collect());
        match self.policies_for(&key).as_slice() {
            [rule] => {
                let namesake = same_name_keys(&key).iter().any(|other| *other != key && self.targets.contains_key(other));
                let related = namesake || !observed.controlled_by.is_empty() || self.children.contains_key(&child_key(&key));
                let conflict = |problem: &PolicyProblem| {
                    matches!(problem.reason, ProblemReason::OwnerConflict | ProblemReason::TargetConflict)
                };
                let mut effective_policy = rule.effective_policy(observed, now);
                if related && self.problems_below(rule, &observed.controlled_by).iter().any(conflict) {
                    effective_policy = effective_policy.only_observed();
                }
                // A policy that was created again takes effect later: fields and requests of the former one are restored first.
                let policy_uids = observed.take_over.iter().map(|record| &record.policy_uid);
                let mut uids = policy_uids.chain(observed.change_annotation.iter().map(|mark| &mark.policy_uid));
                let of_former = uids.any(|uid| !uid.is_empty() && *uid != rule.uid);
                Some((effective_policy, paused, self.policies_listed && of_former))
            }
            // Two that contradict each other: nothing is done.
            [first, ..] => Some((first.effective_policy(observed, now).only_observed(), paused, false)),
            [] => {
                let labelled = observe_label_terms(&observed.labels).ok().flatten();
                let orphaned = (observed.take_over.is_some() || observed.change_annotation.is_some()) && self.policies_listed;
                let observe = EffectivePolicy { mode: UpdateMode::Observe, ..EffectivePolicy::default() };
                (labelled.is_some() || orphaned).then(|| (labelled.unwrap_or(observe), paused, orphaned))
            }
        }
    }

    fn reevaluate(&mut self, key: &ObjectKey, observed: Option<WorkloadObject>, now: EventTime) {
        let before = self.entries.remove(key);
        let Some(observed) = observed.or_else(|| before.as_ref().map(|entry| entry.object.clone())) else { return };
        for parent in &observed.controlled_by {
            self.children.entry(format!("{}/{parent}", observed.namespace)).or_default().insert(key.clone());
        }
        let Some((effective_policy, paused, orphaned)) = self.effective_policy(&observed, now) else {
            if let Some(before) = before {
                self.remove_name(&before.managed.state.workload, key);
                self.log_change(&before.managed.state.workload);
            }
            self.forget_child(&observed, key);
            self.followed_decisions.remove(key);
            return;
        };
        let mut since = before.as_ref().map(|entry| entry.history.clone()).unwrap_or_default();
        // While its pods are replaced it holds no GPUs, and their collectors need a moment: the former ones count.
        let recent = |entry: &&WorkloadEntry| {
            let ready = entry.managed.state.ready_time;
            !observed.progress.complete() || ready.is_none_or(|ready| now.seconds_since(ready) <= REPORT_STALE_SECONDS)
        };
        let before_board = before.as_ref().filter(recent).map(|entry| entry.gpu_model.clone());
        let board = self.gpu_models.common_model(&observed.workload(), now).or(before_board).unwrap_or_default();
        let managed = build_managed(&observed, &effective_policy, &board, paused, self.origin, &mut since, now);
        let workload = managed.state.workload.clone();
        self.keys_by_workload.entry(workload.clone()).or_default().insert(key.clone());
        let entry =
            WorkloadEntry { object: observed, effective_policy, paused, orphaned, managed, gpu_model: board, history: since };
        if before.as_ref().map(WorkloadEntry::status_facts) != Some(entry.status_facts()) {
            self.touch(key);
        }
        if before.as_ref().and_then(WorkloadEntry::reportable) != entry.reportable() {
            self.log_change(&workload);
        }
        if entry.needs_reconcile() {
            self.dirty.insert(key.clone());
        }
        self.entries.insert(key.clone(), entry);
    }

    fn touch(&mut self, key: &ObjectKey) {
        let names = self.targets.get(key).cloned().unwrap_or_default();
        self.changed_policies.extend(names);
    }

    /// Takes the policies whose status may have changed.
    pub fn take_touched(&mut self) -> BTreeSet<PolicyKey> {
        std::mem::take(&mut self.changed_policies)
    }

    fn forget_child(&mut self, observed: &WorkloadObject, key: &ObjectKey) {
        for parent in &observed.controlled_by {
            let parent = format!("{}/{parent}", observed.namespace);
            if let Some(children) = self.children.get_mut(&parent) {
                children.remove(key);
                if children.is_empty() {
                    self.children.remove(&parent);
                }
            }
        }
    }

    fn log_change(&mut self, workload: &str) {
        self.revision += 1;
        self.log.record(workload, self.revision, self.keys_by_workload.len());
    }

    fn remove_name(&mut self, workload: &str, key: &ObjectKey) {
        if let Some(keys) = self.keys_by_workload.get_mut(workload) {
            keys.remove(key);
            if keys.is_empty() {
                self.keys_by_workload.remove(workload);
            }
        }
    }

    fn entries_named(&self, workload: &str) -> impl Iterator<Item = &WorkloadEntry> {
        self.keys_by_workload.get(workload).into_iter().flatten().filter_map(|key| self.entries.get(key))
    }

    /// Returns a workload that opted in. Of two objects of different kinds with one name only one is known, rather one with a
    /// policy.
    fn find_managed(&self, workload: &str) -> Option<&ManagedWorkload> {
        self.entries_named(workload)
            .filter(|entry| entry.reportable().is_some())
            .min_by_key(|entry| entry.effective_policy.policy.is_none())?
            .reportable()
    }

    /// Returns every workload that opted in.
    pub fn workloads(&self) -> Vec<ManagedWorkload> {
        self.keys_by_workload.keys().filter_map(|workload| self.find_managed(workload)).cloned().collect()
    }

    /// Returns the changes since a revision.
    pub fn changes(&self, since: Option<u64>) -> ClusterChanges {
        let revision = self.revision;
        let Some(changed) = since.and_then(|since| self.log.changed_since(since)) else {
            return ClusterChanges { revision, all: true, workloads: self.workloads(), removed: Vec::new() };
        };
        let mut changes = ClusterChanges { revision, ..ClusterChanges::default() };
        for workload in changed {
            match self.find_managed(workload) {
                Some(managed) => changes.workloads.push(managed.clone()),
                None => changes.removed.push(workload.clone()),
            }
        }
        changes
    }

    /// Returns the object of a workload.
    pub fn find(&self, workload: &str) -> Option<&WorkloadEntry> {
        self.entries_named(workload).filter(|entry| !entry.orphaned).min_by_key(|entry| entry.effective_policy.policy.is_none())
    }

    pub fn entry(&self, key: &ObjectKey) -> Option<&WorkloadEntry> {
        self.entries.get(key)
    }

    pub fn entries(&self) -> impl Iterator<Item = (&ObjectKey, &WorkloadEntry)> {
        self.entries.iter()
    }

    pub fn is_missing(&self, key: &ObjectKey) -> bool {
        self.missing.contains(key)
    }

    /// Takes the objects to reconcile.
    pub fn take_dirty(&mut self) -> BTreeSet<ObjectKey> {
        std::mem::take(&mut self.dirty)
    }

    /// Records that the job of a workload follows the change of a decision.
    pub fn set_job_follows(&mut self, workload: &str, decision_id: &str) {
        let Some(key) = self.find(workload).map(|entry| ObjectKey::of(&entry.object)) else { return };
        if self.followed_decisions.get(&key).is_none_or(|known| known != decision_id) {
            self.followed_decisions.insert(key.clone(), decision_id.to_owned());
            self.dirty.insert(key);
        }
    }

    /// Returns whether the job follows the last change of its workload.
    pub fn job_follows_last(&self, key: &ObjectKey) -> bool {
        let applied = self.entries.get(key).and_then(|entry| entry.managed.rolling_out());
        applied.is_none_or(|applied| self.job_follows(key, applied))
    }

    /// Returns whether a change needs nothing of its job that the job does not do.
    pub fn job_follows(&self, key: &ObjectKey, applied: &AppliedDecision) -> bool {
        applied.job_request().is_none()
            || self.followed_decisions.get(key).is_some_and(|decision| *decision == applied.decision_id)
    }

    pub fn mark_dirty(&mut self, key: ObjectKey) {
        self.dirty.insert(key);
    }

    /// Marks every object for reconciliation.
    pub fn mark_all_dirty(&mut self) {
        let here = self.entries.iter().filter(|(_, entry)| !entry.object.deleting);
        self.dirty.extend(here.map(|(key, _)| key.clone()));
    }

    /// Targets of these kinds that must be read, and forgets that they must.
    pub fn take_unread(&mut self, listed: impl Fn(&'static str) -> bool) -> BTreeSet<ObjectKey> {
        let (now, later) = std::mem::take(&mut self.unread).into_iter().partition(|key| listed(key.kind));
        self.unread = later;
        now
    }

    pub fn mark_unread(&mut self, key: ObjectKey) {
        self.unread.insert(key);
    }
}

impl WorkloadEntry {
    /// Fields that were taken over must be given back.
    pub fn must_restore(&self) -> bool {
        self.orphaned
    }

    /// Returns the workload if it is to be reported; an orphan is reported only if its label requests that.
    fn reportable(&self) -> Option<&ManagedWorkload> {
        (!self.orphaned || self.object.labels.contains_key(OBSERVE)).then_some(&self.managed)
    }

    /// Returns true if the enabled knobs' fields are to be taken over.
    pub fn wants_take_over(&self) -> bool {
        self.effective_policy.mode == UpdateMode::Enforce && self.may_take_over()
    }

    /// Returns true if some of the enabled knobs' fields are not EADT's, and nothing prevents taking them over.
    pub fn may_take_over(&self) -> bool {
        let observed = &self.object;
        let is_taken = |field: &ManagedField| {
            observed.take_over.iter().flat_map(|record| &record.fields).any(|former| former.field == *field)
        };
        !self.paused
            && !self.orphaned
            && !observed.deleting
            && observed.problems.is_empty()
            && crate::objects::change::knob_fields(observed, self.effective_policy.knobs).iter().any(|field| !is_taken(field))
    }

    /// Returns whether a change or a rollback is in progress.
    pub fn is_rolling(&self) -> bool {
        let Some(mark) = &self.object.change_annotation else { return false };
        let generation = self.object.layout_generation();
        mark.resume
            || mark.applied.as_ref().is_some_and(|applied| {
                let rolling = applied.generation == generation && applied.ready_time.is_none();
                let back = applied.rolled_back.as_ref().is_some_and(|back| back.generation == generation);
                rolling && applied.rolled_back.is_none() || back && !self.object.progress.complete()
            })
    }

    /// Returns true if only its job has not followed yet: pods and devices have nothing to do with the change that is on its way.
    pub fn waits_for_job(&self) -> bool {
        let whole = self.object.progress.complete() && self.object.change_annotation.as_ref().is_some_and(|mark| !mark.resume);
        let applied = self.managed.rolling_out().filter(|_| whole);
        applied.is_some_and(|a| a.job_request().is_some() && a.is_for_job_only())
    }

    /// Returns the facts that a policy's status shows, without figures.
    fn status_facts(&self) -> (Layout, UpdateMode, bool, bool, Option<&String>, u32, &[TakenBackField]) {
        let observed = &self.object;
        let (problem, ready) = (observed.problems.first(), observed.progress.ready);
        (
            observed.layout.clone(),
            self.effective_policy.mode,
            self.paused,
            self.is_rolling(),
            problem,
            ready,
            &observed.taken_back,
        )
    }

    fn needs_reconcile(&self) -> bool {
        !self.object.deleting && (self.must_restore() || self.wants_take_over() || self.is_rolling())
    }
}

/// Returns an object as its children name it.
fn child_key(key: &ObjectKey) -> String {
    format!("{}/{}/{}", key.namespace, key.kind, key.name)
}

/// Objects of all kinds that would be known by the same name.
fn same_name_keys(key: &ObjectKey) -> Vec<ObjectKey> {
    crate::objects::kinds::WORKLOAD_KINDS.iter().map(|kind| ObjectKey { kind: kind.kind, ..key.clone() }).collect()
}

fn parent_key(namespace: &str, parent: &str) -> Option<ObjectKey> {
    let (kind, name) = parent.split_once('/')?;
    let kind = crate::objects::kinds::WORKLOAD_KINDS.iter().find(|known| known.kind == kind)?;
    Some(ObjectKey { kind: kind.kind, namespace: namespace.to_owned(), name: name.to_owned() })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::objects::object::tests::{seen, training};
    use crate::objects::record::{APPLIED, ChangeAnnotation, FormerField, TAKEN_OVER, TakeOverRecord};

    fn at(seconds: f64) -> EventTime {
        EventTime::from_seconds(1_767_225_600.0 + seconds)
    }

    fn key() -> ObjectKey {
        ObjectKey { kind: "StatefulSet", namespace: "eadt".into(), name: "llm-training".into() }
    }

    fn rule(name: &str, mode: &str) -> WorkloadPolicy {
        rule_of("eadt", name, mode)
    }

    fn rule_of(namespace: &str, name: &str, mode: &str) -> WorkloadPolicy {
        let policy = json!({
            "apiVersion": "eadt.dev/v1alpha1", "kind": "EnergyPolicy",
            "metadata": {"name": name, "namespace": namespace, "uid": "p", "generation": 1},
            "spec": {
                "targetRef": {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "llm-training"}, "updateMode": mode,
                "bounds": {"mpsThreadPercentage": {"min": 25}, "replicas": {"max": 12}},
            },
        });
        crate::policy::resource::read_policy(&policy).unwrap().0
    }

    fn object(version: u64) -> Value {
        let mut object = training(6, "50", "6", "2");
        object["metadata"]["resourceVersion"] = json!(version.to_string());
        object
    }

    #[test]
    fn what_did_not_opt_in_is_not_kept() {
        let mut state = WorkloadIndex::new(Origin::Measured);
        state.upsert(seen(&object(1)), at(0.0));
        assert_eq!((state.workloads().len(), state.entries().count(), state.revision), (0, 0, 0));
        state.upsert_policy(rule("p", "Recommend"), at(1.0));
        assert_eq!(state.take_unread(|_| true).into_iter().collect::<Vec<_>>(), [key()], "its target must be read");
        state.upsert(seen(&object(1)), at(2.0));
        assert_eq!(state.workloads().len(), 1);
        assert!(state.take_dirty().is_empty(), "mode recommend touches nothing");
        state.remove_policy(&("eadt".into(), "p".into()), at(3.0));
        assert_eq!((state.workloads().len(), state.entries().count()), (0, 0));
    }

    #[test]
    fn a_policy_reaches_no_workload_of_another_namespace() {
        let mut state = WorkloadIndex::new(Origin::Measured);
        state.upsert(seen(&object(1)), at(0.0));
        state.upsert_policy(rule_of("team-b", "p", "Enforce"), at(1.0));
        let theirs = ObjectKey { namespace: "team-b".into(), ..key() };
        assert_eq!(
            state.take_unread(|_| true).into_iter().collect::<Vec<_>>(),
            [theirs],
            "its target is one of its own namespace"
        );
        state.upsert(seen(&object(2)), at(2.0));
        assert_eq!((state.workloads().len(), state.entries().count()), (0, 0));
        state.upsert_policy(rule("p", "Enforce"), at(3.0));
        state.upsert(seen(&object(2)), at(4.0));
        assert_eq!(state.workloads().len(), 1, "one of the workload's own namespace does");
    }

    #[test]
    fn a_label_lets_a_workload_be_observed() {
        let mut state = WorkloadIndex::new(Origin::Measured);
        let mut labelled = object(1);
        labelled["metadata"]["labels"][OBSERVE] = json!("true");
        state.upsert(seen(&labelled), at(0.0));
        assert_eq!(state.workloads()[0].state.mode, UpdateMode::Observe);
        labelled["metadata"]["labels"][OBSERVE] = json!("false");
        labelled["metadata"]["resourceVersion"] = json!("2");
        state.upsert(seen(&labelled), at(1.0));
        assert!(state.workloads().is_empty());
    }

    #[test]
    fn a_pause_of_workload_or_namespace_holds_at_once() {
        let mut state = WorkloadIndex::new(Origin::Measured);
        state.upsert_policy(rule("p", "Enforce"), at(0.0));
        state.upsert(seen(&object(1)), at(0.0));
        assert!(!state.workloads()[0].state.paused);
        assert!(state.take_dirty().contains(&key()), "its fields are to be taken over");
        state.set_namespace_pause("eadt", Some("true"), at(1.0));
        assert!(state.workloads()[0].state.paused);
        assert!(state.take_dirty().is_empty(), "nothing is taken over while it is paused");
        state.set_namespace_pause("eadt", None, at(2.0));
        let mut paused = object(2);
        paused["metadata"]["annotations"][PAUSED] = json!("true");
        state.upsert(seen(&paused), at(3.0));
        assert!(state.workloads()[0].state.paused);
    }

    #[test]
    fn two_policies_for_one_workload_do_nothing() {
        let mut state = WorkloadIndex::new(Origin::Measured);
        state.upsert_policy(rule("p", "Enforce"), at(0.0));
        state.upsert_policy(rule("q", "Enforce"), at(0.0));
        state.upsert(seen(&object(1)), at(0.0));
        assert_eq!(state.workloads()[0].state.mode, UpdateMode::Observe);
        let reasons: Vec<_> = state.policies().flat_map(|rule| state.problems(rule)).map(|problem| problem.reason).collect();
        assert_eq!(reasons, [ProblemReason::TargetConflict, ProblemReason::TargetConflict]);
        state.remove_policy(&("eadt".into(), "q".into()), at(1.0));
        assert_eq!(state.workloads()[0].state.mode, UpdateMode::Enforce);
    }

    #[test]
    fn a_policy_on_what_manages_another_ones_target_stops_both() {
        let mut state = WorkloadIndex::new(Origin::Measured);
        let mut inner = object(1);
        inner["metadata"]["ownerReferences"] = json!([{"controller": true, "kind": "LeaderWorkerSet", "name": "l", "uid": "x"}]);
        state.upsert_policy(rule("inner", "Enforce"), at(0.0));
        state.upsert(seen(&inner), at(0.0));
        assert_eq!(state.workloads()[0].state.mode, UpdateMode::Enforce);
        let mut outer = rule("outer", "Enforce");
        outer.target.api_version = "leaderworkerset.x-k8s.io/v1".into();
        outer.target.kind = "LeaderWorkerSet".into();
        outer.target.name = "l".into();
        state.upsert_policy(outer.clone(), at(1.0));
        assert_eq!(state.workloads()[0].state.mode, UpdateMode::Observe);
        assert!(state.problems(&outer).iter().any(|problem| problem.reason == ProblemReason::OwnerConflict));
        state.remove_policy(&("eadt".into(), "outer".into()), at(2.0));
        assert_eq!(state.workloads()[0].state.mode, UpdateMode::Enforce);
    }

    #[test]
    fn a_policy_further_up_than_what_manages_the_target_stops_both_too() {
        let mut state = WorkloadIndex::new(Origin::Measured);
        let mut inner = object(1);
        inner["metadata"]["ownerReferences"] = json!([{"controller": true, "kind": "Pod", "name": "l-0", "uid": "x"}]);
        inner["metadata"]["labels"]["leaderworkerset.sigs.k8s.io/name"] = json!("l");
        let mut outer = rule("outer", "Enforce");
        outer.target.api_version = "leaderworkerset.x-k8s.io/v1".into();
        outer.target.kind = "LeaderWorkerSet".into();
        outer.target.name = "l".into();
        state.upsert_policy(outer.clone(), at(0.0));
        state.upsert_policy(rule("inner", "Enforce"), at(0.0));
        state.upsert(seen(&inner), at(0.0));
        assert_eq!(state.workloads()[0].state.mode, UpdateMode::Observe);
        assert!(state.problems(&outer).iter().any(|problem| problem.reason == ProblemReason::OwnerConflict));
    }

    #[test]
    fn fields_are_given_back_only_once_all_policies_are_known() {
        let mut state = WorkloadIndex::new(Origin::Measured);
        let mut taken = object(1);
        taken["metadata"]["annotations"][TAKEN_OVER] = json!(serde_json::to_string(&TakeOverRecord::default()).unwrap());
        state.upsert_policy(rule("p", "Enforce"), at(0.0));
        state.upsert(seen(&taken), at(0.0));
        state.take_dirty();
        let mut early = WorkloadIndex::new(Origin::Measured);
        early.upsert(seen(&taken), at(0.0));
        assert!(early.take_dirty().is_empty(), "its policy may be listed yet");
        state.retain_policies(&BTreeSet::from([("eadt".to_owned(), "p".to_owned())]), at(1.0));
        assert!(!state.entry(&key()).unwrap().must_restore());
        state.retain_policies(&BTreeSet::new(), at(2.0));
        assert!(state.entry(&key()).unwrap().must_restore() && state.take_dirty().contains(&key()));
        assert!(state.workloads().is_empty());
    }

    #[test]
    fn what_was_taken_over_for_a_policy_goes_back_before_one_that_was_made_again_begins() {
        let mut state = WorkloadIndex::new(Origin::Measured);
        state.retain_policies(&BTreeSet::new(), at(0.0));
        state.upsert_policy(rule("p", "Enforce"), at(0.0));
        let mut taken = object(1);
        let fields = vec![FormerField { field: ManagedField::Replicas, value: Some("6".into()), owners: vec![] }];
        let record = TakeOverRecord { policy: "p".into(), policy_uid: "p".into(), fields, ..TakeOverRecord::default() };
        taken["metadata"]["annotations"][TAKEN_OVER] = json!(serde_json::to_string(&record).unwrap());
        state.upsert(seen(&taken), at(0.0));
        assert!(!state.entry(&key()).unwrap().must_restore());
        state.upsert_policy(WorkloadPolicy { uid: "q".into(), ..rule("p", "Enforce") }, at(1.0));
        let entry = state.entry(&key()).unwrap();
        assert!(entry.must_restore() && !entry.wants_take_over() && state.workloads().is_empty());
        state.upsert(seen(&object(2)), at(2.0));
        let entry = state.entry(&key()).unwrap();
        assert!(!entry.must_restore() && entry.wants_take_over() && state.workloads().len() == 1);
    }

    #[test]
    fn what_was_asked_for_under_a_policy_goes_back_before_one_that_was_made_again_begins() {
        let mut state = WorkloadIndex::new(Origin::Measured);
        state.retain_policies(&BTreeSet::new(), at(0.0));
        state.upsert_policy(rule("p", "Recommend"), at(0.0));
        let mut capped = object(1);
        let mark = ChangeAnnotation { policy_uid: "p".into(), power_limit_watts: Some(300.0), ..ChangeAnnotation::default() };
        capped["metadata"]["annotations"][APPLIED] = json!(serde_json::to_string(&mark).unwrap());
        state.upsert(seen(&capped), at(0.0));
        assert!(!state.entry(&key()).unwrap().must_restore());
        state.upsert_policy(WorkloadPolicy { uid: "q".into(), ..rule("p", "Recommend") }, at(1.0));
        assert!(state.entry(&key()).unwrap().must_restore());
    }

    #[test]
    fn policies_on_two_workloads_of_one_name_permit_nothing() {
        let mut state = WorkloadIndex::new(Origin::Measured);
        state.retain_policies(&BTreeSet::new(), at(0.0));
        state.upsert_policy(rule("p", "Enforce"), at(0.0));
        state.upsert(seen(&object(1)), at(0.0));
        let mode = |state: &WorkloadIndex| state.entry(&key()).unwrap().effective_policy.mode;
        assert_eq!(mode(&state), UpdateMode::Enforce);
        let mut other = rule("q", "Enforce");
        other.target.kind = "Deployment".into();
        state.upsert_policy(other, at(1.0));
        assert_eq!(mode(&state), UpdateMode::Observe);
        assert!(!state.entry(&key()).unwrap().wants_take_over());
        state.remove_policy(&("eadt".into(), "q".into()), at(2.0));
        assert_eq!(mode(&state), UpdateMode::Enforce);
    }

    #[test]
    fn a_policy_shows_at_once_who_took_a_field_back() {
        let mut state = WorkloadIndex::new(Origin::Measured);
        state.upsert_policy(rule("p", "Enforce"), at(0.0));
        let mut taken = object(1);
        let fields = vec![FormerField { field: ManagedField::Replicas, value: Some("6".into()), owners: vec![] }];
        let record = TakeOverRecord { fields, ..TakeOverRecord::default() };
        taken["metadata"]["annotations"][TAKEN_OVER] = json!(serde_json::to_string(&record).unwrap());
        state.upsert(seen(&taken), at(0.0));
        state.take_touched();
        taken["metadata"]["resourceVersion"] = json!("2");
        taken["metadata"]["managedFields"] =
            json!([{"manager": "flux", "operation": "Apply", "fieldsV1": {"f:spec": {"f:replicas": {}}}}]);
        state.upsert(seen(&taken), at(1.0));
        assert_eq!(state.take_touched(), BTreeSet::from([("eadt".to_owned(), "p".to_owned())]));
    }

    #[test]
    fn annotations_of_a_deployment_are_no_generation_of_its_layout() {
        let mut state = WorkloadIndex::new(Origin::Measured);
        let mut object = object(1);
        object["kind"] = json!("Deployment");
        object["metadata"]["labels"][OBSERVE] = json!("true");
        let mut version = 1;
        let mut after = |change: &dyn Fn(&mut Value)| {
            (version, object["metadata"]["generation"]) = (version + 1, json!(version + 4));
            object["metadata"]["resourceVersion"] = json!(version.to_string());
            change(&mut object);
            let again = seen(&object);
            state.upsert(again.clone(), at(1.0));
            state.upsert(again, at(1.0));
            state.workloads()[0].state.generation
        };
        assert_eq!(after(&|_| {}), 5, "as it is when it is seen for the first time");
        assert_eq!(after(&|object| object["metadata"]["annotations"]["a"] = json!("1")), 5);
        assert_eq!(after(&|object| object["spec"]["replicas"] = json!(9)), 6);
        assert_eq!(after(&|object| object["metadata"]["annotations"]["a"] = json!("2")), 6);
        let mark =
            json!(serde_json::to_string(&ChangeAnnotation { generation_offset: -2, ..ChangeAnnotation::default() }).unwrap());
        assert_eq!(after(&|object| object["metadata"]["annotations"][APPLIED] = mark.clone()), 7, "a mark counts for itself");
        assert_eq!(after(&|object| object["metadata"]["annotations"]["a"] = json!("3")), 7);
    }

    #[test]
    fn late_news_of_an_older_version_is_no_news() {
        let mut state = WorkloadIndex::new(Origin::Measured);
        state.upsert_policy(rule("p", "Recommend"), at(0.0));
        state.upsert(seen(&object(10)), at(0.0));
        let mut old = object(9);
        old["metadata"]["generation"] = json!(3);
        state.upsert(seen(&old), at(1.0));
        assert_eq!(state.workloads()[0].state.generation, 4);
        old["metadata"]["uid"] = json!("another");
        state.upsert(seen(&old), at(2.0));
        assert_eq!(state.workloads()[0].state.generation, 3, "another object of that name");
        state.retain_listed("StatefulSet", &BTreeSet::new());
        assert!(state.workloads().is_empty() && state.is_missing(&key()));
    }

    fn set(name: &str, version: u64) -> WorkloadObject {
        let mut object = object(version);
        object["metadata"]["name"] = json!(name);
        object["metadata"]["labels"][OBSERVE] = json!("true");
        seen(&object)
    }

    fn names(changes: &ClusterChanges) -> Vec<&str> {
        changes.workloads.iter().map(|managed| managed.state.workload.as_str()).collect()
    }

    #[test]
    fn only_what_changed_is_reported_and_what_is_forgotten_is_reported_as_a_whole() {
        let mut state = WorkloadIndex::new(Origin::Measured);
        for name in ["a", "b", "c"] {
            state.upsert(set(name, 1), at(0.0));
        }
        let all = state.changes(None);
        assert!(all.all && names(&all) == ["eadt/a", "eadt/b", "eadt/c"], "{all:?}");
        let since = Some(all.revision);
        assert_eq!(state.changes(since), ClusterChanges { revision: all.revision, ..ClusterChanges::default() });
        let mut changed = set("b", 2);
        changed.generation += 1;
        changed.layout.replicas = Some(9);
        state.upsert(changed, at(1.0));
        state.remove(&ObjectKey { name: "c".into(), ..key() });
        let some = state.changes(since);
        assert!(!some.all && names(&some) == ["eadt/b"] && some.removed == ["eadt/c"], "{some:?}");
        assert_eq!(names(&state.changes(Some(some.revision))), Vec::<&str>::new());
        // It comes and goes more often than is remembered.
        for round in 0..MAX_GONE as u64 + 10 {
            let name = format!("x-{round}");
            state.upsert(set(&name, 1), at(2.0));
            state.remove(&ObjectKey { name, ..key() });
        }
        let later = state.changes(Some(some.revision));
        assert!(later.all && names(&later) == ["eadt/a", "eadt/b"] && later.revision == state.revision, "{later:?}");
        assert!(
            state.log.changes.len() <= state.keys_by_workload.len() + MAX_GONE && state.log.last.len() == state.log.changes.len()
        );
    }
}
