//! Sharing of GPUs: a row for each GPU, with the power of each workload on it, and the power that is assigned to none.
//!
//! A sample's share is the part of the power that is a workload's. Windows are made of it; here it is shown at one moment. Energy
//! is the report's, of the workload as a whole: samples of one moment do not contain it.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use eadt_schemas::EventTime;
use eadt_schemas::counts::counted_as;
use eadt_schemas::v1::{Meter, Origin, PodName, SettingOutcome, ShareMethod};
use serde::{Deserialize, Serialize};

use super::decisions::{DecisionRow, decision_row};
use super::devices::{DeviceSnapshot, NodeSnapshot, PowerAttribution};
use super::{DashboardModel, SILENT_SECONDS, rows_of_page};

const DEFAULT_ROWS: usize = 60;
/// Number of GPUs above which they are grouped by node, unless a node or a workload is requested.
const GROUPED: usize = 100;
/// The controller of the stage that divides shared GPUs.
const STAGE: &str = "sm-partition";

/// Selection of GPUs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SharingQuery {
    /// Only GPUs of this node; `-`: GPUs without a known node.
    pub node: Option<String>,
    /// Only GPUs with this index on their node.
    pub gpu_index: Option<u32>,
    /// A part of a GPU's, a node's or a workload's name, in either case.
    pub q: String,
    /// Only GPUs that several workloads share.
    pub shared: bool,
    /// Number of rows to skip.
    pub skip: usize,
    pub limit: Option<usize>,
}

/// Method by which a workload's part of a GPU's power is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AttributionBasis {
    /// It has the GPU to itself: the meter, or what simulates it, is its own.
    Whole,
    /// Activity was measured for each.
    Activity,
    /// Allotted SM percentages or MIG slices. A model, no measurement.
    Allotment,
    /// Declared in the collector's assignments.
    Assigned,
    /// Nothing distinguishes them: each counts as much as the others.
    Equal,
}

impl AttributionBasis {
    fn of(attribution: &PowerAttribution) -> Self {
        match (attribution.share, attribution.method) {
            (None, _) => Self::Whole,
            (_, Some(ShareMethod::ProcessUtilization | ShareMethod::Profiling)) => Self::Activity,
            (_, Some(ShareMethod::MpsPercentage | ShareMethod::MigSlices)) => Self::Allotment,
            (_, Some(ShareMethod::Assigned)) => Self::Assigned,
            (_, Some(ShareMethod::Equal) | None) => Self::Equal,
        }
    }
}

/// One workload on one GPU.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TenantRow {
    pub workload: String,
    /// Part of the GPU's power, 0 to 1.
    pub share_ratio: f64,
    pub method: Option<ShareMethod>,
    pub basis: AttributionBasis,
    /// Its part of the GPU's power now.
    pub power_watts: Option<f64>,
    /// MPS thread percentage of the layout in force.
    pub mps_thread_percentage: Option<u32>,
    /// GPUs that it had in its newest window.
    pub gpus: Option<u32>,
    /// The report's, over its whole record and all of its GPUs.
    pub energy_joules: Option<f64>,
    pub joules_per_sample: Option<f64>,
}

/// Requested settings of a GPU, and their outcomes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RequestedDeviceSettings {
    pub power_limit_watts: Option<f64>,
    pub sm_clock_mhz: Option<f64>,
    pub workload: Option<String>,
    /// Absent if no agent has reported on this GPU.
    pub power_limit_outcome: Option<SettingOutcome>,
    pub sm_clock_outcome: Option<SettingOutcome>,
    /// The agent's words, if there is something to explain.
    pub reason: String,
}

