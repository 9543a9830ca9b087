//! What the watches have seen, bounded by what opted in. No I/O; the caller gives the time.
//!
//! Of objects that did not opt in nothing is kept. Every object is judged once, when it or what concerns it changes.

use std::collections::{BTreeMap, BTreeSet};

use eadt_cluster::{Applied, Changes, Managed};
use eadt_schemas::EventTime;
use eadt_schemas::v1::{DeviceHolders, DeviceState, Layout, Origin, UpdateMode};

use crate::boards::{Board, Boards};
use crate::devices::SILENT_SECONDS;
use crate::kinds::Kind;
use crate::managed::{Since, managed};
use crate::object::Seen;
use crate::owners::TakenBack;
use crate::policy::names::{OBSERVE, PAUSED};
use crate::policy::{Problem, Reason, Target, check, paused, short_form};
use crate::record::Field;
use crate::rules::Rule;
use crate::terms::Terms;

/// Changes of workloads that are gone are remembered up to so many beside those that are there.
const MAX_GONE: usize = 1000;

/// Names an object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    pub kind: &'static str,
    pub namespace: String,
    pub name: String,
}

impl Key {
    pub fn of(seen: &Seen) -> Self {
        Self { kind: seen.kind.kind, namespace: seen.namespace.clone(), name: seen.name.clone() }
    }

    pub fn kind(&self) -> Option<&'static Kind> {
        crate::kinds::KINDS.iter().find(|kind| kind.kind == self.kind)
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}/{}", self.kind, self.namespace, self.name)
    }
}

/// Namespace and name of a policy.
pub type RuleKey = (String, String);

/// A managed workload.
#[derive(Debug, Clone)]
pub struct Entry {
    pub seen: Seen,
    pub terms: Terms,
    pub paused: bool,
    /// No policy or label is left, or only one that was made anew, and fields of it are still EADT's.
    pub orphaned: bool,
    pub managed: Managed,
    /// What its GPUs were when it last held some.
    board: Board,
    since: Since,
}

/// Everything that is known.
#[derive(Debug, Default)]
pub struct State {
    /// Grows with every change of what [`State::workloads`] gives.
    pub revision: u64,
    pub origin: Origin,
    rules: BTreeMap<RuleKey, Rule>,
    targets: BTreeMap<Key, BTreeSet<RuleKey>>,
    entries: BTreeMap<Key, Entry>,
    /// Objects by the workload that they are.
    named: BTreeMap<String, BTreeSet<Key>>,
    log: Log,
    /// Policies with an approval.
    approvals: BTreeSet<RuleKey>,
    /// Values of the annotation that pauses, by namespace.
    namespaces: BTreeMap<String, String>,
    /// Objects by the object that manages them, as `namespace/Kind/name`.
    children: BTreeMap<String, BTreeSet<Key>>,
    /// Policies were listed; before that nobody's fields are given back.
    rules_known: bool,
    /// Objects that must be looked at: something may be due.
    dirty: BTreeSet<Key>,
    /// Policies of which something else is to be said now.
    touched: BTreeSet<RuleKey>,
    /// Targets of policies that have not been read yet.
    unread: BTreeSet<Key>,
    /// Targets that are not there.
    missing: BTreeSet<Key>,
    boards: Boards,
    /// Decisions whose changes the jobs report to follow.
    followed: BTreeMap<Key, String>,
}

/// Which workload changed when, each once.
#[derive(Debug, Default)]
struct Log {
    /// Workloads by the revision of their last change.
    changes: BTreeMap<u64, String>,
    last: BTreeMap<String, u64>,
    /// What changed up to this revision may be forgotten.
    complete_after: u64,
}

impl Log {
    fn note(&mut self, workload: &str, revision: u64, there: usize) {
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

    /// `None`: it is not known any more.
    fn since(&self, revision: u64) -> Option<impl Iterator<Item = &String>> {
        (revision >= self.complete_after).then(|| self.changes.range(revision + 1..).map(|(_, workload)| workload))
    }
}

impl State {
    pub fn new(origin: Origin) -> Self {
        Self { origin, ..Self::default() }
    }

    /// Whether an object would be kept, from its metadata alone.
    pub fn concerns(&self, key: &Key, labelled: bool, marked: bool) -> bool {
        labelled || marked || self.targets.contains_key(key) || self.entries.contains_key(key)
    }

    /// The object with what is known of it from before.
    pub fn settled(&self, seen: Seen) -> Seen {
        match self.entries.get(&Key::of(&seen)) {
            Some(entry) => seen.following(&entry.seen),
            None => seen,
        }
    }

    /// Takes note of an object, and gives it [settled](Self::settled).
    pub fn settle(&mut self, seen: Seen, now: EventTime) -> Seen {
        let seen = self.settled(seen);
        self.saw(seen.clone(), now);
        seen
    }

    /// Takes note of an object. An older version than the known one is no news.
    pub fn saw(&mut self, seen: Seen, now: EventTime) {
        let key = Key::of(&seen);
        let seen = self.settled(seen);
        self.missing.remove(&key);
        self.unread.remove(&key);
        if let Some(entry) = self.entries.get(&key)
            && entry.seen.uid == seen.uid
            && older(&seen.resource_version, &entry.seen.resource_version)
        {
            return;
        }
        self.judge(&key, Some(seen), now);
    }

