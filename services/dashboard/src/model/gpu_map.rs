//! All GPUs in few bytes, by node: a map of them has a place for each.

use std::collections::BTreeMap;

use eadt_schemas::EventTime;
use serde::Serialize;

use super::DashboardModel;
use super::sharing::{DeviceEntry, natural_order};

/// Name of a GPU on its node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum GpuName {
    Index(u32),
    /// Its UUID: it has no index, or another GPU of the node has the same.
    Device(String),
}

/// The GPUs of a node, as columns.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GpuMapNode {
    /// Absent: their samples name no node.
    pub node: Option<String>,
    pub gpus: Vec<GpuName>,
    /// Power of the whole GPU, in whole watts; `None` if unknown.
    pub power_watts: Vec<Option<u32>>,
    /// Number of workloads on it; `None` if no recent sample of it was received.
    pub workloads: Vec<Option<usize>>,
}

/// All GPUs, in the order of their nodes' names.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GpuMap {
    /// Time of the newest sample.
    pub now_ms: Option<i64>,
    pub gpus: usize,
    pub nodes: Vec<GpuMapNode>,
}

impl DashboardModel {
    /// Returns all GPUs by node.
    pub fn gpu_map(&self) -> GpuMap {
        let without_samples = self.devices.without_samples();
        let named = without_samples.iter().map(|(name, device)| (*name, device));
        let mut by_node: BTreeMap<Option<&str>, Vec<DeviceEntry<'_>>> = BTreeMap::new();
        for (name, device) in self.devices.iter().chain(named) {
            by_node.entry(device.node.as_deref()).or_default().push((name, device));
        }
        let gpus = by_node.values().map(Vec::len).sum();
        let mut nodes: Vec<GpuMapNode> = by_node.into_iter().map(|(node, devices)| self.gpu_map_node(node, devices)).collect();
        nodes.sort_by(|a, b| natural_order(a.node.as_deref(), b.node.as_deref()));
        GpuMap { now_ms: self.devices.newest().map(EventTime::millis), gpus, nodes }
    }

    fn gpu_map_node(&self, node: Option<&str>, mut devices: Vec<DeviceEntry<'_>>) -> GpuMapNode {
        devices.sort_by_key(|(name, device)| (device.gpu_index, *name));
        let mut uses: BTreeMap<u32, usize> = BTreeMap::new();
        for index in devices.iter().filter_map(|(_, device)| device.gpu_index) {
            *uses.entry(index).or_default() += 1;
        }
        let name = |(name, device): &DeviceEntry<'_>| match device.gpu_index {
            Some(index) if uses.get(&index) == Some(&1) => GpuName::Index(index),
            _ => GpuName::Device((*name).to_owned()),
        };
        let watts = |(_, device): &DeviceEntry<'_>| Some(device.power_watts?.round() as u32).filter(|_| !self.is_silent(device));
        let workloads = |(_, device): &DeviceEntry<'_>| (!self.is_silent(device)).then(|| self.count_workloads(device));
        GpuMapNode {
            node: node.map(str::to_owned),
            gpus: devices.iter().map(name).collect(),
            power_watts: devices.iter().map(watts).collect(),
            workloads: devices.iter().map(workloads).collect(),
        }
    }
}