/// One GPU.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DeviceRow {
    pub device: String,
    pub node: Option<String>,
    pub gpu_index: Option<u32>,
    pub gpu_model: Option<String>,
    /// Absent: no sample of it has come.
    pub origin: Option<Origin>,
    pub meter: Meter,
    pub mig_enabled: Option<bool>,
    pub mps_enabled: Option<bool>,
    pub shared: bool,
    /// No sample was received lately: its figures are of `time_ms`, and in no total.
    pub silent: bool,
    /// Time of its newest sample; absent: none has come, and only its node's agent or kubelet names it.
    pub time_ms: Option<i64>,
    /// Power of the whole GPU.
    pub power_watts: Option<f64>,
    pub power_limit_watts: Option<f64>,
    pub tenants: Vec<TenantRow>,
    /// Part of its power that is no workload's; absent if the shares contradict each other, or if no sample of it has come.
    pub unassigned_ratio: Option<f64>,
    pub unassigned_power_watts: Option<f64>,
    #[serde(rename = "asked")]
    pub requested: Option<RequestedDeviceSettings>,
    /// Pods that hold it, by the word of the kubelet.
    pub pods: Vec<PodName>,
    /// The newest decision of the stage of shared GPUs on a workload that is on it.
    pub decision: Option<DecisionRow>,
    /// Sentences on figures that are not known.
    pub unknown: Vec<String>,
}

/// The GPUs of one node, if there are too many for a row each.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NodeRow {
    /// Absent: their samples name no node.
    pub node: Option<String>,
    pub gpus: usize,
    pub shared: usize,
    /// Number of GPUs without a workload.
    pub idle: usize,
    pub silent: usize,
    pub workloads: usize,
    pub power_watts: Option<f64>,
    pub power_known: usize,
    pub unassigned_power_watts: Option<f64>,
}

/// Power of all GPUs with recent samples, by workload and by method of attribution.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct SharingTotals {
    /// Number of GPUs, silent ones included.
    pub gpus: usize,
    pub shared: usize,
    pub idle: usize,
    /// Number of GPUs without a recent sample.
    pub silent: usize,
    /// Power of GPUs whose power is known.
    pub power_watts: Option<f64>,
    pub power_known: usize,
    /// Power of GPUs whose shares contradict each other: in no other figure here.
    pub contradicted_power_watts: f64,
    /// Power of workloads that have their GPU to themselves, or whose activity was measured.
    pub metered_power_watts: f64,
    /// Attributed by the assigned shares.
    pub modelled_power_watts: f64,
    /// Attributed in equal parts, for want of any signal.
    pub assumed_power_watts: f64,
    pub unassigned_power_watts: f64,
    /// Mean power of the workloads' newest windows, and of GPUs without one: what savings are made of.
    pub windows_power_watts: Option<f64>,
    pub windows_unassigned_power_watts: Option<f64>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SharingPage {
    /// Time of the newest sample.
    pub now_ms: Option<i64>,
    pub totals: SharingTotals,
    /// Sentences on figures that are not known of all GPUs together.
    pub unknown: Vec<String>,
    /// Nodes instead of GPUs.
    pub grouped: bool,
    pub nodes: Vec<NodeRow>,
    pub devices: Vec<DeviceRow>,
    /// Rows that the filter lets through.
    pub matching: usize,
    /// Samples of GPUs beyond the limit of this page.
    pub beyond_limit: u64,
}

/// A GPU's name and snapshot, by which rows are ordered.
pub(super) type DeviceEntry<'a> = (&'a str, &'a DeviceSnapshot);

/// Returns the sum of shares, 0 to 1; `None` if it is more than all of a GPU.
fn sum_of_shares(shares: impl Iterator<Item = f64>) -> Option<f64> {
    let sum: f64 = shares.sum();
    (sum <= 1.0 + 1e-6).then(|| sum.min(1.0))
}

