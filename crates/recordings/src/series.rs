//! Board, reading and owner of a Prometheus series. Pure.
//!
//! The import of recordings and the collector's scrapes ask the same functions, so that one exporter gives one answer either way.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use eadt_schemas::counts::list_first;
use eadt_schemas::v1::ShareMethod;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ReadingField;
use crate::absent::{is_absent_in_series, is_absent_text, is_blank_in_series};
use crate::identity::{driver_uuid, is_bare_uuid, is_zero_uuid};
use crate::names::NAMES_SHOWN;
use crate::power_draw::power_draw_is_average;
use crate::prometheus_text::ExpositionSample;
use crate::tenancy::BoardTenant;
use crate::units::Unit;

/// The labels of a series.
pub trait SeriesLabels {
    /// Returns the value of a label, or `None` if it is absent or empty, which mean the same.
    fn label(&self, name: &str) -> Option<&str>;

    /// Returns a label of the exporter: a Prometheus server that scrapes with `honor_labels: false` puts `exported_` before those
    /// that its own target labels displace.
    fn exporter_label(&self, name: &str) -> Option<&str> {
        self.label(&format!("exported_{name}")).or_else(|| self.label(name))
    }
}

impl SeriesLabels for ExpositionSample<'_> {
    fn label(&self, name: &str) -> Option<&str> {
        ExpositionSample::label(self, name)
    }
}

impl<S: std::hash::BuildHasher> SeriesLabels for HashMap<String, String, S> {
    fn label(&self, name: &str) -> Option<&str> {
        self.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }
}

/// A series that is known: its field, the unit that it is in, and its rank among the series of that field, best first.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DeviceMetric {
    pub field: ReadingField,
    pub rank: usize,
    unit: Option<Unit>,
    /// It is what NVML calls power usage: an average on some boards.
    is_power_usage: bool,
}

impl DeviceMetric {
    /// Returns the field that the series fills for a board of this model: power usage is an average on some, and on boards
    /// without a name.
    pub fn field_of(self, model: Option<&str>) -> ReadingField {
        if self.is_power_usage && model.is_none_or(power_draw_is_average) { ReadingField::PowerAverageWatts } else { self.field }
    }

    /// Returns the unit that the series is in.
    pub(crate) fn unit(self) -> Option<Unit> {
        self.unit
    }

    /// Converts a value of the series to the unit of the field.
    pub fn to_base_unit(self, value: f64) -> f64 {
        self.unit.map_or(value, |unit| unit.to_base_unit(value))
    }

    /// Returns true if the value, in the series' own unit, means "no value".
    pub fn is_absent(self, value: f64) -> bool {
        is_absent_in_series(self.field, value)
    }

    /// Returns true if the value is one of DCGM's blank values.
    pub fn is_blank(self, value: f64) -> bool {
        is_blank_in_series(self.field, value)
    }
}

