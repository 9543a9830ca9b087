//! What people are told beside their objects: Kubernetes Events on the workload and its policy, and the policy's status.
//!
//! In: decisions and outcomes, from the actuator's thread. Out: Events and statuses, written by tasks of their own, so that no
//! decision waits for them. What repeats itself is said once; a status whose figures hardly changed is not written. Bounded: what
//! cannot be said in time is counted and dropped.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use eadt_schemas::v1::{Actuation, Decision, Layout, Outcome};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::ResourceExt;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::json;

use crate::client::words;
use crate::cluster::Shared;
use crate::owners::MANAGER;
use crate::policy::{EnergyPolicy, EnergyPolicyStatus};
use crate::report::{self, Known, MpsDefault};
use crate::rules::Rule;
use crate::state::{Key, RuleKey};

/// Events that wait to be written; a cluster that takes none for so long gets no more.
const MAX_WAITING: usize = 1000;
/// Workloads whose last Event is remembered.
const MAX_LAST: usize = 20_000;
/// The longest note that Kubernetes takes.
const MAX_NOTE: usize = 1024;
const CONTROLLER: &str = "eadt.dev/actuator";
/// Pause after a failed write.
const RETRY: Duration = Duration::from_secs(2);
const ATTEMPTS: u32 = 3;
const CALL: Duration = Duration::from_secs(10);
/// How often all statuses are looked at.
const ROUND: Duration = Duration::from_mins(1);

/// What is to be told.
#[derive(Debug, Default)]
pub struct Statuses {
    waiting: VecDeque<Said>,
    dropped: u64,
    /// What was said last of each workload: it is not repeated.
    last: BTreeMap<String, (Outcome, String, Layout)>,
    policies: BTreeMap<RuleKey, Known>,
    /// Policies whose status may have to be written.
    changed: BTreeSet<RuleKey>,
    /// The term that what is known beside the objects is of.
    term: Option<u64>,
}

/// One thing to say about a workload.
#[derive(Debug, Clone)]
struct Said {
    workload: String,
    decision: String,
    outcome: Outcome,
    note: String,
}

impl Statuses {
    /// This process leads in this term; `None`: it does not, or not for sure.
    pub fn leads(&mut self, term: Option<u64>) {
        if term.is_some() && self.term != term {
            self.term = term;
            self.policies.values_mut().for_each(Known::begin);
        }
    }

    /// A policy was seen in this version with this status, whoever wrote it.
    pub fn saw(&mut self, rule: &Rule, version: &str, status: EnergyPolicyStatus) {
        let name = (rule.namespace.clone(), rule.name.clone());
        self.policies.entry(name.clone()).or_default().saw(&rule.uid, version, status);
        self.changed.insert(name);
    }

    pub fn forget(&mut self, name: &RuleKey) {
        self.policies.remove(name);
        self.changed.remove(name);
    }

    pub fn recommend(&mut self, name: &RuleKey, decision: &Decision) {
        self.policies.entry(name.clone()).or_default().recommend(decision);
        self.changed.insert(name.clone());
    }

    /// What keeps a policy's workload from being looked after; `None`: nothing does.
    pub fn trouble(&mut self, name: RuleKey, trouble: Option<String>) {
        let known = self.policies.entry(name.clone()).or_default();
        if known.trouble != trouble {
            known.trouble = trouble;
            self.changed.insert(name);
        }
    }

    /// Why the nodes of a policy's workload do not have the MPS default that it names; `None`: they have, or it names none.
    pub fn mps_default(&mut self, name: RuleKey, why: Option<String>) {
        // Of a policy that is gone there is nothing to say.
        let Some(known) = self.policies.get_mut(&name) else { return };
        let found = why.map_or(MpsDefault::AsNamed, MpsDefault::NotSet);
        if known.mps_default != found {
            known.mps_default = found;
            self.changed.insert(name);
        }
    }