    /// A node's collector says who holds its GPUs; gives the workloads that this concerns.
    pub fn held(&mut self, said: &DeviceHolders) -> BTreeSet<String> {
        self.boards.held(said)
    }

    /// A node's agent says what its GPUs are; gives the workloads that this concerns.
    pub fn said(&mut self, state: &DeviceState) -> BTreeSet<String> {
        self.boards.said(state)
    }

    /// The GPUs of these workloads are others.
    pub fn on_other_boards(&mut self, workloads: &BTreeSet<String>, now: EventTime) {
        let keys = workloads.iter().filter_map(|workload| self.named.get(workload)).flatten().cloned().collect::<Vec<_>>();
        for key in keys {
            self.judge(&key, None, now);
        }
    }

    /// An object is gone.
    pub fn gone(&mut self, key: &Key) {
        if let Some(entry) = self.entries.remove(key) {
            self.unname(&entry.managed.state.workload, key);
            self.note(&entry.managed.state.workload);
            self.forget_child(&entry.seen, key);
        }
        self.followed.remove(key);
        self.dirty.remove(key);
        self.touch(key);
        if self.targets.contains_key(key) {
            self.missing.insert(key.clone());
        }
    }

    /// Everything of a kind was listed: what was not among it is gone.
    pub fn listed(&mut self, kind: &'static str, there: &BTreeSet<Key>) {
        let gone: Vec<_> = self.entries.keys().filter(|key| key.kind == kind && !there.contains(key)).cloned().collect();
        for key in gone {
            self.gone(&key);
        }
    }

    /// A policy is there, or has changed.
    pub fn rule(&mut self, rule: Rule, now: EventTime) {
        let name = (rule.namespace.clone(), rule.name.clone());
        let after = rule.key();
        let approved = rule.approved().map(str::to_owned);
        if approved.is_some() {
            self.approvals.insert(name.clone());
        } else {
            self.approvals.remove(&name);
        }
        let before = self.rules.insert(name.clone(), rule);
        // Whoever applies changes looks for approvals where something is new.
        self.revision += u64::from(before.as_ref().and_then(Rule::approved) != approved.as_deref());
        let before = before.and_then(|before| before.key());
        if let Some(target) = before.filter(|before| Some(before) != after.as_ref()) {
            self.untarget(&target, &name, now);
        }
        if let Some(target) = after {
            self.targets.entry(target.clone()).or_default().insert(name);
            if self.entries.contains_key(&target) {
                self.judge(&target, None, now);
            } else if !self.missing.contains(&target) {
                self.unread.insert(target.clone());
            }
            self.judge_relatives(&target, now);
        }
    }

    pub fn rule_gone(&mut self, name: &RuleKey, now: EventTime) {
        self.approvals.remove(name);
        if let Some(target) = self.rules.remove(name).and_then(|rule| rule.key()) {
            self.untarget(&target, name, now);
            self.judge_relatives(&target, now);
        }
    }

    /// All policies were listed.
    pub fn rules_listed(&mut self, there: &BTreeSet<RuleKey>, now: EventTime) {
        let gone: Vec<_> = self.rules.keys().filter(|name| !there.contains(name)).cloned().collect();
        for name in gone {
            self.rule_gone(&name, now);
        }
        self.rules_known = true;
        for key in self.entries.keys().cloned().collect::<Vec<_>>() {
            self.judge(&key, None, now);
        }
    }

    fn untarget(&mut self, target: &Key, name: &RuleKey, now: EventTime) {
        if let Some(names) = self.targets.get_mut(target) {
            names.remove(name);
            if names.is_empty() {
                self.targets.remove(target);
                self.unread.remove(target);
                self.missing.remove(target);
            }
        }
        self.judge(target, None, now);
    }

    /// The value of a namespace's annotation that pauses its workloads.
    pub fn namespace(&mut self, name: &str, value: Option<&str>, now: EventTime) {
        let before = match value {
            Some(value) => self.namespaces.insert(name.to_owned(), value.to_owned()),
            None => self.namespaces.remove(name),
        };
        if before.as_deref() != value {
            for key in self.entries.keys().filter(|key| key.namespace == name).cloned().collect::<Vec<_>>() {
                self.judge(&key, None, now);
            }
        }
    }

    /// Policies on a workload and on what manages it contradict each other, and those on two workloads of one name.
    fn judge_relatives(&mut self, target: &Key, now: EventTime) {
        let children = self.children.get(&family(target)).cloned().unwrap_or_default();
        for key in children.into_iter().chain(namesakes(target).into_iter().filter(|key| key != target)) {
            self.judge(&key, None, now);
        }
    }

    /// The policies for an object.
    pub fn rules_for(&self, key: &Key) -> Vec<&Rule> {
        self.targets.get(key).into_iter().flatten().filter_map(|name| self.rules.get(name)).collect()
    }

    pub fn rule_named(&self, name: &RuleKey) -> Option<&Rule> {
        self.rules.get(name)
    }

    pub fn rules(&self) -> impl Iterator<Item = &Rule> {
        self.rules.values()
    }

