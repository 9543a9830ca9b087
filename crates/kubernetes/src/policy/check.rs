//! Conflicts between policies and their targets.

use std::collections::BTreeMap;

use super::problem::{PolicyProblem, ProblemReason};
use super::spec::TargetRef;
use crate::objects::kinds::WorkloadKind;

/// The known facts about a policy's target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TargetLookup {
    /// There is none.
    Missing,
    /// It is there.
    Found {
        /// The objects that it belongs to, from its own controller upwards, as `(kind, name)`.
        owners: Vec<(String, String)>,
    },
}

/// Returns the problems of every policy of one namespace. `policies` are their names with the targets that they name; `target`
/// looks one up. Policies without a problem have no entry.
///
/// If several policies have one workload, none is in force, since EADT cannot know which one is meant.
pub fn find_target_problems(
    policies: &BTreeMap<String, TargetRef>,
    target: impl Fn(&TargetRef) -> TargetLookup,
) -> BTreeMap<String, Vec<PolicyProblem>> {
    let mut problems: BTreeMap<String, Vec<PolicyProblem>> = BTreeMap::new();
    let mut note = |policy: &str, reason: ProblemReason, message: String| {
        problems.entry(policy.to_owned()).or_default().push(PolicyProblem::new(reason, message));
    };
    let same =
        |a: &TargetRef, b: &TargetRef| a.kind == b.kind && a.name == b.name && group(&a.api_version) == group(&b.api_version);
    for (policy, wanted) in policies {
        let (kind, name) = (&wanted.kind, &wanted.name);
        let others: Vec<_> = policies.iter().filter(|(other, theirs)| *other != policy && same(wanted, theirs)).collect();
        if !others.is_empty() {
            let names: Vec<_> = others.iter().map(|(other, _)| other.as_str()).collect();
            let message = format!("{kind} {name} is the target of policy {}, too: keep one of them", names.join(", "));
            note(policy, ProblemReason::TargetConflict, message);
        }
        let namesake = policies.iter().find(|(_, theirs)| theirs.name == *name && !same(wanted, theirs));
        if let Some((other, theirs)) = namesake {
            let message = format!(
                "{kind} {name} has the name of {} {name}, the target of policy {other}, and events know a workload by its name alone: \
                 rename one of them, or delete one of the policies",
                theirs.kind
            );
            note(policy, ProblemReason::TargetConflict, message);
        }
        if WorkloadKind::find(&wanted.api_version, kind).is_none() {
            let message = format!(
                "{kind} of {} is not a kind that EADT supports; it supports {}",
                wanted.api_version,
                WorkloadKind::names()
            );
            note(policy, ProblemReason::UnsupportedKind, message);
            continue;
        }
        match target(wanted) {
            TargetLookup::Missing => {
                let message = format!("there is no {kind} {name} in this namespace: create it, or correct spec.targetRef");
                note(policy, ProblemReason::TargetNotFound, message);
            }
            TargetLookup::Found { owners } => {
                for (owner_kind, owner_name) in owners {
                    let managed = |(_, theirs): &(&String, &TargetRef)| theirs.kind == owner_kind && theirs.name == owner_name;
                    let Some((other, _)) = policies.iter().find(managed) else { continue };
                    let message = format!("{kind} {name} belongs to {owner_kind} {owner_name}, the target of policy {other}");
                    note(policy, ProblemReason::OwnerConflict, format!("{message}: keep one of them"));
                    let message = format!("{owner_kind} {owner_name} owns {kind} {name}, the target of policy {policy}");
                    note(other, ProblemReason::OwnerConflict, format!("{message}: keep one of them"));
                }
            }
        }
    }
    problems
}

fn group(api_version: &str) -> &str {
    api_version.rsplit_once('/').map_or("", |(group, _)| group)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(api_version: &str, kind: &str, name: &str) -> TargetRef {
        TargetRef { api_version: api_version.into(), kind: kind.into(), name: name.into() }
    }

    fn policies(list: &[(&str, TargetRef)]) -> BTreeMap<String, TargetRef> {
        list.iter().map(|(name, target)| ((*name).to_owned(), target.clone())).collect()
    }

    fn found(_: &TargetRef) -> TargetLookup {
        TargetLookup::Found { owners: vec![] }
    }

    fn reasons(problems: &BTreeMap<String, Vec<PolicyProblem>>, policy: &str) -> Vec<ProblemReason> {
        problems.get(policy).into_iter().flatten().map(|problem| problem.reason).collect()
    }

    #[test]
    fn policies_on_different_targets_have_no_problem() {
        let all = policies(&[
            ("a", target("apps/v1", "StatefulSet", "w")),
            ("b", target("apps/v1", "Deployment", "v")),
            ("c", target("batch/v1", "Job", "u")),
        ]);
        assert_eq!(find_target_problems(&all, found), BTreeMap::new());
    }

    #[test]
    fn targets_of_one_name_and_different_kinds_are_a_problem_of_both() {
        let all = policies(&[("a", target("apps/v1", "StatefulSet", "w")), ("b", target("apps/v1", "Deployment", "w"))]);
        let problems = find_target_problems(&all, found);
        assert_eq!(
            (reasons(&problems, "a"), reasons(&problems, "b")),
            (vec![ProblemReason::TargetConflict], vec![ProblemReason::TargetConflict])
        );
        assert!(problems["a"][0].message.contains("Deployment w, the target of policy b"), "{problems:?}");
    }

    #[test]
    fn two_policies_on_one_target_name_each_other_and_neither_is_in_force() {
        let all = policies(&[
            ("a", target("apps/v1", "StatefulSet", "w")),
            ("b", target("apps/v1beta2", "StatefulSet", "w")),
            ("c", target("apps/v1", "StatefulSet", "v")),
        ]);
        let problems = find_target_problems(&all, found);
        assert_eq!(problems.keys().collect::<Vec<_>>(), ["a", "b"]);
        assert!(problems["a"][0].message.contains("policy b") && problems["b"][0].message.contains("policy a"), "{problems:?}");
        assert_eq!(reasons(&problems, "a"), [ProblemReason::TargetConflict]);
    }

    #[test]
    fn a_missing_target_and_an_unknown_kind_are_named() {
        let all = policies(&[("a", target("apps/v1", "StatefulSet", "w")), ("b", target("v1", "Pod", "w-0"))]);
        let problems = find_target_problems(&all, |_| TargetLookup::Missing);
        assert_eq!(reasons(&problems, "a"), [ProblemReason::TargetNotFound]);
        assert_eq!(reasons(&problems, "b"), [ProblemReason::UnsupportedKind]);
        assert!(problems["b"][0].message.contains("StatefulSet"), "{problems:?}");
    }

    #[test]
    fn a_policy_on_what_owns_another_ones_target_is_a_problem_of_both() {
        let all = policies(&[
            ("outer", target("trainer.kubeflow.org/v1alpha1", "TrainJob", "t")),
            ("inner", target("jobset.x-k8s.io/v1alpha2", "JobSet", "t")),
        ]);
        let problems = find_target_problems(&all, |target| TargetLookup::Found {
            owners: if target.kind == "JobSet" { vec![("TrainJob".into(), "t".into())] } else { vec![] },
        });
        assert!(reasons(&problems, "inner").contains(&ProblemReason::OwnerConflict));
        assert!(reasons(&problems, "outer").contains(&ProblemReason::OwnerConflict));
        assert!(problems["outer"].iter().any(|problem| problem.message.contains("policy inner")), "{problems:?}");
    }
}