    pub fn change(&mut self, name: RuleKey) {
        self.changed.insert(name);
    }

    fn say(&mut self, actuation: &Actuation) {
        let key = (actuation.outcome, actuation.reason.clone(), actuation.layout.clone());
        if self.last.len() >= MAX_LAST && !self.last.contains_key(&actuation.workload) {
            // Names of decisions are anybody's; forgetting costs an Event that is written again.
            self.last.clear();
        }
        if self.last.insert(actuation.workload.clone(), key.clone()) == Some(key) {
            return;
        }
        if self.waiting.len() >= MAX_WAITING {
            self.dropped += 1;
            return;
        }
        self.waiting.push_back(Said {
            workload: actuation.workload.clone(),
            decision: actuation.decision_id.clone(),
            outcome: actuation.outcome,
            note: note(actuation),
        });
    }
}

/// A decision was read.
pub fn decided(shared: &Shared, decision: &Decision) {
    let Some(name) = rule_of(shared, &decision.workload) else { return };
    let mut statuses = shared.statuses();
    statuses.policies.entry(name.clone()).or_default().decided(decision);
    statuses.changed.insert(name);
}

/// A decision of before was read again that found that a change helped.
pub fn verified(shared: &Shared, decision: &Decision) {
    let Some(name) = rule_of(shared, &decision.workload) else { return };
    let mut statuses = shared.statuses();
    statuses.policies.entry(name.clone()).or_default().verified(decision);
    statuses.changed.insert(name);
}

/// Something became of a decision.
pub fn told(shared: &Shared, actuation: &Actuation) {
    let name = rule_of(shared, &actuation.workload);
    let mut statuses = shared.statuses();
    if let Some(name) = name {
        statuses.policies.entry(name.clone()).or_default().told(actuation);
        statuses.changed.insert(name);
    }
    statuses.say(actuation);
}

/// Recommendations that people approved.
pub fn approved(shared: &Shared) -> Vec<Decision> {
    let approvals: Vec<(RuleKey, String)> = shared.with_state_quietly(|state| {
        let rules = state.approvals().filter_map(|rule| Some((rule, rule.approved()?)));
        rules.map(|(rule, id)| ((rule.namespace.clone(), rule.name.clone()), id.to_owned())).collect()
    });
    let statuses = shared.statuses();
    let known = approvals.into_iter().filter_map(|(name, id)| statuses.policies.get(&name)?.approved(&id).cloned());
    known.collect()
}

/// Whether this decision is the recommendation that somebody approved.
pub fn is_approved(shared: &Shared, decision: &str, workload: &str) -> bool {
    let Some(name) = rule_of(shared, workload) else { return false };
    let id = shared.with_state_quietly(|state| state.rule_named(&name)?.approved().map(str::to_owned));
    let statuses = shared.statuses();
    let recommended = id.and_then(|id| statuses.policies.get(&name)?.approved(&id));
    recommended.is_some_and(|recommended| recommended.id == decision)
}

fn rule_of(shared: &Shared, workload: &str) -> Option<RuleKey> {
    shared.with_state_quietly(|state| {
        let key = state.find(workload).map(|entry| Key::of(&entry.seen))?;
        state.rules_for(&key).first().map(|rule| (rule.namespace.clone(), rule.name.clone()))
    })
}

fn reason(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Applied => "Applied",
        Outcome::Ready => "Ready",
        Outcome::Refused => "Refused",
        Outcome::Recommended => "Recommended",
        Outcome::RolledBack => "RolledBack",
        Outcome::Failed => "Failed",
    }
}

