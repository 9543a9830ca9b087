//! Reads a policy's object. Pure.

use eadt_schemas::EventTime;
use eadt_schemas::v1::UpdateMode;
use kube::core::ApiResource;
use kube::{Resource, ResourceExt};
use serde_json::Value;

use crate::objects::effective_policy::EffectivePolicy;
use crate::objects::key::ObjectKey;
use crate::objects::kinds::WorkloadKind;
use crate::objects::object::WorkloadObject;
use crate::policy::{EnergyPolicy, EnergyPolicyStatus, PolicyProblem, ProblemReason, ResolvedPolicy, TargetRef, resolve_policy};

/// A policy, as far as workloads are concerned.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkloadPolicy {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub generation: i64,
    pub target: TargetRef,
    /// The meaning of the policy, or the problems that prevent it.
    pub resolved: Result<ResolvedPolicy, Vec<PolicyProblem>>,
}

/// Returns the resource of policies.
pub fn policy_resource() -> ApiResource {
    ApiResource::erase::<EnergyPolicy>(&())
}

/// Reads a policy and its status.
pub fn read_policy(object: &Value) -> Result<(WorkloadPolicy, EnergyPolicyStatus), String> {
    let policy: EnergyPolicy = match serde_json::from_value(object.clone()) {
        Ok(policy) => policy,
        Err(error) => return unreadable_policy(object, &error.to_string()),
    };
    let rule = WorkloadPolicy {
        namespace: policy.namespace().unwrap_or_default(),
        name: policy.name_any(),
        uid: policy.uid().unwrap_or_default(),
        generation: policy.meta().generation.unwrap_or(0),
        target: policy.spec.target_ref.clone(),
        resolved: resolve_policy(&policy),
    };
    Ok((rule, policy.status.unwrap_or_default()))
}

/// Returns a policy that this version cannot read: it permits nothing, and has a problem that states this.
fn unreadable_policy(object: &Value, error: &str) -> Result<(WorkloadPolicy, EnergyPolicyStatus), String> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let meta = &object["metadata"];
    let target = &object["spec"]["targetRef"];
    let (Some(namespace), Some(name)) = (text(&meta["namespace"]), text(&meta["name"])) else { return Err(error.to_owned()) };
    let problem = PolicyProblem::new(ProblemReason::Unreadable, format!("this version of EADT cannot read the policy: {error}"));
    let rule = WorkloadPolicy {
        namespace,
        name,
        uid: text(&meta["uid"]).unwrap_or_default(),
        generation: meta["generation"].as_i64().unwrap_or(0),
        target: TargetRef {
            api_version: text(&target["apiVersion"]).unwrap_or_default(),
            kind: text(&target["kind"]).unwrap_or_default(),
            name: text(&target["name"]).unwrap_or_default(),
        },
        resolved: Err(vec![problem]),
    };
    // Its status stays.
    Ok((rule, serde_json::from_value(object["status"].clone()).unwrap_or_default()))
}

impl WorkloadPolicy {
    /// Returns the object that it is for; `None` if its kind is unknown.
    pub fn target_key(&self) -> Option<ObjectKey> {
        let kind = WorkloadKind::find(&self.target.api_version, &self.target.kind)?;
        Some(ObjectKey { kind: kind.kind, namespace: self.namespace.clone(), name: self.target.name.clone() })
    }

    /// Returns the effective policy for its workload at `now`.
    pub fn effective_policy(&self, observed: &WorkloadObject, now: EventTime) -> EffectivePolicy {
        match &self.resolved {
            Ok(resolved) => {
                let last = observed.change_annotation.as_ref().and_then(|mark| mark.restarts.last().copied());
                resolved.effective_policy(now, last)
            }
            Err(_) => {
                EffectivePolicy { policy: Some(self.name.clone()), mode: UpdateMode::Observe, ..EffectivePolicy::default() }
            }
        }
    }

    pub fn approved_decision(&self) -> Option<&str> {
        self.resolved.as_ref().ok()?.approved.as_deref()
    }

    pub fn approved_by(&self) -> Option<&str> {
        self.resolved.as_ref().ok()?.approved_by.as_deref()
    }
}
