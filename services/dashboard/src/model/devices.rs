//! The state of each GPU: its newest samples, the settings requested of its node, the reports of its agent and its
//! kubelet.

use std::collections::BTreeMap;

use eadt_report::liveness::ABSENT_SECONDS;
use eadt_schemas::EventTime;
use eadt_schemas::v1::{
    DeviceHolders, DeviceIntent, DeviceReport, DeviceSetting, DeviceState, GpuTelemetry, HeldDevice, Meter, Origin, PodName,
    ShareMethod,
};

use super::SILENT_SECONDS;

/// If the last sample of one collector is so recent, samples of another are left out: shares of two measures cannot be
/// added.
const OTHER_COLLECTOR_SECONDS: f64 = 60.0;

/// A smaller part of a GPU is a rounding error.
const LEAST_SHARE: f64 = 1e-6;

/// The newest sample of one device for one workload, or for none.
#[derive(Debug, Clone, PartialEq)]
pub struct PowerAttribution {
    pub workload: Option<String>,
    pub time: EventTime,
    /// Part of the device's power; `None` for all of it.
    pub share: Option<f64>,
    pub method: Option<ShareMethod>,
}

impl PowerAttribution {
    fn part(&self) -> f64 {
        self.share.unwrap_or(1.0)
    }
}

/// A GPU, as its newest samples have it.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceSnapshot {
    pub node: Option<String>,
    pub gpu_index: Option<u32>,
    pub gpu_model: Option<String>,
    pub origin: Origin,
    pub meter: Meter,
    pub mig_enabled: Option<bool>,
    pub mps_enabled: Option<bool>,
    /// Power of the whole device.
    pub power_watts: Option<f64>,
    /// Its power is not known since it reports one that it cannot draw.
    pub has_impossible_power: bool,
    pub power_limit_watts: Option<f64>,
    /// Workloads that share it, as its collector counts them.
    pub tenants: Option<u32>,
    /// Time of its newest sample.
    pub time: EventTime,
    /// False: only its node names it.
    pub has_sample: bool,
    collector: String,
    attributions: Vec<PowerAttribution>,
}

impl DeviceSnapshot {
    /// Returns the present attributions of its power: to workloads, and to none.
    pub fn attributions(&self) -> impl Iterator<Item = &PowerAttribution> {
        self.attributions.iter().filter(|known| self.time.seconds_since(known.time) < ABSENT_SECONDS)
    }

    /// Returns the workloads that its collector assigns it to, those that have ended included.
    pub fn workloads(&self) -> impl Iterator<Item = &str> {
        self.attributions().filter_map(|known| known.workload.as_deref())
    }

    /// Returns the part of the device that samples newer than this time leave.
    fn part_left(&self, time: EventTime) -> f64 {
        let taken: f64 = self.attributions.iter().filter(|known| known.time > time).map(PowerAttribution::part).sum();
        (1.0 - taken).max(0.0)
    }

    /// Limits each attribution to what newer samples leave of the device, as `eadt get gpus` does. Returns the workloads to which
    /// they leave nothing: another one, or none, has the whole device by now.
    fn limit_older_shares(&mut self) -> Vec<String> {
        if self.attributions.len() < 2 {
            return Vec::new();
        }
        let left: Vec<f64> = self.attributions.iter().map(|known| self.part_left(known.time)).collect();
        let (mut left, mut replaced) = (left.into_iter(), Vec::new());
        self.attributions.retain_mut(|known| {
            let left = left.next().unwrap_or(1.0);
            if known.part() <= left {
                return true;
            }
            known.share = Some(left);
            if left < LEAST_SHARE {
                replaced.extend(known.workload.take());
            }
            left >= LEAST_SHARE
        });
        replaced
    }