fn note(actuation: &Actuation) -> String {
    let mut note = match actuation.outcome {
        Outcome::Applied => format!("applied {}", report::words(&actuation.layout)),
        Outcome::Ready => match actuation.downtime_seconds {
            Some(seconds) => format!("all processes are ready {seconds:.0} s after the change"),
            None => "all processes are ready".into(),
        },
        Outcome::Refused => format!("nothing was changed: {}", actuation.reason),
        Outcome::RolledBack => format!("rolled back to {}: {}", report::words(&actuation.layout), actuation.reason),
        Outcome::Recommended | Outcome::Failed => actuation.reason.clone(),
    };
    let tail = format!(" (decision {})", actuation.decision_id);
    let room = MAX_NOTE.saturating_sub(tail.len());
    if note.len() > room {
        let cut = (0..=room.saturating_sub(3)).rev().find(|at| note.is_char_boundary(*at)).unwrap_or(0);
        note.truncate(cut);
        note.push_str("...");
    }
    note + &tail
}

/// Writes Events for ever.
pub async fn run(shared: Arc<Shared>) {
    let mut every = tokio::time::interval(Duration::from_millis(200));
    every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        every.tick().await;
        let (said, dropped) = {
            let mut statuses = shared.statuses();
            (statuses.waiting.pop_front(), std::mem::take(&mut statuses.dropped))
        };
        if dropped > 0 {
            tracing::warn!(dropped, "Events were not written: the API server is too slow");
        }
        let Some(said) = said else { continue };
        every.reset_immediately();
        for reference in references(&shared, &said.workload) {
            publish(&shared, &said, reference).await;
        }
    }
}

