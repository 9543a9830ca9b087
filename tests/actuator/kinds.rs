//! Kinds that a bare cluster does not have, and what is granted for each.

use std::collections::BTreeSet;

use eadt_kubernetes::objects::kinds::WORKLOAD_KINDS;
use eadt_tests::kubernetes::rights::granted;
use serde_json::{Value, json};

use super::account::{NAME, RULES};

use super::{Rig, kubernetes};

/// A custom resource, as far as the API server must know it.
pub fn define(group: &str, version: &str, kind: &str) {
    let singular = kind.to_lowercase();
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{singular}s.{group}")},
        "spec": {
            "group": group, "scope": "Namespaced",
            "names": {"kind": kind, "plural": format!("{singular}s"), "singular": singular},
            "versions": [{
                "name": version, "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
            }],
        },
    });
    kubernetes().define(&definition.to_string()).unwrap();
}

pub fn report(rig: &Rig, kind: &str, status: &Value) {
    let status = json!({"status": status}).to_string();
    rig.kubectl(&["patch", kind, "llm-training", "--subresource=status", "--type=merge", "-p", &status]);
}

/// Checks that the role grants exactly the rights that the actuator used for a kind.
pub fn every_right_was_used(rig: &Rig, kind: &str) {
    let kind = WORKLOAD_KINDS.iter().find(|known| known.kind == kind).unwrap();
    let account = format!("{}/{NAME}", rig.namespace);
    let granted: BTreeSet<String> =
        granted(RULES).into_iter().filter(|right| right.0 == kind.group && right.1 == kind.plural).map(|right| right.2).collect();
    rig.eventually(&format!("{granted:?} are used for {}", kind.plural), || {
        let requests = kubernetes().requests().unwrap();
        let own = requests.into_iter().filter(|r| r.account == account && r.group == kind.group && r.resource == kind.plural);
        let used: BTreeSet<String> = own.filter(|r| r.code < 300 || r.code == 404).map(|request| request.verb).collect();
        (used == granted).then_some(())
    });
}
