//! Agents of the nodes whose answers are simulated.

use std::collections::{BTreeMap, BTreeSet};

use eadt_bus::{Bus, ConsumerRecord, ProducerRecord};
use eadt_schemas::v1::{DeviceIntent, DeviceReport, DeviceState, Layout, SettingOutcome};
use eadt_schemas::{Topic, decode};

use super::{Rig, WITHIN, account, now};

/// Everything that nodes were asked for, and `None` if it was withdrawn, in its order for each node.
pub fn history(rig: &Rig) -> Vec<(String, Option<DeviceIntent>)> {
    let of = |record: ConsumerRecord| {
        let node = String::from_utf8(record.key.unwrap().to_vec()).unwrap();
        (node, record.value.map(|value| decode::<DeviceIntent>(&value).unwrap()))
    };
    rig.records(Topic::DeviceIntents).into_iter().map(of).collect()
}

/// The intents in force, by node.
pub fn intents(rig: &Rig) -> BTreeMap<String, DeviceIntent> {
    let last: BTreeMap<_, _> = history(rig).into_iter().collect();
    last.into_iter().filter_map(|(node, intent)| Some((node, intent?))).collect()
}

/// Has every agent report the outcome of its intent.
pub fn answer(rig: &Rig, nodes: &BTreeSet<String>, outcome: SettingOutcome, reason: &str) {
    let standing = intents(rig);
    let mut producer = rig.log.producer("agents").unwrap();
    for node in nodes {
        let intent = standing.get(node);
        let asked = intent.and_then(|intent| intent.devices.as_ref()?.first()?.power_limit_watts);
        let device = DeviceReport {
            device: format!("GPU-{node}"),
            decision_id: intent.map(|intent| intent.decision_id.clone()),
            power_limit_outcome: outcome,
            power_limit_reason: reason.into(),
            power_limit_watts: asked.filter(|_| outcome == SettingOutcome::Held).or(Some(700.0)),
            power_limit_watts_min: Some(250.0),
            power_limit_watts_max: Some(700.0),
            ..DeviceReport::default()
        };
        let state = DeviceState { time: now(), node: node.clone(), devices: vec![device], ..DeviceState::default() };
        producer.send(outgoing(Topic::DeviceStates, node, &state)).unwrap();
    }
    assert!(producer.flush(WITHIN).unwrap());
}

pub fn outgoing(topic: Topic, node: &str, event: &impl serde::Serialize) -> ProducerRecord {
    let (key, value) = (node.to_owned().into_bytes(), serde_json::to_vec(event).unwrap());
    let topic = format!("t.{topic}").into();
    ProducerRecord { topic, partition: None, key: Some(key.into()), value: Some(value.into()), headers: Vec::new() }
}

pub fn cap(watts: f64) -> Layout {
    Layout { power_limit_watts: Some(watts), ..Layout::default() }
}

/// The nodes of the job's pods.
pub fn nodes(rig: &Rig) -> BTreeSet<String> {
    rig.pods().iter().filter_map(|pod| pod["spec"]["nodeName"].as_str().map(str::to_owned)).collect()
}

/// Checks the rights that the chart grants without `onlyNamespace`: pods of all namespaces.
pub fn sees_all_pods(rig: &Rig) {
    let (role, subject) = (format!("{}-pods", rig.namespace), format!("--serviceaccount={}:{}", rig.namespace, account::NAME));
    rig.kubectl(&["create", "clusterrole", &role, "--verb=list,watch", "--resource=pods"]);
    rig.kubectl(&["create", "clusterrolebinding", &role, &format!("--clusterrole={role}"), &subject]);
}