/// The workload, and its policy.
fn references(shared: &Shared, workload: &str) -> Vec<ObjectReference> {
    shared.with_state_quietly(|state| {
        let Some(entry) = state.find(workload) else { return vec![] };
        let seen = &entry.seen;
        let mut references = vec![ObjectReference {
            api_version: Some(seen.kind.api_version()),
            kind: Some(seen.kind.kind.into()),
            namespace: Some(seen.namespace.clone()),
            name: Some(seen.name.clone()),
            uid: Some(seen.uid.clone()),
            ..ObjectReference::default()
        }];
        let policy = crate::rules::resource();
        references.extend(state.rules_for(&Key::of(seen)).into_iter().map(|rule| ObjectReference {
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

async fn publish(shared: &Shared, said: &Said, regarding: ObjectReference) {
    let namespace = regarding.namespace.clone().unwrap_or_default();
    let event = event(said, regarding, &shared.settings.identity());
    let api: Api<Event> = Api::namespaced(shared.server.client.clone(), &namespace);
    for attempt in 1..=ATTEMPTS {
        let error = match tokio::time::timeout(CALL, api.create(&PostParams::default(), &event)).await {
            Ok(Ok(_)) => return,
            // Said before a restart, or by an attempt whose answer got lost.
            Ok(Err(kube::Error::Api(status))) if status.code == 409 => return,
            Ok(Err(error)) => words(&error),
            Err(_) => format!("no answer within {} s", CALL.as_secs()),
        };
        if attempt == ATTEMPTS {
            tracing::warn!(workload = said.workload, error, "an Event could not be written");
        } else {
            tokio::time::sleep(RETRY).await;
        }
    }
}

fn event(said: &Said, regarding: ObjectReference, identity: &str) -> Event {
    // The same thing has the same name, so that it is said once also across restarts.
    let kind = regarding.kind.as_deref().unwrap_or_default();
    let id = fnv(&format!("{}/{}/{kind}", said.decision, reason(said.outcome)));
    let name = regarding.name.clone().unwrap_or_default();
    let now = k8s_openapi::jiff::Timestamp::now();
    let bad = matches!(said.outcome, Outcome::RolledBack | Outcome::Failed);
    Event {
        metadata: ObjectMeta {
            name: Some(format!("{}.{id:016x}", &name[..name.len().min(200)])),
            namespace: regarding.namespace.clone(),
            ..ObjectMeta::default()
        },
        event_time: Some(MicroTime(now)),
        type_: Some(if bad { "Warning" } else { "Normal" }.into()),
        action: Some(if said.outcome == Outcome::RolledBack { "RollBack" } else { "Change" }.into()),
        reason: Some(reason(said.outcome).into()),
        note: Some(said.note.clone()),
        reporting_controller: Some(CONTROLLER.into()),
        reporting_instance: Some(identity.chars().take(128).collect()),
        regarding: Some(regarding),
        ..Event::default()
    }
}

/// FNV-1a: the same in every version of the program.
fn fnv(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Writes the statuses of policies for ever, while this process leads.
pub async fn write(shared: Arc<Shared>) {
    let mut every = tokio::time::interval(Duration::from_millis(500));
    every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut next_round = Instant::now();
    let mut term = None;
    loop {
        every.tick().await;
        if shared.leadership.term().is_none() {
            continue;
        }
        let mut names = std::mem::take(&mut shared.statuses().changed);
        names.extend(shared.with_state_quietly(crate::state::State::take_touched));
        // Freshness ends without news, and a new leader says what it sees.
        if next_round <= Instant::now() || term != shared.leadership.term() {
            next_round = Instant::now() + ROUND;
            term = shared.leadership.term();
            names.extend(shared.with_state_quietly(|state| {
                state.rules().map(|rule| (rule.namespace.clone(), rule.name.clone())).collect::<Vec<_>>()
            }));
        }
        for name in names {
            // Another one leads by now, and says it itself; this one goes on where it left off when it leads again.
            if shared.leadership.term() != term {
                shared.statuses().changed.insert(name);
                continue;
            }
            if let Err(error) = write_one(&shared, &name).await {
                tracing::warn!(policy = format!("{}/{}", name.0, name.1), error, "a policy's status could not be written");
                shared.statuses().changed.insert(name);
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

async fn write_one(shared: &Shared, name: &RuleKey) -> Result<(), String> {
    let (known, term) = {
        let statuses = shared.statuses();
        (statuses.policies.get(name).cloned().unwrap_or_default(), statuses.term)
    };
    let settings = &shared.settings;
    let status = shared.with_state_quietly(|state| {
        let rule = state.rule_named(name)?;
        let problems = state.problems(rule);
        let entry = rule.key().and_then(|key| state.entry(&key));
        Some(report::status(rule, entry, &known, &problems, settings, shared.now()))
    });
    let Some(status) = status else { return Ok(()) };
    let since = known.written.map_or(f64::INFINITY, |written| written.elapsed().as_secs_f64());
    if !report::worth_writing(&known.status, &status, since, settings) {
        if since < report::LEAST_SECONDS {
            shared.statuses().changed.insert(name.clone());
        }
        return Ok(());
    }
    let api: Api<EnergyPolicy> = Api::namespaced(shared.server.client.clone(), &name.0);
    let resource = crate::rules::resource();
    // Fenced by the version that it begins from: an actuator that led since may have written a newer one.
    let metadata = json!({"name": name.1, "resourceVersion": known.version});
    let object = json!({"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, "status": status});
    // The status is the actuator's alone.
    let params = PatchParams::apply(MANAGER).force();
    match tokio::time::timeout(CALL, api.patch_status(&name.1, &params, &Patch::Apply(object))).await {
        Ok(Ok(written)) => {
            let mut statuses = shared.statuses();
            // In another term other news came.
            let told = if statuses.term == term { known.news() } else { 0 };
            if let Some(known) = statuses.policies.get_mut(name) {
                known.wrote(&written.resource_version().unwrap_or_default(), status, told);
            }
            Ok(())
        }
        Ok(Err(kube::Error::Api(gone))) if gone.code == 404 => Ok(()),
        // The watch is about to bring what is newer.
        Ok(Err(kube::Error::Api(stale))) if stale.code == 409 => {
            shared.statuses().changed.insert(name.clone());
            Ok(())
        }
        Ok(Err(error)) => Err(words(&error)),
        Err(_) => Err(format!("no answer within {} s", CALL.as_secs())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn actuation(decision: &str, outcome: Outcome, reason: &str) -> Actuation {
        Actuation {
            id: format!("{decision}/x"),
            decision_id: decision.into(),
            workload: "eadt/llm".into(),
            outcome,
            reason: reason.into(),
            layout: Layout { replicas: Some(9), mps_thread_percentage: Some(35), ..Layout::default() },
            ..Actuation::default()
        }
    }

    #[test]
    fn what_repeats_itself_is_said_once() {
        let mut statuses = Statuses::default();
        statuses.say(&actuation("d-1", Outcome::Refused, "the workload is paused"));
        statuses.say(&actuation("d-2", Outcome::Refused, "the workload is paused"));
        statuses.say(&actuation("d-3", Outcome::Applied, ""));
        assert_eq!(statuses.waiting.iter().map(|said| said.decision.as_str()).collect::<Vec<_>>(), ["d-1", "d-3"]);
        for round in 0..2 * MAX_WAITING {
            statuses.say(&actuation(&format!("e-{round}"), Outcome::Refused, &round.to_string()));
        }
        assert_eq!((statuses.waiting.len(), statuses.dropped as usize), (MAX_WAITING, MAX_WAITING + 2));
    }

    fn rule() -> Rule {
        let policy = json!({
            "apiVersion": "eadt.dev/v1alpha1", "kind": "EnergyPolicy", "metadata": {"name": "llm", "namespace": "eadt", "uid": "p"},
            "spec": {"targetRef": {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "llm"}},
        });
        crate::rules::rule(&policy).unwrap().0
    }

    #[test]
    fn who_leads_again_begins_with_what_was_written_meanwhile() {
        let saving = |percent: f64| EnergyPolicyStatus {
            effect: Some(crate::policy::Effect { saving_percent: Some(percent), ..crate::policy::Effect::default() }),
            ..EnergyPolicyStatus::default()
        };
        let name: RuleKey = ("eadt".into(), "llm".into());
        let mut statuses = Statuses::default();
        statuses.leads(Some(1));
        statuses.saw(&rule(), "5", saving(1.0));
        let known = statuses.policies.get_mut(&name).unwrap();
        known.wrote("6", saving(10.0), 0);
        known.told(&actuation("d-1", Outcome::Applied, ""));
        statuses.trouble(name.clone(), Some("the object is too large".into()));
        statuses.mps_default(name.clone(), Some("somebody else is there".into()));
        statuses.mps_default(("eadt".into(), "deleted".into()), None);
        assert_eq!(statuses.policies.len(), 1);
        statuses.saw(&rule(), "5", saving(1.0));
        assert_eq!(statuses.policies[&name].status, saving(10.0), "what it wrote itself is newer than that");
        // For a moment it is not sure whether it leads: it goes on where it was.
        statuses.leads(None);
        statuses.leads(Some(1));
        assert_eq!(statuses.policies[&name].news(), 1);
        // Another one leads, and writes.
        statuses.leads(None);
        statuses.saw(&rule(), "9", saving(28.0));
        statuses.leads(Some(3));
        let known = &statuses.policies[&name];
        assert_eq!((&known.status, &*known.version, known.news(), known.written), (&saving(28.0), "9", 0, None));
        // It is looked after anew in every term, and until then it is as it was.
        assert_eq!(known.trouble.as_deref(), Some("the object is too large"));
        assert_eq!(known.mps_default, MpsDefault::NotSet("somebody else is there".into()));
    }

    #[test]
    fn notes_name_the_decision_and_fit() {
        assert_eq!(note(&actuation("d-1", Outcome::Applied, "")), "applied 9 replicas, 35 % of the threads (decision d-1)");
        let long = note(&actuation("d-1", Outcome::Refused, &"é".repeat(2000)));
        assert!(long.len() <= MAX_NOTE && long.ends_with("... (decision d-1)"), "{}", long.len());
    }
}
