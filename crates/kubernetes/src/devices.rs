//! Power caps and clocks for the agents of the nodes: who is asked, whether the devices take it, and what became of it. Pure.
//!
//! Which GPU a pod holds is not known here, so that only a node whose GPUs are all one workload's can be addressed, as a whole.

use std::collections::{BTreeMap, BTreeSet};

use eadt_schemas::EventTime;
use eadt_schemas::v1::{DeviceIntent, DeviceReport, DeviceSetting, DeviceState, Layout, SettingOutcome, UpdateMode};
use serde_json::Value;

use crate::rollout::Pod;
use crate::state::Entry;

/// An agent that said nothing for this long is taken for dead: it says its state every minute.
const SILENT_SECONDS: f64 = 180.0;
/// Caps in force may differ from those asked for by the device's resolution.
const RESOLUTION_WATTS: f64 = 1.0;

/// What a workload's nodes are to hold.
#[derive(Debug, Clone, PartialEq)]
pub struct Wish {
    pub workload: String,
    pub decision_id: String,
    pub power_limit_watts: Option<f64>,
    pub sm_clock_mhz: Option<f64>,
}

/// A pod that holds GPUs of a node, whoever's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tenant {
    pub namespace: String,
    pub name: String,
    pub uid: String,
}

/// Where a wish stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// Every device of every node holds it.
    Held,
    /// Not yet; what is waited for.
    Waiting(String),
    /// An agent will not hold it, and why.
    Refused(String),
}

/// The settings of a layout that agents hold.
pub fn settings(layout: &Layout) -> (Option<f64>, Option<f64>) {
    (layout.power_limit_watts, layout.sm_clock_mhz)
}

impl Wish {
    /// The wish of a decision; `None`: it asks for nothing.
    pub fn new(workload: &str, decision_id: &str, layout: &Layout) -> Option<Self> {
        let (power_limit_watts, sm_clock_mhz) = settings(layout);
        (power_limit_watts.is_some() || sm_clock_mhz.is_some()).then(|| Self {
            workload: workload.to_owned(),
            decision_id: decision_id.to_owned(),
            power_limit_watts,
            sm_clock_mhz,
        })
    }

    /// What a workload's nodes are to hold now. Without a policy that still allows it, or while it is paused, nothing.
    pub fn of(entry: &Entry) -> Option<Self> {
        let (terms, seen) = (&entry.terms, &entry.seen);
        if entry.orphaned || entry.paused || seen.deleting || terms.mode == UpdateMode::Observe {
            return None;
        }
        let layout = Layout {
            power_limit_watts: seen.layout.power_limit_watts.filter(|_| terms.knobs.power_limit),
            sm_clock_mhz: seen.layout.sm_clock_mhz.filter(|_| terms.knobs.clocks),
            ..Layout::default()
        };
        let applied = seen.mark.as_ref()?.applied.as_ref()?;
        Self::new(&seen.workload(), &applied.decision_id, &layout)
    }

    fn setting(&self) -> DeviceSetting {
        DeviceSetting {
            device: None,
            workload: Some(self.workload.clone()),
            decision_id: Some(self.decision_id.clone()),
            power_limit_watts: self.power_limit_watts,
            sm_clock_mhz: self.sm_clock_mhz,
        }
    }
}

/// Reads a pod where it holds GPUs, or may (a claim of unknown devices).
pub fn tenant(pod: &Value) -> Option<Tenant> {
    let spec = &pod["spec"];
    let lists = [&spec["containers"], &spec["initContainers"]];
    let resources = lists.into_iter().filter_map(Value::as_array).flatten().map(|container| &container["resources"]);
    let named = resources.flat_map(|r| [&r["limits"], &r["requests"]]).filter_map(Value::as_object).flat_map(|r| r.keys());
    let claims = spec["resourceClaims"].as_array().is_some_and(|claims| !claims.is_empty());
    if !claims && !named.into_iter().any(|name| name.starts_with("nvidia.com/")) {
        return None;
    }
    let text = |name: &str| pod["metadata"][name].as_str().map(str::to_owned);
    Some(Tenant { namespace: text("namespace")?, name: text("name")?, uid: text("uid")? })
}

