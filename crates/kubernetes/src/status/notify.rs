//! Hands the actuator's published decisions and outcomes to the statuses of the policies concerned.

use eadt_cluster::ApprovedDecision;
use eadt_schemas::v1::{Actuation, Decision};

use crate::context::KubernetesContext;
use crate::objects::key::{ObjectKey, PolicyKey};
use crate::status::content::PolicyStatusCache;

/// Notes a decision.
pub fn on_decision(shared: &KubernetesContext, decision: &Decision) {
    update_status(shared, &decision.workload, |status| status.on_decision(decision));
}

/// Notes an earlier decision that found that a change helped.
pub fn on_verified_decision(shared: &KubernetesContext, decision: &Decision) {
    update_status(shared, &decision.workload, |status| status.on_verified_decision(decision));
}

/// Updates the status of the policy of a workload, if it has one.
fn update_status(shared: &KubernetesContext, workload: &str, update: impl FnOnce(&mut PolicyStatusCache)) {
    let Some(name) = policy_of(shared, workload) else { return };
    let mut statuses = shared.statuses();
    update(statuses.policies.entry(name.clone()).or_default());
    statuses.changed.insert(name);
}

/// Notes an actuation.
pub fn on_actuation(shared: &KubernetesContext, actuation: &Actuation) {
    let name = policy_of(shared, &actuation.workload);
    let mut statuses = shared.statuses();
    if let Some(name) = name {
        statuses.policies.entry(name.clone()).or_default().on_actuation(actuation);
        statuses.changed.insert(name);
    }
    statuses.queue_event(actuation);
}

/// Recommendations that people approved.
pub fn approved_decisions(shared: &KubernetesContext) -> Vec<ApprovedDecision> {
    let approvals: Vec<(PolicyKey, String, Option<String>)> = shared.read_index(|state| {
        let approved = state.approved_policies().filter_map(|policy| {
            let by = policy.approved_by().map(str::to_owned);
            Some(((policy.namespace.clone(), policy.name.clone()), policy.approved_decision()?.to_owned(), by))
        });
        approved.collect()
    });
    let statuses = shared.statuses();
    let known = approvals.into_iter().filter_map(|(name, id, by)| {
        let decision = statuses.policies.get(&name)?.approved_recommendation(&id)?.clone();
        Some(ApprovedDecision { decision, by })
    });
    known.collect()
}

/// Returns whether this decision is the recommendation that a user approved.
pub fn is_approved(shared: &KubernetesContext, decision: &str, workload: &str) -> bool {
    let Some(name) = policy_of(shared, workload) else { return false };
    let id = shared.read_index(|state| state.policy(&name)?.approved_decision().map(str::to_owned));
    let statuses = shared.statuses();
    let recommended = id.and_then(|id| statuses.policies.get(&name)?.approved_recommendation(&id));
    recommended.is_some_and(|recommended| recommended.id == decision)
}

fn policy_of(shared: &KubernetesContext, workload: &str) -> Option<PolicyKey> {
    shared.read_index(|state| {
        let key = state.find(workload).map(|entry| ObjectKey::of(&entry.object))?;
        state.policies_for(&key).first().map(|rule| (rule.namespace.clone(), rule.name.clone()))
    })
}
