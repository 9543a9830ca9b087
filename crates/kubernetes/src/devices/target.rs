//! Power caps, clocks and MPS defaults for the agents of the nodes: which agents are addressed, whether the devices support the
//! values, and the result. Pure.
//!
//! If all GPUs of a node belong to one workload, the node is addressed as a whole. On a node that workloads share, its collector
//! reports which pod holds which GPU; the GPUs that a workload has for itself are addressed by name. Without a report no GPU is
//! addressed.

use std::collections::{BTreeMap, BTreeSet};

use eadt_schemas::EventTime;
use eadt_schemas::v1::{
    DeviceHolders, DeviceIntent, DeviceReport, DeviceSetting, DeviceState, Layout, PodName, SettingOutcome, UpdateMode,
};

use crate::devices::gpu_pod::GpuPod;
use crate::devices::mps_default::MpsDefaultAgreement;
use crate::index::workloads::WorkloadEntry;
use crate::objects::change::agent_settings;
use crate::objects::rollout::WorkloadPod;
use crate::settings::REPORT_STALE_SECONDS;

/// A report counts for a pod only if it is newer than the pod by this much, since the clocks of API server and broker differ.
const CLOCK_SKEW_SECONDS: f64 = 2.0;
/// Caps in force may differ from those asked for by the device's resolution.
const RESOLUTION_WATTS: f64 = 1.0;

/// Power cap and clock that the GPUs of a workload are to hold.
#[derive(Debug, Clone, PartialEq)]
pub struct DesiredGpuSettings {
    pub workload: String,
    pub decision_id: String,
    pub power_limit_watts: Option<f64>,
    pub sm_clock_mhz: Option<f64>,
}

/// The GPUs of a node that one workload has for itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExclusiveGpus {
    All,
    /// These devices, by UUID.
    Listed(BTreeSet<String>),
    /// Not known yet, with the reason; it will be soon. No GPU is addressed until then.
    NotYet(String),
}

/// The nodes where a workload runs, with its GPUs on each.
pub type GpuPlacement = BTreeMap<String, ExclusiveGpus>;

/// Progress of the agents with a target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SettingsProgress {
    /// Every device of every node holds it.
    Held,
    /// Not yet, with the reason for waiting.
    Pending(String),
    /// An agent will not hold it, and why.
    Refused(String),
}

impl DesiredGpuSettings {
    /// Returns the target of a decision; `None` if it sets no cap or clock.
    pub fn new(workload: &str, decision_id: &str, layout: &Layout) -> Option<Self> {
        let (power_limit_watts, sm_clock_mhz) = agent_settings(layout);
        (power_limit_watts.is_some() || sm_clock_mhz.is_some()).then(|| Self {
            workload: workload.to_owned(),
            decision_id: decision_id.to_owned(),
            power_limit_watts,
            sm_clock_mhz,
        })
    }

    /// Returns the settings that a workload's nodes are to hold now; none without a policy that still allows them, or while it is
    /// paused.
    pub fn from_entry(entry: &WorkloadEntry) -> Option<Self> {
        let (effective_policy, observed) = (&entry.effective_policy, &entry.object);
        if entry.orphaned || entry.paused || observed.deleting || effective_policy.mode == UpdateMode::Observe {
            return None;
        }
        let layout = Layout {
            power_limit_watts: observed.layout.power_limit_watts.filter(|_| effective_policy.knobs.power_limit),
            sm_clock_mhz: observed.layout.sm_clock_mhz.filter(|_| effective_policy.knobs.clocks),
            ..Layout::default()
        };
        let applied = observed.change_annotation.as_ref()?.applied.as_ref()?;
        Self::new(&observed.workload(), &applied.decision_id, &layout)
    }

    fn device_setting(&self, device: Option<&str>) -> DeviceSetting {
        DeviceSetting {
            device: device.map(str::to_owned),
            workload: Some(self.workload.clone()),
            decision_id: Some(self.decision_id.clone()),
            power_limit_watts: self.power_limit_watts,
            sm_clock_mhz: self.sm_clock_mhz,
        }
    }
}

/// Returns the nodes of a workload's pods.
pub fn nodes_of_pods(own: &[WorkloadPod]) -> BTreeSet<String> {
    own.iter().filter(|pod| !pod.terminating).filter_map(|pod| pod.node.clone()).collect()
}