/// The nodes of a workload's pods.
pub fn nodes(own: &[Pod]) -> BTreeSet<String> {
    own.iter().filter(|pod| !pod.terminating).filter_map(|pod| pod.node.clone()).collect()
}

/// Whether nobody else holds GPUs of these nodes; the error names who does.
pub fn alone(own: &[Pod], tenants: &BTreeMap<String, Vec<Tenant>>) -> Result<(), String> {
    let is_own = |tenant: &Tenant| own.iter().any(|pod| pod.uid == tenant.uid);
    for (node, tenants) in tenants {
        if let Some(other) = tenants.iter().find(|tenant| !is_own(tenant)) {
            return Err(format!(
                "pod {}/{} holds GPUs of node {node}, too, and which GPU is whose is not known: caps and clocks need nodes that no other workload shares",
                other.namespace, other.name
            ));
        }
    }
    Ok(())
}

/// Whether the agent of a node is there and its devices take the wish.
pub fn takes(wish: &Wish, node: &str, state: Option<&DeviceState>, now: EventTime) -> Result<(), String> {
    let Some(state) = state else {
        return Err(format!("no agent has reported on node {node}: install it there (agent.enabled)"));
    };
    if state.stopped {
        return Err(format!("the agent of node {node} has stopped"));
    }
    if now.seconds_since(state.time) > SILENT_SECONDS {
        return Err(format!("the agent of node {node} has said nothing since {}", state.time));
    }
    if state.devices.is_empty() {
        return Err(format!("the agent of node {node} knows no GPU"));
    }
    for device in &state.devices {
        for (what, unit, asked, low, high) in [
            ("power cap", "W", wish.power_limit_watts, device.power_limit_watts_min, device.power_limit_watts_max),
            ("bound of the SM clock", "MHz", wish.sm_clock_mhz, device.sm_clock_mhz_min, device.sm_clock_mhz_max),
        ] {
            let Some(asked) = asked else { continue };
            let at = format!("GPU {} of node {node}", device.device);
            match (low, high) {
                (Some(low), Some(high)) if (low..=high).contains(&asked) => {}
                (Some(low), Some(high)) => return Err(format!("{at} takes a {what} from {low} to {high} {unit}, not {asked}")),
                _ => return Err(format!("{at} does not say which {what} it takes")),
            }
        }
    }
    Ok(())
}

/// What the agents of these nodes say of a wish.
pub fn standing(wish: &Wish, nodes: &BTreeSet<String>, board: &BTreeMap<String, DeviceState>) -> Standing {
    if nodes.is_empty() {
        return Standing::Waiting("none of its pods runs on a node".into());
    }
    let mut waiting = None;
    for node in nodes {
        let Some(state) = board.get(node).filter(|state| !state.stopped) else {
            waiting.get_or_insert_with(|| format!("the agent of node {node} does not answer"));
            continue;
        };
        if state.devices.is_empty() {
            waiting.get_or_insert_with(|| format!("the agent of node {node} knows no GPU"));
        }
        for device in &state.devices {
            match of_device(wish, node, device) {
                Standing::Held => {}
                Standing::Waiting(what) => drop(waiting.get_or_insert(what)),
                refused @ Standing::Refused(_) => return refused,
            }
        }
    }
    waiting.map_or(Standing::Held, Standing::Waiting)
}

fn of_device(wish: &Wish, node: &str, device: &DeviceReport) -> Standing {
    let at = format!("GPU {} of node {node}", device.device);
    if device.decision_id.as_ref() != Some(&wish.decision_id) {
        return Standing::Waiting(format!("{at} has not been asked for it yet"));
    }
    let capped = |asked: f64| device.power_limit_watts.is_some_and(|watts| (watts - asked).abs() <= RESOLUTION_WATTS);
    // An agent rounds a clock down to one that the device knows.
    let bounded = |asked: f64| device.sm_clock_mhz.is_some_and(|mhz| mhz <= asked);
    let mut waiting = None;
    for (what, in_force, outcome, reason) in [
        ("power cap", wish.power_limit_watts.map(capped), device.power_limit_outcome, &device.power_limit_reason),
        ("bound of the SM clock", wish.sm_clock_mhz.map(bounded), device.sm_clock_outcome, &device.sm_clock_reason),
    ] {
        let Some(in_force) = in_force else { continue };
        match outcome {
            SettingOutcome::Held if in_force => {}
            SettingOutcome::Refused | SettingOutcome::ChangedByOthers => {
                return Standing::Refused(format!("the agent does not hold the {what} of {at}: {reason}"));
            }
            SettingOutcome::Failed => waiting = Some(format!("the agent cannot set the {what} of {at} so far: {reason}")),
            _ => drop(waiting.get_or_insert(format!("{at} does not hold the {what} yet"))),
        }
    }
    waiting.map_or(Standing::Held, Standing::Waiting)
}