    /// Policies whose recommendation somebody approved.
    pub fn approvals(&self) -> impl Iterator<Item = &Rule> {
        self.approvals.iter().filter_map(|name| self.rules.get(name))
    }

    /// What the policies of an object have against it, beside what each says of itself.
    pub fn problems(&self, rule: &Rule) -> Vec<Problem> {
        let parents = rule.key().and_then(|key| Some(self.entries.get(&key)?.seen.controlled_by.clone())).unwrap_or_default();
        self.problems_below(rule, &parents)
    }

    /// `parents`: what manages the policy's target, as `Kind/name`.
    fn problems_below(&self, rule: &Rule, parents: &[String]) -> Vec<Problem> {
        let mut problems = rule.resolved.as_ref().err().cloned().unwrap_or_default();
        let key = rule.key();
        // Only policies that have to do with each other: there may be thousands.
        let mut related: Vec<&Rule> = vec![rule];
        if let Some(key) = &key {
            related.extend(namesakes(key).iter().flat_map(|key| self.rules_for(key)));
            related.extend(self.children.get(&family(key)).into_iter().flatten().flat_map(|child| self.rules_for(child)));
            let parents = parents.iter().filter_map(|parent| parent_key(&key.namespace, parent));
            related.extend(parents.flat_map(|key| self.rules_for(&key)));
        }
        let related = related.into_iter().map(|rule| (rule.name.clone(), rule.target.clone())).collect();
        let found = |target: &crate::policy::TargetRef| {
            let kind = Kind::find(&target.api_version, &target.kind);
            let key = kind.map(|kind| Key { kind: kind.kind, namespace: rule.namespace.clone(), name: target.name.clone() });
            let Some(key) = key.filter(|key| !self.missing.contains(key)) else { return Target::Missing };
            let own = rule.key().as_ref() == Some(&key);
            let known = self.entries.get(&key).map(|entry| entry.seen.controlled_by.as_slice());
            let parents = if own { parents } else { known.unwrap_or_default() };
            let owners = parents.iter().filter_map(|parent| parent.split_once('/'));
            Target::Found { owners: owners.map(|(kind, name)| (kind.to_owned(), name.to_owned())).collect() }
        };
        problems.extend(check(&related, found).remove(&rule.name).unwrap_or_default());
        problems
    }

    /// What may be done to an object, whether it is paused, and whether it is an orphan; `None`: it did not opt in.
    pub fn terms(&self, seen: &Seen, now: EventTime) -> Option<(Terms, bool, bool)> {
        let key = Key::of(seen);
        let around = self.namespaces.get(&seen.namespace).map(|value| (PAUSED.to_owned(), value.clone()));
        let (paused, _) = paused(&seen.annotations, &around.into_iter().collect());
        match self.rules_for(&key).as_slice() {
            [rule] => {
                let namesake = namesakes(&key).iter().any(|other| *other != key && self.targets.contains_key(other));
                let related = namesake || !seen.controlled_by.is_empty() || self.children.contains_key(&family(&key));
                let conflict = |problem: &Problem| matches!(problem.reason, Reason::OwnerConflict | Reason::TargetConflict);
                let mut terms = rule.terms(seen, now);
                if related && self.problems_below(rule, &seen.controlled_by).iter().any(conflict) {
                    terms.mode = UpdateMode::Observe;
                }
                // One that is made again begins anew: what was taken over, or asked for, for the former one goes back first.
                let taken = seen.taken.iter().map(|taken| &taken.policy_uid);
                let mut uids = taken.chain(seen.mark.iter().map(|mark| &mark.policy_uid));
                let of_former = uids.any(|uid| !uid.is_empty() && *uid != rule.uid);
                Some((terms, paused, self.rules_known && of_former))
            }
            // Two that contradict each other: nothing is done.
            [first, ..] => Some((Terms { mode: UpdateMode::Observe, ..first.terms(seen, now) }, paused, false)),
            [] => {
                let labelled = short_form(&seen.labels).ok().flatten();
                let orphaned = (seen.taken.is_some() || seen.mark.is_some()) && self.rules_known;
                let observe = Terms { mode: UpdateMode::Observe, ..Terms::default() };
                (labelled.is_some() || orphaned).then(|| (labelled.unwrap_or(observe), paused, orphaned))
            }
        }
    }