/// Returns the GPUs of each node that the workload has for itself, by the uids of its pods. The error names the other workload
/// there, and why its GPUs cannot be distinguished. Nodes on which its pods hold no GPU are left out.
pub fn find_placement(
    own: &BTreeSet<String>,
    tenants: &BTreeMap<String, Vec<GpuPod>>,
    holders: &BTreeMap<String, DeviceHolders>,
    now: EventTime,
) -> Result<GpuPlacement, String> {
    let is_own = |tenant: &GpuPod| own.contains(&tenant.uid);
    let gpus = |(node, tenants): (&String, &Vec<GpuPod>)| {
        let gpus = match tenants.iter().find(|tenant| !is_own(tenant)) {
            None => ExclusiveGpus::All,
            Some(other) => exclusive_gpus(tenants, is_own, holders.get(node), now)
                .map_err(|why| format!("pod {}/{} holds GPUs of node {node}, too, and {why}", other.namespace, other.name))?,
        };
        Ok((node.clone(), gpus))
    };
    tenants.iter().filter(|(_, tenants)| tenants.iter().any(is_own)).map(gpus).collect()
}

/// Returns the GPUs of a shared node that the workload has for itself; the error has the reason if there is none.
///
/// The report counts if it is newer than every pod that holds GPUs there, and names each of them. The kubelet identifies pods by
/// name, and another pod of the same name may have come since.
fn exclusive_gpus(
    tenants: &[GpuPod],
    is_own: impl Fn(&GpuPod) -> bool,
    holders: Option<&DeviceHolders>,
    now: EventTime,
) -> Result<ExclusiveGpus, String> {
    let Some(holders) = holders else {
        let why =
            "no collector reports which workload has which GPU: run one there that asks the kubelet (collector.kubelet.enabled)";
        return Err(why.into());
    };
    if now.seconds_since(holders.time).abs() > REPORT_STALE_SECONDS {
        return Err(format!("the last report of the collector there on which workload has which GPU is of {}", holders.time));
    }
    if let Some(pod) = holders.unplaced.first() {
        return Err(format!("it is not known which GPU pod {}/{} holds", pod.namespace, pod.name));
    }
    let is = |tenant: &GpuPod, pod: &PodName| tenant.namespace == pod.namespace && tenant.name == pod.name;
    for tenant in tenants {
        let is_reported = holders.devices.iter().flat_map(|device| &device.pods).any(|pod| is(tenant, pod));
        let since = tenant.created.is_none_or(|created| holders.time.seconds_since(created) >= CLOCK_SKEW_SECONDS);
        if !is_reported || !since {
            let why = format!("its collector has not reported yet which GPU pod {}/{} holds", tenant.namespace, tenant.name);
            return Ok(ExclusiveGpus::NotYet(why));
        }
    }
    let owns = |pod: &PodName| tenants.iter().any(|tenant| is(tenant, pod) && is_own(tenant));
    let mut gpus = BTreeSet::new();
    for device in holders.devices.iter().filter(|device| device.pods.iter().any(owns)) {
        if let Some(other) = device.pods.iter().find(|pod| !owns(pod)) {
            let (gpu, PodName { namespace, name, .. }) = (&device.device, other);
            return Err(format!("GPU {gpu} is shared with pod {namespace}/{name}: a cap or clock would be for both"));
        }
        gpus.insert(device.device.clone());
    }
    Ok(ExclusiveGpus::Listed(gpus))
}

/// Returns the reports of these GPUs. The error names a GPU that the agent does not know, or states that it knows none.
fn device_reports<'a>(whose: &ExclusiveGpus, node: &str, state: &'a DeviceState) -> Result<Vec<&'a DeviceReport>, String> {
    if state.devices.is_empty() {
        return Err(format!("the agent of node {node} reports no GPU"));
    }
    match whose {
        ExclusiveGpus::All => Ok(state.devices.iter().collect()),
        ExclusiveGpus::NotYet(why) => Err(why.clone()),
        ExclusiveGpus::Listed(gpus) => gpus
            .iter()
            .map(|gpu| {
                let report = state.devices.iter().find(|report| report.device == *gpu);
                report.ok_or_else(|| format!("the agent of node {node} reports no GPU {gpu}"))
            })
            .collect(),
    }
}