/// One intent a node. Where two wishes meet on a node none is followed: neither is asked for by both.
pub fn intents<'a>(wishes: impl IntoIterator<Item = (&'a Wish, &'a BTreeSet<String>)>) -> Vec<DeviceIntent> {
    let mut by_node: BTreeMap<&str, Vec<&Wish>> = BTreeMap::new();
    for (wish, nodes) in wishes {
        for node in nodes {
            by_node.entry(node).or_default().push(wish);
        }
    }
    let alone = by_node.into_iter().filter(|(_, wishes)| wishes.len() == 1);
    alone
        .map(|(node, wishes)| DeviceIntent {
            node: node.to_owned(),
            decision_id: wishes[0].decision_id.clone(),
            devices: Some(vec![wishes[0].setting()]),
            ..DeviceIntent::default()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn at(seconds: f64) -> EventTime {
        EventTime::from_seconds(1_767_225_600.0 + seconds)
    }

    fn wish() -> Wish {
        let layout = Layout { power_limit_watts: Some(300.0), sm_clock_mhz: Some(1417.0), ..Layout::default() };
        Wish::new("eadt/llm", "d-1", &layout).unwrap()
    }

    fn state() -> DeviceState {
        let device = DeviceReport {
            device: "GPU-1".into(),
            decision_id: Some("d-1".into()),
            power_limit_outcome: SettingOutcome::Held,
            power_limit_watts: Some(300.0),
            power_limit_watts_min: Some(200.0),
            power_limit_watts_max: Some(700.0),
            sm_clock_outcome: SettingOutcome::Held,
            sm_clock_mhz: Some(1410.0),
            sm_clock_mhz_min: Some(210.0),
            sm_clock_mhz_max: Some(1980.0),
            ..DeviceReport::default()
        };
        DeviceState { time: at(0.0), node: "n".into(), devices: vec![device], ..DeviceState::default() }
    }

    fn pod(name: &str, node: Option<&str>) -> Pod {
        let node = node.map(str::to_owned);
        Pod { name: name.into(), uid: name.into(), node, revision: None, ready: true, terminating: false, trouble: None }
    }

    fn holder(name: &str) -> Tenant {
        Tenant { namespace: "eadt".into(), name: name.into(), uid: name.into() }
    }

    #[test]
    fn a_node_is_addressed_only_where_nobody_else_holds_its_gpus() {
        let own = [pod("a", Some("n")), pod("b", Some("n")), pod("c", Some("m")), pod("d", None)];
        assert_eq!(nodes(&own), BTreeSet::from(["m".to_owned(), "n".to_owned()]));
        let mut tenants = BTreeMap::from([("n".to_owned(), vec![holder("a"), holder("b")]), ("m".to_owned(), vec![holder("c")])]);
        assert_eq!(alone(&own, &tenants), Ok(()));
        tenants.get_mut("m").unwrap().push(holder("other"));
        let refused = alone(&own, &tenants).unwrap_err();
        assert!(refused.contains("eadt/other") && refused.contains("node m"), "{refused}");
    }

    #[test]
    fn whoever_may_hold_gpus_is_a_tenant() {
        let pod = |spec: Value| tenant(&json!({"metadata": {"namespace": "eadt", "name": "p", "uid": "u"}, "spec": spec}));
        assert!(pod(json!({"containers": [{"resources": {"limits": {"nvidia.com/gpu": "1"}}}]})).is_some());
        assert!(pod(json!({"containers": [{}, {"resources": {"requests": {"nvidia.com/mig-1g.10gb": 1}}}]})).is_some());
        assert!(pod(json!({"containers": [{}], "resourceClaims": [{"name": "gpu"}]})).is_some());
        assert!(pod(json!({"containers": [{"resources": {"limits": {"cpu": "1"}}}]})).is_none());
    }

    #[test]
    fn what_the_devices_do_not_take_is_refused_before_anything_is_asked() {
        let (wish, good) = (wish(), state());
        assert_eq!(takes(&wish, "n", Some(&good), at(60.0)), Ok(()));
        let refused = |state: Option<&DeviceState>, seconds: f64| takes(&wish, "n", state, at(seconds)).unwrap_err();
        assert!(refused(None, 0.0).contains("no agent"));
        assert!(refused(Some(&DeviceState { stopped: true, ..good.clone() }), 0.0).contains("stopped"));
        assert!(refused(Some(&good), 181.0).contains("said nothing"));
        assert!(refused(Some(&DeviceState { devices: vec![], ..good.clone() }), 0.0).contains("no GPU"));
        let with = |change: fn(&mut DeviceReport)| {
            let mut state = good.clone();
            change(&mut state.devices[0]);
            refused(Some(&state), 0.0)
        };
        assert!(with(|d| d.power_limit_watts_min = Some(350.0)).contains("from 350 to 700 W, not 300"));
        assert!(with(|d| d.sm_clock_mhz_max = Some(1400.0)).contains("not 1417"));
        assert!(with(|d| d.sm_clock_mhz_max = None).contains("does not say"));
    }

    #[test]
    fn it_is_held_when_all_agents_say_so_of_this_decision() {
        let wish = wish();
        let stands = |change: fn(&mut DeviceState)| {
            let mut other = state();
            change(&mut other);
            let board = BTreeMap::from([("n".to_owned(), state()), ("m".to_owned(), other)]);
            standing(&wish, &BTreeSet::from(["n".to_owned(), "m".to_owned()]), &board)
        };
        assert_eq!(stands(|_| {}), Standing::Held);
        assert!(matches!(stands(|s| s.devices[0].decision_id = Some("d-0".into())), Standing::Waiting(_)));
        assert!(matches!(stands(|s| s.devices[0].power_limit_watts = Some(700.0)), Standing::Waiting(_)));
        assert!(matches!(stands(|s| s.devices[0].sm_clock_mhz = None), Standing::Waiting(_)));
        assert!(matches!(stands(|s| s.devices.clear()), Standing::Waiting(_)));
        assert!(matches!(stands(|s| s.stopped = true), Standing::Waiting(_)));
        assert!(matches!(stands(|s| s.devices[0].power_limit_outcome = SettingOutcome::Failed), Standing::Waiting(_)));
        let refused = stands(|s| {
            s.devices[0].sm_clock_outcome = SettingOutcome::Refused;
            s.devices[0].sm_clock_reason = "agent.clocks is off".into();
        });
        assert!(matches!(&refused, Standing::Refused(why) if why.contains("agent.clocks is off")), "{refused:?}");
        // What an older decision was refused says nothing of this one.
        let old = stands(|s| {
            s.devices[0].decision_id = Some("d-0".into());
            s.devices[0].sm_clock_outcome = SettingOutcome::Refused;
        });
        assert!(matches!(old, Standing::Waiting(_)), "{old:?}");
        assert!(matches!(standing(&wish, &BTreeSet::new(), &BTreeMap::new()), Standing::Waiting(_)));
    }

    #[test]
    fn one_intent_a_node_carries_the_whole_wish() {
        let (one, two) = (wish(), Wish { workload: "eadt/two".into(), decision_id: "d-2".into(), ..wish() });
        let (first, second) =
            (BTreeSet::from(["a".to_owned(), "b".to_owned()]), BTreeSet::from(["b".to_owned(), "c".to_owned()]));
        let intents = intents([(&one, &first), (&two, &second)]);
        let shape: Vec<_> = intents.iter().map(|i| (i.node.as_str(), i.decision_id.as_str())).collect();
        assert_eq!(shape, [("a", "d-1"), ("c", "d-2")], "nobody is asked for two wishes");
        let setting = &intents[0].devices.as_ref().unwrap()[0];
        assert_eq!((setting.device.as_deref(), setting.workload.as_deref()), (None, Some("eadt/llm")));
        assert_eq!((setting.power_limit_watts, setting.sm_clock_mhz), (Some(300.0), Some(1417.0)));
    }
}