    fn judge(&mut self, key: &Key, seen: Option<Seen>, now: EventTime) {
        let before = self.entries.remove(key);
        let Some(seen) = seen.or_else(|| before.as_ref().map(|entry| entry.seen.clone())) else { return };
        for parent in &seen.controlled_by {
            self.children.entry(format!("{}/{parent}", seen.namespace)).or_default().insert(key.clone());
        }
        let Some((terms, paused, orphaned)) = self.terms(&seen, now) else {
            if let Some(before) = before {
                self.unname(&before.managed.state.workload, key);
                self.note(&before.managed.state.workload);
            }
            self.forget_child(&seen, key);
            self.followed.remove(key);
            return;
        };
        let mut since = before.as_ref().map(|entry| entry.since.clone()).unwrap_or_default();
        // While its pods are replaced it holds none, and their collectors need a moment: what it has is known from before.
        let recent = |entry: &&Entry| {
            let ready = entry.managed.state.ready_time;
            !seen.progress.complete() || ready.is_none_or(|ready| now.seconds_since(ready) <= SILENT_SECONDS)
        };
        let before_board = before.as_ref().filter(recent).map(|entry| entry.board.clone());
        let board = self.boards.of(&seen.workload(), now).or(before_board).unwrap_or_default();
        let managed = managed(&seen, &terms, &board, paused, self.origin, &mut since, now);
        let workload = managed.state.workload.clone();
        self.named.entry(workload.clone()).or_default().insert(key.clone());
        let entry = Entry { seen, terms, paused, orphaned, managed, board, since };
        if before.as_ref().map(Entry::told) != Some(entry.told()) {
            self.touch(key);
        }
        if before.as_ref().and_then(Entry::known) != entry.known() {
            self.note(&workload);
        }
        if entry.wants_looking_after() {
            self.dirty.insert(key.clone());
        }
        self.entries.insert(key.clone(), entry);
    }

    fn touch(&mut self, key: &Key) {
        let names = self.targets.get(key).cloned().unwrap_or_default();
        self.touched.extend(names);
    }

    /// Policies of which something else is to be said, and forgets them.
    pub fn take_touched(&mut self) -> BTreeSet<RuleKey> {
        std::mem::take(&mut self.touched)
    }

    fn forget_child(&mut self, seen: &Seen, key: &Key) {
        for parent in &seen.controlled_by {
            let parent = format!("{}/{parent}", seen.namespace);
            if let Some(children) = self.children.get_mut(&parent) {
                children.remove(key);
                if children.is_empty() {
                    self.children.remove(&parent);
                }
            }
        }
    }

    fn note(&mut self, workload: &str) {
        self.revision += 1;
        self.log.note(workload, self.revision, self.named.len());
    }

    fn unname(&mut self, workload: &str, key: &Key) {
        if let Some(keys) = self.named.get_mut(workload) {
            keys.remove(key);
            if keys.is_empty() {
                self.named.remove(workload);
            }
        }
    }

    fn named(&self, workload: &str) -> impl Iterator<Item = &Entry> {
        self.named.get(workload).into_iter().flatten().filter_map(|key| self.entries.get(key))
    }

    /// A workload that opted in. Of two objects of different kinds with one name only one is known, rather one with a policy.
    fn managed(&self, workload: &str) -> Option<&Managed> {
        self.named(workload).filter(|entry| entry.known().is_some()).min_by_key(|entry| entry.terms.policy.is_none())?.known()
    }

    /// Every workload that opted in.
    pub fn workloads(&self) -> Vec<Managed> {
        self.named.keys().filter_map(|workload| self.managed(workload)).cloned().collect()
    }

    /// What changed since a revision.
    pub fn changes(&self, since: Option<u64>) -> Changes {
        let revision = self.revision;
        let Some(changed) = since.and_then(|since| self.log.since(since)) else {
            return Changes { revision, all: true, workloads: self.workloads(), gone: Vec::new() };
        };
        let mut changes = Changes { revision, ..Changes::default() };
        for workload in changed {
            match self.managed(workload) {
                Some(managed) => changes.workloads.push(managed.clone()),
                None => changes.gone.push(workload.clone()),
            }
        }
        changes
    }

    /// The object of a workload.
    pub fn find(&self, workload: &str) -> Option<&Entry> {
        self.named(workload).filter(|entry| !entry.orphaned).min_by_key(|entry| entry.terms.policy.is_none())
    }

    pub fn entry(&self, key: &Key) -> Option<&Entry> {
        self.entries.get(key)
    }

    pub fn entries(&self) -> impl Iterator<Item = (&Key, &Entry)> {
        self.entries.iter()
    }

    pub fn is_missing(&self, key: &Key) -> bool {
        self.missing.contains(key)
    }

    /// What must be looked at, and forgets that it must.
    pub fn take_dirty(&mut self) -> BTreeSet<Key> {
        std::mem::take(&mut self.dirty)
    }

    /// The job of a workload does what the change of a decision asked of it.
    pub fn follows(&mut self, workload: &str, decision_id: &str) {
        let Some(key) = self.find(workload).map(|entry| Key::of(&entry.seen)) else { return };
        if self.followed.get(&key).is_none_or(|known| known != decision_id) {
            self.followed.insert(key.clone(), decision_id.to_owned());
            self.dirty.insert(key);
        }
    }

    /// Whether the job follows the last change of its workload.
    pub fn follows_last(&self, key: &Key) -> bool {
        let applied = self.entries.get(key).and_then(|entry| entry.managed.rolling_out());
        applied.is_none_or(|applied| self.is_followed(key, applied))
    }

    /// Whether a change needs nothing of its job that the job does not do.
    pub fn is_followed(&self, key: &Key, applied: &Applied) -> bool {
        applied.asked().is_none() || self.followed.get(key).is_some_and(|decision| *decision == applied.decision_id)
    }

    pub fn mark_dirty(&mut self, key: Key) {
        self.dirty.insert(key);
    }