/// Checks that the agent of a node reports and that its devices support the target.
pub fn check_supported(
    desired: &DesiredGpuSettings,
    node: &str,
    whose: &ExclusiveGpus,
    state: Option<&DeviceState>,
    now: EventTime,
) -> Result<(), String> {
    let Some(state) = state else {
        return Err(format!("no agent has reported on node {node}: install it there (agent.enabled)"));
    };
    if state.stopped {
        return Err(format!("the agent of node {node} has stopped"));
    }
    if now.seconds_since(state.time) > REPORT_STALE_SECONDS {
        return Err(format!("the agent of node {node} has not reported since {}", state.time));
    }
    for device in device_reports(whose, node, state)? {
        for (what, unit, requested, low, high) in [
            ("power cap", "W", desired.power_limit_watts, device.power_limit_watts_min, device.power_limit_watts_max),
            ("bound of the SM clock", "MHz", desired.sm_clock_mhz, device.sm_clock_mhz_min, device.sm_clock_mhz_max),
        ] {
            let Some(requested) = requested else { continue };
            let at = format!("GPU {} of node {node}", device.device);
            match (low, high) {
                (Some(low), Some(high)) if (low..=high).contains(&requested) => {}
                (Some(low), Some(high)) => {
                    return Err(format!("{at} takes a {what} from {low} to {high} {unit}, not {requested}"));
                }
                _ => return Err(format!("{at} does not report which {what} it accepts")),
            }
        }
    }
    Ok(())
}

/// Returns how far the agents of these nodes have carried out a target.
pub fn target_status(
    desired: &DesiredGpuSettings,
    place: &GpuPlacement,
    board: &BTreeMap<String, DeviceState>,
) -> SettingsProgress {
    if place.is_empty() {
        return SettingsProgress::Pending("none of its pods runs on a node".into());
    }
    let mut waiting = None;
    for (node, whose) in place {
        let Some(state) = board.get(node).filter(|state| !state.stopped) else {
            waiting.get_or_insert_with(|| format!("the agent of node {node} does not answer"));
            continue;
        };
        let reports = match device_reports(whose, node, state) {
            Ok(reports) => reports,
            Err(what) => {
                waiting.get_or_insert(what);
                continue;
            }
        };
        for device in reports {
            match device_status(desired, node, device) {
                SettingsProgress::Held => {}
                SettingsProgress::Pending(what) => drop(waiting.get_or_insert(what)),
                refused @ SettingsProgress::Refused(_) => return refused,
            }
        }
    }
    waiting.map_or(SettingsProgress::Held, SettingsProgress::Pending)
}

fn device_status(desired: &DesiredGpuSettings, node: &str, device: &DeviceReport) -> SettingsProgress {
    let at = format!("GPU {} of node {node}", device.device);
    if device.decision_id.as_ref() != Some(&desired.decision_id) {
        return SettingsProgress::Pending(format!("{at} has no intent for it yet"));
    }
    let capped = |max_watts: f64| device.power_limit_watts.is_some_and(|watts| (watts - max_watts).abs() <= RESOLUTION_WATTS);
    // An agent rounds a clock down to one that the device knows.
    let bounded = |max_mhz: f64| device.sm_clock_mhz.is_some_and(|mhz| mhz <= max_mhz);
    let mut waiting = None;
    for (what, in_force, outcome, reason) in [
        ("power cap", desired.power_limit_watts.map(capped), device.power_limit_outcome, &device.power_limit_reason),
        ("bound of the SM clock", desired.sm_clock_mhz.map(bounded), device.sm_clock_outcome, &device.sm_clock_reason),
    ] {
        let Some(in_force) = in_force else { continue };
        match outcome {
            SettingOutcome::Held if in_force => {}
            SettingOutcome::Refused | SettingOutcome::ChangedByOthers => {
                return SettingsProgress::Refused(format!("the agent does not hold the {what} of {at}: {reason}"));
            }
            SettingOutcome::Failed => waiting = Some(format!("the agent cannot set the {what} of {at} so far: {reason}")),
            _ => drop(waiting.get_or_insert(format!("{at} does not hold the {what} yet"))),
        }
    }
    waiting.map_or(SettingsProgress::Held, SettingsProgress::Pending)
}

