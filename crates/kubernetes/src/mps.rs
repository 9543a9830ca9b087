//! The MPS defaults of nodes: where one has to be raised, and who there allows it. Pure.
//!
//! A process gets no more of a GPU's threads than its node's MPS default. The default is for everybody on the node, so that it is changed
//! only where every workload that has a pod with a GPU there allows it, and never below what it was.

use std::collections::{BTreeMap, BTreeSet};

use eadt_schemas::v1::{DeviceIntent, DeviceState, MpsTenant, SettingOutcome};

use crate::devices::Tenant;
use crate::object::{MPS_PERCENTAGE, Seen};
use crate::record::Field;
use crate::rollout::Pod;

/// A workload whose policy allows another MPS default.
#[derive(Debug, Clone, PartialEq)]
pub struct Party {
    pub workload: String,
    /// Those that are ending included: others take their place.
    pub pods: Vec<Pod>,
    /// What its processes need, and the decision behind it.
    pub needs: Option<(u32, String)>,
    /// Its pods are being replaced: none of them may be on a node where the next one will be.
    pub moving: bool,
}

/// What a node's agent is asked for.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeDefault {
    percentage: u32,
    decision_id: String,
    tenants: Vec<MpsTenant>,
}

impl NodeDefault {
    /// Adds it to what else the node's agent is asked for.
    pub fn put(&self, intent: &mut DeviceIntent) {
        intent.mps_default_thread_percentage = Some(self.percentage);
        intent.mps_tenants = Some(self.tenants.clone());
        if intent.decision_id.is_empty() {
            intent.decision_id.clone_from(&self.decision_id);
        }
        intent.devices.get_or_insert_default();
    }
}

impl Party {
    /// What a change of EADT's needs: a percentage that is higher than what was taken over. What somebody else set is theirs to see to.
    pub fn need(seen: &Seen) -> Option<(u32, String)> {
        let now = seen.layout.mps_thread_percentage?;
        let decision = &seen.mark.as_ref()?.applied.as_ref()?.decision_id;
        let taken = seen.taken.as_ref()?;
        let former =
            taken.fields.iter().find(|former| matches!(&former.field, Field::Variable { name, .. } if name == MPS_PERCENTAGE))?;
        let before = former.value.as_ref().and_then(|value| value.parse::<u32>().ok());
        before.is_none_or(|before| now > before).then(|| (now, decision.clone()))
    }
}

/// The nodes of these pods.
pub fn nodes(pods: &[Pod]) -> BTreeSet<String> {
    pods.iter().filter_map(|pod| pod.node.clone()).collect()
}

/// Somebody on a node who does not allow it.
pub fn stranger<'a>(tenants: &'a [Tenant], parties: &[Party]) -> Option<&'a Tenant> {
    let allows = |tenant: &Tenant| parties.iter().flat_map(|party| &party.pods).any(|pod| pod.uid == tenant.uid);
    tenants.iter().find(|tenant| !allows(tenant))
}

/// What the agents of these nodes are asked for, by node. `asked`: what they are asked for so far, which holds where nothing else is
/// known.
pub fn defaults(
    parties: &[Party],
    tenants: &BTreeMap<String, Vec<Tenant>>,
    board: &BTreeMap<String, DeviceState>,
    asked: &BTreeMap<String, NodeDefault>,
) -> BTreeMap<String, NodeDefault> {
    let of_node = |(node, tenants): (&String, &Vec<Tenant>)| {
        let asked = asked.get(node);
        let is_there = |party: &&Party| {
            let returns = party.moving && asked.is_some_and(|asked| asked.tenants.iter().any(|t| t.workload == party.workload));
            returns || party.pods.iter().any(|pod| tenants.iter().any(|tenant| tenant.uid == pod.uid))
        };
        let there: Vec<&Party> = parties.iter().filter(is_there).collect();
        let (percentage, decision_id) =
            there.iter().filter_map(|party| party.needs.as_ref()).max_by_key(|(percentage, _)| *percentage)?;
        let state = board.get(node)?;
        // Where it is asked already, what is in force says nothing of what it was, nor does an agent that cannot say it.
        let original = state.original_mps_default_thread_percentage;
        let lower = match original.or(state.mps_default_thread_percentage.filter(|_| asked.is_none())) {
            Some(original) => original < *percentage,
            None => asked.is_some(),
        };
        if !lower || stranger(tenants, parties).is_some() {
            return None;
        }
        let mut tenants: Vec<_> =
            there.iter().map(|party| MpsTenant { workload: party.workload.clone(), allows_default_change: true }).collect();
        tenants.sort_by(|a, b| a.workload.cmp(&b.workload));
        Some((node.clone(), NodeDefault { percentage: *percentage, decision_id: decision_id.clone(), tenants }))
    };
    tenants.iter().filter_map(of_node).collect()
}