    /// Everything must be looked at.
    pub fn mark_all_dirty(&mut self) {
        let here = self.entries.iter().filter(|(_, entry)| !entry.seen.deleting);
        self.dirty.extend(here.map(|(key, _)| key.clone()));
    }

    /// Targets of these kinds that must be read, and forgets that they must.
    pub fn take_unread(&mut self, listed: impl Fn(&'static str) -> bool) -> BTreeSet<Key> {
        let (now, later) = std::mem::take(&mut self.unread).into_iter().partition(|key| listed(key.kind));
        self.unread = later;
        now
    }

    pub fn mark_unread(&mut self, key: Key) {
        self.unread.insert(key);
    }
}

impl Entry {
    /// Fields that were taken over must be given back.
    pub fn restoring(&self) -> bool {
        self.orphaned
    }

    /// What is said of it; an orphan is spoken of only where its label asks for that.
    fn known(&self) -> Option<&Managed> {
        (!self.orphaned || self.seen.labels.contains_key(OBSERVE)).then_some(&self.managed)
    }

    /// The enabled knobs' fields are to be taken over.
    pub fn wants_take_over(&self) -> bool {
        self.terms.mode == UpdateMode::Enforce && self.may_take_over()
    }

    /// Some of the enabled knobs' fields are not EADT's, and nothing speaks against taking them over.
    pub fn may_take_over(&self) -> bool {
        let seen = &self.seen;
        let is_taken = |field: &Field| seen.taken.iter().flat_map(|taken| &taken.fields).any(|former| former.field == *field);
        !self.paused
            && !self.orphaned
            && !seen.deleting
            && seen.problems.is_empty()
            && crate::change::fields(seen, self.terms.knobs).iter().any(|field| !is_taken(field))
    }

    /// A change is on its way: its own, or the way back from one.
    pub fn in_motion(&self) -> bool {
        let Some(mark) = &self.seen.mark else { return false };
        let generation = self.seen.layout_generation();
        mark.resume
            || mark.applied.as_ref().is_some_and(|applied| {
                let rolling = applied.generation == generation && applied.ready_time.is_none();
                let back = applied.rolled_back.as_ref().is_some_and(|back| back.generation == generation);
                rolling && applied.rolled_back.is_none() || back && !self.seen.progress.complete()
            })
    }

    /// Only its job has not followed yet: pods and devices have nothing to do with the change that is on its way.
    pub fn waits_for_job(&self) -> bool {
        let of_others = |layout: &Layout| Layout { precision: None, frozen_prefix_layers: None, ..layout.clone() };
        let whole = self.seen.progress.complete() && self.seen.mark.as_ref().is_some_and(|mark| !mark.resume);
        let applied = self.managed.rolling_out().filter(|_| whole);
        applied.is_some_and(|a| a.asked().is_some() && of_others(&a.before) == of_others(&a.layout))
    }

    /// What a policy's status says of it, figures apart.
    fn told(&self) -> (Layout, UpdateMode, bool, bool, Option<&String>, u32, &[TakenBack]) {
        let seen = &self.seen;
        let (problem, ready) = (seen.problems.first(), seen.progress.ready);
        (seen.layout.clone(), self.terms.mode, self.paused, self.in_motion(), problem, ready, &seen.taken_back)
    }

