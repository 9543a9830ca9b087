//! Queue of Kubernetes Events and the history of every policy, from which its status is made.
//!
//! The actuator's thread adds decisions and outcomes; [`crate::status::events`] and [`crate::status::write`] write them, so that
//! no decision waits for the API server. An Event that repeats the last one is not written. Bounded: Events beyond the queue are
//! counted and dropped.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use eadt_schemas::v1::{Actuation, ActuationOutcome, Decision, Layout};

use crate::objects::key::PolicyKey;
use crate::policy::EnergyPolicyStatus;
use crate::policy::resource::WorkloadPolicy;
use crate::status::content::{self, MpsDefaultState, PolicyStatusCache};

/// Largest number of queued Events; further ones are dropped and counted.
const MAX_QUEUED_EVENTS: usize = 1000;
/// Workloads whose last Event is remembered.
const MAX_LAST: usize = 20_000;
/// The longest note that Kubernetes takes.
const MAX_NOTE: usize = 1024;

/// Statuses and Events to write.
#[derive(Debug, Default)]
pub struct StatusOutbox {
    pub(super) queued_events: VecDeque<WorkloadEvent>,
    pub(super) dropped: u64,
    /// Last Event of each workload: it is not repeated.
    last: BTreeMap<String, (ActuationOutcome, String, Layout)>,
    pub(super) policies: BTreeMap<PolicyKey, PolicyStatusCache>,
    /// Policies whose status may have to be written.
    pub(super) changed: BTreeSet<PolicyKey>,
    /// The term of the status that is kept beside the objects.
    pub(super) term: Option<u64>,
}

/// An Event about a workload.
#[derive(Debug, Clone)]
pub(super) struct WorkloadEvent {
    pub workload: String,
    pub decision: String,
    pub outcome: ActuationOutcome,
    pub note: String,
}

impl StatusOutbox {
    /// Sets the term in which this process leads; `None` if it does not lead, or may not.
    pub fn set_term(&mut self, term: Option<u64>) {
        if term.is_some() && self.term != term {
            self.term = term;
            self.policies.values_mut().for_each(PolicyStatusCache::begin_term);
        }
    }

    /// Takes a policy's status as the watch reported it in this version, by any writer.
    pub fn on_policy_object(&mut self, rule: &WorkloadPolicy, version: &str, status: EnergyPolicyStatus) {
        let name = (rule.namespace.clone(), rule.name.clone());
        self.policies.entry(name.clone()).or_default().on_policy_object(&rule.uid, version, status);
        self.changed.insert(name);
    }

    pub fn remove_policy(&mut self, name: &PolicyKey) {
        self.policies.remove(name);
        self.changed.remove(name);
    }

    pub fn on_recommendation(&mut self, name: &PolicyKey, decision: &Decision) {
        self.policies.entry(name.clone()).or_default().on_recommendation(decision);
        self.changed.insert(name.clone());
    }

    /// Sets the reason why a policy's workload cannot be reconciled; `None` if there is none.
    pub fn set_trouble(&mut self, name: PolicyKey, trouble: Option<String>) {
        let known = self.policies.entry(name.clone()).or_default();
        if known.trouble != trouble {
            known.trouble = trouble;
            self.changed.insert(name);
        }
    }

    /// Sets the reason why the nodes of a policy's workload do not have the MPS default that it names. `None` if they have it,
    /// or it names none.
    pub fn set_mps_default(&mut self, name: PolicyKey, why: Option<String>) {
        // A policy that is gone has no status.
        let Some(known) = self.policies.get_mut(&name) else { return };
        let found = why.map_or(MpsDefaultState::AsNamed, MpsDefaultState::NotSet);
        if known.mps_default != found {
            known.mps_default = found;
            self.changed.insert(name);
        }
    }

    pub fn mark_changed(&mut self, name: PolicyKey) {
        self.changed.insert(name);
    }

    pub(super) fn queue_event(&mut self, actuation: &Actuation) {
        let key = (actuation.outcome, actuation.reason.clone(), actuation.layout.clone());
        if self.last.len() >= MAX_LAST && !self.last.contains_key(&actuation.workload) {
            // The number of workloads in decisions is unbounded. Forgetting them costs an Event that is written again.
            self.last.clear();
        }
        if self.last.insert(actuation.workload.clone(), key.clone()) == Some(key) {
            return;
        }
        if self.queued_events.len() >= MAX_QUEUED_EVENTS {
            self.dropped += 1;
            return;
        }
        self.queued_events.push_back(WorkloadEvent {
            workload: actuation.workload.clone(),
            decision: actuation.decision_id.clone(),
            outcome: actuation.outcome,
            note: event_note(actuation),
        });
    }
}