impl DashboardModel {
    /// Returns the GPUs and the workloads that share them.
    pub fn sharing(&self, query: &SharingQuery) -> SharingPage {
        let wanted = query.q.to_lowercase();
        let has = |text: &str| text.to_lowercase().contains(&wanted);
        let fits = |(name, device): &DeviceEntry<'_>| {
            let of_node = match query.node.as_deref() {
                None => true,
                Some("-") => device.node.is_none(),
                node => device.node.as_deref() == node,
            };
            let named = || has(name) || device.node.as_deref().is_some_and(has) || device.workloads().any(has);
            let of_index = query.gpu_index.is_none_or(|index| device.gpu_index == Some(index));
            of_node && of_index && (!query.shared || self.is_shared(device)) && (wanted.is_empty() || named())
        };
        let without_samples = self.devices.without_samples();
        let all: Vec<DeviceEntry<'_>> =
            self.devices.iter().chain(without_samples.iter().map(|(name, device)| (*name, device))).collect();
        let mut found: Vec<DeviceEntry<'_>> = all.iter().copied().filter(fits).collect();
        let grouped = found.len() > GROUPED && query.node.is_none() && wanted.is_empty();
        let limit = rows_of_page(query.limit, DEFAULT_ROWS);
        let mut page = SharingPage {
            now_ms: self.devices.newest().map(EventTime::millis),
            totals: self.sharing_totals(&all),
            unknown: self.sharing_unknown(&all),
            grouped,
            nodes: Vec::new(),
            devices: Vec::new(),
            matching: found.len(),
            beyond_limit: self.devices_beyond_limit,
        };
        if grouped {
            let nodes = self.node_rows(&found);
            page.matching = nodes.len();
            page.nodes = nodes.into_iter().skip(query.skip).take(limit).collect();
        } else {
            found.sort_by(|a, b| self.in_order(a, b));
            page.devices =
                found.into_iter().skip(query.skip).take(limit).map(|(name, device)| self.device_row(name, device)).collect();
        }
        page
    }

    fn in_order(&self, (a_name, a): &DeviceEntry<'_>, (b_name, b): &DeviceEntry<'_>) -> Ordering {
        let nodes = natural_order(a.node.as_deref(), b.node.as_deref());
        let shared = self.is_shared(b).cmp(&self.is_shared(a));
        shared.then(nodes).then_with(|| (a.gpu_index, a_name).cmp(&(b.gpu_index, b_name)))
    }

    fn is_over(&self, workload: &str) -> bool {
        self.workloads.get(workload).is_some_and(super::WorkloadState::is_over)
    }

    /// Returns the attributions of a device's power to workloads at work: a job that has ended leaves its GPUs without work.
    fn attributions_of<'a>(&'a self, device: &'a DeviceSnapshot) -> impl Iterator<Item = &'a PowerAttribution> {
        device.attributions().filter(move |known| known.workload.as_deref().is_some_and(|workload| !self.is_over(workload)))
    }

    /// Returns the workloads that a device works for.
    pub(super) fn workloads_of<'a>(&'a self, device: &'a DeviceSnapshot) -> impl Iterator<Item = &'a str> {
        self.attributions_of(device).filter_map(|known| known.workload.as_deref())
    }

    /// Returns how many workloads share a device, as its collector counts them, without those that have ended; `None` if it counts
    /// no more than one.
    fn count_of_collector(&self, device: &DeviceSnapshot) -> Option<usize> {
        let counted = device.tenants.filter(|counted| *counted > 1)? as usize;
        Some(counted.saturating_sub(device.workloads().filter(|workload| self.is_over(workload)).count()))
    }

    /// Returns the number of workloads on a device: those that are known here, or as many as its collector counts if these are
    /// more.
    pub(super) fn count_workloads(&self, device: &DeviceSnapshot) -> usize {
        let known = self.workloads_of(device).count();
        self.count_of_collector(device).map_or(known, |counted| known.max(counted))
    }

    fn is_shared(&self, device: &DeviceSnapshot) -> bool {
        self.count_workloads(device) > 1
    }

    /// Returns the part of a device's power that is of workloads at work; `None` if their shares contradict each other.
    fn attributed_ratio(&self, device: &DeviceSnapshot) -> Option<f64> {
        sum_of_shares(self.attributions_of(device).map(|known| known.share.unwrap_or(1.0)))
    }

    pub(super) fn is_silent(&self, device: &DeviceSnapshot) -> bool {
        !device.has_sample || self.devices.newest().is_some_and(|now| now.seconds_since(device.time) > SILENT_SECONDS)
    }

    fn device_row(&self, name: &str, device: &DeviceSnapshot) -> DeviceRow {
        let node = device.node.as_deref().and_then(|node| self.devices.find_node(node));
        let tenants: Vec<TenantRow> = self.attributions_of(device).filter_map(|known| self.tenant_row(device, known)).collect();
        let ended = device.workloads().filter(|workload| self.is_over(workload));
        let ended = ended.map(|workload| format!("{workload} has ended, and its collector still assigns the GPU to it"));
        let unassigned_ratio = self.attributed_ratio(device).filter(|_| device.has_sample).map(unassigned_part);
        let changes = self.workloads_of(device).filter_map(|workload| self.newest_division(workload));
        let silent = self.is_silent(device);
        DeviceRow {
            device: name.to_owned(),
            node: device.node.clone(),
            gpu_index: device.gpu_index,
            gpu_model: device.gpu_model.clone(),
            origin: device.has_sample.then_some(device.origin),
            meter: device.meter,
            mig_enabled: device.mig_enabled,
            mps_enabled: device.mps_enabled,
            shared: self.is_shared(device),
            silent,
            time_ms: device.has_sample.then(|| device.time.millis()),
            power_watts: device.power_watts,
            power_limit_watts: device.power_limit_watts,
            unassigned_power_watts: device.power_watts.zip(unassigned_ratio).map(|(watts, ratio)| watts * ratio),
            unassigned_ratio,
            requested: node.and_then(|node| requested_device_settings(name, node, self.devices.newest())),
            pods: node.map_or(&[][..], |node| node.pods(name)).to_vec(),
            decision: changes.max_by_key(|row| row.time_ms),
            unknown: ended.chain(describe_unknown(device, &tenants, self.count_of_collector(device), silent)).collect(),
            tenants,
        }
    }

    fn tenant_row(&self, device: &DeviceSnapshot, known: &PowerAttribution) -> Option<TenantRow> {
        let workload = known.workload.clone()?;
        let state = self.workloads.get(workload.as_str());
        let figures = state.and_then(|state| state.figures.as_deref());
        let share_ratio = known.share.unwrap_or(1.0);
        Some(TenantRow {
            share_ratio,
            method: known.method,
            basis: AttributionBasis::of(known),
            power_watts: device.power_watts.map(|watts| watts * share_ratio),
            mps_thread_percentage: state.and_then(|state| state.layout()?.mps_thread_percentage),
            gpus: state.and_then(|state| state.latest.as_ref()).and_then(|latest| latest.gpus),
            energy_joules: figures.and_then(|figures| figures.energy_joules),
            joules_per_sample: figures.and_then(|figures| figures.joules_per_sample),
            workload,
        })
    }

    /// Returns the newest decision of the stage of shared GPUs on a workload.
    fn newest_division(&self, workload: &str) -> Option<DecisionRow> {
        self.decisions_of(workload).find(|record| *record.decision.controller == *STAGE).map(decision_row)
    }

    fn sharing_totals(&self, all: &[DeviceEntry<'_>]) -> SharingTotals {
        let mut totals = SharingTotals::default();
        for (_, device) in all {
            totals.gpus += 1;
            if self.is_silent(device) {
                totals.silent += 1;
                continue;
            }
            totals.shared += usize::from(self.is_shared(device));
            totals.idle += usize::from(self.workloads_of(device).next().is_none());
            let Some(watts) = device.power_watts else { continue };
            totals.power_known += 1;
            *totals.power_watts.get_or_insert_default() += watts;
            let Some(attributed) = self.attributed_ratio(device) else {
                totals.contradicted_power_watts += watts;
                continue;
            };
            totals.unassigned_power_watts += watts * unassigned_part(attributed);
            for known in self.attributions_of(device) {
                let sum = match AttributionBasis::of(known) {
                    AttributionBasis::Whole | AttributionBasis::Activity => &mut totals.metered_power_watts,
                    AttributionBasis::Allotment | AttributionBasis::Assigned => &mut totals.modelled_power_watts,
                    AttributionBasis::Equal => &mut totals.assumed_power_watts,
                };
                *sum += watts * known.share.unwrap_or(1.0);
            }
        }
        totals.windows_power_watts = self.power().0;
        totals.windows_unassigned_power_watts = self.idle_power().0;
        totals
    }

    fn sharing_unknown(&self, all: &[DeviceEntry<'_>]) -> Vec<String> {
        let mut unknown = Vec::new();
        let reporting = || all.iter().map(|(_, device)| *device).filter(|device| !self.is_silent(device));
        let mut add = |count: usize, one: &str, many: &str| {
            if count > 0 {
                unknown.push(counted_as(count, one, many));
            }
        };
        let without_samples = all.iter().filter(|(_, device)| !device.has_sample).count();
        add(all.len() - without_samples - reporting().count(), "GPU has not reported lately", "GPUs have not reported lately");
        add(
            without_samples,
            "GPU is named by its node, and this page has read no sample of it",
            "GPUs are named by their nodes, and this page has read no sample of them",
        );
        let no_power = reporting().filter(|device| device.power_watts.is_none()).count();
        add(no_power, "GPU reports no power: its watts are in no total", "GPUs report no power: their watts are in no total");
        let equal = |device: &&DeviceSnapshot| {
            self.attributions_of(device).any(|known| AttributionBasis::of(known) == AttributionBasis::Equal)
        };
        add(
            reporting().filter(equal).count(),
            "GPU has workloads that nothing distinguishes: its power is divided equally",
            "GPUs have workloads that nothing distinguishes: their power is divided equally",
        );
        let contradicted = reporting().filter(|device| self.attributed_ratio(device).is_none()).count();
        add(
            contradicted,
            "GPU has shares that sum to more than all of it: its power is in no part of the total",
            "GPUs have shares that sum to more than all of them: their power is in no part of the total",
        );
        let wide = reporting().filter(|device| device.meter != Meter::Gpu).count();
        add(wide, "meter covers more than one GPU board", "meters cover more than one GPU board");
        let unplaced: usize =
            self.devices.nodes().filter_map(|(_, node)| node.holders.as_ref()).map(|holders| holders.unplaced.len()).sum();
        add(unplaced, "pod holds a GPU that the kubelet does not name", "pods hold GPUs that the kubelet does not name");
        let silent_agents = self.devices.nodes().filter(|(_, node)| node.intent.is_some() && node.state.is_none()).count();
        add(
            silent_agents,
            "node was asked for settings, and its agent has not reported",
            "nodes were asked for settings, and their agents have not reported",
        );
        unknown
    }

    /// Returns the GPUs by node; those with the most unattributed watts first.
    fn node_rows(&self, found: &[DeviceEntry<'_>]) -> Vec<NodeRow> {
        let mut nodes: BTreeMap<Option<&str>, Vec<&DeviceSnapshot>> = BTreeMap::new();
        for (_, device) in found {
            nodes.entry(device.node.as_deref()).or_default().push(device);
        }
        let row = |(node, all): (Option<&str>, Vec<&DeviceSnapshot>)| {
            let reporting: Vec<&DeviceSnapshot> = all.iter().copied().filter(|device| !self.is_silent(device)).collect();
            let mut workloads: Vec<&str> = reporting.iter().flat_map(|device| self.workloads_of(device)).collect();
            workloads.sort_unstable();
            workloads.dedup();
            let power = || reporting.iter().filter_map(|device| device.power_watts);
            let unassigned: Vec<f64> = reporting
                .iter()
                .filter_map(|device| Some(device.power_watts? * (1.0 - self.attributed_ratio(device)?)))
                .collect();
            NodeRow {
                node: node.map(str::to_owned),
                gpus: all.len(),
                shared: reporting.iter().filter(|device| self.is_shared(device)).count(),
                idle: reporting.iter().filter(|device| self.workloads_of(device).next().is_none()).count(),
                silent: all.len() - reporting.len(),
                workloads: workloads.len(),
                power_watts: power().next().map(|_| power().sum()),
                power_known: power().count(),
                unassigned_power_watts: (!unassigned.is_empty()).then(|| unassigned.iter().sum()),
            }
        };
        let mut rows: Vec<NodeRow> = nodes.into_iter().map(row).collect();
        let watts = |row: &NodeRow| row.unassigned_power_watts.unwrap_or(-1.0);
        rows.sort_by(|a, b| watts(b).total_cmp(&watts(a)).then_with(|| natural_order(a.node.as_deref(), b.node.as_deref())));
        rows
    }
}

/// Compares names as people order them: `node-2` comes before `node-10`. No name comes first.
pub(super) fn natural_order(a: Option<&str>, b: Option<&str>) -> Ordering {
    /// Parts that hold digits only, with their value, and the parts between.
    fn parts(name: &str) -> Vec<(u128, &str)> {
        let parts = name.as_bytes().chunk_by(|one, next| one.is_ascii_digit() == next.is_ascii_digit());
        let mut from = 0;
        let part = |bytes: &[u8]| {
            let text = &name[from..from + bytes.len()];
            from += bytes.len();
            (text.parse().unwrap_or(0), text)
        };
        parts.map(part).collect()
    }
    a.map(parts).cmp(&b.map(parts))
}

fn requested_device_settings(device: &str, node: &NodeSnapshot, now: Option<EventTime>) -> Option<RequestedDeviceSettings> {
    let setting = node.requested_setting(device, now)?;
    let reported = node.device_report(device);
    let words = reported.map(|report| [report.power_limit_reason.as_str(), report.sm_clock_reason.as_str()]);
    let words: Vec<&str> = words.into_iter().flatten().filter(|words| !words.is_empty()).collect();
    Some(RequestedDeviceSettings {
        power_limit_watts: setting.power_limit_watts,
        sm_clock_mhz: setting.sm_clock_mhz,
        workload: setting.workload,
        power_limit_outcome: reported.filter(|_| setting.power_limit_watts.is_some()).map(|report| report.power_limit_outcome),
        sm_clock_outcome: reported.filter(|_| setting.sm_clock_mhz.is_some()).map(|report| report.sm_clock_outcome),
        reason: words.join("; "),
    })
}

/// Returns sentences on the figures of a GPU that are not known; `counted` are its workloads as its collector counts them.
fn describe_unknown(device: &DeviceSnapshot, tenants: &[TenantRow], counted: Option<usize>, silent: bool) -> Vec<String> {
    if !device.has_sample {
        return vec![
            "this page, which begins with the newest samples, has read none of it: its node's agent or kubelet names it, and perhaps no collector reads it".to_owned(),
        ];
    }
    let mut unknown = Vec::new();
    if silent {
        unknown.push("no report lately: these are its last figures".to_owned());
    }
    if device.has_impossible_power {
        unknown.push("it reports a power that no such device draws: that is no reading".to_owned());
    } else if device.power_watts.is_none() {
        unknown.push("its power is not reported".to_owned());
    }
    if let Some(counted) = counted.filter(|counted| *counted != tenants.len() && *counted > 1) {
        unknown.push(format!("its collector counts {counted} workloads on it, and {} are known here", tenants.len()));
    }
    if sum_of_shares(tenants.iter().map(|tenant| tenant.share_ratio)).is_none() {
        unknown.push("the shares sum to more than all of it".to_owned());
    }
    if tenants.iter().any(|tenant| tenant.basis == AttributionBasis::Equal) {
        unknown.push("no signal distinguishes its workloads: each counts as much as the others".to_owned());
    } else if tenants.iter().any(|tenant| tenant.basis == AttributionBasis::Allotment) {
        unknown.push("power is divided by what each was given, not by what it used".to_owned());
    }
    if device.mig_enabled == Some(true) && tenants.iter().all(|tenant| tenant.share_ratio >= 1.0) && !tenants.is_empty() {
        unknown.push("it is cut into MIG instances, and nothing shows which are whose".to_owned());
    }
    unknown
}
/// Returns the part of a GPU that shares leave. Rounding errors of shares count as none.
fn unassigned_part(attributed: f64) -> f64 {
    let rest = 1.0 - attributed;
    if rest < 1e-6 { 0.0 } else { rest }
}