    fn take(&mut self, sample: &GpuTelemetry) -> TenantChanges {
        let mut changes = TenantChanges::default();
        if self.collector != sample.collector {
            if sample.time.seconds_since(self.time) < OTHER_COLLECTOR_SECONDS {
                return changes;
            }
            self.collector.clone_from(&sample.collector);
            changes.released.extend(self.attributions.drain(..).filter_map(|known| known.workload));
        }
        if sample.time >= self.time {
            self.time = sample.time;
            self.node.clone_from(&sample.node);
            self.gpu_index = sample.gpu_index;
            self.gpu_model.clone_from(&sample.gpu_model);
            (self.origin, self.meter) = (sample.origin, sample.meter);
            (self.mig_enabled, self.mps_enabled) = (sample.mig_enabled, sample.mps_enabled);
            self.power_watts = sample.usable_power_watts();
            self.has_impossible_power = sample.has_only_impossible_power();
            self.power_limit_watts = sample.power_limit_watts;
            self.tenants = sample.tenants;
        }
        let newer = |known: &PowerAttribution| known.workload == sample.workload && known.time <= sample.time;
        let now = self.time;
        let is_absent = |known: &PowerAttribution| !newer(known) && now.seconds_since(known.time) >= ABSENT_SECONDS;
        changes.left.extend(self.attributions.iter().filter(|known| is_absent(known)).filter_map(|known| known.workload.clone()));
        let was_newer = self.attributions.iter().any(newer);
        self.attributions.retain(|known| !newer(known) && !is_absent(known));
        let is_known = self.attributions.iter().any(|known| known.workload == sample.workload);
        // Of another partition, read later.
        let left = self.part_left(sample.time);
        let is_replaced = left < LEAST_SHARE && sample.share.unwrap_or(1.0) > left;
        let is_late = is_replaced || now.seconds_since(sample.time) >= ABSENT_SECONDS;
        let is_added = !sample.last && !is_known && !is_late;
        if let Some(workload) = sample.workload.as_ref().filter(|_| !is_known) {
            match (was_newer, is_added) {
                (false, true) => changes.came = Some(workload.clone()),
                (true, false) if sample.last => changes.released.push(workload.clone()),
                (true, false) => changes.left.push(workload.clone()),
                (false, false) if !sample.last => changes.late = Some(workload.clone()),
                _ => {}
            }
        }
        if is_added {
            self.attributions.push(PowerAttribution {
                workload: sample.workload.clone(),
                time: sample.time,
                share: sample.share,
                method: sample.share_method,
            });
            changes.left.extend(self.limit_older_shares());
            self.attributions.sort_by(|a, b| (a.workload.is_none(), &a.workload).cmp(&(b.workload.is_none(), &b.workload)));
        }
        changes
    }
}

/// Changes of the workloads that the newest samples of a device name.
#[derive(Debug, Default)]
struct TenantChanges {
    came: Option<String>,
    /// An old sample names it, and newer ones named others, or none, before.
    late: Option<String>,
    /// Newer samples name others, or none.
    left: Vec<String>,
    /// Their collector stopped to report them on the device, or another one took over.
    released: Vec<String>,
}

impl From<&GpuTelemetry> for DeviceSnapshot {
    fn from(sample: &GpuTelemetry) -> Self {
        let mut device = Self {
            node: None,
            gpu_index: None,
            gpu_model: None,
            origin: sample.origin,
            meter: sample.meter,
            mig_enabled: None,
            mps_enabled: None,
            power_watts: None,
            has_impossible_power: false,
            power_limit_watts: None,
            tenants: None,
            time: sample.time,
            has_sample: true,
            collector: sample.collector.clone(),
            attributions: Vec::new(),
        };
        device.take(sample);
        device
    }
}

/// A GPU as its node names it, while no sample of it has come.
#[derive(Debug, Default)]
struct DeviceWithoutSample<'a> {
    node: &'a str,
    gpu_index: Option<u32>,
    gpu_model: Option<&'a String>,
    power_limit_watts: Option<f64>,
}

impl From<DeviceWithoutSample<'_>> for DeviceSnapshot {
    fn from(named: DeviceWithoutSample<'_>) -> Self {
        Self {
            node: Some(named.node.to_owned()),
            gpu_index: named.gpu_index,
            gpu_model: named.gpu_model.cloned(),
            origin: Origin::default(),
            meter: Meter::default(),
            mig_enabled: None,
            mps_enabled: None,
            power_watts: None,
            has_impossible_power: false,
            power_limit_watts: named.power_limit_watts,
            tenants: None,
            time: EventTime::MIN,
            has_sample: false,
            collector: String::new(),
            attributions: Vec::new(),
        }
    }
}

/// The last events of one node.
#[derive(Debug, Default)]
pub struct NodeSnapshot {
    pub intent: Option<DeviceIntent>,
    pub state: Option<DeviceState>,
    pub holders: Option<DeviceHolders>,
}

impl NodeSnapshot {
    /// Returns the setting that was requested of a device and has not expired at this time.
    pub fn requested_setting(&self, device: &str, now: Option<EventTime>) -> Option<DeviceSetting> {
        let intent = self.intent.as_ref()?;
        if now.is_some_and(|now| now.seconds_since(intent.time) > intent.time_to_live_seconds) {
            return None;
        }
        let setting = match &intent.devices {
            Some(devices) => {
                let named = devices.iter().find(|setting| setting.device.as_deref() == Some(device));
                named.or_else(|| devices.iter().find(|setting| setting.device.is_none()))?.clone()
            }
            None if intent.device.as_deref().is_none_or(|named| named == device) => DeviceSetting {
                device: intent.device.clone(),
                power_limit_watts: intent.power_limit_watts,
                sm_clock_mhz: intent.sm_clock_mhz,
                ..DeviceSetting::default()
            },
            None => return None,
        };
        (setting.power_limit_watts.is_some() || setting.sm_clock_mhz.is_some()).then_some(setting)
    }

    /// Returns its agent's report of a device.
    pub fn device_report(&self, device: &str) -> Option<&DeviceReport> {
        self.state.as_ref()?.devices.iter().find(|report| report.device == device)
    }