/// Series of devices: name, field, unit. Several names of one field are in order of preference.
///
/// `DCGM_FI_…`: dcgm-exporter 2 and later. `dcgm_…`: dcgm-exporter 1. `nvidia_smi_…`: `nvidia_gpu_exporter`. `nvidia_gpu_…`:
/// `nvidia_gpu_prometheus_exporter`. `nv_…`: Triton Inference Server.
const DEVICE_SERIES: &[(&str, ReadingField, &str)] = &[
    ("DCGM_FI_DEV_POWER_USAGE", ReadingField::PowerWatts, "W"),
    ("DCGM_FI_DEV_POWER_USAGE_INSTANT", ReadingField::PowerWatts, "W"),
    ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", ReadingField::EnergyJoulesTotal, "mJ"),
    ("DCGM_FI_DEV_GPU_UTIL", ReadingField::UtilizationRatio, "%"),
    ("DCGM_FI_DEV_MEM_COPY_UTIL", ReadingField::MemoryUtilizationRatio, "%"),
    ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", ReadingField::GraphicsActiveRatio, "ratio"),
    ("DCGM_FI_PROF_SM_ACTIVE", ReadingField::SmActiveRatio, "ratio"),
    ("DCGM_FI_PROF_SM_OCCUPANCY", ReadingField::SmOccupancyRatio, "ratio"),
    ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", ReadingField::TensorActiveRatio, "ratio"),
    ("DCGM_FI_PROF_PIPE_FP32_ACTIVE", ReadingField::Fp32ActiveRatio, "ratio"),
    ("DCGM_FI_PROF_DRAM_ACTIVE", ReadingField::DramActiveRatio, "ratio"),
    ("DCGM_FI_PROF_PCIE_TX_BYTES", ReadingField::PcieTransmitBytesPerSecond, "B/s"),
    ("DCGM_FI_PROF_PCIE_RX_BYTES", ReadingField::PcieReceiveBytesPerSecond, "B/s"),
    ("DCGM_FI_DEV_FB_USED", ReadingField::MemoryUsedBytes, "MiB"),
    ("DCGM_FI_DEV_FB_TOTAL", ReadingField::MemoryTotalBytes, "MiB"),
    ("DCGM_FI_DEV_SM_CLOCK", ReadingField::SmClockMhz, "MHz"),
    ("DCGM_FI_DEV_MEM_CLOCK", ReadingField::MemoryClockMhz, "MHz"),
    ("DCGM_FI_DEV_GPU_TEMP", ReadingField::TemperatureCelsius, "C"),
    ("DCGM_FI_DEV_MEMORY_TEMP", ReadingField::MemoryTemperatureCelsius, "C"),
    ("DCGM_FI_DEV_ENFORCED_POWER_LIMIT", ReadingField::PowerLimitWatts, "W"),
    ("DCGM_FI_DEV_POWER_MGMT_LIMIT", ReadingField::PowerLimitWatts, "W"),
    ("dcgm_power_usage", ReadingField::PowerWatts, "W"),
    ("dcgm_total_energy_consumption", ReadingField::EnergyJoulesTotal, "mJ"),
    ("dcgm_gpu_utilization", ReadingField::UtilizationRatio, "%"),
    ("dcgm_mem_copy_utilization", ReadingField::MemoryUtilizationRatio, "%"),
    ("dcgm_fb_used", ReadingField::MemoryUsedBytes, "MiB"),
    ("dcgm_sm_clock", ReadingField::SmClockMhz, "MHz"),
    ("dcgm_memory_clock", ReadingField::MemoryClockMhz, "MHz"),
    ("dcgm_gpu_temp", ReadingField::TemperatureCelsius, "C"),
    ("dcgm_memory_temp", ReadingField::MemoryTemperatureCelsius, "C"),
    ("nvidia_smi_power_draw_instant_watts", ReadingField::PowerWatts, "W"),
    ("nvidia_smi_power_draw_watts", ReadingField::PowerWatts, "W"),
    ("nvidia_smi_power_draw_average_watts", ReadingField::PowerAverageWatts, "W"),
    ("nvidia_smi_enforced_power_limit_watts", ReadingField::PowerLimitWatts, "W"),
    ("nvidia_smi_power_limit_watts", ReadingField::PowerLimitWatts, "W"),
    ("nvidia_smi_utilization_gpu_ratio", ReadingField::UtilizationRatio, "ratio"),
    ("nvidia_smi_utilization_memory_ratio", ReadingField::MemoryUtilizationRatio, "ratio"),
    ("nvidia_smi_memory_used_bytes", ReadingField::MemoryUsedBytes, "B"),
    ("nvidia_smi_memory_total_bytes", ReadingField::MemoryTotalBytes, "B"),
    ("nvidia_smi_clocks_current_sm_clock_hz", ReadingField::SmClockMhz, "Hz"),
    ("nvidia_smi_clocks_current_memory_clock_hz", ReadingField::MemoryClockMhz, "Hz"),
    ("nvidia_smi_temperature_gpu", ReadingField::TemperatureCelsius, "C"),
    ("nvidia_smi_temperature_memory", ReadingField::MemoryTemperatureCelsius, "C"),
    ("nvidia_gpu_power_usage_milliwatts", ReadingField::PowerWatts, "mW"),
    ("nvidia_gpu_duty_cycle", ReadingField::UtilizationRatio, "%"),
    ("nvidia_gpu_memory_used_bytes", ReadingField::MemoryUsedBytes, "B"),
    ("nvidia_gpu_memory_total_bytes", ReadingField::MemoryTotalBytes, "B"),
    ("nvidia_gpu_temperature_celsius", ReadingField::TemperatureCelsius, "C"),
    ("nv_gpu_power_usage", ReadingField::PowerWatts, "W"),
    ("nv_energy_consumption", ReadingField::EnergyJoulesTotal, "J"),
    ("nv_gpu_power_limit", ReadingField::PowerLimitWatts, "W"),
    ("nv_gpu_utilization", ReadingField::UtilizationRatio, "ratio"),
    ("nv_gpu_memory_used_bytes", ReadingField::MemoryUsedBytes, "B"),
    ("nv_gpu_memory_total_bytes", ReadingField::MemoryTotalBytes, "B"),
];