/// Returns one intent per node. If two targets conflict on a GPU, neither of them is requested on that node.
pub fn build_intents<'a>(
    desired_settings: impl IntoIterator<Item = (&'a DesiredGpuSettings, &'a GpuPlacement)>,
    mps_defaults: &'a BTreeMap<String, MpsDefaultAgreement>,
) -> Vec<DeviceIntent> {
    let mut by_node: BTreeMap<&str, Vec<(&DesiredGpuSettings, &ExclusiveGpus)>> =
        mps_defaults.keys().map(|node| (node.as_str(), vec![])).collect();
    for (desired, place) in desired_settings {
        for (node, whose) in place {
            by_node.entry(node).or_default().push((desired, whose));
        }
    }
    let intent = |(node, desired_settings): (&str, Vec<(&DesiredGpuSettings, &ExclusiveGpus)>)| {
        let mut settings = Vec::new();
        for (desired, whose) in &desired_settings {
            match whose {
                ExclusiveGpus::All => settings.push(desired.device_setting(None)),
                ExclusiveGpus::Listed(gpus) => settings.extend(gpus.iter().map(|gpu| desired.device_setting(Some(gpu)))),
                ExclusiveGpus::NotYet(_) => {}
            }
        }
        let devices: BTreeSet<_> = settings.iter().map(|setting| &setting.device).collect();
        let whole = devices.contains(&None);
        let meet = devices.len() < settings.len() || whole && settings.len() > 1;
        if meet {
            settings.clear();
        }
        let default = mps_defaults.get(node);
        let decision_id =
            settings.iter().find_map(|setting| setting.decision_id.clone()).or_else(|| Some(default?.decision_id()))?;
        Some(DeviceIntent {
            node: node.to_owned(),
            decision_id,
            devices: Some(settings),
            mps_default_thread_percentage: default.map(|default| default.thread_percentage),
            mps_tenants: default.map(MpsDefaultAgreement::tenants),
            ..DeviceIntent::default()
        })
    };
    by_node.into_iter().filter_map(intent).collect()
}

#[cfg(test)]
mod tests {
    use eadt_schemas::v1::HeldDevice;
    use serde_json::{Value, json};

    use super::*;
    use crate::devices::gpu_pod::read_gpu_pod;

    fn at(seconds: f64) -> EventTime {
        EventTime::from_seconds(1_767_225_600.0 + seconds)
    }