    fn wants_looking_after(&self) -> bool {
        !self.seen.deleting && (self.restoring() || self.wants_take_over() || self.in_motion())
    }
}

/// An object as its children name it.
fn family(key: &Key) -> String {
    format!("{}/{}/{}", key.namespace, key.kind, key.name)
}

/// Objects of all kinds that would be known by the same name.
fn namesakes(key: &Key) -> Vec<Key> {
    crate::kinds::KINDS.iter().map(|kind| Key { kind: kind.kind, ..key.clone() }).collect()
}

fn parent_key(namespace: &str, parent: &str) -> Option<Key> {
    let (kind, name) = parent.split_once('/')?;
    let kind = crate::kinds::KINDS.iter().find(|known| known.kind == kind)?;
    Some(Key { kind: kind.kind, namespace: namespace.to_owned(), name: name.to_owned() })
}

/// Versions of one object grow; what cannot be compared is taken.
pub fn older(a: &str, b: &str) -> bool {
    matches!((a.parse::<u64>(), b.parse::<u64>()), (Ok(a), Ok(b)) if a < b)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::object::tests::{seen, training};
    use crate::record::{APPLIED, Former, Mark, TAKEN_OVER, TakenOver};

    fn at(seconds: f64) -> EventTime {
        EventTime::from_seconds(1_767_225_600.0 + seconds)
    }

    fn key() -> Key {
        Key { kind: "StatefulSet", namespace: "eadt".into(), name: "llm-training".into() }
    }

    fn rule(name: &str, mode: &str) -> Rule {
        rule_of("eadt", name, mode)
    }

    fn rule_of(namespace: &str, name: &str, mode: &str) -> Rule {
        let policy = json!({
            "apiVersion": "eadt.dev/v1alpha1", "kind": "EnergyPolicy",
            "metadata": {"name": name, "namespace": namespace, "uid": "p", "generation": 1},
            "spec": {
                "targetRef": {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "llm-training"}, "updateMode": mode,
                "bounds": {"mpsThreadPercentage": {"min": 25}, "replicas": {"max": 12}},
            },
        });
        crate::rules::rule(&policy).unwrap().0
    }

    fn object(version: u64) -> Value {
        let mut object = training(6, "50", "6", "2");
        object["metadata"]["resourceVersion"] = json!(version.to_string());
        object
    }

    #[test]
    fn what_did_not_opt_in_is_not_kept() {
        let mut state = State::new(Origin::Measured);
        state.saw(seen(&object(1)), at(0.0));
        assert_eq!((state.workloads().len(), state.entries().count(), state.revision), (0, 0, 0));
        state.rule(rule("p", "Recommend"), at(1.0));
        assert_eq!(state.take_unread(|_| true).into_iter().collect::<Vec<_>>(), [key()], "its target must be read");
        state.saw(seen(&object(1)), at(2.0));
        assert_eq!(state.workloads().len(), 1);
        assert!(state.take_dirty().is_empty(), "mode recommend touches nothing");
        state.rule_gone(&("eadt".into(), "p".into()), at(3.0));
        assert_eq!((state.workloads().len(), state.entries().count()), (0, 0));
    }

    #[test]
    fn a_policy_reaches_no_workload_of_another_namespace() {
        let mut state = State::new(Origin::Measured);
        state.saw(seen(&object(1)), at(0.0));
        state.rule(rule_of("team-b", "p", "Enforce"), at(1.0));
        let theirs = Key { namespace: "team-b".into(), ..key() };
        assert_eq!(
            state.take_unread(|_| true).into_iter().collect::<Vec<_>>(),
            [theirs],
            "its target is one of its own namespace"
        );
        state.saw(seen(&object(2)), at(2.0));
        assert_eq!((state.workloads().len(), state.entries().count()), (0, 0));
        state.rule(rule("p", "Enforce"), at(3.0));
        state.saw(seen(&object(2)), at(4.0));
        assert_eq!(state.workloads().len(), 1, "one of the workload's own namespace does");
    }

    #[test]
    fn a_label_lets_a_workload_be_observed() {
        let mut state = State::new(Origin::Measured);
        let mut labelled = object(1);
        labelled["metadata"]["labels"][OBSERVE] = json!("true");
        state.saw(seen(&labelled), at(0.0));
        assert_eq!(state.workloads()[0].state.mode, UpdateMode::Observe);
        labelled["metadata"]["labels"][OBSERVE] = json!("false");
        labelled["metadata"]["resourceVersion"] = json!("2");
        state.saw(seen(&labelled), at(1.0));
        assert!(state.workloads().is_empty());
    }

    #[test]
    fn a_pause_of_workload_or_namespace_holds_at_once() {
        let mut state = State::new(Origin::Measured);
        state.rule(rule("p", "Enforce"), at(0.0));
        state.saw(seen(&object(1)), at(0.0));
        assert!(!state.workloads()[0].state.paused);
        assert!(state.take_dirty().contains(&key()), "its fields are to be taken over");
        state.namespace("eadt", Some("true"), at(1.0));
        assert!(state.workloads()[0].state.paused);
        assert!(state.take_dirty().is_empty(), "nothing is taken over while it is paused");
        state.namespace("eadt", None, at(2.0));
        let mut paused = object(2);
        paused["metadata"]["annotations"][PAUSED] = json!("true");
        state.saw(seen(&paused), at(3.0));
        assert!(state.workloads()[0].state.paused);
    }

    #[test]
    fn two_policies_for_one_workload_do_nothing() {
        let mut state = State::new(Origin::Measured);
        state.rule(rule("p", "Enforce"), at(0.0));
        state.rule(rule("q", "Enforce"), at(0.0));
        state.saw(seen(&object(1)), at(0.0));
        assert_eq!(state.workloads()[0].state.mode, UpdateMode::Observe);
        let reasons: Vec<_> = state.rules().flat_map(|rule| state.problems(rule)).map(|problem| problem.reason).collect();
        assert_eq!(reasons, [Reason::TargetConflict, Reason::TargetConflict]);
        state.rule_gone(&("eadt".into(), "q".into()), at(1.0));
        assert_eq!(state.workloads()[0].state.mode, UpdateMode::Enforce);
    }

    #[test]
    fn a_policy_on_what_manages_another_ones_target_stops_both() {
        let mut state = State::new(Origin::Measured);
        let mut inner = object(1);
        inner["metadata"]["ownerReferences"] = json!([{"controller": true, "kind": "LeaderWorkerSet", "name": "l", "uid": "x"}]);
        state.rule(rule("inner", "Enforce"), at(0.0));
        state.saw(seen(&inner), at(0.0));
        assert_eq!(state.workloads()[0].state.mode, UpdateMode::Enforce);
        let mut outer = rule("outer", "Enforce");
        outer.target.api_version = "leaderworkerset.x-k8s.io/v1".into();
        outer.target.kind = "LeaderWorkerSet".into();
        outer.target.name = "l".into();
        state.rule(outer.clone(), at(1.0));
        assert_eq!(state.workloads()[0].state.mode, UpdateMode::Observe);
        assert!(state.problems(&outer).iter().any(|problem| problem.reason == Reason::OwnerConflict));
        state.rule_gone(&("eadt".into(), "outer".into()), at(2.0));
        assert_eq!(state.workloads()[0].state.mode, UpdateMode::Enforce);
    }

    #[test]
    fn a_policy_further_up_than_what_manages_the_target_stops_both_too() {
        let mut state = State::new(Origin::Measured);
        let mut inner = object(1);
        inner["metadata"]["ownerReferences"] = json!([{"controller": true, "kind": "Pod", "name": "l-0", "uid": "x"}]);
        inner["metadata"]["labels"]["leaderworkerset.sigs.k8s.io/name"] = json!("l");
        let mut outer = rule("outer", "Enforce");
        outer.target.api_version = "leaderworkerset.x-k8s.io/v1".into();
        outer.target.kind = "LeaderWorkerSet".into();
        outer.target.name = "l".into();
        state.rule(outer.clone(), at(0.0));
        state.rule(rule("inner", "Enforce"), at(0.0));
        state.saw(seen(&inner), at(0.0));
        assert_eq!(state.workloads()[0].state.mode, UpdateMode::Observe);
        assert!(state.problems(&outer).iter().any(|problem| problem.reason == Reason::OwnerConflict));
    }

    #[test]
    fn fields_are_given_back_only_once_all_policies_are_known() {
        let mut state = State::new(Origin::Measured);
        let mut taken = object(1);
        taken["metadata"]["annotations"][TAKEN_OVER] = json!(serde_json::to_string(&TakenOver::default()).unwrap());
        state.rule(rule("p", "Enforce"), at(0.0));
        state.saw(seen(&taken), at(0.0));
        state.take_dirty();
        let mut early = State::new(Origin::Measured);
        early.saw(seen(&taken), at(0.0));
        assert!(early.take_dirty().is_empty(), "its policy may be listed yet");
        state.rules_listed(&BTreeSet::from([("eadt".to_owned(), "p".to_owned())]), at(1.0));
        assert!(!state.entry(&key()).unwrap().restoring());
        state.rules_listed(&BTreeSet::new(), at(2.0));
        assert!(state.entry(&key()).unwrap().restoring() && state.take_dirty().contains(&key()));
        assert!(state.workloads().is_empty());
    }

    #[test]
    fn what_was_taken_over_for_a_policy_goes_back_before_one_that_was_made_again_begins() {
        let mut state = State::new(Origin::Measured);
        state.rules_listed(&BTreeSet::new(), at(0.0));
        state.rule(rule("p", "Enforce"), at(0.0));
        let mut taken = object(1);
        let fields = vec![Former { field: Field::Replicas, value: Some("6".into()), owners: vec![] }];
        let record = TakenOver { policy: "p".into(), policy_uid: "p".into(), fields, ..TakenOver::default() };
        taken["metadata"]["annotations"][TAKEN_OVER] = json!(serde_json::to_string(&record).unwrap());
        state.saw(seen(&taken), at(0.0));
        assert!(!state.entry(&key()).unwrap().restoring());
        state.rule(Rule { uid: "q".into(), ..rule("p", "Enforce") }, at(1.0));
        let entry = state.entry(&key()).unwrap();
        assert!(entry.restoring() && !entry.wants_take_over() && state.workloads().is_empty());
        state.saw(seen(&object(2)), at(2.0));
        let entry = state.entry(&key()).unwrap();
        assert!(!entry.restoring() && entry.wants_take_over() && state.workloads().len() == 1);
    }

    #[test]
    fn what_was_asked_for_under_a_policy_goes_back_before_one_that_was_made_again_begins() {
        let mut state = State::new(Origin::Measured);
        state.rules_listed(&BTreeSet::new(), at(0.0));
        state.rule(rule("p", "Recommend"), at(0.0));
        let mut capped = object(1);
        let mark = Mark { policy_uid: "p".into(), power_limit_watts: Some(300.0), ..Mark::default() };
        capped["metadata"]["annotations"][APPLIED] = json!(serde_json::to_string(&mark).unwrap());
        state.saw(seen(&capped), at(0.0));
        assert!(!state.entry(&key()).unwrap().restoring());
        state.rule(Rule { uid: "q".into(), ..rule("p", "Recommend") }, at(1.0));
        assert!(state.entry(&key()).unwrap().restoring());
    }

    #[test]
    fn policies_on_two_workloads_of_one_name_permit_nothing() {
        let mut state = State::new(Origin::Measured);
        state.rules_listed(&BTreeSet::new(), at(0.0));
        state.rule(rule("p", "Enforce"), at(0.0));
        state.saw(seen(&object(1)), at(0.0));
        let mode = |state: &State| state.entry(&key()).unwrap().terms.mode;
        assert_eq!(mode(&state), UpdateMode::Enforce);
        let mut other = rule("q", "Enforce");
        other.target.kind = "Deployment".into();
        state.rule(other, at(1.0));
        assert_eq!(mode(&state), UpdateMode::Observe);
        assert!(!state.entry(&key()).unwrap().wants_take_over());
        state.rule_gone(&("eadt".into(), "q".into()), at(2.0));
        assert_eq!(mode(&state), UpdateMode::Enforce);
    }

    #[test]
    fn a_policy_says_at_once_who_took_a_field_back() {
        let mut state = State::new(Origin::Measured);
        state.rule(rule("p", "Enforce"), at(0.0));
        let mut taken = object(1);
        let fields = vec![Former { field: Field::Replicas, value: Some("6".into()), owners: vec![] }];
        let record = TakenOver { fields, ..TakenOver::default() };
        taken["metadata"]["annotations"][TAKEN_OVER] = json!(serde_json::to_string(&record).unwrap());
        state.saw(seen(&taken), at(0.0));
        state.take_touched();
        taken["metadata"]["resourceVersion"] = json!("2");
        taken["metadata"]["managedFields"] =
            json!([{"manager": "flux", "operation": "Apply", "fieldsV1": {"f:spec": {"f:replicas": {}}}}]);
        state.saw(seen(&taken), at(1.0));
        assert_eq!(state.take_touched(), BTreeSet::from([("eadt".to_owned(), "p".to_owned())]));
    }

    #[test]
    fn annotations_of_a_deployment_are_no_generation_of_its_layout() {
        let mut state = State::new(Origin::Measured);
        let mut object = object(1);
        object["kind"] = json!("Deployment");
        object["metadata"]["labels"][OBSERVE] = json!("true");
        let mut version = 1;
        let mut after = |change: &dyn Fn(&mut Value)| {
            (version, object["metadata"]["generation"]) = (version + 1, json!(version + 4));
            object["metadata"]["resourceVersion"] = json!(version.to_string());
            change(&mut object);
            let again = seen(&object);
            state.saw(again.clone(), at(1.0));
            state.saw(again, at(1.0));
            state.workloads()[0].state.generation
        };
        assert_eq!(after(&|_| {}), 5, "as it is when it is seen for the first time");
        assert_eq!(after(&|object| object["metadata"]["annotations"]["a"] = json!("1")), 5);
        assert_eq!(after(&|object| object["spec"]["replicas"] = json!(9)), 6);
        assert_eq!(after(&|object| object["metadata"]["annotations"]["a"] = json!("2")), 6);
        let mark = json!(serde_json::to_string(&Mark { generation_offset: -2, ..Mark::default() }).unwrap());
        assert_eq!(after(&|object| object["metadata"]["annotations"][APPLIED] = mark.clone()), 7, "a mark counts for itself");
        assert_eq!(after(&|object| object["metadata"]["annotations"]["a"] = json!("3")), 7);
    }

    #[test]
    fn late_news_of_an_older_version_is_no_news() {
        let mut state = State::new(Origin::Measured);
        state.rule(rule("p", "Recommend"), at(0.0));
        state.saw(seen(&object(10)), at(0.0));
        let mut old = object(9);
        old["metadata"]["generation"] = json!(3);
        state.saw(seen(&old), at(1.0));
        assert_eq!(state.workloads()[0].state.generation, 4);
        old["metadata"]["uid"] = json!("another");
        state.saw(seen(&old), at(2.0));
        assert_eq!(state.workloads()[0].state.generation, 3, "another object of that name");
        state.listed("StatefulSet", &BTreeSet::new());
        assert!(state.workloads().is_empty() && state.is_missing(&key()));
    }

    fn set(name: &str, version: u64) -> Seen {
        let mut object = object(version);
        object["metadata"]["name"] = json!(name);
        object["metadata"]["labels"][OBSERVE] = json!("true");
        seen(&object)
    }

    fn names(changes: &Changes) -> Vec<&str> {
        changes.workloads.iter().map(|managed| managed.state.workload.as_str()).collect()
    }

    #[test]
    fn only_what_changed_is_told_and_what_is_forgotten_is_told_as_a_whole() {
        let mut state = State::new(Origin::Measured);
        for name in ["a", "b", "c"] {
            state.saw(set(name, 1), at(0.0));
        }
        let all = state.changes(None);
        assert!(all.all && names(&all) == ["eadt/a", "eadt/b", "eadt/c"], "{all:?}");
        let since = Some(all.revision);
        assert_eq!(state.changes(since), Changes { revision: all.revision, ..Changes::default() });
        let mut changed = set("b", 2);
        changed.generation += 1;
        changed.layout.replicas = Some(9);
        state.saw(changed, at(1.0));
        state.gone(&Key { name: "c".into(), ..key() });
        let some = state.changes(since);
        assert!(!some.all && names(&some) == ["eadt/b"] && some.gone == ["eadt/c"], "{some:?}");
        assert_eq!(names(&state.changes(Some(some.revision))), Vec::<&str>::new());
        // It comes and goes more often than is remembered.
        for round in 0..MAX_GONE as u64 + 10 {
            let name = format!("x-{round}");
            state.saw(set(&name, 1), at(2.0));
            state.gone(&Key { name, ..key() });
        }
        let later = state.changes(Some(some.revision));
        assert!(later.all && names(&later) == ["eadt/a", "eadt/b"] && later.revision == state.revision, "{later:?}");
        assert!(state.log.changes.len() <= state.named.len() + MAX_GONE && state.log.last.len() == state.log.changes.len());
    }
}