/// Series that give NVML's power usage, by whatever program.
const POWER_USAGE_SERIES: [&str; 5] = [
    "DCGM_FI_DEV_POWER_USAGE",
    "dcgm_power_usage",
    "nvidia_smi_power_draw_watts",
    "nvidia_gpu_power_usage_milliwatts",
    "nv_gpu_power_usage",
];

/// Returns the metric of a device's series by its name.
pub fn device_metric(name: &str) -> Option<DeviceMetric> {
    let rank = DEVICE_SERIES.iter().position(|(known, _, _)| *known == name)?;
    let (_, field, unit) = DEVICE_SERIES[rank];
    Some(DeviceMetric { field, rank, unit: Unit::by_name(unit), is_power_usage: POWER_USAGE_SERIES.contains(&name) })
}

/// Returns the names in `found` as a sentence part: the first few, and how many more.
pub fn list_names(found: &BTreeSet<String>) -> String {
    let names: Vec<&str> = found.iter().map(String::as_str).collect();
    if names.is_empty() { "no series at all".to_owned() } else { list_first(&names, NAMES_SHOWN) }
}

/// Names of series that are read, for messages.
pub const KNOWN_DEVICE_SERIES: &str =
    "DCGM_FI_… and dcgm_… (dcgm-exporter), nvidia_smi_… and nvidia_gpu_… (nvidia_gpu_exporter), nv_… (Triton)";

/// The board that a series is about.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SeriesBoard {
    /// UUID as the driver writes it, else `node/gpuN`.
    pub device: String,
    pub node: Option<String>,
    pub gpu_index: Option<u32>,
    pub gpu_model: Option<String>,
}

const MAX_LABEL_BYTES: usize = 253;

/// Returns the board of a series, or `None` if its labels name none.
pub fn board(labels: &impl SeriesLabels) -> Option<SeriesBoard> {
    let label = |names: &[&str]| first_label(labels, names).map(str::to_owned);
    let node = label(&["Hostname", "hostname", "exported_hostname"]);
    let gpu = gpu(labels);
    let device = match label(&["UUID", "uuid", "gpu_uuid"]).filter(|uuid| !is_absent_text(uuid) && !is_zero_uuid(uuid)) {
        Some(uuid) if is_bare_uuid(&uuid) => driver_uuid(&format!("GPU-{uuid}")).into_owned(),
        Some(uuid) => driver_uuid(&uuid).into_owned(),
        None => {
            let host = node.clone().or_else(|| label(&["exported_instance", "instance", "node"]))?;
            format!("{host}/gpu{}", gpu?)
        }
    };
    let gpu_index = gpu.and_then(|gpu| gpu.parse().ok());
    Some(SeriesBoard { device, node, gpu_index, gpu_model: gpu_model(labels) })
}

/// Returns the first of these labels that a series has.
fn first_label<'l>(labels: &'l impl SeriesLabels, names: &[&str]) -> Option<&'l str> {
    names.iter().filter_map(|name| labels.label(name)).find(|value| value.len() <= MAX_LABEL_BYTES)
}

/// Returns the board of its node that a series is about.
pub(crate) fn gpu(labels: &impl SeriesLabels) -> Option<&str> {
    // DCGM's `device` is the board's file, `nvidia0`.
    let of_file = || first_label(labels, &["device"])?.strip_prefix("nvidia").filter(|index| is_index(index));
    first_label(labels, &["gpu", "minor_number", "minor"]).or_else(of_file)
}

/// Returns the name of the board's product. `nvidia_gpu_prometheus_exporter` has it in `name`.
pub(crate) fn gpu_model(labels: &impl SeriesLabels) -> Option<String> {
    first_label(labels, &["modelName", "model_name", "name"]).map(str::to_owned)
}