    fn wish() -> DesiredGpuSettings {
        let layout = Layout { power_limit_watts: Some(300.0), sm_clock_mhz: Some(1417.0), ..Layout::default() };
        DesiredGpuSettings::new("eadt/llm", "d-1", &layout).unwrap()
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

    fn pod(name: &str, node: Option<&str>) -> WorkloadPod {
        let node = node.map(str::to_owned);
        WorkloadPod {
            name: name.into(),
            uid: name.into(),
            version: String::new(),
            node,
            revision: None,
            ready: true,
            terminating: false,
            trouble: None,
        }
    }

    fn holder(name: &str) -> GpuPod {
        GpuPod { namespace: "eadt".into(), name: name.into(), uid: name.into(), created: Some(at(-60.0)) }
    }

    /// Returns the holders of GPUs of node m, this many seconds after the start.
    fn holders(devices: &[(&str, &[&str])], unplaced: &[&str]) -> DeviceHolders {
        let pods = |names: &[&str]| {
            names
                .iter()
                .map(|name| PodName { namespace: "eadt".into(), name: (*name).to_owned(), workload: None })
                .collect::<Vec<_>>()
        };
        DeviceHolders {
            time: at(0.0),
            node: "m".into(),
            devices: devices
                .iter()
                .map(|(device, names)| HeldDevice { device: (*device).to_owned(), pods: pods(names), ..HeldDevice::default() })
                .collect(),
            unplaced: pods(unplaced),
        }
    }

    #[test]
    fn a_node_is_addressed_as_a_whole_where_nobody_else_holds_its_gpus_and_by_gpu_where_it_is_known_whose_they_are() {
        let own = [pod("a", Some("n")), pod("b", Some("n")), pod("c", Some("m")), pod("d", None)];
        assert_eq!(nodes_of_pods(&own), BTreeSet::from(["m".to_owned(), "n".to_owned()]));
        let uids = own.iter().map(|pod| pod.uid.clone()).collect();
        let mut tenants = BTreeMap::from([("n".to_owned(), vec![holder("a"), holder("b")]), ("m".to_owned(), vec![holder("c")])]);
        let placed = |tenants: &BTreeMap<_, _>, holders: Option<DeviceHolders>, seconds: f64| {
            let holders = holders.map(|holders| ("m".to_owned(), holders)).into_iter().collect();
            find_placement(&uids, tenants, &holders, at(seconds))
        };
        let whole = |node: &str| (node.to_owned(), ExclusiveGpus::All);
        assert_eq!(placed(&tenants, None, 0.0), Ok(GpuPlacement::from([whole("m"), whole("n")])));
        tenants.insert("o".into(), vec![]);
        tenants.insert("p".into(), vec![holder("other")]);
        assert_eq!(placed(&tenants, None, 0.0), Ok(GpuPlacement::from([whole("m"), whole("n")])), "its pods there hold no GPU");

        tenants.get_mut("m").unwrap().push(holder("other"));
        let refused = |holders: Option<DeviceHolders>, seconds: f64| {
            let refused = placed(&tenants, holders, seconds).unwrap_err();
            assert!(refused.contains("eadt/other") && refused.contains("node m"), "{refused}");
            refused
        };
        let good = holders(&[("GPU-1", &["c"]), ("GPU-2", &["other"]), ("GPU-3", &["c"])], &[]);
        let gpus = ExclusiveGpus::Listed(["GPU-1", "GPU-3"].map(str::to_owned).into());
        let shared = GpuPlacement::from([("m".to_owned(), gpus), whole("n")]);
        assert_eq!(placed(&tenants, Some(good.clone()), 60.0), Ok(shared));
        assert!(refused(None, 0.0).contains("collector.kubelet.enabled"));
        assert!(
            refused(Some(good.clone()), 181.0).contains("last report")
                && refused(Some(good.clone()), -181.0).contains("last report")
        );
        let all: (&str, &[&str]) = ("GPU-2", &["other"]);
        assert!(refused(Some(holders(&[("GPU-1", &["c"])], &["other"])), 0.0).contains("which GPU pod eadt/other holds"));
        assert!(refused(Some(holders(&[("GPU-1", &["c", "other"])], &[])), 0.0).contains("GPU-1 is shared"));
        // A pod that the report does not name, one of that name elsewhere, and one that has come since may hold any of them.
        let mut elsewhere = holders(&[("GPU-1", &["c"]), all], &[]);
        elsewhere.devices[0].pods[0].namespace = "lab".into();
        let mut again = tenants.clone();
        again.get_mut("m").unwrap()[0].created = Some(at(-1.0));
        for (tenants, holders) in [
            (&tenants, holders(&[all], &[])),
            (&tenants, holders(&[("GPU-1", &["c"])], &[])),
            (&tenants, elsewhere),
            (&again, good.clone()),
        ] {
            let placement = placed(tenants, Some(holders), 0.0).unwrap();
            assert!(
                matches!(&placement["m"], ExclusiveGpus::NotYet(why) if why.contains("has not reported yet")),
                "{placement:?}"
            );
            // Nothing is requested there meanwhile; other nodes keep their requests.
            assert_eq!(placement["n"], ExclusiveGpus::All);
            let asked = build_intents([(&wish(), &placement)], &BTreeMap::new());
            assert_eq!(asked.iter().map(|intent| intent.node.as_str()).collect::<Vec<_>>(), ["n"]);
            assert!(matches!(
                target_status(&wish(), &placement, &BTreeMap::from([("n".into(), state()), ("m".into(), state())])),
                SettingsProgress::Pending(_)
            ));
        }
    }

    #[test]
    fn whoever_may_hold_gpus_is_a_tenant() {
        let pod = |spec: Value| read_gpu_pod(&json!({"metadata": {"namespace": "eadt", "name": "p", "uid": "u"}, "spec": spec}));
        assert!(pod(json!({"containers": [{"resources": {"limits": {"nvidia.com/gpu": "1"}}}]})).is_some());
        assert!(pod(json!({"containers": [{}, {"resources": {"requests": {"nvidia.com/mig-1g.10gb": 1}}}]})).is_some());
        assert!(pod(json!({"containers": [{}], "resourceClaims": [{"name": "gpu"}]})).is_some());
        assert!(pod(json!({"containers": [{"resources": {"limits": {"cpu": "1"}}}]})).is_none());
    }

    #[test]
    fn what_the_devices_do_not_take_is_refused_before_anything_is_asked() {
        let (wish, good) = (wish(), state());
        assert_eq!(check_supported(&wish, "n", &ExclusiveGpus::All, Some(&good), at(60.0)), Ok(()));
        let refused = |state: Option<&DeviceState>, seconds: f64| {
            check_supported(&wish, "n", &ExclusiveGpus::All, state, at(seconds)).unwrap_err()
        };
        assert!(refused(None, 0.0).contains("no agent"));
        assert!(refused(Some(&DeviceState { stopped: true, ..good.clone() }), 0.0).contains("stopped"));
        assert!(refused(Some(&good), 181.0).contains("has not reported"));
        assert!(refused(Some(&DeviceState { devices: vec![], ..good.clone() }), 0.0).contains("no GPU"));
        let these =
            |gpu: &str| check_supported(&wish, "n", &ExclusiveGpus::Listed([gpu.to_owned()].into()), Some(&good), at(0.0));
        assert_eq!(these("GPU-1"), Ok(()));
        assert!(these("GPU-2").unwrap_err().contains("reports no GPU GPU-2"));
        let with = |change: fn(&mut DeviceReport)| {
            let mut state = good.clone();
            change(&mut state.devices[0]);
            refused(Some(&state), 0.0)
        };
        assert!(with(|d| d.power_limit_watts_min = Some(350.0)).contains("from 350 to 700 W, not 300"));
        assert!(with(|d| d.sm_clock_mhz_max = Some(1400.0)).contains("not 1417"));
        assert!(with(|d| d.sm_clock_mhz_max = None).contains("does not report"));
    }

    #[test]
    fn it_is_held_when_all_agents_report_so_of_this_decision() {
        let wish = wish();
        let progress_after = |change: fn(&mut DeviceState)| {
            let mut other = state();
            change(&mut other);
            let board = BTreeMap::from([("n".to_owned(), state()), ("m".to_owned(), other)]);
            target_status(&wish, &GpuPlacement::from(["n", "m"].map(|node| (node.to_owned(), ExclusiveGpus::All))), &board)
        };
        assert_eq!(progress_after(|_| {}), SettingsProgress::Held);
        assert!(matches!(progress_after(|s| s.devices[0].decision_id = Some("d-0".into())), SettingsProgress::Pending(_)));
        assert!(matches!(progress_after(|s| s.devices[0].power_limit_watts = Some(700.0)), SettingsProgress::Pending(_)));
        assert!(matches!(progress_after(|s| s.devices[0].sm_clock_mhz = None), SettingsProgress::Pending(_)));
        assert!(matches!(progress_after(|s| s.devices.clear()), SettingsProgress::Pending(_)));
        assert!(matches!(progress_after(|s| s.stopped = true), SettingsProgress::Pending(_)));
        assert!(matches!(
            progress_after(|s| s.devices[0].power_limit_outcome = SettingOutcome::Failed),
            SettingsProgress::Pending(_)
        ));
        let refused = progress_after(|s| {
            s.devices[0].sm_clock_outcome = SettingOutcome::Refused;
            s.devices[0].sm_clock_reason = "agent.clocks is off".into();
        });
        assert!(matches!(&refused, SettingsProgress::Refused(why) if why.contains("agent.clocks is off")), "{refused:?}");
        // The GPU of another workload does not count for this one.
        let mut shared = state();
        shared.devices.push(DeviceReport { device: "GPU-2".into(), ..DeviceReport::default() });
        let board = BTreeMap::from([("n".to_owned(), shared)]);
        let of = |gpu: &str| {
            target_status(&wish, &GpuPlacement::from([("n".to_owned(), ExclusiveGpus::Listed([gpu.to_owned()].into()))]), &board)
        };
        assert_eq!(of("GPU-1"), SettingsProgress::Held);
        assert!(matches!((of("GPU-2"), of("GPU-3")), (SettingsProgress::Pending(_), SettingsProgress::Pending(_))));
        // A refusal of an older decision does not count for this one.
        let old = progress_after(|s| {
            s.devices[0].decision_id = Some("d-0".into());
            s.devices[0].sm_clock_outcome = SettingOutcome::Refused;
        });
        assert!(matches!(old, SettingsProgress::Pending(_)), "{old:?}");
        assert!(matches!(target_status(&wish, &GpuPlacement::new(), &BTreeMap::new()), SettingsProgress::Pending(_)));
    }

    #[test]
    fn one_intent_a_node_carries_the_whole_wish() {
        let (one, two) = (wish(), DesiredGpuSettings { workload: "eadt/two".into(), decision_id: "d-2".into(), ..wish() });
        let all =
            |nodes: &[&str]| -> GpuPlacement { nodes.iter().map(|node| ((*node).to_owned(), ExclusiveGpus::All)).collect() };
        let intents = build_intents([(&one, &all(&["a", "b"])), (&two, &all(&["b", "c"]))], &BTreeMap::new());
        let shape: Vec<_> = intents.iter().map(|i| (i.node.as_str(), i.decision_id.as_str())).collect();
        assert_eq!(shape, [("a", "d-1"), ("c", "d-2")], "nobody is asked for two wishes");
        let setting = &intents[0].devices.as_ref().unwrap()[0];
        assert_eq!((setting.device.as_deref(), setting.workload.as_deref()), (None, Some("eadt/llm")));
        assert_eq!((setting.power_limit_watts, setting.sm_clock_mhz), (Some(300.0), Some(1417.0)));
    }

    #[test]
    fn workloads_that_share_a_node_are_asked_for_by_their_gpus() {
        let (one, two) = (wish(), DesiredGpuSettings { workload: "eadt/two".into(), decision_id: "d-2".into(), ..wish() });
        let these = |gpus: &[&str]| {
            GpuPlacement::from([("n".to_owned(), ExclusiveGpus::Listed(gpus.iter().map(|g| (*g).to_owned()).collect()))])
        };
        let both = build_intents([(&one, &these(&["GPU-1", "GPU-3"])), (&two, &these(&["GPU-2"]))], &BTreeMap::new());
        let asked: Vec<_> = both[0].devices.iter().flatten().map(|s| (s.device.as_deref(), s.decision_id.as_deref())).collect();
        let of = |gpu, decision| (Some(gpu), Some(decision));
        assert_eq!((both.len(), asked), (1, vec![of("GPU-1", "d-1"), of("GPU-3", "d-1"), of("GPU-2", "d-2")]));
        assert_eq!(
            build_intents([(&one, &these(&["GPU-1"])), (&two, &these(&["GPU-1"]))], &BTreeMap::new()),
            [],
            "a GPU has one wish"
        );
        let whole = GpuPlacement::from([("n".to_owned(), ExclusiveGpus::All)]);
        assert_eq!(
            build_intents([(&one, &whole), (&two, &these(&["GPU-1"]))], &BTreeMap::new()),
            [],
            "nor is one of all GPUs followed beside it"
        );
    }

    #[test]
    fn an_mps_default_is_asked_for_beside_caps_and_alone() {
        let agreed = MpsDefaultAgreement::by("eadt/llm", 40);
        let defaults = BTreeMap::from(["a", "b"].map(|node| (node.to_owned(), agreed.clone())));
        let all = GpuPlacement::from(["b", "c"].map(|node| (node.to_owned(), ExclusiveGpus::All)));
        let intents = build_intents([(&wish(), &all)], &defaults);
        let shape: Vec<_> = intents
            .iter()
            .map(|i| (i.node.as_str(), i.decision_id.as_str(), i.devices.as_ref().map(Vec::len), i.mps_default_thread_percentage))
            .collect();
        let alone = ("a", "eadt/llm@mps-default", Some(0), Some(40));
        assert_eq!(shape, [alone, ("b", "d-1", Some(1), Some(40)), ("c", "d-1", Some(1), None)]);
        assert_eq!((&intents[0].mps_tenants, &intents[2].mps_tenants), (&Some(agreed.tenants()), &None));
        // A node that follows no cap still follows the default.
        let two = DesiredGpuSettings { decision_id: "d-2".into(), ..wish() };
        let intents = build_intents([(&wish(), &all), (&two, &all)], &defaults);
        let caps: Vec<_> = intents.iter().map(|i| (i.node.as_str(), i.devices.as_ref().map(Vec::len))).collect();
        assert_eq!(caps, [("a", Some(0)), ("b", Some(0))]);
    }
}