    /// Returns the GPUs that its agent and its kubelet name, if their last event is recent.
    fn named_devices<'a>(&'a self, name: &'a str, now: Option<EventTime>) -> BTreeMap<&'a str, DeviceWithoutSample<'a>> {
        let is_recent = |time: EventTime| now.is_none_or(|now| now.seconds_since(time) <= SILENT_SECONDS);
        let holders = self.holders.iter().filter(|holders| is_recent(holders.time)).flat_map(|holders| &holders.devices);
        let held = |held: &'a HeldDevice| {
            let named = DeviceWithoutSample { node: name, gpu_model: held.gpu_model.as_ref(), ..DeviceWithoutSample::default() };
            (held.device.as_str(), named)
        };
        let mut named: BTreeMap<&str, DeviceWithoutSample<'_>> = holders.map(held).collect();
        let state = self.state.iter().filter(|state| !state.stopped && is_recent(state.time));
        named.extend(state.flat_map(|state| &state.devices).map(|report| {
            let named = DeviceWithoutSample {
                node: name,
                gpu_index: report.gpu_index,
                gpu_model: report.gpu_model.as_ref(),
                power_limit_watts: report.power_limit_watts,
            };
            (report.device.as_str(), named)
        }));
        named
    }

    /// Returns the pods that hold a device, by the word of the kubelet.
    pub fn pods(&self, device: &str) -> &[PodName] {
        let holders = self.holders.as_ref().and_then(|holders| holders.devices.iter().find(|held| held.device == device));
        holders.map_or(&[], |held| &held.pods)
    }
}

/// All devices and nodes.
#[derive(Debug, Default)]
pub struct DeviceInventory {
    by_uuid: BTreeMap<String, DeviceSnapshot>,
    nodes: BTreeMap<String, NodeSnapshot>,
    newest: Option<EventTime>,
    /// Number of devices whose newest samples name a workload; 0: all that did name others, or none, by now.
    placements: BTreeMap<String, usize>,
}

impl DeviceInventory {
    /// Takes a sample; false if there are `most` devices already and this is another one.
    pub fn sample(&mut self, sample: &GpuTelemetry, most: usize) -> bool {
        if let Some(device) = self.by_uuid.get_mut(&sample.device) {
            let changes = device.take(sample);
            self.place(changes, most);
        } else if self.by_uuid.len() >= most {
            return false;
        } else if !sample.last {
            self.by_uuid.insert(sample.device.clone(), DeviceSnapshot::from(sample));
            self.place(TenantChanges { came: sample.workload.clone(), ..TenantChanges::default() }, most);
        }
        self.newest = self.newest.max(Some(sample.time));
        true
    }

    /// Counts the devices of workloads, of no more than `most` of those that have left all of theirs.
    fn place(&mut self, changes: TenantChanges, most: usize) {
        for workload in changes.released {
            if let Some(count) = self.placements.get_mut(&workload) {
                *count = count.saturating_sub(1);
                // Nothing else has its devices yet.
                if *count == 0 {
                    self.placements.remove(&workload);
                }
            }
        }
        for workload in changes.left {
            if let Some(count) = self.placements.get_mut(&workload) {
                *count = count.saturating_sub(1);
            }
        }
        let added = usize::from(changes.came.is_some());
        if let Some(workload) = changes.came.or(changes.late) {
            if self.placements.len() >= most {
                self.placements.retain(|_, count| *count > 0);
            }
            *self.placements.entry(workload).or_default() += added;
        }
    }

    /// Returns whether a workload has left all of its devices: their newest samples name others, or none.
    pub fn has_left(&self, workload: &str) -> bool {
        self.placements.get(workload) == Some(&0)
    }

    pub fn find(&self, device: &str) -> Option<&DeviceSnapshot> {
        self.by_uuid.get(device)
    }

    pub fn intent(&mut self, event: &DeviceIntent) {
        self.node(&event.node).intent = Some(event.clone());
    }

    pub fn state(&mut self, event: &DeviceState) {
        self.node(&event.node).state = Some(event.clone());
    }

    pub fn holders(&mut self, event: &DeviceHolders) {
        self.node(&event.node).holders = Some(event.clone());
    }

    fn node(&mut self, name: &str) -> &mut NodeSnapshot {
        self.nodes.entry(name.to_owned()).or_default()
    }

    /// Returns the time of the newest sample.
    pub fn newest(&self) -> Option<EventTime> {
        self.newest
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &DeviceSnapshot)> {
        self.by_uuid.iter().map(|(name, device)| (name.as_str(), device))
    }

    /// Returns the GPUs without a sample that their node's agent or kubelet names.
    pub fn without_samples(&self) -> BTreeMap<&str, DeviceSnapshot> {
        let named = self.nodes().flat_map(|(name, node)| node.named_devices(name, self.newest));
        named.filter(|(device, _)| !self.by_uuid.contains_key(*device)).map(|(device, named)| (device, named.into())).collect()
    }

    pub fn find_node(&self, node: &str) -> Option<&NodeSnapshot> {
        self.nodes.get(node)
    }

    pub fn nodes(&self) -> impl Iterator<Item = (&str, &NodeSnapshot)> {
        self.nodes.iter().map(|(name, node)| (name.as_str(), node))
    }
}