fn is_index(text: &str) -> bool {
    text.parse::<u32>().is_ok()
}

/// Returns true for readings that concern the whole board even where a series names a MIG instance.
pub fn is_of_board(field: ReadingField) -> bool {
    matches!(
        field,
        ReadingField::PowerWatts
            | ReadingField::PowerAverageWatts
            | ReadingField::PowerLimitWatts
            | ReadingField::EnergyJoulesTotal
            | ReadingField::SmClockMhz
            | ReadingField::MemoryClockMhz
            | ReadingField::TemperatureCelsius
            | ReadingField::MemoryTemperatureCelsius
    )
}

/// How a pod becomes a workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PodRule {
    /// `namespace/owner`, the owner read off the pod's name as Kubernetes forms it: `owner-0` (`StatefulSet`),
    /// `owner-5d4f8c7b9-x2x4z` (`Deployment`), `owner-0-0-x2x4z` (`JobSet`), `owner-0-x2x4z` (indexed `Job`),
    /// `owner-x2x4z` (`Job`, `DaemonSet`). Any other name is its own owner. Names that only look so are taken wrongly:
    /// set `workload_label` where that matters.
    #[default]
    Owner,
    /// `namespace/pod`.
    Pod,
    /// Pods are not looked at: the GPU is reported without a workload.
    Ignore,
}

/// Returns true if a text has only letters of Kubernetes' generated suffixes: no vowels, nothing that looks alike.
fn is_generated_suffix(part: &str, lengths: std::ops::RangeInclusive<usize>) -> bool {
    lengths.contains(&part.len()) && part.bytes().all(|b| b"bcdfghjklmnpqrstvwxz2456789".contains(&b))
}

fn is_ordinal(part: &str) -> bool {
    !part.is_empty() && part.len() <= 6 && part.bytes().all(|b| b.is_ascii_digit())
}

fn split_suffix(name: &str) -> Option<(&str, &str)> {
    name.rsplit_once('-').filter(|(head, _)| !head.is_empty())
}

/// Returns the owner's name, read off a pod's.
pub fn owner(pod: &str) -> &str {
    let Some((head, last)) = split_suffix(pod) else { return pod };
    if is_ordinal(last) {
        return head;
    }
    if !is_generated_suffix(last, 5..=5) {
        return pod;
    }
    let Some((before, middle)) = split_suffix(head) else { return head };
    if is_ordinal(middle) {
        return match split_suffix(before) {
            Some((job_set, index)) if is_ordinal(index) => job_set,
            _ => before,
        };
    }
    if is_generated_suffix(middle, 8..=10) { before } else { head }
}

/// Returns true for `namespace/name`.
pub fn is_workload(text: &str) -> bool {
    text.len() <= MAX_LABEL_BYTES
        && !text.chars().any(char::is_control)
        && matches!(text.split_once('/'), Some((namespace, name))
            if !namespace.is_empty() && !name.is_empty() && !name.contains('/'))
}

/// Rules that derive a workload from labels.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AttributionRules {
    /// Label that names the workload; goes before pods.
    pub workload_label: Option<String>,
    /// Namespace of workloads that `workload_label` names without one. Default: the namespace of the series.
    pub workload_namespace: Option<String>,
    pub pods: PodRule,
}

/// The workload that a series names as the holder of its board.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SeriesAttribution {
    Workload {
        workload: String,
        /// Empty if a label names the workload.
        pod: String,
    },
    /// The series names no workload, or only the exporter itself.
    Unattributed,
    /// A label names the workload, and nothing its namespace.
    NoNamespace(String),
    /// The name cannot be one of a workload.
    NotAWorkload(String),
}

/// Pods that are known to be exporters: Prometheus' own target labels name them beside `exported_pod`.
#[derive(Debug, Clone, Default)]
pub struct ExporterPods(BTreeSet<(String, String)>);

impl ExporterPods {
    /// Learns from the labels of one series.
    pub fn add_exporter(&mut self, labels: &impl SeriesLabels) {
        if labels.label("exported_pod").is_some()
            && let Some(pod) = labels.label("pod")
        {
            self.0.insert((labels.label("namespace").unwrap_or_default().to_owned(), daemon_set_name(pod).to_owned()));
        }
    }

