//! Index of GPU models and power limits by workload, from the reports of collectors and agents. Pure.

use std::collections::{BTreeMap, BTreeSet};

use eadt_schemas::EventTime;
use eadt_schemas::v1::{DeviceHolders, DeviceState};

/// A node whose collector has not reported for this long is removed, with the GPUs that its workloads held there.
const NODE_GONE_SECONDS: f64 = 3600.0;

/// Model and power limit that all GPUs of a workload share; absent if they differ or no collector reports them.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct GpuModel {
    pub model: Option<String>,
    /// The default power limit.
    pub power_limit_watts: Option<f64>,
}

impl GpuModel {
    /// Returns the values that both have in common.
    fn common(self, other: &Self) -> Self {
        Self {
            model: self.model.filter(|model| other.model.as_ref() == Some(model)),
            power_limit_watts: self.power_limit_watts.filter(|watts| other.power_limit_watts == Some(*watts)),
        }
    }
}

/// The GPUs of all nodes, and the workloads that hold them.
#[derive(Debug, Default)]
pub struct GpuModelIndex {
    nodes: BTreeMap<String, NodeGpus>,
    /// Nodes by the workloads that hold GPUs of theirs.
    nodes_by_workload: BTreeMap<String, BTreeSet<String>>,
}

#[derive(Debug, Default)]
struct NodeGpus {
    /// Time of its collector's last report.
    time: EventTime,
    gpus_by_workload: BTreeMap<String, Vec<(String, GpuModel)>>,
    /// Models of the held devices, by UUID.
    models: BTreeMap<String, GpuModel>,
    /// The boards by UUID, as its agent has them.
    reported: BTreeMap<String, GpuModel>,
}

impl GpuModelIndex {
    /// Takes a collector's report; returns the workloads whose GPUs changed.
    pub fn on_device_holders(&mut self, holders: &DeviceHolders) -> BTreeSet<String> {
        let node = self.nodes.entry(holders.node.clone()).or_default();
        let mut held: BTreeMap<String, Vec<(String, GpuModel)>> = BTreeMap::new();
        let mut boards = BTreeMap::new();
        for device in &holders.devices {
            // A UUID is one board for ever; a collector that has just started may not have opened it yet.
            let known = node.models.remove(&device.device).unwrap_or_default();
            let board = GpuModel {
                model: device.gpu_model.clone().or(known.model),
                power_limit_watts: device.default_power_limit_watts.or(known.power_limit_watts),
            };
            let workloads: BTreeSet<&String> = device.pods.iter().filter_map(|pod| pod.workload.as_ref()).collect();
            for workload in workloads {
                held.entry(workload.clone()).or_default().push((device.device.clone(), board.clone()));
            }
            boards.insert(device.device.clone(), board);
        }
        node.models = boards;
        // A node that was gone was left out meanwhile.
        let back = holders.time.seconds_since(node.time) > NODE_GONE_SECONDS;
        node.time = holders.time;
        let before = std::mem::replace(&mut node.gpus_by_workload, held);
        let names = before.keys().chain(node.gpus_by_workload.keys()).collect::<BTreeSet<_>>();
        let changed: BTreeSet<String> =
            names.into_iter().filter(|name| back || before.get(*name) != node.gpus_by_workload.get(*name)).cloned().collect();
        for workload in &changed {
            let nodes = self.nodes_by_workload.entry(workload.clone()).or_default();
            if node.gpus_by_workload.contains_key(workload) {
                nodes.insert(holders.node.clone());
            } else {
                nodes.remove(&holders.node);
            }
            if nodes.is_empty() {
                self.nodes_by_workload.remove(workload);
            }
        }
        changed
    }

    /// Takes an agent's report; returns the workloads whose GPUs changed.
    pub fn on_device_state(&mut self, state: &DeviceState) -> BTreeSet<String> {
        let node = self.nodes.entry(state.node.clone()).or_default();
        let board = |model: &Option<String>, watts| GpuModel { model: model.clone(), power_limit_watts: watts };
        let reported: BTreeMap<_, _> = state
            .devices
            .iter()
            .map(|device| (device.device.clone(), board(&device.gpu_model, device.default_power_limit_watts)))
            .collect();
        if node.reported == reported {
            return BTreeSet::new();
        }
        node.reported = reported;
        node.gpus_by_workload.keys().cloned().collect()
    }

    /// Returns the model and power limit that all GPUs of a workload have; `None` if it holds no known GPU.
    pub fn common_model(&self, workload: &str, now: EventTime) -> Option<GpuModel> {
        let nodes = self.nodes_by_workload.get(workload)?.iter().filter_map(|name| self.nodes.get(name));
        // A collector that is silent for a while takes nothing away: boards are not exchanged under running pods.
        let boards = nodes.filter(|node| now.seconds_since(node.time) <= NODE_GONE_SECONDS).flat_map(|node| {
            node.gpus_by_workload.get(workload).into_iter().flatten().map(|(device, held)| {
                let reported = node.reported.get(device).cloned().unwrap_or_default();
                GpuModel {
                    model: held.model.clone().or(reported.model),
                    power_limit_watts: held.power_limit_watts.or(reported.power_limit_watts),
                }
            })
        });
        boards.reduce(|all, board| all.common(&board))
    }
}