/// Returns the note of an Event, cut to what Kubernetes takes; it ends with the decision.
fn event_note(actuation: &Actuation) -> String {
    let mut note = match actuation.outcome {
        ActuationOutcome::Applied => format!("applied {}", content::layout_text(&actuation.layout)),
        ActuationOutcome::Ready => match actuation.downtime_seconds {
            Some(seconds) => format!("all processes are ready {seconds:.0} s after the change"),
            None => "all processes are ready".into(),
        },
        ActuationOutcome::Refused => format!("nothing was changed: {}", actuation.reason),
        ActuationOutcome::RolledBack => {
            format!("rolled back to {}: {}", content::layout_text(&actuation.layout), actuation.reason)
        }
        ActuationOutcome::Recommended | ActuationOutcome::Failed => actuation.reason.clone(),
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn actuation(decision: &str, outcome: ActuationOutcome, reason: &str) -> Actuation {
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
    fn what_repeats_itself_is_reported_once() {
        let mut statuses = StatusOutbox::default();
        statuses.queue_event(&actuation("d-1", ActuationOutcome::Refused, "the workload is paused"));
        statuses.queue_event(&actuation("d-2", ActuationOutcome::Refused, "the workload is paused"));
        statuses.queue_event(&actuation("d-3", ActuationOutcome::Applied, ""));
        assert_eq!(statuses.queued_events.iter().map(|event| event.decision.as_str()).collect::<Vec<_>>(), ["d-1", "d-3"]);
        for round in 0..2 * MAX_QUEUED_EVENTS {
            statuses.queue_event(&actuation(&format!("e-{round}"), ActuationOutcome::Refused, &round.to_string()));
        }
        assert_eq!((statuses.queued_events.len(), statuses.dropped as usize), (MAX_QUEUED_EVENTS, MAX_QUEUED_EVENTS + 2));
    }

    fn rule() -> WorkloadPolicy {
        let policy = json!({
            "apiVersion": "eadt.dev/v1alpha1", "kind": "EnergyPolicy", "metadata": {"name": "llm", "namespace": "eadt", "uid": "p"},
            "spec": {"targetRef": {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "llm"}},
        });
        crate::policy::resource::read_policy(&policy).unwrap().0
    }

    #[test]
    fn who_leads_again_begins_with_what_was_written_meanwhile() {
        let saving = |percent: f64| EnergyPolicyStatus {
            effect: Some(crate::policy::SavingEffect { saving_percent: Some(percent), ..crate::policy::SavingEffect::default() }),
            ..EnergyPolicyStatus::default()
        };
        let name: PolicyKey = ("eadt".into(), "llm".into());
        let mut statuses = StatusOutbox::default();
        statuses.set_term(Some(1));
        statuses.on_policy_object(&rule(), "5", saving(1.0));
        let known = statuses.policies.get_mut(&name).unwrap();
        known.on_status_written("6", saving(10.0), 0);
        known.on_actuation(&actuation("d-1", ActuationOutcome::Applied, ""));
        statuses.set_trouble(name.clone(), Some("the object is too large".into()));
        statuses.set_mps_default(name.clone(), Some("somebody else is there".into()));
        statuses.set_mps_default(("eadt".into(), "deleted".into()), None);
        assert_eq!(statuses.policies.len(), 1);
        statuses.on_policy_object(&rule(), "5", saving(1.0));
        assert_eq!(statuses.policies[&name].status, saving(10.0), "what it wrote itself is newer than that");
        // Leadership is uncertain for a moment: the statuses stay as they are.
        statuses.set_term(None);
        statuses.set_term(Some(1));
        assert_eq!(statuses.policies[&name].pending_count(), 1);
        // Another one leads, and writes.
        statuses.set_term(None);
        statuses.on_policy_object(&rule(), "9", saving(28.0));
        statuses.set_term(Some(3));
        let known = &statuses.policies[&name];
        assert_eq!((&known.status, &*known.version, known.pending_count(), known.written), (&saving(28.0), "9", 0, None));
        // It is reconciled again in every term, and stays as it was until then.
        assert_eq!(known.trouble.as_deref(), Some("the object is too large"));
        assert_eq!(known.mps_default, MpsDefaultState::NotSet("somebody else is there".into()));
    }

    #[test]
    fn notes_name_the_decision_and_fit() {
        assert_eq!(
            event_note(&actuation("d-1", ActuationOutcome::Applied, "")),
            "applied 9 replicas, 35 % of the threads (decision d-1)"
        );
        let long = event_note(&actuation("d-1", ActuationOutcome::Refused, &"é".repeat(2000)));
        assert!(long.len() <= MAX_NOTE && long.ends_with("... (decision d-1)"), "{}", long.len());
    }
}