    /// Returns true if this pod is an exporter's and no job's.
    fn contains(&self, labels: &impl SeriesLabels, namespace: Option<&str>, pod: &str) -> bool {
        let target = |name: &str| {
            let value = labels.label(name).and_then(|value| value.rsplit('/').next());
            value.is_some_and(|value| value == owner(pod) || value == daemon_set_name(pod))
        };
        // The exporter's host name is that of its pod, unless it has the node's network. `service` and `job` are of what is
        // scraped.
        self.0.contains(&(namespace.unwrap_or_default().to_owned(), daemon_set_name(pod).to_owned()))
            || labels.label("Hostname") == Some(pod)
            || target("service")
            || target("job")
            || names_an_exporter(pod)
    }
}

/// Returns the name of the `DaemonSet` that a pod would be of: without its five random characters, whatever they are.
fn daemon_set_name(pod: &str) -> &str {
    let random = |last: &str| last.len() == 5 && last.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    split_suffix(pod).filter(|(_, last)| random(last)).map_or(pod, |(head, _)| head)
}

fn names_an_exporter(pod: &str) -> bool {
    let has = |word: &str| pod.split(['-', '.', '_']).any(|part| part.eq_ignore_ascii_case(word));
    let gpu = || ["gpu", "gpus", "nvidia", "nvml", "smi"].into_iter().any(has);
    has("dcgm") || (has("exporter") && gpu())
}

/// Returns the pod of a series: name and namespace. The labels of the exporter go before those of its target.
fn pod(labels: &impl SeriesLabels) -> Option<(&str, Option<&str>)> {
    // Exporters of 2020 wrote `pod_name` and `pod_namespace`.
    let pairs = [
        ("exported_pod", "exported_namespace"),
        ("exported_pod_name", "exported_pod_namespace"),
        ("pod_name", "pod_namespace"),
        ("pod", "exported_namespace"),
    ];
    pairs.into_iter().find_map(|(name, namespace)| {
        let pod = labels.label(name)?;
        Some((pod, labels.label(namespace).or_else(|| labels.exporter_label("namespace"))))
    })
}

/// Returns the workload to which the labels of a series attribute its board.
pub fn attribute_series(labels: &impl SeriesLabels, rules: &AttributionRules, exporters: &ExporterPods) -> SeriesAttribution {
    let pod = pod(labels);
    let is_exporters = pod.is_some_and(|(name, namespace)| exporters.contains(labels, namespace, name));
    let label = rules.workload_label.as_deref().and_then(|name| labels.exporter_label(name));
    let (name, namespace, pod) = if let Some(label) = label {
        if label.contains('/') {
            return named_workload(label.to_owned(), "");
        }
        // The exporter's own namespace is not that of the job.
        let of_pod = pod.map_or_else(|| labels.exporter_label("namespace"), |(_, namespace)| namespace).filter(|_| !is_exporters);
        let own = labels.label("exported_namespace").or_else(|| labels.label("pod_namespace"));
        (label, rules.workload_namespace.as_deref().or(own).or(of_pod), "")
    } else {
        let Some((pod, namespace)) = pod.filter(|_| !is_exporters && rules.pods != PodRule::Ignore) else {
            return SeriesAttribution::Unattributed;
        };
        (if rules.pods == PodRule::Owner { owner(pod) } else { pod }, namespace, pod)
    };
    match namespace {
        Some(namespace) => named_workload(format!("{namespace}/{name}"), pod),
        None => SeriesAttribution::NoNamespace(name.to_owned()),
    }
}

fn named_workload(workload: String, pod: &str) -> SeriesAttribution {
    if is_workload(&workload) {
        SeriesAttribution::Workload { workload, pod: pod.to_owned() }
    } else {
        SeriesAttribution::NotAWorkload(workload)
    }
}

/// A MIG instance as a series names it.
#[derive(Debug, Clone, PartialEq)]
pub struct MigInstance {
    pub id: String,
    /// Compute slices of the GPU that it is cut from, if its profile gives them.
    pub slices: Option<f64>,
}