#[cfg(test)]
mod tests {
    use eadt_schemas::v1::{DeviceReport, HeldDevice, PodName};

    use super::*;

    fn at(seconds: f64) -> EventTime {
        EventTime::from_seconds(1_767_225_600.0 + seconds)
    }

    /// Device, watts and the workloads of its pods.
    fn node(name: &str, seconds: f64, devices: &[(&str, Option<f64>, &[&str])]) -> DeviceHolders {
        let pod = |workload: &&str| PodName {
            namespace: "n".into(),
            name: format!("{workload}-0"),
            workload: Some(format!("n/{workload}")),
        };
        let held = |(device, watts, workloads): &(&str, Option<f64>, &[&str])| HeldDevice {
            device: (*device).to_owned(),
            gpu_model: watts.map(|watts| if watts > 300.0 { "A100" } else { "V100" }.to_owned()),
            default_power_limit_watts: *watts,
            pods: workloads.iter().map(pod).collect(),
        };
        DeviceHolders { time: at(seconds), node: name.into(), devices: devices.iter().map(held).collect(), unplaced: Vec::new() }
    }

    fn board(model: Option<&str>, watts: Option<f64>) -> GpuModel {
        GpuModel { model: model.map(str::to_owned), power_limit_watts: watts }
    }

    #[test]
    fn a_workload_has_what_all_its_gpus_have_in_common() {
        let mut boards = GpuModelIndex::default();
        let changed =
            boards.on_device_holders(&node("a", 0.0, &[("GPU-1", Some(400.0), &["x", "y"]), ("GPU-2", Some(400.0), &["x"])]));
        assert_eq!(changed.into_iter().collect::<Vec<_>>(), ["n/x", "n/y"]);
        assert_eq!(boards.common_model("n/x", at(1.0)), Some(board(Some("A100"), Some(400.0))));
        assert_eq!(boards.common_model("n/z", at(1.0)), None);
        assert!(
            boards
                .on_device_holders(&node("a", 60.0, &[("GPU-1", Some(400.0), &["x", "y"]), ("GPU-2", Some(400.0), &["x"])]))
                .is_empty()
        );

        let changed = boards.on_device_holders(&node("b", 61.0, &[("GPU-3", Some(250.0), &["x"])]));
        assert_eq!(changed.into_iter().collect::<Vec<_>>(), ["n/x"]);
        assert_eq!(boards.common_model("n/x", at(62.0)), Some(board(None, None)), "two kinds of board");
        assert_eq!(boards.common_model("n/y", at(62.0)), Some(board(Some("A100"), Some(400.0))));
        assert_eq!(boards.common_model("n/x", at(241.0)), Some(board(None, None)), "the first node is silent, and is as it was");
        assert_eq!(
            boards.common_model("n/y", at(3600.0)),
            Some(board(Some("A100"), Some(400.0))),
            "a board is not exchanged meanwhile"
        );
        boards.on_device_holders(&node("b", 3661.0, &[("GPU-3", Some(250.0), &["x"])]));
        assert_eq!(boards.common_model("n/x", at(3662.0)), Some(board(Some("V100"), Some(250.0))), "the first node is gone");
        assert_eq!(boards.on_device_holders(&node("a", 3663.0, &[("GPU-1", Some(400.0), &["y"])])).len(), 2);
        assert_eq!(boards.common_model("n/x", at(3664.0)), Some(board(Some("V100"), Some(250.0))));
        boards.on_device_holders(&node("b", 3665.0, &[("GPU-3", None, &["x"])]));
        assert_eq!(
            boards.common_model("n/x", at(3665.0)),
            Some(board(Some("V100"), Some(250.0))),
            "a UUID is one board for ever"
        );
        boards.on_device_holders(&node("b", 3666.0, &[]));
        assert_eq!(boards.common_model("n/x", at(3666.0)), None);
        assert!(!boards.nodes_by_workload.contains_key("n/x"));
    }

    #[test]
    fn an_agent_reports_what_a_collector_does_not() {
        let mut boards = GpuModelIndex::default();
        let report = DeviceReport {
            device: "GPU-1".into(),
            gpu_model: Some("A100".into()),
            default_power_limit_watts: Some(400.0),
            ..DeviceReport::default()
        };
        let mut state = DeviceState { node: "a".into(), devices: vec![report], ..DeviceState::default() };
        assert!(boards.on_device_state(&state).is_empty(), "nobody holds it yet");
        boards.on_device_holders(&node("a", 0.0, &[("GPU-1", None, &["x"])]));
        assert_eq!(boards.common_model("n/x", at(0.0)), Some(board(Some("A100"), Some(400.0))));
        state.devices[0].default_power_limit_watts = None;
        assert_eq!(boards.on_device_state(&state).into_iter().collect::<Vec<_>>(), ["n/x"]);
        assert_eq!(boards.common_model("n/x", at(0.0)), Some(board(Some("A100"), None)));
    }
}
