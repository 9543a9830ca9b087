//! The actuator asks for what its role grants, and its role grants nothing else.

use crate::actuator;

use std::collections::BTreeSet;

use actuator::account::{CLUSTER_RULES, LEASE_RULES, NAME, RULES};
use actuator::agents::{answer, cap, nodes, sees_all_pods};
use actuator::{Rig, crashes, energy_policy, kubernetes, layout, training};
use eadt_kubernetes::objects::kinds::WORKLOAD_KINDS;
use eadt_schemas::v1::{ActuationOutcome, ControllerAction, SettingOutcome};
use eadt_tests::kubernetes::rights::{Right, granted};
use serde_json::json;

#[test]
fn every_right_is_used_and_none_is_missing() {
    // In turn: the second one looks at the namespace of the first one, too.
    let rig = Rig::new("roles");
    sees_all_pods(&rig);
    all_are_used(rig);
    all_are_used(Rig::everywhere("roles-everywhere"));
}

fn all_are_used(mut rig: Rig) {
    let mut set = training();
    set["spec"]["template"]["metadata"]["annotations"] =
        json!({"test.eadt.dev/crash-when": "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=40"});
    rig.apply(&set);
    let mut policy = energy_policy("Enforce");
    policy["spec"]["bounds"]["powerLimitWatts"] = json!({"min": 100, "max": 600});
    rig.apply(&policy);
    // Nine pods on a busy machine take a while; what must come too late has less time.
    rig.start(120.0);
    rig.ready_with(&layout(6, 50, 2));
    // A change, one that is taken back with its broken pod, one of the world, one that no agent makes, and the way out.
    rig.change("d-1", ControllerAction::Decrease, layout(6, 45, 2), ActuationOutcome::Ready);
    rig.give_rollouts(1.0);
    rig.runs_out("d-2", ControllerAction::Decrease, layout(6, 40, 2), |pods| pods.iter().any(crashes));
    rig.ready_with(&layout(6, 45, 2));
    rig.give_rollouts(120.0);
    rig.change("d-3", ControllerAction::ScaleReplicas, layout(9, 35, 3), ActuationOutcome::Ready);
    answer(&rig, &nodes(&rig), SettingOutcome::Untouched, "");
    rig.give_rollouts(5.0);
    rig.change("d-4", ControllerAction::Decrease, cap(300.0), ActuationOutcome::RolledBack);
    rig.eventually("the policy reports it", || (rig.condition("llm", "Ready").starts_with("True")).then_some(()));
    rig.eventually("an Event is written", || {
        (!rig.kubectl(&["get", "events.events.k8s.io", "-o", "name"]).is_empty()).then_some(())
    });
    rig.kubectl(&["delete", "energypolicy", "llm"]);
    rig.given_back();
    rig.stop();
    rig.kubectl(&["delete", "statefulset", "llm-training"]);

    let account = format!("{}/{NAME}", rig.namespace);
    let requests = kubernetes().requests().unwrap();
    let own: Vec<_> = requests.into_iter().filter(|request| request.account == account).collect();
    let used: BTreeSet<Right> = own
        .iter()
        .filter(|request| request.code < 300 || request.code == 404)
        .map(|request| (request.group.clone(), request.resource.clone(), request.verb.clone()))
        .collect();

    // A request that is refused until the rights are in force is granted after that.
    let missing = |request: &&eadt_tests::kubernetes::audit::Request| {
        let right = (request.group.clone(), request.resource.clone(), request.verb.clone());
        request.code == 403 && !used.contains(&right)
    };
    let refused: Vec<_> = own.iter().filter(missing).collect();
    assert!(refused.is_empty(), "not granted, but asked for: {refused:#?}");

    let all: BTreeSet<Right> = [RULES, CLUSTER_RULES, LEASE_RULES].into_iter().flat_map(granted).collect();
    // Each of the other kinds is held to it if it is changed.
    let kinds: BTreeSet<(String, String)> =
        WORKLOAD_KINDS.iter().map(|kind| (kind.group.to_owned(), kind.plural.to_owned())).collect();
    let of_kind = |right: &Right| kinds.contains(&(right.0.clone(), right.1.clone()));
    let verbs = |rights: &BTreeSet<Right>, kind: &(String, String)| -> BTreeSet<String> {
        let own = rights.iter().filter(|right| (&right.0, &right.1) == (&kind.0, &kind.1));
        own.map(|right| right.2.clone()).collect()
    };
    let stateful_set = ("apps".to_owned(), "statefulsets".to_owned());
    assert_eq!(verbs(&all, &stateful_set), verbs(&used, &stateful_set), "granted, and used for StatefulSets");
    let others = |rights: &BTreeSet<Right>| -> BTreeSet<Right> {
        // The client's own requests: versions and kinds.
        rights.iter().filter(|right| !of_kind(right) && !right.1.starts_with('/')).cloned().collect()
    };
    assert_eq!(others(&all), others(&used), "granted, and used");
}