/// Why an agent that was asked will not do it.
pub fn refusal(node: &str, state: &DeviceState) -> Option<String> {
    let refused = matches!(state.mps_default_outcome, SettingOutcome::Refused | SettingOutcome::ChangedByOthers);
    refused.then(|| format!("the agent of node {node} does not raise the MPS default: {}", state.mps_default_reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(uid: &str) -> Pod {
        Pod {
            name: uid.into(),
            uid: uid.into(),
            node: Some("a".into()),
            revision: None,
            ready: true,
            terminating: false,
            trouble: None,
        }
    }

    fn party(workload: &str, uids: &[&str], needs: Option<u32>) -> Party {
        let needs = needs.map(|percentage| (percentage, format!("d-{workload}")));
        Party { workload: format!("n/{workload}"), pods: uids.iter().map(|uid| pod(uid)).collect(), needs, moving: false }
    }

    fn on_a(uids: &[&str]) -> BTreeMap<String, Vec<Tenant>> {
        let tenant = |uid: &&str| Tenant { namespace: "n".into(), name: (*uid).into(), uid: (*uid).into(), created: None };
        BTreeMap::from([("a".to_owned(), uids.iter().map(tenant).collect())])
    }

    fn board(now: u32, original: Option<u32>) -> BTreeMap<String, DeviceState> {
        let state = DeviceState {
            mps_default_thread_percentage: Some(now),
            original_mps_default_thread_percentage: original,
            ..DeviceState::default()
        };
        BTreeMap::from([("a".to_owned(), state)])
    }

    #[test]
    fn a_default_is_raised_to_the_greatest_need_where_all_allow_it() {
        let parties =
            [party("x", &["x-0", "x-1"], Some(60)), party("y", &["y-0"], Some(70)), party("elsewhere", &["z-0"], Some(90))];
        let asked = |parties: &[Party], tenants, board| defaults(parties, &tenants, &board, &BTreeMap::new()).remove("a");
        let both = on_a(&["x-0", "x-1", "y-0"]);
        let raised = asked(&parties, both.clone(), board(50, None)).unwrap();
        assert_eq!((raised.percentage, raised.decision_id.as_str()), (70, "d-y"));
        let names: Vec<_> = raised.tenants.iter().map(|tenant| tenant.workload.as_str()).collect();
        assert_eq!(names, ["n/x", "n/y"]);
        assert!(raised.tenants.iter().all(|tenant| tenant.allows_default_change));
        assert_eq!(asked(&parties, both.clone(), board(70, Some(50))), Some(raised), "it is held as long as it is needed");
        assert_eq!(asked(&parties, both.clone(), board(70, None)), None, "high enough by itself");
        assert_eq!(asked(&parties[..1], both, board(50, None)), None, "one there does not allow it");
        assert_eq!(asked(&parties, on_a(&["z-1"]), board(50, None)), None);
        assert_eq!(asked(&parties, on_a(&["x-0"]), BTreeMap::new()), None, "nothing is known of the node's default");
        let content = [party("x", &["x-0"], None)];
        assert_eq!(asked(&content, on_a(&["x-0"]), board(50, None)), None);
        let standing = BTreeMap::from([("a".to_owned(), asked(&parties[..1], on_a(&["x-0"]), board(50, None)).unwrap())]);
        let goes_on = |parties: &[Party], tenants, board| defaults(parties, &tenants, &board, &standing).contains_key("a");
        assert!(goes_on(&parties[..1], on_a(&["x-0"]), board(60, None)), "an agent that does not say what it was");
        let silent = BTreeMap::from([("a".to_owned(), DeviceState::default())]);
        assert!(goes_on(&parties[..1], on_a(&["x-0"]), silent), "a daemon that does not answer");
        assert!(!goes_on(&content, on_a(&["x-0"]), board(60, Some(50))), "nobody needs it any more");
        let mut replaced = party("x", &[], Some(60));
        assert!(!goes_on(std::slice::from_ref(&replaced), on_a(&[]), board(60, Some(50))), "it runs elsewhere");
        replaced.moving = true;
        assert!(goes_on(std::slice::from_ref(&replaced), on_a(&[]), board(60, Some(50))), "its pods are on their way");
        assert!(!goes_on(&[replaced], on_a(&["s-0"]), board(60, Some(50))), "somebody else is there by now");
        assert_eq!(stranger(&on_a(&["x-0", "s-0"])["a"], &parties).unwrap().name, "s-0");
    }

    #[test]
    fn it_is_asked_beside_caps() {
        let parties = [party("x", &["x-0"], Some(60))];
        let default = defaults(&parties, &on_a(&["x-0"]), &board(50, None), &BTreeMap::new()).remove("a").unwrap();
        let mut alone = DeviceIntent { node: "a".into(), ..DeviceIntent::default() };
        default.put(&mut alone);
        assert_eq!((alone.mps_default_thread_percentage, alone.decision_id.as_str()), (Some(60), "d-x"));
        assert_eq!(alone.devices, Some(Vec::new()));
        let mut beside = DeviceIntent { decision_id: "d-cap".into(), devices: Some(vec![]), ..DeviceIntent::default() };
        default.put(&mut beside);
        assert_eq!(beside.decision_id, "d-cap");
    }
}