/// Returns the MIG instance that a series names.
pub fn mig_instance(labels: &impl SeriesLabels) -> Option<MigInstance> {
    let id = labels.label("GPU_I_ID")?.to_owned();
    // `3g.40gb`, `1g.10gb+me`, and with a compute instance of it `1c.3g.40gb`.
    let slices = labels
        .label("GPU_I_PROFILE")
        .and_then(|profile| profile.split(['.', '+']).find_map(|part| part.strip_suffix('g')?.parse::<u8>().ok()).map(f64::from));
    Some(MigInstance { id, slices: slices.filter(|slices| *slices > 0.0) })
}

#[derive(Debug, Clone, Default)]
struct MigInstanceUsage {
    slices: Option<f64>,
    /// Part of the time in which its compute engine was busy, 0 to 1.
    active_ratio: Option<f64>,
}

/// The holders of a board at one moment: the pods and MIG instances that its series name.
#[derive(Debug, Clone, Default)]
pub struct BoardHolders {
    /// (workload, pod, MIG instance); without an instance the whole board.
    pods: BTreeSet<(String, String, String)>,
    instances: BTreeMap<String, MigInstanceUsage>,
}

impl BoardHolders {
    /// Adds the labels of one series.
    pub fn add(&mut self, attribution: &SeriesAttribution, instance: Option<&MigInstance>) {
        if let Some(MigInstance { id, slices }) = instance {
            let known = self.instances.entry(id.clone()).or_default();
            known.slices = known.slices.or(*slices);
        }
        if let SeriesAttribution::Workload { workload, pod } = attribution {
            let instance = instance.map(|instance| instance.id.clone()).unwrap_or_default();
            self.pods.insert((workload.clone(), pod.clone(), instance));
        }
    }

    /// Notes the part of the time in which an instance was busy; the first value holds. Returns false for what cannot be.
    pub fn set_activity(&mut self, instance: &str, active_ratio: f64) -> bool {
        match self.instances.get_mut(instance).filter(|_| (0.0..=1.0).contains(&active_ratio)) {
            Some(instance) => {
                instance.active_ratio.get_or_insert(active_ratio);
                true
            }
            None => false,
        }
    }

    /// Returns one tenant for each workload. Their shares never sum above 1, so that the board's energy is shared out and never
    /// multiplied.
    ///
    /// Pods of a whole board have equal parts. MIG instances have parts by their slices, as far as these were busy if that is
    /// known of all of them and any was; equal parts if the slices of one are unknown. An instance without a workload is part of
    /// the whole.
    pub fn tenants(&self) -> Vec<BoardTenant> {
        let outside = self.pods.iter().filter(|(_, _, instance)| instance.is_empty()).count() as f64;
        let known = self.instances.values().all(|instance| instance.slices.is_some());
        let slices = |instance: &MigInstanceUsage| instance.slices.filter(|_| known).unwrap_or(1.0);
        let busy = |instance: &MigInstanceUsage| Some(slices(instance) * instance.active_ratio?);
        let all_busy: Option<f64> = self.instances.values().map(busy).sum();
        // The part of a pod that holds the whole board was not measured so.
        let profiled = all_busy.filter(|busy| *busy > 0.0 && outside == 0.0);
        let part =
            |instance: &MigInstanceUsage| if profiled.is_some() { busy(instance).unwrap_or(0.0) } else { slices(instance) };
        let mut weights: BTreeMap<&str, f64> = BTreeMap::new();
        for (workload, _, instance) in &self.pods {
            // Several pods may share an instance.
            let sharing = self.pods.iter().filter(|(_, _, other)| other == instance).count();
            let weight = self.instances.get(instance).map_or(1.0, |instance| part(instance) / sharing as f64);
            *weights.entry(workload).or_default() += weight;
        }
        let whole = self.instances.values().map(part).sum::<f64>() + outside;
        let alone = weights.len() == 1 && self.instances.is_empty();
        let method = match profiled {
            Some(_) => ShareMethod::Profiling,
            None if self.instances.is_empty() || !known => ShareMethod::Equal,
            None => ShareMethod::MigSlices,
        };
        let tenant = |(workload, weight): (&str, f64)| BoardTenant {
            workload: workload.to_owned(),
            share: (!alone).then(|| (weight / whole).clamp(0.0, 1.0)),
            method: (!alone).then_some(method),
        };
        weights.into_iter().map(tenant).collect()
    }
}

#[cfg(test)]
mod tests;
